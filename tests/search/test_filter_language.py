"""The language of filters has one home: names of earlier systems, ranges and short forms in SQL."""

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
from filtering import ME, YOU, check_filters, passing, store_alphas
from hypothesis import given
from hypothesis import strategies as st
from psycopg.types.json import Jsonb
from searching import NORTH, answer, call, chunk, numbers

from conftest import Connection
from support.properties import tried

ROWS: list[dict[str, Any]] = [
    {"knowledge_type": "note", "document_date": "2026-01-01", "metadata": {"document_type": "md"}},
    {"knowledge_type": "task", "document_date": "2026-01-31", "metadata": {"document_type": "pdf"}},
    {"owner_id": ME, "chunk_index": 3, "metadata": {"document_type": "markdown", "a.b": [1]}},
    {"owner_id": YOU, "chunk_index": 7, "metadata": {"source_file": "a.md", "team": "search"}},
    {
        "document_date": "2026-02-01",
        "metadata": {"source_category": "wiki", "document_type": "txt"},
    },
    {"created_at": "2026-01-31T23:59:59.999999Z", "metadata": {"document_type": "html"}},
    {"created_at": "2026-02-01T00:00:00Z", "metadata": {"": True, "author": {"from": 1}}},
]


@pytest.fixture(scope="module")
def rows(shared: Connection) -> Iterator[Connection]:
    with shared.transaction(force_rollback=True):
        store_alphas(shared, *ROWS)
        yield shared


LATER = "2027-01-01"


def condition(field: str, op: str, *value: Any) -> dict[str, Any]:
    return {"field": field, "op": op} | ({"value": value[0]} if value else {})


def test_a_filter_has_names_of_earlier_systems_ranges_and_short_forms(rows: Connection) -> None:
    check_filters(
        rows,
        [
            ({"artifact_type": "note"}, {1}),
            ([condition("artifact_type", "in", ["note", "task"])], {1, 2}),
            ({"document_type": "pdf"}, {2}),
            ({"document_type": "md"}, {1, 3}),
            ([condition("document_type", "in", ["text", "htm", "pdf"])], {2, 5, 6}),
            (
                [{"field": "document_type", "operator": "not_in", "value": ["md", "text"]}],
                {2, 4, 6, 7},
            ),
            ([condition("document_type", "ne", "htm")], {1, 2, 3, 4, 5, 7}),
            ([condition("document_type", "exists", False)], {4, 7}),
            # By its own name, a key of metadata has the values that are stored.
            ([condition("metadata.document_type", "eq", "md")], {1}),
            ({"source_file": "a.md"}, {4}),
            ([condition("source_category", "eq", "wiki")], {5}),
            ([condition("time_range", "between", ["2026-01-01", "2026-01-31"])], {1, 2}),
            ([condition("date_range", "gt", "2026-01-01")], {2, 5}),
            ({"document_date": {"from": "2026-01-01", "to": "2026-01-31"}}, {1, 2}),
            ({"document_date": {"start": "2026-01-02", "end": None}}, {2, 5}),
            ({"time_range": {"gt": "2026-01-01", "lt": "2026-02-01"}}, {2}),
            ({"date_range": {"gte": "2026-01-31"}, "document_type": "pdf"}, {2}),
            ({"chunk_index": {"lt": 7, "from": 3}}, {3}),
            # A day is a whole one at the end of a range of times, for from and to.
            ({"created_at": {"from": "2026-01-31", "to": "2026-01-31"}}, {6}),
            ({"created_at": {"from": "2026-01-31", "end": "2026-02-01"}}, {6, 7}),
            ({"created_at": {"from": "2026-01-31", "to": "2026-01-31T12:00:00Z"}}, set()),
            ({"created_at": {"gte": "2026-01-31", "lte": "2026-01-31"}}, set()),
            ({"document_date": {"from": None, "to": None}}, {1, 2, 3, 4, 5, 6, 7}),
            ({"updated_at": {}}, {1, 2, 3, 4, 5, 6, 7}),
            # An object under a key of metadata is a value.
            ({"author": {"from": 1}}, {7}),
            ([{"team": "search"}, condition("owner_id", "eq", str(YOU))], {4}),
            ([condition("metadata.team", "exists"), {"owner_id": str(ME)}], set()),
            ([{"": True}, {"author": {"from": 1}}], {7}),
            ([{"document_type": "md"}, {"document_date": {"to": "2026-01-01"}}], {1}),
            ([{"knowledge_type": "note", "document_type": "markdown"}], {1}),
        ],
    )


