"""Choice of search arguments by cross-validation over the queries of a test collection.

The RPC runs every query with every setting. Each fold is scored with the setting that was best on
the other folds, so the reported figure does not come from the queries that chose the setting.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from random import Random

from second_brain.evaluation.collection import Questions
from second_brain.evaluation.comparison import LEGS, Ask
from second_brain.evaluation.metrics import NDCG, Difference, compare, judge, mean
from second_brain.evaluation.runs import DEFAULT, Run, Settings, rankings
from second_brain.services.arguments import FUSIONS, Leg
from second_brain.services.corpus_settings import CorpusSettings
from second_brain.services.write import KnowledgeWriter

FOLDS = 5

# The number of hits that an application requests. A larger top_k would enlarge the small pools.
_DEPTH = 10
_VECTOR_SHARES = (0.2, 0.35, 0.5, 0.65, 0.8)
_RRF_KS = (10.0, 60.0)
_POOL_SIZES = (50, 200)


@dataclass(frozen=True)
class Tuning:
    """The result of tuning; each mean is the mean nDCG@10 over the queries.

    `grid` has the mean of each setting, and `best` has the highest. `recommended` is `best`, or the
    defaults if cross-validation shows no gain over them. `chosen` are the settings chosen in the
    folds. `validated` is their mean, each measured on the fold that did not choose it. `gains` are
    the differences of `validated` from the defaults and from each leg alone.
    """

    collection: Questions
    grid: dict[Settings, float]
    legs: dict[Leg, float]
    best: Settings
    recommended: Settings
    chosen: tuple[Settings, ...]
    validated: float
    gains: dict[str, Difference]

    @property
    def default(self) -> float:
        """The mean of the default settings."""
        return self.grid[DEFAULT]

    @property
    def storable(self) -> CorpusSettings | None:
        """What to store; None if the gain over the defaults is not significant."""
        gain = self.gains["default"]
        return self.forced if gain.mean > 0 and gain.significant else None

    @property
    def forced(self) -> CorpusSettings | None:
        """The best settings, even if nothing shows a gain; None if these are the defaults.

        The weights add up to 2, as the default weights do.
        """
        best = self.best
        if best == DEFAULT:
            return None
        return CorpusSettings(
            fusion=best.fusion,
            vector_weight=1.0 if best.vector_weight is None else round(2 * best.vector_weight, 9),
            text_weight=1.0 if best.text_weight is None else round(2 * best.text_weight, 9),
        )

    @property
    def not_beaten(self) -> tuple[str, ...]:
        """The legs that the tuned hybrid does not significantly beat."""
        return tuple(
            leg
            for leg in ("vector", "text")
            if not (self.gains[leg].mean > 0 and self.gains[leg].significant)
        )


def grid(*, storable: bool = False) -> list[Settings]:
    """Return the settings to try, the defaults first.

    With `storable`, only those that `set_knowledge_settings` stores: fusion and weights.
    """
    settings = [DEFAULT]
    pool_sizes: Sequence[int | None] = (None,) if storable else _POOL_SIZES
    for fusion in FUSIONS:
        ks: Sequence[float | None] = (None,)
        if fusion == "rrf" and not storable:
            ks = _RRF_KS
        settings += [
            Settings(
                fusion=fusion,
                vector_weight=share,
                text_weight=round(1 - share, 2),
                rrf_k=k,
                pool_size=pool_size,
            )
            for share, k, pool_size in product(_VECTOR_SHARES, ks, pool_sizes)
        ]
    return settings


def tune(
    answer: Ask,
    collection: Questions,
    settings: Sequence[Settings],
    *,
    seed: int = 0,
    advance: Callable[[], None] = lambda: None,
) -> Tuning:
    """Run every query with every setting and each leg alone, and choose by cross-validation.

    `settings` must contain the defaults. `advance` is called after each of
    `searches(collection, settings)` searches. Raises ValueError for fewer than two queries.
    """

    def ndcg(leg: Leg, setting: Settings) -> dict[str, float]:
        run: Run = {}
        for query in collection.queries:
            run[query.id] = answer(query, leg, setting, _DEPTH)
            advance()
        return judge(collection.qrels, rankings(run), (NDCG,))[NDCG]

    legs: dict[Leg, dict[str, float]] = {mode.leg: ndcg(mode.leg, DEFAULT) for mode in LEGS}
    values = {one: ndcg("hybrid", one) for one in settings}
    return choose(collection, values, legs, seed=seed)


def searches(collection: Questions, settings: Sequence[Settings]) -> int:
    """Return the number of searches of `tune`: each query with each setting and two legs."""
    return (len(settings) + 2) * len(collection.queries)


def choose(
    collection: Questions,
    values: dict[Settings, dict[str, float]],
    legs: dict[Leg, dict[str, float]],
    *,
    seed: int = 0,
) -> Tuning:
    """Choose a setting by the nDCG@10 of each setting for each query; see `Tuning`."""
    queries = [query.id for query in collection.queries]
    if len(queries) < 2:
        raise ValueError("cross-validation needs at least two queries")
    shuffled = Random(seed).sample(queries, len(queries))  # noqa: S311
    folds = [shuffled[fold::FOLDS] for fold in range(min(FOLDS, len(queries)))]

    def best_on(sample: Sequence[str]) -> Settings:
        # max returns the first of equal settings, and the defaults are first.
        return max(values, key=lambda one: sum(values[one][query] for query in sample))

    chosen = []
    validated: dict[str, float] = {}
    for fold in folds:
        choice = best_on([query for query in queries if query not in fold])
        chosen.append(choice)
        validated.update({query: values[choice][query] for query in fold})
    gains = {"default": compare(validated, values[DEFAULT], seed=seed)}
    gains |= {leg: compare(validated, legs[leg], seed=seed) for leg in legs}
    best = best_on(queries)
    return Tuning(
        collection=collection,
        grid={one: mean(found) for one, found in values.items()},
        legs={leg: mean(found) for leg, found in legs.items()},
        best=best,
        recommended=best if gains["default"].mean > 0 else DEFAULT,
        chosen=tuple(chosen),
        validated=mean(validated),
        gains=gains,
    )


def store(
    writer: KnowledgeWriter, collection: str, tuned: CorpusSettings, questions: Questions
) -> CorpusSettings:
    """Store what was tuned for a collection, which keeps the name of its embedding model."""
    models = {one.collection: one.embedding_model for one in writer.settings()}
    measured_on = f"{len(questions.queries)} questions of {questions.name}"[:200]
    update = {"collection": collection, "embedding_model": models.get(collection)}
    return writer.set_settings(tuned.model_copy(update=update), measured_on=measured_on)
