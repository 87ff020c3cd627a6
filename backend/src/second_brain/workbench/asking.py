"""Asking the database: each leg and both fused, with the time of each step, and the legs' shares.

The lists come from one function, the hybrid search: with one leg's argument, and with both.
"""

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import unescape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from second_brain.cli.corpus import refuse_other_embedder
from second_brain.errors import ConfigurationError, DimensionMismatchError, MigrationMissingError
from second_brain.models import embed_query
from second_brain.services.arguments import LARGEST_POOL, Leg, SearchOptions
from second_brain.services.install import Database
from second_brain.services.results import Details, MemorySearchResult
from second_brain.workbench.frame import Workbench, provider_of
from second_brain.workbench.question import Question

# Small enough to change no digit that a page shows, large enough for both legs to be run.
_ALMOST_NONE = 1e-12
_TOLERANCE = 1e-6

_MARKS = re.compile(r"<mark>(.*?)</mark>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Listed:
    """The hits of one search, and the milliseconds that it took."""

    hits: Sequence[MemorySearchResult]
    details: Details
    milliseconds: float


@dataclass
class Asked:
    """What a question found. `why_no_vector` says why the vector leg was not asked."""

    question: Question
    embedding: NDArray[np.float32] | None = None
    why_no_vector: str | None = None
    milliseconds: dict[str, float] = field(default_factory=dict)
    lists: dict[Leg, Listed] = field(default_factory=dict)
    shares: dict[str, float] = field(default_factory=dict)
    """By chunk id: the part of the fused score that the vector leg gave, 0 to 1."""

    snippets: dict[str, str] = field(default_factory=dict)
    """By chunk id: the snippet with the words of the question, which the vector leg has not."""

    @property
    def text(self) -> str | None:
        """What the text leg is asked."""
        return None if self.question.legs == "vector" else self.question.q


def prepare(workbench: Workbench, database: Database, question: Question) -> Asked:
    """Embed a question with the workbench's embedder, if the corpus has its embeddings."""
    asked = Asked(question)
    embedder = workbench.embedder
    if question.legs == "text":
        return asked
    if embedder is None:
        asked.why_no_vector = "The workbench was started without an embedder."
        return asked
    try:
        refuse_other_embedder(database, embedder)
    except MigrationMissingError:
        raise
    except (ConfigurationError, DimensionMismatchError) as error:
        asked.why_no_vector = f"The embedder does not fit: {error}. {error.remedy}"
        return asked
    with _timed(asked, "embed"), workbench.embedding:
        vector = embed_query(embedder, question.q)
    if vector.any():
        asked.embedding = vector
    else:
        asked.why_no_vector = "The embedder knows no word of the question."
    return asked


def ask(asked: Asked, database: Database) -> Asked:
    """Search with each leg and with both. Raises a SecondBrainError."""
    question = asked.question
    options = question.options()
    options["snippet"] = True
    embedding, text = asked.embedding, asked.text
    if embedding is None and text is None:
        return asked
    if embedding is not None and text is not None:
        legs: dict[Leg, tuple[Any, str | None]] = {
            "vector": (embedding, None),
            "text": (None, text),
            "hybrid": (embedding, text),
        }
    else:
        legs = {"vector" if text is None else "text": (embedding, text)}
    for leg, (with_embedding, with_text) in legs.items():
        if leg == "vector" and question.vector_weight == 0:
            continue
        if leg == "text" and question.text_weight == 0:
            continue
        with _timed(asked, leg):
            hits, details = provider_of(database).find(with_embedding, with_text, **options)
        asked.lists[leg] = Listed(hits, details, asked.milliseconds[leg])
    if "hybrid" in asked.lists and {"vector", "text"} <= asked.lists.keys():
        _complete(database, asked, options)
    return asked


def pieces(snippet: str | None) -> list[tuple[str, bool]]:
    """Return the texts of a snippet, each with whether it is marked.

    The database escapes the text of a snippet and puts <mark> around the words, so every other
    piece is marked.
    """
    parts = _MARKS.split(snippet or "")
    return [(unescape(part), place % 2 == 1) for place, part in enumerate(parts) if part]


@contextmanager
def _timed(asked: Asked, step: str) -> Iterator[None]:
    begun = time.perf_counter()
    yield
    asked.milliseconds[step] = 1000 * (time.perf_counter() - begun)


def _complete(database: Database, asked: Asked, options: SearchOptions) -> None:
    """Add the vector leg's part of each fused score, and the snippets of that leg's hits.

    The same search is asked again with almost no weight for one leg: a fused score is the sum of
    the two scores. Where it is not, because a document shows another chunk, there are no parts.
    """
    by_vector, by_text = options.copy(), options.copy()
    by_vector["text_weight"] = by_text["vector_weight"] = _ALMOST_NONE
    # The first page is the vector leg's, in its order, with the words of the question marked.
    vector = _page(database, asked, by_vector)
    asked.snippets = {id_: hit.metadata.get("snippet") or "" for id_, hit in vector.items()}
    by_vector["snippet"] = by_text["snippet"] = False
    shown = asked.lists["hybrid"].hits
    # A page larger than the pool would make the pool larger.
    size = max(asked.question.pool, asked.question.limit)
    by_vector["top_k"] = by_text["top_k"] = size
    by_text["match_offset"] = 0
    for start in range(0 if asked.question.offset else len(vector), 2 * size, size):
        if start > LARGEST_POOL or all(hit.id in vector for hit in shown):
            break
        by_vector["match_offset"] = start
        vector |= _page(database, asked, by_vector)
    text = _page(database, asked, by_text)
    both = [hit for hit in shown if hit.id in vector and hit.id in text]
    if not both:
        return
    parts = np.array([[_score(vector[hit.id]), _score(text[hit.id])] for hit in both])
    fused = np.array([_score(hit) for hit in both])
    if not np.allclose(parts.sum(1), fused, rtol=_TOLERANCE, atol=_TOLERANCE * fused.max()):
        return
    for hit in shown:
        if hit.id in vector and _score(hit) > 0:
            share = _score(vector[hit.id]) / _score(hit)
            asked.shares[hit.id] = float(np.clip(share, 0, 1))


def _page(
    database: Database, asked: Asked, options: SearchOptions
) -> dict[str, MemorySearchResult]:
    hits, _ = provider_of(database).find(asked.embedding, asked.text, **options)
    return {hit.id: hit for hit in hits}


def _score(hit: MemorySearchResult) -> float:
    return hit.metadata.get("rrf_score") or 0.0
