-- 034_native_bm25: the text leg by pg_textsearch's BM25 index, where a database has that extension.
-- Module: native_bm25.
-- Needs: pg_textsearch 1.6.
-- Adds: table knowledge_native_texts with its BM25 index, the triggers of knowledge_chunks that
-- keep it, the text leg by it, and a check that the index finds what it was given. Writes the words
-- of all active chunks into the new table. Locks knowledge_chunks against writes while it does so.

do $$
begin
  if not exists (select from pg_catalog.pg_extension where extname = 'pg_textsearch')
     -- The project's own tools read the definitions of all modules on a server without it.
     and current_setting('second_brain.without_extensions', true) is distinct from 'allowed'
  then
    raise exception 'module native_bm25 needs the extension pg_textsearch in this database'
      using errcode = '0A000',
            hint = 'Run: create extension pg_textsearch. The server must preload it: add it to '
              'shared_preload_libraries. Without it, leave the module out.';
  end if;
end
$$;

-- Not a column of the chunks: the index is filled by what changes a text, not by each new
-- embedding, and removing the module rewrites no chunk. The index takes no expression before 1.0.
create table public.knowledge_native_texts (
  chunk_id uuid primary key,
  tokens text not null
);

comment on table public.knowledge_native_texts is
  'The lexemes of each active chunk as words for a BM25 index of pg_textsearch. Triggers of '
  'knowledge_chunks keep it.';

create table public.knowledge_native_losses (
  chunk_id uuid primary key
);

comment on table public.knowledge_native_losses is
  'Chunks that the BM25 index of pg_textsearch did not find by their own words when the statistics '
  'were last refreshed. While there is one, the plain text leg answers.';

alter table public.knowledge_native_texts enable row level security;
alter table public.knowledge_native_losses enable row level security;
create policy knowledge_native_texts_none on public.knowledge_native_texts
  to anon, authenticated using (false);
create policy knowledge_native_losses_none on public.knowledge_native_losses
  to anon, authenticated using (false);
revoke all on table public.knowledge_native_texts, public.knowledge_native_losses
  from public, anon, authenticated, service_role;

-- A lexeme as a word that Postgres' parser keeps whole: small ASCII letters stay, another lexeme is
-- written in hexadecimal, with letters for the digits, after an x.
create function knowledge_internal.native_token(lexeme text) returns text
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
as $$
declare
  longest constant integer := 900; -- bytes; a word has at most 2,047, two for each byte
begin
  return case
    when lexeme collate "C" ~ '^[a-wyz][a-z]*$' then lexeme
    else 'x' || translate(
      case
        when octet_length(lexeme) > longest then md5(lexeme)
        else encode(convert_to(lexeme, 'UTF8'), 'hex')
      end,
      '0123456789', 'ghijklmnop'
    )
  end;
end
$$;

-- The lexemes of a chunk as text, each as often as it occurs. Those of impact levels have no
-- positions.
create function knowledge_internal.native_text(content_tsv tsvector) returns text
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
as $$
begin
  return (
    select coalesce(
             string_agg(
               repeat(
                 case
                   -- As native_token, without the time of a call for most lexemes.
                   when posting.lexeme collate "C" ~ '^[a-wyz][a-z]*$' then posting.lexeme
                   else knowledge_internal.native_token(posting.lexeme)
                 end || ' ',
                 cardinality(posting.positions)
               ),
               ''
             ),
             ''
           )
      from unnest(content_tsv) as posting
     where posting.positions is not null
  );
end
$$;

-- The trigger functions are security definer, because roles that may write chunks have no rights on
-- the table.
create function knowledge_internal.keep_native_texts() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp
-- The plan is made when the table is small, and used when it is large.
set enable_seqscan = off as $$
begin
  if tg_op = 'TRUNCATE' then
    truncate public.knowledge_native_texts;
  elsif tg_op = 'INSERT' then
    insert into public.knowledge_native_texts (chunk_id, tokens)
    select written.id, knowledge_internal.native_text(written.content_tsv)
      from written
     where written.status = 'active';
  elsif tg_op = 'DELETE' then
    delete from public.knowledge_native_texts as stored
     using removed
     where stored.chunk_id = removed.id;
  else
    delete from public.knowledge_native_texts as stored
     using removed
     where stored.chunk_id = removed.id
       and not exists (
             select from written where written.id = removed.id and written.status = 'active'
           );
    insert into public.knowledge_native_texts (chunk_id, tokens)
    select written.id, knowledge_internal.native_text(written.content_tsv)
      from written
      left join removed on removed.id = written.id
     where written.status = 'active'
       and (
         removed.status is distinct from 'active'
         or written.content_tsv is distinct from removed.content_tsv
       )
    on conflict (chunk_id) do update
       set tokens = excluded.tokens
     where excluded.tokens <> public.knowledge_native_texts.tokens;
  end if;
  return null;
