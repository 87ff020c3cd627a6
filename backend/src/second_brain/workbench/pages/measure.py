"""The page Measure: how well each way to search answers the judged questions, and better settings.

The work is done by runs in the background. The page shows their results until the process ends.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast, get_args

from starlette.datastructures import ImmutableMultiDict
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from second_brain.errors import ConflictError, InvalidInputError
from second_brain.evaluation import live, tuning
from second_brain.evaluation.collection import Query, Questions
from second_brain.evaluation.comparison import IN_USE, Comparison, Mode
from second_brain.evaluation.live import Kind
from second_brain.evaluation.runs import DEFAULT, Settings
from second_brain.evaluation.tuning import Tuning
from second_brain.services.arguments import FUSIONS
from second_brain.services.corpus_settings import CorpusSettings
from second_brain.services.install import Database
from second_brain.services.judgments import Judgment
from second_brain.workbench.frame import (
    WEIGHTS,
    Page,
    link,
    number,
    render,
    submitted,
    workbench_of,
    write,
    writer_of,
)
from second_brain.workbench.measuring import Run, Runs, Task
from second_brain.workbench.question import Question

_KINDS: dict[Kind, str] = {
    "judged": "judged",
    "generated": "made from words",
    "all": "all",
}
_MOST_MOVED = 8
_MOST_UNJUDGED = 5


@dataclass(frozen=True, slots=True)
class Moved:
    """A question whose nDCG@10 differs between a mode and the reference."""

    question: str
    change: float
    search: str
    """The address of the search in the mode."""
    reference: str
    unjudged: int = 0
    """Of the mode's first ten documents, after a run that measures."""


def show(request: Request) -> Response:
    """Show the questions, the settings in use, and the results of the last runs."""
    runs = _runs(request)
    collection = request.query_params.get("collection", "").strip()
    with workbench_of(request).connections.reading() as database:
        writer = writer_of(database)
        judgments = writer.judgments()
        settings = writer.settings()
    measured, tuned = runs.last("measure", collection), runs.last("tune", collection)
    comparison = measured.comparison if measured else None
    versus = _versus(comparison, request.query_params.get("versus", ""))
    return render(
        request,
        "measure.html",
        {
            "collection": collection,
            "asked_in": _asked_in(judgments),
            "counts": _counts(judgments, collection),
            "kinds": _KINDS,
            "fusions": FUSIONS,
            "in_use": _in_use(settings, collection),
            "fusion": _fusion(settings, collection),
            "running": runs.running(),
            "measured": measured,
            "tuned": tuned,
            "comparison": comparison,
            "versus": versus,
            "moved": None if comparison is None or versus is None else _moved(comparison, versus),
            "unjudged": [] if comparison is None else _unjudged(comparison),
            "proposal": tuned.tuned and tuned.tuned.forced if tuned else None,
            "fit": tuned and tuned.tuned,
            "fit_rows": _fit_rows(tuned.tuned) if tuned and tuned.tuned else [],
            "fit_moved": _fit_moved(tuned.tuned) if tuned and tuned.tuned else None,
            "fewest": tuning.FEWEST,
            "stored": request.query_params.get("stored"),
        },
        page="measure",
    )


def progress(request: Request) -> Response:
    """Show how far the run is, as a part of the page; 204 when none works."""
    running = _runs(request).running()
    if running is None:
        return Response(status_code=204)
    return render(request, "measure_progress.html", {"running": running}, page="measure")


async def start(request: Request) -> Response:
    """Start a run."""
    form = await submitted(request)
    task, kind = form.get("task", ""), form.get("kind", "") or None
    if task not in get_args(Task):
        raise InvalidInputError(f"task must be measure or tune, not {task[:100]!r}")
    if kind is not None and kind not in _KINDS:
        raise InvalidInputError(f"kind must be {', '.join(_KINDS)}, not {kind[:100]!r}")
    run = Run(
        cast(Task, task),
        form.get("collection", "").strip(),
        kind,
        _own(form) if task == "measure" else None,
    )
    _runs(request).start(run)
    return RedirectResponse(link("/measure", collection=run.collection), 303)


async def cancel(request: Request) -> Response:
    """End the run that works, after its current search."""
    await submitted(request)
    running = _runs(request).running()
    if running is not None:
        running.is_cancelled = True
    return RedirectResponse(
        link("/measure", collection=running.collection if running else None), 303
    )


async def apply(request: Request) -> Response:
    """Store what a run of tuning found, if it is better, or if the form says to do it anyway."""
    form = await submitted(request)
    run = _runs(request).find(form.get("run", ""))
    if run is None or run.tuned is None:
        raise InvalidInputError(
            "this result of tuning is not kept any more", remedy="Tune again, then apply."
        )
    tuned = run.tuned
    chosen = tuned.forced if form.get("force") else tuned.storable
    if chosen is None:
        raise ConflictError(
            "no setting is better by more than the standard error, or the questions are too few",
            remedy="Judge more questions, or store the best settings knowingly.",
        )

    def store(database: Database) -> None:
        tuning.store(writer_of(database), run.collection, chosen, tuned.collection)

    await write(request, store)
    return RedirectResponse(link("/measure", collection=run.collection, stored="1"), 303)


