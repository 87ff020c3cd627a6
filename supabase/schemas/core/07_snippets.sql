-- 007_snippets: the excerpt of a hit, with its matching words marked.
-- Adds: type lexeme_occurrences, functions searchable_lexemes, matched_parts, combining_marks,
-- compound_parts, with_pairs, lexeme_occurrences, best_passage, whole_characters, snippet,
-- marked_lexemes, marked_snippet. Locks nothing that exists.

-- The lexemes of a text without a heading, as in content_tsv.
create function knowledge_internal.searchable_lexemes(configuration regconfig, source text)
returns text[]
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
as $$
begin
  return tsvector_to_array(
    to_tsvector(
      configuration,
      knowledge_internal.apart_and_joined(source)
        || knowledge_internal.inner_words(knowledge_internal.normalised(source))
    )
  );
end
$$;

-- The parts of a word that match one of the lexemes: start and size in characters, and the position
-- in lexemes. For a compound, the compound, its words and their inner words are compared.
create function knowledge_internal.matched_parts(word text, configuration regconfig, lexemes text[])
returns table (start integer, size integer, place integer)
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
declare
  -- Marks above, below or beside a letter and joiners between letters are part of the word.
  letters constant text := '[:alnum:]\u00AD\u0300-\u036F\u0483-\u0489\u0591-\u05C7\u0610-\u061A'
    '\u064B-\u0670\u06D6-\u06ED\u0900-\u0963\u0966-\u0DFF\u0E31-\u0EFF\u102B-\u109D\u17B4-\u17DD'
    '\u200B-\u200D\u2060\u3099\u309A\uFEFF';
  punctuation constant text := '!"#$%&''()*+,-./:;<=>?@[\]^_`{|}~“”‘’';
begin
  -- Each match includes the characters before the part, so that the sum of lengths gives its start.
  return query
  select piece.start::integer, length(piece.part), array_position(lexemes, found.lexeme)
    from (
      select level.kind,
             trimmed.part,
             sum(length(matched.parts[1])) over (partition by level.kind order by matched.number)
               - length(trimmed.part) + 1 as start
        from (
          values
            (
              'compound',
              '[^' || letters || ']*(?:[' || letters || ']+'
                '(?:[-_/.@:\\\u2010-\u2013\u2212\uFF0D][' || letters || ']+)*'
                '|\d{1,3}(?:,\d{3})+)'
            ),
            (
              'word',
              '[^' || letters || ']*(?:\m[[:alpha:]](?:\+\+|#(?![[:alnum:]]))'
                '|[' || letters || ']+)'
            ),
            (
              'inner word',
              '[^' || letters || ']*(?:[[:upper:]]+|(?![[:upper:]])[' || letters || '])'
                '(?:(?![[:upper:]])[' || letters || '])*'
            )
        ) as level (kind, pattern)
       cross join lateral regexp_matches(matched_parts.word, level.pattern, 'g')
               with ordinality as matched (parts, number)
       cross join lateral (
               select ltrim(matched.parts[1], punctuation) as part offset 0
             ) as trimmed
       where level.kind = 'word'
          or (level.kind = 'inner word' and matched_parts.word ~ '[[:lower:]]{2}[[:upper:]]')
          or (
            level.kind = 'compound'
            and matched_parts.word ~ '[[:alnum:]][^[:alnum:]][[:alnum:]]'
          )
    ) as piece
   cross join lateral unnest(
           tsvector_to_array(
             to_tsvector(
               configuration,
               case piece.kind
                 when 'compound' then knowledge_internal.joined(piece.part)
                 when 'word' then knowledge_internal.apart(piece.part)
                 else piece.part
               end
             )
           )
         ) as found (lexeme)
   where found.lexeme = any (lexemes);
  -- Some words exist only in the normalised text, such as x2 for x².
  if not found then
    return query
    select length(word) - length(ltrim(word, punctuation)) + 1,
           length(btrim(word, punctuation)),
           array_position(lexemes, found.lexeme)
      from unnest(knowledge_internal.searchable_lexemes(configuration, word)) as found (lexeme)
     where found.lexeme = any (lexemes);
  end if;
end
$$;

-- A regular expression for characters that belong to the character before them: accents, vowels,
-- tone marks and emoji joiners.
create function knowledge_internal.combining_marks() returns text
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
begin
  return '[\u0300-\u036F\u0E31\u0E34-\u0E3A\u0E47-\u0E4E\u0EB1\u0EB4-\u0EBC'
    '\u0EC8-\u0ECE\u102B-\u103E\u1056-\u1059\u105E-\u1060\u1062-\u1064\u1067-\u106D\u1071-\u1074'
    '\u1082-\u108D\u108F\u109A-\u109D\u17B4-\u17D3\u17DD\u200D\u3099\u309A\uA9E5\uAA7B-\uAA7D'
    '\uFE0F]';
end
$$;

-- The occurrences of lexemes in a text, in text order: first and last character, and the position
-- in lexemes. highlighted: all these characters.
create type knowledge_internal.lexeme_occurrences as (
  starts integer[],
  finishes integer[],
  places integer[],
  highlighted int4multirange
);

-- matched_parts for each of the words, without those that have none of the lexemes.
create function knowledge_internal.compound_parts(
  words text[], configuration regconfig, lexemes text[]
) returns table (word text, start integer, size integer, place integer)
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
as $$
begin
  if words <> '{}'
    and knowledge_internal.searchable_lexemes(configuration, array_to_string(words, ' ')) && lexemes
  then
    return query
    select listed.word, found.start, found.size, found.place
      from unnest(words) as listed (word)
     cross join lateral knowledge_internal.matched_parts(listed.word, configuration, lexemes)
             as found
     where knowledge_internal.searchable_lexemes(configuration, listed.word) && lexemes;
  end if;
end
$$;

-- Adds to occurrences those of lexemes that are letters, or pairs of letters, of scripts without
-- spaces.
create function knowledge_internal.with_pairs(
  occurrences knowledge_internal.lexeme_occurrences, source text, lexemes text[]
) returns knowledge_internal.lexeme_occurrences
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
declare
  -- The letters that inner_words also indexes as single letters.
  inner_letters constant text := '[\u3007\u3400-\u9FFF\uAC00-\uD7A3\uF900-\uFAFF'
    '\U00020000-\U0003FFFD]';
  marks constant text := knowledge_internal.combining_marks();
  pairs text[];
begin
  pairs := array(
    select query_lexeme.lexeme
      from unnest(lexemes) as query_lexeme (lexeme)
     where query_lexeme.lexeme ~ knowledge_internal.unspaced_letters()
       and (length(query_lexeme.lexeme) > 1 or query_lexeme.lexeme ~ inner_letters)
  );
  if pairs = '{}' then
    return occurrences;
  end if;
  select array_agg(occurrence.start), array_agg(occurrence.finish), array_agg(occurrence.place),
         range_agg(int4range(occurrence.start, occurrence.finish, '[]'))
    into occurrences.starts, occurrences.finishes, occurrences.places, occurrences.highlighted
    from (
      select listed.start, listed.finish, listed.place
        from unnest(occurrences.starts, occurrences.finishes, occurrences.places)
             as listed (start, finish, place)
      union all
      select letter.start::integer, (letter.start + length(pair.lexeme) - 1)::integer,
             array_position(lexemes, pair.lexeme)
        from (
          select written.character,
                 lead(written.character) over in_order as next,
                 sum(length(written.character)) over in_order
                   - length(written.character) + 1 as start
            from string_to_table(
                   case
                     when source ~ marks
                       then regexp_replace(source, '(?!' || marks || ')', E'\x01', 'g')
                     else array_to_string(string_to_array(source, null), E'\x01')
                   end,
                   E'\x01'
                 ) with ordinality as written (character, number)
          window in_order as (order by written.number rows unbounded preceding)
        ) as letter
       cross join lateral (
               values (letter.character || letter.next), (letter.character)
             ) as pair (lexeme)
       where pair.lexeme = any (pairs)
       order by start, finish
    ) as occurrence;
  return occurrences;