end
$$;

create trigger add_native_texts
  after insert on public.knowledge_chunks referencing new table as written
  for each statement execute function knowledge_internal.keep_native_texts();
create trigger change_native_texts
  after update on public.knowledge_chunks referencing old table as removed new table as written
  for each statement execute function knowledge_internal.keep_native_texts();
create trigger remove_native_texts
  after delete on public.knowledge_chunks referencing old table as removed
  for each statement execute function knowledge_internal.keep_native_texts();
create trigger truncate_native_texts
  after truncate on public.knowledge_chunks
  for each statement execute function knowledge_internal.keep_native_texts();

insert into public.knowledge_native_texts (chunk_id, tokens)
select chunk.id, knowledge_internal.native_text(chunk.content_tsv)
  from public.knowledge_chunks as chunk
 where chunk.status = 'active';

-- In a block, because a server without the extension has no such index.
do $$
begin
  if exists (select from pg_catalog.pg_extension where extname = 'pg_textsearch') then
    create index knowledge_native_texts_bm25 on public.knowledge_native_texts
      using bm25 (tokens) with (text_config = 'pg_catalog.simple');
  end if;
end
$$;

-- Why a question is not asked of the index; null where it is. The index adds the scores of words:
-- it knows no phrases and exclusions, and not that only the best reading of a word counts.
create function knowledge_internal.no_native_reason(
  question knowledge_internal.question, native_query text,
  settings knowledge_internal.search_settings, matching double precision,
  most_read double precision
) returns text
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return case
    when settings.chunk_count <= knowledge_internal.small_corpus_limit() then 'small corpus'
    when question.is_optional is not true then 'required or excluded words'
    when question.identifier_query is not null then 'identifier'
    when question.phrase_queries is not null then 'phrase'
    when question.readings is not null then 'words with several readings'
    when native_query is null then 'words with a share of their weight'
    when matching <= most_read then 'few rows pass the filters'
    when to_regclass('public.knowledge_native_texts_bm25') is null then 'no index'
    when exists (select from public.knowledge_native_losses) then 'the index has lost chunks'
  end;
end
$$;

-- The words of a question for the index, each as often as it counts: null where a word counts in
-- parts.
create function knowledge_internal.native_query(
  question knowledge_internal.question, document_count double precision
) returns text
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return (
    select case when bool_and(abs(word.times - round(word.times)) < 0.01)
             then string_agg(
               repeat(
                 knowledge_internal.native_token(word.lexeme) || ' ', round(word.times)::integer
               ),
               ''
             ) end
      from (
        select asked.lexeme,
               asked.weight / knowledge_internal.weight_of_word(
                 document_count, asked.document_frequency
               ) as times
          from unnest(question.lexemes, question.weights, question.frequencies)
               as asked (lexeme, weight, document_frequency)
      ) as word
  );
end
$$;

-- The best rows in the order of the index.
create function knowledge_internal.native_order(words text, most_rows integer) returns uuid[]
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
-- One plan for all questions, which cannot have most_rows as a constant.
set plan_cache_mode = force_generic_plan as $$
declare
  found uuid[];
begin
  -- The extension may be in any schema, and its planner hook looks for a function by the path. It
  -- cannot see a limit that is no constant, and reads as many rows as this setting says.
  perform set_config(
            'search_path', format('pg_catalog, %I, pg_temp', namespace.nspname), true
          ),
          set_config('pg_textsearch.default_limit', most_rows::text, true)
     from pg_catalog.pg_extension as extension
     join pg_catalog.pg_namespace as namespace on namespace.oid = extension.extnamespace
    where extension.extname = 'pg_textsearch';
  select pg_catalog.array_agg(best.chunk_id)
    into found
    from (
      select stored.chunk_id
        from public.knowledge_native_texts as stored
       order by stored.tokens <@> to_bm25query(words, 'public.knowledge_native_texts_bm25')
       limit most_rows
    ) as best;
  return coalesce(found, '{}');
