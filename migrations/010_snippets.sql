-- 010_snippets: the excerpt of a hit, with its matching words marked.
-- Adds: type lexeme_occurrences, functions searchable_lexemes, matched_parts, combining_marks,
-- lexeme_occurrences, best_passage, snippet, marked_snippet. Locks nothing that exists.
-- Written from supabase/schemas/10_snippets.sql by `make baseline`: edit that file.

create function knowledge_internal.searchable_lexemes(
  configuration regconfig, source text
)
returns text[]
language plpgsql
immutable
parallel safe
security invoker
set search_path = pg_catalog, pg_temp
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

comment on function knowledge_internal.searchable_lexemes(regconfig, text) is
  'The lexemes of a text without a heading, as in content_tsv.';

create function knowledge_internal.matched_parts(
  word text, configuration regconfig, lexemes text[]
)
returns table (start integer, size integer, place integer)
language plpgsql
immutable
parallel safe
security invoker
set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on
as $$
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

comment on function knowledge_internal.matched_parts(text, regconfig, text[]) is
  'The parts of a word that match one of the lexemes: start and size in characters, and the '
  'position in lexemes. For a compound, the compound, its words and their inner words are '
  'compared.';

create function knowledge_internal.combining_marks()
returns text
language plpgsql
immutable
parallel safe
security invoker
set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on
as $$
begin
  return '[\u0300-\u036F\u0E31\u0E34-\u0E3A\u0E47-\u0E4E\u0EB1\u0EB4-\u0EBC'
    '\u0EC8-\u0ECE\u102B-\u103E\u1056-\u1059\u105E-\u1060\u1062-\u1064\u1067-\u106D\u1071-\u1074'
    '\u1082-\u108D\u108F\u109A-\u109D\u17B4-\u17D3\u17DD\u200D\u3099\u309A\uA9E5\uAA7B-\uAA7D'
    '\uFE0F]';
end
$$;

comment on function knowledge_internal.combining_marks() is
  'A regular expression for characters that belong to the character before them: accents, vowels, '
  'tone marks and emoji joiners.';

create type knowledge_internal.lexeme_occurrences as (
  starts integer[],
  finishes integer[],
  places integer[],
  highlighted int4multirange
);

comment on type knowledge_internal.lexeme_occurrences is
  'The occurrences of lexemes in a text, in text order: first and last character, and the position '
  'in lexemes. highlighted: all these characters.';

create function knowledge_internal.lexeme_occurrences(
  source text, configuration regconfig, lexemes text[]
)
returns knowledge_internal.lexeme_occurrences
language plpgsql
immutable
parallel safe
security invoker
set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on
as $$
declare
  punctuation constant text := '!"$%()*,.:;=?[]^`{|}~''“”‘’„«»…—';
  -- Words that apart, joined or inner_words change; in a text that is not normalised also all words
  -- that are not ASCII. Postgres' parser reads every other word as one word.
  compounds constant text := '[^ ]*(?:[-_/\\@#+<>&]|[.:''’][[:alnum:]]'
    '|[[:alnum:]][]!"$%()*,;=?[^`{|}~“”…—]+[[:alnum:]]'
    '|[[:lower:]]{2}[[:upper:]]|[[:alpha:]]\d|\d[[:alpha:]])[^ ]*';
  not_ascii constant text := '[^ ]*[^\u0001-\u007F ][^ ]*';
  -- Letters that apart splits into pairs: Thai, Lao, Myanmar, Khmer, kana, Bopomofo, Han, Hangul.
  unspaced constant text := '[\u0E01-\u0E4E\u0E81-\u0ECE\u0EDC-\u0EDF\u1000-\u103F\u1050-\u108F'
    '\u109A-\u109D\u1780-\u17D3\u17D7\u17DC\u17DD\u3005-\u3007\u3041-\u30FF\u3105-\u312F'
    '\u31A0-\u31BF\u31F0-\u31FF\u3400-\u4DBF\u4E00-\u9FFF\uA9E0-\uA9EF\uA9FA-\uA9FE\uAA60-\uAA7F'
    '\uAC00-\uD7A3\uF900-\uFAFF\U00020000-\U0003FFFD]';
  -- The part of these letters that inner_words also indexes as single letters.
  inner_letters constant text := '[\u3007\u3400-\u9FFF\uAC00-\uD7A3\uF900-\uFAFF'
    '\U00020000-\U0003FFFD]';
  marks constant text := knowledge_internal.combining_marks();
  is_normal constant boolean := source = knowledge_internal.normalised(source);
  spaced text := source;
  pairs text[];
  characters text[];
  occurrences knowledge_internal.lexeme_occurrences;
