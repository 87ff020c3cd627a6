-- 008_query_analysis: what a query's text asks for.
-- Adds: type query_analysis, functions candidate_query, analyse_query, rank_steps, leg_evidence.
-- Locks nothing that exists.

do $$
begin
  if to_regtype('knowledge_internal.query_analysis') is null then
    create type knowledge_internal.query_analysis as (
      words text[],
      word_queries tsquery[],
      lexemes text[],
      document_frequencies float8[],
      weights float8[],
      weight_vector extensions.sparsevec,
      full_query tsquery,
      candidate_query tsquery,
      required_query tsquery,
      is_partial boolean,
      is_optional boolean,
      document_count float8,
      mean_length float8,
      cosine_spread float8
    );
  end if;
end
$$;

comment on type knowledge_internal.query_analysis is
  'words: as typed, without stop words; word_queries: what finds each of them. lexemes with '
  'document_frequencies and weights (idf times how often the query has it), rarest first; '
  'weight_vector: the same for an inner product with bm25. full_query: the rows that match, null '
  'when no row can; candidate_query: those to score first; required_query: the words that a row '
  'must have, in whatever order; is_partial: whether candidate_query draws fewer rows than '
  'full_query; is_optional: whether one word is enough. document_count, mean_length, '
  'cosine_spread: of the corpus.';

create or replace function knowledge_internal.candidate_query(
  lexemes text[],
  document_frequencies float8[],
  weights float8[],
  document_count float8,
  effort float8 default 1
)
returns tsquery
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
as $$
declare
  scored_in_full constant float8 := 3000; -- rows
  row_budget constant float8 := 700 * effort; -- rows expected, of more than that
  posting_budget float8 := 5000 * effort; -- postings that the index reads to find them
  thinned_budget constant float8 := 40000 * effort; -- the same with one common word
  partner_count constant integer := 7;
  most_common_partner constant float8 := 0.3 * document_count; -- reading its postings costs more
  least_listed constant float8 := (
    select min(statistics.frequency) * document_count
      from knowledge_internal.lexeme_statistics as statistics
  );
  words_for_triples constant integer := 5;
  levels constant float8[] := knowledge_internal.mark_levels();
  usual_shares constant float8[] := array[0.13, 0.03, 0.0045, 0.0005]; -- of postings, at each level
  chosen tsquery;
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
  -- Rare words are looked up whole; a common one too when those are few, since partners thin it
  -- out.
  whole as (
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
  -- The room that is left goes to the marks of the others, those that weigh most first.
  mark as (
    select common.place,
           common.lexeme || '^' || level.number as lexeme,
           level.number,
           coalesce(
             listed.frequency * document_count,
             least(common.document_frequency * usual_shares[level.number], least_listed)
           ) as size,
           common.weight * level.least as worth
      from word as common
     cross join unnest(levels) with ordinality as level (least, number)
      left join knowledge_internal.lexeme_statistics as listed
        on listed.lexeme = common.lexeme || '^' || level.number
     where common.place > (select count(*) from whole)
  ),
  affordable as (
    select ordered.*
      from (
        select mark.*,
               sum(mark.size - coalesce(above.size, 0))
                 over (order by mark.worth desc, mark.place) as room,
               row_number() over (order by mark.worth desc, mark.place) as turn
          from mark
          left join mark as above on above.place = mark.place and above.number = mark.number + 1
      ) as ordered
     where ordered.room + (select coalesce(max(whole.postings), 0) from whole) <= posting_budget
        or (ordered.turn = 1 and not exists (select from whole))
  ),
  driver as (
    select whole.place, whole.lexeme, whole.document_frequency as size, whole.weight,
           true as is_whole
      from whole
    union all
    (
      select distinct on (affordable.place)
             affordable.place, affordable.lexeme, affordable.size, weights[affordable.place], false
        from affordable
       order by affordable.place, affordable.number
    )
  ),
  -- A driver alone, with a partner, and in a short query with two: the more weight together, the
  -- sooner. A mark that is too common to come alone does so at a higher level.
  combination as (
    select driver.place, driver.lexeme, null::text as partner, null::text as third,
           driver.weight as worth, driver.size
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
       and (partner.place > driver.place or not partner.place = any (select whole.place from whole))
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
               row_number() over best_first as turn
          from combination
        window best_first as (
          order by combination.worth desc, combination.size, combination.lexeme,
                   combination.partner, combination.third
        )
      ) as ordered
     where ordered.rows_drawn <= row_budget
        or (
          ordered.rows_drawn - ordered.size < row_budget / 10
            and ordered.size <= 3 * row_budget
        )
        or ordered.turn = 1
  ),
  drawn as (
    select kept.lexeme,
           bool_or(kept.partner is null) as is_alone,
           string_agg(
             quote_literal(kept.partner) || coalesce(' & ' || quote_literal(kept.third), ''), ' | '
           ) as partners
      from kept
     group by kept.lexeme
  )
  select string_agg(
           quote_literal(drawn.lexeme)
             || case when drawn.is_alone then '' else ' & (' || drawn.partners || ')' end,
           ' | '
         )::tsquery
    into chosen
    from drawn;
  return chosen;
