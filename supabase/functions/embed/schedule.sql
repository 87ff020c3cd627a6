-- schedule: pg_cron calls the Edge Function embed every minute while chunks wait for an embedding.
--
-- This is no migration, because pg_cron, pg_net and Vault are optional. Store the address and the
-- key once, then run this file as postgres, in the SQL editor or with psql. It can run again.
--
--   select vault.create_secret(
--     'https://PROJECT.supabase.co/functions/v1/embed', 'second_brain_embed_url'
--   );
--   select vault.create_secret('SERVICE_ROLE_KEY', 'second_brain_embed_key');
--
-- The job reads both secrets when it runs, so neither is in cron.job. pg_net keeps a request with
-- its headers in net.http_request_queue until it is sent.
--
-- For an install in another schema, replace public: the job has its name, too.
--
-- Undo:
--
--   select cron.unschedule('second-brain-embed');
--   delete from vault.secrets where name in ('second_brain_embed_url', 'second_brain_embed_key');

do $schedule$
declare
  job constant text := 'second-brain-embed' || replace('-public', '-pub' || 'lic', '');
  secrets constant text[] := array['second_brain_embed_url', 'second_brain_embed_key'];
  -- A call ends before the next one begins. The first condition reads an index that has only
  -- pending chunks; the second one finds chunks with an embedding of another model.
  command constant text := $command$
    select net.http_post(
             url := address.decrypted_secret,
             body := '{"seconds": 50}'::jsonb,
             headers := jsonb_build_object(
               'Content-Type', 'application/json',
               'Authorization', 'Bearer ' || key.decrypted_secret
             ),
             timeout_milliseconds := 58000
           )
      from vault.decrypted_secrets as address
     cross join vault.decrypted_secrets as key
     where address.name = 'second_brain_embed_url'
       and key.name = 'second_brain_embed_key'
       and (
         exists (
           select
             from public.knowledge_chunks as chunk
            where chunk.status = 'active'
              and chunk.embedding is null
              and not exists (
                    select
                      from public.knowledge_embedding_claims as claim
                     where claim.content_hash = chunk.content_hash
                       and claim.available_at > now()
                  )
         )
         or exists (
           select
             from public.pending_knowledge_embeddings() as waiting
            where waiting.pending > waiting.claimed + waiting.failed
         )
       )
  $command$;
  missing text[];
begin
  missing := array_remove(
    array[
      case when to_regprocedure('cron.schedule(text, text, text)') is null then 'pg_cron' end,
      case
        when to_regprocedure('net.http_post(text, jsonb, jsonb, jsonb, integer)') is null
          then 'pg_net'
      end,
      case when to_regclass('vault.decrypted_secrets') is null then 'supabase_vault' end
    ],
    null
  );
  if missing <> '{}' then
    raise notice 'nothing is scheduled: the extensions % are missing; create them, or run '
                 'second-brain corpus embed', array_to_string(missing, ', ');
    return;
  end if;
  if to_regprocedure('public.pending_knowledge_embeddings()') is null then
    raise notice 'nothing is scheduled: the migrations are missing; run supabase db push';
    return;
  end if;
  missing := array(
    select unnest(secrets) except select stored.name from vault.decrypted_secrets as stored
  );
  if missing <> '{}' then
    raise notice 'nothing is scheduled: the secrets % are missing; store them with '
                 'vault.create_secret', array_to_string(missing, ', ');
    return;
  end if;
  -- A job of this name is replaced.
  perform cron.schedule(job, '* * * * *', command);
  raise notice '% is scheduled for every minute', job;
end
$schedule$;
