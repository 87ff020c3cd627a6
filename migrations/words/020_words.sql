-- 020_words: the words of the chunks and synonyms: typos, accents, prefixes, other words.
-- Module: words.
-- Adds: tables knowledge_words and knowledge_synonyms, the triggers that keep them, and the
-- functions that a search calls for other readings of a word. Reads all chunks, and then locks
-- knowledge_chunks against writes while triggers are created and new chunks are read again.
-- Written from supabase/schemas/modules/words/20_words.sql by `make baseline`: edit that file.

create table public.knowledge_words (
  -- Publications of all tables need it.
  id uuid primary key default gen_random_uuid(),
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
-- Other spellings of a word without accents.
create index knowledge_words_accented on public.knowledge_words (folded) where word <> folded;
create index knowledge_words_reversed on public.knowledge_words (reverse(folded) collate "C");
create index knowledge_words_chunk on public.knowledge_words (chunk_id);

alter table public.knowledge_words enable row level security;
create policy knowledge_words_none on public.knowledge_words
  to anon, authenticated using (false);
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

-- The words of a chunk as the table words has them: 2 to 30 letters. Compounds are split as in the
-- search, which also keeps the time linear: for a_b_c, the parser looks for a host name from each
-- letter on.
create function knowledge_internal.words_of(heading text, content text) returns setof text
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
declare
  longest_text constant integer := 100000; -- characters
begin
  -- One expression over all lexemes is much faster than one for each.
  return query
  select word.lexeme
    from string_to_table(
           regexp_replace(
             array_to_string(
               tsvector_to_array(
                 to_tsvector(
                   'pg_catalog.simple',
                   knowledge_internal.apart(
                     left(concat_ws(E'\n', heading, content), longest_text)
                   )
                 )
               ),
               ' '
             ),
             '[^ ]*[^ ' || knowledge_internal.letters_of_words() || '][^ ]*',
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
        select written.id::text collate "C" as id, written.heading,
               coalesce(written.content, knowledge_internal.content_of(written.id)) as content
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

-- Whether a chunk has a word of the table words.
create function knowledge_internal.has_word(word text, heading text, content text) returns boolean
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
declare
  source constant text := lower(
    knowledge_internal.normalised(concat_ws(E'\n', heading, content))
  );
begin
  -- Much faster than the pattern.
  return position(word in source) > 0
    and source ~ ('(?<![[:alnum:]])' || word || '(?![[:alnum:]])');
end
$$;

-- For these rows of the table words, whose chunk no longer has the word: finds another chunk that
-- has the word as a lexeme, or as it is among 20 that have a form of it, or deletes the word.
create function knowledge_internal.release_words(places tid[], released_words text[])
returns void
language plpgsql volatile security invoker set search_path = pg_catalog, pg_temp
-- The planner overestimates how many rows have a word. Compiling takes longer than looking.
set enable_seqscan = off
set jit = off
set standard_conforming_strings = on as $$
declare
  most_read constant integer := 20; -- chunks
  configurations regconfig[];
begin
  if places is null then
    return;
  end if;
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
                 select other.heading, other.id,
                        coalesce(other.content, knowledge_internal.content_of(other.id)) as content
                   from public.knowledge_chunks as other
                  where other.status = 'active'
                    and other.content_tsv
                          @@ knowledge_internal.word_query(by_lexeme.word, configurations)
                  limit most_read
               ) as form
              where knowledge_internal.has_word(by_lexeme.word, form.heading, form.content)
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
language plpgsql security definer set search_path = pg_catalog, pg_temp
-- As in add_words.
set enable_seqscan = off as $$
declare
  chunks uuid[];
begin
  if tg_op = 'TRUNCATE' then
    truncate public.knowledge_words;
  else
    -- A separate statement, as in add_words.
    chunks := array(select chunk.id from deleted_chunks as chunk);
    perform knowledge_internal.release_words(array_agg(known.ctid), array_agg(known.word))
       from public.knowledge_words as known
      where known.chunk_id = any (chunks);
  end if;
  return null;
end
$$;

-- Runs after the text of a chunk is changed: releases the words that it had, adds those it has.
create function knowledge_internal.replace_words() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp
-- As in add_words.
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off as $$
declare
  words constant text[] := array(
    select knowledge_internal.words_of(
             new.heading, coalesce(new.content, knowledge_internal.content_of(new.id))
           )
  );
begin
  perform knowledge_internal.release_words(array_agg(known.ctid), array_agg(known.word))
     from public.knowledge_words as known
    where known.chunk_id = old.id
      and known.word <> all (words);
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

-- Runs after each copy of the statistics, on what concurrent transactions leave: deletes a word
-- that is there twice, and releases a word of a chunk that is deleted. The copy may run within the
-- statement that deletes the chunk, before or after keep_words.
create function knowledge_internal.tidy_words() returns trigger
language plpgsql security invoker set search_path = pg_catalog, pg_temp as $$
begin
  -- A row that another transaction holds is left to the next call.
  delete from public.knowledge_words as known
   using (
     select surplus.ctid as place
       from public.knowledge_words as surplus
      where exists (
              select
                from public.knowledge_words as same
               where same.folded = surplus.folded
                 and same.word = surplus.word
                 and same.ctid < surplus.ctid
            )
        for update skip locked
   ) as tidied
   where known.ctid = tidied.place;
  perform knowledge_internal.release_words(array_agg(left_over.ctid), array_agg(left_over.word))
     from (
       select known.ctid, known.word
         from public.knowledge_words as known
        where not exists (
                select from public.knowledge_chunks as chunk where chunk.id = known.chunk_id
              )
          for update skip locked
     ) as left_over;
  return null;
end
$$;

create trigger tidy_words
  after insert or update of analysed_at on public.knowledge_corpus_statistics
  for each row execute function knowledge_internal.tidy_words();

-- The known words that differ from a word by one letter more, less or other, or by two neighbouring
-- letters exchanged; accents do not count. At most most_words (null: all), in their order.
create function knowledge_internal.similar_words(word text, most_words integer)
returns table (near text)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
-- Without statistics the planner takes the table for small.
set enable_seqscan = off as $$
declare
  folded constant text := knowledge_internal.without_accents(
    knowledge_internal.normalised(word)
  );
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
   where found.word <> similar_words.word
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
    '         where $4 and found.id is not null and knowledge_internal.has_word('
    '           asked.word, found.heading,'
    '           coalesce(found.content, knowledge_internal.content_of(found.id))'
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

-- Words outside quotation marks that have five letters or more, without those that exclude. Of the
-- words near to one, the first 12 that the viewer may see are counted in 20 chunks.
create or replace function knowledge_internal.near_words(
  question knowledge_internal.question, scope knowledge_internal.row_scope
) returns jsonb
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
-- Postgres sends a NOTICE for a stop word.
set client_min_messages = warning
set standard_conforming_strings = on as $$
declare
  most_typed constant integer := 8;
  most_near constant integer := 200; -- for each word, where no word is hidden
  most_visible constant integer := 12;
  is_restricted constant boolean := scope.is_restricted is true;
  known tsvector;
  typed text[];
  forms tsquery[];
  asked text;
  visible record;
  near jsonb;
  configurations regconfig[];
begin
  -- Mostly each word is in a chunk.
  if not is_restricted and 0 < all (question.frequencies)
     and not exists (
       select
         from unnest(question.word_queries) as word (form)
        where (array_to_tsvector(question.lexemes) @@ word.form) is not true
     )
  then
    return null;
  end if;
  configurations := knowledge_internal.query_configurations();
  known := array_to_tsvector(array(
    select listed.lexeme
      from unnest(question.lexemes, question.frequencies)
           as listed (lexeme, document_frequency)
     where listed.document_frequency > 0
  ));
  select array_agg(word.typed), array_agg(word.form)
    into typed, forms
    from (
      select said.typed, said.form
        from unnest(question.words, question.word_queries, question.compounds) with ordinality
             as said (typed, form, compound, place)
       where said.compound is null
         and length(said.typed) >= 5
         -- getUserName is another function than setUserName.
         and not knowledge_internal.is_identifier(said.typed)
         and (is_restricted or (said.form @@ known) is not true)
         -- A stop word of one language is not misspelt in another.
         and not exists (
               select
                 from unnest(configurations) as language (configuration)
                where numnode(plainto_tsquery(language.configuration, said.typed)) = 0
             )
         and lower(said.typed) ~ ('^[' || knowledge_internal.letters_of_words() || ']{2,30}$')
         and said.typed <> all (array(
               select regexp_split_to_table(phrase.parts[1], '\W+')
                 from regexp_matches(
                        translate(left(question.query_text, 4096), '“”„‟«»', '""""""'),
                        '"([^"]*)"',
                        'g'
                      ) as phrase (parts)
             ))
       order by said.place
       limit most_typed
    ) as word;
  if is_restricted and typed is not null then
    -- Whether a word is known must not depend on chunks that the viewer may not see.
    typed := array(
      select typed[seen.place]
        from knowledge_internal.visible_words(typed, forms, scope, false) as seen
       where not seen.has_form
    );
  end if;
  foreach asked in array coalesce(typed, '{}') loop
    visible := knowledge_internal.first_visible_words(
      array(
        select knowledge_internal.similar_words(
                 lower(asked), case when not is_restricted then most_near end
               )
      ),
      most_visible, scope
    );
    near := coalesce(near, '{}') || jsonb_build_object(
      asked,
      (
        select coalesce(jsonb_object_agg(listed.word, listed.chunks), '{}')
          from unnest(visible.words, visible.chunk_counts) as listed (word, chunks)
      )
    );
  end loop;
  return near;
end
$$;

create table public.knowledge_synonyms (
  collection text not null default '',
  term text not null,
  synonym text not null,
  is_two_way boolean not null default true,
  weight float8 not null default 0.8,
  term_lexemes text[] not null default '{}',
  synonym_lexemes text[] not null default '{}',
  primary key (collection, term, synonym),
  constraint term_is_one_word check (term ~ '^[[:alpha:]]{2,60}$'),
  constraint synonym_is_one_word check (synonym ~ '^[[:alpha:]]{2,60}$'),
  constraint synonym_is_another_word check (lower(term) <> lower(synonym)),
  constraint weight_is_a_share check (weight > 0 and weight <= 1)
);

comment on table public.knowledge_synonyms is
  'Words that mean the same. A search for term also finds chunks with synonym, and with is_two_way '
  'the reverse. collection: empty for all searches, else for searches that name this collection. '
  'weight: the share of the weight that the typed word has. The lexemes are set by the database.';
create index knowledge_synonyms_term on public.knowledge_synonyms
  using gin (term_lexemes) with (fastupdate = off);
create index knowledge_synonyms_synonym on public.knowledge_synonyms
  using gin (synonym_lexemes) with (fastupdate = off);

alter table public.knowledge_synonyms enable row level security;
create policy knowledge_synonyms_none on public.knowledge_synonyms
  to anon, authenticated using (false);
revoke all on table public.knowledge_synonyms from public, anon, authenticated;
grant select, insert, update, delete on table public.knowledge_synonyms to service_role;

-- Runs before a synonym is written: sets the lexemes by which searches find it.
create function knowledge_internal.complete_synonym() returns trigger
-- definer: service_role may write synonyms and has no rights on the internal schema.
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  configurations constant regconfig[] := array(
    select configuration.oid::regconfig
      from pg_catalog.pg_ts_config as configuration
     where configuration.cfgnamespace = 'pg_catalog'::regnamespace
  );
begin
  new.term_lexemes := array(
    select distinct unnest(
             tsvector_to_array(
               to_tsvector(language.configuration, knowledge_internal.normalised(new.term))
             )
           )
      from unnest(configurations) as language (configuration)
  );
  new.synonym_lexemes := array(
    select distinct unnest(
             tsvector_to_array(
               to_tsvector(language.configuration, knowledge_internal.normalised(new.synonym))
             )
           )
      from unnest(configurations) as language (configuration)
  );
  return new;
end
$$;

create trigger complete_synonym
  before insert or update on public.knowledge_synonyms
  for each row execute function knowledge_internal.complete_synonym();

-- Lexemes of the words that begin with a prefix: the 20 most common ones, and those of the 20
-- shortest known words if the prefix has three letters or there are fewer common ones.
create function knowledge_internal.completions(prefix text, configurations regconfig[])
returns setof text
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
-- Without statistics the planner takes the table of words for small.
set enable_seqscan = off as $$
declare
  most_words constant integer := 20;
  most_common constant integer := 20;
  letters_for_rare_words constant integer := 3; -- fewer begin too many words
  most_read constant integer := 2000; -- words
  beginning constant text := knowledge_internal.without_accents(lower(prefix));
  last_letter constant text := chr(1114111);
  common text[];
begin
  common := array(
    select listed.lexeme
      from public.knowledge_lexeme_statistics as listed
     where listed.lexeme >= beginning
       and listed.lexeme < beginning || last_letter
       and listed.lexeme ~ ('^[' || knowledge_internal.letters_of_words() || ']+$')
     order by listed.frequency desc, listed.lexeme
     limit most_common
  );
  return query select unnest(common);
  if length(beginning) < letters_for_rare_words and cardinality(common) = most_common then
    return;
  end if;
  return query
  select lexeme.name
    from (
      select known.word
        from (
          select listed.word
            from public.knowledge_words as listed
           where listed.folded >= beginning
             and listed.folded < beginning || last_letter
           limit most_read
        ) as known
       group by known.word
       order by length(known.word), known.word
       limit most_words
    ) as found
   cross join unnest(configurations) as language (configuration)
   cross join unnest(
           tsvector_to_array(to_tsvector(language.configuration, found.word))
         ) as lexeme (name);
end
$$;

-- Lexemes of the words that begin with a prefix and that a chunk has which may be seen: the 20 that
-- most of the first 200 such chunks have. If the prefix has three letters, the 40, and those of the
-- 20 shortest words whose lexeme does not begin so.
create function knowledge_internal.visible_completions(
  prefix text, configurations regconfig[], scope knowledge_internal.row_scope
) returns setof text
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
-- The calling search forbids a sequential scan, which soon finds enough rows for a short prefix.
set enable_seqscan = on
set cpu_index_tuple_cost = 0.005
-- Which rows are read first must not depend on the plan, and so on hidden rows.
set enable_indexscan = off
set synchronize_seqscans = off
set standard_conforming_strings = on as $$
declare
  most_words constant integer := 20;
  most_read constant integer := 200; -- chunks
  letters_for_rare_words constant integer := 3; -- fewer begin too many words
  last_letter constant text := chr(1114111);
  beginning constant text := knowledge_internal.without_accents(lower(prefix));
  longest_lexeme constant integer := 2046; -- bytes
  -- As typed, or without accents.
  beginnings constant text[] := array(
    select listed.beginning
      from unnest(array[beginning, lower(prefix)]) as listed (beginning)
     where octet_length(listed.beginning) <= longest_lexeme
  );
  has_few_words constant boolean := length(beginning) >= letters_for_rare_words;
  other_words text[];
  seen knowledge_internal.row_scope := scope;
begin
  if beginnings = '{}' then
    return;
  end if;
  seen.matching := scope.visible;
  return query
  select found.lexeme
    from knowledge_internal.some_rows(
           seen, most_read,
           (
             select string_agg(
                      knowledge_internal.quoted_lexeme(listed.beginning) || ':*', ' | '
                    )::tsquery
               from unnest(beginnings) as listed (beginning)
           )
         ) as chunk
   cross join unnest(tsvector_to_array(chunk.content_tsv)) as found (lexeme)
   where found.lexeme ^@ any (beginnings)
     and found.lexeme ~ ('^[' || knowledge_internal.letters_of_words() || ']+$')
   group by found.lexeme
   order by count(*) desc, length(found.lexeme), found.lexeme collate "C"
   limit case when has_few_words then 2 * most_words else most_words end;
  if not has_few_words then
    return;
  end if;

  -- A lexeme may be shorter than the prefix, or have accents.
  other_words := array(
    select known.word
      from (
        select distinct listed.word
          from public.knowledge_words as listed
         where listed.folded >= beginning
           and listed.folded < beginning || last_letter
      ) as known
     where not exists (
             select
               from unnest(configurations) as language (configuration)
              cross join unnest(
                      tsvector_to_array(to_tsvector(language.configuration, known.word))
                    ) as lexeme (name)
              where lexeme.name ^@ any (beginnings)
           )
     order by length(known.word), known.word
  );
  return query
  select lexeme.name
    from unnest(
           (knowledge_internal.first_visible_words(other_words, most_words, scope)).words
         ) as visible (word)
   cross join unnest(configurations) as language (configuration)
   cross join unnest(
           tsvector_to_array(to_tsvector(language.configuration, visible.word))
         ) as lexeme (name);
end
$$;

-- The known words that differ from a word by accents only, of those that may be seen.
create function knowledge_internal.other_spellings(
  typed text, folded text, scope knowledge_internal.row_scope
) returns setof text
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  most_spellings constant integer := 8;
  known_words constant text[] := array(
    select distinct known.word
      from public.knowledge_words as known
     where known.folded = other_spellings.folded
       and known.word <> typed
     order by known.word
     limit case when scope.is_restricted is not true then most_spellings end
  );
begin
  return query
  select unnest(
           case
             when scope.is_restricted is not true or known_words = '{}' then known_words
             else (
               knowledge_internal.first_visible_words(known_words, most_spellings, scope)
             ).words
           end
         );
end
$$;

-- The expansions that this database has for the words, which are in lower case, and for prefix.
create function knowledge_internal.known_expansions(
  words text[], configurations regconfig[], collections text[], prefix text,
  scope knowledge_internal.row_scope
) returns knowledge_internal.expansion[]
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  accent_share constant float8 := 0.8;
  completion_share constant float8 := 0.9;
  completed constant text[] := case
    when prefix is null then '{}'
    when scope.is_restricted is not true
      then array(select knowledge_internal.completions(prefix, configurations))
    else array(select knowledge_internal.visible_completions(prefix, configurations, scope))
  end;
begin
  return array(
    with typed as materialized (
      select word.typed, knowledge_internal.without_accents(word.typed) as folded,
             language.configuration, lexeme.name
        from unnest(words) as word (typed)
       cross join unnest(configurations) as language (configuration)
        left join lateral unnest(
               tsvector_to_array(to_tsvector(language.configuration, word.typed))
             ) as lexeme (name) on true
    ),
    other as (
      select distinct on (word.typed, spelling.word)
             word.typed, spelling.word, accent_share as share
        from (select distinct typed.typed, typed.folded from typed) as word
       cross join lateral knowledge_internal.other_spellings(word.typed, word.folded, scope)
               as spelling (word)
      union all
      select typed.typed, stored.synonym, stored.weight
        from typed
        join public.knowledge_synonyms as stored
          on stored.term_lexemes @> array[typed.name]
         and typed.name = any (
               tsvector_to_array(
                 to_tsvector(
                   typed.configuration, knowledge_internal.normalised(stored.term)
                 )
               )
             )
       where stored.collection = '' or stored.collection = any (collections)
      union all
      select typed.typed, stored.term, stored.weight
        from typed
        join public.knowledge_synonyms as stored
          on stored.synonym_lexemes @> array[typed.name]
         and typed.name = any (
               tsvector_to_array(
                 to_tsvector(
                   typed.configuration, knowledge_internal.normalised(stored.synonym)
                 )
               )
             )
       where stored.is_two_way
         and (stored.collection = '' or stored.collection = any (collections))
    ),
    reading as (
      select listed.typed, listed.lexeme, max(listed.share) as share
        from (
          select other.typed, lexeme.name as lexeme, other.share
            from other
           cross join unnest(configurations) as language (configuration)
           cross join unnest(
                   tsvector_to_array(
                     to_tsvector(
                       language.configuration, knowledge_internal.normalised(other.word)
                     )
                   )
                 ) as lexeme (name)
          union all
          select lower(prefix), unnest(completed), completion_share
        ) as listed
       where not exists (
               select
                 from typed
                where typed.typed = listed.typed
                  and typed.name = listed.lexeme
             )
       group by listed.typed, listed.lexeme
    )
    select row(
             reading.typed,
             (select min(typed.name) from typed where typed.typed = reading.typed),
             reading.lexeme,
             reading.share
           )::knowledge_internal.expansion
      from reading
  );
end
$$;

-- The other readings of the words of a text that have letters only: their spellings with other
-- accents, their synonyms in general and in the collections, and completions of prefix. Spellings
-- and completions are words of chunks that may be seen (scope null: all known words).
create or replace function knowledge_internal.expansions(
  wanted text, configurations regconfig[], collections text[], prefix text,
  scope knowledge_internal.row_scope
) returns knowledge_internal.expansion[]
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
-- Without statistics the planner takes the tables for small.
set enable_seqscan = off
set standard_conforming_strings = on as $$
declare
  words text[];
begin
  words := array(
    select distinct lower(token.parts[1])
      from regexp_matches(
             wanted, '(?<![^\s("“])([[:alpha:]]{2,30})(?![^\s.,;:!?)"”])', 'g'
           ) as token (parts)
  );
  -- Most questions have no expansion, and this check is much faster than known_expansions.
  if prefix is null
    and not exists (select from public.knowledge_synonyms)
    and not exists (
      select
        from unnest(words) as typed (word)
       cross join lateral (
               select
                 from public.knowledge_words as known
                 where known.folded = case octet_length(typed.word)
                        when length(typed.word) then typed.word
                        else knowledge_internal.without_accents(typed.word)
                      end
                  and known.word <> typed.word
               -- Prevents a join that reads all words.
               offset 0
             ) as other
    )
  then
    return '{}';
  end if;
  return knowledge_internal.known_expansions(words, configurations, collections, prefix, scope);
end
$$;

-- The index has the words with accents alone.
create or replace function knowledge_internal.has_expansions(
  words text[], lexemes text[], collections text[]
) returns boolean
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
-- Without statistics the planner takes the tables for small.
set enable_seqscan = off as $$
begin
  return exists (
           select from public.knowledge_synonyms as stored
            where stored.collection = any (array_append(collections, ''))
              and (
                stored.term_lexemes && lexemes
                or stored.is_two_way and stored.synonym_lexemes && lexemes
              )
         )
    or exists (
         select from public.knowledge_words as known
          where known.folded = any (words) and known.word <> known.folded
       );
end
$$;

revoke all on all functions in schema knowledge_internal from public;

notify pgrst, 'reload schema';

-- Chunks that are there already. Writes go on meanwhile; what they wrote is read again.
set local statement_timeout = 0;

create temporary table listed_chunks as
select chunk.id, chunk.updated_at from public.knowledge_chunks as chunk;

insert into public.knowledge_words (word, folded, chunk_id)
select listed.word, knowledge_internal.without_accents(listed.word), min(chunk.id::text)::uuid
  from knowledge_internal.chunk_rows as chunk
 cross join lateral knowledge_internal.words_of(chunk.heading, chunk.content) as listed (word)
 group by listed.word;

analyze public.knowledge_words;

create trigger add_words
  after insert on public.knowledge_chunks
  referencing new table as written_chunks
  for each statement execute function knowledge_internal.add_words();

create trigger keep_words
  after delete on public.knowledge_chunks
  referencing old table as deleted_chunks
  for each statement execute function knowledge_internal.keep_words();

create trigger replace_words
  after update on public.knowledge_chunks
  for each row
  when (old.content_hash is distinct from new.content_hash)
  execute function knowledge_internal.replace_words();

create trigger clear_words
  after truncate on public.knowledge_chunks
  for each statement execute function knowledge_internal.keep_words();

insert into public.knowledge_words (word, folded, chunk_id)
select listed.word, listed.folded, min(listed.id::text)::uuid
  from (
    select chunk.id, word.lexeme as word, knowledge_internal.without_accents(word.lexeme) as folded
      from public.knowledge_chunks as written
      join knowledge_internal.chunk_rows as chunk on chunk.id = written.id
     cross join lateral knowledge_internal.words_of(chunk.heading, chunk.content) as word (lexeme)
     where not exists (
             select
               from pg_temp.listed_chunks as before
              where before.id = written.id
                and before.updated_at = written.updated_at
           )
  ) as listed
 where not exists (
         select
           from public.knowledge_words as known
          where known.folded = listed.folded
            and known.word = listed.word
       )
 group by listed.word, listed.folded;

-- squawk-ignore ban-drop-table
drop table pg_temp.listed_chunks;
