"""Translation of errors by code and exception, and secrets that a message must not contain."""

import copy
import json
import re
import string
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from postgrest.exceptions import APIError

from conftest import Connect
from second_brain import errors
from second_brain.errors import (
    MESSAGE_LIMIT,
    safe_message,
    translate,
)
from second_brain.services import connections
from second_brain.services.postgres import PostgresProvider
from second_brain.services.provider import SearchProvider
from second_brain.services.results import Source
from second_brain.services.supabase import SupabaseProvider

FACETS = "facet_knowledge_chunks"
TOO_LARGE = ("54000", "54001", "54023", "413")


def api_error(code: str | None, message: str, hint: str | None = None) -> APIError:
    return APIError({"code": code, "message": message, "hint": hint, "details": "Failing row (x)"})


# As recorded from a real PostgREST.
@pytest.mark.parametrize(
    ("code", "message", "kind"),
    [
        ("22023", "pool_size must be 1 to 1000, not 0", errors.InvalidInputError),
        ("22P02", 'invalid input syntax for type vector: "[1, null, 3]"', errors.InvalidInputError),
        ("22000", "NaN not allowed in vector", errors.InvalidInputError),
        ("22000", "vector must have at least 1 dimension", errors.InvalidInputError),
        ("22003", '"1e+39" is out of range for type vector', errors.InvalidInputError),
        ("22P05", "unsupported Unicode escape sequence", errors.InvalidInputError),
        ("2201W", "LIMIT must not be negative", errors.InvalidInputError),
        ("42846", "cannot cast type smallint to uuid", errors.InvalidInputError),
        ("PGRST102", "Empty or invalid json", errors.InvalidInputError),
        *((code, "too large or deep", errors.InvalidInputError) for code in TOO_LARGE),
        ("22000", "different vector dimensions 3 and 4", errors.DimensionMismatchError),
        ("22000", "expected 3 dimensions, not 4", errors.DimensionMismatchError),
        ("PGRST202", "Could not find the function public.nosuch(a)", errors.MigrationMissingError),
        ("42883", "function public.fresh() does not exist", errors.MigrationMissingError),
        ("PGRST203", "Could not choose the best candidate", errors.MigrationMissingError),
        ("PGRST205", "Could not find the table 'public.x'", errors.MigrationMissingError),
        ("PGRST202", f"Could not find the function public.{FACETS}(a)", errors.ModuleMissingError),
        (
            "PGRST205",
            "Could not find the table 'public.knowledge_judgments'",
            errors.ModuleMissingError,
        ),
        ("42883", f"function knowledge_de.{FACETS}() does not exist", errors.ModuleMissingError),
        ("42P01", 'relation "knowledge_adoptions" does not exist', errors.ModuleMissingError),
        ("42501", "permission denied for function f", errors.PermissionDeniedError),
        ("PGRST301", "No suitable key", errors.AuthenticationError),
        ("PGRST303", "JWT expired", errors.AuthenticationError),
        ("22023", 'role "nobody" does not exist', errors.AuthenticationError),
        (None, "Invalid API key", errors.AuthenticationError),
        ("57014", "canceling statement due to statement timeout", errors.SearchTimeoutError),
        ("57P01", "terminating connection", errors.UnavailableError),
        ("PGRST002", "Could not query the database", errors.UnavailableError),
        ("08006", "connection failure", errors.UnavailableError),
        ("53300", "too many connections", errors.UnavailableError),
        ("502", "Bad Gateway", errors.UnavailableError),
        ("40P01", "deadlock detected", errors.ConflictError),
        ("P0001", "anything", errors.SecondBrainError),
        (None, "", errors.SecondBrainError),
    ],
)
def test_a_code_has_its_class(
    code: str | None, message: str, kind: type[errors.SecondBrainError]
) -> None:
    error = translate(api_error(code, message))
    assert type(error) is kind
    assert error.code == code
    assert error.remedy
    assert message in str(error)


