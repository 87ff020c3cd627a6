"""kill -9 of the server under writers: no acknowledged write is lost and no document is half."""

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import suppress

import psutil  # type: ignore[import-untyped, unused-ignore]
import psycopg
import pytest
from servers import RECOVERY, recovered, temporary_server
from traffic import Traffic, check_searches
from versions import Ledger

from conftest import Connection
from second_brain.database.embedded import EmbeddedPostgres
from trials import Trial

pytestmark = pytest.mark.chaos(share=0.12)


@pytest.fixture(params=["off", "on"])
def embedded(request: pytest.FixtureRequest) -> Iterator[EmbeddedPostgres]:
    """A server of this test's own, without and with fsync."""
    with temporary_server(request.config, fsync=request.param) as server:
        yield server


def commits_without_sync(connection: Connection) -> int:
    """Commit some writes, and return how many were acknowledged before the log was on the disk.

    What a killed server has written is in the page cache, so no kill shows this.
    """
    commits = 20

    def synced() -> int:
        connection.execute("select pg_stat_force_next_flush()")
        ((count,),) = connection.execute(
            "select sum(fsyncs)::integer from pg_stat_io where object = 'wal'"
            if connection.info.server_version >= 180000
            else "select wal_sync from pg_stat_wal"
        ).fetchall()
        return int(count)

    before = synced()
    for _ in range(commits):
        connection.execute(
            "insert into public.knowledge_sources (name, origin) values ('s', 'text')"
        )
        connection.execute("delete from public.knowledge_sources")
    return max(0, before + 2 * commits - synced())


def processes(server: EmbeddedPostgres, how: str, probe: Connection) -> list[int]:
    """Return the process ids of other sessions, of the whole server, or of the postmaster."""
    if how == "session":
        rows = probe.execute(
            "select pid from pg_stat_activity"
            " where backend_type = 'client backend' and pid <> pg_backend_pid() order by pid"
        ).fetchall()
        return [pid for (pid,) in rows]
    pid = int((server.log.parent / "postmaster.pid").read_text().splitlines()[0])
    children = psutil.Process(pid).children(recursive=True) if how == "server" else []
    return [pid, *(one.pid for one in children)]


def is_killed(pid: int) -> bool:
    """Kill a process; false when it is gone already."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        return True
    return False


def kill(server: EmbeddedPostgres, how: str, draw: random.Random) -> None:
    """Kill one session, the whole server, or the postmaster alone; wait until it is noticed."""
    with psycopg.connect(server.dsn(), autocommit=True) as probe:
        # Sessions end and begin, so the one that was drawn may be gone.
        while True:
            found = processes(server, how, probe)
            drawn = draw.sample(found, min(1, len(found))) if how == "session" else found
            if [pid for pid in drawn if is_killed(pid)]:
                break
        with suppress(psycopg.OperationalError):
            give_up = time.monotonic() + RECOVERY
            while time.monotonic() < give_up:
                probe.execute("select")


def test_no_acknowledged_write_is_lost_when_the_server_is_killed(
    trial: Trial, embedded: EmbeddedPostgres
) -> None:
    trial.needs("acknowledged writes", "recoveries", "searches answered")
    draw, ledger = trial.random(), Ledger()
    traffic = Traffic(trial, ledger, embedded.dsn)
    slowest = 0.0
    with traffic.running():
        while trial.is_on():
            time.sleep(draw.uniform(0.2, 1.2))
            how = draw.choice(["session", "session", "server", "server", "postmaster"])
            trial.note(f"kills of the {how}")
            kill(embedded, how, draw)
            begun = time.monotonic()
            with recovered(embedded) as connection:
                slowest = max(slowest, time.monotonic() - begun)
                traffic.stand_still()
                for difference in ledger.differences(connection):
                    trial.violated(f"after a kill of the {how}: {difference}")
                check_searches(trial, ledger, connection)
                if connection.execute("show fsync").fetchone() == ("on",):
                    if lost := commits_without_sync(connection):
                        trial.violated(f"{lost} commits were acknowledged without a sync")
                    trial.held("synced recoveries")
                trial.held("recoveries")
            traffic.go_on()
    trial.held("ms for the slowest recovery", round(slowest * 1000))
    trial.finish()
