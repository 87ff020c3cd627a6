"""The function of Supabase's guide "Hybrid search".

https://supabase.com/docs/guides/ai/hybrid-search: a generated tsvector with GIN, HNSW on the inner
product, `websearch_to_tsquery` (every word has to be there) ranked by `ts_rank_cd`, reciprocal rank
with k 50. A leg gives twice match_count, which is cut at 30: match_count 25 makes pools of 50. The
guide sets no `hnsw.ef_search`. It has no filter either; a caller filters what comes back, as
`supabase.rpc(...).eq(...)` does.
"""

from typing import ClassVar

from benchmarks.corpus import Corpus, Query
from benchmarks.peers.system import POOL, PostgresClient, PostgresSystem

TABLE = """
create table documents (
  id bigint primary key,
  knowledge_type text not null,
  content text,
  fts tsvector generated always as (to_tsvector('english', content)) stored,
  embedding vector(%d)
)
"""
STEPS = {
    "text index": "create index on documents using gin (fts)",
    "vector index": "create index on documents using hnsw (embedding vector_ip_ops)",
    "other indexes": "create index on documents (knowledge_type)",
    "vacuum": "vacuum analyze documents",
}
FUNCTION = """
create function hybrid_search(
  query_text text,
  query_embedding vector,
  match_count integer,
  full_text_weight float8 default 1,
  semantic_weight float8 default 1,
  rrf_k integer default 50
)
returns setof documents
language sql
as $$
  with words as (
    select id,
           row_number() over (
             order by ts_rank_cd(fts, websearch_to_tsquery(query_text)) desc
           ) as place
      from documents
     where fts @@ websearch_to_tsquery(query_text)
     order by place
     limit least(match_count, 30) * 2
  ),
  meaning as (
    select id, row_number() over (order by embedding <#> query_embedding) as place
      from documents
     order by place
     limit least(match_count, 30) * 2
  )
  select documents.*
    from words
    full outer join meaning on words.id = meaning.id
    join documents on coalesce(words.id, meaning.id) = documents.id
   order by coalesce(1.0 / (rrf_k + words.place), 0.0) * full_text_weight
            + coalesce(1.0 / (rrf_k + meaning.place), 0.0) * semantic_weight desc
   limit least(match_count, 30)
$$
"""
SEARCH = """
select id, content
  from hybrid_search(%(text)s, %(embedding)s, %(match_count)s)
 where %(kept)s::text is null or knowledge_type = %(kept)s
"""


class GuideClient(PostgresClient):
    """A caller of the guide's function."""

    name = "Supabase's documented function"
    text_leg = "ts_rank_cd, all words"
    cannot: ClassVar = frozenset({"text", "vector"})

    def search(self, query: Query, count: int) -> list[int]:
        """Call the function for pools of 50, and keep the best rows of the wanted type."""
        arguments = {
            "text": f'"{query.text}"' if query.phrase else query.text,
            "embedding": query.embedding,
            "match_count": POOL // 2,
            "kept": query.kept,
        }
        rows = self.connection.execute(SEARCH, arguments, prepare=False).fetchall()
        return [row[0] for row in rows[:count]]


class SupabaseGuide(PostgresSystem):
    """The guide's table, indexes and function."""

    name = GuideClient.name
    key = "supabase-guide"
    client: ClassVar = GuideClient
    table = "documents"

    def load(self, corpus: Corpus) -> None:
        """Make table and function, copy the rows, build the indexes."""
        self.connection.execute((TABLE % corpus.embeddings.shape[1]).encode())
        self.connection.execute(FUNCTION)
        self.copy(corpus)
        self.run(STEPS)
