-- 032_arrange: boosts, recency_half_life, order_by, diversity and merge_duplicates.
-- Module: arrange.
-- Adds: type boost and the functions that read boosts and order_by, and replaces arranged_rows.
-- Locks nothing that exists.

-- A boost, or what order_by compares. value_sql: SQL about chunk, which reads the other parts, as
-- given; free_distance: offset; rate: from decay_to.
create type knowledge_internal.boost as (
  value_sql text, wanted knowledge_internal.chunk_filter, location jsonpath,
  factor double precision, weight double precision, origin double precision,
  scale double precision, free_distance double precision, rate double precision
);

-- The least factor of a score above 0, and of all factors together: smaller ones could underflow.
create function knowledge_internal.least_factor() returns double precision
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
as $$
begin
  return 0.5::float8 ^ 500;
end
$$;

-- The product of the factors of a row.
create function knowledge_internal.factor_product(factors double precision[])
returns double precision
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
as $$
declare
  least_product constant float8 := knowledge_internal.least_factor();
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

-- A number in metadata, or an ISO date as days since 1970; null for what is not wanted (number,
-- date; null: either). Bounded, because a number of JSON may be too large or small for float8.
create function knowledge_internal.json_number(value jsonb, wanted text) returns double precision
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return case jsonb_typeof(value)
    when 'number' then
      case when wanted is distinct from 'date'
        then greatest(-1e100, least(1e100, round(value::numeric, 30)))::float8 end
    when 'string' then
      case when wanted is distinct from 'number'
        then knowledge_internal.iso_days(value #>> '{}') end
  end;
end
$$;

-- SQL about chunk for the number or date of a field that filters can name, a date as days since
-- 1970. wanted: as in json_number. location: of a key of metadata, which the SQL reads from
-- here.location. Raises 22023 for another field; argument: where it was given.
create function knowledge_internal.field_number(
  field text, wanted text, here text, argument text,
  out value_sql text, out location jsonpath, out kind text
)
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  columns constant jsonb := (
    select jsonb_object_agg(listed.key, listed.value)
      from jsonb_each_text(knowledge_internal.filter_columns()) as listed
     where listed.value = 'integer' and wanted is distinct from 'date'
        or listed.value in ('date', 'timestamp') and wanted is distinct from 'number'
  );
  path constant text[] := (string_to_array(field, '.'))[2:];
begin
  kind := coalesce(
    columns ->> field,
    case when field ~ '^metadata[.]' and cardinality(path) <= 20 and '' <> all (path)
      then 'json' end
  );
  if kind is null then
    raise exception '% must be one of %, metadata.<key>%, not %',
                    argument,
                    (
                      select string_agg(name, ', ' order by name)
                        from jsonb_object_keys(columns) as name
                    ),
                    case when wanted is null then ', and asc or desc after it' else '' end,
                    coalesce(left(field, 100), 'null')
      using errcode = '22023';
  end if;
  location := case when kind = 'json' then (
    select 'strict $' || string_agg('.' || to_json(listed.key), '' order by listed.ordinality)
      from unnest(path) with ordinality as listed (key)
  ) end;
  value_sql := format(
    case kind
      when 'integer' then 'chunk.%1$I::float8'
      when 'json' then
        'knowledge_internal.json_number('
        'jsonb_path_query_first(chunk.metadata, %2$s.location, ''{}'', true), %3$L)'
      else
        'case when isfinite(chunk.%1$I) then extract(epoch from chunk.%1$I)::float8 / 86400 end'
    end,
    field, here, wanted
  );
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
-- The bounds leave every score finite, with 10 boosts, a half-life and the largest weights.
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
      coalesce(knowledge_internal.conditions_sql(compiled.wanted, here || '.wanted'), 'true'), here
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
    here, distance, ln(knowledge_internal.least_factor())
  );
  return compiled;
end
$$;

-- The boosts of a search, compiled; null for none. Raises 22023.
create function knowledge_internal.compiled_boosts(boosts jsonb)
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
  boosts := coalesce(nullif(boosts, 'null'), '[]');
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
  if parts[1] ~* '[,;|]|\s(?:and|asc|desc|ascending|descending)(?:\s|$)' then
    raise exception 'order_by must be one number or date, with asc or desc, not %',
                    left(order_by, 100)
      using errcode = '22023';
  end if;
  select case when lower(parts[2]) = 'asc' then read.value_sql
           else '-(' || read.value_sql || ')' end,
         read.location
    into compiled.value_sql, compiled.location
    from knowledge_internal.field_number(parts[1], null, '($2)', 'order_by') as read;
  return compiled;
end
$$;

-- What boosts and order_by read of rows; none where neither is asked for.
create function knowledge_internal.measured_rows(
  ids uuid[], boosts knowledge_internal.boost[], order_by knowledge_internal.boost
) returns table (id uuid, factors double precision[], order_value double precision)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  if num_nonnulls(boosts, order_by.value_sql) = 0 then
    return;
  end if;
  return query execute format(
    'select chunk.id, %s::float8[], (%s)::float8'
    '  from public.knowledge_chunks as chunk where chunk.id = any ($3)',
    coalesce(
      (
        select 'array[' || string_agg((boosts[place]).value_sql, ', ' order by place) || ']'
          from generate_subscripts(boosts, 1) as place
      ),
      'null'
    ),
    coalesce(order_by.value_sql, 'null')
  )
    using boosts, order_by, ids;
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

-- The rows without those that say the same as one above them: the same text, or the same lexemes in
-- any order and number and nearly the same embedding. duplicates: how many each stands for.
create function knowledge_internal.distinct_rows(rows knowledge_internal.fused_row[])
returns knowledge_internal.fused_row[]
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  least_cosine constant float8 := 0.97;
  ids constant uuid[] := array(select hit.id from unnest(rows) as hit);
begin
  return array(
    with said as materialized (
      select listed.place, coalesce(chunk.content_hash, listed.id::text) as text,
             coalesce(
               -- Impact levels have no position.
               md5(tsvectorsend(nullif(strip(ts_filter(chunk.content_tsv, '{a,b,c,d}')), ''))),
               listed.id::text
             ) as lexemes,
             chunk.embedding
        from unnest(ids) with ordinality as listed (id, place)
        left join knowledge_internal.rows_by_id(
               ids, has_lexemes => true, has_embedding => true
             ) as chunk on chunk.id = listed.id
    ),
    text as materialized (
      select said.*, min(said.place) over (partition by said.text) as text_place from said
    ),
    -- Of rows with the same lexemes, each is compared with the best.
    shown as (
      select one.place,
             case
               when 1 - (
                 one.embedding operator(extensions.<=>) first_value(one.embedding) over same
               ) > least_cosine then first_value(one.place) over same
               else one.place
             end as shown_place
        from text as one
       where one.place = one.text_place
      window same as (partition by one.lexemes order by one.place)
    ),
    counted as (
      select shown.shown_place, count(*) - 1 as duplicates
        from text
        join shown on shown.place = text.text_place
       group by shown.shown_place
    )
    select row(
             hit.id, hit.vector_rank, hit.text_rank, hit.similarity, hit.text_score,
             hit.vector_share, hit.text_share, hit.score, null, hit.factors, counted.duplicates
           )::knowledge_internal.fused_row
      from counted
      join unnest(rows) with ordinality as hit (
             id, vector_rank, text_rank, similarity, text_score, vector_share, text_share, score,
             collections, factors, duplicates, place
           ) on hit.place = counted.shown_place
     order by hit.place
  );
end
$$;

-- What arranging reads of the arguments, checked; null for nothing. Keys: boosts and order_by,
-- compiled; half_life, in days; merge_duplicates; diversity; picks: the hits at the top of the list
-- that diversity orders. Raises 22023.
create function knowledge_internal.further_arrangement(given knowledge_internal.search_arguments)
returns jsonb
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  longest_order constant integer := 1000; -- reading it takes the square of its length
  boosts knowledge_internal.boost[];
begin
  perform knowledge_internal.check_range('diversity', given.diversity, 0, 1);
  if length(given.order_by) > longest_order then
    raise exception 'order_by must be at most 1,000 characters long, not %',
                    left(given.order_by, 100)
      using errcode = '22023';
  end if;
  boosts := knowledge_internal.compiled_boosts(given.boosts);
  return nullif(
    jsonb_strip_nulls(jsonb_build_object(
      'half_life', case when given.recency_half_life is not null
        then greatest(1e-6, least(1e100, given.recency_half_life)) end,
      'merge_duplicates', nullif(given.merge_duplicates, false),
      'diversity', nullif(given.diversity, 0),
      'picks', case when given.diversity > 0 then given.match_offset + given.match_count end
    ))
      || case when boosts is not null then jsonb_build_object('boosts', boosts) else '{}' end
      || case
        when given.order_by is not null then jsonb_build_object(
          'order_by', knowledge_internal.compiled_order(given.order_by)
        )
        else '{}'
      end,
    '{}'
  );
end
$$;

-- The rows, best first: each score is multiplied by the factors of its row, the last of which is
-- that of the half-life. greatest_factor: the greatest product of the factors of a row, at least 1.
create function knowledge_internal.weighted_rows(
  rows knowledge_internal.fused_row[], boosts knowledge_internal.boost[],
  half_life double precision,
  out weighted knowledge_internal.fused_row[], out greatest_factor double precision
)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  least_exponent constant float8 := ln(knowledge_internal.least_factor());
  -- A date is a whole number of days.
  today constant float8 := floor(extract(epoch from now()) / 86400);
  ids constant uuid[] := array(select hit.id from unnest(rows) as hit);
