-- 025_fusion: what fuses the two legs.
-- Adds: functions min_max, aged_score and leg_evidence.
-- Locks nothing that exists.
-- Written from supabase/schemas/25_fusion.sql by `make baseline`: edit that file.

create function knowledge_internal.min_max(score float8, least_score float8, best_score float8)
returns float8
language plpgsql
immutable
parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $$
begin
  return coalesce(
    (score - least_score) / nullif(best_score - least_score, 0::float8),
    case when score is null then 0 else 1 end
  );
end
$$;

comment on function knowledge_internal.min_max(float8, float8, float8) is
  'A score scaled to 0..1 over its list; 1 when all scores of the list are equal, 0 for null.';

create function knowledge_internal.aged_score(
  score float8, document_date date, half_life float8
)
returns float8
language plpgsql
stable
parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $$
begin
  if document_date is null or half_life is null then
    return score;
  end if;
  return score * 0.5 ^ least(
    greatest((now() at time zone 'UTC')::date - document_date, 0) / greatest(half_life, 1e-6), 500
  );
end
$$;

comment on function knowledge_internal.aged_score(float8, date, float8) is
  'A score times 0.5 ^ (age / half-life), both in days; the score itself without a date or a '
  'half-life.';

create function knowledge_internal.leg_evidence(
  similarities float8[],
  nearest_scores float8[],
  text_scores float8[],
  is_complete boolean,
  typical_rank integer,
  cosine_spread float8,
  mutual_neighbours float8,
  query_weights float8[],
  out typical_cosine float8,
  out vector_evidence float8,
  out text_evidence float8
)
language plpgsql
immutable
security invoker
set search_path = pg_catalog, pg_temp
-- The search sets force_custom_plan; the statements here are the same for every query.
set plan_cache_mode = force_generic_plan
as $$
declare
  vector_factor constant float8 := 0.04;
  complete_factor constant float8 := 5;
  usual_spread constant float8 := 0.13;
  usual_odds constant float8 := 8;
  highest_odds constant float8 := 25;
  least_support constant float8 := 0.1;
  least_evidence constant float8 := 1e-6;
  fewest_neighbours constant integer := 10;
  best_hits constant integer := cardinality(nearest_scores);
  neighbours constant integer := coalesce(cardinality(similarities), 0);
  best_cosine constant float8 := similarities[1];
  best_bm25 constant float8 := text_scores[1];
  odds constant float8 := least(
    coalesce(mutual_neighbours / nullif(1 - mutual_neighbours, 0), highest_odds), highest_odds
  );
  means record;
  highest_bm25 float8;
  excess float8;
begin
  typical_cosine := similarities[least(neighbours, typical_rank)];
  if neighbours < fewest_neighbours then
    vector_evidence := coalesce(1 / nullif(best_cosine - typical_cosine, 0), 0);
    text_evidence := coalesce(1 / nullif(best_bm25, 0), 0);
    return;
  end if;
  cosine_spread := coalesce(cosine_spread, usual_spread);
  select avg(hit.similarity) as similarity, avg(hit.nearest_score) as nearest_score,
         avg(hit.text_score) as text_score, sum(hit.weight) as weights
    into means
    from unnest(
           similarities[:best_hits], nearest_scores, text_scores[:best_hits], query_weights
         ) as hit (similarity, nearest_score, text_score, weight);
  highest_bm25 := (knowledge_internal.bm25_k1() + 1) * means.weights;
  excess := greatest(means.similarity - typical_cosine, 0) / cosine_spread;
  vector_evidence := coalesce(
    vector_factor * case when mutual_neighbours is null then usual_odds else odds end
      * excess ^ 1.5 / cosine_spread
      * least(
        greatest(
          coalesce(means.nearest_score / nullif(means.text_score, 0), 1), least_support
        ),
        1
      ),
    0
  );
  text_evidence := coalesce(
    case when is_complete then complete_factor else 1 end * greatest(
      ((best_bm25 - coalesce(text_scores[typical_rank], 0)) / nullif(highest_bm25, 0)) ^ 2,
      least_evidence
    ),
    0
  );
end
$$;

comment on function knowledge_internal.leg_evidence is
  'How far fusion auto relies on each leg of one query: the factors of a cosine similarity and of '
  'a BM25 score. similarities: of the neighbours, best first; nearest_scores: the BM25 scores of '
  'the first of them (the best hits, fewer than the neighbours); text_scores: of the text leg, '
  'best first. Vector: the odds of mutual_neighbours (how well the model fits the corpus), times '
  'excess ^ 1.5 (how far the best hits are above the typical one, at typical_rank, in units of '
  'cosine_spread), times support (their mean BM25 score over that of the text leg''s best hits: a '
  'model that does not know the language finds chunks without the words of the query where others '
  'have them). Text: the square of how far the best score is above the typical one, over the '
  'highest possible score (every word of the query, saturated); more when is_complete, the best '
  'hit having every word. With fewer than 10 neighbours there is too little evidence: each leg is '
  'scaled to 0..1.';
