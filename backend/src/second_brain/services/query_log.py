"""A line of the query log: `retrieval/query_log.py` collects them, `record_queries` writes them."""

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
