-- 002_text_analysis: from text to lexemes, and from lexemes to the document side of BM25.
-- Adds: functions of schema knowledge_internal, knowledge_content_hash. Locks nothing that exists.
-- Written from supabase/schemas/core/02_text_analysis.sql by `make baseline`: edit that file.

-- Functions that a search or a trigger calls are written in PL/pgSQL, which keeps their plans:
-- PostgreSQL 17 plans an SQL function again at every call.

create function public.knowledge_content_hash(heading text, content text) returns text
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
as $$
begin
  return encode(sha256(convert_to(coalesce(heading, '') || E'\n' || content, 'UTF8')), 'hex');
end
$$;

comment on function public.knowledge_content_hash(text, text) is
  'Hex SHA-256 of the UTF-8 bytes of heading (empty when null), a line feed and content. Chunks '
  'with the same text have the same hash.';
revoke all on function public.knowledge_content_hash(text, text) from public, anon, authenticated;
grant execute on function public.knowledge_content_hash(text, text) to service_role;

-- The text search configuration for a language's name or ISO 639-1 code (german, de, de-AT); simple
-- for any other text.
create function knowledge_internal.text_configuration(language text) returns regconfig
language plpgsql stable parallel safe security invoker set search_path = pg_catalog, pg_temp as $$
declare
  named text := lower(language);
  found_configuration regconfig;
begin
  -- The default of the column needs no look-up.
  if named = 'english' then
    return 'pg_catalog.english'::regconfig;
  end if;
  named := coalesce(
    '{
      "ar": "arabic", "hy": "armenian", "eu": "basque", "ca": "catalan", "da": "danish",
      "nl": "dutch", "en": "english", "fi": "finnish", "fr": "french", "de": "german",
      "el": "greek", "hi": "hindi", "hu": "hungarian", "id": "indonesian", "ga": "irish",
      "it": "italian", "lt": "lithuanian", "ne": "nepali", "no": "norwegian", "nb": "norwegian",
      "nn": "norwegian", "pt": "portuguese", "ro": "romanian", "ru": "russian", "sr": "serbian",
      "es": "spanish", "sv": "swedish", "ta": "tamil", "tr": "turkish", "yi": "yiddish"
    }'::jsonb ->> split_part(translate(named, '_', '-'), '-', 1),
    named
  );
  select configuration.oid
    into found_configuration
    from pg_catalog.pg_ts_config as configuration
   where configuration.cfgnamespace = 'pg_catalog'::regnamespace
     and configuration.cfgname = named;
  return coalesce(found_configuration, 'pg_catalog.simple'::regconfig);
end
$$;

-- The text in Unicode NFKC, so that characters which look the same have one code: full-width
-- letters, composed accents, ligatures; also hyphens.
create function knowledge_internal.normalised(source text) returns text
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
declare
  marks constant text := '[\u0300-\u036F\u1AB0-\u1AFF\u1DC0-\u1DFF\u20D0-\u20FF\uFE20-\uFE2F]';
begin
  -- Each step is much slower than the test whether it is needed.
  if octet_length(source) = length(source) then
    return source;
  end if;
  -- The time of normalize is quadratic in the number of marks on one letter, so at most 32 marks
  -- are kept.
  if source ~ (marks || '{32}') then
    source := regexp_replace(source, '(' || marks || '{32})' || marks || '+', '\1', 'g');
  end if;
  if source is not nfkc normalized then
    source := normalize(source, nfkc);
  end if;
  -- Hyphens, dashes and the minus sign become one character. Soft hyphens, word joiners, byte order
  -- marks and zero-width spaces are removed, because they are invisible and nobody types them.
  if source ~ '[\u2010-\u2013\u2212\u00AD\u2060\uFEFF\u200B]' then
    source := translate(source, U&'\2010\2011\2012\2013\2212\00AD\2060\FEFF\200B', '-----');
  end if;
  return source;
end
$$;

