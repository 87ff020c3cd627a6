"""The queue of texts that wait for an embedding, over psycopg and over REST.

The chunks in the database are the queue; `claim_knowledge_embeddings` hands out texts with a lease
and `store_knowledge_embeddings` takes their embeddings. The loop of a worker is in
`worker`.
"""

import secrets
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from os import getpid
from typing import Any, TypeVar
from uuid import UUID

import psycopg

from second_brain.errors import UnavailableError, documented, redacted, translate
from second_brain.frozen import Frozen
from second_brain.services.calls import finished
from second_brain.services.connections import connect
from second_brain.services.install import SCHEMA
from second_brain.services.supabase import SupabaseProvider
from second_brain.services.write import WRITE_RETRIES, KnowledgeWriter
from second_brain.services.writing import Writes

Answer = TypeVar("Answer")

LEASE = timedelta(minutes=5)


class ClaimedText(Frozen):
    """A text to embed, which is of `chunk_id` and of all chunks with the same hash."""

    chunk_id: UUID
    content_hash: str
    content: str
    collection: str
    attempt: int
    dimensions: int


class StoredCounts(Frozen):
    """What a store did, in texts; `chunks` counts rows. See `store_knowledge_embeddings`."""

    stored: int = 0
    chunks: int = 0
    outdated: int = 0
    repeated: int = 0
    failed: int = 0
    retried: int = 0
    released: int = 0


class PendingEmbeddings(Frozen):
    """The chunks of a collection that need an embedding; `model` is None where any is right."""

    collection: str
    model: str | None
    pending: int
    claimed: int
    failed: int
    oldest: datetime | None


class FailedEmbedding(Frozen):
    """A chunk whose text could not be embedded."""

    chunk_id: UUID
    document_key: str | None
    collection: str
    model: str
    attempts: int
    failed_at: datetime
    reason: str | None


@dataclass(frozen=True, slots=True)
class EmbeddingResult:
    """The result for a claimed text: an embedding, an error, or neither if it was not tried.

    `embedding` is in pgvector's text form, `[0.1,0.2]`. After a final error there is no other
    attempt.
    """

    content_hash: str
    embedding: str | None = None
    error: str | None = None
    is_final: bool = False

    def json(self) -> dict[str, object]:
        """Return the object that `store_knowledge_embeddings` takes."""
        if self.embedding is not None:
            return {"content_hash": self.content_hash, "embedding": self.embedding}
        if self.error is not None:
            error = {"error": self.error, "is_final": self.is_final}
            return {"content_hash": self.content_hash, **error}
        return {"content_hash": self.content_hash, "release": True}


def vector_literal(vector: Iterable[float]) -> str:
    """Return a float32 vector in pgvector's text form, exactly."""
    return "[" + ",".join([f"{number:.9g}" for number in map(float, vector)]) + "]"


@documented
class EmbeddingQueue(ABC):
    """The texts that wait for an embedding; every method raises a SecondBrainError.

    `worker` is the name under which this object claims texts. Not for several threads at once.
    """

    def __init__(self, worker: str | None = None) -> None:
        self.worker = worker or f"{socket.gethostname()[:100]}:{getpid()}:{secrets.token_hex(4)}"

    def claim(
        self,
        model: str,
        max_chunks: int,
        *,
        lease: timedelta = LEASE,
        collections: Sequence[str] | None = None,
    ) -> list[ClaimedText]:
        """Claim up to `max_chunks` (1 to 1000) texts; nobody else gets them until the lease ends.

        Raises InvalidInputError if the stored embeddings are of another model.
        """
        arguments = {
            "model": model,
            "max_chunks": max_chunks,
            "lease": f"{lease.total_seconds()} seconds",
            "worker": self.worker,
            "collections": None if collections is None else list(collections),
        }
        return self._read(list[ClaimedText], "claim_knowledge_embeddings", arguments)

    def store(self, model: str, results: Sequence[EmbeddingResult]) -> StoredCounts:
        """Store the results of claimed texts, at most 1000."""
        arguments = {
            "model": model,
            "results": [result.json() for result in results],
            "worker": self.worker,
        }
        (counts,) = self._read(list[StoredCounts], "store_knowledge_embeddings", arguments)
        return counts

    def pending(self) -> list[PendingEmbeddings]:
        """Return how many chunks of each collection need an embedding."""
        return self._read(list[PendingEmbeddings], "pending_knowledge_embeddings", {})

    def failed(self, max_rows: int = 100) -> list[FailedEmbedding]:
        """Return chunks whose text could not be embedded, the newest failures first."""
        arguments = {"max_rows": max_rows}
        return self._read(list[FailedEmbedding], "failed_knowledge_embeddings", arguments)

    def retry(self, model: str | None = None) -> int:
        """End the failures of a model, or of all; return the number of texts."""
        return self._read(int, "retry_knowledge_embeddings", {"model": model})

    def _read(self, kind: type[Answer], function: str, arguments: dict[str, Any]) -> Answer:
        try:
            return finished(self._client()._read(kind, function, arguments))
        except UnavailableError:
            self.close()
            raise

    @abstractmethod
    def _client(self) -> Writes:
        """Return what calls the functions."""

    @abstractmethod
    def close(self) -> None:
        """Close the connections that the queue opened; a later call opens new ones."""


class PostgresEmbeddingQueue(EmbeddingQueue):
    """The queue over psycopg, as service_role or the tables' owner.

    `target` is a connection string, then the queue opens a connection and opens it again after it
    was lost; or a connection of the caller. In a transaction of the caller's each call is a
    savepoint.
    """

    def __init__(
        self,
        target: "str | psycopg.Connection[Any]",
        *,
        schema: str = SCHEMA,
        worker: str | None = None,
        retries: int = WRITE_RETRIES,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        super().__init__(worker)
        self._target = target
        self._options: dict[str, Any] = {"schema": schema, "retries": retries, "sleep": sleep}
        self._writer: KnowledgeWriter | None = None
        self._opened: psycopg.Connection[Any] | None = None

    def close(self) -> None:
        """Close the connection that the queue opened; a later call opens a new one."""
        if self._opened is not None:
            self._opened.close()
        self._opened = self._writer = None

    def _client(self) -> Writes:
        if self._writer is None:
            connection = self._target
            if isinstance(connection, str):
                try:
                    connection = connect(connection, autocommit=True, prepare_threshold=None)
                except psycopg.Error as error:
                    raise translate(error) from redacted(error)
                self._opened = connection
            self._writer = KnowledgeWriter(connection, **self._options)
        return self._writer


class SupabaseEmbeddingQueue(EmbeddingQueue):
    """The queue over a Supabase project's REST API, with the service role's key.

    `config`, `client`, `schema` and `timeout` are those of `SupabaseProvider`. A call of `claim`
    must not ask for more texts than the project's Max rows (default 1000).
    """

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        *,
        client: Any = None,
        schema: str | None = None,
        timeout: float | None = 30.0,
        worker: str | None = None,
        retries: int = WRITE_RETRIES,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        super().__init__(worker)
        self._project = SupabaseProvider(
            config, client=client, schema=schema, timeout=timeout, retries=retries, sleep=sleep
        )

    def close(self) -> None:
        """Close the connections that the queue opened; a later call opens new ones."""
        self._project.close()

    def _client(self) -> Writes:
        return self._project
