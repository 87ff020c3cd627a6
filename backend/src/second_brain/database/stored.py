"""Checks of what is stored: embeddings, and the settings of collections. They only read."""

from collections.abc import Iterator
from typing import Any

import psycopg
from psycopg import sql

from second_brain.database import naming

Findings = Iterator[tuple[Any, str, str | None]]

MOST_EQUAL = 1000
"""With more equal embeddings, loaded first, the vector index was measured to miss best hits."""

# Bounded: a collection can have millions of chunks.
_SETTINGS = """
select settings.collection, settings.fusion, settings.vector_weight, settings.text_weight,
       settings.embedding_model,
       array(
         select distinct coalesce(sampled.embedding_model, 'unnamed')
           from (
             select chunk.embedding_model
               from {schema}.knowledge_chunks as chunk
              where settings.embedding_model is not null
                and chunk.status = 'active'
                and chunk.embedding_bits is not null
                and (
                  chunk.collection = settings.collection
                  or settings.collection = '' and chunk.collection not in (
                    select own.collection from {schema}.knowledge_settings as own
                  )
                )
              limit 1000
           ) as sampled
          where sampled.embedding_model is distinct from settings.embedding_model
          order by 1
       ) as other_models,
       array_to_string(settings.changes, '; ') as changes
  from {schema}.list_knowledge_settings() as settings
 order by settings.collection
"""
_UNNAMED = """
select stored.chunks from {schema}.knowledge_embedding_models() as stored where stored.model is null
"""
_SHARE = """
select least(100, 100.0 * 100000 / greatest(class.reltuples, 1))::real
  from pg_catalog.pg_class as class
 where class.oid = to_regclass(%s)
"""
# The bits, which lie in the row, are compared first, then the embeddings of equal bits. Of rows in
# place, the vector index has none.
_EQUAL = """
select round(100 * count(*) / {share})::bigint as chunks, min(chunk.id::text)
  from {schema}.knowledge_chunks as chunk tablesample system ({share}) repeatable (1)
 where chunk.status = 'active' and chunk.embedding is not null
 group by chunk.embedding_bits, chunk.embedding
having count(*) > {most} * {share} / 100
 order by chunks desc, 2
 limit 1
"""
_OTHER_OWNERS = """
select class.oid::regclass::text, class.relowner::regrole::text, chunks.relowner::regrole::text
  from pg_catalog.pg_class as class
  join pg_catalog.pg_namespace as namespace on namespace.oid = class.relnamespace
  join pg_catalog.pg_class as chunks
    on chunks.oid = to_regclass(quote_ident(%(schema)s) || '.knowledge_chunks')
 where class.relkind in ('r', 'p')
   and class.relowner <> chunks.relowner
   and (
     namespace.nspname = %(internals)s
     or namespace.nspname = %(schema)s and starts_with(class.relname, 'knowledge_')
   )
 order by 1
"""


def equal_embeddings(connection: psycopg.Connection[Any], schema: str) -> Findings:
    """Report the largest group of equal embeddings, if it can cut the graph of the vector index.

    Of more than 100,000 chunks it reads a sample.
    """
    name = sql.Identifier(schema)
    table = sql.SQL("{}.knowledge_chunks").format(name).as_string(connection)
    (share,) = connection.execute(_SHARE, [table]).fetchone() or (100,)
    query = sql.SQL(_EQUAL).format(schema=name, share=sql.Literal(share), most=MOST_EQUAL)
    for chunks, example in connection.execute(query):
        about = "" if share == 100 else "about "
        yield (
            "warning",
            f"{about}{chunks} chunks have the same embedding, such as {example}: if they were"
            " loaded first, the vector index misses some of the nearest chunks",
            "Load them last, or not at all: delete them or set their embedding to null, and reindex"
            " the vector index.",
        )


def unnamed(connection: psycopg.Connection[Any], schema: str) -> Findings:
    """Report embeddings that name no model: a search takes them for those of the corpus's model."""
    query = sql.SQL(_UNNAMED).format(schema=sql.Identifier(schema))
    for (chunks,) in connection.execute(query):
        yield (
            "warning",
            f"{chunks} chunks have an embedding but no embedding_model",
            "Name the model that made them: set embedding_model in knowledge_chunks where it is"
            " null; those of an adopted table: `second-brain adopt TABLE --model NAME`.",
        )


def settings(connection: psycopg.Connection[Any], schema: str) -> Findings:
    """Report how each collection is searched, and embeddings of another model than the stored."""
    query = sql.SQL(_SETTINGS).format(schema=sql.Identifier(schema))
    stored = connection.execute(query).fetchall()
    if not stored:
        yield "ok", "none stored: a search that names no fusion uses rrf", None
    for collection, fusion, vector_weight, text_weight, model, other_models, changes in stored:
        name = f"collection {collection}" if collection else "all other collections"
        yield (
            "ok",
            f"{name}: fusion {fusion or 'not stored'},"
            f" vector_weight {vector_weight:g}, text_weight {text_weight:g}",
            None,
        )
        if changes:
            yield (
                "warning",
                f"{name}: the settings are stale: {changes}",
                "Tune again: `second-brain corpus tune --apply`.",
            )
        if other_models:
            yield (
                "warning",
                f"{name}: embedding_model is {model}, but chunks have embeddings of"
                f" {', '.join(other_models)}",
                "Tune again (`second-brain corpus tune --apply`), or embed the chunks with the"
                " stored model (`second-brain corpus reembed`).",
            )


def owners(connection: psycopg.Connection[Any], schema: str) -> Findings:
    """Look for objects of another role: the functions could not read its tables."""
    query = sql.SQL(_OTHER_OWNERS)
    arguments = {"schema": schema, "internals": naming.internals(schema)}
    rows = connection.execute(query, arguments).fetchall()
    for name, owner, wanted in rows:
        yield (
            "error",
            f"{name} belongs to {owner}, and the chunks to {wanted}",
            f"Run: alter table {name} owner to {wanted}; then `second-brain migrate` as {wanted}.",
        )
    if not rows:
        yield "ok", "all tables belong to one role", None


def seeds(connection: psycopg.Connection[Any], schema: str) -> Findings:
    """Look for the rows that the migrations insert; a dump of the schema alone has none."""
    missing = False
    for table in ("knowledge_types", "knowledge_source_origins"):
        name = sql.Identifier(schema, table)
        query = sql.SQL("select exists (select from {})").format(name)
        if connection.execute(query).fetchone() != (True,):
            missing = True
            yield (
                "error",
                f"{schema}.{table} has no rows, so nothing can be stored",
                f"Run the insert into {table} of 001_documents.sql again.",
            )
    if not missing:
        yield "ok", "knowledge_types and knowledge_source_origins have theirs", None
