-- 009_hybrid_search: the search.
-- Adds: types search_question, search_plan and knowledge_search_hit, the functions that check and
-- plan a search, and hybrid_search_knowledge_chunks. Locks nothing that exists.
-- Written from supabase/schemas/09_hybrid_search.sql by `make baseline`: edit that file.

create type knowledge_internal.search_question as (
  embedding extensions.vector,
  query_text text,
  ignored_embedding text
);

comment on type knowledge_internal.search_question is
  'One way to ask: an embedding, words, or both. ignored_embedding: why its embedding is not used, '
  'where on_bad_embedding allows that.';

create type knowledge_internal.search_plan as (
  is_filtered boolean,
  is_indexed boolean,
  pool integer,
  best_hits integer,
  typical_rank integer,
  cosine_ranks integer,
  index_rows integer,
  ef_search integer,
  scan_tuples integer,
  chunk_count double precision,
  dimensions integer,
  most_compared double precision,
  compared_by_bits integer,
  compared_exactly integer,
  scored_exactly integer,
  most_read_by_filter double precision,
  is_small_corpus boolean,
  first_date date,
  end_date date,
  sample uuid[],
  sample_weight double precision,
  sampled_collections text[],
  near_ids uuid[],
  near_similarities float8[],
  near_word_scores float8[],
  text_ids uuid[],
  text_draw integer,
  is_empty boolean
);

comment on type knowledge_internal.search_plan is
  'How a search finds its rows. is_filtered: not every active row may be returned (for excluded '
  'collections only, where they have most chunks); is_indexed: an '
  'index finds the rows that may. dimensions: those of the stored embeddings. '
  'pool: rows that each leg returns. best_hits: how many of a leg '
  'show what its best are like. typical_rank: the neighbour whose similarity counts as ordinary. '
  'cosine_ranks: for so many of the best rows of the text leg, auto reads the embedding where the '
  'vector leg missed the row. '
  'Vector leg: index_rows are asked of the index, with '
  'ef_search and scan_tuples as pgvector''s settings; with at most most_compared matching rows '
  '(of chunk_count) the index is not used: compared_by_bits rows are chosen by embedding_bits '
  '(null: all), and compared_exactly of them returned. Text leg: scored_exactly candidates get '
  'their exact BM25; with at most most_read_by_filter matching rows (most_compared, where the '
  'vector leg compares them too) all of them are candidates. '
  'first_date and end_date: the bounds of document_date, for its index. sample: ids of chunks '
  'drawn at random, each for sample_weight chunks, by which the matching rows are counted; '
  'sampled_collections: the collections of those of them that match. near_ids and text_ids: what '
  'with_found_rows found for the two legs, near_ids with their similarities and BM25 scores by '
  'bm25, text_ids in text_draw, as in drawn_rows. is_empty: no row passes the filter.';

create type knowledge_internal.search_settings as (
  ef_search text,
  iterative_scan text,
  max_scan_tuples text
);

comment on type knowledge_internal.search_settings is
  'The caller''s settings of pgvector, which a search changes and restores.';

-- A type and not "returns table": snippet is an argument and a column, and PL/pgSQL allows no name
-- twice.
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
  total_count bigint,
  pool_ended boolean,
  heading text,
  sensitivity text,
  collections text[],
  document_chunks integer,
  external_key text,
  source_row jsonb,
  confidence double precision,
  notes jsonb
);

comment on type public.knowledge_search_hit is
  'A hit of hybrid_search_knowledge_chunks. rrf_score: the fused score. vector_rank, text_rank: '
  'its ranks in the two legs, null where a leg missed it. similarity: cosine; text_score: BM25. '
  'match_type: vector, text or both. matched_terms: words of the query that it has. context: the '
  'chunks around it. total_count: hits in the list that match_offset pages through. pool_ended: a '
  'leg returned as many rows as its pool holds, so rows beyond the list may match. collections: '
  'those in which the hit was found, with one_per_document those of all its chunks in the pools. '
  'document_chunks: how many visible chunks the document has, 0 without one. source_row: the row '
  'of an adopted table that the document is made of. confidence: the fused score over the highest '
  'possible one, 0 to 1. notes: what the search did beside what was asked, null for nothing; '
  'embedding: why the embedding was ignored; replaced: the words that no visible chunk has, and '
  'what was searched instead.';

create function knowledge_internal.check_range(
  argument text, given double precision, lowest double precision, highest double precision,
  allowed text default null
)
returns void
language plpgsql
immutable
security invoker
set search_path = pg_catalog, pg_temp
as $$
begin
  if (given between lowest and highest) is not true then
    raise exception '% must be %, not %',
                    argument, coalesce(allowed, format('between %s and %s', lowest, highest)),
                    coalesce(given::text, 'null')
      using errcode = '22023';
  end if;
