"""kill -9 of clients in the middle of upserts: nothing is half done, and no lock stays."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from versions import Ledger, chunks, document

from conftest import Connect, Connection
from second_brain.errors import SecondBrainError
from second_brain.services.write import KnowledgeWriter
from trials import Trial

pytestmark = pytest.mark.chaos(share=0.08)

CLIENTS = 3
PATIENCE = 60  # seconds
WORDS = 300  # in a chunk: long enough that most kills meet a write
PROGRAM = Path(__file__).with_name("writing_client.py")
APPLICATION = "chaos client"
SESSIONS = "select count(*) from pg_stat_activity where application_name = %s"
LOCKS = """
select count(*)
  from pg_locks
  join pg_stat_activity as activity using (pid)
 where activity.application_name = %s
   and locktype in ('relation', 'tuple', 'transactionid', 'advisory')
"""


class Clients:
    """Writing processes, and what they have said."""

    def __init__(self, dsn: str, folder: Path) -> None:
        self._folder = folder
        environment = {
            **os.environ,
            "CHAOS_DSN": make_conninfo(dsn, application_name=APPLICATION),
            "PYTHONPATH": os.pathsep.join(map(str, (PROGRAM.parent, PROGRAM.parent.parent))),
        }
        self._program = subprocess.Popen(
            [sys.executable, str(PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )
        assert self._program.stdin is not None
        assert self._program.stdout is not None
        self._in, self._out = self._program.stdin, self._program.stdout

    def start(self, key: str, first: int) -> int:
        print(key, first, WORDS, self._folder / f"{key}-{first}", file=self._in, flush=True)
        return int(self._out.readline())

    def has_begun(self, key: str, first: int) -> bool:
        return bool(self.said(key, first))

    def said(self, key: str, first: int) -> list[str]:
        file = self._folder / f"{key}-{first}"
        return file.read_text().splitlines() if file.exists() else []

    def close(self) -> None:
        self._in.close()
        self._out.close()
        self._program.wait(timeout=20)


@pytest.fixture
def clients(dsn: str, tmp_path: Path) -> Iterator[Clients]:
    made = Clients(dsn, tmp_path)
    yield made
    made.close()


def eventually(holds: Callable[[], bool]) -> bool:
    give_up = time.monotonic() + PATIENCE
    while not holds():
        if time.monotonic() > give_up:
            return False
        time.sleep(0.01)
    return True


def counted(connection: Connection, statement: str) -> int:
    ((number,),) = connection.execute(statement.encode(), [APPLICATION]).fetchall()
    return int(number)


def test_a_killed_client_leaves_nothing_half_done_and_no_lock(
    trial: Trial, connect: Connect, clients: Clients
) -> None:
    trial.needs("kills within a write", "writes right afterwards")
    draw, ledger = trial.random(), Ledger(length=WORDS)
    service, watching = connect("service_role"), connect()
    service.execute("set lock_timeout = '5s'")
    for first in count(1, 1_000):
        if not trial.is_on():
            break
        keys = [f"client{number}" for number in range(CLIENTS)]
        pids = [clients.start(key, first) for key in keys]
        for key, pid in zip(keys, pids, strict=True):
            if not eventually(partial(clients.has_begun, key, first)):
                trial.violated(f"{key} does not begin to write")
            time.sleep(draw.uniform(0, 0.3))
            os.kill(pid, signal.SIGKILL)
            trial.note("kills")
        if not eventually(lambda: counted(watching, LOCKS) == 0):
            trial.violated(f"a killed client's session still has locks after {PATIENCE} s")
        for key in keys:
            said = clients.said(key, first)
            for line in said:
                if line.startswith("ok "):
                    ledger.is_acknowledged(key, int(line.removeprefix("ok ")))
                else:
                    ledger.sends(key, int(line))
            if said and said[-1].isdecimal():
                trial.held("kills within a write")
        differences = ledger.differences(watching)
        for difference in differences:
            trial.violated(difference)
        if not differences:
            trial.held("whole documents", CLIENTS)
        for key in keys:
            version = first + 999
            ledger.sends(key, version)
            try:
                KnowledgeWriter(service).upsert_document(
                    document(key, version), chunks(key, version, WORDS)
                )
            except (SecondBrainError, psycopg.Error) as error:
                trial.violated(f"a write after a kill: {error}")
            else:
                ledger.is_acknowledged(key, version)
                trial.held("writes right afterwards")
        if not eventually(lambda: counted(watching, SESSIONS) == 0):
            trial.violated(f"a killed client's session is still there after {PATIENCE} s")
    trial.finish()
