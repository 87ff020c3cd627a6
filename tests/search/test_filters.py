"""Filters: what each lets through, what is refused, and all of them against a reference."""

import json
from collections.abc import Iterator
from datetime import UTC, date, datetime
from typing import Any
from uuid import UUID

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.types.json import Jsonb
from test_search import NORTH, chunk, numbers, refused, search, store

from conftest import Connection, Server, copy_of

ME, YOU, NOBODY = UUID(int=0xA1), UUID(int=0xB2), UUID(int=0xC3)
SEARCH = "hybrid_search_knowledge_chunks"


def passing(connection: Connection, filters: Any, **arguments: Any) -> set[int]:
    """Give the numbers of the chunks that pass. Each leg finds all of them, so both have to."""
    rows = search(
        connection,
        query_embedding=NORTH,
        query_text="alpha",
        match_count=1000,
        filters=Jsonb(filters),
        **arguments,
    )
    assert {row["match_type"] for row in rows} <= {"both"}
    return set(numbers(rows))


def store_alphas(connection: Connection, *columns: dict[str, Any]) -> None:
    store(connection, *({"content": "alpha", "embedding": NORTH} | one for one in columns))


def one(field: str, op: str, *value: Any) -> list[dict[str, Any]]:
    return [{"field": field, "op": op} | ({"value": value[0]} if value else {})]


# What each op makes of each kind of column.

COLUMNS: list[dict[str, Any]] = [
    {
        "knowledge_type": "note",
        "collection": "handbook",
        "sensitivity": "internal",
        "owner_id": ME,
        "chunk_index": 0,
        "document_date": "2026-01-31",
        "created_at": "2026-01-31T12:00:00Z",
    },
    {
        "knowledge_type": "task",
        "collection": "it's",
        "sensitivity": "secret",
        "owner_id": YOU,
        "chunk_index": 7,
        "document_date": "2026-02-01",
        "created_at": "2026-01-31T12:00:00.000001Z",
    },
    {
        "knowledge_type": "signal",
        "visibility": "public",
        "source_origin": "web",
        "language": "german",
        "embedding_model": "small",
        "chunk_index": 2147483647,
        "created_at": "2026-01-31T22:00:00-05:00",
    },
]


@pytest.mark.parametrize(
    ("field", "op", "value", "found"),
    [
        ("knowledge_type", "eq", "note", {1}),
        ("knowledge_type", "ne", "note", {2, 3}),
        ("knowledge_type", "in", ["note", "task", "note"], {1, 2}),
        ("knowledge_type", "in", [], set()),
        ("knowledge_type", "not_in", ["note", "task"], {3}),
        ("knowledge_type", "not_in", [], {1, 2, 3}),
        ("knowledge_type", "exists", True, {1, 2, 3}),
        ("knowledge_type", "exists", False, set()),
        ("source_origin", "eq", "web", {3}),
        ("language", "eq", "german", {3}),
        ("visibility", "eq", "public", {3}),
        ("visibility", "ne", "public", {1, 2}),
        ("embedding_model", "eq", "small", {3}),
        ("embedding_model", "ne", "small", {1, 2}),
        ("collection", "eq", "it's", {2}),
        ("collection", "eq", "knowledge", {3}),
        ("collection", "eq", "Handbook", set()),
        ("sensitivity", "eq", "secret", {2}),
        ("sensitivity", "eq", None, {3}),
        ("sensitivity", "ne", None, {1, 2}),
        # Leaving a label out keeps what has none.
        ("sensitivity", "ne", "secret", {1, 3}),
        ("sensitivity", "not_in", ["secret", "internal"], {3}),
        ("sensitivity", "not_in", ["secret", None], {1}),
        ("sensitivity", "in", ["secret", None], {2, 3}),
        ("sensitivity", "exists", True, {1, 2}),
        ("sensitivity", "exists", False, {3}),
        ("owner_id", "eq", str(ME), {1}),
        ("owner_id", "eq", ME.hex.upper(), {1}),
        ("owner_id", "ne", str(ME).upper(), {2, 3}),
        ("owner_id", "in", [str(ME), str(NOBODY), None], {1, 3}),
        ("owner_id", "exists", True, {1, 2}),
        ("source_id", "exists", True, set()),
        ("document_id", "eq", None, {1, 2, 3}),
        ("chunk_index", "eq", 7, {2}),
        ("chunk_index", "eq", 7.0, {2}),
        ("chunk_index", "ne", 7, {1, 3}),
        ("chunk_index", "gt", 0, {2, 3}),
        ("chunk_index", "gte", 7, {2, 3}),
        ("chunk_index", "lt", 7, {1}),
        ("chunk_index", "between", [0, 7], {1, 2}),
        ("chunk_index", "between", [7, 0], set()),
        ("chunk_index", "lte", 2147483647, {1, 2, 3}),
        ("chunk_index", "gte", 2147483647, {3}),
        ("chunk_index", "gt", 2147483647, set()),
        ("chunk_index", "eq", 2147483647, {3}),
        ("chunk_index", "not_in", [2147483647, 0], {2}),
        ("chunk_index", "gte", -2147483648, {1, 2, 3}),
        ("document_date", "eq", "2026-01-31", {1}),
        ("document_date", "ne", "2026-01-31", {2, 3}),
        ("document_date", "in", ["2026-01-31", None], {1, 3}),
        ("document_date", "gte", "2026-01-31", {1, 2}),
        ("document_date", "gt", "2026-01-31", {2}),
        ("document_date", "lte", "2026-01-31", {1}),
        ("document_date", "lt", "2026-01-31", set()),
        ("document_date", "between", ["2026-01-31", "2026-02-01"], {1, 2}),
        ("document_date", "between", ["2026-02-01", "2026-01-31"], set()),
        ("document_date", "lte", "9999-12-31", {1, 2}),
        ("document_date", "exists", False, {3}),
        ("created_at", "eq", "2026-01-31T12:00:00Z", {1}),
        ("created_at", "eq", "2026-01-31 13:00:00+0100", {1}),
        ("created_at", "lte", "2026-01-31T12:00", {1}),
        ("created_at", "gt", "2026-01-31T12:00:00", {2, 3}),
        ("created_at", "gte", "2026-02-01", {3}),
        ("created_at", "between", ["2026-01-31", "2026-02-01"], {1, 2}),
        ("created_at", "ne", "2026-01-31T12:00:00.000001", {1, 3}),
        ("updated_at", "gt", "2026-01-31", {1, 2, 3}),
    ],
)
def test_a_condition_on_a_column(
    knowledge: Connection, field: str, op: str, value: Any, found: set[int]
) -> None:
    # A timestamp without an offset is UTC, wherever the session is.
    knowledge.execute("set local timezone = 'Asia/Tokyo'")
    knowledge.execute("set local datestyle = 'SQL, YMD'")
    store_alphas(knowledge, *COLUMNS)
    assert passing(knowledge, one(field, op, value)) == found


