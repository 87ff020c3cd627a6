"""RetrievalService: which answers are cached, what a search says of itself, how sure it is."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
import pytest
from retrieving import (
    ALICE,
    BY_HAND,
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
    sync_search,
    unreachable,
)

from second_brain.errors import ConfigurationError, InvalidInputError
from second_brain.mcp_server.text import as_text, found
from second_brain.models import CallableEmbedder
from second_brain.retrieval.answer import Explanation
from second_brain.retrieval.query import OperatorQuery, SearchQuery
from second_brain.retrieval.service import AsyncRetrievalService, RetrievalService
from second_brain.retrieval.settings import SearchSettings
from second_brain.services import last_write
from second_brain.services.postgres import AsyncPostgresProvider, PostgresProvider
from second_brain.services.results import OFF_SUBJECT, off_subject_note
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


Ask = Callable[..., Any]


def blocking_service(dsn: str, embedder: Any = BY_HAND, **settings: Any) -> Ask:
    service = RetrievalService(PostgresProvider(dsn), embedder, settings=SearchSettings(**settings))
    return lambda name, *asked, **options: getattr(service, name)(*asked, **options)


def loop_service(dsn: str, embedder: Any = BY_HAND, **settings: Any) -> Ask:
    service = AsyncRetrievalService(
        AsyncPostgresProvider(dsn), embedder, settings=SearchSettings(**settings)
    )
    return lambda name, *asked, **options: asyncio.run(getattr(service, name)(*asked, **options))


@pytest.fixture(params=[blocking_service, loop_service], ids=["sync", "async"])
def asking(request: pytest.FixtureRequest) -> Callable[..., Ask]:
    """Build a service of either kind."""
    made: Callable[..., Ask] = request.param
    return made


def test_an_explanation_has_the_hits_of_the_search_and_its_pool(
    asking: Callable[..., Ask], corpus: str
) -> None:
    ask = asking(corpus)
    found = ask("search", "leaked key", limit=2, offset=1)
    explained: Explanation = ask("explain", "leaked key", limit=2, offset=1)
    assert explained.hits(1) == [one.model_copy(update={"metadata": {}}) for one in found.results]
    assert (explained.embedding_model, explained.degraded) == ("by-hand", None)
    assert explained.timings.embed > 0
    assert explained.answer["pool"] == 50
    # The largest of the setting, three times the limit, and the rows asked for.
    assert ask("explain", "leaked key", limit=40).answer["pool"] == 120


@pytest.mark.parametrize("mode", ["text", "vector", "rerank"])
def test_an_explanation_is_of_the_legs_of_the_mode(
    asking: Callable[..., Ask], corpus: str, mode: str
) -> None:
    explained = asking(corpus)("explain", "leaked key", mode=mode).answer
    run = {leg for leg in ("vector", "text") if explained[leg]["strategy"] != "not run"}
    assert run == ({"vector", "text"} if mode == "rerank" else {mode})
    assert len(explained["hits"]) <= 10


def test_an_estimate_finds_nothing_and_has_milliseconds(
    asking: Callable[..., Ask], corpus: str
) -> None:
    estimated = asking(corpus)("estimate", SearchQuery(query="leaked key"), viewer_id=None).answer
    assert estimated["milliseconds"] > 0
    assert "hits" not in estimated


def test_a_chunk_that_is_not_found_has_its_cause(asking: Callable[..., Ask], corpus: str) -> None:
    ask = asking(corpus)
    missing = ask("why_not", "leaked key", "tickets/4711", mode="text").answer
    assert [one["cause"] for one in missing["causes"]] == ["no_words"]
    (hit,) = ask("search", "recorder", mode="text").results
    assert hit.content == RECORDER
    assert ask("why_not", "recorder", hit.id).answer["place"] == 1


def test_facets_count_the_chunks_that_have_the_words(
    asking: Callable[..., Ask], corpus: str
) -> None:
    for mode in ("text", "vector"):
        counts = asking(corpus)("facets", "key", ["knowledge_type"], mode=mode)
        assert [(one.value, one.count) for one in counts] == [("decision", 2)]


def test_a_failed_embedder_leaves_the_words_and_says_so(
    asking: Callable[..., Ask], corpus: str
) -> None:
    explained: Explanation = asking(corpus, DOWN)("explain", "leaked key")
    assert [hit.content for hit in explained.hits()][:2] == [LEAK, ROTATION]
    assert explained.is_inferred
    assert explained.degraded is not None
    assert explained.degraded.part == "embed"


def test_the_last_word_may_be_unfinished(asking: Callable[..., Ask], corpus: str) -> None:
    ask = asking(corpus)
    assert ask("search", "rec", mode="text").results == []
    query = SearchQuery(query="rec", mode="text", prefix_last=True)
    (hit,) = ask("search", query, viewer_id=None).results
    assert hit.content == RECORDER


def test_an_operator_may_ask_for_more_and_rerank_one_leg(corpus: str) -> None:
    service = RetrievalService(
        PostgresProvider(corpus), BY_HAND, lambda _, texts: [len(text) for text in texts]
    )
    query = OperatorQuery(
        query="leaked key " + 300 * "key ", limit=1000, mode="rerank", reranked_leg="text"
    )
    response = service.search(query, viewer_id=None)
    assert (response.limit, response.mode_used) == (1000, "rerank")
    assert {one.match_type for one in response.results} == {"text"}


def test_the_embedder_is_that_of_the_corpus(asking: Callable[..., Ask], corpus: str) -> None:
    assert asking(corpus)("embedder").model == "by-hand"
    with pytest.raises(ConfigurationError, match="by-hand"):
        asking(corpus, DOWN.__class__(lambda _: [], "other", 3))("embedder")


def test_a_hit_tells_its_heading_its_document_and_its_collections(corpus: str) -> None:
    hits, _ = PostgresProvider(corpus, on_error="empty").hybrid_search([1, 0, 0], "reminder")
    (found,) = (hit for hit in hits if hit.content == REMINDER)
    assert found.metadata["external_key"] == "handbook/invoices"
    assert found.metadata["collections"] == ["knowledge"]
    assert found.metadata["document_chunks"] == 2
    assert found.metadata["is_chunk"] is True
    assert (found.metadata["heading"], found.metadata["sensitivity"]) == ("Invoices", None)


@pytest.mark.parametrize("embedding", [[1.0, 0.0], [0.0, 0.0, 0.0]], ids=["size", "zero"])
def test_an_ignored_embedding_is_in_the_details(corpus: str, embedding: list[float]) -> None:
    provider = PostgresProvider(corpus, on_error="empty")
    hits, details = provider.hybrid_search(embedding, "leaked key", on_bad_embedding="text")
    assert [hit.content for hit in hits] == [LEAK, ROTATION]
    assert "ignored: query_embedding" in details["notes"]["embedding"]
    assert "fallback_reason" not in details
    refused, details = provider.hybrid_search(embedding, "leaked key")
    assert refused == []
    assert "query_embedding" in details["error_message"]


@pytest.mark.parametrize("offset", [0, 5])
def test_an_ignored_embedding_is_told_without_a_row_too(corpus: str, offset: int) -> None:
    provider = PostgresProvider(corpus, on_error="empty")
    hits, details = provider.hybrid_search(
        [1.0, 0.0], "zebra", on_bad_embedding="text", match_offset=offset
    )
    assert (hits, details["total_count"]) == ([], None)
    assert "ignored: query_embedding" in details["notes"]["embedding"]
    hits, details = provider.hybrid_search([1.0, 0.0, 0.0], "zebra", on_bad_embedding="text")
    assert "notes" not in details
    none = [{"field": "collection", "op": "eq", "value": "none"}]
    hits, details = provider.hybrid_search(
        [1.0, 0.0, 0.0], "zebra", on_bad_embedding="text", filters=none
    )
    assert (hits, "notes" in details) == ([], False)


def test_each_query_of_a_batch_tells_what_it_ignored(corpus: str) -> None:
    provider = PostgresProvider(corpus, on_error="empty")
    bad, good = [1.0, 0.0], [1.0, 0.0, 0.0]
    hits, details = provider.hybrid_search_batch(
        [
            {"query_embedding": bad, "query_text": "leaked key", "on_bad_embedding": "text"},
            {"query_embedding": good, "query_text": "zebra", "on_bad_embedding": "text"},
            {"query_embedding": bad, "query_text": "zebra", "on_bad_embedding": "text"},
        ]
    )
    assert [len(one) > 0 for one in hits] == [True, True, False]
    reported = details["notes"]
    assert [one is not None for one in reported] == [True, False, True]


def test_an_answer_has_one_confidence_on_all_pages_and_past_them(corpus: str) -> None:
    provider = PostgresProvider(corpus)
    pages = [
        provider.hybrid_search([1, 0, 0], "leaked tulips", top_k=2, match_offset=offset)
        for offset in (0, 2, 9)
    ]
    (one,) = {details["answer_confidence"] for _, details in pages}
    assert 0 < (one or 0) < 1
    assert {hit.metadata["answer_confidence"] for hits, _ in pages for hit in hits} == {one}
    # A batch has one for each query, and what has no hit or another function has none.
    _, batch = provider.hybrid_search_batch([{"query_text": "leaked"}, {"query_text": "zebra"}])
    first, none = batch["answer_confidence"] or []
    assert (first or 0) > 0.9
    assert none is None
    assert "answer_confidence" not in provider.search([1, 0, 0])[1]
    assert "answer_confidence" not in provider.fulltext_search("leaked")[1]


def test_the_service_warns_of_hits_that_are_off_the_subject(corpus: str) -> None:
    service = RetrievalService(PostgresProvider(corpus), BY_HAND, out_of_order)
    apt = service.search("leaked key", viewer_id=ALICE)
    assert (apt.answer_confidence or 0) > 0.9
    reranked = service.search("leaked key", mode="rerank", viewer_id=ALICE)
    assert reranked.answer_confidence == apt.answer_confidence
    off = service.search("leaked tulips bloom with violets", mode="text", viewer_id=ALICE)
    assert off.results
    assert 0 < (off.answer_confidence or 0) < OFF_SUBJECT
    note = off_subject_note(off.answer_confidence)
    assert note is not None
    texts = [as_text(found(one), one) for one in (off, apt)]
    assert [("off the subject" in text, note in text) for text in texts] == [
        (True, True),
        (False, False),
    ]
