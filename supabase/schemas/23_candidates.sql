-- 023_candidates: the rows that the text leg scores first.
-- Adds: functions level_sizes, short_candidate_query, common_candidate_query,
-- long_candidate_query and candidate_query.
-- Locks nothing that exists.

-- The number of rows that have each impact level of each lexeme, by lexeme and level: from the
-- statistics, or estimated.
create function knowledge_internal.level_sizes(
  lexemes text[], document_frequencies float8[], document_count float8
) returns float8[]
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  usual_shares constant float8[] := array[0.13, 0.03, 0.0045, 0.0005]; -- of rows, by level
  least_listed constant float8 := (
    select corpus.least_frequency from public.knowledge_corpus_statistics as corpus
  );
begin
  return (
    select array_agg(
             array(
               select document_count * coalesce(
                        listed.frequency,
                        least(
                          asked.document_frequency / document_count * level.usual_share,
                          least_listed
                        )
                      )
                 from unnest(usual_shares) with ordinality as level (usual_share, number)
                 left join public.knowledge_lexeme_statistics as listed
                   on listed.lexeme = asked.lexeme || '^' || level.number
                order by level.number
             )
             order by asked.place
           )
      from unnest(lexemes, document_frequencies)
           with ordinality as asked (lexeme, document_frequency, place)
  );
end
$$;

-- The candidates of a query of few lexemes. The rows are divided into cells by the level of each of
-- the four rarest words in them (none, present, impact levels), and the cells of highest value are
-- read.
create function knowledge_internal.short_candidate_query(
  lexemes text[], document_frequencies float8[], weights float8[], document_count float8,
  effort float8
) returns tsquery
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  row_budget constant float8 := 600 * effort; -- candidates, if the words were independent
  fewest_rows constant float8 := 100 * effort;
  -- Each condition costs time at each index entry that is read.
  most_conditions constant integer := 10;
  words constant integer := least(cardinality(lexemes), 4);
  lowest_level constant integer := (array[1, 1, 1, 2])[words];
  highest_level constant integer := (array[4, 3, 1, 2])[words];
  usual_weight constant float8 := 0.85; -- of a word without an impact level
  level_weights constant float8[] := knowledge_internal.impact_levels();
  level_sizes constant float8[] := knowledge_internal.level_sizes(
    lexemes[:words], document_frequencies[:words], document_count
  );
  candidate_query tsquery;
begin
  with step as (
    -- Level 0: without the word; 1: with the word; 2 and more: at an impact level.
    select asked.place, level.number as level,
           case level.number
             when 0 then document_count
             when 1 then document_frequencies[asked.place]
             else level_sizes[asked.place][level.number - 1]
           end as size
      from generate_series(1, 4) as asked (place)
     cross join generate_series(0, highest_level + 1) as level (number)
     where level.number = 0
        or (level.number = 1 and asked.place <= words)
       -- All rows with a rare word are read.
        or (level.number > lowest_level and document_frequencies[asked.place] > fewest_rows)
  ),
  -- With the share of rows at this level, and at this or a higher one.
  part as materialized (
    select step.place, step.level, step.size / document_count as share_from,
           greatest(
             step.size - lead(step.size, 1, 0::float8)
               over (partition by step.place order by step.level),
             0
           ) / document_count as share,
           case step.level
             when 0 then 0
             when 1 then usual_weight * weights[step.place]
             else (level_weights[step.level - 1] + 0.1) * weights[step.place]
           end as value,
           case when step.level > 0 then
             knowledge_internal.quoted_lexeme(
               lexemes[step.place] || coalesce('^' || nullif(step.level - 1, 0), '')
             )
           end as condition
      from step
  ),
  cell as (
    select first.level as first, second.level as second, third.level as third,
           fourth.level as fourth, first.condition,
           concat_ws(' & ', second.condition, third.condition, fourth.condition) as others,
           first.value + second.value + third.value + fourth.value as value,
           document_count * first.share * second.share * third.share * fourth.share as size,
           first.share_from * second.share_from * third.share_from * fourth.share_from
             as share_from
      from part as first
      join part as second on second.place = 2
      join part as third on third.place = 3
      join part as fourth on fourth.place = 4
     where first.place = 1
  ),
  -- The cells of highest value.
  kept as materialized (
    select ordered.*
      from (
        select cell.*,
               sum(cell.size) over (
                 order by cell.value desc, cell.first, cell.second, cell.third, cell.fourth
               ) as rows_found
          from cell
         where cell.value > 0
      ) as ordered
     where ordered.rows_found <= greatest(row_budget, ordered.size)
        or (
          ordered.rows_found - ordered.size < fewest_rows and ordered.size <= 10 * row_budget
        )
  ),
  -- A cell's condition holds in the cells of higher levels too.
  least_cell as (
    select kept.condition, kept.others
      from kept
     where not exists (
       select from kept as lower
        where lower.value < kept.value
          and lower.first <= kept.first
          and lower.second <= kept.second
          and lower.third <= kept.third
          and lower.fourth <= kept.fourth
     )
     order by kept.share_from desc, kept.condition, kept.others
     limit most_conditions
  ),
  by_first_word as (
    select concat_ws(
             ' & ',
             least_cell.condition,
             '((' || string_agg(nullif(least_cell.others, ''), ') | (') || '))'
           ) as condition
      from least_cell
     group by least_cell.condition
  )
  select string_agg('(' || by_first_word.condition || ')', ' | ')::tsquery
    into candidate_query
    from by_first_word;
  return candidate_query;