begin
  select array_agg(
           row(
             hit.id, hit.vector_rank, hit.text_rank, hit.similarity, hit.text_score,
             hit.vector_share, hit.text_share, scaled.score, null, weight.factors, null
           )::knowledge_internal.fused_row
           order by scaled.score desc, least(hit.vector_rank, hit.text_rank), hit.id
         ),
         greatest(max(weight.product), 1)
    into weighted, greatest_factor
    from unnest(rows) as hit
    left join knowledge_internal.measured_rows(ids, boosts, null) as measure on measure.id = hit.id
    left join knowledge_internal.page_rows(
           case when half_life is not null then ids end, has_text => false
         ) as chunk on chunk.id = hit.id
   cross join lateral (
           select case
                    when half_life is null then measure.factors
                    -- greatest() ignores null, so a row without a date, or with one in the future,
                    -- counts as one of today.
                    else measure.factors || exp(
                      greatest(
                        ln(0.5::float8) * greatest(
                          today - extract(epoch from chunk.document_date)::float8 / 86400, 0
                        ) / half_life,
                        least_exponent
                      )
                    )
                  end as factors
           offset 0
         ) as listed
   cross join lateral (
           select listed.factors, knowledge_internal.factor_product(listed.factors) as product
           offset 0
         ) as weight
   cross join lateral (
           -- A score below 0 would rise with a factor below 1.
           select case when hit.score < 0 then hit.score
                    else hit.score * weight.product end as score
         ) as scaled;
end
$$;

create or replace function knowledge_internal.arranged_rows(
  fused knowledge_internal.fused_row[], given knowledge_internal.search_arguments,
  plan knowledge_internal.search_plan, out arranged knowledge_internal.fused_row[],
  out merged integer, out best uuid, out greatest_factor double precision, out further jsonb
)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  most_varied constant integer := 100; -- rows, each of which is compared with each pick
  boosts constant knowledge_internal.boost[] := case
    when jsonb_typeof(plan.further -> 'boosts') = 'array' then array(
      select one from jsonb_populate_recordset(
        null::knowledge_internal.boost, plan.further -> 'boosts'
      ) as one
    )
  end;
  order_by constant knowledge_internal.boost := jsonb_populate_record(
    null::knowledge_internal.boost, plan.further -> 'order_by'
  );
  rows knowledge_internal.fused_row[] := fused;
  first_ids uuid[]; -- those that diversity picks
begin
  if fused is null then
    further := knowledge_internal.further_arrangement(given);
    return;
  end if;
  if boosts is not null or plan.further ? 'half_life' then
    select weighted.weighted, weighted.greatest_factor
      into rows, greatest_factor
      from knowledge_internal.weighted_rows(
             rows, boosts, (plan.further ->> 'half_life')::float8
           ) as weighted;
  end if;
  if plan.further ? 'merge_duplicates' then
    rows := knowledge_internal.distinct_rows(rows);
  end if;
  select listed.kept, listed.merged, listed.kept[1].id
    into arranged, merged, best
    from knowledge_internal.rows_of_documents(
           rows, given.one_per_document, given.max_per_document
         ) as listed;
  if order_by.value_sql is not null then
    arranged := array(
      select hit
        from unnest(arranged) as hit
        left join knowledge_internal.measured_rows(
               array(select one.id from unnest(arranged) as one), null, order_by
             ) as measure on measure.id = hit.id
       order by measure.order_value, hit.score desc, least(hit.vector_rank, hit.text_rank), hit.id
    );
  elsif plan.further ? 'diversity' then
    first_ids := array(select hit.id from unnest(arranged[:most_varied]) as hit);
    first_ids := array(
      select first_ids[pick.place]
        from unnest(
               knowledge_internal.varied_places(
                 array(select hit.score from unnest(arranged[:most_varied]) as hit),
                 array(
                   select chunk.embedding
                     from unnest(first_ids) with ordinality as listed (id, place)
                     left join knowledge_internal.rows_by_id(first_ids, has_embedding => true)
                            as chunk on chunk.id = listed.id
                    order by listed.place
                 ),
                 (plan.further ->> 'diversity')::float8, (plan.further ->> 'picks')::integer
               )
             ) with ordinality as pick (place, number)
       order by pick.number
    );
    arranged := array(
      select row(
               hit.id, hit.vector_rank, hit.text_rank, hit.similarity, hit.text_score,
               hit.vector_share, hit.text_share, hit.score, hit.collections, hit.factors,
               hit.duplicates
             )::knowledge_internal.fused_row
        from unnest(arranged) with ordinality as hit (
               id, vector_rank, text_rank, similarity, text_score, vector_share, text_share,
               score, collections, factors, duplicates, place
             )
       order by array_position(first_ids, hit.id), hit.place
    );
  end if;
end
$$;

revoke all on all functions in schema knowledge_internal from public;

notify pgrst, 'reload schema';
