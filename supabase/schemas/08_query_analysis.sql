-- 008_query_analysis: what a query's text asks for, and how its words are weighed.
-- Adds: types query_analysis, query_operand and asked_words, and the functions that read a query.
-- Locks nothing that exists.

create type knowledge_internal.query_bonuses as (
  identifier_query tsquery,
  identifier_bonus float8,
  phrase_queries tsquery[],
  phrase_bonuses float8[]
);

comment on type knowledge_internal.query_bonuses is
  'What a chunk scores beside BM25: identifier_bonus if it matches identifier_query, and the bonus '
  'of each phrase query that it matches.';

create type knowledge_internal.query_analysis as (
  words text[],
  word_queries tsquery[],
  compounds text[],
  lexemes text[],
  lexeme_queries tsquery[],
  document_frequencies float8[],
  weights float8[],
  weight_vector extensions.sparsevec,
  scored_weights float8[],
  scored_vector extensions.sparsevec,
  readings integer[],
  coverage_weights float8[],
  bonuses knowledge_internal.query_bonuses,
  relaxed_bonuses knowledge_internal.query_bonuses,
  matching_query tsquery,
  relaxed_query tsquery,
  relaxed_parts text[],
  required_query tsquery,
  candidate_query tsquery,
  is_partial boolean,
  is_optional boolean,
  document_count float8,
  mean_length float8,
  cosine_spread float8,
  mutual_neighbours float8,
  replaced jsonb
);

comment on type knowledge_internal.query_analysis is
  'words, word_queries, compounds: as in asked_words. lexemes with their conditions, '
  'document_frequencies and scored_weights (idf times the occurrences in the query), rarest first; '
  'scored_vector: these weights for an inner product with bm25. readings: a number that lexemes '
  'have in common which are one word read in several languages: only the best of them counts. '
  'weights, weight_vector: the same for drawing candidates, where an identifier outweighs all '
  'other words. coverage_weights: of the highest possible score. matching_query: the '
  'rows that match, null when no row can; relaxed_query, relaxed_bonuses: the same when no row has '
  'what is required, null when nothing can be relaxed; relaxed_parts: what is required no more; '
  'required_query: the words that a row must have, in any '
  'order; candidate_query: the rows to score first; is_partial: candidate_query finds fewer rows '
  'than matching_query; is_optional: one word is enough. document_count, mean_length, '
  'cosine_spread and mutual_neighbours are those of the corpus.';

create type knowledge_internal.asked_words as (
  words text[],
  word_queries tsquery[],
  compounds text[],
  lexemes text[]
);

comment on type knowledge_internal.asked_words is
  'The words of all questions of a search as typed, without stop words, and the parts of compounds '
  'after their compound; the condition for each; the compound that a part is in, null for a word; '
  'and the lexemes of all.';

create type knowledge_internal.expansion as (
  typed text,
  typed_lexeme text,
  lexeme text,
  share float8
);

comment on type knowledge_internal.expansion is
  'Another reading of a typed word: a spelling with accents, a completion or a synonym. typed: the '
  'word in lower case; typed_lexeme: its lexeme, null for a stop word; share: of its weight.';

create type knowledge_internal.query_operand as (
  source text,
  is_phrase boolean,
  is_required boolean,
  is_excluded boolean,
  alternatives integer
);

comment on type knowledge_internal.query_operand is
  'A word or phrase of a query. alternatives: a number that operands joined by or have in common; '
  'when one of them is required, a row must have one of them.';

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
    select min(statistics.frequency) from knowledge_internal.lexeme_statistics as statistics
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
    left join knowledge_internal.lexeme_statistics as listed
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

create function knowledge_internal.query_configurations()
returns regconfig[]
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
-- The search sets force_custom_plan; the statements here are the same for every query.
set plan_cache_mode = force_generic_plan
as $$
begin
  return (
    -- One look at the index for each language.
    with recursive present as (
      (
        select chunk.language from public.knowledge_chunks as chunk
         where chunk.status = 'active' order by chunk.language limit 1
      )
      union all
      select (
        select chunk.language from public.knowledge_chunks as chunk
         where chunk.status = 'active' and chunk.language > present.language
         order by chunk.language limit 1
      )
      from present
      where present.language is not null
    )
    select array_agg(distinct knowledge_internal.text_configuration(present.language))
      from present
     where present.language is not null
  );
end
$$;

comment on function knowledge_internal.query_configurations() is
  'The text search configurations that a query is read with: those of the chunks, each of which '
  'was analysed in its own language. Null in an empty corpus.';

create function knowledge_internal.is_prose(query_text text)
returns boolean
language plpgsql
immutable
security invoker
set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on
as $$
declare
  words_of_prose constant integer := 6;
begin
  return query_text ~ '[?？؟]\s*$'
    or (
      select count(*)
        from regexp_matches(
               knowledge_internal.separated(
                 regexp_replace(query_text, '-?"[^"]*"|(?<!\S)(?:-\S+|or)(?!\S)', ' ', 'gi')
               ),
               '[^\s"]*[[:alnum:]][^\s"]*',
               'g'
             )
    ) >= words_of_prose;
end
$$;

comment on function knowledge_internal.is_prose(text) is
  'Whether a query is written as a sentence: it ends in a question mark, or it has at least six '
  'words besides quoted parts, excluded words and or.';

create function knowledge_internal.query_operands(
  query_text text, search_mode text, words_read integer
)
returns knowledge_internal.query_operand[]
language plpgsql
immutable
security invoker
set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on
as $$
declare
  operand knowledge_internal.query_operand;
  operands knowledge_internal.query_operand[] := '{}';
  longest_word constant integer := 60; -- letters
  has_operators constant boolean := search_mode = 'websearch'
    and query_text ~* '"|(?<!\S)-[[:alnum:]]|(?<!\S)or(?!\S)'
    and not knowledge_internal.is_prose(query_text);
  source text;
  is_alternative boolean := false;
begin
  operand.alternatives := 0;
  for source in
    select matched.parts[1]
      from regexp_matches(
             query_text,
             case search_mode
               when 'websearch' then '-?"[^"]*"|[^\s"]+'
               when 'simple' then '\S+'
               else '.*\S.*'
             end,
             'g'
           ) with ordinality as matched (parts, place)
     order by matched.place
  loop
    exit when words_read <= 0;
    if has_operators and lower(source) = 'or' then
      is_alternative := true;
      continue;
    end if;
    operand.is_phrase := search_mode = 'phrase' or (search_mode = 'websearch' and source ~ '^-?"');
    operand.is_required := search_mode <> 'websearch' or (has_operators and operand.is_phrase);
    operand.is_excluded := has_operators and source ~ '^-["[:alnum:]]';
    -- Writing without spaces has up to a word for each letter.
    operand.source := left(source, greatest(words_read, longest_word));
    words_read := words_read
      - cardinality(string_to_array(btrim(knowledge_internal.apart(operand.source)), ' '));
    if not is_alternative then
      operand.alternatives := operand.alternatives + 1;
    end if;
    is_alternative := false;
    operands := array_append(operands, operand);
  end loop;
  return operands;
end
$$;

comment on function knowledge_internal.query_operands(text, text, integer) is
  'The words and phrases of a query, up to words_read words. websearch: words are optional, '
  '"a phrase" is required, -word and -"a phrase" are excluded, or joins alternatives; in prose '
  'all of them are optional words and phrases. simple: each word is required. phrase: the text is '
  'one phrase.';

create function knowledge_internal.expanded_query(
  word text, expansions knowledge_internal.expansion[]
)
returns tsquery
language plpgsql
immutable
security invoker
set search_path = pg_catalog, pg_temp
as $$
begin
  return (
    select string_agg(distinct quote_literal(listed.lexeme), ' | ')::tsquery
      from unnest(expansions) as listed
     where listed.typed = lower(word)
  );
end
$$;

comment on function knowledge_internal.expanded_query(text, knowledge_internal.expansion[]) is
  'The condition for the expansions of a word; null without any.';

create function knowledge_internal.operand_conditions(
  operands knowledge_internal.query_operand[],
  configurations regconfig[],
  expansions knowledge_internal.expansion[],
  out required tsquery,
  out excluded tsquery
)
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
as $$
declare
  configuration regconfig;
  operand knowledge_internal.query_operand;
  operand_query tsquery;
  required_here tsquery;
  required_groups constant integer[] := array(
    select distinct listed.alternatives from unnest(operands) as listed
     where listed.is_required and not listed.is_excluded
  );
  alternatives tsquery;
  alternatives_group integer;
begin
  required := '';
  excluded := '';
  -- A word may be a stop word in one configuration and not in another, so each gives a condition
  -- of its own, and a row must meet one of them.
  foreach configuration in array configurations loop
    required_here := '';
    alternatives := '';
    alternatives_group := null;
    foreach operand in array operands loop
      continue when not (operand.is_excluded or operand.alternatives = any (required_groups));
      operand_query := case
        when operand.is_phrase then
          phraseto_tsquery(configuration, knowledge_internal.apart(operand.source))
        else
          plainto_tsquery(configuration, knowledge_internal.apart(operand.source))
            || plainto_tsquery(configuration, knowledge_internal.joined(operand.source))
      end;
      if operand.is_excluded then
        excluded := excluded || operand_query;
        continue;
      end if;
      if not operand.is_phrase then
        operand_query := operand_query
          || coalesce(knowledge_internal.expanded_query(operand.source, expansions), '');
      end if;
      if operand.alternatives is distinct from alternatives_group then
        required_here := required_here && alternatives;
        alternatives := '';
        alternatives_group := operand.alternatives;
      end if;
      alternatives := alternatives || operand_query;
    end loop;
    required := required || (required_here && alternatives);
  end loop;
