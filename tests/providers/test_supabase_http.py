"""SupabaseProvider and AsyncSupabaseProvider through the real supabase-py and HTTP.

Each test runs twice: against answers that were recorded from a real PostgREST, and against a real
one over the test database when POSTGREST_BIN names its binary. In both cases the provider talks to
a gateway on this machine that stands for Supabase's: it checks what the client sends.
"""

import asyncio
import json
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import date
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qsl
from uuid import UUID

import httpx
import jwt
import numpy as np
import psycopg
import pytest
from supabase.lib.client_options import AsyncClientOptions

from postgrest_server import JWT_SECRET, PostgREST, free_port
from second_brain import errors
from second_brain.errors import ClientUnavailableError
from second_brain.filters import FilterBuilder
from second_brain.services.arguments import SearchOptions
from second_brain.services.corpus_settings import CorpusSettings
from second_brain.services.results import EmbeddingModel
from second_brain.services.supabase import AsyncSupabaseProvider, SupabaseProvider
from second_brain.services.write import KnowledgeWriter
from supabase import acreate_client

PREFIX = "/rest/v1"
Key = Literal["service_role", "authenticated", "nobody", "anon", "expired", "unsigned"]
ROLES: dict[Key, str] = {
    "authenticated": "authenticated",
    "nobody": "authenticated",
    "anon": "anon",
}

OWN_ARGUMENTS = {
    "query_embedding",
    "query_text",
    "match_count",
    "match_threshold",
    "vector_weight",
    "text_weight",
    "filter_type",
    "search_mode",
    "pool_size",
    "rrf_k",
    "fusion",
    "filters",
    "date_from",
    "date_to",
    "collections",
    "public_only",
    "one_per_document",
    "neighbor_window",
    "recency_half_life",
    "match_offset",
    "snippet",
    "formulations",
}
ARGUMENTS = {
    "hybrid_search_knowledge_chunks": {*OWN_ARGUMENTS, "viewer_id"},
    "search_my_knowledge_chunks": OWN_ARGUMENTS,
    "search_public_knowledge_chunks": OWN_ARGUMENTS - {"public_only"},
    "explain_hybrid_search": {*OWN_ARGUMENTS, "viewer_id"},
    "hybrid_search_knowledge_chunks_batch": {"queries", "fuse"},
    "knowledge_embedding_models": set(),
    "list_knowledge_settings": set(),
    "reset_knowledge_settings": {"collection"},
    "set_knowledge_settings": {
        *("collection", "fusion", "vector_weight", "text_weight", "embedding_model")
    },
    "list_my_knowledge_documents": {
        *("page_size", "after_key", "include_public", "include_groups")
    },
    "read_my_knowledge_document": {"document", "chunk_count", "chunk_offset"},
    "delete_my_knowledge_document": {"document"},
    "read_knowledge_document": {
        "document",
        "viewer_id",
        "public_only",
        "collections",
        "chunk_count",
        "chunk_offset",
    },
    "match_knowledge_chunks": {
        "query_embedding",
        "match_count",
        "match_threshold",
        "filter_type",
        "viewer_id",
        "public_only",
    },
    "search_knowledge_chunks_fulltext": {
        "query_text",
        "search_mode",
        "filter_type",
        "match_count",
        "viewer_id",
        "public_only",
    },
}


@dataclass(frozen=True)
class Answer:
    """What PostgREST says: a JSON value, or a text as it stands."""

    status: int = 200
    body: object = field(default_factory=list)
    content_type: str = "application/json; charset=utf-8"
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def content(self) -> bytes:
        """The body's bytes."""
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
        self.schemas: list[str | None] = []

    @property
    def url(self) -> str:
        """The project's URL."""
        return f"http://127.0.0.1:{self.server_port}"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Count a connection."""
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
        self.server.schemas.append(self.headers.get("Content-Profile"))
        body = json.loads(content)
        self.server.bodies.append(body)
        known = ARGUMENTS.get(name)
        if known is None or not set(body) <= known:
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
        config = {"supabase_url": self.gateway.url, "supabase_key": token(key)}
        self.providers.append(SupabaseProvider(config, timeout=timeout))
        return self.providers[-1]

    def close(self) -> None:
        """End what was started."""
        for provider in self.providers:
            provider.close()


class Recorded(Rest):
    """Replays."""

    def given(self, recorded: Answer, *statements: str) -> None:
        """See Rest."""
        self.gateway.answer = recorded


class Real(Rest):
    """Runs PostgREST over a database of this test's own."""

    def __init__(self, gateway: Gateway, owner: str, server: PostgREST) -> None:
        super().__init__(gateway)
        self.owner, self.server = owner, server

    def given(self, recorded: Answer, *statements: str) -> None:
        """See Rest."""
        with psycopg.connect(self.owner, autocommit=True) as connection:
            KnowledgeWriter(connection).upsert_document(DOCUMENT, CHUNKS)
            for statement in statements:
                connection.execute(statement.encode())
        self.server.start()
        self.gateway.upstream = self.server.port

    def close(self) -> None:
        """See Rest."""
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
CHUNKS: list[dict[str, object]] = [
    {"content": "The zebra crossing is striped.", "embedding": [1.0, 0.0, 0.0]},
    {"content": "A zebra eats grass on the plain.", "embedding": [0.8, 0.6, 0.0]},
    {"content": "The lion sleeps.", "embedding": [0.0, 0.0, 1.0]},
]
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
    "rrf_score": 1 / 61 + 1 / 61,
    "confidence": 1,
    "vector_rank": 1,
    "text_rank": 1,
    "similarity": 1,
    "text_score": 1.4,
    "match_type": "both",
    "matched_terms": ["zebra", "grass"],
    "title": "Savanna",
    "source_url": None,
    "collection": "knowledge",
    "document_date": "2026-01-31",
    "snippet": None,
    "context": None,
    "total_count": 2,
}


def test_hybrid_search_finds_a_row(rest: Rest) -> None:
    rest.given(Answer(body=[HYBRID_ROW]))
    results, details = rest.provider().hybrid_search(
        (0.8, 0.6, 0.0), "zebra grass", top_k=1, threshold=0.5, fusion="rrf"
    )
    assert details == {
        "provider": "supabase",
        "mode": "hybrid",
        "real_provider": True,
        "raw_count": 1,
        "total_count": 2,
    }
    (result,) = results
    assert result.content == ROW["content"]
    assert result.source == "supabase"
    assert result.metadata["rrf_score"] == pytest.approx(2 / 61)
    assert result.confidence == pytest.approx(1)
    assert result.metadata["similarity"] == pytest.approx(1)
    assert result.metadata["match_type"] == "both"
    assert sorted(result.metadata["matched_terms"]) == ["grass", "zebra"]
    assert result.metadata["title"] == "Savanna"
    assert dict(result.metadata)["team"] == "search"
    assert result.metadata["collection"] == "knowledge"
    assert result.metadata["document_date"] == "2026-01-31"
    assert result.metadata["total_count"] == 2


OWN_DOCUMENT = {
    "id": ROW["document_id"],
    "external_key": "savanna",
    "title": "Savanna",
    "knowledge_type": "note",
    "collection": "knowledge",
    "source_origin": "obsidian",
    "source_url": None,
    "document_date": "2026-01-31",
    "visibility": "public",
    "is_own": True,
    "chunk_count": 3,
    "created_at": "2026-02-01T10:00:00+00:00",
    "updated_at": "2026-02-01T10:00:00+00:00",
}
OWNED = "update public.knowledge_documents set owner_id = '6f0e4a52-3c0e-4a57-9f9b-0d8f1f7f000a'"


def test_a_user_lists_their_documents(rest: Rest) -> None:
    rest.given(Answer(body=[OWN_DOCUMENT]), OWNED)
    (document,) = rest.provider("authenticated").list_my_documents(page_size=2)
    assert (document.external_key, document.chunk_count, document.is_own) == ("savanna", 3, True)
    assert document.document_date == date(2026, 1, 31)


def test_a_document_that_a_user_may_not_see_is_none(rest: Rest) -> None:
    rest.given(Answer(body="null"), OWNED)
    assert rest.provider("authenticated").read_my_document(UUID(int=7)) is None


def test_a_user_reads_a_document(gateway: Gateway) -> None:
    chunk: dict[str, object] = {
        **dict.fromkeys(("chunk_index", "heading")),
        "content": "a",
        "metadata": {},
    }
    chunk |= {"id": ROW["id"], "collection": "knowledge"}
    rest: dict[str, object] = {
        "author": None,
        "language": "english",
        "sensitivity": None,
        "allowed_groups": None,
        "metadata": {"a": 1},
    }
    gateway.answer = Answer(body={**OWN_DOCUMENT, **rest, "chunks": [chunk]})
    with SupabaseProvider(
        {"supabase_url": gateway.url, "supabase_key": token("authenticated")}
    ) as provider:
        found = provider.read_my_document(str(ROW["document_id"]), chunk_count=1)
    assert found is not None
    assert [one.content for one in found.chunks] == ["a"]


