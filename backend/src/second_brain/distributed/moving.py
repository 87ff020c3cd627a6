"""Move an install to another database or schema, while it is searched and written.

The steps: install there; record in the source the keys of rows that change; copy; carry the changed
rows over until few are left; close the source for writes, carry over the rest, compare, and store
the new place in the directory. Each step can be repeated, so a killed move continues when it is
started again. The old copy stays, closed for writes.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, LiteralString

import psycopg
from psycopg import sql

from second_brain.database import migrations, vector_index
from second_brain.database.maintenance import (
    OnProgress,
    Progress,
    ignore_progress,
    in_short_transaction,
    session,
)
from second_brain.distributed.copying import (
    NOT_COMPARED,
    TEXT_FORMATS,
    Copier,
    named,
    tables,
    together,
)
from second_brain.errors import ConfigurationError, ConflictError, SecondBrainError
from second_brain.services.connections import connect
from second_brain.services.install import SCHEMA, Database, Install

FEW_ROWS = 200
"""With at most this many changed rows left, the source is closed."""

MOST_PASSES = 20
"""After so many passes the source is closed, although it changes faster than rows are copied."""

LOCK_ATTEMPTS = 40
LOCK_PAUSE = 0.25
TRIGGER_PATIENCE = 30.0
"""Seconds in which the triggers that follow changes must get their locks."""

_TRACK: LiteralString = """
create table if not exists knowledge_internal.tenant_move (
  target text primary key,
  copied_at timestamptz,
  closed_at timestamptz
);
create table if not exists knowledge_internal.tenant_changes (
  relation text not null,
  key text not null
);
alter table knowledge_internal.tenant_move enable row level security;
alter table knowledge_internal.tenant_changes enable row level security;
revoke all on table knowledge_internal.tenant_move, knowledge_internal.tenant_changes
  from public, anon, authenticated, service_role;

-- Security definer: writers have no rights on the table of changes.
create or replace function knowledge_internal.record_tenant_change()
returns trigger
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  if tg_op in ('UPDATE', 'DELETE') then
    insert into knowledge_internal.tenant_changes (relation, key)
    values (tg_argv[0], old.id::text);
  end if;
  if tg_op = 'INSERT' or (tg_op = 'UPDATE' and new.id is distinct from old.id) then
    insert into knowledge_internal.tenant_changes (relation, key)
    values (tg_argv[0], new.id::text);
  end if;
  return null;
end
$$;

create or replace function knowledge_internal.refuse_tenant_write()
returns trigger
language plpgsql
volatile
security invoker
set search_path = pg_catalog, pg_temp
as $$
begin
  raise exception 'this tenant is moved to another database: % is closed for writes',
    tg_table_name
    using errcode = 'SB001', hint = 'Ask the directory of tenants where it is.';
end
$$;

revoke all on function knowledge_internal.record_tenant_change() from public;
"""

_UNTRACK: LiteralString = """
drop table if exists knowledge_internal.tenant_move, knowledge_internal.tenant_changes;
drop function if exists knowledge_internal.record_tenant_change() cascade;
drop function if exists knowledge_internal.refuse_tenant_write() cascade;
"""

# Marks an install into which a move copies rows. Rows in an unmarked install are not of a move.
_ARRIVE = "create table if not exists knowledge_internal.tenant_arrival (begun_at timestamptz)"
_HAS_ARRIVED = "drop table if exists knowledge_internal.tenant_arrival"
_IS_FREE = """
select to_regclass('knowledge_internal.tenant_arrival') is not null
    or not exists (select from public.knowledge_documents)
       and not exists (select from public.knowledge_chunks)
