"""Why a migration was not applied, and where in its file."""

import re
from collections.abc import Sequence

import psycopg

from second_brain.database.obstacles import Obstacle
from second_brain.database.packaged import Migration
from second_brain.errors import SecondBrainError


class MigrationError(SecondBrainError):
    """A migration failed or must not run; the database has no change of that file."""

    kind = "migration"
    default_remedy = "Correct the error and run it again: applied migrations stay applied."


class ObstacleError(MigrationError):
    """The database has `obstacles` to the installation; nothing was written."""

    default_remedy = "Remove the obstacles and run it again."

    def __init__(self, found: Sequence[Obstacle]) -> None:
        self.obstacles = tuple(found)
        count = f"{len(found)} obstacle{'s'[: len(found) > 1]}"
        listed = "; ".join(map(str, found))
        remedy = found[0].remedy if len(found) == 1 else None
        super().__init__(f"nothing was written, because of {count}: {listed}", remedy=remedy)


def failure(
    migration: Migration, begin: int, statement: str, error: psycopg.Error
) -> MigrationError:
    """Return the error of a statement of the file, which begins at this character."""
    diagnostics = error.diag
    if diagnostics.statement_position:
        offset = int(diagnostics.statement_position) - 1
    else:
        first = re.search(r"^(?!\s*(--|$))", statement, re.MULTILINE)
        offset = first.start() if first else 0
    line = migration.sql.count("\n", 0, begin + offset) + 1
    message = diagnostics.message_primary or str(error)
    remedy = diagnostics.message_hint
    if error.sqlstate == "3F000" or (error.sqlstate == "42704" and "role" in message):
        remedy = (
            "On a plain Postgres, run `second-brain migrate --prelude` once: it creates the roles "
            "and schemas that Supabase has."
        )
    elif error.sqlstate == "42501":
        remedy = remedy or "Connect as the owner of the database (on Supabase: postgres)."
    return MigrationError(
        f"{migration.file_name}, line {line}: {message}", code=error.sqlstate, remedy=remedy
    )
