"""Writers, deletions and purges at the same time."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier
from typing import Any
from uuid import UUID

import pytest
from stored import Documents

from conftest import Connect
from support.emptied import dsn as dsn
from waiting import await_lock_of

ME = str(UUID(int=1))
PURGE = "select public.purge_knowledge_chunks(older_than => '0')"
DELETE_OWNER = f"select * from public.delete_knowledge_owner('{ME}')"


@pytest.fixture
def writers(connect: Connect) -> list[Documents]:
    return [Documents(connect("service_role")) for _ in range(4)]


def at_once(tasks: Sequence[Callable[[], object]]) -> list[Any]:
    """Run tasks in threads that start together; raise what one of them raises."""
    barrier = Barrier(len(tasks))

    def run(task: Callable[[], object]) -> object:
        barrier.wait(timeout=30)
        return task()

    with ThreadPoolExecutor(len(tasks)) as threads:
        return list(threads.map(run, tasks))


def one_consistent_version(documents: Documents) -> list[str]:
    """Check that one document has one active chunk in each place; return the contents."""
    ((stored, orphans),) = documents.rows(
        "select (select count(*) from public.knowledge_documents), count(*)"
        "  from public.knowledge_chunks as chunk where not exists"
        "  (select from public.knowledge_documents as parent where parent.id = chunk.document_id)"
    )
    assert stored <= 1
    assert orphans == 0
    return documents.contents()


def test_writers_of_the_same_content_store_it_once(writers: list[Documents]) -> None:
    chunks = ["one", "two", "two", "three"]
    counts = at_once([partial(one.counts, chunks) for one in writers])
    assert sorted(counts) == [(0, 0, 4, 0)] * 3 + [(4, 0, 0, 0)]
    assert one_consistent_version(writers[0]) == chunks
    assert writers[0].chunks(status="superseded") == []


def test_writers_of_different_contents_leave_one_of_them_whole(writers: list[Documents]) -> None:
    versions = [
        [f"{writer} {place}" for place in range(3 + writer)] + ["shared"] for writer in range(4)
    ]
    for _ in range(5):
        pairs = zip(writers, versions, strict=True)
        at_once([partial(one.upsert, chunks, title=chunks[0]) for one, chunks in pairs])
        found = one_consistent_version(writers[0])
        assert found in versions
        assert {row["heading"] for row in writers[0].chunks()} == {found[0]}


def test_writers_and_a_deletion_do_not_leave_half_a_document(writers: list[Documents]) -> None:
    versions = [[f"{writer} {place}" for place in range(4)] for writer in range(2)]
    deletions = ["select public.delete_knowledge_document('doc')", DELETE_OWNER]

    def write(documents: Documents, chunks: list[str]) -> None:
        for _ in range(10):
            documents.upsert(chunks, owner_id=ME)

    def delete(documents: Documents, statement: str) -> None:
        for _ in range(10):
            documents.rows(statement)

    for _ in range(2):
        writing = [partial(write, *one) for one in zip(writers[:2], versions, strict=True)]
        at_once(
            writing + [partial(delete, *one) for one in zip(writers[2:], deletions, strict=True)]
        )
        assert one_consistent_version(writers[0]) in [*versions, []]
    writers[0].upsert(["last"])
    assert one_consistent_version(writers[0]) == ["last"]


def test_a_purge_waits_for_nobody(writers: list[Documents]) -> None:
    first, second, *_ = writers
    first.upsert(["one", "two"])
    first.upsert(["three"])
    second.rows("set lock_timeout = '60s'")
    with first.connection.transaction():
        first.rows("select from public.knowledge_chunks where content = 'one' for update")
        assert second.rows(PURGE) == [(1,)]
    assert second.rows(PURGE) == [(1,)]


def test_writers_and_purges_do_not_deadlock(writers: list[Documents]) -> None:
    def write(documents: Documents, writer: int) -> None:
        for edit in range(40):
            texts = [f"{writer} {edit} {place}" for place in range(8)]
            documents.upsert(texts, str(edit % 2), metadata={"edit": edit})

    def purge(documents: Documents) -> None:
        for _ in range(80):
            documents.rows(PURGE)

    writing = [partial(write, one, writer) for writer, one in enumerate(writers[:2])]
    at_once(writing + [partial(purge, one) for one in writers[2:]])
    assert len(writers[0].contents("0")) == 8


def test_a_second_writer_waits_for_the_first(connect: Connect, writers: list[Documents]) -> None:
    first, second, *_ = writers
    with ThreadPoolExecutor(1) as threads:
        with first.connection.transaction():
            first.upsert(["one", "two"])
            waiting = threads.submit(second.counts, ["one", "three"])
            await_lock_of(connect(), second.connection)
        assert waiting.result(timeout=30) == (0, 1, 1, 0)
    assert one_consistent_version(first) == ["one", "three"]


def test_a_document_that_comes_during_a_deletion_of_its_owner_stays_whole(
    connect: Connect, writers: list[Documents]
) -> None:
    first, second, deleting, _ = writers
    first.upsert(["one"], key="old", owner_id=ME)
    with ThreadPoolExecutor(1) as threads:
        with first.connection.transaction():
            first.upsert(["two"], key="old", owner_id=ME)
            waiting = threads.submit(deleting.rows, DELETE_OWNER)
            await_lock_of(connect(), deleting.connection)
            second.upsert(["three", "four"], key="new", owner_id=ME)
        assert waiting.result(timeout=30) == [(1, 2)]
    assert first.contents("old") == []
    assert first.contents("new") == ["three", "four"]
