"""The client over a mocked supabase client."""

import logging
from concurrent.futures import ThreadPoolExecutor

import pytest
from mocked_client import SECRET, client_with, failing_client
from postgrest.exceptions import APIError

from second_brain.services.supabase import SupabaseProvider


@pytest.fixture
def no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SUPABASE_URL", raising=False)
    monkeypatch.delenv("SUPABASE_KEY", raising=False)


@pytest.mark.usefixtures("no_credentials")
@pytest.mark.parametrize(
    "config",
    [
        None,
        {},
        {"supabase_url": "https://x.supabase.co"},
        {"supabase_key": SECRET, "supabase_url": " "},
    ],
)
def test_hybrid_search_no_client_returns_empty(config: dict[str, str] | None) -> None:
    provider = SupabaseProvider(config=config)
    assert provider._load_client() is None
    results, details = provider.hybrid_search([0.1], "anything")
    assert results == []
    assert details["fallback_reason"] == "client_unavailable"
    assert details["real_provider"] is False
    assert details["raw_count"] == 0
    assert "SUPABASE_URL" in details["remedy"]


@pytest.mark.parametrize(
    ("code", "kind", "remedy"),
    [
        (None, "error", "doctor"),
        ("PGRST202", "migration_missing", "supabase db push"),
        ("42501", "permission_denied", "service role"),
        ("57014", "timeout", "statement_timeout"),
    ],
)
def test_hybrid_search_exception_returns_fallback(
    caplog: pytest.LogCaptureFixture, code: str | None, kind: str, remedy: str
) -> None:
    error = APIError({"code": code, "message": "refused"}) if code else RuntimeError("boom")
    with caplog.at_level(logging.WARNING):
        results, details = SupabaseProvider(client=failing_client(error)).hybrid_search(
            [0.1], "the private question"
        )
    assert results == []
    assert remedy in details.pop("remedy")
    assert details.pop("error_message")
    assert details == {
        "provider": "supabase",
        "mode": "hybrid",
        "real_provider": False,
        "raw_count": 0,
        "total_count": None,
        "fallback_reason": "provider_error",
        "error_type": type(error).__name__,
        "error_kind": kind,
        "code": code,
    }
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert type(error).__name__ in record.getMessage()
    assert "private question" not in record.getMessage()


@pytest.mark.parametrize("method", ["search", "fulltext_search"])
def test_the_other_searches_fall_back_alike(method: str) -> None:
    provider = SupabaseProvider(client=failing_client(RuntimeError("boom")))
    results, details = getattr(provider, method)("[0.1]")
    assert (results, details["fallback_reason"]) == ([], "provider_error")


@pytest.mark.parametrize("answer", [{"id": 1}, "<html>", 5])
def test_an_answer_that_is_no_rows_is_no_empty_result(answer: object) -> None:
    _, details = SupabaseProvider(client=client_with(answer)).hybrid_search([0.1], "x")
    assert details["error_kind"] == "unexpected_answer"


def test_an_interrupt_is_not_swallowed() -> None:
    provider = SupabaseProvider(client=failing_client(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        provider.hybrid_search([0.1], "x")


def test_a_message_names_no_credentials(caplog: pytest.LogCaptureFixture) -> None:
    url = "https://abcdefgh.supabase.co"
    key = "a-key-of-no-known-form"
    error = RuntimeError(f"{key} was refused by {url}/rest/v1, password=hunter2, {SECRET} " * 20)
    provider = SupabaseProvider({"supabase_url": url, "supabase_key": key})
    provider._client = failing_client(error)
    _, details = provider.hybrid_search([0.1], "x")
    for secret in (url, "abcdefgh", key, "hunter2", SECRET):
        assert secret not in str(details)
        assert secret not in caplog.text
        assert secret not in repr(provider)
    assert len(details["error_message"]) <= 300


@pytest.mark.usefixtures("no_credentials")
def test_the_environment_is_read_when_the_client_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    with SupabaseProvider({"supabase_key": SECRET}) as provider:
        assert provider._load_client() is None
        monkeypatch.setenv("SUPABASE_URL", "https://abcdefgh.supabase.co")
        monkeypatch.setenv("SUPABASE_KEY", "the configuration wins over this")
        client = provider._load_client()
        assert client is not None
        assert client.supabase_key == SECRET
        assert provider._load_client() is client


def test_many_threads_make_one_client() -> None:
    config = {"supabase_url": "http://127.0.0.1:1", "supabase_key": SECRET}
    with SupabaseProvider(config) as provider, ThreadPoolExecutor(8) as threads:
        clients = list(threads.map(lambda _: provider._load_client(), range(16)))
        assert len({id(client) for client in clients}) == 1


@pytest.mark.parametrize("url", ["abcdefgh.supabase.co", "http://[bad", "postgres://u:p@h/db"])
def test_a_url_that_is_none_is_a_configuration_error(url: str) -> None:
    provider = SupabaseProvider({"supabase_url": url, "supabase_key": SECRET})
    _, details = provider.hybrid_search([0.1], "x")
    assert details["error_kind"] == "configuration"
    assert "SUPABASE_URL" in details["remedy"]
