"""Stores and writers run a transaction as one: with repeats, on a pool that is checked, or not."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import psycopg
import pytest
from haystack import Document
from haystack.document_stores.types import DuplicatePolicy
from langchain_core.embeddings import DeterministicFakeEmbedding
from llama_index.core.schema import TextNode
from psycopg.conninfo import make_conninfo

from second_brain.errors import ConflictError, ConnectionLostError, SearchTimeoutError
from second_brain.integrations import haystack, langchain, llama_index
from second_brain.services.connections import connection_pool
from second_brain.services.postgres import PostgresProvider
from second_brain.services.write import KnowledgeWriter

Write: TypeAlias = Callable[[list[str]], Any]

KEYS = ["a", "b", "c"]
THREADS, CALLS = 6, 24


def of_langchain(database: Any) -> Write:
    store = langchain.SecondBrainVectorStore(database, DeterministicFakeEmbedding(size=3))
    return lambda keys: store.add_texts([f"heron {key}" for key in keys], ids=keys)


def of_llama_index(database: Any) -> Write:
    store = llama_index.SecondBrainVectorStore(database, embedding_model="m")
    return lambda keys: store.add([TextNode(id_=key, text=f"heron {key}") for key in keys])


def of_haystack(database: Any) -> Write:
    store = haystack.SecondBrainDocumentStore(database, embedding_model="m")
    overwrite = DuplicatePolicy.OVERWRITE
    return lambda keys: store.write_documents([Document(key, "heron") for key in keys], overwrite)


def deleting(database: Any) -> Write:
    add = of_langchain(database)
    store = langchain.SecondBrainVectorStore(database, DeterministicFakeEmbedding(size=3))

    def write(keys: list[str]) -> None:
        store.delete(keys)
        add(keys)

    return write


def of_writer(database: Any) -> Write:
    writer = KnowledgeWriter(database)

    def write(keys: list[str]) -> None:
        for key in keys:
            writer.upsert_document({"external_key": key}, [{"content": f"heron {key}"}])

    return write


WRITERS = [of_langchain, of_llama_index, of_haystack, deleting, of_writer]


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
@pytest.mark.parametrize("make", WRITERS)
def test_writes_at_once_of_the_same_ids_all_succeed(
    make: Callable[[Any], Write], isolation: str, dsn: str
) -> None:
    level = isolation.replace(" ", r"\ ")
    given = make_conninfo(dsn, options=f"-c default_transaction_isolation={level}")
    with connection_pool(given, max_size=THREADS) as pool:
        write = make(pool)
        with ThreadPoolExecutor(THREADS) as threads:
            list(threads.map(lambda turn: write(KEYS[turn % 2 :]), range(CALLS)))
        assert len(PostgresProvider(pool).fulltext_search("heron")[0]) == len(KEYS)


@pytest.mark.parametrize("make", WRITERS)
def test_a_pool_is_checked_after_the_server_ended_its_connections(
    make: Callable[[Any], Write], dsn: str
) -> None:
    with connection_pool(dsn, max_size=2) as pool, psycopg.connect(dsn) as other:
        write = make(pool)
        write(KEYS)
        _end_others(other)
        with pytest.raises(ConnectionLostError):
            write(KEYS)
        write(KEYS)


@pytest.mark.parametrize("make", WRITERS)
def test_a_lost_connection_of_the_callers_says_that_a_new_one_is_needed(
    make: Callable[[Any], Write], dsn: str
) -> None:
    with psycopg.connect(dsn, autocommit=True) as lost, psycopg.connect(dsn) as other:
        write = make(lost)
        _end_others(other)
        for _ in range(2):
            with pytest.raises(ConnectionLostError) as refused:
                write(KEYS)
            assert refused.value.kind == "connection_lost"
            assert "Open a new connection" in refused.value.remedy


@pytest.mark.parametrize("make", WRITERS)
def test_a_transaction_of_the_callers_is_not_repeated_and_not_committed(
    make: Callable[[Any], Write], dsn: str
) -> None:
    with psycopg.connect(dsn) as own, psycopg.connect(dsn, autocommit=True) as other:
        own.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        own.execute("select from public.knowledge_documents")
        of_writer(other)(KEYS)
        with pytest.raises(ConflictError):
            make(own)(KEYS)
        own.rollback()
        make(own)(KEYS)


def test_a_writer_takes_a_connection_string_a_pool_or_a_connection(dsn: str) -> None:
    with connection_pool(dsn, max_size=1) as pool, psycopg.connect(dsn) as connection:
        for database in (dsn, pool, connection):
            of_writer(database)(KEYS)
            assert KnowledgeWriter(database).wal_position()
    with pytest.raises(TypeError, match="database must be a psycopg Connection"):
        KnowledgeWriter(7)  # type: ignore[arg-type]


def _end_others(connection: psycopg.Connection[Any]) -> None:
    connection.execute(
        """
        select pg_terminate_backend(pid, 10000)
          from pg_stat_activity
         where datname = current_database() and pid <> pg_backend_pid()
        """
    )


def test_the_timeout_of_a_store_ends_a_write_that_waits(dsn: str) -> None:
    with psycopg.connect(dsn) as other, connection_pool(dsn, max_size=1) as pool:
        other.execute("lock table public.knowledge_documents")
        options = {"timeout": 0.2}
        embedding = DeterministicFakeEmbedding(size=3)
        store = langchain.SecondBrainVectorStore(pool, embedding, options=options)
        with pytest.raises(SearchTimeoutError):
            store.add_texts(["heron"], ids=["a"])
        other.rollback()
        assert store.add_texts(["heron"], ids=["a"]) == ["a"]
