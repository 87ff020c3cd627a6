"""Trials, the parts of `make test-chaos`: each has a share of the time and random numbers.

A trial counts what it tried and what survived, and collects violations. A table at the end of the
run shows all trials. Which trials there are is not said here: they are in tests/chaos.
"""

import random
import secrets
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

SECONDS = 300.0
MOST_SHOWN = 20
PATIENCE = 120  # seconds beyond its time in which a trial waits for what it needs

_trials = pytest.StashKey["list[Trial]"]()
_seed = pytest.StashKey[str]()


@dataclass
class Trial:
    """One part of the run. Its methods may be called by several threads."""

    part: str
    seed: str
    seconds: float
    tried: Counter[str] = field(default_factory=Counter)
    survived: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    needed: tuple[str, ...] = ()
    skipped: str | None = None
    is_finished: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _begun: float | None = None
    took: float = 0

    def random(self, who: object = "") -> random.Random:
        """Return random numbers that follow from the run's seed, the part and `who` draws them."""
        return random.Random(f"{self.seed} {self.part} {who}")

    def needs(self, *what: str) -> None:
        """Go on until these were tried, or have survived; the trial fails without them."""
        self.needed = what

    def is_on(self, share: float = 1) -> bool:
        """Whether this share of the trial's time is not over; it begins with the first call.

        On a busy machine the time is over when what the trial needs has happened.
        """
        with self._lock:
            if self._begun is None:
                self._begun = time.monotonic()
            passed = time.monotonic() - self._begun
        if share < 1 or self.violations or not self._missing():
            return passed < self.seconds * share
        return passed < self.seconds + PATIENCE

    def _missing(self) -> list[str]:
        return [what for what in self.needed if not self.tried[what] and not self.survived[what]]

    def note(self, what: str, *, survived: str | None = None, count: int = 1) -> None:
        """Count something that was tried, and, under its name, that it survived."""
        with self._lock:
            self.tried[what] += count
            if survived is not None:
                self.survived[survived] += count

    def held(self, what: str, count: int = 1) -> None:
        """Count something that survived."""
        with self._lock:
            self.survived[what] += count

    def violated(self, what: str) -> None:
        """Report what must not happen; the trial goes on and fails at its end."""
        with self._lock:
            self.violations.append(what)

    def skip(self, reason: str) -> None:
        self.skipped = reason
        pytest.skip(reason)

    def finish(self) -> None:
        """Fail for a violation, and when something that the trial needs was never tried."""
        self.is_finished = True
        self.violations += [f"not tried: {what}" for what in self._missing()]
        if self.violations:
            shown = "\n".join(self.violations[:MOST_SHOWN])
            pytest.fail(f"{len(self.violations)} violations, the first:\n{shown}", pytrace=False)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--chaos-seconds",
        type=float,
        default=SECONDS,
        help=f"make test-chaos: about how long all parts take together (default {SECONDS:.0f})",
    )
    parser.addoption("--chaos-seed", help="make test-chaos: repeat the random choices of a run")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_trials] = []
    config.stash[_seed] = config.getoption("--chaos-seed") or secrets.token_hex(4)


@pytest.fixture
def trial(request: pytest.FixtureRequest) -> Iterator[Trial]:
    """The trial of a test that is marked chaos(share=...), its share of --chaos-seconds."""
    marker = request.node.get_closest_marker("chaos")
    made = Trial(
        part=request.node.path.stem.removeprefix("test_").replace("_", " "),
        seed=request.config.stash[_seed],
        seconds=request.config.getoption("--chaos-seconds") * marker.kwargs["share"],
    )
    request.config.stash[_trials].append(made)
    begun = time.monotonic()
    yield made
    made.took = time.monotonic() - begun


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    found = config.stash[_trials]
    if not found:
        return
    terminalreporter.section(f"chaos, --chaos-seed {config.stash[_seed]}")
    for one in found:
        terminalreporter.write_line(f"{one.part} ({one.took:.0f} s)", bold=True)
        if one.skipped is not None:
            terminalreporter.write_line(f"  skipped   {one.skipped}")
            continue
        terminalreporter.write_line(f"  tried     {_listed(one.tried)}")
        terminalreporter.write_line(f"  survived  {_listed(one.survived)}")
        broken = "" if one.is_finished else ", did not finish"
        terminalreporter.write_line(f"  failed    {len(one.violations)}{broken}")
        for violation in one.violations[:MOST_SHOWN]:
            terminalreporter.write_line(f"            {violation}")


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{count:,} {what}" for what, count in counts.items()) or "nothing"
