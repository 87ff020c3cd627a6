-- 009_hybrid_search: the search, also that of users.
-- Adds: types search_arguments and knowledge_search_hit, hybrid_search_knowledge_chunks, and before
-- it search, the way of those that are not plain, and the functions that check, plan and arrange
-- one; search_my_knowledge_chunks. Locks nothing that exists.
-- Written from supabase/schemas/core/09_hybrid_search.sql by `make baseline`: edit that file.

-- The arguments of hybrid_search_knowledge_chunks, in its order.
create type knowledge_internal.search_arguments as (
  query_embedding extensions.vector, query_text text, match_count integer,
  match_threshold double precision, vector_weight double precision, text_weight double precision,
  filter_type text, search_mode text, pool_size integer, rrf_k double precision, fusion text,
  filters jsonb, date_from date, date_to date, collections text[], viewer_id uuid,
  public_only boolean, one_per_document boolean, neighbor_window integer,
  recency_half_life double precision, match_offset integer, snippet boolean, formulations jsonb,
  viewer_groups text[], on_bad_embedding text, prefix_last boolean,
  embedding_from_text boolean, like_ids uuid[], boosts jsonb, diversity double precision,
  max_per_document integer, merge_duplicates boolean, min_confidence double precision,
  snippets integer, order_by text, required_filters jsonb, as_of timestamptz
);

-- The arguments that leave out rows, beside filters, which leave out rows by each condition; cause:
-- as in explain_missing_knowledge_chunk; field: the column that the argument is a condition on.
-- Arguments of one row are one restriction.
create function knowledge_internal.row_arguments()
returns table (cause text, names text[], field text)
language sql immutable security invoker set search_path = pg_catalog, pg_temp as $$
  values
    ('filter', '{filter_type}'::text[], 'knowledge_type'), ('date', '{date_from}', 'document_date'),
    ('date', '{date_to}', 'document_date'), ('collection', '{collections}', 'collection'),
    ('like', '{like_ids}', null), ('validity', '{as_of}', null),
    ('permission', '{public_only}', null), ('permission', '{viewer_id,viewer_groups}', null)
$$;

-- What the arguments that are conditions on rows ask for, compiled; null if they ask for nothing.
create function knowledge_internal.wanted_rows(given knowledge_internal.search_arguments)
returns knowledge_internal.chunk_filter
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return knowledge_internal.compile_filter(
    given.filters, given.filter_type, given.date_from, given.date_to, given.public_only
  );
end
$$;

-- A type and not "returns table": snippet is an argument and a column, and PL/pgSQL allows no name
-- twice.
create type public.knowledge_search_hit as (
  id uuid, content text, knowledge_type text, document_id uuid, chunk_index integer,
  source_origin text, metadata jsonb, rrf_score double precision, vector_rank bigint,
  text_rank bigint, similarity double precision, text_score double precision, match_type text,
  matched_terms text[], title text, source_url text, collection text, document_date date,
  snippet text, context text, total_count bigint, pool_ended boolean, heading text,
  sensitivity text, collections text[], document_chunks integer, external_key text,
  source_row jsonb, confidence double precision, notes jsonb, answer_confidence double precision,
  duplicates integer
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
  'possible one, 0 to 1; with boosts, over that of a row with the greatest factor in the list. '
  'notes: what the search did beside what was asked, null for nothing; '
  'embedding: why the embedding was ignored; relaxed: what was required and is required no more; '
  'excluded: the words and phrases that hits must not have; dropped: what is required or excluded '
  'and has only stop words; ignored: operators of other search engines and the end of a long text, '
  'which are not read; replaced: the words that no visible chunk has, and '
  'what was searched instead; deduplicated: how many hits one_per_document merged into others. '
  'answer_confidence: of the whole list, so the same in every hit and on every page, 0 to 1: how '
  'well its hit with the best score fits the question; low for a question of another subject than '
  'the corpus. '
  'duplicates: with merge_duplicates, how many hits that say the same it stands for beside itself.';

-- Raises 22023 for null and for a number out of its bounds; allowed says these in words.
create function knowledge_internal.check_range(
  argument text, given double precision, lowest double precision, highest double precision,
  allowed text default null
) returns void
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  if (given between lowest and highest) is not true then
    raise exception '% must be %, not %',
                    argument, coalesce(allowed, format('between %s and %s', lowest, highest)),
                    coalesce(given::text, 'null')
      using errcode = '22023';
  end if;
end
$$;

-- The arguments of an object, with the defaults for those that it lacks. for_backends: the function
-- that reads them, which check_caller checks first. Raises 22023 for an unknown name and a value of
-- another type; the message begins with place and the name.
create function knowledge_internal.given_arguments(
  search jsonb, place text default 'search', for_backends text default null
) returns knowledge_internal.search_arguments
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  -- The defaults, as in the signature of hybrid_search_knowledge_chunks.
  given knowledge_internal.search_arguments := jsonb_populate_record(
    null::knowledge_internal.search_arguments,
    '{
      "match_count": 10, "match_threshold": 0, "vector_weight": 1, "text_weight": 1,
      "search_mode": "websearch", "pool_size": 50, "rrf_k": 60, "public_only": false,
      "one_per_document": false, "neighbor_window": 0, "match_offset": 0, "snippet": false,
      "on_bad_embedding": "error", "prefix_last": false, "embedding_from_text": false,
      "diversity": 0, "merge_duplicates": false, "snippets": 1
    }'
  );
  names constant jsonb := to_jsonb(given);
  argument text;
begin
  given.as_of := now();
  if for_backends is not null then
    perform knowledge_internal.check_caller(for_backends);
  end if;
  if jsonb_typeof(search) is distinct from 'object' then
    raise exception '% must be an object of arguments of the search', place using errcode = '22023';
  end if;
  for argument in select named.name from jsonb_object_keys(search) as named (name) loop
    if not names ? argument then
      raise exception '%.%: no argument of the search has this name', place, left(argument, 100)
        using errcode = '22023',
              hint = 'The arguments are those of hybrid_search_knowledge_chunks.';
    end if;
    given := jsonb_populate_record(given, jsonb_build_object(argument, search -> argument));
  end loop;
  return given;
exception
  when invalid_parameter_value then
    raise;
  when data_exception or program_limit_exceeded then
    raise exception '%.%: %', place, left(argument, 100), left(sqlerrm, 200)
      using errcode = '22023';
end
$$;

-- What is wrong with the arguments that every search reads, as a format of the name and its value;
-- null for nothing. Weights and rrf_k beyond their bounds could make a score 0 or infinite.
create function knowledge_internal.plain_problem(
  match_count integer, match_threshold double precision, vector_weight double precision,
  text_weight double precision, pool_size integer, rrf_k double precision, fusion text,
  match_offset integer
) returns text
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  -- One expression, because a connection keeps a plan for each.
  return case
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
    when (pool_size between 1 and 1000) is not true
      then 'pool_size must be between 1 and 1000, not %s'
    when (rrf_k between 1e-30 and 1e30) is not true
      then 'rrf_k must be above 0 and at most 1e30, not %s'
    when fusion is not null and fusion <> all (knowledge_internal.fusions())
      then 'fusion must be one of ' || array_to_string(knowledge_internal.fusions(), ', ')
        || ', not %s'
    when (match_offset between 0 and 1000) is not true
      then 'match_offset must be between 0 and 1000, not %s'
  end;
