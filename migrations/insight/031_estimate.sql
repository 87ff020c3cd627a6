-- 031_estimate: what a search would cost, before it is made, and how exact the vector index is.
-- Module: insight.
-- Adds: functions estimate_hybrid_search and nearest_by_effort. Locks nothing that exists.
-- Written from supabase/schemas/modules/insight/31_estimate.sql by `make baseline`: edit that file.

-- Milliseconds to find a chunk by its id and compare its embedding, or score its words, measured on
-- the sample of the statistics.
create function knowledge_internal.row_costs(
  asked_embedding extensions.vector, word_weights extensions.sparsevec,
  out compared double precision, out scored double precision
)
language plpgsql volatile security invoker set search_path = pg_catalog, pg_temp as $$
declare
  rounds constant integer := 3; -- the first one reads the pages
  sample_size constant integer := 100; -- chunks
  sample uuid[] := (
    select corpus.sample[:sample_size] from public.knowledge_corpus_statistics as corpus
  );
  begun_at timestamptz;
begin
  if coalesce(cardinality(sample), 0) = 0 then
    -- A small corpus has no sample.
    sample := array(
      select chunk.id
        from knowledge_internal.some_rows(
               knowledge_internal.row_scope(null, null, null, false, null), sample_size
             ) as chunk
    );
  end if;
  for round in 1 .. rounds loop
    begun_at := clock_timestamp();
    perform min(chunk.distance)
       from knowledge_internal.rows_by_id(sample, asked_embedding => asked_embedding) as chunk;
    compared := least(compared, extract(epoch from clock_timestamp() - begun_at) * 1000);
    begun_at := clock_timestamp();
    perform min(chunk.bm25 operator(extensions.<#>) word_weights)
       from knowledge_internal.rows_by_id(sample, has_bm25 => true) as chunk;
    scored := least(scored, extract(epoch from clock_timestamp() - begun_at) * 1000);
  end loop;
  compared := compared / greatest(cardinality(sample), 1);
  scored := scored / greatest(cardinality(sample), 1);
end
$$;

-- How the legs would find their rows for a question in one collection or in all, and how many rows
-- they would read, by the planner's statistics.
create function knowledge_internal.estimated_list(
  formulation integer, collection text, plan knowledge_internal.search_plan,
  out matching double precision, out vector_strategy text, out index_rows double precision,
  out compared_rows double precision, out text_strategy text, out text_rows double precision
)
-- Postgres allows no EXPLAIN in a stable function.
language plpgsql volatile security invoker set search_path = pg_catalog, pg_temp as $$
declare
  has_embedding constant boolean := plan.questions[formulation].embedding is not null;
  limits constant record := knowledge_internal.reading_limits(plan, collection, has_embedding);
  scan_tuples constant double precision := 20000; -- as in rank_all
  chunk_count constant double precision := (plan.settings).chunk_count;
  most_effort constant double precision := 20; -- as in candidate_rows
  question constant knowledge_internal.question := knowledge_internal.with_candidates(
    plan.questions[formulation], (plan.settings).document_count
  );
  share double precision;
  read_by_index double precision;
  read_query tsquery;
  planned json;
begin
  matching := coalesce(limits.matching, chunk_count);
  share := matching / greatest(chunk_count, 1);
  -- The index is read until enough rows pass the filter.
  read_by_index := greatest(plan.effort, limits.index_rows / greatest(share, 1e-9));
  index_rows := case
    when has_embedding and not limits.is_narrow then least(read_by_index, scan_tuples)
    else 0
  end;
  vector_strategy := case
    when not has_embedding then null
    when limits.is_narrow then 'compared: few rows'
    when read_by_index > scan_tuples then 'compared: the index stopped early'
    else 'index'
  end;
  compared_rows := case when vector_strategy like 'compared%' then matching else 0 end;

  if question.is_partial and coalesce(limits.matching > limits.most_read, true)
     and vector_strategy is distinct from 'compared: few rows'
  then
    text_strategy := 'candidates';
    read_query := question.candidate_query;
  elsif question.is_partial and limits.is_narrow then
    text_strategy := 'all rows: few pass the filters';
    text_rows := matching;
  elsif question.matching_query is not null then
    text_strategy := 'all rows';
    read_query := question.matching_query;
  end if;
  if read_query is not null then
    for planned in
      explain (format json)
      select
        from public.knowledge_chunks as chunk
       where chunk.status = 'active'
         and chunk.content_tsv @@ read_query
    loop
      text_rows := planned #>> '{0,Plan,Plan Rows}';
    end loop;
  end if;
  if text_strategy = 'candidates' and text_rows * share < plan.pool then
    text_strategy := 'more candidates: too few at first';
    text_rows := text_rows
      * (1 + least(most_effort, 5 + 4 * plan.pool / (1 + text_rows * share)));
  end if;
  text_rows := least(coalesce(text_rows, 0), chunk_count);
end
$$;

-- The nearest rows for the query_embedding of a search, as its vector leg finds them. effort: of
-- hnsw.ef_search; null: that of the search; 0: all rows in scope are compared, without the index.
create function knowledge_internal.nearest_by_effort(
  search jsonb, effort integer, out ids uuid[], out similarities double precision[],
  out strategy text, out ef_search integer, out milliseconds double precision
)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
-- Compiling takes longer than one comparison.
set jit = off as $$
declare
  callers constant text[] := array[
    current_setting('enable_indexscan'), current_setting('enable_seqscan')
  ];
  plan knowledge_internal.search_plan := knowledge_internal.plan_search(
    knowledge_internal.given_arguments(search)
  );
  list knowledge_internal.ranked_list;
  begun_at timestamptz;
begin
  ef_search := plan.effort;
  if plan.is_empty then
    return;
  end if;
  if effort = 0 then
    perform set_config('enable_indexscan', 'off', true), set_config('enable_seqscan', 'on', true);
    begun_at := clock_timestamp();
    select near.ids, near.similarities
      into ids, similarities
      from knowledge_internal.nearest_rows(
             plan.questions[1].embedding, plan.collections[1], plan.scope, plan.pool
           ) as near;
    milliseconds := 1000 * extract(epoch from clock_timestamp() - begun_at);
    perform set_config('enable_indexscan', callers[1], true),
            set_config('enable_seqscan', callers[2], true);
    return;
  end if;
  plan.effort := coalesce(effort, ef_search);
  list := (knowledge_internal.rank_all(plan))[1];
  ids := list.vector_ids;
  similarities := list.similarities;
  strategy := list.vector_strategy;
  ef_search := plan.effort;
  milliseconds := list.vector_milliseconds;
end
$$;

create function public.estimate_hybrid_search(search jsonb) returns jsonb
-- Postgres allows no EXPLAIN in a stable function.
-- definer: service_role has no rights on the internal schema.
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
  begun_at constant timestamptz := clock_timestamp();
  given constant knowledge_internal.search_arguments := knowledge_internal.given_arguments(
    search, for_backends => 'estimate_hybrid_search'
  );
  plan constant knowledge_internal.search_plan := knowledge_internal.plan_search(given);
  reading_ms constant double precision :=
    extract(epoch from clock_timestamp() - begun_at) * 1000;
  excerpts constant integer := case when given.snippet then given.match_count else 0 end;
  -- docs/operate.md, Slow searches, compares the result with searches.
  index_row constant double precision := 8; -- of the vector index, in rows compared
  compared_row constant double precision := 1.2; -- by its bits, or its whole embedding
  candidate constant double precision := 4; -- in rows scored
  exact_row constant double precision := 18; -- the exact BM25 of a candidate
  excerpt_word constant double precision := 9; -- of the text that an excerpt is cut from
  statement_ms constant double precision := 1.3;
  costs record;
  found record;
  vector_ms double precision;
  text_ms double precision;
  excerpt_ms double precision;
begin
  select *
    into costs
    from knowledge_internal.row_costs(
           (
             select question.embedding from unnest(plan.questions) as question
              where question.embedding is not null limit 1
           ),
           (
             select question.weight_vector from unnest(plan.questions) as question
              where question.weight_vector is not null limit 1
           )
         );
  select sum(list.matching) as matching,
         string_agg(distinct list.vector_strategy, '; ') as vector_strategy,
         sum(list.index_rows) as index_rows,
         sum(list.compared_rows) as compared_rows,
         string_agg(distinct list.text_strategy, '; ') as text_strategy,
         sum(list.text_rows) as text_rows,
         count(list.text_strategy) as text_lists,
         count(*) as lists
    into found
    from generate_subscripts(plan.questions, 1) as asked (place)
   cross join unnest(coalesce(plan.collections, null::text || plan.apart)) as scope (collection)
   cross join knowledge_internal.estimated_list(asked.place, scope.collection, plan) as list;
  vector_ms := costs.compared * (index_row * found.index_rows + compared_row * found.compared_rows);
  text_ms := costs.scored
    * (candidate * found.text_rows
       + exact_row * least(
           found.text_lists * knowledge_internal.scored_exactly(plan.pool, plan.settings),
           found.text_rows
         ));
  excerpt_ms := costs.scored * excerpt_word * excerpts
    * coalesce((select corpus.mean_length from public.knowledge_corpus_statistics as corpus), 0);
  return jsonb_build_object(
    'milliseconds', reading_ms + statement_ms + vector_ms + text_ms + excerpt_ms,
    'chunks', (plan.settings).chunk_count,
    'matching', found.matching / cardinality(plan.questions),
    'lists', found.lists,
    'reading', jsonb_build_object('milliseconds', reading_ms),
    'vector', jsonb_build_object(
      'strategy', coalesce(found.vector_strategy, 'not run'),
      'rows', found.index_rows + found.compared_rows,
      'milliseconds', case when found.vector_strategy is not null then vector_ms end
    ),
    'text', jsonb_build_object(
      'strategy', coalesce(found.text_strategy, 'not run'),
      'rows', found.text_rows,
      'milliseconds', case when found.text_strategy is not null then text_ms end
    )
  );
end
$$;

comment on function public.estimate_hybrid_search(jsonb) is
  'What hybrid_search_knowledge_chunks would cost with the same arguments, an object, as one JSON '
  'object. It does not search. milliseconds: in the database, of a call whose pages are in memory. '
  'chunks: all; matching: those that pass the filters, by a sample. vector and text: how the leg '
  'would find its rows, and how many it would read. The rows are those of all owners, so only '
  'service_role may call it. Raises 22023 as the search does, and for an unknown name.';
revoke all on function public.estimate_hybrid_search(jsonb) from public, anon, authenticated;
grant execute on function public.estimate_hybrid_search(jsonb) to service_role;

revoke all on all functions in schema knowledge_internal from public;

notify pgrst, 'reload schema';
