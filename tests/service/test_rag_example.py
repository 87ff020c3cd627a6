"""examples/rag_service, over HTTP: users, answers, errors, clients that leave, health."""

import asyncio
import json
import logging
import re
import socket
import threading
import time
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import jwt
import psycopg
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from chat_server import ChatServer, chat_server
from conftest import Server, copy_of
from corpora import store_document
from rag_example import (
    ANA,
    EXAMPLE,
    PASSWORD,
    SECRET,
    application,
    bearer,
    dsn_of_service,
    running,
    token,
)
from rag_service.answering import NO_PASSAGES
from second_brain.models import WordLlamaEmbedder
from waiting import until

BEN = "00000000-0000-0000-0000-000000000002"
EVE = "00000000-0000-0000-0000-000000000003"
QUESTION = "when are the keys rotated?"
NOTHING = {"collection": "none"}
OFF_SUBJECT = {"question": "do tulips and violets bloom when the keys wilt?"}

KEYS = "Service role keys are rotated every 90 days."
OF_ANA = "Ana keeps the keys of the safe in the blue drawer."
OF_BEN = "Ben has lost the keys of the archive."
OF_TEAM = "The team hides its spare keys under the mat."


@pytest.fixture(scope="module")
def corpus(server: Server) -> Iterator[str]:
    """The owner's DSN of a database with a document for everybody, one each, and one of a team."""
    embedder = WordLlamaEmbedder()
    for dsn in copy_of(server, server.template(embedder.dimensions)):
        with psycopg.connect(dsn, autocommit=True) as connection:
            documents: dict[str, tuple[dict[str, Any], str]] = {
                "keys": ({"title": "Keys", "visibility": "public"}, KEYS),
                "ana": ({"owner_id": ANA}, OF_ANA),
                "ben": ({"owner_id": BEN}, OF_BEN),
                "team": ({"allowed_groups": ["team"]}, OF_TEAM),
            }
            for key, (document, text) in documents.items():
                embedding = embedder.embed([text])[0].tolist()
                store_document(connection, key, {text: embedding}, embedder.model, **document)
        yield dsn


@pytest.fixture(scope="module")
def services_dsn(corpus: str) -> str:
    return dsn_of_service(corpus)


@pytest.fixture(scope="module")
def model() -> Iterator[ChatServer]:
    with chat_server() as served:
        yield served


@pytest.fixture(scope="module")
def client(services_dsn: str, model: ChatServer) -> Iterator[httpx.Client]:
    with running(services_dsn, model, concurrent_requests=2) as one:
        yield one


def contents(response: httpx.Response) -> set[str]:
    assert response.status_code == 200, response.text
    return {one["content"] for one in response.json()["results"]}


def events(text: str) -> list[tuple[str, Any]]:
    """Return the names and data of server-sent events."""
    blocks = [block.split("\n") for block in text.strip().split("\n\n")]
    return [(name[len("event: ") :], json.loads(data[len("data: ") :])) for name, data in blocks]


def test_users_find_public_rows_and_their_own(client: httpx.Client) -> None:
    def search(signed: str, **asked: Any) -> httpx.Response:
        return client.get("/search", params=asked or {"query": "keys"}, headers=bearer(signed))

    def found(signed: str) -> set[str]:
        return contents(search(signed))

    assert found(token(ANA)) == {KEYS, OF_ANA}
    assert found(token(BEN)) == {KEYS, OF_BEN}
    assert found(token(EVE, app_metadata={"groups": ["team"]})) == {KEYS, OF_TEAM}
    # A user can write these.
    assert found(token(EVE, user_metadata={"groups": ["team"]}, groups=["team"])) == {KEYS}
    # Without a question: what is related to a document that they may see.
    ids = {one["content"]: one["id"] for one in search(token(ANA)).json()["results"]}
    assert contents(search(token(ANA), like_ids=[ids[KEYS]])) == {OF_ANA}
    assert search(token(BEN), like_ids=[ids[OF_ANA]]).status_code == 400
    assert search(token(BEN), limit=3).status_code == 400


@pytest.mark.parametrize("groups", [[], ["team"]])
def test_a_prompt_has_no_rows_of_others(
    client: httpx.Client, model: ChatServer, groups: list[str]
) -> None:
    model.says("Every 90 days [1].")
    signed = bearer(token(ANA, app_metadata={"groups": groups}))
    response = client.post("/ask", json={"question": QUESTION, "passages": 20}, headers=signed)
    (asked,) = model.requests
    visible = {KEYS, OF_ANA} | ({OF_TEAM} if groups else set())
    for text in (asked["messages"][1]["content"], response.text):
        assert {one for one in (KEYS, OF_ANA, OF_BEN, OF_TEAM) if one in text} == visible


