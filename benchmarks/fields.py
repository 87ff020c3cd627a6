"""nDCG@10 by how often a heading or a title counts, on test collections with titled documents.

`heading`: a chunk is a document and its heading the title, so `heading_weight` is the weight of the
title. `title`: documents are cut into parts of 60 words without a heading, each with the embedding
of its document, and `title_weight` says how often the title counts in each part. Beside them: the
differences from the default with their standard errors, and the time to rewrite a chunk.
"""

import argparse
import time
from math import sqrt
from pathlib import Path
from statistics import mean, stdev

from benchmarks.bench_report import line
from benchmarks.quality import MODELS, loaded
from second_brain.evaluation.comparison import Mode, measure
from second_brain.evaluation.metrics import NDCG
from second_brain.evaluation.runs import Searcher, Settings
from second_brain.services.corpus_settings import CorpusSettings
from second_brain.services.install import Database
from second_brain.services.write import KnowledgeWriter

WEIGHTS = range(4)
DEFAULTS = {"heading_weight": 2, "title_weight": 0}
SEARCHES = (Mode("text", "text"), Mode("auto", settings=Settings("auto")))
CUT = """
with whole as (delete from public.knowledge_chunks as chunk returning chunk.*),
words as (
  select whole.*, regexp_split_to_array(btrim(whole.content), '\\s+') as words from whole
)
insert into public.knowledge_chunks (
  document_id, chunk_index, language, content, embedding, embedding_model
)
select words.document_id, start / 60, words.language,
       array_to_string(words.words[start + 1:start + 60], ' '), words.embedding,
       words.embedding_model
  from words
 cross join generate_series(0, cardinality(words.words) - 1, 60) as start
"""
RENEW = ("vacuum analyze public.knowledge_chunks", "select public.refresh_knowledge_statistics()")

Values = dict[str, dict[str, float]]


def rewritten(database: Database, field: str, weight: int) -> float:
    """Store a weight and rewrite the chunks; return the milliseconds of a chunk."""
    writer = KnowledgeWriter(database.connection)
    writer.set_fields(CorpusSettings().model_copy(update={field: weight}))
    begin, chunks = time.perf_counter(), writer.rewrite_chunks(0)
    while writer.rewrite_chunks():
        pass
    spent = time.perf_counter() - begin
    for statement in RENEW:
        database.connection.execute(statement.encode())
    return 1000 * spent / max(chunks, 1)


def cell(values: dict[str, float], before: dict[str, float]) -> str:
    """Return the mean, and its difference from the default with the standard error."""
    gains = [values[query] - before[query] for query in values]
    error = stdev(gains) / sqrt(len(gains))
    return f"{mean(values.values()):.4f} ({mean(gains):+.4f} ± {error:.4f})"


def main() -> None:
    """Print a Markdown table with a row for each collection, field and weight."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("collections", type=Path, nargs="+", metavar="COLLECTION")
    parser.add_argument("--embeddings", choices=MODELS, default=MODELS[0])
    options = parser.parse_args()

    header = ("collection", "field", "weight", *(mode.name for mode in SEARCHES), "ms a chunk")
    print(line(header), line(["---"] * len(header)), sep="\n", flush=True)
    for directory in options.collections:
        with loaded(directory, options.embeddings) as (collection, searcher):
            database = searcher.database
            for field, default in DEFAULTS.items():
                if field == "title_weight":
                    database.connection.execute(CUT.encode())
                searcher = Searcher(database, searcher.embeddings)
                found: dict[int, Values] = {}
                spent = {}
                for weight in WEIGHTS:
                    spent[weight] = rewritten(database, field, weight)
                    answers = measure(searcher.answer, collection, SEARCHES, reference="auto")
                    found[weight] = {one.name: answers.values[one.name][NDCG] for one in SEARCHES}
                for weight, values in found.items():
                    cells = [cell(values[name], found[default][name]) for name in values]
                    row = (collection.name, field, str(weight), *cells, f"{spent[weight]:.2f}")
                    print(line(row), flush=True)


if __name__ == "__main__":
    main()