@pytest.mark.parametrize(
    ("conditions", "found"),
    [
        ([], {1, 2, 3}),
        ([("chunk_index", "gt", 0), ("chunk_index", "lt", 10)], {2}),
        ([("chunk_index", "in", [0, 7]), ("chunk_index", "ne", 7)], {1}),
        ([("knowledge_type", "in", ["note", "task"]), ("sensitivity", "ne", "secret")], {1}),
        ([("sensitivity", "in", ["secret", None]), ("sensitivity", "exists", True)], {2}),
        ([("sensitivity", "in", ["secret", None]), ("sensitivity", "in", ["internal", None])], {3}),
        ([("sensitivity", "exists", True), ("sensitivity", "exists", False)], set()),
        ([("document_date", "ne", "2026-01-31"), ("document_date", "gte", "2026-01-01")], {2}),
        ([("document_date", "exists", True), ("document_date", "ne", "2026-01-31")], {2}),
        ([("owner_id", "eq", str(ME)), ("owner_id", "eq", str(YOU))], set()),
    ],
)
def test_all_conditions_have_to_hold(
    knowledge: Connection, conditions: list[tuple[str, str, Any]], found: set[int]
) -> None:
    store_alphas(knowledge, *COLUMNS)
    filters = [{"field": field, "op": op, "value": value} for field, op, value in conditions]
    assert passing(knowledge, filters) == found


def test_conditions_join_the_arguments_of_the_same_meaning(knowledge: Connection) -> None:
    store_alphas(knowledge, *COLUMNS)
    later = one("document_date", "gt", "2026-01-31")
    assert passing(knowledge, [], date_to="2026-02-01") == {1, 2}
    assert passing(knowledge, later, date_to="2026-02-01") == {2}
    assert passing(knowledge, [], date_from="2026-02-01", date_to="2026-01-01") == set()
    assert passing(knowledge, [], date_from="-infinity", date_to="5874897-12-31") == {1, 2}
    types = one("knowledge_type", "in", ["note", "task"])
    assert passing(knowledge, types, filter_type="task") == {2}
    assert passing(knowledge, one("visibility", "eq", "private"), public_only=True) == set()
    assert passing(knowledge, one("visibility", "ne", "private"), public_only=True) == {3}


def test_excluded_collections_are_compared_only_where_they_have_chunks(
    knowledge: Connection,
) -> None:
    store_alphas(knowledge, *COLUMNS)
    excluding = "select knowledge_internal.compile_filter(%s, null, null, null, false) is null"
    memory = one("collection", "ne", "memory")
    assert knowledge.execute(excluding, [Jsonb(memory)]).fetchone() == (True,)
    assert passing(knowledge, memory) == {1, 2, 3}
    assert passing(knowledge, one("collection", "not_in", ["memory", "handbook"])) == {2, 3}
    assert passing(knowledge, memory + one("collection", "ne", "handbook")) == {2, 3}
    assert passing(knowledge, memory + one("knowledge_type", "ne", "note")) == {2, 3}
    assert passing(knowledge, one("collection", "ne", None)) == {1, 2, 3}

    knowledge.execute(
        "update public.knowledge_chunks set collection = 'memory' where collection = 'handbook'"
    )
    assert knowledge.execute(excluding, [Jsonb(memory)]).fetchone() == (False,)
    assert passing(knowledge, memory) == {2, 3}
    assert passing(knowledge, memory, viewer_id=ME) == passing(knowledge, [], viewer_id=ME) - {1}
    assert passing(knowledge, []) == {1, 2, 3}


def test_the_op_may_be_called_operator_and_exists_needs_no_value(knowledge: Connection) -> None:
    store_alphas(knowledge, *COLUMNS)
    assert passing(knowledge, [{"field": "sensitivity", "operator": "eq", "value": "secret"}]) == {
        2
    }
    assert passing(knowledge, one("sensitivity", "exists")) == {1, 2}


