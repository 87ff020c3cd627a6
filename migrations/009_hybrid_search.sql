-- 009_hybrid_search: the search.
-- Adds: function hybrid_search_knowledge_chunks. Locks nothing that exists.

create or replace function public.hybrid_search_knowledge_chunks(
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
  fusion text default 'auto'
)
returns table (
  id uuid,
  content text,
  knowledge_type text,
  document_id uuid,
  chunk_index integer,
  source_origin text,
  metadata jsonb,
  rrf_score double precision,
  vector_rank bigint,
  text_rank bigint,
  similarity double precision,
  text_score double precision,
  match_type text,
  matched_terms text[],
  title text,
  source_url text
)
language plpgsql
stable
security definer
set search_path = ''
-- Custom plans fold away what a call does not use: a leg, a filter.
set plan_cache_mode = force_custom_plan
-- Compiling, and starting workers for a scan that may not run at all, cost more than the search.
set jit = off
set max_parallel_workers_per_gather = 0
-- The planner does not know that long vectors and texts lie outside their row, so it takes reading
-- all of them for cheap. Without sorting, the vector index is the only way to the nearest rows;
-- without sequential scans, the text index is the only way to the words.
set enable_sort = off
set enable_seqscan = off
as $$
declare
  knowledge_types constant text[] := array[
    'note', 'document', 'decision', 'conversation', 'task', 'signal', 'playbook', 'case_study',
    'transcript'
  ];
  search_modes constant text[] := array['websearch', 'simple', 'phrase'];
  fusions constant text[] := array['rrf', 'relative_score', 'auto'];
  ordinary_rank constant integer := 50;
  compared_exactly constant integer := 10000; -- rows
  small_corpus constant integer := 1000; -- chunks
  small_table constant bigint := 1048576; -- bytes
  column_dimensions integer;
  pool integer;
  reach integer;
  scored_exactly integer;
  is_filtered boolean;
  analysis knowledge_internal.query_analysis;
  callers_ef_search text;
  callers_iterative_scan text;
  callers_max_scan_tuples text;
