"""Search over psycopg, for backends with a direct connection to the database.

It does not need session state, so it also works through a transaction pooler.
"""

import asyncio
import copy
import time
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from typing import Any, ClassVar, LiteralString, Self, TypeAlias

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row, scalar_row
from psycopg.types.json import set_json_loads
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from second_brain.errors import ConnectionLostError
from second_brain.services.blocking import finished
from second_brain.services.calls import RETRIES, Deadline
from second_brain.services.connections import address, connect, explained, secrets
from second_brain.services.install import SCHEMA, Install
from second_brain.services.provider import AsyncSearchProvider, SearchProvider
from second_brain.services.reading import Reading, after, connect_timeout, pool_wait
from second_brain.services.replicas import (
    MAX_LAG,
    WAIT,
    Fetch,
    Replicas,
    ReplicaState,
    Server,
    Turn,
    checked_position,
    is_for_the_next,
)
from second_brain.services.results import Source, read_json
from second_brain.services.statements import register_vector

Database: TypeAlias = str | psycopg.Connection[Any] | ConnectionPool[Any]
AsyncDatabase: TypeAlias = str | psycopg.AsyncConnection[Any] | AsyncConnectionPool[Any]
Replica: TypeAlias = str | ConnectionPool[Any]
AsyncReplica: TypeAlias = str | AsyncConnectionPool[Any]

_OWN_CONNECTION_LOST = (
    "Open a new connection and give it to a new provider. A provider with a pool or a connection "
    "string retries by itself."
)


class _Postgres:
    """Base of both providers."""

    _database: Any
    _install: Install
    _replicas: Replicas | None = None
    _position: str | None = None

    @abstractmethod
    async def _ask(
        self, database: Any, reading: Reading, timeout: float | None, turn: Turn | None
    ) -> object:
        """Run one call on a connection to this database."""

    @property
    def is_concurrent(self) -> bool:
        """Whether several calls may run at the same time: not on one connection."""
        return not isinstance(self._database, psycopg.BaseConnection)

    @property
    def replicas(self) -> list[ReplicaState]:
        """What is known of each replica: its lag, and how many searches it answered."""
        return [] if self._replicas is None else self._replicas.states()

    def wait_for(self, position: str) -> Self:
        """Return this provider for searches that must see the writes up to a position in the WAL.

        `position` is what `wal_position()` of a writer returned after the write. A search waits at
        most `max_wait` seconds until a replica has replayed it, then the primary answers.
        """
        one = copy.copy(self)
        one._position = checked_position(position)
        return one

    def _read_from(self, replicas: Sequence[Any], max_lag: float, max_wait: float) -> None:
        if not replicas:
            return
        primary = Server(self._database, _address(self._database), is_replica=False)
        servers = [Server(one, _address(one), is_replica=True) for one in replicas]
        self._replicas = Replicas(primary, servers, max_lag=max_lag, wait=max_wait)

    async def _routed(
        self, function: str, arguments: dict[str, Any], timeout: float | None
    ) -> object:
        """Call the function on the server that is next, until one answers."""
        is_own = isinstance(self._database, psycopg.BaseConnection)
        remedy = _OWN_CONNECTION_LOST if is_own else None
        if self._replicas is None:
            reading = Reading(function, arguments, timeout, remedy, self._install)
            return await self._ask(self._database, reading, timeout, None)
        deadline = Deadline(timeout)
        failure: Exception | None = None
        for turn in self._replicas.turns(self._position):
            left = deadline.left()
            reading = Reading(function, arguments, left, None, self._install)
            try:
                with self._replicas.using(turn):
                    return await self._ask(turn.server.database, reading, left, turn)
            except Exception as error:
                if not is_for_the_next(error):
                    raise
                failure = error
        # The loop has run at least once, for the primary.
        raise failure or AssertionError

    def _secrets(self) -> Iterable[object]:
        servers = [self._database] if self._replicas is None else self._replicas.databases()
        return [secret for one in servers if isinstance(one, str) for secret in secrets(one)]


def _check_replicas(replicas: Sequence[object], pool: type[object]) -> None:
    if isinstance(replicas, str):
        raise TypeError("replicas must be a list")
    for one in replicas:
        if not isinstance(one, str | pool):
            raise TypeError(
                f"a replica must be a {pool.__name__} or a connection string, "
                f"not {type(one).__name__}"
            )


def _address(database: Any) -> str:
    """Return host, port and database, for logs."""
    if isinstance(database, psycopg.BaseConnection):
        return "the caller's connection"
    found = address(database if isinstance(database, str) else database.conninfo)
    return f"{found.host or 'this machine'}:{found.port}/{found.database}"


