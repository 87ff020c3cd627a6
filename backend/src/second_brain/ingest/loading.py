"""Files to documents, by the ending of their names.

Everything becomes Markdown or plain text with a title and what the file says about itself. What
cannot be read raises `UnreadableDocumentError`; splitting and storing are done elsewhere.
"""

import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from second_brain.errors import SecondBrainError
from second_brain.extras import needed
from second_brain.ingest.document import (
    MAX_CHARACTERS,
    BinaryFileError,
    LoadedDocument,
    UnreadableDocumentError,
    address,
    day,
    decode,
    json_value,
    noted,
    one_line,
)
from second_brain.ingest.epub import load_epub
from second_brain.ingest.html import load_html
from second_brain.ingest.markdown import top_heading
from second_brain.ingest.office import load_slides, load_word, load_workbook
from second_brain.ingest.pdf import load_pdf
from second_brain.ingest.records import RECORDS, load_csv
from second_brain.ingest.restructured_text import load_restructured_text

_MAX_BINARY_BYTES = 500_000_000


def load_file(path: Path, key: str) -> LoadedDocument:
    """Read one file by its ending. Raises UnreadableDocumentError, or MissingExtraError."""
    suffix = path.suffix.lower()
    document = load_bytes(_read(path, suffix), suffix, path.stem)
    return described(document, key, path.name, suffix)


def load_bytes(data: bytes, suffix: str, name: str) -> LoadedDocument:
    """Read the content of a file with this ending; `name` is its title if it has none."""
    load = _LOADERS.get(suffix)
    try:
        with warnings.catch_warnings():
            # Such as openpyxl's about parts of a sheet that it leaves out.
            warnings.simplefilter("ignore")
            with noted() as notes:
                document = (load or _load_text)(data, name)
    except BinaryFileError as exc:
        if load is not None:
            raise
        raise UnreadableDocumentError(
            f"is of an unsupported type, {suffix or 'without an ending'}: {exc}",
            remedy=f"Supported are {', '.join(SUPPORTED)}, and any file of plain text.",
        ) from exc
    except SecondBrainError:
        raise
    except Exception as exc:
        # Parsers answer a damaged file with anything, RecursionError included.
        raise UnreadableDocumentError(f"cannot be read: {exc or type(exc).__name__}") from exc
    if len(document.text) > MAX_CHARACTERS:
        raise UnreadableDocumentError(f"has more than {MAX_CHARACTERS:,} characters of text")
    return replace(document, notes=tuple(notes))


def described(document: LoadedDocument, key: str, file: str, suffix: str) -> LoadedDocument:
    """Add to a document's metadata where it is from."""
    document.metadata["path"] = key
    # Front matter may say better what kind of document it is.
    document.metadata.setdefault("document_type", suffix.removeprefix(".") or "txt")
    document.metadata.setdefault("source_file", file)
    return document


def _read(path: Path, suffix: str) -> bytes:
    if not path.is_file():
        # Reading a pipe would wait for a writer.
        raise UnreadableDocumentError("is not a regular file" if path.exists() else "is not there")
    # No encoding has more than four bytes for a character.
    limit = _MAX_BINARY_BYTES if suffix in _BINARY else 4 * MAX_CHARACTERS
    if path.stat().st_size > limit:
        raise UnreadableDocumentError(f"is larger than {limit // 1_000_000} MB")
    return path.read_bytes()


def _load_markdown(data: bytes, name: str) -> LoadedDocument:
    text, front = _split_front_matter(decode(data))
    title = one_line(front.pop("title", None))
    return LoadedDocument(
        title=title or top_heading(text) or name,
        text=text,
        author=one_line(front.pop("author", None)),
        document_date=day(front.pop("date", None)),
        source_url=address(front.pop("url", None)),
        metadata=front,
    )


def _load_text(data: bytes, name: str) -> LoadedDocument:
    return LoadedDocument(title=name, text=decode(data), is_markdown=False)


def _split_front_matter(text: str) -> tuple[str, dict[str, Any]]:
    """Cut the YAML block off a Markdown file's top; one that is broken stays, as code."""
    found = re.match(r"---[ \t]*\n(.*?\n)?(?:---|\.\.\.)[ \t]*(?:\n|\Z)", text, re.DOTALL)
    if found is None:
        return text, {}
    with needed("pyyaml", "ingest"):
        import yaml
    block = found[1] or ""
    try:
        # A few aliases of aliases can stand for gigabytes.
        has_alias = any(isinstance(token, yaml.AliasToken) for token in yaml.scan(block))
        front = None if has_alias else yaml.safe_load(block) or {}
    except (yaml.YAMLError, ValueError):
        front = None
    if front is None:
        # Left as it is, its last line would be read as a heading.
        return f"```\n{block}```\n{text[found.end() :]}", {}
    if not isinstance(front, dict):
        return text, {}
    return text[found.end() :], {str(key): json_value(value) for key, value in front.items()}


_TEXT: dict[str, Callable[[bytes, str], LoadedDocument]] = {
    ".md": _load_markdown,
    ".markdown": _load_markdown,
    ".txt": _load_text,
    ".text": _load_text,
    ".rst": load_restructured_text,
    ".html": load_html,
    ".htm": load_html,
    ".xhtml": load_html,
    ".csv": load_csv,
    ".tsv": load_csv,
}
_BINARY: dict[str, Callable[[bytes, str], LoadedDocument]] = {
    ".pdf": load_pdf,
    ".docx": load_word,
    ".pptx": load_slides,
    ".xlsx": load_workbook,
    ".epub": load_epub,
}
_LOADERS = {**_TEXT, **_BINARY}

SUPPORTED = (*_LOADERS, *RECORDS)
"""The endings of the files that are taken from folders."""
