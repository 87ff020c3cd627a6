"""What a viewer must not learn: random corpora, viewers and calls, and attacks on the roles.

Every stored row has a word of its own in each of its texts, so that a leak names its row.
"""

import json
from collections.abc import Sequence
from functools import partial
from typing import Any, cast
from uuid import UUID

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import sql
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from conftest import Connect, Connection
from corpora import own_word, words_of
from homes import in_its_module
from second_brain.services.functions import packed

Row = dict[str, Any]

ME, YOU = UUID(int=1), UUID(int=2)
ROUTES = ("viewer_id", "public_only", "search_my", "batch", "fused batch")
SCORES = (
    "rrf_score",
    "text_score",
    "vector_rank",
    "text_rank",
    "match_type",
    "total_count",
    "confidence",
)
# The arguments that select rows.
ROWS = ("filters", "collections", "date_from")
TYPES = {
    "query_embedding": "extensions.vector",
    "filters": "jsonb",
    "formulations": "jsonb",
    "queries": "jsonb",
    "search": "jsonb",
}


@pytest.fixture
def dsn(emptied_dsn: str) -> str:
    """Stand in for the fixture of a database per test."""
    return emptied_dsn


@pytest.fixture
def owner(connect: Connect) -> Connection:
    """The owner's connection, as an administrator who changes chunks and documents apart."""
    return connect()


@pytest.fixture
def me(connect: Connect) -> Connection:
    """A signed-in user's connection."""
    return connect("authenticated", uid=ME)


def call(connection: Connection, function: str, **arguments: Any) -> list[Row]:
    arguments = packed(function, arguments) if "search" not in arguments else arguments
    statement = sql.SQL("select * from public.{}({})").format(
        sql.Identifier(function),
        sql.SQL(", ").join(
            sql.SQL("{} => {}{}").format(
                sql.Identifier(name),
                sql.Placeholder(name),
                sql.SQL(cast(Any, f"::{TYPES[name]}" if name in TYPES else "")),
            )
            for name in arguments
        ),
    )
    given = {
        name: Jsonb(value, partial(json.dumps, default=str))
        if TYPES.get(name) == "jsonb"
        else value
        for name, value in arguments.items()
    }
    if "query_embedding" in given:
        given["query_embedding"] = str(given["query_embedding"])
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(statement, given).fetchall()


# A corpus, and what a viewer sees of it.

owners = st.sampled_from([ME, ME, YOU, YOU, None])
visibilities = st.sampled_from(["private", "public"])
sensitivities = st.sampled_from([None, "high", "low"])
vocabulary = ("alpha", "beta", "gamma")
directions = st.sampled_from([[1, 0, 0], [0.8, 0.6, 0], [0, 1, 0], [0.6, 0, -0.8], [-1, 0, 0]])


def documents() -> st.SearchStrategy[list[Row]]:
    one = st.fixed_dictionaries(
        {"owner_id": owners, "visibility": visibilities, "sensitivity": sensitivities}
    )
    return st.lists(one, min_size=2, max_size=3)


@st.composite
def chunks(draw: st.DrawFn, of: Sequence[Row]) -> list[Row]:
    """Draw chunks, most of them as their document is and some changed afterwards."""
    found = []
    for number in range(draw(st.integers(6, 12))):
        place = draw(st.sampled_from([*range(len(of)), *range(len(of)), None]))
        inherits = place is not None and draw(st.sampled_from([True, True, False]))
        own = {"owner_id": owners, "visibility": visibilities, "sensitivity": sensitivities}
        found.append(
            {
                name: of[place][name] if inherits and place is not None else draw(values)
                for name, values in own.items()
            }
            | {
                "number": number,
                "document": place,
                "chunk_index": draw(st.sampled_from([None, 0, 1, 1, 2, 3])),
                "embedding": draw(st.none() | directions),
                "collection": draw(st.sampled_from(["one", "one", "two"])),
                "document_date": draw(
                    st.sampled_from([None, "2020-01-01", "2026-01-01", "2026-01-01"])
                ),
                "status": draw(
                    st.sampled_from(["active"] * 5 + ["superseded", "archived", "deleted"])
                ),
                "words": draw(st.lists(st.sampled_from(vocabulary), min_size=1, max_size=4)),
            }
        )
    return found


