"""Ways to search, measured on the same questions and compared.

The questions are those of a test collection in a scratch database, or those judged in a database
and searched in its own corpus. A hit is judged by its document.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from second_brain.evaluation.collection import Query, Questions
from second_brain.evaluation.metrics import NDCG, Difference, compare, judge, mean, percentile
from second_brain.evaluation.runs import DEFAULT, Answer, Run, Settings, rankings
from second_brain.models.rerankers import CachedReranker, Reranker
from second_brain.services import arguments
from second_brain.services.arguments import Leg

CONDENSED = "nDCG@10 condensed"
"""nDCG@10 of the judged hits alone: the others are left out of the list, not counted as wrong."""
STORED = "stored"
RERANK = "rerank"
"""The name of the reference with its first hits in the order of a reranker."""

_WARM_UP = 10

Ask = Callable[..., Answer]
"""Searches for a question with a leg, settings, a number of hits and a reranker (see Searcher)."""


@dataclass(frozen=True, slots=True)
class Mode:
    """One way to search: a leg alone, or both with settings; the name is for tables."""

    name: str
    leg: Leg = "hybrid"
    settings: Settings = DEFAULT
    reranker: Reranker | None = None


LEGS = (Mode("vector", "vector"), Mode("text", "text"))
FUSIONS = tuple(Mode(name, settings=Settings(fusion=name)) for name in arguments.FUSIONS)
IN_USE = Mode(STORED)
"""The stored settings of the corpus; without any, `auto`."""


class Source(NamedTuple):
    """What was searched, beside the questions; a reranker is named if there is one."""

    embedding_model: str
    dimensions: int
    postgres: str
    reranker: str | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """The figures of a mode: the mean of each measure, the latency, and the gain."""

    mode: Mode
    means: dict[str, float]
    judged: float
    """Share of judged documents among the first ten of all questions."""
    p50: float
    p95: float
    empty: int
    """Questions without any hit."""
    gain: Difference | None
    """nDCG@10 against the reference; None for the reference itself."""
    is_best: bool


@dataclass(frozen=True)
class Comparison:
    """The answers of several modes to the same questions, and their measures.

    `values` are by mode, measure and query. `gains` are the differences in nDCG@10 of the other
    modes from `reference`.
    """

    collection: Questions
    modes: dict[str, Mode]
    runs: dict[str, Run]
    values: dict[str, dict[str, dict[str, float]]]
    reference: str
    gains: dict[str, Difference]

    @property
    def measures(self) -> tuple[str, ...]:
        """The names of the measures."""
        return tuple(self.values[self.reference])

    def rows(self) -> list[Row]:
        """Return the figures of each mode."""
        best = max(self.mean(name, NDCG) for name in self.modes)
        return [
            Row(
                mode=mode,
                means={measure: self.mean(name, measure) for measure in self.measures},
                judged=self.judged(name),
                p50=self.latency(name, 50),
                p95=self.latency(name, 95),
                empty=sum(not answer.documents for answer in self.runs[name].values()),
                gain=self.gains.get(name),
                is_best=self.mean(name, NDCG) == best,
            )
            for name, mode in self.modes.items()
        ]

    def mean(self, mode: str, measure: str) -> float:
        """Return the mean of a measure over the questions."""
        return mean(self.values[mode][measure])

    def latency(self, mode: str, share: float) -> float:
        """Return the percentile `share` (0 to 100) of a mode's latency, in milliseconds."""
        return percentile(self.milliseconds(mode), share)

    def milliseconds(self, mode: str) -> list[float]:
        """Return the latency of every search that ran."""
        answers = self.runs[mode].values()
        return [answer.milliseconds for answer in answers if answer.milliseconds is not None]

    def judged(self, mode: str) -> float:
        """Return the share of judged documents among the first ten of all questions."""
        shown = [
            document in self.collection.qrels[query]
            for query, answer in self.runs[mode].items()
            for document in answer.documents[:10]
        ]
        return sum(shown) / len(shown) if shown else 1.0

    def verdicts(self) -> Iterator[tuple[str, str, Difference]]:
        """Yield which mode is compared with which other one, and the gain of the first.

        These are the gains; but a reference with both legs is compared with each leg alone.
        """
        for name, gain in self.gains.items():
            if self.modes[name].leg != "hybrid" == self.modes[self.reference].leg:
                yield self.reference, name, replace(gain, mean=0.0 - gain.mean)
            else:
                yield name, self.reference, gain

    def moved(self, mode: str, count: int) -> tuple[list[tuple[Query, float]], ...]:
        """Return the queries that gain and that lose most nDCG@10 against the reference."""
        ours, theirs = (self.values[name][NDCG] for name in (mode, self.reference))
        return moved(self.collection.queries, ours, theirs, count)

    def best_other(self) -> str | None:
        """Return the best mode beside the reference, a leg alone only if there is no other."""
        hybrid = [name for name in self.gains if self.modes[name].leg == "hybrid"]
        return max(hybrid or self.gains, key=lambda name: self.mean(name, NDCG), default=None)

    def found_by(self, depth: int) -> dict[str, int] | None:
        """Count the relevant documents by the legs that have them in their first `depth`.

        None if a leg was not searched alone.
        """
        if not {"vector", "text"} <= self.modes.keys():
            return None
        counts = dict.fromkeys(("both", "vector", "text", "neither"), 0)
        for query in self.collection.queries:
            vector = self.runs["vector"][query.id].documents[:depth]
            text = self.runs["text"][query.id].documents[:depth]
            for document in self.collection.relevant(query.id):
                in_vector, in_text = document in vector, document in text
                if in_vector and in_text:
                    counts["both"] += 1
                else:
                    counts["vector" if in_vector else "text" if in_text else "neither"] += 1
        return counts


