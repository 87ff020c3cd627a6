"""Callers of the typed search API: a test for each row of docs/compatibility.md.

The code is a caller's: it imports nothing of this test suite.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
from pydantic import ValidationError

import second_brain
from second_brain import (
    AsyncPostgresProvider,
    AsyncRetrievalService,
    KnowledgeWriter,
    PostgresProvider,
    RetrievalService,
    SearchAPI,
    SearchQuery,
    SearchSettings,
)
from second_brain.errors import ConfigurationError, InvalidInputError
from second_brain.filters import FilterBuilder, FilterExpression
from second_brain.ingest import find_files, ingest
from second_brain.models import CallableEmbedder
from second_brain.services.arguments import FUSIONS

DOCS = Path(__file__).parents[2] / "docs"
ANA = UUID(int=10)
LEAK = "A leaked key is revoked first."
ROTATION = "Keys are rotated every 90 days."
INVOICE = "An invoice is cancelled by a credit note."


def embed(texts: Sequence[str]) -> list[list[float]]:
    return [[1.0 * ("invoice" in text), 0.1, 1.0 * ("key" in text.lower())] for text in texts]


def longest_first(_question: str, passages: Sequence[str]) -> list[float]:
    return [float(len(passage)) for passage in passages]


EMBEDDER = CallableEmbedder(embed, "by-hand", 3)


@pytest.fixture(scope="module")
def library(shared_dsn: str) -> str:
    """Return the DSN of Ana's decision about keys, from a file of a wiki, and a public document."""
    of_file = {"source_category": "wiki", "source_file": "keys.md", "token_count": 7}
    decision = {
        "external_key": "keys",
        "title": "API keys",
        "knowledge_type": "decision",
        "document_date": date(2025, 11, 3),
        "owner_id": ANA,
        "metadata": {"tags": ["api", "security"], **of_file},
    }
    document = {
        "external_key": "invoices",
        "knowledge_type": "document",
        "document_date": date(2024, 1, 1),
        "visibility": "public",
    }
    with psycopg.connect(shared_dsn, autocommit=True) as connection:
        # As `migrate` does.
        connection.execute("select public.set_knowledge_settings(fusion => 'auto')")
        for fields, texts in ((decision, [LEAK, ROTATION]), (document, [INVOICE])):
            KnowledgeWriter(connection).upsert_document(
                fields,
                [
                    {"content": text, "embedding": vector, "embedding_model": "by-hand"}
                    for text, vector in zip(texts, embed(texts), strict=True)
                ],
            )
    return shared_dsn


@pytest.fixture
def service(library: str) -> RetrievalService:
    return RetrievalService(PostgresProvider(library), EMBEDDER, longest_first)


@pytest.fixture
def api(service: RetrievalService) -> SearchAPI[Any]:
    return SearchAPI(service, viewer_id=None)


def texts(response: Any) -> list[str]:
    return [one.chunk_text for one in response.results]


@pytest.mark.parametrize(
    ("mode", "used"),
    [("vector", "vector"), ("bm25", "text"), ("hybrid", "hybrid"), ("rerank", "rerank")],
)
def test_search_query_fields(api: SearchAPI[Any], mode: Any, used: str) -> None:
    given = {"query_text": "leaked key", "search_mode": mode, "limit": 2, "offset": 1}
    query = SearchQuery.model_validate({**given, "vector_weight": 0.7, "bm25_weight": 0.3})
    response = api.advanced_search(query)
    assert (response.search_mode, response.mode_used) == (mode, used)
    assert (response.limit, response.offset) == (2, 1)


@pytest.mark.parametrize("mode", ["vector", "bm25", "hybrid", "phrase"])
def test_what_a_search_query_was_given_reads_back(mode: Any) -> None:
    query = SearchQuery.model_validate(
        {"query_text": "leaked key", "search_mode": mode, "bm25_weight": 0.3}
    )
    assert query.search_mode == mode
    assert (query.query_text, query.bm25_weight) == ("leaked key", 0.3)
    assert SearchQuery.model_validate(query.model_dump()) == query


def test_a_search_mode_that_is_none_lists_the_words_that_are() -> None:
    with pytest.raises(ValidationError) as raised:
        SearchQuery.model_validate({"query": "key", "search_mode": "keyword"})
    (error,) = raised.value.errors()
    named = error["ctx"]["expected"].replace(" or ", ", ").replace("'", "").split(", ")
    for word in named:
        SearchQuery.model_validate({"query": "key", "search_mode": word})
    assert {"hybrid", "vector", "text", "bm25", "rerank", "websearch"} <= {*named}


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


