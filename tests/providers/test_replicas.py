"""Searches on hot standbys: the same answers, lag, writes to wait for, and servers that fail."""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any

import psycopg
import pytest
from clusters import WORDS, Cluster, cluster, kill
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from second_brain import (
    AsyncReplicaProvider,
    PostgresProvider,
    ReplicaProvider,
    connection_pool,
    errors,
)
from second_brain.services.write import KnowledgeWriter
from waiting import until

__all__ = ["cluster"]  # a fixture

# Each has servers of its own.
pytestmark = pytest.mark.slow


@pytest.fixture
def provider(cluster: Cluster) -> Iterator[ReplicaProvider]:
    """A provider with a pool for each server; a replica may be a fifth of a second behind."""
    with ExitStack() as stack:
        pools = [
            stack.enter_context(connection_pool(dsn, max_size=4)) for dsn in addresses(cluster)
        ]
        yield ReplicaProvider(pools[0], pools[1:], max_lag=0.2, max_wait=0.3, on_error="empty")


def addresses(cluster: Cluster) -> list[str]:
    return [one.dsn() for one in (cluster.primary, *cluster.standbys)]


def without_pools(cluster: Cluster, **options: Any) -> ReplicaProvider:
    primary, *replicas = addresses(cluster)
    return ReplicaProvider(primary, replicas, **options, on_error="empty")


@pytest.fixture
def writer(cluster: Cluster) -> Iterator[KnowledgeWriter]:
    """A writer at the primary."""
    with psycopg.connect(cluster.primary.dsn(), autocommit=True) as connection:
        yield KnowledgeWriter(connection)


def write(writer: KnowledgeWriter, key: str) -> str:
    """Store a document of one chunk; return the position in the WAL."""
    writer.upsert_document({"external_key": key}, [{"content": f"{key} written"}])
    return writer.wal_position()


def found(provider: PostgresProvider, text: str) -> list[str | None]:
    hits, _ = provider.find(None, text, top_k=3)
    return [hit.metadata.get("external_key") for hit in hits]


def answered(provider: ReplicaProvider) -> list[int]:
    return [one.answered for one in provider.replicas]


class Searches:
    """Threads that search until the end of the block, and what they met."""

    def __init__(self, provider: PostgresProvider, threads: int = 3) -> None:
        self._provider = provider
        self._threads = [threading.Thread(target=self._search) for _ in range(threads)]
        self._is_over = threading.Event()
        self.searches = 0
        self.wrong: list[object] = []

    def _search(self) -> None:
        while not self._is_over.is_set():
            try:
                hits, _ = self._provider.find(
                    [1, 0, 0], "house beacon", top_k=20, fusion="rrf", one_per_document=True
                )
                first = {hit.metadata.get("external_key") for hit in hits}
                if not set(WORDS) <= first:
                    self.wrong.append(first)
            except errors.SecondBrainError as error:
                self.wrong.append(error)
            self.searches += 1

    def more(self, count: int = 30) -> None:
        """Wait until this many more searches have ended."""
        goal = self.searches + count
        until(lambda: self.searches >= goal)

    def __enter__(self) -> "Searches":
        for one in self._threads:
            one.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for one in self._threads:
            one.join()


def test_a_standby_answers_every_search_like_the_primary(
    cluster: Cluster, modules: tuple[str, ...]
) -> None:
    cluster.catch_up()
    on_primary, on_standby = (
        PostgresProvider(one.dsn(), on_error="empty")
        for one in (cluster.primary, cluster.standbys[0])
    )
    options: list[dict[str, Any]] = [
        {"fusion": "auto", "neighbor_window": 1, "snippet": True},
        {"fusion": "relative_score", "one_per_document": True, "exact_total": True},
        {"filters": {"metadata.place": 2}, "collections": ["knowledge"]},
        {"formulations": [{"query_text": "a hinge"}], "recency_half_life": 30.0},
        {"timeout": 20.0, "query_text": "becon houze", "prefix_last": "words" in modules},
    ]
    (document,) = {hit.metadata.get("document_id") for hit in on_primary.find(None, "dynamo")[0]}

    def answers(provider: PostgresProvider) -> list[object]:
        listed: list[object] = []
        for one in options:
            asked = {"query_text": "beacon house", **one}
            listed.append(provider.find([1, 0.2, 0.1], **asked))
        listed += [
            provider.search([1, 0.2, 0.1]),
            provider.fulltext_search('"beacon of" house'),
            provider.embedding_models(),
        ]
        if "batch" in modules:
            listed.append(
                provider.hybrid_search_batch([{"query_text": "cable"}, {"query_text": "engine"}])
            )
        if "facets" in modules:
            listed.append(provider.count_facets(None, "house", ["collection", "metadata.place"]))
        if "embedding_queue" in modules:
            listed.append(provider.count_pending_embeddings())
        if "own_documents" in modules:
            listed.append(provider.read_document(str(document)))
        if "insight" in modules:
            listed += [
                provider.explain_hybrid_search([1, 0, 0], "girder").keys(),
                provider.estimate_hybrid_search([1, 0, 0], "girder").keys(),
                provider.explain_missing([1, 0, 0], "girder", document_key="hinge").keys(),
            ]
        return listed

    for here, there in zip(answers(on_primary), answers(on_standby), strict=True):
        assert here == there


