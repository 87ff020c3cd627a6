"""The tables of an adoption as the catalogues describe them, and what a column can become."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psycopg
from psycopg import sql

from second_brain.errors import ConfigurationError
from second_brain.services.install import Database

_TABLE = """
select class.oid, class.relkind::text, namespace.nspname, class.relname, class.relrowsecurity,
       class.relispartition
  from pg_catalog.pg_class as class
  join pg_catalog.pg_namespace as namespace on namespace.oid = class.relnamespace
 where class.oid = to_regclass(%s)
"""
_COLUMNS = """
select attribute.attname, type.typname, format_type(attribute.atttypid, attribute.atttypmod),
       attribute.atttypmod, attribute.attnotnull, attribute.attgenerated <> ''
  from pg_catalog.pg_attribute as attribute
  join pg_catalog.pg_type as type on type.oid = attribute.atttypid
 where attribute.attrelid = %s
   and attribute.attnum > 0
   and not attribute.attisdropped
 order by attribute.attnum
"""
# One column of a unique index each. Of a partitioned table, also one whose index has columns of the
# partitions beside it, where its default makes each value once.
_KEYS = """
select attribute.attname, bool_or(index.indisprimary)
  from pg_catalog.pg_index as index
  join pg_catalog.pg_class as class on class.oid = index.indrelid
  join pg_catalog.pg_attribute as attribute
    on attribute.attrelid = class.oid and attribute.attnum = index.indkey[0]
  left join pg_catalog.pg_attrdef as given
    on given.adrelid = class.oid and given.adnum = attribute.attnum
 where class.oid = %s
   and index.indisvalid
   and index.indpred is null
   and (
     index.indisunique and index.indnkeyatts = 1
     or class.relkind = 'p' and (
          attribute.attidentity <> ''
          or pg_get_expr(given.adbin, given.adrelid) ~ 'nextval|uuid'
        )
   )
 group by attribute.attname
 order by bool_or(index.indisprimary) desc, min(index.indexrelid)
"""
_REFERENCES = """
select own.attname, class.oid, format('%%I.%%I', namespace.nspname, class.relname),
       referenced.attname
  from pg_catalog.pg_constraint as foreign_key
  join pg_catalog.pg_class as class on class.oid = foreign_key.confrelid
  join pg_catalog.pg_namespace as namespace on namespace.oid = class.relnamespace
  join pg_catalog.pg_attribute as own
    on own.attrelid = foreign_key.conrelid and own.attnum = foreign_key.conkey[1]
  join pg_catalog.pg_attribute as referenced
    on referenced.attrelid = foreign_key.confrelid and referenced.attnum = foreign_key.confkey[1]
 where foreign_key.contype = 'f'
   and cardinality(foreign_key.conkey) = 1
   and foreign_key.conrelid = %s
 order by 3, own.attnum
"""
_SIMILAR = r"""
select string_agg(format('%%I.%%I', namespace.nspname, class.relname), ' or ')
  from pg_catalog.pg_class as class
  join pg_catalog.pg_namespace as namespace on namespace.oid = class.relnamespace
 where class.relkind in ('r', 'p')
   and lower(class.relname) = lower(regexp_replace(%s, '^.*\.|"', '', 'g'))
