"""The names of systems and of kinds of questions in the results of benchmarks.bench."""

from typing import Any

OURS = "second-brain"
TWO_CALLS = "two RPCs, merged in Python"
BARE = ("bare SQL, vector leg", "bare SQL, text leg")
NATIVE = "pg_textsearch + pgvector"
PARADE = "ParadeDB pg_search + pgvector"
LANCE = "LanceDB hybrid"
NATURAL = "natural question"
COMMON = "common words"

Results = dict[str, Any]
"""The content of a results.json."""
