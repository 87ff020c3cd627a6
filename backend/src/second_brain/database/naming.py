"""The names of an install's two schemas, and the rewriting of SQL for other schemas.

The SQL files are the default rendering: relations in schema public, internal objects in
knowledge_internal. An install in another schema `name` has its relations in `name` and its internal
objects in `name_internal`.
"""

import re
from collections.abc import Collection, Iterable

from second_brain.errors import InvalidInputError

SCHEMA = "public"
INTERNALS = "knowledge_internal"

_SUFFIX = "_internal"
_HISTORY = "second_brain_"
# Postgres names have at most 63 bytes; the history table's name is the longest one derived.
MAX_LENGTH = 63 - len(_HISTORY)
_PLAIN = re.compile(r"[a-z_][a-z0-9_]*")
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
# Words that need quotes as the name of a schema, and schema names that Postgres or Supabase uses.
_RESERVED = frozenset(
    re.findall(
        r"\w+",
        """
    all analyse analyze and any array as asc asymmetric authorization between binary both case cast
    check collate collation column concurrently constraint create cross current_catalog
    current_date current_role current_schema current_time current_timestamp current_user default
    deferrable desc distinct do else end except false fetch for foreign freeze from full grant group
    having ilike in initially inner intersect into is isnull join lateral leading left like limit
    localtime localtimestamp natural not notnull null offset on only or order outer overlaps
    placing primary references returning right select session_user similar some symmetric
    system_user table tablesample then to trailing true union unique user using variadic verbose
    when where window with
    auth cron extensions graphql graphql_public information_schema net pgbouncer pgmq pgsodium
    pgsodium_masks realtime storage supabase_functions supabase_migrations vault
    knowledge_internal
    """,
    )
)


def internals(schema: str) -> str:
    """Return the name of the schema for an install's internal objects."""
    return INTERNALS if schema == SCHEMA else schema + _SUFFIX


def history(schema: str) -> str:
    """Return the table in schema supabase_migrations that lists an install's migrations.

    For schema public it is the table of the Supabase CLI.
    """
    return "schema_migrations" if schema == SCHEMA else _HISTORY + schema


def handed_out_name(schema: str, file_stem: str) -> str:
    """Return the name of a migration's file from `init`, without its timestamp."""
    install = "" if schema == SCHEMA else f"{schema}_"
    return f"second_brain_{install}{file_stem}"


def check_schema(schema: str) -> None:
    """Raise InvalidInputError for a name that cannot be the schema of an install."""
    if schema == SCHEMA:
        return
    remedy = (
        f"Use lower-case letters, digits and underscores, at most {MAX_LENGTH}, a letter first; "
        "such as knowledge_en."
    )
    if not _PLAIN.fullmatch(schema):
        raise InvalidInputError(
            f"schema must be a name that needs no quotes, not {schema!r}", remedy=remedy
        )
    if len(schema) > MAX_LENGTH:
        raise InvalidInputError(
            f"schema must have at most {MAX_LENGTH} characters, but {schema!r} has {len(schema)}",
            remedy=remedy,
        )
    if schema in _RESERVED or schema.startswith("pg_") or schema.endswith(_SUFFIX):
        raise InvalidInputError(
            f"schema must not be {schema!r}: that name is reserved", remedy=remedy
        )


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
