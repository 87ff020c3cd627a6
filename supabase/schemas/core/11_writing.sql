-- 011_writing: what is written: documents, chunks, and what the database adds to them.
-- Adds: the triggers of knowledge_documents and knowledge_chunks, and functions upsert_, delete_
-- and purge_. Locks both tables against writes while a trigger is created.

-- The trigger functions are definers: roles that may write chunks or documents have no rights on
-- the internal functions and tables.

-- The mean text_length of the corpus, until the transaction ends: a bulk load asks for each of its
-- chunks. Before the first ANALYZE that of 100 chunks, or of all if there are fewer; null if there
-- are none.
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
  mean_length := (select corpus.mean_length from public.knowledge_corpus_statistics as corpus);
  if mean_length is null then
    select avg(neighbour.text_length), count(*)
      into mean_length, chunks
      from (
        select chunk.text_length
          from public.knowledge_chunks as chunk
         where chunk.status = 'active'
         limit enough
      ) as neighbour;
  end if;
  if chunks < enough then
    return mean_length;
  end if;
  perform set_config('knowledge_internal.mean_length', mean_length::text, true);
  return mean_length;
end
$$;

-- Extension point: a document, which cannot change until the transaction ends.
create function knowledge_internal.locked_document(wanted uuid) returns public.knowledge_documents
language plpgsql volatile security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return (
    select document from public.knowledge_documents as document where document.id = wanted for share
  );
end
$$;

-- Runs before a chunk is written: copies the columns of its document to a new or restored chunk,
-- analyses text and embedding, and sets hash and time. An update of the text that gives no new
-- embedding removes the old one. An update analyses the text again if it sets content_tsv to null,
-- or changes the fields that are searched or their texts. For an insert, the columns of old are
-- null.
create function knowledge_internal.complete_chunk() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  document public.knowledge_documents;
  is_restored constant boolean := new.status = 'active' and old.status <> 'active';
  fields record;
  is_analysed boolean;
  words record;
  side record;
  most_bytes constant integer := 500000; -- of the words, so that their impacts fit
  configuration regconfig;
begin
  if new.allowed_groups is distinct from old.allowed_groups then
    new.allowed_groups := knowledge_internal.sorted_groups('allowed_groups', new.allowed_groups);
  end if;

  if new.document_id is not null
     and (is_restored or new.document_id is distinct from old.document_id)
  then
    -- Who can see the document must not change before this row is written.
    document := knowledge_internal.locked_document(new.document_id);
    if document.id is not null then
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

  new.embedding_bits := case
    when (
           new.embedding operator(extensions.=) old.embedding
           or num_nonnulls(new.embedding, old.embedding) = 0
         )
         and old.embedding_bits is not null
         and new.content_tsv is not null
      then old.embedding_bits
    else knowledge_internal.embedding_bits(new.embedding)
  end;

  is_analysed := tg_op = 'INSERT' or new.content_tsv is null or is_restored
    or (new.heading, new.language, new.document_id, new.content)
       is distinct from (old.heading, old.language, old.document_id, old.content);
  if is_analysed or (
    new.collection, new.metadata, new.owner_id, new.visibility, new.allowed_groups, new.sensitivity
  ) is distinct from (
    old.collection, old.metadata, old.owner_id, old.visibility, old.allowed_groups, old.sensitivity
  ) then
    fields := knowledge_internal.text_fields(
      new.collection, new.heading, new.document_id, new.metadata, new.owner_id, new.visibility,
      new.allowed_groups, new.sensitivity
    );
    is_analysed := is_analysed
      or fields.stamp is distinct from old.field_stamp
      or fields is distinct from knowledge_internal.text_fields(
           new.collection, new.heading, new.document_id, old.metadata, old.owner_id,
           old.visibility, old.allowed_groups, old.sensitivity
         );
  end if;

  if is_analysed then
    -- A text that is kept elsewhere.
    new.content := coalesce(new.content, knowledge_internal.content_of(new.id));
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
    new.field_stamp := fields.stamp;
    configuration := knowledge_internal.text_configuration(new.language);
    words := knowledge_internal.lexemes(
      configuration, new.heading, new.content, fields.heading_weight, fields.others
    );
    new.content_words := words.content_words;
    new.distinct_words := words.distinct_words;
    side := knowledge_internal.document_side(
      words.lexemes, knowledge_internal.mean_length_so_far()
    );
    new.text_length := side.text_length;
    new.bm25 := side.bm25;
    -- A tsvector has at most 1 MB.
    new.content_tsv := words.lexemes || array_to_tsvector(
      case when pg_column_size(words.lexemes) < most_bytes then side.impacts else '{}' end
        || knowledge_internal.language_mark(configuration)
    );
  else
    new.content_hash := old.content_hash;
    new.field_stamp := old.field_stamp;
    new.content_tsv := old.content_tsv;
    new.text_length := old.text_length;
    new.content_words := old.content_words;
    new.distinct_words := old.distinct_words;
    new.bm25 := old.bm25;
  end if;

  if new.metadata is distinct from old.metadata then
    new.metadata := knowledge_internal.checked_metadata('metadata', new.metadata);
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