async def reset(request: Request) -> Response:
    """Remove the stored settings of a collection."""
    form = await submitted(request)
    collection = form.get("collection", "").strip()
    await write(request, lambda database: writer_of(database).reset_settings(collection))
    return RedirectResponse(link("/measure", collection=collection, stored="0"), 303)


def _own(form: ImmutableMultiDict[str, str]) -> Mode | None:
    """Return the settings that a form adds to the comparison."""
    fusion = form.get("fusion", "")
    if not fusion:
        return None
    vector, text = (number(name, form.get(name, "") or "1") for name in WEIGHTS)
    return Mode(f"{fusion} {vector:g} : {text:g}", settings=Settings(fusion, vector, text))


def _versus(comparison: Comparison | None, given: str) -> str | None:
    """Return the mode whose questions are shown: the given one, else the best other hybrid."""
    if comparison is None:
        return None
    return given if given in comparison.gains else comparison.best_other()


def _moved(comparison: Comparison, versus: str) -> tuple[list[Moved], list[Moved]]:
    def moved(changes: Sequence[tuple[Query, float]]) -> list[Moved]:
        collection = _collection(comparison.collection)
        return [
            Moved(
                query.text,
                change,
                _search(comparison.modes[versus], query.text, collection),
                _search(comparison.modes[comparison.reference], query.text, collection),
                _count_unjudged(comparison, versus, query),
            )
            for query, change in changes
        ]

    gained, lost = comparison.moved(versus, _MOST_MOVED)
    return moved(gained), moved(lost)


def _unjudged(comparison: Comparison) -> list[tuple[str, int]]:
    """Return the questions with most documents to judge among the first ten of the reference."""
    counts = [
        (query.text, _count_unjudged(comparison, comparison.reference, query))
        for query in comparison.collection.queries
    ]
    counts.sort(key=lambda one: -one[1])
    return [one for one in counts if one[1]][:_MOST_UNJUDGED]


def _count_unjudged(comparison: Comparison, mode: str, query: Query) -> int:
    judged = comparison.collection.qrels[query.id]
    return sum(one not in judged for one in comparison.runs[mode][query.id].documents[:10])


def _search(mode: Mode, text: str, collection: str) -> str:
    """Return the address of the page Search for a question in a mode."""
    question = Question(
        query=text,
        mode=mode.leg,
        fusion=cast(Any, mode.settings.fusion),
        vector_weight=1.0 if mode.settings.vector_weight is None else mode.settings.vector_weight,
        text_weight=1.0 if mode.settings.text_weight is None else mode.settings.text_weight,
        collections=(collection,) if collection else (),
        one_per_document=True,
    )
    return question.address("/")


def _collection(questions: Questions) -> str:
    return "" if questions.name == live.ALL else questions.name


def _asked_in(judgments: Sequence[Judgment]) -> dict[str, int]:
    """Return the number of judged questions by collection, that of all collections first."""
    questions: dict[str, set[str]] = {"": set()}
    for one in judgments:
        questions.setdefault(one.collection, set()).add(one.question)
    return {name: len(questions[name]) for name in sorted(questions)}


def _counts(judgments: Sequence[Judgment], collection: str) -> dict[Kind, int]:
    asked = [one for one in judgments if one.collection == collection]
    judged = {one.question for one in asked if not one.is_generated}
    generated = {one.question for one in asked if one.is_generated}
    return {
        "judged": len(judged),
        "generated": len(generated),
        "all": len(judged | generated),
    }


def _in_use(settings: Sequence[CorpusSettings], collection: str) -> CorpusSettings | None:
    """Return the settings that a search of the collection uses: its own, else those of all."""
    named = {one.collection: one for one in settings}
    return named.get(collection) or named.get("")


def _fusion(settings: Sequence[CorpusSettings], collection: str) -> str:
    """Return the fusion of a search that names none: as `read_settings` of the database."""
    named = {one.collection: one.fusion for one in settings}
    return named.get(collection) or named.get("") or "rrf"


def _fit_rows(found: Tuning) -> list[tuple[str, str, float]]:
    """Return the label, the leg and the nDCG@10 of the settings to show of a fit."""
    return [
        ("vector leg first", "vector", found.mean(tuning.VECTOR)),
        ("text leg first", "text", found.mean(tuning.TEXT)),
        ("settings in use", "fused", found.mean(DEFAULT)),
        ("best", "fused", found.mean_of_best),
    ]


def _fit_moved(found: Tuning) -> tuple[list[Moved], ...]:
    """Return the questions that the best settings of a fit win and lose."""
    collection = _collection(found.collection)
    best, in_use = Mode("best", settings=found.best), IN_USE
    return tuple(
        [
            Moved(
                query.text,
                change,
                _search(best, query.text, collection),
                _search(in_use, query.text, collection),
            )
            for query, change in changes
        ]
        for changes in found.moved(_MOST_MOVED)
    )


def _runs(request: Request) -> Runs:
    state = request.app.state
    if not hasattr(state, "runs"):
        state.runs = Runs(state.workbench)
    runs: Runs = state.runs
    return runs


PAGE = Page(
    "measure",
    "Measure",
    "/measure",
    [
        Route("/measure", show),
        Route("/measure/progress", progress),
        Route("/measure/run", start, methods=["POST"]),
        Route("/measure/cancel", cancel, methods=["POST"]),
        Route("/measure/apply", apply, methods=["POST"]),
        Route("/measure/reset", reset, methods=["POST"]),
    ],
)
