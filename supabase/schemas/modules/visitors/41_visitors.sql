-- 041_visitors: the search for visitors, who find public rows within narrow limits.
-- Module: visitors.
-- Adds: function search_public_knowledge_chunks, which nobody may call until a project grants it.
-- Locks nothing that exists.

-- The search of a visitor, for whom only public rows are there, whatever the arguments say. An
-- argument of the search that asked lacks has its default.
create function knowledge_internal.search_for_visitor(
  query_embedding extensions.vector, asked jsonb
) returns setof public.knowledge_search_hit
-- definer: a visitor may not read the tables of the search, nor call it for all rows.
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
  given knowledge_internal.search_arguments;
begin
  perform knowledge_internal.check_granted('search_public_knowledge_chunks');
  given := jsonb_populate_record(
    knowledge_internal.given_arguments('{"public_only": true}'),
    asked - '{viewer_id,viewer_groups,public_only}'::text[]
  );
  given.query_embedding := query_embedding;
  -- Before the search, so that a visitor cannot make it work for an argument that is refused.
  perform knowledge_internal.check_cost(given, true);
  return query select hit.* from knowledge_internal.search_for_caller(given) as hit;
end
$$;

create function public.search_public_knowledge_chunks(
  query_embedding extensions.vector default null, query_text text default null,
  match_count integer default 10, match_threshold double precision default 0.0,
  vector_weight double precision default 1.0, text_weight double precision default 1.0,
  filter_type text default null, search_mode text default 'websearch',
  pool_size integer default 50, rrf_k double precision default 60, fusion text default null,
  filters jsonb default null, date_from date default null, date_to date default null,
  collections text[] default null, one_per_document boolean default false,
  neighbor_window integer default 0, recency_half_life double precision default null,
  match_offset integer default 0, snippet boolean default false, formulations jsonb default null,
  on_bad_embedding text default 'error', prefix_last boolean default false,
  embedding_from_text boolean default false, like_ids uuid[] default null,
  boosts jsonb default null, diversity double precision default 0,
  max_per_document integer default null, merge_duplicates boolean default false,
  min_confidence double precision default null, snippets integer default 1,
  order_by text default null, required_filters jsonb default null,
  as_of timestamp with time zone default now()
) returns setof public.knowledge_search_hit
language sql stable security invoker set search_path = pg_catalog, pg_temp
return knowledge_internal.search_for_visitor(
  query_embedding,
  jsonb_build_object(
    'query_text', query_text, 'match_count', match_count, 'match_threshold', match_threshold,
    'vector_weight', vector_weight, 'text_weight', text_weight, 'filter_type', filter_type,
    'search_mode', search_mode, 'pool_size', pool_size, 'rrf_k', rrf_k, 'fusion', fusion,
    'filters', filters, 'date_from', date_from, 'date_to', date_to, 'collections', collections,
    'one_per_document', one_per_document, 'neighbor_window', neighbor_window,
    'recency_half_life', recency_half_life, 'match_offset', match_offset, 'snippet', snippet,
    'formulations', formulations, 'on_bad_embedding', on_bad_embedding,
    'prefix_last', prefix_last, 'embedding_from_text', embedding_from_text, 'like_ids', like_ids,
    'boosts', boosts, 'diversity', diversity, 'max_per_document', max_per_document,
    'merge_duplicates', merge_duplicates, 'min_confidence', min_confidence, 'snippets', snippets,
    'order_by', order_by, 'required_filters', required_filters, 'as_of', as_of
  )
);

comment on function public.search_public_knowledge_chunks is
  'hybrid_search_knowledge_chunks for visitors: public rows only. Nobody may call it until a '
  'project grants it, as to anon. Its limits bound the cost of a call: match_count 50, '
  'match_offset 200, pool_size 100, neighbor_window 2, 5 collections, 2 formulations, 5 like_ids, '
  'pool_size times collections times questions 750, texts of 1,000 characters, filters and boosts '
  'of 2,000. The document frequencies of BM25 are those of all chunks. source_row is null unless '
  'the role may select this column of knowledge_documents. Raises 22023 for an argument out of '
  'bounds.';
revoke all on function public.search_public_knowledge_chunks
  from public, anon, authenticated, service_role;
-- No use to a role that may not call the function above: it has no usage on the internal schema.
grant execute on function knowledge_internal.search_for_visitor
  to anon, authenticated, service_role;
revoke all on all functions in schema knowledge_internal from public;

notify pgrst, 'reload schema';
