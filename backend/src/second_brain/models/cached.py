"""Embeddings kept by what was embedded: in memory, or in a file that outlives the process."""

import hashlib
import logging
import os
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from second_brain.errors import ConfigurationError, safe_message
from second_brain.models.embedder import (
    Embedder,
    QueryEmbedder,
    embed_query,
    unit_vectors,
)
from second_brain.models.hosted_embedder import Role

_log = logging.getLogger(__name__)

# What was embedded before a call failed is kept, in steps of so many texts.
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
    """What an embedding is kept by; `content_hash` is the SHA-256 of the text in UTF-8."""

    model: str
    dimensions: int
    role: Role
    content_hash: bytes


Vectors = Mapping[CacheKey, NDArray[np.float32]]


class EmbeddingCache(Protocol):
    """Where embeddings are kept; safe to use from several threads."""

    def find(self, keys: Sequence[CacheKey]) -> Vectors:
        """Return what is kept of these."""

    def keep(self, vectors: Vectors) -> None:
        """Keep these."""


class MemoryCache:
    """The embeddings used last, in this process; one of 384 dimensions takes about 2 kB."""

    def __init__(self, max_entries: int = 10_000) -> None:
        if max_entries < 1:
            raise ConfigurationError(f"max_entries is {max_entries}", remedy="Give at least 1.")
        self._max_entries = max_entries
        self._vectors: OrderedDict[CacheKey, NDArray[np.float32]] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, keys: Sequence[CacheKey]) -> Vectors:
        """Return what is kept of these; they count as used."""
        found = {}
        with self._lock:
            for key in keys:
                if key in self._vectors:
                    self._vectors.move_to_end(key)
                    found[key] = self._vectors[key]
        return found

    def keep(self, vectors: Vectors) -> None:
        """Keep these, and drop those that were not used for longest."""
        with self._lock:
            for key, vector in vectors.items():
                # A row of its own: a view would keep its whole batch alive.
                self._vectors[key] = vector.copy()
                self._vectors.move_to_end(key)
            while len(self._vectors) > self._max_entries:
                self._vectors.popitem(last=False)


class SqliteCache:
    """Embeddings in an SQLite file, for several threads and processes; delete it to empty it.

    A file that cannot be opened raises ConfigurationError. When it fails later (a full disk), the
    failure is logged as a warning and texts are embedded anew. A context manager.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = path
        try:
            self._open()
        except sqlite3.Error as exc:
            raise ConfigurationError(
                f"{path} cannot be used as a cache: {exc}",
                remedy="Give a file of its own, in a folder that can be written to.",
            ) from exc

    def _open(self) -> None:
        connection = sqlite3.connect(
            self._path, timeout=10, isolation_level=None, check_same_thread=False
        )
        try:
            connection.execute("pragma journal_mode = wal")
            # A loss of power may cost the last embeddings, never the file.
            connection.execute("pragma synchronous = normal")
            connection.execute(_SCHEMA)
        except sqlite3.Error:
            connection.close()
            raise
        self._connection, self._lock, self._process = connection, threading.Lock(), os.getpid()

    def _after_fork(self) -> None:
        if self._process != os.getpid():
            # SQLite's connections are one process's, and a lock that another thread held at the
            # fork is never given back. The old one stays open: it is the parent's to close.
            self._parents = self._connection
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
        """Return what is kept of these."""
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
        """Keep these."""
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
    """An embedder that asks its model only for texts that the cache does not have.

    Where the model embeds queries differently, queries and documents are kept apart.
    """

    def __init__(self, embedder: Embedder, cache: EmbeddingCache) -> None:
        self._embedder = embedder
        self._cache = cache
        self._query_role: Role = "query" if isinstance(embedder, QueryEmbedder) else "document"

    @property
    def model(self) -> str:
        """The embedder's."""
        return self._embedder.model

    @property
    def dimensions(self) -> int:
        """The embedder's."""
        return self._embedder.dimensions

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Embed texts, each different one at most once; raises as the embedder does."""
        keys = [self._key(text, "document") for text in texts]
        vectors = dict(self._cache.find(list(dict.fromkeys(keys))))
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in vectors}
        for step in _steps(list(missing)):
            made = self._embedder.embed([missing[key] for key in step])
            checked = unit_vectors(made, len(step), self.dimensions, self.model)
            new = dict(zip(step, checked, strict=True))
            self._cache.keep(new)
            vectors.update(new)
        array = np.zeros((len(texts), self.dimensions), np.float32)
        for row, key in enumerate(keys):
            array[row] = vectors[key]
        return array

    def embed_query(self, text: str) -> NDArray[np.float32]:
        """Embed a query; raises as the embedder does."""
        key = self._key(text, self._query_role)
        vector = self._cache.find([key]).get(key)
        if vector is None:
            made = embed_query(self._embedder, text)
            vector = unit_vectors([made], 1, self.dimensions, self.model)[0]
            self._cache.keep({key: vector})
        # The cache's own array must not change with the caller's.
        return vector.copy()

    def _key(self, text: str, role: Role) -> CacheKey:
        # A lone surrogate is the model's to refuse.
        content_hash = hashlib.sha256(text.encode(errors="surrogatepass")).digest()
        return CacheKey(self.model, self.dimensions, role, content_hash)


def _steps(keys: list[CacheKey]) -> list[list[CacheKey]]:
    return [keys[start : start + _STEP] for start in range(0, len(keys), _STEP)]
