"""The commands dev, migrate, init and uninstall: arguments and output; `database` does the work."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import typer
from psycopg.conninfo import make_conninfo

from second_brain.cli import configuration
from second_brain.cli.corpus import configured_embedder
from second_brain.cli.installs import Outcome, for_all, refuse_dsn
from second_brain.cli.options import (
    AllOption,
    DsnOption,
    EmbedderOption,
    JsonOption,
    MajorOption,
    SchemaOption,
    StopOption,
    YesOption,
    new_group,
)
from second_brain.cli.output import print_json, show
from second_brain.cli.target import STATE, dev_server, opened, resolve_dsn
from second_brain.database import (
    condition,
    copying,
    migrations,
    naming,
    pgvector,
    repair,
    uninstall,
)
from second_brain.database.embedded import OWNER, EmbeddedPostgres, apply_prelude
from second_brain.database.obstacles import Obstacle
from second_brain.errors import ConfigurationError, MissingExtraError
from second_brain.lists import Fusion
from second_brain.services.connections import connect
from second_brain.sql_modules import ALL, MODULES

ReplicasOption = Annotated[
    int | None,
    typer.Option(help="Number of hot standbys; default: those that exist.", min=0, max=8),
]


WithOption = Annotated[
    str | None,
    typer.Option(
        "--with",
        metavar="MODULES",
        help=f"Modules beside core, with commas: {', '.join(MODULES)}; or {ALL}.",
    ),
]
FusionOption = Annotated[
    Literal[Fusion, "none"],
    typer.Option(
        help="Fusion to store in a new install, for searches that name none; none stores nothing, "
        "which means rrf."
    ),
]


def _examples(*commands: str) -> str:
    # The backspace character stops Click from wrapping these lines.
    return "\n".join(["\b", "Examples:", *(f"  {command}" for command in commands)])


_IS_SUPERUSER = "select rolsuper from pg_catalog.pg_roles where rolname = current_user"

app = typer.Typer(rich_markup_mode=None)
dev = new_group(app, "dev")


@dev.command(
    epilog=_examples(
        "second-brain server dev start",
        "second-brain server dev start --postgres-major 16",
        "second-brain server dev start --replicas 2",
        'psql "$(second-brain server dev start)"',
    )
)
def start(postgres_major: MajorOption = None, replicas: ReplicasOption = None) -> None:
    """Start this folder's database and print its DSN; the first start creates the database.

    It runs until `server dev stop`. It has the roles, schemas and pgvector of Supabase but no
    tables: `second-brain migrate` creates them. Replicas are hot standbys; their DSNs are printed
    to stderr.
    """
    server = dev_server(postgres_major)
    was_running = server.status == "running"
    server.start(standbys=replicas)
    (STATE / ".gitignore").write_text("*\n")
    verb = "was already running" if was_running else "is running"
    typer.echo(
        f"PostgreSQL {server.major} {verb}; stop it with `second-brain server dev stop`.", err=True
    )
    configured = configuration.load().values.get("dsn")
    if configured is not None and configured.value != server.dsn():
        typer.echo(
            f"Commands do not use it, because {configured.source} is set to another database: "
            "unset it, or pass --dsn.",
            err=True,
        )
    _print_replicas(server)
    typer.echo(server.dsn())


def _print_replicas(server: EmbeddedPostgres) -> None:
    for one in server.standbys:
        running = one.status == "running"
        typer.echo(f"Replica {one.number}: {one.dsn() if running else one.status}", err=True)


@dev.command(epilog=_examples("second-brain server dev stop"))
def stop() -> None:
    """Stop this folder's database and its replicas; the data are kept."""
    server = dev_server()
    before = server.status
    server.stop()
    typer.echo(
        "Stopped." if before == "running" else f"Nothing to stop: the database is {before}.",
        err=True,
    )


