"""A caller of the earlier typed search API, with nothing but its names."""

import asyncio
from datetime import date
from typing import Any
from uuid import UUID

import psycopg
import pytest
from pydantic import ValidationError
from retrieving import (
    ALICE,
    BY_HAND,
    CREDIT_NOTE,
    LEAK,
    RECORDER,
    REMINDER,
    ROTATION,
    contents,
    fill,
    out_of_order,
)

from second_brain import AsyncRetrievalService, RetrievalService, SearchAPI, SearchQuery
from second_brain.errors import ConfigurationError, InvalidInputError
from second_brain.filters import FilterBuilder, FilterExpression
from second_brain.retrieval.settings import SearchSettings
from second_brain.services.postgres import AsyncPostgresProvider, PostgresProvider


@pytest.fixture(scope="module")
def corpus(shared_dsn: str) -> str:
    """Return the DSN of five chunks; those about keys are of a wiki's file."""
    fill(shared_dsn)
    with psycopg.connect(shared_dsn) as connection:
        connection.execute(
            """
            update public.knowledge_documents
               set metadata = metadata || '{
                     "source_category": "wiki", "source_file": "keys.md", "token_count": 7
                   }'
             where external_key = 'decisions/keys'
            """
        )
    return shared_dsn


@pytest.fixture
def service(corpus: str) -> RetrievalService:
    return RetrievalService(PostgresProvider(corpus), BY_HAND, out_of_order)


@pytest.mark.parametrize(
    ("search_mode", "used"),
    [("vector", "vector"), ("bm25", "text"), ("hybrid", "hybrid"), ("rerank", "rerank")],
)
def test_a_query_has_its_earlier_names(
    service: RetrievalService, search_mode: str, used: str
) -> None:
    query = SearchQuery.model_validate(
        {
            "query_text": "leaked key",
            "search_mode": search_mode,
            "limit": 2,
            "offset": 1,
            "vector_weight": 0.7,
            "bm25_weight": 0.3,
        }
    )
    assert (query.query, query.text_weight, query.search_mode) == ("leaked key", 0.3, "websearch")
    response = service.search(query, viewer_id=None)
    assert (response.mode_used, response.search_mode) == (used, used)
    assert (response.limit, response.offset) == (2, 1)


def test_a_search_takes_the_earlier_names_too(service: RetrievalService) -> None:
    assert service.search("leaked key", search_mode="bm25").mode_used == "text"
    assert service.search("leaked key", search_mode="phrase").mode_used == "hybrid"


@pytest.mark.parametrize(
    "asked",
    [
        {"query": "key", "query_text": "key"},
        {"query": "key", "mode": "text", "search_mode": "vector"},
        {"query": "key", "text_weight": 1, "bm25_weight": 1},
    ],
    ids=str,
)
def test_two_names_of_one_field_are_refused(asked: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="names of one field"):
        SearchQuery.model_validate(asked)


def test_a_result_has_its_earlier_names(service: RetrievalService) -> None:
    best = service.search("leaked key").results[0]
    assert (best.chunk_id, best.chunk_text) == (best.id, LEAK)
    assert (best.vector_score, best.bm25_score) == (best.similarity, best.text_score)
    assert best.matched_terms == ["leaked", "key"]
    assert (best.context_header, best.total_chunks) == ("API keys", 2)
    assert best.score == best.rrf_score
    assert best.chunk_token_count == 7
    (untold,) = service.search("recorder", collections=["tickets"]).results
    assert untold.chunk_token_count is None


def test_a_response_tells_its_time_as_a_number_and_its_filters(service: RetrievalService) -> None:
    response = service.search("leaked key", category="decision", exact_total=True)
    assert 0 < response.query_time_ms == response.timings.total
    assert response.applied_filters == {"category": "decision", "include_memory": False}
    assert (response.total_count, response.exact_total) == (2, 2)


def test_an_offset_beyond_the_pool_is_told(corpus: str) -> None:
    small = SearchSettings(hybrid_candidate_count=1, overfetch_multiplier=1)
    service = RetrievalService(PostgresProvider(corpus), BY_HAND, settings=small)
    response = service.search("leaked key", limit=1, offset=4)
    assert (response.results, response.pool_ended) == ([], True)
    assert "search_pages" in (response.remedy or "")
    pages = list(service.search_pages("leaked key", limit=2))
    assert [len(page.results) for page in pages] == [2, 2, 1]


def test_the_search_api_has_its_methods(service: RetrievalService) -> None:
    api = SearchAPI(service, viewer_id=None)
    response = api.search(
        "leaked key",
        category="decision",
        tags=["api"],
        date_from=date(2025, 1, 1),
        mode="vector",
        min_similarity=0.5,
    )
    assert contents(response) == [LEAK, ROTATION]
    assert contents(api.advanced_search(SearchQuery(query="recorder", limit=1))) == [RECORDER]
    public = {CREDIT_NOTE, REMINDER}
    stranger = SearchAPI(service, viewer_id=UUID(int=1))
    assert set(contents(stranger.search("leaked key"))) == public
    assert set(contents(stranger.advanced_search(SearchQuery(query="leaked key")))) == public
    assert LEAK in contents(stranger.search("leaked key", viewer_id=ALICE))
    with pytest.raises(ConfigurationError):
        service.search(SearchQuery(query="leaked key"))


def test_the_search_api_of_an_event_loop_is_awaited(corpus: str) -> None:
    api = SearchAPI(AsyncRetrievalService(AsyncPostgresProvider(corpus), BY_HAND), viewer_id=None)
    assert contents(asyncio.run(api.search("recorder", limit=1))) == [RECORDER]


@pytest.mark.parametrize(
    "filters",
    [
        FilterBuilder().add_category("wiki", field="metadata.source_category"),
        FilterBuilder().add_source_category("wiki", "chat"),
        FilterBuilder().add_source_file("keys.md"),
        FilterBuilder().add_any(["security", "none"]),
        FilterBuilder().add_any("source_file", field="metadata"),
        {"source_file": "keys.md", "source_category": "wiki"},
        [FilterExpression("source_file", "in", ["keys.md"])],
    ],
)
def test_filters_by_category_file_and_keys(service: RetrievalService, filters: Any) -> None:
    assert set(contents(service.search("leaked key", filters=filters))) == {LEAK, ROTATION}


def test_an_invalid_mode_or_operator_is_a_value_error_that_lists_the_valid_ones(
    service: RetrievalService,
) -> None:
    wrong: Any = "semantic"
    with pytest.raises(ValueError, match="'hybrid', 'vector', 'text' or 'rerank'"):
        service.search("key", mode=wrong)
    with pytest.raises(ValueError, match="eq, ne, in, not_in, contains, has_any"):
        FilterExpression("collection", wrong, 1)
    with pytest.raises(InvalidInputError, match="case_study, conversation, decision"):
        service.search("key", filters=FilterBuilder().add_category("poem"))


@pytest.mark.parametrize(
    ("variable", "setting"),
    [
        ("SEARCH_VECTOR_WEIGHT", "vector_weight"),
        ("SEARCH_BM25_WEIGHT", "text_weight"),
        ("SEARCH_RRF_CONSTANT", "rrf_constant"),
        ("SEARCH_SIMILARITY_THRESHOLD", "similarity_threshold"),
    ],
)
def test_settings_have_names_with_the_prefix(
    monkeypatch: pytest.MonkeyPatch, variable: str, setting: str
) -> None:
    monkeypatch.setenv(variable, "0.25")
    assert getattr(SearchSettings(), setting) == 0.25


def test_settings_are_given_by_their_earlier_names() -> None:
    assert SearchSettings(bm25_weight=0.3).text_weight == 0.3
    assert SearchSettings().search_cache_ttl_seconds == 300
    with pytest.raises(ConfigurationError, match="names of one setting"):
        SearchSettings(bm25_weight=0.3, text_weight=0.3)
