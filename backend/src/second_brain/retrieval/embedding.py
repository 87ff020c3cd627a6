"""Which embedder a corpus needs, how it embeds a question, and what its failures mean."""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from second_brain.errors import (
    ConfigurationError,
    InvalidInputError,
    SecondBrainError,
    UnavailableError,
    safe_message,
    translate,
)
from second_brain.models import Embedder, embed_queries, is_async, unit_vectors
from second_brain.models.rerankers import CrossEncoderReranker, Reranker
from second_brain.retrieval.settings import SearchSettings
from second_brain.services.calls import Deadline
from second_brain.services.results import EmbeddingModel

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

logger = logging.getLogger(__name__)

EMBEDDING_SHARE = 0.5
"""How much of the time that is left embedding may take: text search needs the rest without it."""

Compute: TypeAlias = Callable[[str, Callable[[], Any], float | None, bool], Awaitable[Any]]
"""Calls a model: its part in messages, the call, the seconds it may take, whether to await it."""


class AsyncEmbedder(Protocol):
    """An embedder for `AsyncRetrievalService` whose `embed` (or `embed_query`) is awaited."""

    @property
    def dimensions(self) -> int:
        """Length of each vector."""

    @property
    def model(self) -> str:
        """Name kept with every stored embedding."""

    def embed(self, texts: Sequence[str]) -> "Awaitable[NDArray[np.float32]]":
        """Embed texts into a float32 array of shape (len(texts), dimensions)."""


class _NoEmbedder:
    dimensions = 0
    model = "no embedder"

    def embed(self, texts: Sequence[str]) -> "NDArray[np.float32]":
        raise ConfigurationError(
            "the service is without an embedder",
            remedy="Give one; the modes hybrid and text search without it.",
        )


NO_EMBEDDER: Embedder = _NoEmbedder()
"""Stands for an embedder in a service without one: text hits give a question its embedding."""

AnyEmbedder: TypeAlias = Embedder | AsyncEmbedder


async def embed_question(
    embedder: AnyEmbedder, texts: Sequence[str], compute: Compute, deadline: Deadline
) -> "list[NDArray[np.float32] | None]":
    """Return a vector for each text; None for a text without a word of the model."""
    embedding = query_function(embedder)
    is_awaited = is_async(embedding)
    call: Callable[[], Any] = partial(embed_queries, embedder, texts)  # type: ignore[arg-type]
    if is_awaited and hasattr(embedder, "embed_query"):

        async def call() -> Any:
            return await asyncio.gather(*map(embedding, texts))
    elif is_awaited:
        call = partial(embedding, texts)
    given = await compute("the embedder", call, deadline.left(EMBEDDING_SHARE), is_awaited)
    vectors = unit_vectors(given, len(texts), embedder.dimensions, embedder.model)
    if not vectors[0].any():
        raise InvalidInputError(
            f"{embedder.model} knows no word of the question, and it has no embedding",
            remedy="Search by text, or use other words in the question.",
        )
    return [vector if vector.any() else None for vector in vectors]


def query_function(embedder: AnyEmbedder) -> Callable[..., Any]:
    """Return the function that embeds a query, or a list of them."""
    return getattr(embedder, "embed_query", None) or embedder.embed


def matching_embedder(
    embedders: Sequence[AnyEmbedder], models: Sequence[EmbeddingModel]
) -> AnyEmbedder:
    """Return the embedder of the model that most chunks have; any, for a corpus without a chunk.

    Where no chunk names its model, the dimensions decide.
    """
    named = sorted((one for one in models if one.model), key=lambda one: -one.chunks)
    for stored in named or models:
        for embedder in embedders:
            if stored.dimensions == embedder.dimensions and stored.model in (None, embedder.model):
                others = sum(one.chunks for one in named if one is not stored)
                if others:
                    logger.warning(
                        "the corpus has %d embeddings of another model than %s, "
                        "which no question compares with",
                        others,
                        embedder.model,
                    )
                return embedder
    if not models:
        return embedders[0]
    ours = ", ".join(f"{one.model} ({one.dimensions} dimensions)" for one in embedders)
    theirs = ", ".join(
        f"{one.model or 'a model that is not named'} ({one.dimensions} dimensions)"
        for one in models
    )
    raise ConfigurationError(
        f"the corpus is embedded with {theirs}, and the question would be with {ours}",
        remedy="Give the service the embedder of the corpus's model, or embed the corpus again.",
    )


def model_failure(error: Exception, what: str) -> SecondBrainError:
    """Return the error of an embedder or a reranker as one of `second_brain.errors`."""
    if isinstance(error, SecondBrainError):
        return error
    failure = translate(error)
    message = safe_message(error) or type(error).__name__
    if isinstance(error, OSError):
        failure = UnavailableError(message)
    elif isinstance(failure, InvalidInputError):
        # A model's ValueError says nothing of what the caller gave.
        failure = SecondBrainError(f"{type(error).__name__}: {message}")
    failure.remedy = f"Look into {what}: the message is its own."
    return failure


def cross_encoder(settings: SearchSettings) -> Reranker:
    """Return the cross-encoder of the settings, made now where these ask for reranking."""
    make = partial(
        CrossEncoderReranker,
        settings.crossencoder_model,
        max_length=settings.crossencoder_max_length,
    )
    if settings.use_reranking or settings.default_mode == "rerank":
        return make()
    made, lock = list[CrossEncoderReranker](), threading.Lock()

    def reranker(question: str, texts: Sequence[str]) -> list[float]:
        with lock:
            if not made:
                made.append(make())
        return made[0](question, texts)

    return reranker
