"""Filters as Python values, and providers that refuse a search without a viewer."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from types import MappingProxyType
from typing import Any
from uuid import UUID

import numpy as np
import pytest

from conftest import Connection
from corpora import store_document
from second_brain.errors import InvalidInputError
from second_brain.filters import FilterBuilder, FilterExpression, Filters, conditions
from second_brain.services.postgres import PostgresProvider
from second_brain.services.supabase import SupabaseProvider
from support.emptied import dsn as dsn

OWNER = UUID("00000000-0000-0000-0000-00000000000a")


CAIRO = timezone(timedelta(hours=2))


class Kind(Enum):
    """Stands for an application's own enum."""

    NOTE = "note"


def condition(field: str, op: str, value: object) -> dict[str, object]:
    return {"field": field, "op": op, "value": value}


def built(add: Callable[[FilterBuilder], FilterBuilder]) -> list[tuple[Any, ...]]:
    listed: Any = conditions(add(FilterBuilder()))
    return [(one["field"], one["op"], one["value"]) for one in listed]


@pytest.mark.parametrize(
    ("add", "expected"),
    [
        (lambda one: one.add_category("note"), ("knowledge_type", "eq", "note")),
        (
            lambda one: one.add_category("billing", field="metadata.category"),
            ("metadata.category", "eq", "billing"),
        ),
        (lambda one: one.add_source("notion", "web"), ("source_origin", "in", ["notion", "web"])),
        (
            lambda one: one.add_source_category("wiki", ["chat"]),
            ("metadata.source_category", "in", ["wiki", "chat"]),
        ),
        (lambda one: one.add_source_file("a.md"), ("metadata.source_file", "eq", "a.md")),
        (lambda one: one.add_tags(["a", "b"]), ("metadata.tags", "contains", ["a", "b"])),
        # Not the letters of the tag.
        (lambda one: one.add_tags("api", field="metadata.x"), ("metadata.x", "contains", ["api"])),
        (lambda one: one.add_tags([]), None),
        (lambda one: one.add_any(["a", "b"]), ("metadata.tags", "has_any", ["a", "b"])),
        (lambda one: one.add_any("draft", field="metadata"), ("metadata", "has_any", ["draft"])),
        (
            lambda one: one.add_date_range(date(2026, 1, 1), date(2026, 1, 31)),
            ("document_date", "between", ["2026-01-01", "2026-01-31"]),
        ),
        (
            lambda one: one.add_date_range(date(2026, 1, 1), None),
            ("document_date", "gte", "2026-01-01"),
        ),
        (lambda one: one.add_date_range(None, "2026-1-31"), ("document_date", "lte", "2026-1-31")),
        (lambda one: one.add_date_range(None, None), None),
        (lambda one: one.add_metadata("team.name", "x"), ("metadata.team.name", "eq", "x")),
        (
            lambda one: one.exclude_sensitivity("secret", "restricted"),
            ("sensitivity", "not_in", ["secret", "restricted"]),
        ),
        (lambda one: one.add("chunk_index", "lt", 3), ("chunk_index", "lt", 3)),
        (lambda one: one.add_words(required=["a b"]), ("text", "has_all_words", ["a b"])),
        (lambda one: one.add_words(excluded="draft"), ("text", "has_no_word", ["draft"])),
        (lambda one: one.add_words(), None),
    ],
)
def test_each_method_of_a_builder_adds_its_condition(
    add: Callable[[FilterBuilder], FilterBuilder], expected: tuple[Any, ...] | None
) -> None:
    first, *added = built(lambda one: add(one.add("language", "eq", "german")))
    assert first == ("language", "eq", "german")
    assert added == ([] if expected is None else [expected])


def test_a_category_without_a_name_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="knowledge_type"):
        FilterBuilder().add_category()


@pytest.mark.parametrize("end", [date(2026, 1, 31), "2026-01-31"])
def test_a_range_of_times_ends_with_the_whole_last_day(end: date | str) -> None:
    assert built(lambda one: one.add_date_range("2026-01-01", end, field="created_at")) == [
        ("created_at", "lt", "2026-02-01"),
        ("created_at", "gte", "2026-01-01"),
    ]


def test_what_was_built_does_not_grow_with_the_builder() -> None:
    builder = FilterBuilder().add_category("note")
    first = builder.build()
    builder.add_tags("api")
    assert first == [FilterExpression("knowledge_type", "eq", "note")]


def test_a_value_that_is_left_out_is_left_to_the_database() -> None:
    left_out = FilterExpression("owner_id", "exists")
    assert conditions([left_out, FilterExpression("owner_id", "eq", None)]) == [
        {"field": "owner_id", "op": "exists"},
        condition("owner_id", "eq", None),
    ]