end
$$;

-- The candidates of a query of four or five common lexemes: rows that have the three rarest, one of
-- them at an impact level; the two rarest at a low one, if more than 12,000 rows are expected to
-- have the three.
create function knowledge_internal.common_candidate_query(lexemes text[], expected_rows float8)
returns tsquery
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  many constant float8 := 12000; -- rows
begin
  -- Reading only rows at an impact level takes half the time, and finds nearly as many of the best
  -- ten.
  if expected_rows > many then
    return concat_ws(
      ' & ', knowledge_internal.quoted_lexeme(lexemes[1] || '^1'),
      knowledge_internal.quoted_lexeme(lexemes[2] || '^1'),
      knowledge_internal.quoted_lexeme(lexemes[3])
    )::tsquery;
  end if;
  return (
    select string_agg(knowledge_internal.quoted_lexeme(asked.lexeme), ' & ') || ' & ('
             || string_agg(knowledge_internal.quoted_lexeme(asked.lexeme || '^2'), ' | ') || ')'
      from unnest(lexemes[:3]) as asked (lexeme)
  )::tsquery;
end
$$;

-- The candidates of a query of more lexemes: rows with a driver, which is a rare lexeme or an
-- impact level of a common one, alone or together with other lexemes.
create function knowledge_internal.long_candidate_query(
  lexemes text[], document_frequencies float8[], weights float8[], document_count float8,
  budget float8
) returns tsquery
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  row_budget constant float8 := 700 * budget; -- candidates
  posting_budget constant float8 := 3000 * budget; -- index entries read to find them
  thinned_budget constant float8 := 40000 * budget; -- the same, when partners thin out the rows
  words constant integer := cardinality(lexemes);
  words_for_triples constant integer := 5;
  fewest_partners constant integer := 4;
  most_partners constant integer := 6;
  -- Reading the index entries of a more common partner costs too much.
  most_common_partner constant float8 := document_count * case
    when document_frequencies[fewest_partners] <= 0.05 * document_count then 0.05 else 0.3
  end;
  -- The first lexemes are the rarest: so many may be partners, and of so many all rows are read.
  partners constant integer := width_bucket(most_common_partner, document_frequencies);
  unmarked integer := 0;
  postings float8 := 0;
  level_weights constant float8[] := knowledge_internal.impact_levels();
  level_sizes float8[];
  level record;
  -- By lexeme. Each candidate has at least one driver: a whole lexeme, or an impact level of
  -- another.
  drivers text[] := lexemes;
  driver_sizes float8[];
  higher_levels text[] := array_fill(null::text, array[words]);
  higher_sizes float8[] := array_fill(null::float8, array[words]);
  candidate_query tsquery;
