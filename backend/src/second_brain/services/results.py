"""What a search returns, and how a row of the SQL functions becomes it.

Both providers normalise here. Nothing is ranked, merged or filtered: the order is the database's.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NotRequired, TypeAlias, TypedDict
from uuid import UUID

from second_brain.errors import UnexpectedAnswerError

Method = Literal["hybrid", "vector", "fulltext"]
"""What answered, `details["mode"]`: hybrid_search, search (`vector`) or fulltext_search."""

Source = Literal["supabase", "postgres", "sharded"]
"""The provider that asked: over PostgREST, over psycopg, or in several databases."""

MOST_PENDING = 1000
"""Up to this number, the database counts the chunks without an embedding."""

REMEDIES = {
    "collection": "Name its collection, or none.",
    "date": "Give dates that include its own, or none.",
    "earlier_page": "Lower match_offset.",
    "excluded_words": "Ask without the excluded words.",
    "filter": "Leave out this filter, or change the row.",
    "fusion": "Raise match_count, or ask for the next page.",
    "grouped": "Ask without one_per_document, which shows the best chunk of each document.",
    "missed": "Raise pool_size.",
    "no_embedding": "Run `second-brain corpus embed --once`, or ingest its document again.",
    "no_words": "Ask with a word that it has.",
    "not_stored": "Check the name, or ingest the document.",
    "permission": "Give it an owner or groups that the viewer has, or make its document public.",
    "pool": "Raise pool_size to this rank, or leave out other rows by a filter.",
    "recency": "Give a longer recency_half_life, or none.",
    "required_words": "Ask without quotation marks, or with the search_mode websearch.",
    "status": "Make it active: ingest its document again.",
    "threshold": "Lower match_threshold to this similarity.",
}
"""What to do about each cause of explain_missing_knowledge_chunk."""

_FACET_COLUMNS = {"facet", "value", "count"}

_ID_PREFIX: dict[Source, str] = {"supabase": "supa", "postgres": "pg", "sharded": "shard"}


class HitMetadata(TypedDict, total=False):
    """The row's own metadata under its own keys, and these keys, which always win.

    All but title and source_url are always there; what the call does not return is None or `[]`.
    """

    knowledge_type: str
    document_id: str | None
    chunk_index: int
    source_origin: str
    vector_rank: int | None
    text_rank: int | None
    rrf_score: float | None
    similarity: float | None
    text_score: float | None
    match_type: str | None
    matched_terms: list[str]
    collection: str | None
    collections: list[str]
    """All collections in which the search found it."""
    heading: str | None
    """Title and section path, which are searched with the text."""
    sensitivity: str | None
    external_key: str | None
    source_row: dict[str, Any] | None
    """The row of an adopted table: `adoption`, `table`, `key`, `types`; `source_key` reads it."""
    is_chunk: bool
    """False for a whole document, which is stored without a position in it."""
    document_chunks: int | None
    """How many chunks its document has."""
    document_date: str | None
    """ISO."""
    snippet: str | None
    """HTML."""
    context: str | None
    total_count: int | None
    """Hits of the whole list that a page is cut from."""
    pool_ended: bool | None
    """A leg of the search had as many rows as its pool: rows beyond the list may match."""
    real_provider: bool
    title: str
    source_url: str


@dataclass(frozen=True, slots=True)
class MemorySearchResult:
    """One hit.

    `confidence` is the score that orders the hits, divided by the highest that the call could give:
    0 to 1, and 1 is the best possible. Hybrid search: the fused score, of the highest that weights
    and fusion allow (from a database without this column: the fused score, cut to 1). Vector
    search: the cosine similarity, of 1. Full-text search: the BM25 score, of the best hit's. It is
    no probability, and does not compare between fusions or questions.
    """

    id: str
    content: str
    source: Source
    confidence: float
    metadata: HitMetadata = field(default_factory=HitMetadata)

    @property
    def source_key(self) -> dict[str, Any] | None:
        """The key of the row of an adopted table that it is made of, with the table's types."""
        return source_key(self.metadata.get("source_row"))


class FailureDetails(TypedDict, total=False):
    """Why a search failed: the keys that `Details` has only then.

    `error_type` is the class that was raised, `error_kind` and `code` the class of
    `second_brain.errors` and the database's code. `error_message` is bounded and has no
    credentials. After `client_unavailable` (no credentials) only `remedy` follows.
    """

    fallback_reason: Literal["client_unavailable", "provider_error"]
    error_type: str
    error_kind: str
    error_message: str
    code: str | None
    remedy: str


Notes: TypeAlias = dict[str, Any]
"""What a search did beside what was asked, such as `{"embedding": "ignored: ..."}`."""


