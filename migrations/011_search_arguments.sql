-- 011_search_arguments: what repeats the arguments of the search.
-- Adds: type search_arguments, functions default_search_arguments, search, check_cost,
-- search_my_knowledge_chunks, check_visitor_limits, search_public_knowledge_chunks,
-- explain_hybrid_search, estimate_hybrid_search, explain_missing_knowledge_chunk,
-- sampled_collections, visible_conditions, present_conditions, has_matching_chunk, compared_rows,
-- drawn_rows, nearest_rows, rated_rows, with_found_rows, common_search, visible_words,
-- matching_chunks, count_matching_knowledge_chunks, facet_knowledge_chunks,
-- facet_my_knowledge_chunks, pending_embeddings, count_pending_knowledge_embeddings,
-- count_my_pending_knowledge_embeddings, read_knowledge_question, knowledge_candidates,
-- fuse_knowledge_candidates, knowledge_candidate_hits, candidates, fused_candidates,
-- candidate_hits.
-- Locks nothing that exists.
-- Written from supabase/schemas/11_search_arguments.sql by `make baseline`: edit that file.

-- Written by `make variants` from 09_hybrid_search.sql and tools/variants.sql: edit those two.

create type knowledge_internal.search_arguments as (
  query_embedding extensions.vector,
  query_text text,
  match_count integer,
  match_threshold double precision,
  vector_weight double precision,
  text_weight double precision,
  filter_type text,
  search_mode text,
  pool_size integer,
  rrf_k double precision,
  fusion text,
  filters jsonb,
  date_from date,
  date_to date,
  collections text[],
  viewer_id uuid,
  public_only boolean,
  one_per_document boolean,
  neighbor_window integer,
  recency_half_life double precision,
  match_offset integer,
  snippet boolean,
  formulations jsonb,
  viewer_groups text[],
  on_bad_embedding text,
  prefix_last boolean
);

comment on type knowledge_internal.search_arguments is
  'The arguments of hybrid_search_knowledge_chunks.';

create function knowledge_internal.default_search_arguments()
returns knowledge_internal.search_arguments
language plpgsql
immutable
security invoker
set search_path = pg_catalog, pg_temp
as $$
declare
  arguments knowledge_internal.search_arguments;
begin
  arguments.query_embedding := null;
  arguments.query_text := null;
  arguments.match_count := 10;
  arguments.match_threshold := 0.0;
  arguments.vector_weight := 1.0;
  arguments.text_weight := 1.0;
  arguments.filter_type := null;
  arguments.search_mode := 'websearch';
  arguments.pool_size := 50;
  arguments.rrf_k := 60;
  arguments.fusion := null;
  arguments.filters := null;
  arguments.date_from := null;
  arguments.date_to := null;
  arguments.collections := null;
  arguments.viewer_id := null;
  arguments.public_only := false;
  arguments.one_per_document := false;
  arguments.neighbor_window := 0;
  arguments.recency_half_life := null;
  arguments.match_offset := 0;
  arguments.snippet := false;
  arguments.formulations := null;
  arguments.viewer_groups := null;
  arguments.on_bad_embedding := 'error';
  arguments.prefix_last := false;
  return arguments;
end
$$;

comment on function knowledge_internal.default_search_arguments() is
  'The defaults of hybrid_search_knowledge_chunks.';

create function knowledge_internal.search(arguments knowledge_internal.search_arguments)
returns setof public.knowledge_search_hit
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
as $$
begin
  return query
  select hit.*
    from public.hybrid_search_knowledge_chunks(
           query_embedding => arguments.query_embedding,
           query_text => arguments.query_text,
           match_count => arguments.match_count,
           match_threshold => arguments.match_threshold,
           vector_weight => arguments.vector_weight,
           text_weight => arguments.text_weight,
           filter_type => arguments.filter_type,
           search_mode => arguments.search_mode,
           pool_size => arguments.pool_size,
           rrf_k => arguments.rrf_k,
           fusion => arguments.fusion,
           filters => arguments.filters,
           date_from => arguments.date_from,
           date_to => arguments.date_to,
           collections => arguments.collections,
           viewer_id => arguments.viewer_id,
           public_only => arguments.public_only,
           one_per_document => arguments.one_per_document,
           neighbor_window => arguments.neighbor_window,
           recency_half_life => arguments.recency_half_life,
           match_offset => arguments.match_offset,
           snippet => arguments.snippet,
           formulations => arguments.formulations,
           viewer_groups => arguments.viewer_groups,
           on_bad_embedding => arguments.on_bad_embedding,
           prefix_last => arguments.prefix_last
         ) as hit;
end
$$;

comment on function knowledge_internal.search(knowledge_internal.search_arguments) is
  'Calls hybrid_search_knowledge_chunks.';

create function knowledge_internal.check_cost(
  arguments knowledge_internal.search_arguments,
  most_candidates integer default 2500,
  longest_texts integer default 8192
)
returns void
language plpgsql
immutable
security invoker
set search_path = pg_catalog, pg_temp
as $$
declare
  characters_read constant integer := 4096; -- of each question
  formulations constant jsonb := case jsonb_typeof(arguments.formulations)
    when 'array' then arguments.formulations
    else '[]'
  end;
  lists constant bigint := (1 + jsonb_array_length(formulations))
    * greatest(cardinality(arguments.collections), 1);
  characters constant bigint := (
    select sum(length(left(asked.query_text, characters_read)))
      from (
        select arguments.query_text
        union all
        select formulation.asked ->> 'query_text'
          from jsonb_array_elements(formulations) as formulation (asked)
         where jsonb_typeof(formulation.asked) = 'object'
      ) as asked (query_text)
  );
begin
  perform knowledge_internal.check_range(
            'pool_size (at least match_count) times collections times questions',
            coalesce(lists * greatest(arguments.pool_size, arguments.match_count), 0), 0,
            most_candidates, format('at most %s', most_candidates)
          ),
          knowledge_internal.check_range(
            'query_text and those of formulations', coalesce(characters, 0), 0, longest_texts,
            format('at most %s characters together', longest_texts)
          );
end
$$;

comment on function knowledge_internal.check_cost is
  'Raises 22023 for a search of a user or visitor that could take long: by its candidates (each '
  'question has a list in each collection) or by the texts of its questions.';

create function public.search_my_knowledge_chunks(
  query_embedding extensions.vector default null,
  query_text text default null,
  match_count integer default 10,
  match_threshold double precision default 0.0,
  vector_weight double precision default 1.0,
  text_weight double precision default 1.0,
  filter_type text default null,
  search_mode text default 'websearch',
  pool_size integer default 50,
  rrf_k double precision default 60,
  fusion text default null,
  filters jsonb default null,
  date_from date default null,
  date_to date default null,
  collections text[] default null,
  public_only boolean default false,
  one_per_document boolean default false,
  neighbor_window integer default 0,
  recency_half_life double precision default null,
  match_offset integer default 0,
  snippet boolean default false,
  formulations jsonb default null,
  on_bad_embedding text default 'error',
  prefix_last boolean default false
)
returns setof public.knowledge_search_hit
language plpgsql
stable
-- definer: a signed-in user may not read the tables of the search, nor call it with a viewer_id.
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  arguments knowledge_internal.search_arguments;
begin
  arguments.viewer_id := knowledge_internal.signed_in_viewer('search_my_knowledge_chunks');
  arguments.viewer_groups := knowledge_internal.current_viewer_groups();
  arguments.query_embedding := search_my_knowledge_chunks.query_embedding;
  arguments.query_text := search_my_knowledge_chunks.query_text;
  arguments.match_count := search_my_knowledge_chunks.match_count;
  arguments.match_threshold := search_my_knowledge_chunks.match_threshold;
  arguments.vector_weight := search_my_knowledge_chunks.vector_weight;
  arguments.text_weight := search_my_knowledge_chunks.text_weight;
  arguments.filter_type := search_my_knowledge_chunks.filter_type;
  arguments.search_mode := search_my_knowledge_chunks.search_mode;
  arguments.pool_size := search_my_knowledge_chunks.pool_size;
  arguments.rrf_k := search_my_knowledge_chunks.rrf_k;
  arguments.fusion := search_my_knowledge_chunks.fusion;
  arguments.filters := search_my_knowledge_chunks.filters;
  arguments.date_from := search_my_knowledge_chunks.date_from;
  arguments.date_to := search_my_knowledge_chunks.date_to;
  arguments.collections := search_my_knowledge_chunks.collections;
  arguments.public_only := search_my_knowledge_chunks.public_only;
  arguments.one_per_document := search_my_knowledge_chunks.one_per_document;
  arguments.neighbor_window := search_my_knowledge_chunks.neighbor_window;
  arguments.recency_half_life := search_my_knowledge_chunks.recency_half_life;
  arguments.match_offset := search_my_knowledge_chunks.match_offset;
  arguments.snippet := search_my_knowledge_chunks.snippet;
  arguments.formulations := search_my_knowledge_chunks.formulations;
  arguments.on_bad_embedding := search_my_knowledge_chunks.on_bad_embedding;
  arguments.prefix_last := search_my_knowledge_chunks.prefix_last;
  perform knowledge_internal.check_cost(arguments);
  -- A user may not read the trace that explain_hybrid_search reads.
  perform set_config('knowledge_internal.tracing', 'off', true),
          set_config('knowledge_internal.recording', 'off', true),
          set_config('knowledge_internal.readings', '', true);
  return query select hit.* from knowledge_internal.search(arguments) as hit;
end
$$;

comment on function public.search_my_knowledge_chunks is
  'hybrid_search_knowledge_chunks for the signed-in user: public rows, rows whose owner is '
  'auth.uid(), and rows of the groups that knowledge_viewer_groups() returns. The document '
  'frequencies of BM25 are those of all chunks. Two limits bound the cost of a call: pool_size (at '
  'least match_count) times collections times questions 2,500, and 8,192 characters of all '
  'questions. Raises 42501 if nobody is signed in or the user id is not a UUID, and 22023 for an '
  'argument out of bounds.';
revoke all on function public.search_my_knowledge_chunks
  from public, anon, authenticated, service_role;
grant execute on function public.search_my_knowledge_chunks to authenticated;

create function knowledge_internal.check_visitor_limits(
  arguments knowledge_internal.search_arguments
)
returns void
language plpgsql
immutable
security invoker
set search_path = pg_catalog, pg_temp
as $$
declare
  most_rows constant integer := 50;
  last_offset constant integer := 200;
  largest_pool constant integer := 100;
  widest_window constant integer := 2;
  most_collections constant integer := 5;
  most_formulations constant integer := 2;
  longest_text constant integer := 1000; -- characters
  longest_filters constant integer := 2000; -- characters of the JSON
  most_candidates constant integer := 750;
