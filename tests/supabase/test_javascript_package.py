"""The npm package clients/js: its own tests, on PGlite in Node, and what `npm pack` puts into it."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from test_frontend import PACKAGE, ROOT, deno, needs_deno

NPM = shutil.which("npm")
BUILT_FOR = [ROOT / "node_modules" / name for name in ("typescript", "@electric-sql/pglite")]
LARGEST = 18_000  # bytes of the .tgz

needs_npm = pytest.mark.skipif(
    NPM is None or not all(place.exists() for place in BUILT_FOR),
    reason="npm or the packages of clients/js are absent: make cli",
)


def npm(*arguments: str) -> str:
    done = subprocess.run(
        [str(NPM), *arguments],
        cwd=PACKAGE,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_npm
def test_its_own_tests_pass_on_pglite() -> None:
    npm("test", "--silent")


@needs_npm
def test_the_package_has_code_and_types_of_each_entry_and_is_small() -> None:
    (packed,) = json.loads(npm("pack", "--dry-run", "--ignore-scripts", "--json"))
    names = {file["path"] for file in packed["files"]}
    entries = json.loads((PACKAGE / "package.json").read_text("utf-8"))["exports"].values()
    code = {entry.removeprefix("./") for entry in entries}
    assert code | {name.removesuffix(".js") + ".d.ts" for name in code} <= names
    assert not [name for name in names if name.startswith(("src/", "test/"))]
    assert packed["size"] <= LARGEST


@needs_deno
def test_it_is_formatted(tmp_path: Path) -> None:
    folders = [str(PACKAGE / name) for name in ("src", "test")]
    deno("fmt", "--check", "--line-width=100", *folders, home=tmp_path)
