-- 012_search_variants: other functions that call the hybrid search; they do no ranking themselves.
-- Adds: functions match_knowledge_chunks, search_knowledge_chunks_fulltext,
-- hybrid_search_knowledge_chunks_batch. Locks nothing that exists.

-- The public functions are security definer, because service_role has no rights on the internal
-- schema.

create function public.match_knowledge_chunks(
  query_embedding extensions.vector,
  match_count integer default 5,
  match_threshold double precision default 0.6,
  filter_type text default null,
  viewer_id uuid default null,
  public_only boolean default false,
  viewer_groups text[] default null
)
returns table (
  id uuid,
  content text,
  knowledge_type text,
  document_id uuid,
  chunk_index integer,
  source_origin text,
  metadata jsonb,
  similarity double precision
)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
begin
  if query_embedding is null then
    raise exception 'query_embedding is missing' using errcode = '22023';
  end if;
  return query
  select hit.id, hit.content, hit.knowledge_type, hit.document_id, hit.chunk_index,
         hit.source_origin, hit.metadata, hit.similarity
    from public.hybrid_search_knowledge_chunks(
           query_embedding => match_knowledge_chunks.query_embedding,
           match_count => match_knowledge_chunks.match_count,
           match_threshold => match_knowledge_chunks.match_threshold,
           filter_type => match_knowledge_chunks.filter_type,
           viewer_id => match_knowledge_chunks.viewer_id,
           public_only => match_knowledge_chunks.public_only,
           viewer_groups => match_knowledge_chunks.viewer_groups
         ) as hit;
end
$$;

comment on function public.match_knowledge_chunks is
  'Chunks nearest to an embedding, best first: the vector leg of hybrid_search_knowledge_chunks. '
  'match_threshold is the least cosine similarity. viewer_id, viewer_groups, public_only: as in '
  'hybrid_search_knowledge_chunks. Raises 22023 for an argument out of bounds.';
revoke all on function public.match_knowledge_chunks from public, anon, authenticated;
grant execute on function public.match_knowledge_chunks to service_role;

create function public.search_knowledge_chunks_fulltext(
  query_text text,
  search_mode text default 'websearch',
  filter_type text default null,
  match_count integer default 10,
  viewer_id uuid default null,
  public_only boolean default false,
  viewer_groups text[] default null
)
returns table (
  id uuid,
  content text,
  knowledge_type text,
  document_id uuid,
  chunk_index integer,
  source_origin text,
  metadata jsonb,
  rank double precision
)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
begin
  if coalesce(query_text, '') !~ '\S' then
    raise exception 'query_text is missing' using errcode = '22023';
  end if;
  return query
  select hit.id, hit.content, hit.knowledge_type, hit.document_id, hit.chunk_index,
         hit.source_origin, hit.metadata, hit.text_score
    from public.hybrid_search_knowledge_chunks(
           query_text => search_knowledge_chunks_fulltext.query_text,
           match_count => search_knowledge_chunks_fulltext.match_count,
           filter_type => search_knowledge_chunks_fulltext.filter_type,
           search_mode => search_knowledge_chunks_fulltext.search_mode,
           viewer_id => search_knowledge_chunks_fulltext.viewer_id,
           public_only => search_knowledge_chunks_fulltext.public_only,
           viewer_groups => search_knowledge_chunks_fulltext.viewer_groups
         ) as hit;
end
$$;

comment on function public.search_knowledge_chunks_fulltext is
  'Chunks with the words of a query, best first: the text leg of hybrid_search_knowledge_chunks; '
  'rank is the BM25 score. viewer_id, viewer_groups, public_only: as in '
  'hybrid_search_knowledge_chunks. Raises 22023 for an argument out of bounds.';
revoke all on function public.search_knowledge_chunks_fulltext from public, anon, authenticated;
grant execute on function public.search_knowledge_chunks_fulltext to service_role;

