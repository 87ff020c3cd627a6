"""What a caller of the retrieval service asks, and what it answers.

`SearchQuery` is checked where it is made, so that it can be the body of a request; what only the
database can judge, such as a filter's fields, is left to it.
"""

from collections.abc import Sequence
from datetime import date
from typing import Annotated, Any, Literal, TypedDict
from uuid import UUID

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    StringConstraints,
    WithJsonSchema,
)

from second_brain.errors import InvalidInputError
from second_brain.filters import Filters, conditions
from second_brain.services.results import MemorySearchResult
from second_brain.settings import LIMIT_BOUND, Mode, ModeName

QUESTION_BOUND = 1000
"""Characters. A longer text is a document, which no embedding model reads as a question."""

OFFSET_BOUND = 1000


def _conditions(filters: Any) -> Any:
    try:
        return conditions(filters)
    except InvalidInputError as error:
        raise ValueError(str(error)) from error


def _neighbors(expand: object) -> object:
    return int(expand) if isinstance(expand, bool) else expand


def _listed(names: object) -> object:
    if isinstance(names, str):
        raise ValueError("must be a list of names, not one text")  # noqa: TRY004
    return list(names) if isinstance(names, set | frozenset) else names


Text = Annotated[
    str, StringConstraints(strip_whitespace=True, min_length=1, max_length=QUESTION_BOUND)
]
Names = Annotated[tuple[str, ...], BeforeValidator(_listed)]


class SearchQuery(BaseModel):
    """One validated search: what `RetrievalService.search` takes, also as JSON.

    `mode` None, `limit` None and `min_similarity` None stand for the service's settings. Raises
    pydantic's ValidationError for a value out of bounds and for a name that is none of these.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    query: Text = Field(description="The question, 1 to 1,000 characters.")
    mode: Mode | None = Field(default=None, description="hybrid, vector, text (or bm25) or rerank.")
    limit: int | None = Field(default=None, ge=1, le=LIMIT_BOUND, description="Results, 1 to 100.")
    offset: int = Field(default=0, ge=0, le=OFFSET_BOUND, description="Results to skip.")
    category: str | None = Field(default=None, description="One knowledge_type.")
    tags: Names = Field(default=(), description="metadata.tags has every one of them.")
    date_from: date | None = Field(default=None, description="First document_date, included.")
    date_to: date | None = Field(default=None, description="Last document_date, included.")
    filters: Annotated[
        Any,
        PlainValidator(_conditions),
        WithJsonSchema(
            {"anyOf": [{"type": "array", "items": {"type": "object"}}, {"type": "object"}]}
        ),
    ] = Field(default=None, description="Conditions on columns and metadata.")
    min_similarity: float | None = Field(
        default=None,
        ge=-1,
        le=1,
        description="Least cosine similarity of what the vector leg finds.",
    )
    viewer_id: UUID | None = Field(default=None, description="Rows of this user, and public ones.")
    public_only: bool = Field(default=False, description="Public rows only.")
    collections: Names | None = Field(
        default=None, description="Each ranked by itself, then fused."
    )
    expand_neighbors: Annotated[int, BeforeValidator(_neighbors)] = Field(
        default=0, ge=0, le=5, description="Chunks before and after each hit; true is 1."
    )
    one_per_document: bool = Field(default=False, description="The best chunk of each document.")
    recency_half_life: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="Days after which a score counts half.",
    )
    snippet: bool = Field(default=False, description="An excerpt in HTML with <mark>.")
    search_mode: Literal["websearch", "simple", "phrase"] = Field(
        default="websearch", description="How the text leg reads the question."
    )
    formulations: Annotated[tuple[Text, ...], BeforeValidator(_listed)] = Field(
        default=(), max_length=10, description="Further ways to ask the same question."
    )


class QueryOptions(TypedDict, total=False):
    """What `RetrievalService.search` takes by name beside the question: fields of SearchQuery."""

    mode: Literal["hybrid", "vector", "text", "bm25", "rerank"] | None
    limit: int | None
    offset: int
    category: str | None
    tags: Sequence[str] | set[str] | frozenset[str]
    date_from: date | str | None
    date_to: date | str | None
    filters: Filters | None
    min_similarity: float | None
    viewer_id: UUID | str | None
    public_only: bool
    collections: Sequence[str] | None
    expand_neighbors: bool | int
    one_per_document: bool
    recency_half_life: float | None
    snippet: bool
    search_mode: Literal["websearch", "simple", "phrase"]
    formulations: Sequence[str]


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
    """

    model_config = ConfigDict(frozen=True)

    results: list[SearchResult]
    total_count: int | None
    mode: ModeName
    mode_used: ModeName
    limit: int
    offset: int
    applied_filters: dict[str, Any]
    query_time_ms: QueryTime
    embedding_model: str | None = None
    cached: bool = False
    degraded: Degraded | None = None


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
    {*_COLUMNS, "document_date", "title", "source_url", "total_count", "real_provider"}
)


def result(
    hit: MemorySearchResult,
    rank: int,
    *,
    rerank_score: float | None = None,
    original_rank: int | None = None,
) -> SearchResult:
    """Turn a provider's hit into a result."""
    said = hit.metadata
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
