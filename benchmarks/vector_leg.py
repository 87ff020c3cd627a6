"""Rows, recall and time of the vector leg for pools and filters of every selectivity.

Seeded, clustered unit vectors; each row has a knowledge_type whose share of the rows is known, so
that `filter_type` keeps 50 to 0.01 %. Recall is the share of the exact nearest rows that the leg
returns. Time is the median of the calls over the median of a bare `order by ... limit` on the
index, without a filter, in the same run. The bare query runs at an hnsw.ef_search of the pool:
HNSW returns no more rows than that, and would answer a larger pool with the default of 40.
"""

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import psycopg
from numpy.typing import NDArray
from pgvector.psycopg import register_vector
from psycopg.conninfo import make_conninfo

from benchmarks import scratch
from benchmarks.corpus import EmbeddingSpace, Vectors
from second_brain.database import vector_index

SHARES = {
    "note": 50.0,
    "document": 36.89,
    "decision": 10.0,
    "task": 2.0,
    "signal": 1.0,
    "playbook": 0.1,
    "transcript": 0.01,
}
KEPT = {
    100.0: None,
    50.0: "note",
    10.0: "decision",
    2.0: "task",
    1.0: "signal",
    0.1: "playbook",
    0.01: "transcript",
}
SEARCH = """
select id from public.hybrid_search_knowledge_chunks(
  query_embedding => %(query)s, match_count => %(pool)s, match_threshold => -1,
  pool_size => %(pool)s, filter_type => %(kept)s
)
"""
DEFAULT_EF_SEARCH = 40
BARE = """
select id
  from knowledge_internal.searchable_chunks
 where status = 'active'
 order by indexed_embedding operator(extensions.<=>) %(query)s::extensions.halfvec
 limit %(pool)s
"""


def load(connection: "psycopg.Connection[Any]", vectors: Vectors, seed: int) -> NDArray[np.str_]:
    """Store the vectors with their types, and no vector index; return the types."""
    random = np.random.default_rng(seed)
    counts = [max(1, round(len(vectors) * share / 100)) for share in SHARES.values()]
    counts[0] += len(vectors) - sum(counts)
    types = random.permutation(np.repeat(list(SHARES), counts))
    connection.execute("drop index public.knowledge_chunks_embedding")
    with (
        connection.cursor() as cursor,
        cursor.copy(
            "copy public.knowledge_chunks (chunk_index, content, knowledge_type, embedding)"
            " from stdin (format binary)"
        ) as copy,
    ):
        copy.set_types(["int4", "text", "text", "vector"])
        for number, (kind, vector) in enumerate(zip(types, vectors, strict=True)):
            copy.write_row((number, f"chunk {number}", str(kind), vector))
    connection.execute("vacuum analyze public.knowledge_chunks")
    return types


def chunk_indexes(connection: "psycopg.Connection[Any]") -> dict[Any, int]:
    """Return the place of each row's vector by the row's id."""
    rows = connection.execute("select id, chunk_index from public.knowledge_chunks").fetchall()
    return dict(rows)


def least_similarity(vectors: Vectors, query: Vectors, wanted: int) -> float:
    """Return the similarity of the last row among the exact nearest.

    Every row with at least this similarity counts, so that ties do not matter.
    """
    return float(np.partition(vectors @ query, -wanted)[-wanted]) - 1e-6


def timed(
    connection: "psycopg.Connection[Any]", statement: str, arguments: dict[str, Any]
) -> tuple[list[Any], float]:
    """Return the rows' ids and the milliseconds that the call took."""
    begin = time.perf_counter()
    rows = connection.execute(statement, arguments).fetchall()
    return [row[0] for row in rows], 1000 * (time.perf_counter() - begin)


def bare_milliseconds(connection: "psycopg.Connection[Any]", queries: Vectors, pool: int) -> float:
    """Return the median of the index alone, with the smallest ef_search that returns the pool."""
    connection.execute(
        "select set_config('hnsw.ef_search', %s, false)", [str(max(pool, DEFAULT_EF_SEARCH))]
    )
    times = []
    for query in queries:
        ids, milliseconds = timed(connection, BARE, {"query": query, "pool": pool})
        assert len(ids) == pool, f"the index returned {len(ids)} rows of {pool}"
        times.append(milliseconds)
    connection.execute("reset hnsw.ef_search")
    return statistics.median(times)


def measure(
    connection: "psycopg.Connection[Any]",
    vectors: Vectors,
    types: NDArray[np.str_],
    queries: Vectors,
    pools: Sequence[int],
) -> list[dict[str, Any]]:
    """Return a row of figures for each pool and filter."""
    numbers = chunk_indexes(connection)
    figures = []
    for pool in pools:
        bare = bare_milliseconds(connection, queries, pool)
        for share, kept in KEPT.items():
            rows = np.flatnonzero(types == kept) if kept else np.arange(len(vectors))
            recalls, times, fewest = [], [], len(vectors)
            for query in queries:
                wanted = min(pool, len(rows))
                least = least_similarity(vectors[rows], query, wanted)
                ids, milliseconds = timed(
                    connection, SEARCH, {"query": query, "pool": pool, "kept": kept}
                )
                found = np.array([numbers[identity] for identity in ids], dtype=int)
                recalls.append(float(np.sum(vectors[found] @ query >= least)) / wanted)
                times.append(milliseconds)
                fewest = min(fewest, len(set(ids)))
            figures.append(
                {
                    "pool": pool,
                    "kept_percent": share,
                    "rows_wanted": wanted,
                    "rows_least": fewest,
                    "recall_mean": round(statistics.mean(recalls), 4),
                    "recall_p5": round(float(np.percentile(recalls, 5)), 4),
                    "p50_over_bare": round(statistics.median(times) / bare, 2),
                    "p50_ms": round(statistics.median(times), 2),
                    "p95_ms": round(float(np.percentile(times, 95)), 2),
                }
            )
            print(figures[-1], flush=True)
    return figures


def main() -> None:
    """Run the measurement and print its table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--dimensions", type=int, default=384)
    parser.add_argument("--queries", type=int, default=50)
    parser.add_argument("--pools", type=int, nargs="+", default=[10, 50, 200])
    parser.add_argument("--json", action="store_true", help="print one JSON array at the end")
    options = parser.parse_args()

    space = EmbeddingSpace(options.dimensions, seed=1)
    everything = space.draw_anywhere(options.rows + options.queries, seed=2)
    vectors, queries = everything[: options.rows], everything[options.rows :]
    with scratch.database(options.dimensions) as connection:
        register_vector(connection)
        types = load(connection, vectors, seed=4)
        vector_index.build(make_conninfo(connection.info.dsn, password=connection.info.password))
        figures = measure(connection, vectors, types, queries, options.pools)
    if options.json:
        print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
