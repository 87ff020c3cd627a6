"""Random corpora, viewers and calls, and what a viewer may see by a reference of its own."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.types.json import Jsonb

from conftest import Connection
from corpora import call as corpora_call
from corpora import own_word, words_of

Row = dict[str, Any]

ME, YOU = UUID(int=1), UUID(int=2)
ROUTES = ("viewer_id", "public_only", "search_my", "batch")
SCORES = (
    "rrf_score",
    "text_score",
    "vector_rank",
    "text_rank",
    "match_type",
    "total_count",
    "confidence",
    "answer_confidence",
)
# The arguments that select rows.
ROWS = ("filters", "collections", "date_from")


def call(connection: Connection, function: str, **arguments: Any) -> list[Row]:
    return corpora_call(connection, function, arguments)


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
boost_forms = st.sampled_from(
    [
        {"filters": [{"field": "owner_id", "op": "exists", "value": True}], "factor": 2},
        {"filters": {"visibility": "private"}, "factor": 0.1},
        {"filters": [{"field": "sensitivity", "op": "ne", "value": "public"}], "factor": 3},
        {"field": "chunk_index", "modifier": "log1p", "weight": 0.5},
        {"field": "document_date", "decay": "gauss", "origin": "2022-01-01", "scale": 500},
    ]
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
        ("boosts", st.lists(boost_forms, min_size=1, max_size=3)),
        ("order_by", st.sampled_from(["document_date asc", "chunk_index"])),
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
    queries = [{"query_text": f"alpha {own_word('row', 1)}", "viewer_id": str(ME)}, first]
    rows = call(service, f"{search}_batch", queries=queries)
    assert words_of([row for row in rows if row["query_index"] == 0]) <= words_of(
        call(service, search, query_text=f"alpha {own_word('row', 1)}", viewer_id=ME)
    )
    return [row | {"query_index": 0} for row in rows if row["query_index"] == 1]


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
    if "arrange" not in modules:
        arguments = {name: arguments[name] for name in arguments.keys() - {"boosts", "order_by"}}
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
    routes = [
        route
        for route in ROUTES
        if (route == "public_only") is public_only and (route != "batch" or "batch" in modules)
    ]
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
    by_words = "query_text" in arguments or "formulations" in arguments
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