def test_a_source_is_given_by_its_id_or_its_name(knowledge: Connection) -> None:
    handbook, tickets = UUID(int=1), UUID(int=2)
    for source, name in ((handbook, "handbook"), (tickets, "it's")):
        knowledge.execute(
            "insert into public.knowledge_sources (id, name) values (%s, %s)", [source, name]
        )
    store_alphas(knowledge, {"source_id": handbook}, {"source_id": tickets}, {})
    for filters, found in (
        ({"source_id": "handbook"}, {1}),
        (one("source_id", "eq", "it's"), {2}),
        (one("source_id", "in", ["handbook", str(tickets), None, "none"]), {1, 2, 3}),
        (one("source_id", "ne", "handbook"), {2, 3}),
        (one("source_id", "not_in", ["handbook", "it's"]), {3}),
        # An unknown name matches no row, as an unknown id does.
        (one("source_id", "eq", "Handbook"), set()),
        (one("source_id", "ne", "Handbook"), {1, 2, 3}),
    ):
        assert passing(knowledge, filters) == found, filters


# Metadata.

METADATA: list[dict[str, Any]] = [
    {"year": 2024, "tags": ["api", "http"], "author": {"name": "Ann", "team": {"id": 1}}},
    {"year": "2024", "tags": "api", "author": {"name": None}},
    {"year": 2024.0, "tags": [], "author": "Ann", "empty": {}},
    {"year": None, "tags": [["api"]], "author": [{"name": "Ann"}], "empty": []},
    {"year": True, "tags": {"api": 1}, "author.name": "Ann", "0": {"1": "x"}},
    {"year": 1e30, "day": "2026-01-31", "author": ["a", {"1": "x"}]},
]


@pytest.mark.parametrize(
    ("field", "op", "value", "found"),
    [
        ("year", "eq", 2024, {1, 3}),
        ("year", "eq", 2024.0, {1, 3}),
        ("year", "eq", "2024", {2}),
        ("year", "eq", True, {5}),
        ("year", "eq", 1, set()),
        ("year", "eq", None, {4}),
        ("year", "ne", 2024, {2, 4, 5, 6}),
        ("year", "ne", None, {1, 2, 3, 5, 6}),
        ("year", "in", [2024, "2024"], {1, 2, 3}),
        ("year", "in", [None, True], {4, 5}),
        ("year", "in", [], set()),
        ("year", "not_in", [2024, None], {2, 5, 6}),
        ("year", "not_in", [], {1, 2, 3, 4, 5, 6}),
        ("year", "exists", True, {1, 2, 3, 5, 6}),
        ("year", "exists", False, {4}),
        ("missing", "exists", False, {1, 2, 3, 4, 5, 6}),
        ("missing", "eq", None, {1, 2, 3, 4, 5, 6}),
        ("missing", "ne", "x", {1, 2, 3, 4, 5, 6}),
        # Numbers are compared with numbers, texts with texts.
        ("year", "gte", 2024, {1, 3, 6}),
        ("year", "gt", 2024, {6}),
        ("year", "lte", 2024, {1, 3}),
        ("year", "lt", 1e31, {1, 3, 6}),
        ("year", "between", [2000, 2024], {1, 3}),
        ("year", "between", ["2000", "2025"], {2}),
        ("year", "between", [2025, 2000], set()),
        ("year", "gte", "", {2}),
        ("day", "lte", "2026-02", {6}),
        ("day", "gt", "2026-01-31", set()),
        ("tags", "gte", "api", {2}),
        # Arrays and objects are equal as a whole.
        ("tags", "eq", ["api", "http"], {1}),
        ("tags", "eq", ["http", "api"], set()),
        ("tags", "eq", ["api"], set()),
        ("tags", "eq", "api", {2}),
        ("tags", "eq", [], {3}),
        ("tags", "ne", [], {1, 2, 4, 5, 6}),
        ("tags", "in", [[], "api", ["http"]], {2, 3}),
        ("tags", "not_in", [[], ["api", "http"]], {2, 4, 5, 6}),
        ("empty", "eq", {}, {3}),
        ("empty", "eq", [], {4}),
        ("empty", "exists", True, {3, 4}),
        # A text is contained in an array that has it, and in itself.
        ("tags", "contains", "api", {1, 2}),
        ("tags", "contains", ["api"], {1}),
        ("tags", "contains", ["http", "api"], {1}),
        ("tags", "contains", [["api"]], {4}),
        ("tags", "contains", [], {1, 3, 4}),
        ("tags", "contains", {}, {5}),
        ("tags", "contains", {"api": 1}, {5}),
        # The elements of an array that are strings, the keys of an object, and a string itself.
        ("tags", "has_any", ["http", "docs"], {1}),
        ("tags", "has_any", ["docs", "api"], {1, 2, 5}),
        ("tags", "has_any", ["docs"], set()),
        ("tags", "has_any", [], set()),
        ("author", "has_any", ["team", "a"], {1, 6}),
        ("year", "has_any", ["2024"], {2}),
        ("author", "contains", {"name": "Ann"}, {1}),
        ("author", "contains", [{"name": "Ann"}], {4}),
        ("author", "contains", {"team": {}}, {1}),
        # A path goes through objects alone.
        ("author.name", "eq", "Ann", {1}),
        ("author.name", "exists", True, {1}),
        ("author.team.id", "eq", 1, {1}),
        ("author.team.id", "gte", 1, {1}),
        ("author.team", "eq", {"id": 1.0}, {1}),
        ("0.1", "eq", "x", {5}),
        ("0.1", "in", ["x", "y", []], {5}),
        ("author.1", "exists", True, set()),
        ("author.1.1", "exists", True, set()),
        ("author.0", "gte", "", set()),
    ],
)
def test_a_condition_on_metadata(
    knowledge: Connection, field: str, op: str, value: Any, found: set[int]
) -> None:
    store_alphas(knowledge, *({"metadata": metadata} for metadata in METADATA))
    assert passing(knowledge, one(f"metadata.{field}", op, value)) == found


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ({}, {1, 2, 3, 4, 5, 6}),
        ({"year": 2024}, {1, 3}),
        ({"year": 2024, "tags": []}, {3}),
        ({"tags": ["api", "http"]}, {1}),
        # A key is taken as it is: a dot in it makes no path.
        ({"author.name": "Ann"}, {5}),
        ({"year": None}, {4}),
        ({"author": {"name": None}}, {2}),
        (one("metadata", "contains", {"year": 2024, "tags": ["api"]}), {1}),
        (one("metadata", "contains", {"author.name": "Ann"}), {5}),
        (one("metadata", "has_any", ["author.name", "day"]), {5, 6}),
        (one("metadata", "contains", {"empty": {}}), {3}),
        (one("metadata", "contains", {}), {1, 2, 3, 4, 5, 6}),
        # Of several conditions on one key each one counts.
        (one("metadata.year", "eq", 2024) + one("metadata.year", "eq", "2024"), set()),
        (one("metadata.tags", "contains", "api") + one("metadata.tags", "contains", "http"), {1}),
        (
            one("metadata.author.name", "eq", "Ann") + one("metadata.author.team.id", "in", [1, 2]),
            {1},
        ),
        (
            one("metadata.year", "in", [2024, True]) + one("metadata.year", "in", [True, None]),
            {5},
        ),
        (
            one("metadata.year", "eq", 2024) + one("metadata", "contains", {"year": 2024.0}),
            {1, 3},
        ),
        (one("metadata.year", "gte", 0) + one("metadata.year", "lt", 1e30), {1, 3}),
    ],
)
def test_conditions_on_metadata_together(
    knowledge: Connection, filters: Any, found: set[int]
) -> None:
    store_alphas(knowledge, *({"metadata": metadata} for metadata in METADATA))
    assert passing(knowledge, filters) == found


