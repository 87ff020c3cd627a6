"""Module citus under searches and writes: shards move, and workers are killed."""

import random
from collections.abc import Iterator

import psycopg
import pytest
from nodes import Cluster, needs_citus, running
from under_load import CHUNKS, DIMENSIONS, Load, document, under_load

from second_brain import KnowledgeWriter
from second_brain.database import migrations
from waiting import until

pytestmark = needs_citus

SHARDS = (
    "select shardid, nodeport from citus_shards"
    " where table_name = 'public.knowledge_chunks'::regclass order by shardid"
)


@pytest.fixture(scope="module", params=[2, 3])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with running(workers=request.param) as cluster:
        migrations.apply(cluster.coordinator, dimensions=DIMENSIONS, modules=["citus"])
        with connect(cluster) as connection:
            for number in range(20):
                KnowledgeWriter(connection).upsert_document(
                    *document(random.Random(number), f"d{number}")
                )
        yield cluster


@pytest.fixture(autouse=True)
def load(cluster: Cluster) -> Iterator[Load]:
    """Searches and writes that go on; what they stored is whole, and each page has all its hits."""
    with under_load(lambda: connect(cluster)) as load:
        yield load
    with connect(cluster) as connection:
        connection.execute("select recover_prepared_transactions()")
        stored = load.chunks()
        assert {key: stored.get(key) for key in load.written} == dict.fromkeys(load.written, CHUNKS)
        assert {*stored.values()} == {CHUNKS}
        assert {*load.hits} == {10}
        connection.execute("delete from public.knowledge_documents where external_key ~ 'under'")


def connect(cluster: Cluster) -> psycopg.Connection[tuple[object, ...]]:
    return psycopg.connect(cluster.coordinator, autocommit=True)


def test_each_shard_moves_to_another_worker_and_nothing_fails(cluster: Cluster, load: Load) -> None:
    with connect(cluster) as connection:
        shards = connection.execute(SHARDS).fetchall()
        assert len(shards) == len(cluster.ports) - 1
        for shard, port in shards:
            target = next(one for one in cluster.ports[1:] if one != port)
            connection.execute(
                "select citus_move_shard_placement("
                "  %s, '127.0.0.1', %s, '127.0.0.1', %s, 'force_logical'"
                ")",
                [shard, port, target],
            )
        connection.execute("select citus_rebalance_start()")
        connection.execute("select citus_rebalance_wait()")
        assert {port for _, port in connection.execute(SHARDS)} == {*cluster.ports[1:]}
    assert load.refused == []


def test_while_a_worker_is_down_each_error_names_it(cluster: Cluster, load: Load) -> None:
    for port in cluster.ports[1:]:
        load.refused.clear()
        cluster.stop(port)
        try:
            until(lambda: len(load.refused) > 3)
        finally:
            cluster.start(port)
        load.wait_for_both()
        # Citus passes on what libpq says of a write that the end of the worker breaks off.
        said = (f"127.0.0.1:{port}", "write: server closed the connection unexpectedly")
        assert [one for one in load.refused if not any(part in one for part in said)] == []
