"""The queue of texts that wait for an embedding, over psycopg and over REST.

The chunks in the database are the queue; `claim_knowledge_embeddings` hands out texts with a lease
and `store_knowledge_embeddings` takes their embeddings. The loop of a worker is in
`ingest/embedding_worker.py`.
"""

import json
import secrets
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import count
from os import getpid
from typing import Any, LiteralString
from uuid import UUID

import psycopg
from psycopg.rows import dict_row
from pydantic import BaseModel, ConfigDict

from second_brain.errors import (
    SecondBrainError,
    UnavailableError,
    documented,
    redacted,
    translate,
)
from second_brain.services.blocking import blocking
from second_brain.services.calls import DEADLOCK, SERIALIZATION_FAILURE, pause_before
from second_brain.services.connections import connect
from second_brain.services.install import SCHEMA
from second_brain.services.last_write import written
from second_brain.services.supabase import SupabaseProvider
from second_brain.services.write import WRITE_RETRIES, AsyncKnowledgeWriter, KnowledgeWriter

LEASE = timedelta(minutes=5)

_STATEMENTS: dict[str, LiteralString] = {
    "claim_knowledge_embeddings": """
        select chunk_id, content_hash, content, collection, attempt, dimensions
        from public.claim_knowledge_embeddings(
          model => %(model)s::text,
          max_chunks => %(max_chunks)s::integer,
          lease => %(lease)s::interval,
          worker => %(worker)s::text,
          collections => %(collections)s::text[]
        )
    """,
    "store_knowledge_embeddings": """
        select stored, chunks, outdated, repeated, failed, retried, released
        from public.store_knowledge_embeddings(
          model => %(model)s::text,
          results => %(results)s::jsonb,
          worker => %(worker)s::text
        )
    """,
    "pending_knowledge_embeddings": """
        select collection, model, pending, claimed, failed, oldest
        from public.pending_knowledge_embeddings()
    """,
    "failed_knowledge_embeddings": """
        select chunk_id, document_key, collection, model, attempts, failed_at, reason
        from public.failed_knowledge_embeddings(max_rows => %(max_rows)s::integer)
    """,
    "retry_knowledge_embeddings": """
        select public.retry_knowledge_embeddings(model => %(model)s::text) as retried
    """,
}


class _Row(BaseModel):
    model_config = ConfigDict(frozen=True)


class ClaimedText(_Row):
    """A text to embed, which is of `chunk_id` and of all chunks with the same hash."""

    chunk_id: UUID
    content_hash: str
    content: str
    collection: str
    attempt: int
    dimensions: int


class StoredCounts(_Row):
    """What a store did, in texts; `chunks` counts rows. See `store_knowledge_embeddings`."""

    stored: int = 0
    chunks: int = 0
    outdated: int = 0
    repeated: int = 0
    failed: int = 0
    retried: int = 0
    released: int = 0


class PendingEmbeddings(_Row):
    """The chunks of a collection that need an embedding; `model` is None where any is right."""

    collection: str
    model: str | None
    pending: int
    claimed: int
    failed: int
    oldest: datetime | None


class FailedEmbedding(_Row):
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

    def __init__(
        self,
        worker: str | None = None,
        *,
        retries: int = WRITE_RETRIES,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self.worker = worker or f"{socket.gethostname()[:100]}:{getpid()}:{secrets.token_hex(4)}"
        self._retries = retries
        self._sleep = sleep

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
        rows = self._rows("claim_knowledge_embeddings", arguments)
        return [ClaimedText.model_validate(row) for row in rows]

    def store(self, model: str, results: Sequence[EmbeddingResult]) -> StoredCounts:
        """Store the results of claimed texts, at most 1000."""
        arguments = {
            "model": model,
            "results": [result.json() for result in results],
            "worker": self.worker,
        }
        (row,) = self._rows("store_knowledge_embeddings", arguments)
        written()
        return StoredCounts.model_validate(row)

    def pending(self) -> list[PendingEmbeddings]:
        """Return how many chunks of each collection need an embedding."""
        rows = self._rows("pending_knowledge_embeddings", {})
        return [PendingEmbeddings.model_validate(row) for row in rows]

    def failed(self, max_rows: int = 100) -> list[FailedEmbedding]:
        """Return chunks whose text could not be embedded, the newest failures first."""
        rows = self._rows("failed_knowledge_embeddings", {"max_rows": max_rows})
        return [FailedEmbedding.model_validate(row) for row in rows]

    def retry(self, model: str | None = None) -> int:
        """End the failures of a model, or of all; return the number of texts."""
        (row,) = self._rows("retry_knowledge_embeddings", {"model": model})
        return int(row["retried"])

    @abstractmethod
    def close(self) -> None:
        """Close the connection that the queue opened; a later call opens a new one."""

    @abstractmethod
    def _rows(self, function: str, arguments: Mapping[str, Any]) -> list[Any]:
        """Call an SQL function and return its rows as mappings."""


class _Session(KnowledgeWriter):
    rows = blocking(AsyncKnowledgeWriter._rows)


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
        super().__init__(worker, retries=retries, sleep=sleep)
        self._target = target
        self._schema = schema
        self._session: _Session | None = None
        self._opened: psycopg.Connection[Any] | None = None

    def close(self) -> None:
        """Close the connection that the queue opened; a later call opens a new one."""
        if self._opened is not None:
            self._opened.close()
        self._opened = self._session = None

    def _rows(self, function: str, arguments: Mapping[str, Any]) -> list[Any]:
        given = dict(arguments)
        if "results" in given:
            given["results"] = json.dumps(given["results"])
        try:
            return self._connected().rows(dict_row, _STATEMENTS[function], given)
        except UnavailableError:
            self.close()
            raise

    def _connected(self) -> _Session:
        if self._session is None:
            connection = self._target
            if isinstance(connection, str):
                try:
                    connection = connect(connection, autocommit=True, prepare_threshold=None)
                except psycopg.Error as error:
                    raise translate(error) from redacted(error)
                self._opened = connection
            self._session = _Session(
                connection, schema=self._schema, retries=self._retries, sleep=self._sleep
            )
        return self._session


class _Project(SupabaseProvider):
    def rows(self, function: str, arguments: Mapping[str, Any]) -> Any:
        # Not as a search, which asks for the next page of a cut answer by a second call: this one
        # would claim other texts.
        client = self._needed_client()
        api = client if self._schema is None else client.schema(self._schema)
        try:
            return api.rpc(function, dict(arguments)).execute().data
        except Exception as error:  # noqa: BLE001
            raise translate(error) from redacted(error, secrets=self._secrets())


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
        super().__init__(worker, retries=retries, sleep=sleep)
        self._project = _Project(config, client=client, schema=schema, timeout=timeout)

    def close(self) -> None:
        """Close the connections that the queue opened; a later call opens new ones."""
        self._project.close()

    def _rows(self, function: str, arguments: Mapping[str, Any]) -> list[Any]:
        for attempt in count():
            try:
                rows = self._project.rows(function, arguments)
            except SecondBrainError as error:
                if attempt >= self._retries or error.code not in (SERIALIZATION_FAILURE, DEADLOCK):
                    raise
            else:
                # The answer of a function that returns one value is the value.
                return rows if isinstance(rows, list) else [{"retried": rows}]
            self._sleep(pause_before(attempt))
        raise AssertionError
