-- 045_policies: searches that show the rows which the policies of the adopted tables show.
-- Module: adoption.
-- Adds: function search_visible_knowledge_chunks, and let_search, which lets a role of the API call
-- it. Locks nothing that exists.
-- Written from supabase/schemas/modules/adoption/45_policies.sql by `make baseline`: edit that file.

-- A role sees the rows of the places that it can select. Of a table with policies, these are the
-- chunks of all rows that it sees if they are few, else the function of the place (write_readers)
-- says so of each row.
create or replace function knowledge_internal.caller_condition(seen_by name, collections text[])
returns text
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  place record;
  keys text[];
  parts text[] := '{}';
begin
  for place in
    select readable.*
      from knowledge_internal.readable_places(seen_by) as readable
     where readable.fault is null
       and (
         collections is null
         or exists (
              select from public.knowledge_chunks as chunk
               where chunk.place_id = readable.place_id and chunk.collection = any (collections)
            )
       )
     order by readable.place_id
  loop
    keys := null;
    begin
      if place.has_policies then
        execute format(
          'select knowledge_internal.%I()',
          knowledge_internal.reader_function(place.place_id, 'of', seen_by)
        )
          into keys;
      end if;
    exception when others then
      -- An error of a policy hides the rows of which it is one.
      if left(sqlstate, 2) in ('40', '53', '57', '58', 'XX') then
        raise;
      end if;
    end;
    parts := parts || case
      -- Ids, because a key can contain anything.
      when cardinality(keys) <= knowledge_internal.most_seen_keys() then format(
        'chunk.id = any (''%s''::uuid[])',
        array(
          select chunk.id
            from public.knowledge_chunks as chunk
           where chunk.place_id = place.place_id and chunk.place_key = any (keys)
        )
      )
      else concat_ws(
        ' and ', format('chunk.place_id = %s', place.place_id),
        case when place.has_policies then format(
          'knowledge_internal.%I(chunk.place_key)',
          knowledge_internal.reader_function(place.place_id, 'by', seen_by)
        ) end
      )
    end;
  end loop;
  return coalesce('(' || nullif(array_to_string(parts, ' or '), '') || ')', 'false');
end
$$;

-- Why searches of a role leave rows out that are searched in place, in words: tables that the role
-- cannot select, and (is_error) policies that end with an error for one of the first rows.
create function knowledge_internal.reader_faults(api_role name)
returns table (fault text, is_error boolean)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  claims constant text := coalesce(current_setting('request.jwt.claims', true), '');
  place record;
begin
  -- As in a request.
  perform set_config(
            'request.jwt.claims', jsonb_build_object('role', api_role)::text, true
          );
  for place in
    select readable.*
      from knowledge_internal.readable_places(api_role) as readable
     order by readable.source::text
  loop
    is_error := false;
    begin
      if place.fault is null and place.has_policies then
        execute format(
          'select knowledge_internal.%I()',
          knowledge_internal.reader_function(place.place_id, 'of', api_role)
        );
      end if;
    exception when others then
      place.fault := sqlerrm;
      is_error := true;
    end;
    if place.fault is not null then
      fault := format('%s is not searched for %s: %s', place.source, api_role, place.fault);
      return next;
    end if;
  end loop;
  perform set_config('request.jwt.claims', claims, true);
end
$$;

-- Lets a role of the API, such as authenticated, call search_visible_knowledge_chunks, or
-- (for_drop_ins) search through drop-ins alone, as also service_role may. Warns of each table that
-- is not searched for the role. Raises 42501 if the caller is not a member of the role, which is to
-- own its functions.
create function knowledge_internal.let_search(api_role name, for_drop_ins boolean default false)
returns void
language plpgsql volatile security invoker set search_path = pg_catalog, pg_temp as $$
declare
  problem text;
  is_bound constant boolean := exists (
    select from pg_catalog.pg_roles as role
     where role.rolname = api_role and not role.rolsuper and not role.rolbypassrls
  );
begin
  if for_drop_ins then
    execute format(
      'grant usage on schema knowledge_internal to %1$I;'
      'grant execute on function knowledge_internal.adopted_hits_for_caller to %1$I', api_role
    );
    if not is_bound then
      return;
    end if;
  elsif not is_bound then
    raise exception 'api_role must be a role that is under row level security, not %',
                    coalesce(api_role::text, 'null')
      using errcode = '22023', hint = 'Name the role of the API, such as authenticated.';
  end if;
  -- Who has created a role may own nothing for it yet.
  if not pg_has_role(current_user, api_role, 'usage') then
    begin
      execute format(
        'grant %I to current_user%s', api_role,
        case when current_setting('server_version_num')::integer >= 160000
          then ' with inherit true, set true' else '' end
      );
    exception when insufficient_privilege then
      raise exception '% is not a member of %, which is to own functions', current_user, api_role
        using errcode = '42501',
              hint = format('As a superuser: grant %I to %I', api_role, current_user);
    end;
  end if;
  if not for_drop_ins then
    execute format(
      'grant execute on function public.search_visible_knowledge_chunks,'
      ' knowledge_internal.search_visible to %I', api_role
    );
  end if;
  perform knowledge_internal.write_readers();
  for problem in select listed.fault from knowledge_internal.reader_faults(api_role) as listed
  loop
    raise warning '%', problem;
  end loop;