end
$$;

-- Raises 22023 for an argument of the search that is out of bounds.
create function knowledge_internal.check_search_arguments(given knowledge_internal.search_arguments)
returns void
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  problem text; -- begins with the name of the argument, whose value is %s
begin
  problem := coalesce(knowledge_internal.plain_problem(
    given.match_count, given.match_threshold, given.vector_weight, given.text_weight,
    given.pool_size, given.rrf_k, given.fusion, given.match_offset
  ), case
    when (given.search_mode in ('websearch', 'simple', 'phrase')) is not true
      then 'search_mode must be one of websearch, simple, phrase, not %s'
    when (given.neighbor_window between 0 and 5) is not true
      then 'neighbor_window must be between 0 and 5, not %s'
    when given.recency_half_life not between 1e-300 and 1e300
      then 'recency_half_life must be a number of days above 0, not %s'
    when (given.on_bad_embedding in ('error', 'text', 'from_text')) is not true
      then 'on_bad_embedding must be one of error, text, from_text, not %s'
    when cardinality(given.like_ids) > 20 or array_ndims(given.like_ids) > 1
      or to_jsonb(given.like_ids) @> '[null]'
      then 'like_ids must be at most 20 ids of chunks or documents, not %s'
    when given.max_per_document not between 1 and 1000
      then 'max_per_document must be between 1 and 1000, not %s'
    when given.min_confidence not between 0 and 1
      then 'min_confidence must be between 0 and 1, not %s'
    when given.min_confidence is not null
      and num_nonnulls(given.query_embedding, given.query_text, given.formulations) = 0
      then 'min_confidence must be null without a question to compare with, not %s'
    when (given.snippets between 1 and 3) is not true
      then 'snippets must be between 1 and 3, not %s'
    when num_nulls(
      given.public_only, given.one_per_document, given.snippet, given.prefix_last,
      given.embedding_from_text, given.merge_duplicates
    ) > 0 then (
      select flag || ' must be true or false, not null'
        from unnest(
               array['public_only', 'one_per_document', 'snippet', 'prefix_last',
                     'embedding_from_text', 'merge_duplicates']
             ) as flag
       where to_jsonb(given) -> flag = 'null'
       limit 1
    )
  end);
  if problem is not null then
    raise exception '%', format(
                      problem,
                      coalesce(
                        left(to_jsonb(given) ->> split_part(problem, ' ', 1), 100), 'null'
                      )
                    )
      using errcode = '22023';
  end if;
  if given.viewer_groups is not null then
    perform knowledge_internal.sorted_groups('viewer_groups', given.viewer_groups, most => 1000);
  end if;
end
$$;

-- Why an embedding cannot be compared with the stored ones, after the name of the argument; null
-- where it can, or there is none.
create function knowledge_internal.embedding_problem(
  embedding extensions.vector, dimensions integer
) returns text
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return case
    when extensions.vector_dims(embedding) <> dimensions then format(
      ' has %s dimensions, the stored embeddings have %s',
      extensions.vector_dims(embedding), dimensions
    )
    when embedding is not null
      and ((embedding operator(extensions.<=>) embedding) < 0.5) is not true
      then ' must not be a zero vector, nor too long or short for float4'
  end;
end
$$;

-- The questions of a search, each with what the legs that are run use of it; their words are not
-- read yet. Unless on_bad_embedding is error, an embedding that cannot be used is left out and the
-- reason kept.
create function knowledge_internal.search_questions(
  given knowledge_internal.search_arguments, settings knowledge_internal.search_settings
) returns knowledge_internal.question[]
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
declare
  most_formulations constant integer := 10;
  question knowledge_internal.question;
  questions knowledge_internal.question[] := '{}';
  embedding extensions.vector := given.query_embedding;
  query_text text := given.query_text;
  argument text := 'query_embedding';
  formulation jsonb;
  problem text;
begin
  if embedding is null and coalesce(query_text, '') !~ '\S'
     and coalesce(given.like_ids, '{}') = '{}'
  then
    raise exception 'query_embedding and query_text are both missing, give at least one'
      using errcode = '22023', hint = 'Or give like_ids: chunks or documents to find others like.';
  end if;
  if not jsonb_path_match(
    given.formulations, 'strict $.type() == "array" && $.size() <= $most',
    jsonb_build_object('most', most_formulations)
  ) then
    raise exception 'formulations must be an array of at most % objects', most_formulations
      using errcode = '22023';
  end if;
  for place in 0 .. coalesce(jsonb_array_length(given.formulations), 0) loop
    if place > 0 then
      formulation := given.formulations -> place - 1;
      argument := format('formulations[%s]', place - 1);
      if jsonb_typeof(formulation) <> 'object'
         or formulation - '{query_text,query_embedding}'::text[] <> '{}'
         or coalesce(jsonb_typeof(formulation -> 'query_text'), 'null') not in ('string', 'null')
      then
        raise exception '% must be an object with query_text, query_embedding or both', argument
          using errcode = '22023';
      end if;
      query_text := formulation ->> 'query_text';
      if formulation ->> 'query_embedding' is null and coalesce(query_text, '') !~ '\S' then
        raise exception '% has neither query_embedding nor query_text, give at least one', argument
          using errcode = '22023';
      end if;
      argument := argument || '.query_embedding';
      begin
        embedding := formulation ->> 'query_embedding';
      exception when data_exception or program_limit_exceeded then
        raise exception '%: %', argument, left(sqlerrm, 200) using errcode = '22023';
      end;
    end if;
    query_text := case when settings.text_weight > 0 and query_text ~ '\S' then query_text end;
    problem := knowledge_internal.embedding_problem(embedding, settings.dimensions);
    -- Without words, nothing would be left to search by.
    if problem is not null and (given.on_bad_embedding = 'error' or query_text is null) then
      raise exception '%', argument || problem
        using errcode = '22023',
              hint = case when problem like '% dimensions, %'
                then 'Embed the query with the model that embedded the chunks.' else '' end;
    end if;
    question.embedding := case
      when settings.vector_weight > 0 and problem is null then embedding end;
    question.query_text := query_text;
    question.ignored_embedding := argument || problem;
    question.is_inferred := settings.vector_weight > 0 and query_text is not null
      and (
        embedding is null and given.embedding_from_text
        or problem is not null and given.on_bad_embedding = 'from_text'
      );
    questions := questions || question;
  end loop;
  return questions;
end
$$;