"""
_HAS_MOVE = "select to_regclass('knowledge_internal.tenant_move') is not null"
_STATE = """
select target, copied_at is not null, closed_at is not null from knowledge_internal.tenant_move
"""
_BEGIN_MOVE = """
insert into knowledge_internal.tenant_move (target) values (%s) on conflict do nothing
"""
_COPIED = "update knowledge_internal.tenant_move set copied_at = now()"
_CLOSED = "update knowledge_internal.tenant_move set closed_at = now()"
_ADOPTIONS = "select count(*) from public.knowledge_adoptions"
_CHANGES = "select count(*) from knowledge_internal.tenant_changes"


@dataclass(frozen=True, slots=True)
class Moved:
    """The result of a move: rows, and how long writes had to wait, in milliseconds."""

    rows: dict[str, int]
    changed: int
    pause: float


def move(
    source_dsn: str,
    source_schema: str,
    target_dsn: str,
    target_schema: str,
    *,
    target: str,
    switch: Callable[[], object],
    on_progress: OnProgress = ignore_progress,
) -> Moved:
    """Move an install; `switch` stores the new place in the directory.

    `target` names the new place for a later call, which continues an interrupted move. The role of
    both connection strings must own the tables. Raises ConflictError when a move to another place
    has begun, and the errors of the session.
    """
    same = _identity(source_dsn) == _identity(target_dsn) and source_schema == target_schema
    if same:
        raise ConfigurationError("the tenant is already there", remedy="Name another place.")
    with session(source_dsn, source_schema) as source:
        source.connection.execute(TEXT_FORMATS)
        _refuse_what_cannot_move(source, target)
        dimensions = migrations.stored_dimensions(source.connection, source_schema)
        on_progress(Progress("installing"))
        modules = migrations.installed_modules(source.connection, source_schema)
        migrations.apply(target_dsn, dimensions=dimensions, schema=target_schema, modules=modules)
        _begin(source, target)
        copier = _Mover(source, target_dsn, target_schema)
        if not copier.is_copied():
            _take(target_dsn, target_schema)
            indexes = vector_index.settings_like_current(source)
            vector_index.drop(target_dsn, schema=target_schema)
            with copier.opened():
                copier.copy(on_progress)
            vector_index.build(target_dsn, indexes, schema=target_schema, on_progress=on_progress)
            source.execute(_COPIED)
        with copier.opened():
            return copier.finish(switch, on_progress)


def cancel(dsn: str, schema: str = SCHEMA) -> bool:
    """Give a move up, or open a moved install for writes again; return whether there was one.

    Rows that were copied stay where they are.
    """
    with session(dsn, schema) as source:
        (found,) = source.execute(_HAS_MOVE).fetchone() or (False,)
        if found:
            with source.connection.transaction():
                source.execute(_UNTRACK)
        return bool(found)


def _identity(dsn: str) -> object:
    with connect(dsn) as connection:
        return connection.execute(
            "select pg_catalog.inet_server_addr(), pg_catalog.inet_server_port(),"
            " pg_catalog.pg_postmaster_start_time(), pg_catalog.current_database()"
        ).fetchone()


def _refuse_what_cannot_move(source: Database, target: str) -> None:
    modules = migrations.installed_modules(source.connection, source.install.schema)
    adoptions = 0
    if "adoption" in modules:
        (adoptions,) = source.execute(_ADOPTIONS).fetchone() or (0,)
    if adoptions:
        raise ConfigurationError(
            f"the install follows {adoptions} adopted table{'s'[: adoptions > 1]}, which cannot "
            "move with it",
            remedy="Move the table yourself, and run `second-brain adopt` there.",
        )
    (has_move,) = source.execute(_HAS_MOVE).fetchone() or (False,)
    begun = source.execute(_STATE).fetchone() if has_move else None
    if begun is not None and begun[0] != target:
        raise ConflictError(
            f"a move of this tenant to {begun[0]} has begun",
            remedy="Continue that one, or give it up: `second-brain server tenants move ID "
            "--cancel`.",
        )


def _begin(source: Database, target: str) -> None:
    """Record changes from now on, in the same transaction as the writes that make them."""
    in_short_transaction(source, lambda: source.execute(_TRACK), patience=TRIGGER_PATIENCE)
    for table in tables(source):
        if table.is_tracked:
            in_short_transaction(
                source,
                lambda table=table: source.execute(  # type: ignore[misc]
                    """
                    create or replace trigger record_tenant_change
                    after insert or update or delete on {table}
                    for each row execute function
                      knowledge_internal.record_tenant_change({name})
                    """,
                    table=named(source.install, table),
                    name=sql.Literal(table.name),
                ),
                patience=TRIGGER_PATIENCE,
            )
    source.execute(_BEGIN_MOVE, [target])


def _take(dsn: str, schema: str) -> None:
    """Claim the install at the target, which must be empty or the old copy of a moved tenant."""
    with session(dsn, schema) as target:
        (is_free,) = target.execute(_IS_FREE).fetchone() or (False,)
        if not is_free and not closed(target.connection, schema):
            raise ConfigurationError(
                "the install at the target has documents, which the move would delete",
                remedy="Name another schema or database, or empty that one.",
            )
        with target.connection.transaction():
            target.execute(_UNTRACK)
            target.execute(_ARRIVE)


class _Mover(Copier):
    """Copies an install, follows its changes, and closes it."""

    def is_copied(self) -> bool:
        """Whether an earlier run has copied all rows."""
        state = self._source.execute(_STATE).fetchone()
        return state is not None and bool(state[1])

    def finish(self, switch: Callable[[], object], on_progress: OnProgress) -> Moved:
        """Carry changed rows over, close the source, carry over the rest, compare and switch."""
        changed = 0
        for _ in range(MOST_PASSES):
            (left,) = self._source.execute(_CHANGES).fetchone() or (0,)
            if left <= FEW_ROWS:
                break
            on_progress(Progress("carrying changed rows over"))
            changed += self._carry()
        on_progress(Progress("comparing"))
        self._compare_unchanged()
        on_progress(Progress("switching"))
        for attempt in range(LOCK_ATTEMPTS):
            begun = time.monotonic()
            try:
                changed += self._close()
            except psycopg.errors.LockNotAvailable:
                if attempt + 1 == LOCK_ATTEMPTS:
                    raise
                time.sleep(LOCK_PAUSE)
                continue
            break
        switch()
        pause = (time.monotonic() - begun) * 1000
        self._source.execute("drop function knowledge_internal.record_tenant_change() cascade")
        self._target.execute(_HAS_ARRIVED)
        return Moved(self._counts(self._target), changed, pause)

    def _close(self) -> int:
        """Close the source for writes and carry over what has changed until then."""
        source = self._source.connection
        with self._snapshot():
            source.execute("set local lock_timeout = '500ms'")
            source.execute(
                sql.SQL("lock table {} in share row exclusive mode").format(
                    sql.SQL(", ").join(named(self._source.install, one) for one in self._tables)
                )
            )
            self._source.connection.execute(
                together(
                    self._source.install.composed(
                        """
                        create or replace trigger refuse_tenant_write
                        before insert or update or delete or truncate on {table}
                        for each statement execute function
                          knowledge_internal.refuse_tenant_write()
                        """,
                        table=named(self._source.install, table),
                    )
                    for table in self._tables
                    if table.name not in NOT_COMPARED
                )
            )
            changed = self._apply_changes(with_small_tables=True)
            here, there = self._counts(self._source), self._counts(self._target)
            if here != there:
                wrong = [name for name in here if here[name] != there[name]]
                raise SecondBrainError(
                    f"the copy has another number of rows in {', '.join(wrong)}; nothing was "
                    "switched",
                    remedy="Start again: `second-brain server tenants move ID --cancel`, then the "
                    "move.",
                )
            self._source.execute(_CLOSED)
        return changed


def closed(connection: "psycopg.Connection[Any]", schema: str = SCHEMA) -> bool:
    """Return whether an install is the old copy of a moved tenant."""
    database = Database(connection, Install(schema))
    (found,) = database.execute(_HAS_MOVE).fetchone() or (False,)
    state = database.execute(_STATE).fetchone() if found else None
    return state is not None and bool(state[2])
