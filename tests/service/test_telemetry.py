"""Telemetry of a search: one log line, and OpenTelemetry's spans through its real SDK."""

import asyncio
import logging
import logging.handlers
import sys
from collections.abc import Iterator, Sequence

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from corpora import store_document
from second_brain.errors import InvalidInputError
from second_brain.models import CallableEmbedder
from second_brain.retrieval import telemetry
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
    texts = {
        "A zebra is striped.": [1.0, 0.0, 0.0],
        "The zebra crossing.": [0.9, 0.1, 0.0],
        "A lion sleeps.": [0.5, 0.5, 0.0],
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
    line = last(lines)
    assert line.levelno == logging.INFO
    reported = {
        name: getattr(line, name) for name in ("event", "mode", "mode_used", "limit", "offset")
    }
    assert reported == {
        "event": "search",
        "mode": "rerank",
        "mode_used": "rerank",
        "limit": 2,
        "offset": 0,
    }
    assert (line.__dict__["results"], line.__dict__["total_count"]) == (2, 3)
    assert (line.__dict__["vector_hits"], line.__dict__["text_hits"]) == (2, 1)
    assert line.__dict__["cached"] is False
    for part in ("embed", "search", "rerank", "total"):
        spent = getattr(response.timings, part)
        assert line.__dict__[f"{part}_ms"] == pytest.approx(spent, abs=0.001)
        assert spent > 0
    assert not hasattr(line, "degraded")
    assert not hasattr(line, "error_kind")


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
    parents = {
        name: next(
            (
                one.name
                for one in found.values()
                if span.parent and one.context.span_id == span.parent.span_id
            ),
            None,
        )
        for name, span in found.items()
    }
    assert parents == {
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
