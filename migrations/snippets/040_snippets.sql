-- 040_snippets: excerpts cut at sentences, with words marked as the search reads them.
-- Module: snippets.
-- Adds: functions lexemes_read_as, words_with, matched_parts, combining_marks, lexeme_occurrences,
-- best_passage, excerpt_around and snippet. Replaces marked_snippet. Locks nothing that exists.
-- Written from supabase/schemas/modules/snippets/40_snippets.sql by `make baseline`: edit that file.

-- The lexemes of a text that is read as words, as compounds, as it stands (inner word), or as in
-- content_tsv (whole).
create function knowledge_internal.lexemes_read_as(
  kind text, source text, configuration regconfig
) returns text[]
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
as $$
begin
  if kind = 'whole' then
    source := knowledge_internal.normalised(source);
  end if;
  return tsvector_to_array(
    to_tsvector(
      configuration,
      case kind
        when 'word' then knowledge_internal.apart(source)
        when 'compound' then knowledge_internal.joined(source)
        when 'whole' then
          knowledge_internal.apart(source) || ' ' || knowledge_internal.joined(source)
            || knowledge_internal.inner_words(source)
        else source
      end
    )
  );
end
$$;

-- Those of the words which, read as this kind, have one of the lexemes. Few of many have one, so
-- that halving is faster than one look at each.
create function knowledge_internal.words_with(
  kind text, words text[], configuration regconfig, lexemes text[]
) returns text[]
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
as $$
declare
  half constant integer := cardinality(words) / 2;
begin
  if not knowledge_internal.lexemes_read_as(kind, array_to_string(words, ' '), configuration)
           && lexemes then
    return '{}';
  end if;
  if half = 0 then
    return words;
  end if;
  return knowledge_internal.words_with(kind, words[:half], configuration, lexemes)
    || knowledge_internal.words_with(kind, words[half + 1:], configuration, lexemes);
end
$$;

-- The parts of words that match one of the lexemes: the position of the word in words, start and
-- size in characters, and the position in lexemes. Of a compound, the compound, its words and their
-- inner words are compared.
create function knowledge_internal.matched_parts(
  words text[], configuration regconfig, lexemes text[]
)
returns table (word integer, start integer, size integer, place integer)
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
declare
  -- Marks above, below or beside a letter and joiners between letters are part of the word.
  letters constant text := '[:alnum:]' || knowledge_internal.invisible_characters()
    || '\u0300-\u036F\u0483-\u0489\u0591-\u05C7\u0610-\u061A\u0640\u064B-\u0670\u06D6-\u06ED'
      '\u0900-\u0963\u0966-\u0DFF\u0E31-\u0EFF\u102B-\u109D\u17B4-\u17DD\u3099\u309A';
  punctuation constant text := '!"#$%&''()*+,-./:;<=>?@[\]^_`{|}~“”‘’';
  joiners constant text := '[-_/.@:\\&^''’´\u02B9-\u02BF\u2010-\u2013\u2212\uFF0D]';
  raised constant text := '[\u00B2\u00B3\u00B9\u00BC-\u00BE\u2070-\u207B\u2150-\u215F]';
