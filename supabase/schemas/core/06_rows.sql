-- 006_rows: the only statements by which a search, and the modules, read the rows of chunks.
-- Adds: type page_row, and the functions that read rows by ids, in documents, by the indexes and in
-- samples. Locks nothing that exists.

-- Each function makes one plain statement about each table: no lateral or outer join and no
-- sub-query that reads the table again, so that an engine which distributes the rows can plan it.
-- Which rows may be read is said by a row_scope alone.

-- What a page of hits, or of a document, shows of a row.
create type knowledge_internal.page_row as (
  id uuid, content text, knowledge_type text, document_id uuid, chunk_index integer,
  source_id uuid, source_origin text, metadata jsonb, content_tsv tsvector, collection text,
  document_date date, language text, heading text, sensitivity text, source_row jsonb
);

-- The rows with these ids. bm25 to distance: null where they are not asked for.
-- distance: the cosine distance to an embedding.
create function knowledge_internal.rows_by_id(
  ids uuid[], has_bm25 boolean default false, has_lexemes boolean default false,
  has_embedding boolean default false, asked_embedding extensions.vector default null
) returns table (
  id uuid, document_id uuid, chunk_index integer, collection text, text_length integer,
  content_hash text, bm25 extensions.sparsevec, content_tsv tsvector, embedding extensions.vector,
  distance double precision
)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return query
  select chunk.id, chunk.document_id, chunk.chunk_index, chunk.collection, chunk.text_length,
         chunk.content_hash, case when has_bm25 then chunk.bm25 end,
         case when has_lexemes then chunk.content_tsv end,
         case when has_embedding then chunk.embedding end,
         case when asked_embedding is not null
           then chunk.embedding operator(extensions.<=>) asked_embedding end
    from knowledge_internal.chunk_rows as chunk
   where chunk.id = any (ids);
end
$$;

create function knowledge_internal.page_rows(ids uuid[], has_text boolean default true)
returns setof knowledge_internal.page_row
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return query
  select chunk.id, case when has_text then chunk.content end, chunk.knowledge_type,
         chunk.document_id, chunk.chunk_index, chunk.source_id, chunk.source_origin,
         chunk.metadata, case when has_text then chunk.content_tsv end, chunk.collection,
         chunk.document_date, chunk.language, chunk.heading, chunk.sensitivity, chunk.source_row
    from (
      select stored.* from knowledge_internal.chunk_rows as stored where stored.id = any (ids)
      offset 0 -- or a text that is kept elsewhere is read twice
    ) as chunk
   -- A text that is kept elsewhere can be gone.
   where chunk.content is not null;
end
$$;

-- Those of the rows that are in scope.
create function knowledge_internal.rows_in_scope(
  ids uuid[], scope knowledge_internal.row_scope
) returns table (id uuid, collection text)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return query execute
    'select chunk.id, chunk.collection from public.knowledge_chunks as chunk'
    ' where chunk.id = any ($2) and ' || scope.matching
    using scope, ids;
end
$$;

