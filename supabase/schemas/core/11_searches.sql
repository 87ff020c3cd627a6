-- 011_searches: searches for users and visitors, thin ones, batches, and counts.
-- Adds: functions search_my_knowledge_chunks, search_public_knowledge_chunks,
-- match_knowledge_chunks, search_knowledge_chunks_fulltext, hybrid_search_knowledge_chunks_batch
-- and count_matching_knowledge_chunks. Locks nothing that exists.

-- The arguments of an object, with the defaults for those that it lacks. Raises 22023 for an
-- unknown name and for a value of another type; the message begins with place and the name.
create function knowledge_internal.given_arguments(search jsonb, place text default 'search')
returns knowledge_internal.search_arguments
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  -- The defaults, as in the signature of hybrid_search_knowledge_chunks.
  given knowledge_internal.search_arguments := jsonb_populate_record(
    null::knowledge_internal.search_arguments,
    '{
      "match_count": 10, "match_threshold": 0, "vector_weight": 1, "text_weight": 1,
      "search_mode": "websearch", "pool_size": 50, "rrf_k": 60, "public_only": false,
      "one_per_document": false, "neighbor_window": 0, "match_offset": 0, "snippet": false,
      "on_bad_embedding": "error", "prefix_last": false, "embedding_from_text": false,
      "diversity": 0, "merge_duplicates": false, "snippets": 1
    }'
  );
  names constant jsonb := to_jsonb(given);
  argument text;
begin
  if jsonb_typeof(search) is distinct from 'object' then
    raise exception '% must be an object of arguments of the search', place using errcode = '22023';
  end if;
  for argument in select named.name from jsonb_object_keys(search) as named (name) loop
    if not names ? argument then
      raise exception '%.%: no argument of the search has this name', place, left(argument, 100)
        using errcode = '22023',
              hint = 'The arguments are those of hybrid_search_knowledge_chunks.';
    end if;
    given := jsonb_populate_record(given, jsonb_build_object(argument, search -> argument));
  end loop;
  return given;
exception
  when invalid_parameter_value then
    raise;
  when data_exception or program_limit_exceeded then
    raise exception '%.%: %', place, left(argument, 100), left(sqlerrm, 200)
      using errcode = '22023';
end
$$;

-- given_arguments for the signed-in user. Raises 42501 if there is none.
create function knowledge_internal.own_arguments(search jsonb, caller text)
returns knowledge_internal.search_arguments
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  if search ?| '{viewer_id,viewer_groups}' then
    raise exception 'search has viewer_id or viewer_groups: % takes them from the signed-in user',
                    caller
      using errcode = '22023';
  end if;
  return knowledge_internal.given_arguments(
    search || jsonb_build_object(
      'viewer_id', knowledge_internal.signed_in_viewer(caller),
      'viewer_groups', knowledge_internal.current_viewer_groups()
    )
  );
end
$$;

-- Calls hybrid_search_knowledge_chunks.
create function knowledge_internal.search(
  given knowledge_internal.search_arguments, ranked_lists jsonb default null
) returns setof public.knowledge_search_hit
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return query
  select hit.*
    from public.hybrid_search_knowledge_chunks(
           given.query_embedding, given.query_text, given.match_count, given.match_threshold,
           given.vector_weight, given.text_weight, given.filter_type, given.search_mode,
           given.pool_size, given.rrf_k, given.fusion, given.filters, given.date_from,
           given.date_to, given.collections, given.viewer_id, given.public_only,
           given.one_per_document, given.neighbor_window, given.recency_half_life,
           given.match_offset, given.snippet, given.formulations, given.viewer_groups,
           given.on_bad_embedding, given.prefix_last, given.embedding_from_text, given.like_ids,
           given.boosts, given.diversity, given.max_per_document, given.merge_duplicates,
           given.min_confidence, given.snippets, given.order_by, given.required_filters,
           search.ranked_lists
         ) as hit;
end
$$;

-- search for users and visitors: source_row is null unless the caller's role may select this column
-- of knowledge_documents.
create function knowledge_internal.search_for_caller(given knowledge_internal.search_arguments)
returns setof public.knowledge_search_hit
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  -- current_user is the owner of the security definer function that calls this one.
  caller constant name := coalesce(nullif(current_setting('role'), 'none'), session_user);
  hidden constant jsonb := case
    when has_column_privilege(caller, 'public.knowledge_documents', 'source_row', 'select')
      then '{}' else '{"source_row": null}' end;
