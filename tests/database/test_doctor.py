"""The findings of `doctor` in correct databases and in databases that were damaged on purpose."""

from typing import Any

import psycopg
import pytest

from second_brain.database import doctor, vector_index
from second_brain.database.doctor import Finding
from second_brain.embedding_queue import reembedding
from second_brain.models import CallableEmbedder
from support.databases import admin_dsn, examine, query
from support.documents import embedded, upsert


def found(findings: list[Finding], check: str, status: str) -> list[Finding]:
    return [one for one in findings if (one.check, one.status) == (check, status)]


def test_a_fresh_database_is_in_order(dsn: str) -> None:
    assert {one.status for one in examine(dsn)} == {"ok"}


def test_a_database_in_use_is_in_order(dsn: str, database: Any) -> None:
    upsert(database, "a", embedded("one thing", "m"), embedded("another thing", "m"))
    database.execute("analyze public.knowledge_chunks")
    database.execute("select public.refresh_knowledge_statistics()")
    database.execute("select pg_stat_force_next_flush()")
    findings = examine(dsn)
    assert {one.status for one in findings} == {"ok"}
    (embeddings,) = found(findings, "embeddings", "ok")
    assert embeddings.message == "3 dimensions; models: m (2)"


def test_missing_migrations_are_named_and_nothing_after_them_is_examined(plain_dsn: str) -> None:
    findings = examine(plain_dsn)
    assert findings[-1].check == "migrations"
    assert findings[-1].status == "error"
    assert "009_hybrid_search.sql" in findings[-1].message
    assert "second-brain migrate" in (findings[-1].remedy or "")


CHUNKS, DOCUMENTS = "public.knowledge_chunks", "public.knowledge_documents"


@pytest.mark.parametrize(
    ("damage", "check", "message"),
    [
        (
            "update pg_extension set extversion = '0.7.4' where extname = 'vector'",
            *("pgvector", "pgvector is 0.7.4"),
        ),
        (
            *("alter extension vector set schema public", "migrations"),
            "the functions name pgvector in schema extensions, but it is in public",
        ),
        (
            "alter function public.knowledge_viewer_groups() owner to authenticated",
            *("functions", "public.knowledge_viewer_groups() belongs to authenticated"),
        ),
    ],
)
def test_damage_by_a_superuser_is_found_too(
    dsn: str, server: Any, damage: str, check: str, message: str
) -> None:
    query(admin_dsn(server, dsn), damage)
    (error,) = [one for one in examine(dsn) if one.status == "error"]
    assert (error.check, message in error.message) == (check, True)


@pytest.mark.parametrize(
    ("version", "faults"),
    [
        ("0.8.0", ["CVE-2026-3172", "pgvector 988", "pgvector 993"]),
        ("0.8.1", ["CVE-2026-3172", "pgvector 988", "pgvector 993"]),
        ("0.8.2", ["pgvector 988", "pgvector 993"]),
        ("0.8.3", ["pgvector 993"]),
        ("0.8.4", []),
        ("0.8.10", []),
        ("0.9.0", []),
    ],
)
def test_the_faults_of_a_pgvector_are_warnings(
    dsn: str, server: Any, version: str, faults: list[str]
) -> None:
    version_is = f"update pg_extension set extversion = '{version}' where extname = 'vector'"
    query(admin_dsn(server, dsn), version_is)
    about = [one for one in examine(dsn) if one.check == "pgvector"]
    assert [one.status for one in about] == ["ok"] + ["warning"] * len(faults)
    for one, fault in zip(about[1:], faults, strict=True):
        assert f"pgvector is {version}: " in one.message
        assert fault in one.message
        assert "0.8.4" in (one.remedy or "")


