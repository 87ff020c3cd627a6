"""Searches under the policies of the adopted tables: what select shows, and nothing else."""

import random
from collections.abc import Sequence
from typing import Any

import psycopg
import pytest
from adopted import LARGE, VECTOR_INDEX, WORDS, Row, adopt, backfill, let_search
from psycopg.types.json import Jsonb

from conftest import Connect, Connection
from second_brain.database import doctor, uninstall

pytestmark = pytest.mark.module("adoption")

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


@pytest.fixture
def notes(database: Connection) -> Connection:
    """A database with 300 notes of three tenants, searched in place."""
    database.execute(TABLE)
    fill(database, 300)
    adopt(database, "public.notes")
    backfill(database, "notes")
    database.execute("analyze public.notes")
    let_search(database, "authenticated")
    return database


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


def visible(connection: Connection) -> set[int]:
    return {row[0] for row in connection.execute("select id from public.notes").fetchall()}


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
        "fusion": generator.choice(["rrf", "auto", "relative_score"]),
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


@pytest.mark.parametrize("calls", [100, pytest.param(1430, marks=pytest.mark.slow)])
@pytest.mark.parametrize("is_large", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_no_hit_is_a_row_that_select_does_not_show(
    notes: Connection, connect: Connect, is_large: bool, calls: int
) -> None:
    if is_large:
        notes.execute(LARGE)
        notes.execute(VECTOR_INDEX.replace("documents", "notes").encode())
        notes.execute("select knowledge_internal.follow_table('notes')")
    user = connect("authenticated")
    for policy, condition in POLICIES.items():
        generator = random.Random(f"{policy} {is_large}")
        notes.execute(f"create policy visible on public.notes {condition}".encode())
        hits = 0
        for number in range(calls):
            if number % 10 == 0:
                claims(user, generator.choice(USERS), generator.choice("abcd"))
                shown = visible(user)
            given = question(generator)
            found = search(user, **given)
            assert keys(found) <= shown, (policy, given)
            assert all(hit["content"] for hit in found)
            hits += len(found)
            if "match_offset" not in given and 0 < len(found) < given["match_count"]:
                assert {hit["total_count"] for hit in found} == {len(found)}, (policy, given)
        assert hits > calls, policy
        notes.execute("drop policy visible on public.notes")
        notes.execute("drop policy if exists shown on public.notes")


def test_a_user_finds_all_rows_that_select_shows(notes: Connection, connect: Connect) -> None:
    notes.execute(f"create policy visible on public.notes {POLICIES['claim']}".encode())
    user = connect("authenticated")
    for tenant in "abc":
        claims(user, USERS[0], tenant)
        found = search(
            user, query_text=" ".join(WORDS), query_embedding="[1,0,0]", match_count=200,
            pool_size=200,
        )  # fmt: skip
        shown = visible(user)
        assert len(shown) > 0
        assert keys(found) == shown if len(shown) < 200 else len(found) >= 200


def test_the_owner_and_service_role_find_every_row_and_others_only_what_they_may(
    notes: Connection, connect: Connect
) -> None:
    asked: Row = {"query_text": " ".join(WORDS), "match_count": 1000, "pool_size": 1000}
    assert len(search(notes, **asked)) == 300
    assert len(search(connect("service_role"), **asked)) == 300
    # Without a policy, a user sees nothing.
    user = user_of(connect, "a")
    assert search(user, query_text="harbour") == []
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        search(connect("anon"), query_text="harbour")


def test_a_visitor_finds_what_anon_may_select(notes: Connection, connect: Connect) -> None:
    notes.execute(
        "create policy visible on public.notes to authenticated using (true);"
        "create policy shown on public.notes to anon using (tenant = 'c')"
    )
    let_search(notes, "anon")
    visitor = connect("anon")
    found = search(visitor, query_text=" ".join(WORDS), match_count=50, pool_size=100)
    assert keys(found) == visible(visitor)
    assert found


def test_a_table_that_roles_may_not_select_is_hidden(notes: Connection, connect: Connect) -> None:
    notes.execute("create policy visible on public.notes to authenticated using (true)")
    user = user_of(connect, "a")
    assert search(user, query_text="harbour")
    notes.execute("revoke select on public.notes from authenticated")
    notes.execute("grant select (id) on public.notes to authenticated")
    assert search(user, query_text="harbour") == []


@pytest.mark.parametrize(
    ("arguments", "refusal"),
    [
        ({"viewer_id": USERS[0]}, "viewer_id"),
        ({"viewer_groups": ["a"]}, "viewer_groups"),
        ({"ranked_lists": {}}, "no argument of the search"),
        (
            {"pool_size": 1000, "match_count": 1000, "formulations": [{"query_text": "a"}] * 5},
            "pool_size",
        ),
    ],
)
def test_what_would_show_other_rows_is_refused(
    notes: Connection, connect: Connect, arguments: Row, refusal: str
) -> None:
    user = user_of(connect, "a")
    with pytest.raises(psycopg.DataError, match=refusal):
        search(user, **{"query_text": "harbour", **arguments})


def test_like_ids_of_a_hidden_row_are_refused_alike(notes: Connection, connect: Connect) -> None:
    notes.execute(f"create policy visible on public.notes {POLICIES['claim']}".encode())
    user = user_of(connect, "c")
    hidden = notes.execute(
        "select chunk.id from public.knowledge_chunks as chunk join public.notes as note"
        " on note.id = chunk.place_bigint where note.tenant = 'a' limit 1"
    ).fetchone()
    assert hidden
    messages = []
    for one in (str(hidden[0]), USERS[3]):
        with pytest.raises(psycopg.Error) as refused:
            search(user, like_ids=[one])
        messages.append(str(refused.value).replace(one, "ID"))
    assert messages[0] == messages[1]


def test_nobody_can_call_the_search_of_a_reader(notes: Connection, connect: Connect) -> None:
    for role in ("anon", "authenticated", "service_role"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connect(role).execute("select knowledge_internal.search_as_authenticated()")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connect(role).execute("select knowledge_internal.let_search('anon')")
        reader = "knowledge_reader_authenticated"
        is_member = notes.execute("select pg_has_role(%s, %s, 'member')", [role, reader])
        assert is_member.fetchone() == (False,)


@pytest.mark.parametrize("role", ["service_role", "postgres", "nobody", None])
def test_a_role_without_policies_gets_no_reader(notes: Connection, role: str | None) -> None:
    with pytest.raises(psycopg.DataError, match="under row level security"):
        notes.execute("select knowledge_internal.let_search(%s)", [role])


@pytest.fixture
def two(notes: Connection) -> Connection:
    """A second table with keys of another type, and a policy of its own."""
    notes.execute(
        "create table public.faq (id text primary key, content text,"
        " embedding extensions.vector(3), team text);"
        "alter table public.faq enable row level security;"
        "grant select on public.faq to authenticated;"
        "create policy faq on public.faq to authenticated using (team = 'x');"
        "insert into public.faq values ('a', 'harbour fee', '[1,0,0]', 'x'),"
        " ('b', 'harbour master', '[1,0,0]', 'y')"
    )
    adopt(notes, "public.faq", collection="faq")
    backfill(notes, "faq")
    notes.execute(f"create policy visible on public.notes {POLICIES['claim']}".encode())
    return notes


def test_each_table_is_under_its_own_policies(two: Connection, connect: Connect) -> None:
    user = user_of(connect, "c")
    shown = visible(user)
    hits = search(user, query_text="harbour", query_embedding="[1,0,0]", match_count=200)
    ids = [hit["source_row"]["key"]["id"] for hit in hits]
    assert "a" in ids
    assert "b" not in ids
    assert {one for one in ids if one != "a"} <= shown
    hits = search(user, query_text="harbour", collections=["faq"])
    assert [hit["content"] for hit in hits] == ["harbour fee"]
    two.execute("drop table public.faq cascade")
    assert keys(search(user, query_text="harbour")) <= shown


def test_doctor_and_uninstall_have_no_remark_about_readers(notes: Connection) -> None:
    let_search(notes, "anon")
    found = [
        one.message
        for one in doctor.examine(notes)
        if one.status in ("error", "warning") and "have no embedding" not in one.message
    ]
    assert found == []
    assert uninstall.plan(notes, "public").attached == ()