class ShortDetails(FailureDetails, total=False):
    """Why an answer may lack hits: the keys are there only then, and `remedy` says what to do.

    `truncated`: the server cut the answer and the rest could not be fetched. `pool_ended`: the list
    ends here because a leg of the search had as many rows as its pool holds, not because no other
    row matches. `missing_shards`: of a corpus in several databases, those that gave no answer, with
    the reason. `uneven_statistics`: these databases weigh words by different statistics.
    """

    truncated: bool
    pool_ended: bool
    missing_shards: dict[str, str]
    uneven_statistics: bool


class Details(ShortDetails):
    """How the hits of a search came about.

    `raw_count` is the rows received, `total_count` the length of the list that match_offset pages
    through, `real_provider` True when a database answered. `unreadable_metadata` is there only when
    Python could not read the metadata of some rows: the ids of these rows, whose own metadata is
    empty here. `exact_total` is there only when it is asked for: the length that the list would
    have with pools without bound. `notes` is there only when the search did something beside what
    was asked.
    """

    provider: Source
    mode: Method
    real_provider: bool
    raw_count: int
    total_count: int | None
    unreadable_metadata: NotRequired[list[str]]
    exact_total: NotRequired[int]
    notes: NotRequired[Notes]


class BatchDetails(ShortDetails):
    """`Details` of a batch: `total_count` has one number for each query, None after a failure.

    `notes`, too, has one entry for each query: None for a query without notes.
    """

    provider: Source
    mode: Method
    real_provider: bool
    raw_count: int
    total_count: list[int | None] | None
    unreadable_metadata: NotRequired[list[str]]
    exact_total: NotRequired[int]
    notes: NotRequired[list[Notes | None]]


Results: TypeAlias = tuple[list[MemorySearchResult], Details]
BatchResults: TypeAlias = tuple[list[list[MemorySearchResult]], BatchDetails]


class CutRows(list[object]):
    """Rows of an answer that has more, which could not be fetched."""


class PartialRows(list[object]):
    """Rows of several databases: those without an answer, and whether their statistics differ."""

    missing: dict[str, str]
    is_uneven: bool = False


@dataclass(frozen=True, slots=True)
class EmbeddingModel:
    """A model that stored chunks were embedded with, as they name it, and how many there are."""

    model: str | None
    dimensions: int
    chunks: int


@dataclass(frozen=True, slots=True)
class FacetCount:
    """A value of a facet, and how many chunks or documents have it.

    `value` can be used in a filter: `{facet: value}`, or op `contains` for an element of an array.
    """

    facet: str
    value: str | float | bool
    count: int


def normalize_rows(
    rows: Sequence[object], *, method: Method, source: Source, limit: object
) -> list[MemorySearchResult]:
    """Turn at most `limit` rows into results, in their order; an odd row never fails.

    What a row lacks, or has in another type, becomes: id `supa-{method}-{position}` (`pg-…` over
    psycopg), knowledge_type `document`, source_origin `manual`, chunk_index 0, metadata `{}`,
    a number None. A row that is no mapping becomes one of these defaults alone.
    """
    most = integer(limit)  # the database takes "3" and 2.5 for an integer, too
    kept = [
        row if isinstance(row, Mapping) else {}
        for row in rows[: None if most is None else max(most, 0)]
    ]
    best = max([0.0, *(_finite(_text_score(row)) or 0.0 for row in kept)])
    return [
        _normalize(row, position, method=method, source=source, best_text_score=best)
        for position, row in enumerate(kept)
    ]


def total_count(rows: Sequence[object]) -> int | None:
    """Return how many hits the list has that these rows are a page of; None when no row has it."""
    first = rows[0] if rows else None
    return integer(first.get("total_count")) if isinstance(first, Mapping) else None


def has_pool_ended(rows: Sequence[object]) -> bool:
    """Say whether a leg of the search had as many rows as its pool holds."""
    first = rows[0] if rows else None
    return isinstance(first, Mapping) and first.get("pool_ended") is True


def notes(rows: Sequence[object]) -> Notes | None:
    """Return what the search did beside what was asked; None when no row has it."""
    first = rows[0] if rows else None
    found = first.get("notes") if isinstance(first, Mapping) else None
    return dict(found) if isinstance(found, Mapping) and found else None


def pending_note(count: int | None) -> str | None:
    """Return a sentence about chunks without an embedding; None if there are none."""
    if not count:
        return None
    if count == 1:
        return "1 chunk is not embedded yet; searches find it by its words only."
    number = "1,000 or more" if count >= MOST_PENDING else str(count)
    return f"{number} chunks are not embedded yet; searches find them by their words only."


