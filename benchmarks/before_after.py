"""Compare the speed and the results of two versions of the SQL, measured alternately.

A version is the folder migrations/ of a git revision or of a directory. One embedded server holds
three databases for each size: `corpus`, which the first run loads, and a copy of it for each
version. A copy has the rows, the vector index and the statistics of `corpus`, byte for byte; only
functions, views, types, triggers and policies are dropped and created again by the version's
migrations. So the versions differ only in their SQL. This needs a version with the same
tables and indexes as `corpus`, whose triggers compute the same columns; both are checked. A version
that differs is loaded from the rows of `corpus` through its own triggers instead. That takes
minutes, its vector index is another graph, and a line on standard error says so.

The corpus has documents of ten chunks with passages as in benchmarks/bench.py. Kinds: `natural` is
a question with text and embedding; `filtered` adds filter_type (an eighth of the rows), `metadata`
a condition on metadata (a tenth); `text_only` and `vector_only` leave out the embedding or the
text. The arguments in FIXED are passed, so that another default changes nothing; one that a version
does not have is left out for both.

Each round opens a new connection to each copy, warms it up, and asks every question of every kind
on both, first one and then the other in alternation. A question's time is the median of its rounds.
ratio is p50 of `after` divided by p50 of `before`; its 95 % interval is from a bootstrap over
questions and rounds, in which the two times of a question and round stay together. Same ids: the
questions with the same ids in the same order. Same scores: those whose scores differ by at most
1e-9, too. The exit code is 1 when an interval does not end below --limit.
"""

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
from numpy.typing import NDArray
from pgvector.psycopg import register_vector
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from benchmarks.bench_report import line
from benchmarks.corpus import EmbeddingSpace, Library, Query
from benchmarks.loading import said
from benchmarks.scratch import folder, running
from benchmarks.versions import ROOT, SETTINGS, Connection, Store, Version, column
from benchmarks.workload import QUERY_SEED, SPACE_SEED, search

Row = dict[str, Any]
WARM_UP = 10  # calls on a new connection: PL/pgSQL settles on a plan after five
RESAMPLES = 2000
CLOSE = 1e-9
SCORES = ("rrf_score", "similarity", "text_score")
KINDS = ("natural", "filtered", "metadata", "text_only", "vector_only")
FIXED: Row = {
    "match_count": 10,
    "match_threshold": 0.0,
    "vector_weight": 1.0,
    "text_weight": 1.0,
    "search_mode": "websearch",
    "pool_size": 50,
    "rrf_k": 60.0,
}
Times = NDArray[np.float64]

ARGUMENTS = """
select unnest(function.proargnames[:function.pronargs]) as name
  from pg_proc as function
 where function.oid = 'public.hybrid_search_knowledge_chunks'::regproc
"""


def calls(questions: Sequence[Query], kind: str, arguments: Row) -> list[Row]:
    """Return the arguments of each question of a kind."""
    extra: Row = {}
    if kind == "filtered":
        extra = {"filter_type": "task"}
    elif kind == "metadata":
        extra = {"filters": Jsonb([{"field": "metadata.year", "op": "eq", "value": 2019}])}
    return [
        {
            **({} if kind == "text_only" else {"query_embedding": question.embedding}),
            **({} if kind == "vector_only" else {"query_text": question.text}),
            **arguments,
            **extra,
        }
        for question in questions
    ]


def compare(before: Sequence[Row], after: Sequence[Row]) -> tuple[bool, bool]:
    """Return whether two answers have the same ids in the same order, and also the same scores."""
    if [row["id"] for row in before] != [row["id"] for row in after]:
        return False, False
    close = all(
        one[name] == other[name]
        or (None not in (one[name], other[name]) and abs(one[name] - other[name]) <= CLOSE)
        for one, other in zip(before, after, strict=True)
        for name in SCORES
    )
    return True, close


def measure(
    dsns: tuple[str, str], kinds: Mapping[str, list[Row]], rounds: int
) -> tuple[dict[str, Times], dict[str, list[tuple[bool, bool]]]]:
    """Return for each kind the milliseconds by version, round and question, and what is the same.

    A first round, which is not measured, brings the pages into memory and compares the answers.
    """
    times = {kind: np.zeros((2, rounds, len(asked))) for kind, asked in kinds.items()}
    same: dict[str, list[tuple[bool, bool]]] = {}
    for one in range(-1, rounds):
        with ExitStack() as stack:
            opened: dict[int, Connection] = {}
            for which in turns(one):
                connection = psycopg.connect(dsns[which], autocommit=True, row_factory=dict_row)
                register_vector(connection)
                opened[which] = stack.enter_context(connection)
            for kind, asked in kinds.items():
                if one < 0:
                    same[kind] = [
                        compare(search(opened[0], call), search(opened[1], call)) for call in asked
                    ]
                    continue
                for number in range(WARM_UP):
                    for which in turns(number):
                        search(opened[which], asked[number % len(asked)])
                for number, call in enumerate(asked):
                    for which in turns(one + number):
                        begin = time.perf_counter()
                        search(opened[which], call)
                        times[kind][which, one, number] = 1000 * (time.perf_counter() - begin)
    return times, same


