"""The command mcp: arguments, connections and the listening socket; `mcp_server` has the tools."""

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import StrEnum
from typing import Annotated
from uuid import UUID

import typer

from second_brain.cli import configuration
from second_brain.cli.corpus import ViewerGroupsOption, configured_embedder, groups
from second_brain.cli.target import DsnOption, SchemaOption, is_rest_configured, resolve_dsn
from second_brain.errors import ConfigurationError, MissingExtraError
from second_brain.models import EMBEDDER_NAMES
from second_brain.retrieval.service import AsyncRetrievalService
from second_brain.services.connections import async_connection_pool
from second_brain.services.install import SCHEMA
from second_brain.services.postgres import AsyncPostgresProvider
from second_brain.services.provider import AsyncSearchProvider
from second_brain.services.supabase import AsyncSupabaseProvider

VIEWER = "SECOND_BRAIN_VIEWER_ID"
TOKEN = "SECOND_BRAIN_MCP_TOKEN"  # noqa: S105

# For these addresses the SDK also rejects requests from web pages in a local browser.
_THIS_MACHINE = ("127.0.0.1", "::1", "localhost")

_EXAMPLES = """\b
Examples:
  second-brain mcp
  second-brain mcp --collection knowledge --collection memory --public-only
  SECOND_BRAIN_MCP_TOKEN=... second-brain mcp --transport http --port 8000
"""


class Transport(StrEnum):
    """The transport between assistant and server."""

    stdio = "stdio"
    http = "http"


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("mcp", epilog=_EXAMPLES)(_mcp)


def _mcp(
    transport: Annotated[
        Transport,
        typer.Option(help="stdio: the assistant starts this command; http: it sends requests."),
    ] = Transport.stdio,
    host: Annotated[
        str, typer.Option(help=f"Address to listen on; other than loopback only with ${TOKEN}.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for a free one.")
    ] = 8000,
    collections: Annotated[
        list[str] | None,
        typer.Option(
            "--collection",
            help="Search only this collection; may be repeated. Each is ranked separately.",
            show_default=False,
        ),
    ] = None,
    viewer: Annotated[
        str | None,
        typer.Option(
            "--viewer-id",
            metavar="UUID",
            help=f"Show only this user's rows and public rows; the default is ${VIEWER}.",
            show_default=False,
        ),
    ] = None,
    viewer_groups: ViewerGroupsOption = None,
    public_only: Annotated[
        bool, typer.Option("--public-only", help="Show only public rows.")
    ] = False,
    embedder_names: Annotated[
        list[str],
        typer.Option(
            "--embedder",
            metavar="NAME",
            help=f"Model of the query embeddings: {', '.join(EMBEDDER_NAMES)}; may be repeated, "
            "then the model of the stored chunks is used.",
        ),
    ] = ["wordllama"],  # noqa: B006
    dsn: DsnOption = None,
    schema: SchemaOption = SCHEMA,
) -> None:
    """Serve search tools to assistants over the Model Context Protocol.

    The tools search_knowledge_base, hybrid_search, search and fetch only read. Without --viewer-id,
    --viewer-groups and --public-only they show every row. Over http, everyone who can reach the
    port can search. So the server listens only on this machine, unless SECOND_BRAIN_MCP_TOKEN is
    set: then every request needs this token. The database is chosen as in the other commands;
    without one, the Supabase project of SUPABASE_URL and SUPABASE_KEY is used. Logs go to standard
    error.
    """
    try:
        from second_brain import mcp_server
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("mcp", "mcp_types", "uvicorn"):
            raise
        raise MissingExtraError("mcp", "mcp") from error
    scope = mcp_server.Scope(
        collections=tuple(collections) if collections else None,
        viewer_id=_viewer(viewer),
        public_only=public_only,
        viewer_groups=groups(viewer_groups),
    )
    token = _token()
    logging.basicConfig(stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("second_brain").setLevel(logging.INFO)
    settings = configuration.load().search_settings()
    embedders = [configured_embedder(name) for name in embedder_names]
    is_limited = (scope.viewer_id, scope.viewer_groups) != (None, None) or public_only

    async def serve(listening: socket.socket | None) -> None:
        pooled = listening is not None
        async with _provider(dsn, schema, pooled=pooled, limited=is_limited) as provider:
            service = AsyncRetrievalService(provider, embedders, settings=settings)
            server = mcp_server.create_server(service, provider, scope)
            if listening is None:
                await mcp_server.serve_stdio(server)
            else:
                await mcp_server.serve_http(server, listening, token=token)

    if transport is Transport.stdio:
        # The default handler ends the process at Ctrl-C; Python's would wait for the input thread.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        asyncio.run(serve(None))
    else:
        with _listen(host, port, protected=token is not None) as listening:
            asyncio.run(serve(listening))


@asynccontextmanager
async def _provider(
    dsn: str | None, schema: str, *, pooled: bool, limited: bool
) -> AsyncIterator[AsyncSearchProvider]:
    """Open a provider: over SQL, or over a Supabase project's API if only that is configured."""
    if is_rest_configured(dsn):
        typer.echo("Database: the Supabase project of $SUPABASE_URL", err=True)
        async with AsyncSupabaseProvider(schema=schema, multi_tenant=limited) as provider:
            yield provider
    elif pooled:
        async with async_connection_pool(resolve_dsn(dsn)) as pool:
            yield AsyncPostgresProvider(pool, schema=schema, multi_tenant=limited)
    else:
        yield AsyncPostgresProvider(resolve_dsn(dsn), schema=schema, multi_tenant=limited)


def _viewer(given: str | None) -> UUID | None:
    if given is None:
        return None
    try:
        return UUID(given)
    except ValueError as error:
        # Also for an empty text: without a viewer, every row would be visible.
        raise typer.BadParameter(f"--viewer-id must be a UUID, not {given[:100]!r}") from error


def _token() -> str | None:
    given = configuration.load().get("mcp-token")
    if given is None:
        return None
    # Files and secret stores often add a newline, which an HTTP header cannot contain.
    token = str(given).strip()
    if not token:
        raise ConfigurationError(
            f"{TOKEN} is empty", remedy="Set it to a token of your own, or unset it."
        )
    if not (token.isascii() and token.isprintable()):
        raise ConfigurationError(
            f"{TOKEN} has characters that an HTTP header cannot contain",
            remedy="Use only ASCII letters, digits and punctuation.",
        )
    return token


def _listen(host: str, port: int, *, protected: bool) -> socket.socket:
    """Return a listening socket and print its address; a network address needs a token."""
    if not protected and host not in _THIS_MACHINE:
        raise ConfigurationError(
            f"without a token, other machines that can reach {host} could search",
            remedy=f"Set {TOKEN} to a token that callers must send, or listen on 127.0.0.1.",
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family)
    except OSError as error:
        raise ConfigurationError(
            f"cannot listen on {host}, port {port}: {error.strerror}",
            remedy="Choose another --port or --host.",
        ) from error
    at = f"[{host}]" if ":" in host else host
    access = "callers need the token" if protected else "callers need no token"
    typer.echo(f"Serving MCP at http://{at}:{listening.getsockname()[1]}/mcp; {access}.", err=True)
    return listening
