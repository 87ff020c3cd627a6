"""The rewriting of SQL files for other schemas, and the names of their migrations.

The files are written for the default install; `services.install` says which schemas it has.
"""

import re
from collections.abc import Collection, Iterable
from functools import cache

from second_brain.services.install import (
    EXTENSIONS,
    HISTORY_PREFIX,
    INTERNALS,
    MAX_LENGTH,
    SCHEMA,
    check_schema,
    internals,
    is_plain,
)

__all__ = [
    "EXTENSIONS",
    "INTERNALS",
    "MAX_LENGTH",
    "OF_READERS",
    "SCHEMA",
    "VIEWER_GROUPS",
    "check_schema",
    "created",
    "created_names",
    "handed_out_name",
    "history",
    "internals",
    "is_plain",
    "of_internals",
    "rename",
    "with_vector",
    "without_vector",
]

VIEWER_GROUPS = "knowledge_viewer_groups"
"""The function that a project replaces with its own: no migration changes it once it exists."""

OF_READERS = re.compile(rf"^({INTERNALS}\.)?seen_\d+_(as|of|by)_")
"""Functions that write_readers creates for the roles that search under policies."""

_EXTENSIONS = re.compile(
    rf"\b{EXTENSIONS}\.(?=\S)|(?<=schema ){EXTENSIONS}\b|(?<=')\b{EXTENSIONS}(?=')"
)


def of_internals(internals: str) -> str:
    """Return the schema of the install whose internal schema has this name."""
    return SCHEMA if internals == INTERNALS else internals.removesuffix("_internal")


def history(schema: str) -> str:
    """Return the table in schema supabase_migrations that lists an install's migrations.

    For schema public it is the table of the Supabase CLI.
    """
    return "schema_migrations" if schema == SCHEMA else HISTORY_PREFIX + schema


def handed_out_name(schema: str, file_stem: str) -> str:
    """Return the name of a migration's file from `init`, without its timestamp."""
    install = "" if schema == SCHEMA else f"{schema}_"
    return f"second_brain_{install}{file_stem}"


@cache
def _create_statement(schema: str) -> re.Pattern[str]:
    # Matches create statements everywhere, because some are in strings that a block executes.
    return re.compile(
        rf"""
        \bcreate\s+(?:or\s+replace\s+)?(?:unique\s+)?(?:unlogged\s+)?
        (?P<kind>table|materialized\s+view|view|function|procedure|type|domain|sequence|index
          |statistics|schema)\s+
        (?:concurrently\s+)?(?:if\s+not\s+exists\s+)?
        (?:{schema}\.)?(?P<name>[a-z_][a-z0-9_]*)\b(?!\.)
        """,
        re.VERBOSE | re.IGNORECASE,
    )


def created(texts: Iterable[str], schema: str = SCHEMA) -> frozenset[tuple[str, str]]:
    """List the objects that these SQL texts create in a schema, and schemas: kind and name."""
    return frozenset(
        (match["kind"].lower(), match["name"])
        for text in texts
        for match in _create_statement(schema).finditer(text)
    )


def created_names(texts: Iterable[str]) -> frozenset[str]:
    """List the names of the objects that these SQL texts create in schema public."""
    return frozenset(name for kind, name in created(texts) if kind != "schema")


def rename(text: str, names: Collection[str], old: str, new: str) -> str:
    """Rewrite SQL of an install in schema `old` for an install in schema `new`.

    It replaces the name of the internal schema, the schema in front of each of `names`, of grants
    on the schema, and `'public'::regnamespace`. The word public stays if it is a role, a visibility
    or prose.
    """
    if old == new:
        return text
    text = re.sub(rf"\b{re.escape(internals(old))}\b", internals(new), text)
    text = text.replace(f"'{old}'::regnamespace", f"'{new}'::regnamespace")
    text = re.sub(rf"\bon schema {re.escape(old)}\b", f"on schema {new}", text)
    if not names:
        return text
    listed = "|".join(sorted(map(re.escape, names), key=len, reverse=True))
    return re.sub(rf'\b{re.escape(old)}("?)\.(?="?(?:{listed})\b)', rf"{new}\1.", text)


def with_vector(text: str, schema: str) -> str:
    """Rewrite SQL of this package for a pgvector in another schema than `extensions`."""
    if schema == EXTENSIONS:
        return text
    return _EXTENSIONS.sub(lambda match: match[0].replace(EXTENSIONS, schema), text)


def without_vector(text: str, schema: str, members: Collection[str]) -> str:
    """Rewrite definitions that name pgvector in `schema` as if it were in schema `extensions`.

    `members` are the names of pgvector's objects.
    """
    if schema == EXTENSIONS or not members:
        return text
    listed = "|".join(sorted(map(re.escape, members), key=len, reverse=True))
    name = re.escape(schema)
    text = re.sub(rf"\b(operator\(){name}\.", rf"\1{EXTENSIONS}.", text, flags=re.IGNORECASE)
    return re.sub(rf"\b{name}\.(?=(?:{listed})\b)", f"{EXTENSIONS}.", text)