end
$$;

-- A regular expression for the letters that apart splits into pairs: Thai, Lao, Myanmar, Khmer,
-- kana, Bopomofo, Han, Hangul.
create function knowledge_internal.unspaced_letters() returns text
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
begin
  return '[\u0E01-\u0E4E\u0E81-\u0ECE\u0EDC-\u0EDF\u1000-\u103F\u1050-\u108F'
    '\u109A-\u109D\u1780-\u17D3\u17D7\u17DC\u17DD\u3005-\u3007\u3041-\u30FF\u3105-\u312F'
    '\u31A0-\u31BF\u31F0-\u31FF\u3400-\u4DBF\u4E00-\u9FFF\uA9E0-\uA9EF\uA9FA-\uA9FE\uAA60-\uAA7F'
    '\uAC00-\uD7A3\uF900-\uFAFF\U00020000-\U0003FFFD]';
end
$$;

-- The positions of the words of a text that have one of the lexemes.
create function knowledge_internal.lexeme_occurrences(
  source text, configuration regconfig, lexemes text[]
) returns knowledge_internal.lexeme_occurrences
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
declare
  punctuation constant text := '!"$%()*,.:;=?[]^`{|}~''“”‘’„«»…—';
  -- Words that apart, joined or inner_words change. The parser reads all others as one word each.
  compounds constant text := '[-_/\\@#+<>&]|[.:''’][[:alnum:]]'
      '|[[:alnum:]][]!"$%()*,;=?[^`{|}~“”…—]+[[:alnum:]]'
      '|[[:lower:]]{2}[[:upper:]]|[[:alpha:]]\d|\d[[:alpha:]]'
    || case when source = knowledge_internal.normalised(source) then '' else '|[^\x01-\x7F]' end;
  spaced constant text := case
    when octet_length(source) = length(source) then source
    else regexp_replace(source, knowledge_internal.unspaced_letters(), ' ', 'g')
  end;
  occurrences knowledge_internal.lexeme_occurrences;
begin
  with word as materialized (
    select split.word,
           (
             sum(length(split.word) + 1) over (order by split.number rows unbounded preceding)
             - length(split.word) - 1
           )::integer as before
      from string_to_table(spaced, ' ') with ordinality as split (word, number)
  ),
  form as materialized (
    select distinct word.word, word.word ~ compounds as is_compound from word
  ),
  part as (
    select form.word,
           length(form.word) - length(ltrim(form.word, punctuation)) + 1 as first,
           length(rtrim(form.word, punctuation)) as last,
           array_position(lexemes, found.lexeme) as place
      from form
     cross join lateral unnest(
             tsvector_to_array(to_tsvector(configuration, form.word))
           ) as found (lexeme)
     where not form.is_compound
       and found.lexeme = any (lexemes)
    union all
    select found.word, found.start, found.start + found.size - 1, found.place
      from knowledge_internal.compound_parts(
             array(select form.word from form where form.is_compound), configuration, lexemes
           ) as found
  )
  select array_agg(occurrence.start), array_agg(occurrence.finish), array_agg(occurrence.place),
         range_agg(int4range(occurrence.start, occurrence.finish, '[]'))
    into occurrences.starts, occurrences.finishes, occurrences.places, occurrences.highlighted
    from (
      select word.before + part.first as start, word.before + part.last as finish, part.place
        from word
        join part on part.word = word.word
       order by start, finish
    ) as occurrence;
  return case
    when spaced <> source then knowledge_internal.with_pairs(occurrences, source, lexemes)
    else occurrences
  end;
end
$$;

