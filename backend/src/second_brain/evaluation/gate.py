"""A gate for CI: whether a measured search is good enough, and the questions that fell."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from second_brain.errors import ConfigurationError
from second_brain.evaluation.collection import Questions
from second_brain.evaluation.comparison import Comparison
from second_brain.evaluation.metrics import NDCG


def verdict(
    found: Comparison, floors: Mapping[str, float], before: Mapping[str, float], tolerance: float
) -> tuple[list[str], list[tuple[str, float, float]]]:
    """Return why the run fails, and the questions that fell, with their nDCG@10 before and now.

    `floors` are the least means of measures; `before` has the nDCG@10 of each query in a stored
    run, below whose mean that of this one may be by the tolerance.
    """
    means = {measure: found.mean(found.reference, measure) for measure in found.measures}
    failures = [
        f"{name} is {means[name]:.3f}, below {floor:g}"
        for name, floor in floors.items()
        if means[name] < floor
    ]
    stored = sum(before.values()) / max(len(before), 1)
    if (lost := stored - means[NDCG]) > tolerance + 1e-9:
        failures.append(
            f"{NDCG} is {means[NDCG]:.3f}, {lost:.3f} below the baseline's {stored:.3f}"
        )
    now = found.values[found.reference][NDCG]
    asked = [
        (query.text, before.get(query.id, 0), now[query.id]) for query in found.collection.queries
    ]
    fell = sorted((one for one in asked if one[2] < one[1]), key=lambda one: one[2] - one[1])
    return failures, fell


def read_baseline(path: Path | None, questions: Questions, reference: str) -> dict[str, float]:
    """Return the nDCG@10 of each query in a run that `corpus eval --json` wrote.

    Raises ConfigurationError for one of other questions, judgments or documents.
    """
    if path is None:
        return {}
    try:
        stored: dict[str, Any] = json.loads(path.read_text("utf-8"))
        before = {one["query"]: float(one[reference]) for one in stored["per_query"]}
        if stored["fingerprint"] == questions.fingerprint:
            return before
        fault = "is of another corpus or other questions"
    except OSError as error:
        fault = f"cannot be read: {error.strerror}"
    except (ValueError, KeyError, TypeError):
        fault = f"is no result of corpus eval with the mode {reference}"
    raise ConfigurationError(
        f"{path} {fault}",
        remedy="Give a file that `corpus eval --json` has written of the same questions, with the "
        "same options.",
    )
