"""Errors that would send their reader the wrong way: each names the cause and the remedy."""

import json
from typing import Any

import psycopg
import pytest
from postgrest.exceptions import APIError

from conftest import Connect
from second_brain.errors import MigrationMissingError, PermissionDeniedError, translate
from second_brain.services.postgres import PostgresProvider


def refused(provider: PostgresProvider, *, own: bool = False) -> dict[str, Any]:
    ask = provider.search_my_knowledge if own else provider.hybrid_search
    hits, details = ask([1, 0, 0], "zebra")
    assert hits == []
    return dict(details)


def test_a_database_without_the_migrations_lacks_a_function_by_name(plain_dsn: str) -> None:
    details = refused(PostgresProvider(plain_dsn, on_error="empty"))
    assert details["error_kind"] == "migration_missing"
    assert details["error_message"] == (
        "function public.hybrid_search_knowledge_chunks(…) does not exist"
    )
    assert "second-brain migrate" in details["remedy"]


def test_over_rest_too() -> None:
    arguments = ", ".join(f"argument_{number}" for number in range(40))
    error = translate(
        APIError(
            {
                "code": "PGRST202",
                "message": f"Could not find the function public.hybrid({arguments}) in the schema"
                " cache",
                "hint": f"Perhaps you meant to call the function public.other({arguments})",
                "details": None,
            }
        )
    )
    assert type(error) is MigrationMissingError
    assert str(error).startswith(
        "Could not find the function public.hybrid(…) in the schema cache (Perhaps"
    )


def test_a_signed_in_caller_of_a_service_function_is_sent_to_their_own(connect: Connect) -> None:
    details = refused(PostgresProvider(connect("authenticated", uid="0" * 32), on_error="empty"))
    assert details["error_kind"] == "permission_denied"
    assert "search_my_knowledge_chunks" in details["remedy"].split(".")[0]
    assert " key" not in details["remedy"]


@pytest.mark.parametrize(
    ("uid", "message", "remedy"),
    [
        (None, "needs a signed-in user, there is none", "the user's own access token"),
        ("auth0|5f7c8ec7", "claim sub of the token", "maps its users to UUIDs"),
    ],
)
def test_a_token_without_a_uuid_is_refused_with_its_own_remedy(
    connect: Connect, uid: str | None, message: str, remedy: str
) -> None:
    details = refused(
        PostgresProvider(connect("authenticated", uid=uid), on_error="empty"), own=True
    )
    assert (details["error_kind"], details["code"]) == ("permission_denied", "42501")
    assert message in details["error_message"]
    assert remedy in details["remedy"]


def test_over_sql_and_rest_the_same_refusal_is_the_same_error(connect: Connect) -> None:
    with pytest.raises(psycopg.Error) as caught:
        connect("authenticated").execute("select * from public.search_my_knowledge_chunks()")
    reported = caught.value.diag
    body = {"code": "42501", "message": reported.message_primary, "hint": reported.message_hint}
    over_rest = translate(APIError({**json.loads(json.dumps(body)), "details": None}))
    over_sql = translate(caught.value)
    assert type(over_rest) is type(over_sql) is PermissionDeniedError
    assert (str(over_rest), over_rest.remedy) == (str(over_sql), over_sql.remedy)
