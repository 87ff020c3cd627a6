"""What a bearer token allows: the scope of its user, or for the one token that of the server."""

import hmac

from mcp.server.auth.provider import AccessToken

from second_brain.mcp_server.scope import Scope


class ScopedAccess(AccessToken):
    """The access of a token with a scope of its own. `token` is empty: the secret is not kept."""

    scope: Scope


class OneToken:
    """Verifies the one token that all callers must send."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()

    async def verify_token(self, token: str) -> AccessToken | None:
        """Return the access of the right token; None for any other token."""
        if not hmac.compare_digest(token.encode(), self._token):
            return None
        return AccessToken(token="", client_id="bearer", scopes=[])
