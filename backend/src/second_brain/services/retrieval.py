"""The retrieval service: a question in, context for a model out, and what failed on the way said.

It embeds the question, asks the provider once, and may rerank what comes back. What a search does
stands once, in `_Retrieval`, as steps; `RetrievalService` and `AsyncRetrievalService` differ in how
a step is waited for. Ranking, fusing and filtering are the database's, and retrying the provider's.
"""

import asyncio
import contextvars
import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NoReturn, Protocol, TypeAlias, TypeVar, Unpack

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from second_brain.embedders import Embedder, embed_queries, is_async, unit_vectors
from second_brain.errors import (
    ConfigurationError,
    DimensionMismatchError,
    InvalidInputError,
    SearchTimeoutError,
    SecondBrainError,
    UnavailableError,
    safe_message,
    translate,
)
from second_brain.rerankers import CrossEncoderReranker, Reranker, rerank_scores
from second_brain.services.cache import ResultCache
from second_brain.services.models import (
    Degraded,
    QueryOptions,
    SearchQuery,
    SearchResponse,
    result,
)
from second_brain.services.provider import (
    AsyncSearchProvider,
    ClientUnavailableError,
    Details,
    EmbeddingModel,
    SearchProvider,
)
from second_brain.services.results import MemorySearchResult
from second_brain.services.steps import Steps, run, run_async
from second_brain.settings import MATCH_COUNT_BOUND, ModeName, SearchSettings
from second_brain.telemetry import Watch, watched

logger = logging.getLogger(__name__)

EMBEDDING_SHARE = 0.5
"""How much of the time that is left embedding may take: text search needs the rest without it."""

MODEL_THREADS = 32
"""The most calls of embedders and rerankers at once that a service waits for."""

Outcome = TypeVar("Outcome")


class AsyncEmbedder(Protocol):
    """An embedder for `AsyncRetrievalService` whose `embed` (or `embed_query`) is awaited."""

    @property
    def dimensions(self) -> int:
        """Length of each vector."""

    @property
    def model(self) -> str:
        """Name kept with every stored embedding."""

    def embed(self, texts: Sequence[str]) -> Awaitable[NDArray[np.float32]]:
        """Embed texts into a float32 array of shape (len(texts), dimensions)."""


AsyncReranker: TypeAlias = Callable[[str, Sequence[str]], Awaitable[Sequence[float]]]
AnyEmbedder: TypeAlias = Embedder | AsyncEmbedder
AnyReranker: TypeAlias = Reranker | AsyncReranker


@dataclass(frozen=True, slots=True)
class Ask:
    """A step: call that method of the provider."""

    method: str
    arguments: tuple[Any, ...]
    options: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Compute:
    """A step: call a model, within `timeout` seconds; `is_async` says that it is to be awaited."""

    what: str
    call: Callable[[], Any]
    timeout: float | None
    is_async: bool


_Steps: TypeAlias = Steps[Ask | Compute, Outcome]


class _Deadline:
    """When a search must have its answer."""

    def __init__(self, seconds: float | None) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds

    def left(self, share: float = 1.0) -> float | None:
        """Return the seconds left, None without a deadline; raise when there are none."""
        if self._end is None:
            return None
        left = self._end - time.monotonic()
        if left <= 0:
            raise SearchTimeoutError(
                "the search took longer than its timeout", remedy="Raise timeout."
            )
        return left * share


@dataclass(frozen=True, slots=True)
class _Plan:
    """A query with what the settings make of it."""

    query: SearchQuery
    mode: ModeName
    retrieval: ModeName  # what the provider is asked for: hybrid, vector or text
    limit: int
    window: int  # rows asked for: the limit, or the candidates of a reranker
    threshold: float

    @property
    def is_reranked(self) -> bool:
        return self.mode == "rerank"

    def key(self) -> str:
        """Return everything that decides the answer, beside what a service has for good."""
        try:
            rest = self.query.model_dump_json(exclude={"mode", "limit", "min_similarity"})
        except PydanticSerializationError as error:
            raise InvalidInputError("a text of the query is not Unicode") from error
        return f"{self.mode} {self.limit} {self.threshold} {rest}"