end
$$;

-- Chunks of the sample of the statistics that the index does not find by their own words. A chunk
-- that 100 others precede is looked for among all that have one of these words.
create function knowledge_internal.lost_native_texts() returns setof uuid
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  asked constant integer := 50; -- chunks
  words_asked constant integer := 10; -- of a chunk: the longest, which are rare
  first_read constant integer := 100; -- rows
  sampled record;
begin
  if to_regclass('public.knowledge_native_texts_bm25') is null then
    return;
  end if;
  for sampled in
    select stored.chunk_id,
           (
             select string_agg(longest.word, ' ')
               from (
                 select word
                   from (select distinct regexp_split_to_table(stored.tokens, ' ')) as own (word)
                  where word <> ''
                  order by length(word) desc, word
                  limit words_asked
               ) as longest
           ) as words
      from public.knowledge_corpus_statistics as corpus
      join public.knowledge_native_texts as stored
        on stored.chunk_id = any (corpus.sample[:asked])
  loop
    continue when sampled.words is null
      or sampled.chunk_id = any (knowledge_internal.native_order(sampled.words, first_read))
      or sampled.chunk_id = any (
        knowledge_internal.native_order(
          sampled.words, (select count(*)::integer from public.knowledge_native_texts)
        )
      );
    return next sampled.chunk_id;
  end loop;
end
$$;

create function knowledge_internal.keep_native_losses() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  delete from public.knowledge_native_losses;
  insert into public.knowledge_native_losses (chunk_id)
  select lost from knowledge_internal.lost_native_texts() as lost;
  return null;
end
$$;

create trigger check_native_index
  after insert or update on public.knowledge_corpus_statistics
  for each statement execute function knowledge_internal.keep_native_losses();

-- The best rows by the index, a few more than the pool: exact_scores orders them, and the index
-- rounds the length of a text. Where filters drop rows, the index is read again, further.
create or replace function knowledge_internal.native_rows(
  question knowledge_internal.question, wanted integer,
  settings knowledge_internal.search_settings, scope knowledge_internal.row_scope default null,
  collection text default null, matching double precision default null,
  most_read double precision default null, out ids uuid[], out reason text
)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  every_active_row constant text := 'chunk.status = ''active''';
  most_index_rows constant float8 := 20000;
  native_query constant text := knowledge_internal.native_query(question, settings.document_count);
  with_room constant float8 := ceil(1.2 * wanted);
  read_rows float8 := with_room;
  read uuid[];
begin
  reason := knowledge_internal.no_native_reason(
    question, native_query, settings, matching, most_read
  );
  if reason is not null then
    return;
  end if;
  -- Only active chunks are in the table.
  if coalesce(scope.matching, every_active_row) = every_active_row and collection is null then
    ids := knowledge_internal.native_order(native_query, read_rows::integer);
  else
    read_rows := ceil(
      1.5 * with_room * greatest(1, coalesce(settings.chunk_count / nullif(matching, 0), 1))
    );
    while read_rows <= most_index_rows loop
      read := knowledge_internal.native_order(native_query, read_rows::integer);
      ids := array(
        select best.id
          from unnest(read) with ordinality as best (id, place)
          join knowledge_internal.rows_in_scope(read, scope) as chunk
            on chunk.id = best.id
         where (chunk.collection = native_rows.collection) is not false
         order by best.place
         limit with_room
      );
      exit when cardinality(ids) >= wanted or cardinality(read) < read_rows;
      read_rows := 4 * read_rows;
    end loop;
  end if;
  -- The plain leg finds few rows as fast, and also where the index has lost some: before 1.3, a
  -- restart can empty it.
  if (cardinality(ids) >= wanted) is not true then
    ids := null;
    reason := 'fewer rows than the pool';
  end if;
end
$$;

revoke all on all functions in schema knowledge_internal from public;

notify pgrst, 'reload schema';
