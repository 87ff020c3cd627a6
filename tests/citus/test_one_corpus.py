"""Module citus: one corpus on two workers answers and is written as one database is."""

import random
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from nodes import Cluster, needs_citus, running

from second_brain import KnowledgeWriter, MemorySearchResult, PostgresProvider
from second_brain.database import migrations
from second_brain.errors import SecondBrainError

pytestmark = needs_citus

DIMENSIONS = 8
WORDS = [first + last for first in ("al", "be", "ga", "de", "ep", "ze") for last in ("na", "ro")]


def document(draw: random.Random, key: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    chunks = [
        {
            "content": " ".join(draw.choices(WORDS, k=draw.randint(5, 25))),
            "embedding": vector(draw),
            "embedding_model": "random",
        }
        for _ in range(5)
    ]
    return {"external_key": key, "title": f"Title of {key}"}, chunks


def vector(draw: random.Random) -> list[float]:
    return [draw.gauss(0, 1) for _ in range(DIMENSIONS)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """The corpus in schema public over all nodes, and the same rows in schema plain."""
    with running(workers=2) as cluster:
        migrations.apply(cluster.coordinator, dimensions=DIMENSIONS, modules=["citus"])
        migrations.apply(cluster.coordinator, dimensions=DIMENSIONS, schema="plain")
        with psycopg.connect(cluster.coordinator) as connection:
            draw = random.Random(1)
            writer = KnowledgeWriter(connection, schema="plain")
            for number in range(60):
                writer.upsert_document(*document(draw, f"d{number}"))
            connection.commit()
            for table in ("knowledge_documents", "knowledge_chunks"):
                copied = columns(connection, table)
                connection.execute(
                    f"insert into public.{table} ({copied})"
                    f" select {copied} from plain.{table}".encode()
                )
        with psycopg.connect(cluster.coordinator, autocommit=True) as connection:
            for schema in ("public", "plain"):
                connection.execute(f"analyze {schema}.knowledge_chunks".encode())
                connection.execute(f"select {schema}.refresh_knowledge_statistics()".encode())
            # They are measured on samples.
            connection.execute(
                "update public.knowledge_corpus_statistics"
                "   set mean_length = %s, cosine_spread = %s",
                connection.execute(
                    "select mean_length, cosine_spread from plain.knowledge_corpus_statistics"
                ).fetchone(),
            )
        yield cluster


def columns(connection: psycopg.Connection[Any], table: str) -> str:
    return ", ".join(
        name
        for (name,) in connection.execute(
            "select column_name from information_schema.columns where table_name = %s"
            " and table_schema = 'plain' and is_generated = 'NEVER'",
            [table],
        )
    )


def ids(hits: list[MemorySearchResult]) -> list[str]:
    return [hit.id for hit in hits]


OPTIONS: list[dict[str, Any]] = [
    {},
    {"snippet": True},
    {"neighbor_window": 1},
    {"one_per_document": True},
    {"collections": ["knowledge", "notes"]},
    {"filters": {"source_origin": "manual"}},
    {"viewer_id": "00000000-0000-0000-0000-000000000001"},
    {"diversity": 0.5},
    {"merge_duplicates": True},
    {"order_by": "chunk_index"},
    {"min_confidence": 0.1},
    {"match_offset": 3},
    {"boosts": [{"filters": [{"field": "chunk_index", "op": "gt", "value": 2}], "factor": 2}]},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda one: "-".join(one) or "plain")
def test_a_search_over_all_shards_answers_as_one_database(
    cluster: Cluster, options: dict[str, Any]
) -> None:
    spread = PostgresProvider(cluster.coordinator)
    plain = PostgresProvider(cluster.coordinator, schema="plain")
    draw = random.Random(2)
    for _ in range(5):
        question, embedding = " ".join(draw.choices(WORDS, k=2)), vector(draw)
        for fusion in ("rrf", "relative_score"):
            ours, details = spread.hybrid_search(embedding, question, fusion=fusion, **options)
            theirs, _ = plain.hybrid_search(embedding, question, fusion=fusion, **options)
            assert "error_message" not in details
            assert ids(ours) == ids(theirs)
        assert ids(spread.find(None, question)[0]) == ids(plain.find(None, question)[0])


def test_writes_reach_the_shards(cluster: Cluster) -> None:
    provider = PostgresProvider(cluster.coordinator)
    with psycopg.connect(cluster.coordinator, autocommit=True) as connection:
        writer = KnowledgeWriter(connection)
        stored = writer.upsert_document(*document(random.Random(3), "written"))
        assert stored.chunks_added == 5
        changed, chunks = document(random.Random(4), "written")
        assert writer.upsert_document(changed, chunks).chunks_changed == 5
        connection.execute(
            "update public.knowledge_documents set collection = 'moved'"
            " where external_key = 'written'"
        )
        found, _ = provider.find(None, "alna bero gana", collections=["moved"])
        assert {hit.metadata["external_key"] for hit in found} == {"written"}
        with connection.cursor().copy("copy public.knowledge_chunks (content) from stdin") as copy:
            copy.write_row(["a zebra that was copied"])
        assert [hit.content for hit in provider.find(None, "zebra")[0]] == [
            "a zebra that was copied"
        ]
        assert connection.execute(
            "select public.delete_knowledge_document('written')"
        ).fetchall() == [(10,)]
        connection.execute("delete from public.knowledge_chunks where content ~ 'zebra'")
        assert connection.execute("select public.purge_knowledge_chunks('0')").fetchall() == [(0,)]


def test_rows_move_to_another_worker_while_searches_and_writes_go_on(cluster: Cluster) -> None:
    ended = threading.Event()
    failures: list[str] = []
    written: list[str] = []

    def search() -> None:
        with psycopg.connect(cluster.coordinator, autocommit=True) as connection:
            while not ended.is_set():
                rows = connection.execute(
                    "select from public.hybrid_search_knowledge_chunks(query_text => 'alna bero')"
                ).fetchall()
                if len(rows) != 10:
                    failures.append(f"{len(rows)} hits")

    def write() -> None:
        with psycopg.connect(cluster.coordinator, autocommit=True) as connection:
            while not ended.is_set():
                key = f"moving {len(written)}"
                KnowledgeWriter(connection).upsert_document(*document(random.Random(key), key))
                written.append(key)

    def guarded(work: Any) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001
            failures.append(repr(error))

    threads = [threading.Thread(target=guarded, args=[work]) for work in (search, write)]
    for thread in threads:
        thread.start()
    try:
        with psycopg.connect(cluster.coordinator, autocommit=True) as connection:
            ((shard, host, port),) = connection.execute(
                "select shardid, nodename, nodeport from citus_shards"
                " where table_name = 'public.knowledge_chunks'::regclass limit 1"
            ).fetchall()
            target = next(one for one in cluster.ports[1:] if one != port)
            connection.execute(
                "select citus_move_shard_placement(%s, %s, %s, '127.0.0.1', %s, 'force_logical')",
                [shard, host, port, target],
            )
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert failures == []
    with psycopg.connect(cluster.coordinator) as connection:
        found = connection.execute(
            "select count(distinct document.id) from public.knowledge_documents as document"
            "  join public.knowledge_chunks as chunk on chunk.document_id = document.id"
            " where document.external_key like 'moving %%'"
        ).fetchone()
    assert found == (len(written),) != (0,)


def test_without_a_worker_a_search_fails_by_name_and_is_back_with_it(cluster: Cluster) -> None:
    provider = PostgresProvider(cluster.coordinator)
    before = ids(provider.find(None, "alna")[0])
    with psycopg.connect(cluster.coordinator) as connection:
        ((port,),) = connection.execute(
            "select nodeport from citus_shards"
            " where table_name = 'public.knowledge_chunks'::regclass limit 1"
        ).fetchall()
    cluster.stop(port)
    try:
        with pytest.raises(SecondBrainError, match=f"127.0.0.1:{port}"):
            provider.find(None, "alna")
    finally:
        cluster.start(port)
    assert ids(provider.find(None, "alna")[0]) == before
