-- 005_statistics: document frequencies and lengths for BM25, and the spread of cosines for fusion.
-- Adds: tables knowledge_corpus_statistics and knowledge_lexeme_statistics, functions that read and
-- refresh them.
-- Locks nothing that exists.

create table public.knowledge_corpus_statistics (
  id boolean primary key default true check (id),
  document_count float8 not null,
  mean_length float8 not null,
  cosine_spread float8 not null,
  least_frequency float8,
  sample uuid[] not null,
  analysed_at timestamptz,
  analysed_rows float8,
  refreshed_at timestamptz not null default now(),
  shared_id text,
  languages text[] not null default '{}'
);

comment on table public.knowledge_corpus_statistics is
  'One row with statistics of the corpus from the last run of refresh_knowledge_statistics. '
  'cosine_spread: the standard deviation of the cosine of random pairs of chunks. '
  'least_frequency: the smallest in lexeme_statistics. '
  'sample: ids of random chunks, with which a search estimates how many rows pass its filters. '
  'analysed_at and analysed_rows identify the ANALYZE that was copied. shared_id: the statistics '
  'are those of a corpus in several databases, set by set_knowledge_statistics, and languages are '
  'the text search configurations of that corpus; only sample and the time of ANALYZE are own.';

-- Each refresh updates nearly all rows. With space on their pages and no index on frequency, the
-- new versions replace the old ones there, and neither table nor index grows.
create table public.knowledge_lexeme_statistics (
  lexeme text collate "C" primary key,
  frequency float8 not null
) with (fillfactor = 45);

comment on table public.knowledge_lexeme_statistics is
  'The most common lexemes and the share of chunks that have them. A copy of the planner''s '
  'statistics, because parsing their arrays is slow.';

alter table public.knowledge_corpus_statistics enable row level security;
alter table public.knowledge_lexeme_statistics enable row level security;
revoke all on table public.knowledge_corpus_statistics, public.knowledge_lexeme_statistics
  from public, anon, authenticated, service_role;

-- The most common lexemes (at most 10,000) with the share of chunks that have them, from the last
-- ANALYZE.
create function knowledge_internal.listed_frequencies()
returns table (lexeme text, frequency float8)
language sql stable security invoker set search_path = pg_catalog, pg_temp as $$
  -- The last three entries of most_common_elem_freqs are the minimum, the maximum and the frequency
  -- of null; they have no lexeme.
  select listed.lexeme, listed.frequency
    from knowledge_internal.column_statistics('content_tsv') as statistics
   cross join unnest(statistics.elements, statistics.element_shares) as listed (lexeme, frequency)
   where listed.lexeme is not null
$$;

