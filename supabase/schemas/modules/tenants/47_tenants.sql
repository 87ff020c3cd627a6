-- 047_tenants: the words of a search are weighed by the chunks that it may see.
-- Module: tenants.
-- Adds: tables knowledge_tenants and knowledge_tenant_words, refresh_knowledge_tenants, and the
-- statistics of searches that name collections, or are limited to a viewer or by required_filters,
-- from the first refresh on. Locks nothing that exists.

create table public.knowledge_tenants (
  id integer primary key,
  collection text not null,
  visibility text,
  allowed_groups text[],
  owner_id uuid,
  document_count float8 not null,
  mean_length float8 not null,
  changed_at timestamptz
);
create table public.knowledge_tenant_words (
  word integer, tenant integer, chunks integer not null, primary key (word, tenant)
);

comment on table public.knowledge_tenants is
  'Statistics of collections with over 200 chunks, from the last refresh_knowledge_tenants: of all '
  'chunks (visibility is null), and of over 200 that the same viewers may see. owner_id: only '
  'where no one else may. The collection without a name says that there was a refresh.';
comment on table public.knowledge_tenant_words is
  'How many chunks of a row of knowledge_tenants have a lexeme. word: the hash of the lexeme.';

alter table public.knowledge_tenants enable row level security;
alter table public.knowledge_tenant_words enable row level security;
create policy knowledge_tenants_none on public.knowledge_tenants
  to anon, authenticated using (false);
create policy knowledge_tenant_words_none on public.knowledge_tenant_words
  to anon, authenticated using (false);
revoke all on table public.knowledge_tenants, public.knowledge_tenant_words
  from public, anon, authenticated, service_role;

-- Of the rows that a search may see, whatever its other filters are: what is stored where its
-- conditions hold for all chunks of a tenant or for none, else the first 500 rows. More than these
-- stand for 10,000.
create or replace function knowledge_internal.with_statistics(
  named text[], inout scope knowledge_internal.row_scope,
  inout settings knowledge_internal.search_settings
)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  most_counted constant integer := 500;
  stands_for constant float8 := 20; -- rows
  of_collections constant text := ' and chunk.collection = any (($1).wanted.collections)';
  tenants integer[];
  times float8 := 1;
begin
  if '' = any (named) then
    named := null; -- all collections
  end if;
  if named is null and not scope.is_restricted
     or not exists (select from public.knowledge_tenants)
  then
    return;
  elsif named is not null and ((scope.required).collections <@ named) is not true then
    scope.wanted.collections := named;
    scope.visible := scope.visible || of_collections;
    scope.matching := scope.matching || of_collections;
  end if;
  if num_nonnulls(scope.seen, (scope.wanted).access_sql) = 0 and (
       scope.required is null
       or (scope.required).collections <> '{}' and cardinality((scope.required).conditions) = 1
     )
  then
    execute
      'select array_agg(chunk.id), sum(chunk.document_count),'
      '       sum(chunk.document_count * chunk.mean_length) / sum(chunk.document_count)'
      '  from (select stored.*, ''active'' as status, ''{}''::jsonb as metadata'
      '          from public.knowledge_tenants as stored) as chunk'
      ' where (chunk.visibility is null) = $2 and ' || scope.visible
      into tenants, settings.document_count, settings.mean_length
      using scope,
            num_nonnulls(scope.viewer_id, scope.viewer_groups) = 0 and not scope.public_only;
  end if;
  if tenants is null then
    execute
      'select greatest(count(*), 1), greatest(avg(row.text_length), 1)'
      '  from (select chunk.text_length from public.knowledge_chunks as chunk'
      '         where ' || scope.visible || ' limit $2) as row'
      into settings.document_count, settings.mean_length
      using scope, most_counted;
    times := case when settings.document_count < most_counted then 1 else stands_for end;
    settings.document_count := settings.document_count * times;
  end if;
  settings.statistics := jsonb_build_object(
    'tenants', tenants, 'most_counted', most_counted, 'times', times, 'scope', scope
  );
end
$$;

-- A word that is not stored, or that none of the first rows has, is looked for in all in scope.
create or replace function knowledge_internal.frequencies_in_scope(lexemes text[], statistics jsonb)
returns jsonb
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
declare
  scope constant knowledge_internal.row_scope :=
    jsonb_populate_record(null::knowledge_internal.row_scope, statistics -> 'scope');
  tenants constant integer[] := translate(statistics ->> 'tenants', '[]', '{}');
  frequencies jsonb;
  missing text[];
begin
  if tenants is not null then
    frequencies := (
      select jsonb_object_agg(asked.lexeme, (
               select coalesce(sum(stored.chunks), 0) from public.knowledge_tenant_words as stored
                where stored.word = knowledge_internal.lexeme_dimension(asked.lexeme)
                  and stored.tenant = any (tenants)
             ))
        from unnest(lexemes) as asked (lexeme)
    );
  else
    -- bm25 is in the row, content_tsv mostly in TOAST storage.
    execute
      'select jsonb_object_agg(counted.lexeme, counted.chunks * $5)'
      '  from (select asked.lexeme, count(*) filter ('
      '                 where row.bm25 operator(extensions.<#>) asked.vector < 0) as chunks'
      '          from unnest($2, $3) as asked (lexeme, vector)'
      '          left join (select chunk.bm25 from public.knowledge_chunks as chunk'
      '                      where ' || scope.visible || ' limit $4) as row on true'
      '         group by asked.lexeme) as counted'
      into frequencies
      using scope, lexemes,
            array(select knowledge_internal.lexeme_vector(array[one], '{1}')
                    from unnest(lexemes) as one),
            (statistics -> 'most_counted')::integer, (statistics -> 'times')::float8;
  end if;
  missing := array(select word.key from jsonb_each(frequencies) as word where word.value = '0');
  if missing <> '{}' then
    execute
      'select $2 || jsonb_object_agg(asked.lexeme, exists ('
      '         select from public.knowledge_chunks as chunk'
      '          where ' || scope.visible || ' and chunk.content_tsv @@ asked.query)::integer)'
      '  from unnest($3, $4) as asked (lexeme, query)'
      into frequencies
      using scope, frequencies, missing,
            array(select knowledge_internal.quoted_lexeme(one)::tsquery
                    from unnest(missing) as one);
  end if;
  return frequencies;
end
$$;

-- sole_owner: of a chunk that no one else may see.
create view knowledge_internal.tenant_chunks with (security_invoker = true) as
select chunk.collection, chunk.visibility, chunk.allowed_groups,
       case when chunk.visibility <> 'public' and chunk.allowed_groups is null
         then chunk.owner_id end as sole_owner,
       chunk.text_length, chunk.updated_at, chunk.content_tsv
  from public.knowledge_chunks as chunk
 where chunk.status = 'active';
revoke all on table knowledge_internal.tenant_chunks
  from public, anon, authenticated, service_role;

create function public.refresh_knowledge_tenants() returns bigint
-- definer: service_role has no rights on the tables.
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
  few constant integer := 200; -- chunks: counting them takes no longer
  last_id integer;
begin
  perform knowledge_internal.check_caller('refresh_knowledge_tenants');
  lock table public.knowledge_tenants in share row exclusive mode;
  last_id := (select coalesce(max(id), 0) from public.knowledge_tenants);
  with counted as materialized (
    select chunk.collection, chunk.visibility, chunk.allowed_groups, chunk.sole_owner,
           count(*)::float8 as chunks, greatest(avg(chunk.text_length), 1)::float8 as mean_length,
           max(chunk.updated_at) as changed_at
      from knowledge_internal.tenant_chunks as chunk
     group by grouping sets ((1), (1, 2, 3, 4))
    having count(*) > few
     union all
    select '', null, null, null, 0, 1, null
  ),
  unchanged as materialized (
    select known.id, counted as tenant
      from counted
      join public.knowledge_tenants as known
        on counted is not distinct from row(
             known.collection, known.visibility, known.allowed_groups, known.owner_id,
             known.document_count, known.mean_length, known.changed_at
           )
  ),
  gone as (
    delete from public.knowledge_tenants where id not in (select unchanged.id from unchanged)
  )
  insert into public.knowledge_tenants (
    id, collection, visibility, allowed_groups, owner_id, document_count, mean_length, changed_at
  )
  select last_id + row_number() over (), counted.* from counted
   where not exists (select from unchanged where unchanged.tenant is not distinct from counted);
  delete from public.knowledge_tenant_words
   where tenant not in (select id from public.knowledge_tenants);
  insert into public.knowledge_tenant_words (word, tenant, chunks)
  select knowledge_internal.lexeme_dimension(counted.lexeme), counted.id, sum(counted.chunks)
    from (
      select tenant.id, word.lexeme, count(*) as chunks
        from public.knowledge_tenants as tenant
        join knowledge_internal.tenant_chunks as chunk
          on chunk.collection = tenant.collection
         and (
               tenant.visibility is null
               or (chunk.visibility, chunk.allowed_groups, chunk.sole_owner) is not distinct from
                    (tenant.visibility, tenant.allowed_groups, tenant.owner_id)
             )
       cross join unnest(chunk.content_tsv) as word
       where tenant.id > last_id
         and word.positions is not null -- an impact level has none
       group by tenant.id, word.lexeme
    ) as counted
   group by 1, 2;
  return (select count(*) from public.knowledge_tenants where collection <> '');
end
$$;

comment on function public.refresh_knowledge_tenants() is
  'Stores the statistics of collections with over 200 chunks, and of the chunks in them that the '
  'same viewers may see; it reads the words of those that have changed. Returns how many there '
  'are. Searches use them from the first call on. Run it each night, and after a large load or '
  'deletion.';
revoke all on function public.refresh_knowledge_tenants() from public, anon, authenticated;
grant execute on function public.refresh_knowledge_tenants() to service_role;
revoke all on all functions in schema knowledge_internal from public;

notify pgrst, 'reload schema';
