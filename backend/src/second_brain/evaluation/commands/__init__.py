"""The commands eval, tune and judgments."""

import typer

from second_brain.evaluation.commands import evaluation, judgments, tuning

app = typer.Typer(rich_markup_mode=None)
for _part in (evaluation, tuning, judgments):
    app.add_typer(_part.app)
