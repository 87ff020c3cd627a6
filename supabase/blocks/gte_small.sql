-- gte_small: embeddings of 384 dimensions, those of gte-small, which Supabase's Edge Functions have
-- built in. Of the blocks in registry.json alone: `init --dimensions 384` writes it into 002.
-- Changes: column embedding of knowledge_chunks, its index, view searchable_chunks. The table is empty.

do $$
declare
  -- The expression of the index contains the dimensions.
  index constant text := replace(
    pg_get_indexdef('public.knowledge_chunks_embedding'::regclass), '(1024)', '(384)'
  );
begin
  drop index public.knowledge_chunks_embedding;
  drop view knowledge_internal.searchable_chunks, knowledge_internal.chunk_rows;
  alter table public.knowledge_chunks alter column embedding type extensions.vector(384);
  perform knowledge_internal.use_vector_index('halfvec');
  execute index;
end
$$;
