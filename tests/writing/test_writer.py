"""KnowledgeWriter and AsyncKnowledgeWriter over a real database."""

import asyncio
from collections.abc import Callable, Iterator
from datetime import date
from typing import Any
from uuid import UUID, uuid4

import numpy as np
import psycopg
import pytest
from pgvector import Vector
from psycopg.pq import TransactionStatus
from stored import dsn

from conftest import Connection
from corpora import SAVANNA
from second_brain import errors
from second_brain.services.write import AsyncKnowledgeWriter, KnowledgeWriter, UpsertCounts

__all__ = ["dsn"]  # a fixture

Connection = Connection


class Waiting:
    """An AsyncKnowledgeWriter whose methods are called without await."""

    def __init__(self, dsn: str) -> None:
        self.loop = asyncio.new_event_loop()
        self.connection = self.loop.run_until_complete(
            psycopg.AsyncConnection.connect(dsn, autocommit=True)
        )
        self.writer = AsyncKnowledgeWriter(self.connection)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self.writer, name)
        return lambda *arguments, **options: self.loop.run_until_complete(
            method(*arguments, **options)
        )

    def close(self) -> None:
        self.loop.run_until_complete(self.connection.close())
        self.loop.close()


@pytest.fixture(params=["thread", "loop"])
def writer(request: pytest.FixtureRequest, service_role: Connection, dsn: str) -> Iterator[Any]:
    if request.param == "thread":
        yield KnowledgeWriter(service_role)
        return
    waiting = Waiting(dsn)
    yield waiting
    waiting.close()


@pytest.fixture
def corpus(writer: Any) -> UUID:
    document = {"external_key": "savanna", "title": "Savanna"}
    document_id: UUID = writer.upsert_document(document, SAVANNA).document_id
    return document_id


@pytest.mark.parametrize("kind", [KnowledgeWriter, AsyncKnowledgeWriter])
def test_a_writer_takes_a_connection_and_no_dsn(kind: Any, dsn: str) -> None:
    with pytest.raises(TypeError, match=r"connection must be a psycopg .*Connection, not str"):
        kind(dsn)


def test_an_upsert_counts_what_it_changed(writer: Any, corpus: UUID) -> None:
    changed: list[dict[str, object]] = [*SAVANNA[:1], {"content": "A zebra runs."}]
    assert writer.upsert_document(
        {"external_key": "savanna", "title": "Savanna"}, changed
    ) == UpsertCounts(
        document_id=corpus,
        chunks_added=0,
        chunks_changed=1,
        chunks_unchanged=1,
        chunks_removed=1,
        embeddings_reused=0,
        embeddings_missing=1,
    )


@pytest.mark.parametrize("chunks", [None, "text", {"content": "text"}])
def test_chunks_that_are_no_list_are_refused_by_name(writer: Any, chunks: Any) -> None:
    with pytest.raises(
        errors.InvalidInputError, match=r"^chunks must be a list of chunks, not"
    ) as refused:
        writer.upsert_document({"external_key": "one"}, chunks)
    assert "[] for a document without chunks" in (refused.value.remedy or "")


@pytest.mark.parametrize(
    "embedding", [np.array([0.6, 0.8, 0.0], dtype=np.float32), Vector([0.6, 0.8, 0.0])]
)
def test_a_document_may_hold_pythons_own_values(writer: Any, embedding: Any) -> None:
    document = {"external_key": "a", "document_date": date(2024, 5, 1), "owner_id": uuid4()}
    counts = writer.upsert_document(
        document, [{"content": "text", "embedding_model": "m", "embedding": embedding}]
    )
    assert (counts.chunks_added, counts.embeddings_missing) == (1, 0)


@pytest.mark.parametrize(
    ("document", "chunks", "kind"),
    [
        ({}, [], errors.InvalidInputError),
        ({"external_key": "a", "title": object()}, [], errors.InvalidInputError),
        ({"external_key": "a"}, [{"content": "a\x00"}], errors.InvalidInputError),
        (
            {"external_key": "a"},
            [{"content": "a", "embedding_model": "m", "embedding": [1, 2]}],
            errors.DimensionMismatchError,
        ),
    ],
)
def test_a_document_that_cannot_be_stored_is_refused(
    writer: Any,
    service_role: Connection,
    document: dict[str, object],
    chunks: list[dict[str, object]],
    kind: type[errors.SecondBrainError],
) -> None:
    with pytest.raises(kind) as caught:
        writer.upsert_document(document, chunks)
    assert type(caught.value) is kind
    assert caught.value.__cause__ is not None
    stored = service_role.execute("select count(*) from public.knowledge_documents")
    assert stored.fetchone() == (0,)


@pytest.mark.parametrize(
    ("document", "chunk", "named"),
    [
        ({"metadata": {"price": float("nan")}}, {}, "document.metadata.price"),
        ({"metadata": {"a": [1, {"b": float("inf")}]}}, {}, "document.metadata.a[1].b"),
        ({"metadata": {"name": "a\udcfc"}}, {}, "document.metadata.name"),
        ({"metadata": {"a\udcfc": 1}}, {}, "document.metadata"),
        ({"title": "\ud800"}, {}, "document.title"),
        ({}, {"content": "\ud800"}, "chunks[0].content"),
        ({}, {"metadata": {"x": float("-inf")}}, "chunks[0].metadata.x"),
        ({}, {"metadata": {"x": b"bytes"}}, "chunks[0].metadata.x"),
    ],
)
def test_a_value_without_a_json_form_is_refused_by_its_name(
    writer: Any, document: dict[str, Any], chunk: dict[str, Any], named: str
) -> None:
    with pytest.raises(errors.InvalidInputError) as refused:
        writer.upsert_document({"external_key": "a", **document}, [{"content": "text", **chunk}])
    assert str(refused.value).startswith(f"{named}: ")


def test_a_stored_text_needs_no_second_embedding(writer: Any, service_role: Connection) -> None:
    text = {"content": "same words", "heading": "H"}
    row = service_role.execute("select public.knowledge_content_hash('H', 'same words')").fetchone()
    assert row is not None
    assert writer.missing_embeddings([row[0], row[0], "other"], "model") == {row[0], "other"}
    writer.upsert_document(
        {"external_key": "a"}, [{**text, "embedding": [1, 0, 0], "embedding_model": "model"}]
    )
    assert writer.missing_embeddings([row[0], "other"], "model") == {"other"}
    assert writer.missing_embeddings([row[0]], "another model") == {row[0]}
    again = writer.upsert_document({"external_key": "b"}, [{**text, "embedding_model": "model"}])
    assert (again.embeddings_reused, again.embeddings_missing) == (1, 0)


def test_deleting_returns_how_much_went(writer: Any, corpus: UUID) -> None:
    owner = uuid4()
    writer.upsert_document({"external_key": "mine", "owner_id": owner}, SAVANNA[:2])
    deleted = writer.delete_owner(owner)
    assert (deleted.documents_deleted, deleted.chunks_deleted) == (1, 2)
    assert writer.delete_document("savanna") == 3
    assert writer.delete_document("savanna") == 0


def test_a_writer_joins_the_callers_transaction(dsn: str, database: Connection) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute("select 1")
        writer = KnowledgeWriter(connection)
        writer.upsert_document({"external_key": "a"}, SAVANNA)
        with pytest.raises(errors.InvalidInputError):
            writer.upsert_document({}, [])
        assert connection.info.transaction_status == TransactionStatus.INTRANS
        connection.rollback()
    stored = database.execute("select count(*) from public.knowledge_documents").fetchone()
    assert stored == (0,)


def test_statistics_are_renewed_after_analyze(
    writer: Any, database: Connection, corpus: UUID
) -> None:
    database.execute("analyze public.knowledge_chunks")
    assert writer.refresh_statistics() is True


def test_a_write_that_waits_too_long_is_cancelled(dsn: str, corpus: UUID, writer: Any) -> None:
    with psycopg.connect(dsn) as other:
        other.execute("select from public.knowledge_documents for update")
        with pytest.raises(errors.SearchTimeoutError):
            writer.delete_document("savanna", timeout=0.2)
    assert writer.delete_document("savanna", timeout=30) == 3


def test_a_timeout_ends_with_its_write_in_the_callers_transaction(dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute("set local statement_timeout = '7s'")
        writer = KnowledgeWriter(connection)
        writer.upsert_document({"external_key": "a"}, SAVANNA, timeout=30)
        assert connection.execute("show statement_timeout").fetchone() == ("7s",)
        with pytest.raises(errors.InvalidInputError):
            writer.upsert_document({}, [], timeout=30)
        assert connection.execute("show statement_timeout").fetchone() == ("7s",)
