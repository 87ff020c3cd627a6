"""One connection that several threads, or tasks, use at once: their calls wait for each other."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from langchain_core.embeddings import Embeddings

from conftest import Server, copy_of
from second_brain import AsyncPostgresProvider, PostgresProvider
from second_brain.errors import ClientTimeoutError
from second_brain.integrations.langchain import SecondBrainVectorStore
from second_brain.services.connection_calls import lock_of
from second_brain.services.write import KnowledgeWriter

AT_ONCE = 16


class Embedded(Embeddings):
    """Embeds by hand."""

    def embed_query(self, text: str) -> list[float]:
        return [0.0, 1.0, float(len(text))]

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]


@pytest.fixture(params=[True, False], ids=["autocommit", "transactions"])
def connection(server: Server, request: pytest.FixtureRequest) -> Iterator[psycopg.Connection[Any]]:
    for dsn in copy_of(server, server.template(3)):
        with psycopg.connect(dsn, autocommit=request.param) as one:
            yield one


def test_searches_and_writes_of_threads_wait_for_each_other(
    connection: psycopg.Connection[Any],
) -> None:
    KnowledgeWriter(connection).upsert_document({"external_key": "a"}, [{"content": "a heron"}])
    provider = PostgresProvider(connection)

    def call(number: int) -> int:
        if number % 4 == 0:
            writer = KnowledgeWriter(connection)
            writer.upsert_document({"external_key": str(number)}, [{"content": "an egret"}])
        hits, _ = provider.fulltext_search("heron", timeout=60.0)
        return len(hits)

    with ThreadPoolExecutor(AT_ONCE) as threads:
        assert list(threads.map(call, range(AT_ONCE))) == [1] * AT_ONCE
    assert len(provider.fulltext_search("egret")[0]) == AT_ONCE // 4


async def test_a_store_on_one_connection_takes_calls_at_once(
    connection: psycopg.Connection[Any],
) -> None:
    store = SecondBrainVectorStore(connection, Embedded())
    added = [store.aadd_texts([f"heron {n}"], ids=[str(n)]) for n in range(AT_ONCE)]
    await asyncio.gather(*added)
    found = await asyncio.gather(*(store.asimilarity_search("heron", k=50) for _ in range(AT_ONCE)))
    assert [len(one) for one in found] == [AT_ONCE] * AT_ONCE


async def test_tasks_of_a_loop_wait_for_each_other(connection: psycopg.Connection[Any]) -> None:
    KnowledgeWriter(connection).upsert_document({"external_key": "a"}, [{"content": "a heron"}])
    connection.commit()
    dsn = connection.info.dsn
    password = connection.info.password
    async with await psycopg.AsyncConnection.connect(dsn, password=password) as shared:
        provider = AsyncPostgresProvider(shared)
        calls = [provider.fulltext_search("heron", timeout=60.0) for _ in range(AT_ONCE)]
        assert [len(hits) for hits, _ in await asyncio.gather(*calls)] == [1] * AT_ONCE


def test_a_call_waits_no_longer_than_its_timeout(connection: psycopg.Connection[Any]) -> None:
    taken, free = threading.Event(), threading.Event()

    def hold() -> None:
        with lock_of(connection):
            taken.set()
            free.wait()

    holding = threading.Thread(target=hold)
    holding.start()
    taken.wait()
    try:
        with pytest.raises(ClientTimeoutError, match="in use by another call") as refused:
            PostgresProvider(connection).fulltext_search("heron", timeout=0.05)
    finally:
        free.set()
        holding.join()
    assert "pool" in refused.value.remedy
    assert PostgresProvider(connection).fulltext_search("heron")[0] == []
