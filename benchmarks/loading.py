"""A running system with the corpus: loaded now, or kept by an earlier run and started again.

A kept system lies in DIRECTORY/KEY-CHUNKS, with what loading took in `loading.json` there, which is
written when the load is complete. What a killed run has left (a part of a load, a running server)
is removed by the next run; a lock ensures that it is not the system of a run that still works.
The results of finished steps are in a journal, so that a killed run continues after the last one.
"""

import fcntl
import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.corpus import Corpus
from benchmarks.peers.system import System
from second_brain.database.embedded import EmbeddedPostgres

FIGURES = "loading.json"

Result = TypeVar("Result")


@dataclass(frozen=True)
class Keeping:
    """The folder for loaded systems (None: none), and their contents."""

    directory: Path | None
    fingerprint: Mapping[str, Any]

    def place(self, kind: type[System], rows: int) -> Path | None:
        """Return the folder of a system at a size."""
        return None if self.directory is None else self.directory / f"{kind.key}-{rows}"

    def loaded(self, kind: type[System], rows: int) -> dict[str, Any] | None:
        """Return the figures of a complete load, or None when there is none.

        A load of other migrations does not count. Raises RuntimeError when it is another corpus.
        """
        place = self.place(kind, rows)
        if place is None or not (place / FIGURES).exists():
            return None
        figures: dict[str, Any] = json.loads((place / FIGURES).read_text("utf-8"))
        differing = [
            name
            for name, value in self.fingerprint.items()
            if figures["fingerprint"].get(name) != value
        ]
        if differing:
            raise RuntimeError(
                f"{place} was loaded with another {', '.join(differing)}: use another folder,"
                " or delete that one"
            )
        return figures if figures.get("made_by") == kind.made_by() else None


@dataclass(frozen=True)
class Loaded:
    """A running system with the corpus, its loading times, and its table's and indexes' bytes."""

    system: System
    kept: bool
    steps: dict[str, float]
    bytes: tuple[int, int]

    @property
    def build_seconds(self) -> float:
        """The seconds of all steps."""
        return sum(self.steps.values())

    @classmethod
    def start(
        cls, kind: type[System], corpus: Corpus, major: int, stack: ExitStack, keeping: Keeping
    ) -> "Loaded":
        """Start a system and load it unless it was kept; the stack stops it.

        Raises RuntimeError when what is kept is another corpus.
        """
        rows, dimensions = corpus.embeddings.shape
        place = keeping.place(kind, rows)
        figures = keeping.loaded(kind, rows)
        if place is not None:
            server = EmbeddedPostgres(place)
            server.stop()
            if figures is None:
                server.remove()
            place.mkdir(parents=True, exist_ok=True)
        with ExitStack() as own:
            system = kind()
            own.enter_context(system.running(major, dimensions, place))
            kept = figures is not None
            if figures is not None:
                system.renew()
                if not system.holds(corpus):
                    raise RuntimeError(
                        f"{place} does not hold this corpus with its indexes: delete it"
                    )
            else:
                try:
                    figures = {**_load(system, corpus), "bytes": system.sizes()}
                except BaseException:
                    own.close()
                    if place is not None:
                        EmbeddedPostgres(place).remove()
                    raise
                if place is not None:
                    figures |= {"fingerprint": dict(keeping.fingerprint), "made_by": kind.made_by()}
                    (place / FIGURES).write_text(json.dumps(figures, indent=1) + "\n", "utf-8")
            stack.enter_context(own.pop_all())
        return cls(system, kept, figures["steps"], system.sizes())


class Journal:
    """The results of finished steps by name, as JSON; those of another identity are discarded."""

    def __init__(self, file: Path, identity: Mapping[str, Any]) -> None:
        self._file = file
        self._identity = json.loads(json.dumps(identity))
        self._steps: dict[str, Any] = {}
        if file.exists():
            found = json.loads(file.read_text("utf-8"))
            if found["identity"] == self._identity:
                self._steps = found["steps"]

    def __contains__(self, name: str) -> bool:
        return name in self._steps

    def once(self, name: str, compute: Callable[[], Result]) -> Result:
        """Return the stored result of a step, or compute and store it."""
        if name not in self._steps:
            self._steps[name] = compute()
            # A kill during the write must not destroy the earlier steps.
            new = self._file.with_suffix(".new")
            content = {"identity": self._identity, "steps": self._steps}
            new.write_text(json.dumps(content) + "\n", "utf-8")
            os.replace(new, self._file)
        result: Result = self._steps[name]
        return result


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the lock of a folder for kept systems; raises SystemExit when another run has it."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SystemExit(f"another run uses {directory}") from None
        yield


def said(line: str) -> None:
    """Print a line of progress on standard error."""
    print(line, file=sys.stderr, flush=True)


def _load(system: System, corpus: Corpus) -> dict[str, Any]:
    for module in system.modules:
        importlib.import_module(module)
    begin = time.perf_counter()
    system.load(corpus)
    taken = time.perf_counter() - begin
    return {"steps": {**system.steps, "other": max(taken - sum(system.steps.values()), 0.0)}}
