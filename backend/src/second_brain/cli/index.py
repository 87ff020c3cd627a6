"""The command index: arguments and output; `database/vector_index.py` does the work."""

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Column

from second_brain.cli.options import (
    DsnOption,
    JsonOption,
    MemoryOption,
    SchemaOption,
    WorkersOption,
    new_group,
)
from second_brain.cli.output import print_json, showing_progress
from second_brain.cli.tables import new_table
from second_brain.cli.target import opened, resolve_dsn
from second_brain.database import vector_index
from second_brain.services.connections import connect
from second_brain.services.install import SCHEMA, Database, Install

app = typer.Typer(rich_markup_mode=None)
index = new_group(
    app,
    "index",
    """\b
Examples:
  second-brain corpus index show
  second-brain corpus index build --m 24 --ef-construction 128 --memory 4GB --workers 3
  second-brain corpus index build --kind vector
  second-brain corpus index drop
""",
)


@index.command("show")
def show_index(
    dsn: DsnOption = None, schema: SchemaOption = SCHEMA, as_json: JsonOption = False
) -> None:
    """Show the vector index and the text index."""
    with opened(dsn, schema) as database:
        indexes = vector_index.show(database)
    print_json(indexes) if as_json else _print_indexes(indexes)


@index.command("build")
def build_index(
    kind: Annotated[
        vector_index.Kind | None,
        typer.Option(help="halfvec: half the memory; vector: up to 2,000 dimensions."),
    ] = None,
    m: Annotated[
        int | None, typer.Option("--m", help="Neighbours per node of HNSW, 2 to 100.")
    ] = None,
    ef_construction: Annotated[
        int | None,
        typer.Option(help="Size of HNSW's candidate list in the build, from twice m to 1000."),
    ] = None,
    memory: MemoryOption = None,
    workers: WorkersOption = None,
    dsn: DsnOption = None,
    schema: SchemaOption = SCHEMA,
    as_json: JsonOption = False,
) -> None:
    """Build a new vector index, and replace the one in use when it is ready.

    --kind, --m and --ef-construction default to those of the current index, or to halfvec, 16 and
    64 without an index. Searches and writes continue during the build. A missing text index is
    built too. After an interruption, run the command again with the same options. Connect directly
    or through a session pooler.
    """
    target = resolve_dsn(dsn)
    with connect(target, autocommit=True) as connection:
        settings = vector_index.settings_like_current(
            Database(connection, Install(schema)),
            kind=kind,
            m=m,
            ef_construction=ef_construction,
            memory=memory,
            workers=workers,
        )
    with showing_progress() as on_progress:
        indexes = vector_index.build(target, settings, schema=schema, on_progress=on_progress)
    print_json(indexes) if as_json else _print_indexes(indexes)


@index.command("drop")
def drop_index(dsn: DsnOption = None, schema: SchemaOption = SCHEMA) -> None:
    """Drop the vector index and the text index before a bulk load; build them after it.

    Without the indexes, searches read all rows. The options of the dropped index are not stored:
    give them to `corpus index build` again.
    """
    with showing_progress() as on_progress:
        vector_index.drop(resolve_dsn(dsn), schema=schema, on_progress=on_progress)
    typer.echo("Dropped. After the load: second-brain corpus index build")


def _print_indexes(indexes: list[vector_index.Index]) -> None:
    console = Console()
    index = Column("index", no_wrap=True)
    table = new_table(index, "kind", right=("m", "ef_construction", "size"))
    table.add_column("")
    for one in indexes:
        table.add_row(
            one.name,
            one.kind,
            str(one.m or ""),
            str(one.ef_construction or ""),
            f"{one.size / 2**20:,.1f} MB",
            "" if one.is_valid else "invalid: run `second-brain corpus index build`",
        )
    console.print(table if indexes else "No index: searches read all rows.", soft_wrap=True)