@st.composite
def corpora(draw: st.DrawFn) -> tuple[list[Row], list[Row]]:
    of = draw(documents())
    return of, draw(chunks(of))


def store(connection: Connection, of: Sequence[Row], stored: Sequence[Row]) -> None:
    """Replace all that is stored; a document without a title is one that is not to be seen."""
    with connection.transaction(), connection.cursor() as cursor:
        cursor.execute("truncate public.knowledge_documents, public.knowledge_chunks")
        cursor.executemany(
            "insert into public.knowledge_documents"
            " (id, external_key, title, source_url, author, owner_id, visibility, sensitivity)"
            " values (%(id)s, %(word)s, %(title)s, %(title)s, %(title)s,"
            "         %(owner_id)s, %(visibility)s, %(sensitivity)s)",
            [
                {
                    "word": own_word("doc", place),
                    "title": own_word("doc", place),
                    "id": UUID(int=place + 1),
                }
                | one
                for place, one in enumerate(of)
            ],
        )
        cursor.executemany(
            "insert into public.knowledge_chunks"
            " (id, document_id, chunk_index, heading, content, metadata, embedding, collection)"
            " values (%(id)s, %(document_id)s, %(chunk_index)s, %(word)s, %(content)s,"
            "         %(metadata)s, %(embedding)s, %(collection)s)",
            [
                one
                | {
                    "id": UUID(int=one["number"] + 1),
                    "document_id": None
                    if one["document"] is None
                    else UUID(int=one["document"] + 1),
                    "word": own_word("row", one["number"]),
                    "content": " ".join([*one["words"], own_word("row", one["number"])]),
                    "metadata": Jsonb(
                        {"word": own_word("row", one["number"]), "tag": one["words"][0]}
                    ),
                    "embedding": None if one["embedding"] is None else str(one["embedding"]),
                }
                for one in stored
            ],
        )
        cursor.executemany(
            "update public.knowledge_chunks set owner_id = %(owner_id)s, status = %(status)s,"
            " visibility = %(visibility)s, sensitivity = %(sensitivity)s,"
            " document_date = %(document_date)s where id = %(id)s",
            [one | {"id": UUID(int=one["number"] + 1)} for one in stored],
        )


def meets(row: Row, condition: Row) -> bool:
    value, wanted = row[condition["field"]], condition["value"]
    value = None if value is None else str(value)
    match condition["op"]:
        case "eq":
            return bool(value == wanted)
        case "ne":
            return bool(value != wanted)
        case "in":
            return value in wanted
        case "not_in":
            return value not in wanted
        case _:
            return (value is not None) is wanted


def may_see(row: Row, viewer: UUID | None, public_only: bool) -> bool:
    return bool(
        row["visibility"] == "public"
        or (not public_only and (viewer is None or row["owner_id"] == viewer))
    )


# Calls: everything that could widen an answer.

VALUES: dict[str, list[str | None]] = {
    "owner_id": [str(ME), str(YOU), None],
    "visibility": ["private", "public"],
    "sensitivity": ["high", "low", None],
}


@st.composite
def view_conditions(draw: st.DrawFn) -> list[Row]:
    conditions = []
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 1, 2]))):
        field = draw(st.sampled_from(sorted(VALUES)))
        op = draw(st.sampled_from(["eq", "ne", "in", "not_in", "exists"]))
        value: Any = draw(st.sampled_from(VALUES[field]))
        if op in ("in", "not_in"):
            value = draw(st.lists(st.sampled_from(VALUES[field]), max_size=3))
        elif op == "exists":
            value = draw(st.booleans())
        conditions.append({"field": field, "op": op, "value": value})
    return conditions


asked_words = st.lists(
    st.sampled_from(
        [*vocabulary, *vocabulary, "-beta", "or", *(own_word("row", number) for number in range(6))]
    ),
    min_size=1,
    max_size=5,
).map(" ".join)
formulation_lists = st.lists(
    st.fixed_dictionaries({"query_text": asked_words})
    | st.fixed_dictionaries({"query_embedding": directions}),
    min_size=1,
    max_size=2,
)
other_conditions = st.sampled_from(
    [
        {"field": "metadata.tag", "op": "ne", "value": "alpha"},
        {"field": "metadata.word", "op": "gte", "value": own_word("row", 2)},
        {"field": "metadata", "op": "contains", "value": {"tag": "beta"}},
        {"field": "chunk_index", "op": "not_in", "value": [0]},
        {"field": "document_id", "op": "exists", "value": False},
    ]
)


