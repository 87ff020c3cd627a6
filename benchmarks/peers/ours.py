"""The project itself: the RPC, two RPCs merged by the caller, and each leg as bare SQL.

All on one store, so that the differences are not those of data or cache. The RPC runs with its
default arguments (fusion `auto`) but for the threshold, which none of the peers has. Every search
fetches whole rows.
"""

from collections.abc import Sequence
from typing import ClassVar

from psycopg import sql

from benchmarks.peers.system import (
    EF_SEARCH,
    POOL,
    Client,
    Corpus,
    PostgresClient,
    PostgresSystem,
    Query,
    fuse,
)

HYBRID = """
select hit.chunk_index, hit.*
  from public.hybrid_search_knowledge_chunks(
         query_embedding => %(embedding)s,
         query_text => %(text)s,
         match_count => %(count)s,
         match_threshold => -1,
         filter_type => %(kept)s
       ) as hit
"""
VECTOR = """
select hit.chunk_index, hit.*
  from public.match_knowledge_chunks(
         query_embedding => %(embedding)s,
         match_count => %(count)s,
         match_threshold => -1,
         filter_type => %(kept)s
       ) as hit
"""
TEXT = """
select hit.chunk_index, hit.*
  from public.search_knowledge_chunks_fulltext(
         query_text => %(text)s,
         match_count => %(count)s,
         filter_type => %(kept)s
       ) as hit
"""
BARE_VECTOR = """
select chunk_index
  from public.knowledge_chunks
 where status = 'active' and (%(kept)s::text is null or knowledge_type = %(kept)s)
 order by embedding <=> %(embedding)s
 limit %(count)s
"""
BARE_TEXT = """
select chunk.chunk_index
  from knowledge_internal.analyse_query(%(text)s, 'websearch') as analysis,
       public.knowledge_chunks as chunk
 where chunk.status = 'active'
   and chunk.content_tsv @@ analysis.candidate_query
   and (%(kept)s::text is null or chunk.knowledge_type = %(kept)s)
 order by chunk.bm25 <#> analysis.weight_vector
 limit %(count)s
"""
COPY = """
copy public.knowledge_chunks (chunk_index, knowledge_type, heading, content, embedding)
from stdin (format binary)
"""
SLOW_TO_FILL = """
select indexrelid::regclass::text, pg_get_indexdef(indexrelid)
  from pg_index
 where indexrelid in (
         'public.knowledge_chunks_embedding'::regclass,
         'public.knowledge_chunks_content_tsv'::regclass
       )
"""


class OurClient(PostgresClient):
    """A client of the project's functions."""

    text_leg = "BM25"

    def fetch(self, statement: str, query: Query, count: int) -> list[int]:
        """Run a statement whose first column is the row's number."""
        text = f'"{query.text}"' if query.phrase else query.text
        arguments = {
            "embedding": query.embedding,
            "text": text,
            "kept": query.kept,
            "count": count,
        }
        rows = self.connection.execute(statement.encode(), arguments, prepare=False).fetchall()
        return [row[0] for row in rows]


class Hybrid(OurClient):
    """One call."""

    name = "second-brain"

    def search(self, query: Query, count: int) -> list[int]:
        """Call the RPC with what the query has."""
        return self.fetch(HYBRID, query, count)


class TwoCalls(OurClient):
    """A call for each leg, one after the other on one connection, fused in Python."""

    name = "two RPCs, merged in Python"
    round_trips = 2

    def search(self, query: Query, count: int) -> list[int]:
        """Ask each leg that the query has for a pool, and fuse by reciprocal rank."""
        if query.text is None:
            return self.fetch(VECTOR, query, count)
        if query.embedding is None:
            return self.fetch(TEXT, query, count)
        pools = [self.fetch(statement, query, POOL) for statement in (VECTOR, TEXT)]
        return fuse(pools, count)


class BareVector(OurClient):
    """The vector leg as a single `order by ... limit`, at the same effort in the index."""

    name = "bare SQL, vector leg"
    text_leg = "none"
    cannot: ClassVar = frozenset({"text"})
    settings: ClassVar = {
        "hnsw.ef_search": str(EF_SEARCH),
        "hnsw.iterative_scan": "relaxed_order",
        "enable_seqscan": "off",
    }

    def search(self, query: Query, count: int) -> list[int]:
        """Return the nearest rows."""
        return self.fetch(BARE_VECTOR, query, max(count, POOL))[:count]


class BareText(OurClient):
    """The text leg as a single `order by ... limit` over the rows that its words draw."""

    name = "bare SQL, text leg"
    cannot: ClassVar = frozenset({"vector"})
    settings: ClassVar = {"enable_seqscan": "off"}

    def search(self, query: Query, count: int) -> list[int]:
        """Return the best rows by the inner product."""
        return self.fetch(BARE_TEXT, query, max(count, POOL))[:count]


class SecondBrain(PostgresSystem):
    """The project's table and indexes, as the migrations make them."""

    name = "second-brain"
    table = "public.knowledge_chunks"

    def load(self, corpus: Corpus) -> None:
        """Copy the rows, then build the two indexes that are slow to fill row by row."""
        definitions = self.connection.execute(SLOW_TO_FILL).fetchall()
        for name, _ in definitions:
            self.connection.execute(sql.SQL("drop index {}").format(sql.SQL(name)))
        with self.connection.cursor() as cursor, cursor.copy(COPY) as copy:
            copy.set_types(["int4", "text", "text", "text", "vector"])
            for row, embedding in enumerate(corpus.embeddings):
                title = corpus.titles[row] or None
                copy.write_row((row, corpus.types[row], title, corpus.texts[row], embedding))
        for _, definition in definitions:
            self.connection.execute(definition)
        self.connection.execute("vacuum analyze public.knowledge_chunks")
        self.connection.execute("select public.refresh_knowledge_statistics()")

    def clients(self) -> Sequence[type[Client]]:
        """Return the RPC and what it is compared with on the same rows."""
        return Hybrid, TwoCalls, BareVector, BareText
