-- 023_embedding_queue: the chunks that wait for an embedding.
-- Module: embedding_queue.
-- Adds: table knowledge_embedding_claims, functions claim_, store_, pending_, failed_, retry_ and
-- count_pending_knowledge_embeddings, and an index of knowledge_chunks, against whose writes it
-- locks them until it commits.
-- Written from supabase/schemas/modules/embedding_queue/23_embedding_queue.sql by `make baseline`: edit that file.

create index knowledge_chunks_unembedded on public.knowledge_chunks (collection)
  where status = 'active' and embedding_bits is null;

-- The column that embeddings of a model are written to: embedding_next (is_next) while a
-- re-embedding changes the corpus to this model, else embedding. The comment on embedding_next
-- names the model.
create function knowledge_internal.embedding_target(
  model text, out is_next boolean, out dimensions integer
)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  mark constant text := 're-embedding: ';
begin
  select attribute.attname = 'embedding_next', nullif(attribute.atttypmod, -1)
    into is_next, dimensions
    from pg_catalog.pg_attribute as attribute
   where attribute.attrelid = knowledge_internal.physical_table()
     and case attribute.attname
           when 'embedding' then true
           when 'embedding_next' then substr(
             col_description(attribute.attrelid, attribute.attnum), length(mark) + 1
           )::jsonb ->> 'model' = embedding_target.model
         end
   order by attribute.attname desc
   limit 1;
end
$$;

-- The chunks are the queue: no row is added when a chunk is written. A claim is about a text and a
-- model, so chunks with the same text are embedded once, and a chunk whose text changes has no
-- claim. A lost claim is only a lost lease: the text is handed out again.
create table public.knowledge_embedding_claims (
  content_hash text,
  model text,
  worker text,
  claimed_at timestamptz,
  available_at timestamptz not null,
  attempts integer not null,
  failed_at timestamptz,
  reason text,
  primary key (content_hash, model)
);

comment on table public.knowledge_embedding_claims is
  'Texts that a worker embeds now, or that could not be embedded. claimed_at: null if no worker '
  'has the text. available_at: the end of the lease or of the wait after a failure; infinity for a '
  'text that failed for good, which has failed_at.';

alter table public.knowledge_embedding_claims enable row level security;
create policy knowledge_embedding_claims_none on public.knowledge_embedding_claims
  to anon, authenticated using (false);
revoke all on table public.knowledge_embedding_claims
  from public, anon, authenticated, service_role;

-- Whether an active chunk needs an embedding of wanted_model: it has none, or one of another model
-- than the collection's. stored_model: an empty text if no model was recorded.
create function knowledge_internal.is_pending(
  is_embedded boolean, stored_model text, collection text, wanted_model text
) returns boolean
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  model constant text := knowledge_internal.model_of_collection(collection);
begin
  -- Without a setting it is not known which model is right, so no embedding is replaced.
  return case
    when is_embedded then coalesce(model = wanted_model and stored_model <> model, false)
    else coalesce(model, wanted_model) = wanted_model
  end;
end
$$;

-- Chunks that need an embedding of that model and whose text nobody has claimed, those without an
-- embedding first. Their rows are locked; rows that are locked already are left out. Raises 22023
-- if all named embeddings are of other models, and no setting names this model.
create function knowledge_internal.pending_chunks(
  wanted_model text, most integer, searched text[], moment timestamptz
) returns uuid[]
language plpgsql volatile security invoker set search_path = pg_catalog, pg_temp
-- The queries end after few rows of an index that has only pending chunks. Statistics from before
-- these chunks were written lead to a scan of the table.
set enable_seqscan = off
set enable_bitmapscan = off as $$
declare
  ids uuid[] := '{}';
  other_model text := '';
  place text := '';
