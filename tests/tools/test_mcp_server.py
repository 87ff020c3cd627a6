"""`second-brain server mcp`: stdio, HTTP, what it refuses, progress, cancellation, conformance."""

import json
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from mcp import Client, StdioServerParameters, stdio_client

from command_line import Run
from conformance import REVISIONS, conformance, needs_runner
from mcp_clients import (
    ANA,
    COMMAND,
    HOSTILE,
    KEYS,
    LONG,
    RECORDER,
    TOKEN,
    TOKEN_NAME,
    Assistant,
    Here,
    call_by_hand,
    connected,
    environment,
    http_server,
    over_stdio,
    with_token,
)
from second_brain.mcp_server import Scope
from waiting import until

pytest_plugins = ("mcp_fixtures",)

HTTP = ["--transport", "http"]
EMBED_AND_SEARCH = [(0, 2, "Embedding"), (1, 2, "Searching")]


@pytest.mark.parametrize(
    "variables",
    [
        {"SECOND_BRAIN_DSN": "postgresql://postgres:hunter2@127.0.0.1:{port}/postgres"},
        {"SUPABASE_URL": "http://127.0.0.1:{port}", "SUPABASE_KEY": "hunter2"},
    ],
    ids=["over SQL", "a Supabase project"],
)
def test_a_database_that_is_down_is_an_error_with_a_remedy_and_no_secret(
    closed_port: int, variables: dict[str, str]
) -> None:
    named = {name: value.format(port=closed_port) for name, value in variables.items()}
    started = StdioServerParameters(command=COMMAND[0], args=COMMAND[1:], env=environment(**named))
    with connected(Client(stdio_client(started))) as assistant:
        refused = assistant.search("keys")
    assert refused.is_error
    assert "Try again shortly" in refused.text
    assert "hunter2" not in refused.text


def say(process: "subprocess.Popen[str]", method: str, **message: Any) -> None:
    assert process.stdin
    said = {"jsonrpc": "2.0", "method": method, **message}
    print(json.dumps(said), file=process.stdin, flush=True)


@pytest.fixture
def greeted(corpus: str) -> Iterator["subprocess.Popen[str]"]:
    """The real process over stdio, which has been greeted and has answered."""
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    given = environment(SECOND_BRAIN_DSN=corpus)
    with subprocess.Popen(COMMAND, text=True, env=given, **pipes) as process:
        client = {"name": "test", "version": "1"}
        hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client}
        say(process, "initialize", id=1, params=hello)
        assert process.stdout
        assert json.loads(process.stdout.readline())["id"] == 1
        say(process, "notifications/initialized")
        yield process
        process.kill()


def test_standard_output_is_the_protocol_and_nothing_else(greeted: "subprocess.Popen[str]") -> None:
    assert greeted.stdout
    say(greeted, "tools/call", id=2, params={"name": "search", "arguments": {"query": "keys"}})
    assert json.loads(greeted.stdout.readline())["id"] == 2
    printed, logged = greeted.communicate()
    assert (printed, greeted.returncode) == ("", 0)
    assert "second_brain.search: search hybrid" in logged


def test_ctrl_c_ends_it_though_the_input_is_open(greeted: "subprocess.Popen[str]") -> None:
    greeted.send_signal(signal.SIGINT)
    assert greeted.wait(timeout=60) == -signal.SIGINT


@pytest.fixture(scope="module")
def open_server(corpus: str) -> Iterator[str]:
    """The URL of a server over HTTP without a token."""
    with http_server(SECOND_BRAIN_DSN=corpus) as served:
        yield served.url


def test_http_serves_both_kinds_of_clients_and_refuses_another_host(open_server: str) -> None:
    for mode in ("auto", "legacy"):
        with connected(Client(open_server, mode=mode)) as assistant:
            assert KEYS in assistant.search("rotated keys").contents()
            steps = assistant.ask_with_progress("hybrid_search", query="keys")
            assert steps == EMBED_AND_SEARCH
    # What a web page could send, from its own host or one that was made to lead here.
    for evil, status in (({"Origin": "http://evil.example"}, 403), ({"Host": "evil.example"}, 421)):
        assert httpx.post(open_server, json={}, headers=evil).status_code == status


@pytest.mark.parametrize("version", ["2025-06-18", "2026-07-28"])
def test_a_get_request_keeps_no_stream_open(open_server: str, version: str) -> None:
    headers = {"Accept": "text/event-stream", "MCP-Protocol-Version": version}
    with httpx.stream("GET", open_server, headers=headers, timeout=60) as answer:
        assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
        assert "send each call with POST" in answer.read().decode()