-- Extension point: the plan of a search with like_ids. With ids, before its questions are there:
-- known_ids are theirs, and the scope leaves these chunks and documents out. Without, after they
-- are read: the known rows add to the first question. Raises 22023 for an id that the viewer may
-- not see.
create function knowledge_internal.with_known(
  plan knowledge_internal.search_plan, like_ids uuid[] default null
) returns knowledge_internal.search_plan
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  raise exception 'like_ids needs the module like, which is not installed'
    using errcode = '0A000', hint = 'Install the module like: second-brain migrate --with like';
end
$$;

-- Extension point: the settings of a search of named collections (null: all), or in a restricted
-- scope, with statistics of these chunks, and the scope in which its words are read.
create function knowledge_internal.with_statistics(
  named text[], inout scope knowledge_internal.row_scope,
  inout settings knowledge_internal.search_settings
)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
begin
end
$$;

-- The plan of a filtered search with what a sample of the chunks shows of the rows that match.
create function knowledge_internal.with_sample(plan knowledge_internal.search_plan)
returns knowledge_internal.search_plan
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  sample_size constant integer := 100; -- chunks
  everything constant knowledge_internal.row_scope :=
    knowledge_internal.row_scope(null, null, null, false, null);
  sample uuid[];
begin
  sample := coalesce(
    (
      select corpus.sample[:sample_size]
        from public.knowledge_corpus_statistics as corpus
       where corpus.document_count > knowledge_internal.small_corpus_limit()
    ),
    -- A small corpus has no sample of its own.
    array(select chunk.id from knowledge_internal.some_rows(everything, sample_size) as chunk)
  );
  plan.sample_weight := (plan.settings).chunk_count / nullif(cardinality(sample), 0);
  plan.sampled_collections := array(
    select chunk.collection from knowledge_internal.rows_in_scope(sample, plan.scope) as chunk
  );
  -- Without an index, this would read the table once more.
  if plan.is_indexed and plan.sampled_collections = '{}'
     and (plan.settings).chunk_count > knowledge_internal.small_corpus_limit()
  then
    plan.is_empty := not exists (select from knowledge_internal.some_rows(plan.scope, 1));
  end if;
  return plan;
end
$$;

-- Those of the rows that fit the question at least as min_confidence says.
create function knowledge_internal.rows_with_confidence(
  rows knowledge_internal.fused_row[], min_confidence double precision,
  plan knowledge_internal.search_plan
) returns knowledge_internal.fused_row[]
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  ids constant uuid[] := array(select hit.id from unnest(rows) as hit);
begin
  return array(
    select hit
      from unnest(rows) as hit
      join unnest(
             ids,
             knowledge_internal.answer_confidences(coalesce(plan.asked, plan.questions), ids)
           ) with ordinality as rated (id, confidence, place) on rated.id = hit.id
     where (rated.confidence < min_confidence) is not true
     order by rated.place
  );
end
$$;

-- The rows that one_per_document or max_per_document leave of a sorted list. merged: how many rows
-- stand in others of their documents. With one_per_document, a document stands where its best row
-- stands, with its score, and shows its best chunk.
create function knowledge_internal.rows_of_documents(
  rows knowledge_internal.fused_row[], one_per_document boolean, max_per_document integer,
  out kept knowledge_internal.fused_row[], out merged integer
)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  ids constant uuid[] := array(select hit.id from unnest(rows) as hit);
begin
  if not one_per_document and max_per_document is null then
    kept := rows;
    return;
  end if;
  kept := array(
    select row(
             shown.id, shown.vector_rank, shown.text_rank, shown.similarity, shown.text_score,
             shown.vector_share, shown.text_share,
             case when one_per_document then shown.best_score else shown.score end,
             case when one_per_document then array(
               select distinct name from unnest(shown.names) as name
                where name is not null order by name
             ) end,
             shown.factors, shown.duplicates
           )::knowledge_internal.fused_row
      from (
        select hit.*, max(hit.score) over of_document as best_score,
               array_agg(chunk.collection) over of_document as names,
               min(hit.ordinality) over of_document as best_place,
               row_number() over (
                 partition by coalesce(chunk.document_id, hit.id)
                     order by case when one_per_document then chunk.chunk_index is null end,
                              hit.ordinality
               ) as place_in_document
          from unnest(rows) with ordinality as hit
          left join knowledge_internal.rows_by_id(ids) as chunk on chunk.id = hit.id
        window of_document as (partition by coalesce(chunk.document_id, hit.id))
      ) as shown
     where shown.place_in_document
             <= case when one_per_document then 1 else max_per_document end
     order by case when one_per_document then shown.best_place else shown.ordinality end
  );
  merged := case when one_per_document then cardinality(rows) - cardinality(kept) end;
end
$$;

-- Extension point: the fused list of a search, arranged as given. Without a list, before there is
-- one: further is what arranging reads of the arguments, checked; null for nothing. merged: how
-- many rows stand in others of their documents; best: the row with the best score;
-- greatest_factor: by which a score can be multiplied, null for 1. Raises 22023.
create function knowledge_internal.arranged_rows(
  fused knowledge_internal.fused_row[], given knowledge_internal.search_arguments,
  plan knowledge_internal.search_plan, out arranged knowledge_internal.fused_row[],
  out merged integer, out best uuid, out greatest_factor double precision, out further jsonb
)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  if fused is null then
    raise exception '% needs the module arrange, which is not installed',
                    case
                      when given.boosts is not null then 'boosts'
                      when given.order_by is not null then 'order_by'
                      when given.merge_duplicates then 'merge_duplicates'
                      when given.recency_half_life is not null then 'recency_half_life'
                      else 'diversity'
                    end
      using errcode = '0A000',
            hint = 'Install the module arrange: second-brain migrate --with arrange';
  end if;
  select listed.kept, listed.merged, listed.kept[1].id
    into arranged, merged, best
    from knowledge_internal.rows_of_documents(
           fused, given.one_per_document, given.max_per_document
         ) as listed;
end
$$;

-- Checks the arguments of a search, plans how it finds its rows, and reads its words. Without
-- needs_question, a search without any question is one of all rows that pass the filters. seen_by,
-- tried_plain: as in search.
create function knowledge_internal.plan_search(
  given knowledge_internal.search_arguments, needs_question boolean default true,
  seen_by name default null, tried_plain boolean default false
) returns knowledge_internal.search_plan
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
declare
  most_collections constant integer := 50;
  most_lists constant integer := 100;
  wanted knowledge_internal.chunk_filter;
  required constant knowledge_internal.chunk_filter := case
    when given.required_filters is not null then knowledge_internal.compile_filter(
      given.required_filters, null, null, null, false, 'required_filters'
    ) end;
  is_viewed constant boolean :=
    num_nonnulls(given.viewer_id, given.viewer_groups, given.collections) > 0;
  named text[]; -- collections
  settings knowledge_internal.search_settings;
  reading knowledge_internal.row_scope; -- of words
  of_scope record;
  question knowledge_internal.question;
  plan knowledge_internal.search_plan;
