"""Processes that are forked after a connection or a pool was opened: nobody gets another's rows."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from typing import Any, TypeAlias

import psycopg
import pytest
from langchain_core.embeddings import DeterministicFakeEmbedding
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from supabase_gateway import HYBRID_ROW, Answer, Gateway, config, gateway

import second_brain
from second_brain import AsyncPostgresProvider, PostgresProvider, async_connection_pool
from second_brain.errors import ConfigurationError, SecondBrainError
from second_brain.integrations.langchain import SecondBrainVectorStore
from second_brain.models import CallableEmbedder
from second_brain.replicas.provider import ReplicaProvider
from second_brain.services.connections import connection_pool
from second_brain.services.supabase import AsyncSupabaseProvider, SupabaseProvider
from second_brain.services.write import AsyncKnowledgeWriter, KnowledgeWriter
from support.forks import in_fork

__all__ = ["gateway"]

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

Call: TypeAlias = Callable[[], Any]
Make: TypeAlias = Callable[[ExitStack, str], Call]
NO_LOOP: Any = asyncio._set_running_loop
DOCUMENT, CHUNKS = {"external_key": "a"}, [{"content": "a heron"}]
BY_HAND = CallableEmbedder(lambda texts: [[1.0, 0.0, 0.0] for _ in texts], "by-hand", 3)


def connected(stack: ExitStack, dsn: str) -> psycopg.Connection[Any]:
    return stack.enter_context(psycopg.connect(dsn, autocommit=True))


def pooled(stack: ExitStack, dsn: str) -> ConnectionPool[Any]:
    return stack.enter_context(connection_pool(dsn, max_size=2))


def plain_pool(stack: ExitStack, dsn: str) -> ConnectionPool[Any]:
    return stack.enter_context(ConnectionPool(dsn, min_size=1, open=True))


def search(provider: PostgresProvider) -> Any:
    return len(provider.fulltext_search("heron", timeout=30.0)[0])


def store(database: Any) -> SecondBrainVectorStore:
    return SecondBrainVectorStore(database, DeterministicFakeEmbedding(size=3))


def searching(database: Any) -> Call:
    provider = PostgresProvider(database)
    return lambda: search(provider)


def write(connection: Any) -> Any:
    return KnowledgeWriter(connection).upsert_document(DOCUMENT, CHUNKS)


def writing(connection: Any) -> Call:
    writer = KnowledgeWriter(connection)
    return lambda: writer.upsert_document(DOCUMENT, CHUNKS)


def position(connection: Any) -> Call:
    return KnowledgeWriter(connection).wal_position


def adding(database: Any) -> Call:
    made = store(database)
    return lambda: made.add_texts(["a heron"], ids=["b"])


def reading(database: Any) -> Call:
    made = store(database)
    return lambda: made.get_by_ids(["b"])


def serving(pool: Any) -> Call:
    service = second_brain.RetrievalService(PostgresProvider(pool), BY_HAND)
    return lambda: len(service.search("heron", timeout=30.0).results)


def in_loop(call: Callable[[], Awaitable[Any]]) -> Call:
    return lambda: asyncio.run(call())  # type: ignore[arg-type]


BLOCKING: dict[str, Make] = {
    "a provider on a pool": lambda stack, dsn: searching(pooled(stack, dsn)),
    "a provider on a pool of psycopg": lambda stack, dsn: searching(plain_pool(stack, dsn)),
    "a provider on a connection": lambda stack, dsn: searching(connected(stack, dsn)),
    "a provider with replicas": lambda stack, dsn: (lambda provider: lambda: search(provider))(
        ReplicaProvider(pooled(stack, dsn), [pooled(stack, dsn)])
    ),
    "a service": lambda stack, dsn: serving(pooled(stack, dsn)),
    "a writer": lambda stack, dsn: writing(connected(stack, dsn)),
    "a position in the WAL": lambda stack, dsn: position(connected(stack, dsn)),
    "a store on a pool, writing": lambda stack, dsn: adding(pooled(stack, dsn)),
    "a store on a pool, reading": lambda stack, dsn: reading(pooled(stack, dsn)),
    "a store on a connection, writing": lambda stack, dsn: adding(connected(stack, dsn)),
    "a store on a connection, reading": lambda stack, dsn: reading(connected(stack, dsn)),
    # Made by each call, so in the child, of what the parent opened.
    "the child's provider": lambda stack, dsn: (
        lambda pool: lambda: search(PostgresProvider(pool))
    )(pooled(stack, dsn)),
    "the child's provider on a pool of psycopg": lambda stack, dsn: (
        lambda pool: lambda: search(PostgresProvider(pool))
    )(plain_pool(stack, dsn)),
    "the child's provider on a connection": lambda stack, dsn: (
        lambda one: lambda: search(PostgresProvider(one))
    )(connected(stack, dsn)),
    "the child's writer": lambda stack, dsn: (lambda one: lambda: write(one))(
        connected(stack, dsn)
    ),
    "the child's store": lambda stack, dsn: (
        lambda pool: lambda: store(pool).add_texts(["a heron"], ids=["b"])
    )(pooled(stack, dsn)),
}


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as entered:
        yield entered


def assert_refused(outcome: object) -> None:
    assert isinstance(outcome, ConfigurationError), repr(outcome)
    assert "before a fork" in str(outcome)
    assert "connection string" in outcome.remedy


@pytest.mark.parametrize("name", BLOCKING)
def test_what_was_opened_before_a_fork_is_refused_in_the_child_and_works_in_the_parent(
    name: str, stack: ExitStack, dsn: str
) -> None:
    call = BLOCKING[name](stack, dsn)
    if not name.startswith("the child's"):
        call()
    assert_refused(in_fork(call))
    # The child's child, too.
    assert_refused(in_fork(lambda: in_fork(call)))
    call()


@pytest.mark.parametrize("is_pool", [True, False])
def test_for_an_event_loop_it_is_the_same(dsn: str, is_pool: bool) -> None:
    async def ask() -> None:
        connecting = psycopg.AsyncConnection.connect(dsn, autocommit=True)
        async with AsyncConnectionPool(dsn, open=False) as pool, await connecting as connection:
            provider = AsyncPostgresProvider(pool if is_pool else connection)
            writer = AsyncKnowledgeWriter(connection)
            calls: list[Callable[[], Awaitable[Any]]] = [
                lambda: provider.fulltext_search("heron", timeout=30.0),
                lambda: writer.upsert_document(DOCUMENT, CHUNKS),
            ]
            for call in calls:
                await call()

                def child(call: Any = call) -> Any:
                    NO_LOOP(None)
                    return in_loop(call)()

                assert_refused(in_fork(child))
                await call()

    asyncio.run(ask())


RIGHT: dict[str, Callable[[str], Call]] = {
    "a provider with a connection string": searching,
    "a store with a connection string": reading,
    "a service with a connection string": serving,
    "a pool that the child opens": lambda dsn: (lambda pool: in_loop(lambda: _within(pool)))(
        async_connection_pool(dsn)
    ),
    "a pool of the child's": lambda dsn: lambda: _pool_of_its_own(dsn),
}


async def _within(pool: Any) -> int:
    async with pool:
        return len((await AsyncPostgresProvider(pool).fulltext_search("heron"))[0])


def _pool_of_its_own(dsn: str) -> Any:
    with connection_pool(dsn, max_size=1) as pool:
        return search(PostgresProvider(pool))


@pytest.mark.parametrize("name", RIGHT)
def test_what_the_child_opens_itself_works(name: str, stack: ExitStack, dsn: str) -> None:
    # Sockets of the parent are open meanwhile.
    search(PostgresProvider(pooled(stack, dsn)))
    outcome = in_fork(RIGHT[name](dsn))
    assert not isinstance(outcome, Exception), repr(outcome)


def test_over_rest_a_child_has_connections_of_its_own(gateway: Gateway) -> None:
    gateway.answer = Answer(body=[HYBRID_ROW])
    with SupabaseProvider(config(gateway), on_error="raise") as provider:

        def call() -> int:
            return len(provider.hybrid_search(None, "zebra")[0])

        assert call() == 1
        before = gateway.connections
        assert call() == 1
        assert gateway.connections == before
        assert in_fork(call) == 1
        assert gateway.connections == before + 1
        assert in_fork(provider.close) is None
        assert call() == 1
        assert gateway.connections == before + 1


@pytest.mark.filterwarnings("ignore:.*parameter is deprecated:DeprecationWarning")
def test_over_rest_the_callers_client_is_refused_in_a_child_once_it_was_used(
    gateway: Gateway,
) -> None:
    from supabase import create_client

    gateway.answer = Answer(body=[HYBRID_ROW])
    given = config(gateway)
    client = create_client(given["supabase_url"], given["supabase_key"])
    provider = SupabaseProvider(client=client, on_error="raise")

    def call() -> int:
        return len(provider.hybrid_search(None, "zebra")[0])

    assert in_fork(call) == 1
    assert call() == 1
    assert_refused(in_fork(call))
    client.postgrest.session.close()


async def test_over_rest_a_loop_of_a_child_has_connections_of_its_own(gateway: Gateway) -> None:
    gateway.answer = Answer(body=[HYBRID_ROW])
    provider = AsyncSupabaseProvider(config(gateway), on_error="raise")
    await provider.hybrid_search(None, "zebra")
    before = gateway.connections

    def child() -> int:
        NO_LOOP(None)
        return len(asyncio.run(provider.hybrid_search(None, "zebra"))[0])

    assert in_fork(child) == 1
    assert gateway.connections == before + 1
    await provider.close()


def test_every_failure_of_a_child_is_one_of_the_package(stack: ExitStack, dsn: str) -> None:
    provider = PostgresProvider(pooled(stack, dsn), on_error="empty")
    _, details = in_fork(lambda: provider.fulltext_search("heron"))
    assert details["error_kind"] == "configuration"
    assert issubclass(ConfigurationError, SecondBrainError)
