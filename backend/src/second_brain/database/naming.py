"""The rewriting of SQL files for other schemas, and the names of their migrations.

The files are written for the default install; `services.install` says which schemas it has.
"""

import re
from collections.abc import Collection, Iterable

from second_brain.services.install import (
    EXTENSIONS,
    HISTORY_PREFIX,
    INTERNALS,
    MAX_LENGTH,
    SCHEMA,
    check_schema,
    internals,
)

__all__ = [
    "EXTENSIONS",
    "INTERNALS",
    "MAX_LENGTH",
    "SCHEMA",
    "check_schema",
    "created_names",
    "handed_out_name",
    "history",
    "internals",
    "rename",
]

# Matches create statements everywhere, because some are in strings that a block executes.
_CREATED = re.compile(
    r"""
    \bcreate\s+(?:or\s+replace\s+)?(?:unique\s+)?(?:unlogged\s+)?
    (?:table|materialized\s+view|view|function|procedure|type|domain|sequence|index|statistics)\s+
    (?:concurrently\s+)?(?:if\s+not\s+exists\s+)?
    (?:public\.)?(?P<name>[a-z_][a-z0-9_]*)\b(?!\.)
    """,
    re.VERBOSE | re.IGNORECASE,
)


def history(schema: str) -> str:
    """Return the table in schema supabase_migrations that lists an install's migrations.

    For schema public it is the table of the Supabase CLI.
    """
    return "schema_migrations" if schema == SCHEMA else HISTORY_PREFIX + schema


def handed_out_name(schema: str, file_stem: str) -> str:
    """Return the name of a migration's file from `init`, without its timestamp."""
    install = "" if schema == SCHEMA else f"{schema}_"
    return f"second_brain_{install}{file_stem}"


def created_names(texts: Iterable[str]) -> frozenset[str]:
    """List the names of the objects that these SQL texts create in schema public."""
    return frozenset(match["name"] for text in texts for match in _CREATED.finditer(text))


def rename(text: str, names: Collection[str], old: str, new: str) -> str:
    """Rewrite SQL of an install in schema `old` for an install in schema `new`.

    It replaces the name of the internal schema, the schema in front of each of `names`, and
    `'public'::regnamespace`. The word public stays if it is a role, a visibility or prose.
    """
    if old == new:
        return text
    text = re.sub(rf"\b{re.escape(internals(old))}\b", internals(new), text)
    text = text.replace(f"'{old}'::regnamespace", f"'{new}'::regnamespace")
    if not names:
        return text
    listed = "|".join(sorted(map(re.escape, names), key=len, reverse=True))
    return re.sub(rf'\b{re.escape(old)}("?)\.(?="?(?:{listed})\b)', rf"{new}\1.", text)