begin
  perform knowledge_internal.check_search_arguments(given);
  wanted := knowledge_internal.wanted_rows(given);
  named := coalesce(given.collections, wanted.collections, required.collections);
  settings := knowledge_internal.read_settings(
    given.fusion, given.vector_weight, given.text_weight, named
  );
  if not settings.is_here then
    -- Citus makes no generic plan of a distributed table.
    perform set_config('plan_cache_mode', 'force_custom_plan', true);
  end if;
  -- Where text is all that a question has, a stored weight of 0 does not leave the text out.
  if settings.text_weight = 0 and given.query_embedding is null and given.formulations is null then
    settings.text_weight := given.text_weight;
  end if;
  plan.pool := greatest(given.pool_size, given.match_count);
  plan.effort := knowledge_internal.vector_effort(plan.pool, settings.chunk_count);
  plan.match_threshold := given.match_threshold;
  plan.scope := knowledge_internal.row_scope(
    wanted, given.viewer_id, given.viewer_groups, given.public_only, required, seen_by,
    given.as_of
  );
  reading := plan.scope;
  if named is not null or reading.is_restricted then
    of_scope := knowledge_internal.with_statistics(named, plan.scope, settings);
    reading := of_scope.scope;
    settings := of_scope.settings;
  end if;
  plan.settings := settings;
  plan.is_indexed := is_viewed or wanted.is_indexed is true or required.is_indexed is true;
  plan.is_filtered := is_viewed or (plan.scope).is_restricted or wanted.bounds_rows is true
    or wanted.excluded_collections is not null
      -- More than half of the chunks, by the sample of the statistics.
      and (
        select avg((chunk.collection = any (wanted.excluded_collections))::integer) > 0.5
          from public.knowledge_corpus_statistics as corpus
         cross join knowledge_internal.rows_by_id(corpus.sample) as chunk
      ) is true;
  if (given.diversity = 0) is not true or given.merge_duplicates
     or num_nonnulls(given.boosts, given.order_by, given.recency_half_life) > 0
  then
    plan.further := (knowledge_internal.arranged_rows(null, given, plan)).further;
  end if;
  if given.like_ids <> '{}' then
    plan := knowledge_internal.with_known(plan, given.like_ids);
  end if;
  if plan.is_filtered then
    plan := knowledge_internal.with_sample(plan);
  end if;
  if needs_question or given.query_embedding is not null or given.formulations is not null
     or given.query_text ~ '\S' or given.like_ids <> '{}'
  then
    plan.questions := knowledge_internal.search_questions(given, settings);
  end if;
  if given.collections is not null then
    if (
      array_ndims(given.collections) = 1
        and array_position(given.collections, null) is null
        and cardinality(given.collections) <= most_collections
    ) is not true then
      raise exception 'collections must be 1 to % names, not %',
                      most_collections, left(given.collections::text, 100)
        using errcode = '22023';
    elsif cardinality(given.collections) * cardinality(plan.questions) > most_lists then
      raise exception 'collections times formulations must be at most %', most_lists
        using errcode = '22023';
    end if;
    plan.collections := array(select distinct unnest(given.collections) order by 1);
    if '' = any (plan.collections) then
      -- All rows match: those of no other name are one list.
      plan.apart := array_remove(plan.collections, '');
      plan.collections := null;
    end if;
  end if;
  for place in 1 .. case when plan.is_empty then 0 else coalesce(cardinality(plan.questions), 0) end
  loop
    -- A search without words does not plan the call, so it works where the text leg is broken.
    continue when plan.questions[place].query_text is null;
    question := knowledge_internal.read_question(
      plan.questions[place].query_text, given.search_mode, given.prefix_last,
      coalesce(plan.collections, wanted.collections, required.collections), reading, settings,
      tried_plain
    );
    question.embedding := plan.questions[place].embedding;
    question.ignored_embedding := plan.questions[place].ignored_embedding;
    question.is_inferred := plan.questions[place].is_inferred;
    question.query_text := plan.questions[place].query_text;
    plan.questions[place] := question;
  end loop;
  if plan.known_ids is not null and plan.is_empty is not true then
    plan := knowledge_internal.with_known(plan);
  end if;
  return plan;
end
$$;

-- What a search did beside what was asked, as in the column notes of knowledge_search_hit.
create function knowledge_internal.search_notes(
  plan knowledge_internal.search_plan, lists knowledge_internal.ranked_list[]
) returns jsonb
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return nullif(
    jsonb_strip_nulls(
      jsonb_build_object(
        'embedding', (
          select string_agg(
                   concat_ws(
                     '; ', 'ignored: ' || asked.ignored_embedding,
                     case when made.is_searched_with then 'from the best text hits' end
                   ),
                   '; ' order by asked.ordinality
                 )
            from unnest(plan.questions) with ordinality as asked
           cross join lateral (
                   -- Without a text hit that has an embedding, the vector leg is not run.
                   select asked.is_inferred and exists (
                            select from unnest(lists) as list
                             where list.formulation = asked.ordinality
                               and list.vector_strategy is not null
                          ) as is_searched_with
                 ) as made
           where asked.ignored_embedding is not null or made.is_searched_with
        ),
        'relaxed', (
          select jsonb_agg(distinct part) from unnest(lists) as list
           cross join unnest(list.relaxed_parts) as part
        ),
        'excluded', (
          select jsonb_agg(distinct part) from unnest(coalesce(plan.asked, plan.questions)) as read
           cross join unnest(read.excluded_parts) as part
        ),
        'ignored', (
          select jsonb_agg(distinct part) from unnest(coalesce(plan.asked, plan.questions)) as read
           cross join unnest(read.ignored_parts) as part
        ),
        'dropped', (
          select jsonb_agg(distinct part) from unnest(coalesce(plan.asked, plan.questions)) as read
           cross join unnest(read.dropped_parts) as part
        ),
        'replaced', (
          select jsonb_object_agg(word.key, word.value order by read.ordinality)
            from unnest(coalesce(plan.asked, plan.questions)) with ordinality as read
           cross join jsonb_each(read.replaced) as word
        )
      )
    ),
    '{}'
  );
end
$$;

-- Those of the documents that a viewer may see.
create function knowledge_internal.visible_documents(
  documents uuid[], scope knowledge_internal.row_scope
) returns uuid[]
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  visible uuid[];
begin
  execute
    'select array('
    '  select document.id from public.knowledge_documents as document'
    '   where document.id = any ($2) and ' || knowledge_internal.document_condition(scope) || ')'
    into visible
    using scope, documents;
  return visible;
end
$$;