end
$$;

comment on function knowledge_internal.operand_conditions is
  'What a row must have and must not have, read in each configuration; empty for nothing.';

create function knowledge_internal.typed_words(
  wanted text,
  configurations regconfig[],
  expansions knowledge_internal.expansion[],
  out words text[],
  out word_queries tsquery[],
  out compounds text[]
)
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
-- Postgres sends a NOTICE for a query of stop words only.
set client_min_messages = warning
-- The search sets force_custom_plan; the statements here are the same for every query.
set plan_cache_mode = force_generic_plan
set standard_conforming_strings = on
as $$
declare
  most_readings constant integer := 600; -- of parts, each once in every configuration
begin
  with typed as (
    select distinct on (lower(trimmed.word)) trimmed.word, split.place,
           knowledge_internal.apart(trimmed.word) as apart,
           -- The dot before .NET is part of the word.
           knowledge_internal.joined(split.word) as joined,
           trimmed.word ~ '^([[:alpha:]][[:lower:]]*|[[:upper:]]+|\d+)$'
             and octet_length(trimmed.word) = length(trimmed.word) as is_simple
      from regexp_split_to_table(wanted, '\s+') with ordinality as split (word, place)
     cross join lateral btrim(split.word, '.,;:!?()[]{}<>"''`’') as trimmed (word)
     order by lower(trimmed.word), split.place
  ),
  -- A row with one part of a compound is a hit, too.
  part as (
    select typed.word as compound, typed.place, parsed.token as word, parsed.number
      from typed
     cross join lateral (
             select found.token, found.number, count(*) over () as parts
               from ts_parse(
                      'default', typed.apart || knowledge_internal.pieces(typed.word)
                    ) with ordinality as found (tokid, token, number)
              where found.token ~ '[^[:space:][:punct:]]'
           ) as parsed
     where not typed.is_simple
       and parsed.parts > 1
     order by typed.place, parsed.number
     limit most_readings / cardinality(configurations)
  ),
  said as (
    select distinct on (lower(listed.word)) listed.*
      from (
        select typed.word, typed.apart, typed.joined, typed.place, 0::bigint as number,
               null as compound
          from typed
        union all
        select part.word, part.word, '', part.place, part.number, part.compound
          from part
      ) as listed
     order by lower(listed.word), listed.compound is not null, listed.place, listed.number
  )
  select array_agg(said.word order by said.place, said.number),
         array_agg(reading.query order by said.place, said.number),
         array_agg(said.compound order by said.place, said.number)
    into words, word_queries, compounds
    from said
   cross join lateral (
           select string_agg(distinct '(' || alternative.query::text || ')', ' | ')::tsquery
                    as query
             from unnest(configurations) as language (configuration)
            cross join lateral (
                    select plainto_tsquery(language.configuration, said.apart)
                    union all
                    select plainto_tsquery(language.configuration, said.joined)
                     where said.joined <> ''
                    union all
                    select knowledge_internal.expanded_query(said.word, expansions)
                     where said.compound is null and expansions <> '{}'
                  ) as alternative (query)
            where numnode(alternative.query) > 0
         ) as reading
   where reading.query is not null;
end
$$;

comment on function knowledge_internal.typed_words is
  'The words of a text and the parts of its compounds, each once whatever its case, as in '
  'asked_words. What is typed as a word is no part. Of a long text, the first 600 parts divided by '
  'the number of configurations are listed.';

create function knowledge_internal.query_readings(wanted text, configurations regconfig[])
returns table (
  word text, role text, part text, is_single boolean, is_identifier boolean, lexeme text,
  occurrences integer
)
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
-- The search sets force_custom_plan; the statements here are the same for every query.
set plan_cache_mode = force_generic_plan
set standard_conforming_strings = on
as $$
declare
  compound constant text := '^(?:[[:alnum:]]+(?:(?:[-/.@:\\]_*|_+|::|://)[[:alnum:]]+)+'
    '|\d{1,3}(?:,\d{3})+|\.[[:alpha:]]+'
    '|[[:alnum:]]*(?:[[:lower:]]{2}[[:upper:]]|[[:alpha:]]\d|\d[[:alpha:]])[[:alnum:]]*)$';
  tokens text[];
  words text;
