"""What a search returns: hits, details of the call, and why there are none."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, NotRequired, TypeAlias, TypedDict
from uuid import UUID

Method = Literal["hybrid", "vector", "fulltext"]
"""What answered, `details["mode"]`: hybrid_search, search (`vector`) or fulltext_search."""

Source = Literal["supabase", "postgres"]
"""The provider that asked: over PostgREST, or over psycopg."""

OFF_SUBJECT = 0.3
"""Below this `answer_confidence`, the question may be about another subject than the corpus."""

MOST_PENDING = 1000
"""Up to this number, the database counts the chunks without an embedding."""

OnError = Literal["raise", "empty"]
"""What a search does that fails: raise a SecondBrainError, or return no hits and the failure in the
details, as in the systems that this package replaces."""

EmptyReason: TypeAlias = dict[str, Any]
"""Why there are no hits, as explain_empty_knowledge_search says it: `reason`, `message`, facts."""

REMEDIES = {
    "boosts": "Give boosts that raise it more, or none.",
    "collection": "Name its collection, or none.",
    "confidence": "Lower min_confidence to this confidence.",
    "date": "Give dates that include its own, or none.",
    "diversity": "Lower diversity, or raise match_count.",
    "duplicate": "Ask without merge_duplicates, which shows one of the hits that say the same.",
    "earlier_page": "Lower match_offset.",
    "excluded_words": "Ask without the excluded words.",
    "filter": "Leave out this filter, or change the row.",
    "fusion": "Raise match_count, or ask for the next page.",
    "grouped": "Ask without one_per_document or max_per_document, which leave out chunks.",
    "missed": "Raise pool_size.",
    "no_embedding": "Run `second-brain corpus embed --once`, or ingest its document again.",
    "no_words": "Ask with a word that it has.",
    "not_stored": "Check the name, or ingest the document.",
    "order": "Ask without order_by, or for the next page.",
    "permission": "Give it an owner or groups that the viewer has, or make its document public.",
    "pool": "Raise pool_size to this rank, or leave out other rows by a filter.",
    "recency": "Give a longer recency_half_life, or none.",
    "required_words": "Ask without quotation marks, or with the search_mode websearch.",
    "status": "Make it active: ingest its document again.",
    "threshold": "Lower match_threshold to this similarity.",
    "validity": "Give an as_of at which it holds, or null for all times.",
}
"""What to do about each cause of explain_missing_knowledge_chunk."""


class HitMetadata(TypedDict, total=False):
    """The row's own metadata under its own keys, and these keys, which always win.

    All but title and source_url are always there; what the call does not return is None or `[]`.
    `heading` is the title and the section path, which are searched with the text. `collections` are
    all in which the search found it, `document_chunks` is how many chunks its document has,
    `snippet` is HTML, `document_date` is ISO. `source_row` is the row of an adopted table:
    `adoption`, `table`, `key`, `types`.
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


@dataclass(frozen=True, slots=True)
class MemorySearchResult:
    """One hit, with its columns laid over the row's own metadata.

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
    def valid_from(self) -> datetime | None:
        """Since when it holds, by its metadata."""
        return bound_of_validity(self.metadata, "valid_from")

    @property
    def valid_until(self) -> datetime | None:
        """Until when it holds, by its metadata."""
        return bound_of_validity(self.metadata, "valid_until")

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


def bound_of_validity(metadata: Mapping[str, Any], bound: str) -> datetime | None:
    """Return `valid_from` or `valid_until` of metadata; None for no bound, and for no time."""
    try:
        return datetime.fromisoformat(metadata.get(bound, ""))
    except (TypeError, ValueError):  # without the module versions, it may be anything
        return None


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


def past_end(total: int, offset: int) -> EmptyReason:
    """Return the reason of a page that begins after the last hit."""
    said = f"The offset is {offset} and total_count is {total}. Lower the offset."
    return {"reason": "offset", "message": said, "total_count": total}
