"""Who may use the workbench: a check of each request before any page, and headers for the browser.

On loopback everybody on this machine may. Elsewhere a token is needed, which a cookie keeps.
"""

import hashlib
import hmac
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = ("127.0.0.1", "::1", "localhost")

_HEADERS = {
    "content-security-policy": (
        "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
        "object-src 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    # With no-referrer, browsers would send the Origin "null" with a form.
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
_COOKIE = "second_brain_workbench"


@dataclass(frozen=True, slots=True)
class Access:
    """The rules. Without a token, only requests to a loopback address are answered."""

    token: str | None = None

    def refusal(self, method: str, headers: Headers) -> Response | None:
        """Return the answer to a request that is refused whoever sends it."""
        host = headers.get("host", "")
        # A page of another site can reach loopback under a name of its own (DNS rebinding).
        if self.token is None and _name(host) not in LOOPBACK:
            return PlainTextResponse(
                f"The workbench answers at {LOOPBACK[0]} and localhost only.", 421
            )
        if method not in ("GET", "HEAD"):
            origin = urlsplit(headers.get("origin", ""))
            if origin.scheme not in ("http", "https") or origin.netloc != host:
                return PlainTextResponse("This form was sent from another site.", 403)
        return None

    def admits(self, headers: Headers) -> bool:
        """Return whether a request has the cookie of somebody who gave the token."""
        if self.token is None:
            return True
        try:
            cookies = SimpleCookie(headers.get("cookie", ""))
        except CookieError:
            return False
        given = cookies[_COOKIE].value if _COOKIE in cookies else ""
        return hmac.compare_digest(given.encode(), _pass(self.token).encode())

    def is_token(self, given: str) -> bool:
        """Return whether this is the token, in a time that does not depend on the text."""
        return self.token is not None and hmac.compare_digest(given.encode(), self.token.encode())


class AccessMiddleware:
    """Applies the rules to each request, and adds the headers to each response."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or pass the request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        answer = self._answer(scope)
        await (answer or self._app)(scope, receive, send_with_headers)

    def _answer(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        refused = self._access.refusal(scope["method"], headers)
        if refused is not None:
            return refused
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        for given in [value for name, value in query if name == "token"]:
            if self._access.is_token(given):
                # The address without the token, so that it is not shared with a link.
                rest = urlencode([(name, value) for name, value in query if name != "token"])
                path = "/" + scope["path"].lstrip("/")
                response = RedirectResponse(path + (f"?{rest}" if rest else ""), 303)
                response.set_cookie(
                    _COOKIE, _pass(given), httponly=True, samesite="strict", max_age=None
                )
                return response
        if not self._access.admits(headers):
            return PlainTextResponse(
                "The workbench needs its token. Open the address that `second-brain workbench` "
                "printed, with ?token= at its end.",
                401,
            )
        return None


def _pass(token: str) -> str:
    """Return what the cookie holds: other servers of this host get the cookie, not the token."""
    return hashlib.sha256(f"second-brain workbench {token}".encode()).hexdigest()


def _name(host: str) -> str:
    """Return the name in a Host header, without the port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
