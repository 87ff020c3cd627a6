"""Measures of rankings per query by ir-measures, and a paired randomisation test.

The measures are those of trec_eval, as BEIR reports them: nDCG with linear gains; recall and
reciprocal rank over documents with a grade of at least 1.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from second_brain.extras import needed

NDCG = "nDCG@10"
MEASURES = (NDCG, "Recall@100", "MRR@10")
PERMUTATIONS = 10_000
SIGNIFICANT = 0.05
TEST = (
    "two-sided paired randomisation test over queries (Fisher 1935; Smucker, Allan and Carterette, "
    "CIKM 2007)"
)

# The sum of the same floats can differ after these digits when the order of addition differs.
_DIGITS = 9
_BATCH = 2_000_000


def require_library() -> None:
    """Raise MissingExtraError when the extra `evaluation` is not installed."""
    with needed("ir-measures", "evaluation"):
        import ir_measures  # noqa: F401


def judge(
    qrels: Mapping[str, Mapping[str, int]],
    rankings: Mapping[str, Sequence[str]],
    measures: Sequence[str] = MEASURES,
) -> dict[str, dict[str, float]]:
    """Return each measure's value for each query of the qrels; a query without a ranking gets 0.

    Raises MissingExtraError when the extra `evaluation` is not installed.
    """
    require_library()
    from ir_measures import iter_calc, parse_measure

    named = {
        parse_measure(name.replace("Recall", "R").replace("MRR", "RR")): name for name in measures
    }
    # trec_eval orders by score and breaks ties by id, so every rank needs a different score.
    scores = {
        query: {document: -float(rank) for rank, document in enumerate(ranking)}
        for query, ranking in rankings.items()
        if query in qrels
    }
    judged = {query: dict(grades) for query, grades in qrels.items()}
    values: dict[str, dict[str, float]] = {name: dict.fromkeys(qrels, 0.0) for name in measures}
    for found in iter_calc(list(named), judged, scores):
        values[named[found.measure]][found.query_id] = float(found.value)
    return values


def mean(values: Mapping[str, float]) -> float:
    """Return the mean of a measure's values for the queries."""
    return sum(values.values()) / len(values)


@dataclass(frozen=True, slots=True)
class Difference:
    """A mean difference between two runs over the same queries, and its p-value.

    `permutations` is the number of sign assignments tested: all of them when `exact`, else a random
    sample.
    """

    mean: float
    p_value: float
    permutations: int
    exact: bool

    @property
    def significant(self) -> bool:
        """Whether the p-value is below 0.05."""
        return self.p_value < SIGNIFICANT


def compare(
    ours: Mapping[str, float],
    theirs: Mapping[str, float],
    *,
    permutations: int = PERMUTATIONS,
    seed: int = 0,
) -> Difference:
    """Test whether two runs differ, by their values for the same queries.

    If the runs are equal, each sign of a query's difference is equally likely. The p-value is the
    share of sign assignments whose mean is at least as far from 0 as the observed mean. All
    assignments are tested if there are at most `permutations`. Otherwise a seeded sample is tested
    and the observed assignment is added to it (Phipson and Smyth 2010), so p is never 0.
    """
    if ours.keys() != theirs.keys() or not ours:
        raise ValueError("the two runs must have the same queries, at least one")
    differences = np.array([ours[query] - theirs[query] for query in ours])
    # A query with a difference of 0 does not change the sum.
    moved = differences[np.abs(differences) > 10.0**-_DIGITS]
    exact = 2 ** len(moved) <= permutations
    count = 2 ** len(moved) if exact else permutations
    p_value = 1.0
    if len(moved) > 1:
        from scipy.stats import permutation_test

        p_value = permutation_test(
            [moved],
            lambda signed, axis: np.abs(signed.sum(axis)).round(_DIGITS),
            permutation_type="samples",
            alternative="greater",
            n_resamples=permutations,
            batch=max(1, _BATCH // len(moved)),
            rng=seed,
        ).pvalue
    return Difference(float(differences.mean()), float(p_value), count, exact)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the percentile `share` (0 to 100) of the values, with linear interpolation."""
    return float(np.percentile(values, share)) if values else 0.0
