"""Every kind of write at once on the same documents: no caller sees a deadlock, all is whole."""

import hashlib
import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from uuid import UUID

import numpy as np
import psycopg
import pytest
from numpy.typing import NDArray

from conftest import Connect, Connection
from second_brain.embedding_queue import reembedding
from second_brain.errors import ConflictError, SecondBrainError
from second_brain.services.write import KnowledgeWriter
from trials import Trial

pytestmark = pytest.mark.chaos(share=0.4)

KEYS = [f"shared{number}" for number in range(5)]
OWNERS = [UUID(int=1), UUID(int=2)]
MODELS = ("first", "second")
Step = Callable[[KnowledgeWriter, Connection, random.Random], str]


class Hashed:
    """An embedder whose vectors follow from the text."""

    dimensions = 3

    def __init__(self, model: str) -> None:
        self.model = model

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        vectors = [self.vector(text) for text in texts]
        return np.array(vectors, np.float32).reshape(-1, self.dimensions)

    def vector(self, text: str) -> list[float]:
        return [1.0 + byte for byte in hashlib.sha256(f"{self.model} {text}".encode()).digest()[:3]]


def upsert(writer: KnowledgeWriter, _: Connection, draw: random.Random) -> str:
    model = Hashed(draw.choice(MODELS))
    texts = [f"passage {draw.randrange(8)}" for _ in range(draw.randint(0, 8))]
    document = {
        "external_key": draw.choice(KEYS),
        "title": f"Title {draw.randrange(3)}",
        "owner_id": draw.choice([*OWNERS, None]),
        "visibility": draw.choice(["private", "public"]),
    }
    chunks: list[dict[str, object]] = [
        {"content": text, "embedding": model.vector(text), "embedding_model": model.model}
        for text in texts
    ]
    writer.upsert_document(document, chunks, fields=draw.choice(["merge", "replace"]))
    return "upserts"


def delete(writer: KnowledgeWriter, _: Connection, draw: random.Random) -> str:
    if draw.random() < 0.5:
        writer.delete_document(draw.choice(KEYS))
        return "deletions of a document"
    writer.delete_owner(draw.choice(OWNERS))
    return "deletions of an owner"


def purge(writer: KnowledgeWriter, _: Connection, draw: random.Random) -> str:
    writer.purge(timedelta())
    return "purges"


def refresh(writer: KnowledgeWriter, owner: Connection, draw: random.Random) -> str:
    # ANALYZE and CREATE INDEX CONCURRENTLY wait for each other by Postgres's own locks.
    with suppress(psycopg.errors.DeadlockDetected):
        owner.execute("analyze public.knowledge_chunks")
    writer.refresh_statistics()
    return "refreshed statistics"


def work(
    trial: Trial,
    step: Step,
    name: str,
    service: Connection,
    owner: Connection,
    end: threading.Event,
) -> None:
    draw, writer = trial.random(name), KnowledgeWriter(service)
    while not end.is_set():
        try:
            trial.note(step(writer, owner, draw))
            trial.held("writes")
        except (SecondBrainError, psycopg.Error) as error:
            code = getattr(error, "code", None) or getattr(error, "sqlstate", None)
            trial.violated(f"{name}: {type(error).__name__} {code}: {error}")


def reembed(trial: Trial, dsn: str, end: threading.Event) -> None:
    place = 0
    while not end.is_set():
        try:
            reembedding.start(dsn, Hashed(MODELS[place % 2]))
            trial.note("re-embeddings")
            place += 1
        except ConflictError:
            # Documented: the table was never free. The next call goes on where it stopped.
            trial.note("re-embeddings that found the table in use")
        except (SecondBrainError, psycopg.Error) as error:
            trial.violated(f"a re-embedding: {type(error).__name__}: {error}")


def deadlocks(owner: Connection) -> int:
    ((number,),) = owner.execute(
        "select deadlocks from pg_stat_database where datname = current_database()"
    ).fetchall()
    return int(number)


def check(trial: Trial, owner: Connection) -> None:
    """Check the documents as one snapshot shows them, which may be taken at any time."""
    rows = owner.execute(
        "select document.external_key, document.content_hash,"
        "       array_agg(chunk.chunk_index order by chunk.chunk_index, chunk.id)"
        "         filter (where chunk.id is not null),"
        "       array_agg(chunk.content_hash order by chunk.chunk_index, chunk.id)"
        "         filter (where chunk.id is not null)"
        "  from public.knowledge_documents as document"
        "  left join public.knowledge_chunks as chunk"
        "    on chunk.document_id = document.id and chunk.status = 'active'"
        " group by document.id"
    ).fetchall()
    for key, content_hash, places, hashes in rows:
        if (places or []) != list(range(len(places or []))):
            trial.violated(f"{key} has chunks at {places}")
        elif content_hash != hashlib.sha256(" ".join(hashes or []).encode()).hexdigest():
            trial.violated(f"{key} has another hash than its {len(hashes or [])} chunks")
        else:
            trial.held("whole documents")


def test_no_caller_sees_a_deadlock(trial: Trial, dsn: str, connect: Connect) -> None:
    trial.needs(
        "upserts", "purges", "deletions of an owner", "refreshed statistics", "re-embeddings"
    )
    owner, before = connect(), deadlocks(connect())
    steps: list[Step] = [upsert, upsert, upsert, delete, delete, purge, refresh]
    while trial.is_on() and not trial.violations:
        end = threading.Event()
        threads = [
            threading.Thread(
                target=partial(work, trial, step, f"{step.__name__}{place}"),
                args=(connect("service_role"), connect(), end),
            )
            for place, step in enumerate(steps)
        ]
        threads.append(threading.Thread(target=reembed, args=(trial, dsn, end)))
        for thread in threads:
            thread.start()
        round_ends = time.monotonic() + min(trial.seconds / 3, 30)
        while time.monotonic() < round_ends and not trial.violations:
            check(trial, owner)
            end.wait(0.1)
        end.set()
        for thread in threads:
            thread.join(timeout=120)
            if thread.is_alive():
                trial.violated(f"{thread.name} waits for ever")
        check(trial, owner)
    trial.held("deadlocks, repeated by whoever met them", deadlocks(owner) - before)
    trial.finish()
