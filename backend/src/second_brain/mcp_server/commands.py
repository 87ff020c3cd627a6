"""The commands mcp and token: arguments, connections and the listening socket.

`mcp_server` has the tools.
"""

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
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

    from second_brain.mcp_server.tools import Writers

VIEWER = "SECOND_BRAIN_VIEWER_ID"
TOKEN = "SECOND_BRAIN_MCP_TOKEN"  # noqa: S105

# For these addresses the SDK also rejects requests from web pages in a local browser.
_THIS_MACHINE = ("127.0.0.1", "::1", "localhost")

_EXAMPLES = """\b
Examples:
  second-brain server mcp
  second-brain server mcp --collection knowledge --collection memory --public-only
  second-brain server mcp --viewer-id 00000000-0000-0000-0000-000000000001 --remember
  second-brain server mcp --transport http --port 8000 --tokens tokens.toml
  SUPABASE_URL=https://PROJECT.supabase.co second-brain server mcp --transport http --supabase-users
"""

_EXAMPLES_OF_TOKEN = """\b
Example:
  second-brain server token ana --viewer-id 00000000-0000-0000-0000-000000000001 >> tokens.toml
"""  # noqa: S105


class Transport(StrEnum):
    """The transport between assistant and server."""

    stdio = "stdio"
    http = "http"


app = typer.Typer(rich_markup_mode=None)


