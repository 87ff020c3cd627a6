-- 036_citus: searches, writes and statistics over all shards of a Citus cluster.
-- Module: citus.
-- Needs: citus.
-- Adds: function prepare_knowledge_cluster, which it runs, and what replaces functions of core.
-- Locks nothing that exists.

create function public.prepare_knowledge_cluster() returns void
-- definer: service_role may not change the settings of a database.
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
  -- A search or a write is one function call, whose statements Citus treats as nested.
  of_all constant text[] := array[
    'citus.enable_unsafe_triggers = on', 'citus.allow_nested_distributed_execution = on'
  ];
  of_workers constant text[] := array[
    -- What a search sets for its session does not reach the workers.
    'hnsw.ef_search = 100', 'hnsw.iterative_scan = relaxed_order', 'enable_sort = off',
    'enable_seqscan = off', 'jit = off', 'max_parallel_workers_per_gather = 0',
    -- A shard knows no mean of all rows: until the first refresh, a usual one.
    'knowledge_internal.mean_length = 120'
  ];
  failed text;
begin
  perform knowledge_internal.check_caller('prepare_knowledge_cluster');
  select string_agg(answer.result, '; ')
    into failed
    from (
      select made.success, made.result
        from unnest(of_all) as setting
       cross join lateral run_command_on_all_nodes(
               format(
                 'do $do$ begin set local citus.enable_ddl_propagation = off;'
                 ' alter database %I set %s; end $do$ ', current_database(), setting
               )
             ) as made
      union all
      select made.success, made.result
        from unnest(of_workers) as setting
       cross join lateral run_command_on_workers(
               format(
                 'do $do$ begin set local citus.enable_ddl_propagation = off;'
                 ' alter database %I set %s; end $do$ ', current_database(), setting
               )
             ) as made
      union all
      -- Every node has the documents: the coordinator alone passes a change on to the chunks.
      select made.success, made.result
        from run_command_on_placements(
               'public.knowledge_documents',
               'do $do$ begin'
               '  if (select groupid from pg_catalog.pg_dist_local_group) > 0 then'
               '    alter table %1$s disable trigger user;'
               '  end if;'
               'end $do$ '
             ) as made
    ) as answer
   where not answer.success;
  if failed is not null then
    raise exception 'a node of the cluster was not prepared: %', failed
      using errcode = '55000', hint = 'Run this again when every node answers.';
  end if;
end
$$;

comment on function public.prepare_knowledge_cluster() is
  'Sets on every node of the cluster what searches and writes need there, for new sessions. Run it '
  'at the coordinator after citus_add_node. Raises 55000 where a node does not answer.';
revoke all on function public.prepare_knowledge_cluster()
  from public, anon, authenticated, service_role;

-- What a command says of each shard, %1$s in it, as objects. Raises the error of a shard.
create function knowledge_internal.facts_of_shards(command text) returns setof jsonb
language plpgsql volatile security invoker set search_path = pg_catalog, pg_temp as $$
declare
  shard record;
begin
  for shard in
    select answer.* from run_command_on_shards('public.knowledge_chunks', command) as answer
  loop
    if not shard.success then
      raise exception 'shard % of knowledge_chunks: %', shard.shardid, shard.result
        using errcode = '55000';
    end if;
    return next shard.result::jsonb;
  end loop;
end
$$;

create or replace function public.refresh_knowledge_statistics() returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
  kept_rows constant integer := 200;
  sampled_rows constant integer := 5000; -- of each shard
  facts jsonb[];
  table_rows float8;
  kept uuid[];
  spread float8;
