"""The speed of writing with all indexes in place, and its effect on searches.

Documents of ten chunks go through `upsert_knowledge_document` with ready embeddings. Ingest:
documents, as JSON made beforehand, one after the other by each writer, with a connection of its
own. Write load: one writer at a steady rate, most documents new, the others with half of their
chunks changed; meanwhile a client asks questions. Windows at rest and under the load alternate,
each of whole passes over the questions; the percentiles are over all single times, not over
medians, which would hide what a write does now and then.

Afterwards everything written is deleted, and the table vacuumed.
"""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

import psycopg

from benchmarks.corpus import EmbeddingSpace, Library, Query
from benchmarks.peers.system import Client
from benchmarks.timing import Worker, percentiles, timed, together

CHUNKS = 10
PREFIX = "benchmark-writing/"
UPSERT = "select public.upsert_knowledge_document(%s::jsonb, %s::jsonb)"
WINDOWS = 3


@dataclass(frozen=True)
class Options:
    """A load of so many chunks a second, a share of them changed, in windows of so many seconds.

    `documents` are what each measure of ingest writes.
    """

    rate: float
    changed: float
    seconds: float
    documents: int


@dataclass(frozen=True)
class Draft:
    """A document to be written; its chunks as objects."""

    name: str
    chunks: list[dict[str, Any]]

    def arguments(self) -> tuple[str, str]:
        """Return what the function takes."""
        document = {"external_key": PREFIX + self.name, "knowledge_type": "note"}
        return json.dumps(document), json.dumps(self.chunks)


class Drafts:
    """New documents without end."""

    def __init__(self, library: Library, space: EmbeddingSpace, seed: int) -> None:
        self._library = library
        self._space = space
        self._random = Random(seed)
        self._count = 0

    def new(self) -> Draft:
        """Return a document that was not there before."""
        self._count += 1
        return Draft(str(self._count), self._chunks(CHUNKS))

    def changed(self, draft: Draft) -> Draft:
        """Return the document with every second chunk rewritten."""
        fresh = self._chunks(CHUNKS // 2)
        pairs = zip(fresh, draft.chunks[1::2], strict=True)
        return Draft(draft.name, [chunk for pair in pairs for chunk in pair])

    def _chunks(self, count: int) -> list[dict[str, Any]]:
        topics = [self._random.randrange(self._space.topics) for _ in range(count)]
        embeddings = self._space.draw(topics, self._random.randrange(2**31))
        return [
            {
                "content": self._library.passage(self._random, topic),
                "embedding": [round(float(value), 6) for value in embedding],
                "embedding_model": "benchmark",
            }
            for topic, embedding in zip(topics, embeddings, strict=True)
        ]

    def mixed(self, written: list[Draft], changed: float) -> Iterator[tuple[str, str]]:
        """Yield the arguments of writes without end; changed documents are among those written."""
        while True:
            if self._random.random() < changed:
                place = self._random.randrange(len(written))
                written[place] = self.changed(written[place])
                yield written[place].arguments()
            else:
                written.append(self.new())
                yield written[-1].arguments()


def ingest(dsn: str, drafts: Drafts, writers: int, documents: int) -> float:
    """Return the chunks a second of so many writers."""
    share = documents // writers
    prepared = [[drafts.new().arguments() for _ in range(share)] for _ in range(writers)]
    connections = [psycopg.connect(dsn, autocommit=True) for _ in range(writers)]

    def write(place: int) -> None:
        for arguments in prepared[place]:
            connections[place].execute(UPSERT, arguments)

    begin = time.perf_counter()
    together([partial(write, place) for place in range(writers)])
    taken = time.perf_counter() - begin
    for connection in connections:
        connection.close()
    return share * writers * CHUNKS / taken


def ask(client: Client, queries: Sequence[Query], seconds: float) -> list[float]:
    """Return the milliseconds of each question, over whole passes until the time is over."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        times += [timed(client, query)[1] for query in queries]
    return times


def under_load(
    dsn: str, client: Client, queries: Sequence[Query], drafts: Drafts, options: Options
) -> dict[str, Any]:
    """Return the times of the questions at rest and under the load, and of the writes."""
    written = [drafts.new() for _ in range(max(options.documents // 4, 5))]
    with psycopg.connect(dsn, autocommit=True) as connection:
        for draft in written:
            connection.execute(UPSERT, draft.arguments())
    writes_to_come = drafts.mixed(written, options.changed)

    def write(connection: "psycopg.Connection[Any]") -> None:
        connection.execute(UPSERT, next(writes_to_come))

    for query in queries:
        timed(client, query)
    rest: list[float] = []
    loaded: list[float] = []
    writes: list[float] = []
    taken = 0.0
    for window in range(WINDOWS):
        for busy in (window % 2 == 1, window % 2 == 0):
            if not busy:
                rest += ask(client, queries, options.seconds)
                continue
            begin = time.perf_counter()
            writer = Worker(dsn, CHUNKS / options.rate, write)
            try:
                loaded += ask(client, queries, options.seconds)
                taken += time.perf_counter() - begin
            finally:
                writer.stop()
            writes += [milliseconds for _, milliseconds in writer.times]
    return {
        "rate": options.rate,
        "achieved": len(writes) * CHUNKS / taken,
        "changed": options.changed,
        "write": percentiles(writes),
        "rest": {**percentiles(rest), "queries": len(rest)},
        "loaded": {**percentiles(loaded), "queries": len(loaded)},
        "p95_ratio": percentiles(loaded)["p95"] / percentiles(rest)["p95"],
    }


def remove_written(dsn: str) -> None:
    """Delete what this module has written, and vacuum the table."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        deleted = connection.execute(
            "delete from public.knowledge_documents where starts_with(external_key, %s)", [PREFIX]
        )
        if deleted.rowcount:
            connection.execute("vacuum public.knowledge_chunks")


def measure(
    dsn: str, client: Client, queries: Sequence[Query], drafts: Drafts, options: Options
) -> dict[str, Any]:
    """Return the figures of the write load and of ingest; the table is as it was afterwards."""
    try:
        load = under_load(dsn, client, queries, drafts, options)
        rates = {
            str(writers): ingest(dsn, drafts, writers, options.documents) for writers in (1, 2)
        }
    finally:
        remove_written(dsn)
    return {"chunks_per_document": CHUNKS, "ingest": rates, "load": load}
