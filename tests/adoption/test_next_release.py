"""A team goes on working: functions that change after their drop-ins, other schemas, removal."""

from collections.abc import Iterator

import psycopg
import pytest
from adopted import adopt, backfill, findings
from psycopg import sql

from conftest import Connect, Connection
from second_brain.adoption import calls, carrying, migration, proposal, replaced
from second_brain.database import migrations, uninstall
from second_brain.errors import ConfigurationError
from second_brain.services.install import Database, Install

pytestmark = pytest.mark.module("adoption")

TABLE = """
create table public.pages (id bigint primary key, content text, embedding extensions.vector(3));
insert into public.pages select place, 'page about upload ' || place,
       array[cos(place), sin(place), 0.1]::real[]::extensions.vector
  from generate_series(1, 80) as place;
grant select on public.pages to anon, authenticated;
"""
FUNCTION = """
create or replace function public.hybrid_pages(
  query_text text, query_embedding extensions.vector(3), match_count int,
  match_threshold float default -1, rrf_k int default 50, text_weight float default 1
) returns table (id bigint, content text, score float)
language sql stable {security} set search_path = public, extensions as $f$
  with near as (
    select p.id, row_number() over (order by p.embedding <=> query_embedding) as place
      from pages p where 1 - (p.embedding <=> query_embedding) > match_threshold
     order by place limit match_count * 2
  ), worded as (
    select p.id, row_number() over (order by ts_rank(to_tsvector('english', p.content),
           websearch_to_tsquery('english', query_text)) desc) as place
      from pages p where to_tsvector('english', p.content)
                         @@ websearch_to_tsquery('english', query_text)
     order by place limit match_count * 2
  )
  select p.id, p.content, coalesce(1.0 / (rrf_k + near.place), 0)
         + coalesce(1.0 / (rrf_k + worded.place), 0) * text_weight as score
    from near full join worded on near.id = worded.id
    join pages p on p.id = coalesce(near.id, worded.id)
   order by score desc limit match_count {offset}
$f$
"""
CALL = "select count(*) from public.hybrid_pages({}, {}, {})"


def create(connection: Connection, security: str = "", offset: str = "") -> None:
    connection.execute(FUNCTION.format(security=security, offset=offset).encode())


def bodies(connection: Connection) -> list[tuple[object, ...]]:
    """Return all functions of the project."""
    return connection.execute(
        "select pg_get_functiondef(oid), proacl::text from pg_proc where proname ~ 'hybrid_pages'"
        " order by 1"
    ).fetchall()


def rows(connection: Connection, text: str, embedding: str, count: str = "5") -> int:
    statement = CALL.format(text, embedding, count)
    (found,) = connection.execute(statement.encode()).fetchone() or (0,)
    return int(found)


@pytest.fixture
def pages(database: Connection) -> Connection:
    database.execute(TABLE.encode())
    create(database)
    adopt(database, "public.pages", collection="pages")
    backfill(database, "pages")
    return database


def replace(connection: Connection) -> None:
    (call,) = calls.keep(Database(connection), "pages", run=True)
    assert call.undecided == []


def undo(connection: Connection) -> None:
    with connection.transaction():
        for statement in replaced.undo(Database(connection), "pages"):
            connection.execute(statement.encode())


@pytest.mark.parametrize("how", ["undo", "remove"])
def test_a_function_that_a_later_release_has_changed_stays(pages: Connection, how: str) -> None:
    before = bodies(pages)
    replace(pages)
    create(pages, offset="offset 1")
    newer = [row for row in bodies(pages) if "offset 1" in str(row[0])]
    message = "public.hybrid_pages is no drop-in any more"
    assert [text for _, text in findings(pages) if message in text]
    if how == "undo":
        undo(pages)
    else:
        carrying.remove(Database(pages), "pages")
    assert bodies(pages) == newer != before


@pytest.mark.parametrize(
    "change",
    [
        "alter function public.hybrid_pages set statement_timeout = '3s'",
        "alter function public.hybrid_pages security definer",
        "alter function public.hybrid_pages rename to hybrid_pages_2",
        "create schema api; alter function public.hybrid_pages set schema api",
        "drop function knowledge_internal_public.hybrid_pages",
    ],
)
def test_a_drop_in_that_the_team_has_changed_is_named_and_not_overwritten(
    pages: Connection, change: str
) -> None:
    replace(pages)
    pages.execute(change.encode())
    now = bodies(pages)
    assert "is not the drop-in that --calls wrote" in str(findings(pages))
    for act in (undo, lambda one: carrying.remove(Database(one), "pages")):
        with pytest.raises(ConfigurationError, match="hybrid_pages"):
            act(pages)
    assert bodies(pages) == now


