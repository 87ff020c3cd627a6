-- 030_corpus_overview: what is stored, for the people who are responsible for it.
-- Module: insight.
-- Adds: functions list_knowledge_documents, describe_knowledge_document, knowledge_corpus_overview,
-- sample_knowledge_embeddings.
-- Locks nothing that exists.

-- The pairs of a model (an empty text if none was recorded) and a collection that active chunks
-- with an embedding have.
create function knowledge_internal.stored_models() returns table (model text, collection text)
language sql stable security invoker set search_path = pg_catalog, pg_temp
-- One entry of the index is read for each pair.
set enable_seqscan = off
set enable_bitmapscan = off as $$
  with recursive pair as (
    select '' as model, '' as collection
     union all
    select next.model, next.collection
      from pair
     cross join lateral (
             select coalesce(chunk.embedding_model, '') as model, chunk.collection
               from public.knowledge_chunks as chunk
              where chunk.status = 'active'
                and chunk.embedding_bits is not null
                and (coalesce(chunk.embedding_model, ''), chunk.collection)
                      > (pair.model, pair.collection)
              order by 1, 2
              limit 1
           ) as next
  )
  select pair.model, pair.collection from pair where pair.collection <> ''
$$;

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
  inactive bigint,
  bytes bigint,
  created_at timestamptz,
  updated_at timestamptz
);

comment on type public.knowledge_document_summary is
  'A document in the result of list_knowledge_documents. state: ready, pending (an active chunk '
  'has no embedding, or one of another model than its collection''s) or empty (no active chunk). '
  'chunks: the active ones; pending: those of them without the right embedding. inactive: '
  'superseded, archived and deleted chunks. bytes: the text of the active chunks.';

-- These documents with the number of their chunks, in order of external_key.
create function knowledge_internal.summarised_documents(ids uuid[])
returns setof public.knowledge_document_summary
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return query
  with chunks as materialized (
    select chunk.document_id, chunk.collection, chunk.status = 'active' as is_active,
           chunk.embedding_bits is not null as is_embedded,
           coalesce(chunk.embedding_model, '') as model,
           octet_length(chunk.content) as bytes
      from knowledge_internal.chunk_rows as chunk
     where chunk.document_id = any (ids)
  ),
  wanted as materialized (
    select listed.collection, knowledge_internal.model_of_collection(listed.collection) as model
      from (select distinct chunk.collection from chunks as chunk) as listed
  ),
  counted as (
    select chunk.document_id,
           count(*) filter (where chunk.is_active) as active,
           count(*) filter (
             where chunk.is_active and (not chunk.is_embedded or chunk.model <> wanted.model)
           ) as pending,
           count(*) filter (where not chunk.is_active) as inactive,
           sum(chunk.bytes) filter (where chunk.is_active) as bytes
      from chunks as chunk
      join wanted on wanted.collection = chunk.collection
     group by chunk.document_id
  )
  select document.id, document.external_key, document.title,
         case
           when counted.pending > 0 then 'pending'
           when counted.active > 0 then 'ready'
           else 'empty'
         end,
         document.collection, document.knowledge_type, document.language,
         document.source_origin, document.source_url, document.document_date, document.visibility,
         document.owner_id, coalesce(counted.active, 0), coalesce(counted.pending, 0),
         coalesce(counted.inactive, 0), coalesce(counted.bytes, 0), document.created_at,
         document.updated_at
    from public.knowledge_documents as document
    left join counted on counted.document_id = document.id
   where document.id = any (ids)
   order by document.external_key;
end
$$;

create function public.list_knowledge_documents(
  in_collection text default null,
  of_type text default null,
  in_state text default null,
  named text default null,
  after_key text default null,
  page_size integer default 50
) returns setof public.knowledge_document_summary
-- definer: service_role has no rights on the internal schema.
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
-- With a custom plan, a condition whose argument is null is not part of the query.
set plan_cache_mode = force_custom_plan as $$
declare
  states constant text[] := array['ready', 'pending', 'empty'];
  largest_page constant integer := 200;
