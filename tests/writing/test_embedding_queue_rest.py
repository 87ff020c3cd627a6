"""The queue over a real PostgREST, with the keys of anon, of a user and of the service."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from killed import MODEL
from postgrest import SyncPostgrestClient
from reembedded import Hashed
from test_embedding_worker import Picky, add, assert_all_are_right, left

from conftest import Connection, Server
from postgrest_server import JWT_SECRET, PostgREST
from second_brain import errors
from second_brain.embedding_queue.queue import (
    EmbeddingQueue,
    EmbeddingResult,
    SupabaseEmbeddingQueue,
)
from second_brain.embedding_queue.worker import EmbeddingWorker
from second_brain.models import TextTooLongError

pytestmark = pytest.mark.module("embedding_queue")

QueueOf = Callable[[str | None], SupabaseEmbeddingQueue]
CALLS: dict[str, Callable[[EmbeddingQueue], object]] = {
    "claim": lambda queue: queue.claim(MODEL, 10),
    "store": lambda queue: queue.store(MODEL, [EmbeddingResult("0" * 64)]),
    "pending": lambda queue: queue.pending(),
    "failed": lambda queue: queue.failed(),
    "retry": lambda queue: queue.retry(),
}


@pytest.fixture
def rest(dsn: str, server: Server, tmp_path: Path) -> Iterator[PostgREST]:
    binary = os.environ.get("POSTGREST_BIN")
    if not binary:
        pytest.skip("POSTGREST_BIN names no PostgREST")
    running = PostgREST(binary, server.admin_dsn(), dsn, tmp_path)
    try:
        running.start()
        yield running
    finally:
        running.stop()


@pytest.fixture
def queue_of(rest: PostgREST) -> Iterator[QueueOf]:
    """Make queues with the key of a role, or without one; their clients are closed at the end."""
    clients: list[Any] = []

    def make(role: str | None) -> SupabaseEmbeddingQueue:
        headers = {}
        if role is not None:
            claims = {"role": role, "sub": "00000000-0000-0000-0000-000000000001"}
            key = jwt.encode(claims, JWT_SECRET, algorithm="HS256")
            headers["Authorization"] = f"Bearer {key}"
        clients.append(SyncPostgrestClient(f"http://127.0.0.1:{rest.port}", headers=headers))
        return SupabaseEmbeddingQueue(client=clients[-1])

    yield make
    for client in clients:
        client.session.close()


@pytest.mark.parametrize("call", CALLS)
def test_only_the_services_key_may_use_the_queue(queue_of: QueueOf, call: str) -> None:
    for role in (None, "authenticated"):
        with pytest.raises(errors.PermissionDeniedError):
            CALLS[call](queue_of(role))
    CALLS[call](queue_of("service_role"))


def test_a_worker_over_rest_embeds_what_waits(queue_of: QueueOf, database: Connection) -> None:
    add(database, *(f"text {number}" for number in range(20)), "long")
    queue = queue_of("service_role")
    assert [(one.collection, one.model, one.pending) for one in queue.pending()] == [
        ("knowledge", None, 21)
    ]
    embedder = Picky(long=TextTooLongError("it has 9000 tokens"))
    total = EmbeddingWorker(queue, embedder, batch_size=8, once=True).run()
    assert (total.stored, total.failed, left(database)) == (20, 1, 1)
    (failed,) = queue.failed()
    assert (failed.reason, failed.attempts) == ("it has 9000 tokens", 1)
    assert queue.retry(MODEL) == 1
    assert EmbeddingWorker(queue, Hashed(MODEL, 3), once=True).run().stored == 1
    assert_all_are_right(database)


def test_a_claim_of_a_thousand_texts_is_complete(queue_of: QueueOf, database: Connection) -> None:
    add(database, *map(str, range(1100)))
    queue = queue_of("service_role")
    assert len(queue.claim(MODEL, 1000)) == 1000
    assert len(queue.claim(MODEL, 1000)) == 100


def test_without_credentials_or_a_server_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SUPABASE_URL", "SUPABASE_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(errors.ClientUnavailableError):
        SupabaseEmbeddingQueue().pending()
    away = {"supabase_url": "http://127.0.0.1:9", "supabase_key": "k"}
    queue = SupabaseEmbeddingQueue(away)
    with pytest.raises((errors.UnavailableError, errors.ConfigurationError)):
        queue.pending()
    queue.close()
