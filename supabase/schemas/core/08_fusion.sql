-- 008_fusion: how the scores of both legs become one, and how the fused list is arranged.
-- Adds: types fusion_rule and fused_row; everything that knows one fusion from another: their
-- rules, names and stored settings; and the functions that arrange the fused list. Adds a check to
-- knowledge_settings, and locks nothing else that exists.

-- To add a fusion, add its row to fusion_rules, and run `make baseline`. Nothing else in the SQL
-- names one, but read_settings: it says which of those that read scores need figures of the corpus.

-- How the rows of one list get their scores; list: its number. reads: what a leg adds depends on.
-- ranks: its weight / (rank_constant + rank) ^ rank_power, nothing for a row that it missed.
-- scores: its weight times (its score - zero) / unit, or times missing. best: the highest of these,
-- without the weight. A row with a BM25 score of at least identifier_bonus comes before all others.
create type knowledge_internal.fusion_rule as (
  fusion text, reads text, rank_constant double precision, rank_power double precision,
  vector_zero double precision, vector_unit double precision, vector_missing double precision,
  vector_best double precision,
  text_zero double precision, text_unit double precision, text_missing double precision,
  text_best double precision, identifier_bonus double precision, list bigint
);

-- The fusions: each is a row here, with its rule for a list with these scores, which are in falling
-- order. wanted: one of them, null for all. least_similarity: the cosine of a row that the vector
-- leg missed; missing_score: the BM25 score of one that the text leg missed. cosine_scale: of
-- search_settings. Raises 22023 for an unknown fusion.
create function knowledge_internal.fusion_rules(
  wanted text, rrf_k double precision default null, cosine_scale double precision default null,
  similarities double precision[] default null, text_scores double precision[] default null,
  least_similarity double precision default null, missing_score double precision default null,
  identifier_bonus double precision default null, list bigint default null
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
  select rule.*, fusion_rules.list
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

-- The rules of the lists of a search. The best and the last score are those of all lists of the
-- question, so that a score counts alike in each. Without a vector leg, the least cosine is the
-- least of the other lists.
create function knowledge_internal.rules_of_lists(
  lists knowledge_internal.ranked_list[], plan knowledge_internal.search_plan,
  rrf_k double precision
) returns setof knowledge_internal.fusion_rule
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return query
  select rule.*
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
           (plan.settings).fusion, rrf_k, (plan.settings).cosine_scale, found.range_of_similarities,
           found.range_of_scores, found.least_similarity, found.missing_score,
           found.identifier_bonus, found.ordinality
         ) as rule;
end
$$;

-- The fused score of a row that is the best of every list that it can be in.
create function knowledge_internal.highest_score(
  plan knowledge_internal.search_plan, rrf_k double precision
) returns double precision
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  settings constant knowledge_internal.search_settings := plan.settings;
begin
  return (
    select sum(
             case when num_nonnulls(question.embedding, nullif(question.is_inferred, false)) = 0
               then 0 else settings.vector_weight * rule.vector_best end
               + case when num_nonnulls(question.query_text, question.lexemes) = 0
                 then 0 else settings.text_weight * rule.text_best end
               + case when rule.identifier_bonus is null then 0
                 else 2 * settings.vector_weight * rule.vector_best
                   + settings.text_weight * rule.text_best end
             order by question.ordinality
           )
      from unnest(plan.questions) with ordinality as question
     cross join lateral knowledge_internal.fusion_rules(
             settings.fusion, rrf_k, settings.cosine_scale,
             identifier_bonus => question.identifier_bonus
           ) as rule
  );
end
$$;

-- A row of the fused list. collections: with one_per_document, those of all rows of its document;
-- factors: of each boost; duplicates: with merge_duplicates, how many rows it stands for beside
-- itself.
create type knowledge_internal.fused_row as (
  id uuid, vector_rank bigint, text_rank bigint, similarity double precision,
  text_score double precision, vector_share double precision, text_share double precision,
  score double precision, collections text[], factors double precision[], duplicates integer
);

-- The fused list of several: each question is ranked by itself in each collection. The scores of a
-- row are added.
create function knowledge_internal.fused_rows(
  lists knowledge_internal.ranked_list[], plan knowledge_internal.search_plan,
  rrf_k double precision
) returns knowledge_internal.fused_row[]
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  vector_weight constant double precision := (plan.settings).vector_weight;
  text_weight constant double precision := (plan.settings).text_weight;
  rows knowledge_internal.fused_row[];
