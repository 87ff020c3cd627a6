"""Connections and pools that a fork copied: their answers are those of several processes.

They are refused by name. A connection string is right in every process.
"""

import os
import stat
from contextlib import suppress
from threading import Thread
from typing import Any, NoReturn
from weakref import WeakSet

from second_brain.errors import ConfigurationError

forks: list[int] = []
"""The processes that were forked since this module was imported, up to this one."""

_seen: "WeakSet[Any]" = WeakSet()
_inherited: "WeakSet[Any]" = WeakSet()
_sockets: set[int] = set()


def remember(database: Any) -> None:
    """Note a connection or a pool, so that a process that is forked later refuses it."""
    _seen.add(database)


def check_process(database: Any) -> None:
    """Raise ConfigurationError for a connection or pool that was open before a fork."""
    # A pool that no provider had seen before the fork is known by its threads, which it lacks.
    workers = [one for one in getattr(database, "_workers", ()) if isinstance(one, Thread)]
    is_left = workers and not database.closed and not any(one.is_alive() for one in workers)
    if database in _inherited or is_left:
        refuse_process(type(database).__name__)
    if _sockets and hasattr(database, "pgconn"):
        from psycopg import Error

        # A closed connection has no socket.
        with suppress(Error, OSError):
            if os.fstat(database.pgconn.socket).st_ino in _sockets:
                refuse_process(type(database).__name__)


def refuse_process(name: str) -> NoReturn:
    """Raise the error of what another process opened."""
    raise ConfigurationError(
        f"this {name} was opened before a fork, by another process, whose answers it could return",
        remedy="Open it in each process, after the fork (in gunicorn's post_fork, Celery's "
        "worker_process_init), or give a connection string.",
    )


def _after_fork() -> None:
    forks.append(os.getpid())
    _inherited.update(one for one in _seen if not one.closed)
    # Connections that no provider has seen yet. The number of a socket's inode is unique on Linux.
    with suppress(OSError):
        for name in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                found = os.fstat(int(name))
                if stat.S_ISSOCK(found.st_mode):
                    _sockets.add(found.st_ino)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
