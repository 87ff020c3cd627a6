"""The SQL of providers and writers: each statement calls one function of the migrations.

Statements are constants with named arguments; no value of a caller becomes a part of the SQL. They
are written for the default install: `Install.statement` puts the schema of another one in place.
"""

import json
from collections.abc import Mapping
from typing import Any, LiteralString

from pgvector import Vector
from pgvector.psycopg.vector import VectorBinaryDumper
from psycopg.abc import AdaptContext

from second_brain.errors import InvalidInputError

MAX_DIMENSIONS = 16_000
"""The maximum dimension of pgvector's type vector."""

_HIT_COLUMNS = """
  id, content, knowledge_type, document_id, chunk_index, source_origin, metadata,
  rrf_score, vector_rank, text_rank,
  similarity, text_score, match_type, matched_terms, title, source_url,
  collection, document_date, snippet, context, total_count, pool_ended,
  heading, sensitivity, collections, document_chunks, external_key, source_row, confidence,
  notes
"""

_PUBLIC_ARGUMENTS = """
  query_embedding => %(query_embedding)s,
  query_text => %(query_text)s::text,
  match_count => %(match_count)s::integer,
  match_threshold => %(match_threshold)s::float8,
  vector_weight => %(vector_weight)s::float8,
  text_weight => %(text_weight)s::float8,
  filter_type => %(filter_type)s::text,
  search_mode => %(search_mode)s::text,
  pool_size => %(pool_size)s::integer,
  rrf_k => %(rrf_k)s::float8,
  fusion => %(fusion)s::text,
  filters => %(filters)s::jsonb,
  date_from => %(date_from)s::date,
  date_to => %(date_to)s::date,
  collections => %(collections)s::text[],
  one_per_document => %(one_per_document)s::boolean,
  neighbor_window => %(neighbor_window)s::integer,
  recency_half_life => %(recency_half_life)s::float8,
  match_offset => %(match_offset)s::integer,
  snippet => %(snippet)s::boolean,
  formulations => %(formulations)s::jsonb,
  on_bad_embedding => %(on_bad_embedding)s::text,
  prefix_last => %(prefix_last)s::boolean
"""

_OWN_ARGUMENTS = f"""{_PUBLIC_ARGUMENTS},
  public_only => %(public_only)s::boolean
"""

_ARGUMENTS = f"""{_OWN_ARGUMENTS},
  viewer_id => %(viewer_id)s::uuid,
  viewer_groups => %(viewer_groups)s::text[]
"""

_SEARCH = "search => %(search)s::jsonb"

_FACETS = "facets => %(facets)s::text[], facet_limit => %(facet_limit)s::integer"

