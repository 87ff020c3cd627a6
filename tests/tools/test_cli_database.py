"""The commands of the database's life, as a user runs them."""

import json
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from command_line import Done, Run, runner
from second_brain.database import migrations
from second_brain.database.embedded import EmbeddedPostgres
from tools import throw_away

CORE = sum(one.module is None for one in migrations.find())
NOWHERE = "postgresql://somebody:hunter2@127.0.0.1:1/nowhere"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder to run commands in; its dev database is stopped at the end."""
    place = throw_away.folder()
    yield place
    EmbeddedPostgres(place / ".second-brain" / "postgres").remove()
    shutil.rmtree(place)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: Path) -> Run:
    """Run second-brain in `folder`, without a database in the environment unless one is given."""
    run_command = runner(monkeypatch, capsys, folder)

    def second_brain(*arguments: str, **environment: str) -> Done:
        with monkeypatch.context() as changed:
            for name, value in environment.items():
                changed.setenv(name, value)
            return run_command(*arguments)

    return second_brain


@pytest.fixture
def in_process(run: Run, folder: Path) -> Run:
    """Run second-brain in a process of its own, which a command takes half a second for."""

    def second_brain(*arguments: str) -> Done:
        done = subprocess.run(
            [sys.executable, "-c", "from second_brain.cli import main; main()", *arguments],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    return second_brain


def fails(done: Done) -> str:
    """Return the one line of a user's error, after the one that names the database."""
    assert done.code == 1, done.out + done.err
    assert done.out == ""
    *said, error = done.err.splitlines()
    assert all(line.startswith("Database: ") for line in said[:1])
    assert len(said) <= 1
    assert error.startswith("error: ")
    return error


def test_a_dev_database_from_start_to_reset(run: Run, in_process: Run, folder: Path) -> None:
    assert run("server", "dev", "status").code == 1

    started = in_process("server", "dev", "start")
    assert started.code == 0, started.err
    dsn = started.out.strip()
    assert urlsplit(dsn).hostname == "127.0.0.1"
    assert stat.S_IMODE((folder / ".second-brain/postgres/server.json").stat().st_mode) == 0o600
    assert (folder / ".second-brain/.gitignore").read_text() == "*\n"
    assert run("server", "dev", "start").out.strip() == dsn
    assert "DATABASE_URL" not in started.err + run("server", "dev", "start", DATABASE_URL=dsn).err
    hidden = run("server", "dev", "start", DATABASE_URL=NOWHERE)
    assert hidden.out.strip() == dsn
    assert "do not use it, because $DATABASE_URL is set to another database" in hidden.err
    assert "hunter2" not in hidden.err

    migrated = run("migrate", "--dimensions", "5")
    assert migrated.code == 0
    assert "from .second-brain/ of this folder\n" in migrated.err
    with psycopg.connect(dsn) as connection:
        assert migrations.stored_dimensions(connection) == 5
    assert run("doctor").code == 0

    assert run("server", "dev", "stop").code == 0
    stopped = run("server", "dev", "status", "--json")
    assert (stopped.code, json.loads(stopped.out)["status"]) == (1, "stopped")
    assert "stopped" in fails(run("migrate"))

    refused = in_process("server", "dev", "reset")
    assert refused.code == 1
    assert run("server", "dev", "start").out.strip() == dsn
    assert run("doctor").code == 0

    fresh = run("server", "dev", "reset", "--yes").out.strip()
    with psycopg.connect(fresh) as connection:
        assert migrations.stored_dimensions(connection) is None


@pytest.mark.slow
def test_a_dev_database_with_replicas(run: Run) -> None:
    started = run("server", "dev", "start", "--replicas", "2")
    assert started.code == 0, started.err
    told = json.loads(run("server", "dev", "status", "--json").out)
    assert [one["status"] for one in told["replicas"]] == ["running", "running"]
    for one in told["replicas"]:
        assert one["dsn"] in started.err
        with psycopg.connect(one["dsn"]) as connection:
            assert connection.execute("select pg_is_in_recovery()").fetchone() == (True,)
    assert run("server", "dev", "stop").code == 0
    assert "Replica 2: postgresql://" in run("server", "dev", "start", "--replicas", "2").err
    run("server", "dev", "start", "--replicas", "0")
    assert json.loads(run("server", "dev", "status", "--json").out)["replicas"] == []


