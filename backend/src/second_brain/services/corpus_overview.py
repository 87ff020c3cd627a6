"""Figures about a corpus for the people who are responsible for it: counts, sizes, repetitions.

Large tables are sampled, and the fields `is_estimated` and `is_complete` say so. Over psycopg, as
the owner or `service_role`. Problems and their remedies are in `knowledge_search_health`.
"""

from datetime import datetime
from typing import Any
from uuid import UUID

from pydantic import BaseModel, ConfigDict

from second_brain.services.connection_calls import ask
from second_brain.services.install import Database
from second_brain.services.query_log import QueryReport


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)


class FacetValue(_Frozen):
    """A value of a column, and the documents that have it; `""` for documents without one."""

    value: str
    documents: int


class Facet(_Frozen):
    """The most common values of a column; `others` documents have less common ones."""

    values: list[FacetValue]
    others: int


class DocumentCounts(_Frozen):
    """The documents, in all and by column."""

    total: int
    is_estimated: bool
    facets: dict[str, Facet]


class SizedChunk(_Frozen):
    """A very short or very long chunk; `content` is its beginning."""

    id: UUID
    bytes: int
    document_key: str | None
    title: str | None
    content: str


class SizedChunks(_Frozen):
    """The shortest and the longest chunks of the sample."""

    short: list[SizedChunk]
    long: list[SizedChunk]


class Bin(_Frozen):
    """The chunks of fewer bytes than `below` that are in no bin before; None: the rest."""

    below: int | None
    chunks: int


class ChunkSizes(_Frozen):
    """The sizes of active chunks in bytes, from `sampled` chunks."""

    sampled: int
    is_estimated: bool
    median: int | None
    p95: int | None
    longest: int | None
    short_below: int
    long_above: int
    short: int
    long: int
    histogram: list[Bin]
    examples: SizedChunks


class RepeatedText(_Frozen):
    """A text of several chunks; `content` is its beginning, `ids` up to three of the chunks."""

    chunks: int
    content: str
    heading: str | None
    ids: list[UUID]


class RepeatedTexts(_Frozen):
    """Texts of several chunks. If not `is_complete`, the most common ones only."""

    groups: int
    chunks: int
    is_complete: bool
    examples: list[RepeatedText]


class RepeatedValue(_Frozen):
    """A title or an address that several documents of a collection have."""

    value: str
    collection: str
    documents: int


class RepeatedValues(_Frozen):
    """All such values, and examples."""

    groups: int
    documents: int
    examples: list[RepeatedValue]


class CorpusOverview(_Frozen):
    """See `knowledge_corpus_overview`. `repeated_documents` is None for too many documents."""

    documents: DocumentCounts
    sizes: ChunkSizes
    repeated_texts: RepeatedTexts
    repeated_documents: dict[str, RepeatedValues] | None


def corpus_overview(database: Database) -> CorpusOverview:
    """Return what is stored. Raises a SecondBrainError."""
    return CorpusOverview.model_validate(ask(database, "knowledge_corpus_overview"))


def search_health(database: Database) -> dict[str, Any]:
    """Return the state of the database for search. Raises a SecondBrainError."""
    health: dict[str, Any] = ask(database, "knowledge_search_health")
    return health


def query_report(database: Database, since: datetime | None = None, most: int = 20) -> QueryReport:
    """Return what the query log says since a time, with `most` questions in each list.

    Raises a SecondBrainError.
    """
    found = ask(database, "report_knowledge_queries", since=since, most=most)
    return QueryReport.model_validate(found)