# The f-strings contain only the constants above.
SEARCHES: dict[str, LiteralString] = {
    "hybrid_search_knowledge_chunks": f"""
        select {_HIT_COLUMNS} from public.hybrid_search_knowledge_chunks({_ARGUMENTS})
    """,  # noqa: S608
    "search_my_knowledge_chunks": f"""
        select {_HIT_COLUMNS} from public.search_my_knowledge_chunks({_OWN_ARGUMENTS})
    """,  # noqa: S608
    "search_public_knowledge_chunks": f"""
        select {_HIT_COLUMNS} from public.search_public_knowledge_chunks({_PUBLIC_ARGUMENTS})
    """,  # noqa: S608
    "hybrid_search_knowledge_chunks_batch": f"""
        select query_index, {_HIT_COLUMNS}
        from public.hybrid_search_knowledge_chunks_batch(
          queries => %(queries)s::jsonb,
          fuse => %(fuse)s::boolean
        )
    """,  # noqa: S608
    "explain_hybrid_search": f"""
        select public.explain_hybrid_search({_SEARCH}) as explained
    """,
    "estimate_hybrid_search": f"""
        select public.estimate_hybrid_search({_SEARCH}) as estimated
    """,
    "explain_missing_knowledge_chunk": f"""
        select public.explain_missing_knowledge_chunk(
          {_SEARCH},
          chunk_id => %(chunk_id)s::uuid,
          document_key => %(document_key)s::text
        ) as explained
    """,
    "count_matching_knowledge_chunks": f"""
        select public.count_matching_knowledge_chunks({_SEARCH}) as counted
    """,
    "count_pending_knowledge_embeddings": f"""
        select public.count_pending_knowledge_embeddings({_SEARCH}) as counted
    """,
    "count_my_pending_knowledge_embeddings": f"""
        select public.count_my_pending_knowledge_embeddings({_SEARCH}) as counted
    """,
    "facet_knowledge_chunks": f"""
        select facet, value, count from public.facet_knowledge_chunks({_SEARCH}, {_FACETS})
    """,  # noqa: S608
    "facet_my_knowledge_chunks": f"""
        select facet, value, count
        from public.facet_my_knowledge_chunks({_SEARCH}, {_FACETS})
    """,  # noqa: S608
    "read_knowledge_question": f"""
        select public.read_knowledge_question({_SEARCH}) as reading
    """,
    "knowledge_candidates": f"""
        select public.knowledge_candidates({_SEARCH}, readings => %(readings)s::jsonb) as found
    """,
    "fuse_knowledge_candidates": f"""
        select public.fuse_knowledge_candidates(
          {_SEARCH}, readings => %(readings)s::jsonb, candidates => %(candidates)s::jsonb
        ) as fused
    """,
    "knowledge_candidate_hits": f"""
        select {_HIT_COLUMNS} from public.knowledge_candidate_hits(
          {_SEARCH}, readings => %(readings)s::jsonb, page => %(page)s::jsonb
        )
    """,  # noqa: S608
    "match_knowledge_chunks": """
        select
          id, content, knowledge_type, document_id, chunk_index, source_origin, metadata, similarity
        from public.match_knowledge_chunks(
          query_embedding => %(query_embedding)s,
          match_count => %(match_count)s::integer,
          match_threshold => %(match_threshold)s::float8,
          filter_type => %(filter_type)s::text,
          viewer_id => %(viewer_id)s::uuid,
          public_only => %(public_only)s::boolean,
          viewer_groups => %(viewer_groups)s::text[]
        )
    """,
    "search_knowledge_chunks_fulltext": """
        select
          id, content, knowledge_type, document_id, chunk_index, source_origin, metadata, rank
        from public.search_knowledge_chunks_fulltext(
          query_text => %(query_text)s::text,
          search_mode => %(search_mode)s::text,
          filter_type => %(filter_type)s::text,
          match_count => %(match_count)s::integer,
          viewer_id => %(viewer_id)s::uuid,
          public_only => %(public_only)s::boolean,
          viewer_groups => %(viewer_groups)s::text[]
        )
    """,
    "read_knowledge_document": """
        select public.read_knowledge_document(
          document => %(document)s::uuid,
          viewer_id => %(viewer_id)s::uuid,
          viewer_groups => %(viewer_groups)s::text[],
          public_only => %(public_only)s::boolean,
          collections => %(collections)s::text[],
          chunk_count => %(chunk_count)s::integer,
          chunk_offset => %(chunk_offset)s::integer
        ) as content
    """,
    "list_visible_knowledge_documents": """
        select
          id, external_key, title, knowledge_type, collection, source_origin, source_url,
          document_date, visibility, is_own, chunk_count, created_at, updated_at
        from public.list_visible_knowledge_documents(
          viewer_id => %(viewer_id)s::uuid,
          viewer_groups => %(viewer_groups)s::text[],
          public_only => %(public_only)s::boolean,
          collections => %(collections)s::text[],
          page_size => %(page_size)s::integer,
          after_key => %(after_key)s::text
        )
    """,
    "knowledge_embedding_models": """
        select model, dimensions, chunks from public.knowledge_embedding_models()
    """,
    "record_knowledge_queries": """
        select public.record_knowledge_queries(
          queries => %(queries)s::jsonb,
          most_rows => %(most_rows)s::integer,
          max_age => %(max_age)s::interval
        ) as written
    """,
}

