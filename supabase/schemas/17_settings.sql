-- 017_settings: fusion and weights of a corpus, for searches that give none.
-- Adds: table knowledge_settings, functions set_, list_ and reset_knowledge_settings,
-- settled_fusion.
-- Locks nothing that exists.

create table public.knowledge_settings (
  collection text primary key default '' check (length(collection) <= 200),
  fusion text check (fusion in ('rrf', 'relative_score', 'auto')),
  vector_weight double precision not null default 1
    check (vector_weight = 0 or vector_weight between 1e-15 and 1e15),
  text_weight double precision not null default 1
    check (text_weight = 0 or text_weight between 1e-15 and 1e15),
  embedding_model text check (length(embedding_model) between 1 and 200),
  updated_at timestamptz not null default now(),
  check (vector_weight > 0 or text_weight > 0)
);

comment on table public.knowledge_settings is
  'How a collection is searched where a caller does not say: fusion, and the weights that the '
  'caller''s weights multiply. The collection '''' holds for every other collection, and for a '
  'search of several. embedding_model: the model whose embeddings the collection should have.';

alter table public.knowledge_settings enable row level security;
revoke all on table public.knowledge_settings from public, anon, authenticated;
grant select, insert, update, delete on table public.knowledge_settings to service_role;

create function public.set_knowledge_settings(
  collection text default '',
  fusion text default null,
  vector_weight double precision default 1,
  text_weight double precision default 1,
  embedding_model text default null,
  dimensions integer default null
) returns public.knowledge_settings
-- definer: service_role has no rights on the internal schema.
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
  fusions constant text[] := array['rrf', 'relative_score', 'auto'];
  stored_dimensions integer;
  settings public.knowledge_settings;
begin
  if (length(collection) <= 200) is not true then
    raise exception 'collection must be a name of at most 200 characters, or '''' for all others'
      using errcode = '22023';
  end if;
  if fusion is not null and fusion <> all (fusions) then
    raise exception 'fusion must be one of %, or null, not %',
                    array_to_string(fusions, ', '), left(fusion, 100)
      using errcode = '22023';
  end if;
  if (vector_weight = 0 or vector_weight between 1e-15 and 1e15) is not true then
    raise exception 'vector_weight must be 0 or between 1e-15 and 1e15, not %',
                    coalesce(vector_weight::text, 'null')
      using errcode = '22023';
  end if;
  if (text_weight = 0 or text_weight between 1e-15 and 1e15) is not true then
    raise exception 'text_weight must be 0 or between 1e-15 and 1e15, not %',
                    coalesce(text_weight::text, 'null')
      using errcode = '22023';
  end if;
  if vector_weight = 0 and text_weight = 0 then
    raise exception 'vector_weight and text_weight are both 0, one must be above'
      using errcode = '22023';
  end if;
  if embedding_model is not null and length(embedding_model) not between 1 and 200 then
    raise exception 'embedding_model must be a name of 1 to 200 characters'
      using errcode = '22023';
  end if;
  if dimensions is not null then
    select stored.dimensions into stored_dimensions from knowledge_internal.chunk_table() as stored;
    if dimensions <> stored_dimensions then
      raise exception 'dimensions is %, the stored embeddings have %', dimensions, stored_dimensions
        using errcode = '22023',
              hint = 'Change the model of the whole corpus with second-brain reembed.';
    end if;
  end if;
  insert into public.knowledge_settings as stored (
    collection, fusion, vector_weight, text_weight, embedding_model
  )
  values (
    set_knowledge_settings.collection, set_knowledge_settings.fusion,
    set_knowledge_settings.vector_weight, set_knowledge_settings.text_weight,
    set_knowledge_settings.embedding_model
  )
  on conflict on constraint knowledge_settings_pkey do update
    set fusion = excluded.fusion,
        vector_weight = excluded.vector_weight,
        text_weight = excluded.text_weight,
        embedding_model = excluded.embedding_model,
        updated_at = now()
  returning stored.* into settings;
  return settings;
end
$$;

comment on function public.set_knowledge_settings is
  'Stores how a collection ('''' for all others) is searched where a caller gives no fusion: '
  'fusion (null: the caller''s default), the weights that the caller''s weights multiply, and the '
  'model of its embeddings. It replaces what was stored. dimensions, when given, is compared with '
  'the stored embeddings. Raises 22023 for a value out of bounds.';
revoke all on function public.set_knowledge_settings from public, anon, authenticated;
grant execute on function public.set_knowledge_settings to service_role;

create function public.list_knowledge_settings() returns setof public.knowledge_settings
language sql stable security invoker set search_path = pg_catalog, pg_temp as $$
  select settings.* from public.knowledge_settings as settings order by settings.collection
$$;

comment on function public.list_knowledge_settings() is
  'The settings that are stored, in the order of their collections.';
revoke all on function public.list_knowledge_settings() from public, anon, authenticated;
grant execute on function public.list_knowledge_settings() to service_role;

create function public.reset_knowledge_settings(collection text default '') returns boolean
language plpgsql volatile security invoker set search_path = pg_catalog, pg_temp as $$
begin
  delete from public.knowledge_settings as settings
   where settings.collection = reset_knowledge_settings.collection;
  return found;
end
$$;

comment on function public.reset_knowledge_settings(text) is
  'Removes the settings of a collection ('''': those for all others), which is then searched as '
  'without them. Returns whether there were any.';
revoke all on function public.reset_knowledge_settings(text) from public, anon, authenticated;
grant execute on function public.reset_knowledge_settings(text) to service_role;

-- The fusion and the weights of a search. A fusion that the caller names keeps the caller's
-- weights. For null and stored_or_auto, the settings stored for the one collection searched, else
-- those stored for all, give the fusion (rrf or auto without one) and multiply the weights. Raises
-- 22023 when that leaves no leg.
create function knowledge_internal.settled_fusion(
  inout fusion text, inout vector_weight double precision, inout text_weight double precision,
  collections text[]
)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  fallback constant text := case fusion when 'stored_or_auto' then 'auto' else 'rrf' end;
  -- Several collections are ranked in one list of scores, so they have one fusion.
  searched constant text := case
    when collections[1] = all (collections) then collections[1] else '' end;
  stored public.knowledge_settings;
begin
  if fusion in ('rrf', 'relative_score', 'auto') then
    return;
  end if;
  select settings.* into stored
    from public.knowledge_settings as settings
   where settings.collection in (searched, '')
   order by settings.collection = '', settings.collection
   limit 1;
  fusion := coalesce(stored.fusion, fallback);
  vector_weight := vector_weight * coalesce(stored.vector_weight, 1);
  text_weight := text_weight * coalesce(stored.text_weight, 1);
  if vector_weight = 0 and text_weight = 0 then
    raise exception 'vector_weight and text_weight are both 0 after they are multiplied by the '
                    'stored weights, one must be above'
      using errcode = '22023', hint = 'Give a fusion, or change knowledge_settings.';
  end if;
end
$$;

notify pgrst, 'reload schema';