end
$$;

comment on function knowledge_internal.check_range(
  text, double precision, double precision, double precision, text
) is
  'Raises 22023 for null and for a number out of its bounds; allowed says these in words.';

create function knowledge_internal.check_choice(argument text, given text, choices text[])
returns void
language plpgsql
immutable
security invoker
set search_path = pg_catalog, pg_temp
as $$
begin
  if (given = any (choices)) is not true then
    raise exception '% must be one of %, not %',
                    argument, array_to_string(choices, ', '), coalesce(left(given, 100), 'null')
      using errcode = '22023';
  end if;
end
$$;

comment on function knowledge_internal.check_choice(text, text, text[]) is
  'Raises 22023 for a text that is none of the choices.';

create function knowledge_internal.check_flag(argument text, given boolean)
returns void
language plpgsql
immutable
security invoker
set search_path = pg_catalog, pg_temp
as $$
begin
  if given is null then
    raise exception '% must be true or false, not null', argument using errcode = '22023';
  end if;
end
$$;

comment on function knowledge_internal.check_flag(text, boolean) is
  'Raises 22023 for a null where true or false is needed.';

create function knowledge_internal.check_search_arguments(
  match_count integer,
  match_threshold double precision,
  vector_weight double precision,
  text_weight double precision,
  search_mode text,
  pool_size integer,
  rrf_k double precision,
  fusion text,
  public_only boolean,
  one_per_document boolean,
  neighbor_window integer,
  recency_half_life double precision,
  match_offset integer,
  snippet boolean,
  viewer_groups text[],
  on_bad_embedding text,
  prefix_last boolean
)
returns void
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
as $$
declare
  problem text; -- begins with the name of the argument, whose value is %s
  given text;
begin
  -- One expression, because a connection keeps a plan for each. Weights and rrf_k beyond their
  -- bounds could make a score 0 or infinite.
  problem := case
    when (match_count between 1 and 1000) is not true
      then 'match_count must be between 1 and 1000, not %s'
    when (match_threshold between -1 and 1) is not true
      then 'match_threshold must be a cosine similarity between -1 and 1, not %s'
    when (vector_weight = 0 or vector_weight between 1e-30 and 1e30) is not true
      then 'vector_weight must be 0 or between 1e-30 and 1e30, not %s'
    when (text_weight = 0 or text_weight between 1e-30 and 1e30) is not true
      then 'text_weight must be 0 or between 1e-30 and 1e30, not %s'
    when vector_weight = 0 and text_weight = 0
      then 'vector_weight and text_weight are both 0, one must be above'
    when (search_mode in ('websearch', 'simple', 'phrase')) is not true
      then 'search_mode must be one of websearch, simple, phrase, not %s'
    when (pool_size between 1 and 1000) is not true
      then 'pool_size must be between 1 and 1000, not %s'
    when (rrf_k between 1e-30 and 1e30) is not true
      then 'rrf_k must be above 0 and at most 1e30, not %s'
    when fusion not in ('rrf', 'relative_score', 'auto', 'stored_or_auto')
      then 'fusion must be one of rrf, relative_score, auto, stored_or_auto, not %s'
    when public_only is null
      then 'public_only must be true or false, not null'
    when one_per_document is null
      then 'one_per_document must be true or false, not null'
    when (neighbor_window between 0 and 5) is not true
      then 'neighbor_window must be between 0 and 5, not %s'
    when recency_half_life not between 1e-300 and 1e300
      then 'recency_half_life must be a number of days above 0, not %s'
    when (match_offset between 0 and 1000) is not true
      then 'match_offset must be between 0 and 1000, not %s'
    when snippet is null
      then 'snippet must be true or false, not null'
    when (on_bad_embedding in ('error', 'text')) is not true
      then 'on_bad_embedding must be one of error, text, not %s'
    when prefix_last is null
      then 'prefix_last must be true or false, not null'
  end;
  if problem is not null then
    given := jsonb_build_object(
      'match_count', match_count::text, 'match_threshold', match_threshold::text,
      'vector_weight', vector_weight::text, 'text_weight', text_weight::text,
      'search_mode', search_mode, 'pool_size', pool_size::text, 'rrf_k', rrf_k::text,
      'fusion', fusion, 'neighbor_window', neighbor_window::text,
      'recency_half_life', recency_half_life::text, 'match_offset', match_offset::text,
      'on_bad_embedding', on_bad_embedding
    ) ->> split_part(problem, ' ', 1);
    raise exception '%', format(problem, coalesce(left(given, 100), 'null'))
      using errcode = '22023';
  end if;
  if viewer_groups is not null then
    perform knowledge_internal.check_viewer_groups('viewer_groups', viewer_groups);
  end if;
