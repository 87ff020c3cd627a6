-- 001_documents: sources, documents and their chunks, and who may read them.
-- Adds: extension vector (if it is missing), schema knowledge_internal, tables knowledge_types,
-- knowledge_source_origins, knowledge_sources, knowledge_documents and knowledge_chunks, their
-- policies and grants, the indexes of the chunks and the view that searches read. Locks nothing
-- that exists.
-- Written from supabase/schemas/core/01_documents.sql by `make baseline`: edit that file.

-- This is the only statement with `if not exists`: a Supabase project may have the extension
-- already, with data in its types. The block below checks its schema and version.
create extension if not exists vector with schema extensions;

do $$
declare
  installed record;
begin
  select extension.extversion as version, namespace.nspname as schema
    into strict installed
    from pg_catalog.pg_extension as extension
    join pg_catalog.pg_namespace as namespace on namespace.oid = extension.extnamespace
   where extension.extname = 'vector';

  if installed.schema <> 'extensions' then
    raise exception 'pgvector is installed in schema %, it must be in schema extensions',
                    installed.schema
      using errcode = 'object_not_in_prerequisite_state',
            hint = 'Write these files for that schema: second-brain init --vector-schema '
                   || installed.schema;
  end if;

  if (
    string_to_array(substring(installed.version from '^\d+\.\d+'), '.')::int[] >= array[0, 8]
  ) is not true then
    raise exception 'pgvector is %, hybrid search needs 0.8 or later (iterative index scans)',
                    installed.version
      using errcode = 'object_not_in_prerequisite_state',
            hint = 'Upgrade Postgres in the Supabase dashboard, '
                   'or run: alter extension vector update;';
  end if;
end
$$;

create schema knowledge_internal;

comment on schema knowledge_internal is
  'Internal objects of hybrid search. PostgREST does not expose this schema, and only its owner '
  'may use it.';

revoke all on schema knowledge_internal from public, anon, authenticated, service_role;

create table public.knowledge_types (
  name text primary key check (length(name) between 1 and 60),
  created_at timestamptz not null default now()
);

comment on table public.knowledge_types is
  'The values of knowledge_type. Insert your own. A type in use cannot be deleted.';

create table public.knowledge_source_origins (
  name text primary key check (length(name) between 1 and 60),
  created_at timestamptz not null default now()
);

comment on table public.knowledge_source_origins is
  'The values of source_origin, and of origin in knowledge_sources. Insert your own. An origin in '
  'use cannot be deleted.';

insert into public.knowledge_types (name)
values ('note'), ('document'), ('decision'), ('conversation'), ('task'), ('transcript');

insert into public.knowledge_source_origins (name)
values ('notion'), ('obsidian'), ('email'), ('manual'), ('youtube'), ('web'), ('zoom'), ('json'),
       ('text'), ('other');

-- The signed-in user, which the policies compare with owner_id; null if nobody is signed in.
create function knowledge_internal.current_viewer() returns uuid
language plpgsql stable parallel safe security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return auth.uid();
end
$$;

-- Groups, each once and in order; null for an empty list. Raises 22023 for more than `most` groups
-- (a viewer may have 1,000), and for one that is null, empty or too long.
create function knowledge_internal.sorted_groups(
  argument text, given text[], most integer default 100
) returns text[]
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
as $$
declare
  longest constant integer := 200; -- characters
begin
  if given <> '{}' and not (
    array_ndims(given) = 1
    and cardinality(given) <= most
    and array_position(given, null) is null
    and not exists (
          select from unnest(given) as listed (name) where length(name) not between 1 and longest
        )
  ) then
    raise exception '% must be at most % groups, each a text of 1 to % characters, not %',
                    argument, most, longest, left(given::text, 100)
      using errcode = '22023';
  end if;
  return nullif(
    array(select distinct name collate "C" from unnest(given) as listed (name) order by 1), '{}'
  );
end
$$;

-- Searches call it with the rights of the owner of these functions, so that the function which a
-- project puts here can read a table of members. A function that is already here is the project's,
-- but not if somebody else made it: it would run with these rights, too.
do $$
begin
  if to_regprocedure('public.knowledge_viewer_groups()') is null then
    create function public.knowledge_viewer_groups() returns text[]
    language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
    as $body$
    begin
      return '{}';
    end
    $body$;
    comment on function public.knowledge_viewer_groups() is
      'The groups of the signed-in user, compared with allowed_groups: none, until you replace it '
      '(create or replace function). Upgrades keep yours.';
    revoke all on function public.knowledge_viewer_groups()
      from public, anon, authenticated, service_role;
  elsif not exists (
    select
      from pg_catalog.pg_proc as function
      join pg_catalog.pg_roles as role on role.oid = function.proowner
     where function.oid = to_regprocedure('public.knowledge_viewer_groups()')
       and (role.rolname = current_user or role.rolsuper)
       and function.prorettype = 'text[]'::regtype
       and not function.proretset
  ) then
    raise exception 'public.knowledge_viewer_groups() is of another role, or does not return text[]'
      using errcode = '42723',
            hint = 'Searches call it with your rights: drop it, or create it as this role.';
  end if;
end
$$;

-- The groups of the signed-in user, which the policies and the functions for users compare with
-- allowed_groups. Raises the errors of sorted_groups.
create function knowledge_internal.current_viewer_groups() returns text[]
-- definer: a signed-in user may call neither the project's function nor what it reads.
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
  groups constant text[] := coalesce(public.knowledge_viewer_groups(), '{}');
begin
  perform knowledge_internal.sorted_groups(
    'the result of knowledge_viewer_groups()', groups, most => 1000
  );
  return groups;
end
$$;

-- The same metadata. Raises 22023 for metadata that clients cannot read: it is nested too deeply,
-- or has a number that is too large.
create function knowledge_internal.checked_metadata(argument text, metadata jsonb) returns jsonb
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  -- The limits are those of common clients: 50 levels, and numbers in the range of float8.
  problem constant text := case
    when jsonb_path_exists(metadata, 'strict $.**{51 to last}') then 'has more than 50 levels'
    when jsonb_path_exists(metadata, 'strict $.** ? (@ > 1.7e308 || @ < -1.7e308)') then
      'has a number beyond 1.7e308'
  end;
begin
  if problem is not null then
    raise exception '% %', argument, problem
      using errcode = '22023',
            hint = 'Nest metadata at most 50 levels deep, and store a larger number as a text.';
  end if;
  return metadata;
end
$$;

-- Whether a citation can lead there: an address of http or https, a path of Windows, or a text
-- without a scheme, such as a path. Browsers ignore control characters and read \ as /, so that
-- ' javascript:' and '/\host' would be addresses, too.
create function knowledge_internal.is_address(address text) returns boolean
language sql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
  select address !~ '[\x01-\x1f\x7f-\x9f]'
         and address ~* '^(https?://[^/?#\\ ]|[a-z]:[/\\]|(?![/\\]{2})[^ :/?#][^:/?#]*([/?#]|$)'
                       '|[/?#](?![/\\])|$)'
$$;

-- The same address. Raises 22023 for one of is_address.
create function knowledge_internal.checked_address(argument text, address text) returns text
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  if not knowledge_internal.is_address(address) then
    raise exception '% must be an address of http or https, or a path, not %',
                    argument, left(address, 100)
      using errcode = '22023', hint = 'Answers link to it. Put other addresses into metadata.';
  end if;
  return address;
end
$$;

-- Runs before a document is written: sorts its groups and checks its metadata and its address.
create function knowledge_internal.complete_document() returns trigger
-- definer: a role that may write documents has no rights on the internal functions.
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  new.allowed_groups := knowledge_internal.sorted_groups('allowed_groups', new.allowed_groups);
  new.metadata := knowledge_internal.checked_metadata('metadata', new.metadata);
  new.source_url := knowledge_internal.checked_address('source_url', new.source_url);
  return new;
end
$$;

-- The signed-in user, for a function that users call; caller is its name for the message. Raises
-- 42501 if nobody is signed in, or if the claim sub of the token is not a UUID.
create function knowledge_internal.signed_in_viewer(caller text) returns uuid
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  viewer uuid;
begin
  begin
    viewer := knowledge_internal.current_viewer();
  exception when invalid_text_representation then
    raise exception '% needs a signed-in user with a UUID: the claim sub of the token is not one',
                    caller
      using errcode = '42501',
            hint = 'Owners are UUIDs. With tokens of another issuer, search from a backend that '
                   'maps its users to UUIDs and gives viewer_id.';
  end;
  -- Without a viewer a function would read the rows of every user.
  if viewer is null then
    raise exception '% needs a signed-in user, there is none', caller
      using errcode = '42501', hint = 'Send the user''s own access token.';
  end if;
  return viewer;
end
$$;

-- Raises 42501 for a caller without the rights of service_role or of the owner where visitors or
-- signed-in users may execute a function of schema public that is for backends: a dump that was
-- restored without its revokes opens it.
create function knowledge_internal.check_caller(function_name text) returns void
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  -- An install in another schema replaces the name of this table, and so the schema.
  checked constant regproc :=
    replace('public.knowledge_types', 'knowledge_types', function_name);
  -- current_user is the owner of the security definer function that calls this one.
  caller constant name := coalesce(nullif(current_setting('role'), 'none'), session_user);
begin
  -- Not in a trigger: whoever may write a row may do what its triggers do.
  if pg_trigger_depth() = 0 and (
    has_function_privilege('anon', checked, 'execute')
    or has_function_privilege('authenticated', checked, 'execute')
  ) and not (
    pg_has_role(caller, 'service_role', 'usage') or pg_has_role(caller, current_user, 'usage')
  ) then
    raise exception '% is for backends, but everybody may execute it', function_name
      using errcode = '42501', hint = format(
        'As its owner: revoke execute on function %s from public, anon, authenticated. '
        'second-brain doctor names all such grants.', checked
      );
  end if;
end
$$;

-- Raises 42501 for a caller who may not execute a function of schema public, in the internal
-- function that it calls: a role with usage of the internal schema could call this one directly.
create function knowledge_internal.check_granted(function_name text) returns void
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  -- As in check_caller.
  checked constant regproc :=
    replace('public.knowledge_types', 'knowledge_types', function_name);
  caller constant name := coalesce(nullif(current_setting('role'), 'none'), session_user);
begin
  if not has_function_privilege(caller, checked, 'execute') then
    raise exception 'the role % may not execute %', caller, function_name using errcode = '42501';
  end if;
end
$$;

create table public.knowledge_sources (
  id uuid primary key default gen_random_uuid(),
  name text not null unique,
  origin text not null default 'manual' references public.knowledge_source_origins (name),
  config jsonb not null default '{}' check (jsonb_typeof(config) = 'object'),
  created_at timestamptz not null default now()
);

comment on table public.knowledge_sources is
  'A place that documents are read from. Only service_role can read this table.';
comment on column public.knowledge_sources.config is
  'Connection settings of the source; may contain secrets.';

create table public.knowledge_documents (
  id uuid primary key default gen_random_uuid(),
  external_key text not null unique check (octet_length(external_key) between 1 and 2000),
  title text,
  knowledge_type text not null default 'document' references public.knowledge_types (name),
  source_id uuid references public.knowledge_sources (id) on delete set null,
  source_url text,
  source_origin text not null default 'manual' references public.knowledge_source_origins (name),
  author text,
  document_date date check (document_date between '0001-01-01' and '9999-12-31'),
  owner_id uuid,
  visibility text not null default 'private' check (visibility in ('private', 'public')),
  allowed_groups text[],
  sensitivity text,
  language text not null default 'english' check (length(language) between 1 and 60),
  collection text not null default 'knowledge' check (length(collection) between 1 and 200),
  metadata jsonb not null default '{}' check (jsonb_typeof(metadata) = 'object'),
  content_hash text,
  source_row jsonb check (jsonb_typeof(source_row) = 'object'),
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now()
);

comment on table public.knowledge_documents is
  'One document of a source. Written by upsert_knowledge_document, which matches on external_key.';
comment on column public.knowledge_documents.external_key is
  'Your identifier of the document: a path, a URL, an id.';
comment on column public.knowledge_documents.source_url is
  'Where answers link to: an address of http or https, or a path.';
comment on column public.knowledge_documents.document_date is
  'The date stated in the document, not the date of its import.';
comment on column public.knowledge_documents.owner_id is
  'The user that owns the document; null: nobody.';
comment on column public.knowledge_documents.allowed_groups is
  'The groups whose members can see the document, beside its owner; null: none. At most 100.';
comment on column public.knowledge_documents.language is
  'Text search configuration of the content (english, german, ... or an ISO 639-1 code); '
  'an unknown value means simple.';
comment on column public.knowledge_documents.source_row is
  'The row of an adopted table that the document is made of; null for other documents.';

create trigger complete_document
  before insert or update of metadata, allowed_groups, source_url on public.knowledge_documents
  for each row
  when (new.metadata <> '{}' or new.allowed_groups is not null or new.source_url is not null)
  execute function knowledge_internal.complete_document();

create table public.knowledge_chunks (
  -- What a search reads of thousands of rows comes first: Postgres reads the columns of a row in
  -- their order, up to the last one that is needed.
  id uuid primary key default gen_random_uuid(),
  document_id uuid references public.knowledge_documents (id) on delete cascade,
  status text not null default 'active'
    check (status in ('active', 'superseded', 'archived', 'deleted')),
  collection text not null check (length(collection) between 1 and 200),
  knowledge_type text not null default 'document' references public.knowledge_types (name),
  language text not null default 'english' check (length(language) between 1 and 60),
  document_date date check (document_date between '0001-01-01' and '9999-12-31'),
  owner_id uuid,
  visibility text not null default 'private' check (visibility in ('private', 'public')),
  allowed_groups text[],
  sensitivity text,
  text_length integer not null,
  content_words integer not null default 0,
  distinct_words integer not null default 0,
  content_tsv tsvector not null,
  embedding extensions.vector(1024)
    constraint knowledge_chunks_embedding_not_zero
    check ((embedding operator(extensions.<=>) embedding) < 0.5),
  embedding_bits bit varying,
  bm25 extensions.sparsevec(536870912),
  heading text,
  content text not null,
  embedding_model text,
  chunk_index integer check (chunk_index >= 0),
  source_id uuid references public.knowledge_sources (id) on delete set null,
  source_origin text not null default 'manual' references public.knowledge_source_origins (name),
  metadata jsonb not null default '{}' check (jsonb_typeof(metadata) = 'object'),
  content_hash text not null,
  version integer not null default 1 check (version >= 1),
  field_stamp integer,
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now()
);

comment on table public.knowledge_chunks is
  'A passage of a document. Searches return only chunks with status active, and a change of the '
  'document is copied only to these. The database sets text_length, content_words, '
  'distinct_words, content_tsv, embedding_bits, bm25, content_hash and field_stamp.';
comment on column public.knowledge_chunks.heading is
  'Title and section path; searched together with content.';
-- A cosine distance of a zero vector is NaN, which passes every threshold.
comment on column public.knowledge_chunks.embedding is
  'Null until the chunk is embedded: until then only the text leg finds it. Not a zero vector.';
comment on column public.knowledge_chunks.allowed_groups is
  'The groups whose members can see the chunk, beside its owner; null: none.';
comment on column public.knowledge_chunks.metadata is
  'The keys of the document, overwritten by the keys of the chunk.';
comment on column public.knowledge_chunks.content_hash is
  'knowledge_content_hash(heading, content): equal hashes mean equal text.';
comment on column public.knowledge_chunks.field_stamp is
  'With which field weights the words were written; null: with the defaults.';
comment on column public.knowledge_chunks.content_words is
  'The words of the first 2,000 characters of content, without stop words; distinct_words: how '
  'many different ones. 0 for a text whose words are not set apart by spaces.';
comment on column public.knowledge_chunks.version is
  'Increases by 1 each time the chunk at this position of its document is replaced.';

-- A search scores and filters thousands of rows. The columns that it compares stay in the row, the
-- columns that it only returns are stored outside of it. Of these, content is compressed first.
alter table public.knowledge_chunks
  alter column bm25 set storage main,
  alter column content_tsv set storage external,
  alter column metadata set storage main,
  alter column embedding_bits set storage main,
  set (toast_tuple_target = 1536);

-- With the default of 100, ANALYZE lists too few document frequencies. With 1000 it lists up to the
-- 10,000 most common lexemes.
alter table public.knowledge_chunks alter column content_tsv set statistics 1000;

-- The expression that a vector index of this kind (vector or halfvec) indexes, as SQL. A halfvec
-- takes half the memory; the search then compares the nearest rows in full precision. HNSW indexes
-- at most 2,000 dimensions of a vector and 4,000 of a halfvec.
create function knowledge_internal.indexed_embedding(
  kind text, embedding_column name default 'embedding'
) returns text
language sql stable security invoker set search_path = pg_catalog, pg_temp as $$
  select format(
           case
             when kind = 'vector' then '%1$I'
             when attribute.atttypmod <= 4000
               then 'extensions.l2_normalize(%1$I)::extensions.halfvec(%2$s)'
             else 'extensions.l2_normalize(extensions.subvector(%1$I, 1, 4000))'
                  '::extensions.halfvec(4000)'
           end,
           embedding_column, attribute.atttypmod
         )
    from pg_catalog.pg_attribute as attribute
   where attribute.attrelid = 'public.knowledge_chunks'::regclass
     and attribute.attname = embedding_column
$$;

-- Extension point: creates the view chunk_rows. Whatever reads the text or the embedding of stored
-- rows reads this view, because a module can keep both elsewhere. embedding_bits says whether a row
-- has an embedding.
create function knowledge_internal.write_chunk_rows() returns void
language plpgsql volatile security invoker set search_path = pg_catalog, pg_temp as $$
begin
  drop view if exists knowledge_internal.chunk_rows;
  create view knowledge_internal.chunk_rows with (security_invoker = true) as
  select chunk.id, chunk.document_id, chunk.chunk_index, chunk.status, chunk.collection,
         chunk.knowledge_type, chunk.language, chunk.document_date, chunk.owner_id,
         chunk.visibility, chunk.allowed_groups, chunk.sensitivity, chunk.source_id,
         chunk.source_origin, chunk.metadata, chunk.heading, chunk.content_hash,
         chunk.text_length, chunk.content_tsv, chunk.bm25, chunk.embedding_bits,
         chunk.embedding_model, chunk.created_at, chunk.updated_at, chunk.content, chunk.embedding,
         null::jsonb as source_row
    from public.knowledge_chunks as chunk;
end
$$;

-- The text of a stored row that has none, because it is kept elsewhere.
create function knowledge_internal.content_of(chunk_id uuid) returns text
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return (select row.content from knowledge_internal.chunk_rows as row where row.id = chunk_id);
end
$$;

-- Creates the views chunk_rows and searchable_chunks: the columns that a search reads, and
-- indexed_embedding, the expression of the vector index. A search orders by it, for any kind of
-- index.
create function knowledge_internal.use_vector_index(kind text) returns void
language plpgsql volatile security invoker set search_path = pg_catalog, pg_temp as $$
begin
  drop view if exists knowledge_internal.searchable_chunks;
  perform knowledge_internal.write_chunk_rows();
  execute format(
    'create view knowledge_internal.searchable_chunks with (security_invoker = true) as'
    ' select chunk.id, chunk.document_id, chunk.content, chunk.embedding, chunk.embedding_model,'
    '        chunk.knowledge_type, chunk.chunk_index, chunk.source_id, chunk.source_origin,'
    '        chunk.collection, chunk.language, chunk.document_date, chunk.owner_id,'
    '        chunk.visibility, chunk.allowed_groups, chunk.sensitivity, chunk.metadata,'
    '        chunk.status, chunk.content_tsv, chunk.text_length, chunk.bm25, chunk.embedding_bits,'
    '        chunk.created_at, chunk.updated_at, chunk.heading, %s as indexed_embedding%s'
    '   from public.knowledge_chunks as chunk',
    knowledge_internal.indexed_embedding(kind),
    -- Columns that a module has added, and that caller_condition reads.
    (
      select string_agg(format(', chunk.%I', attribute.attname), '' order by attribute.attnum)
        from pg_catalog.pg_attribute as attribute
       where attribute.attrelid = 'public.knowledge_chunks'::regclass
         and starts_with(attribute.attname::text, 'place_')
         and not attribute.attisdropped
    )
  );
end
$$;

-- Searches return active rows only, so the indexes of both legs have no other rows.
-- The statement is in a block because the indexed expression depends on the column's dimensions.
do $$
begin
  execute format(
    'create index knowledge_chunks_embedding on public.knowledge_chunks'
    ' using hnsw ((%s) extensions.halfvec_cosine_ops) with (m = 16, ef_construction = 64)'
    ' where status = ''active''',
    knowledge_internal.indexed_embedding('halfvec')
  );
end
$$;
select knowledge_internal.use_vector_index('halfvec');

-- New entries wait in a list: to move many of them into the index together costs a quarter of the
-- time. A search also reads the list, so keep_statistics empties it after each statement, and a
-- statement with many rows empties it whenever it has 4 MB.
create index knowledge_chunks_content_tsv on public.knowledge_chunks
  using gin (content_tsv) with (fastupdate = on, gin_pending_list_limit = 4096)
  where status = 'active';

-- The indexes for filters have active rows only: a superseded version costs nothing in them. The
-- second condition follows from a filter on the column. With the first one alone, the planner would
-- read a whole index as the cheapest way to get all active rows.
create index knowledge_chunks_metadata on public.knowledge_chunks
  using gin (metadata jsonb_path_ops) with (fastupdate = off)
  where status = 'active' and metadata is not null;
create index knowledge_chunks_knowledge_type on public.knowledge_chunks (knowledge_type)
  where status = 'active' and knowledge_type is not null;
create index knowledge_chunks_collection on public.knowledge_chunks (collection)
  where status = 'active' and collection is not null;
create index knowledge_chunks_source_origin on public.knowledge_chunks (source_origin)
  where status = 'active' and source_origin is not null;
create index knowledge_chunks_document_date on public.knowledge_chunks (document_date)
  where status = 'active' and document_date is not null;
create index knowledge_chunks_language on public.knowledge_chunks (language)
  where status = 'active' and language is not null;
create index knowledge_chunks_visibility on public.knowledge_chunks (visibility)
  where status = 'active' and visibility is not null;
create index knowledge_chunks_groups on public.knowledge_chunks
  using gin (allowed_groups) with (fastupdate = off)
  where status = 'active' and allowed_groups is not null;
-- With superseded rows, because the deletion of a source or an owner must find them, too.
create index knowledge_chunks_source on public.knowledge_chunks (source_id)
  where source_id is not null;
create index knowledge_chunks_owner on public.knowledge_chunks (owner_id)
  where owner_id is not null;
-- With status before chunk_index, a scan for the active chunks of a document does not read its
-- superseded chunks.
create index knowledge_chunks_document
  on public.knowledge_chunks (document_id, status, chunk_index);
-- A b-tree of these texts takes four times the space.
create index knowledge_chunks_content_hash on public.knowledge_chunks using hash (content_hash);
-- Which models the corpus has (knowledge_embedding_models).
create index knowledge_chunks_embedding_model
  on public.knowledge_chunks (coalesce(embedding_model, ''), collection)
  where status = 'active' and embedding_bits is not null;
create index knowledge_chunks_status on public.knowledge_chunks (status, updated_at)
  where status <> 'active';

-- The API roles are named because Supabase grants every new table to them by default. No table is
-- granted to authenticated: a role that may select from a table can read planner estimates over the
-- rows of all users. The policies are for projects that grant select nevertheless.
alter table public.knowledge_types enable row level security;
alter table public.knowledge_source_origins enable row level security;
alter table public.knowledge_sources enable row level security;
alter table public.knowledge_documents enable row level security;
alter table public.knowledge_chunks enable row level security;
-- No row is for a role that these policies bind. Without any policy, Supabase's linter would ask.
create policy knowledge_types_none on public.knowledge_types
  to anon, authenticated using (false);
create policy knowledge_source_origins_none on public.knowledge_source_origins
  to anon, authenticated using (false);
create policy knowledge_sources_none on public.knowledge_sources
  to anon, authenticated using (false);
revoke all
  on table public.knowledge_types, public.knowledge_source_origins, public.knowledge_sources,
           public.knowledge_documents, public.knowledge_chunks
  from public, anon, authenticated;
grant select, insert, update, delete
  on table public.knowledge_types, public.knowledge_source_origins, public.knowledge_sources,
           public.knowledge_documents, public.knowledge_chunks
  to service_role;

create policy knowledge_documents_read on public.knowledge_documents
  for select to authenticated
  -- No sub-selects: Citus allows none in a policy.
  using (
    visibility = 'public'
    or owner_id = knowledge_internal.current_viewer()
    or allowed_groups <> '{}' and allowed_groups && knowledge_internal.current_viewer_groups()
  );

create policy knowledge_chunks_read on public.knowledge_chunks
  for select to authenticated
  using (
    status = 'active'
    and (
      visibility = 'public'
      or owner_id = knowledge_internal.current_viewer()
      or allowed_groups <> '{}' and allowed_groups && knowledge_internal.current_viewer_groups()
    )
  );