def test_a_user_deletes_nothing_of_others(rest: Rest) -> None:
    rest.given(Answer(body="false"))
    assert rest.provider("authenticated").delete_my_document(UUID(int=7)) is False


def test_a_deletion_is_not_sent_twice(gateway: Gateway) -> None:
    gateway.drops = ["before the answer", "before the answer"]
    with (
        SupabaseProvider(
            {"supabase_url": gateway.url, "supabase_key": token("authenticated")}
        ) as provider,
        pytest.raises(errors.ConnectionLostError),
    ):
        provider.delete_my_document(UUID(int=7))
    assert len(gateway.bodies) == 1


VIEWER = UUID("6f0e4a52-3c0e-4a57-9f9b-0d8f1f7f000a")


def test_every_option_goes_through_as_json(rest: Rest) -> None:
    rest.given(Answer(body=[HYBRID_ROW]))
    options: SearchOptions = {
        "top_k": 1,
        "rrf_k": 10.0,
        "fusion": "rrf",
        "filters": FilterBuilder().add_metadata("team", "search").add_date_range(date(2026, 1, 1)),
        "date_from": date(2026, 1, 1),
        "date_to": "2026-12-31",
        "collections": ("knowledge",),
        "viewer_id": VIEWER,
        "public_only": True,
        "one_per_document": True,
        "neighbor_window": 1,
        "recency_half_life": 30.0,
        "match_offset": 0,
        "snippet": True,
        "formulations": [{"query_embedding": np.array([0.0, 1.0, 0.0]), "query_text": "grass"}],
    }
    results, details = rest.provider().hybrid_search([0.8, 0.6, 0], "zebra", **options)
    assert "fallback_reason" not in details, details
    assert [result.content for result in results] == [ROW["content"]]
    # match_offset is at its default, and not sent: an older database might not know it.
    sent = rest.gateway.bodies[0]
    assert {name: sent.get(name) for name in options.keys() - {"top_k"}} == {
        "rrf_k": 10.0,
        "fusion": "rrf",
        "filters": [
            {"field": "metadata.team", "op": "eq", "value": "search"},
            {"field": "document_date", "op": "gte", "value": "2026-01-01"},
        ],
        "date_from": "2026-01-01",
        "date_to": "2026-12-31",
        "collections": ["knowledge"],
        "viewer_id": str(VIEWER),
        "public_only": True,
        "one_per_document": True,
        "neighbor_window": 1,
        "recency_half_life": 30.0,
        "match_offset": None,
        "snippet": True,
        "formulations": [{"query_embedding": [0.0, 1.0, 0.0], "query_text": "grass"}],
    }


def test_a_single_leg_takes_a_viewer(rest: Rest) -> None:
    rest.given(Answer(body=[{**ROW, "rank": 1.4}]))
    (result,), details = rest.provider().fulltext_search("grass", viewer_id=VIEWER)
    assert details["mode"] == "fulltext"
    rank = result.metadata["text_score"]
    assert rank is not None
    assert result.confidence == pytest.approx(rank / (1 + rank))
    (body,) = rest.gateway.bodies
    assert (body["viewer_id"], body["query_text"], body["match_count"]) == (str(VIEWER), "grass", 5)
    assert "query_embedding" not in body


def test_a_batch_is_one_request(rest: Rest) -> None:
    rows = [{**HYBRID_ROW, "query_index": index} for index in (0, 2, 2)]
    rest.given(Answer(body=rows))
    answers, details = rest.provider().hybrid_search_batch(
        [
            {"query_embedding": np.array([0.8, 0.6, 0.0]), "top_k": 1, "threshold": 0.5},
            {"query_text": "unicorn", "date_to": date(2026, 12, 31)},
            {"query_text": "zebra"},
        ]
    )
    assert "fallback_reason" not in details, details
    assert [len(answer) for answer in answers] == [1, 0, 2]
    assert details["raw_count"] == 3
    assert details["total_count"] == [2, None, 2]
    (body,) = rest.gateway.bodies
    assert body["queries"][0]["query_embedding"] == [0.8, 0.6, 0.0]
    assert body["queries"][0]["match_threshold"] == 0.5
    assert body["queries"][1]["date_to"] == "2026-12-31"
    assert body["fuse"] is False


def test_a_batch_may_be_fused_into_one_list(rest: Rest) -> None:
    rest.given(Answer(body=[{**HYBRID_ROW, "query_index": 0}] * 2))
    results, details = rest.provider().hybrid_search_batch(
        [{"query_text": "zebra", "top_k": 2}, {"query_text": "grass"}], fuse=True
    )
    assert results[0].content == ROW["content"]
    assert details["total_count"] == len(results) == 2
    assert rest.gateway.bodies[0]["queries"][1] == {"query_text": "grass"}


