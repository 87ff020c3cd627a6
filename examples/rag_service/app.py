"""The web service: its addresses, its limits, and who may search what."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Annotated, Any, TypeVar
from uuid import UUID

import openai
from fastapi import Depends, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import StreamingResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from rag_service.access import TokenRefusedError, Tokens, Viewer
from rag_service.answering import Answer, Passage, numbered
from rag_service.problems import problem, respond
from rag_service.settings import Settings
from second_brain import AsyncPostgresProvider, AsyncRetrievalService, async_connection_pool
from second_brain.errors import SecondBrainError, UnavailableError
from second_brain.models import load_embedder
from second_brain.retrieval import SearchResponse
from second_brain.retrieval.query import Conditions, Text

BODY_BOUND = 64_000
"""Bytes of a request."""
READY_SECONDS = 10.0
"""How long an outcome of /ready is kept: everybody can ask, and the database has little work."""

Outcome = TypeVar("Outcome")


class Question(BaseModel):
    """The body of /ask."""

    model_config = ConfigDict(extra="forbid")

    question: Text
    passages: Annotated[int, Field(ge=1, le=20)] = 5
    filters: Conditions = None
    stream: bool = False


class Search(BaseModel):
    """The parameters of /search; any other is refused."""

    model_config = ConfigDict(extra="forbid")

    query: Text | None = None
    like_ids: Annotated[list[UUID] | None, Field(max_length=20)] = None
    limit: Annotated[int, Field(ge=1, le=100)] = 10


class WholeAnswer(BaseModel):
    """The answer of /ask without `stream`."""

    answer: str
    cited: list[int]
    finish_reason: str | None
    degraded: str | None
    passages: list[Passage]


async def while_connected(request: Request, work: Coroutine[Any, Any, Outcome]) -> Outcome:
    """Do the work; cancel it, with its SQL statement, when the client goes away."""
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(_left(request))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def event(name: str, data: object) -> str:
    """Return a server-sent event."""
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"


async def events(answer: Answer) -> AsyncIterator[str]:
    """Yield the passages, the text in parts, and the end or the error."""
    try:
        yield event("passages", [one.model_dump(mode="json") for one in answer.passages])
        async for part in answer.parts():
            yield event("text", part)
        yield event("end", answer.end())
    except SecondBrainError as error:
        yield event("error", problem(error))


async def whole(answer: Answer) -> WholeAnswer:
    """Wait for the end of the answer."""
    text = "".join([part async for part in answer.parts()])
    return WholeAnswer(answer=text, passages=answer.passages, **answer.end())


class Readiness:
    """Whether a search works; tried at most once in READY_SECONDS, whoever asks."""

    def __init__(self, service: AsyncRetrievalService) -> None:
        self._service = service
        self._trying = asyncio.Lock()
        self._kept_until = 0.0
        self._failure: SecondBrainError | None = None

    async def check(self) -> None:
        """Raise the error of the last try."""
        now = asyncio.get_running_loop().time
        async with self._trying:
            if now() >= self._kept_until:
                self._failure = None
                try:
                    await self._service.search("ready", limit=1, public_only=True, timeout=5)
                except SecondBrainError as error:
                    self._failure = error
                self._kept_until = now() + READY_SECONDS
        if self._failure is not None:
            raise self._failure


class _WithoutQuery(logging.Filter):
    """Removes the query string, which has the question, from uvicorn's access log."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple) and len(record.args) == 5:
            path = str(record.args[2]).partition("?")[0]
            record.args = (*record.args[:2], path, *record.args[3:])
        return True


def create_app(settings: Settings | None = None) -> FastAPI:
    """Return the application; without `settings`, they are read from the environment."""
    given = settings or Settings.from_environment()
    logging.getLogger("uvicorn.access").addFilter(_WithoutQuery())
    pool = async_connection_pool(
        given.second_brain_dsn.get_secret_value(), max_size=given.database_connections
    )
    key = given.second_brain_embedder_key
    embedder = load_embedder(
        given.second_brain_embedder,
        address=given.second_brain_embedder_address,
        key=None if key is None else key.get_secret_value(),
    )
    # With multi_tenant, a search without a viewer is refused.
    service = AsyncRetrievalService(AsyncPostgresProvider(pool, multi_tenant=True), embedder)
    client = openai.AsyncOpenAI(
        base_url=given.llm_base_url,
        api_key=given.llm_api_key.get_secret_value(),
        timeout=given.answer_seconds,
        max_retries=1,
    )
    tokens = Tokens(given)
    slots = asyncio.Semaphore(given.concurrent_requests)
    readiness = Readiness(service)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with pool, client:
            yield

    app = FastAPI(
        title="RAG service",
        lifespan=lifespan,
        max_body_size=BODY_BOUND,
        # Without it, there are no pages /docs and /redoc either.
        openapi_url="/openapi.json" if given.api_pages else None,
    )
    for known in (SecondBrainError, RequestValidationError, HTTPException, ClientDisconnect):
        app.add_exception_handler(known, respond)
    app.add_exception_handler(Exception, respond)
    bearer = HTTPBearer(auto_error=False)

    async def signed_in(
        request: Request, sent: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)]
    ) -> AsyncIterator[Viewer]:
        """Return the user who asks; count the request until its answer is sent or given up."""
        if sent is None:
            raise TokenRefusedError("the request has no token")
        viewer = await tokens.viewer(sent.credentials)
        if slots.locked():
            raise UnavailableError("CONCURRENT_REQUESTS are being answered")
        async with slots, AsyncExitStack() as request.state.at_end:
            yield viewer

    async def begun(request: Request, body: Question, viewer: Viewer) -> Answer:
        deadline = asyncio.get_running_loop().time() + given.answer_seconds
        found = await service.search(
            body.question,
            limit=body.passages,
            filters=body.filters,
            viewer_id=viewer.id,
            viewer_groups=viewer.groups,
            timeout=given.answer_seconds,
        )
        degraded = found.degraded.part if found.degraded else None
        is_covered = (found.answer_confidence or 0) >= given.least_answer_confidence
        passages = numbered(found.results) if is_covered else []
        answer = Answer(passages, degraded, deadline)
        request.state.at_end.push_async_callback(answer.close)
        await answer.begin(client, given.llm_model, body.question)
        return answer

    @app.post("/ask", response_model=WholeAnswer)
    async def ask(
        request: Request, body: Question, viewer: Annotated[Viewer, Depends(signed_in)]
    ) -> WholeAnswer | Response:
        """Answer a question with citations; with `stream`, as server-sent events."""
        answer = await while_connected(request, begun(request, body, viewer))
        if body.stream:
            # nginx would collect the events.
            headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
            return StreamingResponse(events(answer), 200, headers, "text/event-stream")
        return await while_connected(request, whole(answer))

    @app.get("/search")
    async def search(
        request: Request,
        viewer: Annotated[Viewer, Depends(signed_in)],
        asked: Annotated[Search, Query()],
    ) -> SearchResponse:
        """Search without an answer: for a question, or what is related to documents at hand."""
        searching = service.search(
            asked.query or "",
            like_ids=asked.like_ids,
            limit=asked.limit,
            viewer_id=viewer.id,
            viewer_groups=viewer.groups,
        )
        return await while_connected(request, searching)

    @app.get("/health")
    async def health() -> dict[str, str]:
        """Answer as long as the process runs."""
        return {"status": "ok"}

    @app.get("/ready")
    async def ready() -> dict[str, str]:
        """Answer 200 if a search works: the database, its migrations, the embeddings' model."""
        await readiness.check()
        return {"status": "ok"}

    return app
