"""Telemetry of a search: one log line, and spans and metrics through OpenTelemetry's real SDK.

The dashboard and docs/operate.md are compared with the metrics.
"""

import asyncio
import json
import logging
import logging.handlers
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest
from opentelemetry import metrics as api
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from corpora import store_document
from second_brain.errors import InvalidInputError
from second_brain.models import CallableEmbedder
from second_brain.retrieval import metrics, telemetry
from second_brain.retrieval.service import AsyncRetrievalService, RetrievalService
from second_brain.retrieval.settings import SearchSettings
from second_brain.services.postgres import AsyncPostgresProvider, PostgresProvider

BY_HAND = CallableEmbedder(lambda texts: [[1.0, 0.0, 0.0]] * len(texts), "by-hand", 3)


def failing(texts: Sequence[str]) -> list[list[float]]:
    raise RuntimeError("no model for zebra, key sk-very-secret")


def backwards(question: str, passages: Sequence[str]) -> list[float]:
    return [float(number) for number in range(len(passages))]


@pytest.fixture(scope="module")
def corpus(shared_dsn: str) -> str:
    """Return the DSN of three chunks with an embedding and two without."""
    texts = {
        "A zebra is striped.": [1.0, 0.0, 0.0],
        "The zebra crossing.": [0.9, 0.1, 0.0],
        "A lion sleeps.": [0.5, 0.5, 0.0],
        "A lion wakes.": None,
        "A lion eats.": None,
    }
    store_document(shared_dsn, "savanna", texts)
    return shared_dsn


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[list[logging.LogRecord]]:
    """The search's own log records, as they come."""
    caplog.set_level(logging.INFO, logger="second_brain.search")
    handler = logging.handlers.BufferingHandler(capacity=1000)
    log = logging.getLogger("second_brain.search")
    log.addHandler(handler)
    yield handler.buffer
    log.removeHandler(handler)


def last(lines: list[logging.LogRecord]) -> logging.LogRecord:
    """Return the one line of the only search."""
    assert len(lines) == 1
    return lines[0]


def service(dsn: str, embedder: CallableEmbedder = BY_HAND, **settings: bool) -> RetrievalService:
    return RetrievalService(
        PostgresProvider(dsn), embedder, backwards, SearchSettings.model_validate(settings)
    )


def test_a_search_is_one_line_of_fields(corpus: str, lines: list[logging.LogRecord]) -> None:
    response = service(corpus).search("zebra", limit=2, mode="rerank")
    line = vars(last(lines))
    expected = {
        **{"levelno": logging.INFO, "event": "search", "mode": "rerank", "mode_used": "rerank"},
        **{"limit": 2, "offset": 0, "results": 2, "total_count": 3, "cached": False},
        **{"vector_hits": 2, "text_hits": 1},
    }
    assert {name: line[name] for name in expected} == expected
    for part in ("embed", "search", "rerank", "total"):
        spent = getattr(response.timings, part)
        assert line[f"{part}_ms"] == pytest.approx(spent, abs=0.001)
        assert spent > 0
    assert not {"degraded", "error_kind"} & line.keys()


def test_a_degraded_search_is_a_warning(corpus: str, lines: list[logging.LogRecord]) -> None:
    service(corpus, CallableEmbedder(failing, "by-hand", 3)).search("zebra")
    line = last(lines)
    assert line.levelno == logging.WARNING
    assert (line.__dict__["degraded"], line.__dict__["degraded_kind"]) == ("embed", "error")
    # The embedding is that of the best text hits.
    assert line.__dict__["mode_used"] == "hybrid"
    assert "very-secret" not in str(line.__dict__)


def test_a_failed_search_is_a_warning(corpus: str, lines: list[logging.LogRecord]) -> None:
    with pytest.raises(InvalidInputError):
        service(corpus).search("zebra", filters={"knowledge_type": "poem"})
    line = last(lines)
    assert line.levelno == logging.WARNING
    assert line.__dict__["error_kind"] == "invalid_input"
    assert line.getMessage().startswith("search hybrid: failed: invalid_input, ")
    assert line.__dict__["search_ms"] > 0


def test_an_answer_from_the_cache_says_so(corpus: str, lines: list[logging.LogRecord]) -> None:
    cached = service(corpus, search_cache_enabled=True)
    cached.search("zebra")
    lines.clear()
    cached.search("zebra")
    assert last(lines).__dict__["cached"] is True
    assert last(lines).__dict__["search_ms"] == 0


