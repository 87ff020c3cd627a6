"""Move an install to another database or schema, while it is searched and written.

The steps: install there; record in the source the keys of rows that change; copy; carry the changed
rows over until few are left; close the source for writes, carry over the rest, compare, and store
the new place in the directory. Each step can be repeated, so a killed move continues when it is
started again. The old copy stays, closed for writes.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, LiteralString

import psycopg
from psycopg import sql

from second_brain.database import catalogue, migrations, vector_index
from second_brain.database.maintenance import (
    OnProgress,
    Progress,
    ignore_progress,
    session,
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

# The words are made by triggers from the chunks that are copied.
_DERIVED = frozenset({"public.knowledge_words"})
# These change with each refresh of the statistics, which reads and does not write for a user.
_NOT_COMPARED = frozenset(
    {"public.knowledge_corpus_statistics", "public.knowledge_lexeme_statistics"}
)

_TABLES: LiteralString = """
select class.oid::regclass::text as relation,
       array(
         select attribute.attname::text
           from pg_catalog.pg_attribute as attribute
          where attribute.attrelid = class.oid
            and attribute.attnum > 0
            and not attribute.attisdropped
            and attribute.attgenerated = ''
          order by attribute.attname
       ) as columns,
       coalesce(
         (
           select array_agg(attribute.attname::text order by key.place)
             from pg_catalog.pg_constraint as constraints
            cross join unnest(constraints.conkey) with ordinality as key (number, place)
             join pg_catalog.pg_attribute as attribute
               on attribute.attrelid = class.oid and attribute.attnum = key.number
            where constraints.conrelid = class.oid and constraints.contype = 'p'
         ),
         '{}'
       ) as key,
       array(
         select constraints.confrelid::regclass::text
           from pg_catalog.pg_constraint as constraints
          where constraints.conrelid = class.oid
            and constraints.contype = 'f'
            and constraints.confrelid <> class.oid
       ) as parents,
       array(
         select triggers.tgname::text
           from pg_catalog.pg_trigger as triggers
           join pg_catalog.pg_proc as called on called.oid = triggers.tgfoid
          where triggers.tgrelid = class.oid
            and not triggers.tgisinternal
            and called.proname ~ '_words$'
       ) as word_triggers,
       exists (
         select
           from pg_catalog.pg_attribute as attribute
          where attribute.attrelid = class.oid and attribute.attidentity <> ''
       ) as is_numbered
  from pg_catalog.pg_class as class
 where class.oid = to_regclass(%s)
   and class.relkind = 'r'
"""

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
_DIGEST: LiteralString = """
select count(*),
       sum(('x' || left(md5(row({columns})::text), 15))::bit(60)::bigint::numeric)
  from {table} as row_of_table
 where not exists (
         select from knowledge_internal.tenant_changes as changed
          where changed.relation = {name} and changed.key = row_of_table.id::text
       )
"""
_DIGEST_THERE: LiteralString = _DIGEST.replace("knowledge_internal.tenant_changes", "changes")
_TEXT_FORMATS: LiteralString = """
select set_config('timezone', 'UTC', false), set_config('datestyle', 'ISO', false),
       set_config('extra_float_digits', '3', false), set_config('bytea_output', 'hex', false),
       set_config('intervalstyle', 'postgres', false)
