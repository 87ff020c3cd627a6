-- 029_query_log: what was searched for, how long it took and what it found; off by default.
-- Module: insight.
-- Adds: table knowledge_query_log, the key of its marks, functions record_knowledge_queries and
-- report_knowledge_queries. Locks nothing that exists.
-- Written from supabase/schemas/modules/insight/29_query_log.sql by `make baseline`: edit that file.

-- The search itself only reads, so the retrieval service writes the log after its answers.
create table public.knowledge_query_log (
  id uuid primary key default gen_random_uuid(),
  asked_at timestamptz not null,
  question text not null check (length(question) between 1 and 500),
  collections text[],
  mode text not null check (mode in ('hybrid', 'vector', 'text', 'rerank')),
  mode_used text check (mode_used in ('hybrid', 'vector', 'text', 'rerank')),
  hits integer check (hits >= 0),
  confidence real check (confidence between 0 and 1),
  embed_ms real not null check (embed_ms >= 0),
  search_ms real not null check (search_ms >= 0),
  rerank_ms real not null check (rerank_ms >= 0),
  total_ms real not null check (total_ms >= 0),
  is_cached boolean not null,
  degraded text check (length(degraded) <= 60),
  error_kind text check (length(error_kind) <= 60),
  viewer_mark bytea check (length(viewer_mark) = 48)
);

comment on table public.knowledge_query_log is
  'Searches of the retrieval service, if its setting QUERY_LOG is on. The oldest lines are deleted '
  'when new ones are written. It has no id of a user.';
comment on column public.knowledge_query_log.question is
  'The question as typed, cut to 500 characters.';
comment on column public.knowledge_query_log.hits is
  'Results on the first page; null for a search that failed.';
comment on column public.knowledge_query_log.confidence is
  'The highest confidence of a result; null without a result.';
comment on column public.knowledge_query_log.viewer_mark is
  'A random salt and a digest of the viewer with that salt and a key of this database. It tells '
  'who asked only to a function that has the key and is given the id of the user, so that the '
  'lines of a user can be erased. Two lines of one user have different marks.';

create index knowledge_query_log_asked_at on public.knowledge_query_log (asked_at, id);

alter table public.knowledge_query_log enable row level security;
create policy knowledge_query_log_none on public.knowledge_query_log
  to anon, authenticated using (false);
revoke all on table public.knowledge_query_log from public, anon, authenticated, service_role;
grant select, delete on table public.knowledge_query_log to service_role;

create table public.knowledge_query_log_key (
  is_only boolean primary key default true check (is_only),
  secret bytea not null check (length(secret) = 32)
);

comment on table public.knowledge_query_log_key is
  'The key of the marks of viewers in the query log: one row, written with the first mark.';

alter table public.knowledge_query_log_key enable row level security;
create policy knowledge_query_log_key_none on public.knowledge_query_log_key
  to anon, authenticated using (false);
revoke all on table public.knowledge_query_log_key
  from public, anon, authenticated, service_role;

-- The mark of a viewer in a line of the query log: the salt of 16 bytes, and a digest of it, of the
-- key of 32 bytes and of the viewer. Null without a viewer.
create function knowledge_internal.viewer_mark(secret bytea, salt bytea, viewer uuid) returns bytea
language sql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp as $$
  select salt || sha256(secret || salt || uuid_send(viewer))
$$;

-- The extension point: deletes the judgments of this owner, and the lines of the query log in which
-- the owner asked.
create or replace function knowledge_internal.erase_derived(owner uuid) returns bigint
language plpgsql volatile security invoker set search_path = pg_catalog, pg_temp as $$
declare
  secret constant bytea := (select key.secret from public.knowledge_query_log_key as key);
  deleted bigint;
begin
  with judgments as (
    delete from public.knowledge_judgments as judgment where judgment.judged_by = owner
    returning judgment.id
  ),
  lines as (
    delete from public.knowledge_query_log as line
     where line.viewer_mark = knowledge_internal.viewer_mark(
             secret, substring(line.viewer_mark from 1 for 16), owner
           )
    returning line.id
  )
  select (select count(*) from judgments) + (select count(*) from lines) into deleted;
  return deleted;
