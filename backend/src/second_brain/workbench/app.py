"""The workbench's application: pages behind the access rules, and an answer to each failure."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path

import psycopg
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from second_brain.errors import (
    AuthenticationError,
    ConfigurationError,
    SecondBrainError,
    UnavailableError,
    safe_message,
    translate,
)
from second_brain.models import Embedder
from second_brain.retrieval.settings import SearchSettings
from second_brain.services.install import SCHEMA
from second_brain.workbench.access import Access, AccessMiddleware
from second_brain.workbench.connections import Connections
from second_brain.workbench.frame import SharedEmbedder, Workbench, render
from second_brain.workbench.pages import PAGES

_STATIC = Path(__file__).parent / "static"


def create_app(
    dsn: str,
    *,
    embedder: Embedder | None = None,
    embedder_name: str | None = None,
    schema: str = SCHEMA,
    token: str | None = None,
) -> Starlette:
    """Return the application for the install in a schema of a database.

    Without an embedder it embeds no question. With a token it needs a cookie, which the address
    with `?token=` sets; without one it answers requests to loopback addresses only.
    """
    connections = Connections(dsn, schema)

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        yield
        connections.close()

    app = Starlette(
        routes=[
            *(route for page in PAGES for route in page.routes),
            Mount("/static", StaticFiles(directory=_STATIC), name="static"),
        ],
        middleware=[Middleware(AccessMiddleware, access=Access(token))],
        exception_handlers={
            SecondBrainError: _failed,
            psycopg.Error: _failed,
            HTTPException: _refused,
            Exception: _broken,
        },
        lifespan=lifespan,
    )
    shared = None if embedder is None else SharedEmbedder(embedder)
    # Where the embedder does not fit, a page says so and shows what text hits find.
    settings = SearchSettings(
        search_on_bad_embedding="from_text",
        search_default_mode="hybrid",
        use_reranking=False,
        search_cache_enabled=False,
        query_log="off",
    )
    app.state.workbench = Workbench(connections, shared, settings, embedder_name, PAGES)
    return app


def _failed(request: Request, error: Exception) -> Response:
    known = translate(error)
    is_lost = isinstance(known, UnavailableError)
    # The messages of these contain parts of the connection string: host, user, database.
    is_private = is_lost or isinstance(known, AuthenticationError | ConfigurationError)
    message = "The database does not answer." if is_lost else "The database refuses the workbench."
    return render(
        request,
        "failure.html",
        {
            "title": message if is_private else "This did not work",
            "message": None if is_private else safe_message(known),
            "remedy": "The page asks again every few seconds." if is_lost else known.remedy,
            "code": known.code,
            "retries": is_lost,
        },
        page="",
        status=known.http_status,
    )


def _refused(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    phrase = HTTPStatus(status).phrase
    return _plain(request, phrase, status)


def _broken(request: Request, _error: Exception) -> Response:
    # The log of the command has the traceback.
    return _plain(request, "The workbench failed", 500)


def _plain(request: Request, title: str, status: int) -> Response:
    context = {"title": title, "message": None, "remedy": None, "code": None, "retries": False}
    return render(request, "failure.html", context, page="", status=status)
