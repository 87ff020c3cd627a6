-- 005_query_analysis: what a query's text asks for, and how its words are weighed.
-- Adds: the types of a read query, the functions that read one, and three extension points for
-- its words.
-- Locks nothing that exists.

-- Another reading of a typed word: a spelling with accents, a completion or a synonym. typed: the
-- word in lower case; typed_lexeme: its lexeme, null for a stop word; share: of its weight.
create type knowledge_internal.expansion as (
  typed text, typed_lexeme text, lexeme text, share float8
);

-- One way to ask, read: an embedding, words, or both. ignored_embedding: why its embedding is not
-- used, where on_bad_embedding allows that; is_inferred: its embedding is made of its best text
-- hits. words: as typed, without stop words, and the parts of compounds after their compound;
-- word_queries: the condition for each; compounds: the compound that a part is in, null for a word;
-- replaced: as in the notes of knowledge_search_hit. lexemes: rarest first, with their conditions,
-- the chunks that have them (frequencies), their weights (idf times the occurrences in the
-- question) and their vectors for an inner product with bm25. readings: a number that lexemes have
-- in common which are one word read in several languages: only the best of them counts; null where
-- no word has several. candidate_weights: the weights for finding candidates, where an identifier
-- outweighs all other words; weight_vector: the same for an inner product with bm25.
-- matching_query: the rows that match, null when no row can; required_query: the words that a row
-- must have, in any order; indexed_query: the same where words must be near each other, whose many
-- conditions take GIN long; is_optional: one word is enough. candidate_query: the rows to score
-- first; is_partial: it finds fewer rows than matching_query; null: not known yet. A chunk scores
-- beside BM25 identifier_bonus if it matches identifier_query, and the bonus of each phrase query
-- that it matches. relaxed_query: the rows that match when no row has what is required,
-- relaxed_parts; null when nothing can be relaxed. Only then phrases that are required have a
-- bonus. excluded_parts: what the question excludes; dropped_parts: what it requires or excludes
-- of stop words only; ignored_parts: what is not read of it; like_words: the lexemes that like_ids
-- add.
create type knowledge_internal.question as (
  embedding extensions.vector, ignored_embedding text, is_inferred boolean, query_text text,
  words text[], word_queries tsquery[], compounds text[], replaced jsonb,
  lexemes text[], lexeme_queries tsquery[], frequencies double precision[],
  weights double precision[], vectors extensions.sparsevec[], readings integer[],
  candidate_weights double precision[], weight_vector extensions.sparsevec,
  matching_query tsquery, required_query tsquery, indexed_query tsquery, is_optional boolean,
  candidate_query tsquery, is_partial boolean,
  identifier_query tsquery, identifier_bonus double precision, phrase_queries tsquery[],
  phrase_bonuses double precision[], relaxed_query tsquery, relaxed_parts text[],
  excluded_parts text[], dropped_parts text[], ignored_parts text[], like_words text[]
);

-- A word or phrase of a query. alternatives: a number that operands joined by or have in common;
-- when one of them is required, a row must have one of them. further: as in phrase_query.
create type knowledge_internal.query_operand as (
  source text, is_phrase boolean, is_required boolean, is_excluded boolean, alternatives integer,
  further integer
);

-- Extension point: other readings of the words of a text (their spellings with other accents, their
-- synonyms in general and in the collections, and completions of prefix, which may be null). The
-- readings must be words of chunks in scope (null: of any chunk). Most texts have none: be fast.
create function knowledge_internal.expansions(
  wanted text, configurations regconfig[], collections text[], prefix text,
  scope knowledge_internal.row_scope
) returns knowledge_internal.expansion[]
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  if prefix is not null then
    raise exception 'prefix_last needs a dictionary of the words of the chunks, there is none'
      using errcode = '0A000', hint = 'Install the module words: second-brain migrate --with words';
  end if;
  return '{}';
end
$$;

-- Extension point: for words of a question that no chunk in scope has, the words that are written
-- nearly the same and the number of chunks that have them (counting may stop early), such as
-- {"recieve": {"receive": 12}}; null for none. Only words of chunks in scope may be returned.
create function knowledge_internal.near_words(
  question knowledge_internal.question, scope knowledge_internal.row_scope
) returns jsonb
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return null;
end
$$;

-- Extension point: the same for identifiers that no chunk in scope has, by chunks that have one of
-- which they are a part, such as {"DS-76": {"DS-7604 DS-7610": 3}}.
create function knowledge_internal.words_by_part(
  question knowledge_internal.question, scope knowledge_internal.row_scope
) returns jsonb
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return null;
end
$$;

-- Whether a text is a name of code or a part number, and no word of prose: snake_case, camelCase, a
-- dotted name, a path, a version, or letters with a number of three digits.
create function knowledge_internal.is_identifier(compound text) returns boolean
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
begin
  -- One expression, because a connection keeps 32 compiled ones.
  return compound ~ (
    '[[:alnum:]]_+[[:alnum:]]|[[:lower:]]{2}[[:upper:]]+[[:lower:]]{2}|\d\.\d+\.\d'
    '|^(?=.*[[:alpha:]])(?:'
    '.*(?:[[:alnum:]]{2}(?:\.|::|\\|@)[[:alnum:]]{2}|[/\\].*[/\\.])'
    '|(?!\d+[[:lower:]]+$).*\d{3}'
    '|(?!.*[[:lower:]])(?:.*\d){3})'
  );
end
$$;

-- Whether a question is prose, in which operators are words: it ends in a question mark, or has at
-- least six words, without identifiers and what the pattern apart finds.
create function knowledge_internal.is_prose(typed text, apart text default '"') returns boolean
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
declare
  words_of_prose constant integer := 6;
begin
  return typed ~ '[?？؟]\s*$' or (
    select count(*)
      from regexp_matches(
             knowledge_internal.separated(regexp_replace(typed, apart, ' ', 'gi')),
             '[^\s"]*[[:alnum:]][^\s"]*',
             'g'
           ) as word (parts)
     where not knowledge_internal.is_identifier(rtrim(word.parts[1], '.,;:!?)'))
  ) >= words_of_prose;
end
$$;

-- The operators of other search engines, as a regular expression, which are no operators here.
create function knowledge_internal.foreign_operators() returns text
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
begin
  return '(?<![^\s(])(?:(?:AND|(?:AND)?NOT)(?=[\s(":-])|[-!+][([{]|[-!+]*[!+](?=["[:alpha:]])'
    '|(?:&[&!]|[|]{1,2})(?=\s)'
    '|--(?=[[:alpha:]])|(?:O?NEAR|ADJ\d*)(?=\s)|(?:O?NEAR|AROUND|WITHIN|W)(?:/\d+|\(\d+\))'
    '|[[:alpha:]_.]+:(?=[<>=])|\[\S+ TO (?=\S+\])|[*](?=[[:alpha:]])'
    '|(?:site|filetype|intitle|inurl|title|heading|content|body|author|category|label|tag|type'
    '|lang|status|repo|in|from|before|after|created|updated):(?=[[:alnum:]"]))'
    '|(?:(?<=[[:alpha:]]{2})(?:[*]|\^\d+)|(?<=[[:lower:]])~\d?|(?<=")(?:\^\d+|~))(?!\S)';
