"""The command schedule: arguments and output; `database/schedule.py` does the work."""

from typing import Annotated

import typer

from second_brain.cli.options import DsnOption, JsonOption, SchemaOption
from second_brain.cli.output import show
from second_brain.cli.target import opened
from second_brain.database import schedule
from second_brain.database.migrations import installed_modules
from second_brain.services.install import SCHEMA
from second_brain.sql_modules import MODULES

app = typer.Typer(rich_markup_mode=None)


@app.command(
    "schedule",
    epilog="""\b
Examples:
  second-brain server schedule
  second-brain server schedule --superseded-days 90 --log-days 7
  second-brain server schedule --remove
""",
)
def _schedule(
    superseded_days: Annotated[
        int, typer.Option(help="Days that superseded and deleted chunks are kept.", min=0, max=3650)
    ] = schedule.DAYS,
    log_days: Annotated[
        int, typer.Option(help="Days that lines of the query log are kept.", min=1, max=3650)
    ] = schedule.DAYS,
    remove: Annotated[
        bool, typer.Option("--remove", help="Remove the jobs of this install.")
    ] = False,
    dsn: DsnOption = None,
    schema: SchemaOption = SCHEMA,
    as_json: JsonOption = False,
) -> None:
    """Schedule statistics, the purge and the clean-up of the query log with pg_cron.

    Running it again replaces the jobs. Without pg_cron it changes nothing, prints lines for a
    crontab and fails. The jobs run as the user of the connection.
    """
    with opened(dsn, schema) as database:
        found = schedule.jobs(
            database.install,
            superseded_days=superseded_days,
            log_days=log_days,
            # Jobs of a module that is removed are removed, too.
            modules=MODULES if remove else installed_modules(database.connection, schema),
        )
        if remove:
            found = schedule.remove(database, found)
        else:
            try:
                schedule.add(database, found)
            except schedule.MissingPgCronError:
                lines = [job.crontab() for job in found]
                show(lines, "\n".join(lines), as_json=as_json)
                raise
    verb = "Removed" if remove else "Scheduled"
    said = "\n".join(f"{verb} {job.name}: {job.schedule}" for job in found)
    show(found, said or "There are no jobs of this install.", as_json=as_json)
