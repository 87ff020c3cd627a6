"""An update is carried over if it changes a column that the view of the adoption reads."""

import pytest
from adopted import GUIDE, adopt, backfill, compare, contents, documents, faults

from conftest import Connection

pytestmark = pytest.mark.module("adoption")


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
    assert faults(source) == []
    source.execute("alter table public.documents add added text")
    source.execute("update public.documents set added = 'new' where id = 1")
    assert documents(source)["documents/1"]["metadata"]["added"] == "new"


def test_a_column_of_the_view_can_be_renamed(source: Connection) -> None:
    source.execute("alter table public.documents rename content to words")
    source.execute("update public.documents set words = 'renamed' where id = 1")
    assert contents(source)["documents/1"] == ["renamed"]
