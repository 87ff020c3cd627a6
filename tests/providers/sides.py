"""The blocking provider and the one for an event loop, with the same methods for a test."""

import asyncio
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from conftest import Connection
from corpora import SAVANNA
from second_brain.services.connections import async_connection_pool, connection_pool
from second_brain.services.postgres import AsyncPostgresProvider, PostgresProvider
from second_brain.services.write import KnowledgeWriter


@pytest.fixture(scope="module", autouse=True)
def corpus(shared: Connection) -> None:
    document = {"external_key": "savanna", "title": "Savanna", "visibility": "public"}
    KnowledgeWriter(shared).upsert_document(document, SAVANNA)


class Side(ABC):
    """One of the two ways to use a provider."""

    def __init__(self) -> None:
        self.pauses: list[float] = []
        self.cleanup: list[Callable[[], object]] = []

    @abstractmethod
    def provider(self, database: Any, **options: Any) -> Any:
        """Return a provider whose pauses are noted and not made."""

    @abstractmethod
    def connect(self, dsn: str, **options: Any) -> Any:
        """Open a connection."""

    @abstractmethod
    def pool(self, dsn: str, *, ready: bool = True, **options: Any) -> Any:
        """Open the pool that the package offers, or a plain one."""

    @abstractmethod
    def do(self, outcome: Any) -> Any:
        """Wait for the outcome of a connection's method."""

    def value(self, connection: Any, query: str) -> Any:
        row = self.do(self.do(connection.execute(query)).fetchone())
        return row[0]

    @contextmanager
    def borrowed(self, pool: Any) -> Iterator[Any]:
        connection = self.do(pool.getconn())
        try:
            yield connection
        finally:
            self.do(pool.putconn(connection))

    def close(self) -> None:
        for step in reversed(self.cleanup):
            self.do(step())


class Blocking(Side):
    """Threads."""

    def provider(self, database: Any, **options: Any) -> Any:
        return PostgresProvider(
            database, **{"sleep": self.pauses.append, "on_error": "empty", **options}
        )

    def connect(self, dsn: str, **options: Any) -> Any:
        connection = psycopg.connect(dsn, **options)
        self.cleanup.append(connection.close)
        return connection

    def pool(self, dsn: str, *, ready: bool = True, **options: Any) -> Any:
        pool = (
            connection_pool(dsn, **options) if ready else ConnectionPool(dsn, open=True, **options)
        )
        self.cleanup.append(pool.close)
        pool.wait()
        return pool

    def do(self, outcome: Any) -> Any:
        return outcome


class Looping(Side):
    """An event loop, which runs only during a call."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()

    def provider(self, database: Any, **options: Any) -> Any:
        async def sleep(seconds: float) -> None:
            self.pauses.append(seconds)

        return Waited(
            self,
            AsyncPostgresProvider(database, **{"sleep": sleep, "on_error": "empty", **options}),
        )

    def connect(self, dsn: str, **options: Any) -> Any:
        connection = self.do(psycopg.AsyncConnection.connect(dsn, **options))
        self.cleanup.append(connection.close)
        return connection

    def pool(self, dsn: str, *, ready: bool = True, **options: Any) -> Any:
        async def make() -> Any:
            if ready:
                pool = async_connection_pool(dsn, **options)
            else:
                pool = AsyncConnectionPool(dsn, open=False, **options)
            await pool.open(wait=True)
            return pool

        pool = self.do(make())
        self.cleanup.append(pool.close)
        return pool

    def do(self, outcome: Any) -> Any:
        async def wait() -> Any:
            return await outcome

        return self.runner.run(wait()) if inspect.isawaitable(outcome) else outcome

    def close(self) -> None:
        super().close()
        self.runner.close()


class Waited:
    """A provider for an event loop, whose methods are waited for."""

    def __init__(self, side: Looping, provider: AsyncPostgresProvider) -> None:
        self._side, self._provider = side, provider

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._provider, name)
        return lambda *arguments, **options: self._side.do(method(*arguments, **options))


@pytest.fixture(params=[Blocking, Looping])
def side(request: pytest.FixtureRequest) -> Iterator[Side]:
    made: Side = request.param()
    yield made
    made.close()
