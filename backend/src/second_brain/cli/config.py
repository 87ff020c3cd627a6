"""The command config: the values that are set, and where; `configuration` reads them."""

import typer
from rich.text import Text

from second_brain.cli import configuration
from second_brain.cli.options import JsonOption
from second_brain.cli.output import show
from second_brain.cli.tables import new_table, printable

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
    table = new_table("key", "value", "from")
    for row in rows:
        value, source, style = row["value"], row["source"], ""
        if source is None:
            value, source, style = row["default"], "default", "dim"
        texts = (Text(printable(str(one)), style) for one in (value, source))
        table.add_row(str(row["key"]), *texts)
    show({"file": found.file, "values": rows}, table, as_json=as_json)
    if as_json:
        return
    file = f"File: {found.file}" if found.file else f"No file; it would be {configuration.FILE}"
    typer.echo(file, err=True)
    warning = (
        configuration.warning_of_password(found.values["dsn"]) if "dsn" in found.values else None
    )
    if warning:
        typer.echo(f"warning: {warning}", err=True)
