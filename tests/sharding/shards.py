"""Databases of one server that have a corpus together, and one database with all of it."""

import random
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any
from uuid import UUID

import psycopg
from psycopg.types.json import Jsonb
from psycopg_pool import ConnectionPool

from conftest import Connection, Server, copy_of
from second_brain.distributed.sharded import ShardedProvider
from second_brain.distributed.sharded_write import ShardedWriter
from second_brain.services.postgres import PostgresProvider

NAMES = ("east", "north", "south", "west")
WORDS = (
    *("amber", "basil", "cedar", "delta", "ember", "fjord", "grove", "heron", "inlet", "jetty"),
    *("knoll", "larch", "maple", "north", "otter", "pearl", "quartz", "river", "stone", "tulip"),
    *("umber", "valley", "willow", "yarrow", "zephyr"),
)
OWNERS = [UUID(int=number) for number in (1, 2)]


@dataclass(frozen=True)
class Corpus:
    """The databases by name, and the one with all documents; each a connection and a pool."""

    shards: Mapping[str, Connection]
    pools: Mapping[str, ConnectionPool[Any]]
    one: Connection

    @contextmanager
    def provider(self, *names: str, **options: Any) -> Iterator[ShardedProvider]:
        """Open a provider over the databases, or some of them."""
        chosen = names or tuple(self.pools)
        shards = {name: PostgresProvider(self.pools[name]) for name in chosen}
        with ShardedProvider(shards, **options) as provider:
            yield provider


@contextmanager
def databases(server: Server, *names: str) -> Iterator[Corpus]:
    """Create empty databases, and `one`."""
    with ExitStack() as stack:
        connections: dict[str, Connection] = {}
        pools: dict[str, ConnectionPool[Any]] = {}
        for name in (*names, "one"):
            dsn = stack.enter_context(contextmanager(copy_of)(server, server.template(3)))
            connections[name] = stack.enter_context(psycopg.connect(dsn, autocommit=True))
            if name != "one":
                pools[name] = stack.enter_context(ConnectionPool(dsn, min_size=1, max_size=8))
        one = connections.pop("one")
        yield Corpus(connections, pools, one)


def documents(count: int, seed: int = 7) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Make documents of one to three chunks, always the same."""
    draw = random.Random(seed)
    for number in range(count):
        document = {
            "external_key": f"doc-{number}",
            "title": f"{draw.choice(WORDS)} {draw.choice(WORDS)}",
            "collection": draw.choice(["knowledge", "memory"]),
            "visibility": draw.choice(["public", "private"]),
            "owner_id": str(draw.choice(OWNERS)),
            "document_date": str(date(2026, 1, 1) + timedelta(days=draw.randrange(300))),
        }
        chunks = [
            {
                # Unequal frequencies, as in a language.
                "content": " ".join(
                    WORDS[int(len(WORDS) * draw.random() ** 2)] for _ in range(draw.randint(4, 20))
                ),
                "embedding": [draw.gauss(0, 1) for _ in range(3)],
                "embedding_model": "test",
            }
            for _ in range(draw.randint(1, 3))
        ]
        yield document, chunks


def fill(corpus: Corpus, count: int) -> None:
    """Write documents into their databases, and the same rows into `one`."""
    writer = ShardedWriter(corpus.shards)
    for document, chunks in documents(count):
        writer.upsert_document(document, chunks)
    copy_to_one(corpus)


def copy_to_one(corpus: Corpus) -> None:
    """Import the documents of all databases into `one`, with their ids."""
    for shard in corpus.shards.values():
        ids = [id_ for (id_,) in shard.execute("select id from public.knowledge_documents")]
        ((exported,),) = shard.execute(
            "select public.export_knowledge_documents(%s)", [ids]
        ).fetchall()
        corpus.one.execute("select public.import_knowledge_documents(%s)", [Jsonb(exported)])


def empty(corpus: Corpus) -> None:
    """Remove all documents."""
    for database in (*corpus.shards.values(), corpus.one):
        database.execute("truncate public.knowledge_documents, public.knowledge_chunks")