begin
  with
  vector_results as (
    select leg.list, leg.id, leg.score as similarity, leg.rank as vector_rank
      from knowledge_internal.leg_rows(lists, 'vector') as leg
  ),
  text_results as (
    select leg.list, leg.id, leg.score as text_score, leg.rank as text_rank
      from knowledge_internal.leg_rows(lists, 'text') as leg
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
           case when min(rule.reads) = 'scores' then min(lists[list].collection) end as collection
      from combined
      join knowledge_internal.rules_of_lists(lists, plan, rrf_k) as rule using (list)
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
           case
             when scored.collection is not null then greatest(0, coalesce(
               (
                 select other.rrf_score + coalesce(neighbour.bonus, 0)
                   from scored as other
                   left join knowledge_internal.neighbour_bonuses(
                          array(select scored.id from scored),
                          array(select scored.rrf_score from scored),
                          (plan.settings).neighbour_weight
                        ) as neighbour on neighbour.id = other.id
                  where other.collection is null
                  order by 1 desc, other.id offset 1 limit 1
               ) - max(scored.rrf_score) over (partition by scored.collection), 0
             ))
             else 0
           end as lift
      from scored
  )
  select array_agg(
           row(
             hit.id, hit.vector_rank, hit.text_rank, hit.similarity, hit.text_score,
             hit.vector_share, hit.text_share, hit.rrf_score + hit.lift, null, null, null
           )::knowledge_internal.fused_row
           order by hit.rrf_score + hit.lift desc, least(hit.vector_rank, hit.text_rank), hit.id
         )
    into rows
    from lifted as hit;
  return rows;
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

-- The rows that fit the question at least as min_confidence says, best first: each score, with the
-- neighbour bonus, is multiplied by the factors of its row, the last of which is that of
-- recency_half_life. greatest_factor: the greatest product of the factors of a row, at least 1.
create function knowledge_internal.weighted_rows(
  rows knowledge_internal.fused_row[], given knowledge_internal.search_arguments,
  plan knowledge_internal.search_plan,
  out weighted knowledge_internal.fused_row[], out greatest_factor double precision
)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  neighbour_weight constant float8 := (plan.settings).neighbour_weight;
  half_life constant float8 := case when given.recency_half_life is not null
    then greatest(1e-6, least(1e100, given.recency_half_life)) end;
  least_exponent constant float8 := ln(knowledge_internal.least_factor());
  -- A date is a whole number of days.
  today constant float8 := floor(extract(epoch from now()) / 86400);
  ids constant uuid[] := array(select hit.id from unnest(rows) as hit);
  confidences constant float8[] := case when given.min_confidence is not null
    then knowledge_internal.answer_confidences(coalesce(plan.asked, plan.questions), ids) end;
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
    from unnest(rows) with ordinality as hit
    left join knowledge_internal.page_rows(
           case when half_life is not null then ids end, has_text => false
         ) as chunk on chunk.id = hit.id
    left join (
           select near.*
             from knowledge_internal.neighbour_bonuses(
                    ids, array(select hit.score from unnest(rows) as hit), neighbour_weight
                  ) as near
            where neighbour_weight is not null -- else the function is not called
           offset 0
         ) as neighbour on neighbour.id = hit.id
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
           select case when ranked.score < 0 then ranked.score
                    else ranked.score * weight.product end as score
             from (select hit.score + coalesce(neighbour.bonus, 0)) as ranked (score)
           offset 0
         ) as scaled
   -- Without a question nothing is compared.
   where (confidences[hit.ordinality] < given.min_confidence) is not true;
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

-- Extension point: the fused list of a search, arranged as given. It calls weighted_rows and
-- rows_of_documents. merged: how many rows stand in others of their documents; best: the row with
-- the best score; greatest_factor: as of weighted_rows.
create function knowledge_internal.arranged_rows(
  fused knowledge_internal.fused_row[], given knowledge_internal.search_arguments,
  plan knowledge_internal.search_plan, out arranged knowledge_internal.fused_row[],
  out merged integer, out best uuid, out greatest_factor double precision
)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  select weighted.greatest_factor, listed.kept, listed.merged, listed.kept[1].id
    into greatest_factor, arranged, merged, best
    from knowledge_internal.weighted_rows(fused, given, plan) as weighted
   cross join lateral knowledge_internal.rows_of_documents(
           weighted.weighted, given.one_per_document, given.max_per_document
         ) as listed;
end
$$;

notify pgrst, 'reload schema';
