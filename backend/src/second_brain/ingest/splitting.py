"""Documents to chunks of at most 500 tokens, cut where the text itself has its seams.

semantic-text-splitter finds the seams within a section; here small leftovers join a neighbour of
the same section, and every chunk gets its heading path and pages. Tokens are those of cl100k_base,
which the splitter carries.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from second_brain.errors import MissingExtraError
from second_brain.ingest.loading import Heading, LoadedDocument, headings

if TYPE_CHECKING:
    from semantic_text_splitter import MarkdownSplitter, TextSplitter

LEAST_TOKENS = 200
MOST_TOKENS = 500
MOST_CHARACTERS = 4_000
"""The longest passage that small ones are joined to: a line of dots has few tokens."""

_MODEL_OF_TOKENS = "gpt-3.5-turbo"

# The splitter's time grows with the square of a line's length, and the tokenizer's of a word's.
_TOO_LONG = re.compile(r"[^\n]{4001,}|\S{1001,}")
# Up to the end of a sentence, else of a word, else anywhere; CJK scripts have no spaces.
_PART = re.compile(
    r".{1000,2000}[.!?](?!\S)"
    r"|.{1,2000}(?!\S)"
    r"|.{100,1000}[\u3002\uff01\uff1f\uff1b]"
    r"|.{1,500}"
)


@dataclass(frozen=True, slots=True)
class Chunk:
    """A passage of one section, and its heading path, such as `Manual > Setup > Keys`.

    metadata has `section`, the path below the title, and in a document with pages `page`, the
    first one that the passage stands on, and `pages`, all of them.
    """

    heading: str
    content: str
    metadata: dict[str, Any] = field(default_factory=dict)


def split(document: LoadedDocument) -> list[Chunk]:
    """Cut a document into chunks of at most 500 tokens each, the heading path not counted.

    A chunk has the words of one section. One of less than 200 tokens is a whole section, or would
    exceed 500 together with either neighbour. No text is lost or repeated, except a heading that
    the path says already.
    """
    text = document.text
    found = headings(text) if document.is_markdown else []
    chunks = []
    for number, path in enumerate(_paths(document.title, found)):
        # Section 0 is what stands before the first heading, section n what the nth heading opens.
        start = found[number - 1].end if number else 0
        end = found[number].start if number < len(found) else len(text)
        section: dict[str, Any] = {"section": " > ".join(path[1:])} if path[1:] else {}
        for first, last in _spans(text, start, end, document.is_markdown):
            pages = _pages(document.page_starts, first, last)
            chunks.append(Chunk(" > ".join(path), text[first:last], {**pages, **section}))
        is_open = number < len(found) and number and found[number].depth > found[number - 1].depth
        if not text[start:end].strip() and number and path[-1] and not is_open:
            chunks.append(Chunk(" > ".join(path), path[-1], section))
    return chunks


def _pages(page_starts: Sequence[int], first: int, last: int) -> dict[str, Any]:
    """Return the pages on which a passage stands, counted from 1."""
    if not page_starts:
        return {}
    pages = range(bisect_right(page_starts, first), bisect_right(page_starts, last - 1) + 1)
    return {"page": pages[0], "pages": list(pages)}


def _paths(title: str, found: Sequence[Heading]) -> Iterator[tuple[str, ...]]:
    yield (title,)
    open_headings: list[Heading] = []
    for heading in found:
        while open_headings and open_headings[-1].depth >= heading.depth:
            open_headings.pop()
        open_headings.append(heading)
        names = [opened.text for opened in open_headings if opened.text]
        yield (title, *(names[1:] if names[:1] == [title] else names))


def _spans(text: str, start: int, end: int, is_markdown: bool) -> list[tuple[int, int]]:
    """Cut a section into passages, and join what is small with what stands before it."""
    splitter = _markdown_splitter() if is_markdown else _text_splitter(LEAST_TOKENS, MOST_TOKENS)
    spans: list[tuple[int, int]] = []
    for first, last in _parts(text, start, end):
        for offset, piece in splitter.chunk_indices(text[first:last]):
            here, there = first + offset, first + offset + len(piece)
            if spans and there - spans[-1][0] <= MOST_CHARACTERS:
                before = spans[-1][0]
                small = _fits(text[slice(*spans[-1])], LEAST_TOKENS - 1) or _fits(
                    piece, LEAST_TOKENS - 1
                )
                if small and _fits(text[before:there], MOST_TOKENS):
                    spans[-1] = (before, there)
                    continue
            if piece:
                spans.append((here, there))
    return spans


def _parts(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Cut lines and words that are too long for the splitter; the rest stays in one part."""
    rest = start
    for line in _TOO_LONG.finditer(text, start, end):
        yield rest, line.start()
        yield from (part.span() for part in _PART.finditer(text, *line.span()))
        rest = line.end()
    yield rest, end


def _fits(text: str, tokens: int) -> bool:
    return len(_text_splitter(tokens, tokens).chunks(text)) <= 1


@cache
def _text_splitter(least: int, most: int) -> "TextSplitter":
    try:
        from semantic_text_splitter import TextSplitter
    except ImportError as exc:
        raise MissingExtraError("semantic-text-splitter", "ingest") from exc
    return TextSplitter.from_tiktoken_model(_MODEL_OF_TOKENS, (least, most))


@cache
def _markdown_splitter() -> "MarkdownSplitter":
    try:
        from semantic_text_splitter import MarkdownSplitter
    except ImportError as exc:
        raise MissingExtraError("semantic-text-splitter", "ingest") from exc
    return MarkdownSplitter.from_tiktoken_model(_MODEL_OF_TOKENS, (LEAST_TOKENS, MOST_TOKENS))
