"""Rerankers: they score each candidate against the query, which is more exact and slower.

A reranker is a function that takes a query and texts and returns a score for each text; a higher
score is better. This module does not search: `second_brain.retrieval` selects the candidates.
"""

import math
import threading
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from second_brain.errors import (
    ConfigurationError,
    MissingExtraError,
    UnexpectedAnswerError,
    safe_message,
)
from second_brain.models import voyage
from second_brain.models.hosted import (
    Calls,
    HostedModel,
    JsonApi,
    RateLimit,
    estimate_tokens,
    find_key,
    in_order,
    malformed,
)

if TYPE_CHECKING:
    from sentence_transformers import CrossEncoder

Reranker = Callable[[str, Sequence[str]], Sequence[float]]


def rerank_scores(reranker: Reranker, query: str, texts: Sequence[str]) -> list[float]:
    """Return the reranker's score of each text.

    Raises UnexpectedAnswerError when the reranker does not return one finite number for each text,
    and the errors of the reranker itself.
    """
    return _checked(reranker(query, texts), len(texts))


class CrossEncoderReranker:
    """A cross-encoder of sentence-transformers on this machine; it reads query and text together.

    `model` is a folder, or a name on the Hugging Face hub whose weights are in the hub's cache on
    this machine; the model must have one output. With `download=True`, the constructor downloads
    missing weights; without it, the network is not used. Query and text together are cut to
    `max_length` tokens. `device` is PyTorch's, by default a GPU if there is one. The first call
    loads the model, once for all threads.

    The constructor raises MissingExtraError without the extra `rerank`, and ConfigurationError
    when there are no weights.
    """

    def __init__(
        self,
        model: str = "cross-encoder/ms-marco-MiniLM-L6-v2",
        *,
        max_length: int = 512,
        batch_size: int = 32,
        device: str | None = None,
        download: bool = False,
    ) -> None:
        for name, value in (("max_length", max_length), ("batch_size", batch_size)):
            if value < 1:
                raise ConfigurationError(f"{name} is {value}", remedy="Give at least 1.")
        self._name = model
        self._max_length = max_length
        self._batch_size = batch_size
        self._device = device
        self._model: CrossEncoder | None = None
        # A fast tokenizer fails ("Already borrowed") when two threads use it at once.
        self._lock = threading.Lock()
        if find_spec("sentence_transformers") is None:
            raise MissingExtraError("sentence-transformers", "rerank")
        if download:
            self._model = self._load(download=True)
        elif not _has_weights(model):
            raise ConfigurationError(
                f"the weights of {model!r} are not on this machine",
                remedy=f"Download them once with `hf download {model}`, make CrossEncoderReranker "
                "with download=True, or give a folder that has a model.",
            )

    def __call__(self, query: str, texts: Sequence[str]) -> list[float]:
        """Score texts; raises UnexpectedAnswerError if the model does not return one number each.

        The range of scores depends on the model: about -11 to 11 for ms-marco-MiniLM-L6-v2.
        """
        if not texts:
            return []
        with self._lock:
            if self._model is None:
                self._model = self._load()
            scores = self._model.predict(
                [(query, text) for text in texts],
                batch_size=self._batch_size,
                show_progress_bar=False,
            )
        return _checked(scores.tolist(), len(texts))

    def _load(self, *, download: bool = False) -> "CrossEncoder":
        from sentence_transformers import CrossEncoder

        try:
            return CrossEncoder(
                self._name,
                max_length=self._max_length,
                device=self._device,
                local_files_only=not download,
            )
        except (OSError, ValueError) as exc:
            raise ConfigurationError(
                f"sentence-transformers cannot load {self._name!r}: {safe_message(exc)}",
                remedy="Give the name of a model, or a folder that contains one.",
            ) from exc


_WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)


def _has_weights(model: str) -> bool:
    """Say whether a folder, or the hub's cache on this machine, has the weights of a model."""
    if Path(model).is_dir():
        return any((Path(model) / name).is_file() for name in _WEIGHTS)
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        return any(isinstance(try_to_load_from_cache(model, name), str) for name in _WEIGHTS)
    except HFValidationError:
        return False


