-- 026_explain: how a search comes to its answer, and why it has no hits.
-- Module: insight.
-- Adds: functions explain_hybrid_search, explain_empty_knowledge_search,
-- explain_my_empty_knowledge_search and explain_public_empty_knowledge_search, and those that they
-- call. Locks nothing that exists.

-- The arguments of a search that leave out rows, each alone. path: its place in search; field: as
-- in row_arguments.
create function knowledge_internal.restrictions(search jsonb)
returns table (cause text, argument text, alone jsonb, path text[], field text)
language sql immutable security invoker set search_path = pg_catalog, pg_temp as $$
  select 'filter', listed.place,
         jsonb_build_object('filters', case
           when one.keys = '{}' then jsonb_build_array(one.value)
           when one.keys[2] is null then jsonb_build_object(one.keys[1], one.value)
           else jsonb_build_object(one.keys[1], jsonb_build_object(one.keys[2], one.value))
         end),
         array['filters'] || listed.part, null
    from knowledge_internal.listed_conditions(search -> 'filters') as listed
   cross join lateral (
           select listed.part[
                    case jsonb_typeof(search -> 'filters') when 'array' then 2 else 1 end:
                  ] as keys,
                  search -> 'filters' #> listed.part as value
         ) as one
   where listed.level = 0
   union all
  select named.cause, named.names[1],
         (
           select jsonb_object_agg(entry.key, entry.value)
             from jsonb_each(search) as entry
            where entry.key = any (named.names)
         ),
         named.names[:1], named.field
    from knowledge_internal.row_arguments() as named
   where search ?| named.names
$$;

-- The rows that the scope $1 shows, in the collections $2 if there are some, as SQL about chunk:
-- all where an index finds what is asked of them, else the first 20,000.
create function knowledge_internal.shown_rows(
  seen knowledge_internal.row_scope, collections text[], is_indexed boolean
) returns text
language sql immutable security invoker set search_path = pg_catalog, pg_temp as $$
  select '(select chunk.* from public.knowledge_chunks as chunk where ' || seen.visible
         || case when collections is null then '' else ' and chunk.collection = any ($2)' end
         || case when is_indexed is true then '' else ' limit 20000' end || ') as chunk'
$$;

-- Whether a row that the scope shows passes a filter, if there is one, and has a word, if one is
-- given.
create function knowledge_internal.shows_row(
  seen knowledge_internal.row_scope, collections text[],
  wanted knowledge_internal.chunk_filter default null, word tsquery default null
) returns boolean
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
-- One row is enough: an index finds it sooner.
set enable_seqscan = off as $$
declare
  is_found boolean;
begin
  execute
    'select exists (select from '
    || knowledge_internal.shown_rows(seen, collections, wanted is null or wanted.is_indexed)
    || ' where ' || coalesce(knowledge_internal.conditions_sql(wanted, '($3)'), 'true')
    || case when word is null then '' else ' and chunk.content_tsv @@ $4' end || ')'
    into is_found using seen, collections, wanted, word;
  return is_found;
end
$$;

-- What rows that the scope shows have in the field of a condition, as JSON. is_key: they lack the
-- key of metadata, and known has the keys beside it. Of dates and numbers, the least and the most.
create function knowledge_internal.known_instead(
  condition knowledge_internal.filter_condition, seen knowledge_internal.row_scope,
  collections text[], out known text[], out is_key boolean
)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  most_values constant integer := 1000;
  parent constant text[] := condition.path[:cardinality(condition.path) - 1];
  rows_read constant text := knowledge_internal.shown_rows(seen, collections, false);
  source text;
