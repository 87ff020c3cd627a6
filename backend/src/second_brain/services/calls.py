"""One call of an SQL function: its deadline, and another attempt after a passing failure."""

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
"""How often a search is sent again after a failure that passes."""

SERIALIZATION_FAILURE, DEADLOCK = "40001", "40P01"
"""SQLSTATEs; a standby ends a search with the first one when it has to apply a change."""

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0
"""Seconds: the longest pause before the first of these attempts, and before any."""

LONGEST_TIMEOUT = 86_400.0
"""Seconds."""

Send = Callable[[str, dict[str, Any], float | None], Awaitable[object]]
"""Calls a function with arguments, within some seconds."""


class Deadline:
    """The time by which an answer must be there."""

    def __init__(self, seconds: float | None) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds

    def left(self, share: float = 1.0) -> float | None:
        """Return a share of the seconds left, None without a deadline.

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
        """Say whether time is left after a pause of so many seconds."""
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
    """Call a function that only reads; call again after a lost connection or a conflict."""
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
            logger.info("%s: %s, trying again", function, known.kind)
        await wait(pause)
    raise AssertionError


def pause_before(attempt: int) -> float:
    """Return the seconds to wait after the failed attempt of this number, counted from 0."""
    # Full jitter, so that clients that failed together do not all try again at the same moment.
    return random.uniform(0, min(FIRST_PAUSE * 2**attempt, LONGEST_PAUSE))  # noqa: S311