def test_weights_must_sum_to_1(service: RetrievalService) -> None:
    # Differs: any weights from 0 on.
    found = service.search("leaked key", vector_weight=2, bm25_weight=3, fusion="rrf").results
    for one in found:
        ranks = ((2, one.vector_rank), (3, one.text_rank))
        assert one.rrf_score == pytest.approx(sum(w / (60 + rank) for w, rank in ranks if rank))
    with pytest.raises(InvalidInputError, match="both 0"):
        service.search("leaked key", vector_weight=0, bm25_weight=0)


def test_search_result_fields(service: RetrievalService) -> None:
    best = service.search("leaked key").results[0]
    assert (best.chunk_id, best.chunk_text) == (best.id, LEAK)
    assert UUID(best.chunk_id)
    assert (best.vector_score, best.bm25_score) == (best.similarity, best.text_score)
    assert best.matched_terms == ["leaked", "key"]
    assert best.context_header == "API keys"


@pytest.mark.parametrize("fusion", FUSIONS)
@pytest.mark.parametrize("mode", ["hybrid", "vector", "bm25", "rerank"])
def test_score_is_0_to_1(service: RetrievalService, mode: Any, fusion: Any) -> None:
    results = service.search("leaked key", mode=mode, fusion=fusion).results
    assert max(one.score for one in results) == pytest.approx(1, abs=0.01)
    for one in results:
        assert 0 <= one.score == one.confidence == one.original_combined_score
    if mode != "rerank":
        assert results == sorted(results, key=lambda one: -one.score)


def test_result_source_file_and_source_category(service: RetrievalService) -> None:
    best = service.search("leaked key").results[0]
    assert (best.source_file, best.source_category) == ("keys.md", "wiki")
    (untold,) = service.search("invoice", mode="text").results
    assert (untold.source_file, untold.source_category) == (None, None)


def test_search_response_fields(service: RetrievalService) -> None:
    response = service.search("leaked key", category="decision")
    assert response.total_count == 2
    assert response.query_time_ms > 0
    assert response.search_mode == "hybrid"
    assert response.applied_filters["category"] == "decision"
    by_words = service.search("leaked key", mode="bm25")
    assert (by_words.search_mode, by_words.mode_used) == ("bm25", "text")


def test_aliases_of_fields_are_in_json_too(service: RetrievalService) -> None:
    response = service.search("leaked key")
    sent = json.loads(response.model_dump_json())
    assert sent["search_mode"] == "hybrid"
    best, shown = response.results[0], sent["results"][0]
    for name in (
        *("chunk_id", "chunk_text", "score", "vector_score", "bm25_score", "context_header"),
        *("total_chunks", "chunk_token_count", "source_file", "source_category"),
        *("artifact_id", "distance", "is_chunk", "original_score", "original_combined_score"),
    ):
        assert shown[name] == getattr(best, name)


def test_total_count_is_all_rows_that_pass_the_filters(library: str) -> None:
    small = SearchSettings(hybrid_candidate_count=1, overfetch_multiplier=1)
    service = RetrievalService(PostgresProvider(library), EMBEDDER, settings=small)
    response = service.search("key", mode="text", limit=1, exact_total=True)
    # Three rows pass the filters; two of them have the word.
    assert (response.total_count, response.exact_total) == (1, 2)


def test_offset_anywhere(library: str) -> None:
    small = SearchSettings(hybrid_candidate_count=1, overfetch_multiplier=1)
    service = RetrievalService(PostgresProvider(library), EMBEDDER, settings=small)
    response = service.search("leaked key", limit=1, offset=2)
    assert (response.results, response.pool_ended) == ([], True)
    assert "search_pages" in (response.remedy or "")
    pages = list(service.search_pages("leaked key", limit=2))
    assert [len(page.results) for page in pages] == [2, 1]


