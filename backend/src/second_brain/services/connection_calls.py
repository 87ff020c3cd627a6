"""Calls of SQL functions over psycopg: a time limit for each, and no trace left.

The connection is psycopg's, for threads or for an event loop.
"""

import asyncio
import math
import socket
import struct
import sys
import threading
import time
from array import array
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from typing import Any, ClassVar, Generic, LiteralString, TypeVar, Unpack
from weakref import WeakKeyDictionary

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row
from psycopg.types.json import set_json_loads
from psycopg.types.string import BytesBinaryDumper

from second_brain.errors import (
    ClientTimeoutError,
    ConnectionLostError,
    InvalidInputError,
    SearchTimeoutError,
    SecondBrainError,
    redacted,
    translate,
)
from second_brain.filters import json_text
from second_brain.services.calls import (
    Client,
    ClientOptions,
    Deadline,
    entered,
    is_rolled_back,
    keys_of,
    retried,
    settled,
    uncertain,
)
from second_brain.services.connections import explained, libpq, secrets
from second_brain.services.functions import functions, packed, statement
from second_brain.services.install import SCHEMA, Database, Install
from second_brain.services.processes import check_process, forks, remember
from second_brain.services.searches import read_json

AnyDatabase = TypeVar("AnyDatabase")

GRACE = 0.5
"""Seconds after the timeout in which the server may still report it."""

MAX_DIMENSIONS = 16_000
"""The maximum dimension of pgvector's type vector."""

_OWN_CONNECTION_LOST = (
    "Open a new connection and give it to a new provider. A provider with a pool or a connection "
    "string retries by itself."
)

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


class _Vector(bytes):
    """An embedding in pgvector's binary format: dimensions, two unused bytes, big-endian float32.

    It has a fifth of the size of the text. pgvector's own package has the same, but an application
    may need a version of it that excludes the newest.
    """


class _VectorDumper(BytesBinaryDumper):
    # The function's argument gives the type.
    oid = 0


class Unit:
    """What runs on a connection until its deadline: one call, or a transaction."""

    def __init__(self, timeout: float | None, remedy_of_loss: str | None = None) -> None:
        self._remedy_of_loss = remedy_of_loss
        self._deadline = None if timeout is None else time.monotonic() + timeout

    async def transaction(
        self,
        connection: Any,
        work: Callable[[Any], Any],
        written: Sequence[str] | None = None,
    ) -> Any:
        """Run the work in a transaction; in one of the caller's, in a savepoint.

        Raises UncertainWriteError for a lost commit, if something is `written`.
        """
        is_own = connection.info.transaction_status == TransactionStatus.IDLE
        is_done = False
        cursor = connection.cursor(row_factory=dict_row)
        try:
            async with entered(connection.transaction()):
                earlier: dict[str, Any] = {}
                if self._deadline is not None:
                    await settled(cursor.execute(_SET_TIMEOUT, self._milliseconds(), prepare=False))
                    earlier = await settled(cursor.fetchone())
                outcome = await settled(work(connection))
                if earlier and not is_own:
                    await settled(cursor.execute(_RESET_TIMEOUT, earlier, prepare=False))
                is_done = True
        except psycopg.OperationalError as error:
            if written is not None and is_own and is_done and connection.closed:
                raise uncertain("during the commit", written, error.sqlstate) from redacted(error)
            raise
        return outcome

    @contextmanager
    def guarded(self, connection: Any) -> Iterator[None]:
        """Break the connection off when the server does not report the timeout; name the error."""
        cut = timer = None
        if self._deadline is not None:
            cut = Cut(connection)
            timer = _later(connection, max(self._deadline - time.monotonic(), 0) + GRACE, cut)
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


