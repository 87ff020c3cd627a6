"""nDCG@10 of the text leg minus that of exact BM25, which is computed outside of the database.

Each collection (BEIR's layout) is loaded into an embedded scratch database, a chunk a document, and
its questions are asked by text alone for 10 hits. Exact BM25 scores every chunk: the occurrences of
lexemes and the lengths are read from the table, the question's lexemes come from the same analysis
without quotation marks, leading minus signs and `or`, each lexeme counts as one word (a compound as
its words and as one word), k1 1.2, b 0.75. Printed are both means, their difference with the
p-value of the paired randomisation test, and the questions without any hit. The exit code is 1 when
a difference is below --least.
"""

import argparse
import json
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
from numpy.typing import NDArray

from second_brain.evaluation import collection as collections
from second_brain.evaluation import metrics, runs
from second_brain.evaluation.collection import Collection, Vectors
from second_brain.evaluation.runs import Settings
from second_brain.evaluation.scratch import load, scratch_database
from second_brain.services.install import Database

Connection = psycopg.Connection[Any]
MEASURE = "nDCG@10"
COUNT = 10
OPERATORS = re.compile(r'"|(?<!\S)-(?=\w)|(?<!\S)or(?!\S)', re.IGNORECASE)
OCCURRENCES = """
select word.lexeme, array_agg(document.external_key), array_agg(cardinality(word.positions))
  from public.knowledge_chunks as chunk
  join public.knowledge_documents as document on document.id = chunk.document_id
 cross join unnest(chunk.content_tsv) as word
 where word.positions is not null
 group by word.lexeme
"""
LENGTHS = """
select document.external_key, chunk.text_length
  from public.knowledge_chunks as chunk
  join public.knowledge_documents as document on document.id = chunk.document_id
"""
ASKED = """
select word.lexeme, cardinality(word.positions)
  from (values (%s::regconfig, %s::text)) as question (configuration, source),
       unnest(to_tsvector(
         question.configuration,
         knowledge_internal.apart(question.source) || ' '
           || knowledge_internal.joined(question.source)
       )) as word
"""


class ExactBm25:
    """Every chunk's BM25 for a question, from what the table stores."""

    def __init__(self, connection: Connection, collection: Collection, language: str) -> None:
        self._connection = connection
        self._language = language
        self._ids = [document.id for document in collection.documents]
        places = {id_: place for place, id_ in enumerate(self._ids)}
        lengths = np.zeros(len(self._ids))
        for key, length in connection.execute(LENGTHS).fetchall():
            lengths[places[key]] = length
        factors = 1.2 * (0.25 + 0.75 * lengths / lengths.mean())
        self._weights: dict[str, tuple[NDArray[np.int64], NDArray[np.float64]]] = {}
        for lexeme, keys, counts in connection.execute(OCCURRENCES).fetchall():
            rows = np.array([places[key] for key in keys])
            tf = np.array(counts, dtype=float)
            idf = np.log(1 + (len(lengths) - len(rows) + 0.5) / (len(rows) + 0.5))
            self._weights[lexeme] = rows, idf * tf * 2.2 / (tf + factors[rows])

    def best(self, text: str) -> list[str]:
        """Return the ids of the best documents."""
        scores: NDArray[np.float64] = np.zeros(len(self._ids))
        asked = self._connection.execute(ASKED, [self._language, OPERATORS.sub(" ", text)])
        for lexeme, times in asked.fetchall():
            if lexeme in self._weights:
                rows, weights = self._weights[lexeme]
                scores[rows] += times * weights
        ordered = np.argsort(-scores, kind="stable")[:COUNT]
        return [self._ids[place] for place in ordered if scores[place] > 0]


def measure(directory: Path, language: str) -> dict[str, Any]:
    """Return a collection's means, their difference and the questions without a hit."""
    collection = collections.load(directory)
    nothing = np.zeros((max(len(collection.documents), collection.queries_in_file), 3), np.float32)
    vectors = Vectors("none", nothing[: len(collection.documents)], nothing)
    rankings: dict[str, dict[str, list[str]]] = defaultdict(dict)
    with scratch_database(3) as connection:
        load(connection, collection, vectors, language, lambda doing: None)
        searcher = runs.Searcher(Database(connection), vectors.queries, one_per_document=False)
        exact = ExactBm25(connection, collection, language)
        for query in collection.queries:
            answer = searcher.answer(query, "text", Settings(), COUNT)
            rankings["text leg"][query.id] = list(answer.documents)
            rankings["exact BM25"][query.id] = exact.best(query.text)
    values = {
        name: metrics.judge(collection.qrels, found)[MEASURE] for name, found in rankings.items()
    }
    difference = metrics.compare(values["text leg"], values["exact BM25"])
    return {
        "collection": collection.name,
        "queries": len(collection.queries),
        **{name: round(sum(found.values()) / len(found), 4) for name, found in values.items()},
        "difference": round(difference.mean, 4),
        "p": round(difference.p_value, 4),
        "without a hit": sum(not found for found in rankings["text leg"].values()),
    }


def main() -> int:
    """Print a line of JSON for each collection."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("collections", type=Path, nargs="+", metavar="COLLECTION")
    parser.add_argument("--language", default="english")
    parser.add_argument("--least", type=float, default=-0.005)
    options = parser.parse_args()
    least = 0.0
    for directory in options.collections:
        figures = measure(directory, options.language)
        least = min(least, figures["difference"])
        print(json.dumps(figures), flush=True)
    return int(least < options.least)


if __name__ == "__main__":
    sys.exit(main())
