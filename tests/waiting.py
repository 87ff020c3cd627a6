"""Waiting for what another thread or process does, with a limit that a busy machine keeps."""

import time
from collections.abc import Callable

from conftest import Connection


def until(condition: Callable[[], object], seconds: float = 120) -> None:
    """Wait until a condition holds; fail if it does not in this time."""
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up, "it did not happen in time"
        time.sleep(0.01)


def await_locks(connection: Connection, *kinds: str) -> None:
    """Wait until other sessions of this database wait for locks of all these kinds."""
    waiting = "select locktype from pg_locks where not granted and database = ("
    waiting += "select oid from pg_database where datname = current_database())"
    until(lambda: {*kinds} <= {kind for (kind,) in connection.execute(waiting.encode())})


def await_lock_of(watching: Connection, waiting: Connection) -> None:
    """Wait until a session waits for a lock of any kind."""
    blocked = "select from pg_stat_activity where pid = %s and wait_event_type = 'Lock'"
    until(lambda: watching.execute(blocked, [waiting.info.backend_pid]).fetchall())