begin
  if query_embedding is null and coalesce(query_text, '') !~ '\S' then
    raise exception 'query_embedding and query_text are both missing, give at least one'
      using errcode = '22023';
  end if;
  if (match_count between 1 and 1000) is not true then
    raise exception 'match_count must be between 1 and 1000, not %',
                    coalesce(match_count::text, 'null')
      using errcode = '22023';
  end if;
  if (match_threshold between -1 and 1) is not true then
    raise exception 'match_threshold must be a cosine similarity between -1 and 1, not %',
                    coalesce(match_threshold::text, 'null')
      using errcode = '22023';
  end if;
  if (vector_weight >= 0 and vector_weight < 'infinity') is not true then
    raise exception 'vector_weight must be a number of at least 0, not %',
                    coalesce(vector_weight::text, 'null')
      using errcode = '22023';
  end if;
  if (text_weight >= 0 and text_weight < 'infinity') is not true then
    raise exception 'text_weight must be a number of at least 0, not %',
                    coalesce(text_weight::text, 'null')
      using errcode = '22023';
  end if;
  if vector_weight = 0 and text_weight = 0 then
    raise exception 'vector_weight and text_weight are both 0, one must be above'
      using errcode = '22023';
  end if;
  if filter_type is not null and filter_type <> all (knowledge_types) then
    raise exception 'filter_type must be one of %, not %',
                    array_to_string(knowledge_types, ', '), left(filter_type, 100)
      using errcode = '22023';
  end if;
  if (search_mode = any (search_modes)) is not true then
    raise exception 'search_mode must be one of %, not %',
                    array_to_string(search_modes, ', '), coalesce(left(search_mode, 100), 'null')
      using errcode = '22023';
  end if;
  if (pool_size between 1 and 1000) is not true then
    raise exception 'pool_size must be between 1 and 1000, not %', coalesce(pool_size::text, 'null')
      using errcode = '22023';
  end if;
  if (rrf_k > 0 and rrf_k < 'infinity') is not true then
    raise exception 'rrf_k must be a number above 0, not %', coalesce(rrf_k::text, 'null')
      using errcode = '22023';
  end if;
  if (fusion = any (fusions)) is not true then
    raise exception 'fusion must be one of %, not %',
                    array_to_string(fusions, ', '), coalesce(left(fusion, 100), 'null')
      using errcode = '22023';
  end if;
  if query_embedding is not null then
    select attribute.atttypmod into column_dimensions
      from pg_catalog.pg_attribute as attribute
     where attribute.attrelid = 'public.knowledge_chunks'::regclass
       and attribute.attname = 'embedding';
    if extensions.vector_dims(query_embedding) <> column_dimensions then
      raise exception 'query_embedding has % dimensions, the stored embeddings have %',
                      extensions.vector_dims(query_embedding), column_dimensions
        using errcode = '22023', hint = 'Embed the query with the model that embedded the chunks.';
    end if;
    if ((query_embedding operator(extensions.<=>) query_embedding) < 0.5) is not true then
      raise exception 'query_embedding must not be a zero vector, nor too long or short for float4'
        using errcode = '22023';
    end if;
  end if;

  pool := greatest(pool_size, match_count);
  -- The index gives twice what is wanted, since its order is approximate.
  reach := 2 * greatest(pool, ordinary_rank);
  is_filtered := filter_type is not null;
  if vector_weight = 0 then
    query_embedding := null;
  end if;
  if text_weight > 0 and query_text ~ '\S' then
    analysis := knowledge_internal.analyse_query(query_text, search_mode);
    scored_exactly := greatest(
      pool, case when analysis.document_count <= small_corpus then small_corpus end
    );
  end if;

  -- The caller's settings come back below. A set clause on the function would do that too, but a
  -- role that is not a superuser could not create it in a session that has not used pgvector yet:
  -- no dump could be restored.
  perform '[1]'::extensions.vector; -- loads pgvector, which defines the settings
  callers_ef_search := current_setting('hnsw.ef_search');
  callers_iterative_scan := current_setting('hnsw.iterative_scan');
  callers_max_scan_tuples := current_setting('hnsw.max_scan_tuples');
  perform set_config('hnsw.ef_search', least(greatest(reach, 200), 1000)::text, true),
          set_config('hnsw.iterative_scan', 'relaxed_order', true),
          set_config('hnsw.max_scan_tuples', '20000', true);

  return query
  with matching_chunks as not materialized (
    -- Inlined wherever it is named, so that each leg filters inside its own index scan.
    select chunk.*
      from public.knowledge_chunks as chunk
     where chunk.status = 'active'
       and (filter_type is null or chunk.knowledge_type = filter_type)
  ),
  -- So few rows that comparing all of them is cheaper than the index, and exact.
  few as materialized (
    select case
             when is_filtered then (
               select count(*) <= compared_exactly
                 from (
                   select
                     from matching_chunks
                    where query_embedding is not null
                    limit compared_exactly + 1
                 ) as counted
             )
             else pg_relation_size('public.knowledge_chunks') <= small_table
           end as are_few
  ),
  nearest as materialized (
    select chunk.id, chunk.embedding operator(extensions.<=>) query_embedding as distance
      from matching_chunks as chunk
     where query_embedding is not null
       and chunk.embedding is not null
       and not (select few.are_few from few)
     order by chunk.embedding operator(extensions.<=>) query_embedding
     limit reach
  ),
  -- Every matching row, where there are few or the index stopped early. Adding 0 keeps the index
  -- out of it.
  nearest_exactly as materialized (
    select chunk.id, chunk.embedding operator(extensions.<=>) query_embedding as distance
      from matching_chunks as chunk
     where query_embedding is not null
       and chunk.embedding is not null
       and (select count(*) from nearest) < reach
     order by (chunk.embedding operator(extensions.<=>) query_embedding) + 0, chunk.id
     limit reach
  ),
  neighbours as materialized (
    select found.id,
           1 - found.distance as similarity,
           row_number() over (order by found.distance, found.id) as vector_rank
      from (
        select nearest.id, nearest.distance
          from nearest
         where (select count(*) from nearest) = reach
        union all
        select nearest_exactly.id, nearest_exactly.distance from nearest_exactly
      ) as found
  ),
  vector_results as (
    select neighbours.id, neighbours.similarity, neighbours.vector_rank
      from neighbours
     where neighbours.vector_rank <= pool
       and neighbours.similarity >= match_threshold
  ),
  -- Rows with the query's telling words. The inner product of the sparse vectors is BM25 for the
  -- mean length at the time the row was written; those that are best by it are scored exactly.
  likely as materialized (
    select chunk.id, chunk.content_tsv, chunk.text_length
      from matching_chunks as chunk
     where chunk.content_tsv @@ analysis.candidate_query
     order by chunk.bm25 operator(extensions.<#>) analysis.weight_vector, chunk.id
     limit scored_exactly
  ),
  -- Too few of them pass the filters: now every row with any of the words counts.
  likely_in_full as materialized (
    select chunk.id, chunk.content_tsv, chunk.text_length
      from matching_chunks as chunk
     where analysis.is_partial
       and chunk.content_tsv @@ analysis.full_query
       and (select count(*) from likely) < pool
     order by chunk.bm25 operator(extensions.<#>) analysis.weight_vector, chunk.id
     limit scored_exactly
  ),
  found as materialized (
    -- Concatenated with nothing, a tsvector that lies outside its row is fetched once.
    select best.id, best.content_tsv || ''::tsvector as content_tsv, best.text_length
      from (
        select likely.* from likely where not exists (select from likely_in_full)
        union all
        select likely_in_full.* from likely_in_full
      ) as best
  ),
  text_results as (
    select weighed.id,
           weighed.text_score,
           row_number() over (order by weighed.text_score desc, weighed.id) as text_rank
      from (
        select found.id,
               sum(
                 word.weight * occurrences.tf * 2.2
                   / (
                     occurrences.tf
                       + 1.2 * (0.25 + 0.75 * found.text_length / analysis.mean_length)
                   )
               ) as text_score
          from found
         cross join unnest(analysis.lexemes, analysis.weights) as word (lexeme, weight)
         cross join lateral (
                 select width_bucket(
                          ts_rank(
                            '{1,1,1,1}', found.content_tsv, quote_literal(word.lexeme)::tsquery
                          ) * pi() ^ 2 / 6,
                          knowledge_internal.rank_steps()
                        ) as tf
               ) as occurrences
         group by found.id
      ) as weighed
     order by weighed.text_score desc, weighed.id
     limit pool
  ),
  combined as (
    select coalesce(vector_results.id, text_results.id) as id,
           vector_results.vector_rank,
           text_results.text_rank,
           vector_results.similarity,
           text_results.text_score
      from vector_results
      full outer join text_results on text_results.id = vector_results.id
  ),
  evidence as (
    select listed.ordinary_cosine,
           vector_weight * leg.vector_evidence as vector_evidence,
           text_weight * leg.text_evidence as text_evidence
      from (
        select count(*) as neighbours,
               max(neighbours.similarity) as best_cosine,
               min(neighbours.similarity)
                 filter (where neighbours.vector_rank <= ordinary_rank) as ordinary_cosine
          from neighbours
      ) as listed
     cross join lateral knowledge_internal.leg_evidence(
             listed.neighbours, listed.best_cosine, listed.ordinary_cosine, analysis.cosine_spread,
             (select max(text_results.text_score) from text_results), analysis.weights
           ) as leg
  ),
  -- Read by explain_hybrid_search, which alone asks for it.
  trace as materialized (
    select set_config(
             'knowledge_internal.trace',
             jsonb_build_object(
               'vector', jsonb_build_object(
                 'strategy', case
                   when query_embedding is null then 'not run'
                   when (select few.are_few from few) then 'exact: few rows'
                   when (select count(*) from nearest) = reach then 'index'
                   else 'exact: the index stopped early'
                 end,
                 'rows', (select count(*) from vector_results)
               ),
               'text', jsonb_build_object(
                 'strategy', case
                   when analysis.full_query is null then 'not run'
                   when exists (select from likely_in_full) then 'all rows: too few candidates'
                   when analysis.is_partial then 'candidates'
                   else 'all rows'
                 end,
                 'rows', (select count(*) from text_results)
               ),
               'pool', pool,
               'weights', jsonb_build_object(
                 'vector', evidence.vector_evidence, 'text', evidence.text_evidence
               )
             )::text,
             true
           )
      from evidence
     where current_setting('knowledge_internal.tracing', true) = 'on'
  ),
  -- auto weighs scores, so a row gets the score of the leg that missed it too.
  completed as (
    select combined.*,
           coalesce(
             combined.similarity,
             1 - (chunk.embedding operator(extensions.<=>) query_embedding),
             evidence.ordinary_cosine,
             0
           ) as cosine,
           coalesce(
             combined.text_score,
             case
               when chunk.content_tsv @@ analysis.full_query
                 then -(chunk.bm25 operator(extensions.<#>) analysis.weight_vector)
             end,
             0
           ) as bm25
      from combined
     cross join evidence
      left join public.knowledge_chunks as chunk on fusion = 'auto' and chunk.id = combined.id
  ),
  ranges as (
    select min(completed.similarity) as least_similarity,
           max(completed.similarity) as best_similarity,
           min(completed.text_score) as least_text_score,
           max(completed.text_score) as best_text_score,
           min(completed.cosine) as least_cosine,
           max(completed.cosine) as best_cosine,
           max(completed.bm25) as best_bm25
      from completed
  ),
  scored as (
    select completed.id,
           completed.vector_rank,
           completed.text_rank,
           completed.similarity,
           completed.text_score,
           case fusion
             when 'rrf' then
               coalesce(vector_weight / (rrf_k + completed.vector_rank), 0)
                 + coalesce(text_weight / (rrf_k + completed.text_rank), 0)
             when 'relative_score' then
               vector_weight * coalesce(
                 (completed.similarity - ranges.least_similarity)
                   / nullif(ranges.best_similarity - ranges.least_similarity, 0),
                 (completed.similarity is not null)::integer
               )
                 + text_weight * coalesce(
                   (completed.text_score - ranges.least_text_score)
                     / nullif(ranges.best_text_score - ranges.least_text_score, 0),
                   (completed.text_score is not null)::integer
                 )
             else
               coalesce(
                 (
                   evidence.vector_evidence * (completed.cosine - ranges.least_cosine)
                     + evidence.text_evidence * completed.bm25
                 ) / nullif(
                   evidence.vector_evidence * (ranges.best_cosine - ranges.least_cosine)
                     + evidence.text_evidence * ranges.best_bm25,
                   0
                 ),
                 1
               )
           end as rrf_score
      from completed
     cross join ranges
     cross join evidence
     order by rrf_score desc, least(completed.vector_rank, completed.text_rank), completed.id
     limit match_count
  )
  select chunk.id,
         chunk.content,
         chunk.knowledge_type,
         chunk.document_id,
         chunk.chunk_index,
         chunk.source_origin,
         chunk.metadata,
         scored.rrf_score,
         scored.vector_rank,
         scored.text_rank,
         scored.similarity,
         scored.text_score,
         case
           when scored.text_rank is null then 'vector'
           when scored.vector_rank is null then 'text'
           else 'both'
         end,
         array(
           select word.typed
             from unnest(analysis.words, analysis.word_queries)
                  with ordinality as word (typed, query, place)
            where chunk.content_tsv @@ word.query
            order by word.place
         ),
         document.title,
         document.source_url
    from scored
    join public.knowledge_chunks as chunk on chunk.id = scored.id
    left join public.knowledge_documents as document on document.id = chunk.document_id
   where (select count(*) from trace) >= 0
   order by scored.rrf_score desc, least(scored.vector_rank, scored.text_rank), scored.id;

  perform set_config('hnsw.ef_search', callers_ef_search, true),
          set_config('hnsw.iterative_scan', callers_iterative_scan, true),
          set_config('hnsw.max_scan_tuples', callers_max_scan_tuples, true);
end
$$;

comment on function public.hybrid_search_knowledge_chunks is
  'Chunks that match a query by meaning and by words, best first. '
  'query_embedding (null: text only) is compared by cosine distance, query_text (null or blank: '
  'vector only) is scored by BM25 (k1 1.2, b 0.75); each leg gives its best pool_size chunks. '
  'fusion: rrf adds vector_weight / (rrf_k + vector_rank) and text_weight / (rrf_k + text_rank), '
  'where a leg that missed the chunk adds nothing and has a null rank (Cormack, Clarke and '
  'Buettcher 2009); relative_score scales each leg''s scores to 0..1 and adds them, weighted; auto '
  'adds cosine similarity and BM25, weighted for each query by what the legs show of their own '
  'reliability and by the caller''s weights, 1 being the best that any chunk could reach. '
  'The fused score is in rrf_score. '
  'search_mode: websearch (words are optional, "a phrase" is required, -word excludes, or joins '
  'alternatives), simple (all words are required), phrase (the words in this order); it binds the '
  'text leg only. match_threshold is the least cosine similarity in the vector leg. Only active '
  'chunks are returned. Raises 22023 for an argument out of bounds.';

revoke all on function public.hybrid_search_knowledge_chunks from public, anon, authenticated;
grant execute on function public.hybrid_search_knowledge_chunks to service_role;

notify pgrst, 'reload schema';
