-- 052_drop_ins: what the functions call that `second-brain adopt --calls` writes.
-- Module: adoption.
-- Adds: the functions that return the keys of the best rows of an adoption. Locks nothing that
-- exists.
-- Written from supabase/schemas/modules/adoption/52_drop_ins.sql by `make baseline`: edit that file.

-- A drop-in replaces the retrieval of an old function alone: it reads the rows with these keys from
-- the source with the rights and conditions of the old function, so that policies of the table
-- still hold. What narrows the search decides which rows are hits, and not who sees one.

-- The filters of conditions of a drop-in: objects with field, op and value, or any or all with more
-- conditions; null has none. Without a value no row meets one, unless keeps_all. is_text: of the
-- text of a JSON value. None of lists that are longer than a search takes: a filter that is not
-- there leaves no row out.
create function knowledge_internal.adopted_filters(conditions jsonb) returns jsonb
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  most_values constant integer := 1000;
  longest constant integer := 30000; -- characters
  scalar constant text := '^(-?(0|[1-9][0-9]*)([.][0-9]+)?([eE][-+]?[0-9]+)?|true|false)$';
  composite constant text := '^[[:space:]]*[[{]';
  found jsonb := '[]';
  filters jsonb;
  condition jsonb;
  op text;
  value jsonb;
begin
  for condition in select listed.element from jsonb_array_elements(conditions) as listed (element)
  loop
    continue when condition = 'null';
    op := condition ->> 'op';
    value := coalesce(condition -> 'value', 'null');
    if op in ('in', 'not_in', 'has_any', 'is_text') and value <> 'null' then
      value := jsonb_path_query_array(value, 'lax $[*] ? (@ != null)');
    end if;
    filters := jsonb_build_array(condition - 'keeps_all' || jsonb_build_object('value', value));
    if condition ? 'all' then
      filters := knowledge_internal.adopted_filters(condition -> 'all');
    elsif condition ? 'any' then
      filters := (
        select jsonb_build_array(jsonb_build_object('any', jsonb_agg(jsonb_build_object(
                 'all', knowledge_internal.adopted_filters(jsonb_build_array(side.element))
               ))))
          from jsonb_array_elements(condition -> 'any') as side (element)
      );
      continue when jsonb_path_exists(filters, 'strict $[*].any[*] ? (@.all.size() == 0)');
    elsif op in ('is_null', 'is_not_null') then
      filters := jsonb_build_array(condition);
    elsif value = 'null' then
      continue when condition ? 'keeps_all';
      filters := jsonb_build_array(condition || '{"op": "in", "value": []}');
    elsif op = 'is_text' then
      continue when exists (
        select from jsonb_array_elements_text(value) as listed (text) where listed.text ~ composite
      );
      filters := jsonb_build_array(condition - 'keeps_all' || jsonb_build_object(
        'op', 'in', 'value', value || coalesce((
          -- A number or a boolean of JSON has the same text.
          select jsonb_agg(listed.text::jsonb)
            from jsonb_array_elements_text(value) as listed (text) where listed.text ~ scalar
        ), '[]')
      ));
    elsif op = 'contains' and (
      value = '{}' or condition ->> 'field' = 'metadata' and jsonb_typeof(value) <> 'object'
    ) then
      continue;
    end if;
    if length((found || filters)::text) <= longest
      and jsonb_array_length(jsonb_path_query_array(found || filters, 'lax $.**.value[*]'))
            <= most_values
    then
      found := found || filters;
    end if;
  end loop;
  return found;
end
$$;

-- The arguments of a search with the filters of the conditions of a drop-in.
create function knowledge_internal.narrowed_search(search jsonb) returns jsonb
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return jsonb_strip_nulls(search - 'conditions') || case when search ? 'conditions'
    then jsonb_build_object(
      'filters', knowledge_internal.adopted_filters(search -> 'conditions')
    ) else '{}' end;
end
$$;

-- The best rows of an adoption for a search (an object of arguments of
-- hybrid_search_knowledge_chunks, and conditions) as keys, with their places. No embedding and no
-- text: none. Of an embedding without a direction, any rows, as the old function; beside a text,
-- those of the text. Raises 22023 for an argument out of bounds.
create function knowledge_internal.adopted_hits(
  adoption_name text, embedding extensions.vector, search jsonb
) returns table (key jsonb, place bigint)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
rows 20
set standard_conforming_strings = on as $$
declare
  adoption constant public.knowledge_adoptions := knowledge_internal.adoption_named(adoption_name);
  given knowledge_internal.search_arguments := knowledge_internal.given_arguments(
    knowledge_internal.narrowed_search(search)
  );
begin
  if embedding is null and given.query_text !~ '\S' is not false then
    return;
  end if;
  given.query_embedding := case
    when extensions.vector_norm(embedding) > 0 then embedding
    when (given.query_text ~ '\S') is not true
      then array_fill(1::real, array[extensions.vector_dims(embedding)])::extensions.vector
  end;
  return query
  select hit.source_row -> 'key', hit.ordinality
    from knowledge_internal.search(given) with ordinality as hit
   where hit.source_row ->> 'adoption' = adoption.name;
end
$$;

-- adopted_hits for drop-ins that run as their caller: the rows of a table in place that the caller
-- can select, and no place of any other; for service_role and the owner, all rows. Raises
-- 42501 for a role without let_search.
create function knowledge_internal.adopted_hits_for_caller(
  adoption_name text, embedding extensions.vector, search jsonb
) returns table (key jsonb, place bigint)
-- definer: its caller may not call what it calls.
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on
rows 20 as $$
declare
  -- As in search_visible: current_user is the owner of this function.
  is_visitor constant boolean := coalesce(nullif(current_setting('role'), 'none'), session_user)
    = 'anon';
  most_of_visitors constant integer := 50; -- as check_cost allows
  longest_of_visitors constant integer := 1000; -- characters, the same
begin
  if embedding is null and search ->> 'query_text' ~ '\S' is not true then
    return;
  end if;
  return query
  select hit.source_row -> 'key', hit.ordinality
    from knowledge_internal.search_visible(
           knowledge_internal.narrowed_search(
             search || jsonb_build_object(
               'query_embedding', case
                 when extensions.vector_norm(embedding) > 0 then embedding::text
                 when (search ->> 'query_text' ~ '\S') is not true
                   then to_jsonb(array_fill(1, array[extensions.vector_dims(embedding)]))::text
               end,
               'query_text', case when is_visitor
                 then left(search ->> 'query_text', longest_of_visitors)
                 else search ->> 'query_text' end,
               'match_count', case when is_visitor
                 then least((search ->> 'match_count')::integer, most_of_visitors)
                 else (search ->> 'match_count')::integer end
             )
           )
         ) with ordinality as hit
   where hit.source_row ->> 'adoption' = adoption_name;
end
$$;

revoke all on all functions in schema knowledge_internal from public;

notify pgrst, 'reload schema';
