"""What a table's columns become in a document: read from the catalogues, proposed with reasons.

It only reads. `migration` writes the SQL.
"""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import psycopg
from psycopg import sql

from second_brain.adoption.layouts import LAYOUTS, NO_TEXTS, USUAL_NAMES
from second_brain.adoption.tables import (
    DOCUMENT_FIELDS,
    TEXTS,
    VECTORS,
    Mapped,
    Parent,
    Table,
    hiding_columns,
    read_parent,
    read_table,
    referenced,
)
from second_brain.database import migrations
from second_brain.errors import ConfigurationError, MigrationMissingError
from second_brain.services.install import Database, is_plain

_SAMPLE = "select {columns} from {table} as source{join} limit 20"
_DIMENSIONS = """
select extensions.vector_dims(sampled.embedding)
  from (
    select (to_jsonb(mapped) ->> 'embedding')::extensions.vector as embedding
      from (select {embedding} as embedding from {table} as source) as mapped
     where mapped.embedding is not null
     limit 1
  ) as sampled
"""

_DIFFERS = """
select true
  from (
    select {document} as document, to_jsonb({value}) as value
      from {table} as source{join}
     where {rows}
     limit 10000
  ) as sampled
 where sampled.document is not null
 group by sampled.document
having count(distinct coalesce(sampled.value, 'null')) > 1
 limit 1
"""

_UNKNOWN_TYPES = """
select array_agg(distinct {value}::text)
  from {table} as source{join}
 where {value} <> all (knowledge_internal.known_values('knowledge_type'))
"""

_TYPES = {
    "content": TEXTS,
    "embedding": VECTORS,
    "metadata": ("jsonb", "json"),
    "title": TEXTS,
    "url": TEXTS,
    "owner": ("uuid",),
    "groups": ("_text", "_varchar"),
    "updated": ("date", "timestamp", "timestamptz"),
    "type": TEXTS,
    "document": ("int2", "int4", "int8", "uuid", *TEXTS),
    "position": ("int2", "int4", "int8"),
}
_KEY_TYPES = ("int2", "int4", "int8", "uuid", "text", "varchar")
OPTIONS = tuple(_TYPES)
"""The fields that have an option; collection and visibility are mapped by layouts and parents."""
_SHOWN = ("title", "url", "updated")
_OF_CHUNKS = ("document", "position")
_KEPT_AS_METADATA = ("type", "visibility", "owner", "groups", "updated", *_OF_CHUNKS)
_PAIRS = 50  # A call of jsonb_build_object has at most 100 arguments.
ALL_ROWS = "all"
"""The value of --rows for all of them."""
NOT_MAPPED = "none"
"""The value of an option that leaves a field out."""


@dataclass(frozen=True)
class Proposal:
    """How a table is to be adopted; `warnings` are for the user to read."""

    table: Table
    key: str
    key_reason: str
    fields: Sequence[Mapped]
    warnings: Sequence[str]
    rows: str | None
    """The condition of the rows that are searched; None for all."""
    others: Sequence[tuple[str, str]]
    """The columns that are no field of their own, and what becomes of them."""
    parent: Parent | None = None
    """The table of the documents whose chunks are the rows."""

    def field(self, name: str) -> Mapped | None:
        """Return what a field is mapped to."""
        return next((one for one in self.fields if one.field == name), None)