@pytest.mark.parametrize(("locale", "ctype"), [("C", "C"), ("POSIX", "C"), ("C.UTF-8", None)])
def test_a_database_that_knows_ascii_letters_only_is_a_warning(
    server: Any, locale: str, ctype: str | None
) -> None:
    name = "second_brain_test_locale"
    create = f"create database {name} template template0 encoding 'UTF8' locale_provider libc"
    query(server.admin, f"drop database if exists {name}", f"{create} locale '{locale}'")
    try:
        about = [one for one in examine(server.admin_dsn(name)) if one.check == "server"]
    finally:
        query(server.admin, f"drop database {name}")
    assert [one.status for one in about] == (["ok", "warning"] if ctype else ["ok"])
    if ctype:
        assert f"LC_CTYPE is {ctype}" in about[1].message
        assert "C.UTF-8" in (about[1].remedy or "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("equal", "status", "is_reported"),
    [(1000, "active", False), (1001, "active", True), (1500, "archived", False)],
)
@pytest.mark.parametrize("dimensions", [3, 128])
def test_a_large_group_of_equal_embeddings_is_a_warning(
    dsn: str, dimensions: int, equal: int, status: str, is_reported: bool
) -> None:
    insert = "insert into public.knowledge_chunks (content, embedding, embedding_model, status)"
    halves = f"array_fill(0.5, array[{dimensions} - 2])::real[]"
    query(
        dsn,
        f"{insert} select 'footer ' || number, (array[0.5, 0.5] || {halves})::real[], 'm',"
        f" '{status}' from generate_series(1, {equal}) as number",
        f"{insert} select 'page ' || number, (array[number::real, 1] || {halves})::real[], 'm',"
        " 'active' from generate_series(1, 1500) as number",
    )
    about = [one for one in found(examine(dsn), "embeddings", "warning") if "same" in one.message]
    assert [one.message.partition(" chunks")[0] for one in about] == ["1001"] * is_reported
    assert all("Load them last, or not at all" in (one.remedy or "") for one in about)


def test_the_function_that_a_project_replaces_is_in_order(dsn: str, database: Any) -> None:
    database.execute(
        "create or replace function public.knowledge_viewer_groups() returns text[]"
        " language sql volatile as $$ select '{mine}'::text[] $$"
    )
    (warning,) = [one for one in examine(dsn) if one.status != "ok"]
    assert (warning.status, warning.check) == ("warning", "functions")
    assert "does not pin its search_path" in warning.message
    assert warning.remedy is not None
    database.execute(warning.remedy.removeprefix("Run: ").partition(";")[0])
    assert {one.status for one in examine(dsn)} == {"ok"}
    database.execute("drop function public.knowledge_viewer_groups()")
    (missing,) = found(examine(dsn), "functions", "error")
    assert missing.message == "function public.knowledge_viewer_groups() is missing"


def test_findings_of_the_health_function_are_shown_with_severity_and_remedy(
    dsn: str, database: Any
) -> None:
    upsert(database, "a", embedded("one", "m"), embedded("two", "n"), {"content": "three"})
    reported = database.execute("select public.knowledge_search_health() -> 'findings'").fetchone()
    assert {one["check"] for one in reported[0]} == {"embeddings", "statistics"}
    shown = [one for one in examine(dsn) if one.status != "ok"]
    assert sorted((one.status, one.check, one.message, one.remedy) for one in shown) == sorted(
        (one["severity"], one["check"], one["what"], one["remedy"]) for one in reported[0]
    )


def test_embeddings_that_name_no_model_are_told_with_what_to_do(dsn: str, database: Any) -> None:
    upsert(database, "a", embedded("one", "m"), embedded("two", "m"))
    assert found(examine(dsn), "embeddings", "warning") == []
    database.execute(
        "update public.knowledge_chunks set embedding_model = null where chunk_index = 1"
    )
    (warning, *_) = [
        one
        for one in found(examine(dsn), "embeddings", "warning")
        if "no embedding_model" in one.message
    ]
    assert warning.message == "1 chunks have an embedding but no embedding_model"
    assert "second-brain adopt TABLE --model NAME" in (warning.remedy or "")


def test_settings_measured_before_the_corpus_changed_are_stale(dsn: str, database: Any) -> None:
    upsert(database, "a", embedded("one", "m"))
    database.execute("select public.set_knowledge_settings(measured_on => '9 questions')")
    assert found(examine(dsn), "settings", "warning") == []
    upsert(database, "b", embedded("two", "m"))
    (warning,) = found(examine(dsn), "settings", "warning")
    assert warning.message == (
        "all other collections: the settings are stale: the corpus had 1 chunks and has 2"
    )


def test_stored_settings_are_shown_and_compared_with_the_model_of_the_chunks(
    dsn: str, database: Any
) -> None:
    upsert(database, "a", embedded("one", "m"), embedded("two", "m"), {"content": "three"})
    store = "select public.set_knowledge_settings(%s, %s, %s, embedding_model => %s)"
    database.execute(store, ["", "auto", 1, "other"])
    database.execute(store, ["knowledge", None, 0.5, "m"])
    # The chunks are of the collection that has settings of its own.
    shown = [(one.status, one.message) for one in examine(dsn) if one.check == "settings"]
    assert shown == [
        ("ok", "all other collections: fusion auto, vector_weight 1, text_weight 1"),
        ("ok", "collection knowledge: fusion not stored, vector_weight 0.5, text_weight 1"),
    ]
    database.execute("select public.reset_knowledge_settings('knowledge')")
    (warning,) = found(examine(dsn), "settings", "warning")
    assert warning.message == (
        "all other collections: embedding_model is other, but chunks have embeddings of m"
    )
    assert "tune --apply" in (warning.remedy or "")


