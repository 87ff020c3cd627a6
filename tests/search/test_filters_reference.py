"""Filters against a reference in Python: random conditions on random rows."""

from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime
from typing import Any
from uuid import UUID

import pytest
from filtering import ME, YOU, one, value_of
from hypothesis import given, settings
from hypothesis import strategies as st
from psycopg.types.json import Jsonb
from searching import NORTH, chunk, numbers, search

from conftest import Connection
from support.properties import tried

KEYS = ("a", "b", "0", "o'\"\\$%")
PATHS = [[first] for first in KEYS] + [["a", second] for second in KEYS] + [["a", "b", "0"]]
DOCUMENTS, SOURCES = (chunk(901), chunk(902)), (chunk(911), chunk(912))

texts = st.sampled_from(["", "x", "X", "é", "\U0001f408", "\uffee", "2026-01-02", "2024", "null"])
scalars = (
    st.none() | st.booleans() | st.sampled_from([0, 1, 1.0, -1.5, 2, 2024, 0.1, 10**20]) | texts
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=3)
    ),
    max_leaves=5,
)
days = st.sampled_from(["0001-01-01", "2026-01-31", "2026-02-01", "2026-02-02", "9999-12-31"])
moments = st.sampled_from(
    [
        "2026-01-31",
        "2026-01-31T00:00:00",
        "2026-01-31T12:00:00.000001Z",
        "2026-01-31T12:00:00.000002",
        "2026-01-31 13:00:00.000002+01:00",
        "2026-02-01T00:00:00-05:00",
    ]
)
COLUMN_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "knowledge_type": st.sampled_from(["note", "task", "decision"]),
    "source_origin": st.sampled_from(["web", "email"]),
    "collection": st.sampled_from(["a", "A", "it's", "a=b", "collection"]),
    "language": st.sampled_from(["english", "german"]),
    "visibility": st.sampled_from(["private", "public"]),
    "sensitivity": st.sampled_from(["secret", "sensitivity", "=", ""]),
    "embedding_model": st.sampled_from(["small", "large"]),
    "document_id": st.sampled_from([*map(str, DOCUMENTS)]),
    "source_id": st.sampled_from([*map(str, SOURCES)]),
    "owner_id": st.sampled_from([str(ME), str(YOU)]),
    "chunk_index": st.sampled_from([0, 1, 2, 3, 2147483646, 2147483647]),
    "document_date": days,
    "created_at": moments,
    "updated_at": moments,
}
TEXT_COLUMNS = {*list(COLUMN_VALUES)[:7]}
NULLABLE = {"sensitivity", "embedding_model", "document_id", "source_id", "owner_id"}
NULLABLE |= {"chunk_index", "document_date"}
ORDERED = {"chunk_index", "document_date", "created_at", "updated_at"}
OF_CHUNKS = {"document_id", "chunk_index", "embedding_model", "created_at", "updated_at"}
OF_DOCUMENTS = COLUMN_VALUES.keys() - OF_CHUNKS

row_values = {
    field: st.none() | drawn if field in NULLABLE else drawn
    for field, drawn in COLUMN_VALUES.items()
} | {
    "metadata": st.dictionaries(st.sampled_from([*KEYS, "a.b"]), values, max_size=4),
    "content": st.sampled_from(["alpha", "alpha beta", "gamma alpha beta", "beta gamma alpha"]),
}
document_rows = st.fixed_dictionaries(
    {field: row_values[field] for field in [*sorted(OF_DOCUMENTS), "metadata"]}
)
corpora = st.tuples(
    st.tuples(document_rows, document_rows),
    st.lists(st.fixed_dictionaries(row_values), min_size=1, max_size=10),
)


