-- 025_monitoring: figures about the stored data, and problems that make searches slow or wrong.
-- Module: insight.
-- Adds: function knowledge_search_health and the functions that collect its figures and findings.
-- Locks nothing that exists.

-- The percentage of a table's pages that have about so many rows: 100 for a small table, and for
-- one that was never analysed.
create function knowledge_internal.sampled_share(relation regclass, wanted_rows integer)
returns real
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return (
    select least(100, 100.0 * wanted_rows / greatest(class.reltuples, 1))::real
      from pg_catalog.pg_class as class
     where class.oid = relation
  );
end
$$;

-- Up to this number of rows, missing statistics and unused indexes are not a problem.
create function knowledge_internal.few_rows() returns integer
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
as $$
begin
  return 1000;
end
$$;

-- Findings of knowledge_search_health about missing, invalid and unused indexes.
create function knowledge_internal.index_findings(health jsonb)
returns table (severity text, "check" text, what text, remedy text)
language sql stable security invoker set search_path = pg_catalog, pg_temp as $$
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
           when 'vector' then 'no vector index (hnsw) on public.knowledge_chunks'
           else 'no text index (gin on content_tsv) on public.knowledge_chunks'
         end
         || case
              when build.phase is null then ''
              else format(
                     '; one is being built (%s, %s %%)', build.phase, round(100 * build.share)
                   )
            end,
         case
           when build.phase is null
             then 'Run `second-brain corpus index build`, or the statement of migration 003. '
                  'Without the index, searches read the whole table.'
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
           -- What an interrupted build has left is no index of its own.
           when build.phase is null and right(index.name, 9) = '_building'
             then 'Run: second-brain corpus index build'
           when build.phase is null then 'Run: reindex index concurrently ' || index.name
         end
    from index
    left join build on build.name = index.name
   where not index.is_valid

   union all
  select 'warning', 'indexes',
         format('%s never used', string_agg(index.name, ', ' order by index.name)),
         'If there were searches, run: analyze public.knowledge_chunks'
    from index
   cross join chunks
   where index.leg is not null
     and index.is_valid
     and index.scans = 0
     and index.bytes > 2 * 8192 -- not empty: adopted tables have indexes of their own
     and chunks.total >= knowledge_internal.few_rows()
     -- Else nobody has searched yet.
     and exists (select from index as other where other.leg is not null and other.scans > 0)
  having count(*) > 0

   union all
  select 'info', 'indexes',
         format(
           '%s never used since the counters were reset, %s together',
           string_agg(index.name, ', ' order by index.name), pg_size_pretty(sum(index.bytes))
         ),
         'Drop the index if your filters do not need it: writes are faster without it.'
    from index
   where index.leg is null
     and not index.is_unique
     and index.scans = 0
     and index.bytes >= 10 * 1024 ^ 2 -- a smaller index costs little
  having count(*) > 0
$$;

-- Findings of knowledge_search_health about missing or old statistics, and dead rows.
create function knowledge_internal.statistics_findings(health jsonb)
returns table (severity text, "check" text, what text, remedy text)
language sql stable security invoker set search_path = pg_catalog, pg_temp as $$
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
  refresh as (
    select 'Run: analyze public.knowledge_chunks; select public.refresh_knowledge_statistics()'
             as command
  )
  select case when chunks.total > knowledge_internal.few_rows() then 'warning' else 'info' end,
         'statistics',
         'knowledge_chunks has no statistics: it was never analysed, or an upgrade removed them',
         refresh.command
    from "table"
   cross join chunks
   cross join refresh
   where "table".name = 'public.knowledge_chunks'
     and not "table".has_statistics
     and chunks.total > 0

   union all
  select 'warning', 'statistics',
         format(
           '%s of %s rows changed since the last ANALYZE%s',
           "table".changed_rows, chunks.total, ' at ' || "table".analysed_at
         ),
         refresh.command
    from "table"
   cross join chunks
   cross join refresh
   where "table".name = 'public.knowledge_chunks'
     and "table".has_statistics
     and "table".changed_rows > greatest(chunks.total / 2, knowledge_internal.few_rows())

   union all
  select case when chunks.total > knowledge_internal.few_rows() then 'warning' else 'info' end,
         'statistics',
         'document frequencies are not stored: each search counts them again',
         refresh.command
    from chunks
   cross join corpus
   cross join refresh
   where corpus.rows is null
     and chunks.total > 0

   union all
  select 'warning', 'statistics',
         format(
           'document frequencies are for %s rows, the table has %s; they are from %s',
           corpus.rows, chunks.total, corpus.refreshed_at
         ),
         refresh.command
    from chunks
   cross join corpus
   cross join refresh
   where abs(corpus.rows - chunks.total) > greatest(chunks.total / 2, knowledge_internal.few_rows())

   union all
  select 'warning', 'dead rows',
         format(
           '%s of %s rows of %s are dead (%s %%): they make searches slower',
           "table".dead_rows, "table".dead_rows + "table".live_rows, "table".name,
           round(100 * "table".dead_rows / ("table".dead_rows + "table".live_rows))
         ),
         'Run: vacuum (analyze) ' || "table".name
    from "table"
   where "table".dead_rows > knowledge_internal.few_rows()
     and "table".dead_rows > 0.2 * ("table".dead_rows + "table".live_rows)
