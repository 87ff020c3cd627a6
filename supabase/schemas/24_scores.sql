-- 024_scores: the exact scores of the text leg.
-- Adds: functions rank_steps, bonus and exact_scores. Locks nothing that exists.

create function knowledge_internal.bonus(
  content_tsv tsvector, bonuses knowledge_internal.query_bonuses
)
returns float8
language plpgsql
immutable
parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $$
declare
  bonus float8 := 0;
begin
  if content_tsv @@ bonuses.identifier_query then
    bonus := bonuses.identifier_bonus;
  end if;
  for place in 1 .. coalesce(cardinality(bonuses.phrase_queries), 0) loop
    if content_tsv @@ bonuses.phrase_queries[place] then
      bonus := bonus + bonuses.phrase_bonuses[place];
    end if;
  end loop;
  return bonus;
end
$$;

comment on function knowledge_internal.bonus is
  'What the identifiers and phrases of a query add to the BM25 of a chunk that has them.';

create function knowledge_internal.exact_scores(
  ids uuid[],
  pool integer,
  lexeme_queries tsquery[],
  weights float8[],
  readings integer[],
  mean_length float8,
  bonuses knowledge_internal.query_bonuses
)
returns table (
  id uuid, embedding extensions.vector, text_score float8, text_rank bigint
)
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
-- The search sets force_custom_plan; the statement here is the same for every query.
set plan_cache_mode = force_generic_plan
as $$
declare
  -- The length factor is linear in the length.
  shortest constant float8 := knowledge_internal.bm25_length_factor(0, mean_length);
  per_word constant float8 := knowledge_internal.bm25_length_factor(1, mean_length) - shortest;
  -- Words are read alike in one language: then no word has several lexemes.
  is_one_reading constant boolean := cardinality(readings) = (
    select count(distinct listed.reading) from unnest(readings) as listed (reading)
  );
begin
  return query
  select scored.*, row_number() over (order by scored.score desc, scored.id) as place
    from (
      select chunk.id, chunk.embedding,
             case
               when is_one_reading then (
                 select sum(
                          word.weight * word.tf * (knowledge_internal.bm25_k1() + 1)
                            / (word.tf + chunk.length_factor)
                        )
                   from (
                     select listed.weight,
                            width_bucket(
                              ts_rank('{1,1,1,1}', chunk.content_tsv, listed.query),
                              knowledge_internal.rank_steps()
                            ) as tf
                       from unnest(lexeme_queries, weights) as listed (query, weight)
                     offset 0
                   ) as word
               )
               else (
                 select sum(best.score order by best.reading)
                   from (
                     select word.reading,
                            max(word.weight * word.tf * (knowledge_internal.bm25_k1() + 1)
                                / (word.tf + chunk.length_factor)) as score
                       from (
                         select listed.weight, listed.reading,
                                width_bucket(
                                  ts_rank('{1,1,1,1}', chunk.content_tsv, listed.query),
                                  knowledge_internal.rank_steps()
                                ) as tf
                           from unnest(lexeme_queries, weights, readings)
                                as listed (query, weight, reading)
                         offset 0
                       ) as word
                      group by word.reading
                   ) as best
               )
             end + case
                     when bonuses is null then 0
                     else knowledge_internal.bonus(chunk.content_tsv, bonuses)
                   end as score
        from unnest(ids) as drawn (id)
       cross join lateral (
               -- Concatenated with nothing, a tsvector outside its row is fetched once.
               select found.id, found.embedding, found.content_tsv || ''::tsvector as content_tsv,
                      shortest + per_word * found.text_length as length_factor
                 from public.knowledge_chunks as found
                where found.id = drawn.id
               offset 0
             ) as chunk
    ) as scored
   order by place
   limit pool;
end
$$;

comment on function knowledge_internal.exact_scores is
  'The best of the chunks by BM25 with bonuses, at most pool. Of the lexemes with the same reading '
  'only the best counts.';

create function knowledge_internal.rank_steps()
returns float8[]
language plpgsql
immutable
parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $$
begin
  return (
    select array_agg((step.sum_of_squares - 0.000001) / (pi() ^ 2 / 6) order by step.tf)
      from (
        select occurrence.tf,
               sum(1.0 / occurrence.tf ^ 2) over (order by occurrence.tf) as sum_of_squares
          from generate_series(1, 256) as occurrence (tf)
      ) as step
  );
end
$$;

comment on function knowledge_internal.rank_steps() is
  'The number of occurrences of a lexeme in a tsvector follows from its ts_rank, which takes a '
  'fraction of the time of unnest: with all weights 1, ts_rank is the sum of 1 / j^2 over the '
  'occurrences j, divided by pi^2 / 6. These are the ranks for 1 to 256 occurrences (the most that '
  'a tsvector keeps), less a margin for float4: the bounds of width_bucket.';
