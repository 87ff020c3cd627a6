"""What a table's columns become in a document: read from the catalogues, proposed with reasons.

It only reads. `migration` writes the SQL.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from second_brain.adoption.layouts import LAYOUTS, USUAL_NAMES
from second_brain.database import migrations
from second_brain.errors import ConfigurationError, MigrationMissingError
from second_brain.services.install import Database

FIELDS = (
    "key",
    "content",
    "embedding",
    "metadata",
    "title",
    "url",
    "owner",
    "groups",
    "updated",
    "collection",
)
"""What can be mapped, by the names of the options; only layouts map the collection."""

_TABLE = """
select class.oid, class.relkind::text, namespace.nspname, class.relname,
       class.relrowsecurity, row_security_active(class.oid),
       pg_catalog.pg_get_userbyid(class.relowner),
       case when class.relispartition then 'its parent table'
            when class.relkind = 'r' and class.relhassubclass then 'its child tables' end
  from pg_catalog.pg_class as class
  join pg_catalog.pg_namespace as namespace on namespace.oid = class.relnamespace
 where class.oid = to_regclass(%s)
"""
_COLUMNS = """
select attribute.attname, type.typname, format_type(attribute.atttypid, attribute.atttypmod),
       attribute.atttypmod, attribute.attnotnull
  from pg_catalog.pg_attribute as attribute
  join pg_catalog.pg_type as type on type.oid = attribute.atttypid
 where attribute.attrelid = %s
   and attribute.attnum > 0
   and not attribute.attisdropped
 order by attribute.attnum
"""
_UNIQUE_KEYS = """
select index.indisprimary,
       array(
         select attribute.attname::text
           from unnest(index.indkey::int2[]) with ordinality as part (number, place)
           join pg_catalog.pg_attribute as attribute
             on attribute.attrelid = index.indrelid and attribute.attnum = part.number
          where part.place <= index.indnkeyatts
          order by part.place
       )
  from pg_catalog.pg_index as index
 where index.indrelid = %s
   and index.indisunique
   and index.indisvalid
   and index.indpred is null
   and index.indexprs is null
 order by index.indisprimary desc, index.indnkeyatts, index.indexrelid
"""
_SAMPLE = "select {columns} from {table} as source limit 20"
_DIMENSIONS = """
select extensions.vector_dims(sampled.embedding)
  from (
    select (to_jsonb(mapped) ->> 'embedding')::extensions.vector as embedding
      from (select {embedding} as embedding from {table} as source) as mapped
     where mapped.embedding is not null
     limit 1
  ) as sampled