-- A search that is not plain: it has conditions on rows, several questions or collections,
-- operators, several languages, an arrangement or excerpts. ranked_lists: lists to fuse instead of
-- searching. seen_by: as in row_scope. tried_plain: read_plain_question does not read its text.
create function knowledge_internal.search(
  given knowledge_internal.search_arguments, ranked_lists jsonb default null,
  seen_by name default null, tried_plain boolean default false
) returns setof public.knowledge_search_hit
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
-- As hybrid_search_knowledge_chunks, for those that call this way at once.
set plan_cache_mode = force_generic_plan
set jit = off
set max_parallel_workers_per_gather = 0
set enable_seqscan = off
set enable_sort = off
set enable_hashjoin = off as $$
declare
  plan constant knowledge_internal.search_plan :=
    knowledge_internal.plan_search(given, true, seen_by, tried_plain);
  lists knowledge_internal.ranked_list[];
  asked knowledge_internal.question; -- the words of all questions
  rows knowledge_internal.fused_row[];
  shown knowledge_internal.fused_row[]; -- those of the page
  best uuid; -- by its score
  merged integer;
  highest double precision; -- score of a row that is the best of each list
  best_score double precision; -- where a row can have more
  first_confidence double precision;
  is_arranged boolean;
  notes jsonb;
begin
  lists := case
    when ranked_lists is null then knowledge_internal.rank_all(plan)
    else array(
      select list
        from jsonb_populate_recordset(
               null::knowledge_internal.ranked_list, ranked_lists -> 'lists'
             ) as list
    )
  end;
  if lists = '{}' then
    return;
  end if;
  asked := knowledge_internal.words_of_questions(coalesce(plan.asked, plan.questions));
  -- Most searches have nothing to note.
  if cardinality(lists) > 1 or asked.is_inferred
     or num_nonnulls(
          asked.ignored_embedding, lists[1].relaxed_parts, asked.replaced, asked.excluded_parts,
          asked.dropped_parts, asked.ignored_parts
        ) > 0
  then
    notes := knowledge_internal.search_notes(plan, lists);
  end if;
  select every.rows, every.highest into rows, highest
    from knowledge_internal.fused_rows(lists, plan, given.rrf_k) as every;
  best := rows[1].id;
  if given.min_confidence is not null and plan.questions is not null then
    rows := knowledge_internal.rows_with_confidence(rows, given.min_confidence, plan);
  end if;
  is_arranged := given.one_per_document or num_nonnulls(
    given.max_per_document, given.min_confidence, plan.further
  ) > 0;
  if is_arranged then
    select found.arranged, highest * coalesce(found.greatest_factor, 1), found.merged, found.best
      into rows, highest, merged, best
      from knowledge_internal.arranged_rows(coalesce(rows, '{}'), given, plan) as found;
  end if;
  if is_arranged or (plan.settings).neighbour_weight is not null then
    best_score := (select max(hit.score) from unnest(rows) as hit);
  end if;
  first_confidence := (
    knowledge_internal.answer_confidences(coalesce(plan.asked, plan.questions), array[best])
  )[1];
  shown := rows[given.match_offset + 1:given.match_offset + given.match_count];

  return query
  with chunk as materialized (
    select stored.*, stored.content_tsv || ''::tsvector as lexemes
      from knowledge_internal.page_rows(array(select hit.id from unnest(shown) as hit)) as stored
  ),
  near as materialized (
    select around.*
      from knowledge_internal.surroundings(
             array(
               select row(
                        chunk.id, null, null, chunk.document_id, chunk.chunk_index, null, null,
                        null, null, chunk.collection, null, null, null, null, null
                      )::knowledge_internal.page_row
                 from chunk
             ),
             given.neighbor_window, plan.scope
           ) as around
  )
  select page.id, chunk.content, chunk.knowledge_type, chunk.document_id, chunk.chunk_index,
         chunk.source_origin, chunk.metadata, page.score, page.vector_rank, page.text_rank,
         page.similarity, page.text_score,
         case when page.text_rank is null then 'vector' when page.vector_rank is null then 'text'
           else 'both' end,
         array(
           select word.typed
             from unnest(asked.words, asked.word_queries, asked.compounds)
                  with ordinality as word (typed, query, compound, place)
            where chunk.lexemes @@ word.query
              -- Of a compound that is there, its parts are not listed.
              and (
                word.compound is null
                or (
                  chunk.lexemes @@ asked.word_queries[array_position(asked.words, word.compound)]
                ) is not true
              )
            order by word.place
         ),
         document.title, document.source_url, chunk.collection,
         case when seen_by is null or document.id is not null then chunk.document_date end,
         case when given.snippet then knowledge_internal.marked_snippet(
           chunk.content, chunk.content_tsv, chunk.language, asked, given.snippets
         ) end,
         case when given.neighbor_window > 0
           then coalesce((select context from near where near.id = page.id), chunk.content) end,
         cardinality(rows)::bigint,
         plan.pool in (
           select greatest(cardinality(list.vector_ids), cardinality(list.text_ids), 0)
             from unnest(lists) as list
         ),
         chunk.heading, chunk.sensitivity,
         case when given.one_per_document then page.collections else array[chunk.collection] end,
         coalesce(size.placed, 0)::integer, document.external_key,
         coalesce(chunk.source_row, document.source_row),
         greatest(0, least(1, page.score / greatest(highest, best_score))),
         case when merged > 0 or ranked_lists ? 'shares' then
           coalesce(notes, '{}') || jsonb_strip_nulls(jsonb_build_object(
             'deduplicated', nullif(merged, 0),
             'shares', case when ranked_lists ? 'shares'
               then jsonb_build_array(page.vector_share, page.text_share, page.factors) end
           )) else notes end,
         first_confidence, page.duplicates
    from unnest(shown) with ordinality as page
    join chunk on chunk.id = page.id
    left join knowledge_internal.sizes_of_documents(
           array(select chunk.document_id from chunk), plan.scope
         ) as size on size.document_id = chunk.document_id
    left join public.knowledge_documents as document
      on document.id = chunk.document_id
     and (
           (plan.scope).is_restricted is not true
           or document.id = any ((
                select knowledge_internal.visible_documents(
                         array(select chunk.document_id from chunk), plan.scope
                       )
              )::uuid[])
         )
   order by page.ordinality;
