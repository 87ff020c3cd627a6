"""Functions of a project that search an adopted table: their drop-ins, and the old ones again.

SQL writes and compares them (`supabase/schemas/modules/adoption/`).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import psycopg

from second_brain.adoption import carrying
from second_brain.errors import ConfigurationError
from second_brain.services.install import Database

_FOUND = (
    "select signature::text from knowledge_internal.searching_functions(%(source)s) as signature"
)
_KEPT = """
select call.signature, call.before, call.statements, call.notes, call.undecided
  from knowledge_internal.searching_functions(%(source)s) as old
 cross join lateral knowledge_internal.keep_call(old, %(name)s) as call
"""
_COMPARED = """
select compared.asked, compared.both_rows, compared.old_rows, compared.new_rows,
       coalesce(compared.conditions, '{}')
  from pg_catalog.pg_proc as new
  join pg_catalog.pg_proc as old
    on old.pronamespace = new.pronamespace and old.proargtypes = new.proargtypes
 cross join lateral knowledge_internal.compare_calls(old.oid, new.oid, %(name)s) as compared
 where new.oid = %(signature)s::regprocedure
   and old.proname = %(before)s
"""
_MISSING = """
select knowledge_internal.adoption_keys(
         adoption_name => %(name)s, after_key => null, page_size => 1000, only_missing => true
       )
"""


@dataclass
class Call:
    """A function and the statements that put its drop-in in its place.

    `undecided` says why the drop-in may return other rows or columns: a person decides. The
    others compare the answers for `asked` rows as questions: `new_rows` are keys that only the
    drop-in returns, `conditions` what those rows do not meet and all others do.
    """

    signature: str
    before: str
    statements: Sequence[str]
    notes: Sequence[str]
    undecided: list[str]
    asked: int = 0
    both_rows: int = 0
    old_rows: int = 0
    new_rows: Sequence[str] = field(default_factory=list)
    conditions: Sequence[str] = field(default_factory=list)


def searching(database: Database, source: str) -> list[str]:
    """List the functions that search a table and are no drop-ins."""
    return [name for (name,) in database.execute(_FOUND, {"source": source}).fetchall()]


def keep(database: Database, name: str, *, run: bool = False) -> list[Call]:
    """Write the drop-ins of an adoption and compare them with the functions that they replace.

    With `run`, those without anything undecided stay; else all is rolled back. Raises
    ConfigurationError while rows are not carried over: the drop-ins would not find them.
    """
    adoption = carrying.named(database, name)
    (missing,) = database.execute(_MISSING, {"name": name}).fetchone() or (None,)
    known = [one.key for one in carrying.problems(database, name)]
    if any(key not in known for key in missing or []):
        raise ConfigurationError(
            f"rows of {adoption.source} are not carried over, and the drop-ins would not find them",
            remedy=f"Run: second-brain adopt --backfill {name}",
        )
    rows = database.execute(_KEPT, {"source": adoption.source, "name": name}).fetchall()
    calls = [Call(*row) for row in rows]
    for call in calls:
        try:
            with database.connection.transaction() as outer:
                for statement in call.statements:
                    database.connection.execute(statement.encode())
                try:
                    with database.connection.transaction():
                        _compare(database, name, call)
                except psycopg.Error as error:
                    call.notes = [*call.notes, f"not compared: {error.diag.message_primary}"]
                if call.undecided or not run:
                    raise psycopg.Rollback(outer)
        except psycopg.Error as error:
            call.undecided.append(f"it does not fit: {error.diag.message_primary}")
    return calls


def _compare(database: Database, name: str, call: Call) -> None:
    row = database.execute(
        _COMPARED, {"name": name, "signature": call.signature, "before": call.before}
    ).fetchone()
    if row is not None:
        call.asked, call.both_rows, call.old_rows, call.new_rows, call.conditions = row


def undo(database: Database, name: str) -> list[str]:
    """Return the statements that bring the functions back that drop-ins have replaced."""
    return [one for (one,) in database.execute(carrying.CALLS_UNDONE, {"name": name}).fetchall()]


def migration(calls: Sequence[Call], name: str) -> str:
    """Return the SQL of drop-ins; those that a person must decide on are comments."""
    text = f"-- Drop-ins of the functions that search the table adopted as {name}.\n"
    for call in calls:
        statements = "".join(f"{one};\n\n" for one in call.statements)
        # A line break would end the comment.
        lines = [re.sub(r"\s+", " ", one) for one in [*call.undecided, *call.notes]]
        reasons = "".join(f"--   {one}\n" for one in lines)
        text += f"\n-- {call.signature}\n{reasons}"
        if call.undecided:
            text += "-- Not replaced: decide, change the drop-in, and remove these comment marks.\n"
            statements = "".join(f"-- {line}\n" for line in statements.splitlines())
        text += "\n" + statements
    return text.rstrip("\n") + "\n"