class ConnectionCall(Unit):
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
        # As in Unit, but a call has one frame less.
        self._remedy_of_loss = remedy_of_loss
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._function = functions()[function]
        is_packed = "search" in self._function.arguments
        self._arguments = packed(function, arguments) if is_packed else arguments
        self.statement = statement(install, function, tuple(self._arguments))
        kinds = self._function.arguments
        self.values = {
            # As text, so that errors are the same as over PostgREST.
            name: json_text(value, name) if kinds[name] == "jsonb" and value is not None else value
            for name, value in self._arguments.items()
        }
        embedding = self.values.get("query_embedding")
        # A str is in pgvector's text format, which the database parses.
        if embedding is not None and not isinstance(embedding, str):
            if not isinstance(embedding, list) or len(embedding) > MAX_DIMENSIONS:
                raise _wrong_embedding(embedding)
            try:
                numbers = array("f", embedding)
            except (TypeError, OverflowError) as error:
                raise InvalidInputError(
                    f"query_embedding must be a list of numbers: {error}"
                ) from error
            if not (numbers and math.isfinite(sum(numbers))):
                raise InvalidInputError(
                    "query_embedding must be a list of finite numbers (no NaN), one per dimension"
                )
            if sys.byteorder == "little":
                numbers.byteswap()
            packed_numbers = struct.pack(">HH", len(numbers), 0) + numbers.tobytes()
            self.values["query_embedding"] = _Vector(packed_numbers)

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
        cursor = connection.cursor(row_factory=dict_row)
        cursor.adapters.register_dumper(_Vector, _VectorDumper)
        set_json_loads(read_json, cursor)
        try:
            async with entered(connection.pipeline()) if before else nullcontext():
                for text, values in before:
                    await settled(connection.execute(text, values, prepare=False))
                # Prepared statements belong to a session; behind a pooler, the next call may use
                # another one.
                await settled(cursor.execute(self.statement, self.values, prepare=False))
                for text in after:
                    await settled(connection.execute(text, prepare=False))
            if is_committed:
                await settled(connection.commit())
            rows = await settled(cursor.fetchall())
            return rows if self._function.returns == "rows" else self.answer(rows)
        except BaseException:
            with suppress(psycopg.Error):
                if is_committed:
                    await settled(connection.rollback())
                for text in after:
                    await settled(connection.execute(text, prepare=False))
            raise

    async def write(self, connection: Any) -> object:
        """Call in a transaction; in one of the caller's, in a savepoint."""
        written = keys_of(self._arguments) if self._function.writes else None
        return await self.transaction(connection, self._answered, written)

    async def _answered(self, connection: Any) -> object:
        cursor = connection.cursor(row_factory=dict_row)
        await settled(cursor.execute(self.statement, self.values, prepare=False))
        return self.answer(await settled(cursor.fetchall()))

    def answer(self, rows: list[dict[str, Any]]) -> object:
        """Return the rows, the only row, or its only value, as the function returns them."""
        if self._function.returns == "rows":
            return rows
        return rows[0] if self._function.returns == "row" else next(iter(rows[0].values()))


