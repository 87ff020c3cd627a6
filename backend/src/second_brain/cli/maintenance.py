"""The commands index and reembed: arguments and output; the package `database` does the work."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import TaskProgressColumn
from rich.table import Column

from second_brain.cli.corpus import configured_embedder
from second_brain.cli.options import (
    DsnOption,
    JsonOption,
    MemoryOption,
    SchemaOption,
    WorkersOption,
    new_group,
)
from second_brain.cli.output import new_progress, print_json, show
from second_brain.cli.tables import new_table
from second_brain.cli.target import opened, resolve_dsn
from second_brain.database import reembedding, vector_index
from second_brain.database.maintenance import OnProgress, Progress
from second_brain.models import EMBEDDER_NAMES
from second_brain.services.connections import connect
from second_brain.services.install import SCHEMA, Database, Install


class Kind(StrEnum):
    """The type in which a vector index stores embeddings."""

    halfvec = "halfvec"
    vector = "vector"


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
reembed = new_group(
    app,
    "reembed",
    """\b
Examples:
  second-brain corpus reembed start --embedder voyage:voyage-4-large --memory 4GB
  second-brain corpus reembed status
  second-brain corpus reembed cancel
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
        Kind | None, typer.Option(help="halfvec: half the memory; vector: up to 2,000 dimensions.")
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
            kind=None if kind is None else kind.value,
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


@reembed.command("start")
def start_reembedding(
    embedder: Annotated[str, typer.Option(help=f"The new model: {', '.join(EMBEDDER_NAMES)}.")],
    keep_old: Annotated[
        bool,
        typer.Option("--keep-old", help="Keep the old embeddings until `corpus reembed finish`."),
    ] = False,
    batch_size: Annotated[
        int, typer.Option(help="Texts per call of the embedder.", min=1, max=2000)
    ] = reembedding.BATCH_SIZE,
    memory: MemoryOption = None,
    workers: WorkersOption = None,
    dsn: DsnOption = None,
    schema: SchemaOption = SCHEMA,
    as_json: JsonOption = False,
) -> None:
    """Embed all chunks with another model into new columns, then switch to them.

    Searches and writes continue. After an interruption, run the command again: it continues from
    where it stopped. Connect directly or through a session pooler.
    """
    target = resolve_dsn(dsn)
    model = configured_embedder(embedder)
    with showing_progress() as on_progress:
        report = reembedding.start(
            target,
            model,
            memory=memory,
            workers=workers,
            keep_old=keep_old,
            batch_size=batch_size,
            schema=schema,
            on_progress=on_progress,
        )
    if as_json:
        print_json(report)
        return
    typer.echo(f"{report.embedded:,} chunks embedded; {model.model} is now in use.")
    if report.without_direction:
        typer.echo(
            f"{report.without_direction:,} texts have no embedding, only the text leg finds them; "
            "`second-brain doctor` lists the reasons.",
            err=True,
        )
    if report.old_is_kept:
        typer.echo("Drop the old embeddings with: second-brain corpus reembed finish", err=True)


@reembed.command("status")
def show_reembedding(
    dsn: DsnOption = None, schema: SchemaOption = SCHEMA, as_json: JsonOption = False
) -> None:
    """Show the progress of a model change."""
    with opened(dsn, schema) as database:
        now = reembedding.state(database)
        is_running = now.stage not in ("none", "switched")
        done, chunks = reembedding.count(database) if is_running else (None, None)
    if now.stage == "none":
        said = f"No model change is running; {now.dimensions} dimensions are in use."
    elif now.stage == "switched":
        said = f"{now.model} is in use; the old embeddings still exist."
    else:
        said = f"{done:,} of {chunks:,} chunks are embedded with {now.model}."
    show({**asdict(now), "embedded": done, "chunks": chunks}, said, as_json=as_json)


@reembed.command("finish")
def finish_reembedding(dsn: DsnOption = None, schema: SchemaOption = SCHEMA) -> None:
    """Drop the old embeddings after the switch."""
    with showing_progress() as on_progress:
        done = reembedding.finish(resolve_dsn(dsn), schema=schema, on_progress=on_progress)
    typer.echo("Dropped the old embeddings." if done else "There are no old embeddings.")


@reembed.command("cancel")
def cancel_reembedding(dsn: DsnOption = None, schema: SchemaOption = SCHEMA) -> None:
    """Drop the new embeddings before the switch; the old model stays in use."""
    with showing_progress() as on_progress:
        done = reembedding.cancel(resolve_dsn(dsn), schema=schema, on_progress=on_progress)
    typer.echo("Dropped the new embeddings." if done else "There is nothing to cancel.")


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


@contextmanager
def showing_progress() -> Iterator[OnProgress]:
    """Show the current step with a progress bar; without a terminal, print each step once."""
    with new_progress(TaskProgressColumn()) as display:
        console = display.console
        task = display.add_task("", total=None)
        printed: set[str] = set()

        def on_progress(progress: Progress) -> None:
            display.update(
                task,
                description=progress.step,
                total=None if progress.share is None else 1,
                completed=progress.share or 0,
            )
            step = progress.step.partition(":")[0]
            if not console.is_terminal and step not in printed:
                printed.add(step)
                console.print(step, markup=False, highlight=False)

        yield on_progress
