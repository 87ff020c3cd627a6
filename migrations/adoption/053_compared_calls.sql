-- 053_compared_calls: functions that search an adopted table, found, compared and brought back.
-- Module: adoption.
-- Adds: functions that find the functions to replace, compare one with its drop-in over rows of the
-- table as questions, and bring the old ones back. Locks nothing that exists.
-- Written from supabase/schemas/modules/adoption/53_compared_calls.sql by `make baseline`: edit that file.

-- The functions of exposed schemas that search a table and are no drop-ins: they
-- have an embedding as an argument, or search by words or distances, and name the table.
create function knowledge_internal.searching_functions(source regclass)
returns setof regprocedure
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return query
  select proc.oid::regprocedure
    from pg_catalog.pg_proc as proc
    join pg_catalog.pg_language as language on language.oid = proc.prolang
    join pg_catalog.pg_namespace as namespace on namespace.oid = proc.pronamespace
    join pg_catalog.pg_class as class on class.oid = source
   cross join lateral (
           select coalesce(pg_catalog.pg_get_function_sqlbody(proc.oid), proc.prosrc)
         ) as body (code)
   where proc.prokind = 'f'
     and language.lanname in ('sql', 'plpgsql')
     and namespace.nspname not in ('pg_catalog', 'information_schema', 'extensions')
     -- Those of this package, and drop-ins.
     and strpos(body.code, 'knowledge_internal.') = 0
     and knowledge_internal.kept_for(proc.oid) is null
     and not exists (
           select
             from pg_catalog.pg_depend as dependency
            where dependency.classid = 'pg_catalog.pg_proc'::regclass
              and dependency.objid = proc.oid
              and dependency.deptype = 'e'
         )
     and (
       not exists (
         select from pg_catalog.pg_roles as role where role.rolname in ('anon', 'authenticated')
       )
       or exists (
            select
              from pg_catalog.pg_roles as role
             where role.rolname in ('anon', 'authenticated', 'service_role')
               and has_schema_privilege(role.oid, namespace.oid, 'usage')
          )
     )
     and (
       body.code ~* '@@|ts_rank|<=>|<#>|<->'
       or exists (
            select
              from unnest(proc.proargtypes::oid[]) as listed (type)
              join pg_catalog.pg_type as type on type.oid = listed.type
             where type.typname in ('vector', 'halfvec')
          )
     )
     and (
       proc.prorettype = class.reltype
       or knowledge_internal.names_word(body.code, class.relname)
     )
   order by proc.oid::regprocedure::text;
end
$$;

-- The name of the function that this one was before a drop-in took its place; null for others.
create function knowledge_internal.kept_for(kept oid) returns text
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return substring(
    pg_catalog.obj_description(kept, 'pg_proc') from '^Was (.*) before the adoption '
  );
end
$$;

-- The statements that bring the functions back that drop-ins of an adoption have replaced, and take
-- the rights on the search away that no other drop-in needs.
create function knowledge_internal.calls_undone(adoption_name text) returns setof text
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
-- A name has quotes only where it needs them.
set quote_all_identifiers = off as $$
declare
  kept oid[] := array(
    select proc.oid from pg_catalog.pg_proc as proc
     where knowledge_internal.kept_for(proc.oid) is not null
  );
  undone constant oid[] := array(
    select listed.id
      from unnest(kept) as listed (id)
     where strpos(
             pg_catalog.obj_description(listed.id, 'pg_proc'),
             format(' before the adoption %s.', adoption_name)
           ) > 0
     order by listed.id
  );
begin
  return query
  select statement.sql
    from unnest(undone) with ordinality as listed (id, place)
   cross join lateral (
           values
             (1, knowledge_internal.renamed_function(
                listed.id, knowledge_internal.kept_for(listed.id)
              )),
             (2, 'drop function ' || listed.id::regprocedure)
         ) as statement (place, sql)
   order by listed.place, statement.place;
  if undone <> '{}' and kept <@ undone then
    return query
    -- Readers that let_search made keep their rights.
    select format(revoked.sql, granted.grantee::regrole)
      from pg_catalog.pg_proc as proc
     cross join lateral aclexplode(proc.proacl) as granted
      join pg_catalog.pg_roles as role on role.oid = granted.grantee
     cross join (
             values
               ('revoke execute on function knowledge_internal.adopted_hits_for_caller from %s'),
               ('revoke usage on schema knowledge_internal from %s')
           ) as revoked (sql)
     where proc.oid = 'knowledge_internal.adopted_hits_for_caller'::regproc
       and role.rolname in ('anon', 'authenticated', 'service_role');
  end if;
