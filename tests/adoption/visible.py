"""A table under policies that is searched in place, and searches of users who see some of it."""

import random
from collections.abc import Sequence
from typing import Any

import psycopg
from adopted import WORDS, Row, adopt, backfill, let_search
from psycopg.types.json import Jsonb

from conftest import Connect, Connection
from second_brain.services.arguments import FUSIONS

USERS = [f"00000000-0000-0000-0000-00000000000{number}" for number in range(4)]
TABLE = """
create table public.members (team text, user_id uuid);
create table public.notes (
  id bigint primary key generated always as identity, title text, content text, tenant text,
  owner uuid, is_hidden boolean not null default false, metadata jsonb not null default '{}',
  embedding extensions.vector(3)
);
alter table public.notes enable row level security;
alter table public.members enable row level security;
grant select on public.notes, public.members to authenticated;
grant select on public.notes to anon;
create function public.is_member_of(given text) returns boolean
language sql stable security definer
as $$ select exists (select 1 from members where team = given) $$;
create policy own on public.members to authenticated using (user_id = auth.uid());
"""
POLICIES = {
    "claim": "to authenticated using (tenant = (auth.jwt() ->> 'tenant'))",
    "claim in a sub-select": "to authenticated using (tenant = (select auth.jwt() ->> 'tenant'))",
    "membership by in": "to authenticated using (tenant in (select team from public.members))",
    "membership by exists": "to authenticated using (exists (select from public.members as member"
    " where member.team = notes.tenant and member.user_id = (select auth.uid())))",
    "owner": "to authenticated using (owner = auth.uid())",
    "restrictive": "to authenticated using (tenant = (auth.jwt() ->> 'tenant'));"
    "create policy shown on public.notes as restrictive to authenticated using (not is_hidden)",
    "to public": "using (tenant = 'a' or owner = auth.uid())",
}
_MOVED = "alter table public.notes set schema {0}", "alter table {0}.notes set schema public"
_MAY_SELECT = (
    "revoke select on public.notes from authenticated",
    ("grant select on public.notes to authenticated"),
)
_COLUMNS = "id, title, content, tenant, owner, is_hidden, metadata, embedding"


def _policy(condition: str) -> tuple[str, str]:
    return (
        f"create policy changed on public.notes as restrictive using ({condition})",
        "drop policy changed on public.notes",
    )


CHANGES = {
    "moved out of reach": (
        "create schema if not exists closed;" + _MOVED[0].format("closed"),
        _MOVED[1].format("closed"),
    ),
    "moved": (
        "create schema if not exists opened; grant usage on schema opened to authenticated;"
        + _MOVED[0].format("opened"),
        _MOVED[1].format("opened"),
    ),
    "renamed": (
        "alter table public.notes rename to others;"
        "create table public.notes (id bigint, content text);"
        "grant select on public.notes to authenticated;"
        "insert into public.notes select n from generate_series(1, 300) as n",
        "drop table public.notes; alter table public.others rename to notes",
    ),
    "without select": _MAY_SELECT,
    "select of some columns": (
        f"{_MAY_SELECT[0]}; grant select (id, content) on public.notes to authenticated",
        f"{_MAY_SELECT[0]}; {_MAY_SELECT[1]}",
    ),
    "select of all columns": (
        f"{_MAY_SELECT[0]}; grant select ({_COLUMNS}) on public.notes to authenticated",
        f"{_MAY_SELECT[0]}; {_MAY_SELECT[1]}",
    ),
    "another owner": (
        "grant create on schema public to authenticated;"
        "alter table public.notes owner to authenticated",
        f"alter table public.notes owner to postgres; {_MAY_SELECT[1]}",
    ),
    "no row level security": (
        "alter table public.notes disable row level security",
        "alter table public.notes enable row level security",
    ),
    "forced row level security": (
        "alter table public.notes force row level security",
        "alter table public.notes no force row level security",
    ),
    "no row level security of the corpus": (
        "alter table public.knowledge_chunks disable row level security",
        "alter table public.knowledge_chunks enable row level security",
    ),
    "a policy that fails": _policy("(tenant || 'x')::integer > 0"),
    "a policy that needs a setting": _policy("tenant = current_setting('app.tenant')"),
    "a policy without a row": _policy("false"),
    "a policy that compares the role": _policy("current_user not in ('authenticated')"),
    "a policy that wants the role": _policy("current_user = 'authenticated'"),
    "a policy that calls a function without a search_path": _policy("public.is_member_of(tenant)"),
    "a child table": (
        "create table public.child () inherits (public.notes);"
        "insert into public.child (id, content, tenant) values (1, 'harbour', 'a')",
        "drop table public.child",
    ),
}
"""What a project can do to the table after its adoption, and what takes it back."""
MOST_KEYS = (
    "create or replace function knowledge_internal.most_seen_keys() returns integer"
    " language sql immutable return {}"
)
"""Of more rows, each is asked for."""
LEFT_OUT = {"another owner", "a child table"}
"""The changes after which no row of the table is found, whatever select shows."""


