"""Filters: what each lets through, and which index finds it."""

from typing import Any
from uuid import UUID

import pytest
from filtering import ME, NOBODY, YOU, one, passing, store_alphas
from psycopg.types.json import Jsonb

from conftest import Connection

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
        "knowledge_type": "decision",
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
