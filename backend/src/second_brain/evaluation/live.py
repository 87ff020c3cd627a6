"""Measures on the corpus itself: the questions judged in a database, searched where they are.

Nothing is exported or copied. A hit is judged by its document: the best grade of the document and
of its chunks.
"""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

import numpy as np

from second_brain.errors import InvalidInputError
from second_brain.evaluation.collection import CollectionError, Embeddings, Query, Questions
from second_brain.evaluation.judgments import CHUNK, grades
from second_brain.evaluation.metrics import Difference, compare, judge
from second_brain.evaluation.runs import (
    Answer,
    Measured,
    QuerySearcher,
    Run,
    Settings,
    rankings,
)
from second_brain.evaluation.tuning import DEFAULT
from second_brain.models import Embedder, embed_queries
from second_brain.services.arguments import Leg
from second_brain.services.corpus_settings import CorpusSettings
from second_brain.services.install import Database
from second_brain.services.judgments import Judgment
from second_brain.services.postgres import PostgresProvider
from second_brain.services.results import MemorySearchResult
from second_brain.services.write import KnowledgeWriter

DEPTH = 50
"""Hits of a search: as many as a pool has by default, so the first ten are those of a user."""
CONDENSED = "nDCG@10 condensed"
"""nDCG@10 of the judged hits alone: the others are left out of the list, not counted as wrong."""
MEASURES = ("nDCG@10", "Recall@50", "MRR@10", CONDENSED)
STORED = "stored"
RERANK = "rerank"
"""The name of the reference with its first hits in the order of a reranker."""
ALL = "all collections"
"""The name of the questions that are asked in no collection alone."""

Kind = Literal["judged", "generated", "all"]
"""Questions that somebody asked, that were generated from documents, or both."""

_WARM_UP = 3
# Of 2 ** 5 assignments of signs, the two extreme ones are 6 %.
_FEWEST_SIGNIFICANT = 6
_REMEDY = (
    "Judge hits in `second-brain workbench`, or store a question and its document in each line: "
    "`second-brain judgments import questions.tsv`."
)

_DOCUMENT_COUNT = """
    select count(distinct coalesce(chunk.document_id, chunk.id))
    from public.knowledge_chunks as chunk
    where chunk.status = 'active'
      and (%(collection)s::text is null or chunk.collection = %(collection)s::text)
"""


@dataclass(frozen=True, slots=True)
class Mode:
    """One way to search: a leg alone, or both with settings; the name is for tables."""

    name: str
    leg: Leg = "hybrid"
    settings: Settings = DEFAULT


LEGS = (Mode("vector", "vector"), Mode("text", "text"))
FUSIONS = tuple(
    Mode(name, settings=Settings(fusion=name)) for name in ("rrf", "relative_score", "auto")
)
IN_USE = Mode(STORED)
"""The stored settings of the corpus; without any, `auto`."""


@dataclass(frozen=True)
class Comparison(Measured[str]):
    """The measures of several modes on the same questions.

    `gains` are the differences in nDCG@10 from `reference`, the mode in use or the first one.
    """

    modes: dict[str, Mode]
    reference: str
    gains: dict[str, Difference]

    def judged(self, mode: str) -> float:
        """Return the share of judged documents among the first ten of all questions."""
        shown = [
            document in self.collection.qrels[query]
            for query, answer in self.runs[mode].items()
            for document in answer.documents[:10]
        ]
        return sum(shown) / len(shown) if shown else 1.0

    def moved(self, mode: str, count: int) -> tuple[list[tuple[Query, float]], ...]:
        """Return the queries that gain and that lose most nDCG@10 against the reference."""
        ours, theirs = (self.values[name]["nDCG@10"] for name in (mode, self.reference))
        changes = [(query, ours[query.id] - theirs[query.id]) for query in self.collection.queries]
        # Sorting is stable: equal changes keep the order of the questions.
        changes.sort(key=lambda change: change[1])
        lost = [change for change in changes if change[1] < 0][:count]
        changes.sort(key=lambda change: -change[1])
        return [change for change in changes if change[1] > 0][:count], lost


class CorpusSearcher(QuerySearcher):
    """Searches a corpus, or one collection of it, one hit per document."""

    def __init__(
        self, database: Database, embeddings: Embeddings | None, collection: str | None
    ) -> None:
        super().__init__(
            PostgresProvider(database.connection, schema=database.install.schema),
            embeddings,
            one_per_document=True,
            collections=None if collection is None else [collection],
        )

    def _document(self, result: MemorySearchResult) -> str:
        return result.metadata["external_key"] or f"{CHUNK}{result.id}"


def read_questions(
    database: Database, collection: str | None = None, kind: Kind | None = None
) -> Questions:
    """Return the questions judged in a collection; None: those asked in all of the corpus.

    Without a kind, the questions that somebody asked, or the generated ones if there are no others.
    Raises CollectionError if no question has a right or partly right document.
    """
    writer = KnowledgeWriter(database.connection, schema=database.install.schema)
    stored = writer.judgments()
    asked = [one for one in stored if one.collection == (collection or "")]
    counts = Counter(one.is_generated for one in asked)
    if kind is None:
        kind = "generated" if counts[True] and not counts[False] else "judged"
    chosen = [one for one in asked if kind == "all" or one.is_generated == (kind == "generated")]
    graded = grades(chosen)
    used = {question: found for question, found in sorted(graded.items()) if any(found.values())}
    if not used:
        raise _nothing_judged(collection, kind, stored)
    queries = [Query(f"q{row + 1}", question, row) for row, question in enumerate(used)]
    (count,) = database.execute(_DOCUMENT_COUNT, {"collection": collection}).fetchone() or (0,)
    remarks = []
    if kind == "generated":
        remarks.append(
            "the questions were made from words of their documents, so the text leg looks better "
            "than it is"
        )
    others = len({one.question for one in asked} - graded.keys())
    if others:
        other = "judged" if kind == "generated" else "generated"
        remarks.append(f"{others} {other} questions left out")
    if len(graded) > len(used):
        remarks.append(f"{len(graded) - len(used)} questions left out: nothing is right for them")
    if len(used) < _FEWEST_SIGNIFICANT:
        remarks.append(
            f"with fewer than {_FEWEST_SIGNIFICANT} questions no difference can be significant"
        )
    return Questions(
        name=collection or ALL,
        queries=queries,
        qrels={query.id: used[query.text] for query in queries},
        document_count=count,
        remarks=tuple(remarks),
    )