@pytest.mark.parametrize("index", [None, "x", -1, 1])
def test_a_row_of_no_query_is_no_empty_result(gateway: Gateway, index: object) -> None:
    gateway.answer = Answer(body=[{**HYBRID_ROW, "query_index": index}])
    with Recorded(gateway).provider() as provider:
        answers, details = provider.hybrid_search_batch([{"query_text": "zebra"}])
    assert answers == [[]]
    assert details["error_kind"] == "unexpected_answer"


EXPLAINED = {
    "milliseconds": {"hybrid": 1.5, "vector": 1.0, "text": None},
    "vector": {"strategy": "compared: few rows", "rows": 3, "ran_dry": "fewer rows …"},
    "hits": [{"title": "Savanna"}],
}


def test_an_explanation_is_one_object(rest: Rest) -> None:
    rest.given(Answer(body=EXPLAINED))
    explained = rest.provider().explain_hybrid_search([0.8, 0.6, 0], None, viewer_id=VIEWER)
    assert explained["vector"]["rows"] == 3
    assert explained["hits"][0]["title"] == "Savanna"
    assert explained["milliseconds"]["text"] is None


def test_an_explanation_that_fails_raises(rest: Rest) -> None:
    rest.given(error(400, "22023", "pool_size must be between 1 and 1000, not 0"))
    with pytest.raises(errors.InvalidInputError, match="pool_size"):
        rest.provider().explain_hybrid_search(None, "zebra", pool_size=0)


def test_an_invalid_explanation_raises(gateway: Gateway) -> None:
    gateway.answer = Answer(body=[])
    with (
        Recorded(gateway).provider() as provider,
        pytest.raises(errors.UnexpectedAnswerError, match="list"),
    ):
        provider.explain_hybrid_search(None, "zebra")


def test_without_credentials_an_explanation_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SUPABASE_URL", raising=False)
    monkeypatch.delenv("SUPABASE_KEY", raising=False)
    with pytest.raises(ClientUnavailableError) as caught:
        SupabaseProvider().explain_hybrid_search(None, "zebra")
    assert "SUPABASE_URL" in caught.value.remedy


KEPT = {
    "collection": "knowledge",
    "fusion": "auto",
    "vector_weight": 0.5,
    "text_weight": 1,
    "embedding_model": "mine",
    "updated_at": "2026-02-01T10:00:00.123456+00:00",
}
KEEP = "select public.set_knowledge_settings('knowledge', 'auto', 0.5, 1, 'mine')"


def without_time(settings: CorpusSettings) -> CorpusSettings:
    assert settings.updated_at is not None
    return settings.model_copy(update={"updated_at": None})


def test_settings_are_stored_and_returned(rest: Rest) -> None:
    rest.given(Answer(body=KEPT))
    wanted = CorpusSettings(
        collection="knowledge", fusion="auto", vector_weight=0.5, embedding_model="mine"
    )
    assert without_time(rest.provider().set_settings(wanted)) == wanted
    sent = {name: value for name, value in KEPT.items() if name != "updated_at"}
    assert rest.gateway.bodies == [sent]


def test_stored_settings_are_listed(rest: Rest) -> None:
    rest.given(Answer(body=[KEPT]), KEEP)
    (stored,) = rest.provider().settings()
    assert without_time(stored) == CorpusSettings(
        collection="knowledge", fusion="auto", vector_weight=0.5, embedding_model="mine"
    )


@pytest.mark.parametrize(("collection", "removed"), [("knowledge", True), ("memory", False)])
def test_settings_are_reset_if_there_were_any(rest: Rest, collection: str, removed: bool) -> None:
    rest.given(Answer(body=removed), KEEP)
    assert rest.provider().reset_settings(collection) is removed


def test_refused_settings_are_an_invalid_input(rest: Rest) -> None:
    message = "fusion must be one of rrf, relative_score, auto, or null, not best"
    rest.given(error(400, "22023", message))
    with pytest.raises(errors.InvalidInputError, match="fusion must be one of rrf"):
        rest.provider().set_settings(CorpusSettings(fusion="best"))


def test_settings_need_the_key_of_the_service(rest: Rest) -> None:
    message = "permission denied for function list_knowledge_settings"
    rest.given(error(403, "42501", message))
    with pytest.raises(errors.SecondBrainError) as refused:
        rest.provider("authenticated").settings()
    assert refused.value.code == "42501"


