-- 002_documents: the sources of knowledge, and the documents that are split into chunks.
-- Adds: tables knowledge_types, knowledge_source_origins, knowledge_sources, knowledge_documents,
-- their policies and grants, the functions that list the types and origins and name the viewer and
-- the viewer's groups, and the limits of metadata and groups.
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
