"""Adoptions in a database: backfill, comparison, repair, removal.

The work on rows is SQL (`supabase/schemas/modules/adoption/`); here are its batches and
transactions.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import psycopg
from psycopg import sql

from second_brain.adoption import migration, replaced
from second_brain.database.maintenance import OnProgress, Progress, ignore_progress
from second_brain.errors import ConfigurationError, ModuleMissingError
from second_brain.services.install import Database

BATCH_SIZE = 200
"""Rows of a transaction of the backfill; their source rows are locked until it ends."""
PAGE_SIZE = 1000
"""Rows that the comparison holds in memory at a time."""
_EXAMPLES = 20

Key = str | None
"""The text of a key; None for a left-over document that names none."""

_EXISTS = "select to_regclass('public.knowledge_adoptions') is not null"
_LIST = """
select adoption.name,
       coalesce(
         (pg_catalog.pg_identify_object('pg_class'::regclass, adoption.source, 0)).identity,
         '"a dropped table"'
       ),
       to_regclass(format('knowledge_internal.%I', 'adopted_' || adoption.name)) is not null
  from public.knowledge_adoptions as adoption
 order by adoption.name
"""
_COUNT = "select count(*) from knowledge_internal.{view}"
_KEYS = """
select knowledge_internal.adoption_keys(
         adoption_name => %(name)s, after_key => %(after)s, page_size => %(size)s,
         only_missing => %(only_missing)s
       )
"""
_CARRY_OVER = """
select rows_stored, rows_left
  from knowledge_internal.carry_over_again(
         adoption_name => %(name)s, keys => %(keys)s, waits => %(waits)s
       )
"""
_DIFFERENCES = """
select found.key, found.fields
  from knowledge_internal.adoption_differences(adoption_name => %(name)s, keys => %(keys)s) as found
"""
_LEFT_OVER = """
select key, external_key from knowledge_internal.adoption_left_over(adoption_name => %(name)s)
"""
_PROBLEMS = """
select key, is_carried_over, reason
  from public.knowledge_adoption_problems
 where adoption_name = %(name)s
 order by recorded_at, key
"""
_STATISTICS = (
    "select set_config('statement_timeout', '0', true)",
    "analyze public.knowledge_chunks",
    "select public.refresh_knowledge_statistics()",
)
_DELETE_LEFT_OVER = """
delete from public.knowledge_documents as document
 using knowledge_internal.adoption_left_over(adoption_name => %(name)s) as left_over
 where document.external_key = left_over.external_key
   and left_over.external_key = any (%(external_keys)s)
   and document.source_row @> jsonb_build_object('adoption', %(name)s::text)
"""
_DROP_TRIGGERS = """
select 'drop trigger ' || (
         pg_catalog.pg_identify_object('pg_trigger'::regclass, trigger.oid, 0)
       ).identity
  from pg_catalog.pg_trigger as trigger
 where trigger.tgfoid = 'knowledge_internal.carry_over_changes'::regproc
   and split_part(encode(trigger.tgargs, 'escape'), '\\000', 1) = %(name)s
   and trigger.tgparentid = 0
 order by trigger.tgrelid, trigger.tgname
