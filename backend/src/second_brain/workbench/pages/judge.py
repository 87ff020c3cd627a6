"""The page Judge: which chunks are right for a question, marked with one key each.

The chunks come from several settings, in an order that shows no rank. Questions wait in a list that
this process keeps, those that tell most about the legs first; judgments are stored in the database.
"""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import psycopg
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import ImmutableMultiDict
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from second_brain.database.corpus_overview import query_report
from second_brain.errors import InvalidInputError, SecondBrainError
from second_brain.evaluation import known_items, tuning
from second_brain.evaluation.collection import CollectionError
from second_brain.evaluation.judging import agreement, candidates
from second_brain.retrieval.answer import SearchResult
from second_brain.services.install import Database
from second_brain.services.judgments import Judgment
from second_brain.workbench.asking import why_no_vector
from second_brain.workbench.frame import (
    Page,
    Workbench,
    link,
    render,
    submitted,
    whole_number,
    workbench_of,
    write,
    writer_of,
)

_MOST_WAITING = 10_000
_MOST_LISTED = 100
_MOST_GENERATED = 1000
_MOST_LOGGED = 100
_MOST_COMPARED = 100
_LONGEST = 4096
_GRADES = {"2": "right", "1": "partly right", "0": "wrong"}


@dataclass
class Waiting:
    """Questions that wait to be judged, each with how far the legs agree about it (0 to 1).

    The threads of this process share them.
    """

    questions: dict[str, float] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, questions: Mapping[str, float]) -> None:
        """Add questions, each once. Raises InvalidInputError for too many."""
        with self.lock:
            if len(self.questions) + len(questions) > _MOST_WAITING:
                raise InvalidInputError(
                    f"at most {_MOST_WAITING:,} questions can wait",
                    remedy="Judge some of them, or empty the list, first.",
                )
            self.questions.update(questions)

    def clear(self) -> None:
        """Remove all."""
        with self.lock:
            self.questions.clear()

    def left(self, judged: set[str]) -> list[str]:
        """Return those that are not judged, the one with least agreement first."""
        with self.lock:
            # Sorting is stable: equal ones keep their order.
            ordered = sorted(self.questions, key=self.questions.__getitem__)
        return [question for question in ordered if question not in judged]


@dataclass(frozen=True, slots=True)
class Judging:
    """What the address or a form says: the question, where it is asked, and who judges."""

    question: str = ""
    collection: str = ""
    by: UUID | None = None
    viewer: UUID | None = None

    @classmethod
    def read(cls, given: ImmutableMultiDict[str, str]) -> "Judging":
        """Read an address or a form. Raises InvalidInputError."""
        texts = {name: given.get(name, "").strip() for name in ("q", "collection")}
        return cls(texts["q"], texts["collection"], _user(given, "by"), _user(given, "viewer"))

    def address(self, path: str = "/judge", **values: Any) -> str:
        """Return the address of a page for the same judge."""
        kept = {"collection": self.collection, "by": self.by, "viewer": self.viewer}
        return link(path, **values, **kept)

    def of(self, stored: Sequence[Judgment]) -> list[Judgment]:
        """Return this judge's judgments of chunks for the question."""
        return [one for one in stored if one.question == self.question and one.judged_by == self.by]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A chunk to judge, with this judge's grade of it, as text."""

    hit: SearchResult
    grade: str


@dataclass(frozen=True, slots=True)
class Asked:
    """A judged question, for the list."""

    question: str
    judgments: int
    right: int
    is_generated: bool


def show(request: Request) -> Response:
    """Show the chunks for a question; without one, the questions that wait and that are judged."""
    judging = Judging.read(request.query_params)
    workbench = workbench_of(request)
    with workbench.connections.reading() as database:
        stored = writer_of(database).judgments(judging.collection)
        if judging.question:
            context = _pool(workbench, database, judging, stored)
        else:
            context = {
                "asked": _summed(stored),
                "most_listed": _MOST_LISTED,
                "logged": request.query_params.get("logged"),
            }
    judged = [one for one in stored if not one.is_generated]
    context |= {
        "judging": judging,
        "left": _waiting(request).left({one.question for one in judged}),
        "grades": _GRADES,
        "judged": len({one.question for one in judged if one.grade > 0}),
        "fewest": tuning.FEWEST,
        "enough": tuning.ENOUGH,
        "most_compared": _MOST_COMPARED,
    }
    template = "judge.html" if judging.question else "judge_start.html"
    return render(request, template, context, page="judge")


def following(request: Request) -> Response:
    """Go to the first question that waits behind the given one, else to the list."""
    judging = Judging.read(request.query_params)
    with workbench_of(request).connections.reading() as database:
        stored = writer_of(database).judgments(judging.collection)
    judged = {one.question for one in stored if not one.is_generated} - {judging.question}
    left = _waiting(request).left(judged)
    if judging.question in left:
        left = left[left.index(judging.question) + 1 :]
    return RedirectResponse(judging.address(**({"q": left[0]} if left else {})), 303)


