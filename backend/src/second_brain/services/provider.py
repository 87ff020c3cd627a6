"""The methods of every provider: searches, and what a service asks beside them.

`SearchProvider` says what each does; `AsyncSearchProvider` is the same for an event loop. A
provider class only defines how to call an SQL function. The database ranks, fuses and filters.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import timedelta
from typing import Any, Unpack
from uuid import UUID

from second_brain.services.arguments import (
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
)
from second_brain.services.calls import Client, finished, iterated
from second_brain.services.own_documents import CONTENT, OwnDocument, OwnDocumentContent
from second_brain.services.query_log import LoggedQuery
from second_brain.services.results import BatchResults, EmbeddingModel, FacetCount, Results
from second_brain.services.searches import (
    FULLTEXT,
    HYBRID,
    MINE,
    PUBLIC,
    VECTOR,
    ask,
    asked,
    batch,
    pages,
    search,
)


class SearchProvider(Client):
    """Hybrid, vector and full-text search; every call is one round trip.

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

    The options of each method are those of `hybrid_search` with the same name. `timeout` is in
    seconds for the whole call; the timeout of a call replaces that of the provider.
    When the connection is lost, the call is retried after a short random pause, at most `retries`
    times and within the timeout. `sleep` is called for the pause.
    """

    def hybrid_search(
        self,
        query_embedding: Embedding,
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
        scores = {"top_k": top_k, "threshold": threshold, "pool_size": pool_size}
        weights = {"vector_weight": vector_weight, "text_weight": text_weight}
        texts = {"filter_type": filter_type, "search_mode": search_mode}
        legs = {"query_embedding": query_embedding, "query_text": query_text}
        given = {**options, **legs, **scores, **weights, **texts}
        return finished(search(self, HYBRID, given))

    def find(
        self, query_embedding: Embedding, query_text: str | None, **options: Unpack[FindOptions]
    ) -> Results:
        """Search like `hybrid_search`, and raise a SecondBrainError on failure in any case."""
        return finished(
            search(self, HYBRID, asked(query_embedding, query_text, options), is_raised=True)
        )

    def search_pages(
        self, query_embedding: Embedding, query_text: str | None, **options: Unpack[FindOptions]
    ) -> Iterator[Results]:
        """Yield page after page of `top_k` hits, as `find` returns them, to the end of the list.

        All pages cut one list, with the largest pool unless `pool_size` is given; while data stand
        still, no hit is lost or repeated. The details of the last page say when the pools ended the
        list. `timeout` is for each page.
        """
        yield from iterated(pages(self, asked(query_embedding, query_text, options)))

    def search_my_knowledge(
        self,
        query_embedding: Embedding,
        query_text: str | None,
        **options: Unpack[OwnSearchOptions],
    ) -> Results:
        """Search as the signed-in user of the connection.

        Like `hybrid_search`, but the database takes the viewer from the token. It needs a Supabase
        client with a user's token, or a psycopg connection with role authenticated and JWT claims.
        """
        return finished(search(self, MINE, asked(query_embedding, query_text, options)))

    def search_public_knowledge(
        self,
        query_embedding: Embedding,
        query_text: str | None,
        **options: Unpack[PublicSearchOptions],
    ) -> Results:
        """Search public rows as a visitor, for example with a project's public key.

        Like `hybrid_search`, but it takes no viewer and has lower limits. The project must grant
        the function `search_public_knowledge_chunks` first.
        """
        return finished(search(self, PUBLIC, asked(query_embedding, query_text, options)))

    def search(
        self,
        query_embedding: Embedding,
        top_k: int = 5,
        threshold: float = 0.6,
        filter_type: str | None = None,
        **options: Unpack[LegOptions],
    ) -> Results:
        """Search with the vector leg alone: chunks of at least `threshold` cosine similarity."""
        scores = {"top_k": top_k, "threshold": threshold, "filter_type": filter_type}
        given = {**options, **scores, "query_embedding": query_embedding}
        return finished(search(self, VECTOR, given))

    def fulltext_search(
        self,
        query_text: str | None,
        top_k: int = 5,
        search_mode: str = "websearch",
        filter_type: str | None = None,
        **options: Unpack[LegOptions],
    ) -> Results:
        """Search with the text leg alone."""
        texts = {"query_text": query_text, "search_mode": search_mode, "filter_type": filter_type}
        given = {**options, **texts, "top_k": top_k}
        return finished(search(self, FULLTEXT, given))

    def hybrid_search_batch(
        self, queries: Sequence[BatchQuery], *, timeout: float | None = None
    ) -> BatchResults:
        """Search for up to 50 queries in one round trip; return one list of hits for each.

        A query is a dict with the argument names of `hybrid_search`. All queries together return
        at most 1,000 hits. In the details, `total_count` and `answer_confidence` are lists with
        an entry for each query. If one query is rejected, the whole batch is, and every list is
        empty.
        """
        return finished(batch(self, queries, timeout))

    def explain_hybrid_search(
        self, query_embedding: Embedding, query_text: str | None, **options: Unpack[SearchOptions]
    ) -> dict[str, Any]:
        """Explain the result of `hybrid_search` for the same arguments.

        The explanation has each leg's strategy, rows and milliseconds, the reason if a leg found
        fewer rows than its pool, the lexemes with their document frequencies, the weights of the
        fusion, and the ranks and scores of the hits.
        """
        given = asked(query_embedding, query_text, options)
        return finished(ask(self, "explain_hybrid_search", dict[str, Any], given))

    def estimate_hybrid_search(
        self, query_embedding: Embedding, query_text: str | None, **options: Unpack[SearchOptions]
    ) -> dict[str, Any]:
        """Estimate the cost of `hybrid_search` for the same arguments, without a search.

        The estimate has the milliseconds in the database, and each leg's strategy and the rows that
        it would read. It counts rows that the viewer may not see.
        """
        given = asked(query_embedding, query_text, options)
        return finished(ask(self, "estimate_hybrid_search", dict[str, Any], given))

    def explain_missing(
        self,
        query_embedding: Embedding,
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
        rows that the viewer may not see.
        """
        given = asked(query_embedding, query_text, options)
        further = {"chunk_id": chunk_id, "document_key": document_key}
        return finished(
            ask(self, "explain_missing_knowledge_chunk", dict[str, Any], given, further)
        )

    def count_facets(
        self,
        query_embedding: Embedding,
        query_text: str | None,
        facets: Sequence[str],
        facet_limit: int = 10,
        **options: Unpack[SearchOptions],
    ) -> list[FacetCount]:
        """Count the values of columns or metadata keys over the chunks that match a search.

        `facets` are knowledge_type, collection, source_id, source_origin, language or `metadata.`
        and a key; the most frequent values of each come first. Without an embedding and a text, all
        chunks that pass the filters are counted; with an embedding, all that reach `threshold`. The
        other arguments are those of `hybrid_search`.
        """
        given = asked(query_embedding, query_text, options)
        further = {"facets": facets, "facet_limit": facet_limit}
        return finished(ask(self, "facet_knowledge_chunks", list[FacetCount], given, further))

    def count_my_facets(
        self,
        query_embedding: Embedding,
        query_text: str | None,
        facets: Sequence[str],
        facet_limit: int = 10,
        **options: Unpack[OwnSearchOptions],
    ) -> list[FacetCount]:
        """Count like `count_facets`, over the rows that the signed-in user may see."""
        given = asked(query_embedding, query_text, options)
        further = {"facets": facets, "facet_limit": facet_limit}
        return finished(ask(self, "facet_my_knowledge_chunks", list[FacetCount], given, further))

    def count_pending_embeddings(self, **options: Unpack[RowOptions]) -> int:
        """Count the chunks that have no embedding yet: a search finds them by their words only.

        The arguments are those of `hybrid_search` that select rows. It counts to 1,000, which means
        1,000 or more.
        """
        return finished(ask(self, "count_pending_knowledge_embeddings", int, options))

    def count_my_pending_embeddings(self, **options: Unpack[OwnRowOptions]) -> int:
        """Count like `count_pending_embeddings`, over the rows that the signed-in user may see."""
        return finished(ask(self, "count_my_pending_knowledge_embeddings", int, options))

    def record_queries(
        self,
        queries: Sequence[LoggedQuery],
        *,
        most_rows: int = 10_000,
        max_age: timedelta = timedelta(days=30),
        timeout: float | None = None,
    ) -> int:
        """Add at most 500 searches to the query log of the database, and return their number.

        Of the log, `most_rows` lines are kept (at most 100,000), and none that is older than
        `max_age`. Over a psycopg connection in a transaction, nothing is added.
        """
        further = {"queries": queries, "most_rows": most_rows, "max_age": max_age}
        return finished(ask(self, "record_knowledge_queries", int, {"timeout": timeout}, further))

    def read_document(
        self,
        document_id: UUID | str,
        *,
        chunk_count: int = 100,
        chunk_offset: int = 0,
        **options: Unpack[DocumentOptions],
    ) -> OwnDocumentContent | None:
        """Return a document with its active chunks in their order; None if it may not be seen.

        `collections`: only a document of these, or with chunks in them, and these chunks.
        `chunk_count` is 1 to 500.
        """
        page = {"chunk_count": chunk_count, "chunk_offset": chunk_offset}
        further = {"document": document_id, **page}
        return finished(ask(self, "read_knowledge_document", CONTENT, options, further))

    def list_documents(
        self,
        *,
        page_size: int = 50,
        after_key: str | None = None,
        **options: Unpack[DocumentOptions],
    ) -> list[OwnDocument]:
        """Return a page of the documents that the viewer may see, in the order of external_key.

        `collections`: only documents of these. `page_size` is 1 to 200; `after_key` is the last
        external_key of the page before.
        """
        further = {"page_size": page_size, "after_key": after_key}
        return finished(
            ask(self, "list_visible_knowledge_documents", list[OwnDocument], options, further)
        )

    def embedding_models(self, *, timeout: float | None = None) -> list[EmbeddingModel]:
        """Return the embedding models of the stored chunks, the most frequent first."""
        return finished(self._read(list[EmbeddingModel], "knowledge_embedding_models", {}, timeout))


