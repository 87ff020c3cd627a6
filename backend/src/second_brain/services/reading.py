"""One search on a connection: its time limit, and no trace left in the caller's session."""

import math
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, LiteralString, Protocol

import psycopg
from psycopg.pq import TransactionStatus

from second_brain.errors import ClientTimeoutError, ConnectionLostError, translate
from second_brain.services.arguments import packed
from second_brain.services.install import Install
from second_brain.services.statements import SEARCHES, SET_TIMEOUT, parameters

GRACE = 0.5
"""Seconds after the timeout in which the server may still report it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The statements around the call, which together with it are one round trip.

    `after` also undoes what a failed call left behind.
    """

    before: list[tuple[LiteralString, dict[str, object]]]
    after: tuple[LiteralString, ...]
    is_committed: bool

    @property
    def is_pipelined(self) -> bool:
        """Whether several statements are sent at once."""
        return bool(self.before)


class Reading:
    """One call of a search function: its statement, its deadline, and the answer in its rows."""

    def __init__(
        self,
        function: str,
        arguments: dict[str, Any],
        timeout: float | None,
        remedy_of_loss: str | None,
        install: Install,
    ) -> None:
        self.statement = install.statement(SEARCHES[function])
        self.values = parameters(packed(function, arguments))
        self._is_value = function in (
            "explain_hybrid_search",
            "estimate_hybrid_search",
            "explain_missing_knowledge_chunk",
            "count_matching_knowledge_chunks",
            "count_pending_knowledge_embeddings",
            "count_my_pending_knowledge_embeddings",
            "read_knowledge_document",
            "record_knowledge_queries",
            "read_knowledge_question",
            "knowledge_candidates",
            "fuse_knowledge_candidates",
        )
        self._remedy_of_loss = remedy_of_loss
        self._deadline = None if timeout is None else time.monotonic() + timeout

    def answer(self, rows: list[dict[str, Any]]) -> object:
        """Return the rows, or the JSON of a function that returns one value."""
        return next(iter(rows[0].values())) if self._is_value else rows

    def plan(self, connection: psycopg.BaseConnection[Any]) -> Plan:
        """Return the statements that this connection needs around the call."""
        before: list[tuple[LiteralString, dict[str, object]]] = []
        after: tuple[LiteralString, ...] = ()
        is_idle = connection.info.transaction_status == TransactionStatus.IDLE
        if not is_idle:
            before.append(("savepoint second_brain_read", {}))
            # The rollback also resets the setting.
            after = (
                "rollback to savepoint second_brain_read",
                "release savepoint second_brain_read",
            )
        if self._deadline is not None:
            milliseconds = max(int(1000 * (self._deadline - time.monotonic())), 1)
            # Without a transaction it holds until the end of the pipeline, which is one.
            before.append((SET_TIMEOUT, {"milliseconds": milliseconds}))
        return Plan(before, after, is_committed=is_idle and not connection.autocommit)

    @contextmanager
    def guarded(
        self,
        connection: psycopg.BaseConnection[Any],
        call_later: Callable[[float, Callable[[], None]], "Cancellable"],
    ) -> Iterator[None]:
        """Break the connection off when the server does not report the timeout; name the error."""
        cut = Cut(connection)
        timer = None
        if self._deadline is not None:
            timer = call_later(max(self._deadline - time.monotonic(), 0) + GRACE, cut)
        try:
            yield
        except psycopg.Error as error:
            if cut.is_made:
                raise ClientTimeoutError("the database did not answer in time") from error
            if connection.closed:
                known = translate(error)
                raise ConnectionLostError(
                    str(known), code=known.code, remedy=self._remedy_of_loss
                ) from error
            raise
        finally:
            cut.prevent()
            if timer is not None:
                timer.cancel()


class Cut:
    """Ends a connection from another thread, so that a call that waits on it fails at once."""

    def __init__(self, connection: psycopg.BaseConnection[Any]) -> None:
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
            lent = socket.socket(fileno=self._connection.fileno())
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


def after(seconds: float, function: Callable[[], None]) -> Cancellable:
    """Start a timer that calls the function in a thread."""
    timer = threading.Timer(seconds, function)
    timer.daemon = True
    timer.start()
    return timer


def pool_wait(timeout: float | None, pools_own: float) -> float:
    """Return the seconds to wait for a pool's connection."""
    # When its database is gone, a pool lets a caller wait no longer than its owner has set.
    return pools_own if timeout is None else min(timeout, pools_own)


def connect_timeout(timeout: float | None) -> dict[str, Any]:
    """Return the connection options for a call's timeout."""
    # libpq takes whole seconds, at least two.
    return {} if timeout is None else {"connect_timeout": max(math.ceil(timeout), 2)}
