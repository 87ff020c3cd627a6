-- Chunks of documents, which the function joins for their title and for what is deleted.
-- adopt: public.chunks --model m
create table public.files (id uuid primary key, name text, deleted_at timestamptz);
create table public.chunks (
  id bigint primary key,
  file_id uuid not null references public.files,
  chunk_index int not null,
  content text,
  embedding extensions.vector(3)
);

create function public.match_chunks(query_embedding extensions.vector(3), match_threshold float default 0.1, match_count int default 5)
returns table (id bigint, name text, content text, similarity float)
language sql stable security definer set search_path = public, extensions as $$
  select chunks.id, files.name, chunks.content, 1 - (chunks.embedding <=> query_embedding)
    from chunks inner join files on files.id = chunks.file_id and files.deleted_at is null
   where 1 - (chunks.embedding <=> query_embedding) > match_threshold
   order by chunks.embedding <=> query_embedding
   limit match_count
$$;

insert into public.files values
  ('10000000-0000-0000-0000-000000000001', 'Manual', null),
  ('10000000-0000-0000-0000-000000000002', 'Old manual', '2026-01-01');
insert into public.chunks values
  (1, '10000000-0000-0000-0000-000000000001', 0, 'Open the case.', '[0, 1, 0]'),
  (2, '10000000-0000-0000-0000-000000000001', 1, 'Turn the wheel.', '[1, 0, 0]'),
  (3, '10000000-0000-0000-0000-000000000002', 0, 'Turn the crank.', '[1, 0, 0.1]');
-- call: select id || name from match_chunks('[1, 0.2, 0]')
-- before: 2Manual 1Manual
-- after: 2Manual 1Manual
-- left: it searches by an embedding alone
