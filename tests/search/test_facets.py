"""Facets: counts beside a search, against a count by hand of what the same search returns."""

import json
from collections import Counter
from typing import Any
from uuid import UUID

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from searching import Row, call, search, store, store_document
from test_exact_total import QUERY, ROW

from conftest import Connect, Connection
from second_brain import PostgresProvider
from second_brain.errors import InvalidInputError
from second_brain.services.results import FacetCount
from support.properties import tried

pytestmark = pytest.mark.module("facets")

FACETS = ["knowledge_type", "collection", "language", "metadata.team", "metadata.tags"]
OWNER, STRANGER = UUID(int=1), UUID(int=3)

TAGS = [{}, {"tags": ["red", "blue", "red"]}, {"tags": "red"}, {"tags": [1, True, None, {"a": 1}]}]
TAGGED_ROW = st.builds(
    lambda row, tags, language: row | {"metadata": row["metadata"] | tags, "language": language},
    ROW,
    st.sampled_from(TAGS),
    st.sampled_from(["english", "german"]),
)


def facet_counts(connection: Connection, **arguments: Any) -> dict[str, Counter[str]]:
    counted: dict[str, Counter[str]] = {}
    for row in call(connection, "facet_knowledge_chunks", **arguments):
        counted.setdefault(row["facet"], Counter())[json.dumps(row["value"])] = row["count"]
    return counted


def values(row: Row, facet: str) -> set[str]:
    """Return the values of a stored row that a facet counts, as JSON."""
    name, _, key = facet.partition(".")
    stored = row["metadata"].get(key) if key else row[name]
    listed = stored if isinstance(stored, list) else [stored]
    return {json.dumps(value) for value in listed if isinstance(value, str | int | bool)}


def counted_by_hand(rows: list[Row]) -> dict[str, Counter[str]]:
    counted = {facet: Counter(v for row in rows for v in values(row, facet)) for facet in FACETS}
    return {facet: counts for facet, counts in counted.items() if counts}


@given(rows=st.lists(TAGGED_ROW, max_size=12), query=QUERY)
@tried(25)
def test_facets_count_the_hits_of_a_list_that_no_pool_ends(
    knowledge: Connection, rows: list[Row], query: dict[str, Any]
) -> None:
    with knowledge.transaction(force_rollback=True):
        store(knowledge, *rows)
        hits = search(knowledge, **query, match_count=1000)
        found = [rows[hit["id"].int - 1] for hit in hits]
        counted = facet_counts(knowledge, **query, facets=FACETS, facet_limit=1000)
        assert counted == counted_by_hand(found)


@given(rows=st.lists(TAGGED_ROW, max_size=12), viewer=st.sampled_from([None, OWNER, STRANGER]))
@tried(15)
def test_without_a_question_facets_count_all_rows_that_the_filters_let_through(
    knowledge: Connection, rows: list[Row], viewer: UUID | None
) -> None:
    with knowledge.transaction(force_rollback=True):
        store(knowledge, *rows)
        allowed = [
            row
            for row in rows
            if viewer is None or row["visibility"] == "public" or row["owner_id"] == viewer
            if row["metadata"].get("team") == "x"
        ]
        counted = facet_counts(knowledge, viewer_id=viewer, filters={"team": "x"}, facets=FACETS)
        assert counted == counted_by_hand(allowed)


def test_with_one_per_document_facets_count_documents(knowledge: Connection) -> None:
    document = UUID(int=9)
    store_document(knowledge, document)
    store(knowledge, {"document_id": document}, {"document_id": document}, {"collection": "other"})
    counted = facet_counts(knowledge, facets=["language"], one_per_document=True)
    assert counted == {"language": Counter({'"english"': 2})}


@pytest.mark.module("arrange")
def test_hits_that_are_merged_or_bounded_count_in_facets(knowledge: Connection) -> None:
    document = UUID(int=9)
    store_document(knowledge, document)
    store(knowledge, *[{"document_id": document, "content": "cat"}] * 2, {"content": "cat"})
    for arranged, shown in (({"merge_duplicates": True}, 1), ({"max_per_document": 1}, 2)):
        assert len(search(knowledge, query_text="cat", **arranged)) == shown
        counted = facet_counts(knowledge, query_text="cat", facets=["language"], **arranged)
        assert counted == {"language": Counter({'"english"': 3})}


def test_the_most_frequent_values_come_first_and_facet_limit_cuts_the_rest(
    knowledge: Connection,
) -> None:
    store(knowledge, *[{"metadata": {"team": team}} for team in ("b", "a", "c", "c")])
    facets = ["metadata.team", "collection"]
    rows = call(knowledge, "facet_knowledge_chunks", facets=facets, facet_limit=2)
    assert [(row["facet"], row["value"], row["count"]) for row in rows] == [
        ("metadata.team", "c", 2),
        ("metadata.team", "a", 1),
        ("collection", "knowledge", 4),
    ]


def test_a_signed_in_user_gets_counts_of_visible_rows_only(
    database: Connection, connect: Connect
) -> None:
    others = {"owner_id": UUID(int=2), "metadata": {"team": "secret"}}
    public = others | {"visibility": "public", "metadata": {"team": "public"}}
    store(database, {"owner_id": OWNER, "metadata": {"team": "own"}}, others, public)
    mine, user = "facet_my_knowledge_chunks", connect("authenticated", uid=OWNER)
    rows = call(user, mine, facets=["metadata.team"])
    assert [(row["value"], row["count"]) for row in rows] == [("own", 1), ("public", 1)]
    for connection, function in (
        (connect("authenticated"), mine),
        (user, "facet_knowledge_chunks"),
        (connect("anon"), mine),
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            call(connection, function)


def test_the_provider_returns_counts_and_refuses_what_it_must(knowledge: Connection) -> None:
    store(knowledge, {"metadata": {"size": 2}}, {"content": "other", "metadata": {"size": 3}})
    provider = PostgresProvider(knowledge)
    counts = provider.count_facets(None, "text", ["metadata.size"])
    assert counts == [FacetCount("metadata.size", 2, 1)]
    of_users: Any = PostgresProvider(knowledge, multi_tenant=True)
    refusals: list[tuple[str, Any, Any, dict[str, int]]] = [
        ("facets", provider, "metadata.size", {}),
        ("facet_limit", provider, ["language"], {"facet_limit": 0}),
        ("viewer_id", of_users, ["language"], {}),
    ]
    for argument, asked, facets, options in refusals:
        with pytest.raises(InvalidInputError, match=argument):
            asked.count_facets(None, "text", facets, **options)