end
$$;

-- What a search does not read of a question: operators that are none here, and the end of a long
-- text; null for nothing.
create function knowledge_internal.ignored_parts(
  query_text text, search_mode text, words_read integer
) returns text[]
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  characters_read constant integer := 4096; -- as in query_operands
begin
  return nullif(
    array(
      select distinct found.signs[1]
        from regexp_matches(query_text, knowledge_internal.foreign_operators(), 'g')
             as found (signs)
       where search_mode = 'websearch' and not knowledge_internal.is_prose(query_text)
    ) || case
      when length(query_text) > characters_read
        then array[format('what follows %s characters', characters_read)]
    end || case
      when length(query_text) > words_read and words_read < cardinality(
             string_to_array(
               btrim(knowledge_internal.apart(left(query_text, characters_read))), ' '
             )
           )
        then array[format('what follows %s words', words_read)]
    end,
    '{}'
  );
end
$$;

-- The words and phrases of a query as typed, up to words_read words. websearch: words are optional,
-- "a phrase" is required, -word and -"a phrase" are excluded, "a phrase"~5 has further 5, or joins
-- alternatives; in prose all of them are optional words and phrases. simple: each word is required.
-- phrase: the text is one phrase. Only an ASCII hyphen excludes: other dashes and the minus sign
-- are copied with a text. A quotation mark after a letter or digit (27", מנכ"ל) opens no phrase.
create function knowledge_internal.query_operands(
  query_text text, search_mode text, words_read integer
) returns knowledge_internal.query_operand[]
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
declare
  characters_read constant integer := 4096;
  phrases constant text := '(?<![[:alnum:]])-?"[^"]*"(?:~\d+(?![[:alnum:]]))?';
  -- Phones and word processors replace straight quotation marks; other spaces and the marks of
  -- directions are copied with a text. Digits of other scripts are read as ASCII ones.
  typed constant text := translate(
    case
      when octet_length(query_text) = length(query_text) then left(query_text, characters_read)
      -- The spaces of one number would part it.
      else regexp_replace(
        left(query_text, characters_read), '(?<=\d)[\u00A0\u2009\u202F](?=\d{3}(?!\d))', '''', 'g'
      )
    end,
    '“”„‟«»＂٠١٢٣٤٥٦٧٨٩۰۱۲۳۴۵۶۷۸۹०१२३४५६७८९０１２３４５６７８９'
      || U&'\00A0\1680\2000\2001\2002\2003\2004\2005\2006\2007\2008\2009\200A\2028\2029'
      '\202F\205F\3000\200B\200E\200F\202A\202B\202C\202D\202E\2066\2067\2068\2069\FEFF',
    repeat('"', 7) || repeat('0123456789', 4) || repeat(' ', 18)
  );
  operand knowledge_internal.query_operand;
  operands knowledge_internal.query_operand[] := '{}';
  longest_word constant integer := 60; -- letters
  most_further constant integer := 20; -- less than the gap in lexemes
  most_near constant integer := 5; -- words
  longest_near constant integer := 80; -- characters
  pairs integer;
  has_operators constant boolean := search_mode = 'websearch'
    and typed ~* '(?<![[:alnum:]])"|(?<!\S)-[[:alnum:]]|(?<!\S)or(?!\S)'
    and not knowledge_internal.is_prose(typed, phrases || '|(?<!\S)(?:-\S+|or)(?!\S)');
  source text;
  is_alternative boolean := false;
begin
  for source in
    select matched.parts[1]
      from regexp_matches(
             typed,
             case search_mode
               when 'websearch' then phrases || '|[^\s"]+'
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
    operand := row(
      -- Writing without spaces has up to a word for each letter.
      left(regexp_replace(source, '(?<=")~\d+$', ''), greatest(words_read, longest_word)),
      search_mode = 'phrase' or (search_mode = 'websearch' and source ~ '^-?"'),
      search_mode <> 'websearch' or (has_operators and source ~ '^-?"'),
      has_operators and source ~ '^-["[:alnum:]]',
      coalesce(operand.alternatives, 0) + (not is_alternative)::integer,
      case when search_mode = 'websearch' and source ~ '"~\d+$'
        then least(most_further, substring(source from '"~0*(\d{1,4})')::integer) end
    );
    words_read := words_read
      - cardinality(string_to_array(btrim(knowledge_internal.apart(operand.source)), ' '));
    if operand.further > 0 then
      -- What phrase_query writes for each two words at each distance is paid in words.
      pairs := (
        select case when count(*) <= most_near and length(operand.source) <= longest_near
                 then count(*) * (count(*) - 1) * (count(*) - 1 + operand.further) end
          from ts_parse('default', knowledge_internal.apart(operand.source)) as parsed
         where parsed.token ~ '[^[:space:][:punct:]]'
      );
      if pairs <= words_read then
        words_read := words_read - pairs;
      else
        operand.further := null;
      end if;
    end if;
    is_alternative := false;
    operands := array_append(operands, operand);
  end loop;
  return operands;
end
$$;

-- The condition for the expansions of a word; null without any.
create function knowledge_internal.expanded_query(
  word text, expansions knowledge_internal.expansion[]
) returns tsquery
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return (
    select string_agg(distinct knowledge_internal.quoted_lexeme(listed.lexeme), ' | ')::tsquery
      from unnest(expansions) as listed
     where listed.typed = lower(btrim(knowledge_internal.normalised(word)))
  );
end
$$;

-- What a row must have and must not have, each row in its own language; empty for nothing.
-- optional: what a row must have in whose language all that is required are stop words. The
-- required words of a short text may be neighbours inside one word (user name in getUserName). In
-- the language of most chunks: excluded_parts: what is excluded, as typed; dropped_parts: the
-- required phrases, and what is excluded, that have only stop words.
create function knowledge_internal.operand_conditions(
  operands knowledge_internal.query_operand[], configurations regconfig[],
  expansions knowledge_internal.expansion[], optional tsquery default '',
  reads_distances boolean default true,
  out required tsquery, out excluded tsquery, out excluded_parts text[], out dropped_parts text[]
)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  configuration regconfig;
  operand knowledge_internal.query_operand;
  operand_query tsquery;
  required_here tsquery;
  excluded_here tsquery;
  required_groups constant integer[] := array(
    select distinct listed.alternatives from unnest(operands) as listed
     where listed.is_required and not listed.is_excluded
  );
  alternatives tsquery;
  alternatives_group integer;
  unbound tsquery := '';
  chunks constant float8[] := case when cardinality(configurations) > 1
    then knowledge_internal.chunks_of_configurations(
      configurations, knowledge_internal.read_settings()
    ) end;
  usual constant regconfig := configurations[coalesce(
    array_position(chunks, (select max(counted) from unnest(chunks) as counted)), 1
  )];
  conditioned text[] := '{}';
  most_neighbours constant integer := 4;
  words constant text := (
    select string_agg(listed.source, ' ' order by listed.ordinality)
      from unnest(operands) with ordinality as listed
    having bool_and(listed.is_required and not listed.is_phrase and not listed.is_excluded)
       and count(*) between 2 and most_neighbours
  );
begin
  required := '';
  excluded := '';
  foreach configuration in array configurations loop
    required_here := '';
    excluded_here := '';
    alternatives := '';
    alternatives_group := null;
    foreach operand in array operands loop
      continue when not (operand.is_excluded or operand.alternatives = any (required_groups));
      operand_query := case
        when operand.is_phrase or operand.is_excluded
             or translate(operand.source, '0123456789', '') <> operand.source
             or knowledge_internal.joined(operand.source) <> '' then
          knowledge_internal.phrase_query(
            configuration, operand.source, case when reads_distances then operand.further end
          )
        else
          knowledge_internal.whole_words(
            plainto_tsquery(configuration, knowledge_internal.apart(operand.source))
          )
      end;
      if numnode(operand_query) > 0 and configuration = usual then
        conditioned := conditioned || operand.source;
      end if;
      if operand.is_excluded then
        excluded_here := excluded_here || operand_query;
        continue;
      end if;
      if not operand.is_phrase then
        operand_query := operand_query || coalesce(
          knowledge_internal.expanded_query(operand.source, expansions), ''
        );
      end if;
      if operand.alternatives is distinct from alternatives_group then
        required_here := required_here && alternatives;
        alternatives := '';
        alternatives_group := operand.alternatives;
      end if;
      alternatives := alternatives || operand_query;
    end loop;
    required_here := (required_here && alternatives)
      || coalesce(knowledge_internal.phrase_query(configuration, words), '');
    if numnode(required_here) > 0 then
      required := required || knowledge_internal.in_language(
        configuration, configurations, required_here
      );
    else
      unbound := unbound || knowledge_internal.in_language(configuration, configurations, optional);
    end if;
    if numnode(excluded_here) > 0 then
      excluded := excluded || knowledge_internal.in_language(
        configuration, configurations, excluded_here
      );
    end if;
  end loop;
  if numnode(required) > 0 then
    required := required || unbound;
  end if;
  select array_agg(substr(listed.source, 2) order by listed.ordinality) filter (
           where listed.is_excluded and listed.source = any (conditioned)
         ),
         array_agg(listed.source order by listed.ordinality) filter (
           where (listed.is_phrase and listed.is_required or listed.is_excluded)
             and listed.source <> all (conditioned)
         )
    into excluded_parts, dropped_parts
    from unnest(operands) with ordinality as listed;
end
$$;

-- The words of a text and the parts of its compounds, each once whatever its case, as in
-- the type question. What is typed as a word is no part. Of a long text, the first 600 parts
-- divided by the number of configurations are listed.
create function knowledge_internal.typed_words(
  wanted text, configurations regconfig[], expansions knowledge_internal.expansion[],
  out words text[], out word_queries tsquery[], out compounds text[]
)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
declare
  most_readings constant integer := 600; -- of parts, each once in every configuration
begin
  with typed as (
    select distinct on (lower(same.word)) trimmed.word, same.word as normalised, split.place,
           case
             when shape.is_simple then trimmed.word
             else knowledge_internal.apart(trimmed.word)
           end as apart,
           -- The dot before .NET is part of the word.
           case
             when shape.is_simple then ''
             else knowledge_internal.joined(split.word)
           end as joined,
           shape.is_simple
      from regexp_split_to_table(wanted, '\s+') with ordinality as split (word, place)
     cross join lateral btrim(split.word, '.,;:!?()[]{}<>"''`’') as trimmed (word)
     cross join lateral (
             select octet_length(split.word) = length(split.word)
                    and split.word ~ '^[("]?([[:alpha:]][[:lower:]]*|[[:upper:]]+|\d+)[.,;:!?)"]*$'
           ) as shape (is_simple)
     cross join lateral (
             select case when shape.is_simple then trimmed.word
                      else btrim(knowledge_internal.normalised(trimmed.word)) end
           ) as same (word)
     order by lower(same.word), split.place
  ),
  -- A row with one part of a compound is a hit, too.
  part as (
    select typed.word as compound, typed.place, parsed.token as word, parsed.number
      from typed
     cross join lateral (
             select found.token, found.number, count(*) over () as parts
               from ts_parse(
                      'default', typed.apart || knowledge_internal.pieces(typed.normalised)
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
            cross join plainto_tsquery(language.configuration, said.apart) as plain
            cross join lateral (
                    select case
                             when numnode(plain) > 1 or said.joined <> '' then
                               knowledge_internal.phrase_query(language.configuration, said.word)
                             else plain
                           end
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

-- The lexemes by which the words of a text are found, without regard to the chunks. compound: null
-- for a word. role: word; or of a compound whole (all of it as one word), part (a word between its
-- punctuation) or piece (of lruCache lru). Lexemes with the same compound, role and part are one
-- word in several languages. occurrences: of the word or the compound in the text. kept_in: a bit
-- for each configuration, in their order, for which the word is no stop word. spaced: a compound as
-- a phrase, for where it is written in several words; null where its parts are not all of it.
create function knowledge_internal.query_readings(wanted text, configurations regconfig[])
returns table (
  compound text, role text, part text, is_identifier boolean, lexeme text, occurrences integer,
  kept_in bigint, spaced text
)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
declare
  mixed constant text :=
    '^[[:alnum:]]*(?:[[:lower:]]{2}[[:upper:]]|[[:alpha:]]\d|\d[[:alpha:]])[[:alnum:]]*$';
  tokens text[];
  wholes text[]; -- of compounds
  words text;
begin
  tokens := string_to_array(
    regexp_replace(
      regexp_replace(
        knowledge_internal.separated(wanted),
        '(?<!\d),|,(?!\d)|[][(){}<>"`;!?=|#+*~%$…]+'
          '|(?<![[:alnum:]])[&^'']+|[&^'']+(?![-[:alnum:]])',
        ' ', 'g'
      ),
      '(?<!\S)(?:[-_/@:\\]+|\.(?![[:alpha:]]))+|[-_/.@:\\]+(?!\S)|\s+', ' ', 'g'
    ),
    ' '
  );
  select array_agg(token.source order by token.place), array_agg(token.whole order by token.place),
         string_agg(token.source, ' ' order by token.place) filter (where token.whole is null)
    into tokens, wholes, words
    from (
      select split.source, split.place,
             case
               when joined <> '' then
                 -- Not the French article before a name: l'Iran.
                 case when strpos(split.source, '''') = 0
                           or split.source !~ '^[[:lower:]]{1,2}''[[:upper:]]' then joined end
               when split.source ~ mixed then split.source
             end as whole
        from unnest(tokens) with ordinality as split (source, place)
       cross join lateral knowledge_internal.joined(split.source) as joined
      offset 0
    ) as token;

  -- The parser reads a text alike in each configuration, so lexemes at one position are one word.
  return query
  select null::text, 'word', min(found.leading), false, found.lexeme,
         count(distinct found.place)::integer, bit_or(found.kept_in), null::text
    from (
      select analysed.lexeme, position.place,
             bit_or(1::bigint << (language.number - 1)::integer) over (partition by position.place)
               as kept_in,
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
  if array_remove(wholes, null) = '{}' then
    return;
  end if;

  return query
  select found.word, found.role, min(found.leading),
         bool_and(found.role = 'whole' and found.word_is_identifier),
         found.lexeme, found.occurrences, bit_or(found.kept_in),
         min(found.spaced)
    from (
      select lower(typed.source) as word, form.role, analysed.lexeme, typed.occurrences,
             case when form.role = 'whole' then typed.spaced end as spaced,
             typed.is_identifier as word_is_identifier,
             bit_or(1::bigint << (language.number - 1)::integer) over (
               partition by lower(typed.source), form.role, position.place
             ) as kept_in,
             first_value(analysed.lexeme) over (
               partition by lower(typed.source), form.role, position.place
                   order by language.number, analysed.lexeme
             ) as leading
        from (
          select compound.*,
                 case
                   when two.words <> compound.source then two.words
                   when compound.whole <> compound.source then compound.source
                   when translate(split.pieces, E'\f\n ', '') = compound.source
                     then btrim(split.pieces, E'\f\n ')
                 end as spaced,
                 two.words <> compound.source as is_two_words, split.pieces
            from (
              select min(token.source) as source, min(token.whole) as whole,
                     count(*)::integer as occurrences,
                     bool_or(knowledge_internal.is_identifier(token.source)) as is_identifier
                from unnest(tokens, wholes) as token (source, whole)
               where token.whole is not null
               group by lower(token.source)
            ) as compound
           cross join knowledge_internal.pieces(compound.source) as split (pieces)
           cross join knowledge_internal.letters_and_digits_apart(compound.source) as two (words)
        ) as typed
       cross join lateral (
               values
                 ('whole', typed.whole),
                 ('whole', nullif(knowledge_internal.without_v(typed.whole), typed.whole)),
                 (
                   'part',
                   case
                     when typed.whole <> typed.source or typed.is_two_words
                       then knowledge_internal.apart(typed.spaced)
                   end
                 ),
                 ('piece', case when not typed.is_two_words then typed.pieces end)
             ) as form (role, source)
       cross join unnest(configurations) with ordinality as language (configuration, number)
       cross join unnest(to_tsvector(language.configuration, form.source)) as analysed
       cross join unnest(analysed.positions) as position (place)
    ) as found
   group by found.word, found.role, found.lexeme, found.occurrences;
end
$$;

-- The idf of a word as Lucene defines it, ln(1 + (N - df + 0.5) / (df + 0.5)), for N chunks of
-- which df have it. In a corpus of several languages, the chunks in whose language it is a stop
-- word (stop_word_in) count as chunks that have it. probability: that it is none in the query.
create function knowledge_internal.weight_of_word(
  document_count float8, document_frequency float8, stop_word_in float8 default 0,
  probability float8 default 1
) returns float8
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
as $$
declare
  least_probability constant float8 := 0.001;
  frequency constant float8 := least(document_frequency + stop_word_in, document_count);
begin
  return ln(
    1 + greatest(document_count - frequency + 0.5::float8, 0.5::float8) / (frequency + 0.5::float8)
  ) * greatest(probability, least_probability);
end
$$;

-- In the confidence, a number or identifier that no chunk has counts as so many words: room 29 is
-- no answer for room 31.
create function knowledge_internal.absent_number() returns float8
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
as $$
begin
  return 3::float8;
end
$$;

-- The lexemes of a text with their weights. A word's weight is its idf times its occurrences, with
-- the chunks that have any of its readings; an expansion has a share of it. A stop word of one
-- language that no chunk of another has is left out. A compound counts as one word, with the idf of
-- its rarest reading: half of it for the whole, half for the parts by their idf. Where no chunk has
-- the whole, its parts count at most as words do, and what no chunk has counts for the confidence:
-- the other parts, and the whole if it is an identifier or has a digit, which is found as spaced.
create function knowledge_internal.weighed_readings(
  wanted text, configurations regconfig[], expansions knowledge_internal.expansion[],
  settings knowledge_internal.search_settings
)
returns table (
  lexeme text, document_frequency float8, weight float8, reading text, is_identifier boolean,
  spaced text
)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
declare
  short constant text := '^(?:\d{1,2}\W?[[:alpha:]]{1,3}|[[:alpha:]]\W?\d)$';
  -- Of a compound's weight; its parts have the rest. A number is hardly its parts.
  whole_share constant float8 := 0.5;
  number_share constant float8 := 0.85;
  common_identifier constant float8 := 0.02; -- of the chunks: it is a subject, no name
  few constant float8 := 20; -- chunks
  evidence constant float8 := 10; -- how much more likely a stop word is in its language
begin
  return query
  with readings as materialized (
    select * from knowledge_internal.query_readings(wanted, configurations)
  ),
  -- The languages of a text in several. Several stop words of a language make it more likely that
  -- the text is in it; one alone can be a word of another.
  language as materialized (
    select listed.bit, listed.chunks, listed.score / sum(listed.score) over () as probability
      from (
        select counted.chunks, bit.bit,
               greatest(counted.chunks, 1) * evidence ^ (
                 select greatest(count(distinct readings.part) - 1, 0)
                   from readings
                  where readings.role = 'word' and readings.kept_in & bit.bit = 0
               ) as score
          from unnest(
                 case when cardinality(configurations) > 1 then
                   knowledge_internal.chunks_of_configurations(configurations, settings) end
               ) with ordinality as counted (chunks, number)
         cross join lateral (select 1::bigint << (counted.number - 1)::integer) as bit (bit)
      ) as listed
  ),
  -- stop_word_in: the chunks of the languages in which a word is a stop word; probability: that it
  -- is none in this text.
  read as materialized (
    select readings.*, stop_word.stop_word_in, stop_word.probability
      from readings
     cross join lateral (
             select coalesce(sum(language.chunks), 0) as stop_word_in,
                    1 - coalesce(sum(language.probability), 0) as probability
               from language
              where readings.kept_in & language.bit = 0
           ) as stop_word
  ),
  typed as materialized (
    select read.compound, read.role, read.part, read.is_identifier, read.lexeme,
           read.occurrences::float8 as weight, read.stop_word_in, read.probability, read.spaced
      from read
    union all
    select null, 'word', coalesce(read.part, expansion.typed), false, expansion.lexeme,
           expansion.share * coalesce(read.occurrences, 1), 0, 1, null
      from unnest(expansions) as expansion
      left join read on read.role = 'word' and read.lexeme = expansion.typed_lexeme
  ),
  known as (
    select typed.*, frequency.document_frequency,
           least(sum(frequency.document_frequency) over same_reading, settings.document_count)
             as group_frequency,
           typed.role in ('part', 'piece') and typed.lexeme = min(typed.lexeme) over same_reading
             as is_first_of_part
      from (select array_agg(distinct typed.lexeme) from typed) as asked (lexemes)
     cross join unnest(
             asked.lexemes,
             knowledge_internal.document_frequencies(asked.lexemes, settings)
           ) as frequency (lexeme, document_frequency)
      join typed on typed.lexeme = frequency.lexeme
    window same_reading as (partition by typed.compound, typed.role, typed.part)
  ),
  rated as (
    select known.*,
           knowledge_internal.weight_of_word(
             settings.document_count, known.group_frequency, known.stop_word_in, known.probability
           ) as idf,
           bool_or(known.role = 'whole' and known.group_frequency > 0) over same_compound
             as has_whole,
           bool_and(known.group_frequency = 0) over same_compound as is_unknown,
           bool_and(known.group_frequency > 0) filter (where known.role = 'part') over same_compound
             as has_parts,
           bool_or(
             known.is_identifier or translate(known.compound, '0123456789', '') <> known.compound
           ) over same_compound as names_something
      from known
    window same_compound as (partition by known.compound)
  )
  select shared.lexeme, min(shared.document_frequency),
         sum(
           case
             when shared.role = 'word' then shared.weight * shared.idf
             when shared.role = 'whole' and shared.parts_idf is null
               then shared.weight * shared.compound_idf
             when shared.has_whole then shared.weight * shared.compound_idf * case
               when shared.role = 'whole' then shared.of_whole
               else (1 - shared.of_whole) * shared.idf / shared.parts_idf
             end
             else shared.compound_idf * case
               when shared.role = 'whole' then shared.of_whole / (1 - shared.of_whole)
                 -- What is no part counts, too.
                 * case when shared.spaced is null then 2 else 1 end
               when shared.group_frequency = 0 then shared.idf / shared.unknown_idf
               else least(shared.idf / shared.parts_idf, shared.idf / shared.compound_idf)
             end
           end * case when shared.is_absent then knowledge_internal.absent_number() else 1 end
         ),
         min(
           case shared.role
             when 'word' then shared.part
             else shared.compound || ' ' || shared.role || ' ' || shared.part
           end
         ),
         bool_or(
           shared.is_identifier
           and shared.group_frequency > 0
           and shared.group_frequency <= greatest(few, common_identifier * settings.document_count)
         ),
         min(shared.spaced)
    from (
      select rated.*,
             rated.group_frequency = 0 and rated.role in ('word', 'whole') and (
               translate(rated.lexeme, '0123456789', '') <> rated.lexeme or rated.is_identifier
             ) as is_absent,
             case when translate(ltrim(rated.compound, 'v'), '0123456789.,''', '') = ''
               then number_share else whole_share
             end as of_whole,
             max(rated.idf) over same_compound as compound_idf,
             sum(rated.idf) filter (where rated.is_first_of_part and rated.group_frequency > 0)
               over same_compound as parts_idf,
             sum(rated.idf) filter (where rated.is_first_of_part and rated.group_frequency = 0)
               over same_compound as unknown_idf
        from rated
       -- A piece is read where a whole word is in no chunk; so is what no chunk has of a compound
       -- of which a part is known.
       where case
               when rated.role = 'word' then rated.group_frequency > 0 or rated.stop_word_in = 0
               when rated.group_frequency = 0 and rated.is_unknown then rated.role = 'whole'
               when rated.group_frequency = 0 and rated.has_whole then false
               when rated.role = 'whole' then
                 rated.group_frequency > 0 or rated.names_something or not rated.has_parts
               when rated.role = 'part' then
                 -- Of E-4012, the letter alone tells nothing; of 3m it does.
                 not (length(rated.part) = 1 and rated.has_whole and rated.compound !~ short)
               when rated.group_frequency > 0
                 then not rated.has_whole and rated.has_parts is not true
               else rated.has_parts is null
             end
      window same_compound as (partition by rated.compound)
    ) as shared
   group by shared.lexeme;
end
$$;

-- A question with the lexemes of its text, which is normalised, and their weights. It asks for an
-- identifier if it is one sentence with few other words, or quotes it.
create function knowledge_internal.with_lexemes(
  question knowledge_internal.question, wanted text, expansions knowledge_internal.expansion[],
  settings knowledge_internal.search_settings, quoted text default ''
) returns knowledge_internal.question
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  most_lexemes constant integer := 256;
  other_words constant integer := 4; -- without stop words
  -- That the question asks for its identifiers; else it mentions them, and what is not there of
  -- them counts as one word.
  is_subject constant boolean := (
    select count(*) < other_words
           and (
             translate(wanted, '?!', '') = wanted or wanted !~ '[?!][[:space:]]+[^[:space:]]'
           )
      from unnest(question.words, question.compounds) as said (word, compound)
     where said.compound is null and translate(said.word, '0123456789', '') = said.word
       and not knowledge_internal.is_identifier(said.word)
  );
  quoted_words constant tsvector := (
    select string_agg(
             to_tsvector(
               language.configuration, concat_ws(' ', quoted, knowledge_internal.joined(quoted))
             )::text, ' '
           )::tsvector
      from unnest(settings.configurations) as language (configuration)
     where quoted <> ''
  );
begin
  with ordered as (
    select reading.*,
           case when reading.document_frequency = 0 or reading.is_identifier then (
             select string_agg(phrase.query::text, ' | ')::tsquery
               from unnest(settings.configurations) as language (configuration)
              cross join lateral knowledge_internal.phrase_query(
                      language.configuration, reading.spaced
                    ) as phrase (query)
              where reading.spaced is not null and strpos(phrase.query::text, '<') > 0
           ) end as spaced_query,
           row_number() over (order by reading.document_frequency, reading.lexeme) as place
      from knowledge_internal.weighed_readings(
             wanted, settings.configurations, expansions, settings
           ) as reading
  ),
  kept as (
    -- In a very long query, the words that no chunk has are of no use, and those that weigh least
    -- change the order least.
    select ordered.lexeme, ordered.document_frequency, ordered.is_identifier, ordered.spaced_query,
           ordered.place,
           ordered.weight * case
             when ordered.document_frequency = 0 and strpos(ordered.reading, ' ') > 0
                  and not is_subject then 0.5
             else 1
           end as weight,
           min(ordered.place) over (partition by ordered.reading) as number,
           coalesce(
             case when ordered.document_frequency = 0 then ordered.spaced_query end,
             knowledge_internal.quoted_lexeme(ordered.lexeme)::tsquery
           ) as query,
           format('{%s:1}/536870912', knowledge_internal.lexeme_dimension(ordered.lexeme))
             ::extensions.sparsevec as vector
      from ordered
     order by ordered.document_frequency < 1, ordered.weight desc, ordered.lexeme
     limit most_lexemes
  )
  select array_agg(kept.lexeme order by kept.place),
         array_agg(kept.query order by kept.place),
         array_agg(kept.document_frequency order by kept.place),
         array_agg(kept.weight order by kept.place),
         array_agg(kept.vector order by kept.place),
         case when count(*) > count(distinct kept.number)
           then array_agg(kept.number order by kept.place) end,
         string_agg(kept.query::text, ' | ')::tsquery,
         string_agg(concat_ws(' | ', kept.query, kept.spaced_query), ' | ') filter (
           where kept.is_identifier
             and (
               quoted_words @@ kept.query
               or is_subject
             )
         )::tsquery
    into question.lexemes, question.lexeme_queries, question.frequencies, question.weights,
         question.vectors, question.readings, question.matching_query, question.identifier_query
    from kept;
  question.candidate_weights := question.weights;
  question.weight_vector := knowledge_internal.lexeme_vector(question.lexemes, question.weights);
  return question;
end
$$;

-- What a row must have and must not have, in a question whose words are read. is_partial: false
-- where all rows that match are candidates.
create function knowledge_internal.with_requirements(
  question knowledge_internal.question, search_mode text,
  operands knowledge_internal.query_operand[], configurations regconfig[],
  expansions knowledge_internal.expansion[], document_count double precision
) returns knowledge_internal.question
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
declare
  scored_in_full constant float8 := 3000; -- rows
  has_distances constant boolean := exists (
    select from unnest(operands) as operand where operand.further > 0
  );
  conditions constant record := knowledge_internal.operand_conditions(
    operands, configurations, expansions, question.matching_query
  );
begin
  if numnode(conditions.required) > 0 then
    if search_mode = 'websearch' then
      question.relaxed_query := question.matching_query && !!conditions.excluded;
      question.relaxed_parts := array(
        select concat(operand.source, '~' || operand.further)
          from unnest(operands) as operand
         where operand.is_required and not operand.is_excluded
      );
    end if;
    question.matching_query := conditions.required;
    -- GIN finds the words of a phrase, in any order.
    question.required_query := regexp_replace(regexp_replace(
      case
        when has_distances then (
          knowledge_internal.operand_conditions(
            operands, configurations, expansions, question.matching_query, false
          )
        ).required
        else conditions.required
      end::text,
      ''':[A-D]+', '''', 'g'
    ), '<(-|\d+)>', '&', 'g')::tsquery;
    question.indexed_query := case when has_distances then question.required_query end;
  end if;
  question.excluded_parts := conditions.excluded_parts;
  question.dropped_parts := case when search_mode = 'websearch' then conditions.dropped_parts end;
  -- Nothing excluded is an empty condition, and so is its negation.
  question.matching_query := question.matching_query && !!conditions.excluded;
  question.is_optional := numnode(conditions.required || conditions.excluded) = 0;
  -- Few rows have all required words: then all of these rows are candidates.
  question.is_partial := case when expansions = '{}' and (
    select case
             when (search_mode = 'websearch' or cardinality(configurations) > 1)
                  and conditions.required::text like '%|%' then min(word.frequency)
             else document_count * exp(sum(ln(greatest(word.frequency, 1) / document_count)))
           end
      from unnest(question.lexeme_queries, question.frequencies) as word (query, frequency)
     where conditions.required @> word.query
  ) <= scored_in_full then false end;
  return question;
end
$$;

-- Reads a question's text in every language of the corpus and weighs its words by idf. collections:
-- those whose synonyms are used beside the general ones; prefix_last: the last word may be the
-- beginning of a word; scope: null for words of all chunks. Of a long text it reads the first 4,096
-- characters, 512 words (3,000 divided by the number of languages, where these are more than 5),
-- and the 256 lexemes that weigh most.
create function knowledge_internal.read_text(
  query_text text, search_mode text, prefix_last boolean, collections text[],
  scope knowledge_internal.row_scope, settings knowledge_internal.search_settings
) returns knowledge_internal.question
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on
-- Postgres sends a NOTICE for a query of stop words only.
set client_min_messages = warning as $$
declare
  configurations constant regconfig[] := settings.configurations;
  most_words constant integer := 512;
  most_readings constant integer := 3000; -- of words, each once in every configuration
  candidate_factor constant float8 := 3; -- in a long chunk a word has a third of its usual score
  operands knowledge_internal.query_operand[];
  words_read integer;
  typed text; -- without what is excluded
  wanted text;
  expansions knowledge_internal.expansion[] := '{}';
  question knowledge_internal.question;
begin
  question.query_text := query_text;
  if configurations is null then
    return question;
  end if;
  words_read := least(most_words, most_readings / cardinality(configurations));
  operands := knowledge_internal.query_operands(query_text, search_mode, words_read);
  question.ignored_parts := knowledge_internal.ignored_parts(query_text, search_mode, words_read);
  typed := (
    select string_agg(operand.source, ' ' order by operand.ordinality)
      from unnest(operands) with ordinality as operand
     where not operand.is_excluded
  );
  wanted := knowledge_internal.normalised(typed);
  if search_mode <> 'phrase' then
    expansions := knowledge_internal.expansions(
      wanted, configurations, collections,
      -- A word that is followed by a space is complete.
      case when prefix_last then substring(
        knowledge_internal.normalised(query_text)
        from '(?:^|\s)([[:alpha:]' || knowledge_internal.letters_of_words() || ']+)$'
      ) end,
      scope
    );
  end if;
  select read.words, read.word_queries, read.compounds
    into question.words, question.word_queries, question.compounds
    from knowledge_internal.typed_words(typed, configurations, expansions) as read;
  if question.words is null then
    return question;
  end if;

  question := knowledge_internal.with_lexemes(
    question, wanted, expansions, settings,
    (
      select string_agg(knowledge_internal.normalised(operand.source), ' ')
        from unnest(operands) as operand
       where operand.is_phrase and not operand.is_excluded
    )
  );
  if question.lexemes is null then
    return question;
  end if;

  -- A condition for each phrase of at least two words, and what it adds to a chunk that has it.
  select array_agg(phrase.query order by operand.ordinality),
         array_agg(
           (
             select coalesce(sum(word.weight), 0)
               from unnest(question.lexeme_queries, question.weights) as word (query, weight)
              where phrase.query @> word.query
           )
           order by operand.ordinality
         )
    into question.phrase_queries, question.phrase_bonuses
    from unnest(operands) with ordinality as operand
   cross join lateral (
           select string_agg(distinct '(' || reading.query::text || ')', ' | ')::tsquery as query
             from unnest(configurations) as language (configuration)
            cross join lateral knowledge_internal.phrase_query(
                    language.configuration, operand.source, operand.further
                  ) as reading (query)
            where reading.query::text ~ '<' -- two words
         ) as phrase
   where operand.is_phrase and not operand.is_excluded and phrase.query is not null;
  if question.identifier_query is not null then
    select identifier.bonus,
           array(
             select listed.weight + case
                      when listed.query::text
                             = any (string_to_array(question.identifier_query::text, ' | '))
                        then candidate_factor * identifier.bonus
                      else 0
                    end
               from unnest(question.lexeme_queries, question.weights)
                    with ordinality as listed (query, weight, place)
              order by listed.place
           )
      into question.identifier_bonus, question.candidate_weights
      from (
             -- Above every score without an identifier.
             select 1.01 * sum(reachable.score) as bonus
               from (
                 select (settings.k1 + 1) * max(listed.weight)
                   from unnest(question.weights, question.readings)
                        with ordinality as listed (weight, reading, place)
                  group by coalesce(listed.reading, listed.place)
                 union all
                 select unnest(question.phrase_bonuses)
               ) as reachable (score)
           ) as identifier;
    question.weight_vector :=
      knowledge_internal.lexeme_vector(question.lexemes, question.candidate_weights);
  end if;
  if not exists (
    select from unnest(operands) as operand where operand.is_required or operand.is_excluded
  ) then
    question.is_optional := true;
    return question;
  end if;
  return knowledge_internal.with_requirements(
    question, search_mode, operands, configurations, expansions, settings.document_count
  );
end
$$;

-- Whether a word that no chunk has would be replaced by another one.
create function knowledge_internal.has_near_words(question knowledge_internal.question)
returns boolean
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  everything constant knowledge_internal.row_scope :=
    knowledge_internal.row_scope(null, null, null, false, null);
begin
  return exists (
    select
      from jsonb_each(
             coalesce(knowledge_internal.near_words(question, everything), '{}')
               || coalesce(knowledge_internal.words_by_part(question, everything), '{}')
           ) as word
     where word.value <> '{}'
  );
end
$$;

-- Extension point: whether expansions would return any for a text with these words, in lower case
-- and ASCII letters, and their lexemes, in these collections. Each search of plain words calls it:
-- be fast.
create function knowledge_internal.has_expansions(
  words text[], lexemes text[], collections text[]
) returns boolean
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return false;
end
$$;

-- A question in ASCII without operators, phrases and identifiers, in a corpus of one language:
-- is_optional is null for any other text, which read_question reads. A text of words alone is read
-- with two statements; compounds (N-cadherin, p53) are read as there.
create function knowledge_internal.read_plain_question(
  query_text text, settings knowledge_internal.search_settings, collections text[] default null
) returns knowledge_internal.question
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on
-- Postgres sends a NOTICE for a stop word.
set client_min_messages = warning as $$
declare
  longest constant integer := 800; -- characters
  words constant text :=
    '^\s*(?:(?:\(?(?![Oo]'')(?:[A-Za-z][a-z]*|[A-Z]+|[0-9]+)(?:''[a-z]{1,2})?[.,;:!?)]*'
    '|[.,;:!?]+)(?:\s+|$))+$';
  -- In prose, these are words, as in query_operands.
  operators constant text := '(?<!\S)(?:-[[:alnum:]]|[oO][rR](?!\S))';
  -- Each operator of foreign_operators contains one of these; that expression is slow.
  signs constant text[] := '{%AND%,%NOT%,%NEAR%,%ADJ%,%AROUND%,%WITHIN%,%W/%,%W(%,%-(%,%--%,%!%,%+%'
    ',%|%,%&%,%[%,"%{%",%*%,%~%,%^%,%:%}';
  configuration constant regconfig := settings.configurations[1];
  document_count constant double precision := settings.document_count;
  question knowledge_internal.question;
  nodes integer;
  in_scope jsonb; -- frequencies
begin
  if (
    cardinality(settings.configurations) = 1 and settings.frequencies_from <> 'analysis'
    and octet_length(query_text) <= longest and octet_length(query_text) = length(query_text)
    and strpos(query_text, '"') = 0
    and (
      query_text !~ operators
      and (
        query_text not like all (signs) or query_text !~ knowledge_internal.foreign_operators()
      )
      or knowledge_internal.is_prose(query_text, '(?<!\S)(?:-\S+|or)(?!\S)')
    )
  ) is not true then
    return question;
  end if;
  question.query_text := query_text;
  if query_text ~ words then
    with typed as (
      select distinct on (lower(said.word)) said.word, said.place,
             plainto_tsquery(configuration, translate(said.word, '''', ' ')) as query
        from (
          select btrim(split.word, '.,;:!?()') as word, split.place
            from unnest(string_to_array(translate(query_text, E'\t\n\r', '   '), ' '))
                 with ordinality as split (word, place)
           where split.word <> ''
        ) as said
       order by lower(said.word), said.place
    )
    select array_agg(typed.word order by typed.place),
           array_agg(typed.query order by typed.place), max(numnode(typed.query))
      into question.words, question.word_queries, nodes
      from typed
     where numnode(typed.query) > 0;
    if settings.statistics is not null then
      in_scope := knowledge_internal.frequencies_in_scope(
        tsvector_to_array(
          to_tsvector(configuration, translate(query_text, '.,;:!?()''', '         '))
        ),
        settings.statistics
      );
    end if;
    with lexeme as (
      select found.lexeme, found.occurrences, found.dimension,
             coalesce(
               (in_scope ->> found.lexeme)::float8, listed.frequency * document_count,
               knowledge_internal.counted_chunks(found.lexeme)
             ) as frequency
        from (
          select analysed.lexeme, cardinality(analysed.positions)::float8 as occurrences,
                 knowledge_internal.lexeme_dimension(analysed.lexeme) as dimension
            from unnest(
                   to_tsvector(configuration, translate(query_text, '.,;:!?()''', '         '))
                 ) as analysed
        ) as found
        left join public.knowledge_lexeme_statistics as listed
          on listed.lexeme = found.lexeme and settings.frequencies_from = 'copy'
    ),
    weighed as (
      select lexeme.*, ('''' || lexeme.lexeme || '''')::tsquery as query,
             lexeme.occurrences * knowledge_internal.weight_of_word(
               document_count, least(lexeme.frequency, document_count)
             ) * case
               when lexeme.frequency = 0
                    and translate(lexeme.lexeme, '0123456789', '') <> lexeme.lexeme
               then knowledge_internal.absent_number() else 1 end as weight
        from lexeme
    )
    select array_agg(weighed.lexeme order by weighed.frequency, weighed.lexeme),
           array_agg(weighed.query order by weighed.frequency, weighed.lexeme),
           array_agg(weighed.frequency order by weighed.frequency, weighed.lexeme),
           array_agg(weighed.weight order by weighed.frequency, weighed.lexeme),
           array_agg(
             ('{' || weighed.dimension || ':1}/536870912')::extensions.sparsevec
             order by weighed.frequency, weighed.lexeme
           ),
           ('{' || string_agg(weighed.dimension || ':' || weighed.weight::real, ',')
             || '}/536870912')::extensions.sparsevec,
           string_agg('''' || weighed.lexeme || '''', ' | ')::tsquery
      into question.lexemes, question.lexeme_queries, question.frequencies, question.weights,
           question.vectors, question.weight_vector, question.matching_query
      from weighed;
    question.candidate_weights := question.weights;
    -- A word with two lexemes is read as a phrase.
    question.is_optional := case when nodes > 1 then null else true end;
  else
    select read.words, read.word_queries, read.compounds
      into question.words, question.word_queries, question.compounds
      from knowledge_internal.typed_words(query_text, settings.configurations, '{}') as read;
    if question.words is not null then
      question := knowledge_internal.with_lexemes(
        question, knowledge_internal.normalised(query_text), '{}', settings
      );
    end if;
    question.is_optional := nullif(
      num_nonnulls(question.readings, question.identifier_query) = 0, false
    );
  end if;
  if knowledge_internal.has_expansions(
       string_to_array(lower(regexp_replace(query_text, '[^A-Za-z]+', ' ', 'g')), ' '),
       question.lexemes, collections
     )
     -- In a scope, read_question looks for them.
     or settings.statistics is null and 0 = any (question.frequencies)
        and knowledge_internal.has_near_words(question)
  then
    question.is_optional := null;
  end if;
  return question;
end
$$;

-- Reads a question's text, as read_plain_question where that can, which was not tried_plain. Under
-- websearch, a word that no visible chunk has is replaced by the near word that most chunks have.
create function knowledge_internal.read_question(
  query_text text, search_mode text, prefix_last boolean, collections text[],
  scope knowledge_internal.row_scope, settings knowledge_internal.search_settings,
  tried_plain boolean
) returns knowledge_internal.question
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
declare
  characters_read constant integer := 4096; -- as in query_operands
  question knowledge_internal.question;
  corrected text := left(query_text, characters_read);
  replaced jsonb;
  typed text;
  nearest text;
  pattern text;
begin
  if search_mode = 'websearch' and not (prefix_last or tried_plain) then
    question := knowledge_internal.read_plain_question(query_text, settings, collections);
  end if;
  if question.is_optional is null then
    question := knowledge_internal.read_text(
      query_text, search_mode, prefix_last, collections, scope, settings
    );
  end if;
  if search_mode <> 'websearch' then
    return question;
  end if;
  for typed, nearest in
    select word.key, best.near
      from jsonb_each(
             coalesce(knowledge_internal.near_words(question, scope), '{}')
               || coalesce(knowledge_internal.words_by_part(question, scope), '{}')
           ) as word
     cross join lateral (
             select found.key as near
               from jsonb_each_text(word.value) as found
              order by found.value::bigint desc, found.key
              limit 1
           ) as best
  loop
    -- \m and \M know no word that ends in a sign of the scripts of India.
    pattern := '(?<![[:alnum:]])' || regexp_replace(typed, '([^[:alnum:]])', '\\\1', 'g')
      || '(?![[:alnum:]])';
    if corrected ~* pattern then
      corrected := regexp_replace(corrected, pattern, nearest, 'gi');
      replaced := coalesce(replaced, '{}') || jsonb_build_object(typed, nearest);
    end if;
  end loop;
  if replaced is not null then
    question := knowledge_internal.read_text(
      corrected, search_mode, prefix_last, collections, scope, settings
    );
    question.replaced := replaced;
    -- A hit is not said to have pieces of the near word that were not typed.
    select array_agg(word.typed order by word.place), array_agg(word.query order by word.place),
           array_agg(word.compound order by word.place)
      into question.words, question.word_queries, question.compounds
      from unnest(question.words, question.word_queries, question.compounds)
           with ordinality as word (typed, query, compound, place)
     where word.compound is null or strpos(lower(query_text), lower(word.typed)) > 0;
  end if;
  return question;
end
$$;

-- A question of several, for the words to mark: those of all and the parts of their compounds, each
-- once whatever its case, and the lexemes of all.
create function knowledge_internal.words_of_questions(questions knowledge_internal.question[])
returns knowledge_internal.question
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  asked knowledge_internal.question := questions[1];
begin
  if cardinality(questions) > 1 then
    select array_agg(typed.word order by typed.place), array_agg(typed.query order by typed.place),
           array_agg(typed.compound order by typed.place),
           array(select unnest(question.lexemes) from unnest(questions) as question)
      into asked.words, asked.word_queries, asked.compounds, asked.lexemes
      from (
        select distinct on (lower(said.word)) said.*,
               row_number() over (order by question.ordinality, said.ordinality) as place
          from unnest(questions) with ordinality as question
         cross join lateral unnest(question.words, question.word_queries, question.compounds)
                 with ordinality as said (word, query, compound, ordinality)
         order by lower(said.word), said.compound is not null, question.ordinality, said.ordinality
      ) as typed;
  end if;
  return asked;
end
$$;

-- A text as HTML shows it: no character of it is markup.
create function knowledge_internal.escaped_html(source text) returns text
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
as $$
begin
  return replace(replace(replace(replace(replace(
    source, '&', '&amp;'), '<', '&lt;'), '>', '&gt;'), '"', '&quot;'), '''', '&#39;');
end
$$;

-- Extension point: the excerpt of a chunk for the questions of a search, as HTML with their words
-- in <mark>: of up to `fragments` passages, or the beginning of a content without these words.
create function knowledge_internal.marked_snippet(
  content text, content_tsv tsvector, language text, asked knowledge_internal.question,
  fragments integer
) returns text
language plpgsql stable parallel safe security invoker set search_path = pg_catalog, pg_temp as $$
declare
  characters_read constant integer := 20000; -- a content can have megabytes, each hit is parsed
  shown_whole constant integer := 240; -- characters
  source constant text :=
    btrim(regexp_replace(left(content, characters_read), '[[:space:][:cntrl:]]+', ' ', 'g'));
begin
  return ts_headline(
    knowledge_internal.text_configuration(language),
    -- Escaped before the words are marked: ts_headline removes tags of the content.
    knowledge_internal.escaped_html(source),
    array_to_string(
      array(select knowledge_internal.quoted_lexeme(word) from unnest(asked.lexemes) as word), ' | '
    )::tsquery,
    'StartSel=<mark>, StopSel=</mark>, FragmentDelimiter=" … ", ' || case
      when length(source) <= shown_whole then 'HighlightAll=true'
      else format('MaxFragments=%s', fragments)
    end
  );
end
$$;
