"""Searches under the policies of the adopted tables: what select shows, and nothing else."""

import random

import psycopg
import pytest
from adopted import LARGE, VECTOR_INDEX, WORDS, Row, adopt, backfill, let_search
from visible import (
    CHANGES,
    LEFT_OUT,
    MOST_KEYS,
    POLICIES,
    USERS,
    adopt_notes,
    claims,
    keys,
    question,
    search,
    user_of,
    visible,
)

from conftest import Connect, Connection, Server
from second_brain.database import doctor, uninstall

pytestmark = pytest.mark.module("adoption")


def table_of(connection: Connection) -> str:
    """Return the name that the adopted table has now."""
    found = connection.execute(
        "select source::text from public.knowledge_adoptions where name = 'notes'"
    ).fetchone()
    assert found
    return str(found[0])


@pytest.fixture
def notes(database: Connection) -> Connection:
    """A database with 300 notes of three tenants, searched in place."""
    return adopt_notes(database)


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
        hits, change, undo = 0, "", ""
        for number in range(calls):
            if number % 10 == 0:
                notes.execute(undo.encode())
                change, (do, undo) = generator.choice([("", ("", "")), *CHANGES.items()])
                notes.execute(do.encode())
                notes.execute(MOST_KEYS.format(generator.choice((0, 1000))).encode())
                claims(user, generator.choice(USERS), generator.choice("abcd"))
                shown = visible(user, table_of(notes))
            given = question(generator)
            found = search(user, **given)
            assert keys(found) <= shown, (policy, change, given)
            assert all(hit["content"] for hit in found)
            hits += len(found)
            if "match_offset" not in given and 0 < len(found) < given["match_count"]:
                assert {hit["total_count"] for hit in found} == {len(found)}, (policy, given)
        assert hits > calls / 2, policy
        notes.execute(undo.encode())
        notes.execute("drop policy visible on public.notes")
        notes.execute("drop policy if exists shown on public.notes")


@pytest.mark.parametrize("change", CHANGES)
def test_after_a_change_a_table_is_found_as_select_shows_it_and_others_as_before(
    two: Connection, connect: Connect, change: str
) -> None:
    two.execute(CHANGES[change][0].encode())
    words, near = {"query_text": " ".join(WORDS)}, {"query_embedding": "[1,0,0]"}
    for size in (MOST_KEYS.format(0), MOST_KEYS.format(1000), LARGE):
        two.execute(size.encode())
        user = user_of(connect, "a")
        shown = set() if change in LEFT_OUT else visible(user, table_of(two))
        for asked in (words, near, words | near):
            found = search(user, **asked, match_count=400, pool_size=400)
            of_notes, of_faq = (
                [hit for hit in found if hit["source_row"]["adoption"] == name]
                for name in ("notes", "faq")
            )
            if "query_text" in asked:
                assert keys(of_notes) == shown
            assert keys(of_notes) <= shown
            assert [hit["content"] for hit in of_faq] == ["harbour fee"]
            # The owner's search goes on, too.
            assert search(two, **asked)


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
        " on note.id::text = chunk.place_key where note.tenant = 'a' limit 1"
    ).fetchone()
    assert hidden
    messages = []
    for one in (str(hidden[0]), USERS[3]):
        with pytest.raises(psycopg.Error) as refused:
            search(user, like_ids=[one])
        messages.append(str(refused.value).replace(one, "ID"))
    assert messages[0] == messages[1]


@pytest.mark.usefixtures("notes")
def test_nobody_can_call_the_functions_of_a_role(connect: Connect) -> None:
    for role in ("anon", "authenticated", "service_role"):
        for call in ("let_search('anon')", "seen_1_as_authenticated('1')"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connect(role).execute(f"select knowledge_internal.{call}".encode())


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


def test_doctor_and_uninstall_have_no_remark_about_readers(notes: Connection) -> None:
    let_search(notes, "anon")
    found = [
        one.message
        for one in doctor.examine(notes)
        if one.status in ("error", "warning") and "have no embedding" not in one.message
    ]
    assert found == []
    assert uninstall.plan(notes, "public").attached == ()


def test_a_table_that_is_out_of_reach_of_the_corpus_s_owner_ends_no_search(
    two: Connection, connect: Connect, server: Server
) -> None:
    with psycopg.connect(server.admin_dsn(two.info.dbname)) as admin:
        admin.execute(
            "alter table public.notes owner to supabase_admin;"
            "revoke all on public.notes from anon, authenticated, postgres, service_role"
        )
    words, near = {"query_text": " ".join(WORDS)}, {"query_embedding": "[1,0,0]"}
    for size in ("select", LARGE):
        two.execute(size.encode())
        for asked in (words, near, words | near):
            for caller in (two, connect("service_role")):
                found = search(caller, **asked, match_count=400, pool_size=400)
                assert {hit["content"] for hit in found} == {"harbour fee", "harbour master"}
