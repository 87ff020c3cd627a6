-- 003_chunks: the retrieval unit.
-- Adds: table knowledge_chunks, its indexes, policy and grants, and the view that searches read.
-- Locks nothing that exists.

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

-- The table in which Citus stores the rows of a table on this node; null for a table that Citus
-- does not manage. Raises 55000 if the rows are on another node.
create function knowledge_internal.shard_on_this_node(chunks regclass) returns regclass
language plpgsql stable parallel safe security invoker set search_path = pg_catalog, pg_temp as $$
declare
  shard regclass;
  holder text;
begin
  -- Citus stores the rows in a shard on one of the nodes: a table with the number of the shard in
  -- its name. The statement is not static, because a database without Citus has no pg_dist_shard.
  execute
    'select case when placement.groupid = here.groupid then'
    '         to_regclass(format(''%s.%I'', class.relnamespace::regnamespace,'
    '                            class.relname || ''_'' || shard.shardid))'
    '       end,'
    '       format(''%s:%s'', node.nodename, node.nodeport)'
    '  from pg_catalog.pg_dist_shard as shard'
    '  join pg_catalog.pg_class as class on class.oid = shard.logicalrelid'
    '  join pg_catalog.pg_dist_placement as placement on placement.shardid = shard.shardid'
    '  join pg_catalog.pg_dist_node as node on node.groupid = placement.groupid'
    ' cross join pg_catalog.pg_dist_local_group as here'
    ' where shard.logicalrelid = $1'
    '   and placement.shardstate = 1'
    into shard, holder
    using chunks;
  if shard is null and holder is not null then
    raise exception 'the rows of % are on another node, %', chunks, holder
      using errcode = '55000', hint = 'Connect to that node: only there a search is complete.';
  end if;
  return shard;
end
$$;

-- The table that stores the chunks, with Citus the shard on this node. All functions that read its
-- catalogue entries call this function.
create function knowledge_internal.physical_table() returns regclass
language plpgsql stable parallel safe security invoker set search_path = pg_catalog, pg_temp as $$
declare
  chunks constant regclass := 'public.knowledge_chunks';
begin
  return case
    when to_regclass('pg_catalog.pg_dist_shard') is null then chunks
    else coalesce(knowledge_internal.shard_on_this_node(chunks), chunks)
  end;
end
$$;

-- The number of chunks that the last ANALYZE or VACUUM counted, null before the first one. Every
-- write asks for it: it is cheaper than knowledge_internal.chunk_table.
create function knowledge_internal.analysed_rows() returns float8
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return (
    select nullif(class.reltuples, -1)
      from pg_catalog.pg_class as class
     where class.oid = knowledge_internal.physical_table()
  );
end
$$;

-- The percentage of a table's pages that have about so many rows: 100 for a small table, and for
-- one that was never analysed.
create function knowledge_internal.sampled_share(relation regclass, wanted_rows integer)
returns real
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return (
    select least(100, 100.0 * wanted_rows / greatest(class.reltuples, 1))::real
      from pg_catalog.pg_class as class
     where class.oid = relation
  );
end
$$;

-- The table of chunks in the system catalogues. estimated_rows: the active rows, estimated from the
-- current number of pages and from what the last ANALYZE or VACUUM counted. analysed_rows:
-- knowledge_internal.analysed_rows, with superseded rows. dimensions: those of the column
-- embedding.
create type knowledge_internal.chunk_table as (
  relation regclass,
  pages bigint,
  estimated_rows float8,
  analysed_rows float8,
  dimensions integer
);

-- Reads the table of chunks from the system catalogues, with one query.
create function knowledge_internal.chunk_table() returns knowledge_internal.chunk_table
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  facts knowledge_internal.chunk_table;
  density float8; -- rows on a page
  inactive_rows float8;
begin
  select class.oid, pg_relation_size(class.oid) / current_setting('block_size')::bigint,
         nullif(class.reltuples, -1), nullif(class.reltuples, -1) / nullif(class.relpages, 0),
         -- With Citus, the index of a shard has the shard's number in its name, too.
         (
           select greatest(index.reltuples, 0)
             from pg_catalog.pg_class as index
            where index.relnamespace = class.relnamespace
              and index.relname
                    = replace(class.relname, 'knowledge_chunks', 'knowledge_chunks_status')
         ),
         (
           select nullif(attribute.atttypmod, -1)
             from pg_catalog.pg_attribute as attribute
            where attribute.attrelid = class.oid
              and attribute.attname = 'embedding'
         )
    into facts.relation, facts.pages, facts.analysed_rows, density, inactive_rows,
         facts.dimensions
    from pg_catalog.pg_class as class
   where class.oid = knowledge_internal.physical_table();
  -- Five, in a table that was never analysed.
  facts.estimated_rows := greatest(
    facts.pages * coalesce(density, 5) - coalesce(inactive_rows, 0), 0
  );
  return facts;
end
$$;

-- The model and the dimensions that a running re-embedding changes to; null if none is running.
create type knowledge_internal.reembedding as (model text, dimensions integer);

-- Reads the running re-embedding from the column embedding_next and its comment.
create function knowledge_internal.reembedding() returns knowledge_internal.reembedding
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  mark constant text := 're-embedding: ';
  running knowledge_internal.reembedding;
begin
  select substr(
           col_description(attribute.attrelid, attribute.attnum), length(mark) + 1
         )::jsonb ->> 'model',
         attribute.atttypmod
    into running.model, running.dimensions
    from pg_catalog.pg_attribute as attribute
   where attribute.attrelid = knowledge_internal.physical_table()
     and attribute.attname = 'embedding_next'
     and not attribute.attisdropped;
  return running;
end
$$;

-- The statistics of a column of the chunks in pg_stats: one row, or none before the first ANALYZE.
create function knowledge_internal.column_statistics(column_name name)
returns table (
  most_common text[],
  shares real[],
  histogram text[],
  elements text[],
  element_shares real[]
)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return query
  select statistics.most_common_vals::text::text[],
         statistics.most_common_freqs,
         statistics.histogram_bounds::text::text[],
         statistics.most_common_elems::text::text[],
         statistics.most_common_elem_freqs
    from pg_catalog.pg_class as class
    join pg_catalog.pg_namespace as namespace on namespace.oid = class.relnamespace
    join pg_catalog.pg_stats as statistics
      on statistics.schemaname = namespace.nspname
     and statistics.tablename = class.relname
   where class.oid = knowledge_internal.physical_table()
     and statistics.attname = column_name;
end
$$;

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
   where attribute.attrelid = knowledge_internal.physical_table()
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
