"""The Supabase provider over HTTP: what a refused, lost or odd answer becomes."""

from typing import Any

import pytest
from supabase_gateway import Answer, Gateway, Key, Recorded, Rest, error, gateway, rest, token

from postgrest_server import free_port
from second_brain import errors
from second_brain.services.supabase import SupabaseProvider

__all__ = ["gateway", "rest"]  # fixtures


@pytest.mark.parametrize(
    ("arguments", "recorded", "kind", "code"),
    [
        (
            {"query_embedding": [1, 0, 0, 0]},
            error(400, "22023", "query_embedding has 4 dimensions, the stored embeddings have 3"),
            "dimension_mismatch",
            "22023",
        ),
        (
            {"query_embedding": [1, None, 3]},
            error(400, "22P02", 'invalid input syntax for type vector: "[1,null,3]"'),
            "invalid_input",
            "22P02",
        ),
        (
            {"top_k": "1.5"},
            error(400, "22P02", 'invalid input syntax for type integer: "1.5"'),
            "invalid_input",
            "22P02",
        ),
        (
            {"search_mode": "nosuch"},
            error(400, "22023", "search_mode must be one of websearch, simple, phrase, not nosuch"),
            "invalid_input",
            "22023",
        ),
    ],
)
def test_a_refused_argument_is_an_invalid_input(
    rest: Rest, arguments: dict[str, Any], recorded: Answer, kind: str, code: str
) -> None:
    rest.given(recorded)
    given = {"query_embedding": [1, 0, 0], "query_text": "zebra", **arguments}
    results, details = rest.provider().hybrid_search(**given)
    assert results == []
    assert details["fallback_reason"] == "provider_error"
    assert details["error_type"] == "APIError"
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


MISSING = "Could not find the function public.hybrid_search_knowledge_chunks in the schema cache"


@pytest.mark.parametrize(
    ("recorded", "statement", "kind", "code", "remedy"),
    [
        (
            error(404, "PGRST202", MISSING),
            "drop function public.hybrid_search_knowledge_chunks",
            "migration_missing",
            "PGRST202",
            "supabase db push",
        ),
        (
            error(
                300,
                "PGRST203",
                "Could not choose the best candidate function between: …",
                "Try renaming the parameters or the function itself in the database so function "
                "overloading can be resolved",
            ),
            "create function public.hybrid_search_knowledge_chunks(query_embedding"
            " extensions.vector, query_text text, match_count integer, match_threshold float8,"
            " vector_weight float8, text_weight float8, filter_type text, search_mode text,"
            " pool_size integer) returns void language sql as ''",
            "migration_missing",
            "PGRST203",
            "overloads",
        ),
        (
            error(500, "57014", "canceling statement due to statement timeout"),
            "alter function public.hybrid_search_knowledge_chunks set statement_timeout = '1ms'",
            "timeout",
            "57014",
            "statement_timeout",
        ),
        (
            error(403, "42501", "permission denied for function hybrid_search_knowledge_chunks"),
            "revoke execute on function public.hybrid_search_knowledge_chunks from service_role",
            "permission_denied",
            "42501",
            "service_role",
        ),
    ],
    ids=["migration missing", "two overloads", "statement timeout", "grant missing"],
)
def test_a_database_that_is_not_ready_says_what_to_do(
    rest: Rest, recorded: Answer, statement: str, kind: str, code: str, remedy: str
) -> None:
    rest.given(recorded, statement)
    _, details = rest.provider().hybrid_search([1, 0, 0], "zebra")
    assert (details["error_kind"], details["code"]) == (kind, code)
    assert remedy in details["remedy"]


@pytest.mark.parametrize(
    ("key", "recorded", "kind", "code"),
    [
        (
            "anon",
            error(401, "42501", "permission denied for function"),
            "permission_denied",
            "42501",
        ),
        (
            "authenticated",
            error(403, "42501", "permission denied for function"),
            "permission_denied",
            "42501",
        ),
        ("expired", error(401, "PGRST303", "JWT expired"), "authentication_failed", "PGRST303"),
        (
            "unsigned",
            error(401, "PGRST301", "No suitable key or wrong key type"),
            "authentication_failed",
            "PGRST301",
        ),
    ],
)
def test_a_key_that_may_not_search_is_told_so(
    rest: Rest, key: Key, recorded: Answer, kind: str, code: str
) -> None:
    rest.given(recorded)
    _, details = rest.provider(key).hybrid_search([1, 0, 0], "zebra")
    assert (details["error_kind"], details["code"]) == (kind, code)
    assert token(key)[:20] not in str(details)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (
            error(503, "PGRST002", "Could not query the database for the schema cache. Retrying."),
            "unavailable",
        ),
        (error(503, "57P01", "terminating connection due to administrator command"), "unavailable"),
        (Answer(502, "<html>Bad Gateway</html>", "text/html"), "unavailable"),
        (
            Answer(401, {"message": "Invalid API key", "hint": "Double check it"}),
            "authentication_failed",
        ),
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
    config = {"supabase_url": f"http://127.0.0.1:{free_port()}", "supabase_key": "key"}
    with SupabaseProvider(config) as provider:
        _, details = provider.hybrid_search([1, 0, 0], "zebra")
    assert (details["error_kind"], details["error_type"]) == ("unavailable", "ConnectError")


def test_a_key_with_a_newline_after_it_works(gateway: Gateway) -> None:
    config = {"supabase_url": f"{gateway.url}/\n", "supabase_key": f"{token('anon')}\n"}
    with SupabaseProvider(config) as provider:
        assert "fallback_reason" not in provider.fulltext_search("zebra")[1]


def test_a_key_that_is_no_header_is_told_without_it(gateway: Gateway) -> None:
    config = {"supabase_url": gateway.url, "supabase_key": "hunter2\nhunter3"}
    with SupabaseProvider(config) as provider:
        _, details = provider.fulltext_search("zebra")
    assert details["error_kind"] == "configuration"
    assert "hunter" not in str(details)


def test_an_unexposed_schema_is_named_with_the_remedy(gateway: Gateway) -> None:
    gateway.answer = error(
        406, "PGRST106", "Invalid schema: knowledge_fr", "Only the following schemas are exposed"
    )
    config = {"supabase_url": gateway.url, "supabase_key": token("service_role")}
    with SupabaseProvider(config, schema="knowledge_fr") as provider:
        _, details = provider.hybrid_search(None, "zebra")
    assert (details["code"], details["error_kind"]) == ("PGRST106", "migration_missing")
    assert "knowledge_fr" in details["error_message"]
    assert "exposed schemas" in details["remedy"]


def test_an_invalid_schema_is_refused() -> None:
    with pytest.raises(errors.InvalidInputError, match="schema must"):
        SupabaseProvider(schema="no such; name")
