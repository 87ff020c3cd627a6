"""The commands eval, tune and judgments."""

import typer

from second_brain.evaluation.commands import evaluation, judgments

app = typer.Typer(rich_markup_mode=None)
for _part in (evaluation, judgments):
    app.add_typer(_part.app)
