"""The protocols of embedders, and an embedder made from any function."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from second_brain.errors import ConfigurationError, UnexpectedAnswerError


class Embedder(Protocol):
    """An object that embeds queries and chunks with one model and one number of dimensions.

    If the model embeds queries differently, the embedder also has `embed_query`: see QueryEmbedder.
    """

    @property
    def dimensions(self) -> int:
        """Length of each vector; the embedding column must have the same dimension."""

    @property
    def model(self) -> str:
        """Name that is stored with every embedding; vectors of two models are not comparable."""

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Embed texts into a float32 array of shape (len(texts), dimensions).

        Every row is a unit vector, or all zeros when the model knows no token of the text. A zero
        row has no direction: do not store it or search with it.
        """


@runtime_checkable
class QueryEmbedder(Protocol):
    """An embedder whose model embeds queries differently from documents."""

    def embed_query(self, text: str) -> NDArray[np.float32]:
        """Embed a query into a float32 unit vector of length `dimensions`, or zeros."""


@runtime_checkable
class QueriesEmbedder(Protocol):
    """A QueryEmbedder that embeds several queries at once."""

    def embed_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Embed queries into a float32 array of shape (len(texts), dimensions)."""


def embed_query(embedder: Embedder, text: str) -> NDArray[np.float32]:
    """Embed a query into a float32 vector of length `dimensions`, by `embed_query` if it exists."""
    if isinstance(embedder, QueryEmbedder):
        return embedder.embed_query(text)
    vector: NDArray[np.float32] = embedder.embed([text])[0]
    return vector


def embed_queries(embedder: Embedder, texts: Sequence[str]) -> NDArray[np.float32]:
    """Embed queries into a float32 array of shape (len(texts), dimensions).

    By `embed_queries` if it exists, in which one request can have several.
    """
    if isinstance(embedder, QueriesEmbedder):
        return embedder.embed_queries(texts)
    if not isinstance(embedder, QueryEmbedder):
        return embedder.embed(texts)
    vectors = np.zeros((len(texts), embedder.dimensions), np.float32)
    for row, text in enumerate(texts):
        vectors[row] = embedder.embed_query(text)
    return vectors


def unit_vectors(
    vectors: ArrayLike, count: int, dimensions: int, model: str
) -> NDArray[np.float32]:
    """Return a model's vectors for `count` texts as unit vectors; a zero row stays zero.

    Raises UnexpectedAnswerError when the number of rows or dimensions is wrong, or a number is not
    finite.
    """
    try:
        array = np.asarray(vectors, np.float64)
    except (TypeError, ValueError) as exc:
        raise UnexpectedAnswerError(
            f"{model} did not return an array of numbers",
            remedy="An embedder must return one vector for each text.",
        ) from exc
    if array.shape != (count, dimensions):
        raise UnexpectedAnswerError(
            f"{model} returned an array of shape {array.shape} for {count} texts",
            remedy=f"An embedder must return one vector of {dimensions} numbers for each text.",
        )
    if not np.isfinite(array).all():
        raise UnexpectedAnswerError(
            f"{model} returned a vector that contains NaN or infinity",
            remedy="Such a vector has no direction: embed with another model.",
        )
    norms = np.linalg.norm(array, axis=1, keepdims=True)
    norms[norms == 0] = 1
    unit: NDArray[np.float32] = (array / norms).astype(np.float32)
    return unit


def embed_written(
    texts: Sequence[str], dimensions: int, model: str, function: Callable[[list[str]], ArrayLike]
) -> NDArray[np.float32]:
    """Return unit vectors of the texts; `function` gets only the texts that are not blank."""
    vectors = np.zeros((len(texts), dimensions), np.float32)
    rows = [row for row, text in enumerate(texts) if text.strip()]
    if rows:
        given = function([texts[row] for row in rows])
        vectors[rows] = unit_vectors(given, len(rows), dimensions, model)
    return vectors


def is_async(function: Callable[..., Any]) -> bool:
    """Return whether a function or callable object returns a coroutine."""
    return any(map(inspect.iscoroutinefunction, (function, type(function).__call__)))


class NamedModel:
    """What the embedders here say of their model."""

    _model: str
    _dimensions: int

    @property
    def model(self) -> str:
        """Name that is stored with every embedding."""
        return self._model

    @property
    def dimensions(self) -> int:
        """Length of each vector."""
        return self._dimensions


class CallableEmbedder(NamedModel):
    """An embedder made from a function that takes a list of texts and returns a vector for each.

    Each call of `embed` calls `function` once. If several threads use the embedder, `function` must
    be thread-safe. `function` does not get blank texts; they have zero rows. Raises TypeError if
    `function` is not callable, and ConfigurationError if it is a coroutine function.
    """

    def __init__(
        self, function: Callable[[list[str]], ArrayLike], model: str, dimensions: int
    ) -> None:
        if not callable(function):
            raise TypeError(f"function must be callable, not {type(function).__name__}")
        if is_async(function):
            raise ConfigurationError(
                "function is a coroutine function; CallableEmbedder needs an ordinary function",
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

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Embed texts; raises UnexpectedAnswerError if the result is not one vector for each."""
        return embed_written(texts, self._dimensions, self._model, self._function)