def propose(
    database: Database,
    table_name: str,
    given: Mapping[str, str | None],
    *,
    uses_embeddings: bool = True,
    is_public: bool = False,
    rows: str | None = ALL_ROWS,
    leave_out: Sequence[str] = (),
    finds_documents: bool = False,
    parent_name: str | None = None,
) -> Proposal:
    """Propose the mapping of a table; `given` has the values of the options by field.

    `is_public`: all its documents will be public. `rows`: the condition of the rows that are
    searched, None if the user has not said it. `leave_out`: columns that are not carried over.
    `finds_documents`: propose columns for document and position, too. `parent_name`: the table of
    the documents, from which title, address, date and who sees a document are taken.

    Raises ConfigurationError for a table that cannot be adopted, with what to do.
    """
    table = read_table(database, table_name)
    unknown = [one for one in leave_out if table.column(one) is None]
    if unknown:
        raise ConfigurationError(
            f"--leave-out: {table} has no column {', '.join(unknown)}", remedy="Name its columns."
        )
    parent = read_parent(database, table, parent_name, given["document"]) if parent_name else None
    hiding = hiding_columns(table, parent)
    if rows is None and hiding:
        raise ConfigurationError(
            f"{table} has {', '.join(hiding)}, which can hide rows: say which rows are searched",
            remedy="Use --rows with an SQL condition, such as \"status = 'published'\" or "
            '"deleted_at is null", or --rows all.',
        )
    options = {name: value for name, value in given.items() if value is not None}
    chosen = _of_layout(table)
    chosen.update({name: (value, f"--{name}") for name, value in options.items()})
    if parent:
        chosen["document"] = (parent.column, f"the key of {parent.table}")
    key, key_reason = _key(table, chosen.pop("key", None))
    names = [one for one in DOCUMENT_FIELDS if finds_documents or one not in _OF_CHUNKS]
    dimensions = migrations.stored_dimensions(database.connection, database.install.schema)
    mapped = [one for name in names if (one := _field(table, name, chosen, key, dimensions))]
    if parent:
        of_parent = {one.field: one for one in _fields_of_parent(parent) if one.field not in chosen}
        mapped = [one for one in mapped if one.field not in of_parent] + [*of_parent.values()]
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
            remedy=_texts_elsewhere(database, table)
            or "Name it: --content COLUMN, or an expression such as "
            "--content \"question || ' ' || answer\".",
        )
    condition = None if rows in (None, ALL_ROWS) else rows
    checked = [*mapped, Mapped("rows", f"({condition}) is true", "")] if condition else mapped
    _check_expressions(database, table, parent, checked)
    differing = _differing_in_documents(database, table, parent, mapped, condition)
    unknown_types = _unknown_types(database, table, parent, mapped)
    if unknown_types and "type" in options:
        raise ConfigurationError(
            f"--type: {', '.join(unknown_types)} is no knowledge_type",
            remedy="Add it: insert into public.knowledge_types (name) values (...); or use"
            " --type none.",
        )
    if unknown_types:
        mapped = [one for one in mapped if one.field != "type"]
    refused = [one for one in differing if one in options]
    if refused:
        raise ConfigurationError(
            f"--{refused[0]}: rows of one document have different values",
            remedy=f"Use --{refused[0]} none or a column of --parent, or make each row a document: "
            "--document none.",
        )
    mapped = [one for one in mapped if one.field not in differing]
    if condition and re.search(r"\bnow\b|\bcurrent_|_timestamp\b", condition, re.IGNORECASE):
        raise ConfigurationError(
            "--rows: the condition depends on the time, and a row is read when it is written",
            remedy="Use --rows all. Searches compare with the time by a filter, such as "
            '[{"field": "metadata.expires_at", "op": "gt", "value": "now"}].',
        )
    _check_dimensions(database, table, mapped)
    mapped, others = _with_others(table, key, mapped, leave_out)
    if parent:
        used = {one.column.name for one in mapped if one.column and one.relation == "parent"}
        others += [
            (f"parent.{one.name}", "left out: map it with an expression")
            for one in parent.table.columns
            if one.name not in {*used, parent.key}
        ]
    warnings = [
        f"--{one} is not mapped: rows of one document have different values" for one in differing
    ]
    if unknown_types:
        warnings.append(
            f"--type is not mapped: {', '.join(unknown_types)} is no knowledge_type. To filter by"
            " filter_type, insert it into public.knowledge_types first"
        )
    carried = [one for one in checked if one.field not in differing]
    warnings += _warnings(table, parent, carried, is_public)
    return Proposal(table, key, key_reason, mapped, warnings, condition, others, parent)


def _fields_of_parent(parent: Parent) -> Iterable[Mapped]:
    """Propose the fields of documents from the columns of their own table, by their names."""
    for name in ("title", "url", "owner", "groups", "updated"):
        one = _field(parent.table, name, {}, parent.key)
        if one and one.column:
            shown = f"parent.{one.source}"
            yield Mapped(name, one.source, one.reason, one.column, shown, "parent")
    for column in parent.table.columns:
        value = sql.Identifier("parent", column.name).as_string(None)
        if column.usual_name == "visibility" and column.kind in TEXTS:
            value += " = 'public'"
        elif column.usual_name not in ("is_public", "public") or column.kind != "bool":
            continue
        source = f"case when {value} then 'public' else 'private' end"
        shown = f"parent.{column.name}"
        yield Mapped("visibility", source, "by its name", column, shown, "parent")
        return


