"""Hybrid search in Postgres: what a backend needs, by name.

A name is imported when it is first used, so that a client of Supabase's API does not load psycopg.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from second_brain.errors import SecondBrainError
    from second_brain.filters import FilterBuilder, FilterExpression
    from second_brain.replicas.provider import AsyncReplicaProvider, ReplicaProvider
    from second_brain.retrieval import (
        AsyncRetrievalService,
        RetrievalService,
        SearchAPI,
        SearchQuery,
        SearchResponse,
        SearchSettings,
    )
    from second_brain.services.connections import async_connection_pool, connection_pool
    from second_brain.services.postgres import AsyncPostgresProvider, PostgresProvider
    from second_brain.services.results import MemorySearchResult
    from second_brain.services.supabase import AsyncSupabaseProvider, SupabaseProvider
    from second_brain.services.write import AsyncKnowledgeWriter, KnowledgeWriter

__all__ = [
    "AsyncKnowledgeWriter",
    "AsyncPostgresProvider",
    "AsyncReplicaProvider",
    "AsyncRetrievalService",
    "AsyncSupabaseProvider",
    "FilterBuilder",
    "FilterExpression",
    "KnowledgeWriter",
    "MemorySearchResult",
    "PostgresProvider",
    "ReplicaProvider",
    "RetrievalService",
    "SearchAPI",
    "SearchQuery",
    "SearchResponse",
    "SearchSettings",
    "SecondBrainError",
    "SupabaseProvider",
    "async_connection_pool",
    "connection_pool",
]

_MODULES = {
    "errors": ("SecondBrainError",),
    "filters": ("FilterBuilder", "FilterExpression"),
    "retrieval": (
        "AsyncRetrievalService",
        "RetrievalService",
        "SearchAPI",
        "SearchQuery",
        "SearchResponse",
        "SearchSettings",
    ),
    "services.connections": ("async_connection_pool", "connection_pool"),
    "services.postgres": ("AsyncPostgresProvider", "PostgresProvider"),
    "replicas.provider": ("AsyncReplicaProvider", "ReplicaProvider"),
    "services.results": ("MemorySearchResult",),
    "services.supabase": ("AsyncSupabaseProvider", "SupabaseProvider"),
    "services.write": ("AsyncKnowledgeWriter", "KnowledgeWriter"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
