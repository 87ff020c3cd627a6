"""Whether a server answers: after a failure it gets no calls for a while, then one call tests it.

It sends nothing.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from psycopg_pool import PoolTimeout, TooManyRequests

from second_brain.errors import ClientTimeoutError, UnavailableError, translate

PROBE_WAIT = 0.2
"""The maximum wait, in seconds, of a search for a server whose last call failed."""

FIRST_REST, LONGEST_REST = 0.5, 15.0
"""Seconds without calls after a server's first failure, and after many."""


class Reachability:
    """What the last calls of a server showed. Threads may share it."""

    def __init__(self) -> None:
        self.answered = self.failed = 0
        self._rests_until = -1e9
        self._failures_in_row = 0
        self._is_tested = False
        self._connected = 0
        self._lock = threading.Lock()

    @property
    def is_resting(self) -> bool:
        """Whether it gets no call for a while after a failure."""
        return time.monotonic() < self._rests_until

    @property
    def is_suspect(self) -> bool:
        """Whether its last call failed."""
        return self._failures_in_row > 0

    def admits(self, seconds: float) -> bool:
        """Say whether a call may be sent now.

        After a failure, it admits one call every `seconds`, until that one has succeeded.
        """
        with self._lock:
            if self.is_resting:
                return False
            if self.is_suspect:
                self._is_tested = True
                self._rests_until = time.monotonic() + seconds
            return True

    def has_answered(self) -> None:
        """Record a call that did not fail."""
        with self._lock:
            self.answered += 1
            self._failures_in_row = 0
            self._is_tested = False
            self._rests_until = -1e9

    def has_failed(self) -> None:
        """Record a failure; the server rests, longer each time."""
        with self._lock:
            self.failed += 1
            # A concurrent call that fails with the server is the same failure.
            if self._is_tested or not self.is_resting:
                self._failures_in_row += 1
            self._is_tested = False
            rest = min(FIRST_REST * 2 ** (self._failures_in_row - 1), LONGEST_REST)
            self._rests_until = time.monotonic() + rest

    @contextmanager
    def connected(self) -> Iterator[None]:
        """Count the call among those that have a connection."""
        with self._lock:
            self._connected += 1
        try:
            yield
        finally:
            with self._lock:
                self._connected -= 1

    def is_failing(self, error: Exception) -> bool:
        """Say whether an error means that the server does not answer."""
        if isinstance(error, PoolTimeout | TooManyRequests) and self._connected:
            # Its connections are in use: it is busy.
            return False
        # A server that does not even end a statement in time is failing, too.
        return isinstance(translate(error), UnavailableError | ClientTimeoutError)
