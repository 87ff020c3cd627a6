"""The page Why not: why a search does not return a document or chunk, and what would."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from second_brain.workbench.frame import Page, render


def show(request: Request) -> Response:
    """Show the form and the answer."""
    return render(request, "why_not.html", {}, page="why_not")


PAGE = Page("why_not", "Why not?", "/why-not", [Route("/why-not", show)])