"""
_OF_TABLE = (_COLUMNS, _KEYS, _REFERENCES)
TEXTS = ("text", "varchar", "bpchar", "citext")
VECTORS = ("vector", "halfvec")
DOCUMENT_FIELDS = {
    "content": "content",
    "embedding": "embedding",
    "metadata": "metadata",
    "title": "title",
    "url": "source_url",
    "owner": "owner_id",
    "groups": "allowed_groups",
    "updated": "document_date",
    "type": "knowledge_type",
    "collection": "collection",
    "visibility": "visibility",
    "document": "document_key",
    "position": "chunk_index",
}
"""What can be mapped, each with its name in a document."""
_HIDES_ROWS = re.compile(
    r"(is_|row_|record_)?(status|state|(soft_)?deleted(_at|_on)?|archived(_at|_on)?|draft|hidden"
    r"|expire[sd](_at|_on)?|expiry(_date)?|expiration(_date)?|published(_at|_on)?|active|enabled"
    r"|disabled|valid_(to|until|from)|superseded(_at|_by)?|removed(_at)?|visibility)"
)
"""Names of columns that say which rows readers of the table see."""


@dataclass(frozen=True)
class Column:
    """A column of the table: its name and types, with the modifier (dimensions of a vector)."""

    name: str
    kind: str
    type: str
    modifier: int
    not_null: bool
    is_generated: bool

    @property
    def usual_name(self) -> str:
        """The name as `deleted_at`, of `deletedAt` and `Deleted_At` too."""
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", self.name).lower()


@dataclass(frozen=True)
class Table:
    """The table to adopt."""

    oid: int
    schema: str
    name: str
    columns: Sequence[Column]
    keys: Mapping[str, bool]
    """The columns that name a row, and whether each is the primary key."""
    references: Sequence[tuple[str, int, str, str]]
    """Foreign keys of one column: the column, the other table by its oid and as SQL, its key."""
    has_row_security: bool
    is_partitioned: bool
    is_partition: bool

    @property
    def identifier(self) -> sql.Identifier:
        """The name as SQL."""
        return sql.Identifier(self.schema, self.name)

    @property
    def names(self) -> list[str]:
        """The names of its columns."""
        return [one.name for one in self.columns]

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"

    def column(self, name: str) -> Column | None:
        """Return the column of this name."""
        return next((one for one in self.columns if one.name == name), None)


@dataclass(frozen=True)
class Mapped:
    """A field of a document: the column or the expression that it is made of, and the reason."""

    field: str
    source: str
    reason: str
    column: Column | None = None
    shown: str | None = None
    """What the user reads instead of the source."""
    relation: str = "source"
    """The alias of the table that has the column: source or parent."""

    @property
    def expression(self) -> sql.Composable:
        """The value as SQL over the table, which has the alias source, and its parent."""
        if self.column is None or self.field == "visibility":
            return sql.SQL("({})").format(sql.SQL(self.source))
        value = sql.Identifier(self.relation, self.column.name)
        if self.field == "updated" and self.column.kind != "date":
            return sql.SQL("{}::date").format(value)
        if self.field in ("content", "title", "url") and self.column.kind not in TEXTS:
            return sql.SQL("{}::text").format(value)
        return value

    @property
    def name(self) -> str:
        """The name of the field in a document."""
        return DOCUMENT_FIELDS[self.field]


@dataclass(frozen=True)
class Parent:
    """The table of the documents whose chunks are rows of the adopted table.

    `column` of the adopted table has the value of `key` of this one.
    """

    table: Table
    column: str
    key: str

    @property
    def join(self) -> sql.Composable:
        """The join with the adopted table, as SQL; this table has the alias parent."""
        return sql.SQL(" left join {} as parent on parent.{} = source.{}").format(
            self.table.identifier, sql.Identifier(self.key), sql.Identifier(self.column)
        )


def read_table(database: Database, name: str) -> Table:
    """Read what is needed of a table. Raises ConfigurationError if it cannot be adopted."""
    try:
        found = database.connection.execute(_TABLE, [name]).fetchone()
    except psycopg.errors.SyntaxError as error:
        raise ConfigurationError(
            f"{name!r} is not the name of a table", remedy="Write it as in SQL: public.documents."
        ) from error
    if found is None:
        (similar,) = database.connection.execute(_SIMILAR, [name]).fetchone() or (None,)
        raise ConfigurationError(
            f"there is no table {name}",
            remedy=f"Did you mean {shlex.quote(similar)}?"
            if similar
            else "Write it as in SQL, with its schema.",
        )
    oid, kind, schema, relation, has_row_security, is_partition = found
    if kind not in ("r", "p"):
        raise ConfigurationError(
            f"{name} is not a table", remedy="A view or a foreign table cannot have the triggers."
        )
    read = [database.connection.execute(one, [oid]).fetchall() for one in _OF_TABLE]
    columns = [Column(*one) for one in read[0]]
    facts = has_row_security, kind == "p", is_partition
    return Table(oid, schema, relation, columns, dict(read[1]), read[2], *facts)


def read_parent(database: Database, table: Table, name: str, column: str | None) -> Parent:
    """Read the parent of a table. `column`: that which refers to it, if the user has said it.

    Raises ConfigurationError if nothing says how the rows of both belong together.
    """
    parent = read_table(database, name)
    found = {own: key for own, other, _, key in table.references if other == parent.oid}
    keys = [name for name, is_primary in parent.keys.items() if is_primary]
    if not found and not keys:
        raise ConfigurationError(
            f"--parent: {parent} has no key of one column",
            remedy="Leave out --parent, and map its columns by expressions: --title "
            '"(select ...)".',
        )
    if column is None and len(found) == 1:
        (column,) = found
    if column is None or table.column(column) is None:
        raise ConfigurationError(
            f"--parent: {'several columns refer' if found else 'no column refers'} from {table} to"
            f" {parent}",
            remedy="Name the column with the key of the parent: --document COLUMN.",
        )
    if column not in found and not keys:
        raise ConfigurationError(
            f"--parent: {parent} has no primary key of one column",
            remedy=f"Add a foreign key from {table} to it.",
        )
    return Parent(parent, column, found.get(column) or keys[0])


def hiding_columns(table: Table, parent: Parent | None = None) -> list[str]:
    """List the columns whose names say that they hide rows from readers of the tables."""
    own = [one.name for one in table.columns if _HIDES_ROWS.fullmatch(one.usual_name)]
    if parent is None:
        return own
    of_parent = [one for one in hiding_columns(parent.table) if one != "visibility"]
    return own + [f"parent.{one}" for one in of_parent]
