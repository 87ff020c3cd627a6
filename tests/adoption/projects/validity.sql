-- Offers that are valid from a date to another, published or not.
-- adopt: public.offers --model m --rows all
create table public.offers (
  id int primary key,
  title text,
  body text,
  status text not null,
  valid_from timestamptz,
  expires_at timestamptz,
  embedding extensions.vector(3),
  approved_at timestamptz default '2020-01-01'
);
create index on public.offers using hnsw (embedding extensions.vector_cosine_ops);

create function public.search_offers(query_embedding extensions.vector(3), match_count int default 5)
returns table (id int, title text, similarity float)
language sql stable set search_path = public, extensions as $$
  select o.id, o.title, (1 - (o.embedding <=> query_embedding))::float
    from offers as o
   where o.status = 'published'
     and o.approved_at is not null
     and (o.valid_from is null or o.valid_from <= now())
     and o.expires_at > now()
   order by o.embedding <=> query_embedding
   limit match_count
$$;

insert into public.offers values
  (1, 'Tea', 'Green tea for less.', 'published', null, '2999-01-01', '[1, 0, 0]'),
  (2, 'Old', 'Black tea for less.', 'published', null, '2020-01-01', '[1, 0, 0.1]'),
  (3, 'Draft', 'White tea for less.', 'draft', null, '2999-01-01', '[1, 0, 0.1]'),
  (4, 'Later', 'Red tea for less.', 'published', '2990-01-01', '2999-01-01', '[1, 0, 0.1]'),
  (5, 'Mugs', 'Mugs for tea.', 'published', '2020-01-01', '2999-01-01', '[0.8, 0.4, 0]');
-- call: select id from search_offers('[1, 0, 0]')
-- before: 1 5
-- after: 1 5