"""


@dataclass(frozen=True, slots=True)
class Moved:
    """The result of a move: rows, and how long writes had to wait, in milliseconds."""

    rows: dict[str, int]
    changed: int
    pause: float


@dataclass(frozen=True, slots=True)
class _Table:
    """A table of the install, named as in the default install."""

    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...]
    word_triggers: tuple[str, ...]
    is_numbered: bool

    @property
    def is_tracked(self) -> bool:
        """Whether changed rows are recorded; other tables are small and compared as a whole."""
        return self.key == ("id",) and self.name not in _NOT_COMPARED

    @property
    def short_name(self) -> str:
        return self.name.partition(".")[2]


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
        source.connection.execute(_TEXT_FORMATS)
        _refuse_what_cannot_move(source, target)
        dimensions = migrations.stored_dimensions(source.connection, source_schema)
        on_progress(Progress("installing"))
        migrations.apply(target_dsn, dimensions=dimensions, schema=target_schema)
        _begin(source, target)
        copier = _Copier(source, target_dsn, target_schema)
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
            remedy="Continue that one, or give it up: `second-brain tenants move ID --cancel`.",
        )


def _begin(source: Database, target: str) -> None:
    """Record changes from now on, in the same transaction as the writes that make them."""
    _with_short_lock(source, lambda: source.execute(_TRACK))
    for table in _tables(source):
        if table.is_tracked:
            _with_short_lock(
                source,
                lambda table=table: source.execute(  # type: ignore[misc]
                    """
                    create or replace trigger record_tenant_change
                    after insert or update or delete on {table}
                    for each row execute function
                      knowledge_internal.record_tenant_change({name})
                    """,
                    table=_named(source.install, table),
                    name=sql.Literal(table.name),
                ),
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


def _with_short_lock(database: Database, work: Callable[[], object]) -> None:
    """Run `work` in a transaction that does not make writes queue behind it for long."""
    for attempt in range(LOCK_ATTEMPTS):
        try:
            with database.connection.transaction():
                database.connection.execute("set local lock_timeout = '500ms'")
                work()
                return
        except psycopg.errors.LockNotAvailable:
            if attempt + 1 == LOCK_ATTEMPTS:
                raise
        time.sleep(LOCK_PAUSE)


def _tables(database: Database) -> list[_Table]:
    """Return the tables of the install, parents first."""
    names = sorted(
        name.removeprefix("table ") for name in catalogue.manifest() if name.startswith("table ")
    )
    found: dict[str, _Table] = {}
    by_relation: dict[str, str] = {}
    parents: dict[str, list[str]] = {}
    for name in names:
        if name in _DERIVED:
            continue
        real = _named(database.install, name).as_string(database.connection)
        row = database.connection.execute(_TABLES, [real]).fetchone()
        if row is None:
            raise SecondBrainError(f"the install has no table {name}")
        by_relation[row[0]] = name
        parents[name] = row[3]
        found[name] = _Table(name, tuple(row[1]), tuple(row[2]), tuple(row[4]), row[5])
    ordered: list[_Table] = []
    while len(ordered) < len(found):
        done = {one.name for one in ordered}
        ready = [
            table
            for table in found.values()
            if table.name not in done
            and {by_relation[one] for one in parents[table.name] if one in by_relation} <= done
        ]
        ordered += ready
    return ordered


def _named(install: Install, table: "_Table | str") -> sql.Identifier:
    name = table if isinstance(table, str) else table.name
    schema, _, relation = name.partition(".")
    return sql.Identifier(install.schema if schema == SCHEMA else install.internals, relation)


class _Copier:
    """Carries rows from the source to the target."""

    def __init__(self, source: Database, target_dsn: str, target_schema: str) -> None:
        self._source = source
        self._target_dsn = target_dsn
        self._target_schema = target_schema
        self._tables = _tables(source)
        self._target: Database

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Keep a session at the target open."""
        with session(self._target_dsn, self._target_schema) as target:
            target.connection.execute(_TEXT_FORMATS)
            self._target = target
            there = {one.name: one for one in _tables(target)}
            for table in self._tables:
                if there[table.name].columns != table.columns:
                    raise ConfigurationError(
                        f"{table.name} has other columns here than there",
                        remedy="Finish `second-brain reembed`, and apply the migrations here: "
                        "`second-brain migrate`.",
                    )
            yield

    def is_copied(self) -> bool:
        """Whether an earlier run has copied all rows."""
        state = self._source.execute(_STATE).fetchone()
        return state is not None and bool(state[1])

    def copy(self, on_progress: OnProgress) -> None:
        """Copy all rows as they are at one moment."""
        with self._snapshot(), self._target.connection.transaction(), self._without_triggers():
            for table in reversed(self._tables):
                self._run("delete from {table}", table)
            for table in self._tables:
                on_progress(Progress(f"copying {table.short_name}"))
                self._stream(table, _columns(table.columns), None)
                self._set_sequence(table)
        for table in self._tables:
            self._run("analyze {table}", table)

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
                    sql.SQL(", ").join(_named(self._source.install, one) for one in self._tables)
                )
            )
            self._source.connection.execute(
                _all(
                    self._source.install.composed(
                        """
                        create or replace trigger refuse_tenant_write
                        before insert or update or delete or truncate on {table}
                        for each statement execute function
                          knowledge_internal.refuse_tenant_write()
                        """,
                        table=_named(self._source.install, table),
                    )
                    for table in self._tables
                    if table.name not in _NOT_COMPARED
                )
            )
            changed = self._apply_changes(with_small_tables=True)
            here, there = self._counts(self._source), self._counts(self._target)
            if here != there:
                wrong = [name for name in here if here[name] != there[name]]
                raise SecondBrainError(
                    f"the copy has another number of rows in {', '.join(wrong)}; nothing was "
                    "switched",
                    remedy="Start again: `second-brain tenants move ID --cancel`, then the move.",
                )
            self._source.execute(_CLOSED)
        return changed

    def _carry(self) -> int:
        with self._snapshot():
            return self._apply_changes(with_small_tables=False)

    def _apply_changes(self, *, with_small_tables: bool) -> int:
        """Apply the recorded changes of this snapshot at the target; return how many keys."""
        with self._target.connection.transaction(), self._without_triggers():
            self._fetch_changes()
            staged = [
                one for one in self._tables if one.is_tracked or (with_small_tables and one.key)
            ]
            # Together, because each round trip makes writes wait longer.
            target = self._target.connection
            target.execute(_all(self._staging_table(one) for one in staged))
            for table in staged:
                self._stage(table)
            deletions = [self._deletion_of_missing(one) for one in reversed(staged)]
            target.execute(_all([*deletions, *(self._storing_of_staged(one) for one in staged)]))
            for table in staged:
                self._set_sequence(table)
            (count,) = self._target.connection.execute(
                "select count(*) from pg_temp.changes"
            ).fetchone() or (0,)
        # Exactly those that this snapshot sees. After a crash before the commit they are applied
        # once more.
        self._source.execute("delete from knowledge_internal.tenant_changes")
        return int(count)

    def _fetch_changes(self) -> None:
        self._target.connection.execute(
            "create temp table changes (relation text, key text) on commit drop"
        )
        self._pipe(
            self._source.install.composed(
                """
                copy (
                  select distinct relation, key from knowledge_internal.tenant_changes
                ) to stdout (format binary)
                """
            ),
            sql.SQL("copy pg_temp.changes (relation, key) from stdin (format binary)"),
        )

    def _staging_table(self, table: _Table) -> sql.Composed:
        return self._composed(
            "create temp table {staging} (like {table}) on commit drop",
            table,
            staging=_staging(table),
        )

    def _stage(self, table: _Table) -> None:
        condition = (
            self._source.install.composed(
                """
                where row_of_table.id::text in (
                  select key from knowledge_internal.tenant_changes where relation = {name}
                )
                """,
                name=sql.Literal(table.name),
            )
            if table.is_tracked
            else None
        )
        self._stream(table, _columns(table.columns), condition, into=_staging(table))

    def _deletion_of_missing(self, table: _Table) -> sql.Composed:
        if table.is_tracked:
            return self._composed(
                """
                delete from {table} as stored
                 where stored.id::text in (select key from pg_temp.changes where relation = {name})
                   and not exists (select from {staging} as staged where staged.id = stored.id)
                """,
                table,
                name=sql.Literal(table.name),
                staging=_staging(table),
            )
        return self._composed(
            """
            delete from {table} as stored
             where not exists (select from {staging} as staged where {is_same})
            """,
            table,
            staging=_staging(table),
            is_same=sql.SQL(" and ").join(
                sql.SQL("staged.{} = stored.{}").format(sql.Identifier(one), sql.Identifier(one))
                for one in table.key
            ),
        )

    def _storing_of_staged(self, table: _Table) -> sql.Composed:
        changing = [one for one in table.columns if one not in table.key]
        return self._composed(
            """
            insert into {table} ({columns}) overriding system value
            select {columns} from {staging}
            on conflict ({key}) do {action}
            """,
            table,
            columns=_columns(table.columns),
            staging=_staging(table),
            key=_columns(table.key),
            action=sql.SQL("update set {}").format(
                sql.SQL(", ").join(
                    sql.SQL("{} = excluded.{}").format(sql.Identifier(one), sql.Identifier(one))
                    for one in changing
                )
            )
            if changing
            else sql.SQL("nothing"),
        )

    def _compare_unchanged(self) -> None:
        """Compare a digest of the rows that are not among the recorded changes."""
        with self._snapshot(), self._target.connection.transaction():
            self._fetch_changes()
            for table in self._tables:
                if not table.is_tracked:
                    continue
                here = self._digest(self._source, table, _DIGEST)
                there = self._digest(self._target, table, _DIGEST_THERE)
                if here != there:
                    raise SecondBrainError(
                        f"the copy of {table.name} differs; nothing was switched",
                        remedy="Start again: `second-brain tenants move ID --cancel`, then the "
                        "move.",
                    )

    def _digest(self, database: Database, table: _Table, digest: LiteralString) -> object:
        return database.execute(
            digest,
            table=_named(database.install, table),
            columns=_columns(table.columns),
            name=sql.Literal(table.name),
        ).fetchone()

    def _counts(self, database: Database) -> dict[str, int]:
        counts = {}
        for table in self._tables:
            if table.name not in _NOT_COMPARED:
                row = database.execute(
                    "select count(*) from {table}", table=_named(database.install, table)
                ).fetchone()
                counts[table.short_name] = 0 if row is None else int(row[0])
        return counts

    def _stream(
        self,
        table: _Table,
        columns: sql.Composable,
        condition: sql.Composable | None,
        into: sql.Composable | None = None,
    ) -> None:
        self._pipe(
            sql.SQL("copy (select {} from {} as row_of_table {}) to stdout (format binary)").format(
                columns, _named(self._source.install, table), condition or sql.SQL("")
            ),
            sql.SQL("copy {} ({}) from stdin (format binary)").format(
                into or _named(self._target.install, table), columns
            ),
        )

    def _pipe(self, reading: sql.Composed, writing: sql.SQL | sql.Composed) -> None:
        with (
            self._source.connection.cursor() as here,
            self._target.connection.cursor() as there,
            here.copy(reading) as rows,
            there.copy(writing) as stored,
        ):
            for piece in rows:
                stored.write(piece)

    def _set_sequence(self, table: _Table) -> None:
        """Let a numbered table continue after the copied numbers."""
        if not table.is_numbered:
            return
        name = _named(self._target.install, table).as_string(self._target.connection)
        for column in table.key:
            row = self._target.connection.execute(
                "select pg_catalog.pg_get_serial_sequence(%s, %s)", [name, column]
            ).fetchone()
            if row is not None and row[0] is not None:
                self._run(
                    "select setval({sequence}, max({column}) + 1, false) from {table}"
                    " having max({column}) is not null",
                    table,
                    sequence=sql.Literal(row[0]),
                    column=sql.Identifier(column),
                )

    @contextmanager
    def _snapshot(self) -> Iterator[None]:
        """Read the source as it is at one moment."""
        with self._source.connection.transaction():
            self._source.connection.execute("set transaction isolation level repeatable read")
            yield

    @contextmanager
    def _without_triggers(self) -> Iterator[None]:
        """Store rows at the target as they are: what triggers compute was computed already."""
        install = self._target.install
        tables = [(table, _named(install, table)) for table in self._tables]
        disable = [
            install.composed("alter table {table} disable trigger user", table=name)
            for _, name in tables
        ]
        words = [
            install.composed(
                "alter table {table} enable trigger {trigger}",
                table=name,
                trigger=sql.Identifier(trigger),
            )
            for table, name in tables
            for trigger in table.word_triggers
        ]
        self._target.connection.execute(_all([*disable, *words]))
        yield
        self._target.connection.execute(
            _all(
                install.composed("alter table {table} enable trigger user", table=name)
                for _, name in tables
            )
        )

    def _run(self, text: LiteralString, table: _Table, **parts: sql.Composable) -> None:
        self._target.connection.execute(self._composed(text, table, **parts))

    def _composed(
        self, text: LiteralString, table: _Table, **parts: sql.Composable
    ) -> sql.Composed:
        parts["table"] = _named(self._target.install, table)
        return self._target.install.composed(text, **parts)


def _staging(table: _Table) -> sql.Identifier:
    return sql.Identifier("pg_temp", f"staged_{table.short_name}")


def _all(statements: Iterable[sql.Composed]) -> sql.Composed:
    """Return statements to be sent at once."""
    return sql.SQL(";").join(statements)


def _columns(names: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(sql.Identifier(one) for one in names)


def closed(connection: "psycopg.Connection[Any]", schema: str = SCHEMA) -> bool:
    """Return whether an install is the old copy of a moved tenant."""
    database = Database(connection, Install(schema))
    (found,) = database.execute(_HAS_MOVE).fetchone() or (False,)
    state = database.execute(_STATE).fetchone() if found else None
    return state is not None and bool(state[2])
