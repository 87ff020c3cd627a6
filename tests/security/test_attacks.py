"""What a user of a role cannot read, call or change."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from psycopg.types.json import Jsonb

from conftest import Connect, Connection
from corpora import USERS, Chunk, Corpus, Document, Row, Viewer, drawn, own_word, store, words_of
from corpora import ask as call
from homes import in_its_module
from support.emptied import dsn as dsn

pytestmark = pytest.mark.large

ME, YOU, *_ = USERS
NOBODYS: frozenset[str] = frozenset()
YOUR_CHUNK = Chunk(
    0, 0, YOU, "private", None, NOBODYS, "active", ("alpha",), "red", "one", 0, (1, 0, 0), None
)
MINE = "search_my_knowledge_chunks"
SEARCHES = [MINE, in_its_module("facet_my_knowledge_chunks")]
NOBODY = (psycopg.errors.InsufficientPrivilege, psycopg.errors.InvalidTextRepresentation)


@pytest.fixture
def owner(connect: Connect) -> Connection:
    """The owner's connection, as an administrator who changes chunks and documents apart."""
    return connect()


@pytest.fixture
def me(connect: Connect) -> Connection:
    return connect("authenticated", uid=ME)


PEEK = """
create or replace function pg_temp.peek(seen text) returns boolean language plpgsql cost 0.0001 as
$$ begin raise notice '%', seen; return true; end $$
"""
READS = (
    "select * from public.knowledge_chunks",
    "select * from public.knowledge_documents",
    "select chunk, document from public.knowledge_chunks as chunk"
    " full join public.knowledge_documents as document on document.id = chunk.document_id",
    "select * from public.knowledge_chunks where pg_temp.peek(content)",
    "select * from public.knowledge_documents where pg_temp.peek(title)",
    "select content::integer from public.knowledge_chunks",
    "select 1 / (position('alpha' in content) - 1), content::xid from public.knowledge_chunks",
    "select most_common_vals, histogram_bounds, most_common_elems from pg_stats"
    " where schemaname in ('public', 'knowledge_internal')",
)


@contextmanager
def notices(connection: Connection) -> Iterator[list[str]]:
    """Collect what is raised as a notice within the block."""
    reported: list[str] = []

    def listen(message: psycopg.errors.Diagnostic) -> None:
        reported.append(message.message_primary or "")

    connection.add_notice_handler(listen)
    try:
        yield reported
    finally:
        connection.remove_notice_handler(listen)


@pytest.mark.parametrize("seed", range(12))
def test_a_user_reads_only_own_and_public_rows(
    owner: Connection, me: Connection, seed: int
) -> None:
    corpus, viewer = drawn(random.Random(seed)), Viewer(ME)
    store(owner, corpus)
    # As a project that grants reads knowingly: by default users have no grant on any table.
    owner.execute(
        "grant select on public.knowledge_chunks, public.knowledge_documents to authenticated"
    )
    owner.execute("analyze public.knowledge_chunks, public.knowledge_documents")
    me.execute(PEEK.encode())
    with notices(me) as reported:
        for statement in READS:
            try:
                rows: object = me.execute(statement.encode()).fetchall()
            except psycopg.DataError as error:
                rows = (str(error), error.diag.message_detail, error.diag.context)
            assert words_of(rows) <= corpus.words(viewer), statement
    shown = {word for word in corpus.words(viewer) if not word.startswith("head")}
    assert words_of(reported) == shown
    ((chunks, documents),) = me.execute(
        "select (select count(*) from public.knowledge_chunks),"
        "       (select count(*) from public.knowledge_documents)"
    ).fetchall()
    assert chunks == len(corpus.seen(viewer))
    assert documents == sum(viewer.sees(one) for one in corpus.documents.values())


@pytest.fixture
def yours(owner: Connection) -> None:
    """A chunk of another user, and no other row."""
    store(owner, Corpus({0: Document(0, YOU, "private", None, NOBODYS)}, {0: YOUR_CHUNK}))


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"match_count": 0},
        {"match_offset": -1},
        {"filters": [{"field": "owner_id", "op": "like", "value": "%"}]},
        {"filters": [{"field": "content", "op": "eq", "value": "alpha"}]},
        {"filters": [{"field": "metadata.word", "op": "between", "value": [1, "x"]}]},
        {"collections": []},
        {"formulations": [{"query_text": "alpha", "viewer_id": str(YOU)}]},
        {"formulations": [{"query_embedding": [1, 2]}]},
        {"query_embedding": [1, 2]},
        {"query_embedding": [0, 0, 0]},
        {"search_mode": "alpha"},
    ],
    ids=str,
)
@pytest.mark.usefixtures("yours")
def test_a_refusal_tells_nothing_that_is_stored(me: Connection, arguments: Row) -> None:
    question = {"query_text": "alpha"} if arguments else {}
    with pytest.raises(psycopg.errors.InvalidParameterValue) as caught:
        call(me, MINE, **question | arguments)
    told = caught.value.diag
    reported = (str(caught.value), told.message_detail, told.message_hint, told.context)
    assert words_of(reported) == set()


@pytest.mark.usefixtures("yours")
@pytest.mark.parametrize("claims", ["", "{}", '{"role": "authenticated"}', '{"sub": ""}'])
def test_without_a_user_there_is_no_search_of_ones_own(connect: Connect, claims: str) -> None:
    nobody = connect("authenticated")
    nobody.execute("select set_config('request.jwt.claims', %s, false)", [claims])
    # An empty subject is no UUID, depending on whose auth.uid() it is.
    with pytest.raises(NOBODY):
        call(nobody, MINE, query_text="alpha")


@pytest.mark.usefixtures("yours")
def test_a_user_names_no_other_viewer(me: Connection) -> None:
    with pytest.raises(psycopg.errors.UndefinedFunction, match="viewer_id"):
        call(me, MINE, query_text="alpha", viewer_id=YOU)
    formulations = [{"query_text": "alpha", "viewer_id": str(YOU)}]
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=r"formulations\[0\]"):
        call(me, MINE, query_text="alpha", formulations=formulations)
    assert call(me, MINE, query_text="alpha") == []


@pytest.mark.usefixtures("yours")
@pytest.mark.parametrize(
    "function", [SEARCHES[1], in_its_module("count_my_pending_knowledge_embeddings")]
)
def test_a_user_names_no_other_viewer_in_the_search_argument(me: Connection, function: str) -> None:
    for viewer in ({"viewer_id": YOU}, {"viewer_groups": ["board"]}, {"viewer_id": None}):
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="viewer_"):
            call(me, function, **viewer)


def test_a_user_cannot_give_the_lists_that_a_search_fuses(me: Connection) -> None:
    lists = Jsonb({"lists": [], "chunks": {}})
    with pytest.raises(psycopg.errors.UndefinedFunction, match="ranked_lists"):
        call(me, MINE, query_text="alpha", ranked_lists=lists)


@pytest.mark.module("facets")
def test_a_user_cannot_give_the_lists_whose_facets_are_counted(me: Connection) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="ranked_lists"):
        call(me, "facet_my_knowledge_chunks", search={"query_text": "alpha", "ranked_lists": []})


@pytest.mark.usefixtures("yours")
@pytest.mark.parametrize("function", SEARCHES)
def test_a_user_cannot_have_the_chunks_of_words_told(me: Connection, function: str) -> None:
    nothing = '{"listed": {}, "counted": {}, "expansions": [], "unknown": {}}'
    with me.transaction():
        me.execute("set local knowledge_internal.recording = 'on'")
        me.execute("select set_config('knowledge_internal.recorded', %s, true)", [nothing])
        call(me, function, query_text="alpha")
        recorded = me.execute("select current_setting('knowledge_internal.recorded')")
        assert recorded.fetchall() == [(nothing,)]


