"""Documents that the tests of this folder store, and what they read back."""

from collections.abc import Sequence
from typing import Any

import pytest
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from conftest import Connection

Row = dict[str, Any]
Chunk = str | dict[str, Any]

COUNTS = ("added", "changed", "unchanged", "removed")


@pytest.fixture
def dsn(emptied_dsn: str) -> str:
    """Stand in for the fixture of a database per test."""
    return emptied_dsn


def upsert(
    connection: Connection,
    chunks: Sequence[Chunk],
    key: str = "doc",
    *,
    fields: str = "merge",
    **document: Any,
) -> Row:
    """Store a document whose chunks are given as texts or as objects."""
    with connection.cursor(row_factory=dict_row) as cursor:
        row = cursor.execute(
            "select * from public.upsert_knowledge_document(document => %s, chunks => %s,"
            " fields => %s)",
            [
                Jsonb({"external_key": key, **document}),
                Jsonb([{"content": one} if isinstance(one, str) else one for one in chunks]),
                fields,
            ],
        ).fetchone()
    assert row is not None
    return row


def counts(row: Row) -> tuple[int, ...]:
    return tuple(row[f"chunks_{name}"] for name in COUNTS)


def embeddings(row: Row) -> tuple[int, int]:
    return row["embeddings_reused"], row["embeddings_missing"]


def chunks_of(connection: Connection, key: str = "doc", status: str = "active") -> list[Row]:
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(
            "select chunk.*, chunk.embedding::text as embedding"
            " from public.knowledge_chunks as chunk"
            " join public.knowledge_documents as document on document.id = chunk.document_id"
            " where external_key = %s and status = %s order by chunk_index, version",
            [key, status],
        ).fetchall()


def contents(connection: Connection, key: str = "doc") -> list[str]:
    found = chunks_of(connection, key)
    assert [row["chunk_index"] for row in found] == list(range(len(found)))
    return [row["content"] for row in found]


def everything(connection: Connection) -> list[tuple[Any, ...]]:
    """Every row with the transaction that wrote it and where it lies."""
    return [
        row
        for table in ("knowledge_documents", "knowledge_chunks")
        for row in connection.execute(
            f"select to_jsonb(stored), xmin::text, ctid::text from public.{table} as stored"
            " order by id".encode()
        ).fetchall()
    ]


def embedded(content: str, number: float, model: str = "m") -> dict[str, Any]:
    return {"content": content, "embedding": [number, 1, 0], "embedding_model": model}
