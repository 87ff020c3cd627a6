-- 008_fusion: how the scores of both legs become one.
-- Adds: types fusion_rule and fused_row; everything that knows one fusion from another: their
-- rules, names and stored settings; and the functions that fuse lists. Adds a check to
-- knowledge_settings, and locks nothing else that exists.

-- To add a fusion, add its row to fusion_rules, and run `make baseline`. Nothing else in the SQL
-- names one, but read_settings: it says which of those that read scores need figures of the corpus.

-- How the rows of one list get their scores. reads: what a leg adds depends on.
-- ranks: its weight / (rank_constant + rank) ^ rank_power, nothing for a row that it missed.
-- scores: its weight times (its score - zero) / unit, or times missing. best: the highest of these,
-- without the weight. A row with a BM25 score of at least identifier_bonus comes before all others.
create type knowledge_internal.fusion_rule as (
  fusion text, reads text, rank_constant double precision, rank_power double precision,
  vector_zero double precision, vector_unit double precision, vector_missing double precision,
  vector_best double precision,
  text_zero double precision, text_unit double precision, text_missing double precision,
  text_best double precision, identifier_bonus double precision
);

-- The fusions: each is a row here, with its rule for a list with these scores, which are in falling
-- order. wanted: one of them, null for all. least_similarity: the cosine of a row that the vector
-- leg missed; missing_score: the BM25 score of one that the text leg missed. cosine_scale: of
-- search_settings. Raises 22023 for an unknown fusion.
create function knowledge_internal.fusion_rules(
  wanted text, rrf_k double precision default null, cosine_scale double precision default null,
  similarities double precision[] default null, text_scores double precision[] default null,
  least_similarity double precision default null, missing_score double precision default null,
  identifier_bonus double precision default null
) returns setof knowledge_internal.fusion_rule
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  best_similarity constant float8 := similarities[1];
  best_score constant float8 := text_scores[1];
  -- In a text leg alone, the least is no word found.
  last_score constant float8 := case
    when similarities[1] is not null then text_scores[cardinality(text_scores)] else 0 end;
  -- Where all scores of a leg are equal, relative_score scales them to 1.
  last_similarity constant float8 := similarities[cardinality(similarities)];
  zero_similarity constant float8 :=
    last_similarity - (last_similarity = best_similarity)::integer;
  zero_score constant float8 := last_score - (last_score = best_score)::integer;
  text_scale constant float8 := coalesce(nullif(best_score, 0), 1);
begin
  return query
  select rule.*
    from (
      values
        -- weight / (rrf_k + rank): Cormack, Clarke and Buettcher 2009.
        ('rrf', 'ranks', rrf_k, 1::float8, null::float8, null::float8, null::float8,
         1 / (rrf_k + 1), null::float8, null::float8, null::float8, 1 / (rrf_k + 1), null::float8),
        -- Each leg from 0, its last row, to 1, its first.
        ('relative_score', 'scores', null, null, zero_similarity,
         best_similarity - zero_similarity, 0, 1, zero_score, best_score - zero_score, 0, 1, null),
        -- cosine / (3 s) and BM25 / best BM25.
        ('auto', 'scores', null, null, 0, cosine_scale,
         coalesce(least_similarity / cosine_scale, 0), 1 / cosine_scale, 0, text_scale,
         missing_score / text_scale, 1, fusion_rules.identifier_bonus)
    ) as rule (
      fusion, reads, rank_constant, rank_power, vector_zero, vector_unit, vector_missing,
      vector_best, text_zero, text_unit, text_missing, text_best, identifier_bonus
    )
   where rule.fusion = wanted or wanted is null;
  if not found then
    raise exception 'fusion must be one of %, not %',
                    array_to_string(knowledge_internal.fusions(), ', '), left(wanted, 100)
      using errcode = '22023';
  end if;
end
$$;

-- The names of the fusions.
create function knowledge_internal.fusions() returns text[]
language sql immutable security invoker set search_path = pg_catalog, pg_temp as $$
  select array_agg(rule.fusion) from knowledge_internal.fusion_rules(null) as rule
$$;

-- service_role writes the table and may not call a function of the check.
do $$
begin
  execute format(
    'alter table public.knowledge_settings add constraint knowledge_settings_fusion_check '
    'check (fusion in (%s))',
    (select string_agg(quote_literal(name), ', ') from unnest(knowledge_internal.fusions()) as name)
  );
end
$$;

