"""Searches for questions through the provider, and their answers by document.

This module does not measure: it serves test collections and the corpus of a database alike.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from second_brain.errors import SecondBrainError
from second_brain.evaluation.collection import Embeddings, Query
from second_brain.evaluation.judgments import CHUNK
from second_brain.models.rerankers import Reranker, rerank_scores
from second_brain.services.arguments import Leg
from second_brain.services.install import Database
from second_brain.services.postgres import PostgresProvider
from second_brain.services.results import MemorySearchResult

RERANKED = 50
"""The first hits of a search that a reranker orders: those of a service for ten results."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The arguments of a search; None means the default, for fusion and weights as stored."""

    fusion: str | None = None
    vector_weight: float | None = None
    text_weight: float | None = None
    rrf_k: float | None = None
    pool_size: int | None = None
    search_mode: str | None = None

    def arguments(self, leg: Leg = "hybrid") -> dict[str, Any]:
        """Return the arguments for the provider; a leg alone takes no fusion arguments."""
        given = {name: value for name, value in asdict(self).items() if value is not None}
        if leg == "hybrid":
            return given
        return {name: given[name] for name in ("pool_size", "search_mode") if name in given}


DEFAULT = Settings()


@dataclass(frozen=True, slots=True)
class Answer:
    """The documents of one search, best first; `milliseconds` is None if no search ran.

    The vector leg does not run for a query whose embedding is a zero vector.
    """

    documents: tuple[str, ...]
    milliseconds: float | None


Run = dict[str, Answer]


class Searcher:
    """Searches a corpus, or one collection of it, one hit per document.

    `embeddings` has a row for each query. Without them, it can only search by words. A corpus with
    one chunk per document needs no grouping: with `one_per_document` False, the time is without it.
    """

    def __init__(
        self,
        database: Database,
        embeddings: Embeddings | None,
        collection: str | None = None,
        *,
        one_per_document: bool = True,
    ) -> None:
        self.database = database
        self.embeddings = embeddings
        self._provider = PostgresProvider(database.connection, schema=database.install.schema)
        self._options = {
            "collections": None if collection is None else [collection],
            "one_per_document": one_per_document,
        }

    def hits(
        self, query: Query, leg: Leg, settings: Settings, depth: int
    ) -> dict[str, MemorySearchResult]:
        """Search for one query, and return the best hit of each document, by document."""
        embedding = self._embedding(query, leg)
        if embedding is None and leg == "vector":
            return {}
        results = self._search(query, embedding, leg, settings, depth)
        return {_document(result): result for result in results}

    def answer(
        self,
        query: Query,
        leg: Leg,
        settings: Settings,
        depth: int,
        reranker: Reranker | None = None,
    ) -> Answer:
        """Search for one query, and rerank the first hits; the others keep their order.

        The time is that of the provider's call and of the reranker, without the embedding.
        """
        embedding = self._embedding(query, leg)
        if embedding is None and leg == "vector":
            return Answer((), None)
        begin = time.perf_counter()
        results = self._search(query, embedding, leg, settings, depth)
        if reranker is not None:
            results = _reranked(query, results, reranker)
        milliseconds = 1000 * (time.perf_counter() - begin)
        return Answer(tuple(map(_document, results)), milliseconds)

    def _embedding(self, query: Query, leg: Leg) -> list[float] | None:
        if leg == "text" or self.embeddings is None:
            return None
        vector = self.embeddings[query.row]
        return vector.tolist() if vector.any() else None

    def _search(
        self,
        query: Query,
        embedding: list[float] | None,
        leg: Leg,
        settings: Settings,
        depth: int,
    ) -> list[MemorySearchResult]:
        text = None if leg == "vector" else query.text
        arguments = {**self._options, **settings.arguments(leg)}
        try:
            hits, _ = self._provider.find(embedding, text, top_k=depth, **arguments)
        except SecondBrainError as error:
            error.args = (f"query {query.id!r}: {error}",)
            raise
        return hits


def rankings(run: Run) -> dict[str, Sequence[str]]:
    """Return the run's documents by query, in the form that `judge` takes."""
    return {query: answer.documents for query, answer in run.items()}


def _document(result: MemorySearchResult) -> str:
    """Return the id by which the judgments name the document of a hit."""
    return result.metadata["external_key"] or f"{CHUNK}{result.id}"


def _reranked(
    query: Query, results: Sequence[MemorySearchResult], reranker: Reranker
) -> list[MemorySearchResult]:
    first, others = results[:RERANKED], results[RERANKED:]
    scores = rerank_scores(reranker, query.text, [result.content for result in first])
    # Sorting is stable: equal scores keep the order of the search.
    places = sorted(range(len(first)), key=scores.__getitem__, reverse=True)
    return [*(first[place] for place in places), *others]
