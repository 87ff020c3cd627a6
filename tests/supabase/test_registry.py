"""The blocks of registry.json: their files are there, and what they install searches."""

import json
import shutil
from pathlib import Path
from uuid import UUID

import psycopg
import pytest
from test_frontend import OFFLINE, ROOT, deno, store
from test_supabase_cli import Cli, a_project, pytestmark, supabase

from command_line import Run
from second_brain.database import migrations
from support.processes import succeeded
from tools import registry

__all__ = ["supabase"]  # a fixture

needs_cli = pytestmark
ANA = UUID(int=1)
ITEMS = {one["name"]: one for one in json.loads(registry.REGISTRY.read_text("utf-8"))["items"]}
# What https://ui.shadcn.com/schema/registry.json and registry-item.json require.
REQUIRED = {"name", "homepage", "items"}
REQUIRED_OF_ITEM = {"name", "type"}
REQUIRED_OF_FILE = {"path", "type", "target"}


def installed(name: str, into: Path) -> Path:
    """Copy the files of a block, as `npx shadcn add` does."""
    for file in ITEMS[name]["files"]:
        target = into / file["target"].removeprefix("~/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file["path"], target)
    return into


def test_the_file_is_what_make_registry_writes() -> None:
    assert registry.REGISTRY.read_text("utf-8") == registry.written()


def test_it_has_the_keys_of_its_schema_and_files_that_exist() -> None:
    assert json.loads(registry.written()).keys() >= REQUIRED
    for item in ITEMS.values():
        assert item.keys() >= REQUIRED_OF_ITEM
        targets = [file["target"] for file in item["files"]]
        assert len(set(targets)) == len(targets)
        for file in item["files"]:
            assert file.keys() >= REQUIRED_OF_FILE
            assert (ROOT / file["path"]).is_file()
            # Nothing is written outside the project's folder.
            assert file["target"].startswith("~/supabase/")
            assert ".." not in file["target"]


@pytest.mark.parametrize("name", ["search", "mcp"])
def test_a_block_has_all_that_its_function_imports(name: str, tmp_path: Path) -> None:
    project = installed(name, tmp_path)
    shutil.copy(ROOT / "package.json", project)
    (project / "node_modules").symlink_to(ROOT / "node_modules")
    function = project / "supabase" / "functions" / name / "index.ts"
    deno("check", *OFFLINE, str(function))


@needs_cli
def test_the_migrations_of_a_block_make_an_install_for_gte_small(
    supabase: Cli, plain_dsn: str, tmp_path: Path, run: Run
) -> None:
    project = installed("second-brain", a_project(tmp_path / "project"))
    succeeded(supabase("db", "push", "--include-all", project=project))
    with psycopg.connect(plain_dsn, autocommit=True) as connection:
        assert migrations.stored_dimensions(connection) == 384
        store(connection, "billing", ANA, "An invoice is due after 14 days.", 0)
        row = connection.execute(
            "select title, match_type"
            "  from public.hybrid_search_knowledge_chunks(%s::extensions.vector, 'invoice')",
            [json.dumps([1.0] + [0.0] * 383)],
        ).fetchone()
    assert row == ("billing", "both")
    doctor = run("doctor", "--dsn", plain_dsn)
    assert doctor.code == 0, doctor.out
