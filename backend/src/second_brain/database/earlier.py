"""An install of an earlier checkout. Released files never change: what differs was not released."""

import re
from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg import sql

from second_brain.database import naming
from second_brain.database.history import handed_out_name, has_history, is_handed_out
from second_brain.database.obstacles import Obstacle
from second_brain.database.packaged import Migration

REMEDY = (
    "It has no upgrade. Install into an empty database, or into another schema with --schema, and "
    "store the documents there again; then remove this install with `second-brain server "
    "uninstall`. A development database: `second-brain server dev reset`. If you have edited files "
    "that `init` wrote, update with `init` and `supabase db push`."
)
_READ = """
select version, coalesce(name, ''), array_to_string(statements, E'\\n')
  from supabase_migrations.{history}
 where array_length(statements, 1) > 0
 order by version
"""
_COMMENT = re.compile(r"--[^\n]*")
_IS_CHOSEN = re.compile(
    r"\bvector\(\d+\)"
    r"|insert into \w+\.knowledge_settings \(collection, fusion\) values \('', '\w+'\)"
)
_CREATES = re.compile(r"create (?:function|schema) (?:if not exists )?(\w+)")


def find(
    connection: psycopg.Connection[Any], rendered: Sequence[Migration], schema: str
) -> list[Obstacle]:
    """Return the obstacle if migrations were applied with another text than `rendered` has.

    Comments, spaces, dimensions and the stored fusion may differ.
    """
    known = {(one.version, one.name): one.sql for one in rendered}
    known |= {("", handed_out_name(one, schema)): one.sql for one in rendered}
    newest = max((one.version for one in rendered), default="")
    differing = []
    for of_schema in dict.fromkeys((naming.SCHEMA, schema)):
        if not has_history(connection, of_schema):
            continue
        history = sql.Identifier(naming.history(of_schema))
        for version, name, text in connection.execute(sql.SQL(_READ).format(history=history)):
            key = ("", name) if is_handed_out(name, schema) else (version, name)
            number = (
                name.removeprefix(naming.handed_out_name(schema, "")) if not key[0] else version
            )
            is_ours = not key[0] or (
                len(version) == 3 and naming.internals(schema) in _CREATES.findall(text)
            )
            # Files of a newer version are not known here.
            is_later = key not in known and number[: len(newest)] > newest
            if is_ours and not is_later and _essence(text) != _essence(known.get(key, "")):
                differing.append(f"{version}_{name}")
    if not differing:
        return []
    more = f" and {len(differing) - 1} more" if len(differing) > 1 else ""
    what = f"the install in schema {schema} is of an earlier checkout: {differing[0]}{more} differ"
    return [Obstacle(f"{what} from this version", REMEDY)]


def _essence(text: str) -> str:
    return re.sub(r"[\s;]+", "", _IS_CHOSEN.sub("", _COMMENT.sub("", text)))
