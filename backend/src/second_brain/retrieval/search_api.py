"""`SearchAPI`: the retrieval service with the method names of an earlier search API.

It is not a second place for options: both methods pass theirs to `search` of the service.
"""

import os
from typing import Any, Generic, Protocol, TypeVar, Unpack, overload
from uuid import UUID

from second_brain.errors import ConfigurationError
from second_brain.filters import given_once
from second_brain.models import load_embedder
from second_brain.retrieval.answer import SearchResponse
from second_brain.retrieval.query import AccessOptions, QueryOptions, SearchQuery
from second_brain.retrieval.service import RetrievalService
from second_brain.services.install import SCHEMA
from second_brain.services.provider import SearchProvider
from second_brain.services.supabase import SupabaseProvider

Answer = TypeVar("Answer", covariant=True)


class Service(Protocol[Answer]):
    """A RetrievalService (its answer is a SearchResponse) or an AsyncRetrievalService (awaited)."""

    def search(
        self,
        question: str | SearchQuery,
        *,
        timeout: float | None = None,
        **options: Unpack[QueryOptions],
    ) -> Answer:
        """Search for a question."""


class SearchAPI(Generic[Answer]):
    """`search` and `advanced_search` over a retrieval service, for the rows of one viewer.

    Without a service, it makes one from the environment: SECOND_BRAIN_DSN or DATABASE_URL, else
    SUPABASE_URL and SUPABASE_KEY; SECOND_BRAIN_SCHEMA; SECOND_BRAIN_EMBEDDER; the settings of
    `SearchSettings`. `viewer_id` is the user whose rows, beside public ones, are found; None:
    everybody's.
    """

    @overload
    def __init__(
        self: "SearchAPI[SearchResponse]",
        service: None = None,
        *,
        viewer_id: UUID | str | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self, service: Service[Answer], *, viewer_id: UUID | str | None = None
    ) -> None: ...

    def __init__(self, service: Any = None, *, viewer_id: UUID | str | None = None) -> None:
        self._service: Service[Answer] = _from_environment() if service is None else service
        self._viewer_id = viewer_id

    def search(
        self,
        query: str | None = None,
        *,
        query_text: str | None = None,
        timeout: float | None = None,
        **options: Unpack[QueryOptions],
    ) -> Answer:
        """Search for a question, such as `search("keys", category="note", tags=["api"])`.

        `query_text` is another name of `query`.
        """
        options.setdefault("viewer_id", self._viewer_id)
        question = given_once("query", query, "query_text", query_text)
        return self._service.search(question or "", timeout=timeout, **options)

    def advanced_search(
        self, query: SearchQuery, *, timeout: float | None = None, **access: Unpack[AccessOptions]
    ) -> Answer:
        """Search for a whole SearchQuery."""
        access.setdefault("viewer_id", self._viewer_id)
        return self._service.search(query, timeout=timeout, **access)


def _from_environment() -> Any:
    """Return a service with the database and the embedder that the environment names."""

    def variable(name: str, otherwise: str | None = None) -> str | None:
        return os.environ.get(name, "").strip() or otherwise

    schema = variable("SECOND_BRAIN_SCHEMA")
    dsn = variable("SECOND_BRAIN_DSN", variable("DATABASE_URL"))
    provider: SearchProvider
    if dsn is not None:
        # Here, because it needs psycopg.
        from second_brain.services.postgres import PostgresProvider

        provider = PostgresProvider(dsn, schema=schema or SCHEMA)
    elif variable("SUPABASE_URL") and variable("SUPABASE_KEY"):
        provider = SupabaseProvider(schema=schema)
    else:
        raise ConfigurationError(
            "SearchAPI() finds no database in the environment",
            remedy="Set SECOND_BRAIN_DSN, or SUPABASE_URL and SUPABASE_KEY, or give a service.",
        )
    embedder = load_embedder(
        variable("SECOND_BRAIN_EMBEDDER") or "wordllama",
        address=variable("SECOND_BRAIN_EMBEDDER_ADDRESS"),
        key=variable("SECOND_BRAIN_EMBEDDER_KEY"),
    )
    return RetrievalService(provider, embedder)
