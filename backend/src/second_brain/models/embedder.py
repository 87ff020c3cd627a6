"""What an embedder is, and any function as one."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from second_brain.errors import ConfigurationError, UnexpectedAnswerError


class Embedder(Protocol):
    """What embeds queries and chunks: one model, one number of dimensions.

    One whose model embeds queries differently has `embed_query` too, see QueryEmbedder.
    """

    @property
    def dimensions(self) -> int:
        """Length of each vector, the size that the embedding column must have."""

    @property
    def model(self) -> str:
        """Name kept with every stored embedding; vectors of two names are never comparable."""

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Embed texts into a float32 array of shape (len(texts), dimensions).

        Every row is a unit vector, or all zeros when the model knows nothing in the text: such
        a row has no direction and must not be stored or searched with.
        """


@runtime_checkable
class QueryEmbedder(Protocol):
    """An embedder whose model embeds queries differently from what they should find."""

    def embed_query(self, text: str) -> NDArray[np.float32]:
        """Embed a query into a float32 vector of length `dimensions`: of unit length, or zeros."""


def embed_query(embedder: Embedder, text: str) -> NDArray[np.float32]:
    """Embed a query as its model wants queries, into a float32 vector of length `dimensions`."""
    if isinstance(embedder, QueryEmbedder):
        return embedder.embed_query(text)
    vector: NDArray[np.float32] = embedder.embed([text])[0]
    return vector


def embed_queries(embedder: Embedder, texts: Sequence[str]) -> NDArray[np.float32]:
    """Embed queries into a float32 array of shape (len(texts), dimensions)."""
    if not isinstance(embedder, QueryEmbedder):
        return embedder.embed(texts)
    vectors = np.zeros((len(texts), embedder.dimensions), np.float32)
    for row, text in enumerate(texts):
        vectors[row] = embedder.embed_query(text)
    return vectors


def unit_vectors(
    vectors: ArrayLike, count: int, dimensions: int, model: str
) -> NDArray[np.float32]:
    """Return what a model gave for `count` texts as unit vectors; a zero row stays one.

    Raises UnexpectedAnswerError for another number of texts or dimensions, and for numbers that
    are not finite.
    """
    try:
        array = np.asarray(vectors, np.float64)
    except (TypeError, ValueError) as exc:
        raise UnexpectedAnswerError(
            f"{model} gave no array of numbers", remedy="An embedder gives one vector per text."
        ) from exc
    if array.shape != (count, dimensions):
        raise UnexpectedAnswerError(
            f"{model} gave an array of shape {array.shape} for {count} texts",
            remedy=f"An embedder must give one vector of {dimensions} numbers per text.",
        )
    if not np.isfinite(array).all():
        raise UnexpectedAnswerError(
            f"{model} gave a vector with NaN or infinity in it",
            remedy="Such a vector has no direction: embed with another model.",
        )
    norms = np.linalg.norm(array, axis=1, keepdims=True)
    norms[norms == 0] = 1
    unit: NDArray[np.float32] = (array / norms).astype(np.float32)
    return unit


def embed_written(
    texts: Sequence[str], dimensions: int, model: str, function: Callable[[list[str]], ArrayLike]
) -> NDArray[np.float32]:
    """Return unit vectors of the texts by a function that is not given the blank ones."""
    vectors = np.zeros((len(texts), dimensions), np.float32)
    rows = [row for row, text in enumerate(texts) if text.strip()]
    if rows:
        given = function([texts[row] for row in rows])
        vectors[rows] = unit_vectors(given, len(rows), dimensions, model)
    return vectors


def is_async(function: Callable[..., Any]) -> bool:
    """Say whether what a function, or an object that can be called, gives is to be awaited."""
    return any(map(inspect.iscoroutinefunction, (function, type(function).__call__)))


class CallableEmbedder:
    """Any function from a list of texts to one vector for each: a model that runs elsewhere.

    `function` is called once for each `embed` and must be as safe to call from several threads as
    the embedder is to be. A blank text is not given to it and has a zero row. Raises TypeError for
    what is no function, and ConfigurationError for a coroutine function.
    """

    def __init__(
        self, function: Callable[[list[str]], ArrayLike], model: str, dimensions: int
    ) -> None:
        if not callable(function):
            raise TypeError(f"function must be callable, not {type(function).__name__}")
        if is_async(function):
            raise ConfigurationError(
                "function is a coroutine function, and CallableEmbedder awaits nothing",
                remedy="Give AsyncRetrievalService an object of your own with model, dimensions "
                "and `async def embed(self, texts)`.",
            )
        if not isinstance(model, str):
            raise TypeError(f"model must be a text, not {type(model).__name__}")
        if not isinstance(dimensions, int):
            raise TypeError(f"dimensions must be an integer, not {type(dimensions).__name__}")
        self._function = function
        self._model = model
        self._dimensions = dimensions

    @property
    def model(self) -> str:
        """Name kept with every stored embedding."""
        return self._model

    @property
    def dimensions(self) -> int:
        """Length of each vector."""
        return self._dimensions

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Embed texts; raises UnexpectedAnswerError when the function gives something else."""
        return embed_written(texts, self._dimensions, self._model, self._function)
