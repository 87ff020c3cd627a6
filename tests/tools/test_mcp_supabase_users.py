"""Users of a Supabase project over MCP: whose token is accepted, and what each of them sees."""

import asyncio
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import httpx
import jwt
import psycopg
import pytest

from command_line import Run
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
from mcp_users import KEY, OTHER_KEY, PUBLIC, RSA_KEY, SECRET, Project, by_hand, project, published
from second_brain.errors import ConfigurationError
from second_brain.mcp_server import Scope, SupabaseUsers
from second_brain.mcp_server.supabase_users import signed_token
from second_brain.mcp_server.tokens import ScopedAccess

__all__ = ["project"]  # a fixture

pytest_plugins = ("mcp_fixtures",)


def scope(users: SupabaseUsers, token: str) -> Scope | None:
    access = asyncio.run(users.verify_token(token))
    assert access is None or (isinstance(access, ScopedAccess) and token not in repr(access))
    return None if access is None else access.scope


def test_the_user_of_a_token_is_the_viewer(project: Project) -> None:
    users = SupabaseUsers(f"{project.url}/", collections=("memory",), may_remember=True)
    allowed = Scope(("memory",), viewer_id=UUID(ANA), viewer_groups=(), may_remember=True)
    assert scope(users, project.token()) == allowed
    assert scope(users, project.token(RSA_KEY, "rsa", "RS256")) == allowed


def test_the_secret_of_a_project_signs_tokens_too(project: Project) -> None:
    users = SupabaseUsers(project.url, secret=SECRET)
    for token in (
        project.token(SECRET, "any", "HS256"),
        signed_token(project.url, SECRET, UUID(ANA), [], timedelta(days=1)),
        project.token(),
    ):
        assert scope(users, token) == Scope(viewer_id=UUID(ANA), viewer_groups=())
    with pytest.raises(ConfigurationError, match="it needs 32"):
        SupabaseUsers(project.url, secret="short")


@pytest.mark.parametrize(
    ("metadata", "groups"),
    [
        ({"app_metadata": {"groups": ["growers", 1, None]}}, ("growers",)),
        ({"app_metadata": {"groups": "growers"}}, ()),
        ({"app_metadata": ["growers"]}, ()),
        # What users can write themselves.
        ({"user_metadata": {"groups": ["growers"]}, "groups": ["growers"]}, ()),
    ],
)
def test_groups_are_those_of_the_metadata_that_users_cannot_write(
    project: Project, metadata: dict[str, Any], groups: tuple[str, ...]
) -> None:
    allowed = scope(SupabaseUsers(project.url), project.token(**metadata))
    assert allowed is not None
    assert allowed.viewer_groups == groups


@pytest.mark.parametrize("secret", [None, SECRET], ids=["keys alone", "with a secret"])
def test_a_token_that_is_not_a_signed_in_users_is_refused(
    project: Project, secret: str | None
) -> None:
    users = SupabaseUsers(project.url, secret=secret)
    header, claims, signature = project.token().split(".")
    refused = {
        "expired": project.token(exp=int(time.time()) - 1),
        "without an end": project.token(exp=None),
        "of a visitor": project.token(role="anon"),
        "of the service": project.token(role="service_role"),
        "without a role": project.token(role=None),
        "for something else": project.token(aud="other"),
        "of another project": project.token(iss="https://other.supabase.co/auth/v1"),
        "of no UUID": project.token(sub="ana"),
        "of nobody": project.token(sub=None),
        "signed with another key": project.token(OTHER_KEY),
        "with the name of another kind of key": project.token(kid="rsa"),
        "signed with another secret": project.token(f"not {SECRET}", "shared", "HS256"),
        # As if the public key, which everybody knows, were a secret.
        "signed with the public key": by_hand(project.claims(), PUBLIC),
        "signed with nothing": project.token(None, "first", "none"),
        "with an unknown key": project.token(kid="second"),
        "signed with the published part of the secret": by_hand(project.claims(), b"shared"),
        "of HS256 with the algorithm of a key": project.token(algorithm="ES256", kid="shared"),
        "changed": f"{header}.{claims}.{signature[::-1]}",
        "no token": "sb_ana",
    }
    if secret is None:
        refused["signed with a secret"] = project.token(SECRET, "shared", "HS256")
    assert {name for name, token in refused.items() if scope(users, token) is not None} == set()


