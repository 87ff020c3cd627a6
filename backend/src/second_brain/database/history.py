"""Which migrations a database has: the history of the Supabase CLI, and those of other schemas."""

import re
from collections.abc import Sequence
from typing import Any, LiteralString

import psycopg
from psycopg import sql

from second_brain.database import naming
from second_brain.database.migration_errors import MigrationError
from second_brain.database.packaged import Migration, find
from second_brain.errors import ModuleMissingError

_EXISTS = "select to_regclass(%s) is not null"
# The same statements as in the Supabase CLI, because it uses the same table.
CREATE_HISTORY: tuple[LiteralString, ...] = (
    "create schema if not exists supabase_migrations",
    "create table if not exists supabase_migrations.{history} (version text not null primary key)",
    "alter table supabase_migrations.{history} add column if not exists statements text[]",
    "alter table supabase_migrations.{history} add column if not exists name text",
)
_READ_HISTORY = (
    "select version, coalesce(name, '') from supabase_migrations.{history} order by version"
)
_READ_STATEMENTS = """
select version, coalesce(name, ''), coalesce(array_to_string(statements, E';\\n'), '')
  from supabase_migrations.{history}
 order by version
"""
_FORGET = """
delete from supabase_migrations.{history}
 where (version, name) in ({rows})
"""
RECORD_IT = (
    "Record what is there: `second-brain migrate --record`, or, in the project that has its files, "
    "`supabase migration repair --status applied VERSIONS`."
)
RECORD = "insert into supabase_migrations.{history} (version, name, statements) values (%s, %s, %s)"


def installed_modules(
    connection: psycopg.Connection[Any], schema: str = naming.SCHEMA
) -> tuple[str, ...]:
    """Name the modules of the install in `schema`, in the order of their files.

    A module is installed if the history has one of its migrations.
    """
    applied = Applied(connection, schema)
    found = (one.module for one in find() if one.module is not None and one in applied)
    return tuple(dict.fromkeys(found))


class Applied:
    """The applied migrations of the install in `schema`.

    A migration is applied if the install's history has its version and name, or if the Supabase
    CLI's history has the name that `init` gave its file, under any version.
    """

    def __init__(self, connection: psycopg.Connection[Any], schema: str) -> None:
        self._schema = schema
        self.versions = _history(connection, schema)
        self._names = set(_history(connection, naming.SCHEMA).values())

    def __contains__(self, migration: Migration) -> bool:
        return (
            self.versions.get(migration.version) == migration.name
            or handed_out_name(migration, self._schema) in self._names
        )


def rows_of_install(
    connection: psycopg.Connection[Any], schema: str = naming.SCHEMA
) -> list[tuple[str, str, str]]:
    """List version, name and SQL of the install's rows in the histories, of any version.

    In the history of the Supabase CLI these are the files of `init`, and for schema public those of
    this package, and numbered ones whose SQL names the internal schema.
    """
    packaged = {(one.version, one.name) for one in find()}
    own = f"{naming.internals(schema)}."
    found = []
    for of_schema in dict.fromkeys((naming.SCHEMA, schema)):
        if has_history(connection, of_schema):
            history = sql.Identifier(naming.history(of_schema))
            rows = connection.execute(sql.SQL(_READ_STATEMENTS).format(history=history)).fetchall()
            found += [
                (version, name, text)
                for version, name, text in rows
                if is_handed_out(name, schema)
                or of_schema == schema != naming.SCHEMA
                or (
                    of_schema == schema
                    and ((version, name) in packaged or (len(version) == 3 and own in text))
                )
            ]
    return found


def recorded(
    connection: psycopg.Connection[Any],
    schema: str = naming.SCHEMA,
    module: str | None = None,
) -> list[Migration]:
    """List the applied migrations of the install in `schema`, with the SQL that was recorded.

    Given a module, only its migrations are listed.
    """
    files = {(one.version, one.name) for one in find() if module in (None, one.module)}
    handed_out = {naming.handed_out_name(schema, f"{version}_{name}") for version, name in files}
    return [
        Migration(version, name, text)
        for version, name, text in rows_of_install(connection, schema)
        if module is None or name in handed_out or (version, name) in files
    ]


def forget(
    connection: psycopg.Connection[Any],
    schema: str,
    applied: Sequence[Migration],
    *,
    is_all: bool = False,
) -> list[str]:
    """Return the statements that remove these migrations, and only these, from the histories.

    If they are all of the install, the history of its own is dropped.
    """
    statements = []
    for of_schema in dict.fromkeys((naming.SCHEMA, schema)):
        table = sql.Identifier(naming.history(of_schema))
        # Only an install in public has its own rows there under the names of the package.
        rows = [
            sql.SQL("({}, {})").format(one.version, one.name)
            for one in applied
            if schema == of_schema or is_handed_out(one.name, schema)
        ]
        if not has_history(connection, of_schema):
            continue
        if is_all and of_schema != naming.SCHEMA:
            statements.append(f"drop table supabase_migrations.{naming.history(schema)}")
        elif rows:
            listed = sql.SQL(", ").join(rows)
            statement = sql.SQL(_FORGET).format(history=table, rows=listed)
            statements.append(statement.as_string(connection))
    return statements


def has_history(connection: psycopg.Connection[Any], schema: str) -> bool:
    """Say whether the database has the table of this history."""
    table = f"supabase_migrations.{naming.history(schema)}"
    return connection.execute(_EXISTS, [table], prepare=False).fetchone() == (True,)


def _history(connection: psycopg.Connection[Any], schema: str) -> dict[str, str]:
    if not has_history(connection, schema):
        return {}
    query = sql.SQL(_READ_HISTORY).format(history=sql.Identifier(naming.history(schema)))
    return dict(connection.execute(query).fetchall())


def handed_out_name(migration: Migration, schema: str) -> str:
    """Return the name that `init` gives to the file of a migration, without its timestamp."""
    return naming.handed_out_name(schema, f"{migration.version}_{migration.name}")


def is_handed_out(name: str, schema: str) -> bool:
    """Say whether `init` gave this name to a file of an install in this schema."""
    prefix = re.escape(naming.handed_out_name(schema, ""))
    return re.fullmatch(prefix + r"\d+_\w+", name) is not None


def require(connection: psycopg.Connection[Any], module: str, schema: str = naming.SCHEMA) -> None:
    """Raise ModuleMissingError if the install in `schema` does not have the module."""
    if module not in installed_modules(connection, schema):
        raise ModuleMissingError(
            f"the install in schema {schema} lacks what this needs", module=module
        )


def pending(
    connection: psycopg.Connection[Any],
    migrations: Sequence[Migration],
    schema: str = naming.SCHEMA,
) -> list[Migration]:
    """List the migrations that the install in `schema` does not have yet, in order.

    Raises MigrationError when a version belongs to another migration, or when a later migration of
    core or of a module is applied and an earlier one of it is not.
    """
    applied = Applied(connection, schema)
    missing: dict[str | None, list[Migration]] = {}
    for migration in migrations:
        before = missing.setdefault(migration.module, [])
        if migration not in applied:
            other = applied.versions.get(migration.version)
            if other is not None:
                raise MigrationError(
                    f"version {migration.version} belongs to another migration, {other!r}",
                    remedy="Write the migrations into that project with `second-brain init`, and "
                    "push them.",
                )
            before.append(migration)
        elif before:
            raise MigrationError(
                f"the database has {migration.file_name} but not {before[0].file_name}",
                remedy=RECORD_IT,
            )
    return [one for one in migrations if one in missing[one.module]]
