-- 044_in_place: rows of adopted tables that are searched where they are.
-- Module: adoption.
-- Adds: columns, a check, indexes and a trigger of knowledge_chunks, and the functions that store
-- what is derived from such a row and read its text and its embedding. Locks knowledge_chunks while
-- its columns and indexes are created.

-- A place is an adopted table: text and embeddings stay there. A chunk of it has place_id and, as
-- text, the key of its row; its content is null, and so is its embedding where the table has one.
-- What is derived from both is stored as for other chunks.
-- The functions place_content and place_embedding read the row. They are written again for each
-- place, and are functions, not joins of a view, because nothing then depends on the table:
-- `drop table ... cascade` ends one place and no search.

alter table public.knowledge_chunks
  alter column content drop not null,
  add column place_id integer,
  add column place_key text,
  add column place_embedded boolean,
  add constraint knowledge_chunks_has_content
    check (content is not null or place_id is not null) not valid;
alter table public.knowledge_chunks validate constraint knowledge_chunks_has_content;

comment on column public.knowledge_chunks.place_id is
  'The adopted table that keeps the content, in the row with the key place_key; null: the content '
  'is here. Written by the module adoption.';

comment on column public.knowledge_chunks.place_embedded is
  'True: a worker has written the embedding into the row. It goes when the text changes.';

create unique index knowledge_chunks_place_key on public.knowledge_chunks (place_id, place_key)
  where place_id is not null;
create index knowledge_chunks_place on public.knowledge_chunks (place_id, collection)
  where place_id is not null;

-- Writes the functions that read a row of a place: its text and its embedding. No name of the table
-- is in them: the view of the adoption has it.
create function knowledge_internal.write_places() returns void
language plpgsql volatile security invoker set search_path = pg_catalog, pg_temp as $$
declare
  read record;
begin
  for read in
    select listed.name, listed.type, listed.needs
      from (
             values ('place_content', 'text', 'content'),
                    ('place_embedding', 'extensions.vector', 'embedding')
           ) as listed (name, type, needs)
  loop
    execute format(
      $function$
        create or replace function knowledge_internal.%1$I(place integer, key text) returns %2$s
        language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $body$
        begin
          case place
            when 0 then return null;%3$s
            else return null;
          end case;
        exception
          -- The table or its view was dropped, or is out of reach, or has a key twice: only this
          -- place has no rows.
          when undefined_table or undefined_column or insufficient_privilege
            or cardinality_violation
          then return null;
        end
        $body$
      $function$,
      read.name, read.type,
      (
        select string_agg(
                 format(
                   E'\n            when %s then return (select adopted.%s::%s'
                   ' from knowledge_internal.%I as adopted where adopted.key_1 = $2::%s);',
                   place.place_id, read.needs, read.type, 'adopted_' || place.name, place.key_type
                 ),
                 '' order by place.place_id
               )
          from public.knowledge_adoptions as place
         where exists (
                 select from pg_catalog.pg_attribute as attribute
                  where attribute.attrelid
                          = to_regclass(format('knowledge_internal.%I', 'adopted_' || place.name))
                    and attribute.attname = read.needs
               )
      )
    );
    execute format('revoke all on function knowledge_internal.%I from public', read.name);
  end loop;
  perform knowledge_internal.write_readers();
end
$$;

-- The roles of the API that search under the policies: those that may call
-- search_visible_knowledge_chunks, or what drop-ins call.
create function knowledge_internal.searching_roles() returns name[]
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return array(
    select role.rolname
      from pg_catalog.pg_proc as function
     cross join lateral aclexplode(function.proacl) as granted
      join pg_catalog.pg_roles as role on role.oid = granted.grantee
     where function.oid in (
             to_regproc('public.search_visible_knowledge_chunks'),
             to_regproc('knowledge_internal.adopted_hits_for_caller')
           )
       and role.oid <> function.proowner
       and role.rolname <> 'service_role'
     group by role.rolname
     order by role.rolname
  );
end
$$;

-- The name of a function of a place for a role of the API: as and of run as the role; by is called
-- for the role.
create function knowledge_internal.reader_function(place integer, word text, api_role name)
returns name
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return format(
    'seen_%s_%s_%s', place, word,
    case when api_role ~ '^[a-z_][a-z0-9_]{0,39}$' then api_role::text else md5(api_role) end
  );
end
$$;

-- Of more rows than these, a search does not read the keys of all that a role sees.
create function knowledge_internal.most_seen_keys() returns integer
language sql immutable security invoker set search_path = pg_catalog, pg_temp
return 1000;

-- Writes, for each place and each role that searches, the functions that say whether the role sees
-- the row with a key, and which keys it sees, at most one more than most_seen_keys.
-- A function cannot change its role, but it can be owned by the role: then the policies and grants
-- of the role hold, current_user is the role, and what the policies call has the rights of the role
-- and no others. The search runs as the owner of the corpus. The search_path is that with which
-- sessions begin, as in a select of the role. The role could alter its function to run as the
-- search does: then the function sees no row.
create function knowledge_internal.write_readers() returns void
language plpgsql volatile security invoker set search_path = pg_catalog, pg_temp as $$
declare
  session_path constant text := (
    select coalesce(nullif(setting.reset_val, ''), 'public')
      from pg_catalog.pg_settings as setting where setting.name = 'search_path'
  );
  wanted record;
  old regprocedure;
begin
  for old in
    select function.oid
      from pg_catalog.pg_proc as function
     where function.pronamespace = 'knowledge_internal'::regnamespace
       and function.proname ~ '^seen_[0-9]+_(as|of|by)_'
  loop
    execute format('drop function %s', old);
  end loop;
  for wanted in
    select role.name as role, place.source, place.key_column, place.key_type,
           knowledge_internal.reader_function(place.place_id, 'as', role.name) as runs_as,
           knowledge_internal.reader_function(place.place_id, 'of', role.name) as keys_of,
           knowledge_internal.reader_function(place.place_id, 'by', role.name) as called_by
      from public.knowledge_adoptions as place
      -- The table, or its key, can be gone.
      join pg_catalog.pg_attribute as attribute
        on attribute.attrelid = place.source and attribute.attname = place.key_column
     cross join unnest(knowledge_internal.searching_roles()) as role (name)
     where pg_has_role(current_user, role.name, 'usage')
  loop
    -- An error of a policy hides the row, and ends no search of other tables.
    execute format(
      $function$
        create function knowledge_internal.%1$I(key text) returns boolean
        language sql stable security definer set search_path to %3$s
        return current_user = %4$L
          and exists (select from %5$s as source where source.%6$I = $1::%7$s);

        create function knowledge_internal.%2$I() returns text[]
        language sql stable security definer set search_path to %3$s
        return array(
          select source.%6$I::text from %5$s as source where current_user = %4$L limit %8$s
        );

        create function knowledge_internal.%9$I(key text) returns boolean
        language plpgsql stable security invoker cost 1000
        set search_path = pg_catalog, pg_temp as $body$
        begin
          return knowledge_internal.%1$I(key);
        exception when others then
          if left(sqlstate, 2) in ('40', '53', '57', '58', 'XX') then
            raise; -- not of the policy
          end if;
          return false;
        end
        $body$;

        revoke all on function
          knowledge_internal.%1$I, knowledge_internal.%2$I, knowledge_internal.%9$I from public;
        grant execute on function knowledge_internal.%1$I, knowledge_internal.%2$I to current_user;
        grant create on schema knowledge_internal to %4$I;
        alter function knowledge_internal.%1$I owner to %4$I;
        alter function knowledge_internal.%2$I owner to %4$I;
        revoke create on schema knowledge_internal from %4$I
      $function$,
      wanted.runs_as, wanted.keys_of, session_path, wanted.role, wanted.source, wanted.key_column,
      wanted.key_type, knowledge_internal.most_seen_keys() + 1, wanted.called_by
    );
  end loop;
end
$$;

