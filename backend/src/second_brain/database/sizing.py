"""The cost model: memory, disk, processors, machines and replicas, from measured figures.

`FIGURES` is the only place with numbers that were measured or assumed; each has its source.
`plan` calculates with them and connects to nothing. docs/scale.md compares the bytes with those of
a database.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from second_brain.errors import InvalidInputError

GB = 1e9
MAX_DIMENSIONS = 16_000
MAX_HNSW_DIMENSIONS = 4_000


@dataclass(frozen=True, slots=True)
class Figure:
    """A number of the model, and where it comes from."""

    value: float
    unit: str
    source: str


_OPERATE = "docs/operate.md, Memory and disk"
_SPEED = "docs/operate.md, Speed by size: p50 of natural questions, two idle cores"
_SIZING = "measured on 2026-11-22 at 20,000 chunks"

FIGURES: Mapping[str, Figure] = {
    "page": Figure(8168, "bytes", "Postgres: a page of 8,192 bytes without its header"),
    "index_entry": Figure(280, "bytes beside 2 * dimensions", f"{_OPERATE}: HNSW with m 16"),
    "toast": Figure(1.03, "times 4 * dimensions + 8", f"{_OPERATE}: embeddings on disk"),
    "rows": Figure(1340, "bytes", f"{_SIZING}: rows for filters and scores"),
    "text": Figure(13, "bytes per word", f"{_OPERATE}: 1.3 GB per million with 100 words"),
    "text_index": Figure(3, "bytes per word", f"{_SIZING}: 248 bytes for 82 words"),
    "other_indexes": Figure(200, "bytes", f"{_OPERATE}: all other indexes"),
    "connection": Figure(26e6, "bytes", f"{_OPERATE}: after calls of all kinds"),
    "search_20000": Figure(8.5, "ms", _SPEED),
    "search_200000": Figure(11.3, "ms", _SPEED),
    "search_1000000": Figure(16.1, "ms", _SPEED),
    "coordinator": Figure(
        14, "ms of each search", "docs/scale.md, One corpus on Citus: up to 50,000 chunks"
    ),
    "load": Figure(
        1100, "chunks per second", "docs/operate.md, Writes: two connections, no search indexes"
    ),
    "index_build": Figure(
        480, "s per million and 384 dimensions, 2 cores", "docs/operate.md, Writes"
    ),
    "cached": Figure(
        0.5,
        "of the memory",
        "docs/operate.md: 2.6 GB need a machine of 8 GB, 5.5 GB one of 16 GB; the rest is for the "
        "system, connections, index builds and copies in the cache of the system",
    ),
    "busy": Figure(0.6, "of the processors", "assumed: the rest is for p95, writes and vacuum"),
    "growth": Figure(1.5, "times", "assumed: dead rows, WAL and one index that is built anew"),
}


@dataclass(frozen=True, slots=True)
class Instance:
    """A size of machine; the names are those of Supabase."""

    name: str
    memory_gb: float
    cores: int


# supabase.com/docs/guides/platform/compute-and-disk, read in 2026-11.
INSTANCES = (
    Instance("Small", 2, 2),
    Instance("Medium", 4, 2),
    Instance("Large", 8, 2),
    Instance("XL", 16, 4),
    Instance("2XL", 32, 8),
    Instance("4XL", 64, 16),
    Instance("8XL", 128, 32),
    Instance("12XL", 192, 48),
    Instance("16XL", 256, 64),
)


@dataclass(frozen=True, slots=True)
class ChunkBytes:
    """Bytes of one chunk in each part of a database."""

    rows: float
    toast: float
    vector_index: float
    text_index: float
    other_indexes: float

    @property
    def cached(self) -> float:
        """What should be in memory: the indexes that searches read, and the rows."""
        return self.rows + self.vector_index + self.text_index

    @property
    def stored(self) -> float:
        """Everything."""
        return self.cached + self.toast + self.other_indexes


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a plan: a quantity and how it was calculated."""

    what: str
    value: float
    unit: str
    assumption: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What a corpus needs. More than one worker: a cluster of Citus, which has a coordinator, too.

    `nodes` is the number of machines of each database, with the primary.
    """

    chunks: int
    dimensions: int
    words: float
    qps: float
    workers: int
    nodes: int
    instance: Instance
    lines: Sequence[Line]
    figures: Mapping[str, Figure]


def chunk_bytes(dimensions: int, words: float) -> ChunkBytes:
    """Return the bytes of a chunk with the default vector index, in half precision."""
    # An index entry does not cross a page.
    indexed = min(dimensions, MAX_HNSW_DIMENSIONS)
    entry = 2 * indexed + _value("index_entry")
    return ChunkBytes(
        rows=_value("rows"),
        toast=_value("toast") * (4 * dimensions + 8) + _value("text") * words,
        vector_index=8192 / max(1, _value("page") // entry),
        text_index=_value("text_index") * words,
        other_indexes=_value("other_indexes"),
    )


def search_ms(chunks: float) -> float:
    """Return the milliseconds of a search, between the measured sizes by the logarithm."""
    points = [(rows, _value(f"search_{rows}")) for rows in (20_000, 200_000, 1_000_000)]
    if chunks <= points[0][0]:
        return points[0][1]
    for (rows, found), (next_rows, next_found) in pairwise(points):
        slope = (next_found - found) / math.log(next_rows / rows)
        if chunks <= next_rows:
            break
    return found + slope * math.log(chunks / rows)


def plan(
    chunks: int, dimensions: int, qps: float, *, words: float = 100, largest_gb: float = 64
) -> Plan:
    """Calculate what a corpus needs: the fewest databases that fit, then the least memory in all.

    `words` is the mean of a chunk, `largest_gb` the memory of the largest machine to use. Raises
    InvalidInputError for a value out of range.
    """
    _check("chunks", chunks, 1, 100_000_000_000)
    _check("dimensions", dimensions, 1, MAX_DIMENSIONS)
    _check("qps", qps, 0, 1_000_000)
    _check("words", words, 1, 100_000)
    instances = [one for one in INSTANCES if one.memory_gb <= largest_gb]
    if not instances:
        raise InvalidInputError(
            f"largest_gb must be at least {INSTANCES[0].memory_gb:g}, not {largest_gb:g}"
        )
    each = chunk_bytes(dimensions, words)
    workers = max(1, math.ceil(chunks * each.cached / _room(instances[-1])))
    rows = chunks / workers
    work = search_ms(rows)
    cores = qps * work / 1000 / _value("busy")
    # A worker of a cluster does less than a search in a database of its own: an upper bound.
    coordinator = qps * _value("coordinator") / 1000 / _value("busy") if workers > 1 else 0.0
    # Least memory in all, then the fewest machines.
    _, nodes, instance = min(
        (
            (one.memory_gb * max(1, math.ceil(cores / one.cores)), nodes, one)
            for one in instances
            for nodes in [max(1, math.ceil(cores / one.cores))]
            if rows * each.cached <= _room(one)
        ),
        key=lambda choice: choice[:2],
    )
    build = _value("index_build") * rows / 1e6 * dimensions / 384 * 2 / instance.cores
    one_database = "each worker" if workers > 1 else "the database"
    lines = [
        Line(
            "databases (workers of Citus, if several)",
            workers,
            "",
            f"{_room(instances[-1]) / GB:.0f} GB for rows and "
            f"indexes in the largest machine allowed, {instances[-1].name}",
        ),
        Line(
            "read replicas of " + one_database,
            nodes - 1,
            "",
            f"{cores:.1f} cores for searches, {instance.cores} in a machine; add one to survive "
            "the loss of a machine",
        ),
        Line(
            "machines in all",
            workers * nodes,
            instance.name,
            f"{instance.memory_gb:g} GB, {instance.cores} cores each (names and sizes of Supabase)"
            + (", and the coordinator" if workers > 1 else ""),
        ),
        Line(
            "memory for rows and indexes",
            rows * each.cached / GB,
            "GB in each machine",
            f"{each.vector_index:,.0f} + {each.text_index:,.0f} + {each.rows:,.0f} bytes per "
            "chunk: vector index (half precision), text index, rows",
        ),
        Line(
            "memory of connections",
            _connections(instance) * _value("connection") / GB,
            "GB in each machine",
            f"{_connections(instance)} connections, two for each core",
        ),
        Line(
            "disk",
            rows * each.stored * _value("growth") / GB,
            "GB in each machine",
            f"{each.stored:,.0f} bytes per chunk, half as much more for dead rows, WAL, new index",
        ),
        Line(
            "time of a search, p50",
            search_ms(rows),
            "ms in one database",
            "measured up to a million chunks with 384 dimensions, everything in memory; above, "
            "it grows with the logarithm as from 200,000 to a million",
        ),
        Line(
            "processors for searches",
            cores * workers + coordinator,
            "cores in all",
            f"{work:.1f} ms of one core for a search in {one_database}, at most 60 % busy"
            + (f"; {coordinator:,.1f} of them in the coordinator" if workers > 1 else ""),
        ),
        Line(
            "loading",
            rows / _value("load") / 3600,
            "hours, all databases at the same time",
            "two connections, without the search indexes; without the embedding model",
        ),
        Line(
            "vector index build",
            build / 3600,
            "hours, all databases at the same time",
            "time of a million chunks with 384 dimensions, in proportion to chunks, dimensions "
            "and cores",
        ),
    ]
    return Plan(chunks, dimensions, words, qps, workers, nodes, instance, lines, FIGURES)


def _value(name: str) -> float:
    return FIGURES[name].value


def _connections(instance: Instance) -> int:
    return 2 * instance.cores


def _room(instance: Instance) -> float:
    """Return the bytes of memory for rows and indexes."""
    connections = _connections(instance) * _value("connection")
    return _value("cached") * instance.memory_gb * GB - connections


def _check(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise InvalidInputError(f"{name} must be {least:,} to {most:,}, not {value:,}")
