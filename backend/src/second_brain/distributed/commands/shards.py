"""The command shards: one corpus in several databases. The DSNs come from environment variables."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Annotated, Any

import psycopg
import typer
from rich.table import Table

from second_brain.cli.options import SchemaOption, new_group
from second_brain.cli.tables import new_console
from second_brain.distributed.sharded_write import GRACE, Moved, move_documents
from second_brain.distributed.shared_statistics import (
    refresh_shared_statistics,
    shared_statistics,
)
from second_brain.errors import ConfigurationError
from second_brain.services.connections import connect
from second_brain.services.install import SCHEMA

ShardOption = Annotated[
    list[str],
    typer.Option(
        "--shard",
        metavar="NAME=VARIABLE",
        help="A database: its name, and the environment variable with its DSN. Repeat it.",
    ),
]

app = typer.Typer(rich_markup_mode=None)
shards = new_group(
    app,
    "shards",
    """\b
Examples:
  second-brain server shards refresh --shard east=EAST_URL --shard west=WEST_URL
  second-brain server shards check --shard east=EAST_URL --shard west=WEST_URL
  second-brain server shards move --shard east=EAST_URL --shard west=WEST_URL --shard new=NEW_URL
""",
)


@shards.command("refresh")
def refresh(shard: ShardOption, schema: SchemaOption = SCHEMA) -> None:
    """Sum the statistics of all databases and set them in each, so that BM25 is the same."""
    with _opened(shard) as databases:
        stored = refresh_shared_statistics(databases, schema=schema)
    typer.echo(
        f"Set in {len(databases)} databases: {stored.chunks:,} chunks, {stored.lexemes:,} lexemes."
    )


@shards.command("check")
def check(shard: ShardOption, schema: SchemaOption = SCHEMA) -> None:
    """Show the statistics of each database; fail where they differ or are old."""
    with _opened(shard) as databases:
        stored = {
            name: shared_statistics(connection, schema=schema)
            for name, connection in databases.items()
        }
    table = Table("database", "chunks", "statistics", "of chunks", "set at")
    for name, one in stored.items():
        table.add_row(
            name,
            f"{one.rows:,.0f}",
            one.id[-8:] if one.id else "its own",
            "" if one.shared_rows is None else f"{one.shared_rows:,.0f}",
            f"{one.set_at:%Y-%m-%d %H:%M}" if one.set_at else "never",
        )
    new_console().print(table)
    if len({one.id for one in stored.values()}) > 1 or None in {one.id for one in stored.values()}:
        typer.echo(
            "The databases weigh words by different statistics: second-brain server shards refresh"
        )
        raise typer.Exit(1)
    shared_rows = next(iter(stored.values())).shared_rows or 0
    rows = sum(one.rows for one in stored.values())
    if abs(rows - shared_rows) > _MOST_CHANGED * shared_rows:
        typer.echo(
            f"There are {rows:,.0f} chunks now, and the statistics are of {shared_rows:,.0f}: "
            "second-brain server shards refresh"
        )
        raise typer.Exit(1)


@shards.command("move")
def move(
    shard: ShardOption,
    onto: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only to this database; repeat it. Without it, to all."),
    ] = None,
    grace: Annotated[
        float,
        typer.Option(
            help="Seconds that a moved document stays in its earlier database: longer than the "
            "timeout of any search.",
            min=0,
        ),
    ] = GRACE,
    schema: SchemaOption = SCHEMA,
) -> None:
    """Move documents to their places after a database is added; searches and writes go on."""

    def report(moved: Moved) -> None:
        typer.echo(f"{moved.moved:,} documents moved, {moved.documents:,} looked at", err=True)

    with _opened(shard) as databases:
        unknown = sorted(set(onto or ()) - databases.keys())
        if unknown:
            raise ConfigurationError(
                f"--onto {unknown[0]} names no database", remedy="Give it with --shard, too."
            )
        moved = move_documents(databases, onto=onto, grace=grace, schema=schema, notify=report)
    typer.echo(f"Moved {moved.moved:,} documents.")


# Of the chunks: with more changed, the statistics are old.
_MOST_CHANGED = 0.2


@contextmanager
def _opened(given: list[str]) -> Iterator[dict[str, "psycopg.Connection[Any]"]]:
    """Connect to the databases, with autocommit."""
    with ExitStack() as stack:
        databases: dict[str, psycopg.Connection[Any]] = {}
        for one in given:
            name, _, variable = one.partition("=")
            dsn = os.environ.get(variable)
            if not name or not dsn or name in databases:
                # The value is not shown: it may be a DSN with a password.
                raise ConfigurationError(
                    f"--shard number {len(databases) + 1} must be NAME=VARIABLE, with a name of "
                    "its own and an environment variable that has the DSN",
                    remedy="For example: --shard east=EAST_URL",
                )
            databases[name] = stack.enter_context(connect(dsn, autocommit=True))
        yield databases
