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
def test_a_visitor_cannot_name_a_viewer_or_ask_for_private_rows(visitor: Connection) -> None:
    for argument in ("viewer_id", "public_only", "ranked_lists"):
        with pytest.raises(psycopg.errors.UndefinedFunction):
            call(visitor, PUBLIC, query_text="kiwi", **{argument: None})
    private = [{"field": "visibility", "op": "eq", "value": "private"}]
    assert call(visitor, PUBLIC, query_text="kiwi", filters=private) == []


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
    long, texts = "b" * 1000, "at most 1000 characters long for visitors, not 1001"
    arrays = "an array of at most 2 objects for visitors, not 3"
    json = "at most 2000 characters of JSON for visitors, not 2001"
    names = "at most 5 names for visitors, not 6"
    by_vector = {"query_embedding": "[1,0,0]"}
    for name, within, beyond, rule in (
        ("collections", "{a,b,c,d,e}", "{a,b,c,d,e,f}", names),
        ("query_text", long, long + "b", texts),
        ("filters", {"a": "b" * 1990}, {"a": "b" * 1992}, json),
        ("formulations", [FORMULATION] * 2, [FORMULATION] * 3, arrays),
        ("formulations", [by_vector] * 2, [by_vector] * 3, arrays),
    ):
        check({name: within}, {name: beyond}, f"{name} must be {rule}")
    check(
        {"formulations": [FORMULATION, {"query_text": long}]},
        {"formulations": [FORMULATION, {"query_text": long + "b"}]},
        f"formulations[].query_text must be {texts}",
    )
    lists = "pool_size (at least match_count) times collections times questions must be at most"
    check({"pool_size": 75, **FIVE_LISTS}, {"pool_size": 76, **FIVE_LISTS}, f"{lists} 750, not 760")


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

    def ask(own: int, other: int, count: int) -> None:
        search = {"query_text": "a" * own, "formulations": [{"query_text": "b" * other}] * count}
        call(user, function, **({"search": search} if "facet" in function else search))

    ask(9000, 9000, 1)  # Of a longer text, 4096 characters are read.
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=r"at most 8192 .*, not 12270"):
        ask(4090, 4090, 2)
