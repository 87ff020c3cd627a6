"""A primary and two standbys, which the tests of replicas pause, stop and kill."""

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psutil  # type: ignore[import-untyped, unused-ignore]
import psycopg
import pytest

from corpora import store_document
from second_brain.database import migrations
from second_brain.database.embedded import EmbeddedPostgres, Standby
from second_brain.services.write import KnowledgeWriter
from tools import throw_away
from waiting import until

# What is killed is a process, never the machine. Conflicts cancel a search at once.
SETTINGS = {"fsync": "off", "max_standby_streaming_delay": "0", "wal_receiver_timeout": "5s"}
WORDS = ["anchor", "beacon", "cable", "dynamo", "engine", "funnel", "girder", "hinge"]


class Cluster:
    """A primary with two standbys."""

    def __init__(self, primary: EmbeddedPostgres) -> None:
        self.primary = primary

    @property
    def standbys(self) -> list[Standby]:
        return self.primary.standbys

    def ask(self, server: EmbeddedPostgres, statement: str) -> Any:
        """Run a statement as the superuser and return its one value, if any."""
        with psycopg.connect(server.admin_dsn(), autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchone()[0] if cursor.description else None  # type: ignore[index]

    def commit_on(self, standbys: str) -> None:
        """Let a commit wait for these standbys."""
        self.ask(self.primary, f"alter system set synchronous_standby_names = '{standbys}'")
        self.ask(self.primary, "select pg_reload_conf()")

    def catch_up(self) -> None:
        """Wait until both standbys have replayed what the primary has."""
        position = self.ask(self.primary, "select pg_current_wal_flush_lsn()")
        for one in self.standbys:
            self.until(one, f"select pg_last_wal_replay_lsn() >= '{position}'")

    def until(self, server: EmbeddedPostgres, question: str) -> None:
        until(lambda: self.ask(server, question))

    @contextmanager
    def ending_sessions(self, condition: str) -> Iterator[None]:
        """End sessions of the primary that meet a condition, as soon as there is one."""
        end = "select count(pg_terminate_backend(pid)) from pg_stat_activity"
        ending = threading.Thread(
            target=until, args=[lambda: self.ask(self.primary, f"{end} where {condition}")]
        )
        ending.start()
        yield
        ending.join()

    @contextmanager
    def paused(self, *standbys: Standby) -> Iterator[None]:
        for one in standbys:
            self.ask(one, "select pg_wal_replay_pause()")
            self.until(one, "select pg_get_wal_replay_pause_state() = 'paused'")
        try:
            yield
        finally:
            for one in standbys:
                self.ask(one, "select pg_wal_replay_resume()")


def kill(server: EmbeddedPostgres) -> None:
    pid = int((server.log.parent / "postmaster.pid").read_text().splitlines()[0])
    processes = [psutil.Process(pid), *psutil.Process(pid).children()]
    for one in processes:
        with suppress(psutil.NoSuchProcess):
            one.kill()
    psutil.wait_procs(processes, timeout=30)


@pytest.fixture(scope="module")
def cluster(pytestconfig: pytest.Config, modules: tuple[str, ...]) -> Iterator[Cluster]:
    """A primary with a small corpus and two standbys."""
    place = throw_away.folder()
    primary = EmbeddedPostgres(
        place / "postgres", pytestconfig.getoption("--postgres-major"), SETTINGS
    )
    try:
        primary.start(standbys=2)
        migrations.apply(primary.dsn(), dimensions=3, modules=modules)
        with psycopg.connect(primary.dsn(), autocommit=True) as connection:
            for number, word in enumerate(WORDS):
                texts = {
                    f"the {word} of house {turn}": [1, number / 8, turn / 8] for turn in range(6)
                }
                store_document(connection, word, texts, title=word, metadata={"place": number})
            connection.execute("vacuum analyze")
            KnowledgeWriter(connection).refresh_statistics()
        made = Cluster(primary)
        made.catch_up()
        yield made
    finally:
        primary.remove()
        shutil.rmtree(place)
