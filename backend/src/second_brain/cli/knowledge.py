"""Commands of the knowledge itself: ingest, delete, search."""

import typer


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
