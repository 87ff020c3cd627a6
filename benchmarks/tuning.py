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
from benchmarks.quality import MODELS, loaded
from second_brain.evaluation import tuning
from second_brain.evaluation.comparison import Comparison, Mode, measure
from second_brain.evaluation.metrics import NDCG
from second_brain.evaluation.runs import DEFAULT, Settings

IN_USE = {name: Settings(name, 0.5, 0.5) for name in ("auto", "relative_score", "rrf")}
MODES = [Mode(str(one), settings=one) for one in {*tuning.GRID[1:], *IN_USE.values()}]
COUNTS, SAMPLES, MOST = (10, 20, 30), 20, 300


def cell(measured: Sequence[Comparison], in_use: Settings, count: int) -> str:
    """Return the mean and the worst change, and the number of fits that are taken."""
    changes: list[float | None] = []
    for found in measured:
        values = {one.settings: found.values[one.name][NDCG] for one in MODES}
        tried = {one: values[in_use if one == DEFAULT else one] for one in tuning.GRID}
        for seed in range(SAMPLES):
            sample = found.collection.sample(count, seed)
            fit = tuning.choose(sample, tried)
            others = [one.id for one in found.collection.queries if one.id not in sample.qrels]
            gains = [tried[fit.best][one] - tried[DEFAULT][one] for one in others]
            changes.append(sum(gains) / len(gains) if fit.is_better else None)
    gained = [change or 0.0 for change in changes]
    taken = len(gained) - changes.count(None)
    return f"{sum(gained) / len(gained):+.4f}, {min(gained):+.4f}, {taken} of {len(gained)}"


def main() -> None:
    """Print a Markdown table with a row for each collection and each fusion in use."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("collections", type=Path, nargs="+", metavar="COLLECTION")
    parser.add_argument("--embeddings", choices=MODELS, default=MODELS[0])
    options = parser.parse_args()
    measured = []
    for directory in options.collections:
        with loaded(directory, options.embeddings, MOST) as (collection, searcher):
            measured.append(measure(searcher.answer, collection, MODES))
    header = ("collection", "in use", *(f"{count}: mean, worst, taken" for count in COUNTS))
    print(line(header), line(["---"] * len(header)), sep="\n")
    for name, rows in [*((one.collection.name, [one]) for one in measured), ("all", measured)]:
        for fusion, settings in IN_USE.items():
            print(line((name, fusion, *(cell(rows, settings, count) for count in COUNTS))))


if __name__ == "__main__":
    main()
