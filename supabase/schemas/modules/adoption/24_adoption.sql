-- 024_adoption: documents that are made of the rows of a project's own table.
-- Module: adoption.
-- Adds: tables knowledge_adoptions and knowledge_adoption_problems, the index of adopted documents,
-- and the functions that carry rows over: after a write of the source, in a backfill, and in a
-- repair.
-- Locks knowledge_documents against writes while the index is created.

-- An adoption is a row of knowledge_adoptions, a view knowledge_internal.adopted_<name> that maps
-- the source to documents, and triggers on the source. `second-brain adopt` writes the view into a
-- migration of the project, which then calls follow_table for the triggers. The view has the
-- columns key_1, content, optionally embedding, and fields of a document with the names that
-- upsert_knowledge_document takes. Texts and embeddings stay in the source: see 44_in_place.sql.
-- Everywhere else, a key is its text.

create table public.knowledge_adoptions (
  name text primary key check (name ~ '^[a-z][a-z0-9_]{0,39}$'),
  source regclass not null,
  key_column name not null,
  key_type text not null,
  embedding_model text check (length(embedding_model) between 1 and 200),
  place_id integer not null unique,
  embedding_column name,
  order_sql text,
  parent regclass check (parent <> source),
  parent_columns name[],
  write_token uuid not null default gen_random_uuid(),
  created_at timestamptz not null default now()
);

comment on table public.knowledge_adoptions is
  'The adopted tables. embedding_model: the model of the embeddings in the source; null: these are '
  'not used. place_id: the number of the table in knowledge_chunks. embedding_column has the '
  'embeddings (null: they are kept in knowledge_chunks), and a vector index of the table orders by '
  'order_sql (null: by nothing that serves cosine distance). parent: the table of the documents '
  'whose chunks are the rows, with the column that refers to it and its key in parent_columns. '
  'write_token: while the module writes chunks or embeddings of the table, the setting '
  'knowledge_internal.stores_place has this value, which no user knows, and the triggers do not '
  'carry such a write over again. Written by adopt_table and follow_table.';

create table public.knowledge_adoption_problems (
  adoption_name text not null references public.knowledge_adoptions (name) on delete cascade,
  key_hash bigint not null,
  key text not null,
  is_carried_over boolean not null,
  reason text not null,
  recorded_at timestamptz not null default now(),
  primary key (adoption_name, key_hash)
);

comment on table public.knowledge_adoption_problems is
  'Rows of adopted tables that could not be carried over, or not completely (is_carried_over), '
  'with the reason. A row leaves this table when it is carried over or deleted. The key is hashed '
  'because an index entry has at most 2,704 bytes.';

alter table public.knowledge_adoptions enable row level security;
alter table public.knowledge_adoption_problems enable row level security;
create policy knowledge_adoptions_none on public.knowledge_adoptions
  to anon, authenticated using (false);
create policy knowledge_adoption_problems_none on public.knowledge_adoption_problems
  to anon, authenticated using (false);
revoke all
  on table public.knowledge_adoptions, public.knowledge_adoption_problems
  from public, anon, authenticated, service_role;

create index knowledge_documents_adoption on public.knowledge_documents
  ((source_row ->> 'adoption'))
  where source_row is not null;

-- The adoption with this name. Raises 22023 if there is none.
create function knowledge_internal.adoption_named(adoption_name text)
returns public.knowledge_adoptions
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  adoption public.knowledge_adoptions;
begin
  select stored.* into adoption
    from public.knowledge_adoptions as stored where stored.name = adoption_name;
  if not found then
    raise exception 'there is no adoption %', coalesce(left(adoption_name, 100), 'null')
      using errcode = '22023', hint = 'List them with: second-brain adopt --check';
  end if;
  return adoption;
end
$$;

-- Whether the owner of a table may do all that the owner of the corpus may. Only then may the
-- module read and write the table: its triggers and policies run with the rights of the latter.
create function knowledge_internal.is_trusted(source regclass) returns boolean
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return (
    select pg_has_role(class.relowner, corpus.relowner, 'usage')
      from pg_catalog.pg_class as class
     cross join pg_catalog.pg_class as corpus
     where class.oid = source and corpus.oid = 'public.knowledge_adoptions'::regclass
  );
end
$$;

-- Whether a table has child tables that are no partitions: a key can be there twice.
create function knowledge_internal.has_children(source regclass) returns boolean
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return exists (
    select
      from pg_catalog.pg_class as class
      join pg_catalog.pg_inherits as child on child.inhparent = class.oid
     where class.oid = source and class.relkind = 'r' and class.relhassubclass
  );
end
$$;

-- Registers an adoption, or changes it. A migration of `second-brain adopt` calls it, then creates
-- the view, and calls follow_table. The command has checked the table before; raises 22023 for what
-- can hide rows or mix them up, and 23514 for a value that is not allowed.
create function knowledge_internal.adopt_table(
  adoption_name text, source regclass, key_column name, embedding_model text default null,
  embedding_column name default null, parent regclass default null,
  parent_columns name[] default null
) returns void
language plpgsql volatile security invoker set search_path = pg_catalog, pg_temp as $$
declare
  foreign_table regclass;
  key_type_names constant text[] := array['int2', 'int4', 'int8', 'uuid', 'text', 'varchar'];
  found_type text;
begin
  if row_security_active(source) then
    raise exception 'source: row level security of % hides rows from %', source, current_user
      using errcode = '22023', hint = 'Run this as the owner of the table.';
  end if;
  select relation into foreign_table
    from unnest(array[source, parent]) as relation
   where not knowledge_internal.is_trusted(relation)
   limit 1;
  if found then
    raise exception 'source: the owner of % has fewer rights than %, with which triggers and '
                    'policies of the table would run', foreign_table, current_user
      using errcode = '42501',
            hint = format('Run: alter table %s owner to %I', foreign_table, current_user);
  end if;
  select pg_catalog.format_type(type.oid, null) into found_type
    from pg_catalog.pg_attribute as attribute
    join pg_catalog.pg_type as type on type.oid = attribute.atttypid
   where attribute.attrelid = source
     and attribute.attname = adopt_table.key_column
     and attribute.attnum > 0
     and attribute.attnotnull
     and type.typname = any (key_type_names)
     and attribute.attcollation = type.typcollation;
  if found_type is null then
    raise exception 'key_column: % must be a column of % that is not null, has one of the types % '
                    'and no collation of its own', coalesce(adopt_table.key_column, 'null'), source,
                    array_to_string(key_type_names, ', ')
      using errcode = '22023', hint = 'Name the column of another unique index (--key).';
  end if;
  if knowledge_internal.has_children(source) then
    raise exception 'source: % has child tables, so a key can be there twice', source
      using errcode = '22023',
            hint = 'Make the children partitions of it, or adopt each child.';
  end if;
  -- Keys that are no values of another type.
  delete from public.knowledge_documents as document
   using public.knowledge_adoptions as before
   where before.name = adoption_name
     and before.key_type <> found_type
     and (before.key_type !~ 'int' or found_type = 'uuid')
     and document.source_row ->> 'adoption' = before.name;
  -- Chunks of a table that is gone must not become those of a new one.
  perform pg_advisory_xact_lock(hashtext('knowledge_internal.adopt_table'));
  insert into public.knowledge_adoptions as stored (
    name, source, key_column, key_type, embedding_model, place_id, embedding_column, parent,
    parent_columns
  )
  values (
    adoption_name, source, key_column, found_type, embedding_model,
    1 + greatest(
      0, (select max(adoption.place_id) from public.knowledge_adoptions as adoption),
      (select max(chunk.place_id) from public.knowledge_chunks as chunk)
    ),
    embedding_column, parent, parent_columns
  )
      on conflict (name) do update
     set (
           source, key_column, key_type, embedding_model, embedding_column, parent, parent_columns
         ) = (
           excluded.source, excluded.key_column, excluded.key_type, excluded.embedding_model,
           excluded.embedding_column, excluded.parent, excluded.parent_columns
         );
