"""Writing over psycopg: `writing` on a connection of the caller."""

from collections.abc import Callable
from typing import Any, Generic, LiteralString, TypeVar

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import scalar_row

from second_brain.errors import SecondBrainError, documented
from second_brain.services.blocking import blocking, entered, settled
from second_brain.services.calls import Client, is_rolled_back
from second_brain.services.connection_calls import ConnectionCall, held
from second_brain.services.install import SCHEMA, Install
from second_brain.services.processes import remember
from second_brain.services.writing import AsyncWrites, DeletedCounts, UpsertCounts, Writes

__all__ = ["AsyncKnowledgeWriter", "DeletedCounts", "KnowledgeWriter", "UpsertCounts"]

AnyConnection = TypeVar("AnyConnection")

WRITE_RETRIES = 5
"""How often a write is sent again after a deadlock or a serialization failure."""

# Without synchronous_commit, a commit is in the WAL before it is flushed. The flushed position is
# the end of a record; the inserted one can be some bytes after it, at the end of a page.
_WAL_POSITION: LiteralString = """
select case
         when current_setting('synchronous_commit') = 'off' then pg_current_wal_insert_lsn()
         else pg_current_wal_flush_lsn()
       end::text as position
"""


class _OnConnection(Client, Generic[AnyConnection]):
    _connection_type: type[Any]

    def __init__(
        self,
        connection: AnyConnection,
        *,
        schema: str = SCHEMA,
        retries: int = WRITE_RETRIES,
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        super().__init__(timeout=None, retries=retries, sleep=sleep)
        if not isinstance(connection, self._connection_type):
            raise TypeError(
                f"connection must be a psycopg {self._connection_type.__name__}, "
                f"not {type(connection).__name__}"
            )
        self._connection: Any = connection
        remember(connection)
        self._install = Install(schema)

    async def _send(
        self, function: str, arguments: dict[str, Any], timeout: float | None
    ) -> object:
        call = ConnectionCall(function, arguments, timeout, self._install)
        async with held(self._connection, timeout):
            if timeout is None:
                return await call.write(self._connection)
            with call.guarded(self._connection):
                return await call.write(self._connection)

    def _may_repeat(self, function: str, error: SecondBrainError) -> bool:
        # In a transaction of the caller's, only the caller can repeat what the transaction did.
        is_own = self._connection.info.transaction_status == TransactionStatus.IDLE
        return is_own and is_rolled_back(error)

    async def _position(self) -> str:
        cursor = self._connection.cursor(row_factory=scalar_row)
        async with held(self._connection), entered(self._connection.transaction()):
            await settled(cursor.execute(_WAL_POSITION, prepare=False))
            return str(await settled(cursor.fetchone()))


@documented
class AsyncKnowledgeWriter(_OnConnection[psycopg.AsyncConnection[Any]], AsyncWrites):
    """The writing side, for an event loop: each method is one SQL function in its own transaction.

    Within a transaction of the caller's it is a savepoint, and the caller commits. The role must be
    service_role or the tables' owner; `schema` is that of the install. Every method raises a
    `SecondBrainError`.

    A deadlock or a serialization failure is tried again after a short random pause, up to `retries`
    times; not within a transaction of the caller's. `sleep` makes the pause.
    """

    _connection_type = psycopg.AsyncConnection

    async def wal_position(self) -> str:
        """Return a position in the WAL after everything committed on this connection so far.

        `provider.wait_for(position)` searches on a replica that has replayed it. Within a
        transaction of the caller's, call it after the commit.
        """
        try:
            return await self._position()
        except Exception as error:  # noqa: BLE001
            failure, cause = self._safe(error)
        raise failure from cause


class KnowledgeWriter(_OnConnection[psycopg.Connection[Any]], Writes):
    """The methods of `AsyncKnowledgeWriter`, for threads."""

    _connection_type = psycopg.Connection
    wal_position = blocking(AsyncKnowledgeWriter.wal_position)
