-- 012_explain: why a search answers as it does.
-- Adds: function explain_hybrid_search. Locks nothing that exists.

create function knowledge_internal.explained_list(list jsonb)
returns jsonb
language plpgsql
immutable
security invoker
set search_path = pg_catalog, pg_temp
as $$
declare
  drawn_fully constant integer := 3;
  drawn_wider constant integer := 2;
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
        when not (list ->> 'is_partial')::boolean then 'all rows'
        when not (list ->> 'is_drawn')::boolean then 'all rows: few pass the filters'
        when (list ->> 'draw')::integer = drawn_fully then 'all rows: too few candidates'
        when (list ->> 'draw')::integer = drawn_wider then 'more candidates: too few at first'
        else 'candidates'
      end,
      'rows', list -> 'text_rows'
    ),
    'pool', list -> 'pool',
    'weights', jsonb_build_object(
      'vector', list -> 'vector_weight', 'text', list -> 'text_weight'
    )
  );
end
$$;

comment on function knowledge_internal.explained_list(jsonb) is
  'What explain_hybrid_search says of a list that the search traced.';

create or replace function public.explain_hybrid_search(
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
  fusion text default 'auto',
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
  formulations jsonb default null
)
returns jsonb
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  begun_at timestamptz;
  hybrid_milliseconds double precision;
  vector_milliseconds double precision;
  text_milliseconds double precision;
  hits jsonb;
  lists jsonb;
  pool integer;
  summary record;
  analysis knowledge_internal.query_analysis;
  candidates bigint;
