-- 032_shards: one corpus in several databases: the data that these exchange for a search.
-- Module: shards.
-- Adds: the steps of such a search, read_knowledge_question, knowledge_candidates,
-- fuse_knowledge_candidates and knowledge_candidate_hits; functions that sum statistics,
-- knowledge_statistics, sum_knowledge_statistics and set_knowledge_statistics; those that move
-- documents, export_knowledge_documents, import_knowledge_documents and
-- remove_exported_knowledge_documents; and what a search needs on a node of Citus.
-- Locks nothing that exists.
-- Written from supabase/schemas/modules/shards/32_shards.sql by `make baseline`: edit that file.

-- With Citus, the shard on this node: a table with the number of the shard in its name. Raises
-- 55000 if the rows are on another node.
create or replace function knowledge_internal.physical_table() returns regclass
language plpgsql stable parallel safe security invoker set search_path = pg_catalog, pg_temp as $$
declare
  chunks constant regclass := 'public.knowledge_chunks';
  shard regclass;
  holder text;
begin
  if to_regclass('pg_catalog.pg_dist_shard') is null then
    return chunks;
  end if;
  -- The statement is not static, because a database without Citus has no pg_dist_shard.
  execute
    'select case when placement.groupid = here.groupid then'
    '         to_regclass(format(''%s.%I'', class.relnamespace::regnamespace,'
    '                            class.relname || ''_'' || shard.shardid))'
    '       end,'
    '       format(''%s:%s'', node.nodename, node.nodeport)'
    '  from pg_catalog.pg_dist_shard as shard'
    '  join pg_catalog.pg_class as class on class.oid = shard.logicalrelid'
    '  join pg_catalog.pg_dist_placement as placement on placement.shardid = shard.shardid'
    '  join pg_catalog.pg_dist_node as node on node.groupid = placement.groupid'
    ' cross join pg_catalog.pg_dist_local_group as here'
    ' where shard.logicalrelid = $1'
    '   and placement.shardstate = 1'
    into shard, holder
    using chunks;
  if shard is null and holder is not null then
    raise exception 'the rows of % are on another node, %', chunks, holder
      using errcode = '55000', hint = 'Connect to that node: only there a search is complete.';
  end if;
  return coalesce(shard, chunks);
end
$$;

-- A search of several databases has four steps: read_knowledge_question returns the figures of the
-- question's words in each database, the "readings"; knowledge_candidates ranks the rows of each
-- database with the readings of all; fuse_knowledge_candidates merges these lists in one of the
-- databases, and hybrid_search_knowledge_chunks fuses them there; knowledge_candidate_hits returns
-- the rows of a page from the databases that have them.

-- Raises 22023 for a name that is not the name of a text search configuration.
create function knowledge_internal.check_configurations(argument text, names jsonb) returns void
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  -- Compared as texts: the cast to regconfig also takes the number of a configuration of none.
  unknown constant text := (
    select min(language.name)
      from jsonb_array_elements_text(names) as language (name)
     where language.name not in (
             select configuration.oid::regconfig::text
               from pg_catalog.pg_ts_config as configuration
           )
  );
begin
  if unknown is not null then
    raise exception '%: this database has no text search configuration %',
                    argument, left(quote_literal(unknown), 100)
      using errcode = '22023', hint = 'Create it, or remove the rows of this language elsewhere.';
  end if;
end
$$;

-- Raises 22023 for readings that are not answers of read_knowledge_question.
create function knowledge_internal.check_readings(readings jsonb) returns void
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  most_readings constant integer := 256;
  reading jsonb;
begin
  if (jsonb_typeof(readings) = 'array' and jsonb_array_length(readings) between 1 and most_readings)
       is not true
  then
    raise exception 'readings must be an array of 1 to % answers of read_knowledge_question',
                    most_readings
      using errcode = '22023';
  end if;
  for reading in select answer.reading from jsonb_array_elements(readings) as answer (reading) loop
    -- Each part is read as the search reads it.
    perform knowledge_internal.check_range(
              'readings: corpus.document_count', corpus.document_count, 0, 1e15
            ),
            knowledge_internal.check_range(
              'readings: corpus.mean_length', corpus.mean_length, 1, 1e15
            ),
            knowledge_internal.check_range(
              'readings: corpus.cosine_spread', corpus.cosine_spread, 0.001, 2
            )
       from jsonb_to_record(reading -> 'corpus') as corpus (
              document_count float8, mean_length float8, cosine_spread float8
            );
    perform knowledge_internal.check_range('readings: a count', count.value::float8, 0, 1e15)
       from unnest(array[reading -> 'listed', reading -> 'counted']) as counts (entries)
      cross join jsonb_each_text(counts.entries) as count;
    perform knowledge_internal.check_range('readings: a count', count.value::float8, 0, 1e15)
       from jsonb_each(reading -> 'unknown') as word
      cross join jsonb_each_text(word.value) as count;
    perform knowledge_internal.check_range('readings: a share', expansion.share, 0, 1)
       from jsonb_to_recordset(reading -> 'expansions') as expansion (
              typed text, typed_lexeme text, lexeme text, share float8
            );
    perform knowledge_internal.check_configurations('readings', reading -> 'languages');
  end loop;
  if (
    select count(*) = jsonb_array_length(readings)
      from jsonb_array_elements(readings) as answer (reading)
     where jsonb_typeof(answer.reading -> 'corpus') = 'object'
       and jsonb_typeof(answer.reading -> 'listed') = 'object'
       and jsonb_typeof(answer.reading -> 'counted') = 'object'
       and jsonb_typeof(answer.reading -> 'unknown') = 'object'
       and jsonb_typeof(answer.reading -> 'expansions') = 'array'
       and jsonb_typeof(answer.reading -> 'languages') = 'array'
       and (answer.reading ->> 'fusion') = any (knowledge_internal.fusions())
       and (answer.reading ->> 'vector_weight')::float8 >= 0
       and (answer.reading ->> 'text_weight')::float8 >= 0
  ) is not true then
    raise exception 'readings: an answer lacks a part, send what read_knowledge_question returned'
      using errcode = '22023';
  end if;
