-- 046_versions: documents and chunks that hold for a time, and searches of what held at a time.
-- Module: versions.
-- Adds: two indexes of knowledge_chunks, a trigger of it and of knowledge_documents, and function
-- supersede_knowledge_document. Locks knowledge_chunks against writes while the indexes are
-- created, and updates the rows whose metadata has a key valid_from or valid_until.
-- Written from supabase/schemas/modules/versions/46_versions.sql by `make baseline`: edit that file.

-- A row holds from the time valid_from in its metadata on until before valid_until. Both are stored
-- as JSON has a timestamptz of UTC: + comes before . and digits, so texts are in the order of time.
create index knowledge_chunks_valid_from
  on public.knowledge_chunks ((metadata ->> 'valid_from') collate "C")
  where status = 'active' and metadata ? 'valid_from';
create index knowledge_chunks_valid_until
  on public.knowledge_chunks ((metadata ->> 'valid_until') collate "C")
  where status = 'active' and metadata ? 'valid_until';

-- Runs before a document or chunk is written, after the other triggers. A document keeps a bound
-- that an update does not give: who stores its text again may not know that it was superseded. Null
-- removes it. A chunk holds only while its document does.
create function knowledge_internal.keep_validity() returns trigger
-- definer: a role that may write the row has no rights on the internal functions.
language plpgsql security definer set search_path = pg_catalog, pg_temp
-- The bounds are stored in UTC.
set timezone = 'UTC' as $$
declare
  bounds constant text[] := '{valid_from,valid_until}';
  stored jsonb := old.metadata; -- of the document
  bound text;
  given text;
begin
  if (old.metadata ?| bounds or new.metadata ?| bounds) is not true then
    return new;
  elsif tg_argv[0] = 'chunk' then
    select document.metadata into stored
      from public.knowledge_documents as document where document.id = new.document_id;
  end if;
  foreach bound in array bounds loop
    given := new.metadata ->> bound;
    if given is not null and knowledge_internal.iso_days(given) is null then
      raise exception 'metadata.% must be null or an ISO date or timestamp such as '
                      '2026-01-31T12:00:00Z, not %', bound, left(given, 100)
        using errcode = '22023';
    end if;
    given := to_jsonb(given::timestamptz) #>> '{}';
    given := case
      when tg_argv[0] <> 'chunk' then
        case when new.metadata ? bound then given else stored ->> bound end
      when bound = 'valid_from' then greatest(given, stored ->> bound collate "C")
      else least(given, stored ->> bound collate "C")
    end;
    new.metadata := new.metadata - bound || jsonb_strip_nulls(jsonb_build_object(bound, given));
  end loop;
  if new.metadata ->> 'valid_until' < new.metadata ->> 'valid_from' collate "C"
     -- A document may end before a chunk of it starts, which then never holds.
     and (
       tg_argv[0] <> 'chunk'
       or pg_trigger_depth() = 1 and new.metadata is distinct from old.metadata
     )
  then
    raise exception 'metadata.valid_until must not be before valid_from, %, as % is%',
                    new.metadata ->> 'valid_from', new.metadata ->> 'valid_until',
                    case tg_argv[0] when 'chunk' then ': a chunk holds only while its document does'
                      else '' end
      using errcode = '22023';
  end if;
  return new;
end
$$;

create trigger keep_validity before insert or update on public.knowledge_documents
  for each row execute function knowledge_internal.keep_validity('document');
create trigger keep_validity before insert or update on public.knowledge_chunks
  for each row execute function knowledge_internal.keep_validity('chunk');
do $$
begin
  -- An update of no row would refresh the statistics, too.
  if exists (
    select from public.knowledge_chunks where metadata ?| '{valid_from,valid_until}'
  ) then
    update public.knowledge_documents set metadata = metadata
     where metadata ?| '{valid_from,valid_until}';
    update public.knowledge_chunks set metadata = metadata
     where metadata ?| '{valid_from,valid_until}';
  end if;
end
$$;

