"""Documents to chunks of 200 to 500 tokens, cut where the text itself has its seams.

semantic-text-splitter finds the seams; here small leftovers join a neighbour and every chunk gets
the path of headings it stands under. Tokens are those of cl100k_base, which the splitter carries.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from second_brain.errors import MissingExtraError
from second_brain.ingest.loading import Heading, LoadedDocument, headings

if TYPE_CHECKING:
    from semantic_text_splitter import MarkdownSplitter, TextSplitter

LEAST_TOKENS = 200
MOST_TOKENS = 500

_MODEL_OF_TOKENS = "gpt-3.5-turbo"


@dataclass(frozen=True, slots=True)
class Chunk:
    """A passage and its heading path, such as `Manual > Setup > Keys`.

    metadata has `section`, the path below the title, and `page`, where there are such.
    """

    heading: str
    content: str
    metadata: dict[str, Any] = field(default_factory=dict)


def split(document: LoadedDocument) -> list[Chunk]:
    """Cut a document into chunks of at most 500 tokens each, the heading path not counted.

    A chunk of less than 200 tokens would exceed 500 together with either neighbour, or is the
    whole document. No text is lost or repeated, except a heading that the path says already.
    """
    text = document.text
    found = headings(text) if document.is_markdown else []
    starts = [heading.start for heading in found]
    # Section 0 is what stands before the first heading, section n what the nth heading opens.
    paths = list(_paths(document.title, found))
    chunks = []
    for start, end in _spans(text, document.is_markdown):
        first, last = bisect_right(starts, start), bisect_right(starts, end - 1)
        path = _shared(paths[first : last + 1])
        page = bisect_right(document.page_starts, start)
        while first and starts[first - 1] == start and paths[first] == path[: len(paths[first])]:
            body = text[found[first - 1].end : end]
            start = end - len(body.lstrip())
            first = bisect_right(starts, start)
        metadata: dict[str, Any] = {"page": page} if page else {}
        if path[1:]:
            metadata["section"] = " > ".join(path[1:])
        chunks.append(Chunk(" > ".join(path), text[start:end] or path[-1], metadata))
    return chunks


def _paths(title: str, found: Sequence[Heading]) -> Iterator[tuple[str, ...]]:
    yield (title,)
    open_headings: list[Heading] = []
    for heading in found:
        while open_headings and open_headings[-1].depth >= heading.depth:
            open_headings.pop()
        open_headings.append(heading)
        names = [opened.text for opened in open_headings if opened.text]
        yield (title, *(names[1:] if names[:1] == [title] else names))


def _shared(paths: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the path of the innermost section that holds all of these sections."""
    levels = zip(*paths, strict=False)
    return tuple(names[0] for names in takewhile(lambda names: len(set(names)) == 1, levels))


def _spans(text: str, is_markdown: bool) -> list[tuple[int, int]]:
    splitter = _markdown_splitter() if is_markdown else _text_splitter(LEAST_TOKENS, MOST_TOKENS)
    spans: list[tuple[int, int]] = []
    for start, piece in splitter.chunk_indices(text):
        end = start + len(piece)
        if spans:
            before = spans[-1][0]
            small = _fits(text[slice(*spans[-1])], LEAST_TOKENS - 1) or _fits(
                piece, LEAST_TOKENS - 1
            )
            if small and _fits(text[before:end], MOST_TOKENS):
                spans[-1] = (before, end)
                continue
        if piece:
            spans.append((start, end))
    return spans


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