exception
  when invalid_parameter_value then
    raise;
  when data_exception then
    raise exception 'readings: %', left(sqlerrm, 200)
      using errcode = '22023', hint = 'Send what read_knowledge_question returned, unchanged.';
end
$$;

-- What the databases know together. Statistics that were set in all databases count before the sum
-- of those of each; where the databases use different ones, the newest: an id begins with its time.
create function knowledge_internal.shared_question(readings jsonb)
returns knowledge_internal.shared_question
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  most_counted constant integer := 20; -- chunks, as near_words counts
  shared_id constant text := (
    select max((answer.reading ->> 'statistics') collate "C")
      from jsonb_array_elements(readings) as answer (reading)
  );
  corpus knowledge_internal.corpus_figures;
  shared knowledge_internal.shared_question;
begin
  select greatest(sum(figures.document_count), 1),
         coalesce(
           sum(figures.mean_length * figures.document_count)
             / nullif(sum(figures.document_count), 0),
           1
         ),
         sqrt(
           sum(figures.cosine_spread ^ 2 * figures.document_count)
             / nullif(sum(figures.document_count), 0)
         )
    into corpus.document_count, corpus.mean_length, shared.cosine_spread
    from (
      select answer.reading -> 'corpus' as corpus
        from jsonb_array_elements(readings) with ordinality as answer (reading, place)
       where shared_id is null or answer.reading ->> 'statistics' = shared_id
       order by answer.place
       limit case when shared_id is not null then 1 end
    ) as listed
   cross join jsonb_to_record(listed.corpus) as figures (
           document_count float8, mean_length float8, cosine_spread float8
         );
  select coalesce(array_agg(word.lexeme), '{}'), coalesce(array_agg(word.frequency), '{}')
    into corpus.lexemes, corpus.document_frequencies
    from (
      select entry.lexeme,
             coalesce(
               max(entry.chunks) filter (where entry.is_listed),
               sum(entry.chunks) filter (where not entry.is_listed)
             ) as frequency
        from jsonb_array_elements(readings) as answer (reading)
       cross join lateral (
               select listed.key, listed.value::float8, true
                 from jsonb_each_text(answer.reading -> 'listed') as listed
                where answer.reading ->> 'statistics' = shared_id
               union all
               select counted.key, counted.value::float8, false
                 from jsonb_each_text(answer.reading -> 'counted') as counted
             ) as entry (lexeme, chunks, is_listed)
       group by entry.lexeme
    ) as word;
  shared.corpus := corpus;
  shared.configurations := array(
    select distinct language.name::regconfig
      from jsonb_array_elements(readings) as answer (reading)
     cross join jsonb_array_elements_text(answer.reading -> 'languages') as language (name)
  );
  shared.expansions := array(
    select row(
             expansion.typed, min(expansion.typed_lexeme), expansion.lexeme, max(expansion.share)
           )::knowledge_internal.expansion
      from jsonb_array_elements(readings) as answer (reading)
     cross join jsonb_to_recordset(answer.reading -> 'expansions') as expansion (
             typed text, typed_lexeme text, lexeme text, share float8
           )
     group by expansion.typed, expansion.lexeme
     order by expansion.typed, expansion.lexeme
  );
  -- The words that no database has, with the near word that most chunks have. Every word is unknown
  -- in a database without chunks, so these do not count.
  shared.replaced := (
    select jsonb_object_agg(chosen.typed, chosen.near)
      from (
        select distinct on (found.typed) found.typed, found.near
          from (
            select word.key as typed, near.key as near, sum(near.value::float8) as chunks
              from jsonb_array_elements(readings) as answer (reading)
             cross join jsonb_each(answer.reading -> 'unknown') as word
             cross join lateral jsonb_each_text(word.value) as near
             group by word.key, near.key
          ) as found
         where not exists (
                 select
                   from jsonb_array_elements(readings) as answer (reading)
                  where answer.reading -> 'languages' <> '[]'
                    and not (answer.reading -> 'unknown') ? found.typed
               )
         order by found.typed, least(found.chunks, most_counted) desc, found.near
      ) as chosen
  );
  return shared;
end
$$;

-- given_arguments of a search in several databases. Raises 22023 for like_ids.
create function knowledge_internal.arguments_of_all(search jsonb)
returns knowledge_internal.search_arguments
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  given constant knowledge_internal.search_arguments := knowledge_internal.given_arguments(search);
begin
  if given.like_ids <> '{}' then
    raise exception 'like_ids is not possible over several databases, each has only some rows'
      using errcode = '22023', hint = 'Leave it out, or search the database that has these rows.';
  end if;
  return given;
end
$$;