end
$$;

comment on function knowledge_internal.candidate_query is
  'The rows of a query that are worth scoring: those with its rarest words, with several of its '
  'common words, or with a common word that they are about. About a thousand rows for effort 1, so '
  'many times more for a greater one; null when no more than 3,000 rows match at all.';

create or replace function knowledge_internal.analyse_query(query_text text, search_mode text)
returns knowledge_internal.query_analysis
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
-- A stop word alone is no reason for a NOTICE.
set client_min_messages = warning
-- The search plans anew for each call; these statements are the same for every query.
set plan_cache_mode = force_generic_plan
as $$
declare
  scored_in_full constant float8 := 3000; -- rows
  characters_read constant integer := 4096;
  operands_read constant integer := 512;
  most_lexemes constant integer := 256;
  configurations regconfig[];
  configuration regconfig;
  operands text[];
  operand text;
  operand_query tsquery;
  is_phrase boolean;
  is_required boolean;
  joins_previous boolean;
  alternatives tsquery;
  required tsquery;
  all_required tsquery := '';
  excluded tsquery := '';
  wanted text := '';
  corpus record;
  analysis knowledge_internal.query_analysis;
begin
  -- Phones and word processors type quotation marks of their own.
  query_text := left(
    knowledge_internal.normalised(
      translate(left(query_text, characters_read), '“”„‟«»', '""""""')
    ),
    characters_read
  );

  -- A chunk was analysed in its own language, so the query is read in each that occurs: one look
  -- at the index for each.
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
    into configurations
    from present
   where present.language is not null;
  if configurations is null then
    return analysis;
  end if;

  -- websearch: words are optional, "a phrase" is required, -word and -"a phrase" exclude; what or
  -- joins are alternatives, required when one of them is a phrase. simple: each word is required.
  -- phrase: the text is one phrase.
  operands := array(
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
     where matched.place <= operands_read
     order by matched.place
  );

  -- A configuration has stop words of its own, so each has its own say in what is required.
  foreach configuration in array configurations loop
    required := '';
    alternatives := '';
    is_required := false;
    joins_previous := false;
    foreach operand in array operands loop
      if search_mode = 'websearch' and lower(operand) = 'or' then
        joins_previous := true;
        continue;
      end if;

      is_phrase := search_mode = 'phrase' or (search_mode = 'websearch' and operand ~ '^-?"');
      if is_phrase then
        operand_query := phraseto_tsquery(configuration, knowledge_internal.apart(operand));
      else
        operand_query := plainto_tsquery(configuration, knowledge_internal.apart(operand))
          || plainto_tsquery(configuration, knowledge_internal.joined(operand));
      end if;

      if search_mode = 'websearch' and operand ~ '^-["[:alnum:]]' then
        excluded := excluded || operand_query;
        joins_previous := false;
        continue;
      end if;
      if configuration = configurations[1] then
        wanted := wanted || ' ' || operand;
      end if;
      continue when numnode(operand_query) = 0;
      if not joins_previous then
        required := required && case when is_required then alternatives else '' end;
        alternatives := '';
        is_required := false;
      end if;
      alternatives := alternatives || operand_query;
      is_required := is_required or is_phrase or search_mode = 'simple';
      joins_previous := false;
    end loop;
    all_required := all_required
      || (required && case when is_required then alternatives else '' end);
  end loop;

  select array_agg(word.typed order by word.place), array_agg(word.query order by word.place)
    into analysis.words, analysis.word_queries
    from (
      select distinct on (lower(typed.word)) typed.word as typed, typed.place, reading.query
        from regexp_split_to_table(wanted, '\s+') with ordinality as split (word, place)
       cross join lateral (
               select btrim(split.word, '.,;:!?()[]{}<>"''`’') as word, split.place
             ) as typed
       cross join lateral (
               select string_agg('(' || alternative.query::text || ')', ' | ')::tsquery as query
                 from unnest(configurations) as language (configuration)
                cross join lateral (
                        values (
                          plainto_tsquery(
                            language.configuration, knowledge_internal.apart(typed.word)
                          )
                        ), (
                          plainto_tsquery(
                            language.configuration, knowledge_internal.joined(typed.word)
                          )
                        )
                      ) as alternative (query)
                where numnode(alternative.query) > 0
             ) as reading
       where reading.query is not null
       order by lower(typed.word), typed.place
    ) as word;
  if analysis.words is null then
    return analysis;
  end if;

  select * into corpus from knowledge_internal.corpus_size();
  analysis.document_count := corpus.document_count;
  analysis.mean_length := corpus.mean_length;
  analysis.cosine_spread := corpus.cosine_spread;

  -- idf as Lucene has it: ln(1 + (N - df + 0.5) / (df + 0.5)). A word that stands twice in the
  -- query counts twice.
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
           asked.occurrences
             * ln(1 + greatest(corpus.document_count - known.document_frequency + 0.5, 0.5)
                        / (known.document_frequency + 0.5)) as weight
      from knowledge_internal.document_frequencies(
             array(select asked.lexeme from asked), corpus.is_small, corpus.document_count
           ) as known
      join asked on asked.lexeme = known.lexeme
  )
  select array_agg(weighed.lexeme order by weighed.document_frequency, weighed.lexeme),
         array_agg(weighed.document_frequency order by weighed.document_frequency, weighed.lexeme),
         array_agg(weighed.weight order by weighed.document_frequency, weighed.lexeme),
         string_agg(quote_literal(weighed.lexeme), ' | ')::tsquery
    into analysis.lexemes, analysis.document_frequencies, analysis.weights, analysis.full_query
    from (
      -- The least telling words of a very long query change its order least.
      select * from weighed order by weighed.weight desc, weighed.lexeme limit most_lexemes
    ) as weighed;
  analysis.weight_vector := knowledge_internal.lexeme_vector(analysis.lexemes, analysis.weights);

  if numnode(all_required) > 0 then
    analysis.full_query := all_required;
    analysis.required_query := regexp_replace(all_required::text, '<(-|\d+)>', '&', 'g')::tsquery;
  end if;
  if numnode(excluded) > 0 then
    analysis.full_query := analysis.full_query && !!excluded;
  end if;
  analysis.is_optional := numnode(all_required) = 0 and numnode(excluded) = 0;
  -- A rare word that is required leaves few rows.
  if not exists (
    select
      from unnest(analysis.lexemes, analysis.document_frequencies)
           as word (lexeme, document_frequency)
     where word.document_frequency <= scored_in_full
       and numnode(all_required) > 0
       and all_required @> quote_literal(word.lexeme)::tsquery
  ) then
    analysis.candidate_query := knowledge_internal.candidate_query(
      analysis.lexemes, analysis.document_frequencies, analysis.weights, analysis.document_count
    );
  end if;
  analysis.is_partial := analysis.candidate_query is not null;
  analysis.candidate_query := case
    when not analysis.is_partial then analysis.full_query
    else coalesce(analysis.required_query && analysis.candidate_query, analysis.candidate_query)
  end;
  return analysis;
