"""A mock that stands for supabase-py; `test_supabase_http.py` has the real one."""

from typing import Any
from unittest.mock import MagicMock

from second_brain.services.results import HitMetadata

ROW: dict[str, Any] = {
    "id": "6f0e4a52-3c0e-4a57-9f9b-0d8f1f7f0001",
    "content": "How to rotate the signing keys.",
    "knowledge_type": "document",
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
    "collection": "memory",
    "document_date": "2026-01-31",
    "snippet": "How to <mark>rotate</mark> the signing <mark>keys</mark>.",
    "context": "Before.\n[CHUNK BOUNDARY]\nHow to rotate the signing keys.",
    "total_count": 1,
}
# What the metadata of a result has where the row says nothing.
METADATA: Any = {
    **dict.fromkeys(HitMetadata.__annotations__.keys() - {"title", "source_url", "pool_ended"}),
    "knowledge_type": "document",
    "chunk_index": 0,
    "source_origin": "manual",
    "matched_terms": [],
    "collections": [],
    "is_chunk": True,
    "real_provider": True,
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