begin
  if source ~ unspaced then
    spaced := regexp_replace(source, unspaced, ' ', 'g');
    pairs := array(
      select query_lexeme.lexeme
        from unnest(lexemes) as query_lexeme (lexeme)
       where query_lexeme.lexeme ~ unspaced
         and (length(query_lexeme.lexeme) > 1 or query_lexeme.lexeme ~ inner_letters)
    );
    if pairs <> '{}' then
      characters := string_to_array(
        case
          when source ~ marks then regexp_replace(source, '(?!' || marks || ')', E'\x01', 'g')
          else array_to_string(string_to_array(source, null), E'\x01')
        end,
        E'\x01'
      );
    end if;
  end if;

  with word as materialized (
    select split.word,
           sum(length(split.word) + 1) over (order by split.number rows unbounded preceding)
             - length(split.word) as start
      from string_to_table(spaced, ' ') with ordinality as split (word, number)
  ),
  intricate as materialized (
    select distinct found.parts[1] as word
      from regexp_matches(
             spaced, compounds || case when is_normal then '' else '|' || not_ascii end, 'g'
           ) as found (parts)
  ),
  plain as materialized (
    select word.word
      from word
     where word.word <> ''
     group by word.word
    having word.word not in (select intricate.word from intricate)
  ),
  matched as (
    select plain.word, analysed.lexemes
      from plain
     cross join lateral (
             select tsvector_to_array(to_tsvector(configuration, plain.word)) as lexemes offset 0
           ) as analysed
     where analysed.lexemes && lexeme_occurrences.lexemes
  ),
  part as (
    select matched.word,
           length(matched.word) - length(ltrim(matched.word, punctuation)) + 1 as start,
           length(btrim(matched.word, punctuation)) as size,
           array_position(lexeme_occurrences.lexemes, found.lexeme) as place
      from matched
     cross join lateral unnest(matched.lexemes) as found (lexeme)
     where found.lexeme = any (lexeme_occurrences.lexemes)
    union all
    select intricate.word, found.start, found.size, found.place
      from intricate
     cross join lateral knowledge_internal.matched_parts(
             intricate.word, configuration, lexeme_occurrences.lexemes
           ) as found
     where (
             select knowledge_internal.searchable_lexemes(
                      configuration, string_agg(every.word, ' ')
                    ) && lexeme_occurrences.lexemes
               from intricate as every
           )
       and knowledge_internal.searchable_lexemes(configuration, intricate.word)
             && lexeme_occurrences.lexemes
  ),
  occurrence as (
    select word.start + part.start - 1 as start, part.size, part.place
      from word
      join part on part.word = word.word
    union all
    select letter.start, length(pair.lexeme), array_position(lexemes, pair.lexeme)
      from (
        select written.character,
               lead(written.character) over in_order as next,
               sum(length(written.character)) over in_order
                 - length(written.character) + 1 as start
          from unnest(characters) with ordinality as written (character, number)
        window in_order as (order by written.number rows unbounded preceding)
      ) as letter
     cross join lateral (
             values (letter.character || letter.next), (letter.character)
         ) as pair (lexeme)
     where pair.lexeme = any (pairs)
  )
  select array_agg(occurrence.start order by occurrence.start, occurrence.size),
         array_agg(
           occurrence.start + occurrence.size - 1 order by occurrence.start, occurrence.size
         ),
         array_agg(occurrence.place order by occurrence.start, occurrence.size),
         range_agg(
           int4range(occurrence.start::integer, (occurrence.start + occurrence.size)::integer)
         )
    into occurrences.starts, occurrences.finishes, occurrences.places,
         occurrences.highlighted
    from occurrence;
  return occurrences;
