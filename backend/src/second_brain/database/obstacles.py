"""What prevents an installation, found before anything is written.

All obstacles are reported at once, each with its remedy. An object is foreign if it has the name
of an object that a missing migration creates, and no applied migration has created it.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import scalar_row

from second_brain.database import catalogue, naming, packaged, pgvector

MINIMUM_SERVER = 15
API_ROLES = ("anon", "authenticated", "service_role")

# A project may have its own one before the installation, which the migrations then keep.
_REPLACED = re.sub(r".*\.|\(.*", "", catalogue.REPLACED_BY_PROJECT)
_ELSEWHERE = "or install into another schema with --schema NAME"
_PRELUDE = "run `second-brain migrate --prelude` once, as a superuser or an owner with CREATEROLE"

_SERVER = "select current_setting('server_version_num')::integer / 10000"
_MISSING_ROLES = """
select wanted.name from unnest(%s::text[]) as wanted (name) where to_regrole(wanted.name) is null
"""
_MISSING_SCHEMAS = """
select wanted.name
  from unnest(%s::text[]) as wanted (name)
 where to_regnamespace(wanted.name) is null
"""
# The tools allow its absence: they only read the definitions of a module.
_MISSING_EXTENSIONS = """
select wanted.name, wanted.least, available.name is not null, available.installed_version
  from unnest(%s::text[], %s::text[]) as wanted (name, least)
  left join pg_catalog.pg_available_extensions as available on available.name = wanted.name
 where (
         available.installed_version is null
         or string_to_array(substring(available.installed_version from '^[0-9.]*[0-9]'), '.')::int[]
            < string_to_array(wanted.least, '.')::int[]
       )
   and current_setting('second_brain.without_extensions', true) is distinct from 'allowed'
"""
_HAS_VIEWER = """
select exists (
         select
           from pg_catalog.pg_proc as function
          where function.pronamespace = to_regnamespace('auth')
            and function.proname = 'uid'
            and function.pronargs = 0
       )
"""
_WITHOUT_USAGE = """
select role.rolname
  from pg_catalog.pg_roles as role
 where role.rolname = any (%(roles)s)
   and not has_schema_privilege(role.oid, %(schema)s, 'usage')
 order by role.rolname
"""
_MAY_CREATE_SCHEMAS = """
select current_user, current_database(), has_database_privilege(current_database(), 'create')
"""
_MAY_CREATE = """
select current_user, has_schema_privilege(namespace.oid, 'create')
  from pg_catalog.pg_namespace as namespace
 where namespace.nspname = %s
"""
# Tables, views, sequences and indexes share their names; each also has the name of a type.
_RELATIONS = """
select case class.relkind
         when 'v' then 'view' when 'm' then 'materialized view' when 'S' then 'sequence'
         when 'f' then 'foreign table' when 'i' then 'index' when 'I' then 'index'
         when 'c' then 'type' else 'table'
       end,
       class.relname
  from pg_catalog.pg_class as class
 where class.relnamespace = to_regnamespace(%(schema)s)
   and class.relname = any (%(names)s)
 order by class.relname
"""
_TYPES = """
select case type.typtype when 'd' then 'domain' else 'type' end, type.typname
  from pg_catalog.pg_type as type
 where type.typnamespace = to_regnamespace(%(schema)s)
   and type.typname = any (%(names)s)
   and type.typrelid = 0
 order by type.typname
"""
_FUNCTIONS = """
select 'function',
       function.proname || '(' || pg_get_function_identity_arguments(function.oid) || ')'
  from pg_catalog.pg_proc as function
 where function.pronamespace = to_regnamespace(%(schema)s)
   and function.proname = any (%(names)s)
   and not (
     function.proname = %(replaced)s
     and function.pronargs = 0
     and function.prorettype = 'text[]'::regtype
     and not function.proretset
     and exists (
           select
             from pg_catalog.pg_roles as role
            where role.oid = function.proowner
              and (role.rolname = current_user or role.rolsuper)
         )
   )
 order by function.proname, pg_get_function_identity_arguments(function.oid)