def test_an_answer_has_its_passages_and_what_it_cites(
    client: httpx.Client, model: ChatServer
) -> None:
    model.says("Every 90 ", "days [1", "]. Ask Mia [7], [[99]8], [8[99]].")
    answer = client.post("/ask", json={"question": QUESTION}).json()
    assert answer["answer"] == "Every 90 days [1]. Ask Mia [?], [[?]8], [8[?]]."
    assert answer["cited"] == [1]
    assert answer["finish_reason"] == "stop"
    assert [one["number"] for one in answer["passages"]] == [1, 2]
    first = answer["passages"][0]
    assert (first["title"], first["content"]) == ("Keys", KEYS)


def test_a_stream_sends_each_part_when_the_model_does(
    client: httpx.Client, model: ChatServer
) -> None:
    pause = threading.Event()
    model.says("Every 90 days", pause, " [1].")
    body = {"question": QUESTION, "stream": True}
    with client.stream("POST", "/ask", json=body) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        text = ""
        for piece in response.iter_text():
            text += piece
            if "90 days" in text:
                pause.set()
    names, data = zip(*events(text), strict=True)
    assert names == ("passages", "text", "text", "end")
    assert [one["content"] for one in data[0]] == [KEYS, OF_ANA]
    assert data[1:3] == ("Every 90 days", " [1].")
    assert data[3] == {"cited": [1], "finish_reason": "stop", "degraded": None}


@pytest.mark.parametrize("body", [{"question": QUESTION, "filters": NOTHING}, OFF_SUBJECT])
def test_the_model_is_not_asked_without_passages_or_off_the_subject(
    client: httpx.Client, services_dsn: str, model: ChatServer, body: dict[str, Any]
) -> None:
    model.says("I know it anyway.")
    answer = client.post("/ask", json=body).json()
    assert (answer["answer"], answer["passages"]) == (NO_PASSAGES, [])
    assert (answer["finish_reason"], model.requests) == ("no_passages", [])
    with running(services_dsn, model, least_answer_confidence=0) as one:
        assert bool(one.post("/ask", json=body).json()["passages"]) is (body == OFF_SUBJECT)


def test_an_answer_says_what_the_search_did_without(services_dsn: str, model: ChatServer) -> None:
    model.says(status=401)
    body = {"question": QUESTION, "filters": NOTHING}
    with running(services_dsn, model, **by_api("wordllama-l2-256", model)) as one:
        assert one.post("/ask", json=body).json()["degraded"] == "embed"


def by_api(name: str, model: ChatServer) -> dict[str, str]:
    """Return the settings of an embedding model at the server of the chat model."""
    address = "second_brain_embedder_address"
    return {"second_brain_embedder": f"openai:{name}@256", address: model.url}


TOKENS = {
    "expired": token(exp=time.time() - 60),
    "without an end": token(exp=None),
    "for others": token(aud="anon"),
    "for nobody": token(aud=None),
    "without a user": token(None),
    "of a user who is no UUID": token("ana"),
    "with groups of a wrong type": token(app_metadata={"groups": "team"}),
    "with a wrong signature": token()[:-2],
    "without a signature": jwt.encode({"sub": ANA, "aud": "authenticated", "exp": 9e9}, "", "none"),
    "no token": "a.b.c",
}


@pytest.mark.parametrize("signed", TOKENS.values(), ids=TOKENS)
def test_a_token_is_refused(client: httpx.Client, signed: str) -> None:
    response = client.get("/search", params={"query": "keys"}, headers=bearer(signed))
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    assert "Sign in again" in response.json()["remedy"]


def test_public_keys_of_the_issuer_verify_tokens(
    services_dsn: str, model: ChatServer, tmp_path: Path
) -> None:
    private = ec.generate_private_key(ec.SECP256R1())
    known = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(private.public_key()))
    keys = json.dumps({"keys": [{**known, "kid": "1", "alg": "ES256"}]})
    (tmp_path / "jwks.json").write_text(keys)
    claims = {"sub": ANA, "aud": "authenticated", "exp": time.time() + 60, "iss": "https://auth"}
    with (
        files(tmp_path) as url,
        running(services_dsn, model, jwks_url=f"{url}/jwks.json", jwt_issuer="https://auth") as one,
    ):

        def status(signed: str) -> int:
            response = one.get("/search", params={"query": "keys"}, headers=bearer(signed))
            return response.status_code

        assert status(jwt.encode(claims, private, "ES256", {"kid": "1"})) == 200
        assert status(jwt.encode(claims, private, "ES256", {"kid": "2"})) == 401
        other = ec.generate_private_key(ec.SECP256R1())
        assert status(jwt.encode(claims, other, "ES256", {"kid": "1"})) == 401
        assert status(jwt.encode(claims, SECRET, "HS256", {"kid": "1"})) == 401
        foreign = {**claims, "iss": "https://other"}
        assert status(jwt.encode(foreign, private, "ES256", {"kid": "1"})) == 401


