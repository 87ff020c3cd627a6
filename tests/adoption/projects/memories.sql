-- Memories of users: a tenant that must be given, filters that need not, and archived rows.
-- adopt: public.memories --model m --rows all
create table public.memories (
  id uuid primary key,
  user_id uuid not null,
  content text not null,
  memory_type text not null,
  importance float not null default 0.5,
  archived_at timestamptz,
  embedding extensions.halfvec(3)
);

create function public.hybrid_search_memories(
  query_text text, query_embedding extensions.halfvec(3), filter_user_id uuid,
  match_threshold float default 0.2, match_count int default 10,
  p_memory_type text default null, min_importance float default 0
) returns table (id uuid, content text, similarity float, combined_score float)
language plpgsql security definer set search_path = public, extensions as $$
begin
  return query
  with semantic as (
    select m.id, 1 - (m.embedding <=> query_embedding) as similarity
      from memories m
     where m.user_id = filter_user_id
       and (p_memory_type is null or m.memory_type = p_memory_type)
       and m.importance >= min_importance
       and m.archived_at is null
       and 1 - (m.embedding <=> query_embedding) > match_threshold
     order by m.embedding <=> query_embedding
     limit match_count * 2
  ),
  keyword as (
    select m.id, ts_rank(to_tsvector('english', m.content), plainto_tsquery('english', query_text)) as rank
      from memories m
     where m.user_id = filter_user_id
       and (p_memory_type is null or m.memory_type = p_memory_type)
       and m.importance >= min_importance
       and m.archived_at is null
       and to_tsvector('english', m.content) @@ plainto_tsquery('english', query_text)
     limit match_count * 2
  )
  select m.id, m.content, coalesce(s.similarity, 0)::float, (0.7 * coalesce(s.similarity, 0) + 0.3 * coalesce(k.rank, 0))::float
    from semantic s
    full outer join keyword k on s.id = k.id
    join memories m on m.id = coalesce(s.id, k.id)
   order by 4 desc
   limit match_count;
end;
$$;

insert into public.memories values
  ('10000000-0000-0000-0000-000000000001', 'a0000000-0000-0000-0000-00000000000a', 'Anna likes green tea.', 'fact', 0.9, null, '[1, 0, 0]'),
  ('10000000-0000-0000-0000-000000000002', 'a0000000-0000-0000-0000-00000000000a', 'Anna drank coffee, not tea.', 'event', 0.2, null, '[0.8, 0.3, 0]'),
  ('10000000-0000-0000-0000-000000000003', 'a0000000-0000-0000-0000-00000000000a', 'Anna likes black tea.', 'fact', 0.9, '2026-01-01', '[0.9, 0.1, 0]'),
  ('10000000-0000-0000-0000-000000000004', 'b0000000-0000-0000-0000-00000000000b', 'Bert likes green tea.', 'fact', 0.9, null, '[1, 0, 0]');
-- call: select right(id::text, 1) from hybrid_search_memories('which tea does she like', '[1, 0, 0]', 'a0000000-0000-0000-0000-00000000000a')
-- before: 1 2
-- after: 1 2
-- call: select right(id::text, 1) from hybrid_search_memories('tea', '[1, 0, 0]', 'a0000000-0000-0000-0000-00000000000a', min_importance => 0.5, p_memory_type => 'fact')
-- before: 1
-- after: 1
-- call: select right(id::text, 1) from hybrid_search_memories('tea', '[1, 0, 0]', null)
-- before:
-- after:
