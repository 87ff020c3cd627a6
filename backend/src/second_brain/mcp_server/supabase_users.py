"""Access tokens of a Supabase project's users: the viewer of a call is the user of its token."""

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import httpx
import jwt
from mcp.server.auth.provider import AccessToken

from second_brain.mcp_server.scope import Scope
from second_brain.mcp_server.tokens import ScopedAccess

logger = logging.getLogger(__name__)

_SIGNED_IN = "authenticated"
"""Audience and role of a user's token; a token of a service or a visitor has another role."""

_ALGORITHMS = {("EC", "P-256"): "ES256", ("RSA", None): "RS256"}
"""For each kind of key its one algorithm: a token does not choose how it is verified."""

_AGE = 600.0
"""Seconds after which the keys are downloaded again, so that a revoked key is gone."""

_PAUSE = 30.0
"""Seconds between two downloads, however many tokens name an unknown key."""

_TIMEOUT = 5.0


class SupabaseUsers:
    """Verifies the access tokens of the users of one Supabase project.

    The project at `address` must sign with an asymmetric key, which it publishes there. Each user
    is the viewer of their own calls, in these `collections`, and may store notes with
    `may_remember`. Raises ConfigurationError where `Scope` does.
    """

    def __init__(
        self,
        address: str,
        *,
        collections: tuple[str, ...] | None = None,
        may_remember: bool = False,
    ) -> None:
        self._issuer = f"{address.rstrip('/')}/auth/v1"
        self._collections = collections
        self._may_remember = may_remember
        self._keys: dict[str, tuple[jwt.PyJWK, str]] = {}
        self._downloaded = float("-inf")
        self._lock = asyncio.Lock()
        self._scope(UUID(int=0))

    async def verify_token(self, token: str) -> AccessToken | None:
        """Return the access of a signed-in user whose token is valid; else None."""
        try:
            found = await self._key(jwt.get_unverified_header(token).get("kid"))
            if found is None:
                return None
            key, algorithm = found
            claims = jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                audience=_SIGNED_IN,
                issuer=self._issuer,
                options={"require": ["exp", "sub", "aud", "iss"]},
            )
            viewer = UUID(claims["sub"])
        except (jwt.PyJWTError, ValueError):
            return None
        if claims.get("role") != _SIGNED_IN:
            return None
        return ScopedAccess(
            token="",
            client_id=_SIGNED_IN,
            scopes=[],
            subject=str(viewer),
            expires_at=int(claims["exp"]),
            scope=self._scope(viewer),
        )

    def _scope(self, viewer: UUID) -> Scope:
        return Scope(
            collections=self._collections, viewer_id=viewer, may_remember=self._may_remember
        )

    async def _key(self, name: object) -> tuple[jwt.PyJWK, str] | None:
        """Return a key of the project and its algorithm."""
        if not isinstance(name, str):
            return None
        async with self._lock:
            age = time.monotonic() - self._downloaded
            if age > _AGE or (name not in self._keys and age > _PAUSE):
                await self._download()
        return self._keys.get(name)

    async def _download(self) -> None:
        self._downloaded = time.monotonic()
        try:
            async with httpx.AsyncClient(timeout=_TIMEOUT) as client:
                answer = await client.get(f"{self._issuer}/.well-known/jwks.json")
            answer.raise_for_status()
            self._keys = dict(_readable(answer.json()["keys"]))
        except (httpx.HTTPError, jwt.PyJWTError, ValueError, KeyError, TypeError) as error:
            # The keys that are known stay valid.
            logger.warning("the keys of %s were not read: %s", self._issuer, type(error).__name__)


def _readable(keys: list[Mapping[str, Any]]) -> list[tuple[str, tuple[jwt.PyJWK, str]]]:
    """Return the keys that can verify a user's token, by their names."""
    readable = []
    for key in keys:
        algorithm = _ALGORITHMS.get((key.get("kty", ""), key.get("crv")))
        if algorithm is not None and isinstance(key.get("kid"), str):
            readable.append((key["kid"], (jwt.PyJWK(dict(key), algorithm), algorithm)))
    return readable
