"""What each argument adds to a search: milliseconds of CPU of the server's process.

The corpus is that of benchmarks/before_after.py, in a new database. Each question is asked in every
way of CASES, in random order; after a first round, which warms up, the difference from the call
that it is compared with (in the same round, for the same question) counts. `whole` is the median of
the calls, `adds` the median of the differences, `p95` that of the calls. `unused` gives each
argument its default. Known chunks are the first hits of the question. A phrase is asked as text
alone; all others with text, embedding and fusion `auto`.
"""

import argparse
import random
import statistics
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from pgvector.psycopg import register_vector
from psycopg import Connection
from psycopg.types.json import Jsonb

from benchmarks.bench_report import line
from benchmarks.corpus import EmbeddingSpace, Library
from benchmarks.memory import process_cpu
from benchmarks.scratch import database
from benchmarks.versions import load
from benchmarks.workload import QUERY_SEED, SPACE_SEED, make_queries, search

Row = dict[str, Any]

PLAIN, SNIPPET, PHRASE = "plain search", "snippet", "phrase"
BOOSTS: tuple[Row, ...] = (
    {"field": "created_at", "decay": "exp", "origin": "now", "scale": 30},
    {"filters": {"knowledge_type": "task"}, "factor": 1.5},
    {"field": "metadata.year", "modifier": "log1p", "weight": 0.2},
)
UNUSED: Row = {
    **dict.fromkeys(("like_ids", "boosts", "order_by", "max_per_document", "min_confidence")),
    **{"diversity": 0.0, "merge_duplicates": False, "snippets": 1},
}


@dataclass(frozen=True)
class Case:
    """A way to ask: further arguments, and the case that it is compared with."""

    given: Row = field(default_factory=dict)
    over: str = PLAIN
    known: int = 0
    has_question: bool = True


CASES = {
    PLAIN: Case(),
    "unused": Case(UNUSED),
    "like_ids, 1 known": Case(known=1),
    "like_ids, 2 known": Case(known=2),
    "like_ids, 2 known, no question": Case(known=2, has_question=False),
    "one boost": Case({"boosts": Jsonb(BOOSTS[:1])}),
    "three boosts": Case({"boosts": Jsonb(BOOSTS)}),
    "order_by": Case({"order_by": "metadata.year desc"}),
    "diversity 0.3": Case({"diversity": 0.3}),
    "max_per_document 2": Case({"max_per_document": 2}),
    "merge_duplicates": Case({"merge_duplicates": True}),
    "min_confidence 0.3": Case({"min_confidence": 0.3}),
    SNIPPET: Case({"snippet": True}),
    "snippets 3": Case({"snippet": True, "snippets": 3}, over=SNIPPET),
    PHRASE: Case(has_question=False, over=PHRASE),
    "near phrase, ~5": Case(has_question=False, over=PHRASE),
}


def cpu(connection: "Connection[Any]", arguments: Row) -> float:
    """Return the milliseconds of CPU of a search."""
    process = connection.info.backend_pid
    before = process_cpu(process) or 0.0
    search(connection, arguments)
    return (process_cpu(process) or 0.0) - before


def main() -> None:
    """Load, ask, and print a Markdown table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--chunks", type=int, default=20_000)
    parser.add_argument("--questions", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dimensions", type=int, default=384)
    options = parser.parse_args()
    library, chance = Library.read(), random.Random(QUERY_SEED)
    space = EmbeddingSpace(options.dimensions, seed=SPACE_SEED)
    queries = make_queries(library, space, options.questions, seed=QUERY_SEED)
    times: dict[str, list[float]] = defaultdict(list)
    with database(options.dimensions) as connection:
        register_vector(connection)
        load(connection, library, space, options.chunks)
        for number in range(options.rounds + 1):
            for natural, phrase in zip(queries["natural question"], queries[PHRASE], strict=True):
                question = {"query_text": natural.text, "query_embedding": natural.embedding}
                plain = {**question, "fusion": "auto"}
                hits = search(connection, plain)
                for name in chance.sample(list(CASES), len(CASES)):
                    case = CASES[name]
                    asked = {**(plain if case.has_question else {"fusion": "auto"}), **case.given}
                    if case.known:
                        asked["like_ids"] = [hit[0] for hit in hits[: case.known]]
                    if PHRASE in (name, case.over):
                        asked["query_text"] = f'"{phrase.text}"' + "~5" * (name != PHRASE)
                    spent = cpu(connection, asked)
                    if number:
                        times[name].append(spent)
    print(f"{options.chunks:,} chunks, {options.questions} questions, {options.rounds} rounds\n")
    print(line(("argument", "whole", "adds", "p95")), line(["---"] * 4), sep="\n")
    for name, case in CASES.items():
        added = np.subtract(times[name], times[case.over])
        p95 = np.percentile(times[name], 95)
        adds = "" if case.over == name else f"{statistics.median(added):+.2f}"
        print(line((name, f"{statistics.median(times[name]):.2f}", adds, f"{p95:.2f}")))


if __name__ == "__main__":
    main()
