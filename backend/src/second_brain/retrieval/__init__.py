"""The retrieval service: its query, answer and settings. It needs numpy, an extra."""

from second_brain.retrieval.answer import Degraded, QueryTime, SearchResponse, SearchResult
from second_brain.retrieval.embedding import NO_EMBEDDER
from second_brain.retrieval.query import Access, QueryOptions, SearchQuery
from second_brain.retrieval.search_api import SearchAPI
from second_brain.retrieval.service import AsyncRetrievalService, RetrievalService
from second_brain.retrieval.settings import Mode, SearchSettings

__all__ = [
    "NO_EMBEDDER",
    "Access",
    "AsyncRetrievalService",
    "Degraded",
    "Mode",
    "QueryOptions",
    "QueryTime",
    "RetrievalService",
    "SearchAPI",
    "SearchQuery",
    "SearchResponse",
    "SearchResult",
    "SearchSettings",
]
