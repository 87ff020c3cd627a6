"""Searches and writes for an hour, and what has grown after it.

The corpus of benchmarks/bench.py is loaded into a new database. Then searchers (each with one
connection for the whole run) make mixed calls (benchmarks/workload.py) at a steady rate. One writer
stores documents of ten chunks at a steady rate: new ones, for each of which the oldest is deleted,
and changed ones, half of whose chunks become superseded. Each minute the superseded chunks are
purged, as a scheduled job does. Autovacuum runs with the server's defaults.

The last sixth of the time is compared with the first sixth: p50 and p95 of the searches, in wall
and CPU time; at the end of each, the bytes of every table and index that is written, and the
private memory of the searchers' and the writer's connections. A table or index may grow with the
rows that it holds, dead ones until the next vacuum included; the table names this reason. Anything
else that grows by more than a tenth (times: a quarter) has no reason, and the exit code is 1. On a
machine with other load, judge the CPU time.
"""

import argparse
import itertools
import os
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import psycopg

from benchmarks import writing
from benchmarks.bench import record
from benchmarks.bench_report import table
from benchmarks.corpus import EmbeddingSpace, Library
from benchmarks.loading import Keeping, Loaded, said
from benchmarks.memory import private_bytes
from benchmarks.peers.ours import SecondBrain
from benchmarks.timing import Worker, percentiles
from benchmarks.workload import (
    CORPUS_SEED,
    QUERY_SEED,
    SPACE_SEED,
    make_corpus,
    make_queries,
    mixed_calls,
    search,
)

Connection = psycopg.Connection[Any]

# How much may grow without a reason.
TENTH, QUARTER = 1.1, 1.25
SHARE = 1 / 6
DELETE = "select public.delete_knowledge_document(%s)"
PURGE = "select public.purge_knowledge_chunks(older_than => '1 minute')"
SIZES = """
select relation.oid::regclass::text, pg_table_size(relation.oid), owner.oid::regclass::text
  from pg_class as relation
  left join pg_index as index on index.indexrelid = relation.oid
  join pg_class as owner on owner.oid = coalesce(index.indrelid, relation.oid)
 where owner.relnamespace in ('public'::regnamespace, 'knowledge_internal'::regnamespace)
   and owner.relkind = 'r'
   and relation.relkind in ('r', 'i')
 order by owner.oid::regclass::text, relation.relkind desc, relation.oid::regclass::text
"""
ROWS = """
select relid::regclass::text, n_live_tup + n_dead_tup
  from pg_stat_user_tables
 where schemaname in ('public', 'knowledge_internal')
"""
# Smaller relations grow by whole pages.
LEAST_BYTES = 2**20


def writes(drafts: writing.Drafts, documents: int) -> Callable[[Connection], None]:
    """Return what writes at each call a new document, or new chunks for half of the oldest one.

    Of more documents than this the oldest is deleted.
    """
    written: deque[writing.Draft] = deque()
    numbers = itertools.count(1)

    def once(connection: Connection) -> None:
        is_change = next(numbers) % 2 and len(written) > 1
        written.append(drafts.changed(written.popleft()) if is_change else drafts.new())
        connection.execute(writing.UPSERT, written[-1].arguments())
        if len(written) > documents:
            connection.execute(DELETE, [writing.PREFIX + written.popleft().name])

    return once


def search_next(calls: Iterator[dict[str, Any]], connection: Connection) -> None:
    """Make the next of the searches."""
    search(connection, next(calls))


@dataclass
class Sample:
    """What is compared, at a time."""

    sizes: dict[str, tuple[int, str]]
    rows: dict[str, int]
    searchers: float
    writer: float
    load: float
    times: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)


def sample(connection: Connection, searchers: list[Worker], writer: Worker) -> Sample:
    """Return the sizes and the memory now."""
    sizes = {name: (bytes_, owner) for name, bytes_, owner in connection.execute(SIZES).fetchall()}
    rows = dict(connection.execute(ROWS).fetchall())
    memory = statistics.mean(map(memory_of, searchers))
    return Sample(sizes, rows, memory, memory_of(writer), os.getloadavg()[0])


def memory_of(worker: Worker) -> int:
    """Return the private memory of the server's process for the worker's connection."""
    return private_bytes(worker.connection.info.backend_pid)


def grown(what: str, first: float, last: float, form: str, bound: float, reason: str) -> list[str]:
    """Return a row of the table."""
    ratio = last / first if first else 1.0
    within = "yes" if ratio <= bound else "no"
    return [what, format(first, form), format(last, form), f"{ratio:.2f}", reason, within]