create function public.hybrid_search_knowledge_chunks_batch(
  queries jsonb,
  fuse boolean default false
)
returns table (
  query_index integer,
  id uuid,
  content text,
  knowledge_type text,
  document_id uuid,
  chunk_index integer,
  source_origin text,
  metadata jsonb,
  rrf_score double precision,
  vector_rank bigint,
  text_rank bigint,
  similarity double precision,
  text_score double precision,
  match_type text,
  matched_terms text[],
  title text,
  source_url text,
  collection text,
  document_date date,
  snippet text,
  context text,
  total_count bigint,
  pool_ended boolean,
  heading text,
  sensitivity text,
  collections text[],
  document_chunks integer,
  external_key text,
  source_row jsonb,
  confidence double precision,
  notes jsonb
)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
  most_queries constant integer := 50;
  most_formulations constant integer := 11; -- the search's own query and ten formulations
  most_rows constant integer := 1000; -- PostgREST truncates larger results without an error
  given knowledge_internal.search_arguments;
  item record;
  row_count integer;
  rows_so_far integer := 0;
begin
  if jsonb_typeof(queries) is distinct from 'array'
     or jsonb_array_length(queries) not between 1 and most_queries
  then
    raise exception 'queries must be an array of 1 to % objects', most_queries
      using errcode = '22023';
  end if;
  if fuse is null then
    raise exception 'fuse must be true or false, not null' using errcode = '22023';
  end if;
  for item in
    select listed.query, listed.number - 1 as number
      from jsonb_array_elements(queries) with ordinality as listed (query, number)
     order by listed.number
  loop
    if jsonb_typeof(item.query) <> 'object' then
      raise exception 'queries[%] must be an object of arguments', item.number
        using errcode = '22023';
    end if;
    if fuse and item.number > 0
       and item.query - '{query_text,query_embedding}'::text[] <> '{}'
    then
      raise exception 'queries[%] may have only query_text and query_embedding: with fuse, the '
                      'other arguments belong in queries[0]', item.number
        using errcode = '22023';
    end if;
  end loop;
  if fuse then
    if jsonb_array_length(queries) > most_formulations then
      raise exception 'queries must be an array of 1 to % objects with fuse', most_formulations
        using errcode = '22023';
    end if;
    if queries -> 0 ? 'formulations' then
      raise exception 'queries[0].formulations is not allowed with fuse' using errcode = '22023';
    end if;
    queries := jsonb_build_array(
      (queries -> 0) || jsonb_build_object('formulations', queries - 0)
    );
  end if;

  for item in
    select listed.query, listed.number - 1 as number
      from jsonb_array_elements(queries) with ordinality as listed (query, number)
     order by listed.number
  loop
    given := knowledge_internal.given_arguments(item.query, format('queries[%s]', item.number));
    begin
      return query
      select item.number::integer, hit.* from knowledge_internal.search(given) as hit;
      get diagnostics row_count = row_count;
    exception when data_exception then
      raise exception 'queries[%]: %', item.number, sqlerrm using errcode = '22023';
    end;
    rows_so_far := rows_so_far + row_count;
    if rows_so_far > most_rows then
      raise exception 'queries have more than % rows together, lower their match_count', most_rows
        using errcode = '22023';
    end if;
  end loop;
end
$$;

comment on function public.hybrid_search_knowledge_chunks_batch is
  'Several searches in one call. queries: an array of 1 to 50 objects, each with named arguments '
  'of hybrid_search_knowledge_chunks. query_index: the index of the query that a hit belongs to, '
  'from 0. fuse: the objects are formulations of one query, whose results are fused into one list; '
  'the first object also has the other arguments. Raises 22023 for an invalid argument, with the '
  'index of the query in the message, and for more than 1,000 rows in total.';
revoke all on function public.hybrid_search_knowledge_chunks_batch from public, anon, authenticated;
grant execute on function public.hybrid_search_knowledge_chunks_batch to service_role;

notify pgrst, 'reload schema';
