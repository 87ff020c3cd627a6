"""What the search does not read of a call is refused, or in the notes."""

from typing import Any

import pytest
from psycopg import errors
from searching import numbers, search, store

from conftest import Connection


@pytest.mark.parametrize(
    "given",
    [
        {"from": "2024-01-01"},
        {"from": "2024-01-01", "to": "2024-12-31"},
        {"start": "2024-01-01", "end": "2025-01-01"},
        {"after": "2024-01-01"},
        {"min": 1, "max": 9},
        {"From": "2024-01-01", "inclusive": True},
        {"date_from": "2024-01-01"},
        {"b": {"from": "2024-01-01"}},
        {">=": 1},
        {"greater_than": 1},
        {"is_null": True},
        {"exists": True},
        {"any": [5]},
    ],
)
def test_a_range_of_a_key_of_metadata_is_refused(
    knowledge: Connection, given: dict[str, Any]
) -> None:
    store(knowledge, {"content": "alpha", "metadata": {"held": "2024-04-01"}})
    for filters in ({"held": given}, [{"field": "metadata.held", "op": "eq", "value": given}]):
        with (
            pytest.raises(
                errors.InvalidParameterValue,
                match=r"^filters.* has .*, which is no operator here",
            ),
            knowledge.transaction(),
        ):
            search(knowledge, query_text="alpha", filters=filters)


@pytest.mark.parametrize("group", ["or", "and", "must", "MUST_NOT", "should"])
def test_a_group_of_another_system_is_refused(knowledge: Connection, group: str) -> None:
    store(knowledge, {"content": "alpha", "metadata": {"n": 5, "or": "x"}})
    with pytest.raises(errors.InvalidParameterValue, match=group), knowledge.transaction():
        search(knowledge, query_text="alpha", filters={group: [{"n": 5}]})
    assert numbers(search(knowledge, query_text="alpha", filters={"or": "x"})) == [1]


def test_an_object_with_other_keys_is_a_value(knowledge: Connection) -> None:
    trip = {"from": "Paris", "line": 4}
    store(knowledge, {"content": "alpha", "metadata": {"trip": trip}}, "alpha")
    assert numbers(search(knowledge, query_text="alpha", filters={"trip": trip})) == [1]


@pytest.mark.parametrize("key", ["to", "end"])
def test_today_is_a_whole_day_at_the_end_of_a_range(knowledge: Connection, key: str) -> None:
    store(knowledge, "alpha")
    for filters in (
        {"created_at": {key: "today"}},
        {"created_at": {"from": "today", key: "today"}},
    ):
        assert numbers(search(knowledge, query_text="alpha", filters=filters)) == [1]


@pytest.mark.module("arrange")
@pytest.mark.parametrize(
    "order",
    [
        "metadata.likes desc, document_date asc",
        "metadata.likes, document_date",
        "document_date desc,created_at",
        "metadata.n descending",
        "metadata.n;metadata.b",
        "metadata.n and metadata.b",
        "metadata.n|asc",
        "document_date, metadata.likes desc",
        "metadata.a asc, metadata.b asc, metadata.c",
    ],
)
def test_an_order_of_several_keys_is_refused(knowledge: Connection, order: str) -> None:
    store(knowledge, "alpha")
    with pytest.raises(errors.InvalidParameterValue, match="order_by"):
        search(knowledge, query_text="alpha", order_by=order)


TEXTS = ("reset the login password", "login page", "login by SSO", "hotel all inclusive")


@pytest.mark.parametrize(
    ("query", "notes"),
    [
        ("login NOT password", {"ignored": ["NOT"]}),
        ("login AND NOT password", {"ignored": ["AND", "NOT"]}),
        ("login NOT(password)", {"ignored": ["NOT"]}),
        ("-(SSO OR password) login", {"ignored": ["-("]}),
        ("login !password", {"ignored": ["!"]}),
        ("+login +page", {"ignored": ["+"]}),
        ("login && page", {"ignored": ["&&"]}),
        ("login | page", {"ignored": ["|"]}),
        ("login ANDNOT page", {"ignored": ["ANDNOT"]}),
        ("login -[page]", {"ignored": ["-["]}),
        ("login NEAR/3 page", {"ignored": ["NEAR/3"]}),
        ("login price:>10", {"ignored": ["price:"]}),
        ("logi* login", {"ignored": ["*"]}),
        ("login^2 page", {"ignored": ["^2"]}),
        ("login~ page~1", {"ignored": ["~", "~1"]}),
        ("title:login from:pat", {"ignored": ["from:", "title:"]}),
        ("hotel -all", {"dropped": ["-all"]}),
        ('login -"the of" page', {"dropped": ['-"the of"']}),
        ("login page " + "x" * 5000, {"ignored": ["what follows 4096 characters"]}),
        ("login page " * 300, {"ignored": ["what follows 512 words"]}),
        ("login not password", None),
        ("login & page, C++ and 5*3", None),
        ("login HEAD~3 std::title x^2 + y", None),
        ("How do I reset a password that is NOT of a login page?", None),
    ],
)
def test_an_operator_or_an_end_that_is_not_read_is_in_the_notes(
    knowledge: Connection, query: str, notes: dict[str, list[str]] | None
) -> None:
    store(knowledge, *TEXTS)
    rows = search(knowledge, query_text=query)
    assert rows
    assert all(row["notes"] == notes for row in rows)
