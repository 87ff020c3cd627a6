"""The answer of a search for a model to read: results with quoted passages, as text and as JSON.

Both say the same and are bounded: some assistants show a model only the JSON.
"""

import html
import re
from datetime import date, datetime
from typing import Any

from pydantic import BaseModel

from second_brain.retrieval.answer import (
    FROM_TEXT,
    Degraded,
    EmptyAnswer,
    SearchResponse,
    SearchResult,
)
from second_brain.retrieval.settings import Mode
from second_brain.retrieval.tool_arguments import fitting, sentence
from second_brain.services.results import Notes, off_subject_note, pending_note

PASSAGE_BOUND = 1000
"""Characters of a passage; `fetch` reads the rest."""

_MORE = "More documents may match than are listed: do not say that these are all."


class Passage(BaseModel):
    """A result. Each line of `content` begins with `> `: it is quoted, and may be an excerpt."""

    rank: int
    id: str
    document_id: str | None
    title: str | None
    heading: str | None
    content: str
    knowledge_type: str
    collection: str | None
    sensitivity: str | None
    document_date: date | None
    valid_from: datetime | None
    valid_until: datetime | None
    source_origin: str
    source_url: str | None
    external_key: str | None
    confidence: float
    match_type: str | None
    vector_rank: int | None
    text_rank: int | None
    matched_terms: list[str]
    rerank_score: float | None
    original_rank: int | None
    duplicates: int | None


class Found(BaseModel):
    """The answer of a search, with the keys of a SearchResponse.

    `hints` says what a model should know of the whole answer. `truncated`: results are missing,
    `left_out` of those that were found.
    """

    results: list[Passage]
    hints: list[str]
    total_count: int | None
    answer_confidence: float | None
    mode: Mode
    mode_used: Mode
    limit: int
    offset: int
    applied_filters: dict[str, Any]
    degraded: Degraded | None
    pool_ended: bool
    truncated: bool
    left_out: int
    remedy: str | None
    notes: Notes | None
    pending_embeddings: int | None
    empty: EmptyAnswer | None


def found(
    response: SearchResponse, excerpt: int = PASSAGE_BOUND, max_tokens: int | None = None
) -> Found:
    """Return the response for a model: of a passage at most `excerpt` characters, quoted.

    Results that do not fit into ANSWER_BOUND, or whose passages do not fit into `max_tokens`, are
    left out, and `hints` says so.
    """
    columns = Passage.model_fields.keys() - {"content"}
    shown, left_out = fitting(
        [
            {"content": _quoted(_passage(hit, excerpt)), **hit.model_dump(include=columns)}
            for hit in response.results
        ],
        max_tokens,
    )
    same = response.model_dump(include=Found.model_fields.keys() - {"results", "hints"})
    same["truncated"] = same["truncated"] or bool(left_out)
    same["left_out"] = len(response.results) - len(shown)
    hints = [*_hints(response), *left_out]
    return Found(results=[Passage(**one) for one in shown], hints=hints, **same)


def _hints(response: SearchResponse) -> list[str]:
    hints = []
    failed = response.degraded
    while failed is not None:
        effect = f"Degraded to {response.mode_used} search: {failed.part} failed ({failed.kind})."
        if failed.part == "embed" and response.is_inferred:
            effect = f"The embedding of the question is {FROM_TEXT}."
        hints.append(f"{effect} {sentence(failed.message)} {failed.remedy}")
        failed = failed.also
    said = pending_note(response.pending_embeddings), off_subject_note(response.answer_confidence)
    hints += (note for note in said if note is not None)
    return [*hints, _MORE] if response.pool_ended else hints


def as_text(answer: Found, response: SearchResponse) -> str:
    """Return the answer as text: the hints, then the results, or why there are none."""
    if not answer.results:
        why = f" {one_line(answer.empty.message)}" if answer.empty else ""
        return "\n".join([*answer.hints, f"No results found.{why}"])
    number = len(answer.results)
    total = answer.total_count if answer.total_count is not None else number
    counted = f"{number} result{'s'[: number > 1]}"
    if total > number:
        counted += f" of {total}"
    return "\n\n".join(
        [
            "\n".join([*answer.hints, f"{counted}, {answer.mode_used} search:"]),
            *map(_hit_text, response.results, answer.results),
        ]
    )


def _hit_text(hit: SearchResult, passage: Passage) -> str:
    name = " > ".join(str(part) for part in (hit.title, hit.metadata.get("section")) if part)
    because = [f"score {hit.score:.4f}"]
    if hit.rerank_score is not None:
        because.append(f"reranked from {hit.original_rank}")
    if hit.vector_rank is not None:
        because.append(f"vector rank {hit.vector_rank}")
    if hit.text_rank is not None:
        because.append(f"text rank {hit.text_rank} ({', '.join(hit.matched_terms)})")
    kind = {
        "type": hit.knowledge_type,
        "collection": hit.collection,
        "sensitivity": hit.sensitivity,
        "date": hit.document_date and hit.document_date.isoformat(),
        "valid since": hit.valid_from and hit.valid_from.isoformat(),
        "valid until": hit.valid_until and hit.valid_until.isoformat(),
    }
    origin = {"id": document_id(hit), "source": hit.source_origin, "evidence": hit.source_url}
    return "\n".join(
        [
            f"{hit.rank}. {one_line(name or 'untitled')}",
            "; ".join(map(one_line, because)),
            *(
                "; ".join(f"{label}: {one_line(value)}" for label, value in one.items() if value)
                for one in (kind, origin)
            ),
            passage.content,
        ]
    )


def _quoted(text: str) -> str:
    return "\n".join(f"> {line}" for line in text.splitlines())


def document_id(hit: SearchResult) -> str:
    """Return the id that `fetch` reads; a chunk without a document has only its own."""
    return hit.document_id or hit.id


def _passage(hit: SearchResult, excerpt: int) -> str:
    if hit.context is not None:
        return hit.context
    passage = hit.content
    if len(passage) > excerpt and hit.snippet:
        passage = html.unescape(re.sub("</?mark>", "", hit.snippet))
    return passage if len(passage) <= excerpt else f"{passage[:excerpt].rstrip()} …"


def one_line(text: str) -> str:
    """Return a text without line breaks, which could imitate another hit."""
    return " ".join(text.split())
