"""Build time, size, recall and time of the vector index by its kind and parameters.

Seeded, clustered unit vectors, loaded once. Each variant, KIND/M/EF_CONSTRUCTION, is built as
`second-brain index build` does it, in a copy of the loaded database. The calls are searches by
vector alone for a pool of rows, by which the search sets hnsw.ef_search. Recall is the share of the
exact nearest rows that are returned: its mean and its 5th percentile over the queries. The variants
take turns round by round; p50 and p95 are over the queries, of the median of each query's rounds.
The ratio is to the first variant: the median over the queries.
"""

import argparse
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import psycopg
from numpy.typing import NDArray
from pgvector.psycopg import register_vector
from psycopg import sql
from psycopg.conninfo import make_conninfo

from benchmarks import scratch
from benchmarks.corpus import EmbeddingSpace, Vectors
from benchmarks.loading import said
from benchmarks.vector_leg import SEARCH, chunk_indexes, least_similarity, load, timed
from second_brain.database import vector_index
from second_brain.errors import InvalidInputError

VARIANTS = ("halfvec/16/64", "vector/16/64", "halfvec/8/64", "halfvec/24/128", "halfvec/16/128")


@dataclass
class Variant:
    """An index and its database; `recalls` by pool, `times` by pool of each round's queries.

    `seconds` are those of the build, `size` is in bytes, the times are in milliseconds.
    """

    name: str
    seconds: float
    size: int
    connection: "psycopg.Connection[Any]"
    recalls: dict[int, list[float]] = field(default_factory=dict)
    times: dict[int, list[list[float]]] = field(default_factory=dict)

    def medians(self, pool: int) -> NDArray[np.float64]:
        """Return the median of the rounds of each query."""
        medians: NDArray[np.float64] = np.median(self.times[pool], axis=0)
        return medians


def wanted_index(name: str) -> vector_index.IndexSettings:
    """Parse KIND/M/EF_CONSTRUCTION; raise ArgumentTypeError for values that HNSW rejects."""
    try:
        kind, m, ef_construction = name.split("/")
        return vector_index.IndexSettings(
            cast(vector_index.Kind, kind), int(m), int(ef_construction)
        )
    except (ValueError, InvalidInputError) as exc:
        raise argparse.ArgumentTypeError(f"{name}: {exc}") from exc


def build(
    loaded: "psycopg.Connection[Any]",
    settings: vector_index.IndexSettings,
    database: str,
    stack: ExitStack,
) -> Variant:
    """Build the index in a copy of the loaded database; the stack closes the connection to it."""
    loaded.execute(
        sql.SQL("create database {} template {} strategy file_copy").format(
            sql.Identifier(database), sql.Identifier(loaded.info.dbname)
        )
    )
    dsn = make_conninfo(loaded.info.dsn, password=loaded.info.password, dbname=database)
    begin = time.perf_counter()
    indexes = vector_index.build(dsn, settings)
    seconds = time.perf_counter() - begin
    index = next(one for one in indexes if one.name == vector_index.VECTOR_INDEX)
    name = f"{index.kind}/{index.m}/{index.ef_construction}"
    said(f"{name}: built in {seconds:.1f} s")
    connection = stack.enter_context(psycopg.connect(dsn, autocommit=True))
    register_vector(connection)
    return Variant(name, seconds, index.size, connection)


def search(variant: Variant, queries: Vectors, pool: int) -> tuple[list[list[Any]], list[float]]:
    """Return the ids and the milliseconds of each query."""
    answers = [
        timed(variant.connection, SEARCH, {"query": query, "pool": pool, "kept": None})
        for query in queries
    ]
    return [ids for ids, _ in answers], [milliseconds for _, milliseconds in answers]


def measure(
    variants: Sequence[Variant],
    vectors: Vectors,
    queries: Vectors,
    pools: Sequence[int],
    rounds: int,
) -> None:
    """Measure the recalls, with calls that also warm up each variant, then the times."""
    numbers = chunk_indexes(variants[0].connection)
    for pool in pools:
        least = [least_similarity(vectors, query, pool) for query in queries]
        for variant in variants:
            answers, _ = search(variant, queries, pool)
            variant.recalls[pool] = [
                float(np.sum(vectors[[numbers[identity] for identity in ids]] @ query >= bound))
                / pool
                for ids, query, bound in zip(answers, queries, least, strict=True)
            ]
        for one in range(rounds):
            for turn in range(len(variants)):
                variant = variants[(turn + one) % len(variants)]
                _, times = search(variant, queries, pool)
                variant.times.setdefault(pool, []).append(times)


def print_table(variants: Sequence[Variant], pools: Sequence[int]) -> None:
    """Print a row for each variant."""
    header = ["index", "build s", "size MB"]
    for pool in pools:
        header += [f"recall at {pool}", "p5", "p50 ms", "p95 ms", "ratio"]
    rows = []
    for variant in variants:
        row = [variant.name, f"{variant.seconds:.1f}", f"{variant.size / 2**20:.1f}"]
        for pool in pools:
            recalls, times = variant.recalls[pool], variant.medians(pool)
            row += [f"{np.mean(recalls):.4f}", f"{np.percentile(recalls, 5):.4f}"]
            row += [f"{np.percentile(times, share):.2f}" for share in (50, 95)]
            row.append(f"{np.median(times / variants[0].medians(pool)):.2f}")
        rows.append(row)
    for cells in (header, ["---"] + ["---:"] * (len(header) - 1), *rows):
        print(f"| {' | '.join(cells)} |")


def main() -> None:
    """Build the variants, measure them and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--chunks", type=int, default=100_000)
    parser.add_argument("--dimensions", type=int, default=384)
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--pools", type=int, nargs="+", default=[50, 200])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--variants",
        type=wanted_index,
        nargs="+",
        default=[wanted_index(name) for name in VARIANTS],
        metavar="KIND/M/EF_CONSTRUCTION",
        help=f"default: {' '.join(VARIANTS)}",
    )
    options = parser.parse_args()

    space = EmbeddingSpace(options.dimensions, seed=1)
    everything = space.draw_anywhere(options.chunks + options.queries, seed=2)
    vectors, queries = everything[: options.chunks], everything[options.chunks :]
    with scratch.database(options.dimensions) as loaded, ExitStack() as stack:
        register_vector(loaded)
        load(loaded, vectors, seed=4)
        variants = [
            build(loaded, settings, f"variant_{number}", stack)
            for number, settings in enumerate(options.variants, start=1)
        ]
        measure(variants, vectors, queries, options.pools, options.rounds)
    print_table(variants, options.pools)


if __name__ == "__main__":
    main()
