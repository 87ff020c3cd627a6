-- 030_corpus_overview: what is stored, for the people who are responsible for it.
-- Adds: functions list_knowledge_documents and describe_knowledge_document.
-- Locks nothing that exists.
-- Written from supabase/schemas/30_corpus_overview.sql by `make baseline`: edit that file.

create function knowledge_internal.waiting_documents()
returns table (document_id uuid, is_failed boolean)
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
as $$
begin
  return query
  select chunk.document_id, bool_or(coalesce(claim.is_failed, false))
    from knowledge_internal.pending_texts() as waiting
    join public.knowledge_chunks as chunk on chunk.id = waiting.chunk_id
    left join lateral (
           select bool_or(one.failed_at is not null) as is_failed
             from knowledge_internal.embedding_claims as one
            where one.content_hash = waiting.content_hash
              and one.model = coalesce(waiting.model, one.model)
         ) as claim on true
   where chunk.document_id is not null
   group by chunk.document_id;
end
$$;

comment on function knowledge_internal.waiting_documents() is
  'The documents with an active chunk that needs an embedding. is_failed: a worker has given up '
  'one of them.';

create type public.knowledge_document_summary as (
  id uuid,
  external_key text,
  title text,
  state text,
  collection text,
  knowledge_type text,
  language text,
  source_origin text,
  source_url text,
  document_date date,
  visibility text,
  owner_id uuid,
  chunks bigint,
  pending bigint,
  failed bigint,
  inactive bigint,
  bytes bigint,
  created_at timestamptz,
  updated_at timestamptz
);

comment on type public.knowledge_document_summary is
  'A document in the result of list_knowledge_documents. state: ready, pending (an active chunk '
  'needs an embedding), failed (a worker has given up one) or empty (no active chunk). chunks: the '
  'active ones; of these, pending need an embedding, and of those, failed were given up. inactive: '
  'superseded, archived and deleted chunks. bytes: the text of the active chunks.';

create function knowledge_internal.summarised_documents(ids uuid[])
returns setof public.knowledge_document_summary
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
as $$
begin
  return query
  with chunks as materialized (
    select chunk.document_id, chunk.collection, chunk.content_hash, chunk.status,
           chunk.embedding is not null as is_embedded,
           coalesce(chunk.embedding_model, '') as model,
           octet_length(chunk.content) as bytes
      from public.knowledge_chunks as chunk
     where chunk.document_id = any (ids)
  ),
  wanted as materialized (
    select listed.collection, knowledge_internal.model_of_collection(listed.collection) as model
      from (select distinct chunk.collection from chunks as chunk) as listed
  ),
  counted as (
    select chunk.document_id,
           count(*) filter (where chunk.status = 'active') as active,
           count(*) filter (where waits.is_pending) as pending,
           count(*) filter (where waits.is_pending and claim.is_failed) as failed,
           count(*) filter (where chunk.status <> 'active') as inactive,
           coalesce(sum(chunk.bytes) filter (where chunk.status = 'active'), 0) as bytes
      from chunks as chunk
      join wanted on wanted.collection = chunk.collection
     cross join lateral (
             select chunk.status = 'active'
                    and (not chunk.is_embedded or coalesce(chunk.model <> wanted.model, false))
                    as is_pending
           ) as waits
      left join lateral (
             select bool_or(one.failed_at is not null) as is_failed
               from knowledge_internal.embedding_claims as one
              where waits.is_pending
                and one.content_hash = chunk.content_hash
                and one.model = coalesce(wanted.model, one.model)
           ) as claim on true
     group by chunk.document_id
  )
  select document.id, document.external_key, document.title,
         case
           when counted.failed > 0 then 'failed'
           when counted.pending > 0 then 'pending'
           when counted.active > 0 then 'ready'
           else 'empty'
         end,
         document.collection, document.knowledge_type, document.language,
         document.source_origin, document.source_url, document.document_date, document.visibility,
         document.owner_id, coalesce(counted.active, 0), coalesce(counted.pending, 0),
         coalesce(counted.failed, 0), coalesce(counted.inactive, 0),
         coalesce(counted.bytes, 0)::bigint, document.created_at, document.updated_at
    from public.knowledge_documents as document
    left join counted on counted.document_id = document.id
   where document.id = any (ids)
   order by document.external_key;
end
$$;

comment on function knowledge_internal.summarised_documents(uuid[]) is
  'These documents with the number of their chunks, in order of external_key.';

create function public.list_knowledge_documents(
  in_collection text default null,
  of_type text default null,
  in_state text default null,
  named text default null,
  after_key text default null,
  page_size integer default 50
)
returns setof public.knowledge_document_summary
language plpgsql
stable
-- definer: service_role has no rights on the internal schema.
security definer
set search_path = pg_catalog, pg_temp
-- With a custom plan, a condition whose argument is null is not part of the query.
set plan_cache_mode = force_custom_plan
as $$
declare
  states constant text[] := array['ready', 'pending', 'failed', 'empty'];
  largest_page constant integer := 200;
begin
  if in_state <> all (states) then
    raise exception 'in_state must be one of %, or null, not %',
                    array_to_string(states, ', '), left(in_state, 100)
      using errcode = '22023';
  end if;
  perform knowledge_internal.check_range('page_size', page_size, 1, largest_page);
  return query
  with waiting as (
    select one.document_id, one.is_failed from knowledge_internal.waiting_documents() as one
  )
  select summary.*
    from knowledge_internal.summarised_documents(
           array(
             select document.id
               from public.knowledge_documents as document
              where (after_key is null or document.external_key > after_key)
                and (in_collection is null or document.collection = in_collection)
                and (of_type is null or document.knowledge_type = of_type)
                and (
                  named is null
                  or strpos(lower(document.external_key), lower(named)) > 0
                  or strpos(lower(document.title), lower(named)) > 0
                )
                and (
                  in_state is null
                  or in_state in ('pending', 'failed')
                     and document.id in (
                           select waiting.document_id
                             from waiting
                            where waiting.is_failed = (in_state = 'failed')
                         )
                  or in_state = 'ready'
                     and document.id not in (select waiting.document_id from waiting)
                     and exists (
                           select
                             from public.knowledge_chunks as chunk
                            where chunk.document_id = document.id
                              and chunk.status = 'active'
                         )
                  or in_state = 'empty'
                     and not exists (
                           select
                             from public.knowledge_chunks as chunk
                            where chunk.document_id = document.id
                              and chunk.status = 'active'
                         )
                )
              order by document.external_key
              limit page_size
           )
         ) as summary;
end
$$;

comment on function public.list_knowledge_documents is
  'The documents, whoever owns them, in order of external_key: of one collection, knowledge_type '
  'and state (ready, pending, failed or empty), and with the text named in the external_key or the '
  'title, in any case; null: all. page_size: 1 to 200; after_key: the external_key that the page '
  'before ended with. Raises 22023 for an unknown state and for a page_size out of bounds.';
revoke all on function public.list_knowledge_documents from public, anon, authenticated;
grant execute on function public.list_knowledge_documents to service_role;

create function knowledge_internal.embedding_state(chunk public.knowledge_chunks)
returns table (state text, reason text)
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
as $$
declare
  wanted_model constant text := knowledge_internal.model_of_collection(chunk.collection);
  claim knowledge_internal.embedding_claims;
  need text;
begin
  if chunk.status <> 'active' then
    return query select 'inactive', format('its status is %s: no search returns it', chunk.status);
    return;
  elsif chunk.embedding is null then
    need := 'it has no embedding, so only the text leg finds it';
  elsif coalesce(chunk.embedding_model, '') <> wanted_model then
    need := format(
      'its embedding is of %s, and the model of its collection is %s',
      coalesce(chunk.embedding_model, 'an unknown model'), wanted_model
    );
  else
    return query select 'ready', null::text;
    return;
  end if;
  select stored.* into claim
    from knowledge_internal.embedding_claims as stored
   where stored.content_hash = chunk.content_hash
     and stored.model = coalesce(wanted_model, stored.model)
   order by stored.failed_at desc nulls last, stored.available_at desc
   limit 1;
  return query
  select case when claim.failed_at is null then 'pending' else 'failed' end,
         need || case
           when claim.failed_at is not null then format(
             '; given up after %s attempts: %s', claim.attempts, claim.reason
           )
           when claim.claimed_at is not null and claim.available_at > clock_timestamp()
             then format('; a worker has it since %s', date_trunc('second', claim.claimed_at))
           when claim.reason is not null then format(
             '; refused %s times, the next attempt is after %s: %s',
             claim.attempts, date_trunc('second', claim.available_at), claim.reason
           )
           else '; it waits for a worker'
         end;
end
$$;

comment on function knowledge_internal.embedding_state(public.knowledge_chunks) is
  'Whether a chunk has the embedding that it should have: ready, pending, failed or inactive, and '
  'why; the reason is null for ready.';

create function public.describe_knowledge_document(
  document_key text default null,
  document_id uuid default null,
  chunk_id uuid default null,
  chunk_count integer default 50,
  chunk_offset integer default 0
)
returns jsonb
language plpgsql
stable
-- definer: service_role has no rights on the internal schema.
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  most_chunks constant integer := 500;
  last_offset constant integer := 1000000;
  target uuid := document_id;
  chunks jsonb;
begin
  if num_nonnulls(document_key, document_id, chunk_id) <> 1 then
    raise exception 'exactly one of document_key, document_id and chunk_id must be given'
      using errcode = '22023';
  end if;
  perform knowledge_internal.check_range('chunk_count', chunk_count, 1, most_chunks);
  perform knowledge_internal.check_range('chunk_offset', chunk_offset, 0, last_offset);
  if document_key is not null then
    select document.id into target
      from public.knowledge_documents as document
     where document.external_key = document_key;
  elsif chunk_id is not null then
    select chunk.document_id into target
      from public.knowledge_chunks as chunk
     where chunk.id = describe_knowledge_document.chunk_id;
  end if;
  with page as (
    select chunk
      from public.knowledge_chunks as chunk
     where case
             when describe_knowledge_document.chunk_id is null then chunk.document_id = target
             else chunk.id = describe_knowledge_document.chunk_id
           end
     order by (chunk.status <> 'active'), chunk.chunk_index, chunk.version desc, chunk.id
     limit chunk_count
    offset chunk_offset
  )
  select jsonb_agg(
           jsonb_build_object(
             'id', (page.chunk).id,
             'chunk_index', (page.chunk).chunk_index,
             'version', (page.chunk).version,
             'status', (page.chunk).status,
             'heading', (page.chunk).heading,
             'content', (page.chunk).content,
             'bytes', octet_length((page.chunk).content),
             'words', (page.chunk).text_length,
             'collection', (page.chunk).collection,
             'language', (page.chunk).language,
             'visibility', (page.chunk).visibility,
             'metadata', (page.chunk).metadata,
             'is_embedded', (page.chunk).embedding is not null,
             'embedding_model', (page.chunk).embedding_model,
             'state', embedding.state,
             'reason', embedding.reason,
             'created_at', (page.chunk).created_at,
             'updated_at', (page.chunk).updated_at
           )
           order by ((page.chunk).status <> 'active'), (page.chunk).chunk_index,
                    (page.chunk).version desc, (page.chunk).id
         )
    into chunks
    from page
   cross join lateral knowledge_internal.embedding_state(page.chunk) as embedding;
  if target is null and chunks is null then
    return null;
  end if;
  return jsonb_build_object(
    'document', (
      select to_jsonb(summary.*) || jsonb_build_object(
               'author', document.author,
               'allowed_groups', document.allowed_groups,
               'sensitivity', document.sensitivity,
               'metadata', document.metadata,
               'source_row', document.source_row
             )
        from knowledge_internal.summarised_documents(array[target]) as summary
        join public.knowledge_documents as document on document.id = summary.id
    ),
    'chunks', coalesce(chunks, '[]')
  );
end
$$;

comment on function public.describe_knowledge_document is
  'A document and a page of its chunks with their states, whoever owns it, as one JSON object: '
  'document (as list_knowledge_documents has it, and author, allowed_groups, sensitivity, metadata '
  'and source_row; null for a chunk without a document) and chunks, the active ones first. Of a '
  'chunk: state (ready, pending, failed or inactive) and reason, why it is not ready; bytes and '
  'words of its text. Exactly one of document_key, document_id and chunk_id is given; with '
  'chunk_id, chunks has that chunk only. chunk_count: 1 to 500; chunk_offset: 0 to 1000000. Null '
  'if nothing is stored under this name. Raises 22023 for a wrong argument.';
revoke all on function public.describe_knowledge_document from public, anon, authenticated;
grant execute on function public.describe_knowledge_document to service_role;

notify pgrst, 'reload schema';
