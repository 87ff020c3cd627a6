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
has the means over all collections and the worst difference. Latency is not measured.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.bench_report import line
from second_brain.evaluation import collection as collections
from second_brain.evaluation import metrics, runs
from second_brain.evaluation.collection import Collection, Vectors
from second_brain.evaluation.metrics import Difference
from second_brain.evaluation.runs import Run, Settings
from second_brain.evaluation.scratch import load, scratch_database
from second_brain.models import load_embedder
from second_brain.services.arguments import Leg
from second_brain.services.install import Database

MEASURE = "nDCG@10"
MATCH_COUNT = 10
RRF = Settings(fusion="rrf", vector_weight=1.0, text_weight=1.0, rrf_k=60.0)
DEFAULT = "auto"
SEARCHES: dict[str, tuple[Leg, Settings]] = {
    "vector": ("vector", Settings()),
    "text": ("text", Settings()),
    DEFAULT: ("hybrid", Settings(fusion="auto")),
    "rrf 1/1 k 60": ("hybrid", RRF),
    "relative_score": ("hybrid", Settings(fusion="relative_score")),
}
HEADER = (
    "collection",
    "queries",
    *SEARCHES,
    "auto minus better leg",
    "p",
    "empty text answers",
)


@dataclass(frozen=True)
class Figures:
    """A collection's means by search, and the differences of auto from each leg."""

    collection: str
    queries: int
    embedding_model: str
    means: dict[str, float]
    default_minus: dict[str, Difference]
    better_leg: str
    empty_text_answers: int

    def cells(self) -> list[str]:
        """Return the collection's row of the table."""
        gain = self.default_minus[self.better_leg]
        return [
            self.collection,
            str(self.queries),
            *(f"{mean:.4f}" for mean in self.means.values()),
            f"{gain.mean:+.4f} ({self.better_leg})",
            f"{gain.p_value:.4f}",
            str(self.empty_text_answers),
        ]


def read(directory: Path, embeddings: str) -> tuple[Collection, Vectors]:
    """Read a collection with the embeddings beside it, or embed it with WordLlama."""
    collection = collections.load(directory)
    if embeddings == "wordllama":
        return collection, collections.embed(collection, load_embedder(embeddings))
    documents, queries = (directory / f"{of}.{embeddings}.f16.npy" for of in ("docs", "queries"))
    return collection, collections.read_vectors(collection, documents, queries)


def measure(collection: Collection, vectors: Vectors, language: str) -> Figures:
    """Load a collection into a scratch database, ask every query by every search, and judge."""
    with scratch_database(vectors.dimensions) as connection:
        load(connection, collection, vectors, language, lambda doing: None)
        searcher = runs.Searcher(Database(connection), vectors.queries, one_per_document=False)
        answers: dict[str, Run] = {
            name: {
                query.id: searcher.answer(query, leg, settings, MATCH_COUNT)
                for query in collection.queries
            }
            for name, (leg, settings) in SEARCHES.items()
        }
    values = {
        name: metrics.judge(collection.qrels, runs.rankings(run))[MEASURE]
        for name, run in answers.items()
    }
    means = {name: sum(found.values()) / len(found) for name, found in values.items()}
    return Figures(
        collection.name,
        len(collection.queries),
        vectors.model,
        means,
        {leg: metrics.compare(values[DEFAULT], values[leg]) for leg in ("vector", "text")},
        max(("vector", "text"), key=means.__getitem__),
        sum(not answer.documents for answer in answers["text"].values()),
    )


def summary(measured: Sequence[Figures]) -> list[str]:
    """Return the means over the collections, and the worst difference from the better leg."""
    worst = min(measured, key=lambda one: one.default_minus[one.better_leg].mean)
    gain = worst.default_minus[worst.better_leg]
    means = [sum(one.means[name] for one in measured) / len(measured) for name in SEARCHES]
    return [
        "all: mean, worst",
        str(sum(one.queries for one in measured)),
        *(f"{mean:.4f}" for mean in means),
        f"{gain.mean:+.4f} ({worst.collection})",
        f"{gain.p_value:.4f}",
        str(sum(one.empty_text_answers for one in measured)),
    ]


def main() -> None:
    """Print a Markdown table with a row for each collection, or a line of JSON for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("collections", type=Path, nargs="+", metavar="COLLECTION")
    parser.add_argument(
        "--embeddings",
        choices=("minilm384", "wordllama"),
        default="minilm384",
        help="docs.minilm384.f16.npy and queries.minilm384.f16.npy in the folder, or WordLlama",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, with both differences")
    options = parser.parse_args()

    measured: list[Figures] = []
    if not options.json:
        print(line(HEADER))
        print(line(["---"] * len(HEADER)), flush=True)
    for directory in options.collections:
        named = directory / "language"
        language = named.read_text("utf-8").strip() if named.is_file() else "english"
        figures = measure(*read(directory, options.embeddings), language)
        measured.append(figures)
        print(json.dumps(asdict(figures)) if options.json else line(figures.cells()), flush=True)
    if not options.json:
        print(line(summary(measured)))


if __name__ == "__main__":
    main()