def turns(number: int) -> tuple[int, int]:
    """Return the order of the versions, which alternates."""
    return (1, 0) if number % 2 else (0, 1)


def ratio_of(times: Times) -> float:
    """Return p50 of the second version divided by p50 of the first."""
    before, after = np.median(np.median(times, axis=1), axis=1)
    return float(after / before)


def interval(times: Times, seed: int = 1) -> tuple[float, float]:
    """Return the 95 % interval of ratio_of, from a percentile bootstrap.

    Rounds are resampled as well as questions, because connections also differ from each other.
    """
    random = np.random.default_rng(seed)
    _, rounds, questions = times.shape
    ratios = [
        ratio_of(
            times[:, random.integers(rounds, size=rounds)][
                :, :, random.integers(questions, size=questions)
            ]
        )
        for _ in range(RESAMPLES)
    ]
    low, high = np.percentile(ratios, [2.5, 97.5])
    return float(low), float(high)


def main() -> None:
    """Print a row for each size and kind."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", required=True, metavar="REVISION_OR_DIRECTORY")
    parser.add_argument("--after", default=str(ROOT / "migrations"), help="default: this checkout")
    parser.add_argument("--chunks", type=int, nargs="+", default=[10_000, 200_000])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS[:2] + KINDS[3:4])
    parser.add_argument("--questions", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--dimensions", type=int, default=384)
    parser.add_argument("--major", type=int, default=18, choices=(18, 17, 16))
    parser.add_argument("--fusion", default="auto")
    parser.add_argument("--limit", type=float, default=1.05, help="for the end of an interval")
    parser.add_argument("--keep", type=Path, metavar="DIRECTORY", help="folder for the server")
    options = parser.parse_args()

    library = Library.read()
    space = EmbeddingSpace(options.dimensions, seed=SPACE_SEED)
    questions = library.questions(space, options.questions, seed=QUERY_SEED)
    print(
        "| chunks | kind | before p50 | p95 | after p50 | p95 | ratio | 95 % interval"
        f" | below {options.limit} | same ids | same scores |\n" + "|---" * 11 + "|",
        flush=True,
    )
    kept = True
    with ExitStack() as stack:
        versions = [Version.open(given, stack) for given in (options.before, options.after)]
        place = stack.enter_context(folder(options.keep)) / f"postgres-{options.major}"
        is_kept = options.keep is not None
        server = stack.enter_context(running(place, options.major, SETTINGS, is_kept))
        for chunks in options.chunks:
            store = Store(server, library, space, chunks)
            store.load(versions[0])
            before, after = (
                store.copy(role, version)
                for role, version in zip(("before", "after"), versions, strict=True)
            )
            common = set(column(before, ARGUMENTS)) & set(column(after, ARGUMENTS))
            wanted = {**FIXED, "fusion": options.fusion}
            if missing := sorted(set(wanted) - common):
                said(f"not passed, because a version does not have it: {', '.join(missing)}")
            arguments = {name: value for name, value in wanted.items() if name in common}
            kinds = {kind: calls(questions, kind, arguments) for kind in options.kinds}
            times, same = measure((before, after), kinds, options.rounds)
            for kind in kinds:
                low, high = interval(times[kind])
                kept = kept and high < options.limit
                medians = np.median(times[kind], axis=1)
                ids, scores = (sum(both) for both in zip(*same[kind], strict=True))
                cells = [
                    f"{chunks:,}",
                    kind,
                    *(f"{np.percentile(one, p):.2f}" for one in medians for p in (50, 95)),
                    f"{ratio_of(times[kind]):.3f}",
                    f"{low:.3f} to {high:.3f}",
                    "yes" if high < options.limit else "no",
                    f"{ids}/{len(questions)}",
                    f"{scores}/{len(questions)}",
                ]
                print(line(cells), flush=True)
    if not kept:
        sys.exit(1)


if __name__ == "__main__":
    main()