@pytest.mark.parametrize(
    ("value", "form"),
    [
        (date(2026, 1, 31), "2026-01-31"),
        (datetime(2026, 1, 31, 12, tzinfo=UTC), "2026-01-31T12:00:00+00:00"),
        (datetime(2026, 1, 31, 12, tzinfo=CAIRO), "2026-01-31T10:00:00+00:00"),
        (datetime(2026, 1, 31, 12), "2026-01-31T12:00:00"),
        (OWNER, str(OWNER)),
        (Kind.NOTE, "note"),
        ((1, 2), [1, 2]),
        ({"only"}, ["only"]),
        (frozenset({OWNER}), [str(OWNER)]),
        (np.array([1, 2]), [1, 2]),
        (np.float32(0.5), 0.5),
        (Decimal("19.99"), 19.99),
        (MappingProxyType({"a": (OWNER,)}), {"a": [str(OWNER)]}),
        ("'; drop table x; --", "'; drop table x; --"),
    ],
    ids=repr,
)
def test_a_value_takes_its_json_form(value: object, form: object) -> None:
    assert FilterExpression("metadata.a", "eq", value).condition()["value"] == form
    assert conditions([condition("metadata.a", "eq", value)]) == [
        condition("metadata.a", "eq", form)
    ]
    assert conditions({"a": value}) == {"a": form}


NESTED: list[object] = []
for _ in range(100_000):
    NESTED = [NESTED]


@pytest.mark.parametrize(
    "value",
    [
        object(),
        b"bytes",
        float("nan"),
        float("inf"),
        Decimal("0.1234567890123456789"),
        "\ud800",
        {(1, 2): "a"},
        NESTED,
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_without_a_json_form_is_refused_by_name(value: object) -> None:
    with pytest.raises(InvalidInputError, match=r"^filters: the value for metadata\.price"):
        FilterExpression("metadata.price", "eq", value).condition()
    with pytest.raises(InvalidInputError, match=r"^filters\[1\]"):
        conditions([FilterExpression("language", "exists"), condition("language", "eq", value)])
    with pytest.raises(InvalidInputError, match=r"^filters"):
        conditions({"price": value})


@pytest.mark.parametrize("operator", ["like", "EQ", "", "=", ["eq"]])
def test_an_unknown_operator_is_refused_where_it_is_written(operator: Any) -> None:
    named = "filters.op must be one of eq, ne, in, .*exists.*, not "
    with pytest.raises(ValueError, match=named):
        FilterExpression("language", operator, "a")
    with pytest.raises(InvalidInputError, match=named):
        FilterBuilder().add("language", operator, "a")


OF_API = {"field": "metadata.tags", "operator": "contains", "value": "api"}


@pytest.fixture
def library(service_role: Connection) -> Connection:
    """Hold a public note, a decision of OWNER's and somebody else's task."""
    documents: dict[str, dict[str, Any]] = {
        "note": {"visibility": "public", "metadata": {"tags": ["api", "docs"], "team": "search"}},
        "decision": {"owner_id": OWNER, "document_date": date(2026, 1, 31)},
        "task": {"owner_id": UUID(int=1), "metadata": {"tags": ["api"]}},
    }
    for key, document in documents.items():
        chunk = {f"zebra {key}": [1, 0, 0]}
        store_document(service_role, key, chunk, knowledge_type=key, **document)
    return service_role


def contents(hits: list[Any]) -> set[str]:
    return {hit.content.removeprefix("zebra ") for hit in hits}


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        (FilterExpression("metadata.tags", "contains", ["api"]), {"note", "task"}),
        ([FilterExpression("metadata.tags", "contains", ["docs"])], {"note"}),
        (FilterBuilder().add_category("note", "task").add_tags("docs"), {"note"}),
        (FilterBuilder().add_date_range(date(2026, 1, 1), None).build(), {"decision"}),
        ([FilterExpression("owner_id", "exists"), OF_API], {"task"}),
        ({"team": "search"}, {"note"}),
        ({"owner_id": OWNER, "document_date": date(2026, 1, 31)}, {"decision"}),
        ({"visibility": "public", "team": "search"}, {"note"}),
        (({"field": "owner_id", "op": "eq", "value": OWNER},), {"decision"}),
        ({}, {"note", "decision", "task"}),
    ],
)
def test_every_form_of_filters_narrows_both_legs(
    library: Connection, filters: Filters, found: set[str]
) -> None:
    provider = PostgresProvider(library, on_error="empty")
    for embedding, text in (([1, 0, 0], None), (None, "zebra"), ([1, 0, 0], "zebra")):
        hits, details = provider.hybrid_search(embedding, text, filters=filters)
        assert "fallback_reason" not in details, details
        assert contents(hits) == found


