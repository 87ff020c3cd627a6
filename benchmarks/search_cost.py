"""How good the estimates of `estimate_hybrid_search` are.

Passages of a collection's real sentences (documents in BEIR's layout), or its documents themselves,
are stored in an embedded scratch database with WordLlama's embeddings. Its questions are asked in
several ways. For each call the least of three estimates is compared with the CPU time of the
server's process for the search, the median of three after a first one. The time of reading the
question, a part of the estimate, is measured in the same way.

    python -m benchmarks.search_cost FOLDER [--chunks 50000] [--questions 20] [--raw FILE]
"""

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any
from uuid import UUID

import numpy as np
import psycopg

from benchmarks.corpus import passages
from benchmarks.scratch import database
from second_brain.evaluation import collection as collections
from second_brain.models import WordLlamaEmbedder
from second_brain.services.arguments import converted, named
from second_brain.services.connection_calls import ConnectionCall
from second_brain.services.install import Install
from second_brain.services.postgres import PostgresProvider

VIEWER = UUID(int=1)
ROUNDS = 3
COLLECTIONS = ("handbook", "tickets", "mail")

Way = dict[str, Any]

# Each with the legs that it runs; the filters leave 2 % and 20 % of the chunks.
WAYS: dict[str, Way] = {
    "both legs": {},
    "text": {"legs": "text"},
    "vector": {"legs": "vector"},
    "pool of 200": {"pool_size": 200},
    "50 hits": {"top_k": 50},
    "50 hits, excerpts": {"top_k": 50, "snippet": True},
    "2 % by owner": {
        "viewer_id": VIEWER,
        "filters": [{"field": "visibility", "op": "eq", "value": "private"}],
    },
    "20 % by metadata": {"filters": {"team": "a"}},
    "3 collections": {"collections": list(COLLECTIONS)},
    "2 formulations": {"formulations": [{"query_text": "patients with the disease"}]},
}


def fill(connection: psycopg.Connection[Any], texts: Sequence[str], vectors: Any) -> None:
    """Store the texts, a document of one chunk each, and build the index."""
    with connection.cursor().copy(
        "copy public.knowledge_chunks (content, embedding, collection, visibility, owner_id,"
        " metadata) from stdin"
    ) as copy:
        for number, (text, vector) in enumerate(zip(texts, vectors, strict=True)):
            is_private = number % 50 == 0
            copy.write_row(
                (
                    text,
                    str(vector.tolist()),
                    COLLECTIONS[number % len(COLLECTIONS)],
                    "private" if is_private else "public",
                    VIEWER if is_private else None,
                    json.dumps({"team": "abcde"[number % 5]}),
                )
            )
    connection.execute("vacuum analyze public.knowledge_chunks")
    connection.execute("select public.refresh_knowledge_statistics()")


def compared(
    connection: psycopg.Connection[Any], question: str, vector: Any, way: Way
) -> dict[str, Any]:
    """Return the estimate of a call, and the CPU milliseconds of the search in the server."""
    provider = PostgresProvider(connection)
    # Nanoseconds that the server's process ran: a loaded machine does not change them.
    clock = Path(f"/proc/{connection.info.backend_pid}/schedstat")
    options = {name: value for name, value in way.items() if name != "legs"}
    given = (
        None if way.get("legs") == "text" else vector,
        None if way.get("legs") == "vector" else question,
    )

    def cpu(call: Callable[[], object]) -> float:
        spent = []
        for _ in range(ROUNDS + 1):
            begun = int(clock.read_text().split()[0])
            call()
            spent.append((int(clock.read_text().split()[0]) - begun) / 1e6)
        return median(spent[1:])

    embedding = None if given[0] is None else str(given[0].tolist())
    arguments = {**options, "query_embedding": embedding, "query_text": given[1]}
    reader = "read_knowledge_question"
    call = ConnectionCall(reader, converted(named(arguments, "compared()")), None, Install())
    reading = cpu(lambda: connection.execute(call.statement, call.values))
    actual = cpu(lambda: provider.find(*given, **options))
    estimates = [provider.estimate_hybrid_search(*given, **options) for _ in range(ROUNDS)]
    best = min(estimates, key=lambda one: float(one["milliseconds"]))
    best["milliseconds"] += reading - best["reading"]["milliseconds"]
    return {"estimate": best, "actual": actual}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print the ratio of estimated to actual milliseconds for each way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--chunks", type=int, help="default: the documents themselves")
    parser.add_argument("--questions", type=int, default=20)
    parser.add_argument("--raw", type=Path, help="write every call as a line of JSON")
    given = parser.parse_args(arguments)
    found = collections.load(given.folder)
    texts = [f"{one.title} {one.text}" for one in found.documents]
    if given.chunks is not None:
        texts = passages(texts, given.chunks, 1)
    asked = [one.text for one in found.queries[: given.questions]]
    embedder = WordLlamaEmbedder()
    vectors, questions = embedder.embed(texts), embedder.embed(asked)
    with database(embedder.dimensions) as connection:
        fill(connection, texts, vectors)
        ratios: list[float] = []
        for name, way in WAYS.items():
            calls = [
                compared(connection, question, vector, way)
                for question, vector in zip(asked, questions, strict=True)
            ]
            if given.raw is not None:
                with given.raw.open("a", encoding="utf-8") as lines:
                    for call in calls:
                        lines.write(json.dumps({"way": name, **call}) + "\n")
            here = [call["estimate"]["milliseconds"] / call["actual"] for call in calls]
            actual = median(call["actual"] for call in calls)
            ratios += here
            print(f"{name}: {actual:.1f} ms, estimate over actual {spread(here)}")
        print(f"{len(texts)} chunks, all: estimate over actual {spread(ratios)}")


def spread(ratios: Sequence[float]) -> str:
    """Return the median, and the 10th and 90th percentile."""
    low, middle, high = np.percentile(ratios, [10, 50, 90])
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


if __name__ == "__main__":
    main()