def test_http_asks_for_the_token_and_keeps_to_the_viewer(corpus: str) -> None:
    # With the newline that a file of secrets ends in.
    token = {TOKEN_NAME: f"{TOKEN}\n"}
    variables = {**token, "SECOND_BRAIN_VIEWER_ID": ANA, "SECOND_BRAIN_DSN": corpus}
    with http_server(**variables) as served:
        url = served.url
        for headers in ({}, {"Authorization": "Bearer another"}):
            refused = httpx.post(url, json={}, headers=headers)
            assert refused.status_code == 401
            # One token has no sign-in.
            assert "resource_metadata" not in refused.headers["www-authenticate"]
        sign_in = f"{url.removesuffix('/mcp')}/.well-known/oauth-protected-resource"
        assert httpx.get(sign_in).status_code == 404
        with connected(with_token(url, TOKEN)) as assistant:
            found = assistant.search("cameras, heron or kumquats", limit=50).contents()
    assert RECORDER in found
    assert not {HOSTILE, LONG} & found


@pytest.mark.parametrize(
    ("arguments", "variables", "complaint"),
    [
        ([*HTTP, "--host", "0.0.0.0"], {}, "Set SECOND_BRAIN_MCP_TOKEN"),
        (HTTP, {TOKEN_NAME: " "}, "TOKEN is empty"),
        (HTTP, {TOKEN_NAME: "two\nlines"}, "HTTP header cannot contain"),
        (["--remember"], {}, "notes need a viewer"),
        (
            ["--remember", "--viewer-id", ANA],
            {"SUPABASE_URL": "http://127.0.0.1:1", "SUPABASE_KEY": "key"},
            "notes need a database connection",
        ),
        ([], {"VECTOR_WEIGHT": "-1"}, "VECTOR_WEIGHT: Input should be greater than or equal to 0"),
    ],
)
def test_a_server_that_would_show_too_much_or_wrongly_does_not_start(
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    variables: dict[str, str],
    complaint: str,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    done = run("server", "mcp", *arguments)
    assert done.code in (1, 2)
    assert complaint in done.err


def test_a_port_in_use_is_named(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = run("server", "mcp", "--transport", "http", "--port", port)
    assert f"cannot listen on 127.0.0.1, port {port}" in done.err


def test_a_client_that_asks_for_progress_gets_each_step(assistant: Assistant, here: Here) -> None:
    asked = {"query": "rotated keys"}
    assert assistant.ask_with_progress("hybrid_search", **asked) == EMBED_AND_SEARCH
    steps = assistant.ask_with_progress("search_knowledge_base", **asked, search_type="text")
    assert steps == [(0, 1, "Searching")]
    with here(Scope(), use_reranking=True, reranker=lambda _, texts: [1.0] * len(texts)) as slow:
        assert slow.ask_with_progress("hybrid_search", **asked) == [
            (0, 3, "Embedding"),
            (1, 3, "Searching"),
            (2, 3, "Reordering the results"),
        ]


WAITING = """
    select count(*) from pg_catalog.pg_stat_activity
    where datname = current_database() and wait_event_type = 'Lock'
"""


@contextmanager
def locked_chunks(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """Lock the chunks, so that a search waits; yield a connection that sees who waits."""
    with psycopg.connect(dsn) as locking, psycopg.connect(dsn, autocommit=True) as watching:
        locking.execute("lock table public.knowledge_chunks in access exclusive mode")
        yield watching


def wait_for(connection: psycopg.Connection[Any], *, waiting: bool) -> None:
    """Return when a statement waits for a lock, or none does."""
    until(lambda: (connection.execute(WAITING).fetchone() != (0,)) is waiting)


@pytest.mark.parametrize("is_http", [False, True], ids=["stdio", "http"])
def test_a_cancelled_call_ends_its_statement_while_the_lock_is_held(
    open_server: str, corpus: str, is_http: bool
) -> None:
    client = Client(open_server) if is_http else over_stdio(corpus)
    with connected(client) as assistant:
        with locked_chunks(corpus) as watching:
            call = assistant.begin("search_knowledge_base", query="keys", search_type="text")
            wait_for(watching, waiting=True)
            call.cancel()
            wait_for(watching, waiting=False)
        assert KEYS in assistant.search("rotated keys").contents()


def test_a_closed_connection_ends_the_statement_of_an_older_client(
    open_server: str, corpus: str
) -> None:
    with locked_chunks(corpus) as watching:
        with call_by_hand(open_server, "search_knowledge_base", None, query="keys"):
            wait_for(watching, waiting=True)
        wait_for(watching, waiting=False)


SCENARIOS = {
    "2026-07-28": {
        *("server-stateless", "tools-list", "resources-list", "sep-2164-resource-not-found"),
        *("http-header-validation", "dns-rebinding-protection", "caching"),
    },
    "2025-11-25": {
        *("server-initialize", "ping", "tools-list", "resources-list", "dns-rebinding-protection")
    },
}


@needs_runner
@pytest.mark.slow
@pytest.mark.parametrize("revision", REVISIONS)
def test_mcps_own_runner_finds_that_the_server_conforms(
    revision: str, open_server: str, tmp_path: Path
) -> None:
    passed, failed = conformance(open_server, revision, tmp_path)
    assert failed == []
    assert passed.keys() == SCENARIOS[revision]
