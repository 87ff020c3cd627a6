"""A cache of embeddings by model and text, in memory or in an SQLite file."""

import hashlib
import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from second_brain.errors import ConfigurationError, safe_message
from second_brain.lru import Lru
from second_brain.models.embedder import (
    Embedder,
    QueryEmbedder,
    embed_queries,
    unit_vectors,
)
from second_brain.models.encoders import Encoder, as_embedder
from second_brain.models.prompts import Prompts, Role

_log = logging.getLogger(__name__)

# Texts per step. The embeddings of each finished step stay in the cache if a later step fails.
_STEP = 512

_SCHEMA = """
    create table if not exists embeddings (
      model text not null,
      dimensions integer not null,
      role text not null,
      content_hash blob not null,
      embedding blob not null,
      primary key (model, dimensions, role, content_hash)
    ) without rowid
"""
_FIND = """
    select embedding
      from embeddings
     where model = ? and dimensions = ? and role = ? and content_hash = ?
"""
_KEEP = """
    insert or replace into embeddings (model, dimensions, role, content_hash, embedding)
    values (?, ?, ?, ?, ?)
"""


class CacheKey(NamedTuple):
    """The key of a cached embedding; `content_hash` is the SHA-256 of prompt and text in UTF-8."""

    model: str
    dimensions: int
    role: Role
    content_hash: bytes


Vectors = Mapping[CacheKey, NDArray[np.float32]]


class EmbeddingCache(Protocol):
    """A store of embeddings; it must be thread-safe."""

    def find(self, keys: Sequence[CacheKey]) -> Vectors:
        """Return the cached embeddings of these keys."""

    def keep(self, vectors: Vectors) -> None:
        """Store embeddings."""


class MemoryCache:
    """The last used embeddings, in this process; one of 384 dimensions takes about 2 kB."""

    def __init__(self, max_entries: int = 10_000) -> None:
        if max_entries < 1:
            raise ConfigurationError(f"max_entries is {max_entries}", remedy="Give at least 1.")
        self._vectors: Lru[CacheKey, NDArray[np.float32]] = Lru(max_entries)

    def find(self, keys: Sequence[CacheKey]) -> Vectors:
        """Return the cached embeddings of these keys and mark them as used."""
        found = {key: self._vectors.get(key) for key in keys}
        return {key: vector for key, vector in found.items() if vector is not None}

    def keep(self, vectors: Vectors) -> None:
        """Store embeddings, and remove the least recently used ones above `max_entries`."""
        for key, vector in vectors.items():
            # A copy, because a view keeps the array of its whole batch in memory.
            self._vectors.put(key, vector.copy())


class SqliteCache:
    """A cache in an SQLite file for several threads and processes; delete the file to empty it.

    Raises ConfigurationError when the file cannot be opened. A later failure, such as a full disk,
    is logged as a warning, and the texts are embedded again. A context manager.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = path
        try:
            self._open()
        except sqlite3.Error as exc:
            raise ConfigurationError(
                f"{path} cannot be used as a cache: {exc}",
                remedy="Give a new file, or a file of this cache, in a writable folder.",
            ) from exc

    def _open(self) -> None:
        connection = sqlite3.connect(
            self._path, timeout=10, isolation_level=None, check_same_thread=False
        )
        try:
            connection.execute("pragma journal_mode = wal")
            # After a power failure the last embeddings may be lost; the file stays valid.
            connection.execute("pragma synchronous = normal")
            connection.execute(_SCHEMA)
        except sqlite3.Error:
            connection.close()
            raise
        self._connection, self._lock, self._process = connection, threading.Lock(), os.getpid()

    def _after_fork(self) -> None:
        if self._process != os.getpid():
            # SQLite connections must not cross a fork, and a lock that another thread held at the
            # fork is never released. The reference keeps the parent's connection open: closing it
            # here would release the parent's file locks.
            self._parent_connection = self._connection
            self._open()

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()

    def __enter__(self) -> "SqliteCache":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def find(self, keys: Sequence[CacheKey]) -> Vectors:
        """Return the cached embeddings of these keys."""
        found = {}
        try:
            self._after_fork()
            with self._lock:
                for key in keys:
                    row = self._connection.execute(_FIND, key).fetchone()
                    if row is not None and len(row[0]) == 4 * key.dimensions:
                        found[key] = np.frombuffer(row[0], "<f4").astype(np.float32)
        except sqlite3.Error as exc:
            _log.warning("the embedding cache cannot be read: %s", safe_message(exc))
        return found

    def keep(self, vectors: Vectors) -> None:
        """Store embeddings."""
        rows = [(*key, vector.astype("<f4").tobytes()) for key, vector in vectors.items()]
        try:
            self._after_fork()
            with self._lock:
                self._connection.execute("begin immediate")
                try:
                    self._connection.executemany(_KEEP, rows)
                    self._connection.execute("commit")
                except sqlite3.Error:
                    self._connection.rollback()
                    raise
        except sqlite3.Error as exc:
            _log.warning("the embedding cache cannot be written: %s", safe_message(exc))


class CachedEmbedder:
    """An embedder that calls its model only for texts that are not in the cache.

    If the model embeds queries differently, queries and documents have separate cache entries.
    """

    def __init__(self, embedder: Embedder | Encoder, cache: EmbeddingCache) -> None:
        self._embedder: Embedder = as_embedder(embedder)
        self._cache = cache
        is_asked = isinstance(self._embedder, QueryEmbedder)
        self._query_role: Role = "query" if is_asked else "document"

    @property
    def model(self) -> str:
        """Model of the wrapped embedder."""
        return self._embedder.model

    @property
    def dimensions(self) -> int:
        """Dimensions of the wrapped embedder."""
        return self._embedder.dimensions

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Embed texts, equal texts only once; raises the embedder's errors."""
        return self._embed(texts, "document", self._embedder.embed)

    def embed_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Embed queries, equal ones only once; raises the embedder's errors."""
        return self._embed(texts, self._query_role, partial(embed_queries, self._embedder))

    def embed_query(self, text: str) -> NDArray[np.float32]:
        """Embed a query; raises the embedder's errors."""
        vector: NDArray[np.float32] = self.embed_queries([text])[0]
        return vector

    def _embed(
        self, texts: Sequence[str], role: Role, embed: Callable[[list[str]], ArrayLike]
    ) -> NDArray[np.float32]:
        keys = [self._key(text, role) for text in texts]
        vectors = dict(self._cache.find(list(dict.fromkeys(keys))))
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in vectors}
        for step in _steps(list(missing)):
            made = embed([missing[key] for key in step])
            checked = unit_vectors(made, len(step), self.dimensions, self.model)
            new = dict(zip(step, checked, strict=True))
            self._cache.keep(new)
            vectors.update(new)
        array = np.zeros((len(texts), self.dimensions), np.float32)
        for row, key in enumerate(keys):
            array[row] = vectors[key]
        return array

    def _key(self, text: str, role: Role) -> CacheKey:
        prompts: Prompts = getattr(self._embedder, "prompts", Prompts())
        # A lone surrogate must not fail here: the model raises the error for it.
        prompted = (prompts.of(role) + text).encode(errors="surrogatepass")
        content_hash = hashlib.sha256(prompted).digest()
        return CacheKey(self.model, self.dimensions, role, content_hash)


def _steps(keys: list[CacheKey]) -> list[list[CacheKey]]:
    return [keys[start : start + _STEP] for start in range(0, len(keys), _STEP)]
