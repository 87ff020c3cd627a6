"""Documents to chunks, cut where the text itself has its seams.

semantic-text-splitter finds the seams within a section; here small leftovers join a neighbour of
the same section, tables are cut between rows, and every chunk gets its heading path and pages.
Tokens are those of cl100k_base, which the splitter carries.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from second_brain.errors import InvalidInputError
from second_brain.extras import needed
from second_brain.ingest.document import Heading, LoadedDocument
from second_brain.ingest.markdown import Table, outline

if TYPE_CHECKING:
    from semantic_text_splitter import MarkdownSplitter, TextSplitter

MIN_SIZE, MAX_SIZE = 50, 8_000

_MODEL_OF_TOKENS = "gpt-3.5-turbo"

# A passage of less than this share of the size is joined to its neighbour.
_SMALL = 0.4
# A longer text is not measured: a line of dots has few tokens, and the tokenizer's time grows with
# the square of its length.
_CHARACTERS_PER_TOKEN = 8
# A table's header counts as the first of these shares that it fits; a longer one is not repeated.
_HEADER_SHARES = (0.05, 0.1, 0.2, 0.3, 0.5)

# The splitter's time grows with the square of a line's length, and the tokenizer's of a word's.
_TOO_LONG = re.compile(r"[^\n]{4001,}|\S{1001,}")
# Up to the end of a sentence, else of a word, else anywhere; CJK scripts have no spaces.
_PART = re.compile(
    r".{1000,2000}[.!?](?!\S)"
    r"|.{1,2000}(?!\S)"
    r"|.{100,1000}[\u3002\uff01\uff1f\uff1b]"
    r"|.{1,500}"
)
_WORD = re.compile(r"(?<=[\s\u3002\uff01\uff1f])\S")
_SENTENCE = re.compile(r"(?:(?<=[.!?]\s)|(?<=[\n\u3002\uff01\uff1f]))\S")


@dataclass(frozen=True, slots=True)
class Chunking:
    """The longest chunk in tokens, and how many of them repeat the end of the chunk before.

    `size` is 50 to 8,000, `overlap` at most half of it.
    """

    size: int = 500
    overlap: int = 0

    def __post_init__(self) -> None:
        if not MIN_SIZE <= self.size <= MAX_SIZE:
            raise InvalidInputError(
                f"chunk size must be between {MIN_SIZE} and {MAX_SIZE} tokens, not {self.size}"
            )
        if not 0 <= self.overlap <= self.size // 2:
            raise InvalidInputError(
                f"overlap must be between 0 and {self.size // 2} tokens, half of the chunk size, "
                f"not {self.overlap}"
            )


DEFAULT_CHUNKING = Chunking()


@dataclass(frozen=True, slots=True)
class Chunk:
    """A passage of one section, and its heading path, such as `Manual > Setup > Keys`.

    metadata has `section`, the path below the title, and in a document with pages `page`, the
    first one that the passage stands on, and `pages`, all of them.
    """

    heading: str
    content: str
    metadata: dict[str, Any] = field(default_factory=dict)


def split(document: LoadedDocument, chunking: Chunking = DEFAULT_CHUNKING) -> list[Chunk]:
    """Cut a document into chunks of at most `chunking.size` tokens, the heading path not counted.

    A chunk has the words of one section. One of less than two fifths of the size is a whole
    section, or would exceed the size together with either neighbour. No text is lost, except a
    heading that the path says already. Text is repeated only as the header of a table that
    continues from the chunk before, and as the overlap.
    """
    text = document.text
    found: Sequence[Heading] = document.headings
    tables: Sequence[Table] = ()
    if document.is_markdown:
        found, tables = outline(text)
    cutter = _Cutter(text, tables, chunking, document.is_markdown)
    chunks = []
    for number, path in enumerate(_paths(document.title, found)):
        # Section 0 is what stands before the first heading, section n what the nth heading opens.
        start = found[number - 1].end if number else 0
        end = found[number].start if number < len(found) else len(text)
        section: dict[str, Any] = {"section": " > ".join(path[1:])} if path[1:] else {}
        for passage in cutter.section(start, end):
            pages = _pages(document.page_starts, passage.first, passage.last)
            content = passage.repeated + text[passage.first : passage.last]
            chunks.append(Chunk(" > ".join(path), content, {**pages, **section}))
        is_open = number < len(found) and number and found[number].depth > found[number - 1].depth
        if not text[start:end].strip() and number and path[-1] and not is_open:
            pages = _pages(document.page_starts, found[number - 1].start, found[number - 1].end)
            chunks.append(Chunk(" > ".join(path), path[-1], {**pages, **section}))
    return chunks


def _pages(page_starts: Sequence[int], first: int, last: int) -> dict[str, Any]:
    """Return the pages on which a passage stands, counted from 1."""
    if not page_starts:
        return {}
    page = bisect_right(page_starts, first)
    # A bookmark without a line of its own is a heading without text.
    pages = range(page, max(page, bisect_right(page_starts, last - 1)) + 1)
    return {"page": page, "pages": list(pages)}


def _paths(title: str, found: Sequence[Heading]) -> Iterator[tuple[str, ...]]:
    yield (title,)
    open_headings: list[Heading] = []
    for heading in found:
        while open_headings and open_headings[-1].depth >= heading.depth:
            open_headings.pop()
        open_headings.append(heading)
        names = [opened.text for opened in open_headings if opened.text]
        yield (title, *(names[1:] if names[:1] == [title] else names))


@dataclass(frozen=True, slots=True)
class _Passage:
    """The offsets of a passage, and what is repeated in front of it."""

    first: int
    last: int
    repeated: str = ""


class _Cutter:
    def __init__(
        self, text: str, tables: Sequence[Table], chunking: Chunking, is_markdown: bool
    ) -> None:
        self.text = text
        self.tables = tables
        self.overlap = chunking.overlap
        self.most = chunking.size - chunking.overlap
        self.least = int(self.most * _SMALL)
        self.splitter = (_markdown_splitter if is_markdown else _text_splitter)(
            self.least, self.most
        )

    def section(self, start: int, end: int) -> list[_Passage]:
        """Cut a section into passages, and join what is small with what stands before it."""
        passages: list[_Passage] = []
        for piece in self._pieces(start, end):
            before = passages[-1] if passages else None
            if before and self._belong_together(before, piece):
                passages[-1] = replace(before, last=piece.last)
            else:
                passages.append(piece)
        if self.overlap:
            for index in range(len(passages) - 1, 0, -1):
                passages[index] = self._overlapping(passages[index - 1], passages[index])
        return passages

    def _belong_together(self, before: _Passage, piece: _Passage) -> bool:
        text = self.text
        is_small = _fits(text[before.first : before.last], self.least - 1) or _fits(
            text[piece.first : piece.last], self.least - 1
        )
        return is_small and _fits(before.repeated + text[before.first : piece.last], self.most)

    def _pieces(self, start: int, end: int) -> Iterator[_Passage]:
        rest = start
        for at in range(bisect_left(self.tables, start, key=_start), len(self.tables)):
            table = self.tables[at]
            if table.start >= end:
                break
            if table.end > end:
                # The heading of the next section follows without an empty line.
                table = Table(table.start, min(table.rows, end), end)
            yield from self._cut(self.splitter, rest, table.start)
            yield from self._rows(table)
            rest = table.end
        yield from self._cut(self.splitter, rest, end)

    def _rows(self, table: Table) -> Iterator[_Passage]:
        """Cut a table between its rows; each passage but the first repeats the header."""
        header = self.text[table.start : table.rows]
        if _fits(self.text[table.start : table.end], self.most):
            yield from self._cut(self.splitter, table.start, table.end)
            return
        sizes = (int(self.most * share) for share in _HEADER_SHARES)
        size = next((size for size in sizes if _fits(header, size)), None)
        if size is None:
            # The line of dashes between them has no words.
            rule = self.text.find("\n", table.start) + 1
            yield from self._cut(self.splitter, table.start, rule)
            yield from self._cut(self.splitter, table.rows, table.end)
            return
        splitter = _text_splitter(self.most - size, self.most - size)
        is_first = True
        for piece in self._cut(splitter, table.rows, table.end):
            yield _Passage(table.start, piece.last) if is_first else replace(piece, repeated=header)
            is_first = False

    def _cut(
        self, splitter: "TextSplitter | MarkdownSplitter", start: int, end: int
    ) -> Iterator[_Passage]:
        for first, last in _parts(self.text, start, end):
            for offset, piece in splitter.chunk_indices(self.text[first:last]):
                if piece:
                    yield _Passage(first + offset, first + offset + len(piece))

    def _overlapping(self, before: _Passage, passage: _Passage) -> _Passage:
        """Repeat the end of the passage before: whole sentences, else words, and no table."""
        if passage.repeated:
            return passage
        last = bisect_left(self.tables, passage.first, key=_start) - 1
        start = max(before.first, self.tables[last].end if last >= 0 else 0)
        tail = self.text[start : passage.first]
        words = [word.start() for word in _WORD.finditer(tail)]
        at = bisect_left(words, True, key=lambda word: _fits(tail[word:], self.overlap))
        if at == len(words):
            return passage
        sentence = _SENTENCE.search(tail, words[at])
        return replace(passage, repeated=tail[sentence.start() if sentence else words[at] :])


def _start(table: Table) -> int:
    return table.start


def _parts(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Cut lines and words that are too long for the splitter; the rest stays in one part."""
    rest = start
    for line in _TOO_LONG.finditer(text, start, end):
        yield rest, line.start()
        yield from (part.span() for part in _PART.finditer(text, *line.span()))
        rest = line.end()
    yield rest, end


def _fits(text: str, tokens: int) -> bool:
    if len(text) > tokens * _CHARACTERS_PER_TOKEN:
        return False
    return len(_text_splitter(tokens, tokens).chunks(text)) <= 1


@cache
def _text_splitter(least: int, most: int) -> "TextSplitter":
    with needed("semantic-text-splitter", "ingest"):
        from semantic_text_splitter import TextSplitter
    return TextSplitter.from_tiktoken_model(_MODEL_OF_TOKENS, (least, most))


@cache
def _markdown_splitter(least: int, most: int) -> "MarkdownSplitter":
    with needed("semantic-text-splitter", "ingest"):
        from semantic_text_splitter import MarkdownSplitter
    return MarkdownSplitter.from_tiktoken_model(_MODEL_OF_TOKENS, (least, most))
