-- 045_policies: searches that show the rows which the policies of the adopted tables show.
-- Module: adoption.
-- Adds: function search_visible_knowledge_chunks, and let_search, which creates a reader role for a
-- role of the API. Locks nothing that exists; let_search creates policies on tables of the search.
-- Written from supabase/schemas/modules/adoption/45_policies.sql by `make baseline`: edit that file.

-- A function cannot change its role, but it can be owned by a role that is under the policies. The
-- reader of a role of the API is a member of that role, so the policies and grants of the role hold
-- for the reader, and auth.uid() and auth.jwt() read the request as ever. Nobody can log in as a
-- reader, and nobody but the owner of these functions can call its search.

-- Under policies a search finds the rows of places of which the caller can select the row: one
-- condition for the places whose keys have one type, so that the planner can join. A place whose
-- rows the caller can all select needs none.
create or replace function knowledge_internal.caller_condition(collections text[]) returns text
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
-- Names are those that the catalogue has.
set quote_all_identifiers = off as $$
begin
  -- The owner of the table is not under its policies.
  if not row_security_active('public.knowledge_chunks') then
    return null;
  end if;
  return coalesce(
    (
      with place as materialized (
        select adoption.place_id, adoption.source, adoption.key_columns[1] as key,
               adoption.key_types[1] as key_type,
               knowledge_internal.key_kind(adoption.key_types) as kind,
               row_security_active(class.oid) as has_policies
          from public.knowledge_adoptions as adoption
          join pg_catalog.pg_class as class on class.oid = adoption.source
         where adoption.place_id is not null
           and has_table_privilege(current_user, class.oid, 'select')
           and (
             collections is null
             or exists (
                  select from public.knowledge_chunks as chunk
                   where chunk.place_id = adoption.place_id
                     and chunk.collection = any (collections)
                )
           )
      )
      select '(' || string_agg(condition.sql, ' or ') || ')'
        from (
          select format(
                   'chunk.place_id = any (''{%s}'')',
                   string_agg(place.place_id::text, ',' order by place.place_id)
                 )
            from place
           where not place.has_policies
           union all
          select format(
                   'exists (select from (%s) as seen (place, key)'
                   ' where seen.place = chunk.place_id and seen.key = chunk.place_%s)',
                   string_agg(
                     format(
                       'select %s, source.%I from %s as source', place.place_id, place.key,
                       place.source
                     ),
                     ' union all ' order by place.place_id
                   ),
                   place.kind
                 )
            from place
           where place.has_policies
           group by place.kind, place.key_type
        ) as condition (sql)
    ),
    'false'
  );
end
$$;

-- Lets a role of the API, such as authenticated, call search_visible_knowledge_chunks: creates its
-- reader and the function by which the reader searches. Raises 42501 if the caller may not create
-- roles, or may not grant the role.
create function knowledge_internal.let_search(api_role name) returns void
language plpgsql volatile security invoker set search_path = pg_catalog, pg_temp as $$
declare
  reader constant name := 'knowledge_reader_' || api_role;
  search constant name := 'search_as_' || api_role;
  -- Of modules, where they are there. Filters read types, origins and the names of sources.
  read_tables constant regclass[] := array(
    select class.oid
      from unnest(
             '{chunks,documents,settings,corpus_statistics,lexeme_statistics,adoptions,words,'
             'synonyms,model_weights,types,source_origins,sources}'::text[]
           ) as listed (name)
      join pg_catalog.pg_class as class on class.relname = 'knowledge_' || listed.name
     where class.relnamespace = 'public'::regnamespace
  );
  read regclass;