@app.command("mcp", epilog=_EXAMPLES)
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
    collections: CollectionsOption = None,
    viewer: ViewerOption = None,
    viewer_groups: ViewerGroupsOption = None,
    public_only: PublicOnlyOption = False,
    may_remember: RememberOption = False,
    tokens: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="TOML file with the digests of the callers' tokens and what each may see; needs "
            "--transport http.",
            dir_okay=False,
        ),
    ] = None,
    supabase_users: Annotated[
        bool,
        typer.Option(
            "--supabase-users",
            help="Callers send the access token of a signed-in user of the project at "
            "$SUPABASE_URL; needs --transport http.",
        ),
    ] = False,
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
    SECOND_BRAIN_MCP_TOKEN; with --tokens one of the file, where each token has its own user; with
    --supabase-users that of a signed-in user. The database is chosen as in the other commands;
    without one, the Supabase project of SUPABASE_URL and SUPABASE_KEY is used, without notes. Logs
    go to standard error.
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
    if tokens is not None:
        _refuse_beside("--tokens", transport, token, scope.is_limited or supabase_users)
        if may_remember or collections:
            raise ConfigurationError(
                "the file of --tokens says what each caller may see and store, and options say it "
                "too",
                remedy="Leave out --collection and --remember.",
            )
        verifier = mcp_server.TokenFile(tokens)
    elif supabase_users:
        _refuse_beside("--supabase-users", transport, token, scope.is_limited)
        verifier = mcp_server.SupabaseUsers(
            _project(), collections=scope.collections, may_remember=may_remember
        )
    is_shared = tokens is not None or supabase_users
    logging.basicConfig(stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("second_brain").setLevel(logging.INFO)
    settings = configuration.load().search_settings()
    embedders = [question_embedder(name) for name in embedder_names]

    async def serve(listening: socket.socket | None) -> None:
        async with _connected(
            dsn,
            schema,
            pooled=listening is not None,
            limited=is_shared or scope.is_limited,
        ) as (provider, writers):
            if may_remember and writers is None:
                raise ConfigurationError(
                    "notes need a database connection, and the Supabase project's API is none",
                    remedy="Give --dsn or SECOND_BRAIN_DSN, or leave out --remember.",
                )
            service = AsyncRetrievalService(provider, embedders, settings=settings)
            server = mcp_server.create_server(
                service, provider, None if is_shared else scope, writers=writers
            )
            if listening is None:
                await mcp_server.serve_stdio(server)
            else:
                await mcp_server.serve_http(server, listening, verifier=verifier)

    if transport is Transport.stdio:
        # The default handler ends the process at Ctrl-C; Python's would wait for the input thread.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        asyncio.run(serve(None))
    else:
        with _listening(host, port, protected=verifier is not None) as listening:
            asyncio.run(serve(listening))


@app.command("token", epilog=_EXAMPLES_OF_TOKEN)
def _mcp_token(
    name: Annotated[str, typer.Argument(help="Name of the token, such as that of its user.")],
    viewer: ViewerOption = None,
    viewer_groups: ViewerGroupsOption = None,
    collections: CollectionsOption = None,
    public_only: PublicOnlyOption = False,
    may_remember: RememberOption = False,
    days: Annotated[int | None, typer.Option(min=1, help="Days until the token expires.")] = None,
) -> None:
    """Make a token for `second-brain server mcp --tokens`, and print its lines of the file.

    The token itself is printed to standard error and stored nowhere: the file has its digest.
    """
    _require_sdk()
    from second_brain.mcp_server.tokens import new_token, token_lines

    token, digest = new_token()
    expires = None if days is None else datetime.now(UTC).replace(microsecond=0) + timedelta(days)
    given: dict[str, Any] = {
        "name": name,
        "sha256": digest,
        "viewer_id": _viewer(viewer),
        "viewer_groups": groups(viewer_groups),
        "collections": collections,
        "public_only": public_only,
        "may_remember": may_remember,
        "expires": expires,
    }
    typer.echo(token_lines(given), nl=False)
    typer.echo(f"The token, which is shown only now: {token}", err=True)


def _require_sdk() -> None:
    try:
        from second_brain.mcp_server import create_server, serve_http  # noqa: F401
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("mcp", "mcp_types", "uvicorn"):
            raise
        raise MissingExtraError("mcp", "mcp") from error


def _refuse_beside(
    option: str, transport: Transport, token: str | None, names_viewer: bool
) -> None:
    """Raise an error for what contradicts an option that gives each caller a viewer."""
    if transport is not Transport.http:
        raise ConfigurationError(
            f"{option} is for callers over HTTP", remedy="Add --transport http, or leave it out."
        )
    if token is not None:
        raise ConfigurationError(
            f"{option} and {TOKEN} are both given", remedy=f"Leave out {option}, or unset {TOKEN}."
        )
    if names_viewer:
        raise ConfigurationError(
            f"with {option} each caller has a viewer, and something else names one too",
            remedy="Give one of --tokens and --supabase-users, without --viewer-id, "
            f"--viewer-groups and --public-only, and unset variables such as {VIEWER}.",
        )


def _project() -> str:
    address = configuration.load().get("supabase-url")
    if address is None:
        raise ConfigurationError(
            "--supabase-users needs the address of the project", remedy="Set SUPABASE_URL."
        )
    return str(address)


@asynccontextmanager
async def _connected(
    dsn: str | None, schema: str, *, pooled: bool, limited: bool
) -> "AsyncIterator[tuple[AsyncSearchProvider, Writers | None]]":
    """Open a provider, and what opens writers: over SQL, else over a Supabase project's API.

    Over the API there are no writers.
    """
    if is_rest_configured(dsn):
        typer.echo("Database: the Supabase project of $SUPABASE_URL", err=True)
        async with AsyncSupabaseProvider(schema=schema, multi_tenant=limited) as provider:
            yield provider, None
        return
    address = resolve_dsn(dsn)
    if pooled:
        async with async_connection_pool(address) as pool:

            @asynccontextmanager
            async def pooled_writer() -> AsyncIterator[AsyncKnowledgeWriter]:
                async with pool.connection() as connection:
                    yield AsyncKnowledgeWriter(connection, schema=schema)

            yield AsyncPostgresProvider(pool, schema=schema, multi_tenant=limited), pooled_writer
        return

    @asynccontextmanager
    async def writer() -> AsyncIterator[AsyncKnowledgeWriter]:
        with explained(address):
            connection = await psycopg.AsyncConnection.connect(address, autocommit=True)
        async with connection:
            yield AsyncKnowledgeWriter(connection, schema=schema)

    yield AsyncPostgresProvider(address, schema=schema, multi_tenant=limited), writer


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
            remedy=f"Set {TOKEN} to a token that callers must send, give --tokens, or listen on "
            "127.0.0.1.",
        )
    listening, at = listen(host, port)
    access = "callers need a token" if protected else "callers need no token"
    typer.echo(f"Serving MCP at {at}/mcp; {access}.", err=True)
    return listening