class _Retrieval:
    """What a search does, whoever waits for it."""

    def __init__(
        self,
        embedder: AnyEmbedder | Sequence[AnyEmbedder],
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
        self._embedders = list(embedder) if isinstance(embedder, Sequence) else [embedder]
        for one in self._embedders:
            if not all(hasattr(one, name) for name in ("model", "dimensions", "embed")):
                raise TypeError(
                    "embedder must have model, dimensions and embed, as CallableEmbedder gives "
                    f"them to a function; {type(one).__name__} lacks them"
                )
        if not self._embedders:
            raise ConfigurationError("no embedder is given", remedy="Give at least one embedder.")
        self._reranker: AnyReranker = reranker or CrossEncoderReranker(
            self.settings.crossencoder_model, max_length=self.settings.crossencoder_max_length
        )
        self._cache = (
            ResultCache(
                self.settings.search_cache_max_entries, self.settings.search_cache_ttl_seconds
            )
            if self.settings.search_cache_enabled
            else None
        )
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

    def _search(
        self, question: str | SearchQuery, timeout: float | None, options: QueryOptions
    ) -> _Steps[SearchResponse]:
        plan = self._plan(_query(question, options))
        query = plan.query
        said = {"query": query.query} if self.settings.search_log_queries else {}
        with watched(mode=plan.mode, limit=plan.limit, offset=query.offset, **said) as watch:
            deadline = _Deadline(
                self.settings.search_timeout_seconds if timeout is None else _seconds(timeout)
            )
            if self._cache is None:
                watch.response = yield from self._answer(plan, deadline, watch)
                return watch.response
            key, begun = plan.key(), self._cache.begin()
            kept = self._cache.get(key)
            if kept is not None:
                watch.response = kept.model_copy(
                    update={"cached": True, "query_time_ms": watch.times()}
                )
                return watch.response
            watch.response = yield from self._answer(plan, deadline, watch)
            if watch.response.degraded is None:
                self._cache.put(key, watch.response, begun)
            return watch.response

    def _plan(self, query: SearchQuery) -> _Plan:
        settings = self.settings
        mode = query.mode or settings.default_mode
        retrieval: ModeName = mode
        if mode == "rerank":
            retrieval = "hybrid" if settings.use_hybrid_search else "vector"
        most = settings.max_hybrid_search_results
        limit = min(query.limit or settings.default_limit(mode), most)
        window = limit
        if mode == "rerank":
            # The same for every page, so that all pages cut one list.
            window = min(limit * settings.reranking_candidate_multiplier, most)
        threshold = query.min_similarity
        if threshold is None:
            threshold = settings.similarity_threshold
        return _Plan(query, mode, retrieval, limit, window, threshold)

    def _answer(self, plan: _Plan, deadline: _Deadline, watch: Watch) -> _Steps[SearchResponse]:
        query = plan.query
        texts = [query.query, *query.formulations]
        for is_again in (False, True):
            embedder = vectors = degraded = None
            used: ModeName = plan.retrieval
            if used != "text":
                with watch.part("embed"):
                    embedder = yield from self._embedder(deadline)
                    try:
                        vectors = yield from _embed(embedder, texts, deadline)
                    # Whatever broke, the words of the question are still there to search with.
                    except Exception as error:  # noqa: BLE001
                        failure = _failure(error, "the embedder")
                        if used == "vector":
                            _raise(failure, error)
                        degraded = _degraded("embed", failure)
                        embedder, used = None, "text"
            with watch.part("search"):
                hits, details = yield from self._ask(plan, used, texts, vectors, deadline)
            is_misfit = details.get("error_kind") == DimensionMismatchError.kind
            if is_again or embedder is None or not is_misfit:
                break
            # The corpus may have changed its model since it was looked up.
            self._chosen = (embedder, 0.0)
            with watch.part("embed"):
                if (yield from self._embedder(deadline)) is embedder:
                    break
        if "fallback_reason" in details:
            raise _error(details)
        applied_filters = _applied_filters(query, None if embedder is None else plan.threshold)
        total, first = details["total_count"], query.offset
        if total is None and first == 0:
            total = 0
        places, scores = list(range(len(hits))), None
        if plan.is_reranked:
            with watch.part("rerank"):
                try:
                    scores = yield from self._scores(query.query, hits, deadline)
                # Whatever broke, the fused order is still there.
                except Exception as error:  # noqa: BLE001
                    failure = _failure(error, "the reranker")
                    degraded = _degraded("rerank", failure, before=degraded)
                else:
                    # Sorting is stable: equal scores keep the fused order.
                    places.sort(key=scores.__getitem__, reverse=True)
                    used = "rerank"
            total, places = len(hits), places[first : first + plan.limit]
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
            applied_filters=applied_filters,
            query_time_ms=watch.times(),
            embedding_model=None if embedder is None else embedder.model,
            cached=False,
            degraded=degraded,
        )

    def _ask(
        self,
        plan: _Plan,
        retrieval: str,
        texts: Sequence[str],
        vectors: Sequence[NDArray[np.float32] | None] | None,
        deadline: _Deadline,
    ) -> _Steps[tuple[list[MemorySearchResult], Details]]:
        query, settings = plan.query, self.settings
        is_hybrid = retrieval == "hybrid"
        asked: list[tuple[Any, str | None]] = [
            (vector, None if retrieval == "vector" else text)
            for vector, text in zip(vectors or [None] * len(texts), texts, strict=True)
        ]
        options = {
            "top_k": plan.window,
            "threshold": plan.threshold,
            # A leg that is alone has nothing to be weighed against.
            "vector_weight": settings.vector_weight if is_hybrid else 1.0,
            "text_weight": settings.text_weight if is_hybrid else 1.0,
            "filter_type": query.category,
            "search_mode": query.search_mode,
            "pool_size": min(
                max(
                    settings.hybrid_candidate_count,
                    settings.overfetch_multiplier * plan.limit,
                    plan.window,
                ),
                MATCH_COUNT_BOUND,
            ),
            "rrf_k": settings.rrf_constant,
            "fusion": settings.search_fusion,
            "filters": _with_tags(query.filters, query.tags),
            "date_from": query.date_from,
            "date_to": query.date_to,
            "collections": None if query.collections is None else list(query.collections),
            "viewer_id": query.viewer_id,
            "public_only": query.public_only,
            "one_per_document": query.one_per_document,
            "neighbor_window": query.expand_neighbors,
            "recency_half_life": query.recency_half_life,
            "match_offset": 0 if plan.is_reranked else query.offset,
            "snippet": query.snippet,
            "formulations": [
                {"query_embedding": vector, "query_text": text}
                for vector, text in asked[1:]
                if vector is not None or text is not None
            ]
            or None,
            "timeout": deadline.left(),
        }
        answer: tuple[list[MemorySearchResult], Details] = yield Ask(
            "hybrid_search", asked[0], options
        )
        return answer

    def _embedder(self, deadline: _Deadline) -> _Steps[AnyEmbedder]:
        """Return the embedder of the corpus's model, as it was a short while ago at most."""
        chosen = self._chosen
        if chosen is not None and chosen[1] > time.monotonic():
            return chosen[0]
        models: list[EmbeddingModel] = yield Ask(
            "embedding_models", (), {"timeout": deadline.left()}
        )
        embedder = _matching(self._embedders, models)
        if chosen is not None and chosen[0] is not embedder:
            self.clear_cache()
        self._chosen = (embedder, time.monotonic() + self.settings.search_model_check_seconds)
        return embedder

    def _scores(
        self, question: str, hits: Sequence[MemorySearchResult], deadline: _Deadline
    ) -> _Steps[list[float]]:
        if not hits:
            return []
        reranker, passages = self._reranker, [hit.content for hit in hits]
        given = yield Compute(
            "the reranker",
            lambda: reranker(question, passages),
            deadline.left(),
            is_async(reranker),
        )
        return rerank_scores(lambda *_: given, question, passages)


