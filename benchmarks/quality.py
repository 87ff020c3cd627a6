"""nDCG@10 of hybrid search and of its legs on test collections, with one setting for all of them.

Each collection (BEIR's layout; a file `language` names another language than English) is loaded
into an embedded scratch database, a chunk a document, and each of its queries is asked through the
provider by vector alone, by text alone, and by both with fusion `auto`, with plain RRF (weights 1
and 1, k 60) and with `relative_score`. A search asks for 10 hits, as an application does, so the
pools keep their default of 50; `second-brain corpus eval` asks for 100, which raises them to 100
and changes what is fused.

The figures are means over the queries with a relevant document; every judgment counts as it is
written. Beside them: `auto` minus the better leg (the one with the higher mean) with the p-value of
the paired randomisation test, and the queries that the text leg returned nothing for. The last line
has the means over all collections and the worst difference.

With `--like`, relevant documents of each query are given as `like_ids`, and taken out of the
judgments and of the answers: nDCG@10 of the query alone, with them, and of them without the query.

With `--duplicates`, each document is stored twice, every second copy in capitals, and the copy's
embedding with noise (a cosine of about .998): how many of the ten hits repeat another one, without
and with `merge_duplicates`.
"""

import argparse
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.bench_report import line
from second_brain.evaluation import collection as collections
from second_brain.evaluation.collection import Collection, Vectors
from second_brain.evaluation.comparison import LEGS, Comparison, Mode, measure
from second_brain.evaluation.metrics import NDCG, judge
from second_brain.evaluation.runs import Searcher, Settings
from second_brain.evaluation.scratch import load, scratch_database
from second_brain.models import load_embedder
from second_brain.services.install import Database
from second_brain.services.postgres import PostgresProvider

MATCH_COUNT = 10
DEFAULT = "auto"
SEARCHES = (
    *LEGS,
    Mode(DEFAULT, settings=Settings("auto")),
    Mode("rrf 1/1 k 60", settings=Settings("rrf", 1.0, 1.0, rrf_k=60.0)),
    Mode("relative_score", settings=Settings("relative_score")),
)
MODELS = ("minilm384", "wordllama")
"""docs.minilm384.f16.npy and queries.minilm384.f16.npy in the folder, or WordLlama."""


def read(directory: Path, embeddings: str, most: int | None = None) -> tuple[Collection, Vectors]:
    """Read a collection, at most that many of its queries, and its embeddings."""
    collection = replace(collections.load(directory).sample(most, 0), depth=MATCH_COUNT)
    if embeddings == "wordllama":
        return collection, collections.embed(collection, load_embedder(embeddings))
    files = (directory / f"{of}.{embeddings}.f16.npy" for of in ("docs", "queries"))
    return collection, collections.read_vectors(collection, *files)


@contextmanager
def loaded(
    directory: Path, embeddings: str, most: int | None = None
) -> Iterator[tuple[Collection, Searcher]]:
    """Load a collection into a scratch database, with at most that many of its queries."""
    collection, vectors = read(directory, embeddings, most)
    named = directory / "language"
    language = named.read_text("utf-8").strip() if named.is_file() else "english"
    with scratch_database(vectors.dimensions) as connection:
        load(connection, collection, vectors, language, lambda doing: None)
        yield collection, Searcher(Database(connection), vectors.queries, one_per_document=False)


def better_leg(found: Comparison) -> str:
    """Return the leg with the higher mean."""
    return max((mode.name for mode in LEGS), key=lambda leg: found.mean(leg, NDCG))


def row(name: str, means: list[float], measured: list[Comparison]) -> str:
    """Return a line with the means, and the worst difference of auto from the better leg."""
    worst = max(measured, key=lambda one: one.gains[better_leg(one)].mean)
    leg = better_leg(worst)
    place = leg if len(measured) == 1 else worst.collection.name
    cells = [
        name,
        str(sum(len(one.collection.queries) for one in measured)),
        *(f"{mean:.4f}" for mean in means),
        f"{-worst.gains[leg].mean:+.4f} ({place})",
        f"{worst.gains[leg].p_value:.4f}",
        str(sum(not answer.documents for one in measured for answer in one.runs["text"].values())),
    ]
    return line(cells)


def print_header(header: Sequence[str]) -> None:
    """Print the first lines of a table."""
    print(line(header), line(["---"] * len(header)), sep="\n", flush=True)


