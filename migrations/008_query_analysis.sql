-- 008_query_analysis: what a query's text asks for, and how its words are weighed.
-- Adds: types query_analysis, query_operand and asked_words, and the functions that read a query.
-- Locks nothing that exists.
-- Written from supabase/schemas/08_query_analysis.sql by `make baseline`: edit that file.

create type knowledge_internal.query_analysis as (
  words text[],
  word_queries tsquery[],
  compounds text[],
  lexemes text[],
  lexeme_queries tsquery[],
  document_frequencies float8[],
  weights float8[],
  weight_vector extensions.sparsevec,
  matching_query tsquery,
  required_query tsquery,
  candidate_query tsquery,
  is_partial boolean,
  is_optional boolean,
  document_count float8,
  mean_length float8,
  cosine_spread float8,
  replaced jsonb
);

comment on type knowledge_internal.query_analysis is
  'words, word_queries, compounds: as in asked_words. lexemes with '
  'their conditions, document_frequencies and weights (idf times the occurrences in the query), '
  'rarest first; weight_vector: the weights for an inner product with bm25. matching_query: the '
  'rows that match, null when no row can; required_query: the words that a row must have, in any '
  'order; candidate_query: the rows to score first; is_partial: candidate_query finds fewer rows '
  'than matching_query; is_optional: one word is enough. document_count, mean_length and '
  'cosine_spread are those of the corpus.';

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
  scored_in_full constant float8 := 3000; -- rows
  row_budget constant float8 := 700 * effort; -- candidates
  posting_budget float8 := 5000 * effort; -- index entries read to find them
  thinned_budget constant float8 := 40000 * effort; -- the same, when partners thin out the rows
  partner_count constant integer := 7;
  most_common_partner constant float8 := 0.3 * document_count; -- reading its entries costs too much
  least_listed constant float8 := (
    select min(statistics.frequency) * document_count
      from knowledge_internal.lexeme_statistics as statistics
  );
  words_for_triples constant integer := 5;
  levels constant float8[] := knowledge_internal.mark_levels();
  usual_shares constant float8[] := array[0.13, 0.03, 0.0045, 0.0005]; -- of rows, by level
  candidate_query tsquery;
begin
  if (
    select sum(frequency.size) from unnest(document_frequencies) as frequency (size)
  ) <= scored_in_full then
    return null;
  end if;
  if cardinality(lexemes) = 1 then
    posting_budget := row_budget;
  end if;

  with word as (
    select asked.place,
           asked.lexeme,
           asked.document_frequency,
           asked.weight,
           sum(asked.document_frequency) over (order by asked.place) as postings
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
    select common.place,
           common.lexeme || '^' || level.number as lexeme,
           level.number,
           coalesce(
             listed.frequency * document_count,
             least(common.document_frequency * usual_shares[level.number], least_listed)
           ) as size,
           common.weight * level.least as value
      from word as common
     cross join unnest(levels) with ordinality as level (least, number)
      left join knowledge_internal.lexeme_statistics as listed
        on listed.lexeme = common.lexeme || '^' || level.number
     where common.place > (select count(*) from unmarked)
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
               sum(combination.size) over best_first as rows_drawn,
               row_number() over best_first as place_in_order
          from combination
        window best_first as (
          order by combination.value desc, combination.size, combination.lexeme,
                   combination.partner, combination.third
        )
      ) as ordered
     where ordered.rows_drawn <= row_budget
        or (
          ordered.rows_drawn - ordered.size < row_budget / 10
            and ordered.size <= 3 * row_budget
        )
        or ordered.place_in_order = 1
  ),
  condition as (
    select kept.lexeme,
           bool_or(kept.partner is null) as is_alone,
           string_agg(
             quote_literal(kept.partner) || coalesce(' & ' || quote_literal(kept.third), ''), ' | '
           ) as partners
      from kept
     group by kept.lexeme
  )
  select string_agg(
           quote_literal(condition.lexeme)
             || case when condition.is_alone then '' else ' & (' || condition.partners || ')' end,
           ' | '
         )::tsquery
    into candidate_query
    from condition;
  return coalesce(required_query && candidate_query, candidate_query);
end
$$;

comment on function knowledge_internal.candidate_query is
  'The candidates of a query: rows with its rarest words, with several of its common words, or '
  'with a common word that weighs much in them. About 1,000 rows for effort 1, proportionally more '
  'for a greater effort; null when at most 3,000 rows match at all, so that all of them are '
  'candidates.';

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
    if search_mode = 'websearch' and lower(source) = 'or' then
      is_alternative := true;
      continue;
    end if;
    operand.is_phrase := search_mode = 'phrase' or (search_mode = 'websearch' and source ~ '^-?"');
    operand.is_required := operand.is_phrase or search_mode = 'simple';
    operand.is_excluded := search_mode = 'websearch' and source ~ '^-["[:alnum:]]';
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
  '"a phrase" is required, -word and -"a phrase" are excluded, or joins alternatives. simple: each '
  'word is required. phrase: the text is one phrase.';

create function knowledge_internal.operand_conditions(
  operands knowledge_internal.query_operand[],
  configurations regconfig[],
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

comment on function knowledge_internal.operand_conditions(
  knowledge_internal.query_operand[], regconfig[]
) is
  'What a row must have and must not have, read in each configuration; empty for nothing.';

create function knowledge_internal.typed_words(
  wanted text,
  configurations regconfig[],
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
           trimmed.word ~ '^[[:alnum:]]+$' and octet_length(trimmed.word) = length(trimmed.word)
             as is_simple
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
               from ts_parse('default', typed.apart)
                    with ordinality as found (tokid, token, number)
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
                  ) as alternative (query)
            where numnode(alternative.query) > 0
         ) as reading
   where reading.query is not null;
