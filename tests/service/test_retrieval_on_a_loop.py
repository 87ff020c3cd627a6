"""RetrievalService: threads, forks, and models that are awaited on a loop."""

import asyncio
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from psycopg_pool import ConnectionPool
from retrieving import (
    BY_HAND,
    CREDIT_NOTE,
    LEAK,
    RECORDER,
    REMINDER,
    ROTATION,
    Make,
    async_search,
    contents,
    corpus,
    embedded,
    make,
    out_of_order,
)

from second_brain.errors import ConfigurationError
from second_brain.models import CallableEmbedder
from second_brain.retrieval.answer import SearchResponse
from second_brain.retrieval.service import AsyncRetrievalService, RetrievalService
from second_brain.retrieval.settings import SearchSettings
from second_brain.services.postgres import AsyncPostgresProvider, PostgresProvider

__all__ = ["corpus", "make"]  # fixtures


def test_one_service_serves_many_threads(corpus: str) -> None:
    questions = ["leaked key", "invoice", "recorder", "reminder"] * 8
    with ConnectionPool(corpus, min_size=1, max_size=4, open=True) as pool:
        settings = SearchSettings(search_fusion="auto")
        service = RetrievalService(PostgresProvider(pool), BY_HAND, settings=settings)
        with ThreadPoolExecutor(8) as threads:
            found = list(threads.map(lambda one: contents(service.search(one))[0], questions))
    assert found == [LEAK, CREDIT_NOTE, RECORDER, REMINDER] * 8


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_service_that_has_searched_serves_a_forked_process(corpus: str) -> None:
    service = RetrievalService(PostgresProvider(corpus), BY_HAND)
    assert service.search("leaked key").mode_used == "hybrid"
    child = os.fork()
    if child == 0:
        is_whole = False
        try:
            is_whole = service.search("leaked key", timeout=60).degraded is None
        finally:
            os._exit(0 if is_whole else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_an_embedder_that_raises_stop_iteration_fails_at_once(make: Make, corpus: str) -> None:
    def stop(_: Sequence[str]) -> list[list[float]]:
        raise StopIteration

    search = make(corpus, CallableEmbedder(stop, "by-hand", 3), search_timeout_seconds=60)
    degraded = search("leaked key").degraded
    assert degraded is not None
    assert degraded.kind == "error"


class AwaitedEmbedder:
    """An embedder whose calls are awaited on the event loop."""

    model = "by-hand"
    dimensions = 3

    def __init__(self) -> None:
        self.thread: int | None = None

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.thread = threading.get_ident()
        await asyncio.sleep(0)
        return np.array(embedded(texts), np.float32)


class AwaitedQueryEmbedder(AwaitedEmbedder):
    """One that embeds questions differently from chunks."""

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Refuse: this is for chunks."""
        raise AssertionError

    async def embed_query(self, text: str) -> NDArray[np.float32]:
        return (await super().embed([text]))[0]  # type: ignore[no-any-return]


async def awaited_scores(question: str, passages: Sequence[str]) -> list[float]:
    await asyncio.sleep(0)
    return out_of_order(question, passages)


@pytest.mark.parametrize("kind", [AwaitedEmbedder, AwaitedQueryEmbedder])
def test_awaitable_models_are_awaited_on_the_loop(corpus: str, kind: type[AwaitedEmbedder]) -> None:
    embedder = kind()
    response = async_search(corpus, embedder, awaited_scores)(
        "leaked key", mode="rerank", formulations=["invoice"]
    )
    assert response.degraded is None
    assert response.mode_used == "rerank"
    assert embedder.thread == threading.get_ident()


@pytest.mark.parametrize(
    ("embedder", "reranker"), [(AwaitedEmbedder(), None), (BY_HAND, awaited_scores)]
)
def test_a_service_without_an_event_loop_refuses_what_is_awaited(
    corpus: str, embedder: Any, reranker: Any
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        RetrievalService(PostgresProvider(corpus), embedder, reranker)
    assert "AsyncRetrievalService" in refused.value.remedy


def test_a_blocking_embedder_does_not_block_the_loop(corpus: str) -> None:
    loop_turned = threading.Event()

    def waiting(texts: Sequence[str]) -> list[list[float]]:
        if not loop_turned.wait(60):
            raise TimeoutError
        return embedded(texts)

    async def searching() -> SearchResponse:
        service = AsyncRetrievalService(
            AsyncPostgresProvider(corpus), CallableEmbedder(waiting, "by-hand", 3)
        )
        search = asyncio.create_task(service.search("leaked key"))
        await asyncio.sleep(0)
        loop_turned.set()
        return await search

    assert asyncio.run(searching()).degraded is None


def test_a_stuck_awaitable_embedder_leaves_time_to_search_by_words(
    corpus: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stuck(AwaitedEmbedder):
        async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
            await asyncio.Event().wait()
            raise AssertionError

    monkeypatch.setattr("second_brain.retrieval.embedding.EMBEDDING_SHARE", 0.005)
    response = async_search(corpus, Stuck())("leaked key", timeout=60)
    assert contents(response)[:2] == [LEAK, ROTATION]
    assert response.degraded is not None
    assert response.degraded.kind == "timeout"


def test_a_cancelled_search_stops(corpus: str, caplog: pytest.LogCaptureFixture) -> None:
    async def searching() -> None:
        is_asked = asyncio.Event()

        class Stuck(AwaitedEmbedder):
            async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
                is_asked.set()
                await asyncio.Event().wait()
                raise AssertionError

        service = AsyncRetrievalService(AsyncPostgresProvider(corpus), Stuck())
        search = asyncio.create_task(service.search("leaked key"))
        await is_asked.wait()
        search.cancel()
        with pytest.raises(asyncio.CancelledError):
            await search

    asyncio.run(searching())
    assert "failed: CancelledError" in caplog.text