begin
  execute 'select not exists (select from ' || rows_read
    || ' where chunk.metadata #> $3 is not null) and $3 <> ''{}'''
    into is_key using seen, collections, condition.path;
  source := case
    when condition.kind in ('date', 'timestamp', 'integer') then format(
      'select unnest(array[min(chunk.%1$I), max(chunk.%1$I)]) from ', condition.field
    ) || rows_read
    when condition.field = 'source_id' then
      'select stored.name from public.knowledge_sources as stored'
      ' where stored.id in (select chunk.source_id from ' || rows_read || ')'
    when condition.kind = 'text'
      then format('select chunk.%I from ', condition.field) || rows_read
    when is_key then
      'select key from ' || rows_read || ' cross join jsonb_object_keys('
      '  case jsonb_typeof(chunk.metadata #> $4) when ''object'' then chunk.metadata #> $4'
      '    else ''{}'' end) as key'
    when cardinality(condition.path) > 0 then
      'select value from ' || rows_read
      || ' cross join jsonb_path_query(chunk.metadata #> $3, ''lax $[*]'') as value'
  end;
  -- Sources and models are names that no user can read.
  if source is null or condition.field in ('source_id', 'embedding_model')
    and (num_nonnulls(seen.viewer_id, seen.viewer_groups) > 0 or seen.public_only)
  then
    return;
  end if;
  execute 'select array(select distinct left(to_jsonb(value)::text, 200) from (' || source
    || ') as listed (value) where value is not null order by 1 limit ' || most_values || ')'
    into known using seen, collections, condition.path, parent;
  if is_key and parent = '{}' then
    -- Without "metadata.", an object names columns too.
    known := known || array(
      select to_jsonb(name)::text
        from jsonb_object_keys(knowledge_internal.filter_columns()) as name
    );
  end if;
end
$$;

-- The names that are like one of those asked for, the most like first: two names have more than a
-- third of their pairs of letters in common.
create function knowledge_internal.names_like(asked text[], known text[]) returns text[]
language sql immutable security invoker set search_path = pg_catalog, pg_temp as $$
  with pairs as (
    select distinct listed.name, listed.is_asked, substr(listed.padded, place, 2) as pair
      from (
        select name, true as is_asked, lower(format(' %s ', left(name, 100))) as padded
          from unnest(asked) as name
         union all
        select name, false, lower(format(' %s ', left(trim('"' from name), 100)))
          from unnest(known) as name
      ) as listed
     cross join generate_series(1, length(listed.padded) - 1) as place
  ),
  sizes as (select name, is_asked, count(*) as pairs from pairs group by name, is_asked)
  select array(
    select one.name
      from pairs as one
      join pairs as other using (pair)
      join sizes as size_of_one on size_of_one.name = one.name and not size_of_one.is_asked
      join sizes as size_of_other on size_of_other.name = other.name and size_of_other.is_asked
     where not one.is_asked and other.is_asked
     group by one.name, other.name, size_of_one.pairs, size_of_other.pairs
    having 2.0 * count(*) / (size_of_one.pairs + size_of_other.pairs) > 0.35
     order by 2.0 * count(*) / (size_of_one.pairs + size_of_other.pairs) desc, one.name
     limit 3
  )
$$;

-- The answer for an argument that none of the rows passes that the scope shows.
create function knowledge_internal.unmet_restriction(
  argument text, alone jsonb, path text[], column_name text, seen knowledge_internal.row_scope,
  collections text[]
) returns jsonb
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  listed constant knowledge_internal.filter_condition[] :=
    knowledge_internal.filter_conditions(alone -> 'filters');
  condition knowledge_internal.filter_condition := case
    when alone ? 'filters' then listed[cardinality(listed)] -- a group follows its parts
    else jsonb_populate_record(
      null::knowledge_internal.filter_condition,
      jsonb_build_object(
        'field', column_name, 'kind', knowledge_internal.filter_columns() -> column_name
      )
    )
  end;
  value constant jsonb := case jsonb_typeof(alone -> 'filters')
    when 'object' then (select entry.value from jsonb_each(alone -> 'filters') as entry)
    else coalesce(alone #> '{filters,0,value}', alone #> path) end;
  field constant text := case when condition.kind = 'json' and condition.field !~ '^metadata($|[.])'
    then 'metadata.' else '' end || condition.field;
  asked text[] := array(
    select element #>> '{}' from jsonb_path_query(value, 'lax $[*]') as element limit 20
  );
  instead constant record := knowledge_internal.known_instead(condition, seen, collections);
  is_range constant boolean := condition.kind in ('date', 'timestamp', 'integer');
  nearest text[];
begin
  if instead.is_key then
    asked := condition.path[cardinality(condition.path):];
  end if;
  if not is_range then
    nearest := knowledge_internal.names_like(asked, instead.known);
  end if;
  return jsonb_strip_nulls(jsonb_build_object(
    'reason', case argument when 'collections' then 'collection' else 'filter' end,
    'message', concat(
      case
        when instead.is_key then format('%s: no visible row has %s', argument, field)
        else format(
          '%s: no visible row passes %s', argument,
          left(concat_ws(' ', field, alone #>> '{filters,0,op}', value), 200)
        )
      end,
      case
        when is_range
          then '; they have ' || case when instead.known <> '{}'
            then array_to_string(instead.known, ' to ') else 'none' end
        when nearest <> '{}' then '; did you mean ' || nearest[1] || '?'
        when instead.known <> '{}'
          then case when instead.is_key then '; known are ' else '; they have ' end
            || array_to_string(instead.known[:5], ', ')
      end,
      case when nearest <> '{}' then '' else '.' end,
      ' Leave out this argument, or give a value that a row has.'
    ),
    'argument', argument, 'field', field,
    'value', case when length(value::text) <= 200 then value end,
    'nearest', nullif(nearest, '{}'), 'known', nullif(instead.known[:5], '{}')
  ));
end
$$;

-- The answer for a question that finds none of the rows that pass the filters.
create function knowledge_internal.unmatched_question(plan knowledge_internal.search_plan)
returns jsonb
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
-- Postgres sends a NOTICE for a stop word.
set client_min_messages = warning as $$
declare
  threshold constant double precision := plan.match_threshold;
  matching knowledge_internal.row_scope := plan.scope;
  configurations regconfig[];
  best double precision;
  words text;
  reason text;
  message text;
begin
  matching.visible := matching.matching;
  execute
    'select array_agg(distinct knowledge_internal.text_configuration(listed.language))'
    '  from (select distinct chunk.language from '
    || knowledge_internal.shown_rows(matching, plan.collections, false) || ') as listed'
    into configurations using matching, plan.collections;
  words := (
    select string_agg(distinct to_json(left(word, 60))::text, ', ')
      from (
        select word
          from unnest(plan.questions) as question cross join unnest(question.words) as word
         -- Rows have it as a stop word of their language.
         where knowledge_internal.joined(word) <> '' or not exists (
                 select from unnest(configurations) as language (configuration)
                  where numnode(plainto_tsquery(language.configuration, word)) = 0
               )
         limit 10
      ) as listed
  );
  if plan.known_ids is not null
     and not knowledge_internal.shows_row(matching, plan.collections, null)
  then
    reason := 'only_like_ids';
    message := 'All rows that pass the filters are those of like_ids, or in their documents. Give '
      'other ids, or leave out a filter.';
  elsif exists (select from unnest(plan.questions) as asked where asked.embedding is not null) then
    plan.match_threshold := -1;
    for place in 1 .. cardinality(plan.questions) loop
      plan.questions[place].matching_query := null;
    end loop;
    best := (
      select max(list.similarities[1])
        from unnest(knowledge_internal.rank_all(plan)) as list
    );
    reason := case when best is null then 'no_embedding' else 'threshold' end;
    message := case
      when best is null then 'No row that passes the filters has an embedding. Embed them '
        '(second-brain corpus embed), or ask with query_text.'
      else format(
        'The best similarity is %s and match_threshold is %s. Lower match_threshold.',
        round(best::numeric, 4), threshold
      )
    end || case when words is not null then ' No row has a word of the question: ' || words || '.'
      else '' end;
  elsif words is null then
    reason := 'no_searchable_words';
    message := 'The question has only stop words, signs or excluded words. Ask with other words, '
      'or with an embedding.';
  elsif exists (
    select from unnest(plan.questions) as question
     cross join unnest(question.lexeme_queries) as word (query)
     where knowledge_internal.shows_row(matching, plan.collections, word => word.query)
  ) then
    reason := 'words_not_together';
    message := format(
      'Rows have words of the question (%s), but none has all that are required, or all have an '
      'excluded word. Ask with search_mode websearch, without quotation marks and without -words.',
      words
    );
  else
    reason := 'no_words';
    message := format(
      'No row that passes the filters has a word of the question: %s. Ask with other words, '
      'or with an embedding.', words
    );
  end if;
  return jsonb_strip_nulls(
    jsonb_build_object('reason', reason, 'message', message, 'best_similarity', best)
  );
end
$$;

-- The answer for rows that are all below min_confidence, else null.
create function knowledge_internal.unsure_answer(
  plan knowledge_internal.search_plan, lists knowledge_internal.ranked_list[],
  threshold double precision
) returns jsonb
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  best constant double precision := case when threshold is not null then (
    select max(confidence)
      from unnest(
             knowledge_internal.answer_confidences(
               coalesce(plan.asked, plan.questions),
               array(
                 select distinct unnest(list.vector_ids || list.text_ids)
                   from unnest(lists) as list
               )
             )
           ) as confidence
  ) end;
begin
  return case when best < threshold then jsonb_build_object(
    'reason', 'min_confidence',
    'message', format(
      'The best confidence of a row is %s and min_confidence is %s. Lower min_confidence, or ask '
      'with other words.', trunc(best::numeric, 4), threshold
    ),
    'best_confidence', best
  ) end;
end
$$;

-- The answer for a search whose hits hold at another time than as_of, else null.
create function knowledge_internal.hits_at_another_time(given knowledge_internal.search_arguments)
returns jsonb
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  first_hit constant knowledge_internal.search_arguments := jsonb_populate_record(
    given,
    jsonb_build_object(
      'match_offset', 0, 'match_count', 1,
      'pool_size', greatest(given.pool_size, given.match_count)
    )
  );
  bounds jsonb; -- metadata of the best hit at any time
begin
  if knowledge_internal.holding_condition(given.as_of) is null
     or exists (select from knowledge_internal.search(first_hit))
  then
    return null;
  end if;
  bounds := (
    select hit.metadata
      from knowledge_internal.search(
             jsonb_populate_record(first_hit, '{"as_of": null}')
           ) as hit
  );
  return case when bounds is not null then jsonb_strip_nulls(jsonb_build_object(
    'reason', 'validity', 'argument', 'as_of',
    'message', format(
      'What matches does not hold at as_of, %s: the best of it %s. Give another time, or null for '
      'all times.', given.as_of,
      case
        when (bounds ->> 'valid_until')::timestamptz <= given.as_of
          then 'ended on ' || (bounds ->> 'valid_until')
        else 'starts on ' || (bounds ->> 'valid_from') end
    ),
    'valid_from', bounds -> 'valid_from', 'valid_until', bounds -> 'valid_until'
  )) end;
end
$$;

-- As empty_reason, without the notes.
create function knowledge_internal.reason_without_notes(
  given knowledge_internal.search_arguments, plan knowledge_internal.search_plan,
  counts_hidden boolean
) returns jsonb
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
declare
  viewer_scope constant knowledge_internal.row_scope := knowledge_internal.row_scope(
    knowledge_internal.compile_filter(null, null, null, null, given.public_only),
    given.viewer_id, given.viewer_groups, given.public_only, (plan.scope).required
  );
  all_scope constant knowledge_internal.row_scope := knowledge_internal.row_scope(
    null, null, null, false, (plan.scope).required
  );
  seen knowledge_internal.row_scope := viewer_scope;
  hidden bigint;
  restriction record;
  lists knowledge_internal.ranked_list[];
  total bigint;
  reason text;
  at_another_time jsonb;
begin
  if not knowledge_internal.shows_row(viewer_scope, null) then
    -- For a viewer, rows that are hidden and rows that are not there are the same.
    reason := case when viewer_scope.is_restricted then 'not_visible' else 'nothing_stored' end;
    if counts_hidden then
      execute 'select count(distinct coalesce(chunk.document_id, chunk.id)) from '
        || knowledge_internal.shown_rows(all_scope, null, false)
        into hidden using all_scope;
      reason := case when hidden = 0 then 'nothing_stored' else reason end;
    end if;
    return jsonb_strip_nulls(jsonb_build_object(
      'reason', reason,
      'message', case
        when reason = 'nothing_stored'
          then 'No document is stored. Store one: second-brain ingest PATH, or KnowledgeWriter.'
        else concat(
          hidden || case hidden when 1 then ' document is' else ' documents are' end
            || ' private. ',
          case
            when given.public_only
              then 'No document is public. Store documents with visibility public.'
            when num_nonnulls(given.viewer_id, given.viewer_groups) = 0
              then 'No document that this search may find is stored. Store one.'
            else 'No document is visible to this viewer. A document is visible to its owner_id, to '
                 'its allowed_groups, and with visibility public to all.' end
        ) end,
      'hidden_documents', nullif(hidden, 0)
    ));
  end if;

  at_another_time := knowledge_internal.hits_at_another_time(given);
  if at_another_time is not null then
    return at_another_time;
  end if;

  -- The first argument that no visible row passes alone; those that control access come first.
  for restriction in
    select one.*, compiled.wanted
      from knowledge_internal.restrictions(to_jsonb(given)) with ordinality
             as one (cause, argument, alone, path, field, place)
     cross join knowledge_internal.given_arguments(one.alone) as read
     cross join lateral (select knowledge_internal.wanted_rows(read) as wanted) as compiled
     where (one.field is not null or one.path[1] = 'filters')
       and one.alone -> one.path[1] <> 'null'
     order by one.cause <> 'collection', (compiled.wanted).access_sql is null, one.place
  loop
    -- Where filters control access, too, nothing is told of what they leave out.
    seen := case when (restriction.wanted).access_sql is null and restriction.cause <> 'collection'
      then plan.scope else viewer_scope end;
    if not knowledge_internal.shows_row(seen, plan.collections, restriction.wanted) then
      return knowledge_internal.unmet_restriction(
        restriction.argument, restriction.alone, restriction.path, restriction.field, seen,
        case when restriction.cause <> 'collection' then plan.collections end
      );
    end if;
  end loop;
  if not knowledge_internal.shows_row(viewer_scope, plan.collections, (plan.scope).wanted) then
    return jsonb_build_object(
      'reason', 'filters_together',
      'message', 'Each filter passes some rows, but no visible row passes all. Leave out a filter.'
    );
  end if;

  if given.match_offset > 0 then
    given.pool_size := greatest(given.pool_size, given.match_count);
    select hit.total_count
      into total
      from knowledge_internal.search(
             jsonb_populate_record(given, '{"match_offset": 0, "match_count": 1}')
           ) as hit;
    if total > 0 then
      return case when total <= given.match_offset then jsonb_build_object(
        'reason', 'offset',
        'message', format(
          'match_offset is %s and total_count is %s. Lower match_offset, or raise pool_size for a '
          'longer list.', given.match_offset, total
        ),
        'total_count', total
      ) end;
    end if;
  end if;
  lists := knowledge_internal.rank_all(plan);
  if exists (
    select from unnest(lists) as list where list.vector_ids <> '{}' or list.text_ids <> '{}'
  ) then
    return knowledge_internal.unsure_answer(plan, lists, given.min_confidence);
  end if;

  return knowledge_internal.unmatched_question(plan);
end
$$;

-- Why a search has no hits, as in explain_empty_knowledge_search; null if it has some.
-- counts_hidden: for operators, the documents that the viewer may not see are counted.
create function knowledge_internal.empty_reason(
  given knowledge_internal.search_arguments, counts_hidden boolean default false
) returns jsonb
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  plan constant knowledge_internal.search_plan := knowledge_internal.plan_search(given);
begin
  return knowledge_internal.reason_without_notes(given, plan, counts_hidden)
    || jsonb_strip_nulls(
         jsonb_build_object('notes', knowledge_internal.search_notes(plan, '{}'))
       );
end
$$;

create function public.explain_empty_knowledge_search(search jsonb) returns jsonb
-- definer: service_role has no rights on the internal schema; callers have none on the tables.
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
  most_searches constant integer := 50; -- as in hybrid_search_knowledge_chunks_batch
begin
  perform knowledge_internal.check_caller('explain_empty_knowledge_search');
  if jsonb_path_exists(search, 'strict $ ? (@.type() == "array" && @.size() > 0)') then
    perform knowledge_internal.check_range('search', jsonb_array_length(search), 1, most_searches);
    return (
      select jsonb_agg(
               knowledge_internal.empty_reason(
                 knowledge_internal.given_arguments(
                   listed.search, format('search[%s]', listed.place - 1)
                 )
               )
               order by listed.place
             )
        from jsonb_array_elements(search) with ordinality as listed (search, place)
    );
  end if;
  return knowledge_internal.empty_reason(knowledge_internal.given_arguments(search));
end
$$;

comment on function public.explain_empty_knowledge_search(jsonb) is
  'Why hybrid_search_knowledge_chunks has no hits for the same arguments, an object: {"reason", '
  '"message", ...}; null if it has some; for an array of searches an array. message has the '
  'remedy. reason: '
  'nothing_stored, not_visible (to this viewer), collection or filter (no visible row passes '
  'argument alone; nearest: what such rows have in field that is written alike; known: the first '
  'five), filters_together, validity (of the best hit at another time than as_of: valid_from and '
  'valid_until), only_like_ids, offset (total_count), threshold (best_similarity), '
  'min_confidence (best_confidence), no_embedding, no_searchable_words, no_words or '
  'words_not_together. notes: as those of hits, such as what of the question is not read. Rows '
  'that the viewer may not see are neither counted nor named. A filter '
  'without an index is tried on 20,000 rows. Raises 22023 as the search does, and for an unknown '
  'name.';
revoke all on function public.explain_empty_knowledge_search(jsonb)
  from public, anon, authenticated;
grant execute on function public.explain_empty_knowledge_search(jsonb) to service_role;

create function knowledge_internal.empty_reason_for_user(search jsonb) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
  given constant knowledge_internal.search_arguments :=
    knowledge_internal.own_arguments(search, 'explain_my_empty_knowledge_search');
begin
  perform knowledge_internal.check_cost(given);
  return knowledge_internal.empty_reason(given);
end
$$;

create function public.explain_my_empty_knowledge_search(search jsonb) returns jsonb
language sql stable security invoker set search_path = pg_catalog, pg_temp
return knowledge_internal.empty_reason_for_user(search);

comment on function public.explain_my_empty_knowledge_search(jsonb) is
  'explain_empty_knowledge_search for search_my_knowledge_chunks, and with its limits. Raises '
  '42501 if nobody is signed in.';
revoke all on function public.explain_my_empty_knowledge_search(jsonb)
  from public, anon, authenticated, service_role;
grant execute on function
  public.explain_my_empty_knowledge_search(jsonb), knowledge_internal.empty_reason_for_user(jsonb)
  to authenticated;

create function knowledge_internal.empty_reason_for_visitor(search jsonb) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
  given knowledge_internal.search_arguments;
begin
  perform knowledge_internal.check_granted('explain_public_empty_knowledge_search');
  given := knowledge_internal.given_arguments(search);
  given.viewer_id := null;
  given.viewer_groups := null;
  given.public_only := true;
  perform knowledge_internal.check_caller('hybrid_search_knowledge_chunks'),
          knowledge_internal.check_cost(given, true);
  return knowledge_internal.empty_reason(given);
end
$$;

create function public.explain_public_empty_knowledge_search(search jsonb) returns jsonb
language sql stable security invoker set search_path = pg_catalog, pg_temp
return knowledge_internal.empty_reason_for_visitor(search);

comment on function public.explain_public_empty_knowledge_search(jsonb) is
  'explain_empty_knowledge_search for search_public_knowledge_chunks, and with its limits. Nobody '
  'may call it until a project grants it, as to anon.';
revoke all on function public.explain_public_empty_knowledge_search(jsonb)
  from public, anon, authenticated, service_role;
grant execute on function knowledge_internal.empty_reason_for_visitor(jsonb)
  to anon, authenticated, service_role;

create function public.explain_hybrid_search(search jsonb) returns jsonb
-- definer: service_role has no rights on the internal schema.
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
declare
  begun_at constant timestamptz := clock_timestamp();
  given constant knowledge_internal.search_arguments := knowledge_internal.given_arguments(
    search, for_backends => 'explain_hybrid_search'
  );
  plan constant knowledge_internal.search_plan := knowledge_internal.plan_search(given);
  reading_milliseconds constant float8 := 1000 * extract(epoch from clock_timestamp() - begun_at);
  -- The lists that are fused below.
  lists constant knowledge_internal.ranked_list[] := knowledge_internal.rank_all(plan);
  settings constant knowledge_internal.search_settings := plan.settings;
  question constant knowledge_internal.question :=
    knowledge_internal.with_candidates(plan.questions[1], settings.document_count);
  hits jsonb;
  hybrid_milliseconds float8;
  candidates bigint;
  summary record;
begin
  if question.candidate_query is not null then
    execute 'select count(*) from public.knowledge_chunks as chunk'
      ' where ' || (plan.scope).visible || ' and chunk.content_tsv @@ $2'
      into candidates using plan.scope, question.candidate_query;
  end if;
  hits := (
    select coalesce(
             jsonb_agg(
               to_jsonb(hit) - '{metadata,context}'::text[] || jsonb_build_object(
                 'notes', nullif(hit.notes - 'shares', '{}'),
                 'vector_share', hit.notes #> '{shares,0}', 'text_share', hit.notes #> '{shares,1}',
                 'factors', hit.notes #> '{shares,2}',
                 'neighbour_share', case when settings.neighbour_weight > 0 then
                   hit.rrf_score / product.factors
                     - (hit.notes #>> '{shares,0}')::float8 - (hit.notes #>> '{shares,1}')::float8
                   end
               )
             ),
             '[]'
           )
      from knowledge_internal.search(
             given, jsonb_build_object('lists', lists, 'shares', true)
           ) as hit
     cross join lateral (
             select case
                      when count(*) = 0 then 1
                      when min(one.factor::float8) > 0
                        then exp(greatest(sum(ln(one.factor::float8)), -345))
                    end as factors
               from jsonb_array_elements_text(
                      nullif(hit.notes #> '{shares,2}', 'null')
                    ) as one (factor)
           ) as product
  );
  -- The question is read a second time, to show the hits.
  hybrid_milliseconds := 1000 * extract(epoch from clock_timestamp() - begun_at)
    - reading_milliseconds;
  select coalesce(string_agg(distinct coalesce(list.vector_strategy, 'not run'), '; '), 'not run')
           as vector_strategy,
         coalesce(string_agg(distinct coalesce(list.text_strategy, 'not run'), '; '), 'not run')
           as text_strategy,
         coalesce(sum(cardinality(list.vector_ids)), 0) as vector_rows,
         coalesce(sum(cardinality(list.text_ids)), 0) as text_rows,
         bool_or(
           list.vector_strategy is not null
             and coalesce(cardinality(list.vector_ids), 0) < plan.pool
         ) as vector_is_short,
         bool_or(
           list.text_strategy is not null and coalesce(cardinality(list.text_ids), 0) < plan.pool
         ) as text_is_short,
         sum(list.vector_milliseconds) as vector_milliseconds,
         sum(list.text_milliseconds) as text_milliseconds,
         jsonb_agg(
           jsonb_build_object(
             'formulation', list.formulation - 1,
             'collection', list.collection,
             'vector', jsonb_build_object(
               'strategy', coalesce(list.vector_strategy, 'not run'),
               'rows', coalesce(cardinality(list.vector_ids), 0),
               'milliseconds', list.vector_milliseconds
             ),
             'text', jsonb_build_object(
               'strategy', coalesce(list.text_strategy, 'not run'),
               'rows', coalesce(cardinality(list.text_ids), 0),
               'milliseconds', list.text_milliseconds,
               'relaxed', list.relaxed_parts
             ),
             'pool', plan.pool,
             'weights', jsonb_build_object(
               'vector', settings.vector_weight, 'text', settings.text_weight
             )
           )
           order by list.formulation, list.collection
         ) as lists
    into summary
    from unnest(lists) as list;
  return jsonb_build_object(
    'milliseconds', jsonb_build_object(
      'hybrid', hybrid_milliseconds, 'reading', reading_milliseconds,
      'vector', summary.vector_milliseconds, 'text', summary.text_milliseconds
    ),
    'pool', plan.pool,
    'vector', jsonb_build_object(
      'strategy', summary.vector_strategy,
      'rows', summary.vector_rows,
      'ran_dry', case
        when summary.vector_is_short
          then 'fewer rows with an embedding pass the filters and match_threshold'
      end
    ),
    'text', jsonb_build_object(
      'strategy', summary.text_strategy,
      'rows', summary.text_rows,
      'ran_dry', case
        when summary.text_is_short
          then 'fewer rows that pass the filters have words of the query'
      end,
      'candidates', candidates,
      'chunks', case when question.lexemes is not null then settings.document_count end,
      'mean_length', case when question.lexemes is not null then settings.mean_length end,
      'k1', case when question.lexemes is not null then settings.k1 end,
      'b', case when question.lexemes is not null then settings.b end,
      'query', question.candidate_query::text,
      'lexemes', (
        select jsonb_agg(
                 jsonb_build_object(
                   'lexeme', word.lexeme,
                   'document_frequency', round(word.document_frequency),
                   'weight', word.weight,
                   'is_from_like_ids', coalesce(word.lexeme = any (question.like_words), false),
                   -- The candidate query has a lexeme as a word or at one of its impact levels.
                   'left_out', question.candidate_query::text
                     !~ format('''%s(\^\d)?''', regexp_replace(word.lexeme, '(\W)', '\\\1', 'g'))
                 )
                 order by word.place
               )
          from unnest(question.lexemes, question.frequencies, question.weights)
               with ordinality as word (lexeme, document_frequency, weight, place)
      )
    ),
    'fusion', jsonb_build_object(
      'policy', settings.fusion,
      'is_stored', settings.fusion is distinct from given.fusion,
      'weights', jsonb_build_object(
               'vector', settings.vector_weight, 'text', settings.text_weight
             ),
      'cosine_scale', settings.cosine_scale
    ),
    'lists', coalesce(summary.lists, '[]'),
    'hits', hits,
    'hit_confidences', knowledge_internal.answer_confidences(
      coalesce(plan.asked, plan.questions),
      array(select (hit ->> 'id')::uuid from jsonb_array_elements(hits) as hit)
    ),
    'empty', case when hits = '[]' then knowledge_internal.empty_reason(given, true) end
  );
end
$$;

comment on function public.explain_hybrid_search(jsonb) is
  'How hybrid_search_knowledge_chunks comes to its answer, as one JSON object. search: its '
  'arguments as an object. milliseconds: of the search, of reading the question, and of each leg. '
  'vector and text: how the leg found its rows, how many, and why they are fewer than the pool. '
  'text also: the candidates found by the index, and each lexeme of query_text with its document '
  'frequency and weight; one left out finds no candidates but counts in their scores; '
  'is_from_like_ids: it is one of their telling words. fusion: the '
  'weights used; cosine_scale: what auto divides a cosine by. lists: the ranked lists that were '
  'fused, one for each formulation in each collection. hits: the answer without context and '
  'metadata, and what each leg gave to the fused score (before boosts): vector_share and '
  'text_share; factors: those of its boosts, the last one of recency_half_life. hit_confidences: '
  'what min_confidence compares, of each. empty: without hits, as in '
  'explain_empty_knowledge_search, but with the number of documents that the viewer may not see. '
  'Document frequencies are of all chunks, whoever owns them. Raises 22023 as the search does, '
  'and for an unknown name.';
revoke all on function public.explain_hybrid_search(jsonb) from public, anon, authenticated;
grant execute on function public.explain_hybrid_search(jsonb) to service_role;

revoke all on all functions in schema knowledge_internal from public;

notify pgrst, 'reload schema';
