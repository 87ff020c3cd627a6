"""The npm package clients/js: its own tests on PGlite and over supabase-js, what `npm pack` packs,
`npx @second-brain-sql/client init` beside Python's, the playground.

With POSTGREST_BIN a real PostgREST answers supabase-js, else `rest.py`.
"""

import fcntl
import json
import os
import re
import shutil
import subprocess
import threading
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import pytest
from rest import answering
from test_frontend import ANA, ANON_KEY, PACKAGE, ROOT, deno, signed

from conftest import Server
from second_brain.database import migrations
from second_brain.errors import SecondBrainError
from support.processes import finished, succeeded
from tools import playground

NPM = shutil.which("npm")
BUILT_FOR = [ROOT / "node_modules" / name for name in ("typescript", "@electric-sql/pglite")]
CHROMIUM = os.environ.get("CHROMIUM_BIN") or shutil.which("chromium") or shutil.which("chrome")
MIGRATIONS = ROOT / "migrations"
PATIENCE = 120_000  # milliseconds
LARGEST = 68_000  # bytes of the code and the types, before they are packed


def npm(*arguments: str, **environment: str) -> str:
    if NPM is None or not all(place.exists() for place in BUILT_FOR):
        pytest.skip("npm or the packages of clients/js are absent: make cli")
    with (PACKAGE / "package.json").open() as locked:
        # No other worker builds the package while this one builds or runs it.
        fcntl.flock(locked, fcntl.LOCK_EX)
        environment = {**os.environ, **environment}
        return succeeded(finished(NPM, *arguments, cwd=PACKAGE, env=environment, timeout=300))


@cache
def build() -> None:
    npm("run", "--silent", "build")


@pytest.fixture(scope="module")
def built() -> None:
    build()


@pytest.mark.slow
def test_its_own_tests_pass_on_pglite() -> None:
    npm("test", "--silent")


@pytest.mark.usefixtures("built")
def test_it_calls_a_project_with_supabase_js(dsn: str, server: Server) -> None:
    with answering(server, dsn, ANON_KEY) as rest:
        npm(
            *("exec", "--offline", "--", "node", "--test", "test/rest.js"),
            URL=f"http://127.0.0.1:{rest.server_port}",
            KEY=ANON_KEY,
            SERVICE_TOKEN=signed(ANA, role="service_role"),
            USER=str(ANA),
            USER_TOKEN=signed(ANA),
        )


@pytest.mark.usefixtures("built")
def test_the_package_has_code_and_types_of_each_entry_and_is_small() -> None:
    # As `prepack` does, which the next line leaves out.
    shutil.copy(ROOT / "LICENSE", PACKAGE)
    (packed,) = json.loads(npm("pack", "--dry-run", "--ignore-scripts", "--json"))
    names = {file["path"] for file in packed["files"]}
    entries = json.loads((PACKAGE / "package.json").read_text("utf-8"))["exports"].values()
    code = {entry.removeprefix("./") for entry in entries if entry.endswith(".js")}
    assert code | {name.removesuffix(".js") + ".d.ts" for name in code} <= names
    assert not [name for name in names if name.startswith(("src/", "test/"))]
    sizes = [one["size"] for one in packed["files"] if one["path"].endswith((".js", ".ts"))]
    assert sum(sizes) <= LARGEST
    packed_sql = {name.removeprefix("dist/sql/") for name in names if name.startswith("dist/sql/")}
    sources = MIGRATIONS.rglob("*.sql")
    assert packed_sql == {path.relative_to(MIGRATIONS).as_posix() for path in sources}


def init(into: Path, dimensions: object, options: str) -> "subprocess.CompletedProcess[str]":
    arguments = ("init", "--dimensions", dimensions, "--into", into, *options.split())
    return finished("node", PACKAGE / "dist" / "init.js", *arguments)