def test_the_hint_is_kept_and_the_details_are_not() -> None:
    error = translate(api_error("PGRST202", "Could not find it", "Perhaps you meant that"))
    assert str(error) == "Could not find it (Perhaps you meant that)"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (httpx.ConnectError("refused"), errors.UnavailableError),
        (httpx.RemoteProtocolError("server disconnected"), errors.ConnectionLostError),
        (httpx.ConnectTimeout("slow"), errors.UnavailableError),
        (httpx.ReadTimeout("slow"), errors.ClientTimeoutError),
        (httpx.UnsupportedProtocol("ftp"), errors.ConfigurationError),
        (httpx.LocalProtocolError("Illegal header value b'key'"), errors.ConfigurationError),
        (json.JSONDecodeError("Expecting value", "<html>", 0), errors.UnexpectedAnswerError),
        (ValueError("Out of range float values are not JSON compliant"), errors.InvalidInputError),
        (TypeError("not JSON serializable"), errors.InvalidInputError),
        (psycopg.errors.UndefinedFunction("no"), errors.MigrationMissingError),
        (psycopg.errors.QueryCanceled("timeout"), errors.SearchTimeoutError),
        (psycopg.errors.TransactionTimeout("ended"), errors.SearchTimeoutError),
        (psycopg.errors.IdleInTransactionSessionTimeout("ended"), errors.UnavailableError),
        (psycopg.errors.IdleSessionTimeout("ended"), errors.UnavailableError),
        (psycopg.errors.AdminShutdown("ended"), errors.UnavailableError),
        (psycopg.errors.DiskFull("No space left on device"), errors.UnavailableError),
        (psycopg.DataError("text fields cannot contain NUL"), errors.InvalidInputError),
        (psycopg.ProgrammingError("cannot adapt type 'object'"), errors.InvalidInputError),
        (psycopg.InterfaceError("closed"), errors.UnavailableError),
        (RuntimeError("anything"), errors.SecondBrainError),
    ],
)
def test_an_exception_has_its_class(error: Exception, kind: type[errors.SecondBrainError]) -> None:
    assert type(translate(error)) is kind


def test_an_error_of_ours_stays_as_it_is() -> None:
    error = errors.ConflictError("again")
    assert translate(error) is error


def test_a_traceback_shows_the_remedy() -> None:
    error = errors.MissingExtraError("numpy", "retrieval")
    assert traceback.format_exception(error)[-1] == f"{error.remedy}\n"
    error.remedy = "Another."
    assert (
        traceback.format_exception(copy.copy(errors.SecondBrainError("a", remedy="b")))[-1] == "b\n"
    )
    assert (traceback.format_exception(error)[-1], str(error)) == (
        "Another.\n",
        "numpy is not installed",
    )


def test_an_empty_exception_still_says_something() -> None:
    assert str(translate(RuntimeError())) == "RuntimeError"
    assert str(translate(httpx.ReadTimeout(""))) != ""


def test_the_page_has_the_http_status_of_every_kind() -> None:
    for module in ("models.hosted", "ingest.loading", "evaluation.collection", "replicas.choice"):
        import_module(f"second_brain.{module}")
    page = (Path(__file__).parents[2] / "docs" / "service.md").read_text("utf-8")
    rows = re.findall(r"^\| (\d{3}) \| (.*) \|$", page, re.MULTILINE)
    documented = {
        kind: int(status) for status, kinds in rows for kind in re.findall(r"`(\w+)`", kinds)
    }

    def below(kind: type[errors.SecondBrainError]) -> list[type[errors.SecondBrainError]]:
        return [kind, *(found for child in kind.__subclasses__() for found in below(child))]

    known = [
        found for found in below(errors.SecondBrainError) if "second_brain" in found.__module__
    ]
    assert documented == {found.kind: found.http_status for found in known}
    own = [found.kind for found in known if found.__module__ == errors.__name__]
    assert len(own) == len(set(own))
    assert errors.http_status(httpx.ReadTimeout("slow")) == 504
    assert errors.http_status(RuntimeError("anything")) == 500


def test_with_the_clients_own_token_a_refusal_is_the_clients() -> None:
    for error, status in (
        (errors.AuthenticationError("JWT expired"), 401),
        (errors.PermissionDeniedError("needs a signed-in user"), 403),
    ):
        assert errors.http_status(error) == 500
        assert errors.http_status(error, has_users_token=True) == status


