-- 016_monitoring: what is stored, and whether the database is in a state to search it fast.
-- Adds: functions knowledge_embedding_models, knowledge_search_health and the functions that
-- collect its figures and findings. Locks nothing that exists.
-- Written from supabase/schemas/16_monitoring.sql by `make baseline`: edit that file.

-- The public functions are definers: service_role may not read statistics of all tables.

create function knowledge_internal.chunk_sample(sampled_pages integer)
returns table (
  status text,
  embedding_model text,
  is_embedded boolean,
  lacks_words boolean,
  lacks_bits boolean,
  chunks bigint,
  is_estimated boolean
)
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
-- A custom plan knows is_estimated: it reads either all rows or the sampled positions.
set plan_cache_mode = force_custom_plan
as $$
declare
  newest_pages constant integer := 16;
  rows_in_page constant integer := 32;
  pages bigint := (select facts.pages from knowledge_internal.chunk_table() as facts);
  older_pages bigint := pages - newest_pages;
begin
  is_estimated := pages > 16 * sampled_pages;
  -- By ctid, since tablesample hashes the number of every page of the table.
  return query
  select chunk.status,
         chunk.embedding_model,
         chunk.embedding is not null,
         chunk.bm25 is null and chunk.text_length > 0,
         chunk.embedding is not null and chunk.embedding_bits is null,
         round(sum(
           case
             when chunk_sample.is_estimated and chunk.ctid < format('(%s,0)', older_pages)::tid
               then older_pages::float8 / sampled_pages
             else 1
           end
         ))::bigint,
         chunk_sample.is_estimated
    from public.knowledge_chunks as chunk
   where not chunk_sample.is_estimated
      or chunk.ctid = any (array(
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
   group by 1, 2, 3, 4, 5;
end
$$;

comment on function knowledge_internal.chunk_sample(integer) is
  'How many chunks there are of each kind: counted while the table has at most sixteen times as '
  'many pages as are to be sampled, else estimated from evenly spaced pages and the newest ones.';

create function public.knowledge_embedding_models()
returns table (model text, dimensions integer, chunks bigint)
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
  with sample as materialized (
    select one.embedding_model as model,
           sum(one.chunks)::bigint as chunks,
           bool_or(one.is_estimated) as is_estimated
      from knowledge_internal.chunk_sample(64) as one
     where one.status = 'active'
       and one.is_embedded
     group by one.embedding_model
  ),
  statistics as materialized (
    select analysed.name, recorded.most_common, recorded.shares, recorded.histogram
      from (values ('embedding_model'), ('status')) as analysed (name)
     cross join knowledge_internal.column_statistics(analysed.name) as recorded
     where (select bool_or(sample.is_estimated) from sample)
  ),
  inactive as (
    select coalesce(sum(value.share), 0) as share
      from statistics
     cross join unnest(statistics.most_common, statistics.shares) as value (status, share)
     where statistics.name = 'status'
       and value.status <> 'active'
  ),
  listed as (
    select value.model, coalesce(value.share, 0) as share
      from statistics
     cross join unnest(statistics.most_common || statistics.histogram, statistics.shares)
                as value (model, share)
     where statistics.name = 'embedding_model'
  ),
  rare as (
    select listed.model,
           greatest(round(max(listed.share) * facts.analysed_rows), 1)::bigint as chunks
      from listed
     cross join inactive
     cross join knowledge_internal.chunk_table() as facts
     where not exists (select from sample where sample.model = listed.model)
     group by listed.model, inactive.share, facts.analysed_rows
    -- A sample of 64 pages misses a model of 15 % of the rows once in 30,000 times, so a larger
    -- model that is not in the sample has no rows any more. A model with no more rows than are
    -- inactive may have superseded rows only.
    having max(listed.share) < 0.15
       and (max(listed.share) > inactive.share or inactive.share = 0)
  )
  select stored.model, facts.dimensions, stored.chunks
    from (
      select sample.model, sample.chunks from sample
       union all
      select rare.model, rare.chunks from rare
    ) as stored
   cross join knowledge_internal.chunk_table() as facts
   order by stored.chunks desc, stored.model
$$;

comment on function public.knowledge_embedding_models() is
  'The models that the embeddings of active chunks are of, most chunks first: model (null where '
  'none was recorded), dimensions of the column, chunks. Counted while the table has up to 8 MB. '
  'Above, chunks is estimated from the newest pages and a sample of the others, and models that '
  'the sample lacks are those that ANALYZE listed: a model of less than about 5 % of the chunks '
  'may be missed until the next ANALYZE, and while more chunks than it has are superseded; a rare '
  'one that is gone may be named until the next ANALYZE.';
revoke all on function public.knowledge_embedding_models() from public, anon, authenticated;
grant execute on function public.knowledge_embedding_models() to service_role;

create function knowledge_internal.few_rows()
returns integer
language plpgsql
immutable
parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $$
begin
  return 1000;
end
$$;

comment on function knowledge_internal.few_rows() is
  'The number of rows up to which statistics and unused indexes do not matter.';

create function knowledge_internal.index_findings(health jsonb)
returns table (severity text, "check" text, what text, remedy text)
language sql
stable
security invoker
set search_path = pg_catalog, pg_temp
as $$
  with chunks as (
    select (health #>> '{rows,total}')::numeric as total
  ),
  index as (
    select entry.*
      from jsonb_to_recordset(health -> 'indexes') as entry (
             "table" text, name text, kind text, leg text, is_unique boolean, is_valid boolean,
             bytes numeric, scans numeric
           )
  ),
  build as (
    select entry.*
      from jsonb_to_recordset(health -> 'builds')
             as entry ("table" text, name text, phase text, share numeric)
  )
  select case when build.phase is null then 'error' else 'warning' end, 'indexes',
         case leg.name
           when 'vector' then 'no index for the vectors (hnsw) on public.knowledge_chunks'
           else 'no index for the words (gin on content_tsv) on public.knowledge_chunks'
         end
         || case
              when build.phase is null then ''
              else format(
                     '; one is being built (%s, %s %%)', build.phase, round(100 * build.share)
                   )
            end,
         case
           when build.phase is null
             then 'Run `second-brain index build`, or create it as migration 003 does: searches '
                  'read the whole table without it.'
         end
    from (values ('vector'), ('text')) as leg (name)
    left join build on build."table" = 'public.knowledge_chunks' and build.name is null
   where not exists (select from index where index.leg = leg.name)

   union all
  select case when build.phase is null then 'error' else 'warning' end, 'indexes',
         index.name || case
           when build.phase is null then ' is not valid'
           else format(' is being built (%s, %s %%)', build.phase, round(100 * build.share))
         end,
         case
           when build.phase is null then 'Run: reindex index concurrently ' || index.name
         end
    from index
    left join build on build.name = index.name
   where not index.is_valid

   union all
  select 'warning', 'indexes',
         format('%s never used', string_agg(index.name, ', ' order by index.name)),
         'Nothing to do before the first search; after it, run: analyze public.knowledge_chunks'
    from index
   cross join chunks
   where index.leg is not null
     and index.is_valid
     and index.scans = 0
     and chunks.total >= knowledge_internal.few_rows()
  having count(*) > 0

   union all
  select 'info', 'indexes',
         format(
           '%s never used since the counters were reset, %s together',
           string_agg(index.name, ', ' order by index.name), pg_size_pretty(sum(index.bytes))
         ),
         'An index that no filter of yours reads may be dropped: writes are faster without it.'
    from index
   where index.leg is null
     and not index.is_unique
     and index.scans = 0
     and index.bytes >= 10 * 1024 ^ 2 -- a smaller index costs little
  having count(*) > 0
$$;

comment on function knowledge_internal.index_findings(jsonb) is
  'Findings of knowledge_search_health about missing, invalid and unused indexes.';

create function knowledge_internal.chunk_findings(health jsonb)
returns table (severity text, "check" text, what text, remedy text)
language sql
stable
security invoker
set search_path = pg_catalog, pg_temp
as $$
  with chunks as (
    select (health #>> '{rows,active}')::numeric as active,
           (health #>> '{rows,without_embedding}')::numeric as without_embedding,
           (health #>> '{rows,without_words}')::numeric as without_words,
           (health #>> '{rows,without_bits}')::numeric as without_bits
  )
  select 'error', 'triggers',
         format(
           '%s of %s is disabled: rows written since lack what it sets',
           trigger.name, trigger."table"
         ),
         format('Run: alter table %s enable trigger %s', trigger."table", trigger.name)
    from jsonb_to_recordset(health -> 'disabled_triggers') as trigger ("table" text, name text)

   union all
  select 'error', 'chunks',
         format('%s chunks have words that no search finds (bm25 is null)', chunks.without_words),
         'Run: update public.knowledge_chunks set content_tsv = null '
         'where bm25 is null and text_length > 0'
    from chunks
   where chunks.without_words > 0

   union all
  select 'error', 'chunks',
         format(
           '%s chunks have an embedding that a search under a filter may miss '
           '(embedding_bits is null)',
           chunks.without_bits
         ),
         'Run: update public.knowledge_chunks set embedding = embedding '
         'where embedding_bits is null and embedding is not null'
    from chunks
   where chunks.without_bits > 0

   union all
  select 'warning', 'embeddings',
         format(
           '%s models: similarities between their embeddings mean nothing; '
           '%s chunks are not of %s',
           count(*),
           sum(model.chunks) - max(model.chunks),
           coalesce(
             (array_agg(model.model order by model.chunks desc, model.model))[1],
             'the unnamed model of the others'
           )
         ),
         'Embed everything with one model.'
    from jsonb_to_recordset(health -> 'embedding_models') as model (model text, chunks numeric)
  having count(*) > 1

   union all
  select 'warning', 'embeddings',
         format(
           '%s of %s chunks (%s %%) have no embedding',
           chunks.without_embedding, chunks.active,
           round(100 * chunks.without_embedding / chunks.active, 1)
         ),
         'They are found by text only. Ingest them again with an embedder.'
    from chunks
   where chunks.without_embedding > 0
$$;

comment on function knowledge_internal.chunk_findings(jsonb) is
  'Findings of knowledge_search_health about what chunks lack: derived columns and embeddings.';

create function knowledge_internal.statistics_findings(health jsonb)
returns table (severity text, "check" text, what text, remedy text)
language sql
stable
security invoker
set search_path = pg_catalog, pg_temp
as $$
  with chunks as (
    select (health #>> '{rows,total}')::numeric as total
  ),
  "table" as (
    select entry.*
      from jsonb_to_recordset(health -> 'tables') as entry (
             name text, live_rows numeric, dead_rows numeric, changed_rows numeric,
             has_statistics boolean, analysed_at timestamptz
           )
  ),
  corpus as (
    select (health #>> '{statistics,rows}')::numeric as rows,
           health #>> '{statistics,refreshed_at}' as refreshed_at
  ),
  renewal as (
    select 'Run: analyze public.knowledge_chunks; select public.refresh_knowledge_statistics()'
             as command
  )
  select case when chunks.total > knowledge_internal.few_rows() then 'warning' else 'info' end,
         'statistics',
         'knowledge_chunks was never analysed, or its statistics were lost in an upgrade',
         renewal.command
    from "table"
   cross join chunks
   cross join renewal
   where "table".name = 'public.knowledge_chunks'
     and not "table".has_statistics
     and chunks.total > 0

   union all
  select 'warning', 'statistics',
         format(
           '%s of %s rows changed since the last ANALYZE%s',
           "table".changed_rows, chunks.total, ' at ' || "table".analysed_at
         ),
         renewal.command
    from "table"
   cross join chunks
   cross join renewal
   where "table".name = 'public.knowledge_chunks'
     and "table".has_statistics
     and "table".changed_rows > greatest(chunks.total / 2, knowledge_internal.few_rows())

   union all
  select case when chunks.total > knowledge_internal.few_rows() then 'warning' else 'info' end,
         'statistics',
         'words were never counted: searches count them anew each time',
         renewal.command
    from chunks
   cross join corpus
   cross join renewal
   where corpus.rows is null
     and chunks.total > 0

   union all
  select 'warning', 'statistics',
         format(
           'words were counted over %s of %s rows at %s',
           corpus.rows, chunks.total, corpus.refreshed_at
         ),
         renewal.command
    from chunks
   cross join corpus
   cross join renewal
   where abs(corpus.rows - chunks.total) > greatest(chunks.total / 2, knowledge_internal.few_rows())

   union all
  select 'warning', 'dead rows',
         format(
           '%s of %s rows of %s are dead (%s %%): searches read past them',
           "table".dead_rows, "table".dead_rows + "table".live_rows, "table".name,
           round(100 * "table".dead_rows / ("table".dead_rows + "table".live_rows))
         ),
         'Run: vacuum (analyze) ' || "table".name
    from "table"
   where "table".dead_rows > knowledge_internal.few_rows()
     and "table".dead_rows > 0.2 * ("table".dead_rows + "table".live_rows)
$$;

comment on function knowledge_internal.statistics_findings(jsonb) is
  'Findings of knowledge_search_health about statistics that are missing or old, and dead rows.';

create function knowledge_internal.health_findings(health jsonb)
returns jsonb
language sql
stable
security invoker
set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on
as $$
  with memory as (
    select (health #>> '{memory,shared_buffers}')::numeric as shared_buffers,
           (health #>> '{memory,effective_cache_size}')::numeric as effective_cache_size,
           (health #>> '{memory,vector_index}')::numeric as vector_index
  ),
  finding (severity, "check", what, remedy) as (
    select 'error', 'pgvector',
           format(
             'pgvector is %s, without the iterative scans of %s',
             health #>> '{versions,pgvector}', health #>> '{versions,pgvector_needed}'
           ),
           'Upgrade the server''s pgvector, then run: alter extension vector update'
     where (
             string_to_array(substring(health #>> '{versions,pgvector}' from '^\d+\.\d+'), '.')
               ::integer[]
             >= string_to_array(health #>> '{versions,pgvector_needed}', '.')::integer[]
           ) is not true

     union all
    select case
             when memory.vector_index > memory.effective_cache_size then 'warning' else 'info'
           end,
           'memory',
           format(
             'the vector index (%s) is larger than %s',
             pg_size_pretty(memory.vector_index),
             case
               when memory.vector_index > memory.effective_cache_size
                 then format(
                        'the memory for caching (effective_cache_size, %s): searches wait for '
                        'the disk',
                        pg_size_pretty(memory.effective_cache_size)
                      )
               else format(
                      'shared_buffers (%s): searches read it through the system''s cache',
                      pg_size_pretty(memory.shared_buffers)
                    )
             end
           ),
           'Choose a larger compute size, or embeddings of fewer dimensions.'
      from memory
     where memory.vector_index > least(memory.shared_buffers, memory.effective_cache_size)

     union all
    select * from knowledge_internal.index_findings(health)

     union all
    select * from knowledge_internal.chunk_findings(health)

     union all
    select * from knowledge_internal.statistics_findings(health)
  )
  select coalesce(
           jsonb_agg(
             jsonb_build_object(
               'severity', finding.severity,
               'check', finding."check",
               'what', finding.what,
               'remedy', finding.remedy
             )
             order by array_position(array['error', 'warning', 'info'], finding.severity),
                      finding."check", finding.what
           ),
           '[]'
         )
    from finding
$$;

comment on function knowledge_internal.health_findings(jsonb) is
  'What knowledge_search_health concludes from the figures that it collects. It reads no table.';

create function knowledge_internal.row_health()
returns jsonb
language sql
stable
security invoker
set search_path = pg_catalog, pg_temp
as $$
  with sample as materialized (
    select * from knowledge_internal.chunk_sample(1000)
  )
  select jsonb_build_object(
           'total', coalesce(sum(sample.chunks), 0),
           'active', coalesce(sum(sample.chunks) filter (where sample.status = 'active'), 0),
           'by_status', (
             select coalesce(jsonb_object_agg(one.status, one.chunks), '{}')
               from (
                 select counted.status, sum(counted.chunks) as chunks
                   from sample as counted
                  group by counted.status
               ) as one
           ),
           'embedded', coalesce(
             sum(sample.chunks)
               filter (where sample.status = 'active' and sample.is_embedded),
             0
           ),
           'without_embedding', coalesce(
             sum(sample.chunks)
               filter (where sample.status = 'active' and not sample.is_embedded),
             0
           ),
           'without_words', coalesce(
             sum(sample.chunks)
               filter (where sample.status = 'active' and sample.lacks_words),
             0
           ),
           'without_bits', coalesce(
             sum(sample.chunks)
               filter (where sample.status = 'active' and sample.lacks_bits),
             0
           ),
           'is_estimated', coalesce(bool_or(sample.is_estimated), false)
         )
    from sample
$$;

comment on function knowledge_internal.row_health() is
  'The part rows of knowledge_search_health.';

create function knowledge_internal.table_health()
returns jsonb
language sql
stable
security invoker
set search_path = pg_catalog, pg_temp
as $$
  with examined (id, name) as (
    select class.oid, format('%s.%I', class.relnamespace::regnamespace, class.relname)
      from pg_catalog.pg_class as class
     where class.relnamespace = 'public'::regnamespace
       and class.relname in ('knowledge_sources', 'knowledge_documents', 'knowledge_chunks')
       and class.relkind = 'r'
  )
  select jsonb_build_object(
    'tables', (
      select jsonb_agg(
               jsonb_build_object(
                 'name', examined.name,
                 'bytes', pg_table_size(examined.id),
                 'live_rows', activity.n_live_tup,
                 'dead_rows', activity.n_dead_tup,
                 'vacuumed_at', greatest(activity.last_vacuum, activity.last_autovacuum),
                 'analysed_at', greatest(activity.last_analyze, activity.last_autoanalyze),
                 'changed_rows', activity.n_mod_since_analyze,
                 'has_statistics', exists (
                   select
                     from pg_catalog.pg_stats as statistics
                    where format('%I.%I', statistics.schemaname, statistics.tablename)
                          = examined.name
                 )
               )
               order by examined.name
             )
        from examined
        left join pg_catalog.pg_stat_user_tables as activity on activity.relid = examined.id
    ),
    'indexes', (
      select jsonb_agg(
               jsonb_build_object(
                 'table', examined.name,
                 'name', format('%s.%I', class.relnamespace::regnamespace, class.relname),
                 'kind', method.amname,
                 'leg', case
                   when examined.id <> knowledge_internal.physical_table() then null
                   when method.amname in ('hnsw', 'ivfflat') then 'vector'
                   when method.amname = 'gin' and attribute.attname = 'content_tsv' then 'text'
                 end,
                 'is_unique', index.indisunique,
                 'is_valid', index.indisvalid,
                 'bytes', pg_relation_size(class.oid),
                 'scans', activity.idx_scan
               )
               order by class.relname
             )
        from examined
        join pg_catalog.pg_index as index on index.indrelid = examined.id
        join pg_catalog.pg_class as class on class.oid = index.indexrelid
        join pg_catalog.pg_am as method on method.oid = class.relam
        left join pg_catalog.pg_attribute as attribute
          on attribute.attrelid = index.indrelid
         and attribute.attnum = index.indkey[0]
        left join pg_catalog.pg_stat_user_indexes as activity
          on activity.indexrelid = index.indexrelid
    ),
    'builds', (
      select coalesce(
               jsonb_agg(
                 jsonb_build_object(
                   'table', examined.name,
                   'name', (
                     select format('%s.%I', class.relnamespace::regnamespace, class.relname)
                       from pg_catalog.pg_class as class
                      where class.oid = progress.index_relid
                   ),
                   'phase', progress.phase,
                   'share', round(
                     coalesce(
                       progress.tuples_done::numeric / nullif(progress.tuples_total, 0),
                       progress.blocks_done::numeric / nullif(progress.blocks_total, 0),
                       0
                     ),
                     3
                   )
                 )
               ),
               '[]'
             )
        from pg_catalog.pg_stat_progress_create_index as progress
        join examined on examined.id = progress.relid
    ),
    'disabled_triggers', (
      select coalesce(
               jsonb_agg(
                 jsonb_build_object('table', examined.name, 'name', trigger.tgname)
                 order by examined.name, trigger.tgname
               ),
               '[]'
             )
        from pg_catalog.pg_trigger as trigger
        join examined on examined.id = trigger.tgrelid
       where not trigger.tgisinternal
         and trigger.tgenabled = 'D'
    )
  )
$$;

comment on function knowledge_internal.table_health() is
  'The parts tables, indexes, builds and disabled_triggers of knowledge_search_health.';

create function public.knowledge_search_health()
returns jsonb
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
  with collected (health) as (
    select jsonb_build_object(
      'versions', jsonb_build_object(
        'postgres', current_setting('server_version'),
        'pgvector', (
          select extension.extversion
            from pg_catalog.pg_extension as extension
           where extension.extname = 'vector'
        ),
        'pgvector_needed', '0.8'
      ),
      'rows', knowledge_internal.row_health(),
      'dimensions', (
        select facts.dimensions from knowledge_internal.chunk_table() as facts
      ),
      'embedding_models', (
        select coalesce(
                 jsonb_agg(
                   jsonb_build_object('model', stored.model, 'chunks', stored.chunks)
                   order by stored.chunks desc, stored.model
                 ),
                 '[]'
               )
          from public.knowledge_embedding_models() as stored
      ),
      'counters_since', (
        select activity.stats_reset
          from pg_catalog.pg_stat_database as activity
         where activity.datname = current_database()
      ),
      'statistics', (
        select jsonb_build_object(
                 'refreshed_at', corpus.refreshed_at,
                 'analysed_at', corpus.analysed_at,
                 'rows', corpus.document_count,
                 'rows_changed_since', case
                   when corpus.analysed_at is not distinct from greatest(
                          activity.last_analyze, activity.last_autoanalyze
                        )
                     then activity.n_mod_since_analyze
                 end
               )
          from knowledge_internal.corpus_statistics as corpus
          left join pg_catalog.pg_stat_user_tables as activity
            on activity.relid = knowledge_internal.physical_table()
      ),
      'memory', jsonb_build_object(
        'shared_buffers', pg_size_bytes(current_setting('shared_buffers')),
        'effective_cache_size', pg_size_bytes(current_setting('effective_cache_size'))
      )
    ) || knowledge_internal.table_health()
  ),
  measured (health) as (
    select jsonb_set(
             collected.health, '{memory,vector_index}',
             coalesce(
               (
                 select to_jsonb(sum((index.entry -> 'bytes')::numeric))
                   from jsonb_array_elements(collected.health -> 'indexes') as index (entry)
                  where index.entry ->> 'leg' = 'vector'
               ),
               '0'
             )
           )
      from collected
  )
  select measured.health
           || jsonb_build_object('findings', knowledge_internal.health_findings(measured.health))
    from measured
$$;

comment on function public.knowledge_search_health() is
  'The state of the database as far as search depends on it, as one JSON object: versions, rows '
  '(of active chunks also how many have an embedding; a sample where is_estimated), '
  'embedding_models, tables, indexes (leg: vector or text for the two that searches read), builds '
  'that are under way, statistics of words, memory, and findings: what to do something about, '
  'each with severity (error, warning, info), check, what and remedy (null: wait). Sizes are '
  'bytes. Counters are of this server: a replica has its own.';
revoke all on function public.knowledge_search_health() from public, anon, authenticated;
grant execute on function public.knowledge_search_health() to service_role;

notify pgrst, 'reload schema';
