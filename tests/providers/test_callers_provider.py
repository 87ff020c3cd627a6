"""Callers of the hybrid search RPC and its provider: a test for each row of compatibility.md.

The code is a caller's: it imports nothing of this test suite.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import psycopg
import pytest
import sqlparse
from pgvector import Vector

from second_brain import KnowledgeWriter, PostgresProvider
from second_brain.database import migrations
from second_brain.services.memory import MemorySearchResult
from second_brain.services.supabase import SupabaseProvider

KEYS = "Service role keys stay on the server and are rotated."
LEAK = "A leaked key is revoked first."
INVOICE = "An invoice is cancelled by a credit note."
RRF_ROW = {
    "id": "chunk-001",
    "content": "Rotate the signing keys.",
    "knowledge_type": "document",
    "document_id": "doc-001",
    "chunk_index": 0,
    "source_origin": "notion",
    "metadata": {"title": "Keys"},
    "rrf_score": 0.0325,
    "vector_rank": 1,
    "text_rank": 2,
}


@pytest.fixture(scope="module")
def dsn_of_keys(shared_dsn: str) -> str:
    with psycopg.connect(shared_dsn, autocommit=True) as connection:
        KnowledgeWriter(connection).upsert_document(
            {"external_key": "keys", "title": "Security", "source_origin": "notion"},
            [
                {"content": KEYS, "embedding_model": "m", "embedding": [0.1, 0.2, 0.9]},
                {"content": LEAK, "embedding_model": "m", "embedding": [0.0, 0.1, 0.9]},
                {"content": INVOICE, "embedding_model": "m", "embedding": [0.9, 0.1, 0.0]},
            ],
        )
    return shared_dsn


@pytest.fixture
def provider(dsn_of_keys: str) -> PostgresProvider:
    return PostgresProvider(dsn_of_keys, on_error="empty")


def mocked(rows: list[dict[str, Any]]) -> MagicMock:
    client = MagicMock()
    client.rpc.return_value.execute.return_value.data = rows
    return client


def test_the_default_fusion_is_weighted_rrf(dsn_of_keys: str) -> None:
    # Differs: a new install stores auto.
    assert migrations.FUSION == "auto"

    def is_rrf(fusion: str | None = None) -> bool:
        rows = connection.execute(
            """
            select rrf_score, vector_rank, text_rank from public.hybrid_search_knowledge_chunks(
              query_embedding => '[0, 0, 1]', query_text => 'leaked key',
              vector_weight => 0.7, text_weight => 0.3, fusion => %s
            )
            """,
            [fusion],
        ).fetchall()
        assert len(rows) == 3
        return all(
            score
            == pytest.approx(
                sum(w / (60 + rank) for w, rank in zip((0.7, 0.3), ranks, strict=True) if rank)
            )
            for score, *ranks in rows
        )

    with psycopg.connect(dsn_of_keys) as connection:
        assert is_rrf()
        connection.execute("select public.set_knowledge_settings(fusion => 'auto')")
        assert not is_rrf()
        assert is_rrf("rrf")
        connection.rollback()


@pytest.mark.parametrize("top_k", [5, 1000])
def test_a_client_mocked_by_magic_mock_of_which_only_data_is_set(top_k: int) -> None:
    provider = SupabaseProvider(client=mocked([{**RRF_ROW, "similarity": 0.82, "rank": 0.4}]))
    for results, details in (
        provider.hybrid_search([0.1, 0.2], "keys", top_k=top_k),
        provider.search([0.1, 0.2], top_k=top_k),
        provider.fulltext_search("keys", top_k=top_k),
    ):
        assert [one.id for one in results] == ["chunk-001"]
        assert "fallback_reason" not in details


def test_a_fake_client_with_rpc_name_and_params() -> None:
    called = []

    class FakeClient:
        def rpc(self, name: str, params: dict[str, Any]) -> "FakeClient":
            called.append(name)
            return self

        def execute(self) -> Any:
            return SimpleNamespace(data=[RRF_ROW])

    provider = SupabaseProvider(client=FakeClient())  # type: ignore[arg-type]
    for results, _ in (
        provider.hybrid_search([0.1, 0.2], "keys"),
        provider.search([0.1, 0.2]),
        provider.fulltext_search("keys"),
    ):
        assert [one.id for one in results] == ["chunk-001"]
    assert called == [
        "hybrid_search_knowledge_chunks",
        "match_knowledge_chunks",
        "search_knowledge_chunks_fulltext",
    ]


def test_sqlparse_and_pgvector_are_used(provider: PostgresProvider) -> None:
    as_list, _ = provider.hybrid_search([0.0, 0.1, 0.9], "leaked key")
    assert provider.hybrid_search(Vector([0.0, 0.1, 0.9]), "leaked key")[0] == as_list
    folder = Path(__file__).parents[2] / "migrations"
    statements = sqlparse.split((folder / "010_searches.sql").read_text())
    assert sum("create function" in one for one in statements) >= 2


def test_websearch_requires_all_words(provider: PostgresProvider) -> None:
    # Differs: a chunk with some of the words is found too; "simple" requires all.
    results, _ = provider.fulltext_search("leaked key server")
    assert {one.content for one in results} == {LEAK, KEYS}
    results, _ = provider.fulltext_search("leaked key server", search_mode="simple")
    assert results == []


def test_ts_rank_cd_in_the_text_leg(provider: PostgresProvider) -> None:
    # Differs: BM25, in which a rare word counts more, and which is not below 1.
    results, _ = provider.fulltext_search("leaked key")
    assert results[0].content == LEAK
    assert (results[0].metadata["text_score"] or 0) > 1


def test_an_unknown_search_mode_means_websearch(provider: PostgresProvider) -> None:
    # Differs: it is refused.
    results, details = provider.hybrid_search([0, 0, 1], "leaked key", search_mode="fuzzy")
    assert results == []
    assert details["code"] == "22023"
    assert "websearch, simple, phrase" in details["error_message"]


@pytest.mark.parametrize("origin", ["zoom", "json", "text", "leadworks"])
def test_source_origins_zoom_json_text_leadworks(dsn: str, origin: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "insert into public.knowledge_source_origins values (%s) on conflict do nothing",
            [origin],
        )
        KnowledgeWriter(connection).upsert_document(
            {"external_key": origin, "source_origin": origin}, [{"content": "A kiwi."}]
        )
    filters = {"source_origin": origin}
    (result,), _ = PostgresProvider(dsn, on_error="empty").hybrid_search(
        None, "kiwi", filters=filters
    )
    assert result.metadata["source_origin"] == origin


def test_memory_search_result_is_importable_and_config_readable(provider: PostgresProvider) -> None:
    results, _ = provider.fulltext_search("leaked")
    assert [type(one) for one in results] == [MemorySearchResult]
    config = {"supabase_url": "https://x.supabase.co", "supabase_key": "key"}
    assert SupabaseProvider(config).config == config


@pytest.mark.parametrize(
    ("wrong", "named"),
    [({"top_k": 0}, "top_k"), ({"top_k": 1001}, "top_k"), ({"threshold": 1.5}, "1.5")],
)
def test_top_k_and_thresholds_are_clamped(
    provider: PostgresProvider, wrong: dict[str, Any], named: str
) -> None:
    # Differs: they are refused.
    results, details = provider.hybrid_search([0, 0, 1], "leaked key", **wrong)
    assert results == []
    assert named in details["error_message"]


def test_wrappers_search_tables_themselves(dsn_of_keys: str) -> None:
    # Differs: they call the one RPC.
    with psycopg.connect(dsn_of_keys) as connection:
        for wrapper in ("match_knowledge_chunks", "search_knowledge_chunks_fulltext"):
            row = connection.execute(
                "select prosrc from pg_proc where oid = %s::regproc", [f"public.{wrapper}"]
            ).fetchone()
            assert row is not None
            assert "public.hybrid_search_knowledge_chunks(" in row[0]
            assert "public.knowledge_chunks" not in row[0]


def test_blank_text_returns_empty_query(provider: PostgresProvider) -> None:
    # Differs: it searches by vector.
    results, details = provider.hybrid_search(np.array([0.0, 0.1, 0.9]), "  ")
    assert results[0].content == LEAK
    assert {one.metadata["match_type"] for one in results} == {"vector"}
    assert "fallback_reason" not in details


def test_hybrid_search_chunks(dsn_of_keys: str) -> None:
    # Differs: there is no function of this name.
    with psycopg.connect(dsn_of_keys) as connection:
        row = connection.execute(
            "select to_regproc('public.hybrid_search_chunks'),"
            " to_regproc('public.hybrid_search_knowledge_chunks')"
        ).fetchone()
    assert row is not None
    assert row[0] is None
    assert row[1] is not None
