-- 004_text_analysis: how text becomes lexemes, and lexemes become the document side of BM25.
-- Adds: functions of schema knowledge_internal, knowledge_content_hash. Locks nothing that exists.

create or replace function public.knowledge_content_hash(heading text, content text)
returns text
language sql
immutable
parallel safe
security invoker
set search_path = ''
as $$
  select encode(sha256(convert_to(coalesce(heading, '') || E'\n' || content, 'UTF8')), 'hex')
$$;

comment on function public.knowledge_content_hash(text, text) is
  'Hex SHA-256 of the UTF-8 bytes of heading (empty when null), a line feed and content: what makes two chunks the same text.';
revoke all on function public.knowledge_content_hash(text, text) from public, anon, authenticated;
grant execute on function public.knowledge_content_hash(text, text) to service_role;

create or replace function knowledge_internal.text_configuration(language text)
returns regconfig
language sql
stable
parallel safe
security invoker
set search_path = ''
as $$
  select coalesce(
    (
      select configuration.oid::regconfig
        from pg_catalog.pg_ts_config as configuration
       where configuration.cfgnamespace = 'pg_catalog'::regnamespace
         and configuration.cfgname = coalesce(
           (
             select known.name
               from (values
                 ('ar', 'arabic'), ('hy', 'armenian'), ('eu', 'basque'), ('ca', 'catalan'), ('da', 'danish'),
                 ('nl', 'dutch'), ('en', 'english'), ('fi', 'finnish'), ('fr', 'french'), ('de', 'german'),
                 ('el', 'greek'), ('hi', 'hindi'), ('hu', 'hungarian'), ('id', 'indonesian'), ('ga', 'irish'),
                 ('it', 'italian'), ('lt', 'lithuanian'), ('ne', 'nepali'), ('no', 'norwegian'),
                 ('pt', 'portuguese'), ('ro', 'romanian'), ('ru', 'russian'), ('sr', 'serbian'),
                 ('es', 'spanish'), ('sv', 'swedish'), ('ta', 'tamil'), ('tr', 'turkish'), ('yi', 'yiddish')
               ) as known (code, name)
              where known.code = split_part(translate(lower(language), '_', '-'), '-', 1)
           ),
           lower(language)
         )
    ),
    'pg_catalog.simple'::regconfig
  )
$$;

comment on function knowledge_internal.text_configuration(text) is
  'The text search configuration for a language''s name or ISO 639-1 code (german, de, de-AT); simple for any other text.';

create or replace function knowledge_internal.apart(source text)
returns text
language sql
immutable
parallel safe
security invoker
set search_path = ''
as $$
  -- Postgres' parser reads DS-7604 as a word and a negative number, a/b as a file name and List<String> as a tag.
  select regexp_replace(source, '[-_/.@:\\#+<>&''’]+', ' ', 'g')
$$;

comment on function knowledge_internal.apart(text) is
  'Text with its compounds (part numbers, paths, snake_case, addresses) taken apart into words.';

create or replace function knowledge_internal.joined(source text)
returns text
language sql
immutable
parallel safe
security invoker
set search_path = ''
as $$
  select coalesce(string_agg(regexp_replace(compound.parts[1], '[^[:alnum:]]+', '', 'g'), ' '), '')
    from regexp_matches(source, '[[:alnum:]]+(?:[-_/.@:\\][[:alnum:]]+)+', 'g') as compound (parts)
$$;

comment on function knowledge_internal.joined(text) is 'The compounds in a text, each as one word: DS-7604 as DS7604.';

create or replace function knowledge_internal.apart_and_joined(source text)
returns text
language sql
immutable
parallel safe
security invoker
set search_path = ''
as $$
  select knowledge_internal.apart(source) || ' ' || knowledge_internal.joined(source)
$$;

comment on function knowledge_internal.apart_and_joined(text) is
  'What is indexed and searched: a compound is found as it was typed, typed apart and typed together.';

create or replace function knowledge_internal.lexemes(configuration regconfig, heading text, content text)
returns tsvector
language plpgsql
immutable
security invoker
set search_path = ''
as $$
declare
  searchable text := knowledge_internal.apart_and_joined(concat_ws(E'\n', heading, content));
begin
  -- A tsvector ends at 1 MB. Text that may exceed it is cut until it fits: its beginning stays searchable.
  if octet_length(searchable) < 262144 then
    return to_tsvector(configuration, searchable);
  end if;
  loop
    begin
      return to_tsvector(configuration, searchable);
    exception when program_limit_exceeded then
      searchable := left(searchable, length(searchable) / 2);
    end;
  end loop;
end
$$;

comment on function knowledge_internal.lexemes(regconfig, text, text) is
  'Lexemes of a heading and the content under it, with their positions.';

create or replace function knowledge_internal.text_length(content_tsv tsvector)
returns integer
language sql
immutable
parallel safe
security invoker
set search_path = ''
as $$
  select coalesce(sum(cardinality(posting.positions)), 0)::integer from unnest(content_tsv) as posting
$$;

comment on function knowledge_internal.text_length(tsvector) is
  'Words in a tsvector, counted with repetition: the document length of BM25.';

create or replace function knowledge_internal.lexeme_vector(lexemes text[], weights float8[])
returns extensions.sparsevec
language sql
immutable
parallel safe
security invoker
set search_path = ''
as $$
  -- A lexeme's dimension is its hash in 2^29 buckets; a sparsevec holds at most 16,000 elements.
  select ('{' || string_agg(bucket.dimension || ':' || bucket.weight, ',' order by bucket.dimension) || '}/536870912')
         ::extensions.sparsevec
    from (
      select (hashtextextended(entry.lexeme collate "C", 0) & 536870911) + 1 as dimension,
             sum(entry.weight)::real as weight
        from unnest(lexemes, weights) as entry (lexeme, weight)
       group by 1
       order by 2 desc, 1
       limit 16000
    ) as bucket
$$;

comment on function knowledge_internal.lexeme_vector(text[], float8[]) is
  'Lexemes and their weights as a sparse vector, one dimension for each lexeme; null when there are none.';

create or replace function knowledge_internal.term_weights(content_tsv tsvector, mean_length float8)
returns table (lexeme text, weight float8)
language sql
immutable
security invoker
set search_path = ''
as $$
  -- BM25 without its idf: tf (k1 + 1) / (tf + k1 (1 - b + b dl / avgdl)), k1 1.2, b 0.75
  -- (Robertson and Zaragoza 2009).
  select posting.lexeme,
         posting.tf * 2.2 / (posting.tf + 1.2 * (0.25 + 0.75 * posting.dl / mean_length))
    from (
      select word.lexeme,
             cardinality(word.positions)::float8 as tf,
             sum(cardinality(word.positions)) over ()::float8 as dl
        from unnest(content_tsv) as word
       where word.positions is not null
    ) as posting
$$;

comment on function knowledge_internal.term_weights(tsvector, float8) is
  'The document side of BM25 for each lexeme, 0 to 2.2. mean_length is the average text_length of the corpus.';

create or replace function knowledge_internal.mark_levels()
returns float8[]
language sql
immutable
parallel safe
security invoker
set search_path = ''
as $$
  select array[1.3, 1.55, 1.75, 1.9]::float8[]
$$;

comment on function knowledge_internal.mark_levels() is
  'Term weights from which a lexeme stands in content_tsv once more, as a mark (cell^1 to cell^4): a search for a common word '
  'draws the chunks that are about it without reading all that have it.';

notify pgrst, 'reload schema';