def test_search_api_methods(library: str, api: SearchAPI[Any]) -> None:
    options: dict[str, Any] = {"category": "decision", "tags": ["api"], "min_similarity": 0.5}
    found = api.search("leaked key", date_from=date(2025, 1, 1), mode="vector", **options)
    assert {*texts(found)} == {LEAK, ROTATION}
    assert texts(api.search(query_text="invoice", limit=1)) == [INVOICE]
    with pytest.raises(ValueError, match="query and query_text"):
        api.search("invoice", query_text="invoice")
    assert texts(api.advanced_search(SearchQuery(query="invoice", limit=1))) == [INVOICE]
    service = RetrievalService(PostgresProvider(library), EMBEDDER)
    stranger = SearchAPI(service, viewer_id=UUID(int=1))
    assert texts(stranger.search("leaked key")) == [INVOICE]
    assert texts(stranger.advanced_search(SearchQuery(query="leaked key"))) == [INVOICE]
    awaited = AsyncRetrievalService(AsyncPostgresProvider(library), EMBEDDER)
    found = asyncio.run(SearchAPI(awaited, viewer_id=ANA).search("leaked key", limit=1))
    assert texts(found) == [LEAK]


def test_search_api_without_arguments(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SECOND_BRAIN_DSN", "DATABASE_URL", "SUPABASE_URL", "SUPABASE_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigurationError, match="no database"):
        SearchAPI()
    monkeypatch.setenv("DATABASE_URL", library)
    assert texts(SearchAPI().search("leaked key", mode="bm25", limit=1)) == [LEAK]
    monkeypatch.setenv("SEARCH_DEFAULT_LIMIT", "1")
    assert texts(SearchAPI(viewer_id=UUID(int=1)).search("leaked key invoice", mode="bm25")) == [
        INVOICE
    ]


@pytest.mark.parametrize("mode", ["vector", "bm25", "hybrid", "rerank"])
def test_a_category_that_is_no_type_is_the_source_category(
    service: RetrievalService, mode: Any
) -> None:
    api = SearchAPI(service)
    for _ in range(2):
        response = api.search("leaked key", category="wiki", mode=mode)
        assert {*texts(response)} == {LEAK, ROTATION}
        assert response.applied_filters["category"] == "wiki"
        assert response.degraded is None
        assert response.pending_embeddings in (None, 0)
    query = SearchQuery(query="leaked key", category="wiki", filters={"source_file": "keys.md"})
    assert {*texts(api.advanced_search(query))} == {LEAK, ROTATION}
    asked: dict[str, Any] = {"category": "wiki", "filters": {"source_file": "cars.md"}}
    assert texts(service.search("leaked key", mode=mode, **asked)) == []
    assert texts(service.search("leaked key", mode=mode, category="product_docs")) == []
    for blank in ("", " "):
        with pytest.raises(InvalidInputError, match="category must be one of conversation"):
            service.search("leaked key", mode=mode, category=blank)


@pytest.mark.parametrize(
    "filters",
    [
        FilterBuilder().add_category("wiki", field="metadata.source_category"),
        FilterBuilder().add_source_category("wiki", "chat"),
        FilterBuilder().add_source_file("keys.md"),
        FilterBuilder().add_any("source_file", field="metadata"),
        {"source_file": "keys.md", "source_category": "wiki"},
        [FilterExpression("source_file", "in", ["keys.md"])],
    ],
)
def test_filter_builder_source_category_source_file_and_any_keys(
    service: RetrievalService, filters: Any
) -> None:
    assert {*texts(service.search("leaked key", filters=filters))} == {LEAK, ROTATION}


@pytest.mark.parametrize("names", [["product_docs"], ["note", "product_docs"]])
def test_add_category_on_a_type_that_nobody_declared(dsn: str, names: list[str]) -> None:
    # Differs: the builder names types.
    api = SearchAPI(RetrievalService(PostgresProvider(dsn), EMBEDDER))
    insert = "insert into public.knowledge_types (name) values ('product_docs')"
    filters = FilterBuilder().add_category(*names)
    with pytest.raises(InvalidInputError, match="conversation, decision") as raised:
        api.search("key", filters=filters)
    assert "product_docs" in str(raised.value)
    assert insert in raised.value.remedy
    with psycopg.connect(dsn) as connection:
        connection.execute(insert)
    assert texts(api.search("key", filters=filters)) == []


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"from_date": date(2025, 1, 1)}, {LEAK, ROTATION}),
        ({"to_date": "2024-12-31"}, {INVOICE}),
        ({"from_date": "2024-01-01", "to_date": "2025-12-31"}, {LEAK, ROTATION, INVOICE}),
    ],
)
def test_add_date_range_from_date_to_date(
    service: RetrievalService, given: Any, found: set[str]
) -> None:
    filters = FilterBuilder().add_date_range(**given)
    assert {*texts(service.search("leaked key", filters=filters))} == found
    with pytest.raises(ValueError, match="both given"):
        FilterBuilder().add_date_range("2024-01-01", "2024-01-02", **given)


