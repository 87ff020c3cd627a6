"""The recall of the vector index, measured on an index that is good and on one that is not."""

import json
from dataclasses import replace

import numpy as np
import pytest

from command_line import Run
from conftest import Connection
from second_brain.database import recall
from second_brain.services.install import Database

CHUNKS = 400


@pytest.fixture(scope="module")
def embedded(shared: Connection) -> Database:
    """Chunks in random directions, all searched as in a large corpus."""
    places = enumerate(np.random.default_rng(5).normal(size=(CHUNKS, 3)).round(4))
    with shared.cursor() as cursor:
        cursor.execute(
            "create or replace function knowledge_internal.small_corpus_limit() returns integer"
            " language plpgsql immutable as 'begin return 0; end'"
        )
        cursor.executemany(
            "insert into public.knowledge_chunks (content, embedding, embedding_model, collection)"
            " values (%s, %s, 'made', %s)",
            [(f"n{n}", str(one.tolist()), "few" if n < 9 else "many") for n, one in places],
        )
    shared.execute("analyze public.knowledge_chunks")
    shared.execute("select public.refresh_knowledge_statistics()")
    return Database(shared)


def measured(database: Database, search: dict[str, object] | None = None) -> recall.Recall:
    questions = recall.stored_questions(database, 12)
    assert len(questions) == 12
    return recall.measure(database, questions, search or {})


def test_a_good_index_finds_the_rows_that_a_comparison_finds(embedded: Database) -> None:
    found = measured(embedded)
    assert (found.used, found.at_10, found.ef_search) == (12, 1.0, 200)
    assert found.at_50 >= recall.GOOD
    assert found.enough in recall.EFFORTS
    assert min(found.indexed_ms, found.compared_ms) > 0
    assert recall.finding("stored chunks", found).status == "ok"


def test_an_index_with_few_links_needs_more_effort_and_low_recall_is_a_warning(
    embedded: Database,
) -> None:
    connection = embedded.connection
    with connection.transaction(force_rollback=True):
        connection.execute("drop index public.knowledge_chunks_embedding")
        ((indexed,),) = connection.execute("select knowledge_internal.indexed_embedding('halfvec')")
        connection.execute(
            "create index knowledge_chunks_embedding on public.knowledge_chunks using hnsw"
            f" (({indexed}) extensions.halfvec_cosine_ops) with (m = 2, ef_construction = 4)"
            " where status = 'active'"
        )
        found = measured(embedded)
    assert found.used
    assert found.enough is None or found.enough > (measured(embedded).enough or 0)
    said = recall.finding("stored chunks", replace(found, at_50=0.98, enough=400))
    assert said.status == "warning"
    assert said.remedy is not None
    assert said.remedy.startswith("Search with pool_size 200, or build the index")


def test_a_filter_of_few_rows_needs_no_index(embedded: Database) -> None:
    found = measured(embedded, {"filters": {"collection": "few"}})
    assert (found.questions, found.used) == (12, 0)
    assert "all rows are compared" in recall.finding("stored chunks", found).message


def test_doctor_asks_stored_chunks_and_logged_questions(
    embedded: Database, run: Run, shared_dsn: str
) -> None:
    options = "--dsn", shared_dsn, "--recall", "5", "--json"
    logged = [{"question": "n1", "mode": "hybrid", "total_ms": 1, "hits": 1}]
    embedded.connection.execute("select public.record_knowledge_queries(%s)", [json.dumps(logged)])
    stored, asked = (
        one for one in json.loads(run("doctor", *options).out) if one["check"] == "recall"
    )
    assert stored["message"].startswith("5 stored chunks: recall@10 1.000, @50 ")
    assert asked["status"] == "info"
    assert "the database have 3 dimensions" in asked["message"]