-- The arguments with one fusion for all, that of the first answer, whatever each database stores.
-- Embeddings of each database's own text hits would give similarities that do not compare.
create function knowledge_internal.shared_arguments(search jsonb, readings jsonb)
returns knowledge_internal.search_arguments
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  given knowledge_internal.search_arguments := knowledge_internal.arguments_of_all(search);
begin
  perform knowledge_internal.check_readings(readings);
  given.fusion := readings #>> '{0,fusion}';
  given.vector_weight := readings #>> '{0,vector_weight}';
  given.text_weight := readings #>> '{0,text_weight}';
  given.embedding_from_text := false;
  given.on_bad_embedding := replace(given.on_bad_embedding, 'from_text', 'text');
  return given;
end
$$;

create function public.read_knowledge_question(search jsonb) returns jsonb
-- definer: service_role has no rights on the internal schema.
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
declare
  given constant knowledge_internal.search_arguments :=
    knowledge_internal.arguments_of_all(search);
  plan constant knowledge_internal.search_plan := knowledge_internal.plan_search(given);
  named constant text[] := coalesce(plan.collections, ((plan.scope).wanted).collections);
  configurations constant regconfig[] := knowledge_internal.query_configurations();
  corpus constant knowledge_internal.corpus_figures := knowledge_internal.corpus_figures();
  question knowledge_internal.search_question;
  analysis knowledge_internal.query_analysis;
  near jsonb;
  near_words text[];
  unknown jsonb := '{}';
  expansions knowledge_internal.expansion[];
  lexemes text[] := '{}';
  frequencies float8[] := '{}';
  others text[];
  shared_id text;
begin
  foreach question in array plan.questions loop
    continue when question.query_text is null or configurations is null;
    analysis := knowledge_internal.analyse_query(
      question.query_text, given.search_mode, named, given.prefix_last, plan.scope
    );
    near := case when given.search_mode = 'websearch'
      then knowledge_internal.near_words(question.query_text, analysis, plan.scope) end;
    unknown := unknown || coalesce(near, '{}');
    -- Another database may decide which word replaces one, and needs how many chunks have it.
    near_words := array(
      select listed.key
        from jsonb_each(near) as word
       cross join lateral jsonb_object_keys(word.value) as listed (key)
    );
    if given.search_mode <> 'phrase' then
      expansions := expansions || knowledge_internal.expansions(
        knowledge_internal.normalised(left(question.query_text, 4096)) || ' '
          || array_to_string(near_words, ' '),
        configurations, named,
        case when given.prefix_last
          then substring(question.query_text from '(?:^|\s)([[:alpha:]]+)$') end,
        plan.scope
      );
    end if;
    lexemes := lexemes || analysis.lexemes;
    frequencies := frequencies || analysis.document_frequencies;
    others := array(
      select asked.name
        from (
          select expansion.lexeme as name from unnest(expansions) as expansion
          union
          select unnest(tsvector_to_array(to_tsvector(language.configuration, word.name)))
            from unnest(near_words) as word (name)
           cross join unnest(configurations) as language (configuration)
        ) as asked
       where asked.name <> all (lexemes)
    );
    lexemes := lexemes || others;
    frequencies := frequencies || knowledge_internal.document_frequencies(others, corpus);
  end loop;
  shared_id := (
    select stored.shared_id
      from public.knowledge_corpus_statistics as stored
     where corpus.frequencies_from = 'copy'
  );
  return (
    -- listed are the counts of the whole corpus, counted those of this database.
    select jsonb_build_object(
             'listed', coalesce(
               jsonb_object_agg(word.lexeme, word.frequency) filter (where word.is_listed), '{}'
             ),
             'counted', coalesce(
               jsonb_object_agg(word.lexeme, word.frequency) filter (where not word.is_listed),
               '{}'
             )
           )
      from (
        select asked.lexeme, asked.frequency,
               shared_id is not null and exists (
                 select from public.knowledge_lexeme_statistics as statistics
                  where statistics.lexeme = asked.lexeme
               ) as is_listed
          from unnest(lexemes, frequencies) as asked (lexeme, frequency)
      ) as word
  ) || jsonb_build_object(
    'expansions', coalesce(to_jsonb(expansions), '[]'),
    'unknown', unknown,
    'fusion', plan.fusion, 'vector_weight', plan.vector_weight, 'text_weight', plan.text_weight,
    'corpus', jsonb_build_object(
      'document_count', corpus.document_count, 'mean_length', corpus.mean_length,
      'cosine_spread', knowledge_internal.cosine_spread()
    ),
    'languages', coalesce(configurations::text[], '{}'),
    'statistics', shared_id
  );
end
$$;

comment on function public.read_knowledge_question(jsonb) is
  'The first step of a search in several databases: the figures of the words of the question in '
  'this one. search: arguments of hybrid_search_knowledge_chunks as an object. The answers of all '
  'databases together are the readings of the next steps. It shows how many chunks have a word, '
  'whoever owns them, so only service_role may call it. Raises 22023 as the search does.';
revoke all on function public.read_knowledge_question(jsonb) from public, anon, authenticated;
grant execute on function public.read_knowledge_question(jsonb) to service_role;

create function public.knowledge_candidates(search jsonb, readings jsonb) returns jsonb
-- definer: callers have no grant on the tables, the arguments decide which rows are read.
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
  plan constant knowledge_internal.search_plan := knowledge_internal.planned_search(
    knowledge_internal.shared_arguments(search, readings),
    shared => knowledge_internal.shared_question(readings)
  );
  lists constant knowledge_internal.ranked_list[] := knowledge_internal.ranked_lists(plan);
  chunks jsonb;
