"""The commands of the database's life, run as a user runs them: in a process of their own."""

import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from second_brain.database import migrations
from second_brain.database.embedded import EmbeddedPostgres
from tools import throw_away

Run = Callable[..., "subprocess.CompletedProcess[str]"]

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
def run(folder: Path) -> Run:
    """Run second-brain in `folder`, without a database in the environment unless one is given."""

    def second_brain(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        inherited = {
            name: value
            for name, value in os.environ.items()
            if name not in ("SECOND_BRAIN_DSN", "DATABASE_URL")
        }
        return subprocess.run(
            [sys.executable, "-c", "from second_brain.cli import main; main()", *arguments],
            cwd=folder,
            env={**inherited, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return second_brain


def fails(done: "subprocess.CompletedProcess[str]") -> str:
    """Return the one line of a user's error, after the one that names the database."""
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout == ""
    *said, error = done.stderr.splitlines()
    assert all(line.startswith("Database: ") for line in said[:1])
    assert len(said) <= 1
    assert error.startswith("error: ")
    return error


def test_a_dev_database_from_start_to_reset(run: Run, folder: Path) -> None:
    assert run("dev", "status").returncode == 1

    started = run("dev", "start")
    assert started.returncode == 0, started.stderr
    dsn = started.stdout.strip()
    assert urlsplit(dsn).hostname == "127.0.0.1"
    assert stat.S_IMODE((folder / ".second-brain/postgres/server.json").stat().st_mode) == 0o600
    assert (folder / ".second-brain/.gitignore").read_text() == "*\n"
    assert run("dev", "start").stdout.strip() == dsn
    assert "DATABASE_URL" not in started.stderr + run("dev", "start", DATABASE_URL=dsn).stderr
    hidden = run("dev", "start", DATABASE_URL=NOWHERE)
    assert hidden.stdout.strip() == dsn
    assert "do not use it, because $DATABASE_URL is set to another database" in hidden.stderr
    assert "hunter2" not in hidden.stderr

    migrated = run("migrate", "--dimensions", "5")
    assert migrated.returncode == 0
    assert "from .second-brain/ of this folder\n" in migrated.stderr
    with psycopg.connect(dsn) as connection:
        assert migrations.stored_dimensions(connection) == 5
    assert run("doctor").returncode == 0

    assert run("dev", "stop").returncode == 0
    stopped = run("dev", "status", "--json")
    assert (stopped.returncode, json.loads(stopped.stdout)["status"]) == (1, "stopped")
    assert "stopped" in fails(run("migrate"))

    refused = run("dev", "reset")
    assert refused.returncode == 1
    assert run("dev", "start").stdout.strip() == dsn
    assert run("doctor").returncode == 0

    fresh = run("dev", "reset", "--yes").stdout.strip()
    with psycopg.connect(fresh) as connection:
        assert migrations.stored_dimensions(connection) is None


def test_a_dev_database_with_replicas(run: Run) -> None:
    started = run("dev", "start", "--replicas", "2")
    assert started.returncode == 0, started.stderr
    told = json.loads(run("dev", "status", "--json").stdout)
    assert [one["status"] for one in told["replicas"]] == ["running", "running"]
    for one in told["replicas"]:
        assert one["dsn"] in started.stderr
        with psycopg.connect(one["dsn"]) as connection:
            assert connection.execute("select pg_is_in_recovery()").fetchone() == (True,)
    assert run("dev", "stop").returncode == 0
    assert "Replica 2: postgresql://" in run("dev", "start", "--replicas", "2").stderr
    run("dev", "start", "--replicas", "0")
    assert json.loads(run("dev", "status", "--json").stdout)["replicas"] == []


def test_the_major_version_of_a_dev_database_can_be_chosen(run: Run) -> None:
    assert run("dev", "start", "--postgres-major", "16").returncode == 0
    state = json.loads(run("dev", "status", "--json").stdout)
    assert (state["status"], state["major"]) == ("running", 16)
    assert "PostgreSQL 16, not 18" in fails(run("dev", "start", "--postgres-major", "18"))


def test_migrate_says_what_it_applies_and_then_that_nothing_is_left(
    run: Run, plain_dsn: str
) -> None:
    first = run("migrate", "--dimensions", "7", "--dsn", plain_dsn)
    assert first.returncode == 0, first.stderr
    assert "Applying 009_hybrid_search.sql" in first.stderr
    assert first.stdout == f"Applied {CORE} migrations.\n"
    second = run("migrate", "--dsn", plain_dsn)
    assert (second.returncode, second.stdout) == (
        0,
        "Nothing to apply: the database is up to date.\n",
    )


def test_a_new_database_gets_the_size_of_the_embedder(
    run: Run, plain_dsn: str, folder: Path
) -> None:
    (folder / "a.md").write_text("A zebra.")
    first = run("migrate", "--dsn", plain_dsn)
    assert "Embeddings of 256 dimensions, for wordllama-l2-256\n" in first.stderr
    assert run("ingest", "a.md", "--dsn", plain_dsn).returncode == 0
    assert "Embeddings of" not in run("migrate", "--dsn", plain_dsn).stderr


def test_the_embedder_of_every_command_can_be_set_once(run: Run, plain_dsn: str) -> None:
    said = run("migrate", "--dsn", plain_dsn, SECOND_BRAIN_EMBEDDER="no-such:model").stderr
    assert "no-such" in said


def test_the_dsn_comes_from_the_option_then_either_variable(run: Run, dsn: str) -> None:
    assert run("doctor", "--dsn", dsn, SECOND_BRAIN_DSN=NOWHERE).returncode == 0
    assert run("doctor", SECOND_BRAIN_DSN=dsn, DATABASE_URL=NOWHERE).returncode == 0
    assert run("doctor", DATABASE_URL=dsn).returncode == 0
    assert "dev start" in fails(run("doctor"))


def test_a_database_that_the_command_line_does_not_name_is_named(run: Run, dsn: str) -> None:
    place = "Database: nowhere at 127.0.0.1, port 1, from ${}\n"
    for variable in ("SECOND_BRAIN_DSN", "DATABASE_URL"):
        told = run("doctor", **{variable: NOWHERE}).stderr
        assert told.startswith(place.format(variable))
        assert "hunter2" not in told
    assert "Database" not in run("doctor", "--dsn", dsn, DATABASE_URL=NOWHERE).stderr


@pytest.mark.parametrize("password", ["hunt@er2", "1/hunt@er2"])
def test_a_password_that_libpq_takes_for_the_host_is_not_told(run: Run, password: str) -> None:
    told = run("doctor", DATABASE_URL=f"postgresql://somebody:{password}@127.0.0.1:1/nowhere")
    assert told.returncode == 1
    assert "from $DATABASE_URL\n" in told.stderr
    assert "er2" not in told.stderr, told.stderr


def test_the_prelude_prepares_a_plain_database(run: Run, server: Any) -> None:
    server.create_database("second_brain_plain", "template1")
    try:
        owner, admin = (
            server.owner_dsn("second_brain_plain"),
            server.admin_dsn("second_brain_plain"),
        )
        without = run("migrate", "--dimensions", "3", "--dsn", owner)
        assert without.returncode == 1
        assert "second-brain migrate --prelude" in without.stderr
        assert run("migrate", "--prelude", "--dimensions", "3", "--dsn", admin).returncode == 0
        assert run("doctor", "--dsn", owner).returncode == 0
    finally:
        server.drop_database("second_brain_plain")


@pytest.mark.parametrize("command", ["migrate", "doctor"])
def test_an_unreachable_database_is_one_line_without_the_password(run: Run, command: str) -> None:
    said = fails(run(command, "--dsn", NOWHERE))
    assert "hunter2" not in said
    assert "refused" in said


def test_a_wrong_password_is_one_line_without_the_password(run: Run, plain_dsn: str) -> None:
    wrong = make_conninfo(plain_dsn, password="hunter2")
    said = fails(run("migrate", "--dsn", wrong))
    assert "hunter2" not in said
    right = str(conninfo_to_dict(plain_dsn)["password"])
    assert right not in run("migrate", "--dsn", plain_dsn, "--dimensions", "0").stderr


def test_something_that_is_no_dsn_is_one_line(run: Run) -> None:
    fails(run("doctor", "--dsn", "not a dsn"))


def test_another_dimension_is_one_line_with_the_remedy(run: Run, dsn: str) -> None:
    said = fails(run("migrate", "--dimensions", "4", "--dsn", dsn))
    assert "3 dimensions, not 4" in said
    assert "--dimensions 3" in said


def test_init_writes_and_then_finds_nothing_to_write(run: Run, folder: Path) -> None:
    into = folder / "supabase" / "migrations"
    done = run("init", "--dimensions", "384", "--into", "supabase/migrations")
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == len(list(into.iterdir())) == CORE
    again = run("init", "--dimensions", "384", "--into", "supabase/migrations")
    assert (again.returncode, again.stdout) == (0, "")
    assert "384 dimensions, not 768" in fails(run("init", "--dimensions", "768"))


def test_modules_are_added_to_files_and_databases(run: Run, folder: Path, plain_dsn: str) -> None:
    init = ("init", "--dimensions", "3", "--declarative")
    assert run(*init).returncode == 0
    added = run(*init, "--with", "facets").stdout.splitlines()
    assert [line.split("/")[-2] for line in added] == ["migrations", "schemas"]
    assert all(line.endswith("_facets.sql") for line in added)
    assert run("migrate", "--dimensions", "3", "--dsn", plain_dsn).returncode == 0
    more = run("migrate", "--with", "facets,own_documents", "--dsn", plain_dsn)
    assert more.stdout == "Applied 2 migrations.\n"
    told = run("doctor", "--dsn", plain_dsn).stdout
    assert "modules: facets, own_documents; not installed: words (typos," in told
    removed = run("uninstall", "--module", "facets", "--apply", "--yes", "--dsn", plain_dsn)
    assert removed.stdout == "The module facets in schema public is removed.\n"
    assert "modules: own_documents; not" in run("doctor", "--dsn", plain_dsn).stdout


@pytest.mark.parametrize("command", [("init", "--dimensions", "3"), ("migrate", "--dsn", NOWHERE)])
def test_an_unknown_module_is_refused_with_a_line_for_each(run: Run, command: list[str]) -> None:
    refused = run(*command, "--with", "facet")
    assert refused.returncode == 1
    assert "there is no module 'facet'" in refused.stderr
    for module in migrations.modules():
        assert f"\n  {module}: " in refused.stderr


def test_one_file_is_printed_or_written(run: Run, folder: Path, plain_dsn: str) -> None:
    one_file = ("init", "--one-file", "--dimensions", "3", "--with", "facets")
    printed = run(*one_file)
    assert run(*one_file, "--into", "install.sql").stdout == ""
    assert (folder / "install.sql").read_text() == printed.stdout
    with psycopg.connect(plain_dsn, autocommit=True) as connection:
        connection.execute(printed.stdout.encode())
    assert run("migrate", "--dsn", plain_dsn).stdout.startswith("Nothing to apply")
    assert "--declarative" in fails(run(*one_file, "--declarative"))


def test_doctor_fails_when_something_is_wrong_and_says_what(run: Run, dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute("alter table public.knowledge_sources disable row level security")
    told = run("doctor", "--dsn", dsn)
    assert told.returncode == 1
    assert "enable row level security" in told.stdout
    findings = json.loads(run("doctor", "--dsn", dsn, "--json").stdout)
    assert [one["check"] for one in findings if one["status"] == "error"] == ["row level security"]


@pytest.mark.parametrize(
    "arguments",
    [("migrate", "--no-such-option"), ("init",), ("dev", "fly"), ("migrate", "--dimensions", "x")],
)
def test_wrong_usage_ends_with_code_2_and_the_usage(run: Run, arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert "Usage: second-brain" in done.stderr


@pytest.mark.parametrize(
    "command",
    ["migrate", "init", "doctor", "dev start", "dev stop", "dev status", "dev reset"],
)
def test_help_of_every_command_shows_an_example(run: Run, command: str) -> None:
    done = run(*command.split(), "--help")
    assert done.returncode == 0
    assert f"  second-brain {command}" in done.stdout.partition("Examples:")[2]


def test_the_version_is_the_distributions(run: Run) -> None:
    done = run("--version")
    assert (done.returncode, done.stdout) == (0, "second-brain 0.1.0\n")


def test_an_install_of_another_schema_is_migrated_examined_and_handed_out(
    run: Run, folder: Path, plain_dsn: str
) -> None:
    schema = ("--schema", "knowledge_de")
    assert run("migrate", "--dimensions", "3", "--dsn", plain_dsn, *schema).returncode == 0
    assert run("doctor", "--dsn", plain_dsn, *schema).returncode == 0
    assert "are missing" in run("doctor", "--dsn", plain_dsn).stdout
    written = run("init", "--dimensions", "3", "--declarative", *schema).stdout.split()
    assert any(name.endswith("_second_brain_knowledge_de_001_extensions.sql") for name in written)
    assert "supabase/schemas/second_brain_knowledge_de_01_extensions.sql" in written
    assert all((folder / name).exists() for name in written)
    refused = run("migrate", "--dsn", plain_dsn, "--schema", "select")
    assert (refused.returncode, "schema must not be 'select'" in refused.stderr) == (1, True)
