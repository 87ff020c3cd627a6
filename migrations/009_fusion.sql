-- 009_fusion: the rows of the legs in one list, and how that list is arranged.
-- Adds: types fused_row, row_facts and arranged_row, and the functions
-- for scores of fused rows and for arranging them. Locks nothing that exists.
-- Written from supabase/schemas/core/09_fusion.sql by `make baseline`: edit that file.

-- A row of the fused list. collections: with one_per_document, those of all rows of its document;
-- factors: of each boost; duplicates: with merge_duplicates, how many rows it stands for beside
-- itself.
create type knowledge_internal.fused_row as (
  id uuid, vector_rank bigint, text_rank bigint, similarity double precision,
  text_score double precision, vector_share double precision, text_share double precision,
  score double precision, collections text[], factors double precision[], duplicates integer
);

-- What an arrangement needs to know of a row beside its ranks and scores; null for what it does not
-- need.
create type knowledge_internal.row_facts as (
  id uuid, document_id uuid, chunk_index integer, collection text, factors double precision[],
  order_value double precision, answer_confidence double precision, embedding extensions.vector,
  content_hash text, lexemes_hash text
);

-- A row while the list is arranged. score, collections and duplicates: as they will be in the
-- fused_row.
create type knowledge_internal.arranged_row as (
  hit knowledge_internal.fused_row, fact knowledge_internal.row_facts, score double precision,
  collections text[], duplicates integer
);

-- The fused score of a row that is the best of every list that it can be in.
create function knowledge_internal.best_fused_score(
  plan knowledge_internal.search_plan, rrf_k double precision
) returns double precision
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  best float8 := 0;
begin
  for place in 1 .. cardinality(plan.questions) loop
    best := best + (
      select case
               when plan.questions[place].embedding is null and not plan.questions[place].is_inferred
                 then 0
               else plan.vector_weight * rule.vector_best
             end
             + case
               when num_nonnulls(plan.questions[place].query_text, plan.analyses[place].lexemes) = 0
                 then 0
               else plan.text_weight * rule.text_best
             end
             + case
               when rule.identifier_bonus is null then 0
               else 2 * plan.vector_weight * rule.vector_best + plan.text_weight * rule.text_best
             end
        from knowledge_internal.fusion_rules(
               plan.fusion, rrf_k, plan.cosine_scale, null, null, null, null, null,
               (plan.analyses[place].bonuses).identifier_bonus
             ) as rule
    );
  end loop;
  return best;
end
$$;

-- The plan with its first question as it was asked, without what like_ids add.
create function knowledge_internal.as_asked(plan knowledge_internal.search_plan)
returns knowledge_internal.search_plan
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  if not (plan.known is null) then
    plan.questions[1] := (plan.known).question;
    plan.analyses[1] := (plan.known).analysis;
  end if;
  return plan;
end
$$;

-- How well each of these chunks fits the question that it fits best, 0 to 1: by its cosine
-- similarity, and by coverage, the weight of the question's words that it has over that of all.
-- docs/ranking.md measures it. Null for a chunk that is not here.
create function knowledge_internal.answer_confidences(
  plan knowledge_internal.search_plan, ids uuid[]
) returns double precision[]
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  asked constant knowledge_internal.search_plan := knowledge_internal.as_asked(plan);
  asked_embedding extensions.vector;
  analysis knowledge_internal.query_analysis;
  confidences double precision[];
begin
  for question in 1 .. cardinality(asked.questions) loop
    asked_embedding := asked.questions[question].embedding;
    analysis := asked.analyses[question];
    confidences := array(
      select case when chunk.id is not null then greatest(
               confidences[listed.place],
               1 / (
                 1 + exp(
                   -case
                     when chunk.cosine is null then 15 * fit.coverage - 6
                     when fit.coverage is null then 30 * chunk.cosine - 12.5
                     else 15 * chunk.cosine + 8.7 * fit.coverage - 9.2
                   end
                 )
               )
             ) end
        from unnest(ids) with ordinality as listed (id, place)
        left join (
               -- Concatenated with nothing, a tsvector outside its row is fetched once.
               select stored.id, stored.content_tsv || ''::tsvector as lexemes,
                      1 - stored.distance as cosine
                 from knowledge_internal.rows_by_id(
                        ids, has_lexemes => true, asked_embedding => asked_embedding
                      ) as stored
               offset 0
             ) as chunk on chunk.id = listed.id
       cross join lateral (
               -- Of the readings of a word, the best counts. The sum of all is read once.
               select coalesce(sum(word.weight), 0) / (
                        select sum(best.weight)
                          from (
                            select max(lexeme.weight) as weight
                              from unnest(analysis.scored_weights, analysis.readings)
                                   as lexeme (weight, reading)
                             group by lexeme.reading
                          ) as best
                      ) as coverage
                 from (
                   select max(lexeme.weight) as weight
                     from unnest(
                            analysis.scored_weights, analysis.lexeme_queries, analysis.readings
                          ) as lexeme (weight, query, reading)
                    where chunk.lexemes @@ lexeme.query
                    group by lexeme.reading
                 ) as word
             ) as fit
       order by listed.place
    );
  end loop;
  return confidences;
