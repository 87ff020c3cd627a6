-- 033_field_weights: how often heading and title count, and which metadata keys are searched.
-- Module: field_weights.
-- Adds: functions set_knowledge_fields and rewrite_knowledge_chunks and a trigger of
-- knowledge_documents, and replaces text_fields. The weights are in knowledge_settings. Locks
-- knowledge_documents against writes while the trigger is created.
-- Written from supabase/schemas/modules/field_weights/33_field_weights.sql by `make baseline`: edit that file.

-- How often a word of the heading and of the title counts, and the metadata keys that are searched.
create type knowledge_internal.field_weights as (
  heading_weight integer, title_weight integer, text_keys text[]
);

-- The weights of a collection: its own settings, else those of all others, else the defaults.
create function knowledge_internal.field_weights(name text)
returns knowledge_internal.field_weights
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  weights knowledge_internal.field_weights;
begin
  select coalesce(own.heading_weight, others.heading_weight, 2),
         coalesce(own.title_weight, others.title_weight, 0),
         coalesce(own.text_keys, others.text_keys, '{}')
    into weights
    from (values (name)) as asked (collection)
    left join public.knowledge_settings as own on own.collection = asked.collection
    left join public.knowledge_settings as others on others.collection = '';
  return weights;
end
$$;

-- The title counts where the heading is neither the title itself nor a path that begins with it,
-- and where the chunk has the permissions and metadata of its document. Then who sees one of them
-- sees both, and nobody can guess the title of a hidden document letter by letter. Of metadata
-- keys, texts and lists of texts are searched, in the order of the keys.
create or replace function knowledge_internal.text_fields(
  collection text, heading text default null, document_id uuid default null,
  metadata jsonb default '{}', owner_id uuid default null, visibility text default null,
  allowed_groups text[] default null, sensitivity text default null,
  out heading_weight integer, out others text[], out stamp integer
)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  weights constant knowledge_internal.field_weights :=
    knowledge_internal.field_weights(collection);
  title text;
  texts text[] := '{}';
begin
  if weights.title_weight > 0 then
    select parent.title into title from public.knowledge_documents as parent
     where parent.id = document_id
       and (parent.owner_id, parent.visibility, parent.allowed_groups, parent.sensitivity)
             is not distinct from
           (text_fields.owner_id, text_fields.visibility, text_fields.allowed_groups,
            text_fields.sensitivity)
       and text_fields.metadata || parent.metadata = text_fields.metadata
       and starts_with(heading || ' > ', parent.title || ' > ') is not true;
  end if;
  if weights.text_keys <> '{}' then
    texts := array(
      select found.value #>> '{}'
        from unnest(weights.text_keys) with ordinality as key (name, place)
       cross join jsonb_path_query(metadata -> key.name, '$[*] ? (@.type() == "string")')
               with ordinality as found (value, place)
       order by key.place, found.place
    );
  end if;
  heading_weight := weights.heading_weight;
  others := array_fill(title, array[weights.title_weight]) || texts;
  stamp := nullif(hashtext(weights::text), hashtext('(2,0,{})'));
end
$$;

-- Runs after the title of a document was changed, or what decides whether it is searched: analyses
-- its chunks again. A definer, because roles that may write documents have no rights on the
-- internal functions.
create function knowledge_internal.pass_title_on() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp
-- The plan is made when the table is small, and used when it is large.
set enable_seqscan = off as $$
begin
  update public.knowledge_chunks as chunk
     set content_tsv = null
   where chunk.document_id = new.id
     and chunk.status = 'active'
     and (knowledge_internal.field_weights(chunk.collection)).title_weight > 0;
  return null;
end
$$;

create trigger pass_title_on
  after update on public.knowledge_documents
  for each row when (
    (
      old.title, old.owner_id, old.visibility, old.allowed_groups, old.sensitivity, old.metadata
    ) is distinct from (
      new.title, new.owner_id, new.visibility, new.allowed_groups, new.sensitivity, new.metadata
    )
  )
  execute function knowledge_internal.pass_title_on();

