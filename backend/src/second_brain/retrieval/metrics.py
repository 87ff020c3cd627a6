"""OpenTelemetry metrics of searches, and of the chunks that wait for an embedding.

They need the package `opentelemetry-api` and a configured meter provider; without them nothing is
recorded. No attribute has the text of a query, an id or the name of a collection, so the number of
series is small and fixed.
"""

import functools
import inspect
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from second_brain.errors import MissingExtraError, translate
from second_brain.retrieval.answer import Degraded, SearchResponse

logger = logging.getLogger(__name__)

SEARCH_DURATION = "second_brain.search.duration"
PART_DURATION = "second_brain.search.part.duration"
DEGRADED = "second_brain.search.degraded"
EMPTY = "second_brain.search.empty"
PENDING = "second_brain.embedding.pending"

# OpenTelemetry's default boundaries are for milliseconds; the conventions measure in seconds.
_BOUNDARIES = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_LONGEST_COUNT = 2.0


@dataclass(frozen=True, slots=True)
class Instrument:
    """A metric: its kind, its unit in UCUM, its description and the names of its attributes."""

    kind: str
    unit: str
    description: str
    attributes: tuple[str, ...]


INSTRUMENTS = {
    SEARCH_DURATION: Instrument(
        "histogram",
        "s",
        "Duration of a search; its count is the number of searches",
        ("second_brain.mode", "second_brain.cached", "error.type"),
    ),
    PART_DURATION: Instrument(
        "histogram", "s", "Duration of a part of a search", ("second_brain.part",)
    ),
    DEGRADED: Instrument(
        "counter",
        "{search}",
        "Searches that continued without a part that failed",
        ("second_brain.part", "error.type"),
    ),
    EMPTY: Instrument(
        "counter", "{search}", "Searches whose first page has no result", ("second_brain.mode",)
    ),
    PENDING: Instrument("gauge", "{chunk}", "Active chunks without an embedding", ()),
}
"""The metrics by name; docs/operate.md lists them."""


class CountsPending(Protocol):
    """A provider that counts, and waits for the number: `PostgresProvider`, `SupabaseProvider`."""

    def count_pending_embeddings(self, *, timeout: float | None) -> int:
        """Return how many chunks have no embedding."""


def record_search(
    fields: Mapping[str, Any],
    response: SearchResponse | None,
    parts: Mapping[str, float],
    seconds: float,
    error: BaseException | None,
) -> None:
    """Record a search that returned or failed, and the seconds of its parts."""
    if _api() is None:
        return
    mode = {"second_brain.mode": fields["mode"]}
    attributes: dict[str, Any] = dict(mode)
    if response is not None:
        attributes["second_brain.cached"] = response.cached
    if error is not None:
        attributes["error.type"] = error_kind(error)
    _instrument(SEARCH_DURATION).record(seconds, attributes)
    for part, spent in parts.items():
        _instrument(PART_DURATION).record(spent, {"second_brain.part": part})
    if response is None:
        return
    if not response.results and not fields["offset"]:
        _instrument(EMPTY).add(1, mode)
    failed: Degraded | None = response.degraded
    while failed is not None:
        _instrument(DEGRADED).add(1, {"second_brain.part": failed.part, "error.type": failed.kind})
        failed = failed.also


def error_kind(error: BaseException) -> str:
    """Return the kind of an error, or the class of one that ends the process or the task."""
    return translate(error).kind if isinstance(error, Exception) else type(error).__name__


def observe_embedding_backlog(
    provider: CountsPending,
    *,
    seconds: float = 60.0,
    attributes: Mapping[str, str] | None = None,
) -> Callable[[], None]:
    """Export how many chunks of a provider wait for an embedding; return what ends it.

    The meter provider asks at each export, in its own thread. A count takes at most 2 s, and there
    is at most one in `seconds`, also after a failure; a failure is a warning in the log, and no
    value is exported until the next count. `attributes` distinguish several providers. Raises
    MissingExtraError without `opentelemetry-api`, and TypeError for an asynchronous provider.
    """
    if _api() is None:
        raise MissingExtraError("opentelemetry-api", "telemetry")
    if inspect.iscoroutinefunction(provider.count_pending_embeddings):
        raise TypeError(
            f"provider must not be asynchronous, as {type(provider).__name__} is: the number is "
            "read in a thread without an event loop"
        )
    backlog = _Backlog(provider, seconds, dict(attributes or {}))
    _backlogs.append(backlog)
    _instrument(PENDING)

    def stop() -> None:
        if backlog in _backlogs:
            _backlogs.remove(backlog)

    return stop


class _Backlog:
    """The last count of a provider. Thread-safe: several exporters may ask at once."""

    def __init__(self, provider: CountsPending, seconds: float, attributes: dict[str, str]) -> None:
        self.attributes = attributes
        self._provider = provider
        self._seconds = seconds
        self._count: int | None = None
        self._until = 0.0
        self._lock = threading.Lock()

    def count(self) -> int | None:
        """Return the number of chunks; None if it could not be counted."""
        with self._lock:
            if time.monotonic() >= self._until:
                try:
                    self._count = self._provider.count_pending_embeddings(timeout=_LONGEST_COUNT)
                # The exporter would log the error with its traceback.
                except Exception as error:  # noqa: BLE001
                    self._count = None
                    logger.warning("pending chunks were not counted: %s", translate(error).kind)
                self._until = time.monotonic() + self._seconds
            return self._count


_backlogs: list[_Backlog] = []


def _observe(_options: object) -> Iterable[Any]:
    # Another thread may end one meanwhile.
    for backlog in _backlogs.copy():
        count = backlog.count()
        if count is not None:
            yield _api().Observation(count, backlog.attributes)


@functools.cache
def _api() -> Any:
    try:
        from opentelemetry import metrics
    except ImportError:
        return None
    return metrics


@functools.cache
def _instrument(name: str) -> Any:
    # Before the application configures a meter provider these are proxies, which use it later.
    meter, one = _api().get_meter("second_brain"), INSTRUMENTS[name]
    if one.kind == "histogram":
        return meter.create_histogram(
            name, one.unit, one.description, explicit_bucket_boundaries_advisory=_BOUNDARIES
        )
    if one.kind == "gauge":
        return meter.create_observable_gauge(name, [_observe], one.unit, one.description)
    return meter.create_counter(name, one.unit, one.description)
