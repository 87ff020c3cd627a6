"""Callers of the insights search: a test for each row of docs/compatibility.md.

The code is a caller's: it imports nothing of this test suite.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest

from second_brain import KnowledgeWriter, PostgresProvider, RetrievalService, SearchSettings
from second_brain.models import CallableEmbedder
from second_brain.services.arguments import FUSIONS

ANA, BEN = UUID(int=10), UUID(int=11)
LEAK = "A leaked key is revoked first."
ROTATION = "Keys are rotated."
INVOICE = "An invoice is cancelled by a credit note."
REMINDER = "The first reminder goes out after 14 days."


def embed(texts: Sequence[str]) -> list[list[float]]:
    return [[1.0 * ("invoice" in text), 0.1, 1.0 * ("key" in text)] for text in texts]


EMBEDDER = CallableEmbedder(embed, "by-hand", 3)


@pytest.fixture(scope="module")
def insights(shared_dsn: str) -> str:
    """Return the DSN of Ana's two private chunks about keys, and two public ones."""
    keys, public = {"owner_id": ANA}, {"visibility": "public"}
    with psycopg.connect(shared_dsn, autocommit=True) as connection:
        for key, document, texts in (
            ("keys", keys, {LEAK: [0, 0.1, 1], ROTATION: [0, 0.5, 1]}),
            ("invoices", public, {INVOICE: [1, 0.1, 0], REMINDER: [0.8, 0.6, 0]}),
        ):
            chunks = [
                {"content": text, "embedding": vector, "embedding_model": "by-hand"}
                for text, vector in texts.items()
            ]
            KnowledgeWriter(connection).upsert_document({"external_key": key, **document}, chunks)
    return shared_dsn


@pytest.fixture
def provider(insights: str) -> PostgresProvider:
    return PostgresProvider(insights)


@pytest.mark.parametrize(
    ("scope", "keys"),
    [
        ({}, [LEAK, ROTATION]),
        ({"viewer_id": ANA}, [LEAK, ROTATION]),
        ({"viewer_id": BEN}, []),
        ({"viewer_id": ANA, "public_only": True}, []),
    ],
    ids=["everything", "the owner", "a stranger", "public only"],
)
def test_semantic_and_keyword_rpcs_take_user_public_only_threshold_and_20(
    provider: PostgresProvider, scope: dict[str, Any], keys: list[str]
) -> None:
    semantic, _ = provider.search([0, 0, 1], 20, 0.6, **scope)
    assert [one.content for one in semantic] == keys
    assert provider.search([0, 0, 1], 20, **scope)[0] == semantic
    keyword, _ = provider.fulltext_search("leaked or reminder", 20, **scope)
    assert {one.content for one in keyword} == {LEAK, REMINDER} - ({LEAK} - {*keys})


def test_the_names_of_the_rpcs(insights: str) -> None:
    # Differs: other names.
    named = "select to_regproc('public.' || name) is not null from unnest(%s::text[]) as name"
    with psycopg.connect(insights) as connection:
        for names, is_there in (
            (["search_document_chunks_semantic", "search_document_chunks_keyword"], False),
            (["match_knowledge_chunks", "search_knowledge_chunks_fulltext"], True),
        ):
            assert connection.execute(named, [names]).fetchall() == [(is_there,)] * 2


def test_one_leg_fails_and_the_other_answers_inside_the_call(provider: PostgresProvider) -> None:
    hits, details = provider.hybrid_search([1.0, 0.0], "leaked key", on_bad_embedding="text")
    assert hits[0].content == LEAK
    assert "2 dimensions" in details["notes"]["embedding"]
    by_vector, _ = provider.hybrid_search([0, 0, 1], "unicorn", on_bad_embedding="text")
    assert by_vector[0].content == LEAK


@pytest.mark.module("visitors")
def test_visitors_search_public_documents(insights: str) -> None:
    with psycopg.connect(insights, autocommit=True) as connection:
        connection.execute("grant usage on schema public to anon")
        connection.execute(
            "grant execute on function public.search_public_knowledge_chunks to anon"
        )
        connection.execute("set role anon")
        hits, _ = PostgresProvider(connection).search_public_knowledge([0, 0, 1], "leaked reminder")
    assert {one.content for one in hits} == {INVOICE, REMINDER}


def test_the_edge_function_takes_public_only_and_threshold() -> None:
    # tests/supabase/test_frontend.py runs it; here the body that a caller may send.
    functions = Path(__file__).parents[2] / "supabase" / "functions"
    source = (functions / "_shared" / "user_search.ts").read_text()
    for passed in ('public_only: { type: "boolean" }', "match_threshold: threshold"):
        assert passed in source


@pytest.mark.parametrize("fusion", FUSIONS)
@pytest.mark.parametrize("mode", ["hybrid", "vector", "text", "rerank"])
def test_relevance_is_0_to_1_in_every_mode(
    provider: PostgresProvider, mode: Any, fusion: Any
) -> None:
    service = RetrievalService(
        provider, EMBEDDER, lambda _, texts: [float(len(text)) for text in texts]
    )
    found = service.search("leaked key", mode=mode, fusion=fusion).results
    found = sorted(found, key=lambda one: one.original_rank or one.rank)
    assert found[0].content == LEAK
    assert found[0].confidence == pytest.approx(1)
    best = max(one.rrf_score or 0 for one in found)
    shares = [(one.rrf_score or 0) / best for one in found]
    assert [one.confidence for one in found] == pytest.approx(shares)


def test_relevance_of_a_single_leg_is_the_share_of_its_best_possible_score(
    provider: PostgresProvider,
) -> None:
    by_meaning, _ = provider.search([0, 0, 1])
    assert [one.confidence for one in by_meaning] == [
        one.metadata["similarity"] for one in by_meaning
    ]
    by_words, _ = provider.fulltext_search("leaked key")
    scores = [one.metadata["text_score"] or 0 for one in by_words]
    assert [one.confidence for one in by_words] == [score / scores[0] for score in scores]
    # Differs: the column itself is BM25.
    assert scores[0] > 1


@pytest.mark.module("insight")
def test_search_analytics(dsn: str) -> None:
    provider = PostgresProvider(dsn)
    service = RetrievalService(
        provider, EMBEDDER, settings=SearchSettings(query_log="without_viewer")
    )
    service.search("leaked key", mode="text")
    service.flush_query_log()
    with psycopg.connect(dsn) as connection:
        logged = connection.execute(
            "select question, mode, hits from public.knowledge_query_log"
        ).fetchall()
    assert logged == [("leaked key", "text", 0)]
