"""pg_textsearch's BM25 index and pgvector's HNSW, fused by hand in one statement.

https://github.com/timescale/pg_textsearch: `order by content <@> to_bm25query(words, index)` walks
the index in the order of the scores, which are negative. It has no phrases and no operators. The
extension has to be preloaded, so it is not on managed Supabase.
"""

from collections.abc import Sequence
from typing import ClassVar

from benchmarks.peers.by_hand import ByHandClient, ByHandSystem
from benchmarks.peers.system import Client

BOTH_LEGS = """
with nearest as (
  select id, row_number() over (order by distance) as place
    from (
      select id, embedding <=> %(embedding)s as distance
        from chunks
       where %(kept)s::text is null or knowledge_type = %(kept)s
       order by embedding <=> %(embedding)s
       limit %(pool)s
    ) as found
),
worded as (
  select id, row_number() over (order by score) as place
    from (
      select id, content <@> to_bm25query(%(text)s, 'chunks_bm25') as score
        from chunks
       where %(kept)s::text is null or knowledge_type = %(kept)s
       order by content <@> to_bm25query(%(text)s, 'chunks_bm25')
       limit %(pool)s
    ) as found
   where score < 0
)
select chunks.id, chunks.content
  from nearest
  full join worded on worded.id = nearest.id
  join chunks on chunks.id = coalesce(nearest.id, worded.id)
 order by coalesce(1.0 / (%(rrf_k)s + nearest.place), 0)
          + coalesce(1.0 / (%(rrf_k)s + worded.place), 0) desc,
          chunks.id
 limit %(count)s
"""
TEXT_ALONE = """
select id, content
  from (
    select id, content, content <@> to_bm25query(%(text)s, 'chunks_bm25') as score
      from chunks
     where %(kept)s::text is null or knowledge_type = %(kept)s
     order by content <@> to_bm25query(%(text)s, 'chunks_bm25')
     limit %(count)s
  ) as found
 where score < 0
"""


class TextSearchClient(ByHandClient):
    """A caller of the statements above."""

    name = "pg_textsearch + pgvector"
    text_leg = "BM25 index"
    cannot: ClassVar = frozenset({"phrase"})
    both_legs = BOTH_LEGS
    text_alone = TEXT_ALONE


class TextSearch(ByHandSystem):
    """The table with pg_textsearch's index."""

    name = TextSearchClient.name
    key = "pg_textsearch"
    extension = "pg_textsearch"
    text_index = (
        "create index chunks_bm25 on chunks using bm25 (content) with (text_config = 'english')"
    )

    def clients(self) -> Sequence[type[Client]]:
        """Return the caller."""
        return (TextSearchClient,)
