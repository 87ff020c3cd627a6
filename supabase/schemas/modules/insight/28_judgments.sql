-- 028_judgments: which hits are right, for measuring and tuning on the live corpus.
-- Module: insight.
-- Adds: table knowledge_judgments, functions set_knowledge_judgments, list_knowledge_judgments,
-- delete_knowledge_judgments, and triggers that delete judgments with what they judge. Replaces
-- changes_since.
-- Locks knowledge_documents and knowledge_chunks against writing until it commits.

create table public.knowledge_judgments (
  id uuid primary key default gen_random_uuid(),
  question text not null check (length(question) between 1 and 4096 and question ~ '\S'),
  collection text not null default '' check (length(collection) <= 200),
  document_id uuid,
  chunk_id uuid,
  grade integer not null check (grade between 0 and 2),
  judged_by uuid,
  judged_at timestamptz not null default now(),
  is_generated boolean not null default false,
  check (num_nonnulls(document_id, chunk_id) > 0)
);

comment on table public.knowledge_judgments is
  'Whether a document, or one chunk of it (else chunk_id is null), answers a question. Deleted '
  'with what it judges. grade: 0 wrong, 1 partly right, 2 right. collection: that the question is '
  'asked in, empty for all. is_generated: the question was made from words of the document.';

-- One judgment of each user for each thing. A question can be too long for an index.
create unique index knowledge_judgments_once on public.knowledge_judgments (
  md5(question), collection, document_id, chunk_id, judged_by
) nulls not distinct;
create index knowledge_judgments_document on public.knowledge_judgments (document_id);
create index knowledge_judgments_chunk on public.knowledge_judgments (chunk_id);
create index knowledge_judgments_judge on public.knowledge_judgments (judged_by);

alter table public.knowledge_judgments enable row level security;
create policy knowledge_judgments_none on public.knowledge_judgments
  to anon, authenticated using (false);
revoke all on table public.knowledge_judgments from public, anon, authenticated;
grant select, insert, update, delete on table public.knowledge_judgments to service_role;

-- Deletes the judgments of deleted documents and chunks. With foreign keys instead of triggers,
-- nobody could truncate documents and chunks alone.
create function knowledge_internal.delete_judgments() returns trigger
-- definer: a role that may delete a document has no rights on judgments.
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  ids uuid[];
begin
  if tg_op = 'TRUNCATE' then
    delete from public.knowledge_judgments as judgment
     where judgment.document_id is not null
           and not exists (
                 select from public.knowledge_documents as document
                  where document.id = judgment.document_id
               )
        or judgment.chunk_id is not null
           and not exists (
                 select from public.knowledge_chunks as chunk where chunk.id = judgment.chunk_id
               );
    return null;
  end if;
  -- A separate statement: Citus cannot join a transition table with a stored table. And it adds
  -- a number to tg_table_name.
  ids := array(select deleted.id from deleted);
  if tg_argv[0] = 'documents' then
    delete from public.knowledge_judgments as judgment
     where judgment.document_id = any (ids);
  else
    delete from public.knowledge_judgments as judgment
     where judgment.chunk_id = any (ids);
  end if;
  return null;
end
$$;

create trigger delete_judgments
  after delete on public.knowledge_documents referencing old table as deleted
  for each statement execute function knowledge_internal.delete_judgments('documents');
create trigger delete_judgments
  after delete on public.knowledge_chunks referencing old table as deleted
  for each statement execute function knowledge_internal.delete_judgments('chunks');
create trigger clear_judgments
  after truncate on public.knowledge_documents
  for each statement execute function knowledge_internal.delete_judgments();
create trigger clear_judgments
  after truncate on public.knowledge_chunks
  for each statement execute function knowledge_internal.delete_judgments();

-- A judgment as a row. Raises 22023 naming the place, such as judgments[3].grade.
create function knowledge_internal.read_judgment(given jsonb, place text)
returns public.knowledge_judgments
language plpgsql volatile security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
declare
  keys constant text[] := array[
    'question', 'grade', 'document_key', 'chunk_id', 'collection', 'judged_by', 'judged_at',
    'is_generated'
  ];
  judgment public.knowledge_judgments;
  wrong_key text;