def print_like(directory: Path, embeddings: str, most: int | None) -> None:
    """Print what one and two relevant documents, drawn by chance, change for `auto` and `rrf`."""
    with loaded(directory, embeddings, most) as (collection, searcher):
        connection = searcher.database.connection
        provider, chance = PostgresProvider(connection), random.Random(0)
        vectors = searcher.embeddings
        assert vectors is not None
        stored = connection.execute("select external_key, id from public.knowledge_documents")
        ids = {str(key): id_ for key, id_ in stored}
        relevant = {
            query: sorted(key for key, grade in grades.items() if grade > 0 and key in ids)
            for query, grades in collection.qrels.items()
        }
        for count in (1, 2):
            queries = [one for one in collection.queries if len(relevant.get(one.id, ())) > count]
            known = {one.id: chance.sample(relevant[one.id], count) for one in queries}
            qrels = {
                one.id: {
                    key: grade
                    for key, grade in collection.qrels[one.id].items()
                    if key not in known[one.id]
                }
                for one in queries
            }
            for fusion in ("auto", "rrf"):
                cells = [collection.name, str(len(queries)), str(count), fusion]
                for asks, gives in ((True, False), (True, True), (False, True)):
                    run = {}
                    for one in queries:
                        hits, _ = provider.find(
                            vectors[one.row].tolist() if asks else None,
                            one.text if asks else None,
                            top_k=MATCH_COUNT + count,
                            like_ids=[ids[key] for key in known[one.id]] if gives else None,
                            fusion=fusion,
                        )
                        keys = [str(hit.metadata["external_key"]) for hit in hits]
                        run[one.id] = [key for key in keys if key not in known[one.id]]
                    scores = judge(qrels, run)[NDCG].values()
                    cells.append(f"{sum(scores) / len(scores):.4f}")
                print(line(cells), flush=True)


def print_duplicates(directory: Path, embeddings: str, most: int | None) -> None:
    """Print the mean number of hits that repeat another one."""
    collection, vectors = read(directory, embeddings, most)
    once = vectors.documents.astype(np.float32)
    noise = np.random.default_rng(1).normal(0, 0.06 / np.sqrt(vectors.dimensions), once.shape)
    copies = [
        replace(one, id=f"copy of {one.id}", text=one.text.upper() if place % 2 else one.text)
        for place, one in enumerate(collection.documents)
    ]
    documents = [*collection.documents, *copies]
    twice = replace(vectors, documents=np.concatenate([once, once + noise]).astype(np.float32))
    cells = [collection.name, str(len(collection.queries))]
    with scratch_database(vectors.dimensions) as connection:
        load(connection, replace(collection, documents=documents), twice, "english", lambda _: None)
        provider = PostgresProvider(connection)
        for merged in (False, True):
            repeated = 0
            for one in collection.queries:
                question = vectors.queries[one.row].tolist(), one.text
                hits, _ = provider.find(
                    *question, top_k=MATCH_COUNT, fusion=DEFAULT, merge_duplicates=merged
                )
                repeated += len(hits) - len({hit.content.lower() for hit in hits})
            cells.append(f"{repeated / len(collection.queries):.2f}")
    print(line(cells), flush=True)


def main() -> None:
    """Print a Markdown table with a row for each collection."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("collections", type=Path, nargs="+", metavar="COLLECTION")
    parser.add_argument("--embeddings", choices=MODELS, default=MODELS[0])
    parser.add_argument("--like", action="store_true", help="Measure like_ids.")
    parser.add_argument("--duplicates", action="store_true", help="Measure merge_duplicates.")
    parser.add_argument("--queries", type=int, help="At most so many of each collection.")
    options = parser.parse_args()
    if options.duplicates:
        print_header(("collection", "queries", "repeated of 10", "with merge_duplicates"))
        for directory in options.collections:
            print_duplicates(directory, options.embeddings, options.queries)
        return
    if options.like:
        given = ("query", "with like_ids", "no query")
        print_header(("collection", "queries", "known", "fusion", *given))
        for directory in options.collections:
            print_like(directory, options.embeddings, options.queries)
        return

    names = [mode.name for mode in SEARCHES]
    differences = ("auto minus better leg", "p", "empty text answers")
    print_header(("collection", "queries", *names, *differences))
    measured = []
    for directory in options.collections:
        with loaded(directory, options.embeddings, options.queries) as (collection, searcher):
            found = measure(searcher.answer, collection, SEARCHES, reference=DEFAULT)
        measured.append(found)
        means = [found.mean(name, NDCG) for name in names]
        print(row(collection.name, means, [found]), flush=True)
    means = [sum(one.mean(name, NDCG) for one in measured) / len(measured) for name in names]
    print(row("all: mean, worst", means, measured))


if __name__ == "__main__":
    main()