-- Runs after a write: moves the waiting entries into the index of the words, if there is one, and
-- copies the statistics of an ANALYZE since the last copy. After a truncate, deletes the copy.
create function knowledge_internal.keep_statistics() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  if tg_op = 'TRUNCATE' then
    delete from public.knowledge_corpus_statistics;
    delete from public.knowledge_lexeme_statistics;
    return null;
  end if;
  perform gin_clean_pending_list(to_regclass('public.knowledge_chunks_content_tsv'));
  begin
    perform public.refresh_knowledge_statistics();
  exception when serialization_failure or unique_violation then
    null; -- another writer copied the statistics after this transaction began
  end;
  return null;
end
$$;

create trigger keep_statistics
  after insert or update or delete on public.knowledge_chunks
  for each statement execute function knowledge_internal.keep_statistics();
create trigger clear_statistics
  after truncate on public.knowledge_chunks
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

-- A heading that is the title or begins with it, of chunks that the same readers see.
create function knowledge_internal.pass_headings_on() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp
-- As in pass_document_on.
set enable_seqscan = off as $$
begin
  update public.knowledge_chunks as chunk
     -- Not concat, which is not immutable: Citus allows no other function here.
     set heading = nullif(
           coalesce(new.title, '')
             || coalesce(substr(chunk.heading, length(coalesce(old.title, '')) + 1), ''),
           ''
         )
   where chunk.document_id = new.id
     and chunk.status = 'active'
     and starts_with(coalesce(chunk.heading, ''), coalesce(old.title, ''))
     -- Not a longer word, and all of the heading where there was no title.
     and strpos(
           case when old.title <> '' then E' \t\n\r>:;,./|()[]-–—' else '' end,
           substr(coalesce(chunk.heading, ''), length(coalesce(old.title, '')) + 1, 1)
         ) > 0
     and (chunk.owner_id, chunk.visibility, chunk.allowed_groups, chunk.sensitivity)
         is not distinct from (new.owner_id, new.visibility, new.allowed_groups, new.sensitivity);
  return null;
end
$$;

-- upsert_knowledge_document, which changes content_hash, writes the headings itself.
create trigger pass_headings_on
  after update on public.knowledge_documents
  for each row
  when (
    old.title is distinct from new.title
    and old.content_hash is not distinct from new.content_hash
  )
  execute function knowledge_internal.pass_headings_on();

-- Each public function is a definer: service_role has no rights on the internal schema, and no row
-- level security hides a row from it.

-- Raises 22023 for a document of upsert_knowledge_document that has a missing or an unknown key, or
-- a value of the wrong type.
create function knowledge_internal.check_document(document jsonb) returns void
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
declare
  document_keys constant text[] := array[
    'external_key', 'title', 'knowledge_type', 'source_id', 'source_url', 'source_origin',
    'author', 'document_date', 'owner_id', 'visibility', 'allowed_groups', 'sensitivity',
    'language', 'collection', 'metadata'
  ];
  problem text;
  remedy text;
