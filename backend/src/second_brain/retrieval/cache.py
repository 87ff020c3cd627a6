"""A cache of search responses in this process, each for a limited time.

A write by a `KnowledgeWriter` of this process empties the cache. Writes of other processes do not:
until a response expires, it may be older than the data.
"""

import threading
from typing import TYPE_CHECKING

from second_brain.lru import Lru
from second_brain.services.last_write import last_write

if TYPE_CHECKING:
    from second_brain.retrieval.answer import SearchResponse


class ResultCache:
    """At most `max_entries` responses, each for `seconds`; the least recently used goes first.

    `get` and `put` copy the response, so that a caller cannot change the cached one. Thread-safe.
    """

    def __init__(self, max_entries: int, seconds: float) -> None:
        self._entries: Lru[str, SearchResponse] = Lru(max_entries, seconds)
        self._last_write = last_write()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: str) -> "SearchResponse | None":
        """Return a copy of the response for this key, or None if there is none or it expired."""
        with self._lock:
            self._drop_stale()
            kept = self._entries.get(key)
        return None if kept is None else kept.model_copy(deep=True)

    def begin(self) -> int:
        """Return the current write marker; pass it to `put` after the search."""
        return last_write()

    def put(self, key: str, response: "SearchResponse", begun: int) -> None:
        """Store a response, unless there was a write after `begin`."""
        copied = response.model_copy(deep=True)
        with self._lock:
            self._drop_stale()
            if begun == self._last_write:
                self._entries.put(key, copied)

    def clear(self) -> None:
        """Remove all responses."""
        self._entries.clear()

    def _drop_stale(self) -> None:
        if self._last_write != last_write():
            self._entries.clear()
            self._last_write = last_write()
