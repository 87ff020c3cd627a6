"""One call of an SQL function, with a deadline and with retries after temporary failures."""

import logging
import random
import time
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

from second_brain.errors import (
    ConnectionLostError,
    InvalidInputError,
    SearchTimeoutError,
    translate,
)

logger = logging.getLogger(__name__)

RETRIES = 2
"""The maximum number of retries of a search after temporary failures."""

SERIALIZATION_FAILURE, DEADLOCK = "40001", "40P01"
"""SQLSTATEs. A standby cancels a search with 40001 when it conflicts with a change to apply."""

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0
"""Seconds: the maximum pause before the first retry, and before any retry."""

LONGEST_TIMEOUT = 86_400.0
"""Seconds."""

Send = Callable[[str, dict[str, Any], float | None], Awaitable[object]]
"""A function (name, arguments, timeout in seconds) that calls an SQL function."""


class Deadline:
    """The time when a call must be finished."""

    def __init__(self, seconds: float | None) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds

    def left(self, share: float = 1.0) -> float | None:
        """Return a share of the remaining seconds, or None without a deadline.

        Raises SearchTimeoutError when no time is left.
        """
        if self._end is None:
            return None
        left = self._end - time.monotonic()
        if left <= 0:
            raise SearchTimeoutError(
                "the search took longer than its timeout", remedy="Raise timeout."
            )
        return left * share

    def allows(self, pause: float) -> bool:
        """Return whether time is left after a pause of this many seconds."""
        return self._end is None or time.monotonic() + pause < self._end


def checked_timeout(seconds: float | None) -> float | None:
    """Return a timeout that is valid. Raises InvalidInputError."""
    if seconds is not None and not (
        isinstance(seconds, int | float) and 0 < seconds <= LONGEST_TIMEOUT
    ):
        raise InvalidInputError(
            f"timeout must be above 0 and at most {LONGEST_TIMEOUT:g} seconds, not {seconds!r:.100}"
        )
    return seconds


async def call(
    send: Send,
    wait: Callable[[float], Awaitable[object]],
    function: str,
    arguments: dict[str, Any],
    *,
    timeout: float | None,
    retries: int,
) -> object:
    """Call a read-only function; retry after a lost connection or a serialization failure."""
    deadline = Deadline(timeout)
    for attempt in count():
        try:
            return await send(function, arguments, deadline.left())
        except Exception as error:
            pause = pause_before(attempt)
            known = translate(error)
            if (
                attempt >= retries
                or not (
                    isinstance(known, ConnectionLostError) or known.code == SERIALIZATION_FAILURE
                )
                or not deadline.allows(pause)
            ):
                raise
            logger.info("%s: %s, retrying", function, known.kind)
        await wait(pause)
    raise AssertionError


def pause_before(attempt: int) -> float:
    """Return the seconds to wait after a failed attempt; attempts are counted from 0."""
    # Full jitter, so that clients that failed at the same time do not retry at the same time.
    return random.uniform(0, min(FIRST_PAUSE * 2**attempt, LONGEST_PAUSE))  # noqa: S311
