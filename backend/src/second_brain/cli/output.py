"""What commands print: one JSON value on standard output with --json, else what people read."""

import contextlib
import json
import sys
from collections.abc import Iterator
from typing import Any

import typer
from pydantic_core import to_jsonable_python
from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    ProgressColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.progress import Progress as Display

from second_brain.cli.tables import new_console
from second_brain.database.maintenance import OnProgress, Progress


def show(value: Any, shown: RenderableType, *, as_json: bool) -> None:
    """Print a value as JSON, or what people see of it: a text, or a table."""
    if as_json:
        print_json(value)
    elif isinstance(shown, str):
        typer.echo(shown)
    else:
        new_console().print(shown)


def print_json(value: Any) -> None:
    """Print a value; dataclasses and models become objects, dates, UUIDs and paths become texts."""
    typer.echo(json.dumps(value, indent=2, default=to_jsonable_python))


@contextlib.contextmanager
def notes_to_stderr(as_json: bool) -> Iterator[None]:
    """With --json, print what is for people to standard error."""
    with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
        yield


def new_progress(count: ProgressColumn) -> Display:
    """Return a progress bar on standard error, which shows nothing without a terminal."""
    console = Console(stderr=True)
    return Display(
        TextColumn("{task.description}"),
        BarColumn(),
        count,
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


@contextlib.contextmanager
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
