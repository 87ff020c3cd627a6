"""Runs that measure or tune a corpus in the background, kept until the process ends.

One run works at a time. It lends a connection for each search, so that it holds no transaction open
and the pages stay quick.
"""

import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import psycopg

from second_brain.errors import (
    AuthenticationError,
    ConfigurationError,
    ConflictError,
    MissingExtraError,
    SecondBrainError,
    UnavailableError,
    safe_message,
    translate,
)
from second_brain.evaluation import live, metrics, tuning
from second_brain.evaluation.collection import (
    CollectionError,
    Embeddings,
    Questions,
    embed_questions,
)
from second_brain.evaluation.comparison import Ask, Comparison, Mode, measure
from second_brain.evaluation.live import Kind
from second_brain.evaluation.runs import Answer, Searcher
from second_brain.evaluation.tuning import Tuning
from second_brain.workbench.frame import Workbench, writer_of

_MOST_KEPT = 20

Task = Literal["measure", "tune"]


class _CancelledError(Exception):
    """A run was cancelled by a user."""


@dataclass
class Run:
    """One run: what it does, how far it is, and its result."""

    task: Task
    collection: str
    kind: Kind | None
    own: Mode | None = None
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    state: Literal["running", "done", "failed", "cancelled"] = "running"
    done: int = 0
    total: int = 0
    error: SecondBrainError | None = None
    comparison: Comparison | None = None
    tuned: Tuning | None = None
    is_text_only: bool = False
    is_cancelled: bool = False

    @property
    def message(self) -> str:
        """What a page says of the error, without parts of the connection string."""
        error = self.error
        if error is None:
            return ""
        if isinstance(error, UnavailableError):
            return "The database did not answer."
        is_own = isinstance(error, CollectionError | MissingExtraError)
        if isinstance(error, AuthenticationError | ConfigurationError) and not is_own:
            return "The database refused the run."
        return safe_message(error)


class Runs:
    """The runs of this process, the newest last."""

    def __init__(self, workbench: Workbench) -> None:
        self._workbench = workbench
        self._runs: dict[str, Run] = {}
        self._lock = threading.Lock()

    def start(self, run: Run) -> None:
        """Start a run. Raises ConflictError while another one works."""
        with self._lock:
            if any(one.state == "running" for one in self._runs.values()):
                raise ConflictError(
                    "a run is working", remedy="Wait for its end, or cancel it, first."
                )
            while len(self._runs) >= _MOST_KEPT:
                del self._runs[next(iter(self._runs))]
            self._runs[run.id] = run
        threading.Thread(target=self._work, args=[run], name="measuring", daemon=True).start()

    def find(self, id_: str) -> Run | None:
        """Return a run by its id."""
        with self._lock:
            return self._runs.get(id_)

    def last(self, task: Task, collection: str) -> Run | None:
        """Return the newest run of a task for a collection that was not cancelled."""
        with self._lock:
            return next(
                (
                    run
                    for run in reversed(self._runs.values())
                    if run.task == task
                    and run.collection == collection
                    and run.state != "cancelled"
                ),
                None,
            )

    def running(self) -> Run | None:
        """Return the run that works now."""
        with self._lock:
            return next((run for run in self._runs.values() if run.state == "running"), None)

    def _work(self, run: Run) -> None:
        try:
            metrics.require_library()
            (self._measure if run.task == "measure" else self._tune)(run)
            run.state = "done"
        except _CancelledError:
            run.state = "cancelled"
        except (SecondBrainError, psycopg.Error) as error:
            run.error = translate(error)
            run.state = "failed"
        except BaseException:
            # The page must not wait for ever. Python prints the traceback of the thread.
            run.error = SecondBrainError("the run failed; the workbench's log has the reason")
            run.state = "failed"
            raise

    def _measure(self, run: Run) -> None:
        questions, embeddings = self._questions(run)
        with self._workbench.connections.reading() as database:
            modes = live.modes_of(
                writer_of(database).settings(),
                run.collection or None,
                has_vectors=embeddings is not None,
            )
        if run.own is not None and embeddings is not None:
            modes.append(run.own)
        run.is_text_only = embeddings is None
        run.total = len(questions.queries) * len(modes)
        run.comparison = measure(
            self._answer(run, embeddings), questions, modes, advance=_counted(run)
        )

    def _tune(self, run: Run) -> None:
        questions, embeddings = self._questions(run)
        if embeddings is None:
            raise CollectionError(
                "there is no vector leg to weigh against the text leg",
                remedy="Start the workbench with the embedder of the stored chunks.",
            )
        if len(questions.queries) < 2:
            raise CollectionError(
                "tuning needs at least two questions", remedy="Judge hits of more questions first."
            )
        run.total = tuning.searches(questions)
        run.tuned = tuning.tune(self._answer(run, embeddings), questions, advance=_counted(run))

    def _questions(self, run: Run) -> tuple[Questions, Embeddings | None]:
        """Return the questions and their embeddings; None if the embedder is not the corpus's."""
        workbench = self._workbench
        with workbench.connections.reading() as database:
            questions = live.read_questions(database, run.collection or None, run.kind)
            try:
                embedder = workbench.service(database).embedder()
            except ConfigurationError:
                return questions, None
        return questions, embed_questions(questions, embedder)

    def _answer(self, run: Run, embeddings: Embeddings | None) -> Ask:
        def answer(*asked: Any) -> Answer:
            if run.is_cancelled:
                raise _CancelledError
            with self._workbench.connections.reading() as database:
                return Searcher(database, embeddings, run.collection or None).answer(*asked)

        return answer


def _counted(run: Run) -> Callable[[], None]:
    def advance() -> None:
        run.done += 1

    return advance