"""

_NAMES = """
select relname::text from pg_catalog.pg_class where relnamespace = to_regnamespace(%(schema)s)
union
select typname::text from pg_catalog.pg_type where typnamespace = to_regnamespace(%(schema)s)
union
select proname::text from pg_catalog.pg_proc where pronamespace = to_regnamespace(%(schema)s)
"""

HAS_SCHEMA = "select to_regnamespace(quote_ident(%s)) is not null"


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Something in the database that prevents the installation, and the way to remove it."""

    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what}. {self.remedy}"


def find(
    connection: psycopg.Connection[Any],
    missing: Sequence[str],
    applied: Iterable[str],
    schema: str = naming.SCHEMA,
) -> list[Obstacle]:
    """List the obstacles for the migrations `missing`, of which `applied` are the earlier ones.

    Both are the texts of the files as they are in the package. Without missing migrations there
    are no obstacles.
    """
    if not missing:
        return []
    return [
        *_server(connection),
        *_pgvector(connection),
        *_extensions(connection, missing),
        *supabase_obstacles(connection),
        *_rights(connection, schema),
        *_objects(connection, missing, frozenset(naming.created(applied)), schema),
    ]


def missing_roles(connection: psycopg.Connection[Any]) -> list[str]:
    """Name the API roles of Supabase that the server lacks."""
    return _column(connection, _MISSING_ROLES, [list(API_ROLES)])


def names_of_objects(connection: psycopg.Connection[Any], schema: str) -> set[str]:
    """Return the names of the relations, types and functions in a schema."""
    return set(_column(connection, _NAMES, {"schema": schema}))


def _server(connection: psycopg.Connection[Any]) -> Iterator[Obstacle]:
    (major,) = connection.execute(_SERVER).fetchone() or (0,)
    if major < MINIMUM_SERVER:
        yield Obstacle(
            f"PostgreSQL {major} is too old", f"Upgrade it to {MINIMUM_SERVER} or later."
        )
    yield from encoding_obstacles(connection)


def encoding_obstacles(connection: psycopg.Connection[Any]) -> Iterator[Obstacle]:
    """Report a database that cannot hold all letters: its encoding cannot be changed."""
    name = connection.info.parameter_status("server_encoding")
    if name != "UTF8":
        yield Obstacle(
            f"the encoding of the database is {name}, UTF8 is needed",
            "Create a database with: create database NAME template template0 encoding 'UTF8'.",
        )


def _pgvector(connection: psycopg.Connection[Any]) -> Iterator[Obstacle]:
    found, available = pgvector.installed(connection), pgvector.available(connection)
    least = ".".join(map(str, pgvector.MINIMUM))
    can_be_installed = available is not None and pgvector.is_new_enough(available)
    upgrade = f"Upgrade the server's pgvector to {least} or later (on Supabase: upgrade Postgres"
    if found is None:
        if not can_be_installed:
            offered = (
                "does not offer pgvector" if available is None else f"has pgvector {available}"
            )
            yield Obstacle(
                f"pgvector {least} or later is needed, and the server {offered}",
                f"Install pgvector {least} or later on the server.",
            )
        return
    if not found.is_new_enough:
        yield Obstacle(
            f"pgvector is {found.version}; search needs {least} or later (iterative index scans)",
            f"Run as its owner: alter extension vector update. It becomes {available}."
            if can_be_installed
            else f"{upgrade}), then run: alter extension vector update.",
        )
    if not naming.is_plain(found.schema):
        yield Obstacle(
            f"pgvector is in schema {found.schema!r}, a name that needs quotes",
            "Use a database whose pgvector is in a schema with a plain lower-case name.",
        )
    arguments = {"roles": list(API_ROLES), "schema": found.schema}
    if roles := _column(connection, _WITHOUT_USAGE, arguments):
        named = ", ".join(roles)
        yield Obstacle(
            f"{named} may not use schema {found.schema}, which has pgvector",
            f"Run: grant usage on schema {found.schema} to {named}.",
        )


