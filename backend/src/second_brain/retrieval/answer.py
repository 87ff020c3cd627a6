"""What the retrieval service answers: results, times, and the parts that failed."""

from collections.abc import Iterator, Mapping
from datetime import date, datetime
from typing import Any, Literal

from pydantic import ConfigDict, Field

from second_brain.errors import SecondBrainError, safe_message
from second_brain.frozen import Frozen
from second_brain.retrieval.earlier_names import ResponseNames, ResultNames
from second_brain.retrieval.settings import Mode
from second_brain.services import searches
from second_brain.services.arguments import FIELD_NAMES, renamed
from second_brain.services.results import (
    EmptyReason,
    HitMetadata,
    MemorySearchResult,
    Notes,
    past_end,
    source_key,
)

FROM_TEXT = "from the best text hits"
"""What the database says of an embedding that it made for a question."""


class SearchResult(ResultNames):
    """One hit: its columns, None where the call does not return them, and its place in the list.

    `rank` counts from 1 in the whole list, so the first hit after an offset of 10 has rank 11.
    When reranked, `rerank_score` orders the list (higher is better, of no fixed range), and
    `original_rank` is where the fused list had the hit. `metadata` is the row's own. `chunk_index`
    is None for a whole document.

    `confidence` has one meaning in all modes: the fused score (of one leg, that leg's) divided by
    the highest that the weights and the fusion allow. 1 is the best possible; it is no probability.
    Whether the answer fits the question at all: `answer_confidence` of the SearchResponse.
    """

    id: str
    content: str
    knowledge_type: str = "document"
    document_id: str | None = None
    chunk_index: int | None = 0
    source_origin: str = "manual"
    metadata: dict[str, Any]
    rrf_score: float | None = None
    vector_rank: int | None = None
    text_rank: int | None = None
    similarity: float | None = None
    text_score: float | None = None
    match_type: str | None = None
    matched_terms: list[str] = Field(default=[])
    title: str | None = None
    source_url: str | None = None
    collection: str | None = None
    collections: list[str] = Field(default=[])
    heading: str | None = None
    sensitivity: str | None = None
    external_key: str | None = None
    source_row: dict[str, Any] | None = None
    document_chunks: int | None = None
    document_date: date | None = None
    valid_from: datetime | None = None
    valid_until: datetime | None = None
    snippet: str | None = None
    context: str | None = None
    duplicates: int | None = None
    confidence: float
    rank: int
    rerank_score: float | None = None
    original_rank: int | None = None

    @property
    def source_key(self) -> dict[str, Any] | None:
        """The key of the row of an adopted table that it is made of, with the table's types."""
        return source_key(self.source_row)


_LAID_OVER = frozenset(HitMetadata.__annotations__)
_COLUMNS = _LAID_OVER & SearchResult.model_fields.keys()


class QueryTime(Frozen):
    """Milliseconds of a search and its parts; what did not run took 0."""

    embed: float = 0.0
    search: float = 0.0
    rerank: float = 0.0
    total: float = 0.0


class Degraded(Frozen):
    """A part that failed, and that the answer does without.

    `embed`: the question has no embedding of its own: one of its best text hits takes its place, or
    the text leg answers alone (`mode_used`). `text`: the text leg failed,
    and the vector leg answers. `rerank`: the fused order is kept. `kind` is that of a
    `second_brain.errors` class. `also` is a second part that failed.
    """

    part: Literal["embed", "text", "rerank"]
    kind: str
    message: str
    remedy: str
    also: "Degraded | None" = None


class EmptyAnswer(Frozen):
    """Why a search found nothing: a code, sentences for people, and facts under their own names.

    The reasons are those of explain_empty_knowledge_search.
    """

    model_config = ConfigDict(extra="allow")

    reason: str
    message: str


