"""What prevents an installation is found before anything is written."""

import re
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from conftest import Server
from second_brain.database import migrations, obstacles, pgvector, vector_index
from second_brain.database.migrations import ObstacleError
from second_brain.errors import ConfigurationError, InvalidInputError
from second_brain.services.postgres import PostgresProvider
from second_brain.services.write import KnowledgeWriter
from support.databases import admin_dsn, examine, objects, query


def found(dsn: str, schema: str = "public") -> dict[str, str]:
    """Return the obstacles with their remedies; check that migrate refuses them all."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        listed = migrations.find_obstacles(connection, schema)
    if listed:
        before = objects(dsn, schema)
        with pytest.raises(ObstacleError) as refused:
            migrations.apply(dsn, dimensions=3, schema=schema)
        assert list(refused.value.obstacles) == listed
        assert all(one.what in str(refused.value) for one in listed)
        assert objects(dsn, schema) == before
        assert query(dsn, "select to_regnamespace('supabase_migrations')") == [(None,)]
    return {one.what: one.remedy for one in listed}


def test_a_plain_supabase_database_has_no_obstacle(plain_dsn: str) -> None:
    assert found(plain_dsn) == {}
    assert found(plain_dsn, "knowledge_de") == {}


def test_an_up_to_date_install_has_no_obstacle(dsn: str) -> None:
    assert found(dsn) == {}


def test_all_foreign_objects_are_reported_at_once_with_a_remedy(plain_dsn: str) -> None:
    query(
        plain_dsn,
        "create table public.knowledge_chunks (id bigint)",
        "create view public.knowledge_documents as select 1 as one",
        "create sequence public.knowledge_sources",
        "create domain public.knowledge_search_hit as text",
        "create table public.mine (id bigint)",
        "create index knowledge_chunks_owner on public.mine (id)",
        "create function public.match_knowledge_chunks(integer) returns integer language sql"
        " as 'select 1'",
        "create schema knowledge_internal",
    )
    listed = found(plain_dsn)
    ending = "exists and is not of second-brain"
    assert set(listed) == {
        "schema knowledge_internal exists, and has no function of second-brain",
        f"table public.knowledge_chunks {ending}",
        f"view public.knowledge_documents {ending}",
        f"sequence public.knowledge_sources {ending}",
        f"domain public.knowledge_search_hit {ending}",
        f"index public.knowledge_chunks_owner {ending}",
        f"function public.match_knowledge_chunks(integer) {ending}",
    }
    assert all("--schema NAME" in remedy for remedy in listed.values())
    assert not any("drop" in remedy for remedy in listed.values())
    assert found(plain_dsn, "knowledge_de") == {}
    migrations.apply(plain_dsn, dimensions=3, schema="knowledge_de")


def test_other_names_are_no_obstacle(plain_dsn: str) -> None:
    query(
        plain_dsn,
        "create table public.documents ()",
        "create table public.chunks ()",
        "create function public.match_documents() returns integer language sql as 'select 1'",
    )
    assert found(plain_dsn) == {}
    migrations.apply(plain_dsn, dimensions=3)


def test_the_projects_own_function_of_groups_is_no_obstacle(plain_dsn: str) -> None:
    create = "create function public.knowledge_viewer_groups() returns {} language sql as $${}$$"
    query(plain_dsn, create.format("integer", "select 1"))
    assert list(found(plain_dsn)) == [
        "function public.knowledge_viewer_groups() exists and is not of second-brain"
    ]
    query(plain_dsn, "drop function public.knowledge_viewer_groups()")
    query(plain_dsn, create.format("text[]", "select array['staff']"))
    assert found(plain_dsn) == {}
    migrations.apply(plain_dsn, dimensions=3)


def test_an_upgrade_refuses_what_the_new_files_create_and_not_what_is_its_own(
    dsn: str, tmp_path: Path
) -> None:
    for one in migrations.find():
        if one.needs is None:
            (tmp_path / one.file_name).write_text(one.sql)
    (tmp_path / "900_more.sql").write_text("create table public.more (); create table t2 ();")
    query(dsn, "create table public.more (mine integer)")
    with pytest.raises(ObstacleError, match=r"1 obstacle: table public\.more exists"):
        migrations.apply(dsn, directory=tmp_path)
    query(dsn, "drop table public.more")
    assert [one.name for one in migrations.apply(dsn, directory=tmp_path)] == ["more"]


def test_an_older_pgvector_is_an_obstacle(plain_dsn: str, server: Server) -> None:
    admin = admin_dsn(server, plain_dsn)
    query(admin, "update pg_extension set extversion = '0.7.4'")
    ((what, remedy),) = found(plain_dsn).items()
    assert what.startswith("pgvector is 0.7.4; search needs 0.8 or later")
    assert "alter extension vector update" in remedy


@pytest.mark.parametrize(
    ("major", "offered", "expected"),
    [
        (14, "0.8.0", "PostgreSQL 14 is too old"),
        (15, None, "pgvector 0.8 or later is needed, and the server does not offer"),
        (15, "0.7.0", "pgvector 0.8 or later is needed, and the server has pgvector 0.7.0"),
        (15, "0.8.0", None),
    ],
)
def test_an_older_server_is_an_obstacle(
    plain_dsn: str,
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
    major: int,
    offered: str | None,
    expected: str | None,
) -> None:
    # No such server is here: the two queries that read versions are replaced.
    monkeypatch.setattr(obstacles, "_SERVER", f"select {major}")
    monkeypatch.setattr(pgvector, "available", lambda _connection: offered)
    query(admin_dsn(server, plain_dsn), "drop extension vector")
    if expected is not None:
        (listed,) = found(plain_dsn)
        assert listed.startswith(expected)
    else:
        with psycopg.connect(plain_dsn) as connection:
            assert migrations.find_obstacles(connection) == []


def test_a_plain_postgres_lacks_what_the_prelude_creates(server: Server, plain_dsn: str) -> None:
    admin = admin_dsn(server, plain_dsn)
    query(admin, "drop extension vector", "drop schema extensions", "drop schema auth cascade")
    listed = found(plain_dsn)
    assert list(listed) == [
        "schema extensions is missing",
        "function auth.uid() is missing, which returns the signed-in user",
    ]
    assert all("migrate --prelude" in remedy for remedy in listed.values())


def test_rights_that_the_role_lacks(plain_dsn: str, server: Server) -> None:
    query(
        admin_dsn(server, plain_dsn),
        "do $$ begin create role visitor nologin; exception when duplicate_object then end $$",
        "grant visitor to postgres",
        "revoke usage on schema extensions from anon",
    )
    listed = found(psycopg.conninfo.make_conninfo(plain_dsn, options="-c role=visitor"))
    name = conninfo_to_dict(plain_dsn)["dbname"]
    assert list(listed) == [
        "anon may not use schema extensions, which has pgvector",
        f"visitor may not create schemas in database {name}",
        "visitor may not create objects in schema public",
    ]
    assert next(iter(listed.values())) == "Run: grant usage on schema extensions to anon."


@pytest.mark.parametrize(("place", "schema"), [("public", "knowledge_de"), ("vectors", "public")])
def test_pgvector_is_used_where_it_is(
    plain_dsn: str, server: Server, place: str, schema: str
) -> None:
    query(
        admin_dsn(server, plain_dsn),
        f"create schema if not exists {place}",
        f"grant usage on schema {place} to anon, authenticated, service_role, postgres",
        f"alter extension vector set schema {place}",
    )
    assert found(plain_dsn, schema) == {}
    migrations.apply(plain_dsn, dimensions=3, schema=schema)
    assert [one for one in examine(plain_dsn, schema) if one.status != "ok"] == []
    with psycopg.connect(plain_dsn, autocommit=True) as connection:
        chunks = [{"content": "zebra", "embedding": [1, 0, 0], "embedding_model": "m"}]
        KnowledgeWriter(connection, schema=schema).upsert_document({"external_key": "a"}, chunks)
    hits, _ = PostgresProvider(plain_dsn, schema=schema).find([1.0, 0.0, 0.0], "zebra")
    assert [hit.metadata["match_type"] for hit in hits] == ["both"]
    vector_index.build(plain_dsn, vector_index.IndexSettings("vector"), schema=schema)


def test_files_for_another_schema_of_pgvector(plain_dsn: str, tmp_path: Path) -> None:
    written = migrations.init(tmp_path, 3, vector_schema="vectors")
    text = "".join(file.read_text() for file in written)
    assert "vectors.vector(3)" in text
    assert "with schema vectors" in text
    assert not re.search(r"\bextensions\.\w*(vector|<)", text)
    # A later call finds the schema in the files.
    (removed,) = [file for file in written if "_009_hybrid" in file.name]
    removed.unlink()
    (again,) = migrations.init(tmp_path, 3)
    assert "vectors.vector" in again.read_text()
    with pytest.raises(ConfigurationError, match="3 dimensions, not 4"):
        migrations.init(tmp_path, 4)


@pytest.mark.parametrize("name", ["My Schema", "x;drop", ""])
def test_a_schema_of_pgvector_that_needs_quotes_is_refused(tmp_path: Path, name: Any) -> None:
    with pytest.raises(InvalidInputError, match="needs no quotes"):
        migrations.render(migrations.find(), 3, vector_schema=name)
