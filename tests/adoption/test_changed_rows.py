"""An update is carried over if it changes a column that the view of the adoption reads."""

import adopted
import psycopg
import pytest
from adopted import GUIDE, adopt, backfill, compare, contents, documents, faults, findings, reasons

from conftest import Connect, Connection
from second_brain.adoption import carrying
from second_brain.services.install import Database

pytestmark = [pytest.mark.module("adoption"), pytest.mark.usefixtures("both_ways")]


@pytest.fixture
def source(database: Connection) -> Connection:
    """An adopted table with a column that is not mapped, one of type json, and three rows."""
    database.execute(GUIDE)
    database.execute(
        "alter table public.documents add views integer not null default 0, add raw json"
    )
    adopt(database, options={"metadata": "raw"}, leave_out=["views"])
    database.execute(
        "insert into public.documents (content, raw)"
        " values ('one', '{\"a\": 1}'), ('two', null), ('three', null)"
    )
    return database


def lose(connection: Connection) -> None:
    """Delete the documents of the rows, to see which of them are carried over again."""
    connection.execute("delete from public.knowledge_documents")


def test_an_update_without_a_mapped_change_carries_nothing_over(source: Connection) -> None:
    lose(source)
    source.execute("update public.documents set views = views + 1")
    source.execute("update public.documents set content = content, raw = raw, title = null")
    assert documents(source) == {}


def test_of_a_statement_only_the_changed_rows_are_carried_over(source: Connection) -> None:
    lose(source)
    source.execute(
        "update public.documents set views = 5,"
        " content = case id when 2 then 'TWO' else content end,"
        " raw = case id when 1 then '{\"a\": 2}' else raw end"
    )
    assert contents(source) == {"documents/1": ["one"], "documents/2": ["TWO"]}
    assert documents(source)["documents/1"]["metadata"] == {"a": 2}


def test_a_column_that_a_trigger_of_the_table_changes_counts(source: Connection) -> None:
    source.execute(
        "create function public.shout() returns trigger language plpgsql as"
        " $$begin new.content := upper(new.content); return new; end$$;"
        " create trigger shout before update on public.documents"
        " for each row execute function public.shout()"
    )
    source.execute("update public.documents set views = 1 where id = 1")
    assert contents(source)["documents/1"] == ["ONE"]


def test_writes_inside_of_a_write_are_all_carried_over(source: Connection) -> None:
    """A trigger for each row updates other rows of the table before the statement has ended."""
    source.execute(
        "create function public.copy_on() returns trigger language plpgsql as $$begin"
        "  update public.documents set content = 'after ' || new.content where id = new.id + 1;"
        "  return null; end$$;"
        # Its name is after that of the trigger of the adoption.
        " create trigger zz_copy after update on public.documents for each row"
        "  when (new.id = 1) execute function public.copy_on()"
    )
    lose(source)
    source.execute("update public.documents set content = content || '!' where id = 1")
    assert contents(source) == {"documents/1": ["one!"], "documents/2": ["after one!"]}


def test_a_rolled_back_change_does_not_count_for_the_next_statement(source: Connection) -> None:
    lose(source)
    with source.transaction():
        with source.transaction(force_rollback=True):
            source.execute("update public.documents set content = 'gone'")
        source.execute("update public.documents set views = 2")
    assert documents(source) == {}
    source.execute("update public.documents set content = 'kept' where id = 1")
    assert contents(source) == {"documents/1": ["kept"]}


def test_rows_of_a_child_table_are_followed(source: Connection) -> None:
    source.execute("create table public.child () inherits (public.documents)")
    source.execute("insert into public.child (id, content) values (9, 'child')")
    backfill(source)
    source.execute("update public.documents set content = 'CHILD' where id = 9")
    assert contents(source)["documents/9"] == ["CHILD"]


def test_a_row_that_changes_its_partition_is_followed(database: Connection) -> None:
    database.execute(
        "create table public.pages (id int primary key, content text, views int default 0)"
        " partition by range (id);"
        " create table public.low partition of public.pages for values from (0) to (10);"
        " create table public.high partition of public.pages for values from (10) to (20)"
    )
    adopt(database, "public.pages", leave_out=["views"])
    database.execute("insert into public.pages values (1, 'one'), (2, 'two')")
    database.execute("update public.pages set id = 11 where id = 1")
    assert contents(database) == {"pages/11": ["one"], "pages/2": ["two"]}
    lose(database)
    database.execute("update public.pages set views = 1")
    assert documents(database) == {}
    database.execute("update public.pages set content = 'TWO' where id = 2")
    assert contents(database) == {"pages/2": ["TWO"]}


def test_a_large_statement_is_carried_over_in_batches(database: Connection) -> None:
    database.execute("create table public.notes (id int primary key, body text, n int)")
    adopt(database, "public.notes")
    database.execute(
        "insert into public.notes select n, 'Note ' || n, 0 from generate_series(1, 600) as n"
    )
    assert len(documents(database)) == 600
    database.execute("update public.notes set body = body || '.', id = id + 1000")
    assert compare(database, "notes").differences == 0
    database.execute("delete from public.notes where id > 1005")
    assert sorted(contents(database)) == [f"notes/{n}" for n in range(1001, 1006)]


WHOLE_ROWS = (
    "create view knowledge_internal.adopted_documents as"
    " select source.id as key_1, source.content, source.title,"
    " to_jsonb(source) - 'embedding' as metadata, 'knowledge' as collection,"
    " 'private' as visibility, 'other' as source_origin from public.documents as source"
)


