"""Figures about a corpus for the people who are responsible for it: counts, sizes, repetitions.

Large tables are sampled, and the fields `is_estimated` and `is_complete` say so. Over psycopg, as
the owner or `service_role`. Problems and their remedies are in `knowledge_search_health`.
"""

from datetime import datetime
from typing import Any

from second_brain.frozen import Frozen
from second_brain.services.connection_calls import ask
from second_brain.services.install import Database


class AskedQuestion(Frozen):
    """A question of the log and its searches; the times are of answered, uncached ones.

    `confidence` is the mean over its searches of the highest confidence of a result.
    """

    question: str
    collections: list[str] | None
    searches: int
    empty: int
    failed: int
    degraded: int
    confidence: float | None
    p50_ms: float | None
    p95_ms: float | None
    last_asked: datetime


class QueryReport(Frozen):
    """The numbers of the log's searches, and its questions in four orders."""

    searches: int
    questions: int
    empty: int
    failed: int
    degraded: int
    cached: int
    p50_ms: float | None
    p95_ms: float | None
    first_asked: datetime | None
    last_asked: datetime | None
    frequent: list[AskedQuestion]
    slow: list[AskedQuestion]
    without_hits: list[AskedQuestion]
    unsure: list[AskedQuestion]


def corpus_overview(database: Database) -> dict[str, Any]:
    """Return what is stored. Raises a SecondBrainError."""
    overview: dict[str, Any] = ask(database, "knowledge_corpus_overview")
    return overview


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
