"""What a loaded document is, and the words, dates and errors that every format needs.

The formats are read in `loading`, `html`, `pdf`, `office`, `epub` and `records`.
"""

import contextlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from email.utils import parsedate_to_datetime
from typing import Any, ClassVar, Literal
from urllib.parse import urlsplit

from second_brain.errors import SecondBrainError

MAX_CHARACTERS = 20_000_000
"""Longest text of one document: its chunks and embeddings still fit into one jsonb argument."""
MAX_HEADING = 200
"""Characters of the longest title and heading; a longer heading is text."""


# The longest text of each form, and the form.
_FORMS_OF_DATES = (
    (10, "%Y-%m-%d"),
    (10, "%Y/%m/%d"),
    (10, "%Y.%m.%d"),
    (10, "%d.%m.%Y"),
    (8, "%Y%m%d"),
    *((30, form) for form in ("%b %d, %Y", "%B %d, %Y", "%d %b %Y", "%d %B %Y")),
)


class UnreadableDocumentError(SecondBrainError):
    """A file that is damaged, binary, too large, or has no text to read."""

    kind: ClassVar[str] = "unreadable_document"
    http_status: ClassVar[int] = 422
    default_remedy: ClassVar[str] = "Repair or leave out the file; the others are not affected."


SPLIT_REMEDY = "Split it into smaller files."


def unforeseen(error: Exception) -> UnreadableDocumentError:
    """Return the report of what a parser raises for a damaged file."""
    reason = one_line(str(error)) or type(error).__name__
    return UnreadableDocumentError(f"cannot be read: {reason[:300]}")


class LeftOutError(UnreadableDocumentError):
    """A page that says that it should not be stored."""


class BinaryFileError(UnreadableDocumentError):
    """A file that should be text and is not."""


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading: its depth (1 to 6), its words, and the offsets of its line or lines."""

    depth: int
    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class LoadedDocument:
    """A document's text and what is known about it.

    `is_markdown`: whether headings and tables in the text are Markdown's; `headings` are
    those of a text that is not. `page_starts` holds the offset in characters at which each page
    or slide begins, for a document that has them. `is_page` is true for a page of a website,
    which can have lines that the site repeats. `notes` say what was left out, and what was guessed.
    """

    title: str
    text: str
    is_markdown: bool = True
    page_starts: tuple[int, ...] = ()
    headings: tuple[Heading, ...] = ()
    author: str | None = None
    document_date: date | None = None
    source_url: str | None = None
    source_origin: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    is_page: bool = False
    notes: tuple[str, ...] = ()


class Notes(list[str]):
    """What is told about a document, and the words that a simple reader finds in it.

    It reads the source, and the page of HTML that some formats are converted to first.
    """

    def __init__(self) -> None:
        super().__init__()
        self.words = {"source": Counter[str](), "page": Counter[str]()}


_NOTES: ContextVar[Notes] = ContextVar("notes of the document that is being loaded")
# A smaller share is what two readers cut into words differently.
_LOST_SHARE = 0.03
_NAMED_WORDS = 5
_WORD = re.compile(r"[^\W_]+")


@contextlib.contextmanager
def noted() -> Iterator[Notes]:
    """Collect what `note` and `expect` are called with."""
    notes = Notes()
    token = _NOTES.set(notes)
    try:
        yield notes
    finally:
        _NOTES.reset(token)


def finished(document: LoadedDocument, notes: Notes) -> LoadedDocument:
    """Return a loaded document with a title of bounded length, and what was noted."""
    title = document.title
    if len(title) > MAX_HEADING:
        title = f"{title[: MAX_HEADING - 1]}…"
        notes.append(f"its title is cut to {MAX_HEADING} characters")
    read = [title, document.text, *(heading.text for heading in document.headings)]
    stored = _words("\n".join(read))
    for words in notes.words.values():
        lost = words - stored
        if lost.total() > _LOST_SHARE * words.total():
            few = ", ".join(list(lost)[:_NAMED_WORDS])
            share = f"{lost.total():,} of its {words.total():,} words"
            notes.append(f"{share} are left out, such as: {few}")
            break
    return replace(document, title=title, notes=tuple(notes))


def note(text: str) -> None:
    """Tell the reader of the report something about the document that is being loaded."""
    notes = _NOTES.get(Notes())
    if text not in notes:
        notes.append(text)


def expect(text: str, of: Literal["source", "page"] = "source") -> None:
    """Count words as a simple reader finds them; `finished` reports what is not in the text."""
    _NOTES.get(Notes()).words[of].update(_words(text))


def _words(text: str) -> Counter[str]:
    return Counter(_WORD.findall(text.casefold()))


def clean(text: str) -> str:
    """Return the text as Postgres can hold it: no NUL, no lone surrogate, one kind of line end."""
    text = text.replace("\0", "").encode("utf-8", "replace").decode("utf-8")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def one_line(value: object) -> str | None:
    """Return a text in one line; None for one without words, and for what is no text."""
    return " ".join(clean(value).split()) or None if isinstance(value, str) else None


def is_web_address(address: str | None) -> bool:
    """Return whether this is an absolute address of http or https."""
    try:
        parts = urlsplit(address or "")
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and "\\" not in parts.netloc


def address(value: object) -> str | None:
    """Return what a citation can link to: an address of http or https, or a path.

    The database refuses a document with any other.
    """
    text = one_line(value)
    if text is None or (
        text.isprintable()
        and (is_web_address(text) or re.match(r"(?![/\\]{2})[^:?#/]*([/?#]|$)", text))
    ):
        return text
    note("its address is left out: it is none of http or https, and no path")
    return None


def day(value: object) -> date | None:
    """Return the date of a datetime, or of a text as people and programs write it.

    The order of day and month in 01/02/2024 is not known, so it is none.
    """
    if isinstance(value, datetime):
        return value.date()
    if isinstance(value, date):
        return value
    text = one_line(value) or ""
    for length, form in _FORMS_OF_DATES:
        with contextlib.suppress(ValueError):
            return datetime.strptime(text[:length], form).date()
    with contextlib.suppress(ValueError):
        return parsedate_to_datetime(text).date()
    return None


def fields_of(record: dict[str, Any], address_keys: Sequence[str] = ("url",)) -> dict[str, Any]:
    """Take title, author, date and address out of what a document says about itself.

    What is not understood stays in the record, for the metadata; an unsafe address does not.
    """
    title = record.get("title")
    if title is not None and not isinstance(title, dict | list | bool):
        record["title"] = str(title)
    fields: dict[str, Any] = {}
    for key, name, read in (
        ("title", "title", one_line),
        ("author", "author", _author),
        ("date", "document_date", day),
        *((key, "source_url", address) for key in address_keys),
    ):
        if name in fields:
            continue
        value = read(record.get(key))
        if value is not None:
            fields[name] = value
        if value is not None or read is address:
            record.pop(key, None)
    return fields


def _author(value: object) -> str | None:
    """Return the names of one author or of several, each a text or an object with a name."""
    if isinstance(value, dict):
        value = value.get("name")
    if isinstance(value, list):
        return ", ".join(filter(None, map(_author, value))) or None
    return one_line(value)


def json_value(value: object) -> Any:
    """Return a value as JSON can hold it."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {clean(str(key)): json_value(item) for key, item in value.items()}
    if isinstance(value, list | set | tuple):
        return [json_value(item) for item in value]
    if isinstance(value, float) and not abs(value) < float("inf"):
        return str(value)
    return value if isinstance(value, int | float | type(None)) else clean(str(value))
