-- 019_words: the words that the chunks have, for typos, accents and prefixes.
-- Adds: table knowledge_words, triggers on knowledge_chunks that keep it, functions that look words
-- up.
-- Locks knowledge_chunks against writes while a trigger is created.

create table public.knowledge_words (
  word text collate "C" not null,
  folded text collate "C" not null,
  chunk_id uuid not null
);

comment on table public.knowledge_words is
  'Each word of the stored chunks in lower case, as written and without accents, and a chunk that '
  'has it. When that chunk is deleted, another one that has the word takes its place, or the word '
  'is deleted. A word that two transactions add at the same time is there twice.';

-- The trigger functions are security definer, because roles that may write chunks have no rights on
-- the table of words.

-- No unique index: writers that add the same word would wait for each other, and could deadlock.
create index knowledge_words_folded on public.knowledge_words (folded, word);
create index knowledge_words_reversed on public.knowledge_words (reverse(folded) collate "C");
create index knowledge_words_chunk on public.knowledge_words (chunk_id);

alter table public.knowledge_words enable row level security;
revoke all on table public.knowledge_words from public, anon, authenticated, service_role;

-- The text without accents: café as cafe, Straße as Strasse, smørrebrød as smorrebrod.
create function knowledge_internal.without_accents(source text) returns text
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
begin
  if octet_length(source) = length(source) then
    return source;
  end if;
  -- Letters that Unicode does not decompose.
  source := translate(source, 'øØłŁđĐħıðÐ', 'oOlLdDhidD');
  if source ~ '[ßæÆœŒþÞ]' then
    source := replace(replace(source, 'ß', 'ss'), 'þ', 'th');
    source := replace(replace(source, 'æ', 'ae'), 'œ', 'oe');
    source := replace(replace(replace(source, 'Æ', 'AE'), 'Œ', 'OE'), 'Þ', 'Th');
  end if;
  return normalize(regexp_replace(normalize(source, nfd), '[\u0300-\u036F]+', '', 'g'), nfc);
end
$$;

-- The words of a chunk as the table words has them: 2 to 30 letters.
create function knowledge_internal.words_of(heading text, content text) returns setof text
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
declare
  longest_text constant integer := 100000; -- characters
begin
  -- Latin, Greek, Cyrillic, Armenian, Hebrew and Arabic letters. Scripts without spaces have none.
  -- One expression over all lexemes is much faster than one for each.
  return query
  select word.lexeme
    from string_to_table(
           regexp_replace(
             array_to_string(
               tsvector_to_array(
                 to_tsvector(
                   'pg_catalog.simple',
                   knowledge_internal.normalised(
                     left(concat_ws(E'\n', heading, content), longest_text)
                   )
                 )
               ),
               ' '
             ),
             '[^ ]*[^ a-z\u00DF-\u06FF\u1E00-\u1FFF][^ ]*',
             '',
             'g'
           ),
           ' '
         ) as word (lexeme)
   where length(word.lexeme) between 2 and 30;
end
$$;

-- Runs after chunks are inserted: adds their words that are not known.
create function knowledge_internal.add_words() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp
-- The plan is made when the table is empty, and used when it has a million words.
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off as $$
declare
  words text[];
  chunks uuid[];
begin
  -- A separate statement: Citus cannot join a transition table with a stored table. A text is split
  -- at its spaces first, because analysing what many chunks have once is much faster. The words of
  -- a text are those of its parts.
  with part as (
    select split.part, min(chunk.id) as id
      from (
        -- Postgres 17 has no min of a uuid.
        select written.id::text collate "C" as id, written.heading, written.content
          from written_chunks as written
      ) as chunk
     cross join lateral string_to_table(concat_ws(' ', chunk.heading, chunk.content), ' ')
           as split (part)
     group by split.part
  ),
  listed as (
    select word.lexeme as word, min(source.id)::uuid as id
      from (
        select part.id, string_agg(part.part, ' ') as parts from part group by part.id
      ) as source
     cross join lateral knowledge_internal.words_of(null, source.parts) as word (lexeme)
     group by word.lexeme
  )
  select array_agg(listed.word), array_agg(listed.id) into words, chunks from listed;
  insert into public.knowledge_words (word, folded, chunk_id)
  select written.word, written.folded, written.id
    from (
      select listed.word, listed.id,
             case octet_length(listed.word)
               when length(listed.word) then listed.word
               else knowledge_internal.without_accents(listed.word)
             end as folded
        from unnest(words, chunks) as listed (word, id)
    ) as written
   where not exists (
           select
             from public.knowledge_words as known
            where known.folded = written.folded
              and known.word = written.word
           -- Prevents a join that reads all words.
           offset 0
         );
  return null;
