-- 052_drop_ins: what the functions call that `second-brain adopt --calls` writes.
-- Module: adoption.
-- Adds: the functions that return the keys of the best rows of an adoption. Locks nothing that
-- exists.

-- A drop-in replaces the retrieval of an old function alone: it reads the rows with these keys from
-- the source with the rights of the old function, so that policies of the table still hold.

-- The best rows of an adoption for a search (an object of arguments of
-- hybrid_search_knowledge_chunks) as keys, with their places and scores. No embedding and no text:
-- none. Of an embedding without a direction, any rows, as the old function; beside a text, those of
-- the text. Raises 22023 for an argument out of bounds.
create function knowledge_internal.adopted_hits(
  adoption_name text, embedding extensions.vector, search jsonb
) returns table (
  key jsonb, place bigint, similarity double precision, score double precision,
  text_score double precision
)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
rows 20
set standard_conforming_strings = on as $$
declare
  adoption constant public.knowledge_adoptions := knowledge_internal.adoption_named(adoption_name);
  given knowledge_internal.search_arguments := knowledge_internal.given_arguments(
    jsonb_strip_nulls(search)
  );
begin
  if embedding is null and given.query_text !~ '\S' is not false then
    return;
  end if;
  given.query_embedding := case
    when extensions.vector_norm(embedding) > 0 then embedding
    when (given.query_text ~ '\S') is not true
      then array_fill(1::real, array[extensions.vector_dims(embedding)])::extensions.vector
  end;
  return query
  select hit.source_row -> 'key', hit.ordinality, hit.similarity, hit.rrf_score, hit.text_score
    from knowledge_internal.search(given) with ordinality as hit
   where hit.source_row ->> 'adoption' = adoption.name;
end
$$;

-- adopted_hits for drop-ins that run as their caller: the rows of a table in place that the caller
-- can select, and no score or place of any other; for service_role and the owner, all rows. Raises
-- 42501 for a role without let_search.
create function knowledge_internal.adopted_hits_for_caller(
  adoption_name text, embedding extensions.vector, search jsonb
) returns table (
  key jsonb, place bigint, similarity double precision, score double precision,
  text_score double precision
)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on
rows 20 as $$
declare
  most_of_visitors constant integer := 50; -- as check_cost allows
  longest_of_visitors constant integer := 1000; -- characters, the same
begin
  if embedding is null and search ->> 'query_text' ~ '\S' is not true then
    return;
  end if;
  return query
  select hit.source_row -> 'key', hit.ordinality, hit.similarity, hit.rrf_score, hit.text_score
    from knowledge_internal.search_visible(
           jsonb_strip_nulls(
             search || jsonb_build_object(
               'query_embedding', case
                 when extensions.vector_norm(embedding) > 0 then embedding::text
                 when (search ->> 'query_text' ~ '\S') is not true
                   then to_jsonb(array_fill(1, array[extensions.vector_dims(embedding)]))::text
               end,
               'query_text', case when current_user = 'anon'
                 then left(search ->> 'query_text', longest_of_visitors)
                 else search ->> 'query_text' end,
               'match_count', case when current_user = 'anon'
                 then least((search ->> 'match_count')::integer, most_of_visitors)
                 else (search ->> 'match_count')::integer end
             )
           )
         ) with ordinality as hit
   where hit.source_row ->> 'adoption' = adoption_name;
end
$$;

revoke all on all functions in schema knowledge_internal from public;

notify pgrst, 'reload schema';
