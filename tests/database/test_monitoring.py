"""What the database says of its own state: the models it holds, and each finding of its health.

Every rule is broken for real, one at a time, but for the two that need another server: those are
given the figures that such a server would give. The recall of the vector index is measured on an
index that is good and on one that is not.
"""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import psycopg
import pytest

from command_line import Run
from conftest import Connect, Connection, Server
from second_brain.database import recall
from second_brain.services.install import Database
from support.databases import admin_dsn
from support.documents import embedded, upsert
from waiting import until

Health = dict[str, Any]

# More chunks than statistics are done without, written the short way.
MANY = """
insert into public.knowledge_chunks (content, embedding, embedding_model)
select 'chunk ' || number, '[1, 2, 3]', 'm' from generate_series(1, 1100) as number
"""
RENEWED = (
    "select pg_stat_force_next_flush()",
    "analyze public.knowledge_chunks",
    "select public.refresh_knowledge_statistics()",
    "select pg_stat_force_next_flush()",
)


def ingest(connection: Connection, key: str, *models: str | None) -> None:
    """Store a document with a chunk for each model; None: a chunk without an embedding."""
    named = [(f"{key} {number}", model) for number, model in enumerate(models)]
    upsert(connection, key, *(embedded(text, model) if model else text for text, model in named))


def models(connection: Connection) -> list[tuple[Any, ...]]:
    return connection.execute("select * from public.knowledge_embedding_models()").fetchall()


def health(connection: Connection) -> Health:
    found: Health
    ((found,),) = connection.execute("select public.knowledge_search_health()").fetchall()
    return found


def findings(connection: Connection) -> list[tuple[str, str]]:
    return [(one["severity"], one["check"]) for one in health(connection)["findings"]]


def run(connection: Connection, *statements: str) -> None:
    for statement in statements:
        connection.execute(statement.encode())


@pytest.fixture
def admin(server: Server, dsn: str) -> Any:
    """The superuser in this test's database."""
    with psycopg.connect(admin_dsn(server, dsn), autocommit=True) as connection:
        yield connection


def test_models_are_known_at_once_and_most_chunks_come_first(database: Connection) -> None:
    assert models(database) == []
    ingest(database, "a", "m")
    assert models(database) == [("m", 3, 1)]
    ingest(database, "b", "n", "n", None)
    assert models(database) == [("n", 3, 2), ("m", 3, 1)]
    ingest(database, "a", "k")
    assert models(database) == [("n", 3, 2), ("k", 3, 1)]
    database.execute("update public.knowledge_chunks set embedding_model = null")
    assert models(database) == [(None, 3, 3)]
    database.execute("update public.knowledge_chunks set status = 'archived'")
    assert models(database) == []


@pytest.fixture
def large(admin: Connection, database: Connection) -> Connection:
    """A table with more chunks of a model than are counted: 12,000 rows, 24 with another model."""
    # Without triggers and vector index: text and vectors do not matter here.
    run(
        admin,
        "drop index public.knowledge_chunks_embedding",
        "alter table public.knowledge_chunks set (autovacuum_enabled = off)",
        "set session_replication_role = replica",
        "insert into public.knowledge_chunks (content, embedding, embedding_model, collection,"
        "  content_hash, content_tsv, text_length, embedding_bits)"
        " select 'x', '[1,2,3]', case when number % 500 = 7 then 'rare' else 'main' end, 'c',"
        "        number::text, '', 0, b'1'"
        "   from generate_series(1, 12000) as number",
        "set session_replication_role = origin",
    )
    return database


def test_models_of_a_large_table_are_estimated_without_reading_it(large: Connection) -> None:
    scans = (
        "select seq_scan from pg_stat_user_tables where relid = 'public.knowledge_chunks'::regclass"
    )
    run(large, "analyze public.knowledge_chunks", "select pg_stat_force_next_flush()")
    before = large.execute(scans).fetchone()
    main, rare = models(large)
    assert (main, rare) == (("main", 3, pytest.approx(11976, rel=0.01)), ("rare", 3, 24))
    run(large, "select pg_stat_force_next_flush()")
    assert large.execute(scans).fetchone() == before


def test_models_of_a_large_table_are_those_of_its_chunks_whatever_the_statistics_say(
    large: Connection, admin: Connection
) -> None:
    large.execute("analyze public.knowledge_chunks")
    large.execute(
        "insert into public.knowledge_chunks (content, embedding, embedding_model)"
        " values ('new', '[1,2,3]', 'new')"
    )
    assert ("new", 3, 1) in models(large)
    update = "update public.knowledge_chunks set"
    run(admin, "set session_replication_role = replica", f"{update} embedding_model = 'next'")
    assert [model for model, *_ in models(large)] == ["next"]


