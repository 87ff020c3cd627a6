"""Which tests reach which lines of the package and which functions of the SQL: a pytest plugin.

`pytest -p tools.reached` writes a file of each kind for each worker into FOLDER. Postgres counts
the calls of a database's functions, but for those that it inlines. A database that a module
shares stands for all tests of the file.
"""

import json
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import coverage
import psycopg
import pytest

from tools import throw_away

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".second-brain" / "reached"
WORKER = os.environ.get("PYTEST_XDIST_WORKER", "main")

throw_away.SETTINGS["track_functions"] = "all"
_lines = coverage.Coverage(
    str(FOLDER / f"{WORKER}.lines"), source=["second_brain"], config_file=False, messages=False
)
_lines.set_option("run:disable_warnings", ["module-not-measured"])  # this file imports some
_functions: dict[str, list[str]] = {}
_databases: set[str] = set()


def pytest_sessionstart(session: pytest.Session) -> None:
    """Begin with no file."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    if WORKER == "main":
        for file in FOLDER.iterdir():
            file.unlink()
    if WORKER != "main" or not session.config.option.numprocesses:
        _lines.start()


def pytest_sessionfinish() -> None:
    """Write both files."""
    _lines.stop()
    _lines.save()
    (FOLDER / f"{WORKER}.functions.json").write_text(json.dumps(_functions))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let the lines that run from here on be this test's."""
    _lines.switch_context(of_test(item.nodeid))


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Iterator[Any]:
    """Let the functions that a database counted be read before it is dropped."""
    made = yield
    if isinstance(made, str) and "dbname=second_brain_test_" in made and made not in _databases:
        _databases.add(made)
        fixturedef.addfinalizer(partial(_read, made, of_test(request.node.nodeid)))
    return made


def _read(dsn: str, name: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        # A session counts for good when it ends.
        connection.execute(
            "select pg_terminate_backend(pid, 1000) from pg_stat_activity"
            " where datname = current_database() and pid <> pg_backend_pid()"
            " and usename = current_user"
        )
        called = connection.execute("select distinct funcname from pg_stat_user_functions")
        _functions.setdefault(name, []).extend(name for (name,) in called)


def of_test(node: str) -> str:
    """Return a node's name without what its test is parametrised with."""
    return node.partition("[")[0]


def tests_of_function(name: str) -> set[str]:
    """Return the tests, and the files of tests, that call a function of the SQL."""
    return {
        test
        for file in FOLDER.glob("*.functions.json")
        for test, called in json.loads(file.read_text()).items()
        if name in called
    }


def tests_of_line(file: Path, number: int) -> set[str]:
    """Return the tests that run a line (from 1) of the package."""
    found: set[str] = set()
    for lines in FOLDER.glob("*.lines"):
        data = coverage.CoverageData(str(lines))
        data.read()
        found.update(data.contexts_by_lineno(str(file)).get(number, []))
    return found - {""}