-- The first rows in scope, in any order, that match a query; checked: a second query, for which no
-- index is read.
create function knowledge_internal.some_rows(
  scope knowledge_internal.row_scope, most integer, query tsquery default null,
  checked tsquery default null, collections text[] default null
) returns table (id uuid, heading text, content text, content_tsv tsvector)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return query execute
    'select chunk.id, chunk.heading, chunk.content, chunk.content_tsv'
    '  from knowledge_internal.chunk_rows as chunk'
    ' where ' || scope.matching
    || case when query is not null then ' and chunk.content_tsv @@ $3' else '' end
    || case when checked is not null then ' and chunk.content_tsv || '''' @@ $4' else '' end
    || case when collections is not null then ' and chunk.collection = any ($5)' else '' end
    || ' limit $2'
    using scope, most, query, checked, collections;
end
$$;

-- The rows that a viewer may see of those with these ids and of documents with these ids.
create function knowledge_internal.rows_of(
  asked uuid[], scope knowledge_internal.row_scope
) returns table (id uuid, document_id uuid, chunk_index integer, collection text)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return query execute
    'select chunk.id, chunk.document_id, chunk.chunk_index, chunk.collection'
    '  from public.knowledge_chunks as chunk'
    ' where ' || scope.visible || ' and (chunk.id = any ($2) or chunk.document_id = any ($2))'
    using scope, asked;
end
$$;

-- How many rows of each document a viewer may see; placed: those with a place in it.
create function knowledge_internal.sizes_of_documents(
  documents uuid[], scope knowledge_internal.row_scope
) returns table (document_id uuid, chunks bigint, placed bigint)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  if scope.is_restricted then
    return query execute
      'select chunk.document_id, count(*), count(chunk.chunk_index)'
      '  from public.knowledge_chunks as chunk'
      ' where chunk.document_id = any ($2) and ' || scope.visible ||
      ' group by chunk.document_id'
      using scope, documents;
  else
    -- Planned once.
    return query
    select chunk.document_id, count(*), count(chunk.chunk_index)
      from public.knowledge_chunks as chunk
     where chunk.document_id = any (documents) and chunk.status = 'active'
     group by chunk.document_id;
  end if;
end
$$;

-- The texts around rows, as far as a viewer may see them: those of the same document and collection
-- at most window_size places away.
create function knowledge_internal.surroundings(
  rows knowledge_internal.page_row[], window_size integer, scope knowledge_internal.row_scope
) returns table (id uuid, context text)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  if window_size = 0 then
    return;
  end if;
  return query execute
    'select hit.id, string_agg(chunk.content, chr(10) || ''[CHUNK BOUNDARY]'' || chr(10)'
    '                          order by chunk.chunk_index, chunk.id)'
    '  from unnest($2) as hit'
    '  join knowledge_internal.chunk_rows as chunk'
    '    on chunk.document_id = hit.document_id and chunk.collection = hit.collection'
    '   and chunk.chunk_index between hit.chunk_index::bigint - $3 and hit.chunk_index::bigint + $3'
    ' where ' || scope.visible ||
    ' group by hit.id'
    using scope, rows, window_size;
end
$$;

-- Extension point: the nearest rows by the vector index of the table, merged with those that are
-- found elsewhere. scope: null for all active rows.
create function knowledge_internal.nearest_elsewhere(
  near_ids uuid[], near_similarities double precision[], asked_embedding extensions.vector,
  collection text, scope knowledge_internal.row_scope, most integer, out ids uuid[],
  out similarities double precision[]
)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  ids := near_ids;
  similarities := near_similarities;
end
$$;

-- The rows in scope that the vector indexes find nearest to an embedding, nearest first.
create function knowledge_internal.nearest_rows(
  asked_embedding extensions.vector, collection text, scope knowledge_internal.row_scope,
  most integer, out ids uuid[], out similarities double precision[]
)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  execute
    'select array_agg(near.id order by near.distance, near.id),'
    '       array_agg(1 - near.distance order by near.distance, near.id)'
    '  from ('
    '    select chunk.id, chunk.embedding operator(extensions.<=>) $2 as distance'
    '      from knowledge_internal.searchable_chunks as chunk'
    '     where ' || scope.matching ||
    case when collection is not null then ' and chunk.collection = $5' else '' end ||
    '       and chunk.embedding is not null'
    '     order by chunk.indexed_embedding operator(extensions.<=>) $3'
    '     limit $4'
    '  ) as near'
    into ids, similarities
    -- The index has the first 4,000 dimensions, as in indexed_embedding.
    using scope, asked_embedding,
          extensions.l2_normalize(extensions.subvector(asked_embedding, 1, 4000)), most, collection;
  select merged.ids, merged.similarities into ids, similarities
    from knowledge_internal.nearest_elsewhere(
           ids, similarities, asked_embedding, collection, scope, most
         ) as merged;
end
$$;

-- The rows in scope that are nearest by embedding_bits, of all of them, which the indexes of its
-- conditions find.
create function knowledge_internal.compared_rows(
  bits bit varying, collection text, scope knowledge_internal.row_scope, most integer
) returns uuid[]
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  ids uuid[];
begin
  execute
    'select array('
    '  select chunk.id from public.knowledge_chunks as chunk'
    '   where ' || scope.matching || ' and chunk.embedding_bits is not null' ||
    case when collection is not null then ' and chunk.collection = $3' else '' end ||
    '   order by chunk.embedding_bits operator(extensions.<~>) $2, chunk.id'
    '   limit $4)'
    into ids
    using scope, bits, collection, most;
  return ids;
end
$$;

-- The rows in scope that the text index finds by candidates, best first by their product with the
-- vector of the words. candidates: null for all rows with a word, compared without the text index.
-- query: what a row must match, too (null: nothing more).
create function knowledge_internal.worded_rows(
  weights extensions.sparsevec, candidates tsquery, query tsquery, collection text,
  scope knowledge_internal.row_scope, most integer, is_filtered boolean
) returns setof uuid
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return query execute
    'select chunk.id from public.knowledge_chunks as chunk'
    ' where ' || scope.matching ||
    case
      when candidates is null then ' and chunk.bm25 operator(extensions.<#>) $2 < 0'
      when is_filtered then ' and chunk.content_tsv @@ $3'
      -- Without a filter one index finds the rows, and estimating their number takes longer.
      else ' and chunk.content_tsv @@ (select $3)'
    end ||
    -- Not by the index: it would read the rows of every word.
    case when query is not null then ' and (chunk.content_tsv @@ $4) is true' else '' end ||
    case when collection is not null then ' and chunk.collection = $5' else '' end ||
    ' order by chunk.bm25 operator(extensions.<#>) $2, chunk.id'
    ' limit $6'
    using scope, weights, candidates, query, collection, most;
end
$$;

-- All rows in scope, of some collections or of all: those that match one of the queries
-- (indexed_query, where there is one, finds them) or are at least so similar to one of the
-- embeddings; takes_all: every row.
create function knowledge_internal.matching_rows(
  asked knowledge_internal.question[], embeddings extensions.vector[],
  least_similarity double precision, takes_all boolean, collections text[],
  scope knowledge_internal.row_scope
) returns table (id uuid, document_id uuid)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  conditions constant text := scope.matching || case
    when collections is not null then ' and chunk.collection = any ($2)' else '' end;
begin
  return query execute
    'select chunk.id, chunk.document_id from unnest($3) as asked'
    '  join public.knowledge_chunks as chunk'
    '    on chunk.content_tsv @@ coalesce(asked.indexed_query, asked.matching_query)'
    '   and (asked.indexed_query is null or chunk.content_tsv || '''' @@ asked.matching_query)'
    ' where ' || conditions ||
    ' union '
    'select chunk.id, chunk.document_id from unnest($4) as asked (embedding)'
    '  join knowledge_internal.chunk_rows as chunk'
    '    on 1 - (chunk.embedding operator(extensions.<=>) asked.embedding) >= $5'
    ' where ' || conditions ||
    ' union '
    'select chunk.id, chunk.document_id from public.knowledge_chunks as chunk'
    ' where $6 and ' || conditions
    using scope, collections, asked, embeddings, least_similarity, takes_all;
end
$$;