begin
  if jsonb_typeof(document) is distinct from 'object' then
    raise exception 'document must be a JSON object, not %',
                    coalesce(jsonb_typeof(document), 'null')
      using errcode = '22023';
  end if;
  select rule.message, rule.hint
    into problem, remedy
    from (
      select 1 as place, '' as hint, format(
               'document.%s must be a text or null, not %s', entry.key, jsonb_typeof(entry.value)
             ) as message
        from jsonb_each(document) as entry
       where entry.key not in ('metadata', 'allowed_groups')
         and jsonb_typeof(entry.value) not in ('string', 'null')
      union all
      select 2, '', 'document.external_key must be a text that names the document, it is missing '
                    'or empty'
       where coalesce(document ->> 'external_key', '') = ''
      union all
      select 3, '', format(
               'document.%s must be %s, not %s',
               field.name, field.allowed, left(document ->> field.name, 100)
             )
        from (
          values
            ('metadata', 'a JSON object',
             jsonb_typeof(document -> 'metadata') in ('object', 'null')),
            ('allowed_groups', 'an array of texts, or null',
             document -> 'allowed_groups' = 'null'
               or jsonb_typeof(document -> 'allowed_groups') = 'array'
                 and not jsonb_path_exists(
                       document -> 'allowed_groups', 'strict $[*] ? (@.type() != "string")',
                       silent => true
                     )),
            ('external_key', 'a text of 1 to 2000 bytes',
             octet_length(document ->> 'external_key') between 1 and 2000),
            ('owner_id', 'a UUID', knowledge_internal.is_input(document ->> 'owner_id', 'uuid')),
            ('source_id', 'a UUID', knowledge_internal.is_input(document ->> 'source_id', 'uuid')),
            -- How Postgres reads any other form of a date depends on the DateStyle of the session.
            ('document_date', 'an ISO date such as 2026-01-31',
             document ->> 'document_date' ~ '^\d{4}-\d{2}-\d{2}([T ].*)?$'
               and knowledge_internal.is_input(document ->> 'document_date', 'date')),
            ('language', 'a text of 1 to 60 characters',
             length(document ->> 'language') between 1 and 60),
            ('collection', 'a text of 1 to 200 characters',
             length(document ->> 'collection') between 1 and 200)
          union all
          select named, 'one of ' || array_to_string(knowledge_internal.known_values(named), ', '),
                 document ->> named = any (knowledge_internal.known_values(named))
            from unnest('{knowledge_type,source_origin,visibility}'::text[]) as named
        ) as field (name, allowed, is_kept)
       where not field.is_kept
      union all
      select 4, 'Put keys of your own into document.metadata.', format(
               'document has an unknown key %s, the known keys are: %s',
               name, array_to_string(document_keys, ', ')
             )
        from jsonb_object_keys(document) as name
       where name <> all (document_keys)
    ) as rule
   order by rule.place
   limit 1;
  if found then
    raise exception '%', problem using errcode = '22023', hint = remedy;
  end if;
  perform knowledge_internal.checked_metadata('document.metadata', document -> 'metadata');
  perform knowledge_internal.checked_address('document.source_url', document ->> 'source_url');
  perform knowledge_internal.sorted_groups(
    'document.allowed_groups',
    array(select jsonb_array_elements_text(nullif(document -> 'allowed_groups', 'null')))
  );
end
$$;

-- Raises 22023 for chunks that could not be stored: names the first wrong one, its field and value,
-- and what is allowed. reported: the error of the database, for what it does not know.
create function knowledge_internal.refuse_chunk(chunks jsonb, reported text) returns void
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  dimensions constant integer := (
    select facts.dimensions from knowledge_internal.chunk_table as facts
  );
  embedding extensions.vector;
  chunk jsonb;
  name text; -- of the chunk in a message
begin
  for chunk, name in
    select item.chunk, format('chunks[%s]', item.ordinality - 1)
      from jsonb_array_elements(chunks) with ordinality as item (chunk, ordinality)
     order by item.ordinality
  loop
    if length(chunk ->> 'collection') not between 1 and 200 then
      raise exception '%.collection must be a text of 1 to 200 characters, not %',
                      name, left(chunk ->> 'collection', 100)
        using errcode = '22023', hint = 'Correct this value.';
    end if;
    perform knowledge_internal.checked_metadata(name || '.metadata', chunk -> 'metadata');
    begin
      embedding := (chunk ->> 'embedding')::extensions.vector;
    exception when data_exception then
      raise exception '%.embedding must be an array of finite numbers, not %: %',
                      name, left(chunk ->> 'embedding', 100), sqlerrm
        using errcode = '22023', hint = 'Correct this value.';
    end;
    if extensions.vector_dims(embedding) <> dimensions then
      raise exception '%.embedding has % dimensions, the corpus has % (model: %)',
                      name, extensions.vector_dims(embedding), dimensions,
                      coalesce(
                        (
                          select stored.embedding_model
                            from public.knowledge_chunks as stored
                           where stored.embedding_bits is not null
                             and stored.status = 'active'
                           limit 1
                        ),
                        'none stored'
                      )
        using errcode = '22023',
              hint = 'Embed with the model of the corpus, or change the corpus: '
                     '`second-brain corpus reembed start --embedder NAME`.';
    end if;
    if not ((embedding operator(extensions.<=>) embedding) < 0.5) then
      raise exception '%.embedding must have a direction: it is zero, or too small for float4', name
        using errcode = '22023', hint = 'Send null for a text that cannot be embedded.';
    end if;
  end loop;
  raise exception 'chunks have a value that is not allowed: %', left(reported, 300)
    using errcode = '22023';
end
$$;

-- A document, stored or new, with the given fields. A field that is not given keeps its value
-- (fields: merge) or gets its default (replace); one given as null gets its default. source_row is
-- not one of these fields: an adopted document keeps it.
create function knowledge_internal.merged_document(
  document public.knowledge_documents, given jsonb, fields text
) returns public.knowledge_documents
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  defaults constant jsonb := '{
    "title": null, "knowledge_type": "document", "source_id": null, "source_url": null,
    "source_origin": "manual", "author": null, "document_date": null, "owner_id": null,
    "visibility": "private", "allowed_groups": null, "sensitivity": null,
    "language": "english", "collection": "knowledge", "metadata": {}
  }';
  changes jsonb;