begin
  select coalesce(
           jsonb_object_agg(
             chunk.id,
             jsonb_strip_nulls(
               to_jsonb(fact) || jsonb_build_object(
                 'external_key', document.external_key,
                 'written_at', coalesce(document.updated_at, chunk.updated_at)
               )
             )
           ),
           '{}'
         )
    into chunks
    from unnest(
           knowledge_internal.row_facts(
             array(
               select distinct unnest(list.vector_ids || list.text_ids)
                 from unnest(lists) as list
             ),
             plan,
             is_sent => true
           )
         ) as fact
    join public.knowledge_chunks as chunk on chunk.id = fact.id
    left join public.knowledge_documents as document on document.id = chunk.document_id;
  return jsonb_build_object('lists', lists, 'chunks', chunks);
end
$$;

comment on function public.knowledge_candidates(jsonb, jsonb) is
  'The second step of a search in several databases: the ranked lists of this one. search: '
  'arguments of hybrid_search_knowledge_chunks as an object; readings: an array of what '
  'read_knowledge_question returned in each database. Raises 22023 as the search does, and for '
  'readings of another form.';
revoke all on function public.knowledge_candidates(jsonb, jsonb) from public, anon, authenticated;
grant execute on function public.knowledge_candidates(jsonb, jsonb) to service_role;

-- The lists of an answer, and of the argument ranked_lists. Raises 22023 for another form.
create function knowledge_internal.given_lists(ranked_lists jsonb)
returns knowledge_internal.ranked_list[]
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  most_lists constant integer := 100;
  largest constant float8 := 1e30;
  lists constant knowledge_internal.ranked_list[] := array(
    select list
      from jsonb_populate_recordset(
             null::knowledge_internal.ranked_list, ranked_lists -> 'lists'
           ) as list
  );
begin
  if (
    jsonb_typeof(ranked_lists -> 'lists') = 'array' and cardinality(lists) <= most_lists
      and not exists (
        select from unnest(lists) as list
         where (
                 list.formulation between 1 and most_lists
                 and coalesce(list.identifier_bonus, 0) between 0 and largest
                 and coalesce(cardinality(list.vector_ids), 0)
                       = coalesce(cardinality(list.similarities), 0)
                 and coalesce(cardinality(list.text_ids), 0)
                       = coalesce(cardinality(list.text_scores), 0)
                 and array_position(list.vector_ids || list.text_ids, null) is null
                 and -1.001 <= all (coalesce(list.similarities, '{}'))
                 and 1.001 >= all (coalesce(list.similarities, '{}'))
                 and -largest <= all (coalesce(list.text_scores, '{}'))
                 and largest >= all (coalesce(list.text_scores, '{}'))
               ) is not true
      )
  ) is not true then
    raise exception 'ranked_lists must be an object with at most % lists', most_lists
      using errcode = '22023', hint = 'Send what the search of each database returned, unchanged.';
  end if;
  return lists;
exception
  when invalid_parameter_value then
    raise;
  when data_exception then
    raise exception 'ranked_lists: %', left(sqlerrm, 200)
      using errcode = '22023', hint = 'Send what the search of each database returned, unchanged.';
end
$$;

-- The lists that one database with all rows would have, from the answers of knowledge_candidates,
-- as ranked_lists of the search; chunks: the shard of each row, too. Raises 22023 for answers of
-- another form.
create function knowledge_internal.merged_lists(candidates jsonb, pool integer) returns jsonb
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  most_answers constant integer := 256;
  most_rows constant integer := 200000;
  lists knowledge_internal.ranked_list[] := '{}';
  shards integer[] := '{}';
  answered knowledge_internal.ranked_list[];
  merged jsonb;