end
$$;

comment on function knowledge_internal.check_search_arguments is
  'Raises 22023 for an argument of the search that is out of bounds.';

create function knowledge_internal.refused_embedding(
  embedding extensions.vector, argument text, dimensions integer, is_error boolean
)
returns text
language plpgsql
immutable
security invoker
set search_path = pg_catalog, pg_temp
as $$
declare
  problem text := format(
    '%s must not be a zero vector, nor too long or short for float4', argument
  );
begin
  if extensions.vector_dims(embedding) <> dimensions then
    problem := format(
      '%s has %s dimensions, the stored embeddings have %s',
      argument, extensions.vector_dims(embedding), dimensions
    );
    if is_error then
      raise exception '%', problem
        using errcode = '22023', hint = 'Embed the query with the model that embedded the chunks.';
    end if;
  end if;
  if is_error then
    raise exception '%', problem using errcode = '22023';
  end if;
  return problem;
end
$$;

comment on function knowledge_internal.refused_embedding(
  extensions.vector, text, integer, boolean
) is
  'Why a search cannot use an embedding that has another size than the stored ones, or no '
  'direction. Raises 22023 with this reason if it is an error.';

create function knowledge_internal.checked_question(
  embedding extensions.vector,
  query_text text,
  argument text,
  dimensions integer,
  uses_embeddings boolean,
  uses_texts boolean,
  on_bad_embedding text
)
returns knowledge_internal.search_question
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on
as $$
declare
  question knowledge_internal.search_question;
begin
  question.query_text := case when uses_texts and query_text ~ '\S' then query_text end;
  question.ignored_embedding := case
    when embedding is not null and (
      extensions.vector_dims(embedding) <> dimensions
        or ((embedding operator(extensions.<=>) embedding) < 0.5) is not true
    ) then
      knowledge_internal.refused_embedding(
        embedding, argument, dimensions,
        -- Without words, nothing would be left to search by.
        on_bad_embedding = 'error' or question.query_text is null
      )
  end;
  question.embedding := case
    when uses_embeddings and question.ignored_embedding is null then embedding
  end;
  return question;
end
$$;

comment on function knowledge_internal.checked_question is
  'A question with what the legs that are run use of it. Where on_bad_embedding is text, an '
  'embedding that cannot be used is left out and the reason kept, else the function raises 22023 '
  'naming the argument.';

create function knowledge_internal.search_questions(
  query_embedding extensions.vector,
  query_text text,
  formulations jsonb,
  dimensions integer,
  uses_embeddings boolean,
  uses_texts boolean,
  on_bad_embedding text
)
returns knowledge_internal.search_question[]
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on
as $$
begin
  if query_embedding is null and coalesce(query_text, '') !~ '\S' then
    raise exception 'query_embedding and query_text are both missing, give at least one'
      using errcode = '22023';
  end if;
  return knowledge_internal.checked_question(
    query_embedding, query_text, 'query_embedding', dimensions, uses_embeddings, uses_texts,
    on_bad_embedding
  ) || case
    when formulations is not null then knowledge_internal.further_questions(
      formulations, dimensions, uses_embeddings, uses_texts, on_bad_embedding
    )
    else '{}'
  end;
end
$$;

comment on function knowledge_internal.search_questions is
  'The question of a search and its further formulations, checked, each with what the legs that '
  'are run use of it. Raises 22023 naming the argument.';

create function knowledge_internal.further_questions(
  formulations jsonb,
  dimensions integer,
  uses_embeddings boolean,
  uses_texts boolean,
  on_bad_embedding text
)
returns knowledge_internal.search_question[]
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on
as $$
declare
  most_formulations constant integer := 10;
  questions knowledge_internal.search_question[] := '{}';
  formulation record;
  embedding extensions.vector;
  argument text;
begin
  if jsonb_typeof(formulations) <> 'array'
     or jsonb_array_length(formulations) > most_formulations
  then
    raise exception 'formulations must be an array of at most % objects', most_formulations
      using errcode = '22023';
  end if;
  for formulation in
    select item.asked, item.number - 1 as number
      from jsonb_array_elements(formulations) with ordinality as item (asked, number)
     order by item.number
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
      embedding := (formulation.asked ->> 'query_embedding')::extensions.vector;
    exception when data_exception or program_limit_exceeded then
      raise exception '%.query_embedding: %', argument, left(sqlerrm, 200)
        using errcode = '22023';
    end;
    questions := questions || knowledge_internal.checked_question(
      embedding, formulation.asked ->> 'query_text', argument || '.query_embedding', dimensions,
      uses_embeddings, uses_texts, on_bad_embedding
    );
  end loop;
  return questions;