begin
  -- Most often, no word has any of the lexemes.
  if not knowledge_internal.lexemes_read_as('whole', array_to_string(words, ' '), configuration)
           && lexemes then
    return;
  end if;
  return query
  -- Each match includes the characters before the part, so that the sum of lengths gives its start.
  with piece as materialized (
    select given.number as word, level.kind, level.kind = 'word' and given.is_plain as is_sure,
           trimmed.part,
           sum(length(matched.parts[1])) over in_word - length(trimmed.part) + 1 as start
      from (
        -- Without powers, a word of the text is a word of content_tsv.
        select listed.word, listed.number,
               strpos(knowledge_internal.normalised(listed.word), '^') = 0 as is_plain
          from unnest(words) with ordinality as listed (word, number)
        offset 0
      ) as given
     cross join lateral (
             values
               (
                 'compound',
                 given.word ~ ('[[:alnum:]](?:[^[:alnum:]][[:alnum:]]|' || raised || ')'),
                 '(?:[' || letters || ']+(?:' || joiners || '[' || letters || ']+)*' || raised
                   || '*|\d{1,3}(?:[,.''’]\d{2,3})+(?:[,.]\d+)?)'
               ),
               (
                 'word', true, '(?:\m[[:alpha:]](?:\+\+|#(?![[:alnum:]]))|[' || letters || ']+)'
               ),
               (
                 'inner word',
                 given.word ~ '[[:lower:]]{2}[[:upper:]]',
                 '(?:[[:upper:]]+|(?![[:upper:]])[' || letters || '])'
                   '(?:(?![[:upper:]])[' || letters || '])*'
               )
           ) as level (kind, is_in_word, pattern)
     cross join lateral regexp_matches(given.word, '[^' || letters || ']*' || level.pattern, 'g')
             with ordinality as matched (parts, number)
     cross join lateral (select ltrim(matched.parts[1], punctuation) as part offset 0) as trimmed
     where level.is_in_word
    window in_word as (partition by given.number, level.kind order by matched.number)
  ),
  wanted as materialized (
    select distinct piece.kind, piece.part from piece
  ),
  part as materialized (
    select matching.kind, matching.part, array_position(lexemes, found.lexeme) as place
      from (
        select wanted.kind, wanted.part from wanted
         where wanted.kind = 'inner word'
            or wanted.kind = 'word' and wanted.part collate "C" ~ '^[[:alnum:]]*$'
        union all
        select listed.kind, unnest(
                 knowledge_internal.words_with(listed.kind, listed.parts, configuration, lexemes)
               )
          from (
            select wanted.kind, array_agg(wanted.part) as parts
              from wanted
             where wanted.kind = 'compound'
                or wanted.kind = 'word' and wanted.part collate "C" !~ '^[[:alnum:]]*$'
             group by wanted.kind
          ) as listed
      ) as matching
     cross join lateral unnest(
             tsvector_to_array(
               to_tsvector(
                 configuration,
                 case matching.kind
                   when 'compound' then knowledge_internal.joined(matching.part)
                   when 'word' then knowledge_internal.apart(matching.part)
                   else matching.part
                 end
               )
             )
           ) as found (lexeme)
     where found.lexeme = any (lexemes)
  ),
  -- Another part may be no word of content_tsv (Sheet5 of showSheet5).
  matched as materialized (
    select piece.word::integer as word, piece.start::integer as start, length(piece.part) as size,
           part.place,
           bool_or(piece.is_sure) over (partition by piece.word) as is_sure
      from piece
      join part on part.part = piece.part and part.kind = piece.kind
  ),
  searchable as materialized (
    select array_position(words, listed.word) as word, listed.word as source
      from unnest(
             knowledge_internal.words_with(
               'whole',
               array(
                 select words[doubtful.word]
                   from (
                     select generate_subscripts(words, 1) as word
                     except
                     select matched.word from matched where matched.is_sure
                   ) as doubtful
               ),
               configuration, lexemes
             )
           ) as listed (word)
  )
  select matched.word, matched.start, matched.size, matched.place
    from matched
   where matched.is_sure or matched.word in (select searchable.word from searchable)
  union all
  -- Some words exist only in the normalised text, such as x2 for x².
  select searchable.word,
         length(searchable.source) - length(ltrim(searchable.source, punctuation)) + 1,
         length(btrim(searchable.source, punctuation)), array_position(lexemes, found.lexeme)
    from searchable
   cross join lateral unnest(
           knowledge_internal.lexemes_read_as('whole', searchable.source, configuration)
         ) as found (lexeme)
   where found.lexeme = any (lexemes)
     and searchable.word not in (select matched.word from matched);
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
-- in lexemes; null without any. highlighted: all these characters.
create function knowledge_internal.lexeme_occurrences(
  source text, configuration regconfig, lexemes text[], out starts integer[],
  out finishes integer[], out places integer[], out highlighted int4multirange
)
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
declare
  punctuation constant text := '!"$%()*,.:;=?[]^`{|}~''“”‘’„«»…—';
  -- Words that apart, joined or inner_words change. The parser reads all others as one word each.
  compounds constant text := '[-_/\\@#+<>&]|[.:''’][[:alnum:]]'
      '|[[:alnum:]][]!"$%()*,;=?[^`{|}~“”…—]+[[:alnum:]]'
      '|[[:lower:]]{2}[[:upper:]]|[[:alpha:]]\d|\d[[:alpha:]]'
    || case
      when replace(source, '’', '''') = knowledge_internal.normalised(source) then ''
      else '|[^\x01-\x7F]'
    end;
  -- The letters that apart splits into pairs: Thai, Lao, Myanmar, Khmer, kana, Bopomofo, Han,
  -- Hangul.
  unspaced_letters constant text := '[\u0E01-\u0E4E\u0E81-\u0ECE\u0EDC-\u0EDF\u1000-\u103F'
    '\u1050-\u108F\u109A-\u109D\u1780-\u17D3\u17D7\u17DC\u17DD\u3005-\u3007\u3041-\u30FF'
    '\u3105-\u312F\u31A0-\u31BF\u31F0-\u31FF\u3400-\u4DBF\u4E00-\u9FFF\uA9E0-\uA9EF\uA9FA-\uA9FE'
    '\uAA60-\uAA7F\uAC00-\uD7A3\uF900-\uFAFF\U00020000-\U0003FFFD]';
  -- Those that inner_words also indexes as single letters.
  inner_letters constant text := '[' || knowledge_internal.letters_found_alone() || ']';
  marks constant text := knowledge_internal.combining_marks();
  spaced constant text := case
    when octet_length(source) = length(source) then source
    else regexp_replace(source, unspaced_letters, ' ', 'g')
  end;
  pairs text[] := '{}';
  -- Thai and Lao write the vowel am as one character or as two.
  has_am_apart constant boolean := source ~ '[\u0E4D\u0ECD]';
begin
  if spaced <> source then
    pairs := array(
      select asked.lexeme
        from unnest(lexemes) as asked (lexeme)
       where asked.lexeme ~ unspaced_letters
         and (length(asked.lexeme) > 1 or asked.lexeme ~ inner_letters)
    );
  end if;
  with word as materialized (
    select split.word,
           (
             sum(length(split.word) + 1) over (order by split.number rows unbounded preceding)
             - length(split.word) - 1
           )::integer as before
      from string_to_table(spaced, ' ') with ordinality as split (word, number)
  ),
  -- Each different word once, compounds first.
  form as materialized (
    select row_number() over (order by listed.is_compound desc) as number, listed.*
      from (
        select word.word, word.word ~ compounds as is_compound, array_agg(word.before) as places
          from word
         group by word.word
      ) as listed
  ),
  part as (
    select form.number,
           length(form.word) - length(ltrim(form.word, punctuation)) + 1 as first,
           length(rtrim(form.word, punctuation)) as last,
           array_position(lexemes, found.lexeme) as place
      from form
     cross join unnest(tsvector_to_array(to_tsvector(configuration, form.word))) as found (lexeme)
     where not form.is_compound
       and found.lexeme = any (lexemes)
    union all
    select found.word, found.start, found.start + found.size - 1, found.place
      from knowledge_internal.matched_parts(
             array(select form.word from form where form.is_compound order by form.number),
             configuration, lexemes
           ) as found
  ),
  letter as (
    select written.character,
           lead(written.character) over in_order as next,
           (
             sum(length(written.character)) over in_order - length(written.character) + 1
           )::integer as start
      from string_to_table(
             case
               when source ~ marks
                 then regexp_replace(source, '(?!' || marks || ')', E'\x01', 'g')
               else array_to_string(string_to_array(source, null), E'\x01')
             end,
             E'\x01'
           ) with ordinality as written (character, number)
     where pairs <> '{}'
    window in_order as (order by written.number rows unbounded preceding)
  )
  select array_agg(occurrence.start), array_agg(occurrence.finish), array_agg(occurrence.place),
         range_agg(int4range(occurrence.start, occurrence.finish, '[]'))
    into starts, finishes, places, highlighted
    from (
      select word.before + part.first as start, word.before + part.last as finish, part.place
        from part
        join form on form.number = part.number
       cross join unnest(form.places) as word (before)
      union all
      select letter.start, letter.start + length(written.pair) - 1,
             array_position(lexemes, pair.lexeme)
        from letter
       cross join lateral (
               values (letter.character || letter.next), (letter.character)
             ) as written (pair)
       cross join lateral (
               select case
                        when has_am_apart then knowledge_internal.normalised(written.pair)
                        else written.pair
                      end
             ) as pair (lexeme)
       where pair.lexeme = any (pairs)
       order by start, finish
    ) as occurrence;
end
$$;

-- The passage of at most passage_size characters with the largest sum of lexeme weights. The
-- weights are 1, 1/2, 1/3 ..., rarest lexeme first; each lexeme counts once, and those that are
-- shown already less than all others. Null without occurrences.
create function knowledge_internal.best_passage(
  starts integer[], finishes integer[], places integer[], shown integer[], lexeme_count integer,
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
  for rightmost in 1 .. coalesce(cardinality(starts), 0) loop
    worth := worth + case
      when counts[places[rightmost]] > 0 then 0
      when places[rightmost] = any (shown) then 1
      else unit / places[rightmost]
    end;
    counts[places[rightmost]] := counts[places[rightmost]] + 1;
    while leftmost < rightmost
      and (
        counts[places[leftmost]] > 1 or finishes[rightmost] - starts[leftmost] >= passage_size
      ) loop
      counts[places[leftmost]] := counts[places[leftmost]] - 1;
      worth := worth - case
        when counts[places[leftmost]] > 0 then 0
        when places[leftmost] = any (shown) then 1
        else unit / places[leftmost]
      end;
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

-- The first and the last character of an excerpt around a passage (1 and 0: the beginning):
-- excerpt_size characters, cut between words, or with has_sentences as many whole sentences as fit
-- into them, or else those of the passage, if they have at most 240.
create function knowledge_internal.excerpt_around(
  source text, passage_start integer, passage_finish integer, excerpt_size integer,
  has_sentences boolean, out first integer, out last integer
)
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
declare
  boundary_distance constant integer := 40; -- maximum distance from a cut to a gap between words
  longest constant integer := 240;
  -- After an abbreviation comes a small letter.
  sentence_end constant text := '(?:[.!?…؟।]["”’»)\]]* (?![[:lower:]])'
    '|[。！？]["”」』）]*(?!["”」』）]))';
  source_size constant integer := length(source);
  leading_marks constant text := case
    when octet_length(source) = source_size then ''
    else '^' || knowledge_internal.combining_marks() || '*'
  end;
  earliest integer := greatest(1, passage_finish - longest + 1);
begin
  if has_sentences then
    -- Not after the passage, which is no word in a text without the lexemes.
    first := least(passage_start, earliest + coalesce(
      length(
        substring(substr(source, earliest, passage_start - earliest + 1) from '^.*' || sentence_end)
      ),
      case when earliest = 1 then 0 end
    ));
    last := case
      when source_size - first < excerpt_size then source_size
      else passage_finish + length(rtrim(coalesce(
        substring(
          substr(source, passage_finish + 1, greatest(0, first + excerpt_size - passage_finish))
            from '^.*' || sentence_end
        ),
        substring(
          substr(source, passage_finish + 1, first + longest - passage_finish)
            from '^.*?' || sentence_end
        )
      )))
    end;
    -- The sentences before, as far as they fit.
    earliest := least(first, greatest(1, last - excerpt_size + 1));
    first := case
      when earliest = 1 then 1
      else coalesce(
        earliest + length(
          substring(substr(source, earliest, first - earliest + 1) from '^.*?' || sentence_end)
        ),
        first
      )
    end;
  end if;
  if last is null then
    first := case
      when passage_finish <= excerpt_size - boundary_distance then 1
      else greatest(1, least(
        passage_start - (excerpt_size - passage_finish + passage_start) / 2,
        source_size - excerpt_size + 1
      ))
    end;
    last := least(source_size, first + excerpt_size - 1);
    select first + case
             when first > 1 and substr(source, first - 1, 1) <> ' '
               and gap.before <= boundary_distance then gap.before
             else 0
           end,
           last - case
             when last < source_size and substr(source, last + 1, 1) <> ' '
               and gap.after <= boundary_distance then gap.after
             else 0
           end
      into first, last
      from (
        select strpos(substr(source, first, passage_start - first), ' ') as before,
               strpos(reverse(substr(source, passage_finish + 1, last - passage_finish)), ' ')
                 as after
      ) as gap;
  end if;
  -- No letter is cut off from its marks. Of more than 40 marks on the last letter, 40 are kept.
  first := case
    when first = 1 then 1
    else first
      + length(substring(substr(source, first, passage_start - first) from leading_marks))
  end;
  last := last + length(substring(substr(source, last + 1, 40) from leading_marks));
end
$$;

-- Up to `fragments` excerpts from the first 20,000 characters of a content, in text order: one of
-- about 240 characters where most of the lexemes (rarest first) are close together, or several of
-- about 160 in whole sentences, which show different lexemes first. Each matching word is in
-- <mark>, other text is HTML-escaped. White space and control characters become one space; … means
-- that text was left out. Without lexemes, or if none occurs, the excerpt is the beginning of the
-- content.
create function knowledge_internal.snippet(
  content text, configuration regconfig, lexemes text[], fragments integer default 1
) returns text
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
declare
  characters_read constant integer := 20000;
  excerpt_size constant integer := 240;
  fragment_size constant integer := 160;
  room constant integer := 40; -- around a passage
  source constant text := btrim(
    regexp_replace(
      left(content, characters_read), '(?! )[\s[:cntrl:]]|[\s[:cntrl:]]{2,}', ' ', 'g'
    )
  );
  source_size constant integer := length(source);
  is_one constant boolean := fragments = 1 or source_size <= excerpt_size;
  size constant integer := case when is_one then excerpt_size else fragment_size end;
  occurrences record;
  shown integer[] := '{}';
  passage record;
  cut record;
  -- Each with one character more, so that those which only a space separates become one.
  excerpts int4multirange := '{}';
  highlighted int4multirange := '{}';
begin
  if lexemes <> '{}' then
    occurrences := knowledge_internal.lexeme_occurrences(source, configuration, lexemes);
    highlighted := coalesce(occurrences.highlighted, '{}');
    for number in 1 .. case when is_one then 1 else fragments end loop
      passage := knowledge_internal.best_passage(
        occurrences.starts, occurrences.finishes, occurrences.places, shown, cardinality(lexemes),
        size - room
      );
      exit when passage.passage_start is null;
      cut := knowledge_internal.excerpt_around(
        source, passage.passage_start,
        least(passage.passage_finish, passage.passage_start + size - room), size, not is_one
      );
      excerpts := excerpts + int4multirange(int4range(cut.first, cut.last + 2));
      exit when is_one;
      select array_agg(word.start order by word.number) filter (where not word.is_shown) as starts,
             array_agg(word.finish order by word.number) filter (where not word.is_shown)
               as finishes,
             array_agg(word.place order by word.number) filter (where not word.is_shown) as places,
             shown || array_agg(distinct word.place) filter (where word.is_shown) as shown
        into occurrences
        from (
          select listed.*, listed.start <@ excerpts as is_shown
            from unnest(occurrences.starts, occurrences.finishes, occurrences.places)
                 with ordinality as listed (start, finish, place, number)
        ) as word;
      shown := occurrences.shown;
    end loop;
  end if;
  if excerpts = '{}' or not is_one and upper(excerpts) - lower(excerpts) <= size then
    cut := knowledge_internal.excerpt_around(
      source, coalesce(lower(excerpts), 1), coalesce(upper(excerpts) - 2, 0), excerpt_size,
      not is_one
    );
    excerpts := int4multirange(int4range(cut.first, cut.last + 2));
  end if;
  return (
    select case when lower(excerpts) > 1 then '… ' else '' end
             || string_agg(coalesce(marked.html, ''), ' … ' order by extended.range)
             || case
               when upper(excerpts) - 2 < source_size or length(content) > characters_read
                 then ' …'
               else ''
             end
      from unnest(excerpts) as extended (range)
     cross join lateral (
             select int4multirange(int4range(lower(extended.range), upper(extended.range) - 1))
                      as characters
           ) as excerpt
     cross join lateral (
             select string_agg(
                      format(
                        piece.form,
                        knowledge_internal.escaped_html(
                          substr(
                            source, lower(piece.range), upper(piece.range) - lower(piece.range)
                          )
                        )
                      ),
                      '' order by piece.range
                    ) as html
               from (
                 select unnest(excerpt.characters * highlighted) as range,
                        '<mark>%s</mark>' as form
                  union all
                 select unnest(excerpt.characters - highlighted), '%s'
               ) as piece
           ) as marked
  );
end
$$;

-- The snippet of a chunk for the questions of a search. A letter or a number of up to three digits
-- that was typed only as a part of a compound (E in E-1042) is marked only in a chunk that has all
-- parts of the compound and not the compound as one word.
create or replace function knowledge_internal.marked_snippet(
  content text, content_tsv tsvector, language text, asked knowledge_internal.question,
  fragments integer
) returns text
language plpgsql stable parallel safe security invoker set search_path = pg_catalog, pg_temp
-- Postgres sends a NOTICE for a query of stop words only.
set client_min_messages = warning
set standard_conforming_strings = on as $$
declare
  configuration constant regconfig := knowledge_internal.text_configuration(language);
  marked text[] := asked.lexemes;
begin
  if array_remove(asked.compounds, null) <> '{}' then
    marked := array(
      select word.lexeme
        from unnest(asked.lexemes) as word (lexeme)
       where word.lexeme not in (
               select lower(part.word)
                 from unnest(asked.words, asked.compounds) as part (word, compound)
                where part.compound is not null
                  and part.word ~ '^(?:\d{1,3}|[[:upper:][:lower:]])$'
                  and (
                    not content_tsv
                          @@ asked.word_queries[array_position(asked.words, part.compound)]
                    or content_tsv
                         @@ plainto_tsquery(configuration, knowledge_internal.joined(part.compound))
                  )
             )
    );
  end if;
  return knowledge_internal.snippet(content, configuration, marked, fragments);
end
$$;

revoke all on all functions in schema knowledge_internal from public;

notify pgrst, 'reload schema';