end
$$;

-- A function's name and the types of its arguments, under another name.
create function knowledge_internal.signature_of(proc pg_catalog.pg_proc, name text) returns text
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
-- A name has quotes only where it needs them.
set quote_all_identifiers = off as $$
begin
  return (
    select format('%I.%I(%s)', namespace.nspname, name, string_agg(
             pg_catalog.format_type(listed.type, null), ', ' order by listed.place
           ))
      from pg_catalog.pg_namespace as namespace
      left join unnest(proc.proargtypes::oid[]) with ordinality as listed (type, place) on true
     where namespace.oid = proc.pronamespace
     group by namespace.nspname
  );
end
$$;

-- The roles under row level security that may call a function which runs as its caller, and read
-- the table that it searches.
create function knowledge_internal.roles_of_call(
  proc pg_catalog.pg_proc, adoption public.knowledge_adoptions
) returns name[]
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return array(
    select role.rolname
      from pg_catalog.pg_roles as role
     where not proc.prosecdef
       and role.rolname in ('anon', 'authenticated')
       and has_function_privilege(role.oid, proc.oid, 'execute')
       and has_table_privilege(role.oid, adoption.source, 'select')
     order by role.rolname
  );
end
$$;

-- The statements that keep a function under the name before, for its owner alone, and create its
-- drop-in. One that runs as its caller searches through the readers of its callers.
create function knowledge_internal.statements_of_call(
  proc pg_catalog.pg_proc, adoption public.knowledge_adoptions, before text, drop_in text
) returns text[]
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  kept constant text := knowledge_internal.signature_of(proc, before);
begin
  return array[
    knowledge_internal.renamed_function(proc.oid, before),
    format('revoke all on function %s from public, anon, authenticated, service_role', kept),
    format(
      'comment on function %s is %L', kept,
      format('Was %s before the adoption %s.', proc.proname, adoption.name)
    ),
    drop_in
  ] || array(
    select format('select knowledge_internal.let_search(%L)', role.name)
      from unnest(knowledge_internal.roles_of_call(proc, adoption)) as role (name)
  ) || case when not proc.prosecdef then array(
    select format(grants.sql, role.rolname)
      from pg_catalog.pg_roles as role
     cross join (
             values
               (1, 'grant usage on schema knowledge_internal to %I'),
               (2, 'grant execute on function knowledge_internal.adopted_hits_for_caller to %I')
           ) as grants (place, sql)
     where role.rolname in ('anon', 'authenticated', 'service_role')
       and has_function_privilege(role.oid, proc.oid, 'execute')
       and has_table_privilege(role.oid, adoption.source, 'select')
     order by role.rolname, grants.place
  ) end;
end
$$;

-- The statement that creates a function with another name.
create function knowledge_internal.renamed_function(old oid, name text) returns text
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
-- A name has quotes only where it needs them.
set quote_all_identifiers = off as $$
begin
  return (
    select format('CREATE OR REPLACE FUNCTION %I.%I', namespace.nspname, name)
             || substr(
                  pg_catalog.pg_get_functiondef(old),
                  1 + length(
                    format('CREATE OR REPLACE FUNCTION %I.%I', namespace.nspname, proc.proname)
                  )
                )
      from pg_catalog.pg_proc as proc
      join pg_catalog.pg_namespace as namespace on namespace.oid = proc.pronamespace
     where proc.oid = old
  );
end
$$;

-- What a function is called with in a comparison: its arguments as SQL, over a row of the source
-- (asked.chosen) and words of its text (asked_text). most: how many rows it is asked for.
create function knowledge_internal.compared_arguments(
  compared regprocedure, adoption public.knowledge_adoptions, most integer
) returns text
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
declare
  proc pg_catalog.pg_proc;