end
$$;

create function public.record_knowledge_queries(
  queries jsonb, most_rows integer default 10000, max_age interval default '30 days'
) returns integer
-- definer: service_role may not insert into the log, and has no rights on the key of the marks.
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
  most_queries constant integer := 500;
  longest_question constant integer := 500; -- characters
  largest_log constant integer := 100000;
  longest_age constant interval := '3650 days';
  written integer;
begin
  perform knowledge_internal.check_caller('record_knowledge_queries');
  if (
    jsonb_typeof(queries) = 'array' and jsonb_array_length(queries) <= most_queries
  ) is not true then
    raise exception 'queries must be an array of at most % objects', most_queries
      using errcode = '22023';
  end if;
  perform knowledge_internal.check_range('most_rows', most_rows, 1, largest_log);
  if (max_age > '0' and max_age <= longest_age) is not true then
    raise exception 'max_age must be above 0 and at most %, not %',
                    longest_age, coalesce(max_age::text, 'null')
      using errcode = '22023';
  end if;
  insert into public.knowledge_query_log_key (secret)
  select sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()))
   where queries @? '$[*].viewer_id ? (@ != null)'
  on conflict do nothing;
  begin
    insert into public.knowledge_query_log (
      asked_at, question, collections, mode, mode_used, hits, confidence, embed_ms, search_ms,
      rerank_ms, total_ms, is_cached, degraded, error_kind, viewer_mark
    )
    -- The clock, not now(): the lines of a call have an order.
    select clock_timestamp()
             - make_interval(secs => greatest(coalesce(given.seconds_ago, 0), 0)),
           left(given.question, longest_question), given.collections, given.mode, given.mode_used,
           given.hits, given.confidence, coalesce(given.embed_ms, 0), coalesce(given.search_ms, 0),
           coalesce(given.rerank_ms, 0), given.total_ms, coalesce(given.is_cached, false),
           given.degraded, given.error_kind,
           case
             when given.viewer_id is not null then knowledge_internal.viewer_mark(
               (select key.secret from public.knowledge_query_log_key as key),
               uuid_send(gen_random_uuid()), given.viewer_id
             )
           end
      from jsonb_to_recordset(queries) as given (
             seconds_ago float8, question text, collections text[], mode text, mode_used text,
             hits integer, confidence real, embed_ms real, search_ms real, rerank_ms real,
             total_ms real, is_cached boolean, degraded text, error_kind text, viewer_id uuid
           );
    get diagnostics written = row_count;
  exception when data_exception or integrity_constraint_violation then
    raise exception 'queries has a value that is missing or wrong: %', left(sqlerrm, 200)
      using errcode = '22023';
  end;
  -- skip locked: another writer deletes these lines now.
  delete from public.knowledge_query_log as line
   where line.id = any (array(
           select old.id
             from public.knowledge_query_log as old
            where old.asked_at < now() - max_age
               or (old.asked_at, old.id) <= (
                    select last.asked_at, last.id
                      from public.knowledge_query_log as last
                     order by last.asked_at desc, last.id desc
                     limit 1
                    offset most_rows
                  )
              for update skip locked
         ));
  return written;
end
$$;

comment on function public.record_knowledge_queries is
  'Adds up to 500 searches to the query log, and deletes the oldest lines: at most most_rows (1 to '
  '100000) are left, and none is older than max_age (at most 3650 days). Keys of a search: '
  'question, mode, total_ms; seconds_ago, collections, mode_used, hits, confidence, embed_ms, '
  'search_ms, rerank_ms, is_cached, degraded, error_kind. viewer_id is stored as a mark only. '
  'Returns the number of added lines. Raises 22023 for a wrong value; then none is added.';
revoke all on function public.record_knowledge_queries from public, anon, authenticated;
grant execute on function public.record_knowledge_queries to service_role;