@st.composite
def requests(draw: st.DrawFn) -> Row:
    arguments: Row = {
        "match_count": draw(st.sampled_from([100, 100, 100, 3])),
        "pool_size": 100,  # with three questions, within the bound of a user
        "match_threshold": draw(st.sampled_from([-1.0, -1.0, 0.0, 0.7])),
        "fusion": draw(st.sampled_from(["rrf", "relative_score", "auto"])),
        "search_mode": draw(st.sampled_from([*["websearch"] * 4, "simple", "phrase"])),
        "neighbor_window": draw(st.sampled_from([0, 1, 2, 5])),
        "snippet": draw(st.booleans()),
        "one_per_document": draw(st.booleans()),
        "match_offset": draw(st.sampled_from([0, 0, 0, 0, 1, 4])),
    }
    if draw(st.booleans()):
        arguments["query_text"] = draw(asked_words)
    if "query_text" not in arguments or draw(st.booleans()):
        arguments["query_embedding"] = draw(directions)
    conditions = draw(view_conditions())
    filters = [
        *conditions,
        *draw(st.sampled_from([[], [], []]) | other_conditions.map(lambda one: [one])),
    ]
    if filters:
        arguments["filters"] = draw(st.permutations(filters))
    for name, values in (
        ("collections", st.sampled_from([["one"], ["one", "two"], ["two", "none"]])),
        ("recency_half_life", st.sampled_from([0.5, 365.0])),
        ("date_from", st.sampled_from(["2020-01-01", "2025-01-01"])),
        ("formulations", formulation_lists),
    ):
        if draw(st.sampled_from([True, False, False, False])):
            arguments[name] = draw(values)
    return {"arguments": arguments, "conditions": conditions}


def ask(route: str, service: Connection, me: Connection, arguments: Row) -> list[Row]:
    """Call by one of the ways there are, each for what this viewer may see."""
    search = "hybrid_search_knowledge_chunks"
    dated = {"date_from": None} if "date_from" not in arguments else {}
    if route == "viewer_id":
        return call(service, search, **arguments, viewer_id=ME)
    if route == "public_only":
        return call(service, search, **arguments, public_only=True)
    if route == "search_my":
        return call(me, "search_my_knowledge_chunks", **arguments)
    first = arguments | dated | {"viewer_id": str(ME)}
    if route == "batch":
        queries = [{"query_text": f"alpha {own_word('row', 1)}", "viewer_id": str(ME)}, first]
        rows = call(service, f"{search}_batch", queries=queries)
        assert words_of([row for row in rows if row["query_index"] == 0]) <= words_of(
            call(service, search, query_text=f"alpha {own_word('row', 1)}", viewer_id=ME)
        )
        return [row | {"query_index": 0} for row in rows if row["query_index"] == 1]
    further = first.pop("formulations", [{"query_text": f"gamma {own_word('row', 2)}"}])
    return call(service, f"{search}_batch", queries=[first, *further], fuse=True)


def check_an_answer(
    service: Connection,
    owner: Connection,
    me: Connection,
    corpus: tuple[list[Row], list[Row]],
    request: Row,
    public_only: bool,
    modules: tuple[str, ...],
) -> None:
    of, stored = corpus
    arguments = request["arguments"]
    visible = [
        one
        for one in stored
        if one["status"] == "active"
        and may_see(one, ME, public_only)
        and all(meets(one, condition) for condition in request["conditions"])
    ]
    allowed = {own_word("row", one["number"]) for one in visible} | {
        own_word("doc", place) for place, one in enumerate(of) if may_see(one, ME, public_only)
    }
    routes = [route for route in ROUTES if (route == "public_only") is public_only]
    store(owner, of, stored)
    answers = [ask(route, service, me, arguments) for route in routes]
    counts = "embedding_queue" in modules
    pending = counts and count_pending(service, me, arguments, public_only)
    for route, rows in zip(routes, answers, strict=True):
        assert words_of(rows) <= allowed, route

    # The same from a corpus in which the rest never was.
    unseen = [one if may_see(one, ME, public_only) else one | {"title": None} for one in of]
    store(owner, unseen, visible)
    for route, rows in zip(routes, answers, strict=True):
        check_likeness(rows, ask(route, service, me, arguments), arguments, route)
    assert (counts and count_pending(service, me, arguments, public_only)) == pending