# What is refused.

FIELDS = (
    "chunk_index, collection, created_at, document_date, document_id, embedding_model,"
    " knowledge_type, language, owner_id, sensitivity, source_id, source_origin, updated_at,"
    " visibility or metadata.<key>"
)
COMMON_OPS = "eq, ne, in, not_in, exists"
ORDERED_OPS = f"{COMMON_OPS}, gte, gt, lte, lt, between"


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        (1, "filters must be a JSON array of conditions or an object, not 1"),
        ("x", 'filters must be a JSON array of conditions or an object, not "x"'),
        ([[]], "filters[0] must be an object, not []"),
        ([{}], "filters[0].field is missing"),
        ([{"field": "collection"}], "filters[0].op is missing"),
        ([{"field": "collection", "op": "eq"}], "filters[0].value is missing"),
        (
            [{"field": "collection", "op": "eq", "operator": "eq", "value": "a"}],
            "filters[0] has both op and operator, give only one of them",
        ),
        (
            [{"field": "collection", "op": "eq", "values": ["a"]}],
            "filters[0] must have only the keys field, op (or operator) and value,"
            ' not {"values": ["a"]}',
        ),
        (one("content", "eq", "x"), f'filters[0].field must be one of {FIELDS}, not "content"'),
        (one("status", "eq", "x"), f'filters[0].field must be one of {FIELDS}, not "status"'),
        (
            [{"field": ["collection"], "op": "eq", "value": "a"}],
            f'filters[0].field must be one of {FIELDS}, not ["collection"]',
        ),
        (
            one("collection", "exists") + one("metadata.", "eq", 1),
            "filters[1].field must have 1 to 20 keys after metadata, none of them empty,"
            ' not "metadata."',
        ),
        (
            one("metadata" + 21 * ".a", "eq", 1),
            "filters[0].field must have 1 to 20 keys after metadata, none of them empty,"
            f' not "metadata{21 * ".a"}"',
        ),
        (
            one("collection", "like", "a"),
            f'filters[0].op must be one of {COMMON_OPS} for collection, not "like"',
        ),
        (
            one("collection", "gte", "a"),
            f'filters[0].op must be one of {COMMON_OPS} for collection, not "gte"',
        ),
        (
            one("owner_id", "contains", str(ME)),
            f'filters[0].op must be one of {COMMON_OPS} for owner_id, not "contains"',
        ),
        (
            one("chunk_index", "EQ", 1),
            f'filters[0].op must be one of {ORDERED_OPS} for chunk_index, not "EQ"',
        ),
        (
            one("metadata.a", "like", 1),
            f"filters[0].op must be one of {ORDERED_OPS}, contains, has_any for metadata.a,"
            ' not "like"',
        ),
        (
            [{"field": "collection", "op": None, "value": 1}],
            f"filters[0].op must be one of {COMMON_OPS} for collection, not null",
        ),
        (
            one("metadata", "eq", {}),
            'filters[0].op must be one of contains, has_any for metadata, not "eq"',
        ),
        (
            one("metadata", "contains", []),
            "filters[0].value for metadata must be an object, not []",
        ),
        (
            one("metadata.a", "contains", None),
            "filters[0].value for metadata.a must be a value, not null",
        ),
        (
            one("metadata.a", "gte", [1]),
            "filters[0].value for metadata.a must be a number or a string, not [1]",
        ),
        (
            one("metadata.a", "between", [1, "b"]),
            'filters[0].value for between must be [low, high], both of one type, not [1, "b"]',
        ),
        (
            one("document_date", "between", ["2026-01-31"]),
            "filters[0].value for between must be [low, high], both of one type, "
            'not ["2026-01-31"]',
        ),
        (
            one("collection", "in", "a"),
            'filters[0].value for in must be an array of at most 1000 values, not "a"',
        ),
        (
            one("collection", "in", ["a"] * 1001),
            "filters[0].value for in must be an array of at most 1000 values, not "
            + json.dumps(["a"] * 1001)[:100],
        ),
        (one("collection", "in", ["a"] * 900) * 3, "filters must have at most 2000 values in all"),
        (
            one("sensitivity", "exists", "yes"),
            'filters[0].value for exists must be true or false, not "yes"',
        ),
        (one("collection", "eq", 1), "filters[0].value for collection must be a string, not 1"),
        (
            one("collection", "in", ["a", ["b"]]),
            'filters[0].value[1] for collection must be a string, not ["b"]',
        ),
        (
            one("visibility", "ne", "hidden"),
            'filters[0].value for visibility must be one of private, public, not "hidden"',
        ),
        (
            one("source_origin", "eq", "fax"),
            "filters[0].value for source_origin must be one of email, json, leadworks, manual,"
            ' notion, obsidian, other, text, web, youtube, zoom, not "fax"',
        ),
        (
            one("document_id", "in", [str(ME), "me"]),
            'filters[0].value[1] for document_id must be a UUID, not "me"',
        ),
        *(
            (
                one("chunk_index", "eq", value),
                f"filters[0].value for chunk_index must be an integer, not {json.dumps(value)}",
            )
            for value in (1.5, 2147483648, -2147483649, "3", True, [1])
        ),
        *(
            (
                one("document_date", "gte", value),
                "filters[0].value for document_date must be an ISO date such as 2026-01-31,"
                f" not {json.dumps(value)}",
            )
            for value in (
                "soon",
                "now",
                "tomorrow",
                "infinity",
                "2026-02-30",
                "0000-01-01",
                "31.01.2026",
                "2026-1-31",
                "2026-01-31T00:00:00Z",
                "2026-01-31\n",
                20260131,
                None,
            )
        ),
        *(
            (
                one("created_at", "lt", value),
                "filters[0].value for created_at must be an ISO timestamp such as"
                f" 2026-01-31T12:00:00Z, not {json.dumps(value)}",
            )
            for value in (
                "-infinity",
                "2026-01-31T25:00:00",
                "2026-02-30T00:00:00",
                "2026-01-31T12:00:00+99:00",
                "2026-01-31T12:00:00 Europe/Berlin",
                "2026-01-31T12",
                1769860800,
            )
        ),
        (
            one("collection", "exists") * 101,
            "filters must have at most 100 conditions, not 101",
        ),
        ({str(number): 1 for number in range(101)}, "filters must have at most 100 keys, not 101"),
        (
            {"a": 1, "source_id": 7},
            "filters.source_id.value for source_id must be a UUID or the name of a source, not 7",
        ),
        (
            {"a": 1, "owner_id": "handbook"},
            'filters.owner_id.value for owner_id must be a UUID, not "handbook"',
        ),
        (
            one("metadata.tags", "has_any", "api"),
            'filters[0].value for has_any must be an array of at most 1000 values, not "api"',
        ),
        (
            one("metadata.tags", "has_any", ["api", 7]),
            "filters[0].value[1] for metadata.tags must be a string, not 7",
        ),
        (
            one("metadata.tags", "has_any", [None]),
            "filters[0].value[0] for metadata.tags must be a string, not null",
        ),
        (
            {"chunk_index": [1, 2]},
            "filters.chunk_index.value for chunk_index must be an integer, not [1, 2]",
        ),
        ({"a": nested(60)}, "filters must be nested less than 50 levels deep"),
    ],
)
def test_a_wrong_filter_is_refused_by_its_place(
    knowledge: Connection, filters: Any, message: str
) -> None:
    assert refused(knowledge, SEARCH, query_text="alpha", filters=Jsonb(filters)) == message


