"""An update is carried over if it changes a column that the view of the adoption reads."""

import pytest
from adopted import GUIDE, adopt, compare, contents, documents, faults

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


SHOUT = """
create function public.shout() returns trigger language plpgsql as
$$begin new.content := upper(new.content); return new; end$$;
create trigger shout before update on public.documents
for each row execute function public.shout();
"""
# A trigger for each row updates other rows of the table before the statement has ended. Its name is
# after that of the trigger of the adoption.
NESTED = """
create function public.copy_on() returns trigger language plpgsql as $$begin
  update public.documents set content = 'after ' || new.content where id = new.id + 1;
  return null; end$$;
create trigger zz_copy after update on public.documents for each row
when (new.id = 1) execute function public.copy_on();
"""
CHILD = """
create table public.child () inherits (public.documents);
insert into public.child (id, content) values (9, 'child');
"""
WHOLE_ROWS = """
drop view knowledge_internal.adopted_documents;
create view knowledge_internal.adopted_documents as
select source.id as key_1, source.content, source.title,
       to_jsonb(source) - 'embedding' as metadata, 'knowledge' as collection,
       'private' as visibility, 'other' as source_origin from public.documents as source;
alter table public.documents add added text;
"""
RENAMED = "alter table public.documents rename content to words"
SET = "update public.documents set "
# What was done before, a statement, and the texts of the rows that it carries over.
CHANGES = {
    "no mapped column": ("", f"{SET} views = views + 1", {}),
    "the same values": ("", f"{SET} content = content, raw = raw, title = null", {}),
    "some rows": (
        "",
        f"{SET} views = 5, content = case id when 2 then 'TWO' else content end,"
        " raw = case id when 1 then '{\"a\": 2}' else raw end",
        {1: "one", 2: "TWO"},
    ),
    "a trigger of the table": (SHOUT, f"{SET} views = 1 where id = 1", {1: "ONE"}),
    "a write inside": (
        NESTED, f"{SET} content = content || '!' where id = 1", {1: "one!", 2: "after one!"},
    ),
    "a row of a child table": (CHILD, f"{SET} content = 'CHILD' where id = 9", {9: "CHILD"}),
    "a view of whole rows": (WHOLE_ROWS, f"{SET} added = 'new' where id = 1", {1: "one"}),
    "a renamed column": (RENAMED, f"{SET} words = 'new' where id = 1", {1: "new"}),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_the_rows_that_a_statement_changes_are_carried_over(
    source: Connection, change: str
) -> None:
    setup, statement, expected = CHANGES[change]
    source.execute(setup.encode())
    assert faults(source) == []
    lose(source)
    source.execute(statement.encode())
    assert contents(source) == {f"documents/{key}": [text] for key, text in expected.items()}
    if change == "some rows":
        assert documents(source)["documents/1"]["metadata"] == {"a": 2}
    elif change == "a view of whole rows":
        assert documents(source)["documents/1"]["metadata"]["added"] == "new"


def test_a_rolled_back_change_does_not_count_for_the_next_statement(source: Connection) -> None:
    lose(source)
    with source.transaction():
        with source.transaction(force_rollback=True):
            source.execute("update public.documents set content = 'gone'")
        source.execute("update public.documents set views = 2")
    assert documents(source) == {}
    source.execute("update public.documents set content = 'kept' where id = 1")
    assert contents(source) == {"documents/1": ["kept"]}


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