def test_without_the_health_function_the_other_checks_run(dsn: str, database: Any) -> None:
    database.execute("drop function public.knowledge_search_health()")
    errors = [one for one in examine(dsn) if one.status == "error"]
    assert [one.check for one in errors] == ["functions", "health"]
    assert "knowledge_search_health() is missing" in errors[0].message


@pytest.mark.parametrize(
    ("change", "status", "message"),
    [
        (
            *(f"alter table {CHUNKS} alter column metadata set storage extended", "warning"),
            f"column {CHUNKS}.metadata differs from this version in: storage",
        ),
        (
            *(f"comment on table {CHUNKS} is null", "info"),
            f"table {CHUNKS} differs from this version in: comment",
        ),
        (
            *(f"create policy mine on {DOCUMENTS} for select using (true)", "warning"),
            f"policy {DOCUMENTS}.mine is not part of this version",
        ),
        (
            "create or replace function knowledge_internal.physical_table() returns regclass"
            " language plpgsql stable parallel safe set search_path = pg_catalog, pg_temp"
            " as $$ begin return to_regclass('public.knowledge_chunks'); end $$",
            *("info", "function knowledge_internal.physical_table() is not that of core"),
        ),
        (
            *("create table knowledge_internal.old_statistics ()", "info"),
            "table knowledge_internal.old_statistics is not part of this version",
        ),
    ],
)
def test_harmless_differences_are_not_errors(
    knowledge: Any, change: str, status: str, message: str
) -> None:
    knowledge.execute(change)
    (finding,) = [one for one in doctor.examine(knowledge) if one.status != "ok"]
    assert (finding.status, finding.message) == (status, message)


def test_objects_of_the_project_are_not_reported(knowledge: Any) -> None:
    knowledge.execute(
        """
        alter index public.knowledge_chunks_embedding rename to vectors;
        alter index public.knowledge_chunks_content_tsv rename to words;
        create table public.knowledge_notes (id int primary key);
        create view public.titles as select title from public.knowledge_documents;
        create function public.mine() returns int language sql as 'select 1';
        create type public.mood as enum ('good');
        grant select on public.knowledge_documents to pg_monitor;
        grant execute on function public.search_public_knowledge_chunks to anon;
        """
    )
    assert {one.status for one in doctor.examine(knowledge)} == {"ok"}


@pytest.mark.parametrize("dimensions", [4500])
def test_another_vector_index_and_another_size_are_in_order(dsn: str) -> None:
    vector_index.build(dsn, vector_index.IndexSettings("halfvec", 8, 32))
    assert {one.status for one in examine(dsn)} == {"ok"}


def test_a_running_model_change_is_in_order(dsn: str, database: Any) -> None:
    upsert(database, "a", embedded("one thing", "m"))
    vector_index.build(dsn, vector_index.IndexSettings("vector"))
    model = CallableEmbedder(lambda texts: [[1.0, 2.0] for _ in texts], "next", 2)
    reembedding.start(dsn, model, keep_old=True)
    assert reembedding.state(database).stage == "switched"
    definitions = {"functions", "row level security", "tables", "indexes"}
    assert [one for one in examine(dsn) if one.check in definitions and one.status != "ok"] == []


def test_a_role_without_rights_gets_the_remedy_to_connect_as_the_owner(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("set role authenticated")
        findings = doctor.examine(connection)
    assert found(findings, "migrations", "error")[0].remedy == "Connect as the owner of the tables."


def test_chunks_that_wait_too_long_and_texts_that_failed_are_listed(
    dsn: str, database: Any
) -> None:
    upsert(database, "waiting", {"content": "one"}, {"content": "two"})
    database.execute("select public.claim_knowledge_embeddings('m', 1)")
    database.execute(
        "select public.store_knowledge_embeddings('m', jsonb_build_array(jsonb_build_object("
        " 'content_hash', claim.content_hash, 'error', 'too long', 'is_final', true)))"
        "  from public.knowledge_embedding_claims as claim"
    )
    assert [one.message for one in examine(dsn) if one.check == "queue"] == [
        "1 chunks wait for an embedding",
        "collection knowledge: 1 chunks could not be embedded with m, such as of document"
        " waiting: too long",
    ]
    database.execute("alter table public.knowledge_chunks disable trigger complete_chunk")
    database.execute("update public.knowledge_chunks set updated_at = now() - interval '2 hours'")
    database.execute("alter table public.knowledge_chunks enable trigger complete_chunk")
    first, _ = found(examine(dsn), "queue", "warning")
    assert (
        "1 chunks wait for an embedding of any model, some for more than an hour" in first.message
    )
