"""Files to documents: Markdown, plain text, reStructuredText, HTML and PDF.

Everything becomes Markdown or plain text with a title and what the file says about itself. What
cannot be read raises `UnreadableDocumentError`; splitting and storing are done elsewhere.
"""

import codecs
import io
import logging
import re
import textwrap
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date, datetime
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from second_brain.errors import MissingExtraError, SecondBrainError

if TYPE_CHECKING:
    from bs4 import BeautifulSoup
    from docutils import nodes

MAX_CHARACTERS = 20_000_000
"""Longest text of one document: its chunks and embeddings still fit into one jsonb argument."""

MAX_PDF_BYTES = 500_000_000


class UnreadableDocumentError(SecondBrainError):
    """A file that is damaged, binary, too large, or has no text to read."""

    kind: ClassVar[str] = "unreadable_document"
    http_status: ClassVar[int] = 422
    default_remedy: ClassVar[str] = "Repair or leave out the file; the others are not affected."


class BinaryFileError(UnreadableDocumentError):
    """A file that should be text and is not."""


@dataclass(frozen=True, slots=True)
class LoadedDocument:
    """A document's text and what is known about it.

    `is_markdown` tells whether headings in the text are Markdown's. `page_starts` holds the offset
    in characters at which each page begins, for a document that has pages.
    """

    title: str
    text: str
    is_markdown: bool = True
    page_starts: tuple[int, ...] = ()
    author: str | None = None
    document_date: date | None = None
    source_url: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Heading:
    """A Markdown heading: its depth (1 to 6), its words, and the offsets of its line or lines."""

    depth: int
    text: str
    start: int
    end: int


def load_file(path: Path, key: str) -> LoadedDocument:
    """Read one file by its ending. Raises UnreadableDocumentError, or MissingExtraError."""
    suffix = path.suffix.lower()
    load = _LOADERS.get(suffix)
    try:
        document = (load or _load_text)(_read(path, suffix), path.stem)
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
    document.metadata["path"] = key
    # Front matter may say better what kind of document it is.
    document.metadata.setdefault("document_type", suffix.removeprefix(".") or "txt")
    document.metadata.setdefault("source_file", path.name)
    return document


def _read(path: Path, suffix: str) -> bytes:
    if not path.is_file():
        # Reading a pipe would wait for a writer.
        raise UnreadableDocumentError("is not a regular file" if path.exists() else "is not there")
    # No encoding has more than four bytes for a character.
    limit = MAX_PDF_BYTES if suffix == ".pdf" else 4 * MAX_CHARACTERS
    if path.stat().st_size > limit:
        raise UnreadableDocumentError(f"is larger than {limit // 1_000_000} MB")
    return path.read_bytes()


def _load_markdown(data: bytes, name: str) -> LoadedDocument:
    text, front = _split_front_matter(_decode(data))
    day, title = _date(front.pop("date", None)), _text(front.pop("title", None))
    return LoadedDocument(
        title=title or _top_heading(text) or name,
        text=text,
        author=_text(front.pop("author", None)),
        document_date=day,
        source_url=_text(front.pop("url", None)),
        metadata=front,
    )


def _load_text(data: bytes, name: str) -> LoadedDocument:
    return LoadedDocument(title=name, text=_decode(data), is_markdown=False)


def _load_html(data: bytes, name: str) -> LoadedDocument:
    try:
        from bs4 import BeautifulSoup
    except ImportError as exc:
        raise MissingExtraError("beautifulsoup4", "ingest") from exc
    if b"\0" in data and not data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise BinaryFileError("is binary, not HTML")
    with warnings.catch_warnings():
        # About XHTML, and about pages so short that they look like a file name.
        warnings.simplefilter("ignore")
        page = BeautifulSoup(data, "html.parser")
    return _from_html(page, name)


