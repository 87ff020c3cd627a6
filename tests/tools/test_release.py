"""The release command: what it prints, what it refuses, what it writes. `make ci` does nothing."""

import json
import subprocess
import tomllib
from datetime import date
from pathlib import Path

import pytest

from tools import release

ROOT = Path(__file__).parents[2]
TODAY = date(2026, 1, 31)
CHANGELOG = (
    "# Changelog\n\n## 1.2.3 (unreleased)\n\n- A change.\n\n## 1.2.2 (2025-12-01)\n\n- Old.\n"
)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository on main with one commit, where `make ci` does nothing."""
    (tmp_path / "migrations").mkdir()
    (tmp_path / "tools").mkdir()
    (tmp_path / "migrations" / "001_tables.sql").write_text("-- 001_tables: tables.\n", "utf-8")
    (tmp_path / "tools" / "__init__.py").touch()
    (tmp_path / ".venv").mkdir()
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG, "utf-8")
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2.2"\n', "utf-8")
    (tmp_path / "clients" / "js").mkdir(parents=True)
    (tmp_path / "clients" / "js" / "package.json").write_text(
        '{\n  "version": "1.2.2"\n}\n', "utf-8"
    )
    (tmp_path / "Makefile").write_text("ci:\n\t@true\n", "utf-8")
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
    assert tomllib.loads((checkout / "pyproject.toml").read_text("utf-8")) == {
        "project": {"version": "1.2.3"}
    }
    package = (checkout / "clients" / "js" / "package.json").read_text("utf-8")
    assert json.loads(package) == {"version": "1.2.3"}
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