begin
  if (
    jsonb_typeof(candidates) = 'array'
      and jsonb_array_length(candidates) between 1 and most_answers
  ) is not true then
    raise exception 'candidates must be an array of 1 to % answers of knowledge_candidates',
                    most_answers
      using errcode = '22023';
  end if;
  for shard in 1 .. jsonb_array_length(candidates) loop
    answered := knowledge_internal.given_lists(candidates -> shard - 1);
    lists := lists || answered;
    shards := shards || array_fill(shard, array[cardinality(answered)]);
  end loop;
  if (
    select sum(coalesce(cardinality(list.vector_ids), 0) + coalesce(cardinality(list.text_ids), 0))
      from unnest(lists) as list
  ) > most_rows then
    raise exception 'candidates must be at most % rows', most_rows using errcode = '22023';
  end if;
  lists := knowledge_internal.without_relaxed(lists);
  with
  -- While a document moves, two databases have it: the rows of one count, those written last.
  chunk as materialized (
    select sent.*
      from (
        select entry.key::uuid as id, answer.shard::integer as shard, entry.value as facts,
               first_value(answer.shard) over (
                 partition by coalesce(entry.value ->> 'external_key', entry.key)
                     order by (entry.value ->> 'written_at')::timestamptz desc, answer.shard
               ) as kept_shard
          from jsonb_array_elements(candidates) with ordinality as answer (body, shard)
         cross join jsonb_each(answer.body -> 'chunks') as entry
      ) as sent
     where sent.shard = sent.kept_shard
  ),
  list as materialized (
    select listed.*, shards[listed.place] as shard,
           dense_rank() over (order by listed.formulation, listed.collection) as number
      from unnest(lists) with ordinality as listed (
             formulation, collection, vector_strategy, vector_ids, similarities, text_strategy,
             text_ids, text_scores, identifier_bonus, relaxed_parts, vector_milliseconds,
             text_milliseconds, place
           )
  ),
  hit as materialized (
    select list.number, row.leg, row.id, row.score,
           row_number() over (
             partition by list.number, row.leg order by row.score desc, row.id
           ) as leg_rank
      from list
     cross join lateral (
             select 'vector' as leg, near.* from unnest(list.vector_ids, list.similarities) as near
             union all
             select 'text', best.* from unnest(list.text_ids, list.text_scores) as best
           ) as row (leg, id, score)
      join chunk on chunk.id = row.id and chunk.shard = list.shard
  )
  select jsonb_build_object(
           'lists', (
             select jsonb_agg(to_jsonb(one) order by one.number)
               from (
                 select list.number, min(list.formulation) as formulation,
                        min(list.collection) as collection,
                        max(list.vector_strategy) as vector_strategy,
                        max(list.text_strategy) as text_strategy,
                        max(list.identifier_bonus) as identifier_bonus,
                        max(list.relaxed_parts) as relaxed_parts,
                        ranked.*
                   from list
                  cross join lateral (
                          select array_agg(hit.id order by hit.leg_rank)
                                   filter (where hit.leg = 'vector') as vector_ids,
                                 array_agg(hit.score order by hit.leg_rank)
                                   filter (where hit.leg = 'vector') as similarities,
                                 array_agg(hit.id order by hit.leg_rank)
                                   filter (where hit.leg = 'text') as text_ids,
                                 array_agg(hit.score order by hit.leg_rank)
                                   filter (where hit.leg = 'text') as text_scores
                            from hit
                           where hit.number = list.number and hit.leg_rank <= pool
                        ) as ranked
                  group by list.number, ranked.vector_ids, ranked.similarities, ranked.text_ids,
                           ranked.text_scores
               ) as one
           ),
           'chunks', (
             select jsonb_object_agg(
                      chunk.id,
                      (chunk.facts - '{external_key,written_at}'::text[])
                        || jsonb_build_object('shard', chunk.shard)
                    )
               from chunk
           )
         )
    into merged;
  return jsonb_build_object(
    'lists', coalesce(merged -> 'lists', '[]'), 'chunks', merged -> 'chunks'
  );
exception
  when invalid_parameter_value then
    raise;
  when data_exception then
    raise exception 'candidates: %', left(sqlerrm, 200)
      using errcode = '22023', hint = 'Send what knowledge_candidates returned, unchanged.';
end
$$;

create function public.fuse_knowledge_candidates(search jsonb, readings jsonb, candidates jsonb)
returns jsonb
-- definer: service_role has no rights on the internal schema.
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
  given knowledge_internal.search_arguments := knowledge_internal.shared_arguments(
    search, readings
  );
  merged constant jsonb := knowledge_internal.merged_lists(
    candidates, greatest(given.pool_size, given.match_count)
  );
  shared constant jsonb := to_jsonb(knowledge_internal.shared_question(readings));
  hits jsonb;
begin
  -- The last step shows the rows.
  given.neighbor_window := 0;
  given.snippet := false;
  hits := (
    select coalesce(
             jsonb_agg(
               jsonb_build_object(
                 'id', hit.id, 'shard', merged #> array['chunks', hit.id::text, 'shard']
               )
               order by hit.ordinality
             ),
             '[]'
           )
      from knowledge_internal.search(
             given, merged || jsonb_build_object('shared', shared)
           ) with ordinality as hit
  );
  return jsonb_build_object('hits', hits, 'ranked_lists', merged);
end
$$;

comment on function public.fuse_knowledge_candidates(jsonb, jsonb, jsonb) is
  'The third step of a search in several databases: the page, best hit first, from candidates, an '
  'array of what knowledge_candidates returned in each database. shard: the place in this array of '
  'the one that has the hit. hybrid_search_knowledge_chunks fuses the merged lists, and reads no '
  'chunks for it, so any of the databases can do it. Raises 22023 as the search does, and for '
  'readings or candidates of another form.';
revoke all on function public.fuse_knowledge_candidates(jsonb, jsonb, jsonb)
  from public, anon, authenticated;
grant execute on function public.fuse_knowledge_candidates(jsonb, jsonb, jsonb) to service_role;

create function public.knowledge_candidate_hits(search jsonb, readings jsonb, page jsonb)
returns setof public.knowledge_search_hit
-- definer: callers have no grant on the tables, the arguments decide which rows are read.
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
-- The rows are looked up by their ids, and few.
set enable_seqscan = off
set jit = off as $$
declare
  given constant knowledge_internal.search_arguments := knowledge_internal.shared_arguments(
    search, readings
  );
  rows_alone knowledge_internal.search_arguments := given;
  scope knowledge_internal.row_scope;
  allowed uuid[];
begin
  if jsonb_typeof(page -> 'hits') is distinct from 'array' then
    raise exception 'page must be an object with hits, as fuse_knowledge_candidates returned it'
      using errcode = '22023';
  end if;
  perform knowledge_internal.given_lists(page -> 'ranked_lists');
  rows_alone.query_embedding := null;
  rows_alone.query_text := null;
  rows_alone.formulations := null;
  scope := (knowledge_internal.plan_search(rows_alone, false)).scope;
  execute
    'select array('
    '  select chunk.id from jsonb_to_recordset($2) as hit (id uuid)'
    '    join public.knowledge_chunks as chunk on chunk.id = hit.id'
    '   where ' || scope.matching || ')'
    into allowed using scope, page -> 'hits';
  return query
  select hit.*
    from knowledge_internal.search(
           given,
           (page -> 'ranked_lists')
             || jsonb_build_object('shared', knowledge_internal.shared_question(readings))
         ) as hit
   where hit.id = any (allowed);
