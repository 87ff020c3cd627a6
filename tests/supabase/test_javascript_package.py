"""The npm package clients/js: its own tests on PGlite and over supabase-js, what `npm pack` packs,
the playground.

With POSTGREST_BIN a real PostgREST answers supabase-js, else `rest.py`.
"""

import fcntl
import json
import os
import shutil
import subprocess
import threading
from pathlib import Path

import pytest
from rest import answering
from test_frontend import ANA, ANON_KEY, PACKAGE, ROOT, deno, needs_deno, signed

from conftest import Server
from tools import playground

NPM = shutil.which("npm")
BUILT_FOR = [ROOT / "node_modules" / name for name in ("typescript", "@electric-sql/pglite")]
CHROMIUM = os.environ.get("CHROMIUM_BIN") or shutil.which("chromium") or shutil.which("chrome")
PATIENCE = 120_000  # milliseconds
LARGEST = 17_600  # bytes of the .tgz

needs_npm = pytest.mark.skipif(
    NPM is None or not all(place.exists() for place in BUILT_FOR),
    reason="npm or the packages of clients/js are absent: make cli",
)


def npm(*arguments: str, **environment: str) -> str:
    with (PACKAGE / "package.json").open() as locked:
        # No other worker builds the package while this one builds or runs it.
        fcntl.flock(locked, fcntl.LOCK_EX)
        done = subprocess.run(
            [str(NPM), *arguments],
            cwd=PACKAGE,
            env={**os.environ, **environment},
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
def test_it_calls_a_project_with_supabase_js(dsn: str, server: Server) -> None:
    npm("run", "--silent", "build")
    with answering(server, dsn, ANON_KEY) as rest:
        npm(
            *("exec", "--offline", "--", "node", "--test", "test/rest.js"),
            URL=f"http://127.0.0.1:{rest.server_port}",
            KEY=ANON_KEY,
            SERVICE_TOKEN=signed(ANA, role="service_role"),
            USER=str(ANA),
            USER_TOKEN=signed(ANA),
        )


@needs_npm
def test_the_package_has_code_and_types_of_each_entry_and_is_small() -> None:
    # As `prepack` does, which the next line leaves out.
    shutil.copy(ROOT / "LICENSE", PACKAGE)
    (packed,) = json.loads(npm("pack", "--dry-run", "--ignore-scripts", "--json"))
    names = {file["path"] for file in packed["files"]}
    entries = json.loads((PACKAGE / "package.json").read_text("utf-8"))["exports"].values()
    code = {entry.removeprefix("./") for entry in entries}
    assert code | {name.removesuffix(".js") + ".d.ts" for name in code} <= names
    assert not [name for name in names if name.startswith(("src/", "test/"))]
    assert packed["size"] <= LARGEST


@needs_npm
@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is absent: set CHROMIUM_BIN")
def test_the_playground_searches_in_the_browser() -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    npm("run", "--silent", "build")
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


@needs_deno
def test_it_is_formatted(tmp_path: Path) -> None:
    folders = [str(PACKAGE / name) for name in ("src", "test", "build.js")]
    folders.append(str(ROOT / "docs" / "playground" / "playground.js"))
    deno("fmt", "--check", "--line-width=100", *folders, home=tmp_path)