def test_a_token_without_a_user_cannot_search_as_a_viewer(rest: Rest) -> None:
    rest.given(error(403, "42501", "search_my_knowledge_chunks needs a signed-in user"))
    results, details = rest.provider("nobody").search_my_knowledge(None, "zebra")
    assert (results, details["error_kind"]) == ([], "permission_denied")
    assert "signed-in user" in details["error_message"]
    assert "viewer_id" not in rest.gateway.bodies[0]


def test_a_multi_tenant_provider_opens_no_connection_without_a_viewer(gateway: Gateway) -> None:
    config = {"supabase_url": gateway.url, "supabase_key": token("service_role")}
    with SupabaseProvider(config, multi_tenant=True) as provider:
        _, details = provider.hybrid_search(None, "zebra")
        assert "viewer_id" in details["error_message"]
        assert gateway.connections == 0
        assert "fallback_reason" not in provider.hybrid_search(None, "a", viewer_id=VIEWER)[1]
        assert gateway.bodies[0]["viewer_id"] == str(VIEWER)


def test_search_finds_a_row(rest: Rest) -> None:
    rest.given(Answer(body=[{**ROW, "similarity": 1}]))
    (result,), details = rest.provider().search([0.8, 0.6, 0.0], threshold=0.9)
    assert details["mode"] == "vector"
    assert result.content == ROW["content"]
    assert result.confidence == pytest.approx(1)


def test_fulltext_search_finds_a_row(rest: Rest) -> None:
    rest.given(Answer(body=[{**ROW, "rank": 1.4}]))
    (result,), details = rest.provider().fulltext_search("grass")
    assert details["mode"] == "fulltext"
    assert result.content == ROW["content"]
    assert 0 < result.confidence < 1


def test_no_hit_is_an_empty_answer_and_no_failure(rest: Rest) -> None:
    rest.given(Answer(body=[]))
    results, details = rest.provider().fulltext_search("unicorn")
    assert (results, details["real_provider"]) == ([], True)
    assert "fallback_reason" not in details


def test_a_text_goes_through_as_it_is(rest: Rest) -> None:
    rest.given(Answer(body=[]))
    text = "'; drop table x; -- \"\\ \u202e 日本 🦓"
    assert "fallback_reason" not in rest.provider().hybrid_search(None, text)[1]
    assert rest.gateway.bodies[0]["query_text"] == text


@pytest.mark.parametrize(
    ("arguments", "recorded", "kind", "code"),
    [
        (
            {"query_embedding": [1, 0, 0, 0]},
            error(400, "22023", "query_embedding has 4 dimensions, the stored embeddings have 3"),
            "dimension_mismatch",
            "22023",
        ),
        (
            {"query_embedding": [1, None, 3]},
            error(400, "22P02", 'invalid input syntax for type vector: "[1,null,3]"'),
            "invalid_input",
            "22P02",
        ),
        (
            {"query_embedding": []},
            error(400, "22000", "vector must have at least 1 dimension"),
            "invalid_input",
            "22000",
        ),
        (
            {"query_embedding": "[1,NaN,3]"},
            error(400, "22000", "NaN not allowed in vector"),
            "invalid_input",
            "22000",
        ),
        (
            {"query_embedding": [1e39, 0, 0]},
            error(400, "22003", '"1e+39" is out of range for type vector'),
            "invalid_input",
            "22003",
        ),
        (
            {"query_text": "a\x00b"},
            error(400, "22P05", "unsupported Unicode escape sequence"),
            "invalid_input",
            "22P05",
        ),
        (
            {"top_k": 1.5},
            error(400, "22P02", 'invalid input syntax for type integer: "1.5"'),
            "invalid_input",
            "22P02",
        ),
        (
            {"top_k": 3_000_000_000},
            error(400, "22003", 'value "3000000000" is out of range for type integer'),
            "invalid_input",
            "22003",
        ),
        (
            {"search_mode": "nosuch"},
            error(400, "22023", "search_mode must be one of websearch, simple, phrase, not nosuch"),
            "invalid_input",
            "22023",
        ),
    ],
)
def test_a_refused_argument_is_an_invalid_input(
    rest: Rest, arguments: dict[str, Any], recorded: Answer, kind: str, code: str
) -> None:
    rest.given(recorded)
    given = {"query_embedding": [1, 0, 0], "query_text": "zebra", **arguments}
    results, details = rest.provider().hybrid_search(**given)
    assert results == []
    assert details["fallback_reason"] == "provider_error"
    assert details["error_type"] == "APIError"
    assert (details["error_kind"], details["code"]) == (kind, code)