@pytest.mark.parametrize(
    "filters",
    [
        {"artifact_type": "note"},
        [condition("artifact_type", "eq", "note")],
        {"document_date": {"from": "2026-01-01", "to": None}, "team": "search"},
        [{"a.b": [1], "": True}, condition("language", "like", "a")],
        {"created_at": {"since": "2026-01-01"}},
        [condition("team", "eq", "a"), {"fields": 7}],
    ],
)
def test_the_language_of_filters_is_the_databases(filters: Any) -> None:
    assert conditions(filters) == filters


ASKS: dict[str, Callable[[Any], tuple[Any, Any]]] = {
    "hybrid_search": lambda provider: provider.hybrid_search([1, 0, 0], "zebra"),
    "public_only is False": lambda one: one.hybrid_search(None, "zebra", public_only=False),
    "public_only is a text": lambda one: one.hybrid_search(None, "zebra", public_only="false"),
    "empty array": lambda one: one.hybrid_search(None, "zebra", viewer_id=np.array(None)),
    "search": lambda provider: provider.search([1, 0, 0]),
    "fulltext_search": lambda provider: provider.fulltext_search("zebra"),
    "batch": lambda provider: provider.hybrid_search_batch([{"query_text": "zebra"}]),
    "second of a batch": lambda provider: provider.hybrid_search_batch(
        [{"query_text": "zebra", "viewer_id": OWNER}, {"query_text": "zebra"}]
    ),
}

# Nobody listens there: what is refused as invalid input was not sent.
NOWHERE = "postgresql://someone@127.0.0.1:1/nosuch"


@pytest.mark.parametrize("ask", ASKS.values(), ids=ASKS)
@pytest.mark.parametrize(
    "provider",
    [
        PostgresProvider(NOWHERE, multi_tenant=True, on_error="empty"),
        SupabaseProvider(
            {"supabase_url": "http://127.0.0.1:1", "supabase_key": "key"}, multi_tenant=True
        ),
    ],
    ids=["postgres", "supabase"],
)
def test_a_multi_tenant_provider_sends_nothing_without_a_viewer(
    provider: Any, ask: Callable[[Any], tuple[Any, Any]]
) -> None:
    hits, details = ask(provider)
    assert not any(hits)
    assert (details["real_provider"], details["error_kind"]) == (False, "invalid_input")
    assert "viewer_id" in details["error_message"]
    assert "public_only=True" in details["remedy"]


def test_a_multi_tenant_provider_explains_nothing_without_a_viewer() -> None:
    provider = PostgresProvider(NOWHERE, multi_tenant=True, on_error="empty")
    with pytest.raises(InvalidInputError, match="viewer_id"):
        provider.explain_hybrid_search(None, "zebra")


@pytest.mark.module("batch")
@pytest.mark.parametrize(
    ("viewer", "expected"),
    [
        ({"viewer_id": OWNER}, {"note", "decision"}),
        ({"viewer_id": str(OWNER)}, {"note", "decision"}),
        ({"public_only": True}, {"note"}),
        ({"viewer_groups": ["staff"]}, {"note", "task"}),
        ({"viewer_groups": ()}, {"note"}),
    ],
    ids=["user", "user as a text", "public", "groups", "no group"],
)
def test_every_search_of_a_multi_tenant_provider_answers_a_viewer(
    library: Connection, viewer: Any, expected: set[str]
) -> None:
    library.execute(
        "update public.knowledge_chunks set allowed_groups = '{staff}' where content = 'zebra task'"
    )
    provider = PostgresProvider(library, multi_tenant=True, on_error="empty")
    for hits, details in (
        provider.hybrid_search(None, "zebra", exact_total=True, **viewer),
        provider.find(None, "zebra", **viewer),
        provider.search([1, 0, 0], **viewer),
        provider.fulltext_search("zebra", **viewer),
    ):
        assert contents(hits) == expected
        assert details.get("exact_total", len(hits)) == len(hits)
    asked: Any = [{"query_text": "zebra", **viewer}, {"query_text": "x", **viewer}]
    answers, _ = provider.hybrid_search_batch(asked)
    assert [contents(hits) for hits in answers] == [expected, set()]


def test_a_single_leg_for_a_viewer_is_that_leg(library: Connection) -> None:
    provider = PostgresProvider(library, multi_tenant=True, on_error="empty")
    hits, details = provider.search([1, 0, 0], viewer_id=OWNER)
    assert details["mode"] == "vector"
    assert [hit.confidence for hit in hits] == pytest.approx([1, 1])
    # As without a viewer, but for what the other function does not return.
    (alone,), _ = PostgresProvider(library, on_error="empty").fulltext_search("note")
    (seen,), details = provider.fulltext_search("note", viewer_id=OWNER)
    assert (details["mode"], seen.confidence) == ("fulltext", 1)
    assert replace(seen, metadata={}) == replace(alone, metadata={})