end
$$;

-- A number of a boost. Raises 22023 unless it lies between these bounds.
create function knowledge_internal.boost_number(
  boost jsonb, key text, place text, lowest double precision, highest double precision
) returns double precision
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  given constant float8 := knowledge_internal.json_number(boost -> key, 'number');
begin
  if (given between lowest and highest) is not true then
    raise exception '%.% must be a number between % and %, not %',
                    place, key, lowest, highest,
                    coalesce(left((boost -> key)::text, 100), 'missing')
      using errcode = '22023';
  end if;
  return given;
end
$$;

-- A boost, compiled. here: where its SQL finds it. Raises 22023; the message begins with place.
-- The bounds leave every score finite, with 11 boosts and the largest weights.
create function knowledge_internal.compiled_boost(source jsonb, place text, here text)
returns knowledge_internal.boost
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  largest constant float8 := 1e6;
  farthest constant float8 := 1e100;
  form constant text := case when jsonb_typeof(source) = 'object' then (
    select listed.name from unnest('{filters,decay,modifier}'::text[]) as listed (name)
     where source ? listed.name limit 1
  ) end;
  keys constant text[] := case form
    when 'filters' then '{filters,factor}'
    when 'decay' then '{field,decay,origin,scale,offset,decay_to}'
    else '{field,modifier,weight}'
  end;
  choices constant text[] := case form
    when 'decay' then '{gauss,exp,linear}' when 'modifier' then '{log1p,sqrt,linear}' end;
  chosen constant text := source ->> form;
  is_now constant boolean := coalesce(source -> 'origin' = '"now"', false);
  origin constant float8 := knowledge_internal.json_number(source -> 'origin', null);
  problem constant text := case
    when form is null then ' must be an object with filters and factor, with field, modifier and '
      'weight, or with field, decay, origin and scale, not %1$s'
    when source - keys <> '{}' then ' must have only the keys %2$s, not %3$s'
    when form = 'filters' and jsonb_typeof(source -> 'filters') = 'null'
      then '.filters must be conditions, not null'
    when (chosen = any (choices)) is false or chosen is null
      then format('.%s must be one of %s, not %%4$s', form, array_to_string(choices, ', '))
    when form = 'decay' and not is_now and origin is null
      then '.origin must be "now", an ISO date such as 2026-01-31 or a number, not %5$s'
  end;
  compiled knowledge_internal.boost;
  field record;
  distance text;
  filter_hint text;
