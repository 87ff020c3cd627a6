"""What a provider tells of a hit, of an embedding that it ignored, and of its confidence."""

import pytest
from retrieving import LEAK, REMINDER, ROTATION, fill

from second_brain.services.postgres import PostgresProvider


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
    _, fused = provider.hybrid_search_batch(
        [
            {"query_embedding": bad, "query_text": "zebra", "on_bad_embedding": "text"},
            {"query_text": "unicorn"},
        ],
        fuse=True,
    )
    assert "ignored" in fused["notes"]["embedding"]


def test_confidence_is_the_share_of_the_best_possible_score(corpus: str) -> None:
    hits, _ = PostgresProvider(corpus, on_error="empty").hybrid_search(
        [0, 0.1, 1], "leaked key", vector_weight=0.5
    )
    assert hits[0].confidence == pytest.approx(1)
    for hit in hits:
        best = (0.5 + 1) / 61
        assert hit.confidence == pytest.approx((hit.metadata["rrf_score"] or 0) / best)
