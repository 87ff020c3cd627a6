"""The commands of the database's life, as a user runs them: one install, and those of a file."""

import json
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from command_line import Done, Run, runner
from conftest import Server
from second_brain.cli.installs import Outcome, for_all
from second_brain.database import migrations
from second_brain.database.embedded import EmbeddedPostgres
from support.databases import query
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


def in_process(folder: Path, *arguments: str) -> Done:
    """Run second-brain in a process of its own, which a command takes half a second for."""
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


def fails(done: Done) -> str:
    """Return the one line of a user's error, after the one that names the database."""
    assert done.code == 1, done.out + done.err
    assert done.out == ""
    *said, error = done.err.splitlines()
    assert all(line.startswith("Database: ") for line in said[:1])
    assert len(said) <= 1
    assert error.startswith("error: ")
    return error


def dimensions_of(dsn: str) -> int | None:
    with psycopg.connect(dsn) as connection:
        return migrations.stored_dimensions(connection)


def test_a_dev_database_from_start_to_reset(run: Run, folder: Path) -> None:
    def dev(*arguments: str, **environment: str) -> Done:
        return run("server", "dev", *arguments, **environment)

    assert dev("status").code == 1

    started = in_process(folder, "server", "dev", "start")
    assert started.code == 0, started.err
    dsn = started.out.strip()
    assert urlsplit(dsn).hostname == "127.0.0.1"
    assert stat.S_IMODE((folder / ".second-brain/postgres/server.json").stat().st_mode) == 0o600
    assert (folder / ".second-brain/.gitignore").read_text() == "*\n"
    assert dev("start").out.strip() == dsn
    assert "DATABASE_URL" not in started.err + dev("start", DATABASE_URL=dsn).err
    hidden = dev("start", DATABASE_URL=NOWHERE)
    assert hidden.out.strip() == dsn
    assert "do not use it, because $DATABASE_URL is set to another database" in hidden.err
    assert "hunter2" not in hidden.err

    migrated = run("migrate", "--dimensions", "5")
    assert migrated.code == 0
    assert "from .second-brain/ of this folder\n" in migrated.err
    assert dimensions_of(dsn) == 5
    assert run("doctor").code == 0

    assert dev("stop").code == 0
    stopped = dev("status", "--json")
    assert (stopped.code, json.loads(stopped.out)["status"]) == (1, "stopped")
    assert "stopped" in fails(run("migrate"))

    assert in_process(folder, "server", "dev", "reset").code == 1
    assert dev("start").out.strip() == dsn
    assert run("doctor").code == 0
    assert dimensions_of(dev("reset", "--yes").out.strip()) is None


@pytest.mark.slow
def test_a_dev_database_with_replicas(run: Run) -> None:
    started = run("server", "dev", "start", "--replicas", "2")
    assert started.code == 0, started.err
    told = json.loads(run("server", "dev", "status", "--json").out)
    assert [one["status"] for one in told["replicas"]] == ["running", "running"]
    for one in told["replicas"]:
        assert one["dsn"] in started.err
        assert query(one["dsn"], "select pg_is_in_recovery()") == [(True,)]
    assert run("server", "dev", "stop").code == 0
    assert "Replica 2: postgresql://" in run("server", "dev", "start", "--replicas", "2").err
    run("server", "dev", "start", "--replicas", "0")
    assert json.loads(run("server", "dev", "status", "--json").out)["replicas"] == []


def test_the_major_version_of_a_dev_database_can_be_chosen(run: Run) -> None:
    assert run("server", "dev", "start", "--postgres-major", "16").code == 0
    state = json.loads(run("server", "dev", "status", "--json").out)
    assert (state["status"], state["major"]) == ("running", 16)
    assert "PostgreSQL 16, not 18" in fails(run("server", "dev", "start", "--postgres-major", "18"))


@pytest.mark.slow
def test_the_demo_answers_five_questions_three_ways_and_can_be_repeated(run: Run) -> None:
    # The demo is for this folder: a database that the environment names must not be touched.
    first = run("demo", DATABASE_URL="postgresql://nobody@127.0.0.1:1/none")
    assert first.code == 0, first.err
    assert first.out.count("Question: ") == 5
    assert first.out.count(" vector ") == first.out.count(" hybrid ") == 5
    assert max(map(len, first.out.splitlines())) <= 100
    answers = dict(part.partition("\n")[::2] for part in first.out.split("Question: ")[1:])
    assert "functools" in answers["lru_cache"]
    assert "difflib" in answers["Obershelp"]
    again = run("demo", DATABASE_URL="postgresql://nobody@127.0.0.1:1/none")
    assert "added" not in again.out
    assert again.out.partition("Question")[2] == first.out.partition("Question")[2]


