"""The path (`migrations/`) leads to the state (`supabase/schemas/`), on every Postgres here.

`make migration` writes a file of core and one of each module: tried on a state of two small files.
"""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import Connection
from second_brain.database import catalogue, migrations
from second_brain.database.embedded import EmbeddedPostgres, installed_majors
from second_brain.errors import ConfigurationError
from tools import migrations as tool
from tools.migrations import Checkout, Databases

COPIED = ("supabase/schemas", "migrations")
needs_cli = pytest.mark.skipif(
    tool.supabase_cli() is None,
    reason="the Supabase CLI is absent: npm install, or set SUPABASE_CLI",
)


@pytest.fixture(
    scope="module", params=[18, *(pytest.param(one, marks=pytest.mark.slow) for one in (17, 16))]
)
def databases(request: pytest.FixtureRequest) -> Iterator[Databases]:
    """Databases on a server of each major version."""
    if request.param not in installed_majors():
        pytest.skip(f"PostgreSQL {request.param} is not installed")
    with tool.throw_away_server(request.param) as server:
        yield Databases(server)


@pytest.fixture(scope="module")
def path(databases: Databases) -> str:
    """A database that the migrations made."""
    return databases.build("path", Checkout().path)


@pytest.fixture(scope="module")
def state(databases: Databases) -> str:
    """A database that the files of the state made."""
    return databases.build("state", Checkout().state)


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    """A copy of the SQL to change."""
    copy = Checkout(tmp_path)
    for folder in COPIED:
        shutil.copytree(tool.ROOT / folder, tmp_path / folder)
    for file in (copy.manifest, copy.released):
        file.parent.mkdir(parents=True)
    return copy


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert text.count(old) == 1
    file.write_text(text.replace(old, new))


def test_the_path_leads_to_the_state_by_the_catalogues(path: str, state: str) -> None:
    assert tool.differences(path, state) == []


@needs_cli
def test_the_path_leads_to_the_state_by_pg_delta(path: str, state: str) -> None:
    assert tool.pg_delta(path, state) == ""


def test_the_manifest_is_that_of_the_state_on_every_version(
    databases: Databases, state: str
) -> None:
    manifest = tool.manifest(Checkout(), databases)
    remedy = "run `make baseline` or `make migration`"
    assert manifest.dump() + "\n" == Checkout().manifest.read_text(), remedy
    assert manifest.of(manifest.modules) == catalogue.portable(tool.read(state))


CHUNKS = "public.knowledge_chunks"
CONTENT_HASH = "function public.knowledge_content_hash(text, text)"
# A change, the object that differs by it, and in which property; doctor is tested with others.
CHANGES = [
    (f"alter {CONTENT_HASH} volatile", CONTENT_HASH, "volatility"),
    (f"alter {CONTENT_HASH} set search_path = public", CONTENT_HASH, "settings"),
    (f"alter table {CHUNKS} reset (toast_tuple_target)", f"table {CHUNKS}", "options"),
    (
        f"alter table {CHUNKS} disable trigger complete_chunk",
        f"trigger {CHUNKS}.complete_chunk",
        "enabled",
    ),
    (
        f"alter index {CHUNKS}_content_tsv set (fastupdate = off)",
        f"index {CHUNKS}_content_tsv",
        "definition",
    ),
]


@pytest.mark.parametrize(("change", "name", "property_changed"), CHANGES)
def test_the_catalogues_differ_by_every_such_change(
    knowledge: Connection, change: str, name: str, property_changed: str
) -> None:
    before = catalogue.read(knowledge)
    knowledge.execute(change.encode())
    (difference,) = catalogue.compare(before, catalogue.read(knowledge))
    assert difference.object == name
    assert list(difference.properties) == [property_changed]


@pytest.mark.parametrize("databases", [18], indirect=True)
def test_before_a_release_the_path_is_the_state_file_by_file(
    checkout: Checkout, databases: Databases
) -> None:
    if tool.frozen(Checkout()):
        pytest.skip("migrations are released")
    for file in checkout.path.glob("*.sql"):
        file.write_text("-- older\n")
    (checkout.path / "099_orphan.sql").write_text("select 1;")
    tool.write_baseline(checkout, databases)
    written = {file.name: file.read_text() for file in checkout.path.glob("*.sql")}
    there = {file.name: file.read_text() for file in Checkout().path.glob("*.sql")}
    assert written == there, "run `make baseline`"


def test_no_released_migration_has_changed() -> None:
    assert tool.changed_since_release(Checkout()) == []


def test_a_frozen_migration_cannot_change(checkout: Checkout) -> None:
    first, *_, last = tool.freeze(checkout)
    assert tool.freeze(checkout) == []
    (checkout.path / "090_next.sql").write_text("select 1;")
    assert tool.freeze(checkout) == ["090_next.sql"]
    (checkout.path / first).write_text("-- changed\n")
    (checkout.path / last).unlink()
    assert tool.changed_since_release(checkout) == [first, last]
    with pytest.raises(ConfigurationError, match=f"have changed: {first}, {last}"):
        tool.freeze(checkout)


@pytest.mark.parametrize("databases", [18], indirect=True)
def test_the_baseline_is_refused_once_a_migration_is_frozen(
    checkout: Checkout, databases: Databases
) -> None:
    tool.freeze(checkout)
    with pytest.raises(ConfigurationError, match="released"):
        tool.write_baseline(checkout, databases)