@dev.command(
    epilog=_examples("second-brain server dev status", "second-brain server dev status --json")
)
def status(as_json: JsonOption = False) -> None:
    """Show whether this folder's database and replicas run, and their DSNs.

    Exit code 1 if the database does not run.
    """
    server = dev_server()
    now = server.status
    running = now == "running"
    if as_json:
        print_json(
            {
                "status": now,
                "major": None if now == "absent" else server.major,
                "dsn": server.dsn() if running else None,
                "log": None if now == "absent" else server.log,
                "replicas": [
                    {
                        "status": one.status,
                        "dsn": one.dsn() if one.status == "running" else None,
                    }
                    for one in server.standbys
                ],
            }
        )
    elif running:
        typer.echo(f"PostgreSQL {server.major} is running; log: {server.log}", err=True)
        _print_replicas(server)
        typer.echo(server.dsn())
    else:
        typer.echo(
            f"The database is {now}; start it with `second-brain server dev start`.", err=True
        )
    if not running:
        raise typer.Exit(1)


@dev.command(epilog=_examples("second-brain server dev reset --yes"))
def reset(
    yes: YesOption = False,
    postgres_major: MajorOption = None,
) -> None:
    """Delete this folder's database with all its data and start an empty one.

    It has as many replicas as before.
    """
    server = dev_server()
    if server.status != "absent" and not yes:
        typer.confirm(f"Delete the database in {STATE.resolve()}?", abort=True, err=True)
    major = postgres_major or (server.major if server.status != "absent" else None)
    replicas = len(server.standbys)
    server.remove()
    start(major, replicas)


@app.command(
    epilog=_examples(
        "second-brain migrate --dimensions 384",
        "second-brain migrate --with adoption,facets",
        "second-brain migrate --dsn postgresql://postgres@db.example.org/postgres",
        "second-brain migrate --all installs.txt --dimensions 384",
    )
)
def migrate(
    dimensions: Annotated[
        int | None,
        typer.Option(
            help="Dimensions of the embeddings; default: the database's, or the embedder's if new."
        ),
    ] = None,
    dsn: DsnOption = None,
    prelude: Annotated[
        bool,
        typer.Option(
            "--prelude",
            help="First create Supabase's roles and schemas in a plain Postgres, as a superuser or "
            "as the owner of the database with CREATEROLE.",
        ),
    ] = False,
    embedder_name: EmbedderOption = "wordllama",
    with_modules: WithOption = None,
    fusion: FusionOption = migrations.FUSION,
    schema: SchemaOption = naming.SCHEMA,
    as_json: JsonOption = False,
    all_installs: AllOption = None,
    stop: StopOption = False,
    record: Annotated[
        bool,
        typer.Option(
            "--record",
            help="Record the migrations of an install without a history, as after a restore; apply "
            "none.",
        ),
    ] = False,
    healing: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="Create again what is missing or differs from this version, and keep all rows; "
            "apply none.",
        ),
    ] = False,
) -> None:
    """Apply the migrations that the database does not have yet.

    These are those of core, of the modules that are installed, and of --with.

    A new database gets the dimensions of the embedder, so that `ingest` and `search` work with the
    same embedder.

    Applied migrations are recorded in the same way as by `supabase db push`, so both commands work
    on one database. Connect directly or through a session pooler.

    With --all, a failure does not stop the others, unless --stop is given: a table shows the result
    for each install, and the exit code is 1.
    """
    modules = migrations.chosen(with_modules)
    stored_fusion = None if fusion == "none" else fusion
    if all_installs:
        refuse_dsn(dsn)
        if prelude:
            raise ConfigurationError(
                "--all cannot be combined with --prelude, which needs more rights",
                remedy="First run `second-brain migrate --prelude --dsn ...` in each database.",
            )

        def migrate_one(target: str, schema: str) -> Outcome:
            size = dimensions or _embedder_dimensions(target, embedder_name, schema)
            applied = migrations.apply(
                target, dimensions=size, schema=schema, modules=modules, fusion=stored_fusion
            )
            return Outcome(True, f"{len(applied)} applied" if applied else "up to date")

        for_all(all_installs, schema, migrate_one, stop=stop, as_json=as_json)
        return
    target = resolve_dsn(dsn)
    if record:
        found = condition.record(target, schema)
        said = f"Recorded {len(found)} migrations, and applied none."
        show({"recorded": [one.file_name for one in found]}, said, as_json=as_json)
        return
    if healing:
        healed = repair.apply(target, schema, dimensions)
        said = "\n".join([*healed, f"Repaired {len(healed)} objects."])
        show({"repaired": healed}, said, as_json=as_json)
        return
    if prelude:
        with connect(target, autocommit=True) as connection:
            for statement in apply_prelude(connection):
                typer.echo(f"not permitted, for an administrator: {statement};", err=True)
            is_superuser = connection.execute(_IS_SUPERUSER).fetchone() == (True,)
        if is_superuser:
            # The owner must not be one, because some functions are security definer.
            target = make_conninfo(target, options=f"-c role={OWNER}")
    if dimensions is None:
        dimensions = _embedder_dimensions(target, embedder_name, schema)
    try:
        applied = migrations.apply(
            target,
            dimensions=dimensions,
            schema=schema,
            modules=modules,
            fusion=stored_fusion,
            progress=lambda migration: typer.echo(f"Applying {migration.file_name}", err=True),
        )
    except migrations.ObstacleError as error:
        _stop_at(error.obstacles, "applied", as_json=as_json)
    said = f"Applied {len(applied)} migration{'s'[: len(applied) > 1]}."
    if not applied:
        said = "Nothing to apply: the database is up to date."
    show({"applied": [one.file_name for one in applied], "obstacles": []}, said, as_json=as_json)


