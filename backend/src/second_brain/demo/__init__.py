"""What `second-brain demo` searches, and the benchmarks: the standard library's documentation."""

from second_brain.demo.standard_library import standard_library

__all__ = ["standard_library"]
