"""Release a version: `make release VERSION=1.2.3`, or with DRY_RUN=1 to try it.

The release is a commit and a tag in this checkout, and in `dist/` a wheel, an sdist, the npm
package, and SQL files for Supabase's SQL editor. Nothing is pushed or published. A trial runs every
step in a clone of the last commit, which it deletes, and changes nothing here.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import NamedTuple

from second_brain.database import migrations
from second_brain.errors import ConfigurationError, SecondBrainError
from tools.migrations import Checkout, freeze

ROOT = Path(__file__).parents[1]
DIMENSIONS = 1024
"""Of the embeddings in the SQL files, as in `migrations/`."""

_VERSION = re.compile(r"\d+\.\d+\.\d+")
_VERSION_LINE = re.compile(r'^(version =|  "version":) ".*?"', re.MULTILINE)
_WITH_VERSION = ("pyproject.toml", "clients/js/package.json")
_OF_AUTHOR = {"user.name": "an", "user.email": "ae"}


class Step(NamedTuple):
    """A step of the release: what it does, and the function that does it."""

    name: str
    run: Callable[[], object]


def steps(root: Path, version: str, today: date) -> list[Step]:
    """Return the steps in order. Each raises ConfigurationError or CalledProcessError."""
    changelog = root / "CHANGELOG.md"
    tag = f"v{version}"

    def run(*command: str) -> None:
        subprocess.run(command, cwd=root, check=True)  # noqa: S603

    def write_changelog() -> None:
        changelog.write_text(dated(changelog.read_text("utf-8"), version, today), "utf-8")

    def write_version() -> None:
        for project in (root / name for name in _WITH_VERSION):
            project.write_text(with_version(project.read_text("utf-8"), version), "utf-8")

    def commit() -> None:
        run("git", "add", "CHANGELOG.md", *_WITH_VERSION, "tools/released.sha256")
        run("git", "commit", "--quiet", "--message", f"Release {version}")
        run("git", "tag", "--annotate", tag, "--message", f"second-brain {version}")

    return [
        Step("check that the branch is main, without changes", lambda: check_tree(root, tag)),
        Step(
            f"check that CHANGELOG.md has a section {version}",
            lambda: dated(changelog.read_text("utf-8"), version, today),
        ),
        Step("make ci", lambda: run("make", "ci")),
        Step(f"set the date of {version} in CHANGELOG.md", write_changelog),
        Step(f"set version {version} in {' and '.join(_WITH_VERSION)}", write_version),
        Step("freeze the migrations in tools/released.sha256", lambda: freeze(Checkout(root))),
        Step("build the wheel and the sdist into dist/, and check them", lambda: build(root)),
        Step("build the npm package into dist/", lambda: pack(root)),
        Step("write the SQL files into dist/", lambda: write_sql(root / "dist", version)),
        Step(f"commit, and tag {tag}", commit),
    ]


def build(root: Path) -> list[Path]:
    """Build the wheel and the sdist into `dist/`; raises CalledProcessError if twine objects."""
    dist = root / "dist"
    python = (sys.executable, "-m")
    subprocess.run([*python, "build", "--no-isolation", "--outdir", dist, root], check=True)  # noqa: S603
    files = [*dist.glob("*.whl"), *dist.glob("*.tar.gz")]
    subprocess.run([*python, "twine", "check", "--strict", *files], check=True)  # noqa: S603
    return files


def pack(root: Path) -> None:
    """Build the package clients/js into `dist/`; it needs what `make cli` installs."""
    npm = shutil.which("npm")
    if npm is None:
        raise ConfigurationError("npm is absent", remedy="Install Node.js, then: make cli")
    (root / "dist").mkdir(exist_ok=True)
    arguments = ("pack", "--silent", "--workspace=clients/js", "--pack-destination=dist")
    subprocess.run([npm, *arguments], cwd=root, check=True)  # noqa: S603


def write_sql(into: Path, version: str) -> list[Path]:
    """Write the files for Supabase's SQL editor: core, and core with all modules."""
    into.mkdir(exist_ok=True)
    files = []
    for name, modules in (("core", ()), ("all", migrations.modules())):
        file = into / f"second-brain-{version}-{name}.sql"
        file.write_text(
            migrations.one_file(DIMENSIONS, modules=modules, fusion=migrations.FUSION), "utf-8"
        )
        files.append(file)
    return files


