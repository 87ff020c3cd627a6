"""Deletion and purge of documents, owners and superseded chunks, and writers at the same time."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier
from typing import Any, LiteralString
from uuid import UUID

import psycopg
import pytest
from stored import Documents
from stored import documents as documents

from conftest import Connect, Connection
from support.documents import upsert
from support.emptied import dsn as dsn
from waiting import await_lock_of

ME, YOU = str(UUID(int=1)), str(UUID(int=2))
PURGE = "select public.purge_knowledge_chunks(older_than => '0')"
DELETE_OWNER = f"select * from public.delete_knowledge_owner('{ME}')"


def test_a_deleted_document_takes_all_its_chunks_along(documents: Documents) -> None:
    documents.upsert(["one", "two"])
    documents.upsert(["one", "2"])
    documents.upsert(["other"], key="other")
    delete = "select public.delete_knowledge_document(document_key => %s)"
    assert documents.rows(delete, "doc") == [(3,)]
    assert documents.rows(delete, "doc") == [(0,)]
    assert documents.contents("doc") == []
    assert documents.contents("other") == ["other"]
    assert len(documents.everything()) == 2
    assert documents.counts(["one"]) == (1, 0, 0, 0)


def test_a_deleted_owner_leaves_nothing_of_theirs(documents: Documents) -> None:
    for key, owner, texts in (
        ("a", ME, ["one"]),
        ("b", ME, ["two", "three"]),
        ("b", ME, ["two"]),
        ("c", YOU, ["yours"]),
        ("d", None, ["nobody's"]),
    ):
        documents.upsert(texts, key, owner_id=owner)
    insert = "insert into public.knowledge_chunks (content, owner_id) values ('loose', %s)"
    documents.rows(insert, ME)
    delete = "select * from public.delete_knowledge_owner(owner => %s)"
    assert documents.rows(delete, ME) == [(2, 4)]
    assert documents.rows(delete, ME) == [(0, 0)]
    left = documents.rows("select content from public.knowledge_chunks order by 1")
    assert left == [("nobody's",), ("yours",)]


def test_a_deleted_owner_leaves_no_old_version_in_a_document_of_somebody_else(
    documents: Documents,
) -> None:
    for content, owner in (("old", ME), ("new", ME), ("new", YOU)):
        documents.upsert([content], owner_id=owner)
    owners = "select owner_id::text, status from public.knowledge_chunks order by owner_id"
    assert documents.rows(owners) == [(ME, "superseded"), (YOU, "active")]
    documents.rows("select public.delete_knowledge_owner(%s)", ME)
    assert documents.rows(owners) == [(YOU, "active")]


def test_a_row_that_holds_the_whole_document_is_left_alone(documents: Documents) -> None:
    documents.upsert(["one", "two"])
    documents.rows(
        "insert into public.knowledge_chunks (document_id, collection, content)"
        " select id, 'artifacts', 'one two' from public.knowledge_documents"
    )
    documents.upsert(["one", "three"])
    assert {row["content"] for row in documents.chunks()} == {"one", "three", "one two"}


def test_a_purge_removes_what_was_superseded_long_enough_ago(
    documents: Documents, database: Connection
) -> None:
    documents.upsert(["old", "recent", "kept"])
    documents.upsert(["2", "recent", "kept"])
    database.execute("alter table public.knowledge_chunks disable trigger complete_chunk")
    database.execute(
        "update public.knowledge_chunks set updated_at = now() - interval '31 days'"
        " where content in ('old', 'kept')"
    )
    database.execute("alter table public.knowledge_chunks enable trigger complete_chunk")
    # A document that goes on changing does not keep its old chunks alive.
    documents.upsert(["2", "3", "kept"], metadata={"synced": 1})
    purge = "select public.purge_knowledge_chunks()"
    assert documents.rows(purge) == [(1,)]
    assert documents.rows(purge) == [(0,)]
    assert [row["content"] for row in documents.chunks(status="superseded")] == ["recent"]
    assert documents.rows(PURGE) == [(1,)]
    assert documents.contents() == ["2", "3", "kept"]


@pytest.mark.parametrize(
    ("call", "named"),
    [
        ("delete_knowledge_document(null)", "document_key"),
        ("delete_knowledge_owner(null)", "owner"),
        ("purge_knowledge_chunks(null)", "older_than"),
        ("purge_knowledge_chunks('-1 day')", "older_than"),
        ("purge_knowledge_chunks('100000 years')", "older_than"),
    ],
)
def test_a_deletion_refuses_by_name(documents: Documents, call: str, named: str) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=f"^{named} "):
        documents.rows(f"select public.{call}")


@pytest.mark.module("words")
@pytest.mark.parametrize(
    "delete",
    [
        "select public.delete_knowledge_document('a')",
        "delete from public.knowledge_chunks where content like 'the merger%'",
        "delete from public.knowledge_documents where external_key in ('a', 'b')",
        "update public.knowledge_chunks set content = 'x' where content like 'the merger%'",
        "select public.upsert_knowledge_document('{\"external_key\": \"a\"}', '[]')",
    ],
)
def test_a_word_stays_known_while_a_chunk_has_it(
    knowledge: Connection, delete: LiteralString
) -> None:
    upsert(knowledge, "a", "the merger with quixotronics", "zebra giraffe")
    upsert(knowledge, "b", "quixotronics plans", "zebra lions")
    upsert(knowledge, "c", "plans of lions", "giraffe and quixotronics")
    knowledge.execute("analyze public.knowledge_chunks")
    knowledge.execute(delete)
    words = {word for (word,) in knowledge.execute("select word from public.knowledge_words")}
    assert {"quixotronics", "plans", "lions", "giraffe"} <= words


# Writers, deletions and purges at the same time.


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
