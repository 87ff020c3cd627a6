"""nDCG@10 of hybrid search and of its legs on test collections, with one setting for all of them.

Each collection (BEIR's layout; a file `language` names another language than English) is loaded
into an embedded scratch database, a chunk a document, and each of its queries is asked through the
provider by vector alone, by text alone, and by both with fusion `auto`, with plain RRF (weights 1
and 1, k 60) and with `relative_score`. A search asks for 10 hits, as an application does, so the
pools keep their default of 50; `second-brain corpus eval` asks for 100, which raises them to 100
and changes what is fused.

The figures are means over the queries with a relevant document; every judgment counts as it is
written. Beside them: `auto` minus the better leg (the one with the higher mean) with the p-value of
the paired randomisation test. The last line has the means over all collections and the worst
difference. Latency is not measured.
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from benchmarks.bench_report import line
from second_brain.evaluation import collection as collections
from second_brain.evaluation import metrics
from second_brain.evaluation.collection import Collection
from second_brain.evaluation.comparison import LEGS, Mode
from second_brain.evaluation.metrics import NDCG, Difference
from second_brain.evaluation.runs import Searcher, Settings, rankings
from second_brain.evaluation.scratch import load, scratch_database
from second_brain.models import load_embedder
from second_brain.services.install import Database

MATCH_COUNT = 10
RRF = Settings(fusion="rrf", vector_weight=1.0, text_weight=1.0, rrf_k=60.0)
DEFAULT = "auto"
SEARCHES = {
    **{mode.name: mode for mode in LEGS},
    DEFAULT: Mode(DEFAULT, settings=Settings(fusion="auto")),
    "rrf 1/1 k 60": Mode("rrf", settings=RRF),
    "relative_score": Mode("relative_score", settings=Settings(fusion="relative_score")),
}
HEADER = ("collection", "queries", *SEARCHES, "auto minus better leg", "p")
Name = TypeVar("Name")


@dataclass(frozen=True)
class Figures:
    """A collection's means by search, and the differences of auto from each leg."""

    collection: str
    queries: int
    embedding_model: str
    means: dict[str, float]
    default_minus: dict[str, Difference]
    better_leg: str

    def cells(self) -> list[str]:
        """Return the collection's row of the table."""
        gain = self.default_minus[self.better_leg]
        return [
            self.collection,
            str(self.queries),
            *(f"{mean:.4f}" for mean in self.means.values()),
            f"{gain.mean:+.4f} ({self.better_leg})",
            f"{gain.p_value:.4f}",
        ]


@contextmanager
def loaded(
    directory: Path, embeddings: str, most: int | None = None
) -> Iterator[tuple[Collection, Searcher]]:
    """Load a collection into a scratch database, with at most that many of its queries.

    The embeddings are those beside it, or WordLlama's.
    """
    collection = collections.load(directory).sample(most, 0)
    if embeddings == "wordllama":
        vectors = collections.embed(collection, load_embedder(embeddings))
    else:
        files = (directory / f"{of}.{embeddings}.f16.npy" for of in ("docs", "queries"))
        vectors = collections.read_vectors(collection, *files)
    named = directory / "language"
    language = named.read_text("utf-8").strip() if named.is_file() else "english"
    with scratch_database(vectors.dimensions) as connection:
        load(connection, collection, vectors, language, lambda doing: None)
        yield collection, Searcher(Database(connection), vectors.queries, one_per_document=False)


def answered(
    collection: Collection, searcher: Searcher, searches: Mapping[Name, Mode]
) -> dict[Name, dict[str, float]]:
    """Ask every query by every search, and return nDCG@10 by search and query."""
    values = {}
    for name, mode in searches.items():
        run = {
            query.id: searcher.answer(query, mode.leg, mode.settings, MATCH_COUNT)
            for query in collection.queries
        }
        values[name] = metrics.judge(collection.qrels, rankings(run), (NDCG,))[NDCG]
    return values


def measure(directory: Path, embeddings: str) -> Figures:
    """Ask every query of a collection by every search, and judge."""
    with loaded(directory, embeddings) as (collection, searcher):
        values = answered(collection, searcher, SEARCHES)
    means = {name: metrics.mean(found) for name, found in values.items()}
    return Figures(
        collection.name,
        len(collection.queries),
        embeddings,
        means,
        {leg: metrics.compare(values[DEFAULT], values[leg]) for leg in ("vector", "text")},
        max(("vector", "text"), key=means.__getitem__),
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
        figures = measure(directory, options.embeddings)
        measured.append(figures)
        print(json.dumps(asdict(figures)) if options.json else line(figures.cells()), flush=True)
    if not options.json:
        print(line(summary(measured)))


if __name__ == "__main__":
    main()
