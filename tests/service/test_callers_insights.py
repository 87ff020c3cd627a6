"""A caller of the earlier insights search, with nothing but its names."""

from typing import Any
from uuid import UUID

import pytest
from retrieving import (
    ALICE,
    BY_HAND,
    CREDIT_NOTE,
    LEAK,
    REMINDER,
    ROTATION,
    contents,
    fill,
    out_of_order,
)

from second_brain import RetrievalService
from second_brain.services.postgres import PostgresProvider


@pytest.fixture(scope="module")
def corpus(shared_dsn: str) -> str:
    fill(shared_dsn)
    return shared_dsn


@pytest.mark.parametrize("fusion", ["rrf", "relative_score", "auto", "stored_or_auto"])
@pytest.mark.parametrize("mode", ["hybrid", "vector", "text", "rerank"])
def test_confidence_is_in_0_to_1_and_falls_with_the_rank(
    corpus: str, mode: Any, fusion: Any
) -> None:
    service = RetrievalService(PostgresProvider(corpus), BY_HAND, out_of_order)
    response = service.search("leaked key", mode=mode, fusion=fusion, vector_weight=3)
    found = sorted(response.results, key=lambda one: one.original_rank or one.rank)
    reported = [one.confidence for one in found]
    assert all(0 <= one <= 1 for one in reported)
    assert reported == sorted(reported, reverse=True)
    assert reported[0] > 0.5
    if mode == "vector":
        assert reported == pytest.approx([max(one.similarity or 0, 0) for one in found])
    elif mode == "text":
        scores = [one.text_score or 0 for one in found]
        assert reported == pytest.approx([score / (1 + score) for score in scores])
    elif fusion in ("rrf", "relative_score"):
        assert reported[0] == pytest.approx(1)
    else:
        # Best by words, it lacks of the highest score what its cosine lacks of 1.
        assert found[0].similarity is not None
        assert 0.99 < found[0].similarity < reported[0] < 1


def test_confidence_of_the_providers_single_legs_is_in_0_to_1(corpus: str) -> None:
    provider = PostgresProvider(corpus)
    by_meaning, _ = provider.search([0, 0, 1])
    by_words, _ = provider.fulltext_search("leaked key")
    for hits in (by_meaning, by_words):
        reported = [hit.confidence for hit in hits]
        assert reported == sorted(reported, reverse=True)
        assert all(0 < one <= 1 for one in reported)


def test_a_bad_embedding_is_answered_by_words_inside_the_call(corpus: str) -> None:
    provider = PostgresProvider(corpus)
    hits, details = provider.find([1.0, 0.0], "leaked key", on_bad_embedding="text")
    assert [hit.content for hit in hits] == [LEAK, ROTATION]
    assert "2 dimensions" in details["notes"]["embedding"]
    pages = list(
        provider.search_pages([0.0, 0.0, 0.0], "leaked key", top_k=1, on_bad_embedding="text")
    )
    assert [hits[0].content for hits, _ in pages] == [LEAK, ROTATION]
    assert all("notes" in details for _, details in pages)


@pytest.mark.parametrize(
    ("scope", "keys", "invoices"),
    [
        ({}, [LEAK, ROTATION], {CREDIT_NOTE, REMINDER}),
        ({"viewer_id": ALICE}, [LEAK, ROTATION], {CREDIT_NOTE, REMINDER}),
        ({"viewer_id": UUID(int=1)}, [], {CREDIT_NOTE, REMINDER}),
        ({"public_only": True}, [], {CREDIT_NOTE, REMINDER}),
        ({"viewer_id": ALICE, "public_only": True}, [], {CREDIT_NOTE, REMINDER}),
    ],
    ids=["everything", "the owner", "a stranger", "public", "the owner and public only"],
)
def test_both_searches_take_the_user_public_only_and_at_most_20(
    corpus: str, scope: dict[str, Any], keys: list[str], invoices: set[str]
) -> None:
    provider = PostgresProvider(corpus)
    semantic, details = provider.search([0, 0, 1], 20, 0.6, **scope)
    assert [hit.content for hit in semantic] == keys
    assert all((hit.metadata["similarity"] or 0) >= 0.6 for hit in semantic)
    assert (details["mode"], details["raw_count"]) == ("vector", len(keys))
    by_default, _ = provider.search([0, 0, 1], 20, **scope)
    assert by_default == semantic
    keyword, details = provider.fulltext_search("leaked or reminder or invoice", 20, **scope)
    assert {hit.content for hit in keyword} == {LEAK}.intersection(keys) | invoices
    assert all(0 < hit.confidence <= 1 for hit in keyword)
    (best,), _ = provider.fulltext_search("leaked or reminder", 1, **scope)
    assert best.content in {LEAK, REMINDER}


def test_the_service_answers_public_rows_with_a_threshold(corpus: str) -> None:
    service = RetrievalService(PostgresProvider(corpus), BY_HAND)
    response = service.search("invoice", public_only=True, min_similarity=0.6, limit=20)
    assert {one.title for one in response.results} == {"Invoices"}
    assert LEAK not in contents(response)
