"""The fit of a corpus's fusion and weights, or of its field weights, to its judged questions.

The RPC runs every question with every setting, so what is measured is what a caller gets, and no
formula of a fusion stands here.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import sqrt
from statistics import stdev

from second_brain.errors import ConfigurationError
from second_brain.evaluation.collection import Query, Questions
from second_brain.evaluation.comparison import Ask, moved
from second_brain.evaluation.metrics import NDCG, judge, mean
from second_brain.evaluation.runs import DEFAULT, Run, Searcher, Settings, rankings
from second_brain.services.corpus_settings import CorpusSettings
from second_brain.services.write import KnowledgeWriter

FEWEST = 20
"""Judged questions; a fit to fewer does not improve other questions."""
ENOUGH = 30
"""Judged questions; more of them change a fit little."""

# The number of hits that an application requests. A larger top_k would enlarge the small pools.
_DEPTH = 10
# Not 0: a caller without an embedding, or a question without known words, still gets hits.
_NEARLY_NONE = 1e-6
VECTOR = Settings("auto", 1.0, _NEARLY_NONE)
"""The order of the vector leg; a hit of the text leg alone comes after all others."""
TEXT = Settings("auto", _NEARLY_NONE, 1.0)
"""The order of the text leg; a hit of the vector leg alone comes after all others."""

# Equal weights first: of settings with equal means, the first one is chosen. Shares of other
# fusions would only add ways to fit by chance (docs/ranking.md has the figures).
_SHARES = sorted(range(1, 10), key=lambda share: abs(share - 5))
GRID = (
    DEFAULT,
    *(Settings("auto", share / 10, (10 - share) / 10) for share in _SHARES),
    VECTOR,
    TEXT,
)
"""The settings to try, those in use first."""


BM25 = tuple((k1, b) for k1 in (0.8, 1.2, 1.6) for b in (0.4, 0.75))
"""The pairs of k1 and b to try, with the best fusion and weights."""
SURE = 2
"""Standard errors of a gain by k1 and b: a second choice on the same questions must be surer."""
FIELD_WEIGHTS = (1, 2, 3)
"""How often heading and title count, to try."""
MOST_CHUNKS = 1000
"""Of a corpus whose field weights are tried. A search of no more counts the statistics itself."""
_COUNT = """
select count(*)
  from (
    select from public.knowledge_chunks as chunk where chunk.status = 'active' limit %(most)s + 1
  ) as one
