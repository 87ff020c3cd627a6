-- 021_facets: counts of the values of a column or metadata key, over the chunks that match.
-- Module: facets.
-- Adds: functions facet_counts, facet_knowledge_chunks and facet_my_knowledge_chunks. Locks nothing
-- that exists.
-- Written from supabase/schemas/modules/facets/21_facets.sql by `make baseline`: edit that file.

-- The counts of facet_knowledge_chunks. Of an array in metadata, each element counts once; objects,
-- nulls and missing keys are not counted. Raises 22023 for facets that are not 1 to 20 names of
-- columns or metadata paths, and for a limit out of bounds.
create function knowledge_internal.facet_counts(
  arguments knowledge_internal.search_arguments, facets text[], facet_limit integer,
  most_rated bigint default null
) returns table (facet text, value jsonb, count bigint)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
-- Under a custom plan, only one of the two ways to count is planned.
set plan_cache_mode = force_custom_plan
set standard_conforming_strings = on as $$
declare
  columns constant text[] := array[
    'knowledge_type', 'collection', 'source_id', 'source_origin', 'language'
  ];
  most_facets constant integer := 20;
  longest_path constant integer := 20; -- keys
  wrong_facet text;
begin
  if (array_ndims(facets) = 1 and cardinality(facets) <= most_facets) is not true then
    raise exception 'facets must be 1 to % names, not %',
                    most_facets, coalesce(left(facets::text, 100), 'null')
      using errcode = '22023';
  end if;
  select left(coalesce(listed.name, 'null'), 100) into wrong_facet
    from unnest(facets) as listed (name)
   where (
           listed.name = any (columns)
             or listed.name ~ '^metadata(\.[^.]+)+$'
               and cardinality(string_to_array(listed.name, '.')) <= longest_path + 1
         ) is not true
   limit 1;
  if found then
    raise exception 'facets must be %, or metadata. and a path of 1 to % keys, not %',
                    array_to_string(columns, ', '), longest_path, wrong_facet
      using errcode = '22023';
  end if;
  perform knowledge_internal.check_range('facet_limit', facet_limit, 1, 1000);
  return query
  with asked as (
    select listed.name, min(listed.place) as place, (string_to_array(listed.name, '.'))[2:] as path
      from unnest(facets) with ordinality as listed (name, place)
     group by listed.name
  ),
  matching as materialized (
    select chunk.id, chunk.document_id
      from knowledge_internal.matching_chunks(arguments, false, most_rated) as chunk
  ),
  found as materialized (
    select coalesce(
             case when arguments.one_per_document then matching.document_id end, matching.id
           ) as unit,
           chunk.knowledge_type, chunk.collection, chunk.source_id, chunk.source_origin,
           chunk.language, chunk.metadata
      from matching
      join knowledge_internal.page_rows(
             array(select matching.id from matching), has_text => false
           ) as chunk on chunk.id = matching.id
  ),
  column_values as (
    select asked.name, asked.place, found.unit,
           case asked.name
             when 'knowledge_type' then found.knowledge_type
             when 'collection' then found.collection
             when 'source_id' then found.source_id::text
             when 'source_origin' then found.source_origin
             when 'language' then found.language
           end as content
      from asked
     cross join found
     where asked.path = '{}'
  ),
  metadata_values as (
    select asked.name, asked.place, found.unit, element.content
      from asked
     cross join found
     cross join lateral (select found.metadata #> asked.path as content offset 0) as stored
     cross join lateral (
             select distinct listed.content
               from jsonb_array_elements(
                      case jsonb_typeof(stored.content)
                        when 'array' then stored.content
                        else jsonb_build_array(stored.content)
                      end
                    ) as listed (content)
           ) as element
     where asked.path <> '{}'
       and stored.content is not null
       and jsonb_typeof(element.content) in ('string', 'number', 'boolean')
  ),
  counted as (
    select entry.name, entry.place, to_jsonb(entry.content) as content,
           case when arguments.one_per_document then count(distinct entry.unit) else count(*) end
             as units
      from column_values as entry
     where entry.content is not null
     group by entry.name, entry.place, entry.content
    union all
    select entry.name, entry.place, entry.content,
           case when arguments.one_per_document then count(distinct entry.unit) else count(*) end
      from metadata_values as entry
     group by entry.name, entry.place, entry.content
  ),
  ranked as (
    select counted.*,
           row_number() over (
             partition by counted.name order by counted.units desc, counted.content
           ) as place_in_facet
      from counted
  )
  select ranked.name, ranked.content, ranked.units
    from ranked
   where ranked.place_in_facet <= facet_limit
   order by ranked.place, ranked.place_in_facet;
end
$$;

create function public.facet_knowledge_chunks(
  search jsonb default '{}', facets text[] default '{knowledge_type,collection}',
  facet_limit integer default 10
) returns table (facet text, value jsonb, count bigint)
-- definer: callers have no grant on the tables, the arguments decide which rows are counted.
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
begin
  perform knowledge_internal.check_caller('facet_knowledge_chunks');
  return query
  select counted.*
    from knowledge_internal.facet_counts(
           knowledge_internal.given_arguments(search), facets, facet_limit
         ) as counted;
end
$$;

comment on function public.facet_knowledge_chunks is
  'For each facet, the values of the matching chunks and how many chunks have each, the most '
  'frequent first. search: arguments of hybrid_search_knowledge_chunks as an object; the chunks '
  'counted are those of count_matching_knowledge_chunks; with neither query_text nor '
  'query_embedding, all active chunks that pass the filters. With one_per_document, documents are '
  'counted; max_per_document and merge_duplicates change no count. facets: 1 to 20 of '
  'knowledge_type, collection, source_id, source_origin, language and metadata. followed by a key '
  'or a path of keys; of an array, each element counts once. '
  'facet_limit: values for each facet, 1 to 1000. value is JSON and can be used in a filter. '
  'Raises 22023 for an argument out of bounds or an unknown name.';
revoke all on function public.facet_knowledge_chunks from public, anon, authenticated;
grant execute on function public.facet_knowledge_chunks to service_role;

create function knowledge_internal.facets_for_user(
  search jsonb, facets text[], facet_limit integer
) returns table (facet text, value jsonb, count bigint)
-- definer: a signed-in user may not read the tables, nor choose a viewer_id.
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
  given constant knowledge_internal.search_arguments :=
    knowledge_internal.own_arguments(search, 'facet_my_knowledge_chunks');
  most_rated constant bigint := 20000; -- half a second
begin
  perform knowledge_internal.check_cost(given);
  return query
  select counted.*
    from knowledge_internal.facet_counts(given, facets, facet_limit, most_rated) as counted;
end
$$;

create function public.facet_my_knowledge_chunks(
  search jsonb default '{}', facets text[] default '{knowledge_type,collection}',
  facet_limit integer default 10
) returns table (facet text, value jsonb, count bigint)
language sql stable security invoker set search_path = pg_catalog, pg_temp
return knowledge_internal.facets_for_user(search, facets, facet_limit);

comment on function public.facet_my_knowledge_chunks is
  'facet_knowledge_chunks for the signed-in user: counts public rows, rows whose owner is '
  'auth.uid(), and rows of the groups that knowledge_viewer_groups() returns. The limits are those '
  'of search_my_knowledge_chunks, and with min_confidence 20,000 matching chunks times questions. '
  'Raises 42501 if nobody is signed in or the user id is not a '
  'UUID, and 22023 for an argument out of bounds.';
revoke all on function public.facet_my_knowledge_chunks
  from public, anon, authenticated, service_role;
grant execute on function
  public.facet_my_knowledge_chunks, knowledge_internal.facets_for_user to authenticated;

revoke all on all functions in schema knowledge_internal from public;

notify pgrst, 'reload schema';