-- The places, and for each the reason why a role cannot find its rows, in words; null: a plain
-- select of the role works, and one of the owner of the corpus, who searches for it and is under no
-- policies.
create function knowledge_internal.readable_places(reader name)
returns table (place_id integer, source regclass, has_policies boolean, fault text)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return query
  select adoption.place_id, adoption.source, class.relrowsecurity,
         case
           when not knowledge_internal.is_trusted(class.oid)
             then 'its owner has fewer rights than the owner of the corpus'
           when knowledge_internal.has_children(class.oid) then 'it has child tables'
           when row_security_active(class.oid)
             then 'its policies hold for the owner of the corpus, too'
           else coalesce(
             (
               select min(
                        case
                          when not has_schema_privilege(role.name, class.relnamespace, 'usage')
                            then format('%s has no usage of its schema', role.name)
                          when not has_table_privilege(role.name, class.oid, 'select') and exists (
                            select
                              from pg_catalog.pg_attribute as attribute
                             where attribute.attrelid = class.oid
                               and attribute.attnum > 0
                               and not attribute.attisdropped
                               and not has_column_privilege(
                                     role.name, class.oid, attribute.attnum, 'select'
                                   )
                          ) then format('%s may not select it as a whole', role.name)
                        end
                      )
                 from unnest(array[reader, current_user]) as role (name)
             ),
             case
               when class.relrowsecurity and reader <> current_user and not exists (
                 select
                   from pg_catalog.pg_proc as function
                   join pg_catalog.pg_roles as role on role.oid = function.proowner
                  where function.pronamespace = 'knowledge_internal'::regnamespace
                    and function.proname = knowledge_internal.reader_function(
                          adoption.place_id, 'as', reader
                        )
                    and role.rolname = reader
               ) then 'let_search was not called for the role'
             end
           )
         end
    from public.knowledge_adoptions as adoption
    join pg_catalog.pg_class as class on class.oid = adoption.source;
end
$$;

create or replace function knowledge_internal.write_chunk_rows() returns void
language plpgsql volatile security invoker set search_path = pg_catalog, pg_temp as $$
begin
  drop view if exists knowledge_internal.chunk_rows;
  create view knowledge_internal.chunk_rows with (security_invoker = true) as
  select chunk.id, chunk.document_id, chunk.chunk_index, chunk.status, chunk.collection,
         chunk.knowledge_type, chunk.language, chunk.document_date, chunk.owner_id,
         chunk.visibility, chunk.allowed_groups, chunk.sensitivity, chunk.source_id,
         chunk.source_origin, chunk.metadata, chunk.heading, chunk.content_hash,
         chunk.text_length, chunk.content_tsv, chunk.bm25, chunk.embedding_bits,
         chunk.embedding_model, chunk.created_at, chunk.updated_at,
         coalesce(
           chunk.content, knowledge_internal.place_content(chunk.place_id, chunk.place_key)
         ) as content,
         case
           when chunk.embedding is not null or chunk.place_id is null then chunk.embedding
           when chunk.embedding_bits is not null
             then knowledge_internal.place_embedding(chunk.place_id, chunk.place_key)
         end as embedding,
         case when chunk.place_id is not null
           then knowledge_internal.place_row(chunk.place_id, chunk.place_key) end as source_row,
         chunk.place_id, chunk.place_key
    from public.knowledge_chunks as chunk;
end
$$;

-- Runs after complete_chunk, which has derived from text and embedding what is stored: leaves both
-- to the table. An embedding that was made for a row is written into the table.
create function knowledge_internal.complete_chunk_in_place() returns trigger
-- definer: a role that may write chunks has no rights on the internal functions, nor on the table.
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  place constant public.knowledge_adoptions := (
    select adoption from public.knowledge_adoptions as adoption
     where adoption.place_id = new.place_id
  );
begin
  new.content := null;
  -- An embedding of another model than those of the table is kept here.
  if place.embedding_column is null or new.embedding is null
     or new.embedding_model is distinct from place.embedding_model
  then
    return new;
  end if;
  if current_setting('knowledge_internal.stores_place', true)
       is distinct from place.write_token::text
  then
    -- So is one that may not be written into the table.
    if knowledge_internal.is_trusted(place.source) is not true then
      return new;
    end if;
    if knowledge_internal.embed_place_rows(place, array[new.place_key], new.embedding, true) then
      new.place_embedded := true;
    else
      -- The row is held by a writer, and waiting for it with the chunk locked could end in a
      -- deadlock: this chunk waits for an embedding as before.
      new.embedding_bits := old.embedding_bits;
      new.embedding_model := old.embedding_model;
    end if;
  end if;
  new.embedding := null;
  return new;
end
$$;

-- Writes an embedding, or null, into the rows of a place with these keys; returns whether any was
-- written. skips_held: not into rows that another transaction holds.
create function knowledge_internal.embed_place_rows(
  place public.knowledge_adoptions, keys text[], embedding extensions.vector, skips_held boolean
) returns boolean
language plpgsql volatile security invoker set search_path = pg_catalog, pg_temp as $$
declare
  written bigint;
begin
  if knowledge_internal.is_trusted(place.source) is not true then
    return false;
  end if;
  -- The triggers of the adoption leave this write out: the chunk has the embedding already.
  perform set_config('knowledge_internal.stores_place', place.write_token::text, true);
  execute format(
    'update %1$s as source set %2$I = $1'
    ' where source.%3$I = any (array('
    '         select held.%3$I from %1$s as held where held.%3$I = any ($2::%4$s[])'
    '            for update %5$s'
    '       ))',
    place.source, place.embedding_column, place.key_column, place.key_type,
    case when skips_held then 'skip locked' else '' end
  )
  using embedding, keys;
  get diagnostics written = row_count;
  perform set_config('knowledge_internal.stores_place', '', true);
  return written > 0;
end
$$;

create trigger complete_chunk_in_place
  before insert or update on public.knowledge_chunks
  for each row when (new.place_id is not null)
  execute function knowledge_internal.complete_chunk_in_place();

-- Makes documents and chunks of a place equal to these rows. A document of several rows has the
-- title, address and date of the row that has made it, as long as that row is there: who may write
-- another one decides nothing. Raises 22023 for a row without content, a key that the view has
-- twice, one that another document has, and rows of one document that are not visible to the same
-- users.
create function knowledge_internal.store_placed_rows(
  adoption public.knowledge_adoptions, given knowledge_internal.adopted_row[]
) returns void
language plpgsql volatile security invoker set search_path = pg_catalog, pg_temp as $$
declare
  wrong text;
