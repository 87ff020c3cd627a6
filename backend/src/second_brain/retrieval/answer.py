"""What the retrieval service answers: results, times, and the parts that failed."""

from datetime import date
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from second_brain.retrieval.settings import Mode
from second_brain.services.results import MemorySearchResult


class SearchResult(BaseModel):
    """One hit: the columns of the SQL function, and where it stands.

    `rank` counts from 1 in the whole list, so the first hit after an offset of 10 has rank 11.
    When reranked, `rerank_score` is the reranker's (higher is better, of no fixed range) and
    `original_rank` where the fused list had it. `metadata` is the row's own.
    """

    model_config = ConfigDict(frozen=True)

    id: str
    rank: int
    content: str
    knowledge_type: str
    document_id: str | None
    chunk_index: int | None
    source_origin: str
    metadata: dict[str, Any]
    rrf_score: float | None
    vector_rank: int | None
    text_rank: int | None
    similarity: float | None
    text_score: float | None
    match_type: str | None
    matched_terms: list[str]
    title: str | None
    source_url: str | None
    collection: str | None
    document_date: date | None
    snippet: str | None
    context: str | None
    rerank_score: float | None = None
    original_rank: int | None = None

    @property
    def score(self) -> float | None:
        """What orders the list: the reranker's score, or the fused one."""
        return self.rrf_score if self.rerank_score is None else self.rerank_score


class QueryTime(BaseModel):
    """Milliseconds of a search and its parts; what did not run took 0."""

    model_config = ConfigDict(frozen=True)

    embed: float = 0.0
    search: float = 0.0
    rerank: float = 0.0
    total: float = 0.0


class Degraded(BaseModel):
    """A part that failed, and that the answer does without.

    `kind` is that of a `second_brain.errors` class. `also` is a second part that failed.
    """

    model_config = ConfigDict(frozen=True)

    part: Literal["embed", "rerank"]
    kind: str
    message: str
    remedy: str
    also: "Degraded | None" = None


class SearchResponse(BaseModel):
    """The answer of a search.

    `mode` is what was asked for, or what the settings made of no mode; `mode_used` is what ran.
    `total_count` is how many results paging can reach, None on a page past the end. `cached` says
    that the results were read from this process's cache, and `degraded` what failed on the way.

    `pool_ended`: the list ends on this page although more rows may match, because a leg had as many
    candidates as its pool holds, or the reranker as many as it is given. `truncated`: results are
    missing on this page. `remedy` says what to do about either. `exact_total`, where it is asked
    for, is the length that the list would have with pools without bound.
    """

    model_config = ConfigDict(frozen=True)

    results: list[SearchResult]
    total_count: int | None
    mode: Mode
    mode_used: Mode
    limit: int
    offset: int
    applied_filters: dict[str, Any]
    query_time_ms: QueryTime
    embedding_model: str | None = None
    cached: bool = False
    degraded: Degraded | None = None
    pool_ended: bool = False
    truncated: bool = False
    remedy: str | None = None
    exact_total: int | None = None


# The provider lays these over the row's own metadata.
_COLUMNS = (
    "knowledge_type",
    "document_id",
    "chunk_index",
    "source_origin",
    "rrf_score",
    "vector_rank",
    "text_rank",
    "similarity",
    "text_score",
    "match_type",
    "matched_terms",
    "collection",
    "snippet",
    "context",
)
_NOT_OWN = frozenset(
    {
        *_COLUMNS,
        "document_date",
        "title",
        "source_url",
        "total_count",
        "pool_ended",
        "real_provider",
    }
)


def result(
    hit: MemorySearchResult,
    rank: int,
    *,
    rerank_score: float | None = None,
    original_rank: int | None = None,
) -> SearchResult:
    """Turn a provider's hit into a result."""
    said: Any = hit.metadata
    return SearchResult(
        id=hit.id,
        rank=rank,
        content=hit.content,
        metadata={name: value for name, value in said.items() if name not in _NOT_OWN},
        title=_text(said.get("title")),
        source_url=_text(said.get("source_url")),
        document_date=_date(said.get("document_date")),
        rerank_score=rerank_score,
        original_rank=original_rank,
        **{name: said[name] for name in _COLUMNS},
    )


def _text(value: object) -> str | None:
    # A row without the column may have metadata of that name, of any type.
    return None if value is None else str(value)


def _date(value: str | None) -> date | None:
    try:
        return None if value is None else date.fromisoformat(value)
    except ValueError:  # Postgres has dates that Python lacks: infinity, and years past 9999
        return None
