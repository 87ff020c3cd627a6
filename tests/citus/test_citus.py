"""A tenant on a real Citus cluster: the same answers, and a move to another node under load."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from nodes import Cluster, needs_citus, running
from under_load import CHUNKS, DIMENSIONS, WORDS, columns, document, under_load, vector

from second_brain import KnowledgeWriter, MemorySearchResult, PostgresProvider
from second_brain.database import migrations
from second_brain.services.arguments import FUSIONS

pytestmark = needs_citus

DISTRIBUTE = (Path(__file__).parents[2] / "docs" / "citus.sql").read_text()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running(workers=2) as cluster:
        install(cluster)
        yield cluster


def holder(cluster: Cluster) -> int:
    """Return the port of the node that has the tenant."""
    with psycopg.connect(cluster.coordinator) as coordinator:
        found = coordinator.execute(
            "select nodeport from citus_shards"
            " where table_name = 'tenant_a.knowledge_chunks'::regclass"
        ).fetchone()
    assert found
    return int(found[0])


def install(cluster: Cluster) -> None:
    """Install the schema tenant_a on a worker and the schema plain beside it."""
    coordinator = cluster.coordinator
    with psycopg.connect(coordinator, autocommit=True) as connection:
        for schema in ("tenant_a", "plain"):
            migrations.apply(
                coordinator, dimensions=DIMENSIONS, schema=schema, modules=migrations.modules()
            )
        connection.execute(DISTRIBUTE.encode())
    with psycopg.connect(coordinator) as connection:
        writer = KnowledgeWriter(connection, schema="plain")
        draw = random.Random(1)
        for number in range(60):
            writer.upsert_document(*document(draw, f"d{number}"))
    copy_rows(coordinator, cluster.dsn(holder(cluster)))
    for dsn, schema in ((coordinator, "plain"), (cluster.dsn(holder(cluster)), "tenant_a")):
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(f"analyze {schema}.knowledge_chunks".encode())
            refreshed = connection.execute(
                f"select {schema}.refresh_knowledge_statistics()".encode()
            )
            assert refreshed.fetchone() == (True,)
    share_samples(coordinator, cluster.dsn(holder(cluster)))


def copy_rows(source: str, target: str) -> None:
    """Copy documents and chunks with their ids: equal ranks are ordered by id."""
    with psycopg.connect(source) as plain, psycopg.connect(target) as tenant:
        for table in ("knowledge_documents", "knowledge_chunks"):
            copied = columns(plain, table)
            rows = plain.execute(
                f"select jsonb_agg(to_jsonb(stored))::text from plain.{table} as stored".encode()
            ).fetchone()
            tenant.execute(
                f"insert into tenant_a.{table} ({copied}) select {copied}"
                f" from jsonb_populate_recordset(null::tenant_a.{table}, %s::jsonb)".encode(),
                rows,
            )


def share_samples(source: str, target: str) -> None:
    """Copy what is measured on a sample of pages: the rows are in another order there."""
    with psycopg.connect(source) as plain, psycopg.connect(target) as tenant:
        sampled = plain.execute(
            "select mean_length, cosine_spread from plain.knowledge_corpus_statistics"
        ).fetchone()
        tenant.execute(
            "update tenant_a.knowledge_corpus_statistics"
            "   set mean_length = %s, cosine_spread = %s",
            sampled,
        )


def test_a_distributed_tenant_answers_as_a_plain_schema_does(cluster: Cluster) -> None:
    draw = random.Random(2)
    answers = []
    for number in range(100):
        question = " ".join(draw.choices(WORDS, k=draw.randint(1, 4)))
        embedding = vector(draw)
        options: dict[str, Any] = {
            "fusion": FUSIONS[number % 3],
            "one_per_document": number % 5 == 0,
            "snippet": number % 7 == 0,
            "filters": {"source_origin": "manual"} if number % 11 == 0 else None,
        }
        answers.append((embedding, question, options))
    tenant = PostgresProvider(cluster.dsn(holder(cluster)), schema="tenant_a")
    plain = PostgresProvider(cluster.dsn(cluster.ports[0]), schema="plain")
    for embedding, question, options in answers:
        ours, details = tenant.hybrid_search(embedding, question, top_k=10, **options)
        theirs, _ = plain.hybrid_search(embedding, question, top_k=10, **options)
        assert "error_message" not in details
        if options["fusion"] == "auto":
            # A missing score counts as that of the 50th hit, and HNSW may miss some.
            assert len(set(ranks(ours)) & set(ranks(theirs))) >= len(theirs) - 1 > 0
        else:
            assert ranks(ours) == ranks(theirs) != []


def ranks(hits: list[MemorySearchResult]) -> list[tuple[str, int | None, int | None]]:
    return [(hit.id, hit.metadata["vector_rank"], hit.metadata["text_rank"]) for hit in hits]


def test_what_else_reads_a_tenant_answers_as_in_a_plain_schema(cluster: Cluster) -> None:
    """Each function with a plan for all values is one that Citus must be able to plan."""
    answers = []
    for dsn, schema in (
        (cluster.dsn(cluster.ports[0]), "plain"),
        (cluster.dsn(holder(cluster)), "tenant_a"),
    ):
        provider = PostgresProvider(dsn, schema=schema)
        hits, details = provider.find(None, "alna bero", exact_total=True)
        answers.append(
            (
                [hit.id for hit in hits],
                details["exact_total"],
                [hit.id for hit in provider.find(None, "alnna bero")[0]],
                [hit.id for hit in provider.find(None, "bero al", prefix_last=True)[0]],
                [hit.id for hit in provider.find(None, "alna", collections=["knowledge"])[0]],
                [
                    [hit.id for hit in one]
                    for one in provider.hybrid_search_batch(
                        [{"query_text": "alna"}, {"query_text": "bero"}]
                    )[0]
                ],
                provider.count_facets(None, "alna", ["collection", "knowledge_type"]),
                provider.read_document(hits[0].metadata["document_id"] or ""),
                provider.embedding_models(),
                provider.count_pending_embeddings(),
                [one.external_key for one in provider.list_documents()],
                sorted(provider.explain_hybrid_search(None, "alna")),
            )
        )
        with psycopg.connect(dsn) as connection:
            for function in ("list_knowledge_documents", "knowledge_search_health"):
                assert connection.execute(f"select {schema}.{function}()".encode()).fetchall()
    assert answers[0] == answers[1]


def test_a_search_on_another_node_names_the_node_that_has_the_tenant(cluster: Cluster) -> None:
    here = holder(cluster)
    for port in set(cluster.ports) - {here}:
        provider = PostgresProvider(cluster.dsn(port), schema="tenant_a")
        with pytest.raises(Exception, match=f"are on another node, 127.0.0.1:{here}"):
            provider.find(None, "alna")


def test_a_moved_tenant_is_found_again_and_no_write_is_lost(cluster: Cluster) -> None:
    """Clients ask where the tenant is when a node says that it has it no more."""
    before = holder(cluster)
    target = next(port for port in cluster.ports[1:] if port != before)
    with under_load(lambda: psycopg.connect(cluster.dsn(holder(cluster))), "tenant_a") as load:
        with psycopg.connect(cluster.coordinator, autocommit=True) as coordinator:
            coordinator.execute(
                "select citus_schema_move('tenant_a', '127.0.0.1', %s, 'force_logical')", [target]
            )
        assert holder(cluster) == target
    assert [one for one in load.refused if "are on another node" not in one] == []
    assert {*load.hits} == {10}
    assert load.chunks() == dict.fromkeys(load.written, CHUNKS)
