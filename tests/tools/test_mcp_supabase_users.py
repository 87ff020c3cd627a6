"""Users of a Supabase project over MCP: whose access token is accepted, and as which viewer."""

import asyncio
import base64
import hmac
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from uuid import UUID

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from command_line import Run
from mcp_clients import ANA, HOSTILE, RECORDER, call_by_hand, connected, http_server
from mcp_clients import with_token as client_with_token
from second_brain.errors import ConfigurationError
from second_brain.mcp_server import Scope, SupabaseUsers
from second_brain.mcp_server.tokens import ScopedAccess

pytest_plugins = ("mcp_fixtures",)

KEY = ec.generate_private_key(ec.SECP256R1())
OTHER_KEY = ec.generate_private_key(ec.SECP256R1())
SHARED = b"a secret of more than thirty-two bytes"
PUBLIC = KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)


class Project:
    """Stands for a Supabase project that publishes the public keys of its tokens."""

    def __init__(self) -> None:
        self.url = ""
        self.keys: list[dict[str, Any]] = [
            published("first", KEY),
            published("rsa", RSA_KEY),
            # Of a kind that is never used: anyone could sign with it.
            {"kty": "oct", "kid": "shared", "k": base64url(SHARED)},
        ]
        self.downloads = 0

    def claims(self, **changed: Any) -> dict[str, Any]:
        """Return what Supabase writes into the token of a signed-in user; None leaves it out."""
        claims = {
            "iss": f"{self.url}/auth/v1",
            "sub": ANA,
            "aud": "authenticated",
            "role": "authenticated",
            "exp": int(time.time()) + 60,
            **changed,
        }
        return {name: value for name, value in claims.items() if value is not None}

    def token(
        self, key: Any = KEY, kid: str = "first", algorithm: str = "ES256", **changed: Any
    ) -> str:
        """Return a signed token."""
        return jwt.encode(self.claims(**changed), key, algorithm, headers={"kid": kid})


def by_hand(claims: dict[str, Any], secret: bytes) -> str:
    """Return a token signed with HS256; PyJWT itself refuses to sign with a public key."""
    header = {"alg": "HS256", "typ": "JWT", "kid": "first"}
    parts = [base64url(json.dumps(one).encode()) for one in (header, claims)]
    signed = hmac.digest(secret, ".".join(parts).encode(), "sha256")
    return ".".join([*parts, base64url(signed)])


def base64url(text: bytes) -> str:
    return base64.urlsafe_b64encode(text).rstrip(b"=").decode()


def published(kid: str, key: Any) -> dict[str, Any]:
    kind: Any = jwt.algorithms.ECAlgorithm
    if isinstance(key, rsa.RSAPrivateKey):
        kind = jwt.algorithms.RSAAlgorithm
    return {**json.loads(kind.to_jwk(key.public_key())), "kid": kid}


@pytest.fixture(scope="module")
def project() -> Iterator[Project]:
    served = Project()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/auth/v1/.well-known/jwks.json"
            served.downloads += 1
            body = json.dumps({"keys": served.keys}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        served.url = f"http://127.0.0.1:{server.server_port}"
        yield served
        server.shutdown()
        thread.join()


def scope(users: SupabaseUsers, token: str) -> Scope | None:
    access = asyncio.run(users.verify_token(token))
    assert access is None or (isinstance(access, ScopedAccess) and token not in repr(access))
    return None if access is None else access.scope


def test_the_user_of_a_token_is_the_viewer(project: Project) -> None:
    users = SupabaseUsers(f"{project.url}/", collections=("memory",), may_remember=True)
    allowed = Scope(("memory",), viewer_id=UUID(ANA), may_remember=True)
    assert scope(users, project.token()) == allowed
    assert scope(users, project.token(RSA_KEY, "rsa", "RS256")) == allowed


def test_a_token_that_is_not_a_signed_in_users_is_refused(project: Project) -> None:
    users = SupabaseUsers(project.url)
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
        "signed with the secret of a shared key": project.token(SHARED, "shared", "HS256"),
        # As if the public key, which everybody knows, were a secret.
        "signed with the public key": by_hand(project.claims(), PUBLIC),
        "signed with nothing": project.token(None, "first", "none"),
        "with an unknown key": project.token(kid="second"),
        "changed": f"{header}.{claims}.{signature[::-1]}",
        "no token": "sb_ana",
    }
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


def test_users_call_the_server_with_their_tokens(project: Project, corpus: str) -> None:
    variables = {"SECOND_BRAIN_DSN": corpus, "SUPABASE_URL": project.url}
    with http_server("--supabase-users", **variables) as served:
        with connected(client_with_token(served.url, project.token())) as ana:
            found = ana.ask("hybrid_search", query="cameras, heron or keys", limit=50)
        with call_by_hand(served.url, "fetch", project.token(role="anon"), id=ANA) as refused:
            assert refused.status_code == 401
    assert RECORDER in found.contents()
    assert HOSTILE not in found.contents()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--viewer-id", ANA], "each caller has a viewer"),
        (["--tokens", "tokens.toml"], "each caller has a viewer"),
        ([], "needs the address of the project"),
    ],
)
def test_what_contradicts_the_users_is_refused(
    run: Run, arguments: list[str], complaint: str
) -> None:
    given = ["--transport", "http", "--supabase-users", *arguments]
    assert complaint in run("server", "mcp", *given).err


def test_notes_that_users_could_not_see_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="could not see their notes"):
        SupabaseUsers("https://a.supabase.co", collections=("knowledge",), may_remember=True)