-- The normalised text, in which scripts without spaces are split into overlapping pairs of letters,
-- and C++ and C# are words.
create function knowledge_internal.separated(source text) returns text
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
declare
  -- Thai, Lao, Myanmar, Khmer, kana, Bopomofo, Han, Hangul.
  letters constant text := '\u0E01-\u0E30\u0E32\u0E33\u0E40-\u0E46\u0E81-\u0EB0\u0EB2\u0EB3'
    '\u0EBD-\u0EC6\u0EDC-\u0EDF\u1000-\u102A\u103F\u1050-\u1055\u105A-\u105D\u1061\u1065\u1066'
    '\u106E-\u1070\u1075-\u1081\u108E\u1780-\u17B3\u17D7\u17DC\u3005-\u3007\u3041-\u3096'
    '\u309D-\u309F\u30A1-\u30FA\u30FC-\u30FF\u3105-\u312F\u31A0-\u31BF\u31F0-\u31FF'
    '\u3400-\u4DBF\u4E00-\u9FFF\uA9E0-\uA9E4\uA9E6-\uA9EF\uA9FA-\uA9FE\uAA60-\uAA7A\uAA7E\uAA7F'
    '\uAC00-\uD7A3\uF900-\uFAFF\U00020000-\U0003FFFD';
  -- Vowels and tone marks above, below or beside the letter before them.
  marks constant text := '\u0E31\u0E34-\u0E3A\u0E47-\u0E4E\u0EB1\u0EB4-\u0EBC\u0EC8-\u0ECE'
    '\u102B-\u103E\u1056-\u1059\u105E-\u1060\u1062-\u1064\u1067-\u106D\u1071-\u1074\u1082-\u108D'
    '\u108F\u109A-\u109D\u17B4-\u17D3\u17DD\u3099\u309A\uA9E5\uAA7B-\uAA7D';
begin
  if octet_length(source) <> length(source) then
    source := knowledge_internal.normalised(source);
    if source ~ ('[' || letters || ']') then
      -- Each inner letter is written twice, which turns ABCD into AB BC CD. The pairs keep their
      -- order, so a phrase of pairs matches a part of the text.
      source := regexp_replace(source, '[' || letters || marks || ']+', ' \& ', 'g');
      source := regexp_replace(
        source,
        '(?<=[' || letters || marks || '])[' || letters || '][' || marks || ']*'
          '(?=[' || letters || '])',
        '\& \&', 'g'
      );
    end if;
  end if;
  if strpos(source, '+') > 0 or strpos(source, '#') > 0 then
    source := regexp_replace(source, '\m([[:alpha:]])\+\+', '\1plusplus ', 'g');
    source := regexp_replace(source, '\m([[:alpha:]])#(?![[:alnum:]])', '\1sharp ', 'g');
  end if;
  return source;
end
$$;

-- The separated text with its compounds (part numbers, paths, snake_case, addresses) split into
-- words: Postgres' parser reads DS-7604 as a word and a negative number, a/b as a file name and
-- List<String> as a tag.
create function knowledge_internal.apart(source text) returns text
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
begin
  return regexp_replace(knowledge_internal.separated(source), '[-_/.@:\\#+<>&''’]+', ' ', 'g');
end
$$;

-- The compounds in a text, each as one word: DS-7604 as DS7604, 1,000 as 1000, 3.11 as 3p11, .NET
-- as dotNET.
create function knowledge_internal.joined(source text) returns text
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
declare
  compounds text := '[[:alnum:]]+(?:(?:[-/.@:\\]_*|_+|::|://)[[:alnum:]]+)+';
  found text;
begin
  if octet_length(source) <> length(source) then
    source := knowledge_internal.normalised(source);
  end if;
  -- 1,000 and .NET are rare, and each alternative slows down the search for all compounds.
  if source ~ '\d,\d{3}|(?:^|[\s(])\.[[:alpha:]]' then
    compounds := compounds || '|\d{1,3}(?:,\d{3})+|(?<![^\s(])\.[[:alpha:]]+';
  end if;
  found := array_to_string(array(select (regexp_matches(source, compounds, 'g'))[1]), ' ');
  -- The point of a number stays as a letter, so that 3.11 is neither 311 nor 3.1.1.
  if found ~ '\d\.\d|(?:^| )\.' then
    found := regexp_replace(found, '(?<=\d)\.(?=\d)', 'p', 'g');
    found := regexp_replace(found, '(^| )\.', '\1dot', 'g');
  end if;
  return translate(found, '-/.@:\_,', '');
