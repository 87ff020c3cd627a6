"""What commands print: one JSON value on standard output with --json, else what people read."""

import contextlib
import json
import sys
from collections.abc import Iterator
from typing import Any

import typer
from pydantic_core import to_jsonable_python
from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn

from second_brain.cli.tables import new_console


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


def new_progress(count: ProgressColumn) -> Progress:
    """Return a progress bar on standard error, which shows nothing without a terminal."""
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        count,
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