@pytest.mark.parametrize(
    ("value", "field", "message"),
    [
        ("1e400", "chunk_index", "filters[0].value for chunk_index must be an integer, not 1000"),
        (2000 * "[" + 2000 * "]", "metadata.a", "filters must be nested less than 50 levels deep"),
        (2000 * '{"a":' + "1" + 2000 * "}", "metadata.a", "filters must be nested less than 50"),
    ],
)
def test_a_value_that_python_does_not_write_is_refused(
    knowledge: Connection, value: str, field: str, message: str
) -> None:
    filters = f'[{{"field": "{field}", "op": "eq", "value": {value}}}]'
    told = refused(knowledge, SEARCH, query_text="alpha", filters=filters)
    assert told.startswith(message)


@pytest.mark.parametrize(
    ("field", "value"), [("x" * 100_000, 1), ("document_date", "x" * 100_000), ("chunk_index", [9])]
)
def test_a_refused_filter_is_cut_in_the_message(
    knowledge: Connection, field: str, value: Any
) -> None:
    filters = Jsonb(one(field, "eq", value))
    assert len(refused(knowledge, SEARCH, query_text="alpha", filters=filters)) < 400


def test_empty_filters_have_no_effect(knowledge: Connection) -> None:
    store_alphas(knowledge, {}, {})
    nothing: list[Any] = [None, [], {}]
    for filters in nothing:
        assert passing(knowledge, filters) == {1, 2}


@pytest.mark.parametrize(
    "text",
    [
        "'; drop table knowledge_chunks; --",
        '"} || true || {"',
        "$ ? (@ == 1)",
        "\\",
        "%s %% {0}",
        "{a,b}",
        "a,b\"'",
        "(,)",
        "null",
        "=",
        "\u202e",
        "\u00e9\U0001f408",
    ],
)
def test_names_and_values_are_data(knowledge: Connection, text: str) -> None:
    store_alphas(
        knowledge,
        {"collection": text, "sensitivity": text, "metadata": {text: {text: text, "list": [text]}}},
        {"collection": "other", "metadata": {"other": 1}},
    )
    path = f"metadata.{text}.{text}"
    for filters in (
        one("collection", "eq", text),
        one("collection", "in", [text, "another"]),
        one("collection", "not_in", ["other", "another"]),
        one("sensitivity", "eq", text),
        {text: {text: text, "list": [text]}},
        one(path, "eq", text),
        one(path, "in", [text, 1, []]),
        one(path, "in", [text, 1]),
        one(path, "gte", text),
        one(path, "between", [text, text]),
        one(path, "exists"),
        one(f"metadata.{text}.list", "contains", text),
    ):
        assert passing(knowledge, filters) == {1}
    assert passing(knowledge, one("collection", "ne", text)) == {2}
    assert passing(knowledge, one("sensitivity", "ne", text)) == {2}
    assert passing(knowledge, one(path, "not_in", [text])) == {2}


def test_the_largest_filter_is_answered(knowledge: Connection) -> None:
    store_alphas(knowledge, {"metadata": {"a": 1}}, {"metadata": {"a": "1000"}})
    listed = [*range(500), *map(str, range(500))]
    filters = one("metadata.a", "in", listed) + one("collection", "not_in", [*map(str, listed)])
    assert passing(knowledge, filters) == {1}
    for most in (100, 101):
        assert passing(knowledge, one("metadata.a", "in", listed[:most])) == {1}


# Indexes.


@pytest.fixture(scope="module")
def many(server: Server) -> Iterator[Connection]:
    """1,500 chunks of which a fiftieth is alike, in a database of their own."""
    for dsn in copy_of(server, server.template(3)):
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(
                "insert into public.knowledge_sources (id, name)"
                " select lpad(number::text, 32, '0')::uuid, number::text"
                " from generate_series(0, 49) as number"
            )
            connection.execute(
                "insert into public.knowledge_documents (id, external_key)"
                " values (lpad('7', 32, '0')::uuid, 'seven')"
            )
            connection.execute(
                "insert into public.knowledge_chunks"
                " (content, embedding, metadata, knowledge_type, source_origin, collection,"
                "  language, visibility, document_date, owner_id, source_id, document_id)"
                " select 'alpha', '[1,0,0]',"
                "        jsonb_build_object("
                "          'number', number, 'tags', jsonb_build_array('t' || group_of),"
                "          'team', jsonb_build_object('id', group_of)"
                "        ),"
                "        case group_of when 7 then 'task' else 'note' end,"
                "        case group_of when 7 then 'web' else 'manual' end,"
                "        'c' || group_of,"
                "        case group_of when 7 then 'german' else 'english' end,"
                "        case group_of when 7 then 'public' else 'private' end,"
                "        date '2026-01-01' + number % 300,"
                "        lpad(group_of::text, 32, '0')::uuid,"
                "        lpad(group_of::text, 32, '0')::uuid,"
                "        case when number = 7 then lpad('7', 32, '0')::uuid end"
                "   from (select number, number % 50 as group_of"
                "           from generate_series(0, 1499) as number) as numbered"
            )
            connection.execute("analyze public.knowledge_chunks")
            yield connection


def scans(connection: Connection) -> dict[str, int]:
    connection.execute("select pg_stat_force_next_flush()")
    return dict(
        connection.execute(
            "select replace(indexrelname, 'knowledge_chunks_', ''), idx_scan"
            " from pg_stat_user_indexes where relname = 'knowledge_chunks'"
        ).fetchall()
    )


SEVEN = f"{7:032}"


