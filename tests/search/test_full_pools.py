"""Each leg fills its pool, however few rows a filter leaves."""

import random
from collections.abc import Iterator
from itertools import pairwise

import psycopg
import pytest
from searching import numbers, search, store

from conftest import Connection, Server, copy_of

KINDS = {"note": 0.9, "task": 0.09, "decision": 0.009, "transcript": 0.001}
COLLECTIONS = ["archive", "knowledge"]


@pytest.fixture(scope="module")
def crowd(server: Server) -> Iterator[Connection]:
    """16,000 chunks: superseded ones, deleted ones, some without embedding, some types rare."""
    generator = random.Random(7)
    for dsn in copy_of(server, server.template(8)):
        with psycopg.connect(dsn, autocommit=True) as connection:
            # Their text does not matter, so nothing analyses it; the index is built once.
            connection.execute("alter table public.knowledge_chunks disable trigger user")
            ((index,),) = connection.execute(
                "select pg_get_indexdef('public.knowledge_chunks_embedding'::regclass)"
            ).fetchall()
            connection.execute("drop index public.knowledge_chunks_embedding")
            with (
                connection.cursor() as cursor,
                cursor.copy(
                    "copy public.knowledge_chunks (content, content_hash, content_tsv, text_length,"
                    " collection, embedding, knowledge_type, status) from stdin"
                ) as copy,
            ):
                for number in range(16_000):
                    vector = [round(generator.gauss(0, 1), 4) for _ in range(8)]
                    kind = generator.choices(list(KINDS), list(KINDS.values()))[0]
                    status = "superseded" if number % 6 == 0 else "active"
                    embedding = None if number % 10 == 3 else str(vector)
                    copy.write_row(
                        ("x", "x", "", 0, COLLECTIONS[number % 2], embedding, kind, status)
                    )
            connection.execute(
                "update public.knowledge_chunks"
                " set embedding_bits = knowledge_internal.embedding_bits(embedding)"
            )
            connection.execute(index)
            connection.execute("alter table public.knowledge_chunks enable trigger user")
            connection.execute(
                "delete from public.knowledge_chunks where hashtext(id::text) % 20 = 0"
            )
            connection.execute("analyze public.knowledge_chunks")
            yield connection


@pytest.mark.parametrize("pool", [10, 50, 200, 1000])
@pytest.mark.parametrize("kind", [None, *KINDS])
def test_the_vector_leg_always_fills_its_pool(
    crowd: Connection, kind: str | None, pool: int
) -> None:
    query = [1, -1, 0.5, 0, 0, 0.25, -0.5, 1]
    with crowd.transaction(force_rollback=True):
        crowd.execute("set local enable_indexscan = off")
        nearest = [
            row[0]
            for row in crowd.execute(
                "select id from public.knowledge_chunks"
                " where status = 'active' and embedding is not null"
                " and knowledge_type = coalesce(%s, knowledge_type)"
                " order by embedding operator(extensions.<=>) %s::extensions.vector limit %s",
                [kind, str(query), pool],
            )
        ]
    rows = search(
        crowd,
        query_embedding=query,
        filter_type=kind,
        match_count=pool,
        match_threshold=-1,
        pool_size=1,
    )
    assert len(rows) == len(nearest)
    found = {row["id"] for row in rows}
    assert len(found) == len(rows)
    assert len(found & set(nearest)) >= 0.95 * len(nearest)
    assert all(one["similarity"] >= other["similarity"] for one, other in pairwise(rows))


def test_the_index_finds_the_nearest_rows_of_each_collection(crowd: Connection) -> None:
    query = [1, -1, 0.5, 0, 0, 0.25, -0.5, 1]
    rows = search(crowd, query_embedding=query, collections=COLLECTIONS, match_count=40)
    assert len(rows) == 40
    for collection in COLLECTIONS:
        found = [row["vector_rank"] for row in rows if row["collection"] == collection]
        assert found == [*range(1, 21)]


@pytest.mark.parametrize("pool", [1, 7, 20])
def test_the_text_leg_always_fills_its_pool(knowledge: Connection, pool: int) -> None:
    kinds = ["note", "task", "task", "task"] * 10
    store(knowledge, *({"content": "a kettle", "knowledge_type": kind} for kind in kinds))
    rows = search(knowledge, query_text="kettle", filter_type="note", match_count=pool)
    assert numbers(rows) == list(range(1, 41, 4))[:pool]
