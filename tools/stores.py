"""The tables of LangChain's and LlamaIndex's vector stores, made by their own packages.

`python tools/stores.py DSN`, in the environment that `make stores` installs. It imports the
packages only, nothing of this project.
"""

# The packages are not among those that the project installs.
# mypy: disable-error-code="import-not-found,import-untyped,unused-ignore"

import sys

DIMENSIONS = 3


def url(dsn: str, driver: str) -> str:
    """Return a connection string in the form of SQLAlchemy."""
    from psycopg.conninfo import conninfo_to_dict
    from sqlalchemy import URL

    given = conninfo_to_dict(dsn)
    made = URL.create(
        f"postgresql+{driver}",
        username=str(given.get("user", "postgres")),
        password=str(given["password"]) if given.get("password") else None,
        host=str(given["host"]),
        port=int(given.get("port") or 5432),
        database=str(given["dbname"]),
    )
    return str(made.render_as_string(hide_password=False))


def create(dsn: str) -> None:
    """Make the tables, with the names that tests/adoption/layouts.sql has."""
    from langchain_core.embeddings import FakeEmbeddings
    from langchain_postgres import Column, PGEngine, PGVector
    from langchain_postgres.v2.hybrid_search_config import HybridSearchConfig
    from llama_index.vector_stores.postgres import PGVectorStore

    PGVector(
        embeddings=FakeEmbeddings(size=DIMENSIONS), connection=url(dsn, "psycopg"), use_jsonb=True
    )
    engine = PGEngine.from_connection_string(url(dsn, "asyncpg"))
    engine.init_vectorstore_table("passages", DIMENSIONS)
    engine.init_vectorstore_table(
        "passages_hybrid",
        DIMENSIONS,
        metadata_columns=[Column("team", "TEXT")],
        id_column=Column("langchain_id", "TEXT", nullable=False),
        hybrid_search_config=HybridSearchConfig(tsv_column="content_tsv"),
    )
    for table, is_hybrid in (("passages", False), ("passages_hybrid", True)):
        PGVectorStore(
            connection_string=url(dsn, "psycopg2"),
            async_connection_string=url(dsn, "asyncpg"),
            table_name=table,
            embed_dim=DIMENSIONS,
            hybrid_search=is_hybrid,
            text_search_config="english",
            use_jsonb=is_hybrid,
            use_halfvec=is_hybrid,
            initialization_fail_on_error=True,
        ).add([])


if __name__ == "__main__":
    create(sys.argv[1])
