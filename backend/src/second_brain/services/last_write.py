"""The number of this process's last write: writers increase it, the service's cache compares it."""

from itertools import count

_numbers = count(1)
_last = 0


def written() -> None:
    """Record a write."""
    global _last
    _last = next(_numbers)


def last_write() -> int:
    """Return the number of the last write."""
    return _last