begin
  if problem is not null then
    raise exception '%', place || format(
                      problem, left(source::text, 100), array_to_string(keys, ', '),
                      case when form is not null then left((source - keys)::text, 100) end,
                      left((source -> form)::text, 100),
                      coalesce(left((source -> 'origin')::text, 100), 'missing')
                    )
      using errcode = '22023';
  end if;
  if form = 'filters' then
    compiled.factor := knowledge_internal.boost_number(source, 'factor', place, 0, largest);
    begin
      compiled.wanted := knowledge_internal.compile_filter(
        source -> 'filters', null, null, null, false
      );
    exception when invalid_parameter_value then
      get stacked diagnostics filter_hint = pg_exception_hint;
      raise exception '%.%', place, sqlerrm using errcode = '22023', hint = filter_hint;
    end;
    compiled.value_sql := format(
      'case when %s then %s.factor else 1 end',
      replace(
        (knowledge_internal.row_scope(compiled.wanted, null, null, false, null)).matching,
        '($1)', here
      ),
      here
    );
    return compiled;
  end if;

  select read.* into field
    from knowledge_internal.field_number(
           source ->> 'field',
           case when form = 'decay' and jsonb_typeof(source -> 'origin') <> 'number' then 'date'
             else 'number' end,
           here, place || '.field'
         ) as read;
  compiled.location := field.location;
  if form = 'modifier' then
    compiled.weight := knowledge_internal.boost_number(
      source, 'weight', place, -largest, largest
    );
    -- greatest() ignores null, so a missing number counts as 0.
    compiled.value_sql := format(
      'greatest(0, least(%s, 1 + %s.weight * ' || case chosen
        when 'log1p' then 'ln(1 + greatest(%s, 0))))'
        when 'sqrt' then 'sqrt(greatest(%s, 0))))'
        else 'coalesce(%s, 0)))'
      end,
      largest, here, field.value_sql
    );
    return compiled;
  end if;

  compiled.scale := knowledge_internal.boost_number(source, 'scale', place, 1e-6, farthest);
  compiled.free_distance := knowledge_internal.boost_number(
    '{"offset": 0}' || source, 'offset', place, 0, farthest
  );
  compiled.rate := knowledge_internal.boost_number(
    '{"decay_to": 0.5}' || source, 'decay_to', place, 0.001, 0.999
  );
  compiled.rate := case chosen when 'linear' then 1 - compiled.rate else ln(compiled.rate) end;
  compiled.origin := case
    when not is_now then origin
    -- A date is a whole number of days.
    when field.kind = 'date' then floor(extract(epoch from now()) / 86400)
    else extract(epoch from now()) / 86400
  end;
  -- A missing value has no distance, so its factor is 1. What lies in the future counts as now.
  distance := format(
    'greatest(' || case when is_now then '' else 'abs' end
      || '(%1$s.origin - %2$s) - %1$s.free_distance, 0) / %1$s.scale',
    here, field.value_sql
  );
  compiled.value_sql := format(
    case chosen
      when 'linear' then 'greatest(1 - %1$s.rate * %2$s, 0)'
      when 'gauss' then 'exp(greatest(%1$s.rate * (%2$s) ^ 2, %3$s))'
      else 'exp(greatest(%1$s.rate * %2$s, %3$s))'
    end,
    here, distance, ln(knowledge_internal.least_boost())
  );
  return compiled;
end
$$;

-- The boosts of a search, compiled, and as the last one its half-life; null for none. Raises 22023.
create function knowledge_internal.compiled_boosts(boosts jsonb, half_life double precision)
returns knowledge_internal.boost[]
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  most_boosts constant integer := 10;
  compiled knowledge_internal.boost[] := '{}';
begin
  if (
    case jsonb_typeof(boosts) when 'array' then jsonb_array_length(boosts) > most_boosts
      else boosts <> 'null' end
  ) then
    raise exception 'boosts must be an array of at most % objects, not %',
                    most_boosts, left(boosts::text, 100) using errcode = '22023';
  end if;
  boosts := coalesce(nullif(boosts, 'null'), '[]') || case
    when half_life is null then '[]' else jsonb_build_object(
      'field', 'document_date', 'decay', 'exp', 'origin', 'now',
      'scale', greatest(1e-6, least(1e100, half_life))
    ) end;
  for place in 0 .. jsonb_array_length(boosts) - 1 loop
    compiled := compiled || knowledge_internal.compiled_boost(
      boosts -> place, format('boosts[%s]', place), format('($1[%s])', place + 1)
    );
  end loop;
  return case when cardinality(compiled) > 0 then compiled end;
end
$$;

-- What order_by compares, compiled: rows come in ascending order of it, and descending is negative.
create function knowledge_internal.compiled_order(order_by text) returns knowledge_internal.boost
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
declare
  parts constant text[] := regexp_match(order_by, '^\s*(.*?)(?:\s+(asc|desc))?\s*$', 'i');
  compiled knowledge_internal.boost;
begin
  select case when lower(parts[2]) = 'asc' then read.value_sql
           else '-(' || read.value_sql || ')' end,
         read.location
    into compiled.value_sql, compiled.location
    from knowledge_internal.field_number(parts[1], null, '($2)', 'order_by') as read;
  return compiled;
end
$$;

-- What the database with these rows says of them, in their order, for an arrangement. is_sent: to
-- another database, which needs the confidence of each row.
create function knowledge_internal.row_facts(
  ids uuid[], plan knowledge_internal.search_plan, is_sent boolean default false
) returns knowledge_internal.row_facts[]
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  asked constant knowledge_internal.arrangement := plan.arrangement;
  confidences constant float8[] := case when is_sent or asked.min_confidence is not null
    then knowledge_internal.answer_confidences(plan, ids) end;
begin
  return array(
    select row(
             chunk.id, chunk.document_id, chunk.chunk_index, chunk.collection, measure.factors,
             measure.order_value, listed.confidence, chunk.embedding,
             case when asked.merge_duplicates then chunk.content_hash end,
             -- Impact levels have no position.
             md5(tsvectorsend(nullif(strip(ts_filter(chunk.content_tsv, '{a,b,c,d}')), '')))
           )::knowledge_internal.row_facts
      from unnest(ids, confidences) with ordinality as listed (id, confidence, place)
      left join knowledge_internal.rows_by_id(
             ids, has_lexemes => asked.merge_duplicates,
             has_embedding => asked.merge_duplicates or asked.diversity is not null
           ) as chunk on chunk.id = listed.id
      left join knowledge_internal.measured_rows(ids, asked.boosts, asked.order_by) as measure
        on measure.id = listed.id
     order by listed.place
  );