def count_pending(
    service: Connection, me: Connection, arguments: Row, public_only: bool
) -> tuple[list[Row], list[Row]]:
    """Count the chunks without an embedding, as the service for this viewer and as the user."""
    rows = {name: arguments[name] for name in ROWS if name in arguments}
    viewer = {"public_only": True} if public_only else {"viewer_id": ME}
    own = {"public_only": public_only}
    return (
        call(service, "count_pending_knowledge_embeddings", **rows, **viewer),
        call(me, "count_my_pending_knowledge_embeddings", **rows, **own),
    )


def check_likeness(rows: list[Row], expected: list[Row], arguments: Row, route: str) -> None:
    """Document frequencies are of all chunks: they may change the order, not who is in the list."""
    assert {row["total_count"] for row in rows} == {row["total_count"] for row in expected}, route
    assert len(rows) == len(expected)
    by_words = "query_text" in arguments or "formulations" in arguments or route == "fused batch"
    if not by_words and arguments["fusion"] != "auto":
        assert rows == expected
    elif arguments["match_offset"] == 0 and arguments["match_count"] == 1000:

        def listed(answer: list[Row]) -> dict[Any, Row]:
            grouped = arguments["one_per_document"]
            return {(grouped and row["document_id"]) or row["id"]: row for row in answer}

        assert listed(rows).keys() == listed(expected).keys(), route
        for unit, row in listed(rows).items():
            other = listed(expected)[unit]
            if row["id"] == other["id"]:
                assert {name: row[name] for name in row if name not in SCORES} == {
                    name: other[name] for name in other if name not in SCORES
                }


generated = given(corpus=corpora(), request_=requests(), public_only=st.booleans())
unhurried = settings(
    deadline=None,
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
    ],
)


@settings(unhurried, max_examples=50)
@generated
def test_an_answer_is_that_of_a_corpus_without_what_the_viewer_may_not_see(
    service_role: Connection,
    owner: Connection,
    me: Connection,
    corpus: tuple[list[Row], list[Row]],
    request_: Row,
    public_only: bool,
    modules: tuple[str, ...],
) -> None:
    check_an_answer(service_role, owner, me, corpus, request_, public_only, modules)


@pytest.mark.slow
@settings(unhurried, max_examples=1_200)
@generated
def test_an_answer_is_that_of_a_corpus_without_what_the_viewer_may_not_see_at_length(
    service_role: Connection,
    owner: Connection,
    me: Connection,
    corpus: tuple[list[Row], list[Row]],
    request_: Row,
    public_only: bool,
    modules: tuple[str, ...],
) -> None:
    check_an_answer(service_role, owner, me, corpus, request_, public_only, modules)


# Without the functions: tables, statistics, errors.

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


@settings(unhurried, max_examples=30)
@given(corpus=corpora())
def test_a_user_reads_only_their_own_and_public_rows(
    owner: Connection, me: Connection, corpus: tuple[list[Row], list[Row]]
) -> None:
    of, stored = corpus
    store(owner, of, stored)
    # As a project that grants reads knowingly: by default users have no grant on any table.
    owner.execute(
        "grant select on public.knowledge_chunks, public.knowledge_documents to authenticated"
    )
    owner.execute("analyze public.knowledge_chunks, public.knowledge_documents")
    chunks_seen = {
        own_word("row", one["number"])
        for one in stored
        if one["status"] == "active" and may_see(one, ME, False)
    }
    documents_seen = {
        own_word("doc", place) for place, one in enumerate(of) if may_see(one, ME, False)
    }
    reported: list[str] = []

    def listen(message: psycopg.errors.Diagnostic) -> None:
        reported.append(message.message_primary or "")

    me.execute(PEEK.encode())
    me.add_notice_handler(listen)
    try:
        for statement in READS:
            try:
                rows: object = me.execute(statement.encode()).fetchall()
            except psycopg.DataError as error:
                rows = (str(error), error.diag.message_detail, error.diag.context)
            assert words_of(rows) <= chunks_seen | documents_seen, statement
    finally:
        me.remove_notice_handler(listen)
    assert words_of(reported) == chunks_seen | documents_seen
    assert me.execute(
        "select (select count(*) from public.knowledge_chunks),"
        "       (select count(*) from public.knowledge_documents)"
    ).fetchall() == [(len(chunks_seen), len(documents_seen))]


