"""What a provider reads and records beside searches: counts, documents, models, query log."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Unpack
from uuid import UUID

from second_brain.errors import documented
from second_brain.filters import Filters
from second_brain.services.arguments import (
    DEFAULTS,
    ROWS,
    VIEWER,
    OwnRowOptions,
    RowOptions,
    named,
)
from second_brain.services.blocking import blocking
from second_brain.services.own_documents import OwnDocument, OwnDocumentContent
from second_brain.services.query_log import LoggedQuery
from second_brain.services.results import EmbeddingModel
from second_brain.services.searches import LISTED, MY_PENDING, PENDING, Searches


@documented
class AsyncReading(Searches):
    """What a service asks a provider beside a search; each raises a SecondBrainError on failure."""

    async def count_pending_embeddings(self, **options: Unpack[RowOptions]) -> int:
        """Count the chunks that have no embedding yet: a search finds them by their words only.

        The arguments are those of `hybrid_search` that select rows. It counts to 1,000, which means
        1,000 or more. Raises a SecondBrainError on failure.
        """
        others = DEFAULTS.keys() - {*ROWS, *VIEWER}
        given, timeout = named(options, "count_pending_embeddings()", without=others)
        return await self._read(int, PENDING, self._for_viewer(given, PENDING), timeout)

    async def count_my_pending_embeddings(self, **options: Unpack[OwnRowOptions]) -> int:
        """Count like `count_pending_embeddings`, over the rows that the signed-in user may see."""
        given, timeout = named(
            options, "count_my_pending_embeddings()", without=DEFAULTS.keys() - set(ROWS)
        )
        return await self._read(int, MY_PENDING, self._for_viewer(given, MY_PENDING), timeout)

    async def record_queries(
        self,
        queries: Sequence[LoggedQuery],
        *,
        most_rows: int = 10_000,
        max_age: timedelta = timedelta(days=30),
        timeout: float | None = None,
    ) -> int:
        """Add at most 500 searches to the query log of the database, and return their number.

        Of the log, `most_rows` lines are kept (at most 100,000), and none that is older than
        `max_age`. Over a psycopg connection in a transaction, nothing is added. Raises a
        SecondBrainError on failure.
        """
        arguments = {
            "queries": [one.model_dump(mode="json") for one in queries],
            "most_rows": most_rows,
            "max_age": f"{max_age.total_seconds()} seconds",
        }
        return await self._read(int, "record_knowledge_queries", arguments, timeout)

    async def read_document(
        self,
        document_id: UUID | str,
        *,
        viewer_id: UUID | str | None = None,
        viewer_groups: Sequence[str] | None = None,
        public_only: bool = False,
        collections: Sequence[str] | None = None,
        required_filters: Filters | None = None,
        chunk_count: int = 100,
        chunk_offset: int = 0,
        timeout: float | None = None,
    ) -> OwnDocumentContent | None:
        """Return a document with its active chunks in their order; None if it may not be seen.

        `viewer_id`, `viewer_groups`, `public_only`, `required_filters` and `timeout` as in
        `hybrid_search`.
        `collections`: only a document of these, or with chunks in them, and these chunks.
        `chunk_count` is 1 to 500.
        Raises a SecondBrainError on failure.
        """
        given = {
            "document_id": document_id,
            "viewer_id": viewer_id,
            "viewer_groups": viewer_groups,
            "public_only": public_only,
            "collections": collections,
            "required_filters": required_filters,
            "chunk_count": chunk_count,
            "chunk_offset": chunk_offset,
        }
        arguments = self._for_viewer(given)
        arguments["document"] = arguments.pop("document_id")
        content: Any = OwnDocumentContent | None
        found: OwnDocumentContent | None = await self._read(
            content, "read_knowledge_document", arguments, timeout
        )
        return found

    async def list_documents(
        self,
        *,
        viewer_id: UUID | str | None = None,
        viewer_groups: Sequence[str] | None = None,
        public_only: bool = False,
        collections: Sequence[str] | None = None,
        required_filters: Filters | None = None,
        page_size: int = 50,
        after_key: str | None = None,
        timeout: float | None = None,
    ) -> list[OwnDocument]:
        """Return a page of the documents that the viewer may see, in the order of external_key.

        `viewer_id`, `viewer_groups`, `public_only`, `required_filters` and `timeout` as in
        `hybrid_search`.
        `collections`: only documents of these. `page_size` is 1 to 200; `after_key` is the last
        external_key of the page before. Raises a SecondBrainError on failure.
        """
        given = {
            "viewer_id": viewer_id,
            "viewer_groups": viewer_groups,
            "public_only": public_only,
            "collections": collections,
            "required_filters": required_filters,
            "page_size": page_size,
            "after_key": after_key,
        }
        return await self._read(list[OwnDocument], LISTED, self._for_viewer(given), timeout)

    async def embedding_models(self, *, timeout: float | None = None) -> list[EmbeddingModel]:
        """Return the embedding models of the stored chunks, the most frequent first.

        Raises a SecondBrainError on failure.
        """
        return await self._read(list[EmbeddingModel], "knowledge_embedding_models", {}, timeout)


class Reading(Searches):
    """`AsyncReading` for threads."""

    count_pending_embeddings = blocking(AsyncReading.count_pending_embeddings)
    count_my_pending_embeddings = blocking(AsyncReading.count_my_pending_embeddings)
    record_queries = blocking(AsyncReading.record_queries)
    read_document = blocking(AsyncReading.read_document)
    list_documents = blocking(AsyncReading.list_documents)
    embedding_models = blocking(AsyncReading.embedding_models)
