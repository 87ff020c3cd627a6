"""Names are data: no name of a table, column, key, function or argument is read as SQL."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from adopted import Row, adopt, backfill, let_search, reasons
from psycopg import sql
from psycopg.types.json import Jsonb

from conftest import Connection, Server, connections, copy_of
from second_brain.adoption import calls, carrying, replaced
from second_brain.services.install import Database

pytestmark = pytest.mark.module("adoption", "arrange", "facets", "insight")

END = "create role pwned;select "
NAMES = (
    "a$body$b", f"a$body$;{END}$body$", "$$", f"$$;{END}$$", "$query$", f"$query$;{END}$query$",
    "$call$", "$function$", "'", "''", f"';{END}'", '"', '""', f'";{END}"', "\\", f"\\';{END}",
    "($1).wanted.x", "($1)", "$1", "$2", "{}", "{0}", "{name}", "%", "%s", "%I", "%1$I", "100%",
    "%(name)s", "old.*", ":varattno 0 ", "-- x", f"\n{END}1 -- ", "/* x", "*/", "a.b", "A b", " ",
    "select", "source", "chunk.metadata", "public.knowledge_chunks", "knowledge_internal.search",
    "écran;", "\u2028", "E'\\''", "::text", "a]", "[1]",
)  # fmt: skip
TABLE = """
create table public.{0} (
  {0} bigint primary key, {1} text, {2} extensions.vector(3), {3} text, {4} integer
)
"""
ROWS = """
insert into public.{0}
values (1, 'firmware of the recorder', '[1,0,0]', 'd', 7),
       (2, 'battery of the recorder', '[0,1,0]', 'd', 8)
"""
FUNCTION = """
create function public.{0}({3} extensions.vector, {4} integer, query_text text)
returns table ({0} bigint, {1} text) language sql stable security definer as $f$
  select source.{0}, source.{1} from public.{0} as source
   order by 1 - (source.{2} operator(extensions.<=>) $1)
            + ts_rank(to_tsvector(source.{1}), plainto_tsquery($3)) desc
   limit $2
$f$
"""
ANSWERED = "select * from public.{0}('[0,1,0]', 2, 'battery')"
SHARED = """
alter table public.{0} enable row level security;
create policy {0} on public.{0} using ({4} = 7);
grant select on public.{0} to authenticated;
"""


@dataclass(frozen=True)
class Named:
    """A database with a table whose names begin with a hostile one."""

    connection: Connection
    name: str

    def written(self, text: str) -> sql.Composed:
        """Return SQL. {0}: the table, its key and a function; {1} to {4}: further columns."""
        endings = ("", " t", " v", " g", " k")
        return sql.SQL(text).format(*(sql.Identifier(f"{self.name}{ending}") for ending in endings))

    def run(self, text: str) -> Any:
        return self.connection.execute(self.written(text))

    def adopt(self, *, has_documents: bool = False) -> None:
        options: dict[str, str | None] = {"content": f"{self.name} t"}
        if has_documents:
            options |= {"document": f"{self.name} g", "position": f"{self.name} k"}
        adopt(
            self.connection,
            self.written("public.{0}").as_string(self.connection),
            options={**options, "embedding": f"{self.name} v"},
            name="named",
            collection="named",
        )
        backfill(self.connection, "named")
        assert reasons(self.connection, "named") == {}
        assert carrying.faults(Database(self.connection), "named") == []

    def search(self, function: str, **arguments: object) -> list[Row]:
        rows = self.connection.execute(
            sql.SQL("select to_jsonb(hit) from {} as hit").format(sql.SQL(function)),
            [Jsonb({"query_text": "firmware", **arguments})],
        )
        return [hit for (hit,) in rows]

    def boost(self) -> Row:
        return {"filters": {f"metadata.{self.name} k": 7}, "factor": 5}

    def is_harmless(self) -> bool:
        return not self.run("select from pg_roles where rolname = 'pwned'").fetchall()


@pytest.fixture(scope="module")
def opened(server: Server) -> Iterator[Connection]:
    database = copy_of(server, server.template(3))
    opening = connections(next(database))
    connection = next(opening)()
    let_search(connection, "authenticated")
    # As in migrations that Supabase generates: a body with an error is stored.
    connection.execute("set check_function_bodies = off")
    yield connection
    next(opening, None)
    next(database, None)


@pytest.fixture
def named(opened: Connection, request: pytest.FixtureRequest) -> Iterator[Named]:
    with opened.transaction(force_rollback=True):
        one = Named(opened, request.param)
        one.run(TABLE)
        one.run(ROWS)
        yield one


of_each_name = pytest.mark.parametrize("named", NAMES, ids=repr, indirect=True)
SEARCH = "knowledge_internal.search(knowledge_internal.given_arguments(%s))"


@of_each_name
def test_a_table_is_adopted_searched_and_removed(named: Named) -> None:
    named.adopt(has_documents=True)
    named.run("update public.{0} set {1} = 'firmware of a camera' where {0} = 1")
    hit, *_ = named.search(SEARCH, snippet=True, boosts=[named.boost()])
    assert (hit["content"], hit["metadata"][f"{named.name} k"]) == ("firmware of a camera", 7)
    (shown,) = named.connection.execute(
        "select format('%%I.%%I', 'public', %s::text)", [named.name]
    ).fetchone() or ("",)
    assert (hit["source_row"]["table"], hit["source_row"]["key"]) == (shown, {named.name: 1})
    hit, *_ = named.search(SEARCH, query_text=None, query_embedding="[0,1,0]")
    assert hit["content"] == "battery of the recorder"
    if "." not in named.name:
        facets = named.connection.execute(
            "select value, count from public.facet_knowledge_chunks(%s, array[%s])",
            [Jsonb({"query_text": "recorder"}), f"metadata.{named.name} k"],
        ).fetchall()
        assert facets == [(8, 1)]
    carrying.remove(Database(named.connection), "named")
    assert named.is_harmless()


@of_each_name
def test_a_function_is_replaced_and_comes_back(named: Named) -> None:
    named.run(FUNCTION)
    named.adopt()
    before = named.run(ANSWERED).fetchall()
    (call,) = calls.keep(Database(named.connection), "named", run=True)
    assert (call.undecided, call.users, call.asked) == ([], [("the owner", 4, 4)], 2)
    assert not [note for note in call.notes if note.startswith("not compared")]
    assert named.run(ANSWERED).fetchall() == before
    for statement in replaced.undo(Database(named.connection), "named"):
        named.connection.execute(statement.encode())
    assert named.run(ANSWERED).fetchall() == before
    assert named.is_harmless()


@of_each_name
def test_a_user_searches_under_the_policies_of_the_table(named: Named) -> None:
    named.run(SHARED)
    named.adopt()
    named.run("set local role authenticated")
    hits = named.search(
        "public.search_visible_knowledge_chunks(%s)",
        query_text="recorder",
        boosts=[named.boost()],
        query_embedding="[0,1,0]",
    )
    assert [hit["content"] for hit in hits] == ["firmware of the recorder"]
    named.run("reset role")
    assert named.is_harmless()
