"""The commands mcp and token: arguments, connections and the listening socket.

`mcp_server` has the tools.
"""

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias
from uuid import UUID

import psycopg
import typer

from second_brain.cli import configuration
from second_brain.cli.corpus import groups, question_embedder
from second_brain.cli.options import (
    WITHOUT_EMBEDDER,
    CollectionsOption,
    DsnOption,
    PublicOnlyOption,
    RememberOption,
    SchemaOption,
    ViewerGroupsOption,
    ViewerOption,
)
from second_brain.cli.target import is_rest_configured, listen, resolve_dsn
from second_brain.errors import ConfigurationError, MissingExtraError
from second_brain.mcp_server.viewer_groups import viewer_groups as groups_of
from second_brain.models import EMBEDDER_NAMES
from second_brain.retrieval.service import AsyncRetrievalService
from second_brain.services.connections import async_connection_pool, explained
from second_brain.services.install import SCHEMA
from second_brain.services.postgres import AsyncPostgresProvider
from second_brain.services.provider import AsyncSearchProvider
from second_brain.services.supabase import AsyncSupabaseProvider
from second_brain.services.write import AsyncKnowledgeWriter

if TYPE_CHECKING:
    from mcp.server.auth.provider import TokenVerifier

    from second_brain.mcp_server.tools import Groups, Writers

Connect: TypeAlias = Callable[[], AbstractAsyncContextManager[psycopg.AsyncConnection[Any]]]
"""Opens a connection for one call."""

VIEWER = "SECOND_BRAIN_VIEWER_ID"
TOKEN = "SECOND_BRAIN_MCP_TOKEN"  # noqa: S105

# For these addresses the SDK also rejects requests from web pages in a local browser.
_THIS_MACHINE = ("127.0.0.1", "::1", "localhost")

_EXAMPLES = """\b
Examples:
  second-brain server mcp
  second-brain server mcp --collection knowledge --collection memory --public-only
  second-brain server mcp --viewer-id 00000000-0000-0000-0000-000000000001 --remember
  SUPABASE_URL=https://PROJECT.supabase.co second-brain server mcp --transport http --supabase-users
"""

_EXAMPLES_OF_TOKEN = """\b
Example:
  second-brain server token --viewer-id 00000000-0000-0000-0000-000000000001 --days 90
"""  # noqa: S105


Transport = Literal["stdio", "http"]
"""The transport between assistant and server."""

app = typer.Typer(rich_markup_mode=None)