def _with_others(
    table: Table, key: str, mapped: Sequence[Mapped], leave_out: Sequence[str]
) -> tuple[list[Mapped], list[tuple[str, str]]]:
    """Add the columns that are no field to the metadata; return what becomes of each."""
    used = {key}
    for one in mapped:
        # A date and an owner are fields; as keys of the metadata they can be filtered on.
        if one.relation == "source" and one.field not in _KEPT_AS_METADATA:
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
        elif column.kind in (*VECTORS, "sparsevec", "tsvector"):
            others.append((column.name, f"left out: {column.type}"))
        else:
            carried.append(column.name)
            others.append((column.name, f"metadata.{column.name}"))
    metadata = next((one for one in mapped if one.field == "metadata"), None)
    if not carried:
        return [*mapped], others
    before, reason, shown = "", "no column; the following are its keys", "-"
    if metadata:
        value = metadata.expression.as_string(None)
        before = f"coalesce(nullif({value}::jsonb, 'null'), '{{}}') || "
        reason, shown = metadata.reason, metadata.source
    objects = " || ".join(
        f"jsonb_build_object({_pairs(carried[place : place + _PAIRS])})"
        for place in range(0, len(carried), _PAIRS)
    )
    whole = Mapped("metadata", f"{before}jsonb_strip_nulls({objects})", reason, shown=shown)
    return [*(one for one in mapped if one.field != "metadata"), whole], others


def _pairs(columns: Sequence[str]) -> str:
    pairs = [
        sql.SQL("{}, source.{}").format(sql.Literal(name), sql.Identifier(name)) for name in columns
    ]
    return sql.SQL(", ").join(pairs).as_string(None)


def _texts_elsewhere(database: Database, table: Table) -> str | None:
    """Return the options for a table of embeddings whose texts are in a table that it refers to."""
    for name in referenced(database, table):
        parent = read_table(database, name)
        content = _field(parent, "content", {})
        if content and content.column:
            column = content.column.name
            if not is_plain(column):
                column = sql.Identifier(column).as_string(None)
            options = f"--parent {shlex.quote(name)} --content {shlex.quote(f'parent.{column}')}"
            return f"The texts are in {parent}: {options}"
    return None


def _of_layout(table: Table) -> dict[str, tuple[str, str]]:
    """Return the fields of a known layout that the table has, each with the reason."""
    columns = {column.name for column in table.columns}
    layout = next((one for one in LAYOUTS if one.columns <= columns), None)
    if layout is None:
        return {}
    schema = sql.Identifier(table.schema).as_string(None)
    return {
        field: (value.replace("{schema}", schema), f"the layout of {layout.summary}")
        for field, value in layout.fields.items()
    }


def _words(expression: str) -> Sequence[str]:
    return re.findall(r"\w+", re.sub("'[^']*'", "", expression))


def _key(table: Table, given: tuple[str, str] | None) -> tuple[str, str]:
    """Return the column by which a row is found from its chunk, and why it is this one."""
    identifier = table.identifier.as_string(None)
    if given is not None and table.column(given[0]) is None:
        raise ConfigurationError(
            f"--key: {table} has no column {given[0]}", remedy="Name one column."
        )
    fitting = [one for one in table.keys if given is None or one == given[0]]
    for name in fitting:
        column = table.column(name)
        if column and column.not_null and column.kind in _KEY_TYPES:
            reason = "the primary key" if table.keys[name] else "unique and not null"
            return name, given[1] if given else reason
    for name in fitting:
        column = table.column(name)
        if column and not column.not_null:
            raise ConfigurationError(
                f"{table}: the key column {name} can be null",
                remedy=f"Run: alter table {identifier} alter column"
                f" {sql.Identifier(name).as_string(None)} set not null",
            )
    if given is not None and not fitting:
        raise ConfigurationError(
            f"--key: {table} has no unique index on ({given[0]})",
            remedy="Name the column of its primary key, or create a unique index on this one.",
        )
    added = "search_id bigint generated always as identity unique"
    if table.is_partitioned:
        added = (
            "search_id uuid not null default gen_random_uuid();"
            f" create index on {identifier} (search_id)"
        )
    raise ConfigurationError(
        f"{table} has no key of one column that is an integer, a uuid or a text",
        remedy=f"Run: alter table {identifier} add {added}",
    )


