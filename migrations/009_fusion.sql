-- 009_fusion: the rows of the legs in one list, and how that list is arranged.
-- Adds: type fused_row, and the functions for scores of fused rows and for arranging them. Locks
-- nothing that exists.
-- Written from supabase/schemas/core/09_fusion.sql by `make baseline`: edit that file.

-- A row of the fused list. collections: with one_per_document, those of all rows of its document;
-- factors: of each boost; duplicates: with merge_duplicates, how many rows it stands for beside
-- itself.
create type knowledge_internal.fused_row as (
  id uuid, vector_rank bigint, text_rank bigint, similarity double precision,
  text_score double precision, vector_share double precision, text_share double precision,
  score double precision, collections text[], factors double precision[], duplicates integer
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
               when plan.questions[place].embedding is null
                 and not plan.questions[place].is_inferred then 0
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

-- The rows that fit the question at least as min_confidence says, best first: each score is
-- multiplied by the factors of its row, the last of which is that of recency_half_life.
-- greatest_factor: the greatest product of the factors of a row, at least 1.
create function knowledge_internal.weighted_rows(
  rows knowledge_internal.fused_row[], plan knowledge_internal.search_plan,
  out weighted knowledge_internal.fused_row[], out greatest_factor double precision
)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  asked constant knowledge_internal.arrangement := plan.arrangement;
  half_life constant float8 := case when asked.recency_half_life is not null
    then greatest(1e-6, least(1e100, asked.recency_half_life)) end;
  least_exponent constant float8 := ln(knowledge_internal.least_factor());
  -- A date is a whole number of days.
  today constant float8 := floor(extract(epoch from now()) / 86400);
  ids constant uuid[] := array(select hit.id from unnest(rows) as hit);
  confidences constant float8[] := case when asked.min_confidence is not null
    then knowledge_internal.answer_confidences(plan, ids) end;
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
    from unnest(rows, confidences) as hit (
           id, vector_rank, text_rank, similarity, text_score, vector_share, text_share, score,
           collections, factors, duplicates, confidence
         )
    left join knowledge_internal.page_rows(
           case when half_life is not null then ids end, has_text => false
         ) as chunk on chunk.id = hit.id
   cross join lateral (
           select case
                    when half_life is null then hit.factors
                    -- greatest() ignores null, so a row without a date, or with one in the future,
                    -- counts as one of today.
                    else hit.factors || exp(
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
           select listed.factors, case when listed.factors is null then 1
                    else knowledge_internal.factor_product(listed.factors) end as product
           offset 0
         ) as weight
   cross join lateral (
           -- A score below 0 would rise with a factor below 1.
           select case when hit.score < 0 then hit.score else hit.score * weight.product end
                    as score
           offset 0
         ) as scaled
   -- Without a question nothing is compared.
   where (hit.confidence < asked.min_confidence) is not true;
end
$$;

-- The rows that one_per_document or max_per_document leave of a sorted list. merged: how many rows
-- stand in others of their documents. With one_per_document, a document stands where its best row
-- stands, with its score, and shows its best chunk.
create function knowledge_internal.rows_of_documents(
  rows knowledge_internal.fused_row[], asked knowledge_internal.arrangement,
  out kept knowledge_internal.fused_row[], out merged integer
)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  ids constant uuid[] := array(select hit.id from unnest(rows) as hit);
begin
  if num_nonnulls(asked.one_per_document, asked.max_per_document) = 0 then
    kept := rows;
    return;
  end if;
  kept := array(
    select row(
             shown.id, shown.vector_rank, shown.text_rank, shown.similarity, shown.text_score,
             shown.vector_share, shown.text_share,
             case when asked.one_per_document then shown.best_score else shown.score end,
             case when asked.one_per_document then array(
               select distinct name from unnest(shown.names) as name
                where name is not null order by name
             ) end,
             shown.factors, shown.duplicates
           )::knowledge_internal.fused_row
      from (
        select hit.*, max(hit.score) over of_document as best_score,
               array_agg(chunk.collection) over of_document as names,
               min(hit.place) over of_document as best_place,
               row_number() over (
                 partition by coalesce(chunk.document_id, hit.id)
                     order by case when asked.one_per_document then chunk.chunk_index is null end,
                              hit.place
               ) as place_in_document
          from unnest(rows) with ordinality as hit (
                 id, vector_rank, text_rank, similarity, text_score, vector_share, text_share,
                 score, collections, factors, duplicates, place
               )
          left join knowledge_internal.rows_by_id(ids) as chunk on chunk.id = hit.id
        window of_document as (partition by coalesce(chunk.document_id, hit.id))
      ) as shown
     where shown.place_in_document
             <= case when asked.one_per_document then 1 else asked.max_per_document end
     order by case when asked.one_per_document then shown.best_place else shown.place end
  );
  merged := case when asked.one_per_document then cardinality(rows) - cardinality(kept) end;
end
$$;

-- Extension point: the fused list of a search, arranged by plan.arrangement. It calls weighted_rows
-- and rows_of_documents. merged: how many rows stand in others of their documents; best: the row
-- with the best score; greatest_factor: as of weighted_rows.
create function knowledge_internal.arranged_rows(
  fused knowledge_internal.fused_row[], plan knowledge_internal.search_plan,
  out arranged knowledge_internal.fused_row[], out merged integer, out best uuid,
  out greatest_factor double precision
)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  select weighted.greatest_factor, listed.kept, listed.merged, listed.kept[1].id
    into greatest_factor, arranged, merged, best
    from knowledge_internal.weighted_rows(fused, plan) as weighted
   cross join lateral knowledge_internal.rows_of_documents(weighted.weighted, plan.arrangement)
           as listed;
end
$$;
