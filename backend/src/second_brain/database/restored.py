"""An install without a history, such as one that was restored from a dump of Supabase."""

from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg import sql

from second_brain.database import naming, obstacles
from second_brain.database.history import CREATE_HISTORY, RECORD, has_history, pending
from second_brain.database.packaged import Migration, find
from second_brain.errors import ConfigurationError
from second_brain.services.connections import connect

_TABLE = "knowledge_chunks"
_INTERNALS = naming.internals(naming.SCHEMA)
WHAT = "the install in schema {schema} has no history: it was restored, or its history was deleted"
REMEDY = (
    "Record what is there: `second-brain migrate --record`, or, in the project that has its files, "
    "`supabase migration repair --status applied VERSIONS`."
)


def present(
    connection: psycopg.Connection[Any],
    schema: str = naming.SCHEMA,
    among: Sequence[Migration] | None = None,
) -> list[Migration]:
    """List the migrations whose objects are in the schema, of an install without a history.

    It is empty where one of them is recorded, and where an object of core is missing.
    """
    known = find() if among is None else among
    if len(pending(connection, known, schema)) < len(known):
        return []
    internals = naming.internals(schema)
    there = obstacles.names_of_objects(connection, schema) | {
        f"{internals}.{name}" for name in obstacles.names_of_objects(connection, internals)
    }
    created = {
        one.version: obstacles.names_created(one.sql)
        | {
            f"{internals}.{name}"
            for kind, name in naming.created([one.sql], _INTERNALS)
            if kind in ("function", "type")
        }
        for one in known
    }
    if _TABLE not in there & set().union(*created.values()):
        return []
    incomplete = {one.module for one in known if not created[one.version] <= there}
    # Of a file that creates nothing, the other files of its module tell.
    found = [
        one
        for one in known
        if created[one.version] <= there and (created[one.version] or one.module not in incomplete)
    ]
    core = {one.version for one in known if one.module is None}
    return found if core and core <= {one.version for one in found} else []


def record(dsn: str, schema: str = naming.SCHEMA) -> list[Migration]:
    """Record the migrations of an install without a history, and return them.

    Raises ConfigurationError where there is no such install.
    """
    naming.check_schema(schema)
    history = sql.Identifier(naming.history(schema))
    with connect(dsn) as connection:
        found = present(connection, schema)
        if not found:
            raise ConfigurationError(
                f"schema {schema} has no whole install without a history",
                remedy="Look at what `second-brain doctor` finds.",
            )
        if not has_history(connection, schema):
            for create in CREATE_HISTORY:
                connection.execute(sql.SQL(create).format(history=history))
        for one in found:
            statement = sql.SQL(RECORD).format(history=history)
            connection.execute(statement, (one.version, one.name, [one.sql]))
    return found