def test_superseded_chunks_of_a_large_table_do_not_count_for_models(
    large: Connection, admin: Connection
) -> None:
    run(
        admin,
        "set session_replication_role = replica",
        "update public.knowledge_chunks set status = 'superseded' where embedding_model = 'rare'",
        "analyze public.knowledge_chunks",
    )
    assert [model for model, *_ in models(large)] == ["main"]


def test_the_rows_of_a_large_table_are_estimated_from_a_sample(
    large: Connection, admin: Connection
) -> None:
    # Ten times the rows that are counted, in the eyes of the planner: a sample of a tenth.
    update = "update pg_class set reltuples = 1000000 where oid ="
    run(admin, "analyze public.knowledge_chunks", f"{update} 'public.knowledge_chunks'::regclass")
    rows = health(large)["rows"]
    assert rows["is_estimated"] is True
    assert rows["total"] == pytest.approx(12000, rel=0.3)
    assert rows["by_status"] == {"active": rows["active"]}
    assert rows["embedded"] == rows["active"] == rows["total"]


def test_a_new_database_has_no_findings(database: Connection) -> None:
    database.execute("create table public.of_the_project (id bigint primary key)")
    reported = health(database)
    assert reported["findings"] == []
    assert reported["rows"]["total"] == 0
    assert reported["dimensions"] == 3
    assert reported["versions"]["pgvector"]
    assert [one["name"] for one in reported["tables"]] == [
        "public.knowledge_chunks",
        "public.knowledge_documents",
        "public.knowledge_sources",
    ]
    assert {one["leg"] for one in reported["indexes"]} == {"vector", "text", None}


def test_a_healthy_database_in_use_has_no_findings(database: Connection) -> None:
    ingest(database, "a", "m", "m")
    run(database, *RENEWED)
    reported = health(database)
    assert reported["findings"] == []
    assert reported["rows"] == {
        **{"total": 2, "active": 2, "by_status": {"active": 2}, "embedded": 2},
        **{"without_embedding": 0, "without_words": 0, "without_bits": 0, "is_estimated": False},
    }
    assert reported["embedding_models"] == [{"model": "m", "chunks": 2}]
    assert reported["statistics"]["rows"] == 2


def test_service_role_gets_the_same_findings_as_the_owner(
    database: Connection, service_role: Connection
) -> None:
    ingest(database, "a", "m", "n", "n")
    reported = health(service_role)
    assert reported["findings"] == health(database)["findings"] != []
    assert [one["model"] for one in reported["embedding_models"]] == ["n", "m"]


def remedy_of(connection: Connection, check: str) -> str:
    (one,) = [one for one in health(connection)["findings"] if one["check"] == check]
    assert one["remedy"].startswith("Run: ")
    return str(one["remedy"].removeprefix("Run: "))


@pytest.mark.parametrize(
    ("index", "word"), [("embedding", "hnsw"), ("content_tsv", "gin on content_tsv")]
)
def test_a_leg_without_its_index_is_an_error(database: Connection, index: str, word: str) -> None:
    run(database, f"drop index public.knowledge_chunks_{index}")
    (one,) = health(database)["findings"]
    assert (one["severity"], one["check"]) == ("error", "indexes")
    assert word in one["what"]
    assert "`second-brain corpus index build`" in one["remedy"]


def test_an_invalid_index_is_an_error_whose_remedy_repairs_it(
    database: Connection, admin: Connection
) -> None:
    admin.execute(
        "update pg_index set indisvalid = false"
        " where indexrelid = 'public.knowledge_chunks_owner'::regclass"
    )
    assert findings(database) == [("error", "indexes")]
    run(database, remedy_of(database, "indexes"))
    assert findings(database) == []


def test_an_index_that_is_being_built_is_waited_for(connect: Connect) -> None:
    database, writer, builder = connect(), connect(), connect()
    ingest(database, "a", "m")
    run(database, *RENEWED)
    # A build waits for whoever wrote before it, so it can be looked at half-way.
    writer.execute("begin")
    ingest(writer, "b", "m")
    builder.pgconn.send_query(
        b"create index concurrently waited on public.knowledge_chunks (sensitivity)"
    )
    until(lambda: "waiting for writers" in str(health(database)["findings"]))
    (one,) = health(database)["findings"]
    writer.execute("rollback")
    assert (one["severity"], one["check"], one["remedy"]) == ("warning", "indexes", None)
    assert one["what"].startswith("public.waited is being built (waiting for writers")
    while result := builder.pgconn.get_result():
        assert result.status == psycopg.pq.ExecStatus.COMMAND_OK
    assert findings(database) == []


