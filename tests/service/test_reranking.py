"""RetrievalService: reranked lists."""

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from retrieving import (
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
    ranks,
)

from second_brain.errors import MissingExtraError

__all__ = ["corpus", "make"]  # fixtures


def test_a_reranked_list_is_ordered_by_the_reranker(make: Make, corpus: str) -> None:
    response = make(corpus, reranker=out_of_order)("leaked key", mode="rerank", limit=3)
    assert contents(response) == [REMINDER, ROTATION, CREDIT_NOTE]
    assert [one.rerank_score for one in response.results] == [4.0, 3.0, 2.0]
    fused = contents(make(corpus)("leaked key"))
    assert [fused[one.original_rank - 1] for one in response.results if one.original_rank] == (
        contents(response)
    )
    assert (response.mode, response.mode_used) == ("rerank", "rerank")
    assert [one.score for one in response.results] == [one.confidence for one in response.results]
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
