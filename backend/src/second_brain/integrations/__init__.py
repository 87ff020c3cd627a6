"""Retrievers for other frameworks over `RetrievalService`; each needs the extra of its name."""

from typing import Any

from second_brain.retrieval.answer import SearchResponse, SearchResult


def described(hit: SearchResult, response: SearchResponse) -> dict[str, Any]:
    """Return what is known of a hit beside its text, in JSON's types.

    That is the row's metadata and over it the hit's fields, its `score`, and which part the search
    had to do without (`degraded`).
    """
    return {
        **hit.metadata,
        **hit.model_dump(mode="json", exclude={"id", "content", "context", "metadata"}),
        "score": hit.score,
        "degraded": response.degraded.part if response.degraded else None,
    }


def text(hit: SearchResult) -> str:
    """Return the hit's text, with its neighbours where the search asked for them."""
    return hit.content if hit.context is None else hit.context
