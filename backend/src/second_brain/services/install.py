"""The schemas of an install, and SQL constants with these schemas in place.

All SQL of this package, in files and in constants, is written for the default install: relations in
schema public, internal objects in knowledge_internal, pgvector in extensions. An install in another
schema `name` has its relations in `name` and its internal objects in `name_internal`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, LiteralString, TypeAlias, cast

from second_brain.errors import InvalidInputError

if TYPE_CHECKING:
    import psycopg
    from psycopg.sql import Composable, Composed

SCHEMA = "public"
INTERNALS = "knowledge_internal"
EXTENSIONS = "extensions"

_SUFFIX = "_internal"
HISTORY_PREFIX = "second_brain_"
# Postgres names have at most 63 bytes; the history table's name is the longest one derived.
MAX_LENGTH = 63 - len(HISTORY_PREFIX)
_PLAIN = re.compile(r"[a-z_][a-z0-9_]*")
_SCHEMAS = re.compile(rf"\b({SCHEMA}|{INTERNALS}|{EXTENSIONS})(?=\.)")
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

Parameters: TypeAlias = Sequence[Any] | Mapping[str, Any]


def internals(schema: str) -> str:
    """Return the name of the schema for an install's internal objects."""
    return INTERNALS if schema == SCHEMA else schema + _SUFFIX


def is_plain(name: str) -> bool:
    """Return whether a name needs no quotes: lower-case letters, digits and underscores."""
    return _PLAIN.fullmatch(name) is not None


def check_schema(schema: str) -> None:
    """Raise InvalidInputError for a name that cannot be the schema of an install."""
    if schema == SCHEMA:
        return
    remedy = (
        f"Use lower-case letters, digits and underscores, at most {MAX_LENGTH}, a letter first; "
        "such as knowledge_en."
    )
    if not isinstance(schema, str) or not is_plain(schema):
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


@dataclass(frozen=True, slots=True)
class Install:
    """The schema of an install's relations, and the schema that has pgvector.

    Raises InvalidInputError for a name that cannot be the schema of an install.
    """

    schema: str = SCHEMA
    extensions: str = EXTENSIONS

    def __post_init__(self) -> None:
        check_schema(self.schema)

    @property
    def internals(self) -> str:
        """The schema of the internal objects."""
        return internals(self.schema)

    def statement(self, text: LiteralString) -> bytes:
        """Return a constant of this package as a statement for this install."""
        return _statement(self, text)

    def composed(self, text: LiteralString, **parts: "Composable") -> "Composed":
        """Return a constant of this package with `parts` in its placeholders `{name}`."""
        from psycopg import sql  # SupabaseProvider works without it

        names = {
            SCHEMA: self.schema,
            INTERNALS: self.internals,
            EXTENSIONS: self.extensions,
        }
        return sql.Composed(
            [
                # Every second piece is the name of a schema.
                sql.Identifier(names[piece])
                if place % 2
                else sql.SQL(cast(LiteralString, piece)).format(**parts)
                if parts
                else sql.SQL(cast(LiteralString, piece))
                for place, piece in enumerate(_SCHEMAS.split(text))
            ]
        )


@cache
def _statement(install: Install, text: LiteralString) -> bytes:
    return install.composed(text).as_bytes(None)


@dataclass(frozen=True, slots=True)
class Database:
    """A connection to the database of an install, for constants of this package."""

    connection: "psycopg.Connection[Any]"
    install: Install = Install()

    def execute(
        self, text: LiteralString, arguments: Parameters | None = None, **parts: "Composable"
    ) -> "psycopg.Cursor[Any]":
        """Run a constant for this install; `parts` replace its placeholders `{name}`."""
        if parts:
            return self.connection.execute(self.install.composed(text, **parts), arguments)
        return self.connection.execute(self.install.statement(text), arguments)