-- The passage of at most passage_size characters with the largest sum of lexeme weights; null
-- without occurrences. The weights are 1, 1/2, 1/3 ..., rarest lexeme first; each lexeme counts
-- once.
create function knowledge_internal.best_passage(
  starts integer[], finishes integer[], places integer[], lexeme_count integer,
  passage_size integer, out passage_start integer, out passage_finish integer
)
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
as $$
declare
  unit constant integer := 1000000; -- weights are whole numbers, so that sums are exact
  counts integer[] := array_fill(0, array[lexeme_count]);
  worth bigint := 0;
  best_worth bigint := 0;
  leftmost integer := 1;
begin
  for rightmost in 1 .. cardinality(starts) loop
    worth := worth + case counts[places[rightmost]] when 0 then unit / places[rightmost] else 0 end;
    counts[places[rightmost]] := counts[places[rightmost]] + 1;
    while leftmost < rightmost
      and (
        counts[places[leftmost]] > 1 or finishes[rightmost] - starts[leftmost] >= passage_size
      ) loop
      counts[places[leftmost]] := counts[places[leftmost]] - 1;
      worth := worth - case counts[places[leftmost]] when 0 then unit / places[leftmost] else 0 end;
      leftmost := leftmost + 1;
    end loop;
    if worth > best_worth
      or (
        worth = best_worth
        and finishes[rightmost] - starts[leftmost] < passage_finish - passage_start
      ) then
      best_worth := worth;
      passage_start := starts[leftmost];
      passage_finish := finishes[rightmost];
    end if;
  end loop;
end
$$;

-- The bounds of an excerpt, moved so that no character is cut off from its accents or vowels. Of
-- more than 40 marks on the last character, 40 are kept.
create function knowledge_internal.whole_characters(
  source text, passage_start integer, inout first integer, inout last integer
)
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
declare
  marks constant text := knowledge_internal.combining_marks();
begin
  while first > 1 and first < passage_start and substr(source, first, 1) ~ marks loop
    first := first + 1;
  end loop;
  last := last + length(substring(substr(source, last + 1, 40) from '^' || marks || '*'));
end
$$;

-- An excerpt of about 240 characters from the first 20,000 of a content, where most of the lexemes
-- (rarest first) are close together. Each matching word is in <mark>, other text is HTML-escaped.
-- White space and control characters become one space; … means that text was left out. Without
-- lexemes, or if none occurs, the excerpt is the beginning of the content.
create function knowledge_internal.snippet(content text, configuration regconfig, lexemes text[])
returns text
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
declare
  characters_read constant integer := 20000;
  excerpt_size constant integer := 240;
  passage_size constant integer := 200;
  boundary_distance constant integer := 40; -- maximum distance from a cut to a gap between words
  source constant text := btrim(
    regexp_replace(
      left(content, characters_read), '(?! )[\s[:cntrl:]]|[\s[:cntrl:]]{2,}', ' ', 'g'
    )
  );
  occurrences knowledge_internal.lexeme_occurrences;
  passage_start integer := 1;
  passage_finish integer := 0;
  first integer;
  last integer;
