"""Search over psycopg, for backends with a direct connection to the database.

It does not need session state, so it also works through a transaction pooler.
"""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, nullcontext
from typing import Any, ClassVar, Generic, LiteralString, TypeAlias, TypeVar, Unpack

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import scalar_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from second_brain.errors import ConnectionLostError
from second_brain.services.connection_calls import (
    ConnectionCall,
    Looped,
    Threaded,
    connect_timeout,
    pool_wait,
)
from second_brain.services.connections import explained, libpq, secrets
from second_brain.services.install import SCHEMA, Install
from second_brain.services.provider import AsyncSearchProvider, SearchProvider
from second_brain.services.replicas import Fetch, Turn
from second_brain.services.results import Source
from second_brain.services.searches import ProviderOptions, Searches

Database: TypeAlias = str | psycopg.Connection[Any] | ConnectionPool[Any]
AsyncDatabase: TypeAlias = str | psycopg.AsyncConnection[Any] | AsyncConnectionPool[Any]
AnyDatabase = TypeVar("AnyDatabase")

_OWN_CONNECTION_LOST = (
    "Open a new connection and give it to a new provider. A provider with a pool or a connection "
    "string retries by itself."
)


class PostgresSearches(Searches, Generic[AnyDatabase]):
    """The providers over psycopg, which differ in the kinds of connections and pools."""

    _pool_type: type[Any]
    _connection_type: type[Any]
    _awaited: Any
    _alone: Any
    _later: Any
    _remedy_of_loss: str | None = None

    @property
    def is_concurrent(self) -> bool:
        """Whether several calls may run at the same time: not on one connection."""
        return not isinstance(self._database, psycopg.BaseConnection)

    def __init__(
        self,
        database: AnyDatabase,
        *,
        schema: str = SCHEMA,
        **options: Unpack[ProviderOptions],
    ) -> None:
        super().__init__(**options)
        connection, pool = self._connection_type.__name__, self._pool_type.__name__
        article = "an" if pool.startswith("A") else "a"
        if not isinstance(database, str | self._connection_type | self._pool_type):
            raise TypeError(
                f"database must be a psycopg {connection}, {article} {pool} or a connection "
                f"string, not {type(database).__name__}"
            )
        self._database: Any = database
        self._install = Install(schema)
        if isinstance(database, self._connection_type):
            # A lost connection of the caller is not opened again.
            self._retries = 0
            self._remedy_of_loss = _OWN_CONNECTION_LOST

    async def _send(
        self, function: str, arguments: dict[str, Any], timeout: float | None
    ) -> object:
        call = ConnectionCall(function, arguments, timeout, self._install, self._remedy_of_loss)
        return await self._on(self._database, call, timeout)

    async def _on(
        self, database: Any, call: ConnectionCall, timeout: float | None, turn: Turn | None = None
    ) -> object:
        """Run one call on a connection to this database."""
        try:
            async with self._connection(database, timeout, turn) as connection:
                with (
                    nullcontext() if turn is None else turn.server.connected(),
                    call.guarded(connection, self._later),
                ):
                    if turn is not None:
                        await turn.check(_fetch(connection), self._wait)
                    return await call.read(connection)
        except ConnectionLostError:
            if isinstance(database, self._pool_type):
                # A server restart breaks all connections of a pool; check() replaces them.
                await self._awaited(database).check()
            raise

    @asynccontextmanager
    async def _connection(
        self, database: Any, timeout: float | None, turn: Turn | None
    ) -> AsyncIterator[Any]:
        """Yield a connection whose methods are awaited."""
        if isinstance(database, psycopg.BaseConnection):
            async with self._alone(database, timeout):
                yield self._awaited(database)
        elif isinstance(database, str):
            with explained(database):
                opened = await self._awaited(self._connection_type).connect(
                    libpq(database), autocommit=True, **_connect_timeout(timeout, turn)
                )
            async with self._awaited(opened):
                yield self._awaited(opened)
        else:
            wait = _pool_wait(timeout, database.timeout, turn)
            async with self._awaited(database).connection(wait) as lent:
                # Only this call uses the connection, and it needs no transaction.
                connection = self._awaited(lent)
                as_it_was = connection.autocommit
                await connection.set_autocommit(True)
                try:
                    yield connection
                finally:
                    if connection.info.transaction_status == TransactionStatus.IDLE:
                        await connection.set_autocommit(as_it_was)

    def _secrets(self) -> Iterable[object]:
        return secrets(self._database) if isinstance(self._database, str) else ()


def _fetch(connection: Any) -> Fetch:
    async def fetch(statement: LiteralString, values: dict[str, object]) -> Any:
        cursor = connection.cursor(row_factory=scalar_row)
        await cursor.execute(statement, values, prepare=False)
        return await cursor.fetchone()

    return fetch


class PostgresProvider(Threaded, PostgresSearches[Database], SearchProvider):
    """Search over a psycopg connection, a pool, or a connection string.

    The provider does not commit or close a connection of the caller, does not leave its open
    transaction in a failed state, and restores all settings after a call. On one connection, the
    calls of several threads wait for each other; a service should use a pool. With a connection
    string, each call opens and closes its own connection. A lost connection of the caller is not
    opened again.

    `schema` is the schema of the install. `timeout` becomes the statement_timeout, unless the role
    has a shorter one. If the server does not cancel the statement, the connection is closed half a
    second later.
    """

    name: ClassVar[Source] = "postgres"
    _pool_type = ConnectionPool


class AsyncPostgresProvider(Looped, PostgresSearches[AsyncDatabase], AsyncSearchProvider):
    """`PostgresProvider` for an event loop: psycopg's AsyncConnection or AsyncConnectionPool."""

    name: ClassVar[Source] = "postgres"
    _pool_type = AsyncConnectionPool


def _pool_wait(timeout: float | None, pools_own: float, turn: Turn | None) -> float:
    wait = pool_wait(timeout, pools_own)
    return wait if turn is None else min(wait, turn.connection_wait or wait)


def _connect_timeout(timeout: float | None, turn: Turn | None) -> dict[str, Any]:
    if turn is None or turn.connection_wait is None:
        return connect_timeout(timeout)
    return connect_timeout(min(turn.connection_wait, timeout or turn.connection_wait))