def vector(generator: random.Random) -> str:
    return str([round(generator.gauss(0, 1), 3) for _ in range(3)])


def fill(connection: Connection, count: int, seed: int = 1) -> None:
    generator = random.Random(seed)
    rows = [
        (
            generator.choice([None, *WORDS]),
            " ".join(generator.choices(WORDS, k=generator.randint(1, 12))),
            generator.choices("abc", (50, 10, 2))[0],
            generator.choice(USERS),
            generator.random() < 0.2,
            Jsonb({"n": generator.randrange(5)}),
            None if generator.random() < 0.1 else vector(generator),
        )
        for _ in range(count)
    ]
    with connection.cursor() as cursor:
        cursor.executemany(
            "insert into public.notes (title, content, tenant, owner, is_hidden, metadata,"
            " embedding) values (%s, %s, %s, %s, %s, %s, %s)",
            rows,
        )
    for number, team in enumerate("abc"):
        connection.execute("insert into public.members values (%s, %s)", [team, USERS[number]])


def adopt_notes(connection: Connection, count: int = 300) -> Connection:
    """Search notes of three tenants in place, for signed-in users."""
    connection.execute(TABLE)
    fill(connection, count)
    adopt(connection, "public.notes")
    backfill(connection, "notes")
    connection.execute("analyze public.notes")
    let_search(connection, "authenticated")
    return connection


def claims(connection: Connection, user: str, tenant: str) -> None:
    connection.execute(
        "select set_config('request.jwt.claims', jsonb_build_object('sub', %s::text, 'tenant',"
        " %s::text, 'role', 'authenticated')::text, false)",
        [user, tenant],
    )


def user_of(connect: Connect, tenant: str) -> Connection:
    user = connect("authenticated")
    claims(user, USERS[0], tenant)
    return user


def search(connection: Connection, **arguments: Any) -> list[Row]:
    rows = connection.execute(
        "select to_jsonb(hit) from public.search_visible_knowledge_chunks(%s) as hit",
        [Jsonb(arguments)],
    ).fetchall()
    return [row for (row,) in rows]


def keys(hits: Sequence[Row]) -> set[int]:
    return {hit["source_row"]["key"]["id"] for hit in hits}


def visible(connection: Connection, table: str = "public.notes") -> set[int]:
    """Return the keys that a plain select shows; none if it is refused or fails."""
    try:
        rows = connection.execute(f"select * from {table}".encode()).fetchall()
    except psycopg.Error:
        return set()
    return {row[0] for row in rows}


def question(generator: random.Random) -> Row:
    given: Row = {
        "query_text": " ".join(generator.sample(WORDS, generator.randint(1, 3))),
        "query_embedding": generator.choice([None, vector(generator)]),
        "match_count": generator.choice([5, 20, 200]),
        "pool_size": generator.choice([5, 50, 200]),
    }
    for name, value in {
        "neighbor_window": 2,
        "one_per_document": True,
        "snippet": True,
        "diversity": 0.4,
        "merge_duplicates": True,
        "min_confidence": 0.2,
        "embedding_from_text": True,
        "match_offset": 3,
        "search_mode": generator.choice(["simple", "phrase"]),
        "fusion": generator.choice(FUSIONS),
        "filters": [{"field": "metadata.n", "op": "eq", "value": generator.randrange(5)}],
        "collections": ["knowledge"],
        "match_threshold": 0.3,
        "prefix_last": True,
    }.items():
        if generator.random() < 0.2:
            given[name] = value
    if generator.random() < 0.2:
        # A typing error.
        given["query_text"] = given["query_text"][:-1] + "x"
    return given
