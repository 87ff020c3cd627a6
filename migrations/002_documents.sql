-- 002_documents: sources, documents and their chunks, and who may read them.
-- Adds: tables knowledge_types, knowledge_source_origins, knowledge_sources, knowledge_documents
-- and knowledge_chunks, their policies and grants, the indexes of the chunks and the view that
-- searches read. Locks nothing that exists.
-- Written from supabase/schemas/core/02_documents.sql by `make baseline`: edit that file.

create table public.knowledge_types (
  name text primary key check (length(name) between 1 and 60),
  created_at timestamptz not null default now()
);

comment on table public.knowledge_types is
  'The values of knowledge_type. A project adds its own by insert. A type that a document or a '
  'chunk has cannot be deleted.';

create table public.knowledge_source_origins (
  name text primary key check (length(name) between 1 and 60),
  created_at timestamptz not null default now()
);

comment on table public.knowledge_source_origins is
  'The values of source_origin, and of origin in knowledge_sources. A project adds its own by '
  'insert. An origin that a source, a document or a chunk has cannot be deleted.';

insert into public.knowledge_types (name)
values ('note'), ('document'), ('decision'), ('conversation'), ('task'), ('signal'), ('playbook'),
       ('case_study'), ('transcript');

insert into public.knowledge_source_origins (name)
values ('notion'), ('obsidian'), ('email'), ('manual'), ('youtube'), ('web'), ('zoom'), ('json'),
       ('text'), ('leadworks'), ('other');

-- The API roles are named because Supabase grants every new table to them by default.
alter table public.knowledge_types enable row level security;
alter table public.knowledge_source_origins enable row level security;
revoke all on table public.knowledge_types, public.knowledge_source_origins
  from public, anon, authenticated;
grant select, insert, update, delete
  on table public.knowledge_types, public.knowledge_source_origins to service_role;

-- The known values of knowledge_type, in alphabetical order.
create function knowledge_internal.knowledge_type_names() returns text[]
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return array(
    select type.name from public.knowledge_types as type order by type.name collate "C"
  );
end
$$;

-- The known values of source_origin, in alphabetical order.
create function knowledge_internal.source_origin_names() returns text[]
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return array(
    select origin.name
      from public.knowledge_source_origins as origin
     order by origin.name collate "C"
  );
end
$$;

-- The signed-in user, which the policies compare with owner_id; null if nobody is signed in.
create function knowledge_internal.current_viewer() returns uuid
language plpgsql stable parallel safe security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return auth.uid();
end
$$;

-- The reason to reject a list of groups; null if it is valid. most: the most groups in it.
create function knowledge_internal.groups_problem(given text[], most integer) returns text
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
as $$
declare
  longest constant integer := 200; -- characters
begin
  if given = '{}' or (
    array_ndims(given) = 1
      and cardinality(given) <= most
      and array_position(given, null) is null
      and not exists (
            select from unnest(given) as listed (name) where length(name) not between 1 and longest
          )
  ) then
    return null;
  end if;
  return format(
    'must be at most %s groups, each a text of 1 to %s characters, not %s',
    most, longest, left(given::text, 100)
  );
end
$$;

-- The groups of a document, each once and in order; null for an empty list. Raises 22023 for too
-- many groups, and for one that is null, empty or too long.
create function knowledge_internal.sorted_groups(argument text, given text[]) returns text[]
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
as $$
declare
  most constant integer := 100;
  problem constant text := knowledge_internal.groups_problem(given, most);
begin
  if given is null then
    return null;
  end if;
  if problem is not null then
    raise exception '% %', argument, problem using errcode = '22023';
  end if;
  return nullif(
    array(select distinct name collate "C" from unnest(given) as listed (name) order by 1), '{}'
  );
end
$$;

-- Raises 22023 if the groups of a viewer are too many, or if one is null, empty or too long.
create function knowledge_internal.check_viewer_groups(argument text, given text[]) returns void
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  most constant integer := 1000;
  problem constant text := knowledge_internal.groups_problem(given, most);
begin
  if given is not null and problem is not null then
    raise exception '% %', argument, problem using errcode = '22023';
  end if;
end
$$;

-- Searches call it with the rights of the owner of these functions, so that the function which a
-- project puts here can read a table of members. A function that is already here is the project's,
-- but not if somebody else made it: it would run with these rights, too.
do $$
begin
  if to_regprocedure('public.knowledge_viewer_groups()') is null then
    create function public.knowledge_viewer_groups()
    returns text[]
    language plpgsql
    stable
    security invoker
    set search_path = pg_catalog, pg_temp
    as $body$
    begin
      return '{}';
    end
    $body$;
    comment on function public.knowledge_viewer_groups() is
      'The groups of the signed-in user, compared with allowed_groups. Replace it with a function '
      'that reads the members of your project: create or replace function. It returns no group '
      'until then, and upgrades keep yours.';
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

-- The groups of the signed-in user, from the project's function knowledge_viewer_groups. The
-- policies and the functions for users compare them with allowed_groups. Raises 22023 if they are
-- too many, or if one is null, empty or too long.
create function knowledge_internal.current_viewer_groups() returns text[]
-- definer: a signed-in user may call neither the project's function nor what it reads.
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
  groups constant text[] := coalesce(public.knowledge_viewer_groups(), '{}');
begin
  perform knowledge_internal.check_viewer_groups('the result of knowledge_viewer_groups()', groups);
  return groups;
end
$$;

-- The reason to reject metadata that clients cannot read: it is nested too deeply, or has a number
-- that is too large. Null if the metadata is valid.
create function knowledge_internal.metadata_problem(metadata jsonb) returns text
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
as $$
begin
  -- The limits are those of common clients: 50 levels, and numbers in the range of float8.
  return case
    when jsonb_path_exists(metadata, 'strict $.**{51 to last}') then 'has more than 50 levels'
    when jsonb_path_exists(metadata, 'strict $.** ? (@ > 1.7e308 || @ < -1.7e308)') then
      'has a number beyond 1.7e308'
  end;
end
$$;

-- Security definer, because roles that may write rows have no rights on the internal function.
-- Runs before a row is written: raises 22023 for metadata that clients cannot read.
create function knowledge_internal.check_metadata() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  problem constant text := knowledge_internal.metadata_problem(new.metadata);
begin
  if problem is not null then
    raise exception 'metadata %', problem
      using errcode = '22023',
            hint = 'Nest metadata at most 50 levels deep, and store a larger number as a text.';
  end if;
  return new;
end
$$;

-- Security definer, for the same reason.
-- Runs before a row with allowed_groups is written: sorts them, and makes an empty list null.
-- Raises the errors of sorted_groups.
create function knowledge_internal.check_groups() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  new.allowed_groups := knowledge_internal.sorted_groups('allowed_groups', new.allowed_groups);
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

create table public.knowledge_sources (
  id uuid primary key default gen_random_uuid(),
  name text not null unique,
  origin text not null default 'manual' references public.knowledge_source_origins (name),
  config jsonb not null default '{}' check (jsonb_typeof(config) = 'object'),
  created_at timestamptz not null default now()
);

comment on table public.knowledge_sources is
  'A place that documents are read from. config may contain secrets: '
  'only service_role can read this table.';
comment on column public.knowledge_sources.config is
  'Connection settings of the source; may contain secrets.';

alter table public.knowledge_sources enable row level security;
revoke all on table public.knowledge_sources from public, anon, authenticated;
grant select, insert, update, delete on table public.knowledge_sources to service_role;

create table public.knowledge_documents (
  id uuid primary key default gen_random_uuid(),
  external_key text not null unique check (octet_length(external_key) between 1 and 2000),
  title text,
  knowledge_type text not null default 'document' references public.knowledge_types (name),
  source_id uuid references public.knowledge_sources (id) on delete set null,
  source_url text,
  source_origin text not null default 'manual'
    references public.knowledge_source_origins (name),
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
  'The identifier of the document outside this database (a path, a URL, an id). '
  'An upsert finds the document by it.';
comment on column public.knowledge_documents.document_date is
  'The date stated in the document, not the date of its import.';
comment on column public.knowledge_documents.owner_id is
  'The user that owns the document. Without an owner, a document is visible only if it is public, '
  'or to its allowed_groups.';
comment on column public.knowledge_documents.allowed_groups is
  'The groups whose members can see the document, beside its owner; null: none. At most 100.';
comment on column public.knowledge_documents.language is
  'Text search configuration of the content (english, german, ... or an ISO 639-1 code); '
  'an unknown value means simple.';
comment on column public.knowledge_documents.content_hash is
  'Digest of the chunks'' hashes in their order.';
comment on column public.knowledge_documents.source_row is
  'The row of an adopted table that the document is made of: {"adoption": name, "table": name, '
  '"key": {column: value}, "types": {column: type}}; null for other documents.';

create trigger check_metadata
  before insert or update of metadata on public.knowledge_documents
  for each row when (new.metadata <> '{}') execute function knowledge_internal.check_metadata();

create trigger check_groups
  before insert or update of allowed_groups on public.knowledge_documents
  for each row when (new.allowed_groups is not null)
  execute function knowledge_internal.check_groups();

create index knowledge_documents_owner
  on public.knowledge_documents (owner_id, external_key);
create index knowledge_documents_public on public.knowledge_documents (external_key)
  where visibility = 'public';
create index knowledge_documents_groups on public.knowledge_documents using gin (allowed_groups)
  where allowed_groups is not null;
create index knowledge_documents_source on public.knowledge_documents (source_id);

-- Not granted to authenticated: a role that may select from a table can read planner estimates over
-- the rows of all users. The policy is for projects that grant select nevertheless.
alter table public.knowledge_documents enable row level security;
revoke all on table public.knowledge_documents from public, anon, authenticated;
grant select, insert, update, delete on table public.knowledge_documents to service_role;

create policy knowledge_documents_read on public.knowledge_documents
  for select to authenticated
  -- No sub-selects: Citus allows none in a policy.
  using (
    visibility = 'public'
    or owner_id = knowledge_internal.current_viewer()
    or allowed_groups <> '{}' and allowed_groups && knowledge_internal.current_viewer_groups()
  );

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
  source_origin text not null default 'manual'
    references public.knowledge_source_origins (name),
  metadata jsonb not null default '{}' check (jsonb_typeof(metadata) = 'object'),
  content_hash text not null,
  version integer not null default 1 check (version >= 1),
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now()
);

comment on table public.knowledge_chunks is
  'A passage of a document. A search returns chunks, and only those with status active. A change '
  'of the document is copied only to active chunks.';
comment on column public.knowledge_chunks.heading is
  'Title and section path; searched together with content.';
comment on column public.knowledge_chunks.embedding is
  'Null until the chunk is embedded; until then only the text leg finds it. Zero vectors, and '
  'vectors whose length is too small or too large for float4, are rejected: their cosine distance '
  'is NaN, which passes every threshold.';
comment on column public.knowledge_chunks.collection is
  'The collection of the chunk; it defaults to that of the document, else to knowledge.';
comment on column public.knowledge_chunks.allowed_groups is
  'The groups whose members can see the chunk, beside its owner; null: none.';
comment on column public.knowledge_chunks.metadata is
  'The keys of the document, overwritten by the keys of the chunk.';
comment on column public.knowledge_chunks.content_hash is
  'knowledge_content_hash(heading, content), set by the database: equal hashes mean equal text.';
comment on column public.knowledge_chunks.version is
  'Increases by 1 each time the chunk at this position of its document is replaced.';
comment on column public.knowledge_chunks.content_tsv is
  'Lexemes of heading and content with their positions, and impact '
  'levels (knowledge_internal.impact_levels), set by the database.';
comment on column public.knowledge_chunks.text_length is
  'Words in content_tsv, counted with repetition: the dl of BM25.';
comment on column public.knowledge_chunks.bm25 is
  'The document side of BM25, one dimension for each lexeme and one for the length factor '
  '(knowledge_internal.document_side), set by the database.';
comment on column public.knowledge_chunks.embedding_bits is
  'The embedding in three bits for each dimension (knowledge_internal.embedding_bits), set by the '
  'database. A search with a filter that few rows pass compares these bits first.';

-- A search scores and filters thousands of rows. The columns that it compares stay in the row, the
-- columns that it only returns are stored outside of it. Of these, content is compressed first.
alter table public.knowledge_chunks alter column bm25 set storage main;
alter table public.knowledge_chunks alter column content_tsv set storage external;
alter table public.knowledge_chunks alter column metadata set storage main;
alter table public.knowledge_chunks alter column embedding_bits set storage main;
alter table public.knowledge_chunks set (toast_tuple_target = 1536);

-- With the default of 100, ANALYZE lists too few document frequencies. With 1000 it lists up to the
-- 10,000 most common lexemes.
alter table public.knowledge_chunks alter column content_tsv set statistics 1000;

-- The index finds the nearest rows in half precision, which takes half the memory. The search then
-- compares these rows in full precision. HNSW indexes at most 2,000 dimensions of a vector and
-- 4,000 of a halfvec.
-- The expression that a vector index on that column indexes, as SQL. kind: vector or halfvec.
create function knowledge_internal.indexed_embedding(
  kind text, embedding_column name default 'embedding'
) returns text
language sql stable security invoker set search_path = pg_catalog, pg_temp as $$
  select case
           when kind = 'vector' then format('%I', embedding_column)
           when attribute.atttypmod <= 4000 then
             format(
               'extensions.l2_normalize(%I)::extensions.halfvec(%s)',
               embedding_column, attribute.atttypmod
             )
           else
             format(
               'extensions.l2_normalize(extensions.subvector(%I, 1, 4000))'
                 '::extensions.halfvec(4000)',
               embedding_column
             )
         end
    from pg_catalog.pg_attribute as attribute
   where attribute.attrelid = 'public.knowledge_chunks'::regclass
     and attribute.attname = embedding_column
$$;

-- Creates the view searchable_chunks for a vector index of this kind, vector or halfvec.
create function knowledge_internal.use_vector_index(kind text) returns void
language plpgsql volatile security invoker set search_path = pg_catalog, pg_temp as $$
begin
  drop view if exists knowledge_internal.searchable_chunks;
  execute format(
    'create view knowledge_internal.searchable_chunks with (security_invoker = true) as'
    ' select chunk.id, chunk.document_id, chunk.content, chunk.embedding, chunk.embedding_model,'
    '        chunk.knowledge_type, chunk.chunk_index, chunk.source_id, chunk.source_origin,'
    '        chunk.collection, chunk.language, chunk.document_date, chunk.owner_id,'
    '        chunk.visibility, chunk.allowed_groups, chunk.sensitivity, chunk.metadata,'
    '        chunk.status, chunk.content_tsv, chunk.text_length, chunk.bm25, chunk.embedding_bits,'
    '        chunk.created_at, chunk.updated_at, %s as indexed_embedding'
    '   from public.knowledge_chunks as chunk',
    knowledge_internal.indexed_embedding(kind)
  );
  comment on view knowledge_internal.searchable_chunks is
    'The columns of chunks that a search reads, and indexed_embedding, the expression of the '
    'vector index. A search orders by it, for any kind of index. Created by use_vector_index.';
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
  perform knowledge_internal.use_vector_index('halfvec');
end
$$;

-- With fastupdate, every search would also read the list of pending entries.
create index knowledge_chunks_content_tsv on public.knowledge_chunks
  using gin (content_tsv) with (fastupdate = off)
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
-- The queue of embeddings: chunks without one, and the models of the others.
create index knowledge_chunks_unembedded on public.knowledge_chunks (collection)
  where status = 'active' and embedding is null;
create index knowledge_chunks_embedding_model
  on public.knowledge_chunks (coalesce(embedding_model, ''), collection)
  where status = 'active' and embedding is not null;
create index knowledge_chunks_status on public.knowledge_chunks (status, updated_at)
  where status <> 'active';

-- Not granted to authenticated, for the same reason as knowledge_documents.
alter table public.knowledge_chunks enable row level security;
revoke all on table public.knowledge_chunks from public, anon, authenticated;
grant select, insert, update, delete on table public.knowledge_chunks to service_role;

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