begin
  perform knowledge_internal.check_caller('list_knowledge_documents');
  if in_state <> all (states) then
    raise exception 'in_state must be one of %, or null, not %',
                    array_to_string(states, ', '), left(in_state, 100)
      using errcode = '22023';
  end if;
  perform knowledge_internal.check_range('page_size', page_size, 1, largest_page);
  return query
  with waiting as (
    select chunk.document_id
      from public.knowledge_chunks as chunk
     where chunk.status = 'active'
       and chunk.embedding_bits is null
       and chunk.document_id is not null
     union all
    select chunk.document_id
      from knowledge_internal.stored_models() as stored
      join public.knowledge_chunks as chunk
        on chunk.status = 'active'
       and chunk.embedding_bits is not null
       and coalesce(chunk.embedding_model, '') = stored.model
       and chunk.collection = stored.collection
     where stored.model <> knowledge_internal.model_of_collection(stored.collection)
       and chunk.document_id is not null
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
                  or in_state = 'pending'
                     and document.id in (select waiting.document_id from waiting)
                  or in_state in ('ready', 'empty')
                     and (in_state = 'ready') = exists (
                           select
                             from public.knowledge_chunks as chunk
                            where chunk.document_id = document.id
                              and chunk.status = 'active'
                         )
                     and document.id not in (select waiting.document_id from waiting)
                )
              order by document.external_key
              limit page_size
           )
         ) as summary;
end
$$;

comment on function public.list_knowledge_documents is
  'The documents, whoever owns them, in order of external_key: of one collection, knowledge_type '
  'and state (ready, pending or empty), and with the text named in the external_key or the title, '
  'in any case; null: all. page_size: 1 to 200; after_key: the external_key that the page '
  'before ended with. Raises 22023 for an unknown state and for a page_size out of bounds.';
revoke all on function public.list_knowledge_documents from public, anon, authenticated;
grant execute on function public.list_knowledge_documents to service_role;

create function public.describe_knowledge_document(
  document_key text default null,
  document_id uuid default null,
  chunk_id uuid default null,
  chunk_count integer default 50,
  chunk_offset integer default 0
) returns jsonb
-- definer: service_role has no rights on the internal schema.
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
  most_chunks constant integer := 500;
  last_offset constant integer := 1000000;
  target uuid;
  chunks jsonb;
begin
  perform knowledge_internal.check_caller('describe_knowledge_document');
  if num_nonnulls(document_key, document_id, chunk_id) <> 1 then
    raise exception 'exactly one of document_key, document_id and chunk_id must be given'
      using errcode = '22023';
  end if;
  perform knowledge_internal.check_range('chunk_count', chunk_count, 1, most_chunks);
  perform knowledge_internal.check_range('chunk_offset', chunk_offset, 0, last_offset);
  if chunk_id is not null then
    select chunk.document_id into target
      from public.knowledge_chunks as chunk
     where chunk.id = describe_knowledge_document.chunk_id;
  else
    select document.id into target
      from public.knowledge_documents as document
     where document.external_key = document_key
        or document.id = document_id;
  end if;
  with page as (
    select chunk, coalesce(chunk.content, knowledge_internal.content_of(chunk.id)) as content
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
             'content', page.content,
             'bytes', octet_length(page.content),
             'words', (page.chunk).text_length,
             'collection', (page.chunk).collection,
             'language', (page.chunk).language,
             'visibility', (page.chunk).visibility,
             'metadata', (page.chunk).metadata,
             'is_embedded', (page.chunk).embedding_bits is not null,
             'embedding_model', (page.chunk).embedding_model,
             'state', case
               when (page.chunk).status <> 'active' then 'inactive'
               when (page.chunk).embedding_bits is null or has.model <> wanted.model then 'pending'
               else 'ready'
             end,
             'reason', case
               when (page.chunk).status <> 'active'
                 then format('its status is %s: no search returns it', (page.chunk).status)
               when (page.chunk).embedding_bits is null
                 then 'it has no embedding, so only the text leg finds it'
               when has.model <> wanted.model then format(
                 'its embedding is of %s, and the model of its collection is %s',
                 coalesce((page.chunk).embedding_model, 'an unknown model'), wanted.model
               )
             end,
             'created_at', (page.chunk).created_at,
             'updated_at', (page.chunk).updated_at
           )
           order by ((page.chunk).status <> 'active'), (page.chunk).chunk_index,
                    (page.chunk).version desc, (page.chunk).id
         )
    into chunks
    from page
   cross join lateral (select coalesce((page.chunk).embedding_model, '')) as has (model)
   cross join lateral knowledge_internal.model_of_collection((page.chunk).collection)
           as wanted (model);
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
  'chunk: state (ready, pending or inactive) and reason, why it is not ready; bytes and '
  'words of its text. Exactly one of document_key, document_id and chunk_id is given; with '
  'chunk_id, chunks has that chunk only. chunk_count: 1 to 500; chunk_offset: 0 to 1000000. Null '
  'if nothing is stored under this name. Raises 22023 for a wrong argument.';
