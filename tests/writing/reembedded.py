"""Embedders, a corpus to embed anew, and processes that embed until they are killed."""

import hashlib
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest
from numpy.typing import NDArray

from conftest import Connection
from support.databases import query
from support.documents import upsert as store

DOCUMENTS = 12
CHUNKS = 5
OLD, NEW = 6, 9
SEARCH = """
select id::text, similarity, vector_rank
  from public.hybrid_search_knowledge_chunks(
         query_embedding => %s::extensions.vector, match_count => 200, match_threshold => -1
       )
"""
# Other tests run in other databases of this server.
END_SESSIONS = """
select pg_terminate_backend(lock.pid, 10000)
  from pg_locks as lock
  join pg_database as database on database.oid = lock.database
 where lock.locktype = 'advisory'
   and database.datname = current_database()
"""


class Hashed:
    """An embedder whose vectors follow from the text alone; `silent` texts have none."""

    def __init__(self, model: str, dimensions: int, silent: str = "\0") -> None:
        self.model = model
        self.dimensions = dimensions
        self.silent = silent
        self.texts: list[str] = []

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.texts += texts
        return np.array([self._vector(text) for text in texts], np.float32).reshape(
            -1, self.dimensions
        )

    def _vector(self, text: str) -> NDArray[np.float32]:
        if self.silent in text:
            return np.zeros(self.dimensions, np.float32)
        seed = hashlib.sha256(f"{self.model} {text}".encode()).digest()[:8]
        vector = np.random.default_rng(list(seed)).standard_normal(self.dimensions)
        return (vector / np.linalg.norm(vector)).astype(np.float32)


def literal(vector: NDArray[np.float32]) -> str:
    return str(vector.tolist())


def upsert(connection: Connection, key: str, texts: Sequence[str], embedder: Hashed) -> None:
    vectors = embedder.embed([f"Title\n{text}" for text in texts]).tolist()
    chunks = [
        {"content": text, "embedding": vector, "embedding_model": embedder.model}
        for text, vector in zip(texts, vectors, strict=True)
    ]
    store(connection, key, *chunks, title="Title")


def texts_of(number: int) -> list[str]:
    return [f"passage {number} {part}" for part in range(CHUNKS - 1)] + ["in every document"]


ACTIVE = DOCUMENTS * CHUNKS
COLUMNS = """
select attname, format_type(atttypid, atttypmod), attstorage::text,
       col_description(attrelid, attnum)
  from pg_attribute
 where attrelid = 'public.knowledge_chunks'::regclass and attnum > 0 and not attisdropped
 order by attname
"""
OBJECTS = """
select 'index ' || indexrelid::regclass || ' ' || indisvalid from pg_index
 where indrelid = 'public.knowledge_chunks'::regclass
union all
select 'trigger ' || tgname from pg_trigger
 where tgrelid = 'public.knowledge_chunks'::regclass and not tgisinternal
union all
select 'constraint ' || conname || ' ' || convalidated from pg_constraint
 where conrelid = 'public.knowledge_chunks'::regclass
union all
select 'function ' || oid::regprocedure::text from pg_proc
 where pronamespace = 'knowledge_internal'::regnamespace
union all
select 'column ' || attname from pg_attribute
 where attrelid = 'knowledge_internal.searchable_chunks'::regclass and attnum > 0
 order by 1
"""

Catalog = tuple[list[Any], list[Any]]


def catalog(dsn: str) -> Catalog:
    return query(dsn, COLUMNS), query(dsn, OBJECTS)


def expected_similarities(connection: Connection, vector: NDArray[np.float32]) -> dict[str, float]:
    """Compare every active chunk as the new model embeds it."""
    ids, texts = zip(
        *connection.execute(
            "select id::text, concat_ws(E'\\n', heading, content) from public.knowledge_chunks"
            " where status = 'active'"
        ),
        strict=True,
    )
    similarities = Hashed("new", NEW).embed(texts) @ vector
    return dict(zip(ids, similarities.tolist(), strict=True))


def assert_switched(dsn: str, before: Catalog) -> None:
    """Nothing but the model differs, and every chunk is embedded with it."""
    columns = [
        (name, kind.replace(f"vector({OLD})", f"vector({NEW})"), *rest)
        for name, kind, *rest in before[0]
    ]
    assert catalog(dsn) == (columns, before[1])
    question = Hashed("new", NEW).embed(["a question"])[0]
    with psycopg.connect(dsn, autocommit=True) as connection:
        found = connection.execute(SEARCH, [literal(question)]).fetchall()
        expected = expected_similarities(connection, question)
        assert {id_: pytest.approx(one, abs=1e-5) for id_, one, _ in found} == expected
        assert connection.execute(
            "select count(*) from public.knowledge_chunks where status = 'active'"
            " and (embedding_model is distinct from 'new'"
            "      or embedding_bits <> knowledge_internal.embedding_bits(embedding))"
        ).fetchone() == (0,)
        with pytest.raises(psycopg.errors.InvalidParameterValue, match=f"have {NEW}"):
            connection.execute(SEARCH, [str([1.0] * OLD)])


# Processes that may be killed.

MODEL, DIMENSIONS = "hashed", 3

Start = Callable[[], multiprocessing.Process]


class Traced(Hashed):
    """Writes each text to a file, then embeds as slowly as a model."""

    def __init__(self, log: Path, pause: float) -> None:
        super().__init__(MODEL, DIMENSIONS)
        self.log = log
        self.pause = pause

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        with self.log.open("a") as file:
            file.write("".join(f"{text!r}\n" for text in texts))
        time.sleep(self.pause)
        return super().embed(texts)


def lines_of(log: Path) -> list[str]:
    return log.read_text().splitlines() if log.exists() else []


def processes(work: Callable[..., None], *arguments: object) -> Iterator[Start]:
    """Yield what starts processes, from a server that has imported everything; kill them after."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([work.__module__])
    started: list[multiprocessing.Process] = []

    def start_one() -> multiprocessing.Process:
        process: multiprocessing.Process = context.Process(  # type: ignore[assignment]
            target=work, args=arguments, daemon=True
        )
        process.start()
        started.append(process)
        return process

    yield start_one
    for process in started:
        process.kill()
        process.join()