begin
  select jsonb_object_agg(
           field.key,
           case field.value when 'null' then defaults -> field.key else field.value end
         )
    into changes
    from jsonb_each(given) as field (key, value);
  if fields = 'replace' then
    changes := defaults || changes;
  end if;
  document := jsonb_populate_record(document, changes);
  document.id := coalesce(document.id, gen_random_uuid());
  document.created_at := coalesce(document.created_at, now());
  document.updated_at := coalesce(document.updated_at, now());
  document.allowed_groups := knowledge_internal.sorted_groups(
    'document.allowed_groups', document.allowed_groups
  );
  return document;
end
$$;

-- Inserts or updates a document that check_document has checked, and locks its row until the
-- transaction ends. given, fields: as in merged_document. chunks: what store_chunks stores
-- afterwards, for content_hash. Returns the row.
create function knowledge_internal.store_document(given jsonb, chunks jsonb, fields text)
returns public.knowledge_documents
language plpgsql volatile security invoker set search_path = pg_catalog, pg_temp
-- The plans are made when the table is small, and used when it is large.
set enable_seqscan = off as $$
declare
  document public.knowledge_documents;
  before public.knowledge_documents;
  is_stored boolean;
  is_changed boolean;
begin
  -- The row of the document is the lock: a second writer of the document waits here, then sees
  -- what the first one has stored.
  loop
    select stored.*
      into document
      from public.knowledge_documents as stored
     where stored.external_key = given ->> 'external_key'
       for update;
    is_stored := found;
    before := document;
    document := knowledge_internal.merged_document(
      document, given, case when is_stored then fields else 'replace' end
    );
    -- The digest of the content_hash of each chunk, in their order.
    select encode(sha256(convert_to(coalesce(listed.hashes, ''), 'UTF8')), 'hex')
      into document.content_hash
      from (
        select string_agg(
                 public.knowledge_content_hash(
                   coalesce(item.chunk ->> 'heading', document.title), item.chunk ->> 'content'
                 ),
                 ' ' order by item.ordinality
               ) as hashes
          from jsonb_array_elements(chunks) with ordinality as item (chunk, ordinality)
      ) as listed;
    is_changed := to_jsonb(before) <> to_jsonb(document);
    exit when is_stored;
    insert into public.knowledge_documents
    select (document).*
        on conflict (external_key) do nothing
    returning * into document;
    if found then
      return document;
    end if;
  end loop;

  update public.knowledge_documents as stored
     set (
           title, knowledge_type, source_id, source_url, source_origin, author, document_date,
           owner_id, visibility, allowed_groups, sensitivity, language, collection, metadata,
           source_row, content_hash, updated_at
         ) = row (
           document.title, document.knowledge_type, document.source_id, document.source_url,
           document.source_origin, document.author, document.document_date, document.owner_id,
           document.visibility, document.allowed_groups, document.sensitivity, document.language,
           document.collection, document.metadata, document.source_row, document.content_hash,
           now()
         )
   where stored.id = document.id
     and is_changed;
  return document;
end
$$;

-- The embedding of a model that a stored chunk with this content_hash has and may give to document
-- taker (null: to any); null if there is none. It reads at most 100 chunks with the text.
create function knowledge_internal.given_embedding(
  hash text, model text, taker uuid, out embedding extensions.vector
)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
-- The plan is made when the table is small, and used when it is large. A bitmap would have all
-- chunks of the text.
set enable_seqscan = off
set enable_bitmapscan = off as $$
declare
  -- A worker embeds all chunks of a text at once. Without the limit, each further chunk of a text
  -- that has no embedding yet would read all chunks of the text.
  most_read constant integer := 100;
begin
  select same.embedding
    into embedding
    from (
      select chunk.embedding, chunk.embedding_model, chunk.document_id
        from knowledge_internal.chunk_rows as chunk
       where chunk.content_hash = hash
       limit most_read
    ) as same
   where same.embedding_model = model
     and same.embedding is not null
     -- Whoever writes an adopted table may write its embeddings too: a false one of a text that
     -- others will store must stay in its own document.
     and (
       same.document_id is not distinct from taker
       or not exists (
         select
           from public.knowledge_documents as document
          where document.id = same.document_id
            and document.source_row is not null
       )
     )
   limit 1;
end
$$;

-- What store_chunks does with a chunk. embedding: what is stored, null: nothing. collection and
-- metadata: null: as stored.
create type knowledge_internal.chunk_change as (
  stored_id uuid, is_given boolean, document_id uuid, chunk_index integer, heading text,
  content text, collection text, metadata jsonb, embedding_model text, is_replaced boolean,
  keeps_embedding boolean, embedding_is_given boolean, embedding extensions.vector,
  version integer
);

