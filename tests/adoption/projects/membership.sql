-- Pages of teams: row level security by membership; the function runs as its caller.
-- adopt: public.pages --model m
create table public.members (team_id int not null, user_id uuid not null, primary key (team_id, user_id));

create table public.pages (
  id int primary key,
  team_id int not null,
  content text,
  embedding extensions.vector(3)
);
create index on public.pages using hnsw (embedding extensions.vector_cosine_ops);
alter table public.members enable row level security;
alter table public.pages enable row level security;
create policy own on public.members for select using (user_id = auth.uid());
create policy team on public.pages for select to authenticated
  using (team_id in (select members.team_id from public.members where members.user_id = auth.uid()));
grant select on public.members, public.pages to anon, authenticated;

create function public.search_pages(query_embedding extensions.vector(3), match_count int default 5)
returns setof public.pages language sql stable set search_path = public, extensions as $$
  select pages.* from pages order by pages.embedding <=> query_embedding limit match_count
$$;

insert into public.members values
  (1, 'a0000000-0000-0000-0000-00000000000a'), (2, 'b0000000-0000-0000-0000-00000000000b');
insert into public.pages values
  (1, 1, 'Plan of team one.', '[1, 0, 0]'), (2, 2, 'Plan of team two.', '[1, 0, 0]'),
  (3, 1, 'Budget of team one.', '[0, 1, 0]');
-- user: a0000000-0000-0000-0000-00000000000a
-- call: select id from search_pages('[1, 0, 0]')
-- before: 1 3
-- after: 1 3
-- user: anon
-- call: select id from search_pages('[1, 0, 0]')
-- before:
-- after:
