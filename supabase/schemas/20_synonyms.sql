-- 020_synonyms: synonyms, spellings with accents, and completions of the words of a query.
-- Adds: table knowledge_synonyms with its trigger, functions completions, visible_completions,
-- other_spellings, known_expansions and expansions. Locks nothing that exists.

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
  'weight: the share of the weight that the typed word has.';
comment on column public.knowledge_synonyms.term_lexemes is
  'The lexemes of term in all languages, set by the database.';
comment on column public.knowledge_synonyms.synonym_lexemes is
  'The lexemes of synonym in all languages, set by the database.';

create index knowledge_synonyms_term on public.knowledge_synonyms
  using gin (term_lexemes) with (fastupdate = off);
create index knowledge_synonyms_synonym on public.knowledge_synonyms
  using gin (synonym_lexemes) with (fastupdate = off);

alter table public.knowledge_synonyms enable row level security;
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
    select distinct unnest(tsvector_to_array(to_tsvector(language.configuration, new.term)))
      from unnest(configurations) as language (configuration)
  );
  new.synonym_lexemes := array(
    select distinct unnest(tsvector_to_array(to_tsvector(language.configuration, new.synonym)))
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
       and listed.lexeme ~ '^[[:alpha:]]+$'
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
  -- As typed, or without accents.
  beginnings constant text[] := array[beginning, lower(prefix)];
  has_few_words constant boolean := length(beginning) >= letters_for_rare_words;
  other_words text[];
begin
  return query execute
    'select found.lexeme'
    '  from ('
    '    select chunk.content_tsv'
    '      from public.knowledge_chunks as chunk'
    '     where ' || scope.visible || ' and chunk.content_tsv @@ $2'
    '     limit $3'
    '  ) as visible'
    ' cross join unnest(tsvector_to_array(visible.content_tsv)) as found (lexeme)'
    ' where found.lexeme ^@ any ($4) and found.lexeme ~ ''^[[:alpha:]]+$'''
    ' group by found.lexeme'
    ' order by count(*) desc, length(found.lexeme), found.lexeme collate "C"'
    ' limit $5'
    using scope,
          (
            select string_agg(
                     knowledge_internal.quoted_lexeme(listed.beginning) || ':*', ' | '
                   )::tsquery
              from unnest(beginnings) as listed (beginning)
          ),
          most_read, beginnings, case when has_few_words then 2 * most_words else most_words end;
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
               tsvector_to_array(to_tsvector(typed.configuration, stored.term))
             )
       where stored.collection = '' or stored.collection = any (collections)
      union all
      select typed.typed, stored.term, stored.weight
        from typed
        join public.knowledge_synonyms as stored
          on stored.synonym_lexemes @> array[typed.name]
         and typed.name = any (
               tsvector_to_array(to_tsvector(typed.configuration, stored.synonym))
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
                   tsvector_to_array(to_tsvector(language.configuration, other.word))
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
create function knowledge_internal.expansions(
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
  if knowledge_internal.shard_readings() is not null or knowledge_internal.is_recording() then
    return knowledge_internal.exchanged_expansions(
      wanted, configurations, collections, prefix, scope
    );
  end if;
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
                where known.folded = knowledge_internal.without_accents(typed.word)
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

notify pgrst, 'reload schema';
