"""One call of an SQL function on a psycopg connection: its time limit, and no trace left.

The connection's methods are awaited: a blocking one is in an `Awaited`.
"""

import asyncio
import math
import socket
import struct
import sys
import threading
import time
from array import array
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from typing import Any, LiteralString, Protocol
from weakref import WeakKeyDictionary

import psycopg
from psycopg.adapt import Dumper
from psycopg.pq import Format, TransactionStatus
from psycopg.rows import dict_row
from psycopg.types.json import set_json_loads

from second_brain.errors import (
    ClientTimeoutError,
    ConnectionLostError,
    InvalidInputError,
    SearchTimeoutError,
    redacted,
    translate,
)
from second_brain.filters import json_text
from second_brain.services.blocking import Awaited
from second_brain.services.calls import uncertain
from second_brain.services.functions import functions, packed, statement
from second_brain.services.install import Database, Install
from second_brain.services.results import read_json

GRACE = 0.5
"""Seconds after the timeout in which the server may still report it."""

MAX_DIMENSIONS = 16_000
"""The maximum dimension of pgvector's type vector."""

# A shorter statement_timeout of the role is kept.
_SET_TIMEOUT: LiteralString = """
    select current_setting('statement_timeout') as earlier, pg_catalog.set_config(
      'statement_timeout',
      least(
        nullif(
          1000 * extract(
            epoch from pg_catalog.current_setting('statement_timeout')::pg_catalog.interval
          ),
          0
        ),
        %(milliseconds)s::integer
      )::integer::text,
      true
    )
"""
_RESET_TIMEOUT = "select pg_catalog.set_config('statement_timeout', %(earlier)s, true)"


class _Vector:
    """An embedding in pgvector's binary format: dimensions, two unused bytes, big-endian float32.

    It has a fifth of the size of the text. pgvector's own package has the same, but an application
    may need a version of it that excludes the newest.
    """

    def __init__(self, numbers: list[float]) -> None:
        values = array("f", numbers)
        if sys.byteorder == "little":
            values.byteswap()
        self.binary = struct.pack(">HH", len(values), 0) + values.tobytes()


class _VectorDumper(Dumper):
    format = Format.BINARY

    def dump(self, obj: _Vector) -> bytes:
        return obj.binary


