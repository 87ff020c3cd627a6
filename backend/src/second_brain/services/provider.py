"""The methods of every provider: searches, and what a service asks beside them.

A provider class only defines how to call an SQL function. The database ranks, fuses and filters.
Each method is written once, in `AsyncSearchProvider`; `SearchProvider` has the blocking version.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any, Unpack
from uuid import UUID

from second_brain.errors import InvalidInputError, documented
from second_brain.services.arguments import (
    DEFAULTS,
    LARGEST_POOL,
    NOT_OF_DOCUMENTS,
    NOT_OF_FULLTEXT,
    NOT_OF_VECTOR,
    ROWS,
    VIEWER,
    BatchQuery,
    DocumentOptions,
    Embedding,
    FindOptions,
    HybridOptions,
    LegOptions,
    OwnRowOptions,
    OwnSearchOptions,
    PublicSearchOptions,
    RowOptions,
    SearchOptions,
    bound,
    converted,
)
from second_brain.services.blocking import blocking, blocking_iterator
from second_brain.services.calls import Client
from second_brain.services.own_documents import OwnDocument, OwnDocumentContent
from second_brain.services.query_log import LoggedQuery
from second_brain.services.results import BatchResults, EmbeddingModel, FacetCount, Results
from second_brain.services.searches import (
    FACETS,
    HYBRID,
    MINE,
    MY_FACETS,
    MY_PENDING,
    PENDING,
    PUBLIC,
    batch,
    require_viewer,
    search,
)


@documented
class AsyncSearchProvider(Client):
    """Hybrid, vector and full-text search for an event loop; every call is one round trip.

    Each search returns the hits and `Details` about the call. A search that fails raises a
    SecondBrainError; with `on_error="empty"`, it returns no hits, and the details contain the
    failure. `find` and the other methods always raise. After an answer without hits, a method that
    raises asks why in a second call, for `details["empty"]` (module insight); `explain_empty` says
    whether every method does.

    An embedding is a list, tuple, numpy array, pgvector.Vector or a text in pgvector's format. It
    must have the same dimensions as the embedding column.

    With `multi_tenant=True`, a call without `viewer_id`, without `viewer_groups` and without
    `public_only=True` is rejected before it is sent, so that a missing viewer does not make the
    rows of all users visible.

    `timeout` is in seconds for the whole call; the timeout of a call replaces that of the provider.
    When the connection is lost, the call is retried after a short random pause, at most `retries`
    times and within the timeout. `sleep` is called for the pause.
    """

    _pause = staticmethod(asyncio.sleep)

    async def hybrid_search(
        self,
        query_embedding: Embedding | None,
        query_text: str | None,
        top_k: int = 5,
        threshold: float = 0.0,
        vector_weight: float = 1.0,
        text_weight: float = 1.0,
        filter_type: str | None = None,
        search_mode: str = "websearch",
        pool_size: int = 50,
        **options: Unpack[HybridOptions],
    ) -> Results:
        """Search with both legs in one call and fuse their lists.

        Without an embedding, or without text, only the other leg runs. `threshold` is the minimum
        cosine similarity (-1 to 1) in the vector leg, `pool_size` the candidates per leg,
        `search_mode` one of websearch, simple and phrase, `filter_type` one knowledge_type.
        `fusion`: `rrf` (weighted reciprocal rank, constant `rrf_k`), `relative_score` (each leg
        scaled to 0..1) or `auto` (the cosine in units of its spread, plus BM25 over the best one).
        None is the setting stored for the collection, else `rrf`. `on_bad_embedding="text"` ignores
        an embedding of another size than the stored ones or of length 0 when there is a text, and
        the details say so; `from_text` replaces it as `embedding_from_text` does: a text without an
        embedding gets one of its best text hits. With `prefix_last`, the last word of the text may
        be the beginning of a word.

        Arguments that select rows: `filters` (see `second_brain.filters`), `date_from` and
        `date_to` (of document_date, both inclusive), `as_of` (rows that hold at this time, by
        default now; None: all; see `supersede_document`), `viewer_id` and `viewer_groups` (only
        rows of this owner, rows that one of these groups may see, and public rows; both None: all
        rows; an empty list: no groups), `public_only`, `collections` (each ranked separately, then
        fused),
        `required_filters` (conditions of a server, beside its client's `filters`: for the whole
        answer, rows that do not meet them are not there).
        `formulations` are up to 10 further formulations of the same query.

        `like_ids` are up to 20 chunks or documents that the hits should be like, with or without a
        question; they and their documents are left out.

        Arguments that select hits: `one_per_document`, `recency_half_life` (the age in days that
        halves a score), `boosts` (factors of the score), `order_by` (a number or date, such as
        `document_date desc`), `match_offset` (hits to skip). Arguments that add to a hit's
        metadata: `neighbor_window` adds the chunks up to this distance (0 to 5) as `context`,
        `snippet` adds an excerpt in HTML with `<mark>`.

        The details say when the pools ended the list (`pool_ended`). With `exact_total=True` they
        have the length that it would have with pools without bound, which a second call counts.

        `timeout` is the maximum time of this call, in seconds.
        """
        arguments = {
            "query_embedding": query_embedding,
            "query_text": query_text,
            "top_k": top_k,
            "threshold": threshold,
            "vector_weight": vector_weight,
            "text_weight": text_weight,
            "filter_type": filter_type,
            "search_mode": search_mode,
            "pool_size": pool_size,
            **options,
        }
        return await search(self, "hybrid", HYBRID, arguments, "hybrid_search()")

    async def find(
        self,
        query_embedding: Embedding | None,
        query_text: str | None,
        **options: Unpack[FindOptions],
    ) -> Results:
        """Search like `hybrid_search`, and raise a SecondBrainError on failure in any case."""
        arguments = {**options, "query_embedding": query_embedding, "query_text": query_text}
        return await search(self, "hybrid", HYBRID, arguments, "find()", is_raised=True)

    async def search_pages(
        self,
        query_embedding: Embedding | None,
        query_text: str | None,
        **options: Unpack[FindOptions],
    ) -> AsyncIterator[Results]:
        """Yield page after page of `top_k` hits, as `find` returns them, to the end of the list.

        All pages cut one list, with the largest pool unless `pool_size` is given; while data stand
        still, no hit is lost or repeated. The details of the last page say when the pools ended the
        list. `timeout` is for each page.
        """
        offset = options.pop("match_offset", DEFAULTS["match_offset"])
        size = options.get("top_k", DEFAULTS["top_k"])
        if not isinstance(offset, int) or not isinstance(size, int):
            raise InvalidInputError("top_k and match_offset must be integers")
        # A larger page would have a larger pool.
        largest = max(options.pop("pool_size", LARGEST_POOL), size)
        arguments = {**options, "query_embedding": query_embedding, "query_text": query_text}
        while True:
            is_beyond = offset > LARGEST_POOL
            arguments["pool_size"], arguments["match_offset"] = largest, min(offset, LARGEST_POOL)
            arguments["top_k"] = LARGEST_POOL if is_beyond else size
            hits, details = await search(
                self, "hybrid", HYBRID, arguments, "search_pages()", is_raised=True
            )
            if is_beyond:
                # No page begins here, so the rest is cut from the last one.
                rest = hits[offset - LARGEST_POOL :]
                for start in range(0, len(rest), size):
                    yield rest[start : start + size], details
                return
            if hits:
                yield hits, details
            offset += size
            if len(hits) < size or offset >= (details["total_count"] or 0):
                return

    async def search_my_knowledge(
        self,
        query_embedding: Embedding | None,
        query_text: str | None,
        **options: Unpack[OwnSearchOptions],
    ) -> Results:
        """Search as the signed-in user of the connection.

        Like `hybrid_search`, but the database takes the viewer from the token. It needs a Supabase
        client with a user's token, or a psycopg connection with role authenticated and JWT claims.
        """
        arguments = {**options, "query_embedding": query_embedding, "query_text": query_text}
        caller = "search_my_knowledge()"
        return await search(self, "hybrid", MINE, arguments, caller, without=VIEWER)

    async def search_public_knowledge(
        self,
        query_embedding: Embedding | None,
        query_text: str | None,
        **options: Unpack[PublicSearchOptions],
    ) -> Results:
        """Search public rows as a visitor, for example with a project's public key.

        Like `hybrid_search`, but it takes no viewer and has lower limits. The project must grant
        the function `search_public_knowledge_chunks` first.
        """
        arguments = {**options, "query_embedding": query_embedding, "query_text": query_text}
        caller, without = "search_public_knowledge()", (*VIEWER, "public_only")
        return await search(self, "hybrid", PUBLIC, arguments, caller, without=without)

    async def search(
        self,
        query_embedding: Embedding | None,
        top_k: int = 5,
        threshold: float = 0.6,
        filter_type: str | None = None,
        **options: Unpack[LegOptions],
    ) -> Results:
        """Search with the vector leg alone: chunks of at least `threshold` cosine similarity.

        `viewer_id`, `viewer_groups`, `public_only`, `required_filters` and `timeout` as in
        `hybrid_search`.
        """
        arguments = {
            "query_embedding": query_embedding,
            "top_k": top_k,
            "threshold": threshold,
            "filter_type": filter_type,
            **options,
        }
        function, without = "match_knowledge_chunks", NOT_OF_VECTOR
        return await search(
            self, "vector", function, arguments, "search()", without=without, is_filled=False
        )

    async def fulltext_search(
        self,
        query_text: str | None,
        top_k: int = 5,
        search_mode: str = "websearch",
        filter_type: str | None = None,
        **options: Unpack[LegOptions],
    ) -> Results:
        """Search with the text leg alone.

        `viewer_id`, `viewer_groups`, `public_only`, `required_filters` and `timeout` as in
        `hybrid_search`.
        """
        arguments = {
            "query_text": query_text,
            "search_mode": search_mode,
            "filter_type": filter_type,
            "top_k": top_k,
            **options,
        }
        function, caller = "search_knowledge_chunks_fulltext", "fulltext_search()"
        without = NOT_OF_FULLTEXT
        return await search(
            self, "fulltext", function, arguments, caller, without=without, is_filled=False
        )

    async def hybrid_search_batch(
        self, queries: Sequence[BatchQuery], *, timeout: float | None = None
    ) -> BatchResults:
        """Search for up to 50 queries in one round trip; return one list of hits for each.

        A query is a dict with the argument names of `hybrid_search`. All queries together return
        at most 1,000 hits. In the details, `total_count` and `answer_confidence` are lists with
        an entry for each query. If one query is rejected, the whole batch is, and every list is
        empty.
        """
        return await batch(self, queries, timeout)

    async def explain_hybrid_search(
        self,
        query_embedding: Embedding | None,
        query_text: str | None,
        **options: Unpack[SearchOptions],
    ) -> dict[str, Any]:
        """Explain the result of `hybrid_search` for the same arguments.

        The explanation has each leg's strategy, rows and milliseconds, the reason if a leg found
        fewer rows than its pool, the lexemes with their document frequencies, the weights of the
        fusion, and the ranks and scores of the hits. Raises a SecondBrainError on failure.
        """
        asked = {**options, "query_embedding": query_embedding, "query_text": query_text}
        arguments, timeout = _bound(self, asked, "explain_hybrid_search()")
        return await self._read(dict[str, Any], "explain_hybrid_search", arguments, timeout)

    async def estimate_hybrid_search(
        self,
        query_embedding: Embedding | None,
        query_text: str | None,
        **options: Unpack[SearchOptions],
    ) -> dict[str, Any]:
        """Estimate the cost of `hybrid_search` for the same arguments, without a search.

        The estimate has the milliseconds in the database, and each leg's strategy and the rows that
        it would read. It counts rows that the viewer may not see. Raises a SecondBrainError on
        failure.
        """
        asked = {**options, "query_embedding": query_embedding, "query_text": query_text}
        arguments, timeout = _bound(self, asked, "estimate_hybrid_search()")
        return await self._read(dict[str, Any], "estimate_hybrid_search", arguments, timeout)

    async def explain_missing(
        self,
        query_embedding: Embedding | None,
        query_text: str | None,
        *,
        chunk_id: UUID | str | None = None,
        document_key: str | None = None,
        **options: Unpack[SearchOptions],
    ) -> dict[str, Any]:
        """Explain why `hybrid_search` does not return a chunk or a document.

        `document_key` is the external_key of a document, else the id of it or of a chunk, else a
        source_url. The explanation has the place in the whole list, the rank and score in each leg
        beyond the pool, and the causes; `results.REMEDIES` says what to do about each. It describes
        rows that the viewer may not see. Raises a SecondBrainError on failure.
        """
        asked = {**options, "query_embedding": query_embedding, "query_text": query_text}
        arguments, timeout = _bound(self, asked, "explain_missing()")
        arguments |= converted({"chunk_id": chunk_id, "document_key": document_key})
        function = "explain_missing_knowledge_chunk"
        return await self._read(dict[str, Any], function, arguments, timeout)

    async def count_facets(
        self,
        query_embedding: Embedding | None,
        query_text: str | None,
        facets: Sequence[str],
        facet_limit: int = 10,
        **options: Unpack[SearchOptions],
    ) -> list[FacetCount]:
        """Count the values of columns or metadata keys over the chunks that match a search.

        `facets` are knowledge_type, collection, source_id, source_origin, language or `metadata.`
        and a key; the most frequent values of each come first. Without an embedding and a text, all
        chunks that pass the filters are counted; with an embedding, all that reach `threshold`. The
        other arguments are those of `hybrid_search`. Raises a SecondBrainError on failure.
        """
        asked = {**options, "query_embedding": query_embedding, "query_text": query_text}
        arguments, timeout = _bound(self, asked, "count_facets()")
        arguments |= _facets(facets, facet_limit)
        return await self._read(list[FacetCount], FACETS, arguments, timeout)

    async def count_my_facets(
        self,
        query_embedding: Embedding | None,
        query_text: str | None,
        facets: Sequence[str],
        facet_limit: int = 10,
        **options: Unpack[OwnSearchOptions],
    ) -> list[FacetCount]:
        """Count like `count_facets`, over the rows that the signed-in user may see."""
        asked = {**options, "query_embedding": query_embedding, "query_text": query_text}
        arguments, timeout = bound(asked, "count_my_facets()", without=VIEWER)
        arguments |= _facets(facets, facet_limit)
        return await self._read(list[FacetCount], MY_FACETS, arguments, timeout)

    async def count_pending_embeddings(self, **options: Unpack[RowOptions]) -> int:
        """Count the chunks that have no embedding yet: a search finds them by their words only.

        The arguments are those of `hybrid_search` that select rows. It counts to 1,000, which means
        1,000 or more. Raises a SecondBrainError on failure.
        """
        others = DEFAULTS.keys() - {*ROWS, *VIEWER}
        arguments, timeout = _bound(self, options, "count_pending_embeddings()", without=others)
        return await self._read(int, PENDING, arguments, timeout)

    async def count_my_pending_embeddings(self, **options: Unpack[OwnRowOptions]) -> int:
        """Count like `count_pending_embeddings`, over the rows that the signed-in user may see."""
        others = DEFAULTS.keys() - set(ROWS)
        arguments, timeout = bound(options, "count_my_pending_embeddings()", without=others)
        return await self._read(int, MY_PENDING, arguments, timeout)

    async def record_queries(
        self,
        queries: Sequence[LoggedQuery],
        *,
        most_rows: int = 10_000,
        max_age: timedelta = timedelta(days=30),
        timeout: float | None = None,
    ) -> int:
        """Add at most 500 searches to the query log of the database, and return their number.

        Of the log, `most_rows` lines are kept (at most 100,000), and none that is older than
        `max_age`. Over a psycopg connection in a transaction, nothing is added. Raises a
        SecondBrainError on failure.
        """
        arguments = {
            "queries": [one.model_dump(mode="json") for one in queries],
            "most_rows": most_rows,
            "max_age": f"{max_age.total_seconds()} seconds",
        }
        return await self._read(int, "record_knowledge_queries", arguments, timeout)

    async def read_document(
        self,
        document_id: UUID | str,
        *,
        chunk_count: int = 100,
        chunk_offset: int = 0,
        **options: Unpack[DocumentOptions],
    ) -> OwnDocumentContent | None:
        """Return a document with its active chunks in their order; None if it may not be seen.

        `viewer_id`, `viewer_groups`, `public_only`, `required_filters` and `timeout` as in
        `hybrid_search`.
        `collections`: only a document of these, or with chunks in them, and these chunks.
        `chunk_count` is 1 to 500.
        Raises a SecondBrainError on failure.
        """
        caller, without = "read_document()", NOT_OF_DOCUMENTS
        arguments, timeout = _bound(self, options, caller, without=without, filled=False)
        arguments |= converted({"chunk_count": chunk_count, "chunk_offset": chunk_offset})
        arguments["document"] = converted({"document_id": document_id})["document_id"]
        content: Any = OwnDocumentContent | None
        document: OwnDocumentContent | None = await self._read(
            content, "read_knowledge_document", arguments, timeout
        )
        return document

    async def list_documents(
        self,
        *,
        page_size: int = 50,
        after_key: str | None = None,
        **options: Unpack[DocumentOptions],
    ) -> list[OwnDocument]:
        """Return a page of the documents that the viewer may see, in the order of external_key.

        `viewer_id`, `viewer_groups`, `public_only`, `required_filters` and `timeout` as in
        `hybrid_search`.
        `collections`: only documents of these. `page_size` is 1 to 200; `after_key` is the last
        external_key of the page before. Raises a SecondBrainError on failure.
        """
        caller, without = "list_documents()", NOT_OF_DOCUMENTS
        arguments, timeout = _bound(self, options, caller, without=without, filled=False)
        arguments |= converted({"page_size": page_size, "after_key": after_key})
        function = "list_visible_knowledge_documents"
        return await self._read(list[OwnDocument], function, arguments, timeout)

    async def embedding_models(self, *, timeout: float | None = None) -> list[EmbeddingModel]:
        """Return the embedding models of the stored chunks, the most frequent first.

        Raises a SecondBrainError on failure.
        """
        return await self._read(list[EmbeddingModel], "knowledge_embedding_models", {}, timeout)


class SearchProvider(Client):
    """The searches of `AsyncSearchProvider`, for threads."""

    hybrid_search = blocking(AsyncSearchProvider.hybrid_search)
    find = blocking(AsyncSearchProvider.find)
    search_pages = blocking_iterator(AsyncSearchProvider.search_pages)
    search_my_knowledge = blocking(AsyncSearchProvider.search_my_knowledge)
    search_public_knowledge = blocking(AsyncSearchProvider.search_public_knowledge)
    search = blocking(AsyncSearchProvider.search)
    fulltext_search = blocking(AsyncSearchProvider.fulltext_search)
    hybrid_search_batch = blocking(AsyncSearchProvider.hybrid_search_batch)
    explain_hybrid_search = blocking(AsyncSearchProvider.explain_hybrid_search)
    estimate_hybrid_search = blocking(AsyncSearchProvider.estimate_hybrid_search)
    explain_missing = blocking(AsyncSearchProvider.explain_missing)
    count_facets = blocking(AsyncSearchProvider.count_facets)
    count_my_facets = blocking(AsyncSearchProvider.count_my_facets)
    count_pending_embeddings = blocking(AsyncSearchProvider.count_pending_embeddings)
    count_my_pending_embeddings = blocking(AsyncSearchProvider.count_my_pending_embeddings)
    record_queries = blocking(AsyncSearchProvider.record_queries)
    read_document = blocking(AsyncSearchProvider.read_document)
    list_documents = blocking(AsyncSearchProvider.list_documents)
    embedding_models = blocking(AsyncSearchProvider.embedding_models)


def _bound(
    client: Client,
    options: Mapping[str, Any],
    caller: str,
    *,
    without: Collection[str] = (),
    filled: bool = True,
) -> tuple[dict[str, Any], float | None]:
    arguments, timeout = bound(options, caller, without=without, filled=filled)
    require_viewer(client, arguments)
    return arguments, timeout


def _facets(facets: Sequence[str], facet_limit: int) -> dict[str, object]:
    if isinstance(facets, str):
        raise InvalidInputError(f"facets must be a list of names, not {facets[:100]!r}")
    return {"facets": list(facets), "facet_limit": facet_limit}
