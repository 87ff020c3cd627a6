-- 010_searches: searches for users, thin ones, and counts.
-- Adds: functions search_my_knowledge_chunks, match_knowledge_chunks,
-- search_knowledge_chunks_fulltext and count_matching_knowledge_chunks. Locks nothing that exists.

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
  perform knowledge_internal.check_caller('hybrid_search_knowledge_chunks');
  return query
  select shown.*
    from knowledge_internal.search(given) as hit
   cross join lateral jsonb_populate_record(hit, hidden) as shown;
end
$$;

-- Raises 22023 for a search of a user or visitor that could take long: by its candidates (each
-- question has a list in each collection), conditions or texts; for visitors, also by others.
create function knowledge_internal.check_cost(
  arguments knowledge_internal.search_arguments, is_visitor boolean default false
) returns void
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  most_candidates constant integer := case when is_visitor then 750 else 2500 end;
  most_conditions constant integer := 32; -- each is compared with every row: 1 microsecond
  characters_read constant integer := 4096; -- of each question
  formulations constant jsonb := case jsonb_typeof(arguments.formulations)
    when 'array' then arguments.formulations else '[]' end;
  texts constant text[] := array(
    select formulation.asked ->> 'query_text'
      from jsonb_array_elements(formulations) as formulation (asked)
     where jsonb_typeof(formulation.asked) = 'object'
  );
begin
  perform knowledge_internal.check_range(
            bound.argument, bound.given, bound.least, bound.most,
            format(bound.allowed, bound.most)
              || case when bound.is_for_visitors then ' for visitors' else '' end
          )
    from (
      select sum(length(part.given::text)) as characters,
             sum(
               case jsonb_typeof(part.given)
                 when 'array' then jsonb_array_length(part.given)
                 when 'object' then (select count(*) from jsonb_object_keys(part.given))
               end
             ) as conditions
        from unnest(array[arguments.filters, arguments.required_filters]) as part (given)
    ) as filters
   cross join lateral (
      values
        ('match_count', arguments.match_count::bigint, 1, 50, null, true),
        ('match_offset', arguments.match_offset, 0, 200, null, true),
        ('pool_size', arguments.pool_size, 1, 100, null, true),
        ('neighbor_window', arguments.neighbor_window, 0, 2, null, true),
        ('collections', cardinality(arguments.collections), 0, 5, 'at most %s names', true),
        ('like_ids', cardinality(arguments.like_ids), 0, 5, 'at most %s ids', true),
        ('query_text', length(arguments.query_text), 0, 1000, 'at most %s characters long', true),
        ('filters', filters.characters, 0, 2000, 'at most %s characters of JSON', true),
        ('filters', filters.characters, 0, 32768, 'at most %s characters of JSON', false),
        ('filters', filters.conditions, 0, most_conditions, 'at most %s conditions', false),
        ('boosts', length(arguments.boosts::text), 0, 2000, 'at most %s characters of JSON', true),
        ('boosts', length(arguments.boosts::text), 0, 8192, 'at most %s characters of JSON', false),
        (
          'formulations', jsonb_array_length(formulations), 0, 2,
          'an array of at most %s objects', true
        ),
        (
          'formulations[].query_text',
          (select max(length(asked.query_text)) from unnest(texts) as asked (query_text)),
          0, 1000, 'at most %s characters long', true
        ),
        (
          'pool_size (at least match_count) times collections times questions',
          (1 + jsonb_array_length(formulations))
            * greatest(cardinality(arguments.collections), 1)::bigint
            * greatest(arguments.pool_size, arguments.match_count),
          0, most_candidates, 'at most %s', false
        ),
        (
          'query_text and those of formulations',
          (
            select sum(length(left(asked.query_text, characters_read)))
              from unnest(texts || arguments.query_text) as asked (query_text)
          ),
          0, 8192, 'at most %s characters together', false
        )
    ) as bound (argument, given, least, most, allowed, is_for_visitors)
   where (is_visitor or not bound.is_for_visitors)
     and bound.given not between bound.least and bound.most; -- null: refused by the search
end
$$;

-- The search of the signed-in user, who is the viewer whatever the arguments say.
create function knowledge_internal.search_for_user(given knowledge_internal.search_arguments)
returns setof public.knowledge_search_hit
-- definer: a signed-in user may not read the tables of the search, nor call it with a viewer_id.
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
begin
  given.viewer_id := knowledge_internal.signed_in_viewer('search_my_knowledge_chunks');
  given.viewer_groups := knowledge_internal.current_viewer_groups();
  perform knowledge_internal.check_cost(given);
  return query select hit.* from knowledge_internal.search_for_caller(given) as hit;
end
$$;

