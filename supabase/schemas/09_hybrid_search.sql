-- 009_hybrid_search: the search.
-- Adds: type knowledge_search_hit, function hybrid_search_knowledge_chunks.
-- Locks nothing that exists.

-- A type and not "returns table": snippet is an argument and a column, and PL/pgSQL allows no name
-- twice.
do $$
begin
  if to_regtype('public.knowledge_search_hit') is null then
    create type public.knowledge_search_hit as (
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
      source_url text,
      collection text,
      document_date date,
      snippet text,
      context text,
      total_count bigint
    );
  end if;
end
$$;

comment on type public.knowledge_search_hit is
  'A hit of hybrid_search_knowledge_chunks. rrf_score: the fused score. vector_rank, text_rank: '
  'its places in the two legs, null where a leg missed it. similarity: cosine; text_score: BM25. '
  'match_type: vector, text or both. matched_terms: words of the query that it has. context: the '
  'chunks around it. total_count: hits in the list that match_offset pages through.';

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
returns setof public.knowledge_search_hit
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
-- The body sets it; here so that it is the caller's again afterwards.
set plan_cache_mode = auto
-- Compiling, and starting workers for a scan that may not run at all, cost more than the search.
set jit = off
set max_parallel_workers_per_gather = 0
-- The planner does not know that long vectors and texts lie outside their row, so it takes reading
-- all of them for cheap. Without sorting, the vector index is the only way to the nearest rows;
-- without sequential scans, the text index is the only way to the words.
set enable_sort = off
set enable_seqscan = off
-- It takes words to draw more rows than they do, and would read all of a filter's index to skip
-- some.
set cpu_index_tuple_cost = 0.5
as $$
declare
  knowledge_types constant text[] := array[
    'note', 'document', 'decision', 'conversation', 'task', 'signal', 'playbook', 'case_study',
    'transcript'
  ];
  search_modes constant text[] := array['websearch', 'simple', 'phrase'];
  fusions constant text[] := array['rrf', 'relative_score', 'auto'];
  most_collections constant integer := 50;
  most_formulations constant integer := 10;
  most_lists constant integer := 100;
  ordinary_rank constant integer := 50;
  small_corpus constant integer := 1000; -- chunks
  quantized_from constant integer := 128; -- dimensions: shorter vectors lie in their row
  index_cost constant integer := 20; -- a row of the vector index, against one that is compared
  most_indexed constant integer := 4000; -- dimensions
  most_scanned constant integer := 20000; -- rows of it, before it gives up
  effort_per_magnitude constant integer := 50; -- of hnsw.ef_search, for each tenfold of the table
  candidate_rows constant integer := 1000; -- what the words of a query draw, about
  most_read_by_filter constant integer := 20000; -- rows
  wider_effort constant float8 := 20; -- of what is drawn where candidates are too few
  rows_on_a_page constant integer := 5; -- of a table that was never analysed
  column_dimensions integer;
  pool integer;
  reach integer;
  chunk_count double precision;
  sample uuid[];
  most_compared double precision;
  compared_exactly integer;
  nearest_by_bits integer;
  effort integer;
  scored_exactly integer;
  is_filtered boolean;
  is_indexed boolean;
  argument text;
  formulation record;
  embeddings extensions.vector[] := array[query_embedding];
  texts text[] := array[query_text];
  analyses knowledge_internal.query_analysis[];
  analysis knowledge_internal.query_analysis;
  words text[];
  word_queries tsquery[];
  lexemes text[];
  wanted knowledge_internal.chunk_filter;
  first_date date;
  end_date date;
  today constant date := now() at time zone 'UTC';
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
  if (vector_weight = 0 or vector_weight between 1e-30 and 1e30) is not true then
    raise exception 'vector_weight must be 0 or between 1e-30 and 1e30, not %',
                    coalesce(vector_weight::text, 'null')
      using errcode = '22023';
  end if;
  if (text_weight = 0 or text_weight between 1e-30 and 1e30) is not true then
    raise exception 'text_weight must be 0 or between 1e-30 and 1e30, not %',
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
  if (rrf_k > 0 and rrf_k <= 1e30) is not true then
    raise exception 'rrf_k must be above 0 and at most 1e30, not %',
                    coalesce(rrf_k::text, 'null')
      using errcode = '22023';
  end if;
  if (fusion = any (fusions)) is not true then
    raise exception 'fusion must be one of %, not %',
                    array_to_string(fusions, ', '), coalesce(left(fusion, 100), 'null')
      using errcode = '22023';
  end if;
  if collections is not null
     and (
       case array_ndims(collections)
         when 1 then
           array_position(collections, null) is not null
             or cardinality(collections) > most_collections
         else true
       end
     )
  then
    raise exception 'collections must be 1 to % names, not %',
                    most_collections, left(collections::text, 100)
      using errcode = '22023';
  end if;
  if public_only is null then
    raise exception 'public_only must be true or false, not null' using errcode = '22023';
  end if;
  if one_per_document is null then
    raise exception 'one_per_document must be true or false, not null' using errcode = '22023';
  end if;
  if (neighbor_window between 0 and 5) is not true then
    raise exception 'neighbor_window must be between 0 and 5, not %',
                    coalesce(neighbor_window::text, 'null')
      using errcode = '22023';
  end if;
  if not (recency_half_life > 0 and recency_half_life < 'infinity') then
    raise exception 'recency_half_life must be a number of days above 0, not %', recency_half_life
      using errcode = '22023';
  end if;
  if (match_offset between 0 and 1000) is not true then
    raise exception 'match_offset must be between 0 and 1000, not %',
                    coalesce(match_offset::text, 'null')
      using errcode = '22023';
  end if;
  if snippet is null then
    raise exception 'snippet must be true or false, not null' using errcode = '22023';
  end if;

  if formulations is not null then
    if jsonb_typeof(formulations) <> 'array'
       or jsonb_array_length(formulations) > most_formulations
    then
      raise exception 'formulations must be an array of at most % objects', most_formulations
        using errcode = '22023';
    end if;
    for formulation in
      select item.asked, item.number - 1 as number
        from jsonb_array_elements(formulations) with ordinality as item (asked, number)
    loop
      argument := format('formulations[%s]', formulation.number);
      if jsonb_typeof(formulation.asked) <> 'object'
         or formulation.asked - '{query_text,query_embedding}'::text[] <> '{}'
         or coalesce(jsonb_typeof(formulation.asked -> 'query_text'), 'null')
              not in ('string', 'null')
      then
        raise exception '% must be an object with query_text, query_embedding or both', argument
          using errcode = '22023';
      end if;
      if formulation.asked ->> 'query_embedding' is null
         and coalesce(formulation.asked ->> 'query_text', '') !~ '\S'
      then
        raise exception '% has neither query_embedding nor query_text, give at least one', argument
          using errcode = '22023';
      end if;
      begin
        embeddings := array_append(
          embeddings, (formulation.asked ->> 'query_embedding')::extensions.vector
        );
      exception when data_exception or program_limit_exceeded then
        raise exception '%.query_embedding: %', argument, left(sqlerrm, 200)
          using errcode = '22023';
      end;
      texts := array_append(texts, formulation.asked ->> 'query_text');
    end loop;
  end if;
  if cardinality(embeddings) * coalesce(cardinality(collections), 1) > most_lists then
    raise exception 'collections times formulations must be at most %', most_lists
      using errcode = '22023';
  end if;

  for formulation in
    select asked.embedding, asked.number - 2 as number
      from unnest(embeddings) with ordinality as asked (embedding, number)
     where asked.embedding is not null
  loop
    argument := case
      when formulation.number >= 0 then format('formulations[%s].', formulation.number) else ''
    end || 'query_embedding';
    if column_dimensions is null then
      select attribute.atttypmod into column_dimensions
        from pg_catalog.pg_attribute as attribute
       where attribute.attrelid = 'public.knowledge_chunks'::regclass
         and attribute.attname = 'embedding';
    end if;
    if extensions.vector_dims(formulation.embedding) <> column_dimensions then
      raise exception '% has % dimensions, the stored embeddings have %',
                      argument, extensions.vector_dims(formulation.embedding), column_dimensions
        using errcode = '22023', hint = 'Embed the query with the model that embedded the chunks.';
    end if;
    if (
      (formulation.embedding operator(extensions.<=>) formulation.embedding) < 0.5
    ) is not true then
      raise exception '% must not be a zero vector, nor too long or short for float4', argument
        using errcode = '22023';
    end if;
  end loop;

  wanted := knowledge_internal.compile_filter(
    filters, filter_type, date_from, date_to, public_only
  );
  if not 'document_date' = any (wanted.or_null) then
    first_date := lower(wanted.document_dates);
    end_date := upper(wanted.document_dates);
  end if;
  is_filtered := not (wanted is null) or viewer_id is not null or collections is not null;
  is_indexed := coalesce(wanted.is_indexed, false)
    or viewer_id is not null
    or collections is not null;

  pool := greatest(pool_size, match_count);
  -- The index gives more than is wanted: its order is that of half precision, and with filters it
  -- goes on from where it stopped, which leaves the order approximate.
  reach := ceil(case when is_filtered then 2 else 1.2 end * greatest(pool, ordinary_rank));
  if vector_weight = 0 then
    embeddings := array_fill(null::extensions.vector, array[cardinality(embeddings)]);
  end if;
  analyses := array(
    select case
             when text_weight > 0 and asked.query_text ~ '\S'
               then knowledge_internal.analyse_query(asked.query_text, search_mode)
           end
      from unnest(texts) with ordinality as asked (query_text, number)
     order by asked.number
  );
  foreach analysis in array analyses loop
    words := words || analysis.words;
    word_queries := word_queries || analysis.word_queries;
    lexemes := lexemes || analysis.lexemes;
  end loop;
  if formulations is not null then
    select array_agg(said.typed order by said.place), array_agg(said.query order by said.place)
      into words, word_queries
      from (
        select distinct on (lower(word.typed)) word.*
          from unnest(words, word_queries) with ordinality as word (typed, query, place)
         order by lower(word.typed), word.place
      ) as said;
  end if;
  -- As the planner estimates it.
  select pg_relation_size(class.oid) / 8192.0
           * coalesce(nullif(class.reltuples, -1) / nullif(class.relpages, 0), rows_on_a_page)
    into chunk_count
    from pg_catalog.pg_class as class
   where class.oid = 'public.knowledge_chunks'::regclass;
  -- Of n chunks m pass the filters. The index looks at reach * n / m rows before it has enough;
  -- comparing looks at m, or at all of them where no index leads to these.
  most_compared := case
    when is_indexed then sqrt(index_cost * reach * chunk_count)
    else reach * chunk_count / most_scanned
  end;
  if is_filtered then
    select corpus.sample into sample from knowledge_internal.corpus_statistics as corpus
     where corpus.document_count > small_corpus;
  end if;
  -- In a large graph of clusters a search that keeps few rows in mind may not find the right one.
  effort := least(
    greatest(2 * pool, effort_per_magnitude * (round(log(greatest(chunk_count, 100000))) - 1)), 1000
  );
  compared_exactly := greatest(pool, ordinary_rank);
  -- Of those whose bits are nearest; of all, where vectors are short.
  nearest_by_bits := case when column_dimensions >= quantized_from then 5 * compared_exactly end;
  -- The rows of a small corpus were written while its mean length still changed.
  scored_exactly := case when chunk_count <= small_corpus then 4 * pool else pool end;

  -- The caller's settings come back below. A set clause on the function would do that too, but a
  -- role that is not a superuser could not create it in a session that has not used pgvector yet:
  -- no dump could be restored.
  perform '[1]'::extensions.vector; -- loads pgvector, which defines the settings
  callers_ef_search := current_setting('hnsw.ef_search');
  callers_iterative_scan := current_setting('hnsw.iterative_scan');
  callers_max_scan_tuples := current_setting('hnsw.max_scan_tuples');
  -- Without filters one plan serves all calls; the plan for filters has their values in it.
  perform set_config(
            'plan_cache_mode',
            case when is_filtered then 'force_custom_plan' else 'force_generic_plan' end,
            true
          ),
          -- No index leads to the rows: then reading all of them in order is the way.
          set_config(
            'enable_seqscan',
            case when is_filtered and not is_indexed then 'on' else 'off' end,
            true
          ),
          set_config('hnsw.ef_search', effort::text, true),
          set_config('hnsw.iterative_scan', 'relaxed_order', true),
          set_config('hnsw.max_scan_tuples', most_scanned::text, true);

  return query
  -- Both are inlined wherever they are named, so that each leg filters inside its own index scan.
  with visible_chunks as not materialized (
    select chunk.*
      from knowledge_internal.searchable_chunks as chunk
     where chunk.status = 'active'
       and (
         not is_filtered
         or (
           (viewer_id is null or chunk.visibility = 'public' or chunk.owner_id = viewer_id)
           and (wanted.visibilities is null or chunk.visibility = any (wanted.visibilities))
           and (
             wanted.sensitivities is null
             or chunk.sensitivity = any (wanted.sensitivities)
             or (chunk.sensitivity is null and 'sensitivity' = any (wanted.or_null))
           )
           and (
             wanted.owner_ids is null
             or chunk.owner_id = any (wanted.owner_ids)
             or (chunk.owner_id is null and 'owner_id' = any (wanted.or_null))
           )
           and (
             wanted.hidden is null
             or not (
               'visibility=' || chunk.visibility = any (wanted.hidden)
               or 'sensitivity' || coalesce('=' || chunk.sensitivity, '') = any (wanted.hidden)
               or 'owner_id' || coalesce('=' || chunk.owner_id, '') = any (wanted.hidden)
             )
           )
         )
       )
  ),
  matching_chunks as not materialized (
    select chunk.*
      from visible_chunks as chunk
     where not is_filtered
        or (
          (wanted.knowledge_types is null or chunk.knowledge_type = any (wanted.knowledge_types))
          and (wanted.source_origins is null or chunk.source_origin = any (wanted.source_origins))
          and (wanted.collections is null or chunk.collection = any (wanted.collections))
          and (wanted.languages is null or chunk.language = any (wanted.languages))
          and (
            wanted.embedding_models is null
            or chunk.embedding_model = any (wanted.embedding_models)
            or (chunk.embedding_model is null and 'embedding_model' = any (wanted.or_null))
          )
          and (
            wanted.document_ids is null
            or chunk.document_id = any (wanted.document_ids)
            or (chunk.document_id is null and 'document_id' = any (wanted.or_null))
          )
          and (
            wanted.source_ids is null
            or chunk.source_id = any (wanted.source_ids)
            or (chunk.source_id is null and 'source_id' = any (wanted.or_null))
          )
          and (
            wanted.chunk_indexes is null
            or chunk.chunk_index <@ wanted.chunk_indexes
            or (chunk.chunk_index is null and 'chunk_index' = any (wanted.or_null))
          )
          and (
            wanted.document_dates is null
            or chunk.document_date <@ wanted.document_dates
            or (chunk.document_date is null and 'document_date' = any (wanted.or_null))
          )
          -- What the index on it can use.
          and (first_date is null or chunk.document_date >= first_date)
          and (end_date is null or chunk.document_date < end_date)
          and (wanted.created is null or chunk.created_at <@ wanted.created)
          and (wanted.updated is null or chunk.updated_at <@ wanted.updated)
          and (
            wanted.excluded is null
            or not (
              'knowledge_type=' || chunk.knowledge_type = any (wanted.excluded)
              or 'source_origin=' || chunk.source_origin = any (wanted.excluded)
              or 'collection=' || chunk.collection = any (wanted.excluded)
              or 'language=' || chunk.language = any (wanted.excluded)
              or 'embedding_model' || coalesce('=' || chunk.embedding_model, '')
                = any (wanted.excluded)
              or 'document_id' || coalesce('=' || chunk.document_id, '') = any (wanted.excluded)
              or 'source_id' || coalesce('=' || chunk.source_id, '') = any (wanted.excluded)
            )
          )
          and (wanted.required_metadata is null or chunk.metadata @> wanted.required_metadata)
          and (
            wanted.alternative_metadata is null
            or chunk.metadata @> any (wanted.alternative_metadata)
          )
          and (
            wanted.metadata_conditions is null
            or knowledge_internal.passes(chunk.metadata, wanted.metadata_conditions)
          )
        )
  ),
  sampled as materialized (
    select chunk.collection, count(*) as rows
      from unnest(sample) as drawn (id)
      join matching_chunks as chunk on chunk.id = drawn.id
     group by chunk.collection
  ),
  -- What gives lists of its own to be fused: each formulation, in each collection.
  searches as materialized (
    select row_number() over (order by asked.formulation, scope.collection) as search,
           asked.*,
           extensions.l2_normalize(extensions.subvector(asked.embedding, 1, most_indexed))
             as direction,
           knowledge_internal.embedding_bits(asked.embedding) as embedding_bits,
           array(
             select quote_literal(word.lexeme)::tsquery
               from unnest(asked.lexemes) with ordinality as word (lexeme, place)
              order by word.place
           ) as lexeme_queries,
           scope.collection,
           case
             when is_filtered then passing.rows <= most_compared
             else chunk_count <= small_corpus
           end as is_narrow,
           asked.is_partial
             and is_indexed
             and passing.rows <= most_read_by_filter
             and passing.rows * candidate_rows <= pool * chunk_count as is_read_by_filter
      from rows from (unnest(embeddings), unnest(analyses)) with ordinality as asked (
             embedding, words, word_queries, lexemes, document_frequencies, weights, weight_vector,
             full_query, candidate_query, required_query, is_partial, is_optional, document_count,
             mean_length, cosine_spread, formulation
           )
     cross join (
             select distinct named.collection
               from unnest(coalesce(collections, array[null::text])) as named (collection)
           ) as scope
     cross join lateral (
             -- offset 0: looked at once, however often it is named.
             select case
                      when not is_filtered then null
                      when sample is not null then (
                        select coalesce(sum(sampled.rows), 0) * chunk_count / cardinality(sample)
                          from sampled
                         where collections is null or sampled.collection = scope.collection
                      )
                      else (
                        select count(*)
                          from (
                            select
                              from matching_chunks as chunk
                             where collections is null or chunk.collection = scope.collection
                             limit most_compared::integer + 1
                          ) as counted
                      )
                    end as rows
            offset 0
           ) as passing
  ),
  nearest as materialized (
    select searches.search, found.id, found.distance
      from searches
     cross join lateral (
             select chunk.id,
                    chunk.embedding operator(extensions.<=>) searches.embedding as distance
               from matching_chunks as chunk
              where chunk.embedding is not null
                and (collections is null or chunk.collection = searches.collection)
              order by chunk.indexed_embedding operator(extensions.<=>) searches.direction
              limit reach
           ) as found
     where searches.embedding is not null
       and not searches.is_narrow
  ),
  reached as materialized (
    select searches.search, count(nearest.id) = reach as is_full
      from searches
      left join nearest on nearest.search = searches.search
     group by searches.search
  ),
  -- Every matching row, where there are few or the index stopped early.
  nearest_exactly as materialized (
    select searches.search, found.id, found.distance
      from searches
      join reached on reached.search = searches.search and not reached.is_full
     cross join lateral (
             select nearby.id,
                    nearby.embedding operator(extensions.<=>) searches.embedding as distance
               from (
                 select chunk.id, chunk.embedding
                   from matching_chunks as chunk
                  where chunk.embedding is not null
                    and (collections is null or chunk.collection = searches.collection)
                  order by chunk.embedding_bits operator(extensions.<~>) searches.embedding_bits,
                           chunk.id
                  limit nearest_by_bits
               ) as nearby
              order by distance, nearby.id
              limit compared_exactly
           ) as found
     where searches.embedding is not null
  ),
  neighbours as materialized (
    select found.search,
           found.id,
           1 - found.distance as similarity,
           row_number() over (
             partition by found.search order by found.distance, found.id
           ) as vector_rank
      from (
        select nearest.search, nearest.id, nearest.distance
          from nearest
          join reached on reached.search = nearest.search and reached.is_full
        union all
        select nearest_exactly.search, nearest_exactly.id, nearest_exactly.distance
          from nearest_exactly
      ) as found
  ),
  vector_results as (
    select neighbours.search, neighbours.id, neighbours.similarity, neighbours.vector_rank
      from neighbours
     where neighbours.vector_rank <= pool
       and neighbours.similarity >= match_threshold
  ),
  -- Rows with the query's telling words. The inner product of the sparse vectors is BM25 for the
  -- mean length at the time the row was written; those that are best by it are scored exactly.
  likely as materialized (
    select searches.search, best.id, best.content_tsv, best.text_length
      from searches
     cross join lateral (
             select drawn.id, drawn.content_tsv, drawn.text_length
               from (
                 select chunk.id, chunk.content_tsv, chunk.text_length,
                        chunk.bm25 operator(extensions.<#>) searches.weight_vector as product
                   from matching_chunks as chunk
                  where chunk.content_tsv @@ searches.candidate_query
                    and (collections is null or chunk.collection = searches.collection)
                  order by product, chunk.id
                 offset 0
               ) as drawn
              where searches.is_optional
                 or not searches.is_partial
                 or (drawn.content_tsv || ''::tsvector) @@ searches.full_query
              order by drawn.product, drawn.id
              limit scored_exactly
           ) as best
     where searches.candidate_query is not null
       and not searches.is_read_by_filter
  ),
  -- Too few of them pass the filters, or have what is required: more are drawn, and where these are
  -- too few as well, every row with any of the words counts.
  scarce as materialized (
    select searches.search
      from searches
     where searches.is_partial
       and not searches.is_read_by_filter
       and (select count(*) from likely where likely.search = searches.search) < pool
  ),
  likely_wider as materialized (
    select searches.search, best.id, best.content_tsv, best.text_length
      from searches
      join scarce on scarce.search = searches.search
     cross join lateral (
             select coalesce(searches.required_query && drawn.query, drawn.query) as query
               from knowledge_internal.candidate_query(
                      searches.lexemes, searches.document_frequencies, searches.weights,
                      searches.document_count, wider_effort
                    ) as drawn (query)
            offset 0
           ) as wider
     cross join lateral (
             select drawn.id, drawn.content_tsv, drawn.text_length
               from (
                 select chunk.id, chunk.content_tsv, chunk.text_length,
                        chunk.bm25 operator(extensions.<#>) searches.weight_vector as product
                   from matching_chunks as chunk
                  where chunk.content_tsv @@ wider.query
                    and (collections is null or chunk.collection = searches.collection)
                  order by product, chunk.id
                 offset 0
               ) as drawn
              where searches.is_optional
                 or (drawn.content_tsv || ''::tsvector) @@ searches.full_query
              order by drawn.product, drawn.id
              limit scored_exactly
           ) as best
  ),
  incomplete as materialized (
    select searches.search, searches.is_narrow
      from searches
     where searches.is_read_by_filter
        or (
          searches.search in (select scarce.search from scarce)
            and (select count(*) from likely_wider where likely_wider.search = searches.search)
                  < pool
        )
  ),
  likely_in_full as materialized (
    select searches.search, best.id, best.content_tsv, best.text_length
      from searches
      join incomplete on incomplete.search = searches.search and not incomplete.is_narrow
     cross join lateral (
             select chunk.id, chunk.content_tsv, chunk.text_length
               from matching_chunks as chunk
              where chunk.content_tsv @@ searches.full_query
                and (collections is null or chunk.collection = searches.collection)
              order by chunk.bm25 operator(extensions.<#>) searches.weight_vector, chunk.id
              limit scored_exactly
           ) as best
    union all
    -- Where few rows pass the filters, the index of these finds them.
    select searches.search, best.id, best.content_tsv, best.text_length
      from searches
      join incomplete on incomplete.search = searches.search and incomplete.is_narrow
     cross join lateral (
             select drawn.id, drawn.content_tsv, drawn.text_length
               from (
                 select chunk.id, chunk.content_tsv, chunk.text_length,
                        chunk.bm25 operator(extensions.<#>) searches.weight_vector as product
                   from matching_chunks as chunk
                  where chunk.bm25 operator(extensions.<#>) searches.weight_vector < 0
                    and (collections is null or chunk.collection = searches.collection)
                  order by product, chunk.id
                 offset 0
               ) as drawn
              where (drawn.content_tsv || ''::tsvector) @@ searches.full_query
              order by drawn.product, drawn.id
              limit scored_exactly
           ) as best
  ),
  found as materialized (
    -- Concatenated with nothing, a tsvector that lies outside its row is fetched once.
    select best.search, best.id, best.content_tsv || ''::tsvector as content_tsv, best.text_length
      from (
        select likely.*
          from likely
         where likely.search not in (select scarce.search from scarce)
        union all
        select likely_wider.*
          from likely_wider
         where likely_wider.search not in (select incomplete.search from incomplete)
        union all
        select likely_in_full.* from likely_in_full
      ) as best
  ),
  text_results as (
    select ranked.search, ranked.id, ranked.text_score, ranked.text_rank
      from (
        select weighed.search,
               weighed.id,
               weighed.text_score,
               row_number() over (
                 partition by weighed.search order by weighed.text_score desc, weighed.id
               ) as text_rank
          from (
            select found.search,
                   found.id,
                   sum(
                     word.weight * occurrences.tf * 2.2
                       / (
                         occurrences.tf
                           + 1.2 * (0.25 + 0.75 * found.text_length / searches.mean_length)
                       )
                   ) as text_score
              from found
              join searches on searches.search = found.search
             cross join lateral unnest(searches.lexeme_queries, searches.weights)
                     as word (query, weight)
             cross join lateral (
                     select width_bucket(
                              ts_rank('{1,1,1,1}', found.content_tsv, word.query) * pi() ^ 2 / 6,
                              knowledge_internal.rank_steps()
                            ) as tf
                   ) as occurrences
             group by found.search, found.id
          ) as weighed
      ) as ranked
     where ranked.text_rank <= pool
  ),
  combined as (
    select coalesce(vector_results.search, text_results.search) as search,
           coalesce(vector_results.id, text_results.id) as id,
           vector_results.vector_rank,
           text_results.text_rank,
           vector_results.similarity,
           text_results.text_score
      from vector_results
      full outer join text_results
        on text_results.search = vector_results.search and text_results.id = vector_results.id
  ),
  evidence as materialized (
    select searches.search,
           listed.ordinary_cosine,
           vector_weight * leg.vector_evidence as vector_evidence,
           text_weight * leg.text_evidence as text_evidence
      from searches
     cross join lateral (
             select count(*) as neighbours,
                    max(neighbours.similarity) as best_cosine,
                    min(neighbours.similarity)
                      filter (where neighbours.vector_rank <= ordinary_rank) as ordinary_cosine
               from neighbours
              where neighbours.search = searches.search
           ) as listed
     cross join lateral knowledge_internal.leg_evidence(
             listed.neighbours,
             listed.best_cosine,
             listed.ordinary_cosine,
             searches.cosine_spread,
             (
               select max(text_results.text_score)
                 from text_results
                where text_results.search = searches.search
             ),
             searches.weights
           ) as leg
  ),
  -- Read by explain_hybrid_search, which alone asks for it.
  trace as materialized (
    select set_config(
             'knowledge_internal.trace', jsonb_agg(told.list order by told.search)::text, true
           )
      from (
        select searches.search,
               jsonb_build_object(
                 'formulation', searches.formulation - 1,
                 'collection', searches.collection,
                 'vector', jsonb_build_object(
                   'strategy', case
                     when searches.embedding is null then 'not run'
                     when searches.is_narrow then 'compared: few rows'
                     when reached.is_full then 'index'
                     else 'compared: the index stopped early'
                   end,
                   'rows', (
                     select count(*) from vector_results
                      where vector_results.search = searches.search
                   )
                 ),
                 'text', jsonb_build_object(
                   'strategy', case
                     when searches.full_query is null then 'not run'
                     when searches.is_read_by_filter then 'all rows: few pass the filters'
                     when incomplete.search is not null then 'all rows: too few candidates'
                     when searches.search in (select scarce.search from scarce)
                       then 'more candidates: too few at first'
                     when searches.is_partial then 'candidates'
                     else 'all rows'
                   end,
                   'rows', (
                     select count(*) from text_results
                      where text_results.search = searches.search
                   )
                 ),
                 'pool', pool,
                 'weights', jsonb_build_object(
                   'vector', evidence.vector_evidence, 'text', evidence.text_evidence
                 )
               ) as list
          from searches
          join reached on reached.search = searches.search
          join evidence on evidence.search = searches.search
          left join incomplete on incomplete.search = searches.search
         where current_setting('knowledge_internal.tracing', true) = 'on'
      ) as told
  ),
  -- auto weighs scores, so a row gets the score of the leg that missed it too.
  completed as (
    select combined.*,
           evidence.vector_evidence,
           evidence.text_evidence,
           coalesce(
             combined.similarity,
             1 - (chunk.embedding operator(extensions.<=>) searches.embedding),
             evidence.ordinary_cosine,
             0
           ) as cosine,
           coalesce(
             combined.text_score,
             case
               when chunk.content_tsv @@ searches.full_query
                 then -(chunk.bm25 operator(extensions.<#>) searches.weight_vector)
             end,
             0
           ) as bm25
      from combined
      join searches on searches.search = combined.search
      join evidence on evidence.search = combined.search
      left join public.knowledge_chunks as chunk
        on fusion = 'auto'
       and chunk.id = combined.id
       and (
         combined.similarity is null and searches.embedding is not null
         or combined.text_score is null and searches.full_query is not null
       )
  ),
  ranges as (
    select completed.search,
           min(completed.similarity) as least_similarity,
           max(completed.similarity) as best_similarity,
           min(completed.text_score) as least_text_score,
           max(completed.text_score) as best_text_score,
           min(completed.cosine) as least_cosine,
           max(completed.cosine) as best_cosine,
           max(completed.bm25) as best_bm25
      from completed
     group by completed.search
  ),
  scored as (
    select completed.id,
           min(completed.vector_rank) as vector_rank,
           min(completed.text_rank) as text_rank,
           max(completed.similarity) as similarity,
           max(completed.text_score) as text_score,
           sum(
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
                     completed.vector_evidence * (completed.cosine - ranges.least_cosine)
                       + completed.text_evidence * completed.bm25
                   ) / nullif(
                     completed.vector_evidence * (ranges.best_cosine - ranges.least_cosine)
                       + completed.text_evidence * ranges.best_bm25,
                     0
                   ),
                   1
                 ) / cardinality(embeddings)
             end
           ) as rrf_score
      from completed
      join ranges on ranges.search = completed.search
     group by completed.id
  ),
  ordered as (
    select aged.*,
           row_number() over (
             order by aged.rrf_score desc, least(aged.vector_rank, aged.text_rank), aged.id
           ) as place
      from (
        select scored.id,
               scored.vector_rank,
               scored.text_rank,
               scored.similarity,
               scored.text_score,
               chunk.chunk_index,
               coalesce(case when one_per_document then chunk.document_id end, scored.id) as unit,
               case
                 when recency_half_life is null or chunk.document_date is null
                   then scored.rrf_score
                 else
                   scored.rrf_score * 0.5 ^ least(
                     greatest(today - chunk.document_date, 0) / greatest(recency_half_life, 1e-6),
                     500
                   )
               end as rrf_score
          from scored
          left join public.knowledge_chunks as chunk
            on (one_per_document or recency_half_life is not null) and chunk.id = scored.id
      ) as aged
  ),
  -- A document stands where its best hit stands, and shows its best chunk.
  units as (
    select distinct on (ordered.unit)
           ordered.id,
           ordered.vector_rank,
           ordered.text_rank,
           ordered.similarity,
           ordered.text_score,
           max(ordered.rrf_score) over (partition by ordered.unit) as rrf_score,
           min(ordered.place) over (partition by ordered.unit) as place
      from ordered
     order by ordered.unit, ordered.chunk_index is null, ordered.place
  ),
  page as (
    select units.*, count(*) over () as total_count
      from units
     order by units.place, units.id
     limit match_count
    offset match_offset
  )
  select chunk.id,
         chunk.content,
         chunk.knowledge_type,
         chunk.document_id,
         chunk.chunk_index,
         chunk.source_origin,
         chunk.metadata,
         page.rrf_score,
         page.vector_rank,
         page.text_rank,
         page.similarity,
         page.text_score,
         case
           when page.text_rank is null then 'vector'
           when page.vector_rank is null then 'text'
           else 'both'
         end,
         array(
           select word.typed
             from (select chunk.content_tsv || ''::tsvector as content_tsv offset 0) as fetched
            cross join unnest(words, word_queries)
                 with ordinality as word (typed, query, place)
            where fetched.content_tsv @@ word.query
            order by word.place
         ),
         document.title,
         document.source_url,
         chunk.collection,
         chunk.document_date,
         case
           when snippet then knowledge_internal.snippet(
             chunk.content, knowledge_internal.text_configuration(chunk.language), lexemes
           )
         end,
         case
           when neighbor_window > 0 then coalesce(
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
         page.total_count
    from page
    join public.knowledge_chunks as chunk on chunk.id = page.id
    left join public.knowledge_documents as document
      on document.id = chunk.document_id
     and (viewer_id is null or document.visibility = 'public' or document.owner_id = viewer_id)
     and (not public_only or document.visibility = 'public')
   where (select count(*) from trace) >= 0
   order by page.place;

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
  'chunks are returned. '
  'filters: a JSON array of conditions {"field", "op", "value"} that all must hold (see the '
  'documentation), inside both legs; date_from, date_to: document_date, inclusive. viewer_id: rows '
  'that are public or the viewer''s; public_only: public rows. collections: each is ranked by '
  'itself in each leg, and the ranks are those within it; formulations: further ways to ask, '
  '[{"query_text", "query_embedding"}], each ranked by itself; all lists are fused. '
  'recency_half_life (days) multiplies the fused score by 0.5 ^ (age / half-life). '
  'one_per_document: a document stands where its best hit stands and shows its best chunk. '
  'match_offset pages through that list; total_count is its length. '
  'neighbor_window: context holds the chunks around the hit. snippet: an excerpt with the words '
  'found in <mark>, HTML-escaped. Raises 22023 for an argument out of bounds.';

revoke all on function public.hybrid_search_knowledge_chunks from public, anon, authenticated;
grant execute on function public.hybrid_search_knowledge_chunks to service_role;

notify pgrst, 'reload schema';