@pytest.fixture(scope="module")
def exporter() -> InMemorySpanExporter:
    """Everything that was traced, by the application's tracer as the SDK makes it."""
    exporter = InMemorySpanExporter()
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(tracers)
    return exporter


@pytest.fixture
def spans(exporter: InMemorySpanExporter) -> Iterator[InMemorySpanExporter]:
    """The spans of this test."""
    exporter.clear()
    yield exporter
    exporter.clear()


def by_name(spans: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    finished = spans.get_finished_spans()
    assert len({span.name for span in finished}) == len(finished)
    return {span.name: span for span in finished}


def test_a_search_is_a_span_with_one_for_each_part(
    corpus: str, spans: InMemorySpanExporter
) -> None:
    def traced(texts: Sequence[str]) -> list[list[float]]:
        with trace.get_tracer("model").start_as_current_span("model"):
            return [[1.0, 0.0, 0.0]] * len(texts)

    with trace.get_tracer("application").start_as_current_span("request"):
        service(corpus, CallableEmbedder(traced, "by-hand", 3)).search("zebra", mode="rerank")
    found = by_name(spans)
    names = {span.context.span_id: name for name, span in found.items()}
    assert {name: one.parent and names[one.parent.span_id] for name, one in found.items()} == {
        "request": None,
        "second_brain.retrieval": "request",
        "second_brain.embed": "second_brain.retrieval",
        # In another thread, and still within.
        "model": "second_brain.embed",
        "second_brain.search": "second_brain.retrieval",
        "second_brain.rerank": "second_brain.retrieval",
    }
    attributes = found["second_brain.retrieval"].attributes or {}
    assert attributes["second_brain.mode_used"] == "rerank"
    assert attributes["second_brain.results"] == 3
    assert "zebra" not in str(attributes)


def test_spans_of_searches_on_one_loop_do_not_mix(corpus: str, spans: InMemorySpanExporter) -> None:
    async def searching() -> None:
        both = AsyncRetrievalService(AsyncPostgresProvider(corpus), BY_HAND)
        await asyncio.gather(*(both.search("zebra", limit=one) for one in (1, 2)))

    asyncio.run(searching())
    finished = spans.get_finished_spans()
    wholes = [span for span in finished if span.name == "second_brain.retrieval"]
    assert len(wholes) == 2
    for whole in wholes:
        assert whole.parent is None
        within = [
            span.name
            for span in finished
            if span.parent is not None and span.parent.span_id == whole.context.span_id
        ]
        assert sorted(within) == ["second_brain.embed", "second_brain.search"]


def test_a_span_of_a_failed_search_is_an_error_without_a_trace(
    corpus: str, spans: InMemorySpanExporter
) -> None:
    with pytest.raises(InvalidInputError):
        service(corpus).search("zebra", filters={"knowledge_type": "poem"})
    whole = by_name(spans)["second_brain.retrieval"]
    assert whole.status.status_code is StatusCode.ERROR
    assert "knowledge_type" in (whole.status.description or "")
    assert whole.events == ()
    assert (whole.attributes or {})["second_brain.error_kind"] == "invalid_input"


def test_no_span_has_a_key_in_it(corpus: str, spans: InMemorySpanExporter) -> None:
    service(corpus, CallableEmbedder(failing, "by-hand", 3)).search("zebra")
    assert "very-secret" not in "".join(span.to_json() for span in spans.get_finished_spans())


def test_without_the_package_a_search_is_only_logged(
    corpus: str, lines: list[logging.LogRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    telemetry._trace.cache_clear()
    try:
        assert service(corpus).search("zebra").results
        assert telemetry._trace() is None
    finally:
        telemetry._trace.cache_clear()
    assert last(lines).levelno == logging.INFO


DOCS = Path(__file__).parents[2] / "docs"
BY_HAND = CallableEmbedder(lambda texts: [[1.0, 0.0, 0.0]] * len(texts), "by-hand", 3)
Points = dict[tuple[tuple[str, Any], ...], Any]


@pytest.fixture(scope="module")
def reader() -> InMemoryMetricReader:
    """What the application exports, by the SDK's meter provider."""
    reader = InMemoryMetricReader()
    api.set_meter_provider(MeterProvider([reader]))
    return reader


def exported(reader: InMemoryMetricReader) -> dict[str, Points]:
    data = reader.get_metrics_data()
    return {
        metric.name: {
            tuple(sorted((point.attributes or {}).items())): point
            for point in metric.data.data_points
        }
        for resource in (data.resource_metrics if data else ())
        for scope in resource.scope_metrics
        if scope.scope.name == "second_brain"
        for metric in scope.metrics
    }


class Recorded:
    """What was recorded since the last look, by name and attributes: numbers of searches."""

    def __init__(self, reader: InMemoryMetricReader) -> None:
        self._reader = reader
        self._before = self._counts()

    def _counts(self) -> dict[tuple[str, tuple[tuple[str, Any], ...]], float]:
        return {
            (name, attributes): point.value if hasattr(point, "value") else point.count
            for name, points in exported(self._reader).items()
            for attributes, point in points.items()
        }

    def new(self) -> dict[str, list[dict[str, Any]]]:
        """Return the attributes of each record since the last call."""
        before, self._before = self._before, self._counts()
        found: dict[str, list[dict[str, Any]]] = {}
        for (name, attributes), count in sorted(self._before.items(), key=str):
            for _ in range(int(count - before.get((name, attributes), 0))):
                found.setdefault(name, []).append(
                    {key.removeprefix("second_brain."): value for key, value in attributes}
                )
        return found


@pytest.fixture
def recorded(reader: InMemoryMetricReader) -> Recorded:
    return Recorded(reader)


def test_a_search_is_one_duration_and_one_for_each_part(corpus: str, recorded: Recorded) -> None:
    service(corpus).search("zebra")
    assert recorded.new() == {
        metrics.SEARCH_DURATION: [{"mode": "hybrid", "cached": False}],
        metrics.PART_DURATION: [{"part": "embed"}, {"part": "search"}],
    }


def test_durations_are_seconds_in_buckets_of_a_search(
    corpus: str, reader: InMemoryMetricReader
) -> None:
    service(corpus).search("zebra")
    for name in (metrics.SEARCH_DURATION, metrics.PART_DURATION):
        for point in exported(reader)[name].values():
            assert 0 < point.min <= point.max < 60
            assert point.explicit_bounds[0] < 0.01
            assert point.explicit_bounds[-1] == 10


def test_an_answer_from_the_cache_is_a_search_without_parts(
    corpus: str, recorded: Recorded
) -> None:
    cached = service(corpus, search_cache_enabled=True)
    cached.search("zebra")
    recorded.new()
    cached.search("zebra")
    assert recorded.new() == {metrics.SEARCH_DURATION: [{"mode": "hybrid", "cached": True}]}


def test_a_degraded_search_names_the_part_and_a_failed_one_its_error(
    corpus: str, recorded: Recorded
) -> None:
    service(corpus, CallableEmbedder(failing, "by-hand", 3)).search("zebra")
    assert recorded.new()[metrics.DEGRADED] == [{"part": "embed", "error.type": "error"}]
    with pytest.raises(InvalidInputError):
        service(corpus).search("zebra", filters={"knowledge_type": "poem"})
    assert recorded.new() == {
        metrics.SEARCH_DURATION: [{"mode": "hybrid", "error.type": "invalid_input"}],
        metrics.PART_DURATION: [{"part": "embed"}, {"part": "search"}],
    }


def test_a_first_page_without_results_is_empty_and_a_later_one_is_not(
    corpus: str, recorded: Recorded
) -> None:
    service(corpus).search("giraffe", mode="text")
    assert recorded.new()[metrics.EMPTY] == [{"mode": "text"}]
    service(corpus).search("zebra", mode="text", offset=10)
    assert metrics.EMPTY not in recorded.new()


@pytest.fixture
def backlog(corpus: str, reader: InMemoryMetricReader) -> Iterator[PostgresProvider]:
    provider = PostgresProvider(corpus)
    stop = metrics.observe_embedding_backlog(provider, attributes={"install": "public"})
    yield provider
    stop()


def test_the_backlog_is_counted_once_in_a_while(
    corpus: str, backlog: PostgresProvider, reader: InMemoryMetricReader
) -> None:
    def waiting() -> Any:
        return exported(reader)[metrics.PENDING][(("install", "public"),)].value

    assert waiting() == 2
    with psycopg.connect(corpus, autocommit=True) as connection:
        store_document(connection, "another", {"A third lion.": None})
        assert waiting() == 2
        connection.execute("delete from public.knowledge_documents where external_key = 'another'")


def test_a_backlog_that_cannot_be_counted_is_a_warning_and_no_number(
    reader: InMemoryMetricReader, caplog: pytest.LogCaptureFixture
) -> None:
    secret = "sk-very-secret"
    target = f"postgresql://postgres:{secret}@127.0.0.1:1/postgres"
    stop = metrics.observe_embedding_backlog(PostgresProvider(target))
    try:
        with caplog.at_level(logging.WARNING):
            exported(reader)
            assert () not in exported(reader).get(metrics.PENDING, {})
    finally:
        stop()
    reported = [line.getMessage() for line in caplog.records if "not counted" in line.getMessage()]
    # The second export does not try again.
    assert reported == ["pending chunks were not counted: unavailable"]
    assert secret not in caplog.text


def test_an_asynchronous_provider_is_refused(corpus: str) -> None:
    with pytest.raises(TypeError, match="AsyncPostgresProvider"):
        metrics.observe_embedding_backlog(AsyncPostgresProvider(corpus))  # type: ignore[arg-type]


def prometheus_names() -> dict[str, set[str]]:
    """Return the name of each series as Prometheus stores it, with its labels."""
    names: dict[str, set[str]] = {}
    for name, one in metrics.INSTRUMENTS.items():
        plain = name.replace(".", "_") + ("_seconds" if one.unit == "s" else "")
        labels = {attribute.replace(".", "_") for attribute in one.attributes}
        if one.kind == "histogram":
            names |= {f"{plain}_{part}": labels for part in ("count", "sum")}
            names[f"{plain}_bucket"] = labels | {"le"}
        else:
            names[plain + ("_total" if one.kind == "counter" else "")] = labels
    return names


def unknown_names(expression: str) -> set[str]:
    """Return the metrics and labels of a query that are not exported."""
    names = prometheus_names()
    asked = set(re.findall(r"\bsecond_brain_\w+(?=[\[{])|\bsecond_brain_embedding\w+", expression))
    assert asked, expression
    labels = set(re.findall(r"[{,]\s*(\w+)\s*(?:=~|!~|!=|=)", expression))
    for group in re.findall(r"\bby \(([^)]*)\)", expression):
        labels |= {label.strip() for label in group.split(",")}
    known = set[str]().union(*(names.get(name, set()) for name in asked))
    return (asked - names.keys()) | (labels - known - {"job"})


def test_the_dashboard_and_the_alerts_ask_for_metrics_that_exist() -> None:
    dashboard = json.loads((DOCS / "grafana.json").read_text("utf-8"))
    expressions = [
        target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())
    ]
    page = (DOCS / "operate.md").read_text("utf-8")
    alerts = re.findall(r"expr: >-\n((?: {10,}.*\n)+)", page)
    assert len(alerts) == page.count("- alert:") == 2
    asked = set()
    for expression in [*expressions, *alerts]:
        assert unknown_names(expression) == set(), expression
        asked |= {name for name in prometheus_names() if name in expression}
    # Each metric is on the dashboard.
    for name in metrics.INSTRUMENTS:
        assert any(one.startswith(name.replace(".", "_")) for one in asked), name
    assert unknown_names('sum by (mode) (rate(second_brain_search_latency_count{a="b"}[5m]))') == {
        "mode",
        "second_brain_search_latency_count",
        "a",
    }


def test_the_page_lists_each_metric_with_its_unit_and_attributes() -> None:
    page = (DOCS / "operate.md").read_text("utf-8")
    rows = {
        cells[0].strip(" `"): [cell.strip() for cell in cells[1:]]
        for line in re.findall(r"^\| (`second_brain\..*) \|$", page, re.MULTILINE)
        for cells in [line.split("|")]
    }
    assert rows.keys() == metrics.INSTRUMENTS.keys()
    for name, one in metrics.INSTRUMENTS.items():
        kind, unit, attributes, _ = rows[name]
        assert (kind, unit.strip("`")) == (one.kind, one.unit), name
        assert tuple(re.findall(r"`([^`]+)`", attributes)) == one.attributes, name
