"""The structure of the SQL, read by a parser, and the client over a mocked supabase client.

The structure tests come first, the client's after them.
"""

import inspect
import json
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from postgrest.exceptions import APIError

from second_brain.services import supabase as supabase_module
from second_brain.services.results import MemorySearchResult, Mode, normalize_rows
from second_brain.services.supabase import SupabaseProvider

# SQL structure: put those tests here.


# The client, over a mock that stands for supabase-py; `test_supabase_http.py` has the real one.

ROW: dict[str, Any] = {
    "id": "6f0e4a52-3c0e-4a57-9f9b-0d8f1f7f0001",
    "content": "How to rotate the signing keys.",
    "knowledge_type": "playbook",
    "document_id": "6f0e4a52-3c0e-4a57-9f9b-0d8f1f7f0002",
    "chunk_index": 3,
    "source_origin": "notion",
    "metadata": {"team": "platform"},
    "rrf_score": 0.0325,
    "vector_rank": 1,
    "text_rank": 2,
    "similarity": 0.82,
    "text_score": 7.5,
    "match_type": "both",
    "matched_terms": ["rotate", "keys"],
    "title": "Keys",
    "source_url": "https://example.org/keys",
}
SECRET = "sb_secret_hunter2hunter2"


def client_with(rows: object) -> MagicMock:
    client = MagicMock(name="supabase client")
    client.rpc.return_value.execute.return_value.data = rows
    return client


def failing_client(error: BaseException) -> MagicMock:
    client = MagicMock(name="supabase client")
    client.rpc.return_value.execute.side_effect = error
    return client


def sent(client: MagicMock) -> dict[str, Any]:
    client.rpc.assert_called_once()
    client.rpc.return_value.execute.assert_called_once_with()
    arguments = client.rpc.call_args.args[1]
    assert isinstance(arguments, dict)
    return arguments


@pytest.fixture
def no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SUPABASE_URL", raising=False)
    monkeypatch.delenv("SUPABASE_KEY", raising=False)


def test_hybrid_search_returns_tuple() -> None:
    answer = SupabaseProvider(client=client_with([ROW])).hybrid_search([0.1, 0.2], "rotate keys")
    assert isinstance(answer, tuple)
    results, details = answer
    assert [type(result) for result in results] == [MemorySearchResult]
    assert details == {
        "provider": "supabase",
        "mode": "hybrid",
        "real_provider": True,
        "raw_count": 1,
    }


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


def test_hybrid_search_calls_correct_rpc() -> None:
    client = client_with([])
    SupabaseProvider(client=client).hybrid_search([0.1, 0.2], "rotate keys")
    assert client.rpc.call_args.args[0] == "hybrid_search_knowledge_chunks"
    assert sent(client) == {
        "query_embedding": [0.1, 0.2],
        "query_text": "rotate keys",
        "match_count": 5,
        "match_threshold": 0.0,
        "vector_weight": 1.0,
        "text_weight": 1.0,
        "filter_type": None,
        "search_mode": "websearch",
        "pool_size": 50,
    }


def test_search_calls_correct_rpc() -> None:
    client = client_with([])
    SupabaseProvider(client=client).search([1, 0], 7, 0.25, "note")
    assert client.rpc.call_args.args[0] == "match_knowledge_chunks"
    assert sent(client) == {
        "query_embedding": [1, 0],
        "match_count": 7,
        "match_threshold": 0.25,
        "filter_type": "note",
    }


def test_fulltext_search_calls_correct_rpc() -> None:
    client = client_with([])
    SupabaseProvider(client=client).fulltext_search("rotate", 7, "phrase", "note")
    assert client.rpc.call_args.args[0] == "search_knowledge_chunks_fulltext"
    assert sent(client) == {
        "query_text": "rotate",
        "match_count": 7,
        "search_mode": "phrase",
        "filter_type": "note",
    }


def test_hybrid_search_passes_weights() -> None:
    client = client_with([])
    SupabaseProvider(client=client).hybrid_search(
        None,
        None,
        top_k=3,
        threshold=-0.5,
        vector_weight=0.25,
        text_weight=4,
        filter_type="decision",
        search_mode="simple",
        pool_size=200,
        rrf_k=10,
    )
    assert sent(client) == {
        "query_embedding": None,
        "query_text": None,
        "match_count": 3,
        "match_threshold": -0.5,
        "vector_weight": 0.25,
        "text_weight": 4,
        "filter_type": "decision",
        "search_mode": "simple",
        "pool_size": 200,
        "rrf_k": 10,
    }


def test_a_later_argument_is_left_out_at_its_default() -> None:
    # PostgREST answers 404 where the migrations are older and do not know it.
    defaults = inspect.signature(SupabaseProvider.hybrid_search).parameters
    for name, default in supabase_module._LATER_ARGUMENTS.items():
        assert defaults[name].default == default


@pytest.mark.parametrize(
    "embedding",
    [
        [0.5, 0.25],
        (0.5, 0.25),
        np.array([0.5, 0.25], dtype=np.float32),
        [np.float32(0.5), np.float64(0.25)],
    ],
    ids=["list", "tuple", "array", "list of numpy numbers"],
)
def test_an_embedding_is_sent_as_a_json_list(embedding: Any) -> None:
    client = client_with([])
    provider = SupabaseProvider(client=client)
    provider.hybrid_search(embedding, "x", top_k=np.int64(3))  # type: ignore[arg-type]
    assert json.dumps(sent(client)["query_embedding"]) == "[0.5, 0.25]"
    assert json.dumps(sent(client)["match_count"]) == "3"


@pytest.mark.parametrize(
    ("score", "confidence"),
    [
        (0.0325, 0.0325),
        (0, 0.0),
        (1.7, 1.0),
        (-0.2, 0.0),
        ("0.5", 0.5),
        ("NaN", 0.0),
        ("Infinity", 1.0),
        (None, 0.0),
        ("much", 0.0),
        ([1], 0.0),
        (True, 0.0),
    ],
)
def test_hybrid_search_normalizes_rrf_score_to_confidence(score: object, confidence: float) -> None:
    client = client_with([{**ROW, "rrf_score": score}])
    (result,), _ = SupabaseProvider(client=client).hybrid_search([0.1], "x")
    assert result.confidence == confidence


def test_search_takes_the_similarity_as_confidence() -> None:
    client = client_with([{**ROW, "rrf_score": 0.9, "similarity": 0.4}])
    (result,), details = SupabaseProvider(client=client).search([0.1])
    assert result.confidence == 0.4
    assert details["mode"] == "vector"


@pytest.mark.parametrize(
    ("rank", "confidence"),
    [(3.0, 0.75), (0, 0.0), (-1.0, 0.0), ("Infinity", 1.0), ("NaN", 0.0), (None, 0.0)],
)
def test_fulltext_search_saturates_the_rank(rank: object, confidence: float) -> None:
    client = client_with([{**ROW, "rank": rank}])
    (result,), details = SupabaseProvider(client=client).fulltext_search("x")
    assert result.confidence == confidence
    assert details["mode"] == "fulltext"


def test_hybrid_search_includes_rank_metadata() -> None:
    (result,), _ = SupabaseProvider(client=client_with([ROW])).hybrid_search([0.1], "x")
    assert result == MemorySearchResult(
        id=ROW["id"],
        content=ROW["content"],
        source="supabase",
        confidence=0.0325,
        metadata={
            "team": "platform",
            "title": "Keys",
            "source_url": "https://example.org/keys",
            "knowledge_type": "playbook",
            "document_id": ROW["document_id"],
            "chunk_index": 3,
            "source_origin": "notion",
            "vector_rank": 1,
            "text_rank": 2,
            "rrf_score": 0.0325,
            "similarity": 0.82,
            "text_score": 7.5,
            "match_type": "both",
            "matched_terms": ["rotate", "keys"],
            "real_provider": True,
        },
    )


def test_a_leg_that_missed_the_row_leaves_its_rank_empty() -> None:
    row = {**ROW, "text_rank": None, "text_score": None, "match_type": "vector"}
    (result,), _ = SupabaseProvider(client=client_with([row])).hybrid_search([0.1], "x")
    assert result.metadata["text_rank"] is None
    assert result.metadata["text_score"] is None


def test_reserved_keys_win_over_the_rows_own() -> None:
    lies = dict.fromkeys(ROW, "a lie") | {"real_provider": False, "mine": 1}
    row = {**ROW, "metadata": lies, "text_rank": None}
    (result,), _ = SupabaseProvider(client=client_with([row])).hybrid_search([0.1], "x")
    (honest,), _ = SupabaseProvider(
        client=client_with([{**ROW, "metadata": {}, "text_rank": None}])
    ).hybrid_search([0.1], "x")
    assert result.metadata["mine"] == 1
    assert {key: result.metadata[key] for key in honest.metadata} == honest.metadata


