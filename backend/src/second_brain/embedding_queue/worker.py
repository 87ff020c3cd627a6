"""A worker that embeds what waits in the queue: claim, embed, store, until it is told to stop.

Any number of workers can run, in any number of processes and machines. A worker that is killed
loses nothing but time: its texts are handed out again when its lease ends.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeVar

from second_brain.embedding_queue.queue import (
    LEASE,
    ClaimedText,
    EmbeddingQueue,
    EmbeddingResult,
    StoredCounts,
    vector_literal,
)
from second_brain.errors import (
    AuthenticationError,
    ConfigurationError,
    ConflictError,
    DimensionMismatchError,
    InvalidInputError,
    SearchTimeoutError,
    SecondBrainError,
    UnavailableError,
    safe_message,
)
from second_brain.models import (
    Embedder,
    Encoder,
    QuotaExceededError,
    RateLimit,
    TextTooLongError,
    as_embedder,
    unit_vectors,
)
from second_brain.models.hosted import estimate_tokens

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

BATCH_SIZE = 64
POLL = 5.0
"""Seconds between two claims while nothing waits."""

_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
# If a model refuses all of this many texts, the cause is the model, not a text.
_FEW_TEXTS = 4
# These errors end by themselves: the text waits, and no attempt is counted.
_PASSING = (
    UnavailableError,
    SearchTimeoutError,
    QuotaExceededError,
    ConflictError,
    ConnectionError,
    TimeoutError,
)
_FATAL = (AuthenticationError, ConfigurationError, DimensionMismatchError)


@dataclass(frozen=True, slots=True)
class Batch:
    """What a batch, or several, did: counts of texts, and of chunks in `chunks`.

    For the outcomes see `store_knowledge_embeddings`. `texts_embedded` counts a text each time the
    model got it. `seconds` is the time from the claim to the end of the store.
    """

    claimed: int = 0
    stored: int = 0
    chunks: int = 0
    outdated: int = 0
    repeated: int = 0
    failed: int = 0
    retried: int = 0
    released: int = 0
    model_calls: int = 0
    texts_embedded: int = 0
    seconds: float = 0.0

    def __add__(self, other: "Batch") -> "Batch":
        return Batch(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))


@dataclass
class _Work:
    """What is known of the texts of a running batch."""

    left: set[str]
    results: list[EmbeddingResult] = field(default_factory=list)
    refusals: list[tuple[EmbeddingResult, SecondBrainError]] = field(default_factory=list)
    model_calls: int = 0
    texts_embedded: int = 0

    def finish(self, result: EmbeddingResult) -> None:
        """Record the result of a text."""
        self.left.remove(result.content_hash)
        self.results.append(result)


class EmbeddingWorker:
    """Embeds what waits in a queue with one model; `run` returns the totals.

    `batch_size` texts (1 to 1000) are claimed at once, for the time of `lease`; choose a lease that
    is longer than a batch takes. `poll` is the pause in seconds while nothing waits; with `once`,
    `run` returns instead. `collections` limits the queue. `on_batch` gets each batch that ended.
    A `rate_limit` is shared by the workers of this process only.
    """

    def __init__(
        self,
        queue: EmbeddingQueue,
        embedder: Embedder | Encoder,
        *,
        batch_size: int = BATCH_SIZE,
        lease: timedelta = LEASE,
        collections: Sequence[str] | None = None,
        once: bool = False,
        poll: float = POLL,
        rate_limit: RateLimit | None = None,
        on_batch: Callable[[Batch], None] = lambda _batch: None,
    ) -> None:
        if not 1 <= batch_size <= 1000:
            raise InvalidInputError(f"batch_size must be between 1 and 1000, not {batch_size}")
        if not 0 < poll <= 86_400:
            raise InvalidInputError(f"poll must be above 0 and at most 86400 seconds, not {poll}")
        self._queue = queue
        self._embedder: Embedder = as_embedder(embedder)
        self._batch_size = batch_size
        self._lease = lease
        self._collections = collections
        self._once = once
        self._poll = poll
        self._rate_limit = rate_limit
        self._on_batch = on_batch
        self._stopping = threading.Event()
        self._failures_in_a_row = 0

    def stop(self) -> None:
        """End after the running batch; from any thread or a signal handler."""
        self._stopping.set()

    def run(self) -> Batch:
        """Work until `stop` is called, or with `once` until nothing waits; return the totals.

        While the database or the model cannot be reached, the worker waits and tries again.
        Raises a SecondBrainError if the queue or the model refuses this worker altogether: another
        model, wrong dimensions, a wrong key, every text of a batch refused.
        """
        total = Batch()
        was_idle = False
        while not self._stopping.is_set():
            start = time.perf_counter()
            claimed = self._patiently(self._claim)
            if claimed is None:
                break
            if not claimed:
                if not was_idle:
                    self._tell_what_waits()
                was_idle = True
                self._failures_in_a_row = 0
                if self._once:
                    break
                self._stopping.wait(self._poll)
                continue
            was_idle = False
            batch, failure = self._process(claimed, start)
            total += batch
            self._on_batch(batch)
            if isinstance(failure, _PASSING):
                self._pause(failure)
            elif failure is not None:
                raise failure
            else:
                self._failures_in_a_row = 0
        return total

    def _claim(self) -> list[ClaimedText]:
        return self._queue.claim(
            self._embedder.model,
            self._batch_size,
            lease=self._lease,
            collections=self._collections,
        )

    def _process(
        self, claimed: Sequence[ClaimedText], start: float
    ) -> tuple[Batch, Exception | None]:
        """Embed and store a batch; return what it did, and what ended it early."""
        work = _Work({one.content_hash for one in claimed})
        failure: Exception | None = None
        try:
            self._check_dimensions(claimed[0].dimensions)
            self._embed(list(claimed), work)
            self._check_refusals(work)
        except (SecondBrainError, ConnectionError, TimeoutError) as error:
            failure = error
        except BaseException:
            self._give_back(work)
            raise
        results = [*work.results, *(EmbeddingResult(one) for one in work.left)]
        counts = self._patiently(lambda: self._queue.store(self._embedder.model, results))
        stored = (counts or StoredCounts()).model_dump()
        batch = Batch(
            claimed=len(claimed),
            model_calls=work.model_calls,
            texts_embedded=work.texts_embedded,
            seconds=time.perf_counter() - start,
            **stored,
        )
        return batch, failure

    def _embed(self, texts: Sequence[ClaimedText], work: _Work) -> None:
        """Embed texts; if the model refuses them, embed each half by itself."""
        if not self._wait_for_rate(texts):
            return
        work.model_calls += 1
        work.texts_embedded += len(texts)
        try:
            vectors = unit_vectors(
                self._embedder.embed([one.content for one in texts]),
                len(texts),
                self._embedder.dimensions,
                self._embedder.model,
            )
        except (*_PASSING, *_FATAL):
            raise
        # A model's library raises any class.
        except Exception as error:  # noqa: BLE001
            if len(texts) > 1:
                middle = len(texts) // 2
                self._embed(texts[:middle], work)
                self._embed(texts[middle:], work)
                return
            refusal = _refusal(error)
            result = EmbeddingResult(
                texts[0].content_hash,
                error=safe_message(refusal),
                is_final=isinstance(refusal, TextTooLongError),
            )
            work.finish(result)
            work.refusals.append((result, refusal))
        else:
            for one, vector in zip(texts, vectors, strict=True):
                # A zero vector, too: the database records that the text has no direction.
                work.finish(EmbeddingResult(one.content_hash, embedding=vector_literal(vector)))

    def _check_dimensions(self, needed: int) -> None:
        if needed != self._embedder.dimensions:
            raise DimensionMismatchError(
                f"the embeddings in the database have {needed} dimensions, but "
                f"{self._embedder.model} has {self._embedder.dimensions}"
            )

    def _check_refusals(self, work: _Work) -> None:
        """Raise the refusal if the model refuses every text, and put the texts back."""
        refused = [(result, error) for result, error in work.refusals if not result.is_final]
        if len(refused) == len(work.results) >= _FEW_TEXTS:
            work.results.clear()
            work.left.update(result.content_hash for result, _ in refused)
            error = refused[-1][1]
            raise SecondBrainError(
                f"{self._embedder.model} refused each of {len(refused)} texts; the last time: "
                f"{error}",
                code=error.code,
                remedy=error.remedy,
            ) from error

    def _wait_for_rate(self, texts: Iterable[ClaimedText]) -> bool:
        """Wait for the rate limit; False if the worker is to stop meanwhile."""
        if self._rate_limit is None:
            return True
        tokens = sum(estimate_tokens(one.content, "content") for one in texts)
        return not self._stopping.wait(self._rate_limit.reserve(tokens))

    def _give_back(self, work: _Work) -> None:
        """Release the claims of an interrupted batch, if the database answers."""
        try:
            results = [EmbeddingResult(one) for one in work.left]
            self._queue.store(self._embedder.model, [*work.results, *results])
        except SecondBrainError as error:
            logger.warning("the claims of this batch end with their lease: %s", error)

    def _patiently(self, call: Callable[[], _T]) -> _T | None:
        """Call the queue, and again while the database is not there; None if told to stop."""
        while True:
            try:
                result = call()
            except _PASSING as error:
                if self._stopping.is_set():
                    logger.warning("stopped without the database: %s", error)
                    return None
                self._pause(error)
            else:
                return result

    def _pause(self, error: Exception) -> None:
        longest = min(_FIRST_PAUSE * 2**self._failures_in_a_row, _LONGEST_PAUSE)
        self._failures_in_a_row = min(self._failures_in_a_row + 1, 10)
        seconds = longest * random.uniform(0.5, 1)  # noqa: S311
        logger.warning("%s; trying again in %.1f s", safe_message(error), seconds)
        self._stopping.wait(seconds)

    def _tell_what_waits(self) -> None:
        """Log what is left for others: other models, other workers, later attempts."""
        waiting = self._patiently(self._queue.pending) or []
        for one in waiting:
            if one.model not in (None, self._embedder.model):
                logger.info(
                    "%s chunks of collection %s wait for the model %s",
                    one.pending,
                    one.collection,
                    one.model,
                )
            elif one.failed:
                logger.warning(
                    "%s chunks of collection %s could not be embedded: `second-brain doctor` "
                    "lists the reasons",
                    one.failed,
                    one.collection,
                )


def _refusal(error: Exception) -> SecondBrainError:
    if isinstance(error, SecondBrainError):
        return error
    return SecondBrainError(f"{type(error).__name__}: {safe_message(error)}")
