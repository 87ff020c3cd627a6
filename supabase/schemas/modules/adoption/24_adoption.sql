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

create table public.knowledge_adoptions (
  name text primary key check (name ~ '^[a-z][a-z0-9_]{0,39}$'),
  source regclass not null,
  key_columns text[] not null check (cardinality(key_columns) = 1),
  key_types text[] not null,
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
  'write_token: '
  'while the module writes chunks or embeddings of the table, the setting '
  'knowledge_internal.stores_place has this value, which no user knows, and the triggers do not '
  'carry such a write over again. Written by adopt_table and follow_table.';

create table public.knowledge_adoption_problems (
  adoption_name text not null references public.knowledge_adoptions (name) on delete cascade,
  key_hash bytea not null,
  key jsonb not null,
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

-- Registers an adoption, or changes it. A migration of `second-brain adopt` calls it, then creates
-- the view, and calls follow_table. The command has checked the table before; raises 22023 for what
-- can hide rows or mix them up, and 23514 for a value that is not allowed.
create function knowledge_internal.adopt_table(
  adoption_name text, source regclass, key_columns text[], embedding_model text default null,
  embedding_column name default null, parent regclass default null,
  parent_columns name[] default null
) returns void
language plpgsql volatile security invoker set search_path = pg_catalog, pg_temp as $$
declare
  foreign_table regclass;
  key_type_names constant text[] := array['int2', 'int4', 'int8', 'uuid', 'text', 'varchar'];
  key_type text;
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
  select pg_catalog.format_type(type.oid, null) into key_type
    from pg_catalog.pg_attribute as attribute
    join pg_catalog.pg_type as type on type.oid = attribute.atttypid
   where attribute.attrelid = source
     and attribute.attname = key_columns[1]
     and attribute.attnum > 0
     and attribute.attnotnull
     and type.typname = any (key_type_names);
  if key_type is null then
    raise exception 'key_columns: % must be a column of % that is not null and has one of the '
                    'types %', coalesce(key_columns[1], 'null'), source,
                    array_to_string(key_type_names, ', ')
      using errcode = '22023', hint = 'Name the column of another unique index (--key).';
  end if;
  insert into public.knowledge_adoptions as stored (
    name, source, key_columns, key_types, embedding_model, place_id, embedding_column, parent,
    parent_columns
  )
  values (
    adoption_name, source, key_columns, array[key_type], embedding_model,
    knowledge_internal.checked_place(adoption_name, source, key_columns), embedding_column, parent,
    parent_columns
  )
      on conflict (name) do update
     set (
           source, key_columns, key_types, embedding_model, embedding_column, parent, parent_columns
         ) = (
           excluded.source, excluded.key_columns, excluded.key_types, excluded.embedding_model,
           excluded.embedding_column, excluded.parent, excluded.parent_columns
         );
end
$$;

-- The columns of the source, or of its parent, that the view of an adoption reads. Null: every
-- column counts, because there is no view, it reads another view, a whole row, or a column that is
-- computed when read.
create function knowledge_internal.mapped_columns(
  adoption public.knowledge_adoptions, relation regclass default null
) returns text[]
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  view_name constant text := format('knowledge_internal.%I', 'adopted_' || adoption.name);
begin
  return (
    select case
             -- A row as a whole is column 0 in the rule of the view, and no dependency.
             when bool_or(
               read.relkind in ('v', 'm') or attribute.attgenerated = 'v'
               or rule.ev_action::text ~ ':varattno 0 '
             ) is not false then null
             else array_agg(attribute.attname::text order by attribute.attnum)
                  filter (where attribute.attnum > 0)
           end
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
       and attribute.attrelid = coalesce(relation, adoption.source)
     where rule.ev_class = to_regclass(view_name)
  );
end
$$;

-- SQL for the columns of a row as a record, of all columns if they are null. relation: an alias of
-- the table. Compare its bytes, because json has no equality.
create function knowledge_internal.mapped_record(columns text[], relation text) returns text
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return coalesce(
    (
      select 'row(' || string_agg(format('%s.%I', relation, listed.name), ', ') || ')'
        from unnest(columns) as listed (name)
    ),
    relation || '.*'
  );
end
$$;

-- The triggers that an adoption needs, on its table and on the parent, each with the statement that
-- creates or replaces it. One fires for each updated row of which a column that the view reads is
-- changed; the others fire once for a statement.
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
  mapped constant text[] := knowledge_internal.mapped_columns(adoption);
  -- A row that changes its partition fires no trigger for updated rows.
  is_gated constant boolean := (
    select class.relkind = 'r' and not class.relispartition and not class.relhassubclass
      from pg_catalog.pg_class as class
     where class.oid = adoption.source
  );
begin
  return query
  select listed.relation, prefix || followed.suffix,
         format(
           'create or replace trigger %I after %s on %s %s execute function '
           'knowledge_internal.%I(%I%s)',
           prefix || followed.suffix, followed.event, listed.relation, followed.clauses,
           listed.function, adoption.name,
           case when listed.is_gated then followed.argument else '' end
         )
    from (
           values (adoption.source, is_gated, 'carry_over_changes'),
                  (adoption.parent, false, 'carry_over_parents')
         ) as listed (relation, is_gated, function)
   cross join (
      values
        ('insert', 'insert', 'referencing new table as new_rows for each statement', ''),
        ('update', 'update',
         'referencing old table as old_rows new table as new_rows for each statement',
         ', gated'),
        ('delete', 'delete', 'referencing old table as old_rows for each statement', ''),
        ('truncate', 'truncate', 'for each statement', ''),
        ('change', 'update',
         format(
           'for each row when (pg_catalog.record_image_ne(%s, %s))',
           knowledge_internal.mapped_record(mapped, 'old'),
           knowledge_internal.mapped_record(mapped, 'new')
         ), '')
    ) as followed (suffix, event, clauses, argument)
   where listed.relation is not null
     and (listed.is_gated or followed.suffix <> 'change');
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
     set order_sql = case when stored.embedding_column is not null
           then knowledge_internal.place_order(stored.source, stored.embedding_column) end
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
  source_name constant text := case when is_there then adoption.source::text
    else 'a dropped table' end;
  lost_columns constant text[] := array(
    select listed.name
      from unnest(adoption.key_columns) as listed (name)
     where not exists (
             select from pg_catalog.pg_attribute as attribute
              where attribute.attrelid = adoption.source and attribute.attname = listed.name
           )
  );
begin
  return query
  select format('the view %s does not exist', view_name) where to_regclass(view_name) is null
  union all
  select format('%s has no column %s, which is in the key', source_name, listed.name)
    from unnest(lost_columns) as listed (name)
  union all
  select format(
           'the trigger %s on %s %s', needed.name, needed.relation,
           case when trigger.oid is null then 'does not exist' else 'is disabled' end
         )
    from knowledge_internal.adoption_triggers(adoption) as needed
    left join pg_catalog.pg_trigger as trigger
      on trigger.tgrelid = needed.relation and trigger.tgname = needed.name
   where is_there and trigger.tgenabled in ('O', 'A') is not true
  union all
  -- A null stands for whole rows. The trigger depends on the columns that it compares.
  select format(
           'the trigger %s on %s does not follow %s, which the view reads',
           needed.name, needed.relation, coalesce(mapped.name, 'whole rows')
         )
    from knowledge_internal.adoption_triggers(adoption) as needed
    join pg_catalog.pg_trigger as trigger
      on trigger.tgrelid = needed.relation and trigger.tgname = needed.name
   cross join unnest(
           coalesce(knowledge_internal.mapped_columns(adoption), array[null::text])
         ) as mapped (name)
    left join pg_catalog.pg_attribute as attribute
      on attribute.attrelid = trigger.tgrelid and attribute.attname = mapped.name
   where right(needed.name, 7) = '_change'
     -- A row as a whole is column 0, as in mapped_columns.
     and trigger.tgqual::text !~ ':varattno 0 '
     and not exists (
           select
             from pg_catalog.pg_depend as dependency
            where dependency.classid = 'pg_catalog.pg_trigger'::regclass
              and dependency.objid = trigger.oid
              and dependency.refobjid = trigger.tgrelid
              and dependency.refobjsubid = attribute.attnum
         );
  if is_there and lost_columns = '{}' and adoption.embedding_column is not null
     and adoption.order_sql is distinct from knowledge_internal.place_order(
           adoption.source, adoption.embedding_column
         )
  then
    return next source_name || ' has another vector index than at its adoption';
  end if;
end
$$;

-- The external_key of the document of a row. key: the text of its key, in an array.
create function knowledge_internal.adopted_key(adoption public.knowledge_adoptions, key jsonb)
returns text
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return adoption.name || '/' || (key ->> 0);
end
$$;

-- The value of source_row for the document of a row: an integer is a JSON number, other values are
-- texts.
create function knowledge_internal.adopted_source_row(
  adoption public.knowledge_adoptions, key jsonb
) returns jsonb
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
-- The name of the table is the same in each session.
set quote_all_identifiers = off as $$
begin
  return jsonb_build_object(
    'adoption', adoption.name,
    'table', adoption.source::text,
    'key', jsonb_build_object(
      adoption.key_columns[1],
      case when knowledge_internal.key_kind(adoption.key_types) = 'bigint'
        then to_jsonb((key ->> 0)::bigint) else key -> 0 end
    ),
    'types', jsonb_build_object(adoption.key_columns[1], adoption.key_types[1])
  );
end
$$;

-- SQL for the key of a row: its column, its value as an array of a text, and the conditions that it
-- equals the key given.key, or follows it. The conditions cast the given key to the type of the
-- column, so that the index of the source is used. relation: an alias of the view of the adoption
-- (is_view), or of the source.
create function knowledge_internal.key_sql(
  adoption public.knowledge_adoptions, relation text, is_view boolean,
  out columns text, out value text, out is_given text, out is_after text
)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  columns := case when is_view then relation || '.key_1'
    else format('%s.%I', relation, adoption.key_columns[1]) end;
  value := format('jsonb_build_array(%s::text)', columns);
  is_given := format('%s = (given.key ->> 0)::%s', columns, adoption.key_types[1]);
  is_after := format('%s > (given.key ->> 0)::%s', columns, adoption.key_types[1]);
end
$$;

-- A row of an adopted table as it is to be stored. row_key: the texts of its key; key: the first of
-- them. document: its document; is_first: the fields of the document are those of this row.
-- embedding: null for one that is not used. has_text: false for a row without text, which has no
-- chunk. left_out: which value of the source is not stored, and why. embedding_model: the model of
-- the embedding, or of embeddings that are reused.
create type knowledge_internal.adopted_row as (
  row_key jsonb, key text, document public.knowledge_documents, is_first boolean,
  chunk_index integer, content text, metadata jsonb, content_hash text,
  embedding extensions.vector, embedding_bits bit varying, embedding_model text, has_text boolean,
  left_out text
);

-- The same fields of a document without its key and its address, checked by check_document.
create function knowledge_internal.checked_fields(fields jsonb) returns jsonb
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  perform knowledge_internal.check_document(
    fields - 'source_url' || '{"external_key": "checked elsewhere"}'
  );
  return fields;
end
$$;

-- The rows of the view of an adoption that have these keys (an array of arrays of texts); for one
-- key, raises the errors of check_document.
create function knowledge_internal.adopted_rows(adoption public.knowledge_adoptions, keys jsonb)
returns setof knowledge_internal.adopted_row
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
-- A key and a mapped date have the same text in each session, whatever its settings are.
set datestyle = 'ISO, YMD'
set timezone = 'UTC'
set standard_conforming_strings = on as $$
declare
  view_name constant text := 'adopted_' || adoption.name;
  columns constant text[] := array(
    select attribute.attname::text
      from pg_catalog.pg_attribute as attribute
     where attribute.attrelid = format('knowledge_internal.%I', view_name)::regclass
       and attribute.attnum > 0
  );
  key_sql constant record := knowledge_internal.key_sql(adoption, 'adopted', true);
  fields constant text[] := array(
    select name from unnest(columns) as listed (name)
     where name <> all ('{content,embedding,document_key,chunk_index}') and name !~ '^key_\d+$'
  );
  has_documents constant boolean := 'document_key' = any (columns);
begin
  return query execute format(
    $query$
      select given.row_key, given.row_key ->> 0, stored.document,
             row_number() over (
               partition by (stored.document).external_key order by given.chunk_index, given.row_key
             ) = 1,
             given.chunk_index, given.content, given.metadata,
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
          select %1$s as row_key, %2$s as external_key, %3$s as chunk_index,
                 adopted.content::text as content, %4$s as embedding,
                 coalesce(%5$s, '{}') as metadata, (%6$s) is not false as has_address,
                 %7$s as fields
            from jsonb_array_elements($2) as given (key)
            join knowledge_internal.%8$I as adopted on %9$s
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
                          'external_key', given.external_key,
                          'source_url', case when given.has_address
                            then given.fields -> 'source_url' end,
                          'metadata', %10$s, 'source_row', %11$s
                        ),
                        'replace'
                      ) as document
               offset 0
             ) as stored
    $query$,
    key_sql.value,
    case when has_documents then '$1.name || ''/'' || adopted.document_key::text'
      else format('knowledge_internal.adopted_key($1, %s)', key_sql.value) end,
    case when 'chunk_index' = any (columns) then 'coalesce(adopted.chunk_index, 0)::integer'
      else '0' end,
    case
      when adoption.embedding_model is null or not 'embedding' = any (columns)
        then 'null::extensions.vector'
      when adoption.embedding_column is null then 'null::extensions.vector'
      else 'adopted.embedding::extensions.vector'
    end,
    case when 'metadata' = any (fields) then 'adopted.metadata::jsonb' else 'null::jsonb' end,
    case when 'source_url' = any (fields)
      then 'knowledge_internal.is_address(adopted.source_url)' else 'true' end,
    -- A row that is stored alone can be the wrong one of many: its error says what is allowed.
    case when jsonb_array_length(keys) = 1 then 'knowledge_internal.checked_fields'
      else '' end || '(jsonb_build_object('
      || (
        select string_agg(format('%1$L, adopted.%1$I', name), ', ')
          from unnest(fields) as listed (name)
      )
      || '))',
    view_name, key_sql.is_given,
    -- Of a document with several rows, metadata is that of each row.
    case when has_documents then '''{}''::jsonb' else 'given.metadata' end,
    case when has_documents then
      'jsonb_build_object(''adoption'', $1.name, ''table'', ($1.source)::text,'
      ' ''document'', substr(given.external_key, length($1.name) + 2))'
      else 'knowledge_internal.adopted_source_row($1, given.row_key)' end
  )
  using adoption, keys;
end
$$;

-- Raises 22023 for a row without content, for a key that the view has twice, and for one that
-- another document has.
create function knowledge_internal.check_adopted_rows(
  adoption public.knowledge_adoptions, given knowledge_internal.adopted_row[]
) returns void
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
-- As in store_placed_rows.
set enable_seqscan = off as $$
declare
  wrong text;
begin
  if exists (select from unnest(given) as row where row.content is null) then
    raise exception 'content is null' using errcode = '22023';
  end if;
  select knowledge_internal.adopted_key(adoption, row.row_key) into wrong
    from unnest(given) as row group by row.row_key having count(*) > 1 limit 1;
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
end
$$;

-- Records why the rows with these keys could not be carried over, or (in_part) not completely. With
-- reason null, it forgets their problems.
create function knowledge_internal.note_adoption_problems(
  adoption public.knowledge_adoptions, keys jsonb, in_part boolean, reason text
) returns void
language plpgsql volatile security invoker set search_path = pg_catalog, pg_temp as $$
declare
  hashes constant bytea[] := array(
    select sha256(convert_to(knowledge_internal.adopted_key(adoption, listed.key), 'UTF8'))
      from jsonb_array_elements(keys) with ordinality as listed (key, place)
     order by listed.place
  );
begin
  if reason is null then
    delete from public.knowledge_adoption_problems as problem
     where problem.adoption_name = adoption.name
       and problem.key_hash = any (hashes);
    return;
  end if;
  insert into public.knowledge_adoption_problems as stored (
    adoption_name, key_hash, key, is_carried_over, reason
  )
  select adoption.name, listed.hash, keys -> (listed.place - 1)::integer, in_part,
         left(note_adoption_problems.reason, 500)
    from unnest(hashes) with ordinality as listed (hash, place)
      on conflict (adoption_name, key_hash) do update
     set is_carried_over = excluded.is_carried_over,
         reason = excluded.reason,
         recorded_at = now();
end
$$;

-- Makes the documents of these keys (an array of arrays of texts) equal to the rows of the source:
-- stores those that the view has, deletes the others, and returns how many are stored. If a row
-- cannot be stored, the halves of the keys are tried, down to that row: its document is deleted,
-- and adoption_problems has the reason. Deadlocks, serialization failures, timeouts and failures of
-- the server are raised.
create function knowledge_internal.carry_over(adoption public.knowledge_adoptions, keys jsonb)
returns bigint
language plpgsql volatile security invoker set search_path = pg_catalog, pg_temp as $$
declare
  half constant integer := jsonb_array_length(keys) / 2;
  locked_documents uuid[];
  given knowledge_internal.adopted_row[];
  code text;
  problem text;
begin
  if jsonb_array_length(keys) = 0 then
    return 0;
  end if;
  begin
    -- Locked before the rows are read: a row that another transaction inserts again, with its
    -- document, is seen after that transaction has ended.
    locked_documents := knowledge_internal.lock_adopted(adoption, keys);
    perform knowledge_internal.note_adoption_problems(adoption, keys, null, null);
    given := array(select mapped from knowledge_internal.adopted_rows(adoption, keys) as mapped);
    if given <> '{}'
       and knowledge_internal.empty_old_embeddings(adoption, keys, given) <> '{}'
    then
      given := array(select mapped from knowledge_internal.adopted_rows(adoption, keys) as mapped);
    end if;
    if given <> '{}' then
      perform knowledge_internal.check_adopted_rows(adoption, given);
      perform knowledge_internal.store_placed_rows(adoption, keys, given);
      perform knowledge_internal.note_adoption_problems(
                adoption, jsonb_build_array(row.row_key), true,
                row.left_out || ': carried over without it'
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
    return (
      select sum(knowledge_internal.carry_over(adoption, part.keys))
        from (
          select jsonb_agg(listed.key order by listed.place) as keys
            from jsonb_array_elements(keys) with ordinality as listed (key, place)
           group by listed.place > half
        ) as part
    );
  end if;
  -- A search must not find the earlier content of the row.
  perform knowledge_internal.delete_adopted(
    adoption, keys, knowledge_internal.lock_adopted(adoption, keys), '{}'
  );
  perform knowledge_internal.note_adoption_problems(adoption, keys, false, problem);
  return 0;
end
$$;

-- Runs after a statement that writes an adopted table: carries the changed rows over, by their
-- keys. Its arguments are the name of the adoption, and gated if the trigger for
-- changed rows decides whether an update has any. The transition tables are old_rows and new_rows.
create function knowledge_internal.carry_over_changes() returns trigger
-- definer: who writes the source needs no rights on the corpus.
language plpgsql security definer set search_path = pg_catalog, pg_temp
-- The texts of keys, as in adopted_rows.
set datestyle = 'ISO, YMD'
set timezone = 'UTC' as $$
declare
  batch_size constant integer := 500; -- rows in memory at a time
  -- A trigger of the table can write it again, one level deeper, before this statement ends.
  changed constant text := 'knowledge_internal.carry_over_changes'
    || format('_%s_%s', tg_argv[0], pg_trigger_depth());
  adoption public.knowledge_adoptions;
  source_key record;
  mapped text[];
  written_rows text;
  gone_rows text;
  listed text;
  keys jsonb;
begin
  -- An embedding that was made for the row is stored already.
  if length(current_setting('knowledge_internal.stores_place', true)) > 0 and exists (
    select from public.knowledge_adoptions as stored
     where stored.name = tg_argv[0]
       and stored.write_token::text = current_setting('knowledge_internal.stores_place', true)
  ) then
    return null;
  end if;
  if tg_level = 'ROW' then
    perform set_config(changed, 'yes', true);
    return null;
  end if;
  if tg_op = 'UPDATE' and tg_argv[1] = 'gated' then
    if current_setting(changed, true) = 'yes' then
      perform set_config(changed, '', true);
    -- The rows of a child table fire no trigger of its parent.
    elsif not exists (
      select from pg_catalog.pg_inherits as child where child.inhparent = tg_relid
    ) then
      return null;
    end if;
  end if;
  adoption := knowledge_internal.adoption_named(tg_argv[0]);
  -- Only the owner can create a trigger with this function; it must be on the adopted table.
  if tg_relid <> adoption.source then
    raise exception 'a trigger of adoption % is on %', adoption.name, tg_relid::regclass
      using errcode = '55000', hint = 'Drop this trigger.';
  end if;
  if tg_op = 'TRUNCATE' then
    delete from public.knowledge_documents as document
     where document.source_row ->> 'adoption' = adoption.name;
    delete from public.knowledge_adoption_problems as problem
     where problem.adoption_name = adoption.name;
    return null;
  end if;
  source_key := knowledge_internal.key_sql(adoption, 'written', false);
  written_rows := format('select %s from new_rows as written', source_key.value);
  gone_rows := format('select %s from old_rows as written', source_key.value);
  if tg_op = 'UPDATE' then
    mapped := knowledge_internal.mapped_columns(adoption);
    written_rows := written_rows || format(
      ' where not exists (select from old_rows as earlier where (%s) = (%s)'
      ' and pg_catalog.record_image_eq(%s, %s))',
      source_key.columns, (knowledge_internal.key_sql(adoption, 'earlier', false)).columns,
      knowledge_internal.mapped_record(mapped, 'written'),
      knowledge_internal.mapped_record(mapped, 'earlier')
    );
    gone_rows := gone_rows || format(
      ' where not exists (select from new_rows as later where (%s) = (%s))',
      source_key.columns, (knowledge_internal.key_sql(adoption, 'later', false)).columns
    );
  end if;
  listed := case tg_op
    when 'INSERT' then written_rows
    when 'DELETE' then gone_rows
    else written_rows || ' union all ' || gone_rows
  end;
  for keys in execute format(
    'select jsonb_agg(numbered.key) from ('
    '  select changed.key, (row_number() over () - 1) / %s as batch from (%s) as changed (key)'
    ') as numbered group by numbered.batch',
    batch_size, listed
  )
  loop
    perform knowledge_internal.carry_over(adoption, keys);
  end loop;
  return null;
end
$$;

-- Locks the rows with these keys (an array of arrays of texts) against writes, and returns the keys
-- that can be carried over. The lock prevents a write between reading a row and storing it, so that
-- no newer version of the document is replaced. A row that a writer holds is left out: waiting for
-- it with other rows locked could end in a deadlock. waits: wait for it; give one key then. Keys
-- without a row are kept: their documents are deleted.
create function knowledge_internal.lock_source_rows(
  adoption public.knowledge_adoptions, keys jsonb, waits boolean
) returns jsonb
language plpgsql volatile security invoker set search_path = pg_catalog, pg_temp as $$
declare
  locked_keys jsonb;
begin
  execute format(
    $query$
      with given as materialized (select * from jsonb_array_elements($1) as given (key)),
      locked as materialized (
        select given.key from given join %1$s as source on %2$s for share of source %3$s
      )
      select coalesce(jsonb_agg(listed.key), '[]')
        from (
          select locked.key from locked
          union all
          select given.key from given where not exists (select from %1$s as source where %2$s)
        ) as listed
    $query$,
    adoption.source, (knowledge_internal.key_sql(adoption, 'source', false)).is_given,
    case when waits then '' else 'skip locked' end
  )
  into locked_keys
  using keys;
  return locked_keys;
end
$$;

-- Carries over the rows with these keys, outside of a write of the source. Returns how many are
-- stored, and how many were left because another transaction holds them (see lock_source_rows).
-- Raises 22023 for an unknown adoption.
create function knowledge_internal.carry_over_again(adoption_name text, keys jsonb, waits boolean)
returns table (rows_stored bigint, rows_left integer)
language plpgsql volatile security invoker set search_path = pg_catalog, pg_temp
-- The texts of keys, as in adopted_rows.
set datestyle = 'ISO, YMD'
set timezone = 'UTC' as $$
declare
  adoption constant public.knowledge_adoptions := knowledge_internal.adoption_named(adoption_name);
  locked_keys constant jsonb := knowledge_internal.lock_source_rows(adoption, keys, waits);
begin
  rows_stored := knowledge_internal.carry_over(adoption, locked_keys);
  rows_left := jsonb_array_length(keys) - jsonb_array_length(locked_keys);
  return next;
end
$$;

-- The next page_size keys of the view of an adoption, in their order after after_key (null: from
-- the first one); null if none are left. only_missing: only rows without a document.
create function knowledge_internal.adoption_keys(
  adoption_name text, after_key jsonb, page_size integer, only_missing boolean
) returns jsonb
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
-- The texts of keys, as in adopted_rows.
set datestyle = 'ISO, YMD'
set timezone = 'UTC' as $$
declare
  adoption constant public.knowledge_adoptions := knowledge_internal.adoption_named(adoption_name);
  key_sql constant record := knowledge_internal.key_sql(adoption, 'adopted', true);
  keys jsonb;
begin
  execute format(
    $query$
      select jsonb_agg(page.key order by page.place)
        from (
          select %1$s as key, row_number() over (order by %2$s) as place
            from knowledge_internal.%3$I as adopted
           cross join (select $2) as given (key)
           where %4$s
             and (
               not $4
               or not exists (%5$s)
             )
           order by %2$s
           limit $3
        ) as page
    $query$,
    key_sql.value, key_sql.columns, 'adopted_' || adoption.name,
    case when after_key is null then 'true' else key_sql.is_after end,
    format(
      'select from public.knowledge_chunks as chunk'
      ' where chunk.place_id = $1.place_id and chunk.place_%s = adopted.key_1',
      knowledge_internal.key_kind(adoption.key_types)
    )
  )
  into keys
  using adoption, after_key, page_size, only_missing;
  return keys;
end
$$;

-- Compares the rows with these keys with their documents and chunks. Returns the keys of those that
-- are missing or different, with the names of the fields. Raises the error of a row that cannot be
-- read.
create function knowledge_internal.adoption_differences(adoption_name text, keys jsonb)
returns table (key jsonb, fields text[])
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  adoption constant public.knowledge_adoptions := knowledge_internal.adoption_named(adoption_name);
begin
  return query
  select given.row_key,
         case when found.is_missing then array['missing'] else differing.fields end
    from knowledge_internal.adopted_rows(adoption, keys) as given
    left join public.knowledge_documents as parent
      on parent.external_key = (given.document).external_key
     and parent.source_row @> jsonb_build_object('adoption', adoption.name)
    left join knowledge_internal.placed_chunks(adoption, keys) as placed
      on placed.key = given.key
    left join public.knowledge_chunks as chunk on chunk.id = placed.id
   cross join lateral (
           select parent.id is null or given.has_text and chunk.id is null
         ) as found (is_missing)
   cross join lateral (
           select array(
             select field.key
               from jsonb_each(
                      to_jsonb(parent) - '{id,content_hash,created_at,updated_at}'::text[]
                    ) as field
               join jsonb_each(to_jsonb(given.document)) as wanted using (key)
              where field.value is distinct from wanted.value
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
                                     and not placed.has_embedding
                                     and chunk.embedding_bits is not null
                                 else (chunk.embedding_bits, chunk.embedding_model)
                                   is distinct from (given.embedding_bits, given.embedding_model)
                               end
                             ),
                             ('columns of chunks', (
                                chunk.document_id, chunk.chunk_index, chunk.heading,
                                chunk.knowledge_type, chunk.source_id, chunk.source_origin,
                                chunk.language, chunk.document_date, chunk.owner_id,
                                chunk.visibility, chunk.allowed_groups, chunk.sensitivity,
                                chunk.collection, chunk.metadata
                              ) is distinct from (
                                parent.id, given.chunk_index, parent.title, parent.knowledge_type,
                                parent.source_id, parent.source_origin, parent.language,
                                parent.document_date, parent.owner_id, parent.visibility,
                                parent.allowed_groups, parent.sensitivity, parent.collection,
                                given.metadata
                              ) and chunk.id is not null)
                    ) as listed (name, is_so)
              where listed.is_so
           )
         ) as differing (fields)
   where found.is_missing or differing.fields <> '{}';
end
$$;

-- The documents of an adoption whose row does not exist, or is not in the view.
create function knowledge_internal.adoption_left_over(adoption_name text)
returns table (key jsonb, external_key text)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
-- The texts of keys, as in adopted_rows.
set datestyle = 'ISO, YMD'
set timezone = 'UTC' as $$
declare
  adoption constant public.knowledge_adoptions := knowledge_internal.adoption_named(adoption_name);
begin
  return query execute format(
    $query$
      select given.key, given.external_key
        from (
          select document.external_key,
                 (
                   select jsonb_agg(
                            document.source_row -> 'key' ->> listed.name order by listed.place
                          )
                     from unnest($1.key_columns) with ordinality as listed (name, place)
                 ) as key
            from public.knowledge_documents as document
           where document.source_row ->> 'adoption' = $1.name
             and document.source_row ? 'key'
          union all
          select document.external_key,
                 jsonb_build_array(
                   coalesce(chunk.place_bigint::text, chunk.place_uuid::text, chunk.place_text)
                 )
            from public.knowledge_chunks as chunk
            join public.knowledge_documents as document on document.id = chunk.document_id
           where chunk.place_id = $1.place_id
             and document.source_row ? 'document'
        ) as given
       where not exists (select from knowledge_internal.%I as adopted where %s)
    $query$,
    'adopted_' || adoption.name,
    (knowledge_internal.key_sql(adoption, 'adopted', true)).is_given
  )
  using adoption;
end
$$;

revoke all on all functions in schema knowledge_internal from public;

notify pgrst, 'reload schema';