begin
  tokens := string_to_array(
    regexp_replace(
      regexp_replace(
        knowledge_internal.separated(wanted),
        '(?<!\d),|,(?!\d)|[][(){}<>"''’`;!?=|&#+*~^%$…]+', ' ', 'g'
      ),
      '(?<!\S)(?:[-_/@:\\]+|\.(?![[:alpha:]]))+|[-_/.@:\\]+(?!\S)|\s+', ' ', 'g'
    ),
    ' '
  );
  words := (
    select string_agg(token.source, ' ' order by token.place)
      from unnest(tokens) with ordinality as token (source, place)
     where token.source !~ compound
  );

  -- The parser reads a text alike in each configuration, so lexemes at one position are one word.
  return query
  select min(found.leading), 'word', min(found.leading), false, false, found.lexeme,
         count(distinct found.place)::integer
    from (
      select analysed.lexeme, position.place,
             case
               when cardinality(configurations) = 1 then analysed.lexeme
               else first_value(analysed.lexeme) over (
                 partition by position.place order by language.number, analysed.lexeme
               )
             end as leading
        from unnest(configurations) with ordinality as language (configuration, number)
       cross join unnest(
               to_tsvector(language.configuration, knowledge_internal.apart(words))
             ) as analysed
       cross join unnest(analysed.positions) as position (place)
    ) as found
   group by found.lexeme;

  return query
  select found.word, found.role, min(found.leading),
         bool_and(found.role = 'part' and length(found.leading) = 1),
         bool_and(found.role = 'whole' and found.word_is_identifier),
         found.lexeme, found.occurrences
    from (
      select lower(typed.source) as word, form.role, analysed.lexeme, typed.occurrences,
             typed.is_identifier as word_is_identifier,
             first_value(analysed.lexeme) over (
               partition by lower(typed.source), form.role, position.place
                   order by language.number, analysed.lexeme
             ) as leading
        from (
          select min(token.source) as source, count(*)::integer as occurrences,
                 bool_or(knowledge_internal.is_identifier(token.source)) as is_identifier
            from unnest(tokens) as token (source)
           where token.source ~ compound
           group by lower(token.source)
        ) as typed
       cross join lateral (
               values
                 (
                   'whole',
                   case
                     when typed.source ~ '^[[:alnum:]]+$' then typed.source
                     else knowledge_internal.joined(typed.source)
                   end
                 ),
                 (
                   'part',
                   case
                     when typed.source !~ '^[[:alnum:]]+$'
                       then knowledge_internal.apart(typed.source)
                   end
                 ),
                 ('piece', knowledge_internal.pieces(typed.source))
             ) as form (role, source)
       cross join unnest(configurations) with ordinality as language (configuration, number)
       cross join unnest(to_tsvector(language.configuration, form.source)) as analysed
       cross join unnest(analysed.positions) as position (place)
    ) as found
   group by found.word, found.role, found.lexeme, found.occurrences;
end
$$;

comment on function knowledge_internal.query_readings(text, regconfig[]) is
  'The lexemes by which the words of a text are found. role: word; or of a compound whole (all of '
  'it as one word), part (a word between its punctuation) or piece (of lruCache lru). Lexemes with '
  'the same word, role and part are one word in several languages. is_single: a part of one '
  'character. occurrences: of the word in the text.';

create function knowledge_internal.is_identifier(compound text)
returns boolean
language plpgsql
immutable
parallel safe
security invoker
set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on
as $$
begin
  return compound ~ '[[:alnum:]]_+[[:alnum:]]'
    or compound ~ '[[:lower:]]{2}[[:upper:]]+[[:lower:]]{2}'
    or compound ~ '\d\.\d+\.\d'
    or (
      compound ~ '[[:alpha:]]'
      and (
        compound ~ '[[:alnum:]]{2}(?:\.|::|\\|@)[[:alnum:]]{2}'
        or compound ~ '[/\\].*[/\\.]'
        or (compound ~ '\d{3}' and compound !~ '^\d+[[:lower:]]+$')
        or (compound ~ '(?:\d\D*){3}' and compound !~ '[[:lower:]]')
      )
    );
end
$$;

comment on function knowledge_internal.is_identifier(text) is
  'Whether a compound is a name of code or a part number, and no word of prose: snake_case, '
  'camelCase, a dotted name, a path, a version, or letters with a number of three digits.';

create function knowledge_internal.weighed_readings(
  wanted text,
  configurations regconfig[],
  expansions knowledge_internal.expansion[],
  corpus_is_small boolean,
  document_count float8
)
returns table (
  lexeme text, document_frequency float8, weight float8, reading text, is_identifier boolean
)
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
-- The search sets force_custom_plan; the statements here are the same for every query.
set plan_cache_mode = force_generic_plan
as $$
declare
  whole_share constant float8 := 0.5; -- of a compound's weight; its parts have the rest
  common_identifier constant float8 := 0.02; -- of the chunks: it is a subject, no name
  few constant float8 := 20; -- chunks
