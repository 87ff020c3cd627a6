"""Databases that do not answer, whose statistics differ, or that are sent what none made."""

import asyncio
import socket
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Semaphore
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.types.json import Jsonb
from psycopg_pool import AsyncConnectionPool
from shards import Corpus, databases, fill

from conftest import Connection, Server
from second_brain.database import migrations
from second_brain.database.embedded import EmbeddedPostgres
from second_brain.distributed.sharded import AsyncShardedProvider, ShardedProvider
from second_brain.distributed.shared_statistics import refresh_shared_statistics
from second_brain.errors import InvalidInputError, SecondBrainError
from second_brain.services.postgres import AsyncPostgresProvider, PostgresProvider
from second_brain.services.write import KnowledgeWriter

pytestmark = pytest.mark.module("shards")

NAMES = ("east", "west")
TIMEOUT = 6.0


@pytest.fixture(scope="module")
def corpus(server: Server) -> Iterator[Corpus]:
    with databases(server, *NAMES) as made:
        fill(made, 30)
        yield made


@pytest.fixture
def silent() -> Iterator[str]:
    """The DSN of a server that takes connections and never says anything."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"postgresql://postgres:secret@127.0.0.1:{listening.getsockname()[1]}/postgres"


def of_all(corpus: Corpus) -> dict[str, Any]:
    return {name: PostgresProvider(pool) for name, pool in corpus.pools.items()}


def test_a_stopped_server_is_named_and_the_others_answer(
    corpus: Corpus, pytestconfig: pytest.Config
) -> None:
    with tempfile.TemporaryDirectory(prefix="second-brain-shard-") as folder:
        Path(folder).chmod(0o711)
        server = EmbeddedPostgres(
            Path(folder) / "postgres", pytestconfig.getoption("--postgres-major"), {}
        )
        with server:
            migrations.apply(server.dsn(), dimensions=3, modules=migrations.modules())
            dsn = server.dsn()
            with psycopg.connect(dsn, autocommit=True) as connection:
                writer = KnowledgeWriter(connection)
                writer.upsert_document({"external_key": "far"}, [{"content": "amber"}])
            shards = {**of_all(corpus), "far": PostgresProvider(dsn)}
            with ShardedProvider(shards, timeout=TIMEOUT) as provider:
                hits, details = provider.hybrid_search(None, "amber", top_k=100)
                assert "far" in [hit.metadata["external_key"] for hit in hits]
                assert "missing_shards" not in details
                server.stop()
                begun = time.monotonic()
                rest, details = provider.hybrid_search(None, "amber", top_k=100)
                assert time.monotonic() - begun < TIMEOUT
            with ShardedProvider(
                shards, on_missing="error", timeout=TIMEOUT, on_error="empty"
            ) as strict:
                nothing, failed = strict.hybrid_search(None, "amber")
        server.remove()
    assert {hit.id for hit in rest} == {hit.id for hit in hits} - {
        hit.id for hit in hits if hit.metadata["external_key"] == "far"
    }
    assert list(details["missing_shards"]) == ["far"]
    assert (nothing, failed["error_kind"]) == ([], "unavailable")


def test_a_silent_server_is_named_within_the_deadline_and_not_asked_at_once_again(
    corpus: Corpus, silent: str
) -> None:
    shards = {**of_all(corpus), "far": PostgresProvider(silent)}
    with ShardedProvider(shards, timeout=TIMEOUT) as provider:
        for most in (TIMEOUT, 0.4 * TIMEOUT):
            begun = time.monotonic()
            hits, details = provider.find(None, "amber", top_k=100)
            assert time.monotonic() - begun < most
            assert list(details["missing_shards"]) == ["far"]
            assert "secret" not in str(details)
            assert hits


@pytest.mark.parametrize(("is_reached", "kind"), [(True, "module_missing"), (False, "unavailable")])
@pytest.mark.parametrize("among_others", [True, False])
def test_an_error_names_the_database_that_fails(
    corpus: Corpus, plain_dsn: str, is_reached: bool, kind: str, among_others: bool
) -> None:
    far = PostgresProvider(plain_dsn if is_reached else make_conninfo(plain_dsn, port="1"))
    shards = {**(of_all(corpus) if among_others else {}), "far": far}
    with (
        ShardedProvider(shards, on_missing="error", timeout=TIMEOUT) as provider,
        pytest.raises(SecondBrainError, match=r"^database far: ") as failed,
    ):
        provider.find(None, "amber")
    assert failed.value.kind == kind
    assert str(conninfo_to_dict(plain_dsn)["password"]) not in str(failed.value)


def test_a_database_that_hangs_leaves_the_others_their_threads(corpus: Corpus) -> None:
    searches = 30
    goes_on, asked = Event(), Semaphore(0)

    class Hanging(PostgresProvider):
        async def _send(self, *call: Any) -> object:
            goes_on.wait(60)
            return await super()._send(*call)

    class Answering(PostgresProvider):
        async def _send(self, *call: Any) -> object:
            answer = await super()._send(*call)
            asked.release()
            return answer

    shards = {"east": Answering(corpus.pools["east"]), "west": Hanging(corpus.pools["west"])}
    with (
        ShardedProvider(shards, timeout=None) as provider,
        ThreadPoolExecutor(searches) as threads,
    ):
        found = [threads.submit(provider.find, None, "amber") for _ in range(searches)]
        try:
            assert all(asked.acquire(timeout=TIMEOUT) for _ in range(searches))
        finally:
            goes_on.set()
        assert not any("missing_shards" in one.result()[1] for one in found)


def test_the_asynchronous_provider_gives_the_same(corpus: Corpus, silent: str) -> None:
    async def ask() -> tuple[list[str], list[str]]:
        pools = {
            name: AsyncConnectionPool(pool.conninfo, min_size=1, max_size=4, open=False)
            for name, pool in corpus.pools.items()
        }
        for pool in pools.values():
            await pool.open()
        shards = {name: AsyncPostgresProvider(pool) for name, pool in pools.items()}
        shards["far"] = AsyncPostgresProvider(silent)
        hits, details = await AsyncShardedProvider(shards, timeout=TIMEOUT).find(
            [0.1, 0.2, 0.3], "amber", top_k=20
        )
        for pool in pools.values():
            await pool.close()
        return [hit.id for hit in hits], list(details["missing_shards"])

    with corpus.provider() as provider:
        expected, _ = provider.find([0.1, 0.2, 0.3], "amber", top_k=20)
    assert asyncio.run(ask()) == ([hit.id for hit in expected], ["far"])


@pytest.mark.module("insight", "embedding_queue")
def test_the_other_methods_add_up(corpus: Corpus) -> None:
    one = PostgresProvider(corpus.one)
    with corpus.provider() as provider:
        assert provider.search([0.1, 0.2, 0.3], threshold=0.2)[0] != []
        for method in ("search", "fulltext_search"):
            question: Any = [0.1, 0.2, 0.3] if method == "search" else "amber basil"
            expected, _ = getattr(one, method)(question)
            hits, _ = getattr(provider, method)(question)
            assert [(hit.id, round(hit.confidence, 6)) for hit in hits] == [
                (hit.id, round(hit.confidence, 6)) for hit in expected
            ]
        facets = ["collection", "knowledge_type"]
        assert provider.count_facets(None, "amber", facets) == one.count_facets(
            None, "amber", facets
        )
        assert provider.embedding_models() == one.embedding_models()
        hits, details = provider.find(None, "amber", exact_total=True)
        assert details["exact_total"] == one.find(None, "amber", exact_total=True)[1]["exact_total"]
        assert hits[0].metadata["document_id"] is not None
        read = provider.read_document(hits[0].metadata["document_id"])
        assert read == one.read_document(hits[0].metadata["document_id"])
        batch, _ = provider.hybrid_search_batch([{"query_text": "amber"}, {"query_text": "basil"}])
        assert [[hit.id for hit in hits] for hits in batch] == [
            [hit.id for hit in one.find(None, text)[0]] for text in ("amber", "basil")
        ]
        explained = provider.explain_hybrid_search(None, "amber")
        assert list(explained["shards"]) == list(NAMES)
        with pytest.raises(InvalidInputError, match="match_count"):
            provider.find(None, "amber", top_k=0)
        with pytest.raises(SecondBrainError, match="backend"):
            provider.count_my_facets(None, "amber", facets)


def test_statistics_that_were_set_stay_until_they_are_set_again(server: Server) -> None:
    with databases(server, *NAMES) as corpus:
        fill(corpus, 20)
        shared = refresh_shared_statistics(corpus.shards)
        east = corpus.shards["east"]
        read = "select shared_id, document_count from public.knowledge_corpus_statistics"
        (stored,) = east.execute(read).fetchall()
        count = corpus.one.execute("select count(*) from public.knowledge_chunks").fetchall()[0][0]
        assert stored == (shared.id, count) == (shared.id, shared.chunks)
        writer = KnowledgeWriter(east)
        writer.upsert_document({"external_key": "more"}, [{"content": "amber"}])
        east.execute("analyze public.knowledge_chunks")
        assert writer.refresh_statistics() is True
        assert east.execute(read).fetchall() == [stored]
        east.execute("select public.set_knowledge_statistics()")
        ((own_id, own_count),) = east.execute(read).fetchall()
        assert (own_id, own_count < count) == (None, True)


def old_statistics(database: Connection) -> int:
    ((health,),) = database.execute("select public.knowledge_search_health()").fetchall()
    return sum("shards refresh" in (found["remedy"] or "") for found in health["findings"])


@pytest.mark.module("insight")
def test_frequent_words_weigh_by_the_statistics_of_the_whole_corpus(server: Server) -> None:
    statistics = {
        "id": "whole",
        "document_count": 5000,
        "mean_length": 10,
        "cosine_spread": 0.2,
        "languages": ["english"],
        "frequencies": {"amber": 0.5},
    }
    with databases(server, *NAMES) as corpus:
        fill(corpus, 10)
        for shard in corpus.shards.values():
            shard.execute("select public.set_knowledge_statistics(%s)", [Jsonb(statistics)])
        with corpus.provider() as provider:
            scores = {
                word: max(hit.metadata["text_score"] or 0 for hit in provider.find(None, word)[0])
                for word in ("amber", "basil")
            }
            east = corpus.shards["east"]
            assert "uneven_statistics" not in provider.find(None, "amber")[1]
            east.execute(
                "select public.set_knowledge_statistics(%s)", [Jsonb({**statistics, "id": "other"})]
            )
            details = provider.find(None, "amber")[1]
            assert old_statistics(east) == 0
            east.execute(
                "update public.knowledge_corpus_statistics"
                " set refreshed_at = now() - interval '8 days', analysed_at = now()"
            )
            assert old_statistics(east) == 1
    # amber is in half of 5,000 chunks, basil in a few.
    assert 0 < 5 * scores["amber"] < scores["basil"]
    assert details["uneven_statistics"] is True


def test_the_newest_statistics_count_where_databases_have_different_ones(server: Server) -> None:
    now = {
        "document_count": 2000,
        "mean_length": 10,
        "cosine_spread": 0.2,
        "languages": ["english"],
        "frequencies": {"amber": 0.01},
    }
    newer = {**now, "id": "20260201T000000.000000 b"}
    # Those of a database that was restored, from when the corpus had more chunks.
    older = {
        **now,
        "id": "20260101T000000.000000 c",
        "document_count": 5000,
        "frequencies": {"amber": 0.5},
    }
    with databases(server, *NAMES) as corpus, corpus.provider() as provider:
        fill(corpus, 10)

        def scores(**sets: dict[str, Any]) -> list[float | None]:
            for name, statistics in sets.items():
                corpus.shards[name].execute(
                    "select public.set_knowledge_statistics(%s)", [Jsonb(statistics)]
                )
            return [hit.metadata["text_score"] for hit in provider.find(None, "amber")[0]]

        expected = scores(east=newer, west=newer)
        assert scores(east=older, west=older) != expected
        assert scores(east=newer) == scores(east=older, west=newer) == expected != []


def test_later_statistics_have_a_greater_id(corpus: Corpus) -> None:
    ids = [refresh_shared_statistics(corpus.shards).id for _ in range(2)]
    assert ids == sorted(set(ids))
    assert len(ids) == 2


LIST = {
    "formulation": 1,
    "text_strategy": "all rows",
    "text_ids": ["00000000-0000-0000-0000-000000000001"],
    "text_scores": [1],
    "identifier_bonus": 5,
}
AMBER = Jsonb({"query_text": "amber"})


@pytest.mark.parametrize(
    ("candidates", "said"),
    [
        (None, "candidates"),
        ({}, "candidates"),
        ([], "candidates"),
        ([{"lists": 3}], "ranked_lists"),
        ([{"lists": [3]}], "ranked_lists"),
        ([{"lists": [{**LIST, "text_scores": ["NaN"]}]}], "ranked_lists"),
        ([{"lists": [{**LIST, "text_scores": [1e300]}]}], "ranked_lists"),
        ([{"lists": [{**LIST, "text_scores": ["a"]}]}], "candidates"),
        ([{"lists": [{**LIST, "text_scores": [1, 1]}]}], "ranked_lists"),
        ([{"lists": [{**LIST, "similarities": [7], "vector_ids": LIST["text_ids"]}]}], "lists"),
        ([{"lists": [{**LIST, "text_ids": ["x'; select 1"]}]}], "uuid"),
        ([{"lists": [{**LIST, "text_ids": [None]}]}], "ranked_lists"),
        ([{"lists": [{**LIST, "formulation": 0}]}], "ranked_lists"),
        ([{"lists": [{**LIST, "identifier_bonus": -1}]}], "ranked_lists"),
        ([{"lists": [LIST] * 101}], "at most 100 lists"),
        ([{"lists": [LIST], "chunks": {"x": {}}}], "candidates"),
        ([{"lists": [LIST], "chunks": 3}], "candidates"),
    ],
    ids=str,
)
def test_candidates_that_no_database_made_are_refused(
    corpus: Corpus, candidates: Any, said: str
) -> None:
    east = corpus.shards["east"]
    ((reading,),) = east.execute("select public.read_knowledge_question(%s)", [AMBER]).fetchall()
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=said):
        east.execute(
            "select public.fuse_knowledge_candidates(%s, %s, %s)",
            [Jsonb({"query_text": "amber", "fusion": "auto"}), Jsonb([reading]), Jsonb(candidates)],
        )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"languages": ["klingon"]}, "klingon"),
        ({"languages": ["no.such"]}, "readings"),
        ({"languages": ["a.b.c.d"]}, "readings"),
        ({"languages": ["999999"]}, "readings"),
        ({"counted": {"amber": -1}}, "a count"),
        ({"counted": {"amber": "x"}}, "readings"),
        ({"counted": []}, "readings"),
        ({"corpus": {"document_count": 1e300, "mean_length": 3}}, "document_count"),
        ({"corpus": None}, "readings"),
        ({"fusion": "best"}, "readings"),
        ({"expansions": [{"typed": "a", "lexeme": "b", "share": 9}]}, "a share"),
        ({"unknown": {"amber": {"basil": "many"}}}, "readings"),
    ],
    ids=str,
)
def test_readings_that_no_database_made_are_refused(
    corpus: Corpus, change: dict[str, Any], said: str
) -> None:
    east = corpus.shards["east"]
    ((reading,),) = east.execute("select public.read_knowledge_question(%s)", [AMBER]).fetchall()
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=said):
        east.execute(
            "select public.knowledge_candidates(%s, %s)",
            [AMBER, Jsonb([{**reading, **change}])],
        )


def test_a_page_gives_no_chunk_that_the_viewer_may_not_see(corpus: Corpus) -> None:
    east = corpus.shards["east"]
    search = Jsonb({"query_text": "amber", "public_only": True})
    ((reading,),) = east.execute("select public.read_knowledge_question(%s)", [search]).fetchall()
    visible, hidden = (
        [
            str(id_)
            for (id_,) in east.execute(
                "select id from public.knowledge_chunks where visibility = %s", [visibility]
            )
        ]
        for visibility in ("public", "private")
    )
    listed = [*visible, *hidden]
    scores = [1.0] * len(listed)
    page: dict[str, Any] = {
        "hits": [{"id": id_} for id_ in listed],
        "ranked_lists": {
            "lists": [{**LIST, "text_ids": listed, "text_scores": scores}],
            "chunks": {id_: {} for id_ in listed},
        },
    }
    shown = "select id::text from public.knowledge_candidate_hits(%s, %s, %s)"
    wide = Jsonb({"query_text": "amber", "public_only": True, "match_count": 1000})
    returned = east.execute(shown, [wide, Jsonb([reading]), Jsonb(page)]).fetchall()
    assert {id_ for (id_,) in returned} == set(visible)
    assert visible
    assert hidden
    for wrong in ({"hits": 5}, {**page, "hits": [{"id": 5}]}, {**page, "ranked_lists": {}}):
        with pytest.raises(psycopg.errors.InvalidParameterValue, match=r"page|ranked_lists"):
            east.execute(shown, [search, Jsonb([reading]), Jsonb(wrong)])