class OverPsycopg(Client, Generic[AnyDatabase]):
    """Providers and writers over psycopg, which differ in the kinds of connections and pools."""

    connection_type: type[Any]
    pool_type: type[Any]
    _remedy_of_loss: str | None = None
    _commits: ClassVar[bool] = False

    @property
    def is_concurrent(self) -> bool:
        """Whether several calls may run at the same time: not on one connection."""
        return not isinstance(self._database, psycopg.BaseConnection)

    def __init__(
        self, database: AnyDatabase, *, schema: str = SCHEMA, **options: Unpack[ClientOptions]
    ) -> None:
        super().__init__(**options)
        connection, pool = self.connection_type.__name__, self.pool_type.__name__
        article = "an" if pool.startswith("A") else "a"
        if not isinstance(database, str | self.connection_type | self.pool_type):
            raise TypeError(
                f"database must be a psycopg {connection}, {article} {pool} or a connection "
                f"string, not {type(database).__name__}"
            )
        self._database: Any = database
        self._install = Install(schema)
        if not isinstance(database, str):
            remember(database)
        if isinstance(database, self.connection_type):
            # A lost connection of the caller is not opened again.
            self._remedy_of_loss = _OWN_CONNECTION_LOST

    async def _send(
        self,
        function: str,
        arguments: dict[str, Any],
        timeout: float | None,
        *,
        database: Any = None,
        wait: float | None = None,
        kind_of_call: Callable[..., ConnectionCall] = ConnectionCall,
    ) -> object:
        """Call on a connection to the database, and wait for the connection at most so long."""
        call = kind_of_call(function, arguments, timeout, self._install, self._remedy_of_loss)
        database = self._database if database is None else database
        async with self._connection(database, timeout if wait is None else wait) as connection:
            with call.guarded(connection):
                return await (call.write if self._commits else call.read)(connection)

    async def _transaction(
        self, work: Callable[[Any], Any], written: Sequence[str] | None = None
    ) -> Any:
        """Run the work in a transaction, and again if another transaction rolled it back.

        Raises a SecondBrainError.
        """

        async def attempt(left: float | None) -> Any:
            unit = Unit(left, self._remedy_of_loss)
            async with self._connection(self._database, left) as connection:
                with unit.guarded(connection):
                    return await unit.transaction(connection, work, written)

        return await self._safely(
            retried(
                attempt,
                self._wait,
                retries=self._retries,
                is_passing=lambda error: is_rolled_back(error) and self._may_begin(),
                deadline=Deadline(self._timeout),
            )
        )

    def _may_repeat(self, function: str, error: SecondBrainError) -> bool:
        return super()._may_repeat(function, error) and self._may_begin()

    def _may_begin(self) -> bool:
        """Say whether there is no connection of the caller's that is lost or in a transaction.

        Only the caller can repeat what the transaction did.
        """
        own = self._database
        is_callers = isinstance(own, psycopg.BaseConnection)
        return not is_callers or own.info.transaction_status == TransactionStatus.IDLE

    @asynccontextmanager
    async def _connection(self, database: Any, wait: float | None) -> AsyncIterator[Any]:
        """Open a connection, borrow one of a pool, or keep other calls from the caller's.

        Raises ClientTimeoutError if another call has the connection for `wait` seconds.
        """
        if isinstance(database, psycopg.BaseConnection):
            lock, is_taken = lock_of(database), False
            if isinstance(lock, asyncio.Lock):
                with suppress(TimeoutError):
                    await asyncio.wait_for(lock.acquire(), wait)
                    is_taken = True
            else:
                is_taken = lock.acquire(timeout=-1 if wait is None else wait)
            if not is_taken:
                raise ClientTimeoutError(
                    "the connection was in use by another call for the whole timeout",
                    remedy="Give a pool, `connection_pool(...)`, so that calls do not wait for "
                    "each other.",
                )
            try:
                yield database
            finally:
                lock.release()
        elif isinstance(database, str):
            # libpq takes whole seconds, at least two.
            limit = {} if wait is None else {"connect_timeout": max(math.ceil(wait), 2)}
            with explained(database):
                opened = await settled(
                    self.connection_type.connect(libpq(database), autocommit=True, **limit)
                )
            async with entered(opened):
                yield opened
        else:
            # When its database is gone, a pool lets a caller wait no longer than its owner has set.
            most = database.timeout if wait is None else min(wait, database.timeout)
            check_process(database)
            try:
                async with entered(database.connection(most)) as connection:
                    check_process(connection)
                    # Only this call uses the connection, and it needs no transaction.
                    as_it_was = connection.autocommit
                    await settled(connection.set_autocommit(True))
                    try:
                        yield connection
                    finally:
                        if connection.info.transaction_status == TransactionStatus.IDLE:
                            await settled(connection.set_autocommit(as_it_was))
            except ConnectionLostError:
                # A server restart breaks all connections of a pool; check() replaces them.
                await settled(database.check())
                raise

    def _secrets(self) -> Iterable[object]:
        """Return the connection string and its passwords."""
        return secrets(self._database) if isinstance(self._database, str) else ()


def ask(database: Database, function: str, **arguments: Any) -> Any:
    """Call a function on a connection as it stands. Raises a SecondBrainError."""
    call = ConnectionCall(function, arguments, None, database.install)
    try:
        cursor = database.connection.cursor(row_factory=dict_row)
        return call.answer(cursor.execute(call.statement, call.values).fetchall())
    except psycopg.Error as error:
        raise translate(error) from redacted(error)


def _wrong_embedding(embedding: object) -> InvalidInputError:
    if not isinstance(embedding, list):
        kind = type(embedding).__name__
        return InvalidInputError(f"query_embedding must be a list of numbers, not {kind}")
    return InvalidInputError(
        f"query_embedding has {len(embedding)} dimensions, but at most {MAX_DIMENSIONS} are allowed"
    )


_LOCKS: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
_GUARD = threading.Lock()


def lock_of(connection: Any) -> Any:
    """Return the lock of a connection, which all of its calls hold: a call has several statements.

    That of a connection for threads can be held twice, because a store calls a writer in a
    transaction of its own. Raises ConfigurationError for a connection of another process.
    """
    if forks:
        check_process(connection)
    kind: Callable[[], Any] = threading.RLock
    if isinstance(connection, psycopg.AsyncConnection):
        kind = asyncio.Lock
    with _GUARD:
        return _LOCKS.setdefault(connection, kind())


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


def _later(
    connection: Any, seconds: float, function: Callable[[], None]
) -> asyncio.TimerHandle | threading.Timer:
    """Start a timer: an event loop's for a connection of one."""
    if isinstance(connection, psycopg.AsyncConnection):
        return asyncio.get_running_loop().call_later(seconds, function)
    timer = threading.Timer(seconds, function)
    timer.daemon = True
    timer.start()
    return timer
