"""A Supabase project for the tests of its users over MCP: its keys, and their access tokens."""

import base64
import hmac
import json
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from local_server import Quiet, serving
from mcp_clients import ANA

KEY = ec.generate_private_key(ec.SECP256R1())
OTHER_KEY = ec.generate_private_key(ec.SECP256R1())
SECRET = "a secret of more than thirty-two bytes"
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
            {"kty": "oct", "kid": "shared", "k": base64url(SECRET.encode())},
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

    class Handler(Quiet, BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/auth/v1/.well-known/jwks.json"
            served.downloads += 1
            body = json.dumps({"keys": served.keys}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with serving(Handler) as served.url:
        yield served
