"""Asking the service: the list of each leg and the fused one, with the shares of the legs.

The fused list, the shares, and what each leg cost come in one answer, that of `explain`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import unescape
from typing import Any

from second_brain.errors import ConfigurationError, DimensionMismatchError, MigrationMissingError
from second_brain.retrieval.answer import Degraded, SearchResult
from second_brain.retrieval.query import AccessOptions
from second_brain.retrieval.service import RetrievalService
from second_brain.services.arguments import Leg
from second_brain.services.results import off_subject_note
from second_brain.workbench.question import Question

_MARKS = re.compile(r"<mark>(.*?)</mark>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Listed:
    """The hits of one search, and how many its whole list has."""

    hits: Sequence[SearchResult]
    total: int | None


@dataclass
class Asked:
    """What a question found.

    `why_no_vector` says why the vector leg was not asked, `off_subject` that the hits may not
    answer the question, `why_empty` why there is no hit.
    """

    question: Question
    why_no_vector: str | None = None
    off_subject: str | None = None
    why_empty: str | None = None
    model: str | None = None
    explained: Mapping[str, Any] | None = None
    milliseconds: dict[str, float] = field(default_factory=dict)
    lists: dict[Leg, Listed] = field(default_factory=dict)
    is_inferred: bool = False
    """Whether the embedding of the question was made of its best text hits."""
    shares: dict[str, float] = field(default_factory=dict)
    """By chunk id: the part of the fused score that the vector leg gave, 0 to 1."""


def ask(service: RetrievalService, question: Question) -> Asked:
    """Search with the legs of the question, and with each alone. Raises a SecondBrainError."""
    asked = Asked(question)
    access = access_of(question)
    try:
        found = service.explain(question.search(snippet=True, snippets=2), **access)
    except (ConfigurationError, DimensionMismatchError) as error:
        # With the vector leg alone, there is no other one that answers.
        if question.mode != "vector" or isinstance(error, MigrationMissingError):
            raise
        asked.why_no_vector = _no_embedding(error, error.remedy)
        if not question.like_ids:
            return asked
        found = service.explain(question.search(query="", snippet=True, snippets=2), **access)
    asked.explained = explained = found.answer
    asked.model, asked.why_no_vector = found.embedding_model, why_no_vector(found.degraded)
    hits = found.hits(question.offset)
    first = explained["hits"][0] if hits else {}
    if not hits and (empty := service.search(question.search(), **access).empty):
        asked.why_empty = empty.message
    whole = Listed(hits, first.get("total_count"))
    asked.off_subject = off_subject_note(first.get("answer_confidence"))
    times = explained["milliseconds"]
    asked.milliseconds = {"embed": found.timings.embed} if asked.model else {}
    asked.milliseconds |= {leg: times[leg] for leg in ("vector", "text") if times[leg]}
    asked.is_inferred = found.is_inferred
    has_vector = asked.model is not None or asked.is_inferred or bool(question.like_ids)
    if question.mode != "hybrid" or not has_vector:
        asked.lists[question.mode if has_vector else "text"] = whole
        return asked
    asked.lists["hybrid"] = whole
    asked.milliseconds["hybrid"] = times["hybrid"]
    for row in explained["hits"]:
        both = row["vector_share"] + row["text_share"]
        if both > 0:
            asked.shares[row["id"]] = min(max(row["vector_share"] / both, 0), 1)
    legs: tuple[tuple[Leg, float], ...] = (
        ("vector", question.vector_weight if asked.model or question.like_ids else 0),
        ("text", question.text_weight),
    )
    for leg, weight in legs:
        if weight > 0:
            # Without a model, the vector leg has only the hits that the others are like.
            words = {"query": ""} if leg == "vector" and asked.model is None else {}
            alone = question.search(mode=leg, snippet=True, snippets=2, **words)
            response = service.search(alone, **access)
            asked.lists[leg] = Listed(response.results, response.total_count)
    return asked


def access_of(question: Question) -> AccessOptions:
    """Return who asks, as the service takes it."""
    access = question.access()
    return {
        "viewer_id": access.viewer_id,
        "viewer_groups": access.viewer_groups,
        "public_only": access.public_only,
    }


def why_no_vector(degraded: Degraded | None) -> str | None:
    """Return why the vector leg was not asked, if it was not."""
    if degraded is None or degraded.part != "embed":
        return None
    return _no_embedding(degraded.message, degraded.remedy)


def _no_embedding(reason: object, remedy: str) -> str:
    return f"The question has no embedding: {reason}. {remedy}"


def pieces(snippet: str | None) -> list[tuple[str, bool]]:
    """Return the texts of a snippet, each with whether it is marked.

    The database escapes the text of a snippet and puts <mark> around the words, so every other
    piece is marked.
    """
    parts = _MARKS.split(snippet or "")
    return [(unescape(part), place % 2 == 1) for place, part in enumerate(parts) if part]
