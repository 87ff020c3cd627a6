"""The retrieval service, for threads and for an event loop; what both share is `Retrieval`."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Unpack, cast

from second_brain.errors import ConfigurationError, SearchTimeoutError, documented
from second_brain.models import Embedder, Encoder, is_async
from second_brain.models.rerankers import Reranker
from second_brain.retrieval.answer import Explanation, SearchResponse
from second_brain.retrieval.embedding import AnyEmbedder, query_function
from second_brain.retrieval.query import QueryOptions, SearchQuery
from second_brain.retrieval.query_log import AsyncQueryLog, BlockingQueryLog
from second_brain.retrieval.retrieval import LONGEST_WAIT, AnyReranker, Retrieval
from second_brain.retrieval.settings import SearchSettings
from second_brain.retrieval.telemetry import Part
from second_brain.retrieval.tokens import CountTokens, count_tokens
from second_brain.services.arguments import RowOptions
from second_brain.services.calls import finished, iterated
from second_brain.services.provider import AsyncSearchProvider, SearchProvider
from second_brain.services.results import FacetCount


@documented
class RetrievalService(Retrieval):
    """Search by a question, over a provider, with the embedder of the corpus's model.

    Several embedders may be given: the one whose model and dimensions the stored chunks have is
    used. A model object with `encode` is an embedder too, see EncoderEmbedder. `reranker` is any
    function of a question and texts that scores each; without one it is the cross-encoder that the
    settings name: when they ask for reranking, a service without its package or weights is not
    made (MissingExtraError, ConfigurationError). `settings` are read from the environment
    when they are not given. `count_tokens` counts those of a result's content (with neighbours: its
    context) for `max_tokens`; without it, 4 characters are a token.
    """

    def __init__(
        self,
        provider: SearchProvider,
        embedder: Embedder | Encoder | Sequence[Embedder | Encoder],
        reranker: Reranker | None = None,
        settings: SearchSettings | None = None,
        *,
        count_tokens: CountTokens = count_tokens,
    ) -> None:
        _check_provider(provider, SearchProvider)
        super().__init__(embedder, reranker, settings, count_tokens)
        given = (provider, embedder, reranker, self.settings)
        self._provider, self._made_of = provider, (given, {"count_tokens": count_tokens})
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

    def search(
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
        plan = self._plan(question, options)
        return finished(self._search(plan, timeout, on_part))

    def hybrid_search(
        self,
        question: str,
        *,
        timeout: float | None = None,
        **options: Unpack[QueryOptions],
    ) -> SearchResponse:
        """Search in mode hybrid, as callers of an earlier system do; `k` is the constant of rrf."""
        plan = self._plan(question, {"mode": "hybrid", **options})
        return finished(self._search(plan, timeout))

    def search_pages(
        self,
        question: str | SearchQuery,
        *,
        timeout: float | None = None,
        **options: Unpack[QueryOptions],
    ) -> Iterator[SearchResponse]:
        """Yield page after page of `limit` results, to the end of the list.

        The arguments are those of `search`. All pages cut one list, made with the largest pool; the
        last one says whether the pools ended it. Each page is a search of its own, which embeds the
        question, and which `timeout` is for.
        """
        plan = self._plan(question, options)
        yield from iterated(self._pages(plan, timeout))

    def explain(
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
        plan = self._plan(question, options)
        return finished(self._explained(self._provider.explain_hybrid_search, plan, timeout))

    def estimate(
        self,
        question: str | SearchQuery,
        *,
        timeout: float | None = None,
        **options: Unpack[QueryOptions],
    ) -> Explanation:
        """Estimate what a search costs, without it: `estimate_hybrid_search` of a provider."""
        plan = self._plan(question, options)
        return finished(self._explained(self._provider.estimate_hybrid_search, plan, timeout))

    def why_not(
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
        plan = self._plan(question, options)
        explain = self._provider.explain_missing
        return finished(self._explained(explain, plan, timeout, document_key=key))

    def facets(
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
        plan = self._plan(question, options)
        return finished(self._facets(plan, timeout, facets=facets, facet_limit=facet_limit))

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


@documented
class AsyncRetrievalService(Retrieval):
    """`RetrievalService` for an event loop.

    Embedders and rerankers that are coroutine functions are awaited, all others run in a thread.
    """

    def __init__(
        self,
        provider: AsyncSearchProvider,
        embedder: AnyEmbedder | Encoder | Sequence[AnyEmbedder | Encoder],
        reranker: AnyReranker | None = None,
        settings: SearchSettings | None = None,
        *,
        count_tokens: CountTokens = count_tokens,
    ) -> None:
        _check_provider(provider, AsyncSearchProvider)
        super().__init__(embedder, reranker, settings, count_tokens)
        given = (provider, embedder, reranker, self.settings)
        self._provider, self._made_of = provider, (given, {"count_tokens": count_tokens})
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
        """`RetrievalService.search` for an event loop."""
        plan = self._plan(question, options)
        return await self._search(plan, timeout, on_part)

    async def hybrid_search(
        self,
        question: str,
        *,
        timeout: float | None = None,
        **options: Unpack[QueryOptions],
    ) -> SearchResponse:
        """`RetrievalService.hybrid_search` for an event loop."""
        plan = self._plan(question, {"mode": "hybrid", **options})
        return await self._search(plan, timeout)

    async def search_pages(
        self,
        question: str | SearchQuery,
        *,
        timeout: float | None = None,
        **options: Unpack[QueryOptions],
    ) -> AsyncGenerator[SearchResponse, None]:
        """`RetrievalService.search_pages` for an event loop."""
        plan = self._plan(question, options)
        async for page in self._pages(plan, timeout):
            yield page

    async def explain(
        self,
        question: str | SearchQuery,
        *,
        timeout: float | None = None,
        **options: Unpack[QueryOptions],
    ) -> Explanation:
        """`RetrievalService.explain` for an event loop."""
        plan = self._plan(question, options)
        return await self._explained(self._provider.explain_hybrid_search, plan, timeout)

    async def estimate(
        self,
        question: str | SearchQuery,
        *,
        timeout: float | None = None,
        **options: Unpack[QueryOptions],
    ) -> Explanation:
        """`RetrievalService.estimate` for an event loop."""
        plan = self._plan(question, options)
        return await self._explained(self._provider.estimate_hybrid_search, plan, timeout)

    async def why_not(
        self,
        question: str | SearchQuery,
        key: str,
        *,
        timeout: float | None = None,
        **options: Unpack[QueryOptions],
    ) -> Explanation:
        """`RetrievalService.why_not` for an event loop."""
        plan = self._plan(question, options)
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
        """`RetrievalService.facets` for an event loop."""
        plan = self._plan(question, options)
        return await self._facets(plan, timeout, facets=facets, facet_limit=facet_limit)

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
