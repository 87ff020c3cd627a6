"""`SearchAPI`: the retrieval service with the method names of an earlier search API.

It is not a second place for options: both methods pass theirs to `search` of the service.
"""

from typing import Generic, Protocol, TypeVar, Unpack
from uuid import UUID

from second_brain.filters import given_once
from second_brain.retrieval.query import AccessOptions, QueryOptions, SearchQuery

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

    `viewer_id` is the user whose rows, beside public ones, are found; None: everybody's.
    """

    def __init__(self, service: Service[Answer], *, viewer_id: UUID | str | None) -> None:
        self._service = service
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
