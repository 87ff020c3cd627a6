"""The time that the retrieval service adds to the provider's call.

The corpus is passages of the standard library's documentation, embedded with WordLlama; the
questions are sentences of it. Each question is searched by the bare provider and by the service
with the same arguments, next to each other and in turns (A B, B A, ...), over one pool. A
question's time is the median of its rounds; ratio p50 is the median over the questions of the
service's time over the provider's.
"""

import argparse
import logging
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from uuid import UUID

import numpy as np
import psycopg
from numpy.typing import NDArray
from psycopg.conninfo import make_conninfo
from psycopg_pool import ConnectionPool

from benchmarks import corpus
from benchmarks.scratch import database
from second_brain.models import CallableEmbedder, WordLlamaEmbedder
from second_brain.retrieval.answer import QueryTime, SearchResponse
from second_brain.retrieval.service import RetrievalService
from second_brain.retrieval.settings import SearchSettings
from second_brain.services.postgres import PostgresProvider
from second_brain.services.write import KnowledgeWriter

CHUNKS_OF_DOCUMENT = 10
LIMIT = 10
TIMEOUT = 30.0
VIEWER = UUID(int=1)

Search = Callable[[str], object]


def load(connection: "psycopg.Connection[Any]", embedder: WordLlamaEmbedder, chunks: int) -> None:
    """Store the corpus."""
    passages = corpus.passages(list(corpus.documentation().values()), chunks, seed=1)
    embeddings = embedder.embed(passages)
    writer = KnowledgeWriter(connection)
    for first in range(0, chunks, CHUNKS_OF_DOCUMENT):
        places = range(first, min(first + CHUNKS_OF_DOCUMENT, chunks))
        writer.upsert_document(
            {"external_key": f"passages:{first}"},
            [
                {
                    "content": passages[place],
                    "embedding": embeddings[place],
                    "embedding_model": embedder.model,
                }
                for place in places
            ],
        )
    connection.execute("vacuum analyze public.knowledge_chunks")
    writer.refresh_statistics()


def paired(
    questions: Sequence[str], bare: Search, service: Search, rounds: int
) -> tuple[list[float], list[float]]:
    """Return each question's milliseconds, bare and through the service."""
    ways = (bare, service)
    spent: dict[tuple[int, int], list[float]] = {}
    for turn in range(rounds + 1):
        for place, question in enumerate(questions):
            for way in (0, 1) if (turn + place) % 2 else (1, 0):
                start = time.perf_counter()
                ways[way](question)
                milliseconds = (time.perf_counter() - start) * 1000
                if turn:  # the first round warms up
                    spent.setdefault((place, way), []).append(milliseconds)
    bare_times, service_times = (
        [statistics.median(spent[place, way]) for place in range(len(questions))] for way in (0, 1)
    )
    return bare_times, service_times


def row(name: str, bare: Sequence[float], service: Sequence[float]) -> str:
    """Return a row of the table."""
    ratios = [mine / theirs for mine, theirs in zip(service, bare, strict=True)]
    added = [mine - theirs for mine, theirs in zip(service, bare, strict=True)]
    medians = (
        statistics.median(bare),
        statistics.median(service),
        statistics.median(added),
        statistics.median(ratios),
    )
    return f"| {name} | " + " | ".join(f"{median:.3f}" for median in medians) + " |"


def compare_counts(
    connection: "psycopg.Connection[Any]",
    dsn: str,
    embedder: CallableEmbedder,
    questions: Sequence[str],
    rounds: int,
) -> None:
    """Print what the count of pending chunks adds to a search that makes one."""
    print()
    print("| chunks without an embedding | kept count ms | counting ms | added ms | ratio p50 |")
    print("|---|---|---|---|---|")
    with ConnectionPool(dsn, min_size=2, max_size=2, open=True) as pool:
        provider = PostgresProvider(pool)
        kept, counting = (
            RetrievalService(
                provider, embedder, settings=SearchSettings(search_pending_check_seconds=seconds)
            )
            for seconds in (1e6, 0)
        )
        for pending in (0, 500):
            KnowledgeWriter(connection).upsert_document(
                {"external_key": "pending"},
                [{"content": f"waits {number}"} for number in range(pending)],
            )
            without: Search = partial(kept.search, limit=LIMIT, viewer_id=VIEWER)
            with_it: Search = partial(counting.search, limit=LIMIT, viewer_id=VIEWER)
            print(row(str(pending), *paired(questions, without, with_it, rounds)), flush=True)


