"""What a response says of chunks without an embedding: for whom, when, and if the count fails."""

import asyncio
import logging
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import psycopg
import pytest
from retrieving import Make, Search, make

from conftest import Connection
from second_brain.errors import SecondBrainError
from second_brain.models import CallableEmbedder
from second_brain.retrieval.service import AsyncRetrievalService, RetrievalService
from second_brain.services.postgres import AsyncPostgresProvider, PostgresProvider
from second_brain.services.results import pending_note
from second_brain.services.write import KnowledgeWriter
from support.documents import embedded, upsert
from waiting import await_locks

__all__ = ["make"]  # a fixture

ANA, BEN = UUID(int=1), UUID(int=2)


BY_HAND = CallableEmbedder(lambda texts: [[1.0, 0.0, 0.0] for _ in texts], "by-hand", 3)


@pytest.fixture
def search(make: Make, dsn: str) -> Search:
    """Search with a service of either kind over this test's corpus."""
    return make(dsn, BY_HAND)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a search wait for its count as long as a busy machine needs."""
    monkeypatch.setattr("second_brain.retrieval.retrieval.LONGEST_WAIT", 60.0)
    monkeypatch.setattr("second_brain.retrieval.retrieval.LONGEST_COUNT", 60.0)


@pytest.fixture(autouse=True)
def corpus(database: Connection) -> None:
    """Store an embedded chunk for everybody and two of Ben without an embedding."""
    upsert(database, "shared", embedded("zebra shared", "by-hand"), visibility="public")
    upsert(database, "plan", "zebra plan", owner_id=BEN)
    upsert(database, "draft", "zebra draft", owner_id=BEN, metadata={"team": "x"})


def replace_count(connection: Connection, body: str) -> None:
    """Replace the database's count, as a slow or a broken database."""
    connection.execute(
        "create or replace function knowledge_internal.pending_embeddings("
        " given knowledge_internal.search_arguments) returns integer language plpgsql stable"
        f" set search_path = pg_catalog as $$ begin {body} end $$".encode()
    )


def test_a_viewer_learns_only_of_visible_chunks(search: Search) -> None:
    assert search("zebra", viewer_id=BEN).pending_embeddings == 2
    assert search("zebra", viewer_id=ANA).pending_embeddings == 0
    assert search("zebra", public_only=True).pending_embeddings == 0
    assert search("zebra").pending_embeddings == 2


def test_conditions_that_hide_rows_hide_them_from_the_count(search: Search) -> None:
    required = [{"field": "metadata.team", "op": "eq", "value": "x"}]
    assert search("zebra", required_filters=required).pending_embeddings == 1
    assert search("zebra", filters={"team": "y"}).pending_embeddings == 0


def test_nothing_is_counted_in_mode_text(search: Search) -> None:
    assert search("zebra", mode="text").pending_embeddings is None
    assert search("zebra", mode="vector").pending_embeddings == 2


def test_a_count_that_fails_leaves_the_hits_and_says_so_in_the_log(
    search: Search, database: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    replace_count(database, "raise exception 'secretword';")
    with caplog.at_level(logging.WARNING):
        response = search("zebra", viewer_id=ANA)
    assert [hit.title for hit in response.results] == [None]
    assert response.pending_embeddings is None
    assert "pending chunks were not counted" in caplog.text
    assert "secretword" not in caplog.text


def test_a_search_does_not_wait_for_a_slow_count(
    search: Search, database: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("second_brain.retrieval.retrieval.LONGEST_WAIT", 0.1)
    replace_count(database, "perform pg_advisory_xact_lock(1); return 7;")
    with database.transaction():
        database.execute("select pg_advisory_xact_lock(1)")
        start = time.monotonic()
        response = search("zebra", viewer_id=BEN)
        assert time.monotonic() - start < 50
    assert len(response.results) == 3
    assert response.pending_embeddings is None


def test_the_count_runs_while_the_search_runs(
    search: Search, dsn: str, database: Connection
) -> None:
    replace_count(database, "perform pg_advisory_xact_lock(1); return 7;")
    with psycopg.connect(dsn) as locking, ThreadPoolExecutor(1) as threads:
        locking.execute("select pg_advisory_xact_lock(1)")
        # The search reads this table, the count does not.
        locking.execute("lock table public.knowledge_documents in access exclusive mode")
        searching = threads.submit(search, "zebra", viewer_id=BEN)
        try:
            await_locks(database, "advisory", "relation")
        finally:
            locking.rollback()
    assert searching.result().pending_embeddings == 7


def test_no_count_outlives_a_search_that_failed(dsn: str, database: Connection) -> None:
    replace_count(database, "perform pg_sleep(1); return 7;")

    def broken(texts: Sequence[str]) -> list[list[float]]:
        time.sleep(0.2)
        raise ValueError("the model is broken")

    async def left() -> set[asyncio.Task[Any]]:
        embedder = CallableEmbedder(broken, "by-hand", 3)
        service = AsyncRetrievalService(AsyncPostgresProvider(dsn), embedder)
        others = asyncio.all_tasks()
        with pytest.raises(SecondBrainError, match="the model is broken"):
            await service.search("zebra", mode="vector")
        return asyncio.all_tasks() - others

    assert asyncio.run(left()) == set()


def test_a_provider_with_one_connection_counts_after_the_search(dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        response = RetrievalService(PostgresProvider(connection), BY_HAND).search("zebra")
    assert response.pending_embeddings == 2


def test_a_count_is_kept_until_this_process_writes(dsn: str, database: Connection) -> None:
    service = RetrievalService(PostgresProvider(dsn), BY_HAND)
    assert service.search("zebra").pending_embeddings == 2
    upsert(database, "another", "zebra another")
    assert service.search("zebra").pending_embeddings == 2
    KnowledgeWriter(database).delete_document("plan")
    assert service.search("zebra").pending_embeddings == 2
    KnowledgeWriter(database).delete_document("draft")
    assert service.search("zebra").pending_embeddings == 1


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (None, None),
        (0, None),
        (1, "1 chunk is not embedded yet"),
        (3, "3 chunks are not embedded yet"),
        (1000, "1,000 or more chunks are not embedded yet"),
    ],
)
def test_the_note_counts_in_words(count: int | None, said: str | None) -> None:
    assert (pending_note(count) or "").partition(";")[0] == (said or "")
