-- 007_legs: the two legs: the rows that a question finds, ranked.
-- Adds: types search_plan and ranked_list, and the functions that find rows by the vector index and
-- by words, and rank them. Locks nothing that exists.

-- A search whose arguments are checked and whose questions are read. asked: the questions without
-- what like_ids add, which known_ids are. collections: each is ranked by itself; null: all
-- together. apart: beside a list of all other rows, each of these collections has a list of its
-- own. pool: rows that each leg returns. effort: of the vector index (hnsw.ef_search). is_filtered:
-- not every active row may be returned (for excluded collections only, where they have most
-- chunks); is_indexed: an index finds the rows that may; is_empty: there is none.
-- sampled_collections: the collections of those rows of a sample that match, each for sample_weight
-- chunks. further: as arranged_rows returns it.
create type knowledge_internal.search_plan as (
  questions knowledge_internal.question[], asked knowledge_internal.question[],
  scope knowledge_internal.row_scope, settings knowledge_internal.search_settings,
  collections text[], apart text[], pool integer, match_threshold double precision,
  effort integer, is_filtered boolean, is_indexed boolean, is_empty boolean,
  sample_weight double precision, sampled_collections text[], known_ids uuid[],
  known_embedding extensions.vector, further jsonb
);

-- The rows that the legs found for one question in one collection (null: in all), best first.
-- strategy: how a leg found them, null for a leg that is not run. identifier_bonus: the least text
-- score of a row with an identifier that was asked for. relaxed_parts: what is required no more,
-- because no row has it.
create type knowledge_internal.ranked_list as (
  formulation integer, collection text, vector_strategy text, vector_ids uuid[],
  similarities double precision[], text_strategy text, text_ids uuid[],
  text_scores double precision[], identifier_bonus double precision, relaxed_parts text[],
  vector_milliseconds double precision, text_milliseconds double precision
);

-- Three bits for each dimension of the normalised vector: above -0.7, 0 and 0.7 times the root mean
-- square. Their Hamming distance gives nearly the same ranking as cosine distance, with a tenth of
-- the bytes.
create function knowledge_internal.embedding_bits(embedding extensions.vector) returns bit varying
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
as $$
declare
  dimensions constant integer := coalesce(extensions.vector_dims(embedding), 1);
  direction constant extensions.vector := extensions.l2_normalize(embedding);
  step constant extensions.vector := array_fill(
    (0.7 / sqrt(dimensions))::real, array[dimensions]
  )::extensions.vector;
begin
  return extensions.binary_quantize(direction operator(extensions.+) step)
           || extensions.binary_quantize(direction)
           || extensions.binary_quantize(direction operator(extensions.-) step);
end
$$;

-- Sets what the vector index looks at: hnsw.ef_search, hnsw.iterative_scan and
-- hnsw.max_scan_tuples. Returns what they were, to be set again. A set clause of a function cannot
-- do this: a role that is not a superuser could not create the function in a session that has not
-- loaded pgvector, which the cast does.
create function knowledge_internal.exchange_vector_settings(wanted text[]) returns text[]
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  callers constant text[] := case when '[1]'::extensions.vector is not null then array[
    current_setting('hnsw.ef_search'), current_setting('hnsw.iterative_scan'),
    current_setting('hnsw.max_scan_tuples')
  ] end;
begin
  wanted := array[
    set_config('hnsw.ef_search', wanted[1], true),
    set_config('hnsw.iterative_scan', wanted[2], true),
    set_config('hnsw.max_scan_tuples', wanted[3], true)
  ];
  return callers;
end
$$;

-- How far the vector index looks (hnsw.ef_search) for a pool of rows. With a low effort, HNSW can
-- end in the wrong cluster of a large graph.
create function knowledge_internal.vector_effort(pool integer, chunk_count double precision)
returns integer
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return (
    select least(
             1000, greatest(2 * pool, 50 * (magnitude - 1), least(200, 100 * (magnitude - 2.3)))
           )
      from log(greatest(chunk_count, 1000)) as magnitude
  );
end
$$;

-- Whether so many rows are near an embedding that its bits, and a usual effort of the index, miss
-- some of the nearest: it is among close vectors, or ones without negative numbers. similarity:
-- that of a row far down its list.
create function knowledge_internal.has_many_neighbours(
  embedding extensions.vector, similarity double precision
) returns boolean
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return similarity >= 0.2 or strpos(translate(embedding::text, '[', ','), ',-') = 0;
end
$$;