def _field(
    table: Table,
    name: str,
    chosen: Mapping[str, tuple[str, str]],
    key: str | None = None,
    dimensions: int | None = None,
) -> Mapped | None:
    if name in chosen:
        source, reason = chosen[name]
        if source == NOT_MAPPED:
            return None
        return Mapped(name, source, reason, table.column(source))
    if name not in USUAL_NAMES:
        return None
    usable = [one for one in table.columns if one.kind in _TYPES[name] and one.name != key]
    if name == "embedding":
        # Of several models, that of the corpus.
        usable = [one for one in usable if one.modifier == dimensions] or usable
    if name == "content":
        usable = [one for one in usable if one.usual_name not in NO_TEXTS]
    for usual in USUAL_NAMES[name]:
        for column in usable:
            if column.usual_name == usual:
                return Mapped(name, column.name, f"{column.type}, by its name", column)
    if name == "document":
        usable = [
            one for one in usable if one.is_reference and one.name not in USUAL_NAMES["owner"]
        ]
        if len(usable) == 1:
            return Mapped(name, usable[0].name, "the only foreign key", usable[0])
    if name in ("content", "embedding", "metadata") and len(usable) == 1:
        (column,) = usable
        return Mapped(name, column.name, f"the only column of type {column.type}", column)
    return None


def _check_expressions(
    database: Database, table: Table, parent: Parent | None, mapped: Sequence[Mapped]
) -> None:
    join = parent.join if parent else sql.SQL("")
    for one in mapped:
        statement = sql.SQL(_SAMPLE).format(
            columns=one.expression, table=table.identifier, join=join
        )
        try:
            database.connection.execute(statement)
        except psycopg.Error as error:
            ambiguous = isinstance(error, psycopg.errors.AmbiguousColumn)
            raise ConfigurationError(
                f"--{one.field}: {one.source!r} is not a column of {table} and not an expression"
                f" over its columns: {error.diag.message_primary}",
                remedy="Both tables have this column: write source.COLUMN or parent.COLUMN."
                if ambiguous
                else "Name a column, or write an expression such as \"metadata ->> 'title'\".",
            ) from error


def _differing_in_documents(
    database: Database,
    table: Table,
    parent: Parent | None,
    mapped: Sequence[Mapped],
    condition: str | None,
) -> list[str]:
    """Name the fields that rows of one document, of the first 10,000 rows, disagree about."""
    fields = {one.field: one for one in mapped}
    if "document" not in fields:
        return []
    return [
        name
        for name in ("owner", "groups", "visibility")
        if name in fields
        and database.execute(
            _DIFFERS,
            document=fields["document"].expression,
            value=fields[name].expression,
            table=table.identifier,
            join=parent.join if parent else sql.SQL(""),
            rows=sql.SQL(condition or "true"),
        ).fetchone()
    ]


def _unknown_types(
    database: Database, table: Table, parent: Parent | None, mapped: Sequence[Mapped]
) -> list[str]:
    """List the values of the type that are no knowledge_type."""
    type_ = next((one for one in mapped if one.field == "type"), None)
    if type_ is None:
        return []
    row = database.execute(
        _UNKNOWN_TYPES,
        value=type_.expression,
        table=table.identifier,
        join=parent.join if parent else sql.SQL(""),
    ).fetchone()
    return sorted((row and row[0]) or [])[:5]


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
    if embedding.column is not None and embedding.column.kind in VECTORS:
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


def _warnings(
    table: Table,
    parent: Parent | None,
    mapped: Sequence[Mapped],
    is_public: bool,
) -> Iterable[str]:
    if table.has_row_security:
        yield (
            f"The policies of {table} hold in search_visible_knowledge_chunks (in place, after "
            "let_search); in other searches visibility, owner and groups decide."
        )
    shown = [one.field for one in mapped if one.relation == "parent" and one.field in _SHOWN]
    if parent and parent.table.has_row_security and shown:
        yield (
            f"Whoever finds a row of {table} sees {' and '.join(shown)} of its row of "
            f"{parent.table}, also where the policies of {parent.table} hide it from them."
        )
    reading = [one.field for one in mapped if re.search(r"\bselect\b", one.source, re.IGNORECASE)]
    if reading:
        yield (
            f"--{', --'.join(reading)}: a change of another table is not carried over, also one of "
            "who may see a row, until `adopt --check --repair`."
        )
    if table.elsewhere:
        yield (
            f"Rows that are written through {table.elsewhere} are not followed: `adopt --check "
            "--repair` carries them over. Of partitions, adopt the partitioned table."
        )
    if not {one.field for one in mapped} & {"owner", "groups", "visibility"} and not is_public:
        yield (
            "There is no owner and no group: only service_role finds private documents. "
            "Map them with --owner or --groups, or use --visibility public if everyone may see "
            "all rows."
        )
