"""From a plan to an answer: embed the question, call the provider once, rerank the hits.

Ranking, fusion and filters are the database's, and retries the provider's.
"""

import contextlib
import json
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

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
    translate,
)
from second_brain.lru import Lru
from second_brain.models import Encoder, as_embedder, is_async, unit_vectors
from second_brain.models.rerankers import (
    Reranker,
    ScoreCache,
    merged_scores,
    rerank_scores,
    unscored,
)
from second_brain.retrieval.answer import (
    Degraded,
    Explanation,
    SearchResponse,
    degraded_by,
    empty_answer,
    result,
)
from second_brain.retrieval.cache import ResultCache
from second_brain.retrieval.embedding import (
    NO_EMBEDDER,
    AnyEmbedder,
    cross_encoder,
    embed_question,
    matching_embedder,
    model_failure,
)
from second_brain.retrieval.plan import (
    Plan,
    applied_filters,
    by_source_category,
    checked_query,
    planned,
    search_options,
    weights,
)
from second_brain.retrieval.query import OFFSET_BOUND, OperatorQuery, QueryOptions, SearchQuery
from second_brain.retrieval.query_log import QueryLog
from second_brain.retrieval.settings import SearchSettings
from second_brain.retrieval.telemetry import Part, Watch, log_json, watched
from second_brain.retrieval.threads import Threads
from second_brain.retrieval.tokens import CountTokens, count_tokens, within
from second_brain.services.arguments import FIELD_NAMES, LARGEST_POOL, Leg, RowOptions, renamed
from second_brain.services.calls import Deadline
from second_brain.services.last_write import last_write
from second_brain.services.results import EmbeddingModel, FacetCount, MemorySearchResult

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

logger = logging.getLogger(__name__)

LONGEST_COUNT = 2.0
"""Seconds after which the database cancels a count of pending chunks."""

LONGEST_WAIT = 0.25
"""Seconds that a search waits for a count after it has its hits, or for the end of one."""

_MOST_COUNTS = 1000

_REMEDY_OF_RERANKING = (
    "More rows may match: the reranker orders limit times RERANKING_CANDIDATE_MULTIPLIER "
    "candidates. Raise one of the two, or search in another mode."
)

_REMEDY_OF_OFFSET = (
    f"More results follow, but a search skips at most {OFFSET_BOUND}: narrow it with filters."
)

_NOT_OF_ONE_LEG = (
    AuthenticationError,
    InvalidInputError,
    SearchTimeoutError,
    UnavailableError,
)
"""Errors after which a search with one leg is not tried."""

AsyncReranker: TypeAlias = Callable[[str, Sequence[str]], Awaitable[Sequence[float]]]
AnyReranker: TypeAlias = Reranker | AsyncReranker


@dataclass(frozen=True, slots=True)
class _Found:
    """What the provider returned, and how it was asked."""

    answer: Any
    used: Leg
    model: str | None
    degraded: Degraded | None
    is_inferred: bool = False
    """Whether the embedding was to be made of the best text hits."""
    scores: list[float] | None = None
    """A reranker's, one for each hit."""


