"""The groups that the project's function `knowledge_viewer_groups` gives the user of a token."""

import json
from collections.abc import Mapping
from typing import Any, LiteralString

import psycopg
from psycopg.rows import scalar_row

from second_brain.services.install import SCHEMA, Install

# The function reads the claims with auth.uid() and auth.jwt(), as in a call through PostgREST.
_GROUPS: LiteralString = """
with token as materialized (select set_config('request.jwt.claims', %(claims)s, true))
select public.knowledge_viewer_groups() from token
"""


async def viewer_groups(
    connection: psycopg.AsyncConnection[Any], claims: Mapping[str, Any], *, schema: str = SCHEMA
) -> list[str]:
    """Return the groups of the user of a verified token, for `viewer_groups` of a search."""
    cursor = connection.cursor(row_factory=scalar_row)
    statement = Install(schema).statement(_GROUPS)
    await cursor.execute(statement, {"claims": json.dumps(claims)}, prepare=False)
    return await cursor.fetchone() or []
