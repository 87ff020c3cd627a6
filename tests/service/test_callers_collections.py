"""A caller of the earlier search across collections, with nothing but its names."""

import logging
from datetime import date
from typing import Any

import psycopg
import pytest
from retrieving import (
    LEAK,
    RECORDER,
    ROTATION,
    Make,
    async_search,
    contents,
    fill,
    sync_search,
)

from second_brain.retrieval import SearchQuery
from second_brain.services.write import KnowledgeWriter

HABIT = "Asks about the leaked key every morning."
WHOLE = "All about keys: rotation, leaks."


@pytest.fixture(scope="module")
def corpus(shared_dsn: str) -> str:
    """Return the DSN of five chunks, a memory, and the whole text of the document about keys."""
    fill(shared_dsn)
    with psycopg.connect(shared_dsn, autocommit=True) as connection:
        KnowledgeWriter(connection).upsert_document(
            {"external_key": "memory/1", "collection": "memory", "sensitivity": "private"},
            [{"content": HABIT, "embedding": [0, 0.1, 0.9], "embedding_model": "by-hand"}],
        )
        connection.execute(
            """
            insert into public.knowledge_chunks (
              document_id, content, collection, embedding, embedding_model
            )
            select id, %s, 'artifacts', '[0, 0.3, 0.9]', 'by-hand'
              from public.knowledge_documents where external_key = 'decisions/keys'
            """,
            [WHOLE],
        )
    return shared_dsn


@pytest.fixture(params=[sync_search, async_search], ids=["sync", "async"])
def make(request: pytest.FixtureRequest) -> Make:
    made: Make = request.param
    return made


def test_memory_is_left_out_unless_it_is_asked_for(make: Make, corpus: str) -> None:
    search = make(corpus)
    response = search("leaked key")
    assert HABIT not in contents(response)
    assert response.applied_filters == {"include_memory": False}
    remembered = search("leaked key", include_memory=True)
    assert HABIT in contents(remembered)
    assert remembered.applied_filters == {}
    query = SearchQuery(query="leaked key", include_memory=True)
    assert HABIT in contents(search(query, viewer_id=None))
    by_default = make(corpus, search_include_memory=True)
    assert HABIT in contents(by_default("leaked key"))
    assert HABIT not in contents(by_default("leaked key", include_memory=False))


def test_leaving_memory_out_does_not_change_the_order_of_the_rest(make: Make, corpus: str) -> None:
    search = make(corpus)
    with_memory = [one for one in contents(search("key", include_memory=True)) if one != HABIT]
    assert contents(search("key")) == with_memory
    assert {one.vector_rank for one in search("key").results} == set(range(1, 7))


@pytest.mark.parametrize(
    "named",
    [
        {"collections": ["memory"]},
        {"filters": {"collection": "memory"}},
        {"filters": [{"field": "collection", "op": "in", "value": ["memory", "tickets"]}]},
        {"required_filters": [{"field": "collection", "op": "eq", "value": "memory"}]},
    ],
    ids=str,
)
def test_memory_that_is_named_is_searched(make: Make, corpus: str, named: Any) -> None:
    response = make(corpus)("leaked key", **named)
    assert HABIT in contents(response)
    assert "include_memory" not in response.applied_filters


def test_memory_stays_out_beside_every_form_of_filters(make: Make, corpus: str) -> None:
    search = make(corpus)
    for filters in (
        {"sensitivity": "private"},
        [{"field": "collection", "op": "in", "value": ["tickets", "knowledge"]}],
        [{"field": "collection", "op": "ne", "value": "tickets"}],
    ):
        assert HABIT not in contents(search("leaked key", filters=filters))
    assert HABIT not in contents(search("leaked key", collections=["knowledge", "tickets"]))


def test_a_result_says_where_it_was_found(make: Make, corpus: str) -> None:
    best = make(corpus)("revoked key").results[0]
    assert (best.content, best.rank, best.collection) == (LEAK, 1, "knowledge")
    assert best.collections == ["knowledge"]
    assert best.is_chunk
    assert best.artifact_id == best.document_id
    assert best.distance == pytest.approx(1 - (best.similarity or 0))
    assert best.sensitivity is None
    memory = make(corpus)("leaked key", collections=["memory"]).results[0]
    assert (memory.sensitivity, memory.external_key) == ("private", "memory/1")


def test_one_hit_for_each_artifact_is_its_chunk_and_names_all_that_found_it(
    make: Make, corpus: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "second_brain.search"):
        response = make(corpus)(
            "leaked key", collections=["knowledge", "artifacts"], one_per_document=True
        )
    (found,) = (one for one in response.results if one.external_key == "decisions/keys")
    assert (found.content, found.is_chunk) == (LEAK, True)
    assert found.collections == ["artifacts", "knowledge"]
    fields = caplog.records[-1].__dict__
    assert (fields["merged"], fields["deduplicated"]) == (fields["match_both"], 1)
    (whole,) = make(corpus)("leaked key", filters={"collection": "artifacts"}).results
    assert (whole.content, whole.is_chunk, whole.chunk_index) == (WHOLE, False, None)


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ({"artifact_type": "decision"}, {LEAK, ROTATION}),
        ({"sensitivity": "private", "collection": "memory"}, {HABIT}),
        ({"time_range": {"start": date(2025, 3, 1), "end": "2025-03-31"}}, {RECORDER}),
        ({"document_date": {"gte": "2025-11-01"}, "team": "platform"}, {LEAK, ROTATION}),
    ],
    ids=["type", "label", "time range", "date and metadata"],
)
def test_a_dict_filters_by_type_label_and_time(
    make: Make, corpus: str, filters: Any, found: set[str]
) -> None:
    response = make(corpus)("leaked key", filters=filters)
    assert set(contents(response)) - {WHOLE} == found
