"""What a provider and the service tell of a hit, of an ignored embedding, and of confidence."""

import pytest
from retrieving import ALICE, BY_HAND, LEAK, REMINDER, ROTATION, fill, out_of_order

from second_brain.mcp_server.text import as_text, found
from second_brain.retrieval import RetrievalService
from second_brain.services.postgres import PostgresProvider
from second_brain.services.results import OFF_SUBJECT, off_subject_note


@pytest.fixture(scope="module")
def corpus(shared_dsn: str) -> str:
    fill(shared_dsn)
    return shared_dsn


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
