"""Who asks, in the functions around the search: visitors, and the viewer of a single leg."""

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest

from conftest import Connect, Connection
from corpora import ask as call
from homes import in_its_module
from support.documents import embedded, upsert
from support.emptied import dsn as dsn

pytestmark = pytest.mark.large

ME, YOU = UUID(int=1), UUID(int=2)
OPEN, MINE, YOURS = "The open kiwi.", "My kiwi.", "Your kiwi."
PUBLIC = "search_public_knowledge_chunks"


@pytest.fixture(autouse=True)
def corpus(connect: Connect) -> None:
    """Three documents with the same embedding: a public one, mine, and another user's."""
    service = connect("service_role")
    for content, owner, visibility in (
        (OPEN, None, "public"),
        (MINE, ME, "private"),
        (YOURS, YOU, "private"),
    ):
        chunks = (embedded(content), f"After that: {content}")
        upsert(service, content, *chunks, title=content, owner_id=owner, visibility=visibility)


@pytest.fixture
def visitor(connect: Connect) -> Iterator[Connection]:
    """A connection of role anon, to which the project has granted the public search."""
    owner = connect()
    owner.execute(f"grant execute on function public.{PUBLIC} to anon".encode())
    yield connect("anon")
    owner.execute(f"revoke execute on function public.{PUBLIC} from anon".encode())


def contents(rows: list[dict[str, Any]]) -> set[str]:
    return {row["content"] for row in rows if not row["content"].startswith("After")}


@pytest.mark.module("visitors")
@pytest.mark.parametrize("role", ["anon", "authenticated", "service_role"])
def test_nobody_may_call_the_public_search_until_a_project_grants_it(
    connect: Connect, role: Any
) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match=PUBLIC):
        call(connect(role, uid=ME), PUBLIC, query_text="kiwi")


@pytest.mark.module("visitors")
def test_a_visitor_cannot_name_a_viewer_or_ask_for_private_rows(visitor: Connection) -> None:
    for argument in ("viewer_id", "public_only", "ranked_lists"):
        with pytest.raises(psycopg.errors.UndefinedFunction):
            call(visitor, PUBLIC, query_text="kiwi", **{argument: None})
    private = [{"field": "visibility", "op": "eq", "value": "private"}]
    assert call(visitor, PUBLIC, query_text="kiwi", filters=private) == []


@pytest.mark.module("visitors")
def test_a_visitor_may_not_call_the_search_itself(visitor: Connection) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        call(visitor, "hybrid_search_knowledge_chunks", query_text="kiwi")


FORMULATION = {"query_text": "kiwi"}
FIVE_LISTS = {"collections": "{a,b,c,d,e}", "formulations": [FORMULATION]}


@pytest.mark.module("visitors")
def test_a_visitors_search_is_bounded(visitor: Connection) -> None:
    def check(within: dict[str, Any], beyond: dict[str, Any], complaint: str) -> None:
        call(visitor, PUBLIC, **{"query_text": "kiwi", **within})
        with pytest.raises(psycopg.errors.InvalidParameterValue) as refused:
            call(visitor, PUBLIC, **{"query_text": "kiwi", **beyond})
        assert refused.value.diag.message_primary == complaint

    for name, least, most in (
        ("match_count", 1, 50),
        ("pool_size", 1, 100),
        ("match_offset", 0, 200),
        ("neighbor_window", 0, 2),
    ):
        complaint = f"{name} must be between {least} and {most}, not {most + 1}"
        check({name: most}, {name: most + 1}, complaint)
    for name, within, beyond, rule in (
        ("collections", "{a,b,c,d,e}", "{a,b,c,d,e,f}", "at most 5 names for visitors, not 6"),
        (
            "query_text",
            "a" * 1000,
            "a" * 1001,
            "at most 1000 characters long for visitors, not 1001",
        ),
        (
            "filters",
            {"a": "b" * 1990},
            {"a": "b" * 1992},
            "at most 2000 characters of JSON for visitors, not 2001",
        ),
    ):
        check({name: within}, {name: beyond}, f"{name} must be {rule}")
    for one in (FORMULATION, {"query_embedding": "[1,0,0]"}):
        complaint = "formulations must be an array of at most 2 objects for visitors, not 3"
        check({"formulations": [one] * 2}, {"formulations": [one] * 3}, complaint)
    check(
        {"formulations": [FORMULATION, {"query_text": "b" * 1000}]},
        {"formulations": [FORMULATION, {"query_text": "b" * 1001}]},
        "formulations[].query_text must be at most 1000 characters long for visitors, not 1001",
    )
    check(
        {"pool_size": 75, **FIVE_LISTS},
        {"pool_size": 76, **FIVE_LISTS},
        "pool_size (at least match_count) times collections times questions must be at most"
        " 750, not 760",
    )


@pytest.mark.parametrize("name", ["pool_size", "match_count"])
def test_the_lists_of_a_users_search_are_bounded_together(connect: Connect, name: str) -> None:
    user = connect("authenticated", uid=ME)
    lists: dict[str, Any] = {"collections": "{a,b,c,d,knowledge}", "formulations": [FORMULATION]}
    within, beyond = ({"query_text": "kiwi", **lists, name: rows} for rows in (250, 251))
    assert contents(call(user, "search_my_knowledge_chunks", **within)) == {OPEN, MINE}
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=r"at most 2500, not 2510"):
        call(user, "search_my_knowledge_chunks", **beyond)


@pytest.mark.parametrize(
    "function", ["search_my_knowledge_chunks", in_its_module("facet_my_knowledge_chunks")]
)
def test_the_texts_of_a_users_call_are_bounded_together(connect: Connect, function: str) -> None:
    user = connect("authenticated", uid=ME)

    def ask(**search: Any) -> None:
        call(user, function, **({"search": search} if "facet" in function else search))

    # Of a longer text, 4096 characters are read.
    ask(query_text="a" * 9000, formulations=[{"query_text": "b" * 9000}])
    three = [{"query_text": "b" * 4090}] * 2
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=r"at most 8192 .*, not 12270"):
        ask(query_text="a" * 4090, formulations=three)


LEGS = {
    "match_knowledge_chunks": {"query_embedding": "[1,0,0]"},
    "search_knowledge_chunks_fulltext": {"query_text": "kiwi"},
}


@pytest.mark.parametrize("function", LEGS)
def test_a_single_leg_keeps_to_the_viewer(connect: Connect, function: str) -> None:
    service = connect("service_role")
    for scope, found in (
        ({}, {OPEN, MINE, YOURS}),
        ({"viewer_id": ME}, {OPEN, MINE}),
        ({"viewer_id": YOU}, {OPEN, YOURS}),
        ({"public_only": True}, {OPEN}),
        ({"viewer_id": ME, "public_only": True}, {OPEN}),
    ):
        given: dict[str, Any] = {**LEGS[function], **scope}
        assert contents(call(service, function, **given)) == found
