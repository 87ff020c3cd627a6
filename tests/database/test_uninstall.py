"""Removing an install: everything of it, and nothing else."""

from typing import Any

import psycopg
import pytest

from second_brain.database import migrations, uninstall
from second_brain.database.uninstall import ForeignDependentsError
from second_brain.errors import MigrationMissingError
from second_brain.services.write import KnowledgeWriter
from support.databases import objects, query

SCHEMA = "knowledge_de"


def plan(dsn: str, schema: str = "public", *, cascade: bool = False) -> uninstall.Uninstall:
    with psycopg.connect(dsn, autocommit=True) as connection:
        return uninstall.plan(connection, schema, cascade=cascade)


def test_the_script_removes_an_install_and_a_new_one_is_like_the_first(
    dsn: str, plain_dsn: str
) -> None:
    before = objects(dsn)
    script = plan(dsn).script
    assert "cascade" not in script
    query(dsn, script)
    assert objects(dsn) == objects(plain_dsn)
    assert query(dsn, "select count(*) from supabase_migrations.schema_migrations") == [(0,)]
    assert migrations.apply(dsn, dimensions=3, modules=migrations.modules()) != []
    assert objects(dsn) == before


@pytest.mark.slow
def test_the_function_that_the_project_has_replaced_stays(dsn: str, plain_dsn: str) -> None:
    function = "public.knowledge_viewer_groups()"
    query(
        dsn,
        f"create or replace function {function} returns text[] language sql stable"
        " set search_path = '' return array['mine']",
    )
    uninstall.apply(dsn)
    assert objects(dsn).keys() - objects(plain_dsn).keys() == {f"function {function}"}
    migrations.apply(dsn, dimensions=3, modules=migrations.modules())
    assert query(dsn, f"select {function}") == [(["mine"],)]


def test_the_script_says_what_is_lost(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        KnowledgeWriter(connection).upsert_document({"external_key": "a"}, [{"content": "zebra"}])
    query(
        dsn,
        "create index my_index on public.knowledge_chunks (created_at, id)",
        "alter table public.knowledge_documents add column note text",
    )
    found = plan(dsn)
    assert found.rows["public.knowledge_chunks"] == 1
    assert "--   1 rows of public.knowledge_documents" in found.script
    assert found.attached == ("column public.knowledge_documents.note", "index public.my_index")
    assert "--   index public.my_index, which is not of second-brain" in found.script
    assert query(dsn, "select count(*) from public.knowledge_chunks") == [(1,)]


def test_objects_that_depend_on_the_install_are_listed_and_stay(dsn: str) -> None:
    query(
        dsn,
        "create view public.titles as select title from public.knowledge_documents",
        "create table public.notes (document uuid references public.knowledge_documents (id))",
        "create function public.first() returns setof public.knowledge_chunks language sql"
        " as 'select * from public.knowledge_chunks'",
    )
    before = objects(dsn)
    with pytest.raises(ForeignDependentsError) as refused:
        plan(dsn)
    assert refused.value.dependents == (
        "constraint notes_document_fkey on table public.notes",
        "function public.first()",
        "view public.titles",
    )
    assert "--cascade" in (refused.value.remedy or "")
    with pytest.raises(ForeignDependentsError):
        uninstall.apply(dsn)
    assert objects(dsn) == before
    uninstall.apply(dsn, cascade=True)
    left = objects(dsn)
    assert {"table public.notes", "column public.notes.document"} <= left.keys()
    assert not {"view public.titles", "function public.first()"} & left.keys()


def test_what_only_resembles_the_install_stays(dsn: str) -> None:
    query(
        dsn,
        "create table public.knowledge_things ()",
        "create function public.match_knowledge_chunks(integer) returns integer language sql"
        " as 'select 1'",
    )
    uninstall.apply(dsn)
    left = objects(dsn)
    assert "table public.knowledge_things" in left
    assert "function public.match_knowledge_chunks(integer)" in left


@pytest.mark.slow
def test_the_schema_of_an_install_stays_and_the_script_says_why(plain_dsn: str) -> None:
    migrations.apply(plain_dsn, dimensions=3, schema=SCHEMA, modules=migrations.modules())
    query(plain_dsn, f"create table {SCHEMA}.mine ()")
    script = plan(plain_dsn, SCHEMA).script
    assert f"-- drop schema {SCHEMA};" in script
    query(plain_dsn, script)
    assert query(plain_dsn, f"select count(*) from {SCHEMA}.mine") == [(0,)]
    query(plain_dsn, f"drop table {SCHEMA}.mine", f"drop schema {SCHEMA}")


@pytest.mark.slow
def test_the_history_of_a_project_keeps_its_own_rows(plain_dsn: str, tmp_path: Any) -> None:
    (tmp_path / "20200101000000_profiles.sql").write_text("create table public.profiles ();")
    migrations.init(tmp_path, 3)
    migrations.init(tmp_path, 3, schema=SCHEMA)
    migrations.apply(plain_dsn, directory=tmp_path)
    uninstall.apply(plain_dsn)
    names = query(plain_dsn, "select name from supabase_migrations.schema_migrations order by 1")
    assert names[0] == ("profiles",)
    assert {name.startswith(f"second_brain_{SCHEMA}_") for (name,) in names[1:]} == {True}
    uninstall.apply(plain_dsn, SCHEMA)
    names = query(plain_dsn, "select name from supabase_migrations.schema_migrations order by 1")
    assert names == [("profiles",)]


def test_an_interrupted_installation_is_removed_too(plain_dsn: str, tmp_path: Any) -> None:
    before = objects(plain_dsn)
    for one in migrations.find()[:6]:
        (tmp_path / one.file_name).write_text(one.sql)
    migrations.apply(plain_dsn, dimensions=3, directory=tmp_path)
    uninstall.apply(plain_dsn)
    assert objects(plain_dsn) == before


def test_without_an_install_there_is_nothing_to_remove(plain_dsn: str) -> None:
    with pytest.raises(MigrationMissingError, match="no install in schema public") as refused:
        plan(plain_dsn)
    assert "--schema" in (refused.value.remedy or "")
