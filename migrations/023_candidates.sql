-- 023_candidates: the rows that the text leg scores first.
-- Adds: functions mark_sizes, short_candidate_query and candidate_query.
-- Locks nothing that exists.
-- Written from supabase/schemas/23_candidates.sql by `make baseline`: edit that file.

create function knowledge_internal.mark_sizes(
  lexemes text[], document_frequencies float8[], document_count float8
)
returns table (place bigint, level bigint, lexeme text, size float8, least_weight float8)
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
as $$
declare
  usual_shares constant float8[] := array[0.13, 0.03, 0.0045, 0.0005]; -- of rows, by level
  least_listed constant float8 := (
    select corpus.least_frequency from public.knowledge_corpus_statistics as corpus
  );
begin
  return query
  select asked.place, mark.level, asked.lexeme || '^' || mark.level,
         document_count * coalesce(
           listed.frequency,
           least(
             asked.document_frequency / document_count * usual_shares[mark.level], least_listed
           )
         ),
         mark.least_weight
    from unnest(lexemes, document_frequencies)
         with ordinality as asked (lexeme, document_frequency, place)
   cross join unnest(knowledge_internal.mark_levels())
         with ordinality as mark (least_weight, level)
    left join public.knowledge_lexeme_statistics as listed
      on listed.lexeme = asked.lexeme || '^' || mark.level;
end
$$;

comment on function knowledge_internal.mark_sizes(text[], float8[], float8) is
  'The marks of lexemes, each with the number of rows that have it, from the statistics or '
  'estimated, and the least term weight in these rows.';

create function knowledge_internal.short_candidate_query(
  lexemes text[],
  document_frequencies float8[],
  weights float8[],
  document_count float8,
  effort float8
)
returns tsquery
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
-- The search sets force_custom_plan; the statements here are the same for every query.
set plan_cache_mode = force_generic_plan
as $$
declare
  row_budget constant float8 := 600 * effort; -- candidates, if the words were independent
  fewest_rows constant float8 := 100 * effort;
  -- Each condition costs time at each index entry that is read.
  most_conditions constant integer := 10;
  lowest_marks constant integer[] := array[1, 1, 1, 2]; -- by number of words
  highest_marks constant integer[] := array[4, 3, 2, 2];
  words constant integer := least(cardinality(lexemes), 4);
  usual_weight constant float8 := 0.85; -- of a word without a mark
  candidate_query tsquery;
begin
  with step as (
    -- Level 0: without the word; 1: with the word; 2 and more: with a mark.
    select asked.place, 0::bigint as level, null::text as condition,
           document_count as size, 0::float8 as value
      from generate_series(1, words) as asked (place)
    union all
    select asked.place, 1, quote_literal(lexemes[asked.place]),
           document_frequencies[asked.place], usual_weight * weights[asked.place]
      from generate_series(1, words) as asked (place)
    union all
    select mark.place, mark.level + 1, quote_literal(mark.lexeme), mark.size,
           (mark.least_weight + 0.1) * weights[mark.place]
      from knowledge_internal.mark_sizes(
             lexemes[:words], document_frequencies[:words], document_count
           ) as mark
     where mark.level between lowest_marks[words] and highest_marks[words]
       -- All rows with a rare word are read.
       and document_frequencies[mark.place] > fewest_rows
  ),
  -- With the share of rows at this level, and at this or a higher one.
  part as materialized (
    select step.place, step.level, step.condition, step.value,
           step.size / document_count as share_from,
           greatest(
             step.size - coalesce(
               lead(step.size) over (partition by step.place order by step.level), 0
             ),
             0
           ) / document_count as share
      from step
  ),
  cell as (
    select array[first.level, second.level, third.level, fourth.level] as levels,
           first.condition,
           concat_ws(' & ', second.condition, third.condition, fourth.condition) as others,
           first.value + coalesce(second.value, 0) + coalesce(third.value, 0)
             + coalesce(fourth.value, 0) as value,
           document_count * first.share * coalesce(second.share, 1) * coalesce(third.share, 1)
             * coalesce(fourth.share, 1) as size,
           first.share_from * coalesce(second.share_from, 1) * coalesce(third.share_from, 1)
             * coalesce(fourth.share_from, 1) as share_from
      from part as first
      left join part as second on second.place = 2
      left join part as third on third.place = 3
      left join part as fourth on fourth.place = 4
     where first.place = 1
  ),
  -- The cells of highest value.
  kept as materialized (
    select ordered.*
      from (
        select cell.*,
               sum(cell.size) over (order by cell.value desc, cell.levels) as rows_drawn
          from cell
         where cell.value > 0
      ) as ordered
     where ordered.rows_drawn <= greatest(row_budget, ordered.size)
        or (
          ordered.rows_drawn - ordered.size < fewest_rows and ordered.size <= 10 * row_budget
        )
  ),
  -- A cell's condition holds in the cells of higher levels too.
  least_cell as (
    select kept.*
      from kept
     where not exists (
       select from kept as lower
        where lower.levels <> kept.levels
          and lower.levels[1] <= kept.levels[1]
          and coalesce(lower.levels[2] <= kept.levels[2], true)
          and coalesce(lower.levels[3] <= kept.levels[3], true)
          and coalesce(lower.levels[4] <= kept.levels[4], true)
     )
     order by kept.share_from desc, kept.levels
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

comment on function knowledge_internal.short_candidate_query(
  text[], float8[], float8[], float8, float8
) is
  'The candidates of a query of few lexemes. The rows are divided into cells by the level of each '
  'of the four rarest words in them (none, present, marks), and the cells of highest value are '
  'drawn.';

create function knowledge_internal.candidate_query(
  lexemes text[],
  document_frequencies float8[],
  weights float8[],
  required_query tsquery,
  document_count float8,
  effort float8
)
returns tsquery
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
as $$
declare
  growth constant float8 := least(greatest(document_count / 200000, 1) ^ 0.75, 5); -- of budgets
  budget constant float8 := effort * growth;
  short_words constant integer := 3;
  long_words constant integer := 24;
  -- The best rows for a long query share many of its words, but may have none of the rarest. In a
  -- small table they are all scored.
  scored_in_full constant float8 :=
    case when cardinality(lexemes) < long_words then 3000 else 20000 end; -- rows
  row_budget constant float8 := 700 * budget; -- candidates
  posting_budget constant float8 := 3000 * budget; -- index entries read to find them
  thinned_budget constant float8 := 40000 * budget; -- the same, when partners thin out the rows
  partner_count constant integer := 6;
  fewest_partners constant integer := 4;
  -- Reading the index entries of a more common partner costs too much.
  most_common_partner constant float8 := document_count * case
    when document_frequencies[fewest_partners] <= 0.05 * document_count then 0.05 else 0.3
  end;
  words_for_triples constant integer := 5;
  candidate_query tsquery;
begin
  if (
    select least(sum(frequency.size), document_count)
      from unnest(document_frequencies) as frequency (size)
  ) <= scored_in_full then
    return null;
  end if;
  -- In a large table also common words only, of which many rows have four.
  if cardinality(lexemes) <= short_words
     or (
       cardinality(lexemes) <= words_for_triples and growth >= 2
         and document_frequencies[1] > posting_budget
     )
  then
    candidate_query := knowledge_internal.short_candidate_query(
      lexemes, document_frequencies, weights, document_count, effort * sqrt(growth)
    );
    return coalesce(required_query && candidate_query, candidate_query);
  end if;

  with word as (
    select asked.*, sum(asked.document_frequency) over (order by asked.place) as postings
      from unnest(lexemes, document_frequencies, weights)
           with ordinality as asked (lexeme, document_frequency, weight, place)
  ),
  -- Lexemes whose rows are all read: the rare ones, and a common one when the rare ones have few
  -- rows and a partner thins out its own.
  unmarked as (
    select word.*
      from word
     where word.postings <= posting_budget
        or (
          word.postings - word.document_frequency < posting_budget / 2
            and word.postings <= thinned_budget
            and exists (
              select from word as partner
               where partner.place <> word.place
                 and partner.document_frequency <= most_common_partner
            )
        )
  ),
  -- Of the other lexemes, only rows with a mark are read: those where the lexeme weighs much.
  mark as (
    select sized.place, sized.lexeme, sized.level as number, sized.size,
           weights[sized.place] * sized.least_weight as value
      from knowledge_internal.mark_sizes(lexemes, document_frequencies, document_count) as sized
     where sized.place > (select count(*) from unmarked)
  ),
  -- The marks that fit into the rest of the posting budget, by falling value.
  affordable as (
    select ordered.*
      from (
        select mark.*,
               sum(mark.size - coalesce(above.size, 0))
                 over (order by mark.value desc, mark.place) as postings,
               row_number() over (order by mark.value desc, mark.place) as place_in_order
          from mark
          left join mark as above on above.place = mark.place and above.number = mark.number + 1
      ) as ordered
     where ordered.postings + (select coalesce(max(unmarked.postings), 0) from unmarked)
             <= posting_budget
        or (ordered.place_in_order = 1 and not exists (select from unmarked))
  ),
  -- Each row drawn has at least one of these.
  driver as (
    select unmarked.place, unmarked.lexeme, unmarked.document_frequency as size, unmarked.weight
      from unmarked
    union all
    (
      select distinct on (affordable.place)
             affordable.place, affordable.lexeme, affordable.size, weights[affordable.place]
        from affordable
       order by affordable.place, affordable.number
    )
  ),
  -- A driver alone, with one partner, and in a short query with two, by falling weight. A mark that
  -- is too common alone is used alone at a higher level.
  combination as (
    select driver.place, driver.lexeme, null::text as partner, null::text as third,
           driver.weight as value, driver.size
      from driver
    union all
    (
      select distinct on (affordable.place)
             affordable.place, affordable.lexeme, null, null,
             weights[affordable.place], affordable.size
        from affordable
       where affordable.size <= row_budget / 2
         and affordable.lexeme not in (select driver.lexeme from driver)
       order by affordable.place, affordable.number
    )
    union all
    select driver.place, driver.lexeme, partner.lexeme, null,
           driver.weight + partner.weight,
           driver.size * partner.document_frequency / document_count
      from driver
      join word as partner
        on partner.place <= partner_count
       and partner.place <> driver.place
       and partner.document_frequency <= most_common_partner
       and (
         partner.place > driver.place
         or partner.place not in (select unmarked.place from unmarked)
       )
    union all
    select driver.place, driver.lexeme, partner.lexeme, third.lexeme,
           driver.weight + partner.weight + third.weight,
           driver.size * partner.document_frequency / document_count
             * third.document_frequency / document_count
      from driver
      join word as partner on partner.place <> driver.place
      join word as third
        on third.place > partner.place
       and third.place <> driver.place
       and third.document_frequency <= most_common_partner
     where cardinality(lexemes) <= words_for_triples
  ),
  kept as (
    select ordered.*
      from (
        select combination.*,
               sum(combination.size) over (
                 order by combination.value desc, combination.size, combination.lexeme,
                          combination.partner, combination.third
               ) as rows_drawn
          from combination
      ) as ordered
     where ordered.rows_drawn <= greatest(row_budget, ordered.size)
        or (
          ordered.rows_drawn - ordered.size < row_budget / 10 and ordered.size <= 3 * row_budget
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
             quote_literal(needed.partner) || coalesce(' & ' || quote_literal(needed.third), ''),
             ' | ' order by needed.partner, needed.third
           ) as partners
      from needed
     group by needed.lexeme
  ),
  by_partners as (
    select '(' || string_agg(quote_literal(by_lexeme.lexeme), ' | ') || ')'
             || coalesce(' & (' || by_lexeme.partners || ')', '') as condition
      from by_lexeme
     group by by_lexeme.partners
  )
  select string_agg(by_partners.condition, ' | ')::tsquery
    into candidate_query
    from by_partners;
  return coalesce(required_query && candidate_query, candidate_query);
end
$$;

comment on function knowledge_internal.candidate_query is
  'The candidates of a query: rows with its rarest words, with several of its common words, or '
  'with a common word that weighs much in them. About 1,000 rows for effort 1, proportionally more '
  'for a greater effort; null when at most 3,000 rows match at all (20,000 for a query of at least '
  '24 lexemes), so that all of them are candidates.';