@pytest.mark.parametrize("query", [{"query_embedding": NORTH}, {"query_text": "alpha"}])
@pytest.mark.parametrize(
    ("index", "filters", "arguments"),
    [
        ("metadata", {"number": 7}, {}),
        ("metadata", one("metadata.team.id", "eq", 7), {}),
        ("metadata", one("metadata.tags", "eq", ["t7"]), {}),
        ("metadata", one("metadata.tags", "contains", "t7"), {}),
        ("metadata", one("metadata.tags", "contains", ["t7"]), {}),
        ("metadata", one("metadata", "contains", {"team": {"id": 7}}), {}),
        ("metadata", one("metadata.team.id", "in", [7, 100, "7"]), {}),
        ("metadata", one("metadata.number", "lt", 50) + one("metadata.team.id", "eq", 7), {}),
        ("document_date", one("document_date", "between", ["2026-01-08", "2026-01-09"]), {}),
        ("document_date", one("document_date", "gte", "2026-10-25"), {}),
        ("document_date", one("document_date", "in", ["2026-01-08", "2026-01-10"]), {}),
        ("document_date", None, {"date_to": "2026-01-03"}),
        ("knowledge_type", one("knowledge_type", "eq", "task"), {}),
        ("knowledge_type", one("knowledge_type", "in", ["task", "signal"]), {}),
        ("knowledge_type", None, {"filter_type": "task"}),
        ("collection or embedding_model", one("collection", "eq", "c7"), {}),
        ("language", one("language", "eq", "german"), {}),
        ("source_origin", one("source_origin", "in", ["web", "email"]), {}),
        ("source", one("source_id", "eq", SEVEN), {}),
        ("document", one("document_id", "eq", SEVEN), {}),
        ("owner", one("owner_id", "eq", SEVEN), {}),
        ("owner", None, {"viewer_id": UUID(SEVEN)}),
        ("visibility", one("visibility", "eq", "public"), {}),
        ("visibility", None, {"public_only": True}),
    ],
)
def test_an_index_finds_the_rows_that_pass(
    many: Connection,
    query: dict[str, Any],
    index: str,
    filters: Any,
    arguments: dict[str, Any],
) -> None:
    before = scans(many)
    found = search(many, **query, **arguments, filters=filters and Jsonb(filters))
    after = scans(many)
    assert found
    # The index on model and collection has the collections too, in each model.
    assert set(index.split(" or ")) & {name for name in after if after[name] > before[name]}


def test_excluding_few_or_most_chunks_leaves_the_others(many: Connection) -> None:
    many.execute("select public.refresh_knowledge_statistics()")
    names = [f"c{number}" for number in range(50)]
    for excluded, are_most in ((["c7"], False), ([name for name in names if name != "c7"], True)):
        assert many.execute(
            "select knowledge_internal.has_most_chunks(%s)", [excluded]
        ).fetchone() == (are_most,)
        others = Jsonb(one("collection", "not_in", excluded))
        for query in ({"query_embedding": NORTH}, {"query_text": "alpha"}):
            found = search(many, **query, match_count=20, filters=others)
            assert len(found) == 20
            assert not {row["collection"] for row in found} & set(excluded)


# Against a reference.

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
    "knowledge_type": st.sampled_from(["note", "task", "signal"]),
    "source_origin": st.sampled_from(["web", "email"]),
    "collection": st.sampled_from(["a", "A", "it's", "a=b", "collection"]),
    "language": st.sampled_from(["english", "german"]),
    "visibility": st.sampled_from(["private", "public"]),
    "sensitivity": st.sampled_from(["secret", "sensitivity", "=", ""]),
    "embedding_model": st.sampled_from(["small", "large"]),
    "document_id": st.sampled_from([str(one) for one in DOCUMENTS]),
    "source_id": st.sampled_from([str(one) for one in SOURCES]),
    "owner_id": st.sampled_from([str(ME), str(YOU)]),
    "chunk_index": st.sampled_from([0, 1, 2, 3, 2147483646, 2147483647]),
    "document_date": days,
    "created_at": moments,
    "updated_at": moments,
}
NULLABLE = {
    "sensitivity",
    "embedding_model",
    "document_id",
    "source_id",
    "owner_id",
    "chunk_index",
    "document_date",
}
ORDERED = {"chunk_index", "document_date", "created_at", "updated_at"}
OF_DOCUMENTS = COLUMN_VALUES.keys() - {
    "document_id",
    "chunk_index",
    "embedding_model",
    "created_at",
    "updated_at",
}

row_values = {
    field: st.none() | drawn if field in NULLABLE else drawn
    for field, drawn in COLUMN_VALUES.items()
} | {"metadata": st.dictionaries(st.sampled_from([*KEYS, "a.b"]), values, max_size=4)}
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
    field = draw(st.sampled_from([*COLUMN_VALUES, *["metadata"] * 14]))
    ops = ["eq", "ne", "in", "not_in", "exists"]
    if field in ORDERED or field == "metadata":
        ops += ["gte", "gt", "lte", "lt", "between"]
    if field == "metadata":
        drawn, bounds = values, texts | st.sampled_from([0, 1, 2.0, 2024])
        path = draw(st.sampled_from([[], *PATHS]))
        field = ".".join([field, *path])
        ops = [*ops, "contains", "contains", "has_any"] if path else ["contains", "has_any"]
    else:
        bounds = COLUMN_VALUES[field]
        drawn = st.none() | bounds
    op = draw(st.sampled_from(ops))
    condition: dict[str, Any] = {"field": field, draw(st.sampled_from(["op", "operator"])): op}
    if op == "exists":
        if draw(st.booleans()):
            condition["value"] = draw(st.booleans())
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
        condition["value"] = draw(drawn if op != "contains" else drawn.filter(is_value))
    return condition


shorthands = st.builds(
    dict[str, Any].__or__,
    st.dictionaries(st.sampled_from([*KEYS, "a.b", "", "metadata"]), values, max_size=2),
    st.fixed_dictionaries(
        {}, optional={name: st.none() | drawn for name, drawn in COLUMN_VALUES.items()}
    ).map(lambda columns: dict(list(columns.items())[:2])),
)


def is_value(value: Any) -> bool:
    return value is not None


def kind(value: Any) -> str:
    """Return the JSON type of a value; in Python, True is equal to 1."""
    if isinstance(value, bool):
        return "boolean"
    return "number" if isinstance(value, int | float) else type(value).__name__


