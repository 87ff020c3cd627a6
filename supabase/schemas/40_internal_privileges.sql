-- 040_internal_privileges: who may call the functions of schema knowledge_internal.
-- Revokes what Postgres grants to everybody when a function is created. Locks nothing that exists.

-- No role can name a function of this schema without usage on it. The revoke is the second lock.
revoke all on all functions in schema knowledge_internal
  from public, anon, authenticated, service_role;

-- A policy runs with the rights of the role that queries, and needs no usage on the schema.
grant execute on function
  knowledge_internal.current_viewer(), knowledge_internal.current_viewer_groups()
  to authenticated;
