"""RetrievalService: which answers are cached, and until when."""

from collections.abc import Sequence
from typing import Any

import psycopg
import pytest
from retrieving import (
    ALICE,
    BY_HAND,
    LEAK,
    Make,
    contents,
    corpus,
    embedded,
    fill,
    make,
    sync_search,
    unreachable,
)

from second_brain.errors import InvalidInputError
from second_brain.models import CallableEmbedder
from second_brain.retrieval.service import RetrievalService
from second_brain.retrieval.settings import SearchSettings
from second_brain.services import last_write
from second_brain.services.postgres import PostgresProvider
from second_brain.services.write import KnowledgeWriter

__all__ = ["corpus", "make"]  # fixtures


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
def test_an_answer_is_kept_for_the_very_same_question(corpus: str, other: dict[str, Any]) -> None:
    search = sync_search(corpus, search_cache_enabled=True)
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


def test_clear_cache_is_for_writes_from_elsewhere(corpus: str) -> None:
    service = RetrievalService(
        PostgresProvider(corpus), BY_HAND, settings=SearchSettings(search_cache_enabled=True)
    )
    service.search("leaked key")
    service.clear_cache()
    assert not service.search("leaked key").cached