def embedding_model(row: object) -> EmbeddingModel:
    """Read a row of knowledge_embedding_models()."""
    try:
        return EmbeddingModel(**row)  # type: ignore[arg-type]
    except TypeError as error:
        raise UnexpectedAnswerError("a row does not describe an embedding model") from error


def facet_count(row: object) -> FacetCount:
    """Read a row of facet_knowledge_chunks()."""
    count = FacetCount(**row) if isinstance(row, Mapping) and set(row) == _FACET_COLUMNS else None
    if count is None or not isinstance(count.value, str | int | float):
        raise UnexpectedAnswerError("a row does not describe the count of a facet")
    return count


class UnreadableJson:
    """Stands for a JSON value of a row that Python cannot read."""


def read_json(data: str | bytes) -> object:
    """Read JSON; return an UnreadableJson for what nests too deep or has a number too long."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return UnreadableJson()


def unreadable_metadata(rows: Sequence[object]) -> list[str]:
    """Return the ids of the rows whose metadata Python cannot read."""
    return [
        str(row.get("id"))
        for row in rows
        if isinstance(row, Mapping) and isinstance(row.get("metadata"), UnreadableJson)
    ]


def query_index(row: object) -> int | None:
    """Return which query of a batch the row answers; None when it has no number."""
    return integer(row.get("query_index")) if isinstance(row, Mapping) else None


def _normalize(
    row: Mapping[str, object],
    position: int,
    *,
    method: Method,
    source: Source,
    best_text_score: float,
) -> MemorySearchResult:
    similarity, text_score = _number(row.get("similarity")), _text_score(row)
    rrf_score = _number(row.get("rrf_score"))
    confidence = {
        "hybrid": _number(row.get("confidence", rrf_score)),
        "vector": similarity,
        "fulltext": None if text_score is None else text_score / (best_text_score or 1),
    }[method]
    own_metadata = row.get("metadata")
    metadata: Any = {
        **(own_metadata if isinstance(own_metadata, dict) else {}),
        **{key: row[key] for key in ("title", "source_url") if row.get(key) is not None},
        "knowledge_type": _name(row.get("knowledge_type"), "document"),
        "document_id": _text(row.get("document_id")),
        "chunk_index": integer(row.get("chunk_index")) or 0,
        "source_origin": _name(row.get("source_origin"), "manual"),
        "vector_rank": integer(row.get("vector_rank")),
        "text_rank": integer(row.get("text_rank")),
        "rrf_score": _finite(rrf_score),
        "similarity": _finite(similarity),
        "text_score": _finite(text_score),
        "match_type": _text(row.get("match_type")),
        "matched_terms": _texts(row.get("matched_terms")),
        **{key: _text(row.get(key)) for key in ("collection", "document_date")},
        "collections": _texts(row.get("collections")),
        **{key: _text(row.get(key)) for key in ("heading", "sensitivity", "external_key")},
        "source_row": row.get("source_row"),
        "is_chunk": row.get("chunk_index", 0) is not None,
        "document_chunks": integer(row.get("document_chunks")),
        # Always there: the row's own metadata must not pass for an escaped snippet.
        **{key: _text(row.get(key)) for key in ("snippet", "context")},
        "total_count": integer(row.get("total_count")),
        **({"pool_ended": row["pool_ended"] is True} if "pool_ended" in row else {}),
        "real_provider": True,
    }
    return MemorySearchResult(
        id=_text(row.get("id")) or f"{_ID_PREFIX[source]}-{method}-{position}",
        content=_text(row.get("content")) or "",
        source=source,
        confidence=unit(confidence),
        metadata=metadata,
    )


def source_key(source_row: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the key of a row of an adopted table, column by column, with the table's types.

    An integer column gives int, uuid gives UUID, and any other type the text that Postgres prints.
    None for a hit that comes from no adopted table.
    """
    if not source_row:
        return None
    types = source_row.get("types", {})
    return {
        column: UUID(value) if types.get(column) == "uuid" else value
        for column, value in source_row["key"].items()
    }


def _number(value: object) -> float | None:
    """Read a number, also the strings "NaN" and "Infinity" that PostgREST sends for a float8."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None


def _text_score(row: Mapping[str, object]) -> float | None:
    # The full-text function calls it rank.
    return _number(row.get("rank", row.get("text_score")))


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def unit(value: float | None) -> float:
    """Return the value cut to 0..1; 0 for no number."""
    return 0.0 if value is None or math.isnan(value) else min(max(value, 0.0), 1.0)


def integer(value: object) -> int | None:
    """Read an integer as the database does, which takes "3" and 3.0 for one; None for no number."""
    number = _finite(_number(value))
    return None if number is None else int(number)


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _texts(value: object) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list | tuple) else []


def _name(value: object, default: str) -> str:
    return value if isinstance(value, str) and value else default
