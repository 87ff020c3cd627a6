"""The commands tenants, shards and plan."""

import typer

from second_brain.distributed.commands import plan, shards, tenants

app = typer.Typer(rich_markup_mode=None)
for _part in (plan, shards, tenants):
    app.add_typer(_part.app)
