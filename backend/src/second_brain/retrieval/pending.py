"""How many chunks that a search could find have no embedding yet, counted beside the search.

A count is kept for some seconds for the same viewer and filters, so that most searches ask for
none.
"""

import json
import time
from collections.abc import Callable, Mapping

from second_brain.lru import Lru
from second_brain.services.last_write import last_write

LONGEST_COUNT = 2.0
"""Seconds after which the database cancels a count."""

LONGEST_WAIT = 0.25
"""Seconds that a search waits for a count after it has its hits."""

_MOST_KEPT = 1000


class PendingCounts:
    """The counts of the last `seconds`; None is a count that failed. Thread-safe."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._kept: Lru[str, tuple[int | None]] = Lru(_MOST_KEPT, seconds, clock)

    def key(self, rows: Mapping[str, object]) -> str:
        """Return the key of a count now: another one after each write of this process."""
        return f"{last_write()} {json.dumps(rows, default=str, sort_keys=True)}"

    def find(self, key: str) -> tuple[int | None] | None:
        """Return the count, or None if there is none that is new enough."""
        return self._kept.get(key)

    def keep(self, key: str, count: int | None) -> None:
        """Keep a count; the oldest goes when there are too many."""
        self._kept.put(key, (count,))