def test_the_major_version_of_a_dev_database_can_be_chosen(run: Run) -> None:
    assert run("server", "dev", "start", "--postgres-major", "16").code == 0
    state = json.loads(run("server", "dev", "status", "--json").out)
    assert (state["status"], state["major"]) == ("running", 16)
    assert "PostgreSQL 16, not 18" in fails(run("server", "dev", "start", "--postgres-major", "18"))


def test_migrate_says_what_it_applies_and_then_that_nothing_is_left(
    run: Run, plain_dsn: str
) -> None:
    first = run("migrate", "--dimensions", "7", "--dsn", plain_dsn)
    assert first.code == 0, first.err
    assert "Applying 010_hybrid_search.sql" in first.err
    assert first.out == f"Applied {CORE} migrations.\n"
    second = run("migrate", "--dsn", plain_dsn)
    assert (second.code, second.out) == (0, "Nothing to apply: the database is up to date.\n")


def test_a_new_database_gets_the_size_of_the_embedder(
    run: Run, plain_dsn: str, folder: Path
) -> None:
    (folder / "a.md").write_text("A zebra.")
    first = run("migrate", "--dsn", plain_dsn)
    assert "Embeddings of 256 dimensions, for wordllama-l2-256\n" in first.err
    assert run("ingest", "a.md", "--dsn", plain_dsn).code == 0
    assert "Embeddings of" not in run("migrate", "--dsn", plain_dsn).err


def test_the_dsn_comes_from_the_option_then_either_variable(run: Run, dsn: str) -> None:
    assert run("doctor", "--dsn", dsn, SECOND_BRAIN_DSN=NOWHERE).code == 0
    assert run("doctor", SECOND_BRAIN_DSN=dsn, DATABASE_URL=NOWHERE).code == 0
    assert run("doctor", DATABASE_URL=dsn).code == 0
    assert "dev start" in fails(run("doctor"))


def test_a_database_that_the_command_line_does_not_name_is_named(run: Run, dsn: str) -> None:
    place = "Database: nowhere at 127.0.0.1, port 1, from ${}\n"
    for variable in ("SECOND_BRAIN_DSN", "DATABASE_URL"):
        told = run("doctor", **{variable: NOWHERE}).err
        assert told.startswith(place.format(variable))
        assert "hunter2" not in told
    assert "Database" not in run("doctor", "--dsn", dsn, DATABASE_URL=NOWHERE).err


@pytest.mark.parametrize("password", ["hunt@er2", "1/hunt@er2"])
def test_a_password_that_libpq_takes_for_the_host_is_not_told(run: Run, password: str) -> None:
    told = run("doctor", DATABASE_URL=f"postgresql://somebody:{password}@127.0.0.1:1/nowhere")
    assert told.code == 1
    assert "from $DATABASE_URL\n" in told.err
    assert "er2" not in told.err, told.err


def test_the_prelude_prepares_a_plain_database(run: Run, server: Any) -> None:
    server.create_database("second_brain_plain", "template1")
    try:
        owner, admin = (
            server.owner_dsn("second_brain_plain"),
            server.admin_dsn("second_brain_plain"),
        )
        without = run("migrate", "--dimensions", "3", "--dsn", owner)
        assert without.code == 1
        assert "second-brain migrate --prelude" in without.err
        assert run("migrate", "--prelude", "--dimensions", "3", "--dsn", admin).code == 0
        assert run("doctor", "--dsn", owner).code == 0
    finally:
        server.drop_database("second_brain_plain")


def test_something_that_is_no_dsn_is_one_line(run: Run) -> None:
    fails(run("doctor", "--dsn", "not a dsn"))


def test_another_dimension_is_one_line_with_the_remedy(run: Run, dsn: str) -> None:
    said = fails(run("migrate", "--dimensions", "4", "--dsn", dsn))
    assert "3 dimensions, not 4" in said
    assert "--dimensions 3" in said


def test_init_writes_and_then_finds_nothing_to_write(run: Run, folder: Path) -> None:
    into = folder / "supabase" / "migrations"
    done = run("init", "--dimensions", "384", "--into", "supabase/migrations")
    assert done.code == 0
    assert len(done.out.splitlines()) == len(list(into.iterdir())) == CORE
    again = run("init", "--dimensions", "384", "--into", "supabase/migrations")
    assert (again.code, again.out) == (0, "")
    file = str(next(into.iterdir()))
    assert "cannot be made" in fails(run("init", "--dimensions", "384", "--into", file))
    assert "384 dimensions, not 768" in fails(run("init", "--dimensions", "768"))