class ConnectionCall:
    """One call: its statement, its deadline, and the answer in its rows.

    Raises InvalidInputError for an embedding that is not a list of numbers.
    """

    def __init__(
        self,
        function: str,
        arguments: dict[str, Any],
        timeout: float | None,
        install: Install,
        remedy_of_loss: str | None = None,
    ) -> None:
        self._function = functions()[function]
        self._arguments = packed(function, arguments)
        self.statement = install.statement(statement(function, tuple(self._arguments)))
        kinds = self._function.arguments
        self.values = {
            # As text, so that errors are the same as over PostgREST.
            name: json_text(value, name) if kinds[name] == "jsonb" and value is not None else value
            for name, value in self._arguments.items()
        }
        embedding = self.values.get("query_embedding")
        # A str is in pgvector's text format, which the database parses.
        if embedding is not None and not isinstance(embedding, str):
            self.values["query_embedding"] = _vector(embedding)
        self._remedy_of_loss = remedy_of_loss
        self._deadline = None if timeout is None else time.monotonic() + timeout

    async def read(self, connection: Any) -> object:
        """Call on a connection that is as it was afterwards, in one round trip."""
        is_idle = connection.info.transaction_status == TransactionStatus.IDLE
        is_committed = is_idle and not connection.autocommit
        before: list[tuple[LiteralString, dict[str, object]]] = []
        after: tuple[LiteralString, ...] = ()
        if not is_idle:
            before.append(("savepoint second_brain_read", {}))
            # The rollback also resets the setting.
            after = (
                "rollback to savepoint second_brain_read",
                "release savepoint second_brain_read",
            )
        if self._deadline is not None:
            # Without a transaction it holds until the end of the pipeline, which is one.
            before.append((_SET_TIMEOUT, self._milliseconds()))
        cursor = _cursor(connection)
        try:
            async with connection.pipeline() if before else nullcontext():
                for text, values in before:
                    await connection.execute(text, values, prepare=False)
                # Prepared statements belong to a session; behind a pooler, the next call may use
                # another one.
                await cursor.execute(self.statement, self.values, prepare=False)
                for text in after:
                    await connection.execute(text, prepare=False)
            if is_committed:
                await connection.commit()
            return _answer(self._function.name, await cursor.fetchall())
        except BaseException:
            with suppress(psycopg.Error):
                if is_committed:
                    await connection.rollback()
                for text in after:
                    await connection.execute(text, prepare=False)
            raise

    async def write(self, connection: Any) -> object:
        """Call in a transaction; in one of the caller's, in a savepoint."""
        is_own = connection.info.transaction_status == TransactionStatus.IDLE
        is_done = False
        cursor = _cursor(connection)
        try:
            async with connection.transaction():
                earlier: dict[str, Any] = {}
                if self._deadline is not None:
                    await cursor.execute(_SET_TIMEOUT, self._milliseconds(), prepare=False)
                    earlier = await cursor.fetchone()
                await cursor.execute(self.statement, self.values, prepare=False)
                rows = await cursor.fetchall()
                if earlier and not is_own:
                    await cursor.execute(_RESET_TIMEOUT, earlier, prepare=False)
                is_done = True
        except psycopg.OperationalError as error:
            if self._function.writes and is_own and is_done and connection.closed:
                code = error.sqlstate
                raise uncertain("during the commit", self._arguments, code) from redacted(error)
            raise
        return _answer(self._function.name, rows)

    @contextmanager
    def guarded(
        self,
        connection: Any,
        call_later: Callable[[float, Callable[[], None]], "Cancellable"],
    ) -> Iterator[None]:
        """Break the connection off when the server does not report the timeout; name the error."""
        cut = timer = None
        if self._deadline is not None:
            cut = Cut(connection)
            timer = call_later(max(self._deadline - time.monotonic(), 0) + GRACE, cut)
        try:
            yield
        except psycopg.Error as error:
            if cut is not None and cut.is_made:
                raise ClientTimeoutError("the database did not answer in time") from error
            if connection.closed:
                known = translate(error)
                if isinstance(known, SearchTimeoutError):
                    # transaction_timeout ends the session; the call would be ended again.
                    raise known from error
                raise ConnectionLostError(
                    str(known), code=known.code, remedy=self._remedy_of_loss
                ) from error
            raise
        finally:
            if cut is not None and timer is not None:
                cut.prevent()
                timer.cancel()

    def _milliseconds(self) -> dict[str, object]:
        left = (self._deadline or 0.0) - time.monotonic()
        return {"milliseconds": max(int(1000 * left), 1)}


def ask(database: Database, function: str, **arguments: Any) -> Any:
    """Call a function on a connection as it stands. Raises a SecondBrainError."""
    call = ConnectionCall(function, arguments, None, database.install)
    try:
        cursor = database.connection.cursor(row_factory=dict_row)
        return _answer(function, cursor.execute(call.statement, call.values).fetchall())
    except psycopg.Error as error:
        raise translate(error) from redacted(error)


def _cursor(connection: Any) -> Any:
    """Return a cursor that sends vectors in binary, and reads JSON that Python can read.

    The function's argument gives the type of a vector, so no query for its oid is necessary.
    """
    cursor = connection.cursor(row_factory=dict_row)
    cursor.adapters.register_dumper(_Vector, _VectorDumper)
    set_json_loads(read_json, cursor)
    return cursor


def _answer(function: str, rows: list[dict[str, Any]]) -> object:
    """Return the rows, the only row, or its only value, as the function returns them."""
    returns = functions()[function].returns
    if returns == "rows":
        return rows
    return rows[0] if returns == "row" else next(iter(rows[0].values()))