class RetrievalService(_Retrieval):
    """Search by a question, over a provider, with the embedder of the corpus's model.

    Several embedders may be given: the one whose model and dimensions the stored chunks have is
    used. `reranker` is any function of a question and texts that scores each; without one, the
    cross-encoder that the settings name is loaded when it is first needed. `settings` are read from
    the environment when they are not given. One service serves many threads, as its provider does.
    """

    def __init__(
        self,
        provider: SearchProvider,
        embedder: Embedder | Sequence[Embedder],
        reranker: Reranker | None = None,
        settings: SearchSettings | None = None,
    ) -> None:
        _check_provider(provider, SearchProvider)
        super().__init__(embedder, reranker, settings)
        self._provider = provider
        if is_async(self._reranker) or any(is_async(_embedding(one)) for one in self._embedders):
            raise ConfigurationError(
                "an embedder or the reranker is a coroutine function",
                remedy="Use AsyncRetrievalService.",
            )

    def search(
        self,
        question: str | SearchQuery,
        *,
        timeout: float | None = None,
        **options: Unpack[QueryOptions],
    ) -> SearchResponse:
        """Search for a question, or a `SearchQuery` that has everything; see its fields.

        `timeout` is the most seconds that the whole search may take. A failing embedder or reranker
        is made do without, and `degraded` says so. Every other failure is raised, as one of
        `second_brain.errors`: so is an embedder's in mode `vector`, which has nothing to fall back
        to, a timeout, and a corpus that another model embedded (ConfigurationError).
        """
        return run(self._search(question, timeout, options), self._perform)

    def _perform(self, step: Ask | Compute) -> object:
        if isinstance(step, Ask):
            return getattr(self._provider, step.method)(*step.arguments, **step.options)
        if step.timeout is None:
            return step.call()
        future = self._threads().submit(self._in_thread(step.call))
        try:
            return future.result(step.timeout)
        except TimeoutError as error:
            # It cannot be ended, only left alone.
            future.cancel()
            raise _late(step) from error


