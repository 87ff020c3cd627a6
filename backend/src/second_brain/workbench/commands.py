"""The command workbench: arguments and the listening socket; the package has the pages."""

import logging
import secrets
import sys
import webbrowser
from typing import Annotated
from urllib.parse import quote

import typer

from second_brain.cli import configuration
from second_brain.cli.corpus import question_embedder
from second_brain.cli.options import DsnOption, QuestionEmbedderOption, SchemaOption
from second_brain.cli.target import listen, resolve_dsn
from second_brain.errors import ConfigurationError, MissingExtraError
from second_brain.retrieval.embedding import NO_EMBEDDER
from second_brain.services.connections import address
from second_brain.services.install import SCHEMA

TOKEN = "SECOND_BRAIN_WORKBENCH_TOKEN"  # noqa: S105

_EXAMPLES = f"""\b
Examples:
  second-brain workbench
  second-brain workbench --port 9000 --no-embedder
  {TOKEN}=... second-brain workbench --host 0.0.0.0
"""


app = typer.Typer(rich_markup_mode=None)


@app.command("workbench", epilog=_EXAMPLES)
def _workbench(
    host: Annotated[
        str, typer.Option(help="Address to listen on; other than loopback only with a token.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for a free one.")
    ] = 8787,
    token: Annotated[
        str | None,
        typer.Option(
            help=f"Token that a browser must send once; the default is ${TOKEN}, or a generated "
            "one if --host is not loopback."
        ),
    ] = None,
    open_browser: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
    embedder_name: QuestionEmbedderOption = "wordllama",
    no_embedder: Annotated[bool, typer.Option("--no-embedder", help="Search without one.")] = False,
    dsn: DsnOption = None,
    schema: SchemaOption = SCHEMA,
) -> None:
    """See, judge and tune a corpus in the browser.

    It listens only on this machine; with another --host, a browser needs the token. It writes
    judgments, settings and synonyms. It uses the rights of the database connection and shows
    every row that this connection can read. Ctrl+C stops it.
    """
    try:
        import uvicorn

        from second_brain.workbench.access import LOOPBACK
        from second_brain.workbench.app import create_app
    except ModuleNotFoundError as error:
        package = (error.name or "").split(".")[0]
        if package not in ("jinja2", "starlette", "uvicorn"):
            raise
        raise MissingExtraError(package, "workbench") from error
    if token is None:
        token = configuration.load().get("workbench-token")
    if token is not None and not (token.isascii() and token.isprintable() and token.strip()):
        raise ConfigurationError(
            "the token is empty or has characters that an address cannot contain",
            remedy="Use ASCII letters, digits and punctuation.",
        )
    if token is None and host not in LOOPBACK:
        token = secrets.token_urlsafe(24)
    target = resolve_dsn(dsn)
    address(target)  # raises an error for a malformed one
    embedder = NO_EMBEDDER if no_embedder else question_embedder(embedder_name)
    app = create_app(
        target,
        embedder=None if embedder is NO_EMBEDDER else embedder,
        embedder_name=None if embedder is NO_EMBEDDER else embedder_name,
        schema=schema,
        token=token,
    )
    listening, at = listen(host, port)
    with listening:
        opened = f"{at}/" if token is None else f"{at}/?token={quote(token, safe='')}"
        typer.echo(f"The workbench is at {opened}", err=True)
        typer.echo("Ctrl+C stops it.", err=True)
        if open_browser:
            webbrowser.open(opened)
        logging.basicConfig(stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
        # No access log: addresses contain questions, and the first one the token.
        config = uvicorn.Config(app, log_config=None, access_log=False)
        uvicorn.Server(config).run(sockets=[listening])