@pytest.mark.parametrize(
    "arguments",
    [{"query_embedding": [float("nan"), 0, 0]}, {"query_text": "\ud800"}, {"top_k": object()}],
    ids=["NaN", "lone surrogate", "object"],
)
def test_what_the_client_cannot_send_is_an_invalid_input(
    gateway: Gateway, arguments: dict[str, Any]
) -> None:
    given = {"query_embedding": [1, 0, 0], "query_text": "zebra", **arguments}
    with Recorded(gateway).provider() as provider:
        results, details = provider.hybrid_search(**given)
    assert results == []
    assert details["error_kind"] == "invalid_input"
    assert gateway.bodies == []


MISSING = "Could not find the function public.hybrid_search_knowledge_chunks in the schema cache"


@pytest.mark.parametrize(
    ("recorded", "statement", "kind", "code", "remedy"),
    [
        (
            error(404, "PGRST202", MISSING),
            "drop function public.hybrid_search_knowledge_chunks",
            "migration_missing",
            "PGRST202",
            "supabase db push",
        ),
        (
            error(
                300,
                "PGRST203",
                "Could not choose the best candidate function between: …",
                "Try renaming the parameters or the function itself in the database so function "
                "overloading can be resolved",
            ),
            "create function public.hybrid_search_knowledge_chunks(query_embedding"
            " extensions.vector, query_text text, match_count integer, match_threshold float8,"
            " vector_weight float8, text_weight float8, filter_type text, search_mode text,"
            " pool_size integer) returns void language sql as ''",
            "migration_missing",
            "PGRST203",
            "overloads",
        ),
        (
            error(500, "57014", "canceling statement due to statement timeout"),
            "alter function public.hybrid_search_knowledge_chunks set statement_timeout = '1ms'",
            "timeout",
            "57014",
            "statement_timeout",
        ),
        (
            error(403, "42501", "permission denied for function hybrid_search_knowledge_chunks"),
            "revoke execute on function public.hybrid_search_knowledge_chunks from service_role",
            "permission_denied",
            "42501",
            "service_role",
        ),
    ],
    ids=["migration missing", "two overloads", "statement timeout", "grant missing"],
)
def test_a_database_that_is_not_ready_says_what_to_do(
    rest: Rest, recorded: Answer, statement: str, kind: str, code: str, remedy: str
) -> None:
    rest.given(recorded, statement)
    _, details = rest.provider().hybrid_search([1, 0, 0], "zebra")
    assert (details["error_kind"], details["code"]) == (kind, code)
    assert remedy in details["remedy"]


@pytest.mark.parametrize(
    ("key", "recorded", "kind", "code"),
    [
        (
            "anon",
            error(401, "42501", "permission denied for function"),
            "permission_denied",
            "42501",
        ),
        (
            "authenticated",
            error(403, "42501", "permission denied for function"),
            "permission_denied",
            "42501",
        ),
        ("expired", error(401, "PGRST303", "JWT expired"), "authentication_failed", "PGRST303"),
        (
            "unsigned",
            error(401, "PGRST301", "No suitable key or wrong key type"),
            "authentication_failed",
            "PGRST301",
        ),
    ],
)
def test_a_key_that_may_not_search_is_told_so(
    rest: Rest, key: Key, recorded: Answer, kind: str, code: str
) -> None:
    rest.given(recorded)
    _, details = rest.provider(key).hybrid_search([1, 0, 0], "zebra")
    assert (details["error_kind"], details["code"]) == (kind, code)
    assert token(key)[:20] not in str(details)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (
            error(503, "PGRST002", "Could not query the database for the schema cache. Retrying."),
            "unavailable",
        ),
        (error(503, "57P01", "terminating connection due to administrator command"), "unavailable"),
        (Answer(502, "<html>Bad Gateway</html>", "text/html"), "unavailable"),
        (
            Answer(401, {"message": "Invalid API key", "hint": "Double check it"}),
            "authentication_failed",
        ),
        (Answer(404, "<html>Not Found</html>", "text/html"), "unexpected_answer"),
        (Answer(302, "", "text/html"), "unexpected_answer"),
        (Answer(200, "<html>Welcome</html>", "text/html"), "unexpected_answer"),
        (Answer(200, '[{"id": "cut o'), "unexpected_answer"),
        (Answer(200, {"id": "no rows"}), "unexpected_answer"),
    ],
)
def test_an_answer_of_a_proxy_is_not_an_empty_result(
    gateway: Gateway, answer: Answer, kind: str
) -> None:
    gateway.answer = answer
    with Recorded(gateway).provider() as provider:
        results, details = provider.hybrid_search([1, 0, 0], "zebra")
    assert results == []
    assert details["real_provider"] is False
    assert details["error_kind"] == kind
    assert "127.0.0.1" not in str(details)
    # A search is sent once, whatever comes back.
    assert len(gateway.bodies) == 1


