-- 010_searches: thin searches, and counts.
-- Adds: functions match_knowledge_chunks, search_knowledge_chunks_fulltext and
-- count_matching_knowledge_chunks. Locks nothing that exists.
-- Written from supabase/schemas/core/10_searches.sql by `make baseline`: edit that file.

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
