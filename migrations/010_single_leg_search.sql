-- 010_single_leg_search: one leg of the hybrid search at a time.
-- Adds: functions match_knowledge_chunks, search_knowledge_chunks_fulltext.
-- Locks nothing that exists.

create or replace function public.match_knowledge_chunks(
  query_embedding extensions.vector,
  match_count integer default 5,
  match_threshold double precision default 0.6,
  filter_type text default null
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
language plpgsql
stable
security definer
set search_path = ''
as $$
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
           filter_type => match_knowledge_chunks.filter_type
         ) as hit;
end
$$;

comment on function public.match_knowledge_chunks is
  'Chunks nearest to an embedding, best first: the vector leg of hybrid_search_knowledge_chunks. '
  'match_threshold is the least cosine similarity. Raises 22023 for an argument out of bounds.';
revoke all on function public.match_knowledge_chunks from public, anon, authenticated;
grant execute on function public.match_knowledge_chunks to service_role;

create or replace function public.search_knowledge_chunks_fulltext(
  query_text text,
  search_mode text default 'websearch',
  filter_type text default null,
  match_count integer default 10
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
language plpgsql
stable
security definer
set search_path = ''
as $$
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
           search_mode => search_knowledge_chunks_fulltext.search_mode
         ) as hit;
end
$$;

comment on function public.search_knowledge_chunks_fulltext is
  'Chunks with the words of a query, best first: the text leg of hybrid_search_knowledge_chunks; '
  'rank is the BM25 score. Raises 22023 for an argument out of bounds.';
revoke all on function public.search_knowledge_chunks_fulltext from public, anon, authenticated;
grant execute on function public.search_knowledge_chunks_fulltext to service_role;

notify pgrst, 'reload schema';
