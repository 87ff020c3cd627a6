"""What every page is built with: the database, the embedder, templates, forms.

A page's module has a `Page` with its routes. A handler is an ordinary function `(request) ->
Response`, which Starlette runs in a thread; one that reads a form is a coroutine that awaits
`submitted(request)` and leaves the database's work to `run_in_threadpool`.
"""

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlencode

import numpy as np
import psycopg
from numpy.typing import NDArray
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import ImmutableMultiDict
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.routing import BaseRoute

from second_brain.errors import InvalidInputError, SecondBrainError
from second_brain.evaluation.pages import environment
from second_brain.models import Embedder
from second_brain.models.cached import CachedEmbedder, MemoryCache
from second_brain.retrieval.embedding import NO_EMBEDDER
from second_brain.retrieval.service import RetrievalService
from second_brain.retrieval.settings import SearchSettings
from second_brain.services.install import Database, internals
from second_brain.services.postgres import PostgresProvider
from second_brain.services.write import KnowledgeWriter
from second_brain.sql_modules import MODULES, NOT_IN_ALL, module_of
from second_brain.workbench.connections import Connections

_LARGEST_FORM = 1_000_000
_MOST_QUESTIONS = 1000
_ABOUT_SECONDS = 60
WEIGHTS = ("vector_weight", "text_weight")
"""The weights of a form with settings."""

_OBJECTS = """
    select function.proname::text
    from pg_catalog.pg_proc as function
    where function.pronamespace = any (array[%(schema)s, %(internals)s]::regnamespace[])
    union
    select relation.relname::text
    from pg_catalog.pg_class as relation
    where relation.relnamespace = %(schema)s::regnamespace
"""


@dataclass(frozen=True, slots=True)
class Page:
    """A page: its place in the navigation and its routes."""

    name: str
    title: str
    path: str
    routes: Sequence[BaseRoute]


@dataclass(frozen=True, slots=True)
class About:
    """What the head of each page says: host, port and name of the database; the modules."""

    database: str | None
    modules: str


@dataclass
class Workbench:
    """What the pages share. `embedder` is None for a workbench that embeds no question."""

    connections: Connections
    embedder: Embedder | None
    settings: SearchSettings
    embedder_name: str | None = None
    """The name of the embedder for `load_embedder`."""
    pages: Sequence[Page] = ()
    _about: About | None = field(default=None, init=False)
    _about_until: float = field(default=0.0, init=False)

    def about(self, *, asks: bool) -> About | None:
        """Return what the head says, at most a minute old; without `asks`, what is known."""
        if asks and time.monotonic() >= self._about_until:
            try:
                with self.connections.reading() as database:
                    modules = _modules(database)
            except (SecondBrainError, psycopg.Error):
                # The page says what is wrong where it needs the database.
                return self._about
            self._about = About(self.connections.place, modules)
            self._about_until = time.monotonic() + _ABOUT_SECONDS
        return self._about

    def service(self, database: Database, **settings: Any) -> RetrievalService:
        """Return the service on a lent connection, with other settings of these names."""
        return RetrievalService(
            provider_of(database),
            NO_EMBEDDER if self.embedder is None else self.embedder,
            settings=self.settings.model_copy(update=settings),
        )


class SharedEmbedder(CachedEmbedder):
    """An embedder of all pages, which embeds a question once; a model may not be thread-safe."""

    def __init__(self, embedder: Embedder) -> None:
        super().__init__(embedder, MemoryCache(_MOST_QUESTIONS))
        self._embedding = threading.Lock()

    def embed_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Embed questions, one call at a time."""
        with self._embedding:
            return super().embed_queries(texts)


def workbench_of(request: Request) -> Workbench:
    """Return the workbench that a request is for."""
    found: Workbench = request.app.state.workbench
    return found


def provider_of(database: Database) -> PostgresProvider:
    """Return a provider on a lent connection."""
    return PostgresProvider(database.connection, schema=database.install.schema)


def writer_of(database: Database) -> KnowledgeWriter:
    """Return a writer on a lent connection."""
    return KnowledgeWriter(database.connection, schema=database.install.schema)


def render(
    request: Request,
    template: str,
    context: Mapping[str, Any] | None = None,
    *,
    page: str,
    status: int = 200,
) -> HTMLResponse:
    """Return a template as a response. `page` is the name of the page in the navigation."""
    workbench = workbench_of(request)
    text = _TEMPLATES.get_template(template).render(
        **(context or {}),
        page=page,
        pages=workbench.pages,
        schema=workbench.connections.schema,
        # The page of a failure has no name, and does not wait for the database.
        about=workbench.about(asks=bool(page)),
        address=request.url.path + (f"?{request.url.query}" if request.url.query else ""),
    )
    return HTMLResponse(text, status)


async def submitted(request: Request) -> ImmutableMultiDict[str, str]:
    """Return the fields of a form that was sent with POST. Raises InvalidInputError."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _LARGEST_FORM:
            raise InvalidInputError(f"the form has more than {_LARGEST_FORM} bytes")
    try:
        return ImmutableMultiDict(parse_qsl(body.decode(), keep_blank_values=True))
    except UnicodeDecodeError as error:
        raise InvalidInputError("the form is not UTF-8 text") from error


async def write(request: Request, work: Callable[[Database], object]) -> None:
    """Do work in a thread, in a transaction that may write."""

    def do() -> None:
        with workbench_of(request).connections.writing() as database:
            work(database)

    await run_in_threadpool(do)


def whole_number(name: str, given: str, least: int, most: int) -> int:
    """Return a number of an address or a form. Raises InvalidInputError."""
    # Python refuses to read thousands of digits, with an error of its own.
    is_readable = given.isdecimal() and len(given) <= len(str(most))
    if not is_readable or not least <= int(given) <= most:
        raise InvalidInputError(
            f"{name} must be a whole number from {least} to {most}, not {given[:100]!r}"
        )
    return int(given)


def number(name: str, given: str) -> float:
    """Return a number of a form. Raises InvalidInputError."""
    try:
        return float(given)
    except ValueError:
        raise InvalidInputError(f"{name} must be a number, not {given[:100]!r}") from None


def link(path: str, **values: Any) -> str:
    """Return an address on this workbench; None and empty texts are left out."""
    pairs = [(name, value) for name, value in values.items() if value not in (None, "")]
    query = urlencode(pairs, doseq=True)
    return f"{path}?{query}" if query else path


def _modules(database: Database) -> str:
    """Name the modules in short, by the functions and tables that the schema has."""
    schema = database.install.schema
    rows = database.execute(_OBJECTS, {"schema": schema, "internals": internals(schema)})
    there = {module_of(name) for (name,) in rows}
    named = [name for name in MODULES if name in there]
    if there.issuperset(MODULES.keys() - NOT_IN_ALL):
        return ", ".join(["all modules", *(name for name in named if name in NOT_IN_ALL)])
    return "core, " + ", ".join(named) if named else "core alone"


def _as_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


_TEMPLATES = environment("second_brain.workbench")
_TEMPLATES.globals["link"] = link
_TEMPLATES.filters.update(as_json=_as_json)