@pytest.mark.parametrize("row", [{}, None, 7, "row", [ROW], {"id": "", "metadata": "no"}])
def test_an_odd_row_is_normalized(row: object) -> None:
    results, details = SupabaseProvider(client=client_with([ROW, row])).hybrid_search([0.1], "x")
    assert details["raw_count"] == 2
    assert results[1] == MemorySearchResult(
        id="supa-hybrid-1",
        content="",
        source="supabase",
        confidence=0.0,
        metadata={
            "knowledge_type": "document",
            "document_id": None,
            "chunk_index": 0,
            "source_origin": "manual",
            "vector_rank": None,
            "text_rank": None,
            "rrf_score": None,
            "similarity": None,
            "text_score": None,
            "match_type": None,
            "matched_terms": [],
            "real_provider": True,
        },
    )


def test_a_missing_id_is_named_by_mode_and_position() -> None:
    provider = SupabaseProvider(client=client_with([{}]))
    assert provider.search([0.1])[0][0].id == "supa-vector-0"
    assert provider.fulltext_search("x")[0][0].id == "supa-fulltext-0"


@pytest.mark.parametrize(
    ("column", "value", "normalized"),
    [
        ("knowledge_type", "recipe", "document"),
        ("knowledge_type", 5, "document"),
        ("source_origin", "fax", "manual"),
        ("chunk_index", "x", 0),
        ("chunk_index", "NaN", 0),
        ("chunk_index", None, 0),
        ("similarity", "NaN", None),
        ("vector_rank", "Infinity", None),
        ("matched_terms", "keys", []),
        ("matched_terms", None, []),
    ],
)
def test_an_odd_column_is_normalized(column: str, value: object, normalized: object) -> None:
    client = client_with([{**ROW, column: value}])
    (result,), _ = SupabaseProvider(client=client).hybrid_search([0.1], "x")
    assert result.metadata[column] == normalized


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(
    rows=st.lists(st.dictionaries(st.sampled_from(sorted(ROW)), json_values) | json_values),
    mode=st.sampled_from(["hybrid", "vector", "fulltext"]),
    top_k=st.integers(1, 5),
)
def test_no_row_is_fatal(rows: list[Any], mode: Mode, top_k: int) -> None:
    results = normalize_rows(rows, mode=mode, source="supabase", limit=top_k)
    assert len(results) == min(len(rows), top_k)
    for result in results:
        assert 0 <= result.confidence <= 1
        assert isinstance(result.id, str)
        assert result.metadata["real_provider"] is True


@pytest.mark.parametrize(
    ("error", "kind", "code", "remedy"),
    [
        (RuntimeError("boom"), "error", None, "doctor"),
        (
            APIError({"code": "PGRST202", "message": "Could not find the function"}),
            "migration_missing",
            "PGRST202",
            "supabase db push",
        ),
        (
            APIError({"code": "42501", "message": "permission denied for function"}),
            "permission_denied",
            "42501",
            "service role",
        ),
        (
            APIError({"code": "22000", "message": "different vector dimensions 3 and 4"}),
            "dimension_mismatch",
            "22000",
            "model",
        ),
        (
            APIError({"code": "57014", "message": "canceling statement"}),
            "timeout",
            "57014",
            "statement_timeout",
        ),
    ],
)
def test_hybrid_search_exception_returns_fallback(
    caplog: pytest.LogCaptureFixture, error: Exception, kind: str, code: str | None, remedy: str
) -> None:
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


@pytest.mark.parametrize(("top_k", "expected"), [(1, 1), (3, 3), (5, 4)])
def test_hybrid_search_respects_top_k(top_k: int, expected: int) -> None:
    rows = [{**ROW, "id": str(number)} for number in range(4)]
    client = client_with(rows)
    results, details = SupabaseProvider(client=client).hybrid_search([0.1], "x", top_k=top_k)
    assert [result.id for result in results] == [str(number) for number in range(expected)]
    assert details["raw_count"] == 4
    assert sent(client)["match_count"] == top_k


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
