"""The base of embedders with hosted models: batches within the API's limits, checked answers."""

import base64
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from second_brain.errors import ConfigurationError, UnexpectedAnswerError
from second_brain.models.embedder import unit_vectors
from second_brain.models.hosted import (
    Calls,
    Closes,
    HostedModel,
    RateLimit,
    TextTooLongError,
    estimate_tokens,
    find_key,
    in_order,
    malformed,
    server_name,
)
from second_brain.models.prompts import Prompts, Role, prompts_of
from second_brain.models.providers import COMPATIBLE_BATCH_SIZE, Provider


class HostedEmbedder(HostedModel, ABC):
    """A model behind an API; subclasses say how a request is sent and its answer read.

    `model` is by default `default_model`. `dimensions` requests another size, if the model has it.
    `api_key` is by default read from the environment when the embedder is created. `base_url` is
    another address of the API. `client` is a client of the provider's package that the caller made
    and closes: `api_key` and `base_url` are then not used. `timeout` is in seconds for each try;
    see Calls for `retries` and `longest_wait`. `batch_size` and `batch_tokens` limit a request, by
    default as the provider does. With `truncate`, the provider cuts texts that are too long, if it
    can. `prompts` are put before queries and documents, by default the known ones of the model.

    Thread-safe. Blank texts are not sent; they have zero rows. The constructor raises
    MissingExtraError without the provider's package, and ConfigurationError without a key, or for
    dimensions that the model does not have.
    """

    provider: ClassVar[Provider]
    default_model: ClassVar[str]
    accepts_client: ClassVar[bool] = False
    can_truncate: ClassVar[bool] = False

    def __init__(
        self,
        model: str | None = None,
        *,
        dimensions: int | None = None,
        api_key: str | None = None,
        base_url: str | None = None,
        client: Any = None,
        timeout: float = 30.0,
        retries: int = 4,
        longest_wait: float = 60.0,
        rate_limit: RateLimit | None = None,
        batch_size: int | None = None,
        batch_tokens: int | None = None,
        truncate: bool = False,
        prompts: Prompts | None = None,
    ) -> None:
        for name, value in (
            ("dimensions", dimensions),
            ("batch_size", batch_size),
            ("batch_tokens", batch_tokens),
        ):
            if value is not None and value < 1:
                raise ConfigurationError(f"{name} is {value}", remedy="Give at least 1.")
        for name, is_given, is_possible in (
            ("client", client is not None, self.accepts_client),
            ("truncate", truncate, self.can_truncate),
        ):
            if is_given and not is_possible:
                raise ConfigurationError(
                    f"{type(self).__name__} has no {name}", remedy=f"Remove {name}."
                )
        self._model = model or self.default_model
        facts = self.provider.models.get(self._model)
        if facts is not None and dimensions not in (None, *facts.sizes):
            raise ConfigurationError(
                f"{self._model} has no vectors of {dimensions} dimensions",
                remedy=f"Its sizes are {facts.sizes_as_text()}.",
            )
        self._requested_dimensions = dimensions
        self._dimensions = dimensions if dimensions or not facts else facts.dimensions
        self._truncate = truncate
        self.prompts = prompts_of(self._model) if prompts is None else prompts
        self._calls = Calls(retries=retries, longest_wait=longest_wait, rate_limit=rate_limit)
        address = base_url or self.provider.address()
        self._name = server_name(self.provider, address)
        # Elsewhere is a server of someone else with the same API.
        self._is_elsewhere = self.provider.is_open_api and self._name != self.provider.name
        self._batch_size = batch_size or (
            COMPATIBLE_BATCH_SIZE if self._is_elsewhere else self.provider.batch_size
        )
        self._batch_tokens = (
            batch_tokens or (facts and facts.batch_tokens) or self.provider.batch_tokens
        )
        self._timeout = timeout
        self._lock = threading.Lock()
        self._is_clients_own = client is not None
        self._key = ""
        if client is None:
            self._key = find_key(
                self.provider, api_key, is_needed=not (base_url and self._is_elsewhere)
            )
        self._client: Any = self._connect(address) if client is None else client

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

    def embed_query(self, text: str) -> NDArray[np.float32]:
        """Embed a query; raises the errors of `embed`."""
        vector: NDArray[np.float32] = self._embed([text], "query")[0]
        return vector

    def embed_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Embed queries as `embed` embeds documents."""
        return self._embed(texts, "query")

    def close(self) -> None:
        """Close the connections, unless the caller passed the client."""
        if not self._is_clients_own:
            super().close()

    @abstractmethod
    def _connect(self, base_url: str) -> Closes:
        """Return a client of the API, with `_key` and `_timeout`."""

    @abstractmethod
    def _request(self, texts: Sequence[str], role: Role) -> Sequence[Any]:
        """Return a vector for each text from one request; raises FailedCallError."""

    def _embed(self, texts: Sequence[str], role: Role) -> NDArray[np.float32]:
        prompt = self.prompts.of(role)
        tokens = [estimate_tokens(prompt + text, f"texts[{row}]") for row, text in enumerate(texts)]
        sent = [prompt + text if text.strip() else "" for text in texts]
        vectors = np.zeros((len(texts), self.dimensions), np.float32)
        for rows in self._batches(sent, tokens):
            self._fill(vectors, rows, sent, tokens, role)
        return vectors

    def _batches(self, texts: Sequence[str], tokens: Sequence[int]) -> Iterator[list[int]]:
        rows: list[int] = []
        room = self._batch_tokens
        for row, text in enumerate(texts):
            if not text:
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


def numbered_vectors(provider: str, answer: Any, count: int) -> list[Any]:
    """Return the vectors of an answer in OpenAI's form, in the order of their texts.

    A vector is a list of numbers, or these as little-endian float32 in base64.
    """
    try:
        numbered = [(one["index"], _numbers(one["embedding"])) for one in answer["data"]]
    except (KeyError, TypeError, ValueError) as exc:
        raise malformed(provider, "it holds no embeddings") from exc
    return in_order(provider, numbered, count)


def _numbers(vector: Any) -> Any:
    if isinstance(vector, str):
        return np.frombuffer(base64.b64decode(vector, validate=True), "<f4")
    if not isinstance(vector, list):
        raise TypeError(f"an embedding is {type(vector).__name__}")
    return vector