end
$$;

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
  prefix_last boolean default false,
  embedding_from_text boolean default false,
  like_ids uuid[] default null,
  boosts jsonb default null,
  diversity double precision default 0,
  max_per_document integer default null,
  merge_duplicates boolean default false,
  min_confidence double precision default null,
  snippets integer default 1,
  order_by text default null,
  required_filters jsonb default null,
  as_of timestamp with time zone default now(),
  ranked_lists jsonb default null
) returns setof public.knowledge_search_hit
-- definer: callers have no grant on the tables, the arguments decide which rows they see.
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
-- All statements are the same for every search; planning them takes longer than running them.
set plan_cache_mode = force_generic_plan
set jit = off
set max_parallel_workers_per_gather = 0
-- Rows are found by the indexes of both legs, and looked up by their ids. There are few lists, so a
-- hash table for each join takes more time and memory than the join.
set enable_seqscan = off
set enable_sort = off
set enable_hashjoin = off as $$
declare
  -- Whether only such arguments are given that every active row may be returned, in an order by its
  -- score alone. One that is not named here, nor in plain_problem, is one that this way ignores.
  is_plain boolean := num_nonnulls(
      filter_type, filters, date_from, date_to, collections, viewer_id, recency_half_life,
      formulations, viewer_groups, like_ids, boosts, max_per_document, min_confidence, order_by,
      required_filters, ranked_lists
    ) = 0
    and not (
      public_only or one_per_document or snippet or prefix_last or embedding_from_text
      or merge_duplicates
    )
    and neighbor_window = 0 and diversity = 0 and snippets = 1 and on_bad_embedding = 'error'
    and search_mode = 'websearch'
    -- What read_plain_question leaves to the other way at sight: phrases and other letters.
    and coalesce(
      strpos(query_text, '"') = 0 and octet_length(query_text) = length(query_text),
      query_embedding is not null
    )
    and knowledge_internal.plain_problem(
      match_count, match_threshold, vector_weight, text_weight, pool_size, rrf_k, fusion,
      match_offset
    ) is null;
  pool constant integer := greatest(pool_size, match_count);
  has_text boolean := false;
  settings knowledge_internal.search_settings;
  asked knowledge_internal.question;
  scope knowledge_internal.row_scope;
  found record;
  rule knowledge_internal.fusion_rule;
  near_ids uuid[];
  similarities double precision[];
  text_ids uuid[];
  text_scores double precision[];
  highest double precision; -- score of a row that is the best of both legs
begin
  perform knowledge_internal.check_caller('hybrid_search_knowledge_chunks');
  if is_plain then
    settings := knowledge_internal.read_settings(fusion, vector_weight, text_weight);
    if settings.text_weight = 0 and query_embedding is null then
      settings.text_weight := text_weight;
    end if;
    has_text := (query_text ~ '[^[:space:]]' and settings.text_weight > 0) is true;
    if settings.is_here and has_text then
      asked := knowledge_internal.read_plain_question(query_text, settings);
    elsif settings.is_here and query_embedding is not null then
      asked.is_optional := true;
    end if;
  end if;
  if (
    asked.is_optional
    and knowledge_internal.embedding_problem(query_embedding, settings.dimensions) is null
  ) is not true then
    -- What is rare has a way of its own.
    return query
    select hit.*
      from knowledge_internal.search(
             row(
               query_embedding, query_text, match_count, match_threshold, vector_weight,
               text_weight, filter_type, search_mode, pool_size, rrf_k, fusion, filters, date_from,
               date_to, collections, viewer_id, public_only, one_per_document, neighbor_window,
               recency_half_life, match_offset, snippet, formulations, viewer_groups,
               on_bad_embedding, prefix_last, embedding_from_text, like_ids, boosts, diversity,
               max_per_document, merge_duplicates, min_confidence, snippets, order_by,
               required_filters, as_of
             ),
             ranked_lists, null, has_text and settings.is_here and asked.is_optional is null
           ) as hit;
    return;
  end if;

  if knowledge_internal.holding_condition(as_of) is not null then
    scope := knowledge_internal.row_scope(null, null, null, false, null, null, as_of);
  end if;
  -- Assignments, because a search pays for each statement.
  if query_embedding is not null and settings.vector_weight > 0 then
    found := knowledge_internal.vector_leg(
      query_embedding, pool, match_threshold,
      knowledge_internal.vector_effort(pool, settings.chunk_count), settings, scope
    );
    near_ids := found.ids;
    similarities := found.similarities;
  end if;
  if asked.matching_query is not null then
    found := knowledge_internal.text_leg(asked, pool, settings, scope);
    text_ids := found.ids;
    text_scores := found.scores;
  end if;
  rule := knowledge_internal.fusion_rules(
    settings.fusion, rrf_k, settings.cosine_scale, similarities, text_scores,
    similarities[cardinality(similarities)],
    case when cardinality(text_scores) = pool then text_scores[pool] else 0 end
  );
  highest := case when num_nonnulls(query_embedding, near_ids) = 0 then 0
      else settings.vector_weight * rule.vector_best end
    + case when asked.query_text is null then 0 else settings.text_weight * rule.text_best end;

  return query
  with
  vector_results as (
    select leg.id, leg.similarity, leg.vector_rank
      from unnest(near_ids, similarities) with ordinality as leg (id, similarity, vector_rank)
  ),
  text_results as (
    select leg.id, leg.text_score, leg.text_rank
      from unnest(text_ids, text_scores) with ordinality as leg (id, text_score, text_rank)
  ),
  combined as (
    select id, vector_rank, text_rank, similarity, text_score
      from vector_results full outer join text_results using (id)
  ),
  -- Weighted RRF: a leg adds weight / (rrf_k + rank) for its rows, with the constant and the power
  -- (1) of the rule. A fusion that reads scores adds them from a zero and in a unit.
  scored as materialized (
    select combined.*,
           case
             when rule.reads = 'ranks' then
               coalesce(
                 settings.vector_weight
                   / (rule.rank_constant + combined.vector_rank) ^ rule.rank_power, 0
               )
                 + coalesce(
                   settings.text_weight
                     / (rule.rank_constant + combined.text_rank) ^ rule.rank_power, 0
                 )
             else
               settings.vector_weight * coalesce(
                 (combined.similarity - rule.vector_zero) / rule.vector_unit, rule.vector_missing
               )
                 + settings.text_weight * coalesce(
                   (combined.text_score - rule.text_zero) / rule.text_unit, rule.text_missing
                 )
           end as score
      from combined
  ),
  ordered as materialized (
    select scored.id, scored.vector_rank, scored.text_rank, scored.similarity, scored.text_score,
           scored.score + coalesce(neighbour.bonus, 0) as score
      from scored
      left join (
             select near.*
               from knowledge_internal.neighbour_bonuses(
                      array(select scored.id from scored), array(select scored.score from scored),
                      settings.neighbour_weight
                    ) as near
              where settings.neighbour_weight is not null -- else the function is not called
             offset 0
           ) as neighbour on neighbour.id = scored.id
     order by 6 desc, least(scored.vector_rank, scored.text_rank), scored.id
  ),
  -- How well the first hit answers the question, as in answer_confidences.
  best as materialized (
    select chunk.lexemes, chunk.cosine
      from (
        select stored.content_tsv || ''::tsvector as lexemes,
               case when settings.vector_weight > 0 then
                 1 - (stored.embedding operator(extensions.<=>) query_embedding)
               end as cosine
          from knowledge_internal.chunk_rows as stored
         where stored.id = (select ordered.id from ordered limit 1)
        offset 0
      ) as chunk
  ),
  page as materialized (
    select hit.*, chunk.*
      from (select * from ordered limit match_count offset match_offset) as hit
     cross join lateral (
             select stored.content, stored.knowledge_type, stored.document_id, stored.chunk_index,
                    stored.source_origin, stored.metadata, stored.collection, stored.document_date,
                    stored.heading, stored.sensitivity, stored.source_row,
                    stored.content_tsv || ''::tsvector as lexemes
               from knowledge_internal.chunk_rows as stored
              where stored.id = hit.id and stored.content is not null
             offset 0
           ) as chunk
  ),
  size as (
    select part.document_id, count(part.chunk_index) as placed
      from public.knowledge_chunks as part
     where part.document_id = any (array(select page.document_id from page))
       and part.status = 'active'
     group by part.document_id
  )
  select page.id, page.content, page.knowledge_type, page.document_id, page.chunk_index,
         page.source_origin, page.metadata, page.score, page.vector_rank, page.text_rank,
         page.similarity, page.text_score,
         case when page.text_rank is null then 'vector' when page.vector_rank is null then 'text'
           else 'both' end,
         array(
           select word.typed
             from unnest(asked.words, asked.word_queries, asked.compounds)
                  with ordinality as word (typed, query, compound, place)
            where page.lexemes @@ word.query
              -- Of a compound that is there, its parts are not listed.
              and (
                word.compound is null
                or not page.lexemes @@ asked.word_queries[
                     array_position(asked.words, word.compound)
                   ]
              )
            order by word.place
         ),
         document.title, document.source_url, page.collection, page.document_date,
         null::text, null::text, (select count(*) from scored),
         pool in (cardinality(near_ids), cardinality(text_ids)) is true,
         page.heading, page.sensitivity, array[page.collection],
         coalesce(size.placed, 0)::integer, document.external_key,
         coalesce(page.source_row, document.source_row),
         greatest(0, least(1, page.score / greatest(
           highest,
           case when settings.neighbour_weight is not null
             then (select max(ordered.score) from ordered) end
         ))),
         null::jsonb,
         (
           select knowledge_internal.confidence_of(best.cosine, fit.coverage)
             from best
            cross join lateral (
                    select coalesce(
                             sum(word.weight) filter (where best.lexemes @@ word.query), 0
                           ) / sum(word.weight) as coverage
                      from unnest(asked.lexeme_queries, asked.weights) as word (query, weight)
                  ) as fit
         ),
         null::integer
    from page
    left join size on size.document_id = page.document_id
    left join public.knowledge_documents as document on document.id = page.document_id
   order by page.score desc, least(page.vector_rank, page.text_rank), page.id;