def embed_questions(questions: Questions, embedder: Embedder) -> Embeddings:
    """Embed the questions into an array with a row for each, at the rows that they name."""
    rows = [query.row for query in questions.queries]
    vectors = np.zeros((max(rows) + 1, embedder.dimensions), np.float32)
    vectors[rows] = embed_queries(embedder, [query.text for query in questions.queries])
    return vectors


def parse_mode(text: str) -> Mode:
    """Return a mode by name, or one of a JSON object with the settings of a hybrid search.

    Raises InvalidInputError that lists what is allowed.
    """
    named = {mode.name: mode for mode in (*LEGS, *FUSIONS, IN_USE)}
    if text in named:
        return named[text]
    allowed = [field.name for field in fields(Settings)]
    try:
        given = json.loads(text)
    except ValueError:
        given = None
    if not isinstance(given, dict) or not given or given.keys() - set(allowed):
        raise InvalidInputError(
            f"a mode must be {', '.join(named)}, or a JSON object with {', '.join(allowed)}, "
            f"not {text[:200]!r}",
            remedy='For example: rrf, or \'{"fusion": "auto", "vector_weight": 0.7}\'.',
        )
    return Mode(text, settings=Settings(**given))


def modes_of(
    settings: Sequence[CorpusSettings], collection: str | None, *, has_vectors: bool = True
) -> list[Mode]:
    """Return the legs, the fusions, and the stored settings if the collection has any.

    Without vectors, the text leg is all there is.
    """
    if not has_vectors:
        return [LEGS[1]]
    used = {one.collection for one in settings} & {collection or "", ""}
    return [*LEGS, *FUSIONS, *([IN_USE] if used else [])]


def measure(
    answer: Callable[[Query, Leg, Settings, int], Answer],
    questions: Questions,
    modes: Sequence[Mode],
    *,
    reference: str | None = None,
    reranked: Callable[[Query, Leg, Settings], Answer] | None = None,
    seed: int = 0,
    advance: Callable[[], None] = lambda: None,
) -> Comparison:
    """Search for each question in each mode, and compare the modes with `reference`.

    `answer` searches for a question with a leg, settings and a number of hits: see CorpusSearcher.
    The searches of a question run one after the other, so that other load affects all modes alike.
    `advance` is called after each search. Without a reference, it is the stored settings, else
    `auto`, else the first mode. `reranked` searches as `answer` does and reranks the hits: then the
    reference is measured a second time with it, as the mode `rerank`.
    """
    named = {mode.name: mode for mode in modes}
    if reference is None:
        reference = next((name for name in (STORED, "auto") if name in named), modes[0].name)
    for query in questions.queries[:_WARM_UP]:
        for mode in modes:
            answer(query, mode.leg, mode.settings, DEPTH)
    if reranked is not None:
        own = named[RERANK] = replace(named[reference], name=RERANK)
        # Loads the model.
        reranked(questions.queries[0], own.leg, own.settings)
    runs: dict[str, Run] = {name: {} for name in named}
    for query in questions.queries:
        for name, mode in named.items():
            runs[name][query.id] = (
                reranked(query, mode.leg, mode.settings)
                if reranked is not None and name == RERANK
                else answer(query, mode.leg, mode.settings, DEPTH)
            )
            advance()
    values = {name: _measures(questions, run) for name, run in runs.items()}
    ndcg = {name: found["nDCG@10"] for name, found in values.items()}
    return Comparison(
        collection=questions,
        runs=runs,
        values=values,
        modes=named,
        reference=reference,
        gains={
            name: compare(found, ndcg[reference], seed=seed)
            for name, found in ndcg.items()
            if name != reference
        },
    )


def _measures(questions: Questions, run: Run) -> dict[str, dict[str, float]]:
    judged = {
        query: [document for document in answer.documents if document in questions.qrels[query]]
        for query, answer in run.items()
    }
    condensed = judge(questions.qrels, judged, ("nDCG@10",))
    return judge(questions.qrels, rankings(run), MEASURES[:3]) | {CONDENSED: condensed["nDCG@10"]}


def _nothing_judged(
    collection: str | None, kind: Kind, stored: Sequence[Judgment]
) -> CollectionError:
    counts = Counter(one.collection for one in stored)
    asked_in = f"collection {collection!r}" if collection else "all collections together"
    remedy = _REMEDY
    if counts:
        named = ", ".join(
            f"{name!r} ({count})" if name else f"all collections together ({count})"
            for name, count in sorted(counts.items())
        )
        remedy = f"There are judgments in: {named}. --collection names one. {remedy}"
    what = "generated question" if kind == "generated" else "question"
    return CollectionError(
        f"no {what} asked in {asked_in} has a right document in knowledge_judgments", remedy=remedy
    )