end
$$;

comment on function knowledge_internal.further_questions is
  'The questions of the argument formulations. Raises 22023 naming the argument, such as '
  'formulations[2].query_embedding.';

create function knowledge_internal.distinct_names(names text[])
returns text[]
language plpgsql
immutable
security invoker
set search_path = pg_catalog, pg_temp
as $$
begin
  if names is null then
    return null;
  end if;
  return (
    select array_agg(distinct listed.name order by listed.name)
      from unnest(names) as listed (name)
     where listed.name is not null
  );
end
$$;

comment on function knowledge_internal.distinct_names(text[]) is
  'Each name once, in order, without nulls; null when there is none.';

create function knowledge_internal.checked_collections(collections text[], questions integer)
returns text[]
language plpgsql
immutable
security invoker
set search_path = pg_catalog, pg_temp
as $$
declare
  most_collections constant integer := 50;
  most_lists constant integer := 100;
begin
  if (
    array_ndims(collections) = 1
      and array_position(collections, null) is null
      and cardinality(collections) <= most_collections
  ) is not true then
    raise exception 'collections must be 1 to % names, not %',
                    most_collections, left(collections::text, 100)
      using errcode = '22023';
  end if;
  if cardinality(collections) * questions > most_lists then
    raise exception 'collections times formulations must be at most %', most_lists
      using errcode = '22023';
  end if;
  return knowledge_internal.distinct_names(collections);
end
$$;

comment on function knowledge_internal.checked_collections(text[], integer) is
  'The collections, each once. Raises 22023 for collections that are not 1 to 50 names, or too '
  'many together with the formulations.';

create function knowledge_internal.analyse_questions(
  questions knowledge_internal.search_question[],
  search_mode text,
  wanted knowledge_internal.chunk_filter,
  viewer_id uuid,
  viewer_groups text[],
  collections text[],
  prefix_last boolean
)
returns knowledge_internal.query_analysis[]
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
as $$
declare
  question knowledge_internal.search_question;
  analysis knowledge_internal.query_analysis;
  analyses knowledge_internal.query_analysis[];
  replaced jsonb;
  named constant text[] := coalesce(collections, wanted.collections);
  access constant knowledge_internal.chunk_access :=
    knowledge_internal.restricted_access(wanted, viewer_id, viewer_groups);
begin
  foreach question in array questions loop
    analysis := null;
    replaced := null;
    -- A search without words does not plan the call, so it works where the text leg is broken.
    if question.query_text is not null then
      analysis := knowledge_internal.analyse_query(
        question.query_text, search_mode, named, prefix_last, access
      );
      replaced := case
        when search_mode = 'websearch' then knowledge_internal.respelled_words(
          question.query_text, analysis, access
        )
      end;
    end if;
    if replaced is not null then
      analysis := knowledge_internal.analyse_query(
        knowledge_internal.respelled(question.query_text, replaced), search_mode, named,
        prefix_last, access
      );
      analysis.replaced := replaced;
    end if;
    analyses := array_append(analyses, analysis);
  end loop;
  return analyses;
end
$$;

comment on function knowledge_internal.analyse_questions is
  'analyse_query for each question, null for one without words. Under websearch, words that no '
  'visible chunk has are replaced by near ones.';

create function knowledge_internal.best_fused_score(
  fusion text,
  questions knowledge_internal.search_question[],
  vector_weight double precision,
  text_weight double precision,
  rrf_k double precision
)
returns double precision
language plpgsql
immutable
security invoker
set search_path = pg_catalog, pg_temp
as $$
begin
  if fusion = 'auto' then
    return 1;
  end if;
  return (
    select sum(
             case when asked.embedding is null then 0 else vector_weight end
               + case when asked.query_text is null then 0 else text_weight end
           ) / case fusion when 'rrf' then rrf_k + 1 else 1 end
      from unnest(questions) as asked
  );
end
$$;

comment on function knowledge_internal.best_fused_score is
  'The fused score of a row that is the best of every list that it can be in.';

create function knowledge_internal.search_notes(
  questions knowledge_internal.search_question[],
  analyses knowledge_internal.query_analysis[],
  relaxed_parts text[]
)
returns jsonb
language plpgsql
immutable
security invoker
set search_path = pg_catalog, pg_temp
as $$
begin
  -- Most searches have nothing to note.
  if cardinality(questions) = 1 and questions[1].ignored_embedding is null
     and analyses[1].replaced is null and relaxed_parts = '{}'
  then
    return null;
  end if;
  return nullif(
    jsonb_strip_nulls(
      jsonb_build_object(
        'embedding', 'ignored: ' || (
          select string_agg(asked.ignored_embedding, '; ' order by asked.ordinality)
            from unnest(questions) with ordinality as asked
        ),
        'relaxed', to_jsonb(nullif(relaxed_parts, '{}')),
        'replaced', (
          select jsonb_object_agg(word.key, word.value order by read.ordinality)
            from unnest(analyses) with ordinality as read
           cross join jsonb_each(read.replaced) as word
        )
      )
    ),
    '{}'
  );
