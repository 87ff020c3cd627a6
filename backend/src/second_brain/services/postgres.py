"""Search over psycopg, for backends with a direct connection to the database.

It does not need session state, so it also works through a transaction pooler.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from typing import Any, ClassVar, TypeAlias

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row
from psycopg.types.json import set_json_loads
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from second_brain.errors import ConnectionLostError
from second_brain.services.calls import RETRIES
from second_brain.services.connections import connect, explained, secrets
from second_brain.services.install import SCHEMA, Install
from second_brain.services.provider import AsyncSearchProvider, SearchProvider
from second_brain.services.reading import Reading, after, connect_timeout, pool_wait
from second_brain.services.results import Source, read_json
from second_brain.services.statements import register_vector

Database: TypeAlias = str | psycopg.Connection[Any] | ConnectionPool[Any]
AsyncDatabase: TypeAlias = str | psycopg.AsyncConnection[Any] | AsyncConnectionPool[Any]

_OWN_CONNECTION_LOST = (
    "Open a new connection and give it to a new provider. A provider with a pool or a connection "
    "string retries by itself."
)


class _Postgres:
    """Base of both providers."""

    _database: Any
    _install: Install

    def _reading(self, function: str, arguments: dict[str, Any], timeout: float | None) -> Reading:
        is_own = isinstance(self._database, psycopg.BaseConnection)
        remedy_of_loss = _OWN_CONNECTION_LOST if is_own else None
        return Reading(function, arguments, timeout, remedy_of_loss, self._install)

    @property
    def is_concurrent(self) -> bool:
        """Whether several calls may run at the same time: not on one connection."""
        return not isinstance(self._database, psycopg.BaseConnection)

    def _secrets(self) -> Iterable[object]:
        return secrets(self._database) if isinstance(self._database, str) else ()


class PostgresProvider(_Postgres, SearchProvider):
    """Search over a psycopg connection, a pool, or a connection string.

    The provider does not commit or close a connection of the caller, does not leave its open
    transaction in a failed state, and restores all settings after a call. A connection can be used
    by one thread at a time; a service should use a pool. With a connection string, each call opens
    and closes its own connection. A lost connection of the caller is not opened again.

    `schema` is the schema of the install. `timeout` becomes the statement_timeout, unless the role
    has a shorter one. If the server does not cancel the statement, the connection is closed half a
    second later.
    """

    name: ClassVar[Source] = "postgres"

    def __init__(
        self,
        database: Database,
        *,
        schema: str = SCHEMA,
        multi_tenant: bool = False,
        timeout: float | None = None,
        retries: int = RETRIES,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        if not isinstance(database, str | psycopg.Connection | ConnectionPool):
            raise TypeError(
                "database must be a psycopg Connection, a ConnectionPool or a connection string, "
                f"not {type(database).__name__}"
            )
        super().__init__(
            multi_tenant=multi_tenant,
            timeout=timeout,
            retries=0 if isinstance(database, psycopg.Connection) else retries,
            sleep=sleep,
        )
        self._database: Database = database
        self._install = Install(schema)

    @contextmanager
    def _connection(self, timeout: float | None) -> Iterator[psycopg.Connection[Any]]:
        if isinstance(self._database, psycopg.Connection):
            yield self._database
        elif isinstance(self._database, ConnectionPool):
            wait = pool_wait(timeout, self._database.timeout)
            with self._database.connection(wait) as connection:
                # Only this call uses the connection, and it needs no transaction.
                as_it_was = connection.autocommit
                connection.autocommit = True
                try:
                    yield connection
                finally:
                    if connection.info.transaction_status == TransactionStatus.IDLE:
                        connection.autocommit = as_it_was
        else:
            with connect(self._database, autocommit=True, **connect_timeout(timeout)) as connection:
                yield connection

    def _send_blocking(
        self, function: str, arguments: dict[str, Any], timeout: float | None
    ) -> object:
        reading = self._reading(function, arguments, timeout)
        try:
            with self._connection(timeout) as connection:
                return self._read(connection, reading)
        except ConnectionLostError:
            if isinstance(self._database, ConnectionPool):
                # A server restart breaks all connections of a pool; check() replaces them.
                self._database.check()
            raise

    def _read(self, connection: psycopg.Connection[Any], reading: Reading) -> object:
        with reading.guarded(connection, after):
            plan = reading.plan(connection)
            cursor = connection.cursor(row_factory=dict_row)
            register_vector(cursor)
            set_json_loads(read_json, cursor)
            try:
                with connection.pipeline() if plan.is_pipelined else nullcontext():
                    for statement, values in plan.before:
                        connection.execute(statement, values, prepare=False)
                    # Prepared statements belong to a session; behind a pooler, the next call may
                    # use another one.
                    cursor.execute(reading.statement, reading.values, prepare=False)
                    for statement in plan.after:
                        connection.execute(statement, prepare=False)
                if plan.is_committed:
                    connection.commit()
                return reading.answer(cursor.fetchall())
            except BaseException:
                with suppress(psycopg.Error):
                    if plan.is_committed:
                        connection.rollback()
                    for statement in plan.after:
                        connection.execute(statement, prepare=False)
                raise


class AsyncPostgresProvider(_Postgres, AsyncSearchProvider):
    """`PostgresProvider` for an event loop: psycopg's AsyncConnection or AsyncConnectionPool."""

    name: ClassVar[Source] = "postgres"

    def __init__(
        self,
        database: AsyncDatabase,
        *,
        schema: str = SCHEMA,
        multi_tenant: bool = False,
        timeout: float | None = None,
        retries: int = RETRIES,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        if not isinstance(database, str | psycopg.AsyncConnection | AsyncConnectionPool):
            raise TypeError(
                "database must be a psycopg AsyncConnection, an AsyncConnectionPool or a "
                f"connection string, not {type(database).__name__}"
            )
        super().__init__(
            multi_tenant=multi_tenant,
            timeout=timeout,
            retries=0 if isinstance(database, psycopg.AsyncConnection) else retries,
            sleep=sleep,
        )
        self._database: AsyncDatabase = database
        self._install = Install(schema)

    @asynccontextmanager
    async def _connection(
        self, timeout: float | None
    ) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        if isinstance(self._database, psycopg.AsyncConnection):
            yield self._database
        elif isinstance(self._database, AsyncConnectionPool):
            wait = pool_wait(timeout, self._database.timeout)
            async with self._database.connection(wait) as connection:
                as_it_was = connection.autocommit
                await connection.set_autocommit(True)
                try:
                    yield connection
                finally:
                    if connection.info.transaction_status == TransactionStatus.IDLE:
                        await connection.set_autocommit(as_it_was)
        else:
            with explained(self._database):
                opened = await psycopg.AsyncConnection.connect(
                    self._database, autocommit=True, **connect_timeout(timeout)
                )
            async with opened as connection:
                yield connection

    async def _send(
        self, function: str, arguments: dict[str, Any], timeout: float | None
    ) -> object:
        reading = self._reading(function, arguments, timeout)
        try:
            async with self._connection(timeout) as connection:
                return await self._read(connection, reading)
        except ConnectionLostError:
            if isinstance(self._database, AsyncConnectionPool):
                await self._database.check()
            raise

    async def _read(self, connection: psycopg.AsyncConnection[Any], reading: Reading) -> object:
        with reading.guarded(connection, asyncio.get_running_loop().call_later):
            plan = reading.plan(connection)
            cursor = connection.cursor(row_factory=dict_row)
            register_vector(cursor)
            set_json_loads(read_json, cursor)
            try:
                async with connection.pipeline() if plan.is_pipelined else nullcontext():
                    for statement, values in plan.before:
                        await connection.execute(statement, values, prepare=False)
                    await cursor.execute(reading.statement, reading.values, prepare=False)
                    for statement in plan.after:
                        await connection.execute(statement, prepare=False)
                if plan.is_committed:
                    await connection.commit()
                return reading.answer(await cursor.fetchall())
            except BaseException:
                with suppress(psycopg.Error):
                    if plan.is_committed:
                        await connection.rollback()
                    for statement in plan.after:
                        await connection.execute(statement, prepare=False)
                raise
