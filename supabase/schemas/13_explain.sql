-- 013_explain: the explanation of a search's result.
-- Adds: functions explained_list and explanation, which explain_hybrid_search calls.
-- Locks nothing that exists.

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
    perform from knowledge_internal.search(leg_alone);
    text_milliseconds := extract(epoch from clock_timestamp() - begun_at) * 1000;
    analysis := knowledge_internal.analyse_query(arguments.query_text, arguments.search_mode);
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