begin
  perform knowledge_internal.check_caller('refresh_knowledge_statistics');
  if not pg_try_advisory_xact_lock('public.knowledge_chunks'::regclass::oid::bigint) then
    return false;
  end if;
  facts := array(
    select shard
      from knowledge_internal.facts_of_shards(
             'select jsonb_build_object('
             '  ''rows'', greatest(class.reltuples, 0),'
             '  ''at'', greatest(pg_stat_get_last_analyze_time(class.oid),'
             '                   pg_stat_get_last_autoanalyze_time(class.oid)),'
             '  ''length'', sampled.length, ''words'', sampled.words,'
             '  ''distinct'', sampled.distinct_words, ''sampled'', sampled.rows,'
             '  ''ids'', sampled.ids,'
             '  ''frequencies'', ('
             '    select jsonb_object_agg(listed.lexeme, listed.frequency)'
             '      from pg_catalog.pg_stats as statistics'
             '     cross join unnest(statistics.most_common_elems::text::text[],'
             '             statistics.most_common_elem_freqs) as listed (lexeme, frequency)'
             '     where statistics.schemaname = class.relnamespace::regnamespace::text'
             '       and statistics.tablename = class.relname'
             '       and statistics.attname = ''content_tsv'' and listed.lexeme is not null'
             '  ))'
             '  from pg_catalog.pg_class as class'
             ' cross join ('
             '         select sum(chunk.text_length) as length, count(*) as rows,'
             '                sum(chunk.content_words) as words,'
             '                sum(chunk.distinct_words) as distinct_words,'
             '                (array_agg(chunk.id order by hashtextextended(chunk.id::text, 0)))'
             '                  [:' || kept_rows || '] as ids'
             '           from ('
             '             select * from %1$s tablesample system (('
             '               select least('
             '                        100, 100.0 * ' || sampled_rows || ' / greatest(reltuples, 1))'
             '                 from pg_catalog.pg_class where oid = ''%1$s''::regclass'
             '             )) where status = ''active'''
             '           ) as chunk'
             '       ) as sampled'
             ' where class.oid = ''%1$s''::regclass'
           ) as shard
  );
  table_rows := (select sum((shard ->> 'rows')::float8) from unnest(facts) as shard);
  if table_rows <= 0
     or exists (
       select from public.knowledge_corpus_statistics as corpus
        where corpus.analysed_rows = table_rows
          and corpus.analysed_at is not distinct from (
            select max((shard ->> 'at')::timestamptz) from unnest(facts) as shard
          )
     )
  then
    return false;
  end if;
  kept := (
    select (array_agg(id::uuid order by hashtextextended(id, 0)))[:kept_rows]
      from unnest(facts) as shard
     cross join lateral jsonb_array_elements_text(nullif(shard -> 'ids', 'null')) as id
  );
  with one as materialized (
    select row.id, extensions.l2_normalize(row.embedding) as direction
      from knowledge_internal.rows_by_id(kept, has_embedding => true) as row
     where row.embedding is not null
  )
  select case when count(*) < 10 then 0.13
              else greatest(stddev(one.direction operator(extensions.<#>) other.direction), 0.02)
         end
    into spread
    from one
    join one as other on other.id < one.id;
  delete from public.knowledge_lexeme_statistics;
  -- A lexeme that one shard does not list is rare: it is counted when it is asked for.
  insert into public.knowledge_lexeme_statistics (lexeme, frequency)
  select entry.lexeme, sum(entry.frequency::float8 * (shard.found ->> 'rows')::float8) / table_rows
    from (select listed.found from unnest(facts) as listed (found) offset 0) as shard
   cross join lateral jsonb_each_text(
           nullif(shard.found -> 'frequencies', 'null')
         ) as entry (lexeme, frequency)
   group by entry.lexeme
  having count(*) = (
           select count(*) from unnest(facts) as every where (every ->> 'rows')::float8 > 0
         );
  delete from public.knowledge_corpus_statistics;
  insert into public.knowledge_corpus_statistics (
    document_count, mean_length, content_words, distinct_words, cosine_spread, least_frequency,
    sample, analysed_at, analysed_rows
  )
  select table_rows, greatest(sum((shard ->> 'length')::float8 * share.weight), 1),
         coalesce(sum((shard ->> 'words')::float8 * share.weight), 0),
         coalesce(sum((shard ->> 'distinct')::float8 * share.weight), 0),
         spread, (select min(known.frequency) from public.knowledge_lexeme_statistics as known),
         coalesce(kept, '{}'), max((shard ->> 'at')::timestamptz), table_rows
    from unnest(facts) as shard
   cross join lateral (
           select (shard ->> 'rows')::float8 / nullif((shard ->> 'sampled')::float8, 0) / table_rows
                    as weight
         ) as share;
  return true;
end
$$;

-- From this node's copy of the documents: a lock through Citus would be one on the whole table, for
-- which the sessions of one COPY wait for each other.
create or replace function knowledge_internal.locked_document(wanted uuid)
returns public.knowledge_documents
language plpgsql volatile security invoker set search_path = pg_catalog, pg_temp as $$
begin
  execute (
    select format(
             'select from %s_%s where id = $1 for share', shard.logicalrelid, shard.shardid
           )
      from pg_catalog.pg_dist_shard as shard
     where shard.logicalrelid = 'public.knowledge_documents'::regclass
  )
    using wanted;
  return (
    select document from public.knowledge_documents as document where document.id = wanted
  );
end
$$;

-- Citus locks no rows of several shards in one order: it ends one of two writes that wait for each
-- other, as Postgres does.
create or replace function knowledge_internal.deleted_chunks(ids uuid[], waits boolean)
returns setof text
language plpgsql volatile security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return query
  delete from public.knowledge_chunks as chunk
   where chunk.id = any (ids)
  returning chunk.content_hash;
end
$$;

do $$
declare
  schemas constant oid[] := array(
    select function.pronamespace from pg_catalog.pg_proc as function
     where function.oid in (
             'public.prepare_knowledge_cluster'::regproc,
             'knowledge_internal.locked_document'::regproc
           )
  );
  statement text;
begin
  if current_setting('second_brain.without_extensions', true) = 'allowed' then
    return;
  end if;
  for statement in
    -- Citus makes no generic plan of a distributed table.
    select format('alter function %s reset plan_cache_mode', function.oid::regprocedure)
      from pg_catalog.pg_proc as function
     where 'plan_cache_mode=force_generic_plan' = any (function.proconfig)
       and function.pronamespace = any (schemas)
    union all
    -- A write of documents, which every node has, must not follow a parallel one of chunks.
    select format(
             'alter function %s set citus.multi_shard_modify_mode = sequential',
             function.oid::regprocedure
           )
      from pg_catalog.pg_proc as function
     where function.oid in (
             'public.upsert_knowledge_document'::regproc,
             'public.delete_knowledge_document'::regproc,
             'public.delete_knowledge_owner'::regproc,
             'knowledge_internal.pass_document_on'::regproc
           )
    union all
    -- Citus copied the functions to the workers when they were made, except those that use the row
    -- of a table which was not distributed yet.
    select pg_get_functiondef(function.oid)
      from pg_catalog.pg_proc as function
     where function.pronamespace = any (schemas)
       and function.proowner = current_user::regrole
       and not exists (
             select
               from pg_catalog.pg_dist_object as known
              where known.classid = 'pg_catalog.pg_proc'::regclass
                and known.objid = function.oid
           )
  loop
    execute statement;
  end loop;
  perform public.prepare_knowledge_cluster();
end
$$;

revoke all on all functions in schema knowledge_internal from public;

notify pgrst, 'reload schema';