-- The nearest of candidates in full precision. These are the first by embedding_bits, at most most
-- (null: all rows). is_sure: no other row can be nearer; the nearest ten are all in the first third
-- of the candidates; or not many others are near.
create function knowledge_internal.nearest_candidates(
  candidates uuid[], most integer, asked_embedding extensions.vector, wanted integer,
  out ids uuid[], out similarities double precision[], out is_sure boolean
)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  select array_agg(near.id order by near.distance, near.id),
         array_agg(1 - near.distance order by near.distance, near.id)
    into ids, similarities
    from (
      select row.id, row.distance
        from knowledge_internal.rows_by_id(candidates, asked_embedding => asked_embedding) as row
       order by row.distance, row.id
       limit wanted
    ) as near;
  is_sure := (cardinality(candidates) < most) is not false
    or not ids[:10] && candidates[most / 3 + 1:]
    or not knowledge_internal.has_many_neighbours(
      asked_embedding, similarities[cardinality(similarities)]
    );
end
$$;

-- The vector leg over all active rows that hold, nearest first: the nearest by the index, compared
-- in full precision; in a small corpus, and where the index stops early, the nearest of all rows.
-- scope: null where all active rows hold.
create function knowledge_internal.vector_leg(
  query_embedding extensions.vector, pool integer, match_threshold double precision,
  effort integer, settings knowledge_internal.search_settings, scope knowledge_internal.row_scope,
  out ids uuid[], out similarities double precision[], out strategy text
)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  compared_exactly constant integer := greatest(pool, 50); -- rows
  -- More than is wanted, because the index orders by half precision.
  index_rows constant integer := ceil(1.1 * compared_exactly);
  quantized_from constant integer := 128; -- dimensions: shorter vectors lie in their row
  -- The index has the first 4,000 dimensions, as in indexed_embedding.
  direction constant extensions.vector :=
    extensions.l2_normalize(extensions.subvector(query_embedding, 1, 4000));
  ended constant jsonpath := scope.ended;
  callers text[];
  merged record;
  most_by_bits integer;
  is_sure boolean;
  last integer;
begin
  strategy := 'compared: few rows';
  if settings.chunk_count > knowledge_internal.small_corpus_limit() then
    callers := knowledge_internal.exchange_vector_settings(
      array[effort::text, 'relaxed_order', '20000']
    );
    select array_agg(near.id order by near.distance, near.id),
           array_agg(1 - near.distance order by near.distance, near.id)
      into ids, similarities
      from (
        select chunk.id, chunk.embedding operator(extensions.<=>) query_embedding as distance
          from knowledge_internal.searchable_chunks as chunk
         where chunk.status = 'active' and chunk.embedding is not null
           and (ended is null or (chunk.metadata @? ended) is not true)
         order by chunk.indexed_embedding operator(extensions.<=>) direction
         limit index_rows
      ) as near;
    -- An assignment, because each search pays for a statement.
    merged := knowledge_internal.nearest_elsewhere(
      ids, similarities, query_embedding, null, scope, index_rows
    );
    ids := merged.ids;
    similarities := merged.similarities;
    perform knowledge_internal.exchange_vector_settings(callers);
    strategy := case when cardinality(ids) >= index_rows then 'index'
      else 'compared: the index stopped early' end;
  end if;
  while strategy <> 'index' and is_sure is not true loop
    most_by_bits := case
      when settings.dimensions >= quantized_from
        then coalesce(4 * most_by_bits, 5 * compared_exactly)
    end;
    select near.* into ids, similarities, is_sure
      from knowledge_internal.nearest_candidates(
             array(
               select every.id
                 from public.knowledge_chunks as every
                where every.status = 'active' and every.embedding_bits is not null
                  and (ended is null or (every.metadata @? ended) is not true)
                order by every.embedding_bits operator(extensions.<~>)
                         knowledge_internal.embedding_bits(query_embedding), every.id
                limit most_by_bits
             ),
             most_by_bits, query_embedding, compared_exactly
           ) as near;
  end loop;
  last := least(pool, cardinality(ids));
  while similarities[last] < match_threshold loop
    last := last - 1;
  end loop;
  ids := ids[:last];
  similarities := similarities[:last];
end
$$;

-- How many candidates get their exact BM25. The rows of a small corpus were written while its mean
-- length still changed, those of short texts with the usual b.
create function knowledge_internal.scored_exactly(
  pool integer, settings knowledge_internal.search_settings
) returns integer
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return case
    when settings.chunk_count <= knowledge_internal.small_corpus_limit()
         or settings.b <> knowledge_internal.bm25_b() or settings.k1 <> knowledge_internal.bm25_k1()
      then greatest(4 * pool, 50)
    else pool
  end;
end
$$;

