-- 006_chunk_maintenance: the columns of a chunk that the database sets.
-- Adds: triggers on knowledge_chunks and knowledge_documents, and their functions.
-- Locks both tables against writes while a trigger is created.

-- The trigger functions are security definer, because roles that may write chunks or documents have
-- no rights on the internal functions and tables that the triggers use.

-- Three bits for each dimension of the normalised vector: above -0.7, 0 and 0.7 times the root mean
-- square. Their Hamming distance gives nearly the same ranking as cosine distance, with a tenth of
-- the bytes.
create function knowledge_internal.embedding_bits(embedding extensions.vector) returns bit varying
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
as $$
declare
  dimensions constant integer := coalesce(extensions.vector_dims(embedding), 1);
  direction constant extensions.vector := extensions.l2_normalize(embedding);
  step constant extensions.vector := array_fill(
    (0.7 / sqrt(dimensions))::real, array[dimensions]
  )::extensions.vector;
begin
  return extensions.binary_quantize(direction operator(extensions.+) step)
           || extensions.binary_quantize(direction)
           || extensions.binary_quantize(direction operator(extensions.-) step);
end
$$;

-- The mean text_length of 100 chunks, or of all if there are fewer; null if there are none. It is
-- for writes before the first ANALYZE.
create function knowledge_internal.mean_length_so_far() returns float8
language plpgsql volatile security invoker set search_path = pg_catalog, pg_temp as $$
declare
  enough constant integer := 100; -- chunks
  kept constant text := current_setting('knowledge_internal.mean_length', true);
  mean_length float8;
  chunks integer;
begin
  if kept <> '' then
    return kept::float8;
  end if;
  select avg(neighbour.text_length), count(*)
    into mean_length, chunks
    from (
      select chunk.text_length
        from public.knowledge_chunks as chunk
       where chunk.status = 'active'
       limit enough
    ) as neighbour;
  if chunks = enough then
    -- Until the transaction ends: a bulk load asks for each of its chunks.
    perform set_config('knowledge_internal.mean_length', mean_length::text, true);
  end if;
  return mean_length;
end
$$;

-- Runs before a chunk is written: copies the columns of its document to a new or restored chunk,
-- analyses text and embedding, and sets hash and time. An update of the text that gives no new
-- embedding removes the old one. An update that sets content_tsv to null analyses the text again.
create function knowledge_internal.complete_chunk() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  document public.knowledge_documents;
  is_restored constant boolean := tg_op = 'UPDATE' and new.status = 'active'
                                  and old.status <> 'active';
  mean_length float8;
  side record;
begin
  if new.document_id is not null
     and (
       tg_op = 'INSERT' or is_restored or new.document_id is distinct from old.document_id
     )
  then
    -- The lock prevents a change of who can see the document before this row is written.
    select * into document from public.knowledge_documents as parent
     where parent.id = new.document_id for share;
    if found then
      new.knowledge_type := document.knowledge_type;
      new.source_id := document.source_id;
      new.source_origin := document.source_origin;
      new.language := document.language;
      new.document_date := document.document_date;
      new.owner_id := document.owner_id;
      new.visibility := document.visibility;
      new.allowed_groups := document.allowed_groups;
      new.sensitivity := document.sensitivity;
      new.collection := coalesce(new.collection, document.collection);
      -- It is not known which keys of a restored chunk came from its document. So the current
      -- values of the document replace all keys of the same name.
      new.metadata := case
        when is_restored then new.metadata || document.metadata
        else document.metadata || new.metadata
      end;
    end if;
  end if;
  new.collection := coalesce(new.collection, 'knowledge');
  if tg_op = 'INSERT'
     or (new.embedding operator(extensions.=) old.embedding) is not true
     or old.embedding_bits is null
     or new.content_tsv is null
  then
    new.embedding_bits := knowledge_internal.embedding_bits(new.embedding);
  else
    new.embedding_bits := old.embedding_bits;
  end if;

  if tg_op = 'INSERT'
     or new.content is distinct from old.content
     or new.heading is distinct from old.heading
     or new.language is distinct from old.language
     or new.content_tsv is null
  then
    new.content_hash := public.knowledge_content_hash(new.heading, new.content);
    -- The embedding is of the old text, unless this update gives another one.
    if tg_op = 'UPDATE'
       and new.content_hash <> old.content_hash
       and new.embedding operator(extensions.=) old.embedding
    then
      new.embedding := null;
      new.embedding_model := null;
      new.embedding_bits := null;
    end if;
    new.content_tsv := knowledge_internal.lexemes(
      knowledge_internal.text_configuration(new.language), new.heading, new.content
    );
    select corpus.mean_length into mean_length from public.knowledge_corpus_statistics as corpus;
    if mean_length is null then
      mean_length := knowledge_internal.mean_length_so_far();
    end if;
    side := knowledge_internal.document_side(new.content_tsv, mean_length);
    new.text_length := side.text_length;
    new.bm25 := side.bm25;
    new.content_tsv := new.content_tsv || array_to_tsvector(side.impacts);
  else
    new.content_hash := old.content_hash;
    new.content_tsv := old.content_tsv;
    new.text_length := old.text_length;
    new.bm25 := old.bm25;
  end if;

  -- For a superseded row, updated_at is the time when it was superseded; a purge compares it.
  if tg_op = 'UPDATE' and (new.status = 'active' or new.status <> old.status) then
    new.updated_at := now();
  end if;
  return new;
end
$$;

create trigger complete_chunk
  before insert or update on public.knowledge_chunks
  for each row execute function knowledge_internal.complete_chunk();

-- Triggers run in the order of their names: this one runs before complete_chunk, so it checks the
-- groups of a chunk without a document; those of a document are checked there.
create trigger check_groups
  before insert or update of allowed_groups on public.knowledge_chunks
  for each row when (new.allowed_groups is not null)
  execute function knowledge_internal.check_groups();

-- This one runs after complete_chunk merged the metadata.
create trigger limit_metadata
  before insert or update on public.knowledge_chunks
  for each row when (new.metadata <> '{}') execute function knowledge_internal.check_metadata();

-- Runs after a write: copies the statistics if there was an ANALYZE since the last copy. Otherwise
-- it costs two look-ups.
create function knowledge_internal.keep_statistics() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  begin
    perform public.refresh_knowledge_statistics();
  exception when serialization_failure then
    null; -- another writer copied the statistics after this transaction began
  end;
  return null;
end
$$;

create trigger keep_statistics
  after insert or update or delete on public.knowledge_chunks
  for each statement execute function knowledge_internal.keep_statistics();

-- Runs after an update of a document: copies its new values to the same columns of its active
-- chunks.
create function knowledge_internal.pass_document_on() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp
-- The plan is made when the table is small, and used when it is large.
set enable_seqscan = off as $$
begin
  -- A key whose value in the chunk equals the document's old value came from the document, so it
  -- gets the new value.
  update public.knowledge_chunks as chunk
     set knowledge_type = new.knowledge_type,
         source_id = new.source_id,
         source_origin = new.source_origin,
         language = new.language,
         document_date = new.document_date,
         owner_id = new.owner_id,
         visibility = new.visibility,
         allowed_groups = new.allowed_groups,
         sensitivity = new.sensitivity,
         collection = case chunk.collection
           when old.collection then new.collection
           else chunk.collection
         end,
         metadata = new.metadata || coalesce(
           (
             select jsonb_object_agg(own.key, own.value)
               from jsonb_each(chunk.metadata) as own
              where old.metadata -> own.key is distinct from own.value
           ),
           '{}'
         )
   where chunk.document_id = new.id
     -- Other chunks are never returned. complete_chunk updates a chunk that becomes active again.
     and chunk.status = 'active';
  return null;
end
$$;

create trigger pass_document_on
  after update on public.knowledge_documents
  for each row
  when (
    (
      old.knowledge_type, old.source_id, old.source_origin, old.language, old.document_date,
      old.owner_id, old.visibility, old.allowed_groups, old.sensitivity, old.collection,
      old.metadata
    ) is distinct from (
      new.knowledge_type, new.source_id, new.source_origin, new.language, new.document_date,
      new.owner_id, new.visibility, new.allowed_groups, new.sensitivity, new.collection,
      new.metadata
    )
  )
  execute function knowledge_internal.pass_document_on();
