"""What eval and tune print, on a test collection and on the corpus: tables, lines, and JSON."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from second_brain.cli.tables import new_console
from second_brain.evaluation import metrics, tuning
from second_brain.evaluation.collection import Questions
from second_brain.evaluation.metrics import MEASURES, Difference
from second_brain.evaluation.tuning import Tuning

DEFAULTS = "the defaults"
"""What a test collection is tuned against."""
IN_USE = "the settings in use"
"""What a corpus is tuned against."""


@contextmanager
def progress(description: str, total: int) -> Iterator[Callable[[], None]]:
    """Show a progress bar on a terminal; yields what is called after each step."""
    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bar:
        task = bar.add_task(description, total=total)
        yield lambda: bar.advance(task)


def print_tuning(found: Tuning, baseline: str = DEFAULTS) -> None:
    """Print the result of tuning against `baseline`."""
    console = new_console()
    print_heading(console, found.collection)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    table.add_column(tuning.MEASURE, justify="right")
    for leg, mean in found.legs.items():
        table.add_row(f"{leg} alone", f"{mean:.3f}")
    table.add_row(f"hybrid, {baseline.removeprefix('the ')}", f"{found.default:.3f}")
    table.add_row("hybrid, tuned (cross-validated)", f"{found.validated:.3f}")
    console.print()
    console.print(table)
    console.print()
    for other, gain in found.gains.items():
        name = baseline if other == "default" else f"{other} alone"
        print_difference(console, f"tuned against {name}", gain)
    print_test(console)
    console.print()
    for line in advice(found, baseline):
        # Not by rich, which would wrap the lines: users copy the arguments.
        typer.echo(line)


def advice(found: Tuning, baseline: str = DEFAULTS) -> Iterator[str]:
    """Yield lines about legs that are not beaten, and the recommended arguments."""
    kept = "the default arguments" if baseline == DEFAULTS else baseline
    for leg in found.not_beaten:
        gain = found.gains[leg]
        worse = gain.mean < 0 and gain.significant
        other = "text_weight" if leg == "vector" else "vector_weight"
        yield (
            f"Hybrid is {'worse than' if worse else 'not significantly better than'} the {leg} leg "
            f"alone ({gain.mean:+.3f}, p = {gain.p_value:.4f}). To use only the {leg} leg: "
            f"{other}=0"
        )
    if found.recommended == tuning.DEFAULT:
        yield f"Recommended: {kept}; no setting was better under cross-validation."
        return
    given = found.recommended.arguments()
    yield (
        f"Recommended ({tuning.MEASURE} {found.grid[found.recommended]:.3f} on the queries that "
        "chose it):"
    )
    yield f"  Python:  {python(given)}"
    yield "  SQL:     " + ", ".join(f"{name} => {_sql(arg)}" for name, arg in given.items())
    if not found.gains["default"].significant:
        yield f"The gain over {baseline} is not significant; more judged queries would help."


def print_heading(console: Console, collection: Questions) -> None:
    """Print the name and size of a collection, and what was left out."""
    console.print(
        f"{collection.name}: {collection.document_count:,} documents, "
        f"{len(collection.queries):,} queries",
        style="bold",
        highlight=False,
        markup=False,
    )
    for remark in collection.remarks:
        console.print(f"{remark}.", style="dim", highlight=False, markup=False)


def print_difference(console: Console, name: str, difference: Difference) -> None:
    """Print a difference, and whether it is significant."""
    kind = "gain" if difference.mean > 0 else "loss"
    verdict = f"significant {kind}" if difference.significant else "not significant"
    console.print(
        f"{name}: {difference.mean:+.3f} {MEASURES[0]}, p = {difference.p_value:.4f}, {verdict}",
        highlight=False,
    )


def print_test(console: Console) -> None:
    """Print which test gives the p-values."""
    console.print(
        f"{metrics.TEST}; {metrics.PERMUTATIONS:,} random permutations, or all if there are "
        f"fewer; significant: p < {metrics.SIGNIFICANT}",
        style="dim",
        highlight=False,
    )


def tuning_json(found: Tuning) -> dict[str, Any]:
    """Return the result of tuning as JSON values."""
    return {
        "collection": found.collection.name,
        "documents": found.collection.document_count,
        "queries": len(found.collection.queries),
        "remarks": list(found.collection.remarks),
        "measure": tuning.MEASURE,
        "legs": found.legs,
        "default": found.default,
        "tuned_cross_validated": found.validated,
        "folds": [settings.arguments() for settings in found.chosen],
        "tuned_gain": {other: difference_json(gain) for other, gain in found.gains.items()},
        "test": metrics.TEST,
        "legs_not_beaten": list(found.not_beaten),
        "recommended": found.recommended.arguments(),
        "grid": [
            {"arguments": settings.arguments(), tuning.MEASURE: mean}
            for settings, mean in found.grid.items()
        ],
    }


def difference_json(difference: Difference) -> dict[str, Any]:
    """Return a difference as JSON values."""
    return {**asdict(difference), "significant": difference.significant}


def python(given: dict[str, Any]) -> str:
    """Return arguments as they are written in Python."""
    return ", ".join(f"{name}={value!r}" for name, value in given.items())


def _sql(value: object) -> str:
    return f"'{value}'" if isinstance(value, str) else str(value)
