-- 024_scores: the exact scores of the text leg.
-- Adds: functions bonus and exact_scores. Locks nothing that exists.

-- What the identifiers and phrases of a query add to the BM25 of a chunk that has them.
create function knowledge_internal.bonus(
  content_tsv tsvector, bonuses knowledge_internal.query_bonuses
) returns float8
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
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

-- The best of the candidates by BM25 with bonuses, best first, at most pool. bm25 has the mean
-- length of the time when the chunk was written; these scores have the present one. Of the lexemes
-- with the same reading only the best counts.
create function knowledge_internal.exact_scores(
  candidates uuid[], pool integer, lexemes text[], weights float8[], readings integer[],
  mean_length float8, bonuses knowledge_internal.query_bonuses, out ids uuid[], out scores float8[]
)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  most_weight constant float8 := knowledge_internal.bm25_k1() + 1;
  -- The length factor is linear in the length.
  shortest constant float8 := knowledge_internal.bm25_length_factor(0, mean_length);
  per_word constant float8 := knowledge_internal.bm25_length_factor(1, mean_length) - shortest;
  length_dimension constant extensions.sparsevec := '{536870912:1}/536870912';
  vectors extensions.sparsevec[];
  -- Words are read alike in one language: then no word has several lexemes.
  is_one_reading boolean;
begin
  if candidates = '{}' then
    return;
  end if;
  select array_agg(
           format('{%s:1}/536870912', knowledge_internal.lexeme_dimension(listed.lexeme))
             ::extensions.sparsevec
           order by listed.place
         ),
         count(*) = count(distinct listed.reading)
    into vectors, is_one_reading
    from unnest(lexemes, readings) with ordinality as listed (lexeme, reading, place);
  -- Reading a CTE again takes less time than unnesting for each row.
  with word as materialized (
    select listed.*
      from unnest(vectors, weights, readings) as listed (vector, weight, reading)
  )
  select array_agg(rated.id order by rated.score desc, rated.id),
         array_agg(rated.score order by rated.score desc, rated.id)
    into ids, scores
    from (
      select chunk.id,
             -- stored = tf * most_weight / (tf + stored_factor), solved for tf.
             case
               when is_one_reading then (
                 select sum(word.weight * most_weight / (1 + chunk.length_factor / round(
                          chunk.stored_factor / (most_weight / nullif(
                            -(chunk.bm25 operator(extensions.<#>) word.vector), 0
                          ) - 1)
                        )))
                   from word
               )
               else (
                 select sum(best.score order by best.reading)
                   from (
                     select word.reading,
                            max(word.weight * most_weight / (1 + chunk.length_factor / round(
                              chunk.stored_factor / (most_weight / nullif(
                                -(chunk.bm25 operator(extensions.<#>) word.vector), 0
                              ) - 1)
                            ))) as score
                       from word
                      group by word.reading
                   ) as best
               )
             end + case
                     when bonuses is null then 0
                     else knowledge_internal.bonus(chunk.content_tsv, bonuses)
                   end as score
        from unnest(candidates) as listed (id)
       cross join lateral (
               select found.id, found.content_tsv, found.bm25,
                      shortest + per_word * found.text_length as length_factor,
                      -(found.bm25 operator(extensions.<#>) length_dimension) as stored_factor
                 from public.knowledge_chunks as found
                where found.id = listed.id
               offset 0
             ) as chunk
       order by score desc, chunk.id
       limit pool
    ) as rated;
end
$$;
