"""What to judge for a question: the hits of several settings, in an order that does not show ranks.

A judge who sees ranks, or hits of one setting alone, prefers them. So the first hits of each leg
and of each fusion are pooled, and their order depends on the question alone. Measures count
documents, so each search returns documents, each with its best chunk: all that a measure looks at
in its first hits is then judged.
"""

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from second_brain.services.postgres import PostgresProvider
from second_brain.services.results import MemorySearchResult

DEPTH = 10
"""Documents of each setting."""

_ANY_SIMILARITY = -1.0


def candidates(
    provider: PostgresProvider,
    question: str,
    embedding: Sequence[float] | None,
    depth: int = DEPTH,
    **options: Any,
) -> list[MemorySearchResult]:
    """Return the first documents of each leg and each fusion: their best chunks, each once.

    Without an embedding, only the text leg is asked. `options` are arguments of each search.
    """
    asked: list[tuple[Sequence[float] | None, str | None, str]] = [(None, question, "rrf")]
    if embedding is not None:
        asked += [
            (embedding, None, "rrf"),
            (embedding, question, "rrf"),
            (embedding, question, "relative_score"),
            (embedding, question, "auto"),
        ]
    pool: dict[str, MemorySearchResult] = {}
    for vector, text, fusion in asked:
        hits, _ = provider.find(
            vector,
            text,
            top_k=depth,
            fusion=fusion,
            threshold=_ANY_SIMILARITY,
            one_per_document=True,
            **options,
        )
        pool.update((hit.id, hit) for hit in hits)
    return sorted(pool.values(), key=lambda hit: _place(question, hit.id))


def _place(question: str, chunk_id: str) -> bytes:
    # Not Python's hash, which differs between processes.
    return sha256(f"{question}\n{chunk_id}".encode()).digest()
