-- 002_text_analysis: from text to lexemes, and from lexemes to the document side of BM25.
-- Adds: functions of schema knowledge_internal, knowledge_content_hash. Locks nothing that exists.
-- Written from supabase/schemas/core/02_text_analysis.sql by `make baseline`: edit that file.

-- Functions that a search or a trigger calls are written in PL/pgSQL, which keeps their plans:
-- PostgreSQL 17 plans an SQL function again at every call. A connection keeps 32 compiled regular
-- expressions, each for one collation. To write usual texts must take fewer: with more, it compiles
-- all of them again for each text, which takes longer than to read it.

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

-- The lexeme by which a query tells the language of a chunk: no text has one with this sign.
create function knowledge_internal.language_mark(configuration regconfig) returns text
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
as $$
begin
  return '^' || configuration;
end
$$;

-- A condition as the chunks of a language must meet it: all, where there is one language.
create function knowledge_internal.in_language(
  configuration regconfig, configurations regconfig[], condition tsquery
) returns tsquery
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
as $$
begin
  return case
    when cardinality(configurations) > 1
      then quote_literal(knowledge_internal.language_mark(configuration))::tsquery && condition
    else condition
  end;
end
$$;

-- Characters that nobody sees, as the inside of a regular expression's brackets: those that Unicode
-- lets a program ignore when it shows a text, and formats.
create function knowledge_internal.invisible_characters() returns text
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
begin
  return '\u00AD\u034F\u061C\u115F\u1160\u17B4\u17B5\u180B-\u180F\u200B-\u200F\u202A-\u202E'
    '\u2060-\u206F\u3164\uFE00-\uFE0F\uFEFF\uFFA0\uFFF0-\uFFFB\U0001BCA0-\U0001BCA3'
    '\U0001D173-\U0001D17A\U000E0000-\U000E0FFF';
end
$$;

-- The text in Unicode NFKC, so that characters which look the same have one code: full-width
-- letters, composed accents, ligatures; also hyphens, apostrophes, the digits of other scripts, the
-- final sigma, and the Persian and Urdu forms of Arabic letters. Without the points of Hebrew and
-- Arabic, which most texts leave out, and without invisible characters. The signs that NFKC would
-- make a part of the word or number before them (NVIDIATM, 20193, 21/2) stand apart from it: ™ is
-- left out, 2019³ and x² become 2019^3 and x^2, 2½ becomes 2.5, №5 becomes No 5.
create function knowledge_internal.normalised(source text) returns text
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
declare
  marks constant text := '[\u0300-\u036F\u1AB0-\u1AFF\u1DC0-\u1DFF\u20D0-\u20FF\uFE20-\uFE2F]';
  fractions constant text := '½¼¾⅛⅜⅝⅞⅕⅖⅗⅘';
  decimals constant text[] := '{5,25,75,125,375,625,875,2,4,6,8}';
