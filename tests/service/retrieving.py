"""A corpus whose embeddings are made by hand, and services of both kinds that search it."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import date
from typing import Any
from uuid import UUID

import httpx
import numpy as np
import psycopg
import pytest

from corpora import store_document
from second_brain.models import CallableEmbedder
from second_brain.retrieval.answer import SearchResponse
from second_brain.retrieval.retrieval import AnyReranker
from second_brain.retrieval.service import AsyncRetrievalService, RetrievalService
from second_brain.retrieval.settings import SearchSettings
from second_brain.services.postgres import AsyncPostgresProvider, PostgresProvider

ALICE = UUID("00000000-0000-0000-0000-00000000000a")

# What the question's words mean: money, hardware, access.
MEANING = {
    "invoice": (1.0, 0.0, 0.0),
    "reminder": (0.9, 0.0, 0.1),
    "recorder": (0.0, 1.0, 0.0),
    "cameras": (0.1, 1.0, 0.0),
    "key": (0.0, 0.0, 1.0),
    "leaked": (0.0, 0.1, 1.0),
}

CREDIT_NOTE = "An invoice is cancelled by a credit note."
REMINDER = "The first reminder goes out 14 days after the due date."
RECORDER = "After a power cut the recorder shows no cameras."
ROTATION = "Service role keys stay on the server and are rotated."
LEAK = "A leaked key is revoked first and replaced afterwards."

Search = Callable[..., SearchResponse]
Make = Callable[..., Search]


def embedded(texts: Sequence[str], dimensions: int = 3) -> list[list[float]]:
    vectors = [
        np.sum([MEANING.get(word, (0, 0, 0)) for word in text.lower().split()], axis=0)
        for text in texts
    ]
    return [vector[:dimensions].tolist() for vector in vectors]


BY_HAND = CallableEmbedder(embedded, "by-hand", 3)


def out_of_order(question: str, passages: Sequence[str]) -> list[float]:
    """Score the passage that is nearest to the end of the alphabet highest."""
    ordered = sorted(passages)
    return [float(ordered.index(passage)) for passage in passages]


def unreachable(_: Sequence[str]) -> list[list[float]]:
    """Call a model server that is not there."""
    return httpx.post("http://127.0.0.1:9/embed", trust_env=False).json()  # type: ignore[no-any-return]


DOWN = CallableEmbedder(unreachable, "by-hand", 3)


def fill(dsn: str, model: str | None = "by-hand", dimensions: int = 3) -> None:
    documents: dict[str, tuple[dict[str, Any], dict[str, list[float]]]] = {
        "handbook/invoices": (
            {
                "title": "Invoices",
                "knowledge_type": "document",
                "visibility": "public",
                "source_url": "https://example.org/invoices",
                "metadata": {"team": "finance", "tags": ["billing"]},
            },
            {CREDIT_NOTE: [0.9, 0.1, 0.2], REMINDER: [0.8, 0.0, 0.1]},
        ),
        "tickets/4711": (
            {
                "title": "Recorder",
                "knowledge_type": "conversation",
                "collection": "tickets",
                "document_date": date(2025, 3, 14),
                "metadata": {"tags": ["hardware"]},
            },
            {RECORDER: [0.1, 0.9, 0.1]},
        ),
        "decisions/keys": (
            {
                "title": "API keys",
                "knowledge_type": "decision",
                "owner_id": ALICE,
                "document_date": date(2025, 11, 3),
                "metadata": {"team": "platform", "tags": ["security", "api"]},
            },
            {ROTATION: [0.1, 0.2, 0.9], LEAK: [0.0, 0.1, 0.9]},
        ),
    }
    with psycopg.connect(dsn, autocommit=True) as connection:
        for key, (document, texts) in documents.items():
            sized = {text: embedding[:dimensions] for text, embedding in texts.items()}
            store_document(connection, key, sized, model or "by-hand", **document)
        if model is None:
            connection.execute("update public.knowledge_chunks set embedding_model = null")


@pytest.fixture(scope="module")
def corpus(shared_dsn: str) -> str:
    """Return the DSN of five chunks that no test changes."""
    fill(shared_dsn)
    return shared_dsn


def sync_search(
    dsn: str,
    embedder: Any = BY_HAND,
    reranker: AnyReranker | None = None,
    *,
    provider: dict[str, Any] | None = None,
    **settings: Any,
) -> Search:
    service = RetrievalService(
        PostgresProvider(dsn, **provider or {}),
        embedder,
        reranker,  # type: ignore[arg-type]
        SearchSettings(**settings),
    )
    return service.search


def async_search(
    dsn: str,
    embedder: Any = BY_HAND,
    reranker: AnyReranker | None = None,
    *,
    provider: dict[str, Any] | None = None,
    **settings: Any,
) -> Search:
    service = AsyncRetrievalService(
        AsyncPostgresProvider(dsn, **provider or {}), embedder, reranker, SearchSettings(**settings)
    )
    return lambda *asked, **options: asyncio.run(service.search(*asked, **options))


@pytest.fixture(params=[sync_search, async_search], ids=["sync", "async"])
def make(request: pytest.FixtureRequest) -> Make:
    """Build a service of either kind, as the function that searches with it."""
    made: Make = request.param
    return made


def contents(response: SearchResponse) -> list[str]:
    return [one.content for one in response.results]


def ranks(response: SearchResponse) -> list[int]:
    return [one.rank for one in response.results]
