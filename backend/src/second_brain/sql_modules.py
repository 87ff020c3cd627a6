"""The modules of the SQL: what each is for, and which functions and tables are of which module."""

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

MODULES: Mapping[str, str] = {
    "words": "typos, accents, prefixes, synonyms",
    "facets": "counts of the values of a column or metadata key",
    "own_documents": "users list, read and delete documents",
    "embedding_queue": "chunks wait for their embeddings; `corpus embed` and `corpus reembed`",
    "adoption": "documents made of the rows of your own table",
    "insight": "monitoring, explanations, judgments, query log, corpus overview, estimates",
    "arrange": "boosts, order_by, diversity, duplicates merged",
    "field_weights": "how often heading and title count; metadata keys that are searched",
    "snippets": "excerpts in whole sentences; marks compounds and text without spaces",
    "visitors": "a search of public rows that visitors may call, within narrow limits",
    "batch": "several searches in one call",
    "like": "like_ids: hits like known chunks or documents",
    "versions": "documents that end: as_of, valid_from, valid_until",
    "tenants": "words are weighed by the chunks that a search may see",
    "native_bm25": "the text leg by a BM25 index; needs the extension pg_textsearch",
    "citus": "one corpus over the workers of a Citus cluster; needs the extension citus",
    "substrings": "identifiers by a part of them; needs the extension pg_trgm",
}
"""What each module is for, in the order of the files."""

NOT_IN_ALL = frozenset({"native_bm25", "citus", "substrings"})
"""The modules that need an extension: they are installed only by name."""

ALL = "all"

OBJECTS = "sql_objects.json"
"""Written with the manifest of `database/`: what errors and calls need of it."""


def module_of(name: str) -> str | None:
    """Return the module that has a function, table, view or type; None for one of core."""
    return next((module for module, names in objects()["modules"].items() if name in names), None)


@cache
def objects() -> dict[str, Any]:
    """Return the names of each module's objects, and the functions that clients call."""
    file = resources.files("second_brain").joinpath(OBJECTS)
    read: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return read
