"""The Edge Function `mcp`, run by Deno over a real database and called by MCP's own client."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import httpx
import jwt
import pytest
from rest import Rest
from test_frontend import ANA, BEN, OFFLINE, ROOT, deno, deployed, needs_deno, project, signed

from conformance import REVISIONS, conformance, needs_runner
from conftest import Server
from mcp_clients import connected, with_token
from mcp_users import KEY, OTHER_KEY
from second_brain.mcp_server.searching import HybridSearch

pytestmark = needs_deno

FUNCTION = ROOT / "supabase" / "functions" / "mcp" / "index.ts"
AUDIENCE = {"aud": "authenticated"}
# The last is for servers without a token on a loopback address.
NOT_OFFERED = ("resources-list", "sep-2164-resource-not-found", "dns-rebinding-protection")
Running: TypeAlias = tuple[str, Rest]


@pytest.fixture(scope="module")
def running(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The address of the function, and what stands for its project."""
    with project(server) as (rest, _), deployed(FUNCTION, rest, tmp_path_factory.mktemp("d")) as at:
        rest.keys["first"] = KEY
        yield at, rest


def by_key(key: Any = KEY, kid: str = "first", algorithm: str = "ES256", **changed: Any) -> str:
    """Sign a token of Ana's with a key of the project."""
    lasting = {"role": "authenticated", "sub": str(ANA), "exp": int(time.time()) + 600}
    return jwt.encode(
        {**lasting, **AUDIENCE, **changed}, key, algorithm=algorithm, headers={"kid": kid}
    )


def test_it_is_typed_formatted_and_linted(tmp_path: Path) -> None:
    deno("check", *OFFLINE, str(FUNCTION), home=tmp_path)
    deno("fmt", "--check", "--line-width=100", str(FUNCTION), home=tmp_path)
    deno("lint", str(FUNCTION), home=tmp_path)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_a_user_finds_their_own_rows_with_either_kind_of_token(running: Running, mode: str) -> None:
    url, rest = running
    for token, titles in (
        (signed(ANA, **AUDIENCE), {"billing", "pets"}),
        (by_key(), {"billing", "pets"}),
        (signed(BEN, **AUDIENCE), {"salary"}),
    ):
        with connected(with_token(url, token, mode=mode)) as assistant:
            assert assistant.tools.keys() == {"hybrid_search"}
            found = assistant.ask("hybrid_search", query="invoice")
        assert {hit["title"] for hit in found.content["results"]} == titles
        assert found.content["results"][0]["match_type"] == "both"
        assert [hit["id"] for hit in json.loads(found.text)["results"]] == [
            hit["id"] for hit in found.content["results"]
        ]
    assert set(rest.called) == {"search_my_knowledge_chunks"}


def test_its_arguments_are_those_of_the_server(running: Running) -> None:
    with connected(with_token(running[0], by_key())) as assistant:
        (tool,) = assistant.tools.values()
        given = tool.input_schema["properties"]
        assert given.keys() <= HybridSearch.model_fields.keys()
        own = HybridSearch.model_json_schema()["properties"]
        for name, bounds in given.items():
            for key in ("minLength", "maxLength", "minimum", "maximum", "default"):
                assert bounds.get(key) == own[name].get(key), (name, key)
        few = assistant.ask("hybrid_search", query="invoice", limit=1)
        assert (len(few.content["results"]), few.content["total_count"]) == (1, 2)
        none = assistant.ask("hybrid_search", query="invoice", filters={"language": "xx"})
        assert none.content["results"] == []


def test_a_refusal_names_the_argument_and_the_remedy(running: Running) -> None:
    url, rest = running
    with connected(with_token(url, by_key())) as assistant:
        wrong = assistant.ask("hybrid_search", query="a", filters=[{"field": "no", "op": "eq"}])
        many = assistant.ask("hybrid_search", query="a", limit=51)
        rest.failure = (503, {"message": "down"})
        try:
            down = assistant.ask("hybrid_search", query="a")
        finally:
            rest.failure = None
    assert wrong.is_error
    assert "Correct the argument" in wrong.text
    assert many.is_error
    assert "50" in many.text
    assert (
        down.text
        == "Search failed: the search failed. Try again; the function's log has the cause."
    )


def refused(url: str, token: str | None) -> httpx.Response:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return httpx.post(url, json={}, headers=headers, timeout=60)


def test_a_token_that_is_not_a_signed_in_users_leads_to_the_sign_in(running: Running) -> None:
    url, rest = running
    mcp = f"http://127.0.0.1:{rest.server_port}/functions/v1/mcp"
    wrong = {
        "none": None,
        "no token": "sb_ana",
        "of a visitor": by_key(role="anon"),
        "of the service": by_key(role="service_role"),
        "for something else": by_key(aud="other"),
        "expired": by_key(exp=int(time.time()) - 60),
        "of another key": by_key(OTHER_KEY),
        "of an unknown key": by_key(OTHER_KEY, "second"),
        "of another secret": by_key("another secret of more than 32 bytes", "s", "HS256"),
    }
    for name, token in wrong.items():
        answer = refused(url, token)
        assert answer.status_code == 401, (name, answer.text)
        place = f'resource_metadata="{mcp}/.well-known/oauth-protected-resource"'
        assert place in answer.headers["www-authenticate"], name
    metadata = httpx.get(f"{url}mcp/.well-known/oauth-protected-resource").json()
    assert metadata == {
        "resource": mcp,
        "authorization_servers": [f"http://127.0.0.1:{rest.server_port}/auth/v1"],
        "bearer_methods_supported": ["header"],
    }


@needs_runner
@pytest.mark.parametrize("revision", REVISIONS)
def test_it_conforms(running: Running, revision: str, tmp_path: Path) -> None:
    preload = ROOT / "tests" / "supabase" / "signed_in.ts"
    with deployed(FUNCTION, running[1], tmp_path, preload, TOKEN=by_key()) as url:
        passed, failed = conformance(url, revision, tmp_path, NOT_OFFERED)
    print(revision, passed)
    assert failed == []
    assert (
        passed.keys()
        == {
            "2026-07-28": {"server-stateless", "tools-list", "http-header-validation", "caching"},
            "2025-11-25": {"server-initialize", "ping", "tools-list"},
        }[revision]
    )
