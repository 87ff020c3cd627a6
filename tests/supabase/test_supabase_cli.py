"""Supabase's own command line against the migrations, over TCP and without Docker.

It is found by SUPABASE_CLI, in node_modules/.bin or on the PATH; `npm install` puts it there.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from second_brain.database import migrations
from support.processes import finished, succeeded

ROOT = Path(__file__).parents[2]
INSTALLED = ROOT / "node_modules" / ".bin" / "supabase"
PROGRAM = os.environ.get("SUPABASE_CLI") or (
    str(INSTALLED) if INSTALLED.exists() else shutil.which("supabase")
)

pytestmark = pytest.mark.skipif(
    PROGRAM is None, reason="the Supabase CLI is absent: npm install, or set SUPABASE_CLI"
)

ALL = migrations.modules()
# What a push from the checkout installs: core, as `init` without modules writes.
PUSHED = migrations.select(migrations.find(), ())

Cli = Callable[..., "subprocess.CompletedProcess[str]"]


def url(dsn: str) -> str:
    part = conninfo_to_dict(dsn)
    login = f"{part['user']}:{quote(str(part['password']), safe='')}"
    return f"postgresql://{login}@{part['host']}:{part['port']}/{part['dbname']}"


@pytest.fixture
def supabase(plain_dsn: str, tmp_path: Path) -> Cli:
    """Run the CLI against this test's database, as its owner; the work tree is the repository's."""

    def run(*arguments: str, project: Path = ROOT) -> "subprocess.CompletedProcess[str]":
        options = (f"--remote={url(plain_dsn)}", f"--workdir={project}", "--yes")
        # A home of its own: it must not find a login or leave settings behind.
        home = {"HOME": str(tmp_path), "SUPABASE_TELEMETRY_DISABLED": "1"}
        return finished(PROGRAM, *arguments, *options, env={**os.environ, **home})

    return run


def a_project(place: Path) -> Path:
    (place / "supabase" / "migrations").mkdir(parents=True)
    (place / "supabase" / "config.toml").write_text('project_id = "own"\n')
    return place


def installed_modules(dsn: str) -> tuple[str, ...]:
    with psycopg.connect(dsn) as connection:
        return migrations.installed_modules(connection)


def said(done: "subprocess.CompletedProcess[str]") -> str:
    return succeeded(done) + done.stderr


def versions(supabase: Cli) -> list[tuple[str, str]]:
    listed = succeeded(supabase("migration", "list", "--output-format=json"))
    return [(row["local"], row["remote"]) for row in json.loads(listed)["migrations"]]


def test_push_applies_every_migration_and_records_what_migrate_records(
    supabase: Cli, plain_dsn: str
) -> None:
    succeeded(supabase("db", "push"))
    expected = [
        (one.version, one.name, [statement for _, statement in migrations.statements(one.sql)])
        for one in PUSHED
    ]
    with psycopg.connect(plain_dsn) as connection:
        recorded = connection.execute(
            "select version, name, statements from supabase_migrations.schema_migrations order by 1"
        ).fetchall()
        superuser = "select rolsuper from pg_roles where rolname = current_user"
        assert connection.execute(superuser).fetchone() == (False,)
    assert recorded == expected


def test_a_checkout_pushes_what_init_writes(tmp_path: Path) -> None:
    pushed = sorted((ROOT / "supabase" / "migrations").glob("*.sql"))
    written = migrations.init(tmp_path, 1024)
    assert [one.read_text("utf-8") for one in written] == [one.read_text("utf-8") for one in pushed]


def test_migration_list_agrees_after_migrate(supabase: Cli, plain_dsn: str) -> None:
    ours = [one.version for one in PUSHED]
    assert versions(supabase) == [(version, "") for version in ours]
    migrations.apply(plain_dsn)
    assert versions(supabase) == [(version, version) for version in ours]


def test_the_advisors_have_nothing_to_warn_of(supabase: Cli, plain_dsn: str) -> None:
    migrations.apply(plain_dsn, modules=ALL)
    with psycopg.connect(plain_dsn, autocommit=True) as connection:
        for role in ("anon", "authenticated"):
            connection.execute("select knowledge_internal.let_search(%s)", [role])
    advisors = supabase("db", "advisors", "--level=warn", "--fail-on=warn")
    assert "No issues found" in said(advisors)


@pytest.mark.parametrize("modules", [(), ALL], ids=["core", "all"])
def test_the_security_advisor_has_no_remark_at_all(
    supabase: Cli, plain_dsn: str, modules: tuple[str, ...]
) -> None:
    migrations.apply(plain_dsn, modules=modules)
    options = ("--type=security", "--level=info", "--fail-on=info")
    assert "No issues found" in said(supabase("db", "advisors", *options))


@pytest.mark.slow
def test_the_advisors_would_notice_a_table_without_row_level_security(
    supabase: Cli, plain_dsn: str
) -> None:
    migrations.apply(plain_dsn, modules=ALL)
    with psycopg.connect(plain_dsn) as connection:
        connection.execute("alter table public.knowledge_documents disable row level security")
    done = supabase("db", "advisors", "--level=warn", "--fail-on=warn")
    assert done.returncode != 0
    assert "knowledge_documents" in done.stdout + done.stderr


@pytest.mark.parametrize("modules", [(), ALL], ids=["core", "all"])
def test_what_init_writes_into_a_project_is_pushed_after_its_own_migrations(
    supabase: Cli, plain_dsn: str, tmp_path: Path, modules: tuple[str, ...]
) -> None:
    project = a_project(tmp_path / "project")
    own = project / "supabase" / "migrations"
    (own / "20240101000000_profiles.sql").write_text("create table public.profiles (id int);")
    succeeded(supabase("db", "push", project=project))
    migrations.init(own, 384, modules=modules)
    succeeded(supabase("db", "push", project=project))
    with psycopg.connect(plain_dsn) as connection:
        assert migrations.stored_dimensions(connection) == 384
    assert installed_modules(plain_dsn) == modules
    assert migrations.apply(plain_dsn) == []


def test_modules_are_pushed_after_core(supabase: Cli, plain_dsn: str, tmp_path: Path) -> None:
    project = a_project(tmp_path / "project")
    for modules in ((), ALL):
        migrations.init(project / "supabase" / "migrations", 384, modules=modules)
        succeeded(supabase("db", "push", project=project))
    assert installed_modules(plain_dsn) == ALL
    assert migrations.apply(plain_dsn) == []


def test_a_project_fetches_the_files_that_the_sql_editor_has_installed(
    supabase: Cli, plain_dsn: str, tmp_path: Path
) -> None:
    with psycopg.connect(plain_dsn, autocommit=True) as connection:
        connection.execute(migrations.one_file(384, modules=["facets"]).encode())
    project = a_project(tmp_path / "own")
    own = project / "supabase" / "migrations"
    succeeded(supabase("migration", "fetch", project=project))
    assert migrations.written_modules(own) == ("facets",)
    assert migrations.init(own, 384) == []
    assert "up to date" in said(supabase("db", "push", project=project))
    assert len(migrations.init(own, 384, modules=["own_documents"])) == 1
    succeeded(supabase("db", "push", project=project))
    assert installed_modules(plain_dsn) == ("facets", "own_documents")