def test_an_index_of_a_leg_that_no_search_reads_is_remarked_on(database: Connection) -> None:
    run(database, MANY, *RENEWED)
    # Nobody has searched yet.
    assert findings(database) == []
    by_words = "select from public.knowledge_chunks where content_tsv @@ '77' and status = 'active'"
    run(database, by_words, *RENEWED)
    assert findings(database) == [("warning", "indexes")]
    (one,) = health(database)["findings"]
    assert one["what"] == "public.knowledge_chunks_embedding never used"
    # As where the embeddings stay in adopted tables.
    without_embeddings = MANY.replace("'[1, 2, 3]', 'm'", "null, null")
    run(database, "truncate public.knowledge_chunks", without_embeddings, by_words, *RENEWED)
    assert "never used" not in str(health(database)["findings"])


def test_a_disabled_trigger_is_an_error_whose_remedy_repairs_it(database: Connection) -> None:
    database.execute("alter table public.knowledge_chunks disable trigger complete_chunk")
    assert findings(database) == [("error", "triggers")]
    run(database, remedy_of(database, "triggers"))
    assert findings(database) == []


@pytest.mark.parametrize(("column", "word"), [("bm25", "text leg"), ("embedding_bits", "filter")])
def test_rows_loaded_without_triggers_are_an_error_whose_remedy_repairs_them(
    database: Connection, admin: Connection, column: str, word: str
) -> None:
    ingest(database, "a", "m", "m")
    run(database, *RENEWED)
    run(
        admin,
        "set session_replication_role = replica",
        f"update public.knowledge_chunks set {column} = null where chunk_index = 1",
    )
    (one,) = health(database)["findings"]
    assert (one["severity"], one["check"]) == ("error", "chunks")
    assert one["what"].startswith("1 chunks have")
    assert word in one["what"]
    run(database, remedy_of(database, "chunks"))
    assert findings(database) == []


def test_several_models_and_chunks_without_an_embedding_are_warnings(database: Connection) -> None:
    ingest(database, "a", "m", "m", "n", None)
    run(database, *RENEWED)
    several, missing = health(database)["findings"]
    assert {one["severity"] for one in (several, missing)} == {"warning"}
    assert missing["what"].startswith("2 embedding models")
    assert missing["what"].endswith("1 chunks have another model than m")
    assert several["what"] == "1 of 4 chunks (25.0 %) have no embedding"


def test_statistics_that_are_missing_matter_to_a_large_table_only(database: Connection) -> None:
    ingest(database, "a", "m")
    assert findings(database) == [("info", "statistics")] * 2
    database.execute("alter table public.knowledge_chunks set (autovacuum_enabled = off)")
    run(database, MANY, "select pg_stat_force_next_flush()")
    assert [one for one in findings(database) if one[1] == "statistics"] == [
        ("warning", "statistics")
    ] * 2
    (remedy,) = {
        one["remedy"] for one in health(database)["findings"] if one["check"] == "statistics"
    }
    run(database, *remedy.removeprefix("Run: ").split("; "))
    assert [one for one in findings(database) if one[1] == "statistics"] == []


def test_statistics_that_are_stale_are_remarked_on(database: Connection) -> None:
    database.execute("alter table public.knowledge_chunks set (autovacuum_enabled = off)")
    ingest(database, "a", "m")
    run(database, *RENEWED, MANY, "select pg_stat_force_next_flush()")
    changed, counted = (
        one["what"] for one in health(database)["findings"] if one["check"] == "statistics"
    )
    assert changed.startswith("110")
    assert "rows changed since the last ANALYZE at " in changed
    assert counted.startswith("document frequencies are for 1 rows, the table has 1101; ")


def test_dead_rows_are_remarked_on_and_vacuumed_by_the_remedy(database: Connection) -> None:
    database.execute("alter table public.knowledge_chunks set (autovacuum_enabled = off)")
    run(database, MANY, MANY, MANY, "delete from public.knowledge_chunks", *RENEWED)
    assert ("warning", "dead rows") in findings(database)
    run(database, remedy_of(database, "dead rows"), "select pg_stat_force_next_flush()")
    assert "dead rows" not in [check for _, check in findings(database)]


