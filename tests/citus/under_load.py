"""Drawn documents, and searches and writes that go on while something happens to a cluster."""

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg

from second_brain import KnowledgeWriter
from waiting import until

DIMENSIONS = 8
WORDS = [first + last for first in ("al", "be", "ga", "de", "ep", "ze") for last in ("na", "ro")]
CHUNKS = 5


def vector(draw: random.Random) -> list[float]:
    return [draw.gauss(0, 1) for _ in range(DIMENSIONS)]


def document(draw: random.Random, key: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    chunks = [
        {
            "content": " ".join(draw.choices(WORDS, k=draw.randint(5, 25))),
            "embedding": vector(draw),
            "embedding_model": "random",
        }
        for _ in range(CHUNKS)
    ]
    return {"external_key": key, "title": f"Title of {key}"}, chunks


def columns(connection: psycopg.Connection[Any], table: str) -> str:
    """Return the columns of a table of schema plain that can be written."""
    rows = connection.execute(
        "select column_name from information_schema.columns where table_name = %s"
        " and table_schema = 'plain' and is_generated = 'NEVER'",
        [table],
    )
    return ", ".join(name for (name,) in rows)


@dataclass
class Load:
    """What the searches and writes of a time came to."""

    connect: Callable[[], psycopg.Connection[Any]]
    schema: str = "public"
    hits: list[int] = field(default_factory=list)
    written: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    def search(self, connection: psycopg.Connection[Any]) -> None:
        function = f"{self.schema}.hybrid_search_knowledge_chunks"
        found = connection.execute(f"select from {function}(query_text => 'alna bero')".encode())
        self.hits.append(len(found.fetchall()))

    def write(self, connection: psycopg.Connection[Any]) -> None:
        key = f"under load {len(self.written) + len(self.refused)}"
        writer = KnowledgeWriter(connection, schema=self.schema)
        writer.upsert_document(*document(random.Random(key), key))
        connection.commit()
        self.written.append(key)

    def repeat(self, work: Callable[[psycopg.Connection[Any]], None]) -> None:
        """Do it until the load ends, on a new connection after an error."""
        connection = None
        while not self.ended.is_set():
            try:
                if connection is None or connection.closed:
                    connection = self.connect()
                work(connection)
                connection.rollback()
            except Exception as error:  # noqa: BLE001
                self.refused.append(f"{work.__name__}: {error}")
                if connection is not None:
                    connection.close()
        if connection is not None:
            connection.close()

    def wait_for_both(self) -> None:
        """Wait until a search and a write that began later have succeeded."""
        hits, written = len(self.hits) + 1, len(self.written) + 1
        until(lambda: len(self.hits) > hits and len(self.written) > written)

    def chunks(self) -> dict[str, int]:
        """Count the stored chunks of the documents that were written."""
        with self.connect() as connection:
            return dict(
                connection.execute(
                    f"select document.external_key, count(chunk.id)"
                    f"  from {self.schema}.knowledge_documents as document"
                    f"  left join {self.schema}.knowledge_chunks as chunk"
                    f"    on chunk.document_id = document.id"
                    f" where document.external_key like 'under load %'"
                    f" group by document.external_key".encode()
                ).fetchall()
            )


@contextmanager
def under_load(
    connect: Callable[[], psycopg.Connection[Any]], schema: str = "public"
) -> Iterator[Load]:
    """Search and write, each in a thread of its own, until the block ends."""
    load = Load(connect, schema)
    threads = [
        threading.Thread(target=load.repeat, args=[work]) for work in (load.search, load.write)
    ]
    for thread in threads:
        thread.start()
    try:
        load.wait_for_both()
        yield load
        load.wait_for_both()
    finally:
        load.ended.set()
        for thread in threads:
            thread.join()
