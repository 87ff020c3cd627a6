-- Tenants, and embeddings of 3,072 dimensions behind an index of half precision.
-- dimensions: 3072
-- adopt: public.articles --model text-embedding-3-large
create table public.articles (
  id uuid primary key,
  tenant_id uuid not null,
  lang text,
  body text,
  embedding extensions.vector(3072)
);
create index on public.articles
  using hnsw ((embedding::extensions.halfvec(3072)) extensions.halfvec_cosine_ops);

create function public.search_articles(
  p_tenant_id uuid, p_embedding extensions.vector, p_query text, p_langs text[] default null, p_limit int default 10
) returns table (article_id uuid, body text, vector_score float, text_score float)
language plpgsql stable security definer set search_path = public, extensions as $$
begin
  return query
  select a.id, a.body,
         (1 - (a.embedding::halfvec(3072) <=> p_embedding::halfvec(3072)))::float,
         ts_rank(to_tsvector('english', a.body), websearch_to_tsquery('english', p_query))::float
    from articles a
   where a.tenant_id = p_tenant_id
     and (p_langs is null or a.lang = any(p_langs))
   order by a.embedding::halfvec(3072) <=> p_embedding::halfvec(3072)
   limit p_limit;
end
$$;

insert into public.articles
select ('10000000-0000-0000-0000-00000000000' || place)::uuid,
       case place when 3 then 'b0000000-0000-0000-0000-00000000000b' else 'a0000000-0000-0000-0000-00000000000a' end::uuid,
       case place when 2 then 'de' else 'en' end,
       'Invoice number ' || place,
       (select array_agg((one = place)::int + 0.01 order by one) from generate_series(1, 3072) as one)::extensions.vector
  from generate_series(1, 3) as place;
-- call: select right(article_id::text, 1) from search_articles('a0000000-0000-0000-0000-00000000000a', (select embedding from articles order by id limit 1), 'invoice number 1')
-- before: 1 2
-- after: 1 2
-- call: select right(article_id::text, 1) from search_articles('a0000000-0000-0000-0000-00000000000a', (select embedding from articles order by id limit 1), 'invoice', '{de}')
-- before: 2
-- after: 2
-- call: select right(article_id::text, 1) from search_articles(null, (select embedding from articles order by id limit 1), 'invoice number 1')
-- before:
-- after:
