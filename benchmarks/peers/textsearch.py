"""pg_textsearch's BM25 index and pgvector's HNSW, fused by hand in one statement.

https://github.com/timescale/pg_textsearch: `order by content <@> to_bm25query(words, index)` walks
the index in the order of the scores and returns only rows that match. It has no phrases and no
operators. The extension has to be preloaded, so it is not on managed Supabase.
"""

from typing import ClassVar

from benchmarks.peers.by_hand import ByHandClient, ByHandSystem

WORDED = """
select {columns}
  from chunks
 where {kept}
 order by content <@> to_bm25query(%(text)s, 'chunks_bm25')
 limit {limit}
"""


class TextSearchClient(ByHandClient):
    """A caller of the statement above."""

    name = "pg_textsearch + pgvector"
    text_leg = "BM25 index"
    cannot: ClassVar = frozenset({"phrase"})
    worded = WORDED


class TextSearch(ByHandSystem):
    """The table with pg_textsearch's index."""

    name = TextSearchClient.name
    key = "pg_textsearch"
    client: ClassVar = TextSearchClient
    extension = "pg_textsearch"
    text_index = (
        "create index chunks_bm25 on chunks using bm25 (content) with (text_config = 'english')"
    )