create function public.report_knowledge_queries(
  since timestamptz default null, most integer default 20
) returns jsonb
-- definer: service_role has no rights on the internal schema.
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
begin
  perform knowledge_internal.check_caller('report_knowledge_queries');
  perform knowledge_internal.check_range('most', most, 1, 200);
  return (
    with line as materialized (
      select logged.*,
             -- Questions that differ only in case, spaces and the marks at their end are one.
             coalesce(
               nullif(
                 rtrim(btrim(regexp_replace(lower(logged.question), '\s+', ' ', 'g')), ' ?!.'), ''
               ),
               logged.question
             ) as normalised,
             -- An answer from the cache says nothing about the time of a search.
             case when not logged.is_cached and logged.error_kind is null then logged.total_ms end
               as answered_ms
        from public.knowledge_query_log as logged
       where since is null
          or logged.asked_at >= since
    ),
    asked as materialized (
      select (array_agg(line.question order by line.asked_at desc, line.id))[1] as question,
             (
               array_agg(to_jsonb(line.collections) order by line.asked_at desc, line.id)
             )[1] as collections,
             count(*) as searches,
             count(*) filter (where line.hits = 0) as empty,
             count(*) filter (where line.error_kind is not null) as failed,
             count(*) filter (where line.degraded is not null) as degraded,
             avg(line.confidence) as confidence,
             percentile_cont(0.5) within group (order by line.answered_ms) as p50_ms,
             percentile_cont(0.95) within group (order by line.answered_ms) as p95_ms,
             max(line.asked_at) as last_asked
        from line
       group by line.normalised
    ),
    listed as (
      select 'frequent' as kind, asked.*,
             row_number() over (order by asked.searches desc, asked.question) as place
        from asked
      union all
      select 'slow', asked.*, row_number() over (order by asked.p95_ms desc, asked.question)
        from asked
       where asked.p95_ms is not null
      union all
      select 'without_hits', asked.*,
             row_number() over (order by asked.empty desc, asked.question)
        from asked
       where asked.empty > 0
      union all
      select 'unsure', asked.*, row_number() over (order by asked.confidence, asked.question)
        from asked
       where asked.confidence is not null
    ),
    kinds as (
      select listed.kind,
             jsonb_agg(to_jsonb(listed.*) - 'kind' - 'place' order by listed.place) as questions
        from listed
       where listed.place <= most
       group by listed.kind
    )
    select jsonb_build_object(
             'searches', count(*),
             'questions', (select count(*) from asked),
             'empty', count(*) filter (where line.hits = 0),
             'failed', count(*) filter (where line.error_kind is not null),
             'degraded', count(*) filter (where line.degraded is not null),
             'cached', count(*) filter (where line.is_cached),
             'p50_ms', percentile_cont(0.5) within group (order by line.answered_ms),
             'p95_ms', percentile_cont(0.95) within group (order by line.answered_ms),
             'first_asked', min(line.asked_at),
             'last_asked', max(line.asked_at)
           )
             || '{"frequent": [], "slow": [], "without_hits": [], "unsure": []}'
             || coalesce((select jsonb_object_agg(kinds.kind, kinds.questions) from kinds), '{}')
      from line
  );
end
$$;

comment on function public.report_knowledge_queries is
  'What the query log says since a time (null: all of it), as one JSON object: searches, questions '
  '(different ones), empty, failed, degraded, cached, p50_ms, p95_ms, first_asked, last_asked, and '
  'lists of questions, each of at most most (1 to 200): frequent, slow (by p95_ms), '
  'without_hits and unsure (lowest mean confidence first). Questions that differ in case, '
  'spaces and marks at their end are one. Times are without failed and cached searches. Raises '
  '22023 for most out of bounds.';
revoke all on function public.report_knowledge_queries from public, anon, authenticated;
grant execute on function public.report_knowledge_queries to service_role;

revoke all on all functions in schema knowledge_internal from public;

notify pgrst, 'reload schema';
