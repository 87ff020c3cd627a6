"""The vector stores of LangChain and LlamaIndex, run by their own packages.

`Stores` starts this file in the environment that `make stores` installs, and sends it actions, one
line of JSON each: to create a store's table, to add, delete and search rows. The file itself then
imports the packages only, nothing of this project. Embeddings are given with each row and each
query; no model is called.
"""

# The packages are not among those that the project installs.
# mypy: disable-error-code="import-not-found,import-untyped,arg-type,unused-ignore"

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).parents[1]
PYTHON = Path(os.environ.get("STORES_PYTHON") or ROOT / ".venv-stores" / "bin" / "python")
MISSING = "run `make stores`, or name their Python in STORES_PYTHON"
POOL = 50

# What LangChain's documentation has a user run for SupabaseVectorStore, which creates nothing.
SUPABASE_VECTOR_STORE = """
create table %(table)s (
  id uuid primary key,
  content text,
  metadata jsonb,
  embedding vector(%(dimensions)s)
);
create function match_%(table)s (
  query_embedding vector(%(dimensions)s),
  filter jsonb default '{}'
)
returns table (id uuid, content text, metadata jsonb, similarity float)
language plpgsql
as $$
#variable_conflict use_column
begin
  return query
  select id, content, metadata, 1 - (%(table)s.embedding <=> query_embedding) as similarity
    from %(table)s
   where metadata @> filter
   order by %(table)s.embedding <=> query_embedding;
end;
$$;
grant select, insert, update, delete on %(table)s to service_role;
"""

Row = dict[str, Any]
"""id, text, metadata and embedding; `document` is LlamaIndex's ref_doc_id, by default the id."""


class Stores:
    """A process with the packages. `call` sends an action and waits for its result."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - nothing of it is given
            [PYTHON, "-W", "ignore", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @staticmethod
    def installed() -> bool:
        """Return whether there is an environment with the packages."""
        return PYTHON.is_file()

    def call(self, store: str, action: str, dsn: str, **arguments: Any) -> Any:
        """Run an action of a store; raises RuntimeError with the package's error."""
        request = {"store": store, "action": action, "dsn": dsn, **arguments}
        print(json.dumps(request), file=self._process.stdin, flush=True)
        line = next(iter(self._process.stdout or ()), None)
        if not line:
            raise RuntimeError(f"the process ended with code {self._process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["result"]

    def close(self) -> None:
        """End the process."""
        self._process.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class GivenEmbeddings:
    """An embedder, of LangChain's kind, with embeddings of the texts that were made before."""

    def __init__(self) -> None:
        self.known: dict[str, list[float]] = {}

    def embed_documents(self, texts: Iterable[str]) -> list[list[float]]:
        """Return the embeddings that came with the rows."""
        return [self.known[text] for text in texts]

    def embed_query(self, text: str) -> list[float]:
        """Return the embedding that came with the query."""
        return self.known[text]

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return the embeddings that came with the rows."""
        return self.embed_documents(texts)

    async def aembed_query(self, text: str) -> list[float]:
        """Return the embedding that came with the query."""
        return self.known[text]


def url(dsn: str, driver: str) -> Any:
    """Return a connection string in the form of SQLAlchemy."""
    from psycopg.conninfo import conninfo_to_dict
    from sqlalchemy import URL

    given = conninfo_to_dict(dsn)
    return URL.create(
        f"postgresql+{driver}",
        username=str(given.get("user", "postgres")),
        password=str(given["password"]) if given.get("password") else None,
        host=str(given["host"]),
        port=int(given.get("port") or 5432),
        database=str(given["dbname"]),
    ).render_as_string(hide_password=False)


class Store:
    """What the actions do; the arguments of an action are those of the method."""

    def create(self, dimensions: int) -> None:
        """Make the store's tables."""

    def add(self, rows: Sequence[Row]) -> None:
        """Add the rows as the package's documentation does; an id that exists is replaced."""
        raise NotImplementedError

    def delete(self, ids: Sequence[str]) -> None:
        """Delete rows by the ids that they were added with."""
        raise NotImplementedError

    def search(self, queries: Sequence[Row], count: int, **options: Any) -> list[list[str]]:
        """Return the ids found for each query, best first."""
        raise NotImplementedError


class LangChainStore(Store):
    """What LangChain's stores have in common."""

    def __init__(self) -> None:
        self.embeddings = GivenEmbeddings()
        self.store: Any = None

    def add(self, rows: Sequence[Row]) -> None:
        """Call add_documents."""
        from langchain_core.documents import Document

        self.embeddings.known.update((row["text"], row["embedding"]) for row in rows)
        documents = [
            Document(page_content=row["text"], metadata=row["metadata"] or {}) for row in rows
        ]
        self.store.add_documents(documents, ids=[row["id"] for row in rows])

    def delete(self, ids: Sequence[str]) -> None:
        """Call delete."""
        self.store.delete(ids=list(ids))

    def search(self, queries: Sequence[Row], count: int, **options: Any) -> list[list[str]]:
        """Invoke the store's retriever; the rows' metadata has their id under `id`."""
        self.embeddings.known.update((query["text"], query["embedding"]) for query in queries)
        retriever = self.store.as_retriever(search_kwargs={"k": count, **options})
        return [
            [document.metadata["id"] for document in retriever.invoke(query["text"])]
            for query in queries
        ]


class SupabaseStore(LangChainStore):
    """langchain-community's SupabaseVectorStore, over PostgREST."""

    def __init__(
        self,
        dsn: str,
        rest: str | None = None,
        key: str | None = None,
        table: str = "documents",
        **_: Any,
    ) -> None:
        super().__init__()
        self.dsn, self.table = dsn, table
        if rest is not None:
            from langchain_community.vectorstores import SupabaseVectorStore
            from postgrest import SyncPostgrestClient

            # supabase.create_client adds /rest/v1 to the address, and nothing else is used of it.
            client = SyncPostgrestClient(rest, headers={"Authorization": f"Bearer {key}"})
            self.store = SupabaseVectorStore(
                client, self.embeddings, table, query_name=f"match_{table}"
            )

    def create(self, dimensions: int) -> None:
        """Run the documentation's SQL."""
        import psycopg

        with psycopg.connect(self.dsn, autocommit=True) as connection:
            created = SUPABASE_VECTOR_STORE % {"table": self.table, "dimensions": dimensions}
            connection.execute(created.encode())


class OldLangChainStore(LangChainStore):
    """langchain-postgres's PGVector: all collections in one table."""

    def __init__(
        self, dsn: str, collection: str = "langchain", dimensions: int | None = None, **_: Any
    ) -> None:
        super().__init__()
        from langchain_postgres import PGVector

        self.store = PGVector(
            embeddings=self.embeddings,
            connection=url(dsn, "psycopg"),
            collection_name=collection,
            embedding_length=dimensions,
            use_jsonb=True,
        )

    def create(self, dimensions: int) -> None:
        """Do nothing: the store makes its tables when it is constructed."""


class NewLangChainStore(LangChainStore):
    """langchain-postgres's PGVectorStore: a table for each store."""

    def __init__(
        self,
        dsn: str,
        table: str = "passages",
        columns: Sequence[str] = (),
        id_type: str = "UUID",
        hybrid: bool = False,
        **_: Any,
    ) -> None:
        super().__init__()
        from langchain_postgres import PGEngine
        from langchain_postgres.v2.hybrid_search_config import HybridSearchConfig

        self.table, self.columns, self.id_type = table, list(columns), id_type
        self.config = (
            HybridSearchConfig(tsv_column="content_tsv", primary_top_k=POOL, secondary_top_k=POOL)
            if hybrid
            else None
        )
        self.engine = PGEngine.from_connection_string(url(dsn, "asyncpg"))

    def create(self, dimensions: int) -> None:
        """Call init_vectorstore_table."""
        from langchain_postgres import Column

        self.engine.init_vectorstore_table(
            self.table,
            dimensions,
            metadata_columns=[Column(name, "TEXT") for name in self.columns],
            id_column=Column("langchain_id", self.id_type, nullable=False),
            hybrid_search_config=self.config,
        )

    def _open(self) -> None:
        from langchain_postgres import PGVectorStore

        if self.store is None:
            self.store = PGVectorStore.create_sync(
                self.engine,
                self.embeddings,
                self.table,
                metadata_columns=self.columns,
                hybrid_search_config=self.config,
            )

    def add(self, rows: Sequence[Row]) -> None:
        """Call add_documents."""
        self._open()
        super().add(rows)

    def delete(self, ids: Sequence[str]) -> None:
        """Call delete."""
        self._open()
        super().delete(ids)

    def search(self, queries: Sequence[Row], count: int, **options: Any) -> list[list[str]]:
        """Invoke the retriever; a hybrid one takes the words of each query anew."""
        self._open()
        if self.config is None:
            return super().search(queries, count, **options)
        found = []
        for query in queries:
            # The store keeps the words of its first query in its configuration.
            self.config.fts_query = ""
            found += super().search([query], count, **options)
        return found


class LlamaIndexStore(Store):
    """llama-index-vector-stores-postgres's PGVectorStore."""

    def __init__(
        self,
        dsn: str,
        dimensions: int,
        table: str = "passages",
        hybrid: bool = False,
        halfvec: bool = False,
        jsonb: bool = False,
        hnsw: bool = False,
        **_: Any,
    ) -> None:
        from llama_index.vector_stores.postgres import PGVectorStore

        self.store = PGVectorStore(
            connection_string=url(dsn, "psycopg2"),
            async_connection_string=url(dsn, "asyncpg"),
            table_name=table,
            embed_dim=dimensions,
            hybrid_search=hybrid,
            text_search_config="english",
            use_jsonb=jsonb,
            use_halfvec=halfvec,
            hnsw_kwargs={"hnsw_m": 16, "hnsw_ef_construction": 64} if hnsw else None,
            initialization_fail_on_error=True,
        )

    def create(self, dimensions: int) -> None:
        """Add nothing, which makes the table."""
        self.store.add([])

    def add(self, rows: Sequence[Row]) -> None:
        """Call add with nodes of their documents."""
        from llama_index.core.schema import NodeRelationship, RelatedNodeInfo, TextNode

        nodes = []
        for row in rows:
            node = TextNode(id_=row["id"], text=row["text"], metadata=row["metadata"] or {})
            source = RelatedNodeInfo(node_id=row.get("document", row["id"]))
            node.relationships[NodeRelationship.SOURCE] = source
            node.embedding = row["embedding"]
            nodes.append(node)
        self.store.add(nodes)

    def delete(self, ids: Sequence[str]) -> None:
        """Call delete_nodes."""
        self.store.delete_nodes(node_ids=list(ids))

    def delete_document(self, document: str) -> None:
        """Call delete with a ref_doc_id."""
        self.store.delete(document)

    def search(
        self, queries: Sequence[Row], count: int, mode: str = "default", **options: Any
    ) -> list[list[str]]:
        """Query the store, or for `fusion` the retriever of the documentation over two modes."""
        if mode == "fusion":
            return [self._fused(query, count, **options) for query in queries]
        from llama_index.core.vector_stores.types import VectorStoreQuery, VectorStoreQueryMode

        found = []
        for query in queries:
            asked = VectorStoreQuery(
                query_embedding=query["embedding"],
                query_str=query["text"],
                mode=VectorStoreQueryMode(mode),
                similarity_top_k=count,
                sparse_top_k=count,
            )
            found.append(list(self.store.query(asked).ids or [])[:count])
        return found

    def _fused(self, query: Row, count: int, pool: int = POOL) -> list[str]:
        from llama_index.core import VectorStoreIndex
        from llama_index.core.base.embeddings.base import BaseEmbedding
        from llama_index.core.llms import MockLLM
        from llama_index.core.retrievers import QueryFusionRetriever

        class Given(BaseEmbedding):
            def _get_query_embedding(self, query_text: str) -> list[float]:
                return list(query["embedding"])

            async def _aget_query_embedding(self, query_text: str) -> list[float]:
                return list(query["embedding"])

            def _get_text_embedding(self, text: str) -> list[float]:
                raise NotImplementedError

        index = VectorStoreIndex.from_vector_store(self.store, embed_model=Given())
        legs = [
            index.as_retriever(
                vector_store_query_mode=mode, similarity_top_k=pool, sparse_top_k=pool
            )
            for mode in ("default", "sparse")
        ]
        fused = QueryFusionRetriever(
            legs,
            llm=MockLLM(),
            similarity_top_k=count,
            num_queries=1,
            mode="relative_score",
            use_async=False,
        )
        return [node.node.node_id for node in fused.retrieve(query["text"])]


STORES = {
    "supabase": SupabaseStore,
    "pgvector": OldLangChainStore,
    "pgvectorstore": NewLangChainStore,
    "llamaindex": LlamaIndexStore,
}


def serve() -> None:
    """Read actions from standard input until it ends, and print the result of each."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    # What a package prints must not stand between the answers.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    opened: dict[str, Any] = {}
    for line in sys.stdin:
        request = json.loads(line)
        settings = request.pop("settings", {})
        named = json.dumps([request["store"], request["dsn"], settings], sort_keys=True)
        try:
            if named not in opened:
                opened[named] = STORES[request["store"]](dsn=request["dsn"], **settings)
            action = getattr(opened[named], request["action"])
            given = {k: v for k, v in request.items() if k not in ("store", "action", "dsn")}
            answer = {"result": action(**given)}
        except Exception as exc:  # noqa: BLE001 - it is raised again in the other process
            answer = {"error": f"{type(exc).__name__}: {exc}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    serve()
