-- 013_explain: the explanation of a search's result, and the estimate of its cost.
-- Adds: functions access_of, explained_list and explanation, which explain_hybrid_search calls;
-- planned_rows, row_costs, estimated_list and search_estimate, which estimate_hybrid_search calls.
-- Locks nothing that exists.

create function knowledge_internal.access_of(arguments knowledge_internal.search_arguments)
returns knowledge_internal.chunk_access
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
as $$
begin
  return knowledge_internal.restricted_access(
    knowledge_internal.compile_filter(
      arguments.filters, arguments.filter_type, arguments.date_from, arguments.date_to,
      arguments.public_only
    ),
    arguments.viewer_id, arguments.viewer_groups
  );
end
$$;

comment on function knowledge_internal.access_of(knowledge_internal.search_arguments) is
  'restricted_access of a search with these arguments.';

create function knowledge_internal.explained_list(list jsonb)
returns jsonb
language plpgsql
immutable
security invoker
set search_path = pg_catalog, pg_temp
as $$
declare
  all_rows constant integer := 3;
  more_candidates constant integer := 2;
  relaxed constant integer := 4;
begin
  return jsonb_build_object(
    'formulation', (list ->> 'formulation')::integer - 1,
    'collection', list -> 'collection',
    'vector', jsonb_build_object(
      'strategy', case
        when not (list ->> 'is_embedded')::boolean then 'not run'
        when (list ->> 'is_narrow')::boolean then 'compared: few rows'
        when (list ->> 'is_compared')::boolean then 'compared: the index stopped early'
        else 'index'
      end,
      'rows', list -> 'vector_rows'
    ),
    'text', jsonb_build_object(
      'strategy', case
        when list ->> 'draw' is null then 'not run'
        when (list ->> 'draw')::integer = relaxed then 'relaxed: no row has what is required'
        when not (list ->> 'is_partial')::boolean then 'all rows'
        when not (list ->> 'is_drawn')::boolean then 'all rows: few pass the filters'
        when (list ->> 'draw')::integer = all_rows then 'all rows: too few candidates'
        when (list ->> 'draw')::integer = more_candidates then 'more candidates: too few at first'
        else 'candidates'
      end,
      'rows', list -> 'text_rows',
      'relaxed', list -> 'relaxed_parts'
    ),
    'pool', list -> 'pool',
    'weights', jsonb_build_object(
      'vector', list -> 'vector_weight', 'text', list -> 'text_weight'
    )
  );
end
$$;

comment on function knowledge_internal.explained_list(jsonb) is
  'The part of explain_hybrid_search for one list in the trace of the search.';

create function knowledge_internal.explanation(arguments knowledge_internal.search_arguments)
returns jsonb
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on
as $$
declare
  begun_at timestamptz;
  hybrid_milliseconds double precision;
  vector_milliseconds double precision;
  text_milliseconds double precision;
  hits jsonb;
  lists jsonb;
  pool integer;
  leg_alone knowledge_internal.search_arguments;
  summary record;
  analysis knowledge_internal.query_analysis;
  replaced jsonb;
  candidates bigint;
  settled record;
begin
  -- The first call gives the result; it includes planning and cold pages. Then each leg is timed.
  perform set_config('knowledge_internal.tracing', 'on', true);
  perform set_config('knowledge_internal.trace', '', true);
  begun_at := clock_timestamp();
  select coalesce(jsonb_agg(to_jsonb(hit) - '{content,metadata,context}'::text[]), '[]')
    into hits
    from knowledge_internal.search(arguments) as hit;
  hybrid_milliseconds := extract(epoch from clock_timestamp() - begun_at) * 1000;
  lists := (
    select jsonb_agg(knowledge_internal.explained_list(traced.list) order by traced.place)
      from jsonb_array_elements(nullif(current_setting('knowledge_internal.trace'), '')::jsonb)
           with ordinality as traced (list, place)
  );
  perform set_config('knowledge_internal.tracing', 'off', true);

  -- Keep the arguments that select a leg's rows; reset those that only change the presentation.
  leg_alone := arguments;
  leg_alone.formulations := null;
  leg_alone.recency_half_life := null;
  leg_alone.one_per_document := false;
  leg_alone.match_offset := 0;
  leg_alone.neighbor_window := 0;
  leg_alone.snippet := false;
  if arguments.query_embedding is not null and arguments.vector_weight > 0 then
    leg_alone.query_embedding := arguments.query_embedding;
    leg_alone.query_text := null;
    begun_at := clock_timestamp();
    perform from knowledge_internal.search(leg_alone);
    vector_milliseconds := extract(epoch from clock_timestamp() - begun_at) * 1000;
  end if;
  if arguments.query_text ~ '\S' and arguments.text_weight > 0 then
    leg_alone.query_embedding := null;
    leg_alone.query_text := arguments.query_text;
    begun_at := clock_timestamp();
    select min(hit.notes ->> 'replaced')::jsonb
      into replaced
      from knowledge_internal.search(leg_alone) as hit;
    text_milliseconds := extract(epoch from clock_timestamp() - begun_at) * 1000;
    analysis := knowledge_internal.analyse_query(
      coalesce(
        knowledge_internal.respelled(arguments.query_text, replaced), arguments.query_text
      ),
      arguments.search_mode, arguments.collections, arguments.prefix_last,
      knowledge_internal.access_of(arguments)
    );
    select count(*)
      into candidates
      from public.knowledge_chunks as chunk
     where chunk.status = 'active'
       and chunk.content_tsv @@ analysis.candidate_query;
  end if;

  select * into settled
    from knowledge_internal.settled_fusion(
           arguments.fusion, arguments.vector_weight, arguments.text_weight, arguments.collections
         );
  pool := (lists #>> '{0,pool}')::integer;
  select string_agg(distinct list.entry #>> '{vector,strategy}', '; ') as vector_strategy,
         string_agg(distinct list.entry #>> '{text,strategy}', '; ') as text_strategy,
         sum((list.entry #>> '{vector,rows}')::integer) as vector_rows,
         sum((list.entry #>> '{text,rows}')::integer) as text_rows,
         bool_or((list.entry #>> '{vector,rows}')::integer < pool) as vector_is_short,
         bool_or((list.entry #>> '{text,rows}')::integer < pool) as text_is_short
    into summary
    from jsonb_array_elements(lists) as list (entry);
  return jsonb_build_object(
    'milliseconds', jsonb_build_object(
      'hybrid', hybrid_milliseconds, 'vector', vector_milliseconds, 'text', text_milliseconds
    ),
    'pool', pool,
    'vector', jsonb_build_object(
      'strategy', summary.vector_strategy,
      'rows', summary.vector_rows,
      'ran_dry', case
        when summary.vector_strategy <> 'not run' and summary.vector_is_short
          then 'fewer rows with an embedding pass the filters and match_threshold'
      end
    ),
    'text', jsonb_build_object(
      'strategy', summary.text_strategy,
      'rows', summary.text_rows,
      'ran_dry', case
        when summary.text_strategy <> 'not run' and summary.text_is_short
          then 'fewer rows that pass the filters have words of the query'
      end,
      'candidates', candidates,
      'chunks', analysis.document_count,
      'mean_length', analysis.mean_length,
      'query', analysis.candidate_query::text,
      'lexemes', (
        select jsonb_agg(
                 jsonb_build_object(
                   'lexeme', word.lexeme,
                   'document_frequency', round(word.document_frequency),
                   'weight', word.weight,
                   -- The candidate query has a lexeme as a word or as one of its marks.
                   'left_out', analysis.candidate_query::text
                     !~ format('''%s(\^\d)?''', regexp_replace(word.lexeme, '(\W)', '\\\1', 'g'))
                 )
                 order by word.place
               )
          from unnest(analysis.lexemes, analysis.document_frequencies, analysis.scored_weights)
               with ordinality as word (lexeme, document_frequency, weight, place)
      )
    ),
    'fusion', jsonb_build_object(
      'policy', settled.fusion,
      'is_stored', settled.fusion is distinct from arguments.fusion
    ) || case settled.fusion
      when 'auto' then jsonb_build_object(
        'weights', case when jsonb_array_length(lists) = 1 then lists #> '{0,weights}' end,
        'cosine_spread', analysis.cosine_spread,
        'mutual_neighbours', analysis.mutual_neighbours
      )
      else jsonb_build_object(
        'weights', jsonb_build_object(
          'vector', settled.vector_weight, 'text', settled.text_weight
        )
      )
    end,
    'lists', lists,
    'hits', hits
  );
end
$$;

comment on function knowledge_internal.explanation(knowledge_internal.search_arguments) is
  'The result of explain_hybrid_search.';

create function knowledge_internal.planned_rows(query tsquery)
returns double precision
language plpgsql
-- Postgres allows no EXPLAIN in a stable function.
volatile
security invoker
set search_path = pg_catalog, pg_temp
as $$
declare
  planned json;
begin
  for planned in
    explain (format json)
    select
      from public.knowledge_chunks as chunk
     where chunk.status = 'active'
       and chunk.content_tsv @@ query
  loop
    return (planned #>> '{0,Plan,Plan Rows}')::double precision;
  end loop;
end
$$;

comment on function knowledge_internal.planned_rows(tsquery) is
  'How many active chunks match, by the planner''s statistics. Nothing is read.';

create function knowledge_internal.row_costs(
  asked_embedding extensions.vector,
  word_weights extensions.sparsevec,
  out compared double precision,
  out scored double precision
)
language plpgsql
volatile
security invoker
set search_path = pg_catalog, pg_temp
as $$
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
      select chunk.id from public.knowledge_chunks as chunk
       where chunk.status = 'active' limit sample_size
    );
  end if;
  for round in 1 .. rounds loop
    begun_at := clock_timestamp();
    perform min(chunk.embedding operator(extensions.<=>) asked_embedding)
       from unnest(sample) as listed (id)
       join public.knowledge_chunks as chunk on chunk.id = listed.id;
    compared := least(compared, extract(epoch from clock_timestamp() - begun_at) * 1000);
    begun_at := clock_timestamp();
    perform min(chunk.bm25 operator(extensions.<#>) word_weights)
       from unnest(sample) as listed (id)
       join public.knowledge_chunks as chunk on chunk.id = listed.id;
    scored := least(scored, extract(epoch from clock_timestamp() - begun_at) * 1000);
  end loop;
  compared := compared / greatest(cardinality(sample), 1);
  scored := scored / greatest(cardinality(sample), 1);
end
$$;

comment on function knowledge_internal.row_costs(extensions.vector, extensions.sparsevec) is
  'Milliseconds to find a chunk by its id and compare its embedding, or score its words, measured '
  'on the sample of the statistics.';

create function knowledge_internal.estimated_list(
  question knowledge_internal.search_question,
  analysis knowledge_internal.query_analysis,
  plan knowledge_internal.search_plan,
  collection text
)
returns jsonb
language plpgsql
volatile
security invoker
set search_path = pg_catalog, pg_temp
as $$
declare
  most_effort constant double precision := 20; -- as in drawn_rows
  estimated constant double precision := knowledge_internal.estimated_chunks(plan, collection);
  matching constant double precision := coalesce(estimated, plan.chunk_count);
  share constant double precision := matching / greatest(plan.chunk_count, 1);
  is_narrow constant boolean := coalesce(estimated <= plan.most_compared, plan.is_small_corpus);
  -- The index is read until enough rows pass the filter.
  read_by_index constant double precision := greatest(
    plan.ef_search, plan.index_rows / greatest(share, 1e-9)
  );
  vector_strategy text;
  index_rows double precision := 0;
  compared_rows double precision := 0;
  text_strategy text;
  text_rows double precision := 0;
begin
  if question.embedding is not null and is_narrow then
    vector_strategy := 'compared: few rows';
    compared_rows := matching;
  elsif question.embedding is not null then
    vector_strategy := 'index';
    index_rows := least(read_by_index, plan.scan_tuples);
    if read_by_index > plan.scan_tuples then
      vector_strategy := 'compared: the index stopped early';
      compared_rows := matching;
    end if;
  end if;

  if analysis.is_partial and coalesce(estimated > plan.most_read_by_filter, true)
     and vector_strategy is distinct from 'compared: few rows'
  then
    text_strategy := 'candidates';
    text_rows := knowledge_internal.planned_rows(analysis.candidate_query);
    if text_rows * share < plan.pool then
      text_strategy := 'more candidates: too few at first';
      text_rows := text_rows
        * (1 + least(most_effort, 5 + 4 * plan.pool / (1 + text_rows * share)));
    end if;
  elsif analysis.is_partial and is_narrow then
    text_strategy := 'all rows: few pass the filters';
    text_rows := matching;
  elsif analysis.matching_query is not null then
    text_strategy := 'all rows';
    text_rows := knowledge_internal.planned_rows(analysis.matching_query);
  end if;
  return jsonb_build_object(
    'matching', matching,
    'vector_strategy', vector_strategy,
    'index_rows', index_rows,
    'compared_rows', compared_rows,
    'text_strategy', text_strategy,
    'text_rows', least(text_rows, plan.chunk_count)
  );
end
$$;

comment on function knowledge_internal.estimated_list is
  'How the legs would find their rows for a question in one collection or in all, and how many '
  'rows they would read.';

create function knowledge_internal.search_estimate(
  questions knowledge_internal.search_question[],
  analyses knowledge_internal.query_analysis[],
  plan knowledge_internal.search_plan,
  collections text[],
  excerpts integer,
  begun_at timestamptz
)
returns jsonb
language plpgsql
volatile
security invoker
set search_path = pg_catalog, pg_temp
as $$
declare
  reading_ms constant double precision :=
    extract(epoch from clock_timestamp() - begun_at) * 1000;
  -- `python -m benchmarks.search_cost` compares the result with searches.
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
             select question.embedding from unnest(questions) as question
              where question.embedding is not null limit 1
           ),
           (
             select analysis.weight_vector from unnest(analyses) as analysis
              where analysis.weight_vector is not null limit 1
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
    from generate_subscripts(questions, 1) as asked (place)
   cross join unnest(coalesce(collections, array[null::text])) as scope (collection)
   cross join jsonb_to_record(
           knowledge_internal.estimated_list(
             questions[asked.place], analyses[asked.place], plan, scope.collection
           )
         ) as list (
           matching double precision, vector_strategy text, index_rows double precision,
           compared_rows double precision, text_strategy text, text_rows double precision
         );
  vector_ms := costs.compared * (index_row * found.index_rows + compared_row * found.compared_rows);
  text_ms := costs.scored
    * (candidate * found.text_rows
       + exact_row * least(found.text_lists * plan.scored_exactly, found.text_rows));
  excerpt_ms := costs.scored * excerpt_word * excerpts
    * coalesce((select corpus.mean_length from public.knowledge_corpus_statistics as corpus), 0);
  return jsonb_build_object(
    'milliseconds', reading_ms + statement_ms + vector_ms + text_ms + excerpt_ms,
    'chunks', plan.chunk_count,
    'matching', found.matching / cardinality(questions),
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

comment on function knowledge_internal.search_estimate is
  'The result of estimate_hybrid_search: the time that reading the question took, and the rows of '
  'each list times what a row costs.';