end
$$;

comment on function knowledge_internal.analyse_query(text, text) is
  'Reads a query''s text in every language of the corpus and weighs its words by idf: of a long '
  'one the first 4,096 characters, 512 words, and the 256 lexemes that weigh most.';

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
    select array_agg(step.least order by step.tf)
      from (
        select occurrence.tf,
               sum(1.0 / occurrence.tf ^ 2) over (order by occurrence.tf) - 0.000001 as least
          from generate_series(1, 256) as occurrence (tf)
      ) as step
  );
end
$$;

comment on function knowledge_internal.rank_steps() is
  'How often a lexeme stands in a tsvector can be read off its ts_rank, in a fraction of the time '
  'that unnest takes: with all weights 1 it is the sum of 1 / j^2 over the occurrences j, divided '
  'by pi^2 / 6. Here are those sums for 1 to 256 occurrences (the most a tsvector keeps), less a '
  'margin for float4: the bounds of width_bucket.';

create function knowledge_internal.leg_evidence(
  neighbours bigint,
  best_cosine float8,
  ordinary_cosine float8,
  cosine_spread float8,
  best_bm25 float8,
  query_weights float8[],
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
  highest_term_weight constant float8 := knowledge_internal.bm25_k1() + 1;
  usual_spread constant float8 := 0.13;
  fewest_neighbours constant integer := 10;
begin
  if neighbours < fewest_neighbours then
    vector_evidence := coalesce(1 / nullif(best_cosine - ordinary_cosine, 0), 0);
    text_evidence := coalesce(1 / nullif(best_bm25, 0), 0);
    return;
  end if;
  cosine_spread := coalesce(cosine_spread, usual_spread);
  vector_evidence := coalesce(
    vector_factor * ((best_cosine - ordinary_cosine) / cosine_spread) ^ 2 / cosine_spread, 0
  );
  text_evidence := coalesce(
    least(
      1,
      best_bm25
        / nullif(
          highest_term_weight
            * (select sum(word.weight) from unnest(query_weights) as word (weight)),
          0
        )
    ),
    0
  );
end
$$;

comment on function knowledge_internal.leg_evidence is
  'What the legs of one query say of their own reliability: the factors that fusion auto gives to '
  'a cosine similarity and to a BM25 score. Vector: 0.7 z² for each cosine_spread of similarity, '
  'where z is how far its best hit stands above its 50th (ordinary_cosine) in units of '
  'cosine_spread. Text: the share of the highest possible score (every word of the query, '
  'saturated) that its best hit has. Fewer than 10 neighbours do not tell: then each leg counts '
  'from 0 to 1.';