-- What users and visitors call runs with their rights, as Supabase asks of functions that its API
-- exposes, and calls one definer function, which checks its caller. Its body is parsed where it is
-- created, so its callers need no usage on the internal schema and can name nothing in it.
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
  order_by text default null, required_filters jsonb default null,
  as_of timestamp with time zone default now()
) returns setof public.knowledge_search_hit
language sql stable security invoker set search_path = pg_catalog, pg_temp
return knowledge_internal.search_for_user(
  row(
    query_embedding, query_text, match_count, match_threshold, vector_weight, text_weight,
    filter_type, search_mode, pool_size, rrf_k, fusion, filters, date_from, date_to, collections,
    null, public_only, one_per_document, neighbor_window, recency_half_life, match_offset, snippet,
    formulations, null, on_bad_embedding, prefix_last, embedding_from_text, like_ids, boosts,
    diversity, max_per_document, merge_duplicates, min_confidence, snippets, order_by,
    required_filters, as_of
  )::knowledge_internal.search_arguments
);

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
grant execute on function
  public.search_my_knowledge_chunks, knowledge_internal.search_for_user to authenticated;

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
    knowledge_internal.plan_search(given, needs_question);
  question knowledge_internal.question;
  asked knowledge_internal.question[] := '{}';
  ids uuid[];
  document_ids uuid[];
  confidences double precision[];
  embeddings extensions.vector[] :=
    array(select one.embedding from unnest(plan.questions) as one);
begin
  if plan.is_empty then
    return;
  end if;
  if exists (select from unnest(plan.questions) as one where one.is_inferred) then
    embeddings := embeddings || array(
      select knowledge_internal.embedding_of_hits(list.text_ids, list.text_scores)
        from unnest(knowledge_internal.rank_all(plan)) as list
       where (plan.questions[list.formulation]).is_inferred
    );
  end if;
  foreach question in array coalesce(plan.questions, '{}') loop
    -- What is required is required no more where no chunk has it.
    if question.relaxed_query is not null and not exists (
      select from knowledge_internal.some_rows(
        plan.scope, 1, coalesce(question.indexed_query, question.matching_query),
        case when question.indexed_query is not null then question.matching_query end,
        plan.collections
      )
    ) then
      question.matching_query := question.relaxed_query;
      question.indexed_query := null;
    end if;
    asked := array_append(asked, question);
  end loop;
  select array_agg(chunk.id), array_agg(chunk.document_id)
    into ids, document_ids
    from knowledge_internal.matching_rows(
           asked, embeddings,
           given.match_threshold, plan.questions is null, plan.collections, plan.scope
         ) as chunk;
  if num_nulls(given.min_confidence, plan.questions, ids) = 0 then
    perform knowledge_internal.check_range(
              'min_confidence', cardinality(ids)::bigint * cardinality(plan.questions), 0,
              most_rated,
              format(
                'compared with at most %s matching chunks times questions: narrow the search with '
                'filters, or leave it out', most_rated
              )
            )
      where most_rated is not null;
    confidences := knowledge_internal.answer_confidences(coalesce(plan.asked, plan.questions), ids);
  end if;
  return query
  select rated.id, rated.document_id
    from unnest(ids, document_ids, confidences) as rated (id, document_id, confidence)
   where (rated.confidence < given.min_confidence) is not true;
end
$$;

create function public.count_matching_knowledge_chunks(search jsonb) returns bigint
-- definer: callers have no grant on the tables, the arguments decide which rows are counted.
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
  given constant knowledge_internal.search_arguments := knowledge_internal.given_arguments(
    search, for_backends => 'count_matching_knowledge_chunks'
  );
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
  perform knowledge_internal.check_caller('match_knowledge_chunks');
  if query_embedding is null then
    raise exception 'query_embedding is missing' using errcode = '22023';
  end if;
  return query
  select hit.id, hit.content, hit.knowledge_type, hit.document_id, hit.chunk_index,
         hit.source_origin, hit.metadata, hit.similarity
    from public.hybrid_search_knowledge_chunks(
           query_embedding => $1, match_count => $2, match_threshold => $3, filter_type => $4,
           viewer_id => $5, public_only => $6, viewer_groups => $7, required_filters => $8
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
  perform knowledge_internal.check_caller('search_knowledge_chunks_fulltext');
  if coalesce(query_text, '') !~ '\S' then
    raise exception 'query_text is missing' using errcode = '22023';
  end if;
  return query
  select hit.id, hit.content, hit.knowledge_type, hit.document_id, hit.chunk_index,
         hit.source_origin, hit.metadata, hit.text_score
    from public.hybrid_search_knowledge_chunks(
           query_text => $1, search_mode => $2, filter_type => $3, match_count => $4,
           viewer_id => $5, public_only => $6, viewer_groups => $7, required_filters => $8
         ) as hit;
end
$$;

comment on function public.search_knowledge_chunks_fulltext is
  'Chunks with the words of a query, best first: the text leg of hybrid_search_knowledge_chunks; '
  'rank is the BM25 score. viewer_id, viewer_groups, public_only, required_filters: as in '
  'hybrid_search_knowledge_chunks. Raises 22023 for an argument out of bounds.';
revoke all on function public.search_knowledge_chunks_fulltext from public, anon, authenticated;
grant execute on function public.search_knowledge_chunks_fulltext to service_role;

notify pgrst, 'reload schema';