begin
  if not exists (
       select from public.knowledge_settings as settings
        where settings.embedding_model = wanted_model
     )
     and not exists (
       select from public.knowledge_chunks as chunk
        where chunk.status = 'active'
          and chunk.embedding_bits is not null
          and coalesce(chunk.embedding_model, '') = wanted_model
     )
  then
    select coalesce(chunk.embedding_model, '') into other_model
      from public.knowledge_chunks as chunk
     where chunk.status = 'active'
       and chunk.embedding_bits is not null
       and coalesce(chunk.embedding_model, '') > ''
       -- Another worker may have stored the first one of this model since.
       and chunk.embedding_model <> wanted_model
     order by 1
     limit 1;
    if found then
      raise exception 'model is %, but the stored embeddings are of %, and they are not comparable',
                      wanted_model, other_model
        using errcode = '22023',
              hint = 'Embed with the stored model, change the model of the corpus with '
                     '`second-brain corpus reembed start`, or name it in set_knowledge_settings.';
    end if;
    other_model := '';
  end if;

  loop
    select chunk.collection into place
      from public.knowledge_chunks as chunk
     where chunk.status = 'active'
       and chunk.embedding_bits is null
       and chunk.collection > place
       and (searched is null or chunk.collection = any (searched))
     order by chunk.collection
     limit 1;
    exit when not found;
    continue when not knowledge_internal.is_pending(false, null, place, wanted_model);
    -- skip locked: another worker claims these chunks now, or a writer changes them.
    ids := ids || array(
      select chunk.id
        from public.knowledge_chunks as chunk
       where chunk.status = 'active'
         and chunk.embedding_bits is null
         and chunk.collection = place
         and not exists (
               select from public.knowledge_embedding_claims as claim
                where claim.content_hash = chunk.content_hash
                  and claim.model = wanted_model
                  and claim.available_at > moment
             )
       limit most - cardinality(ids)
         for no key update of chunk skip locked
    );
    if cardinality(ids) >= most then
      return ids;
    end if;
  end loop;

  place := '';
  while cardinality(ids) < most loop
    -- The next pair of model and collection that has chunks: one entry of the index.
    select coalesce(chunk.embedding_model, ''), chunk.collection into other_model, place
      from public.knowledge_chunks as chunk
     where chunk.status = 'active'
       and chunk.embedding_bits is not null
       and (coalesce(chunk.embedding_model, ''), chunk.collection) > (other_model, place)
     order by 1, 2
     limit 1;
    exit when not found;
    if other_model = wanted_model then
      -- The walk continues after the last of the many pairs that have this model.
      select max(chunk.collection) into place
        from public.knowledge_chunks as chunk
       where chunk.status = 'active'
         and chunk.embedding_bits is not null
         and coalesce(chunk.embedding_model, '') = wanted_model;
      continue;
    end if;
    continue when place <> all (searched)
               or not knowledge_internal.is_pending(true, other_model, place, wanted_model);
    ids := ids || array(
      select chunk.id
        from public.knowledge_chunks as chunk
       where chunk.status = 'active'
         and chunk.embedding_bits is not null
         and coalesce(chunk.embedding_model, '') = other_model
         and chunk.collection = place
         and not exists (
               select from public.knowledge_embedding_claims as claim
                where claim.content_hash = chunk.content_hash
                  and claim.model = wanted_model
                  and claim.available_at > moment
             )
       limit most - cardinality(ids)
         for no key update of chunk skip locked
    );
  end loop;
  return ids;
end
$$;

-- pending_chunks for the model of a running re-embedding: chunks without an embedding_next.
create function knowledge_internal.pending_next_chunks(
  wanted_model text, most integer, searched text[], moment timestamptz
) returns uuid[]
language plpgsql volatile security invoker set search_path = pg_catalog, pg_temp
-- As in pending_chunks; a scan of a range of pages is still possible.
set enable_seqscan = off
set enable_bitmapscan = off as $$
declare
  -- Dynamic, because embedding_next exists only while a re-embedding runs.
  query constant text := $query$
    select array(
      select chunk.id
        from public.knowledge_chunks as chunk
       where chunk.status = 'active'
         and chunk.embedding_bits_next is null
         and %s
         and ($3 is null or chunk.collection = any ($3))
         and not exists (
               select from public.knowledge_embedding_claims as claim
                where claim.content_hash = chunk.content_hash
                  and claim.model = $1
                  and claim.available_at > $4
             )
       limit $2
         for no key update of chunk skip locked
    )$query$;
  table_of_chunks constant record := (
    select stored from knowledge_internal.chunk_table as stored
  );
  first_page constant tid := format('(%s,0)', floor(random() * table_of_chunks.pages))::tid;
  ids uuid[];
  more uuid[];
begin
  if exists (
    select from pg_catalog.pg_index as index
      join pg_catalog.pg_class as class on class.oid = index.indexrelid
     where index.indrelid = table_of_chunks.relation
       and class.relname = 'knowledge_chunks_unembedded_next'
       and index.indisvalid
  ) then
    execute format(query, 'true') into ids using wanted_model, most, searched, moment;
    return ids;
  end if;
  -- Before this index exists, updates of the new columns change no index. A scan that always began
  -- at the first page would read all finished chunks again in each call.
  execute format(query, 'chunk.ctid >= $5')
     into ids using wanted_model, most, searched, moment, first_page;
  if cardinality(ids) < most then
    execute format(query, 'chunk.ctid < $5')
       into more using wanted_model, most - cardinality(ids), searched, moment, first_page;
  end if;
  return ids || more;
end
$$;

-- Raises 22023 for the name of a model or of a worker that is out of bounds.
create function knowledge_internal.check_worker(model text, worker text) returns void
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  if (length(model) between 1 and 200) is not true then
    raise exception 'model must be the name of an embedding model with 1 to 200 characters, not %',
                    coalesce('''' || left(model, 100) || '''', 'null')
      using errcode = '22023';
  end if;
  if length(worker) > 200 then
    raise exception 'worker must be null or a name of at most 200 characters, not one of %',
                    length(worker)
      using errcode = '22023';
  end if;
end
$$;

-- How often a text is handed out before it counts as failed.
create function knowledge_internal.most_embedding_attempts() returns integer
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return 5;
end
$$;

-- The public functions are definers: service_role has no rights on the internal schema.

create function public.claim_knowledge_embeddings(
  model text, max_chunks integer default 64, lease interval default '5 minutes',
  worker text default null, collections text[] default null
)
returns table (
  chunk_id uuid, content_hash text, content text, collection text, attempt integer,
  dimensions integer
)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
  most_bytes constant bigint := 8 * 1024 ^ 2; -- of the texts of one call
  most_rounds constant integer := 10;
  -- A text that ended two workers may end the next one: it is handed out alone.
  attempts_in_batches constant integer := 2;
  most_attempts constant integer := knowledge_internal.most_embedding_attempts();
  is_next boolean;
  moment timestamptz;
  ids uuid[];
begin
  perform knowledge_internal.check_caller('claim_knowledge_embeddings');
  perform knowledge_internal.check_worker(model, worker),
          knowledge_internal.check_range('max_chunks', max_chunks, 1, 1000);
  if (lease between interval '1 second' and interval '1 day') is not true then
    raise exception 'lease must be an interval from 1 second to 1 day, not %',
                    coalesce(lease::text, 'null')
      using errcode = '22023';
  end if;
  if array_position(collections, null) is not null then
    raise exception 'collections must be null or an array of names, without null in it'
      using errcode = '22023';
  end if;
  select target.is_next, target.dimensions into is_next, dimensions
    from knowledge_internal.embedding_target(model) as target;
  -- A round is empty if other workers claimed the same texts, or if these have failed meanwhile.
  for round in 1 .. most_rounds loop
    moment := clock_timestamp();
    ids := case
      when is_next
        then knowledge_internal.pending_next_chunks(model, max_chunks, collections, moment)
      else knowledge_internal.pending_chunks(model, max_chunks, collections, moment)
    end;
    exit when cardinality(ids) = 0;
    return query
    with candidate as materialized (
      select distinct on (chunk.content_hash)
             chunk.id, chunk.content_hash, coalesce(claim.attempts, 0) as attempts,
             octet_length(chunk.content) as bytes, pending.place
        from unnest(ids) with ordinality as pending (id, place)
        join knowledge_internal.chunk_rows as chunk on chunk.id = pending.id
        left join public.knowledge_embedding_claims as claim
          on claim.content_hash = chunk.content_hash
         and claim.model = claim_knowledge_embeddings.model
       order by chunk.content_hash, pending.place
    ),
    failed as (
      update public.knowledge_embedding_claims as claim
         set failed_at = moment,
             available_at = 'infinity',
             claimed_at = null,
             reason = coalesce(
               claim.reason, format('no worker reported a result in %s attempts', most_attempts)
             )
        from candidate
       where candidate.attempts >= most_attempts
         and claim.content_hash = candidate.content_hash
         and claim.model = claim_knowledge_embeddings.model
         and claim.available_at <= moment
    ),
    measured as (
      select candidate.*,
             sum(candidate.bytes) over (order by candidate.place) - candidate.bytes as bytes_before,
             bool_or(candidate.attempts >= attempts_in_batches) over () as is_suspect,
             row_number() over (
               order by candidate.attempts >= attempts_in_batches desc, candidate.place
             ) as turn
        from candidate
       where candidate.attempts < most_attempts
    ),
    claimed as (
      insert into public.knowledge_embedding_claims as claim (
        content_hash, model, worker, claimed_at, available_at, attempts
      )
      select measured.content_hash, claim_knowledge_embeddings.model,
             claim_knowledge_embeddings.worker, moment, moment + lease, 1
        from measured
       where case
               when measured.is_suspect then measured.turn = 1
               else measured.bytes_before < most_bytes
             end
       -- All workers insert in the same order, so that two that wait for each other cannot occur.
       order by measured.content_hash
      on conflict on constraint knowledge_embedding_claims_pkey do update
        set worker = excluded.worker,
            claimed_at = excluded.claimed_at,
            available_at = excluded.available_at,
            attempts = claim.attempts + 1
      where claim.available_at <= moment
      returning claim.content_hash, claim.attempts
    )
    select chunk.id, chunk.content_hash, concat_ws(E'\n', chunk.heading, chunk.content),
           chunk.collection, claimed.attempts, claim_knowledge_embeddings.dimensions
      from claimed
      join measured on measured.content_hash = claimed.content_hash
      join knowledge_internal.chunk_rows as chunk on chunk.id = measured.id
     order by measured.place;
    if found then
      return;
    end if;
  end loop;
  -- The queue is empty for this worker: there is time to remove claims of texts that are gone.
  delete from public.knowledge_embedding_claims as claim
   using (
     select gone.ctid
       from public.knowledge_embedding_claims as gone
      where gone.available_at < moment - interval '1 day'
         or (gone.claimed_at is null or gone.available_at <= moment)
            and not exists (
                  select from public.knowledge_chunks as chunk
                   where chunk.content_hash = gone.content_hash
                     and chunk.status = 'active'
                )
        for update skip locked
   ) as gone
   where claim.ctid = gone.ctid;
end
$$;

comment on function public.claim_knowledge_embeddings is
  'Hands out texts that need an embedding of this model, each to one worker until the lease ends; '
  'returns no row if there is none. Pending are active chunks without an embedding, and those with '
  'one of another model than the setting embedding_model of their collection; a collection whose '
  'setting is another model is left out. For the model of a running re-embedding: chunks without '
  'its embedding. content: heading, line feed and content, the text to embed. Chunks with the same '
  'text are one row. dimensions: those of the column. A call returns at most max_chunks texts '
  '(1000) and about 8 MB. A text that is claimed for the third time without a result is handed out '
  'alone, and fails after the fifth. Raises 22023 for a value out of bounds, and for a model that '
  'neither a setting names nor any chunk has, if the chunks have another.';
revoke all on function public.claim_knowledge_embeddings from public, anon, authenticated;
grant execute on function public.claim_knowledge_embeddings to service_role;

-- Raises 22023 for results of store_knowledge_embeddings that are not of the expected form.
create function knowledge_internal.check_embedding_results(results jsonb) returns void
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  most_results constant integer := 1000;
  result_keys constant text[] := array[
    'chunk_id', 'content_hash', 'embedding', 'error', 'is_final', 'release'
  ];
  unknown_key text;
  wrong_result bigint;
begin
  if jsonb_typeof(results) is distinct from 'array' then
    raise exception 'results must be a JSON array of objects, not %',
                    coalesce(jsonb_typeof(results), 'null')
      using errcode = '22023';
  end if;
  if jsonb_array_length(results) > most_results then
    raise exception 'results must have at most % objects, not %',
                    most_results, jsonb_array_length(results)
      using errcode = '22023';
  end if;
  select item.ordinality - 1 into wrong_result
    from jsonb_array_elements(results) with ordinality as item (result, ordinality)
   where jsonb_typeof(item.result) <> 'object'
      or jsonb_typeof(item.result -> 'content_hash') is distinct from 'string'
      or jsonb_typeof(item.result -> 'embedding') not in ('array', 'string', 'null')
      or jsonb_typeof(item.result -> 'error') not in ('string', 'null')
      or jsonb_typeof(item.result -> 'is_final') not in ('boolean', 'null')
      or jsonb_typeof(item.result -> 'release') not in ('boolean', 'null')
      or num_nonnulls(
           item.result ->> 'embedding', item.result ->> 'error',
           nullif(item.result ->> 'release', 'false')
         ) <> 1
   order by item.ordinality
   limit 1;
  if found then
    raise exception 'results[%] must be an object with content_hash, a text, and one of: embedding '
                    '(an array of numbers), error (a text; is_final a boolean), release (true)',
                    wrong_result
      using errcode = '22023';
  end if;
  select key.name into unknown_key
    from jsonb_array_elements(results) as item (result)
   cross join jsonb_object_keys(item.result - result_keys) as key (name)
   limit 1;
  if found then
    raise exception 'results have an unknown key %, the known keys are: %',
                    left(unknown_key, 100), array_to_string(result_keys, ', ')
      using errcode = '22023';
  end if;
end
$$;

-- The embedding in a text; null if it is not an array of finite numbers.
create function knowledge_internal.read_embedding(given text) returns extensions.vector
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return given::extensions.vector;
exception when data_exception then
  return null;
end
$$;

-- Stores embeddings in the active chunks with these hashes that need one of the model. Returns the
-- state of each hash: stored, with the number of chunks; locked (another transaction has the
-- chunk); repeated (it has an embedding of this model); outdated (no active chunk has the text and
-- needs this model).
create function knowledge_internal.write_embeddings(
  hashes text[], embeddings extensions.vector[], model text, is_next boolean
) returns table (content_hash text, state text, chunks bigint)
language plpgsql volatile security invoker set search_path = pg_catalog, pg_temp as $$
declare
  -- Dynamic, because the column embedding_next exists only while a re-embedding runs.
  is_pending constant text := case
    when is_next then 'chunk.embedding_bits_next is null'
    else
      'knowledge_internal.is_pending('
        'chunk.embedding_bits is not null, coalesce(chunk.embedding_model, ''''),'
        'chunk.collection, $2'
      ')'
  end;
  changes constant text := case
    when is_next then
      'embedding_next = locked.embedding, embedding_model_next = $2,'
      ' embedding_bits_next = knowledge_internal.embedding_bits(locked.embedding)'
    else 'embedding = locked.embedding, embedding_model = $2'
  end;
  stored_model constant text := case
    when is_next then 'chunk.embedding_model_next' else 'chunk.embedding_model' end;
  written text[];
begin
  -- The row lock is taken on the newest version of the row, and the conditions are checked again
  -- for this version. skip locked: to wait for a row while holding other row locks would block
  -- writers.
  execute format(
    $query$
      with made as materialized (
        select made.content_hash, made.embedding
          from unnest($1, $3) as made (content_hash, embedding)
      ),
      locked as materialized (
        select chunk.id, made.embedding
          from public.knowledge_chunks as chunk
          join made on made.content_hash = chunk.content_hash
         where chunk.status = 'active'
           and %1$s
           for no key update of chunk skip locked
      ),
      updated as (
        update public.knowledge_chunks as chunk
           set %2$s
          from locked
         where chunk.id = locked.id
        returning chunk.content_hash
      )
      select array_agg(updated.content_hash) from updated
    $query$,
    is_pending, changes
  )
  into written
  using hashes, model, embeddings;
  return query
  select done.content_hash, 'stored', count(*)
    from unnest(written) as done (content_hash)
   group by done.content_hash;
  return query execute format(
    $query$
      select asked.content_hash,
             case
               when bool_or(chunk.id is not null and %1$s) then 'locked'
               when bool_or(%2$s = $2) then 'repeated'
               else 'outdated'
             end,
             0::bigint
        from unnest($1) as asked (content_hash)
        left join public.knowledge_chunks as chunk
          on chunk.content_hash = asked.content_hash
         and chunk.status = 'active'
       group by asked.content_hash
    $query$,
    is_pending, stored_model
  )
  using array(select unnest(hashes) except select unnest(written)), model;
end
$$;

create function public.store_knowledge_embeddings(
  model text, results jsonb, worker text default null
)
returns table (
  stored integer, chunks integer, outdated integer, repeated integer, failed integer,
  retried integer, released integer
)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
  longest_reason constant integer := 500; -- characters
  shortest_wait constant interval := '30 seconds';
  longest_wait constant interval := '1 hour';
  most_attempts constant integer := knowledge_internal.most_embedding_attempts();
  moment timestamptz;
  is_next boolean;
  needed_dimensions integer;
  wrong_dimensions integer;
  hashes text[];
  embeddings extensions.vector[];
  failures jsonb; -- {content_hash: {reason, is_final}}
  unused text[];
  locked text[];
  finished text[];
begin
  perform knowledge_internal.check_caller('store_knowledge_embeddings');
  perform knowledge_internal.check_worker(model, worker),
          knowledge_internal.check_embedding_results(results);
  select target.is_next, target.dimensions into is_next, needed_dimensions
    from knowledge_internal.embedding_target(model) as target;
  select array_agg(given.content_hash) filter (where judged.embedding is not null),
         array_agg(judged.embedding) filter (where judged.embedding is not null),
         jsonb_object_agg(
           given.content_hash,
           jsonb_build_object(
             'reason', judged.problem,
             'is_final', given.is_embedded or coalesce((item.result ->> 'is_final')::boolean, false)
           )
         ) filter (where judged.problem is not null),
         array_agg(given.content_hash) filter (where (item.result ->> 'release')::boolean),
         max(nullif(extensions.vector_dims(given.embedding), needed_dimensions))
    into hashes, embeddings, failures, unused, wrong_dimensions
    from jsonb_array_elements(results) as item (result)
   cross join lateral (
           select item.result ->> 'content_hash' as content_hash,
                  item.result ->> 'embedding' is not null as is_embedded,
                  knowledge_internal.read_embedding(item.result ->> 'embedding') as embedding
           offset 0
         ) as given
   cross join lateral (
           select case
                    when not given.is_embedded then item.result ->> 'error'
                    when given.embedding is null then
                      'the embedding is not an array of finite numbers'
                    when ((given.embedding operator(extensions.<=>) given.embedding) < 0.5)
                           is not true then
                      'the embedding has no direction: it is zero, or too small for float4'
                  end as problem
           offset 0
         ) as checked
   cross join lateral (
           select checked.problem, case when checked.problem is null then given.embedding end
         ) as judged (problem, embedding);
  -- The worker has another model than it says: no text is at fault.
  if wrong_dimensions is not null then
    raise exception 'results have an embedding with % dimensions, the corpus has %',
                    wrong_dimensions, needed_dimensions
      using errcode = '22023',
            hint = 'Embed with the model of the corpus, or change the corpus: '
                   '`second-brain corpus reembed start --embedder NAME`.';
  end if;

  select count(*) filter (where written.state = 'stored'),
         coalesce(sum(written.chunks), 0),
         count(*) filter (where written.state = 'outdated'),
         count(*) filter (where written.state = 'repeated'),
         coalesce(array_agg(written.content_hash) filter (where written.state = 'locked'), '{}'),
         array_agg(written.content_hash) filter (where written.state <> 'locked')
    into stored, chunks, outdated, repeated, locked, finished
    from knowledge_internal.write_embeddings(hashes, embeddings, model, is_next) as written;
  delete from public.knowledge_embedding_claims as claim
   where claim.model = store_knowledge_embeddings.model
     and claim.content_hash = any (finished);

  -- A worker whose lease has ended does not end the claim of the next one.
  moment := clock_timestamp();
  with ended as (
    -- Neither a text that was not tried nor one whose chunk is locked counts as an attempt.
    update public.knowledge_embedding_claims as claim
       set claimed_at = null, available_at = moment, attempts = claim.attempts - 1
     where claim.content_hash = any (unused || locked)
       and claim.model = store_knowledge_embeddings.model
       and claim.worker is not distinct from store_knowledge_embeddings.worker
       and claim.claimed_at is not null
    returning claim.content_hash
  )
  select count(*) filter (where ended.content_hash <> all (locked)) into released from ended;
  with ended as (
    update public.knowledge_embedding_claims as claim
       set claimed_at = null,
           reason = left(failure.value ->> 'reason', longest_reason),
           failed_at = case
             when (failure.value ->> 'is_final')::boolean or claim.attempts >= most_attempts
               then moment
           end,
           available_at = case
             when (failure.value ->> 'is_final')::boolean or claim.attempts >= most_attempts
               then 'infinity'
             -- With the random factor, texts that failed together do not come back together.
             else moment
                  + least(shortest_wait * 2 ^ (claim.attempts - 1), longest_wait) * (0.5 + random())
           end
      from jsonb_each(failures) as failure
     where claim.content_hash = failure.key
       and claim.model = store_knowledge_embeddings.model
       and claim.worker is not distinct from store_knowledge_embeddings.worker
       and claim.claimed_at is not null
    returning claim.failed_at
  )
  select count(ended.failed_at), cardinality(locked) + count(*) - count(ended.failed_at)
    into failed, retried
    from ended;
  return next;
end
$$;

comment on function public.store_knowledge_embeddings is
  'Stores what a worker made of claimed texts. results: an array of at most 1000 objects with '
  'content_hash and one of: embedding (an array of numbers); error (the text was refused; with '
  'is_final there is no other attempt); release: true (the worker did not try). chunk_id is '
  'ignored. An embedding goes to all active chunks with this text that need the model, and to none '
  'if the text has changed. The counts are of texts, only chunks is of rows: stored; outdated (no '
  'chunk needs it any more); repeated (the text already has an embedding of this model); failed '
  '(for good: is_final, the fifth attempt, or an embedding without direction); retried (after a '
  'wait that doubles, or because another transaction had the row); released. An error or a release '
  'of a claim that is no longer of this worker does not count. Raises 22023 for results of another '
  'form, and for embeddings with other dimensions than the column.';
revoke all on function public.store_knowledge_embeddings from public, anon, authenticated;
grant execute on function public.store_knowledge_embeddings to service_role;

-- The active chunks that need an embedding: model is that of the collection, null if none is set.
-- waiting_since: the last change of the chunk, or of the setting if that was later.
create function knowledge_internal.pending_texts()
returns table (
  collection text, model text, content_hash text, chunk_id uuid, waiting_since timestamptz
)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return query
  select chunk.collection, knowledge_internal.model_of_collection(chunk.collection),
         chunk.content_hash, chunk.id, chunk.updated_at
    from public.knowledge_chunks as chunk
   where chunk.status = 'active'
     and chunk.embedding_bits is null
   union all
  select chunk.collection, stored.wanted_model, chunk.content_hash, chunk.id,
         greatest(chunk.updated_at, stored.wanted_since)
    from (
      -- A walk over the index, which reads one entry for each pair.
      with recursive pair as (
        select '' as model, '' as collection
        union all
        select next.model, next.collection
          from pair
         cross join lateral (
                 select coalesce(following.embedding_model, '') as model, following.collection
                   from public.knowledge_chunks as following
                  where following.status = 'active'
                    and following.embedding_bits is not null
                    and (coalesce(following.embedding_model, ''), following.collection)
                          > (pair.model, pair.collection)
                  order by 1, 2
                  limit 1
               ) as next
      )
      select pair.model, pair.collection, settings.embedding_model as wanted_model,
             settings.updated_at as wanted_since
        from pair
       cross join lateral (
               select setting.embedding_model, setting.updated_at
                 from public.knowledge_settings as setting
                where setting.collection in (pair.collection, '')
                  and setting.embedding_model is not null
                order by setting.collection desc
                limit 1
             ) as settings
       where settings.embedding_model <> pair.model
         and pair.collection <> ''
    ) as stored
    join public.knowledge_chunks as chunk
      on chunk.status = 'active'
     and chunk.embedding_bits is not null
     and coalesce(chunk.embedding_model, '') = stored.model
     and chunk.collection = stored.collection;
end
$$;

create function public.pending_knowledge_embeddings()
returns table (
  collection text, model text, pending bigint, claimed bigint, failed bigint, oldest timestamptz
)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select knowledge_internal.check_caller('pending_knowledge_embeddings');
  select waiting.collection, waiting.model, count(*),
         count(*) filter (where claim.is_claimed),
         count(*) filter (where claim.is_failed),
         min(waiting.waiting_since) filter (where claim.is_failed is not true)
    from knowledge_internal.pending_texts() as waiting
    left join (
           select one.content_hash, one.model,
                  bool_or(one.claimed_at is not null and one.available_at > clock_timestamp())
                    as is_claimed,
                  bool_or(one.failed_at is not null) as is_failed
             from public.knowledge_embedding_claims as one
            group by grouping sets ((one.content_hash, one.model), (one.content_hash))
         ) as claim
      on claim.content_hash = waiting.content_hash
     and coalesce(claim.model, '') = coalesce(waiting.model, '')
   group by waiting.collection, waiting.model
   order by count(*) desc, waiting.collection
$$;

comment on function public.pending_knowledge_embeddings is
  'The chunks that need an embedding, for each collection with any, most chunks first: model (of '
  'the setting; null: any model), pending, and of these claimed (a worker has them now) and failed '
  '(given up); oldest: since when the longest waiting one waits, without the failed ones. All '
  'chunks are counted. What a running re-embedding has left to do is not included.';
revoke all on function public.pending_knowledge_embeddings from public, anon, authenticated;
grant execute on function public.pending_knowledge_embeddings to service_role;

create function public.failed_knowledge_embeddings(max_rows integer default 100)
returns table (
  chunk_id uuid, document_key text, collection text, model text, attempts integer,
  failed_at timestamptz, reason text
)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
begin
  perform knowledge_internal.check_caller('failed_knowledge_embeddings');
  perform knowledge_internal.check_range('max_rows', max_rows, 1, 1000);
  return query
  select chunk.id, document.external_key, chunk.collection, claim.model, claim.attempts,
         claim.failed_at, claim.reason
    from public.knowledge_embedding_claims as claim
    join public.knowledge_chunks as chunk
      on chunk.content_hash = claim.content_hash
     and chunk.status = 'active'
    left join public.knowledge_documents as document on document.id = chunk.document_id
   where claim.failed_at is not null
   order by claim.failed_at desc, chunk.id
   limit max_rows;
end
$$;

comment on function public.failed_knowledge_embeddings is
  'The chunks whose text could not be embedded, the newest failures first, with the model and the '
  'reason. A change of the text and retry_knowledge_embeddings end the failure. Raises 22023 for '
  'max_rows out of bounds.';
revoke all on function public.failed_knowledge_embeddings from public, anon, authenticated;
grant execute on function public.failed_knowledge_embeddings to service_role;

create function public.retry_knowledge_embeddings(model text default null) returns integer
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
  removed integer;
begin
  perform knowledge_internal.check_caller('retry_knowledge_embeddings');
  delete from public.knowledge_embedding_claims as claim
   where claim.claimed_at is null
     and (retry_knowledge_embeddings.model is null
          or claim.model = retry_knowledge_embeddings.model);
  get diagnostics removed = row_count;
  return removed;
end
$$;

comment on function public.retry_knowledge_embeddings is
  'Ends the failures and the waits of a model, or of all: their texts are handed out again, with '
  'five new attempts. Returns the number of texts.';
revoke all on function public.retry_knowledge_embeddings from public, anon, authenticated;
grant execute on function public.retry_knowledge_embeddings to service_role;

-- The number of active chunks without an embedding that pass the filters of a search, at most 1000.
-- Raises 22023 as the search does.
create function knowledge_internal.pending_embeddings(given knowledge_internal.search_arguments)
returns integer
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  most_counted constant integer := 1000;
  plan knowledge_internal.search_plan;
  counted integer;
begin
  -- Only what selects rows counts.
  given.query_embedding := null;
  given.query_text := null;
  given.formulations := null;
  plan := knowledge_internal.plan_search(given, false);
  execute
    'select count(*) from ('
    '  select from public.knowledge_chunks as chunk'
    '   where ' || (plan.scope).matching || ' and chunk.embedding_bits is null'
    '     and ($2 is null or chunk.collection = any ($2))'
    '   limit $3'
    ') as pending'
    into counted using plan.scope, plan.collections, most_counted;
  return counted;
end
$$;

create function public.count_pending_knowledge_embeddings(search jsonb default '{}') returns integer
-- definer: callers have no grant on the tables, the arguments decide which rows are counted.
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
begin
  perform knowledge_internal.check_caller('count_pending_knowledge_embeddings');
  return knowledge_internal.pending_embeddings(knowledge_internal.given_arguments(search));
end
$$;

comment on function public.count_pending_knowledge_embeddings is
  'The number of active chunks that have no embedding yet, so that a search finds them by their '
  'words only. search: arguments of hybrid_search_knowledge_chunks as an object; chunks that these '
  'exclude do not count. It counts to 1000, which means 1000 or more. Raises 22023 as the search '
  'does, and for an unknown name.';
revoke all on function public.count_pending_knowledge_embeddings from public, anon, authenticated;
grant execute on function public.count_pending_knowledge_embeddings to service_role;

create function knowledge_internal.pending_for_user(search jsonb) returns integer
-- definer: a signed-in user may not read the tables, nor choose a viewer_id.
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
begin
  return knowledge_internal.pending_embeddings(
    knowledge_internal.own_arguments(search, 'count_my_pending_knowledge_embeddings')
  );
end
$$;

create function public.count_my_pending_knowledge_embeddings(search jsonb default '{}')
returns integer
language sql stable security invoker set search_path = pg_catalog, pg_temp
return knowledge_internal.pending_for_user(search);

comment on function public.count_my_pending_knowledge_embeddings is
  'count_pending_knowledge_embeddings for the signed-in user: counts public rows, rows whose owner '
  'is auth.uid(), and rows of the groups that knowledge_viewer_groups() returns. Raises 42501 if '
  'nobody is signed in or the user id is not a UUID, and 22023 for an argument out of bounds.';
revoke all on function public.count_my_pending_knowledge_embeddings
  from public, anon, authenticated, service_role;
grant execute on function
  public.count_my_pending_knowledge_embeddings, knowledge_internal.pending_for_user
  to authenticated;

-- The reason of a failure can quote the text. If another chunk has the same text, it loses only a
-- lease.
create or replace function knowledge_internal.forget_texts(hashes text[]) returns void
language plpgsql volatile security invoker set search_path = pg_catalog, pg_temp as $$
begin
  delete from public.knowledge_embedding_claims as claim where claim.content_hash = any (hashes);
end
$$;

revoke all on all functions in schema knowledge_internal from public;

notify pgrst, 'reload schema';
