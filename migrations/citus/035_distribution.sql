-- 035_distribution: the rows of one corpus on the machines of a Citus cluster.
-- Module: citus.
-- Needs: citus.
-- Only with: arrange, batch, facets, own_documents, snippets, visitors.
-- Distributes knowledge_chunks by id and copies the other tables to every node. It moves the rows,
-- so it locks all tables against writes until it commits.
-- Written from supabase/schemas/modules/citus/35_distribution.sql by `make baseline`: edit that file.

do $$
declare
  chunks constant regclass := 'public.knowledge_chunks';
  copied constant text[] := array[
    'public.knowledge_types', 'public.knowledge_source_origins', 'public.knowledge_sources',
    'public.knowledge_documents', 'public.knowledge_settings',
    'public.knowledge_corpus_statistics', 'public.knowledge_lexeme_statistics'
  ];
  workers bigint;
  name text;
  statement text;
  references_before text[];
begin
  if current_setting('second_brain.without_extensions', true) = 'allowed' then
    return; -- the project's own tools read the definitions of all modules on a server without it
  end if;
  if to_regclass('pg_catalog.pg_dist_node') is null then
    raise exception 'module citus needs the extension citus in this database'
      using errcode = '0A000',
            hint = 'Run `create extension citus` on each node. Its server must preload it.';
  end if;
  execute 'select count(*) from pg_catalog.pg_dist_node where noderole = ''primary'''
          ' and groupid > 0 and isactive and shouldhaveshards'
    into workers;
  if workers = 0 then
    raise exception 'this database has no active worker'
      using errcode = '55000',
            hint = 'Run this at the coordinator, after citus_set_coordinator_host and '
              'citus_add_node for each worker.';
  end if;
  perform set_config('citus.enable_unsafe_triggers', 'on', true),
          set_config('citus.multi_shard_modify_mode', 'sequential', true);
  -- A shard has no statistics of all rows: refresh_knowledge_statistics is a command here.
  drop trigger keep_statistics on public.knowledge_chunks;
  drop trigger clear_statistics on public.knowledge_chunks;
  -- They also empty the list of waiting entries.
  alter index public.knowledge_chunks_content_tsv set (fastupdate = off);
  -- With a foreign key to a table that has no copies yet, Citus makes tables anew, and drops the
  -- functions that use their rows.
  references_before := array(
    select format(
             'alter table %s add constraint %I %s', reference.conrelid::regclass,
             reference.conname, pg_get_constraintdef(reference.oid)
           )
      from pg_catalog.pg_constraint as reference
     where reference.contype = 'f'
       and reference.conrelid in (chunks, 'public.knowledge_documents'::regclass)
     order by reference.oid
  );
  foreach statement in array references_before loop
    execute regexp_replace(statement, ' add constraint ("[^"]+"|\S+) .*', ' drop constraint \1');
  end loop;
  foreach name in array copied loop
    perform create_reference_table(name);
  end loop;
  perform create_distributed_table(chunks, 'id', shard_count => workers::integer);
  foreach statement in array references_before loop
    execute statement;
  end loop;
end
$$;