"""


@dataclass(frozen=True)
class Tuning:
    """A fit: `values` has the nDCG@10 of each setting for each question, `best` is the best one.

    `gain` is the mean gain of `best` over the settings in use, `error` the standard error of the
    paired differences. Both are of the questions that chose `best`. `constants` are k1 and b, if
    they gain more, then `reached` are the values with them, and `in_use` what they were tried with.
    """

    collection: Questions
    values: dict[Settings, dict[str, float]]
    best: Settings
    gain: float
    error: float
    constants: tuple[float, float] | None = None
    reached: dict[str, float] = field(default_factory=dict)
    in_use: CorpusSettings = field(default_factory=CorpusSettings)

    @property
    def is_better(self) -> bool:
        """Whether the gain is above one standard error."""
        return self.gain > self.error

    @property
    def has_enough(self) -> bool:
        """Whether there are enough questions for a fit that improves others, too."""
        return len(self.collection.queries) >= FEWEST

    @property
    def storable(self) -> CorpusSettings | None:
        """What to store; None without a gain above its error, or with too few questions."""
        return self.forced if self.is_better and self.has_enough else None

    @property
    def forced(self) -> CorpusSettings | None:
        """The best settings, whatever their gain; None if they are in use.

        The weights add up to 2, as the default weights do.
        """
        best, found = self.best, None
        if best.vector_weight is not None and best.text_weight is not None:
            found = CorpusSettings(
                fusion=best.fusion,
                vector_weight=round(2 * best.vector_weight, 9),
                text_weight=round(2 * best.text_weight, 9),
            )
        if self.constants is None:
            return found
        k1, b = self.constants
        return (found or self.in_use).model_copy(update={"bm25_k1": k1, "bm25_b": b})

    @property
    def mean_of_best(self) -> float:
        """The mean nDCG@10 of the best settings, with their constants."""
        return mean(self.reached or self.values[self.best])

    def mean(self, settings: Settings) -> float:
        """Return the mean nDCG@10 of a setting."""
        return mean(self.values[settings])

    def moved(self, count: int) -> tuple[list[tuple[Query, float]], ...]:
        """Return the questions that gain and that lose most nDCG@10 by the best settings."""
        ours, theirs = self.reached or self.values[self.best], self.values[DEFAULT]
        return moved(self.collection.queries, ours, theirs, count)


def tune(
    answer: Ask, collection: Questions, *, advance: Callable[[], None] = lambda: None
) -> Tuning:
    """Search for every question with every setting, and fit.

    `advance` is called after each of `searches(collection)` searches.
    """
    return choose(
        collection, {settings: _ndcg(answer, collection, settings, advance) for settings in GRID}
    )


def try_constants(
    searcher: Searcher, fit: Tuning, name: str, advance: Callable[[], None] = lambda: None
) -> Tuning:
    """Search with the best settings and each pair of BM25 in the collection `name`.

    Each pair is stored in a transaction that is rolled back. `advance` is called after each of
    `len(BM25)` searches for each question.
    """
    connection = searcher.database.connection
    writer = KnowledgeWriter(connection, schema=searcher.database.install.schema)
    stored = writer.settings()
    in_use = CorpusSettings(collection=name).among(
        [*stored, CorpusSettings().among(stored).model_copy(update={"collection": name})]
    )
    fit = replace(fit, in_use=in_use)
    tried = {}
    for pair in BM25:
        with connection.transaction(force_rollback=True):
            found = replace(fit, constants=pair).forced or in_use
            writer.set_settings(found.model_copy(update={"collection": name}))
            tried[pair] = _ndcg(searcher.answer, fit.collection, DEFAULT, advance)
    best = max(BM25, key=lambda pair: round(sum(tried[pair].values()), 9))
    gain, error = paired_gain(tried[best], fit.values[fit.best])
    if gain <= SURE * error:
        return fit
    gain, error = paired_gain(tried[best], fit.values[DEFAULT])
    return replace(fit, constants=best, reached=tried[best], gain=gain, error=error)


def searches(collection: Questions) -> int:
    """Return the number of searches of `tune`."""
    return len(GRID) * len(collection.queries)


def _ndcg(
    answer: Ask,
    collection: Questions,
    settings: Settings,
    advance: Callable[[], None] = lambda: None,
) -> dict[str, float]:
    run: Run = {}
    for query in collection.queries:
        run[query.id] = answer(query, "hybrid", settings, _DEPTH)
        advance()
    return judge(collection.qrels, rankings(run), (NDCG,))[NDCG]


@dataclass(frozen=True)
class FieldGains:
    """The nDCG@10 with the field weights in use, and the gain of each of FIELD_WEIGHTS.

    A gain is a mean of paired differences, with its standard error.
    """

    collection: Questions
    in_use: float
    gains: dict[int, tuple[float, float]]

    @property
    def best(self) -> int | None:
        """The weight with the highest gain, if that is above its standard error."""
        best = max(self.gains, key=lambda weight: self.gains[weight][0])
        gain, error = self.gains[best]
        return best if gain > error and len(self.collection.queries) >= FEWEST else None


def try_fields(searcher: Searcher, collection: Questions, name: str) -> FieldGains:
    """Search with each of FIELD_WEIGHTS for heading and title alike, in the collection `name`.

    The chunks are rewritten in transactions that are rolled back; writers of these chunks wait for
    each. Raises ConfigurationError for a corpus of more than MOST_CHUNKS.
    """
    connection = searcher.database.connection
    writer = KnowledgeWriter(connection, schema=searcher.database.install.schema)
    row = searcher.database.execute(_COUNT, {"most": MOST_CHUNKS}).fetchone()
    if row is None or row[0] > MOST_CHUNKS:
        raise ConfigurationError(
            f"the corpus has more than {MOST_CHUNKS:,} chunks, too many to rewrite for a trial",
            remedy="Run `second-brain corpus eval` before and after `second-brain corpus settings "
            "fields --title-weight 2`.",
        )
    before = _ndcg(searcher.answer, collection, DEFAULT)
    stored = CorpusSettings(collection=name).among(writer.settings())
    gains = {}
    for weight in FIELD_WEIGHTS:
        with connection.transaction(force_rollback=True):
            tried = {"heading_weight": weight, "title_weight": weight}
            writer.set_fields(stored.model_copy(update=tried))
            if writer.rewrite_chunks(MOST_CHUNKS):
                raise ConfigurationError("other transactions have locked chunks: try again later")
            after = _ndcg(searcher.answer, collection, DEFAULT)
        gains[weight] = paired_gain(after, before)
    return FieldGains(collection, mean(before), gains)


def paired_gain(after: dict[str, float], before: dict[str, float]) -> tuple[float, float]:
    """Return the mean of the paired differences, and its standard error."""
    differences = [after[query] - before[query] for query in before]
    return sum(differences) / len(differences), stdev(differences) / sqrt(len(differences))


def choose(collection: Questions, values: dict[Settings, dict[str, float]]) -> Tuning:
    """Choose the setting with the highest mean over the questions; those in use win a tie.

    Raises ValueError for fewer than two questions.
    """
    queries = [query.id for query in collection.queries]
    if len(queries) < 2:
        raise ValueError("tuning needs at least two questions")
    sums = {one: sum(found[query] for query in queries) for one, found in values.items()}
    # The same numbers have another sum in another order: these are equal.
    best = max(sums, key=lambda one: round(sums[one], 9))
    gain, error = paired_gain(values[best], values[DEFAULT])
    return Tuning(collection=collection, values=values, best=best, gain=gain, error=error)


def store(
    writer: KnowledgeWriter,
    collection: str,
    tuned: CorpusSettings,
    questions: Questions | None = None,
) -> CorpusSettings:
    """Store settings of a collection, which keeps the name of its embedding model.

    It keeps its k1 and b, too, if the new settings have none. `questions` are those that the
    settings were measured on.
    """
    before = CorpusSettings(collection=collection).among(writer.settings())
    measured_on = None
    if questions is not None:
        measured_on = f"{len(questions.queries)} questions of {questions.name}"[:200]
    update: dict[str, str | float | None] = {
        "collection": collection,
        "embedding_model": before.embedding_model,
    }
    if tuned.bm25_k1 is None and tuned.bm25_b is None:
        update |= {"bm25_k1": before.bm25_k1, "bm25_b": before.bm25_b}
    return writer.set_settings(tuned.model_copy(update=update), measured_on=measured_on)
