"""The modules of the SQL: what each is for, and which functions and tables are of which module."""

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

from second_brain.errors import InvalidInputError

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


def chosen(text: str | None) -> tuple[str, ...]:
    """Return the modules in a list with commas, in order; `all`: those without an extension.

    Raises InvalidInputError for a module that does not exist.
    """
    names = {name.strip() for name in (text or "").split(",")} - {""}
    if unknown := sorted(names - {*MODULES, ALL}):
        listed = "".join(f"\n  {name}: {purpose}" for name, purpose in MODULES.items())
        raise InvalidInputError(
            f"there is no module {unknown[0]!r}", remedy=f"The modules are:{listed}"
        )
    return tuple(
        name for name in MODULES if name in names or (ALL in names and name not in NOT_IN_ALL)
    )


def module_of(name: str) -> str | None:
    """Return the module that has a function, table, view or type; None for one of core."""
    return next((module for module, names in objects()["modules"].items() if name in names), None)


@cache
def objects() -> dict[str, Any]:
    """Return the names of each module's objects, and the functions that clients call."""
    file = resources.files("second_brain").joinpath(OBJECTS)
    read: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return read
