"""The statements of a change of the embedding model, in the order of its steps."""

from typing import LiteralString

COLUMNS = ("embedding", "embedding_bits", "embedding_model")
MARK = "re-embedding: "
STATE = """
select attribute.attname, attribute.atttypmod, col_description(attribute.attrelid, attribute.attnum)
  from pg_catalog.pg_attribute as attribute
 where attribute.attrelid = 'public.knowledge_chunks'::regclass
   and attribute.attname in ('embedding', 'embedding_next', 'embedding_old')
"""
MODELS = """
select chunk.embedding_model
  from public.knowledge_chunks as chunk
 where chunk.status = 'active'
   and chunk.embedding_bits is not null
 group by chunk.embedding_model
 order by count(*) desc, chunk.embedding_model
 limit 1
"""
ADD_COLUMNS = """
alter table public.knowledge_chunks
  add column embedding_next extensions.vector({dimensions}),
  add column embedding_bits_next bit varying,
  add column embedding_model_next text,
  add constraint knowledge_chunks_embedding_not_zero_next
    check ((embedding_next operator(extensions.<=>) embedding_next) < 0.5) not valid
"""
MARK_COLUMN = "comment on column public.knowledge_chunks.{column} is {comment}"
# The statements that give the new columns the settings of the current ones.
LIKE_CURRENT = """
select format(
         'alter table public.knowledge_chunks alter column %%1$I set storage %%2$s,'
         ' alter column %%1$I set statistics %%3$s',
         attribute.attname || '_next',
         case attribute.attstorage
           when 'p' then 'plain' when 'e' then 'external' when 'm' then 'main' else 'extended'
         end,
         coalesce(attribute.attstattarget, -1)
       )
  from pg_catalog.pg_attribute as attribute
 where attribute.attrelid = 'public.knowledge_chunks'::regclass
   and attribute.attname = any (%s)
"""
# Triggers run in the order of their names: this one runs after complete_chunk.
FOLLOW: tuple[LiteralString, ...] = (
    """
    create function knowledge_internal.follow_reembedding()
    returns trigger
    language plpgsql
    volatile
    security invoker
    set search_path = pg_catalog, pg_temp
    as $$
    begin
      if new.embedding_model_next is distinct from old.embedding_model_next then
        -- Only the embedding has changed, not the content of the chunk.
        new.updated_at := old.updated_at;
      elsif new.content_hash <> old.content_hash then
        new.embedding_next := null;
        new.embedding_bits_next := null;
        new.embedding_model_next := null;
      end if;
      return new;
    end
    $$
    """,
    """
    comment on function knowledge_internal.follow_reembedding() is
      'Clears the new embedding of a chunk whose text changes while a re-embedding runs.'
    """,
    """
    revoke all on function knowledge_internal.follow_reembedding()
      from public, anon, authenticated, service_role
    """,
    """
    create trigger follow_reembedding
      before update on public.knowledge_chunks
      for each row execute function knowledge_internal.follow_reembedding()
    """,
)
UNFOLLOW: tuple[LiteralString, ...] = (
    "drop trigger if exists follow_reembedding on public.knowledge_chunks",
    "drop function if exists knowledge_internal.follow_reembedding()",
)
COUNT = """
select count(embedding_next), count(*) from public.knowledge_chunks where status = 'active'
"""
# Without the texts that failed for good.
IS_LEFT = """
select
  from public.knowledge_chunks as chunk
 where chunk.status = 'active'
   and chunk.embedding_bits_next is null
   and not exists (
         select
           from public.knowledge_embedding_claims as claim
          where claim.content_hash = chunk.content_hash
            and claim.model = %(model)s
            and claim.failed_at is not null
       )
 limit %(limit)s
"""
IS_LEFT_IN_PLACE = """
select
  from knowledge_internal.pending_texts() as waiting
 where not exists (
         select
           from public.knowledge_embedding_claims as claim
          where claim.content_hash = waiting.content_hash
            and claim.model = %(model)s
            and claim.failed_at is not null
       )
 limit %(limit)s
"""
FAILED = """
select count(*)
  from public.knowledge_embedding_claims as claim
 where claim.model = %s
   and claim.failed_at is not null
   and exists (
         select
           from public.knowledge_chunks as chunk
          where chunk.content_hash = claim.content_hash
            and chunk.status = 'active'
       )
"""
# Only one run has a session, so a claim of another run is of one that has ended. Texts that failed
# are tried again.
FORGET_LAST_RUN = """
delete from public.knowledge_embedding_claims as claim
 where claim.worker = %(worker)s
    or claim.model = %(model)s and claim.failed_at is not null
"""
FORGET = """
delete from public.knowledge_embedding_claims as claim where claim.model = %s
"""
# No worker can store while the switch locks the table, so nobody waits for these claims.
TAKE_OVER = """
delete from public.knowledge_embedding_claims as claim
 where claim.model = %s
   and claim.failed_at is null
"""
SET_MODEL: tuple[LiteralString, ...] = (
    """
    update public.knowledge_settings as settings
       set embedding_model = %(model)s, updated_at = now()
     where settings.embedding_model is distinct from %(model)s
       and (settings.embedding_model is not null or settings.collection = '')
    """,
    """
    insert into public.knowledge_settings (collection, embedding_model)
    values ('', %(model)s)
        on conflict (collection) do nothing
    """,
)
VALIDATE = """
alter table public.knowledge_chunks validate constraint knowledge_chunks_embedding_not_zero_next
"""
IS_VALID = """
select index.indisvalid
  from pg_catalog.pg_index as index
 where index.indexrelid = to_regclass('public.' || %s)
"""
# The indexes of the queue, on the new columns.
QUEUE_INDEXES: dict[str, LiteralString] = {
    "knowledge_chunks_unembedded_next": """
create index concurrently knowledge_chunks_unembedded_next
  on public.knowledge_chunks (collection)
  where status = 'active' and embedding_bits_next is null
""",
    "knowledge_chunks_embedding_model_next": """
create index concurrently knowledge_chunks_embedding_model_next
  on public.knowledge_chunks (coalesce(embedding_model_next, ''), collection)
  where status = 'active' and embedding_bits_next is not null
""",
}
NEXT_INDEX, OLD_INDEX = "knowledge_chunks_embedding_next", "knowledge_chunks_embedding_old"
# The same lock order as in a search, so that the two cannot deadlock.
LOCK: tuple[LiteralString, ...] = (
    "lock table only public.knowledge_chunks in access exclusive mode",
    "drop view if exists knowledge_internal.searchable_chunks",
)
# The statements that give the columns with these names the comments of now.
COMMENTS = """
select format(
         'comment on column public.knowledge_chunks.%%I is %%L',
         attribute.attname, col_description(attribute.attrelid, attribute.attnum)
       )
  from pg_catalog.pg_attribute as attribute
 where attribute.attrelid = 'public.knowledge_chunks'::regclass
   and attribute.attname = any (%s)
"""
SWAP: tuple[LiteralString, ...] = (
    *UNFOLLOW,
    "drop index if exists public.knowledge_chunks_unembedded",
    "drop index if exists public.knowledge_chunks_embedding_model",
    "alter index public.knowledge_chunks_unembedded_next rename to knowledge_chunks_unembedded",
    "alter index public.knowledge_chunks_embedding_model_next"
    " rename to knowledge_chunks_embedding_model",
    "alter index if exists public.knowledge_chunks_embedding"
    " rename to knowledge_chunks_embedding_old",
    "alter index public.knowledge_chunks_embedding_next rename to knowledge_chunks_embedding",
    "alter table public.knowledge_chunks rename constraint knowledge_chunks_embedding_not_zero"
    " to knowledge_chunks_embedding_not_zero_old",
    "alter table public.knowledge_chunks rename constraint knowledge_chunks_embedding_not_zero_next"
    " to knowledge_chunks_embedding_not_zero",
    "alter table public.knowledge_chunks rename column embedding to embedding_old",
    "alter table public.knowledge_chunks rename column embedding_next to embedding",
    "alter table public.knowledge_chunks rename column embedding_bits to embedding_bits_old",
    "alter table public.knowledge_chunks rename column embedding_bits_next to embedding_bits",
    "alter table public.knowledge_chunks rename column embedding_model to embedding_model_old",
    "alter table public.knowledge_chunks rename column embedding_model_next to embedding_model",
    "notify pgrst, 'reload schema'",
)
USE = "select knowledge_internal.use_vector_index(%s)"
ANALYSE: tuple[LiteralString, ...] = (
    "analyze public.knowledge_chunks",
    "select public.refresh_knowledge_statistics()",
)
DROP_NEXT = """
alter table public.knowledge_chunks
  drop column if exists embedding_next,
  drop column if exists embedding_bits_next,
  drop column if exists embedding_model_next
"""
DROP_OLD = """
alter table public.knowledge_chunks
  drop column if exists embedding_old,
  drop column if exists embedding_bits_old,
  drop column if exists embedding_model_old
"""