class AsyncRetrievalService(_Retrieval):
    """The same for an event loop, over an asynchronous provider.

    Embedders and rerankers that are coroutine functions are awaited, all others run in a thread.
    """

    def __init__(
        self,
        provider: AsyncSearchProvider,
        embedder: AnyEmbedder | Sequence[AnyEmbedder],
        reranker: AnyReranker | None = None,
        settings: SearchSettings | None = None,
    ) -> None:
        _check_provider(provider, AsyncSearchProvider)
        super().__init__(embedder, reranker, settings)
        self._provider = provider

    async def search(
        self,
        question: str | SearchQuery,
        *,
        timeout: float | None = None,
        **options: Unpack[QueryOptions],
    ) -> SearchResponse:
        """Search as `RetrievalService.search` does."""
        return await run_async(self._search(question, timeout, options), self._perform)

    async def _perform(self, step: Ask | Compute) -> object:
        if isinstance(step, Ask):
            return await getattr(self._provider, step.method)(*step.arguments, **step.options)
        try:
            async with asyncio.timeout(step.timeout):
                if step.is_async:
                    return await step.call()
                loop = asyncio.get_running_loop()
                return await loop.run_in_executor(self._threads(), self._in_thread(step.call))
        except TimeoutError as error:
            raise _late(step) from error


def _pool() -> tuple[int, ThreadPoolExecutor]:
    return os.getpid(), ThreadPoolExecutor(MODEL_THREADS, "second-brain-models")


def _without_stop(call: Callable[[], Outcome]) -> Outcome:
    try:
        return call()
    except StopIteration as error:
        # No future takes it: who waits for one would wait for ever.
        raise RuntimeError("the model raised StopIteration") from error


def _check_provider(
    provider: object, wanted: type[SearchProvider] | type[AsyncSearchProvider]
) -> None:
    if isinstance(provider, wanted):
        return
    name = type(provider).__name__
    if isinstance(provider, SearchProvider):
        raise TypeError(f"provider: {name} is for RetrievalService")
    if isinstance(provider, AsyncSearchProvider):
        raise TypeError(f"provider: {name} is for AsyncRetrievalService")
    kind = "PostgresProvider or SupabaseProvider"
    if wanted is AsyncSearchProvider:
        kind = "AsyncPostgresProvider or AsyncSupabaseProvider"
    raise TypeError(f"provider must be one, such as {kind}, not {name}")


def _query(question: str | SearchQuery, options: QueryOptions) -> SearchQuery:
    if isinstance(question, SearchQuery):
        if options:
            raise InvalidInputError(
                f"a SearchQuery and {', '.join(options)} are given",
                remedy="Put everything into the SearchQuery.",
            )
        return question
    try:
        return SearchQuery(query=question, **options)  # type: ignore[arg-type]
    except ValidationError as error:
        # Without the values: a question is nobody's business but the caller's.
        faults = [f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()]
        raise InvalidInputError("; ".join(faults)) from None