def python_init(into: Path, dimensions: int, options: str) -> None:
    pairs = options.split()
    given = dict(zip(pairs[::2], pairs[1::2], strict=True))
    migrations.init(
        into,
        dimensions,
        vector_schema=given.get("--vector-schema"),
        modules=migrations.chosen(given.get("--with")),
        fusion=None if given.get("--fusion") == "none" else given.get("--fusion", "auto"),  # type: ignore[arg-type]
    )


def content(folder: Path) -> list[tuple[str, bytes]]:
    """Return the files in their order, without the timestamps of now."""
    files = sorted(folder.rglob("*.sql"))
    this_year = re.compile(rf"^{datetime.now(UTC):%Y}\d{{10}}_")
    return [(this_year.sub("", file.name), file.read_bytes()) for file in files]


# The files of the project that are in the folder.
FRESH: dict[str, str] = {}
FETCHED = {"001_documents.sql": "select 1;", "nested/003_corpus.sql": "select 1;"}


def fill(folder: Path, present: dict[str, str]) -> Path:
    for name, text in present.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize(
    ("present", "dimensions", "options"),
    [
        (FRESH, 384, ""),
        (FRESH, 16_000, "--with adoption,facets --fusion none"),
        (FRESH, 1, "--with all --vector-schema public --fusion relative_score"),
        (FETCHED, 3, "--with citus,facets"),
    ],
)
def test_init_writes_what_python_writes(
    present: dict[str, str], dimensions: int, options: str, tmp_path: Path
) -> None:
    of_python, of_node = (fill(tmp_path / name, present) for name in ("python", "node"))
    python_init(of_python, dimensions, options)
    done = init(of_node, dimensions, options)
    assert (done.returncode, done.stderr) == (0, "Next: supabase db push\n")
    assert content(of_node) == content(of_python)


@pytest.mark.usefixtures("built")
def test_init_writes_nothing_where_all_migrations_exist(tmp_path: Path) -> None:
    python_init(tmp_path, 3, "--with all")
    before = content(tmp_path)
    done = init(tmp_path, 3, "")
    assert (done.returncode, done.stderr) == (0, "Nothing to write: all migrations exist.\n")
    assert content(tmp_path) == before


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize(
    ("present", "dimensions", "options"),
    [
        (FRESH, 0, ""),
        (FRESH, 3, "--with facet"),
        (FRESH, 3, "--vector-schema a-b"),
        # Read as a date it would be one that sorts before it.
        ({"209911223344_x.sql": ""}, 3, ""),
        ({"20260101000000_second_brain_001_documents.sql": "a extensions.vector(4)"}, 3, ""),
    ],
)
def test_init_refuses_what_python_refuses(
    present: dict[str, str], dimensions: int, options: str, tmp_path: Path
) -> None:
    fill(tmp_path, present)
    done = init(tmp_path, dimensions, options)
    assert done.returncode == 1, done.stderr
    with pytest.raises(SecondBrainError) as refused:
        python_init(tmp_path, dimensions, options)
    assert done.stderr.startswith(f"error: {refused.value}. ")
    assert {path.name for path in tmp_path.iterdir()} == present.keys()


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is absent: set CHROMIUM_BIN")
def test_the_playground_searches_in_the_browser() -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    build()
    complaints: list[str] = []
    with playground.serve() as server, playwright.sync_playwright() as started:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(base_url=f"http://127.0.0.1:{server.server_port}")
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("requestfailed", lambda request: complaints.append(request.url))
        page.goto("/", timeout=PATIENCE)
        page.wait_for_selector("li mark", timeout=PATIENCE)
        first = page.text_content("li")
        page.fill("input[type=search]", "nosuchword")
        page.wait_for_function("document.querySelectorAll('li').length === 0", timeout=PATIENCE)
        browser.close()
        server.shutdown()
    assert "permissions.md: rank 1 by words" in first
    assert complaints == []


def test_it_is_formatted() -> None:
    folders = [str(PACKAGE / name) for name in ("src", "test", "build.js")]
    folders.append(str(ROOT / "docs" / "playground" / "playground.js"))
    deno("fmt", "--check", "--line-width=100", *folders)