def main() -> None:
    """Print a table of the added time, and a table of the time of each step."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--chunks", type=int, default=4_000)
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    logging.getLogger("second_brain").setLevel(logging.WARNING)

    wordllama = WordLlamaEmbedder()
    texts = [
        sentence for found in corpus.documentation().values() for sentence in found.split(". ")
    ]
    questions = [text for text in texts if 6 <= len(text.split()) <= 16][:: len(texts) // 400]
    questions = questions[: options.queries]
    vectors = dict(zip(questions, wordllama.embed(questions), strict=True))

    def known(asked: list[str]) -> NDArray[np.float32]:
        return np.array([vectors[question] for question in asked])

    ready = CallableEmbedder(known, wordllama.model, wordllama.dimensions)
    with database(wordllama.dimensions) as connection:
        load(connection, wordllama, options.chunks)
        dsn = make_conninfo(connection.info.dsn, password=connection.info.password)
        with ConnectionPool(dsn, min_size=1, max_size=1, open=True) as pool:
            provider = PostgresProvider(pool)
            unbounded = SearchSettings(search_timeout_seconds=None)
            cached = SearchSettings(search_cache_enabled=True)
            asked: dict[str, tuple[bool, float | None, RetrievalService, str]] = {
                "text": (False, TIMEOUT, RetrievalService(provider, ready), "text"),
                "hybrid, embedding at hand": (
                    True,
                    TIMEOUT,
                    RetrievalService(provider, ready),
                    "hybrid",
                ),
                "text, no timeout": (
                    False,
                    None,
                    RetrievalService(provider, ready, settings=unbounded),
                    "text",
                ),
                "hybrid, embedding at hand, no timeout": (
                    True,
                    None,
                    RetrievalService(provider, ready, settings=unbounded),
                    "hybrid",
                ),
                "hybrid with WordLlama": (
                    True,
                    TIMEOUT,
                    RetrievalService(provider, wordllama),
                    "hybrid",
                ),
                "hybrid, from the cache": (
                    True,
                    TIMEOUT,
                    RetrievalService(provider, ready, settings=cached),
                    "hybrid",
                ),
            }
            print("| search | provider ms | service ms | added ms | ratio p50 |")
            print("|---|---|---|---|---|")
            for name, (is_embedded, timeout, service, mode) in asked.items():

                def bare(
                    question: str, is_embedded: bool = is_embedded, timeout: float | None = timeout
                ) -> None:
                    vector = vectors[question] if is_embedded else None
                    _, details = provider.hybrid_search(
                        vector, question, top_k=LIMIT, timeout=timeout
                    )
                    if "fallback_reason" in details:
                        raise RuntimeError(details)

                search: Search = partial(service.search, mode=mode, limit=LIMIT)  # type: ignore[arg-type]
                print(row(name, *paired(questions, bare, search, options.rounds)), flush=True)

            service = RetrievalService(provider, wordllama)
            found: list[SearchResponse] = [
                service.search(question, limit=LIMIT)
                for _ in range(options.rounds)
                for question in questions
            ]
            compare_counts(connection, dsn, ready, questions, options.rounds)
            print()
            print("| step, hybrid with WordLlama | p50 ms | p95 ms |")
            print("|---|---|---|")
            for step in QueryTime.model_fields:
                spent = [getattr(one.timings, step) for one in found]
                p50, p95 = np.quantile(spent, [0.5, 0.95])
                print(f"| {step} | {p50:.3f} | {p95:.3f} |")


if __name__ == "__main__":
    main()
