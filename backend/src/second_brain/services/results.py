"""What a search returns, and how a row of the SQL functions becomes it.

Both providers normalise here. Nothing is ranked, merged or filtered: the order is the database's.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any, Literal, NamedTuple, NotRequired, TypeAlias, TypedDict
from uuid import UUID

from second_brain.errors import UnexpectedAnswerError
from second_brain.frozen import Frozen
from second_brain.services.emptiness import REMEDIES as REMEDIES
from second_brain.services.emptiness import EmptyReason

Method = Literal["hybrid", "vector", "fulltext"]
"""What answered, `details["mode"]`: hybrid_search, search (`vector`) or fulltext_search."""

Source = Literal["supabase", "postgres"]
"""The provider that asked: over PostgREST, or over psycopg."""

OFF_SUBJECT = 0.3
"""Below this `answer_confidence`, the question may be about another subject than the corpus."""

MOST_PENDING = 1000
"""Up to this number, the database counts the chunks without an embedding."""

_FACET_COLUMNS = {"facet", "value", "count"}

_ID_PREFIX: dict[Source, str] = {"supabase": "supa", "postgres": "pg"}

# What a method's confidence is made of: a column, and the one that answers without it.
_SCORES: dict[Method, tuple[str, str]] = {
    "hybrid": ("confidence", "rrf_score"),
    "vector": ("similarity", "similarity"),
    "fulltext": ("rank", "text_score"),
}


class HitMetadata(TypedDict, total=False):
    """The row's own metadata under its own keys, and these keys, which always win.

    All but title and source_url are always there; what the call does not return is None or `[]`.
    See `Hit`; `document_date` is ISO.
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
    heading: str | None
    sensitivity: str | None
    external_key: str | None
    source_row: dict[str, Any] | None
    is_chunk: bool
    """False for a whole document, which is stored without a position in it."""
    document_chunks: int | None
    document_date: str | None
    snippet: str | None
    context: str | None
    duplicates: int | None
    """With merge_duplicates, how many hits that say the same it stands for beside itself."""
    total_count: int | None
    """Hits of the whole list that a page is cut from."""
    pool_ended: bool | None
    """A leg of the search had as many rows as its pool: rows beyond the list may match."""
    answer_confidence: float | None
    """How well the hit with the best score fits the question: see `Details`."""
    real_provider: bool
    title: str
    source_url: str


class Hit(Frozen):
    """One hit: the columns of the SQL function that are about a row. What it lacks is None.

    `metadata` is the row's own. `chunk_index` is None for a whole document, which is stored without
    a position in it. `heading` is the title and the section path, which are searched with the text.
    `collections` are all in which the search found it, `document_chunks` is how many chunks its
    document has, `snippet` is HTML, `duplicates` is how many hits that say the same it stands for
    beside itself, with `merge_duplicates`. `source_row` is the row of an adopted table: `adoption`,
    `table`, `key`, `types`. For `confidence` see MemorySearchResult.
    """

    id: str
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
    collections: list[str]
    heading: str | None
    sensitivity: str | None
    external_key: str | None
    source_row: dict[str, Any] | None
    document_chunks: int | None
    document_date: date | None
    snippet: str | None
    context: str | None
    duplicates: int | None
    confidence: float

    @property
    def source_key(self) -> dict[str, Any] | None:
        """The key of the row of an adopted table that it is made of, with the table's types."""
        return source_key(self.source_row)


