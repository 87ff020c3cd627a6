"""`migrate --all` and `doctor --all`: the installs of a file, one after another."""

import json
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from command_line import Run, runner
from second_brain.cli.installs import Outcome, for_all

NOWHERE = "postgresql://somebody:hunter2@127.0.0.1:1/nowhere"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    return runner(monkeypatch, capsys, tmp_path)


@pytest.fixture
def file(tmp_path: Path, plain_dsn: str) -> Path:
    """Three installs, the second in a database that does not exist."""
    path = tmp_path / "installs.txt"
    path.write_text(f"# ours\n{plain_dsn} acme\n\n{NOWHERE}\n  {plain_dsn}\tglobex  \n")
    return path


def schemas(dsn: str) -> list[str]:
    with psycopg.connect(dsn) as connection:
        found = connection.execute(
            "select schemaname from pg_tables where tablename = 'knowledge_chunks' order by 1"
        )
        return [name for (name,) in found]


@pytest.mark.slow
def test_the_others_go_on_after_a_failure(run: Run, file: Path, plain_dsn: str) -> None:
    done = run("migrate", "--all", str(file), "--dimensions", "3")
    assert done.code == 1
    where = "{host}:{port}/{dbname}".format(**conninfo_to_dict(plain_dsn))
    lines = [line.split() for line in done.out.splitlines()]
    assert [line[:4] for line in lines[1:]] == [
        ["2", where, "acme", "ok"],
        ["4", "127.0.0.1:1/nowhere", "public", "error"],
        ["5", where, "globex", "ok"],
    ]
    assert "line 4: no connection to database 'nowhere' at host 127.0.0.1" in done.err
    assert "3 installs, 1 with an error." in done.err
    assert "hunter2" not in done.out + done.err
    assert schemas(plain_dsn) == ["acme", "globex"]

    examined = run("doctor", "--all", str(file), "--json")
    assert examined.code == 1
    assert [(one["line"], one["is_good"]) for one in json.loads(examined.out)] == [
        (2, True),
        (4, False),
        (5, True),
    ]
    assert "hunter2" not in examined.out + examined.err


@pytest.mark.slow
def test_it_stops_at_a_failure_if_asked(run: Run, file: Path, plain_dsn: str) -> None:
    done = run("migrate", "--all", str(file), "--stop", "--dimensions", "3")
    assert done.code == 1
    assert "2 installs, 1 with an error, 1 not tried." in done.err
    assert schemas(plain_dsn) == ["acme"]


@pytest.mark.parametrize(
    ("line", "place"),
    [
        ("postgresql://me@h:1/db", ("public", "h:1/db")),
        ("postgres://me@h:1/db?sslmode=disable tenant_a", ("tenant_a", "h:1/db")),
        ("host=h port=1 dbname=db", ("public", "h:1/db")),
        ("host=h port=1 dbname=db tenant_a", ("tenant_a", "h:1/db")),
        ("host=h port=1 dbname=db password='hunter2 is mine'", ("public", "h:1/db")),
        ("host=h port=1 dbname=db password='hunter2 is mine' acme", ("acme", "h:1/db")),
    ],
)
def test_a_line_is_a_connection_string_and_a_schema(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, place: tuple[str, str]
) -> None:
    file = tmp_path / "installs.txt"
    file.write_text(line)
    asked: list[str] = []

    def work(dsn: str, schema: str) -> Outcome:
        asked.append(make_conninfo(dsn))
        return Outcome(True, "up to date")

    for_all(file, "public", work, as_json=True)
    (told,) = json.loads(capsys.readouterr().out)
    assert (told["schema"], told["database"]) == place
    assert asked == [make_conninfo(line.removesuffix(f" {place[0]}"))]


def test_a_line_that_is_none_is_named_and_not_shown(
    run: Run, tmp_path: Path, plain_dsn: str
) -> None:
    lines = [
        "hunter2",
        "postgresql://me:hunter2@h/db acme globex",
        "postgresql://me:hunter2@x@h/db",
        "postgresql://me:my hunter2@h/db",
        "postgresql://me@h/db?password=hunter2 pg_catalog",
        "host=h password='hunter2",
        "host=h password=my hunter2's",
        "host=h passwort=hunter2 acme",
        "host=h password=hunter2 Acme;drop",
    ]
    (tmp_path / "installs.txt").write_text("\n".join([*lines, f"{plain_dsn} acme"]))
    done = run("migrate", "--all", "installs.txt", "--dimensions", "3")
    assert done.code == 1
    assert all(f"line {number}: " in done.err for number in range(1, len(lines) + 1))
    assert "hunter2" not in done.out + done.err
    assert schemas(plain_dsn) == ["acme"]


def test_a_file_without_an_install_and_what_does_not_go_with_it_are_refused(
    run: Run, tmp_path: Path
) -> None:
    (tmp_path / "empty.txt").write_text("# nothing\n")
    for arguments, said in (
        (["--all", "empty.txt"], "empty.txt has no install"),
        (["--all", "absent.txt"], "absent.txt cannot be read"),
        (["--all", "empty.txt", "--prelude"], "--prelude, which needs a superuser"),
        (["--all", "empty.txt", "--dsn", NOWHERE], "not from --dsn"),
    ):
        done = run("migrate", *arguments)
        assert done.code != 0
        assert said in done.err
