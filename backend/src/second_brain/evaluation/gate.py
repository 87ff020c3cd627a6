"""A gate for CI: whether a measured search is good enough, and the questions that fell."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from second_brain.errors import ConfigurationError
from second_brain.evaluation.collection import Questions
from second_brain.evaluation.comparison import Comparison
from second_brain.evaluation.metrics import NDCG


@dataclass(frozen=True)
class Gate:
    """What a run must reach: the least mean of measures, and a stored run within a tolerance.

    Means are those of the mode `reference`.
    """

    floors: Mapping[str, float]
    baseline: Mapping[str, Any] | None
    tolerance: float

    def verdict(self, found: Comparison) -> tuple[list[str], list[tuple[str, float, float]]]:
        """Return why the run fails, and the questions whose nDCG@10 fell: before and now."""
        now, failures = found.values[found.reference][NDCG], list[str]()
        for measure, floor in self.floors.items():
            if (mean := found.mean(found.reference, measure)) < floor:
                failures.append(f"{measure} is {mean:.3f}, below {floor:g}")
        if self.baseline is None:
            return failures, []
        before = {one["query"]: one[found.reference] for one in self.baseline["per_query"]}
        mean, stored = found.mean(found.reference, NDCG), sum(before.values()) / len(before)
        if stored - mean > self.tolerance + 1e-9:
            failures.append(
                f"{NDCG} is {mean:.3f}, {stored - mean:.3f} below the baseline's {stored:.3f}"
            )
        texts = {query.id: query.text for query in found.collection.queries}
        fell = [(texts[one], before[one], now[one]) for one in texts if now[one] < before[one]]
        return failures, sorted(fell, key=lambda one: one[2] - one[1])


def read_baseline(path: Path, questions: Questions, reference: str) -> dict[str, Any]:
    """Return a run that `corpus eval --json` wrote. Raises ConfigurationError for another corpus.

    That is one with other questions, judgments or documents: their values do not compare.
    """
    remedy = f"Write it again: second-brain corpus eval --json > {path}"
    try:
        baseline: dict[str, Any] = json.loads(path.read_text("utf-8"))
        fingerprint, modes = baseline["fingerprint"], baseline["modes"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(f"{path} is no result of corpus eval", remedy=remedy) from error
    if fingerprint != questions.fingerprint:
        raise ConfigurationError(f"{path} is of another corpus or other questions", remedy=remedy)
    if reference not in modes:
        raise ConfigurationError(f"{path} has no mode {reference}", remedy=remedy)
    return baseline
