"""`make release` (with a `make ci` that does nothing) and `make test-mutants`: what they do."""

import json
import subprocess
import tomllib
from datetime import date
from pathlib import Path

import pytest

from tools import release
from tools.mutants import PACKAGE, SCHEMAS, drawn

ROOT = Path(__file__).parents[2]
TODAY = date(2026, 1, 31)
CHANGELOG = (
    "# Changelog\n\n## 1.2.3 (unreleased)\n\n- A change.\n\n## 1.2.2 (2025-12-01)\n\n- Old.\n"
)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository on main with one commit, where `make ci` does nothing."""
    for name, text in {
        "migrations/001_tables.sql": "-- 001_tables: tables.\n",
        "tools/__init__.py": "",
        "CHANGELOG.md": CHANGELOG,
        "pyproject.toml": '[project]\nversion = "1.2.2"\n',
        "clients/js/package.json": '{\n  "version": "1.2.2"\n}\n',
        "Makefile": "ci:\n\t@true\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, "utf-8")
    (tmp_path / ".venv").mkdir()
    git(tmp_path, "init", "--quiet", "--initial-branch=main")
    git(tmp_path, "config", "user.name", "Tester")
    git(tmp_path, "config", "user.email", "tester@example.org")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "Start")
    return tmp_path


def git(root: Path, *arguments: str) -> str:
    done = subprocess.run(("git", *arguments), cwd=root, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_a_dry_run_runs_every_step_in_a_clone_and_changes_nothing_here(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # The checkout has no package.
    built: list[Path] = []
    monkeypatch.setattr(release, "build", built.append)
    monkeypatch.setattr(release, "pack", built.append)
    before = git(checkout, "rev-parse", "HEAD")
    git(checkout, "switch", "--quiet", "--create", "work")
    assert release.main(["1.2.3", "--dry-run"], checkout) == 0
    printed = capsys.readouterr().out
    places = [f"{place}." for place in range(1, 11)]
    assert [line.split()[0] for line in printed.splitlines()] == places
    assert "3. make ci" in printed
    assert built[0] != checkout
    assert git(checkout, "rev-parse", "HEAD") == before
    assert git(checkout, "tag") == git(checkout, "status", "--porcelain") == ""


def test_a_dry_run_fails_where_a_release_would(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert release.main(["1.2.4", "--dry-run"], checkout) == 1
    assert "CHANGELOG.md has no section '## 1.2.4" in capsys.readouterr().err
    (checkout / "Makefile").write_text("ci:\n\t@false\n", "utf-8")
    git(checkout, "commit", "--quiet", "--all", "--message", "A test fails")
    assert release.main(["1.2.3", "--dry-run"], checkout) == 1
    assert "make" in capsys.readouterr().err


def test_a_release_sets_version_and_date_freezes_and_tags(checkout: Path) -> None:
    for step in release.steps(checkout, "1.2.3", TODAY):
        if not step.name.startswith("build"):  # the checkout has no package
            step.run()
    project = tomllib.loads((checkout / "pyproject.toml").read_text("utf-8"))
    package = json.loads((checkout / "clients" / "js" / "package.json").read_text("utf-8"))
    assert project == {"project": package} == {"project": {"version": "1.2.3"}}
    assert "## 1.2.3 (2026-01-31)\n\n- A change." in (checkout / "CHANGELOG.md").read_text("utf-8")
    assert "001_tables.sql" in (checkout / "tools" / "released.sha256").read_text("utf-8")
    assert git(checkout, "tag") == "v1.2.3"
    assert git(checkout, "log", "-1", "--format=%s") == "Release 1.2.3"
    core, everything = sorted((checkout / "dist").iterdir(), key=lambda file: file.stat().st_size)
    assert core.name == "second-brain-1.2.3-core.sql"
    assert everything.name == "second-brain-1.2.3-all.sql"
    assert "extensions.vector(1024)" in core.read_text("utf-8")
    assert "-- Module: " not in core.read_text("utf-8")
    assert "-- Module: adoption." in everything.read_text("utf-8")
    assert git(checkout, "status", "--porcelain", "--", ":!dist") == ""


def test_the_project_has_one_version() -> None:
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    assert 'version = "98.76.54"' in release.with_version(project, "98.76.54")
    package = (ROOT / "clients" / "js" / "package.json").read_text("utf-8")
    assert json.loads(package)["version"] == tomllib.loads(project)["project"]["version"]
    assert json.loads(release.with_version(package, "98.76.54"))["version"] == "98.76.54"


SQL = sorted(SCHEMAS.rglob("*.sql"))


@pytest.mark.slow
@pytest.mark.parametrize("files", [SQL, sorted(PACKAGE.rglob("*.py"))], ids=["sql", "python"])
def test_a_seed_draws_changed_lines_of_each_kind(files: list[Path]) -> None:
    mutants = drawn(1, 60, files)
    assert mutants == drawn(1, 60, files) != drawn(2, 60, files)
    assert all(one.new != one.old for one in mutants)
    kinds = {one.kind for one in mutants}
    assert kinds >= {"boundary", "condition", "constant", "operator", "order"}
    assert (kinds >= {"grant", "lock"}) is (files is SQL)