def test_a_view_that_reads_whole_rows_follows_every_column(source: Connection) -> None:
    source.execute("drop view knowledge_internal.adopted_documents")
    source.execute(WHOLE_ROWS.encode())
    source.execute("select knowledge_internal.follow_table('documents')")
    source.execute("alter table public.documents add added text")
    source.execute("update public.documents set added = 'new' where id = 1")
    assert documents(source)["documents/1"]["metadata"]["added"] == "new"


def test_a_changed_view_is_reported_until_its_columns_are_followed(source: Connection) -> None:
    assert faults(source) == []
    source.execute("drop view knowledge_internal.adopted_documents")
    source.execute(WHOLE_ROWS.encode())
    (message,) = faults(source)
    assert "trigger adopted_documents_change on public.documents does not follow whole" in message
    compare(source, repair=True)
    assert faults(source) == []
    source.execute("update public.documents set views = 7 where id = 1")
    assert documents(source)["documents/1"]["metadata"]["views"] == 7
    source.execute("drop trigger adopted_documents_change on public.documents")
    assert "adopted_documents_change on public.documents does not exist" in faults(source)[0]


def test_a_column_of_the_view_can_be_renamed(source: Connection) -> None:
    source.execute("alter table public.documents rename content to words")
    source.execute("update public.documents set words = 'renamed' where id = 1")
    assert contents(source)["documents/1"] == ["renamed"]


@pytest.fixture
def noting(database: Connection) -> Connection:
    database.execute(GUIDE)
    adopt(database, is_later=True)
    database.execute("insert into public.documents (content) values ('one'), ('two'), (null)")
    return database


def work(connection: Connection, batch_size: int = 200) -> int:
    return carrying.carry_over_noted(Database(connection), batch_size=batch_size)


def noted(connection: Connection) -> int:
    return carrying.noted(Database(connection), "documents")[0]


def test_a_row_is_found_when_the_worker_has_been_there(noting: Connection) -> None:
    assert (documents(noting), noted(noting)) == ({}, 3)
    found = compare(noting)
    assert (found.differences, found.noted) == (0, 3)
    assert work(noting) == 3
    assert contents(noting) == {"documents/1": ["one"], "documents/2": ["two"]}
    assert reasons(noting) == {"3": "content is null"}
    noting.execute("update public.documents set content = 'ONE' where id = 1")
    noting.execute("update public.documents set content = 'One' where id = 1")
    # In place, the text is that of the table.
    assert contents(noting)["documents/1"] == ["One" if adopted.IN_PLACE else "one"]
    assert work(noting, batch_size=1) == 2
    assert contents(noting)["documents/1"] == ["One"]
    assert (work(noting), noted(noting), compare(noting).differences) == (0, 0, 0)


def test_deleted_rows_are_not_findable_from_then_on(noting: Connection) -> None:
    work(noting)
    noting.execute("delete from public.documents where id = 1")
    assert contents(noting) == {"documents/2": ["two"]}
    noting.execute("insert into public.documents (content) values ('late')")
    noting.execute("truncate public.documents")
    assert (documents(noting), noted(noting)) == ({}, 0)


def test_a_changed_key_deletes_the_document_of_the_old_one(database: Connection) -> None:
    database.execute("create table public.notes (id int primary key, content text)")
    adopt(database, "public.notes", is_later=True)
    database.execute("insert into public.notes values (1, 'one'), (2, 'two')")
    work(database)
    database.execute("update public.notes set id = 11 where id = 1")
    assert contents(database) == {"notes/2": ["two"]}
    work(database)
    assert contents(database) == {"notes/2": ["two"], "notes/11": ["one"]}


def test_an_update_without_a_mapped_change_is_not_noted(noting: Connection) -> None:
    work(noting)
    noting.execute("alter table public.documents add views integer")
    noting.execute("update public.documents set views = 1, content = content")
    assert noted(noting) == 0


def test_a_row_that_a_writer_holds_stays_noted(noting: Connection, connect: Connect) -> None:
    writer = connect()
    with writer.transaction():
        writer.execute("update public.documents set content = 'newer' where id = 1")
        assert work(noting) == 2
        assert contents(noting) == {"documents/2": ["two"]}
    assert work(noting) == 2
    assert contents(noting)["documents/1"] == ["newer"]


def test_two_workers_share_the_rows(noting: Connection, connect: Connect) -> None:
    other = connect()
    with other.transaction():
        (done,) = other.execute(
            "select knowledge_internal.carry_over_noted(most_rows => 2)"
        ).fetchone() or (0,)
        assert (done, work(noting)) == (2, 1)
    assert (noted(noting), compare(noting).differences) == (0, 0)


def test_an_adoption_at_once_leaves_nothing_noted(noting: Connection) -> None:
    adopt(noting)
    noting.execute("insert into public.documents (content) values ('at once')")
    assert contents(noting) == {"documents/4": ["at once"]}
    backfill(noting)
    assert work(noting) == 3
    assert compare(noting).differences == 0


def test_a_removed_adoption_leaves_nothing_noted(noting: Connection) -> None:
    carrying.remove(Database(noting), "documents")
    assert noting.execute("select from public.knowledge_adoption_changes").fetchall() == []


def test_the_doctor_reports_writes_that_nobody_carries_over(noting: Connection) -> None:
    noting.execute(
        "update public.knowledge_adoption_changes set noted_at = now() - '1 day'::interval"
    )
    ((status, message),) = findings(noting)
    assert (status, "3 noted writes are not carried over" in message) == ("warning", True)


def test_a_writer_needs_no_rights_on_the_notes(noting: Connection, connect: Connect) -> None:
    noting.execute("grant insert on public.documents to authenticated")
    user = connect("authenticated")
    user.execute("insert into public.documents (content) values ('mine')")
    assert noted(noting) == 4
    for statement in (
        "select from public.knowledge_adoption_changes",
        "select knowledge_internal.carry_over_noted()",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            user.execute(statement.encode())
