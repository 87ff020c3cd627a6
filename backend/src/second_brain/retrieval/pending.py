"""How many chunks that a search could find have no embedding yet, counted beside the search.

A count is kept for some seconds for the same viewer and filters, so that most searches ask for
none.
"""

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping

from second_brain.services.last_write import last_write

LONGEST_COUNT = 2.0
"""Seconds after which the database cancels a count."""

LONGEST_WAIT = 0.25
"""Seconds that a search waits for a count after it has its hits."""

_MOST_KEPT = 1000


class PendingCounts:
    """The counts of the last `seconds`; None is a count that failed. Thread-safe."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._kept: OrderedDict[str, tuple[float, int | None]] = OrderedDict()
        self._lock = threading.Lock()

    def key(self, rows: Mapping[str, object]) -> str:
        """Return the key of a count now: another one after each write of this process."""
        return f"{last_write()} {json.dumps(rows, default=str, sort_keys=True)}"

    def find(self, key: str) -> tuple[int | None] | None:
        """Return the count, or None if there is none that is new enough."""
        with self._lock:
            until, count = self._kept.get(key, (0.0, None))
            return (count,) if self._clock() < until else None

    def keep(self, key: str, count: int | None) -> None:
        """Keep a count; the oldest goes when there are too many."""
        with self._lock:
            self._kept[key] = (self._clock() + self._seconds, count)
            self._kept.move_to_end(key)
            while len(self._kept) > _MOST_KEPT:
                self._kept.popitem(last=False)
