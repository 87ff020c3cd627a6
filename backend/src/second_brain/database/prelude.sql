-- prelude: creates the roles, schemas and default privileges of Supabase in a plain Postgres, as far
-- as the migrations and Supabase's advisors need them. Supabase owns these objects, so no migration
-- creates them. It can run again: what exists is not changed and needs no right.
-- A superuser makes the role postgres the owner of the database. On a managed Postgres, the owner of
-- the database with CREATEROLE runs it and stays the owner. What this role may not do is a notice
-- with the statement, for an administrator.

do $$
declare
  is_superuser constant boolean := (
    select rolsuper from pg_catalog.pg_roles where rolname = current_user
  );
  owner constant name := case when is_superuser then 'postgres' else current_user end;
  statement text;
begin
  for statement in
    select format('create role %I %s', role_name, attributes)
    from (
      values
        ('postgres', 'login createdb createrole replication bypassrls'),
        ('anon', 'nologin noinherit'),
        ('authenticated', 'nologin noinherit'),
        (
          'service_role',
          'nologin noinherit' || case
            when (select rolsuper or rolbypassrls from pg_roles where rolname = current_user)
              then ' bypassrls'
            else ''
          end
        ),
        ('authenticator', 'login noinherit')
    ) as supabase_roles (role_name, attributes)
    where not exists (select from pg_catalog.pg_roles where rolname = role_name)
      and (is_superuser or role_name <> 'postgres')
  loop
    begin
      execute statement;
    exception when insufficient_privilege then
      raise notice 'not permitted: %', statement;
    end;
  end loop;

  for statement in
    -- postgres may make a role a member of authenticated.
    select format('grant %I to %I%s', role_name, member, option)
    from unnest(array['anon', 'authenticated', 'service_role']) as role_name
   cross join (
           values ('authenticator', ''), ('postgres', ' with admin option')
         ) as members (member, option)
    where case
            when to_regrole(member) is null or to_regrole(role_name) is null then false
            else not pg_catalog.pg_has_role(member, role_name, 'member')
                 and (is_superuser or member <> 'postgres')
          end

     union all
    select format('alter role %I set %I = %s', role_name, name, setting)
    from (
      values
        ('anon', 'statement_timeout', quote_literal('3s')),
        ('authenticated', 'statement_timeout', quote_literal('8s')),
        ('authenticator', 'statement_timeout', quote_literal('8s')),
        ('postgres', 'search_path', '"$user", public, extensions')
    ) as supabase_settings (role_name, name, setting)
    where to_regrole(role_name) is not null
      and (is_superuser or role_name <> 'postgres')
      and not exists (
      select
        from pg_catalog.pg_db_role_setting as stored
       cross join unnest(stored.setconfig) as given
       where stored.setrole = to_regrole(role_name)
         and stored.setdatabase = 0
         and starts_with(given, name || '=')
    )

     union all
    -- As on Supabase, the role postgres owns the database and is not a superuser.
    select format('alter database %I owner to postgres', current_database())
     where is_superuser

     union all
    select format(listed.statement, owner)
      from (
        values
          ('create schema if not exists extensions authorization %I'),
          ('grant usage on schema extensions to anon, authenticated, service_role'),
          ('create extension if not exists vector with schema extensions'),
          ('create schema if not exists auth'),
          ('grant usage on schema auth to %I, anon, authenticated, service_role'),
          ('grant usage on schema public to %I, anon, authenticated, service_role')
      ) as listed (statement)

     union all
    -- Supabase's default privileges grant each new object in public to the API roles. So a
    -- migration that revokes only from public does not remove the grant of anon.
    select format(
             'alter default privileges for role postgres in schema public'
             ' grant all on %s to postgres, anon, authenticated, service_role',
             kind
           )
      from unnest(array['tables', 'functions', 'sequences']) as kind
     where owner = 'postgres'
  loop
    begin
      execute statement;
    exception when insufficient_privilege or undefined_object or invalid_schema_name then
      raise notice 'not permitted: %', statement;
    end;
  end loop;
end
$$;

do $$
begin
  if to_regnamespace('auth') is null or not has_schema_privilege('auth', 'create') then
    return;
  end if;
  if to_regprocedure('auth.uid()') is null then
    create function auth.uid() returns uuid
    language sql stable set search_path = pg_catalog, pg_temp
    as $body$
      select coalesce(
        nullif(current_setting('request.jwt.claim.sub', true), ''),
        nullif(current_setting('request.jwt.claims', true), '')::jsonb ->> 'sub'
      )::uuid
    $body$;
  end if;
  if to_regprocedure('auth.role()') is null then
    create function auth.role() returns text
    language sql stable set search_path = pg_catalog, pg_temp
    as $body$
      select coalesce(
        nullif(current_setting('request.jwt.claim.role', true), ''),
        nullif(current_setting('request.jwt.claims', true), '')::jsonb ->> 'role'
      )
    $body$;
  end if;
  if to_regprocedure('auth.jwt()') is null then
    create function auth.jwt() returns jsonb
    language sql stable set search_path = pg_catalog, pg_temp
    as $body$
      select coalesce(
        nullif(current_setting('request.jwt.claim', true), ''),
        nullif(current_setting('request.jwt.claims', true), '')
      )::jsonb
    $body$;
  end if;
  -- The migrations of a Supabase project refer to its users.
  if to_regclass('auth.users') is null then
    create table auth.users (
      id uuid primary key,
      email text unique,
      raw_app_meta_data jsonb,
      raw_user_meta_data jsonb,
      created_at timestamptz default now()
    );
    if to_regrole('postgres') is not null then
      grant all on auth.users to postgres;
    end if;
  end if;
end
$$;
