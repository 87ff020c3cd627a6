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
UPSERT = """
select * from public.upsert_knowledge_document(document => %s, chunks => %s, fields => %s)
"""


class Session:
    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def rows(self, statement: str, *arguments: object) -> list[tuple[Any, ...]]:
        cursor = self.connection.execute(statement.encode(), arguments or None)
        return cursor.fetchall() if cursor.description else []


class Documents(Session):
    def _named(self, statement: str, *arguments: object) -> list[Row]:
        with self.connection.cursor(row_factory=dict_row) as cursor:
            return cursor.execute(statement.encode(), arguments).fetchall()

    def upsert(
        self, chunks: Sequence[Chunk], key: str = "doc", *, fields: str = "merge", **document: Any
    ) -> Row:
        given = [{"content": one} if isinstance(one, str) else one for one in chunks]
        (row,) = self._named(UPSERT, Jsonb({"external_key": key, **document}), Jsonb(given), fields)
        return row

    def counts(self, chunks: Sequence[Chunk], key: str = "doc", **document: Any) -> tuple[int, ...]:
        """Store a document; return how many chunks were added, changed, unchanged and removed."""
        return counts(self.upsert(chunks, key, **document))

    def chunks(self, key: str = "doc", status: str = "active") -> list[Row]:
        return self._named(
            "select chunk.*, chunk.embedding::text as embedding"
            " from public.knowledge_chunks as chunk"
            " join public.knowledge_documents as document on document.id = chunk.document_id"
            " where external_key = %s and status = %s order by chunk_index, version",
            key,
            status,
        )

    def contents(self, key: str = "doc") -> list[str]:
        found = self.chunks(key)
        assert [row["chunk_index"] for row in found] == list(range(len(found)))
        return [row["content"] for row in found]

    def everything(self) -> list[tuple[Any, ...]]:
        """Every row with the transaction that wrote it and where it lies."""
        row = "select to_jsonb(stored), xmin::text, ctid::text from public"
        return [
            *self.rows(f"{row}.knowledge_documents as stored order by id"),
            *self.rows(f"{row}.knowledge_chunks as stored order by id"),
        ]


@pytest.fixture
def documents(service_role: Connection) -> Documents:
    return Documents(service_role)


def counts(row: Row) -> tuple[int, ...]:
    return tuple(row[f"chunks_{name}"] for name in COUNTS)


def embeddings(row: Row) -> tuple[int, int]:
    return row["embeddings_reused"], row["embeddings_missing"]


def embedded(content: str, number: float, model: str = "m") -> dict[str, Any]:
    return {"content": content, "embedding": [number, 1, 0], "embedding_model": model}