@pytest.mark.usefixtures("yours")
@pytest.mark.parametrize("function", SEARCHES)
def test_a_user_cannot_change_what_a_search_has_read_before(me: Connection, function: str) -> None:
    expected = call(me, function, query_text="alpha")
    with me.transaction():
        me.execute("set local knowledge_internal.readings = '[{}]'")
        assert call(me, function, query_text="alpha") == expected


def spied(connection: Connection) -> list[str]:
    """Search as the connection's user; return as whom their own code ran, but for themselves."""
    search: Row = {
        "query_text": f"alpha {own_word('row', 0)}",
        "query_embedding": [1, 0, 0],
        "filters": [{"field": "document_date", "op": "exists", "value": False}],
        "collections": ["one"],
    }
    with notices(connection) as reported:
        assert call(connection, MINE, **search, snippet=True, neighbor_window=1) == []
    # What they cast before the call, they cast as themselves.
    return [user for user in reported if user != "authenticated"]


@pytest.mark.usefixtures("yours")
@pytest.mark.parametrize(
    "name",
    [
        *("uuid", "text", "jsonb", "date", "tsquery", "tsvector", "regclass", "regconfig"),
        *("float8", "regproc", "int4multirange"),
    ],
)
def test_a_temporary_type_is_not_taken_for_a_built_in_one(me: Connection, name: str) -> None:
    # A check of a domain runs as whoever casts to it: here, as the owner of all rows.
    for statement in (
        f"create function pg_temp.spy(pg_catalog.{name}) returns boolean language plpgsql as"
        " $$ begin raise notice '%', current_user; return true; end $$",
        "grant execute on all functions in schema pg_temp to public",
        f"create domain pg_temp.{name} as pg_catalog.{name} check (pg_temp.spy(value))",
    ):
        me.execute(statement.encode())
    assert spied(me) == []


@pytest.mark.usefixtures("yours")
def test_a_temporary_table_is_not_taken_for_a_real_one(me: Connection) -> None:
    for name in ("knowledge_chunks", "knowledge_documents", "pg_class", "pg_attribute", "pg_proc"):
        me.execute(f"create temp table {name} (id int)".encode())
    me.execute("create type pg_temp.knowledge_search_hit as (id int)")
    assert spied(me) == []


@pytest.mark.usefixtures("yours")
def test_a_function_or_operator_of_a_caller_is_not_run(me: Connection, owner: Connection) -> None:
    owner.execute("create schema attacker")
    try:
        owner.execute("grant all on schema attacker to authenticated")
        spy = "language plpgsql as $$ begin raise notice '%', current_user; return null; end $$"
        for statement in (
            *(
                f"create function attacker.{signature} {spy}"
                for signature in (
                    *("uid() returns uuid", "lower(text) returns text"),
                    "jsonb_typeof(jsonb) returns text",
                    "hybrid_search_knowledge_chunks() returns int",
                    "same(text, text) returns boolean",
                    "near(extensions.vector, extensions.vector) returns float8",
                    "matches(tsvector, tsquery) returns boolean",
                )
            ),
            "create operator attacker.= (function = attacker.same, leftarg = text,"
            " rightarg = text)",
            "create operator attacker.<=> (function = attacker.near,"
            " leftarg = extensions.vector, rightarg = extensions.vector)",
            "create operator attacker.@@ (function = attacker.matches, leftarg = tsvector,"
            " rightarg = tsquery)",
            "create type attacker.knowledge_search_hit as (id int)",
            "set search_path = attacker, pg_catalog, public, extensions",
        ):
            me.execute(statement.encode())
        # They are found where the search path is the caller's.
        assert me.execute("select lower('A')").fetchall() == [(None,)]
        assert spied(me) == []
    finally:
        owner.execute("drop schema attacker cascade")