end
$$;

-- The pieces of words that mix capitals and small letters, or letters and digits: lru and Cache of
-- lruCache, AB and 12345 of AB12345. A single character is no piece.
create function knowledge_internal.pieces(source text) returns text
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
declare
  mixed constant text := '[[:lower:]]{2}[[:upper:]]|[[:alpha:]]\d|\d[[:alpha:]]';
  boundary constant text := '(?<=[[:lower:]])(?=[[:upper:]])'
    '|(?<=[[:upper:]])(?=[[:upper:]][[:lower:]])'
    '|(?<=[[:alpha:]])(?=\d)|(?<=\d)(?=[[:alpha:]])';
  words text;
begin
  if source !~ mixed then
    return '';
  end if;
  select string_agg(' ' || matched.parts[1], '')
    into words
    from regexp_matches(source, '\m[[:alnum:]]*(?:' || mixed || ')[[:alnum:]]*', 'g')
         as matched (parts);
  return coalesce(
    regexp_replace(
      regexp_replace(words, boundary, ' ', 'g'), ' [[:alnum:]](?![[:alnum:]])', '', 'g'
    ),
    ''
  );
end
$$;

-- Words inside the words of a normalised text, which are indexed too: Han and Hangul characters,
-- pieces, and the compounds inside compounds, each as one word: of functools.lru_cache lrucache and
-- functoolslru, of AB-12345/X AB12345, of 3.11.2 3p11. A query is not split this way, so that exact
-- words rank first.
create function knowledge_internal.inner_words(source text) returns text
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
declare
  most_parts constant integer := 12;
  words text;
begin
  if octet_length(source) = length(source) then
    -- With collation C, the classes of characters are those of ASCII, which takes half the time.
    words := knowledge_internal.pieces(source collate "C");
  else
    words := regexp_replace(
      regexp_replace(
        source,
        '[^\u3007\u3400-\u4DBF\u4E00-\u9FFF\uAC00-\uD7A3\uF900-\uFAFF\U00020000-\U0003FFFD]+',
        '', 'g'
      ),
      '.', ' \&', 'g'
    ) || knowledge_internal.pieces(source);
  end if;
  -- Much faster than the search for the compounds.
  if source !~ '[[:alnum:]][-_/.@:\\]+[[:alnum:]]+[-_/.@:\\]+[[:alnum:]]' then
    return words;
  end if;
  return words || (
    select coalesce(string_agg(distinct ' ' || translate(inner_compound.word, '-_', ''), ''), '')
      from regexp_matches(
             source, '[[:alnum:]]+(?:(?:[-/.@:\\]_*|_+|::|://)[[:alnum:]]+){2,}', 'g'
           ) as matched (parts)
     cross join lateral (
             select matched.parts[1] ~ '\d\.\d' as has_version,
                    -- A version is one part.
                    regexp_replace(matched.parts[1], '(?<=\d)\.(?=\d)', 'p', 'g') as source
             offset 0
           ) as compound
     cross join lateral (
             select (regexp_split_to_array(compound.source, '[-_/.@:\\]+'))[:most_parts] as parts,
                    -- Of a path or a dotted name: pandas.read_csv has read_csv.
                    case
                      when compound.source ~ '[-_]' and compound.source ~ '[/.@:\\]'
                        then (regexp_split_to_array(compound.source, '[/.@:\\]+'))[:most_parts]
                    end as segments
             offset 0
           ) as split
     cross join lateral (
             -- A version that is not the whole compound, and its beginning.
             select version.word
               from regexp_split_to_table(compound.source, '[-_/.@:\\]+') as part
              cross join lateral (
                      values (regexp_replace(part, 'p\d+$', '')), (nullif(part, compound.source))
                    ) as version (word)
              where compound.has_version and part ~ '^\d+(p\d+){1,4}$' and version.word ~ 'p'
             union all
             select split.parts[place - 1] || split.parts[place]
               from generate_series(2, cardinality(split.parts)) as place
              where cardinality(split.parts) > 2
             union all
             select segment from unnest(split.segments) as segment where segment ~ '[-_]'
             union all
             select split.segments[place - 1] || split.segments[place]
               from generate_series(2, cardinality(split.segments)) as place
              where cardinality(split.segments) > 2
           ) as inner_compound (word)
  );