begin
  return query
  with read as materialized (
    select * from knowledge_internal.query_readings(wanted, configurations)
  ),
  typed as materialized (
    select read.*, 1::float8 as share from read
    union all
    select coalesce(read.part, expansion.typed), 'word', coalesce(read.part, expansion.typed),
           false, false, expansion.lexeme, coalesce(read.occurrences, 1), expansion.share
      from unnest(expansions) as expansion
      left join read on read.role = 'word' and read.lexeme = expansion.typed_lexeme
  ),
  known as materialized (
    select typed.*, frequency.document_frequency,
           least(
             sum(frequency.document_frequency)
               over (partition by typed.word, typed.role, typed.part),
             document_count
           ) as group_frequency
      from knowledge_internal.document_frequencies(
             array(select distinct typed.lexeme from typed), corpus_is_small, document_count
           ) as frequency
      join typed on typed.lexeme = frequency.lexeme
  ),
  -- Of a compound. A piece is read where a whole word is in no chunk.
  usable as materialized (
    select one.*,
           knowledge_internal.inverse_document_frequency(document_count, one.group_frequency)
             as idf,
           one.lexeme = min(one.lexeme) over (partition by one.word, one.role, one.part)
             as is_first
      from (
        select known.*,
               bool_or(known.role = 'whole' and known.group_frequency > 0)
                 over (partition by known.word) as has_whole,
               bool_and(known.group_frequency = 0) over (partition by known.word) as is_unknown,
               bool_and(known.group_frequency > 0) filter (where known.role = 'part')
                 over (partition by known.word) as has_parts
          from known
         where known.role <> 'word'
      ) as one
     where (one.role = 'whole' and one.is_unknown)
        or (
          one.group_frequency > 0
          and (
            one.role = 'whole'
              or (one.role = 'part' and not (one.is_single and one.has_whole))
              or (one.role = 'piece' and not one.has_whole and one.has_parts is not true)
          )
        )
  ),
  shared as (
    select usable.*,
           max(usable.idf) over (partition by usable.word) as word_idf,
           sum(usable.idf) filter (where usable.is_first and usable.role <> 'whole')
             over (partition by usable.word) as parts_idf
      from usable
  ),
  weighed as (
    select known.lexeme, known.document_frequency,
           known.share * known.occurrences * knowledge_internal.inverse_document_frequency(
             document_count, known.group_frequency
           ) as weight,
           known.part as reading, false as is_identifier
      from known
     where known.role = 'word'
    union all
    select shared.lexeme, shared.document_frequency,
           shared.occurrences * shared.word_idf * case
             when shared.role = 'whole' and shared.parts_idf is null then 1
             when shared.role = 'whole' then whole_share
             when shared.has_whole then (1 - whole_share) * shared.idf / shared.parts_idf
             else shared.idf / shared.parts_idf
           end,
           shared.word || ' ' || shared.role || ' ' || shared.part,
           shared.is_identifier
             and shared.group_frequency > 0
             and shared.group_frequency <= greatest(few, common_identifier * document_count)
      from shared
  )
  select weighed.lexeme, min(weighed.document_frequency), sum(weighed.weight),
         min(weighed.reading), bool_or(weighed.is_identifier)
    from weighed
   group by weighed.lexeme;
end
$$;

comment on function knowledge_internal.weighed_readings is
  'The lexemes of a text with their weights. A word''s weight is its idf times its occurrences, '
  'with the chunks that have any of its readings; an expansion has a share of it. A compound '
  'counts as one word, with the idf of '
  'its rarest reading: half of it for the whole, half for the parts by their idf; what is in no '
  'chunk has no share.';

create function knowledge_internal.phrase_bonuses(
  operands knowledge_internal.query_operand[],
  configurations regconfig[],
  lexeme_queries tsquery[],
  weights float8[],
  out queries tsquery[],
  out bonuses float8[]
)
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
-- Postgres sends a NOTICE for a query of stop words only.
set client_min_messages = warning
as $$
declare
  phrase_factor constant float8 := 1; -- of the weights of its words
  operand knowledge_internal.query_operand;
  phrase tsquery;
begin
  foreach operand in array operands loop
    continue when not operand.is_phrase or operand.is_excluded;
    phrase := (
      select string_agg(distinct '(' || reading.query::text || ')', ' | ')::tsquery
        from unnest(configurations) as language (configuration)
       cross join lateral phraseto_tsquery(
               language.configuration, knowledge_internal.apart(operand.source)
             ) as reading (query)
       where reading.query::text ~ '<' -- two words
    );
    continue when phrase is null;
    queries := queries || phrase;
    bonuses := bonuses || phrase_factor * (
      select coalesce(sum(word.weight), 0)
        from unnest(lexeme_queries, weights) as word (query, weight)
       where phrase @> word.query
    );
  end loop;
