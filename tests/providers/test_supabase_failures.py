"""The Supabase provider over HTTP: what a refused, lost or odd answer becomes."""

from typing import Any

import pytest
from supabase_gateway import (
    Answer,
    Gateway,
    Key,
    Recorded,
    Rest,
    config,
    error,
    gateway,
    rest,
    token,
)

from postgrest_server import free_port
from second_brain import errors
from second_brain.services.supabase import SupabaseProvider

__all__ = ["gateway", "rest"]  # fixtures


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
        ({"top_k": "1.5"}, "22P02", "invalid input syntax", "invalid_input"),
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
    with Recorded(gateway).provider() as provider:
        results, details = provider.hybrid_search(**given)
    assert results == []
    assert details["error_kind"] == "invalid_input"
    assert gateway.bodies == []


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
    with Recorded(gateway).provider() as provider:
        results, details = provider.hybrid_search([1, 0, 0], "zebra")
    assert results == []
    assert details["real_provider"] is False
    assert details["error_kind"] == kind
    assert "127.0.0.1" not in str(details)
    # A search is sent once, whatever comes back.
    assert len(gateway.bodies) == 1


def test_the_key_does_not_follow_a_redirect(gateway: Gateway) -> None:
    with Gateway() as elsewhere:
        gateway.answer = Answer(307, "", "text/html", {"Location": elsewhere.url})
        with Recorded(gateway).provider() as provider:
            _, details = provider.hybrid_search([1, 0, 0], "zebra", top_k=1)
        elsewhere.timeout = 0
        elsewhere.handle_request()
        assert elsewhere.connections == 0
    assert details["error_kind"] == "unexpected_answer"


def test_a_slow_answer_is_a_timeout(gateway: Gateway) -> None:
    gateway.held.clear()
    with Recorded(gateway).provider(timeout=0.2) as provider:
        _, details = provider.hybrid_search([1, 0, 0], "zebra")
    assert (details["error_kind"], details["error_type"]) == ("client_timeout", "ReadTimeout")


def test_an_address_without_a_server_is_unavailable() -> None:
    given = {"supabase_url": f"http://127.0.0.1:{free_port()}", "supabase_key": "key"}
    with SupabaseProvider(given) as provider:
        _, details = provider.hybrid_search([1, 0, 0], "zebra")
    assert (details["error_kind"], details["error_type"]) == ("unavailable", "ConnectError")


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
    with SupabaseProvider(config(gateway), schema="knowledge_fr") as provider:
        _, details = provider.hybrid_search(None, "zebra")
    assert (details["code"], details["error_kind"]) == ("PGRST106", "migration_missing")
    assert "knowledge_fr" in details["error_message"]
    assert "exposed schemas" in details["remedy"]


def test_an_invalid_schema_is_refused() -> None:
    with pytest.raises(errors.InvalidInputError, match="schema must"):
        SupabaseProvider(schema="no such; name")