-- The standard deviation of the cosine similarity of the pairs of a sample of chunks. It makes the
-- cosines of different models comparable. 0.13 if there are fewer than 10 pairs.
create function knowledge_internal.sampled_spread(sample_size integer) returns float8
language sql stable security invoker set search_path = pg_catalog, pg_temp as $$
  -- Twenty times as many pages as needed: rows of one page are often about the same subject.
  -- Materialized, so that a vector in TOAST storage is fetched only once.
  with sample as materialized (
    select extensions.l2_normalize(chunk.embedding) as direction, chunk.id
      from public.knowledge_chunks as chunk
           tablesample system (
             least(100, 2000.0 * sample_size / (
               select greatest(stored.pages, 1) from knowledge_internal.chunk_table() as stored
             ))
           ) repeatable (1)
     where chunk.status = 'active'
       and chunk.embedding is not null
     order by hashtextextended(chunk.id::text, 0), chunk.id
     limit sample_size
  )
  select case
           when count(*) < 10 then 0.13
           else greatest(stddev(one.direction operator(extensions.<#>) other.direction), 0.02)
         end
    from sample as one
    join sample as other on other.id < one.id
$$;

-- The standard deviation of the cosine of random pairs of chunks, from
-- refresh_knowledge_statistics; before its first run, of a small sample.
create function knowledge_internal.cosine_spread() returns float8
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  readings constant jsonb := knowledge_internal.shard_readings();
begin
  return coalesce(
    case when readings is not null
      then (knowledge_internal.shared_corpus(readings)).cosine_spread end,
    (select corpus.cosine_spread from public.knowledge_corpus_statistics as corpus),
    knowledge_internal.sampled_spread(48)
  );
end
$$;

-- Security definer, because service_role has no rights on the internal tables.
create function public.refresh_knowledge_statistics() returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
-- The calling write turns these off; here, tables are read as a whole.
set enable_seqscan = on
set enable_hashjoin = on
set enable_mergejoin = on as $$
declare
  chunks constant regclass := knowledge_internal.physical_table();
  sampled_rows constant float8 := 5000;
  kept_rows constant integer := 200;
  last_analysed_at constant timestamptz := greatest(
    pg_stat_get_last_analyze_time(chunks), pg_stat_get_last_autoanalyze_time(chunks)
  );
  table_rows constant float8 := knowledge_internal.analysed_rows();
  sampled_mean float8;
  kept uuid[];
  spread float8;
  least float8;
  is_shared boolean;
begin
  -- Return if there was no ANALYZE, or none since the last copy, or another session copies now.
  if coalesce(table_rows, 0) = 0
     or exists (
       select from public.knowledge_corpus_statistics as corpus
        where corpus.analysed_at is not distinct from last_analysed_at
          and corpus.analysed_rows = table_rows
     )
     or not pg_try_advisory_xact_lock(chunks::oid::bigint)
  then
    return false;
  end if;

  select avg(sample.text_length),
         (array_agg(sample.id order by hashtextextended(sample.id::text, 0)))[:kept_rows]
    into sampled_mean, kept
    from public.knowledge_chunks as sample
         tablesample system (least(100, 100 * sampled_rows / table_rows))
   where sample.status = 'active';
  if sampled_mean is null then
    return false;
  end if;

  -- The statistics of a corpus in several databases stay until they are set again.
  update public.knowledge_corpus_statistics as corpus
     set sample = kept, analysed_at = last_analysed_at, analysed_rows = table_rows
   where corpus.shared_id is not null
  returning true into is_shared;
  if is_shared then
    perform knowledge_internal.tidy_words();
    return true;
  end if;

  with listed as materialized (
    select entry.lexeme, entry.frequency from knowledge_internal.listed_frequencies() as entry
  ),
  dropped as (
    delete from public.knowledge_lexeme_statistics as known
     where not exists (select from listed where listed.lexeme = known.lexeme)
  )
  insert into public.knowledge_lexeme_statistics as known (lexeme, frequency)
  select listed.lexeme, listed.frequency from listed
      on conflict (lexeme) do update
     set frequency = excluded.frequency
   where known.frequency <> excluded.frequency;

  -- Separate statements: Citus rejects functions that read a table in the values of an insert.
  spread := knowledge_internal.sampled_spread(200);
  least := (select min(known.frequency) from public.knowledge_lexeme_statistics as known);
  insert into public.knowledge_corpus_statistics as corpus
         (
           document_count, mean_length, cosine_spread, least_frequency, sample, analysed_at,
           analysed_rows
         )
  values (
           table_rows, greatest(sampled_mean, 1), spread, least, kept, last_analysed_at, table_rows
         )
      on conflict (id) do update
     set document_count = excluded.document_count,
         mean_length = excluded.mean_length,
         cosine_spread = excluded.cosine_spread,
         least_frequency = excluded.least_frequency,
         sample = excluded.sample,
         analysed_at = excluded.analysed_at,
         analysed_rows = excluded.analysed_rows,
         refreshed_at = excluded.refreshed_at;
  perform knowledge_internal.tidy_words();
  return true;
end
$$;

comment on function public.refresh_knowledge_statistics() is
  'Copies document frequencies from the planner''s statistics after an ANALYZE, and samples mean '
  'length and cosine_spread. Returns true if it copied new statistics. Every '
  'write to knowledge_chunks calls it, so call it only after an ANALYZE without later writes.';
revoke all on function public.refresh_knowledge_statistics() from public, anon, authenticated;
grant execute on function public.refresh_knowledge_statistics() to service_role;

-- A search counts the statistics of a corpus of at most so many chunks and compares all its
-- embeddings. The tests lower it to 0, to run their few rows through the rest of the search.
create function knowledge_internal.small_corpus_limit() returns integer
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return 1000; -- chunks
end
$$;

-- Number of chunks and their mean text_length, from refresh_knowledge_statistics. Before its first
-- run, and while there are at most small_corpus_limit() chunks, they are computed here.
create function knowledge_internal.corpus_size(
  out document_count float8, out mean_length float8, out is_small boolean
)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
-- The calling search turns enable_seqscan off, but a sequential scan is fastest for a small table.
set enable_seqscan = on as $$
declare
  small constant integer := knowledge_internal.small_corpus_limit();
  most_counted constant integer := 1001; -- chunks
  readings constant jsonb := knowledge_internal.shard_readings();
begin
  if readings is not null then
    select corpus.document_count, corpus.mean_length, false
      into document_count, mean_length, is_small
      from knowledge_internal.shared_corpus(readings) as corpus;
    return;
  end if;
  select corpus.document_count, corpus.mean_length, false
    into document_count, mean_length, is_small
    from public.knowledge_corpus_statistics as corpus
   where corpus.document_count > small;
  if found then
    return;
  end if;

  -- The statistics of a small corpus, or of one without ANALYZE, are counted here.
  select count(*), greatest(avg(chunk.text_length), 1), count(*) <= small
    into document_count, mean_length, is_small
    from (
      select active.text_length
        from public.knowledge_chunks as active
       where active.status = 'active'
       limit most_counted
    ) as chunk;
  if not is_small then
    select greatest(facts.analysed_rows, document_count)
      into document_count
      from knowledge_internal.chunk_table() as facts;
  end if;
end
$$;

-- The number of chunks that have a lexeme, at most 20,000.
create function knowledge_internal.counted_chunks(lexeme text) returns bigint
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  counted_at_most constant integer := 20000;
begin
  return (
    select count(*)
      from (
        select
          from public.knowledge_chunks as chunk
         where chunk.status = 'active'
           and chunk.content_tsv @@ knowledge_internal.quoted_lexeme(lexeme)::tsquery
         limit counted_at_most
      ) as matching_chunk
  );
end
$$;

-- The number of chunks with each lexeme, in the order of the lexemes: from the statistics if they
-- list it, else counted. In a search of several databases, what these counted.
create function knowledge_internal.document_frequencies(
  lexemes text[], corpus_is_small boolean, document_count float8
) returns float8[]
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  readings constant jsonb := knowledge_internal.shard_readings();
begin
  if readings is not null then
    return knowledge_internal.shared_frequencies(lexemes, readings);
  elsif knowledge_internal.is_recording() then
    return knowledge_internal.recorded_frequencies(lexemes, corpus_is_small, document_count);
  elsif not corpus_is_small and not exists (select from public.knowledge_corpus_statistics) then
    return array(
      select coalesce(
               listed.frequency * document_count, knowledge_internal.counted_chunks(asked.lexeme)
             )
        from unnest(lexemes) with ordinality as asked (lexeme, place)
        left join knowledge_internal.listed_frequencies() as listed on listed.lexeme = asked.lexeme
       order by asked.place
    );
  end if;
  -- A lexeme that ANALYZE did not list is rare, so counting its chunks is cheap. In a small corpus
  -- counting is always cheap.
  return array(
    select coalesce(
             listed.frequency * document_count, knowledge_internal.counted_chunks(asked.lexeme)
           )
      from unnest(lexemes) with ordinality as asked (lexeme, place)
      left join public.knowledge_lexeme_statistics as listed
        on listed.lexeme = asked.lexeme
       and not corpus_is_small
     order by asked.place
  );
end
$$;

notify pgrst, 'reload schema';