"""
_FAULTS = "select knowledge_internal.adoption_faults(%(name)s)"
_FOLLOW = "select knowledge_internal.follow_table(%(name)s)"
_REMOVAL = (
    "drop view if exists knowledge_internal.{view}",
    # They have no text without the adoption.
    "delete from public.knowledge_documents where source_row ->> 'adoption' = {name}",
    "delete from public.knowledge_adoptions where name = {name}",
    "select knowledge_internal.write_places()",
    "select knowledge_internal.end_searches()",
)


@dataclass(frozen=True)
class Adoption:
    """A registered adoption, and whether the view that maps its table exists."""

    name: str
    source: str
    has_view: bool


@dataclass(frozen=True)
class Problem:
    """A row that could not be carried over, or not completely, and why."""

    key: Key
    is_carried_over: bool
    reason: str


@dataclass
class Comparison:
    """The differences between a source and its documents.

    `examples` has some of the differing keys with their fields.
    """

    name: str
    compared: int = 0
    missing: int = 0
    different: int = 0
    left_over: int = 0
    examples: list[tuple[Key, list[str]]] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    @property
    def differences(self) -> int:
        """How many documents are missing, different or left over."""
        return self.missing + self.different + self.left_over


def listed(database: Database) -> list[Adoption]:
    """List the adoptions of an install. Raises ModuleMissingError without their tables."""
    if database.execute(_EXISTS).fetchone() != (True,):
        raise ModuleMissingError("table knowledge_adoptions does not exist", module="adoption")
    return [Adoption(*row) for row in database.execute(_LIST).fetchall()]


def named(database: Database, name: str, *, needs_view: bool = True) -> Adoption:
    """Return the adoption of that name. Raises ConfigurationError without it, or its view."""
    found = {one.name: one for one in listed(database)}
    if name not in found:
        raise ConfigurationError(
            f"there is no adoption {name!r}",
            remedy=f"Those of this database: {', '.join(found) or 'none'}.",
        )
    if needs_view and not found[name].has_view:
        raise ConfigurationError(
            f"the adoption {name!r} has no view: it was dropped, or its table",
            remedy=f"Create the view again, or run: second-brain adopt --remove {name} --apply",
        )
    return found[name]


def backfill(
    database: Database,
    name: str,
    *,
    batch_size: int = BATCH_SIZE,
    on_progress: OnProgress = ignore_progress,
) -> int:
    """Carry over the rows that have no document yet, in batches of one transaction each.

    Return how many. Writes of the source continue. After an interruption, run it again: it reads
    which rows are missing. A row that cannot be carried over is listed in the comparison's
    `problems`. After many rows, the statistics that the text leg and fusion `auto` read are
    renewed.
    """
    named(database, name)
    done = read = 0
    left: list[Key] = []
    total = _count(database, name)
    on_progress(Progress(f"Backfill of {name}", 0))
    for keys in pages(database, name, batch_size, only_missing=True):
        stored, skipped = _carry_over(database, name, keys)
        read += len(keys)
        done += stored
        if skipped:
            left += keys
        on_progress(Progress(f"Backfill of {name}", min(read / max(total, 1), 1)))
    for key in left:
        # With one lock at a time, waiting cannot end in a deadlock.
        _carry_over(database, name, [key], waits=True)
    if done > total / 10:
        # The rows are there: no timeout of the role ends what follows.
        with database.connection.transaction():
            for statement in _STATISTICS:
                database.execute(statement)
    return done


def pages(
    database: Database, name: str, size: int, *, only_missing: bool = False
) -> Iterator[list[Key]]:
    """Yield the keys of the view of an adoption in pages, of all rows or those without document."""
    given = {"name": name, "after": None, "size": size, "only_missing": only_missing}
    while keys := (database.execute(_KEYS, given).fetchone() or (None,))[0]:
        yield keys
        given["after"] = keys[-1]


def compare(
    database: Database,
    name: str,
    *,
    repair: bool = False,
    most: int | None = None,
    on_progress: OnProgress = ignore_progress,
) -> Comparison:
    """Compare the rows of a source with their documents, chunks and embeddings.

    With `repair`, create missing triggers and those that do not follow the view, carry the
    differing rows over again and delete what is left over; the result counts what was found before.
    `most` limits the number of rows compared, and
    leaves out the search for documents that are left over.
    """
    named(database, name)
    found = Comparison(name)
    if repair and faults(database, name):
        database.execute(_FOLLOW, {"name": name})
    total = _count(database, name)
    on_progress(Progress(f"Comparison of {name}", 0))
    problem_keys = {one.key for one in problems(database, name) if not one.is_carried_over}
    for keys in pages(database, name, PAGE_SIZE):
        differences = [
            one for one in _differences(database, name, keys) if one[0] not in problem_keys
        ]
        found.compared += len(keys)
        for key, fields in differences:
            if fields == ["missing"]:
                found.missing += 1
            else:
                found.different += 1
            if len(found.examples) < _EXAMPLES:
                found.examples.append((key, fields))
        if repair and differences:
            _repair(database, name, [key for key, _ in differences])
        on_progress(Progress(f"Comparison of {name}", min(found.compared / max(total, 1), 1)))
        if most is not None and found.compared >= most:
            break
    else:
        left_over = database.execute(_LEFT_OVER, {"name": name}).fetchall()
        found.left_over = len(left_over)
        found.examples += [(key, ["left over"]) for key, _ in left_over[:_EXAMPLES]]
        if repair and left_over:
            _repair(database, name, [key for key, _ in left_over if key is not None])
            given = {"name": name, "external_keys": [one for _, one in left_over]}
            database.execute(_DELETE_LEFT_OVER, given)
    if repair:
        # What such a row lacked can be there now: another mapping, or other rows of its document.
        lost = [one.key for one in problems(database, name) if not one.is_carried_over]
        _repair(database, name, lost)
    found.problems = problems(database, name)
    return found


def problems(database: Database, name: str) -> list[Problem]:
    """List the rows that could not be carried over, oldest first."""
    rows = database.execute(_PROBLEMS, {"name": name}).fetchall()
    return [Problem(*row) for row in rows]


def faults(database: Database, name: str) -> list[str]:
    """List what is missing of an adoption, or switched off."""
    return [fault for (fault,) in database.execute(_FAULTS, {"name": name}).fetchall()]


def removal(database: Database, name: str) -> list[str]:
    """Return the statements that remove an adoption; its source is then as it was before."""
    named(database, name, needs_view=False)
    parts = {"view": sql.Identifier(migration.view_name(name)), "name": sql.Literal(name)}
    removing = [database.install.composed(one, **parts) for one in _REMOVAL]
    triggers = database.execute(_DROP_TRIGGERS, {"name": name}).fetchall()
    return [
        *replaced.undo(database, name),
        *(drop for (drop,) in triggers),
        *(one.as_string(database.connection) for one in removing),
    ]


def remove(database: Database, name: str) -> None:
    """Remove an adoption in one transaction."""
    run(database, removal(database, name))


def run(database: Database, statements: Sequence[str]) -> None:
    """Run statements in one transaction."""
    with database.connection.transaction():
        for statement in statements:
            database.connection.execute(statement.encode())


def _count(database: Database, name: str) -> int:
    view = sql.Identifier(migration.view_name(name))
    (count,) = database.execute(_COUNT, view=view).fetchone() or (0,)
    return int(count)


def _carry_over(
    database: Database, name: str, keys: Sequence[Key], *, waits: bool = False
) -> tuple[int, int]:
    """Carry rows over in a transaction; return how many were stored, and left to their writers."""
    stored, left = database.execute(
        _CARRY_OVER, {"name": name, "keys": list(keys), "waits": waits}
    ).fetchone() or (0, 0)
    return stored, left


def _repair(database: Database, name: str, keys: Sequence[Key]) -> None:
    for place in range(0, len(keys), BATCH_SIZE):
        batch = keys[place : place + BATCH_SIZE]
        if _carry_over(database, name, batch)[1]:
            for key in batch:
                _carry_over(database, name, [key], waits=True)


def _differences(database: Database, name: str, keys: Sequence[Key]) -> list[tuple[Key, list[str]]]:
    try:
        return database.execute(_DIFFERENCES, {"name": name, "keys": list(keys)}).fetchall()
    except (psycopg.DataError, psycopg.errors.RaiseException) as error:
        # A row cannot be read: compare one by one to find it.
        if len(keys) == 1:
            return [(keys[0], [f"unreadable: {error.diag.message_primary}"])]
        return [one for key in keys for one in _differences(database, name, [key])]
