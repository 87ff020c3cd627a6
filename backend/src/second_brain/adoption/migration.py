"""The SQL that adopts a table, for the user to read and to change, and the file that it is in."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from psycopg import sql

from second_brain.adoption.proposal import Proposal
from second_brain.database import migrations
from second_brain.errors import InvalidInputError
from second_brain.services.install import SCHEMA, Install

_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
_LONGEST_NAME = 63
COLLECTION = "knowledge"
"""The collection of documents of which nothing else is said."""

_MIGRATION = """
-- {file}: makes the rows of {table_text} searchable in place.
-- Written by `second-brain adopt`. Adds: an entry in public.knowledge_adoptions, the view
-- {view_name}, triggers on {tables_text}.
-- Locks {tables_text} against writes while the triggers are created.
-- Afterwards, carry over the rows that exist: second-brain adopt --backfill {name}{schema_option}

-- Refused if the table cannot be adopted.
select knowledge_internal.adopt_table(
  adoption_name => {name_literal},
  source => {table_literal},
  key_column => {key_column},
  embedding_model => {model},
  embedding_column => {embedding_column}{parent}
);

-- The mapping: change its expressions as you like, and add fields of upsert_knowledge_document
-- (language, author, knowledge_type, ...). Rows that the view does not have are not carried over.
-- An update that changes no column named here is not carried over.
drop view if exists {view};

create view {view} as
select
{columns}
  from {table} as source{join}{rows};

revoke all on table {view} from public, anon, authenticated, service_role;

comment on view {view} is {comment};

-- Creates the triggers: a statement that writes the table carries its rows over in the same
-- transaction.
-- Run it again after each change of the view, because the triggers know the columns that it reads.
select knowledge_internal.follow_table({name_literal});
"""


def default_name(table: str) -> str:
    """Return the name of the adoption of a table: its own, as far as the rules for names allow."""
    name = re.sub(r"[^a-z0-9_]+", "_", table.lower()).strip("_")[:40]
    return name if _NAME.fullmatch(name) else f"table_{name}"[:40].rstrip("_")


def view_name(name: str) -> str:
    """Return the name of the view of an adoption, in the internal schema."""
    return f"adopted_{name}"


def render(
    proposal: Proposal,
    install: Install,
    *,
    name: str,
    collection: str = COLLECTION,
    visibility: Literal["private", "public"] = "private",
    language: str | None = None,
    model: str | None = None,
) -> str:
    """Return the SQL of an adoption. Raises InvalidInputError for a name that is not allowed.

    `model` names the embeddings of the table; `collection`, `visibility` and `language` are those
    of all rows.
    """
    table = proposal.table
    if not _NAME.fullmatch(name):
        raise InvalidInputError(
            f"--name must be 1 to 40 lower-case letters, digits and underscores, a letter first, "
            f"not {name!r}"
        )
    longest = len(f"{file_name(name, install.schema)}ed_truncate")
    if longest > _LONGEST_NAME:
        raise InvalidInputError(
            f"--name is {longest - _LONGEST_NAME} characters too long for the triggers of schema "
            f"{install.schema}, {name!r}"
        )
    literal = sql.Literal
    parent = proposal.parent
    of_parent: sql.Composable = sql.SQL("")
    join: sql.Composable = sql.SQL("")
    if parent:
        join = sql.SQL("\n {}").format(parent.join)
        of_parent = sql.SQL(",\n  parent => {},\n  parent_columns => array[{}, {}]").format(
            literal(parent.table.identifier.as_string(None)),
            literal(parent.column),
            literal(parent.key),
        )
    embedding = proposal.field("embedding")
    same = {
        "collection": None if proposal.field("collection") else collection,
        "visibility": None if proposal.field("visibility") else visibility,
        "source_origin": "other",
        "language": language,
    }
    migration = install.composed(
        _MIGRATION,
        file=sql.SQL(file_name(name, install.schema)),
        name=sql.SQL(name),
        name_literal=literal(name),
        table=table.identifier,
        # In comments: a line break in a name would end the comment.
        table_text=_line_of(str(table)),
        tables_text=_line_of(f"{table} and {parent.table}" if parent else str(table)),
        table_literal=literal(table.identifier.as_string(None)),
        join=join,
        parent=of_parent,
        view=sql.Identifier(install.internals, view_name(name)),
        view_name=sql.SQL(view_name(name)),
        schema_option=sql.SQL("" if install.schema == SCHEMA else f" --schema {install.schema}"),
        key_column=literal(proposal.key),
        model=literal(model if embedding else None),
        embedding_column=literal(embedding and embedding.source),
        rows=sql.SQL(f"\n where {proposal.rows}") if proposal.rows else sql.SQL(""),
        columns=_columns(proposal, same),
        comment=literal(f"The rows of {table} as documents; adopted as {name}."),
    )
    return migration.as_string(None).lstrip()


def _line_of(text: str) -> sql.SQL:
    return sql.SQL(re.sub(r"\s+", " ", text))


def _columns(proposal: Proposal, same: Mapping[str, str | None]) -> sql.Composable:
    key = sql.SQL("source.{}").format(sql.Identifier(proposal.key))
    lines = [_line(key, "key_1", f"key: {proposal.key_reason}")]
    lines += [
        _line(one.expression, one.name, f"{one.name}: {one.reason}") for one in proposal.fields
    ]
    lines += [_line(sql.Literal(value), name) for name, value in same.items() if value is not None]
    return sql.SQL(",\n").join(lines)


def _line(value: sql.Composable, name: str, reason: str | None = None) -> sql.Composable:
    comment = sql.SQL("") if reason is None else _line_of(f"  -- {reason}") + sql.SQL("\n")
    return sql.SQL("{}  {} as {}").format(comment, value, sql.SQL(name))


def file_name(name: str, schema: str) -> str:
    """Return the name of the migration's file, without its timestamp."""
    return f"adopt_{'' if schema == SCHEMA else schema + '_'}{name}"


def write(into: Path, text: str, name: str) -> tuple[Path, bool]:
    """Write a migration into a project's folder, with a timestamp later than all others.

    Nothing is written if the newest migration of this name there has this text. Return the file,
    and whether it is new.
    """
    into.mkdir(parents=True, exist_ok=True)
    written = sorted(into.glob(f"[0-9]*_{name}.sql"))
    written = [one for one in written if one.stem.split("_", 1)[1] == name]
    if written and written[-1].read_text("utf-8") == text:
        return written[-1], False
    file = into / f"{migrations.next_version(into)}_{name}.sql"
    file.write_text(text, "utf-8")
    return file, True