"""

_TEXTS = ("text", "varchar", "bpchar", "citext")
_VECTORS = ("vector", "halfvec")
_NUMBERS = ("_float4", "_float8", "_numeric")
_TYPES = {
    "content": _TEXTS,
    "embedding": (*_VECTORS, *_NUMBERS),
    "metadata": ("jsonb", "json"),
    "title": _TEXTS,
    "url": _TEXTS,
    "owner": ("uuid",),
    "groups": ("_text", "_varchar"),
    "updated": ("date", "timestamp", "timestamptz"),
}
_DOCUMENT_FIELDS = {
    "title": "title",
    "url": "source_url",
    "owner": "owner_id",
    "groups": "allowed_groups",
    "updated": "document_date",
    "metadata": "metadata",
    "content": "content",
    "embedding": "embedding",
    "collection": "collection",
}
NOT_MAPPED = "none"
"""The value of an option that leaves a field out."""


@dataclass(frozen=True)
class Column:
    """A column of the table: its name and types, with the modifier (dimensions of a vector)."""

    name: str
    kind: str
    type: str
    modifier: int
    not_null: bool


@dataclass(frozen=True)
class Table:
    """The table to adopt."""

    oid: int
    schema: str
    name: str
    columns: Sequence[Column]
    keys: Sequence[tuple[bool, Sequence[str]]]
    """Whether it is the primary key, and its columns: for each unique index."""
    has_row_security: bool
    owner: str
    elsewhere: str | None
    """Other tables through which its rows are written, without its triggers."""

    @property
    def identifier(self) -> sql.Identifier:
        """The name as SQL."""
        return sql.Identifier(self.schema, self.name)

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

    @property
    def expression(self) -> sql.Composable:
        """The value as SQL over the table, which has the alias source."""
        if self.column is None:
            return sql.SQL("({})").format(sql.SQL(self.source))
        value = sql.SQL("source.{}").format(sql.Identifier(self.column.name))
        if self.field == "updated" and self.column.kind != "date":
            return sql.SQL("{}::date").format(value)
        if self.field in ("content", "title", "url") and self.column.kind not in _TEXTS:
            return sql.SQL("{}::text").format(value)
        return value

    @property
    def name(self) -> str:
        """The name of the field in a document."""
        return _DOCUMENT_FIELDS[self.field]


@dataclass(frozen=True)
class Proposal:
    """How a table is to be adopted; `warnings` are for the user to read."""

    table: Table
    key: Sequence[str]
    key_reason: str
    fields: Sequence[Mapped]
    warnings: Sequence[str]

    def field(self, name: str) -> Mapped | None:
        """Return what a field is mapped to."""
        return next((one for one in self.fields if one.field == name), None)


def propose(
    database: Database,
    table_name: str,
    given: Mapping[str, str | None],
    layout: str | None = None,
    *,
    uses_embeddings: bool = True,
    is_public: bool = False,
) -> Proposal:
    """Propose the mapping of a table; `given` has the values of the options by field.

    `is_public`: all its documents will be public.

    Raises ConfigurationError for a table that cannot be adopted, with what to do.
    """
    table = read_table(database, table_name)
    options = {name: value for name, value in given.items() if value is not None}
    chosen = _of_layout(table, layout, options) if layout else {}
    chosen.update({name: (value, f"--{name}") for name, value in options.items()})
    key, key_reason = _key(table, chosen.pop("key", None))
    mapped = [one for name in FIELDS[1:] if (one := _field(table, name, chosen, key, layout))]
    if not uses_embeddings:
        mapped = [one for one in mapped if one.field != "embedding"]
    if not any(one.field == "content" for one in mapped):
        raise ConfigurationError(
            f"{table} has no column of texts that could be the content",
            remedy="Name it: --content COLUMN, or an expression such as "
            "--content \"question || ' ' || answer\".",
        )
    _check_expressions(database, table, mapped)
    _check_dimensions(database, table, mapped)
    return Proposal(table, key, key_reason, mapped, list(_warnings(table, mapped, is_public)))


def read_table(database: Database, name: str) -> Table:
    """Read what is needed of a table. Raises ConfigurationError if it cannot be adopted."""
    try:
        found = database.connection.execute(_TABLE, [name]).fetchone()
    except psycopg.errors.SyntaxError as error:
        raise ConfigurationError(
            f"{name!r} is not the name of a table", remedy="Write it as in SQL: public.documents."
        ) from error
    if found is None:
        raise ConfigurationError(
            f"there is no table {name}", remedy="Write it as in SQL, with its schema."
        )
    oid, kind, schema, relation, has_row_security, is_hidden, owner, elsewhere = found
    if kind not in ("r", "p"):
        raise ConfigurationError(
            f"{name} is not a table", remedy="A view or a foreign table cannot have the triggers."
        )
    if is_hidden:
        raise ConfigurationError(
            f"row level security of {name} hides rows from this role",
            remedy=f"Connect as its owner, {owner}.",
        )
    columns = database.connection.execute(_COLUMNS, [oid]).fetchall()
    keys = database.connection.execute(_UNIQUE_KEYS, [oid]).fetchall()
    return Table(
        oid,
        schema,
        relation,
        [Column(*one) for one in columns],
        keys,
        has_row_security,
        owner,
        elsewhere,
    )


def _of_layout(table: Table, name: str, options: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    layout = LAYOUTS[name]
    required = {field: value for field, value in layout.required.items() if field not in options}
    missing = [one for one in required.values() if table.column(one) is None]
    if missing:
        raise ConfigurationError(
            f"{table} is not of the layout {name} ({layout.summary}): it has no column "
            f"{', '.join(missing)}",
            remedy="Leave out --from, or name the columns (--key, --content, --embedding, ...).",
        )
    columns = {column.name for column in table.columns}
    schema = sql.Identifier(table.schema).as_string(None)
    fields = {
        field: value.replace("{schema}", schema)
        for field, value in {**required, **layout.optional}.items()
        if columns.intersection(_words(value))
    }
    if layout.keeps_other_columns and "metadata" in fields:
        used = {word for value in (*fields.values(), *options.values()) for word in _words(value)}
        others = [
            one.name
            for one in table.columns
            if one.name not in used and one.kind not in (*_VECTORS, "tsvector")
        ]
        if others:
            fields["metadata"] = _with_columns(fields["metadata"], others)
    return {field: (value, f"the layout {name}") for field, value in fields.items()}


def _words(expression: str) -> Sequence[str]:
    return re.findall(r"\w+", re.sub("'[^']*'", "", expression))


def _with_columns(metadata: str, columns: Sequence[str]) -> str:
    pairs = sql.SQL(", ").join(
        sql.SQL("{}, source.{}").format(sql.Literal(name), sql.Identifier(name)) for name in columns
    )
    return (
        f"coalesce(nullif({metadata}::jsonb, 'null'), '{{}}')"
        f" || jsonb_strip_nulls(jsonb_build_object({pairs.as_string(None)}))"
    )


def _key(table: Table, given: tuple[str, str] | None) -> tuple[Sequence[str], str]:
    nullable = {one.name for one in table.columns if not one.not_null}
    if given is not None:
        names = [name.strip() for name in given[0].split(",")]
        names = names if table.column(given[0]) is None else [given[0]]
        unknown = [name for name in names if table.column(name) is None]
        if unknown:
            raise ConfigurationError(
                f"--key: {table} has no column {', '.join(unknown)}",
                remedy="Name one column, or several with commas between them.",
            )
        if not any(set(columns) == set(names) for _, columns in table.keys):
            raise ConfigurationError(
                f"--key: {table} has no unique index on ({', '.join(names)})",
                remedy="Name the columns of its primary key, or create a unique index on these.",
            )
        for name in names:
            _refuse_nullable(table, name, nullable)
        return names, given[1]
    for is_primary, columns in table.keys:
        if not nullable.intersection(columns):
            return columns, "the primary key" if is_primary else "unique and not null"
    for _, columns in table.keys:
        for name in columns:
            _refuse_nullable(table, name, nullable)
    identifier = table.identifier.as_string(None)
    raise ConfigurationError(
        f"{table} has no key: no primary key, and no unique index",
        remedy=f"Run: alter table {identifier} add primary key (id)"
        if table.column("id")
        else f"Run: alter table {identifier} add column id bigint generated always as identity"
        " primary key",
    )


def _refuse_nullable(table: Table, name: str, nullable: Iterable[str]) -> None:
    if name in nullable:
        raise ConfigurationError(
            f"{table}: the key column {name} can be null",
            remedy=f"Run: alter table {table.identifier.as_string(None)} alter column"
            f" {sql.Identifier(name).as_string(None)} set not null",
        )


def _field(
    table: Table,
    name: str,
    chosen: Mapping[str, tuple[str, str]],
    key: Sequence[str],
    layout: str | None,
) -> Mapped | None:
    if name in chosen:
        source, reason = chosen[name]
        if source == NOT_MAPPED:
            return None
        return Mapped(name, source, reason, table.column(source))
    if layout is not None or name not in USUAL_NAMES:
        return None
    usable = [one for one in table.columns if one.kind in _TYPES[name] and one.name not in key]
    for usual in USUAL_NAMES[name]:
        for column in usable:
            if column.name.lower() == usual:
                return Mapped(name, column.name, f"{column.type}, by its name", column)
    if name == "embedding":
        usable = [one for one in usable if one.kind in _VECTORS]
    if name in ("content", "embedding", "metadata") and len(usable) == 1:
        (column,) = usable
        return Mapped(name, column.name, f"the only column of type {column.type}", column)
    return None


def _check_expressions(database: Database, table: Table, mapped: Sequence[Mapped]) -> None:
    for one in mapped:
        statement = sql.SQL(_SAMPLE).format(columns=one.expression, table=table.identifier)
        try:
            database.connection.execute(statement)
        except psycopg.Error as error:
            raise ConfigurationError(
                f"--{one.field}: {one.source!r} is not a column of {table} and not an expression"
                f" over its columns: {error.diag.message_primary}",
                remedy="Name a column, or write an expression such as \"metadata ->> 'title'\".",
            ) from error


def _check_dimensions(database: Database, table: Table, mapped: Sequence[Mapped]) -> None:
    embedding = next((one for one in mapped if one.field == "embedding"), None)
    stored = migrations.stored_dimensions(database.connection, database.install.schema)
    if stored is None:
        raise MigrationMissingError(
            f"the database has no knowledge tables in schema {database.install.schema}",
            remedy="Apply the migrations first: `second-brain migrate`, or `supabase db push`.",
        )
    if embedding is None:
        return
    dimensions = -1
    if embedding.column is not None and embedding.column.kind in _VECTORS:
        dimensions = embedding.column.modifier
    if dimensions == -1:
        try:
            row = database.execute(
                _DIMENSIONS, embedding=embedding.expression, table=table.identifier
            ).fetchone()
        except psycopg.DataError as error:
            raise ConfigurationError(
                f"--embedding: {embedding.source} is not a vector: {error.diag.message_primary}",
                remedy="Name a column of vectors or of numbers, or use --embed.",
            ) from error
        dimensions = stored if row is None else row[0]
    if dimensions != stored:
        raise ConfigurationError(
            f"{embedding.source} of {table} has {dimensions} dimensions, the corpus has {stored}",
            remedy="Use --embed to embed the texts again with the model of the corpus, or install "
            f"a corpus of {dimensions} dimensions in a schema of its own (--schema).",
        )


def _warnings(table: Table, mapped: Sequence[Mapped], is_public: bool) -> Iterable[str]:
    fields: dict[str, Any] = {one.field: one for one in mapped}
    if table.has_row_security:
        yield (
            f"The policies of {table} hold in search_visible_knowledge_chunks (in place, after "
            "let_search); in other searches visibility, owner and groups decide."
        )
    if table.elsewhere:
        yield (
            f"Rows that are written through {table.elsewhere} are not followed: `adopt --check "
            "--repair` carries them over. Of partitions, adopt the partitioned table."
        )
    if "owner" not in fields and "groups" not in fields and not is_public:
        yield (
            "There is no owner and no group: only service_role finds private documents. "
            "Map them with --owner or --groups, or use --visibility public if everyone may see "
            "all rows."
        )
