"""Access tokens of a Supabase project's users: the viewer of a call is the user of its token."""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeAlias
from uuid import UUID

import httpx
import jwt
from mcp.server.auth.provider import AccessToken

from second_brain.errors import ConfigurationError
from second_brain.mcp_server.scope import Scope
from second_brain.mcp_server.tokens import ScopedAccess

logger = logging.getLogger(__name__)

_SIGNED_IN = "authenticated"
"""Audience and role of a user's token; a token of a service or a visitor has another role."""

_ALGORITHMS = {("EC", "P-256"): "ES256", ("RSA", None): "RS256"}
"""For each kind of key its one algorithm: a token does not choose how it is verified."""

_SHARED = "HS256"
"""The algorithm of the legacy JWT secret, which verifies nothing else."""

_SHORTEST_SECRET = 32
"""Characters; HS256 needs a key as long as its digest."""

_Key: TypeAlias = tuple[jwt.PyJWK | str, str]
"""A key and its algorithm."""

_AGE = 600.0
"""Seconds after which the keys are downloaded again, so that a revoked key is gone."""

_PAUSE = 30.0
"""Seconds between two downloads, however many tokens name an unknown key."""

_TIMEOUT = 5.0


class SupabaseUsers:
    """Verifies the access tokens of the users of one Supabase project.

    The project at `address` publishes its asymmetric keys there; `secret` is its legacy JWT secret,
    without which tokens of HS256 are refused. Each user is the viewer of their own calls, with the
    groups in `app_metadata` of the token, in these `collections`, and may store notes with
    `may_remember`. Raises ConfigurationError for a short secret, and where `Scope` does.
    """

    def __init__(
        self,
        address: str,
        *,
        secret: str | None = None,
        collections: tuple[str, ...] | None = None,
        may_remember: bool = False,
    ) -> None:
        self.issuer = f"{address.rstrip('/')}/auth/v1"
        self._secret = None if secret is None else checked_secret(secret)
        self._collections = collections
        self._may_remember = may_remember
        self._keys: dict[str, _Key] = {}
        self._downloaded = float("-inf")
        self._lock = asyncio.Lock()
        self._scope(UUID(int=0), ())

    async def verify_token(self, token: str) -> AccessToken | None:
        """Return the access of a signed-in user whose token is valid; else None."""
        try:
            found = await self._key(jwt.get_unverified_header(token))
            if found is None:
                return None
            key, algorithm = found
            claims = jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                audience=_SIGNED_IN,
                issuer=self.issuer,
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
            claims=claims,
            scope=self._scope(viewer, _groups(claims)),
        )

    def _scope(self, viewer: UUID, groups: tuple[str, ...]) -> Scope:
        return Scope(
            collections=self._collections,
            viewer_id=viewer,
            viewer_groups=groups,
            may_remember=self._may_remember,
        )

    async def _key(self, header: Mapping[str, Any]) -> _Key | None:
        """Return the key that must have signed a token with this header."""
        if header.get("alg") == _SHARED:
            return None if self._secret is None else (self._secret, _SHARED)
        name = header.get("kid")
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
                answer = await client.get(f"{self.issuer}/.well-known/jwks.json")
            answer.raise_for_status()
            self._keys = dict(_readable(answer.json()["keys"]))
        except (httpx.HTTPError, jwt.PyJWTError, ValueError, KeyError, TypeError) as error:
            # The keys that are known stay valid.
            logger.warning("the keys of %s were not read: %s", self.issuer, type(error).__name__)


def checked_secret(secret: str) -> str:
    """Return a JWT secret; or raise ConfigurationError."""
    if len(secret) < _SHORTEST_SECRET:
        raise ConfigurationError(
            f"the JWT secret has {len(secret)} characters, it needs {_SHORTEST_SECRET}",
            remedy="Give the project's own, or the output of: openssl rand -hex 32",
        )
    return secret


def signed_token(
    address: str, secret: str, viewer: UUID, groups: Sequence[str], lifetime: timedelta
) -> str:
    """Return an access token of a user, as the project at `address` signs it with its secret."""
    now = int(time.time())
    claims = {
        "iss": SupabaseUsers(address).issuer,
        "aud": _SIGNED_IN,
        "role": _SIGNED_IN,
        "sub": str(viewer),
        "iat": now,
        "exp": now + int(lifetime.total_seconds()),
        "app_metadata": {"groups": list(groups)},
    }
    return jwt.encode(claims, checked_secret(secret), _SHARED)


def _groups(claims: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the groups of a token; only the service role can write app_metadata."""
    metadata = claims.get("app_metadata")
    groups = metadata.get("groups") if isinstance(metadata, Mapping) else None
    if not isinstance(groups, list):
        return ()
    return tuple(group for group in groups if isinstance(group, str))


def _readable(keys: list[Mapping[str, Any]]) -> list[tuple[str, _Key]]:
    """Return the keys that can verify a user's token, by their names."""
    readable: list[tuple[str, _Key]] = []
    for key in keys:
        algorithm = _ALGORITHMS.get((key.get("kty", ""), key.get("crv")))
        if algorithm is not None and isinstance(key.get("kid"), str):
            readable.append((key["kid"], (jwt.PyJWK(dict(key), algorithm), algorithm)))
    return readable