class Retrieval(ABC):
    """What both services share; they differ in how they wait."""

    _provider: Any
    _query_log: QueryLog | None

    _made_of: tuple[tuple[Any, ...], dict[str, Any]]

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how a copy is made: threads and caches are each one's own."""
        given, named = self._made_of
        return partial(type(self), **named), given

    def __init__(
        self,
        embedder: AnyEmbedder | Encoder | Sequence[AnyEmbedder | Encoder],
        reranker: AnyReranker | None,
        settings: SearchSettings | None,
        count_tokens: CountTokens = count_tokens,
    ) -> None:
        if not isinstance(settings, SearchSettings | None):
            raise TypeError(f"settings must be SearchSettings, not {type(settings).__name__}")
        if not (reranker is None or callable(reranker)):
            raise TypeError(
                "reranker must be a function of a question and texts, "
                f"not {type(reranker).__name__}"
            )
        self._count_tokens = count_tokens
        self.settings = SearchSettings() if settings is None else settings
        if self.settings.search_log_json:
            log_json()
        given = embedder if isinstance(embedder, Sequence) else [embedder]
        self._embedders: list[AnyEmbedder] = [as_embedder(one) for one in given]
        if not self._embedders:
            raise ConfigurationError("no embedder is given", remedy="Give at least one embedder.")
        self._reranker: AnyReranker = reranker or cross_encoder(self.settings)
        self._known_scores = ScoreCache(self.settings.rerank_cache_max_entries)
        self._cache = (
            ResultCache(
                self.settings.search_cache_max_entries, self.settings.search_cache_ttl_seconds
            )
            if self.settings.search_cache_enabled
            else None
        )
        self._pending: Lru[str, tuple[int | None]] = Lru(
            _MOST_COUNTS, self.settings.search_pending_check_seconds
        )
        # Categories that are no knowledge_type, until a project may have declared them.
        self._source_categories: Lru[str, bool] = Lru(
            _MOST_COUNTS, self.settings.search_model_check_seconds
        )
        self._chosen: tuple[AnyEmbedder, float] | None = None
        self._threads = Threads()

    def clear_cache(self) -> None:
        """Drop the answers that are kept, after a write that this process did not make."""
        if self._cache is not None:
            self._cache.clear()

    @abstractmethod
    async def _wait(self, answer: Any) -> Any:
        """Return the answer of the provider, which is awaited on an event loop."""

    @abstractmethod
    def _begin_count(self, options: RowOptions) -> Any:
        """Begin to count beside the search; None for a provider with one connection."""

    @abstractmethod
    async def _end_count(self, running: Any, timeout: float) -> int:
        """Wait for a count at most `timeout` seconds; raise TimeoutError after them."""

    @abstractmethod
    async def _stop_count(self, running: Any) -> None:
        """End a count that nobody waits for, where it can be ended."""

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
        deadline = Deadline(timeout)
        embedder = await self._embedder(deadline)
        call = partial(embedder.embed, texts)
        given = await self._compute("the embedder", call, deadline.left(), is_async(embedder.embed))
        return unit_vectors(given, len(texts), embedder.dimensions, embedder.model), embedder.model

    def _plan(self, question: str | SearchQuery, options: QueryOptions) -> Plan:
        return planned(*checked_query(question, options), self.settings)

    async def _pages(
        self, plan: Plan, timeout: float | None
    ) -> AsyncGenerator[SearchResponse, None]:
        offset = plan.query.offset
        while True:
            query = plan.query.model_copy(update={"offset": offset})
            page = await self._search(replace(plan, query=query, pool=LARGEST_POOL), timeout)
            offset += len(page.results)
            is_short = len(page.results) + page.left_out < plan.limit
            is_last = offset >= (page.total_count or 0) or (is_short and not page.left_out)
            if not is_last and offset > OFFSET_BOUND:
                page = page.model_copy(update={"truncated": True, "remedy": _REMEDY_OF_OFFSET})
                is_last = True
            if page.results:
                yield page
            if is_last:
                return

    async def _facets(self, plan: Plan, timeout: float | None, **wanted: Any) -> list[FacetCount]:
        count = self._provider.count_facets
        found = await self._explained(count, replace(plan, retrieval="text"), timeout, **wanted)
        counts: list[FacetCount] = found.answer
        return counts

    async def _search(
        self, plan: Plan, timeout: float | None, on_part: Callable[[Part], object] | None = None
    ) -> SearchResponse:
        query, log = plan.query, self._query_log
        fields = {"query": query.query} if self.settings.search_log_queries else {}
        with (
            watched(
                on_part, mode=plan.mode, limit=plan.limit, offset=query.offset, **fields
            ) as watch,
            contextlib.nullcontext() if log is None else log.line(plan, watch),
        ):
            answer = partial(self._answer, deadline=self._deadline(timeout), watch=watch)
            if self._cache is None:
                watch.response = await self._by_category(answer, plan)
                return watch.response
            key, begun = plan.key(), self._cache.begin()
            kept = self._cache.get(key)
            if kept is not None:
                times = watch.times()
                watch.response = kept.model_copy(
                    update={"cached": True, "query_time_ms": times.total, "timings": times}
                )
                return watch.response
            watch.response = await self._by_category(answer, plan)
            if watch.response.degraded is None:
                self._cache.put(key, watch.response, begun)
            return watch.response

    async def _answer(self, plan: Plan, deadline: Deadline, watch: Watch) -> SearchResponse:
        """Search, and count meanwhile the chunks that only words find."""
        options: RowOptions = {**plan.rows, "timeout": LONGEST_COUNT}
        # A count is kept for some seconds for the same viewer and filters, until this process
        # writes. None in the tuple is a count that failed.
        key = f"{last_write()} {json.dumps(plan.rows, default=str, sort_keys=True)}"
        kept = (None,) if plan.retrieval == "text" else self._pending.get(key)
        running = None if kept else self._begin_count(options)
        try:
            found = await self._found(plan, deadline, watch, self._provider.find)
            if plan.mode == "rerank":
                with watch.part("rerank"):
                    found = await self._reranked(plan, found, deadline)
            if kept is None:
                kept = (await self._counted(running, options, deadline),)
                self._pending.put(key, kept)
        finally:
            if running is not None:
                await self._stop_count(running)
        hits, details = found.answer
        scores, first, total = found.scores, plan.query.offset, details["total_count"]
        if total is None and first == 0:
            total = 0
        has_more, places = details.get("pool_ended", False), list(range(len(hits)))
        if scores is not None:
            # Sorting is stable: equal scores keep the fused order.
            places.sort(key=scores.__getitem__, reverse=True)
        if plan.mode == "rerank":
            has_more = has_more or (total or 0) > len(hits)
            total, places = len(hits), places[first : first + plan.limit]
        pool_ended = has_more and first + len(places) >= (total or 0)
        wanted = len(places)
        shown = (hits[place].metadata.get("context") or hits[place].content for place in places)
        places = places[: within(shown, plan.query.max_tokens, self._count_tokens)]
        used = found.used
        if found.is_inferred and "embedding" not in (details.get("notes") or {}):
            # No text hit has an embedding, or the provider makes none.
            used = "text"
        times = watch.times()
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
            answer_confidence=details.get("answer_confidence"),
            mode=plan.mode,
            mode_used=used if scores is None else "rerank",
            limit=plan.limit,
            offset=first,
            applied_filters=applied_filters(plan, None if used == "text" else plan.threshold),
            query_time_ms=times.total,
            timings=times,
            embedding_model=found.model,
            degraded=found.degraded,
            pool_ended=pool_ended,
            truncated=details.get("truncated", False),
            left_out=wanted - len(places),
            remedy=details.get("remedy") or (_REMEDY_OF_RERANKING if pool_ended else None),
            exact_total=details.get("exact_total"),
            notes=details.get("notes"),
            empty=None if places else empty_answer(details.get("empty"), len(hits), first),
            pending_embeddings=kept[0],
        )

    async def _reranked(self, plan: Plan, found: _Found, deadline: Deadline) -> _Found:
        """Return what was found, with the reranker's scores; without them when it fails."""
        try:
            return replace(found, scores=await self._scores(plan, found.answer[0], deadline))
        # Whatever failed, the fused order remains.
        except Exception as error:  # noqa: BLE001
            failure = model_failure(error, "the reranker")
            return replace(found, degraded=degraded_by("rerank", failure, before=found.degraded))

    async def _counted(self, running: Any, options: RowOptions, deadline: Deadline) -> int | None:
        try:
            left = deadline.left() or LONGEST_COUNT
            if running is not None:
                return await self._end_count(running, min(left, LONGEST_WAIT))
            options["timeout"] = min(left, LONGEST_COUNT)
            count: int = await self._wait(self._provider.count_pending_embeddings(**options))
        # The answer is complete without the number.
        except Exception as error:  # noqa: BLE001
            known = translate(error)
            level = logging.DEBUG if isinstance(known, ModuleMissingError) else logging.WARNING
            logger.log(level, "pending chunks were not counted: %s", known.kind)
            return None
        return count

    async def _explained(
        self, method: Callable[..., Any], plan: Plan, timeout: float | None, **wanted: Any
    ) -> Explanation:
        """Ask the provider about a search with one leg or both, which no reranker orders."""
        plan = replace(plan, mode=plan.retrieval, window=plan.limit)
        watch = Watch({})

        def ask(*legs: Any, exact_total: bool, **given: Any) -> Any:
            return method(*legs, **given, **wanted)

        find = partial(self._found, deadline=self._deadline(timeout), watch=watch, ask=ask)
        found: _Found = await self._by_category(find, plan)
        return Explanation(
            answer=found.answer,
            timings=watch.times(),
            embedding_model=found.model,
            degraded=found.degraded,
        )

    async def _by_category(self, search: Callable[[Plan], Awaitable[Any]], plan: Plan) -> Any:
        """Search; a category that is no knowledge_type means `metadata.source_category`.

        An operator's category is a type in any case.
        """
        category = plan.query.category
        if not (category and category.strip()) or isinstance(plan.query, OperatorQuery):
            return await search(plan)
        if self._source_categories.get(category) is None:
            try:
                return await search(plan)
            except InvalidInputError as error:
                if not str(error).startswith("category must be one of"):
                    raise
            self._source_categories.put(category, True)
        return await search(by_source_category(plan))

    def _deadline(self, timeout: float | None) -> Deadline:
        return Deadline(self.settings.search_timeout_seconds if timeout is None else timeout)

    async def _found(
        self, plan: Plan, deadline: Deadline, watch: Watch, ask: Callable[..., Any]
    ) -> _Found:
        """Embed the question and ask; when one leg fails, ask with the other.

        A question without an embedding gets one of its best text hits.
        """
        try:
            return await self._asked(plan, deadline, watch, ask)
        except DimensionMismatchError as refusal:
            may_use_text = (
                plan.retrieval == "hybrid" and self.settings.search_on_bad_embedding != "error"
            )
            try:
                # The corpus may have changed its model since it was looked up.
                if await self._is_another_model(deadline, watch):
                    return await self._asked(plan, deadline, watch, ask)
            except (ConfigurationError, DimensionMismatchError):
                if not may_use_text:
                    raise
            if not may_use_text:
                raise
            return await self._asked(plan, deadline, watch, ask, refusal)

    async def _asked(
        self,
        plan: Plan,
        deadline: Deadline,
        watch: Watch,
        ask: Callable[..., Any],
        refusal: SecondBrainError | None = None,
    ) -> _Found:
        """Ask the provider; after the refusal of an embedding, without one."""
        model = None
        degraded = None if refusal is None else degraded_by("embed", refusal)
        vectors: list[NDArray[np.float32] | None] = [None] * len(plan.texts)
        used = plan.retrieval
        if used != "text" and degraded is None and any(plan.texts):
            with watch.part("embed"):
                model, vectors, degraded = await self._embedded(plan, deadline)
        is_inferred = False
        if degraded is not None:
            is_inferred = self.settings.search_on_bad_embedding != "text"
            is_inferred = is_inferred and min(weights(plan.query, self.settings)) > 0
            used = "hybrid" if is_inferred else "text"
        with watch.part("search"):
            try:
                answer = await self._answered(plan, used, vectors, deadline, ask, is_inferred)
            except SecondBrainError as error:
                if used != "hybrid" or isinstance(error, _NOT_OF_ONE_LEG):
                    raise
                used, answer = "text" if is_inferred else "vector", None
                with contextlib.suppress(SecondBrainError):
                    answer = await self._answered(plan, used, vectors, deadline, ask)
                if answer is None:
                    raise
                degraded, is_inferred = degraded or degraded_by("text", error), False
        # An embedding made of like_ids is none of the text hits.
        return _Found(answer, used, model, degraded, is_inferred and not plan.query.like_ids)

    async def _embedded(
        self, plan: Plan, deadline: Deadline
    ) -> "tuple[str | None, list[NDArray[np.float32] | None], Degraded | None]":
        """Return the model and the vectors of the question, or what failed."""
        nothing: list[NDArray[np.float32] | None] = [None] * len(plan.texts)
        try:
            embedder = await self._embedder(deadline)
        except ConfigurationError as error:
            if plan.retrieval == "vector" or self.settings.search_on_bad_embedding == "error":
                raise
            return None, nothing, degraded_by("embed", error)
        try:
            texts = [text for text in plan.texts if text]
            vectors = await embed_question(embedder, texts, self._compute, deadline)
        # Whatever failed, the question's words remain to search with.
        except Exception as error:
            failure = model_failure(error, "the embedder")
            if plan.retrieval == "vector":
                if failure is error:
                    raise
                raise failure from redacted(error)
            return None, nothing, degraded_by("embed", failure)
        return embedder.model, nothing[len(texts) :] + vectors, None

    async def _answered(
        self,
        plan: Plan,
        used: Leg,
        vectors: "Sequence[NDArray[np.float32] | None]",
        deadline: Deadline,
        ask: Callable[..., Any],
        is_inferred: bool = False,
    ) -> Any:
        """Return the provider's answer to a search with one leg or both."""
        question, *further = [
            (vector, None if used == "vector" else text or None)
            for vector, text in zip(vectors, plan.texts, strict=True)
        ]
        options = search_options(
            *(plan, used, further, self.settings, deadline.left()), embedding_from_text=is_inferred
        )
        try:
            return await self._wait(ask(*question, **options))
        except InvalidInputError as error:
            error.args = (renamed(str(error), FIELD_NAMES),)
            raise

    async def _embedder(self, deadline: Deadline) -> AnyEmbedder:
        """Return the embedder of the corpus's model, which is looked up once in a while."""
        if NO_EMBEDDER in self._embedders:
            return NO_EMBEDDER
        chosen = self._chosen
        if chosen is not None and chosen[1] > time.monotonic():
            return chosen[0]
        try:
            models: list[EmbeddingModel] = await self._wait(
                self._provider.embedding_models(timeout=deadline.left())
            )
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
        self, plan: Plan, hits: Sequence[MemorySearchResult], deadline: Deadline
    ) -> list[float]:
        reranker, passages = self._reranker, [hit.content for hit in hits]
        question = plan.query.query
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