end
$$;

-- SQL that says whether a column which the view of an adoption reads differs between two rows of
-- the source, or of its parent: written and gone. Every column counts if there is no view, or it
-- reads another view, a whole row, or a column that is computed when read. The bytes are compared,
-- because json has no equality.
create function knowledge_internal.is_changed_sql(
  adoption public.knowledge_adoptions, relation regclass
) returns text
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  columns text[];
begin
  select case
           -- A row as a whole is column 0 in the rule of the view, and no dependency.
           when bool_or(
             read.relkind in ('v', 'm') or attribute.attgenerated = 'v'
             or rule.ev_action::text ~ ':varattno 0 '
           ) is false
             then array_agg(quote_ident(attribute.attname)) filter (where attribute.attnum > 0)
         end
    into columns
    from pg_catalog.pg_rewrite as rule
    join pg_catalog.pg_depend as dependency
      on dependency.classid = 'pg_catalog.pg_rewrite'::regclass
     and dependency.objid = rule.oid
     and dependency.refclassid = 'pg_catalog.pg_class'::regclass
     and dependency.refobjid <> rule.ev_class
    join pg_catalog.pg_class as read on read.oid = dependency.refobjid
    left join pg_catalog.pg_attribute as attribute
      on attribute.attrelid = dependency.refobjid
     and attribute.attnum = dependency.refobjsubid
     and attribute.attrelid = relation
   where rule.ev_class
           = to_regclass(format('knowledge_internal.%I', 'adopted_' || adoption.name));
  return format(
    'pg_catalog.record_image_ne(row(written.%s), row(gone.%s))',
    coalesce(array_to_string(columns, ', written.'), '*'),
    coalesce(array_to_string(columns, ', gone.'), '*')
  );
end
$$;

-- The triggers that an adoption needs, on its table and on the parent, each with the statement that
-- creates or replaces it. Each fires once for a statement.
create function knowledge_internal.adoption_triggers(adoption public.knowledge_adoptions)
returns table (relation regclass, name text, statement text)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  -- The triggers of two installs on a table have different names.
  prefix constant text := (
    select case namespace.nspname when 'public' then '' else namespace.nspname || '_' end
      from pg_catalog.pg_class as class
      join pg_catalog.pg_namespace as namespace on namespace.oid = class.relnamespace
     where class.oid = 'public.knowledge_adoptions'::regclass
  ) || 'adopted_' || adoption.name || '_';
begin
  return query
  select listed.relation, prefix || followed.event,
         format(
           'create or replace trigger %I after %s on %s %s for each statement execute function '
           'knowledge_internal.carry_over_changes(%I)',
           prefix || followed.event, followed.event, listed.relation, followed.transitions,
           adoption.name
         )
    from unnest(array[adoption.source, adoption.parent]) as listed (relation)
   cross join (
           values ('insert', 'referencing new table as new_rows'),
                  ('update', 'referencing old table as old_rows new table as new_rows'),
                  ('delete', 'referencing old table as old_rows'),
                  ('truncate', '')
         ) as followed (event, transitions)
   where listed.relation is not null;
end
$$;

-- Creates the triggers of an adoption, or replaces them: run it again after a change of the view.
create function knowledge_internal.follow_table(adoption_name text) returns void
language plpgsql volatile security invoker set search_path = pg_catalog, pg_temp as $$
declare
  adoption constant public.knowledge_adoptions := knowledge_internal.adoption_named(adoption_name);
begin
  execute (
    select string_agg(needed.statement, '; ')
      from knowledge_internal.adoption_triggers(adoption) as needed
  );
  update public.knowledge_adoptions as stored
     set order_sql = knowledge_internal.place_order(stored.source, stored.embedding_column)
   where stored.name = adoption.name;
  perform knowledge_internal.write_places();
end
$$;

