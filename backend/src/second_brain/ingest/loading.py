"""Files to documents, by the ending of their names.

Everything becomes Markdown or plain text with a title and what the file says about itself. What
cannot be read raises `UnreadableDocumentError`; splitting and storing are done elsewhere.
"""

import json
import os
import re
import shutil
import tomllib
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from second_brain.errors import SecondBrainError
from second_brain.extras import needed
from second_brain.ingest.document import (
    MAX_CHARACTERS,
    SPLIT_REMEDY,
    BinaryFileError,
    LoadedDocument,
    UnreadableDocumentError,
    clean,
    expect,
    fields_of,
    finished,
    json_value,
    note,
    noted,
    one_line,
    unforeseen,
)
from second_brain.ingest.encoding import decode, stated
from second_brain.ingest.epub import load_epub
from second_brain.ingest.html import load_html, simple_text
from second_brain.ingest.markdown import fenced, top_heading, without_markup, without_pictures
from second_brain.ingest.office import load_slides, load_word, load_workbook
from second_brain.ingest.pandoc import FORMATS, load_by_pandoc
from second_brain.ingest.pdf import load_pdf
from second_brain.ingest.records import RECORDS, load_csv
from second_brain.ingest.restructured_text import load_restructured_text

_MAX_BINARY_BYTES = 500_000_000
_MOST_ALIASES = 20
_FRONT_MATTER = re.compile(
    r"(?:---[ \t]*\n(?P<yaml>(?:.*\n)*?)(?:---|\.\.\.)"
    r"|\+\+\+[ \t]*\n(?P<toml>(?:.*\n)*?)\+\+\+)[ \t]*(?:\n|\Z)"
)
# Statements of MDX begin a paragraph at the left margin.
_IMPORTS = re.compile(
    r"(?:(?<=\n\n)|\A\s*)(?:(?:import|export)\b[^\n]*\n(?:[^\n]+\n)*)+", re.MULTILINE
)
# Text for programs, which would be stored as its source.
_NO_TEXT = (".eml", ".mbox", ".mht", ".mhtml", ".ps", ".eps", ".svg", ".ods", ".odp")
_NO_TEXT_STARTS = (b"{\\rtf", b"%!PS", b"MIME-Version:")


def load_file(path: Path, key: str, encoding: str | None = None) -> LoadedDocument:
    """Read one file by its ending. Raises UnreadableDocumentError, or MissingExtraError.

    `encoding` is that of a file of text, whatever the file names itself.
    """
    suffix = path.suffix.lower()
    # A name may have line feeds, and bytes of another encoding.
    texts = (
        os.fsencode(part).decode("utf-8", "backslashreplace") for part in (path.name, path.stem)
    )
    name, stem = (one_line(re.sub(r"[\x00-\x1f\x7f]", " ", text)) or key for text in texts)
    document = load_bytes(_read(path, suffix), suffix, stem, demanded=encoding)
    return described(document, key, name, suffix)


def load_bytes(
    data: bytes, suffix: str, name: str, *, demanded: str | None = None, named: str | None = None
) -> LoadedDocument:
    """Read the content of a file with this ending; `name` is its title if it has none.

    `demanded` is the encoding of the caller, `named` that of a server.
    """
    load = _LOADERS.get(suffix)
    if load is None and (suffix in _NO_TEXT or data.startswith(_NO_TEXT_STARTS)):
        raise UnreadableDocumentError(
            f"is of an unsupported type, {suffix or 'without an ending'}", remedy=_SUPPORTED_REMEDY
        )
    try:
        with warnings.catch_warnings(), noted() as notes, stated(demanded, named):
            # Those of parsers about files that they repair.
            warnings.simplefilter("ignore")
            document = (load or _load_text)(data, name)
            if not document.page_starts and not document.headings:
                document = replace(document, text=without_pictures(document.text))
    except BinaryFileError as exc:
        if load is not None:
            raise
        raise UnreadableDocumentError(
            f"is of an unsupported type, {suffix or 'without an ending'}: {exc}",
            remedy=_SUPPORTED_REMEDY,
        ) from exc
    except SecondBrainError:
        raise
    except Exception as exc:
        # Parsers answer a damaged file with anything, RecursionError included.
        raise unforeseen(exc) from exc
    if len(document.text) > MAX_CHARACTERS:
        raise UnreadableDocumentError(
            f"has more than {MAX_CHARACTERS:,} characters of text", remedy=SPLIT_REMEDY
        )
    return finished(document, notes)


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


def _load_markdown(data: bytes, name: str, *, is_mdx: bool = False) -> LoadedDocument:
    text, front = _split_front_matter(decode(data))
    if is_mdx:
        # Its imports, exports, components and expressions.
        text = _IMPORTS.sub("", text)
    else:
        expect(simple_text(text))
    text = without_markup(text, with_components=is_mdx)
    fields = fields_of(front)
    return LoadedDocument(
        title=fields.pop("title", None) or top_heading(text) or name,
        text=text,
        **fields,
        metadata=front,
    )


def _load_notebook(data: bytes, name: str) -> LoadedDocument:
    """Read the texts and the code of a Jupyter notebook, without what the code printed."""
    if not data.strip(b"\xef\xbb\xbf \t\r\n"):
        return LoadedDocument(title=name, text="")
    book = json.loads(data)
    if not isinstance(book, dict) or not {"cells", "worksheets"} & book.keys():
        raise UnreadableDocumentError("has no cells, so it is no notebook")
    cells = book.get("cells") or [
        cell for sheet in book.get("worksheets") or () for cell in sheet.get("cells") or ()
    ]
    about = book.get("metadata") or {}
    language = (about.get("language_info") or about.get("kernelspec") or {}).get("name", "")
    blocks = []
    for number, cell in enumerate(cells, start=1):
        try:
            blocks.append(_cell(cell, language if isinstance(language, str) else ""))
        except (AttributeError, TypeError) as exc:
            note(f"its cell {number} is left out: {unforeseen(exc)}")
    text = "\n\n".join(filter(None, blocks))
    return LoadedDocument(
        title=one_line(about.get("title")) or top_heading(text) or name, text=text
    )


def _cell(cell: Any, language: str) -> str:
    source = cell.get("source", cell.get("input")) or ""
    text = clean("".join(source)).strip()
    kind = cell.get("cell_type")
    if kind == "code":
        return fenced(text, language)
    if kind == "heading":
        return f"{'#' * cell.get('level', 1)} {text}"
    return without_markup(text) if kind == "markdown" else text


def _load_text(data: bytes, name: str) -> LoadedDocument:
    return LoadedDocument(title=name, text=decode(data), is_markdown=False)


def _split_front_matter(text: str) -> tuple[str, dict[str, Any]]:
    """Cut the block of YAML or TOML off a Markdown file's top; a broken one stays, as code."""
    found = _FRONT_MATTER.match(text)
    if found is None:
        return text, {}
    block = found["yaml"] if found["toml"] is None else found["toml"]
    try:
        front = json_value(_yaml(block) if found["toml"] is None else tomllib.loads(block))
    # An anchor can stand for itself.
    except (ValueError, RecursionError):
        # Left as it is, its last line would be read as a heading.
        note("its front matter cannot be read, and is kept as text")
        return f"```\n{block}```\n{text[found.end() :]}", {}
    return (text[found.end() :], front) if isinstance(front, dict) else (text, {})


def _yaml(block: str) -> Any:
    with needed("pyyaml", "ingest"):
        import yaml
    try:
        # Twenty aliases of aliases can stand for a thousand values, and sixty for gigabytes.
        aliases = sum(isinstance(token, yaml.AliasToken) for token in yaml.scan(block))
        if aliases > _MOST_ALIASES:
            raise ValueError(f"it has more than {_MOST_ALIASES} aliases")
        return yaml.safe_load(block) or {}
    except yaml.YAMLError as exc:
        raise ValueError("it is no YAML") from exc


_TEXT: dict[str, Callable[[bytes, str], LoadedDocument]] = {
    ".md": _load_markdown,
    ".mdx": partial(_load_markdown, is_mdx=True),
    ".markdown": _load_markdown,
    ".txt": _load_text,
    ".text": _load_text,
    ".rst": load_restructured_text,
    ".html": load_html,
    ".htm": load_html,
    ".xhtml": load_html,
    ".ipynb": _load_notebook,
    ".csv": load_csv,
    ".tsv": load_csv,
}
_BINARY: dict[str, Callable[[bytes, str], LoadedDocument]] = {
    ".pdf": load_pdf,
    ".docx": load_word,
    ".pptx": load_slides,
    ".xlsx": load_workbook,
    ".epub": load_epub,
    **{suffix: partial(load_by_pandoc, suffix=suffix) for suffix in FORMATS},
}
_LOADERS: dict[str, Callable[[bytes, str], LoadedDocument]] = {**_TEXT, **_BINARY}

SUPPORTED = (
    *(one for one in _LOADERS if one not in FORMATS or shutil.which("pandoc")),
    *RECORDS,
)
"""The endings of the files that are taken from folders."""

_SUPPORTED_REMEDY = f"Supported are {', '.join(SUPPORTED)}, and any file of plain text."
