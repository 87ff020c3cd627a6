"""From a plan to an answer: embed the question, call the provider once, rerank the hits.

Ranking, fusion and filters are the database's, and retries the provider's.
"""

import contextlib
import contextvars
import logging
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypeVar

from second_brain.errors import (
    AuthenticationError,
    ConfigurationError,
    DimensionMismatchError,
    InvalidInputError,
    ModuleMissingError,
    SearchTimeoutError,
    SecondBrainError,
    UnavailableError,
    redacted,
    safe_message,
    translate,
)
from second_brain.models import Encoder, as_embedder, is_async, unit_vectors
from second_brain.models.rerankers import (
    CrossEncoderReranker,
    Reranker,
    ScoreCache,
    merged_scores,
    rerank_scores,
    unscored,
)
from second_brain.retrieval.answer import Degraded, SearchResponse, result
from second_brain.retrieval.cache import ResultCache
from second_brain.retrieval.embedding import (
    AnyEmbedder,
    embed_question,
    matching_embedder,
    model_failure,
)
from second_brain.retrieval.pending import LONGEST_COUNT, LONGEST_WAIT, PendingCounts
from second_brain.retrieval.plan import (
    Plan,
    applied_filters,
    row_options,
    search_options,
)
from second_brain.retrieval.query_log import QueryLog
from second_brain.retrieval.settings import Mode, SearchSettings
from second_brain.retrieval.telemetry import Part, Watch, log_json, watched
from second_brain.services.arguments import FindOptions, Leg, RowOptions
from second_brain.services.calls import Deadline, checked_timeout
from second_brain.services.results import Details, EmbeddingModel, MemorySearchResult, Results

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

logger = logging.getLogger(__name__)

MODEL_THREADS = 32
"""The most calls of embedders and rerankers at once that a service waits for."""

_REMEDY_OF_RERANKING = (
    "More rows may match: the reranker orders limit times RERANKING_CANDIDATE_MULTIPLIER "
    "candidates. Raise one of the two, or search in another mode."
)

_NOT_OF_ONE_LEG = (
    AuthenticationError,
    InvalidInputError,
    SearchTimeoutError,
    UnavailableError,
)
"""Errors after which a search with one leg is not tried."""

Outcome = TypeVar("Outcome")

AsyncReranker: TypeAlias = Callable[[str, Sequence[str]], Awaitable[Sequence[float]]]
AnyReranker: TypeAlias = Reranker | AsyncReranker


class Running(Protocol):
    """A call that runs beside the search: a future or a task."""

    def cancel(self) -> bool:
        """End it, if that is possible."""


@dataclass(frozen=True, slots=True)
class _Found:
    """What the provider returned, and how it was asked."""

    hits: list[MemorySearchResult]
    details: Details
    used: Leg
    embedder: AnyEmbedder | None
    degraded: Degraded | None


