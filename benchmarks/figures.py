"""One figure of speed, memory or space at a time: `--only NAME`, each with its bound.

The systems of a figure are loaded as in benchmarks/bench.py (`--keep` is the same folder) and asked
in turns: clients of one table query by query, tables round by round. The output has p50 and p95 of
wall time and CPU time (of the server's process for the connection; of LanceDB, of this process), in
milliseconds; a query's time is the median of its rounds. Exit code 1: a figure is out of its bound.

textsearch, paradedb, lancedb: p50 of natural questions over that of a peer. common-words: p95 of
questions of one to five common words over pg_textsearch's. vector: the question's embedding alone
over `order by ... limit` on the same index that returns as many rows. filtered: a filter that keeps
10 % of the rows over no filter. auto: milliseconds that fusion `auto` costs more than `rrf`.
memory: MB of private memory of a connection after 200 calls that mix kinds, filters, viewers and
snippets, and of a connection with the bare vector query. clients: questions a second with four
clients over pg_textsearch's. load, space: seconds to load and bytes of table and indexes over
pg_textsearch's; `load` loads both anew.
"""

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar

from benchmarks.bench import MAJOR, SYSTEMS, commit, record
from benchmarks.bench_report import table
from benchmarks.corpus import EmbeddingSpace, Library, Query
from benchmarks.exact import COUNT
from benchmarks.loading import Keeping, Loaded, locked, said
from benchmarks.memory import private_bytes
from benchmarks.peers.lance import LanceClient
from benchmarks.peers.ours import BareRows, Hybrid, OurClient, SecondBrain, SecondBrainNative
from benchmarks.peers.paradedb import ParadeClient
from benchmarks.peers.system import Client, System
from benchmarks.peers.textsearch import TextSearchClient
from benchmarks.scratch import folder
from benchmarks.timing import Series, throughput, time_kind
from benchmarks.workload import (
    COMMON,
    CORPUS_SEED,
    NATURAL,
    QUERY_SEED,
    SPACE_SEED,
    TENTH,
    Queries,
    fingerprint,
    make_corpus,
    make_queries,
    mixed_calls,
    search,
)

BUDGET = 30.0
CALLS = 200
MEGABYTES = 12
WINDOWS = 6
HEADER = (
    *("figure", "chunks", "bound", "found", "within"),
    *("first, p50 / p95", "its CPU", "second, p50 / p95", "its CPU"),
)


@dataclass(frozen=True)
class Ratio:
    """A percentile of the project's times over a peer's, and the most that is wanted by size."""

    name: str
    peer: str
    kind: str
    percentile: str
    bounds: dict[int, float]


NATIVE = TextSearchClient.name
RATIOS = (
    Ratio("textsearch", NATIVE, NATURAL, "p50", {20_000: 1.5, 200_000: 1.2, 1_000_000: 0.9}),
    Ratio("paradedb", ParadeClient.name, NATURAL, "p50", {2_600: 1.2, 10_000: 1.2}),
    Ratio("lancedb", LanceClient.name, NATURAL, "p50", {200_000: 1.3, 1_000_000: 1.1}),
    Ratio("common-words", NATIVE, COMMON, "p95", {200_000: 1.5}),
)


@dataclass(frozen=True)
class Found:
    """A figure, and the times that it was computed from."""

    value: float
    bound: float
    at_least: bool = False
    series: tuple[Series, ...] = ()
    note: str = ""

    @property
    def is_within(self) -> bool:
        """Whether the figure is within its bound."""
        return self.value >= self.bound if self.at_least else self.value <= self.bound

    def cells(self) -> list[str]:
        """Return the cells of the table after name and size."""
        bound = f"at {'least' if self.at_least else 'most'} {self.bound:g}"
        cells = [bound, f"{self.value:.2f}{self.note}", "yes" if self.is_within else "no"]
        for series in self.series:
            figures = series.figures()
            cells.append(f"{figures['p50']:.2f} / {figures['p95']:.2f}")
            known = "cpu_p50" in figures
            cells.append(f"{figures['cpu_p50']:.2f} / {figures['cpu_p95']:.2f}" if known else "-")
        return cells + [""] * (len(HEADER) - 2 - len(cells))


class Filtered(Hybrid):
    """The project's call with a filter that keeps a tenth of the rows."""

    name = "filtered 10 %"

    def search(self, query: Query, count: int) -> list[int]:
        """Call with the filter."""
        return super().search(replace(query, kept=TENTH), count)


class Rrf(Hybrid):
    """The project's call with fusion `rrf`."""

    name = "fusion rrf"
    fusion: ClassVar = "rrf"


class Bench:
    """Loaded systems of one size, and the queries."""

    def __init__(self, chunks: int, options: argparse.Namespace, keep: Path) -> None:
        library = Library.read()
        space = EmbeddingSpace(options.dimensions, seed=SPACE_SEED)
        self.chunks = chunks
        self.options = options
        self._corpus = make_corpus(library, space, chunks, seed=CORPUS_SEED)
        self._keeping = Keeping(keep, fingerprint(self._corpus, options.major))
        self.queries: Queries = make_queries(library, space, options.queries, seed=QUERY_SEED)

    @contextmanager
    def running(self, *names: str, keep: bool = True) -> Iterator[list[Loaded]]:
        """Run the project and the named peers, loaded if they are not yet."""
        keeping = self._keeping if keep else replace(self._keeping, directory=None)
        by_name: dict[str, type[System]] = {kind.name: kind for kind in SYSTEMS}
        with ExitStack() as stack:
            ours = SecondBrainNative if self.options.native else SecondBrain
            kinds: list[type[System]] = [ours, *(by_name[name] for name in names)]
            for kind in kinds:
                missing = kind.missing(self.options.major)
                if missing:
                    raise SystemExit(f"{kind.name}: {missing}")
                # Each is loaded alone.
                if keep and keeping.loaded(kind, self.chunks) is None:
                    with ExitStack() as alone:
                        said(f"{kind.name}: loading {self.chunks:,} chunks")
                        self._start(kind, alone, keeping)
            yield [self._start(kind, stack, keeping) for kind in kinds]

    def _start(self, kind: type[System], stack: ExitStack, keeping: Keeping) -> Loaded:
        return Loaded.start(kind, self._corpus, self.options.major, stack, keeping)

    def ask(self, clients: Sequence[Sequence[Client]], kind: str) -> tuple[Series, ...]:
        """Ask the clients in turns, and close them."""
        found = time_kind(clients, self.queries[kind], self.options.rounds, BUDGET)
        for series in found:
            series.client.close()
        return tuple(found)


def percentile(series: Series, name: str) -> float:
    """Return a percentile of wall time."""
    return float(series.figures()[name])


def over_peer(ratio: Ratio, bench: Bench) -> Found:
    """Return the ratio to a peer."""
    with bench.running(ratio.peer) as loaded:
        ours, peer = bench.ask([[one.system.connect()] for one in loaded], ratio.kind)
    value = percentile(ours, ratio.percentile) / percentile(peer, ratio.percentile)
    nearest = min(ratio.bounds, key=lambda chunks: abs(chunks - bench.chunks))
    return Found(value, ratio.bounds[nearest], series=(ours, peer))


def pair(
    one: type[OurClient], other: type[OurClient], kind: str, bench: Bench
) -> tuple[Series, Series]:
    """Return the times of two clients of the project's table."""
    with bench.running() as (loaded,):
        assert isinstance(loaded.system, SecondBrain)
        dsn = loaded.system.dsn
        first, second = bench.ask([[one(dsn), other(dsn)]], kind)
    return first, second


def vector(bench: Bench) -> Found:
    """Return the search by vector over the bare query."""
    ours, bare = pair(Hybrid, BareRows, "vector only", bench)
    return Found(percentile(ours, "p50") / percentile(bare, "p50"), 1.4, series=(ours, bare))


def filtered(bench: Bench) -> Found:
    """Return the search with a filter over the one without."""
    kept, natural = pair(Filtered, Hybrid, NATURAL, bench)
    value = percentile(kept, "p50") / percentile(natural, "p50")
    return Found(value, 1.2, series=(kept, natural))


def auto(bench: Bench) -> Found:
    """Return the milliseconds of `auto` minus those of `rrf`."""
    ours, rrf = pair(Hybrid, Rrf, NATURAL, bench)
    return Found(percentile(ours, "p50") - percentile(rrf, "p50"), 0.3, series=(ours, rrf))


def memory(bench: Bench) -> Found:
    """Return the private memory of a connection after mixed calls."""
    with bench.running() as (loaded,):
        assert isinstance(loaded.system, SecondBrain)
        ours, bare = Hybrid(loaded.system.dsn), BareRows(loaded.system.dsn)
        for _, given in zip(range(CALLS), mixed_calls(bench.queries), strict=False):
            search(ours.connection, given)
        vectors = bench.queries["vector only"]
        for number in range(CALLS):
            bare.search(vectors[number % len(vectors)], COUNT)
        megabytes = [
            private_bytes(client.connection.info.backend_pid) / 2**20 for client in (ours, bare)
        ]
        for client in (ours, bare):
            client.close()
    note = f" MB (bare vector query: {megabytes[1]:.1f} MB)"
    return Found(megabytes[0], MEGABYTES, note=note)


