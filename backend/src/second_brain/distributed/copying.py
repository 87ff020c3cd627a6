"""Carry the rows of an install to another, with those that change meanwhile: for `moving`.

Rows are stored as they are. The keys of changed rows are in `knowledge_internal.tenant_changes`.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import LiteralString

from psycopg import sql

from second_brain.database import catalogue, migrations
from second_brain.database.maintenance import (
    OnProgress,
    Progress,
    session,
)
from second_brain.errors import ConfigurationError, SecondBrainError
from second_brain.services.install import SCHEMA, Database, Install

# The words are made by triggers from the chunks that are copied.
_DERIVED = frozenset({"public.knowledge_words"})
# These change with each refresh of the statistics, which reads and does not write for a user.
NOT_COMPARED = frozenset(
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
TEXT_FORMATS: LiteralString = """
select set_config('timezone', 'UTC', false), set_config('datestyle', 'ISO', false),
       set_config('extra_float_digits', '3', false), set_config('bytea_output', 'hex', false),
       set_config('intervalstyle', 'postgres', false)
"""


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the install, named as in the default install."""

    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...]
    word_triggers: tuple[str, ...]
    is_numbered: bool

    @property
    def is_tracked(self) -> bool:
        """Whether changed rows are recorded; other tables are small and compared as a whole."""
        return self.key == ("id",) and self.name not in NOT_COMPARED

    @property
    def short_name(self) -> str:
        """The name without its schema."""
        return self.name.partition(".")[2]


def tables(database: Database) -> list[Table]:
    """Return the tables of the install, parents first."""
    installed = migrations.installed_modules(database.connection, database.install.schema)
    expected = catalogue.manifest().of(installed)
    names = sorted(name.removeprefix("table ") for name in expected if name.startswith("table "))
    found: dict[str, Table] = {}
    by_relation: dict[str, str] = {}
    parents: dict[str, list[str]] = {}
    for name in names:
        if name in _DERIVED:
            continue
        real = named(database.install, name).as_string(database.connection)
        row = database.connection.execute(_TABLES, [real]).fetchone()
        if row is None:
            raise SecondBrainError(f"the install has no table {name}")
        by_relation[row[0]] = name
        parents[name] = row[3]
        found[name] = Table(name, tuple(row[1]), tuple(row[2]), tuple(row[4]), row[5])
    ordered: list[Table] = []
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


def named(install: Install, table: "Table | str") -> sql.Identifier:
    """Return the name of a table in this install."""
    name = table if isinstance(table, str) else table.name
    schema, _, relation = name.partition(".")
    return sql.Identifier(install.schema if schema == SCHEMA else install.internals, relation)


class Copier:
    """Carries rows from the source to the target."""

    def __init__(self, source: Database, target_dsn: str, target_schema: str) -> None:
        self._source = source
        self._target_dsn = target_dsn
        self._target_schema = target_schema
        self._tables = tables(source)
        self._target: Database

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Keep a session at the target open."""
        with session(self._target_dsn, self._target_schema) as target:
            target.connection.execute(TEXT_FORMATS)
            self._target = target
            there = {one.name: one for one in tables(target)}
            for table in self._tables:
                if there[table.name].columns != table.columns:
                    raise ConfigurationError(
                        f"{table.name} has other columns here than there",
                        remedy="Finish `second-brain corpus reembed`, and apply the migrations "
                        "here: `second-brain migrate`.",
                    )
            yield

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
            target.execute(together(self._staging_table(one) for one in staged))
            for table in staged:
                self._stage(table)
            deletions = [self._deletion_of_missing(one) for one in reversed(staged)]
            target.execute(
                together([*deletions, *(self._storing_of_staged(one) for one in staged)])
            )
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

    def _staging_table(self, table: Table) -> sql.Composed:
        return self._composed(
            "create temp table {staging} (like {table}) on commit drop",
            table,
            staging=_staging(table),
        )

    def _stage(self, table: Table) -> None:
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

    def _deletion_of_missing(self, table: Table) -> sql.Composed:
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

    def _storing_of_staged(self, table: Table) -> sql.Composed:
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
                        remedy="Start again: `second-brain server tenants move ID --cancel`, then "
                        "the move.",
                    )

    def _digest(self, database: Database, table: Table, digest: LiteralString) -> object:
        return database.execute(
            digest,
            table=named(database.install, table),
            columns=_columns(table.columns),
            name=sql.Literal(table.name),
        ).fetchone()

    def _counts(self, database: Database) -> dict[str, int]:
        counts = {}
        for table in self._tables:
            if table.name not in NOT_COMPARED:
                row = database.execute(
                    "select count(*) from {table}", table=named(database.install, table)
                ).fetchone()
                counts[table.short_name] = 0 if row is None else int(row[0])
        return counts

    def _stream(
        self,
        table: Table,
        columns: sql.Composable,
        condition: sql.Composable | None,
        into: sql.Composable | None = None,
    ) -> None:
        self._pipe(
            sql.SQL("copy (select {} from {} as row_of_table {}) to stdout (format binary)").format(
                columns, named(self._source.install, table), condition or sql.SQL("")
            ),
            sql.SQL("copy {} ({}) from stdin (format binary)").format(
                into or named(self._target.install, table), columns
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

    def _set_sequence(self, table: Table) -> None:
        """Let a numbered table continue after the copied numbers."""
        if not table.is_numbered:
            return
        name = named(self._target.install, table).as_string(self._target.connection)
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
        own = [(table, named(install, table)) for table in self._tables]
        disable = [
            install.composed("alter table {table} disable trigger user", table=name)
            for _, name in own
        ]
        words = [
            install.composed(
                "alter table {table} enable trigger {trigger}",
                table=name,
                trigger=sql.Identifier(trigger),
            )
            for table, name in own
            for trigger in table.word_triggers
        ]
        self._target.connection.execute(together([*disable, *words]))
        yield
        self._target.connection.execute(
            together(
                install.composed("alter table {table} enable trigger user", table=name)
                for _, name in own
            )
        )

    def _run(self, text: LiteralString, table: Table, **parts: sql.Composable) -> None:
        self._target.connection.execute(self._composed(text, table, **parts))

    def _composed(self, text: LiteralString, table: Table, **parts: sql.Composable) -> sql.Composed:
        parts["table"] = named(self._target.install, table)
        return self._target.install.composed(text, **parts)


def _staging(table: Table) -> sql.Identifier:
    return sql.Identifier("pg_temp", f"staged_{table.short_name}")


def together(statements: Iterable[sql.Composed]) -> sql.Composed:
    """Return statements to be sent at once."""
    return sql.SQL(";").join(statements)


def _columns(names: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(sql.Identifier(one) for one in names)
