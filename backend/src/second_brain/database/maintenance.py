"""Sessions for long work on a table in use: no timeouts, one run at a time, short locks.

The work takes longer than a statement timeout and needs several transactions in one session: a
direct connection or a session pooler. The work itself is in `vector_index` and `reembedding`.
"""

import contextlib
import random
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import psycopg
from psycopg import sql

from second_brain.database import pgvector
from second_brain.errors import (
    ConfigurationError,
    ConflictError,
    MigrationMissingError,
    PermissionDeniedError,
)
from second_brain.services.connections import connect
from second_brain.services.install import SCHEMA, Database, Install

Result = TypeVar("Result")

DIRECT = "Connect directly or through a session pooler (Supabase: port 5432, not 6543)."
LOCK_PATIENCE = 600.0

HOLDER_PATIENCE = 7.0
"""Seconds in which another session must end. After a kill, the server notices it in 5 seconds."""

_NAME_SESSION = "select pg_backend_pid(), set_config('second_brain.session', %s, false)"
# transaction_timeout is new in PostgreSQL 17.
_SETTINGS = """
select set_config(setting.name, '0', false)
  from pg_catalog.pg_settings as setting
 where setting.name in (
         'statement_timeout', 'lock_timeout', 'idle_in_transaction_session_timeout',
         'idle_session_timeout', 'transaction_timeout'
       )
"""
# The server then cancels the statement of a killed client; not every platform supports it.
_NOTICE_DEAD_CLIENT = "select set_config('client_connection_check_interval', '5s', false)"
_PROCESS = "select pg_backend_pid()"
_SESSION = "select current_setting('second_brain.session', true)"
_OWNER = """
select pg_get_userbyid(class.relowner), pg_get_userbyid(class.relowner) = current_user
  from pg_catalog.pg_class as class
 where class.oid = to_regclass('public.knowledge_chunks')
"""
_IS_MIGRATED = """
select to_regprocedure('knowledge_internal.indexed_embedding(text, name)') is not null
"""
_LOCK = "select pg_try_advisory_lock(hashtextextended(%s, 0))"
# pg_locks shows the key of an advisory lock as two halves.
_HOLDER = """
select lock.pid
  from pg_catalog.pg_locks as lock
 where lock.locktype = 'advisory'
   and lock.granted
   and lock.database = (select oid from pg_catalog.pg_database where datname = current_database())
   and lock.objsubid = 1
   and (lock.classid::bigint << 32 | lock.objid::bigint)
         = hashtextextended(%s, 0)
"""
_LOCK_TIMEOUT = "set local lock_timeout = '300ms'"
_BUILDING = """
select building.phase,
       coalesce(
         building.blocks_done::float8 / nullif(building.blocks_total, 0),
         building.lockers_done::float8 / nullif(building.lockers_total, 0)
       )
  from pg_catalog.pg_stat_progress_create_index as building
 where building.pid = %s
"""


@dataclass(frozen=True)
class Progress:
    """The current step, and the finished share of it: 0 to 1, or None if it is not known."""

    step: str
    share: float | None = None


OnProgress: TypeAlias = Callable[[Progress], None]


def ignore_progress(_progress: Progress) -> None:
    """Do nothing: the default for callers without a progress display."""


@contextlib.contextmanager
def session(dsn: str, schema: str = SCHEMA) -> Iterator[Database]:
    """Open an autocommit session as the owner of an install's tables; only one can be open.

    Raises MigrationMissingError, PermissionDeniedError if the role cannot act as the owner,
    ConflictError if another such session stays open, and ConfigurationError when it detects a
    transaction pooler.
    """
    token = secrets.token_hex(8)
    with connect(dsn, autocommit=True, prepare_threshold=None) as connection:
        _refuse_pooler(dsn, connection, token)
        connection.execute(_SETTINGS)
        with contextlib.suppress(psycopg.errors.InvalidParameterValue):
            connection.execute(_NOTICE_DEAD_CLIENT)
        vector = pgvector.installed(connection)
        if vector is None:
            raise MigrationMissingError("pgvector is not installed in the database")
        database = Database(connection, Install(schema, vector.schema))
        _become_owner(database)
        _become_the_only_one(database)
        check_session(database, token)
        yield database


def _refuse_pooler(dsn: str, connection: psycopg.Connection[Any], token: str) -> None:
    """Refuse a transaction pooler before anything is set that its other clients would have.

    Behind a pooler, the process that answers is another one than the protocol names. While a second
    connection holds one of its sessions, a transaction pooler shows it the first one's.
    """
    (pid, _) = connection.execute(_NAME_SESSION, [token]).fetchone() or (0, "")
    if pid == connection.info.backend_pid:
        return
    # One pooler gives the next transaction the connection that was idle for longest, another the
    # last one: the second statement tells the first, a second client the other.
    (again,) = connection.execute(_PROCESS).fetchone() or (0,)
    with connect(dsn, prepare_threshold=None) as other:
        shown = other.execute(_SESSION).fetchone()
        (same,) = connection.execute(_PROCESS).fetchone() or (0,)
        if {again, same} != {pid} or shown == (token,):
            raise ConfigurationError("a transaction pooler is in between", remedy=DIRECT)