end
$$;

comment on function knowledge_internal.search_notes is
  'What a search did beside what was asked, as in the column notes of knowledge_search_hit.';

create function knowledge_internal.has_most_chunks(collections text[])
returns boolean
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
as $$
declare
  most constant float8 := 0.5;
begin
  if collections is null then
    return false;
  end if;
  return coalesce(
    (
      select avg((chunk.collection = any (collections))::integer) > most
        from public.knowledge_corpus_statistics as corpus
       cross join unnest(corpus.sample) as drawn (id)
        join public.knowledge_chunks as chunk on chunk.id = drawn.id
    ),
    false
  );
end
$$;

comment on function knowledge_internal.has_most_chunks(text[]) is
  'Whether more than half of the chunks are in these collections, by the sample of the statistics.';

create function knowledge_internal.with_sample(
  plan knowledge_internal.search_plan,
  wanted knowledge_internal.chunk_filter,
  viewer_id uuid,
  viewer_groups text[]
)
returns knowledge_internal.search_plan
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
-- The planner would plan the limit anew in each call.
set plan_cache_mode = force_generic_plan
as $$
declare
  sample_size constant integer := 100; -- chunks
begin
  plan.sample := coalesce(
    (
      select corpus.sample[:sample_size]
        from public.knowledge_corpus_statistics as corpus
       where corpus.document_count > knowledge_internal.small_corpus_limit()
    ),
    -- A small corpus has no sample of its own.
    array(
      select chunk.id from public.knowledge_chunks as chunk
       where chunk.status = 'active' limit sample_size
    )
  );
  plan.sample_weight := plan.chunk_count / nullif(cardinality(plan.sample), 0);
  plan.sampled_collections := knowledge_internal.sampled_collections(
    wanted, plan, viewer_id, viewer_groups
  );
  -- Without an index, this would read the table once more. A trace is that of a whole search.
  plan.is_empty := plan.is_indexed and plan.sampled_collections = '{}'
    and knowledge_internal.is_common_search(plan)
    and not knowledge_internal.has_matching_chunk(wanted, plan, viewer_id, viewer_groups);
  return plan;
end
$$;

comment on function knowledge_internal.with_sample is
  'The plan of a filtered search with its sample, and whether no row passes the filter.';

create function knowledge_internal.plan_search(
  pool_size integer,
  match_count integer,
  wanted knowledge_internal.chunk_filter,
  viewer_id uuid,
  viewer_groups text[],
  collections text[]
)
returns knowledge_internal.search_plan
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
as $$
declare
  stored constant knowledge_internal.chunk_table := knowledge_internal.chunk_table();
  plan knowledge_internal.search_plan;
