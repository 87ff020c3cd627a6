-- 013_monitoring: what is stored, and whether the database is in a state to search it fast.
-- Adds: functions knowledge_embedding_models, knowledge_search_health. Locks nothing that exists.

create or replace function public.knowledge_embedding_models()
returns table (model text, dimensions integer, chunks bigint)
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  counted_pages constant bigint := 1024;
  newest_pages constant bigint := 16;
  sampled_pages constant bigint := 64;
  rows_in_page constant integer := 32;
  -- In so many pages a model of this share of the rows is missed once in 30,000 times.
  common_share constant float8 := 0.15;
  table_id constant regclass := 'public.knowledge_chunks'::regclass;
  pages bigint := pg_relation_size(table_id) / current_setting('block_size')::bigint;
  older_pages bigint := pages - newest_pages;
begin
  select nullif(attribute.atttypmod, -1)
    into dimensions
    from pg_catalog.pg_attribute as attribute
   where attribute.attrelid = table_id
     and attribute.attname = 'embedding';

  if pages <= counted_pages then
    return query
    select chunk.embedding_model, knowledge_embedding_models.dimensions, count(*)
      from public.knowledge_chunks as chunk
     where chunk.status = 'active'
       and chunk.embedding is not null
     group by chunk.embedding_model
     order by count(*) desc, chunk.embedding_model;
    return;
  end if;

  return query
  with sample as materialized (
    select chunk.embedding_model,
           round(sum(
             case
               when chunk.ctid < format('(%s,0)', older_pages)::tid
                 then older_pages::float8 / sampled_pages
               else 1
             end
           ))::bigint as chunks
      from public.knowledge_chunks as chunk
     where chunk.ctid = any (array(
             select format('(%s,%s)', page.number, line.number)::tid
               from (
                 select drawn.number * older_pages / sampled_pages as number
                   from generate_series(0, sampled_pages - 1) as drawn (number)
                  union all
                 select newest.number
                   from generate_series(older_pages, pages - 1) as newest (number)
               ) as page
              cross join generate_series(1, rows_in_page) as line (number)
           ))
       and chunk.status = 'active'
       and chunk.embedding is not null
     group by chunk.embedding_model
  ),
  inactive as (
    select coalesce(sum(value.share), 0) as share
      from pg_catalog.pg_stats as statistics
     cross join unnest(
             statistics.most_common_vals::text::text[], statistics.most_common_freqs
           ) as value (status, share)
     where statistics.schemaname = 'public'
       and statistics.tablename = 'knowledge_chunks'
       and statistics.attname = 'status'
       and value.status <> 'active'
  ),
  listed as (
    select common.embedding_model,
           greatest(round(class.reltuples * common.share), 1)::bigint as chunks
      from pg_catalog.pg_stats as statistics
      join pg_catalog.pg_class as class on class.oid = table_id
     cross join inactive
     cross join lateral (
             select value.embedding_model, coalesce(value.share, 0) as share
               from unnest(
                      statistics.most_common_vals::text::text[], statistics.most_common_freqs
                    ) as value (embedding_model, share)
              union all
             select distinct bound.embedding_model, 0
               from unnest(statistics.histogram_bounds::text::text[]) as bound (embedding_model)
           ) as common
     where statistics.schemaname = 'public'
       and statistics.tablename = 'knowledge_chunks'
       and statistics.attname = 'embedding_model'
       -- Common when the table was analysed and in no page now: it is gone.
       and common.share < common_share
       -- Else it may have superseded rows alone.
       and (common.share > inactive.share or inactive.share = 0)
       and not exists (
             select from sample where sample.embedding_model = common.embedding_model
           )
  )
  select stored.embedding_model, knowledge_embedding_models.dimensions, stored.chunks
    from (
      select sample.embedding_model, sample.chunks from sample
       union all
      select listed.embedding_model, listed.chunks from listed
    ) as stored
   order by stored.chunks desc, stored.embedding_model;
end
$$;

comment on function public.knowledge_embedding_models() is
  'The models that the embeddings of active chunks are of, most chunks first: model (null where '
  'none was recorded), dimensions of the column, chunks. Counted while the table has up to 8 MB; '
  'above, chunks is estimated from the table''s newest pages and a sample of the others, and rare '
  'models are those that ANALYZE listed. A model of less than about 5 % of the chunks may be missed '
  'until the next ANALYZE when its rows are not at the end of the table, and one that has gone may '
  'be named until then when it was rare.';
revoke all on function public.knowledge_embedding_models() from public, anon, authenticated;
grant execute on function public.knowledge_embedding_models() to service_role;

notify pgrst, 'reload schema';