@app.command("mcp", epilog=_EXAMPLES)
def _mcp(
    transport: Annotated[
        Transport,
        typer.Option(help="stdio: the assistant starts this command; http: it sends requests."),
    ] = "stdio",
    host: Annotated[
        str, typer.Option(help=f"Address to listen on; other than loopback only with ${TOKEN}.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for a free one.")
    ] = 8000,
    collections: CollectionsOption = None,
    viewer: ViewerOption = None,
    viewer_groups: ViewerGroupsOption = None,
    public_only: PublicOnlyOption = False,
    may_remember: RememberOption = False,
    supabase_users: Annotated[
        bool,
        typer.Option(
            "--supabase-users",
            help="Callers send the access token of a signed-in user of the project at "
            "$SUPABASE_URL; needs --transport http. $SUPABASE_JWT_SECRET: also tokens of HS256.",
        ),
    ] = False,
    public_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="The address that callers use, such as https://mcp.example.org/mcp of a proxy.",
        ),
    ] = None,
    embedder_names: Annotated[
        list[str],
        typer.Option(
            "--embedder",
            metavar="NAME",
            help=f"Model of the query embeddings: {', '.join(EMBEDDER_NAMES)}; may be repeated, "
            f"then the model of the stored chunks is used; {WITHOUT_EMBEDDER}.",
        ),
    ] = ["wordllama"],  # noqa: B006
    dsn: DsnOption = None,
    schema: SchemaOption = SCHEMA,
) -> None:
    """Serve search tools to assistants over the Model Context Protocol.

    The tools search_knowledge_base, hybrid_search, search and fetch only read. With --remember,
    remember and forget store and delete notes of one user. Without --viewer-id, --viewer-groups
    and --public-only they show every row. Over http, everyone who can reach the port can search. So
    the server listens only on this machine, unless callers need a token: the one of
    SECOND_BRAIN_MCP_TOKEN, or with --supabase-users that of a signed-in user. The database is
    chosen as in the other commands; without one, the Supabase project of SUPABASE_URL and
    SUPABASE_KEY is used, without notes. Logs go to standard error.
    """
    _require_sdk()
    from second_brain import mcp_server

    scope = mcp_server.Scope(
        collections=tuple(collections) if collections else None,
        viewer_id=_viewer(viewer),
        public_only=public_only,
        viewer_groups=groups(viewer_groups),
        may_remember=may_remember and not supabase_users,
    )
    token = _token()
    verifier: TokenVerifier | None = None if token is None else mcp_server.OneToken(token)
    if supabase_users:
        _refuse_beside_users(transport, token, scope.is_limited)
        verifier = mcp_server.SupabaseUsers(
            _project(),
            secret=configuration.load().get("supabase-jwt-secret"),
            collections=scope.collections,
            may_remember=may_remember,
        )
    logging.basicConfig(stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("second_brain").setLevel(logging.INFO)
    settings = configuration.load().search_settings()
    embedders = [question_embedder(name) for name in embedder_names]

    async def serve(listening: socket.socket | None) -> None:
        async with _connected(
            dsn,
            schema,
            pooled=listening is not None,
            limited=supabase_users or scope.is_limited,
        ) as (provider, connect):
            if may_remember and connect is None:
                raise ConfigurationError(
                    "notes need a database connection, and the Supabase project's API is none",
                    remedy="Give --dsn or SECOND_BRAIN_DSN, or leave out --remember.",
                )
            service = AsyncRetrievalService(provider, embedders, settings=settings)
            server = mcp_server.create_server(
                service,
                provider,
                None if supabase_users else scope,
                writers=None if connect is None else _writers(connect, schema),
                groups=None if connect is None else _groups(connect, schema),
            )
            if listening is None:
                await mcp_server.serve_stdio(server)
            else:
                await mcp_server.serve_http(
                    server, listening, verifier=verifier, public_url=public_url
                )

    if transport == "stdio":
        # The default handler ends the process at Ctrl-C; Python's would wait for the input thread.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        asyncio.run(serve(None))
    else:
        with _listening(host, port, protected=verifier is not None) as listening:
            asyncio.run(serve(listening))


@app.command("token", epilog=_EXAMPLES_OF_TOKEN)
def _mcp_token(
    viewer: ViewerOption = None,
    viewer_groups: ViewerGroupsOption = None,
    days: Annotated[
        int, typer.Option(min=1, max=36_500, help="Days until the token expires.")
    ] = 30,
) -> None:
    """Print an access token of a user, signed with the secret of SUPABASE_JWT_SECRET.

    `second-brain server mcp --supabase-users` and the API of the project at SUPABASE_URL accept it.
    """
    _require_sdk()
    from second_brain.mcp_server.supabase_users import signed_token

    user = _viewer(viewer)
    secret = configuration.load().get("supabase-jwt-secret")
    if user is None or secret is None:
        raise ConfigurationError(
            "a token needs a user and a secret",
            remedy="Give --viewer-id, and set SUPABASE_JWT_SECRET.",
        )
    lifetime = timedelta(days)
    typer.echo(signed_token(_project(), secret, user, groups(viewer_groups) or (), lifetime))


def _require_sdk() -> None:
    try:
        from second_brain.mcp_server import create_server, serve_http  # noqa: F401
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("mcp", "mcp_types", "uvicorn"):
            raise
        raise MissingExtraError("mcp", "mcp") from error


def _refuse_beside_users(transport: Transport, token: str | None, names_viewer: bool) -> None:
    """Raise an error for what contradicts --supabase-users."""
    if transport != "http":
        raise ConfigurationError(
            "--supabase-users is for callers over HTTP",
            remedy="Add --transport http, or leave it out.",
        )
    if token is not None:
        raise ConfigurationError(
            f"--supabase-users and {TOKEN} are both given",
            remedy=f"Leave out --supabase-users, or unset {TOKEN}.",
        )
    if names_viewer:
        raise ConfigurationError(
            "with --supabase-users each caller has a viewer, and something else names one too",
            remedy="Leave out --viewer-id, --viewer-groups and --public-only, and unset variables "
            f"such as {VIEWER}.",
        )


def _project() -> str:
    address = configuration.load().get("supabase-url")
    if address is None:
        raise ConfigurationError(
            "the tokens of users need the address of their project", remedy="Set SUPABASE_URL."
        )
    return str(address)


@asynccontextmanager
async def _connected(
    dsn: str | None, schema: str, *, pooled: bool, limited: bool
) -> AsyncIterator[tuple[AsyncSearchProvider, Connect | None]]:
    """Open a provider over SQL, and what opens connections; else over a Supabase project's API."""
    if is_rest_configured(dsn):
        typer.echo("Database: the Supabase project of $SUPABASE_URL", err=True)
        async with AsyncSupabaseProvider(schema=schema, multi_tenant=limited) as provider:
            yield provider, None
        return
    address = resolve_dsn(dsn)
    if pooled:
        async with async_connection_pool(address) as pool:
            searches = AsyncPostgresProvider(pool, schema=schema, multi_tenant=limited)
            yield searches, pool.connection
        return

    @asynccontextmanager
    async def connect() -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        with explained(address):
            connection = await psycopg.AsyncConnection.connect(address, autocommit=True)
        async with connection:
            yield connection

    yield AsyncPostgresProvider(address, schema=schema, multi_tenant=limited), connect


def _writers(connect: Connect, schema: str) -> "Writers":
    @asynccontextmanager
    async def opened() -> AsyncIterator[AsyncKnowledgeWriter]:
        async with connect() as connection:
            yield AsyncKnowledgeWriter(connection, schema=schema)

    return opened


def _groups(connect: Connect, schema: str) -> "Groups":
    async def asked(claims: Mapping[str, Any]) -> list[str]:
        async with connect() as connection:
            return await groups_of(connection, claims, schema=schema)

    return asked


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


def _listening(host: str, port: int, *, protected: bool) -> socket.socket:
    """Return a listening socket and print its address; a network address needs a token."""
    if not protected and host not in _THIS_MACHINE:
        raise ConfigurationError(
            f"without a token, other machines that can reach {host} could search",
            remedy=f"Set {TOKEN} to a token that callers must send, give --supabase-users, or "
            "listen on 127.0.0.1.",
        )
    listening, at = listen(host, port)
    access = "callers need a token" if protected else "callers need no token"
    typer.echo(f"Serving MCP at {at}/mcp; {access}.", err=True)
    return listening
