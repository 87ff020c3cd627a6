"""Writing documents over psycopg: one method for each SQL function that writes."""

import asyncio
import json
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from typing import Any, Literal, LiteralString, TypeVar
from uuid import UUID

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import AsyncRowFactory, RowFactory, class_row, kwargs_row, scalar_row
from psycopg.types.json import Jsonb

from second_brain.errors import UncertainWriteError, documented, redacted, safe_message, translate
from second_brain.filters import json_default
from second_brain.services import judgments as judging
from second_brain.services import statements
from second_brain.services.blocking import blocking
from second_brain.services.calls import DEADLOCK, SERIALIZATION_FAILURE, pause_before
from second_brain.services.corpus_settings import CorpusSettings
from second_brain.services.install import SCHEMA, Install
from second_brain.services.judgments import Judgment
from second_brain.services.last_write import written

logger = logging.getLogger(__name__)

Row = TypeVar("Row")

WRITE_RETRIES = 5
"""How often a write is sent again after a deadlock or a serialization failure."""


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


class _LostCommitError(Exception):
    """The connection broke while a transaction of the writer was committed."""

    def __init__(self, error: psycopg.Error) -> None:
        super().__init__()
        self.error = error


class _Writes(ABC):
    _connection: psycopg.BaseConnection[Any]
    _install: Install
    _retries: int

    @abstractmethod
    async def _wait(self, seconds: float) -> object:
        """Wait before another attempt."""

    @abstractmethod
    async def _fetch(
        self,
        row_factory: Any,
        query: bytes,
        arguments: Mapping[str, object],
    ) -> list[Any]:
        """Run one statement in a transaction of its own and return its rows."""

    async def _rows(
        self,
        row_factory: RowFactory[Row],
        query: LiteralString,
        arguments: Mapping[str, object],
        *,
        is_write: bool = False,
    ) -> list[Row]:
        # In a transaction of the caller's, only the caller can repeat what the transaction did.
        is_own = self._connection.info.transaction_status == TransactionStatus.IDLE
        for attempt in count():
            try:
                return await self._fetch(row_factory, self._install.statement(query), arguments)
            except _LostCommitError as lost:
                known = _uncertain(lost, arguments) if is_write else translate(lost.error)
                raise known from redacted(lost.error)
            except psycopg.Error as error:
                known = translate(error)
                if (
                    not is_own
                    or attempt >= self._retries
                    or known.code not in (SERIALIZATION_FAILURE, DEADLOCK)
                ):
                    raise known from redacted(error)
                logger.info("a write met a %s (%s), trying again", known.kind, known.code)
            await self._wait(pause_before(attempt))
        raise AssertionError

    async def _written(
        self,
        row_factory: RowFactory[Row],
        query: LiteralString,
        arguments: Mapping[str, object],
    ) -> Row:
        (row,) = await self._rows(row_factory, query, arguments, is_write=True)
        written()
        return row


@documented
class AsyncKnowledgeWriter(_Writes):
    """The writing side, for an event loop: each method is one SQL function in its own transaction.

    Within a transaction of the caller's it is a savepoint, and the caller commits. The role must be
    service_role or the tables' owner; `schema` is that of the install. Every method raises a
    `SecondBrainError`.

    A deadlock or a serialization failure is tried again after a short random pause, up to `retries`
    times; not within a transaction of the caller's. `sleep` makes the pause.
    """

    def __init__(
        self,
        connection: psycopg.AsyncConnection[Any],
        *,
        schema: str = SCHEMA,
        retries: int = WRITE_RETRIES,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        if not isinstance(connection, psycopg.AsyncConnection):
            raise TypeError(
                f"connection must be a psycopg AsyncConnection, not {type(connection).__name__}"
            )
        self._connection: psycopg.AsyncConnection[Any] = connection
        self._install = Install(schema)
        self._retries = retries
        self._sleep = sleep

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
            "chunks": _jsonb(list(map(_with_embedding_as_text, chunks))),
            "fields": fields,
        }
        return await self._written(class_row(UpsertCounts), statements.UPSERT_DOCUMENT, arguments)

    async def missing_embeddings(
        self, content_hashes: Sequence[str], embedding_model: str
    ) -> set[str]:
        """Return the hashes for which no stored chunk has an embedding of that model."""
        arguments = {"content_hashes": list(content_hashes), "embedding_model": embedding_model}
        (missing,) = await self._rows(scalar_row, statements.MISSING_EMBEDDINGS, arguments)
        return set(missing)

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

    async def set_settings(self, settings: CorpusSettings) -> CorpusSettings:
        """Store how a collection is searched, in place of what was stored, and return it."""
        return await self._written(
            kwargs_row(CorpusSettings), statements.SET_SETTINGS, settings.arguments()
        )

    async def settings(self) -> list[CorpusSettings]:
        """Return the stored settings in the order of their collections."""
        return await self._rows(kwargs_row(CorpusSettings), statements.LIST_SETTINGS, {})

    async def reset_settings(self, collection: str = "") -> bool:
        """Remove the settings of a collection; return whether there were any."""
        arguments = {"collection": collection}
        return bool(await self._written(scalar_row, statements.RESET_SETTINGS, arguments))

    async def set_judgments(self, judgments: Sequence[Judgment]) -> int:
        """Store judgments, each in place of the same user's for the same question and thing.

        Returns their number. Each 1,000 are a transaction.
        """
        for some in judging.batches(judgments):
            await self._written(scalar_row, judging.SET, {"judgments": _jsonb(some)})
        return len(judgments)

    async def withdraw_judgments(self, judgments: Sequence[Judgment]) -> None:
        """Remove these judgments, of the same user for the same question and thing.

        Their grades are not compared.
        """
        for some in judging.batches(judgments, withdrawn=True):
            await self._written(scalar_row, judging.SET, {"judgments": _jsonb(some)})

    async def judgments(
        self, collection: str | None = None, judged_by: UUID | str | None = None
    ) -> list[Judgment]:
        """Return the judgments in a collection, of one user, by question and document."""
        arguments = {"in_collection": collection, "by_user": judged_by}
        return await self._rows(kwargs_row(Judgment), judging.LIST, arguments)

    async def delete_judgments(
        self,
        *,
        question: str | None = None,
        collection: str | None = None,
        judged_by: UUID | str | None = None,
        is_generated: bool | None = None,
    ) -> int:
        """Delete the judgments that fit all that is given; return their number."""
        arguments = {
            "question": question,
            "collection": collection,
            "judged_by": judged_by,
            "is_generated": is_generated,
        }
        return int(await self._written(scalar_row, judging.DELETE, arguments))

    async def wal_position(self) -> str:
        """Return a position in the WAL after everything committed on this connection so far.

        `provider.wait_for(position)` searches on a replica that has replayed it. Within a
        transaction of the caller's, call it after the commit.
        """
        (position,) = await self._rows(scalar_row, statements.WAL_POSITION, {})
        return str(position)

    async def refresh_statistics(self) -> bool:
        """Renew the document frequencies that ranking reads, after ANALYZE."""
        return bool(await self._written(scalar_row, statements.REFRESH_STATISTICS, {}))

    async def _fetch(
        self,
        row_factory: AsyncRowFactory[Row],
        query: bytes,
        arguments: Mapping[str, object],
    ) -> list[Row]:
        connection = self._connection
        is_own, is_done = connection.info.transaction_status == TransactionStatus.IDLE, False
        try:
            async with connection.transaction(), connection.cursor(row_factory=row_factory) as one:
                # Prepared statements belong to a session. Behind a pooler the next call has
                # another.
                await one.execute(query, arguments, prepare=False)
                rows = await one.fetchall()
                is_done = True
        except psycopg.OperationalError as error:
            if is_own and is_done and connection.closed:
                raise _LostCommitError(error) from error
            raise
        return rows

    async def _wait(self, seconds: float) -> object:
        return await self._sleep(seconds)


