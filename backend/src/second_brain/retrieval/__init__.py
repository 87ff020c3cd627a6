"""The retrieval service: its query, answer and settings. It needs numpy, an extra."""

from second_brain.retrieval.answer import Degraded, QueryTime, SearchResponse, SearchResult
from second_brain.retrieval.query import QueryOptions, SearchQuery
from second_brain.retrieval.service import AsyncRetrievalService, RetrievalService
from second_brain.retrieval.settings import Mode, SearchSettings

__all__ = [
    "AsyncRetrievalService",
    "Degraded",
    "Mode",
    "QueryOptions",
    "QueryTime",
    "RetrievalService",
    "SearchQuery",
    "SearchResponse",
    "SearchResult",
    "SearchSettings",
]
