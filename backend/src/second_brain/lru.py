"""A bounded mapping of what was used last; the caches of this package are made of it."""

import threading
import time
from collections import OrderedDict
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class Lru(Generic[Key, Value]):
    """At most `most` values, each for `seconds`; the least recently used goes first.

    Threads may share it.
    """

    def __init__(self, most: int, seconds: float = float("inf")) -> None:
        self._most = most
        self._seconds = seconds
        self._kept: OrderedDict[Key, tuple[float, Value]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Key) -> Value | None:
        """Return the value of a key, which then was used last; None if there is none."""
        with self._lock:
            until, value = self._kept.get(key, (0.0, None))
            if value is None:
                return None
            if until <= time.monotonic():
                del self._kept[key]
                return None
            self._kept.move_to_end(key)
            return value

    def put(self, key: Key, value: Value) -> None:
        """Keep a value."""
        with self._lock:
            self._kept[key] = (time.monotonic() + self._seconds, value)
            self._kept.move_to_end(key)
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)

    def clear(self) -> None:
        """Remove all values."""
        with self._lock:
            self._kept.clear()