def test_the_key_does_not_follow_a_redirect(gateway: Gateway) -> None:
    with Gateway() as elsewhere:
        gateway.answer = Answer(307, "", "text/html", {"Location": elsewhere.url})
        with Recorded(gateway).provider() as provider:
            _, details = provider.hybrid_search([1, 0, 0], "zebra", top_k=1)
        elsewhere.timeout = 0
        elsewhere.handle_request()
        assert elsewhere.connections == 0
    assert details["error_kind"] == "unexpected_answer"


def test_a_slow_answer_is_a_timeout(gateway: Gateway) -> None:
    gateway.held.clear()
    with Recorded(gateway).provider(timeout=0.2) as provider:
        _, details = provider.hybrid_search([1, 0, 0], "zebra")
    assert (details["error_kind"], details["error_type"]) == ("client_timeout", "ReadTimeout")


def test_an_address_without_a_server_is_unavailable() -> None:
    config = {"supabase_url": f"http://127.0.0.1:{free_port()}", "supabase_key": "key"}
    with SupabaseProvider(config) as provider:
        _, details = provider.hybrid_search([1, 0, 0], "zebra")
    assert (details["error_kind"], details["error_type"]) == ("unavailable", "ConnectError")


def test_a_key_with_a_newline_after_it_works(gateway: Gateway) -> None:
    config = {"supabase_url": f"{gateway.url}/\n", "supabase_key": f"{token('anon')}\n"}
    with SupabaseProvider(config) as provider:
        assert "fallback_reason" not in provider.fulltext_search("zebra")[1]


def test_a_key_that_is_no_header_is_told_without_it(gateway: Gateway) -> None:
    config = {"supabase_url": gateway.url, "supabase_key": "hunter2\nhunter3"}
    with SupabaseProvider(config) as provider:
        _, details = provider.fulltext_search("zebra")
    assert details["error_kind"] == "configuration"
    assert "hunter" not in str(details)


def test_one_connection_serves_many_calls(gateway: Gateway) -> None:
    with Recorded(gateway).provider() as provider:
        for _ in range(3):
            provider.fulltext_search("zebra")
    assert gateway.connections == 1
    # A provider that was closed opens another.
    provider.fulltext_search("zebra")
    provider.close()
    assert gateway.connections == 2


def config(gateway: Gateway) -> dict[str, str]:
    return {"supabase_url": gateway.url, "supabase_key": token("service_role")}


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


@pytest.mark.parametrize(
    "answer",
    [
        Answer(body=[HYBRID_ROW]),
        Answer(body=[]),
        error(400, "22023", "pool_size must be between 1 and 1000, not 0"),
        error(500, "57014", "canceling statement due to statement timeout"),
        Answer(302, "", "text/html"),
        Answer(502, "<html>Bad Gateway</html>", "text/html"),
        Answer(200, '[{"id": "cut o'),
        Answer(200, {"id": "no rows"}),
    ],
    ids=str,
)
def test_a_loop_gets_the_answers_that_a_thread_gets(gateway: Gateway, answer: Answer) -> None:
    gateway.answer = answer
    searches: list[Callable[[Any], Any]] = [
        lambda provider: provider.hybrid_search([1, 0, 0], "zebra", snippet=True),
        lambda provider: provider.search_my_knowledge(None, "zebra"),
        lambda provider: provider.search_public_knowledge(None, "zebra"),
        lambda provider: provider.search([1, 0, 0], 3, 0.5),
        lambda provider: provider.fulltext_search("zebra", viewer_id=VIEWER),
        lambda provider: provider.hybrid_search_batch([{"query_text": "zebra"}], fuse=True),
    ]
    for search in searches:
        assert looping(gateway, search) == blocking(gateway, search)
    half = len(gateway.bodies) // 2
    assert half == len(searches)
    assert gateway.bodies[::2] == gateway.bodies[1::2]


@SIDES
@pytest.mark.parametrize("place", ["before the answer", "in the answer"])
def test_a_connection_that_is_lost_is_opened_again(gateway: Gateway, side: Any, place: Any) -> None:
    gateway.answer = Answer(body=[HYBRID_ROW])
    gateway.drops = [place] * 2
    hits, details = side(gateway, lambda provider: provider.hybrid_search(None, "zebra"))
    assert "fallback_reason" not in details, details
    assert [hit.content for hit in hits] == [ROW["content"]]
    assert len(gateway.bodies) == gateway.connections == 3