begin
  -- One statement, because a connection keeps a plan for each assignment.
  select chunk_count, stored.dimensions, is_small_corpus,
         is_bounded or wanted.bounds_rows is true
           or wanted.excluded_collections is not null
             and knowledge_internal.has_most_chunks(wanted.excluded_collections) as is_filtered,
         is_indexed, pool, 5 as best_hits, typical_rank,
         greatest(pool / 2, fewest_cosines) as cosine_ranks,
         -- The rows of a small corpus were written while its mean length still changed.
         case when is_small_corpus then 4 * pool else pool end as scored_exactly,
         case
           when is_indexed then least(
             most_read,
             greatest(
               pool * chunk_count / candidate_rows,
               least(soon_read, pool * chunk_count / usual_candidates)
             )
           )
           else -1
         end as most_read_by_filter,
         index_rows,
         -- With a low ef_search, HNSW can end in the wrong cluster of a large graph.
         least(
           1000,
           greatest(
             2 * pool, effort_per_magnitude * (round(log(greatest(chunk_count, 100000))) - 1)
           )
         ) as ef_search,
         scan_tuples,
         -- Of n chunks m match. The index reads index_rows * n / m of them before it has enough; a
         -- comparison reads m, or n where no index finds the m.
         case
           when is_indexed then sqrt(index_cost * index_rows * chunk_count)
           else index_rows * chunk_count / scan_tuples
         end as most_compared,
         compared_exactly,
         case when stored.dimensions >= quantized_from then 5 * compared_exactly end
           as compared_by_bits,
         case when has_dates then lower(wanted.document_dates) end as first_date,
         case when has_dates then upper(wanted.document_dates) end as end_date
    into plan.chunk_count, plan.dimensions, plan.is_small_corpus, plan.is_filtered,
         plan.is_indexed, plan.pool, plan.best_hits, plan.typical_rank, plan.cosine_ranks,
         plan.scored_exactly, plan.most_read_by_filter, plan.index_rows, plan.ef_search,
         plan.scan_tuples, plan.most_compared, plan.compared_exactly, plan.compared_by_bits,
         plan.first_date, plan.end_date
    from (
      select 50 as typical_rank,
             25 as fewest_cosines, -- rows of the text leg
             128 as quantized_from, -- dimensions: shorter vectors lie in their row
             20 as index_cost, -- a row of the vector index, against one that is compared
             50 as effort_per_magnitude, -- of hnsw.ef_search, for each tenfold of the table
             1000 as candidate_rows, -- what the words of a query draw, at most
             350 as usual_candidates, -- the same, at least
             3000 as soon_read, -- rows that take no longer to read than a wider draw
             20000 as most_read, -- rows by a filter
             20000 as scan_tuples -- rows
    ) as fixed
   cross join lateral (
           select stored.estimated_rows as chunk_count,
                  stored.estimated_rows <= knowledge_internal.small_corpus_limit()
                    as is_small_corpus,
                  greatest(pool_size, match_count) as pool,
                  greatest(pool_size, match_count, typical_rank) as compared_exactly,
                  num_nonnulls(viewer_id, viewer_groups, collections) > 0 as is_bounded,
                  num_nonnulls(viewer_id, viewer_groups, collections) > 0
                    or wanted.is_indexed is true as is_indexed,
                  ('document_date' = any (wanted.or_null)) is not true as has_dates
         ) as known
   cross join lateral (
           -- More than is wanted: the index orders by half precision, and an iterative scan, which
           -- filters lead to, returns rows in approximate order.
           select ceil(
                    case when is_bounded or wanted.bounds_rows is not null then 2 else 1.1 end
                      * compared_exactly
                  ) as index_rows
         ) as reading;
  if plan.is_filtered then
    plan := knowledge_internal.with_sample(plan, wanted, viewer_id, viewer_groups);
  end if;
  return plan;
end
$$;

comment on function knowledge_internal.plan_search is
  'How a search over the present table finds its rows. A viewer and collections bound the rows '
  'beside the filter.';

create function knowledge_internal.estimated_chunks(
  plan knowledge_internal.search_plan, collection text default null
)
returns float8
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
as $$
begin
  return plan.sample_weight * case
    when collection is null then cardinality(plan.sampled_collections)
    else cardinality(array_positions(plan.sampled_collections, collection))
  end;
end
$$;

comment on function knowledge_internal.estimated_chunks(knowledge_internal.search_plan, text) is
  'How many chunks, of one collection or of all, may match, by the sample of the plan; null '
  'without a filter.';

create function knowledge_internal.is_common_search(plan knowledge_internal.search_plan)
returns boolean
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
as $$
begin
  return not plan.is_small_corpus
    and current_setting('knowledge_internal.tracing', true) is distinct from 'on';
end
$$;

comment on function knowledge_internal.is_common_search(knowledge_internal.search_plan) is
  'Whether common_search answers a search of one list: the corpus is large, and nobody reads a '
  'trace.';

create function knowledge_internal.indexed_direction(embedding extensions.vector)
returns extensions.vector
language plpgsql
immutable
parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $$
declare
  most_indexed constant integer := 4000; -- dimensions of a halfvec
begin
  return extensions.l2_normalize(extensions.subvector(embedding, 1, most_indexed));
end
$$;

comment on function knowledge_internal.indexed_direction(extensions.vector) is
  'What a query''s embedding is compared with indexed_embedding by.';

create function knowledge_internal.use_search_settings(plan knowledge_internal.search_plan)
returns knowledge_internal.search_settings
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
as $$
declare
  -- The cast loads pgvector, which defines the settings.
  callers constant knowledge_internal.search_settings := case
    when '[1]'::extensions.vector is not null then row(
      current_setting('hnsw.ef_search'), current_setting('hnsw.iterative_scan'),
      current_setting('hnsw.max_scan_tuples')
    )
  end;
begin
  perform set_config('hnsw.ef_search', plan.ef_search::text, true),
          -- Filters are checked after the index scan, which goes on until enough rows pass.
          set_config('hnsw.iterative_scan', 'relaxed_order', true),
          set_config('hnsw.max_scan_tuples', plan.scan_tuples::text, true),
          -- Without filters one plan serves all calls; with filters the plan depends on their
          -- values.
          set_config(
            'plan_cache_mode',
            case when plan.is_filtered then 'force_custom_plan' else 'force_generic_plan' end,
            true
          ),
          -- When no index finds the matching rows, a sequential scan does.
          set_config(
            'enable_seqscan',
            case when plan.is_filtered and not plan.is_indexed then 'on' else 'off' end,
            true
          );
  return callers;