begin
  return query
  select shown.*
    from knowledge_internal.search(given) as hit
   cross join lateral jsonb_populate_record(hit, hidden) as shown;
end
$$;

-- Raises 22023 for a search of a user or visitor that could take long: by its candidates (each
-- question has a list in each collection) or by its texts; for visitors, also by other arguments.
create function knowledge_internal.check_cost(
  arguments knowledge_internal.search_arguments, is_visitor boolean default false
) returns void
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  most_candidates constant integer := case when is_visitor then 750 else 2500 end;
  longest_texts constant integer := 8192; -- characters of all questions
  longest_filters constant integer := 32768; -- characters
  most_conditions constant integer := 32; -- each is compared with every row: 1 microsecond
  characters_read constant integer := 4096; -- of each question
  formulations constant jsonb := case jsonb_typeof(arguments.formulations)
    when 'array' then arguments.formulations else '[]' end;
  lists constant bigint := (1 + jsonb_array_length(formulations))
    * greatest(cardinality(arguments.collections), 1);
  refused record;
begin
  select bound.argument, bound.given, bound.least, bound.most, bound.allowed
    into refused
    from (
      select coalesce(sum(length(part.given::text)), 0) as characters,
             coalesce(
               sum(
                 case jsonb_typeof(part.given)
                   when 'array' then jsonb_array_length(part.given)
                   when 'object' then (select count(*) from jsonb_object_keys(part.given))
                 end
               ), 0
             ) as conditions
        from unnest(array[arguments.filters, arguments.required_filters]) as part (given)
    ) as filters
   cross join lateral (
      values
        ('match_count', arguments.match_count::bigint, 1, 50, null, true),
        ('match_offset', arguments.match_offset, 0, 200, null, true),
        ('pool_size', arguments.pool_size, 1, 100, null, true),
        ('neighbor_window', arguments.neighbor_window, 0, 2, null, true),
        (
          'collections', coalesce(cardinality(arguments.collections), 0), 0, 5,
          'at most %s names for visitors', true
        ),
        (
          'like_ids', coalesce(cardinality(arguments.like_ids), 0), 0, 5,
          'at most %s ids for visitors', true
        ),
        (
          'query_text', coalesce(length(arguments.query_text), 0), 0, 1000,
          'at most %s characters long for visitors', true
        ),
        (
          'filters', filters.characters, 0, 2000,
          'at most %s characters of JSON for visitors', true
        ),
        (
          'filters', filters.characters, 0, longest_filters,
          'at most %s characters of JSON', false
        ),
        (
          'filters', filters.conditions, 0, most_conditions,
          'at most %s conditions', false
        ),
        (
          'boosts', coalesce(length(arguments.boosts::text), 0), 0, 2000,
          'at most %s characters of JSON for visitors', true
        ),
        (
          'boosts', coalesce(length(arguments.boosts::text), 0), 0, longest_texts,
          'at most %s characters of JSON', false
        ),
        (
          'formulations', jsonb_array_length(formulations), 0, 2,
          'an array of at most %s objects for visitors', true
        ),
        (
          'formulations[].query_text',
          (
            select coalesce(max(length(asked.query_text #>> '{}')), 0)
              from jsonb_path_query(formulations, 'lax $[*].query_text') as asked (query_text)
             where jsonb_typeof(asked.query_text) = 'string'
          ),
          0, 1000, 'at most %s characters long for visitors', true
        ),
        (
          'pool_size (at least match_count) times collections times questions',
          coalesce(lists * greatest(arguments.pool_size, arguments.match_count), 0), 0,
          most_candidates, 'at most %s', false
        ),
        (
          'query_text and those of formulations',
          (
            select coalesce(sum(length(left(asked.query_text, characters_read))), 0)
              from (
                select arguments.query_text
                union all
                select formulation.asked ->> 'query_text'
                  from jsonb_array_elements(formulations) as formulation (asked)
                 where jsonb_typeof(formulation.asked) = 'object'
              ) as asked (query_text)
          ),
          0, longest_texts, 'at most %s characters together', false
        )
    ) as bound (argument, given, least, most, allowed, is_for_visitors)
   where (is_visitor or not bound.is_for_visitors)
     and (bound.given between bound.least and bound.most) is not true
   limit 1;
  if refused.argument is not null then
    perform knowledge_internal.check_range(
      refused.argument, refused.given, refused.least, refused.most,
      format(refused.allowed, refused.most)
    );
  end if;
end
$$;

create function public.search_my_knowledge_chunks(
  query_embedding extensions.vector default null, query_text text default null,
  match_count integer default 10, match_threshold double precision default 0.0,
  vector_weight double precision default 1.0, text_weight double precision default 1.0,
  filter_type text default null, search_mode text default 'websearch',
  pool_size integer default 50, rrf_k double precision default 60, fusion text default null,
  filters jsonb default null, date_from date default null, date_to date default null,
  collections text[] default null, public_only boolean default false,
  one_per_document boolean default false, neighbor_window integer default 0,
  recency_half_life double precision default null, match_offset integer default 0,
  snippet boolean default false, formulations jsonb default null,
  on_bad_embedding text default 'error', prefix_last boolean default false,
  embedding_from_text boolean default false, like_ids uuid[] default null,
  boosts jsonb default null, diversity double precision default 0,
  max_per_document integer default null, merge_duplicates boolean default false,
  min_confidence double precision default null, snippets integer default 1,
  order_by text default null, required_filters jsonb default null
) returns setof public.knowledge_search_hit
-- definer: a signed-in user may not read the tables of the search, nor call it with a viewer_id.
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
  given constant knowledge_internal.search_arguments := row(
    query_embedding, query_text, match_count, match_threshold, vector_weight, text_weight,
    filter_type, search_mode, pool_size, rrf_k, fusion, filters, date_from, date_to, collections,
    knowledge_internal.signed_in_viewer('search_my_knowledge_chunks'), public_only,
    one_per_document, neighbor_window, recency_half_life, match_offset, snippet, formulations,
    knowledge_internal.current_viewer_groups(), on_bad_embedding, prefix_last,
    embedding_from_text, like_ids, boosts, diversity, max_per_document, merge_duplicates,
    min_confidence, snippets, order_by, required_filters
  )::knowledge_internal.search_arguments;
begin
  perform knowledge_internal.check_cost(given);
  return query select hit.* from knowledge_internal.search_for_caller(given) as hit;
end
$$;

comment on function public.search_my_knowledge_chunks is
  'hybrid_search_knowledge_chunks for the signed-in user: public rows, rows whose owner is '
  'auth.uid(), and rows of the groups that knowledge_viewer_groups() returns. The document '
  'frequencies of BM25 are those of all chunks. Limits bound the cost of a call: pool_size (at '
  'least match_count) times collections times questions 2,500, 8,192 characters of all questions '
  'and of boosts, 32 conditions and 32,768 characters of filters. source_row is null unless the '
  'role may select this column of knowledge_documents. Raises 42501 if nobody is signed in or the '
  'user id is not a UUID, and 22023 for an argument out of bounds.';
revoke all on function public.search_my_knowledge_chunks
  from public, anon, authenticated, service_role;
grant execute on function public.search_my_knowledge_chunks to authenticated;

create function public.search_public_knowledge_chunks(
  query_embedding extensions.vector default null, query_text text default null,
  match_count integer default 10, match_threshold double precision default 0.0,
  vector_weight double precision default 1.0, text_weight double precision default 1.0,
  filter_type text default null, search_mode text default 'websearch',
  pool_size integer default 50, rrf_k double precision default 60, fusion text default null,
  filters jsonb default null, date_from date default null, date_to date default null,
  collections text[] default null, one_per_document boolean default false,
  neighbor_window integer default 0, recency_half_life double precision default null,
  match_offset integer default 0, snippet boolean default false, formulations jsonb default null,
  on_bad_embedding text default 'error', prefix_last boolean default false,
  embedding_from_text boolean default false, like_ids uuid[] default null,
  boosts jsonb default null, diversity double precision default 0,
  max_per_document integer default null, merge_duplicates boolean default false,
  min_confidence double precision default null, snippets integer default 1,
  order_by text default null, required_filters jsonb default null
) returns setof public.knowledge_search_hit
-- definer: a visitor may not read the tables of the search, nor call it for all rows.
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
  given constant knowledge_internal.search_arguments := row(
    query_embedding, query_text, match_count, match_threshold, vector_weight, text_weight,
    filter_type, search_mode, pool_size, rrf_k, fusion, filters, date_from, date_to, collections,
    null, true, one_per_document, neighbor_window, recency_half_life, match_offset, snippet,
    formulations, null, on_bad_embedding, prefix_last, embedding_from_text, like_ids, boosts,
    diversity, max_per_document, merge_duplicates, min_confidence, snippets, order_by,
    required_filters
  )::knowledge_internal.search_arguments;
begin
  -- Before the search, so that a visitor cannot make it work for an argument that is refused.
  perform knowledge_internal.check_cost(given, true);
  return query select hit.* from knowledge_internal.search_for_caller(given) as hit;
end
$$;

comment on function public.search_public_knowledge_chunks is
  'hybrid_search_knowledge_chunks for visitors: public rows only. Nobody may call it until a '
  'project grants it, as to anon. Its limits bound the cost of a call: match_count 50, '
  'match_offset 200, pool_size 100, neighbor_window 2, 5 collections, 2 formulations, 5 like_ids, '
  'pool_size times collections times questions 750, texts of 1,000 characters, filters and boosts '
  'of 2,000. The document frequencies of BM25 are those of all chunks. source_row is null unless '
  'the role may select this column of knowledge_documents. Raises 22023 for an argument out of '
  'bounds.';
revoke all on function public.search_public_knowledge_chunks
  from public, anon, authenticated, service_role;

-- The chunks that a search would find if its pools had no bound: active chunks that pass the
-- filters and have the words of query_text, or an embedding of at least match_threshold, and
-- min_confidence. Without a question, all that pass the filters, unless needs_question. most_rated:
-- how many chunks times questions min_confidence may compare. Raises 22023 as the search does.
create function knowledge_internal.matching_chunks(
  given knowledge_internal.search_arguments, needs_question boolean, most_rated bigint default null
) returns table (id uuid, document_id uuid)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  plan constant knowledge_internal.search_plan :=
    knowledge_internal.planned_search(given, needs_question);
  analysis knowledge_internal.query_analysis;
  has_strict boolean;
  asked knowledge_internal.query_analysis[] := '{}';
  ids uuid[];
  document_ids uuid[];
begin
  if plan.is_empty then
    return;
  end if;
  foreach analysis in array coalesce(plan.analyses, '{}') loop
    -- What is required is required no more where no chunk has it.
    has_strict := true;
    if analysis.relaxed_query is not null then
      has_strict := exists (
        select from knowledge_internal.some_rows(
          plan.scope, 1, coalesce(analysis.indexed_query, analysis.matching_query),
          case when analysis.indexed_query is not null then analysis.matching_query end,
          plan.collections
        )
      );
    end if;
    if not has_strict then
      analysis.matching_query := analysis.relaxed_query;
      analysis.indexed_query := null;
    end if;
    asked := array_append(asked, analysis);
  end loop;
  select array_agg(chunk.id), array_agg(chunk.document_id)
    into ids, document_ids
    from knowledge_internal.matching_rows(
           asked, array(select question.embedding from unnest(plan.questions) as question),
           given.match_threshold, plan.questions is null, plan.collections, plan.scope
         ) as chunk;
  if given.min_confidence is null or plan.questions is null or ids is null then
    return query select * from unnest(ids, document_ids);
    return;
  end if;
  perform knowledge_internal.check_range(
            'min_confidence', cardinality(ids)::bigint * cardinality(plan.questions), 0, most_rated,
            format(
              'compared with at most %s matching chunks times questions: narrow the search with '
              'filters, or leave it out', most_rated
            )
          )
    where most_rated is not null;
  return query
  select rated.id, rated.document_id
    from unnest(ids, document_ids, knowledge_internal.answer_confidences(plan, ids))
         as rated (id, document_id, confidence)
   where (rated.confidence < given.min_confidence) is not true;
end
$$;

create function public.count_matching_knowledge_chunks(search jsonb) returns bigint
-- definer: callers have no grant on the tables, the arguments decide which rows are counted.
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
  given constant knowledge_internal.search_arguments := knowledge_internal.given_arguments(search);
begin
  return (
    select coalesce(sum(counted.chunks), 0)
      from (
        select least(
                 count(*), case when given.one_per_document then 1 else given.max_per_document end
               ) as chunks
          from knowledge_internal.matching_chunks(given, true) as found
         group by coalesce(found.document_id, found.id)
      ) as counted
  );
end
$$;

comment on function public.count_matching_knowledge_chunks(jsonb) is
  'The number of hits that hybrid_search_knowledge_chunks would have for the same arguments, an '
  'object, if its pools had no bound: active chunks that pass the filters and have the words of '
  'query_text, or an embedding of at least match_threshold, and at least min_confidence '
  '(documents, with one_per_document; at most max_per_document of each). It compares every '
  'embedding that passes the filters. Arguments that only order, merge or show hits do not count. '
  'Raises 22023 as the search does, and for an unknown name.';
revoke all on function public.count_matching_knowledge_chunks(jsonb)
  from public, anon, authenticated;
grant execute on function public.count_matching_knowledge_chunks(jsonb) to service_role;

create function public.match_knowledge_chunks(
  query_embedding extensions.vector, match_count integer default 5,
  match_threshold double precision default 0.6, filter_type text default null,
  viewer_id uuid default null, public_only boolean default false, viewer_groups text[] default null,
  required_filters jsonb default null
) returns table (
  id uuid, content text, knowledge_type text, document_id uuid, chunk_index integer,
  source_origin text, metadata jsonb, similarity double precision
)
-- definer: service_role has no rights on the internal schema, here and below.
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
begin
  if query_embedding is null then
    raise exception 'query_embedding is missing' using errcode = '22023';
  end if;
  return query
  select hit.id, hit.content, hit.knowledge_type, hit.document_id, hit.chunk_index,
         hit.source_origin, hit.metadata, hit.similarity
    from public.hybrid_search_knowledge_chunks(
           query_embedding => match_knowledge_chunks.query_embedding,
           match_count => match_knowledge_chunks.match_count,
           match_threshold => match_knowledge_chunks.match_threshold,
           filter_type => match_knowledge_chunks.filter_type,
           viewer_id => match_knowledge_chunks.viewer_id,
           public_only => match_knowledge_chunks.public_only,
           viewer_groups => match_knowledge_chunks.viewer_groups,
           required_filters => match_knowledge_chunks.required_filters
         ) as hit;
end
$$;

comment on function public.match_knowledge_chunks is
  'Chunks nearest to an embedding, best first: the vector leg of hybrid_search_knowledge_chunks. '
  'match_threshold is the least cosine similarity. viewer_id, viewer_groups, public_only, '
  'required_filters: as in hybrid_search_knowledge_chunks. Raises 22023 for an argument out of '
  'bounds.';
revoke all on function public.match_knowledge_chunks from public, anon, authenticated;
grant execute on function public.match_knowledge_chunks to service_role;

create function public.search_knowledge_chunks_fulltext(
  query_text text, search_mode text default 'websearch', filter_type text default null,
  match_count integer default 10, viewer_id uuid default null, public_only boolean default false,
  viewer_groups text[] default null, required_filters jsonb default null
) returns table (
  id uuid, content text, knowledge_type text, document_id uuid, chunk_index integer,
  source_origin text, metadata jsonb, rank double precision
)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
begin
  if coalesce(query_text, '') !~ '\S' then
    raise exception 'query_text is missing' using errcode = '22023';
  end if;
  return query
  select hit.id, hit.content, hit.knowledge_type, hit.document_id, hit.chunk_index,
         hit.source_origin, hit.metadata, hit.text_score
    from public.hybrid_search_knowledge_chunks(
           query_text => search_knowledge_chunks_fulltext.query_text,
           match_count => search_knowledge_chunks_fulltext.match_count,
           filter_type => search_knowledge_chunks_fulltext.filter_type,
           search_mode => search_knowledge_chunks_fulltext.search_mode,
           viewer_id => search_knowledge_chunks_fulltext.viewer_id,
           public_only => search_knowledge_chunks_fulltext.public_only,
           viewer_groups => search_knowledge_chunks_fulltext.viewer_groups,
           required_filters => search_knowledge_chunks_fulltext.required_filters
         ) as hit;
end
$$;

comment on function public.search_knowledge_chunks_fulltext is
  'Chunks with the words of a query, best first: the text leg of hybrid_search_knowledge_chunks; '
  'rank is the BM25 score. viewer_id, viewer_groups, public_only, required_filters: as in '
  'hybrid_search_knowledge_chunks. Raises 22023 for an argument out of bounds.';
revoke all on function public.search_knowledge_chunks_fulltext from public, anon, authenticated;
grant execute on function public.search_knowledge_chunks_fulltext to service_role;

create function public.hybrid_search_knowledge_chunks_batch(
  queries jsonb, fuse boolean default false
) returns table (
  query_index integer, id uuid, content text, knowledge_type text, document_id uuid,
  chunk_index integer, source_origin text, metadata jsonb, rrf_score double precision,
  vector_rank bigint, text_rank bigint, similarity double precision, text_score double precision,
  match_type text, matched_terms text[], title text, source_url text, collection text,
  document_date date, snippet text, context text, total_count bigint, pool_ended boolean,
  heading text, sensitivity text, collections text[], document_chunks integer, external_key text,
  source_row jsonb, confidence double precision, notes jsonb, answer_confidence double precision,
  duplicates integer
)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
  most_queries constant integer := 50;
  most_formulations constant integer := 11; -- the search's own query and ten formulations
  most_rows constant integer := 1000; -- PostgREST truncates larger results without an error
  given knowledge_internal.search_arguments;
  item record;
  row_count integer;
  rows_so_far integer := 0;
begin
  if jsonb_typeof(queries) is distinct from 'array'
     or jsonb_array_length(queries) not between 1 and most_queries
  then
    raise exception 'queries must be an array of 1 to % objects', most_queries
      using errcode = '22023';
  end if;
  if fuse is null then
    raise exception 'fuse must be true or false, not null' using errcode = '22023';
  elsif fuse and jsonb_array_length(queries) > most_formulations then
    raise exception 'queries must be an array of 1 to % objects with fuse', most_formulations
      using errcode = '22023';
  elsif fuse and queries -> 0 ? 'formulations' then
    raise exception 'queries[0].formulations is not allowed with fuse' using errcode = '22023';
  end if;
  select listed.number - 1 as number, jsonb_typeof(listed.query) = 'object' as is_object
    into item
    from jsonb_array_elements(queries) with ordinality as listed (query, number)
   where jsonb_typeof(listed.query) <> 'object'
      or fuse and listed.number > 1
        and listed.query - '{query_text,query_embedding}'::text[] <> '{}'
   order by listed.number
   limit 1;
  if not item.is_object then
    raise exception 'queries[%] must be an object of arguments', item.number
      using errcode = '22023';
  elsif item.is_object then
    raise exception 'queries[%] may have only query_text and query_embedding: with fuse, the '
                    'other arguments belong in queries[0]', item.number
      using errcode = '22023';
  end if;
  if fuse then
    queries := jsonb_build_array((queries -> 0) || jsonb_build_object('formulations', queries - 0));
  end if;

  for item in
    select listed.query, listed.number - 1 as number
      from jsonb_array_elements(queries) with ordinality as listed (query, number)
     order by listed.number
  loop
    given := knowledge_internal.given_arguments(item.query, format('queries[%s]', item.number));
    begin
      return query
      select item.number::integer, hit.* from knowledge_internal.search(given) as hit;
      get diagnostics row_count = row_count;
    exception when data_exception then
      raise exception 'queries[%]: %', item.number, sqlerrm using errcode = '22023';
    end;
    rows_so_far := rows_so_far + row_count;
    if rows_so_far > most_rows then
      raise exception 'queries have more than % rows together, lower their match_count', most_rows
        using errcode = '22023';
    end if;
  end loop;
end
$$;

comment on function public.hybrid_search_knowledge_chunks_batch is
  'Several searches in one call. queries: an array of 1 to 50 objects, each with named arguments '
  'of hybrid_search_knowledge_chunks. query_index: the index of the query that a hit belongs to, '
  'from 0. fuse: the objects are formulations of one query, whose results are fused into one list; '
  'the first object also has the other arguments. Raises 22023 for an invalid argument, with the '
  'index of the query in the message, and for more than 1,000 rows in total.';
revoke all on function public.hybrid_search_knowledge_chunks_batch from public, anon, authenticated;
grant execute on function public.hybrid_search_knowledge_chunks_batch to service_role;

notify pgrst, 'reload schema';
