"""Writing over psycopg, on a pool, a connection or with a connection string."""

from typing import Any, LiteralString, Unpack

import psycopg
from psycopg.rows import scalar_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from second_brain.errors import documented
from second_brain.services.calls import ClientOptions, finished, settled
from second_brain.services.connection_calls import AnyDatabase, OverPsycopg
from second_brain.services.install import SCHEMA
from second_brain.services.postgres import AsyncDatabase, Database
from second_brain.services.writing import AsyncWrites, DeletedCounts, UpsertCounts, Writes

__all__ = ["AsyncKnowledgeWriter", "DeletedCounts", "KnowledgeWriter", "UpsertCounts"]

WRITE_RETRIES = 10
"""How often a write is sent again after a deadlock or a serialization failure."""

# Without synchronous_commit, a commit is in the WAL before it is flushed. The flushed position is
# the end of a record; the inserted one can be some bytes after it, at the end of a page.
_WAL_POSITION: LiteralString = """
select case
         when current_setting('synchronous_commit') = 'off' then pg_current_wal_insert_lsn()
         else pg_current_wal_flush_lsn()
       end::text as position
"""


class _Writer(OverPsycopg[AnyDatabase]):
    _commits = True

    def __init__(
        self, database: AnyDatabase, *, schema: str = SCHEMA, **options: Unpack[ClientOptions]
    ) -> None:
        options.setdefault("retries", WRITE_RETRIES)
        super().__init__(database, schema=schema, **options)

    async def _wal_position(self) -> str:
        async def position(connection: Any) -> str:
            cursor = connection.cursor(row_factory=scalar_row)
            await settled(cursor.execute(_WAL_POSITION, prepare=False))
            return str(await settled(cursor.fetchone()))

        found: str = await self._transaction(position)
        return found


@documented
class KnowledgeWriter(_Writer[Database], Writes):
    """The writing side: each method is one SQL function in its own transaction.

    `database` is a connection, a pool or a connection string. Within a transaction of the caller's
    connection it is a savepoint, and the caller commits. The role must be service_role or the
    tables' owner; `schema` is that of the install. Every method raises a `SecondBrainError`.

    A deadlock or a serialization failure is tried again after a short random pause, up to `retries`
    times; not within a transaction of the caller's. `sleep` makes the pause.
    """

    connection_type = psycopg.Connection
    pool_type = ConnectionPool

    def wal_position(self) -> str:
        """Return a position in the WAL after everything committed on this connection so far.

        `provider.wait_for(position)` searches on a replica that has replayed it. Within a
        transaction of the caller's, call it after the commit.
        """
        return finished(self._wal_position())


@documented
class AsyncKnowledgeWriter(_Writer[AsyncDatabase], AsyncWrites):
    """The methods of `KnowledgeWriter`, for an event loop."""

    connection_type = psycopg.AsyncConnection
    pool_type = AsyncConnectionPool

    async def wal_position(self) -> str:
        """`KnowledgeWriter.wal_position` for an event loop."""
        return await self._wal_position()