def _extensions(connection: psycopg.Connection[Any], missing: Sequence[str]) -> Iterator[Obstacle]:
    """Look for what modules need beside pgvector."""
    found = filter(None, map(packaged.NEEDS.search, missing))
    needed: dict[str, str | None] = {one[1]: one[2] for one in found}
    rows = connection.execute(_MISSING_EXTENSIONS, [list(needed), list(needed.values())])
    for name, least, is_available, installed in rows:
        if installed is not None:
            yield Obstacle(
                f"the extension {name} is {installed}, and a module needs {least} or later",
                f"Upgrade the server's {name}, then run: alter extension {name} update.",
            )
            continue
        yield Obstacle(
            f"the extension {name} is not in this database, and a module needs it",
            f"Run: create extension {name}."
            if is_available
            else f"Install {name} on the server, or leave the module out.",
        )


def supabase_obstacles(connection: psycopg.Connection[Any]) -> Iterator[Obstacle]:
    """Look for what Supabase has, and a plain Postgres gets from the prelude."""
    if roles := missing_roles(connection):
        yield Obstacle(
            f"the {'roles' if len(roles) > 1 else 'role'} {', '.join(roles)} of Supabase "
            f"{'are' if len(roles) > 1 else 'is'} missing",
            f"On a plain Postgres, {_PRELUDE}.",
        )
    needed = [naming.EXTENSIONS] if pgvector.installed(connection) is None else []
    if schemas := _column(connection, _MISSING_SCHEMAS, [needed]):
        yield Obstacle(
            f"schema {', '.join(schemas)} is missing",
            f"On a plain Postgres, {_PRELUDE}; or run: create schema {schemas[0]}.",
        )
    if connection.execute(_HAS_VIEWER).fetchone() != (True,):
        yield Obstacle(
            "function auth.uid() is missing, which returns the signed-in user",
            f"On a plain Postgres, {_PRELUDE}.",
        )


def _rights(connection: psycopg.Connection[Any], schema: str) -> Iterator[Obstacle]:
    user, database, may_create = connection.execute(_MAY_CREATE_SCHEMAS).fetchone() or ("", "", 0)
    if not may_create:
        yield Obstacle(
            f"{user} may not create schemas in database {database}",
            "Connect as the owner of the database (on Supabase: postgres).",
        )
    found = connection.execute(_MAY_CREATE, [schema]).fetchone()
    if found is not None and not found[1]:
        yield Obstacle(
            f"{user} may not create objects in schema {schema}",
            "Connect as the owner of the schema (on Supabase: postgres), or install into another "
            "schema with --schema NAME.",
        )


def _objects(
    connection: psycopg.Connection[Any],
    missing: Iterable[str],
    ours: frozenset[tuple[str, str]],
    schema: str,
) -> Iterator[Obstacle]:
    new = naming.created(missing) - ours
    internals = naming.internals(schema)
    is_new = ("schema", naming.INTERNALS) in new
    if is_new and not _column(connection, _MISSING_SCHEMAS, [[internals]]):
        yield Obstacle(
            f"schema {internals} exists, and has no function of second-brain",
            f"Rename it, {_ELSEWHERE}.",
        )
    for query, names in (
        (_RELATIONS, [name for kind, name in new if kind not in ("function", "schema")]),
        (_TYPES, [name for kind, name in new if kind in ("table", "view", "type", "domain")]),
        (_FUNCTIONS, [name for kind, name in new if kind == "function"]),
    ):
        arguments = {"schema": schema, "names": names, "replaced": _REPLACED}
        rows = connection.execute(query, arguments).fetchall()
        for kind, name in rows:
            yield Obstacle(
                f"{kind} {schema}.{name} exists and is not of second-brain",
                f"Rename it, {_ELSEWHERE}.",
            )


def _column(connection: psycopg.Connection[Any], query: str, arguments: Any) -> list[str]:
    with connection.cursor(row_factory=scalar_row) as cursor:
        return cursor.execute(query.encode(), arguments).fetchall()