class PostgresProvider(_Postgres, SearchProvider):
    """Search over a psycopg connection, a pool, or a connection string.

    The provider does not commit or close a connection of the caller, does not leave its open
    transaction in a failed state, and restores all settings after a call. A connection can be used
    by one thread at a time; a service should use a pool. With a connection string, each call opens
    and closes its own connection. A lost connection of the caller is not opened again.

    `schema` is the schema of the install. `timeout` becomes the statement_timeout, unless the role
    has a shorter one. If the server does not cancel the statement, the connection is closed half a
    second later.

    `replicas` are pools or connection strings of hot standbys. They get the searches while they are
    at most `max_lag` seconds behind; `database` is the primary. A search that a replica cannot
    answer goes to the next one, then to the primary.
    """

    name: ClassVar[Source] = "postgres"

    def __init__(
        self,
        database: Database,
        *,
        replicas: Sequence[Replica] = (),
        max_lag: float = MAX_LAG,
        max_wait: float = WAIT,
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
        _check_replicas(replicas, ConnectionPool)
        super().__init__(
            multi_tenant=multi_tenant,
            timeout=timeout,
            retries=0 if isinstance(database, psycopg.Connection) else retries,
            sleep=sleep,
        )
        self._database: Database = database
        self._install = Install(schema)
        self._read_from(replicas, max_lag, max_wait)

    @contextmanager
    def _connection(
        self, database: Database, timeout: float | None, turn: Turn | None
    ) -> Iterator[psycopg.Connection[Any]]:
        if isinstance(database, psycopg.Connection):
            yield database
        elif isinstance(database, ConnectionPool):
            with database.connection(_pool_wait(timeout, database.timeout, turn)) as connection:
                # Only this call uses the connection, and it needs no transaction.
                as_it_was = connection.autocommit
                connection.autocommit = True
                try:
                    yield connection
                finally:
                    if connection.info.transaction_status == TransactionStatus.IDLE:
                        connection.autocommit = as_it_was
        else:
            options = _connect_timeout(timeout, turn)
            with connect(database, autocommit=True, **options) as connection:
                yield connection

    def _send_blocking(
        self, function: str, arguments: dict[str, Any], timeout: float | None
    ) -> object:
        return finished(self._routed(function, arguments, timeout))

    async def _ask(
        self, database: Any, reading: Reading, timeout: float | None, turn: Turn | None
    ) -> object:
        try:
            with (
                self._connection(database, timeout, turn) as connection,
                nullcontext() if turn is None else turn.server.connected(),
                reading.guarded(connection, after),
            ):
                if turn is not None:
                    await turn.check(self._fetch(connection), self._wait)
                return self._read(connection, reading)
        except ConnectionLostError:
            if isinstance(database, ConnectionPool):
                # A server restart breaks all connections of a pool; check() replaces them.
                database.check()
            raise

    def _fetch(self, connection: psycopg.Connection[Any]) -> Fetch:
        async def fetch(statement: LiteralString, values: dict[str, object]) -> Any:
            with connection.cursor(row_factory=scalar_row) as cursor:
                return cursor.execute(statement, values, prepare=False).fetchone()

        return fetch

    def _read(self, connection: psycopg.Connection[Any], reading: Reading) -> object:
        plan = reading.plan(connection)
        cursor = connection.cursor(row_factory=dict_row)
        register_vector(cursor)
        set_json_loads(read_json, cursor)
        try:
            with connection.pipeline() if plan.is_pipelined else nullcontext():
                for statement, values in plan.before:
                    connection.execute(statement, values, prepare=False)
                # Prepared statements belong to a session; behind a pooler, the next call may use
                # another one.
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
        replicas: Sequence[AsyncReplica] = (),
        max_lag: float = MAX_LAG,
        max_wait: float = WAIT,
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
        _check_replicas(replicas, AsyncConnectionPool)
        super().__init__(
            multi_tenant=multi_tenant,
            timeout=timeout,
            retries=0 if isinstance(database, psycopg.AsyncConnection) else retries,
            sleep=sleep,
        )
        self._database: AsyncDatabase = database
        self._install = Install(schema)
        self._read_from(replicas, max_lag, max_wait)

    @asynccontextmanager
    async def _connection(
        self, database: AsyncDatabase, timeout: float | None, turn: Turn | None
    ) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        if isinstance(database, psycopg.AsyncConnection):
            yield database
        elif isinstance(database, AsyncConnectionPool):
            wait = _pool_wait(timeout, database.timeout, turn)
            async with database.connection(wait) as connection:
                as_it_was = connection.autocommit
                await connection.set_autocommit(True)
                try:
                    yield connection
                finally:
                    if connection.info.transaction_status == TransactionStatus.IDLE:
                        await connection.set_autocommit(as_it_was)
        else:
            with explained(database):
                opened = await psycopg.AsyncConnection.connect(
                    database, autocommit=True, **_connect_timeout(timeout, turn)
                )
            async with opened as connection:
                yield connection

    async def _send(
        self, function: str, arguments: dict[str, Any], timeout: float | None
    ) -> object:
        return await self._routed(function, arguments, timeout)

    async def _ask(
        self, database: Any, reading: Reading, timeout: float | None, turn: Turn | None
    ) -> object:
        try:
            async with self._connection(database, timeout, turn) as connection:
                with (
                    nullcontext() if turn is None else turn.server.connected(),
                    reading.guarded(connection, asyncio.get_running_loop().call_later),
                ):
                    if turn is not None:
                        await turn.check(self._fetch(connection), self._wait)
                    return await self._read(connection, reading)
        except ConnectionLostError:
            if isinstance(database, AsyncConnectionPool):
                await database.check()
            raise

    def _fetch(self, connection: psycopg.AsyncConnection[Any]) -> Fetch:
        async def fetch(statement: LiteralString, values: dict[str, object]) -> Any:
            async with connection.cursor(row_factory=scalar_row) as cursor:
                await cursor.execute(statement, values, prepare=False)
                return await cursor.fetchone()

        return fetch

    async def _read(self, connection: psycopg.AsyncConnection[Any], reading: Reading) -> object:
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


def _pool_wait(timeout: float | None, pools_own: float, turn: Turn | None) -> float:
    wait = pool_wait(timeout, pools_own)
    return wait if turn is None else min(wait, turn.connection_wait or wait)


def _connect_timeout(timeout: float | None, turn: Turn | None) -> dict[str, Any]:
    if turn is None or turn.connection_wait is None:
        return connect_timeout(timeout)
    return connect_timeout(min(turn.connection_wait, timeout or turn.connection_wait))
