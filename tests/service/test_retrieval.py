"""The retrieval service over a real database, with each part really broken once."""

import asyncio
import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any, get_type_hints
from uuid import UUID

import httpx
import numpy as np
import psycopg
import pytest
from numpy.typing import NDArray
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from psycopg_pool import ConnectionPool
from pydantic import ValidationError

from conftest import Server, copy_of
from second_brain.errors import (
    ConfigurationError,
    ConnectionLostError,
    DimensionMismatchError,
    InvalidInputError,
    MissingExtraError,
    SearchTimeoutError,
    SecondBrainError,
    UnavailableError,
)
from second_brain.filters import FilterBuilder
from second_brain.models import CallableEmbedder
from second_brain.retrieval.answer import SearchResponse, SearchResult
from second_brain.retrieval.cache import ResultCache
from second_brain.retrieval.query import (
    OTHER_NAMES,
    Access,
    AccessOptions,
    QueryOptions,
    SearchQuery,
)
from second_brain.retrieval.retrieval import AnyReranker
from second_brain.retrieval.service import AsyncRetrievalService, RetrievalService
from second_brain.retrieval.settings import SearchSettings
from second_brain.services import last_write
from second_brain.services.postgres import AsyncPostgresProvider, PostgresProvider
from second_brain.services.results import EmbeddingModel
from second_brain.services.supabase import SupabaseProvider
from second_brain.services.write import KnowledgeWriter

ALICE = UUID("00000000-0000-0000-0000-00000000000a")

# What the question's words mean: money, hardware, access.
MEANING = {
    "invoice": (1.0, 0.0, 0.0),
    "reminder": (0.9, 0.0, 0.1),
    "recorder": (0.0, 1.0, 0.0),
    "cameras": (0.1, 1.0, 0.0),
    "key": (0.0, 0.0, 1.0),
    "leaked": (0.0, 0.1, 1.0),
}

CREDIT_NOTE = "An invoice is cancelled by a credit note."
REMINDER = "The first reminder goes out 14 days after the due date."
RECORDER = "After a power cut the recorder shows no cameras."
ROTATION = "Service role keys stay on the server and are rotated."
LEAK = "A leaked key is revoked first and replaced afterwards."

Search = Callable[..., SearchResponse]
Make = Callable[..., Search]


def embedded(texts: Sequence[str], dimensions: int = 3) -> list[list[float]]:
    vectors = [
        np.sum([MEANING.get(word, (0, 0, 0)) for word in text.lower().split()], axis=0)
        for text in texts
    ]
    return [vector[:dimensions].tolist() for vector in vectors]


BY_HAND = CallableEmbedder(embedded, "by-hand", 3)


def out_of_order(question: str, passages: Sequence[str]) -> list[float]:
    """Score the passage that is nearest to the end of the alphabet highest."""
    ordered = sorted(passages)
    return [float(ordered.index(passage)) for passage in passages]


def unreachable(_: Sequence[str]) -> list[list[float]]:
    """Call a model server that is not there."""
    return httpx.post("http://127.0.0.1:9/embed", trust_env=False).json()  # type: ignore[no-any-return]


DOWN = CallableEmbedder(unreachable, "by-hand", 3)


def fill(dsn: str, model: str | None = "by-hand", dimensions: int = 3) -> None:
    def chunk(content: str, *embedding: float) -> dict[str, object]:
        return {
            "content": content,
            "embedding": list(embedding[:dimensions]),
            "embedding_model": model,
        }

    with psycopg.connect(dsn, autocommit=True) as connection:
        writer = KnowledgeWriter(connection)
        writer.upsert_document(
            {
                "external_key": "handbook/invoices",
                "title": "Invoices",
                "source_url": "https://example.org/invoices",
                "knowledge_type": "playbook",
                "visibility": "public",
                "metadata": {"team": "finance", "tags": ["billing"]},
            },
            [chunk(CREDIT_NOTE, 0.9, 0.1, 0.2), chunk(REMINDER, 0.8, 0.0, 0.1)],
        )
        writer.upsert_document(
            {
                "external_key": "tickets/4711",
                "title": "Recorder",
                "knowledge_type": "conversation",
                "document_date": date(2025, 3, 14),
                "collection": "tickets",
                "metadata": {"tags": ["hardware"]},
            },
            [chunk(RECORDER, 0.1, 0.9, 0.1)],
        )
        writer.upsert_document(
            {
                "external_key": "decisions/keys",
                "title": "API keys",
                "knowledge_type": "decision",
                "document_date": date(2025, 11, 3),
                "owner_id": ALICE,
                "metadata": {"team": "platform", "tags": ["security", "api"]},
            },
            [chunk(ROTATION, 0.1, 0.2, 0.9), chunk(LEAK, 0.0, 0.1, 0.9)],
        )


@pytest.fixture(scope="module")
def corpus(shared_dsn: str) -> str:
    """Return the DSN of five chunks that no test changes."""
    fill(shared_dsn)
    return shared_dsn


def sync_search(
    dsn: str,
    embedder: Any = BY_HAND,
    reranker: AnyReranker | None = None,
    *,
    provider: dict[str, Any] | None = None,
    **settings: Any,
) -> Search:
    service = RetrievalService(
        PostgresProvider(dsn, **provider or {}),
        embedder,
        reranker,  # type: ignore[arg-type]
        SearchSettings(**settings),
    )
    return service.search


def async_search(
    dsn: str,
    embedder: Any = BY_HAND,
    reranker: AnyReranker | None = None,
    *,
    provider: dict[str, Any] | None = None,
    **settings: Any,
) -> Search:
    service = AsyncRetrievalService(
        AsyncPostgresProvider(dsn, **provider or {}),
        embedder,
        reranker,
        SearchSettings(**settings),
    )
    return lambda *asked, **options: asyncio.run(service.search(*asked, **options))


@pytest.fixture(params=[sync_search, async_search], ids=["sync", "async"])
def make(request: pytest.FixtureRequest) -> Make:
    """Build a service of either kind, as the function that searches with it."""
    made: Make = request.param
    return made


def contents(response: SearchResponse) -> list[str]:
    return [one.content for one in response.results]


def ranks(response: SearchResponse) -> list[int]:
    return [one.rank for one in response.results]


# What an answer is


def test_an_answer_says_what_was_asked_what_ran_and_what_it_took(make: Make, corpus: str) -> None:
    response = make(corpus)("leaked key", limit=2)
    assert contents(response) == [LEAK, ROTATION]
    assert ranks(response) == [1, 2]
    assert (response.mode, response.mode_used) == ("hybrid", "hybrid")
    assert response.total_count == 5
    assert (response.limit, response.offset) == (2, 0)
    assert response.applied_filters == {"include_memory": False}
    assert response.embedding_model == "by-hand"
    assert response.degraded is None
    assert not response.cached
    spent = response.timings
    assert response.query_time_ms == spent.total
    assert spent.embed > 0
    assert spent.search > 0
    assert spent.rerank == 0
    assert spent.total >= spent.embed + spent.search
    best = response.results[0]
    assert (best.vector_rank, best.text_rank, best.match_type) == (1, 1, "both")
    assert best.score == best.rrf_score == pytest.approx(1)
    assert best.title == "API keys"
    assert best.document_date == date(2025, 11, 3)
    assert best.metadata == {"team": "platform", "tags": ["security", "api"]}
    assert best.matched_terms == ["leaked", "key"]


def test_a_result_has_every_column_of_the_function(corpus: str) -> None:
    with psycopg.connect(corpus) as connection:
        cursor = connection.execute(
            "select * from public.hybrid_search_knowledge_chunks(query_text => 'key')"
        )
        assert cursor.description is not None
        columns = {column.name for column in cursor.description}
    of_the_answer = {"total_count", "pool_ended", "notes"}
    assert columns - of_the_answer <= SearchResult.model_fields.keys()
    assert of_the_answer <= SearchResponse.model_fields.keys()


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
    assert response.timings.embed == 0
    assert response.embedding_model is None
    assert response.degraded is None


def test_vector_mode_asks_the_vector_leg_alone(make: Make, corpus: str) -> None:
    response = make(corpus)("leaked key", mode="vector")
    assert contents(response)[:2] == [LEAK, ROTATION]
    assert {one.match_type for one in response.results} == {"vector"}
    assert (response.mode, response.mode_used) == ("vector", "vector")


def test_nothing_found_is_an_empty_answer_and_a_count_of_none(make: Make, corpus: str) -> None:
    response = make(corpus)("zebra", mode="text")
    assert response.results == []
    assert response.total_count == 0


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
        ({"limit": 101}, "limit"),
        ({"offset": -1}, "offset"),
        ({"offset": 1001}, "offset"),
        ({"mode": "semantic"}, "mode"),
        ({"min_similarity": 1.5}, "min_similarity"),
        ({"min_similarity": float("nan")}, "min_similarity"),
        ({"expand_neighbors": 6}, "expand_neighbors"),
        ({"recency_half_life": 0}, "recency_half_life"),
        ({"date_from": "yesterday"}, "date_from"),
        ({"viewer_id": "alice"}, "viewer_id"),
        ({"tags": "api"}, "tags"),
        ({"collections": "memory"}, "collections"),
        ({"filters": [{"field": "metadata.a", "op": "eq", "value": float("nan")}]}, "filters"),
        ({"formulations": ["key"] * 11}, "formulations"),
        ({"formulations": [" "]}, "formulations"),
        ({"top_k": 5}, "top_k"),
        ({"timeout": 0}, "timeout"),
    ],
)
def test_a_value_out_of_bounds_is_refused_by_name(
    make: Make, corpus: str, asked: dict[str, Any], names: str
) -> None:
    with pytest.raises(InvalidInputError, match=names):
        make(corpus)("key", **asked)


@pytest.mark.parametrize("question", ["", "  \n", "x" * 1001])
def test_a_question_has_1_to_1000_characters(make: Make, corpus: str, question: str) -> None:
    with pytest.raises(InvalidInputError, match="query") as refused:
        make(corpus)(question)
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
    nothing: list[dict[str, Any]] = [
        {},
        {"public_only": False},
        {"required_filters": []},
        {"viewer_groups": None},
    ]
    for said in nothing:
        with pytest.raises(ConfigurationError, match="whose rows"):
            search(query, **said)
    assert LEAK not in contents(search(query, public_only=True))
    assert LEAK not in contents(search(query, viewer_id=UUID(int=1)))
    assert LEAK not in contents(search(query, viewer_groups=[]))
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
        get_type_hints(QueryOptions).keys() - decided - OTHER_NAMES.keys() | {"query"}
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
        "include_memory",
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


def test_what_only_the_database_can_judge_is_its_refusal(make: Make, corpus: str) -> None:
    with pytest.raises(InvalidInputError, match=r"^category must be one of") as refused:
        make(corpus)("key", category="poem")
    assert refused.value.code == "22023"


# Which rows and which form


@pytest.mark.parametrize(
    ("asked", "found", "applied"),
    [
        ({"category": "decision"}, {ROTATION, LEAK}, {"category": "decision"}),
        ({"tags": ["api", "security"]}, {ROTATION, LEAK}, {"tags": ["api", "security"]}),
        ({"tags": ["api", "billing"]}, set(), {"tags": ["api", "billing"]}),
        (
            {"date_from": date(2025, 3, 1), "date_to": "2025-03-31"},
            {RECORDER},
            {"date_from": "2025-03-01", "date_to": "2025-03-31"},
        ),
        (
            {"filters": {"team": "finance"}},
            {CREDIT_NOTE, REMINDER},
            {"filters": {"team": "finance"}},
        ),
        (
            {"filters": {"team": "platform"}, "tags": {"api"}},
            {ROTATION, LEAK},
            {"filters": {"team": "platform"}, "tags": ["api"]},
        ),
        ({"filters": {"team": "finance"}, "tags": ["api"]}, set(), None),
        ({"filters": FilterBuilder().add("chunk_index", "eq", 1)}, {REMINDER, LEAK}, None),
        (
            {"filters": FilterBuilder().add("chunk_index", "eq", 1), "tags": ["api"]},
            {LEAK},
            None,
        ),
        ({"public_only": True}, {CREDIT_NOTE, REMINDER}, {"public_only": True}),
        (
            {"viewer_id": UUID(int=1)},
            {CREDIT_NOTE, REMINDER},
            {"viewer_id": str(UUID(int=1))},
        ),
        (
            {"viewer_id": str(ALICE)},
            {CREDIT_NOTE, REMINDER, ROTATION, LEAK},
            {"viewer_id": str(ALICE)},
        ),
        (
            {"viewer_groups": {"staff"}},
            {CREDIT_NOTE, REMINDER},
            {"viewer_groups": ["staff"]},
        ),
        ({"collections": ["tickets"]}, {RECORDER}, {"collections": ["tickets"]}),
        ({"min_similarity": 0.9, "mode": "vector"}, {ROTATION, LEAK}, {"min_similarity": 0.9}),
        ({"min_similarity": 0.9, "mode": "text"}, {ROTATION, LEAK}, {}),
    ],
)
def test_filters_reach_the_database_and_the_answer_names_them(
    make: Make,
    corpus: str,
    asked: dict[str, Any],
    found: set[str],
    applied: dict[str, Any] | None,
) -> None:
    response = make(corpus)("leaked key", **asked)
    assert set(contents(response)) == found
    if applied is not None:
        response.applied_filters.pop("include_memory", None)
        assert response.applied_filters == applied


def test_a_dotted_key_is_one_key_beside_other_conditions_too(make: Make, dsn: str) -> None:
    fill(dsn)
    with psycopg.connect(dsn) as connection:
        connection.execute(
            """
            update public.knowledge_chunks
               set metadata = metadata || '{"review.by": "Mia"}' where content = %s
            """,
            [LEAK],
        )
    response = make(dsn)("key", filters={"review.by": "Mia"}, tags=["api"])
    assert contents(response) == [LEAK]
    with pytest.raises(InvalidInputError, match=r"review\.by"):
        make(dsn)("key", filters={"review.by": ["Mia"]}, tags=["api"])


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


def test_formulations_are_embedded_with_the_question(make: Make, corpus: str) -> None:
    search = make(corpus)
    alone = search("leaked key", mode="vector", min_similarity=0.9)
    wider = search(
        "leaked key", mode="vector", min_similarity=0.9, formulations=["recorder", "colourless"]
    )
    assert set(contents(wider)) - set(contents(alone)) == {RECORDER}


# Reranking


def test_a_reranked_list_is_ordered_by_the_reranker(make: Make, corpus: str) -> None:
    response = make(corpus, reranker=out_of_order)("leaked key", mode="rerank", limit=3)
    assert contents(response) == [REMINDER, ROTATION, CREDIT_NOTE]
    assert [one.rerank_score for one in response.results] == [4.0, 3.0, 2.0]
    fused = contents(make(corpus)("leaked key"))
    assert [fused[one.original_rank - 1] for one in response.results if one.original_rank] == (
        contents(response)
    )
    assert (response.mode, response.mode_used) == ("rerank", "rerank")
    assert response.results[0].score == 4.0
    assert response.timings.rerank > 0


def test_a_reranker_sees_the_question_and_five_candidates_for_each_result(
    make: Make, corpus: str
) -> None:
    seen: list[tuple[str, int]] = []

    def noting(question: str, passages: Sequence[str]) -> list[float]:
        seen.append((question, len(passages)))
        return [0.0] * len(passages)

    search = make(corpus, reranker=noting, rerank_cache_max_entries=0)
    search("leaked key", mode="rerank", limit=1)
    search("leaked key", mode="rerank", limit=1, offset=4)
    make(corpus, reranker=noting, reranking_candidate_multiplier=2)(
        "leaked key", mode="rerank", limit=2
    )
    make(corpus, reranker=noting, max_hybrid_search_results=3)("leaked key", mode="rerank", limit=2)
    assert seen == [("leaked key", size) for size in (5, 5, 4, 3)]


def test_a_passage_is_scored_once_for_a_question(make: Make, corpus: str) -> None:
    seen: list[int] = []

    def noting(question: str, passages: Sequence[str]) -> list[float]:
        seen.append(len(passages))
        return [float(len(passage)) for passage in passages]

    search = make(corpus, reranker=noting, reranking_candidate_multiplier=1)
    first = search("leaked key", mode="rerank", limit=2)
    again = search("leaked key", mode="rerank", limit=2)
    assert again.results == first.results
    assert seen == [2]
    # Only the candidates that are new, and all of them for another question.
    wider = search("leaked key", mode="rerank", limit=4)
    assert seen == [2, 2]
    assert [one.rerank_score for one in wider.results] == sorted(
        (float(len(one.content)) for one in wider.results), reverse=True
    )
    search("leaked keys", mode="rerank", limit=2)
    assert seen == [2, 2, 2]


def test_equal_scores_keep_the_fused_order(make: Make, corpus: str) -> None:
    search = make(corpus, reranker=lambda question, passages: np.zeros(len(passages)))
    assert contents(search("leaked key", mode="rerank")) == contents(search("leaked key"))


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_pages_of_a_reranked_list_neither_repeat_nor_lose_a_row(
    make: Make, corpus: str, limit: int
) -> None:
    search = make(corpus, reranker=out_of_order)
    pages = [
        search("leaked key", mode="rerank", limit=limit, offset=at) for at in range(0, 6, limit)
    ]
    assert [one for page in pages for one in contents(page)] == (
        sorted([CREDIT_NOTE, REMINDER, RECORDER, ROTATION, LEAK], reverse=True)
    )
    assert [rank for page in pages for rank in ranks(page)] == [1, 2, 3, 4, 5]
    assert {page.total_count for page in pages} == {5}


@pytest.mark.parametrize(
    "given", [{"use_reranking": True}, {"search_default_mode": "rerank"}], ids=str
)
def test_a_service_that_reranks_by_default_needs_its_model_when_it_is_made(
    make: Make, corpus: str, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]
) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(MissingExtraError):
        make(corpus, **given)


def test_nothing_found_is_not_reranked(make: Make, corpus: str) -> None:
    def refusing(question: str, passages: Sequence[str]) -> list[float]:
        raise AssertionError

    response = make(corpus, reranker=refusing)("key", mode="rerank", tags=["none"])
    assert (response.results, response.total_count, response.degraded) == ([], 0, None)


# Broken parts


def test_without_its_embedder_a_hybrid_search_uses_the_text_leg(make: Make, corpus: str) -> None:
    response = make(corpus, DOWN)("leaked key")
    assert contents(response) == [LEAK, ROTATION]
    assert (response.mode, response.mode_used) == ("hybrid", "text")
    assert response.embedding_model is None
    assert response.degraded is not None
    assert (response.degraded.part, response.degraded.kind) == ("embed", "unavailable")
    assert response.degraded.message
    assert response.degraded.remedy
    assert response.degraded.also is None


def test_without_its_embedder_a_vector_search_fails(make: Make, corpus: str) -> None:
    with pytest.raises(UnavailableError):
        make(corpus, DOWN)("leaked key", mode="vector")


def test_without_its_embedder_a_rerank_reads_the_hits_of_the_text_leg(
    make: Make, corpus: str
) -> None:
    response = make(corpus, DOWN, out_of_order)("leaked key", mode="rerank")
    assert contents(response) == [ROTATION, LEAK]
    assert response.mode_used == "rerank"
    assert response.degraded is not None
    assert response.degraded.part == "embed"


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ([[1.0, 0.0]], "unexpected_answer"),
        ([[float("nan"), 0.0, 0.0]], "unexpected_answer"),
        ("a page of HTML", "unexpected_answer"),
        ([[0.0, 0.0, 0.0]], "invalid_input"),
    ],
    ids=["other dimensions", "nan", "no numbers", "no direction"],
)
def test_an_embedding_that_is_none_is_not_searched_with(
    make: Make, corpus: str, answer: Any, kind: str
) -> None:
    response = make(corpus, CallableEmbedder(lambda _: answer, "by-hand", 3))("leaked key")
    assert response.mode_used == "text"
    assert response.degraded is not None
    assert response.degraded.kind == kind


def scoring_nothing(question: str, passages: Sequence[str]) -> list[float]:
    raise httpx.ConnectError("the model server is gone")


@pytest.mark.parametrize(
    ("reranker", "kind"),
    [
        (scoring_nothing, "unavailable"),
        (lambda question, passages: [1.0], "unexpected_answer"),
        (lambda question, passages: [float("nan")] * len(passages), "unexpected_answer"),
    ],
    ids=["down", "too few scores", "nan"],
)
def test_without_its_reranker_a_search_keeps_the_fused_order(
    make: Make, corpus: str, reranker: AnyReranker, kind: str
) -> None:
    search = make(corpus, reranker=reranker)
    response = search("leaked key", mode="rerank", limit=2, offset=1)
    assert contents(response) == contents(search("leaked key"))[1:3]
    assert (response.mode, response.mode_used) == ("rerank", "hybrid")
    assert response.results[0].rerank_score is None
    assert response.results[0].original_rank is None
    assert response.degraded is not None
    assert (response.degraded.part, response.degraded.kind) == ("rerank", kind)


def test_without_the_extra_a_rerank_says_what_to_install(
    make: Make, corpus: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "sentence_transformers", None)
    response = make(corpus)("leaked key", mode="rerank", limit=2)
    assert response.mode_used == "hybrid"
    assert response.degraded is not None
    assert response.degraded.kind == MissingExtraError.kind
    assert "pip install" in response.degraded.remedy


def test_both_failed_parts_are_in_the_answer(make: Make, corpus: str) -> None:
    response = make(corpus, DOWN, scoring_nothing)("leaked key", mode="rerank")
    assert contents(response) == [LEAK, ROTATION]
    assert response.mode_used == "text"
    assert response.degraded is not None
    assert response.degraded.part == "embed"
    assert response.degraded.also is not None
    assert response.degraded.also.part == "rerank"


def test_no_message_has_a_key_in_it(make: Make, corpus: str) -> None:
    def telling(_: Sequence[str]) -> list[list[float]]:
        raise RuntimeError("refused: api_key=sk-very-secret")

    response = make(corpus, CallableEmbedder(telling, "by-hand", 3))("leaked key")
    assert response.degraded is not None
    assert "very-secret" not in response.model_dump_json()


@pytest.fixture
def never() -> Iterator[threading.Event]:
    """An event that a stuck model waits for, set when the test is over."""
    event = threading.Event()
    yield event
    event.set()


def test_a_stuck_embedder_leaves_time_to_search_by_words(
    make: Make, corpus: str, never: threading.Event
) -> None:
    def stuck(texts: Sequence[str]) -> list[list[float]]:
        never.wait(60)
        return embedded(texts)

    start = time.monotonic()
    response = make(corpus, CallableEmbedder(stuck, "by-hand", 3))("leaked key", timeout=2)
    assert time.monotonic() - start < 2
    assert contents(response) == [LEAK, ROTATION]
    assert response.degraded is not None
    assert (response.degraded.part, response.degraded.kind) == ("embed", "timeout")


def test_a_stuck_reranker_costs_no_more_than_the_timeout(
    make: Make, corpus: str, never: threading.Event
) -> None:
    def stuck(question: str, passages: Sequence[str]) -> list[float]:
        never.wait(60)
        return [0.0] * len(passages)

    start = time.monotonic()
    response = make(corpus, reranker=stuck)("leaked key", mode="rerank", timeout=1)
    assert time.monotonic() - start < 3
    assert contents(response)[0] == LEAK
    assert response.degraded is not None
    assert (response.degraded.part, response.degraded.kind) == ("rerank", "timeout")


def test_a_statement_that_takes_too_long_is_an_error_at_once(make: Make, corpus: str) -> None:
    search = make(corpus)
    search("leaked key")  # it knows the corpus's model now
    with psycopg.connect(corpus) as locking:
        locking.execute("lock table public.knowledge_chunks in access exclusive mode")
        start = time.monotonic()
        with pytest.raises(SearchTimeoutError):
            search("leaked key", timeout=0.5)
        # Not a second time: that would double the load.
        assert time.monotonic() - start < 1.4


def test_a_lost_connection_is_an_error_and_no_empty_answer(corpus: str) -> None:
    with psycopg.connect(corpus) as connection, psycopg.connect(corpus) as other:
        service = RetrievalService(PostgresProvider(connection), BY_HAND)
        assert service.search("leaked key").results
        other.execute("select pg_terminate_backend(%s)", [connection.info.backend_pid])
        with pytest.raises(ConnectionLostError) as lost:
            service.search("leaked key")
    assert lost.value.remedy


def test_a_lost_connection_of_a_pool_is_replaced(corpus: str) -> None:
    with ConnectionPool(corpus, min_size=1, max_size=1, open=True) as pool:
        service = RetrievalService(PostgresProvider(pool, sleep=lambda _: None), BY_HAND)
        service.search("leaked key")
        with pool.connection() as connection:
            backend = connection.info.backend_pid
        with psycopg.connect(corpus, autocommit=True) as other:
            other.execute("select pg_terminate_backend(%s, 5000)", [backend])
        assert contents(service.search("leaked key"))[0] == LEAK


def test_a_server_that_is_gone_is_an_error(make: Make) -> None:
    with pytest.raises(UnavailableError):
        make("host=127.0.0.1 port=9 connect_timeout=2", provider={"retries": 0})("key", mode="text")


def test_a_missing_key_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SUPABASE_URL", raising=False)
    monkeypatch.delenv("SUPABASE_KEY", raising=False)
    with pytest.raises(SecondBrainError) as raised:
        RetrievalService(SupabaseProvider(), BY_HAND).search("key", mode="text")
    assert raised.value.kind == "client_unavailable"
    assert "SUPABASE_URL" in raised.value.remedy


def test_a_forgotten_viewer_is_refused(make: Make, corpus: str) -> None:
    with pytest.raises(InvalidInputError, match="viewer_id"):
        make(corpus, provider={"multi_tenant": True})("key")


# The corpus's model


def test_a_question_of_another_model_is_refused_with_both_names(make: Make, corpus: str) -> None:
    with pytest.raises(ConfigurationError, match=r"by-hand \(3 dim.*other-model \(3 dim"):
        make(corpus, CallableEmbedder(embedded, "other-model", 3))("leaked key")


def test_of_several_embedders_the_corpus_chooses(make: Make, corpus: str) -> None:
    others = [CallableEmbedder(unreachable, "other-model", 3), BY_HAND]
    response = make(corpus, others)("leaked key")
    assert response.embedding_model == "by-hand"
    assert response.degraded is None


def test_chunks_that_name_no_model_are_any_model_s_of_their_size(make: Make, dsn: str) -> None:
    fill(dsn, model=None)
    assert contents(make(dsn)("leaked key", mode="vector"))[0] == LEAK
    with pytest.raises(ConfigurationError, match="not named"):
        make(dsn, CallableEmbedder(embedded, "small", 2))("leaked key")


def test_one_chunk_without_a_model_does_not_open_the_corpus_to_another(
    make: Make, dsn: str
) -> None:
    fill(dsn)
    with psycopg.connect(dsn) as connection:
        connection.execute(
            "update public.knowledge_chunks set embedding_model = null where content = %s", [LEAK]
        )
    with pytest.raises(ConfigurationError, match="by-hand"):
        make(dsn, CallableEmbedder(embedded, "other-model", 3))("leaked key")


def test_of_two_models_in_the_corpus_the_more_frequent_one_is_asked(
    make: Make, dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    fill(dsn)
    with psycopg.connect(dsn) as connection:
        connection.execute(
            "update public.knowledge_chunks set embedding_model = 'new' where content = %s", [LEAK]
        )
    response = make(dsn, [CallableEmbedder(embedded, "new", 3), BY_HAND])("leaked key")
    assert response.embedding_model == "by-hand"
    assert "1 embeddings of another model than by-hand" in caplog.text


def test_an_empty_corpus_takes_any_embedder(make: Make, dsn: str) -> None:
    response = make(dsn)("leaked key")
    assert (response.results, response.total_count) == ([], 0)


def test_no_embedder_at_all_is_refused(corpus: str) -> None:
    with pytest.raises(ConfigurationError, match="embedder"):
        RetrievalService(PostgresProvider(corpus), [])


def test_the_model_is_looked_up_once_in_a_while(corpus: str) -> None:
    class Counting(PostgresProvider):
        lookups = 0

        def embedding_models(self, *, timeout: float | None = None) -> list[EmbeddingModel]:
            self.lookups += 1
            return super().embedding_models(timeout=timeout)

    counting = Counting(corpus)
    service = RetrievalService(counting, BY_HAND)
    for _ in range(3):
        service.search("leaked key")
    assert counting.lookups == 1


def test_a_corpus_that_changes_its_model_is_found_again(make: Make, server: Server) -> None:
    """The old corpus and the new one change places under one name, as a re-embedding does."""
    database = contextmanager(copy_of)
    with (
        database(server, server.template(3)) as old,
        database(server, server.template(2)) as new,
    ):
        check_that_a_swap_is_noticed(make, server, old, new)


def check_that_a_swap_is_noticed(make: Make, server: Server, old: str, new: str) -> None:
    small = CallableEmbedder(lambda texts: embedded(texts, 2), "small", 2)
    fill(old)
    fill(new, "small", 2)
    search = make(old, [BY_HAND, small])
    assert search("recorder").embedding_model == "by-hand"
    old_name, new_name = (conninfo_to_dict(one)["dbname"] for one in (old, new))
    with psycopg.connect(server.admin_dsn(), autocommit=True) as admin:
        for before, after in ((old_name, "swapped"), (new_name, old_name), ("swapped", new_name)):
            admin.execute(
                sql.SQL("alter database {} rename to {}").format(
                    sql.Identifier(str(before)), sql.Identifier(str(after))
                )
            )
    response = search("recorder")
    assert response.embedding_model == "small"
    assert contents(response)[0] == RECORDER
    assert response.mode_used == "hybrid"


def test_dimensions_that_no_embedder_has_are_an_error(make: Make, dsn: str) -> None:
    with pytest.raises(DimensionMismatchError):
        make(dsn, CallableEmbedder(lambda texts: embedded(texts, 2), "small", 2))("leaked key")


# The cache


def test_without_the_setting_nothing_is_cached(make: Make, corpus: str) -> None:
    search = make(corpus)
    search("leaked key")
    assert not search("leaked key").cached


def test_a_kept_answer_is_given_again_until_something_is_written(make: Make, dsn: str) -> None:
    fill(dsn)
    search = make(dsn, search_cache_enabled=True)
    first = search("leaked key")
    with psycopg.connect(dsn, autocommit=True) as connection:
        # Not by the writer, as another process's write is not.
        connection.execute("update public.knowledge_chunks set content = content || ' Really.'")
        again = search("leaked key")
        assert again.cached
        assert again.results == first.results
        assert again.timings.search == 0
        KnowledgeWriter(connection).delete_document("tickets/4711")
    fresh = search("leaked key")
    assert not fresh.cached
    assert contents(fresh)[0] == f"{LEAK} Really."


@pytest.mark.parametrize(
    "other",
    [
        {"viewer_id": ALICE},
        {"viewer_groups": []},
        {"limit": 3},
        {"offset": 1},
        {"mode": "text"},
        {"tags": ["api"]},
        {"public_only": True},
        {"snippet": True},
        {"min_similarity": 0.5},
    ],
    ids=str,
)
def test_an_answer_is_kept_for_the_very_same_question(
    make: Make, corpus: str, other: dict[str, Any]
) -> None:
    search = make(corpus, search_cache_enabled=True)
    search("leaked key")
    assert not search("leaked key", **other).cached
    assert not search("Leaked key").cached
    assert search("leaked key", limit=10, mode="hybrid").cached


def test_a_text_that_is_not_unicode_is_invalid_input_with_a_cache_too(
    make: Make, corpus: str
) -> None:
    for settings in ({}, {"search_cache_enabled": True}):
        with pytest.raises(InvalidInputError):
            make(corpus, **settings)("leaked key", category="\ud800")


def test_a_half_life_without_end_is_not_answered_from_what_is_kept_without_one(
    make: Make, corpus: str
) -> None:
    search = make(corpus, search_cache_enabled=True)
    search("leaked key")
    with pytest.raises(InvalidInputError, match="recency_half_life"):
        search("leaked key", recency_half_life=float("inf"))


def test_a_callers_changes_do_not_reach_the_cached_answer(make: Make, corpus: str) -> None:
    search = make(corpus, search_cache_enabled=True)
    for _ in range(3):
        response = search("leaked key")
        assert response.results[0].metadata["team"] == "platform"
        response.results[0].metadata["team"] = "mine"
        response.results.clear()


def test_a_degraded_answer_is_not_kept(make: Make, corpus: str) -> None:
    is_down = True

    def recovering(texts: Sequence[str]) -> list[list[float]]:
        return unreachable(texts) if is_down else embedded(texts)

    search = make(corpus, CallableEmbedder(recovering, "by-hand", 3), search_cache_enabled=True)
    assert search("leaked key").degraded is not None
    is_down = False
    second = search("leaked key")
    assert (second.cached, second.degraded) == (False, None)


def test_an_answer_from_before_a_write_is_not_cached(make: Make, corpus: str) -> None:
    def writing(texts: Sequence[str]) -> list[list[float]]:
        last_write.written()
        return embedded(texts)

    search = make(corpus, CallableEmbedder(writing, "by-hand", 3), search_cache_enabled=True)
    search("leaked key")
    assert not search("leaked key").cached


def test_the_cache_forgets_by_age_and_number(corpus: str) -> None:
    now = 0.0
    kept = ResultCache(2, 300, clock=lambda: now)
    response = sync_search(corpus)("leaked key")
    for key in ("a", "b"):
        kept.put(key, response, kept.begin())
    assert kept.get("a") == response
    kept.put("c", response, kept.begin())
    assert [key for key in "abc" if kept.get(key) is not None] == ["a", "c"]
    now = 299.9
    assert kept.get("a") is not None
    now = 300.0
    assert kept.get("a") is None
    kept.clear()
    assert len(kept) == 0


def test_clear_cache_is_for_writes_from_elsewhere(corpus: str) -> None:
    service = RetrievalService(
        PostgresProvider(corpus), BY_HAND, settings=SearchSettings(search_cache_enabled=True)
    )
    service.search("leaked key")
    service.clear_cache()
    assert not service.search("leaked key").cached


# Threads and event loops


def test_one_service_serves_many_threads(corpus: str) -> None:
    questions = ["leaked key", "invoice", "recorder", "reminder"] * 8
    with ConnectionPool(corpus, min_size=1, max_size=4, open=True) as pool:
        service = RetrievalService(PostgresProvider(pool), BY_HAND)
        with ThreadPoolExecutor(8) as threads:
            found = list(threads.map(lambda one: contents(service.search(one))[0], questions))
    assert found == [LEAK, CREDIT_NOTE, RECORDER, REMINDER] * 8


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_service_that_has_searched_serves_a_forked_process(corpus: str) -> None:
    service = RetrievalService(PostgresProvider(corpus), BY_HAND)
    assert service.search("leaked key").mode_used == "hybrid"
    child = os.fork()
    if child == 0:
        is_whole = False
        try:
            is_whole = service.search("leaked key", timeout=20).degraded is None
        finally:
            os._exit(0 if is_whole else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_an_embedder_that_raises_stop_iteration_fails_at_once(make: Make, corpus: str) -> None:
    def stop(_: Sequence[str]) -> list[list[float]]:
        raise StopIteration

    search = make(corpus, CallableEmbedder(stop, "by-hand", 3), search_timeout_seconds=60)
    degraded = search("leaked key").degraded
    assert degraded is not None
    assert degraded.kind == "error"


class AwaitedEmbedder:
    """An embedder whose calls are awaited on the event loop."""

    model = "by-hand"
    dimensions = 3

    def __init__(self) -> None:
        self.thread: int | None = None

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Embed after the loop has turned."""
        self.thread = threading.get_ident()
        await asyncio.sleep(0)
        return np.array(embedded(texts), np.float32)


class AwaitedQueryEmbedder(AwaitedEmbedder):
    """One that embeds questions differently from chunks."""

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Refuse: this is for chunks."""
        raise AssertionError

    async def embed_query(self, text: str) -> NDArray[np.float32]:
        """Embed one question."""
        return (await super().embed([text]))[0]  # type: ignore[no-any-return]


async def awaited_scores(question: str, passages: Sequence[str]) -> list[float]:
    await asyncio.sleep(0)
    return out_of_order(question, passages)


@pytest.mark.parametrize("kind", [AwaitedEmbedder, AwaitedQueryEmbedder])
def test_awaitable_models_are_awaited_on_the_loop(corpus: str, kind: type[AwaitedEmbedder]) -> None:
    embedder = kind()
    response = async_search(corpus, embedder, awaited_scores)(
        "leaked key", mode="rerank", formulations=["invoice"]
    )
    assert response.degraded is None
    assert response.mode_used == "rerank"
    assert embedder.thread == threading.get_ident()


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


def test_a_closed_pool_is_an_error_with_the_remedy_to_open_it(corpus: str) -> None:
    pool = ConnectionPool(corpus, min_size=1, open=True)
    pool.close()
    with pytest.raises(UnavailableError) as refused:
        RetrievalService(PostgresProvider(pool), BY_HAND).search("leaked key")
    assert "while it is open" in refused.value.remedy


@pytest.mark.parametrize(
    ("embedder", "reranker"), [(AwaitedEmbedder(), None), (BY_HAND, awaited_scores)]
)
def test_a_service_without_an_event_loop_refuses_what_is_awaited(
    corpus: str, embedder: Any, reranker: Any
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        RetrievalService(PostgresProvider(corpus), embedder, reranker)
    assert "AsyncRetrievalService" in refused.value.remedy


def test_a_blocking_embedder_does_not_block_the_loop(corpus: str) -> None:
    loop_turned = threading.Event()

    def waiting(texts: Sequence[str]) -> list[list[float]]:
        if not loop_turned.wait(20):
            raise TimeoutError
        return embedded(texts)

    async def searching() -> SearchResponse:
        service = AsyncRetrievalService(
            AsyncPostgresProvider(corpus), CallableEmbedder(waiting, "by-hand", 3)
        )
        search = asyncio.create_task(service.search("leaked key"))
        await asyncio.sleep(0)
        loop_turned.set()
        return await search

    assert asyncio.run(searching()).degraded is None


def test_a_stuck_awaitable_embedder_leaves_time_to_search_by_words(corpus: str) -> None:
    class Stuck(AwaitedEmbedder):
        async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
            await asyncio.Event().wait()
            raise AssertionError

    response = async_search(corpus, Stuck())("leaked key", timeout=2)
    assert contents(response) == [LEAK, ROTATION]
    assert response.degraded is not None
    assert response.degraded.kind == "timeout"


def test_a_cancelled_search_stops(corpus: str, caplog: pytest.LogCaptureFixture) -> None:
    async def searching() -> None:
        is_asked = asyncio.Event()

        class Stuck(AwaitedEmbedder):
            async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
                is_asked.set()
                await asyncio.Event().wait()
                raise AssertionError

        service = AsyncRetrievalService(AsyncPostgresProvider(corpus), Stuck())
        search = asyncio.create_task(service.search("leaked key"))
        await is_asked.wait()
        search.cancel()
        with pytest.raises(asyncio.CancelledError):
            await search

    asyncio.run(searching())
    assert "failed: CancelledError" in caplog.text
