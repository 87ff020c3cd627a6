"""An install in another schema: how the files are rendered, and what lives beside the first one."""

import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from second_brain.database import catalogue, doctor, migrations, naming
from second_brain.database.migrations import Migration
from second_brain.errors import InvalidInputError

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


def run_tests(pytestconfig: pytest.Config, *arguments: str) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"),
            *("--install-schema", SCHEMA),
            *("--postgres-major", str(pytestconfig.getoption("--postgres-major"))),
            *arguments,
        ],
        cwd=TESTS.parent,
        env={name: value for name, value in os.environ.items() if "PYTEST" not in name},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:]


@pytest.mark.slow
def test_searches_answer_the_same_in_the_other_install(pytestconfig: pytest.Config) -> None:
    run_tests(pytestconfig, "tests/search/test_explain.py")


@pytest.mark.slow
def test_the_other_tests_of_the_search_pass_in_the_other_install(
    pytestconfig: pytest.Config,
) -> None:
    # test_hybrid_search.py reads the files; the commands of test_vector_index.py work on public.
    names = (
        *("search", "filters", "filter_indexes", "full_pools", "snippets", "languages"),
        "search_properties",
    )
    run_tests(pytestconfig, *(f"tests/search/test_{name}.py" for name in names))


@pytest.mark.slow
def test_the_clients_pass_their_tests_in_the_other_install(pytestconfig: pytest.Config) -> None:
    run_tests(
        pytestconfig,
        "tests/providers/test_postgres_provider.py",
        "tests/providers/test_postgres_and_supabase.py",
        "tests/providers/test_provider_filters.py",
        "tests/writing/test_writer.py",
        "tests/writing/test_ingest.py",
        "tests/tools/test_cli_knowledge.py",
        "tests/tools/test_cli_ingest.py",
    )