end
$$;

-- Lexemes of a heading, its content and other texts with their positions. A heading counts as often
-- as its weight says. Inner words have label C, which keeps them out of the length of the text.
create function knowledge_internal.lexemes(
  configuration regconfig, heading text, content text, heading_weight integer default 2,
  others text[] default '{}'
) returns tsvector
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  -- A word that no text contains. ts_delete removes it and leaves a gap of 30 positions, so that no
  -- phrase matches across the boundary.
  gap constant text := '7318008135207';
  boundary constant text := E'\n' || gap || E'\n';
  source constant text := knowledge_internal.normalised(
    array_to_string(
      array[case when heading_weight > 0 then heading end, content]
        || array_fill(heading, array[greatest(heading_weight - 1, 0)])
        || others,
      boundary
    )
  );
  words text := concat_ws(
    boundary, knowledge_internal.apart(source), knowledge_internal.joined(source)
  );
  inner_words text := knowledge_internal.inner_words(source);
  distance constant tsvector := gap || ':30';
  part text;
  found_lexemes tsvector;
begin
  loop
    begin
      found_lexemes := '';
      foreach part in array string_to_array(words, boundary) loop
        found_lexemes := found_lexemes || to_tsvector(configuration, part) || distance;
      end loop;
      return ts_delete(
        found_lexemes || setweight(to_tsvector(configuration, inner_words), 'C'), gap
      );
    exception when program_limit_exceeded then
      -- A tsvector has at most 1 MB. A text that exceeds it is halved until it fits, so its
      -- beginning stays searchable.
      words := left(words, length(words) / 2);
      inner_words := left(inner_words, length(inner_words) / 2);
    end;
  end loop;
end
$$;

-- A lexeme as it is written in a tsquery; null for the empty text, which is no lexeme.
create function knowledge_internal.quoted_lexeme(lexeme text) returns text
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
as $$
begin
  -- A tsquery escapes quotes and backslashes as a string constant does, but has no prefix E.
  return ltrim(quote_literal(nullif(lexeme, '')), 'E');
end
$$;

-- The dimension of a lexeme in a sparse vector: its hash, from 1 to 2^29 - 1. Dimension 2^29 is the
-- length factor of a chunk (knowledge_internal.document_side).
create function knowledge_internal.lexeme_dimension(lexeme text) returns bigint
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
as $$
begin
  return (hashtextextended(lexeme collate "C", 0) & 536870911) % 536870911 + 1;
end
$$;

-- Lexemes and their weights as a sparse vector, one dimension for each lexeme, and in the last
-- dimension the length factor, if any; null when there are no lexemes.
create function knowledge_internal.lexeme_vector(
  lexemes text[], weights float8[], length_factor float8 default null
) returns extensions.sparsevec
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
as $$
declare
  most_elements constant integer := 15999; -- a sparsevec has 16,000, one for the length factor
begin
  return (
    select (
             '{'
               || string_agg(bucket.dimension || ':' || bucket.weight, ',')
               || coalesce(',536870912:' || length_factor::real, '')
               || '}/536870912'
           )::extensions.sparsevec
      from (
        select knowledge_internal.lexeme_dimension(heaviest.lexeme) as dimension,
               sum(heaviest.weight)::real as weight
          from (
            select entry.lexeme, entry.weight
              from unnest(lexemes, weights) as entry (lexeme, weight)
             order by entry.weight desc, entry.lexeme collate "C"
             limit most_elements
          ) as heaviest
         group by 1
      ) as bucket
  );
end
$$;

-- k1 of BM25: how fast the weight of a word approaches its maximum as the word is repeated.
create function knowledge_internal.bm25_k1() returns float8
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
as $$
begin
  return 1.2::float8;
end
$$;