def test_init_into_numbered_migrations_says_what_a_push_needs(run: Run, folder: Path) -> None:
    into = folder / "supabase" / "migrations"
    into.mkdir(parents=True, exist_ok=True)
    (into / "0001_profiles.sql").write_text("create table public.profiles (id int primary key);")
    done = run("init", "--dimensions", "3", "--into", "supabase/migrations")
    assert done.code == 0, done.err
    assert "0001_profiles.sql has a number" in done.err
    assert "--include-all" in done.err


def test_modules_are_added_to_files_and_databases(run: Run, folder: Path, plain_dsn: str) -> None:
    init = ("init", "--dimensions", "3", "--declarative")
    assert run(*init).code == 0
    added = run(*init, "--with", "facets").out.splitlines()
    assert [line.split("/")[-2] for line in added] == ["migrations", "schemas"]
    assert all(line.endswith("_facets.sql") for line in added)
    assert run("migrate", "--dimensions", "3", "--dsn", plain_dsn).code == 0
    more = run("migrate", "--with", "facets,own_documents", "--dsn", plain_dsn)
    assert more.out == "Applied 2 migrations.\n"
    told = run("doctor", "--dsn", plain_dsn).out
    assert "modules: facets, own_documents; not installed: words (typos," in told
    removed = run(
        "server", "uninstall", "--module", "facets", "--apply", "--yes", "--dsn", plain_dsn
    )
    assert removed.out == "The module facets in schema public is removed.\n"
    assert "modules: own_documents; not" in run("doctor", "--dsn", plain_dsn).out


@pytest.mark.parametrize("command", [("init", "--dimensions", "3"), ("migrate", "--dsn", NOWHERE)])
def test_an_unknown_module_is_refused_with_a_line_for_each(run: Run, command: list[str]) -> None:
    refused = run(*command, "--with", "facet")
    assert refused.code == 1
    assert "there is no module 'facet'" in refused.err
    for module in migrations.modules():
        assert f"\n  {module}: " in refused.err


def test_one_file_is_printed_or_written(run: Run, folder: Path, plain_dsn: str) -> None:
    one_file = ("init", "--one-file", "--dimensions", "3", "--with", "facets")
    printed = run(*one_file)
    assert run(*one_file, "--into", "install.sql").out == ""
    assert (folder / "install.sql").read_text() == printed.out
    with psycopg.connect(plain_dsn, autocommit=True) as connection:
        connection.execute(printed.out.encode())
    assert run("migrate", "--dsn", plain_dsn).out.startswith("Nothing to apply")
    assert "--declarative" in fails(run(*one_file, "--declarative"))


def test_doctor_fails_when_something_is_wrong_and_says_what(run: Run, dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute("alter table public.knowledge_sources disable row level security")
    told = run("doctor", "--dsn", dsn)
    assert told.code == 1
    assert "enable row level security" in told.out
    findings = json.loads(run("doctor", "--dsn", dsn, "--json").out)
    assert [one["check"] for one in findings if one["status"] == "error"] == ["row level security"]


@pytest.mark.parametrize("arguments", [("migrate", "--no-such-option"), ("init",)])
def test_wrong_usage_ends_with_code_2_and_the_usage(run: Run, arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert done.code == 2
    assert "Usage: second-brain" in done.err


def test_the_version_is_the_distributions(in_process: Run) -> None:
    done = in_process("--version")
    assert (done.code, done.out) == (0, "second-brain 0.1.0\n")


def test_an_install_of_another_schema_is_migrated_examined_and_handed_out(
    run: Run, folder: Path, plain_dsn: str
) -> None:
    schema = ("--schema", "knowledge_de")
    assert run("migrate", "--dimensions", "3", "--dsn", plain_dsn, *schema).code == 0
    assert run("doctor", "--dsn", plain_dsn, *schema).code == 0
    assert "are missing" in run("doctor", "--dsn", plain_dsn).out
    written = run("init", "--dimensions", "3", "--declarative", *schema).out.split()
    assert any(name.endswith("_second_brain_knowledge_de_001_documents.sql") for name in written)
    assert "supabase/schemas/second_brain_knowledge_de_01_documents.sql" in written
    assert all((folder / name).exists() for name in written)
    refused = run("migrate", "--dsn", plain_dsn, "--schema", "select")
    assert (refused.code, "schema must not be 'select'" in refused.err) == (1, True)