@needs_cli
@pytest.mark.slow
@pytest.mark.parametrize("databases", [16], indirect=True)
def test_a_migration_is_written_from_the_difference_and_leads_to_the_state(
    checkout: Checkout, databases: Databases
) -> None:
    documents = checkout.state / "core" / "01_documents.sql"
    storage = "alter column metadata set storage"
    edit(documents, f"{storage} main", f"{storage} plain")
    edit(documents, "toast_tuple_target = 1536", "toast_tuple_target = 1600, fillfactor = 90")
    edit(documents, "set statistics 1000", "set statistics 900")
    # A project has its own function, which no migration replaces.
    edit(documents, "return '{}';", "return '{changed}';")
    with documents.open("a") as file:
        file.write(
            """
create table public.knowledge_kinds (
  name text primary key,
  created_at timestamptz not null default now()
);
alter table public.knowledge_kinds enable row level security;
revoke all on table public.knowledge_kinds from public, anon, authenticated;
insert into public.knowledge_kinds (name) values ('note'), ('it''s');
create trigger pass_kind_on after update on public.knowledge_documents
  for each row
  when ((old.title, old.author, old.source_url) is distinct from (new.title, new.author, 'x'))
  execute function suppress_redundant_updates_trigger();
"""
        )
    done = tool.write_migration(checkout, databases, "add_kinds", "kinds are rows")
    assert all("knowledge_viewer_groups" in one for one in done.left)
    (written,) = done.files
    number = 1 + max(int(file.name[:3]) for file in Checkout().path.rglob("*.sql"))
    assert written.name == f"{number:03}_add_kinds.sql"
    text = written.read_text()
    assert text.startswith(f"-- {number:03}_add_kinds: kinds are rows.\n-- Adds: column ")
    assert (
        "-- Locks, until it commits: table public.knowledge_chunks, table public.knowledge" in text
    )
    _, by_hand = text.split(tool.HAND_WRITTEN)
    assert "alter column metadata set storage plain;" in by_hand
    assert "alter column content_tsv set statistics 900;" in by_hand
    assert "('it''s');" in by_hand
    assert not re.search("create.* function.* public.knowledge_viewer_groups", text, re.IGNORECASE)
    edit(documents, "return '{changed}';", "return '{}';")
    assert tool.write_migration(checkout, databases, "nothing").files == []
    assert not list(checkout.path.glob("*_nothing.sql"))


@pytest.mark.parametrize("name", ["Add x", "../x", ""])
def test_a_name_that_is_no_file_name_is_refused(checkout: Checkout, name: str) -> None:
    with pytest.raises(ConfigurationError, match="NAME must be"):
        tool.write_migration(checkout, Databases(EmbeddedPostgres("unused")), name)


CORE = """-- 001_point: a function.

create function public.point() returns integer
language sql as 'select 1';
"""
MODULE = """-- 020_other: replaces the function of core.
-- Module: other.

create or replace function public.point() returns integer
language sql as 'select 2';

create function public.other() returns integer
language sql as 'select 1';
"""


@pytest.fixture(scope="module")
def oldest() -> Iterator[Databases]:
    """Databases on a server of the oldest version here."""
    with tool.throw_away_server(min(installed_majors())) as server:
        yield Databases(server)


@pytest.fixture
def two_files(tmp_path: Path, oldest: Databases) -> Checkout:
    """State, path and manifest of core with one function, and of a module that replaces it."""
    made = Checkout(tmp_path)
    for folder in (made.state / "core", made.state / "modules" / "other", made.path):
        folder.mkdir(parents=True)
    for file in (made.manifest, made.released):
        file.parent.mkdir(parents=True)
    (made.state / "core" / "01_point.sql").write_text(CORE)
    (made.state / "modules" / "other" / "20_other.sql").write_text(MODULE)
    tool.write_baseline(made, oldest)
    return made


def test_the_manifest_has_what_a_module_adds_and_changes(
    two_files: Checkout, oldest: Databases
) -> None:
    manifest = tool.manifest(two_files, oldest)
    usable = [f"schema {name}" for name in ("auth", "extensions", "public")]
    assert list(manifest.core) == ["extension vector", "function public.point()", *usable]
    added = manifest.modules["other"]
    assert list(added) == ["function public.other()", "function public.point()"]
    assert manifest.of(["other"]) == {**manifest.core, **added}


@pytest.mark.slow
@needs_cli
def test_a_change_of_a_module_is_a_migration_of_the_module(
    two_files: Checkout, oldest: Databases
) -> None:
    edit(two_files.state / "modules/other/20_other.sql", "'select 1'", "'select 3'")
    written = tool.write_migration(two_files, oldest, "count_more")
    assert written.left == []
    (file,) = written.files
    assert file.name == "021_count_more_other.sql"
    assert file.read_text().startswith("-- 021_count_more_other: count more.\n-- Module: other.\n")
    assert migrations.modules(two_files.path) == ("other",)


@needs_cli
@pytest.mark.slow
def test_a_new_extension_point_of_core_does_not_undo_that_of_a_module(
    two_files: Checkout, oldest: Databases
) -> None:
    edit(two_files.state / "core/01_point.sql", "select 1", "select 10")
    written = tool.write_migration(two_files, oldest, "count_more")
    assert written.left == []
    core, module = written.files
    assert (core.name, module.name) == ("021_count_more.sql", "022_count_more_other.sql")
    assert "select 10" in core.read_text()
    assert "-- Module" not in core.read_text()
    assert "create or replace function public.point()" in module.read_text()
    assert "select 2" in module.read_text()
    assert tool.write_migration(two_files, oldest, "nothing").files == []
