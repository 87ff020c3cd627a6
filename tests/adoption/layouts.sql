-- The tables of known layouts, for embeddings of three dimensions. The guide's and
-- SupabaseVectorStore's as their documentation creates them; the others as the packages created
-- them (langchain-postgres 0.0.19, llama-index-vector-stores-postgres 0.9.0), without indexes.
-- test_layouts.py compares them with what the packages of `make stores` create.

create table public.guide (
  id bigint primary key generated always as identity,
  content text,
  fts tsvector generated always as (to_tsvector('english', content)) stored,
  embedding extensions.vector(3)
);

create table public.documents (
  id uuid primary key,
  content text,
  metadata jsonb,
  embedding extensions.vector(3)
);

-- The same with JavaScript's documentation.
create table public.documents_js (
  id bigserial primary key,
  content text,
  metadata jsonb,
  embedding extensions.vector(3)
);

create table public.langchain_pg_collection (
  uuid uuid primary key,
  name varchar not null unique,
  cmetadata json
);

create table public.langchain_pg_embedding (
  id varchar primary key,
  collection_id uuid references public.langchain_pg_collection (uuid) on delete cascade,
  embedding extensions.vector,
  document varchar,
  cmetadata jsonb
);

create table public.passages (
  langchain_id uuid primary key,
  content text not null,
  embedding extensions.vector(3) not null,
  langchain_metadata json
);

-- With hybrid search, a column of its own for a key of the metadata, and texts as ids.
create table public.passages_hybrid (
  langchain_id text primary key,
  content text not null,
  embedding extensions.vector(3) not null,
  content_tsv tsvector not null,
  team text,
  langchain_metadata json
);

create table public.data_passages (
  id bigserial primary key,
  text varchar not null,
  metadata_ json,
  node_id varchar,
  embedding extensions.vector(3)
);

-- With hybrid search, jsonb and half precision.
create table public.data_passages_hybrid (
  id bigserial primary key,
  text varchar not null,
  metadata_ jsonb,
  node_id varchar,
  embedding extensions.halfvec(3),
  text_search_tsv tsvector generated always as (to_tsvector('english', text)) stored
);