@dataclass(frozen=True, slots=True)
class MemorySearchResult:
    """One hit, with its columns laid over the row's own metadata; `hit` has both apart.

    `confidence` is the score that orders the hits, divided by the highest that the call could give:
    0 to 1, and 1 is the best possible. Hybrid search: the fused score, of the highest that weights
    and fusion allow (from a database without this column: the fused score, cut to 1). Vector
    search: the cosine similarity, of 1. Full-text search: the BM25 score, of the best hit's. It is
    no probability, and does not compare between fusions or questions: see `answer_confidence` of
    the details.
    """

    id: str
    content: str
    source: Source
    confidence: float
    metadata: HitMetadata = field(default_factory=HitMetadata)

    @property
    def hit(self) -> Hit:
        """The same hit with a field for each column, and what is left of the row's metadata."""
        said: Mapping[str, Any] = self.metadata
        row = {name: said[name] for name in Hit.model_fields if name in said}
        if said.get("is_chunk") is False:
            row["chunk_index"] = None
        known = HitMetadata.__annotations__
        own = {name: value for name, value in said.items() if name not in known}
        row |= {"id": self.id, "content": self.content, "metadata": own}
        return _hit(row, self.id, self.confidence)

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
    row matches.
    """

    truncated: bool
    pool_ended: bool


class Details(ShortDetails):
    """How the hits of a search came about.

    `raw_count` is the rows received, `total_count` the length of the list that match_offset pages
    through. `answer_confidence` is 0 to 1: how well the hit with the best score fits the question,
    by its cosine similarity and by the share of the question's words that it has. Below
    OFF_SUBJECT, the question may be about another subject. It is not there without hits, nor in
    answers of `search` and `fulltext_search`. `real_provider` is True when a database answered.

    `unreadable_metadata` is there only when Python could not read the metadata of some rows: the
    ids of these rows, whose own metadata is empty here. `exact_total` is there only when it is
    asked for: the length that the list would have with pools without bound. `notes` is there only
    when the search did something beside what was asked, `empty` only when there are no hits: why.
    """

    provider: Source
    mode: Method
    real_provider: bool
    raw_count: int
    total_count: int | None
    answer_confidence: NotRequired[float]
    unreadable_metadata: NotRequired[list[str]]
    exact_total: NotRequired[int]
    notes: NotRequired[Notes]
    empty: NotRequired[EmptyReason]


class BatchDetails(ShortDetails):
    """`Details` of a batch: what is of one query is a list with an entry for each."""

    provider: Source
    mode: Method
    real_provider: bool
    raw_count: int
    total_count: list[int | None] | None
    answer_confidence: NotRequired[list[float | None]]
    unreadable_metadata: NotRequired[list[str]]
    exact_total: NotRequired[int]
    notes: NotRequired[list[Notes | None]]
    empty: NotRequired[list[EmptyReason | None]]


Results: TypeAlias = tuple[list[MemorySearchResult], Details]
BatchResults: TypeAlias = tuple[list[list[MemorySearchResult]], BatchDetails]


class CutRows(list[object]):
    """Rows of an answer that has more, which could not be fetched."""


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
    column, otherwise = _SCORES[method]
    scores = [_number(row.get(column, row.get(otherwise)), is_finite=False) or 0.0 for row in kept]
    best = 1.0
    if method == "fulltext":
        best = max([0.0, *filter(math.isfinite, scores)]) or 1.0
    results = []
    for position, (row, score) in enumerate(zip(kept, scores, strict=True)):
        # In this order NaN becomes 0.
        confidence = min(max(0.0, score / best), 1.0)
        hit = _hit(row, f"{_ID_PREFIX[source]}-{method}-{position}", confidence)
        metadata: Any = {
            **hit.metadata,
            **{key: row[key] for key in ("title", "source_url") if row.get(key) is not None},
            # Always there: the row's own metadata must not pass for an escaped snippet.
            **{name: getattr(hit, name) for name in _IN_METADATA},
            "chunk_index": hit.chunk_index or 0,
            "is_chunk": hit.chunk_index is not None,
            # As it is stored: Postgres has dates that Python lacks.
            "document_date": None if (day := row.get("document_date")) is None else str(day),
            "total_count": integer(row.get("total_count")),
            **({"pool_ended": row["pool_ended"] is True} if "pool_ended" in row else {}),
            "answer_confidence": _number(row.get("answer_confidence")),
            "real_provider": True,
        }
        results.append(MemorySearchResult(hit.id, hit.content, source, hit.confidence, metadata))
    return results


class Listing(NamedTuple):
    """What each row says of the list that it is in."""

    total_count: int | None
    answer_confidence: float | None
    notes: Notes | None
    has_full_pool: bool
    """One of the legs had as many rows as its pool holds."""


def listing_of(rows: Sequence[object]) -> Listing:
    """Return what the first row says of the list, and nothing where there is none."""
    first = rows[0] if rows else None
    if not isinstance(first, Mapping):
        return Listing(None, None, None, False)
    said = first.get("notes")
    return Listing(
        integer(first.get("total_count")),
        _number(first.get("answer_confidence")),
        dict(said) if isinstance(said, Mapping) and said else None,
        first.get("pool_ended") is True,
    )


def off_subject_note(answer_confidence: float | None) -> str | None:
    """Return a sentence about hits that may not answer the question; None if they may."""
    if answer_confidence is None or answer_confidence >= OFF_SUBJECT:
        return None
    return f"Answer confidence {answer_confidence:.2f}: these hits may be off the subject."


def pending_note(count: int | None) -> str | None:
    """Return a sentence about chunks without an embedding; None if there are none."""
    if not count:
        return None
    if count == 1:
        return "1 chunk is not embedded yet; searches find it by its words only."
    number = "1,000 or more" if count >= MOST_PENDING else str(count)
    return f"{number} chunks are not embedded yet; searches find them by their words only."


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


def query_index(row: object) -> int | None:
    """Return which query of a batch the row answers; None when it has no number."""
    return integer(row.get("query_index")) if isinstance(row, Mapping) else None


def _hit(row: Mapping[str, Any], default_id: str, confidence: float) -> Hit:
    columns: dict[str, Any] = {
        name: None if row.get(name) is None else read(row[name]) for name, read in _READERS.items()
    }
    for name, default in (("knowledge_type", "document"), ("source_origin", "manual")):
        given = row.get(name)
        columns[name] = given if isinstance(given, str) and given else default
    metadata, is_chunk = row.get("metadata"), row.get("chunk_index", 0) is not None
    return Hit.model_construct(
        **{
            **columns,
            "id": str(row.get("id") or default_id),
            "content": str(row.get("content") or ""),
            "matched_terms": columns["matched_terms"] or [],
            "collections": columns["collections"] or [],
            "chunk_index": (integer(row.get("chunk_index")) or 0) if is_chunk else None,
            # The full-text function calls it rank.
            "text_score": _number(row.get("rank", row.get("text_score"))),
            "metadata": metadata if isinstance(metadata, dict) else {},
            "source_row": row.get("source_row"),
            "confidence": confidence,
        }
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


def _number(value: object, *, is_finite: bool = True) -> float | None:
    """Read a number, also the strings "NaN" and "Infinity" that PostgREST sends for a float8."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    return None if is_finite and not math.isfinite(number) else number


def integer(value: object) -> int | None:
    """Read an integer as the database does, which takes "3" and 3.0 for one; None for no number."""
    number = _number(value)
    return None if number is None else int(number)


def _texts(value: object) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list | tuple) else []


def _date(value: object) -> date | None:
    try:
        return value if isinstance(value, date) else date.fromisoformat(str(value))
    except ValueError:  # Postgres has dates that Python lacks: infinity, and years past 9999
        return None


_BY_TYPE: dict[Any, Callable[[Any], object]] = {
    str | None: str,
    int | None: integer,
    float | None: _number,
    list[str]: _texts,
    date | None: _date,
}
_READERS = {
    name: _BY_TYPE[one.annotation]
    for name, one in Hit.model_fields.items()
    if one.annotation in _BY_TYPE
}
# The columns that a MemorySearchResult has in its metadata as they are.
_IN_METADATA = Hit.model_fields.keys() - {
    *("id", "content", "metadata", "confidence"),
    *("title", "source_url", "chunk_index", "document_date"),
}
