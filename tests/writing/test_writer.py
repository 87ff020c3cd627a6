"""KnowledgeWriter and AsyncKnowledgeWriter over a real database."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date
from typing import Any
from uuid import UUID, uuid4

import numpy as np
import psycopg
import pytest
from pgvector import Vector
from psycopg.pq import TransactionStatus

from conftest import Connect, Connection
from corpora import SAVANNA
from second_brain import errors
from second_brain.services.write import AsyncKnowledgeWriter, KnowledgeWriter, UpsertCounts
from support.emptied import dsn as dsn

DOCUMENTS = "select count(*) from public.knowledge_documents"


class Waiting:
    """An AsyncKnowledgeWriter whose methods are called without await."""

    def __init__(self, writer: AsyncKnowledgeWriter, loop: asyncio.Runner) -> None:
        self.writer, self.loop = writer, loop

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self.writer, name)
        return lambda *arguments, **options: self.loop.run(method(*arguments, **options))


@pytest.fixture(params=["thread", "loop"])
def writer(request: pytest.FixtureRequest, service_role: Connection, dsn: str) -> Iterator[Any]:
    if request.param == "thread":
        yield KnowledgeWriter(service_role)
        return
    with asyncio.Runner() as loop:
        connection = loop.run(psycopg.AsyncConnection.connect(dsn, autocommit=True))
        yield Waiting(AsyncKnowledgeWriter(connection), loop)
        loop.run(connection.close())


@pytest.fixture
def corpus(writer: Any) -> UUID:
    document = {"external_key": "savanna", "title": "Savanna"}
    document_id: UUID = writer.upsert_document(document, SAVANNA).document_id
    return document_id


def test_an_upsert_counts_what_it_changed(writer: Any, corpus: UUID) -> None:
    changed: list[dict[str, object]] = [*SAVANNA[:1], {"content": "A zebra runs."}]
    counts = writer.upsert_document({"external_key": "savanna", "title": "Savanna"}, changed)
    assert counts == UpsertCounts(
        document_id=corpus,
        **{"chunks_added": 0, "chunks_changed": 1, "chunks_unchanged": 1, "chunks_removed": 1},
        **{"embeddings_reused": 0, "embeddings_missing": 1},
    )


@pytest.mark.parametrize("chunks", [None, "text", {"content": "text"}])
def test_chunks_that_are_no_list_are_refused_by_name(writer: Any, chunks: Any) -> None:
    message = "^chunks must be a list of chunks, not"
    with pytest.raises(errors.InvalidInputError, match=message) as refused:
        writer.upsert_document({"external_key": "one"}, chunks)
    assert "[] for a document without chunks" in (refused.value.remedy or "")


@pytest.mark.parametrize("embedding", [np.array([0.6, 0.8, 0], np.float32), Vector([0.6, 0.8, 0])])
def test_a_document_may_hold_pythons_own_values(writer: Any, embedding: Any) -> None:
    document = {"external_key": "a", "document_date": date(2024, 5, 1), "owner_id": uuid4()}
    chunk = {"content": "text", "embedding_model": "m", "embedding": embedding}
    counts = writer.upsert_document(document, [chunk])
    assert (counts.chunks_added, counts.embeddings_missing) == (1, 0)


SHORT = {"content": "a", "embedding_model": "m", "embedding": [1, 2]}


@pytest.mark.parametrize(
    ("document", "chunks", "kind"),
    [
        ({}, [], errors.InvalidInputError),
        ({"external_key": "a", "title": object()}, [], errors.InvalidInputError),
        ({"external_key": "a"}, [{"content": "a\x00"}], errors.InvalidInputError),
        ({"external_key": "a"}, [SHORT], errors.DimensionMismatchError),
    ],
)
def test_a_document_that_cannot_be_stored_is_refused(
    writer: Any, service_role: Connection, document: Any, chunks: Any, kind: type[Exception]
) -> None:
    with pytest.raises(kind) as caught:
        writer.upsert_document(document, chunks)
    assert type(caught.value) is kind
    assert caught.value.__cause__ is not None
    assert service_role.execute(DOCUMENTS).fetchone() == (0,)


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
    assert database.execute(DOCUMENTS).fetchone() == (0,)


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


# What fails by a deadlock or a serialization failure is tried again.

DOCUMENT = {"external_key": "doc"}
CHUNKS = [{"content": "text"}]


@contextmanager
def failing(owner: Connection, times: int, code: str) -> Iterator[None]:
    """Let the next writes of a document fail with that SQLSTATE."""
    owner.execute("create sequence public.attempts")
    owner.execute(
        f"""create function public.fail() returns trigger language plpgsql security definer as $$
            begin
              if nextval('public.attempts') <= {times} then
                raise exception 'a conflict' using errcode = '{code}';
              end if;
              return new;
            end $$""".encode()
    )
    owner.execute(
        "create trigger fail before insert on public.knowledge_documents"
        " for each row execute function public.fail()"
    )
    try:
        yield
    finally:
        owner.execute("drop function public.fail cascade")
        owner.execute("drop sequence public.attempts")


def pausing(connection: Connection, **options: Any) -> tuple[KnowledgeWriter, list[float]]:
    pauses: list[float] = []
    return KnowledgeWriter(connection, sleep=pauses.append, **options), pauses


@pytest.mark.parametrize("code", ["40P01", "40001"])
def test_a_writer_tries_again_after_a_random_pause(connect: Connect, code: str) -> None:
    writer, pauses = pausing(connect("service_role"))
    with failing(connect(), 3, code):
        assert writer.upsert_document(DOCUMENT, CHUNKS).chunks_added == 1
    assert len(pauses) == len(set(pauses)) == 3


def test_an_asynchronous_writer_tries_again(connect: Connect, dsn: str) -> None:
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    async def write() -> int:
        async with await psycopg.AsyncConnection.connect(dsn) as connection:
            writer = AsyncKnowledgeWriter(connection, sleep=pause)
            return (await writer.upsert_document(DOCUMENT, CHUNKS)).chunks_added

    with failing(connect(), 2, "40P01"):
        assert asyncio.run(write()) == 1
    assert len(pauses) == 2


def test_a_writer_gives_up_after_its_retries(connect: Connect) -> None:
    writer, pauses = pausing(connect("service_role"), retries=2)
    with failing(connect(), 9, "40001"), pytest.raises(errors.ConflictError):
        writer.upsert_document(DOCUMENT, CHUNKS)
    assert len(pauses) == 2


def test_a_transaction_of_the_callers_is_not_repeated(connect: Connect) -> None:
    connection = connect("service_role")
    writer, pauses = pausing(connection)
    with failing(connect(), 1, "40P01"):
        with connection.transaction(), pytest.raises(errors.ConflictError):
            writer.upsert_document(DOCUMENT, CHUNKS)
        assert pauses == []


def test_another_failure_is_not_tried_again(connect: Connect) -> None:
    writer, pauses = pausing(connect("service_role"))
    with failing(connect(), 1, "23514"), pytest.raises(Exception, match="not allowed"):
        writer.upsert_document(DOCUMENT, CHUNKS)
    assert pauses == []