$$;

-- The findings of knowledge_search_health from the figures that it collected. Reads no table.
create function knowledge_internal.health_findings(health jsonb) returns jsonb
language sql stable security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
  with memory as (
    select (health #>> '{memory,shared_buffers}')::numeric as shared_buffers,
           (health #>> '{memory,effective_cache_size}')::numeric as effective_cache_size,
           (health #>> '{memory,vector_index}')::numeric as vector_index
  ),
  chunks as (
    select (health #>> '{rows,active}')::numeric as active,
           (health #>> '{rows,without_embedding}')::numeric as without_embedding,
           (health #>> '{rows,without_words}')::numeric as without_words,
           (health #>> '{rows,without_bits}')::numeric as without_bits
  ),
  finding (severity, "check", what, remedy) as (
    select 'error', 'pgvector',
           format(
             'pgvector is %s; search needs the iterative scans of %s',
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
                        'the memory for caching (effective_cache_size, %s): searches read from '
                        'disk',
                        pg_size_pretty(memory.effective_cache_size)
                      )
               else format(
                      'shared_buffers (%s): searches read parts of it from the system''s cache',
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
    select 'error', 'triggers',
           format(
             'trigger %s of %s is disabled: it does not set its columns in rows written since then',
             trigger.name, trigger."table"
           ),
           format('Run: alter table %s enable trigger %s', trigger."table", trigger.name)
      from jsonb_to_recordset(health -> 'disabled_triggers') as trigger ("table" text, name text)

     union all
    select 'error', 'chunks',
           format(
             '%s chunks have no bm25 vector, so the text leg does not find them',
             chunks.without_words
           ),
           'Run: update public.knowledge_chunks set content_tsv = null '
           'where bm25 is null and text_length > 0'
      from chunks
     where chunks.without_words > 0

     union all
    select 'error', 'chunks',
           format(
             '%s chunks have an embedding but no embedding_bits, so searches with a filter may '
             'miss them',
             chunks.without_bits
           ),
           'Run: update public.knowledge_chunks set embedding = embedding '
           'where embedding_bits is null and embedding is not null'
      from chunks
     where chunks.without_bits > 0

     union all
    select 'warning', 'embeddings',
           format(
             '%s embedding models, whose vectors are not comparable; '
             '%s chunks have another model than %s',
             count(*),
             sum(model.chunks) - max(model.chunks),
             coalesce(
               (array_agg(model.model order by model.chunks desc, model.model))[1],
               'the unnamed one'
             )
           ),
           'Embed all chunks with one model.'
      from jsonb_to_recordset(health -> 'embedding_models') as model (model text, chunks numeric)
    having count(*) > 1

     union all
    select 'warning', 'embeddings',
           format(
             '%s of %s chunks (%s %%) have no embedding',
             chunks.without_embedding, chunks.active,
             round(100 * chunks.without_embedding / chunks.active, 1)
           ),
           'Only the text leg finds them. Embed them: `second-brain corpus embed`.'
      from chunks
     where chunks.without_embedding > 0

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

-- The key rows of knowledge_search_health: up to 100,000 rows are counted, else a sample.
create function knowledge_internal.row_health() returns jsonb
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  most_counted constant integer := 100000;
  share constant real := knowledge_internal.sampled_share(
    knowledge_internal.physical_table(), most_counted
  );
begin
  return (
    with counted as materialized (
      select chunk.status, num_nonnulls(chunk.embedding, chunk.embedding_bits) > 0 as is_embedded,
             chunk.bm25 is null and chunk.text_length > 0 as lacks_words,
             chunk.embedding is not null and chunk.embedding_bits is null as lacks_bits,
             round(count(*) * 100 / share)::bigint as chunks
        from public.knowledge_chunks as chunk tablesample system (share) repeatable (1)
       group by 1, 2, 3, 4
    ),
    of_status as (
      select counted.status, sum(counted.chunks) as chunks from counted group by counted.status
    )
    select jsonb_build_object(
             'total', coalesce(sum(counted.chunks), 0),
             'active', coalesce(sum(counted.chunks) filter (where is_active), 0),
             'by_status', (
               select coalesce(jsonb_object_agg(of_status.status, of_status.chunks), '{}')
                 from of_status
             ),
             'embedded', coalesce(
               sum(counted.chunks) filter (where is_active and counted.is_embedded), 0
             ),
             'without_embedding', coalesce(
               sum(counted.chunks) filter (where is_active and not counted.is_embedded), 0
             ),
             'without_words', coalesce(
               sum(counted.chunks) filter (where is_active and counted.lacks_words), 0
             ),
             'without_bits', coalesce(
               sum(counted.chunks) filter (where is_active and counted.lacks_bits), 0
             ),
             'is_estimated', share < 100
           )
      from counted
     cross join lateral (select counted.status = 'active') as kind (is_active)
  );
end
$$;

-- The keys tables, indexes, builds and disabled_triggers of knowledge_search_health.
create function knowledge_internal.table_health() returns jsonb
language sql stable security invoker set search_path = pg_catalog, pg_temp as $$
  with monitored (id, name) as (
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
                 'name', monitored.name,
                 'bytes', pg_table_size(monitored.id),
                 'live_rows', activity.n_live_tup,
                 'dead_rows', activity.n_dead_tup,
                 'vacuumed_at', greatest(activity.last_vacuum, activity.last_autovacuum),
                 'analysed_at', greatest(activity.last_analyze, activity.last_autoanalyze),
                 'changed_rows', activity.n_mod_since_analyze,
                 'has_statistics', exists (
                   select
                     from pg_catalog.pg_stats as statistics
                    where format('%I.%I', statistics.schemaname, statistics.tablename)
                          = monitored.name
                 )
               )
               order by monitored.name
             )
        from monitored
        left join pg_catalog.pg_stat_user_tables as activity on activity.relid = monitored.id
    ),
    'indexes', (
      select jsonb_agg(
               jsonb_build_object(
                 'table', monitored.name,
                 'name', format('%s.%I', class.relnamespace::regnamespace, class.relname),
                 'kind', method.amname,
                 'leg', case
                   when monitored.id <> knowledge_internal.physical_table() then null
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
        from monitored
        join pg_catalog.pg_index as index on index.indrelid = monitored.id
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
                   'table', monitored.name,
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
        join monitored on monitored.id = progress.relid
    ),
    'disabled_triggers', (
      select coalesce(
               jsonb_agg(
                 jsonb_build_object('table', monitored.name, 'name', trigger.tgname)
                 order by monitored.name, trigger.tgname
               ),
               '[]'
             )
        from pg_catalog.pg_trigger as trigger
        join monitored on monitored.id = trigger.tgrelid
       where not trigger.tgisinternal
         and trigger.tgenabled = 'D'
    )
  )
$$;

create function public.knowledge_search_health() returns jsonb
-- definer: service_role cannot read the statistics of all tables.
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select knowledge_internal.check_caller('knowledge_search_health');
  -- Materialised: in the statement, the figures are named in several places.
  with collected (health) as materialized (
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
        select facts.dimensions from knowledge_internal.chunk_table as facts
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
          from public.knowledge_corpus_statistics as corpus
          left join pg_catalog.pg_stat_user_tables as activity
            on activity.relid = knowledge_internal.physical_table()
      ),
      'memory', jsonb_build_object(
        'shared_buffers', pg_size_bytes(current_setting('shared_buffers')),
        'effective_cache_size', pg_size_bytes(current_setting('effective_cache_size'))
      )
    ) || knowledge_internal.table_health()
  ),
  measured (health) as materialized (
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
  'The state of the database for search, as one JSON object. Keys: versions; rows (for active '
  'chunks also the number with an embedding; estimated from a sample if is_estimated); '
  'embedding_models; tables; indexes (leg: vector or text for the indexes of the two legs); builds '
  'that are running; statistics of words; memory; findings. Each finding is a problem with '
  'severity (error, warning, info), check, what and remedy (null: wait). Sizes are in bytes. '
  'Counters are of this server; a replica has its own.';
revoke all on function public.knowledge_search_health() from public, anon, authenticated;
grant execute on function public.knowledge_search_health() to service_role;

revoke all on all functions in schema knowledge_internal from public;

notify pgrst, 'reload schema';
