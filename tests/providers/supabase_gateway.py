"""A gateway that stands for Supabase's: it checks what the client sends, and passes it on.

Each test with the fixture `rest` runs twice: against answers that were recorded from a real
PostgREST, and against a real one over the test database when POSTGREST_BIN names its binary.
"""

import asyncio
import json
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qsl
from uuid import UUID

import jwt
import psycopg
import pytest

import second_brain.services.arguments as search
from corpora import SAVANNA
from postgrest_server import JWT_SECRET, PostgREST
from second_brain.services.functions import functions
from second_brain.services.supabase import AsyncSupabaseProvider, SupabaseProvider
from second_brain.services.write import KnowledgeWriter

PREFIX = "/rest/v1"
Key = Literal["service_role", "authenticated", "nobody", "anon", "expired", "unsigned"]
ROLES: dict[Key, str] = {
    "authenticated": "authenticated",
    "nobody": "authenticated",
    "anon": "anon",
}

OWN_ARGUMENTS = {one.sql_name for one in search.ARGUMENTS.values()} - {*search.VIEWER}
ARGUMENTS = {name: {*one.arguments} for name, one in functions().items()}


@dataclass(frozen=True)
class Answer:
    """What PostgREST says: a JSON value, or a text as it stands."""

    status: int = 200
    body: object = field(default_factory=list)
    content_type: str = "application/json; charset=utf-8"
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def content(self) -> bytes:
        return (self.body if isinstance(self.body, str) else json.dumps(self.body)).encode()


def error(status: int, code: str, message: str, hint: str | None = None) -> Answer:
    return Answer(status, {"code": code, "details": None, "hint": hint, "message": message})


class Gateway(ThreadingHTTPServer):
    """Supabase's gateway: checks a request, and replays an answer or asks a PostgREST."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.answer = Answer()
        self.upstream: int | None = None
        self.held = threading.Event()
        self.held.set()
        self.drops: list[Literal["before the answer", "in the answer"]] = []
        self.complaints: list[str] = []
        self.bodies: list[dict[str, Any]] = []
        self.connections = 0
        self.most_rows: int | None = None
        self.offsets: list[int] = []
        self.counted: list[bool] = []
        self.schemas: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections += 1
        super().process_request(request, client_address)


class _Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Gateway

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        answer = self._check(content)
        self.server.held.wait(30)
        drop = self.server.drops.pop() if self.server.drops else None
        if drop == "before the answer":
            self.close_connection = True
            return
        if answer is None:
            answer = self._recorded() if self.server.upstream is None else self._ask(content)
        try:
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.content_type)
            self.send_header("Content-Length", str(len(answer.content)))
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.end_headers()
            if drop == "in the answer":
                self.close_connection = True
                self.wfile.write(answer.content[:-1])
                return
            self.wfile.write(answer.content)
        except ConnectionError:
            self.close_connection = True  # The client did not wait.

    def _recorded(self) -> Answer:
        """Cut the answer as PostgREST does by db-max-rows, which says so when it is asked to."""
        answer, most = self.server.answer, self.server.most_rows
        if most is None or not isinstance(answer.body, list):
            return answer
        first = self.server.offsets[-1]
        rows = answer.body[first : first + most]
        if "count=exact" not in self.headers.get("Prefer", ""):
            return replace(answer, body=rows)
        counted = f"{first}-{first + len(rows) - 1}/{len(answer.body)}"
        return replace(answer, status=206, body=rows, headers={"Content-Range": counted})

    def _check(self, content: bytes) -> Answer | None:
        """Complain about what is wrong; answer as PostgREST does where it knows no such call."""
        bearer = self.headers.get("Authorization", "")
        if bearer != f"Bearer {self.headers.get('apikey')}":
            self.server.complaints.append("apikey and Authorization differ")
        if self.headers.get("Content-Type") != "application/json":
            self.server.complaints.append(f"Content-Type {self.headers.get('Content-Type')}")
        path, _, parameters = self.path.partition("?")
        name = path.removeprefix(f"{PREFIX}/rpc/")
        self.server.offsets.append(int(dict(parse_qsl(parameters)).get("offset", 0)))
        self.server.counted.append("count=exact" in self.headers.get("Prefer", ""))
        self.server.schemas.append(self.headers.get("Content-Profile"))
        body = json.loads(content)
        self.server.bodies.append(body)
        known = ARGUMENTS.get(name)
        searches = body.get("search", {})
        searches = searches if isinstance(searches, list) else [searches]
        in_search = set().union(*searches) - {*OWN_ARGUMENTS, *search.VIEWER}
        if known is None or not set(body) <= known or in_search:
            self.server.complaints.append(f"unknown call {self.path} {sorted(body)}")
            message = f"Could not find the function public.{name} in the schema cache"
            return error(404, "PGRST202", message)
        return None

    def _ask(self, content: bytes) -> Answer:
        assert self.server.upstream is not None
        upstream = HTTPConnection("127.0.0.1", self.server.upstream, timeout=30)
        try:
            passed = ("Authorization", "Content-Profile", "Content-Type", "Prefer")
            headers = {name: self.headers[name] for name in passed if name in self.headers}
            upstream.request("POST", self.path.removeprefix(PREFIX), content, headers)
            response = upstream.getresponse()
            text = response.read().decode()
            counted = {
                name: value for name, value in response.headers.items() if name == "Content-Range"
            }
            return Answer(response.status, text, response.headers["Content-Type"] or "", counted)
        finally:
            upstream.close()

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""


def token(key: Key) -> str:
    claims: dict[str, object] = {"role": ROLES.get(key, "service_role")}
    if key == "authenticated":
        claims["sub"] = str(VIEWER)
    claims["exp"] = int(time.time()) + (-3600 if key == "expired" else 3600)
    secret = JWT_SECRET if key != "unsigned" else JWT_SECRET[::-1]
    return jwt.encode(claims, secret, algorithm="HS256")


class Rest(ABC):
    """A project's REST API, whichever answers."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.providers: list[SupabaseProvider] = []

    @abstractmethod
    def given(self, recorded: Answer, *statements: str) -> None:
        """Make a situation: `recorded` is what was answered in it, the statements bring it about.

        They run as the tables' owner, after three chunks were stored.
        """

    def provider(self, key: Key = "service_role", timeout: float = 30) -> SupabaseProvider:
        """Return a provider that calls with this key."""
        self.providers.append(SupabaseProvider(config(self.gateway, key), timeout=timeout))
        return self.providers[-1]

    def close(self) -> None:
        for provider in self.providers:
            provider.close()


