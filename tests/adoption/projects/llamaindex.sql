-- LlamaIndex's table, searched by a function with a filter on the metadata and without a limit.
-- adopt: public.data_handbook --model m
create table public.data_handbook (
  id bigserial primary key,
  text varchar not null,
  metadata_ json,
  node_id varchar,
  embedding extensions.vector(3)
);
create index on public.data_handbook using hnsw (embedding extensions.vector_cosine_ops);

create function public.search_handbook(question_embedding extensions.vector(3), top_k int, wanted_team text)
returns table (node_id text, text text, distance float) language sql stable as $$
  select node_id, text, (embedding operator(extensions.<=>) question_embedding)::float
    from public.data_handbook
   where metadata_ ->> 'team' = wanted_team
   order by embedding operator(extensions.<=>) question_embedding
   limit top_k
$$;

insert into public.data_handbook (text, metadata_, node_id, embedding) values
  ('Rotate the keys.', '{"team": "security"}', 'n1', '[1, 0, 0]'),
  ('Water the plants.', '{"team": "office"}', 'n2', '[0.9, 0.1, 0]'),
  ('Lock the doors.', '{"team": "security"}', 'n3', '[0.1, 0.9, 0]');
-- call: select node_id from search_handbook('[1, 0, 0]', 5, 'security')
-- before: n1 n3
-- after: n1 n3
