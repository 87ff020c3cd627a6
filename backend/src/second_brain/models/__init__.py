"""Embedders: the `Embedder` protocol, its implementations, and a cache of embeddings.

This package does not use the knowledge database; the pipeline in `second_brain.ingest`, the
services and the command line do. The library of a model is imported when its embedder is created.
"""

import re
from collections.abc import Callable
from importlib.util import find_spec

from second_brain.errors import ConfigurationError, MissingExtraError

if find_spec("numpy") is None:
    raise MissingExtraError("numpy", "retrieval")

from second_brain.models.cached import CachedEmbedder, EmbeddingCache, MemoryCache, SqliteCache
from second_brain.models.embedder import (
    CallableEmbedder,
    Embedder,
    QueryEmbedder,
    embed_queries,
    embed_query,
    is_async,
    unit_vectors,
)
from second_brain.models.hosted import QuotaExceededError, RateLimit, TextTooLongError
from second_brain.models.openai import OpenAIEmbedder
from second_brain.models.sentence_transformers import SentenceTransformersEmbedder
from second_brain.models.voyage import VoyageEmbedder
from second_brain.models.wordllama import WordLlamaEmbedder

__all__ = [
    "EMBEDDER_NAMES",
    "CachedEmbedder",
    "CallableEmbedder",
    "Embedder",
    "EmbeddingCache",
    "MemoryCache",
    "OpenAIEmbedder",
    "QueryEmbedder",
    "QuotaExceededError",
    "RateLimit",
    "SentenceTransformersEmbedder",
    "SqliteCache",
    "TextTooLongError",
    "VoyageEmbedder",
    "WordLlamaEmbedder",
    "embed_queries",
    "embed_query",
    "is_async",
    "load_embedder",
    "unit_vectors",
]

EMBEDDER_NAMES = ("wordllama", "sentence-transformers:MODEL", "openai:MODEL", "voyage:MODEL")

_PROVIDERS: dict[str, Callable[[str, int | None], Embedder]] = {
    "sentence-transformers": lambda model, dimensions: SentenceTransformersEmbedder(
        model, dimensions=dimensions
    ),
    "voyage": lambda model, dimensions: VoyageEmbedder(model, dimensions=dimensions),
}
# OpenAI's client sends a key in every request.
_NO_KEY = "none"
_NAME = re.compile(r"(?P<provider>[\w-]+):(?P<model>.+?)(?:@(?P<dimensions>[1-9]\d{0,4}))?")


def load_embedder(name: str, *, address: str | None = None, key: str | None = None) -> Embedder:
    """Load an embedder by its name, one of EMBEDDER_NAMES; keys come from the environment.

    `MODEL@N` requests vectors of N dimensions from a model that supports several sizes. `address`
    is a server with OpenAI's API, for `openai:MODEL`. It gets `key` or none: not OPENAI_API_KEY,
    which is for OpenAI. Raises ConfigurationError for an unknown name, and the errors of the
    embedder's class.
    """
    found = _NAME.fullmatch(name)
    provider = name if found is None else found["provider"]
    if address is not None and provider != "openai":
        raise ConfigurationError(
            f"embedder {name!r} has no address",
            remedy="Use openai:MODEL for a server with OpenAI's API, or remove the address.",
        )
    if name == "wordllama":
        return WordLlamaEmbedder()
    if found is None or provider not in ("openai", *_PROVIDERS):
        raise ConfigurationError(
            f"unknown embedder {name!r}", remedy=f"Choose one of: {', '.join(EMBEDDER_NAMES)}."
        )
    model = found["model"]
    dimensions = int(found["dimensions"]) if found["dimensions"] else None
    if provider == "openai":
        given = None if address is None else key or _NO_KEY
        return OpenAIEmbedder(model, dimensions=dimensions, base_url=address, api_key=given)
    return _PROVIDERS[provider](model, dimensions)