revoke all on function public.describe_knowledge_document from public, anon, authenticated;
grant execute on function public.describe_knowledge_document to service_role;

-- The key documents of knowledge_corpus_overview: up to 200,000 documents are counted, else a
-- sample.
create function knowledge_internal.document_overview() returns jsonb
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  most_documents constant integer := 200000;
  most_values constant integer := 20;
  share constant real := knowledge_internal.sampled_share(
    'public.knowledge_documents'::regclass, most_documents
  );
begin
  return (
    with counted as (
      select facet.name, facet.value, count(*) as sampled,
             round(count(*) * 100 / share)::bigint as documents
        from public.knowledge_documents as document tablesample system (share) repeatable (1)
       cross join lateral (
               values
                 ('collection', document.collection),
                 ('knowledge_type', document.knowledge_type),
                 ('language', document.language),
                 ('source_origin', document.source_origin),
                 ('visibility', document.visibility),
                 ('year', coalesce(extract(year from document.document_date)::text, ''))
             ) as facet (name, value)
       group by facet.name, facet.value
    ),
    ranked as (
      select counted.*,
             row_number() over (
               partition by counted.name order by counted.documents desc, counted.value
             ) as place
        from counted
    ),
    facets as (
      select ranked.name, sum(ranked.sampled) as sampled,
             jsonb_build_object(
               'values', jsonb_agg(
                 jsonb_build_object('value', ranked.value, 'documents', ranked.documents)
                 order by ranked.place
               ) filter (where ranked.place <= most_values),
               'others', coalesce(
                 sum(ranked.documents) filter (where ranked.place > most_values), 0
               )
             ) as listed
        from ranked
       group by ranked.name
    )
    select jsonb_build_object(
             'total', coalesce(round(max(facets.sampled) * 100 / share)::bigint, 0),
             'is_estimated', share < 100,
             'facets', coalesce(jsonb_object_agg(facets.name, facets.listed), '{}')
           )
      from facets
  );
end
$$;

-- Titles and addresses that several documents of a collection have, most documents first; null with
-- more than 200,000 documents.
create function knowledge_internal.repeated_documents() returns jsonb
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  most_documents constant integer := 200000;
  most_examples constant integer := 20;
begin
  if knowledge_internal.sampled_share('public.knowledge_documents'::regclass, most_documents) < 100
  then
    return null;
  end if;
  return (
    with repeated as (
      select named.kind, named.value, document.collection, count(*) as documents,
             row_number() over (
               partition by named.kind
               order by count(*) desc, named.value, document.collection
             ) as place
        from public.knowledge_documents as document
       cross join lateral (
               values ('title', document.title), ('source_url', document.source_url)
             ) as named (kind, value)
       where named.value <> ''
       group by named.kind, named.value, document.collection
      having count(*) > 1
    )
    select jsonb_object_agg(kind.name, listed.found)
      from (values ('title'), ('source_url')) as kind (name)
     cross join lateral (
             select jsonb_build_object(
                      'groups', count(*),
                      'documents', coalesce(sum(repeated.documents), 0),
                      'examples', coalesce(
                        jsonb_agg(
                          jsonb_build_object(
                            'value', left(repeated.value, 300),
                            'collection', repeated.collection, 'documents', repeated.documents
                          )
                          order by repeated.place
                        ) filter (where repeated.place <= most_examples),
                        '[]'
                      )
                    )
               from repeated
              where repeated.kind = kind.name
           ) as listed (found)
  );