def test_an_invalid_mode_or_operator_is_a_value_error_that_lists_the_valid_ones(
    service: RetrievalService,
) -> None:
    wrong: Any = "semantic"
    with pytest.raises(ValueError, match="'hybrid', 'vector', 'text' or 'rerank'"):
        service.search("key", mode=wrong)
    with pytest.raises(ValueError, match=r"eq, ne, in, not_in, .*contains, has_any"):
        FilterExpression("collection", wrong, 1)


def test_total_chunks_chunk_token_count_and_context_header(dsn: str, tmp_path: Path) -> None:
    (tmp_path / "keys.md").write_text("# Keys\n\n## Rotation\n\nKeys are rotated.\n")
    with psycopg.connect(dsn, autocommit=True) as connection:
        list(ingest(find_files([tmp_path]).documents, connection, EMBEDDER))
    (found,) = RetrievalService(PostgresProvider(dsn), EMBEDDER).search("rotated").results
    assert (found.context_header, found.total_chunks) == ("Keys > Rotation", 1)
    assert found.chunk_token_count == 1 + len("Keys are rotated.") // 3


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("VECTOR_WEIGHT", "vector_weight"),
        ("BM25_WEIGHT", "text_weight"),
        ("RRF_CONSTANT", "rrf_constant"),
        ("SIMILARITY_THRESHOLD", "similarity_threshold"),
    ],
)
def test_settings_have_the_prefix_search(
    monkeypatch: pytest.MonkeyPatch, name: str, setting: str
) -> None:
    monkeypatch.setenv(f"SEARCH_{name}", "0.25")
    assert getattr(SearchSettings(), setting) == 0.25
    assert SearchSettings(bm25_weight=0.3).text_weight == 0.3
    assert SearchSettings().search_cache_ttl_seconds == 300
    with pytest.raises(ConfigurationError, match="names of one setting"):
        SearchSettings(bm25_weight=0.3, text_weight=0.3)


def test_structured_json_logs(library: str) -> None:
    program = f"""
from second_brain import PostgresProvider, RetrievalService, SearchSettings
from second_brain.models import CallableEmbedder

embedder = CallableEmbedder(lambda texts: [[0.0, 0.1, 1.0]] * len(texts), "by-hand", 3)
for _ in range(2):
    service = RetrievalService(
        PostgresProvider({library!r}), embedder, settings=SearchSettings(search_log_json=True)
    )
    service.search("leaked\\nkey")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    written = [json.loads(line) for line in done.stderr.splitlines()]
    lines = [one for one in written if one["logger"] == "second_brain.search"]
    assert [(one["event"], one["mode_used"], one["results"]) for one in lines] == [
        ("search", "hybrid", 3)
    ] * 2
    assert {"time", "level", "logger", "message", "match_both", "total_ms"} <= lines[0].keys()
    assert not {"args", "msg", "levelno"} & lines[0].keys()


def test_index_on_category_and_document_date(library: str) -> None:
    # Differs: an index for each column, which Postgres combines.
    with psycopg.connect(library) as connection:
        indexed = connection.execute(
            "select indexdef from pg_indexes where tablename = 'knowledge_chunks'"
        ).fetchall()
    for column in ("knowledge_type", "document_date"):
        assert any(f"({column})" in one[0] for one in indexed)


@pytest.mark.module("insight")
def test_a_cost_estimate_before_a_search(library: str) -> None:
    estimate = PostgresProvider(library).estimate_hybrid_search([0, 0, 1], "leaked key")
    assert estimate["milliseconds"] > 0


def test_metrics_with_a_p95_alert() -> None:
    page = (DOCS / "operate.md").read_text()
    assert "histogram_quantile(0.95" in page
    assert "second_brain_search_duration_seconds_bucket" in page


def test_a_page_on_postgresql_conf() -> None:
    page = (DOCS / "operate.md").read_text().partition("## Postgres settings")[2]
    for setting in (
        *("shared_buffers", "maintenance_work_mem", "work_mem"),
        *("random_page_cost", "effective_io_concurrency"),
    ):
        assert f"`{setting}`" in page


def test_strategy_and_ranker_base_classes(library: str) -> None:
    # Differs: a reranker is a function.
    unknown = ("Strategy", "Ranker", "Executor")
    assert not [name for name in dir(second_brain) if name.endswith(unknown)]
    service = RetrievalService(PostgresProvider(library), EMBEDDER, longest_first)
    found = texts(service.search("leaked key", mode="rerank"))
    assert found == sorted(found, key=len, reverse=True)
