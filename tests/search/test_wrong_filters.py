"""Filters that are refused: by place, with what is allowed."""

import json
from typing import Any

import pytest
from filtering import ME, one
from psycopg.types.json import Jsonb
from searching import refused

from conftest import Connection
from second_brain.filters import COLUMNS

SEARCH = "hybrid_search_knowledge_chunks"
FIELDS = f"field must be one of {', '.join(COLUMNS)} or metadata.<key>"
KEYS = "must have only the keys field, op (or operator) and value"
COMMON_OPS = "op must be one of eq, ne, in, not_in, exists, is_null, is_not_null"
TEXT_OPS = f"{COMMON_OPS}, starts_with, contains_text"
ORDERED_OPS = f"{COMMON_OPS}, gte, gt, lte, lt, between"
WORD_OPS = "op must be one of contains_text, has_all_words, has_any_word, has_no_word for text"
LIST = "must be an array of at most 1000 values"
GROUP = "must be an array of one or more conditions"
PAIR = "value for between must be [low, high], both of one type"
PATH = "field must have 1 to 20 keys after metadata, none of them empty"
DATE = "must be an ISO date such as 2026-01-31"
TIME = "must be an ISO timestamp such as 2026-01-31T12:00:00Z"
RANGE = ", or in the short form a range with the keys from, start, gte, gt, to, end, lte, lt"
TYPES = "must be one of conversation, decision, document, note, task, transcript"
ORIGINS = "must be one of email, json, manual, notion, obsidian, other, text, web, youtube, zoom"