# A shorter statement_timeout of the role is kept.
SET_TIMEOUT = """
    select pg_catalog.set_config(
      'statement_timeout',
      least(
        nullif(
          1000 * extract(
            epoch from pg_catalog.current_setting('statement_timeout')::pg_catalog.interval
          ),
          0
        ),
        %(milliseconds)s::integer
      )::integer::text,
      true
    )
"""

UPSERT_DOCUMENT = """
    select
      document_id, chunks_added, chunks_changed, chunks_unchanged, chunks_removed,
      embeddings_reused, embeddings_missing
    from public.upsert_knowledge_document(
      document => %(document)s::jsonb,
      chunks => %(chunks)s::jsonb,
      fields => %(fields)s::text
    )
"""

MISSING_EMBEDDINGS = """
    select public.missing_knowledge_embeddings(
      content_hashes => %(content_hashes)s::text[],
      model => %(embedding_model)s::text
    )
"""

DELETE_DOCUMENT = """
    select public.delete_knowledge_document(document_key => %(external_key)s::text)
"""

DELETE_OWNER = """
    select documents_deleted, chunks_deleted
    from public.delete_knowledge_owner(owner => %(owner_id)s::uuid)
"""

PURGE = """
    select public.purge_knowledge_chunks(older_than => %(older_than)s::interval)
"""

SET_SETTINGS = """
    select collection, fusion, vector_weight, text_weight, embedding_model, updated_at
    from public.set_knowledge_settings(
      collection => %(collection)s::text,
      fusion => %(fusion)s::text,
      vector_weight => %(vector_weight)s::float8,
      text_weight => %(text_weight)s::float8,
      embedding_model => %(embedding_model)s::text
    )
"""

LIST_SETTINGS = """
    select collection, fusion, vector_weight, text_weight, embedding_model, updated_at
    from public.list_knowledge_settings()
"""

RESET_SETTINGS = """
    select public.reset_knowledge_settings(collection => %(collection)s::text)
"""

# Without synchronous_commit, a commit is in the WAL before it is flushed. The flushed position is
# the end of a record; the inserted one can be some bytes after it, at the end of a page.
WAL_POSITION: LiteralString = """
select case
         when current_setting('synchronous_commit') = 'off' then pg_current_wal_insert_lsn()
         else pg_current_wal_flush_lsn()
       end::text as position
"""

REFRESH_STATISTICS = """
    select public.refresh_knowledge_statistics()
"""

_JSON_ARGUMENTS = {
    "search",
    "filters",
    "formulations",
    "queries",
    "readings",
    "candidates",
    "page",
}


def parameters(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return a search's arguments in the form of its statement: JSON as text, a Vector.

    Raises InvalidInputError for an embedding that is not a list of numbers.
    """
    sent = {
        # As text, so that errors are the same as over PostgREST.
        name: json.dumps(value) if name in _JSON_ARGUMENTS and value is not None else value
        for name, value in arguments.items()
    }
    embedding = sent.get("query_embedding")
    # A str is in pgvector's text format, which the database parses.
    if embedding is not None and not isinstance(embedding, str):
        sent["query_embedding"] = _vector(embedding)
    return sent


def register_vector(context: AdaptContext) -> None:
    """Send a Vector in binary format, which has a fifth of the size of its text.

    The function's argument gives the type, so no query for its oid is necessary. A registration on
    a cursor does not change the caller's connection.
    """
    context.adapters.register_dumper(Vector, VectorBinaryDumper)


def _vector(embedding: object) -> Vector:
    if not isinstance(embedding, list):
        raise InvalidInputError(
            f"query_embedding must be a list of numbers, not {type(embedding).__name__}"
        )
    if len(embedding) > MAX_DIMENSIONS:
        raise InvalidInputError(
            f"query_embedding has {len(embedding)} dimensions, but at most {MAX_DIMENSIONS} are "
            "allowed"
        )
    try:
        return Vector(embedding)
    except ValueError as error:
        raise InvalidInputError(f"query_embedding must be a list of numbers: {error}") from error
