"""The page Search: one question, the list of each leg and the fused list side by side."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from second_brain.models import embed_query
from second_brain.services.results import MemorySearchResult
from second_brain.workbench.frame import Page, provider_of, render, workbench_of


def show(request: Request) -> Response:
    """Show the form, and the lists if there is a question."""
    question = request.query_params.get("q", "").strip()
    workbench = workbench_of(request)
    hits: list[MemorySearchResult] = []
    if question:
        embedding = None
        if workbench.embedder is not None:
            with workbench.embedding:
                embedding = embed_query(workbench.embedder, question)
        with workbench.connections.reading() as database:
            hits, _ = provider_of(database).find(embedding, question, top_k=10)
    return render(request, "search.html", {"question": question, "hits": hits}, page="search")


PAGE = Page("search", "Search", "/", [Route("/", show)])