exception
  when invalid_parameter_value then
    raise;
  when data_exception then
    raise exception 'page: %', left(sqlerrm, 200)
      using errcode = '22023', hint = 'Send what fuse_knowledge_candidates returned.';
end
$$;

comment on function public.knowledge_candidate_hits(jsonb, jsonb, jsonb) is
  'The last step of a search in several databases: the rows of those hits of a page that this one '
  'has, in the order of the page, as hybrid_search_knowledge_chunks returns them. page: what '
  'fuse_knowledge_candidates returned, hits being all of them or a part. A chunk that the '
  'arguments do not allow is not returned. Raises 22023 as the search does, and for readings or a '
  'page of another form.';
revoke all on function public.knowledge_candidate_hits(jsonb, jsonb, jsonb)
  from public, anon, authenticated;
grant execute on function public.knowledge_candidate_hits(jsonb, jsonb, jsonb) to service_role;

create function public.knowledge_statistics(lexemes text[] default null) returns jsonb
-- definer: service_role has no rights on the internal tables.
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
-- Whether a lexeme is rare is not known when the statement is planned.
set enable_seqscan = off as $$
declare
  most_lexemes constant integer := 1000000;
  sampled_rows constant float8 := 5000;
  chunks constant float8 := coalesce(
    (knowledge_internal.chunk_table()).analysed_rows, 0
  );
begin
  perform knowledge_internal.check_range(
            'lexemes', coalesce(cardinality(lexemes), 0), 0, most_lexemes,
            format('at most %s lexemes', most_lexemes)
          );
  if lexemes is not null then
    return jsonb_build_object(
      'frequencies',
      (
        select coalesce(jsonb_object_agg(asked.name, found.chunks), '{}')
          from unnest(lexemes) as asked (name)
         cross join lateral (
                 select count(*) as chunks
                   from public.knowledge_chunks as chunk
                  where chunk.status = 'active'
                    and chunk.content_tsv @@ knowledge_internal.quoted_lexeme(asked.name)::tsquery
                 offset 0
               ) as found
      )
    );
  end if;
  return jsonb_build_object(
    'document_count', chunks,
    'mean_length', (
      select greatest(avg(sample.text_length), 1)
        from public.knowledge_chunks as sample
             tablesample system (least(100, 100 * sampled_rows / greatest(chunks, 1)))
       where sample.status = 'active'
    ),
    'languages', coalesce(knowledge_internal.query_configurations()::text[], '{}'),
    'frequencies', (
      select coalesce(jsonb_object_agg(listed.lexeme, round(listed.frequency * chunks)), '{}')
        from knowledge_internal.listed_frequencies() as listed
    ),
    'cosine_spread', knowledge_internal.sampled_spread(200)
  );
end
$$;

comment on function public.knowledge_statistics(text[]) is
  'The statistics of this database, for a corpus in several databases: number of chunks at the '
  'last ANALYZE, mean length, languages, the chunks that have each of the most common lexemes, and '
  'cosine_spread. With lexemes: only the chunks that have these, counted. Raises 22023 for '
  'more than 1,000,000 lexemes.';
revoke all on function public.knowledge_statistics(text[]) from public, anon, authenticated;
grant execute on function public.knowledge_statistics(text[]) to service_role;

create function public.sum_knowledge_statistics(statistics jsonb) returns jsonb
-- definer: service_role has no rights on the internal schema.
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
  most_databases constant integer := 256;
  most_lexemes constant integer := 10000; -- as ANALYZE lists
  summed jsonb;
begin
  if (
    jsonb_typeof(statistics) = 'array'
      and jsonb_array_length(statistics) between 1 and most_databases
  ) is not true then
    raise exception 'statistics must be an array of 1 to % answers of knowledge_statistics',
                    most_databases
      using errcode = '22023';
  end if;
  with one as materialized (
    select greatest((given.database ->> 'document_count')::float8, 0) as chunks,
           (given.database ->> 'mean_length')::float8 as mean_length,
           (given.database ->> 'cosine_spread')::float8 as cosine_spread, given.database
      from jsonb_array_elements(statistics) as given (database)
  ),
  total as materialized (
    select sum(one.chunks) as chunks,
           coalesce(sum(one.mean_length * one.chunks) / nullif(sum(one.chunks), 0), 1)
             as mean_length,
           sqrt(sum(one.cosine_spread ^ 2 * one.chunks) / nullif(sum(one.chunks), 0))
             as cosine_spread
      from one
  ),
  listed as (
    select entry.lexeme, sum(entry.chunks::float8) as chunks
      from one
     cross join jsonb_each_text(one.database -> 'frequencies') as entry (lexeme, chunks)
     group by entry.lexeme
     order by chunks desc, entry.lexeme
     limit most_lexemes
  )
  select jsonb_build_object(
           'document_count', total.chunks,
           'mean_length', total.mean_length,
           'cosine_spread', coalesce(total.cosine_spread, 0.13),
           'languages', (
             select coalesce(jsonb_agg(distinct language.name), '[]')
               from one
              cross join jsonb_array_elements_text(one.database -> 'languages') as language (name)
           ),
           'frequencies', (
             select coalesce(
                      jsonb_object_agg(listed.lexeme, least(listed.chunks / total.chunks, 1)), '{}'
                    )
               from listed
              where listed.chunks > 0
           )
         )
    into summed
    from total;
  return summed || jsonb_build_object(
    'id', to_char(now() at time zone 'utc', 'YYYYMMDD"T"HH24MISS.US ') || left(md5(summed::text), 8)
  );
