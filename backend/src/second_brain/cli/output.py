"""The option --json: one JSON value on standard output, and nothing else there."""

import contextlib
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, is_dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import typer
from pydantic import BaseModel

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def print_json(value: Any) -> None:
    """Print a value; dataclasses and models become objects, dates, UUIDs and paths become texts."""
    typer.echo(json.dumps(value, indent=2, default=_plain))


@contextlib.contextmanager
def notes_to_stderr(as_json: bool) -> Iterator[None]:
    """With --json, print what is for people to standard error."""
    with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
        yield


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, UUID | Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")
