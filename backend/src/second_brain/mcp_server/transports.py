"""How callers reach the server: standard input and output, or HTTP."""

import socket
from typing import Any

import uvicorn
from mcp.server.auth.provider import TokenVerifier
from mcp.server.auth.settings import AuthSettings
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from pydantic import AnyHttpUrl
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

PATH = "/mcp"


async def serve_stdio(server: Server[Any]) -> None:
    """Serve over this process's standard input and output until the input ends.

    While it runs, the output of `print` goes to standard error.
    """
    async with stdio_server() as (received, sent):
        await server.run(received, sent, server.create_initialization_options())


async def serve_http(
    server: Server[Any], listening: socket.socket, *, verifier: TokenVerifier | None = None
) -> None:
    """Serve streamable HTTP at `PATH` on a listening socket, until the process gets a signal.

    With a `verifier`, such as OneToken or TokenFile, a request whose `Authorization: Bearer TOKEN`
    it does not accept gets status 401. On a loopback address, a request whose Host or Origin is
    another host is rejected, because a web page could have sent it. GET gets status 405.
    """
    host, port = listening.getsockname()[:2]
    at = f"[{host}]" if ":" in host else host
    # The SDK requires the address of a token issuer; this server has none and gives its own.
    issuer = AuthSettings(issuer_url=AnyHttpUrl(f"http://{at}:{port}"), resource_server_url=None)
    app = server.streamable_http_app(
        streamable_http_path=PATH,
        # Calls have no session: any process behind a load balancer can answer, and each request is
        # answered with the rights of its own token. A call is cancelled by closing its connection.
        stateless_http=True,
        host=host,
        auth=None if verifier is None else issuer,
        token_verifier=verifier,
    )
    app.router.routes.insert(0, Route(PATH, _refuse_stream, methods=["GET"]))
    # log_config=None: uvicorn then uses the logging configuration of the application.
    config = uvicorn.Config(app, log_config=None, access_log=False)
    await uvicorn.Server(config).serve(sockets=[listening])


async def _refuse_stream(_request: Request) -> PlainTextResponse:
    # The SDK would keep a stream open for messages of the server, without a limit on their number.
    # This server sends none; the protocol then asks for 405.
    return PlainTextResponse(
        "This server has no stream of its own messages: send each call with POST.\n",
        405,
        {"Allow": "POST"},
    )
