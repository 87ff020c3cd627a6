"""Telemetry of a search: the times of its parts, one log line, and OpenTelemetry spans.

`metrics.py` records the same search as metrics.

The logger is `second_brain.search`; the level is INFO, or WARNING when a part failed. The fields
are attributes of the log record, which `JsonFormatter` writes. Spans need the package
`opentelemetry-api` and a configured tracer. Log line and spans contain the text of the query only
if a setting enables it.
"""

import functools
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Literal

from second_brain.errors import safe_message
from second_brain.retrieval.answer import QueryTime, SearchResponse
from second_brain.retrieval.metrics import error_kind, record_search

logger = logging.getLogger("second_brain.search")

Part = Literal["embed", "search", "rerank"]


_OF_EVERY_RECORD = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """Writes a log record as one line of JSON: time (UTC), level, logger, message, its fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line; a value without a JSON form becomes its text."""
        said = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            said["exception"] = self.formatException(record.exc_info)
        fields = {name: value for name, value in vars(record).items() if name not in said}
        own = {name: value for name, value in fields.items() if name not in _OF_EVERY_RECORD}
        return json.dumps({**said, **own}, default=str)


def log_json() -> None:
    """Write the log of this package to stderr as JSON, and only there."""
    package = logging.getLogger("second_brain")
    if any(isinstance(one.formatter, JsonFormatter) for one in package.handlers):
        return
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    package.addHandler(handler)
    package.setLevel(logging.INFO)
    package.propagate = False


class Watch:
    """Measures one search and its parts; the caller sets `response` when the search returns."""

    def __init__(
        self, fields: dict[str, Any], on_part: Callable[[Part], object] | None = None
    ) -> None:
        self.response: SearchResponse | None = None
        self._fields = fields
        self._on_part = on_part
        self._milliseconds: dict[Part, float] = {}
        self._start = time.perf_counter()

    @contextmanager
    def part(self, name: Part) -> Iterator[None]:
        """Measure a part, in a span below the span of the search; report that it begins."""
        if self._on_part is not None:
            self._on_part(name)
        start = time.perf_counter()
        try:
            with _span(name):
                yield
        finally:
            spent = (time.perf_counter() - start) * 1000
            self._milliseconds[name] = self._milliseconds.get(name, 0.0) + spent

    def times(self) -> QueryTime:
        """Return the milliseconds so far."""
        return QueryTime(
            embed=self._milliseconds.get("embed", 0.0),
            search=self._milliseconds.get("search", 0.0),
            rerank=self._milliseconds.get("rerank", 0.0),
            total=(time.perf_counter() - self._start) * 1000,
        )

    def record(self, error: BaseException | None) -> None:
        """Record the metrics of the search, which ends now."""
        parts: dict[str, float] = {part: spent / 1000 for part, spent in self._milliseconds.items()}
        seconds = time.perf_counter() - self._start
        record_search(self._fields, self.response, parts, seconds, error)

    def attributes(self, error: BaseException | None) -> dict[str, Any]:
        """Return the fields of the log line and the span: numbers, flags and names."""
        attributes = {"event": "search", **self._fields}
        response = self.response
        if response is not None:
            found = Counter(one.match_type for one in response.results)
            attributes |= {
                "mode_used": response.mode_used,
                "filters": len(response.applied_filters),
                "results": len(response.results),
                "total_count": response.total_count,
                "vector_hits": sum(one.vector_rank is not None for one in response.results),
                "text_hits": sum(one.text_rank is not None for one in response.results),
                "match_both": found["both"],
                "match_vector": found["vector"],
                "match_text": found["text"],
                "merged": found["both"],
                "deduplicated": (response.notes or {}).get("deduplicated", 0),
                "cached": response.cached,
            }
            first = response.degraded
            if first is not None:
                parts = [one.part for one in (first, first.also) if one is not None]
                attributes |= {"degraded": ",".join(parts), "degraded_kind": first.kind}
        if error is not None:
            attributes["error_kind"] = error_kind(error)
        times = self.times() if response is None else response.timings
        for name in ("embed", "search", "rerank", "total"):
            attributes[f"{name}_ms"] = round(getattr(times, name), 3)
        return attributes


@contextmanager
def watched(on_part: Callable[[Part], object] | None = None, /, **fields: Any) -> Iterator[Watch]:
    """Measure a search in a span, and write one log line at its end."""
    watch = Watch(fields, on_part)
    error: BaseException | None = None
    with _span("retrieval") as span:
        try:
            yield watch
        except BaseException as raised:
            error = raised
            raise
        finally:
            watch.record(error)
            response = watch.response
            is_whole = response is not None and response.degraded is None
            level = logging.INFO if is_whole else logging.WARNING
            is_recording = span is not None and span.is_recording()
            if is_recording or logger.isEnabledFor(level):
                attributes = watch.attributes(error)
                if is_recording:
                    span.set_attributes(
                        {
                            f"second_brain.{name}": value
                            for name, value in attributes.items()
                            if value is not None and name != "event"
                        }
                    )
                _log(level, attributes)


def _log(level: int, attributes: dict[str, Any]) -> None:
    if "error_kind" in attributes:
        outcome = f"failed: {attributes['error_kind']}"
    else:
        outcome = f"{attributes['results']} results by {attributes['mode_used']}"
        if "degraded" in attributes:
            outcome += f", without {attributes['degraded']}: {attributes['degraded_kind']}"
    logger.log(
        level,
        "search %s: %s, %.1f ms",
        attributes["mode"],
        outcome,
        attributes["total_ms"],
        extra=attributes,
    )


@functools.cache
def _trace() -> Any:
    try:
        from opentelemetry import trace
    except ImportError:
        return None
    return trace


@functools.cache
def _tracer() -> Any:
    # Before the application configures a tracer this is a proxy, which uses that tracer later.
    return _trace().get_tracer("second_brain")


@contextmanager
def _span(name: str) -> Iterator[Any]:
    if _trace() is None:
        yield None
        return
    # OpenTelemetry would record the full message and traceback, which may contain the query.
    with _tracer().start_as_current_span(
        f"second_brain.{name}", record_exception=False, set_status_on_exception=False
    ) as span:
        try:
            yield span
        except Exception as error:
            if span.is_recording():
                status = _trace().Status(_trace().StatusCode.ERROR, safe_message(error))
                span.set_status(status)
            raise