end
$$;

create trigger add_words
  after insert on public.knowledge_chunks
  referencing new table as written_chunks
  for each statement execute function knowledge_internal.add_words();

-- The condition for a word, read in each configuration; null for a word that all leave out.
create function knowledge_internal.word_query(word text, configurations regconfig[]) returns tsquery
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
-- Postgres sends a NOTICE for a stop word.
set client_min_messages = warning as $$
begin
  return (
    select string_agg(distinct reading.query::text, ' | ')::tsquery
      from unnest(configurations) as language (configuration)
     cross join lateral plainto_tsquery(language.configuration, word) as reading (query)
     where numnode(reading.query) > 0
  );
end
$$;

-- For the words that are known by one of these chunks and that it no longer has: finds another
-- chunk that has the word as a lexeme, or as it is among 20 that have a form of it, or deletes the
-- word.
create function knowledge_internal.release_words(chunks uuid[], kept text[] default '{}')
returns void
language plpgsql volatile security invoker set search_path = pg_catalog, pg_temp
-- The planner overestimates how many rows have a word. Compiling takes longer than looking.
set enable_seqscan = off
set jit = off
set standard_conforming_strings = on as $$
declare
  most_read constant integer := 20; -- chunks
  configurations regconfig[];
  places tid[];
  released_words text[];
begin
  select array_agg(known.ctid), array_agg(known.word)
    into places, released_words
    from public.knowledge_words as known
   where known.chunk_id = any (chunks)
     and known.word <> all (kept);
  if places is null then
    return;
  end if;
  -- A user who deletes a document could have set it to make words of other documents disappear.
  perform set_config('knowledge_internal.readings', '', true);
  configurations := knowledge_internal.query_configurations();
  with released as (
    select listed.place, listed.word
      from unnest(places, released_words) as listed (place, word)
  ),
  -- A word that is a lexeme of another chunk needs no look at the text of that chunk.
  by_lexeme as materialized (
    select released.place, released.word, found.id
      from released
      left join lateral (
             select other.id
               from public.knowledge_chunks as other
              where other.status = 'active'
                and other.content_tsv @@ knowledge_internal.quoted_lexeme(released.word)::tsquery
              limit 1
           ) as found on true
  ),
  kept_by as materialized (
    select by_lexeme.place, coalesce(by_lexeme.id, found.id) as id
      from by_lexeme
      left join lateral (
             -- Chunks that have the lexeme of the word may have another form of it.
             select form.id
               from (
                 select other.id, other.heading, other.content
                   from public.knowledge_chunks as other
                  where other.status = 'active'
                    and other.content_tsv
                          @@ knowledge_internal.word_query(by_lexeme.word, configurations)
                  limit most_read
               ) as form
              where position(by_lexeme.word in lower(concat_ws(' ', form.heading, form.content)))
                      > 0
                and lower(concat_ws(' ', form.heading, form.content))
                      ~ ('\m' || by_lexeme.word || '\M')
              limit 1
           ) as found on by_lexeme.id is null
  ),
  forgotten as (
    delete from public.knowledge_words as known
     using kept_by
     where known.ctid = kept_by.place
       and kept_by.id is null
  )
  update public.knowledge_words as known
     set chunk_id = kept_by.id
    from kept_by
   where known.ctid = kept_by.place
     and kept_by.id is not null;