create or replace function knowledge_internal.holding_condition(as_of timestamptz) returns jsonpath
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
-- As the bounds are stored. The plans are made once, when the table may be small.
set timezone = 'UTC'
set enable_seqscan = off as $$
declare
  moment constant text := to_jsonb(as_of) #>> '{}';
begin
  return case
    -- One statement: each search pays for it.
    when exists (
           select from public.knowledge_chunks as chunk
            where chunk.status = 'active' and chunk.metadata ? 'valid_until'
              and (chunk.metadata ->> 'valid_until') collate "C" <= moment
         )
      or exists (
           select from public.knowledge_chunks as chunk
            where chunk.status = 'active' and chunk.metadata ? 'valid_from'
              and (chunk.metadata ->> 'valid_from') collate "C" > moment
         )
      then format('$ ? (@.valid_until <= "%1$s" || @.valid_from > "%1$s")', moment)::jsonpath
  end;
end
$$;

create function public.supersede_knowledge_document(
  old text, new text, at timestamptz default now()
) returns integer
-- definer: service_role has no rights on the internal schema.
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
-- As the bounds are stored.
set timezone = 'UTC' as $$
declare
  moment constant text := to_jsonb(at) #>> '{}';
  earlier public.knowledge_documents;
  later public.knowledge_documents;
  problem text;
begin
  perform knowledge_internal.check_caller('supersede_knowledge_document');
  -- In one order, so that two callers do not wait for each other.
  perform from public.knowledge_documents as document
    where document.external_key in (old, new) order by document.external_key for update;
  select * into earlier from public.knowledge_documents as document where external_key = old;
  select * into later from public.knowledge_documents as document where external_key = new;
  -- Each document of a chain starts later than the one before, so that no chain is a loop.
  problem := case
    when (at between '0001-01-01' and '9999-12-31') is not true
      then 'at must be a time of the years 1 to 9999, not ' || coalesce(moment, 'null')
    when earlier.id is null
      then 'old must be the external_key of a document, not ' || coalesce(left(old, 100), 'null')
    when later.id is null
      then 'new must be the external_key of a stored document, not '
        || coalesce(left(new, 100), 'null')
    when old = new then 'new must be another document than old, not ' || left(new, 100)
    when later.owner_id is distinct from earlier.owner_id
      then 'new must be a document of the owner of old: store it with the same owner_id'
    when earlier.metadata ->> 'valid_from' >= moment collate "C"
      then format('at must be after valid_from of old, %s, not %s',
                  earlier.metadata ->> 'valid_from', moment)
    when later.metadata ->> 'valid_until' <= moment collate "C"
      then format('at must be before valid_until of new, %s, not %s: new is the older document, '
                  'or its metadata is wrong', later.metadata ->> 'valid_until', moment)
  end;
  if problem is not null then
    raise exception '%', problem using errcode = '22023';
  end if;
  update public.knowledge_documents as document
     set updated_at = now(),
         metadata = document.metadata || case when document.id = later.id
           then jsonb_build_object('valid_from', moment)
           else jsonb_build_object(
             'valid_until', case
               -- The same documents, with another time: no hole is left between them.
               when earlier.metadata ->> 'valid_until' = later.metadata ->> 'valid_from' then moment
               else least(moment, earlier.metadata ->> 'valid_until' collate "C")
             end
           ) end
   where document.id in (earlier.id, later.id);
  return (
    select count(*) from public.knowledge_chunks as chunk
     where chunk.document_id = earlier.id and chunk.status = 'active'
  );
end
$$;

comment on function public.supersede_knowledge_document is
  'Ends a document at a time, and starts the one that replaces it: sets valid_until in the '
  'metadata of old (an earlier one stays, unless it is the start of new) and valid_from in that '
  'of new, both named by external_key. From then on searches return new and not old, unless as_of '
  'is before. Returns how many active chunks old has. Raises 22023 where a document is not stored '
  'or of another owner, and unless at is after the start of old and before the end of new.';
revoke all on function public.supersede_knowledge_document
  from public, anon, authenticated, service_role;
grant execute on function public.supersede_knowledge_document to service_role;
revoke all on all functions in schema knowledge_internal from public;

notify pgrst, 'reload schema';
