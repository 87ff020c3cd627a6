"""The Supabase provider over HTTP: refused, lost, odd and cut answers, and the one for a loop."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from supabase.lib.client_options import AsyncClientOptions
from supabase_gateway import (
    HYBRID_ROW,
    ROW,
    SIDES,
    VIEWER,
    Answer,
    Gateway,
    Key,
    Real,
    Recorded,
    Rest,
    blocking,
    error,
    gateway,
    looping,
    rest,
    token,
)

from corpora import store_document
from second_brain import errors
from second_brain.services.supabase import AsyncSupabaseProvider, SupabaseProvider
from supabase import acreate_client
from waiting import until

__all__ = ["gateway", "rest"]  # fixtures


def zebra(provider: Any) -> Any:
    return provider.hybrid_search([1, 0, 0], "zebra")


@pytest.mark.parametrize(
    ("arguments", "code", "message", "kind"),
    [
        (
            {"query_embedding": [1, 0, 0, 0]},
            *("22023", "query_embedding has 4 dimensions, the stored embeddings have 3"),
            "dimension_mismatch",
        ),
        (
            {"search_mode": "nosuch"},
            *("22023", "search_mode must be one of websearch, simple, phrase, not nosuch"),
            "invalid_input",
        ),
        ({"query_embedding": [1, None, 3]}, "22P02", "invalid input syntax", "invalid_input"),
    ],
)
def test_a_refused_argument_is_an_invalid_input(
    rest: Rest, arguments: dict[str, Any], code: str, message: str, kind: str
) -> None:
    rest.given(error(400, code, message))
    given = {"query_embedding": [1, 0, 0], "query_text": "zebra", **arguments}
    results, details = rest.provider().hybrid_search(**given)
    assert results == []
    assert (details["fallback_reason"], details["error_type"]) == ("provider_error", "APIError")
    assert (details["error_kind"], details["code"]) == (kind, code)


@pytest.mark.parametrize(
    "arguments",
    [{"query_embedding": [float("nan"), 0, 0]}, {"query_text": "\ud800"}, {"top_k": object()}],
    ids=["NaN", "lone surrogate", "object"],
)
def test_what_the_client_cannot_send_is_an_invalid_input(
    gateway: Gateway, arguments: dict[str, Any]
) -> None:
    given = {"query_embedding": [1, 0, 0], "query_text": "zebra", **arguments}
    results, details = blocking(gateway, lambda one: one.hybrid_search(**given))
    assert (results, details["error_kind"], gateway.bodies) == ([], "invalid_input", [])


SEARCH = "function public.hybrid_search_knowledge_chunks"
OVERLOAD = (
    "(query_embedding extensions.vector, query_text text, match_count integer, match_threshold"
    " float8, vector_weight float8, text_weight float8, filter_type text, search_mode text,"
    " pool_size integer) returns void language sql as ''"
)


@pytest.mark.parametrize(
    ("recorded", "statement", "kind", "remedy"),
    [
        (
            error(404, "PGRST202", f"Could not find the {SEARCH} in the schema cache"),
            *(f"drop {SEARCH}", "migration_missing", "supabase db push"),
        ),
        (
            error(300, "PGRST203", "Could not choose the best candidate function between: …"),
            *(f"create {SEARCH}{OVERLOAD}", "migration_missing", "overloads"),
        ),
        (
            error(500, "57014", "canceling statement due to statement timeout"),
            *(f"alter {SEARCH} set statement_timeout = '1ms'", "timeout", "statement_timeout"),
        ),
        (
            error(403, "42501", "permission denied for function hybrid_search_knowledge_chunks"),
            *(f"revoke execute on {SEARCH} from service_role", "permission_denied"),
            "service_role",
        ),
    ],
    ids=["migration missing", "two overloads", "statement timeout", "grant missing"],
)
def test_a_database_that_is_not_ready_says_what_to_do(
    rest: Rest, recorded: Any, statement: str, kind: str, remedy: str
) -> None:
    rest.given(recorded, statement)
    _, details = rest.provider().hybrid_search([1, 0, 0], "zebra")
    assert (details["error_kind"], details["code"]) == (kind, recorded.body["code"])
    assert remedy in details["remedy"]


@pytest.mark.parametrize(
    ("key", "status", "code", "message", "kind"),
    [
        ("anon", 401, "42501", "permission denied for function", "permission_denied"),
        ("authenticated", 403, "42501", "permission denied for function", "permission_denied"),
        ("expired", 401, "PGRST303", "JWT expired", "authentication_failed"),
        ("unsigned", 401, "PGRST301", "No suitable key", "authentication_failed"),
    ],
)
def test_a_key_that_may_not_search_is_told_so(
    rest: Rest, key: Key, status: int, code: str, message: str, kind: str
) -> None:
    rest.given(error(status, code, message))
    _, details = rest.provider(key).hybrid_search([1, 0, 0], "zebra")
    assert (details["error_kind"], details["code"]) == (kind, code)
    assert token(key)[:20] not in str(details)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (error(503, "PGRST002", "Could not query the database. Retrying."), "unavailable"),
        (error(503, "57P01", "terminating connection"), "unavailable"),
        (Answer(502, "<html>Bad Gateway</html>", "text/html"), "unavailable"),
        (Answer(401, {"message": "Invalid API key", "hint": "?"}), "authentication_failed"),
        (Answer(404, "<html>Not Found</html>", "text/html"), "unexpected_answer"),
        (Answer(302, "", "text/html"), "unexpected_answer"),
        (Answer(200, "<html>Welcome</html>", "text/html"), "unexpected_answer"),
        (Answer(200, '[{"id": "cut o'), "unexpected_answer"),
        (Answer(200, {"id": "no rows"}), "unexpected_answer"),
    ],
)
def test_an_answer_of_a_proxy_is_not_an_empty_result(
    gateway: Gateway, answer: Answer, kind: str
) -> None:
    gateway.answer = answer
    results, details = blocking(gateway, zebra)
    assert (results, details["real_provider"], details["error_kind"]) == ([], False, kind)
    assert "127.0.0.1" not in str(details)
    # A search is sent once, whatever comes back.
    assert len(gateway.bodies) == 1


def test_the_key_does_not_follow_a_redirect(gateway: Gateway) -> None:
    with Gateway() as elsewhere:
        gateway.answer = Answer(307, "", "text/html", {"Location": elsewhere.url})
        _, details = blocking(gateway, zebra)
        elsewhere.timeout = 0
        elsewhere.handle_request()
        assert elsewhere.connections == 0
    assert details["error_kind"] == "unexpected_answer"


def test_a_slow_answer_is_a_timeout(gateway: Gateway) -> None:
    gateway.held.clear()
    _, details = blocking(gateway, zebra, timeout=0.2)
    assert (details["error_kind"], details["error_type"]) == ("client_timeout", "ReadTimeout")


def test_a_key_with_a_newline_after_it_works(gateway: Gateway) -> None:
    given = {"supabase_url": f"{gateway.url}/\n", "supabase_key": f"{token('anon')}\n"}
    with SupabaseProvider(given) as provider:
        assert "fallback_reason" not in provider.fulltext_search("zebra")[1]


def test_a_key_that_is_no_header_is_told_without_it(gateway: Gateway) -> None:
    given = {"supabase_url": gateway.url, "supabase_key": "hunter2\nhunter3"}
    with SupabaseProvider(given) as provider:
        _, details = provider.fulltext_search("zebra")
    assert details["error_kind"] == "configuration"
    assert "hunter" not in str(details)


def test_an_unexposed_schema_is_named_with_the_remedy(gateway: Gateway) -> None:
    gateway.answer = error(
        406, "PGRST106", "Invalid schema: knowledge_fr", "Only the following schemas are exposed"
    )
    _, details = blocking(gateway, zebra, schema="knowledge_fr")
    assert (details["code"], details["error_kind"]) == ("PGRST106", "migration_missing")
    assert "knowledge_fr" in details["error_message"]
    assert "exposed schemas" in details["remedy"]


def test_an_invalid_schema_is_refused() -> None:
    with pytest.raises(errors.InvalidInputError, match="schema must"):
        SupabaseProvider(schema="no such; name")


def test_one_connection_serves_many_calls_and_a_closed_provider_opens_another(
    gateway: Gateway,
) -> None:
    with Recorded(gateway).provider() as provider:
        for _ in range(3):
            provider.fulltext_search("zebra")
    assert gateway.connections == 1
    provider.fulltext_search("zebra")
    provider.close()
    assert gateway.connections == 2


@pytest.mark.parametrize(
    "answer",
    [
        Answer(body=[HYBRID_ROW]),
        Answer(body=[]),
        error(400, "22023", "pool_size must be between 1 and 1000, not 0"),
        error(500, "57014", "canceling statement due to statement timeout"),
        Answer(302, "", "text/html"),
        Answer(502, "<html>Bad Gateway</html>", "text/html"),
        Answer(200, '[{"id": "cut o'),
        Answer(200, {"id": "no rows"}),
    ],
    ids=str,
)
def test_a_loop_gets_the_answers_that_a_thread_gets(gateway: Gateway, answer: Answer) -> None:
    gateway.answer = answer
    searches: list[Callable[[Any], Any]] = [
        lambda provider: provider.hybrid_search([1, 0, 0], "zebra", snippet=True),
        lambda provider: provider.search_my_knowledge(None, "zebra"),
        lambda provider: provider.search_public_knowledge(None, "zebra"),
        lambda provider: provider.search([1, 0, 0], 3, 0.5),
        lambda provider: provider.fulltext_search("zebra", viewer_id=VIEWER),
        lambda provider: provider.hybrid_search_batch([{"query_text": "zebra"}]),
    ]

    async def on_a_loop(provider: AsyncSupabaseProvider) -> list[Any]:
        return [await search(provider) for search in searches]

    in_a_thread = blocking(gateway, lambda provider: [search(provider) for search in searches])
    assert looping(gateway, on_a_loop) == in_a_thread
    # Without the calls that ask why there are no hits.
    bodies = [body for body in gateway.bodies if "search" not in body]
    assert len(bodies) == 2 * len(searches)
    assert bodies[: len(searches)] == bodies[len(searches) :]


@SIDES
@pytest.mark.parametrize("place", ["before the answer", "in the answer"])
def test_a_connection_that_is_lost_is_opened_again(gateway: Gateway, side: Any, place: Any) -> None:
    gateway.answer = Answer(body=[HYBRID_ROW])
    gateway.drops = [place] * 2
    hits, details = side(gateway, zebra)
    assert "fallback_reason" not in details, details
    assert [hit.content for hit in hits] == [ROW["content"]]
    assert len(gateway.bodies) == gateway.connections == 3


@SIDES
def test_a_connection_that_stays_lost_is_told_so(gateway: Gateway, side: Any) -> None:
    gateway.drops = ["before the answer"] * 9
    hits, details = side(gateway, zebra, retries=1)
    assert (hits, details["error_kind"]) == ([], "connection_lost")
    assert details["error_type"] == "RemoteProtocolError"
    assert len(gateway.bodies) == 2
    assert side(gateway, zebra, retries=0)[1]["error_kind"] == "connection_lost"
    assert len(gateway.bodies) == 3


@SIDES
def test_a_call_has_a_timeout_of_its_own(gateway: Gateway, side: Any) -> None:
    gateway.held.clear()
    _, details = side(gateway, lambda provider: provider.fulltext_search("zebra", timeout=0.05))
    assert details["error_kind"] == "client_timeout"
    until(lambda: gateway.bodies)
    # One that was sent may be running, and is not sent again.
    assert len(gateway.bodies) == 1


def test_calls_on_a_loop_share_connections(gateway: Gateway) -> None:
    async def ask(provider: AsyncSupabaseProvider) -> None:
        for _ in range(3):
            await provider.fulltext_search("zebra")
        assert gateway.connections == 1
        await provider.close()
        await asyncio.gather(*(provider.fulltext_search("zebra") for _ in range(3)))

    looping(gateway, ask)
    assert gateway.connections <= 4
    assert len(gateway.bodies) == 6


def test_a_client_that_is_given_is_used_on_a_loop(gateway: Gateway) -> None:
    async def ask() -> None:
        async with httpx.AsyncClient() as http:
            client = await acreate_client(
                gateway.url, token("authenticated"), AsyncClientOptions(httpx_client=http)
            )
            provider = AsyncSupabaseProvider(client=client)
            _, details = await provider.search_my_knowledge(None, "zebra")
            await provider.close()
            assert "fallback_reason" not in details, details
            assert not http.is_closed

    asyncio.run(ask())
    assert "viewer_id" not in gateway.bodies[0]


def test_without_credentials_a_loop_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SUPABASE_URL", raising=False)
    monkeypatch.delenv("SUPABASE_KEY", raising=False)
    hits, details = asyncio.run(AsyncSupabaseProvider().hybrid_search(None, "zebra"))
    assert (hits, details["fallback_reason"]) == ([], "client_unavailable")


MOST_ROWS = 100


def hits(count: int, query_index: int = 0) -> list[dict[str, Any]]:
    row = {**HYBRID_ROW, "query_index": query_index, "total_count": count}
    return [{**row, "id": f"{query_index}-{number}"} for number in range(count)]


@pytest.fixture
def cut(rest: Rest, request: pytest.FixtureRequest) -> Iterator[Rest]:
    """A project whose Max rows is below what is asked for, with 160 chunks."""
    rest.gateway.most_rows = MOST_ROWS
    if isinstance(rest, Recorded):
        yield rest
        return
    assert isinstance(rest, Real)
    owner = request.getfixturevalue("dsn")
    admin = request.getfixturevalue("server").admin_dsn()
    store_document(
        owner, "many", {f"zebra {number}": [1, number / 100, 0] for number in range(160)}
    )
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute(
            sql.SQL("alter role authenticator in database {} set pgrst.db_max_rows = {}").format(
                sql.Identifier(str(conninfo_to_dict(owner)["dbname"])), sql.Literal(str(MOST_ROWS))
            )
        )
    yield rest


@pytest.mark.parametrize(
    "ask",
    [
        lambda provider: provider.hybrid_search(None, "zebra", top_k=150),
        lambda provider: provider.fulltext_search("zebra", top_k=150),
    ],
    ids=["hybrid", "a leg alone"],
)
def test_a_search_returns_all_rows_that_it_is_asked_for(
    cut: Rest, ask: Callable[[Any], Any]
) -> None:
    cut.given(Answer(body=[{**row, "rank": 1.0} for row in hits(150)]))
    found, details = ask(cut.provider())
    assert len({hit.id for hit in found}) == details["raw_count"] == 150
    assert "truncated" not in details
    assert cut.gateway.offsets == [0, MOST_ROWS]


def test_a_batch_returns_every_list_whole(cut: Rest) -> None:
    cut.given(Answer(body=[*hits(60), *hits(60, 1), *hits(40, 2)]))
    answers, details = cut.provider().hybrid_search_batch(
        [{"query_text": "zebra", "top_k": most} for most in (60, 60, 40)]
    )
    assert [len({hit.id for hit in answer}) for answer in answers] == [60, 60, 40]
    assert details["raw_count"] == 160
    assert "truncated" not in details


def test_the_number_of_rows_is_asked_for_only_where_an_answer_may_be_cut(cut: Rest) -> None:
    cut.given(Answer(body=hits(150)))
    found, _ = cut.provider().hybrid_search(None, "zebra", top_k=MOST_ROWS)
    assert (len(found), cut.gateway.offsets) == (MOST_ROWS, [0])
    cut.provider().hybrid_search(None, "zebra", top_k=MOST_ROWS + 1)
    assert cut.gateway.counted == [False, True, True]


@SIDES
def test_a_short_answer_that_is_cut_is_said(gateway: Gateway, side: Any) -> None:
    gateway.most_rows = 10
    gateway.answer = Answer(body=hits(150))
    found, details = side(
        gateway, lambda provider: provider.hybrid_search(None, "zebra", top_k=20, match_offset=5)
    )
    assert len(found) == 10
    assert details["truncated"] is True
    assert "Max rows" in details["remedy"]


@SIDES
@pytest.mark.parametrize(("later", "is_batch"), [(140, False), (0, True)], ids=["one", "batch"])
def test_rows_that_change_between_the_parts_are_said(
    gateway: Gateway, side: Any, later: int, is_batch: bool
) -> None:
    gateway.most_rows = MOST_ROWS

    class Offsets(list[int]):
        def append(self, offset: int) -> None:
            super().append(offset)
            gateway.answer = Answer(body=hits(later if offset else 150))

    gateway.offsets = Offsets()
    query: Any = {"query_text": "zebra", "top_k": 150}

    def ask(provider: Any) -> Any:
        if is_batch:
            return provider.hybrid_search_batch([query])
        return provider.hybrid_search(None, **query)

    found, details = side(gateway, ask)
    assert len(found[0] if is_batch else found) == max(later, MOST_ROWS)
    assert details["truncated"] is True
    assert "Max rows" in details["remedy"]