-- The candidates of a question, as a condition on rows; null where at most 1,000 rows, or effort
-- times as many, have one of its words, so that all of them are candidates. Else, in this order:
-- 1. The rows with its rarest words, where they are at least 300 and these words have half of the
--    weight: no other row can have a high score.
-- 2. Of a lone common word, and of two that many rows have both, the rows in which it weighs much,
--    by the lexemes of its impact levels.
-- 3. Combinations of the six rarest words, the heaviest first, as long as about 1,000 rows would
--    have them if words were independent: rare words alone, common ones two or more at once.
-- With an effort of 5 or more, after too few candidates, also the rows in which a common word
-- weighs much.
create function knowledge_internal.candidate_query(
  question knowledge_internal.question, document_count double precision,
  required_query tsquery, effort double precision
) returns tsquery
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  most_rows constant float8 := 1000 * effort;
  fewest_rows constant float8 := 300; -- six pools
  many_rows constant float8 := 2 * most_rows; -- of one word, or of two
  level_rows constant float8 := 0.6 * most_rows;
  lexemes constant text[] := question.lexemes;
  queries constant tsquery[] := question.lexeme_queries;
  frequencies constant float8[] := question.frequencies;
  weights constant float8[] := question.candidate_weights;
  combined constant integer := least(cardinality(lexemes), 6); -- words
  candidates tsquery;
begin
  if least((select sum(rows) from unnest(frequencies) as rows), document_count) <= most_rows then
    return null;
  end if;
  candidates := (
    select case when max(word.rows_found) >= fewest_rows
                  and sum(word.weight) >= 0.5 * max(word.weight_of_all)
             then string_agg(word.query::text, ' | ')::tsquery end
      from (
        select listed.query, listed.weight, sum(listed.weight) over () as weight_of_all,
               sum(listed.frequency) over (order by listed.place) as rows_found
          from unnest(queries, weights, frequencies)
               with ordinality as listed (query, weight, frequency, place)
      ) as word
     where word.rows_found <= most_rows
  );
  if candidates is null and cardinality(frequencies) = 1 and frequencies[1] > many_rows then
    candidates := knowledge_internal.quoted_lexeme(lexemes[1] || '^' || coalesce(
      (
        select max(level.number)
          from generate_series(1, cardinality(knowledge_internal.impact_levels())) as level (number)
          join public.knowledge_lexeme_statistics as listed
            on listed.lexeme = lexemes[1] || '^' || level.number
         where listed.frequency * document_count >= level_rows
      ), 1
    ))::tsquery;
  elsif candidates is null and cardinality(frequencies) = 2
    and frequencies[1] * frequencies[2] / document_count > many_rows
  then
    candidates := format(
      '%s & %s | %s & %s',
      knowledge_internal.quoted_lexeme(lexemes[1] || '^2'), queries[2], queries[1],
      knowledge_internal.quoted_lexeme(lexemes[2] || '^2')
    )::tsquery;
  elsif candidates is null then
    with word as materialized (
      select 1 << (listed.place - 1)::integer as bit, listed.query, listed.weight,
             greatest(least(listed.frequency / document_count, 0.99), 1e-9) as share
        from unnest(queries, weights, frequencies)
             with ordinality as listed (query, weight, frequency, place)
       where listed.place <= combined
    ),
    -- The rows with just these words: a bit for each.
    combination as (
      select words, sum(word.weight) filter (where words & word.bit > 0) as weight,
             document_count * exp(
               sum(ln(case when words & word.bit > 0 then word.share else 1 - word.share end))
             ) as size
        from generate_series(1, (1 << combined) - 1) as words cross join word
       group by words
    ),
    kept as materialized (
      select ordered.words
        from (
          select combination.*,
                 sum(size) over (order by combination.weight desc, combination.words) as rows_found
            from combination
        ) as ordered
       where ordered.rows_found <= greatest(most_rows, ordered.size)
    )
    -- Each condition costs time at each index entry, so what another one implies is left out.
    select string_agg(
             (select string_agg(word.query::text, ' & ') from word where kept.words & word.bit > 0),
             ' | '
           )::tsquery
      into candidates
      from kept
     where not exists (
       select from kept as wider
        where wider.words <> kept.words and wider.words & kept.words = wider.words
     );
  end if;
  if effort >= 5 then
    candidates := candidates || coalesce(
      (
        select string_agg(coalesce(level.query, word.query::text), ' | ')::tsquery
          from unnest(lexemes, queries, frequencies)
               as word (lexeme, query, frequency)
          left join lateral (
                 select knowledge_internal.quoted_lexeme(listed.lexeme) as query
                   from public.knowledge_lexeme_statistics as listed
                  where word.frequency > most_rows
                    and listed.lexeme ^@ (word.lexeme || '^')
                    and listed.lexeme >= word.lexeme || '^' and listed.lexeme < word.lexeme || '_'
                    and listed.frequency * document_count >= 0.2 * most_rows
                  order by listed.frequency, listed.lexeme
                  limit 1
               ) as level on true
         where level.query is not null or word.frequency <= most_rows
      ), ''
    );
  end if;
  return coalesce(required_query && candidates, candidates);