-- Writes changes: one statement for each kind of them that there is. A statement without rows runs
-- the triggers, too.
create function knowledge_internal.write_rows(changes knowledge_internal.chunk_change[])
returns void
language plpgsql volatile security invoker set search_path = pg_catalog, pg_temp
-- As in store_chunks.
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off as $$
declare
  kept constant knowledge_internal.chunk_change[] := array(
    select change::knowledge_internal.chunk_change
      from unnest(changes) as change
      join public.knowledge_chunks as chunk on chunk.id = change.stored_id
     where change.is_given
       and (
         change.embedding is not null
         or (chunk.chunk_index, chunk.collection, chunk.metadata) is distinct from (
           change.chunk_index,
           coalesce(change.collection, chunk.collection),
           coalesce(change.metadata, chunk.metadata)
         )
       )
  );
  superseded constant uuid[] := array(
    select change.stored_id from unnest(changes) as change
     where not change.is_given and change.stored_id is not null
  );
begin
  if kept <> '{}' then
    update public.knowledge_chunks as chunk
       set chunk_index = change.chunk_index,
           collection = coalesce(change.collection, chunk.collection),
           metadata = coalesce(change.metadata, chunk.metadata),
           embedding = coalesce(change.embedding, chunk.embedding),
           embedding_model = case
             when change.embedding is null then chunk.embedding_model
             else change.embedding_model
           end
      from unnest(kept) as change
     where chunk.id = change.stored_id;
  end if;
  if superseded <> '{}' then
    update public.knowledge_chunks as chunk
       set status = 'superseded'
     where chunk.id = any (superseded);
  end if;
  if exists (select from unnest(changes) as change where change.stored_id is null) then
    -- The trigger completes a collection that is not given.
    insert into public.knowledge_chunks (
      document_id, chunk_index, heading, content, collection, metadata, embedding,
      embedding_model, version
    )
    select change.document_id, change.chunk_index, change.heading, change.content,
           change.collection, coalesce(change.metadata, '{}'), change.embedding,
           case when change.embedding is not null then change.embedding_model end, change.version
      from unnest(changes) as change
     where change.stored_id is null;
  end if;
end
$$;

-- Makes the active chunks of a document those that are given: updates what is unchanged, supersedes
-- what is changed or removed, inserts what is new. With fields merge, an unchanged chunk keeps a
-- collection and metadata that are not given. Returns the counts of upsert_knowledge_document.
create function knowledge_internal.store_chunks(
  document public.knowledge_documents, chunks jsonb, fields text, out added integer,
  out changed integer, out unchanged integer, out removed integer, out embeddings_reused integer,
  out embeddings_missing integer
)
language plpgsql volatile security invoker set search_path = pg_catalog, pg_temp
-- Each chunk is found by its id: the plan is made when the table is small, and used when it is
-- large.
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
-- No nested loop can make the full join. With the other joins disabled, its estimated cost before
-- Postgres 18 is so high that Postgres would compile the statement.
set jit = off as $$
declare
  changes knowledge_internal.chunk_change[];
begin
  with incoming as materialized (
    select (item.ordinality - 1)::integer as chunk_index,
           coalesce(item.chunk ->> 'heading', document.title) as heading,
           item.chunk ->> 'content' as content,
           hashed.content_hash,
           row_number() over (
             partition by hashed.content_hash order by item.ordinality
           ) as occurrence,
           case when fields = 'replace' or item.chunk ? 'collection' then
             coalesce(item.chunk ->> 'collection', document.collection)
           end as collection,
           case when fields = 'replace' or item.chunk ? 'metadata' then
             document.metadata || coalesce(nullif(item.chunk -> 'metadata', 'null'), '{}')
           end as metadata,
           item.chunk ->> 'embedding_model' as embedding_model,
           (item.chunk ->> 'embedding')::extensions.vector as embedding
      from jsonb_array_elements(chunks) with ordinality as item (chunk, ordinality)
     cross join lateral (
             select public.knowledge_content_hash(
               coalesce(item.chunk ->> 'heading', document.title), item.chunk ->> 'content'
             ) as content_hash
           ) as hashed
  ),
  stored as materialized (
    select chunk.id, chunk.chunk_index, chunk.content_hash, chunk.version, chunk.embedding_model,
           chunk.embedding_bits is not null as is_embedded,
           row_number() over (
             partition by chunk.content_hash order by chunk.chunk_index, chunk.id
           ) as occurrence
      from public.knowledge_chunks as chunk
     where chunk.document_id = document.id
       and chunk.status = 'active'
       -- A chunk without chunk_index was not written by this function.
       and chunk.chunk_index is not null
  ),
  -- A given chunk, a stored one, or both, if they have the same text. is_given: false for a chunk
  -- to supersede; is_replaced: its position gets a new chunk. keeps_embedding: that of the stored
  -- chunk is of the given model.
  paired as (
    select stored.id as stored_id, content_hash, incoming.heading, incoming.content,
           incoming.collection, incoming.metadata, incoming.embedding, incoming.embedding_model,
           incoming.chunk_index is not null as is_given,
           coalesce(incoming.chunk_index, stored.chunk_index) as chunk_index,
           (
             stored.is_embedded
             and (
               incoming.embedding_model is null
               or incoming.embedding_model = stored.embedding_model
             )
           ) is true as keeps_embedding,
           max(stored.version) filter (where incoming.chunk_index is null) over same_place
             as superseded_version,
           bool_or(stored.id is null) over same_place as is_replaced
      from incoming
      full join stored using (content_hash, occurrence)
    window same_place as (partition by coalesce(incoming.chunk_index, stored.chunk_index))
  ),
  change as materialized (
    select paired.stored_id, paired.is_given, document.id, paired.chunk_index,
           paired.heading, paired.content, paired.collection, paired.metadata,
           paired.embedding_model, paired.is_replaced, paired.keeps_embedding,
           paired.embedding is not null as embedding_is_given,
           case
             when paired.keeps_embedding then null
             when paired.embedding is not null or paired.embedding_model is null
               then paired.embedding
             when paired.is_given then knowledge_internal.given_embedding(
               paired.content_hash, paired.embedding_model, document.id
             )
           end as embedding,
           coalesce(paired.superseded_version, 0) + 1 as version
      from paired
     order by paired.chunk_index
  )
  select array_agg(row(change.*)::knowledge_internal.chunk_change) into changes from change;
  if changes is not null then
    perform knowledge_internal.write_rows(changes);
  end if;
  select count(*) filter (where change.stored_id is null and change.version = 1),
         count(*) filter (where change.stored_id is null and change.version > 1),
         count(*) filter (where change.stored_id is not null and change.is_given),
         count(*) filter (where not change.is_given and not change.is_replaced),
         count(*) filter (
           where change.is_given
             and not change.embedding_is_given
             and (change.embedding is not null or change.keeps_embedding)
         ),
         count(*) filter (
           where change.is_given and change.embedding is null and not change.keeps_embedding
         )
    into added, changed, unchanged, removed, embeddings_reused, embeddings_missing
    from unnest(changes) as change;
end
$$;

create function public.upsert_knowledge_document(
  document jsonb, chunks jsonb, fields text default 'merge'
)
returns table (
  document_id uuid, chunks_added integer, chunks_changed integer, chunks_unchanged integer,
  chunks_removed integer, embeddings_reused integer, embeddings_missing integer
)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
-- Set below, until the end of this function.
set plan_cache_mode = auto as $$
declare
  chunk_keys constant text[] := array[
    'content', 'heading', 'embedding', 'embedding_model', 'collection', 'metadata'
  ];
  problem text;
  remedy text;
  stored_document public.knowledge_documents;
  counts record;
begin
  perform knowledge_internal.check_caller('upsert_knowledge_document');
  -- To plan the statements anew for each document takes a tenth of the time, and a third where
  -- nothing has changed. Citus makes no generic plans: there, this table has no pages.
  if knowledge_internal.physical_table() = 'public.knowledge_chunks'::regclass
     and pg_relation_size('public.knowledge_chunks'::regclass) > 0
  then
    perform set_config('plan_cache_mode', 'force_generic_plan', true);
  end if;
  if (fields in ('merge', 'replace')) is not true then
    raise exception 'fields must be merge or replace, not %', coalesce(left(fields, 100), 'null')
      using errcode = '22023',
            hint = 'merge keeps the fields that are not given, replace resets them.';
  end if;
  perform knowledge_internal.check_document(document);
  if jsonb_typeof(chunks) is distinct from 'array' then
    raise exception 'chunks must be a JSON array of objects, not %',
                    coalesce(jsonb_typeof(chunks), 'null')
      using errcode = '22023';
  end if;
  select rule.message, rule.hint
    into problem, remedy
    from jsonb_array_elements(chunks) with ordinality as item (chunk, ordinality)
   cross join lateral (
           select 1, '', format(
                    'chunks[%s] must be an object: content a text, heading, embedding_model and '
                    'collection texts or null, embedding an array of numbers or null, metadata an '
                    'object or null', item.ordinality - 1
                  )
            where jsonb_typeof(item.chunk) <> 'object'
               or jsonb_typeof(item.chunk -> 'content') is distinct from 'string'
               or jsonb_typeof(item.chunk -> 'metadata') not in ('object', 'null')
               or jsonb_typeof(item.chunk -> 'embedding') not in ('array', 'string', 'null')
               or jsonb_typeof(item.chunk -> 'embedding_model') not in ('string', 'null')
               or jsonb_typeof(item.chunk -> 'heading') not in ('string', 'null')
               or jsonb_typeof(item.chunk -> 'collection') not in ('string', 'null')
           union all
           select 2, 'Put keys of your own into the metadata of a chunk.', format(
                    'chunks have an unknown key %s, the known keys are: %s',
                    name, array_to_string(chunk_keys, ', ')
                  )
             from jsonb_object_keys(
                    case jsonb_typeof(item.chunk) when 'object' then item.chunk end
                  ) as name
            where name <> all (chunk_keys)
           union all
           select 3, 'Searches compare embeddings of one model: give each embedding the name of '
                  'the model that made it.', format(
                    'chunks[%s].embedding_model must name the model of the embedding, it is '
                    'missing or empty', item.ordinality - 1
                  )
            where jsonb_typeof(item.chunk -> 'embedding') <> 'null'
              and coalesce(item.chunk ->> 'embedding_model', '') = ''
         ) as rule (place, hint, message)
   order by rule.place, item.ordinality
   limit 1;
  if found then
    raise exception '%', problem using errcode = '22023', hint = remedy;
  end if;

  begin
    stored_document := knowledge_internal.store_document(document, chunks, fields);
  exception
    when foreign_key_violation then
      raise exception 'document.source_id must be the id of a row of knowledge_sources, not %',
                      document ->> 'source_id'
        using errcode = '22023';
    when data_exception or check_violation then
      raise exception 'document has a value that is not allowed: %', sqlerrm
        using errcode = '22023';
  end;
  begin
    counts := knowledge_internal.store_chunks(stored_document, chunks, fields);
  exception when data_exception or check_violation then
    perform knowledge_internal.refuse_chunk(chunks, sqlerrm);
  end;
  return query
  select stored_document.id, counts.added, counts.changed, counts.unchanged, counts.removed,
         counts.embeddings_reused, counts.embeddings_missing;
end
$$;

comment on function public.upsert_knowledge_document is
  'Stores a document and its chunks in one transaction, and counts what that changed. '
  'document: external_key (what it is matched on) and any of title, knowledge_type, source_id, '
  'source_url, source_origin, author, document_date, owner_id, visibility, allowed_groups (an '
  'array of texts), sensitivity, language, collection, metadata. '
  'chunks: the whole content in order, each {content, heading, embedding, embedding_model, '
  'collection, metadata}; a chunk without heading has the title. It replaces the stored list. '
  'fields: with merge a field that is not given keeps its value, also the collection and metadata '
  'of an unchanged chunk; with replace it gets its default. A field given as null gets its '
  'default. metadata is one field: what is given replaces the stored object. '
  'A chunk with unchanged heading and content keeps its row and embedding, a changed or removed '
  'one is superseded. A chunk without an embedding takes one that a stored chunk of the same text '
  'and embedding_model has, but not from a document of an adopted table. '
  'Concurrent writers of one document wait for each other. Raises 22023 for a wrong value.';

-- An array, because PostgREST cuts a set of rows at its Max rows: hashes left out would count as
-- embedded.
create function public.missing_knowledge_embeddings(content_hashes text[], model text)
returns text[]
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
begin
  perform knowledge_internal.check_caller('missing_knowledge_embeddings');
  if content_hashes is null or array_position(content_hashes, null) is not null then
    raise exception 'content_hashes must be an array of hashes, not null and without null in it'
      using errcode = '22023';
  end if;
  if model is null then
    raise exception 'model must be the name of an embedding model, not null'
      using errcode = '22023';
  end if;
  return array(
    select distinct asked.content_hash
      from unnest(content_hashes) as asked (content_hash)
     where knowledge_internal.given_embedding(asked.content_hash, model, null) is null
  );
end
$$;

comment on function public.missing_knowledge_embeddings is
  'Of the given hashes (knowledge_content_hash), those for which no stored chunk has an embedding '
  'of that model: what is left to embed before upsert_knowledge_document. Chunks of adopted tables '
  'do not count. Raises 22023 for null.';

-- Extension point: deletes what modules store of texts, by the content_hash of deleted chunks.
create function knowledge_internal.forget_texts(hashes text[]) returns void
language plpgsql volatile security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return;
end
$$;

-- Extension point: deletes what modules derived from the use by an owner. Returns the number of
-- deleted rows.
create function knowledge_internal.erase_derived(owner uuid) returns bigint
language plpgsql volatile security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return 0;
end
$$;

-- Extension point: deletes chunks and returns their content_hash. Locks are taken in the order of
-- ids; without waits, a row that another transaction holds is left.
create function knowledge_internal.deleted_chunks(ids uuid[], waits boolean) returns setof text
language plpgsql volatile security invoker set search_path = pg_catalog, pg_temp as $$
begin
  ids := case
    when waits then array(
      select chunk.id from public.knowledge_chunks as chunk
       where chunk.id = any (ids) order by chunk.id for update
    )
    else array(
      select chunk.id from public.knowledge_chunks as chunk
       where chunk.id = any (ids) for update skip locked
    )
  end;
  return query
  delete from public.knowledge_chunks as chunk
   where chunk.id = any (ids)
  returning chunk.content_hash;
end
$$;

create function public.delete_knowledge_document(document_key text) returns integer
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
  hashes text[];
  deleted uuid;
begin
  perform knowledge_internal.check_caller('delete_knowledge_document');
  if document_key is null then
    raise exception 'document_key must be the external_key of a document, not null'
      using errcode = '22023';
  end if;
  select document.id
    into deleted
    from public.knowledge_documents as document
   where document.external_key = document_key
     for update;
  if deleted is null then
    return 0;
  end if;
  hashes := array(
    select hash
      from knowledge_internal.deleted_chunks(
             array(
               select chunk.id from public.knowledge_chunks as chunk
                where chunk.document_id = deleted
             ),
             true
           ) as hash
  );
  delete from public.knowledge_documents as document where document.id = deleted;
  perform knowledge_internal.forget_texts(hashes);
  return cardinality(hashes);
end
$$;

comment on function public.delete_knowledge_document is
  'Deletes the document with this external_key and all versions of its chunks for good; returns '
  'the number of chunks. It returns 0 when there is no such document. Raises 22023 for null.';

create function public.delete_knowledge_owner(owner uuid)
returns table (documents_deleted integer, chunks_deleted integer)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
  locked_documents uuid[];
  owned uuid[];
  hashes text[];
begin
  perform knowledge_internal.check_caller('delete_knowledge_owner');
  if owner is null then
    raise exception 'owner must be the id of a user, not null' using errcode = '22023';
  end if;
  -- Locks are taken in one order everywhere: documents by id, then chunks. An old version of
  -- another owner's document can be this owner's. A document that is stored while this function
  -- waits for a lock is not locked, so the deletion leaves its chunks, too.
  locked_documents := array(
    select document.id
      from public.knowledge_documents as document
     where document.owner_id = owner
        or document.id in (
             select chunk.document_id
               from public.knowledge_chunks as chunk
              where chunk.owner_id = owner
           )
     order by document.id
       for update
  );
  owned := array(
    select document.id from public.knowledge_documents as document
     where document.id = any (locked_documents) and document.owner_id = owner
  );
  hashes := array(
    select hash
      from knowledge_internal.deleted_chunks(
             array(
               select chunk.id from public.knowledge_chunks as chunk
                where chunk.document_id = any (owned)
                   or (
                     chunk.owner_id = owner
                     and (
                       chunk.document_id is null or chunk.document_id = any (locked_documents)
                     )
                   )
             ),
             true
           ) as hash
  );
  chunks_deleted := cardinality(hashes);
  delete from public.knowledge_documents as document where document.id = any (owned);
  get diagnostics documents_deleted = row_count;
  perform knowledge_internal.erase_derived(owner);
  perform knowledge_internal.forget_texts(hashes);
  return next;
end
$$;

comment on function public.delete_knowledge_owner is
  'Deletes every document and chunk of one owner for good, superseded versions included, and what '
  'modules keep of the owner: judgments and lines of the query log. Rows of adopted tables stay in '
  'their tables: delete them there. Raises 22023 for null.';

create function public.purge_knowledge_chunks(older_than interval default '30 days') returns integer
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
  purged integer;
begin
  perform knowledge_internal.check_caller('purge_knowledge_chunks');
  if (older_than between interval '0' and interval '1000 years') is not true then
    raise exception 'older_than must be an interval between 0 and 1000 years, not %',
                    coalesce(older_than::text, 'null')
      using errcode = '22023';
  end if;
  -- A row that another transaction holds is left to the next purge: a purge waits for nobody, so
  -- that no deadlock includes it.
  select count(*)
    into purged
    from knowledge_internal.deleted_chunks(
           array(
             select chunk.id from public.knowledge_chunks as chunk
              where chunk.status in ('superseded', 'deleted')
                and chunk.updated_at <= now() - older_than
           ),
           false
         );
  return purged;
end
$$;

comment on function public.purge_knowledge_chunks is
  'Deletes chunks that have been superseded or deleted for at least this long; returns their '
  'number. A chunk that another transaction has locked is left for the next call. Raises 22023 for '
  'an interval out of bounds.';

revoke all on function
  public.upsert_knowledge_document, public.missing_knowledge_embeddings,
  public.delete_knowledge_document, public.delete_knowledge_owner, public.purge_knowledge_chunks
  from public, anon, authenticated;
grant execute on function
  public.upsert_knowledge_document, public.missing_knowledge_embeddings,
  public.delete_knowledge_document, public.delete_knowledge_owner, public.purge_knowledge_chunks
  to service_role;

-- No role can name a function of this schema without usage on it. The revoke is the second lock.
revoke all on all functions in schema knowledge_internal from public;

-- A policy runs with the rights of the role that queries, and needs no usage on the schema.
grant execute on function
  knowledge_internal.current_viewer(), knowledge_internal.current_viewer_groups() to authenticated;

notify pgrst, 'reload schema';
