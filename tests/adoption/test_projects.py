"""Ten public projects: their table and their calls, unchanged, before and after."""

import re
from pathlib import Path

import psycopg
import pytest

from command_line import Run
from conftest import Connect, Connection

pytestmark = pytest.mark.module("adoption")

PROJECTS = sorted(Path(__file__).with_name("projects").glob("*.sql"))


class Project:
    """A file of `projects`: SQL, and comments on how it is adopted and what its calls give."""

    def __init__(self, path: Path) -> None:
        text = path.read_text("utf-8")
        marks = re.findall(r"^-- (\w+):[ ]?(.*)$", text, re.MULTILINE)
        self.sql = text
        self.adopt = next(value for mark, value in marks if mark == "adopt").split()
        self.name = self.adopt[0].split(".")[1]
        self.decided = [value for mark, value in marks if mark == "decide"]
        self.left = [value for mark, value in marks if mark == "left"]
        self.notes = [value for mark, value in marks if mark == "note"]
        self.calls: list[dict[str, str]] = []
        user = ""
        for mark, value in marks:
            if mark == "user":
                user = value
            elif mark == "call":
                self.calls.append({"call": value, "user": user})
            elif mark in ("before", "after"):
                self.calls[-1][mark] = value

    def answers(self, connect: Connect) -> list[str]:
        """Return what the calls give, first column only."""
        return [" ".join(answer(connect, one["user"], one["call"])) for one in self.calls]


def answer(connect: Connect, user: str, call: str) -> list[str]:
    if not user:
        caller: Connection = connect()
    else:
        caller = connect("anon") if user == "anon" else connect("authenticated", uid=user)
    caller.execute("set search_path = public, extensions")
    return [str(row[0]) for row in caller.execute(call.encode()).fetchall()]


def dimensions_of(path: Path) -> int:
    stated = re.search(r"^-- dimensions: (\d+)", path.read_text("utf-8"), re.MULTILINE)
    return int(stated[1]) if stated else 3


@pytest.mark.parametrize(
    ("dimensions", "path"),
    [pytest.param(dimensions_of(path), path, id=path.stem) for path in PROJECTS],
)
def test_the_calls_of_a_project_stay(run: Run, dsn: str, connect: Connect, path: Path) -> None:
    project = Project(path)
    with psycopg.connect(dsn, autocommit=True) as owner:
        owner.execute("set search_path = public, extensions")
        owner.execute(project.sql.encode())
    assert project.answers(connect) == [one["before"] for one in project.calls]
    adopted = run("adopt", *project.adopt, "--apply", "--dsn", dsn)
    assert adopted.code == 0, adopted.err
    assert f"--calls {project.name}" in adopted.err
    assert run("adopt", "--backfill", project.name, "--dsn", dsn).code == 0
    done = run("adopt", "--calls", project.name, "--apply", "--dsn", dsn)
    assert done.code == 0, done.err
    decided = re.findall(r"decide: (.*)", done.out)
    assert [one for one in project.decided if one not in done.out] == [], done.out
    assert len(decided) == len(project.decided), done.out
    assert [one for one in project.left if one not in done.out] == [], done.out
    assert done.out.count("  left: ") == len(project.left), done.out
    assert [one for one in project.notes if one not in done.out] == [], done.out
    assert "not compared" not in done.out
    assert project.answers(connect) == [one["after"] for one in project.calls], done.out
    assert run("adopt", "--calls", project.name, "--undo", "--apply", "--dsn", dsn).code == 0
    assert project.answers(connect) == [one["before"] for one in project.calls]
