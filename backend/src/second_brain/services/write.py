"""Writing documents over psycopg: one method for each SQL function that writes."""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, LiteralString, TypeVar
from uuid import UUID

import psycopg
from psycopg.rows import AsyncRowFactory, RowFactory, class_row, scalar_row
from psycopg.types.json import Jsonb

from second_brain.errors import redacted, translate
from second_brain.filters import json_default
from second_brain.services import statements
from second_brain.services.blocking import blocking
from second_brain.services.last_write import written

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class UpsertCounts:
    """What an upsert changed, in chunks; `document_id` is the document's."""

    document_id: UUID
    chunks_added: int
    chunks_changed: int
    chunks_unchanged: int
    chunks_removed: int
    embeddings_reused: int
    embeddings_missing: int


@dataclass(frozen=True, slots=True)
class DeletedCounts:
    """What a deletion removed."""

    documents_deleted: int
    chunks_deleted: int


class _Writes(ABC):
    @abstractmethod
    async def _fetch(
        self,
        row_factory: Any,
        query: LiteralString,
        arguments: Mapping[str, object],
    ) -> list[Any]:
        """Run one statement in a transaction of its own and return its rows."""

    async def _rows(
        self,
        row_factory: RowFactory[Row],
        query: LiteralString,
        arguments: Mapping[str, object],
    ) -> list[Row]:
        try:
            return await self._fetch(row_factory, query, arguments)
        except (psycopg.Error, ValueError, TypeError) as error:
            raise translate(error) from redacted(error)

    async def _written(
        self,
        row_factory: RowFactory[Row],
        query: LiteralString,
        arguments: Mapping[str, object],
    ) -> Row:
        (row,) = await self._rows(row_factory, query, arguments)
        written()
        return row


class AsyncKnowledgeWriter(_Writes):
    """The writing side, for an event loop: each method is one SQL function in its own transaction.

    Within a transaction of the caller's it is a savepoint, and the caller commits. The role must be
    service_role or the tables' owner. Every method raises a `SecondBrainError`.
    """

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        if not isinstance(connection, psycopg.AsyncConnection):
            raise TypeError(
                f"connection must be a psycopg AsyncConnection, not {type(connection).__name__}"
            )
        self._connection = connection

    async def upsert_document(
        self,
        document: Mapping[str, object],
        chunks: Sequence[Mapping[str, object]],
        *,
        fields: Literal["merge", "replace"] = "merge",
    ) -> UpsertCounts:
        """Store a document and its chunks, in their order; an unchanged chunk keeps its row.

        `document` needs `external_key`, a chunk `content`. An embedding may be a list, tuple,
        numpy array or pgvector.Vector; a chunk without one takes it from a stored chunk with the
        same text and `embedding_model`. A field that is not given keeps its value with
        `fields="merge"` and gets its default with `"replace"`; None is the default in both.
        """
        arguments = {
            "document": _jsonb(dict(document)),
            "chunks": _jsonb(list(map(dict, chunks))),
            "fields": fields,
        }
        return await self._written(class_row(UpsertCounts), statements.UPSERT_DOCUMENT, arguments)

    async def missing_embeddings(
        self, content_hashes: Sequence[str], embedding_model: str
    ) -> set[str]:
        """Return the hashes for which no stored chunk has an embedding of that model."""
        arguments = {"content_hashes": list(content_hashes), "embedding_model": embedding_model}
        return set(await self._rows(scalar_row, statements.MISSING_EMBEDDINGS, arguments))

    async def delete_document(self, external_key: str) -> int:
        """Delete a document and return how many chunks it had; 0 when there is none."""
        arguments = {"external_key": external_key}
        return int(await self._written(scalar_row, statements.DELETE_DOCUMENT, arguments))

    async def delete_owner(self, owner_id: UUID | str) -> DeletedCounts:
        """Delete everything that belongs to one owner."""
        arguments = {"owner_id": owner_id}
        return await self._written(class_row(DeletedCounts), statements.DELETE_OWNER, arguments)

    async def purge(self, older_than: timedelta) -> int:
        """Remove chunks that were superseded or deleted longer ago, and return how many."""
        return int(await self._written(scalar_row, statements.PURGE, {"older_than": older_than}))

    async def refresh_statistics(self) -> bool:
        """Renew the document frequencies that ranking reads, after ANALYZE."""
        return bool(await self._written(scalar_row, statements.REFRESH_STATISTICS, {}))

    async def _fetch(
        self,
        row_factory: AsyncRowFactory[Row],
        query: LiteralString,
        arguments: Mapping[str, object],
    ) -> list[Row]:
        connection = self._connection
        async with connection.transaction(), connection.cursor(row_factory=row_factory) as cursor:
            # Prepared statements belong to a session. Behind a pooler the next call has another.
            await cursor.execute(query, arguments, prepare=False)
            return await cursor.fetchall()


class KnowledgeWriter(_Writes):
    """The methods of `AsyncKnowledgeWriter`, for threads."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        if not isinstance(connection, psycopg.Connection):
            raise TypeError(
                f"connection must be a psycopg Connection, not {type(connection).__name__}"
            )
        self._connection = connection

    upsert_document = blocking(AsyncKnowledgeWriter.upsert_document)
    missing_embeddings = blocking(AsyncKnowledgeWriter.missing_embeddings)
    delete_document = blocking(AsyncKnowledgeWriter.delete_document)
    delete_owner = blocking(AsyncKnowledgeWriter.delete_owner)
    purge = blocking(AsyncKnowledgeWriter.purge)
    refresh_statistics = blocking(AsyncKnowledgeWriter.refresh_statistics)

    async def _fetch(
        self,
        row_factory: RowFactory[Row],
        query: LiteralString,
        arguments: Mapping[str, object],
    ) -> list[Row]:
        connection = self._connection
        with connection.transaction(), connection.cursor(row_factory=row_factory) as cursor:
            cursor.execute(query, arguments, prepare=False)
            return cursor.fetchall()


def _jsonb(value: object) -> Jsonb:
    return Jsonb(value, dumps=lambda item: json.dumps(item, default=json_default))