@st.composite
def conditions(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a condition on any field with any op that it takes."""
    field = draw(st.sampled_from([*COLUMN_VALUES, "text", *["metadata"] * 14]))
    if field == "text":
        asked = st.sampled_from(["beta", "Gamma", "beta gamma", "gamma alpha", "delta"])
        op = draw(st.sampled_from(["has_all_words", "has_any_word", "has_no_word", ""]))
        if not op:
            part = draw(st.sampled_from(["a be", "eta", "%", "_", "\\", "alpha beta"]))
            return {"field": field, "op": "contains_text", "value": part}
        return {"field": field, "op": op, "value": draw(st.lists(asked, min_size=1, max_size=3))}
    ops = ["eq", "ne", "in", "not_in", "exists", "is_null", "is_not_null"]
    if field in ORDERED or field == "metadata":
        ops += ["gte", "gt", "lte", "lt", "between"]
    if field in TEXT_COLUMNS:
        ops += ["starts_with", "contains_text"]
    if field == "metadata":
        drawn, bounds = values, texts | st.sampled_from([0, 1, 2.0, 2024])
        path = draw(st.sampled_from([[], *PATHS]))
        field = ".".join([field, *path])
        ops += ["contains", "contains", "has_any", "starts_with", "contains_text"]
        ops = ops if path else ["contains", "has_any"]
    else:
        bounds = COLUMN_VALUES[field]
        drawn = st.none() | bounds
    op = draw(st.sampled_from(ops))
    condition: dict[str, Any] = {"field": field, draw(st.sampled_from(["op", "operator"])): op}
    if op in ("is_null", "is_not_null"):
        return condition
    if op == "exists":
        if draw(st.booleans()):
            condition["value"] = draw(st.booleans())
    elif op in ("starts_with", "contains_text"):
        pieces = st.sampled_from(["", "x", "20", "s", "e", "it's", "=", "\U0001f408"])
        condition["value"] = draw(pieces)
    elif op == "has_any":
        condition["value"] = draw(st.lists(texts | st.sampled_from(KEYS), max_size=4))
    elif op in ("in", "not_in"):
        condition["value"] = draw(st.lists(drawn, max_size=4))
    elif op == "between":
        both = st.tuples(bounds, bounds)
        condition["value"] = draw(both.filter(lambda two: ordered(*two) is not None))
    elif op in ("gte", "gt", "lte", "lt"):
        condition["value"] = draw(bounds)
    elif field == "metadata":
        condition["value"] = draw(st.dictionaries(st.sampled_from(KEYS), values, max_size=2))
    else:
        has_value = drawn.filter(lambda value: value is not None)
        condition["value"] = draw(has_value if op == "contains" else drawn)
    return condition


def in_groups(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(inner, min_size=1, max_size=3)
    return (
        several.map(lambda parts: {"any": parts})
        | several.map(lambda parts: {"all": parts})
        | inner.map(lambda part: {"not": part})
        # Two keys of one object must both hold.
        | st.tuples(several, inner).map(lambda two: {"any": two[0], "not": two[1]})
    )


nested = st.recursive(conditions(), in_groups, max_leaves=6)
shorthands = st.builds(
    dict[str, Any].__or__,
    st.dictionaries(st.sampled_from([*KEYS, "a.b", "", "metadata"]), values, max_size=2),
    st.fixed_dictionaries(
        {}, optional={name: st.none() | drawn for name, drawn in COLUMN_VALUES.items()}
    ).map(lambda columns: dict(list(columns.items())[:2])),
)


def kind(value: Any) -> str:
    """Return the JSON type of a value; in Python, True is equal to 1."""
    if isinstance(value, bool):
        return "boolean"
    return "number" if isinstance(value, int | float) else type(value).__name__


def same(stored: Any, wanted: Any) -> bool:
    if kind(stored) != kind(wanted):
        return False
    if isinstance(stored, dict):
        keys = stored.keys()
        return keys == wanted.keys() and all(same(stored[key], wanted[key]) for key in keys)
    if isinstance(stored, list):
        return len(stored) == len(wanted) and all(map(same, stored, wanted))
    return bool(stored == wanted)


def contains(stored: Any, wanted: Any) -> bool:
    if isinstance(stored, dict) and isinstance(wanted, dict):
        return all(key in stored and contains(stored[key], wanted[key]) for key in wanted)
    if isinstance(stored, list) and isinstance(wanted, list):
        return all(any(contains(own, element) for own in stored) for element in wanted)
    return same(stored, wanted)


def ordered(low: Any, high: Any) -> bool | None:
    """Whether low is at most high; None when they cannot be compared."""
    if kind(low) != kind(high) or kind(low) in ("NoneType", "boolean", "list", "dict"):
        return None
    return bool(low <= high)


def read(field: str, value: Any) -> Any:
    """Read the value of a condition as its column's type."""
    if value is None or field not in COLUMN_VALUES:
        return value
    if field.endswith("_id"):
        return UUID(value)
    if field == "document_date":
        return date.fromisoformat(value)
    if field in ORDERED and field != "chunk_index":
        moment = datetime.fromisoformat(value)
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return value


def holds(row: dict[str, Any], condition: dict[str, Any]) -> bool:
    if "field" not in condition:
        groups: dict[str, Callable[[Iterable[bool]], bool]]
        groups = {"any": any, "all": all, "not": lambda held: not any(held)}
        return all(
            groups[op](holds(row, part) for part in ([of] if op == "not" else of))
            for op, of in condition.items()
        )
    field = condition["field"]
    path = field.split(".")
    stored, wanted = value_of(row, path), condition.get("value", True)
    op = condition.get("op") or condition["operator"]
    if field == "text" and op == "contains_text":
        return wanted in row["content"]
    if field == "text":
        has = [f" {one.lower()} " in f" {row['content']} " for one in wanted]
        return {"has_all_words": all(has), "has_any_word": any(has)}.get(op, not any(has))
    if op == "exists":
        return (stored is not None) is wanted
    if op in ("is_null", "is_not_null"):
        return (stored is None) is (op == "is_null")
    if op == "starts_with":
        return isinstance(stored, str) and stored.startswith(wanted)
    if op == "contains_text":
        return isinstance(stored, str) and wanted in stored
    if op in ("in", "not_in"):
        return any(same(stored, read(field, value)) for value in wanted) is (op == "in")
    if op in ("eq", "ne"):
        return same(stored, read(field, wanted)) is (op == "eq")
    if op == "has_any":
        own = stored if isinstance(stored, dict | list) else [stored]
        return any(each in wanted for each in own if isinstance(each, str))
    if op == "contains":
        if stored is None:
            return False
        in_array = isinstance(stored, list) and any(same(own, wanted) for own in stored)
        return contains(stored, wanted) or (
            in_array and kind(wanted) in ("boolean", "number", "str")
        )
    if op == "between":
        low, high = (read(field, bound) for bound in wanted)
        return bool(ordered(low, stored) and ordered(stored, high))
    bound = read(field, wanted)
    pair = (bound, stored) if op in ("gte", "lt") else (stored, bound)
    return ordered(*pair) is (op in ("gte", "lte"))


def storing(table: str, columns: Iterable[str], **values: str) -> bytes:
    """Return the statement that stores rows given as JSON, with the same values in all."""
    columns = ", ".join(columns)
    return (
        f"insert into public.{table} ({', '.join(values)}, {columns})"
        f" select {', '.join(values.values())}, {columns}"
        f"   from jsonb_populate_recordset(null::public.{table}, %s)"
    ).encode()


OF_BOTH = [*sorted(OF_DOCUMENTS), "id", "metadata"]
STORE_DOCUMENTS = storing("knowledge_documents", OF_BOTH, external_key="id::text")
RETURNED = ["content", *OF_BOTH, *OF_CHUNKS]
STORE_CHUNKS = storing("knowledge_chunks", RETURNED, embedding="'[1,0,0]'")
STORE_CHUNKS += f" returning {', '.join(RETURNED)}".encode()

# What a search of a large corpus does where few rows pass.
FOUND_BY_FILTER = """
select knowledge_internal.compared_rows(
         knowledge_internal.embedding_bits('[1,0,0]'), null,
         (
           knowledge_internal.plan_search(
             knowledge_internal.given_arguments(jsonb_build_object(
               'filters', %(filters)s::jsonb, 'filter_type', %(filter_type)s::text,
               'date_from', %(date_from)s::date, 'date_to', %(date_to)s::date,
               'public_only', %(public_only)s::boolean
             )),
             false
           )
         ).scope,
         null
       )
"""


def is_let_through(row: dict[str, Any], filters: Any) -> bool:
    if isinstance(filters, list):
        return all(holds(row, condition) for condition in filters)
    return all(
        same(row[key], read(key, wanted))
        if key in COLUMN_VALUES
        else same(row["metadata"].get(key), wanted)
        for key, wanted in filters.items()
    )


Rows = list[dict[str, Any]]


def check_against_the_reference(
    connection: Connection, corpus: tuple[Rows, Rows], filters: list[Any], arguments: dict[str, Any]
) -> None:
    documents, chunks = corpus
    with connection.transaction(force_rollback=True), connection.cursor() as cursor:
        stored = [{"id": str(key), **row} for key, row in zip(DOCUMENTS, documents, strict=True)]
        cursor.execute(STORE_DOCUMENTS, [Jsonb(stored)])
        drawn = [{"id": str(chunk(number)), **row} for number, row in enumerate(chunks, 1)]
        cursor.execute(STORE_CHUNKS, [Jsonb(drawn)])
        # A chunk has much of its document, so what is stored counts and not what was drawn.
        rows = [dict(zip(RETURNED, row, strict=True)) for row in cursor.fetchall()]
        conditions = {
            "filter_type": one("knowledge_type", "eq", arguments["filter_type"]),
            "date_from": one("document_date", "gte", arguments["date_from"]),
            "date_to": one("document_date", "lte", arguments["date_to"]),
            "public_only": one("visibility", "eq", "public"),
        }
        asked = [part for name, parts in conditions.items() if arguments[name] for part in parts]
        for one_filter in filters:
            expected = [
                row
                for row in rows
                if is_let_through(row, one_filter)
                if all(holds(row, condition) for condition in asked)
            ]
            ids = sorted(row["id"].int for row in expected)
            asked_for = arguments | {"match_count": 1000, "filters": Jsonb(one_filter)}
            by_vector = search(connection, query_embedding=NORTH, **asked_for)
            assert sorted(numbers(by_vector)) == ids
            assert sorted(numbers(search(connection, query_text="alpha", **asked_for))) == ids
            found = connection.execute(FOUND_BY_FILTER, asked_for).fetchone()
            assert found is not None
            assert sorted(one.int for one in found[0]) == ids


drawn_filters = st.lists(
    st.lists(conditions() | nested, min_size=1, max_size=4) | shorthands, min_size=3, max_size=3
)
drawn_arguments = st.fixed_dictionaries(
    {
        "filter_type": st.none() | COLUMN_VALUES["knowledge_type"],
        "date_from": st.none() | days,
        "date_to": st.none() | days,
        "public_only": st.booleans(),
    }
) | st.just({"filter_type": None, "date_from": None, "date_to": None, "public_only": False})
reference = tried(30)


@pytest.fixture
def with_sources(knowledge: Connection) -> Connection:
    for number, source in enumerate(SOURCES):
        knowledge.execute(
            "insert into public.knowledge_sources (id, name) values (%s, %s)", [source, str(number)]
        )
    knowledge.execute("set local statement_timeout = 0")
    # A timestamp without an offset is UTC, wherever the session is.
    knowledge.execute("set local timezone = 'Asia/Tokyo'")
    return knowledge


@reference
@given(corpus=corpora, filters=drawn_filters, arguments=drawn_arguments)
def test_filters_let_through_what_the_reference_does(
    with_sources: Connection, corpus: Any, filters: list[Any], arguments: dict[str, Any]
) -> None:
    check_against_the_reference(with_sources, corpus, filters, arguments)


@pytest.mark.slow
@settings(reference, max_examples=1000)
@given(corpus=corpora, filters=drawn_filters, arguments=drawn_arguments)
def test_filters_let_through_what_the_reference_does_in_thousands_of_cases(
    with_sources: Connection, corpus: Any, filters: list[Any], arguments: dict[str, Any]
) -> None:
    check_against_the_reference(with_sources, corpus, filters, arguments)
