"""The workbench's connections to one database, of which none is kept after the database is lost."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from second_brain.errors import PermissionDeniedError
from second_brain.services.connections import connect
from second_brain.services.install import SCHEMA, Database, Install

_MOST_IDLE = 4
_CONNECT_SECONDS = 5
_STATEMENT_TIMEOUT = "set local statement_timeout = '30s'"
_ONLY_READS = """
    select pg_is_in_recovery() or current_setting('default_transaction_read_only')::boolean
"""


class Connections:
    """Lends a connection for each request.

    A lent connection is checked first, so that the first request after a restart of the database
    already succeeds.
    """

    def __init__(self, dsn: str, schema: str = SCHEMA) -> None:
        self._dsn = dsn
        self._install = Install(schema)
        self._idle: list[psycopg.Connection[Any]] = []
        self._lock = threading.Lock()
        self._place: str | None = None

    @property
    def install(self) -> Install:
        """The schemas of the install."""
        return self._install

    @property
    def schema(self) -> str:
        """The schema of the install."""
        return self._install.schema

    @property
    def place(self) -> str | None:
        """Host, port and name of the database, without a user; None before a first connection.

        It is what the server of an open connection has, because the string may be read wrongly: a
        password with an @ in it, as the host.
        """
        return self._place

    @contextmanager
    def reading(self) -> Iterator[Database]:
        """Lend a connection in a read-only transaction."""
        with self._transaction(read_only=True) as database:
            yield database

    @contextmanager
    def writing(self) -> Iterator[Database]:
        """Lend a connection in a transaction that may write.

        Raises PermissionDeniedError where transactions only read: on a standby, or by a setting of
        the role or the connection string.
        """
        with self._transaction(read_only=None) as database:
            if only_reads(database):
                raise PermissionDeniedError(
                    "this connection only reads, so nothing is stored",
                    remedy="Start the workbench with a connection that may write.",
                )
            yield database

    def close(self) -> None:
        """Close the connections that no request uses."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    @contextmanager
    def _transaction(self, *, read_only: bool | None) -> Iterator[Database]:
        connection = self._checked() or self._opened()
        try:
            connection.read_only = read_only
            with connection.transaction():
                connection.execute(_STATEMENT_TIMEOUT)
                yield Database(connection, self._install)
        finally:
            # A statement that failed leaves the connection usable; a lost one is not idle.
            is_idle = connection.info.transaction_status == TransactionStatus.IDLE
            with self._lock:
                is_kept = is_idle and len(self._idle) < _MOST_IDLE
                if is_kept:
                    self._idle.append(connection)
            if not is_kept:
                connection.close()

    def _checked(self) -> psycopg.Connection[Any] | None:
        """Return an idle connection that still answers."""
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            with suppress(psycopg.Error):
                connection.execute("")
                return connection
            connection.close()

    def _opened(self) -> psycopg.Connection[Any]:
        connection = connect(
            self._dsn,
            autocommit=True,
            prepare_threshold=None,
            application_name="second-brain workbench",
            connect_timeout=_CONNECT_SECONDS,
        )
        info = connection.info
        # A socket's host is a folder of this machine.
        host = "localhost" if info.host.startswith("/") else info.host
        self._place = f"{host}:{info.port}/{info.dbname}"
        return connection


def only_reads(database: Database) -> bool:
    """Return whether nothing can be written over this connection."""
    return database.execute(_ONLY_READS).fetchone() == (True,)