begin
  -- All rows of rare lexemes are read, and of a common one when the rare ones have few rows and a
  -- partner thins out its own.
  while postings + document_frequencies[unmarked + 1] <= posting_budget
    or (
      postings < posting_budget / 2
      and postings + document_frequencies[unmarked + 1] <= thinned_budget
      and partners > (unmarked = 0)::integer
    )
  loop
    postings := postings + document_frequencies[unmarked + 1];
    unmarked := unmarked + 1;
  end loop;
  driver_sizes := document_frequencies[:unmarked] || higher_sizes[unmarked + 1:];

  -- Of the other lexemes, only rows at an impact level are read: those where the lexeme weighs
  -- much. The levels that fit into the rest of the posting budget, by falling value.
  if unmarked < words and postings < posting_budget then
    level_sizes := knowledge_internal.level_sizes(
      lexemes[unmarked + 1:], document_frequencies[unmarked + 1:], document_count
    );
    for level in
      select asked.place, impact.number,
             level_sizes[asked.place - unmarked][impact.number] as size
        from generate_series(unmarked + 1, words) as asked (place)
       cross join unnest(level_weights) with ordinality as impact (weight, number)
       order by weights[asked.place] * impact.weight desc, asked.place
    loop
      postings := postings + level.size - coalesce(driver_sizes[level.place], 0);
      exit when postings > posting_budget and num_nonnulls(variadic driver_sizes) > 0;
      -- A level that is too common alone is used alone at a higher level.
      if driver_sizes[level.place] <= row_budget / 2 then
        higher_levels[level.place] := drivers[level.place];
        higher_sizes[level.place] := driver_sizes[level.place];
      end if;
      drivers[level.place] := lexemes[level.place] || '^' || level.number;
      driver_sizes[level.place] := level.size;
    end loop;
  end if;

  with driver as (
    select listed.lexeme, listed.size, listed.place, true as has_partners
      from unnest(drivers, driver_sizes) with ordinality as listed (lexeme, size, place)
     where listed.size is not null
    union all
    select listed.lexeme, listed.size, listed.place, false
      from unnest(higher_levels, higher_sizes) with ordinality as listed (lexeme, size, place)
     where listed.size is not null
  ),
  -- A driver alone (place 0 is no partner), with one partner, and in a short query with two, by
  -- falling weight.
  combination as (
    select driver.lexeme, lexemes[partner.place] as partner, lexemes[third.place] as third,
           weights[driver.place] + coalesce(weights[partner.place], 0)
             + coalesce(weights[third.place], 0) as value,
           driver.size
             * coalesce(document_frequencies[partner.place] / document_count, 1)
             * coalesce(document_frequencies[third.place] / document_count, 1) as size
      from driver
      join generate_series(0, least(partners, most_partners)) as partner (place)
        on partner.place = 0
        or (driver.has_partners and partner.place <> driver.place)
      join generate_series(0, case when words <= words_for_triples then partners else 0 end)
             as third (place)
        on (third.place = 0 and partner.place not between 1 and least(driver.place, unmarked))
        or (partner.place > 0 and third.place > partner.place and third.place <> driver.place)
  ),
  kept as (
    select ordered.*
      from (
        select combination.*,
               sum(combination.size) over (
                 order by combination.value desc, combination.size, combination.lexeme,
                          combination.partner, combination.third
               ) as rows_found
          from combination
      ) as ordered
     where ordered.rows_found <= greatest(row_budget, ordered.size)
        or (
          ordered.rows_found - ordered.size < row_budget / 10 and ordered.size <= 3 * row_budget
        )
  ),
  -- Each condition costs time at each index entry, so what another one implies is left out.
  needed as (
    select kept.*
      from kept
     where not exists (
       select from kept as wider
        where wider.lexeme = kept.lexeme
          and (wider.partner is null and kept.partner is not null
            or wider.third is null and kept.third is not null
              and wider.partner in (kept.partner, kept.third))
     )
  ),
  by_lexeme as (
    select needed.lexeme,
           string_agg(
             knowledge_internal.quoted_lexeme(needed.partner)
               || coalesce(' & ' || knowledge_internal.quoted_lexeme(needed.third), ''),
             ' | ' order by needed.partner, needed.third
           ) as partners
      from needed
     group by needed.lexeme
  ),
  by_partners as (
    select '(' || string_agg(knowledge_internal.quoted_lexeme(by_lexeme.lexeme), ' | ') || ')'
             || coalesce(' & (' || by_lexeme.partners || ')', '') as condition
      from by_lexeme
     group by by_lexeme.partners
  )
  select string_agg(by_partners.condition, ' | ')::tsquery
    into candidate_query
    from by_partners;
  return candidate_query;
end
$$;

-- The candidates of a query: rows with its rarest words, with several of its common words, or with
-- a common word that weighs much in them. About 1,000 rows for effort 1, proportionally more for a
-- greater effort; null when at most 3,000 rows match at all (20,000 for a query of at least 24
-- lexemes), so that all of them are candidates.
create function knowledge_internal.candidate_query(
  lexemes text[], document_frequencies float8[], weights float8[], required_query tsquery,
  document_count float8, effort float8
) returns tsquery
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  growth constant float8 := least(greatest(document_count / 200000, 1) ^ 0.75, 5); -- of budgets
  words constant integer := cardinality(lexemes);
  short_words constant integer := 3;
  most_common_words constant integer := 5;
  common constant float8 := 3000 * effort * growth; -- rows
  row_budget constant float8 := 700 * effort * growth; -- candidates
  long_words constant integer := 24;
  -- The best rows for a long query share many of its words, but may have none of the rarest. In a
  -- small table they are all scored.
  scored_in_full constant float8 := case when words < long_words then 3000 else 20000 end; -- rows
  frequency float8;
  matching_rows float8 := 0; -- at most
  expected_rows float8; -- with the three rarest words, if words were independent
  candidate_query tsquery;
begin
  foreach frequency in array document_frequencies loop
    matching_rows := matching_rows + frequency;
  end loop;
  if least(matching_rows, document_count) <= scored_in_full then
    return null;
  end if;
  if words between short_words + 1 and most_common_words and document_frequencies[1] > common then
    expected_rows :=
      document_frequencies[1] * document_frequencies[2] * document_frequencies[3]
        / document_count ^ 2;
  end if;
  if words <= short_words then
    candidate_query := knowledge_internal.short_candidate_query(
      lexemes, document_frequencies, weights, document_count, effort * sqrt(growth)
    );
  -- Common words occur together more often than by chance, and too many rows have three of them.
  elsif expected_rows > row_budget then
    candidate_query := knowledge_internal.common_candidate_query(lexemes, expected_rows);
  else
    candidate_query := knowledge_internal.long_candidate_query(
      lexemes, document_frequencies, weights, document_count, effort * growth
    );
  end if;
  return coalesce(required_query && candidate_query, candidate_query);
end
$$;
