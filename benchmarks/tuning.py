"""What tuning by few judged questions gains on other questions, on test collections.

Up to 300 random queries of a collection are searched with each setting of `corpus tune`, and with
those that may be in use. Samples of 10, 20 and 30 then choose a setting as that command does, but
with no least number of questions. A cell has the mean and the worst change of nDCG@10 on the
queries that are left, over 20 samples of each collection, and how many fits are taken.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks.bench_report import line
from benchmarks.quality import answered, loaded
from second_brain.evaluation import tuning
from second_brain.evaluation.collection import Collection
from second_brain.evaluation.comparison import Mode
from second_brain.evaluation.runs import DEFAULT, Settings

IN_USE = {name: Settings(name, 0.5, 0.5) for name in ("auto", "relative_score", "rrf")}
COUNTS, SAMPLES, MOST = (10, 20, 30), 20, 300
Answers = tuple[Collection, dict[Settings, dict[str, float]]]


def cell(answers: Sequence[Answers], in_use: Settings, count: int) -> str:
    """Return the mean and the worst change, and the number of fits that are taken."""
    changes: list[float | None] = []
    for collection, values in answers:
        for seed in range(SAMPLES):
            sample = collection.sample(count, seed)
            fit = tuning.choose(sample, {DEFAULT: values[in_use]} | values)
            others = [one.id for one in collection.queries if one.id not in sample.qrels]
            gains = [fit.values[fit.best][one] - values[in_use][one] for one in others]
            changes.append(sum(gains) / len(gains) if fit.is_better else None)
    found = [change or 0.0 for change in changes]
    taken = len(found) - changes.count(None)
    return f"{sum(found) / len(found):+.4f}, {min(found):+.4f}, {taken} of {len(found)}"


def main() -> None:
    """Print a Markdown table with a row for each collection and each fusion in use."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("collections", type=Path, nargs="+", metavar="COLLECTION")
    parser.add_argument("--embeddings", default="minilm384", choices=("minilm384", "wordllama"))
    options = parser.parse_args()
    answers: dict[str, Answers] = {}
    for directory in options.collections:
        with loaded(directory, options.embeddings, MOST) as (collection, searcher):
            tried = {one: Mode("", settings=one) for one in (*tuning.GRID[1:], *IN_USE.values())}
            answers[directory.name] = collection, answered(collection, searcher, tried)
    header = ("collection", "in use", *(f"{count}: mean, worst, taken" for count in COUNTS))
    print(line(header), line(["---"] * len(header)), sep="\n")
    rows = [*((name, [one]) for name, one in answers.items()), ("all", [*answers.values()])]
    for name, of in rows:
        for fusion, settings in IN_USE.items():
            print(line((name, fusion, *(cell(of, settings, count) for count in COUNTS))))


if __name__ == "__main__":
    main()
