"""The query log of a corpus: what a line of it has, and a report about its lines.

`retrieval/query_log.py` collects the lines, and `record_queries` of the providers writes them.
"""

from datetime import datetime
from uuid import UUID

from second_brain.frozen import Frozen


class LoggedQuery(Frozen):
    """A search as it is sent to the log. Of `viewer_id`, the database keeps a mark only.

    `hits` are the results of the first page, None for a search that failed with `error_kind`, and
    `confidence` is the highest of theirs. `degraded` has the parts that failed.
    """

    question: str
    mode: str
    total_ms: float
    seconds_ago: float = 0.0
    collections: list[str] | None = None
    mode_used: str | None = None
    hits: int | None = None
    confidence: float | None = None
    embed_ms: float = 0.0
    search_ms: float = 0.0
    rerank_ms: float = 0.0
    is_cached: bool = False
    degraded: str | None = None
    error_kind: str | None = None
    viewer_id: UUID | None = None


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