end
$$;

comment on function public.hybrid_search_knowledge_chunks is
  'Chunks that match a query by meaning and by words, best first. '
  'query_embedding (null: text only) is compared by cosine distance, query_text (null or blank: '
  'vector only) is scored by BM25 (k1 1.2, b 0.4 to 0.75, by how often the corpus '
  'repeats its words); each leg gives its best pool_size chunks. '
  'fusion: null is the setting stored in knowledge_settings for the collection searched, else rrf; '
  'rrf adds vector_weight / (rrf_k + vector_rank) and text_weight / (rrf_k + text_rank), '
  'where a leg that missed the chunk adds nothing and has a null rank; the documentation has the '
  'formulas of the others. '
  'The fused score is in rrf_score. '
  'search_mode: websearch (words are optional, "a phrase" is required, so is "a phrase"~5, whose '
  'words stand in any order with at most 5 others between them, -word excludes, or joins '
  'alternatives), simple (all words are required), phrase (the words in this order); it binds the '
  'text leg only. match_threshold is the least cosine similarity in the vector leg. Only active '
  'chunks are returned. '
  'filters: a JSON array of conditions {"field", "op", "value"} that all must hold (see the '
  'documentation), inside both legs; date_from, date_to: document_date, inclusive. viewer_id, '
  'viewer_groups: rows that are public, the viewer''s, or of one of these groups (with groups '
  'alone, the viewer owns no rows; with neither, all rows); public_only: public rows. '
  'required_filters: conditions as in filters that a server adds to those of its client: for the '
  'whole answer, rows that do not meet them are not there, as rows that the viewer may not see. '
  'as_of: only rows that hold at this time, by default now; null: all. '
  'collections: each is ranked by itself in each leg, and the ranks are those within it; an empty '
  'name is all collections that are not named; '
  'formulations: further ways to ask, [{"query_text", "query_embedding"}], each ranked by itself; '
  'all lists are fused. '
  'recency_half_life (days) multiplies the fused score by 0.5 ^ (age / half-life). '
  'boosts: a list of factors of the fused score, by a condition, a number, or the distance of a '
  'number or date from an origin (see the documentation). '
  'order_by: the hits by a number or date, such as document_date desc, those without it last, '
  'instead of by score. '
  'one_per_document: a document stands where its best hit stands and shows its best chunk; '
  'max_per_document: it shows so many at most. merge_duplicates: of hits with the same text, or '
  'the same lexemes and a cosine above 0.97, the best is shown. min_confidence: hits that fit the '
  'question less (0 to 1, as answer_confidence) are left out. diversity (0 to 1) orders the first '
  '100 hits by maximal marginal relevance (Carbonell and Goldstein 1998). '
  'match_offset pages through that list; total_count is its length. '
  'neighbor_window: context holds the chunks around the hit. snippet: an excerpt with the words '
  'found in <mark>, HTML-escaped; snippets: of up to so many passages. embedding_from_text: a '
  'question without an embedding gets one from its best text hits, so similarity is that to them; '
  'notes say so. on_bad_embedding: text ignores an embedding of another size or without a '
  'direction where query_text is given, from_text replaces it in the same way. '
  'like_ids: up to 20 visible chunks or documents that hits should be like, with a question or '
  'without one: their mean embedding moves that of the question, their telling words help in the '
  'text leg; they and their documents are left out. '
  'ranked_lists: lists that explain_hybrid_search has made, fused instead of searching. '
  'Raises 22023 for an argument out of bounds.';

revoke all on function public.hybrid_search_knowledge_chunks from public, anon, authenticated;
grant execute on function public.hybrid_search_knowledge_chunks to service_role;

-- search for users and visitors: source_row is null unless the caller's role may select this column
-- of knowledge_documents.
create function knowledge_internal.search_for_caller(given knowledge_internal.search_arguments)
returns setof public.knowledge_search_hit
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  -- current_user is the owner of the security definer function that calls this one.
  caller constant name := coalesce(nullif(current_setting('role'), 'none'), session_user);
  hidden constant jsonb := case
    when has_column_privilege(caller, 'public.knowledge_documents', 'source_row', 'select')
      then '{}' else '{"source_row": null}' end;
begin
  perform knowledge_internal.check_caller('hybrid_search_knowledge_chunks');
  return query
  select shown.*
    from knowledge_internal.search(given) as hit
   cross join lateral jsonb_populate_record(hit, hidden) as shown;
end
$$;