begin
  if jsonb_typeof(given) <> 'object' then
    raise exception '% must be an object, not %', place, jsonb_typeof(given)
      using errcode = '22023';
  end if;
  select entry.key into wrong_key
    from jsonb_each(given) as entry
   where entry.key <> all (keys)
      or entry.key not in ('grade', 'is_generated')
         and jsonb_typeof(entry.value) not in ('string', 'null')
   order by entry.key
   limit 1;
  if wrong_key is not null then
    raise exception '%.% must be a text under one of the names %',
                    place, left(wrong_key, 100), array_to_string(keys, ', ')
      using errcode = '22023';
  end if;
  judgment.question := given ->> 'question';
  if (length(judgment.question) <= 4096 and judgment.question ~ '\S') is not true then
    raise exception '%.question must be a text of 1 to 4096 characters', place
      using errcode = '22023';
  end if;
  if (given -> 'grade' in ('0', '1', '2', 'null')) is not true then
    raise exception '%.grade must be 0, 1 or 2, or null to withdraw the judgment, not %',
                    place, left(coalesce(given ->> 'grade', 'missing'), 100)
      using errcode = '22023';
  end if;
  judgment.grade := (given ->> 'grade')::integer;
  if coalesce(given -> 'is_generated', 'false') not in ('true', 'false') then
    raise exception '%.is_generated must be true or false, not %',
                    place, left(given ->> 'is_generated', 100)
      using errcode = '22023';
  end if;
  judgment.is_generated := coalesce((given ->> 'is_generated')::boolean, false);
  judgment.collection := coalesce(given ->> 'collection', '');
  if length(judgment.collection) > 200 then
    raise exception '%.collection must be a name of at most 200 characters', place
      using errcode = '22023';
  end if;
  begin
    judgment.chunk_id := (given ->> 'chunk_id')::uuid;
    judgment.judged_by := (given ->> 'judged_by')::uuid;
    judgment.judged_at := coalesce((given ->> 'judged_at')::timestamptz, now());
  exception when data_exception then
    raise exception '%: chunk_id and judged_by must be UUIDs, and judged_at a time: %',
                    place, left(sqlerrm, 200)
      using errcode = '22023';
  end;
  -- The locks make a deletion wait, so that it deletes this judgment, too.
  if judgment.chunk_id is not null then
    select chunk.id, chunk.document_id
      into judgment.chunk_id, judgment.document_id
      from public.knowledge_chunks as chunk
     where chunk.id = judgment.chunk_id
       for key share;
  else
    select document.id
      into judgment.document_id
      from public.knowledge_documents as document
     where document.external_key = given ->> 'document_key'
       for key share;
  end if;
  if num_nonnulls(judgment.document_id, judgment.chunk_id) = 0 then
    raise exception '%: there is no chunk_id or document_key %',
                    place,
                    left(coalesce(given ->> 'chunk_id', given ->> 'document_key', 'null'), 200)
      using errcode = '22023', hint = 'Judge a chunk or a document that is stored.';
  end if;
  return judgment;
end
$$;

create function public.set_knowledge_judgments(judgments jsonb) returns integer
-- definer: service_role has no rights on the internal schema.
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
  most_judgments constant integer := 1000;
begin
  perform knowledge_internal.check_caller('set_knowledge_judgments');
  if (jsonb_typeof(judgments) = 'array' and jsonb_array_length(judgments) <= most_judgments)
     is not true
  then
    raise exception 'judgments must be an array of at most % objects', most_judgments
      using errcode = '22023';
  end if;
  with last_given as (
    -- Of two judgments of one thing, the last one counts.
    select distinct on (
             given.question, given.collection, given.document_id, given.chunk_id, given.judged_by
           )
           given.question, given.collection, given.document_id, given.chunk_id, given.grade,
           given.judged_by, given.judged_at, given.is_generated
      from jsonb_array_elements(judgments) with ordinality as listed (judgment, place)
     cross join lateral knowledge_internal.read_judgment(
             listed.judgment, format('judgments[%s]', listed.place - 1)
           ) as given
     order by given.question, given.collection, given.document_id, given.chunk_id,
              given.judged_by, listed.place desc
  ),
  withdrawn as (
    delete from public.knowledge_judgments as stored
     using last_given as given
     where given.grade is null
       and md5(stored.question) = md5(given.question)
       and stored.collection = given.collection
       and stored.document_id is not distinct from given.document_id
       and stored.chunk_id is not distinct from given.chunk_id
       and stored.judged_by is not distinct from given.judged_by
  )
  insert into public.knowledge_judgments as stored (
    question, collection, document_id, chunk_id, grade, judged_by, judged_at, is_generated
  )
  select given.question, given.collection, given.document_id, given.chunk_id, given.grade,
         given.judged_by, given.judged_at, given.is_generated
    from last_given as given
   where given.grade is not null
      on conflict (md5(question), collection, document_id, chunk_id, judged_by) do update
     set grade = excluded.grade,
         judged_at = excluded.judged_at,
         is_generated = excluded.is_generated;
  return jsonb_array_length(judgments);
end
$$;

comment on function public.set_knowledge_judgments is
  'Stores up to 1,000 judgments {"question", "grade", "document_key" or "chunk_id", "collection", '
  '"judged_by", "judged_at", "is_generated"}: grade 0 wrong, 1 partly right, 2 right, null to '
  'withdraw the judgment. A judgment replaces that of the same user for the same question and '
  'thing. Returns their number. Raises 22023 for a wrong value and for what is not stored; then '
  'none is stored.';
revoke all on function public.set_knowledge_judgments from public, anon, authenticated;
grant execute on function public.set_knowledge_judgments to service_role;

create function public.list_knowledge_judgments(
  in_collection text default null, by_user uuid default null
)
returns table (
  question text,
  collection text,
  document_key text,
  chunk_id uuid,
  grade integer,
  judged_by uuid,
  judged_at timestamptz,
  is_generated boolean
)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return query
  select judgment.question, judgment.collection, document.external_key, judgment.chunk_id,
         judgment.grade, judgment.judged_by, judgment.judged_at, judgment.is_generated
    from public.knowledge_judgments as judgment
    left join public.knowledge_documents as document on document.id = judgment.document_id
    left join public.knowledge_chunks as chunk on chunk.id = judgment.chunk_id
   where (in_collection is null or judgment.collection = in_collection)
     and (by_user is null or judgment.judged_by = by_user)
   order by judgment.question collate "C", document.external_key collate "C",
            chunk.chunk_index nulls first, judgment.id;
end
$$;

comment on function public.list_knowledge_judgments is
  'The judgments of a collection (null: all), of one user (null: all), in the order of questions '
  'and documents.';
revoke all on function public.list_knowledge_judgments from public, anon, authenticated;
grant execute on function public.list_knowledge_judgments to service_role;

create function public.delete_knowledge_judgments(
  question text default null,
  collection text default null,
  judged_by uuid default null,
  is_generated boolean default null
) returns integer
language plpgsql volatile security invoker set search_path = pg_catalog, pg_temp as $$
declare
  deleted integer;
begin
  if num_nonnulls(question, collection, judged_by, is_generated) = 0 then
    raise exception 'question, collection, judged_by and is_generated are all missing, give at '
                    'least one'
      using errcode = '22023';
  end if;
  delete from public.knowledge_judgments as judgment
   where (delete_knowledge_judgments.question is null
          or judgment.question = delete_knowledge_judgments.question)
     and (delete_knowledge_judgments.collection is null
          or judgment.collection = delete_knowledge_judgments.collection)
     and (delete_knowledge_judgments.judged_by is null
          or judgment.judged_by = delete_knowledge_judgments.judged_by)
     and (delete_knowledge_judgments.is_generated is null
          or judgment.is_generated = delete_knowledge_judgments.is_generated);
  get diagnostics deleted = row_count;
  return deleted;
end
$$;

comment on function public.delete_knowledge_judgments is
  'Deletes the judgments of a question, in a collection, by a user, of generated questions or '
  'not: those that fit all that is given. Returns their number. Raises 22023 if nothing is given.';
revoke all on function public.delete_knowledge_judgments from public, anon, authenticated;
grant execute on function public.delete_knowledge_judgments to service_role;

-- Raised when a change of a formula changes the best fusion or weights of a corpus.
create function knowledge_internal.ranking_version() returns integer
language sql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp as $$
  select 2
$$;

-- What the best fusion and weights of a collection ('' for all) depend on: its active chunks, the
-- models of their embeddings, its fields, and the version of the formulas.
create function knowledge_internal.ranked_corpus(name text) returns jsonb
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  most_counted constant integer := 100000; -- chunks
begin
  return (
    select jsonb_build_object(
             'chunks', count(*),
             'models', coalesce(
               jsonb_agg(distinct coalesce(counted.embedding_model, 'unnamed'))
                 filter (where counted.is_embedded),
               '[]'
             ),
             'fields', (knowledge_internal.text_fields(name)).stamp,
             'formulas', knowledge_internal.ranking_version()
           )
      from (
             select chunk.embedding_model, chunk.embedding_bits is not null as is_embedded
               from public.knowledge_chunks as chunk
              where chunk.status = 'active'
                and (name = '' or chunk.collection = name)
              limit most_counted
           ) as counted
  );
end
$$;

-- What the best fusion and weights of a collection ('' for all) depend on, and what of it has
-- changed since it was measured, a sentence for each; nothing for settings that were not measured.
create or replace function knowledge_internal.changes_since(
  name text, measured jsonb default null, out ranked jsonb, out changes text[]
)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  least_share constant float8 := 0.1; -- of the chunks
begin
  ranked := knowledge_internal.ranked_corpus(name);
  changes := array(
    select change.sentence
      from (
        select (measured ->> 'chunks')::bigint as chunks_then,
               (ranked ->> 'chunks')::bigint as chunks_now
      ) as size
     cross join lateral (
        values
          (abs(size.chunks_now - size.chunks_then) > least_share * size.chunks_then,
           format('the corpus had %s chunks and has %s', size.chunks_then, size.chunks_now)),
          (ranked -> 'models' <> measured -> 'models',
           format(
             'the embeddings were of %s and are of %s',
             (select coalesce(string_agg(model, ', '), 'no model')
                from jsonb_array_elements_text(measured -> 'models') as then_used (model)),
             (select coalesce(string_agg(model, ', '), 'no model')
                from jsonb_array_elements_text(ranked -> 'models') as used (model))
           )),
          (ranked -> 'fields' <> measured -> 'fields',
           'the weights of heading, title and metadata are others'),
          (ranked -> 'formulas' <> measured -> 'formulas',
           'a newer version ranks by other formulas')
      ) as change (is_real, sentence)
     where change.is_real
  );
end
$$;

revoke all on all functions in schema knowledge_internal from public;

notify pgrst, 'reload schema';