PRIVATE_ROW: Row = {
    "number": 0,
    "document": 0,
    "owner_id": YOU,
    "visibility": "private",
    "sensitivity": None,
    "chunk_index": 0,
    "embedding": [1, 0, 0],
    "collection": "one",
    "document_date": None,
    "status": "active",
    "words": ["alpha"],
}


def only_yours(owner: Connection) -> None:
    store(owner, [{"owner_id": YOU, "visibility": "private", "sensitivity": None}], [PRIVATE_ROW])


@pytest.mark.parametrize("table", ["knowledge_chunks", "knowledge_documents", "knowledge_sources"])
def test_a_visitor_reads_no_table(connect: Connect, owner: Connection, table: str) -> None:
    only_yours(owner)
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match=table) as caught:
        connect("anon").execute(f"select * from public.{table}".encode())
    assert words_of(str(caught.value)) == set()


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
def test_a_refusal_tells_nothing_that_is_stored(
    owner: Connection, me: Connection, arguments: Row
) -> None:
    only_yours(owner)
    question = {"query_text": "alpha"} if arguments else {}
    with pytest.raises(psycopg.errors.InvalidParameterValue) as caught:
        call(me, "search_my_knowledge_chunks", **question | arguments)
    diagnosis = caught.value.diag
    reported = (
        str(caught.value),
        diagnosis.message_detail,
        diagnosis.message_hint,
        diagnosis.context,
    )
    assert words_of(reported) == set()


# Whose search it is.


@pytest.mark.parametrize("claims", ["", "{}", '{"role": "authenticated"}', '{"sub": ""}'])
def test_without_a_user_there_is_no_search_of_ones_own(
    connect: Connect, owner: Connection, claims: str
) -> None:
    only_yours(owner)
    nobody = connect("authenticated")
    nobody.execute("select set_config('request.jwt.claims', %s, false)", [claims])
    # An empty subject is no UUID, depending on whose auth.uid() it is.
    with pytest.raises(
        (psycopg.errors.InsufficientPrivilege, psycopg.errors.InvalidTextRepresentation)
    ):
        call(nobody, "search_my_knowledge_chunks", query_text="alpha")


def test_a_user_names_no_other_viewer(me: Connection, owner: Connection) -> None:
    only_yours(owner)
    with pytest.raises(psycopg.errors.UndefinedFunction, match="viewer_id"):
        call(me, "search_my_knowledge_chunks", query_text="alpha", viewer_id=YOU)
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=r"formulations\[0\]"):
        call(
            me,
            "search_my_knowledge_chunks",
            query_text="alpha",
            formulations=[{"query_text": "alpha", "viewer_id": str(YOU)}],
        )
    assert call(me, "search_my_knowledge_chunks", query_text="alpha") == []


@pytest.mark.parametrize(
    "function",
    [
        in_its_module("facet_my_knowledge_chunks"),
        in_its_module("count_my_pending_knowledge_embeddings"),
    ],
)
def test_a_user_names_no_other_viewer_among_the_arguments_of_a_search(
    me: Connection, owner: Connection, function: str
) -> None:
    only_yours(owner)
    for viewer in ({"viewer_id": YOU}, {"viewer_groups": ["board"]}, {"viewer_id": None}):
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="viewer_"):
            call(me, function, **viewer)


def test_a_user_cannot_give_the_lists_that_a_search_fuses(
    me: Connection, owner: Connection
) -> None:
    only_yours(owner)
    lists = Jsonb({"lists": [], "chunks": {}})
    with pytest.raises(psycopg.errors.UndefinedFunction, match="ranked_lists"):
        call(me, "search_my_knowledge_chunks", query_text="alpha", ranked_lists=lists)


@pytest.mark.module("facets")
def test_a_user_cannot_give_the_lists_whose_facets_are_counted(
    me: Connection, owner: Connection
) -> None:
    only_yours(owner)
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="ranked_lists"):
        call(me, "facet_my_knowledge_chunks", search={"query_text": "alpha", "ranked_lists": []})


