"""Commands of the database's life: dev, migrate, init, doctor. What they do is in `database/`."""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from psycopg.conninfo import make_conninfo

from second_brain.cli.corpus import EmbedderOption
from second_brain.database import doctor, migrations, naming
from second_brain.database.embedded import OWNER, EmbeddedPostgres, apply_prelude
from second_brain.errors import ConfigurationError, MissingExtraError
from second_brain.models import load_embedder
from second_brain.services.connections import address, connect

STATE = Path(".second-brain")
_VARIABLES = ("SECOND_BRAIN_DSN", "DATABASE_URL")

DsnOption = Annotated[
    str | None,
    typer.Option(
        "--dsn",
        help="Database to use; else $SECOND_BRAIN_DSN, $DATABASE_URL, this folder's dev database.",
        show_default=False,
    ),
]
MajorOption = Annotated[
    int | None,
    typer.Option(
        "--postgres-major",
        help="PostgreSQL version of a new database: 18 (default), 17 or 16.",
        show_default=False,
    ),
]
SchemaOption = Annotated[
    str,
    typer.Option(help="Schema of the install; its internal parts are in SCHEMA_internal."),
]


def _examples(*commands: str) -> str:
    # The backspace keeps the lines as they are.
    return "\n".join(["\b", "Examples:", *(f"  {command}" for command in commands)])


dev = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.add_typer(dev, name="dev", help="An embedded Postgres for this folder, in .second-brain/.")
    app.command(
        epilog=_examples(
            "second-brain migrate --dimensions 384",
            "second-brain migrate --dsn postgresql://postgres@db.example.org/postgres",
        )
    )(migrate)
    app.command(
        epilog=_examples(
            "second-brain init --dimensions 384 --into supabase/migrations",
            "second-brain init --dimensions 384 --declarative",
        )
    )(init)
    app.command(
        "doctor",
        epilog=_examples(
            "second-brain doctor",
            "second-brain doctor --dsn postgresql://postgres@db.example.org/postgres --json",
        ),
    )(_doctor)


def resolve_dsn(dsn: str | None) -> str:
    """Return the DSN given, else $SECOND_BRAIN_DSN, $DATABASE_URL or the running dev database's.

    Says on stderr which one it is, unless the command line does. Raises ConfigurationError when
    there is none.
    """
    if dsn:
        return dsn
    variable = dsn_variable()
    if variable:
        _tell_database(os.environ[variable], f"${variable}")
        return os.environ[variable]
    server = _dev_server()
    if server.status == "running":
        _tell_database(server.dsn(), f"{STATE}/ of this folder")
        return server.dsn()
    stopped = server.status == "stopped"
    raise ConfigurationError(
        "the dev database of this folder is stopped" if stopped else "no database is given",
        remedy="Start one here with `second-brain dev start`, or pass --dsn or SECOND_BRAIN_DSN.",
    )


def dsn_variable() -> str | None:
    """Return the name of the environment variable that names the database, None without one."""
    return next((name for name in _VARIABLES if os.environ.get(name)), None)


def _tell_database(dsn: str, source: str) -> None:
    try:
        given = address(dsn)
    except ConfigurationError:
        # Connecting says what is wrong with it.
        typer.echo(f"Database: from {source}", err=True)
        return
    host = given.host or "this machine"
    typer.echo(f"Database: {given.database} at {host}, port {given.port}, from {source}", err=True)


@dev.command(
    epilog=_examples(
        "second-brain dev start",
        "second-brain dev start --postgres-major 16",
        'psql "$(second-brain dev start)"',
    )
)
def start(postgres_major: MajorOption = None) -> None:
    """Start this folder's database, creating it at the first time, and print its DSN.

    It runs on until `dev stop`. It looks like Supabase (roles, schemas, pgvector) and is empty:
    `second-brain migrate` makes the tables.
    """
    server = _dev_server(postgres_major)
    already = server.status == "running"
    server.start()
    (STATE / ".gitignore").write_text("*\n")
    how = "was already running" if already else "is running"
    typer.echo(f"PostgreSQL {server.major} {how}; stop it with `second-brain dev stop`.", err=True)
    variable = dsn_variable()
    if variable and os.environ[variable] != server.dsn():
        typer.echo(
            f"Commands do not use it while ${variable} names another database: unset that, or "
            "pass --dsn.",
            err=True,
        )
    typer.echo(server.dsn())


@dev.command(epilog=_examples("second-brain dev stop"))
def stop() -> None:
    """Stop this folder's database; the data stay."""
    server = _dev_server()
    before = server.status
    server.stop()
    typer.echo("Stopped." if before == "running" else f"Nothing to stop: it is {before}.", err=True)


@dev.command(epilog=_examples("second-brain dev status", "second-brain dev status --json"))
def status(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say whether this folder's database runs, and its DSN. Exit code 1 when it does not."""
    server = _dev_server()
    now = server.status
    running = now == "running"
    if as_json:
        typer.echo(
            json.dumps(
                {
                    "status": now,
                    "major": None if now == "absent" else server.major,
                    "dsn": server.dsn() if running else None,
                    "log": None if now == "absent" else str(server.log),
                }
            )
        )
    elif running:
        typer.echo(f"PostgreSQL {server.major} is running; log: {server.log}", err=True)
        typer.echo(server.dsn())
    else:
        typer.echo(f"The database is {now}; start it with `second-brain dev start`.", err=True)
    if not running:
        raise typer.Exit(1)


@dev.command(epilog=_examples("second-brain dev reset --yes"))
def reset(
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    postgres_major: MajorOption = None,
) -> None:
    """Delete this folder's database with all its data and start an empty one."""
    server = _dev_server()
    if server.status != "absent" and not yes:
        typer.confirm(f"Delete the database in {STATE.resolve()}?", abort=True, err=True)
    major = postgres_major or (server.major if server.status != "absent" else None)
    server.remove()
    start(major)


def migrate(
    dimensions: Annotated[
        int | None,
        typer.Option(
            help="Size of the embeddings; else the database's own, or the embedder's in a new one.",
            show_default=False,
        ),
    ] = None,
    dsn: DsnOption = None,
    prelude: Annotated[
        bool,
        typer.Option(
            "--prelude",
            help="First, as a superuser, make a plain Postgres look like Supabase.",
        ),
    ] = False,
    embedder_name: EmbedderOption = "wordllama",
    schema: SchemaOption = naming.SCHEMA,
) -> None:
    """Apply the migrations that the database does not have yet.

    A new database gets embeddings of the size that the embedder makes, so that `ingest` and
    `search` with the same embedder work.

    What applied is recorded as `supabase db push` records it: either can follow the other. Connect
    directly or through a session pooler.
    """
    target = resolve_dsn(dsn)
    if prelude:
        with connect(target, autocommit=True) as connection:
            apply_prelude(connection)
        # Functions that run with their owner's rights must not be a superuser's.
        target = make_conninfo(target, options=f"-c role={OWNER}")
    if dimensions is None:
        dimensions = _embedder_dimensions(target, embedder_name, schema)
    applied = migrations.apply(
        target,
        dimensions=dimensions,
        schema=schema,
        progress=lambda migration: typer.echo(f"Applying {migration.file_name}", err=True),
    )
    if applied:
        typer.echo(f"Applied {len(applied)} migration{'s'[: len(applied) > 1]}.")
    else:
        typer.echo("Nothing to apply: the database is up to date.")


def _embedder_dimensions(dsn: str, embedder_name: str, schema: str) -> int | None:
    """Return the size of the embedder's vectors, None where the database has a size already."""
    with connect(dsn) as connection:
        if migrations.stored_dimensions(connection, schema) is not None:
            return None
    try:
        embedder = load_embedder(embedder_name)
    except MissingExtraError as error:
        raise ConfigurationError(
            f"the size of the embeddings is not given, and {error}",
            remedy=f"Pass --dimensions, or: {error.remedy}",
        ) from error
    typer.echo(f"Embeddings of {embedder.dimensions} dimensions, for {embedder.model}", err=True)
    return embedder.dimensions


def init(
    dimensions: Annotated[int, typer.Option(help="Size of the embeddings your model returns.")],
    into: Annotated[
        Path,
        typer.Option(help="Folder of the project's migrations.", file_okay=False),
    ] = Path("supabase/migrations"),
    schema: SchemaOption = naming.SCHEMA,
    declarative: Annotated[
        bool,
        typer.Option(
            "--declarative",
            help="Also write the state into the project's declarative schemas, beside --into.",
        ),
    ] = False,
) -> None:
    """Write the migrations into a Supabase project of your own.

    Those that are there already are left alone, so that a newer second-brain adds only what is new.
    A project with declarative schemas needs --declarative: without it, Supabase's next diff drops
    what these migrations made.
    """
    written = migrations.init(into, dimensions, schema=schema)
    if declarative:
        written += migrations.declare(into.parent / "schemas", dimensions, schema=schema)
    for file in written:
        typer.echo(file)
    if written:
        typer.echo("Next: supabase db push", err=True)
    else:
        typer.echo("Nothing to write: all migrations are there.", err=True)


def _doctor(
    dsn: DsnOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    schema: SchemaOption = naming.SCHEMA,
) -> None:
    """Examine a database and say what to do. Exit code 1 when something is wrong."""
    with connect(resolve_dsn(dsn), autocommit=True) as connection:
        findings = doctor.examine(connection, schema)
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        for finding in findings:
            typer.echo(f"{finding.status:<8}{finding.check}: {finding.message}")
            if finding.remedy:
                typer.echo(f"{'':<8}-> {finding.remedy}")
    if any(finding.status == "error" for finding in findings):
        raise typer.Exit(1)


def _dev_server(major: int | None = None) -> EmbeddedPostgres:
    return EmbeddedPostgres(STATE / "postgres", major)
