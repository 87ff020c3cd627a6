-- 001_extensions: pgvector 0.8 or later in schema extensions, and a schema for internal objects.
-- Adds: extension vector (if it is missing), schema knowledge_internal.
-- Locks nothing that exists.

-- This is the only statement with `if not exists`: a Supabase project may have the extension
-- already, with data in its types. The block below checks its schema and version.
create extension if not exists vector with schema extensions;

do $$
declare
  installed record;
begin
  select extension.extversion as version, namespace.nspname as schema
    into strict installed
    from pg_catalog.pg_extension as extension
    join pg_catalog.pg_namespace as namespace on namespace.oid = extension.extnamespace
   where extension.extname = 'vector';

  if installed.schema <> 'extensions' then
    raise exception 'pgvector is installed in schema %, it must be in schema extensions',
                    installed.schema
      using errcode = 'object_not_in_prerequisite_state',
            hint = 'Write these files for that schema: second-brain init --vector-schema '
                   || installed.schema;
  end if;

  if (
    string_to_array(substring(installed.version from '^\d+\.\d+'), '.')::int[] >= array[0, 8]
  ) is not true then
    raise exception 'pgvector is %, hybrid search needs 0.8 or later (iterative index scans)',
                    installed.version
      using errcode = 'object_not_in_prerequisite_state',
            hint = 'Upgrade Postgres in the Supabase dashboard, '
                   'or run: alter extension vector update;';
  end if;
end
$$;

create schema knowledge_internal;

comment on schema knowledge_internal is
  'Internal objects of hybrid search. PostgREST does not expose this schema, and only its owner '
  'may use it.';

revoke all on schema knowledge_internal from public, anon, authenticated, service_role;