end
$$;

-- The least factor of a row above 0, and of its boosts together: smaller ones could underflow.
create function knowledge_internal.least_boost() returns double precision
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
as $$
begin
  return 0.5::float8 ^ 500;
end
$$;

-- The product of the factors of a row.
create function knowledge_internal.boost_product(factors double precision[])
returns double precision
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
as $$
declare
  least_product constant float8 := knowledge_internal.least_boost();
  product float8 := 1;
  factor float8;
begin
  foreach factor in array coalesce(factors, '{}') loop
    product := case when product * factor = 0 then 0
      else greatest(product * factor, least_product) end;
  end loop;
  return product;
end
$$;

-- The rows without those that say the same as one above them: the same text, or the same lexemes in
-- any order and number and nearly the same embedding. duplicates: how many each stands for.
create function knowledge_internal.distinct_rows(rows knowledge_internal.arranged_row[])
returns knowledge_internal.arranged_row[]
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  least_cosine constant float8 := 0.97;
begin
  return array(
    with listed as materialized (
      select one.place, one.lexemes, min(one.place) over (partition by one.text) as text_place
        from (
          select place, coalesce((fact).content_hash, (hit).id::text) as text,
                 coalesce((fact).lexemes_hash, (hit).id::text) as lexemes
            from unnest(rows) with ordinality
                   as listed (hit, fact, score, collections, duplicates, place)
          offset 0
        ) as one
    ),
    -- Of rows with the same lexemes, each is compared with the best.
    text as (
      select one.place,
             case
               when first_value(one.place) over same = one.place then one.place
               when 1 - (
                 (rows[one.place].fact).embedding operator(extensions.<=>)
                   (rows[first_value(one.place) over same].fact).embedding
               ) > least_cosine then first_value(one.place) over same
               else one.place
             end as shown_place
        from listed as one
       where one.place = one.text_place
      window same as (partition by one.lexemes order by one.place)
    )
    select row(
             rows[text.shown_place].hit, rows[text.shown_place].fact,
             rows[text.shown_place].score, null, count(*) - 1
           )::knowledge_internal.arranged_row
      from listed
      join text on text.place = listed.text_place
     group by text.shown_place
     order by text.shown_place
  );
end
$$;

-- The first picks of rows that differ, as places in these arrays, best first: each is the row with
-- the greatest (1 - diversity) * relevance - diversity * the cosine to the nearest one before it
-- (maximal marginal relevance: Carbonell and Goldstein 1998). relevance: its score scaled to 0..1.
create function knowledge_internal.varied_places(
  scores double precision[], embeddings extensions.vector[], diversity double precision,
  picks integer
) returns integer[]
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  relevances float8[] := array( -- null for what was taken
    select coalesce(
             (listed.score - scores[cardinality(scores)])
               / nullif(scores[1] - scores[cardinality(scores)], 0),
             1
           )
      from unnest(scores) with ordinality as listed (score, place)
     order by listed.place
  );
  nearest float8[]; -- the cosine of each row to the nearest that was taken
  taken integer[] := '{}';
  pick integer := case when cardinality(scores) > 0 then 1 end;
begin
  while pick is not null and cardinality(taken) < picks loop
    taken := taken || pick;
    relevances[pick] := null;
    nearest := array(
      select greatest(
               nearest[hit.place],
               -- Without an embedding, a row is like none.
               coalesce(1 - (hit.embedding operator(extensions.<=>) newest.embedding), 0)
             )
        from unnest(embeddings) with ordinality as hit (embedding, place)
       cross join (select embeddings[pick] as embedding offset 0) as newest
       order by hit.place
    );
    pick := (
      select hit.place
        from unnest(relevances, nearest) with ordinality as hit (relevance, cosine, place)
       where hit.relevance is not null
       order by (1 - diversity) * hit.relevance - diversity * hit.cosine desc, hit.place
       limit 1
    );
  end loop;
  return taken;
end
$$;

