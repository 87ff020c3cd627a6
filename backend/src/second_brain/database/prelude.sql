-- prelude: creates the roles, schemas and default privileges of Supabase in a plain Postgres, as far
-- as the migrations and Supabase's advisors need them. Needs a superuser the first time. It can run
-- again, also as the owner of the database: what exists is not changed and needs no right.
-- Supabase owns these objects, so no migration creates them.

do $$
declare
  missing record;
begin
  for missing in
    select role_name, attributes
    from (
      values
        ('postgres', 'login createdb createrole replication bypassrls'),
        ('anon', 'nologin noinherit'),
        ('authenticated', 'nologin noinherit'),
        ('service_role', 'nologin noinherit bypassrls'),
        ('authenticator', 'login noinherit')
    ) as supabase_roles (role_name, attributes)
    where not exists (select from pg_catalog.pg_roles where rolname = role_name)
  loop
    execute format('create role %I %s', missing.role_name, missing.attributes);
  end loop;

  -- postgres may make a role a member of authenticated.
  for missing in
    select role_name, member, option
    from unnest(array['anon', 'authenticated', 'service_role']) as role_name
   cross join (
           values ('authenticator', ''), ('postgres', ' with admin option')
         ) as members (member, option)
    where not pg_catalog.pg_has_role(member, role_name, 'member')
  loop
    execute format('grant %I to %I%s', missing.role_name, missing.member, missing.option);
  end loop;

  for missing in
    select role_name, name, setting
    from (
      values
        ('anon', 'statement_timeout', quote_literal('3s')),
        ('authenticated', 'statement_timeout', quote_literal('8s')),
        ('authenticator', 'statement_timeout', quote_literal('8s')),
        ('postgres', 'search_path', '"$user", public, extensions')
    ) as supabase_settings (role_name, name, setting)
    where not exists (
      select
        from pg_catalog.pg_db_role_setting as stored
       cross join unnest(stored.setconfig) as given
       where stored.setrole = role_name::pg_catalog.regrole
         and stored.setdatabase = 0
         and starts_with(given, name || '=')
    )
  loop
    execute format('alter role %I set %I = %s', missing.role_name, missing.name, missing.setting);
  end loop;

  -- As on Supabase, the role postgres owns the database and is not a superuser.
  execute format('alter database %I owner to postgres', current_database());
end
$$;

create schema if not exists extensions authorization postgres;
grant usage on schema extensions to anon, authenticated, service_role;
create extension if not exists vector with schema extensions;

create schema if not exists auth;
grant usage on schema auth to postgres, anon, authenticated, service_role;

do $$
begin
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
  if to_regclass('auth.users') is null and has_schema_privilege('auth', 'create') then
    create table auth.users (
      id uuid primary key,
      email text unique,
      raw_app_meta_data jsonb,
      raw_user_meta_data jsonb,
      created_at timestamptz default now()
    );
    grant all on auth.users to postgres;
  end if;
end
$$;

-- Supabase's default privileges grant each new object in public to the API roles. So a migration
-- that revokes only from public does not remove the grant of anon.
grant usage on schema public to postgres, anon, authenticated, service_role;
alter default privileges for role postgres in schema public
  grant all on tables to postgres, anon, authenticated, service_role;
alter default privileges for role postgres in schema public
  grant all on functions to postgres, anon, authenticated, service_role;
alter default privileges for role postgres in schema public
  grant all on sequences to postgres, anon, authenticated, service_role;
