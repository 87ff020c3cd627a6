-- 043_like: like_ids, hits like known chunks or documents.
-- Module: like.
-- Adds: functions find_known, stop_word_chunks and with_known_words. Replaces with_known. Locks
-- nothing that exists.
-- Written from supabase/schemas/modules/like/43_like.sql by `make baseline`: edit that file.

-- The chunks with these ids and in these documents, if a viewer may see them. Of many chunks the
-- first are read. left_out: they and their documents. embedding: the mean of their directions, each
-- given id once; null without embeddings. Raises 22023 for an id without any chunk.
create function knowledge_internal.find_known(
  like_ids uuid[], scope knowledge_internal.row_scope, out ids uuid[], out left_out uuid[],
  out embedding extensions.vector
)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  most_chunks constant integer := 100; -- of all ids together
  missing uuid;
begin
  with stored as materialized (
    select row.* from knowledge_internal.rows_of(like_ids, scope) as row
  ),
  found as materialized (
    select given.id as given_id, chunk.id, chunk.document_id
      from (select distinct unnest(like_ids) as id) as given
      left join lateral (
             select stored.id, stored.document_id from stored
              where stored.id = given.id or stored.document_id = given.id
              order by stored.chunk_index, stored.id limit most_chunks / cardinality(like_ids)
           ) as chunk on true
  ),
  direction as (
    -- Ordered, or the rounding would depend on where the rows lie.
    select extensions.l2_normalize(
             extensions.avg(extensions.l2_normalize(chunk.embedding) order by chunk.id)
           ) as mean, found.given_id
      from found
      join knowledge_internal.rows_by_id(
             array(select found.id from found), has_embedding => true
           ) as chunk on chunk.id = found.id
     where chunk.embedding is not null
     group by found.given_id
  )
  select array(select distinct found.id from found),
         array(select found.id from found union select found.document_id from found),
         (
           select extensions.l2_normalize(
                    extensions.avg(direction.mean order by direction.given_id)
                  )
             from direction
         ),
         (select min(found.given_id::text)::uuid from found where found.id is null)
    into ids, left_out, embedding, missing;
  if missing is not null then
    raise exception 'like_ids: no visible chunk or document has the id %', missing
      using errcode = '22023', hint = 'Give the id or the document_id of a hit.';
  end if;
  left_out := array_remove(left_out, null);
  if (extensions.vector_norm(embedding) > 0.5) is not true then
    embedding := null;
  end if;
end
$$;

-- For each lexeme, the number of chunks in whose language it is a stop word.
create function knowledge_internal.stop_word_chunks(
  lexemes text[], settings knowledge_internal.search_settings
) returns float8[]
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
-- Postgres sends a NOTICE for a stop word.
set client_min_messages = warning as $$
declare
  configurations constant regconfig[] := settings.configurations;
  chunks float8[];
begin
  if cardinality(configurations) > 1 then
    chunks := knowledge_internal.chunks_of_configurations(configurations, settings);
  end if;
  return array(
    select coalesce(
             (
               select sum(language.chunks)
                 from unnest(configurations, chunks) as language (configuration, chunks)
                where language.chunks > 0
                  and asked.lexeme ~ '^[[:alpha:]]+$'
                  and numnode(plainto_tsquery(language.configuration, asked.lexeme)) = 0
             ),
             0
           )
      from unnest(lexemes) with ordinality as asked (lexeme, place)
     order by asked.place
  );
end
$$;

-- A question with the words that tell most of these chunks, by frequency and idf. It keeps its own
-- words, with a part of the weight, and what it requires.
create function knowledge_internal.with_known_words(
  question knowledge_internal.question, ids uuid[], settings knowledge_internal.search_settings
) returns knowledge_internal.question
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  most_chunks constant integer := 40;
  most_rated constant integer := 300; -- lexemes
  known_share constant float8 := 0.7; -- of the weight; docs/ranking.md measures it
  -- Alone, more words find no better rows, and read many more.
  most_words constant integer := case when question.lexemes is null then 20 else 50 end;
  lexemes text[];
  chunks bigint[];
  shares float8[];
begin
  question := knowledge_internal.with_candidates(question, settings.document_count);
  with read as materialized (
    -- Words inside words have labels A and C, and impact levels no position.
    select coalesce(chunk.document_id, chunk.id) as unit,
           ts_filter(chunk.content_tsv, '{b,d}') as words
      from knowledge_internal.rows_by_id(ids, has_lexemes => true) as chunk
     order by chunk.chunk_index, chunk.id
     limit most_chunks
  ),
  posting as (
    select read.unit, word.lexeme, sum(cardinality(word.positions)) as occurrences,
           count(*) as chunks
      from read
     cross join unnest(read.words) as word
     group by read.unit, word.lexeme
  ),
  kept as (
    select share.lexeme, sum(share.of_unit) as share, sum(share.chunks)::bigint as chunks
      from (
        select posting.*, posting.occurrences::float8
                 / sum(posting.occurrences) over (partition by posting.unit) as of_unit
          from posting
      ) as share
     group by share.lexeme
     order by share desc, share.lexeme
     limit most_rated
  )
  select array_agg(kept.lexeme), array_agg(kept.share), array_agg(kept.chunks)
    into lexemes, shares, chunks
    from kept;
  if lexemes is null then
    return question;
  end if;
  with telling as (
    select word.lexeme, word.document_frequency,
           row_number() over (order by word.weight desc, word.lexeme) as place,
           word.weight * coalesce(
             known_share * (
               -- Of the readings of a word, the best counts.
               select sum(best.weight)
                 from (
                   select max(asked.weight) as weight
                     from unnest(question.weights, question.readings)
                          with ordinality as asked (weight, reading, place)
                    group by coalesce(asked.reading, asked.place)
                 ) as best
             ) / sum(word.weight) over (), 1
           ) as weight
      from (
        select listed.lexeme, listed.document_frequency,
               listed.share / max(listed.share) over ()
                 * knowledge_internal.weight_of_word(
                     settings.document_count, listed.document_frequency, listed.stop_word_in,
                     1 - listed.stop_word_in / settings.document_count
                   ) as weight
          from unnest(
                 lexemes, knowledge_internal.document_frequencies(lexemes, settings), shares,
                 chunks, knowledge_internal.stop_word_chunks(lexemes, settings)
               ) as listed (lexeme, document_frequency, share, chunks, stop_word_in)
         -- Others must have it.
         where listed.document_frequency > listed.chunks
         order by weight desc, listed.lexeme
         limit most_words
      ) as word
  ),
  both_words as (
    select lexeme, coalesce(asked.document_frequency, telling.document_frequency)
             as document_frequency,
           knowledge_internal.quoted_lexeme(lexeme)::tsquery as query,
           coalesce((1 - known_share) * asked.scored, 0) + coalesce(telling.weight, 0) as scored,
           coalesce(asked.candidate - asked.scored, 0) as beside,
           -- A word of its own.
           coalesce(asked.reading, asked.place, 1000000 + telling.place) as reading
      from unnest(
             question.lexemes, question.frequencies, question.weights,
             question.candidate_weights, question.readings
           ) with ordinality
             as asked (lexeme, document_frequency, scored, candidate, reading, place)
      full join telling using (lexeme)
     order by document_frequency, lexeme
  )
  select array_agg(word.lexeme), array_agg(word.query), array_agg(word.document_frequency),
         array_agg(word.scored), array_agg(word.scored + word.beside), array_agg(word.reading),
         array_agg(
           format('{%s:1}/536870912', knowledge_internal.lexeme_dimension(word.lexeme))
             ::extensions.sparsevec
         ),
         (select array_agg(telling.lexeme) from telling),
         -- A row must still match the question, if there is one.
         coalesce(question.matching_query, string_agg(word.query::text, ' | ')::tsquery),
         question.matching_query is null
    into question.lexemes, question.lexeme_queries, question.frequencies, question.weights,
         question.candidate_weights, question.readings, question.vectors, question.like_words,
         question.matching_query, question.is_optional
    from both_words as word;
  question.weight_vector :=
    knowledge_internal.lexeme_vector(question.lexemes, question.candidate_weights);
  return knowledge_internal.with_candidates(question, settings.document_count);
end
$$;

-- The plan of a search with like_ids. With ids, before its questions are there: known_ids are
-- theirs, and the scope leaves these chunks and documents out. Without, after they are read: the
-- known rows add to the first question. Raises 22023 for an id that the viewer may not see.
create or replace function knowledge_internal.with_known(
  plan knowledge_internal.search_plan, like_ids uuid[] default null
) returns knowledge_internal.search_plan
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  known record;
  question knowledge_internal.question;
begin
  if like_ids is not null then
    known := knowledge_internal.find_known(like_ids, plan.scope);
    plan.known_ids := known.ids;
    plan.known_embedding := known.embedding;
    plan.scope.left_out := known.left_out;
    plan.scope.matching := (plan.scope).matching || ' and chunk.id <> all (($1).left_out)'
      ' and (chunk.document_id = any (($1).left_out)) is not true';
    return plan;
  end if;
  plan.asked := plan.questions;
  question := plan.questions[1];
  if plan.known_embedding is not null and (plan.settings).vector_weight > 0 then
    question.embedding := coalesce(
      extensions.l2_normalize(question.embedding) operator(extensions.+) plan.known_embedding,
      plan.known_embedding
    );
    question.is_inferred := false;
  end if;
  if (plan.settings).text_weight > 0 then
    question := knowledge_internal.with_known_words(question, plan.known_ids, plan.settings);
  end if;
  plan.questions[1] := question;
  return plan;
end
$$;

revoke all on all functions in schema knowledge_internal from public;

notify pgrst, 'reload schema';
