-- A tenant in schema tenant_a of a Citus cluster (docs/scale.md). Run on the coordinator as its owner,
-- after `second-brain migrate --schema tenant_a` on the coordinator.

-- Triggers of a table run on the node that has its shard. A search is one function call, whose
-- statements Citus treats as nested. All rows of a tenant are on one node, so this is safe.
select run_command_on_all_nodes(
         format('alter database %I set %s', current_database(), setting.assignment)
       )
  from unnest(array[
         'citus.enable_unsafe_triggers = on',
         'citus.allow_nested_distributed_execution = on',
         'citus.override_table_visibility = off'
       ]) as setting (assignment);
set citus.enable_unsafe_triggers = on;

-- An extension point of core: the shard on this node, a table with the number of the shard in its
-- name. Raises 55000 if the rows are on another node.
create or replace function tenant_a_internal.physical_table() returns regclass
language plpgsql stable parallel safe security invoker set search_path = pg_catalog, pg_temp as $$
declare
  chunks constant regclass := 'tenant_a.knowledge_chunks';
  here regclass;
  holder text;
begin
  select case when placement.groupid = local.groupid then
           to_regclass(
             format('%s.%I', class.relnamespace::regnamespace, class.relname || '_' || shard.shardid)
           )
         end,
         format('%s:%s', node.nodename, node.nodeport)
    into here, holder
    from pg_catalog.pg_dist_shard as shard
    join pg_catalog.pg_class as class on class.oid = shard.logicalrelid
    join pg_catalog.pg_dist_placement as placement on placement.shardid = shard.shardid
    join pg_catalog.pg_dist_node as node on node.groupid = placement.groupid
   cross join pg_catalog.pg_dist_local_group as local
   where shard.logicalrelid = chunks
     and placement.shardstate = 1;
  if here is null and holder is not null then
    raise exception 'the rows of % are on another node, %', chunks, holder
      using errcode = '55000', hint = 'Connect to that node: only there a search is complete.';
  end if;
  return coalesce(here, chunks);
end
$$;

select citus_schema_distribute('tenant_a');

-- Citus copies functions to the other nodes when they are created, except those that use the row of
-- a table which is not distributed yet. Now it is: create these again.
do $$
declare
  definition text;
begin
  for definition in
    select pg_get_functiondef(function.oid)
      from pg_proc as function
     where function.pronamespace in ('tenant_a'::regnamespace, 'tenant_a_internal'::regnamespace)
       and not exists (
             select
               from pg_dist_object as known
              where known.classid = 'pg_proc'::regclass
                and known.objid = function.oid
           )
  loop
    execute definition;
  end loop;
end
$$;

-- The node that has the tenant: connect there to write and to search.
select node.nodename, node.nodeport
  from citus_shards as node
 where node.table_name = 'tenant_a.knowledge_chunks'::regclass;
