"""Rows that cannot be carried over: the write of the table succeeds, and they are listed."""

import threading

import psycopg
import pytest
from adopted import GUIDE, adopt, backfill, compare, contents, documents, reasons

from conftest import Connect, Connection

pytestmark = [pytest.mark.module("adoption"), pytest.mark.usefixtures("both_ways")]


@pytest.fixture
def source(database: Connection) -> Connection:
    """A database with an adopted table of any metadata, owner and date."""
    database.execute(
        "create table public.documents (id int primary key, content text, metadata jsonb,"
        " owner_text text, embedding extensions.vector)"
    )
    adopt(database, options={"owner": "owner_text"})
    return database


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("content", None, "content is null"),
        ("metadata", "[1]", "document.metadata must be a JSON object"),
        ("metadata", '{"n": 1e400}', "number beyond"),
        ("owner_text", "nobody", "document.owner_id must be a UUID"),
        ("embedding", "[1,2]", "dimensions"),
    ],
)
def test_a_wrong_row_is_listed_and_the_others_are_stored(
    source: Connection, column: str, value: str | None, reason: str
) -> None:
    source.execute("insert into public.documents (id, content) values (1, 'a'), (2, 'b'), (3, 'c')")
    assert len(documents(source)) == 3
    kind = {"metadata": "jsonb", "embedding": "extensions.vector"}.get(column, "text")
    assignment = (
        "content = case id when 2 then %s else content || '!' end"
        if column == "content"
        else f"content = content || '!', {column} = (case id when 2 then %s end)::{kind}"
    )
    source.execute(f"update public.documents set {assignment}".encode(), [value])
    assert contents(source) == {"documents/1": ["a!"], "documents/3": ["c!"]}
    assert list(reasons(source)) == ["2"]
    assert reason in reasons(source)["2"]
    found = compare(source)
    assert found.differences == 0
    assert len(found.problems) == 1


def test_the_stale_document_of_a_row_that_became_wrong_is_deleted(source: Connection) -> None:
    source.execute("insert into public.documents (id, content) values (1, 'a'), (2, 'b')")
    source.execute("update public.documents set metadata = '7' where id = 1")
    assert list(documents(source)) == ["documents/2"]
    assert "metadata" in reasons(source)["1"]
    source.execute("update public.documents set metadata = '{}' where id = 1")
    assert sorted(documents(source)) == ["documents/1", "documents/2"]
    assert reasons(source) == {}


def test_a_backfill_lists_wrong_rows_and_ends(database: Connection) -> None:
    database.execute(GUIDE)
    database.execute(
        "insert into public.documents (content) select case when n % 3 > 0 then 'text ' || n end"
        " from generate_series(1, 30) as n"
    )
    adopt(database)
    done = backfill(database, batch_size=7)
    assert done.stored == 20
    assert set(reasons(database).values()) == {"content is null"}
    assert compare(database).differences == 0


@pytest.mark.parametrize("wrong", [1, 17, 40])
def test_one_wrong_row_of_a_statement_is_found_among_many(source: Connection, wrong: int) -> None:
    source.execute(
        "insert into public.documents (id, content, metadata)"
        " select n, 'text ' || n, case n when %s then '[]'::jsonb end"
        "  from generate_series(1, 40) as n",
        [wrong],
    )
    assert list(reasons(source)) == [str(wrong)]
    assert len(documents(source)) == 39
    assert compare(source).differences == 0


def test_a_key_that_is_too_long_is_listed(database: Connection) -> None:
    database.execute("create table public.notes (id text primary key, content text)")
    adopt(database, "public.notes")
    database.execute("insert into public.notes values (repeat('k', 5000), 'long'), ('k', 'short')")
    assert contents(database) == {"notes/k": ["short"]}
    (reason,) = reasons(database, "notes").values()
    assert "external_key" in reason


def test_a_view_that_fails_breaks_no_write(source: Connection) -> None:
    source.execute("insert into public.documents (id, content) values (1, 'a')")
    source.execute("drop view knowledge_internal.adopted_documents")
    source.execute("update public.documents set content = 'b' where id = 1")
    assert documents(source) == {}
    assert "does not exist" in reasons(source)["1"]


def test_a_write_that_is_rolled_back_leaves_nothing(source: Connection) -> None:
    with source.transaction(force_rollback=True):
        source.execute("insert into public.documents (id, content) values (1, null), (2, 'b')")
        assert list(documents(source)) == ["documents/2"]
    assert documents(source) == {}
    assert reasons(source) == {}


def test_a_timeout_ends_the_write_and_lists_nothing(source: Connection, connect: Connect) -> None:
    source.execute("insert into public.documents (id, content) values (1, 'a')")
    with connect().transaction():
        source.execute("select 1")
    holder = connect()
    with holder.transaction(force_rollback=True):
        holder.execute("select from public.knowledge_documents for update")
        source.execute("set lock_timeout = '200ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            source.execute("update public.documents set content = 'b'")
        source.execute("set lock_timeout = 0; set statement_timeout = '200ms'")
        with pytest.raises(psycopg.errors.QueryCanceled):
            source.execute("update public.documents set content = 'b'")
    source.execute("set statement_timeout = 0")
    assert reasons(source) == {}
    assert contents(source) == {"documents/1": ["a"]}


def test_a_serialization_failure_reaches_the_writer(source: Connection, connect: Connect) -> None:
    source.execute("insert into public.documents (id, content) values (1, 'a')")
    first, second = connect(), connect()
    for one in (first, second):
        one.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    with first.transaction():
        first.execute("select from public.documents")
        second.execute("update public.knowledge_documents set title = 'changed'")
        with pytest.raises(psycopg.errors.SerializationFailure), first.transaction():
            first.execute("update public.documents set content = 'b'")
    assert reasons(source) == {}


def test_a_deadlock_ends_one_of_the_writes_and_the_corpus_is_equal(
    source: Connection, connect: Connect
) -> None:
    source.execute("insert into public.documents (id, content) values (1, 'a'), (2, 'b')")
    first, second = connect(), connect()
    outcomes: list[str] = []

    def write(connection: Connection, key: int) -> None:
        try:
            connection.execute(
                "update public.documents set content = content || 'x' where id = %s", [key]
            )
            connection.commit()
            outcomes.append("committed")
        except psycopg.errors.DeadlockDetected:
            connection.rollback()
            outcomes.append("deadlock")

    for one, key in ((first, 1), (second, 2)):
        one.autocommit = False
        one.execute("update public.documents set content = content || 'y' where id = %s", [key])
    threads = [threading.Thread(target=write, args=given) for given in ((first, 2), (second, 1))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["committed", "deadlock"]
    assert reasons(source) == {}
    assert compare(source).differences == 0


def test_a_row_is_carried_over_without_an_address_that_no_citation_may_lead_to(
    database: Connection,
) -> None:
    database.execute("create table public.documents (id int primary key, content text, url text)")
    adopt(database)
    database.execute("insert into public.documents values (1, 'a', 'javascript:x'), (2, 'b', '/p')")
    assert {key: one["source_url"] for key, one in documents(database).items()} == {
        "documents/1": None,
        "documents/2": "/p",
    }
    assert "source_url is no address" in reasons(database)["1"]
    assert compare(database).differences == 0
