"""A schema that stands for pg_cron, which is not here: its documented columns and functions.

A name is one job for each user, a job of the same name is replaced, and unscheduling an unknown job
is an error.
"""

PG_CRON = """
create schema cron;
create table cron.job (
  jobid bigint generated always as identity primary key,
  schedule text not null, command text not null, database text default current_database(),
  username text default current_user, active boolean default true, jobname text,
  unique (jobname, username)
);
create function cron.schedule(job_name text, schedule text, command text)
returns bigint language sql as $$
  insert into cron.job (jobname, schedule, command) values (job_name, schedule, command)
  on conflict on constraint job_jobname_username_key
  do update set schedule = excluded.schedule, command = excluded.command
  returning jobid
$$;
create function cron.unschedule(job_id bigint) returns boolean language plpgsql as $$
begin
  delete from cron.job where jobid = job_id;
  if not found then raise exception 'could not find valid entry for job'; end if;
  return true;
end
$$;
create function cron.unschedule(job_name text) returns boolean language sql as $$
  select cron.unschedule((select jobid from cron.job where jobname = job_name))
$$;
"""