end
$$;

comment on function knowledge_internal.typed_words(text, regconfig[]) is
  'The words of a text and the parts of its compounds, each once whatever its case, as in '
  'asked_words. What is typed as a word is no part. Of a long text, the first 600 parts divided by '
  'the number of configurations are listed.';

create function knowledge_internal.analyse_query(query_text text, search_mode text)
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
  configurations constant regconfig[] := knowledge_internal.query_configurations();
  operands knowledge_internal.query_operand[];
  conditions record;
  wanted text;
  corpus record;
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

  select typed.words, typed.word_queries, typed.compounds
    into analysis.words, analysis.word_queries, analysis.compounds
    from knowledge_internal.typed_words(wanted, configurations) as typed;
  if analysis.words is null then
    return analysis;
  end if;

  select * into corpus from knowledge_internal.corpus_size();
  analysis.document_count := corpus.document_count;
  analysis.mean_length := corpus.mean_length;
  analysis.cosine_spread := corpus.cosine_spread;

  -- A word that stands twice in the query counts twice.
  with asked as (
    select counted.lexeme, max(counted.occurrences) as occurrences
      from (
        select word.lexeme, cardinality(word.positions) as occurrences
          from unnest(configurations) as language (configuration)
         cross join unnest(
                to_tsvector(language.configuration, knowledge_internal.apart_and_joined(wanted))
              ) as word
      ) as counted
     group by counted.lexeme
  ),
  weighed as (
    select asked.lexeme,
           known.document_frequency,
           asked.occurrences * knowledge_internal.inverse_document_frequency(
             corpus.document_count, known.document_frequency
           ) as weight
      from knowledge_internal.document_frequencies(
             array(select asked.lexeme from asked), corpus.is_small, corpus.document_count
           ) as known
      join asked on asked.lexeme = known.lexeme
  ),
  kept as (
    -- In a very long query, the words that weigh least change the order least.
    select weighed.lexeme, weighed.document_frequency, weighed.weight,
           quote_literal(weighed.lexeme)::tsquery as query
      from weighed
     order by weighed.weight desc, weighed.lexeme
     limit most_lexemes
  )
  select array_agg(kept.lexeme order by kept.document_frequency, kept.lexeme),
         array_agg(kept.query order by kept.document_frequency, kept.lexeme),
         array_agg(kept.document_frequency order by kept.document_frequency, kept.lexeme),
         array_agg(kept.weight order by kept.document_frequency, kept.lexeme),
         string_agg(kept.query::text, ' | ')::tsquery
    into analysis.lexemes, analysis.lexeme_queries, analysis.document_frequencies,
         analysis.weights, analysis.matching_query
    from kept;
  analysis.weight_vector := knowledge_internal.lexeme_vector(analysis.lexemes, analysis.weights);

  conditions := knowledge_internal.operand_conditions(operands, configurations);
  if numnode(conditions.required) > 0 then
    analysis.matching_query := conditions.required;
    -- GIN finds the words of a phrase, in any order.
    analysis.required_query :=
      regexp_replace(conditions.required::text, '<(-|\d+)>', '&', 'g')::tsquery;
  end if;
  if numnode(conditions.excluded) > 0 then
    analysis.matching_query := analysis.matching_query && !!conditions.excluded;
  end if;
  analysis.is_optional := numnode(conditions.required) = 0 and numnode(conditions.excluded) = 0;

  -- A rare word that is required leaves few rows: then all of them are candidates.
  if not exists (
    select
      from unnest(analysis.lexeme_queries, analysis.document_frequencies)
           as word (query, document_frequency)
     where word.document_frequency <= scored_in_full
       and numnode(conditions.required) > 0
       and conditions.required @> word.query
  ) then
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

comment on function knowledge_internal.analyse_query(text, text) is
  'Reads a query''s text in every language of the corpus and weighs its words by idf. Of a long '
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

create function knowledge_internal.leg_evidence(
  similarities float8[],
  best_bm25 float8,
  typical_rank integer,
  cosine_spread float8,
  query_weights float8[],
  out typical_cosine float8,
  out vector_evidence float8,
  out text_evidence float8
)
language plpgsql
immutable
security invoker
set search_path = pg_catalog, pg_temp
as $$
declare
  vector_factor constant float8 := 0.7;
  usual_spread constant float8 := 0.13;
  fewest_neighbours constant integer := 10;
  neighbours constant integer := cardinality(similarities);
  best_cosine constant float8 := similarities[1];
  highest_score constant float8 := (knowledge_internal.bm25_k1() + 1)
    * (select sum(word.weight) from unnest(query_weights) as word (weight));
begin
  typical_cosine := similarities[least(neighbours, typical_rank)];
  if neighbours < fewest_neighbours then
    vector_evidence := coalesce(1 / nullif(best_cosine - typical_cosine, 0), 0);
    text_evidence := coalesce(1 / nullif(best_bm25, 0), 0);
    return;
  end if;
  cosine_spread := coalesce(cosine_spread, usual_spread);
  vector_evidence := coalesce(
    vector_factor * ((best_cosine - typical_cosine) / cosine_spread) ^ 2 / cosine_spread, 0
  );
  text_evidence := coalesce(least(1, best_bm25 / nullif(highest_score, 0)), 0);
end
$$;

comment on function knowledge_internal.leg_evidence is
  'How far fusion auto relies on each leg of one query: the factors of a cosine similarity and of '
  'a BM25 score. similarities: of the neighbours, best first. Vector: 0.7 z² / cosine_spread, '
  'where z is how far the best hit is above the typical one (at typical_rank), in units of '
  'cosine_spread. Text: the best score over the highest possible one (every word of the query, '
  'saturated). With fewer than 10 neighbours there is too little evidence: each leg is scaled to '
  '0..1.';
