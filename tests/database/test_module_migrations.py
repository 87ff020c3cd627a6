"""`make migration` writes a file of core and one of each module, on a state of two small files."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from second_brain.database import migrations
from second_brain.database.embedded import installed_majors
from tools import migrations as tool
from tools.migrations import Checkout, Databases

needs_cli = pytest.mark.skipif(
    tool.supabase_cli() is None,
    reason="the Supabase CLI is absent: npm install, or set SUPABASE_CLI",
)
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
def databases() -> Iterator[Databases]:
    """Databases on a server of the oldest version here."""
    with tool.throw_away_server(min(installed_majors())) as server:
        yield Databases(server)


@pytest.fixture
def checkout(tmp_path: Path, databases: Databases) -> Checkout:
    """State, path and manifest of core with one function, and of a module that replaces it."""
    made = Checkout(tmp_path)
    for folder in (made.state / "core", made.state / "modules" / "other", made.path):
        folder.mkdir(parents=True)
    for file in (made.manifest, made.released):
        file.parent.mkdir(parents=True)
    (made.state / "core" / "01_point.sql").write_text(CORE)
    (made.state / "modules" / "other" / "20_other.sql").write_text(MODULE)
    tool.write_baseline(made, databases)
    return made


def replace(checkout: Checkout, name: str, old: str, new: str) -> None:
    (file,) = checkout.state.rglob(name)
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def test_the_manifest_has_what_a_module_adds_and_changes(
    checkout: Checkout, databases: Databases
) -> None:
    manifest = tool.manifest(checkout, databases)
    assert list(manifest.core) == ["extension vector", "function public.point()"]
    added = manifest.modules["other"]
    assert list(added) == ["function public.other()", "function public.point()"]
    assert manifest.of(["other"]) == {**manifest.core, **added}


@pytest.mark.slow
@needs_cli
def test_a_change_of_a_module_is_a_migration_of_the_module(
    checkout: Checkout, databases: Databases
) -> None:
    replace(checkout, "20_other.sql", "language sql as 'select 1'", "language sql as 'select 3'")
    written = tool.write_migration(checkout, databases, "count_more")
    assert written.left == []
    (file,) = written.files
    assert file.name == "021_count_more_other.sql"
    assert file.read_text().startswith("-- 021_count_more_other: count more.\n-- Module: other.\n")
    assert migrations.modules(checkout.path) == ("other",)


@needs_cli
@pytest.mark.slow
def test_a_new_extension_point_of_core_does_not_undo_that_of_a_module(
    checkout: Checkout, databases: Databases
) -> None:
    replace(checkout, "01_point.sql", "select 1", "select 10")
    written = tool.write_migration(checkout, databases, "count_more")
    assert written.left == []
    core, module = written.files
    assert (core.name, module.name) == ("021_count_more.sql", "022_count_more_other.sql")
    assert "select 10" in core.read_text()
    assert "-- Module" not in core.read_text()
    assert "create or replace function public.point()" in module.read_text()
    assert "select 2" in module.read_text()
    assert tool.write_migration(checkout, databases, "nothing").files == []
