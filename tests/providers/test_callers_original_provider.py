"""The eight tests of the provider that SupabaseProvider replaces: their calls and assertions.

The code is a caller's: it imports nothing of this test suite.
"""

from typing import Any
from unittest.mock import MagicMock, patch

from second_brain.services.supabase import SupabaseProvider

EMBEDDING = [0.0] * 1024


def row(number: int = 0, score: float = 0.015, ranks: tuple[int, int] = (1, 2)) -> dict[str, Any]:
    """Return a row as the first RPC returned it: without confidence, similarity and totals."""
    vector_rank, text_rank = ranks
    return {
        "id": f"row-{number}",
        "content": f"Passage {number}.",
        "knowledge_type": "document",
        "document_id": None,
        "chunk_index": number,
        "source_origin": "manual",
        "metadata": {},
        "rrf_score": score,
        "vector_rank": vector_rank,
        "text_rank": text_rank,
    }


def client_of(*rows: dict[str, Any]) -> MagicMock:
    client = MagicMock()
    client.rpc.return_value.execute.return_value.data = list(rows)
    return client


def search(client: MagicMock | None, **options: Any) -> Any:
    provider = SupabaseProvider(config={"supabase_url": "http://test", "supabase_key": "a-key"})
    with patch.object(provider, "_load_client", return_value=client):
        return provider.hybrid_search(EMBEDDING, "rotated keys", **options)


def test_the_answer_is_a_pair() -> None:
    answer = search(None)
    assert isinstance(answer, tuple)
    assert len(answer) == 2


def test_without_a_client_the_answer_is_empty_and_says_client_unavailable() -> None:
    results, details = search(None)
    assert results == []
    assert details["fallback_reason"] == "client_unavailable"


def test_one_call_of_the_rpc_also_when_nothing_is_found() -> None:
    client = client_of()
    search(client)
    client.rpc.assert_called_once()
    assert client.rpc.call_args[0][0] == "hybrid_search_knowledge_chunks"


def test_the_weights_are_passed_on() -> None:
    client = client_of()
    search(client, vector_weight=0.7, text_weight=0.3)
    given = client.rpc.call_args[0][1]
    assert given["vector_weight"] == 0.7
    assert given["text_weight"] == 0.3


def test_the_confidence_of_such_a_row_is_its_rrf_score() -> None:
    results, _ = search(client_of(row(score=0.015)))
    assert len(results) == 1
    assert results[0].confidence == 0.015


def test_the_ranks_are_in_the_metadata() -> None:
    results, _ = search(client_of(row(ranks=(3, 5))))
    assert results[0].metadata["vector_rank"] == 3
    assert results[0].metadata["text_rank"] == 5


def test_an_exception_of_the_client_becomes_provider_error() -> None:
    client = MagicMock()
    client.rpc.side_effect = RuntimeError("no connection")
    results, details = search(client)
    assert results == []
    assert details["fallback_reason"] == "provider_error"


def test_at_most_top_k_results() -> None:
    rows = [row(number, score=0.01 * (10 - number)) for number in range(10)]
    results, _ = search(client_of(*rows), top_k=3)
    assert len(results) == 3