begin
  if exists (select from unnest(given) as row where row.content is null) then
    raise exception 'content is null' using errcode = '22023';
  end if;
  select row.key into wrong from unnest(given) as row group by row.key having count(*) > 1 limit 1;
  if found then
    raise exception 'the view has several rows with the key %', left(wrong, 100)
      using errcode = '22023', hint = 'Change the view, so that it has each key once.';
  end if;
  select stored.external_key into wrong
    from unnest(given) as row
    join public.knowledge_documents as stored on stored.external_key = (row.document).external_key
   where stored.source_row ->> 'adoption' is distinct from adoption.name
   limit 1;
  if found then
    raise exception 'another document has the external_key %', left(wrong, 100)
      using errcode = '22023',
            hint = 'Delete that document, or adopt the table under another name.';
  end if;
  select listed.external_key into wrong
    from (
      select row.document from unnest(given) as row
      union all
      select stored
        from public.knowledge_documents as stored
       where stored.external_key
               = any (array(select (row.document).external_key from unnest(given) as row))
         and exists (
               select from public.knowledge_chunks as chunk
                where chunk.document_id = stored.id
                  and chunk.place_key <> all (array(select row.key from unnest(given) as row))
             )
    ) as row (document)
   cross join lateral (select (row.document).*) as listed
   group by listed.external_key
  having count(
           distinct (
             listed.visibility, listed.owner_id, listed.allowed_groups, listed.sensitivity
           )
         ) > 1
   limit 1;
  if found then
    raise exception 'the rows of document % have different visibility, owner, groups or '
                    'sensitivity', left(wrong, 100)
      using errcode = '22023', hint = 'Write all rows of the document in one statement.';
  end if;

  insert into public.knowledge_documents as stored
  select (first.document).*
    from (
      select distinct on ((row.document).external_key) row.document
        from unnest(given) as row
        left join public.knowledge_documents as made
          on made.external_key = (row.document).external_key
       order by (row.document).external_key, (made.source_row ->> 'row' = row.key) is not true,
                row.chunk_index, row.key
    ) as first
      on conflict (external_key) do update
     set (
           title, knowledge_type, source_id, source_url, source_origin, author, document_date,
           owner_id, visibility, allowed_groups, sensitivity, language, collection, metadata,
           source_row, updated_at
         ) = row (
           excluded.title, excluded.knowledge_type, excluded.source_id, excluded.source_url,
           excluded.source_origin, excluded.author, excluded.document_date, excluded.owner_id,
           excluded.visibility, excluded.allowed_groups, excluded.sensitivity, excluded.language,
           excluded.collection, excluded.metadata, excluded.source_row, now()
         )
   where to_jsonb(stored) - '{id,content_hash,created_at,updated_at}'::text[]
           <> to_jsonb(excluded) - '{id,content_hash,created_at,updated_at}'::text[]
     and not exists (
           select from public.knowledge_chunks as chunk
            where chunk.place_id = adoption.place_id
              and chunk.place_key = stored.source_row ->> 'row'
              and chunk.place_key <> excluded.source_row ->> 'row'
              and chunk.document_id = stored.id
         );
  -- The trigger of the chunks writes nothing into the table.
  perform set_config('knowledge_internal.stores_place', adoption.write_token::text, true);
  -- A chunk that loses its embedding is made anew.
  delete from public.knowledge_chunks as chunk
   using unnest(given) as row
   where chunk.place_id = adoption.place_id
     and chunk.place_key = row.key
     and (
       not row.has_text
       or adoption.embedding_column is not null
          and chunk.embedding_bits is not null and chunk.embedding is null
          and row.embedding is null
     );
  update public.knowledge_chunks as chunk
     set document_id = document.id,
         chunk_index = row.chunk_index,
         heading = (row.document).title,
         collection = (row.document).collection,
         metadata = row.metadata,
         -- The text is analysed again if it is given.
         content = case when row.content_hash <> chunk.content_hash then row.content end,
         version = chunk.version + (row.content_hash <> chunk.content_hash)::integer,
         embedding = case
           when row.embedding is null then chunk.embedding
           when row.embedding_bits is distinct from chunk.embedding_bits then row.embedding
         end,
         embedding_model = case when row.embedding is null then chunk.embedding_model
           else row.embedding_model end,
         place_embedded = case
           when row.embedding_bits is not distinct from chunk.embedding_bits
             then chunk.place_embedded end
    from unnest(given) as row
    join public.knowledge_documents as document
      on document.external_key = (row.document).external_key
   where chunk.place_id = adoption.place_id
     and chunk.place_key = row.key
     and (
       (
         chunk.document_id, chunk.chunk_index, chunk.heading, chunk.collection, chunk.metadata,
         chunk.content_hash
       ) is distinct from (
         document.id, row.chunk_index, (row.document).title, (row.document).collection,
         row.metadata, row.content_hash
       )
       or row.embedding is not null
          and (chunk.embedding_bits, chunk.embedding_model)
                is distinct from (row.embedding_bits, row.embedding_model)
     );
  insert into public.knowledge_chunks (
    place_id, place_key, document_id, chunk_index, heading, content, collection, metadata,
    embedding, embedding_model
  )
  select adoption.place_id, row.key, document.id, row.chunk_index, (row.document).title,
         row.content, (row.document).collection, row.metadata, row.embedding,
         case when row.embedding is not null then row.embedding_model end
    from unnest(given) as row
    join public.knowledge_documents as document
      on document.external_key = (row.document).external_key
   where row.has_text
     and not exists (
           select from public.knowledge_chunks as chunk
            where chunk.place_id = adoption.place_id and chunk.place_key = row.key
         );
  perform set_config('knowledge_internal.stores_place', '', true);
end
$$;

-- Locks the documents of these keys until the transaction ends: those of their chunks, and those
-- that they name. In the order in which other functions lock documents; returns their ids.
create function knowledge_internal.lock_adopted(
  adoption public.knowledge_adoptions, keys text[]
) returns uuid[]
language plpgsql volatile security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return array(
    select document.id
      from public.knowledge_documents as document
     where document.id = any (array(
             select chunk.document_id
               from public.knowledge_chunks as chunk
              where chunk.place_id = adoption.place_id and chunk.place_key = any (keys)
             union
             select named.id
               from public.knowledge_documents as named
              where named.external_key
                      = any (array(select adoption.name || '/' || key from unnest(keys) as key))
                -- Not by the index of adoptions.
                and named.source_row @> jsonb_build_object('adoption', adoption.name)
           ))
     order by document.id
       for update
  );
end
$$;

-- Deletes the chunks of these keys but those that are kept, and of the documents those without a
-- row: those of rows that are gone, and those of several rows without a chunk.
create function knowledge_internal.delete_adopted(
  adoption public.knowledge_adoptions, keys text[], locked_documents uuid[],
  kept knowledge_internal.adopted_row[]
) returns void
language plpgsql volatile security invoker set search_path = pg_catalog, pg_temp as $$
begin
  delete from public.knowledge_chunks as chunk
   where chunk.place_id = adoption.place_id
     and chunk.place_key = any (keys)
     and chunk.place_key <> all (array(select row.key from unnest(kept) as row));
  delete from public.knowledge_documents as document
   where document.id = any (locked_documents)
     and document.external_key <> all (
           array(select (row.document).external_key from unnest(kept) as row)
         )
     and not exists (
           select from public.knowledge_chunks as chunk where chunk.document_id = document.id
         );
end
$$;

-- What a vector index of a table orders by, over source, with the question's direction as $3; null
-- if no index serves cosine distance. That of inner product and of L2 does where the vectors have
-- the length 1, which a sample shows. A partial index serves if it leaves out null only.
create function knowledge_internal.place_order(source regclass, embedding_column name) returns text
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
-- Names are those that the catalogue has.
set quote_all_identifiers = off
set standard_conforming_strings = on as $$
declare
  sampled constant integer := 1000; -- rows
  column_name constant text := quote_ident(embedding_column);
  are_units boolean;
begin
  if embedding_column is null then
    return null;
  end if;
  execute format(
    'select bool_and(abs(extensions.vector_norm(source.embedding) - 1) < 0.01)'
    '  from ('
    '    select %1$I::extensions.vector as embedding'
    '      from %2$s where %1$I is not null limit %3$s'
    '  ) as source',
    embedding_column, source, sampled
  )
    into are_units;
  return (
    select format(
             '%s operator(extensions.%s) $3::%s',
             regexp_replace(indexed.expression, '^\(?', '\&source.'), rule.operator,
             pg_catalog.format_type(attribute.atttypid, attribute.atttypmod)
           )
      from pg_catalog.pg_index as stored
      join pg_catalog.pg_class as class on class.oid = stored.indexrelid
      join pg_catalog.pg_am as method on method.oid = class.relam and method.amname = 'hnsw'
      join pg_catalog.pg_opclass as class_of on class_of.oid = stored.indclass[0]
      join pg_catalog.pg_attribute as attribute
        on attribute.attrelid = stored.indexrelid and attribute.attnum = 1
      join (
             values ('cosine', '<=>', false), ('ip', '<#>', true), ('l2', '<->', true)
           ) as rule (name, operator, needs_units)
        on class_of.opcname in (
             format('vector_%s_ops', rule.name), format('halfvec_%s_ops', rule.name)
           )
       and (are_units or not rule.needs_units)
     cross join pg_catalog.pg_get_indexdef(stored.indexrelid, 1, true) as indexed (expression)
     where stored.indrelid = source
       and stored.indisvalid
       and (
         stored.indpred is null
         or pg_get_expr(stored.indpred, stored.indrelid)
              = format('(%s IS NOT NULL)', column_name)
       )
       -- The column, or casts of it.
       and starts_with(ltrim(indexed.expression, '('), column_name)
       and substr(ltrim(indexed.expression, '('), length(column_name) + 1)
             ~ '^(::[^ ()]+(\(\d+\))?)*\)?$'
     order by rule.needs_units, class.relname
     limit 1
  );
end
$$;

-- The nearest rows of each place by its own vector index, and by embedding_bits of a place without
-- one, or whose index stopped early.
create or replace function knowledge_internal.nearest_elsewhere(
  near_ids uuid[], near_similarities double precision[], asked_embedding extensions.vector,
  collection text, scope knowledge_internal.row_scope, most integer, out ids uuid[],
  out similarities double precision[]
)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
-- Names are those that the catalogue has.
set quote_all_identifiers = off as $$
declare
  named constant text[] := case when collection is not null then array[collection]
    else coalesce((scope.wanted).collections, (scope.required).collections) end;
  direction extensions.vector;
  bits bit varying;
  matching constant text := coalesce(scope.matching, 'chunk.status = ''active''')
    || case when collection is not null then ' and chunk.collection = $5' else '' end;
  conditions constant text :=
    matching || ' and chunk.embedding_bits is not null and chunk.embedding is null';
  near constant text :=
    'select array_agg(near.id order by near.distance, near.id),'
    '       array_agg(1 - near.distance order by near.distance, near.id)'
    '  from (%s) as near';
  place public.knowledge_adoptions;
  found_sql text;
  found_ids uuid[];
  found_similarities double precision[];
  has_found boolean := false;
begin
  ids := near_ids;
  similarities := near_similarities;
  if not exists (
    select from public.knowledge_adoptions as adoption where adoption.embedding_column is not null
  ) then
    return;
  end if;
  direction := extensions.l2_normalize(asked_embedding);
  bits := knowledge_internal.embedding_bits(asked_embedding);
  -- The index of knowledge_chunks can stop before it has read all rows that it has.
  if (cardinality(near_ids) >= most) is not true and (
    select avg((chunk.embedding is not null)::integer) * corpus.document_count
             > current_setting('hnsw.max_scan_tuples')::integer
      from public.knowledge_corpus_statistics as corpus
      join public.knowledge_chunks as chunk on chunk.id = any (corpus.sample[:100])
     where corpus.document_count > current_setting('hnsw.max_scan_tuples')::integer
     group by corpus.document_count
  ) then
    execute format(
      near,
      'select listed.id, listed.embedding operator(extensions.<=>) $2 as distance from ('
      '  select chunk.id, chunk.embedding from public.knowledge_chunks as chunk'
      '   where chunk.embedding is not null and ' || matching ||
      '   order by chunk.embedding_bits operator(extensions.<~>) $3, chunk.id limit 5 * $4'
      ') as listed order by distance, listed.id limit $4'
    )
      into ids, similarities
      using scope, asked_embedding, bits, most, collection;
  end if;
  for place in
    select adoption.*
      from knowledge_internal.readable_places(coalesce(scope.seen_by, current_user)) as readable
      join public.knowledge_adoptions as adoption on adoption.place_id = readable.place_id
     where readable.fault is null
       and adoption.embedding_column is not null
       and (
         named is null
         or exists (
           select from public.knowledge_chunks as chunk
            where chunk.place_id = adoption.place_id and chunk.collection = any (named)
         )
       )
     order by adoption.place_id
  loop
    found_ids := null;
    foreach found_sql in array array[
      -- Null without an index.
      'select chunk.id, %1$s from %2$s as source join public.knowledge_chunks as chunk'
      ' on chunk.place_id = %3$s and chunk.place_key = source.%4$I::text where %6$s'
      ' and source.%7$I is not null order by ' || replace(place.order_sql, '%', '%%')
      || ' limit $4',
      'select listed.id, %1$s from ('
      '  select chunk.id, chunk.place_key::%5$s as key from public.knowledge_chunks as chunk'
      '   where chunk.place_id = %3$s and %6$s'
      '   order by chunk.embedding_bits operator(extensions.<~>) $6, chunk.id limit 5 * $4'
      ') as listed join %2$s as source on source.%4$I = listed.key'
      ' order by distance, listed.id limit $4'
    ]
    loop
      continue when found_sql is null or cardinality(found_ids) >= most;
      execute format(
        near,
        format(
          found_sql,
          format(
            '(source.%I)::extensions.vector operator(extensions.<=>) $2 as distance',
            place.embedding_column
          ),
          place.source, place.place_id, place.key_column, place.key_type, conditions,
          place.embedding_column
        )
      )
        into found_ids, found_similarities
        using scope, asked_embedding, direction, most, collection, bits;
    end loop;
    has_found := has_found or found_ids is not null;
    ids := coalesce(ids, '{}') || coalesce(found_ids, '{}');
    similarities := coalesce(similarities, '{}') || coalesce(found_similarities, '{}');
  end loop;
  if has_found then
    select array_agg(near.id order by near.similarity desc, near.id),
           array_agg(near.similarity order by near.similarity desc, near.id)
      into ids, similarities
      from (
        select listed.id, listed.similarity
          from unnest(ids, similarities) as listed (id, similarity)
         order by listed.similarity desc, listed.id
         limit most
      ) as near;
  end if;
end
$$;

-- Makes the views of a corpus that is installed already read places.
do $$
begin
  perform knowledge_internal.write_places();
  perform knowledge_internal.use_vector_index(
    (
      select type.typname
        from pg_catalog.pg_attribute as attribute
        join pg_catalog.pg_type as type on type.oid = attribute.atttypid
       where attribute.attrelid = 'knowledge_internal.searchable_chunks'::regclass
         and attribute.attname = 'indexed_embedding'
    )
  );
end
$$;

revoke all on all functions in schema knowledge_internal from public;

notify pgrst, 'reload schema';