-- Raises 22023 for a search of a user or visitor that could take long: by its candidates (each
-- question has a list in each collection), conditions or texts; for visitors, also by others.
create function knowledge_internal.check_cost(
  arguments knowledge_internal.search_arguments, is_visitor boolean default false
) returns void
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  most_candidates constant integer := case when is_visitor then 750 else 2500 end;
  most_conditions constant integer := 32; -- each is compared with every row: 1 microsecond
  characters_read constant integer := 4096; -- of each question
  formulations constant jsonb := case jsonb_typeof(arguments.formulations)
    when 'array' then arguments.formulations else '[]' end;
  texts constant text[] := array(
    select formulation.asked ->> 'query_text'
      from jsonb_array_elements(formulations) as formulation (asked)
     where jsonb_typeof(formulation.asked) = 'object'
  );
begin
  perform knowledge_internal.check_range(
            bound.argument, bound.given, bound.least, bound.most,
            format(bound.allowed, bound.most)
              || case when bound.is_for_visitors then ' for visitors' else '' end
          )
    from (
      select sum(length(part.given::text)) as characters,
             sum(
               case jsonb_typeof(part.given)
                 when 'array' then jsonb_array_length(part.given)
                 when 'object' then (select count(*) from jsonb_object_keys(part.given))
               end
             ) as conditions
        from unnest(array[arguments.filters, arguments.required_filters]) as part (given)
    ) as filters
   cross join lateral (
      values
        ('match_count', arguments.match_count::bigint, 1, 50, null, true),
        ('match_offset', arguments.match_offset, 0, 200, null, true),
        ('pool_size', arguments.pool_size, 1, 100, null, true),
        ('neighbor_window', arguments.neighbor_window, 0, 2, null, true),
        ('collections', cardinality(arguments.collections), 0, 5, 'at most %s names', true),
        ('like_ids', cardinality(arguments.like_ids), 0, 5, 'at most %s ids', true),
        ('query_text', length(arguments.query_text), 0, 1000, 'at most %s characters long', true),
        ('filters', filters.characters, 0, 2000, 'at most %s characters of JSON', true),
        ('filters', filters.characters, 0, 32768, 'at most %s characters of JSON', false),
        ('filters', filters.conditions, 0, most_conditions, 'at most %s conditions', false),
        ('boosts', length(arguments.boosts::text), 0, 2000, 'at most %s characters of JSON', true),
        ('boosts', length(arguments.boosts::text), 0, 8192, 'at most %s characters of JSON', false),
        (
          'formulations', jsonb_array_length(formulations), 0, 2,
          'an array of at most %s objects', true
        ),
        (
          'formulations[].query_text',
          (select max(length(asked.query_text)) from unnest(texts) as asked (query_text)),
          0, 1000, 'at most %s characters long', true
        ),
        (
          'pool_size (at least match_count) times collections times questions',
          (1 + jsonb_array_length(formulations))
            * greatest(cardinality(arguments.collections), 1)::bigint
            * greatest(arguments.pool_size, arguments.match_count),
          0, most_candidates, 'at most %s', false
        ),
        (
          'query_text and those of formulations',
          (
            select sum(length(left(asked.query_text, characters_read)))
              from unnest(texts || arguments.query_text) as asked (query_text)
          ),
          0, 8192, 'at most %s characters together', false
        )
    ) as bound (argument, given, least, most, allowed, is_for_visitors)
   where (is_visitor or not bound.is_for_visitors)
     and bound.given not between bound.least and bound.most; -- null: refused by the search
end
$$;

-- The search of the signed-in user, who is the viewer whatever the arguments say.
create function knowledge_internal.search_for_user(given knowledge_internal.search_arguments)
returns setof public.knowledge_search_hit
-- definer: a signed-in user may not read the tables of the search, nor call it with a viewer_id.
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
begin
  given.viewer_id := knowledge_internal.signed_in_viewer('search_my_knowledge_chunks');
  given.viewer_groups := knowledge_internal.current_viewer_groups();
  perform knowledge_internal.check_cost(given);
  return query select hit.* from knowledge_internal.search_for_caller(given) as hit;
end
$$;

-- What users and visitors call runs with their rights, as Supabase asks of functions that its API
-- exposes, and calls one definer function, which checks its caller. Its body is parsed where it is
-- created, so its callers need no usage on the internal schema and can name nothing in it.
create function public.search_my_knowledge_chunks(
  query_embedding extensions.vector default null, query_text text default null,
  match_count integer default 10, match_threshold double precision default 0.0,
  vector_weight double precision default 1.0, text_weight double precision default 1.0,
  filter_type text default null, search_mode text default 'websearch',
  pool_size integer default 50, rrf_k double precision default 60, fusion text default null,
  filters jsonb default null, date_from date default null, date_to date default null,
  collections text[] default null, public_only boolean default false,
  one_per_document boolean default false, neighbor_window integer default 0,
  recency_half_life double precision default null, match_offset integer default 0,
  snippet boolean default false, formulations jsonb default null,
  on_bad_embedding text default 'error', prefix_last boolean default false,
  embedding_from_text boolean default false, like_ids uuid[] default null,
  boosts jsonb default null, diversity double precision default 0,
  max_per_document integer default null, merge_duplicates boolean default false,
  min_confidence double precision default null, snippets integer default 1,
  order_by text default null, required_filters jsonb default null,
  as_of timestamp with time zone default now()
) returns setof public.knowledge_search_hit
language sql stable security invoker set search_path = pg_catalog, pg_temp
return knowledge_internal.search_for_user(
  row(
    query_embedding, query_text, match_count, match_threshold, vector_weight, text_weight,
    filter_type, search_mode, pool_size, rrf_k, fusion, filters, date_from, date_to, collections,
    null, public_only, one_per_document, neighbor_window, recency_half_life, match_offset, snippet,
    formulations, null, on_bad_embedding, prefix_last, embedding_from_text, like_ids, boosts,
    diversity, max_per_document, merge_duplicates, min_confidence, snippets, order_by,
    required_filters, as_of
  )::knowledge_internal.search_arguments
);

comment on function public.search_my_knowledge_chunks is
  'hybrid_search_knowledge_chunks for the signed-in user: public rows, rows whose owner is '
  'auth.uid(), and rows of the groups that knowledge_viewer_groups() returns. The document '
  'frequencies of BM25 are those of all chunks. Limits bound the cost of a call: pool_size (at '
  'least match_count) times collections times questions 2,500, 8,192 characters of all questions '
  'and of boosts, 32 conditions and 32,768 characters of filters. source_row is null unless the '
  'role may select this column of knowledge_documents. Raises 42501 if nobody is signed in or the '
  'user id is not a UUID, and 22023 for an argument out of bounds.';
revoke all on function public.search_my_knowledge_chunks
  from public, anon, authenticated, service_role;
grant execute on function
  public.search_my_knowledge_chunks, knowledge_internal.search_for_user to authenticated;

notify pgrst, 'reload schema';