end
$$;

-- Runs after chunks are deleted: releases the words that they had.
create function knowledge_internal.keep_words() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  if tg_op = 'TRUNCATE' then
    truncate public.knowledge_words;
  else
    perform knowledge_internal.release_words(array(select chunk.id from deleted_chunks as chunk));
  end if;
  return null;
end
$$;

create trigger keep_words
  after delete on public.knowledge_chunks
  referencing old table as deleted_chunks
  for each statement execute function knowledge_internal.keep_words();

-- Runs after the text of a chunk is changed: releases the words that it had, adds those it has.
create function knowledge_internal.replace_words() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp
-- As in add_words.
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off as $$
declare
  words constant text[] := array(select knowledge_internal.words_of(new.heading, new.content));
begin
  perform knowledge_internal.release_words(array[old.id], words);
  insert into public.knowledge_words (word, folded, chunk_id)
  select written.word, written.folded, new.id
    from (
      select listed.word, knowledge_internal.without_accents(listed.word) as folded
        from unnest(words) as listed (word)
    ) as written
   where not exists (
           select
             from public.knowledge_words as known
            where known.folded = written.folded
              and known.word = written.word
           -- Prevents a join that reads all words.
           offset 0
         );
  return null;
end
$$;

create trigger replace_words
  after update on public.knowledge_chunks
  for each row
  when ((old.content, old.heading) is distinct from (new.content, new.heading))
  execute function knowledge_internal.replace_words();

create trigger clear_words
  after truncate on public.knowledge_chunks
  for each statement execute function knowledge_internal.keep_words();

-- Deletes what concurrent transactions leave: a word that is there twice, a word of a chunk that is
-- deleted. refresh_knowledge_statistics calls it.
create function knowledge_internal.tidy_words() returns void
language plpgsql volatile security invoker set search_path = pg_catalog, pg_temp as $$
begin
  -- A row that another transaction holds is left to the next call.
  delete from public.knowledge_words as known
   using (
     select surplus.ctid as place
       from public.knowledge_words as surplus
      where not exists (
              select from public.knowledge_chunks as chunk where chunk.id = surplus.chunk_id
            )
         or exists (
              select
                from public.knowledge_words as same
               where same.folded = surplus.folded
                 and same.word = surplus.word
                 and same.ctid < surplus.ctid
            )
        for update skip locked
   ) as tidied
   where known.ctid = tidied.place;
end
$$;

-- The known words that differ from a word by one letter more, less or other, or by two neighbouring
-- letters exchanged; accents do not count. At most most_words (null: all), in their order.
create function knowledge_internal.near_words(word text, most_words integer)
returns table (near text)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
-- Without statistics the planner takes the table for small.
set enable_seqscan = off as $$
declare
  folded constant text := knowledge_internal.without_accents(word);
  half constant integer := length(folded) / 2;
  beginning constant text := left(folded, half);
  ending constant text := reverse(substr(folded, half + 1));
  exact text[];
  later text[];
  earlier text[];
begin
  -- One letter left out, or two exchanged: these are words themselves. One letter replaced or
  -- added, in the second half or in the first: these are patterns.
  select array_agg(form.exact), array_agg(form.pattern) filter (where form.place > half),
         array_agg(form.pattern) filter (where form.place <= half)
    into exact, later, earlier
    from (
      select number, left(folded, number - 1) as before, substr(folded, number, 1) as letter,
             substr(folded, number + 1) as rest
        from generate_series(1, length(folded)) as listed (number)
    ) as split
   cross join lateral (
           values
             (number, before || rest, before || '_' || rest),
             (
               number + 1, before || nullif(left(rest, 1), '') || letter || substr(rest, 2),
               before || letter || '_' || rest
             ),
             -- A letter before the first.
             (case number when 1 then 1 end, null, '_' || folded)
         ) as form (place, exact, pattern);
  return query
  select distinct found.word
    from (
      select known.word
        from public.knowledge_words as known
       where known.folded = any (exact)
      union all
      select known.word
        from public.knowledge_words as known
       where known.folded >= beginning
         and known.folded < beginning || chr(1114111)
         and known.folded like any (later)
      union all
      select known.word
        from public.knowledge_words as known
       where reverse(known.folded) collate "C" >= ending
         and reverse(known.folded) collate "C" < ending || chr(1114111)
         and known.folded like any (earlier)
    ) as found
   where found.word <> near_words.word
   order by 1
   limit most_words;
