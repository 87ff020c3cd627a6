"""Providers that search on hot standbys of one primary."""

import copy
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any, Generic, LiteralString, Self, TypeAlias, TypeVar, Unpack

import psycopg
from psycopg.rows import scalar_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from second_brain.replicas.choice import (
    MAX_LAG,
    WAIT,
    Replicas,
    ReplicaState,
    Server,
    Turn,
    checked_position,
    is_for_the_next,
)
from second_brain.services.calls import ClientOptions, Deadline, settled
from second_brain.services.connection_calls import AnyDatabase, ConnectionCall, OverPsycopg
from second_brain.services.connections import address, secrets
from second_brain.services.install import SCHEMA
from second_brain.services.postgres import (
    AsyncDatabase,
    AsyncPostgresProvider,
    Database,
    PostgresProvider,
)

Replica: TypeAlias = str | ConnectionPool[Any]
AsyncReplica: TypeAlias = str | AsyncConnectionPool[Any]
AnyReplica = TypeVar("AnyReplica")


class _CallInTurn(ConnectionCall):
    """A call that first checks the replica that it is sent to."""

    def __init__(
        self, turn: Turn, sleep: Callable[[float], Awaitable[object]], *arguments: Any
    ) -> None:
        super().__init__(*arguments)
        self._turn, self._sleep = turn, sleep

    async def read(self, connection: Any) -> object:
        """Check the replica, and call."""

        async def fetch(statement: LiteralString, values: dict[str, object]) -> Any:
            cursor = connection.cursor(row_factory=scalar_row)
            await settled(cursor.execute(statement, values, prepare=False))
            return await settled(cursor.fetchone())

        with self._turn.server.connected():
            await self._turn.check(fetch, self._sleep)
            return await super().read(connection)


class _OnReplicas(OverPsycopg[AnyDatabase], Generic[AnyDatabase, AnyReplica]):
    """Both providers: the server of each search."""

    _position: str | None = None

    def __init__(
        self,
        primary: AnyDatabase,
        replicas: Sequence[AnyReplica],
        *,
        max_lag: float = MAX_LAG,
        max_wait: float = WAIT,
        schema: str = SCHEMA,
        **options: Unpack[ClientOptions],
    ) -> None:
        super().__init__(primary, schema=schema, **options)
        pool = self.pool_type
        if isinstance(replicas, str):
            raise TypeError("replicas must be a list")
        for one in replicas:
            if not isinstance(one, str | pool):
                raise TypeError(
                    f"a replica must be a {pool.__name__} or a connection string, "
                    f"not {type(one).__name__}"
                )
        self._replicas = Replicas(
            Server(primary, _address(primary), is_replica=False),
            [Server(one, _address(one), is_replica=True) for one in replicas],
            max_lag=max_lag,
            wait=max_wait,
        )

    @property
    def replicas(self) -> list[ReplicaState]:
        """What is known of each replica: its lag, and how many searches it answered."""
        return self._replicas.states()

    def wait_for(self, position: str) -> Self:
        """Return this provider for searches that must see the writes up to a position in the WAL.

        `position` is what `wal_position()` of a writer returned after the write. A search waits at
        most `max_wait` seconds until a replica has replayed it, then the primary answers.
        """
        one = copy.copy(self)
        one._position = checked_position(position)
        return one

    async def _send(
        self, function: str, arguments: dict[str, Any], timeout: float | None, **_: Any
    ) -> object:
        """Call the function on the server that is next, until one answers."""
        deadline = Deadline(timeout)
        failure: Exception | None = None
        for turn in self._replicas.turns(self._position):
            left = deadline.left()
            waits = [one for one in (left, turn.connection_wait) if one is not None]
            try:
                with self._replicas.using(turn):
                    return await super()._send(
                        function,
                        arguments,
                        left,
                        database=turn.server.database,
                        wait=min(waits, default=None),
                        kind_of_call=partial(_CallInTurn, turn, self._wait),
                    )
            except Exception as error:
                if not is_for_the_next(error):
                    raise
                failure = error
        # The loop has run at least once, for the primary.
        raise failure or AssertionError

    def _secrets(self) -> Iterable[object]:
        """Return the connection strings of all servers and their passwords."""
        servers = self._replicas.databases()
        return [secret for one in servers if isinstance(one, str) for secret in secrets(one)]


def _address(database: Any) -> str:
    """Return host, port and database, for logs."""
    if isinstance(database, psycopg.BaseConnection):
        return "the caller's connection"
    found = address(database if isinstance(database, str) else database.conninfo)
    return f"{found.host or 'this machine'}:{found.port}/{found.database}"


class ReplicaProvider(_OnReplicas[Database, Replica], PostgresProvider):
    """`PostgresProvider` that searches on replicas of the primary.

    `replicas` are pools or connection strings of hot standbys. They get the searches while they are
    at most `max_lag` seconds behind. A search that a replica cannot answer goes to the next one,
    then to the primary.
    """


class AsyncReplicaProvider(_OnReplicas[AsyncDatabase, AsyncReplica], AsyncPostgresProvider):
    """`ReplicaProvider` for an event loop."""
