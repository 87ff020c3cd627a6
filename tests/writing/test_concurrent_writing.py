"""Writers, deletions and purges at the same time."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier
from typing import Any
from uuid import UUID

from stored import chunks_of, contents, counts, dsn, upsert

from conftest import Connect, Connection
from waiting import await_lock_of

__all__ = ["dsn"]  # a fixture

ME, YOU = UUID(int=1), UUID(int=2)


def at_once(tasks: Sequence[Callable[[], object]]) -> list[Any]:
    """Run tasks in threads that start together; raise what one of them raises."""
    barrier = Barrier(len(tasks))

    def run(task: Callable[[], object]) -> object:
        barrier.wait(timeout=30)
        return task()

    with ThreadPoolExecutor(len(tasks)) as threads:
        return list(threads.map(run, tasks))


def one_consistent_version(connection: Connection) -> list[str]:
    """Check that one document has one active chunk in each place; return the contents."""
    ((documents,),) = connection.execute(
        "select count(*) from public.knowledge_documents"
    ).fetchall()
    assert documents <= 1
    ((orphans,),) = connection.execute(
        "select count(*) from public.knowledge_chunks as chunk where not exists"
        " (select from public.knowledge_documents as parent where parent.id = chunk.document_id)"
    ).fetchall()
    assert orphans == 0
    return contents(connection)


def test_writers_of_the_same_content_store_it_once(connect: Connect) -> None:
    connections = [connect("service_role") for _ in range(4)]
    chunks = ["one", "two", "two", "three"]
    rows = at_once([partial(upsert, one, chunks) for one in connections])
    assert sorted(counts(row) for row in rows) == [(0, 0, 4, 0)] * 3 + [(4, 0, 0, 0)]
    assert one_consistent_version(connections[0]) == chunks
    assert chunks_of(connections[0], status="superseded") == []


def test_writers_of_different_contents_leave_one_of_them_whole(connect: Connect) -> None:
    connections = [connect("service_role") for _ in range(4)]
    versions = [
        [f"{writer} {place}" for place in range(3 + writer)] + ["shared"] for writer in range(4)
    ]
    for _ in range(5):
        at_once(
            [
                partial(upsert, one, chunks, title=chunks[0])
                for one, chunks in zip(connections, versions, strict=True)
            ]
        )
        found = one_consistent_version(connections[0])
        assert found in versions
        assert {row["heading"] for row in chunks_of(connections[0])} == {found[0]}


def test_writers_and_a_deletion_do_not_leave_half_a_document(connect: Connect) -> None:
    connections = [connect("service_role") for _ in range(4)]
    versions = [[f"{writer} {place}" for place in range(4)] for writer in range(2)]
    deletions = [
        "select public.delete_knowledge_document('doc')",
        f"select * from public.delete_knowledge_owner('{ME}')",
    ]

    def write(connection: Connection, chunks: list[str]) -> None:
        for _ in range(10):
            upsert(connection, chunks, owner_id=str(ME))

    def delete(connection: Connection, statement: str) -> None:
        for _ in range(10):
            connection.execute(statement.encode())

    for _ in range(2):
        writers = zip(connections[:2], versions, strict=True)
        deleters = zip(connections[2:], deletions, strict=True)
        at_once(
            [partial(write, *one) for one in writers] + [partial(delete, *one) for one in deleters]
        )
        assert one_consistent_version(connections[0]) in [*versions, []]
    upsert(connections[0], ["last"])
    assert one_consistent_version(connections[0]) == ["last"]


def test_a_purge_waits_for_nobody(connect: Connect) -> None:
    first, second = connect("service_role"), connect("service_role")
    upsert(first, ["one", "two"])
    upsert(first, ["three"])
    second.execute("set lock_timeout = '60s'")
    purge = "select public.purge_knowledge_chunks(older_than => '0')"
    with first.transaction():
        first.execute("select from public.knowledge_chunks where content = 'one' for update")
        assert second.execute(purge).fetchall() == [(1,)]
    assert second.execute(purge).fetchall() == [(1,)]


def test_writers_and_purges_do_not_deadlock(connect: Connect) -> None:
    connections = [connect("service_role") for _ in range(4)]

    def write(connection: Connection, writer: int) -> None:
        for edit in range(40):
            upsert(
                connection,
                [f"{writer} {edit} {place}" for place in range(8)],
                key=str(edit % 2),
                metadata={"edit": edit},
            )

    def purge(connection: Connection) -> None:
        for _ in range(80):
            connection.execute("select public.purge_knowledge_chunks(older_than => '0')")

    at_once(
        [partial(write, one, writer) for writer, one in enumerate(connections[:2])]
        + [partial(purge, one) for one in connections[2:]]
    )
    assert len(contents(connections[0], "0")) == 8


def test_a_second_writer_waits_for_the_first(connect: Connect) -> None:
    first, second, watching = connect("service_role"), connect("service_role"), connect()
    with ThreadPoolExecutor(1) as threads:
        with first.transaction():
            upsert(first, ["one", "two"])
            waiting = threads.submit(upsert, second, ["one", "three"])
            await_lock_of(watching, second)
        assert counts(waiting.result(timeout=30)) == (0, 1, 1, 0)
    assert one_consistent_version(first) == ["one", "three"]


def test_a_document_that_comes_during_a_deletion_of_its_owner_stays_whole(connect: Connect) -> None:
    first, second, deleting, watching = (*(connect("service_role") for _ in range(3)), connect())
    upsert(first, ["one"], key="old", owner_id=str(ME))
    with ThreadPoolExecutor(1) as threads:
        with first.transaction():
            upsert(first, ["two"], key="old", owner_id=str(ME))
            delete = f"select * from public.delete_knowledge_owner('{ME}')"
            waiting = threads.submit(deleting.execute, delete.encode())
            await_lock_of(watching, deleting)
            upsert(second, ["three", "four"], key="new", owner_id=str(ME))
        assert waiting.result(timeout=30).fetchall() == [(1, 2)]
    assert contents(first, "old") == []
    assert contents(first, "new") == ["three", "four"]
