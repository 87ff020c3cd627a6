"""Search over psycopg, for backends with a direct connection to the database.

It does not need session state, so it also works through a transaction pooler.
"""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar, Unpack

import psycopg
from psycopg.pq import TransactionStatus
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

    async def _on(self, database: Any, call: ConnectionCall, wait: float | None) -> object:
        """Run a call on a connection to this database, and wait so long for the connection."""
        try:
            async with self._connection(database, wait) as connection:
                with call.guarded(connection, self._later):
                    return await call.read(connection)
        except ConnectionLostError:
            if isinstance(database, self._pool_type):
                # A server restart breaks all connections of a pool; check() replaces them.
                await self._awaited(database).check()
            raise

    @asynccontextmanager
    async def _connection(self, database: Any, wait: float | None) -> AsyncIterator[Any]:
        """Yield a connection whose methods are awaited."""
        if isinstance(database, psycopg.BaseConnection):
            async with self._alone(database, wait):
                yield self._awaited(database)
        elif isinstance(database, str):
            with explained(database):
                opened = await self._awaited(self._connection_type).connect(
                    libpq(database), autocommit=True, **connect_timeout(wait)
                )
            async with self._awaited(opened):
                yield self._awaited(opened)
        else:
            pools_wait = pool_wait(wait, database.timeout)
            async with self._awaited(database).connection(pools_wait) as lent:
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
