-- 060_substrings: identifiers by a part of them, where a database has pg_trgm.
-- Module: substrings.
-- Needs: pg_trgm.
-- Adds: column place_identifiers of knowledge_chunks with a trigger, for texts that are kept
-- elsewhere, an index over the identifiers, and the search in it for one that no chunk has as a
-- whole. Locks knowledge_chunks against writes while it builds the index, which it leaves to you in
-- a large corpus.
-- Written from supabase/schemas/modules/substrings/60_substrings.sql by `make baseline`: edit that file.

-- The identifiers of a chunk, one in a line: words with a digit, an underscore, a sign inside that
-- prose has seldom, or a small letter before a capital one. Hyphens alone make no identifier.
create function knowledge_internal.identifiers_of(heading text, content text) returns text
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
declare
  longest_text constant integer := 100000; -- characters
begin
  return (
    select string_agg(distinct listed.word, E'\n')
      from regexp_matches(
             left(coalesce(heading || E'\n', '') || content, longest_text),
             '[[:alnum:]_]+(?:[-./@:+#][[:alnum:]_]+)*', 'g'
           ) as found (parts)
     cross join lateral (select found.parts[1] as word) as listed
     where length(listed.word) between 4 and 100
       and listed.word ~ '[0-9_./@:#]|[[:lower:]][[:upper:]]'
  );
end
$$;

alter table public.knowledge_chunks add column place_identifiers text;

comment on column public.knowledge_chunks.place_identifiers is
  'The identifiers of heading and text, one in a line; the text can be kept elsewhere. Null: as in '
  'content. Written by the module substrings.';

-- Runs before a chunk is written: what of its text stays here.
create function knowledge_internal.keep_identifiers() returns trigger
-- definer: a role that may write chunks has no rights on the internal functions.
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  new.place_identifiers := knowledge_internal.identifiers_of(new.heading, new.content);
  return new;
end
$$;

-- Its name is between those of the trigger that reads a text kept elsewhere, complete_chunk, and
-- of the one that leaves it there.
create trigger complete_chunk_identifiers
  before insert or update on public.knowledge_chunks
  for each row when (new.content is not null)
  execute function knowledge_internal.keep_identifiers();

do $$
begin
  -- An update of no row would refresh the statistics, too.
  if exists (select from public.knowledge_chunks where content is null) then
    update public.knowledge_chunks as chunk
       set place_identifiers = knowledge_internal.identifiers_of(stored.heading, stored.content)
      from knowledge_internal.chunk_rows as stored
     where stored.id = chunk.id and chunk.content is null;
  end if;
end
$$;

do $$
declare
  most_rows constant integer := 20000; -- which are indexed in a few seconds
  callers constant text := current_setting('search_path');
  extension_schema constant text := (
    select extnamespace::regnamespace from pg_catalog.pg_extension where extname = 'pg_trgm'
  );
begin
  if extension_schema is null then
    -- The project's own tools read the definitions of all modules on a server without it.
    if current_setting('second_brain.without_extensions', true) is distinct from 'allowed' then
      raise exception 'module substrings needs the extension pg_trgm in this database'
        using errcode = '0A000',
              hint = 'Run: create extension pg_trgm with schema extensions. Without it, leave the '
                'module out.';
    end if;
  elsif (
    select stored.analysed_rows > most_rows from knowledge_internal.chunk_table as stored
  ) then
    raise warning 'parts of identifiers are found when knowledge_chunks_identifiers is built'
      using hint = format(
        'Run, outside of a transaction: create index concurrently knowledge_chunks_identifiers on '
        'public.knowledge_chunks using gin (lower(coalesce(place_identifiers, '
        'knowledge_internal.identifiers_of(heading, content))) %I.gin_trgm_ops) '
        'where status = ''active''', extension_schema
      );
  else
    perform set_config('search_path', extension_schema, true);
    create index knowledge_chunks_identifiers on public.knowledge_chunks
      using gin (
        lower(coalesce(place_identifiers, knowledge_internal.identifiers_of(heading, content)))
        gin_trgm_ops
      )
      where status = 'active';
    perform set_config('search_path', callers, true);
  end if;
end
$$;

create or replace function knowledge_internal.words_by_part(
  question knowledge_internal.question, scope knowledge_internal.row_scope
) returns jsonb
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
declare
  most_typed constant integer := 4;
  most_rows constant integer := 200; -- for each identifier that is typed
  most_found constant integer := 5;
  identifiers constant text :=
    'coalesce(chunk.place_identifiers,'
    ' knowledge_internal.identifiers_of(chunk.heading, chunk.content))';
  typed text;
  found_words text;
  rows integer;
  parts jsonb;
begin
  if question.query_text !~ '[0-9_./@:#]|[[:lower:]][[:upper:]]'
     or not exists (
       select
         from pg_catalog.pg_index as index
        where index.indexrelid = to_regclass('public.knowledge_chunks_identifiers')
          and index.indisvalid
     )
  then
    return null;
  end if;
  foreach typed in array coalesce(
    (
      string_to_array(
        knowledge_internal.identifiers_of(
          -- What is excluded or quoted is searched as it is.
          null, regexp_replace(
            translate(left(question.query_text, 4096), '“”„‟«»', '""""""'),
            '(?<!\S)-\S+|"[^"]*"', ' ', 'g'
          )
        ),
        E'\n'
      )
    )[:most_typed], '{}'
  ) loop
    -- Of hidden chunks, only the rows below may tell whether one has it.
    continue when scope.is_restricted is not true and exists (
      select
        from unnest(question.lexemes, question.frequencies)
             as known (lexeme, document_frequency)
       where known.lexeme = lower(typed) and known.document_frequency > 0
    );
    execute
      'with row as materialized ('
      '  select string_to_array(' || identifiers || ', E''\n'') as words'
      '    from public.knowledge_chunks as chunk'
      '   where ' || scope.matching || ' and lower(' || identifiers || ') like $2'
      '   limit $4'
      '), best as ('
      '  select min(listed.word) as word, count(*) as rows, bool_or(lower(listed.word) = $3) as own'
      '    from row cross join unnest(row.words) as listed (word)'
      '   where strpos(lower(listed.word), $3) > 0'
      '   group by lower(listed.word)'
      '   order by own desc, rows desc, word'
      '   limit $5'
      ')'
      'select string_agg(best.word, '' '' order by best.rows desc, best.word), sum(best.rows)'
      '  from best having not bool_or(best.own)'
      into found_words, rows
      using scope, '%' || regexp_replace(lower(typed), '([%_\\])', '\\\1', 'g') || '%',
            lower(typed), most_rows, most_found;
    if found_words is not null then
      parts := coalesce(parts, '{}')
        || jsonb_build_object(typed, jsonb_build_object(found_words, rows));
    end if;
  end loop;
  return parts;
end
$$;

revoke all on all functions in schema knowledge_internal from public;

notify pgrst, 'reload schema';