end
$$;

-- Takes the rights back that let_search gave for drop-ins.
create function knowledge_internal.end_drop_in_searches() returns void
language plpgsql volatile security invoker set search_path = pg_catalog, pg_temp as $$
declare
  api_role regrole;
begin
  for api_role in
    select granted.grantee
      from pg_catalog.pg_proc as function
     cross join lateral aclexplode(function.proacl) as granted
     where function.oid = 'knowledge_internal.adopted_hits_for_caller'::regproc
       and granted.grantee <> function.proowner
  loop
    execute format(
      'revoke execute on function knowledge_internal.adopted_hits_for_caller from %1$s;'
      'revoke usage on schema knowledge_internal from %1$s', api_role
    );
  end loop;
  perform knowledge_internal.write_readers();
end
$$;

-- Takes the right to search back that let_search gave, where no place is left.
create function knowledge_internal.end_searches() returns void
language plpgsql volatile security invoker set search_path = pg_catalog, pg_temp as $$
declare
  api_role name;
begin
  if exists (select from public.knowledge_adoptions) then
    return;
  end if;
  foreach api_role in array knowledge_internal.searching_roles() loop
    execute format(
      'revoke execute on function public.search_visible_knowledge_chunks from %I', api_role
    );
    -- As this file has granted it.
    if api_role <> all ('{anon,authenticated}'::name[]) then
      execute format(
        'revoke execute on function knowledge_internal.search_visible from %I', api_role
      );
    end if;
  end loop;
end
$$;

-- The role of the API for which the caller searches; null for service_role and the owner, who find
-- all rows. Raises 42501 for a role without let_search.
create function knowledge_internal.searching_role() returns name
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  -- current_user is the owner of the function that calls this one.
  caller constant name := coalesce(nullif(current_setting('role'), 'none'), session_user);
begin
  if pg_has_role(caller, 'service_role', 'usage') or pg_has_role(caller, current_user, 'usage') then
    return null;
  end if;
  perform knowledge_internal.check_caller('hybrid_search_knowledge_chunks');
  if caller <> all (knowledge_internal.searching_roles()) then
    raise exception 'the role % may not search', caller
      using errcode = '42501',
            hint = 'As the owner: select knowledge_internal.let_search(name of the role).';
  end if;
  return caller;
end
$$;

-- search_visible_knowledge_chunks.
create function knowledge_internal.search_visible(search jsonb)
returns setof public.knowledge_search_hit
-- definer: a signed-in user may not read the tables of the search.
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
  caller constant name := knowledge_internal.searching_role();
  given knowledge_internal.search_arguments;
begin
  given := knowledge_internal.given_arguments(search);
  if caller is not null then
    if num_nonnulls(given.viewer_id, given.viewer_groups) > 0 then
      raise exception 'search has viewer_id or viewer_groups: the policies of the tables decide'
        using errcode = '22023', hint = 'Leave them out.';
    end if;
    perform knowledge_internal.check_cost(given, caller = 'anon');
  end if;
  return query
  select hit.* from knowledge_internal.search(given, seen_by => caller) as hit;
end
$$;

create function public.search_visible_knowledge_chunks(search jsonb)
returns setof public.knowledge_search_hit
language sql stable security invoker set search_path = pg_catalog, pg_temp
return knowledge_internal.search_visible(search);

comment on function public.search_visible_knowledge_chunks is
  'Searches the tables that are adopted in place, as far as their policies and grants show their '
  'rows to the caller: a signed-in user what select as authenticated shows, a visitor what select '
  'as anon shows, service_role and the owner everything. search: the arguments of '
  'hybrid_search_knowledge_chunks as an object, without viewer_id, viewer_groups and ranked_lists. '
  'A role may call it after let_search. The document frequencies of BM25 are those of all chunks. '
  'title, source_url, external_key and document_date are null where the caller cannot see all rows '
  'of the document. '
  'Limits bound the cost of a call, as in search_my_knowledge_chunks (for anon: '
  'search_public_knowledge_chunks). Raises 42501 for a role without let_search, and 22023 for an '
  'argument out of bounds.';
revoke all on function public.search_visible_knowledge_chunks
  from public, anon, authenticated, service_role;
revoke all on all functions in schema knowledge_internal from public;
grant execute on function public.search_visible_knowledge_chunks to service_role;
-- Who may not call the function above cannot name this one.
grant execute on function knowledge_internal.search_visible
  to anon, authenticated, service_role;

notify pgrst, 'reload schema';
