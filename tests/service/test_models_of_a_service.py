"""RetrievalService: its reranker, the embedder of the corpus, and models on an event loop."""

import asyncio
import os
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from psycopg.conninfo import conninfo_to_dict
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
    fill,
    make,
    out_of_order,
    ranks,
    unreachable,
)

from conftest import Server, copy_of
from second_brain.errors import ConfigurationError, DimensionMismatchError, MissingExtraError
from second_brain.models import CallableEmbedder
from second_brain.retrieval.answer import SearchResponse
from second_brain.retrieval.service import AsyncRetrievalService, RetrievalService
from second_brain.retrieval.settings import SearchSettings
from second_brain.services.postgres import AsyncPostgresProvider, PostgresProvider
from support.databases import query

__all__ = ["corpus", "make"]  # fixtures

UPDATE = "update public.knowledge_chunks"


def test_a_reranked_list_is_ordered_by_the_reranker(make: Make, corpus: str) -> None:
    response = make(corpus, reranker=out_of_order)("leaked key", mode="rerank", limit=3)
    assert contents(response) == [REMINDER, ROTATION, CREDIT_NOTE]
    assert [one.rerank_score for one in response.results] == [4.0, 3.0, 2.0]
    fused = contents(make(corpus)("leaked key"))
    assert [fused[one.original_rank - 1] for one in response.results if one.original_rank] == (
        contents(response)
    )
    assert (response.mode, response.mode_used) == ("rerank", "rerank")
    assert [one.score for one in response.results] == [one.confidence for one in response.results]
    assert response.timings.rerank > 0


def test_a_reranker_sees_the_question_and_five_candidates_for_each_result(
    make: Make, corpus: str
) -> None:
    seen: list[tuple[str, int]] = []

    def noting(question: str, passages: Sequence[str]) -> list[float]:
        seen.append((question, len(passages)))
        return [0.0] * len(passages)

    search = make(corpus, reranker=noting, rerank_cache_max_entries=0)
    search("leaked key", mode="rerank", limit=1)
    search("leaked key", mode="rerank", limit=1, offset=4)
    make(corpus, reranker=noting, reranking_candidate_multiplier=2)(
        "leaked key", mode="rerank", limit=2
    )
    make(corpus, reranker=noting, max_hybrid_search_results=3)("leaked key", mode="rerank", limit=2)
    assert seen == [("leaked key", size) for size in (5, 5, 4, 3)]


def test_a_passage_is_scored_once_for_a_question(make: Make, corpus: str) -> None:
    seen: list[int] = []

    def noting(question: str, passages: Sequence[str]) -> list[float]:
        seen.append(len(passages))
        return [float(len(passage)) for passage in passages]

    search = make(corpus, reranker=noting, reranking_candidate_multiplier=1)
    first = search("leaked key", mode="rerank", limit=2)
    again = search("leaked key", mode="rerank", limit=2)
    assert again.results == first.results
    assert seen == [2]
    # Only the candidates that are new, and all of them for another question.
    wider = search("leaked key", mode="rerank", limit=4)
    assert seen == [2, 2]
    assert [one.rerank_score for one in wider.results] == sorted(
        (float(len(one.content)) for one in wider.results), reverse=True
    )
    search("leaked keys", mode="rerank", limit=2)
    assert seen == [2, 2, 2]


def test_equal_scores_keep_the_fused_order(make: Make, corpus: str) -> None:
    search = make(corpus, reranker=lambda question, passages: np.zeros(len(passages)))
    assert contents(search("leaked key", mode="rerank")) == contents(search("leaked key"))


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_pages_of_a_reranked_list_neither_repeat_nor_lose_a_row(
    make: Make, corpus: str, limit: int
) -> None:
    search = make(corpus, reranker=out_of_order)
    pages = [
        search("leaked key", mode="rerank", limit=limit, offset=at) for at in range(0, 6, limit)
    ]
    assert [one for page in pages for one in contents(page)] == (
        sorted([CREDIT_NOTE, REMINDER, RECORDER, ROTATION, LEAK], reverse=True)
    )
    assert [rank for page in pages for rank in ranks(page)] == [1, 2, 3, 4, 5]
    assert {page.total_count for page in pages} == {5}