begin
  perform knowledge_internal.check_range('match_count', arguments.match_count, 1, most_rows),
          knowledge_internal.check_range('match_offset', arguments.match_offset, 0, last_offset),
          knowledge_internal.check_range('pool_size', arguments.pool_size, 1, largest_pool),
          knowledge_internal.check_range(
            'neighbor_window', arguments.neighbor_window, 0, widest_window
          ),
          knowledge_internal.check_range(
            'collections', coalesce(cardinality(arguments.collections), 0), 0, most_collections,
            format('at most %s names for visitors', most_collections)
          ),
          knowledge_internal.check_range(
            'query_text', coalesce(length(arguments.query_text), 0), 0, longest_text,
            format('at most %s characters long for visitors', longest_text)
          ),
          knowledge_internal.check_range(
            'filters', coalesce(length(arguments.filters::text), 0), 0, longest_filters,
            format('at most %s characters of JSON for visitors', longest_filters)
          );
  if jsonb_typeof(arguments.formulations) = 'array' then
    perform knowledge_internal.check_range(
              'formulations', jsonb_array_length(arguments.formulations), 0, most_formulations,
              format('an array of at most %s objects for visitors', most_formulations)
            );
    perform knowledge_internal.check_range(
              'formulations[].query_text', length(asked.query_text #>> '{}'), 0, longest_text,
              format('at most %s characters long for visitors', longest_text)
            )
       from jsonb_path_query(arguments.formulations, 'lax $[*].query_text') as asked (query_text)
      where jsonb_typeof(asked.query_text) = 'string';
  end if;
  perform knowledge_internal.check_cost(arguments, most_candidates);
end
$$;

comment on function knowledge_internal.check_visitor_limits(knowledge_internal.search_arguments) is
  'Raises 22023 for an argument beyond what search_public_knowledge_chunks allows visitors.';

create function public.search_public_knowledge_chunks(
  query_embedding extensions.vector default null,
  query_text text default null,
  match_count integer default 10,
  match_threshold double precision default 0.0,
  vector_weight double precision default 1.0,
  text_weight double precision default 1.0,
  filter_type text default null,
  search_mode text default 'websearch',
  pool_size integer default 50,
  rrf_k double precision default 60,
  fusion text default null,
  filters jsonb default null,
  date_from date default null,
  date_to date default null,
  collections text[] default null,
  one_per_document boolean default false,
  neighbor_window integer default 0,
  recency_half_life double precision default null,
  match_offset integer default 0,
  snippet boolean default false,
  formulations jsonb default null,
  on_bad_embedding text default 'error',
  prefix_last boolean default false
)
returns setof public.knowledge_search_hit
language plpgsql
stable
-- definer: a visitor may not read the tables of the search, nor call it for all rows.
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  arguments knowledge_internal.search_arguments;
begin
  arguments.public_only := true;
  arguments.query_embedding := search_public_knowledge_chunks.query_embedding;
  arguments.query_text := search_public_knowledge_chunks.query_text;
  arguments.match_count := search_public_knowledge_chunks.match_count;
  arguments.match_threshold := search_public_knowledge_chunks.match_threshold;
  arguments.vector_weight := search_public_knowledge_chunks.vector_weight;
  arguments.text_weight := search_public_knowledge_chunks.text_weight;
  arguments.filter_type := search_public_knowledge_chunks.filter_type;
  arguments.search_mode := search_public_knowledge_chunks.search_mode;
  arguments.pool_size := search_public_knowledge_chunks.pool_size;
  arguments.rrf_k := search_public_knowledge_chunks.rrf_k;
  arguments.fusion := search_public_knowledge_chunks.fusion;
  arguments.filters := search_public_knowledge_chunks.filters;
  arguments.date_from := search_public_knowledge_chunks.date_from;
  arguments.date_to := search_public_knowledge_chunks.date_to;
  arguments.collections := search_public_knowledge_chunks.collections;
  arguments.one_per_document := search_public_knowledge_chunks.one_per_document;
  arguments.neighbor_window := search_public_knowledge_chunks.neighbor_window;
  arguments.recency_half_life := search_public_knowledge_chunks.recency_half_life;
  arguments.match_offset := search_public_knowledge_chunks.match_offset;
  arguments.snippet := search_public_knowledge_chunks.snippet;
  arguments.formulations := search_public_knowledge_chunks.formulations;
  arguments.on_bad_embedding := search_public_knowledge_chunks.on_bad_embedding;
  arguments.prefix_last := search_public_knowledge_chunks.prefix_last;
  -- Before the search, so that a visitor cannot make it work for an argument that is refused.
  perform knowledge_internal.check_visitor_limits(arguments);
  -- A visitor may not read the trace that explain_hybrid_search reads.
  perform set_config('knowledge_internal.tracing', 'off', true),
          set_config('knowledge_internal.recording', 'off', true),
          set_config('knowledge_internal.readings', '', true);
  return query select hit.* from knowledge_internal.search(arguments) as hit;
end
$$;

comment on function public.search_public_knowledge_chunks is
  'hybrid_search_knowledge_chunks for visitors: public rows only. Nobody may call it until a '
  'project grants it, as to anon. Its limits bound the cost of a call: match_count 50, '
  'match_offset 200, pool_size 100, neighbor_window 2, 5 collections, 2 formulations, pool_size '
  'times collections times questions 750, texts of 1,000 characters, filters of 2,000. The '
  'document frequencies of BM25 are those of all chunks. Raises 22023 for an argument out of '
  'bounds.';
revoke all on function public.search_public_knowledge_chunks
  from public, anon, authenticated, service_role;

create function public.explain_hybrid_search(
  query_embedding extensions.vector default null,
  query_text text default null,
  match_count integer default 10,
  match_threshold double precision default 0.0,
  vector_weight double precision default 1.0,
  text_weight double precision default 1.0,
  filter_type text default null,
  search_mode text default 'websearch',
  pool_size integer default 50,
  rrf_k double precision default 60,
  fusion text default null,
  filters jsonb default null,
  date_from date default null,
  date_to date default null,
  collections text[] default null,
  viewer_id uuid default null,
  public_only boolean default false,
  one_per_document boolean default false,
  neighbor_window integer default 0,
  recency_half_life double precision default null,
  match_offset integer default 0,
  snippet boolean default false,
  formulations jsonb default null,
  viewer_groups text[] default null,
  on_bad_embedding text default 'error',
  prefix_last boolean default false
)
returns jsonb
language plpgsql
stable
-- definer: service_role has no rights on the internal schema.
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  arguments knowledge_internal.search_arguments;
begin
  arguments.query_embedding := explain_hybrid_search.query_embedding;
  arguments.query_text := explain_hybrid_search.query_text;
  arguments.match_count := explain_hybrid_search.match_count;
  arguments.match_threshold := explain_hybrid_search.match_threshold;
  arguments.vector_weight := explain_hybrid_search.vector_weight;
  arguments.text_weight := explain_hybrid_search.text_weight;
  arguments.filter_type := explain_hybrid_search.filter_type;
  arguments.search_mode := explain_hybrid_search.search_mode;
  arguments.pool_size := explain_hybrid_search.pool_size;
  arguments.rrf_k := explain_hybrid_search.rrf_k;
  arguments.fusion := explain_hybrid_search.fusion;
  arguments.filters := explain_hybrid_search.filters;
  arguments.date_from := explain_hybrid_search.date_from;
  arguments.date_to := explain_hybrid_search.date_to;
  arguments.collections := explain_hybrid_search.collections;
  arguments.viewer_id := explain_hybrid_search.viewer_id;
  arguments.public_only := explain_hybrid_search.public_only;
  arguments.one_per_document := explain_hybrid_search.one_per_document;
  arguments.neighbor_window := explain_hybrid_search.neighbor_window;
  arguments.recency_half_life := explain_hybrid_search.recency_half_life;
  arguments.match_offset := explain_hybrid_search.match_offset;
  arguments.snippet := explain_hybrid_search.snippet;
  arguments.formulations := explain_hybrid_search.formulations;
  arguments.viewer_groups := explain_hybrid_search.viewer_groups;
  arguments.on_bad_embedding := explain_hybrid_search.on_bad_embedding;
  arguments.prefix_last := explain_hybrid_search.prefix_last;
  return knowledge_internal.explanation(arguments);
end
$$;

comment on function public.explain_hybrid_search is
  'How hybrid_search_knowledge_chunks comes to its answer, for the same arguments, as one JSON '
  'object. milliseconds: of the whole call and of each leg alone. vector and text: how the leg '
  'found its rows, how many, and why they are fewer than the pool. text also: the candidates drawn '
  'by the index, and each lexeme of query_text with its document frequency and weight; one left '
  'out draws no candidates but counts in their scores. fusion: the weights used; under auto they '
  'are factors of the cosine similarity and of the BM25 score. lists: the same for each '
  'formulation in each collection. hits: the answer without content, context and metadata. '
  'Document frequencies are of all chunks, whoever owns them. Raises 22023 as the search does.';

revoke all on function public.explain_hybrid_search from public, anon, authenticated;
grant execute on function public.explain_hybrid_search to service_role;

create function public.estimate_hybrid_search(
  query_embedding extensions.vector default null,
  query_text text default null,
  match_count integer default 10,
  match_threshold double precision default 0.0,
  vector_weight double precision default 1.0,
  text_weight double precision default 1.0,
  filter_type text default null,
  search_mode text default 'websearch',
  pool_size integer default 50,
  rrf_k double precision default 60,
  fusion text default null,
  filters jsonb default null,
  date_from date default null,
  date_to date default null,
  collections text[] default null,
  viewer_id uuid default null,
  public_only boolean default false,
  one_per_document boolean default false,
  neighbor_window integer default 0,
  recency_half_life double precision default null,
  match_offset integer default 0,
  snippet boolean default false,
  formulations jsonb default null,
  viewer_groups text[] default null,
  on_bad_embedding text default 'error',
  prefix_last boolean default false
)
returns jsonb
language plpgsql
-- Postgres allows no EXPLAIN in a stable function.
volatile
-- definer: service_role has no rights on the internal schema.
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  begun_at constant timestamptz := clock_timestamp();
  questions knowledge_internal.search_question[];
  analyses knowledge_internal.query_analysis[];
  wanted knowledge_internal.chunk_filter;
  plan knowledge_internal.search_plan;
begin
  perform knowledge_internal.check_search_arguments(
    match_count, match_threshold, vector_weight, text_weight, search_mode, pool_size, rrf_k, fusion,
    public_only, one_per_document, neighbor_window, recency_half_life, match_offset, snippet,
    viewer_groups, on_bad_embedding, prefix_last
  );
  wanted := case
    when num_nonnulls(filters, filter_type, date_from, date_to) > 0 or public_only
      then knowledge_internal.compile_filter(filters, filter_type, date_from, date_to, public_only)
  end;
  if fusion is null or fusion = 'stored_or_auto' then
    select * into fusion, vector_weight, text_weight from knowledge_internal.settled_fusion(
      fusion, vector_weight, text_weight, coalesce(collections, wanted.collections)
    );
  end if;
  plan := knowledge_internal.plan_search(
    pool_size, match_count, wanted, viewer_id, viewer_groups, collections
  );
  questions := knowledge_internal.search_questions(
    query_embedding, query_text, formulations, plan.dimensions, vector_weight > 0, text_weight > 0,
    on_bad_embedding
  );
  collections := case
    when collections is not null
      then knowledge_internal.checked_collections(collections, cardinality(questions))
  end;
  analyses := knowledge_internal.analyse_questions(
    questions, search_mode, wanted, viewer_id, viewer_groups, collections, prefix_last
  );
  return knowledge_internal.search_estimate(
    questions, analyses, plan, collections, case when snippet then match_count else 0 end, begun_at
  );
end
$$;

comment on function public.estimate_hybrid_search is
  'What hybrid_search_knowledge_chunks would cost with the same arguments, as one JSON object. It '
  'does not search. milliseconds: in the database, of a call whose pages are in memory. chunks: '
  'all; matching: those that pass the filters, by a sample. vector and text: how the leg would '
  'find its rows, and how many it would read. The rows are those of all owners, so only '
  'service_role may call it. Raises 22023 as the search does.';

revoke all on function public.estimate_hybrid_search from public, anon, authenticated;
grant execute on function public.estimate_hybrid_search to service_role;

create function public.explain_missing_knowledge_chunk(
  query_embedding extensions.vector default null,
  query_text text default null,
  match_count integer default 10,
  match_threshold double precision default 0.0,
  vector_weight double precision default 1.0,
  text_weight double precision default 1.0,
  filter_type text default null,
  search_mode text default 'websearch',
  pool_size integer default 50,
  rrf_k double precision default 60,
  fusion text default null,
  filters jsonb default null,
  date_from date default null,
  date_to date default null,
  collections text[] default null,
  viewer_id uuid default null,
  public_only boolean default false,
  one_per_document boolean default false,
  neighbor_window integer default 0,
  recency_half_life double precision default null,
  match_offset integer default 0,
  snippet boolean default false,
  formulations jsonb default null,
  viewer_groups text[] default null,
  on_bad_embedding text default 'error',
  prefix_last boolean default false,
  chunk_id uuid default null,
  document_key text default null
)
returns jsonb
language plpgsql
stable
-- definer: service_role has no rights on the internal schema.
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  arguments knowledge_internal.search_arguments;
begin
  arguments.query_embedding := explain_missing_knowledge_chunk.query_embedding;
  arguments.query_text := explain_missing_knowledge_chunk.query_text;
  arguments.match_count := explain_missing_knowledge_chunk.match_count;
  arguments.match_threshold := explain_missing_knowledge_chunk.match_threshold;
  arguments.vector_weight := explain_missing_knowledge_chunk.vector_weight;
  arguments.text_weight := explain_missing_knowledge_chunk.text_weight;
  arguments.filter_type := explain_missing_knowledge_chunk.filter_type;
  arguments.search_mode := explain_missing_knowledge_chunk.search_mode;
  arguments.pool_size := explain_missing_knowledge_chunk.pool_size;
  arguments.rrf_k := explain_missing_knowledge_chunk.rrf_k;
  arguments.fusion := explain_missing_knowledge_chunk.fusion;
  arguments.filters := explain_missing_knowledge_chunk.filters;
  arguments.date_from := explain_missing_knowledge_chunk.date_from;
  arguments.date_to := explain_missing_knowledge_chunk.date_to;
  arguments.collections := explain_missing_knowledge_chunk.collections;
  arguments.viewer_id := explain_missing_knowledge_chunk.viewer_id;
  arguments.public_only := explain_missing_knowledge_chunk.public_only;
  arguments.one_per_document := explain_missing_knowledge_chunk.one_per_document;
  arguments.neighbor_window := explain_missing_knowledge_chunk.neighbor_window;
  arguments.recency_half_life := explain_missing_knowledge_chunk.recency_half_life;
  arguments.match_offset := explain_missing_knowledge_chunk.match_offset;
  arguments.snippet := explain_missing_knowledge_chunk.snippet;
  arguments.formulations := explain_missing_knowledge_chunk.formulations;
  arguments.viewer_groups := explain_missing_knowledge_chunk.viewer_groups;
  arguments.on_bad_embedding := explain_missing_knowledge_chunk.on_bad_embedding;
  arguments.prefix_last := explain_missing_knowledge_chunk.prefix_last;
  return knowledge_internal.missing_explanation(arguments, chunk_id, document_key);
end
$$;

comment on function public.explain_missing_knowledge_chunk is
  'Why hybrid_search_knowledge_chunks does not return a chunk, or a document (the chunk of it that '
  'is nearest to the query), for the same arguments, as one JSON object. is_found: it is on the '
  'page; place: in the whole list. vector and text: rank and score in each leg alone, without '
  'threshold and beyond the pool. causes: each with the argument and the reason. change: the '
  'arguments with which the search returns it, found by searching (is_verified, place), or what '
  'must change in its row. It searches up to about twenty times. It describes rows that a viewer '
  'may not see, so only service_role may call it. Raises 22023 as the search does, and unless '
  'exactly one of chunk_id and document_key is given.';

revoke all on function public.explain_missing_knowledge_chunk from public, anon, authenticated;
grant execute on function public.explain_missing_knowledge_chunk to service_role;

create function knowledge_internal.sampled_collections(
  wanted knowledge_internal.chunk_filter,
  plan knowledge_internal.search_plan,
  viewer_id uuid,
  viewer_groups text[]
)
returns text[]
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
-- The statement looks up ids, whatever the filter.
set plan_cache_mode = force_generic_plan
as $$
begin
  return array(
    select chunk.collection
      from public.knowledge_chunks as chunk
     where chunk.id = any (plan.sample)
       and chunk.status = 'active'
       and (num_nonnulls(viewer_id, viewer_groups) = 0 or chunk.visibility = 'public' or
         chunk.owner_id = viewer_id or chunk.allowed_groups && viewer_groups)
       and (wanted.visibilities is null or chunk.visibility = any(wanted.visibilities))
       and (wanted.sensitivities is null or chunk.sensitivity = any(wanted.sensitivities) or
         (chunk.sensitivity is null and 'sensitivity' = any(wanted.or_null)))
       and (wanted.owner_ids is null or chunk.owner_id = any(wanted.owner_ids) or (chunk.owner_id is
         null and 'owner_id' = any(wanted.or_null)))
       and (wanted.hidden is null or not wanted.hidden && array['visibility=' || chunk.visibility,
         'owner_id' || coalesce('=' || chunk.owner_id, ''), 'sensitivity' || coalesce('=' ||
         chunk.sensitivity, '')])
       and coalesce(chunk.collection <> all(wanted.excluded_collections), true)
       and (wanted.knowledge_types is null or chunk.knowledge_type = any(wanted.knowledge_types))
       and (wanted.source_origins is null or chunk.source_origin = any(wanted.source_origins))
       and (wanted.collections is null or chunk.collection = any(wanted.collections))
       and (wanted.languages is null or chunk.language = any(wanted.languages))
       and (wanted.embedding_models is null or chunk.embedding_model = any(wanted.embedding_models)
         or (chunk.embedding_model is null and 'embedding_model' = any(wanted.or_null)))
       and (wanted.document_ids is null or chunk.document_id = any(wanted.document_ids) or
         (chunk.document_id is null and 'document_id' = any(wanted.or_null)))
       and (wanted.source_ids is null or chunk.source_id = any(wanted.source_ids) or
         (chunk.source_id is null and 'source_id' = any(wanted.or_null)))
       and (wanted.chunk_indexes is null or chunk.chunk_index <@ wanted.chunk_indexes or
         (chunk.chunk_index is null and 'chunk_index' = any(wanted.or_null)))
       and (wanted.document_dates is null or chunk.document_date <@ wanted.document_dates or
         (chunk.document_date is null and 'document_date' = any(wanted.or_null)))
       and (plan.first_date is null or chunk.document_date >= plan.first_date)
       and (plan.end_date is null or chunk.document_date < plan.end_date)
       and (wanted.created is null or chunk.created_at <@ wanted.created)
       and (wanted.updated is null or chunk.updated_at <@ wanted.updated)
       and (wanted.excluded is null or not wanted.excluded && array['knowledge_type=' ||
         chunk.knowledge_type, 'source_origin=' || chunk.source_origin, 'language=' ||
         chunk.language, 'document_id' || coalesce('=' || chunk.document_id, ''), 'embedding_model'
         || coalesce('=' || chunk.embedding_model, ''), 'source_id' || coalesce('=' ||
         chunk.source_id, '')])
       and (wanted.required_metadata is null or chunk.metadata @> wanted.required_metadata)
       and (wanted.alternative_metadata is null or chunk.metadata @>
         any(wanted.alternative_metadata))
       and (wanted.metadata_conditions is null or knowledge_internal.passes(chunk.metadata,
         wanted.metadata_conditions))
  );
end
$$;

comment on function knowledge_internal.sampled_collections is
  'The collection of each chunk of the plan''s sample that passes the filter.';

create function knowledge_internal.visible_conditions(
  wanted knowledge_internal.chunk_filter,
  plan knowledge_internal.search_plan,
  viewer_id uuid,
  viewer_groups text[]
)
returns text
language plpgsql
immutable
security invoker
set search_path = pg_catalog, pg_temp
as $$
begin
  return concat_ws(
    ' and ',
    'chunk.status = ''active''',
    case when not (num_nonnulls(viewer_id, viewer_groups) = 0) then
      '(chunk.visibility = ''public'' or chunk.owner_id = $3 or chunk.allowed_groups '
      '&& $4)'
    end,
    case when not (wanted.visibilities is null) then
      'chunk.visibility = any(($1).visibilities)'
    end,
    case when not (wanted.sensitivities is null) then
      '(chunk.sensitivity = any(($1).sensitivities) or chunk.sensitivity is null and '
      '''sensitivity'' = any(($1).or_null))'
    end,
    case when not (wanted.owner_ids is null) then
      '(chunk.owner_id = any(($1).owner_ids) or chunk.owner_id is null and '
      '''owner_id'' = any(($1).or_null))'
    end,
    case when not (wanted.hidden is null) then
      'not ($1).hidden && array[''visibility='' || chunk.visibility, ''owner_id'' || '
      'coalesce(''='' || chunk.owner_id, ''''), ''sensitivity'' || coalesce(''='' || '
      'chunk.sensitivity, '''')]'
    end
  );
end
$$;

comment on function knowledge_internal.visible_conditions is
  'The conditions of visible_chunks that a search has, as SQL about chunk: the planner then reads '
  'only these. Its parameters are the arguments of this function, in their order.';

create function knowledge_internal.present_conditions(
  wanted knowledge_internal.chunk_filter,
  plan knowledge_internal.search_plan,
  viewer_id uuid,
  viewer_groups text[]
)
returns text
language plpgsql
immutable
security invoker
set search_path = pg_catalog, pg_temp
as $$
begin
  return concat_ws(
    ' and ',
    knowledge_internal.visible_conditions(wanted, plan, viewer_id, viewer_groups),
    'coalesce(chunk.collection <> all(($1).excluded_collections), true)',
    case when not (wanted.knowledge_types is null) then
      'chunk.knowledge_type = any(($1).knowledge_types)'
    end,
    case when not (wanted.source_origins is null) then
      'chunk.source_origin = any(($1).source_origins)'
    end,
    case when not (wanted.collections is null) then
      'chunk.collection = any(($1).collections)'
    end,
    case when not (wanted.languages is null) then
      'chunk.language = any(($1).languages)'
    end,
    case when not (wanted.embedding_models is null) then
      '(chunk.embedding_model = any(($1).embedding_models) or chunk.embedding_model '
      'is null and ''embedding_model'' = any(($1).or_null))'
    end,
    case when not (wanted.document_ids is null) then
      '(chunk.document_id = any(($1).document_ids) or chunk.document_id is null and '
      '''document_id'' = any(($1).or_null))'
    end,
    case when not (wanted.source_ids is null) then
      '(chunk.source_id = any(($1).source_ids) or chunk.source_id is null and '
      '''source_id'' = any(($1).or_null))'
    end,
    case when not (wanted.chunk_indexes is null) then
      '(chunk.chunk_index <@ ($1).chunk_indexes or chunk.chunk_index is null and '
      '''chunk_index'' = any(($1).or_null))'
    end,
    case when not (wanted.document_dates is null) then
      '(chunk.document_date <@ ($1).document_dates or chunk.document_date is null and '
      '''document_date'' = any(($1).or_null))'
    end,
    case when not (plan.first_date is null) then
      'chunk.document_date >= ($2).first_date'
    end,
    case when not (plan.end_date is null) then
      'chunk.document_date < ($2).end_date'
    end,
    case when not (wanted.created is null) then
      'chunk.created_at <@ ($1).created'
    end,
    case when not (wanted.updated is null) then
      'chunk.updated_at <@ ($1).updated'
    end,
    case when not (wanted.excluded is null) then
      'not ($1).excluded && array[''knowledge_type='' || chunk.knowledge_type, '
      '''source_origin='' || chunk.source_origin, ''language='' || chunk.language, '
      '''document_id'' || coalesce(''='' || chunk.document_id, ''''), '
      '''embedding_model'' || coalesce(''='' || chunk.embedding_model, ''''), '
      '''source_id'' || coalesce(''='' || chunk.source_id, '''')]'
    end,
    case when not (wanted.required_metadata is null) then
      'chunk.metadata @> ($1).required_metadata'
    end,
    case when not (wanted.alternative_metadata is null) then
      'chunk.metadata @> any(($1).alternative_metadata)'
    end,
    case when not (wanted.metadata_conditions is null) then
      'knowledge_internal.passes(chunk.metadata, ($1).metadata_conditions)'
    end
  );
end
$$;

comment on function knowledge_internal.present_conditions is
  'The same for matching_chunks.';

create function knowledge_internal.has_matching_chunk(
  wanted knowledge_internal.chunk_filter,
  plan knowledge_internal.search_plan,
  viewer_id uuid,
  viewer_groups text[]
)
returns boolean
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
as $$
declare
  found boolean;
begin
  execute
    'select exists (select from public.knowledge_chunks as chunk where '
      || knowledge_internal.present_conditions(wanted, plan, viewer_id, viewer_groups) || ')'
    into found
    using wanted, plan, viewer_id, viewer_groups;
  return found;
end
$$;

comment on function knowledge_internal.has_matching_chunk is
  'Whether any chunk passes the filter.';

create function knowledge_internal.compared_rows(
  bits bit varying,
  analysis knowledge_internal.query_analysis,
  query tsquery,
  scope text,
  wanted knowledge_internal.chunk_filter,
  plan knowledge_internal.search_plan,
  viewer_id uuid,
  viewer_groups text[],
  out near_ids uuid[],
  out text_ids uuid[]
)
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
as $$
begin
  execute
    'with passing as '
    -- Rows for one leg are not kept.
    || case when bits is null or query is null then 'not ' else '' end || 'materialized ('
    '  select chunk.id, chunk.embedding is not null as is_embedded,'
    '         chunk.embedding_bits operator(extensions.<~>) $5 as distance,'
    '         chunk.bm25 operator(extensions.<#>) $6 as product,'
    '         case when not $7 then chunk.content_tsv end as content_tsv'
    '    from public.knowledge_chunks as chunk'
    '   where ' || knowledge_internal.present_conditions(
                     wanted, plan, viewer_id, viewer_groups
                   ) ||
    '     and ($8 is null or chunk.collection = $8)'
    '  offset 0' -- or each distance and product is computed twice
    ')'
    'select array('
    '         select passing.id from passing'
    '          where $5 is not null and passing.is_embedded'
    '          order by passing.distance, passing.id'
    '          limit $9'
    '       ),'
    '       array('
    '         select passing.id from passing'
    '          where $10 is not null and passing.product < 0'
    '            and ($7 or passing.content_tsv @@ $10)'
    '          order by passing.product, passing.id'
    '          limit $11'
    '       )'
    into near_ids, text_ids
    using wanted, plan, viewer_id, viewer_groups, bits,
          case when query is not null then analysis.weight_vector end,
          -- A negative product shows that a row has a word.
          analysis.is_optional is not false, scope, plan.compared_by_bits, query,
          plan.scored_exactly;
end
$$;

comment on function knowledge_internal.compared_rows is
  'Compares all rows that pass the filter, which its indexes find. near_ids: the nearest by '
  'embedding_bits, empty without bits; text_ids: the best by the words of a query, empty without '
  'one.';

create function knowledge_internal.drawn_rows(
  analysis knowledge_internal.query_analysis,
  scope text,
  is_narrow boolean,
  is_drawn boolean,
  wanted knowledge_internal.chunk_filter,
  plan knowledge_internal.search_plan,
  viewer_id uuid,
  viewer_groups text[],
  out draw integer,
  out ids uuid[],
  out query tsquery
)
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
as $$
declare
  most_effort constant double precision := 20; -- rows of the second draw, over those of the first
  drawing tsquery;
begin
  draw := 0;
  query := analysis.matching_query;
  loop
    if draw = 3 then
      query := analysis.relaxed_query;
    end if;
    draw := case when is_drawn or draw = 3 then draw + 1 else 3 end;
    drawing := case
      when draw = 1 then analysis.candidate_query
      when draw = 2 or draw = 4 and not is_narrow then coalesce(
        knowledge_internal.candidate_query(
          analysis.lexemes, analysis.document_frequencies, analysis.weights,
          case when draw = 2 then analysis.required_query end, analysis.document_count,
          least(most_effort, 5 + 4 * plan.pool / (1 + cardinality(ids)))
        ),
        query
      )
      when not (analysis.is_partial and is_narrow) then query
    end;
    if drawing is null then
      select compared.text_ids
        into ids
        from knowledge_internal.compared_rows(
               null, analysis, query, scope, wanted, plan, viewer_id, viewer_groups
             ) as compared;
    elsif plan.is_filtered or wanted.excluded_collections is not null then
      execute
        'select array('
        '  select drawn.id'
        '    from ('
        '      select chunk.id, chunk.content_tsv,'
        '             chunk.bm25 operator(extensions.<#>) $5 as product'
        '        from public.knowledge_chunks as chunk'
        '       where ' || knowledge_internal.present_conditions(
                             wanted, plan, viewer_id, viewer_groups
                           ) ||
        '         and chunk.content_tsv @@ $6'
        '         and ($7 is null or chunk.collection = $7)'
        '      offset 0' -- or each product is computed twice
        '    ) as drawn'
        '   where $8 or drawn.content_tsv @@ $9'
        '   order by drawn.product, drawn.id'
        '   limit $10'
        ')'
        into ids
        using wanted, plan, viewer_id, viewer_groups, analysis.weight_vector, drawing, scope,
              analysis.is_optional or draw = 3, query, plan.scored_exactly;
    else
      ids := array(
        select drawn.id
          from (
            select chunk.id, chunk.content_tsv,
                   chunk.bm25 operator(extensions.<#>) analysis.weight_vector as product
              from knowledge_internal.searchable_chunks as chunk
             where chunk.status = 'active' and chunk.content_tsv @@ drawing
            offset 0
          ) as drawn
         where analysis.is_optional or draw = 3 or drawn.content_tsv @@ query
         order by drawn.product, drawn.id
         limit plan.scored_exactly
      );
    end if;
    exit when draw = 4 or cardinality(ids) >= plan.pool
           or draw = 3 and (cardinality(ids) > 0 or analysis.relaxed_query is null);
  end loop;
end
$$;

comment on function knowledge_internal.drawn_rows is
  'The rows of the text leg for a query with a matching_query, in one collection or in all. '
  'Draw 1 reads the rows of candidate_query, draw 2 those of a wider one, draw 3 every row that '
  'matches, draw 4 rows without what is required. The next draw follows if the last one found '
  'fewer rows than the pool, draw 4 if there was no row. is_drawn: draws 1 and 2 are made. draw: '
  'the last one; query: what its rows match.';

create function knowledge_internal.nearest_rows(
  embedding extensions.vector,
  scored_vector extensions.sparsevec,
  wanted knowledge_internal.chunk_filter,
  plan knowledge_internal.search_plan,
  viewer_id uuid,
  viewer_groups text[],
  out ids uuid[],
  out similarities float8[],
  out word_scores float8[]
)
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
as $$
declare
  direction constant extensions.vector := knowledge_internal.indexed_direction(embedding);
begin
  if plan.is_filtered or wanted.excluded_collections is not null then
    execute
      'select array_agg(near.id), array_agg(1 - near.distance), array_agg(near.word_score)'
      '  from ('
      '    select found.*'
      '      from ('
      '        select chunk.id, chunk.embedding operator(extensions.<=>) $5 as distance,'
      '               -(chunk.bm25 operator(extensions.<#>) $6) as word_score'
      '          from knowledge_internal.searchable_chunks as chunk'
      '         where ' || knowledge_internal.present_conditions(
                             wanted, plan, viewer_id, viewer_groups
                           ) ||
      '           and chunk.embedding is not null'
      '         order by chunk.indexed_embedding operator(extensions.<=>) $7'
      '         limit $8'
      '      ) as found'
      '     order by found.distance, found.id'
      '  ) as near'
      into ids, similarities, word_scores
      using wanted, plan, viewer_id, viewer_groups, embedding, scored_vector, direction,
            plan.index_rows;
  else
    select array_agg(near.id), array_agg(1 - near.distance), array_agg(near.word_score)
      into ids, similarities, word_scores
      from (
        select found.*
          from (
            select chunk.id,
                   chunk.embedding operator(extensions.<=>) nearest_rows.embedding as distance,
                   -(chunk.bm25 operator(extensions.<#>) scored_vector) as word_score
              from knowledge_internal.searchable_chunks as chunk
             where chunk.status = 'active' and chunk.embedding is not null
             order by chunk.indexed_embedding operator(extensions.<=>) direction
             limit plan.index_rows
          ) as found
         order by found.distance, found.id
      ) as near;
  end if;
end
$$;

comment on function knowledge_internal.nearest_rows is
  'The rows that pass the filter and that the vector index finds nearest to an embedding, nearest '
  'first, with their cosine similarities and their BM25 scores by the column bm25.';

create function knowledge_internal.rated_rows(
  compared uuid[],
  embedding extensions.vector,
  scored_vector extensions.sparsevec,
  most_rows integer,
  out ids uuid[],
  out similarities float8[],
  out word_scores float8[]
)
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
-- The search sets force_custom_plan; the statement here is the same for every query.
set plan_cache_mode = force_generic_plan
as $$
begin
  select array_agg(near.id), array_agg(1 - near.distance), array_agg(near.word_score)
    into ids, similarities, word_scores
    from (
      select chunk.id,
             chunk.embedding operator(extensions.<=>) rated_rows.embedding as distance,
             -(chunk.bm25 operator(extensions.<#>) scored_vector) as word_score
        from unnest(compared) as listed (id)
       cross join lateral (
               select stored.id, stored.embedding, stored.bm25
                 from public.knowledge_chunks as stored
                where stored.id = listed.id
               offset 0
             ) as chunk
       order by distance, chunk.id
       limit most_rows
    ) as near;
end
$$;

comment on function knowledge_internal.rated_rows is
  'The nearest of these rows in full precision, as in nearest_rows.';

create function knowledge_internal.with_found_rows(
  plan knowledge_internal.search_plan,
  wanted knowledge_internal.chunk_filter,
  question knowledge_internal.search_question,
  analysis knowledge_internal.query_analysis,
  viewer_id uuid,
  viewer_groups text[]
)
returns knowledge_internal.search_plan
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
as $$
declare
  matching constant float8 := knowledge_internal.estimated_chunks(plan);
  is_narrow constant boolean := coalesce(matching <= plan.most_compared, false);
  reads_all constant boolean := coalesce(
    matching <= greatest(
      plan.most_read_by_filter,
      case when question.embedding is not null then plan.most_compared end
    ),
    false
  );
  compares_near boolean := question.embedding is not null;
  compares_text constant boolean := analysis.matching_query is not null
    and analysis.is_partial and is_narrow and reads_all;
  nearest record;
  near_ids uuid[];
  text_ids uuid[];
begin
  if compares_near and not is_narrow then
    -- An assignment takes less time than "select ... into".
    nearest := knowledge_internal.nearest_rows(
      question.embedding, analysis.scored_vector, wanted, plan, viewer_id, viewer_groups
    );
    plan.near_ids := nearest.ids;
    plan.near_similarities := nearest.similarities;
    plan.near_word_scores := nearest.word_scores;
    -- The index scan may have stopped early.
    compares_near := coalesce(cardinality(plan.near_ids), 0) < plan.index_rows;
  end if;
  if compares_near or compares_text then
    -- In one statement, because finding the rows takes most of its time.
    select compared.near_ids, compared.text_ids
      into near_ids, text_ids
      from knowledge_internal.compared_rows(
             case
               when compares_near then knowledge_internal.embedding_bits(question.embedding)
             end,
             analysis, case when compares_text then analysis.matching_query end, null, wanted, plan,
             viewer_id, viewer_groups
           ) as compared;
  end if;
  if compares_near then
    select near.ids, near.similarities, near.word_scores
      into plan.near_ids, plan.near_similarities, plan.near_word_scores
      from knowledge_internal.rated_rows(
             near_ids, question.embedding, analysis.scored_vector, plan.compared_exactly
           ) as near;
  end if;
  if compares_text and (text_ids <> '{}' or analysis.relaxed_query is null) then
    plan.text_ids := text_ids;
    plan.text_draw := 3;
  elsif analysis.matching_query is not null then
    select drawn.ids, drawn.draw
      into plan.text_ids, plan.text_draw
      from knowledge_internal.drawn_rows(
             analysis, null, is_narrow, analysis.is_partial and not reads_all, wanted, plan,
             viewer_id, viewer_groups
           ) as drawn;
  end if;
  return plan;
end
$$;

comment on function knowledge_internal.with_found_rows is
  'The plan of a common search with the rows of its legs. Vector leg: the nearest by the index, or '
  'by embedding_bits where few rows match; text leg: drawn_rows.';

create function knowledge_internal.common_search(
  question knowledge_internal.search_question,
  analysis knowledge_internal.query_analysis,
  asked knowledge_internal.asked_words,
  wanted knowledge_internal.chunk_filter,
  plan knowledge_internal.search_plan,
  match_count integer,
  match_threshold double precision,
  vector_weight double precision,
  text_weight double precision,
  rrf_k double precision,
  fusion text,
  viewer_id uuid,
  public_only boolean,
  match_offset integer,
  snippet boolean,
  viewer_groups text[]
)
returns setof public.knowledge_search_hit
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
-- One plan serves all calls: what depends on a filter, with_found_rows has found.
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
-- There is one list: a hash table for each join takes more time and memory than the join.
set enable_hashjoin = off
as $$
declare
  questions constant knowledge_internal.search_question[] := array[question]; -- as in the search
  vector_rows integer := least(plan.pool, cardinality(plan.near_ids));
  typical_cosine float8;
  vector_evidence float8;
  text_evidence float8;
  text_ids uuid[];
  text_scores float8[];
  text_cosines float8[];
  is_complete boolean;
  notes jsonb;
begin
  if plan.text_draw = 4 then
    analysis.matching_query := analysis.relaxed_query;
    analysis.bonuses := analysis.relaxed_bonuses;
  else
    analysis.relaxed_parts := null;
  end if;
  if num_nonnulls(question.ignored_embedding, analysis.replaced, analysis.relaxed_parts) > 0 then
    notes := knowledge_internal.search_notes(
      questions, array[analysis], array(select distinct unnest(analysis.relaxed_parts))
    );
  end if;
  while plan.near_similarities[vector_rows] < match_threshold loop
    vector_rows := vector_rows - 1;
  end loop;
  -- near_similarities keeps all neighbours, for leg_evidence.
  plan.near_ids := plan.near_ids[:vector_rows];
  if plan.text_ids <> '{}' then
    select array_agg(hit.id), array_agg(hit.text_score), bool_or(hit.has_every_word),
           array_agg(
             case
               when fusion = 'auto' and hit.text_rank <= plan.cosine_ranks
                    and (hit.id = any (plan.near_ids)) is not true
                 then 1 - (hit.embedding operator(extensions.<=>) question.embedding)
             end
           )
      into text_ids, text_scores, is_complete, text_cosines
      from knowledge_internal.exact_scores(
             plan.text_ids, plan.pool, analysis.lexemes, analysis.scored_weights,
             analysis.readings, analysis.mean_length, analysis.bonuses
           ) as hit;
  end if;
  if fusion = 'auto' then
    select leg.*
      into typical_cosine, vector_evidence, text_evidence
      from knowledge_internal.leg_evidence(
             plan.near_similarities, plan.near_word_scores[:plan.best_hits], text_scores,
             is_complete, plan.typical_rank, analysis.cosine_spread, analysis.mutual_neighbours,
             analysis.coverage_weights
           ) as leg;
  end if;
  return query
  with
  visible_chunks as not materialized (
    select chunk.*
      from knowledge_internal.searchable_chunks as chunk
     where chunk.status = 'active'
       and (
         not plan.is_filtered
         or (num_nonnulls(viewer_id, viewer_groups) = 0 or chunk.visibility = 'public'
             or chunk.owner_id = viewer_id or chunk.allowed_groups && viewer_groups)
           and (wanted.visibilities is null or chunk.visibility = any (wanted.visibilities))
           and (wanted.sensitivities is null or chunk.sensitivity = any (wanted.sensitivities)
             or chunk.sensitivity is null and 'sensitivity' = any (wanted.or_null))
           and (wanted.owner_ids is null or chunk.owner_id = any (wanted.owner_ids)
             or chunk.owner_id is null and 'owner_id' = any (wanted.or_null))
           and (wanted.hidden is null or not wanted.hidden && array[
             'visibility=' || chunk.visibility, 'owner_id' || coalesce('=' || chunk.owner_id, ''),
             'sensitivity' || coalesce('=' || chunk.sensitivity, '')
           ])
       )
  ),
  completed as materialized (
    select id, near.vector_rank, best.text_rank, near.similarity, best.text_score,
           vector_weight * vector_evidence as cosine_weight,
           text_weight * text_evidence as bm25_weight,
           coalesce(
             near.similarity,
             case when best.text_rank <= plan.cosine_ranks
               then coalesce(best.cosine, typical_cosine, 0) end
           ) as cosine,
           coalesce(
             best.text_score,
             case
               when fusion <> 'auto' or analysis.lexemes is null then 0
               when analysis.is_optional and analysis.bonuses is null then near.word_score
               else (
                 select near.word_score + case
                          when analysis.bonuses is null then 0
                          else knowledge_internal.bonus(chunk.content_tsv, analysis.bonuses)
                        end
                   from public.knowledge_chunks as chunk
                  where chunk.id = near.id
                    and (analysis.is_optional or chunk.content_tsv @@ analysis.matching_query)
               )
             end,
             0
           ) as bm25_score,
           coalesce((analysis.bonuses).identifier_bonus, 'infinity') as identifier_bonus
      from unnest(
             plan.near_ids, plan.near_similarities[:vector_rows],
             plan.near_word_scores[:vector_rows]
           ) with ordinality as near (id, similarity, word_score, vector_rank)
      full outer join unnest(text_ids, text_scores, text_cosines)
             with ordinality as best (id, text_score, cosine, text_rank) using (id)
  ),
  ranges as (
    select count(*) as total_count,
           bool_or(greatest(hit.vector_rank, hit.text_rank) = plan.pool) as pool_ended,
           max(hit.bm25_score) as best_bm25_score,
           min(hit.similarity) as least_similarity, max(hit.similarity) as best_similarity,
           case when count(hit.similarity) = 0 then 0 else min(hit.text_score) end
             as least_text_score, max(hit.text_score) as best_text_score,
           min(hit.cosine) as least_cosine, max(hit.cosine) as best_cosine,
           1 + bool_or(hit.bm25_score >= hit.identifier_bonus)::integer as tiers
      from completed as hit
  ),
  page as (
    select hit.id, hit.vector_rank, hit.text_rank, hit.similarity, hit.text_score,
             case fusion
               when 'rrf' then coalesce(vector_weight / (rrf_k + hit.vector_rank), 0)
                 + coalesce(text_weight / (rrf_k + hit.text_rank), 0)
               when 'relative_score' then vector_weight
                 * knowledge_internal.min_max(hit.similarity, least_similarity, best_similarity)
                 + text_weight
                 * knowledge_internal.min_max(hit.text_score, least_text_score, best_text_score)
               -- 1 is the best of both legs; rows with an identifier asked for have over 1/2.
               else (
                 coalesce(
                   (
                     cosine_weight * coalesce(cosine - least_cosine, 0) + bm25_weight * bm25_score
                   ) / nullif(
                     cosine_weight * (best_cosine - least_cosine) + bm25_weight * best_bm25_score, 0
                   ),
                   1
                 ) + (bm25_score >= identifier_bonus)::integer
               ) / tiers / cardinality(questions)
             end
               as unit_score, least(hit.vector_rank, hit.text_rank) as best_rank,
           ranges.total_count, ranges.pool_ended
      from completed as hit
     cross join ranges
     order by unit_score desc, best_rank, hit.id
     limit match_count offset match_offset
  )
  select chunk.id, chunk.content, chunk.knowledge_type, chunk.document_id, chunk.chunk_index,
         chunk.source_origin, chunk.metadata, page.unit_score, page.vector_rank, page.text_rank,
         page.similarity, page.text_score,
         case when page.text_rank is null then 'vector' when page.vector_rank is null then 'text'
           else 'both' end,
         knowledge_internal.matched_words(chunk.content_tsv, asked),
         document.title, document.source_url, chunk.collection, chunk.document_date,
         case
           when snippet then knowledge_internal.marked_snippet(
             chunk.content, chunk.content_tsv, chunk.language, asked
           )
         end,
         null::text, page.total_count, page.pool_ended,
         chunk.heading, chunk.sensitivity,
         array[chunk.collection],
         (
           select count(sibling.chunk_index)::integer from visible_chunks as sibling
            where sibling.document_id = chunk.document_id
         ), document.external_key, document.source_row,
         least(1, page.unit_score / (select knowledge_internal.best_fused_score( -- once, not by row
           fusion, questions, vector_weight, text_weight, rrf_k
         ))),
         notes
    from page
   -- Without offset 0, the generic plan would read the whole table.
   cross join lateral (
           select stored.id, stored.content, stored.knowledge_type, stored.document_id,
                  stored.chunk_index, stored.source_origin, stored.metadata, stored.content_tsv,
                  stored.collection, stored.document_date, stored.language, stored.heading,
                  stored.sensitivity
             from public.knowledge_chunks as stored
            where stored.id = page.id
           offset 0
         ) as chunk
    left join public.knowledge_documents as document
      on document.id = chunk.document_id
     and (document.visibility = 'public' or not public_only and (
       num_nonnulls(viewer_id, viewer_groups) = 0 or document.owner_id = viewer_id
         or document.allowed_groups && viewer_groups))
   order by page.unit_score desc, page.best_rank, page.id;
end
$$;

comment on function knowledge_internal.common_search is
  'hybrid_search_knowledge_chunks for one list without grouping, context or recency, whose rows '
  'with_found_rows has found: the same hits as the statement of the search has.';

create function knowledge_internal.visible_words(
  words text[],
  forms tsquery[],
  wanted knowledge_internal.chunk_filter,
  plan knowledge_internal.search_plan,
  viewer_id uuid,
  viewer_groups text[],
  counts_chunks boolean
)
returns table (place bigint, has_form boolean, chunks bigint)
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
-- The planner overestimates how many rows have a word. Compiling takes longer than looking.
set enable_seqscan = off
set jit = off
as $$
declare
  most_read constant integer := case when counts_chunks then 20 else 1 end; -- chunks
begin
  return query execute
    'select asked.place, count(found.id) > 0,'
    '       count(*) filter ('
    '         where $7 and asked.word in ('
    '           select of_chunk.word'
    '             from knowledge_internal.words_of(found.heading, found.content)'
    '                  as of_chunk (word)'
    '         )'
    '       )'
    '  from unnest($5, $6) with ordinality as asked (word, form, place)'
    '  left join lateral ('
    '         select stored.id, stored.heading, stored.content'
    '           from ('
    '             select chunk.id'
    '               from public.knowledge_chunks as chunk'
    '              where ' || knowledge_internal.visible_conditions(
                                wanted, plan, viewer_id, viewer_groups
                              ) ||
    '                and chunk.content_tsv @@ asked.form'
    '              limit $8'
    '           ) as visible'
    '           join public.knowledge_chunks as stored on stored.id = visible.id'
    '       ) as found on true'
    ' group by asked.place'
    using wanted, plan, viewer_id, viewer_groups, words, forms, counts_chunks, most_read;
end
$$;

comment on function knowledge_internal.visible_words is
  'For each form of a word, whether a chunk that the viewer may see has it, and with counts_chunks '
  'how many of the first 20 such chunks have the word itself, which takes longer.';

create function knowledge_internal.matching_chunks(
  arguments knowledge_internal.search_arguments, needs_question boolean
)
returns table (id uuid, document_id uuid)
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
-- The plan depends on the values of the filters.
set plan_cache_mode = force_custom_plan
set standard_conforming_strings = on
as $$
declare
  query_embedding extensions.vector := arguments.query_embedding;
  query_text text := arguments.query_text;
  match_count integer := arguments.match_count;
  match_threshold double precision := arguments.match_threshold;
  vector_weight double precision := arguments.vector_weight;
  text_weight double precision := arguments.text_weight;
  filter_type text := arguments.filter_type;
  search_mode text := arguments.search_mode;
  pool_size integer := arguments.pool_size;
  rrf_k double precision := arguments.rrf_k;
  fusion text := arguments.fusion;
  filters jsonb := arguments.filters;
  date_from date := arguments.date_from;
  date_to date := arguments.date_to;
  collections text[] := arguments.collections;
  viewer_id uuid := arguments.viewer_id;
  public_only boolean := arguments.public_only;
  one_per_document boolean := arguments.one_per_document;
  neighbor_window integer := arguments.neighbor_window;
  recency_half_life double precision := arguments.recency_half_life;
  match_offset integer := arguments.match_offset;
  snippet boolean := arguments.snippet;
  formulations jsonb := arguments.formulations;
  viewer_groups text[] := arguments.viewer_groups;
  on_bad_embedding text := arguments.on_bad_embedding;
  prefix_last boolean := arguments.prefix_last;
  questions knowledge_internal.search_question[];
  analyses knowledge_internal.query_analysis[];
  wanted knowledge_internal.chunk_filter;
  plan knowledge_internal.search_plan;
begin
  perform knowledge_internal.check_search_arguments(
    match_count, match_threshold, vector_weight, text_weight, search_mode, pool_size, rrf_k, fusion,
    public_only, one_per_document, neighbor_window, recency_half_life, match_offset, snippet,
    viewer_groups, on_bad_embedding, prefix_last
  );
  wanted := case
    when num_nonnulls(filters, filter_type, date_from, date_to) > 0 or public_only
      then knowledge_internal.compile_filter(filters, filter_type, date_from, date_to, public_only)
  end;
  if fusion is null or fusion = 'stored_or_auto' then
    select * into fusion, vector_weight, text_weight from knowledge_internal.settled_fusion(
      fusion, vector_weight, text_weight, coalesce(collections, wanted.collections)
    );
  end if;
  plan := knowledge_internal.plan_search(
    pool_size, match_count, wanted, viewer_id, viewer_groups, collections
  );
  if not needs_question and query_embedding is null and formulations is null
     and coalesce(query_text, '') !~ '\S'
  then
    questions := '{}';
  else
  questions := knowledge_internal.search_questions(
    query_embedding, query_text, formulations, plan.dimensions, vector_weight > 0, text_weight > 0,
    on_bad_embedding
  );
  end if;
  collections := case
    when collections is not null
      then knowledge_internal.checked_collections(collections, cardinality(questions))
  end;
  if plan.is_empty then
    return;
  end if;
  analyses := knowledge_internal.analyse_questions(
    questions, search_mode, wanted, viewer_id, viewer_groups, collections, prefix_last
  );
  return query
  with
  visible_chunks as not materialized (
    select chunk.*
      from knowledge_internal.searchable_chunks as chunk
     where chunk.status = 'active'
       and (
         not plan.is_filtered
         or (num_nonnulls(viewer_id, viewer_groups) = 0 or chunk.visibility = 'public'
             or chunk.owner_id = viewer_id or chunk.allowed_groups && viewer_groups)
           and (wanted.visibilities is null or chunk.visibility = any (wanted.visibilities))
           and (wanted.sensitivities is null or chunk.sensitivity = any (wanted.sensitivities)
             or chunk.sensitivity is null and 'sensitivity' = any (wanted.or_null))
           and (wanted.owner_ids is null or chunk.owner_id = any (wanted.owner_ids)
             or chunk.owner_id is null and 'owner_id' = any (wanted.or_null))
           and (wanted.hidden is null or not wanted.hidden && array[
             'visibility=' || chunk.visibility, 'owner_id' || coalesce('=' || chunk.owner_id, ''),
             'sensitivity' || coalesce('=' || chunk.sensitivity, '')
           ])
       )
  ),
  matching_chunks as not materialized (
    select chunk.*
      from visible_chunks as chunk
     where coalesce(chunk.collection <> all (wanted.excluded_collections), true)
       and (not plan.is_filtered
        or (wanted.knowledge_types is null or chunk.knowledge_type = any (wanted.knowledge_types))
          and (wanted.source_origins is null or chunk.source_origin = any (wanted.source_origins))
          and (wanted.collections is null or chunk.collection = any (wanted.collections))
          and (wanted.languages is null or chunk.language = any (wanted.languages))
          and (wanted.embedding_models is null
            or chunk.embedding_model = any (wanted.embedding_models)
            or chunk.embedding_model is null and 'embedding_model' = any (wanted.or_null))
          and (wanted.document_ids is null or chunk.document_id = any (wanted.document_ids)
            or chunk.document_id is null and 'document_id' = any (wanted.or_null))
          and (wanted.source_ids is null or chunk.source_id = any (wanted.source_ids)
            or chunk.source_id is null and 'source_id' = any (wanted.or_null))
          and (wanted.chunk_indexes is null or chunk.chunk_index <@ wanted.chunk_indexes
            or chunk.chunk_index is null and 'chunk_index' = any (wanted.or_null))
          and (wanted.document_dates is null or chunk.document_date <@ wanted.document_dates
            or chunk.document_date is null and 'document_date' = any (wanted.or_null))
          -- The index on document_date serves these two, not the multirange above.
          and (plan.first_date is null or chunk.document_date >= plan.first_date)
          and (plan.end_date is null or chunk.document_date < plan.end_date)
          and (wanted.created is null or chunk.created_at <@ wanted.created)
          and (wanted.updated is null or chunk.updated_at <@ wanted.updated)
          and (wanted.excluded is null or not wanted.excluded && array[
            'knowledge_type=' || chunk.knowledge_type, 'source_origin=' || chunk.source_origin,
            'language=' || chunk.language, 'document_id' || coalesce('=' || chunk.document_id, ''),
            'embedding_model' || coalesce('=' || chunk.embedding_model, ''),
            'source_id' || coalesce('=' || chunk.source_id, '')
          ])
          and (wanted.required_metadata is null or chunk.metadata @> wanted.required_metadata)
          and (wanted.alternative_metadata is null
            or chunk.metadata @> any (wanted.alternative_metadata))
          and (wanted.metadata_conditions is null
            or knowledge_internal.passes(chunk.metadata, wanted.metadata_conditions)))
  ),
  in_scope as not materialized (
    select chunk.*
      from matching_chunks as chunk
     where collections is null or chunk.collection = any (collections)
  )
  select chunk.id, chunk.document_id
    from rows from (unnest(questions), unnest(analyses)) as question
   cross join lateral (
           -- What is required is required no more where no chunk has it.
           select case
                    when question.relaxed_query is null or exists (
                      select from in_scope as strict
                       where strict.content_tsv @@ question.matching_query
                    ) then question.matching_query
                    else question.relaxed_query
                  end as query
           offset 0
         ) as words
    join in_scope as chunk on chunk.content_tsv @@ words.query
  union
  select chunk.id, chunk.document_id
    from unnest(questions) as question
    join in_scope as chunk
      on 1 - (chunk.embedding operator(extensions.<=>) question.embedding) >= match_threshold
  union
  select chunk.id, chunk.document_id
    from in_scope as chunk
   where questions = '{}';
end
$$;

comment on function knowledge_internal.matching_chunks is
  'The chunks that a search would find if its pools had no bound: active chunks that pass the '
  'filters and have the words of query_text, or an embedding of at least match_threshold. Without '
  'a question, all that pass the filters, unless needs_question. Raises 22023 as the search does.';

create function public.count_matching_knowledge_chunks(
  query_embedding extensions.vector default null,
  query_text text default null,
  match_count integer default 10,
  match_threshold double precision default 0.0,
  vector_weight double precision default 1.0,
  text_weight double precision default 1.0,
  filter_type text default null,
  search_mode text default 'websearch',
  pool_size integer default 50,
  rrf_k double precision default 60,
  fusion text default null,
  filters jsonb default null,
  date_from date default null,
  date_to date default null,
  collections text[] default null,
  viewer_id uuid default null,
  public_only boolean default false,
  one_per_document boolean default false,
  neighbor_window integer default 0,
  recency_half_life double precision default null,
  match_offset integer default 0,
  snippet boolean default false,
  formulations jsonb default null,
  viewer_groups text[] default null,
  on_bad_embedding text default 'error',
  prefix_last boolean default false
)
returns bigint
language plpgsql
stable
-- definer: callers have no grant on the tables, the arguments decide which rows are counted.
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  arguments knowledge_internal.search_arguments;
begin
  arguments.query_embedding := count_matching_knowledge_chunks.query_embedding;
  arguments.query_text := count_matching_knowledge_chunks.query_text;
  arguments.match_count := count_matching_knowledge_chunks.match_count;
  arguments.match_threshold := count_matching_knowledge_chunks.match_threshold;
  arguments.vector_weight := count_matching_knowledge_chunks.vector_weight;
  arguments.text_weight := count_matching_knowledge_chunks.text_weight;
  arguments.filter_type := count_matching_knowledge_chunks.filter_type;
  arguments.search_mode := count_matching_knowledge_chunks.search_mode;
  arguments.pool_size := count_matching_knowledge_chunks.pool_size;
  arguments.rrf_k := count_matching_knowledge_chunks.rrf_k;
  arguments.fusion := count_matching_knowledge_chunks.fusion;
  arguments.filters := count_matching_knowledge_chunks.filters;
  arguments.date_from := count_matching_knowledge_chunks.date_from;
  arguments.date_to := count_matching_knowledge_chunks.date_to;
  arguments.collections := count_matching_knowledge_chunks.collections;
  arguments.viewer_id := count_matching_knowledge_chunks.viewer_id;
  arguments.public_only := count_matching_knowledge_chunks.public_only;
  arguments.one_per_document := count_matching_knowledge_chunks.one_per_document;
  arguments.neighbor_window := count_matching_knowledge_chunks.neighbor_window;
  arguments.recency_half_life := count_matching_knowledge_chunks.recency_half_life;
  arguments.match_offset := count_matching_knowledge_chunks.match_offset;
  arguments.snippet := count_matching_knowledge_chunks.snippet;
  arguments.formulations := count_matching_knowledge_chunks.formulations;
  arguments.viewer_groups := count_matching_knowledge_chunks.viewer_groups;
  arguments.on_bad_embedding := count_matching_knowledge_chunks.on_bad_embedding;
  arguments.prefix_last := count_matching_knowledge_chunks.prefix_last;
  return (
    select count(distinct coalesce(case when one_per_document then found.document_id end, found.id))
      from knowledge_internal.matching_chunks(arguments, true) as found
  );
end
$$;

comment on function public.count_matching_knowledge_chunks is
  'The number of hits that hybrid_search_knowledge_chunks would have for the same arguments if its '
  'pools had no bound: active chunks that pass the filters and have the words of query_text, or an '
  'embedding of at least match_threshold (documents, with one_per_document). It compares every '
  'embedding that passes the filters. Arguments that only order, cut or show hits do not count. '
  'Raises 22023 as the search does.';

revoke all on function public.count_matching_knowledge_chunks from public, anon, authenticated;
grant execute on function public.count_matching_knowledge_chunks to service_role;

create function public.facet_knowledge_chunks(
  query_embedding extensions.vector default null,
  query_text text default null,
  match_count integer default 10,
  match_threshold double precision default 0.0,
  vector_weight double precision default 1.0,
  text_weight double precision default 1.0,
  filter_type text default null,
  search_mode text default 'websearch',
  pool_size integer default 50,
  rrf_k double precision default 60,
  fusion text default null,
  filters jsonb default null,
  date_from date default null,
  date_to date default null,
  collections text[] default null,
  viewer_id uuid default null,
  public_only boolean default false,
  one_per_document boolean default false,
  neighbor_window integer default 0,
  recency_half_life double precision default null,
  match_offset integer default 0,
  snippet boolean default false,
  formulations jsonb default null,
  viewer_groups text[] default null,
  on_bad_embedding text default 'error',
  prefix_last boolean default false,
  facets text[] default '{knowledge_type,collection}',
  facet_limit integer default 10
)
returns table (facet text, value jsonb, count bigint)
language plpgsql
stable
-- definer: callers have no grant on the tables, the arguments decide which rows are counted.
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  arguments knowledge_internal.search_arguments;
begin
  arguments.query_embedding := facet_knowledge_chunks.query_embedding;
  arguments.query_text := facet_knowledge_chunks.query_text;
  arguments.match_count := facet_knowledge_chunks.match_count;
  arguments.match_threshold := facet_knowledge_chunks.match_threshold;
  arguments.vector_weight := facet_knowledge_chunks.vector_weight;
  arguments.text_weight := facet_knowledge_chunks.text_weight;
  arguments.filter_type := facet_knowledge_chunks.filter_type;
  arguments.search_mode := facet_knowledge_chunks.search_mode;
  arguments.pool_size := facet_knowledge_chunks.pool_size;
  arguments.rrf_k := facet_knowledge_chunks.rrf_k;
  arguments.fusion := facet_knowledge_chunks.fusion;
  arguments.filters := facet_knowledge_chunks.filters;
  arguments.date_from := facet_knowledge_chunks.date_from;
  arguments.date_to := facet_knowledge_chunks.date_to;
  arguments.collections := facet_knowledge_chunks.collections;
  arguments.viewer_id := facet_knowledge_chunks.viewer_id;
  arguments.public_only := facet_knowledge_chunks.public_only;
  arguments.one_per_document := facet_knowledge_chunks.one_per_document;
  arguments.neighbor_window := facet_knowledge_chunks.neighbor_window;
  arguments.recency_half_life := facet_knowledge_chunks.recency_half_life;
  arguments.match_offset := facet_knowledge_chunks.match_offset;
  arguments.snippet := facet_knowledge_chunks.snippet;
  arguments.formulations := facet_knowledge_chunks.formulations;
  arguments.viewer_groups := facet_knowledge_chunks.viewer_groups;
  arguments.on_bad_embedding := facet_knowledge_chunks.on_bad_embedding;
  arguments.prefix_last := facet_knowledge_chunks.prefix_last;
  return query
  select counted.* from knowledge_internal.facet_counts(arguments, facets, facet_limit) as counted;
end
$$;

comment on function public.facet_knowledge_chunks is
  'For each facet, the values of the matching chunks and how many chunks have each, the most '
  'frequent first. The arguments are those of hybrid_search_knowledge_chunks, and the chunks '
  'counted are those of count_matching_knowledge_chunks; with neither query_text nor '
  'query_embedding, all active chunks that pass the filters. With one_per_document, documents are '
  'counted. facets: 1 to 20 of knowledge_type, collection, source_id, source_origin, language and '
  'metadata. followed by a key or a path of keys; of an array, each element counts once. '
  'facet_limit: values for each facet, 1 to 1000. value is JSON and can be used in a filter. '
  'Raises 22023 for an argument out of bounds.';

revoke all on function public.facet_knowledge_chunks from public, anon, authenticated;
grant execute on function public.facet_knowledge_chunks to service_role;

create function public.facet_my_knowledge_chunks(
  query_embedding extensions.vector default null,
  query_text text default null,
  match_count integer default 10,
  match_threshold double precision default 0.0,
  vector_weight double precision default 1.0,
  text_weight double precision default 1.0,
  filter_type text default null,
  search_mode text default 'websearch',
  pool_size integer default 50,
  rrf_k double precision default 60,
  fusion text default null,
  filters jsonb default null,
  date_from date default null,
  date_to date default null,
  collections text[] default null,
  public_only boolean default false,
  one_per_document boolean default false,
  neighbor_window integer default 0,
  recency_half_life double precision default null,
  match_offset integer default 0,
  snippet boolean default false,
  formulations jsonb default null,
  on_bad_embedding text default 'error',
  prefix_last boolean default false,
  facets text[] default '{knowledge_type,collection}',
  facet_limit integer default 10
)
returns table (facet text, value jsonb, count bigint)
language plpgsql
stable
-- definer: a signed-in user may not read the tables, nor choose a viewer_id.
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  arguments knowledge_internal.search_arguments;
begin
  arguments.viewer_id := knowledge_internal.signed_in_viewer('facet_my_knowledge_chunks');
  arguments.viewer_groups := knowledge_internal.current_viewer_groups();
  arguments.query_embedding := facet_my_knowledge_chunks.query_embedding;
  arguments.query_text := facet_my_knowledge_chunks.query_text;
  arguments.match_count := facet_my_knowledge_chunks.match_count;
  arguments.match_threshold := facet_my_knowledge_chunks.match_threshold;
  arguments.vector_weight := facet_my_knowledge_chunks.vector_weight;
  arguments.text_weight := facet_my_knowledge_chunks.text_weight;
  arguments.filter_type := facet_my_knowledge_chunks.filter_type;
  arguments.search_mode := facet_my_knowledge_chunks.search_mode;
  arguments.pool_size := facet_my_knowledge_chunks.pool_size;
  arguments.rrf_k := facet_my_knowledge_chunks.rrf_k;
  arguments.fusion := facet_my_knowledge_chunks.fusion;
  arguments.filters := facet_my_knowledge_chunks.filters;
  arguments.date_from := facet_my_knowledge_chunks.date_from;
  arguments.date_to := facet_my_knowledge_chunks.date_to;
  arguments.collections := facet_my_knowledge_chunks.collections;
  arguments.public_only := facet_my_knowledge_chunks.public_only;
  arguments.one_per_document := facet_my_knowledge_chunks.one_per_document;
  arguments.neighbor_window := facet_my_knowledge_chunks.neighbor_window;
  arguments.recency_half_life := facet_my_knowledge_chunks.recency_half_life;
  arguments.match_offset := facet_my_knowledge_chunks.match_offset;
  arguments.snippet := facet_my_knowledge_chunks.snippet;
  arguments.formulations := facet_my_knowledge_chunks.formulations;
  arguments.on_bad_embedding := facet_my_knowledge_chunks.on_bad_embedding;
  arguments.prefix_last := facet_my_knowledge_chunks.prefix_last;
  perform knowledge_internal.check_cost(arguments);
  -- A user may not read how many chunks have a word.
  perform set_config('knowledge_internal.recording', 'off', true),
          set_config('knowledge_internal.readings', '', true);
  return query
  select counted.* from knowledge_internal.facet_counts(arguments, facets, facet_limit) as counted;
end
$$;

comment on function public.facet_my_knowledge_chunks is
  'facet_knowledge_chunks for the signed-in user: counts public rows, rows whose owner is '
  'auth.uid(), and rows of the groups that knowledge_viewer_groups() returns. The limits are those '
  'of search_my_knowledge_chunks. Raises 42501 if nobody is signed in or the user id is not a '
  'UUID, and 22023 for an argument out of bounds.';
revoke all on function public.facet_my_knowledge_chunks
  from public, anon, authenticated, service_role;
grant execute on function public.facet_my_knowledge_chunks to authenticated;

create function knowledge_internal.pending_embeddings(
  arguments knowledge_internal.search_arguments
)
returns integer
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
-- The plan depends on the values of the filters.
set plan_cache_mode = force_custom_plan
set standard_conforming_strings = on
as $$
declare
  most_counted constant integer := 1000;
  filter_type text := arguments.filter_type;
  filters jsonb := arguments.filters;
  date_from date := arguments.date_from;
  date_to date := arguments.date_to;
  collections text[] := arguments.collections;
  viewer_id uuid := arguments.viewer_id;
  public_only boolean := arguments.public_only;
  viewer_groups text[] := arguments.viewer_groups;
  wanted knowledge_internal.chunk_filter;
  plan knowledge_internal.search_plan;
  counted integer;
begin
  perform knowledge_internal.check_flag('public_only', public_only),
          knowledge_internal.check_viewer_groups('viewer_groups', viewer_groups);
  wanted := knowledge_internal.compile_filter(
    filters, filter_type, date_from, date_to, public_only
  );
  collections := case
    when collections is not null then knowledge_internal.checked_collections(collections, 0)
  end;
  -- Usually nothing is pending, and the statement below takes longer to plan than this one to run.
  if not exists (
    select from public.knowledge_chunks as chunk
     where chunk.status = 'active' and chunk.embedding is null
  ) then
    return 0;
  end if;
  plan := knowledge_internal.plan_search(1, 1, wanted, viewer_id, viewer_groups, collections);
  with
  visible_chunks as not materialized (
    select chunk.*
      from knowledge_internal.searchable_chunks as chunk
     where chunk.status = 'active'
       and (
         not plan.is_filtered
         or (num_nonnulls(viewer_id, viewer_groups) = 0 or chunk.visibility = 'public'
             or chunk.owner_id = viewer_id or chunk.allowed_groups && viewer_groups)
           and (wanted.visibilities is null or chunk.visibility = any (wanted.visibilities))
           and (wanted.sensitivities is null or chunk.sensitivity = any (wanted.sensitivities)
             or chunk.sensitivity is null and 'sensitivity' = any (wanted.or_null))
           and (wanted.owner_ids is null or chunk.owner_id = any (wanted.owner_ids)
             or chunk.owner_id is null and 'owner_id' = any (wanted.or_null))
           and (wanted.hidden is null or not wanted.hidden && array[
             'visibility=' || chunk.visibility, 'owner_id' || coalesce('=' || chunk.owner_id, ''),
             'sensitivity' || coalesce('=' || chunk.sensitivity, '')
           ])
       )
  ),
  matching_chunks as not materialized (
    select chunk.*
      from visible_chunks as chunk
     where coalesce(chunk.collection <> all (wanted.excluded_collections), true)
       and (not plan.is_filtered
        or (wanted.knowledge_types is null or chunk.knowledge_type = any (wanted.knowledge_types))
          and (wanted.source_origins is null or chunk.source_origin = any (wanted.source_origins))
          and (wanted.collections is null or chunk.collection = any (wanted.collections))
          and (wanted.languages is null or chunk.language = any (wanted.languages))
          and (wanted.embedding_models is null
            or chunk.embedding_model = any (wanted.embedding_models)
            or chunk.embedding_model is null and 'embedding_model' = any (wanted.or_null))
          and (wanted.document_ids is null or chunk.document_id = any (wanted.document_ids)
            or chunk.document_id is null and 'document_id' = any (wanted.or_null))
          and (wanted.source_ids is null or chunk.source_id = any (wanted.source_ids)
            or chunk.source_id is null and 'source_id' = any (wanted.or_null))
          and (wanted.chunk_indexes is null or chunk.chunk_index <@ wanted.chunk_indexes
            or chunk.chunk_index is null and 'chunk_index' = any (wanted.or_null))
          and (wanted.document_dates is null or chunk.document_date <@ wanted.document_dates
            or chunk.document_date is null and 'document_date' = any (wanted.or_null))
          -- The index on document_date serves these two, not the multirange above.
          and (plan.first_date is null or chunk.document_date >= plan.first_date)
          and (plan.end_date is null or chunk.document_date < plan.end_date)
          and (wanted.created is null or chunk.created_at <@ wanted.created)
          and (wanted.updated is null or chunk.updated_at <@ wanted.updated)
          and (wanted.excluded is null or not wanted.excluded && array[
            'knowledge_type=' || chunk.knowledge_type, 'source_origin=' || chunk.source_origin,
            'language=' || chunk.language, 'document_id' || coalesce('=' || chunk.document_id, ''),
            'embedding_model' || coalesce('=' || chunk.embedding_model, ''),
            'source_id' || coalesce('=' || chunk.source_id, '')
          ])
          and (wanted.required_metadata is null or chunk.metadata @> wanted.required_metadata)
          and (wanted.alternative_metadata is null
            or chunk.metadata @> any (wanted.alternative_metadata))
          and (wanted.metadata_conditions is null
            or knowledge_internal.passes(chunk.metadata, wanted.metadata_conditions)))
  ),
  pending_chunks as (
    select chunk.id
      from matching_chunks as chunk
     where chunk.embedding is null
       and (collections is null or chunk.collection = any (collections))
     limit most_counted
  )
  select count(*) into counted from pending_chunks;
  return counted;
end
$$;

comment on function knowledge_internal.pending_embeddings(knowledge_internal.search_arguments) is
  'The number of active chunks without an embedding that pass the filters of a search, at most '
  '1000. Raises 22023 as the search does.';

create function public.count_pending_knowledge_embeddings(
  filter_type text default null,
  filters jsonb default null,
  date_from date default null,
  date_to date default null,
  collections text[] default null,
  viewer_id uuid default null,
  public_only boolean default false,
  viewer_groups text[] default null
)
returns integer
language plpgsql
stable
-- definer: callers have no grant on the tables, the arguments decide which rows are counted.
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  arguments knowledge_internal.search_arguments;
begin
  arguments.filter_type := count_pending_knowledge_embeddings.filter_type;
  arguments.filters := count_pending_knowledge_embeddings.filters;
  arguments.date_from := count_pending_knowledge_embeddings.date_from;
  arguments.date_to := count_pending_knowledge_embeddings.date_to;
  arguments.collections := count_pending_knowledge_embeddings.collections;
  arguments.viewer_id := count_pending_knowledge_embeddings.viewer_id;
  arguments.public_only := count_pending_knowledge_embeddings.public_only;
  arguments.viewer_groups := count_pending_knowledge_embeddings.viewer_groups;
  return knowledge_internal.pending_embeddings(arguments);
end
$$;

comment on function public.count_pending_knowledge_embeddings is
  'The number of active chunks that have no embedding yet, so that a search finds them by their '
  'words only. The arguments are those of hybrid_search_knowledge_chunks that select rows; chunks '
  'that these exclude change nothing. It counts to 1000, which means 1000 or more. Raises 22023 '
  'as the search does.';

revoke all on function public.count_pending_knowledge_embeddings
  from public, anon, authenticated;
grant execute on function public.count_pending_knowledge_embeddings to service_role;

create function public.count_my_pending_knowledge_embeddings(
  filter_type text default null,
  filters jsonb default null,
  date_from date default null,
  date_to date default null,
  collections text[] default null,
  public_only boolean default false
)
returns integer
language plpgsql
stable
-- definer: a signed-in user may not read the tables, nor choose a viewer_id.
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  arguments knowledge_internal.search_arguments;
begin
  arguments.viewer_id := knowledge_internal.signed_in_viewer(
    'count_my_pending_knowledge_embeddings'
  );
  arguments.viewer_groups := knowledge_internal.current_viewer_groups();
  arguments.filter_type := count_my_pending_knowledge_embeddings.filter_type;
  arguments.filters := count_my_pending_knowledge_embeddings.filters;
  arguments.date_from := count_my_pending_knowledge_embeddings.date_from;
  arguments.date_to := count_my_pending_knowledge_embeddings.date_to;
  arguments.collections := count_my_pending_knowledge_embeddings.collections;
  arguments.public_only := count_my_pending_knowledge_embeddings.public_only;
  return knowledge_internal.pending_embeddings(arguments);
end
$$;

comment on function public.count_my_pending_knowledge_embeddings is
  'count_pending_knowledge_embeddings for the signed-in user: counts public rows, rows whose owner '
  'is auth.uid(), and rows of the groups that knowledge_viewer_groups() returns. Raises 42501 if '
  'nobody is signed in or the user id is not a UUID, and 22023 for an argument out of bounds.';
revoke all on function public.count_my_pending_knowledge_embeddings
  from public, anon, authenticated, service_role;
grant execute on function public.count_my_pending_knowledge_embeddings to authenticated;

create function public.read_knowledge_question(
  query_embedding extensions.vector default null,
  query_text text default null,
  match_count integer default 10,
  match_threshold double precision default 0.0,
  vector_weight double precision default 1.0,
  text_weight double precision default 1.0,
  filter_type text default null,
  search_mode text default 'websearch',
  pool_size integer default 50,
  rrf_k double precision default 60,
  fusion text default null,
  filters jsonb default null,
  date_from date default null,
  date_to date default null,
  collections text[] default null,
  viewer_id uuid default null,
  public_only boolean default false,
  one_per_document boolean default false,
  neighbor_window integer default 0,
  recency_half_life double precision default null,
  match_offset integer default 0,
  snippet boolean default false,
  formulations jsonb default null,
  viewer_groups text[] default null,
  on_bad_embedding text default 'error',
  prefix_last boolean default false
)
returns jsonb
language plpgsql
stable
-- definer: service_role has no rights on the internal schema.
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  questions knowledge_internal.search_question[];
  analyses knowledge_internal.query_analysis[];
  wanted knowledge_internal.chunk_filter;
  plan knowledge_internal.search_plan;
  corpus record;
  recorded jsonb;
begin
  perform set_config('knowledge_internal.readings', '', true);
  perform knowledge_internal.check_search_arguments(
    match_count, match_threshold, vector_weight, text_weight, search_mode, pool_size, rrf_k, fusion,
    public_only, one_per_document, neighbor_window, recency_half_life, match_offset, snippet,
    viewer_groups, on_bad_embedding, prefix_last
  );
  wanted := case
    when num_nonnulls(filters, filter_type, date_from, date_to) > 0 or public_only
      then knowledge_internal.compile_filter(filters, filter_type, date_from, date_to, public_only)
  end;
  if fusion is null or fusion = 'stored_or_auto' then
    select * into fusion, vector_weight, text_weight from knowledge_internal.settled_fusion(
      fusion, vector_weight, text_weight, coalesce(collections, wanted.collections)
    );
  end if;
  plan := knowledge_internal.plan_search(
    pool_size, match_count, wanted, viewer_id, viewer_groups, collections
  );
  questions := knowledge_internal.search_questions(
    query_embedding, query_text, formulations, plan.dimensions, vector_weight > 0, text_weight > 0,
    on_bad_embedding
  );
  collections := case
    when collections is not null
      then knowledge_internal.checked_collections(collections, cardinality(questions))
  end;
  perform set_config(
            'knowledge_internal.recorded',
            '{"listed": {}, "counted": {}, "expansions": [], "unknown": {}}', true
          ),
          set_config('knowledge_internal.recording', 'on', true);
  analyses := knowledge_internal.analyse_questions(
    questions, search_mode, wanted, viewer_id, viewer_groups, collections, prefix_last
  );
  recorded := current_setting('knowledge_internal.recorded');
  perform set_config('knowledge_internal.recording', 'off', true),
          set_config('knowledge_internal.recorded', '', true);
  select * into corpus from knowledge_internal.corpus_size();
  return recorded || jsonb_build_object(
    'fusion', fusion, 'vector_weight', vector_weight, 'text_weight', text_weight,
    'corpus', to_jsonb(corpus) - 'is_small',
    'languages', coalesce(knowledge_internal.query_configurations()::text[], '{}'),
    'statistics', (
      select stored.shared_id
        from public.knowledge_corpus_statistics as stored
       where not corpus.is_small
    )
  );
end
$$;

comment on function public.read_knowledge_question is
  'The first step of a search in several databases: the figures of the words of the question in '
  'this one, for the arguments of hybrid_search_knowledge_chunks. The answers of all databases '
  'together are the readings of the next steps. It shows how many chunks have a word, whoever owns '
  'them, so only service_role may call it. Raises 22023 as the search does.';

revoke all on function public.read_knowledge_question from public, anon, authenticated;
grant execute on function public.read_knowledge_question to service_role;

create function public.knowledge_candidates(
  query_embedding extensions.vector default null,
  query_text text default null,
  match_count integer default 10,
  match_threshold double precision default 0.0,
  vector_weight double precision default 1.0,
  text_weight double precision default 1.0,
  filter_type text default null,
  search_mode text default 'websearch',
  pool_size integer default 50,
  rrf_k double precision default 60,
  fusion text default null,
  filters jsonb default null,
  date_from date default null,
  date_to date default null,
  collections text[] default null,
  viewer_id uuid default null,
  public_only boolean default false,
  one_per_document boolean default false,
  neighbor_window integer default 0,
  recency_half_life double precision default null,
  match_offset integer default 0,
  snippet boolean default false,
  formulations jsonb default null,
  viewer_groups text[] default null,
  on_bad_embedding text default 'error',
  prefix_last boolean default false,
  readings jsonb default null
)
returns jsonb
language plpgsql
stable
-- definer: callers have no grant on the tables, the arguments decide which rows are read.
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  arguments knowledge_internal.search_arguments;
  candidates jsonb;
begin
  arguments.query_embedding := knowledge_candidates.query_embedding;
  arguments.query_text := knowledge_candidates.query_text;
  arguments.match_count := knowledge_candidates.match_count;
  arguments.match_threshold := knowledge_candidates.match_threshold;
  arguments.vector_weight := knowledge_candidates.vector_weight;
  arguments.text_weight := knowledge_candidates.text_weight;
  arguments.filter_type := knowledge_candidates.filter_type;
  arguments.search_mode := knowledge_candidates.search_mode;
  arguments.pool_size := knowledge_candidates.pool_size;
  arguments.rrf_k := knowledge_candidates.rrf_k;
  arguments.fusion := knowledge_candidates.fusion;
  arguments.filters := knowledge_candidates.filters;
  arguments.date_from := knowledge_candidates.date_from;
  arguments.date_to := knowledge_candidates.date_to;
  arguments.collections := knowledge_candidates.collections;
  arguments.viewer_id := knowledge_candidates.viewer_id;
  arguments.public_only := knowledge_candidates.public_only;
  arguments.one_per_document := knowledge_candidates.one_per_document;
  arguments.neighbor_window := knowledge_candidates.neighbor_window;
  arguments.recency_half_life := knowledge_candidates.recency_half_life;
  arguments.match_offset := knowledge_candidates.match_offset;
  arguments.snippet := knowledge_candidates.snippet;
  arguments.formulations := knowledge_candidates.formulations;
  arguments.viewer_groups := knowledge_candidates.viewer_groups;
  arguments.on_bad_embedding := knowledge_candidates.on_bad_embedding;
  arguments.prefix_last := knowledge_candidates.prefix_last;
  arguments := knowledge_internal.use_readings(arguments, readings);
  candidates := knowledge_internal.candidates(arguments);
  perform set_config('knowledge_internal.readings', '', true);
  return candidates;
end
$$;

comment on function public.knowledge_candidates is
  'The second step of a search in several databases: the candidates of this one, with the scores '
  'of both legs and what fusion auto needs, for the arguments of hybrid_search_knowledge_chunks '
  'and the readings, an array of what read_knowledge_question returned in each database. Raises '
  '22023 as the search does, and for readings of another form.';

revoke all on function public.knowledge_candidates from public, anon, authenticated;
grant execute on function public.knowledge_candidates to service_role;

create function public.fuse_knowledge_candidates(
  query_embedding extensions.vector default null,
  query_text text default null,
  match_count integer default 10,
  match_threshold double precision default 0.0,
  vector_weight double precision default 1.0,
  text_weight double precision default 1.0,
  filter_type text default null,
  search_mode text default 'websearch',
  pool_size integer default 50,
  rrf_k double precision default 60,
  fusion text default null,
  filters jsonb default null,
  date_from date default null,
  date_to date default null,
  collections text[] default null,
  viewer_id uuid default null,
  public_only boolean default false,
  one_per_document boolean default false,
  neighbor_window integer default 0,
  recency_half_life double precision default null,
  match_offset integer default 0,
  snippet boolean default false,
  formulations jsonb default null,
  viewer_groups text[] default null,
  on_bad_embedding text default 'error',
  prefix_last boolean default false,
  readings jsonb default null,
  candidates jsonb default null
)
returns jsonb
language plpgsql
stable
-- definer: service_role has no rights on the internal schema.
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  arguments knowledge_internal.search_arguments;
begin
  arguments.query_embedding := fuse_knowledge_candidates.query_embedding;
  arguments.query_text := fuse_knowledge_candidates.query_text;
  arguments.match_count := fuse_knowledge_candidates.match_count;
  arguments.match_threshold := fuse_knowledge_candidates.match_threshold;
  arguments.vector_weight := fuse_knowledge_candidates.vector_weight;
  arguments.text_weight := fuse_knowledge_candidates.text_weight;
  arguments.filter_type := fuse_knowledge_candidates.filter_type;
  arguments.search_mode := fuse_knowledge_candidates.search_mode;
  arguments.pool_size := fuse_knowledge_candidates.pool_size;
  arguments.rrf_k := fuse_knowledge_candidates.rrf_k;
  arguments.fusion := fuse_knowledge_candidates.fusion;
  arguments.filters := fuse_knowledge_candidates.filters;
  arguments.date_from := fuse_knowledge_candidates.date_from;
  arguments.date_to := fuse_knowledge_candidates.date_to;
  arguments.collections := fuse_knowledge_candidates.collections;
  arguments.viewer_id := fuse_knowledge_candidates.viewer_id;
  arguments.public_only := fuse_knowledge_candidates.public_only;
  arguments.one_per_document := fuse_knowledge_candidates.one_per_document;
  arguments.neighbor_window := fuse_knowledge_candidates.neighbor_window;
  arguments.recency_half_life := fuse_knowledge_candidates.recency_half_life;
  arguments.match_offset := fuse_knowledge_candidates.match_offset;
  arguments.snippet := fuse_knowledge_candidates.snippet;
  arguments.formulations := fuse_knowledge_candidates.formulations;
  arguments.viewer_groups := fuse_knowledge_candidates.viewer_groups;
  arguments.on_bad_embedding := fuse_knowledge_candidates.on_bad_embedding;
  arguments.prefix_last := fuse_knowledge_candidates.prefix_last;
  arguments := knowledge_internal.use_readings(arguments, readings);
  perform set_config('knowledge_internal.readings', '', true),
          knowledge_internal.check_candidates(candidates);
  return knowledge_internal.fused_candidates(arguments, candidates);
end
$$;

comment on function public.fuse_knowledge_candidates is
  'The third step of a search in several databases: the page, best hit first, from candidates, an '
  'array of what knowledge_candidates returned in each database. shard: the place in this array of '
  'the one that has the hit. It fuses as hybrid_search_knowledge_chunks does and reads no chunks, '
  'so any of the databases can do it. Raises 22023 as the search does, and for readings or '
  'candidates of another form.';

revoke all on function public.fuse_knowledge_candidates from public, anon, authenticated;
grant execute on function public.fuse_knowledge_candidates to service_role;

create function public.knowledge_candidate_hits(
  query_embedding extensions.vector default null,
  query_text text default null,
  match_count integer default 10,
  match_threshold double precision default 0.0,
  vector_weight double precision default 1.0,
  text_weight double precision default 1.0,
  filter_type text default null,
  search_mode text default 'websearch',
  pool_size integer default 50,
  rrf_k double precision default 60,
  fusion text default null,
  filters jsonb default null,
  date_from date default null,
  date_to date default null,
  collections text[] default null,
  viewer_id uuid default null,
  public_only boolean default false,
  one_per_document boolean default false,
  neighbor_window integer default 0,
  recency_half_life double precision default null,
  match_offset integer default 0,
  snippet boolean default false,
  formulations jsonb default null,
  viewer_groups text[] default null,
  on_bad_embedding text default 'error',
  prefix_last boolean default false,
  readings jsonb default null,
  page jsonb default null
)
returns setof public.knowledge_search_hit
language plpgsql
stable
-- definer: callers have no grant on the tables, the arguments decide which rows are read.
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  arguments knowledge_internal.search_arguments;
begin
  arguments.query_embedding := knowledge_candidate_hits.query_embedding;
  arguments.query_text := knowledge_candidate_hits.query_text;
  arguments.match_count := knowledge_candidate_hits.match_count;
  arguments.match_threshold := knowledge_candidate_hits.match_threshold;
  arguments.vector_weight := knowledge_candidate_hits.vector_weight;
  arguments.text_weight := knowledge_candidate_hits.text_weight;
  arguments.filter_type := knowledge_candidate_hits.filter_type;
  arguments.search_mode := knowledge_candidate_hits.search_mode;
  arguments.pool_size := knowledge_candidate_hits.pool_size;
  arguments.rrf_k := knowledge_candidate_hits.rrf_k;
  arguments.fusion := knowledge_candidate_hits.fusion;
  arguments.filters := knowledge_candidate_hits.filters;
  arguments.date_from := knowledge_candidate_hits.date_from;
  arguments.date_to := knowledge_candidate_hits.date_to;
  arguments.collections := knowledge_candidate_hits.collections;
  arguments.viewer_id := knowledge_candidate_hits.viewer_id;
  arguments.public_only := knowledge_candidate_hits.public_only;
  arguments.one_per_document := knowledge_candidate_hits.one_per_document;
  arguments.neighbor_window := knowledge_candidate_hits.neighbor_window;
  arguments.recency_half_life := knowledge_candidate_hits.recency_half_life;
  arguments.match_offset := knowledge_candidate_hits.match_offset;
  arguments.snippet := knowledge_candidate_hits.snippet;
  arguments.formulations := knowledge_candidate_hits.formulations;
  arguments.viewer_groups := knowledge_candidate_hits.viewer_groups;
  arguments.on_bad_embedding := knowledge_candidate_hits.on_bad_embedding;
  arguments.prefix_last := knowledge_candidate_hits.prefix_last;
  arguments := knowledge_internal.use_readings(arguments, readings);
  return query
  select hit.*
    from knowledge_internal.candidate_hits(arguments, knowledge_candidate_hits.page) as hit;
  perform set_config('knowledge_internal.readings', '', true);
end
$$;

comment on function public.knowledge_candidate_hits is
  'The last step of a search in several databases: the rows of those hits of a page that this one '
  'has, in the order of the page, as hybrid_search_knowledge_chunks returns them. page: what '
  'fuse_knowledge_candidates returned, or a part of it. A chunk that the arguments do not allow is '
  'not returned. Raises 22023 as the search does, and for readings or a page of another form.';

revoke all on function public.knowledge_candidate_hits from public, anon, authenticated;
grant execute on function public.knowledge_candidate_hits to service_role;

create function knowledge_internal.candidates(arguments knowledge_internal.search_arguments)
returns jsonb
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
-- The body sets it; with this clause the caller's value comes back at the end.
set plan_cache_mode = auto
-- Compiling the plan, or starting workers, takes longer than the search.
set jit = off
set max_parallel_workers_per_gather = 0
-- The planner does not count the cost of reading long vectors and texts outside their row. Without
-- sorts it takes the vector index for the nearest rows; without sequential scans, the text index.
set enable_sort = off
set enable_seqscan = off
-- The planner overestimates how many rows the text condition matches, and would combine the text
-- index with a scan of a filter's whole index.
set cpu_index_tuple_cost = 0.5
as $$
declare
  questions knowledge_internal.search_question[];
  analyses knowledge_internal.query_analysis[];
  query_embedding extensions.vector := arguments.query_embedding;
  query_text text := arguments.query_text;
  match_count integer := arguments.match_count;
  match_threshold double precision := arguments.match_threshold;
  vector_weight double precision := arguments.vector_weight;
  text_weight double precision := arguments.text_weight;
  filter_type text := arguments.filter_type;
  search_mode text := arguments.search_mode;
  pool_size integer := arguments.pool_size;
  rrf_k double precision := arguments.rrf_k;
  fusion text := arguments.fusion;
  filters jsonb := arguments.filters;
  date_from date := arguments.date_from;
  date_to date := arguments.date_to;
  collections text[] := arguments.collections;
  viewer_id uuid := arguments.viewer_id;
  public_only boolean := arguments.public_only;
  one_per_document boolean := arguments.one_per_document;
  neighbor_window integer := arguments.neighbor_window;
  recency_half_life double precision := arguments.recency_half_life;
  match_offset integer := arguments.match_offset;
  snippet boolean := arguments.snippet;
  formulations jsonb := arguments.formulations;
  viewer_groups text[] := arguments.viewer_groups;
  on_bad_embedding text := arguments.on_bad_embedding;
  prefix_last boolean := arguments.prefix_last;
  wanted knowledge_internal.chunk_filter;
  plan knowledge_internal.search_plan;
  callers knowledge_internal.search_settings;
  candidates jsonb;
begin
  perform knowledge_internal.check_search_arguments(
    match_count, match_threshold, vector_weight, text_weight, search_mode, pool_size, rrf_k, fusion,
    public_only, one_per_document, neighbor_window, recency_half_life, match_offset, snippet,
    viewer_groups, on_bad_embedding, prefix_last
  );
  wanted := case
    when num_nonnulls(filters, filter_type, date_from, date_to) > 0 or public_only
      then knowledge_internal.compile_filter(filters, filter_type, date_from, date_to, public_only)
  end;
  if fusion is null or fusion = 'stored_or_auto' then
    select * into fusion, vector_weight, text_weight from knowledge_internal.settled_fusion(
      fusion, vector_weight, text_weight, coalesce(collections, wanted.collections)
    );
  end if;
  plan := knowledge_internal.plan_search(
    pool_size, match_count, wanted, viewer_id, viewer_groups, collections
  );
  questions := knowledge_internal.search_questions(
    query_embedding, query_text, formulations, plan.dimensions, vector_weight > 0, text_weight > 0,
    on_bad_embedding
  );
  collections := case
    when collections is not null
      then knowledge_internal.checked_collections(collections, cardinality(questions))
  end;
  analyses := knowledge_internal.analyse_questions(
    questions, search_mode, wanted, viewer_id, viewer_groups, collections, prefix_last
  );
  callers := knowledge_internal.use_search_settings(plan);
  with recursive
  visible_chunks as not materialized (
    select chunk.*
      from knowledge_internal.searchable_chunks as chunk
     where chunk.status = 'active'
       and (
         not plan.is_filtered
         or (num_nonnulls(viewer_id, viewer_groups) = 0 or chunk.visibility = 'public'
             or chunk.owner_id = viewer_id or chunk.allowed_groups && viewer_groups)
           and (wanted.visibilities is null or chunk.visibility = any (wanted.visibilities))
           and (wanted.sensitivities is null or chunk.sensitivity = any (wanted.sensitivities)
             or chunk.sensitivity is null and 'sensitivity' = any (wanted.or_null))
           and (wanted.owner_ids is null or chunk.owner_id = any (wanted.owner_ids)
             or chunk.owner_id is null and 'owner_id' = any (wanted.or_null))
           and (wanted.hidden is null or not wanted.hidden && array[
             'visibility=' || chunk.visibility, 'owner_id' || coalesce('=' || chunk.owner_id, ''),
             'sensitivity' || coalesce('=' || chunk.sensitivity, '')
           ])
       )
  ),
  matching_chunks as not materialized (
    select chunk.*
      from visible_chunks as chunk
     where coalesce(chunk.collection <> all (wanted.excluded_collections), true)
       and (not plan.is_filtered
        or (wanted.knowledge_types is null or chunk.knowledge_type = any (wanted.knowledge_types))
          and (wanted.source_origins is null or chunk.source_origin = any (wanted.source_origins))
          and (wanted.collections is null or chunk.collection = any (wanted.collections))
          and (wanted.languages is null or chunk.language = any (wanted.languages))
          and (wanted.embedding_models is null
            or chunk.embedding_model = any (wanted.embedding_models)
            or chunk.embedding_model is null and 'embedding_model' = any (wanted.or_null))
          and (wanted.document_ids is null or chunk.document_id = any (wanted.document_ids)
            or chunk.document_id is null and 'document_id' = any (wanted.or_null))
          and (wanted.source_ids is null or chunk.source_id = any (wanted.source_ids)
            or chunk.source_id is null and 'source_id' = any (wanted.or_null))
          and (wanted.chunk_indexes is null or chunk.chunk_index <@ wanted.chunk_indexes
            or chunk.chunk_index is null and 'chunk_index' = any (wanted.or_null))
          and (wanted.document_dates is null or chunk.document_date <@ wanted.document_dates
            or chunk.document_date is null and 'document_date' = any (wanted.or_null))
          -- The index on document_date serves these two, not the multirange above.
          and (plan.first_date is null or chunk.document_date >= plan.first_date)
          and (plan.end_date is null or chunk.document_date < plan.end_date)
          and (wanted.created is null or chunk.created_at <@ wanted.created)
          and (wanted.updated is null or chunk.updated_at <@ wanted.updated)
          and (wanted.excluded is null or not wanted.excluded && array[
            'knowledge_type=' || chunk.knowledge_type, 'source_origin=' || chunk.source_origin,
            'language=' || chunk.language, 'document_id' || coalesce('=' || chunk.document_id, ''),
            'embedding_model' || coalesce('=' || chunk.embedding_model, ''),
            'source_id' || coalesce('=' || chunk.source_id, '')
          ])
          and (wanted.required_metadata is null or chunk.metadata @> wanted.required_metadata)
          and (wanted.alternative_metadata is null
            or chunk.metadata @> any (wanted.alternative_metadata))
          and (wanted.metadata_conditions is null
            or knowledge_internal.passes(chunk.metadata, wanted.metadata_conditions)))
  ),
  -- Lists. Each question is ranked by itself in each collection.
  lists as materialized (
    select row_number() over (order by question.ordinality, scope.collection) as list_id,
           question.*, scope.collection,
           knowledge_internal.indexed_direction(question.embedding) as direction,
           knowledge_internal.embedding_bits(question.embedding) as embedding_bits,
           coalesce(matching.chunks <= plan.most_compared, plan.is_small_corpus) as is_narrow,
           question.is_partial and coalesce(
             matching.chunks > greatest(
               plan.most_read_by_filter,
               case when question.embedding is not null then plan.most_compared end
             ),
             true
           ) as is_drawn
      from rows from (unnest(questions), unnest(analyses)) with ordinality as question
     cross join unnest(coalesce(collections, array[null::text])) as scope (collection)
     cross join lateral knowledge_internal.estimated_chunks(plan, scope.collection)
             as matching (chunks)
  ),
  -- Vector leg.
  nearest_by_index as materialized (
    select lists.list_id, nearest.*
      from lists
     cross join lateral (
             select chunk.id, chunk.content_tsv, chunk.bm25,
                    chunk.embedding operator(extensions.<=>) lists.embedding as distance
               from matching_chunks as chunk
              where chunk.embedding is not null
                and (collections is null or chunk.collection = lists.collection)
              order by chunk.indexed_embedding operator(extensions.<=>) lists.direction
              limit plan.index_rows
           ) as nearest
     where lists.embedding is not null and not lists.is_narrow
  ),
  -- Few rows match, or the index scan stopped early.
  compared_lists as materialized (
    select * from lists
     where lists.embedding is not null
       and plan.index_rows > (select count(*) from nearest_by_index where list_id = lists.list_id)
  ),
  nearest_by_comparison as materialized (
    select lists.list_id, nearest.*
      from compared_lists as lists
     cross join lateral (
             select near.id, near.content_tsv, near.bm25,
                    near.embedding operator(extensions.<=>) lists.embedding as distance
               from (
                 select chunk.id, chunk.embedding, chunk.content_tsv, chunk.bm25
                   from matching_chunks as chunk
                  where chunk.embedding is not null
                    and (collections is null or chunk.collection = lists.collection)
                  order by chunk.embedding_bits operator(extensions.<~>) lists.embedding_bits,
                           chunk.id
                  limit plan.compared_by_bits
               ) as near
              order by distance, near.id
              limit plan.compared_exactly
           ) as nearest
  ),
  neighbours as materialized (
    select nearest.*, 1 - nearest.distance as similarity,
           row_number() over (
             partition by nearest.list_id order by nearest.distance, nearest.id
           ) as vector_rank
      from (
        select * from nearest_by_comparison
        union all
        select * from nearest_by_index where list_id not in (select list_id from compared_lists)
      ) as nearest
  ),
  vector_results as (
    select hit.list_id, hit.id, hit.similarity, hit.vector_rank, hit.content_tsv, hit.bm25
      from neighbours as hit
     where hit.vector_rank <= plan.pool and hit.similarity >= match_threshold
  ),
  -- Text leg. Where another collection has rows with what is required, it stays required in all.
  last_draws as materialized (
    select lists.list_id, drawn.*,
           case when min(drawn.draw) over (partition by lists.ordinality) = 4
             then lists.relaxed_parts end as relaxed_parts
      from lists
     cross join lateral knowledge_internal.drawn_rows(
             analyses[lists.ordinality], lists.collection, lists.is_narrow, lists.is_drawn, wanted,
             plan, viewer_id, viewer_groups
           ) as drawn
     where lists.matching_query is not null
  ),
  text_results as (
    select last_draws.list_id, hit.id, hit.text_score, hit.text_rank, hit.embedding,
           hit.has_every_word
      from last_draws
      join lists on lists.list_id = last_draws.list_id
     cross join lateral knowledge_internal.exact_scores(
             last_draws.ids, plan.pool, lists.lexemes, lists.scored_weights,
             lists.readings, lists.mean_length,
             case when last_draws.draw = 4 then lists.relaxed_bonuses else lists.bonuses end
           ) as hit
     where last_draws.draw < 4 or last_draws.relaxed_parts is not null
  ),
  found as (
    select list_id, id, neighbour.similarity, neighbour.vector_rank, neighbour.content_tsv,
           neighbour.bm25, text_results.text_score, text_results.text_rank, text_results.embedding,
           text_results.has_every_word
      from (
        select * from neighbours where vector_rank <= greatest(plan.pool, plan.typical_rank)
      ) as neighbour
      full outer join text_results using (list_id, id)
  ),
  -- The score of the leg that missed a row, too.
  scored as (
    select found.list_id, found.id, found.similarity, found.text_score,
           coalesce(
             found.similarity,
             case when found.text_rank <= plan.cosine_ranks
               then 1 - (found.embedding operator(extensions.<=>) lists.embedding) end
           ) as cosine,
           case when found.vector_rank <= plan.best_hits
             then -(found.bm25 operator(extensions.<#>) lists.scored_vector)
           end as nearest_score,
           case when found.text_rank = 1 then found.has_every_word end as is_complete,
           coalesce(
             found.text_score,
             case when lists.is_optional or found.content_tsv @@ last_draws.query
               then -(found.bm25 operator(extensions.<#>) lists.scored_vector)
                      + case when lists.bonuses is null then 0
                          else knowledge_internal.bonus(found.content_tsv, lists.bonuses) end
             end
           ) as bm25_score
      from found
      join lists on lists.list_id = found.list_id
      left join last_draws on last_draws.list_id = found.list_id
  )
  select jsonb_build_object(
           'lists', (
             select coalesce(
                      jsonb_agg(
                        jsonb_build_object(
                          'list_id', lists.list_id,
                          'formulation', lists.ordinality,
                          'draw', last_draws.draw,
                          'relaxed_parts', last_draws.relaxed_parts,
                          'coverage_weights', lists.coverage_weights,
                          'cosine_spread', lists.cosine_spread,
                          'mutual_neighbours', lists.mutual_neighbours,
                          'identifier_bonus', (lists.bonuses).identifier_bonus
                        )
                      ),
                      '[]'
                    )
               from lists
               left join last_draws on last_draws.list_id = lists.list_id
           ),
           'rows', (
             select coalesce(
                      jsonb_agg(
                        jsonb_strip_nulls(
                          jsonb_build_object(
                            'list_id', scored.list_id,
                            'id', scored.id,
                            'similarity', scored.similarity,
                            'nearest_score', scored.nearest_score,
                            'text_score', scored.text_score,
                            'is_complete', scored.is_complete,
                            'cosine', scored.cosine,
                            'bm25_score', scored.bm25_score,
                            'document_id', chunk.document_id,
                            'external_key', document.external_key,
                            'chunk_index', chunk.chunk_index,
                            'collection', chunk.collection,
                            'document_date', chunk.document_date,
                            'written_at', coalesce(document.updated_at, chunk.updated_at)
                          )
                        )
                      ),
                      '[]'
                    )
               from scored
               join public.knowledge_chunks as chunk on chunk.id = scored.id
               left join public.knowledge_documents as document on document.id = chunk.document_id
           )
         )
    into candidates;
  perform knowledge_internal.restore_settings(callers);
  return candidates;
end
$$;

comment on function knowledge_internal.candidates(knowledge_internal.search_arguments) is
  'The result of knowledge_candidates.';

create function knowledge_internal.fused_candidates(
  arguments knowledge_internal.search_arguments, candidates jsonb
)
returns jsonb
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
as $$
declare
  query_embedding extensions.vector := arguments.query_embedding;
  query_text text := arguments.query_text;
  match_count integer := arguments.match_count;
  match_threshold double precision := arguments.match_threshold;
  vector_weight double precision := arguments.vector_weight;
  text_weight double precision := arguments.text_weight;
  filter_type text := arguments.filter_type;
  search_mode text := arguments.search_mode;
  pool_size integer := arguments.pool_size;
  rrf_k double precision := arguments.rrf_k;
  fusion text := arguments.fusion;
  filters jsonb := arguments.filters;
  date_from date := arguments.date_from;
  date_to date := arguments.date_to;
  collections text[] := arguments.collections;
  viewer_id uuid := arguments.viewer_id;
  public_only boolean := arguments.public_only;
  one_per_document boolean := arguments.one_per_document;
  neighbor_window integer := arguments.neighbor_window;
  recency_half_life double precision := arguments.recency_half_life;
  match_offset integer := arguments.match_offset;
  snippet boolean := arguments.snippet;
  formulations jsonb := arguments.formulations;
  viewer_groups text[] := arguments.viewer_groups;
  on_bad_embedding text := arguments.on_bad_embedding;
  prefix_last boolean := arguments.prefix_last;
  questions knowledge_internal.search_question[];
  wanted knowledge_internal.chunk_filter;
  plan knowledge_internal.search_plan;
begin
  perform knowledge_internal.check_search_arguments(
    match_count, match_threshold, vector_weight, text_weight, search_mode, pool_size, rrf_k, fusion,
    public_only, one_per_document, neighbor_window, recency_half_life, match_offset, snippet,
    viewer_groups, on_bad_embedding, prefix_last
  );
  wanted := case
    when num_nonnulls(filters, filter_type, date_from, date_to) > 0 or public_only
      then knowledge_internal.compile_filter(filters, filter_type, date_from, date_to, public_only)
  end;
  if fusion is null or fusion = 'stored_or_auto' then
    select * into fusion, vector_weight, text_weight from knowledge_internal.settled_fusion(
      fusion, vector_weight, text_weight, coalesce(collections, wanted.collections)
    );
  end if;
  plan := knowledge_internal.plan_search(pool_size, match_count, null, null, null, null);
  questions := knowledge_internal.search_questions(
    query_embedding, query_text, formulations, plan.dimensions, vector_weight > 0, text_weight > 0,
    on_bad_embedding
  );
  return (
    with
    lists as materialized (
      select * from knowledge_internal.candidate_lists(candidates)
    ),
    -- Where a database has rows with what is required, it stays required in all.
    dropped as materialized (
      select lists.shard, lists.list_id
        from lists
       where lists.draw = 4
         and exists (
               select from lists as strict
                where strict.formulation = lists.formulation
                  and strict.draw < 4
             )
    ),
    sent as materialized (
      select row.*, (row.shard, row.list_id) in (select shard, list_id from dropped) as is_dropped
        from knowledge_internal.candidate_rows(candidates) as row
    ),
    chunks as materialized (
      select distinct on (sent.id)
             sent.id, sent.shard, sent.document_id, sent.chunk_index, sent.collection,
             sent.document_date
        from sent
       order by sent.id, sent.shard
    ),
    neighbours as materialized (
      select sent.*,
             row_number() over (
               partition by sent.list_id order by sent.similarity desc, sent.id
             ) as vector_rank
        from sent
       where sent.similarity is not null
    ),
    vector_results as (
      select * from neighbours
       where vector_rank <= plan.pool and similarity >= match_threshold
    ),
    text_results as materialized (
      select ranked.*
        from (
          select sent.*,
                 row_number() over (
                   partition by sent.list_id order by sent.text_score desc, sent.id
                 ) as text_rank
            from sent
           where sent.text_score is not null and not sent.is_dropped
        ) as ranked
       where ranked.text_rank <= plan.pool
    ),
    combined as (
      select list_id, id, vector_results.vector_rank, text_results.text_rank,
             vector_results.similarity, text_results.text_score,
             coalesce(
               vector_results.cosine,
               case when text_results.text_rank <= plan.cosine_ranks then text_results.cosine end
             ) as cosine,
             coalesce(
               text_results.text_score,
               case when not vector_results.is_dropped then vector_results.bm25_score end
             ) as bm25_score
        from vector_results
        full outer join text_results using (list_id, id)
    ),
    evidence as materialized (
      select list.list_id, list.identifier_bonus, leg.*
        from (select distinct on (list_id) * from lists order by list_id, shard) as list
        left join lateral knowledge_internal.leg_evidence(
               array(
                 select similarity from neighbours
                  where list_id = list.list_id order by vector_rank
               ),
               array(
                 select nearest_score from neighbours
                  where list_id = list.list_id and vector_rank <= plan.best_hits
               ),
               array(
                 select text_score from text_results
                  where list_id = list.list_id order by text_rank
               ),
               (
                 select is_complete from text_results
                  where list_id = list.list_id and text_rank = 1
               ),
               plan.typical_rank, list.cosine_spread, list.mutual_neighbours, list.coverage_weights
             ) as leg on fusion = 'auto'
    ),
    completed as (
      select combined.list_id, combined.id, combined.vector_rank, combined.text_rank,
             combined.similarity, combined.text_score,
             vector_weight * evidence.vector_evidence as cosine_weight,
             text_weight * evidence.text_evidence as bm25_weight,
             coalesce(
               combined.cosine,
               case when combined.text_rank <= plan.cosine_ranks
                 then coalesce(evidence.typical_cosine, 0) end
             ) as cosine,
             coalesce(combined.bm25_score, 0) as bm25_score,
             coalesce(evidence.identifier_bonus, 'infinity') as identifier_bonus
        from combined
        join evidence on evidence.list_id = combined.list_id
    ),
  ranges as (
    select hit.list_id,
           max(hit.bm25_score) as best_bm25_score,
           min(hit.similarity) as least_similarity, max(hit.similarity) as best_similarity,
           case when count(hit.similarity) = 0 then 0 else min(hit.text_score) end
             as least_text_score, max(hit.text_score) as best_text_score,
           min(hit.cosine) as least_cosine, max(hit.cosine) as best_cosine,
           1 + bool_or(hit.bm25_score >= hit.identifier_bonus)::integer as tiers
      from completed as hit
     group by hit.list_id
  ),
  scored as (
    select hit.id,
           min(hit.vector_rank) as vector_rank, min(hit.text_rank) as text_rank,
           max(hit.similarity) as similarity, max(hit.text_score) as text_score,
           sum(
             case fusion
               when 'rrf' then coalesce(vector_weight / (rrf_k + hit.vector_rank), 0)
                 + coalesce(text_weight / (rrf_k + hit.text_rank), 0)
               when 'relative_score' then vector_weight
                 * knowledge_internal.min_max(hit.similarity, least_similarity, best_similarity)
                 + text_weight
                 * knowledge_internal.min_max(hit.text_score, least_text_score, best_text_score)
               -- 1 is the best of both legs; rows with an identifier asked for have over 1/2.
               else (
                 coalesce(
                   (
                     cosine_weight * coalesce(cosine - least_cosine, 0) + bm25_weight * bm25_score
                   ) / nullif(
                     cosine_weight * (best_cosine - least_cosine) + bm25_weight * best_bm25_score, 0
                   ),
                   1
                 ) + (bm25_score >= identifier_bonus)::integer
               ) / tiers / cardinality(questions)
             end
           ) as rrf_score
      from completed as hit
      join ranges using (list_id)
     group by hit.id
  ),
  ordered as (
    select scored.*, chunk.chunk_index, chunk.collection, aged.score,
           coalesce(case when one_per_document then chunk.document_id end, scored.id) as unit,
           row_number() over (
             order by aged.score desc, least(scored.vector_rank, scored.text_rank), scored.id
           ) as place
      from scored
      left join chunks as chunk
        on (one_per_document or recency_half_life is not null) and chunk.id = scored.id
     cross join lateral knowledge_internal.aged_score(
             scored.rrf_score, chunk.document_date, recency_half_life
           ) as aged (score)
  ),
  -- A document takes the place and the score of its best hit, and shows its best chunk.
  units as (
    select distinct on (ordered.unit)
           ordered.*,
           max(ordered.score) over (partition by ordered.unit) as unit_score,
           array_agg(ordered.collection) over (partition by ordered.unit) as collections,
           min(ordered.place) over (partition by ordered.unit) as unit_place
      from ordered
     order by ordered.unit, ordered.chunk_index is null, ordered.place
  ),
  page as (
    select units.*, count(*) over () as total_count
      from units
     order by units.unit_place, units.id
     limit match_count offset match_offset
  ),
    shown as (
      select page.*, chunks.shard from page join chunks on chunks.id = page.id
    )
    select jsonb_build_object(
             'hits', (
               select coalesce(
                        jsonb_agg(
                          jsonb_build_object(
                            'id', shown.id, 'shard', shown.shard, 'place', shown.unit_place,
                            'vector_rank', shown.vector_rank, 'text_rank', shown.text_rank,
                            'similarity', shown.similarity, 'text_score', shown.text_score,
                            'score', shown.unit_score, 'collections', shown.collections,
                            'total_count', shown.total_count
                          )
                          order by shown.unit_place
                        ),
                        '[]'
                      )
                 from shown
             ),
             'pool_ended', exists (
               select from completed where greatest(vector_rank, text_rank) = plan.pool
             ),
             'relaxed_parts', (
               select jsonb_agg(distinct part.name)
                 from lists
                cross join unnest(lists.relaxed_parts) as part (name)
                where (lists.shard, lists.list_id) not in (select shard, list_id from dropped)
             )
           )
  );
end
$$;

comment on function knowledge_internal.fused_candidates is
  'The result of fuse_knowledge_candidates.';

create function knowledge_internal.candidate_hits(
  arguments knowledge_internal.search_arguments, fused jsonb
)
returns setof public.knowledge_search_hit
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
-- The rows are looked up by their ids, and few.
set enable_seqscan = off
set jit = off
as $$
declare
  query_embedding extensions.vector := arguments.query_embedding;
  query_text text := arguments.query_text;
  match_count integer := arguments.match_count;
  match_threshold double precision := arguments.match_threshold;
  vector_weight double precision := arguments.vector_weight;
  text_weight double precision := arguments.text_weight;
  filter_type text := arguments.filter_type;
  search_mode text := arguments.search_mode;
  pool_size integer := arguments.pool_size;
  rrf_k double precision := arguments.rrf_k;
  fusion text := arguments.fusion;
  filters jsonb := arguments.filters;
  date_from date := arguments.date_from;
  date_to date := arguments.date_to;
  collections text[] := arguments.collections;
  viewer_id uuid := arguments.viewer_id;
  public_only boolean := arguments.public_only;
  one_per_document boolean := arguments.one_per_document;
  neighbor_window integer := arguments.neighbor_window;
  recency_half_life double precision := arguments.recency_half_life;
  match_offset integer := arguments.match_offset;
  snippet boolean := arguments.snippet;
  formulations jsonb := arguments.formulations;
  viewer_groups text[] := arguments.viewer_groups;
  on_bad_embedding text := arguments.on_bad_embedding;
  prefix_last boolean := arguments.prefix_last;
  questions knowledge_internal.search_question[];
  analyses knowledge_internal.query_analysis[];
  asked knowledge_internal.asked_words;
  wanted knowledge_internal.chunk_filter;
  plan knowledge_internal.search_plan;
begin
  if jsonb_typeof(fused -> 'hits') is distinct from 'array' then
    raise exception 'page must be an object with hits, as fuse_knowledge_candidates returned it'
      using errcode = '22023';
  end if;
  perform knowledge_internal.check_search_arguments(
    match_count, match_threshold, vector_weight, text_weight, search_mode, pool_size, rrf_k, fusion,
    public_only, one_per_document, neighbor_window, recency_half_life, match_offset, snippet,
    viewer_groups, on_bad_embedding, prefix_last
  );
  wanted := case
    when num_nonnulls(filters, filter_type, date_from, date_to) > 0 or public_only
      then knowledge_internal.compile_filter(filters, filter_type, date_from, date_to, public_only)
  end;
  if fusion is null or fusion = 'stored_or_auto' then
    select * into fusion, vector_weight, text_weight from knowledge_internal.settled_fusion(
      fusion, vector_weight, text_weight, coalesce(collections, wanted.collections)
    );
  end if;
  plan := knowledge_internal.plan_search(
    pool_size, match_count, wanted, viewer_id, viewer_groups, collections
  );
  questions := knowledge_internal.search_questions(
    query_embedding, query_text, formulations, plan.dimensions, vector_weight > 0, text_weight > 0,
    on_bad_embedding
  );
  collections := case
    when collections is not null
      then knowledge_internal.checked_collections(collections, cardinality(questions))
  end;
  if plan.is_empty then
    return;
  end if;
  analyses := knowledge_internal.analyse_questions(
    questions, search_mode, wanted, viewer_id, viewer_groups, collections, prefix_last
  );
  asked := knowledge_internal.asked_words(analyses);
  return query
  with
  visible_chunks as not materialized (
    select chunk.*
      from knowledge_internal.searchable_chunks as chunk
     where chunk.status = 'active'
       and (
         not plan.is_filtered
         or (num_nonnulls(viewer_id, viewer_groups) = 0 or chunk.visibility = 'public'
             or chunk.owner_id = viewer_id or chunk.allowed_groups && viewer_groups)
           and (wanted.visibilities is null or chunk.visibility = any (wanted.visibilities))
           and (wanted.sensitivities is null or chunk.sensitivity = any (wanted.sensitivities)
             or chunk.sensitivity is null and 'sensitivity' = any (wanted.or_null))
           and (wanted.owner_ids is null or chunk.owner_id = any (wanted.owner_ids)
             or chunk.owner_id is null and 'owner_id' = any (wanted.or_null))
           and (wanted.hidden is null or not wanted.hidden && array[
             'visibility=' || chunk.visibility, 'owner_id' || coalesce('=' || chunk.owner_id, ''),
             'sensitivity' || coalesce('=' || chunk.sensitivity, '')
           ])
       )
  ),
  matching_chunks as not materialized (
    select chunk.*
      from visible_chunks as chunk
     where coalesce(chunk.collection <> all (wanted.excluded_collections), true)
       and (not plan.is_filtered
        or (wanted.knowledge_types is null or chunk.knowledge_type = any (wanted.knowledge_types))
          and (wanted.source_origins is null or chunk.source_origin = any (wanted.source_origins))
          and (wanted.collections is null or chunk.collection = any (wanted.collections))
          and (wanted.languages is null or chunk.language = any (wanted.languages))
          and (wanted.embedding_models is null
            or chunk.embedding_model = any (wanted.embedding_models)
            or chunk.embedding_model is null and 'embedding_model' = any (wanted.or_null))
          and (wanted.document_ids is null or chunk.document_id = any (wanted.document_ids)
            or chunk.document_id is null and 'document_id' = any (wanted.or_null))
          and (wanted.source_ids is null or chunk.source_id = any (wanted.source_ids)
            or chunk.source_id is null and 'source_id' = any (wanted.or_null))
          and (wanted.chunk_indexes is null or chunk.chunk_index <@ wanted.chunk_indexes
            or chunk.chunk_index is null and 'chunk_index' = any (wanted.or_null))
          and (wanted.document_dates is null or chunk.document_date <@ wanted.document_dates
            or chunk.document_date is null and 'document_date' = any (wanted.or_null))
          -- The index on document_date serves these two, not the multirange above.
          and (plan.first_date is null or chunk.document_date >= plan.first_date)
          and (plan.end_date is null or chunk.document_date < plan.end_date)
          and (wanted.created is null or chunk.created_at <@ wanted.created)
          and (wanted.updated is null or chunk.updated_at <@ wanted.updated)
          and (wanted.excluded is null or not wanted.excluded && array[
            'knowledge_type=' || chunk.knowledge_type, 'source_origin=' || chunk.source_origin,
            'language=' || chunk.language, 'document_id' || coalesce('=' || chunk.document_id, ''),
            'embedding_model' || coalesce('=' || chunk.embedding_model, ''),
            'source_id' || coalesce('=' || chunk.source_id, '')
          ])
          and (wanted.required_metadata is null or chunk.metadata @> wanted.required_metadata)
          and (wanted.alternative_metadata is null
            or chunk.metadata @> any (wanted.alternative_metadata))
          and (wanted.metadata_conditions is null
            or knowledge_internal.passes(chunk.metadata, wanted.metadata_conditions)))
  ),
  page as (
    select hit.id, hit.place as unit_place, hit.vector_rank, hit.text_rank, hit.similarity,
           hit.text_score, hit.score as unit_score, hit.collections, hit.total_count
      from jsonb_to_recordset(fused -> 'hits') as hit (
             id uuid, place bigint, vector_rank bigint, text_rank bigint, similarity float8,
             text_score float8, score float8, collections text[], total_count bigint
           )
      join matching_chunks as allowed on allowed.id = hit.id
  ),
  last_draws as (
    select array(
             select part.name
               from jsonb_array_elements_text(
                      coalesce(nullif(fused -> 'relaxed_parts', 'null'), '[]')
                    ) as part (name)
           ) as relaxed_parts
  )
  select chunk.id, chunk.content, chunk.knowledge_type, chunk.document_id, chunk.chunk_index,
         chunk.source_origin, chunk.metadata, page.unit_score, page.vector_rank, page.text_rank,
         page.similarity, page.text_score,
         case when page.text_rank is null then 'vector' when page.vector_rank is null then 'text'
           else 'both' end,
         knowledge_internal.matched_words(chunk.content_tsv, asked),
         document.title, document.source_url, chunk.collection, chunk.document_date,
         case
           when snippet then knowledge_internal.marked_snippet(
             chunk.content, chunk.content_tsv, chunk.language, asked
           )
         end,
         case when neighbor_window > 0 then coalesce(
           (
             select string_agg(
                      neighbour.content, E'\n[CHUNK BOUNDARY]\n'
                      order by neighbour.chunk_index, neighbour.id
                    )
               from visible_chunks as neighbour
              where neighbour.document_id = chunk.document_id
                and neighbour.collection = chunk.collection
                and neighbour.chunk_index between chunk.chunk_index::bigint - neighbor_window
                                              and chunk.chunk_index::bigint + neighbor_window
           ),
           chunk.content
         )
         end,
         page.total_count, (fused ->> 'pool_ended')::boolean,
         chunk.heading, chunk.sensitivity,
         coalesce(knowledge_internal.distinct_names(page.collections), array[chunk.collection]),
         (
           select count(sibling.chunk_index)::integer from visible_chunks as sibling
            where sibling.document_id = chunk.document_id
         ), document.external_key, document.source_row,
         least(1, page.unit_score / (select knowledge_internal.best_fused_score( -- once, not by row
           fusion, questions, vector_weight, text_weight, rrf_k
         ))),
         (select knowledge_internal.search_notes(
           questions, analyses, array(select distinct unnest(relaxed_parts) from last_draws)
         ))
    from page
    join public.knowledge_chunks as chunk on chunk.id = page.id
    left join public.knowledge_documents as document
      on document.id = chunk.document_id
     and (document.visibility = 'public' or not public_only and (
       num_nonnulls(viewer_id, viewer_groups) = 0 or document.owner_id = viewer_id
         or document.allowed_groups && viewer_groups))
   order by page.unit_place;
exception
  when invalid_parameter_value then
    raise;
  when data_exception then
    raise exception 'page: %', left(sqlerrm, 200)
      using errcode = '22023', hint = 'Send what fuse_knowledge_candidates returned.';
end
$$;

comment on function knowledge_internal.candidate_hits is
  'The result of knowledge_candidate_hits.';

notify pgrst, 'reload schema';