def same(stored: Any, wanted: Any) -> bool:
    if kind(stored) != kind(wanted):
        return False
    if isinstance(stored, dict):
        return stored.keys() == wanted.keys() and all(
            same(stored[key], wanted[key]) for key in stored
        )
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


def value_of(row: dict[str, Any], path: list[str]) -> Any:
    value: Any = row
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def holds(row: dict[str, Any], condition: dict[str, Any]) -> bool:
    field = condition["field"]
    path = field.split(".")
    stored, wanted = value_of(row, path), condition.get("value", True)
    op = condition.get("op") or condition["operator"]
    if op == "exists":
        return (stored is not None) is wanted
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
    return {
        "gte": ordered(bound, stored) is True,
        "lte": ordered(stored, bound) is True,
        "gt": ordered(stored, bound) is False,
        "lt": ordered(bound, stored) is False,
    }[op]


STORE_DOCUMENTS = """
insert into public.knowledge_documents (
  id, external_key, knowledge_type, source_origin, collection, language, visibility, sensitivity,
  source_id, owner_id, document_date, metadata
)
select document.id, document.id::text, document.knowledge_type, document.source_origin,
       document.collection, document.language, document.visibility, document.sensitivity,
       document.source_id, document.owner_id, document.document_date, document.metadata
  from jsonb_populate_recordset(null::public.knowledge_documents, %s) as document
"""
STORE_CHUNKS = """
insert into public.knowledge_chunks (
  id, content, embedding, knowledge_type, source_origin, collection, language, visibility,
  sensitivity, embedding_model, document_id, source_id, owner_id, chunk_index, document_date,
  created_at, updated_at, metadata
)
select chunk.id, 'alpha', '[1,0,0]', chunk.knowledge_type, chunk.source_origin, chunk.collection,
       chunk.language, chunk.visibility, chunk.sensitivity, chunk.embedding_model,
       chunk.document_id, chunk.source_id, chunk.owner_id, chunk.chunk_index,
       chunk.document_date, chunk.created_at, chunk.updated_at, chunk.metadata
  from jsonb_populate_recordset(null::public.knowledge_chunks, %s) as chunk
returning id, knowledge_type, source_origin, collection, language, visibility, sensitivity,
          embedding_model, document_id, source_id, owner_id, chunk_index, document_date,
          created_at, updated_at, metadata
"""

# What a search of a large corpus does where few rows pass.
FOUND_BY_FILTER = """
select (knowledge_internal.with_found_rows(
         knowledge_internal.plan_search(1000, 1000, wanted, null, null, null), wanted,
         row('[1,0,0]', null, null)::knowledge_internal.search_question, null, null, null, true,
         false
       )).near_ids
  from knowledge_internal.compile_filter(
         %(filters)s, %(filter_type)s, %(date_from)s, %(date_to)s, %(public_only)s
       ) as wanted
"""


def check_against_the_reference(
    connection: Connection,
    corpus: tuple[tuple[dict[str, Any], ...], list[dict[str, Any]]],
    filters: list[Any],
    arguments: dict[str, Any],
) -> None:
    documents, chunks = corpus
    with connection.transaction(force_rollback=True), connection.cursor() as cursor:
        cursor.execute(
            STORE_DOCUMENTS,
            [
                Jsonb(
                    [{"id": str(key)} | row for key, row in zip(DOCUMENTS, documents, strict=True)]
                )
            ],
        )
        cursor.execute(
            STORE_CHUNKS,
            [Jsonb([{"id": str(chunk(number))} | row for number, row in enumerate(chunks, 1)])],
        )
        names = [column.name for column in cursor.description or ()]
        # A chunk has much of its document, so what is stored counts and not what was drawn.
        rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
        asked = [
            {"field": field, "op": op, "value": arguments[name]}
            for name, field, op in (
                ("filter_type", "knowledge_type", "eq"),
                ("date_from", "document_date", "gte"),
                ("date_to", "document_date", "lte"),
            )
            if arguments[name] is not None
        ]
        if arguments["public_only"]:
            asked.append({"field": "visibility", "op": "eq", "value": "public"})
        for one_filter in filters:
            if isinstance(one_filter, dict):
                expected = [
                    row
                    for row in rows
                    if all(
                        same(row[key], read(key, one_filter[key]))
                        if key in COLUMN_VALUES
                        else same(row["metadata"].get(key), one_filter[key])
                        for key in one_filter
                    )
                ]
            else:
                expected = [
                    row for row in rows if all(holds(row, condition) for condition in one_filter)
                ]
            expected = [
                row for row in expected if all(holds(row, condition) for condition in asked)
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
    st.lists(conditions(), min_size=1, max_size=4) | shorthands, min_size=3, max_size=3
)
drawn_arguments = st.fixed_dictionaries(
    {
        "filter_type": st.none() | COLUMN_VALUES["knowledge_type"],
        "date_from": st.none() | days,
        "date_to": st.none() | days,
        "public_only": st.booleans(),
    }
) | st.just({"filter_type": None, "date_from": None, "date_to": None, "public_only": False})
reference = settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture
def with_sources(knowledge: Connection) -> Connection:
    for number, source in enumerate(SOURCES):
        knowledge.execute(
            "insert into public.knowledge_sources (id, name) values (%s, %s)", [source, str(number)]
        )
    knowledge.execute("set local statement_timeout = 0")
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
