"""The result type at the import path that callers of earlier systems use."""

from second_brain.services.results import MemorySearchResult

__all__ = ["MemorySearchResult"]