async def mark(request: Request) -> Response:
    """Store or withdraw a judgment. A script gets an empty answer, a form goes back to the page."""
    form = await submitted(request)
    judging = Judging.read(form)
    chunk, grade = form.get("chunk", ""), form.get("grade", "")
    if grade not in (*_GRADES, ""):
        raise InvalidInputError(f"grade must be 0, 1, 2 or empty, not {grade[:100]!r}")
    judgment = Judgment(
        question=judging.question,
        chunk_id=_uuid("chunk", chunk),
        collection=judging.collection,
        judged_by=judging.by,
        grade=int(grade or 0),  # type: ignore[arg-type]
    )

    def store(database: Database) -> None:
        if grade:
            writer_of(database).set_judgments([judgment])
        else:
            writer_of(database).withdraw_judgments([judgment])

    await write(request, store)
    if request.headers.get("accept") == "application/json":
        return Response(status_code=204)
    return RedirectResponse(judging.address(q=judging.question) + f"#chunk-{chunk}", 303)


async def wait(request: Request) -> Response:
    """Add questions to those that wait, one in each line or from the query log, or remove all."""
    form = await submitted(request)
    judging, workbench = Judging.read(form), workbench_of(request)
    if form.get("empty"):
        _waiting(request).clear()
        return RedirectResponse(judging.address(), 303)
    if form.get("log"):
        questions = await run_in_threadpool(_logged, workbench, judging.collection)
        address = judging.address(logged=len(questions))
    else:
        lines = [line.strip() for line in form.get("questions", "").splitlines()]
        questions = [line for line in lines if line]
        address = judging.address()
    longest = max(map(len, questions), default=0)
    if longest > _LONGEST:
        raise InvalidInputError(f"a question has {longest} characters, at most are {_LONGEST}")
    agreeing = await run_in_threadpool(_agreement, workbench, questions, judging.collection)
    _waiting(request).add(dict.fromkeys(questions, 1.0) | agreeing)
    return RedirectResponse(address, 303)


async def generate(request: Request) -> Response:
    """Store questions made from words of documents."""
    form = await submitted(request)
    judging = Judging.read(form)
    count = whole_number("count", form.get("count", ""), 1, _MOST_GENERATED)

    def store(database: Database) -> None:
        try:
            made = known_items.generate(database, count, collection=judging.collection or None)
        except CollectionError as error:
            raise InvalidInputError(str(error), remedy=error.remedy) from error
        writer_of(database).set_judgments(made)

    await write(request, store)
    return RedirectResponse(judging.address(), 303)


def _logged(workbench: Workbench, collection: str) -> list[str]:
    """Return questions of the query log: without hits, unsure ones, and frequent ones."""
    with workbench.connections.reading() as database:
        report = query_report(database, most=_MOST_LOGGED)
    found = [*report.without_hits, *report.unsure, *report.frequent]
    wanted = [collection] if collection else None
    return list(dict.fromkeys(one.question for one in found if one.collections == wanted))


def _agreement(workbench: Workbench, questions: Sequence[str], collection: str) -> dict[str, float]:
    """Return how far the legs agree about the first questions; nothing without an embedder."""
    compared = list(dict.fromkeys(questions))[:_MOST_COMPARED]
    if not compared:
        return {}
    try:
        with workbench.connections.reading() as database:
            embedder = workbench.service(database).embedder()
            found = agreement(database, embedder, compared, collection or None)
    except (SecondBrainError, psycopg.Error):
        # They wait in their order. The page that judges them says what is wrong.
        return {}
    return dict(zip(compared, found, strict=True))


def _pool(
    workbench: Workbench, database: Database, judging: Judging, stored: Sequence[Judgment]
) -> dict[str, Any]:
    names = (judging.collection,) if judging.collection else None
    hits, degraded = candidates(
        workbench.service(database), judging.question, names, viewer_id=judging.viewer
    )
    grades = {str(one.chunk_id): str(one.grade) for one in judging.of(stored)}
    documents = {one.document_key: one.grade for one in judging.of(stored) if one.chunk_id is None}
    found = [Candidate(hit, grades.get(hit.id, "")) for hit in hits]
    return {
        "candidates": found,
        "marked": sum(bool(one.grade) for one in found),
        "documents": documents,
        "why_no_vector": why_no_vector(degraded),
    }


def _summed(stored: Sequence[Judgment]) -> list[Asked]:
    questions: dict[str, list[Judgment]] = {}
    for one in stored:
        questions.setdefault(one.question, []).append(one)
    summed = [
        Asked(
            question,
            len(judgments),
            sum(one.grade > 0 for one in judgments),
            all(one.is_generated for one in judgments),
        )
        for question, judgments in questions.items()
    ]
    # Sorting is stable: each kind keeps its order.
    return sorted(summed, key=lambda one: one.is_generated)


def _waiting(request: Request) -> Waiting:
    state = request.app.state
    if not hasattr(state, "waiting"):
        state.waiting = Waiting()
    waiting: Waiting = state.waiting
    return waiting


def _user(given: ImmutableMultiDict[str, str], name: str) -> UUID | None:
    text = given.get(name, "").strip()
    return _uuid(name, text) if text else None


def _uuid(name: str, text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise InvalidInputError(f"{name} must be a UUID, not {text[:100]!r}") from None


PAGE = Page(
    "judge",
    "Judge",
    "/judge",
    [
        Route("/judge", show),
        Route("/judge/next", following),
        Route("/judge/mark", mark, methods=["POST"]),
        Route("/judge/questions", wait, methods=["POST"]),
        Route("/judge/generate", generate, methods=["POST"]),
    ],
)