@pytest.mark.parametrize(
    "text",
    [
        'connection failed: could not translate host name "pw9@db.host" to address',
        'missing "=" after "pw9" in connection info string',
    ],
)
def test_what_libpq_quotes_of_a_connection_string_is_left_out(text: str) -> None:
    assert "pw9" not in str(translate(psycopg.OperationalError(text)))


def test_a_real_refusal_to_parse_names_no_password() -> None:
    with pytest.raises(psycopg.ProgrammingError) as caught:
        psycopg.connect("hunter2 host=nowhere")
    error = translate(caught.value)
    assert type(error) is errors.ConfigurationError
    assert "hunter2" not in str(error)


ALPHABET = string.ascii_letters + string.digits
core = st.text(ALPHABET, min_size=12, max_size=80)
around = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
FORMS: list[Callable[[str], str]] = [
    lambda secret: f"sb_secret_{secret}",
    lambda secret: f"sb_publishable_{secret}",
    lambda secret: f"sbp_{secret}",
    lambda secret: f"sk-proj-{secret}",
    lambda secret: f"pa-{secret}-{secret}_{secret}",
    lambda secret: f"hf_{secret}{secret}",
    lambda secret: f"eyJ{secret}.eyJ{secret}.{secret}-_{secret}",
    lambda secret: f"eyJ{secret}",
    lambda secret: f"Bearer {secret}",
    lambda secret: f"postgres://user:{secret}@host:5432/db",
    lambda secret: f"postgresql+psycopg://user:{secret}@host/db?sslmode=require",
    lambda secret: f"https://{secret}.example.org/rest/v1?apikey={secret}",
    lambda secret: f"wss://host/{secret}",
    lambda secret: f"password={secret}",
    lambda secret: f"password = '{secret} \\' {secret}'",
    lambda secret: f'{{"password": "{secret} {secret}"}}',
    lambda secret: f"sslpassword={secret}",
    lambda secret: f"SUPABASE_KEY={secret}",
    lambda secret: f"service_role_key: {secret}",
    lambda secret: f"apikey: {secret}",
    lambda secret: f"'Authorization': 'Bearer {secret}'",
    lambda secret: f"user:{secret}@db.example.org",
    lambda secret: f"{secret}.supabase.co",
]


@given(before=around, secret=core, after=around, form=st.sampled_from(FORMS))
def test_no_secret_survives(
    before: str, secret: str, after: str, form: Callable[[str], str]
) -> None:
    # Random letters around it are no part of the secret, unless they happen to be.
    message = safe_message(f"{before} {form(secret)} {after}")
    if secret not in before and secret not in after:
        assert secret not in message


@given(before=around, secret=core, after=around)
def test_a_secret_that_is_known_does_not_survive_in_any_form(
    before: str, secret: str, after: str
) -> None:
    assert secret not in safe_message(f"{before}{secret}{after}", secrets=["", None, secret])


@settings(max_examples=25)
@given(st.text())
def test_a_message_is_one_bounded_line(text: str) -> None:
    message = safe_message(text * 50)
    assert len(message) <= MESSAGE_LIMIT
    assert len(message.splitlines()) <= 1


def test_a_megabyte_is_redacted_in_time() -> None:
    assert len(safe_message("a:" * 500_000)) == MESSAGE_LIMIT
    assert len(safe_message("eyJa" * 250_000 + "@")) <= MESSAGE_LIMIT


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


def test_a_missing_function_is_named_without_its_arguments_over_rest() -> None:
    arguments = ", ".join(f"argument_{number}" for number in range(40))
    message = f"Could not find the function public.hybrid({arguments}) in the schema cache"
    hint = f"Perhaps you meant to call the function public.other({arguments})"
    error = translate(api_error("PGRST202", message, hint))
    assert type(error) is errors.MigrationMissingError
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
    reported, over_sql = caught.value.diag, translate(caught.value)
    over_rest = translate(api_error("42501", str(reported.message_primary), reported.message_hint))
    assert type(over_rest) is type(over_sql) is errors.PermissionDeniedError
    assert (str(over_rest), over_rest.remedy) == (str(over_sql), over_sql.remedy)


