"""Checks of what is stored: rows of the migrations, chunks, settings. They only read."""

from collections.abc import Collection, Iterator
from typing import Any

import psycopg
from psycopg import sql

from second_brain.database import naming, repair
from second_brain.database.condition import REPAIR

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
# The lexemes of a content alone are a part of those of its chunk.
_WRONG_TEXT = """
select count(*), count(*) filter (
         where not tsvector_to_array(
                 ({internals}.lexemes(
                   {internals}.text_configuration(sampled.language), null, sampled.content
                 )).lexemes
               ) <@ tsvector_to_array(sampled.content_tsv)
       )
  from (
    select chunk.language, chunk.content, chunk.content_tsv
      from {schema}.knowledge_chunks as chunk tablesample system ({share}) repeatable (2)
     where chunk.status = 'active' and octet_length(chunk.content) < 4000
     limit 100
  ) as sampled
"""
_ANALYSE = "update {schema}.knowledge_chunks set content_tsv = null"
_DETACH = (
    "update {schema}.knowledge_chunks as chunk set document_id = null where not exists (select from"
    " {schema}.knowledge_documents as document where document.id = chunk.document_id)"
)
_WITHOUT_DOCUMENT = """
select round(100 * count(*) / {share})::bigint, min(chunk.id::text)
  from {schema}.knowledge_chunks as chunk tablesample system ({share}) repeatable (1)
 where chunk.document_id is not null
   and not exists (
         select from {schema}.knowledge_documents as document
          where document.id = chunk.document_id
       )
having count(*) > 0
"""


def equal_embeddings(connection: psycopg.Connection[Any], schema: str) -> Findings:
    """Report the largest group of equal embeddings, if it can cut the graph of the vector index.

    Of more than 100,000 chunks it reads a sample.
    """
    name, share = sql.Identifier(schema), _share(connection, schema)
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


def rows(
    connection: psycopg.Connection[Any], schema: str, modules: Collection[str] = ()
) -> Findings:
    """Look for the rows that the migrations insert; a dump of the schema alone has none."""
    missing = False
    for one in repair.missing_rows(connection, schema, modules):
        missing = True
        if one.is_all:
            message = f"{one.table} has none of the rows that the migrations insert"
            # Without the weights of models, searches by `auto` weigh both legs alike.
            is_needed = not one.table.endswith("knowledge_model_weights")
            yield "error" if is_needed else "warning", message, REPAIR
        else:
            yield (
                "info",
                f"{one.table} lacks {', '.join(one.keys)}, which the migrations insert",
                f"Unless you have deleted them, run: {one.statement}",
            )
    if not missing:
        yield "ok", "the rows that the migrations insert are there", None


def chunks(connection: psycopg.Connection[Any], schema: str) -> Findings:
    """Look for chunks whose words are not those of their text, or whose document is missing."""
    names = {
        "schema": sql.Identifier(schema),
        "internals": sql.Identifier(naming.internals(schema)),
        "share": sql.Literal(_share(connection, schema)),
    }
    ((read, wrong),) = connection.execute(sql.SQL(_WRONG_TEXT).format(**names)).fetchall()
    if wrong:
        yield (
            "error",
            f"the words of {wrong} of {read} chunks are not those of their text: they were loaded"
            " without the triggers, or a text search configuration was changed",
            f"Run: {_ANALYSE.format(schema=schema)}",
        )
    for count, example in connection.execute(sql.SQL(_WITHOUT_DOCUMENT).format(**names)):
        yield (
            "error",
            f"{count} chunks have no document, such as {example}: they were loaded without it",
            f"Load the documents; or keep the chunks, run: {_DETACH.format(schema=schema)}",
        )


def _share(connection: psycopg.Connection[Any], schema: str) -> float:
    (share,) = connection.execute(_SHARE, [f"{schema}.knowledge_chunks"]).fetchone() or (100,)
    return 100 if share is None else float(share)
