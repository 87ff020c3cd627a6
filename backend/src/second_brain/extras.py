"""Imports of packages that an extra of second-brain installs."""

from collections.abc import Iterator
from contextlib import contextmanager

from second_brain.errors import MissingExtraError


@contextmanager
def needed(package: str, extra: str) -> Iterator[None]:
    """Raise MissingExtraError when what is imported inside is not installed."""
    try:
        yield
    except ImportError as error:
        raise MissingExtraError(package, extra) from error
