"""The exact results of each leg from a comparison of every row, for recall and overlap."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import psycopg
from numpy.typing import NDArray

from benchmarks.corpus import Corpus, Query
from benchmarks.peers.system import POOL, Client

Connection = psycopg.Connection[Any]

COUNT = 10
RECALL = ("vector only", "filtered 10 %", "filtered 0.1 %")
OVERLAP = ("text only", "rare words", "common words", "filtered 10 %", "filtered 0.1 %")


class Exact:
    """The exact results over a corpus; call `read_words` before those of the text leg.

    BM25 is computed here, outside the database; rows are chunk indexes.
    """

    def __init__(self, corpus: Corpus) -> None:
        self._embeddings = corpus.embeddings
        self._types = np.array(corpus.types)
        self._postings: dict[str, tuple[NDArray[np.int32], NDArray[np.float32]]] = {}
        self._lexemes: dict[str, dict[str, int]] = {}
        self._rows = len(corpus.texts)
        self._least_similarity: dict[tuple[bytes, str | None], tuple[int, float]] = {}

    def read_words(self, connection: Connection, texts: Iterable[str]) -> None:
        """Read the occurrences of the questions' words from the project's loaded table."""
        for text in texts:
            found = connection.execute(
                "select lexeme, cardinality(positions)"
                "  from unnest(to_tsvector('english',"
                "    knowledge_internal.apart(%s) || ' ' || knowledge_internal.joined(%s)))",
                [text, text],
            ).fetchall()
            self._lexemes[text] = dict(found)
        wanted = sorted({lexeme for found in self._lexemes.values() for lexeme in found})
        lengths = np.zeros(self._rows)
        # A server-side cursor and arrays as bytes: a million rows are too many for Python objects.
        with connection.transaction():
            with connection.cursor(name="lengths", binary=True) as cursor:
                cursor.itersize = 50_000
                cursor.execute("select chunk_index, text_length from public.knowledge_chunks")
                for row, length in cursor:
                    lengths[row] = length
            norm = 1.2 * (0.25 + 0.75 * lengths / lengths.mean())
            with connection.cursor(name="postings", binary=True) as cursor:
                cursor.itersize = 10
                cursor.execute(
                    "select word.lexeme,"
                    "       string_agg(int4send(chunk.chunk_index), ''::bytea),"
                    "       string_agg(int4send(cardinality(word.positions)), ''::bytea)"
                    "  from public.knowledge_chunks as chunk, unnest(chunk.content_tsv) as word"
                    " where word.lexeme = any (%s) group by word.lexeme",
                    [wanted],
                )
                for lexeme, rows, counts in cursor:
                    places = np.frombuffer(rows, dtype=">i4").astype(np.int32)
                    occurrences = np.frombuffer(counts, dtype=">i4").astype(float)
                    idf = np.log(1 + (len(lengths) - len(places) + 0.5) / (len(places) + 0.5))
                    weights = idf * occurrences * 2.2 / (occurrences + norm[places])
                    self._postings[lexeme] = (places, weights.astype(np.float32))

    def _scores(self, text: str) -> NDArray[np.float64]:
        """Return the score of each row; 0 for a row without a word of the question."""
        scores = np.zeros(self._rows)
        for lexeme, times in self._lexemes.get(text, {}).items():
            if lexeme in self._postings:
                rows, weights = self._postings[lexeme]
                scores[rows] += times * weights
        return scores

    def recall(self, query: Query, ids: Sequence[int]) -> float:
        """Return the share of the 50 nearest rows that is among the ids."""
        assert query.embedding is not None
        wanted, least = self._nearest(query.embedding, query.kept)
        found = self._embeddings[np.array(ids, dtype=int)] @ query.embedding
        return min(float(np.sum(found >= least)) / wanted, 1.0)

    def _nearest(self, embedding: NDArray[np.float32], kept: str | None) -> tuple[int, float]:
        asked = embedding.tobytes()
        if (asked, kept) not in self._least_similarity:
            # For all filters at once, because the comparison of a million rows is slow.
            similarities = self._embeddings @ embedding
            masks = {name: self._types == name for name in np.unique(self._types)}
            for name, mask in {None: slice(None), **masks}.items():
                passing = similarities[mask]
                wanted = min(POOL, len(passing))
                least = np.partition(passing, -wanted)[-wanted] - 1e-6
                self._least_similarity[asked, name] = wanted, float(least)
        return self._least_similarity[asked, kept]

    def overlap(self, query: Query, ids: Sequence[int]) -> float | None:
        """Return the share of the ten best rows that is among the ids; None without any.

        A row that scores as high as the tenth counts.
        """
        assert query.text is not None
        scores = self._scores(query.text)
        if query.kept:
            scores[self._types != query.kept] = 0
        wanted = min(COUNT, int(np.sum(scores > 0)))
        if not wanted:
            return None
        least = np.partition(scores, -wanted)[-wanted] * (1 - 1e-4)
        return min(float(np.sum(scores[np.array(ids, dtype=int)] >= least)) / wanted, 1.0)

    def mean_recall(self, client: Client, queries: Sequence[Query]) -> dict[str, float]:
        """Return the mean and the minimum recall of the vector leg alone for 50 rows."""
        recalls = [
            self.recall(query, client.search(replace(query, text=None), POOL)) for query in queries
        ]
        return {"recall": float(np.mean(recalls)), "recall_least": min(recalls)}

    def mean_overlap(self, client: Client, queries: Sequence[Query]) -> float | None:
        """Return the mean overlap of the text leg alone for ten rows."""
        overlaps = [
            self.overlap(query, client.search(replace(query, embedding=None), COUNT))
            for query in queries
        ]
        known = [overlap for overlap in overlaps if overlap is not None]
        return float(np.mean(known)) if known else None