-- The list of a search, arranged. merged: how many rows stand in others of their documents; best:
-- the row with the best score; greatest_boost: the greatest product of the factors of a row, at
-- least 1.
create function knowledge_internal.arranged_rows(
  fused knowledge_internal.fused_row[], plan knowledge_internal.search_plan,
  out arranged knowledge_internal.fused_row[], out merged integer, out best uuid,
  out greatest_boost double precision
)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  most_varied constant integer := 100; -- rows, each of which is compared with each pick
  asked constant knowledge_internal.arrangement := plan.arrangement;
  is_only_varied constant boolean := asked.diversity is not null and num_nonnulls(
    asked.one_per_document, asked.max_per_document, asked.merge_duplicates, asked.min_confidence,
    asked.boosts, (asked.order_by).value_sql
  ) = 0;
  facts constant knowledge_internal.row_facts[] := knowledge_internal.row_facts(
    array(
      select hit.id
        from unnest(case when is_only_varied then fused[:most_varied] else fused end) as hit
    ),
    plan
  ); -- in the order of the rows
  rows knowledge_internal.arranged_row[];
  first_places integer[]; -- those that diversity picks
begin
  select array_agg(
           row(one.hit, one.fact, boosted.score, null, null)::knowledge_internal.arranged_row
           order by boosted.score desc, least((one.hit).vector_rank, (one.hit).text_rank),
                    (one.hit).id
         ),
         greatest(max(boost.product), 1)
    into rows, greatest_boost
    from generate_subscripts(fused, 1) as place
   cross join lateral (select fused[place] as hit, facts[place] as fact offset 0) as one
   cross join lateral (
           select case when (one.fact).factors is null then 1
                    else knowledge_internal.boost_product((one.fact).factors) end as product
           offset 0
         ) as boost
   cross join lateral (
           -- A score below 0 would rise with a factor below 1.
           select case when (one.hit).score < 0 then (one.hit).score
                    else (one.hit).score * boost.product end as score
           offset 0
         ) as boosted
   -- Without a question nothing is compared.
   where ((one.fact).answer_confidence < asked.min_confidence) is not true;
  if asked.merge_duplicates then
    rows := knowledge_internal.distinct_rows(rows);
  end if;
  if asked.one_per_document then
    merged := cardinality(rows);
    -- A document stands where its best row stands, with its score, and shows its best chunk.
    rows := array(
      select row(
               shown.hit, shown.fact, shown.best_score,
               array(
                 select distinct name from unnest(shown.names) as name
                  where name is not null order by name
               ),
               shown.duplicates
             )::knowledge_internal.arranged_row
        from (
          select distinct on (document.id)
                 listed.*, max(listed.score) over of_document as best_score,
                 array_agg((listed.fact).collection) over of_document as names,
                 min(listed.place) over of_document as best_place
            from unnest(rows) with ordinality
                   as listed (hit, fact, score, collections, duplicates, place)
           cross join lateral (
                   select coalesce((listed.fact).document_id, (listed.hit).id) as id
                 ) as document
          window of_document as (partition by document.id)
           order by document.id, (listed.fact).chunk_index is null, listed.place
        ) as shown
       order by shown.best_place
    );
    merged := merged - cardinality(rows);
  elsif asked.max_per_document is not null then
    rows := array(
      select row(
               one.hit, one.fact, one.score, null, one.duplicates
             )::knowledge_internal.arranged_row
        from (
          select listed.*,
                 row_number() over (
                   partition by coalesce((listed.fact).document_id, (listed.hit).id)
                       order by listed.place
                 ) as place_in_document
            from unnest(rows) with ordinality
                   as listed (hit, fact, score, collections, duplicates, place)
        ) as one
       where one.place_in_document <= asked.max_per_document
       order by one.place
    );
  end if;
  best := (rows[1].hit).id;
  if asked.diversity is not null and (asked.order_by).value_sql is null then
    select knowledge_internal.varied_places(
             array_agg(listed.score order by listed.place),
             array_agg((listed.fact).embedding order by listed.place), asked.diversity, asked.picks
           )
      into first_places
      from unnest(rows) with ordinality as listed (hit, fact, score, collections, duplicates, place)
     where listed.place <= most_varied;
  end if;
  arranged := array(
    select row(
             (listed.hit).id, (listed.hit).vector_rank, (listed.hit).text_rank,
             (listed.hit).similarity, (listed.hit).text_score, (listed.hit).vector_share,
             (listed.hit).text_share, listed.score, listed.collections, (listed.fact).factors,
             listed.duplicates
           )::knowledge_internal.fused_row
      from unnest(rows) with ordinality
             as listed (hit, fact, score, collections, duplicates, place)
     order by array_position(first_places, listed.place::integer),
              case when (asked.order_by).value_sql is null then listed.place end,
              (listed.fact).order_value, listed.score desc,
              least((listed.hit).vector_rank, (listed.hit).text_rank), (listed.hit).id
  );
end
$$;
