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