def test_without_the_public_keys_no_token_is_judged(services_dsn: str, model: ChatServer) -> None:
    signed = jwt.encode({"sub": ANA}, SECRET, "HS256", {"kid": "1"})
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    with running(services_dsn, model, jwks_url=url, **by_api("other", model)) as one:
        response = one.get("/search", params={"query": "keys"}, headers=bearer(signed))
        assert response.status_code == 503


@contextmanager
def files(folder: Path) -> Iterator[str]:
    """Serve the files of a folder; yield the address."""

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("body", "status", "named"),
    [
        ({"question": ""}, 422, "question"),
        ({"question": "x" * 1001}, 422, "question"),
        ({"question": "x", "viewer_id": BEN}, 422, "viewer_id"),
        ({"question": "x", "filters": {"document_date": "soon"}}, 400, "document_date"),
    ],
)
def test_a_wrong_request_is_refused(
    client: httpx.Client, body: dict[str, Any], status: int, named: str
) -> None:
    response = client.post("/ask", json=body)
    assert response.status_code == status
    assert response.headers["content-type"] == "application/problem+json"
    assert named in response.json()["detail"]
    assert client.post("/ask", json={"question": "x" * 70_000}).status_code == 413


@pytest.mark.parametrize(
    ("of_model", "status", "kind"),
    [
        (401, 500, "configuration"),
        (400, 502, "unexpected_answer"),
        (429, 503, "quota_exceeded"),
        (500, 503, "unavailable"),
    ],
)
def test_a_failure_of_the_model_has_a_status(
    client: httpx.Client,
    model: ChatServer,
    caplog: pytest.LogCaptureFixture,
    of_model: int,
    status: int,
    kind: str,
) -> None:
    model.says(status=of_model)
    for stream in (False, True):
        response = client.post("/ask", json={"question": QUESTION, "stream": stream})
        problem = response.json()
        assert (response.status_code, problem["status"], problem["kind"]) == (status, status, kind)
        assert response.headers["content-type"] == "application/problem+json"
        # For the operator only.
        assert "LLM" not in response.text
    assert f"answered {of_model}" in caplog.text


@pytest.mark.parametrize("end", [None, {"error": {"message": KEYS}}], ids=["connection", "error"])
def test_a_stream_that_is_cut_ends_with_an_error(
    client: httpx.Client, model: ChatServer, end: dict[str, Any] | None
) -> None:
    model.says("Every 90", end)
    streamed = client.post("/ask", json={"question": QUESTION, "stream": True})
    names, data = zip(*events(streamed.text), strict=True)
    assert names == ("passages", "text", "error")
    assert data[2]["kind"] == "unexpected_answer"
    assert "detail" in data[2]
    assert client.post("/ask", json={"question": QUESTION}).status_code == data[2]["status"] == 502


def test_a_model_that_is_too_slow_is_a_timeout(services_dsn: str, model: ChatServer) -> None:
    # Longer where a busy machine does not search and begin an answer in the time.
    for seconds in (1, 10, 60):
        model.says("Every 90", threading.Event())
        with running(services_dsn, model, answer_seconds=seconds) as one:
            streamed = events(one.post("/ask", json={"question": QUESTION, "stream": True}).text)
        if len(streamed) == 3:
            break
    assert [name for name, _ in streamed] == ["passages", "text", "error"]
    assert (streamed[-1][1]["status"], streamed[-1][1]["kind"]) == (504, "timeout")
    until(model.was_left.is_set)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_ends_the_models_work(
    client: httpx.Client, model: ChatServer, stream: bool
) -> None:
    model.says("Every 90", threading.Event())
    leave_after(client, lambda: bool(model.requests), {"question": QUESTION, "stream": stream})
    until(model.was_left.is_set)


async def test_a_client_that_leaves_before_the_first_event_ends_the_models_work(
    services_dsn: str, model: ChatServer
) -> None:
    model.says(threading.Event())
    app, left = application(services_dsn, model), asyncio.Event()
    body = json.dumps({"question": QUESTION, "stream": True}).encode()
    messages = iter([{"type": "http.request", "body": body}])

    async def receive() -> dict[str, Any]:
        if (message := next(messages, None)) is not None:
            return message
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            left.set()
            # As uvicorn does while the client does not read.
            await asyncio.sleep(60)

    headers = {"content-type": "application/json", **bearer(token())}
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/ask",
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    async with app.router.lifespan_context(app):
        await app(scope, receive, send)
        await asyncio.to_thread(until, model.was_left.is_set)


