-- 002_documents: where knowledge comes from, and the documents that chunks are cut from.
-- Adds: tables knowledge_sources, knowledge_documents, their policies and grants.
-- Locks nothing that exists.

create table if not exists public.knowledge_sources (
  id uuid primary key default gen_random_uuid(),
  name text not null unique,
  origin text not null default 'manual'
    check (origin in ('notion', 'obsidian', 'email', 'manual', 'youtube', 'web', 'other')),
  config jsonb not null default '{}' check (jsonb_typeof(config) = 'object'),
  created_at timestamptz not null default now()
);

comment on table public.knowledge_sources is
  'A place that documents are read from. config may hold secrets: '
  'only service_role reads this table.';
comment on column public.knowledge_sources.config is
  'Connection settings of the source; may hold secrets.';

-- Supabase grants every new table to the API roles by default, so they are named here.
alter table public.knowledge_sources enable row level security;
revoke all on table public.knowledge_sources from public, anon, authenticated;
grant select, insert, update, delete on table public.knowledge_sources to service_role;

create table if not exists public.knowledge_documents (
  id uuid primary key default gen_random_uuid(),
  external_key text not null unique check (octet_length(external_key) between 1 and 2000),
  title text,
  knowledge_type text not null default 'document'
    check (knowledge_type in (
      'note', 'document', 'decision', 'conversation', 'task', 'signal', 'playbook', 'case_study',
      'transcript'
    )),
  source_id uuid references public.knowledge_sources (id) on delete set null,
  source_url text,
  source_origin text not null default 'manual'
    check (source_origin in ('notion', 'obsidian', 'email', 'manual', 'youtube', 'web', 'other')),
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
  'The document''s identity outside this database (a path, a URL, an id): '
  'what an upsert matches on.';
comment on column public.knowledge_documents.document_date is
  'The date the document gives itself, not that of its import.';
comment on column public.knowledge_documents.owner_id is
  'The user the document belongs to; null: nobody''s, seen only when public.';
comment on column public.knowledge_documents.language is
  'Text search configuration of the content (english, german, ... or an ISO 639-1 code); '
  'an unknown one is read as simple.';
comment on column public.knowledge_documents.content_hash is
  'Digest of the chunks'' hashes in their order.';

create index if not exists knowledge_documents_owner on public.knowledge_documents (owner_id);
create index if not exists knowledge_documents_source on public.knowledge_documents (source_id);

alter table public.knowledge_documents enable row level security;
revoke all on table public.knowledge_documents from public, anon, authenticated;
grant select on table public.knowledge_documents to authenticated;
grant select, insert, update, delete on table public.knowledge_documents to service_role;

drop policy if exists knowledge_documents_read on public.knowledge_documents;
create policy knowledge_documents_read on public.knowledge_documents
  for select to authenticated
  using (visibility = 'public' or owner_id = (select auth.uid()));