@SIDES
def test_a_connection_that_stays_lost_is_told_so(gateway: Gateway, side: Any) -> None:
    gateway.drops = ["before the answer"] * 9
    search = lambda provider: provider.hybrid_search(None, "zebra")  # noqa: E731
    hits, details = side(gateway, search, retries=1)
    assert (hits, details["error_kind"]) == ([], "connection_lost")
    assert details["error_type"] == "RemoteProtocolError"
    assert len(gateway.bodies) == 2
    assert side(gateway, search, retries=0)[1]["error_kind"] == "connection_lost"
    assert len(gateway.bodies) == 3


@SIDES
def test_a_call_has_a_timeout_of_its_own(gateway: Gateway, side: Any) -> None:
    gateway.held.clear()
    _, details = side(gateway, lambda provider: provider.fulltext_search("zebra", timeout=0.05))
    assert details["error_kind"] == "client_timeout"
    # One that was sent may be running, and is not sent again.
    assert len(gateway.bodies) == 1


def test_calls_on_a_loop_share_connections(gateway: Gateway) -> None:
    async def ask(provider: AsyncSupabaseProvider) -> None:
        for _ in range(3):
            await provider.fulltext_search("zebra")
        assert gateway.connections == 1
        await provider.close()
        await asyncio.gather(*(provider.fulltext_search("zebra") for _ in range(3)))

    looping(gateway, ask)
    assert gateway.connections <= 4
    assert len(gateway.bodies) == 6


def test_a_client_that_is_given_is_used_on_a_loop(gateway: Gateway) -> None:
    async def ask() -> None:
        async with httpx.AsyncClient() as http:
            client = await acreate_client(
                gateway.url, token("authenticated"), AsyncClientOptions(httpx_client=http)
            )
            provider = AsyncSupabaseProvider(client=client)
            _, details = await provider.search_my_knowledge(None, "zebra")
            await provider.close()
            assert "fallback_reason" not in details, details
            assert not http.is_closed

    asyncio.run(ask())
    assert "viewer_id" not in gateway.bodies[0]


def test_without_credentials_a_loop_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SUPABASE_URL", raising=False)
    monkeypatch.delenv("SUPABASE_KEY", raising=False)
    hits, details = asyncio.run(AsyncSupabaseProvider().hybrid_search(None, "zebra"))
    assert (hits, details["fallback_reason"]) == ([], "client_unavailable")


@SIDES
def test_embedding_models_come_over_http(gateway: Gateway, side: Any) -> None:
    gateway.answer = Answer(body=[{"model": "mine", "dimensions": 3, "chunks": 2}])
    models = side(gateway, lambda provider: provider.embedding_models())
    assert models == [EmbeddingModel("mine", 3, 2)]
    for odd in ([{"name": "mine"}], ["mine"], {"model": "mine"}):
        gateway.answer = Answer(body=odd)
        with pytest.raises(errors.UnexpectedAnswerError):
            side(gateway, lambda provider: provider.embedding_models())


def test_the_schema_of_the_install_is_sent(gateway: Gateway) -> None:
    gateway.answer = Answer(body=[HYBRID_ROW])
    config = {"supabase_url": gateway.url, "supabase_key": token("service_role")}
    for schema in (None, "knowledge_de"):
        with SupabaseProvider(config, schema=schema) as provider:
            provider.find(None, "zebra")

        async def search(schema: str | None = schema) -> None:
            async with AsyncSupabaseProvider(config, schema=schema) as provider:
                await provider.find(None, "zebra")

        asyncio.run(search())
    assert gateway.schemas == ["public", "public", "knowledge_de", "knowledge_de"]


def test_an_unexposed_schema_is_named_with_the_remedy(gateway: Gateway) -> None:
    gateway.answer = error(
        406, "PGRST106", "Invalid schema: knowledge_fr", "Only the following schemas are exposed"
    )
    config = {"supabase_url": gateway.url, "supabase_key": token("service_role")}
    with SupabaseProvider(config, schema="knowledge_fr") as provider:
        _, details = provider.hybrid_search(None, "zebra")
    assert (details["code"], details["error_kind"]) == ("PGRST106", "migration_missing")
    assert "knowledge_fr" in details["error_message"]
    assert "exposed schemas" in details["remedy"]


def test_an_invalid_schema_is_refused() -> None:
    with pytest.raises(errors.InvalidInputError, match="schema must"):
        SupabaseProvider(schema="no such; name")