begin
  if not exists (
    select from pg_catalog.pg_roles as role
     where role.rolname = api_role and not role.rolsuper and not role.rolbypassrls
  ) then
    raise exception 'api_role must be a role that is under row level security, not %',
                    coalesce(api_role::text, 'null')
      using errcode = '22023', hint = 'Name the role of the API, such as authenticated.';
  end if;
  if exists (
    select from pg_catalog.pg_roles as role
     where role.rolname = reader and (role.rolsuper or role.rolbypassrls or role.rolcanlogin)
  ) then
    raise exception 'the role % can log in or is not under row level security', reader
      using errcode = '42501', hint = 'Drop this role, then call let_search again.';
  end if;
  begin
    if not exists (select from pg_catalog.pg_roles as role where role.rolname = reader) then
      execute format('create role %I nologin', reader);
    end if;
    if not pg_has_role(reader, api_role, 'usage') then
      execute format('grant %I to %I', api_role, reader);
    end if;
    -- Who creates a role is not yet its member, and may give it nothing.
    if not pg_has_role(current_user, reader, 'usage') then
      execute format(
        'grant %I to current_user%s', reader,
        case when current_setting('server_version_num')::integer >= 160000
          then ' with inherit true, set true' else '' end
      );
    end if;
  exception when insufficient_privilege then
    raise exception 'the reader of % cannot be created: %', api_role, sqlerrm
      using errcode = '42501',
            hint = format(
              'As a superuser: grant %I to %I with admin option; alter role %2$I createrole;',
              api_role, current_user
            );
  end;

  execute format('grant usage on schema knowledge_internal, extensions, public to %I', reader);
  execute format('grant execute on all functions in schema knowledge_internal to %I', reader);
  execute format('grant select on all tables in schema knowledge_internal to %I', reader);
  execute format('grant execute on function public.knowledge_content_hash to %I', reader);
  -- What is created later: the views of adopted tables, and the functions of an upgrade.
  execute format(
    'alter default privileges in schema knowledge_internal grant select on tables to %I', reader
  );
  execute format(
    'alter default privileges in schema knowledge_internal grant execute on functions to %I', reader
  );
  foreach read in array read_tables loop
    execute format('grant select on %s to %I', read, reader);
    execute format('drop policy if exists %I on %s', reader, read);
    execute format('create policy %I on %s for select to %1$I using (true)', reader, read);
  end loop;

  execute format(
    'create or replace function knowledge_internal.%I(given knowledge_internal.search_arguments)'
    ' returns setof public.knowledge_search_hit'
    ' language sql stable security definer set search_path = pg_catalog, pg_temp'
    ' as ''select hit.* from knowledge_internal.search(given) as hit''',
    search
  );
  execute format('revoke all on function knowledge_internal.%I from public', search);
  execute format('grant create on schema knowledge_internal to %I', reader);
  execute format('alter function knowledge_internal.%I owner to %I', search, reader);
  execute format('revoke create on schema knowledge_internal from %I', reader);
  execute format('grant execute on function knowledge_internal.%I to current_user', search);
  execute format(
    'grant execute on function public.search_visible_knowledge_chunks to %I', api_role
  );
end
$$;

-- search_visible_knowledge_chunks.
create function knowledge_internal.search_visible(search jsonb)
returns setof public.knowledge_search_hit
-- definer: a signed-in user may not read the tables of the search.
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
  -- current_user is the owner of this function.
  caller constant name := coalesce(nullif(current_setting('role'), 'none'), session_user);
  given knowledge_internal.search_arguments;
begin
  if pg_has_role(caller, 'service_role', 'usage') or pg_has_role(caller, current_user, 'usage') then
    return query
    select hit.* from knowledge_internal.search(knowledge_internal.given_arguments(search)) as hit;
    return;
  end if;
  if not exists (
    select
      from pg_catalog.pg_proc as function
     where function.pronamespace = 'knowledge_internal'::regnamespace
       and function.proname = 'search_as_' || caller
       -- A function of another role would see other rows.
       and function.proowner = (
             select role.oid from pg_catalog.pg_roles as role
              where role.rolname = 'knowledge_reader_' || caller
           )
  ) then
    raise exception 'the role % may not search', caller
      using errcode = '42501',
            hint = 'As the owner: select knowledge_internal.let_search(name of the role).';
  end if;
  given := knowledge_internal.given_arguments(search);
  if num_nonnulls(given.viewer_id, given.viewer_groups) > 0 then
    raise exception 'search has viewer_id or viewer_groups: the policies of the tables decide'
      using errcode = '22023', hint = 'Leave them out.';
  end if;
  perform knowledge_internal.check_cost(given, caller = 'anon');
  return query execute format(
    'select hit.* from knowledge_internal.%I($1) as hit', 'search_as_' || caller
  )
    using given;
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
