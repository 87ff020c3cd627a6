"""An install in another schema, what lives beside the first one, and the removal of either."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest

from second_brain.database import catalogue, doctor, migrations, naming, uninstall
from second_brain.database.migrations import Migration
from second_brain.database.uninstall import ForeignDependentsError
from second_brain.errors import InvalidInputError, MigrationMissingError
from second_brain.services.write import KnowledgeWriter
from support.databases import objects, query

SCHEMA = "knowledge_de"
TESTS = Path(__file__).parents[1]


def rendered(text: str) -> str:
    files = [
        Migration("001", "a", "create table public.things (embedding extensions.vector(1024));"),
        Migration("002", "b", text),
    ]
    return migrations.render(files, 8, SCHEMA)[1].sql


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("select from public.things as t", "select from knowledge_de.things as t"),
        ('select from "public"."things"', 'select from "knowledge_de"."things"'),
        ("'public.things'::regclass", "'knowledge_de.things'::regclass"),
        ("format('create view x as table public.things')", None),
        ("where oid = 'public'::regnamespace", "where oid = 'knowledge_de'::regnamespace"),
        ("select knowledge_internal.part()", "select knowledge_de_internal.part()"),
        ("create schema knowledge_internal;", "create schema knowledge_de_internal;"),
    ],
)
def test_names_of_the_installs_objects_are_rendered(text: str, expected: str | None) -> None:
    assert rendered(text) == (expected or text.replace("public.", "knowledge_de."))


@pytest.mark.parametrize(
    "text",
    [
        "check (visibility in ('private', 'public'))",
        "revoke all on table things from public, anon;",
        "format('%s', 'public')",
        "'nobody''s, seen only when public.'",
        "select from public.profiles",
        "select from public.things_of_mine",
        "select from republic.things, my_knowledge_internal.x",
        "-- what is public: things",
    ],
)
def test_other_words_stay(text: str) -> None:
    assert rendered(text) == text


def test_only_names_dimension_and_the_new_schema_differ_from_the_plain_files() -> None:
    plain = migrations.find()
    other = migrations.render(plain, 5, SCHEMA)
    text = "".join(one.sql for one in other)
    assert "extensions.vector(5)" in text
    assert f"create schema if not exists {SCHEMA};" in text
    assert naming.INTERNALS not in text
    names = naming.created_names(one.sql for one in plain)
    assert not any(f"public.{name}" in text for name in names)
    # The role, and the visibility.
    assert "from public, anon" in text
    assert "'public'" in text
    back = naming.rename(text, names, SCHEMA, "public")
    back = back.replace("extensions.vector(5)", "extensions.vector(1024)")
    begin = back.index("\n-- The schema of this install.")
    end = back.index("service_role;\n\n", begin) + len("service_role;\n\n")
    assert back[:begin] + back[end:] == "".join(one.sql for one in plain)


@pytest.mark.parametrize(
    "schema",
    ["Knowledge", "1st", "a-b", "", "select", "auth", "pg_mine", "x_internal", "a" * 51, "schéma"],
)
def test_an_invalid_schema_name_is_refused_with_the_remedy(schema: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="schema must") as refused:
        migrations.init(tmp_path, 3, schema=schema)
    assert refused.value.remedy is not None
    assert "lower-case letters" in refused.value.remedy
    assert list(tmp_path.iterdir()) == []


def test_the_longest_name_works(plain_dsn: str) -> None:
    schema = "a" * naming.MAX_LENGTH
    assert migrations.apply(plain_dsn, dimensions=3, schema=schema) != []
    assert migrations.apply(plain_dsn, schema=schema) == []


@pytest.fixture
def both_dsn(dsn: str) -> str:
    """A database with an install of 3 dimensions in public and one of 5 in another schema."""
    migrations.apply(dsn, dimensions=5, schema=SCHEMA, modules=migrations.modules())
    return dsn


def test_the_other_install_is_the_first_one_under_another_name(both_dsn: str) -> None:
    with psycopg.connect(both_dsn, autocommit=True) as connection:
        other = catalogue.read(connection, SCHEMA)
        first = catalogue.read(connection)
        assert catalogue.compare(catalogue.portable(first), catalogue.portable(other)) == []
        findings = doctor.examine(connection, SCHEMA)
        assert {one.status for one in findings} == {"ok"}
        connection.execute(f"drop function {SCHEMA}.knowledge_embedding_models()")
        wrong = [one for one in doctor.examine(connection, SCHEMA) if one.status == "error"]
        assert [one.message for one in wrong][:1] == [
            f"function {SCHEMA}.knowledge_embedding_models() is missing"
        ]
        assert {one.status for one in doctor.examine(connection)} == {"ok"}


# test_hybrid_search.py reads the files; the commands of test_vector_index.py work on public.
OTHERS = "search filters filter_indexes full_pools snippets languages search_properties"
IN_THE_OTHER_INSTALL = {
    "explanations": ["tests/search/test_explain.py"],
    "searches": [f"tests/search/test_{name}.py" for name in OTHERS.split()],
    "clients": [
        "tests/providers/test_postgres_provider.py",
        "tests/providers/test_postgres_and_supabase.py",
        "tests/providers/test_provider_filters.py",
        "tests/writing/test_writer.py",
        "tests/writing/test_ingest.py",
        "tests/tools/test_cli_knowledge.py",
        "tests/tools/test_cli_ingest.py",
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("files", IN_THE_OTHER_INSTALL.values(), ids=IN_THE_OTHER_INSTALL)
def test_other_tests_pass_in_the_other_install(
    pytestconfig: pytest.Config, files: list[str]
) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"),
            *("--install-schema", SCHEMA),
            *("--postgres-major", str(pytestconfig.getoption("--postgres-major"))),
            *files,
        ],
        cwd=TESTS.parent,
        env={name: value for name, value in os.environ.items() if "PYTEST" not in name},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:]


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