exception
  when invalid_parameter_value then
    raise;
  when data_exception then
    raise exception 'statistics: %', left(sqlerrm, 200)
      using errcode = '22023', hint = 'Send what knowledge_statistics returned.';
end
$$;

comment on function public.sum_knowledge_statistics(jsonb) is
  'The statistics of a corpus in several databases, from what knowledge_statistics returned in '
  'each, as an array. A lexeme that one of them lists should be counted in all. id: names them and '
  'begins with the time, in UTC: of two, the databases use the greater. Raises 22023 for '
  'statistics of another form.';
revoke all on function public.sum_knowledge_statistics(jsonb) from public, anon, authenticated;
grant execute on function public.sum_knowledge_statistics(jsonb) to service_role;

create function public.set_knowledge_statistics(statistics jsonb default null) returns void
-- definer: service_role has no rights on the internal tables.
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
  most_lexemes constant integer := 1000000;
  given record;
  lexemes constant bigint := (
    select count(*) from jsonb_each(nullif(statistics -> 'frequencies', 'null'))
  );
begin
  if statistics is null then
    update public.knowledge_corpus_statistics as corpus
       set shared_id = null, languages = '{}', analysed_at = null, analysed_rows = null
     where corpus.shared_id is not null;
    perform public.refresh_knowledge_statistics();
    return;
  end if;
  if (
    jsonb_typeof(statistics) = 'object' and jsonb_typeof(statistics -> 'frequencies') = 'object'
      and jsonb_typeof(statistics -> 'languages') = 'array'
      and length(statistics ->> 'id') between 1 and 100
  ) is not true then
    raise exception 'statistics must be an object with id, languages and frequencies'
      using errcode = '22023', hint = 'Send what sum_knowledge_statistics returned.';
  end if;
  select * into given
    from jsonb_to_record(statistics) as sent (
           id text, document_count float8, mean_length float8, cosine_spread float8
         );
  perform knowledge_internal.check_range(
            'statistics: document_count', given.document_count, 0, 1e15
          ),
          knowledge_internal.check_range('statistics: mean_length', given.mean_length, 1, 1e15),
          knowledge_internal.check_range(
            'statistics: cosine_spread', given.cosine_spread, 0.001, 2
          );
  perform knowledge_internal.check_configurations('statistics', statistics -> 'languages');
  perform knowledge_internal.check_range('statistics: a frequency', entry.share::float8, 0, 1)
     from jsonb_each_text(statistics -> 'frequencies') as entry (lexeme, share);
  perform knowledge_internal.check_range(
            'statistics: frequencies', lexemes, 0, most_lexemes,
            format('of at most %s lexemes', most_lexemes)
          );

  delete from public.knowledge_lexeme_statistics;
  insert into public.knowledge_lexeme_statistics (lexeme, frequency)
  select entry.lexeme, entry.share::float8
    from jsonb_each_text(statistics -> 'frequencies') as entry (lexeme, share);
  insert into public.knowledge_corpus_statistics as corpus
         (
           document_count, mean_length, cosine_spread, least_frequency, sample, shared_id, languages
         )
  values (
           given.document_count, given.mean_length, given.cosine_spread,
           (select min(known.frequency) from public.knowledge_lexeme_statistics as known),
           '{}', given.id,
           array(select jsonb_array_elements_text(statistics -> 'languages'))
         )
      on conflict (id) do update
     set document_count = excluded.document_count,
         mean_length = excluded.mean_length,
         cosine_spread = excluded.cosine_spread,
         least_frequency = excluded.least_frequency,
         shared_id = excluded.shared_id,
         languages = excluded.languages,
         refreshed_at = excluded.refreshed_at;
  -- Own rows for the estimates of filters.
  perform public.refresh_knowledge_statistics();
exception
  when invalid_parameter_value then
    raise;
  when data_exception then
    raise exception 'statistics: %', left(sqlerrm, 200)
      using errcode = '22023', hint = 'Send what sum_knowledge_statistics returned.';
end
$$;

comment on function public.set_knowledge_statistics(jsonb) is
  'Sets what sum_knowledge_statistics returned, so that BM25 and fusion auto weigh alike in all '
  'databases of a corpus. From then on refresh_knowledge_statistics leaves these statistics as '
  'they are; null: this database uses its own again. Raises 22023 for statistics of another form.';
revoke all on function public.set_knowledge_statistics(jsonb) from public, anon, authenticated;
grant execute on function public.set_knowledge_statistics(jsonb) to service_role;

-- Another text after each change of the document or of its chunks.
create function knowledge_internal.document_stamp(document public.knowledge_documents) returns text
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return (
    select md5(
             concat_ws(
               ' ', extract(epoch from document.updated_at), count(*),
               extract(epoch from max(chunk.updated_at))
             )
           )
      from public.knowledge_chunks as chunk
     where chunk.document_id = document.id
  );
end
$$;

create function public.export_knowledge_documents(document_ids uuid[]) returns jsonb
-- definer: service_role has no rights on the internal functions.
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
-- Whether a document has few chunks is not known when the statement is planned.
set enable_seqscan = off as $$
declare
  most_documents constant integer := 1000;
  computed constant text[] := '{content_tsv,text_length,bm25,embedding_bits}';
