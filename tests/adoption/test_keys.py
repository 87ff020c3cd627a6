"""Keys of each kind, hostile names, and the identity of a document."""

from typing import Any
from uuid import UUID

import pytest
from adopted import adopt, backfill, compare, contents, documents
from psycopg import sql

from conftest import Connection
from second_brain.errors import ConfigurationError
from second_brain.services.results import source_key

pytestmark = pytest.mark.module("adoption")


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("bigint", 9007199254740993, 9007199254740993),
        ("smallint", -1, -1),
        ("uuid", UUID(int=7), UUID(int=7)),
        ("text", "a/b%2Fc ü '\"\\", "a/b%2Fc ü '\"\\"),
        ("varchar(20)", "x", "x"),
    ],
)
def test_a_key_of_each_type_is_found_again_with_its_type(
    database: Connection, kind: str, value: Any, expected: Any
) -> None:
    database.execute(f"create table public.notes (id {kind} primary key, content text)".encode())
    database.execute("insert into public.notes values (%s, 'Before the adoption.')", [value])
    adopt(database, "public.notes")
    # A writer with other settings has the same keys.
    database.execute("set datestyle = 'German'; set timezone = 'Asia/Tokyo'")
    assert backfill(database, "notes") == 1
    database.execute("update public.notes set content = 'After it.'")
    database.execute("reset datestyle; reset timezone")
    (row,) = documents(database).values()
    assert source_key(row["source_row"]) == {"id": expected}
    assert row["chunks"][0]["content"] == "After it."
    assert compare(database, "notes").differences == 0
    database.execute("delete from public.notes")
    assert documents(database) == {}


def test_a_key_of_another_type_ends_no_search(database: Connection) -> None:
    database.execute(
        "create table public.notes (slug text primary key, id int unique not null, content text,"
        " embedding extensions.vector(3));"
        "insert into public.notes values ('a', 1, 'one', '[1,0,0]')"
    )
    search = (
        "select content from public.hybrid_search_knowledge_chunks("
        "query_embedding => '[1,0,0]', query_text => 'one')"
    )
    for key in ("slug", "id", "slug"):
        adopt(database, "public.notes", options={"key": key})
        assert database.execute(search.encode()).fetchall() in ([], [("one",)])
        compare(database, "notes", repair=True)
        assert database.execute(search.encode()).fetchall() == [("one",)]
        assert compare(database, "notes").differences == 0


def test_a_changed_key_moves_the_document(database: Connection) -> None:
    database.execute("create table public.notes (id int primary key, content text)")
    adopt(database, "public.notes")
    database.execute("insert into public.notes values (1, 'one'), (2, 'two'), (3, 'three')")
    database.execute("update public.notes set id = id + 10 where id < 3")
    moved = {"notes/3": ["three"], "notes/11": ["one"], "notes/12": ["two"]}
    assert contents(database) == moved
    # Two rows that swap their keys.
    database.execute(
        "alter table public.notes drop constraint notes_pkey;"
        "alter table public.notes add primary key (id) deferrable;"
        "update public.notes set id = case id when 11 then 12 else 11 end where id > 9"
    )
    assert contents(database)["notes/11"] == ["two"]
    assert compare(database, "notes").differences == 0


@pytest.mark.parametrize(
    "name",
    [
        *("with space", 'quote"quote', "it's", "percent%s%(x)s%%", "brace{x}{}", "ünïcödé"),
        *("x" * 63, "line\nbreak; drop table x --", "$$dollar$$", "select", "Upper", "back\\slash"),
    ],
)
def test_tables_and_columns_may_have_any_name(database: Connection, name: str) -> None:
    table, title = sql.Identifier("public", name), "t" + name[:62]
    create = sql.SQL("create table {} ({} text primary key, content text, {} text)")
    database.execute(create.format(table, sql.Identifier(name), sql.Identifier(title)))
    adopted = adopt(database, table.as_string(None), options={"title": title}, name="odd")
    for statement in (
        "insert into {} values ('1', 'Old.', 'Title'), ('2', 'Gone.', null)",
        "update {} set content = 'New.' where content = 'Old.'",
        "delete from {} where content = 'Gone.'",
    ):
        database.execute(sql.SQL(statement).format(table))
    (row,) = documents(database).values()
    assert (row["title"], row["chunks"][0]["content"]) == ("Title", "New.")
    assert source_key(row["source_row"]) == {name: "1"}
    assert compare(database, adopted).differences == 0
    assert backfill(database, adopted) == 0


def test_a_document_with_the_same_external_key_is_not_replaced(database: Connection) -> None:
    database.execute(
        "insert into public.knowledge_documents (external_key, title) values ('notes/1', 'Mine')"
    )
    database.execute("create table public.notes (id int primary key, content text)")
    adopt(database, "public.notes")
    database.execute("insert into public.notes values (1, 'one'), (2, 'two')")
    assert list(documents(database)) == ["notes/2"]
    (problem,) = compare(database, "notes").problems
    assert "another document has the external_key notes/1" in problem.reason
    database.execute("delete from public.notes")
    kept = database.execute("select title from public.knowledge_documents").fetchall()
    assert kept == [("Mine",)]


def test_two_adoptions_of_a_table_have_documents_of_their_own(database: Connection) -> None:
    database.execute("create table public.notes (id int primary key, content text, other text)")
    adopt(database, "public.notes")
    adopt(database, "public.notes", options={"content": "other"}, name="others")
    database.execute("insert into public.notes values (1, 'content', 'other')")
    assert contents(database) == {"notes/1": ["content"], "others/1": ["other"]}
    assert compare(database, "notes").differences == compare(database, "others").differences == 0


@pytest.mark.parametrize(
    ("key", "option"),
    [
        ("id uuid default gen_random_uuid()", None),
        ("id bigint default nextval('public.ids')", None),
        ("id bigint", "search_id"),
    ],
)
def test_a_partitioned_table_with_a_composite_key_is_found_by_one_column(
    database: Connection, key: str, option: str | None
) -> None:
    database.execute(
        f"create sequence public.ids; create table public.events ({key}, day date, content text,"
        " primary key (id, day)) partition by range (day);"
        "create table public.old partition of public.events for values from ('2025-01-01')"
        " to ('2026-01-01');"
        "create table public.new partition of public.events default".encode()
    )
    column = option or "id"
    if option:
        with pytest.raises(ConfigurationError) as refused:
            adopt(database, "public.events")
        assert (refused.value.remedy or "").startswith("Run: alter table")
        database.execute((refused.value.remedy or "").removeprefix("Run: ").encode())
    adopt(database, "public.events")
    given = "id, " if option else ""
    database.execute(
        f"insert into public.events ({given}day, content) values"
        f" ({'1, ' if option else ''}'2025-02-02', 'Old.'),"
        f" ({'1, ' if option else ''}'2026-02-02', 'New.')".encode()
    )
    assert len(documents(database)) == 2
    database.execute(
        "update public.events set day = '2026-03-03', content = 'Moved.' where content = 'Old.'"
    )
    assert sorted(contents(database).values()) == [["Moved."], ["New."]]
    assert compare(database, "events").differences == 0
    twice = f"insert into public.events ({column}, {given}day, content)"
    database.execute(
        f"{twice} select {column}, {given}'2027-01-01', 'Twice.' from public.events"
        " where content = 'New.'".encode()
    )
    assert sorted(contents(database).values()) == [["Moved."]]
    assert "several rows with the key" in str(compare(database, "events").problems)