def _applied_filters(query: SearchQuery, threshold: float | None) -> dict[str, Any]:
    said = {
        "category": query.category,
        "tags": list(query.tags),
        "date_from": query.date_from and query.date_from.isoformat(),
        "date_to": query.date_to and query.date_to.isoformat(),
        "filters": query.filters,
        "min_similarity": threshold or None,
        "viewer_id": query.viewer_id and str(query.viewer_id),
        "public_only": query.public_only or None,
        "collections": query.collections and list(query.collections),
    }
    return {name: value for name, value in said.items() if value not in (None, [], {})}


def _seconds(timeout: float) -> float:
    if not isinstance(timeout, int | float) or not 0 < timeout < float("inf"):
        raise InvalidInputError(f"timeout must be above 0 seconds, not {timeout!r:.100}")
    return timeout


def _with_tags(filters: Any, tags: Sequence[str]) -> Any:
    if not tags:
        return filters
    condition = {"field": "metadata.tags", "op": "contains", "value": list(tags)}
    if isinstance(filters, dict):
        dotted = [key for key in filters if "." in key]
        if dotted:
            raise InvalidInputError(
                f"filters: {dotted[0]!r} has a dot, and tags are given too",
                remedy="Give filters as a list of conditions.",
            )
        filters = [
            {"field": f"metadata.{key}", "op": "eq", "value": value}
            for key, value in filters.items()
        ]
    return [*(filters or []), condition]


def _embed(
    embedder: AnyEmbedder, texts: Sequence[str], deadline: _Deadline
) -> _Steps[list[NDArray[np.float32] | None]]:
    """Return a vector for each text; None for one that the model knows nothing in."""
    embedding = _embedding(embedder)
    is_awaited = is_async(embedding)
    call: Callable[[], Any] = partial(embed_queries, embedder, texts)  # type: ignore[arg-type]
    if is_awaited and hasattr(embedder, "embed_query"):

        async def call() -> Any:
            return await asyncio.gather(*map(embedding, texts))
    elif is_awaited:
        call = partial(embedding, texts)
    given = yield Compute("the embedder", call, deadline.left(EMBEDDING_SHARE), is_awaited)
    vectors = unit_vectors(given, len(texts), embedder.dimensions, embedder.model)
    if not vectors[0].any():
        raise InvalidInputError(
            f"{embedder.model} knows no word of the question, which has no embedding so",
            remedy="Search by text, or put the question in other words.",
        )
    return [vector if vector.any() else None for vector in vectors]


def _embedding(embedder: AnyEmbedder) -> Callable[..., Any]:
    return getattr(embedder, "embed_query", None) or embedder.embed


def _matching(embedders: Sequence[AnyEmbedder], models: Sequence[EmbeddingModel]) -> AnyEmbedder:
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


def _late(step: Compute) -> SearchTimeoutError:
    return SearchTimeoutError(
        f"{step.what} had no answer within {step.timeout:.3g} seconds",
        remedy="Raise timeout, or look why the model is slow.",
    )


def _failure(error: Exception, what: str) -> SecondBrainError:
    """Return what an embedder or a reranker raised as an error of `second_brain.errors`."""
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


def _raise(failure: SecondBrainError, cause: Exception) -> NoReturn:
    if failure is cause:
        raise failure
    raise failure from cause


def _degraded(
    part: Literal["embed", "rerank"], failure: SecondBrainError, before: Degraded | None = None
) -> Degraded:
    degraded = Degraded(
        part=part, kind=failure.kind, message=safe_message(failure), remedy=failure.remedy
    )
    return degraded if before is None else before.model_copy(update={"also": degraded})


def _error(details: Details) -> SecondBrainError:
    """Return what the provider says that failed, as the error it is."""
    if details["fallback_reason"] == "client_unavailable":
        return ClientUnavailableError("there are no credentials", remedy=details["remedy"])
    kinds = {one.kind: one for one in _derived(SecondBrainError)}
    found = kinds.get(details["error_kind"], SecondBrainError)
    message = details["error_message"]
    if message.startswith("filter_type "):
        # The provider's name of it.
        message = message.replace("filter_type", "category", 1)
    return found(message, code=details["code"], remedy=details["remedy"])


def _derived(base: type[SecondBrainError]) -> Iterable[type[SecondBrainError]]:
    # Some take other arguments than a message; no provider says their kinds.
    if base.__init__ is SecondBrainError.__init__:
        yield base
    for one in base.__subclasses__():
        yield from _derived(one)