def _vector(embedding: object) -> _Vector:
    if not isinstance(embedding, list):
        raise InvalidInputError(
            f"query_embedding must be a list of numbers, not {type(embedding).__name__}"
        )
    if len(embedding) > MAX_DIMENSIONS:
        raise InvalidInputError(
            f"query_embedding has {len(embedding)} dimensions, but at most {MAX_DIMENSIONS} are "
            "allowed"
        )
    try:
        return _Vector(embedding)
    except (TypeError, OverflowError) as error:
        raise InvalidInputError(f"query_embedding must be a list of numbers: {error}") from error


class Cut:
    """Ends a connection from another thread, so that a call that waits on it fails at once."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._is_prevented = False
        self.is_made = False

    def __call__(self) -> None:
        """End the connection, unless that was prevented."""
        # On an error the connection is already gone.
        with self._lock, suppress(psycopg.Error, OSError):
            if self._is_prevented:
                return
            lent = socket.socket(fileno=self._connection.pgconn.socket)
            self.is_made = True
            try:
                lent.shutdown(socket.SHUT_RDWR)
            finally:
                lent.detach()

    def prevent(self) -> None:
        """Leave the connection alone from now on."""
        with self._lock:
            self._is_prevented = True


class Cancellable(Protocol):
    """A timer."""

    def cancel(self) -> None:
        """Stop the timer."""


_LOCKS: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
_GUARD = threading.Lock()
_IN_USE = "the connection was in use by another call for the whole timeout"
_REMEDY_IN_USE = "Give a pool, `connection_pool(...)`, so that calls do not wait for each other."


def _lock_of(connection: Any, new: Callable[[], Any]) -> Any:
    with _GUARD:
        return _LOCKS.setdefault(connection, new())


@contextmanager
def alone(connection: Any, timeout: float | None = None) -> Iterator[None]:
    """Keep the calls of other threads from a connection: a call has several statements.

    Raises ClientTimeoutError if one of them has the connection for `timeout` seconds.
    """
    # Reentrant, because a store calls a writer in a transaction of its own.
    lock = _lock_of(connection, threading.RLock)
    if not lock.acquire(timeout=-1 if timeout is None else timeout):
        raise ClientTimeoutError(_IN_USE, remedy=_REMEDY_IN_USE)
    try:
        yield
    finally:
        lock.release()


class Threaded:
    """What a class for threads does with psycopg's objects: see `Looped`."""

    _connection_type = psycopg.Connection
    _pause = staticmethod(time.sleep)
    _awaited = Awaited

    @staticmethod
    @asynccontextmanager
    async def _alone(connection: Any, timeout: float | None = None) -> AsyncIterator[None]:
        with alone(connection, timeout):
            yield

    @staticmethod
    def _later(seconds: float, function: Callable[[], None]) -> Cancellable:
        timer = threading.Timer(seconds, function)
        timer.daemon = True
        timer.start()
        return timer


class Looped:
    """What a class for an event loop does with psycopg's objects: they are awaited as they are."""

    _connection_type = psycopg.AsyncConnection
    _pause = staticmethod(asyncio.sleep)

    @staticmethod
    def _awaited(given: Any) -> Any:
        return given

    @staticmethod
    @asynccontextmanager
    async def _alone(connection: Any, timeout: float | None = None) -> AsyncIterator[None]:
        """Keep the calls of other tasks from a connection; raises as `alone`."""
        lock = _lock_of(connection, asyncio.Lock)
        try:
            await asyncio.wait_for(lock.acquire(), timeout)
        except TimeoutError:
            raise ClientTimeoutError(_IN_USE, remedy=_REMEDY_IN_USE) from None
        try:
            yield
        finally:
            lock.release()

    @staticmethod
    def _later(seconds: float, function: Callable[[], None]) -> Cancellable:
        return asyncio.get_running_loop().call_later(seconds, function)


def pool_wait(timeout: float | None, pools_own: float) -> float:
    """Return the seconds to wait for a pool's connection."""
    # When its database is gone, a pool lets a caller wait no longer than its owner has set.
    return pools_own if timeout is None else min(timeout, pools_own)


def connect_timeout(timeout: float | None) -> dict[str, Any]:
    """Return the connection options for a call's timeout."""
    # libpq takes whole seconds, at least two.
    return {} if timeout is None else {"connect_timeout": max(math.ceil(timeout), 2)}
