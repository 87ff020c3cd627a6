-- 025_fusion: the formulas that fuse the two legs.
-- Adds: functions min_max, best_fused_score and aged_score.
-- Locks nothing that exists.

-- A score scaled to 0..1 over its list; 1 when all scores of the list are equal, 0 for null.
create function knowledge_internal.min_max(score float8, least_score float8, best_score float8)
returns float8
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
as $$
begin
  return coalesce(
    (score - least_score) / nullif(best_score - least_score, 0::float8),
    case when score is null then 0 else 1 end
  );
end
$$;

-- The fused score of a row that is the best of every list that it can be in.
create function knowledge_internal.best_fused_score(
  plan knowledge_internal.search_plan, rrf_k double precision
) returns double precision
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  best_similarity constant float8 := plan.vector_weight * case plan.fusion
    when 'rrf' then 1 / (rrf_k + 1) when 'auto' then 1 / plan.cosine_scale else 1 end;
  best_text constant float8 := plan.text_weight * case plan.fusion
    when 'rrf' then 1 / (rrf_k + 1) else 1 end;
  best float8 := 0;
begin
  for place in 1 .. cardinality(plan.questions) loop
    best := best
      + case when plan.questions[place].embedding is null then 0 else best_similarity end
      + case when plan.questions[place].query_text is null then 0 else best_text end
      + case
          when plan.fusion = 'auto'
            and (plan.analyses[place].bonuses).identifier_bonus is not null
            then 2 * best_similarity + best_text
          else 0
        end;
  end loop;
  return best;
end
$$;

-- A score times 0.5 ^ (age / half-life), both in days; the score itself without a date or a
-- half-life.
create function knowledge_internal.aged_score(score float8, document_date date, half_life float8)
returns float8
language plpgsql stable parallel safe security invoker set search_path = pg_catalog, pg_temp as $$
begin
  -- A score below 0 would rise with its age.
  if document_date is null or half_life is null or score < 0 then
    return score;
  end if;
  return score * 0.5 ^ least(
    greatest((now() at time zone 'UTC')::date - document_date, 0) / greatest(half_life, 1e-6), 500
  );
end
$$;
