"""RetrievalService: requests, answers, pages, filters, and questions by example."""

import asyncio
import json
import re
from datetime import date
from pathlib import Path
from typing import Any, get_type_hints
from uuid import UUID

import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import ValidationError
from retrieving import (
    ALICE,
    BY_HAND,
    CREDIT_NOTE,
    DOWN,
    LEAK,
    RECORDER,
    REMINDER,
    ROTATION,
    Make,
    contents,
    corpus,
    embedded,
    fill,
    make,
    out_of_order,
    ranks,
    sync_search,
)

from second_brain.errors import ConfigurationError, InvalidInputError
from second_brain.filters import FilterBuilder
from second_brain.models import CallableEmbedder
from second_brain.retrieval.answer import SearchResponse
from second_brain.retrieval.earlier_names import QUERY_FIELDS
from second_brain.retrieval.query import Access, AccessOptions, QueryOptions, SearchQuery
from second_brain.retrieval.retrieval import AnyReranker
from second_brain.retrieval.service import AsyncRetrievalService, RetrievalService
from second_brain.services.postgres import AsyncPostgresProvider, PostgresProvider
from support.databases import query

__all__ = ["corpus", "make"]  # fixtures


# What an answer is


def test_an_answer_says_what_was_asked_what_ran_and_what_it_took(make: Make, corpus: str) -> None:
    response = make(corpus)("leaked key", limit=2)
    assert (contents(response), ranks(response)) == ([LEAK, ROTATION], [1, 2])
    assert (response.mode, response.mode_used) == ("hybrid", "hybrid")
    assert (response.total_count, response.limit, response.offset) == (5, 2, 0)
    assert response.applied_filters == {"left_out": ["memory", "history"]}
    assert response.embedding_model == "by-hand"
    assert (response.degraded, response.cached) == (None, False)
    spent = response.timings
    assert response.query_time_ms == spent.total >= spent.embed + spent.search
    assert min(spent.embed, spent.search) > 0
    assert spent.rerank == 0
    best = response.results[0]
    assert (best.vector_rank, best.text_rank, best.match_type) == (1, 1, "both")
    assert best.score == best.confidence == pytest.approx(1, abs=0.01)
    assert (best.title, best.document_date) == ("API keys", date(2025, 11, 3))
    assert best.metadata == {"team": "platform", "tags": ["security", "api"]}
    assert best.matched_terms == ["leaked", "key"]


def test_an_answer_comes_back_the_same_from_json(make: Make, corpus: str) -> None:
    response = make(corpus, reranker=out_of_order)(
        "leaked key", mode="rerank", snippet=True, expand_neighbors=1, viewer_id=ALICE
    )
    assert SearchResponse.model_validate_json(response.model_dump_json()) == response


@pytest.mark.parametrize("mode", ["text", "bm25"])
def test_text_mode_asks_the_text_leg_alone(make: Make, corpus: str, mode: str) -> None:
    response = make(corpus, DOWN)("leaked key", mode=mode)
    assert contents(response) == [LEAK, ROTATION]
    assert {one.match_type for one in response.results} == {"text"}
    assert (response.mode, response.mode_used) == ("text", "text")
    assert (response.embedding_model, response.degraded) == (None, None)
    assert response.timings.embed == 0


def test_pages_cut_one_list(make: Make, corpus: str) -> None:
    search = make(corpus)
    whole = search("leaked key", limit=5)
    pages = [search("leaked key", limit=2, offset=offset) for offset in (0, 2, 4, 6)]
    assert [one for page in pages for one in page.results] == whole.results
    assert [page.total_count for page in pages] == [5, 5, 5, 5]


# What may be asked


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        ({"limit": 0}, "limit"),
        ({"offset": 1001}, "offset"),
        ({"mode": "semantic"}, "mode"),
        ({"min_similarity": float("nan")}, "min_similarity"),
        ({"collections": "memory"}, "collections"),
        ({"filters": [{"field": "metadata.a", "op": "eq", "value": float("nan")}]}, "filters"),
        ({"formulations": ["key"] * 11}, "formulations"),
        ({"top_k": 5}, "top_k"),
    ],
)
def test_a_value_out_of_bounds_is_refused_by_name(
    corpus: str, asked: dict[str, Any], names: str
) -> None:
    with pytest.raises(InvalidInputError, match=names):
        sync_search(corpus)("key", **asked)


@pytest.mark.parametrize("question", ["", "  \n", "x" * 1001])
def test_a_question_has_1_to_1000_characters(corpus: str, question: str) -> None:
    with pytest.raises(InvalidInputError, match="query") as refused:
        sync_search(corpus)(question)
    assert "xxx" not in str(refused.value)


def test_a_request_may_be_validated_beforehand(make: Make, corpus: str) -> None:
    body = {"query": " leaked key ", "mode": "bm25", "limit": 1}
    query = SearchQuery.model_validate_json(json.dumps(body))
    assert (query.query, query.mode) == ("leaked key", "text")
    assert contents(make(corpus)(query, viewer_id=ALICE)) == [LEAK]
    with pytest.raises(ValidationError, match="page"):
        SearchQuery.model_validate({"query": "key", "page": 2})


@pytest.mark.parametrize("name", get_type_hints(AccessOptions))
def test_a_request_does_not_say_whose_rows_it_finds(name: str) -> None:
    with pytest.raises(ValidationError, match=name):
        SearchQuery.model_validate({"query": "key", name: None})


def test_a_request_without_a_viewer_is_refused_rather_than_answered_with_all_rows(
    make: Make, corpus: str
) -> None:
    search, query = make(corpus), SearchQuery(query="leaked key")
    nothing: Any = [{}, {"public_only": False}, {"required_filters": []}, {"viewer_groups": None}]
    for said in nothing:
        with pytest.raises(ConfigurationError, match="whose rows"):
            search(query, **said)
    strangers: Any = [{"public_only": True}, {"viewer_id": UUID(int=1)}, {"viewer_groups": []}]
    for viewer in strangers:
        assert LEAK not in contents(search(query, **viewer))
    assert LEAK in contents(search(query, viewer_id=None))


def test_required_filters_hold_beside_those_of_the_request(make: Make, corpus: str) -> None:
    search = make(corpus)
    required = [{"field": "collection", "op": "eq", "value": "tickets"}]
    for filters in (None, {"team": "platform"}, [{"field": "language", "op": "exists"}]):
        query = SearchQuery(query="leaked key", filters=filters)
        response = search(query, viewer_id=None, required_filters=required)
        assert {one.collection for one in response.results} <= {"tickets"}
        assert "tickets" not in json.dumps(response.applied_filters)
    with pytest.raises(InvalidInputError, match="required_filters"):
        search("leaked key", required_filters={"team": "platform"})


def test_a_request_is_whole(make: Make, corpus: str) -> None:
    with pytest.raises(InvalidInputError, match="limit"):
        make(corpus)(SearchQuery(query="key"), limit=3, viewer_id=None)


def test_what_is_given_by_name_are_the_fields_of_a_request_and_what_the_server_decides() -> None:
    decided = Access.model_fields.keys()
    assert get_type_hints(AccessOptions).keys() == decided
    assert (
        get_type_hints(QueryOptions).keys() - decided - QUERY_FIELDS.keys() | {"query"}
        == SearchQuery.model_fields.keys()
    )
    schema = json.dumps(SearchQuery.model_json_schema())
    assert '"maximum": 100' in schema


def test_the_page_has_every_argument_with_its_default() -> None:
    text = (Path(__file__).parents[2] / "docs" / "service.md").read_text("utf-8")
    table = text.split("| argument of `search` |")[1].split("\n\n")[0]
    documented = {
        name: default.strip("` ")
        for names, default in re.findall(r"^\| (`[^|]+) \| ([^|]*)\|", table, re.MULTILINE)
        for name in re.findall(r"\w+", names)
    }
    assert documented.pop("timeout") == "settings"
    of_settings = {
        *("mode", "limit", "min_similarity", "fusion", "vector_weight", "text_weight"),
        *("include_memory", "rrf_k"),
    }
    expected = {
        name: "settings"
        if name in of_settings
        else ""
        if field.is_required() or field.default in (None, ())
        else str(field.default).lower()
        for name, field in {**SearchQuery.model_fields, **Access.model_fields}.items()
    }
    # Arguments with the name and the meaning of the SQL function's are only listed below the table.
    listed = text.split("are the [arguments of the SQL function]")[0].rsplit("\n\n", 1)[1]
    as_in_sql = set(re.findall(r"`(\w+)`", listed))
    assert documented == {name: expected[name] for name in expected.keys() - as_in_sql}
    assert as_in_sql <= expected.keys()


# Which rows and which form


KEYS, MONEY = {ROTATION, LEAK}, {CREDIT_NOTE, REMINDER}
SECOND = FilterBuilder().add("chunk_index", "eq", 1)
MARCH = {"date_from": "2025-03-01", "date_to": "2025-03-31"}
STRANGER = UUID(int=1)


# What is asked, what is found, and what the answer says of it where that is not what was asked.
@pytest.mark.parametrize(
    ("asked", "found", "applied"),
    [
        ({"category": "decision"}, KEYS, {}),
        ({"tags": ["api", "security"]}, KEYS, {}),
        ({"tags": ["api", "billing"]}, set(), {}),
        ({**MARCH, "date_from": date(2025, 3, 1)}, {RECORDER}, MARCH),
        ({"filters": {"team": "finance"}}, MONEY, {}),
        ({"filters": {"team": "platform"}, "tags": {"api"}}, KEYS, {"tags": ["api"]}),
        ({"filters": {"team": "finance"}, "tags": ["api"]}, set(), None),
        ({"filters": SECOND}, {REMINDER, LEAK}, None),
        ({"filters": SECOND, "tags": ["api"]}, {LEAK}, None),
        ({"public_only": True}, MONEY, {}),
        ({"viewer_id": STRANGER}, MONEY, {"viewer_id": str(STRANGER)}),
        ({"viewer_id": str(ALICE)}, KEYS | MONEY, {}),
        ({"viewer_groups": {"staff"}}, MONEY, {"viewer_groups": ["staff"]}),
        ({"collections": ["tickets"]}, {RECORDER}, {}),
        ({"min_similarity": 0.9}, KEYS, {}),
    ],
)
def test_filters_reach_the_database_and_the_answer_names_them(
    corpus: str, asked: dict[str, Any], found: set[str], applied: dict[str, Any] | None
) -> None:
    mode = "vector" if "min_similarity" in asked else "hybrid"
    response = sync_search(corpus)("leaked key", mode=mode, **asked)
    assert set(contents(response)) == found
    if applied is not None:
        response.applied_filters.pop("left_out", None)
        assert response.applied_filters == {**asked, **applied}


def test_a_threshold_of_similarity_is_left_out_of_mode_text(corpus: str) -> None:
    response = sync_search(corpus)("leaked key", mode="text", min_similarity=0.9)
    assert set(contents(response)) == KEYS
    assert "min_similarity" not in response.applied_filters


def test_a_dotted_key_is_one_key_beside_other_conditions_too(make: Make, dsn: str) -> None:
    fill(dsn)
    query(
        dsn,
        'update public.knowledge_chunks set metadata = metadata || \'{"review.by": "Mia"}\''
        f" where content = '{LEAK}'",
    )
    response = make(dsn)("key", filters={"review.by": "Mia"}, tags=["api"])
    assert contents(response) == [LEAK]


@pytest.mark.module("arrange")
def test_hits_come_in_the_form_that_was_asked_for(make: Make, corpus: str) -> None:
    search = make(corpus)
    best = search("leaked key", expand_neighbors=True, snippet=True).results[0]
    assert best.context == f"{ROTATION}\n[CHUNK BOUNDARY]\n{LEAK}"
    assert best.snippet is not None
    assert "<mark>leaked</mark>" in best.snippet
    assert len(search("leaked key", one_per_document=True).results) == 3
    fresh = search("leaked key", recency_half_life=1).results
    assert fresh[0].content in (CREDIT_NOTE, REMINDER)
    assert search("rotated keys", mode="text", search_mode="phrase").results == []


def test_boosts_and_an_order_reach_the_search(make: Make, corpus: str) -> None:
    search = make(corpus)
    finance = {"filters": {"team": "finance"}, "factor": 9}
    assert search("leaked key", boosts=[finance]).results[0].content in (CREDIT_NOTE, REMINDER)
    # A reranker would replace the order.
    oldest = search("leaked key", order_by="document_date asc", mode="rerank")
    assert (contents(oldest)[0], oldest.mode_used) == (RECORDER, "hybrid")


def test_formulations_are_embedded_with_the_question(make: Make, corpus: str) -> None:
    search = make(corpus)
    alone = search("leaked key", mode="vector", min_similarity=0.9)
    wider = search(
        "leaked key", mode="vector", min_similarity=0.9, formulations=["recorder", "colourless"]
    )
    assert set(contents(wider)) - set(contents(alone)) == {RECORDER}


def test_an_embedder_s_own_form_for_questions_is_used(make: Make, corpus: str) -> None:
    class Asymmetric(CallableEmbedder):
        def embed_query(self, text: str) -> NDArray[np.float32]:
            return np.array([0, 1, 0], np.float32)

    response = make(corpus, Asymmetric(embedded, "by-hand", 3))("leaked key", mode="vector")
    assert contents(response)[0] == RECORDER


def test_a_provider_of_the_other_kind_is_refused(corpus: str) -> None:
    with pytest.raises(TypeError, match="AsyncRetrievalService"):
        RetrievalService(AsyncPostgresProvider(corpus), BY_HAND)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="for RetrievalService"):
        AsyncRetrievalService(PostgresProvider(corpus), BY_HAND)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("provider", "postgresql://localhost/postgres"),
        ("provider", None),
        ("embedder", embedded),
        ("embedder", None),
        ("embedder", "wordllama"),
        ("embedder", [BY_HAND, embedded]),
        ("reranker", "cross-encoder"),
        ("settings", {"vector_weight": 2}),
    ],
)
@pytest.mark.parametrize("is_awaited", [False, True])
def test_an_argument_of_another_type_is_named(
    corpus: str, name: str, value: Any, is_awaited: bool
) -> None:
    service: Any = AsyncRetrievalService if is_awaited else RetrievalService
    provider = AsyncPostgresProvider if is_awaited else PostgresProvider
    with pytest.raises(TypeError, match=f"^{name} must "):
        service(**{"provider": provider(corpus), "embedder": BY_HAND, name: value})


@pytest.mark.parametrize("timeout", ["soon", 0, float("nan")])
def test_an_invalid_timeout_is_refused(make: Make, corpus: str, timeout: Any) -> None:
    with pytest.raises(InvalidInputError, match="timeout must be above 0"):
        make(corpus)("leaked key", timeout=timeout)


def test_the_pages_have_every_hit_once_on_an_event_loop_too(dsn: str) -> None:
    # More hits than the default pool of 50 holds.
    insert = "insert into public.knowledge_chunks (content)"
    query(dsn, f"{insert} select 'camera ' || number from generate_series(1, 60) as number")
    service = RetrievalService(PostgresProvider(dsn), BY_HAND)
    pages = list(service.search_pages("camera", limit=25, mode="text"))
    listed = [[hit.id for hit in page.results] for page in pages]
    assert [len(page) for page in listed] == [25, 25, 10]
    assert len({one for page in listed for one in page}) == 60
    assert [hit.rank for page in pages for hit in page.results] == list(range(1, 61))
    assert not pages[-1].pool_ended

    async def search() -> list[list[str]]:
        asynchronous = AsyncRetrievalService(AsyncPostgresProvider(dsn), BY_HAND)
        found = asynchronous.search_pages("camera", limit=25, mode="text")
        return [[hit.id for hit in page.results] async for page in found]

    assert asyncio.run(search()) == listed


def _uncalled(*_: object) -> list[list[float]]:
    raise AssertionError("there is no question to read")


UNCALLED = CallableEmbedder(_uncalled, "by-hand", 3)
RERANKER: AnyReranker = _uncalled  # type: ignore[assignment]


@pytest.fixture
def leak(corpus: str, make: Make) -> str:
    """Return the id of the chunk about leaked keys."""
    return make(corpus)("leaked key", limit=1).results[0].id


def test_without_a_question_no_model_is_called(corpus: str, make: Make, leak: str) -> None:
    search = make(corpus, UNCALLED, RERANKER)
    for mode in ("hybrid", "rerank", "vector", "text"):
        found = search("", like_ids=[leak], mode=mode)
        assert {*contents(found)} <= {CREDIT_NOTE, REMINDER, RECORDER}
        assert (found.embedding_model, found.degraded) == (None, None)
        assert found.mode == found.mode_used == ("hybrid" if mode == "rerank" else mode)
    assert contents(search("", like_ids=[leak], mode="vector"))[0] == CREDIT_NOTE


def test_a_question_leans_to_the_known_chunk(corpus: str, make: Make, leak: str) -> None:
    (invoice,) = make(corpus)("credit note", limit=1).results
    found = make(corpus)("cameras", like_ids=[invoice.id], mode="vector")
    similarity = {hit.content: hit.similarity for hit in found.results}
    alone = make(corpus)("cameras", mode="vector")
    plain = {hit.content: hit.similarity for hit in alone.results}
    assert CREDIT_NOTE not in similarity
    assert (similarity[RECORDER] or 0) < (plain[RECORDER] or 0)
    reranked = make(corpus, BY_HAND, out_of_order)("key", like_ids=[leak], mode="rerank")
    assert reranked.mode_used == "rerank"
    assert ROTATION not in contents(reranked)
    assert LEAK not in contents(reranked)


def test_like_ids_stand_for_the_question_when_no_embedder_answers(
    corpus: str, make: Make, leak: str
) -> None:
    broken = CallableEmbedder(lambda texts: [[1.0] * 2] * len(texts), "by-hand", 3)
    found = make(corpus, broken)("cameras", like_ids=[leak])
    assert found.mode_used == "hybrid"
    assert found.results[0].similarity is not None


def test_an_empty_query_needs_like_ids(leak: str) -> None:
    for given in ({"like_ids": [leak]}, {"like_ids": [leak], "query": " "}):
        query = SearchQuery.model_validate(given)
        assert query.query == ""
        assert SearchQuery.model_validate_json(query.model_dump_json()) == query
    for empty in ({}, {"query": " "}, {"query": "", "like_ids": []}):
        with pytest.raises(ValidationError, match="query"):
            SearchQuery.model_validate(empty)


def test_facets_count_what_may_be_like_the_known_chunk(corpus: str, leak: str) -> None:
    service = RetrievalService(PostgresProvider(corpus), UNCALLED)
    counts = service.facets("key", ["collection"], like_ids=[leak])
    assert counts == []
    counts = service.facets("credit", ["collection"], like_ids=[leak])
    assert [(one.value, one.count) for one in counts] == [("knowledge", 1)]