def test_a_client_that_leaves_ends_the_search(
    client: httpx.Client, model: ChatServer, corpus: str
) -> None:
    model.says("Every 90 days.")
    with psycopg.connect(corpus) as connection, psycopg.connect(corpus, autocommit=True) as other:

        def is_searching() -> bool:
            row = other.execute(
                "select count(*) from pg_catalog.pg_locks as lock"
                "  join pg_catalog.pg_database as own on own.oid = lock.database"
                " where not lock.granted and own.datname = current_database()"
            ).fetchone()
            return row != (0,)

        connection.execute("lock table public.knowledge_chunks")
        leave_after(client, is_searching, {"question": QUESTION})
        until(lambda: not is_searching())
    assert model.requests == []


def leave_after(client: httpx.Client, condition: Any, body: dict[str, Any]) -> None:
    """Ask, and close the connection once the condition holds."""
    content = json.dumps(body).encode()
    url = client.base_url
    with socket.create_connection((url.host, url.port or 80)) as connection:
        head = (
            f"POST /ask HTTP/1.1\r\nHost: {url.host}\r\nContent-Type: application/json\r\n"
            f"Authorization: Bearer {token()}\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        connection.sendall(head.encode() + content)
        until(condition)


def test_more_requests_than_slots_are_refused(client: httpx.Client, model: ChatServer) -> None:
    pause = threading.Event()
    model.says("Every 90", pause)
    body = {"question": QUESTION, "stream": True}
    with client.stream("POST", "/ask", json=body), client.stream("POST", "/ask", json=body):
        refused = client.get("/search", params={"query": "keys"})
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "2")
        assert client.get("/health").status_code == 200
        pause.set()
    # An answer that is sent, or that its client has left, has no slot any more.
    until(lambda: client.get("/search", params={"query": "keys"}).status_code == 200)


def test_health_is_the_process_and_ready_the_database(
    client: httpx.Client, model: ChatServer, plain_dsn: str, services_dsn: str
) -> None:
    without_token = httpx.Client(base_url=client.base_url)
    assert without_token.get("/health").json() == {"status": "ok"}
    assert without_token.get("/ready").json() == {"status": "ok"}
    without_token.close()
    with running(plain_dsn, model, **by_api("other", model)) as one:
        assert one.get("/health").status_code == 200
        unready = one.get("/ready")
        assert (unready.status_code, unready.json()["kind"]) == (500, "migration_missing")
    with running(services_dsn, model, **by_api("other", model)) as one:
        assert one.get("/ready").json()["kind"] == "configuration"


def test_logs_have_no_question_and_no_secret(
    client: httpx.Client, model: ChatServer, caplog: pytest.LogCaptureFixture
) -> None:
    # The client of this test.
    caplog.set_level(logging.WARNING, "httpx")
    caplog.set_level(logging.INFO)
    word = "rhododendron"
    client.get("/search", params={"query": word})
    client.post("/ask", json={"question": word, "filters": [{"field": word}]})
    for status in (200, 500):
        model.says(word, status=status)
        client.post("/ask", json={"question": word})
    until(lambda: caplog.text.count("/ask HTTP") == 3)
    assert '"GET /search HTTP/1.1" 200' in caplog.text
    for secret in (word, token().partition(".")[0], SECRET, PASSWORD):
        assert secret not in caplog.text


def test_the_services_role_can_search_only(services_dsn: str) -> None:
    with psycopg.connect(services_dsn, autocommit=True) as connection:
        for statement in (
            "select from public.knowledge_chunks",
            "select from public.knowledge_sources",
            "select public.delete_knowledge_owner(null)",
            "create table public.own (id integer)",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement)


def test_the_pages_of_the_api_are_off_until_a_setting_turns_them_on(
    client: httpx.Client, services_dsn: str, model: ChatServer
) -> None:
    pages = ("/docs", "/docs/oauth2-redirect", "/redoc", "/openapi.json")
    with running(services_dsn, model, api_pages=True) as turned_on:
        for one, status in ((client, 404), (turned_on, 200)):
            assert {one.get(path).status_code for path in pages} == {status}


def test_the_readme_has_every_address(services_dsn: str, model: ChatServer) -> None:
    paths = application(services_dsn, model, api_pages=True).openapi()["paths"]
    served = {f"{method.upper()} {path}" for path, item in paths.items() for method in item}
    table = re.findall(r"^\| `([A-Z]+ /\w+)`", (EXAMPLE / "README.md").read_text("utf-8"), re.M)
    assert set(table) == served