def test_searches_are_spread_over_the_replicas_and_not_sent_to_the_primary(
    cluster: Cluster, provider: ReplicaProvider
) -> None:
    cluster.catch_up()
    for _ in range(10):
        assert len(found(provider, "house")) == 3
    assert answered(provider) == [5, 5]


def test_a_replica_that_is_behind_gets_no_search_until_it_has_caught_up(
    cluster: Cluster, provider: ReplicaProvider, writer: KnowledgeWriter
) -> None:
    late = cluster.standbys[0]
    found(provider, "house")
    with cluster.paused(late):
        write(writer, "quartz")
        until(lambda: (provider.replicas[0].lag or 0) > 0.2 or not found(provider, "house"))
        before = answered(provider)
        until(lambda: found(provider, "quartz") == ["quartz"])
        for _ in range(6):
            assert found(provider, "quartz") == ["quartz"]
        assert answered(provider)[0] == before[0]
    until(lambda: found(provider, "quartz") and answered(provider)[0] > before[0])


def test_the_primary_answers_when_all_replicas_are_behind(
    cluster: Cluster, provider: ReplicaProvider, writer: KnowledgeWriter
) -> None:
    with cluster.paused(*cluster.standbys):
        write(writer, "granite")
        until(lambda: found(provider, "granite") == ["granite"])
        before = answered(provider)
        assert [found(provider, "granite") for _ in range(4)] == [["granite"]] * 4
        assert answered(provider) == before


def test_a_search_waits_for_a_write_on_a_replica(
    cluster: Cluster, provider: ReplicaProvider, writer: KnowledgeWriter
) -> None:
    cluster.catch_up()
    for number in range(20):
        position = write(writer, f"opal{number}")
        assert found(provider.wait_for(position), f"opal{number}") == [f"opal{number}"]
    # A commit that was not flushed yet is waited for, too.
    with psycopg.connect(cluster.primary.dsn(), autocommit=True) as connection:
        connection.execute("set synchronous_commit = off")
        for number in range(20, 30):
            position = write(KnowledgeWriter(connection), f"opal{number}")
            assert found(provider.wait_for(position), f"opal{number}") == [f"opal{number}"]
    # The primary answers where a busy machine replays too slowly.
    assert sum(answered(provider)) >= 10


def test_the_primary_answers_when_the_wait_for_a_write_is_over(
    cluster: Cluster, provider: ReplicaProvider, writer: KnowledgeWriter
) -> None:
    lenient = without_pools(cluster, max_lag=3600, max_wait=0.3)
    with cluster.paused(*cluster.standbys):
        position = write(writer, "basalt")
        assert found(lenient, "basalt") == []
        begun = time.monotonic()
        assert found(lenient.wait_for(position), "basalt") == ["basalt"]
        assert time.monotonic() - begun > 0.25


def test_a_position_that_is_none_is_refused(provider: ReplicaProvider) -> None:
    with pytest.raises(errors.InvalidInputError, match=r"wait_for\(\) needs .*not 'now\(\)'"):
        provider.wait_for("now()")


def test_no_search_fails_when_replicas_are_stopped_and_killed(
    cluster: Cluster, provider: ReplicaProvider
) -> None:
    first, second = cluster.standbys
    cluster.catch_up()
    with Searches(provider) as searches:
        searches.more()
        first.stop()
        searches.more()
        kill(second)
        searches.more()
        # Neither is left: the primary answered.
        cluster.primary.start()
        before = answered(provider)
        until(lambda: min(b - a for a, b in zip(before, answered(provider), strict=True)) > 3)
    assert searches.wrong == []
    assert min(one.failed for one in provider.replicas) > 0


def test_a_search_that_a_standby_cancels_is_answered_by_the_next_server(
    cluster: Cluster, provider: ReplicaProvider
) -> None:
    cluster.catch_up()
    conflicts = "select sum(confl_lock + confl_snapshot + confl_bufferpin)::int"
    conflicts += " from pg_stat_database_conflicts"

    def met() -> int:
        return sum(int(cluster.ask(one, conflicts)) for one in cluster.standbys)

    before = met()
    with (
        Searches(provider) as searches,
        psycopg.connect(cluster.primary.dsn(), autocommit=True) as connection,
    ):

        def provoke() -> bool:
            with connection.transaction():
                connection.execute("lock table public.knowledge_chunks in access exclusive mode")
            connection.execute("update public.knowledge_chunks set metadata = metadata")
            connection.execute("vacuum public.knowledge_chunks")
            return met() > before + 3

        until(provoke)
    assert searches.wrong == []