@pytest.mark.parametrize(
    "function", ["search_my_knowledge_chunks", in_its_module("facet_my_knowledge_chunks")]
)
def test_a_user_cannot_have_the_chunks_of_words_told(
    me: Connection, owner: Connection, function: str
) -> None:
    only_yours(owner)
    nothing = '{"listed": {}, "counted": {}, "expansions": [], "unknown": {}}'
    with me.transaction():
        me.execute("set local knowledge_internal.recording = 'on'")
        me.execute("select set_config('knowledge_internal.recorded', %s, true)", [nothing])
        call(me, function, query_text="alpha")
        ((reported,),) = me.execute(
            "select current_setting('knowledge_internal.recorded')"
        ).fetchall()
    assert reported == nothing


@pytest.mark.parametrize(
    "function", ["search_my_knowledge_chunks", in_its_module("facet_my_knowledge_chunks")]
)
def test_a_user_cannot_change_what_a_search_reads_of_the_corpus(
    me: Connection, owner: Connection, function: str
) -> None:
    only_yours(owner)
    expected = call(me, function, query_text="alpha")
    with me.transaction():
        me.execute("set local knowledge_internal.readings = '[{}]'")
        assert call(me, function, query_text="alpha") == expected


# Objects of the caller's own that stand in for those of the search.


def spied(connection: Connection) -> list[str]:
    """Search as the connection's user; return as whom their own code ran, but for themselves."""
    reported: list[str] = []

    def listen(message: psycopg.errors.Diagnostic) -> None:
        reported.append(message.message_primary or "")

    connection.add_notice_handler(listen)
    rows = call(
        connection,
        "search_my_knowledge_chunks",
        query_text=f"alpha {own_word('row', 0)}",
        query_embedding=[1, 0, 0],
        filters=[{"field": "document_date", "op": "exists", "value": False}],
        collections=["one"],
        snippet=True,
        neighbor_window=1,
    )
    assert rows == []
    # What they cast before the call, they cast as themselves.
    return [user for user in reported if user != "authenticated"]


@pytest.mark.parametrize(
    "name",
    [
        *("uuid", "text", "jsonb", "date", "tsquery", "tsvector", "regclass", "regconfig"),
        *("float8", "regproc", "int4multirange"),
    ],
)
def test_a_temporary_type_is_not_taken_for_a_built_in_one(
    connect: Connect, owner: Connection, name: str
) -> None:
    # A check of a domain runs as whoever casts to it: here, as the owner of all rows.
    only_yours(owner)
    me = connect("authenticated", uid=ME)
    for statement in (
        f"create function pg_temp.spy(pg_catalog.{name}) returns boolean language plpgsql as"
        " $$ begin raise notice '%', current_user; return true; end $$",
        "grant execute on all functions in schema pg_temp to public",
        f"create domain pg_temp.{name} as pg_catalog.{name} check (pg_temp.spy(value))",
    ):
        me.execute(statement.encode())
    assert spied(me) == []


def test_a_temporary_table_is_not_taken_for_a_real_one(connect: Connect, owner: Connection) -> None:
    only_yours(owner)
    me = connect("authenticated", uid=ME)
    for name in ("knowledge_chunks", "knowledge_documents", "pg_class", "pg_attribute", "pg_proc"):
        me.execute(f"create temp table {name} (id int)".encode())
    me.execute("create type pg_temp.knowledge_search_hit as (id int)")
    assert spied(me) == []


def test_a_function_or_operator_of_the_callers_is_not_run(
    connect: Connect, owner: Connection
) -> None:
    only_yours(owner)
    owner.execute("create schema attacker")
    try:
        owner.execute("grant all on schema attacker to authenticated")
        me = connect("authenticated", uid=ME)
        spy = "language plpgsql as $$ begin raise notice '%', current_user; return null; end $$"
        for statement in (
            f"create function attacker.uid() returns uuid {spy}",
            f"create function attacker.lower(text) returns text {spy}",
            f"create function attacker.jsonb_typeof(jsonb) returns text {spy}",
            f"create function attacker.hybrid_search_knowledge_chunks() returns int {spy}",
            f"create function attacker.same(text, text) returns boolean {spy}",
            f"create function attacker.near(extensions.vector, extensions.vector) returns float8"
            f" {spy}",
            f"create function attacker.matches(tsvector, tsquery) returns boolean {spy}",
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
