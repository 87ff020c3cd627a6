"""What a table's columns become in a document: read from the catalogues, proposed with reasons.

It only reads. `migration` writes the SQL.
"""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, LiteralString

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
)
from second_brain.database import migrations
from second_brain.errors import ConfigurationError, MigrationMissingError
from second_brain.services.install import Database, is_plain

_SAMPLE = "select {columns} from {table} as source{join} limit 20"
_DIMENSIONS = """
select extensions.vector_dims({embedding}::extensions.vector)
  from {table} as source{join}
 where {embedding} is not null
 limit 1
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
_KEPT_AS_METADATA = (
    "type", "visibility", "owner", "groups", "updated", "document", "position",
)  # fmt: skip
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


@dataclass(frozen=True)
class _Rows:
    """The rows of the table, which has the alias source in SQL, and of its parent."""

    database: Database
    table: Table
    parent: Parent | None

    def first(self, statement: LiteralString, **parts: sql.Composable) -> Sequence[Any]:
        """Return the first row of a statement over them, or nothing."""
        join = self.parent.join if self.parent else sql.SQL("")
        parts |= {"table": self.table.identifier, "join": join}
        return self.database.execute(statement, None, **parts).fetchone() or ()


def propose(
    database: Database,
    table_name: str,
    given: Mapping[str, str | None],
    *,
    uses_embeddings: bool = True,
    is_public: bool = False,
    rows: str | None = ALL_ROWS,
    leave_out: Sequence[str] = (),
    parent_name: str | None = None,
) -> Proposal:
    """Propose the mapping of a table; `given` has the values of the options by field.

    `is_public`: all its documents will be public. `rows`: the condition of the rows that are
    searched, None if the user has not said it. `leave_out`: columns that are not carried over.
    `parent_name`: the table of the documents, from which title, address, date and who sees a
    document are taken.

    Raises ConfigurationError for a table that cannot be adopted, with what to do.
    """
    table = read_table(database, table_name)
    unknown = [one for one in leave_out if table.column(one) is None]
    if unknown:
        raise ConfigurationError(
            f"--leave-out: {table} has no column {', '.join(unknown)}", remedy="Name its columns."
        )
    layout = next((one for one in LAYOUTS if one.columns <= {*table.names}), None)
    if layout and layout.parent:
        # Some of its fields are in the other table.
        named = [parent_name] if parent_name else _others(table)
        fitting = [one for one in named if layout.parent <= {*read_table(database, one).names}]
        parent_name, layout = (fitting[0], layout) if fitting else (parent_name, None)
    parent = read_parent(database, table, parent_name, given["document"]) if parent_name else None
    hiding = hiding_columns(table, parent)
    if rows is None and hiding:
        raise ConfigurationError(
            f"{table} has {', '.join(hiding)}, which can hide rows: say which rows are searched",
            remedy="Use --rows with an SQL condition, such as \"status = 'published'\" or "
            '"deleted_at is null", or --rows all.',
        )
    options = {name: value for name, value in given.items() if value is not None}
    schema = sql.Identifier(table.schema).as_string(None)
    chosen = {
        field: (value.replace("{schema}", schema), f"the layout of {one.summary}")
        for one in ([layout] if layout else [])
        for field, value in one.fields.items()
    }
    chosen.update({name: (value, f"--{name}") for name, value in options.items()})
    if parent:
        chosen["document"] = (parent.column, f"the key of {parent.table}")
    key, key_reason = _key(table, chosen.pop("key", None))
    dimensions = migrations.stored_dimensions(database.connection, database.install.schema)
    if dimensions is None:
        raise MigrationMissingError(
            f"the database has no knowledge tables in schema {database.install.schema}",
            remedy="Apply the migrations first: `second-brain migrate`, or `supabase db push`.",
        )
    fields = {
        name: one
        for name in DOCUMENT_FIELDS
        if (one := _field(table, name, chosen, key, dimensions))
    }
    if parent:
        of_parent = {one.field: one for one in _fields_of_parent(parent) if one.field not in chosen}
        fields = {name: one for name, one in fields.items() if name not in of_parent} | of_parent
    if "position" in fields and "document" not in fields:
        if "position" in chosen:
            raise ConfigurationError(
                "--position is given, and no document", remedy="Name its column: --document COLUMN."
            )
        del fields["position"]
    if "position" not in fields and "document" not in chosen:
        fields.pop("document", None)
    if not uses_embeddings:
        fields.pop("embedding", None)
    if "content" not in fields:
        raise ConfigurationError(
            f"{table} has no column of texts that could be the content",
            remedy=_texts_elsewhere(database, table)
            or "Name it: --content COLUMN, or an expression such as "
            "--content \"question || ' ' || answer\".",
        )
    condition = None if rows in (None, ALL_ROWS) else rows
    both = _Rows(database, table, parent)
    for one in fields.values():
        _check_expression(both, one)
    if condition:
        _check_expression(both, Mapped("rows", f"({condition}) is true", ""))
    if condition and re.search(r"\bnow\b|\bcurrent_|_timestamp\b", condition, re.IGNORECASE):
        raise ConfigurationError(
            "--rows: the condition depends on the time, and a row is read when it is written",
            remedy="Use --rows all. Searches compare with the time by a filter, such as "
            '[{"field": "metadata.expires_at", "op": "gt", "value": "now"}].',
        )
    dropped = {}
    for name, problem, remedy in _unfit(both, fields, condition):
        if name in options:
            raise ConfigurationError(f"--{name}: {problem}", remedy=remedy)
        dropped[name] = problem
    fields = {name: one for name, one in fields.items() if name not in dropped}
    if "embedding" in fields:
        _check_embedding(both, fields["embedding"], dimensions)
    # What rows of a document disagree about is dropped; a type that is not known can be added.
    warnings = [
        f"--{name} is not mapped: {problem}"
        + (". To filter by filter_type, insert it into public.knowledge_types first"
           if name == "type" else "")
        for name, problem in dropped.items()
    ]  # fmt: skip
    warnings += _warnings(table, parent, fields, is_public)
    mapped, others_of_table = _with_others(table, key, fields, leave_out)
    if parent:
        used = {parent.key, *_words(fields["metadata"].source if "metadata" in fields else "")}
        used |= {one.column.name for one in mapped if one.column and one.relation == "parent"}
        others_of_table += [
            (f"parent.{name}", "left out: map it with an expression")
            for name in parent.table.names
            if name not in used
        ]
    return Proposal(table, key, key_reason, mapped, warnings, condition, others_of_table, parent)


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
    table: Table, key: str, fields: Mapping[str, Mapped], leave_out: Sequence[str]
) -> tuple[list[Mapped], list[tuple[str, str]]]:
    """Add the columns that are no field to the metadata; return what becomes of each."""
    used = {key}
    for one in fields.values():
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
    if not carried:
        return [*fields.values()], others
    before, reason, shown = "", "no column; the following are its keys", "-"
    if metadata := fields.get("metadata"):
        value = metadata.expression.as_string(None)
        before = f"coalesce(nullif({value}::jsonb, 'null'), '{{}}') || "
        reason, shown = metadata.reason, metadata.source
    objects = " || ".join(
        f"jsonb_build_object({_pairs(carried[place : place + _PAIRS])})"
        for place in range(0, len(carried), _PAIRS)
    )
    whole = Mapped("metadata", f"{before}jsonb_strip_nulls({objects})", reason, shown=shown)
    return [one for one in fields.values() if one.field != "metadata"] + [whole], others


def _pairs(columns: Sequence[str]) -> str:
    pairs = [
        sql.SQL("{}, source.{}").format(sql.Literal(name), sql.Identifier(name)) for name in columns
    ]
    return sql.SQL(", ").join(pairs).as_string(None)


def _others(table: Table) -> list[str]:
    """List the other tables that a column of the table refers to, as SQL."""
    return [name for _, oid, name, _ in table.references if oid != table.oid]


def _texts_elsewhere(database: Database, table: Table) -> str | None:
    """Return the options for a table of embeddings whose texts are in a table that it refers to."""
    for name in _others(table):
        parent = read_table(database, name)
        content = _field(parent, "content", {})
        if content and content.column:
            column = content.column.name
            if not is_plain(column):
                column = sql.Identifier(column).as_string(None)
            options = f"--parent {shlex.quote(name)} --content {shlex.quote(f'parent.{column}')}"
            return f"The texts are in {parent}: {options}"
    return None


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
        references = {own for own, *_ in table.references}.difference(USUAL_NAMES["owner"])
        usable = [one for one in usable if one.name in references]
        if len(usable) == 1:
            return Mapped(name, usable[0].name, "the only foreign key", usable[0])
    if name in ("content", "embedding", "metadata") and len(usable) == 1:
        (column,) = usable
        return Mapped(name, column.name, f"the only column of type {column.type}", column)
    return None


def _check_expression(rows: _Rows, one: Mapped) -> None:
    try:
        rows.first(_SAMPLE, columns=one.expression)
    except psycopg.Error as error:
        ambiguous = isinstance(error, psycopg.errors.AmbiguousColumn)
        raise ConfigurationError(
            f"--{one.field}: {one.source!r} is not a column of {rows.table} and not an expression"
            f" over its columns: {error.diag.message_primary}",
            remedy="Both tables have this column: write source.COLUMN or parent.COLUMN."
            if ambiguous
            else "Name a column, or write an expression such as \"metadata ->> 'title'\".",
        ) from error


def _unfit(
    rows: _Rows, fields: Mapping[str, Mapped], condition: str | None
) -> Iterable[tuple[str, str, str]]:
    """Yield the fields whose values no document can have, each with the problem and the remedy."""
    given: dict[str, sql.Composable] = {"rows": sql.SQL(condition or "true")}
    if "document" in fields:
        given["document"] = fields["document"].expression
        for name in ("owner", "groups", "visibility"):
            if name in fields and rows.first(_DIFFERS, value=fields[name].expression, **given):
                remedy = (
                    f"Use --{name} none or a column of --parent, or make each row a document: "
                    "--document none."
                )
                yield name, "rows of one document have different values", remedy
    if "type" in fields:
        (unknown,) = rows.first(_UNKNOWN_TYPES, value=fields["type"].expression)
        if unknown:
            problem = f"{', '.join(sorted(unknown)[:5])} is no knowledge_type"
            remedy = "Add it: insert into public.knowledge_types (name) values (...); or use --type"
            yield "type", problem, f"{remedy} none."


def _check_embedding(rows: _Rows, embedding: Mapped, stored: int) -> None:
    column = embedding.column
    if column is None or column.kind not in VECTORS:
        raise ConfigurationError(
            f"--embedding: {embedding.source} is no column of type vector or halfvec",
            remedy="Add such a column, or use --embed to embed the texts again.",
        )
    dimensions = column.modifier
    if dimensions == -1:
        row = rows.first(_DIMENSIONS, embedding=embedding.expression)
        dimensions = row[0] if row else stored
    if dimensions != stored:
        raise ConfigurationError(
            f"{embedding.source} of {rows.table} has {dimensions} dimensions, the corpus has"
            f" {stored}",
            remedy="Use --embed to embed the texts again with the model of the corpus, or install "
            f"a corpus of {dimensions} dimensions in a schema of its own (--schema).",
        )


def _warnings(
    table: Table, parent: Parent | None, fields: Mapping[str, Mapped], is_public: bool
) -> Iterable[str]:
    if table.has_row_security:
        yield (
            f"The policies of {table} hold in search_visible_knowledge_chunks (in place, after "
            "let_search); in other searches visibility, owner and groups decide."
        )
    shown = [name for name in _SHOWN if name in fields and fields[name].relation == "parent"]
    if parent and parent.table.has_row_security and shown:
        yield (
            f"Whoever finds a row of {table} sees {' and '.join(shown)} of its row of "
            f"{parent.table}, also where the policies of {parent.table} hide it from them."
        )
    reading = [
        name for name, one in fields.items() if re.search(r"\bselect\b", one.source, re.IGNORECASE)
    ]
    if reading:
        yield (
            f"--{', --'.join(reading)}: a change of another table is not carried over, also one of "
            "who may see a row, until `adopt --check --repair`."
        )
    if table.is_partition:
        yield (
            "Rows that are written through its parent table are not followed: adopt the"
            " partitioned table."
        )
    if not fields.keys() & {"owner", "groups", "visibility"} and not is_public:
        yield (
            "There is no owner and no group: only service_role finds private documents. "
            "Map them with --owner or --groups, or use --visibility public if everyone may see "
            "all rows."
        )