create function public.set_knowledge_fields(
  collection text default '',
  heading_weight integer default null,
  title_weight integer default null,
  text_keys text[] default null
) returns public.knowledge_settings
language plpgsql volatile security invoker set search_path = pg_catalog, pg_temp as $$
declare
  settings public.knowledge_settings;
  problem constant text := case
    when (length(collection) <= 200) is not true
      then 'collection must be a name of at most 200 characters, or '''' for all others'
    when heading_weight not between 0 and 5
      then format('heading_weight must be between 0 and 5, not %s', heading_weight)
    when title_weight not between 0 and 5
      then format('title_weight must be between 0 and 5, not %s', title_weight)
    when cardinality(text_keys) > 10
      then format('text_keys must be at most 10 metadata keys, not %s', cardinality(text_keys))
    when exists (
      select from unnest(text_keys) as key (name)
       where (length(key.name) between 1 and 200) is not true
    )
      then 'text_keys must be metadata keys of 1 to 200 characters'
  end;
begin
  if problem is not null then
    raise exception '%', problem using errcode = '22023';
  end if;
  -- A row of its own ends what the row for all others says of weights, so it begins with those.
  insert into public.knowledge_settings as stored (
    collection, vector_weight, text_weight, heading_weight, title_weight, text_keys
  )
  select set_knowledge_fields.collection, coalesce(others.vector_weight, 1),
         coalesce(others.text_weight, 1), set_knowledge_fields.heading_weight,
         set_knowledge_fields.title_weight, set_knowledge_fields.text_keys
    from (values ('')) as all_others (collection)
    left join public.knowledge_settings as others on others.collection = all_others.collection
      on conflict on constraint knowledge_settings_pkey do update
     set heading_weight = excluded.heading_weight,
         title_weight = excluded.title_weight,
         text_keys = excluded.text_keys,
         updated_at = now()
  returning stored.* into settings;
  return settings;
end
$$;

comment on function public.set_knowledge_fields is
  'Stores for a collection ('''' for all others) how often a word of the heading (default 2) and '
  'of the title (default 0) counts, 0 to 5, and which metadata keys are searched as text (default '
  'none, at most 10): their texts and lists of texts count once. A title with which the heading '
  'begins counts as heading alone. null: as for '''', else the default. It replaces what was '
  'stored, but no other setting. It holds for chunks that are written from now on; '
  'rewrite_knowledge_chunks rewrites the others. Raises 22023 for a value out of bounds.';
revoke all on function public.set_knowledge_fields from public, anon, authenticated;
grant execute on function public.set_knowledge_fields to service_role;

create function public.rewrite_knowledge_chunks(most integer default 1000) returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
  chunks_left bigint;
begin
  perform knowledge_internal.check_caller('rewrite_knowledge_chunks');
  perform knowledge_internal.check_range('most', most, 0, 100000);
  with collection as materialized (
    select settings.collection, (knowledge_internal.text_fields(settings.collection)).stamp
      from public.knowledge_settings as settings
  ),
  stale as materialized (
    select chunk.id
      from public.knowledge_chunks as chunk
      left join collection on collection.collection = chunk.collection
     where chunk.status = 'active'
       and chunk.field_stamp is distinct from case
             when collection.collection is null
               then (select others.stamp from collection as others where others.collection = '')
             else collection.stamp
           end
  ),
  -- skip locked: a writer changes this chunk now, and writes it with the new fields.
  rewritten as (
    update public.knowledge_chunks as chunk
       set content_tsv = null
      from (
             select free.id
               from public.knowledge_chunks as free
              where free.id in (select stale.id from stale limit most)
                for no key update skip locked
           ) as locked
     where chunk.id = locked.id
    returning chunk.id
  )
  select (select count(*) from stale) - (select count(*) from rewritten) into chunks_left;
  return chunks_left;
end
$$;

comment on function public.rewrite_knowledge_chunks(integer) is
  'Rewrites the words of at most that many active chunks that were written with other fields than '
  'set_knowledge_fields has stored, and returns how many are left: call it until that is 0. Chunks '
  'that another transaction has locked wait for the next call. Embeddings stay. With 0 it only '
  'counts. Raises 22023 for most out of 0 to 100000.';
revoke all on function public.rewrite_knowledge_chunks(integer) from public, anon, authenticated;
grant execute on function public.rewrite_knowledge_chunks(integer) to service_role;

revoke all on all functions in schema knowledge_internal from public;

notify pgrst, 'reload schema';