end
$$;

-- The first of the listed words that a chunk has which may be seen (scope null: any chunk), and how
-- many of the first 20 chunks with a form of the word have it.
create function knowledge_internal.first_visible_words(
  listed text[], most_words integer, scope knowledge_internal.row_scope, out words text[],
  out chunk_counts bigint[]
)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  configurations constant regconfig[] := knowledge_internal.query_configurations();
  forms tsquery[] := array(
    select knowledge_internal.word_query(one.word, configurations)
      from unnest(listed) with ordinality as one (word, place)
     order by one.place
  );
begin
  words := '{}';
  chunk_counts := '{}';
  if cardinality(listed) > most_words then
    -- Hidden words, of which there may be many, need no look at a text.
    select coalesce(array_agg(listed[seen.place] order by seen.place), '{}'),
           array_agg(forms[seen.place] order by seen.place)
      into listed, forms
      from knowledge_internal.visible_words(
             listed, forms, scope, false
           ) as seen
     where seen.has_form;
  end if;
  for start in 1 .. cardinality(listed) by most_words loop
    select words || array_agg(listed[start - 1 + seen.place] order by seen.place),
           chunk_counts || array_agg(seen.chunks order by seen.place)
      into words, chunk_counts
      from knowledge_internal.visible_words(
             listed[start : start + most_words - 1], forms[start : start + most_words - 1],
             scope, true
           ) as seen
     where seen.chunks > 0;
    exit when cardinality(words) >= most_words;
  end loop;
  -- Which words count must not depend on where a part ends, and so on hidden words.
  words := words[:most_words];
  chunk_counts := chunk_counts[:most_words];
end
$$;

-- For each form of a word, whether a chunk that the viewer may see has it, and with counts_chunks
-- how many of the first 20 such chunks have the word itself, which takes longer.
create function knowledge_internal.visible_words(
  words text[], forms tsquery[], scope knowledge_internal.row_scope, counts_chunks boolean
) returns table (place bigint, has_form boolean, chunks bigint)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
-- The planner overestimates how many rows have a word. Compiling takes longer than looking.
set enable_seqscan = off
set jit = off as $$
declare
  most_read constant integer := case when counts_chunks then 20 else 1 end; -- chunks
begin
  return query execute
    'select asked.place, count(found.id) > 0,'
    '       count(*) filter ('
    '         where $4 and asked.word in ('
    '           select of_chunk.word'
    '             from knowledge_internal.words_of(found.heading, found.content)'
    '                  as of_chunk (word)'
    '         )'
    '       )'
    '  from unnest($2, $3) with ordinality as asked (word, form, place)'
    '  left join lateral ('
    '         select stored.id, stored.heading, stored.content'
    '           from ('
    '             select chunk.id'
    '               from public.knowledge_chunks as chunk'
    '              where ' || coalesce(scope.visible, 'chunk.status = ''active''') ||
    '                and chunk.content_tsv @@ asked.form'
    '              limit $5'
    '           ) as visible'
    '           join public.knowledge_chunks as stored on stored.id = visible.id'
    '       ) as found on true'
    ' group by asked.place'
    using scope, words, forms, counts_chunks, most_read;
end
$$;

-- For typed words that no chunk has, or under a restricted scope no chunk that may be seen: the
-- word by which each is replaced, as an object; null for none. forms: the words' conditions. Of the
-- first 12 near words that the viewer may see, the one is taken that most of the first 20 chunks
-- have.
create function knowledge_internal.nearest_words(
  typed text[], forms tsquery[], scope knowledge_internal.row_scope
) returns jsonb
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  most_near constant integer := 200; -- for each word, where no word is hidden
  most_visible constant integer := 12;
  asked text;
  visible record;
  replaced jsonb;
