-- n8n's vector store node: LangChain's function, called with a filter and a limit outside.
-- adopt: public.n8n_documents --key id --model m
create table public.n8n_documents (
  id bigserial primary key,
  content text,
  metadata jsonb,
  embedding extensions.vector(3)
);
create index on public.n8n_documents using hnsw (embedding extensions.vector_cosine_ops);

create function public.match_n8n(
  query_embedding extensions.vector(3), match_count int default null, filter jsonb default '{}'
) returns table (id bigint, content text, metadata jsonb, similarity float) language plpgsql as $$
#variable_conflict use_column
begin
  return query
  select id, content, metadata, 1 - (n8n_documents.embedding <=> query_embedding) as similarity
  from n8n_documents
  where metadata @> filter
  order by n8n_documents.embedding <=> query_embedding
  limit match_count;
end;
$$;

insert into public.n8n_documents (content, metadata, embedding) values
  ('Opening hours are nine to five.', '{"file": "faq", "loc": {"from": 1}}', '[1, 0, 0]'),
  ('Parking is behind the house.', '{"file": "faq"}', '[0.8, 0.2, 0]'),
  ('The hall can be rented.', '{"file": "hall"}', '[0.9, 0.1, 0]');
-- call: select id from match_n8n(query_embedding => '[1, 0, 0]', filter => '{"file": "faq"}') limit 1
-- before: 1
-- after: 1
-- call: select id from match_n8n(query_embedding => '[1, 0, 0]', filter => null)
-- before:
-- after:
