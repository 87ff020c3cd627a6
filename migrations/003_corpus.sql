-- 003_corpus: what is known of the whole corpus: its size, statistics and settings.
-- Adds: tables knowledge_corpus_statistics, knowledge_lexeme_statistics and knowledge_settings, and
-- the functions that read and set them. Locks nothing that exists.
-- Written from supabase/schemas/core/03_corpus.sql by `make baseline`: edit that file.

-- Extension point: the table that stores the chunks, for all who read its catalogue entries. For
-- another table than knowledge_chunks, the search makes no generic plans.
create function knowledge_internal.physical_table() returns regclass
language plpgsql stable parallel safe security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return 'public.knowledge_chunks'::regclass;
end
$$;

create table public.knowledge_corpus_statistics (
  id boolean primary key default true check (id),
  document_count float8 not null,
  mean_length float8 not null,
  content_words float8 not null default 0,
  distinct_words float8 not null default 0,
  cosine_spread float8 not null,
  least_frequency float8,
  sample uuid[] not null,
  language_shares jsonb,
  analysed_at timestamptz,
  analysed_rows float8,
  refreshed_at timestamptz not null default now()
);

comment on table public.knowledge_corpus_statistics is
  'One row: statistics of the corpus from the last refresh_knowledge_statistics. mean_length, '
  'content_words, distinct_words: means of a chunk. cosine_spread: the standard deviation of the '
  'cosine of random pairs of chunks. least_frequency: the smallest in knowledge_lexeme_statistics. '
  'sample: ids of random chunks. language_shares: of the chunks, by language. analysed_at, '
  'analysed_rows: the ANALYZE that was copied.';

-- Each refresh updates nearly all rows. With space on their pages and no index on frequency, the
-- new versions replace the old ones there, and neither table nor index grows.
create table public.knowledge_lexeme_statistics (
  lexeme text collate "C" primary key,
  frequency float8 not null
) with (fillfactor = 45);

comment on table public.knowledge_lexeme_statistics is
  'The most common lexemes and the share of chunks that have them: a copy of the planner''s '
  'statistics, because parsing their arrays is slow.';

alter table public.knowledge_corpus_statistics enable row level security;
alter table public.knowledge_lexeme_statistics enable row level security;
create policy knowledge_corpus_statistics_none on public.knowledge_corpus_statistics
  to anon, authenticated using (false);
create policy knowledge_lexeme_statistics_none on public.knowledge_lexeme_statistics
  to anon, authenticated using (false);
revoke all on table public.knowledge_corpus_statistics, public.knowledge_lexeme_statistics
  from public, anon, authenticated, service_role;

-- What the system catalogues say of the table of chunks. stored_rows: estimated from the current
-- number of pages and from what the last ANALYZE or VACUUM counted, analysed_rows; both null before
-- the first one and after a truncate. estimated_rows: the active ones of them. least_rows: the
-- fewest there can be by the counters of the server, which know of a deletion before an ANALYZE,
-- but can have it twice; null where a crash has reset them. analysed_at: the last ANALYZE that they
-- know of. A table without pages is empty, or its rows are on other machines: then the last refresh
-- of the statistics has counted them.
create view knowledge_internal.chunk_table with (security_invoker = true) as
select facts.relation, facts.pages, facts.dimensions, facts.analysed_rows, facts.analysed_at,
       facts.pages * facts.rows_on_a_page as stored_rows,
       case
         when facts.pages = 0 then coalesce(
           (select corpus.document_count from public.knowledge_corpus_statistics as corpus), 0
         )
         -- Five rows on a page, in a table that was never analysed.
         else greatest(
           facts.pages * coalesce(facts.rows_on_a_page, 5) - coalesce(facts.inactive_rows, 0), 0
         )
       end as estimated_rows,
       case when facts.pages > 0 and facts.analysed_at is not null then facts.live_rows end
         as least_rows
  from (
    select class.oid as relation,
           pg_relation_size(class.oid) / current_setting('block_size')::bigint as pages,
           nullif(class.reltuples, -1)::float8 as analysed_rows,
           nullif(class.reltuples, -1)::float8 / nullif(class.relpages, 0) as rows_on_a_page,
           -- With Citus, the index of a shard has the shard's number in its name, too.
           (
             select greatest(index.reltuples, 0)
               from pg_catalog.pg_class as index
              where index.relnamespace = class.relnamespace
                and index.relname
                      = replace(class.relname, 'knowledge_chunks', 'knowledge_chunks_status')
           ) as inactive_rows,
           -- What this session has deleted is counted up to a second later.
           pg_stat_get_live_tuples(class.oid) - pg_stat_get_xact_tuples_deleted(class.oid)
             as live_rows,
           greatest(
             pg_stat_get_last_analyze_time(class.oid), pg_stat_get_last_autoanalyze_time(class.oid)
           ) as analysed_at,
           (
             select nullif(attribute.atttypmod, -1)
               from pg_catalog.pg_attribute as attribute
              where attribute.attrelid = class.oid and attribute.attname = 'embedding'
           ) as dimensions
      from pg_catalog.pg_class as class
     where class.oid = knowledge_internal.physical_table()
    offset 0
  ) as facts;
revoke all on table knowledge_internal.chunk_table from public, anon, authenticated, service_role;

-- The most common lexemes, at most 10,000, or languages, with the share of chunks that have them,
-- from the last ANALYZE. The last three entries of most_common_elem_freqs are the minimum, the
-- maximum and the frequency of null; they have no lexeme.
create function knowledge_internal.listed_frequencies(column_name text default 'content_tsv')
returns table (value text, frequency float8)
language sql stable security invoker set search_path = pg_catalog, pg_temp as $$
  select listed.value, listed.frequency
    from pg_catalog.pg_class as class
    join pg_catalog.pg_namespace as namespace on namespace.oid = class.relnamespace
    join pg_catalog.pg_stats as statistics
      on statistics.schemaname = namespace.nspname
     and statistics.tablename = class.relname
     and statistics.attname = column_name
   cross join unnest(
           coalesce(statistics.most_common_elems, statistics.most_common_vals)::text::text[],
           coalesce(statistics.most_common_elem_freqs, statistics.most_common_freqs)
         ) as listed (value, frequency)
   where class.oid = knowledge_internal.physical_table()
     and listed.value is not null
$$;

-- The standard deviation of the cosine of the pairs of a sample of chunks, which makes the cosines
-- of different models comparable; 0.13 for fewer than 10 pairs. Twenty times as many pages are read
-- as needed: rows of one page are often about the same subject. Materialized, so that a vector in
-- TOAST storage is fetched only once.
create function knowledge_internal.sampled_spread(sample_size integer) returns float8
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  percent constant float8 := (
    select least(100, 2000.0 * sample_size / greatest(stored.pages, 1))
      from knowledge_internal.chunk_table as stored
  );
begin
  return (
    with sample as materialized (
      select extensions.l2_normalize(row.embedding) as direction, row.id
        from knowledge_internal.chunk_rows as row
       where row.embedding is not null
         and row.id = any (array(
               select chunk.id
                 from public.knowledge_chunks as chunk
                      tablesample system (percent) repeatable (1)
                where chunk.status = 'active'
                  and chunk.embedding_bits is not null
                order by hashtextextended(chunk.id::text, 0), chunk.id
                limit sample_size
             ))
    )
    select case
             when count(*) < 10 then 0.13
             else greatest(stddev(one.direction operator(extensions.<#>) other.direction), 0.02)
           end
      from sample as one
      join sample as other on other.id < one.id
  );
end
$$;

-- Extension point: copies the statistics of the last ANALYZE.
create function public.refresh_knowledge_statistics() returns boolean
-- definer: service_role has no rights on the internal tables.
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
-- The calling write turns these off; here, tables are read as a whole.
set enable_seqscan = on
set enable_hashjoin = on
set enable_mergejoin = on as $$
declare
  chunks constant regclass := knowledge_internal.physical_table();
  sampled_rows constant float8 := 5000;
  kept_rows constant integer := 200;
  -- As in chunk_table, of which each write would read all.
  last_analysed_at constant timestamptz := greatest(
    pg_stat_get_last_analyze_time(chunks), pg_stat_get_last_autoanalyze_time(chunks)
  );
  table_rows constant float8 := (
    select class.reltuples from pg_catalog.pg_class as class where class.oid = chunks
  );
  sampled record;
  spread float8;
  least float8;
  languages jsonb;
begin
  perform knowledge_internal.check_caller('refresh_knowledge_statistics');
  -- Return if there was no ANALYZE, or none since the last copy, or another session copies now.
  if table_rows <= 0
     or exists (
       select from public.knowledge_corpus_statistics as corpus
        where corpus.analysed_at is not distinct from last_analysed_at
          and corpus.analysed_rows = table_rows
     )
     or not pg_try_advisory_xact_lock(chunks::oid::bigint)
  then
    return false;
  end if;

  select avg(sample.text_length) as mean_length, avg(sample.content_words) as content_words,
         avg(sample.distinct_words) as distinct_words,
         (array_agg(sample.id order by hashtextextended(sample.id::text, 0)))[:kept_rows] as kept
    into sampled
    from public.knowledge_chunks as sample
         tablesample system (least(100, 100 * sampled_rows / table_rows))
   where sample.status = 'active';
  if sampled.mean_length is null then
    return false;
  end if;

  with listed as materialized (
    select entry.value as lexeme, entry.frequency
      from knowledge_internal.listed_frequencies() as entry
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
  languages := (
    select jsonb_object_agg(entry.value, entry.frequency)
      from knowledge_internal.listed_frequencies('language') as entry
  );
  delete from public.knowledge_corpus_statistics;
  insert into public.knowledge_corpus_statistics (
    document_count, mean_length, content_words, distinct_words, cosine_spread, least_frequency,
    sample, language_shares, analysed_at, analysed_rows
  )
  values (
    table_rows, greatest(sampled.mean_length, 1), sampled.content_words, sampled.distinct_words,
    spread, least, sampled.kept, languages, last_analysed_at, table_rows
  );
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

create table public.knowledge_settings (
  collection text primary key default '' check (length(collection) <= 200),
  fusion text,
  vector_weight double precision not null default 1
    check (vector_weight = 0 or vector_weight between 1e-15 and 1e15),
  text_weight double precision not null default 1
    check (text_weight = 0 or text_weight between 1e-15 and 1e15),
  embedding_model text check (length(embedding_model) between 1 and 200),
  bm25_k1 double precision check (bm25_k1 between 0 and 10),
  bm25_b double precision check (bm25_b between 0 and 1),
  heading_weight integer check (heading_weight between 0 and 5),
  title_weight integer check (title_weight between 0 and 5),
  text_keys text[] check (cardinality(text_keys) <= 10),
  updated_at timestamptz not null default now(),
  measured jsonb check (jsonb_typeof(measured) = 'object'),
  check (vector_weight > 0 or text_weight > 0)
);

comment on table public.knowledge_settings is
  'How a collection is searched where a caller does not say: fusion, and the weights that the '
  'caller''s weights multiply. The collection '''' holds for every other collection, and for a '
  'search of several. embedding_model: the model whose embeddings the collection should have. '
  'bm25_k1, bm25_b: of BM25; null: 1.2, and by the corpus. '
  'heading_weight, title_weight, text_keys: of the module field_weights; null: those of ''''. '
  'measured: on what the fusion and the weights were measured and when, and what the ranking '
  'depends on as it was then; null: they were not measured.';

alter table public.knowledge_settings enable row level security;
create policy knowledge_settings_none on public.knowledge_settings
  to anon, authenticated using (false);
revoke all on table public.knowledge_settings from public, anon, authenticated;
grant select, insert, update, delete on table public.knowledge_settings to service_role;

create table public.knowledge_model_weights (
  model text primary key check (length(model) between 1 and 200),
  vector_weight double precision not null check (vector_weight between 1e-3 and 1e3)
);

comment on table public.knowledge_model_weights is
  'The fusions auto and relative_score multiply vector_weight by the weight of the model that made '
  'the embeddings, 1 for a model that is not here. A small model needs less than 1. Such a weight '
  'counts to the power of 1 + 25 / words of a chunk: it tells short texts apart even less.';

-- docs/ranking.md measures it.
insert into public.knowledge_model_weights (model, vector_weight)
values ('wordllama-l2-256', 0.7), ('wordllama-l2-128', 0.7), ('wordllama-l2-64', 0.7);

alter table public.knowledge_model_weights enable row level security;
create policy knowledge_model_weights_none on public.knowledge_model_weights
  to anon, authenticated using (false);
revoke all on table public.knowledge_model_weights from public, anon, authenticated;
grant select, insert, update, delete on table public.knowledge_model_weights to service_role;

-- The weight of this model; null: of the model of all embeddings, and 1 if they have several.
create function knowledge_internal.model_weight(model text) returns double precision
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
-- The first and the last model are read from the index on embedding_model.
set enable_seqscan = off as $$
declare
  weight float8;
begin
  if model is null then
    select case when used.first = used.last then used.first end
      into model
      from (
        select min(coalesce(chunk.embedding_model, '')) as first,
               max(coalesce(chunk.embedding_model, '')) as last
          from public.knowledge_chunks as chunk
         where chunk.status = 'active' and chunk.embedding_bits is not null
      ) as used;
  end if;
  select weights.vector_weight
    into weight
    from public.knowledge_model_weights as weights
   where weights.model = model_weight.model;
  return coalesce(weight, 1);
end
$$;

-- The model whose embeddings a collection should have: its own setting, else that for all others.
create function knowledge_internal.model_of_collection(name text) returns text
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return (
    select settings.embedding_model
      from public.knowledge_settings as settings
     where settings.collection in (name, '') and settings.embedding_model is not null
     order by settings.collection = '', settings.collection
     limit 1
  );
end
$$;

-- What a search has to know beside its arguments, read once. is_here: the rows are in the table
-- knowledge_chunks of this database. cosine_scale: what fusion auto divides a cosine by.
-- neighbour_weight: of scores_with_neighbours, null for no bonus. dimensions: of the column of
-- embeddings. chunk_count: active chunks, estimated. document_count, mean_length: of BM25.
-- frequencies_from: copy (knowledge_lexeme_statistics), analysis (the planner's statistics) or
-- count. configurations: those that the chunks were analysed with, each in its own language; null
-- in an empty corpus. statistics: where document_count and mean_length are of some chunks, what
-- frequencies_in_scope needs; null: of all.
create type knowledge_internal.search_settings as (
  is_here boolean, fusion text, vector_weight double precision, text_weight double precision,
  cosine_scale double precision, neighbour_weight double precision, dimensions integer,
  chunk_count double precision, document_count double precision, mean_length double precision,
  frequencies_from text, k1 double precision, b double precision, configurations regconfig[],
  statistics jsonb
);

-- The figures of a corpus of at most 1,000 chunks; of a larger one those of 1,001 chunks.
create function knowledge_internal.counted_corpus(
  out chunks double precision, out mean_length double precision,
  out content_words double precision, out distinct_words double precision
)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
-- The calling search turns enable_seqscan off, but a sequential scan is fastest for a small table.
set enable_seqscan = on as $$
begin
  select count(*), greatest(avg(chunk.text_length), 1), avg(chunk.content_words),
         avg(chunk.distinct_words)
    into chunks, mean_length, content_words, distinct_words
    from (
      select active.text_length, active.content_words, active.distinct_words
        from public.knowledge_chunks as active
       where active.status = 'active'
       limit 1001
    ) as chunk;
end
$$;

-- The text search configurations that a query is read with: those of the chunks, each of which was
-- analysed in its own language. Null in an empty corpus.
create function knowledge_internal.query_configurations() returns regconfig[]
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  found_language text := '';
  languages text[];
begin
  -- One look at the index for each language.
  loop
    found_language := (
      select min(chunk.language) from public.knowledge_chunks as chunk
       where chunk.status = 'active' and chunk.language > found_language
    );
    exit when found_language is null;
    languages := languages || found_language;
  end loop;
  return (
    select array_agg(distinct knowledge_internal.text_configuration(present.name))
      from unnest(languages) as present (name)
  );
end
$$;

-- The settings of a search of these collections (null: all). Fusion and weights: a fusion that the
-- caller names keeps the caller's weights. For null, the settings stored for the one collection
-- searched, else those stored for all, multiply the weights. They give the fusion: that of the
-- collection, else that of all, else rrf. Where scores and not ranks are fused, the weight of the
-- model counts, too. Chunks of more than 60 words get no bonus for neighbours, because each says
-- enough by itself, and only the scores of auto do.
-- Figures of BM25: from refresh_knowledge_statistics, or counted here: before its first run, while
-- there are at most small_corpus_limit() chunks, and while the table has a fifth more or fewer rows
-- than at the copy. k1 and b: those stored for the collection, else for all, else 1.2 and a b that
-- falls where chunks seldom repeat a word: there, as in the turns of a conversation, a longer chunk
-- says more. docs/ranking.md measures fusion, bonus and b. Raises 22023 where both weights are 0.
create function knowledge_internal.read_settings(
  fusion text default null, vector_weight double precision default 1,
  text_weight double precision default 1, collections text[] default null
) returns knowledge_internal.search_settings
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
-- The calling search forces generic plans, which Citus does not make.
set plan_cache_mode = auto as $$
declare
  small constant integer := knowledge_internal.small_corpus_limit();
  tolerance constant float8 := 0.2; -- of the rows
  counted_exactly constant integer := 20000; -- chunks, as in counted_chunks
  -- Standard deviations of the cosine of random pairs; docs/ranking.md measures it.
  deviations constant float8 := 3;
  most_words constant float8 := 60;
  most_neighbour_weight constant float8 := 0.3;
  words_of_noise constant float8 := 25; -- a weak model is weaker where texts have few words
  fewest_words constant float8 := 10;
  -- Several collections are ranked in one list of scores, so they have one fusion.
  searched constant text := case
    when collections[1] = all (collections) then collections[1] else '' end;
  known record;
  counted record;
  chunks float8; -- counted
  cosine_scale float8;
  neighbour_weight float8;
  model_weight float8;
begin
  -- One statement: a search pays for each.
  select facts.*, facts.relation = 'public.knowledge_chunks'::regclass and facts.pages > 0
           as is_here,
         corpus.document_count, corpus.mean_length, corpus.content_words, corpus.distinct_words,
         corpus.analysed_rows as copied_rows, corpus.analysed_at as copied_at, every.cosine_spread,
         -- After a restore, the table is not known, and taken to be as it was at the copy.
         coalesce(
           abs(facts.stored_rows - corpus.analysed_rows) <= tolerance * corpus.analysed_rows,
           corpus.id is not null
         ) as is_current,
         stored.fusion, stored.vector_weight, stored.text_weight, stored.bm25_k1, stored.bm25_b,
         -- "> ''" and not "is not null", which PostgreSQL 17 drops, and then reads the whole table.
         (select min(chunk.language) from public.knowledge_chunks as chunk
           where chunk.status = 'active' and chunk.language > '') as first_language,
         (select max(chunk.language) from public.knowledge_chunks as chunk
           where chunk.status = 'active' and chunk.language > '') as last_language
    into known
    from knowledge_internal.chunk_table as facts
    left join public.knowledge_corpus_statistics as every on true
    left join public.knowledge_corpus_statistics as corpus on corpus.document_count > small
    left join (
           select coalesce(
                    settings.fusion,
                    (select general.fusion from public.knowledge_settings as general
                      where general.collection = '')
                  ) as fusion,
                  settings.vector_weight, settings.text_weight, settings.bm25_k1, settings.bm25_b
             from public.knowledge_settings as settings
            where settings.collection in (searched, '')
            order by settings.collection = '', settings.collection
            limit 1
         ) as stored on true;
  if not known.is_current or least(known.estimated_rows, known.least_rows) <= small then
    counted := knowledge_internal.counted_corpus();
    chunks := counted.chunks;
    if chunks <= small or not known.is_current then
      known.mean_length := counted.mean_length;
      known.content_words := counted.content_words;
      known.distinct_words := counted.distinct_words;
      known.document_count := case
        when chunks <= small then chunks
        else greatest(coalesce(known.stored_rows, known.estimated_rows), chunks)
      end;
    end if;
  end if;

  if fusion is null then
    fusion := coalesce(known.fusion, 'rrf');
    vector_weight := vector_weight * coalesce(known.vector_weight, 1);
    text_weight := text_weight * coalesce(known.text_weight, 1);
    if vector_weight = 0 and text_weight = 0 then
      raise exception 'vector_weight and text_weight are both 0 after they are multiplied by the '
                      'stored weights, one must be above'
        using errcode = '22023', hint = 'Give a fusion, or change knowledge_settings.';
    end if;
  end if;
  if fusion in ('auto', 'relative_score') and vector_weight > 0 and text_weight > 0 then
    model_weight :=
      knowledge_internal.model_weight(knowledge_internal.model_of_collection(searched));
    vector_weight := vector_weight * case
      when model_weight < 1 and known.content_words > 0
        then model_weight ^ (1 + words_of_noise / greatest(known.content_words, fewest_words))
      else model_weight
    end;
  end if;
  if fusion = 'auto' then
    cosine_scale :=
      deviations * coalesce(known.cosine_spread, knowledge_internal.sampled_spread(48));
    neighbour_weight := case when known.content_words > 0 and known.content_words <= most_words
      then least(most_neighbour_weight, 6 / known.content_words) end;
  end if;
  return row(
    known.is_here, fusion, vector_weight, text_weight, cosine_scale, neighbour_weight,
    known.dimensions, known.estimated_rows, known.document_count, known.mean_length,
    case
      when chunks <= small then 'count'
      when known.is_current then 'copy'
      when known.analysed_rows is null then 'count'
      -- Not analysed since it grew or shrank; a VACUUM leaves the planner's statistics as they
      -- were.
      when known.document_count <= counted_exactly
           and (
             abs(known.stored_rows - known.analysed_rows) > tolerance * known.analysed_rows
             or known.analysed_at = known.copied_at
           )
        then 'count'
      when known.analysed_rows = known.copied_rows then 'copy'
      else 'analysis'
    end,
    coalesce(known.bm25_k1, knowledge_internal.bm25_k1()),
    coalesce(
      known.bm25_b,
      least(
        knowledge_internal.bm25_b(),
        greatest(
          0.4, coalesce(3 * (1 - known.distinct_words / nullif(known.content_words, 0)), 1)
        )
      )
    ),
    case
      when known.first_language = known.last_language
        then array[knowledge_internal.text_configuration(known.first_language)]
      else knowledge_internal.query_configurations()
    end,
    null
  )::knowledge_internal.search_settings;
end
$$;

-- Extension point: the number of chunks with each lexeme, by lexeme, of those chunks that the
-- statistics of a search are of.
create function knowledge_internal.frequencies_in_scope(lexemes text[], statistics jsonb)
returns jsonb
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return null;
end
$$;

-- The number of chunks with each lexeme, in the order of the lexemes. A lexeme that ANALYZE did not
-- list is rare: counting its chunks is cheap, as always in a small corpus.
create function knowledge_internal.document_frequencies(
  lexemes text[], settings knowledge_internal.search_settings
) returns float8[]
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  in_scope constant jsonb := case when settings.statistics is not null
    then knowledge_internal.frequencies_in_scope(lexemes, settings.statistics) end;
begin
  return array(
    select coalesce(
             (in_scope ->> asked.lexeme)::float8,
             listed.frequency * settings.document_count,
             knowledge_internal.counted_chunks(asked.lexeme)
           )
      from unnest(lexemes) with ordinality as asked (lexeme, place)
      left join (
             select copied.lexeme, copied.frequency
               from public.knowledge_lexeme_statistics as copied
              where settings.frequencies_from = 'copy' and copied.lexeme = any (lexemes)
             union all
             select analysed.value collate "C", analysed.frequency
               from knowledge_internal.listed_frequencies() as analysed
              where settings.frequencies_from = 'analysis'
           ) as listed on listed.lexeme = asked.lexeme
     order by asked.place
  );
end
$$;

-- The number of chunks that each of these text search configurations has analysed. A language that
-- the planner's statistics do not list has few.
create function knowledge_internal.chunks_of_configurations(
  configurations regconfig[], settings knowledge_internal.search_settings
) returns float8[]
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  most_counted constant integer := 20000; -- chunks
  shares jsonb;
begin
  if settings.frequencies_from <> 'count' then
    shares := (
      select copied.language_shares from public.knowledge_corpus_statistics as copied
    );
  end if;
  if shares is null then
    select jsonb_object_agg(counted.language, counted.share)
      into shares
      from (
        select chunk.language, count(*) / sum(count(*)) over () as share
          from (
            select active.language
              from public.knowledge_chunks as active
             where active.status = 'active'
             limit most_counted
          ) as chunk
         group by chunk.language
      ) as counted;
  end if;
  return array(
    select settings.document_count * coalesce(sum(present.share::float8), 0)
      from unnest(configurations) with ordinality as asked (configuration, place)
      left join jsonb_each_text(shares) as present (language, share)
        on knowledge_internal.text_configuration(present.language) = asked.configuration
     group by asked.place
     order by asked.place
  );
end
$$;

-- The rows that have all of the words and phrases (op has_all_words) or one of them (has_any_word,
-- has_no_word), each row in its own language; empty for stop words only.
create function knowledge_internal.words_query(words text[], op text) returns tsquery
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
-- Postgres sends a NOTICE for a stop word.
set client_min_messages = warning as $$
declare
  configurations constant regconfig[] := knowledge_internal.query_configurations();
begin
  return coalesce(
    (
      -- Where all of them are stop words in a language, has_all_words requires nothing of its rows.
      select string_agg('(' || reading.condition::text || ')', ' | ') filter (
               where numnode(language.query) > 0
                  or op = 'has_all_words' and cardinality(configurations) > 1
             )
        from (
          select language.configuration,
                 coalesce(
                   string_agg(
                     '(' || nullif(read.query::text, '') || ')',
                     case op when 'has_all_words' then ' & ' else ' | ' end
                   ), ''
                 )::tsquery as query
            from unnest(configurations) as language (configuration)
           cross join unnest(words) as listed (word)
           cross join knowledge_internal.phrase_query(language.configuration, listed.word)
                   as read (query)
           group by language.configuration
        ) as language
       cross join knowledge_internal.in_language(
               language.configuration, configurations, language.query
             ) as reading (condition)
      having bool_or(numnode(language.query) > 0)
    ), ''
  )::tsquery;
end
$$;

-- A function of its own, so that each lexeme has a plan of its own.
create function knowledge_internal.counted_chunks(lexeme text) returns bigint
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  counted_at_most constant integer := 20000;
begin
  return (
    select count(*)
      from (
        select chunk.id
          from public.knowledge_chunks as chunk
         where chunk.status = 'active'
           and chunk.content_tsv @@ knowledge_internal.quoted_lexeme(lexeme)::tsquery
         limit counted_at_most
      ) as matching_chunk
  );
end
$$;

-- Extension point: what is searched of a chunk beside its content: how often a word of its heading
-- counts, and other texts. stamp: which fields these are; null for those of core. A word of the
-- heading counts twice, which improved nDCG on each of three test collections.
create function knowledge_internal.text_fields(
  collection text, heading text default null, document_id uuid default null,
  metadata jsonb default '{}', owner_id uuid default null, visibility text default null,
  allowed_groups text[] default null, sensitivity text default null,
  out heading_weight integer, out others text[], out stamp integer
)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  heading_weight := 2;
  others := '{}';
end
$$;

-- Extension point: what the best fusion and weights of a collection ('' for all) depend on, and
-- what of it has changed since it was measured, a sentence for each.
create function knowledge_internal.changes_since(
  name text, measured jsonb default null, out ranked jsonb, out changes text[]
)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  ranked := '{}';
  changes := '{}';
end
$$;

create function public.list_knowledge_settings()
returns table (
  collection text, fusion text, vector_weight double precision, text_weight double precision,
  embedding_model text, heading_weight integer, title_weight integer, text_keys text[],
  updated_at timestamptz, measured jsonb, changes text[], bm25_k1 double precision,
  bm25_b double precision
)
-- definer: service_role has no rights on the internal schema.
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select knowledge_internal.check_caller('list_knowledge_settings');
  select settings.collection, settings.fusion, settings.vector_weight, settings.text_weight,
         settings.embedding_model, settings.heading_weight, settings.title_weight,
         settings.text_keys, settings.updated_at, settings.measured,
         case
           when settings.measured is null then '{}'
           else (knowledge_internal.changes_since(settings.collection, settings.measured)).changes
         end,
         settings.bm25_k1, settings.bm25_b
    from public.knowledge_settings as settings
   order by settings.collection
$$;

comment on function public.list_knowledge_settings() is
  'The settings that are stored, in the order of their collections. changes: what has changed '
  'since they were measured (a tenth of the chunks, counted up to 100,000; the models of the '
  'embeddings; the field weights; the formulas), a sentence for each, with the module insight; '
  'measure again where it is not empty.';
revoke all on function public.list_knowledge_settings() from public, anon, authenticated;
grant execute on function public.list_knowledge_settings() to service_role;

create function public.reset_knowledge_settings(collection text default '') returns boolean
language plpgsql volatile security invoker set search_path = pg_catalog, pg_temp as $$
begin
  delete from public.knowledge_settings as settings
   where settings.collection = reset_knowledge_settings.collection;
  return found;
end
$$;

comment on function public.reset_knowledge_settings(text) is
  'Removes the settings of a collection ('''': those for all others), which is then searched as '
  'without them. Returns whether there were any.';
revoke all on function public.reset_knowledge_settings(text) from public, anon, authenticated;
grant execute on function public.reset_knowledge_settings(text) to service_role;

create function public.knowledge_embedding_models()
returns table (model text, dimensions integer, chunks bigint)
-- definer: service_role has no rights on the internal schema.
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
-- Models and chunks are read by the index on embedding_model.
set enable_seqscan = off
set enable_bitmapscan = off as $$
declare
  most_counted constant integer := 100000; -- chunks of each model
  stored_dimensions constant integer := (
    select stored.dimensions from knowledge_internal.chunk_table as stored
  );
begin
  perform knowledge_internal.check_caller('knowledge_embedding_models');
  return query
  with recursive name (model) as (
    select (
      select min(coalesce(chunk.embedding_model, '')) from public.knowledge_chunks as chunk
       where chunk.status = 'active' and chunk.embedding_bits is not null
    )
    union all
    -- One look at the index for each model.
    select (
      select min(coalesce(chunk.embedding_model, '')) from public.knowledge_chunks as chunk
       where chunk.status = 'active' and chunk.embedding_bits is not null
         and coalesce(chunk.embedding_model, '') > name.model
    )
      from name
     where name.model is not null
  )
  select nullif(name.model, ''), stored_dimensions, counted.chunks
    from name
   cross join lateral (
           select count(*) as chunks
             from (
               select from public.knowledge_chunks as chunk
                where chunk.status = 'active'
                  and chunk.embedding_bits is not null
                  and coalesce(chunk.embedding_model, '') = name.model
                limit most_counted
             ) as one
         ) as counted
   where name.model is not null
   order by counted.chunks desc, name.model;
end
$$;

comment on function public.knowledge_embedding_models() is
  'The embedding models of active chunks, most chunks first: model (null if none was recorded), '
  'dimensions of the column, chunks (100,000 stands for more, too).';
revoke all on function public.knowledge_embedding_models() from public, anon, authenticated;
grant execute on function public.knowledge_embedding_models() to service_role;

notify pgrst, 'reload schema';
