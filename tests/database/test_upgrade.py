"""Upgrades of a database in use, declarative projects, and a dump restored elsewhere."""

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest

from command_line import Run
from pages import blocks
from second_brain import KnowledgeWriter, PostgresProvider
from second_brain.database import catalogue, doctor, migrations
from second_brain.database.embedded import installed_majors, program
from second_brain.database.embedded_machine import binaries
from second_brain.database.history import installed_modules
from support.databases import query
from tools import migrations as tool
from tools.migrations import Checkout, Databases

needs_cli = pytest.mark.skipif(
    tool.supabase_cli() is None,
    reason="the Supabase CLI is absent: npm install, or set SUPABASE_CLI",
)

# What docs/install.md names: a function that was replaced in that moment, and a conflict.
RETRIED = (psycopg.errors.UndefinedFunction, psycopg.errors.DeadlockDetected)
WORDS = ("harbour", "lighthouse", "ferry", "anchor", "tide")
SEARCH = """
select id, round(rrf_score::numeric, 12)
  from public.hybrid_search_knowledge_chunks(
         query_embedding => '[1, 2, 3]', query_text => %s, match_count => 20, fusion => 'rrf'
       )
"""
# Its signature changes in the next version.
MATCH = (
    "select id from public.match_knowledge_chunks(query_embedding => '[1,2,3]', match_count => 5)"
)
STORE = """
insert into public.knowledge_chunks (collection, content, embedding, embedding_model)
select %(collection)s, %(word)s || ' number ' || number,
       format('[%%s, %%s, 1]', number %% 7, 1 + number %% 5)::extensions.vector, 'm'
  from generate_series(1, %(count)s) as number
"""