end
$$;

-- Texts that several active chunks have, most chunks first. Up to 20,000 rows all texts are
-- compared; in a larger table, those that the last ANALYZE found to be most common.
create function knowledge_internal.repeated_texts() returns jsonb
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  most_rows constant integer := 20000;
  most_examples constant integer := 20;
  is_estimated constant boolean := knowledge_internal.sampled_share(
    knowledge_internal.physical_table(), most_rows
  ) < 100;
  hashes text[];
begin
  if is_estimated then
    -- ANALYZE has found the most common hashes in up to 300,000 rows; the index counts them now.
    select statistics.most_common_vals::text::text[] into hashes
      from pg_catalog.pg_class as class
      join pg_catalog.pg_stats as statistics
        on statistics.schemaname = class.relnamespace::regnamespace::text
       and statistics.tablename = class.relname
       and statistics.attname = 'content_hash'
     where class.oid = knowledge_internal.physical_table();
  else
    hashes := array(
      select chunk.content_hash
        from public.knowledge_chunks as chunk
       where chunk.status = 'active'
       group by chunk.content_hash
      having count(*) > 1
    );
  end if;
  return (
    with counted as (
      select listed.content_hash, found.chunks, found.ids
        from unnest(hashes) as listed (content_hash)
       cross join lateral (
               select count(*) as chunks, (array_agg(chunk.id order by chunk.id))[1:3] as ids
                 from public.knowledge_chunks as chunk
                where chunk.content_hash = listed.content_hash
                  and chunk.status = 'active'
             ) as found
       where found.chunks > 1
    ),
    example as (
      select counted.*
        from counted
       order by counted.chunks desc, counted.content_hash
       limit most_examples
    )
    select jsonb_build_object(
             'groups', (select count(*) from counted),
             'chunks', (select coalesce(sum(counted.chunks), 0) from counted),
             'is_complete', not is_estimated,
             'examples', coalesce(
               jsonb_agg(
                 jsonb_build_object(
                   'chunks', example.chunks,
                   'content', left(chunk.content, 200),
                   'heading', left(chunk.heading, 200),
                   'ids', example.ids
                 )
                 order by example.chunks desc, example.content_hash
               ),
               '[]'
             )
           )
      from example
      join knowledge_internal.chunk_rows as chunk on chunk.id = example.ids[1]
  );
end
$$;

-- The key sizes of knowledge_corpus_overview: up to 10,000 chunks are measured, else a sample.
create function knowledge_internal.chunk_sizes() returns jsonb
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  most_rows constant integer := 10000;
  most_examples constant integer := 10;
  short constant integer := 40; -- bytes
  long constant integer := 6000; -- about 1,000 words: more than most models read
  bounds constant integer[] := array[32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384];
  share constant real := knowledge_internal.sampled_share(
    knowledge_internal.physical_table(), most_rows
  );
begin
  return (
    with sampled as materialized (
      select chunk.id, chunk.document_id,
             octet_length(coalesce(chunk.content, knowledge_internal.content_of(chunk.id)))
               as bytes
        from public.knowledge_chunks as chunk tablesample system (share) repeatable (1)
       where chunk.status = 'active'
         -- Rows without chunk_index are whole documents, which may be long.
         and chunk.chunk_index is not null
    ),
    bins as (
      select width_bucket(sampled.bytes, bounds) as place, count(*) as chunks
        from sampled
       group by 1
    ),
    examples as (
      select kind.name as kind, sampled.*,
             row_number() over (partition by kind.name order by kind.size, sampled.id) as place
        from sampled
       cross join lateral (
               values
                 ('short', sampled.bytes, sampled.bytes < short),
                 ('long', -sampled.bytes, sampled.bytes > long)
             ) as kind (name, size, has_chunk)
       where kind.has_chunk
    ),
    listed as (
      select example.kind,
             jsonb_agg(
               jsonb_build_object(
                 'id', example.id, 'bytes', example.bytes,
                 'document_key', document.external_key, 'title', document.title,
                 'content', left(chunk.content, 120)
               )
               order by example.place
             ) as chunks
        from examples as example
        join knowledge_internal.chunk_rows as chunk on chunk.id = example.id
        left join public.knowledge_documents as document on document.id = example.document_id
       where example.place <= most_examples
       group by example.kind
    )
    select jsonb_build_object(
             'sampled', count(*),
             'is_estimated', share < 100,
             'median', percentile_disc(0.5) within group (order by sampled.bytes),
             'p95', percentile_disc(0.95) within group (order by sampled.bytes),
             'longest', max(sampled.bytes),
             'short_below', short,
             'long_above', long,
             'short', round(count(*) filter (where sampled.bytes < short) * 100 / share),
             'long', round(count(*) filter (where sampled.bytes > long) * 100 / share),
             'histogram', (
               select coalesce(
                        jsonb_agg(
                          jsonb_build_object(
                            'below', bounds[bins.place + 1],
                            'chunks', round(bins.chunks * 100 / share)
                          )
                          order by bins.place
                        ),
                        '[]'
                      )
                 from bins
             ),
             'examples', '{"short": [], "long": []}'
               || coalesce((select jsonb_object_agg(listed.kind, listed.chunks) from listed), '{}')
           )
      from sampled
  );
end
$$;

create function public.knowledge_corpus_overview() returns jsonb
-- definer: service_role has no rights on the internal schema.
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
begin
  perform knowledge_internal.check_caller('knowledge_corpus_overview');
  return jsonb_build_object(
    'documents', knowledge_internal.document_overview(),
    'sizes', knowledge_internal.chunk_sizes(),
    'repeated_texts', knowledge_internal.repeated_texts(),
    'repeated_documents', knowledge_internal.repeated_documents()
  );
end
$$;

comment on function public.knowledge_corpus_overview is
  'What is stored, as one JSON object for a page that is shown at once, so large tables are '
  'sampled. documents: total and the most common values of collection, knowledge_type, language, '
  'source_origin, visibility and year (of document_date). sizes: bytes of the text of active '
  'chunks, with a histogram and the shortest and longest ones. repeated_texts: texts of several '
  'chunks. repeated_documents: titles and addresses of several documents of a collection; null '
  'with more than 200,000 documents. is_estimated and is_complete say where a sample or the '
  'statistics were read. knowledge_search_health has embeddings, indexes and problems.';
revoke all on function public.knowledge_corpus_overview from public, anon, authenticated;
grant execute on function public.knowledge_corpus_overview to service_role;

create function public.sample_knowledge_embeddings(most integer default 2000)
returns table (
  chunk_id uuid,
  document_key text,
  title text,
  collection text,
  knowledge_type text,
  language text,
  source_origin text,
  embedding real[]
)
-- definer: service_role has no rights on the internal schema.
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
  share real;
begin
  perform knowledge_internal.check_caller('sample_knowledge_embeddings');
  perform knowledge_internal.check_range('most', most, 1, 5000);
  -- A part of the sampled rows is superseded or has no embedding.
  share := knowledge_internal.sampled_share(knowledge_internal.physical_table(), most * 5 / 4);
  return query
  select sampled.id, document.external_key, left(coalesce(document.title, sampled.content), 100),
         sampled.collection, sampled.knowledge_type, sampled.language, sampled.source_origin,
         sampled.embedding::real[]
    from (
      select chunk.id
        from public.knowledge_chunks as chunk tablesample system (share) repeatable (1)
       where chunk.status = 'active'
         and chunk.embedding_bits is not null
       -- In random order, so that the limit does not always leave out the end of the table.
       order by md5(chunk.id::text)
       limit most
    ) as one
    join knowledge_internal.chunk_rows as sampled
      on sampled.id = one.id and sampled.embedding is not null
    left join public.knowledge_documents as document on document.id = sampled.document_id;
end
$$;

comment on function public.sample_knowledge_embeddings is
  'A sample of active chunks with their embeddings, of at most most (1 to 5000) chunks, for a map. '
  'The same chunks as long as the table does not change. Raises 22023 for most out of bounds.';
revoke all on function public.sample_knowledge_embeddings from public, anon, authenticated;
grant execute on function public.sample_knowledge_embeddings to service_role;

revoke all on all functions in schema knowledge_internal from public;

notify pgrst, 'reload schema';
