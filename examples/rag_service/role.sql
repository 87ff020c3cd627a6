-- role: the service's own role in the database. It can call the search and read no table.
-- Run this as the owner of the tables after the migrations; it can run again. Then give it a
-- password: alter role rag_service password '...'

do $$
begin
  if not exists (select from pg_catalog.pg_roles where rolname = 'rag_service') then
    create role rag_service login;
  end if;
end
$$;

grant usage on schema public, extensions to rag_service;
grant execute on function
  public.hybrid_search_knowledge_chunks,
  public.knowledge_embedding_models,
  public.count_pending_knowledge_embeddings
  to rag_service;
