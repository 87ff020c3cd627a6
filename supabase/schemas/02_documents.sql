-- 002_documents: the sources of knowledge, and the documents that are split into chunks.
-- Adds: tables knowledge_types, knowledge_source_origins, knowledge_sources, knowledge_documents,
-- their policies and grants, the functions that list the types and origins and name the viewer, and
-- the limits of metadata.
-- Locks nothing that exists.

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

create function knowledge_internal.knowledge_type_names()
returns text[]
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
as $$
begin
  return array(
    select type.name from public.knowledge_types as type order by type.name collate "C"
  );
end
$$;

comment on function knowledge_internal.knowledge_type_names() is
  'The known values of knowledge_type, in alphabetical order.';

create function knowledge_internal.source_origin_names()
returns text[]
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
as $$
begin
  return array(
    select origin.name
      from public.knowledge_source_origins as origin
     order by origin.name collate "C"
  );
end
$$;

comment on function knowledge_internal.source_origin_names() is
  'The known values of source_origin, in alphabetical order.';

create function knowledge_internal.current_viewer()
returns uuid
language plpgsql
stable
parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $$
begin
  return auth.uid();
end
$$;

comment on function knowledge_internal.current_viewer() is
  'The signed-in user, which the policies compare with owner_id; null if nobody is signed in.';

create function knowledge_internal.metadata_problem(metadata jsonb)
returns text
language plpgsql
immutable
parallel safe
security invoker
set search_path = pg_catalog, pg_temp
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

comment on function knowledge_internal.metadata_problem(jsonb) is
  'The reason to reject metadata that clients cannot read: it is nested too deeply, or has a '
  'number that is too large. Null if the metadata is valid.';

-- Security definer, because roles that may write rows have no rights on the internal function.
create function knowledge_internal.check_metadata()
returns trigger
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
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

comment on function knowledge_internal.check_metadata() is
  'Runs before a row is written: raises 22023 for metadata that clients cannot read.';

create function knowledge_internal.signed_in_viewer(caller text)
returns uuid
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
as $$
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

comment on function knowledge_internal.signed_in_viewer(text) is
  'The signed-in user, for a function that users call; caller is its name for the message. Raises '
  '42501 if nobody is signed in, or if the claim sub of the token is not a UUID.';

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
  sensitivity text,
  language text not null default 'english' check (length(language) between 1 and 60),
  collection text not null default 'knowledge' check (length(collection) between 1 and 200),
  metadata jsonb not null default '{}' check (jsonb_typeof(metadata) = 'object'),
  content_hash text,
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
  'The user that owns the document. Without an owner, a document is visible only if it is public.';
comment on column public.knowledge_documents.language is
  'Text search configuration of the content (english, german, ... or an ISO 639-1 code); '
  'an unknown value means simple.';
comment on column public.knowledge_documents.content_hash is
  'Digest of the chunks'' hashes in their order.';

create trigger check_metadata
  before insert or update of metadata on public.knowledge_documents
  for each row when (new.metadata <> '{}') execute function knowledge_internal.check_metadata();

create index knowledge_documents_owner
  on public.knowledge_documents (owner_id, external_key);
create index knowledge_documents_public on public.knowledge_documents (external_key)
  where visibility = 'public';
create index knowledge_documents_source on public.knowledge_documents (source_id);

-- Not granted to authenticated: a role that may select from a table can read planner estimates over
-- the rows of all users. The policy is for projects that grant select nevertheless.
alter table public.knowledge_documents enable row level security;
revoke all on table public.knowledge_documents from public, anon, authenticated;
grant select, insert, update, delete on table public.knowledge_documents to service_role;

create policy knowledge_documents_read on public.knowledge_documents
  for select to authenticated
  using (visibility = 'public' or owner_id = knowledge_internal.current_viewer());
