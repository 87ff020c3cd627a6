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
    "document",
    "position",
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
       attribute.atttypmod, attribute.attnotnull, attribute.attgenerated <> '',
       exists (
         select
           from pg_catalog.pg_constraint as foreign_key
          where foreign_key.conrelid = attribute.attrelid
            and foreign_key.contype = 'f'
            and foreign_key.conkey = array[attribute.attnum]
       )
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
    "document": ("int2", "int4", "int8", "uuid", *_TEXTS),
    "position": ("int2", "int4", "int8"),
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
    "document": "document_key",
    "position": "chunk_index",
}
_HIDES_ROWS = re.compile(
    r"(is_|row_|record_)?(status|state|(soft_)?deleted(_at|_on)?|archived(_at|_on)?|draft|hidden"
    r"|expire[sd](_at|_on)?|expiry(_date)?|expiration(_date)?|published(_at|_on)?|active|enabled"
    r"|disabled|valid_(to|until|from)|superseded(_at|_by)?|removed(_at)?|visibility)"
)
"""Names of columns that say which rows readers of the table see."""
_PAIRS = 50  # A call of jsonb_build_object has at most 100 arguments.
ALL_ROWS = "all"
"""The value of --rows for all of them."""
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
    is_generated: bool
    is_reference: bool


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
    shown: str | None = None
    """What the user reads instead of the source."""

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
    rows: str | None
    """The condition of the rows that are searched; None for all."""
    others: Sequence[tuple[str, str]]
    """The columns that are no field of their own, and what becomes of them."""

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
    rows: str | None = ALL_ROWS,
    leave_out: Sequence[str] = (),
    finds_documents: bool = False,
) -> Proposal:
    """Propose the mapping of a table; `given` has the values of the options by field.

    `is_public`: all its documents will be public. `rows`: the condition of the rows that are
    searched, None if the user has not said it. `leave_out`: columns that are not carried over.
    `finds_documents`: propose columns for document and position, too.

    Raises ConfigurationError for a table that cannot be adopted, with what to do.
    """
    table = read_table(database, table_name)
    unknown = [one for one in leave_out if table.column(one) is None]
    if unknown:
        raise ConfigurationError(
            f"--leave-out: {table} has no column {', '.join(unknown)}", remedy="Name its columns."
        )
    hiding = hiding_columns(table)
    if rows is None and hiding:
        raise ConfigurationError(
            f"{table} has {', '.join(hiding)}, which can hide rows: say which rows are searched",
            remedy="Use --rows with an SQL condition, such as \"status = 'published'\" or "
            '"deleted_at is null", or --rows all.',
        )
    options = {name: value for name, value in given.items() if value is not None}
    chosen = _of_layout(table, layout, options) if layout else {}
    chosen.update({name: (value, f"--{name}") for name, value in options.items()})
    key, key_reason = _key(table, chosen.pop("key", None))
    names = FIELDS[1:] if finds_documents else FIELDS[1:-2]
    mapped = [one for name in names if (one := _field(table, name, chosen, key, layout))]
    fields = {one.field for one in mapped}
    if "position" in fields and "document" not in fields:
        if "position" in chosen:
            raise ConfigurationError(
                "--position is given, and no document", remedy="Name its column: --document COLUMN."
            )
        mapped = [one for one in mapped if one.field != "position"]
    if "document" in fields and "position" not in fields and "document" not in chosen:
        mapped = [one for one in mapped if one.field != "document"]
    if not uses_embeddings:
        mapped = [one for one in mapped if one.field != "embedding"]
    if not any(one.field == "content" for one in mapped):
        raise ConfigurationError(
            f"{table} has no column of texts that could be the content",
            remedy="Name it: --content COLUMN, or an expression such as "
            "--content \"question || ' ' || answer\".",
        )
    condition = None if rows in (None, ALL_ROWS) else rows
    checked = [*mapped, Mapped("rows", f"({condition}) is true", "")] if condition else mapped
    _check_expressions(database, table, checked)
    if condition and re.search(r"\bnow\b|\bcurrent_|_timestamp\b", condition, re.IGNORECASE):
        raise ConfigurationError(
            "--rows: the condition depends on the time, and a row is read when it is written",
            remedy="Use --rows all. Searches compare with the time by a filter, such as "
            '[{"field": "metadata.expires_at", "op": "gt", "value": "now"}].',
        )
    _check_dimensions(database, table, mapped)
    mapped, others = _with_others(table, key, mapped, leave_out)
    warnings = list(_warnings(table, mapped, is_public))
    return Proposal(table, key, key_reason, mapped, warnings, condition, others)


def hiding_columns(table: Table) -> list[str]:
    """List the columns whose names say that they hide rows from readers of the table."""
    return [one.name for one in table.columns if _HIDES_ROWS.fullmatch(one.name.lower())]


def _with_others(
    table: Table, key: Sequence[str], mapped: Sequence[Mapped], leave_out: Sequence[str]
) -> tuple[list[Mapped], list[tuple[str, str]]]:
    """Add the columns that are no field to the metadata; return what becomes of each."""
    used = {*key}
    for one in mapped:
        # A date and an owner are fields; as keys of the metadata they can be filtered on.
        if one.field not in ("owner", "groups", "updated", "document", "position"):
            used.update(_words(one.source) if one.column is None else [one.column.name])
    others: list[tuple[str, str]] = []
    carried: list[str] = []
    for column in table.columns:
        if column.name in used:
            continue
        if column.name in leave_out:
            others.append((column.name, "left out, as --leave-out says"))
        elif column.is_generated:
            others.append((column.name, "left out: generated"))
        elif column.kind in (*_VECTORS, "sparsevec", "tsvector"):
            others.append((column.name, f"left out: {column.type}"))
        else:
            carried.append(column.name)
            others.append((column.name, f"metadata.{column.name}"))
    metadata = next((one for one in mapped if one.field == "metadata"), None)
    if not carried:
        return [*mapped], others
    before = f"coalesce(nullif({metadata.source}::jsonb, 'null'), '{{}}') || " if metadata else ""
    if metadata is not None and metadata.column is not None:
        column_sql = metadata.expression.as_string(None)
        before = f"coalesce(nullif({column_sql}::jsonb, 'null'), '{{}}') || "
    objects = " || ".join(
        f"jsonb_build_object({_pairs(carried[place : place + _PAIRS])})"
        for place in range(0, len(carried), _PAIRS)
    )
    source = f"{before}jsonb_strip_nulls({objects})"
    if metadata:
        whole = Mapped("metadata", source, metadata.reason, shown=metadata.source)
    else:
        whole = Mapped("metadata", source, "no column; the following are its keys", shown="-")
    return [*(one for one in mapped if one.field != "metadata"), whole], others


def _pairs(columns: Sequence[str]) -> str:
    pairs = [
        sql.SQL("{}, source.{}").format(sql.Literal(name), sql.Identifier(name)) for name in columns
    ]
    return sql.SQL(", ").join(pairs).as_string(None)


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
    return {field: (value, f"the layout {name}") for field, value in fields.items()}


def _words(expression: str) -> Sequence[str]:
    return re.findall(r"\w+", re.sub("'[^']*'", "", expression))


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
    if name == "document":
        usable = [
            one for one in usable if one.is_reference and one.name not in USUAL_NAMES["owner"]
        ]
        if len(usable) == 1:
            return Mapped(name, usable[0].name, "the only foreign key", usable[0])
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