begin
  if lexemes <> '{}' then
    occurrences := knowledge_internal.lexeme_occurrences(source, configuration, lexemes);
  end if;
  if occurrences.starts is not null then
    select passage.passage_start,
           least(passage.passage_finish, passage.passage_start + passage_size)
      into passage_start, passage_finish
      from knowledge_internal.best_passage(
             occurrences.starts, occurrences.finishes, occurrences.places, cardinality(lexemes),
             passage_size
           ) as passage;
  end if;

  select cut.first, least(length(source), cut.first + excerpt_size - 1)
    into first, last
    from (
      select case
               when passage_finish <= excerpt_size - boundary_distance then 1
               else greatest(
                 1,
                 least(
                   passage_start - (excerpt_size - (passage_finish - passage_start)) / 2,
                   length(source) - excerpt_size + 1
                 )
               )
             end as first
    ) as cut;
  if length(source) > excerpt_size then
    -- The cuts move to a gap between words.
    select case
             when first > 1 and substr(source, first - 1, 1) <> ' '
               and gap.before <= boundary_distance then first + gap.before
             else first
           end,
           case
             when last < length(source) and substr(source, last + 1, 1) <> ' '
               and gap.after <= boundary_distance then last - gap.after
             else last
           end
      into first, last
      from (
        select strpos(substr(source, first, passage_start - first), ' ') as before,
               strpos(reverse(substr(source, passage_finish + 1, last - passage_finish)), ' ')
                 as after
      ) as gap;
    if octet_length(source) <> length(source) then
      select moved.first, moved.last
        into first, last
        from knowledge_internal.whole_characters(source, passage_start, first, last) as moved;
    end if;
  end if;

  return (
    select case when first > 1 then '… ' else '' end
             || coalesce(
               string_agg(
                 case
                   when piece.is_marked then '<mark>' || escaped.text || '</mark>'
                   else escaped.text
                 end,
                 '' order by piece.range
               ),
               ''
             )
             || case
               when last < length(source) or length(content) > characters_read then ' …'
               else ''
             end
      from (
        select unnest(excerpt.range * occurrences.highlighted) as range, true as is_marked
          from (values (int4multirange(int4range(first, last + 1)))) as excerpt (range)
        union all
        select unnest(excerpt.range - coalesce(occurrences.highlighted, '{}')), false
          from (values (int4multirange(int4range(first, last + 1)))) as excerpt (range)
      ) as piece
     cross join lateral (
             select replace(
                      replace(
                        replace(
                          replace(
                            replace(
                              substr(
                                source, lower(piece.range), upper(piece.range) - lower(piece.range)
                              ),
                              '&', '&amp;'
                            ),
                            '<', '&lt;'
                          ),
                          '>', '&gt;'
                        ),
                        '"', '&quot;'
                      ),
                      '''', '&#39;'
                    ) as text
           ) as escaped
  );
end
$$;

-- The lexemes that are marked in the snippet of a chunk. A letter or a number of up to three digits
-- that was typed only as a part of a compound (E in E-1042) is marked only in a chunk that has all
-- parts of the compound and not the compound as one word.
create function knowledge_internal.marked_lexemes(
  content_tsv tsvector, configuration regconfig, asked knowledge_internal.asked_words
) returns text[]
language plpgsql stable parallel safe security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
begin
  return array(
    select word.lexeme
      from unnest(asked.lexemes) as word (lexeme)
     where word.lexeme not in (
             select lower(part.word)
               from unnest(asked.words, asked.compounds) as part (word, compound)
              where part.compound is not null
                and part.word ~ '^(?:\d{1,3}|[[:upper:][:lower:]])$'
                -- The parts are all that can be marked where the compound is written as separate
                -- words.
                and (
                  not content_tsv
                        @@ asked.word_queries[array_position(asked.words, part.compound)]
                  or content_tsv
                       @@ plainto_tsquery(configuration, knowledge_internal.joined(part.compound))
                )
           )
  );
end
$$;

-- The snippet of a chunk for the questions of a search, with their marked_lexemes.
create function knowledge_internal.marked_snippet(
  content text, content_tsv tsvector, language text, asked knowledge_internal.asked_words
) returns text
language plpgsql stable parallel safe security invoker set search_path = pg_catalog, pg_temp
-- Postgres sends a NOTICE for a query of stop words only.
set client_min_messages = warning as $$
declare
  configuration constant regconfig := knowledge_internal.text_configuration(language);
begin
  return knowledge_internal.snippet(
    content,
    configuration,
    case
      when array_remove(asked.compounds, null) <> '{}'
        then knowledge_internal.marked_lexemes(content_tsv, configuration, asked)
      else asked.lexemes
    end
  );
end
$$;