begin
  perform knowledge_internal.check_range(
            'document_ids', cardinality(document_ids), 0, most_documents
          );
  -- In the order of the ids, so that two calls do not wait for each other.
  perform from public.knowledge_documents as document
    where document.id = any (document_ids)
    order by document.id
      for update;
  return (
    select jsonb_build_object(
             'sources', (
               select coalesce(jsonb_agg(to_jsonb(source)), '[]')
                 from public.knowledge_sources as source
                where source.id in (
                  select document.source_id from public.knowledge_documents as document
                   where document.id = any (document_ids)
                )
             ),
             'documents', (
               select coalesce(jsonb_agg(to_jsonb(document)), '[]')
                 from public.knowledge_documents as document
                where document.id = any (document_ids)
             ),
             'chunks', (
               select coalesce(jsonb_agg(to_jsonb(chunk) - computed), '[]')
                 from public.knowledge_chunks as chunk
                where chunk.document_id = any (document_ids)
             ),
             'stamps', (
               select coalesce(
                        jsonb_object_agg(
                          document.id, knowledge_internal.document_stamp(document)
                        ),
                        '{}'
                      )
                 from public.knowledge_documents as document
                where document.id = any (document_ids)
             )
           )
  );
end
$$;

comment on function public.export_knowledge_documents(uuid[]) is
  'At most 1000 documents with their chunks and sources, for import_knowledge_documents in another '
  'database. They stay locked against changes until the transaction ends. stamps: for '
  'remove_exported_knowledge_documents. Raises 22023 for more documents.';
revoke all on function public.export_knowledge_documents(uuid[]) from public, anon, authenticated;
grant execute on function public.export_knowledge_documents(uuid[]) to service_role;

create function public.import_knowledge_documents(exported jsonb) returns bigint
-- definer: the values of exported may be of any types that the tables have.
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
  imported bigint;
begin
  if (
    jsonb_typeof(exported -> 'sources') = 'array'
      and jsonb_typeof(exported -> 'documents') = 'array'
      and jsonb_typeof(exported -> 'chunks') = 'array'
  ) is not true then
    raise exception 'exported must be an object with sources, documents and chunks'
      using errcode = '22023', hint = 'Send what export_knowledge_documents returned.';
  end if;
  insert into public.knowledge_types (name)
  select distinct row ->> 'knowledge_type'
    from jsonb_array_elements((exported -> 'documents') || (exported -> 'chunks')) as row
  on conflict do nothing;
  insert into public.knowledge_source_origins (name)
  select distinct row ->> 'source_origin'
    from jsonb_array_elements((exported -> 'documents') || (exported -> 'chunks')) as row
  union
  select distinct row ->> 'origin' from jsonb_array_elements(exported -> 'sources') as row
  on conflict do nothing;
  insert into public.knowledge_sources
  select source.*
    from jsonb_populate_recordset(null::public.knowledge_sources, exported -> 'sources') as source
  on conflict do nothing;

  delete from public.knowledge_documents as document
   using jsonb_populate_recordset(null::public.knowledge_documents, exported -> 'documents')
         as given
   where document.id = given.id
      or document.external_key = given.external_key;
  insert into public.knowledge_documents
  select document.*
    from jsonb_populate_recordset(null::public.knowledge_documents, exported -> 'documents')
         as document;
  get diagnostics imported = row_count;
  insert into public.knowledge_chunks
  select chunk.*
    from jsonb_populate_recordset(null::public.knowledge_chunks, exported -> 'chunks') as chunk;
  return imported;
end
$$;

comment on function public.import_knowledge_documents(jsonb) is
  'Stores what export_knowledge_documents returned in another database, with the same ids and '
  'times, in place of documents with the same id or external_key. Returns the number of documents. '
  'Raises 22023 for another form.';
revoke all on function public.import_knowledge_documents(jsonb) from public, anon, authenticated;
grant execute on function public.import_knowledge_documents(jsonb) to service_role;

create function public.remove_exported_knowledge_documents(stamps jsonb)
returns table (id uuid, outcome text)
-- definer: service_role has no rights on the internal functions.
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
-- Whether a document has few chunks is not known when the statement is planned.
set enable_seqscan = off as $$
begin
  if (jsonb_typeof(stamps) = 'object') is not true then
    raise exception 'stamps must be an object, as export_knowledge_documents returned it'
      using errcode = '22023';
  end if;
  perform from public.knowledge_documents as document
    where document.id in (select given.key::uuid from jsonb_each_text(stamps) as given)
    order by document.id
      for update;
  return query
  with given as (
    select entry.key::uuid as id, entry.value as stamp from jsonb_each_text(stamps) as entry
  ),
  found as materialized (
    select given.id, document.id is not null as is_there,
           knowledge_internal.document_stamp(document) = given.stamp as is_same
      from given
      left join public.knowledge_documents as document on document.id = given.id
  ),
  removed as (
    delete from public.knowledge_documents as document
     using found
     where document.id = found.id
       and found.is_same
    returning document.id
  )
  select found.id,
         case
           when removed.id is not null then 'removed'
           when found.is_there then 'changed'
           else 'absent'
         end
    from found
    left join removed on removed.id = found.id;
end
$$;

comment on function public.remove_exported_knowledge_documents(jsonb) is
  'Deletes documents that another database has imported, if they are as they were exported. '
  'outcome: removed, changed (since then; export it again) or absent. Raises 22023 for stamps that '
  'are no object.';
revoke all on function public.remove_exported_knowledge_documents(jsonb)
  from public, anon, authenticated;
grant execute on function public.remove_exported_knowledge_documents(jsonb) to service_role;

revoke all on all functions in schema knowledge_internal from public;

notify pgrst, 'reload schema';
