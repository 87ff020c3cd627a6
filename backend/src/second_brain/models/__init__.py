"""Embedders: the `Embedder` protocol, its implementations, and a cache of embeddings.

This package does not use the knowledge database; the pipeline in `second_brain.ingest`, the
services and the command line do. The library of a model is imported when its embedder is created.
"""

import re
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from second_brain.errors import ConfigurationError, MissingExtraError, QuotaExceededError

if find_spec("numpy") is None:
    raise MissingExtraError("numpy", "retrieval")

from second_brain.models.cached import CachedEmbedder, EmbeddingCache, MemoryCache, SqliteCache
from second_brain.models.cohere import CohereEmbedder
from second_brain.models.embedder import (
    CallableEmbedder,
    Embedder,
    QueryEmbedder,
    embed_queries,
    embed_query,
    is_async,
    unit_vectors,
)
from second_brain.models.encoders import Encoder, EncoderEmbedder, as_embedder
from second_brain.models.google import GoogleEmbedder
from second_brain.models.hosted import RateLimit, TextTooLongError
from second_brain.models.openai import OpenAIEmbedder
from second_brain.models.prompts import Prompts
from second_brain.models.sentence_transformers import SentenceTransformersEmbedder
from second_brain.models.voyage import VoyageEmbedder
from second_brain.models.wordllama import WordLlamaEmbedder

__all__ = [
    "EMBEDDER_NAMES",
    "CachedEmbedder",
    "CallableEmbedder",
    "CohereEmbedder",
    "Embedder",
    "EmbeddingCache",
    "Encoder",
    "EncoderEmbedder",
    "GoogleEmbedder",
    "MemoryCache",
    "OpenAIEmbedder",
    "Prompts",
    "QueryEmbedder",
    "QuotaExceededError",
    "RateLimit",
    "SentenceTransformersEmbedder",
    "SqliteCache",
    "TextTooLongError",
    "VoyageEmbedder",
    "WordLlamaEmbedder",
    "as_embedder",
    "embed_queries",
    "embed_query",
    "is_async",
    "load_embedder",
    "unit_vectors",
]

EMBEDDER_NAMES = (
    "wordllama",
    "sentence-transformers:MODEL",
    "openai:MODEL",
    "cohere:MODEL",
    "google:MODEL",
    "voyage:MODEL",
)

_PROVIDERS: dict[str, Callable[..., Embedder]] = {
    "sentence-transformers": SentenceTransformersEmbedder,
    "openai": OpenAIEmbedder,
    "cohere": CohereEmbedder,
    "google": GoogleEmbedder,
    "voyage": VoyageEmbedder,
}
_NAME = re.compile(
    r"(?:wordllama|(?P<provider>[\w-]+):(?P<model>.+?))(?:@(?P<dimensions>[1-9]\d{0,4}))?"
)


def load_embedder(name: str, *, address: str | None = None, key: str | None = None) -> Embedder:
    """Load an embedder by its name, one of EMBEDDER_NAMES; keys come from the environment.

    `NAME@N` requests vectors of N dimensions from a model that supports several sizes. `address`
    is a server with OpenAI's API, for `openai:MODEL`. It gets `key` or none: not OPENAI_API_KEY,
    which is for OpenAI. Raises ConfigurationError for an unknown name, and the errors of the
    embedder's class.
    """
    found = _NAME.fullmatch(name)
    provider = found["provider"] if found else None
    if address is not None and provider != "openai":
        raise ConfigurationError(
            f"embedder {name!r} has no address",
            remedy="Use openai:MODEL for a server with OpenAI's API, or remove the address.",
        )
    if found is None or provider not in (None, *_PROVIDERS):
        raise ConfigurationError(
            f"unknown embedder {name!r}", remedy=f"Choose one of: {', '.join(EMBEDDER_NAMES)}."
        )
    options: dict[str, Any] = {}
    if found["dimensions"]:
        options["dimensions"] = int(found["dimensions"])
    if provider is None:
        return WordLlamaEmbedder(**options)
    if address is not None:
        options |= {"base_url": address, "api_key": key}
    return _PROVIDERS[provider](found["model"], **options)
