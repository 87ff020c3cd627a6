"""One MCP server for the users of a project: each token has its own viewer."""

from collections.abc import Iterator
from typing import Any, TypeAlias
from uuid import UUID

import httpx
import psycopg
import pytest

from corpora import ask_groups_of_token
from mcp_clients import (
    ANA,
    BEN,
    HOSTILE,
    LONG,
    RECORDER,
    Served,
    call_by_hand,
    connected,
    http_server,
    unquoted,
    with_token,
)
from mcp_users import KEY, SECRET, Project, project

__all__ = ["project"]  # a fixture

pytest_plugins = ("mcp_fixtures",)

EVERYTHING: dict[str, Any] = {"query": "keys, cameras, heron, kumquats, Mondays", "limit": 50}
USERS = {"ana": ANA, "ben": BEN, "cleo": str(UUID(int=3))}
Tokens: TypeAlias = dict[str, str]


@pytest.fixture(scope="module")
def tokens(project: Project) -> Tokens:
    """A token of each user, half of them of the project's key and half of its secret."""
    signed = ((KEY, "first", "ES256"), (SECRET, "legacy", "HS256"))
    return {
        name: project.token(*signed[place % 2], sub=user)
        for place, (name, user) in enumerate(USERS.items())
    }


@pytest.fixture(scope="module")
def served(corpus: str, project: Project, tokens: Tokens) -> Iterator[Served]:
    """A server over HTTP for these users, whose log has no token at the end."""
    variables = {
        "SECOND_BRAIN_DSN": corpus,
        "SUPABASE_URL": project.url,
        "SUPABASE_JWT_SECRET": SECRET,
    }
    with http_server("--supabase-users", "--remember", **variables) as server:
        yield server
    assert "second_brain.search: search hybrid" in server.log
    assert not [token for token in [SECRET, *tokens.values()] if token in server.log]


@pytest.fixture
def growers(corpus: str) -> Iterator[None]:
    """The project's function of groups: those in the token."""
    with psycopg.connect(corpus, autocommit=True) as connection:
        row = connection.execute(
            "select pg_get_functiondef('public.knowledge_viewer_groups()'::regprocedure)"
        ).fetchone()
        assert row is not None
        ask_groups_of_token(connection)
        yield
        connection.execute(row[0].encode())


def fruit(served: Served, token: str) -> bool:
    with connected(with_token(served.url, token)) as assistant:
        return LONG in assistant.ask("hybrid_search", **EVERYTHING).contents()


def test_the_database_gives_the_groups_of_a_token(
    served: Served, project: Project, request: pytest.FixtureRequest
) -> None:
    grower = project.token(sub=USERS["cleo"], app_metadata={"groups": ["growers"]})
    # Until the project replaces the function, no user has a group.
    assert not fruit(served, grower)
    request.getfixturevalue("growers")
    assert fruit(served, grower)
    assert not fruit(served, project.token(sub=USERS["cleo"], app_metadata={"groups": ["others"]}))


def test_each_token_sees_the_rows_of_its_own_viewer(served: Served, tokens: Tokens) -> None:
    visible = {
        "ana": {"API keys", "Recorder"},
        "ben": {"API keys", "Mia", "A 1. heron", "Fruit"},
        "cleo": {"API keys"},
    }
    for name, titles in visible.items():
        for mode in ("auto", "legacy"):
            with connected(with_token(served.url, tokens[name], mode=mode)) as assistant:
                found = assistant.ask("hybrid_search", **EVERYTHING, include_memory=True)
                listed = {str(one.title) for one in assistant.resources().resources}
            assert {" ".join(hit["title"].split()) for hit in found.content["results"]} <= titles
            assert listed == titles
            assert "remember" in assistant.tools


def test_a_note_belongs_to_the_viewer_of_the_token(served: Served, tokens: Tokens) -> None:
    with (
        connected(with_token(served.url, tokens["ana"])) as ana,
        connected(with_token(served.url, tokens["ben"])) as ben,
    ):
        note = ana.ask("remember", note="Ana prefers French.").content["id"]
        assert ben.ask("fetch", id=note).is_error
        assert ana.ask("fetch", id=note).content["text"] == "Ana prefers French."
        assert not ana.ask("forget", id=note).is_error


def test_calls_at_the_same_time_keep_to_their_viewers(served: Served, tokens: Tokens) -> None:
    with (
        connected(with_token(served.url, tokens["ana"])) as ana,
        connected(with_token(served.url, tokens["ben"], mode="legacy")) as ben,
    ):
        calls = [
            (assistant is ana, assistant.begin("hybrid_search", **EVERYTHING))
            for _ in range(5)
            for assistant in (ana, ben)
        ]
        for is_ana, call in calls:
            content = call.result().structured_content
            assert content is not None
            found = {unquoted(hit["content"]) for hit in content["results"]}
            assert (RECORDER in found, {HOSTILE, LONG} <= found) == (is_ana, not is_ana)


def test_the_session_of_another_user_gives_nothing(served: Served, tokens: Tokens) -> None:
    hello = httpx.post(
        served.url,
        json={
            "jsonrpc": "2.0",
            "id": 1,
            "method": "initialize",
            "params": {
                "protocolVersion": "2025-06-18",
                "capabilities": {},
                "clientInfo": {"name": "test", "version": "1"},
            },
        },
        headers={
            "Accept": "application/json, text/event-stream",
            "Authorization": f"Bearer {tokens['ben']}",
        },
    )
    assert hello.status_code == 200
    assert "mcp-session-id" not in hello.headers
    session = {"Mcp-Session-Id": "ben"}
    with call_by_hand(served.url, "hybrid_search", tokens["ana"], session, **EVERYTHING) as answer:
        found = answer.read().decode()
    assert "Recorder" in found
    assert "Kumquats" not in found