class _Failing(SearchProvider):
    """Stands for a database that fails some times before it answers."""

    name: Source = "postgres"  # type: ignore[misc]

    def __init__(self, code: str, times: int, pauses: list[float]) -> None:
        super().__init__(sleep=pauses.append, on_error="empty")
        self._code, self._left = code, times

    async def _send(
        self, function: str, arguments: dict[str, Any], timeout: float | None
    ) -> object:
        self._left -= 1
        if self._left >= 0:
            raise psycopg.errors.lookup(self._code)("canceling statement due to conflict")
        return []


def test_only_a_read_that_a_standby_cancels_is_sent_again() -> None:
    pauses: list[float] = []
    _, details = _Failing("40001", 2, pauses).fulltext_search("text")
    assert ("fallback_reason" in details, len(pauses)) == (False, 2)
    _, details = _Failing("42501", 1, pauses).fulltext_search("text")
    assert (details["error_kind"], len(pauses)) == ("permission_denied", 2)


@pytest.mark.module("batch")
@pytest.mark.parametrize("metadata", ['{"n": 1e5000}', '{"a":' * 1100 + "1" + "}" * 1100])
def test_a_row_that_python_cannot_read_leaves_the_others(connect: Connect, metadata: str) -> None:
    owner = connect()
    owner.execute("insert into public.knowledge_chunks (content) values ('zebra')")
    # As a row that was stored before the limits of metadata.
    owner.execute("alter table public.knowledge_chunks disable trigger complete_chunk")
    owner.execute("update public.knowledge_chunks set metadata = %s", [metadata])
    owner.execute("alter table public.knowledge_chunks enable trigger complete_chunk")
    owner.execute(
        "insert into public.knowledge_chunks (content, metadata) values ('zebra', %s)",
        [json.dumps({"page": 1})],
    )
    provider = PostgresProvider(owner, on_error="empty")
    hits, details = provider.hybrid_search(None, "zebra")
    assert sorted(hit.metadata.get("page", 0) for hit in hits) == [0, 1]  # type: ignore[type-var]
    (unreadable,) = [hit.id for hit in hits if "page" not in hit.metadata]
    assert details.get("unreadable_metadata") == [unreadable]
    _, batch_details = provider.hybrid_search_batch([{"query_text": "zebra"}])
    assert batch_details.get("unreadable_metadata") == [unreadable]


def test_a_full_disk_is_named_with_a_remedy() -> None:
    known = translate(psycopg.errors.DiskFull("could not extend file: No space left on device"))
    assert "disk is full" in known.remedy


@pytest.mark.parametrize(
    ("text", "host", "kind", "remedy"),
    [
        ('FATAL:  database "postgres\n" does not exist', "x", "configuration", "database's name"),
        ('invalid sslmode value: "requir"', "x", "configuration", "sslmode"),
        ("server does not support SSL, but SSL was required", "x", "configuration", "sslmode"),
        ("channel binding required, but server did not", "x", "configuration", "sslmode"),
        ('root certificate file "a" does not exist', "x", "configuration", "sslmode"),
        ("Name or service not known", "db.abcdef.supabase.co", "unavailable", "IPv6.*pooler"),
        ("Network is unreachable", "db.abcdef.supabase.co", "unavailable", "IPv6.*pooler"),
        ("Name or service not known", "x", "unavailable", "DNS"),
        ("Connection refused", "x", "unavailable", "Try again"),
    ],
)
def test_a_failure_to_connect_names_what_to_change(
    text: str, host: str, kind: str, remedy: str
) -> None:
    failure = psycopg.OperationalError(f"connection failed: {text}")
    error = connections._connection_failure(failure, host=host, user="u", database="d")
    assert error.kind == kind
    assert re.search(remedy, error.remedy)


def test_white_space_around_a_connection_string_or_in_a_key_is_no_part_of_it() -> None:
    for one in ("postgresql://u@h:1/d", "host=h port=1 dbname=d user=u"):
        assert connections.address(f" {one}\n") == connections.address(one)
    config = {"supabase_url": "https://a.supabase.co", "supabase_key": "sb_secret_é"}
    with pytest.raises(errors.ConfigurationError, match="the key is none that HTTP can send"):
        SupabaseProvider(config, on_error="raise").fulltext_search("a")
