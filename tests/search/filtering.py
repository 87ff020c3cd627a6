"""Chunks that differ in their columns, and which of them pass a filter."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb
from searching import NORTH, numbers, search, store

from conftest import Connection

ME, YOU, NOBODY = UUID(int=0xA1), UUID(int=0xB2), UUID(int=0xC3)


def passing(connection: Connection, filters: Any, **arguments: Any) -> set[int]:
    """Give the numbers of the chunks that pass. Each leg finds all of them, so both have to."""
    asked = {"query_embedding": NORTH, "query_text": "alpha", "match_count": 1000}
    rows = search(connection, **asked, filters=Jsonb(filters), **arguments)
    assert {row["match_type"] for row in rows} <= {"both"}
    return set(numbers(rows))


def check_filters(connection: Connection, rows: Sequence[tuple[Any, set[int]]]) -> None:
    """Compare what each filter lets through with the numbers beside it."""
    found = [(filters, passing(connection, filters)) for filters, _ in rows]
    assert found == list(rows)


def store_alphas(connection: Connection, *columns: dict[str, Any]) -> None:
    store(connection, *({"content": "alpha", "embedding": NORTH} | one for one in columns))


def one(field: str, op: str, *value: Any) -> list[dict[str, Any]]:
    return [{"field": field, "op": op} | ({"value": value[0]} if value else {})]


def value_of(row: Mapping[str, Any], path: Sequence[str]) -> Any:
    """Return the value that a path of keys leads to, None where there is none."""
    value: Any = row
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value
