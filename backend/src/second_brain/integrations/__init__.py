"""Retrievers and stores for other frameworks; each module needs the extra of its name."""

import asyncio
from collections.abc import Callable
from functools import wraps
from typing import Any

from second_brain.retrieval.answer import SearchResponse, SearchResult


def awaited(method: Callable[..., Any]) -> Any:
    """Return the method for an event loop, which runs in a thread."""

    @wraps(method)
    async def call(*args: Any, **kwargs: Any) -> Any:
        return await asyncio.to_thread(method, *args, **kwargs)

    return call


def described(hit: SearchResult, response: SearchResponse) -> dict[str, Any]:
    """Return all fields of a hit except its text, in JSON types.

    They are the row's metadata, the hit's fields (which replace metadata of the same name), its
    `score`, and `degraded`: the part of the search that failed.
    """
    return {
        **hit.metadata,
        **hit.model_dump(
            mode="json",
            exclude={"id", "content", "context", "metadata"},
            exclude_computed_fields=True,
        ),
        "score": score(hit),
        "degraded": response.degraded.part if response.degraded else None,
    }


def score(hit: SearchResult) -> float:
    """Return what orders the hits: the reranker's score, else the confidence."""
    return hit.confidence if hit.rerank_score is None else hit.rerank_score


def text(hit: SearchResult) -> str:
    """Return the hit's text, with its neighbours if the search requested them."""
    return hit.content if hit.context is None else hit.context