-- What is missing of an adoption, switched off or not as its view needs it, in words.
create function knowledge_internal.adoption_faults(adoption_name text) returns setof text
language plpgsql volatile security invoker set search_path = pg_catalog, pg_temp as $$
declare
  adoption constant public.knowledge_adoptions := knowledge_internal.adoption_named(adoption_name);
  view_name constant text := format('knowledge_internal.%I', 'adopted_' || adoption.name);
  is_there constant boolean := exists (
    select from pg_catalog.pg_class as class where class.oid = adoption.source
  );
  has_key constant boolean := exists (
    select from pg_catalog.pg_attribute as attribute
     where attribute.attrelid = adoption.source and attribute.attname = adoption.key_column
  );
  source_name constant text := case when is_there then adoption.source::text
    else 'a dropped table' end;
begin
  return query
  select format('the view %s does not exist', view_name) where to_regclass(view_name) is null
  union all
  select format('%s has no column %s, which is the key', source_name, adoption.key_column)
   where not has_key
  union all
  select format(
           'the trigger %s on %s %s', needed.name, needed.relation,
           case when trigger.oid is null then 'does not exist' else 'is disabled' end
         )
    from knowledge_internal.adoption_triggers(adoption) as needed
    left join pg_catalog.pg_trigger as trigger
      on trigger.tgrelid = needed.relation and trigger.tgname = needed.name
   where is_there and trigger.tgenabled in ('O', 'A') is not true;
  if has_key and adoption.order_sql is distinct from knowledge_internal.place_order(
       adoption.source, adoption.embedding_column
     )
  then
    return next source_name || ' has another vector index than at its adoption';
  end if;
end
$$;

-- The value of source_row for a row of an adopted table: an integer is a JSON number, other keys
-- are texts.
create function knowledge_internal.place_row(place integer, key text) returns jsonb
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
-- The name of the table is the same in each session.
set quote_all_identifiers = off as $$
begin
  return (
    select jsonb_build_object(
             'adoption', stored.name, 'table', stored.source::text,
             'key', jsonb_build_object(
               stored.key_column,
               -- A cast inside of the case would be tried for every key.
               (case when stored.key_type ~ 'int' then key else to_jsonb(key)::text end)::jsonb
             ),
             'types', jsonb_build_object(stored.key_column, stored.key_type)
           )
      from public.knowledge_adoptions as stored
     where stored.place_id = place
  );
end
$$;

-- A row of an adopted table as it is to be stored. embedding: null for one that is not used.
-- has_text: false for a row without text, which has no chunk. left_out: which value of the source
-- is not stored, and why. embedding_model: the model of the embedding, or of embeddings that are
-- reused.
create type knowledge_internal.adopted_row as (
  key text, document public.knowledge_documents, chunk_index integer, content text,
  metadata jsonb, content_hash text, embedding extensions.vector, embedding_bits bit varying,
  embedding_model text, has_text boolean, left_out text
);

-- The same fields, those of a document but its key and its address checked by check_document.
create function knowledge_internal.checked_fields(fields jsonb) returns jsonb
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  perform knowledge_internal.check_document(
    fields - '{source_url,document_key,chunk_index}'::text[]
    || '{"external_key": "checked elsewhere"}'
  );
  return fields;
end
$$;

-- The rows of the view of an adoption that have these keys; for one key, raises the errors of
-- check_document. If rows are the parts of a document, source_row of the document has the row whose
-- fields it has.
create function knowledge_internal.adopted_rows(adoption public.knowledge_adoptions, keys text[])
returns setof knowledge_internal.adopted_row
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
-- A mapped date has the same text in each session, whatever its settings are.
set datestyle = 'ISO, YMD'
set timezone = 'UTC'
set standard_conforming_strings = on as $$
declare
  view_name constant text := 'adopted_' || adoption.name;
  mapped record;
begin
  select string_agg(
           format(
             '%1$L, adopted.%1$I%2$s', attribute.attname,
             case attribute.attname when 'metadata' then '::jsonb' else '' end
           ), ', '
         ) filter (where attribute.attname <> all ('{key_1,content,embedding}')) as fields,
         bool_or(attribute.attname = 'embedding') as has_embedding
    into mapped
    from pg_catalog.pg_attribute as attribute
   where attribute.attrelid = format('knowledge_internal.%I', view_name)::regclass
     and attribute.attnum > 0;
  return query execute format(
    $query$
      select given.key, stored.document,
             coalesce((given.fields ->> 'chunk_index')::numeric, 0)::integer, given.content,
             given.metadata,
             public.knowledge_content_hash((stored.document).title, given.content),
             used.embedding,
             case when used.embedding is not null
               then knowledge_internal.embedding_bits(used.embedding) end,
             corpus.model, concat((stored.document).title, given.content) ~ '\S',
             concat_ws(
               ', ',
               case when given.embedding is not null and corpus.model = $1.embedding_model
                         and used.embedding is null then
                 'embedding has no direction (it is zero, or too small)' end,
               case when not given.has_address then
                 'source_url is no address of http or https and no path' end
             )
        from (
          select row.*, coalesce(nullif(row.fields -> 'metadata', 'null'), '{}') as metadata,
                 row.fields ? 'document_key' as is_part,
                 knowledge_internal.is_address(row.fields ->> 'source_url') is not false
                   as has_address
            from (
              select adopted.key_1::text as key, adopted.content::text as content,
                     %1$s as embedding, %2$s(jsonb_build_object(%3$s)) as fields
                from knowledge_internal.%4$I as adopted
               where adopted.key_1 = any ($2::%5$s[])
              offset 0
            ) as row
          offset 0
        ) as given
       cross join lateral (
               select coalesce(
                        knowledge_internal.model_of_collection(
                          coalesce(given.fields ->> 'collection', 'knowledge')
                        ),
                        $1.embedding_model
                      )
               offset 0
             ) as corpus (model)
       cross join lateral (
               select case when corpus.model = $1.embedding_model
                                and (given.embedding operator(extensions.<=>) given.embedding) < 0.5
                        then given.embedding end
               offset 0
             ) as used (embedding)
       cross join lateral (
               select knowledge_internal.merged_document(
                        null,
                        given.fields || jsonb_build_object(
                          'external_key', $1.name || '/' || case when given.is_part
                            then given.fields ->> 'document_key' else given.key end,
                          'source_url', case when given.has_address
                            then given.fields -> 'source_url' end,
                          -- Of a document with several rows, metadata is that of each row.
                          'metadata', case when given.is_part then '{}' else given.metadata end,
                          'source_row', case
                            when given.is_part then jsonb_build_object(
                              'adoption', $1.name, 'table', ($1.source)::text,
                              'document', given.fields ->> 'document_key', 'row', given.key
                            )
                            else knowledge_internal.place_row($1.place_id, given.key) end
                        ),
                        'replace'
                      ) as document
               offset 0
             ) as stored
    $query$,
    case
      when mapped.has_embedding and num_nulls(adoption.embedding_model, adoption.embedding_column)
           = 0 then 'adopted.embedding::extensions.vector'
      else 'null::extensions.vector'
    end,
    -- A row that is stored alone can be the wrong one of many: its error says what is allowed.
    case when cardinality(keys) = 1 then 'knowledge_internal.checked_fields' end,
    mapped.fields, view_name, adoption.key_type
  )
  using adoption, keys;
end
$$;

-- Records why the rows with these keys could not be carried over, or (in_part) not completely. With
-- reason null, it forgets their problems.
create function knowledge_internal.note_adoption_problems(
  adoption public.knowledge_adoptions, keys text[], in_part boolean, reason text
) returns void
language plpgsql volatile security invoker set search_path = pg_catalog, pg_temp as $$
begin
  delete from public.knowledge_adoption_problems as problem
   where problem.adoption_name = adoption.name
     and problem.key = any (keys);
  insert into public.knowledge_adoption_problems (
    adoption_name, key_hash, key, is_carried_over, reason
  )
  select adoption.name, hashtextextended(listed.key, 0), listed.key, in_part,
         left(note_adoption_problems.reason, 500)
    from unnest(keys) as listed (key)
   where note_adoption_problems.reason is not null
      on conflict do nothing;
end
$$;

-- Makes the documents of these keys equal to the rows of the source: stores those that the view
-- has, deletes the others, and returns how many are stored. If a row cannot be stored, the halves
-- of the keys are tried, down to that row: its document is deleted, and adoption_problems has the
-- reason. Deadlocks, serialization failures, timeouts and failures of the server are raised.
create function knowledge_internal.carry_over(adoption public.knowledge_adoptions, keys text[])
returns bigint
language plpgsql volatile security invoker set search_path = pg_catalog, pg_temp
-- For what it calls, too: the plans are made when the tables are small, and used when they are
-- large.
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off as $$
declare
  half constant integer := cardinality(keys) / 2;
  locked_documents uuid[];
  given knowledge_internal.adopted_row[];
  old_keys text[];
  code text;
  problem text;
begin
  if cardinality(keys) = 0 then
    return 0;
  end if;
  begin
    -- Locked before the rows are read: a row that another transaction inserts again, with its
    -- document, is seen after that transaction has ended.
    locked_documents := knowledge_internal.lock_adopted(adoption, keys);
    perform knowledge_internal.note_adoption_problems(adoption, keys, null, null);
    given := array(select mapped from knowledge_internal.adopted_rows(adoption, keys) as mapped);
    -- Embeddings that workers have written into the rows of texts that have changed since are
    -- emptied, so that these wait for new ones.
    old_keys := array(
      select row.key
        from unnest(given) as row
        join public.knowledge_chunks as stored
          on stored.place_id = adoption.place_id and stored.place_key = row.key
       where stored.place_embedded
         and stored.content_hash <> row.content_hash
         and stored.embedding_bits = row.embedding_bits
    );
    if old_keys <> '{}' then
      perform knowledge_internal.embed_place_rows(adoption, old_keys, null, false);
      given := array(select mapped from knowledge_internal.adopted_rows(adoption, keys) as mapped);
    end if;
    if given <> '{}' then
      perform knowledge_internal.store_placed_rows(adoption, given);
      perform knowledge_internal.note_adoption_problems(
                adoption, array[row.key], true, row.left_out || ': carried over without it'
              )
         from unnest(given) as row
        where row.left_out <> '';
    end if;
    perform knowledge_internal.delete_adopted(adoption, keys, locked_documents, given);
    return cardinality(given);
  exception when others then
    get stacked diagnostics code = returned_sqlstate, problem = message_text;
    -- These errors are not about the row, and end the write of the source, too.
    if left(code, 2) in ('25', '40', '53', '57', '58', 'F0', 'XX') or code = '55P03' then
      raise;
    end if;
  end;
  if half > 0 then
    return knowledge_internal.carry_over(adoption, keys[:half])
      + knowledge_internal.carry_over(adoption, keys[half + 1:]);
  end if;
  -- A search must not find the earlier content of the row.
  perform knowledge_internal.delete_adopted(
    adoption, keys, knowledge_internal.lock_adopted(adoption, keys), '{}'
  );
  perform knowledge_internal.note_adoption_problems(adoption, keys, false, problem);
  return 0;
end
$$;

-- Runs after a statement that writes an adopted table, or its parent: carries the changed rows
-- over, or the rows of the documents that have changed, one document at a time. Its argument is the
-- name of the adoption; the transition tables are old_rows and new_rows.
create function knowledge_internal.carry_over_changes() returns trigger
-- definer: who writes the source needs no rights on the corpus.
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  batch_size constant integer := 500; -- rows in memory at a time
  adoption constant public.knowledge_adoptions := knowledge_internal.adoption_named(tg_argv[0]);
  is_source constant boolean := tg_relid = adoption.source;
  changed text;
  keys text[];
begin
  -- An embedding that was made for the row is stored already.
  if current_setting('knowledge_internal.stores_place', true) = adoption.write_token::text then
    return null;
  end if;
  -- Only the owner can create a trigger with this function.
  if not is_source and tg_relid is distinct from adoption.parent then
    raise exception 'a trigger of adoption % is on %', adoption.name, tg_relid::regclass
      using errcode = '55000', hint = 'Drop this trigger.';
  end if;
  if tg_op = 'TRUNCATE' and is_source then
    delete from public.knowledge_documents as document
     where document.source_row ->> 'adoption' = adoption.name;
    delete from public.knowledge_adoption_problems as problem
     where problem.adoption_name = adoption.name;
    return null;
  end if;
  changed := format(
    case tg_op
      when 'INSERT' then 'select written.%1$I from new_rows as written'
      when 'DELETE' then 'select gone.%1$I from old_rows as gone'
      when 'UPDATE' then
        'select coalesce(written.%1$I, gone.%1$I)'
        '  from new_rows as written full join old_rows as gone on written.%1$I = gone.%1$I'
        ' where written.%1$I is null or gone.%1$I is null or %2$s'
      when 'TRUNCATE' then 'select child.%3$I from %4$s as child'
    end,
    case when is_source then adoption.key_column else adoption.parent_columns[2] end,
    knowledge_internal.is_changed_sql(adoption, tg_relid), adoption.parent_columns[1],
    adoption.source
  );
  for keys in execute format(
    'select array_agg(listed.key::text) from (%s) as listed (key, part) group by listed.part',
    case when is_source
      then format(
        'select changed.key, (row_number() over () - 1) / %s from (%s) as changed (key)',
        batch_size, changed
      )
      else format(
        'select child.%I, child.%2$I::text from %3$s as child where child.%2$I in (%4$s)',
        adoption.key_column, adoption.parent_columns[1], adoption.source, changed
      )
    end
  )
  loop
    perform knowledge_internal.carry_over(adoption, keys);
  end loop;
  return null;
end
$$;

-- Carries over the rows with these keys, outside of a write of the source. Returns how many are
-- stored, and how many were left because another transaction holds them. A row is locked against
-- writes, so that no newer version of the document is replaced; waiting for one with others locked
-- could end in a deadlock. waits: wait for it; give one key then. Documents of keys without a row
-- are deleted. Raises 22023 for an unknown adoption.
create function knowledge_internal.carry_over_again(adoption_name text, keys text[], waits boolean)
returns table (rows_stored bigint, rows_left integer)
language plpgsql volatile security invoker set search_path = pg_catalog, pg_temp as $$
declare
  adoption constant public.knowledge_adoptions := knowledge_internal.adoption_named(adoption_name);
  locked_keys text[];
begin
  execute format(
    $query$
      with locked as materialized (
        select source.%2$I as key from %1$s as source where source.%2$I = any ($1::%3$s[])
           for share %4$s
      )
      select array(
        select locked.key::text from locked
        union all
        select given.key
          from unnest($1) as given (key)
         where not exists (select from %1$s as source where source.%2$I = given.key::%3$s)
      )
    $query$,
    adoption.source, adoption.key_column, adoption.key_type,
    case when waits then '' else 'skip locked' end
  )
  into locked_keys
  using keys;
  rows_stored := knowledge_internal.carry_over(adoption, locked_keys);
  rows_left := cardinality(keys) - cardinality(locked_keys);
  return next;
end
$$;

-- The next page_size keys of the view of an adoption, in their order after after_key (null: from
-- the first one); null if none are left. only_missing: only rows without a chunk.
create function knowledge_internal.adoption_keys(
  adoption_name text, after_key text, page_size integer, only_missing boolean
) returns text[]
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  adoption constant public.knowledge_adoptions := knowledge_internal.adoption_named(adoption_name);
  keys text[];
begin
  execute format(
    $query$
      select array_agg(page.key::text order by page.key)
        from (
          select adopted.key_1 as key
            from knowledge_internal.%1$I as adopted
           where ($2 is null or adopted.key_1 > $2::%2$s)
             and (
               not $4
               or not exists (
                    select from public.knowledge_chunks as chunk
                     where chunk.place_id = $1 and chunk.place_key = adopted.key_1::text
                  )
             )
           order by adopted.key_1
           limit $3
        ) as page
    $query$,
    'adopted_' || adoption.name, adoption.key_type
  )
  into keys
  using adoption.place_id, after_key, page_size, only_missing;
  return keys;
end
$$;

-- Compares the rows with these keys with their documents and chunks. Returns the keys of those that
-- are missing or different, with the names of the fields. Raises the error of a row that cannot be
-- read.
create function knowledge_internal.adoption_differences(adoption_name text, keys text[])
returns table (key text, fields text[])
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  adoption constant public.knowledge_adoptions := knowledge_internal.adoption_named(adoption_name);
begin
  return query
  select given.key,
         case when found.is_missing then array['missing'] else differing.fields end
    from knowledge_internal.adopted_rows(adoption, keys) as given
    left join public.knowledge_documents as stored
      on stored.external_key = (given.document).external_key
     -- Not by the index of adoptions.
     and stored.source_row @> jsonb_build_object('adoption', adoption.name)
    left join public.knowledge_chunks as chunk
      on chunk.place_id = adoption.place_id and chunk.place_key = given.key
   cross join lateral (
           select stored.id is null or given.has_text and chunk.id is null
         ) as found (is_missing)
   cross join lateral (
           select array(
             select field.key
               from jsonb_each(
                      to_jsonb(stored) - '{id,content_hash,created_at,updated_at}'::text[]
                    ) as field
               join jsonb_each(to_jsonb(given.document)) as wanted using (key)
              where field.value is distinct from wanted.value
                -- Of several rows, one says the others.
                and (
                  coalesce(stored.source_row ->> 'row', given.key) = given.key
                  or field.key
                       in ('visibility', 'owner_id', 'allowed_groups', 'sensitivity', 'collection')
                )
             union all
             select listed.name
               from (
                      values ('content', given.content is null
                                or chunk.content_hash is distinct from
                                     case when given.has_text then given.content_hash end),
                             (
                               'embedding',
                               case
                                 when given.embedding is null
                                   then adoption.embedding_column is not null
                                     and chunk.embedding is null
                                     and chunk.embedding_bits is not null
                                 else (chunk.embedding_bits, chunk.embedding_model)
                                   is distinct from (given.embedding_bits, given.embedding_model)
                               end
                             ),
                             ('columns of chunks', (
                                chunk.document_id, chunk.chunk_index, chunk.heading,
                                chunk.visibility, chunk.owner_id, chunk.allowed_groups,
                                chunk.sensitivity, chunk.collection, chunk.metadata
                              ) is distinct from (
                                stored.id, given.chunk_index, (given.document).title,
                                stored.visibility, stored.owner_id, stored.allowed_groups,
                                stored.sensitivity, stored.collection, given.metadata
                              ) and chunk.id is not null)
                    ) as listed (name, is_so)
              where listed.is_so
           )
         ) as differing (fields)
   where found.is_missing or differing.fields <> '{}';
end
$$;

-- The documents of an adoption that have a row which does not exist, or is not in the view.
create function knowledge_internal.adoption_left_over(adoption_name text)
returns table (key text, external_key text)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  adoption constant public.knowledge_adoptions := knowledge_internal.adoption_named(adoption_name);
begin
  return query execute format(
    $query$
      select given.key, given.external_key
        from (
          select document.external_key,
                 coalesce(chunk.place_key, document.source_row -> 'key' ->> $1.key_column) as key
            from public.knowledge_documents as document
            left join public.knowledge_chunks as chunk on chunk.document_id = document.id
           where document.source_row ->> 'adoption' = $1.name
        ) as given
       where not exists (
               select from knowledge_internal.%I as adopted where adopted.key_1 = given.key::%s
             )
    $query$,
    'adopted_' || adoption.name, adoption.key_type
  )
  using adoption;
end
$$;

revoke all on all functions in schema knowledge_internal from public;

notify pgrst, 'reload schema';
