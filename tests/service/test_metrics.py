"""Metrics of searches through OpenTelemetry's real SDK; the dashboard and docs/operate.md."""

import json
import logging
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest
from opentelemetry import metrics as api
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from corpora import store_document
from second_brain.errors import InvalidInputError
from second_brain.models import CallableEmbedder
from second_brain.retrieval import metrics
from second_brain.retrieval.service import RetrievalService
from second_brain.retrieval.settings import SearchSettings
from second_brain.services.postgres import AsyncPostgresProvider, PostgresProvider

DOCS = Path(__file__).parents[2] / "docs"
BY_HAND = CallableEmbedder(lambda texts: [[1.0, 0.0, 0.0]] * len(texts), "by-hand", 3)
Points = dict[tuple[tuple[str, Any], ...], Any]


def failing(texts: Sequence[str]) -> list[list[float]]:
    raise RuntimeError("no model for zebra")


@pytest.fixture(scope="module")
def corpus(shared_dsn: str) -> str:
    waiting = {"A lion sleeps.": None, "A lion wakes.": None}
    store_document(shared_dsn, "savanna", {"A zebra is striped.": [1, 0, 0], **waiting})
    return shared_dsn


@pytest.fixture(scope="module")
def exporter() -> InMemoryMetricReader:
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
def recorded(exporter: InMemoryMetricReader) -> Recorded:
    return Recorded(exporter)


def service(dsn: str, embedder: CallableEmbedder = BY_HAND, **settings: bool) -> RetrievalService:
    return RetrievalService(
        PostgresProvider(dsn), embedder, settings=SearchSettings.model_validate(settings)
    )


def test_a_search_is_one_duration_and_one_for_each_part(corpus: str, recorded: Recorded) -> None:
    service(corpus).search("zebra")
    assert recorded.new() == {
        metrics.SEARCH_DURATION: [{"mode": "hybrid", "cached": False}],
        metrics.PART_DURATION: [{"part": "embed"}, {"part": "search"}],
    }


def test_durations_are_seconds_in_buckets_of_a_search(
    corpus: str, exporter: InMemoryMetricReader
) -> None:
    service(corpus).search("zebra")
    for name in (metrics.SEARCH_DURATION, metrics.PART_DURATION):
        for point in exported(exporter)[name].values():
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
def backlog(corpus: str, exporter: InMemoryMetricReader) -> Iterator[PostgresProvider]:
    provider = PostgresProvider(corpus)
    stop = metrics.observe_embedding_backlog(provider, attributes={"install": "public"})
    yield provider
    stop()


def test_the_backlog_is_counted_once_in_a_while(
    corpus: str, backlog: PostgresProvider, exporter: InMemoryMetricReader
) -> None:
    def waiting() -> Any:
        return exported(exporter)[metrics.PENDING][(("install", "public"),)].value

    assert waiting() == 2
    with psycopg.connect(corpus, autocommit=True) as connection:
        store_document(connection, "another", {"A third lion.": None})
        assert waiting() == 2
        connection.execute("delete from public.knowledge_documents where external_key = 'another'")


def test_a_backlog_that_cannot_be_counted_is_a_warning_and_no_number(
    exporter: InMemoryMetricReader, caplog: pytest.LogCaptureFixture
) -> None:
    secret = "sk-very-secret"
    target = f"postgresql://postgres:{secret}@127.0.0.1:1/postgres"
    stop = metrics.observe_embedding_backlog(PostgresProvider(target))
    try:
        with caplog.at_level(logging.WARNING):
            exported(exporter)
            assert () not in exported(exporter).get(metrics.PENDING, {})
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
