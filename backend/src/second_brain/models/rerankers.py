"""Rerankers: they score each candidate against the query, which is more exact and slower.

A reranker is a function that takes a query and texts and returns a score for each text; a higher
score is better. This module does not search: `second_brain.retrieval` selects the candidates.
"""

import hashlib
import math
import threading
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from second_brain.errors import (
    ConfigurationError,
    MissingExtraError,
    UnexpectedAnswerError,
    safe_message,
)
from second_brain.lru import Lru
from second_brain.models.hosted import (
    Calls,
    HostedModel,
    JsonApi,
    RateLimit,
    estimate_tokens,
    find_key,
    in_order,
    malformed,
    server_name,
)
from second_brain.models.providers import COHERE, JINA, VOYAGE, Provider

if TYPE_CHECKING:
    from sentence_transformers import CrossEncoder

Reranker = Callable[[str, Sequence[str]], Sequence[float]]


def rerank_scores(reranker: Reranker, query: str, texts: Sequence[str]) -> list[float]:
    """Return the reranker's score of each text.

    Raises UnexpectedAnswerError when the reranker does not return one finite number for each text,
    and the errors of the reranker itself.
    """
    return _checked(reranker(query, texts), len(texts))


class ScoreCache:
    """The last used scores of one reranker, by question and text, in this process.

    It is for a reranker that scores each text by itself, whatever the other texts are. An entry
    takes about 250 bytes. `max_entries` 0 keeps nothing. Thread-safe.
    """

    def __init__(self, max_entries: int = 10_000) -> None:
        if max_entries < 0:
            raise ConfigurationError(f"max_entries is {max_entries}", remedy="Give at least 0.")
        self._scores: Lru[bytes, float] = Lru(max_entries)

    def find(self, query: str, texts: Sequence[str]) -> list[float | None]:
        """Return the score of each text, None for one that is not known."""
        return [self._scores.get(key) for key in _score_keys(query, texts)]

    def keep(self, query: str, texts: Sequence[str], scores: Sequence[float]) -> None:
        """Store scores, and remove the least recently used ones above `max_entries`."""
        for key, score in zip(_score_keys(query, texts), scores, strict=True):
            self._scores.put(key, score)


class CachedReranker:
    """A reranker that calls its model only for texts that a ScoreCache has no score of."""

    def __init__(self, reranker: Reranker, cache: ScoreCache | None = None) -> None:
        self._reranker = reranker
        self._cache = ScoreCache() if cache is None else cache

    def __call__(self, query: str, texts: Sequence[str]) -> list[float]:
        """Score texts, equal texts only once; raises the reranker's errors."""
        known = self._cache.find(query, texts)
        missing = unscored(texts, known)
        made = rerank_scores(self._reranker, query, missing) if missing else []
        self._cache.keep(query, missing, made)
        return merged_scores(texts, known, missing, made)


def unscored(texts: Sequence[str], known: Sequence[float | None]) -> list[str]:
    """Return each text once that has no known score."""
    return list(
        dict.fromkeys(text for text, score in zip(texts, known, strict=True) if score is None)
    )


def merged_scores(
    texts: Sequence[str],
    known: Sequence[float | None],
    missing: Sequence[str],
    made: Sequence[float],
) -> list[float]:
    """Return the score of each text, from those known before and those made for `missing`."""
    new = dict(zip(missing, made, strict=True))
    return [new[text] if score is None else score for text, score in zip(texts, known, strict=True)]


def _score_keys(query: str, texts: Sequence[str]) -> list[bytes]:
    asked = _digest(query)
    return [asked + _digest(text) for text in texts]


def _digest(text: str) -> bytes:
    # A lone surrogate must not fail here: the model raises the error for it.
    return hashlib.sha256(text.encode(errors="surrogatepass")).digest()


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


class HostedReranker(HostedModel):
    """A reranker whose API returns `index` and `relevance_score` for each text.

    `model` is by default `default_model`. `api_key` is by default read from the environment when
    the reranker is created. `base_url` is another address of the API. `timeout` is in seconds for
    each try; see Calls in `second_brain.models.hosted` for `retries` and `longest_wait`. The
    provider cuts long texts. The constructor raises ConfigurationError without a key.
    """

    provider: ClassVar[Provider]
    default_model: ClassVar[str]
    _path: ClassVar[str] = "rerank"
    _results: ClassVar[str] = "results"

    def __init__(
        self,
        model: str | None = None,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        timeout: float = 10.0,
        retries: int = 2,
        longest_wait: float = 10.0,
        rate_limit: RateLimit | None = None,
    ) -> None:
        address = base_url or self.provider.address()
        self._model = model or self.default_model
        self._name = server_name(self.provider, address)
        is_elsewhere = self.provider.is_open_api and self._name != self.provider.name
        key = find_key(self.provider, api_key, is_needed=not (base_url and is_elsewhere))
        self._calls = Calls(retries=retries, longest_wait=longest_wait, rate_limit=rate_limit)
        self._client: JsonApi = JsonApi(self._name, address, key, timeout=timeout)

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
            raise malformed(self._name, "it holds no scores") from exc
        return _checked(in_order(self._name, numbered, len(texts)), len(texts))


class CohereReranker(HostedReranker):
    """Cohere's rerank API, version 2; at most 1,000 texts. The arguments are HostedReranker's."""

    provider = COHERE
    default_model = "rerank-v3.5"
    _path = "v2/rerank"


class VoyageReranker(HostedReranker):
    """Voyage AI's rerank API; at most 1,000 texts. The arguments are HostedReranker's."""

    provider = VOYAGE
    default_model = "rerank-2.5"
    _results = "data"


class JinaReranker(HostedReranker):
    """Jina AI's rerank API, or that of vLLM and other servers at `base_url`, which need no key.

    The default model scores each text by itself. jina-reranker-v3 reads all texts together, so a
    cache of its scores is wrong. The arguments are HostedReranker's.
    """

    provider = JINA
    default_model = "jina-reranker-v2-base-multilingual"


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


RERANKER_NAMES = ("cross-encoder[:MODEL]", "cohere[:MODEL]", "jina[:MODEL]", "voyage[:MODEL]")

_RERANKERS: dict[str, Callable[..., Reranker]] = {
    "cross-encoder": CrossEncoderReranker,
    "cohere": CohereReranker,
    "jina": JinaReranker,
    "voyage": VoyageReranker,
}


def load_reranker(name: str) -> Reranker:
    """Load a reranker by its name, one of RERANKER_NAMES; keys come from the environment.

    Without a model, it is the default of the class. Raises ConfigurationError for an unknown name,
    and the errors of the class.
    """
    kind, separator, model = name.partition(":")
    if kind not in _RERANKERS or bool(separator) != bool(model):
        raise ConfigurationError(
            f"unknown reranker {name!r}", remedy=f"Choose one of: {', '.join(RERANKER_NAMES)}."
        )
    return _RERANKERS[kind](model) if model else _RERANKERS[kind]()