-- The part of BM25 that depends only on the length of the text: k1 (1 - b + b dl / avgdl). The
-- weight of a word that occurs tf times is idf * tf (k1 + 1) / (tf + this factor), where the
-- fraction is between 0 and k1 + 1 (Robertson and Zaragoza 2009).
create function knowledge_internal.bm25_length_factor(text_length float8, mean_length float8)
returns float8
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
as $$
declare
  -- How much the length of a text lowers its score, from 0 (not at all) to 1.
  b constant float8 := 0.75;
begin
  return knowledge_internal.bm25_k1() * (1 - b + b * text_length / mean_length);
end
$$;

-- idf as Lucene defines it, ln(1 + (N - df + 0.5) / (df + 0.5)), for N documents of which df have
-- the word.
create function knowledge_internal.inverse_document_frequency(
  document_count float8, document_frequency float8
) returns float8
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
as $$
begin
  return ln(
    1 + greatest(document_count - document_frequency + 0.5::float8, 0.5::float8)
          / (document_frequency + 0.5::float8)
  );
end
$$;

-- Term weights from which content_tsv also contains a lexeme at an impact level (cell^1 to cell^4).
-- With these, a search for a common word finds the chunks with the highest weights without reading
-- all chunks that have the word.
create function knowledge_internal.impact_levels() returns float8[]
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
as $$
begin
  return array[1.3, 1.55, 1.75, 1.9]::float8[];
end
$$;

-- What BM25 stores of a chunk: the number of its words, without inner words (label C); the weight
-- of each lexeme, without its idf (knowledge_internal.bm25_length_factor), with the length factor
-- in the last dimension, from which exact_scores computes the occurrences; its impacts
-- (knowledge_internal.impact_levels). mean_length is the average text_length of the corpus; null:
-- that of this chunk.
create function knowledge_internal.document_side(
  content_tsv tsvector, mean_length float8, out text_length integer, out bm25 extensions.sparsevec,
  out impacts text[]
)
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  levels constant float8[] := knowledge_internal.impact_levels();
  most_weight constant float8 := knowledge_internal.bm25_k1() + 1;
  -- Inner words have label C.
  words constant tsvector := ts_filter(content_tsv, '{a,b,d}');
  length_factor float8;
  elements text;
begin
  -- The binary form has two bytes for each position.
  text_length := (octet_length(tsvectorsend(words)) - octet_length(tsvectorsend(strip(words)))) / 2;
  length_factor := knowledge_internal.bm25_length_factor(
    text_length, greatest(coalesce(mean_length, text_length), 1)
  );
  -- A second statement over these lexemes takes longer than an aggregate for each level.
  select string_agg(term.dimension || ':' || term.weight::real, ','),
         coalesce(
           array_agg(term.lexeme || '^1') filter (where term.weight >= levels[1])
             || array_agg(term.lexeme || '^2') filter (where term.weight >= levels[2])
             || array_agg(term.lexeme || '^3') filter (where term.weight >= levels[3])
             || array_agg(term.lexeme || '^4') filter (where term.weight >= levels[4]),
           '{}'
         )
    into elements, impacts
    from (
      -- The dimension is lexeme_dimension, without the time of a call for each lexeme.
      select posting.lexeme,
             (hashtextextended(posting.lexeme collate "C", 0) & 536870911) % 536870911 + 1
               as dimension,
             cardinality(posting.positions) * most_weight
               / (cardinality(posting.positions) + length_factor) as weight
        from unnest(content_tsv) as posting
      -- Without offset 0, each use of the weight would compute it again.
      offset 0
    ) as term;
  begin
    bm25 := '{' || elements || ',536870912:' || length_factor::real || '}/536870912';
  exception when data_exception or program_limit_exceeded then
    -- Two lexemes have one dimension, or there are more than a sparsevec can hold.
    select knowledge_internal.lexeme_vector(
             array_agg(posting.lexeme),
             array_agg(
               cardinality(posting.positions) * most_weight
                 / (cardinality(posting.positions) + length_factor)
             ),
             length_factor
           )
      into bm25
      from unnest(content_tsv) as posting;
  end;
end
$$;

notify pgrst, 'reload schema';