end
$$;

comment on function knowledge_internal.lexeme_occurrences(text, regconfig, text[]) is
  'The positions of the words of a text that have one of the lexemes.';

create function knowledge_internal.best_passage(
  occurrences knowledge_internal.lexeme_occurrences,
  lexeme_count integer,
  passage_size integer,
  out passage_start integer,
  out passage_finish integer
)
language plpgsql
immutable
parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $$
declare
  unit constant integer := 1000000; -- weights are whole numbers, so that sums are exact
  starts constant integer[] := occurrences.starts;
  finishes constant integer[] := occurrences.finishes;
  places constant integer[] := occurrences.places;
  counts integer[] := array_fill(0, array[lexeme_count]);
  worth bigint := 0;
  best_worth bigint := 0;
  leftmost integer := 1;
begin
  passage_start := 1;
  passage_finish := 0;
  for rightmost in 1 .. coalesce(cardinality(starts), 0) loop
    if counts[places[rightmost]] = 0 then
      worth := worth + unit / places[rightmost];
    end if;
    counts[places[rightmost]] := counts[places[rightmost]] + 1;
    while leftmost < rightmost
      and (
        counts[places[leftmost]] > 1 or finishes[rightmost] - starts[leftmost] >= passage_size
      ) loop
      counts[places[leftmost]] := counts[places[leftmost]] - 1;
      if counts[places[leftmost]] = 0 then
        worth := worth - unit / places[leftmost];
      end if;
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

comment on function knowledge_internal.best_passage is
  'The passage of at most passage_size characters with the largest sum of lexeme weights. The '
  'weights are 1, 1/2, 1/3 ..., rarest lexeme first; each lexeme counts once.';

create function knowledge_internal.snippet(
  content text, configuration regconfig, lexemes text[]
)
returns text
language plpgsql
immutable
parallel safe
security invoker
set search_path = pg_catalog, pg_temp
-- A search with filters uses custom plans. The statements of this function, and of the functions it
-- calls, have the same best plan for every text, and planning takes longer than running them.
set plan_cache_mode = force_generic_plan
set standard_conforming_strings = on
as $$
declare
  characters_read constant integer := 20000;
  excerpt_size constant integer := 240;
  passage_size constant integer := 200;
  boundary_distance constant integer := 40; -- maximum distance from a cut to a gap between words
  marks constant text := knowledge_internal.combining_marks();
  source constant text := btrim(
    regexp_replace(
      left(content, characters_read), '(?! )[\s[:cntrl:]]|[\s[:cntrl:]]{2,}', ' ', 'g'
    )
  );
  source_size constant integer := length(source);
  lexeme_count constant integer := coalesce(cardinality(lexemes), 0);
  occurrences knowledge_internal.lexeme_occurrences;
  passage_start integer;
  passage_finish integer;
  first integer;
  last integer;
  gap integer;
  excerpt text;
begin
  if lexeme_count > 0 then
    occurrences := knowledge_internal.lexeme_occurrences(source, configuration, lexemes);
  end if;
  select passage.passage_start, passage.passage_finish
    into passage_start, passage_finish
    from knowledge_internal.best_passage(occurrences, lexeme_count, passage_size) as passage;

  passage_finish := least(passage_finish, passage_start + passage_size);
  first := 1;
  if passage_finish > excerpt_size - boundary_distance then
    first := greatest(
      1,
      least(
        passage_start - (excerpt_size - (passage_finish - passage_start)) / 2,
        source_size - excerpt_size + 1
      )
    );
  end if;
  last := least(source_size, first + excerpt_size - 1);
  if first > 1 and substr(source, first - 1, 1) <> ' ' then
    gap := strpos(substr(source, first, passage_start - first), ' ');
    if gap <= boundary_distance then
      first := first + gap;
    end if;
  end if;
  if last < source_size and substr(source, last + 1, 1) <> ' ' then
    gap := strpos(reverse(substr(source, passage_finish + 1, last - passage_finish)), ' ');
    if gap <= boundary_distance then
      last := last - gap;
    end if;
  end if;

  while first > 1 and first < passage_start and substr(source, first, 1) ~ marks loop
    first := first + 1;
  end loop;
  last := last
    + length(substring(substr(source, last + 1, boundary_distance) from '^' || marks || '*'));

  -- The source has no control characters, so two of them can represent the tags.
  select string_agg(
           substr(source, piece.gap, piece.start - piece.gap)
             || E'\x01' || substr(source, piece.start, piece.finish - piece.start) || E'\x02',
           '' order by piece.start
         )
         || substr(source, max(piece.finish), last + 1 - max(piece.finish))
    into excerpt
    from (
      select lower(mark.range) as start,
             upper(mark.range) as finish,
             coalesce(lag(upper(mark.range)) over (order by mark.range), first) as gap
        from unnest(
               occurrences.highlighted * int4multirange(int4range(first, last + 1))
             ) as mark (range)
    ) as piece;
  excerpt := coalesce(excerpt, substr(source, first, last + 1 - first));
  excerpt := replace(
    replace(
      replace(replace(replace(excerpt, '&', '&amp;'), '<', '&lt;'), '>', '&gt;'), '"', '&quot;'
    ),
    '''',
    '&#39;'
  );
  return case when first > 1 then '… ' else '' end
    || replace(replace(excerpt, E'\x01', '<mark>'), E'\x02', '</mark>')
    || case when last < source_size or length(content) > characters_read then ' …' else '' end;
end
$$;

comment on function knowledge_internal.snippet(text, regconfig, text[]) is
  'An excerpt of about 240 characters from the first 20,000 of a content, where most of the '
  'lexemes (rarest first) are close together. Each matching word is in <mark>, other text is '
  'HTML-escaped. White space and control characters become one space; … means that text was left '
  'out. Without lexemes, or if none occurs, the excerpt is the beginning of the content.';

create function knowledge_internal.marked_snippet(
  content text, content_tsv tsvector, language text, asked knowledge_internal.asked_words
)
returns text
language plpgsql
stable
parallel safe
security invoker
set search_path = pg_catalog, pg_temp
-- Postgres sends a NOTICE for a query of stop words only.
set client_min_messages = warning
-- The search sets force_custom_plan; the statements here are the same for every hit.
set plan_cache_mode = force_generic_plan
set standard_conforming_strings = on
as $$
declare
  short_part constant text := '^(?:\d{1,3}|[[:upper:][:lower:]])$';
  configuration constant regconfig := knowledge_internal.text_configuration(language);
  unmarked constant text[] := array(
    select lower(part.word)
      from unnest(asked.words, asked.compounds) as part (word, compound)
     where part.compound is not null
       and part.word ~ short_part
       -- The parts are all that can be marked where the compound is written as separate words.
       and (
         not content_tsv @@ asked.word_queries[array_position(asked.words, part.compound)]
         or content_tsv
              @@ plainto_tsquery(configuration, knowledge_internal.joined(part.compound))
       )
  );
begin
  return knowledge_internal.snippet(
    content,
    configuration,
    array(
      select word.lexeme
        from unnest(asked.lexemes) with ordinality as word (lexeme, place)
       where word.lexeme <> all (unmarked)
       order by word.place
    )
  );
end
$$;

comment on function knowledge_internal.marked_snippet(
  text, tsvector, text, knowledge_internal.asked_words
) is
  'The snippet of a chunk for the questions of a search. A letter or a number of up to three '
  'digits that was typed only as a part of a compound (E in E-1042) is marked only in a chunk that '
  'has all parts of the compound and not the compound as one word.';
