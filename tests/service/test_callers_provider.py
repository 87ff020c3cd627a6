"""A caller of the earlier hybrid search RPC and its provider, with nothing but its names."""

import psycopg
import pytest
from retrieving import LEAK, REMINDER, ROTATION, fill

from second_brain.services.memory import MemorySearchResult
from second_brain.services.postgres import PostgresProvider
from second_brain.services.supabase import SupabaseProvider
from second_brain.services.write import KnowledgeWriter


@pytest.fixture(scope="module")
def corpus(shared_dsn: str) -> str:
    fill(shared_dsn)
    return shared_dsn


def test_the_default_is_weighted_rrf_with_k_60(corpus: str) -> None:
    hits, _ = PostgresProvider(corpus).hybrid_search(
        [0, 0, 1], "leaked key", vector_weight=0.7, text_weight=0.3
    )
    assert hits
    for hit in hits:
        ranks = ((0.7, hit.metadata["vector_rank"]), (0.3, hit.metadata["text_rank"]))
        expected = sum(weight / (60 + rank) for weight, rank in ranks if rank is not None)
        assert hit.metadata["rrf_score"] == pytest.approx(expected)


def test_results_are_importable_where_they_were(corpus: str) -> None:
    hits, _ = PostgresProvider(corpus).fulltext_search("leaked")
    assert [type(hit) for hit in hits] == [MemorySearchResult]


@pytest.mark.parametrize("origin", ["zoom", "json", "text", "leadworks"])
def test_the_earlier_source_origins_are_stored_and_found(dsn: str, origin: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        KnowledgeWriter(connection).upsert_document(
            {"external_key": origin, "source_origin": origin}, [{"content": "A kiwi."}]
        )
    provider = PostgresProvider(dsn)
    (hit,), _ = provider.hybrid_search(None, "kiwi", filters={"source_origin": origin})
    assert hit.metadata["source_origin"] == origin


def test_the_providers_config_is_readable() -> None:
    config = {"supabase_url": "https://x.supabase.co", "supabase_key": "key"}
    assert SupabaseProvider(config).config == config


def test_a_hit_tells_its_heading_its_document_and_its_collections(corpus: str) -> None:
    hits, _ = PostgresProvider(corpus).hybrid_search([1, 0, 0], "reminder")
    (found,) = (hit for hit in hits if hit.content == REMINDER)
    assert found.metadata["external_key"] == "handbook/invoices"
    assert found.metadata["collections"] == ["knowledge"]
    assert found.metadata["document_chunks"] == 2
    assert found.metadata["is_chunk"] is True
    assert (found.metadata["heading"], found.metadata["sensitivity"]) == ("Invoices", None)


@pytest.mark.parametrize("embedding", [[1.0, 0.0], [0.0, 0.0, 0.0]], ids=["size", "zero"])
def test_an_ignored_embedding_is_in_the_details(corpus: str, embedding: list[float]) -> None:
    provider = PostgresProvider(corpus)
    hits, details = provider.hybrid_search(embedding, "leaked key", on_bad_embedding="text")
    assert [hit.content for hit in hits] == [LEAK, ROTATION]
    assert "ignored: query_embedding" in details["notes"]["embedding"]
    assert "fallback_reason" not in details
    refused, details = provider.hybrid_search(embedding, "leaked key")
    assert refused == []
    assert "query_embedding" in details["error_message"]


@pytest.mark.parametrize("offset", [0, 5])
def test_an_ignored_embedding_is_told_without_a_row_too(corpus: str, offset: int) -> None:
    provider = PostgresProvider(corpus)
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
    provider = PostgresProvider(corpus)
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
    hits, _ = PostgresProvider(corpus).hybrid_search([0, 0.1, 1], "leaked key", vector_weight=0.5)
    assert hits[0].confidence == pytest.approx(1)
    for hit in hits:
        best = (0.5 + 1) / 61
        assert hit.confidence == pytest.approx((hit.metadata["rrf_score"] or 0) / best)
