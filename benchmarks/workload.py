"""The stored corpus, the queries of each kind, and searches that mix them; repeatable by seed.

The passages come from the documentation of the Python that runs, so a kept load is known by a
digest of its texts too.
"""

import hashlib
import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from psycopg import Connection, sql
from psycopg.types.json import Jsonb

from benchmarks.corpus import Corpus, EmbeddingSpace, Library, Query

NATURAL, COMMON = "natural question", "common words"
SPACE_SEED, QUERY_SEED, CORPUS_SEED = 5, 6, 7
TENTH, THOUSANDTH, MOST = "task", "transcript", "note"
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

VIEWER = uuid.UUID(int=1)
EXTRAS: tuple[dict[str, Any], ...] = (
    {},
    {"snippet": True},
    {"filter_type": TENTH},
    {"filters": Jsonb([{"field": "knowledge_type", "op": "in", "value": [MOST, TENTH]}])},
    {"viewer_id": VIEWER},
    {"viewer_id": VIEWER, "filter_type": MOST, "snippet": True},
)

Queries = dict[str, list[Query]]


def make_corpus(library: Library, space: EmbeddingSpace, chunks: int, seed: int) -> Corpus:
    """Return passages with an embedding near the centre of their topic."""
    random = Random(seed)
    topics = [random.randrange(space.topics) for _ in range(chunks)]
    return Corpus(
        [""] * chunks,
        [library.passage(random, topic) for topic in topics],
        [
            THOUSANDTH if row % 1000 == 0 else TENTH if row % 10 == 5 else MOST
            for row in range(chunks)
        ],
        space.draw(topics, seed),
    )


def fingerprint(corpus: Corpus, major: int) -> dict[str, Any]:
    """Return what a load has to have in common with another to be used in its place."""
    texts = hashlib.sha256()
    for text in corpus.texts:
        texts.update(text.encode())
    chunks, dimensions = corpus.embeddings.shape
    return {
        "seed": CORPUS_SEED,
        "dimensions": dimensions,
        "chunks": chunks,
        "major": major,
        "texts": texts.hexdigest(),
    }


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
    worded = sorted(set(frequencies) - STOP_WORDS)
    rare = [word for word in worded if frequencies[word] <= 2]
    common = sorted(worded, key=lambda word: -frequencies[word])[:20]

    natural = library.questions(space, count, seed)

    def words_of(choice: Callable[[], Sequence[str]]) -> list[Query]:
        return [replace(query, text=" ".join(choice())) for query in natural]

    phrases = words_of(lambda: random.choice(runs)[: random.randint(2, 3)])
    return {
        NATURAL: natural,
        "rare words": words_of(lambda: random.sample(rare, random.randint(1, 3))),
        COMMON: words_of(lambda: random.sample(common, random.randint(1, 5))),
        "phrase": [replace(query, phrase=True) for query in phrases],
        "filtered 10 %": [replace(query, kept=TENTH) for query in natural],
        "filtered 0.1 %": [replace(query, kept=THOUSANDTH) for query in natural],
        "text only": [replace(query, embedding=None) for query in natural],
        "vector only": [replace(query, text=None) for query in natural],
    }


def mixed_calls(queries: Queries) -> Iterator[dict[str, Any]]:
    """Yield the arguments of searches without end."""
    number = 0
    while True:
        for kind, asked in queries.items():
            for extra in EXTRAS:
                query = asked[number % len(asked)]
                number += 1
                given: dict[str, Any] = {"fusion": "auto"}
                if query.text is not None:
                    given["query_text"] = f'"{query.text}"' if query.phrase else query.text
                if query.embedding is not None:
                    given["query_embedding"] = query.embedding
                if kind.startswith("filtered"):
                    given["filter_type"] = query.kept
                yield {**given, **extra}


def search(connection: "Connection[Any]", arguments: dict[str, Any]) -> list[Any]:
    """Search with these arguments, and return the rows."""
    statement = sql.SQL("select * from public.hybrid_search_knowledge_chunks({})").format(
        sql.SQL(", ").join(
            sql.SQL("{} => {}").format(sql.Identifier(name), sql.Placeholder(name))
            for name in arguments
        )
    )
    return connection.execute(statement, arguments, prepare=False).fetchall()