class Retrieval(ABC):
    """What both services share; they differ in how they wait."""

    def __init__(
        self,
        embedder: AnyEmbedder | Encoder | Sequence[AnyEmbedder | Encoder],
        reranker: AnyReranker | None,
        settings: SearchSettings | None,
    ) -> None:
        if not isinstance(settings, SearchSettings | None):
            raise TypeError(f"settings must be SearchSettings, not {type(settings).__name__}")
        if not (reranker is None or callable(reranker)):
            raise TypeError(
                "reranker must be a function of a question and texts, "
                f"not {type(reranker).__name__}"
            )
        self.settings = SearchSettings() if settings is None else settings
        if self.settings.search_log_json:
            log_json()
        given = embedder if isinstance(embedder, Sequence) else [embedder]
        self._embedders: list[AnyEmbedder] = [as_embedder(one) for one in given]
        if not self._embedders:
            raise ConfigurationError("no embedder is given", remedy="Give at least one embedder.")
        self._reranker: AnyReranker = reranker or _cross_encoder(self.settings)
        self._known_scores = ScoreCache(self.settings.rerank_cache_max_entries)
        self._cache = (
            ResultCache(
                self.settings.search_cache_max_entries, self.settings.search_cache_ttl_seconds
            )
            if self.settings.search_cache_enabled
            else None
        )
        self._pending = PendingCounts(self.settings.search_pending_check_seconds)
        self._chosen: tuple[AnyEmbedder, float] | None = None
        self._pool = _pool()

    def clear_cache(self) -> None:
        """Drop the answers that are kept, after a write that this process did not make."""
        if self._cache is not None:
            self._cache.clear()

    def _threads(self) -> ThreadPoolExecutor:
        # A fork copies a pool without its threads.
        if self._pool[0] != os.getpid():
            self._pool = _pool()
        return self._pool[1]

    def _in_thread(self, call: Callable[[], Outcome]) -> Callable[[], Outcome]:
        # A span that the model's client starts belongs to the search's.
        return partial(contextvars.copy_context().run, _without_stop, call)

    @property
    @abstractmethod
    def _log(self) -> QueryLog | None:
        """The queue of the query log; None if it is off."""

    @abstractmethod
    async def _find(
        self,
        query_embedding: "NDArray[np.float32] | None",
        query_text: str | None,
        options: FindOptions,
    ) -> Results:
        """Search with the provider; raise a SecondBrainError on failure."""

    @abstractmethod
    async def _models(self, timeout: float | None) -> list[EmbeddingModel]:
        """Return the models of the corpus."""

    @abstractmethod
    async def _count(self, options: RowOptions) -> int:
        """Count the chunks without an embedding; raise a SecondBrainError on failure."""

    @abstractmethod
    def _begin_count(self, options: RowOptions) -> "Running | None":
        """Begin to count beside the search; None for a provider with one connection."""

    @abstractmethod
    async def _end_count(self, running: Any, timeout: float) -> int:
        """Wait for a count at most `timeout` seconds; raise TimeoutError after them."""

    @abstractmethod
    async def _compute(
        self, what: str, call: Callable[[], Any], timeout: float | None, is_awaited: bool
    ) -> Any:
        """Call a model, within `timeout` seconds; raise SearchTimeoutError after them."""

    async def embed_passages(
        self, texts: Sequence[str], *, timeout: float | None = None
    ) -> "tuple[NDArray[np.float32], str]":
        """Embed texts that will be stored, with the embedder of the corpus's model.

        Returns an array of shape (len(texts), dimensions) and the model's name. A text of which the
        model knows no word has a row of zeros. Raises the embedder's error, and ConfigurationError
        for a corpus of another model.
        """
        deadline = Deadline(checked_timeout(timeout))
        embedder = await self._embedder(deadline)
        call = partial(embedder.embed, texts)
        given = await self._compute("the embedder", call, deadline.left(), is_async(embedder.embed))
        return unit_vectors(given, len(texts), embedder.dimensions, embedder.model), embedder.model

    async def _search(
        self, plan: Plan, timeout: float | None, on_part: Callable[[Part], object] | None = None
    ) -> SearchResponse:
        query = plan.query
        fields = {"query": query.query} if self.settings.search_log_queries else {}
        with (
            watched(
                on_part, mode=plan.mode, limit=plan.limit, offset=query.offset, **fields
            ) as watch,
            contextlib.nullcontext() if self._log is None else self._log.line(plan, watch),
        ):
            deadline = Deadline(
                self.settings.search_timeout_seconds
                if timeout is None
                else checked_timeout(timeout)
            )
            if self._cache is None:
                watch.response = await self._answer(plan, deadline, watch)
                return watch.response
            key, begun = plan.key(), self._cache.begin()
            kept = self._cache.get(key)
            if kept is not None:
                times = watch.times()
                watch.response = kept.model_copy(
                    update={"cached": True, "query_time_ms": times.total, "timings": times}
                )
                return watch.response
            watch.response = await self._answer(plan, deadline, watch)
            if watch.response.degraded is None:
                self._cache.put(key, watch.response, begun)
            return watch.response

    async def _answer(self, plan: Plan, deadline: Deadline, watch: Watch) -> SearchResponse:
        if plan.retrieval == "text":
            return await self._answer_by(plan, deadline, watch)
        with self._counting(plan, deadline) as count:
            response = await self._answer_by(plan, deadline, watch)
            pending = await count()
        times = watch.times()
        return response.model_copy(
            update={
                "pending_embeddings": pending,
                "query_time_ms": times.total,
                "timings": times,
            }
        )

    @contextlib.contextmanager
    def _counting(
        self, plan: Plan, deadline: Deadline
    ) -> Iterator[Callable[[], Awaitable[int | None]]]:
        """Begin to count the pending chunks, and yield the function that returns their number."""
        rows = row_options(plan)
        key = self._pending.key(rows)
        kept = self._pending.find(key)
        options: RowOptions = {**rows, "timeout": LONGEST_COUNT}
        running = None if kept else self._begin_count(options)

        async def count() -> int | None:
            if kept:
                return kept[0]
            counted = None
            try:
                left = deadline.left() or LONGEST_COUNT
                if running is None:
                    options["timeout"] = min(left, LONGEST_COUNT)
                    counted = await self._count(options)
                else:
                    counted = await self._end_count(running, min(left, LONGEST_WAIT))
            # The answer is complete without the number.
            except Exception as error:  # noqa: BLE001
                known = translate(error)
                level = logging.DEBUG if isinstance(known, ModuleMissingError) else logging.WARNING
                logger.log(level, "pending chunks were not counted: %s", known.kind)
            self._pending.keep(key, counted)
            return counted

        try:
            yield count
        finally:
            if running is not None:
                running.cancel()

    async def _answer_by(self, plan: Plan, deadline: Deadline, watch: Watch) -> SearchResponse:
        try:
            found = await self._found(plan, deadline, watch)
        except DimensionMismatchError as error:
            found = await self._found_again(plan, error, deadline, watch)
        hits, degraded = found.hits, found.degraded
        used: Mode = found.used
        details, first = found.details, plan.query.offset
        total, has_more = details["total_count"], details.get("pool_ended", False)
        if total is None and first == 0:
            total = 0
        places, scores = list(range(len(hits))), None
        if plan.is_reranked:
            with watch.part("rerank"):
                try:
                    scores = await self._scores(plan.query.query, hits, deadline)
                # Whatever failed, the fused order remains.
                except Exception as error:  # noqa: BLE001
                    failure = model_failure(error, "the reranker")
                    degraded = _degraded("rerank", failure, before=degraded)
                else:
                    # Sorting is stable: equal scores keep the fused order.
                    places.sort(key=scores.__getitem__, reverse=True)
                    used = "rerank"
            has_more = has_more or (total or 0) > len(hits)
            total, places = len(hits), places[first : first + plan.limit]
        times = watch.times()
        pool_ended = has_more and first + len(places) >= (total or 0)
        embedder = found.embedder
        return SearchResponse(
            results=[
                result(
                    hits[place],
                    rank,
                    rerank_score=scores[place] if scores else None,
                    original_rank=place + 1 if scores else None,
                )
                for rank, place in enumerate(places, start=first + 1)
            ],
            total_count=total,
            mode=plan.mode,
            mode_used=used,
            limit=plan.limit,
            offset=first,
            applied_filters=applied_filters(plan, None if embedder is None else plan.threshold),
            query_time_ms=times.total,
            timings=times,
            embedding_model=None if embedder is None else embedder.model,
            cached=False,
            degraded=degraded,
            pool_ended=pool_ended,
            truncated=details.get("truncated", False),
            remedy=details.get("remedy") or (_REMEDY_OF_RERANKING if pool_ended else None),
            exact_total=details.get("exact_total"),
            notes=details.get("notes"),
        )

    async def _found(self, plan: Plan, deadline: Deadline, watch: Watch) -> _Found:
        """Embed the question and search; when one leg fails, search with the other."""
        embedder = degraded = None
        vectors: list[NDArray[np.float32] | None] = [None] * len(plan.texts)
        if plan.retrieval != "text":
            with watch.part("embed"):
                embedder, vectors, degraded = await self._embedded(plan, deadline)
        used: Leg = plan.retrieval if degraded is None else "text"
        with watch.part("search"):
            try:
                hits, details = await self._asked(plan, used, vectors, deadline)
            except SecondBrainError as error:
                if used != "hybrid" or isinstance(error, _NOT_OF_ONE_LEG):
                    raise
                answer = await self._without_text(plan, vectors, deadline)
                if answer is None:
                    raise
                hits, details = answer
                used, degraded = "vector", _degraded("text", error)
        return _Found(hits, details, used, embedder, degraded)

    async def _found_again(
        self, plan: Plan, error: DimensionMismatchError, deadline: Deadline, watch: Watch
    ) -> _Found:
        """Search after the database refused the embedding: with another model's, or by text."""
        try:
            # The corpus may have changed its model since it was looked up.
            if await self._is_another_model(deadline, watch):
                return await self._found(plan, deadline, watch)
        except (ConfigurationError, DimensionMismatchError):
            if not self._may_search_by_text(plan):
                raise
        if not self._may_search_by_text(plan):
            raise error
        found = await self._found(replace(plan, retrieval="text"), deadline, watch)
        return replace(found, degraded=_degraded("embed", error))

    def _may_search_by_text(self, plan: Plan) -> bool:
        """Say whether a question with an unsuitable embedding is searched by its words."""
        return plan.retrieval == "hybrid" and self.settings.search_on_bad_embedding == "text"

    async def _embedded(
        self, plan: Plan, deadline: Deadline
    ) -> "tuple[AnyEmbedder | None, list[NDArray[np.float32] | None], Degraded | None]":
        """Return the embedder and the vectors of the question, or what failed."""
        try:
            embedder = await self._embedder(deadline)
        except ConfigurationError as error:
            if not self._may_search_by_text(plan):
                raise
            return None, [None] * len(plan.texts), _degraded("embed", error)
        try:
            vectors = await embed_question(embedder, plan.texts, self._compute, deadline)
        # Whatever failed, the question's words remain to search with.
        except Exception as error:
            failure = model_failure(error, "the embedder")
            if plan.retrieval == "vector":
                if failure is error:
                    raise
                raise failure from redacted(error)
            return None, [None] * len(plan.texts), _degraded("embed", failure)
        return embedder, vectors, None

    async def _asked(
        self,
        plan: Plan,
        used: Leg,
        vectors: "Sequence[NDArray[np.float32] | None]",
        deadline: Deadline,
    ) -> Results:
        """Search with one leg or both."""
        asked = [
            (vector, None if used == "vector" else text)
            for vector, text in zip(vectors, plan.texts, strict=True)
        ]
        options = search_options(plan, used, asked[1:], self.settings, deadline.left())
        try:
            return await self._find(*asked[0], options)
        except InvalidInputError as error:
            if str(error).startswith("filter_type "):
                # The service's name of it.
                error.args = (str(error).replace("filter_type", "category", 1),)
            raise

    async def _without_text(
        self, plan: Plan, vectors: "Sequence[NDArray[np.float32] | None]", deadline: Deadline
    ) -> Results | None:
        """Search with the vector leg alone; None if that fails too."""
        with contextlib.suppress(SecondBrainError):
            return await self._asked(plan, "vector", vectors, deadline)
        return None

    async def _embedder(self, deadline: Deadline) -> AnyEmbedder:
        """Return the embedder of the corpus's model, which is looked up once in a while."""
        chosen = self._chosen
        if chosen is not None and chosen[1] > time.monotonic():
            return chosen[0]
        try:
            models = await self._models(deadline.left())
        except ModuleMissingError:
            # The module insight lists them. Without it, this is the corpus's embedder, and the
            # database refuses other dimensions.
            models = []
        embedder = matching_embedder(self._embedders, models)
        if chosen is not None and chosen[0] is not embedder:
            self.clear_cache()
        self._chosen = (embedder, time.monotonic() + self.settings.search_model_check_seconds)
        return embedder

    async def _is_another_model(self, deadline: Deadline, watch: Watch) -> bool:
        """Look the corpus's model up again; say whether it needs another embedder now."""
        if self._chosen is None:
            return False
        before = self._chosen[0]
        self._chosen = (before, 0.0)
        with watch.part("embed"):
            return await self._embedder(deadline) is not before

    async def _scores(
        self, question: str, hits: Sequence[MemorySearchResult], deadline: Deadline
    ) -> list[float]:
        reranker, passages = self._reranker, [hit.content for hit in hits]
        known = self._known_scores.find(question, passages)
        missing = unscored(passages, known)
        made: list[float] = []
        if missing:
            given = await self._compute(
                "the reranker",
                partial(reranker, question, missing),
                deadline.left(),
                is_async(reranker),
            )
            made = rerank_scores(lambda *_: given, question, missing)
            self._known_scores.keep(question, missing, made)
        return merged_scores(passages, known, missing, made)


def _cross_encoder(settings: SearchSettings) -> Reranker:
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


def _pool() -> tuple[int, ThreadPoolExecutor]:
    return os.getpid(), ThreadPoolExecutor(MODEL_THREADS, "second-brain-models")


def _without_stop(call: Callable[[], Outcome]) -> Outcome:
    try:
        return call()
    except StopIteration as error:
        # A future cannot hold a StopIteration, so its caller would wait for ever.
        raise RuntimeError("the model raised StopIteration") from error


def _degraded(
    part: Literal["embed", "text", "rerank"],
    failure: SecondBrainError,
    before: Degraded | None = None,
) -> Degraded:
    degraded = Degraded(
        part=part, kind=failure.kind, message=safe_message(failure), remedy=failure.remedy
    )
    return degraded if before is None else before.model_copy(update={"also": degraded})
