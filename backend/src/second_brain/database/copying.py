"""Copies what people stored from one install into another of the same database, of any version.

Documents are stored by `upsert_knowledge_document`, so that the copy is as if written today: ids
are new, superseded versions are left out. Rows of adopted tables are not copied: adopt the tables
again.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, LiteralString

import psycopg
from psycopg import sql
from psycopg.rows import scalar_row

from second_brain.errors import ConfigurationError
from second_brain.services.connections import connect
from second_brain.services.install import check_schema

Connection = psycopg.Connection[Any]

BATCH = 100
"""Documents of a transaction."""

# Rows that others refer to come first.
_TABLES: tuple[tuple[str, LiteralString], ...] = (
    ("knowledge_types", "nothing"),
    ("knowledge_source_origins", "nothing"),
    ("knowledge_sources", "nothing"),
    ("knowledge_synonyms", "nothing"),
    ("knowledge_settings", "update"),
    ("knowledge_model_weights", "update"),
    # Those without a document.
    ("knowledge_chunks", "nothing"),
)
# The columns that both have; what the database computes of a chunk is computed again.
_COLUMNS = """
select attribute.attname
  from pg_catalog.pg_attribute as attribute
  join pg_catalog.pg_attribute as same
    on same.attrelid = to_regclass(%(new)s)
   and same.attname = attribute.attname
   and not same.attisdropped
 where attribute.attrelid = to_regclass(%(old)s)
   and attribute.attnum > 0
   and not attribute.attisdropped
   and attribute.attname not in (
         'text_length', 'content_words', 'distinct_words', 'content_tsv', 'embedding_bits', 'bm25',
         'content_hash', 'field_stamp', 'term_lexemes', 'synonym_lexemes'
       )
   and attribute.attname not like 'place\\_%%'
 order by attribute.attnum
"""
_KEY = """
select array_agg(attribute.attname)
  from pg_catalog.pg_index as index
  join pg_catalog.pg_attribute as attribute
    on attribute.attrelid = index.indrelid and attribute.attnum = any (index.indkey)
 where index.indrelid = to_regclass(%s) and index.indisprimary
"""
_COPY: LiteralString = """
insert into {new} ({columns}) select {columns} from {old} {where} on conflict ({key}) do {action}
"""
_WITHOUT_DOCUMENT: LiteralString = "where document_id is null and status = 'active'"
_DOCUMENTS: LiteralString = """
with listed as (
  select document.*
    from {old}.knowledge_documents as document
   where document.source_row is null and document.external_key > %(after)s
   order by document.external_key
   limit %(most)s
)
select max(listed.external_key), count(*)
  from listed
 cross join lateral {new}.upsert_knowledge_document(
         (
           select jsonb_object_agg(field.key, field.value)
             from jsonb_each(jsonb_strip_nulls(to_jsonb(listed))) as field
            where field.key = any (%(columns)s)
         ),
         (
           select coalesce(
                    jsonb_agg(
                      jsonb_build_object(
                        'heading', chunk.heading, 'content', chunk.content,
                        'embedding', chunk.embedding::text,
                        'embedding_model', chunk.embedding_model, 'metadata', chunk.metadata
                      )
                      order by chunk.chunk_index
                    ),
                    '[]'
                  )
             from {old}.knowledge_chunks as chunk
            where chunk.document_id = listed.id and chunk.status = 'active'
         )
       ) as stored
"""
_SET_BY_DATABASE = ("id", "content_hash", "source_row", "created_at", "updated_at")
_ADOPTED: LiteralString = "select source::text from {old}.knowledge_adoptions order by name"


@dataclass(frozen=True, slots=True)
class Copied:
    """The number of documents, and the adopted tables, whose rows were not copied."""

    documents: int
    adopted: tuple[str, ...]


def copy(
    dsn: str, old: str, new: str, on_progress: Callable[[int], None] = lambda _: None
) -> Copied:
    """Copy documents, chunks without a document, settings and lists from one schema to another.

    It can run again: what is there already stays or is stored again. Raises ConfigurationError if a
    schema has no install, or if their embeddings have other dimensions.
    """
    for schema in (old, new):
        check_schema(schema)
    with connect(dsn, autocommit=True) as connection:
        connection.execute("select set_config('statement_timeout', '0', false)")
        sizes = [_dimensions(connection, schema) for schema in (old, new)]
        if sizes[0] != sizes[1]:
            raise ConfigurationError(
                f"the embeddings of {old} have {sizes[0]} dimensions, those of {new} {sizes[1]}",
                remedy=f"Install with `second-brain migrate --schema {new} --dimensions "
                f"{sizes[0]}`, or embed the texts with the other model.",
            )
        with connection.transaction():
            for table, action in _TABLES:
                _copy_table(connection, old, new, table, action)
        names = {"old": sql.Identifier(old), "new": sql.Identifier(new)}
        columns = _columns(connection, old, new, "knowledge_documents")
        arguments: dict[str, Any] = {
            "columns": [one for one in columns if one not in _SET_BY_DATABASE],
            "most": BATCH,
        }
        after, documents = "", 0
        while True:
            query = sql.SQL(_DOCUMENTS).format(**names)
            last, count = connection.execute(query, arguments | {"after": after}).fetchone() or (
                None,
                0,
            )
            if last is None:
                break
            after, documents = last, documents + count
            on_progress(documents)
        adopted: list[str] = []
        if _columns(connection, old, old, "knowledge_adoptions"):
            with connection.cursor(row_factory=scalar_row) as cursor:
                adopted = cursor.execute(sql.SQL(_ADOPTED).format(**names)).fetchall()
        connection.execute(sql.SQL("analyze {new}.knowledge_chunks").format(**names))
    return Copied(documents, tuple(adopted))


def _dimensions(connection: Connection, schema: str) -> int:
    found = connection.execute(
        "select atttypmod from pg_catalog.pg_attribute where attrelid = to_regclass(%s)"
        " and attname = 'embedding' and not attisdropped",
        [f"{schema}.knowledge_chunks"],
    ).fetchone()
    if found is None:
        raise ConfigurationError(
            f"there is no install in schema {schema}",
            remedy=f"Install it: `second-brain migrate --schema {schema}`.",
        )
    return int(found[0])


def _columns(connection: Connection, old: str, new: str, table: str) -> list[str]:
    with connection.cursor(row_factory=scalar_row) as cursor:
        arguments = {"old": f"{old}.{table}", "new": f"{new}.{table}"}
        return cursor.execute(_COLUMNS, arguments).fetchall()


def _copy_table(
    connection: Connection, old: str, new: str, table: str, action: LiteralString
) -> None:
    columns = _columns(connection, old, new, table)
    if not columns:
        return
    (key,) = connection.execute(_KEY, [f"{new}.{table}"]).fetchone() or ((),)
    where = _WITHOUT_DOCUMENT if table == "knowledge_chunks" else ""
    changes = [
        sql.SQL("{0} = excluded.{0}").format(sql.Identifier(one))
        for one in columns
        if one not in key
    ]
    statement = sql.SQL(_COPY).format(
        new=sql.Identifier(new, table),
        old=sql.Identifier(old, table),
        columns=sql.SQL(", ").join(map(sql.Identifier, columns)),
        key=sql.SQL(", ").join(map(sql.Identifier, key)),
        where=sql.SQL(where),
        action=sql.SQL("update set {}").format(sql.SQL(", ").join(changes))
        if action == "update"
        else sql.SQL(action),
    )
    connection.execute(statement)
