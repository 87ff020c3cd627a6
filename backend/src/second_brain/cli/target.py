"""Which database a command works on, and where a server listens: how they are found and opened."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from second_brain.cli import configuration
from second_brain.database.embedded import EmbeddedPostgres
from second_brain.errors import ConfigurationError
from second_brain.services.connections import address, connect, libpq
from second_brain.services.install import Database, Install

STATE = Path(".second-brain")


def resolve_dsn(dsn: str | None) -> str:
    """Return `dsn`, else the configured database, else the running dev database of this folder.

    Prints the database to stderr, unless `dsn` is given. Raises ConfigurationError when there is no
    database.
    """
    if dsn:
        return libpq(dsn)
    configured = configuration.load().values.get("dsn")
    if configured is not None:
        _print_database(configured.value, configured.source)
        if warning := configuration.warning_of_password(configured):
            typer.echo(f"warning: {warning}", err=True)
        return libpq(str(configured.value))
    server = dev_server()
    if server.status == "running":
        _print_database(server.dsn(), f"{STATE}/ of this folder")
        return server.dsn()
    stopped = server.status == "stopped"
    raise ConfigurationError(
        "the dev database of this folder is stopped" if stopped else "no database is given",
        remedy="Start one here with `second-brain server dev start`, or pass --dsn or "
        "SECOND_BRAIN_DSN.",
    )


def is_rest_configured(dsn: str | None) -> bool:
    """Say whether only a Supabase project is configured, and no database."""
    values = configuration.load().values
    return not dsn and "dsn" not in values and {"supabase-url", "supabase-key"} <= values.keys()


@contextmanager
def opened(dsn: str | None, schema: str) -> Iterator[Database]:
    """Connect to the database of the commands, with autocommit."""
    install = Install(schema)
    with connect(resolve_dsn(dsn), autocommit=True) as connection:
        yield Database(connection, install)


def _print_database(dsn: str, source: str) -> None:
    try:
        given = address(dsn)
    except ConfigurationError:
        # The connection attempt will report the error in the DSN.
        typer.echo(f"Database: from {source}", err=True)
        return
    host = given.host or "this machine"
    typer.echo(f"Database: {given.database} at {host}, port {given.port}, from {source}", err=True)


def dev_server(major: int | None = None) -> EmbeddedPostgres:
    """Return the embedded server of this folder, which need not exist."""
    return EmbeddedPostgres(STATE / "postgres", major)


def listen(host: str, port: int) -> tuple[socket.socket, str]:
    """Return a listening socket, and its address for browsers, without a path."""
    is_6 = ":" in host
    try:
        listening = socket.create_server(
            (host, port), family=socket.AF_INET6 if is_6 else socket.AF_INET
        )
    except OSError as error:
        raise ConfigurationError(
            f"cannot listen on {host}, port {port}: {os.strerror(error.errno or 0)}",
            remedy="Choose another --port or --host.",
        ) from error
    at = f"[{host}]" if is_6 else host
    return listening, f"http://{at}:{listening.getsockname()[1]}"