class Recorded(Rest):
    """Replays."""

    def given(self, recorded: Answer, *statements: str) -> None:
        self.gateway.answer = recorded


class Real(Rest):
    """Runs PostgREST over a database of this test's own."""

    def __init__(self, gateway: Gateway, owner: str, server: PostgREST) -> None:
        super().__init__(gateway)
        self.owner, self.server = owner, server

    def given(self, recorded: Answer, *statements: str) -> None:
        with psycopg.connect(self.owner, autocommit=True) as connection:
            KnowledgeWriter(connection).upsert_document(DOCUMENT, SAVANNA)
            for statement in statements:
                connection.execute(statement.encode())
        self.server.start()
        self.gateway.upstream = self.server.port

    def close(self) -> None:
        super().close()
        self.server.stop()


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    with Gateway() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server
        server.held.set()
        server.shutdown()
        thread.join()
        assert server.complaints == []


@pytest.fixture(params=["recorded", "real"])
def rest(request: pytest.FixtureRequest, gateway: Gateway, tmp_path: Path) -> Iterator[Rest]:
    if request.param == "recorded":
        made: Rest = Recorded(gateway)
    else:
        binary = os.environ.get("POSTGREST_BIN")
        if not binary:
            pytest.skip("POSTGREST_BIN names no PostgREST")
        owner = request.getfixturevalue("dsn")
        admin = request.getfixturevalue("server").admin_dsn()
        made = Real(gateway, owner, PostgREST(binary, admin, owner, tmp_path))
    try:
        yield made
    finally:
        made.close()


DOCUMENT = {
    "external_key": "savanna",
    "title": "Savanna",
    "knowledge_type": "note",
    "source_origin": "obsidian",
    "document_date": "2026-01-31",
    "visibility": "public",
    "metadata": {"team": "search"},
}
ROW = {
    "id": "6f0e4a52-3c0e-4a57-9f9b-0d8f1f7f0001",
    "content": "A zebra eats grass on the plain.",
    "knowledge_type": "note",
    "document_id": "6f0e4a52-3c0e-4a57-9f9b-0d8f1f7f0002",
    "chunk_index": 1,
    "source_origin": "obsidian",
    "metadata": {"team": "search"},
}
HYBRID_ROW = {
    **ROW,
    **dict.fromkeys(("confidence", "similarity", "vector_rank", "text_rank"), 1),
    **dict.fromkeys(("source_url", "snippet", "context")),
    "rrf_score": 1 / 61 + 1 / 61,
    "text_score": 1.4,
    "match_type": "both",
    "matched_terms": ["zebra", "grass"],
    "title": "Savanna",
    "collection": "knowledge",
    "document_date": "2026-01-31",
    "total_count": 2,
    "answer_confidence": 0.9998,
}


VIEWER = UUID("6f0e4a52-3c0e-4a57-9f9b-0d8f1f7f000a")


def config(gateway: Gateway, key: Key = "service_role") -> dict[str, str]:
    return {"supabase_url": gateway.url, "supabase_key": token(key)}


def blocking(gateway: Gateway, search: Callable[[Any], Any], **options: Any) -> Any:
    with SupabaseProvider(config(gateway), **{"sleep": lambda seconds: None, **options}) as made:
        return search(made)


def looping(gateway: Gateway, search: Callable[[Any], Awaitable[Any]], **options: Any) -> Any:
    async def ask() -> Any:
        async def sleep(seconds: float) -> None:
            """Return at once."""

        made = AsyncSupabaseProvider(config(gateway), **{"sleep": sleep, **options})
        async with made:
            return await search(made)

    return asyncio.run(ask())


SIDES = pytest.mark.parametrize("side", [blocking, looping])