def _stop_at(obstacles: Sequence[Obstacle], done: str, *, as_json: bool) -> NoReturn:
    """Print the obstacles with their remedies, and end the command."""
    if as_json:
        print_json({done: [], "obstacles": obstacles})
        raise typer.Exit(1)
    for one in obstacles:
        typer.echo(f"obstacle: {one.what}\n       -> {one.remedy}", err=True)
    typer.echo("Nothing was written.", err=True)
    raise typer.Exit(1)


def _embedder_dimensions(dsn: str, embedder_name: str, schema: str) -> int | None:
    """Return the dimensions of the embedder; None if the database already has dimensions."""
    with connect(dsn) as connection:
        if migrations.stored_dimensions(connection, schema) is not None:
            return None
    try:
        embedder = configured_embedder(embedder_name)
    except MissingExtraError as error:
        said, remedy = f"--dimensions is not given, and {error}", f"Pass it, or: {error.remedy}"
        raise ConfigurationError(said, remedy=remedy) from error
    typer.echo(f"Embeddings of {embedder.dimensions} dimensions, for {embedder.model}", err=True)
    return embedder.dimensions


@app.command(
    epilog=_examples(
        "second-brain init --dimensions 384 --into supabase/migrations",
        "second-brain init --dimensions 384 --with adoption,facets",
        "second-brain init --dimensions 384 --declarative",
        "second-brain init --dimensions 384 --one-file --into second-brain.sql",
    )
)
def init(
    dimensions: Annotated[int, typer.Option(help="Dimensions of your model's embeddings.")],
    with_modules: WithOption = None,
    fusion: FusionOption = migrations.FUSION,
    into: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the project's migrations, by default supabase/migrations; with "
            "--one-file the file, by default stdout."
        ),
    ] = None,
    schema: SchemaOption = naming.SCHEMA,
    declarative: Annotated[
        bool,
        typer.Option(
            "--declarative",
            help="Also write declarative schemas, into the folder `schemas` beside --into.",
        ),
    ] = False,
    one_file: Annotated[
        bool,
        typer.Option(
            "--one-file", help="Write one file for Supabase's SQL editor, for a new install."
        ),
    ] = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="First look for obstacles in the database, and for the schema of pgvector.",
        ),
    ] = False,
    vector_schema: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Schema that has pgvector; default: that of existing files, or extensions.",
        ),
    ] = None,
    dsn: DsnOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the migrations into your Supabase project: core, and the modules of --with.

    Existing migrations are not changed, so a newer second-brain, or another module, adds only new
    ones. A project with declarative schemas needs --declarative; otherwise Supabase's next diff
    drops the objects of these migrations. --check connects to the database (--dsn) and writes
    nothing if it finds obstacles, such as tables with the same names.

    The one file is one transaction and records the same history as `supabase db push`. Where
    second-brain is installed, it changes nothing and raises an error.
    """
    modules = migrations.chosen(with_modules)
    stored_fusion = None if fusion == "none" else fusion
    if one_file and declarative:
        raise ConfigurationError(
            "--one-file cannot be combined with --declarative",
            remedy="Use --declarative in a project with a folder of migrations.",
        )
    if check:
        with opened(dsn, schema) as database:
            if found := migrations.find_obstacles(database.connection, schema, modules=modules):
                _stop_at(found, "written", as_json=as_json)
            vector = pgvector.installed(database.connection)
        if vector is not None:
            vector_schema = vector_schema or vector.schema
    if one_file:
        text = migrations.one_file(
            dimensions,
            schema=schema,
            vector_schema=vector_schema or naming.EXTENSIONS,
            modules=modules,
            fusion=stored_fusion,
        )
        if into is None:
            typer.echo(text, nl=False)
        else:
            into.write_text(text, "utf-8")
            typer.echo("Next: run it in Supabase's SQL editor, or with psql", err=True)
        return
    into = into or Path("supabase/migrations")
    vector_schema = vector_schema or migrations.written_vector_schema(into, schema)
    written = migrations.init(
        into,
        dimensions,
        schema=schema,
        vector_schema=vector_schema,
        modules=modules,
        fusion=stored_fusion,
    )
    if declarative:
        written += migrations.declare(
            into.parent / "schemas",
            dimensions,
            schema=schema,
            vector_schema=vector_schema,
            modules=migrations.written_modules(into, schema),
        )
    if as_json:
        print_json({"written": written, "obstacles": []})
        return
    for file in written:
        typer.echo(file)
    if written:
        typer.echo("Next: supabase db push", err=True)
        files = (one.name for one in into.glob("[0-9]*.sql"))
        numbered = [name for name in files if not re.match(r"\d{14}_", name)]
        if numbered:
            typer.echo(
                f"note: {numbered[0]} has a number, and the new files have times, which sort after "
                "it: push a later file with a number by `supabase db push --include-all`",
                err=True,
            )
    else:
        typer.echo("Nothing to write: all migrations exist.", err=True)


@app.command(
    "copy",
    epilog=_examples("second-brain server copy --from public --schema knowledge_next"),
)
def _copy(
    old: Annotated[str, typer.Option("--from", metavar="SCHEMA", help="Schema to copy from.")],
    schema: SchemaOption = naming.SCHEMA,
    dsn: DsnOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy the documents of an install, of any version, into another schema of the database.

    With them go chunks without a document, own types and origins, sources, synonyms and settings.
    Ids are new; superseded versions and judgments are left out. Rows of adopted tables are not
    copied: the command names the tables to adopt again. It can run again.
    """
    copied = copying.copy(
        resolve_dsn(dsn), old, schema, lambda count: typer.echo(f"{count:,} documents", err=True)
    )
    lines = [f"Copied {copied.documents:,} documents from {old} to {schema}."]
    lines += [
        f"Adopt again: second-brain adopt {one} --schema {schema} --apply" for one in copied.adopted
    ]
    show(copied, "\n".join(lines), as_json=as_json)


@app.command(
    "uninstall",
    epilog=_examples(
        "second-brain server uninstall > uninstall.sql",
        "second-brain server uninstall --module facets --apply",
        "second-brain server uninstall --schema knowledge_de --apply",
    ),
)
def _uninstall(
    dsn: DsnOption = None,
    schema: SchemaOption = naming.SCHEMA,
    module: Annotated[
        str | None, typer.Option(help="Remove this module, and keep the documents.")
    ] = None,
    cascade: Annotated[
        bool, typer.Option("--cascade", help="Also drop other objects that depend on the install.")
    ] = False,
    run: Annotated[
        bool, typer.Option("--apply", help="Run the SQL, in one transaction, after asking.")
    ] = False,
    yes: YesOption = False,
) -> None:
    """Write the SQL that removes the install in a schema, or a module of it, for review.

    Its comments say what is lost. With --apply the command runs it.
    """
    target = resolve_dsn(dsn)
    with connect(target, autocommit=True) as connection:
        found = uninstall.plan(connection, schema, module=module, cascade=cascade)
    if not run:
        typer.echo(found.script, nl=False)
        return
    for table, count in found.rows.items():
        typer.echo(f"{table}: {count:,} rows", err=True)
    for one in found.attached:
        typer.echo(f"{one}, which is not of second-brain", err=True)
    if not yes:
        typer.confirm(f"Delete the {found.subject}?", abort=True, err=True)
    uninstall.apply(target, schema, module=module, cascade=cascade)
    typer.echo(f"The {found.subject} is removed.")
    typer.echo("".join(f"{line}\n" for line in found.remarks), nl=False, err=True)
