"""Searches of all kinds in one sequence: with and without filters, viewers and snippets."""

import uuid
from collections.abc import Iterator
from typing import Any

from psycopg import Connection, sql
from psycopg.types.json import Jsonb

from benchmarks.workload import MOST, TENTH, Queries

VIEWER = uuid.UUID(int=1)
EXTRAS: tuple[dict[str, Any], ...] = (
    {},
    {"snippet": True},
    {"filter_type": TENTH},
    {"filters": Jsonb([{"field": "knowledge_type", "op": "in", "value": [MOST, TENTH]}])},
    {"viewer_id": VIEWER},
    {"viewer_id": VIEWER, "filter_type": MOST, "snippet": True},
)


def mixed_calls(queries: Queries) -> Iterator[dict[str, Any]]:
    """Yield the arguments of searches without end."""
    number = 0
    while True:
        for kind, asked in queries.items():
            for extra in EXTRAS:
                query = asked[number % len(asked)]
                number += 1
                given: dict[str, Any] = {"fusion": "auto"}
                if query.text is not None:
                    given["query_text"] = f'"{query.text}"' if query.phrase else query.text
                if query.embedding is not None:
                    given["query_embedding"] = query.embedding
                if kind.startswith("filtered"):
                    given["filter_type"] = query.kept
                yield {**given, **extra}


def search(connection: "Connection[Any]", arguments: dict[str, Any]) -> None:
    """Search with these arguments, and fetch the rows."""
    statement = sql.SQL("select * from public.hybrid_search_knowledge_chunks({})").format(
        sql.SQL(", ").join(
            sql.SQL("{} => {}").format(sql.Identifier(name), sql.Placeholder(name))
            for name in arguments
        )
    )
    connection.execute(statement, arguments, prepare=False).fetchall()
