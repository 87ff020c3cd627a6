-- Segments of talks: one function over four tables.
-- adopt: public.segments --model m
create table public.channels (id int primary key, name text);
create table public.talks (id int primary key, channel_id int references public.channels, title text);
create table public.speakers (id int primary key, name text, is_hidden boolean not null);
create table public.segments (
  id bigint primary key,
  talk_id int references public.talks,
  speaker_id int references public.speakers,
  starts_at int,
  text text,
  embedding extensions.vector(3)
);

create function public.search_transcripts(
  query_embedding extensions.vector(3), channel_filter int[] default null, max_results int default 5
) returns table (segment_id bigint, talk text, channel text, speaker text, starts_at int, score float)
language sql stable set search_path = public, extensions as $$
  select s.id, t.title, c.name, p.name, s.starts_at, (1 - (s.embedding <=> query_embedding))::float
    from segments s
    join talks t on t.id = s.talk_id
    join channels c on c.id = t.channel_id
    left join speakers p on p.id = s.speaker_id
   where (channel_filter is null or t.channel_id = any (channel_filter))
     and not coalesce(p.is_hidden, false)
   order by s.embedding <=> query_embedding
   limit max_results
$$;

insert into public.channels values (1, 'Garden'), (2, 'Kitchen');
insert into public.talks values (1, 1, 'Roses'), (2, 2, 'Soup');
insert into public.speakers values (1, 'Ada', false), (2, 'Ben', true);
insert into public.segments values
  (1, 1, 1, 0, 'Cut the roses in March.', '[1, 0, 0]'), (2, 1, 2, 9, 'Never cut roses.', '[1, 0, 0.1]'),
  (3, 2, null, 0, 'Cut the carrots.', '[0.8, 0.4, 0]');
-- call: select talk || '/' || coalesce(speaker, '-') from search_transcripts('[1, 0, 0]')
-- before: Roses/Ada Soup/-
-- after: Roses/Ada Soup/-
-- call: select talk from search_transcripts('[1, 0, 0]', '{2}')
-- before: Soup
-- after: Soup
-- left: it searches by an embedding alone
