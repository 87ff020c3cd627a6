"""A corpus to embed anew, its embedder, and the checks that a switch of models is whole."""

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import psycopg
import pytest
from numpy.typing import NDArray
from psycopg.types.json import Jsonb

from conftest import Connection

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


def upsert(connection: Connection, key: str, texts: Sequence[str], embedder: Hashed) -> Any:
    chunks = [
        {
            "heading": "Title",
            "content": text,
            "embedding": embedder.embed([f"Title\n{text}"])[0].tolist(),
            "embedding_model": embedder.model,
        }
        for text in texts
    ]
    return connection.execute(
        "select * from public.upsert_knowledge_document(%s, %s)",
        [Jsonb({"external_key": key, "title": "Title"}), Jsonb(chunks)],
    ).fetchone()


def texts_of(number: int) -> list[str]:
    return [f"passage {number} {part}" for part in range(CHUNKS - 1)] + ["in every document"]


ACTIVE = DOCUMENTS * CHUNKS
COLUMNS = """
select attribute.attname,
       format_type(attribute.atttypid, attribute.atttypmod),
       attribute.attstorage::text,
       col_description(attribute.attrelid, attribute.attnum)
  from pg_attribute as attribute
 where attribute.attrelid = 'public.knowledge_chunks'::regclass
   and attribute.attnum > 0
   and not attribute.attisdropped
 order by attribute.attname
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


def catalog(dsn: str) -> tuple[list[Any], list[Any]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        return (
            connection.execute(COLUMNS.encode()).fetchall(),
            connection.execute(OBJECTS.encode()).fetchall(),
        )


def expected_similarities(connection: Connection, query: NDArray[np.float32]) -> dict[str, float]:
    """Compare every active chunk as the new model embeds it."""
    rows = connection.execute(
        "select id::text, concat_ws(E'\\n', heading, content) from public.knowledge_chunks"
        " where status = 'active'"
    ).fetchall()
    vectors = Hashed("new", NEW).embed([text for _, text in rows])
    return {id_: float(one @ query) for (id_, _), one in zip(rows, vectors, strict=True)}


def assert_switched(dsn: str, before: tuple[list[Any], list[Any]]) -> None:
    """Nothing but the model differs, and every chunk is embedded with it."""
    columns, objects = catalog(dsn)
    old_columns = [
        (name, f"extensions.vector({NEW})" if name == "embedding" else kind, *rest)
        for name, kind, *rest in before[0]
    ]
    assert [column[0] for column in columns] == [column[0] for column in old_columns]
    assert columns == [
        (name, kind.replace(f"vector({OLD})", f"vector({NEW})"), *rest)
        for name, kind, *rest in before[0]
    ]
    assert objects == before[1]
    query = Hashed("new", NEW).embed(["a question"])[0]
    with psycopg.connect(dsn, autocommit=True) as connection:
        found = connection.execute(SEARCH, [literal(query)]).fetchall()
        expected = expected_similarities(connection, query)
        assert {id_: pytest.approx(one, abs=1e-5) for id_, one, _ in found} == expected
        assert connection.execute(
            "select count(*) from public.knowledge_chunks where status = 'active'"
            " and (embedding_model is distinct from 'new'"
            "      or embedding_bits <> knowledge_internal.embedding_bits(embedding))"
        ).fetchone() == (0,)
        with pytest.raises(psycopg.errors.InvalidParameterValue, match=f"have {NEW}"):
            connection.execute(SEARCH, [str([1.0] * OLD)])
