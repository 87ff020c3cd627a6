"""The service with like_ids: with a question, and without one."""

import pytest
from pydantic import ValidationError
from retrieving import (
    BY_HAND,
    CREDIT_NOTE,
    LEAK,
    RECORDER,
    REMINDER,
    ROTATION,
    Make,
    contents,
    corpus,
    make,
    out_of_order,
)

from second_brain import RetrievalService
from second_brain.models import CallableEmbedder
from second_brain.retrieval.query import SearchQuery
from second_brain.retrieval.retrieval import AnyReranker
from second_brain.services.postgres import PostgresProvider

__all__ = ["corpus", "make"]  # fixtures


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