# The message about the first condition ends with its field, its op or its value.
OF_A_FIELD = [
    *[(field, FIELDS) for field in ("content", "status", ["collection"], "x")],
    *[(field, PATH) for field in ("metadata.", "metadata" + 21 * ".a")],
]
OF_AN_OP = [
    *[("collection", op, f"{TEXT_OPS} for collection") for op in ("like", "gte", None)],
    ("owner_id", "contains", f"{COMMON_OPS} for owner_id"),
    ("chunk_index", "EQ", f"{ORDERED_OPS} for chunk_index"),
    ("time_range", "contains", f"{ORDERED_OPS} for document_date"),
    ("language", "has_no_word", f"{TEXT_OPS} for language"),
    *[("metadata", "eq", "op must be one of contains, has_any for metadata")],
    (
        "metadata.a",
        "like",
        f"{ORDERED_OPS}, starts_with, contains_text, contains, has_any for metadata.a",
    ),
    ("text", "eq", WORD_OPS),
]
OF_A_VALUE = [
    ("metadata", "contains", [], "value for metadata must be an object"),
    ("metadata.a", "contains", None, "value for metadata.a must be a value"),
    ("metadata.a", "gte", [1], "value for metadata.a must be a number or a string"),
    ("metadata.a", "between", [1, "b"], PAIR),
    ("document_date", "between", ["2026-01-31"], PAIR),
    ("collection", "in", "a", f"value for in {LIST}"),
    ("metadata.tags", "has_any", "api", f"value for has_any {LIST}"),
    ("text", "has_no_word", "draft", f"value for has_no_word {LIST}"),
    ("sensitivity", "exists", "yes", "value for exists must be true or false"),
    ("collection", "eq", 1, "value for collection must be a string"),
    ("language", "starts_with", 7, "value for language must be a string"),
    ("visibility", "ne", "hidden", "value for visibility must be one of private, public"),
    ("source_origin", "eq", "fax", f"value for source_origin {ORIGINS}"),
    *[
        ("chunk_index", "eq", value, "value for chunk_index must be an integer")
        for value in (1.5, 2147483648, -2147483649, "3", True, [1])
    ],
    *[
        ("document_date", "gte", value, f"value for document_date {DATE}")
        for value in (
            "soon",
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
    ],
    *[
        ("created_at", "lt", value, f"value for created_at {TIME}")
        for value in (
            "-infinity",
            "2026-01-31T25:00:00",
            "2026-02-30T00:00:00",
            "2026-01-31T12",
            "2026-01-31T12:00:00+99:00",
            "2026-01-31T12:00:00 Europe/Berlin",
            1769860800,
        )
    ],
]
# The message ends with the last of a list.
OF_AN_ELEMENT: list[tuple[str, str, list[Any], str]] = [
    ("collection", "in", ["a", ["b"]], "collection must be a string"),
    ("document_id", "in", [str(ME), "me"], "document_id must be a UUID"),
    ("metadata.tags", "has_any", ["api", 7], "metadata.tags must be a string"),
    ("metadata.tags", "has_any", [None], "metadata.tags must be a string"),
    ("text", "has_no_word", [1], "text must be a string"),
    ("external_key", "in", [7], "external_key must be the key of a document"),
]
SINCE = {"since": "2026-01-01"}


def within(groups: int) -> Any:
    return {"not": within(groups - 1)} if groups else {"a": 1}


def nested(depth: int) -> Any:
    return [nested(depth - 1)] if depth else 1


OF_THE_WHOLE: list[tuple[Any, str]] = [
    (1, "filters must be a JSON array of conditions or an object, not 1"),
    ("x", 'filters must be a JSON array of conditions or an object, not "x"'),
    ([[]], "filters[0] must be an object, not []"),
    ([None], "filters[0] must be an object, not null"),
    *[([row], "filters[0].field is missing") for row in ({}, {"op": "eq"}, {"value": 1})],
    ([{"field": "collection"}], "filters[0].op is missing"),
    (one("collection", "eq"), "filters[0].value is missing"),
    (one("text", "has_no_word"), "filters[0].value is missing"),
    (one("language", "is_null", True), "filters[0] must have no value for is_null"),
    (
        [one("collection", "eq", "a")[0] | {"operator": "eq"}],
        "filters[0] has both op and operator, give only one of them",
    ),
    ([one("collection", "eq")[0] | {"values": [1]}], f'filters[0] {KEYS}, not {{"values": [1]}}'),
    (
        [{"team": "a"}, {"artifact_type": "note", "op": "eq"}],
        f'filters[1] {KEYS}, not {{"artifact_type": "note"}}',
    ),
    (
        one("collection", "exists") + one("metadata.", "eq", 1),
        f'filters[1].{PATH}, not "metadata."',
    ),
    (
        one("collection", "in", ["a"] * 1001),
        f"filters[0].value for in {LIST}, not {json.dumps(['a'] * 1001)[:100]}",
    ),
    (one("collection", "in", ["a"] * 900) * 3, "filters must have at most 2000 values in all"),
    (one("collection", "exists") * 101, "filters must have at most 100 conditions, not 101"),
    ({str(n): 1 for n in range(101)}, "filters must have at most 100 keys, not 101"),
    ([{str(n): 1 for n in range(60)}] * 2, "filters must have at most 100 conditions, not 120"),
    ({"any": [{"a": 1}] * 100}, "filters must have at most 100 keys, not 101"),
    ({"a": nested(60)}, "filters must be nested less than 50 levels deep"),
    (within(11), f"filters{'.not' * 11} is in more than 9 groups"),
    (
        {"a": 1, "source_id": 7},
        "filters.source_id.value for source_id must be a UUID or the name of a source, not 7",
    ),
    (
        {"a": 1, "owner_id": "handbook"},
        'filters.owner_id.value for owner_id must be a UUID, not "handbook"',
    ),
    *[
        (
            {name: SINCE},
            f"filters.{name}.value for {column} {form}{RANGE}, not {json.dumps(SINCE)}",
        )
        for name, column, form in (
            ("time_range", "document_date", DATE),
            ("updated_at", "updated_at", TIME),
            ("chunk_index", "chunk_index", "must be an integer"),
        )
    ],
    (
        {"document_date": {"from": "soon"}},
        f'filters.document_date.from.value for document_date {DATE}, not "soon"',
    ),
    (
        [{"team": "a"}, {"created_at": {"to": 7}}],
        f"filters[1].created_at.to.value for created_at {TIME}, not 7",
    ),
    (
        {"artifact_type": "poem"},
        f'filters.artifact_type.value for knowledge_type {TYPES}, not "poem"',
    ),
    (
        {"chunk_index": [1, 2]},
        "filters.chunk_index.value for chunk_index must be an integer, not [1, 2]",
    ),
    (
        [{"team": "a"}, {"any": [{"team": "b"}, {"not": one("id", "eq", 7)[0]}]}],
        "filters[1].any[1].not.value for id must be a UUID, not 7",
    ),
    ({"not": {}}, "filters.not must be a condition or a group, not {}"),
    ({"not": [{"a": 1}]}, 'filters.not must be a condition or a group, not [{"a": 1}]'),
    ({"any": []}, f"filters.any {GROUP}, not []"),
    ({"any": "x"}, f'filters.any {GROUP}, not "x"'),
    ({"all": [{"a": 1}, 7]}, "filters.all[1] must be an object, not 7"),
    (
        {"any": [{"a": 1}, {"document_date": {"from": None}}]},
        "filters.any has an element without a condition",
    ),
]


def test_a_wrong_filter_is_refused_by_its_place(knowledge: Connection) -> None:
    wrong: list[tuple[Any, str]] = [*OF_THE_WHOLE]
    wrong += [
        (one(field, "eq", 1), f"filters[0].{rule}, not {json.dumps(field)}")  # type: ignore[arg-type]
        for field, rule in OF_A_FIELD
    ]
    wrong += [
        ([{"field": field, "op": op, "value": 1}], f"filters[0].{rule}, not {json.dumps(op)}")
        for field, op, rule in OF_AN_OP
    ]
    wrong += [
        (one(field, op, value), f"filters[0].{rule}, not {json.dumps(value)}")
        for field, op, value, rule in OF_A_VALUE
    ]
    for field, op, listed, rule in OF_AN_ELEMENT:
        place = f"filters[0].value[{len(listed) - 1}]"
        wrong.append((one(field, op, listed), f"{place} for {rule}, not {json.dumps(listed[-1])}"))
    asked = [
        (filters, refused(knowledge, SEARCH, query_text="alpha", filters=Jsonb(filters)))
        for filters, _ in wrong
    ]
    assert asked == wrong


@pytest.mark.parametrize(
    ("value", "field", "message"),
    [
        ("1e400", "chunk_index", "filters[0].value for chunk_index must be an integer, not 1000"),
        (2000 * "[" + 2000 * "]", "metadata.a", "filters must be nested less than 50 levels deep"),
        (2000 * '{"a":' + "1" + 2000 * "}", "metadata.a", "filters must be nested less than 50"),
    ],
    ids=["number", "arrays", "objects"],
)
def test_a_value_that_python_does_not_write_is_refused(
    knowledge: Connection, value: str, field: str, message: str
) -> None:
    filters = f'[{{"field": "{field}", "op": "eq", "value": {value}}}]'
    reported = refused(knowledge, SEARCH, query_text="alpha", filters=filters)
    assert reported.startswith(message)


@pytest.mark.parametrize(("field", "value"), [("x" * 100_000, 1), ("document_date", "x" * 100_000)])
def test_a_refused_filter_is_cut_in_the_message(
    knowledge: Connection, field: str, value: Any
) -> None:
    filters = Jsonb(one(field, "eq", value))
    assert len(refused(knowledge, SEARCH, query_text="alpha", filters=filters)) < 400
