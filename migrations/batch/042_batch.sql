-- 042_batch: several searches in one call.
-- Module: batch.
-- Adds: function hybrid_search_knowledge_chunks_batch. Locks nothing that exists.
-- Written from supabase/schemas/modules/batch/42_batch.sql by `make baseline`: edit that file.

create function public.hybrid_search_knowledge_chunks_batch(queries jsonb)
returns table (
  query_index integer, id uuid, content text, knowledge_type text, document_id uuid,
  chunk_index integer, source_origin text, metadata jsonb, rrf_score double precision,
  vector_rank bigint, text_rank bigint, similarity double precision, text_score double precision,
  match_type text, matched_terms text[], title text, source_url text, collection text,
  document_date date, snippet text, context text, total_count bigint, pool_ended boolean,
  heading text, sensitivity text, collections text[], document_chunks integer, external_key text,
  source_row jsonb, confidence double precision, notes jsonb, answer_confidence double precision,
  duplicates integer
)
-- definer: service_role has no rights on the internal schema.
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
  most_queries constant integer := 50;
  most_rows constant integer := 1000; -- PostgREST truncates larger results without an error
  given knowledge_internal.search_arguments;
  item record;
  row_count integer;
  rows_so_far integer := 0;
begin
  perform knowledge_internal.check_caller('hybrid_search_knowledge_chunks_batch');
  if jsonb_typeof(queries) is distinct from 'array'
     or jsonb_array_length(queries) not between 1 and most_queries
  then
    raise exception 'queries must be an array of 1 to % objects', most_queries
      using errcode = '22023';
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
  'from 0. Raises 22023 for an invalid argument, with the index of the query in the message, and '
  'for more than 1,000 rows in total.';
revoke all on function public.hybrid_search_knowledge_chunks_batch from public, anon, authenticated;
grant execute on function public.hybrid_search_knowledge_chunks_batch to service_role;

notify pgrst, 'reload schema';
