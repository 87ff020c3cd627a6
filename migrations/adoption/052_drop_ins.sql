-- 052_drop_ins: what the functions call that `second-brain adopt --calls` writes.
-- Module: adoption.
-- Adds: the functions that return the keys of the best rows of an adoption, and one that keeps what
-- a drop-in replaces. Locks nothing that exists.
-- Written from supabase/schemas/modules/adoption/52_drop_ins.sql by `make baseline`: edit that file.

-- A drop-in replaces the retrieval of an old function alone: it reads the rows with these keys from
-- the source with the rights and conditions of the old function, so that policies of the table
-- still hold. What narrows the search decides which rows are hits, and not who sees one.

-- The filters of a drop-in. conditions: objects with field, op (in or contains) and value, or null;
-- is_text: of the text of a JSON value. keys: of all rows that meet the others, null if there are
-- none. What is longer than a search takes is no filter: it then leaves no row out.
create function knowledge_internal.adopted_filters(
  adoption public.knowledge_adoptions, conditions jsonb, keys jsonb
) returns jsonb
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  most_values constant integer := 1000; -- of a filter; of all, twice as many
  longest constant integer := 90000; -- characters
  scalar constant text := '^(-?(0|[1-9][0-9]*)([.][0-9]+)?([eE][-+]?[0-9]+)?|true|false)$';
  composite constant text := '^[[:space:]]*[[{]';
  ids constant uuid[] := array(
    select chunk.id
      from public.knowledge_chunks as chunk
     where chunk.place_id = adoption.place_id
       and chunk.place_key = any (array(select jsonb_array_elements_text(keys)))
       and jsonb_array_length(keys) <= most_values
  );