keys = st.sampled_from(
    ["artifact_type", "document_type", "team", "a.b", "chunk_index", "source_file"]
)
values: dict[str, list[Any]] = {
    "artifact_type": ["note", "task"],
    "document_type": ["md", "pdf", "text"],
    "team": ["search", None],
    "a.b": [[1], 2],
    "chunk_index": [3, {"from": 3}, {"gt": 3, "to": 7}, None],
    "source_file": ["a.md", "b.md"],
}
shorts = st.lists(keys, max_size=3, unique=True).flatmap(
    lambda drawn: st.fixed_dictionaries({key: st.sampled_from(values[key]) for key in drawn})
)


@tried(25)
@given(one=shorts.filter(bool), other=shorts.filter(bool))
def test_a_list_of_short_forms_passes_what_each_passes(
    rows: Connection, one: dict[str, Any], other: dict[str, Any]
) -> None:
    by_key = [passing(rows, {key: short[key]}) for short in (one, other) for key in short]
    assert passing(rows, [one, other]) == passing(rows, one) & passing(rows, other)
    assert passing(rows, [one, other]) == set.intersection(*by_key)


@pytest.mark.module("insight")
def test_an_empty_answer_names_the_part_that_no_row_passes(rows: Connection) -> None:
    parts: list[tuple[Any, str]] = [
        ({"artifact_type": "transcript"}, "filters.artifact_type"),
        ([{"team": "search", "source_file": "b.md"}], "filters[0].source_file"),
        ([{"team": "search"}, {"document_date": {"from": LATER}}], "filters[1].document_date.from"),
        ({"created_at": {"from": "2026-01-01", "to": "2025-01-01"}}, "filters.created_at.to"),
        ([{"team": "search"}, condition("document_type", "eq", "rst")], "filters[1]"),
    ]
    for filters, argument in parts:
        reason = answer(rows, "explain_empty_knowledge_search", query_text="alpha", filters=filters)
        assert reason["argument"] == argument


@pytest.mark.module("insight")
def test_a_missing_chunk_is_explained_by_the_part_that_leaves_it_out(rows: Connection) -> None:
    task = condition("artifact_type", "eq", "task")
    unmet = 'it does not meet {"op": "eq", "field": "artifact_type", "value": "task"}'
    parts: list[tuple[Any, str, str]] = [
        ({"document_type": "pdf"}, ".document_type", 'its document_type is not "pdf"'),
        ([{"team": "x"}], "[0].team", 'its team is not "x"'),
        ({"time_range": {"from": LATER}}, ".time_range.from", f'is not {{"from": "{LATER}"}}'),
        ([task], "[0]", unmet),
        ({"chunk_index": {"gt": 3}}, ".chunk_index.gt", 'its chunk_index is not {"gt": 3}'),
    ]
    for filters, argument, reason in parts:
        explained = answer(
            rows,
            "explain_missing_knowledge_chunk",
            query_text="alpha",
            filters=filters,
            chunk_id=chunk(1),
        )
        (cause,) = explained["causes"]
        assert cause["argument"] == f"filters{argument}"
        assert cause["reason"].endswith(reason)


@pytest.mark.module("arrange")
@pytest.mark.parametrize("names", list(product(["op", "operator"], ["md", "markdown"])))
def test_boosts_read_the_same_language(rows: Connection, names: tuple[str, str]) -> None:
    key, value = names
    boost = {"filters": [{"field": "document_type", key: "eq", "value": value}], "factor": 9}
    found = call(
        rows, "hybrid_search_knowledge_chunks", query_embedding=NORTH, boosts=Jsonb([boost])
    )
    assert set(numbers(found[:2])) == {1, 3}
