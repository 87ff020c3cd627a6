"""Module citus: one corpus on two workers answers and is written as one database is."""

import json
import random
import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from nodes import Cluster, needs_citus, running
from under_load import CHUNKS, DIMENSIONS, WORDS, columns, document, vector

from command_line import Run
from second_brain import KnowledgeWriter, MemorySearchResult, PostgresProvider
from second_brain.database import migrations

pytestmark = needs_citus

MODULES = ["citus", "arrange", "batch", "facets", "own_documents", "snippets", "visitors"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """The corpus in schema public over all nodes, and the same rows in schema plain."""
    with running(workers=2) as cluster:
        migrations.apply(cluster.coordinator, dimensions=DIMENSIONS, modules=MODULES)
        migrations.apply(
            cluster.coordinator, dimensions=DIMENSIONS, schema="plain", modules=MODULES[1:]
        )
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
def test_all_shards_answer_as_one_database(cluster: Cluster, options: dict[str, Any]) -> None:
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


def test_the_job_of_server_schedule_keeps_the_statistics(cluster: Cluster, run: Run) -> None:
    """Without pg_cron the command prints its jobs as lines of a crontab; status 1."""
    printed = run("server", "schedule", "--dsn", cluster.coordinator, "--json")
    assert printed.code == 1
    jobs = [re.findall(r'-qXAtc "(.*)" >', line)[0] for line in json.loads(printed.out)]
    assert len(jobs) == 2
    count = "select document_count from public.knowledge_corpus_statistics"
    with psycopg.connect(cluster.coordinator, autocommit=True) as connection:
        ((before,),) = connection.execute(count).fetchall()
        KnowledgeWriter(connection).upsert_document(*document(random.Random(5), "counted"))
        connection.execute("analyze public.knowledge_chunks")  # as the workers do themselves
        for job in jobs:
            connection.execute(job.encode())
        assert connection.execute(count).fetchall() == [(before + CHUNKS,)]
        connection.execute("select public.delete_knowledge_document('counted')")
