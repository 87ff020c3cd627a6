"""The retrieval service, for an event loop and for threads.

`search` is written once, in `AsyncRetrievalService`.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any, Unpack, cast

from second_brain.errors import (
    ConfigurationError,
    SearchTimeoutError,
    documented,
)
from second_brain.models import Embedder, Encoder, is_async
from second_brain.models.rerankers import Reranker
from second_brain.retrieval.answer import Explanation, SearchResponse
from second_brain.retrieval.embedding import (
    AnyEmbedder,
    query_function,
)
from second_brain.retrieval.plan import (
    checked_query,
    planned,
)
from second_brain.retrieval.query import OFFSET_BOUND, QueryOptions, SearchQuery
from second_brain.retrieval.query_log import AsyncQueryLog, BlockingQueryLog
from second_brain.retrieval.retrieval import LONGEST_WAIT, AnyReranker, Retrieval
from second_brain.retrieval.settings import SearchSettings
from second_brain.retrieval.telemetry import Part
from second_brain.services.arguments import LARGEST_POOL, RowOptions
from second_brain.services.blocking import blocking, blocking_iterator, finished
from second_brain.services.provider import AsyncSearchProvider, SearchProvider
from second_brain.services.results import FacetCount

_REMEDY_OF_OFFSET = (
    f"More results follow, but a search skips at most {OFFSET_BOUND}: narrow it with filters."
)


@documented
class AsyncRetrievalService(Retrieval):
    """Search by a question, over a provider, with the embedder of the corpus's model.

    Several embedders may be given: the one whose model and dimensions the stored chunks have is
    used. A model object with `encode` is an embedder too, see EncoderEmbedder. `reranker` is any
    function of a question and texts that scores each; without one it is the cross-encoder that the
    settings name: when they ask for reranking, a service without its package or weights is not
    made (MissingExtraError, ConfigurationError). Embedders and rerankers that are coroutine
    functions are awaited, all others run in a thread. `settings` are read from the environment
    when they are not given.
    """

    def __init__(
        self,
        provider: AsyncSearchProvider,
        embedder: AnyEmbedder | Encoder | Sequence[AnyEmbedder | Encoder],
        reranker: AnyReranker | None = None,
        settings: SearchSettings | None = None,
    ) -> None:
        _check_provider(provider, AsyncSearchProvider)
        super().__init__(embedder, reranker, settings)
        self._provider, self._made_of = provider, (provider, embedder, reranker, self.settings)
        is_logged = self.settings.query_log != "off"
        self._query_log: AsyncQueryLog | None = (
            AsyncQueryLog(provider, self.settings) if is_logged else None
        )

    async def search(
        self,
        question: str | SearchQuery,
        *,
        timeout: float | None = None,
        on_part: Callable[[Part], object] | None = None,
        **options: Unpack[QueryOptions],
    ) -> SearchResponse:
        """Search for a question, or for the `SearchQuery` of a client; see its fields.

        Beside a SearchQuery the server says whose rows it may find: `viewer_id` (None:
        everybody's), `viewer_groups` or `public_only=True`, else ConfigurationError is raised.
        `required_filters` hold beside its own.

        `timeout` is the most seconds that the whole search may take. `on_part` is called with the
        name of each part when it begins: `embed`, `search`, `rerank`. When the embedder or the
        reranker fails, the search continues without it and sets `degraded`. Every other failure is
        raised as one of `second_brain.errors`: so is an embedder's in mode `vector`, which has no
        fallback, a timeout, and a corpus of another model (ConfigurationError).
        """
        plan = planned(*checked_query(question, options), self.settings)
        return await self._search(plan, timeout, on_part)

    async def hybrid_search(
        self,
        question: str,
        *,
        timeout: float | None = None,
        **options: Unpack[QueryOptions],
    ) -> SearchResponse:
        """Search in mode hybrid, as callers of an earlier system do; `k` is the constant of rrf."""
        plan = planned(*checked_query(question, {"mode": "hybrid", **options}), self.settings)
        return await self._search(plan, timeout)

    async def search_pages(
        self,
        question: str | SearchQuery,
        *,
        timeout: float | None = None,
        **options: Unpack[QueryOptions],
    ) -> AsyncGenerator[SearchResponse, None]:
        """Yield page after page of `limit` results, to the end of the list.

        The arguments are those of `search`. All pages cut one list, made with the largest pool; the
        last one says whether the pools ended it. Each page is a search of its own, which embeds the
        question, and which `timeout` is for.
        """
        first = planned(*checked_query(question, options), self.settings)
        offset = first.query.offset
        while True:
            query = first.query.model_copy(update={"offset": offset})
            page = await self._search(replace(first, query=query, pool=LARGEST_POOL), timeout)
            offset += first.limit
            is_last = len(page.results) < first.limit or offset >= (page.total_count or 0)
            if not is_last and offset > OFFSET_BOUND:
                page = page.model_copy(update={"truncated": True, "remedy": _REMEDY_OF_OFFSET})
                is_last = True
            if page.results:
                yield page
            if is_last:
                return

    async def explain(
        self,
        question: str | SearchQuery,
        *,
        timeout: float | None = None,
        **options: Unpack[QueryOptions],
    ) -> Explanation:
        """Search as `search` does, and explain the hits: `explain_hybrid_search` of a provider.

        The arguments of this method, `estimate`, `why_not` and `facets` are those of `search`.
        Nothing is reranked; mode `rerank` is about the candidates of the reranker.
        """
        plan = planned(*checked_query(question, options), self.settings)
        return await self._explained(self._provider.explain_hybrid_search, plan, timeout)

    async def estimate(
        self,
        question: str | SearchQuery,
        *,
        timeout: float | None = None,
        **options: Unpack[QueryOptions],
    ) -> Explanation:
        """Estimate what a search costs, without it: `estimate_hybrid_search` of a provider."""
        plan = planned(*checked_query(question, options), self.settings)
        return await self._explained(self._provider.estimate_hybrid_search, plan, timeout)

    async def why_not(
        self,
        question: str | SearchQuery,
        key: str,
        *,
        timeout: float | None = None,
        **options: Unpack[QueryOptions],
    ) -> Explanation:
        """Say why a search does not return a chunk: `explain_missing` of a provider.

        `key` is the external_key of a document, else the id of it or of a chunk, else a source_url.
        """
        plan = planned(*checked_query(question, options), self.settings)
        explain = self._provider.explain_missing
        return await self._explained(explain, plan, timeout, document_key=key)

    async def facets(
        self,
        question: str | SearchQuery,
        facets: Sequence[str],
        facet_limit: int = 10,
        *,
        timeout: float | None = None,
        **options: Unpack[QueryOptions],
    ) -> list[FacetCount]:
        """Count values over the chunks that have the question's words: see `count_facets`.

        The embedding is not asked, because every chunk has some similarity.
        """
        plan = planned(*checked_query(question, options), self.settings)
        wanted = {"facets": facets, "facet_limit": facet_limit}
        plan = replace(plan, retrieval="text")
        counts: list[FacetCount] = (
            await self._explained(self._provider.count_facets, plan, timeout, **wanted)
        ).answer
        return counts

    async def embedder(self, *, timeout: float | None = None) -> AnyEmbedder:
        """Return the embedder of the corpus's model.

        Raises ConfigurationError for a corpus of another model.
        """
        return await self._embedder(self._deadline(timeout))

    async def flush_query_log(self, timeout: float = 5.0) -> None:
        """Write the searches that wait for the query log, within about `timeout` seconds."""
        if self._query_log is not None:
            await self._query_log.flush(timeout)

    async def _wait(self, answer: Any) -> Any:
        return await answer

    def _begin_count(self, options: RowOptions) -> "asyncio.Task[int] | None":
        if not self._provider.is_concurrent:
            return None
        counting = self._provider.count_pending_embeddings(**options)
        task: asyncio.Task[int] = asyncio.ensure_future(counting)
        # When the search fails, nobody reads the outcome.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task

    async def _end_count(self, running: "asyncio.Task[int]", timeout: float) -> int:
        async with asyncio.timeout(timeout):
            return await running

    async def _stop_count(self, running: "asyncio.Task[int]") -> None:
        if running.cancel():
            # Until its connection is closed or back in its pool: no task outlives the search.
            await asyncio.wait([running], timeout=LONGEST_WAIT)

    async def _compute(
        self, what: str, call: Callable[[], Any], timeout: float | None, is_awaited: bool
    ) -> Any:
        try:
            async with asyncio.timeout(timeout):
                if is_awaited:
                    return await call()
                return await asyncio.wrap_future(self._threads.submit(call))
        except TimeoutError as error:
            raise _late(what, timeout) from error


class RetrievalService(Retrieval):
    """`AsyncRetrievalService` for threads; one service serves many, as its provider does."""

    def __init__(
        self,
        provider: SearchProvider,
        embedder: Embedder | Encoder | Sequence[Embedder | Encoder],
        reranker: Reranker | None = None,
        settings: SearchSettings | None = None,
    ) -> None:
        _check_provider(provider, SearchProvider)
        super().__init__(embedder, reranker, settings)
        self._provider, self._made_of = provider, (provider, embedder, reranker, self.settings)
        is_logged = self.settings.query_log != "off"
        self._query_log: BlockingQueryLog | None = (
            BlockingQueryLog(provider, self.settings) if is_logged else None
        )
        if is_async(self._reranker) or any(
            is_async(query_function(one)) for one in self._embedders
        ):
            raise ConfigurationError(
                "an embedder or the reranker is a coroutine function",
                remedy="Use AsyncRetrievalService.",
            )

    search = blocking(AsyncRetrievalService.search)
    hybrid_search = blocking(AsyncRetrievalService.hybrid_search)
    search_pages = blocking_iterator(AsyncRetrievalService.search_pages)
    explain = blocking(AsyncRetrievalService.explain)
    estimate = blocking(AsyncRetrievalService.estimate)
    why_not = blocking(AsyncRetrievalService.why_not)
    facets = blocking(AsyncRetrievalService.facets)

    def embedder(self, *, timeout: float | None = None) -> Embedder:
        """Return the embedder of the corpus's model, as `AsyncRetrievalService.embedder`."""
        found: Any = finished(self._embedder(self._deadline(timeout)))
        return cast(Embedder, found)

    def flush_query_log(self, timeout: float = 5.0) -> None:
        """Write the searches that wait for the query log, within about `timeout` seconds."""
        if self._query_log is not None:
            self._query_log.flush(timeout)

    async def _wait(self, answer: Any) -> Any:
        return answer

    def _begin_count(self, options: RowOptions) -> "Future[int] | None":
        if not self._provider.is_concurrent:
            return None
        call = partial(self._provider.count_pending_embeddings, **options)
        return self._threads.submit(call)

    async def _end_count(self, running: "Future[int]", timeout: float) -> int:
        return running.result(timeout)

    async def _stop_count(self, running: "Future[int]") -> None:
        running.cancel()

    async def _compute(
        self, what: str, call: Callable[[], Any], timeout: float | None, is_awaited: bool
    ) -> Any:
        if timeout is None:
            return call()
        future = self._threads.submit(call)
        try:
            return future.result(timeout)
        except TimeoutError as error:
            # A running call cannot be ended.
            future.cancel()
            raise _late(what, timeout) from error


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


def _late(what: str, timeout: float | None) -> SearchTimeoutError:
    return SearchTimeoutError(
        f"{what} had no answer within {timeout or 0:.3g} seconds",
        remedy="Raise timeout, or find out why the model is slow.",
    )