create function public.set_knowledge_settings(
  collection text default '',
  fusion text default null,
  vector_weight double precision default 1,
  text_weight double precision default 1,
  embedding_model text default null,
  dimensions integer default null,
  measured_on text default null,
  bm25_k1 double precision default null,
  bm25_b double precision default null
) returns public.knowledge_settings
-- definer: service_role has no rights on the internal schema.
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
  fusions constant text[] := knowledge_internal.fusions();
  stored_dimensions constant integer := (
    select stored.dimensions from knowledge_internal.chunk_table as stored
  );
  settings public.knowledge_settings;
  problem constant text := case
    when (length(collection) <= 200) is not true
      then 'collection must be a name of at most 200 characters, or '''' for all others'
    when fusion <> all (fusions)
      then concat(
        'fusion must be one of ', array_to_string(fusions, ', '), ', or null, not ',
        left(fusion, 100)
      )
    when (vector_weight = 0 or vector_weight between 1e-15 and 1e15) is not true
      then 'vector_weight must be 0 or between 1e-15 and 1e15, not '
        || coalesce(vector_weight::text, 'null')
    when (text_weight = 0 or text_weight between 1e-15 and 1e15) is not true
      then 'text_weight must be 0 or between 1e-15 and 1e15, not '
        || coalesce(text_weight::text, 'null')
    when vector_weight = 0 and text_weight = 0
      then 'vector_weight and text_weight are both 0, one must be above'
    when length(embedding_model) not between 1 and 200
      then 'embedding_model must be a name of 1 to 200 characters'
    when length(measured_on) not between 1 and 200
      then 'measured_on must say in 1 to 200 characters on what the settings were measured'
    when bm25_k1 not between 0 and 10
      then format('bm25_k1 must be between 0 and 10, or null, not %s', bm25_k1)
    when bm25_b not between 0 and 1
      then format('bm25_b must be between 0 and 1, or null, not %s', bm25_b)
    when dimensions <> stored_dimensions
      then format('dimensions is %s, the stored embeddings have %s', dimensions, stored_dimensions)
  end;
begin
  perform knowledge_internal.check_caller('set_knowledge_settings');
  if problem is not null then
    raise exception '%', problem
      using errcode = '22023',
            hint = case when problem like 'dimensions%'
              then 'Change the model of the corpus with second-brain corpus reembed.' else '' end;
  end if;
  insert into public.knowledge_settings as stored (
    collection, fusion, vector_weight, text_weight, embedding_model, bm25_k1, bm25_b, measured
  )
  values (
    set_knowledge_settings.collection, set_knowledge_settings.fusion,
    set_knowledge_settings.vector_weight, set_knowledge_settings.text_weight,
    set_knowledge_settings.embedding_model, set_knowledge_settings.bm25_k1,
    set_knowledge_settings.bm25_b,
    case when measured_on is not null then
      jsonb_build_object('on', measured_on, 'at', now())
        || (knowledge_internal.changes_since(set_knowledge_settings.collection)).ranked
    end
  )
      on conflict on constraint knowledge_settings_pkey do update
     set fusion = excluded.fusion,
         vector_weight = excluded.vector_weight,
         text_weight = excluded.text_weight,
         embedding_model = excluded.embedding_model,
         bm25_k1 = excluded.bm25_k1,
         bm25_b = excluded.bm25_b,
         measured = excluded.measured,
         updated_at = now()
  returning stored.* into settings;
  return settings;
end
$$;

comment on function public.set_knowledge_settings is
  'Stores how a collection ('''' for all others) is searched where a caller gives no fusion: '
  'fusion (null: that of '''', else rrf), the weights that the caller''s weights multiply, and the '
  'model of its embeddings. It replaces what was stored. dimensions, when given, is compared with '
  'the stored embeddings. bm25_k1, bm25_b: of BM25 for a search of this collection (null: 1.2, and '
  'by how often the corpus repeats its words). '
  'measured_on says on what fusion and weights were measured: '
  'list_knowledge_settings then tells what has changed since. Raises 22023 for a value out of '
  'bounds.';
revoke all on function public.set_knowledge_settings from public, anon, authenticated;
grant execute on function public.set_knowledge_settings to service_role;

-- A row of the fused list. collections: with one_per_document, those of all rows of its document;
-- factors: of each boost; duplicates: with merge_duplicates, how many rows it stands for beside
-- itself.
create type knowledge_internal.fused_row as (
  id uuid, vector_rank bigint, text_rank bigint, similarity double precision,
  text_score double precision, vector_share double precision, text_share double precision,
  score double precision, collections text[], factors double precision[], duplicates integer
);

-- The fused list of all lists: each question is ranked by itself in each collection, and the scores
-- of a row are added. The best and the last score of a rule are those of all lists of the question,
-- so that a score counts alike in each; without a vector leg, the least cosine is the least of the
-- other lists. highest: the score of a row that is the best of every list that it can be in.
create function knowledge_internal.fused_rows(
  lists knowledge_internal.ranked_list[], plan knowledge_internal.search_plan,
  rrf_k double precision, out rows knowledge_internal.fused_row[], out highest double precision
)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  settings constant knowledge_internal.search_settings := plan.settings;
  vector_weight constant double precision := settings.vector_weight;
  text_weight constant double precision := settings.text_weight;
begin
  with
  rule as materialized (
    select found.ordinality as list, found.formulation, found.collection, rule.*
      from (
        select listed.*,
               coalesce(last.similarity, min(last.similarity) over question) as least_similarity,
               array[max(listed.similarities[1]) over question, min(last.similarity) over question]
                 as range_of_similarities,
               array[max(listed.text_scores[1]) over question, min(last.text_score) over question]
                 as range_of_scores,
               case when cardinality(listed.text_scores) = plan.pool
                 then listed.text_scores[plan.pool] else 0 end as missing_score
          from unnest(lists) with ordinality as listed
         cross join lateral (
                 select listed.similarities[cardinality(listed.similarities)] as similarity,
                        listed.text_scores[cardinality(listed.text_scores)] as text_score
               ) as last
        window question as (partition by listed.formulation)
      ) as found
     cross join lateral knowledge_internal.fusion_rules(
             settings.fusion, rrf_k, settings.cosine_scale, found.range_of_similarities,
             found.range_of_scores, found.least_similarity, found.missing_score,
             found.identifier_bonus
           ) as rule
  ),
  vector_results as (
    select listed.ordinality as list, leg.id, leg.similarity, leg.vector_rank
      from unnest(lists) with ordinality as listed
     cross join lateral unnest(listed.vector_ids, listed.similarities)
            with ordinality as leg (id, similarity, vector_rank)
  ),
  text_results as (
    select listed.ordinality as list, leg.id, leg.text_score, leg.text_rank
      from unnest(lists) with ordinality as listed
     cross join lateral unnest(listed.text_ids, listed.text_scores)
            with ordinality as leg (id, text_score, text_rank)
  ),
  combined as (
    select list, id, vector_results.vector_rank, text_results.text_rank,
           vector_results.similarity, text_results.text_score
      from vector_results
      full outer join text_results using (list, id)
  ),
  scored as (
    select combined.id,
           min(combined.vector_rank) as vector_rank, min(combined.text_rank) as text_rank,
           max(combined.similarity) as similarity, max(combined.text_score) as text_score,
           sum(share.of_vector + share.of_text) as rrf_score,
           sum(share.of_vector) as vector_share, sum(share.of_text) as text_share,
           case when min(rule.reads) = 'scores' then min(rule.collection) end as collection
      from combined
      join rule using (list)
     cross join lateral (
             select case
                      when rule.reads = 'ranks' then coalesce(
                        vector_weight
                          / (rule.rank_constant + combined.vector_rank) ^ rule.rank_power, 0
                      )
                      else vector_weight * coalesce(
                        (combined.similarity - rule.vector_zero) / rule.vector_unit,
                        rule.vector_missing
                      )
                    end as of_vector,
                    case
                      when rule.reads = 'ranks' then coalesce(
                        text_weight
                          / (rule.rank_constant + combined.text_rank) ^ rule.rank_power, 0
                      )
                      else text_weight * coalesce(
                        (combined.text_score - rule.text_zero) / rule.text_unit,
                        rule.text_missing
                      )
                    end
                    -- A row with an identifier that was asked for has more than others can have.
                    + case when combined.text_score >= rule.identifier_bonus
                        then 2 * vector_weight * rule.vector_best + text_weight * rule.text_best
                        else 0 end as of_text
           ) as share
     group by combined.id
  ),
  -- Scores of two lists do not compare as ranks do: beside a list of the rest (null), the best row
  -- of a collection has at least the score that the second row of the rest gets, its others as much
  -- more.
  lifted as (
    select scored.*,
           scored.rrf_score + case
             when scored.collection is not null then greatest(0, coalesce(
               (
                 select other.rrf_score + coalesce(neighbour.bonus, 0)
                   from scored as other
                   left join knowledge_internal.neighbour_bonuses(
                          array(select scored.id from scored),
                          array(select scored.rrf_score from scored), settings.neighbour_weight
                        ) as neighbour on neighbour.id = other.id
                  where other.collection is null
                  order by 1 desc, other.id offset 1 limit 1
               ) - max(scored.rrf_score) over (partition by scored.collection), 0
             ))
             else 0
           end as score
      from scored
  ),
  hit as (
    select lifted.*, lifted.score + coalesce(neighbour.bonus, 0) as fused_score
      from lifted
      left join (
             select near.*
               from knowledge_internal.neighbour_bonuses(
                      array(select lifted.id from lifted), array(select lifted.score from lifted),
                      settings.neighbour_weight
                    ) as near
              where settings.neighbour_weight is not null -- else the function is not called
             offset 0
           ) as neighbour on neighbour.id = lifted.id
  )
  select array_agg(
           row(
             hit.id, hit.vector_rank, hit.text_rank, hit.similarity, hit.text_score,
             hit.vector_share, hit.text_share, hit.fused_score, null, null, null
           )::knowledge_internal.fused_row
           order by hit.fused_score desc, least(hit.vector_rank, hit.text_rank), hit.id
         ),
         (
           select sum(
                    case when num_nonnulls(question.embedding, nullif(question.is_inferred, false))
                                = 0
                      then 0 else vector_weight * best.vector_best end
                      + case when num_nonnulls(question.query_text, question.lexemes) = 0
                        then 0 else text_weight * best.text_best end
                      + case when best.identifier_bonus is null then 0
                        else 2 * vector_weight * best.vector_best + text_weight * best.text_best end
                    order by question.ordinality
                  )
             from unnest(plan.questions) with ordinality as question
            cross join lateral (
                    select rule.* from rule where rule.formulation = question.ordinality limit 1
                  ) as best
         )
    into rows, highest
    from hit;
end
$$;

-- How well a chunk fits a question, 0 to 1: by its cosine similarity (null: without an embedding),
-- and by coverage, the weight of the question's words that it has over that of all (null: without
-- words). docs/ranking.md measures it.
create function knowledge_internal.confidence_of(cosine double precision, coverage double precision)
returns double precision
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return 1 / (
    1 + exp(
      -case
        when cosine is null then 15 * coverage - 6
        when coverage is null then 30 * cosine - 12.5
        else 15 * cosine + 8.7 * coverage - 9.2
      end
    )
  );
end
$$;

-- How well each of these chunks fits the question that it fits best, as confidence_of; null for a
-- chunk that is not here.
create function knowledge_internal.answer_confidences(
  questions knowledge_internal.question[], ids uuid[]
) returns double precision[]
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  question knowledge_internal.question;
  confidences double precision[];
begin
  foreach question in array questions loop
    confidences := array(
      select case when chunk.id is not null then greatest(
               confidences[listed.place],
               knowledge_internal.confidence_of(chunk.cosine, fit.coverage)
             ) end
        from unnest(ids) with ordinality as listed (id, place)
        left join (
               -- Concatenated with nothing, a tsvector outside its row is fetched once.
               select stored.id, stored.content_tsv || ''::tsvector as lexemes,
                      1 - stored.distance as cosine
                 from knowledge_internal.rows_by_id(
                        ids, has_lexemes => true, asked_embedding => question.embedding
                      ) as stored
               offset 0
             ) as chunk on chunk.id = listed.id
       cross join lateral (
               -- Of the readings of a word, the best counts.
               select coalesce(sum(word.found), 0) / sum(word.weight) as coverage
                 from (
                   select max(lexeme.weight) as weight,
                          max(lexeme.weight) filter (where chunk.lexemes @@ lexeme.query) as found
                     from unnest(
                            question.weights, question.lexeme_queries, question.readings
                          ) with ordinality as lexeme (weight, query, reading, place)
                    group by coalesce(lexeme.reading, lexeme.place)
                 ) as word
             ) as fit
       order by listed.place
    );
  end loop;
  return confidences;
end
$$;

-- What the chunks before and after a hit in its document add to its score, where these are hits,
-- too: the weight times the difference between the better one and the last hit.
create function knowledge_internal.neighbour_bonuses(
  ids uuid[], scores double precision[], neighbour_weight double precision
) returns table (id uuid, bonus double precision)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return query
  select hit.id,
         neighbour_weight * (
           max(hit.score) over (
             partition by coalesce(chunk.document_id, hit.id) order by chunk.chunk_index
                 range between 1 preceding and 1 following exclude group
           ) - min(hit.score) over ()
         )
    from unnest(ids, scores) as hit (id, score)
    left join knowledge_internal.rows_by_id(ids) as chunk on chunk.id = hit.id;
end
$$;

notify pgrst, 'reload schema';