end
$$;

comment on function knowledge_internal.phrase_bonuses is
  'A condition for each phrase of at least two words, and what it adds to the score of a chunk '
  'that has it.';

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
begin
  return query
  select scored.*, row_number() over (order by scored.score desc, scored.id) as place
    from (
      select chunk.id, chunk.embedding,
             (
               select sum(best.score order by best.reading)
                 from (
                   select word.reading,
                          max(word.weight * occurrences.tf * (knowledge_internal.bm25_k1() + 1)
                              / (occurrences.tf + chunk.length_factor)) as score
                     from unnest(lexeme_queries, weights, readings)
                          as word (query, weight, reading)
                    cross join lateral (
                            select width_bucket(
                                     ts_rank('{1,1,1,1}', chunk.content_tsv, word.query),
                                     knowledge_internal.rank_steps()
                                   ) as tf
                            offset 0
                          ) as occurrences
                    group by word.reading
                 ) as best
             ) + case
                   when bonuses is null then 0
                   else knowledge_internal.bonus(chunk.content_tsv, bonuses)
                 end as score
        from unnest(ids) as drawn (id)
       cross join lateral (
               -- Concatenated with nothing, a tsvector outside its row is fetched once.
               select found.id, found.embedding, found.content_tsv || ''::tsvector as content_tsv,
                      knowledge_internal.bm25_length_factor(found.text_length, mean_length)
                        as length_factor
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

create function knowledge_internal.analyse_query(
  query_text text,
  search_mode text,
  collections text[] default null,
  prefix_last boolean default false
)
returns knowledge_internal.query_analysis
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
-- Postgres sends a NOTICE for a query of stop words only.
set client_min_messages = warning
-- The search sets force_custom_plan; the statements here are the same for every query.
set plan_cache_mode = force_generic_plan
set standard_conforming_strings = on
as $$
declare
  scored_in_full constant float8 := 3000; -- rows
  characters_read constant integer := 4096;
  most_words constant integer := 512;
  most_readings constant integer := 3000; -- of words, each once in every configuration
  most_lexemes constant integer := 256;
  highest_factor constant float8 := knowledge_internal.bm25_k1() + 1;
  drawing_factor constant float8 := 3; -- in a long chunk a word has a third of its usual score
  configurations constant regconfig[] := knowledge_internal.query_configurations();
  operands knowledge_internal.query_operand[];
  expansions knowledge_internal.expansion[] := '{}';
  conditions record;
  required_rows float8;
  wanted text;
  corpus record;
  bonuses knowledge_internal.query_bonuses;
  analysis knowledge_internal.query_analysis;
begin
  if configurations is null then
    return analysis;
  end if;
  operands := knowledge_internal.query_operands(
    left(
      knowledge_internal.normalised(
        -- Phones and word processors replace straight quotation marks.
        translate(left(query_text, characters_read), '“”„‟«»', '""""""')
      ),
      characters_read
    ),
    search_mode,
    least(most_words, most_readings / cardinality(configurations))
  );
  wanted := (
    select string_agg(operand.source, ' ' order by operand.ordinality)
      from unnest(operands) with ordinality as operand
     where not operand.is_excluded
  );

  if search_mode <> 'phrase' then
    expansions := knowledge_internal.expansions(
      wanted, configurations, collections,
      -- A word that is followed by a space is complete.
      case when prefix_last then substring(query_text from '(?:^|\s)([[:alpha:]]+)$') end
    );
  end if;
  select typed.words, typed.word_queries, typed.compounds
    into analysis.words, analysis.word_queries, analysis.compounds
    from knowledge_internal.typed_words(wanted, configurations, expansions) as typed;
  if analysis.words is null then
    return analysis;
  end if;

  select * into corpus from knowledge_internal.corpus_size();
  analysis.document_count := corpus.document_count;
  analysis.mean_length := corpus.mean_length;
  analysis.cosine_spread := corpus.cosine_spread;
  analysis.mutual_neighbours := corpus.mutual_neighbours;

  with ordered as (
    select reading.*,
           row_number() over (order by reading.document_frequency, reading.lexeme) as place
      from knowledge_internal.weighed_readings(
             wanted, configurations, expansions, corpus.is_small, corpus.document_count
           ) as reading
  ),
  kept as (
    -- In a very long query, the words that weigh least change the order least.
    select ordered.*,
           min(ordered.place) over (partition by ordered.reading) as number,
           quote_literal(ordered.lexeme)::tsquery as query
      from ordered
     order by ordered.weight desc, ordered.lexeme
     limit most_lexemes
  )
  select array_agg(kept.lexeme order by kept.place),
         array_agg(kept.query order by kept.place),
         array_agg(kept.document_frequency order by kept.place),
         array_agg(kept.weight order by kept.place),
         array_agg(kept.number order by kept.place),
         string_agg(kept.query::text, ' | ')::tsquery,
         string_agg(kept.query::text, ' | ') filter (where kept.is_identifier)::tsquery
    into analysis.lexemes, analysis.lexeme_queries, analysis.document_frequencies,
         analysis.scored_weights, analysis.readings, analysis.matching_query,
         bonuses.identifier_query
    from kept;
  if analysis.lexemes is null then
    return analysis;
  end if;

  select phrase.queries, phrase.bonuses
    into bonuses.phrase_queries, bonuses.phrase_bonuses
    from knowledge_internal.phrase_bonuses(
           operands, configurations, analysis.lexeme_queries, analysis.scored_weights
         ) as phrase;
  analysis.coverage_weights := array(
    select max(listed.weight)
      from unnest(analysis.scored_weights, analysis.readings) as listed (weight, reading)
     group by listed.reading
  );
  analysis.weights := analysis.scored_weights;
  analysis.scored_vector := knowledge_internal.lexeme_vector(
    analysis.lexemes, analysis.scored_weights
  );
  analysis.weight_vector := analysis.scored_vector;
  if bonuses.identifier_query is not null then
    -- Above every score without an identifier.
    bonuses.identifier_bonus := 1.01 * (
      select sum(reachable.score)
        from (
          select highest_factor * unnest(analysis.coverage_weights)
          union all
          select unnest(bonuses.phrase_bonuses)
        ) as reachable (score)
    );
    analysis.coverage_weights :=
      analysis.coverage_weights || bonuses.identifier_bonus / highest_factor;
    analysis.weights := array(
      select listed.weight + case
               when bonuses.identifier_query @> listed.query
                 then drawing_factor * bonuses.identifier_bonus
               else 0
             end
        from unnest(analysis.lexeme_queries, analysis.scored_weights)
             with ordinality as listed (query, weight, place)
       order by listed.place
    );
    analysis.weight_vector := knowledge_internal.lexeme_vector(analysis.lexemes, analysis.weights);
  end if;

  conditions := knowledge_internal.operand_conditions(
    operands, configurations, expansions
  );
  if numnode(conditions.required) > 0 then
    if search_mode = 'websearch' then
      analysis.relaxed_query := analysis.matching_query;
      if numnode(conditions.excluded) > 0 then
        analysis.relaxed_query := analysis.relaxed_query && !!conditions.excluded;
      end if;
      analysis.relaxed_parts := array(
        select operand.source from unnest(operands) as operand where operand.is_required
      );
      analysis.relaxed_bonuses := bonuses;
      bonuses.phrase_queries := null; -- each row has them
      bonuses.phrase_bonuses := null;
    end if;
    analysis.matching_query := conditions.required;
    -- GIN finds the words of a phrase, in any order.
    analysis.required_query :=
      regexp_replace(conditions.required::text, '<(-|\d+)>', '&', 'g')::tsquery;
  end if;
  if numnode(conditions.excluded) > 0 then
    analysis.matching_query := analysis.matching_query && !!conditions.excluded;
  end if;
  analysis.bonuses := bonuses;
  analysis.is_optional := numnode(conditions.required) = 0 and numnode(conditions.excluded) = 0;

  -- Required words that few rows have together: then all of these rows are candidates.
  required_rows := (
    select case
             when conditions.required::text like '%|%' then min(word.document_frequency)
             else analysis.document_count
               * exp(sum(ln(greatest(word.document_frequency, 1) / analysis.document_count)))
           end
      from unnest(analysis.lexeme_queries, analysis.document_frequencies)
           as word (query, document_frequency)
     where conditions.required @> word.query
  );
  if (required_rows <= scored_in_full and expansions = '{}') is not true then
    analysis.candidate_query := knowledge_internal.candidate_query(
      analysis.lexemes, analysis.document_frequencies, analysis.weights, analysis.required_query,
      analysis.document_count, 1
    );
  end if;
  analysis.is_partial := analysis.candidate_query is not null;
  analysis.candidate_query := coalesce(analysis.candidate_query, analysis.matching_query);
  return analysis;
end
$$;

comment on function knowledge_internal.analyse_query is
  'Reads a query''s text in every language of the corpus and weighs its words by idf. collections: '
  'those whose synonyms are used beside the general ones; prefix_last: the last word may be the '
  'beginning of a word. Of a long '
  'text it reads the first 4,096 characters, 512 words (3,000 divided by the number of languages, '
  'where these are more than 5), and the 256 lexemes that weigh most.';

create function knowledge_internal.asked_words(analyses knowledge_internal.query_analysis[])
returns knowledge_internal.asked_words
language plpgsql
immutable
security invoker
set search_path = pg_catalog, pg_temp
as $$
declare
  analysis knowledge_internal.query_analysis;
  asked knowledge_internal.asked_words;
begin
  foreach analysis in array analyses loop
    asked.words := asked.words || analysis.words;
    asked.word_queries := asked.word_queries || analysis.word_queries;
    asked.compounds := asked.compounds || analysis.compounds;
    asked.lexemes := asked.lexemes || analysis.lexemes;
  end loop;
  if cardinality(analyses) > 1 then
    select array_agg(typed.word order by typed.place),
           array_agg(typed.query order by typed.place),
           array_agg(typed.compound order by typed.place)
      into asked.words, asked.word_queries, asked.compounds
      from (
        select distinct on (lower(said.word)) said.*
          from unnest(asked.words, asked.word_queries, asked.compounds)
               with ordinality as said (word, query, compound, place)
         order by lower(said.word), said.compound is not null, said.place
      ) as typed;
  end if;
  return asked;
end
$$;

comment on function knowledge_internal.asked_words(knowledge_internal.query_analysis[]) is
  'The words of all questions and the parts of their compounds, each once whatever its case.';

create function knowledge_internal.matched_words(
  content_tsv tsvector, asked knowledge_internal.asked_words
)
returns text[]
language plpgsql
immutable
parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $$
declare
  matched text[] := '{}';
begin
  for place in 1 .. coalesce(cardinality(asked.words), 0) loop
    if (asked.compounds[place] = any (matched)) is not true
      and content_tsv @@ asked.word_queries[place] then
      matched := matched || asked.words[place];
    end if;
  end loop;
  return matched;
end
$$;

comment on function knowledge_internal.matched_words(tsvector, knowledge_internal.asked_words) is
  'The words of the questions that a chunk has, as typed; of a compound that it does not have, the '
  'parts that it has.';

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

create function knowledge_internal.recency_factor(document_date date, half_life float8)
returns float8
language plpgsql
stable
parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $$
begin
  if document_date is null or half_life is null then
    return 1;
  end if;
  return 0.5 ^ least(
    greatest((now() at time zone 'UTC')::date - document_date, 0) / greatest(half_life, 1e-6), 500
  );
end
$$;

comment on function knowledge_internal.recency_factor(date, float8) is
  '0.5 ^ (age / half-life), both in days; 1 without a date or a half-life.';

create function knowledge_internal.has_every_word(chunk_id uuid, word_queries tsquery[])
returns boolean
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
-- The search sets force_custom_plan; the statements here are the same for every query.
set plan_cache_mode = force_generic_plan
as $$
begin
  return (
    select bool_and(found.content_tsv @@ word.query)
      from (
        -- Concatenated with nothing, a tsvector outside its row is fetched once.
        select chunk.content_tsv || ''::tsvector as content_tsv
          from public.knowledge_chunks as chunk
         where chunk.id = chunk_id
        offset 0
      ) as found
     cross join unnest(word_queries) as word (query)
  );
end
$$;

comment on function knowledge_internal.has_every_word(uuid, tsquery[]) is
  'Whether a chunk has every word of a query.';

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
  neighbours constant integer := cardinality(similarities);
  best_cosine constant float8 := similarities[1];
  best_bm25 constant float8 := text_scores[1];
  highest_bm25 constant float8 := (knowledge_internal.bm25_k1() + 1)
    * (select sum(word.weight) from unnest(query_weights) as word (weight));
  odds constant float8 := least(
    coalesce(mutual_neighbours / nullif(1 - mutual_neighbours, 0), highest_odds), highest_odds
  );
  excess float8;
  support float8;
begin
  typical_cosine := similarities[least(neighbours, typical_rank)];
  if neighbours < fewest_neighbours then
    vector_evidence := coalesce(1 / nullif(best_cosine - typical_cosine, 0), 0);
    text_evidence := coalesce(1 / nullif(best_bm25, 0), 0);
    return;
  end if;
  cosine_spread := coalesce(cosine_spread, usual_spread);
  excess := (
    select greatest(avg(hit.similarity) - typical_cosine, 0)
      from unnest(similarities[:best_hits]) as hit (similarity)
  ) / cosine_spread;
  support := (select avg(hit.score) from unnest(nearest_scores) as hit (score))
    / (select nullif(avg(hit.score), 0) from unnest(text_scores[:best_hits]) as hit (score));
  vector_evidence := coalesce(
    vector_factor * case when mutual_neighbours is null then usual_odds else odds end
      * excess ^ 1.5 / cosine_spread
      * least(greatest(coalesce(support, 1), least_support), 1),
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