def _from_html(page: "BeautifulSoup", name: str) -> LoadedDocument:
    try:
        from markdownify import MarkdownConverter
    except ImportError as exc:
        raise MissingExtraError("markdownify", "ingest") from exc

    def about(*names: str) -> str | None:
        for wanted in names:
            tag = page.find("meta", attrs={"name": wanted}) or page.find(
                "meta", attrs={"property": wanted}
            )
            if tag is not None and (value := _text(tag.get("content"))):
                return value
        return None

    title = _text(page.title.get_text()) if page.title else None
    link = page.find("link", rel="canonical")
    # Read before the head goes: a tag that was taken out has nothing left.
    address = _text(link.get("href")) if link else None
    author, published = about("author"), about("article:published_time", "date")
    for tag in page(["script", "style", "noscript", "template", "nav", "head", "svg"]):
        tag.decompose()
    # Addresses are no words of the text, and an image inside the page is a very long one.
    converter = MarkdownConverter(heading_style="ATX", strip=["a", "img"])
    text = _clean(converter.convert_soup(page.find("main") or page)).strip()
    return LoadedDocument(
        title=title or _top_heading(text) or name,
        text=text,
        author=author,
        document_date=_date(published),
        source_url=address,
    )


def _load_restructured_text(data: bytes, name: str) -> LoadedDocument:
    try:
        from bs4 import BeautifulSoup
        from docutils.core import publish_doctree, publish_from_doctree
    except ImportError as exc:
        raise MissingExtraError("docutils", "ingest") from exc
    settings = {
        # Errors stay in the tree, where the text they are about is taken from; none is fatal.
        "report_level": 3,
        "halt_level": 5,
        "warning_stream": io.StringIO(),
        # A document may not read other files or run anything.
        "file_insertion_enabled": False,
        "raw_enabled": False,
        "_disable_config": True,
        "syntax_highlight": "none",
        "math_output": "LaTeX",
        "embed_stylesheet": False,
        "stylesheet_path": None,
        "output_encoding": "unicode",
    }
    tree = publish_doctree(_decode(data), settings_overrides=settings)
    _keep_unknown_markup(tree)
    tree.settings = None  # type: ignore[assignment]
    html = publish_from_doctree(tree, writer="html5", settings_overrides=settings)
    page = BeautifulSoup(html, "html.parser")
    # The writer's own title is "<string>" where the document has none.
    if page.title and not tree.get("title"):
        page.title.decompose()
    return _from_html(page, name)


def _keep_unknown_markup(tree: "nodes.document") -> None:
    """Replace the complaints in a tree by the text they are about.

    Sphinx's directives and roles are unknown to docutils, which would leave their content out.
    """
    from docutils import nodes

    for message in list(tree.findall(nodes.system_message)):
        blocks = [
            nodes.paragraph(block, block)
            for literal in message.findall(nodes.literal_block)
            for block in re.split(r"\n\s*\n", _directive_body(literal.astext()))
            if block.strip()
        ]
        message.parent.replace(message, blocks)
    # The writer would collect these at the end.
    tree.transform_messages.clear()
    for problem in list(tree.findall(nodes.problematic)):
        inner = re.sub(r"^:[\w:+-]+:`[~!]?(.*?)(\s*<[^>]*>)?`$", r"\1", problem.astext())
        problem.parent.replace(problem, nodes.Text(inner))


def _directive_body(text: str) -> str:
    first, _, rest = text.partition("\n")
    first = re.sub(r"^\.\. [\w:+-]+::\s*", "", first)
    return f"{first}\n{textwrap.dedent(rest)}".strip()


def _load_pdf(data: bytes, name: str) -> LoadedDocument:
    try:
        from pypdf import PdfReader
    except ImportError as exc:
        raise MissingExtraError("pypdf", "ingest") from exc
    # Its remarks about slightly damaged files go to standard error unless somebody listens.
    logging.getLogger("pypdf").addHandler(logging.NullHandler())
    reader = PdfReader(io.BytesIO(data))
    if reader.is_encrypted and not reader.decrypt(""):
        raise UnreadableDocumentError("is encrypted", remedy="Remove its password first.")
    text, starts = "", []
    for page in reader.pages:
        starts.append(len(text))
        text += _clean(page.extract_text()).strip() + "\n\n"
    if not text.strip():
        raise UnreadableDocumentError(
            "is a PDF without text", remedy="Scanned pages need text recognition (OCR) first."
        )
    about = reader.metadata
    return LoadedDocument(
        title=(_text(about.title) if about else None) or name,
        text=text,
        is_markdown=False,
        page_starts=tuple(starts),
        author=_text(about.author) if about else None,
        document_date=_date(about.creation_date) if about else None,
    )


