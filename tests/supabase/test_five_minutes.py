"""The first five minutes as the pages tell them, from an empty database to a hit, three ways."""

import contextlib
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jwt
import psycopg
import pytest
from rest import answering
from test_frontend import DENO, OFFLINE, PACKAGE, ROOT, deno_environment, needs_deno
from test_javascript_package import built
from test_supabase_cli import Cli, a_project, pytestmark, supabase

from conftest import Connection, Server
from pages import Block, blocks, section
from postgrest_server import JWT_SECRET
from support.processes import finished, succeeded
from tools import release

__all__ = ["built", "supabase"]  # fixtures

needs_cli = pytestmark
README = (ROOT / "README.md").read_text("utf-8")
JAVASCRIPT = (ROOT / "docs" / "javascript.md").read_text("utf-8")
INSTALL = (ROOT / "docs" / "install.md").read_text("utf-8")
PUBLISHABLE_KEY = jwt.encode({"role": "anon"}, JWT_SECRET, algorithm="HS256")


def code(text: str, heading: str, language: str) -> list[Block]:
    return [block for block in blocks(section(text, heading)) if block.language == language]


def init(text: str, heading: str, folder: Path) -> None:
    (command,) = [
        line
        for block in code(text, heading, "sh")
        for line in block.code.splitlines()
        if line.startswith("second-brain init")
    ]
    arguments = [sys.executable, "-c", "from second_brain.cli import main; main()"]
    subprocess.run([*arguments, *shlex.split(command)[1:]], cwd=folder, check=True)


@needs_cli
def test_python_finds_what_it_has_stored(
    supabase: Cli, plain_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = a_project(tmp_path / "your-project")
    init(README, "Five minutes", own)
    succeeded(supabase("db", "push", project=own))
    monkeypatch.setenv("SECOND_BRAIN_DSN", plain_dsn)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        for block in code(README, "Five minutes", "python"):
            exec(compile(block.code, "README.md", "exec"), {})
    (shown,) = code(README, "Five minutes", "text")
    assert printed.getvalue().splitlines() == shown.code.splitlines()


@pytest.mark.slow
def test_the_wheel_alone_does_the_same(plain_dsn: str, tmp_path: Path) -> None:
    checkout, installed = tmp_path / "checkout", tmp_path / "installed"
    listed = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True)
    for name in filter(None, listed.split("\0")):
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, checkout / name, follow_symlinks=False)
    (wheel,) = [file for file in release.build(checkout) if file.suffix == ".whl"]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--target", installed, wheel], check=True)
    shutil.rmtree(checkout)
    (script,) = code(README, "Five minutes", "python")
    (shown,) = code(README, "Five minutes", "text")
    run = "import sys; from second_brain.cli import main; sys.argv[0] = 'second-brain'; main()"
    installed_alone = {"PYTHONPATH": str(installed), "SECOND_BRAIN_DSN": plain_dsn}
    for program in (
        [run, "init", "--dimensions=256", "--into=supabase/migrations"],
        [run, "migrate", "--dimensions=256"],
        [f"import second_brain\nassert {str(installed)!r} in second_brain.__file__"],
        [script.code],
    ):
        environment = {**os.environ, **installed_alone}
        done = finished(sys.executable, "-c", *program, cwd=tmp_path, env=environment)
        printed = succeeded(done)
    assert printed == shown.code


@pytest.fixture
def pasted(plain_dsn: str, tmp_path: Path) -> Iterator[Connection]:
    """A database in whose SQL editor everything of the section "SQL only" has been run."""
    init(INSTALL, "SQL only", tmp_path)
    with psycopg.connect(plain_dsn, autocommit=True) as connection:
        connection.execute((tmp_path / "second-brain.sql").read_bytes())
        for block in code(INSTALL, "SQL only", "sql"):
            connection.execute(block.code.encode())
        yield connection


def test_sql_alone_finds_what_it_has_stored(pasted: Connection) -> None:
    (block,) = code(INSTALL, "SQL only", "sql")
    select = block.code[block.code.index("select title") :]
    (found,) = pasted.execute(select.encode()).fetchall()
    (shown,) = code(INSTALL, "SQL only", "text")
    assert all(str(cell) in shown.code for cell in found[:2])


@needs_deno
@pytest.mark.usefixtures("built")
def test_typescript_without_python_finds_what_is_public(
    server: Server, plain_dsn: str, tmp_path: Path
) -> None:
    first = JAVASCRIPT.partition("\n## ")[0]
    (init,) = re.findall(r"^npx @second-brain-sql/client (init .*)$", first, re.MULTILINE)
    node = ["node", str(PACKAGE / "dist" / "init.js")]
    subprocess.run([*node, *init.split()], cwd=tmp_path, check=True, capture_output=True)
    grant, program, shown = blocks(first)[1:]
    with psycopg.connect(plain_dsn, autocommit=True) as connection:
        for file in sorted((tmp_path / "supabase" / "migrations").iterdir()):
            connection.execute(file.read_bytes())
        (stored,) = code(INSTALL, "SQL only", "sql")
        for sql in (stored.code, grant.code):
            connection.execute(sql.encode())
    with answering(server, plain_dsn, PUBLISHABLE_KEY) as rest:
        file = tmp_path / "search.ts"
        file.write_text(
            program.code.replace(
                "https://PROJECT.supabase.co", f"http://127.0.0.1:{rest.server_port}"
            ).replace("PUBLISHABLE_KEY", PUBLISHABLE_KEY)
        )
        shutil.copy(ROOT / "package.json", tmp_path)
        (tmp_path / "node_modules").symlink_to(ROOT / "node_modules")
        program_of_page = (DENO, "run", *OFFLINE, "--allow-net=127.0.0.1", "--allow-env", file)
        done = finished(*program_of_page, cwd=tmp_path, env=deno_environment())
    assert succeeded(done) == shown.code
