"""Groups of conditions, and conditions that real tables need: null or not expired, not these."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from filtering import ME, YOU, one, passing, store_alphas
from psycopg.types.json import Jsonb
from searching import chunk, numbers, search

from conftest import Connection
from second_brain.filters import FilterBuilder, FilterExpression, conditions

TODAY = datetime.now(UTC).date()
YESTERDAY, TOMORROW = TODAY - timedelta(days=1), TODAY + timedelta(days=1)


@pytest.fixture
def corpus(knowledge: Connection) -> Connection:
    knowledge.execute(
        "insert into public.knowledge_documents (id, external_key, visibility)"
        " values (%s, 'read.md', 'public'), (%s, 'new.md', 'public')",
        [chunk(901), chunk(902)],
    )
    store_alphas(
        knowledge,
        {"metadata": {"team": "a", "expires": str(TOMORROW)}, "document_id": chunk(901)},
        {"metadata": {"team": "b", "expires": str(YESTERDAY)}, "document_id": chunk(902)},
        {"metadata": {"team": "b", "path": "src/a.py"}, "document_date": TOMORROW},
        {"metadata": {"team": None, "path": "docs/a.md"}, "owner_id": ME},
        {"metadata": {}, "document_date": YESTERDAY, "owner_id": YOU},
    )
    return knowledge


NOT_EXPIRED = {
    "any": [
        {"field": "metadata.expires", "op": "is_null"},
        {"field": "metadata.expires", "op": "gt", "value": "today"},
    ]
}


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (NOT_EXPIRED, {1, 3, 4, 5}),
        ([NOT_EXPIRED, {"team": "b"}], {3}),
        ({"team": "b", **NOT_EXPIRED}, {3}),
        ({"any": [{"team": "a"}, {"team": "b", "path": "src/a.py"}]}, {1, 3}),
        ({"not": {"team": "b"}}, {1, 4, 5}),
        ({"not": {"any": [{"team": "a"}, {"team": "b"}]}}, {4, 5}),
        ({"not": {"not": {"team": "b"}}}, {2, 3}),
        ({"any": [one("owner_id", "eq", str(ME))[0], {"team": "a"}]}, {1, 4}),
        (one("metadata.path", "starts_with", "src/"), {3}),
        (one("metadata.path", "starts_with", "%"), set()),
        (one("metadata.path", "contains_text", "a."), {3, 4}),
        (one("metadata.path", "contains_text", ".*"), set()),
        (one("language", "starts_with", "engl"), {1, 2, 3, 4, 5}),
        (one("document_date", "gt", "today"), {3}),
        (one("document_date", "lte", "now"), {5}),
        (one("created_at", "gte", "today"), {1, 2, 3, 4, 5}),
        (one("created_at", "gt", "now"), set()),
        (one("document_date", "between", ["today", str(TOMORROW)]), {3}),
        (one("id", "not_in", [str(chunk(1)), str(chunk(2))]), {3, 4, 5}),
        (one("external_key", "not_in", ["read.md", "nowhere.md"]), {2, 3, 4, 5}),
        (one("external_key", "eq", "new.md"), {2}),
        (one("external_key", "in", ["nowhere.md"]), set()),
        ({"field": "metadata.team", "op": "eq", "value": "a"}, {1}),
        ({"id": "x"}, set()),
    ],
)
def test_groups_and_conditions_keep_the_rows_that_they_say(
    corpus: Connection, filters: Any, expected: set[int]
) -> None:
    assert passing(corpus, filters) == expected


def test_a_group_on_access_alone_binds_the_context_too(corpus: Connection) -> None:
    corpus.execute(
        "update public.knowledge_chunks set document_id = %s, chunk_index = 0 where id = %s",
        [chunk(901), chunk(5)],
    )
    corpus.execute("update public.knowledge_chunks set chunk_index = 1 where id = %s", [chunk(1)])
    corpus.execute(
        "update public.knowledge_chunks set sensitivity = 'secret' where id = %s", [chunk(5)]
    )
    labels = {"any": [one("sensitivity", "is_null")[0], one("sensitivity", "eq", "open")[0]]}
    found = {
        name: {row["id"]: row["context"] for row in asked}[chunk(1)]
        for name, asked in {
            "all": search(corpus, query_text="alpha", neighbor_window=1),
            "open": search(corpus, query_text="alpha", neighbor_window=1, filters=Jsonb(labels)),
        }.items()
    }
    assert len(found["all"]) > len(found["open"])


def test_what_a_server_requires_may_be_a_group(corpus: Connection) -> None:
    found = search(
        corpus,
        query_text="alpha",
        required_filters=Jsonb({"any": [{"team": "a"}, {"team": "b"}]}),
        filters=Jsonb({"not": {"team": "a"}}),
    )
    assert set(numbers(found)) == {2, 3}


@pytest.mark.module("insight")
def test_an_empty_answer_names_the_group_that_no_row_passes(corpus: Connection) -> None:
    asked = {
        "query_text": "alpha",
        "filters": [{"team": "b"}, {"any": [{"team": "x"}, {"team": "y"}]}],
    }
    (told,) = (
        corpus.execute(
            "select public.explain_empty_knowledge_search(%s)", [Jsonb(asked)]
        ).fetchone()
        or ()
    )
    assert told["reason"] == "filter"
    assert told["argument"] == "filters[1].any"


def test_a_builder_makes_groups_of_expressions_dicts_and_builders() -> None:
    both = FilterBuilder().add_category("note").add_metadata("team", "a")
    built = (
        FilterBuilder()
        .add_group("any", both, FilterExpression("document_date", "gt", TODAY), {"team": "b"})
        .add_group("not", FilterExpression("metadata.archived", "is_not_null"))
    )
    assert conditions(built) == [
        {
            "any": [
                {
                    "all": [
                        {"field": "knowledge_type", "op": "eq", "value": "note"},
                        {"field": "metadata.team", "op": "eq", "value": "a"},
                    ]
                },
                {"field": "document_date", "op": "gt", "value": str(TODAY)},
                {"team": "b"},
            ]
        },
        {"not": {"field": "metadata.archived", "op": "is_not_null"}},
    ]