class _HostedReranker(HostedModel):
    """Base of rerankers whose API returns `index` and `relevance_score` for each text."""

    _provider: str
    _path: str
    _results: str

    def __init__(
        self,
        model: str,
        base_url: str,
        key: str,
        *,
        timeout: float,
        retries: int,
        longest_wait: float,
        rate_limit: RateLimit | None,
    ) -> None:
        self._model = model
        self._calls = Calls(retries=retries, longest_wait=longest_wait, rate_limit=rate_limit)
        self._client: JsonApi = JsonApi(self._provider, base_url, key, timeout=timeout)

    def __call__(self, query: str, texts: Sequence[str]) -> list[float]:
        """Score texts, from 0 to 1, in one request.

        Raises QuotaExceededError, AuthenticationError, ClientTimeoutError, UnavailableError,
        TextTooLongError or UnexpectedAnswerError.
        """
        if not texts:
            return []
        tokens = len(texts) * estimate_tokens(query, "query") + sum(
            estimate_tokens(text, f"texts[{row}]") for row, text in enumerate(texts)
        )
        return self._calls.run(lambda: self._scores(query, texts), tokens)

    def _scores(self, query: str, texts: Sequence[str]) -> list[float]:
        body = {"model": self._model, "query": query, "documents": list(texts)}
        answer = self._client.post(self._path, body)
        try:
            numbered = [(one["index"], one["relevance_score"]) for one in answer[self._results]]
        except (KeyError, TypeError) as exc:
            raise malformed(self._provider, "it holds no scores") from exc
        return _checked(in_order(self._provider, numbered, len(texts)), len(texts))


class CohereReranker(_HostedReranker):
    """Cohere's rerank API, version 2; the key is api_key, CO_API_KEY or COHERE_API_KEY.

    The provider cuts long texts. `timeout` is in seconds for each try; see Calls in
    `second_brain.models.hosted` for `retries` and `longest_wait`. Raises ConfigurationError without
    a key.
    """

    _provider = "Cohere"
    _path = "v2/rerank"
    _results = "results"

    def __init__(
        self,
        model: str = "rerank-v3.5",
        *,
        api_key: str | None = None,
        base_url: str = "https://api.cohere.com",
        timeout: float = 10.0,
        retries: int = 2,
        longest_wait: float = 10.0,
        rate_limit: RateLimit | None = None,
    ) -> None:
        super().__init__(
            model,
            base_url,
            find_key(self._provider, api_key, "CO_API_KEY", "COHERE_API_KEY"),
            timeout=timeout,
            retries=retries,
            longest_wait=longest_wait,
            rate_limit=rate_limit,
        )


class VoyageReranker(_HostedReranker):
    """Voyage AI's rerank API; the key is api_key or VOYAGE_API_KEY.

    At most 1,000 texts; the provider cuts long texts. The other arguments are as for
    CohereReranker. Raises ConfigurationError without a key.
    """

    _provider = voyage.PROVIDER
    _path = "rerank"
    _results = "data"

    def __init__(
        self,
        model: str = "rerank-2.5",
        *,
        api_key: str | None = None,
        base_url: str = voyage.BASE_URL,
        timeout: float = 10.0,
        retries: int = 2,
        longest_wait: float = 10.0,
        rate_limit: RateLimit | None = None,
    ) -> None:
        super().__init__(
            model,
            base_url,
            find_key(self._provider, api_key, voyage.KEY_VARIABLE),
            timeout=timeout,
            retries=retries,
            longest_wait=longest_wait,
            rate_limit=rate_limit,
        )


def _checked(scores: Sequence[Any], count: int) -> list[float]:
    try:
        numbers = [float(score) for score in scores]
    except (TypeError, ValueError) as exc:
        raise _unusable("scores that are not numbers, one for each text") from exc
    if len(numbers) != count:
        raise _unusable(f"{len(numbers)} scores for {count} texts")
    if not all(map(math.isfinite, numbers)):
        raise _unusable("a score that is NaN or infinite")
    return numbers


def _unusable(result: str) -> UnexpectedAnswerError:
    return UnexpectedAnswerError(
        f"the reranker returned {result}",
        remedy="A reranker must return one finite number for each text; higher is better.",
    )