def check_session(database: Database, token: str | None = None) -> str:
    """Return the token of the session; raise ConfigurationError if the server session changed."""
    found = database.execute(_SESSION).fetchone()
    if found is None or not found[0] or token not in (None, found[0]):
        raise ConfigurationError(
            "the connection changed its server session: a transaction pooler is in between",
            remedy=f"{DIRECT} Then run it again: finished steps are not repeated.",
        )
    return str(found[0])


def in_short_transaction(
    database: Database,
    work: Callable[[], Result],
    *,
    on_progress: OnProgress = ignore_progress,
) -> Result:
    """Run `work` in a transaction; if a lock is not available, roll back and try again.

    The lock timeout of 300 ms is shorter than deadlock_timeout (1 s), so in a deadlock this
    transaction is rolled back and not a search. Raises ConflictError after LOCK_PATIENCE seconds.
    """
    begun = time.monotonic()
    while True:
        try:
            with database.connection.transaction():
                database.execute(_LOCK_TIMEOUT)
                return work()
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected) as error:
            if time.monotonic() - begun > LOCK_PATIENCE:
                raise ConflictError(
                    f"the table was locked by other transactions for {LOCK_PATIENCE:.0f} seconds",
                    remedy="End long transactions, wait for a running vacuum, then run it again.",
                ) from error
            on_progress(Progress("waiting for a long transaction or a vacuum to end"))
            pause(random.uniform(0.05, 0.5))  # noqa: S311


def pause(seconds: float) -> None:
    """Wait."""
    threading.Event().wait(seconds)


def build_index(
    database: Database,
    dsn: str,
    statement: bytes,
    step: str,
    on_progress: OnProgress = ignore_progress,
) -> None:
    """Run `create index concurrently`; a second connection reads its progress."""
    check_session(database)
    connection = database.connection
    with _watching(dsn, connection.info.backend_pid, step, on_progress):
        try:
            connection.execute(statement)
        except psycopg.errors.QueryCanceled as error:
            raise ConfigurationError(
                "the index build was cancelled, by a user or by the time limit of a pooler",
                code=error.sqlstate,
                remedy=f"{DIRECT} Then run it again.",
            ) from error
        except psycopg.errors.InsufficientResources as error:
            raise ConfigurationError(
                error.diag.message_primary or "the server ran out of memory or disk",
                code=error.sqlstate,
                remedy="Free disk space, or use less --memory and --workers 0; then run it again.",
            ) from error


def _become_owner(database: Database) -> None:
    found = database.execute(_OWNER).fetchone()
    if found is not None:
        owner, is_owner = found
        try:
            if not is_owner:
                database.execute("set role {owner}", owner=sql.Identifier(owner))
        except psycopg.errors.InsufficientPrivilege as error:
            raise PermissionDeniedError(
                f"only {owner}, the owner of knowledge_chunks, may change its columns and indexes",
                code=error.sqlstate,
                remedy=f"Connect as {owner}.",
            ) from error
    if found is None or database.execute(_IS_MIGRATED).fetchone() != (True,):
        raise MigrationMissingError("the database lacks migrations of this second-brain")


def _become_the_only_one(database: Database) -> None:
    key = [f"second_brain maintenance of {database.install.schema}"]
    give_up = time.monotonic() + HOLDER_PATIENCE
    # Asked again and again: a statement that waits for the lock would hold up an index build.
    while database.execute(_LOCK, key).fetchone() != (True,):
        if time.monotonic() > give_up:
            holder = database.execute(_HOLDER, key).fetchone()
            pid = holder[0] if holder else "N"
            raise ConflictError(
                f"another `corpus index` or `corpus reembed` is running (process {pid})",
                remedy=f"Wait for it, or end it with: select pg_terminate_backend({pid})",
            )
        pause(0.05)


@contextlib.contextmanager
def _watching(dsn: str, pid: int, step: str, on_progress: OnProgress) -> Iterator[None]:
    finished = threading.Event()

    def watch() -> None:
        # An error here only stops the progress display, not the build.
        with (
            contextlib.suppress(psycopg.Error),
            psycopg.connect(dsn, autocommit=True) as connection,
        ):
            while not finished.wait(0.5):
                if found := connection.execute(_BUILDING, [pid]).fetchone():
                    on_progress(Progress(f"{step}: {found[0]}", found[1]))

    watcher = threading.Thread(target=watch, daemon=True)
    on_progress(Progress(step))
    if on_progress is not ignore_progress:
        watcher.start()
    try:
        yield
    finally:
        finished.set()
        if watcher.ident is not None:
            watcher.join()
