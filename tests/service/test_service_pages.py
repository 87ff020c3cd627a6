"""Pages of the retrieval service: every hit of one list, once, and why the list ends."""

import asyncio

import psycopg
import pytest

from second_brain import AsyncRetrievalService, RetrievalService
from second_brain.models import CallableEmbedder
from second_brain.services.postgres import AsyncPostgresProvider, PostgresProvider

CHUNKS = 60
EMBEDDER = CallableEmbedder(lambda texts: [[1.0, 0.0, 0.0]] * len(texts), "by-hand", 3)


@pytest.fixture
def filled(emptied_dsn: str) -> str:
    with psycopg.connect(emptied_dsn, autocommit=True) as connection:
        connection.execute(
            "insert into public.knowledge_chunks (content)"
            " select 'camera ' || number from generate_series(1, %s) as row (number)",
            [CHUNKS],
        )
    return emptied_dsn


def test_the_pages_have_every_hit_once(filled: str) -> None:
    service = RetrievalService(PostgresProvider(filled), EMBEDDER)
    # More hits than the default pool of 50 holds.
    pages = list(service.search_pages("camera", limit=25, mode="text"))
    assert [len(page.results) for page in pages] == [25, 25, 10]
    assert len({hit.id for page in pages for hit in page.results}) == CHUNKS
    assert [hit.rank for page in pages for hit in page.results] == list(range(1, CHUNKS + 1))
    assert not pages[-1].pool_ended


def test_an_event_loop_has_the_same_pages(filled: str) -> None:
    service = RetrievalService(PostgresProvider(filled), EMBEDDER)

    async def search() -> list[list[str]]:
        asynchronous = AsyncRetrievalService(AsyncPostgresProvider(filled), EMBEDDER)
        pages = asynchronous.search_pages("camera", limit=25, mode="text")
        return [[hit.id for hit in page.results] async for page in pages]

    expected = [
        [hit.id for hit in page.results]
        for page in service.search_pages("camera", limit=25, mode="text")
    ]
    assert asyncio.run(search()) == expected
