"""Databases that are down, refuse or hang: the others answer, and wait for none twice."""

import asyncio
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest
from psycopg.conninfo import make_conninfo
from psycopg_pool import ConnectionPool
from shards import Corpus, databases, fill

from conftest import Server
from second_brain.distributed.sharded import AsyncShardedProvider, ShardedProvider
from second_brain.errors import SecondBrainError, UnavailableError
from second_brain.services import reachability
from second_brain.services.postgres import AsyncPostgresProvider, PostgresProvider

pytestmark = pytest.mark.module("shards")

NAMES = ("east", "far", "west")
OTHERS = ("east", "west")
PATIENCE = 60.0


@pytest.fixture(scope="module")
def corpus(server: Server) -> Iterator[Corpus]:
    with databases(server, *NAMES) as made:
        fill(made, 40)
        yield made


@pytest.fixture
def silent() -> Iterator[str]:
    """The DSN of a server that takes connections and never says anything."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"postgresql://postgres:secret@127.0.0.1:{listening.getsockname()[1]}/postgres"


class Far(PostgresProvider):
    """A database that can be down, or hang in one function."""

    def __init__(self, database: Any) -> None:
        super().__init__(database)
        self.asked: list[str] = []
        self.is_down = False
        self.hangs_in: str | None = None
        self.goes_on = Event()

    async def _send(
        self, function: str, arguments: dict[str, Any], timeout: float | None
    ) -> object:
        self.asked.append(function)
        if self.is_down:
            raise UnavailableError("connection refused")
        if self.hangs_in in (function, "all"):
            assert self.goes_on.wait(PATIENCE)
        return await super()._send(function, arguments, timeout)


@pytest.fixture
def far(corpus: Corpus) -> Iterator[Far]:
    far = Far(corpus.pools["far"])
    yield far
    far.goes_on.set()


def with_far(corpus: Corpus, far: PostgresProvider) -> dict[str, PostgresProvider]:
    return {name: far if name == "far" else PostgresProvider(corpus.pools[name]) for name in NAMES}


def found(provider: ShardedProvider) -> tuple[list[str], list[str]]:
    hits, details = provider.find([0.2, -0.5, 0.8], "amber river", top_k=10)
    return [hit.id for hit in hits], list(details.get("missing_shards", {}))


@pytest.mark.parametrize("kind", ["refused", "silent", "empty pool"])
def test_a_database_is_left_out_at_once_whatever_ended_the_wait(
    corpus: Corpus, silent: str, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(reachability, "FIRST_REST", PATIENCE)
    monkeypatch.setattr("second_brain.distributed.sharded.LONGEST_REST", PATIENCE)
    refused = make_conninfo(silent, port="1")
    with ConnectionPool(refused, min_size=1, timeout=0.3, open=False) as pool:
        far = Far({"refused": refused, "silent": silent, "empty pool": pool}[kind])
        with ShardedProvider(with_far(corpus, far), timeout=PATIENCE / 20) as provider:
            first = found(provider)
            asked = len(far.asked)
            assert [found(provider) for _ in range(3)] == 3 * [first]
            assert len(far.asked) == asked > 0
            assert first[0] != []
            assert first[1] == ["far"]


@pytest.mark.parametrize(
    "function",
    [
        "read_knowledge_question",
        "knowledge_candidates",
        "fuse_knowledge_candidates",
        "knowledge_candidate_hits",
    ],
)
def test_a_database_that_hangs_in_a_step_is_named_and_the_page_is_of_the_others(
    corpus: Corpus, far: Far, function: str
) -> None:
    of_far = {
        str(id_)
        for (id_,) in corpus.shards["far"].execute("select id from public.knowledge_chunks")
    }
    with corpus.provider() as provider:
        assert of_far & set(found(provider)[0])
    far.hangs_in = function
    with ShardedProvider(with_far(corpus, far), timeout=4.0) as provider:
        # Each time another database fuses.
        answers = [found(provider) for _ in NAMES]
    partial = [hits for hits, missing in answers if missing == ["far"]]
    assert len(partial) == 3 or (function == "fuse_knowledge_candidates" and partial)
    assert all(len(hits) == 10 and not of_far & set(hits) for hits in partial)


def test_one_search_tests_a_database_and_the_others_go_on(
    corpus: Corpus, far: Far, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reachability, "FIRST_REST", 0.0)
    with ShardedProvider(with_far(corpus, far), timeout=PATIENCE) as provider:
        complete = found(provider)
        far.is_down = True
        partial = found(provider)
        assert (complete[1], partial[1]) == ([], ["far"])
        far.is_down, far.hangs_in = False, "all"
        far.asked.clear()
        with ThreadPoolExecutor(8) as threads:
            answers = list(threads.map(lambda _: found(provider), range(16)))
        assert answers == 16 * [partial]
        assert far.asked == ["read_knowledge_question"]
        far.goes_on.set()
        give_up = time.monotonic() + PATIENCE
        while found(provider) != complete:
            assert time.monotonic() < give_up


def test_a_search_that_needs_all_fails_with_the_first_refusal_and_then_at_once(
    corpus: Corpus, far: Far, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reachability, "FIRST_REST", PATIENCE)
    monkeypatch.setattr("second_brain.distributed.sharded.LONGEST_REST", PATIENCE)
    far.is_down = True
    west = Far(corpus.pools["west"])
    west.hangs_in = "all"
    shards = {**with_far(corpus, far), "west": west}
    try:
        with ShardedProvider(shards, on_missing="error", timeout=PATIENCE) as provider:
            for said in ("connection refused", "did not answer a moment ago"):
                with pytest.raises(SecondBrainError, match=f"database far: .*{said}") as failed:
                    found(provider)
                assert failed.value.kind == "unavailable"
            assert far.asked == ["read_knowledge_question"]
    finally:
        west.goes_on.set()


def test_the_asynchronous_provider_leaves_it_out_and_asks_it_again(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reachability, "FIRST_REST", 0.0)
    is_down = True

    class AsyncFar(AsyncPostgresProvider):
        async def _send(self, *call: Any) -> object:
            if is_down:
                raise UnavailableError("connection refused")
            return await super()._send(*call)

    async def ask() -> None:
        nonlocal is_down
        shards = {
            name: (AsyncFar if name == "far" else AsyncPostgresProvider)(str(pool.conninfo))
            for name, pool in corpus.pools.items()
        }
        provider = AsyncShardedProvider(shards, timeout=PATIENCE)
        for _ in range(2):
            hits, details = await provider.find(None, "amber")
            assert hits
            assert list(details["missing_shards"]) == ["far"]
        is_down = False
        async with asyncio.timeout(PATIENCE):
            while "missing_shards" in details:
                _, details = await provider.find(None, "amber")

    asyncio.run(ask())