def test_searches_of_an_event_loop_go_on_without_a_replica_and_without_the_primary(
    cluster: Cluster,
) -> None:
    async def search() -> list[int]:
        primary, *replicas = addresses(cluster)
        provider = AsyncReplicaProvider(primary, replicas, max_lag=3600, on_error="empty")

        async def count() -> int:
            answers = await asyncio.gather(*(provider.find(None, "beacon") for _ in range(4)))
            return min(len(hits) for hits, _ in answers)

        counts = [await count()]
        await asyncio.to_thread(cluster.standbys[0].stop)
        counts.append(await count())
        await asyncio.to_thread(kill, cluster.primary)
        counts.append(await count())
        return counts

    cluster.catch_up()
    try:
        assert min(asyncio.run(search())) > 0
    finally:
        cluster.primary.start()


def test_replicas_that_are_behind_answer_when_the_primary_is_gone(cluster: Cluster) -> None:
    cluster.catch_up()
    strict = without_pools(cluster, max_lag=0)
    kill(cluster.primary)
    try:
        assert found(strict, "beacon")
        # But not a search that must see a write.
        with pytest.raises(errors.UnavailableError):
            strict.wait_for("FFFFFFF/0").find(None, "beacon")
    finally:
        cluster.primary.start()


def test_a_commit_without_an_answer_names_its_document(
    cluster: Cluster, writer: KnowledgeWriter
) -> None:
    # The commit waits for a standby that does not exist, and its session is ended meanwhile.
    cluster.commit_on("nobody")
    try:
        until(lambda: cluster.ask(cluster.primary, "show synchronous_standby_names") == "nobody")
        with (
            cluster.ending_sessions("wait_event = 'SyncRep'"),
            pytest.raises(errors.UncertainWriteError) as uncertain,
        ):
            write(writer, "pumice")
    finally:
        cluster.commit_on("")
    assert uncertain.value.keys == ("pumice",)
    # This one was stored: to call it lost would have been wrong.
    assert found(PostgresProvider(cluster.primary.dsn(), on_error="empty"), "pumice") == ["pumice"]


def test_a_write_that_is_lost_before_its_commit_is_not_uncertain(
    cluster: Cluster, writer: KnowledgeWriter
) -> None:
    with psycopg.connect(cluster.primary.dsn()) as connection:
        connection.execute("lock table public.knowledge_documents in exclusive mode")
        with (
            cluster.ending_sessions("wait_event_type = 'Lock'"),
            pytest.raises(errors.SecondBrainError) as lost,
        ):
            write(writer, "slate")
    assert not isinstance(lost.value, errors.UncertainWriteError | errors.ConnectionLostError)
    assert lost.value.kind == "unavailable"


# The last test: after it, the cluster has another primary.
def test_a_failover_loses_no_search_and_names_every_write_without_an_answer(
    cluster: Cluster,
) -> None:
    cluster.commit_on("ANY 1 (*)")
    cluster.catch_up()
    parts = [conninfo_to_dict(one) for one in addresses(cluster)]
    everywhere = make_conninfo(
        cluster.primary.dsn(),
        host=",".join(str(one["host"]) for one in parts),
        port=",".join(str(one["port"]) for one in parts),
        target_session_attrs="read-write",
    )
    stored: set[str] = set()
    lost: set[str] = set()
    is_over = threading.Event()

    def keep_writing() -> None:
        number = 0
        while not is_over.is_set():
            with suppress(psycopg.OperationalError), psycopg.connect(everywhere) as connection:
                connection.autocommit = True
                writer = KnowledgeWriter(connection)
                while not is_over.is_set():
                    number += 1
                    key = f"failover{number}"
                    try:
                        writer.upsert_document({"external_key": key}, [{"content": key}])
                        stored.add(key)
                    except errors.UncertainWriteError as error:
                        lost.update(error.keys)
                        break
                    except errors.SecondBrainError:
                        break

    with ExitStack() as stack:
        primary, *replicas = [
            stack.enter_context(connection_pool(dsn, max_size=4))
            for dsn in (everywhere, *(one.dsn() for one in cluster.standbys))
        ]
        provider = ReplicaProvider(primary, replicas, max_lag=1.0, on_error="empty")
        writing = threading.Thread(target=keep_writing)
        with Searches(provider) as searches:
            writing.start()
            searches.more(60)
            kill(cluster.primary)
            # The standby with more of the WAL has every write that was answered.
            by_position = sorted(
                cluster.standbys,
                key=lambda one: cluster.ask(
                    one, "select pg_last_wal_receive_lsn() - '0/0'::pg_lsn"
                ),
            )
            behind, chosen = by_position
            chosen.promote()
            behind.follow(chosen)
            cluster.ask(chosen, "alter system set synchronous_standby_names = ''")
            cluster.ask(chosen, "select pg_reload_conf()")
            before = len(stored)
            until(lambda: len(stored) > before + 5)
            searches.more(60)
        is_over.set()
        writing.join()
        assert searches.wrong == []
    with psycopg.connect(chosen.dsn()) as connection:
        select = (
            "select external_key from public.knowledge_documents where external_key like 'fail%'"
        )
        kept = {key for (key,) in connection.execute(select)}
    # Nothing that was answered is lost, and nothing is stored that was neither answered nor named.
    assert stored - kept == set()
    assert kept - stored - lost == set()
