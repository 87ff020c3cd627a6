"""ParadeDB's pg_search and pgvector's HNSW, fused by hand in one statement.

https://docs.paradedb.com: one BM25 index over all columns that a search or its filter reads;
`|||` matches any of the words, `###` the phrase, `pdb.score` is BM25. English stemmer and stop
words are set, as every other system here has them. Not on managed Supabase.
"""

from collections.abc import Sequence

from benchmarks.peers.by_hand import ByHandClient, ByHandSystem
from benchmarks.peers.system import Client, Query

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
  select id, row_number() over (order by score desc) as place
    from (
      select id, pdb.score(id) as score
        from chunks
       where content ||| %(text)s::text
         and (%(kept)s::text is null or knowledge_type = %(kept)s)
       order by pdb.score(id) desc
       limit %(pool)s
    ) as found
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
  from chunks
 where content ||| %(text)s::text
   and (%(kept)s::text is null or knowledge_type = %(kept)s)
 order by pdb.score(id) desc
 limit %(count)s
"""
INDEX = """
create index chunks_bm25 on chunks using bm25 (
  id,
  (content::pdb.simple('stemmer=english', 'stopwords_language=english')),
  (knowledge_type::pdb.literal)
) with (key_field = 'id')
"""


class ParadeClient(ByHandClient):
    """A caller of the statements above."""

    name = "ParadeDB pg_search + pgvector"
    text_leg = "BM25 index"
    both_legs = BOTH_LEGS
    text_alone = TEXT_ALONE

    def statement(self, query: Query) -> str:
        """Return the statement for what the query has, with the operator for a phrase."""
        statement = super().statement(query)
        return statement.replace("|||", "###") if query.phrase else statement


class ParadeDB(ByHandSystem):
    """The table with pg_search's index."""

    name = ParadeClient.name
    key = "pg_search"
    extension = "pg_search"
    text_index = INDEX

    def clients(self) -> Sequence[type[Client]]:
        """Return the caller."""
        return (ParadeClient,)