begin
  if scope.is_restricted is true then
    -- Whether a word is known must not depend on chunks that the viewer may not see.
    typed := array(
      select typed[seen.place]
        from knowledge_internal.visible_words(
               typed, forms, scope, false
             ) as seen
       where not seen.has_form
    );
  end if;
  foreach asked in array typed loop
    visible := knowledge_internal.first_visible_words(
      array(
        select knowledge_internal.near_words(
                 lower(asked), case when scope.is_restricted is not true then most_near end
               )
      ),
      most_visible, scope
    );
    if knowledge_internal.is_recording() then
      perform knowledge_internal.record_unknown_word(
        asked, visible.words, visible.chunk_counts, knowledge_internal.query_configurations()
      );
    end if;
    replaced := coalesce(
      (
        select coalesce(replaced, '{}') || jsonb_build_object(asked, near.word)
          from unnest(visible.words, visible.chunk_counts) as near (word, chunks)
         order by near.chunks desc, near.word
         limit 1
      ),
      replaced
    );
  end loop;
  return replaced;
end
$$;

-- nearest_words for the words of a question that have five letters or more and that no chunk has.
-- Words are looked up also where the viewer may not see all chunks.
create function knowledge_internal.respelled_words(
  query_text text, analysis knowledge_internal.query_analysis, scope knowledge_internal.row_scope
) returns jsonb
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
declare
  is_restricted constant boolean := scope.is_restricted is true;
  readings constant jsonb := knowledge_internal.shard_readings();
  typed text[];
  forms tsquery[];
begin
  -- Mostly each word is in a chunk.
  if not is_restricted and readings is null and 0 < all (analysis.document_frequencies)
     and not exists (
       select
         from unnest(analysis.word_queries) as word (form)
        where (array_to_tsvector(analysis.lexemes) @@ word.form) is not true
     )
  then
    return null;
  end if;
  -- Words outside quotation marks, without those that exclude. Eight are looked up.
  select array_agg(word.typed), array_agg(word.form)
    into typed, forms
    from (
      select said.typed, said.form
        from unnest(analysis.words, analysis.word_queries, analysis.compounds) with ordinality
             as said (typed, form, compound, place)
       where said.compound is null
         and length(said.typed) >= 5
         and (
           is_restricted
           or readings is not null
           or (
             said.form @@ (
               select array_to_tsvector(array_agg(asked.lexeme))
                 from unnest(analysis.lexemes, analysis.document_frequencies)
                      as asked (lexeme, document_frequency)
                where asked.document_frequency > 0
             )
           ) is not true
         )
         and lower(said.typed) ~ '^[a-z\u00DF-\u06FF\u1E00-\u1FFF]{2,30}$'
         and said.typed <> all (array(
               select regexp_split_to_table(phrase.parts[1], '\W+')
                 from regexp_matches(
                        translate(left(query_text, 4096), '“”„‟«»', '""""""'),
                        '"([^"]*)"',
                        'g'
                      ) as phrase (parts)
             ))
       order by said.place
       limit case when readings is null then 8 end
    ) as word;
  return case
    when readings is not null then knowledge_internal.shared_respelling(typed, readings)
    when typed is not null then knowledge_internal.nearest_words(
      typed, forms, scope
    )
  end;
end
$$;

-- The question with its words replaced. A word has letters only, so it is no pattern.
create function knowledge_internal.respelled(query_text text, replaced jsonb) returns text
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
declare
  replacement record;
begin
  query_text := left(query_text, 4096); -- analyse_query reads no more
  for replacement in
    select entry.key as typed, entry.value as word from jsonb_each_text(replaced) as entry
  loop
    query_text := regexp_replace(
      query_text, '\m' || replacement.typed || '\M', replacement.word, 'gi'
    );
  end loop;
  return query_text;
end
$$;