end
$$;

-- The best of the candidates by BM25 with bonuses, best first, at most pool; the formula is that of
-- text_leg. Of the lexemes with the same reading only the best counts. is_relaxed: what is required
-- is required no more.
create function knowledge_internal.exact_scores(
  candidates uuid[], pool integer, question knowledge_internal.question,
  settings knowledge_internal.search_settings, is_relaxed boolean default false,
  out ids uuid[], out scores float8[]
)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  k1 constant float8 := settings.k1;
  least_product constant float8 := -knowledge_internal.bm25_k1() - 1; -- of a row with a word
  shortest constant float8 := k1 * (1 - settings.b);
  per_word constant float8 :=
    k1 * (1 - settings.b + settings.b / settings.mean_length) - shortest;
  length_dimension constant extensions.sparsevec := '{536870912:1}/536870912';
  -- Each row has the phrases that are required.
  has_phrases constant boolean := question.phrase_queries is not null
    and (is_relaxed or question.relaxed_query is null);
  has_bonuses constant boolean := has_phrases or question.identifier_query is not null;
begin
  if candidates = '{}' then
    return;
  end if;
  -- As in text_leg. Reading a CTE again takes less time than unnesting for each row.
  with word as materialized (
    select listed.vector, listed.weight * (k1 + 1) as weight,
           coalesce(listed.reading, listed.place) as reading
      from unnest(question.vectors, question.weights, question.readings)
           with ordinality as listed (vector, weight, reading, place)
  )
  select array_agg(rated.id order by rated.score desc, rated.id),
         array_agg(rated.score order by rated.score desc, rated.id)
    into ids, scores
    from (
      select chunk.id,
             (
               select sum(best.score order by best.reading)
                 from (
                   select word.reading,
                          max(word.weight / (1 + chunk.length_factor / round(
                            chunk.stored_factor / (least_product / nullif(
                              chunk.bm25 operator(extensions.<#>) word.vector, 0
                            ) - 1)
                          ))) as score
                     from word
                    group by word.reading
                 ) as best
             ) + case when has_bonuses then
               coalesce(
                 case when chunk.content_tsv @@ question.identifier_query
                   then question.identifier_bonus end,
                 0
               ) + coalesce(
                 (
                   select sum(phrase.bonus order by phrase.ordinality)
                     from unnest(question.phrase_queries, question.phrase_bonuses)
                          with ordinality as phrase (query, bonus, ordinality)
                    where has_phrases and chunk.content_tsv @@ phrase.query
                 ),
                 0
               ) else 0 end as score
        from (
               select found.id, found.content_tsv,
                      extensions.sparsevec(found.bm25, -1, true) as bm25,
                      4 * (shortest + per_word * found.text_length) as length_factor,
                      -4 * (found.bm25 operator(extensions.<#>) length_dimension) as stored_factor
                 from knowledge_internal.rows_by_id(
                        candidates, has_bm25 => true, has_lexemes => has_bonuses
                      ) as found
               offset 0
             ) as chunk
       order by score desc, chunk.id
       limit pool
    ) as rated;
end
$$;

-- Extension point: at least the best rows of the text leg for a question with a matching_query, by
-- an index that orders rows by BM25, wanted rows where so many match; or the reason why the plain
-- leg finds them (null: no such index). scope: null for all active rows; matching: how many rows of
-- the collection are in scope, null for all; most_read: so few are read without the index. In core
-- there is none.
create function knowledge_internal.native_rows(
  question knowledge_internal.question, wanted integer,
  settings knowledge_internal.search_settings, scope knowledge_internal.row_scope default null,
  collection text default null, matching double precision default null,
  most_read double precision default null, out ids uuid[], out reason text
)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
begin
end
$$;

-- The text leg over the rows of vector_leg, for a question of which one word is enough and each has
-- one reading: the best candidates by BM25, best first. bm25 was written with the default k1 and b
-- and the mean length of that time: tf * (k1 + 1) / (tf + length factor) for each word. It orders
-- the candidates; solved for tf, it gives their scores with the present k1, b and mean length.
create function knowledge_internal.text_leg(
  question knowledge_internal.question, pool integer,
  settings knowledge_internal.search_settings, scope knowledge_internal.row_scope,
  out ids uuid[], out scores double precision[], out strategy text
)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  scored constant integer := knowledge_internal.scored_exactly(pool, settings);
  k1 constant float8 := settings.k1;
  least_product constant float8 := -knowledge_internal.bm25_k1() - 1; -- of a row with a word
  -- The length factor is linear in the length.
  shortest constant float8 := k1 * (1 - settings.b);
  per_word constant float8 :=
    k1 * (1 - settings.b + settings.b / settings.mean_length) - shortest;
  length_dimension constant extensions.sparsevec := '{536870912:1}/536870912';
  native constant record := knowledge_internal.native_rows(question, scored, settings, scope);
  ended constant jsonpath := scope.ended;
  candidates tsquery;
  is_partial boolean;
  found integer;
begin
  if native.ids is not null then
    strategy := 'BM25 index';
    select rated.ids, rated.scores into ids, scores
      from knowledge_internal.exact_scores(native.ids, pool, question, settings) as rated;
    return;
  end if;
  candidates := knowledge_internal.candidate_query(
    question, settings.document_count, null,
    -- In a large corpus, more rows share the words of a question by chance.
    greatest(1, least(2, settings.document_count / 50000))
  );
  is_partial := candidates is not null;
  for pass in 1 .. 3 loop
    if pass = 2 then
      candidates := knowledge_internal.candidate_query(
        question, settings.document_count, null, least(20, 5 + 4 * pool / (1 + found))
      );
    elsif pass = 3 then
      candidates := null;
    end if;
    strategy := case
      when not is_partial then 'all rows'
      when pass = 1 then 'candidates'
      when pass = 2 then 'more candidates: too few at first'
      else 'all rows: too few candidates'
    end;
    -- The cast decompresses bm25 once, and not for each word.
    with word as materialized (
      select listed.vector, listed.weight * (k1 + 1) as weight
        from unnest(question.vectors, question.weights) as listed (vector, weight)
    ),
    candidate as materialized (
      select matching.id, matching.bm25, matching.text_length
        from (
          select chunk.id, chunk.bm25, chunk.text_length
            from public.knowledge_chunks as chunk
           where chunk.status = 'active'
             and chunk.content_tsv @@ coalesce(candidates, question.matching_query)
           order by chunk.bm25 operator(extensions.<#>) question.weight_vector, chunk.id
           limit case when ended is null then scored end
        ) as matching
       -- As a condition of the scan, it would be asked of each row that matches.
       where ended is null
          or not exists (
               select from public.knowledge_chunks as chunk
                where chunk.id = matching.id and chunk.metadata @? ended
             )
       limit scored
    )
    select array_agg(rated.id order by rated.score desc, rated.id),
           array_agg(rated.score order by rated.score desc, rated.id),
           (select count(*) from candidate)
      into ids, scores, found
      from (
        select chunk.id,
               (
                 select sum(word.weight / (1 + chunk.length_factor / round(
                          chunk.stored_factor / (least_product / nullif(
                            chunk.bm25 operator(extensions.<#>) word.vector, 0
                          ) - 1)
                        )))
                   from word
               ) as score
          from (
            select candidate.id, extensions.sparsevec(candidate.bm25, -1, true) as bm25,
                   4 * (shortest + per_word * candidate.text_length) as length_factor,
                   -4 * (candidate.bm25 operator(extensions.<#>) length_dimension)
                     as stored_factor
              from candidate
            offset 0
          ) as chunk
         order by score desc, chunk.id
         limit pool
      ) as rated;
    exit when not is_partial or found >= pool;
  end loop;
  ids := coalesce(ids, '{}');
  strategy := strategy || coalesce('; not by the BM25 index: ' || native.reason, '');
end
$$;

-- What is read of a question, with the query for its candidates.
create function knowledge_internal.with_candidates(
  question knowledge_internal.question, document_count double precision
) returns knowledge_internal.question
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  -- Known words change only the scores of a question's candidates.
  if question.is_partial is null and question.lexemes is not null then
    question.candidate_query := knowledge_internal.candidate_query(
      question, document_count, question.required_query,
      -- Of these rows, some lack what is required.
      case when question.required_query is null then 1 else 2 end
    );
    question.is_partial := question.candidate_query is not null;
  end if;
  question.candidate_query := coalesce(question.candidate_query, question.matching_query);
  return question;
end
$$;

-- How a search with conditions reads its rows. matching: how many chunks, of one collection or of
-- all, may match, by the sample of the plan; null without a filter. index_rows are asked of the
-- vector index; where few rows match (is_narrow), the index is not used: compared_by_bits rows are
-- chosen by embedding_bits at first (null: all), and compared_exactly of them returned. With at
-- most most_read matching rows (or few, where the vector leg compares them too) all of them are
-- candidates of the text leg, else takes_candidates.
create function knowledge_internal.reading_limits(
  plan knowledge_internal.search_plan, collection text, has_embedding boolean,
  out matching double precision, out index_rows integer, out is_narrow boolean,
  out compared_exactly integer, out compared_by_bits integer, out most_read double precision,
  out takes_candidates boolean
)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  fewest_compared constant integer := 50; -- rows of the vector leg
  quantized_from constant integer := 128; -- dimensions: shorter vectors lie in their row
  index_cost constant integer := 20; -- a row of the vector index, against one that is compared
  candidate_rows constant integer := 1000; -- what the words of a query find, at most
  usual_candidates constant integer := 350; -- the same, at least
  soon_read constant integer := 3000; -- rows that take no longer than a wider candidate pass
  most_read_ever constant integer := 20000; -- rows by a filter
  scan_tuples constant integer := 20000; -- rows
  chunk_count constant double precision := (plan.settings).chunk_count;
  most_compared double precision;
begin
  matching := plan.sample_weight * case
    when collection is null then cardinality(plan.sampled_collections)
    else cardinality(array_positions(plan.sampled_collections, collection))
  end;
  compared_exactly := greatest(plan.pool, fewest_compared);
  compared_by_bits := case when (plan.settings).dimensions >= quantized_from
    then 5 * compared_exactly end;
  -- More than is wanted: the index orders by half precision, and an iterative scan, which filters
  -- lead to, returns rows in approximate order.
  index_rows := ceil(compared_exactly * case
    when plan.is_filtered or ((plan.scope).wanted).bounds_rows is not null then 2 else 1.1 end);
  -- Of n chunks m match. The index reads index_rows * n / m of them before it has enough; a
  -- comparison reads m, or n where no index finds the m.
  most_compared := case
    when plan.is_indexed then sqrt(index_cost * index_rows * chunk_count)
    else index_rows * chunk_count / scan_tuples
  end;
  most_read := case
    when plan.is_indexed then least(
      most_read_ever,
      greatest(
        plan.pool * chunk_count / candidate_rows,
        least(soon_read, plan.pool * chunk_count / usual_candidates)
      )
    )
    else -1
  end;
  is_narrow := coalesce(
    matching <= most_compared, chunk_count <= knowledge_internal.small_corpus_limit()
  );
  takes_candidates := (
    matching <= greatest(most_read, case when has_embedding then most_compared end)
  ) is not true;
end
$$;

-- The rows of the text leg for a query with a matching_query, in one collection or in all. Pass 1
-- reads the rows of candidate_query, pass 2 those of a wider one, pass 3 every row that matches,
-- pass 4 rows without what is required. The next pass follows if the last one found fewer rows than
-- the pool, pass 4 if there was no row. takes_candidates: passes 1 and 2 are made. pass: the last
-- one.
create function knowledge_internal.candidate_rows(
  question knowledge_internal.question, collection text, is_narrow boolean,
  takes_candidates boolean, plan knowledge_internal.search_plan, out pass integer, out ids uuid[]
)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  most_effort constant double precision := 20; -- rows of the second pass, over those of the first
  scored constant integer := knowledge_internal.scored_exactly(plan.pool, plan.settings);
  document_count constant double precision := (plan.settings).document_count;
  query tsquery := question.matching_query;
  candidate_query tsquery;
begin
  pass := 0;
  loop
    if pass = 3 then
      query := question.relaxed_query;
    end if;
    pass := case when takes_candidates or pass = 3 then pass + 1 else 3 end;
    candidate_query := case
      when pass = 1 then question.candidate_query
      when pass = 2 or pass = 4 and not is_narrow then coalesce(
        knowledge_internal.candidate_query(
          question, document_count, case when pass = 2 then question.required_query end,
          least(most_effort, 5 + 4 * plan.pool / (1 + cardinality(ids)))
        ),
        query
      )
      -- A scope with statistics of its own has fewer rows than the text index.
      when not (
        is_narrow
        and (question.is_partial or (plan.settings).statistics is not null and question.is_optional)
      ) then
        case when pass = 3 then coalesce(question.indexed_query, query) else query end
    end;
    ids := array(
      select id
        from knowledge_internal.worded_rows(
               question.weight_vector, candidate_query,
               case
                 when (
                   question.is_optional or pass = 3 and candidate_query is not null
                                             and question.indexed_query is null
                 ) is not true then query
               end,
               collection, plan.scope, scored, plan.is_filtered
             ) as id
    );
    exit when pass = 4 or cardinality(ids) >= plan.pool
           or pass = 3 and (cardinality(ids) > 0 or question.relaxed_query is null);
  end loop;
end
$$;

-- Where a question lies by its best text hits: the mean of their directions, weighted by the square
-- of their scores (pseudo-relevance feedback: Rocchio 1971). Null where none has an embedding.
create function knowledge_internal.embedding_of_hits(ids uuid[], scores float8[])
returns extensions.vector
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  best_hits constant integer := 5;
  found extensions.vector;
begin
  select extensions.l2_normalize(
           extensions.sum(
             extensions.l2_normalize(chunk.embedding) operator(extensions.*) array_fill(
               ((hit.score / scores[1]) ^ 2)::real, array[extensions.vector_dims(chunk.embedding)]
             )::extensions.vector
             order by chunk.id -- or the rounding would depend on where the rows lie
           )
         )
    into found
    from unnest(ids[:best_hits], scores[:best_hits]) as hit (id, score)
    join knowledge_internal.rows_by_id(ids[:best_hits], has_embedding => true) as chunk
      on chunk.id = hit.id
   where hit.score > 0 and chunk.embedding is not null;
  return case when extensions.vector_norm(found) > 0.5 then found end;
end
$$;

-- The rows of both legs for one question in one collection, or in all. Vector leg: the nearest by
-- the index, or by embedding_bits where few rows match; text leg: candidate_rows by exact BM25.
create function knowledge_internal.rank_legs(
  formulation integer, collection text, plan knowledge_internal.search_plan
) returns knowledge_internal.ranked_list
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  settings constant knowledge_internal.search_settings := plan.settings;
  question knowledge_internal.question := plan.questions[formulation];
  -- Then the rows are those of the legs of a plain search.
  is_every_row constant boolean := collection is null and settings.is_here
    and not (plan.scope).is_restricted and (plan.scope).matching = (plan.scope).visible;
  is_plain constant boolean := is_every_row and question.is_optional is true and num_nonnulls(
    question.readings, question.identifier_query, question.phrase_queries, question.like_words
  ) = 0;
  limits constant record := knowledge_internal.reading_limits(
    plan, collection, question.embedding is not null
  );
  list knowledge_internal.ranked_list;
  near record;
  found record;
  vector_rows integer;
  most_by_bits integer := limits.compared_by_bits;
  is_sure boolean;
  native_reason text;
  pass integer := 0;
  begun_at timestamptz := clock_timestamp();
begin
  list.formulation := formulation;
  list.collection := collection;
  if question.embedding is not null then
    if is_every_row then
      select leg.ids, leg.similarities, leg.strategy
        into list.vector_ids, list.similarities, list.vector_strategy
        from knowledge_internal.vector_leg(
               question.embedding, plan.pool, plan.match_threshold, plan.effort, settings,
               plan.scope
             ) as leg;
    else
      list.vector_strategy := 'compared: few rows';
      if not limits.is_narrow then
        near := knowledge_internal.nearest_rows(
          question.embedding, collection, plan.scope, limits.index_rows
        );
        -- The tenth is hardly nearer than the hundredth.
        if 1 - near.similarities[10] > 0.9 * (1 - near.similarities[100])
           and knowledge_internal.has_many_neighbours(question.embedding, near.similarities[100])
        then
          perform set_config('hnsw.ef_search', least(1000, 4 * plan.effort)::text, true);
          near := knowledge_internal.nearest_rows(
            question.embedding, collection, plan.scope, limits.index_rows
          );
          perform set_config('hnsw.ef_search', plan.effort::text, true);
        end if;
        list.vector_strategy := case
          when cardinality(near.ids) >= limits.index_rows then 'index'
          else 'compared: the index stopped early'
        end;
      end if;
      while list.vector_strategy <> 'index' and is_sure is not true loop
        near := knowledge_internal.nearest_candidates(
          knowledge_internal.compared_rows(
            knowledge_internal.embedding_bits(question.embedding), collection, plan.scope,
            most_by_bits
          ),
          most_by_bits, question.embedding, limits.compared_exactly
        );
        is_sure := near.is_sure;
        most_by_bits := 4 * most_by_bits;
      end loop;
      list.vector_ids := near.ids;
      list.similarities := near.similarities;
      vector_rows := least(plan.pool, cardinality(list.vector_ids));
      while list.similarities[vector_rows] < plan.match_threshold loop
        vector_rows := vector_rows - 1;
      end loop;
      list.vector_ids := list.vector_ids[:vector_rows];
      list.similarities := list.similarities[:vector_rows];
    end if;
    list.vector_milliseconds := 1000 * extract(epoch from clock_timestamp() - begun_at);
    begun_at := clock_timestamp();
  end if;
  if question.matching_query is null then
    return list;
  end if;

  list.identifier_bonus := question.identifier_bonus;
  if is_plain then
    select leg.ids, leg.scores, leg.strategy
      into list.text_ids, list.text_scores, list.text_strategy
      from knowledge_internal.text_leg(question, plan.pool, settings, plan.scope) as leg;
  else
    if (limits.is_narrow and question.is_partial and not limits.takes_candidates) is not true then
      select native.ids, native.reason into list.text_ids, native_reason
        from knowledge_internal.native_rows(
               question, knowledge_internal.scored_exactly(plan.pool, settings), settings,
               plan.scope, collection, limits.matching, limits.most_read
             ) as native;
    end if;
    if list.text_ids is null then
      question := knowledge_internal.with_candidates(question, settings.document_count);
      select read.pass, read.ids into pass, list.text_ids
        from knowledge_internal.candidate_rows(
               question, collection, limits.is_narrow,
               question.is_partial and limits.takes_candidates, plan
             ) as read;
    end if;
    list.relaxed_parts := case when pass = 4 then question.relaxed_parts end;
    list.text_strategy := case
      when pass = 0 then 'BM25 index'
      when pass = 4 then 'relaxed: no row has what is required'
      when not question.is_partial then 'all rows'
      when not limits.takes_candidates then 'all rows: few pass the filters'
      when pass = 3 then 'all rows: too few candidates'
      when pass = 2 then 'more candidates: too few at first'
      else 'candidates'
    end || coalesce('; not by the BM25 index: ' || native_reason, '');
    select rated.ids, rated.scores into list.text_ids, list.text_scores
      from knowledge_internal.exact_scores(
             list.text_ids, plan.pool, question, settings, pass = 4
           ) as rated;
  end if;
  list.text_milliseconds := 1000 * extract(epoch from clock_timestamp() - begun_at);
  if question.embedding is null and question.is_inferred then
    question.embedding := knowledge_internal.embedding_of_hits(list.text_ids, list.text_scores);
    question.is_inferred := false;
    question.matching_query := null;
    plan.questions[formulation] := question;
    found := knowledge_internal.rank_legs(formulation, collection, plan);
    list.vector_strategy := 'from the best text hits: ' || found.vector_strategy;
    list.vector_ids := found.vector_ids;
    list.similarities := found.similarities;
    list.vector_milliseconds := found.vector_milliseconds;
  end if;
  return list;
end
$$;

-- The lists of a search: each question is ranked by itself in each collection. Where one collection
-- has rows with what a question requires, it stays required in all.
create function knowledge_internal.rank_all(plan knowledge_internal.search_plan)
returns knowledge_internal.ranked_list[]
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
-- Compiling a plan, or starting workers, takes longer than the search.
set jit = off
set max_parallel_workers_per_gather = 0
-- The planner does not count the cost of reading long vectors and texts outside their row. Without
-- sorts it takes the vector index for the nearest rows; without sequential scans, the text index.
set enable_sort = off
set enable_seqscan = off
-- The planner overestimates how many rows the text condition matches, and would combine the text
-- index with a scan of a filter's whole index.
set cpu_index_tuple_cost = 0.5 as $$
declare
  callers text[];
  lists knowledge_internal.ranked_list[] := '{}';
  others knowledge_internal.search_plan;
  collection text;
begin
  if plan.is_empty then
    return lists;
  end if;
  if plan.apart is not null then
    others := plan;
    others.scope.wanted.excluded_collections :=
      ((plan.scope).wanted).excluded_collections || plan.apart;
    others.scope.matching := (plan.scope).matching
      || ' and chunk.collection <> all (($1).wanted.excluded_collections)';
  end if;
  callers := knowledge_internal.exchange_vector_settings(
    -- Filters are checked after the index scan, which goes on until enough rows pass.
    array[plan.effort::text, 'relaxed_order', '20000']
  );
  -- When no index finds the matching rows, a sequential scan does.
  if plan.is_filtered and not plan.is_indexed then
    perform set_config('enable_seqscan', 'on', true);
  end if;
  for formulation in 1 .. cardinality(plan.questions) loop
    -- Once for all collections; without a filter, the leg may need none.
    if plan.is_filtered or (plan.settings).chunk_count <= knowledge_internal.small_corpus_limit()
    then
      plan.questions[formulation] := knowledge_internal.with_candidates(
        plan.questions[formulation], (plan.settings).document_count
      );
      others.questions[formulation] := plan.questions[formulation];
    end if;
    foreach collection in array coalesce(plan.collections, null::text || plan.apart) loop
      lists := lists || knowledge_internal.rank_legs(
        formulation, collection,
        case when collection is null and plan.apart is not null then others else plan end
      );
    end loop;
  end loop;
  perform knowledge_internal.exchange_vector_settings(callers);
  for place in 1 .. case when cardinality(lists) > 1 then cardinality(lists) else 0 end loop
    if lists[place].relaxed_parts is not null and exists (
      select from unnest(lists) as list
       where list.formulation = lists[place].formulation and list.text_strategy is not null
         and list.relaxed_parts is null
    ) then
      lists[place].text_ids := null;
      lists[place].text_scores := null;
      lists[place].relaxed_parts := null;
    end if;
  end loop;
  return lists;
end
$$;