begin
  select stored.* into proc from pg_catalog.pg_proc as stored where stored.oid = compared;
  return (
    select string_agg(
             coalesce(quote_ident(argument.name) || ' => ', '')
               || format('(%s)::%s', coalesce(given.value, 'null'), listed.type::regtype),
             ', ' order by listed.place
           )
      from unnest(proc.proargtypes::oid[]) with ordinality as listed (type, place)
      join pg_catalog.pg_type as type on type.oid = listed.type
     cross join lateral (
             select nullif(proc.proargnames[listed.place], ''),
                    regexp_replace(proc.proargnames[listed.place], '^(p|in|filter|match)_|^_+', '')
           ) as argument (name, bare)
     cross join lateral (
             select knowledge_internal.role_of_argument(
                      coalesce(argument.name, '$' || listed.place), type.typname, proc.prosrc
                    )
           ) as role (name)
      left join lateral (
             select attribute.attname, attribute.atttypid
               from pg_catalog.pg_attribute as attribute
               join pg_catalog.pg_type as stored on stored.oid = attribute.atttypid
              where attribute.attrelid = adoption.source
                and attribute.attnum > 0
                and not attribute.attisdropped
                and case
                      when role.name = 'embedding' then stored.typname in ('vector', 'halfvec')
                      when role.name is null then attribute.attname in (
                             argument.name, argument.bare, argument.bare || '_id'
                           ) and stored.oid in (type.oid, type.typelem)
                    end
              order by attribute.attnum
              limit 1
           ) as attribute on true
     cross join lateral (
             select case
                      when role.name = 'question' then 'asked_text'
                      when role.name = 'count' then most::text
                      when role.name = 'threshold' then
                        case when argument.name ~* 'distance' then '2' else '-1' end
                      when attribute.atttypid = type.typelem and type.typname like '\_%'
                        then format('array[(asked.chosen).%I]', attribute.attname)
                      when attribute.attname is not null
                        then format('(asked.chosen).%I', attribute.attname)
                      when type.typname = 'jsonb' then '''{}'''
                    end
           ) as given (value)
     where argument.name is null
        or given.value is not null
        or listed.place <= proc.pronargs - proc.pronargdefaults
  );
end
$$;

-- SQL for what identifies a row (answer) of the result of a function: the key of the source where
-- the result has its columns, else all values but numbers.
create function knowledge_internal.compared_key(
  compared regprocedure, adoption public.knowledge_adoptions
) returns text
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  columns constant text[] := array(
    select unnest(proc.proargnames[proc.pronargs + 1:])
      from pg_catalog.pg_proc as proc
     where proc.oid = compared
    union all
    select attribute.attname
      from pg_catalog.pg_proc as proc
      join pg_catalog.pg_type as type on type.oid = proc.prorettype
      join pg_catalog.pg_attribute as attribute on attribute.attrelid = type.typrelid
     where proc.oid = compared
       and attribute.attnum > 0
  );
begin
  if not adoption.key_columns <@ columns then
    return '(select string_agg(field.value #>> ''{}'', '' '') from jsonb_each(to_jsonb(answer)) '
      'as field where jsonb_typeof(field.value) <> ''number'')';
  end if;
  return (
    select 'jsonb_build_array(' || string_agg(format('answer.%I::text', key.name), ', '
                                              order by key.place) || ')::text'
      from unnest(adoption.key_columns) with ordinality as key (name, place)
  );
end
$$;

-- Calls the old function (before) and its drop-in with rows of the adopted table as questions.
-- both: how many of the drop-in's first ten rows the old function returns too, however many it is
-- asked for; new_rows: those that it does not; old_rows: how many of its first ten rows the drop-in
-- lacks. conditions: what all rows of both meet, and no new row.
create function knowledge_internal.compare_calls(
  before regprocedure, after regprocedure, adoption_name text, questions integer default 20,
  out asked integer, out both_rows integer, out old_rows integer, out new_rows text[],
  out conditions text[]
)
language plpgsql volatile security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
declare
  adoption constant public.knowledge_adoptions := knowledge_internal.adoption_named(adoption_name);
  source_key constant text := (knowledge_internal.key_sql(adoption, 'source', false)).value;
  answer_key constant text := knowledge_internal.compared_key(before, adoption);
  shared text[];