class SearchResponse(ResponseNames):
    """The answer of a search.

    `mode` is what was asked for, or what the settings made of no mode; `mode_used` is what ran.
    `total_count` is how many results paging can reach, None on a page past the end. `cached` says
    that the results were read from this process's cache, and `degraded` what failed on the way.
    `query_time_ms` is the whole time in milliseconds, and `timings` has its parts. `notes` says
    what the database did beside what was asked. `empty`, without results, says why.

    `answer_confidence` is 0 to 1: how well the hit with the best fused score fits the question, the
    same on all pages and after reranking. Below `second_brain.services.results.OFF_SUBJECT`, the
    question may be about another subject than the corpus. It is None without hits.

    `pool_ended`: the list ends on this page although more rows may match, because a leg had as many
    candidates as its pool holds, or the reranker as many as it is given. `truncated`: results are
    missing on this page. `remedy` says what to do about either. `exact_total`, where it is asked
    for, is the length that the list would have with pools without bound.

    `left_out` is how many further results of this page do not fit into `max_tokens`: the next page
    begins at `offset` and the number of `results`.

    `pending_embeddings` is how many chunks that the search could find have no embedding yet, so
    that the search finds them by their words only; 1,000 means 1,000 or more. It is None in mode
    text, and if the chunks could not be counted.
    """

    results: list[SearchResult]
    total_count: int | None
    answer_confidence: float | None = None
    mode: Mode
    mode_used: Mode
    limit: int
    offset: int
    applied_filters: dict[str, Any]
    query_time_ms: float
    timings: QueryTime
    embedding_model: str | None = None
    cached: bool = False
    degraded: Degraded | None = None
    pool_ended: bool = False
    truncated: bool = False
    left_out: int = 0
    remedy: str | None = None
    exact_total: int | None = None
    notes: Notes | None = None
    pending_embeddings: int | None = None
    empty: EmptyAnswer | None = None

    def __iter__(self) -> Iterator[SearchResult]:  # type: ignore[override]
        """Yield the results; pydantic's own yields pairs of a field and its value."""
        return iter(self.results)

    @property
    def is_inferred(self) -> bool:
        """Whether the embedding of the question was made of its best text hits."""
        return FROM_TEXT in str((self.notes or {}).get("embedding"))


class Explanation(Frozen):
    """What the database says of a search: how it finds its hits, what it costs, or why not.

    `answer` is what the provider's method returns. `embedding_model`, `degraded` and `timings` are
    as in a SearchResponse.
    """

    answer: Any
    timings: QueryTime
    embedding_model: str | None = None
    degraded: Degraded | None = None

    @property
    def is_inferred(self) -> bool:
        """Whether the embedding of the question was made of its best text hits."""
        vector = self.answer.get("vector") if isinstance(self.answer, dict) else None
        return isinstance(vector, dict) and FROM_TEXT in str(vector.get("strategy"))

    def hits(self, offset: int = 0) -> list[SearchResult]:
        """Return the hits of an explained search; the first has the rank after `offset`."""
        rows = self.answer["hits"]
        hits = searches.hits(rows, method="hybrid", source="postgres", limit=len(rows))
        return [result(hit, rank) for rank, hit in enumerate(hits, start=offset + 1)]


def empty_answer(reason: EmptyReason | None, found: int, offset: int) -> EmptyAnswer | None:
    """Return why a page has no results: what the database said, or that it is past the end."""
    said = reason or (past_end(found, offset) if found else None)
    if said is None:
        return None
    return EmptyAnswer(**{**said, "message": renamed(said["message"], FIELD_NAMES)})


def result(
    hit: MemorySearchResult,
    rank: int,
    *,
    rerank_score: float | None = None,
    original_rank: int | None = None,
) -> SearchResult:
    """Turn a provider's hit into a result."""
    metadata: Mapping[str, Any] = hit.metadata
    columns = {name: metadata[name] for name in _COLUMNS if metadata.get(name) is not None}
    if "document_date" in columns:
        columns["document_date"] = _date(columns["document_date"])
    if metadata.get("is_chunk") is False:
        columns["chunk_index"] = None
    return SearchResult(
        **columns,
        id=hit.id,
        content=hit.content,
        confidence=hit.confidence,
        valid_from=hit.valid_from,
        valid_until=hit.valid_until,
        metadata={name: value for name, value in metadata.items() if name not in _LAID_OVER},
        rank=rank,
        rerank_score=rerank_score,
        original_rank=original_rank,
    )


def _date(text: str) -> date | None:
    try:
        return date.fromisoformat(text)
    except ValueError:  # Postgres has dates that Python lacks: infinity, and years past 9999
        return None


def degraded_by(
    part: Literal["embed", "text", "rerank"],
    failure: SecondBrainError,
    before: Degraded | None = None,
) -> Degraded:
    """Return what a failure of a part means for the answer, with what failed before it."""
    degraded = Degraded(
        part=part, kind=failure.kind, message=safe_message(failure), remedy=failure.remedy
    )
    return degraded if before is None else before.model_copy(update={"also": degraded})