begin
  if jsonb_array_length(keys) <= most_values then
    conditions := conditions
      || jsonb_build_object('field', 'id', 'op', 'in', 'value', to_jsonb(ids));
  end if;
  return (
    select coalesce(jsonb_agg(made.filter order by made.ordinality), '[]')
      from (
        select listed.ordinality,
               jsonb_build_object(
                 'field', listed.condition -> 'field', 'op', listed.condition -> 'op',
                 'value', case when is_list then given.list else listed.condition -> 'value' end
               ) as filter,
               sum(length(given.list::text)) over so_far as characters,
               sum(jsonb_array_length(given.list)) over so_far as values
          from jsonb_array_elements(conditions)
               with ordinality as listed (condition, ordinality)
         cross join lateral (select listed.condition ->> 'op' = 'in') as operator (is_list)
         cross join lateral (
                 select coalesce(jsonb_agg(element.value), '[]') as list,
                        bool_or(element.text ~ composite) as is_composite
                   from jsonb_path_query(listed.condition, 'lax $.value[*] ? (@ != null)')
                        as value (json)
                  cross join lateral (
                          select value.json, case when listed.condition ? 'is_text'
                            then value.json #>> '{}' end
                          union all
                          -- A number or a boolean of JSON has the same text.
                          select (value.json #>> '{}')::jsonb, null
                           where listed.condition ? 'is_text' and value.json #>> '{}' ~ scalar
                        ) as element (value, text)
               ) as given
         where listed.condition <> 'null'
           and given.is_composite is not true
           and jsonb_array_length(given.list) <= most_values
           and length(given.list::text) <= longest
           and (is_list or jsonb_typeof(listed.condition -> 'value') = 'object')
           and listed.condition -> 'value' <> '{}'
        window so_far as (order by listed.ordinality)
      ) as made
     where made.characters <= longest and made.values <= 2 * most_values
  );
end
$$;

-- The best rows of an adoption for a search (an object of arguments of
-- hybrid_search_knowledge_chunks, with the conditions and keys of adopted_filters) as keys, with
-- their places, and whether they have words of the text. No embedding and no text: none. Of an
-- embedding without a direction, any rows, as the old function; beside a text, those of the text.
-- A threshold, weight or constant out of bounds is the nearest one within. seen_by: a role of the
-- API, which gets the rows that it can select.
create function knowledge_internal.adopted_hits(
  adoption_name text, embedding extensions.vector, search jsonb, seen_by name default null
) returns table (key jsonb, place bigint, has_words boolean)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
rows 20
set standard_conforming_strings = on as $$
declare
  adoption constant public.knowledge_adoptions := knowledge_internal.adoption_named(adoption_name);
  has_text constant boolean := coalesce(search ->> 'query_text' ~ '\S', false);
  given knowledge_internal.search_arguments;
begin
  if embedding is null and not has_text then
    return;
  end if;
  given := knowledge_internal.given_arguments(
    jsonb_strip_nulls(search - '{conditions,keys}'::text[]) || jsonb_build_object(
      'filters', knowledge_internal.adopted_filters(
        adoption, search -> 'conditions', nullif(search -> 'keys', 'null')
      )
    )
  );
  given.match_threshold := least(greatest(given.match_threshold, -1), 1);
  given.rrf_k := least(greatest(given.rrf_k, 1e-30), 1e30);
  given.text_weight := least(greatest(given.text_weight, 1e-30), 1e30);
  given.vector_weight := least(greatest(given.vector_weight, 1e-30), 1e30);
  given.query_embedding := case
    when (embedding operator(extensions.<=>) embedding) < 0.5 then embedding
    when not has_text
      then array_fill(1::real, array[extensions.vector_dims(embedding)])::extensions.vector
  end;
  if seen_by is not null then
    perform knowledge_internal.check_cost(given, seen_by = 'anon');
  end if;
  return query
  select hit.source_row -> 'key', hit.ordinality, hit.text_rank is not null
    from knowledge_internal.search(given, seen_by => seen_by) with ordinality as hit
   where hit.source_row ->> 'adoption' = adoption.name;
end
$$;

-- adopted_hits for drop-ins that run as their caller: the rows of a table in place that the caller
-- can select, and no place of any other; for service_role and the owner, all rows. Raises
-- 42501 for a role without let_search.
create function knowledge_internal.adopted_hits_for_caller(
  adoption_name text, embedding extensions.vector, search jsonb
) returns table (key jsonb, place bigint, has_words boolean)
-- definer: its caller may not call what it calls.
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
rows 20 as $$
declare
  caller constant name := knowledge_internal.searching_role();
  most_of_visitors constant integer := 50; -- as check_cost allows
  longest_of_visitors constant integer := 1000; -- characters, the same
begin
  if caller = 'anon' then
    search := search || jsonb_build_object(
      'query_text', left(search ->> 'query_text', longest_of_visitors),
      'match_count', least((search ->> 'match_count')::integer, most_of_visitors)
    );
  end if;
  return query
  select hit.*
    from knowledge_internal.adopted_hits(adoption_name, embedding, search, caller) as hit;
end
$$;

-- What create or replace changes of a function, as a hash.
create function knowledge_internal.drop_in_hash(drop_in oid) returns text
language sql stable security invoker set search_path = pg_catalog, pg_temp
return (
  select md5(
           jsonb_build_array(
             proc.prosrc, proc.proconfig, proc.prosecdef, proc.provolatile, proc.proisstrict,
             proc.proleakproof, proc.proparallel, proc.procost, proc.prorows,
             pg_get_expr(proc.proargdefaults, 0)
           )::text
         )
    from pg_catalog.pg_proc as proc
   where proc.oid = drop_in
);

-- Leaves the function that a drop-in replaces to its owner alone, whatever default privileges have
-- granted, and says in its comment what it was, and which drop-in is in its place.
create function knowledge_internal.keep_old_search(
  kept regprocedure, drop_in regprocedure, adoption_name text
) returns void
language plpgsql volatile security invoker set search_path = pg_catalog, pg_temp as $$
declare
  grantee text;
begin
  for grantee in
    select distinct coalesce(nullif(granted.grantee, 0)::regrole::text, 'public')
      from pg_catalog.pg_proc as proc
     cross join aclexplode(coalesce(proc.proacl, acldefault('f', proc.proowner))) as granted
     where proc.oid = kept and granted.grantee <> proc.proowner
  loop
    execute format('revoke all on function %s from %s', kept, grantee);
  end loop;
  execute format(
    'comment on function %s is %s', kept,
    (
      select quote_literal(
               format(
                 'Was %s.%I before the adoption %s; its drop-in is %s.',
                 proc.pronamespace::regnamespace, proc.proname, adoption_name,
                 knowledge_internal.drop_in_hash(proc.oid)
               )
             )
        from pg_catalog.pg_proc as proc
       where proc.oid = drop_in
    )
  );
end
$$;

revoke all on all functions in schema knowledge_internal from public;

notify pgrst, 'reload schema';
