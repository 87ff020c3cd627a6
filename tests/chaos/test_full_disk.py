"""A full disk: writers get 53100, nothing is half done, searches go on, and space heals it.

The disk is a small tmpfs, which only root may mount.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
import pytest
from servers import recovered, temporary_folder, temporary_server
from traffic import Traffic, check_searches
from versions import Ledger

from conftest import Connection
from second_brain.database import migrations
from second_brain.database.embedded import EmbeddedPostgres, apply_prelude
from trials import Trial

pytestmark = pytest.mark.chaos(share=0.06)

LEFT = 500_000  # bytes
WORDS = 300
PATIENCE = 60  # seconds


@contextmanager
def small_disk(trial: Trial, megabytes: int) -> Iterator[Path]:
    with temporary_folder() as folder:
        disk = folder / "disk"
        disk.mkdir()
        mounted = None
        if os.geteuid() == 0 and shutil.which("mount"):
            options = f"size={megabytes}m,mode=755"
            mounted = subprocess.run(
                ["mount", "-t", "tmpfs", "-o", options, "chaos", str(disk)],
                capture_output=True,
                text=True,
                check=False,
            )
        if mounted is None or mounted.returncode:
            reason = "needs root" if mounted is None else mounted.stderr.strip()
            trial.skip(f"cannot mount a small disk: {reason}")
        try:
            yield disk
        finally:
            subprocess.run(["umount", str(disk)], check=True)


@contextmanager
def filled(disk: Path) -> Iterator[None]:
    ballast = disk / "ballast"
    with ballast.open("wb") as file:
        # Writers may take what was free a moment ago.
        for _ in range(1_000):
            with suppress(OSError):
                wanted = max(shutil.disk_usage(disk).free - LEFT, 1)
                os.posix_fallocate(file.fileno(), 0, wanted)
                break
    try:
        yield
    finally:
        ballast.unlink()


def wait_for(
    trial: Trial, what: str, counted: Callable[[], int], more: int = 50, since: int | None = None
) -> None:
    """Wait until there are so many more than now, or than there were."""
    enough = (counted() if since is None else since) + more
    give_up = time.monotonic() + PATIENCE
    while counted() < enough:
        if time.monotonic() > give_up:
            trial.violated(f"{what}: fewer than {more} within {PATIENCE} s")
            return
        time.sleep(0.01)


def check(trial: Trial, ledger: Ledger, connection: Connection, when: str) -> None:
    for difference in ledger.differences(connection):
        trial.violated(f"{when}: {difference}")
    check_searches(trial, ledger, connection)


@contextmanager
def database_on(disk: Path, server: EmbeddedPostgres) -> Iterator[str]:
    """Yield the DSN of a database whose tables are on the disk; what it logs is elsewhere."""
    place = disk / "tables"
    place.mkdir()
    owner = server.log.stat()
    os.chown(place, owner.st_uid, owner.st_gid)
    with psycopg.connect(server.admin_dsn(), autocommit=True) as admin:
        admin.execute(f"create tablespace small location '{place}'".encode())
        admin.execute("create database small owner postgres tablespace small")
    with psycopg.connect(server.admin_dsn("small"), autocommit=True) as admin:
        apply_prelude(admin)
    migrations.apply(server.dsn("small"), dimensions=3, modules=migrations.modules())
    yield server.dsn("small")


def test_a_full_disk_of_the_tables_refuses_writes_and_nothing_else(
    trial: Trial, pytestconfig: pytest.Config
) -> None:
    trial.needs("writes refused with 53100", "searches answered", "times that writes went on")
    with (
        small_disk(trial, 64) as disk,
        temporary_server(pytestconfig) as server,
        database_on(disk, server) as dsn,
        psycopg.connect(dsn, autocommit=True) as connection,
    ):
        ledger = Ledger(length=WORDS)
        traffic = Traffic(trial, ledger, lambda: dsn, searches_survive=True)
        with traffic.running():
            while trial.is_on():
                wait_for(trial, "writes", lambda: ledger.acknowledged)
                with filled(disk):
                    trial.note("full disks of the tables")
                    wait_for(trial, "writes refused with 53100", lambda: traffic.refusals)
                    traffic.stand_still()
                    check(trial, ledger, connection, "on a full disk")
                traffic.go_on()
                wait_for(trial, "writes after a full disk", lambda: ledger.acknowledged)
                traffic.stand_still()
                check(trial, ledger, connection, "after a full disk")
                trial.held("times that writes went on")
                # What is superseded fills the disk for good.
                connection.execute("truncate public.knowledge_documents, public.knowledge_chunks")
                ledger.possible.clear()
                traffic.go_on()
    trial.finish()


def move_log(server: EmbeddedPostgres, disk: Path) -> None:
    """Move the server's write-ahead log onto the disk."""
    place, owner = server.log.parent / "pg_wal", server.log.stat()
    server.stop()
    shutil.copytree(place, disk / "log")
    shutil.rmtree(place)
    place.symlink_to(disk / "log")
    for moved in (disk / "log", *(disk / "log").rglob("*")):
        os.chown(moved, owner.st_uid, owner.st_gid)
    server.start()


def use_up_log(server: EmbeddedPostgres) -> None:
    """Begin new segments of the log until there is no room for another one."""
    with (
        suppress(psycopg.Error),
        psycopg.connect(server.admin_dsn(), autocommit=True) as admin,
    ):
        for _ in range(20):
            admin.execute("select pg_switch_wal()")


def test_a_full_disk_of_the_log_loses_nothing(trial: Trial, pytestconfig: pytest.Config) -> None:
    trial.needs("recoveries")
    with (
        temporary_folder() as folder,
        small_disk(trial, 100) as disk,
        temporary_server(pytestconfig, folder, max_wal_size="48MB", min_wal_size="32MB") as server,
    ):
        move_log(server, disk)
        ledger = Ledger()
        traffic = Traffic(trial, ledger, server.dsn)
        with traffic.running():
            while trial.is_on():
                wait_for(trial, "writes", lambda: ledger.acknowledged)
                with filled(disk):
                    trial.note("full disks of the log")
                    before = traffic.failures
                    use_up_log(server)
                    wait_for(trial, "failed writes", lambda: traffic.failures, 1, before)
                with recovered(server) as connection:
                    traffic.stand_still()
                    check(trial, ledger, connection, "after a full disk")
                    trial.held("recoveries")
                traffic.go_on()
    trial.finish()