_LOADERS: dict[str, Callable[[bytes, str], LoadedDocument]] = {
    ".md": _load_markdown,
    ".markdown": _load_markdown,
    ".txt": _load_text,
    ".text": _load_text,
    ".rst": _load_restructured_text,
    ".html": _load_html,
    ".htm": _load_html,
    ".xhtml": _load_html,
    ".pdf": _load_pdf,
}

SUPPORTED = tuple(_LOADERS)
"""The endings of the files that are taken from folders."""


def _decode(data: bytes) -> str:
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return _clean(data.decode("utf-16"))
    if b"\0" in data:
        raise BinaryFileError("is binary, not text")
    try:
        return _clean(data.decode("utf-8-sig"))
    except UnicodeDecodeError:
        pass
    try:
        return _clean(data.decode("cp1252"))
    except UnicodeDecodeError as exc:
        raise BinaryFileError(
            "is neither UTF-8, UTF-16 nor Windows-1252", remedy="Convert it to UTF-8."
        ) from exc


def _clean(text: str) -> str:
    """Return the text as Postgres can hold it: no NUL, no lone surrogate, one kind of line end."""
    text = text.replace("\0", "").encode("utf-8", "replace").decode("utf-8")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def headings(markdown: str) -> list[Heading]:
    """Find the Markdown headings of a text, in order; a `#` in a code block is none."""
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark").disable("inline")
    inline = MarkdownIt("commonmark")
    lines = [0, *accumulate(len(line) + 1 for line in markdown.split("\n"))]
    found = []
    tokens = parser.parse(markdown)
    for token, content in pairwise(tokens):
        if token.type != "heading_open" or token.level or not token.map:
            continue
        first, after = token.map
        end = min(lines[after], len(markdown))
        start = end - len(markdown[lines[first] : end].lstrip())
        children = inline.parseInline(content.content)[0].children or []
        text = "".join(child.content or " " * child.type.endswith("break") for child in children)
        found.append(Heading(int(token.tag[1:]), " ".join(text.split()), start, end))
    return found


def _top_heading(markdown: str) -> str | None:
    """Return the first heading, unless there is another one of its depth or above it."""
    found = [heading for heading in headings(markdown) if heading.text]
    if not found or any(other.depth <= found[0].depth for other in found[1:]):
        return None
    return found[0].text


def _split_front_matter(text: str) -> tuple[str, dict[str, Any]]:
    """Cut the YAML block off a Markdown file's top; one that is broken stays, as code."""
    found = re.match(r"---[ \t]*\n(.*?\n)?(?:---|\.\.\.)[ \t]*(?:\n|\Z)", text, re.DOTALL)
    if found is None:
        return text, {}
    try:
        import yaml
    except ImportError as exc:
        raise MissingExtraError("pyyaml", "ingest") from exc
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
    return text[found.end() :], {str(key): _json(value) for key, value in front.items()}


def _json(value: object) -> Any:
    if isinstance(value, dict):
        return {str(key): _json(item) for key, item in value.items()}
    if isinstance(value, list | set | tuple):
        return [_json(item) for item in value]
    if isinstance(value, float) and not abs(value) < float("inf"):
        return str(value)
    return value if isinstance(value, str | int | float | type(None)) else str(value)


def _text(value: object) -> str | None:
    return " ".join(_clean(value).split()) or None if isinstance(value, str) else None


def _date(value: object) -> date | None:
    if isinstance(value, datetime):
        return value.date()
    try:
        return date.fromisoformat(value[:10]) if isinstance(value, str) else None
    except ValueError:
        return None
