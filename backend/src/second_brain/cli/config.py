"""The command config: the values that are set, and where; `configuration` reads them."""

import typer
from rich.table import Table
from rich.text import Text

from second_brain.cli import configuration
from second_brain.cli.output import JsonOption, print_json
from second_brain.cli.tables import new_console, printable

_EXAMPLES = """\b
Examples:
  second-brain server config
  second-brain server config --json
"""


app = typer.Typer(rich_markup_mode=None)


@app.command("config", epilog=_EXAMPLES)
def _config(as_json: JsonOption = False) -> None:
    """Show each value that can be set, and where it comes from.

    An option of a command overrides the environment variable, the variable overrides the
    configuration file, and the file overrides the default. The file is second-brain.toml, or
    [tool.second-brain] in pyproject.toml, here or in the nearest folder above that has one.
    """
    found = configuration.load()
    rows = []
    for key in configuration.KEYS:
        given = found.values.get(key.name)
        rows.append(
            {
                "key": key.name,
                "value": None if given is None else given.shown(),
                "source": None if given is None else given.source,
                "default": key.default,
                "variables": list(key.variables),
            }
        )
    if as_json:
        print_json({"file": found.file, "values": rows})
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("key", "value", "from"):
        table.add_column(name, overflow="fold")
    for key, row in zip(configuration.KEYS, rows, strict=True):
        is_set = row["source"] is not None
        table.add_row(
            key.name,
            Text(
                printable(str(row["value"] if is_set else row["default"])), "" if is_set else "dim"
            ),
            Text(printable(str(row["source"] if is_set else "default")), "" if is_set else "dim"),
        )
    new_console().print(table)
    file = f"File: {found.file}" if found.file else f"No file; it would be {configuration.FILE}"
    typer.echo(file, err=True)
    warning = (
        configuration.warning_of_password(found.values["dsn"]) if "dsn" in found.values else None
    )
    if warning:
        typer.echo(f"warning: {warning}", err=True)
