"""The page Corpus: what is stored, what is wrong with it, what is asked, and a map of it.

Parts that take longer are loaded after the page. Without scripts, links lead to them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from second_brain.database import doctor, recall
from second_brain.database.corpus_overview import (
    AskedQuestion,
    corpus_overview,
    query_report,
    search_health,
)
from second_brain.errors import ConfigurationError, safe_message
from second_brain.models import embed_query
from second_brain.workbench import embedding_map
from second_brain.workbench.frame import Page, link, render, workbench_of

_FACETS = {
    "collection": "Collection",
    "knowledge_type": "Type",
    "year": "Year of the document",
    "language": "Language",
    "source_origin": "Origin",
    "visibility": "Visibility",
}
# What the list of documents can be filtered by.
_LISTED_BY = {"collection": "collection", "knowledge_type": "type"}
_MOST_INDEXES = 6
_MOST_QUESTIONS = 10
_RECALL_QUESTIONS = 10
_PERIODS = {"": "all time", "1": "the last day", "7": "the last 7 days", "30": "the last 30 days"}
_LISTS = (
    ("without_hits", "Without a hit"),
    ("slow", "Slow"),
    ("unsure", "With low confidence"),
    ("frequent", "Asked most"),
)


@dataclass(frozen=True, slots=True)
class Bar:
    """A row of a chart: a value, its count, its part of the longest bar in percent, and a link."""

    label: str
    count: int
    width: float
    href: str | None = None


def show(request: Request) -> Response:
    """Show counts, sizes, repetitions, embeddings, indexes and problems."""
    with workbench_of(request).connections.reading() as database:
        overview = corpus_overview(database)
        health = search_health(database)
    facets = overview["documents"]["facets"]
    indexes = sorted(health["indexes"], key=lambda one: one["bytes"], reverse=True)
    return render(
        request,
        "corpus.html",
        {
            "overview": overview,
            "health": health,
            "largest": indexes[:_MOST_INDEXES],
            "smaller": indexes[_MOST_INDEXES:],
            "facets": [
                (title, _bars(name, facets[name]))
                for name, title in _FACETS.items()
                if name in facets
            ],
            "size_bars": _size_bars(overview["sizes"]["histogram"]),
            "colours": embedding_map.COLOURED_BY,
        },
        page="corpus",
    )


def show_map(request: Request) -> Response:
    """Show the map of embeddings, as a page of its own or as a part of one."""
    given = request.query_params
    coloured_by = given.get("by", "")
    if coloured_by not in embedding_map.COLOURED_BY:
        coloured_by = embedding_map.COLOURED_BY[0]
    question = given.get("q", "").strip()[:1000]
    workbench = workbench_of(request)
    why_no_question, embedding = None, None
    with workbench.connections.reading() as database:
        if question:
            try:
                embedding = embed_query(workbench.service(database).embedder(), question)
            except ConfigurationError as error:
                why_no_question = safe_message(error)
        if embedding is not None and not embedding.any():
            embedding, why_no_question = None, "The embedder knows no word of the question."
        drawn = embedding_map.drawn(embedding_map.sampled(database), coloured_by, embedding)
    return render(
        request,
        _whole_or_part(request, "corpus_map"),
        {
            "map": drawn,
            "width": embedding_map.WIDTH,
            "height": embedding_map.HEIGHT,
            "coloured_by": coloured_by,
            "colours": embedding_map.COLOURED_BY,
            "question": question,
            "why_no_question": why_no_question,
        },
        page="corpus",
    )


def show_queries(request: Request) -> Response:
    """Show what the query log says, as a page of its own or as a part of one."""
    period = request.query_params.get("days", "")
    if period not in _PERIODS:
        period = ""
    since = datetime.now(UTC) - timedelta(days=int(period)) if period else None
    with workbench_of(request).connections.reading() as database:
        report = query_report(database, since, _MOST_QUESTIONS)
    lists: list[tuple[str, Sequence[AskedQuestion]]] = [
        (title, getattr(report, name)) for name, title in _LISTS
    ]
    return render(
        request,
        _whole_or_part(request, "corpus_queries"),
        {
            "report": report,
            "lists": lists,
            "period": period,
            "periods": _PERIODS,
            "address_of": _addresses,
        },
        page="corpus",
    )


def show_checks(request: Request) -> Response:
    """Show what `second-brain doctor` finds, as a page of its own or as a part of one."""
    connections = workbench_of(request).connections
    with connections.reading() as database:
        findings = doctor.examine(database.connection, connections.schema)
    return render(
        request, _whole_or_part(request, "corpus_checks"), {"findings": findings}, page="corpus"
    )


def show_recall(request: Request) -> Response:
    """Show how exact the vector index is, measured with a few stored chunks."""
    with workbench_of(request).connections.reading() as database:
        asked = recall.stored_questions(database, _RECALL_QUESTIONS)
        found = recall.finding("stored chunks", recall.measure(database, asked, {}))
    return render(
        request, _whole_or_part(request, "corpus_checks"), {"findings": [found]}, page="corpus"
    )


def _whole_or_part(request: Request, name: str) -> str:
    is_part = request.query_params.get("part") == "1"
    return f"{name}_part.html" if is_part else f"{name}.html"


def _bars(name: str, facet: Mapping[str, Any]) -> list[Bar]:
    values, others = facet["values"], facet["others"]
    longest = max((one["documents"] for one in values), default=1)
    if name == "year":
        values = sorted(values, key=itemgetter("value"), reverse=True)
    listed_by = _LISTED_BY.get(name)
    bars = [
        Bar(
            one["value"] or "no date",
            one["documents"],
            100 * one["documents"] / max(longest, 1),
            link("/documents", **{listed_by: one["value"]}) if listed_by else None,
        )
        for one in values
    ]
    if others:
        bars.append(Bar("less common ones", others, 100 * min(others / longest, 1)))
    return bars


def _size_bars(bins: Sequence[Mapping[str, Any]]) -> list[Bar]:
    longest = max((one["chunks"] for one in bins), default=1)
    return [
        Bar(
            "more" if one["below"] is None else f"under {one['below']:,}",
            one["chunks"],
            100 * one["chunks"] / max(longest, 1),
        )
        for one in bins
    ]


def _addresses(one: AskedQuestion) -> Mapping[str, str]:
    names = one.collections or []
    return {
        "search": link("/", q=one.question, collections=names),
        "judge": link("/judge", q=one.question, collection=names[0] if len(names) == 1 else None),
    }


PAGE = Page(
    "corpus",
    "Corpus",
    "/corpus",
    [
        Route("/corpus", show),
        Route("/corpus/map", show_map),
        Route("/corpus/queries", show_queries),
        Route("/corpus/checks", show_checks),
        Route("/corpus/recall", show_recall),
    ],
)
