"""What `doctor` finds in databases that are whole and in databases that were broken on purpose."""

import json
from typing import Any

import psycopg
import pytest

from second_brain.database import doctor
from second_brain.database.doctor import Finding

HASH = "public.knowledge_content_hash(text, text)"


def examine(dsn: str) -> list[Finding]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        return doctor.examine(connection)


def found(findings: list[Finding], check: str, status: str) -> list[Finding]:
    return [one for one in findings if (one.check, one.status) == (check, status)]


def ingest(connection: Any, key: str, *chunks: dict[str, Any]) -> None:
    connection.execute(
        "select * from public.upsert_knowledge_document(%s, %s)",
        [json.dumps({"external_key": key}), json.dumps(chunks)],
    )


def embedded(content: str, model: str) -> dict[str, Any]:
    return {"content": content, "embedding": [1, 2, 3], "embedding_model": model}


def test_a_fresh_database_is_in_order(dsn: str) -> None:
    findings = examine(dsn)
    assert {one.status for one in findings} == {"ok"}
    assert [one.check for one in findings] == [
        "server",
        "pgvector",
        "roles",
        "migrations",
        "functions",
        "row level security",
        "indexes",
        "embeddings",
        "statistics",
        "dead rows",
        "memory",
    ]


def test_a_database_in_use_is_in_order(dsn: str, database: Any) -> None:
    ingest(database, "a", embedded("one thing", "m"), embedded("another thing", "m"))
    database.execute("analyze public.knowledge_chunks")
    database.execute("select public.refresh_knowledge_statistics()")
    database.execute("select pg_stat_force_next_flush()")
    findings = examine(dsn)
    assert {one.status for one in findings} == {"ok"}
    (embeddings,) = found(findings, "embeddings", "ok")
    assert embeddings.message == "3 dimensions; embedded by m (2)"


def test_missing_migrations_are_named_and_nothing_after_them_is_examined(plain_dsn: str) -> None:
    findings = examine(plain_dsn)
    assert findings[-1].check == "migrations"
    assert findings[-1].status == "error"
    assert "009_hybrid_search.sql" in findings[-1].message
    assert "second-brain migrate" in (findings[-1].remedy or "")


@pytest.mark.parametrize(
    ("damage", "check", "message", "remedy"),
    [
        (f"drop function {HASH} cascade", "functions", "knowledge_content_hash is missing", None),
        (
            f"grant execute on function {HASH} to anon",
            "functions",
            "anon may call knowledge_content_hash",
            "revoke execute on function public.knowledge_content_hash from public, anon",
        ),
        (
            f"grant execute on function {HASH} to public",
            "functions",
            "anon, authenticated may call knowledge_content_hash",
            "revoke execute on function public.knowledge_content_hash from public, anon,"
            " authenticated",
        ),
        (
            f"revoke execute on function {HASH} from service_role",
            "functions",
            "service_role may not call knowledge_content_hash",
            "grant execute on function public.knowledge_content_hash to service_role",
        ),
        (
            "create function public.knowledge_content_hash(text) returns text"
            " language sql as $$ select $1 $$",
            "functions",
            "knowledge_content_hash exists 2 times",
            None,
        ),
        (
            "alter table public.knowledge_sources disable row level security",
            "row level security",
            "off for public.knowledge_sources",
            "alter table public.knowledge_sources enable row level security",
        ),
        (
            "drop index public.knowledge_chunks_owner",
            "indexes",
            "missing: public.knowledge_chunks_owner",
            None,
        ),
        (
            "delete from supabase_migrations.schema_migrations where version = '003'",
            "migrations",
            "but not 003_",
            None,
        ),
    ],
)
def test_damage_is_found_and_named_with_its_remedy(
    dsn: str, database: Any, damage: str, check: str, message: str, remedy: str | None
) -> None:
    database.execute(damage)
    (error,) = [one for one in examine(dsn) if one.status == "error"]
    assert error.check == check
    assert message in error.message
    assert error.remedy is not None
    if remedy is not None:
        assert error.remedy == f"Run: {remedy}"
        database.execute(remedy)
        assert [one for one in examine(dsn) if one.status == "error"] == []


@pytest.mark.parametrize(
    ("damage", "check", "message"),
    [
        (
            "update pg_index set indisvalid = false"
            " where indexrelid = 'public.knowledge_chunks_embedding'::regclass",
            "indexes",
            "public.knowledge_chunks_embedding is not valid",
        ),
        (
            "update pg_extension set extversion = '0.7.4' where extname = 'vector'",
            "pgvector",
            "pgvector is 0.7.4",
        ),
    ],
)
def test_damage_that_takes_a_superuser_is_found_too(
    dsn: str, server: Any, damage: str, check: str, message: str
) -> None:
    name = str(psycopg.conninfo.conninfo_to_dict(dsn)["dbname"])
    with psycopg.connect(server.admin_dsn(name), autocommit=True) as connection:
        connection.execute(damage.encode())
    (error,) = [one for one in examine(dsn) if one.status == "error"]
    assert (error.check, message in error.message) == (check, True)


def test_what_the_database_finds_in_itself_is_shown_with_its_severity_and_remedy(
    dsn: str, database: Any
) -> None:
    ingest(database, "a", embedded("one", "m"), embedded("two", "n"), {"content": "three"})
    told = database.execute("select public.knowledge_search_health() -> 'findings'").fetchone()
    assert {one["check"] for one in told[0]} == {"embeddings", "statistics"}
    shown = [one for one in examine(dsn) if one.status != "ok"]
    assert sorted((one.status, one.check, one.message, one.remedy) for one in shown) == sorted(
        (one["severity"], one["check"], one["what"], one["remedy"]) for one in told[0]
    )


def test_without_the_function_of_health_the_other_checks_are_made(dsn: str, database: Any) -> None:
    database.execute("drop function public.knowledge_search_health()")
    errors = [one for one in examine(dsn) if one.status == "error"]
    assert [one.check for one in errors] == ["functions", "health"]
    assert {one.remedy for one in errors} == {errors[0].remedy}


def test_an_index_of_a_leg_is_known_by_what_it_is(dsn: str, database: Any) -> None:
    database.execute("alter index public.knowledge_chunks_embedding rename to vectors")
    database.execute("alter index public.knowledge_chunks_content_tsv rename to words")
    assert {one.status for one in examine(dsn)} == {"ok"}


def test_a_role_that_may_not_look_is_told_to_be_the_owner(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("set role authenticated")
        findings = doctor.examine(connection)
    assert found(findings, "migrations", "error")[0].remedy == "Connect as the owner of the tables."