def compare(first: Sample, last: Sample) -> list[list[str]]:
    """Return the rows of the table."""
    times = [percentiles(one.times) for one in (first, last)]
    cpu = [percentiles(one.cpu) for one in (first, last)]
    load = f"load of the machine {first.load:.1f} and {last.load:.1f}"
    rows = [
        *(
            grown(f"search {share}, ms", times[0][share], times[1][share], ".1f", QUARTER, load)
            for share in ("p50", "p95")
        ),
        *(
            grown(f"its CPU time, {share}, ms", cpu[0][share], cpu[1][share], ".1f", QUARTER, "")
            for share in ("p50", "p95")
        ),
        grown("memory of a searcher, MB", *megabytes(first.searchers, last.searchers), TENTH, ""),
        grown("memory of the writer, MB", *megabytes(first.writer, last.writer), TENTH, ""),
    ]
    for name, (bytes_, owner) in last.sizes.items():
        before = first.sizes[name][0]
        if bytes_ < LEAST_BYTES:
            continue
        more = last.rows[owner] / max(first.rows[owner], 1)
        reason = f"{more:.2f} times the rows of {owner}, dead ones too" if more > 1.01 else ""
        bound = TENTH * max(more, 1.0)
        rows.append(grown(f"{name}, MB", *megabytes(before, bytes_), bound, reason))
    return rows


def megabytes(first: float, last: float) -> tuple[float, float, str]:
    """Return two sizes in MB, and their format."""
    return first / 2**20, last / 2**20, ".1f"


def soak(loaded: Loaded, options: argparse.Namespace) -> list[list[str]]:
    """Run the searches and writes; return the rows of the table."""
    assert isinstance(loaded.system, SecondBrain)
    dsn = loaded.system.dsn
    library = Library.read()
    space = EmbeddingSpace(options.dimensions, seed=SPACE_SEED)
    queries = make_queries(library, space, 100, seed=QUERY_SEED)
    drafts = writing.Drafts(library, space, seed=options.chunks)
    seconds = 60 * options.minutes
    begin = time.perf_counter()
    with ExitStack() as stack:
        workers: list[Worker] = []

        def start(every: float, once: Callable[[Connection], object]) -> Worker:
            workers.append(Worker(dsn, every, once))
            stack.callback(workers[-1].stop)
            return workers[-1]

        searchers = [
            start(1 / options.searches, partial(search_next, mixed_calls(queries)))
            for _ in range(options.searchers)
        ]
        documents = max(options.chunks // 50 // writing.CHUNKS, 10)
        writer = start(writing.CHUNKS / options.rate, writes(drafts, documents))
        start(min(60.0, seconds * SHARE / 2), lambda connection: connection.execute(PURGE))
        samples = []
        for end in (seconds * SHARE, seconds):
            while (left := begin + end - time.perf_counter()) > 0:
                time.sleep(min(left, 60.0))
                recent = [took for one in searchers for _, took in one.times[-200:]]
                p95 = percentiles(recent)["p95"] if recent else 0.0
                minutes = (time.perf_counter() - begin) / 60
                said(f"  {minutes:.1f} minutes: p95 of the last searches {p95:.1f} ms")
                if any(worker.failure is not None for worker in workers):
                    return []
            samples.append(sample(loaded.system.connection, searchers, writer))
    first, last = samples
    for searcher in searchers:
        for (at, took), cpu in zip(searcher.times, searcher.cpu, strict=True):
            for one, of_it in (
                (first, at < begin + seconds * SHARE),
                (last, at >= begin + seconds * (1 - SHARE)),
            ):
                if of_it:
                    one.times.append(took)
                    one.cpu.append(cpu)
    wrote = len(writer.times) * writing.CHUNKS / seconds
    asked = sum(len(searcher.times) for searcher in searchers) / seconds
    said(f"  {asked:.1f} searches and {wrote:.1f} written chunks a second")
    return compare(first, last)


def main() -> None:
    """Load, soak, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--chunks", type=int, default=100_000)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--searchers", type=int, default=2)
    parser.add_argument("--searches", type=float, default=5.0, help="a second, of each searcher")
    parser.add_argument("--rate", type=float, default=20.0, help="chunks a second of the writer")
    parser.add_argument("--dimensions", type=int, default=384)
    parser.add_argument("--major", type=int, default=18, help="of the PostgreSQL server")
    parser.add_argument("--nice", type=int, default=0, help="of this process and its server")
    options = parser.parse_args()
    os.nice(options.nice)
    run = record(options.major)
    space = EmbeddingSpace(options.dimensions, seed=SPACE_SEED)
    corpus = make_corpus(Library.read(), space, options.chunks, seed=CORPUS_SEED)
    with ExitStack() as stack:
        said(f"loading {options.chunks:,} chunks")
        keeping = Keeping(None, {})
        loaded = Loaded.start(SecondBrain, corpus, options.major, stack, keeping)
        rows = soak(loaded, options)
    header = ("what", "first sixth", "last sixth", "ratio", "reason of growth", "within")
    print(
        f"{run['begun']}, commit {run['commit']}, PostgreSQL {options.major}:"
        f" {options.minutes:g} minutes at {options.chunks:,} chunks, {options.searchers} searchers"
        f" with {options.searches:g} searches a second each, {options.rate:g} written chunks a"
        " second\n"
    )
    print(table(header, rows))
    sys.exit(1 if any(row[-1] == "no" for row in rows) else 0)


if __name__ == "__main__":
    main()
