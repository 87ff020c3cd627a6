"""ParadeDB's pg_search and pgvector's HNSW, fused by hand in one statement.

https://docs.paradedb.com: one BM25 index over all columns that a search or its filter reads;
`|||` matches any of the words, `###` the phrase, `pdb.score` is BM25. English stemmer and stop
words are set, as every other system here has them. Not on managed Supabase.
"""

from typing import ClassVar

from benchmarks.corpus import Query
from benchmarks.peers.by_hand import ByHandClient, ByHandSystem

WORDED = """
select {columns}
  from chunks
 where content ||| %(text)s::text and {kept}
 order by pdb.score(id) desc
 limit {limit}
"""
INDEX = """
create index chunks_bm25 on chunks using bm25 (
  id,
  (content::pdb.simple('stemmer=english', 'stopwords_language=english')),
  (knowledge_type::pdb.literal)
) with (key_field = 'id')
"""


class ParadeClient(ByHandClient):
    """A caller of the statement above."""

    name = "ParadeDB pg_search + pgvector"
    text_leg = "BM25 index"
    worded = WORDED
    # At 20,000 chunks, starting parallel workers takes longer than the search: 20 instead of 9 ms.
    settings: ClassVar = {**ByHandClient.settings, "max_parallel_workers_per_gather": "0"}

    def statement(self, query: Query, count: int) -> str:
        """Return the statement for what the query has, with the operator for a phrase."""
        statement = super().statement(query, count)
        return statement.replace("|||", "###") if query.phrase else statement


class ParadeDB(ByHandSystem):
    """The table with pg_search's index."""

    name = ParadeClient.name
    key = "pg_search"
    client: ClassVar = ParadeClient
    extension = "pg_search"
    text_index = INDEX
