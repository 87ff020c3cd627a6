"""LlamaIndex's PGVectorStore (package llama-index-vector-stores-postgres) in its hybrid mode.

https://developers.llamaindex.ai/python/examples/vector_stores/postgres: two statements, one after
the other. The text leg is `ts_rank` over OR-ed words. The store does not fuse: it returns the
vector leg's rows and then those that only the text leg found, so of two pools of 50 its best ten
are the vector leg's. Rows are copied into the table that the package makes.
"""

# The package is not among those that the project installs.
# mypy: disable-error-code="import-not-found,import-untyped"

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from psycopg.types.json import Jsonb

from benchmarks.corpus import Corpus, Query
from benchmarks.peers.langchain_store import alchemy
from benchmarks.peers.system import EF_SEARCH, POOL, Client, PostgresSystem, StoreClient

HNSW = {"hnsw_m": 16, "hnsw_ef_construction": 64, "hnsw_ef_search": EF_SEARCH}


def store(dsn: str, dimensions: int, hnsw: dict[str, Any] | None, setup: bool) -> Any:
    """Return a store on the table, with an engine of one connection."""
    from llama_index.vector_stores.postgres import PGVectorStore

    return PGVectorStore(
        connection_string=alchemy(dsn, "psycopg2"),
        async_connection_string=alchemy(dsn),
        table_name="passages",
        embed_dim=dimensions,
        hybrid_search=True,
        text_search_config="english",
        use_jsonb=True,
        hnsw_kwargs=None if hnsw is None else dict(hnsw),
        indexed_metadata_keys={("knowledge_type", "text")},
        perform_setup=setup,
        initialization_fail_on_error=True,
        create_engine_kwargs={"pool_size": 1},
    )


class LlamaIndexClient(StoreClient):
    """A store of its own."""

    name = "LlamaIndex PGVectorStore hybrid"
    text_leg = "ts_rank, any word"
    cannot: ClassVar = frozenset({"phrase"})

    def __init__(self, dsn: str, dimensions: int) -> None:
        super().__init__(dsn)
        self._store = store(dsn, dimensions, HNSW, setup=False)

    def search(self, query: Query, count: int) -> list[int]:
        """Search by vector, by text, or by both."""
        from llama_index.core.vector_stores.types import (
            MetadataFilter,
            MetadataFilters,
            VectorStoreQuery,
            VectorStoreQueryMode,
        )

        if query.text is None:
            mode = VectorStoreQueryMode.DEFAULT
        elif query.embedding is None:
            mode = VectorStoreQueryMode.SPARSE
        else:
            mode = VectorStoreQueryMode.HYBRID
        kept = MetadataFilters(filters=[MetadataFilter(key="knowledge_type", value=query.kept)])
        asked = VectorStoreQuery(
            query_embedding=None if query.embedding is None else query.embedding.tolist(),
            query_str=query.text,
            mode=mode,
            similarity_top_k=POOL,
            sparse_top_k=POOL,
            filters=kept if query.kept else None,
        )
        return [int(row) for row in self._store.query(asked).ids[:count]]

    def close(self) -> None:
        """Close the engine."""
        super().close()
        import asyncio

        asyncio.run(self._store.close())


class LlamaIndex(PostgresSystem):
    """The package's table and indexes."""

    name = LlamaIndexClient.name
    key = "llama-index"
    client: ClassVar = LlamaIndexClient
    table = "data_passages"
    number = "node_id"
    passage = "text"
    modules: ClassVar = ("llama_index", "llama_index.vector_stores.postgres")
    packages: ClassVar = ("llama-index-vector-stores-postgres",)
    install = "pip install llama-index-vector-stores-postgres"
    _dimensions: int

    @contextmanager
    def running(self, major: int, dimensions: int, keep: Path | None) -> Iterator[None]:
        """Run a server; the package needs the size of the embeddings."""
        self._dimensions = dimensions
        with super().running(major, dimensions, keep):
            yield

    def load(self, corpus: Corpus) -> None:
        """Make the table, copy the rows, let the package build the HNSW index."""
        from llama_index.core.schema import TextNode
        from llama_index.core.vector_stores.utils import node_to_metadata_dict

        # Adding nothing makes the table.
        store(self.dsn, self._dimensions, None, setup=True).add([])
        statement = (
            "copy data_passages (node_id, text, metadata_, embedding) from stdin (format binary)"
        )
        with self.step("copy"), self.connection.cursor() as cursor, cursor.copy(statement) as copy:
            copy.set_types(["varchar", "varchar", "jsonb", "vector"])
            for row, embedding in enumerate(corpus.embeddings):
                text = corpus.full_text(row)
                metadata = {"knowledge_type": corpus.types[row]}
                node = TextNode(id_=str(row), text=text, metadata=metadata)
                stored = node_to_metadata_dict(node, remove_text=True, flat_metadata=False)
                copy.write_row((str(row), text, Jsonb(stored), embedding))
        with self.step("vector index"):
            store(self.dsn, self._dimensions, HNSW, setup=True).add([])
        self.run({"vacuum": "vacuum analyze data_passages"})

    def connect(self) -> Client:
        """Open a store."""
        return LlamaIndexClient(self.dsn, self._dimensions)
