-- The documents of Supabase's guide to hybrid search, with both of its functions.
-- adopt: public.documents --model m
create table public.documents (
  id bigint primary key generated always as identity,
  content text,
  fts tsvector generated always as (to_tsvector('english', content)) stored,
  embedding extensions.vector(3)
);

create function public.hybrid_search(
  query_text text, query_embedding extensions.vector(3), match_count int,
  full_text_weight float = 1, semantic_weight float = 1, rrf_k int = 50
) returns setof public.documents language sql set search_path = public, extensions as $$
with full_text as (
  select id, row_number() over (order by ts_rank_cd(fts, websearch_to_tsquery(query_text)) desc) as rank_ix
    from documents
   where fts @@ websearch_to_tsquery(query_text)
   order by rank_ix
   limit least(match_count, 30) * 2
),
semantic as (
  select id, row_number() over (order by embedding <#> query_embedding) as rank_ix
    from documents
   order by rank_ix
   limit least(match_count, 30) * 2
)
select documents.*
  from full_text
  full outer join semantic on full_text.id = semantic.id
  join documents on coalesce(full_text.id, semantic.id) = documents.id
 order by coalesce(1.0 / (rrf_k + full_text.rank_ix), 0.0) * full_text_weight
            + coalesce(1.0 / (rrf_k + semantic.rank_ix), 0.0) * semantic_weight desc
 limit least(match_count, 30)
$$;

create function public.match_documents(
  query_embedding extensions.vector(3), match_threshold float, match_count int
) returns setof public.documents language sql set search_path = public, extensions as $$
select * from documents
 where documents.embedding <=> query_embedding < 1 - match_threshold
 order by documents.embedding <=> query_embedding asc
 limit least(match_count, 200);
$$;

insert into public.documents (content, embedding) values
  ('Error E-4012: the printer is out of paper.', '[0.1, 0.9, 0.1]'),
  ('Clean the rollers when the printer jams.', '[0.1, 0.9, 0.3]'),
  ('Error E-4013: the door of the safe is open.', '[0.0, 0.4, 0.9]');
-- call: select id from hybrid_search('what does E-4012 mean', '[0.1, 0.8, 0.4]', 2)
-- before: 2 1
-- after: 1 2
-- call: select id from match_documents('[0.1, 0.8, 0.4]', 0.9, 10)
-- before: 2 1
-- after: 2 1
-- left: it searches by an embedding alone
