"""Writers that meet a deadlock or a serialization failure try again."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from stored import dsn

from conftest import Connect, Connection
from second_brain.errors import ConflictError
from second_brain.services.write import AsyncKnowledgeWriter, KnowledgeWriter

__all__ = ["dsn"]  # a fixture

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


@pytest.mark.parametrize("code", ["40P01", "40001"])
def test_a_writer_tries_again_after_a_random_pause(connect: Connect, code: str) -> None:
    pauses: list[float] = []
    with failing(connect(), 3, code):
        counts = KnowledgeWriter(connect("service_role"), sleep=pauses.append).upsert_document(
            DOCUMENT, CHUNKS
        )
    assert counts.chunks_added == 1
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
    pauses: list[float] = []
    writer = KnowledgeWriter(connect("service_role"), retries=2, sleep=pauses.append)
    with failing(connect(), 9, "40001"), pytest.raises(ConflictError):
        writer.upsert_document(DOCUMENT, CHUNKS)
    assert len(pauses) == 2


def test_a_transaction_of_the_callers_is_not_repeated(connect: Connect) -> None:
    pauses: list[float] = []
    connection = connect("service_role")
    writer = KnowledgeWriter(connection, sleep=pauses.append)
    with failing(connect(), 1, "40P01"):
        with connection.transaction(), pytest.raises(ConflictError):
            writer.upsert_document(DOCUMENT, CHUNKS)
        assert pauses == []


def test_another_failure_is_not_tried_again(connect: Connect) -> None:
    pauses: list[float] = []
    writer = KnowledgeWriter(connect("service_role"), sleep=pauses.append)
    with failing(connect(), 1, "23514"), pytest.raises(Exception, match="not allowed"):
        writer.upsert_document(DOCUMENT, CHUNKS)
    assert pauses == []
