"""One MCP server for many users: each token has its own viewer."""

import asyncio
import hashlib
import os
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp.shared.exceptions import MCPError

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
    with_token,
)
from second_brain.cli import main
from second_brain.errors import ConfigurationError
from second_brain.mcp_server import Scope, TokenFile
from second_brain.mcp_server.tokens import ScopedAccess, new_token, token_lines

pytest_plugins = ("mcp_fixtures",)

EVERYTHING: dict[str, Any] = {"query": "keys, cameras, heron, kumquats, Mondays", "limit": 50}
TOKENS = {name: f"sb_{name}-secret" for name in ("ana", "ben", "visitor", "late")}


def lines(name: str, **given: Any) -> str:
    digest = hashlib.sha256(TOKENS[name].encode()).hexdigest()
    return token_lines({"name": name, "sha256": digest, **given})


ANAS = lines("ana", viewer_id=ANA, may_remember=True)
BENS = lines("ben", viewer_id=BEN)
VISITORS = lines("visitor", public_only=True)
LATE = lines("late", viewer_id=ANA, expires=datetime.now(UTC) - timedelta(seconds=1))


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module")
def served(corpus: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server over HTTP for the tokens above, whose log has none of them at the end."""
    folder = tmp_path_factory.mktemp("tokens")
    path = written(folder / "tokens.toml", ANAS + BENS + VISITORS + LATE)
    with http_server("--tokens", str(path), SECOND_BRAIN_DSN=corpus) as server:
        yield server
    assert "second_brain.search: search hybrid" in server.log
    assert not [token for token in TOKENS.values() if token in server.log]


def test_each_token_sees_the_rows_of_its_own_viewer(served: Served) -> None:
    visible = {
        "ana": {"API keys", "Recorder"},
        "ben": {"API keys", "Mia", "A 1. heron", "Fruit"},
        "visitor": {"API keys"},
    }
    for name, titles in visible.items():
        for mode in ("auto", "legacy"):
            with connected(with_token(served.url, TOKENS[name], mode=mode)) as assistant:
                found = assistant.ask("hybrid_search", **EVERYTHING, include_memory=True)
                listed = {str(one.title) for one in assistant.resources().resources}
            assert {" ".join(hit["title"].split()) for hit in found.content["results"]} <= titles
            assert listed == titles
            assert ("remember" in assistant.tools) is (name == "ana")


def test_a_note_belongs_to_the_viewer_of_the_token(served: Served) -> None:
    with (
        connected(with_token(served.url, TOKENS["ana"])) as ana,
        connected(with_token(served.url, TOKENS["ben"])) as ben,
    ):
        note = ana.ask("remember", note="Ana prefers French.").content["id"]
        assert ben.ask("fetch", id=note).is_error
        assert ana.ask("fetch", id=note).content["text"] == "Ana prefers French."
        assert not ana.ask("forget", id=note).is_error


def test_a_token_cannot_read_the_document_of_another_by_its_id(served: Served) -> None:
    with connected(with_token(served.url, TOKENS["ben"])) as ben:
        (theirs,) = [one for one in ben.resources().resources if one.title == "Fruit"]
        assert ben.read(theirs.uri).text == LONG
    document = theirs.uri.removeprefix("second-brain://document/")
    for name in ("ana", "visitor"):
        with connected(with_token(served.url, TOKENS[name])) as other:
            assert other.ask("fetch", id=document).is_error
            with pytest.raises(MCPError, match="there is no resource"):
                other.read(theirs.uri)


def test_calls_at_the_same_time_keep_to_their_viewers(served: Served) -> None:
    with (
        connected(with_token(served.url, TOKENS["ana"])) as ana,
        connected(with_token(served.url, TOKENS["ben"], mode="legacy")) as ben,
    ):
        calls = [
            (assistant is ana, assistant.begin("hybrid_search", **EVERYTHING))
            for _ in range(5)
            for assistant in (ana, ben)
        ]
        for is_ana, call in calls:
            content = call.result().structured_content
            assert content is not None
            found = {hit["content"] for hit in content["results"]}
            assert (RECORDER in found, {HOSTILE, LONG} <= found) == (is_ana, not is_ana)


def test_the_session_of_another_user_gives_nothing(served: Served) -> None:
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
            "Authorization": f"Bearer {TOKENS['ben']}",
        },
    )
    assert hello.status_code == 200
    assert "mcp-session-id" not in hello.headers
    session = {"Mcp-Session-Id": "ben"}
    with call_by_hand(served.url, "hybrid_search", TOKENS["ana"], session, **EVERYTHING) as answer:
        found = answer.read().decode()
    assert "Recorder" in found
    assert "Kumquats" not in found


@pytest.mark.parametrize(
    "token",
    [
        None,
        "another",
        TOKENS["late"],
        hashlib.sha256(TOKENS["ana"].encode()).hexdigest(),
        TOKENS["ana"].upper(),
        "ana",
    ],
    ids=["none", "unknown", "expired", "the digest", "other case", "the name"],
)
def test_a_wrong_token_gets_401(served: Served, token: str | None) -> None:
    with call_by_hand(served.url, "hybrid_search", token, None, **EVERYTHING) as refused:
        assert refused.status_code == 401
        assert "Service role keys" not in refused.read().decode()


def verified(file: TokenFile, name: str) -> Scope | None:
    access = asyncio.run(file.verify_token(TOKENS[name]))
    assert access is None or isinstance(access, ScopedAccess)
    # Neither the SDK nor a log gets the secret.
    assert TOKENS[name] not in repr(access)
    return None if access is None else access.scope


def test_a_changed_file_counts_at_once(tmp_path: Path) -> None:
    path = written(tmp_path / "tokens.toml", ANAS + BENS)
    file = TokenFile(path)
    assert verified(file, "ben") is not None
    written(path, ANAS + VISITORS)
    assert verified(file, "ben") is None
    assert verified(file, "visitor") == Scope(public_only=True)
    # A fault in the file refuses everybody, so that a removed token cannot stay valid.
    written(path, "tokens = 1")
    assert verified(file, "ana") is None
    path.unlink()
    assert verified(file, "ana") is None
    written(path, ANAS)
    assert verified(file, "ana") is not None


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("tokens = [", "cannot read the tokens"),
        ("", "tokens: Field required"),
        ('[[tokens]]\nname = "ana"\nsha256 = "sb_ana-secret"', "tokens.0.sha256: String should"),
        (f"{ANAS}admin = true", "tokens.0.admin: Extra inputs"),
        (ANAS + ANAS, "two tokens have the same name"),
        (ANAS + BENS.replace("ben", "eve") * 2, "two tokens have the same name"),
        (ANAS + ANAS.replace('"ana"', '"eve"'), "two tokens have the same sha256"),
        (BENS.replace("viewer_id", "# viewer_id"), "token ben would show every row"),
        (f'{ANAS}collections = ["knowledge"]', "token ana: the viewer could not see their notes"),
    ],
    ids=[
        "not TOML",
        "no tokens",
        "a token in place of its digest",
        "an unknown key",
        "the same lines",
        "the same name",
        "the same digest",
        "no limit",
        "notes out of sight",
    ],
)
def test_a_wrong_file_is_refused_without_its_values(
    tmp_path: Path, text: str, complaint: str
) -> None:
    path = written(tmp_path / "tokens.toml", text)
    with pytest.raises(ConfigurationError, match=complaint) as refused:
        TokenFile(path)
    assert str(path) in str(refused.value)
    assert "secret" not in str(refused.value)


@pytest.mark.skipif(os.name != "posix", reason="needs permissions of POSIX")
@pytest.mark.parametrize("mode", [0o604, 0o602, 0o620])
def test_a_file_that_others_can_read_or_change_is_refused(tmp_path: Path, mode: int) -> None:
    path = written(tmp_path / "tokens.toml", ANAS)
    path.chmod(mode)
    with pytest.raises(ConfigurationError, match="other users can read or change") as refused:
        TokenFile(path)
    assert refused.value.remedy == f"Run: chmod 600 {path}"


def run(
    monkeypatch: pytest.MonkeyPatch, *arguments: str, variables: Mapping[str, str] | None = None
) -> None:
    for name, value in (variables or {}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["second-brain", *arguments])
    with pytest.raises(SystemExit):
        main()


def test_the_command_makes_a_token_that_the_file_accepts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    options = ["--viewer-id", ANA, "--viewer-groups", "growers", "--remember", "--days", "1"]
    run(monkeypatch, "server", "token", 'ana\'s "laptop" Ω', *options)
    printed = capsys.readouterr()
    token = printed.err.split()[-1]
    assert token not in printed.out
    file = TokenFile(written(tmp_path / "tokens.toml", printed.out))
    access = asyncio.run(file.verify_token(token))
    assert isinstance(access, ScopedAccess)
    assert access.client_id == 'ana\'s "laptop" Ω'
    assert (str(access.scope.viewer_id), access.scope.viewer_groups) == (ANA, ("growers",))
    assert access.scope.may_remember
    assert access.expires_at is not None
    assert 0 < access.expires_at - datetime.now(UTC).timestamp() <= 86_400
    assert new_token()[0] != new_token()[0]


@pytest.mark.parametrize(
    ("arguments", "variables", "complaint"),
    [
        ([], {}, "--tokens is for callers over HTTP"),
        (["--transport", "http", "--viewer-id", ANA], {}, "each caller has a viewer"),
        (["--transport", "http", "--collection", "a"], {}, "says what each caller may see"),
        (
            ["--transport", "http"],
            {"SECOND_BRAIN_PUBLIC_ONLY": "true"},
            "each caller has a viewer",
        ),
        (["--transport", "http"], {"SECOND_BRAIN_MCP_TOKEN": "a"}, "are both given"),
    ],
)
def test_options_that_contradict_the_file_are_refused(
    arguments: list[str],
    variables: dict[str, str],
    complaint: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    path = written(tmp_path / "tokens.toml", ANAS)
    run(monkeypatch, "server", "mcp", "--tokens", str(path), *arguments, variables=variables)
    assert complaint in capsys.readouterr().err