end
$$;

comment on function knowledge_internal.use_search_settings(knowledge_internal.search_plan) is
  'Sets what the statement of a search is planned and run with, and returns the caller''s settings '
  'of pgvector. A set clause on the search cannot restore those: a role that is not a superuser '
  'could not create the function in a session that has not loaded pgvector, so no dump could be '
  'restored.';

create function knowledge_internal.restore_settings(callers knowledge_internal.search_settings)
returns void
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
as $$
begin
  perform set_config('hnsw.ef_search', callers.ef_search, true),
          set_config('hnsw.iterative_scan', callers.iterative_scan, true),
          set_config('hnsw.max_scan_tuples', callers.max_scan_tuples, true);
end
$$;

comment on function knowledge_internal.restore_settings(knowledge_internal.search_settings) is
  'Restores the caller''s settings of pgvector.';

-- A definer: service_role has no rights on the internal schema.
create function public.hybrid_search_knowledge_chunks(
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
returns setof public.knowledge_search_hit
language plpgsql
stable
-- Callers have no grant on the tables: the arguments decide which rows they see.
security definer
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
  asked knowledge_internal.asked_words;
  wanted knowledge_internal.chunk_filter;
  plan knowledge_internal.search_plan;
  callers knowledge_internal.search_settings;
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
  if plan.is_empty then
    return;
  end if;
  analyses := knowledge_internal.analyse_questions(
    questions, search_mode, wanted, viewer_id, viewer_groups, collections, prefix_last
  );
  asked := knowledge_internal.asked_words(analyses);
  callers := knowledge_internal.use_search_settings(plan);
  if num_nonnulls(collections, formulations, recency_half_life) = 0 and neighbor_window = 0
     and not one_per_document and knowledge_internal.is_common_search(plan) then
    plan := knowledge_internal.with_found_rows(
      plan, wanted, questions[1], analyses[1], viewer_id, viewer_groups
    );
    return query
    select hit.*
      from knowledge_internal.common_search(
             questions[1], analyses[1], asked, wanted, plan, match_count, match_threshold,
             vector_weight, text_weight, rrf_k, fusion, viewer_id, public_only, match_offset,
             snippet, viewer_groups
           ) as hit;
    perform knowledge_internal.restore_settings(callers);
    return;
  end if;

  return query with
  -- Rows. Both CTEs are inlined wherever they are read, so each leg filters in its own index scan.
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
  -- Fusion.
  combined as (
    select list_id, id, vector_results.vector_rank, text_results.text_rank,
           vector_results.similarity, text_results.text_score,
           vector_results.content_tsv, vector_results.bm25, text_results.embedding
      from vector_results
      full outer join text_results using (list_id, id)
  ),
  evidence as materialized (
    select lists.list_id, leg.*
      from lists
      left join lateral knowledge_internal.leg_evidence(
             array(
               select similarity from neighbours where list_id = lists.list_id order by vector_rank
             ),
             array(
               select -(bm25 operator(extensions.<#>) lists.scored_vector)
                 from neighbours where list_id = lists.list_id and vector_rank <= plan.best_hits
             ),
             array(
               select text_score from text_results where list_id = lists.list_id order by text_rank
             ),
             (
               select has_every_word
                 from text_results where list_id = lists.list_id and text_rank = 1
             ),
             plan.typical_rank, lists.cosine_spread, lists.mutual_neighbours, lists.coverage_weights
           ) as leg on fusion = 'auto'
  ),
  -- auto adds scores, so a row needs the score of the leg that missed it too. In the lower half of
  -- the text leg it counts as least similar: reading its embedding takes time, and nDCG at 10 and
  -- at 50 is the same without it.
  completed as (
    select combined.list_id, combined.id, combined.vector_rank, combined.text_rank,
           combined.similarity, combined.text_score,
           vector_weight * evidence.vector_evidence as cosine_weight,
           text_weight * evidence.text_evidence as bm25_weight,
           coalesce(
             combined.similarity,
             case when combined.text_rank <= plan.cosine_ranks then coalesce(
               1 - (combined.embedding operator(extensions.<=>) lists.embedding),
               evidence.typical_cosine, 0
             )
             end
           ) as cosine,
           coalesce(
             combined.text_score,
             case when lists.is_optional or combined.content_tsv @@ last_draws.query
               then -(combined.bm25 operator(extensions.<#>) lists.scored_vector)
                      + case when lists.bonuses is null then 0
                          else knowledge_internal.bonus(combined.content_tsv, lists.bonuses) end
             end,
             0
           ) as bm25_score,
           coalesce((lists.bonuses).identifier_bonus, 'infinity') as identifier_bonus
      from combined
      join evidence on evidence.list_id = combined.list_id
      left join lists on fusion = 'auto' and lists.list_id = combined.list_id
      left join last_draws on last_draws.list_id = lists.list_id
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
  -- Page.
  ordered as (
    select scored.*, chunk.chunk_index, chunk.collection, aged.score,
           coalesce(case when one_per_document then chunk.document_id end, scored.id) as unit,
           row_number() over (
             order by aged.score desc, least(scored.vector_rank, scored.text_rank), scored.id
           ) as place
      from scored
      left join public.knowledge_chunks as chunk
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
  -- A search returns hits only, so explain_hybrid_search reads the rest from a setting.
  trace as materialized (
    select set_config('knowledge_internal.trace', jsonb_agg(told)::text, true)
      from (
        select lists.list_id, lists.ordinality as formulation, lists.collection, lists.is_narrow,
               lists.is_partial, lists.is_drawn, last_draws.draw, last_draws.relaxed_parts,
               plan.pool, vector_weight * coalesce(evidence.vector_evidence, 1) as vector_weight,
               text_weight * coalesce(evidence.text_evidence, 1) as text_weight,
               lists.embedding is not null as is_embedded,
               lists.list_id in (select list_id from compared_lists) as is_compared,
               (select count(*) from vector_results where list_id = lists.list_id) as vector_rows,
               (select count(*) from text_results where list_id = lists.list_id) as text_rows
          from lists
          join evidence on evidence.list_id = lists.list_id
          left join last_draws on last_draws.list_id = lists.list_id
         where current_setting('knowledge_internal.tracing', true) = 'on'
         order by lists.list_id
      ) as told
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
         page.total_count, plan.pool in (select greatest(vector_rank, text_rank) from completed),
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
   -- Always true: a CTE that nothing reads is not run.
   where (select count(*) from trace) >= 0
   order by page.unit_place;

  perform knowledge_internal.restore_settings(callers);
end
$$;

comment on function public.hybrid_search_knowledge_chunks is
  'Chunks that match a query by meaning and by words, best first. '
  'query_embedding (null: text only) is compared by cosine distance, query_text (null or blank: '
  'vector only) is scored by BM25 (k1 1.2, b 0.75); each leg gives its best pool_size chunks. '
  'fusion: null is the setting stored in knowledge_settings for the collection searched, else rrf; '
  'stored_or_auto is that setting, else auto. '
  'rrf adds vector_weight / (rrf_k + vector_rank) and text_weight / (rrf_k + text_rank), '
  'where a leg that missed the chunk adds nothing and has a null rank (Cormack, Clarke and '
  'Buettcher 2009); relative_score scales each leg''s scores to 0..1, 0 being its last chunk (of a '
  'text leg alone, no word found), and adds them, weighted; auto adds cosine similarity and BM25, '
  'weighted for each query by what the legs show of their own reliability and by the caller''s '
  'weights, 1 being the best that any chunk could reach. '
  'The fused score is in rrf_score. '
  'search_mode: websearch (words are optional, "a phrase" is required, -word excludes, or joins '
  'alternatives), simple (all words are required), phrase (the words in this order); it binds the '
  'text leg only. match_threshold is the least cosine similarity in the vector leg. Only active '
  'chunks are returned. '
  'filters: a JSON array of conditions {"field", "op", "value"} that all must hold (see the '
  'documentation), inside both legs; date_from, date_to: document_date, inclusive. viewer_id, '
  'viewer_groups: rows that are public, the viewer''s, or of one of these groups (with groups '
  'alone, the viewer owns no rows; with neither, all rows); public_only: public rows. '
  'collections: each is ranked by itself in each leg, and the ranks are those within it; '
  'formulations: further ways to ask, [{"query_text", "query_embedding"}], each ranked by itself; '
  'all lists are fused. '
  'recency_half_life (days) multiplies the fused score by 0.5 ^ (age / half-life). '
  'one_per_document: a document stands where its best hit stands and shows its best chunk. '
  'match_offset pages through that list; total_count is its length. '
  'neighbor_window: context holds the chunks around the hit. snippet: an excerpt with the words '
  'found in <mark>, HTML-escaped. on_bad_embedding: text ignores an embedding of another size or '
  'without a direction where query_text is given, and says so in notes. '
  'Raises 22023 for an argument out of bounds.';

revoke all on function public.hybrid_search_knowledge_chunks from public, anon, authenticated;
grant execute on function public.hybrid_search_knowledge_chunks to service_role;

notify pgrst, 'reload schema';
