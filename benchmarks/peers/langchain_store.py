"""LangChain's PGVectorStore (package langchain-postgres) with hybrid search.

https://github.com/langchain-ai/langchain-postgres: two statements, one after the other, merged in
Python by the store's own default, a weighted sum of scores scaled to 0..1. Its text leg is
`plainto_tsquery` (every word has to be there) ranked by `ts_rank_cd`. The default pools of 4 are
raised to 50. Rows are copied into the table that the package makes; the package's own way in, one
insert a row, is not what is measured here.
"""

# The package is not among those that the project installs.
# mypy: disable-error-code="import-not-found,import-untyped"

from functools import partial
from typing import Any, ClassVar

from benchmarks.corpus import Corpus, Query
from benchmarks.peers.system import EF_SEARCH, POOL, Client, PostgresSystem, StoreClient

STEPS = {
    "text index": "create index on passages using gin (content_tsv)",
    "vector index": "create index on passages using hnsw (embedding vector_cosine_ops)",
    "other indexes": "create index on passages (knowledge_type)",
    "vacuum": "vacuum analyze passages",
}


class LangChainClient(StoreClient):
    """A store of its own, with an engine of one connection."""

    name = "langchain-postgres hybrid"
    text_leg = "ts_rank_cd, all words"
    cannot: ClassVar = frozenset({"text", "phrase"})

    def __init__(self, dsn: str) -> None:
        from langchain_core.embeddings import DeterministicFakeEmbedding
        from langchain_postgres import PGEngine, PGVectorStore
        from langchain_postgres.v2.hybrid_search_config import HybridSearchConfig
        from langchain_postgres.v2.indexes import HNSWQueryOptions

        super().__init__(dsn)
        self._engine = PGEngine.from_connection_string(alchemy(dsn), pool_size=1)
        self._config = partial(
            HybridSearchConfig,
            tsv_column="content_tsv",
            primary_top_k=POOL,
            secondary_top_k=POOL,
        )
        # Embeddings are given with each search; the store only wants to have an embedder.
        self._store = PGVectorStore.create_sync(
            self._engine,
            DeterministicFakeEmbedding(size=1),
            "passages",
            metadata_columns=["knowledge_type"],
            id_column="id",
            metadata_json_column="metadata",
            index_query_options=HNSWQueryOptions(ef_search=EF_SEARCH),
        )

    def search(self, query: Query, count: int) -> list[int]:
        """Search by vector, or by both where there is a text."""
        assert query.embedding is not None
        hybrid: dict[str, Any] = {}
        if query.text is not None:
            hybrid = {"hybrid_search_config": self._config(fts_query=query.text)}
        found = self._store.similarity_search_by_vector(
            query.embedding.tolist(),
            k=count,
            filter={"knowledge_type": query.kept} if query.kept else None,
            **hybrid,
        )
        return [int(document.id) for document in found if document.id is not None]

    def close(self) -> None:
        """Close the engine."""
        super().close()
        self._engine._run_as_sync(self._engine.close())


class LangChain(PostgresSystem):
    """The package's table, with the indexes that its guide creates."""

    name = LangChainClient.name
    key = "langchain"
    client: ClassVar = LangChainClient
    table = "passages"
    modules: ClassVar = ("langchain_postgres",)
    packages: ClassVar = ("langchain-postgres",)
    install = (
        "pip install langchain-core asyncpg sqlalchemy && pip install --no-deps langchain-postgres"
        " (it asks for a pgvector below 0.4)"
    )

    def load(self, corpus: Corpus) -> None:
        """Make the table, copy the rows, build the indexes."""
        from langchain_postgres import Column, PGEngine
        from langchain_postgres.v2.hybrid_search_config import HybridSearchConfig

        engine = PGEngine.from_connection_string(alchemy(self.dsn))
        engine.init_vectorstore_table(
            self.table,
            corpus.embeddings.shape[1],
            metadata_columns=[Column("knowledge_type", "TEXT")],
            metadata_json_column="metadata",
            id_column=Column("id", "BIGINT", nullable=False),
            hybrid_search_config=HybridSearchConfig(tsv_column="content_tsv"),
        )
        engine._run_as_sync(engine.close())
        # The package computes the column with each insert; a copy leaves that to the server.
        self.connection.execute("alter table passages drop content_tsv")
        self.connection.execute(
            "alter table passages add content_tsv tsvector not null"
            " generated always as (to_tsvector('english', content)) stored"
        )
        self.copy(corpus)
        self.run(STEPS)

    def connect(self) -> Client:
        """Open a store."""
        return LangChainClient(self.dsn)


def alchemy(dsn: str, driver: str = "asyncpg") -> str:
    """Return a connection string as SQLAlchemy wants it."""
    from psycopg.conninfo import conninfo_to_dict
    from sqlalchemy import URL

    given = conninfo_to_dict(dsn)
    url: str = URL.create(
        f"postgresql+{driver}",
        username=str(given["user"]),
        password=str(given["password"]),
        host=str(given["host"]),
        port=int(given["port"] or 5432),
        database=str(given["dbname"]),
    ).render_as_string(hide_password=False)
    return url