def test_migrate_says_what_it_applies_and_then_that_nothing_is_left(
    run: Run, plain_dsn: str
) -> None:
    first = run("migrate", "--dimensions", "7", "--dsn", plain_dsn)
    assert first.code == 0, first.err
    assert "Applying 009_hybrid_search.sql" in first.err
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
    for variable in ("SECOND_BRAIN_DSN", "DATABASE_URL"):
        told = run("doctor", **{variable: NOWHERE}).err
        assert told.startswith(f"Database: nowhere at 127.0.0.1, port 1, from ${variable}\n")
        assert "hunter2" not in told
    assert "Database" not in run("doctor", "--dsn", dsn, DATABASE_URL=NOWHERE).err


@pytest.mark.parametrize("password", ["hunt@er2", "1/hunt@er2"])
def test_a_password_that_libpq_takes_for_the_host_is_not_told(run: Run, password: str) -> None:
    told = run("doctor", DATABASE_URL=f"postgresql://somebody:{password}@127.0.0.1:1/nowhere")
    assert told.code == 1
    assert "from $DATABASE_URL\n" in told.err
    assert "er2" not in told.err, told.err


def test_the_prelude_prepares_a_plain_database(run: Run, server: Server) -> None:
    name = "second_brain_plain"
    server.create_database(name, "template1")
    try:
        owner, admin = server.owner_dsn(name), server.admin_dsn(name)
        without = run("migrate", "--dimensions", "3", "--dsn", owner)
        assert without.code == 1
        assert "second-brain migrate --prelude" in without.err
        assert run("migrate", "--prelude", "--dimensions", "3", "--dsn", admin).code == 0
        assert run("doctor", "--dsn", owner).code == 0
    finally:
        server.drop_database(name)


def test_something_that_is_no_dsn_is_one_line(run: Run) -> None:
    fails(run("doctor", "--dsn", "not a dsn"))


def test_another_dimension_is_one_line_with_the_remedy(run: Run, dsn: str) -> None:
    said = fails(run("migrate", "--dimensions", "4", "--dsn", dsn))
    assert "3 dimensions, not 4" in said
    assert "--dimensions 3" in said


def test_init_writes_and_then_finds_nothing_to_write(run: Run, folder: Path) -> None:
    into = folder / "supabase" / "migrations"
    init = ("init", "--dimensions", "384", "--into")
    done = run(*init, "supabase/migrations")
    assert done.code == 0
    assert len(done.out.splitlines()) == len(list(into.iterdir())) == CORE
    again = run(*init, "supabase/migrations")
    assert (again.code, again.out) == (0, "")
    assert "cannot be made" in fails(run(*init, str(next(into.iterdir()))))
    assert "384 dimensions, not 768" in fails(run("init", "--dimensions", "768"))


def test_init_into_numbered_migrations_says_what_a_push_needs(run: Run, folder: Path) -> None:
    into = folder / "supabase" / "migrations"
    into.mkdir(parents=True, exist_ok=True)
    (into / "0001_profiles.sql").write_text("create table public.profiles (id int primary key);")
    done = run("init", "--dimensions", "3", "--into", "supabase/migrations")
    assert done.code == 0, done.err
    assert "0001_profiles.sql has a number" in done.err
    assert "--include-all" in done.err


def test_modules_are_added_to_files_and_databases(run: Run, plain_dsn: str) -> None:
    init, dsn = ("init", "--dimensions", "3", "--declarative"), ("--dsn", plain_dsn)
    assert run(*init).code == 0
    added = run(*init, "--with", "facets").out.splitlines()
    assert [line.split("/")[-2] for line in added] == ["migrations", "schemas"]
    assert all(line.endswith("_facets.sql") for line in added)
    assert run("migrate", "--dimensions", "3", *dsn).code == 0
    assert run("migrate", "--with", "facets,own_documents", *dsn).out == "Applied 2 migrations.\n"
    told = run("doctor", *dsn).out
    assert "modules: facets, own_documents; not installed: words (typos," in told
    removed = run("server", "uninstall", "--module", "facets", "--apply", "--yes", *dsn)
    assert removed.out == "The module facets in schema public is removed.\n"
    assert "modules: own_documents; not" in run("doctor", *dsn).out


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
    query(plain_dsn, printed.out)
    assert run("migrate", "--dsn", plain_dsn).out.startswith("Nothing to apply")
    assert "--declarative" in fails(run(*one_file, "--declarative"))


def test_doctor_fails_when_something_is_wrong_and_says_what(run: Run, dsn: str) -> None:
    query(dsn, "alter table public.knowledge_sources disable row level security")
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


def test_the_version_is_the_distributions(folder: Path) -> None:
    assert in_process(folder, "--version")[:2] == (0, "second-brain 0.1.0\n")


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


