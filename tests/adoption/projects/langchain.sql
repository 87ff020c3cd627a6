-- LangChain's SupabaseVectorStore and n8n's: match_documents; SupabaseHybridSearch: kw_match_documents.
-- adopt: public.documents --model m
create table public.documents (
  id uuid primary key,
  content text,
  metadata jsonb,
  embedding extensions.vector(3)
);
create index on public.documents using hnsw (embedding extensions.vector_cosine_ops);

create function public.match_documents(
  query_embedding extensions.vector(3), match_count int default null, filter jsonb default '{}'
) returns table (id uuid, content text, metadata jsonb, similarity float) language plpgsql as $$
#variable_conflict use_column
begin
  return query
  select
    id, content, metadata,
    1 - (documents.embedding <=> query_embedding) as similarity
  from documents
  where metadata @> filter
  order by documents.embedding <=> query_embedding
  limit match_count;
end;
$$;

create function public.kw_match_documents(query_text text, match_count int)
returns table (id uuid, content text, metadata jsonb, similarity real) as $$
begin
return query execute
format('select id, content, metadata, ts_rank(to_tsvector(content), plainto_tsquery($1)) as similarity
from documents
where to_tsvector(content) @@ plainto_tsquery($1)
order by similarity desc
limit $2')
using query_text, match_count;
end;
$$ language plpgsql;

insert into public.documents values
  ('10000000-0000-0000-0000-000000000001', 'Rotate the keys every month.', '{"page": 4}', '[1, 0, 0]'),
  ('10000000-0000-0000-0000-000000000002', 'Water the plants on Monday.', '{"page": 5}', '[0, 1, 0]'),
  ('10000000-0000-0000-0000-000000000003', 'The keys of the gate.', '{"page": 4}', '[0.7, 0.7, 0]');
-- call: select right(id::text, 1) from match_documents('[0.9, 0.1, 0]')
-- before: 1 3 2
-- after: 1 3 2
-- call: select right(id::text, 1) from match_documents('[0.9, 0.1, 0]', 5, '{"page": 5}')
-- before: 2
-- after: 2
-- call: select right(id::text, 1) from kw_match_documents('when to rotate a key', 5)
-- before: 1
-- after: 1 3
-- call: select right(id::text, 1) from match_documents(query_embedding => '[1, 0, 0]', filter => '{"page": 4}') limit 1
-- before: 1
-- after: 1
-- call: select id from match_documents(query_embedding => '[1, 0, 0]', filter => null)
-- before:
-- after:
