"""A caller of the earlier retrieval pipeline (base, hybrid, rerank), with nothing but its names."""

import logging
from typing import Any
from uuid import UUID

import psycopg
import pytest
from retrieving import (
    CREDIT_NOTE,
    LEAK,
    RECORDER,
    REMINDER,
    ROTATION,
    Make,
    async_search,
    contents,
    fill,
    out_of_order,
    sync_search,
)

from second_brain.errors import ConfigurationError, InvalidInputError, SecondBrainError
from second_brain.models import CallableEmbedder

HANDBOOK = UUID(int=1)


@pytest.fixture(scope="module")
def corpus(shared_dsn: str) -> str:
    """Return the DSN of five chunks; the invoices are of a source and PDFs."""
    fill(shared_dsn)
    with psycopg.connect(shared_dsn) as connection:
        connection.execute(
            "insert into public.knowledge_sources (id, name) values (%s, 'handbook')", [HANDBOOK]
        )
        connection.execute(
            """
            update public.knowledge_documents
               set source_id = %s, metadata = metadata || '{"document_type": "pdf"}'
             where external_key = 'handbook/invoices'
            """,
            [HANDBOOK],
        )
    return shared_dsn


@pytest.fixture(params=[sync_search, async_search], ids=["sync", "async"])
def make(request: pytest.FixtureRequest) -> Make:
    made: Make = request.param
    return made


@pytest.mark.parametrize(
    "filters",
    [{"source_id": str(HANDBOOK)}, {"source_id": "handbook"}, {"document_type": "pdf"}],
    ids=str,
)
def test_a_dict_of_filters_means_columns(make: Make, corpus: str, filters: Any) -> None:
    found = make(corpus)("leaked key", filters=filters)
    assert set(contents(found)) == {CREDIT_NOTE, REMINDER}


def test_a_dict_filters_by_document(make: Make, corpus: str) -> None:
    search = make(corpus)
    (best, *_) = search("recorder").results
    found = search("leaked key", filters={"document_id": best.document_id})
    assert contents(found) == [RECORDER]


def test_a_reranked_result_keeps_its_original_score(make: Make, corpus: str) -> None:
    fused = {one.id: one.score for one in make(corpus)("leaked key").results}
    reranked = make(corpus, reranker=out_of_order)("leaked key", mode="rerank").results
    assert {one.id: one.original_score for one in reranked} == fused
    assert [one.score for one in reranked] == [one.rerank_score for one in reranked]


def test_without_its_text_leg_a_hybrid_search_is_a_vector_search(
    make: Make, dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    fill(dsn)
    with psycopg.connect(dsn) as connection:
        connection.execute("drop function knowledge_internal.analyse_query cascade")
    response = make(dsn)("leaked key", mode="hybrid")
    assert contents(response)[:2] == [LEAK, ROTATION]
    assert {one.match_type for one in response.results} == {"vector"}
    assert (response.mode, response.mode_used) == ("hybrid", "vector")
    assert response.degraded is not None
    assert (response.degraded.part, response.degraded.also) == ("text", None)
    assert "analyse_query" in response.degraded.message
    assert response.embedding_model == "by-hand"
    assert caplog.records[-1].__dict__["degraded"] == "text"
    with pytest.raises(SecondBrainError, match="analyse_query"):
        make(dsn)("leaked key", mode="text")
    reranked = make(dsn, reranker=out_of_order)("leaked key", mode="rerank")
    assert (reranked.mode_used, reranked.degraded) == ("rerank", response.degraded)


def test_what_the_caller_did_wrong_has_no_fallback(make: Make, dsn: str) -> None:
    fill(dsn)
    with pytest.raises(InvalidInputError, match="filters"):
        make(dsn)("leaked key", filters=[{"field": "collection", "op": "eq", "value": 1}])
    with psycopg.connect(dsn) as connection:
        connection.execute("drop function public.hybrid_search_knowledge_chunks")
    with pytest.raises(SecondBrainError, match="hybrid_search_knowledge_chunks"):
        make(dsn)("leaked key")


def test_match_types_are_logged_for_each_search(
    make: Make, corpus: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "second_brain.search"):
        response = make(corpus)("leaked key")
    fields = caplog.records[-1].__dict__
    reported = [fields[f"match_{name}"] for name in ("both", "vector", "text")]
    found = [one.match_type for one in response.results]
    assert reported == [found.count(name) for name in ("both", "vector", "text")]
    assert reported[0] == 2
    assert sum(reported) == len(found)


def test_a_bad_embedding_is_searched_by_text_where_the_setting_says_so(
    make: Make, corpus: str
) -> None:
    small = CallableEmbedder(lambda texts: [[1.0, 0.0]] * len(texts), "by-hand", 2)
    other = CallableEmbedder(lambda texts: [[1.0, 0.0, 0.0]] * len(texts), "other", 3)
    for embedder in (small, other):
        with pytest.raises(ConfigurationError):
            make(corpus, embedder)("leaked key")
        forgiving = make(corpus, embedder, search_on_bad_embedding="text")
        response = forgiving("leaked key")
        assert contents(response) == [LEAK, ROTATION]
        assert (response.mode_used, response.embedding_model) == ("text", None)
        assert response.degraded is not None
        assert response.degraded.part == "embed"
        assert "by-hand" in response.degraded.message
        with pytest.raises(ConfigurationError):
            forgiving("leaked key", mode="vector")


def test_a_size_that_only_the_database_knows_is_searched_by_text_too(make: Make, dsn: str) -> None:
    # Without a chunk, nothing says the model of the corpus.
    small = CallableEmbedder(lambda texts: [[1.0, 0.0]] * len(texts), "by-hand", 2)
    response = make(dsn, small, search_on_bad_embedding="text")("leaked key")
    assert (response.results, response.mode_used) == ([], "text")
    assert response.degraded is not None
    assert (response.degraded.part, response.degraded.kind) == ("embed", "dimension_mismatch")


def test_weights_and_fusion_are_of_the_request(make: Make, corpus: str) -> None:
    search = make(corpus, vector_weight=0.5, text_weight=0.5)
    for asked, weights in (
        ({}, (0.5, 0.5)),
        ({"vector_weight": 2}, (2, 0.5)),
        ({"vector_weight": 0.25, "bm25_weight": 3}, (0.25, 3)),
    ):
        for one in search("leaked key", fusion="rrf", **asked).results:
            ranks = zip(weights, (one.vector_rank, one.text_rank), strict=True)
            assert one.score == pytest.approx(
                sum(weight / (60 + rank) for weight, rank in ranks if rank is not None)
            )
    assert {one.match_type for one in search("leaked key", vector_weight=0).results} == {"text"}
    with pytest.raises(InvalidInputError, match="both 0"):
        search("leaked key", vector_weight=0, text_weight=0)