class AsyncSearchProvider(Client):
    """The methods of `SearchProvider`, for an event loop.

    A test compares both classes: they differ in `await`.
    """

    _pause = staticmethod(asyncio.sleep)

    async def hybrid_search(
        self,
        query_embedding: Embedding,
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
        """`SearchProvider.hybrid_search` for an event loop."""
        scores = {"top_k": top_k, "threshold": threshold, "pool_size": pool_size}
        weights = {"vector_weight": vector_weight, "text_weight": text_weight}
        texts = {"filter_type": filter_type, "search_mode": search_mode}
        legs = {"query_embedding": query_embedding, "query_text": query_text}
        given = {**options, **legs, **scores, **weights, **texts}
        return await search(self, HYBRID, given)

    async def find(
        self, query_embedding: Embedding, query_text: str | None, **options: Unpack[FindOptions]
    ) -> Results:
        """`SearchProvider.find` for an event loop."""
        return await search(
            self, HYBRID, asked(query_embedding, query_text, options), is_raised=True
        )

    async def search_pages(
        self, query_embedding: Embedding, query_text: str | None, **options: Unpack[FindOptions]
    ) -> AsyncIterator[Results]:
        """`SearchProvider.search_pages` for an event loop."""
        async for page in pages(self, asked(query_embedding, query_text, options)):
            yield page

    async def search_my_knowledge(
        self,
        query_embedding: Embedding,
        query_text: str | None,
        **options: Unpack[OwnSearchOptions],
    ) -> Results:
        """`SearchProvider.search_my_knowledge` for an event loop."""
        return await search(self, MINE, asked(query_embedding, query_text, options))

    async def search_public_knowledge(
        self,
        query_embedding: Embedding,
        query_text: str | None,
        **options: Unpack[PublicSearchOptions],
    ) -> Results:
        """`SearchProvider.search_public_knowledge` for an event loop."""
        return await search(self, PUBLIC, asked(query_embedding, query_text, options))

    async def search(
        self,
        query_embedding: Embedding,
        top_k: int = 5,
        threshold: float = 0.6,
        filter_type: str | None = None,
        **options: Unpack[LegOptions],
    ) -> Results:
        """`SearchProvider.search` for an event loop."""
        scores = {"top_k": top_k, "threshold": threshold, "filter_type": filter_type}
        given = {**options, **scores, "query_embedding": query_embedding}
        return await search(self, VECTOR, given)

    async def fulltext_search(
        self,
        query_text: str | None,
        top_k: int = 5,
        search_mode: str = "websearch",
        filter_type: str | None = None,
        **options: Unpack[LegOptions],
    ) -> Results:
        """`SearchProvider.fulltext_search` for an event loop."""
        texts = {"query_text": query_text, "search_mode": search_mode, "filter_type": filter_type}
        given = {**options, **texts, "top_k": top_k}
        return await search(self, FULLTEXT, given)

    async def hybrid_search_batch(
        self, queries: Sequence[BatchQuery], *, timeout: float | None = None
    ) -> BatchResults:
        """`SearchProvider.hybrid_search_batch` for an event loop."""
        return await batch(self, queries, timeout)

    async def explain_hybrid_search(
        self, query_embedding: Embedding, query_text: str | None, **options: Unpack[SearchOptions]
    ) -> dict[str, Any]:
        """`SearchProvider.explain_hybrid_search` for an event loop."""
        given = asked(query_embedding, query_text, options)
        return await ask(self, "explain_hybrid_search", dict[str, Any], given)

    async def estimate_hybrid_search(
        self, query_embedding: Embedding, query_text: str | None, **options: Unpack[SearchOptions]
    ) -> dict[str, Any]:
        """`SearchProvider.estimate_hybrid_search` for an event loop."""
        given = asked(query_embedding, query_text, options)
        return await ask(self, "estimate_hybrid_search", dict[str, Any], given)

    async def explain_missing(
        self,
        query_embedding: Embedding,
        query_text: str | None,
        *,
        chunk_id: UUID | str | None = None,
        document_key: str | None = None,
        **options: Unpack[SearchOptions],
    ) -> dict[str, Any]:
        """`SearchProvider.explain_missing` for an event loop."""
        given = asked(query_embedding, query_text, options)
        further = {"chunk_id": chunk_id, "document_key": document_key}
        return await ask(self, "explain_missing_knowledge_chunk", dict[str, Any], given, further)

    async def count_facets(
        self,
        query_embedding: Embedding,
        query_text: str | None,
        facets: Sequence[str],
        facet_limit: int = 10,
        **options: Unpack[SearchOptions],
    ) -> list[FacetCount]:
        """`SearchProvider.count_facets` for an event loop."""
        given = asked(query_embedding, query_text, options)
        further = {"facets": facets, "facet_limit": facet_limit}
        return await ask(self, "facet_knowledge_chunks", list[FacetCount], given, further)

    async def count_my_facets(
        self,
        query_embedding: Embedding,
        query_text: str | None,
        facets: Sequence[str],
        facet_limit: int = 10,
        **options: Unpack[OwnSearchOptions],
    ) -> list[FacetCount]:
        """`SearchProvider.count_my_facets` for an event loop."""
        given = asked(query_embedding, query_text, options)
        further = {"facets": facets, "facet_limit": facet_limit}
        return await ask(self, "facet_my_knowledge_chunks", list[FacetCount], given, further)

    async def count_pending_embeddings(self, **options: Unpack[RowOptions]) -> int:
        """`SearchProvider.count_pending_embeddings` for an event loop."""
        return await ask(self, "count_pending_knowledge_embeddings", int, options)

    async def count_my_pending_embeddings(self, **options: Unpack[OwnRowOptions]) -> int:
        """`SearchProvider.count_my_pending_embeddings` for an event loop."""
        return await ask(self, "count_my_pending_knowledge_embeddings", int, options)

    async def record_queries(
        self,
        queries: Sequence[LoggedQuery],
        *,
        most_rows: int = 10_000,
        max_age: timedelta = timedelta(days=30),
        timeout: float | None = None,
    ) -> int:
        """`SearchProvider.record_queries` for an event loop."""
        further = {"queries": queries, "most_rows": most_rows, "max_age": max_age}
        return await ask(self, "record_knowledge_queries", int, {"timeout": timeout}, further)

    async def read_document(
        self,
        document_id: UUID | str,
        *,
        chunk_count: int = 100,
        chunk_offset: int = 0,
        **options: Unpack[DocumentOptions],
    ) -> OwnDocumentContent | None:
        """`SearchProvider.read_document` for an event loop."""
        page = {"chunk_count": chunk_count, "chunk_offset": chunk_offset}
        further = {"document": document_id, **page}
        return await ask(self, "read_knowledge_document", CONTENT, options, further)

    async def list_documents(
        self,
        *,
        page_size: int = 50,
        after_key: str | None = None,
        **options: Unpack[DocumentOptions],
    ) -> list[OwnDocument]:
        """`SearchProvider.list_documents` for an event loop."""
        further = {"page_size": page_size, "after_key": after_key}
        return await ask(
            self, "list_visible_knowledge_documents", list[OwnDocument], options, further
        )

    async def embedding_models(self, *, timeout: float | None = None) -> list[EmbeddingModel]:
        """`SearchProvider.embedding_models` for an event loop."""
        return await self._read(list[EmbeddingModel], "knowledge_embedding_models", {}, timeout)