def clients(bench: Bench) -> Found:
    """Return the throughput of four clients over the peer's."""
    rates: list[list[float]] = [[], []]
    asked = bench.queries[NATURAL]
    with bench.running(NATIVE) as loaded:
        connects = [one.system.connect for one in loaded]
        # The pages of a kept system are on disk at first.
        for connect in connects:
            client = connect()
            for query in asked:
                client.search(query, COUNT)
            client.close()
        for _ in range(WINDOWS):
            for place, connect in enumerate(connects):
                rates[place].append(throughput(connect, asked, 4, bench.options.seconds))
    ours, peer = map(statistics.mean, rates)
    return Found(ours / peer, 1.0, at_least=True, note=f" ({ours:.0f} and {peer:.0f} a second)")


def load(bench: Bench) -> Found:
    """Return the seconds to load over the peer's, both loaded anew, one after the other."""
    with bench.running(NATIVE, keep=False) as (ours, peer):
        seconds = ours.build_seconds, peer.build_seconds
    note = f" ({seconds[0]:.1f} and {seconds[1]:.1f} s)"
    return Found(seconds[0] / seconds[1], 1.3, note=note)


def space(bench: Bench) -> Found:
    """Return the bytes of table and indexes over the peer's."""
    with bench.running(NATIVE) as (ours, peer):
        used = sum(ours.bytes), sum(peer.bytes)
    note = f" ({used[0] / bench.chunks:,.0f} and {used[1] / bench.chunks:,.0f} bytes a chunk)"
    return Found(used[0] / used[1], 1.3, note=note)


FIGURES: dict[str, tuple[str, tuple[int, ...], Callable[[Bench], Found]]] = {
    **{
        ratio.name: (
            f"{ratio.kind}, {ratio.percentile} over {ratio.peer}",
            tuple(ratio.bounds),
            partial(over_peer, ratio),
        )
        for ratio in RATIOS
    },
    "vector": ("vector only, p50 over the bare query", (20_000,), vector),
    "filtered": ("filtered 10 %, p50 over natural question", (10_000, 100_000), filtered),
    "auto": ("fusion auto, ms more than rrf", (20_000,), auto),
    "memory": (f"private memory after {CALLS} mixed calls", (20_000,), memory),
    "clients": (f"questions a second with 4 clients over {NATIVE}", (100_000,), clients),
    "load": (f"seconds to load over {NATIVE}", (100_000,), load),
    "space": (f"bytes over {NATIVE}", (100_000,), space),
}


def main() -> None:
    """Measure the chosen figures, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=FIGURES, metavar="NAME", help="of the figures")
    parser.add_argument("--sizes", type=int, nargs="+", help="instead of those with a bound")
    parser.add_argument("--queries", type=int, default=100, help="of a kind")
    parser.add_argument("--rounds", type=int, default=5, help="measured ones, after a first")
    parser.add_argument("--seconds", type=float, default=5.0, help="of a measure of throughput")
    parser.add_argument("--dimensions", type=int, default=384)
    parser.add_argument("--major", type=int, default=MAJOR, help="of the PostgreSQL servers")
    parser.add_argument("--native", action="store_true", help="with module native_bm25")
    parser.add_argument("--keep", type=Path, metavar="DIRECTORY", help="of loaded systems")
    options = parser.parse_args()
    chosen = options.only or list(FIGURES)
    run = record(options.major)
    rows = []
    out = []
    with ExitStack() as stack:
        keep = stack.enter_context(folder(options.keep))
        stack.enter_context(locked(keep))
        sizes = {name: options.sizes or FIGURES[name][1] for name in chosen}
        for chunks in sorted({size for found in sizes.values() for size in found}):
            bench = Bench(chunks, options, keep)
            for name in (name for name in chosen if chunks in sizes[name]):
                what, _, measure = FIGURES[name]
                said(f"{name}: {chunks:,} chunks")
                found = measure(bench)
                rows.append([f"{name}: {what}", f"{chunks:,}", *found.cells()])
                out += [] if found.is_within else [name]
    print(f"{run['begun']}, commit {commit()}, other load {run['load']:.1f} at the start\n")
    print(table(HEADER, rows))
    sys.exit(1 if out else 0)


if __name__ == "__main__":
    main()