@pytest.fixture
def file(folder: Path, plain_dsn: str) -> Path:
    """Three installs for `--all`, the second in a database that does not exist."""
    path = folder / "installs.txt"
    path.write_text(f"# ours\n{plain_dsn} acme\n\n{NOWHERE}\n  {plain_dsn}\tglobex  \n")
    return path


def schemas(dsn: str) -> list[str]:
    chunks = "select schemaname from pg_tables where tablename = 'knowledge_chunks' order by 1"
    return [name for (name,) in query(dsn, chunks)]


@pytest.mark.slow
def test_the_other_installs_go_on_after_a_failure(run: Run, file: Path, plain_dsn: str) -> None:
    done = run("migrate", "--all", str(file), "--dimensions", "3")
    assert done.code == 1
    where = "{host}:{port}/{dbname}".format(**conninfo_to_dict(plain_dsn))
    lines = [line.split() for line in done.out.splitlines()]
    assert [line[:4] for line in lines[1:]] == [
        ["2", where, "acme", "ok"],
        ["4", "127.0.0.1:1/nowhere", "public", "error"],
        ["5", where, "globex", "ok"],
    ]
    assert "line 4: no connection to database 'nowhere' at host 127.0.0.1" in done.err
    assert "3 installs, 1 with an error." in done.err
    assert schemas(plain_dsn) == ["acme", "globex"]

    examined = run("doctor", "--all", str(file), "--json")
    assert examined.code == 1
    found = [(one["line"], one["is_good"]) for one in json.loads(examined.out)]
    assert found == [(2, True), (4, False), (5, True)]
    assert "hunter2" not in done.out + done.err + examined.out + examined.err


@pytest.mark.slow
def test_it_stops_at_an_install_that_fails_if_asked(run: Run, file: Path, plain_dsn: str) -> None:
    done = run("migrate", "--all", str(file), "--stop", "--dimensions", "3")
    assert done.code == 1
    assert "2 installs, 1 with an error, 1 not tried." in done.err
    assert schemas(plain_dsn) == ["acme"]


@pytest.mark.parametrize(
    ("line", "schema"),
    [
        ("postgresql://me@h:1/db", "public"),
        ("postgres://me@h:1/db?sslmode=disable tenant_a", "tenant_a"),
        ("host=h port=1 dbname=db", "public"),
        ("host=h port=1 dbname=db tenant_a", "tenant_a"),
        ("host=h port=1 dbname=db password='hunter2 is mine'", "public"),
        ("host=h port=1 dbname=db password='hunter2 is mine' acme", "acme"),
    ],
)
def test_a_line_is_a_connection_string_and_a_schema(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, schema: str
) -> None:
    file = tmp_path / "installs.txt"
    file.write_text(line)
    asked: list[str] = []

    def work(dsn: str, schema: str) -> Outcome:
        asked.append(make_conninfo(dsn))
        return Outcome(True, "up to date")

    for_all(file, "public", work, as_json=True)
    (told,) = json.loads(capsys.readouterr().out)
    assert (told["schema"], told["database"]) == (schema, "h:1/db")
    assert asked == [make_conninfo(line.removesuffix(f" {schema}"))]


def test_a_line_that_is_no_install_is_named_and_not_shown(
    run: Run, folder: Path, plain_dsn: str
) -> None:
    lines = [
        "hunter2",
        "postgresql://me:hunter2@h/db acme globex",
        "postgresql://me:hunter2@x@h/db",
        "postgresql://me:my hunter2@h/db",
        "postgresql://me@h/db?password=hunter2 pg_catalog",
        "host=h password='hunter2",
        "host=h password=my hunter2's",
        "host=h passwort=hunter2 acme",
        "host=h password=hunter2 Acme;drop",
    ]
    (folder / "installs.txt").write_text("\n".join([*lines, f"{plain_dsn} acme"]))
    done = run("migrate", "--all", "installs.txt", "--dimensions", "3")
    assert done.code == 1
    assert all(f"line {number}: " in done.err for number in range(1, len(lines) + 1))
    assert "hunter2" not in done.out + done.err
    assert schemas(plain_dsn) == ["acme"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["empty.txt"], "empty.txt has no install"),
        (["absent.txt"], "absent.txt cannot be read"),
        (["empty.txt", "--prelude"], "--prelude, which needs more rights"),
        (["empty.txt", "--dsn", NOWHERE], "not from --dsn"),
    ],
)
def test_a_file_without_an_install_and_what_does_not_go_with_it_are_refused(
    run: Run, folder: Path, arguments: list[str], said: str
) -> None:
    (folder / "empty.txt").write_text("# nothing\n")
    done = run("migrate", "--all", *arguments)
    assert done.code != 0
    assert said in done.err