def test_the_keys_are_downloaded_rarely_and_a_new_one_is_found(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    users, before = SupabaseUsers(project.url), project.downloads
    assert scope(users, project.token()) is not None
    for number in range(5):
        assert scope(users, project.token(kid=f"unknown {number}")) is None
    assert project.downloads == before + 1
    monkeypatch.setattr(project, "keys", [published("second", OTHER_KEY)])
    monkeypatch.setattr("second_brain.mcp_server.supabase_users._PAUSE", 0)
    assert scope(users, project.token(OTHER_KEY, "second")) is not None
    # The project has removed the first key.
    assert scope(users, project.token()) is None


def test_a_project_that_is_down_refuses_its_users(closed_port: int) -> None:
    users = SupabaseUsers(f"http://127.0.0.1:{closed_port}")
    assert scope(users, jwt.encode({}, KEY, "ES256", headers={"kid": "first"})) is None


@pytest.mark.parametrize("public", [None, "https://mcp.example.org/brain/mcp"])
def test_an_answer_without_a_token_leads_to_the_projects_sign_in(
    project: Project, corpus: str, public: str | None
) -> None:
    variables = {"SECOND_BRAIN_DSN": corpus, "SUPABASE_URL": project.url}
    options = [] if public is None else ["--public-url", public]
    with http_server("--supabase-users", *options, **variables) as served:
        url = public or served.url
        origin, _, path = url.removeprefix("https://").removeprefix("http://").partition("/")
        host = {} if public is None else {"Host": origin}
        for headers in ({}, {"Authorization": f"Bearer {project.token(role='anon')}"}):
            refused = httpx.post(served.url, json={}, headers=headers | host)
            assert refused.status_code == 401
            scheme, _, given = refused.headers["www-authenticate"].partition(" ")
            assert scheme == "Bearer"
            place = f"{url.removesuffix(f'/{path}')}/.well-known/oauth-protected-resource/{path}"
            assert f'resource_metadata="{place}"' in given
        here = served.url.removesuffix("/mcp")
        for suffix in ("", f"/{path}"):
            metadata = httpx.get(f"{here}/.well-known/oauth-protected-resource{suffix}").json()
            assert metadata["resource"] == url
            assert metadata["authorization_servers"] == [f"{project.url}/auth/v1"]
            assert metadata["bearer_methods_supported"] == ["header"]
        # A proxy on this machine may send its own host, and no other.
        for name, sent, is_allowed in (
            ("Host", "mcp.example.org", public is not None),
            ("Origin", "https://mcp.example.org", public is not None),
            ("Host", "evil.example", False),
            ("Origin", "https://evil.example", False),
        ):
            headers = {"Authorization": f"Bearer {project.token()}", name: sent}
            status = httpx.post(served.url, json={}, headers=headers).status_code
            assert (status not in (403, 421)) is is_allowed, (name, sent)


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        ("mcp --supabase-users --transport http --viewer-id " + ANA, "each caller has a viewer"),
        ("mcp --supabase-users", "--supabase-users is for callers over HTTP"),
        ("mcp --supabase-users --transport http", "need the address of their project"),
        (f"token --viewer-id {ANA}", "needs a user and a secret"),
        (f"token --viewer-id {ANA} --days 0", "--days"),
        (f"token --viewer-id {ANA} --days 36501", "--days"),
        (f"token --viewer-id {ANA} --days nan", "--days"),
    ],
)
def test_what_contradicts_the_users_is_refused(run: Run, command: str, complaint: str) -> None:
    refused = run("server", *command.split())
    assert (refused.code == 0, complaint in refused.err) == (False, True)


def test_users_and_one_token_for_all_contradict_each_other(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECOND_BRAIN_MCP_TOKEN", "a")
    refused = run("server", "mcp", "--supabase-users", "--transport", "http")
    assert "are both given" in refused.err


def test_the_command_makes_a_token_that_the_server_accepts(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUPABASE_URL", "https://a.supabase.co")
    monkeypatch.setenv("SUPABASE_JWT_SECRET", SECRET)
    options = ["--viewer-id", ANA, "--viewer-groups", "growers", "--days", "1"]
    token = run("server", "token", *options).out.strip()
    users = SupabaseUsers("https://a.supabase.co", secret=SECRET)
    assert scope(users, token) == Scope(viewer_id=UUID(ANA), viewer_groups=("growers",))
    claims = jwt.decode(token, options={"verify_signature": False})
    assert 0 < claims["exp"] - time.time() <= 86_400
    assert scope(SupabaseUsers("https://b.supabase.co", secret=SECRET), token) is None


def test_notes_that_users_could_not_see_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="could not see their notes"):
        SupabaseUsers("https://a.supabase.co", collections=("knowledge",), may_remember=True)


EVERYTHING: dict[str, Any] = {"query": "keys, cameras, heron, kumquats, Mondays", "limit": 50}
USERS = {"ana": ANA, "ben": BEN, "cleo": str(UUID(int=3))}
Tokens = dict[str, str]


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
    variables = {"SUPABASE_URL": project.url, "SUPABASE_JWT_SECRET": SECRET}
    options = ("--supabase-users", "--remember")
    with http_server(*options, SECOND_BRAIN_DSN=corpus, **variables) as server:
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


def test_the_database_gives_the_groups_of_a_token(
    served: Served, project: Project, request: pytest.FixtureRequest
) -> None:
    def has_fruit(group: str) -> bool:
        token = project.token(sub=USERS["cleo"], app_metadata={"groups": [group]})
        with connected(with_token(served.url, token)) as assistant:
            return LONG in assistant.search(**EVERYTHING).contents()

    # Until the project replaces the function, no user has a group.
    assert not has_fruit("growers")
    request.getfixturevalue("growers")
    assert has_fruit("growers")
    assert not has_fruit("others")


def test_each_token_sees_the_rows_of_its_own_viewer(served: Served, tokens: Tokens) -> None:
    visible = {
        "ana": {"API keys", "Recorder"},
        "ben": {"API keys", "Mia", "A 1. heron", "Fruit"},
        "cleo": {"API keys"},
    }
    for name, titles in visible.items():
        for mode in ("auto", "legacy"):
            with connected(with_token(served.url, tokens[name], mode=mode)) as assistant:
                found = assistant.search(**EVERYTHING, include_memory=True)
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
    client = {"name": "test", "version": "1"}
    given = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client}
    hello = httpx.post(
        served.url,
        json={"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": given},
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