begin
  -- The old function can need the search_path of its callers.
  perform set_config('search_path', knowledge_internal.path_of_call(proc, adoption.source), true)
     from pg_catalog.pg_proc as proc where proc.oid = before;
  execute format(
    $query$
      with asked as materialized (
        select source as chosen,
               array_to_string((regexp_split_to_array(btrim(adopted.content), '\s+'))[1:5], ' ')
                 as asked_text
          from %1$s as source
          join knowledge_internal.%2$I as adopted on %3$s = %4$s
         order by sha256(convert_to(%3$s::text, 'UTF8'))
         limit $1
      ),
      answers as materialized (
        select array(select %5$s from %6$s(%7$s) as answer) as found_keys,
               array(select %5$s from %8$s(%9$s) as answer) as first_keys,
               array(select %5$s from %8$s(%10$s) as answer) as old_keys
          from asked
      )
      select (select count(*) from answers),
             (select count(*) from answers, unnest(found_keys) as found (key)
               where found.key = any (old_keys)),
             (select count(*) from answers, unnest(first_keys) as old (key)
               where old.key <> all (found_keys)),
             array(select distinct found.key from answers, unnest(found_keys) as found (key)
                    where found.key <> all (old_keys)),
             array(select distinct found.key from answers, unnest(found_keys) as found (key)
                    where found.key = any (old_keys))
    $query$,
    adoption.source, 'adopted_' || adoption.name, source_key,
    (knowledge_internal.key_sql(adoption, 'adopted', true)).value, answer_key,
    after::oid::regproc, knowledge_internal.compared_arguments(after, adoption, 10),
    before::oid::regproc, knowledge_internal.compared_arguments(before, adoption, 10),
    knowledge_internal.compared_arguments(before, adoption, 1000000)
  )
  into asked, both_rows, old_rows, new_rows, shared
  using questions;
  execute format(
    $query$
      select array_agg(separating.condition order by separating.condition)
        from (
          select case
                   when bool_and(field.value is null) filter (where not given.is_new)
                     and bool_and(field.value is not null) filter (where given.is_new)
                     then format('%%I is null', attribute.attname)
                   when bool_and(field.value is not null) filter (where not given.is_new)
                     and bool_and(field.value is null) filter (where given.is_new)
                     then format('%%I is not null', attribute.attname)
                   when bool_and(given.is_new <> (field.time > now()))
                     and not bool_or(field.time is null)
                     then format('%%I > now()', attribute.attname)
                   when bool_and(given.is_new <> (field.time <= now()))
                     and not bool_or(field.time is null)
                     then format('%%I <= now()', attribute.attname)
                   when count(distinct field.value) filter (where not given.is_new) = 1
                     and not array_agg(field.value) filter (where given.is_new)
                       && array_agg(field.value) filter (where not given.is_new)
                     then format(
                            '%%I = %%s', attribute.attname,
                            quote_literal(min(field.value) filter (where not given.is_new))
                          )
                 end as condition
            from (
              select to_jsonb(source) as fields, %2$s::text = any ($1) as is_new
                from %1$s as source
               where %2$s::text = any ($1 || $2)
            ) as given
            join pg_catalog.pg_attribute as attribute on attribute.attrelid = $4
            join pg_catalog.pg_type as type on type.oid = attribute.atttypid
           cross join lateral (
                   select listed.value,
                          case when type.typname in ('date', 'timestamp', 'timestamptz')
                            then listed.value::timestamptz end
                     from (values (given.fields ->> attribute.attname)) as listed (value)
                 ) as field (value, time)
           where attribute.attnum > 0
             and not attribute.attisdropped
             and type.typname not in ('vector', 'halfvec', 'tsvector')
             and attribute.attname <> all ($3)
           group by attribute.attname, type.typname
        ) as separating
       where separating.condition is not null
    $query$,
    adoption.source, source_key
  )
  into conditions
  using new_rows, shared, adoption.key_columns, adoption.source;
end
$$;

revoke all on all functions in schema knowledge_internal from public;

notify pgrst, 'reload schema';
