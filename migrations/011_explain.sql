-- 011_explain: how a search comes to its answer.
-- Adds: function explain_hybrid_search. Locks nothing that exists.
-- Written from supabase/schemas/core/11_explain.sql by `make baseline`: edit that file.

create function public.explain_hybrid_search(search jsonb) returns jsonb
-- definer: service_role has no rights on the internal schema.
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
declare
  begun_at constant timestamptz := clock_timestamp();
  given constant knowledge_internal.search_arguments := knowledge_internal.given_arguments(search);
  plan constant knowledge_internal.search_plan := knowledge_internal.planned_search(given);
  reading_milliseconds constant float8 := 1000 * extract(epoch from clock_timestamp() - begun_at);
  -- The lists that are fused below.
  lists constant knowledge_internal.ranked_list[] := knowledge_internal.ranked_lists(plan);
  analysis constant knowledge_internal.query_analysis := plan.analyses[1];
  hits jsonb;
  hybrid_milliseconds float8;
  summary record;
begin
  hits := (
    select coalesce(
             jsonb_agg(
               to_jsonb(hit) - '{metadata,context}'::text[] || jsonb_build_object(
                 'notes', nullif(hit.notes - 'shares', '{}'),
                 'vector_share', hit.notes #> '{shares,0}', 'text_share', hit.notes #> '{shares,1}'
               )
             ),
             '[]'
           )
      from knowledge_internal.search(
             given, jsonb_build_object('lists', lists, 'shares', true)
           ) as hit
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
             'weights', jsonb_build_object('vector', plan.vector_weight, 'text', plan.text_weight)
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
      'candidates', (
        select count(*)
          from public.knowledge_chunks as chunk
         where chunk.status = 'active'
           and chunk.content_tsv @@ analysis.candidate_query
        having analysis.candidate_query is not null
      ),
      'chunks', analysis.document_count,
      'mean_length', analysis.mean_length,
      'query', analysis.candidate_query::text,
      'lexemes', (
        select jsonb_agg(
                 jsonb_build_object(
                   'lexeme', word.lexeme,
                   'document_frequency', round(word.document_frequency),
                   'weight', word.weight,
                   -- The candidate query has a lexeme as a word or at one of its impact levels.
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
      'policy', plan.fusion,
      'is_stored', plan.fusion is distinct from given.fusion,
      'weights', jsonb_build_object('vector', plan.vector_weight, 'text', plan.text_weight),
      'cosine_scale', plan.cosine_scale
    ),
    'lists', coalesce(summary.lists, '[]'),
    'hits', hits
  );
end
$$;

comment on function public.explain_hybrid_search(jsonb) is
  'How hybrid_search_knowledge_chunks comes to its answer, as one JSON object. search: its '
  'arguments as an object. milliseconds: of the search, of reading the question, and of each leg. '
  'vector and text: how the leg found its rows, how many, and why they are fewer than the pool. '
  'text also: the candidates found by the index, and each lexeme of query_text with its document '
  'frequency and weight; one left out finds no candidates but counts in their scores. fusion: the '
  'weights used; cosine_scale: what auto divides a cosine by. lists: the ranked lists that were '
  'fused, one for each formulation in each collection. hits: the answer without context and '
  'metadata, and what each leg gave to the fused score (before it ages): vector_share and '
  'text_share. Document frequencies are of all chunks, whoever owns them. Raises 22023 as the '
  'search does, and for an unknown name.';
revoke all on function public.explain_hybrid_search(jsonb) from public, anon, authenticated;
grant execute on function public.explain_hybrid_search(jsonb) to service_role;

notify pgrst, 'reload schema';
