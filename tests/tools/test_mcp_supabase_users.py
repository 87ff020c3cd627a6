"""Users of a Supabase project over MCP: whose access token is accepted, and as which viewer."""

import asyncio
import time
from datetime import timedelta
from typing import Any
from uuid import UUID

import httpx
import jwt
import pytest

from command_line import Run
from mcp_clients import ANA, http_server
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


HTTP = ["--transport", "http"]


@pytest.mark.parametrize(
    ("arguments", "variables", "complaint"),
    [
        ([*HTTP, "--viewer-id", ANA], {}, "each caller has a viewer"),
        (HTTP, {"SECOND_BRAIN_MCP_TOKEN": "a"}, "are both given"),
        ([], {}, "--supabase-users is for callers over HTTP"),
        (HTTP, {}, "need the address of their project"),
    ],
)
def test_what_contradicts_the_users_is_refused(
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    variables: dict[str, str],
    complaint: str,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert complaint in run("server", "mcp", "--supabase-users", *arguments).err


def test_the_command_makes_a_token_that_the_server_accepts(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "needs a user and a secret" in run("server", "token", "--viewer-id", ANA).err
    monkeypatch.setenv("SUPABASE_URL", "https://a.supabase.co")
    monkeypatch.setenv("SUPABASE_JWT_SECRET", SECRET)
    options = ["--viewer-id", ANA, "--viewer-groups", "growers", "--days", "1"]
    token = run("server", "token", *options).out.strip()
    users = SupabaseUsers("https://a.supabase.co", secret=SECRET)
    assert scope(users, token) == Scope(viewer_id=UUID(ANA), viewer_groups=("growers",))
    claims = jwt.decode(token, options={"verify_signature": False})
    assert 0 < claims["exp"] - time.time() <= 86_400
    assert scope(SupabaseUsers("https://b.supabase.co", secret=SECRET), token) is None


@pytest.mark.parametrize("days", ["0", "36501", "nan"])
def test_days_of_a_token_out_of_bounds_are_refused_by_name(run: Run, days: str) -> None:
    refused = run("server", "token", "--viewer-id", ANA, "--days", days)
    assert refused.code == 2
    assert "--days" in refused.err


def test_notes_that_users_could_not_see_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="could not see their notes"):
        SupabaseUsers("https://a.supabase.co", collections=("knowledge",), may_remember=True)
