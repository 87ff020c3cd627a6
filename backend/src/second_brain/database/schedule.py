"""Jobs of pg_cron that keep an install in order, and the same jobs as lines of a crontab.

The job that embeds with the Edge Function is not here: supabase/functions/embed/schedule.sql.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import LiteralString

from psycopg import sql

from second_brain.errors import ConfigurationError, MigrationMissingError, PermissionDeniedError
from second_brain.services.install import SCHEMA, Database, Install
from second_brain.sql_modules import MODULES

DAYS = 30
"""Default age in days of superseded chunks and of lines of the query log."""

# Off the full hour, when other jobs start.
_JOBS: tuple[tuple[str, str | None, str, LiteralString], ...] = (
    ("statistics", None, "*/15 * * * *", "select public.refresh_knowledge_statistics()"),
    (
        "purge",
        None,
        "17 3 * * *",
        "select public.purge_knowledge_chunks(older_than => {superseded})",
    ),
    (
        "query-log",
        "insight",
        "37 3 * * *",
        # The number of lines does not grow without a search, and each search bounds it.
        "select public.record_knowledge_queries(queries => '[]', most_rows => 100000, "
        "max_age => {logged})",
    ),
)
_HAS_PG_CRON = "select to_regprocedure('cron.schedule(text, text, text)') is not null"
# One function stands for all: they have the same grants.
_MAY_RUN = """
    select has_function_privilege(found.oid, 'execute'), current_user
      from to_regprocedure('public.purge_knowledge_chunks(interval)') as found (oid)
     where found.oid is not null
"""
_SCHEDULE = "select cron.schedule(%s, %s, %s)"
# Other users may have jobs of the same name.
_REMOVE = """
    select cron.unschedule(job.jobid)
      from cron.job as job
     where job.jobname = %s and job.username = current_user
"""


class MissingPgCronError(ConfigurationError):
    """The database has no pg_cron."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job: its name in pg_cron, when it runs (in cron's notation) and its SQL."""

    name: str
    schedule: str
    command: str

    def crontab(self) -> str:
        """Return the line of a crontab that runs the job with psql."""
        # A crontab reads a percent sign as the end of the line; the commands have none.
        return f'{self.schedule} psql "$SECOND_BRAIN_DSN" -qXAtc "{self.command}" > /dev/null'


def jobs(
    install: Install,
    *,
    superseded_days: int = DAYS,
    log_days: int = DAYS,
    modules: Collection[str] = tuple(MODULES),
) -> list[Job]:
    """Return the jobs of an install with these modules."""
    suffix = "" if install.schema == SCHEMA else f"-{install.schema}"
    values = {
        "superseded": sql.Literal(f"{superseded_days} days"),
        "logged": sql.Literal(f"{log_days} days"),
    }
    # A schema of an install needs no quotes, and quotes would end the word of a crontab's line.
    return [
        Job(
            f"second-brain-{name}{suffix}",
            schedule,
            install.composed(command, **values).as_string(None).replace('"', ""),
        )
        for name, module, schedule, command in _JOBS
        if module is None or module in modules
    ]


def add(database: Database, wanted: list[Job]) -> None:
    """Schedule jobs; a job of the same name is replaced. All of them, or none.

    Raises MissingPgCronError without pg_cron, MigrationMissingError without the install, and
    PermissionDeniedError if the user, as whom the jobs run, may not call its functions.
    """
    _check_pg_cron(database)
    found = database.execute(_MAY_RUN).fetchone()
    if found is None:
        schema = database.install.schema
        raise MigrationMissingError(f"the database has no knowledge functions in schema {schema}")
    may_run, user = found
    if not may_run:
        raise PermissionDeniedError(
            f"{user} may not call purge_knowledge_chunks, and the jobs would run as {user}",
            remedy="Connect as the owner of the tables, on Supabase postgres.",
        )
    with database.connection.transaction():
        for job in wanted:
            database.execute(_SCHEDULE, [job.name, job.schedule, job.command])


def remove(database: Database, unwanted: list[Job]) -> list[Job]:
    """Remove the user's jobs of these names; return those that existed."""
    _check_pg_cron(database)
    with database.connection.transaction():
        return [job for job in unwanted if database.execute(_REMOVE, [job.name]).fetchone()]


def _check_pg_cron(database: Database) -> None:
    if database.execute(_HAS_PG_CRON).fetchone() != (True,):
        raise MissingPgCronError(
            "pg_cron is not installed in the database, and nothing was changed",
            remedy="Run `create extension pg_cron`, or use the lines for a crontab.",
        )