class KnowledgeWriter(_Writes):
    """The methods of `AsyncKnowledgeWriter`, for threads."""

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        *,
        schema: str = SCHEMA,
        retries: int = WRITE_RETRIES,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        if not isinstance(connection, psycopg.Connection):
            raise TypeError(
                f"connection must be a psycopg Connection, not {type(connection).__name__}"
            )
        self._connection: psycopg.Connection[Any] = connection
        self._install = Install(schema)
        self._retries = retries
        self._sleep = sleep

    upsert_document = blocking(AsyncKnowledgeWriter.upsert_document)
    missing_embeddings = blocking(AsyncKnowledgeWriter.missing_embeddings)
    delete_document = blocking(AsyncKnowledgeWriter.delete_document)
    delete_owner = blocking(AsyncKnowledgeWriter.delete_owner)
    purge = blocking(AsyncKnowledgeWriter.purge)
    set_settings = blocking(AsyncKnowledgeWriter.set_settings)
    settings = blocking(AsyncKnowledgeWriter.settings)
    reset_settings = blocking(AsyncKnowledgeWriter.reset_settings)
    wal_position = blocking(AsyncKnowledgeWriter.wal_position)
    set_judgments = blocking(AsyncKnowledgeWriter.set_judgments)
    withdraw_judgments = blocking(AsyncKnowledgeWriter.withdraw_judgments)
    judgments = blocking(AsyncKnowledgeWriter.judgments)
    delete_judgments = blocking(AsyncKnowledgeWriter.delete_judgments)
    refresh_statistics = blocking(AsyncKnowledgeWriter.refresh_statistics)

    async def _fetch(
        self,
        row_factory: RowFactory[Row],
        query: bytes,
        arguments: Mapping[str, object],
    ) -> list[Row]:
        connection = self._connection
        is_own, is_done = connection.info.transaction_status == TransactionStatus.IDLE, False
        try:
            with connection.transaction(), connection.cursor(row_factory=row_factory) as one:
                one.execute(query, arguments, prepare=False)
                rows = one.fetchall()
                is_done = True
        except psycopg.OperationalError as error:
            if is_own and is_done and connection.closed:
                raise _LostCommitError(error) from error
            raise
        return rows

    async def _wait(self, seconds: float) -> object:
        return self._sleep(seconds)


def _uncertain(lost: _LostCommitError, arguments: Mapping[str, object]) -> UncertainWriteError:
    """Return the error that names the documents of a write whose commit got no answer."""
    document = arguments.get("document")
    given = document.obj if isinstance(document, Jsonb) else arguments
    key = given.get("external_key") if isinstance(given, Mapping) else None
    keys = () if key is None else (str(key),)
    about = f" of {safe_message(repr(key), limit=100)}" if keys else ""
    return UncertainWriteError(
        f"the connection was lost during the commit{about}: it is not known whether the write is "
        "stored",
        keys=keys,
        code=lost.error.sqlstate,
    )


def _with_embedding_as_text(chunk: Mapping[str, object]) -> dict[str, object]:
    """Return a chunk whose embedding is a text: the database reads an array much slower."""
    given = dict(chunk)
    embedding = given.get("embedding")
    if embedding is not None and not isinstance(embedding, str):
        given["embedding"] = json.dumps(embedding, default=json_default)
    return given


def _jsonb(value: object) -> Jsonb:
    return Jsonb(value, dumps=lambda item: json.dumps(item, default=json_default))