def reference_of(modes: Sequence[Mode], given: str | None = None) -> str:
    """Return the mode that the others are compared with: stored settings, else auto, else first."""
    names = [mode.name for mode in modes]
    return given or next((name for name in (STORED, "auto") if name in names), names[0])


def measures_of(questions: Questions) -> tuple[str, ...]:
    """Return the names of the measures."""
    return NDCG, f"Recall@{questions.depth}", "MRR@10", CONDENSED


def measure(
    answer: Ask,
    questions: Questions,
    modes: Sequence[Mode],
    *,
    reference: str | None = None,
    reranker: Reranker | None = None,
    seed: int = 0,
    advance: Callable[[], None] = lambda: None,
) -> Comparison:
    """Search for each question in each mode, and compare the modes with `reference`.

    The searches of a question run one after the other, so that other load affects all modes alike.
    `advance` is called after each search. Without a reference, it is the stored settings, else
    `auto`, else the first mode. With a reranker, the reference is measured a second time, as the
    mode `rerank`, and each question and text is scored once.
    """
    named = {mode.name: mode for mode in modes}
    reference = reference_of(modes, reference)

    def ask(query: Query, mode: Mode) -> Answer:
        return answer(query, mode.leg, mode.settings, questions.depth, mode.reranker)

    for query in questions.queries[:_WARM_UP]:
        for mode in modes:
            ask(query, mode)
    if reranker is not None:
        own = replace(named[reference], name=RERANK, reranker=reranker)
        # Loads the model. Its scores are not kept: the times below are those of the model.
        ask(questions.queries[0], own)
        named[RERANK] = replace(own, reranker=CachedReranker(reranker))
    runs: dict[str, Run] = {name: {} for name in named}
    for query in questions.queries:
        for name, mode in named.items():
            runs[name][query.id] = ask(query, mode)
            advance()
    values = {name: _measured(questions, run) for name, run in runs.items()}
    ndcg = {name: found[NDCG] for name, found in values.items()}
    return Comparison(
        collection=questions,
        modes=named,
        runs=runs,
        values=values,
        reference=reference,
        gains={
            name: compare(found, ndcg[reference], seed=seed)
            for name, found in ndcg.items()
            if name != reference
        },
    )


def moved(
    queries: Sequence[Query], ours: Mapping[str, float], theirs: Mapping[str, float], count: int
) -> tuple[list[tuple[Query, float]], ...]:
    """Return the queries whose values gain and that lose most, at most `count` each."""
    changes = [(query, ours[query.id] - theirs[query.id]) for query in queries]
    # Sorting is stable: equal changes keep the order of the questions.
    changes.sort(key=lambda change: change[1])
    lost = [change for change in changes if change[1] < 0][:count]
    changes.sort(key=lambda change: -change[1])
    return [change for change in changes if change[1] > 0][:count], lost


def _measured(questions: Questions, run: Run) -> dict[str, dict[str, float]]:
    *measures, _ = measures_of(questions)
    judged = {
        query: [document for document in answer.documents if document in questions.qrels[query]]
        for query, answer in run.items()
    }
    condensed = judge(questions.qrels, judged, (NDCG,))
    return judge(questions.qrels, rankings(run), measures) | {CONDENSED: condensed[NDCG]}
