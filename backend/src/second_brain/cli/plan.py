"""The command plan: what a corpus needs. The calculation is in `database/sizing.py`."""

import re
from typing import Annotated

import typer
from rich.table import Table

from second_brain.cli.options import JsonOption
from second_brain.cli.output import show
from second_brain.database import sizing

_EXAMPLES = """\b
Examples:
  second-brain server plan --chunks 1M --dimensions 384 --qps 20
  second-brain server plan --chunks 50M --dimensions 768 --qps 200
  second-brain server plan --chunks 50M --dimensions 768 --qps 200 --largest 256 --json
"""
_FACTORS = {"": 1, "k": 1_000, "m": 1_000_000, "g": 1_000_000_000}


app = typer.Typer(rich_markup_mode=None)


@app.command("plan", epilog=_EXAMPLES)
def _plan(
    chunks: Annotated[
        str, typer.Option(metavar="NUMBER", help="Number of chunks: 200000, 200k, 50M.")
    ],
    dimensions: Annotated[int, typer.Option(help="Dimensions of the embeddings.")] = 1024,
    qps: Annotated[float, typer.Option(help="Searches per second at the busiest time.")] = 10.0,
    words: Annotated[float, typer.Option(help="Mean number of words of a chunk.")] = 100.0,
    largest: Annotated[
        float, typer.Option(metavar="GB", help="Memory of the largest machine to use.")
    ] = 64.0,
    as_json: JsonOption = False,
) -> None:
    """Estimate memory, disk, machines and replicas, with the assumption behind each.

    The estimate is calculated from measured figures; --json prints each with its source. It needs
    no database.
    """
    planned = sizing.plan(_number(chunks), dimensions, qps, words=words, largest_gb=largest)
    table = Table("what", "estimate", "assumption")
    for line in planned.lines:
        number = f"{line.value:,.0f}" if line.value == int(line.value) else f"{line.value:,.1f}"
        table.add_row(line.what, f"{number} {line.unit}".strip(), line.assumption)
    show(planned, table, as_json=as_json)


def _number(text: str) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg]?)", text.lower().replace(",", ""))
    if not found:
        raise typer.BadParameter(f"{text!r} is no number such as 200000, 200k or 50M: --chunks")
    return round(float(found[1]) * _FACTORS[found[2]])
