"""How callers reach the server: standard input and output, or HTTP."""

import socket
from typing import Any
from urllib.parse import urlsplit

import uvicorn
from mcp.server.auth.provider import TokenVerifier
from mcp.server.auth.settings import AuthSettings
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.transport_security import TransportSecuritySettings
from pydantic import AnyHttpUrl
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from second_brain.mcp_server.supabase_users import SupabaseUsers

PATH = "/mcp"

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")

_METADATA = "/.well-known/oauth-protected-resource"
"""Where RFC 9728 puts the metadata: before the path of the server."""


async def serve_stdio(server: Server[Any]) -> None:
    """Serve over this process's standard input and output until the input ends.

    While it runs, the output of `print` goes to standard error.
    """
    async with stdio_server() as (received, sent):
        await server.run(received, sent, server.create_initialization_options())


async def serve_http(
    server: Server[Any],
    listening: socket.socket,
    *,
    verifier: TokenVerifier | None = None,
    public_url: str | None = None,
) -> None:
    """Serve streamable HTTP at `PATH` on a listening socket, until the process gets a signal.

    With a `verifier`, such as OneToken or SupabaseUsers, a request whose `Authorization: Bearer
    TOKEN` it does not accept gets status 401. With SupabaseUsers, the answer names the metadata of
    RFC 9728, and these name the project's Supabase Auth as the place to sign in. `public_url` is
    the address that callers use, if it is another one, such as that of a proxy. On a loopback
    address, a request whose Host or Origin is another host is rejected, because a web page could
    have sent it. GET gets status 405.
    """
    host, port = listening.getsockname()[:2]
    at = f"[{host}]" if ":" in host else host
    url = AnyHttpUrl(public_url or f"http://{at}:{port}{PATH}")
    issuer = verifier.issuer if isinstance(verifier, SupabaseUsers) else None
    app = server.streamable_http_app(
        streamable_http_path=PATH,
        # Calls have no session: any process behind a load balancer can answer, and each request is
        # answered with the rights of its own token. A call is cancelled by closing its connection.
        stateless_http=True,
        host=host,
        transport_security=_allowed(public_url) if public_url and at in LOOPBACK else None,
        auth=None if verifier is None else _settings(url, issuer),
        token_verifier=verifier,
    )
    app.router.routes.insert(0, Route(PATH, _refuse_stream, methods=["GET"]))
    _serve_metadata_at_root(app)
    # log_config=None: uvicorn then uses the logging configuration of the application.
    config = uvicorn.Config(app, log_config=None, access_log=False)
    await uvicorn.Server(config).serve(sockets=[listening])


def _settings(url: AnyHttpUrl, issuer: str | None) -> AuthSettings:
    if issuer is None:
        # The SDK requires the address of a token issuer; this server has none and gives its own.
        return AuthSettings(issuer_url=url, resource_server_url=None)
    return AuthSettings(
        issuer_url=AnyHttpUrl(issuer),
        resource_server_url=url,
        # Supabase Auth gives every token the audience `authenticated`, which the verifier checks.
        validate_token_resource=False,
    )


def _allowed(public_url: str) -> TransportSecuritySettings:
    """Return the hosts and origins of a server behind a proxy on the same machine."""
    public = urlsplit(public_url)
    return TransportSecuritySettings(
        allowed_hosts=[public.netloc, *(f"{host}:*" for host in LOOPBACK)],
        allowed_origins=[
            f"{public.scheme}://{public.netloc}",
            *(f"http://{host}:*" for host in LOOPBACK),
        ],
    )


def _serve_metadata_at_root(app: Starlette) -> None:
    """Serve the metadata also where a client looks for them that does not know the path."""
    for route in list(app.router.routes):
        if isinstance(route, Route) and route.path.startswith(f"{_METADATA}/"):
            app.router.routes.append(Route(_METADATA, route.endpoint, methods=["GET", "OPTIONS"]))


async def _refuse_stream(_request: Request) -> PlainTextResponse:
    # The SDK would keep a stream open for messages of the server, without a limit on their number.
    # This server sends none; the protocol then asks for 405.
    return PlainTextResponse(
        "This server has no stream of its own messages: send each call with POST.\n",
        405,
        {"Allow": "POST"},
    )
