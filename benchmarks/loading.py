"""A running system with the corpus: loaded now, or kept by an earlier run and started again.

A kept system lies in DIRECTORY/KEY-CHUNKS, with what loading took in `loading.json` there.
"""

import importlib
import json
import shutil
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.memory import all_bytes, peak, private_bytes
from benchmarks.peers.system import Corpus, System

FIGURES = "loading.json"


class NotBuiltError(Exception):
    """A system was not loaded within the time limit; the text has its progress."""


@dataclass(frozen=True)
class Keeping:
    """The folder for loaded systems (None: none), their contents, and the time limit."""

    directory: Path | None
    fingerprint: Mapping[str, Any]
    limit: float


@dataclass(frozen=True)
class Loaded:
    """A running system with the corpus, and its loading times if they are known."""

    system: System
    kept: bool
    steps: dict[str, float] | None
    build_bytes: int | None
    base_bytes: int

    @property
    def build_seconds(self) -> float | None:
        """The seconds of all steps."""
        return None if self.steps is None else sum(self.steps.values())

    @classmethod
    def start(
        cls, kind: type[System], corpus: Corpus, major: int, stack: ExitStack, keeping: Keeping
    ) -> "Loaded":
        """Start a system and load it unless it was kept; the stack stops it.

        Raises NotBuiltError, and RuntimeError when what is kept is another corpus.
        """
        rows, dimensions = corpus.embeddings.shape
        place = None if keeping.directory is None else keeping.directory / f"{kind.key}-{rows}"
        kept = place is not None and place.exists()
        if place is not None:
            _check(place, keeping.fingerprint)
            place.parent.mkdir(parents=True, exist_ok=True)
            if kind.key == "lancedb":
                place.mkdir(exist_ok=True)
        with ExitStack() as own:
            system = kind()
            own.enter_context(system.running(major, dimensions, place))
            process = system.process()
            private = private_bytes(process)
            figures: dict[str, Any] = {}
            if kept and place is not None:
                system.renew(corpus)
                for step, seconds in system.steps.items():
                    said(f"  {kind.name}: made its {step} anew in {seconds:.0f} s")
                if not system.holds(corpus):
                    raise RuntimeError(
                        f"{place} does not hold this corpus with its indexes: delete it"
                    )
                if (place / FIGURES).exists():
                    figures = json.loads((place / FIGURES).read_text("utf-8"))
            else:
                try:
                    figures = _load(system, corpus, keeping.limit)
                except BaseException:
                    own.close()
                    if place is not None:
                        shutil.rmtree(place)
                    raise
                if place is not None:
                    figures["fingerprint"] = dict(keeping.fingerprint)
                    (place / FIGURES).write_text(json.dumps(figures, indent=1) + "\n", "utf-8")
            stack.enter_context(own.pop_all())
        return cls(system, kept, figures.get("steps"), figures.get("build_bytes"), private)


def said(line: str) -> None:
    """Print a line of progress on standard error."""
    print(line, file=sys.stderr, flush=True)


def _check(place: Path, fingerprint: Mapping[str, Any]) -> None:
    figures = place / FIGURES
    if figures.exists():
        kept = json.loads(figures.read_text("utf-8"))["fingerprint"]
        differing = [name for name, value in fingerprint.items() if kept.get(name) != value]
        if differing:
            raise RuntimeError(
                f"{place} was loaded with another {', '.join(differing)}: use another folder,"
                " or delete that one"
            )


def _load(system: System, corpus: Corpus, limit: float) -> dict[str, Any]:
    late = threading.Event()

    def give_up() -> None:
        late.set()
        system.abandon()

    timer = threading.Timer(limit, give_up)
    timer.daemon = True
    for module in system.modules:
        importlib.import_module(module)
    process = system.process()
    base = all_bytes(process)
    begin = time.perf_counter()
    timer.start()
    try:
        with peak(partial(all_bytes, process), base, every=0.5) as most:
            system.load(corpus)
    except Exception as exc:  # the way a load dies depends on the system
        if late.is_set():
            done = ", ".join(system.steps) or "none"
            raise NotBuiltError(f"not built within {limit:,.0f} s (steps done: {done})") from exc
        raise
    finally:
        timer.cancel()
    taken = time.perf_counter() - begin
    steps = {**system.steps, "other": max(taken - sum(system.steps.values()), 0.0)}
    return {"steps": steps, "build_bytes": most[0] if most else None}