def fill(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        for word in WORDS:
            connection.execute(STORE, {"collection": "knowledge", "word": word, "count": 40})
    query(dsn, "analyze public.knowledge_chunks", "select public.refresh_knowledge_statistics()")


def answers(dsn: str) -> list[list[tuple[Any, ...]]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        return [connection.execute(SEARCH, [word]).fetchall() for word in WORDS]


@dataclass
class Load:
    """Searches and writes in threads, until it is stopped."""

    dsn: str
    done: threading.Event = field(default_factory=threading.Event)
    counts: dict[str, int] = field(default_factory=lambda: {"search": 0, "write": 0, "retry": 0})
    failures: list[BaseException] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.threads = [
            threading.Thread(target=self._repeat, args=(name, work))
            for name, work in (
                ("search", self._search),
                ("search", self._search),
                ("write", self._write),
            )
        ]

    def __enter__(self) -> "Load":
        for thread in self.threads:
            thread.start()
        self.wait_for(3)
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.wait_for(3)
        finally:
            self.done.set()
            for thread in self.threads:
                thread.join()

    def wait_for(self, more: int) -> None:
        """Wait until so many more searches and writes were answered, or one failed."""
        wanted = {name: self.counts[name] + more for name in ("search", "write")}
        while not self.failures and any(self.counts[name] < wanted[name] for name in wanted):
            self.done.wait(0.01)

    def _repeat(self, name: str, work: Callable[[psycopg.Connection[Any]], None]) -> None:
        try:
            with psycopg.connect(self.dsn, autocommit=True) as connection:
                while not self.done.is_set():
                    try:
                        work(connection)
                    except RETRIED:
                        self.counts["retry"] += 1
                        work(connection)
                    self.counts[name] += 1
        except BaseException as exc:  # noqa: BLE001
            self.failures.append(exc)

    def _search(self, connection: psycopg.Connection[Any]) -> None:
        word = WORDS[self.counts["search"] % len(WORDS)]
        assert len(connection.execute(SEARCH, [word]).fetchall()) == 20
        assert len(connection.execute(MATCH).fetchall()) == 5

    def _write(self, connection: psycopg.Connection[Any]) -> None:
        # In another collection, of other words: the answers stay.
        connection.execute(STORE, {"collection": "news", "word": "granite", "count": 1})
        connection.execute("delete from public.knowledge_chunks where collection = 'news'")


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    """A copy of the SQL, to make the next version of."""
    copy = Checkout(tmp_path / "next")
    for folder in ("supabase/schemas", "migrations"):
        # What module citus replaces runs on a cluster only.
        left_out = shutil.ignore_patterns("citus")
        shutil.copytree(tool.ROOT / folder, copy.root / folder, ignore=left_out)
    copy.manifest.parent.mkdir(parents=True)
    return copy


def edit(checkout: Checkout, begins: str, old: str, new: str) -> None:
    """Change the first `old` after `begins`, in the one file of the state that holds both."""
    (file,) = [one for one in checkout.state.rglob("*.sql") if begins in one.read_text()]
    before, found, after = file.read_text().partition(begins)
    assert old in found + after
    file.write_text(before + (found + after).replace(old, new, 1))


def make_next_version(checkout: Checkout) -> None:
    """Change a function's body, add an argument, drop an index, revoke a grant."""
    search = "create function public.hybrid_search_knowledge_chunks("
    edit(checkout, search, "as $$\n", "as $$\n-- The next version.\n")
    edit(
        checkout,
        "create function public.match_knowledge_chunks(",
        "required_filters jsonb default null\n)",
        "required_filters jsonb default null,\n  added boolean default false\n)",
    )
    edit(
        checkout,
        "create index knowledge_chunks_owner on",
        "create index knowledge_chunks_owner on public.knowledge_chunks (owner_id)\n"
        "  where owner_id is not null;",
        "",
    )
    told = "notify pgrst, 'reload schema';"
    revoked = "revoke all on function public.purge_knowledge_chunks(interval) from service_role;"
    edit(checkout, "create function public.purge_knowledge_chunks(", told, f"{revoked}\n\n{told}")


@pytest.fixture(scope="module")
def oldest() -> Iterator[Databases]:
    """A server of the oldest version here, which migrations are written on."""
    with tool.throw_away_server(min(installed_majors())) as server:
        yield Databases(server)


def add_what_a_project_has(dsn: str, run: Run) -> None:
    """Adopt a table of a project in place, and store a document of a type of its own."""
    query(
        dsn,
        "create table public.notes (id int primary key, body text, embedding extensions.vector(3))",
        "insert into public.notes values (1, 'A quartz clock.', '[1, 2, 3]')",
        "insert into public.knowledge_types values ('recipe')",
        'select public.upsert_knowledge_document(\'{"external_key": "soup",'
        ' "knowledge_type": "recipe"}\', \'[{"content": "Soup."}]\')',
    )
    for command in (["public.notes", "--model", "m", "--apply"], ["--backfill", "notes"]):
        done = run("adopt", *command, "--dsn", dsn)
        assert done.code == 0, done.err


def assert_what_a_project_has_works(dsn: str) -> None:
    def found(arguments: str) -> list[tuple[Any, ...]]:
        search = f"public.hybrid_search_knowledge_chunks(query_text => {arguments})"
        return query(dsn, f"select external_key from {search}")

    query(
        dsn,
        "insert into public.notes values (2, 'A quartz stone.', '[3, 2, 1]')",
        "update public.notes set body = 'An iron clock.' where id = 1",
    )
    assert found("'quartz'") == [("notes/2",)]
    assert found("'iron'") == [("notes/1",)]
    assert found("'soup', filter_type => 'recipe'") == [("soup",)]
    facets = "public.facet_knowledge_chunks('{\"query_text\": \"soup\"}', '{knowledge_type}')"
    assert query(dsn, f"select value #>> '{{}}', count from {facets}") == [("recipe", 1)]


@pytest.mark.slow
@needs_cli
def test_an_upgrade_under_load_fails_no_search_and_changes_no_answer(
    checkout: Checkout, oldest: Databases, run: Run
) -> None:
    dsn = oldest.empty("in_use")
    migrations.apply(dsn, dimensions=3, directory=checkout.path)
    fill(dsn)
    add_what_a_project_has(dsn, run)
    before = answers(dsn)
    make_next_version(checkout)
    written = tool.write_migration(checkout, oldest, "next_version")
    assert written.left == []
    with Load(dsn) as load:
        applied = migrations.apply(dsn, directory=checkout.path)
    assert load.failures == []
    assert [one.name for one in applied] == ["next_version"]
    assert answers(dsn) == before
    assert_what_a_project_has_works(dsn)
    state = catalogue.portable(tool.read(oldest.build("whole", checkout.state)))
    upgraded = catalogue.portable(tool.read(dsn))
    differing = [one.name for one in catalogue.compare(state, upgraded)]
    assert [name for name in differing if "notes" not in name] == []
    with psycopg.connect(dsn) as connection:
        connection.execute(
            "select from public.match_knowledge_chunks('[1,2,3]', 5, 0.1, null, added => true)"
        )


def project(folder: Path, own: str) -> Path:
    """Make a Supabase project with a declarative file and a migration of its own."""
    for place, name in (("schemas", "10_profiles"), ("migrations", "20240101000000_profiles")):
        (folder / "supabase" / place).mkdir(parents=True)
        (folder / "supabase" / place / f"{name}.sql").write_text(own)
    return folder / "supabase"


@needs_cli
def test_a_declarative_project_gets_no_proposal_to_change_what_is_ours(
    oldest: Databases, tmp_path: Path
) -> None:
    supabase = project(tmp_path, "create table public.profiles (id int primary key);")
    migrations.init(supabase / "migrations", 384)
    assert migrations.declare(supabase / "schemas", 384) != []
    assert migrations.declare(supabase / "schemas", 384) == []
    pushed = oldest.build("pushed", supabase / "migrations")
    declared = oldest.empty("declared")
    with psycopg.connect(declared, autocommit=True) as connection:
        for file in sorted((supabase / "schemas").glob("*.sql")):
            connection.execute(file.read_bytes())
    assert tool.pg_delta(pushed, declared) == ""
    only_own = oldest.empty("only_own")
    with psycopg.connect(only_own, autocommit=True) as connection:
        connection.execute((supabase / "schemas" / "10_profiles.sql").read_bytes())
    assert 'DROP TABLE "public"."knowledge_chunks"' in tool.pg_delta(pushed, only_own)


def test_declaring_replaces_what_is_ours_and_nothing_else(tmp_path: Path) -> None:
    own = tmp_path / "10_profiles.sql"
    own.write_text("create table public.profiles ();")
    first, *_ = migrations.declare(tmp_path, 384)
    first.write_text("-- older\n")
    gone = tmp_path / "second_brain_99_gone.sql"
    other = tmp_path / "second_brain_kb_01_documents.sql"
    gone.write_text("select 1;")
    other.write_text("select 1;")
    assert migrations.declare(tmp_path, 384) == [first, gone]
    assert not gone.exists()
    assert other.exists()
    assert own.read_text() == "create table public.profiles ();"


def test_a_dump_is_restored_by_the_owner_and_searches_again(
    dsn: str, plain_dsn: str, tmp_path: Path
) -> None:
    fill(dsn)
    before = answers(dsn)
    with psycopg.connect(plain_dsn, autocommit=True) as connection:
        # As docs/install.md says: else what is restored is granted to the API roles.
        for kind in ("tables", "functions"):
            connection.execute(
                f"alter default privileges for role postgres in schema public"
                f" revoke all on {kind} from anon, authenticated, service_role"
            )
    with psycopg.connect(dsn) as connection:
        major = connection.info.server_version // 10000
    if major not in installed_majors():
        pytest.skip(f"pg_dump of PostgreSQL {major} is not installed")
    dump = tmp_path / "dump"
    commands = (
        # Supabase, or the prelude, makes these schemas and the extension.
        [
            *("pg_dump", "--format=custom", f"--file={dump}", f"--dbname={dsn}"),
            *("--exclude-schema=extensions", "--exclude-schema=auth", "--extension=plpgsql"),
        ],
        [*("pg_restore", "--exit-on-error", "--no-owner", f"--dbname={plain_dsn}", str(dump))],
    )
    for name, *arguments in commands:
        done = subprocess.run(
            [str(program(major, name)), *arguments], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    with psycopg.connect(plain_dsn, autocommit=True) as connection:
        roles = connection.execute("select rolsuper from pg_roles where rolname = current_user")
        assert roles.fetchall() == [(False,)]
        connection.execute("analyze public.knowledge_chunks")
        assert [one for one in doctor.examine(connection) if one.status != "ok"] == []
    assert answers(plain_dsn) == before
    assert migrations.apply(plain_dsn) == []


def test_a_tenant_is_moved_by_the_commands_of_the_page(
    dsn: str, plain_dsn: str, tmp_path: Path
) -> None:
    migrations.apply(dsn, dimensions=3, schema="acme", modules=("words", "facets"))
    with psycopg.connect(dsn, autocommit=True) as connection:
        KnowledgeWriter(connection, schema="acme").upsert_document(
            {"external_key": "clock", "title": "Clocks", "metadata": {"shelf": 3}},
            [{"content": "A quartz clock.", "embedding": [1, 0, 0], "embedding_model": "m"}],
        )
        major = connection.info.server_version // 10000
    if major not in installed_majors():
        pytest.skip(f"pg_dump of PostgreSQL {major} is not installed")
    page = (Path(__file__).parents[2] / "docs" / "scale.md").read_text()
    (commands,) = (block.code for block in blocks(page) if "pg_dump" in block.code)
    done = subprocess.run(
        ["bash", "-e", "-c", commands],
        cwd=tmp_path,
        env={
            "PATH": f"{binaries(major)}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "OLD_DATABASE_URL": dsn,
            "DATABASE_URL": plain_dsn,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for question in ([1.0, 0.2, 0.0], None):
        before, after = (
            PostgresProvider(where, schema="acme").find(question, "qartz clock")[0]
            for where in (dsn, plain_dsn)
        )
        assert [hit.content for hit in after] == ["A quartz clock."]
        assert after == before
    assert migrations.apply(plain_dsn, schema="acme") == []
    with psycopg.connect(plain_dsn, autocommit=True) as connection:
        assert installed_modules(connection, "acme") == ("words", "facets")
        writer = KnowledgeWriter(connection, schema="acme")
        writer.upsert_document({"external_key": "dial"}, [{"content": "A sundial."}])
    assert PostgresProvider(plain_dsn, schema="acme").find(None, "sundial")[0]
