"""The base of embedders with hosted models: batches within the API's limits, checked answers."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from second_brain.errors import ConfigurationError, UnexpectedAnswerError
from second_brain.models.embedder import unit_vectors
from second_brain.models.hosted import Calls, HostedModel, TextTooLongError, estimate_tokens

Role = Literal["document", "query"]


class HostedEmbedder(HostedModel, ABC):
    """Base of embedders whose model is behind an API; each subclass implements `_request`.

    Thread-safe. Blank texts are not sent; they have zero rows.
    """

    def __init__(
        self,
        model: str,
        dimensions: int | None,
        known: Mapping[str, int],
        calls: Calls,
        *,
        batch_size: int,
        batch_tokens: int,
    ) -> None:
        for name, value in (
            ("dimensions", dimensions),
            ("batch_size", batch_size),
            ("batch_tokens", batch_tokens),
        ):
            if value is not None and value < 1:
                raise ConfigurationError(f"{name} is {value}", remedy="Give at least 1.")
        self._model = model
        self._requested_dimensions = dimensions
        self._dimensions = dimensions or known.get(model)
        self._calls = calls
        self._batch_size = batch_size
        self._batch_tokens = batch_tokens
        self._lock = threading.Lock()

    @property
    def model(self) -> str:
        """Name that is stored with every embedding."""
        return self._model

    @property
    def dimensions(self) -> int:
        """Length of each vector; for an unknown model, one request with one word finds it."""
        with self._lock:
            if self._dimensions is None:
                found = np.shape(self._calls.run(lambda: self._request(["size"], "document"), 1))
                if len(found) != 2 or found[1] == 0:
                    raise UnexpectedAnswerError(
                        f"{self._model} returned an array of shape {found} for 1 text",
                        remedy="Check that this is an embedding model.",
                    )
                self._dimensions = found[1]
            return self._dimensions

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Embed texts, in as few requests as the API's limits allow.

        Raises TextTooLongError with the index of the text, QuotaExceededError, AuthenticationError,
        ClientTimeoutError, UnavailableError or UnexpectedAnswerError.
        """
        return self._embed(texts, "document")

    @abstractmethod
    def _request(self, texts: Sequence[str], role: Role) -> Sequence[Any]:
        """Return a vector for each text from one request; raises FailedCallError."""

    def _embed(self, texts: Sequence[str], role: Role) -> NDArray[np.float32]:
        tokens = [estimate_tokens(text, f"texts[{row}]") for row, text in enumerate(texts)]
        vectors = np.zeros((len(texts), self.dimensions), np.float32)
        for rows in self._batches(texts, tokens):
            self._fill(vectors, rows, texts, tokens, role)
        return vectors

    def _batches(self, texts: Sequence[str], tokens: Sequence[int]) -> Iterator[list[int]]:
        rows: list[int] = []
        room = self._batch_tokens
        for row, text in enumerate(texts):
            if not text.strip():
                continue
            if rows and (len(rows) == self._batch_size or tokens[row] > room):
                yield rows
                rows, room = [], self._batch_tokens
            rows.append(row)
            room -= tokens[row]
        if rows:
            yield rows

    def _fill(
        self,
        vectors: NDArray[np.float32],
        rows: list[int],
        texts: Sequence[str],
        tokens: Sequence[int],
        role: Role,
    ) -> None:
        batch = [texts[row] for row in rows]
        try:
            given = self._calls.run(
                lambda: self._request(batch, role), sum(tokens[row] for row in rows)
            )
        except TextTooLongError as exc:
            if len(rows) == 1:
                raise TextTooLongError(
                    f"texts[{rows[0]}] is too long for {self._model}: {exc}", code=exc.code
                ) from exc
            # Token counts are estimates, so a batch can be too long when each text is not.
            middle = len(rows) // 2
            self._fill(vectors, rows[:middle], texts, tokens, role)
            self._fill(vectors, rows[middle:], texts, tokens, role)
            return
        vectors[rows] = unit_vectors(given, len(rows), self.dimensions, self._model)