def test_a_vector_index_larger_than_memory_is_remarked_on(database: Connection) -> None:
    assert findings(database) == []
    database.execute("set effective_cache_size = '8kB'")
    assert findings(database) == [("warning", "memory")]


def findings_of(connection: Connection, reported: Health) -> list[dict[str, Any]]:
    rows = connection.execute(
        "select knowledge_internal.health_findings(%s)", [json.dumps(reported)]
    ).fetchall()
    return list(rows[0][0])


def test_a_vector_index_larger_than_shared_buffers_is_reported(database: Connection) -> None:
    reported, gigabyte = health(database), 2**30
    reported["memory"] = {"shared_buffers": gigabyte, "effective_cache_size": 3 * gigabyte}
    reported["memory"]["vector_index"] = 2 * gigabyte
    (one,) = findings_of(database, reported)
    assert (one["severity"], one["check"]) == ("info", "memory")
    assert "2048 MB" in one["what"]


def test_a_pgvector_without_iterative_scans_is_an_error(database: Connection) -> None:
    reported = health(database)
    for later in ("0.8.0", "0.10.1", "1.0"):
        reported["versions"]["pgvector"] = later
        assert findings_of(database, reported) == []
    for version in ("0.7.4", "0.5.1", None):
        reported["versions"]["pgvector"] = version
        (one,) = findings_of(database, reported)
        assert (one["severity"], one["check"]) == ("error", "pgvector")


def test_large_unused_indexes_are_reported(database: Connection) -> None:
    reported = health(database)
    for index in reported["indexes"]:
        index["bytes"] = 20 * 2**20
    (one,) = findings_of(database, reported)
    assert (one["severity"], one["check"]) == ("info", "indexes")
    assert "knowledge_chunks_owner" in one["what"]
    # What keeps rows unique is never idle.
    assert "pkey" not in one["what"]
    assert "knowledge_sources_name_key" not in one["what"]


CHUNKS = 400


@pytest.fixture(scope="module")
def indexed(shared: Connection) -> Database:
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


def test_a_good_index_finds_the_rows_that_a_comparison_finds(indexed: Database) -> None:
    found = measured(indexed)
    assert (found.used, found.at_10, found.ef_search) == (12, 1.0, 102)
    assert found.at_50 >= recall.GOOD
    assert found.enough in recall.EFFORTS
    assert min(found.indexed_ms, found.compared_ms) > 0
    assert recall.finding("stored chunks", found).status == "ok"


def test_an_index_with_few_links_needs_more_effort_and_low_recall_is_a_warning(
    indexed: Database,
) -> None:
    connection = indexed.connection
    with connection.transaction(force_rollback=True):
        connection.execute("drop index public.knowledge_chunks_embedding")
        ((expression,),) = connection.execute(
            "select knowledge_internal.indexed_embedding('halfvec')"
        )
        connection.execute(
            "create index knowledge_chunks_embedding on public.knowledge_chunks using hnsw"
            f" (({expression}) extensions.halfvec_cosine_ops) with (m = 2, ef_construction = 4)"
            " where status = 'active'"
        )
        found = measured(indexed)
    assert found.used
    assert found.enough is None or found.enough > (measured(indexed).enough or 0)
    said = recall.finding("stored chunks", replace(found, at_50=0.98, enough=400))
    assert said.status == "warning"
    assert said.remedy is not None
    assert said.remedy.startswith("Search with pool_size 200, or build the index")


def test_a_filter_of_few_rows_needs_no_index(indexed: Database) -> None:
    found = measured(indexed, {"filters": {"collection": "few"}})
    assert (found.questions, found.used) == (12, 0)
    said = recall.finding("stored chunks", found)
    assert said.status == "ok"
    assert said.message.endswith("the index is not used: recall@10 1.000, @50 1.000")
    assert recall.finding("stored chunks", replace(found, at_10=0.97)).status == "warning"


def test_doctor_asks_stored_chunks_and_logged_questions(
    indexed: Database, run: Run, shared_dsn: str
) -> None:
    options = "--dsn", shared_dsn, "--recall", "5", "--json"
    logged = [{"question": "n1", "mode": "hybrid", "total_ms": 1, "hits": 1}]
    indexed.connection.execute("select public.record_knowledge_queries(%s)", [json.dumps(logged)])
    stored, asked = (
        one for one in json.loads(run("doctor", *options).out) if one["check"] == "recall"
    )
    assert stored["message"].startswith("5 stored chunks: recall@10 1.000, @50 ")
    assert asked["status"] == "info"
    assert "the database have 3 dimensions" in asked["message"]