def check_tree(root: Path, tag: str) -> None:
    """Refuse a branch other than main, changes that are not committed, and an existing tag."""
    if (branch := _git(root, "branch", "--show-current")) != "main":
        raise ConfigurationError(f"the branch is {branch}, not main", remedy="git switch main")
    if changes := _git(root, "status", "--porcelain"):
        raise ConfigurationError(
            f"there are changes that are not committed:\n{changes}", remedy="Commit them."
        )
    if _git(root, "tag", "--list", tag):
        raise ConfigurationError(f"the tag {tag} exists", remedy="Release another version.")


def dated(changelog: str, version: str, today: date) -> str:
    """Return the changelog with today's date in place of "unreleased" in the version's heading.

    Raises ConfigurationError if there is no such section, or if it is empty.
    """
    heading = re.compile(rf"^## {re.escape(version)} \(unreleased\)\n+(?=[^#\s])", re.MULTILINE)
    if not heading.search(changelog):
        raise ConfigurationError(
            f"CHANGELOG.md has no section '## {version} (unreleased)' with text",
            remedy="Write it: what users notice, and the migration files.",
        )
    return heading.sub(f"## {version} ({today})\n\n", changelog)


def with_version(project: str, version: str) -> str:
    """Return pyproject.toml or package.json with another version."""
    written, count = _VERSION_LINE.subn(rf'\1 "{version}"', project)
    if count != 1:
        raise ConfigurationError(f"a project has {count} lines with a version, not 1")
    return written


def rehearse(root: Path, version: str, today: date, *, is_tested: bool = False) -> int:
    """Run every step in a clone of the last commit; without `make ci` if that `is_tested`."""
    if changes := _git(root, "status", "--porcelain"):
        print(f"These changes are not committed, and not in the trial:\n{changes}")
    with tempfile.TemporaryDirectory(prefix="second-brain-release-") as place:
        clone = Path(place) / "clone"
        _git(root, "clone", "--quiet", str(root), str(clone))
        _git(clone, "switch", "--quiet", "--force-create", "main")
        for key in ("user.name", "user.email"):
            _git(clone, "config", key, _git(root, "log", "-1", f"--format=%{_OF_AUTHOR[key]}"))
        # What is installed here serves the clone, but not the package: its own is found first.
        installed = (".venv", "node_modules", "clients/js/node_modules")
        (clone / ".git" / "info" / "exclude").write_text("\n".join(installed), "utf-8")
        for name in installed:
            if (root / name).exists():
                (clone / name).symlink_to(root / name)
        os.environ["PYTHONPATH"] = str(clone / "backend" / "src")
        tried = steps(clone, version, today)
        return run_all([one for one in tried if not (is_tested and one.name == "make ci")])


def run_all(chosen: Sequence[Step]) -> int:
    """Run the steps in order, and print them; 1 when one fails."""
    for number, step in enumerate(chosen, start=1):
        print(f"{number}. {step.name}", flush=True)
        try:
            step.run()
        except SecondBrainError as exc:
            print(f"{exc}\n{exc.remedy}", file=sys.stderr)
            return 1
        except subprocess.CalledProcessError as exc:
            print(f"{exc}\nCorrect it, undo the changes of the release, repeat.", file=sys.stderr)
            return 1
    return 0


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(  # noqa: S603
        ["git", *arguments],  # noqa: S607
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Release, or try it with --dry-run; 1 when a step fails."""
    parser = argparse.ArgumentParser(prog="python -m tools.release", description=__doc__)
    parser.add_argument("version", help="such as 1.2.3")
    parser.add_argument("--dry-run", action="store_true", help="run all steps in a clone")
    parser.add_argument(
        "--tested", action="store_true", help="with --dry-run: `make ci` has passed, leave it out"
    )
    given = parser.parse_args(arguments)
    if not _VERSION.fullmatch(given.version):
        parser.error(f"version must be three numbers such as 1.2.3, not {given.version!r}")
    today = datetime.now(UTC).date()
    if given.dry_run:
        return rehearse(root, given.version, today, is_tested=given.tested)
    code = run_all(steps(root, given.version, today))
    if code == 0:
        print("Push with `git push --follow-tags`; what to publish is in dist/.")
    return code


if __name__ == "__main__":
    sys.exit(main())
