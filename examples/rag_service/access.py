"""Who asks: the token of a request is verified, and names the viewer and the groups."""

import asyncio
from typing import Any, NamedTuple
from uuid import UUID

import jwt
from pydantic import BaseModel, TypeAdapter, ValidationError

from rag_service.settings import Settings
from second_brain.errors import AuthenticationError, UnavailableError


class TokenRefusedError(AuthenticationError):
    """The token of the request is missing, has expired or is not valid."""

    http_status = 401
    default_remedy = "Sign in again, and send the new token as `Authorization: Bearer TOKEN`."


class Viewer(NamedTuple):
    """The user who asks."""

    id: UUID
    groups: tuple[str, ...]


class _Claims(BaseModel):
    sub: UUID
    # Only the service role can write it; a user can write `user_metadata`.
    app_metadata: dict[str, Any] = {}


_Groups = TypeAdapter(tuple[str, ...])


class Tokens:
    """Verifies tokens of Supabase Auth: with the secret, or with the public keys at JWKS_URL."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        secret = settings.jwt_secret
        self._secret = secret and secret.get_secret_value()
        self._keys = settings.jwks_url and jwt.PyJWKClient(settings.jwks_url, timeout=5)
        # They do not depend on the token: a public key must not become the secret of HS256.
        self._algorithms = ["HS256"] if secret else ["ES256", "RS256", "EdDSA"]

    async def viewer(self, token: str) -> Viewer:
        """Return the viewer; raises TokenRefusedError, or UnavailableError without the keys."""
        try:
            claims = _Claims.model_validate(await self._verified(token))
            groups = claims.app_metadata.get(self._settings.jwt_groups or "", ())
            return Viewer(claims.sub, _Groups.validate_python(groups))
        except jwt.PyJWKClientConnectionError as error:
            raise UnavailableError("the keys at JWKS_URL cannot be read") from error
        except jwt.ExpiredSignatureError:
            raise TokenRefusedError("the token has expired") from None
        except (jwt.PyJWTError, ValidationError):
            raise TokenRefusedError("the token is not valid") from None

    async def _verified(self, token: str) -> object:
        issuer = self._settings.jwt_issuer
        key: Any = self._secret
        if isinstance(self._keys, jwt.PyJWKClient):
            # In a thread, because it can send a request.
            key = await asyncio.to_thread(self._keys.get_signing_key_from_jwt, token)
        return jwt.decode(
            token,
            key,
            algorithms=self._algorithms,
            audience=self._settings.jwt_audience,
            issuer=issuer,
            leeway=10,
            options={"require": ["exp", "aud", "sub", *(["iss"] if issuer else [])]},
        )