begin
  -- The first call pays for planning and cold pages, and answers; the legs are timed after it.
  perform set_config('knowledge_internal.tracing', 'on', true);
  perform set_config('knowledge_internal.trace', '', true);
  begun_at := clock_timestamp();
  select coalesce(jsonb_agg(to_jsonb(hit) - '{content,metadata,context}'::text[]), '[]')
    into hits
    from public.hybrid_search_knowledge_chunks(
           query_embedding => explain_hybrid_search.query_embedding,
           query_text => explain_hybrid_search.query_text,
           match_count => explain_hybrid_search.match_count,
           match_threshold => explain_hybrid_search.match_threshold,
           vector_weight => explain_hybrid_search.vector_weight,
           text_weight => explain_hybrid_search.text_weight,
           filter_type => explain_hybrid_search.filter_type,
           search_mode => explain_hybrid_search.search_mode,
           pool_size => explain_hybrid_search.pool_size,
           rrf_k => explain_hybrid_search.rrf_k,
           fusion => explain_hybrid_search.fusion,
           filters => explain_hybrid_search.filters,
           date_from => explain_hybrid_search.date_from,
           date_to => explain_hybrid_search.date_to,
           collections => explain_hybrid_search.collections,
           viewer_id => explain_hybrid_search.viewer_id,
           public_only => explain_hybrid_search.public_only,
           one_per_document => explain_hybrid_search.one_per_document,
           neighbor_window => explain_hybrid_search.neighbor_window,
           recency_half_life => explain_hybrid_search.recency_half_life,
           match_offset => explain_hybrid_search.match_offset,
           snippet => explain_hybrid_search.snippet,
           formulations => explain_hybrid_search.formulations
         ) as hit;
  hybrid_milliseconds := extract(epoch from clock_timestamp() - begun_at) * 1000;
  lists := (
    select jsonb_agg(knowledge_internal.explained_list(told.list) order by told.place)
      from jsonb_array_elements(nullif(current_setting('knowledge_internal.trace'), '')::jsonb)
           with ordinality as told (list, place)
  );
  perform set_config('knowledge_internal.tracing', 'off', true);

  if query_embedding is not null and vector_weight > 0 then
    begun_at := clock_timestamp();
    perform
       from public.hybrid_search_knowledge_chunks(
              query_embedding => explain_hybrid_search.query_embedding,
              match_threshold => explain_hybrid_search.match_threshold,
              match_count => explain_hybrid_search.match_count,
              filter_type => explain_hybrid_search.filter_type,
              pool_size => explain_hybrid_search.pool_size,
              filters => explain_hybrid_search.filters,
              date_from => explain_hybrid_search.date_from,
              date_to => explain_hybrid_search.date_to,
              collections => explain_hybrid_search.collections,
              viewer_id => explain_hybrid_search.viewer_id,
              public_only => explain_hybrid_search.public_only
            );
    vector_milliseconds := extract(epoch from clock_timestamp() - begun_at) * 1000;
  end if;
  if query_text ~ '\S' and text_weight > 0 then
    begun_at := clock_timestamp();
    perform
       from public.hybrid_search_knowledge_chunks(
              query_text => explain_hybrid_search.query_text,
              search_mode => explain_hybrid_search.search_mode,
              match_count => explain_hybrid_search.match_count,
              filter_type => explain_hybrid_search.filter_type,
              pool_size => explain_hybrid_search.pool_size,
              filters => explain_hybrid_search.filters,
              date_from => explain_hybrid_search.date_from,
              date_to => explain_hybrid_search.date_to,
              collections => explain_hybrid_search.collections,
              viewer_id => explain_hybrid_search.viewer_id,
              public_only => explain_hybrid_search.public_only
            );
    text_milliseconds := extract(epoch from clock_timestamp() - begun_at) * 1000;
    analysis := knowledge_internal.analyse_query(query_text, search_mode);
    select count(*)
      into candidates
      from public.knowledge_chunks as chunk
     where chunk.status = 'active'
       and chunk.content_tsv @@ analysis.candidate_query;
  end if;

  pool := (lists #>> '{0,pool}')::integer;
  select string_agg(distinct list.told #>> '{vector,strategy}', '; ') as vector_strategy,
         string_agg(distinct list.told #>> '{text,strategy}', '; ') as text_strategy,
         sum((list.told #>> '{vector,rows}')::integer) as vector_rows,
         sum((list.told #>> '{text,rows}')::integer) as text_rows,
         bool_or((list.told #>> '{vector,rows}')::integer < pool) as vector_ran_dry,
         bool_or((list.told #>> '{text,rows}')::integer < pool) as text_ran_dry
    into summary
    from jsonb_array_elements(lists) as list (told);
  return jsonb_build_object(
    'milliseconds', jsonb_build_object(
      'hybrid', hybrid_milliseconds, 'vector', vector_milliseconds, 'text', text_milliseconds
    ),
    'pool', pool,
    'vector', jsonb_build_object(
      'strategy', summary.vector_strategy,
      'rows', summary.vector_rows,
      'ran_dry', case
        when summary.vector_strategy <> 'not run' and summary.vector_ran_dry
          then 'fewer rows with an embedding pass the filters and match_threshold'
      end
    ),
    'text', jsonb_build_object(
      'strategy', summary.text_strategy,
      'rows', summary.text_rows,
      'ran_dry', case
        when summary.text_strategy <> 'not run' and summary.text_ran_dry
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
                   -- As a word, or by its marks.
                   'left_out', analysis.candidate_query::text
                     !~ format('''%s(\^\d)?''', regexp_replace(word.lexeme, '(\W)', '\\\1', 'g'))
                 )
                 order by word.place
               )
          from unnest(analysis.lexemes, analysis.document_frequencies, analysis.weights)
               with ordinality as word (lexeme, document_frequency, weight, place)
      )
    ),
    'fusion', jsonb_build_object('policy', fusion) || case fusion
      when 'auto' then jsonb_build_object(
        'weights', case when jsonb_array_length(lists) = 1 then lists #> '{0,weights}' end,
        'cosine_spread', analysis.cosine_spread
      )
      else jsonb_build_object(
        'weights', jsonb_build_object('vector', vector_weight, 'text', text_weight)
      )
    end,
    'lists', lists,
    'hits', hits
  );
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

notify pgrst, 'reload schema';
