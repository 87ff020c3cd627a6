"""`second-brain server schedule`, on a schema that stands for pg_cron."""

import json
import re
from collections.abc import Iterator

import pytest

from command_line import Run
from conftest import Connection
from second_brain.database.schedule import add, jobs
from second_brain.errors import PermissionDeniedError
from second_brain.services.install import Database, Install
from support.pg_cron import PG_CRON

OF_CORE = ["second-brain-purge", "second-brain-statistics"]
QUERY_LOG = "second-brain-query-log"


@pytest.fixture
def expected(modules: tuple[str, ...]) -> list[str]:
    optional = {"insight": QUERY_LOG}
    return sorted([*OF_CORE, *(name for module, name in optional.items() if module in modules)])


@pytest.fixture
def run(run: Run, monkeypatch: pytest.MonkeyPatch, shared_dsn: str) -> Run:
    monkeypatch.setenv("SECOND_BRAIN_DSN", shared_dsn)
    return run


@pytest.fixture
def cron(shared: Connection) -> Iterator[Connection]:
    shared.execute(PG_CRON)
    yield shared
    shared.execute("drop schema cron cascade")


def scheduled(connection: Connection) -> list[tuple[object, ...]]:
    return connection.execute("select * from cron.job order by jobname").fetchall()


def names(connection: Connection) -> list[str]:
    return [name for (name,) in connection.execute("select jobname from cron.job order by 1")]


def run_jobs(connection: Connection) -> None:
    for (command,) in connection.execute("select command from cron.job").fetchall():
        connection.execute(command.encode())


def test_each_job_runs_and_a_second_run_changes_nothing(
    run: Run, cron: Connection, expected: list[str]
) -> None:
    first = run("server", "schedule")
    assert first.code == 0, first.err
    before = scheduled(cron)
    assert names(cron) == expected
    assert all(name in first.out for name in expected)
    run_jobs(cron)
    assert run("server", "schedule").code == 0
    assert scheduled(cron) == before


@pytest.mark.module("insight")
def test_the_jobs_keep_the_days_that_are_asked_for(run: Run, cron: Connection) -> None:
    cron.execute(
        "insert into public.knowledge_query_log (asked_at, question, mode, embed_ms, search_ms,"
        "  rerank_ms, total_ms, is_cached)"
        " select now() - age * interval '1 day', 'zebra', 'text', 0, 1, 0, 1, false"
        "   from generate_series(9, 1, -1) as age"
    )
    run("server", "schedule", "--log-days", "7")
    found = json.loads(run("server", "schedule", "--log-days", "5", "--json").out)
    assert sorted(job["name"] for job in found) == sorted([*OF_CORE, QUERY_LOG])
    run_jobs(cron)
    kept = "select max(now() - asked_at) < '5 days', count(*) from public.knowledge_query_log"
    assert cron.execute(kept).fetchone() == (True, 4)
    assert "5 days" in json.dumps(found)


def test_removing_leaves_the_jobs_of_others(
    run: Run, cron: Connection, expected: list[str]
) -> None:
    cron.execute("select cron.schedule('backup', '0 1 * * *', 'select 1')")
    cron.execute(
        "insert into cron.job (jobname, schedule, command, username)"
        " values ('second-brain-purge', '0 1 * * *', 'select 1', 'somebody')"
    )
    run("server", "schedule")
    assert run("server", "schedule", "--remove").out.count("Removed") == len(expected)
    assert names(cron) == ["backup", "second-brain-purge"]
    again = run("server", "schedule", "--remove")
    assert (again.code, again.out) == (0, "There are no jobs of this install.\n")


def test_without_pg_cron_it_fails_and_prints_lines_that_a_shell_can_run(
    run: Run, shared: Connection, shared_dsn: str, expected: list[str]
) -> None:
    refused = run("server", "schedule", "--superseded-days", "90")
    assert refused.code == 1
    assert "pg_cron is not installed" in refused.err
    lines = refused.out.splitlines()
    assert len(lines) == len(expected)
    for line in lines:
        assert "%" not in line
        assert shared_dsn not in line
        before, command, _ = line.split('"')[2:]
        assert before == " -qXAtc "
        shared.execute(command.encode())
    assert "'90 days'" in lines[1]
    assert run("server", "schedule", "--remove").code == 1


def test_an_install_in_another_schema_has_jobs_of_its_own(run: Run, cron: Connection) -> None:
    missing = run("server", "schedule", "--schema", "knowledge_de")
    assert missing.code == 1
    assert "knowledge_de" in missing.err
    assert names(cron) == []
    for job in jobs(Install("knowledge_de")):
        assert job.name.endswith("-knowledge_de")
        assert re.search(r"select knowledge_de(_internal)?\.", job.command)


def test_who_may_not_call_the_functions_schedules_nothing(cron: Connection) -> None:
    install = Install()
    cron.execute("grant usage on schema cron to authenticated; set role authenticated")
    try:
        with pytest.raises(PermissionDeniedError, match="authenticated may not call"):
            add(Database(cron, install), jobs(install))
    finally:
        cron.execute("reset role")
    assert names(cron) == []