begin
  -- Each step is much slower than the test whether it is needed.
  if octet_length(source) = length(source) then
    return source;
  end if;
  if source ~ (
    '[' || knowledge_internal.invisible_characters() || '\u00AA\u00B2-\u00B4\u00B9\u00BA'
      '\u00BC-\u00BE\u1D40\u1FBD\u1FBF\u1FFD\u2070-\u2079\u2116\u2120\u2122\u2150-\u215F\u2189'
      '\u2460-\u249B\u24B6-\u24FF\u3251-\u325F\u32B1-\u32BF\U0001F16A-\U0001F16C]'
      '|\d[\u00A0\u2009\u202F]\d{3}'
  ) then
    -- The zero-width non-joiner of Persian stands between the two words of a compound.
    source := regexp_replace(source, '(?<=[\u0620-\u08FF])\u200C+(?=[\u0620-\u08FF])', '-', 'g');
    source := regexp_replace(
      source, '[' || knowledge_internal.invisible_characters() || ']+', '', 'g'
    );
    source := regexp_replace(
      source, '[\u2120\u2122\U0001F16A-\U0001F16C]|\u1D40\u1D39', ' ', 'g'
    );
    source := regexp_replace(
      source, '[\u207A\u207B]?[\u00B2\u00B3\u00B9\u2070\u2074-\u2079]+', '^\&', 'g'
    );
    for place in 1 .. cardinality(decimals) loop
      if strpos(source, substr(fractions, place, 1)) > 0 then
        source := regexp_replace(
          source, '(?<=\d)' || substr(fractions, place, 1), '.' || decimals[place], 'g'
        );
      end if;
    end loop;
    source := regexp_replace(
      source, '[\u00BC-\u00BE\u2116\u2150-\u215F\u2189\u2460-\u249B\u24EA-\u24FF\u3251-\u325F'
        '\u32B1-\u32BF]|[\u24B6-\u24E9]+', ' \& ', 'g'
    );
    source := regexp_replace(source, '(?<=\d)[ªº]', '-\&', 'g');
    source := regexp_replace(source, '[ªº](?=[[:alnum:]])', '\& ', 'g');
    -- Spaces that keep the digits of one number together.
    source := regexp_replace(source, '(?<=\d)[\u00A0\u2009\u202F](?=\d{3}(?!\d))', '''', 'g');
    source := translate(source, U&'\00B4\1FBD\1FBF\1FFD', '''''''''');
  end if;
  if source ~ marks then
    -- The time of normalize is quadratic in the number of marks on one letter, so at most 32 marks
    -- are kept.
    source := regexp_replace(source, '(' || marks || '{32})' || marks || '+', '\1', 'g');
  end if;
  if source is not nfkc normalized then
    source := normalize(source, nfkc);
  end if;
  -- Thai, Lao, Hebrew and Arabic.
  if source ~ '[\u0591-\u05C7\u0610-\u061A\u0640\u064B-\u065F\u0670\u06D6-\u06ED\u08D3-\u08FF\u0E4D'
      '\u0ECD]' then
    -- The vowel am stays one letter, as readers and snippets see it.
    source := regexp_replace(source, '\u0E4D([\u0E48-\u0E4B]?)\u0E32', '\1' || U&'\0E33', 'g');
    source := regexp_replace(source, '\u0ECD([\u0EC8-\u0ECB]?)\u0EB2', '\1' || U&'\0EB3', 'g');
    source := regexp_replace(
      source, '[\u0591-\u05BD\u05BF\u05C1\u05C2\u05C4\u05C5\u05C7\u0610-\u061A\u0640\u064B-\u0652'
        '\u0656-\u065F\u0670\u06D6-\u06DC\u06DF-\u06E8\u06EA-\u06ED\u08D3-\u08FF]+', '', 'g'
    );
  end if;
  if source ~ '[\u2010-\u2013\u2212\u05BE\u02B9-\u02BF\u055A\u05F3\u07F4\u07F5\u2018\u2019\u201B'
      '\u2032\uA78C\u2044\u03A3\u03C2\u0649\u06A9\u06AA\u06BE\u06C0\u06C1\u06C3\u06CC\u06D2\u06D3'
      '\u0660-\u066C\u06F0-\u06F9\u0966-\u096F\u0E50-\u0E59]' then
    source := regexp_replace(source, '[\u2010-\u2013\u2212\u05BE]', '-', 'g');
    source := regexp_replace(
      source, '[\u02B9-\u02BF\u055A\u05F3\u07F4\u07F5\u2018\u2019\u201B\u2032\uA78C]', '''', 'g'
    );
    -- Slow, because each character is looked for among all of these.
    if source ~ '[\u2044\u03A3\u03C2\u0649\u06A9\u06AA\u06BE\u06C0\u06C1\u06C3\u06CC\u06D2\u06D3'
        '\u0660-\u066C\u06F0-\u06F9\u0966-\u096F\u0E50-\u0E59]' then
      source := translate(
        source,
        U&'\2044\03A3\03C2\0649\06CC\06D2\06A9\06AA\06BE\06C0\06C1\06C3\06D3\066B\066C'
          '\0660\0661\0662\0663\0664\0665\0666\0667\0668\0669'
          '\06F0\06F1\06F2\06F3\06F4\06F5\06F6\06F7\06F8\06F9'
          '\0966\0967\0968\0969\096A\096B\096C\096D\096E\096F'
          '\0E50\0E51\0E52\0E53\0E54\0E55\0E56\0E57\0E58\0E59',
        '/' || U&'\03C3\03C3\064A\064A\064A\0643\0643\0647\0647\0647\0629\0626' || '.,'
          || repeat('0123456789', 4)
      );
    end if;
  end if;
  return source;
end
$$;

-- A normalised text without most of its plain words and numbers: letters a to z, small ones after
-- the first or all capitals, or digits, between spaces. What joined, inner_words and separated look
-- for is in no such word, and has no space in it: they find it here as in the whole text.
create function knowledge_internal.unusual_words(source text) returns text
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
begin
  return regexp_replace(source, '\s(?:[[(]?(?:[A-Z]?[a-z]+|[A-Z]+|\d+)[])%.,;:]*\s)+', ' ', 'g');
end
$$;

-- The normalised text, in which scripts without spaces are split into overlapping pairs of letters,
-- and C++ and C# are words. is_ascii: null for a text that is not normalised. unusual: its
-- unusual_words, where they are known.
create function knowledge_internal.separated(
  source text, is_ascii boolean default null, unusual text default null
) returns text
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
  if is_ascii is null then
    source := knowledge_internal.normalised(source);
    is_ascii := octet_length(source) = length(source);
  end if;
  if not is_ascii and source ~ ('[' || letters || ']') then
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
  if strpos(coalesce(unusual, source), '++') > 0 then
    source := regexp_replace(source, '\m([[:alpha:]])\+\+', '\1plusplus ', 'g');
  end if;
  if strpos(coalesce(unusual, source), '#') > 0 then
    source := regexp_replace(source, '\m([[:alpha:]])#(?![[:alnum:]])', '\1sharp ', 'g');
  end if;
  return source;
end
$$;

-- The separated text with its compounds (part numbers, paths, snake_case, addresses) split into
-- words: Postgres' parser reads DS-7604 as a word and a negative number, a/b as a file name and
-- List<String> as a tag.
create function knowledge_internal.apart(
  source text, is_ascii boolean default null, unusual text default null
) returns text
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
begin
  source := knowledge_internal.separated(source, is_ascii, unusual);
  if strpos(coalesce(unusual, source), '^') > 0 then
    -- A number that is written above a word is a note or a power, and no word of the sentence.
    source := regexp_replace(source, '(?<=[[:alnum:]])\^-?\d+(?![[:alnum:]])', ' ', 'g');
  end if;
  return regexp_replace(source, '[-_/.@:\\#+<>&~'']+', ' ', 'g');
end
$$;

-- A regular expression for the usual compounds.
create function knowledge_internal.usual_compounds() returns text
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
begin
  return '[[:alnum:]]+(?:(?:[-/.@:\\&]_*|_+|::|://)[[:alnum:]]+)+';
end
$$;

-- The compounds in a text, each as one word: DS-7604 as DS7604, AT&T as ATT, A&S as AqqS, O'Brien
-- as OBrien, 1,000 as 1000, 3.11 as 3p11, .NET as dotNET.
create function knowledge_internal.joined(source text, is_normalised boolean default false)
returns text
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
declare
  compounds text := knowledge_internal.usual_compounds();
  -- Further ones, which slow down the search: numbers with thousands (1,234.5, 1'234.5, 1.234,5).
  thousands constant text := '|(?<![\d.,''])\d{1,3}'
    '(?:(?:(?:,\d{2,3})*,\d{3}(?:\.\d+)?|(?:''\d{3})+(?:[.,]\d+)?)(?!\d)'
    '|(?:\.\d{3})+,\d+(?!\.?\d))';
  -- Powers, .NET, names with an apostrophe.
  rare_compounds constant text :=
    '(?:(?<=[[:alpha:]])\^-?\d+)?|[[:alnum:]]*[[:alpha:]]\^-?\d+|\d+\^-?\d+'
    '|(?<![^\s(])\.[[:alpha:]]+'
    '|[[:alpha:]]+''[[:upper:]][[:alpha:]]{2,}|\m[Oo]''[[:alpha:]]{2,}';
  longest_word constant integer := 100; -- bytes
  found text;
begin
  -- A word of letters has no compound. Most words of a query are such words.
  if octet_length(source) < longest_word and source ~ '^[[:alpha:]]*$' then
    return '';
  end if;
  if not is_normalised then
    source := knowledge_internal.normalised(source);
  end if;
  if source ~ '(?:^|[\s(])\.[[:alpha:]]|\^'
      '|[[:alpha:]]''[[:upper:]][[:alpha:]]{2}|[Oo]''[[:alpha:]]{2}' then
    compounds := compounds || rare_compounds;
  end if;
  if source ~ '\d[,'']\d{3}|\d\.\d{3},\d' then
    compounds := compounds || thousands;
  end if;
  found := array_to_string(array(select (regexp_matches(source, compounds, 'g'))[1]), ' ');
  -- The point of a number stays as a letter, so that 3.11 is neither 311 nor 3.1.1; so do the bar
  -- of a fraction and what stands before a power.
  if strpos(found, ',') > 0 then
    found := regexp_replace(found, '\.(?=(?:\d{3}\.){0,9}\d{3},\d)', '', 'g');
  end if;
  found := replace(found, '''', '');
  if strpos(found, '.') > 0 then
    found := regexp_replace(found, '(?<=\d)\.(?=\d)', 'p', 'g');
  end if;
  if strpos(found, ',') > 0 then
    found := regexp_replace(found, '(\d{4}),(?=\d)', '\1p', 'g');
  end if;
  if strpos(found, '/') > 0 then
    found := regexp_replace(found, '(^| )(\d\d?)/(\d\d?)(?= |$)', '\1\2v\3', 'g');
  end if;
  if strpos(found, '^') > 0 then
    found := regexp_replace(found, '(?<=\d)\^-', 'hn', 'g');
    found := regexp_replace(found, '(?<=\d)\^', 'h', 'g');
  end if;
  if strpos(' ' || found, ' .') > 0 then
    found := regexp_replace(found, '(^| )\.', '\1dot', 'g');
  end if;
  -- A&S and I&T would be the stop words as and it.
  if strpos(found, '&') > 0 then
    found := regexp_replace(found, '\m([[:alpha:]])&(?=[[:alpha:]]\M)', '\1qq', 'g');
  end if;
  return translate(found, '-/.@:\_,&^''', '');
end
$$;

-- The pieces of words that mix capitals and small letters, or letters and digits: lru and Cache of
-- lruCache, AB and 12345 of AB12345. Those of a word stand after a line feed, or after a form feed
-- where the word has digits or a piece of one letter (AB12345, HepB). A character is no piece,
-- except of digits before letters and of one letter: 5 and kg of 5kg, M and 3 of M3, not of PGE2.
create function knowledge_internal.pieces(source text) returns text
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
declare
  mixed constant text := '[[:lower:]]{2}[[:upper:]]|[[:alpha:]]\d|\d[[:alpha:]]';
  two_words constant text := '[[:lower:]]{2}[[:upper:]][[:alpha:]]';
  letters constant text := '(?:[[:upper:]]+|[[:lower:]]?[[:upper:]]?[[:lower:]]+)';
  letters_and_digits constant text := '^(?:\d+' || letters || '|[[:alpha:]](?:\d|\d{3,}))$';
  boundary constant text := '(?<=[[:lower:]])(?=[[:upper:]])'
    '|(?<=[[:upper:]])(?=[[:upper:]][[:lower:]])'
    '|(?<=[[:alpha:]])(?=\d)|(?<=\d)(?=[[:alpha:]])';
  mixed_word constant text := '\m[[:alnum:]]*(?:' || mixed || ')[[:alnum:]]*';
  is_ascii constant boolean := octet_length(source) = length(source);
  words text;
begin
  if source !~ mixed then
    return '';
  end if;
  select string_agg(
           case
             when matched.word ~ two_words then E'\n ' || matched.word
             when matched.word ~ letters_and_digits
               then regexp_replace(matched.word, '^(\d+|\D+)', E'\f\v\\1\v')
             else E'\f ' || matched.word
           end,
           ''
         )
    into words
    from (
      -- With collation C, letters are those of ASCII, which takes a third of the time.
      select (regexp_matches(source collate "C", mixed_word, 'g'))[1] collate "default" as word
       where is_ascii
      union all
      select (regexp_matches(source, mixed_word, 'g'))[1] where not is_ascii
    ) as matched;
  words := regexp_replace(
    regexp_replace(words, boundary, ' ', 'g'), ' [[:alnum:]](?![[:alnum:]])', '', 'g'
  );
  return coalesce(translate(words, E'\v', ' '), '');
end
$$;

-- A text in which the words of letters and digits are two words: DS 7604 for DS7604, 2.5 kg for
-- 2.5kg; not 22nd, and not PGE2, which is one word.
create function knowledge_internal.letters_and_digits_apart(source text) returns text
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
begin
  if translate(source, '0123456789', '') = source then
    return source;
  end if;
  return regexp_replace(
    source,
    '(?<=(?:^|\s)[-("]*)(?!\d+(?:st|nd|rd|th)\M)'
      '(?:([[:alpha:]]{2,})(\d{2,})|([[:alpha:]])(\d|\d{3,})|(\d+(?:[.,]\d+)*)([[:alpha:]]+))'
      '(?![^\s.,;:!?)"])',
    '\1\3\5 \2\4\6', 'g'
  );
end
$$;

-- The letters, each of which is a word and is found inside a word, as the inside of a regular
-- expression's brackets: Han and Hangul.
create function knowledge_internal.letters_found_alone() returns text
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
begin
  return '\u3007\u3400-\u4DBF\u4E00-\u9FFF\uAC00-\uD7A3\uF900-\uFAFF\U00020000-\U0003FFFD';
end
$$;

-- The letters and marks of scripts with spaces between words, in small letters, as the inside of a
-- regular expression's brackets: Latin, Greek, Cyrillic, Armenian, Hebrew, Arabic, the scripts of
-- India and Sri Lanka, Georgian and Ethiopic.
create function knowledge_internal.letters_of_words() returns text
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
begin
  return 'a-z\u00DF-\u06FF\u0900-\u0963\u0970-\u0DFF\u10A0-\u10FF\u1200-\u135F\u1E00-\u1FFF';
end
$$;

-- Words inside the words of a normalised text, which are indexed too: Han and Hangul characters,
-- pieces, and the compounds inside compounds, each as one word: of functools.lru_cache lrucache and
-- functoolslru, of AB-12345/X AB12345, of 3.11.2 3p11, of v3.11 3p11. Those on different lines are
-- no phrase. A query is not split this way, so that exact words rank first.
create function knowledge_internal.inner_words(source text) returns text
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
declare
  most_parts constant integer := 12;
  -- A compound that has others inside it.
  nested constant text := '[[:alnum:]][-_/.@:\\&]+[[:alnum:]]+[-_/.@:\\&]+[[:alnum:]]'
    '|[[:alpha:]]\d+\.\d|\d\.\d+[[:alpha:]]';
  letters constant text := case when octet_length(source) <> length(source) then
    regexp_replace(source, '[^' || knowledge_internal.letters_found_alone() || ']+', '', 'g')
  end;
  words text := knowledge_internal.pieces(source);
begin
  if letters <> '' then
    words := regexp_replace(letters, '.', ' \&', 'g') || words;
  end if;
  -- Much faster than the search for the compounds.
  if source !~ nested then
    return words;
  end if;
  return words || (
    select coalesce(
             string_agg(
               distinct E'\n' || translate(inner_compound.word, '-_', '') collate "C", ''
             ),
             ''
           )
      from (
             select distinct matched.parts[1] as compound
               from regexp_matches(source, knowledge_internal.usual_compounds(), 'g')
                    as matched (parts)
              where matched.parts[1] ~ nested
           ) as written
           -- A version is one part.
     cross join lateral regexp_replace(written.compound, '(?<=\d)\.(?=\d)', 'p', 'g')
             as compound (source)
           -- By translate, because a connection keeps 32 regular expressions.
     cross join translate(compound.source, '-_/.@:\&', repeat(' ', 8)) as spaced
     cross join translate(compound.source, '/.@:\&', repeat(' ', 6)) as sections
     cross join lateral (
             select (array_remove(string_to_array(spaced, ' '), ''))[:most_parts] as parts,
                    -- Of a path or a dotted name: pandas.read_csv has read_csv.
                    case when sections not in (compound.source, spaced)
                      then (array_remove(string_to_array(sections, ' '), ''))[:most_parts]
                    end as segments
             offset 0
           ) as split
     cross join lateral (
             -- A version that is not the whole compound, and its beginning.
             select replace(version.word, '.', 'p')
               from regexp_matches(
                      case when strpos(written.compound, '.') > 0 then written.compound end,
                      '(?<![\d.])\d+(?:\.\d+){1,4}(?![\d.]*\d)', 'g'
                    ) as run
              cross join string_to_array(run[1], '.') as numbers
              cross join lateral (
                      values (nullif(run[1], written.compound)),
                             (array_to_string(nullif(trim_array(numbers, 1), numbers[:1]), '.'))
                    ) as version (word)
              where version.word is not null
             union all
             select split.parts[place - 1] || split.parts[place]
               from generate_series(2, cardinality(split.parts)) as place
              where cardinality(split.parts) > 2
             union all
             select segment from unnest(split.segments) as segment
              where translate(segment, '-_', '') <> segment
             union all
             select split.segments[place - 1] || split.segments[place]
               from generate_series(2, cardinality(split.segments)) as place
              where cardinality(split.segments) > 2
           ) as inner_compound (word)
  );
end
$$;

-- How many words a tsvector has at all its positions.
create function knowledge_internal.word_count(words tsvector) returns integer
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
as $$
begin
  -- The binary form has two bytes for each position.
  return (octet_length(tsvectorsend(words)) - octet_length(tsvectorsend(strip(words)))) / 2;
end
$$;

-- Lexemes of a heading, its content and other texts with their positions. A heading counts as often
-- as its weight says. Compounds as one word have label B, which keeps them out of phrases. Inner
-- words are not counted in the length of the text. They have label C, and those of one word with
-- digits or a letter label A: AB12345 and AB 12345 are the same, JavaScript is not Java.
-- content_words, distinct_words: at the beginning of the content, without stop words; 0 for a text
-- without spaces between its words, which to_tsvector takes for one word.
create function knowledge_internal.lexemes(
  configuration regconfig, heading text, content text, heading_weight integer default 2,
  others text[] default '{}', out lexemes tsvector, out content_words integer,
  out distinct_words integer
)
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
declare
  -- A word that no text contains. ts_delete removes it and leaves a gap of 30 positions, so that no
  -- phrase matches across the boundary.
  gap constant text := '7318008135207';
  boundary constant text := E'\n' || gap || E'\n';
  inner_boundary constant text := E'\n ' || gap || ' ';
  distance constant tsvector := gap || ':30';
  given constant text := array_to_string(
    array[case when heading_weight > 0 then heading end, content]
      || array_fill(heading, array[greatest(heading_weight - 1, 0)])
      || others,
    boundary
  );
  is_ascii constant boolean := octet_length(given) = length(given); -- reads all of it
  source constant text := case
    when is_ascii then given
    else knowledge_internal.normalised(given)
  end;
  unusual constant text := knowledge_internal.unusual_words(source);
  content_place constant integer := 1 + (heading_weight > 0 and heading is not null)::integer;
  characters_counted constant integer := 2000; -- enough to tell: longer texts repeat their words
  beginning constant text := case
    when octet_length(content) > characters_counted then left(content, characters_counted)
    else content
  end;
  longest_word constant integer := 15; -- characters for a word and its space, on average
  single_spaces constant integer :=
    octet_length(beginning) - octet_length(replace(beginning, ' ', ''));
  words text := knowledge_internal.apart(source, is_ascii, unusual);
  compounds text := knowledge_internal.joined(unusual, is_normalised => true);
  inner_words text := knowledge_internal.inner_words(unusual);
  parts text[];
  part text;
  part_lexemes tsvector;
  content_lexemes tsvector;
begin
  loop
    begin
      lexemes := '';
      if inner_words <> '' then
        lexemes := setweight(
          to_tsvector(
            configuration,
            replace(regexp_replace(inner_words, '\f[^\n]*', '', 'g'), E'\n', inner_boundary)
          ),
          'C'
        ) || distance || setweight(
          to_tsvector(
            configuration,
            replace(
              regexp_replace(inner_words, '(?:^|\n)[^\f\n]*', '', 'g'), E'\f', inner_boundary
            )
          ),
          'A'
        );
      end if;
      if compounds <> '' or inner_words <> '' then
        lexemes := setweight(to_tsvector(configuration, compounds), 'B') || distance || lexemes;
      end if;
      part := null;
      parts := string_to_array(words, boundary);
      -- From the last part on: each || copies what it has so far.
      for place in reverse cardinality(parts) .. 1 loop
        if place = content_place then
          content_lexemes := to_tsvector(configuration, parts[place]);
          lexemes := content_lexemes || (distance || lexemes);
        else
          -- A heading stands before the content and after it.
          if parts[place] is distinct from part then
            part := parts[place];
            part_lexemes := to_tsvector(configuration, part) || distance;
          end if;
          lexemes := part_lexemes || lexemes;
        end if;
      end loop;
      lexemes := ts_delete(lexemes, gap);
      exit;
    exception when program_limit_exceeded then
      -- A tsvector has at most 1 MB. A text that exceeds it is halved until it fits, so its
      -- beginning stays searchable.
      words := left(words, length(words) / 2);
      compounds := left(compounds, length(compounds) / 2);
      inner_words := left(inner_words, length(inner_words) / 2);
    end;
  end loop;

  -- The expression is slow, and needed for other spaces than single ones.
  if (strpos(beginning, '  ') > 0 or octet_length(beginning) > longest_word * single_spaces)
    and length(beginning) > longest_word * cardinality(regexp_split_to_array(beginning, '\s+'))
  then
    content_words := 0;
    distinct_words := 0;
    return;
  end if;
  if beginning <> content then
    content_lexemes := to_tsvector(configuration, knowledge_internal.apart(beginning));
  end if;
  content_words := knowledge_internal.word_count(coalesce(content_lexemes, ''));
  distinct_words := length(coalesce(content_lexemes, ''));
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

-- The condition with labels: rows that have its lexemes with one of these.
create function knowledge_internal.labelled(query tsquery, labels text) returns tsquery
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
begin
  return regexp_replace(query::text, '(''(?:[^'']|'''')*'')', '\1:' || labels, 'g')::tsquery;
end
$$;

-- The condition for words, which a word inside another one (label C: java of JavaScript) does not
-- meet; a single letter of Han or Hangul does.
create function knowledge_internal.whole_words(query tsquery) returns tsquery
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
begin
  if octet_length(query::text) > length(query::text)
     and query::text ~ ('''[' || knowledge_internal.letters_found_alone() || ']''')
  then
    return (query);
  end if;
  return knowledge_internal.labelled(query, 'ABD');
end
$$;

-- Joined compounds, in which the versions have no v: 2p4p1 for v2p4p1.
create function knowledge_internal.without_v(compounds text) returns text
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
begin
  return regexp_replace(compounds, '\mv(?=\d+p\d)', '', 'gi');
end
$$;

-- The rows that have the words of a phrase as they stand in it or, with further, in any order and
-- within that many positions more than they take in it. A word that stands in it twice counts once.
-- The words may be neighbours inside one word ("user name" of getUserName). A compound is found as
-- one word too; only as one word, also in a longer phrase, where it begins or ends with a stop word
-- (check-in is not check), except an elided one (l'Iran). A version is found with a v and without.
create function knowledge_internal.phrase_query(
  configuration regconfig, phrase text, further integer default null
) returns tsquery
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
declare
  words constant text := knowledge_internal.apart(phrase);
  -- Versions without v.
  bare constant text := case
    when strpos(phrase, '.') > 0 then regexp_replace(phrase, '\mv(?=\d+\.\d)', '', 'gi')
    else phrase
  end;
  -- In a longer phrase, parts of two compounds would be neighbours.
  spaced constant text := case
    when strpos(btrim(translate(phrase, E'\t\n\r', '   ')), ' ') > 0 then bare
    else knowledge_internal.letters_and_digits_apart(bare)
  end;
  condition tsquery := phraseto_tsquery(configuration, words);
  compound record;
begin
  condition := case
    when numnode(condition) < 2 then knowledge_internal.whole_words(condition)
    else knowledge_internal.labelled(
      condition,
      -- Where a stop word is left out, words of two compounds could match.
      case
        when replace(condition::text, '<->', '') like '%<%'
             or knowledge_internal.whole_words(condition)::text = condition::text then 'D'
        else 'ACD'
      end
    )
  end;
  if further > 0 then
    condition := condition || knowledge_internal.near_query(configuration, words, further);
  end if;
  for compound in
    select plainto_tsquery(configuration, listed.joined)
             || case when strpos(listed.word, '.') > 0 then
                  plainto_tsquery(
                    configuration, regexp_replace(listed.joined, '^(?=\d+p\d)', 'v')
                  ) else '' end as query,
           listed.is_alone,
           strpos(listed.word, '.') > 0 and listed.joined ~ '^v?\d+p\d' as is_version,
           0 = any (array[
             numnode(plainto_tsquery(configuration, split_part(listed.parts, ' ', 1))),
             numnode(plainto_tsquery(configuration, split_part(listed.parts, ' ', -1)))
           ]) and (strpos(listed.word, '''') = 0 or listed.word ~ '[[:alnum:]][-_/]')
             as is_one_word
      from (
        select split.word, knowledge_internal.joined(split.word) as joined,
               btrim(knowledge_internal.apart(split.word), ' "().,;:!?') as parts,
               count(*) over () = 1 as is_alone
          from regexp_split_to_table(btrim(phrase, E' \t\n\r'), '\s+') as split (word)
        offset 0
      ) as listed
     where listed.joined <> ''
  loop
    condition := case
      when compound.is_one_word and compound.is_alone then compound.query
      when compound.is_one_word then condition && compound.query
      -- The version in release/2.4.1 stands inside another word.
      when compound.is_alone and compound.is_version then condition || compound.query
      when compound.is_alone then condition || knowledge_internal.whole_words(compound.query)
      else condition
    end;
  end loop;
  -- If a part is a stop word, only the number would be left: S3 is not any 3.
  if spaced <> phrase
     and numnode(phraseto_tsquery(configuration, knowledge_internal.apart(spaced)))
         = numnode(phraseto_tsquery(configuration, words)) + 2 * (length(spaced) - length(bare))
  then
    condition := condition || knowledge_internal.phrase_query(configuration, spaced, further);
  end if;
  return condition;
end
$$;

-- The rows that have these words in any order and within that many positions more than they take.
create function knowledge_internal.near_query(
  configuration regconfig, words text, further integer
) returns tsquery
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  condition text;
begin
  with word as (
    select distinct placed.forms, placed.distance
      from (
        select '(' || string_agg(knowledge_internal.quoted_lexeme(found.lexeme) || ':D', ' | ')
                 || ')' as forms,
               max(position.place) over () - min(position.place) over () + further as distance
          from unnest(to_tsvector(configuration, words)) as found
         cross join unnest(found.positions) as position (place)
         group by position.place
      ) as placed
  ),
  -- One word is the first, and each other stands behind it: an operand of <0> begins where it does.
  behind as (
    select first.forms as first,
           string_agg(first.forms || ' <' || gap || '> ' || other.forms, ' | ') as condition
      from word as first
      left join word as other on other.forms <> first.forms
     cross join generate_series(1, first.distance) as gap
     group by first.forms, other.forms
  ),
  near as (
    select concat(
             behind.first, ' <0> (' || string_agg('(' || behind.condition || ')', ' & ') || ')'
           ) as condition
      from behind
     group by behind.first
  )
  -- The words alone first: most rows lack one, and this is known at once.
  select (select string_agg(distinct word.forms, ' & ') from word)
           || ' & (' || string_agg('(' || near.condition || ')', ' | ') || ')'
    into condition
    from near;
  return coalesce(condition, '')::tsquery;
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

-- k1 of BM25: how fast the weight of a word approaches its maximum as the word is repeated. Apart
-- from b, because Postgres computes a function with one result once, when it plans a statement.
create function knowledge_internal.bm25_k1() returns float8
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
as $$
begin
  return 1.2::float8;
end
$$;

-- b of BM25: how much the length of a text lowers its score, from 0 (not at all) to 1.
create function knowledge_internal.bm25_b() returns float8
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
as $$
begin
  return 0.75::float8;
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
-- of each lexeme without its idf, tf (k1 + 1) / (tf + length factor), which is between 0 and k1 + 1
-- (Robertson and Zaragoza 2009); in the last dimension the length factor, k1 (1 - b + b dl /
-- avgdl), from which exact_scores computes tf, to score with k1 and b of search_settings; its
-- impacts (knowledge_internal.impact_levels). mean_length is the average text_length of the corpus;
-- null: that of this chunk.
create function knowledge_internal.document_side(
  content_tsv tsvector, mean_length float8, out text_length integer, out bm25 extensions.sparsevec,
  out impacts text[]
)
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  levels constant float8[] := knowledge_internal.impact_levels();
  k1 constant float8 := knowledge_internal.bm25_k1();
  b constant float8 := knowledge_internal.bm25_b();
  most_weight constant float8 := k1 + 1;
  -- How often a word that a text has only inside other words (java of JavaScript) occurs in it: a
  -- multiple of 1/4, as exact_scores reads it.
  inner_occurrences constant float8 := 0.25;
  inner_words constant tsvector := ts_filter(content_tsv, '{c}');
  words tsvector := content_tsv;
  only_inner text[] := '{}';
  length_factor float8;
  -- Of a lexeme that occurs once, as most do.
  single_element text;
  single_level integer;
  elements text;
begin
  if inner_words <> '' then
    words := ts_filter(content_tsv, '{a,b,d}');
    only_inner := tsvector_to_array(ts_delete(inner_words, tsvector_to_array(words)));
  end if;
  -- Inner words have labels A and C.
  text_length := knowledge_internal.word_count(ts_filter(words, '{b,d}'));
  length_factor := k1 * (
    1 - b + b * text_length / greatest(coalesce(mean_length, text_length), 1)
  );
  single_element := ':' || (most_weight / (1 + length_factor))::real;
  single_level := width_bucket(most_weight / (1 + length_factor), levels);
  -- A second statement over these lexemes takes longer than an aggregate for each level.
  select string_agg(term.element, ','),
         coalesce(
           array_agg(term.lexeme || '^1') filter (where term.level >= 1)
             || array_agg(term.lexeme || '^2') filter (where term.level >= 2)
             || array_agg(term.lexeme || '^3') filter (where term.level >= 3)
             || array_agg(term.lexeme || '^4') filter (where term.level >= 4),
           '{}'
         )
    into elements, impacts
    from (
      select counted.lexeme,
             -- The dimension is lexeme_dimension, without the time of a call for each lexeme.
             (hashtextextended(counted.lexeme collate "C", 0) & 536870911) % 536870911 + 1
               || case counted.occurrences
                    when 1 then single_element
                    else ':' || weighed.weight::real
                  end as element,
             case counted.occurrences
               when 1 then single_level
               else width_bucket(weighed.weight, levels)
             end as level
        from (
          select posting.lexeme, cardinality(posting.positions)::float8 as occurrences
            from unnest(words) as posting
          union all
          select lexeme, inner_occurrences from unnest(only_inner) as lexeme
        ) as counted
       cross join lateral (
               select counted.occurrences * most_weight / (counted.occurrences + length_factor)
                 as weight
             ) as weighed
      -- Without offset 0, each use of the level would compute it again.
      offset 0
    ) as term;
  begin
    bm25 := '{' || elements || ',536870912:' || length_factor::real || '}/536870912';
  exception when data_exception or program_limit_exceeded then
    -- Two lexemes have one dimension, or there are more than a sparsevec can hold.
    bm25 := knowledge_internal.lexeme_vector(
      tsvector_to_array(words) || only_inner,
      array(
        select split_part(element, ':', 2)::float8 from string_to_table(elements, ',') as element
      ),
      length_factor
    );
  end;
end
$$;

notify pgrst, 'reload schema';
