"""The page Search: one question, the list of each leg and the fused list side by side."""

from collections.abc import Sequence
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from second_brain.errors import InvalidInputError, safe_message
from second_brain.filters import COLUMNS, OPERATORS
from second_brain.models import embed_query
from second_brain.retrieval.answer import SearchResult
from second_brain.services.arguments import Leg
from second_brain.workbench.asking import Asked, ask, pieces
from second_brain.workbench.frame import Page, Workbench, render, workbench_of
from second_brain.workbench.offers import chosen, offered, questions
from second_brain.workbench.question import FUSIONS, LEGS, TEXT_MODES, Question, read_question

_COLUMNS: dict[Leg, str] = {"vector": "Vector", "hybrid": "Fused", "text": "Text"}
_LABELS = {
    "eq": "is",
    "ne": "is not",
    "in": "is one of",
    "not_in": "is none of",
    "gte": "≥",
    "gt": ">",
    "lte": "≤",
    "lt": "<",
    "is_null": "is empty",
    "is_not_null": "is not empty",
}
"""The operators of filters that are not shown by their names."""
_TAKES = {
    **dict.fromkeys(("is_null", "is_not_null"), "nothing"),
    **dict.fromkeys(("in", "not_in", "has_any", "between"), "several"),
    **dict.fromkeys(("has_all_words", "has_any_word", "has_no_word"), "several"),
}
"""How many values an operator takes, if not one."""
_STEPS = (("embed", "embed"), ("vector", "vector"), ("text", "text"), ("hybrid", "fused"))


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a hit's bar, on a scale of 0 to 100."""

    leg: str
    start: float
    width: float


@dataclass(frozen=True, slots=True)
class Row:
    """A hit in a list of the page."""

    place: int
    hit: SearchResult
    pieces: Sequence[tuple[str, bool]]
    bar: Sequence[Part]
    bar_label: str


@dataclass(frozen=True, slots=True)
class Column:
    """A list of the page."""

    leg: Leg
    title: str
    rows: Sequence[Row]
    total: int | None
    empty: str


def show(request: Request) -> Response:
    """Show the form, and the lists if there is a question."""
    question, problems = read_question(request.query_params)
    workbench = workbench_of(request)
    asked = Asked(question)
    remedy = None
    examples: list[str] | None = []
    if (question.query or question.like_ids) and not problems:
        try:
            with workbench.connections.reading() as database:
                asked = ask(workbench.service(database, **question.settings), question)
        except InvalidInputError as error:
            problems.append(safe_message(error))
            remedy = error.remedy
    elif not problems:
        with workbench.connections.reading() as database:
            examples = questions(database, question)
    columns = _columns(asked)
    return render(
        request,
        "search.html",
        {
            "question": question,
            "defaults": Question(),
            "problems": problems,
            "remedy": remedy,
            "columns": columns,
            "asked": asked,
            "steps": [
                (title, asked.milliseconds[step])
                for step, title in _STEPS
                if step in asked.milliseconds
            ],
            **(_copies(workbench, asked) if asked.lists else {"python": "", "sql": ""}),
            "chosen": chosen(question),
            "hidden": question.hidden(),
            "examples": examples,
            "is_empty": examples is None,
            "most": max((column.total or 0 for column in columns), default=0),
            "fusions": FUSIONS,
            "legs": LEGS,
            "search_modes": TEXT_MODES,
            "operators": [
                (op, _LABELS.get(op, op.replace("_", " ")), _TAKES.get(op, "one"))
                for op in OPERATORS
            ],
            "columns_of_filters": (*COLUMNS, "metadata."),
        },
        page="search",
        status=400 if problems else 200,
    )


def offer(request: Request) -> Response:
    """Show the filters with counts from the corpus, as a part of the form."""
    question, _ = read_question(request.query_params)
    with workbench_of(request).connections.reading() as database:
        facets = offered(database, question)
    return render(request, "search_filters.html", {"facets": facets}, page="search")


def _columns(asked: Asked) -> list[Column]:
    columns = []
    # The vector leg marks no words.
    fused = asked.lists.get("hybrid")
    snippets = {} if fused is None else {hit.id: hit.snippet for hit in fused.hits}
    for leg, title in _COLUMNS.items():
        listed = asked.lists.get(leg)
        hits = () if listed is None else listed.hits
        best = max((hit.text_score or 0 for hit in hits), default=0)
        rows = [
            Row(
                hit.rank,
                hit,
                pieces(snippets.get(hit.id) or hit.snippet),
                *_bar(leg, hit, best, asked.shares.get(hit.id)),
            )
            for hit in hits
        ]
        total = None if listed is None else listed.total
        columns.append(Column(leg, title, rows, total, _why_empty(asked, leg)))
    return columns


def _bar(leg: Leg, hit: SearchResult, best: float, share: float | None) -> tuple[list[Part], str]:
    """Return the bar of a hit, and what it says.

    Vector: the similarity, of 1. Text: the score, of the best one of the page. Fused: the fused
    score, of the best possible one, by the parts of the legs. A leg that did not find the hit has
    no colour: what `auto` assumes for it is grey.
    """
    if leg == "vector":
        similarity = hit.similarity or 0
        return [Part("leg", 0, 100 * max(similarity, 0))], f"Similarity {similarity:.3f}"
    if leg == "text":
        score = hit.text_score or 0
        return [Part("leg", 0, 100 * score / best if best else 0)], f"BM25 {score:.2f}"
    whole = 100 * hit.confidence
    if share is None:
        return [], f"Fused score {hit.rrf_score or 0:.4f}"
    parts, said = [], []
    start = 0.0
    for part, rank, of_leg in (
        ("vector", hit.vector_rank, share),
        ("text", hit.text_rank, 1 - share),
    ):
        if of_leg > 0:
            parts.append(Part(part if rank else "assumed", start, of_leg * whole))
            said.append(f"{100 * of_leg:.0f} % {'from' if rank else 'assumed for'} {part}")
            start += of_leg * whole
    return parts, "Of the score: " + ", ".join(said)


def _copies(workbench: Workbench, asked: Asked) -> dict[str, str]:
    """Return the search as a program and as a statement."""
    question, connections = asked.question, workbench.connections
    settings = workbench.settings.model_copy(update=question.settings)
    name = embedding = None
    if asked.model is not None and workbench.embedder is not None:
        name = workbench.embedder_name
        embedding = embed_query(workbench.embedder, question.query).tolist()
    return {
        "python": question.python(name, connections.schema, settings, asked.is_inferred),
        "sql": question.sql(embedding, connections.install, settings, asked.is_inferred),
    }


def _why_empty(asked: Asked, leg: Leg) -> str:
    if leg in asked.lists:
        return "No hit."
    if leg == "hybrid":
        return "One leg alone is asked, so there is nothing to fuse."
    if leg == "vector" and asked.why_no_vector:
        return asked.why_no_vector
    return "This leg is not asked."


PAGE = Page(
    "search",
    "Search",
    "/",
    [Route("/", show), Route("/search/filters", offer)],
)
