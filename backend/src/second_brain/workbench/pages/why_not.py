"""The page Why not: why a search does not return a document or chunk, and where it stands.

One SQL function knows the causes and ranks; the page shows them with a remedy for each cause.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from second_brain.errors import InvalidInputError, safe_message
from second_brain.services.results import REMEDIES
from second_brain.workbench import asking
from second_brain.workbench.asking import access_of
from second_brain.workbench.frame import Page, render, workbench_of
from second_brain.workbench.question import read_question

_DEEPEST = 1000
"""The largest pool, and the right end of the picture of ranks."""

_LONG_FRACTION = re.compile(r"(\d+\.\d{4})\d+")

TITLES = {
    "collection": "Another collection",
    "boosts": "Below the page by the boosts",
    "confidence": "Below the least confidence",
    "date": "Outside the dates",
    "diversity": "Too like a hit above it",
    "duplicate": "A better hit says the same",
    "earlier_page": "On an earlier page",
    "excluded_words": "It has a word that the question excludes",
    "filter": "A filter leaves it out",
    "fusion": "Below the last hit of the page",
    "grouped": "Its document shows other chunks",
    "missed": "Not among the rows that were read",
    "no_embedding": "It has no embedding",
    "no_words": "It has no word of the question",
    "not_stored": "Not in the database",
    "order": "Below the page by order_by",
    "permission": "The viewer may not see it",
    "pool": "Outside the pool",
    "recency": "Too old for this half-life",
    "required_words": "It lacks a word that the question requires",
    "status": "Not active",
    "threshold": "Below the least similarity",
    "validity": "It does not hold at this time",
}


@dataclass(frozen=True, slots=True)
class Standing:
    """Where the chunk stands in one leg; `at` is its place in the picture, 0 to 100."""

    leg: str
    title: str
    is_run: bool
    rank: int | None
    score: str | None
    at: float | None
    pool_at: float


def show(request: Request) -> Response:
    """Show the form; the page then asks for the answer, which can take seconds."""
    question, problems = read_question(request.query_params)
    context = {
        "question": question,
        "key": _key(request),
        "hidden": [(name, value) for name, value in question.hidden() if name != "q"],
        "problems": problems,
    }
    status = 400 if problems else 200
    return render(request, "why_not.html", context, page="why_not", status=status)


def answer(request: Request) -> Response:
    """Show the answer, as a part of the page."""
    question, problems = read_question(request.query_params)
    key = _key(request)
    explained: dict[str, Any] | None = None
    why_no_vector = None
    if question.query and key and not problems:
        workbench = workbench_of(request)
        try:
            with workbench.connections.reading() as database:
                service = workbench.service(database, **question.settings)
                found = service.why_not(question.search(), key, **access_of(question))
            explained, why_no_vector = found.answer, asking.why_no_vector(found.degraded)
        except InvalidInputError as error:
            problems.append(safe_message(error))
    return render(
        request,
        "why_not_answer.html",
        {
            "question": question,
            "key": key,
            "problems": problems,
            "answer": explained,
            "why_no_vector": why_no_vector,
            "legs": [] if explained is None else _standings(explained),
            "causes": [] if explained is None else _causes(explained["causes"]),
        },
        page="why_not",
    )


def _key(request: Request) -> str:
    return request.query_params.get("key", "").strip()


def _standings(answer: Mapping[str, Any]) -> list[Standing]:
    standings = []
    pool_at = _on_scale(answer["pool"])
    for leg, title, score, digits in (
        ("vector", "Vector", "similarity", 3),
        ("text", "Text", "score", 2),
    ):
        standing = answer[leg]
        value = standing[score]
        standings.append(
            Standing(
                leg,
                title,
                standing["is_run"],
                standing["rank"],
                None if value is None else f"{value:.{digits}f}",
                None if standing["rank"] is None else _on_scale(standing["rank"]),
                pool_at,
            )
        )
    return standings


def _on_scale(rank: int) -> float:
    """Return the place of a rank on a logarithmic scale of 0 to 100."""
    return 100 * min(math.log(rank) / math.log(_DEEPEST), 1)


def _causes(causes: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            **one,
            "title": TITLES.get(one["cause"], one["cause"].replace("_", " ")),
            "reason": _LONG_FRACTION.sub(r"\1", one["reason"]),
            "remedy": REMEDIES.get(one["cause"], ""),
        }
        for one in causes
    ]


PAGE = Page(
    "why_not", "Why not?", "/why-not", [Route("/why-not", show), Route("/why-not/answer", answer)]
)