@pytest.mark.parametrize(
    "given", [{"use_reranking": True}, {"search_default_mode": "rerank"}], ids=str
)
def test_a_service_that_reranks_by_default_needs_its_model_when_it_is_made(
    make: Make, corpus: str, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]
) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(MissingExtraError):
        make(corpus, **given)


def test_nothing_found_is_not_reranked(make: Make, corpus: str) -> None:
    def refusing(question: str, passages: Sequence[str]) -> list[float]:
        raise AssertionError

    response = make(corpus, reranker=refusing)("key", mode="rerank", tags=["none"])
    assert (response.results, response.total_count, response.degraded) == ([], 0, None)


def test_a_question_of_another_model_is_refused_with_both_names(make: Make, corpus: str) -> None:
    with pytest.raises(ConfigurationError, match=r"by-hand \(3 dim.*other-model \(3 dim"):
        make(corpus, CallableEmbedder(embedded, "other-model", 3))("leaked key")


def test_of_several_embedders_the_corpus_chooses(make: Make, corpus: str) -> None:
    others = [CallableEmbedder(unreachable, "other-model", 3), BY_HAND]
    response = make(corpus, others)("leaked key")
    assert response.embedding_model == "by-hand"
    assert response.degraded is None


def test_chunks_that_name_no_model_are_any_model_s_of_their_size(make: Make, dsn: str) -> None:
    fill(dsn, model=None)
    assert contents(make(dsn)("leaked key", mode="vector"))[0] == LEAK
    with pytest.raises(ConfigurationError, match="not named"):
        make(dsn, CallableEmbedder(embedded, "small", 2))("leaked key")


@pytest.mark.slow
def test_one_chunk_without_a_model_does_not_open_the_corpus_to_another(
    make: Make, dsn: str
) -> None:
    fill(dsn)
    query(dsn, f"{UPDATE} set embedding_model = null where content = '{LEAK}'")
    with pytest.raises(ConfigurationError, match="by-hand"):
        make(dsn, CallableEmbedder(embedded, "other-model", 3))("leaked key")


def test_of_two_models_in_the_corpus_the_more_frequent_one_is_asked(
    make: Make, dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    fill(dsn)
    query(dsn, f"{UPDATE} set embedding_model = 'new' where content = '{LEAK}'")
    response = make(dsn, [CallableEmbedder(embedded, "new", 3), BY_HAND])("leaked key")
    assert response.embedding_model == "by-hand"
    assert "1 embeddings of another model than by-hand" in caplog.text


def test_an_empty_corpus_takes_any_embedder(make: Make, dsn: str) -> None:
    response = make(dsn)("leaked key")
    assert (response.results, response.total_count) == ([], 0)


def test_no_embedder_at_all_is_refused(corpus: str) -> None:
    with pytest.raises(ConfigurationError, match="embedder"):
        RetrievalService(PostgresProvider(corpus), [])


def test_a_corpus_that_changes_its_model_is_found_again(make: Make, server: Server) -> None:
    """The old corpus and the new one change places under one name, as a re-embedding does."""
    small = CallableEmbedder(lambda texts: embedded(texts, 2), "small", 2)
    database = contextmanager(copy_of)
    with database(server, server.template(3)) as old, database(server, server.template(2)) as new:
        fill(old)
        fill(new, "small", 2)
        search = make(old, [BY_HAND, small])
        assert search("recorder").embedding_model == "by-hand"
        old_name, new_name = (str(conninfo_to_dict(one)["dbname"]) for one in (old, new))
        swaps = ((old_name, "swapped"), (new_name, old_name), ("swapped", new_name))
        query(server.admin_dsn(), *(f"alter database {one} rename to {two}" for one, two in swaps))
        response = search("recorder")
        assert (response.embedding_model, response.mode_used) == ("small", "hybrid")
        assert contents(response)[0] == RECORDER


def test_dimensions_that_no_embedder_has_are_an_error(make: Make, dsn: str) -> None:
    with pytest.raises(DimensionMismatchError):
        make(dsn, CallableEmbedder(lambda texts: embedded(texts, 2), "small", 2))("leaked key")


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
