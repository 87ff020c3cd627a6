"""The result type under the name that callers of the earlier systems import."""

from second_brain.services.results import MemorySearchResult

__all__ = ["MemorySearchResult"]
