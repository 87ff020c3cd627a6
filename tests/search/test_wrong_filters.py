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


# What is refused.

FIELDS = f"{', '.join(COLUMNS)} or metadata.<key>"
COMMON_OPS = "eq, ne, in, not_in, exists, is_null, is_not_null"
TEXT_OPS = f"{COMMON_OPS}, starts_with, contains_text"
ORDERED_OPS = f"{COMMON_OPS}, gte, gt, lte, lt, between"


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def within(groups: int) -> Any:
    filters: Any = {"a": 1}
    for _ in range(groups):
        filters = {"not": filters}
    return filters


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
            f'filters[0].op must be one of {TEXT_OPS} for collection, not "like"',
        ),
        (
            one("collection", "gte", "a"),
            f'filters[0].op must be one of {TEXT_OPS} for collection, not "gte"',
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
            f"filters[0].op must be one of {ORDERED_OPS}, starts_with, contains_text, contains,"
            ' has_any for metadata.a, not "like"',
        ),
        (
            [{"field": "collection", "op": None, "value": 1}],
            f"filters[0].op must be one of {TEXT_OPS} for collection, not null",
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
                "tomorrow",
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
        *(
            (
                {name: {"since": "2026-01-01"}},
                f"filters.{name}.value for {column} must be {form}, or in the short form a range"
                " with the keys from, start, gte, gt, to, end, lte, lt, not"
                ' {"since": "2026-01-01"}',
            )
            for name, column, form in (
                ("document_date", "document_date", "an ISO date such as 2026-01-31"),
                ("time_range", "document_date", "an ISO date such as 2026-01-31"),
                ("updated_at", "updated_at", "an ISO timestamp such as 2026-01-31T12:00:00Z"),
                ("chunk_index", "chunk_index", "an integer"),
            )
        ),
        (
            {"document_date": {"from": "soon"}},
            "filters.document_date.from.value for document_date must be an ISO date such as"
            ' 2026-01-31, not "soon"',
        ),
        (
            [{"team": "a"}, {"created_at": {"to": 7}}],
            "filters[1].created_at.to.value for created_at must be an ISO timestamp such as"
            " 2026-01-31T12:00:00Z, not 7",
        ),
        (
            {"artifact_type": "poem"},
            "filters.artifact_type.value for knowledge_type must be one of case_study,"
            " conversation, decision, document, note, playbook, signal, task, transcript,"
            ' not "poem"',
        ),
        (
            [{"team": "a"}, {"artifact_type": "note", "op": "eq"}],
            "filters[1] must have only the keys field, op (or operator) and value,"
            ' not {"artifact_type": "note"}',
        ),
        (
            one("time_range", "contains", ["2026-01-01"]),
            f'filters[0].op must be one of {ORDERED_OPS} for document_date, not "contains"',
        ),
        (
            [{str(number): 1 for number in range(60)}] * 2,
            "filters must have at most 100 conditions, not 120",
        ),
        (
            {"chunk_index": [1, 2]},
            "filters.chunk_index.value for chunk_index must be an integer, not [1, 2]",
        ),
        ({"a": nested(60)}, "filters must be nested less than 50 levels deep"),
        (
            [{"team": "a"}, {"any": [{"team": "b"}, {"not": one("id", "eq", 7)[0]}]}],
            "filters[1].any[1].not.value for id must be a UUID, not 7",
        ),
        ({"not": {}}, "filters.not must be a condition or a group, not {}"),
        ({"any": []}, "filters.any must be an array of one or more conditions, not []"),
        ({"any": "x"}, 'filters.any must be an array of one or more conditions, not "x"'),
        ({"not": [{"a": 1}]}, 'filters.not must be a condition or a group, not [{"a": 1}]'),
        ({"all": [{"a": 1}, 7]}, "filters.all[1] must be an object, not 7"),
        (
            {"any": [{"a": 1}, {"document_date": {"from": None}}]},
            "filters.any has an element without a condition",
        ),
        (within(11), f"filters{'.not' * 11} is in more than 9 groups"),
        ({"any": [{"a": 1}] * 100}, "filters must have at most 100 keys, not 101"),
        (one("language", "is_null", True), "filters[0] must have no value for is_null"),
        (
            one("language", "starts_with", 7),
            "filters[0].value for language must be a string, not 7",
        ),
        (
            one("external_key", "in", [7]),
            "filters[0].value[0] for external_key must be the key of a document, not 7",
        ),
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
    reported = refused(knowledge, SEARCH, query_text="alpha", filters=filters)
    assert reported.startswith(message)


@pytest.mark.parametrize(
    ("field", "value"), [("x" * 100_000, 1), ("document_date", "x" * 100_000), ("chunk_index", [9])]
)
def test_a_refused_filter_is_cut_in_the_message(
    knowledge: Connection, field: str, value: Any
) -> None:
    filters = Jsonb(one(field, "eq", value))
    assert len(refused(knowledge, SEARCH, query_text="alpha", filters=filters)) < 400
