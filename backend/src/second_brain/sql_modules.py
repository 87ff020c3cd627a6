"""The modules of the SQL: what each is for, and which functions and tables are of which module."""

import json
import re
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
    "native_bm25": "the text leg by a BM25 index; needs the extension pg_textsearch",
    "citus": "one corpus over the workers of a Citus cluster; needs the extension citus",
}
"""What each module is for, in the order of the files."""

NOT_IN_ALL = frozenset({"native_bm25", "citus"})
"""The modules that need an extension: they are installed only by name."""

ALL = "all"

MANIFEST = "manifest.json"

CORE = "core"
"""The section of the manifest beside those of the modules."""

_OBJECT = re.compile(r"(?:function|table|view|type) \w+\.(\w+)(?:\(.*)?")


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
    return _modules_by_name().get(name)


@cache
def manifest() -> dict[str, dict[str, dict[str, Any]]]:
    """Return the objects of `core`, and those that each module adds to it or changes in it."""
    file = resources.files("second_brain.database").joinpath(MANIFEST)
    sections: dict[str, dict[str, dict[str, Any]]] = json.loads(file.read_text("utf-8"))
    return sections


@cache
def _modules_by_name() -> dict[str, str]:
    core = manifest()[CORE]
    return {
        found[1]: module
        for module, objects in manifest().items()
        for name in objects
        if name not in core and (found := _OBJECT.fullmatch(name))
    }