@pytest.mark.parametrize(
    "change",
    ["alter table public.pages rename embedding to vector", "drop table public.pages cascade"],
)
def test_a_function_comes_back_after_its_table_has_changed(pages: Connection, change: str) -> None:
    before = bodies(pages)
    replace(pages)
    pages.execute(change.encode())
    undo(pages)
    assert bodies(pages) == before


def test_a_function_that_is_gone_does_not_come_back(pages: Connection) -> None:
    replace(pages)
    pages.execute("drop function public.hybrid_pages")
    undo(pages)
    assert bodies(pages) == []


def test_a_changed_function_is_replaced_again(pages: Connection) -> None:
    replace(pages)
    create(pages, offset="offset 1")
    newer = [row for row in bodies(pages) if "offset 1" in str(row[0])]
    replace(pages)
    assert not [text for _, text in findings(pages) if "no drop-in any more" in text]
    undo(pages)
    assert bodies(pages) == newer


def test_an_install_is_not_removed_while_drop_ins_stand(pages: Connection, dsn: str) -> None:
    replace(pages)
    for module in (None, "adoption"):
        with pytest.raises(ConfigurationError, match="functions are drop-ins") as refused:
            uninstall.plan(pages, module=module)
        assert "adopt --calls --undo --apply" in (refused.value.remedy or "")
    undo(pages)
    assert uninstall.plan(pages).statements


@pytest.mark.parametrize("security", ["", "security definer"])
def test_what_the_old_function_answered_is_answered(
    pages: Connection, connect: Connect, security: str
) -> None:
    undo(pages)
    create(pages, security)
    replace(pages)
    for caller in (connect("authenticated"), connect("anon"), pages):
        assert rows(caller, "'upload'", "'[0,0,0]'") == 5
        assert rows(caller, "null", "'[0,0,0]'") == 5
        assert rows(caller, "repeat('upload ', 190)", "'[1,0,0]'") == 5
        assert rows(caller, "'upload'", "'[1,0,0]'", "null") in (80, 50)
        assert rows(caller, "'upload'", "'[1e-40,0,0]'") == 5
        # Thresholds, constants and weights that no search of this package takes.
        for given in ("1.5", "'NaN'", "-3, 0, 0", "0, -100, -1", "null, null, null", "0, 1, 'NaN'"):
            assert rows(caller, "'upload'", "'[1,0,0]'", f"5, {given}") == 5, given


def test_what_differs_is_printed_for_the_function(pages: Connection) -> None:
    (call,) = calls.keep(Database(pages), "pages")
    shown = "; ".join(call.notes)
    for note in ("order of this search", "a visitor gets at most 50", "at most 1,000 rows"):
        assert note in shown


def test_a_search_by_an_embedding_alone_is_left_unless_it_finds_more(pages: Connection) -> None:
    pages.execute(
        "create function public.nearest_pages(query_embedding extensions.vector(3), n int)"
        " returns setof public.pages language sql stable security definer as $f$"
        "  select * from public.pages as p where p.id % 2 >= 0 and p.content <> 'x'"
        "   order by p.embedding operator(extensions.<=>) query_embedding limit n $f$"
    )
    found = {one.function.name: one for one in calls.keep(Database(pages), "pages")}
    assert found["nearest_pages"].left
    assert "nearest_pages" not in calls.migration([*found.values()], "pages")
    pages.execute(
        "create index on public.pages using hnsw (embedding extensions.vector_cosine_ops)"
    )
    found = {one.function.name: one for one in calls.keep(Database(pages), "pages")}
    assert found["nearest_pages"].left is None


@pytest.fixture
def elsewhere(plain_dsn: str) -> Iterator[Connection]:
    """An install in schema sb, beside a project with own tables of these names."""
    migrations.apply(plain_dsn, dimensions=3, schema="sb", modules=["adoption"])
    with psycopg.connect(plain_dsn, autocommit=True) as connection:
        connection.execute("create table public.knowledge_chunks (id int)")
        connection.execute(TABLE.encode())
        create(connection)
        yield connection


def test_drop_ins_of_another_schema_come_back(elsewhere: Connection) -> None:
    database = Database(elsewhere, Install("sb"))
    proposed = proposal.propose(database, "public.pages", {"document": None})
    text = migration.render(proposed, database.install, name="pages", collection="pages", model="m")
    elsewhere.execute(text.encode())
    carrying.backfill(database, "pages")
    before = bodies(elsewhere)
    (call,) = calls.keep(database, "pages", run=True)
    assert call.undecided == []
    assert rows(elsewhere, "'upload'", "'[1,0,0]'") == 5
    with pytest.raises(ConfigurationError, match="functions are drop-ins"):
        uninstall.plan(elsewhere, "sb")
    for statement in replaced.undo(database, "pages"):
        elsewhere.execute(statement.encode())
    assert bodies(elsewhere) == before
    granted = sql.SQL("select has_schema_privilege('anon', 'sb_internal', 'usage')")
    assert elsewhere.execute(granted).fetchone() == (False,)
