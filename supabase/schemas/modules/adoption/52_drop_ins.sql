-- 052_drop_ins: functions of a project that search an adopted table, over this search.
-- Module: adoption.
-- Adds: the functions that write drop-ins with the same name, arguments, result and grants, and
-- those that drop-ins call. Locks nothing that exists.

-- A drop-in keeps the header of the old function, its conditions on rows, and, where its query is
-- one plain select, its columns and its joins too. Only the retrieval is replaced: adopted_hits
-- returns the keys of rows, best first, and the drop-in reads them from the source with the rights
-- of the old function, so that policies of the table still hold.

-- The best rows of an adoption for a search (an object of arguments of
-- hybrid_search_knowledge_chunks) as keys, with their places and scores. No embedding and no text:
-- none. Raises 22023 for an argument out of bounds.
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
  given.query_embedding := embedding;
  -- The parts of one row are one hit.
  given.one_per_document := adoption.chunk_size is not null;
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
begin
  if embedding is null and search ->> 'query_text' ~ '\S' is not true then
    return;
  end if;
  return query
  select hit.source_row -> 'key', hit.ordinality, hit.similarity, hit.rrf_score, hit.text_score
    from knowledge_internal.search_visible(
           jsonb_strip_nulls(
             search || jsonb_build_object(
               'query_embedding', embedding::text,
               'match_count', case when current_user = 'anon'
                 then least((search ->> 'match_count')::integer, most_of_visitors)
                 else (search ->> 'match_count')::integer end
             )
           )
         ) with ordinality as hit
   where hit.source_row ->> 'adoption' = adoption_name;
end
$$;

-- A drop-in of a function. before: the name that the old function gets; statements: those that keep
-- the old function and create the drop-in. notes: what differs. undecided: why the drop-in may
-- return other rows or columns than the old function; a person decides.
create type knowledge_internal.kept_call as (
  signature text, before text, statements text[], notes text[], undecided text[]
);

-- What an argument of a searching function is: embedding, question, a weight, rrf_k, threshold or
-- count; null for all others, which conditions and columns of the old function use as they are.
create function knowledge_internal.role_of_argument(name text, type_name text, query text)
returns text
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
begin
  return case
    when type_name in ('vector', 'halfvec') then 'embedding'
    when type_name in ('text', 'varchar', 'jsonb', 'json', '_float4', '_float8')
      and name ~* '(embedding|vector)' then 'embedding'
    when type_name in ('text', 'varchar') and (
      name ~* '(query|search|keyword|question|term)'
      or query ~* (
        '(to_tsquery|similarity)\s*\((?:[^()]|\([^()]*\))*?' || replace(name, '$', '\$') || '\M'
        '|like\s+[''%|\s]*' || replace(name, '$', '\$') || '\M'
      )
    ) then 'question'
    when name ~* '^(p_|match_)?(full_?text|text|keyword|bm25|lexical|fts)_weight$'
      then 'text_weight'
    when name ~* '^(p_|match_)?(semantic|vector|embedding)_weight$' then 'vector_weight'
    when name ~* 'rrf_?k' then 'rrf_k'
    when name ~* '(threshold|min_?similarity|min_?relevance|max_?distance)' then 'threshold'
    when type_name in ('int4', 'int8') and name ~* '(count|limit|top_?k|^(p_)?k$|max_results)'
      then 'count'
  end;
end
$$;

-- SQL for the columns of a drop-in whose query is no plain select: those of the source by their
-- names, and scores. Columns without a source are null, and listed as undecided.
create function knowledge_internal.columns_of_call(
  proc pg_catalog.pg_proc, source regclass, similarity text, out shown text, out undecided text[]
)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  if proc.prorettype = (
    select class.reltype from pg_catalog.pg_class as class where class.oid = source
  ) then
    shown := 'source.*';
    return;
  end if;
  select string_agg(
           format(
             '(%s)::%s', coalesce(value.sql, 'null'),
             pg_catalog.format_type(wanted.type, null)
           ),
           E',\n         ' order by wanted.place
         ),
         array_agg('nothing is known for its column ' || wanted.name order by wanted.place)
           filter (where value.sql is null)
    into shown, undecided
    from (
      select listed.name, listed.type, listed.place
        from unnest(proc.proargnames, proc.proallargtypes, proc.proargmodes)
             with ordinality as listed (name, type, mode, place)
       where listed.mode in ('t', 'o', 'b')
      union all
      select attribute.attname, attribute.atttypid, attribute.attnum
        from pg_catalog.pg_type as type
        join pg_catalog.pg_attribute as attribute on attribute.attrelid = type.typrelid
       where type.oid = proc.prorettype
         and attribute.attnum > 0
         and not attribute.attisdropped
    ) as wanted
   cross join lateral (
           select case
                    when exists (
                      select
                        from pg_catalog.pg_attribute as attribute
                       where attribute.attrelid = source
                         and attribute.attname = wanted.name
                         and attribute.attnum > 0
                         and not attribute.attisdropped
                    ) then format('source.%I', wanted.name)
                    when wanted.name ~* 'similarity|cosine|(vector|semantic|embedding)_?score'
                      then similarity
                    when wanted.name ~* '(text|keyword|fts|bm25|lexical)_?(rank|score)|^rank$'
                      then 'coalesce(found_text_score, 0)'
                    when wanted.name ~* 'distance' then '1 - ' || similarity
                    when wanted.name ~* 'score|relevance|^rrf|_rank$' then 'found_score'
                    when wanted.name ~* '^(is_)?(keyword|text)_match$'
                      then 'found_text_score is not null'
                    when wanted.name = 'total_count' then 'count(*) over ()'
                  end
         ) as value (sql);
end
$$;

-- SQL that calls the search in a drop-in. roles: the places of the arguments by their role.
create function knowledge_internal.search_of_call(
  adoption public.knowledge_adoptions, roles jsonb, embedding text, count_sql text, skipped text,
  filters text[], is_invoker boolean, is_distance boolean
) returns text
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
declare
  collection constant text := knowledge_internal.collection_of_adoption(adoption);
  search text[] := array['''match_count'', ' || count_sql];
begin
  search := search
    || ('''query_text'', $' || (roles ->> 'question'))
    || array(
         select format('%L, $%s', role.name, role.place)
           from jsonb_each_text(roles) as role (name, place)
          where role.name in ('text_weight', 'vector_weight', 'rrf_k')
       )
    || case
         -- A condition of the old function compares the distances of all hits.
         when not roles ? 'question' then '''match_threshold'', -1'
         when roles ?& '{threshold,embedding}' then format(
           case when is_distance then '''match_threshold'', 1 - $%s'
             else '''match_threshold'', $%s' end, roles ->> 'threshold'
         )
       end;
  if collection is not null then
    filters := format(
      'jsonb_build_array(jsonb_build_object(''field'', ''collection'', ''op'', ''eq'', '
      '''value'', %L::text))', collection
    ) || filters;
  end if;
  if filters <> '{}' then
    search := search || ('''filters'', ' || array_to_string(filters, E'\n               || '));
  end if;
  return format(
    E'knowledge_internal.%s(\n           %L, %s,\n           jsonb_build_object(\n             %s'
    '\n           )\n         ) as found (found_key, found_place, found_similarity, found_score,'
    ' found_text_score)',
    case when is_invoker then 'adopted_hits_for_caller' else 'adopted_hits' end,
    adoption.name, coalesce(embedding, 'null'),
    array_to_string(array_remove(search, null), E',\n             ')
  );
end
$$;

-- The collection of the rows of an adoption, null if they are in several.
create function knowledge_internal.collection_of_adoption(adoption public.knowledge_adoptions)
returns text
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return substring(
    pg_catalog.pg_get_viewdef(
      format('knowledge_internal.%I', 'adopted_' || adoption.name)::regclass
    ) from '''([^'']*)''::text AS collection'
  );
end
$$;

-- The drop-in of a function over the adopted table. Raises 22023 for an unknown adoption.
create function knowledge_internal.keep_call(old regprocedure, adoption_name text)
returns knowledge_internal.kept_call
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
-- A name has quotes only where it needs them.
set quote_all_identifiers = off
set standard_conforming_strings = on as $$
declare
  adoption constant public.knowledge_adoptions := knowledge_internal.adoption_named(adoption_name);
  definition constant text := pg_catalog.pg_get_functiondef(old);
  proc pg_catalog.pg_proc;
  call knowledge_internal.kept_call;
  reading knowledge_internal.searching_query;
  given knowledge_internal.kept_conditions;
  arguments text[];
  roles jsonb;
  aliases text[];
  source text := 'source'; -- its alias
  embedding text;
  count_sql text;
  shown text;
  body text;
  tag text := '$call$';
begin
  select stored.* into proc from pg_catalog.pg_proc as stored where stored.oid = old;
  call.notes := '{}';
  call.undecided := '{}';
  reading := knowledge_internal.read_searching_query(
    coalesce(pg_catalog.pg_get_function_sqlbody(old), proc.prosrc)
  );
  aliases := knowledge_internal.names_in_query(reading.query, adoption.source);
  if reading.query is null then
    call.undecided := array['its body does more than to return one query, so its conditions are '
                            'not known'];
  elsif aliases = '{}' then
    call.undecided := array['its query does not name the table'];
  end if;
  if cardinality(aliases) = 1 then
    source := case when reading.parts is null then source else aliases[1] end;
  else
    reading.parts := null;
  end if;
  select array_agg(named.name order by named.place),
         coalesce(jsonb_object_agg(named.role, named.place) filter (where named.role <> ''), '{}')
    into arguments, roles
    from (
      select argument.name, listed.place,
             knowledge_internal.role_of_argument(
               argument.name, type.typname, coalesce(reading.query, proc.prosrc)
             ) as role
        from unnest(proc.proargtypes::oid[]) with ordinality as listed (type, place)
        join pg_catalog.pg_type as type on type.oid = listed.type
       cross join lateral (
               select coalesce(nullif(proc.proargnames[listed.place], ''), '$' || listed.place)
             ) as argument (name)
    ) as named;
  if not roles ?| '{embedding,question}' then
    call.undecided := call.undecided || 'none of its arguments is an embedding or a question'::text;
  end if;
  given := knowledge_internal.keep_conditions(
    adoption, reading, aliases, arguments, arguments[(roles ->> 'question')::integer]
  );
  call.undecided := call.undecided || given.undecided;
  embedding := format(
    case when proc.proargtypes[(roles ->> 'embedding')::integer - 1]::regtype::text ~ '^(json|char)'
      then '$%s::text::extensions.vector' else '$%s::extensions.vector' end, roles ->> 'embedding'
  );
  embedding := case when roles ? 'embedding' then embedding end;
  count_sql := coalesce(reading.limited, '$' || (roles ->> 'count'));
  if reading.parts is null then
    select listed.shown, call.undecided || coalesce(listed.undecided, '{}')
      into shown, call.undecided
      from knowledge_internal.columns_of_call(
             proc, adoption.source,
             coalesce(
               (
                 select format(
                          'coalesce(found_similarity, 1 - ((source.%I)::extensions.vector '
                          'operator(extensions.<=>) %s))', attribute.attname, embedding
                        )
                   from pg_catalog.pg_attribute as attribute
                   join pg_catalog.pg_type as type on type.oid = attribute.atttypid
                  where attribute.attrelid = adoption.source
                    and type.typname in ('vector', 'halfvec')
                  order by knowledge_internal.names_word(reading.query, attribute.attname)
                             is true desc,
                           attribute.attnum
                  limit 1
               ), 'found_text_score'
             )
           ) as listed;
  else
    shown := regexp_replace(reading.parts ->> 'select', '^\*$', source || '.*');
  end if;
  body := format(
    E'\n  select %s\n    from %s%s\n   where %s\n   order by found_place%s%s\n', shown,
    knowledge_internal.search_of_call(
      adoption, roles, embedding,
      format(
        case
          when count_sql is null then '1000'
          when given.unsearched <> '{}' then 'least(greatest(10 * (%s), 100), 1000)::integer'
          else 'least(greatest(%s, 1), 1000)::integer'
        end,
        'coalesce(' || count_sql || ', 1000)'
          || coalesce(' + coalesce(' || reading.skipped || ', 0)', '')
      ),
      reading.skipped, given.filters, not proc.prosecdef,
      arguments[(roles ->> 'threshold')::integer] ~* 'distance'
    ),
    case when reading.parts is null then format(E'\n    join %s as source on true', adoption.source)
      else E',\n         ' || (reading.parts ->> 'from') end,
    array_to_string(
      array(
        select format('%s.%I = (found_key ->> %L)::%s', source, part.name, part.name, part.type)
          from unnest(adoption.key_columns, adoption.key_types) as part (name, type)
      ) || given.kept, E'\n     and '
    ),
    E'\n   limit ' || count_sql, E'\n  offset ' || reading.skipped
  );
  while strpos(body, tag) > 0 loop
    tag := '$call_' || substr(tag, 2);
  end loop;
  call.notes := knowledge_internal.notes_of_call(
    reading, given, roles, arguments, body
  );
  call.signature := old::text;
  call.before := left(proc.proname, 56) || '_before';
  call.statements := knowledge_internal.statements_of_call(
    proc, adoption, call.before,
    knowledge_internal.header_of_call(proc, adoption, definition) || 'AS ' || tag || body || tag
  );
  if to_regprocedure(knowledge_internal.signature_of(proc, call.before)) is not null then
    call.undecided := call.undecided || format('there is a function %s', call.before);
  end if;
  if proc.prosecdef and not has_function_privilege(
    proc.proowner, 'public.hybrid_search_knowledge_chunks'::regproc, 'execute'
  ) then
    call.undecided := call.undecided || format(
      'it runs as %s, who may not search the corpus', proc.proowner::regrole
    );
  end if;
  if adoption.place_id is null and knowledge_internal.roles_of_call(proc, adoption) <> '{}' then
    call.undecided := call.undecided || format(
      'it runs as its caller, and a copy is not searched under the rights of %s: adopt the table '
      'in place', array_to_string(knowledge_internal.roles_of_call(proc, adoption), ', ')
    );
  end if;
  if exists (
    select
      from public.knowledge_documents as document
     where document.collection = knowledge_internal.collection_of_adoption(adoption)
       and document.source_row ->> 'adoption' is distinct from adoption.name
  ) then
    call.undecided := call.undecided || 'its collection has other documents: adopt the table again '
      'with a --collection of its own'::text;
  end if;
  return call;
end
$$;

-- The schemas that a function without a search_path needs: its own, the table's and pgvector's.
create function knowledge_internal.path_of_call(proc pg_catalog.pg_proc, source regclass)
returns text
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return (
    select string_agg(distinct quote_ident(namespace.nspname), ', ') || ', pg_temp'
      from pg_catalog.pg_namespace as namespace
     where namespace.oid in (
             proc.pronamespace, 'extensions'::regnamespace,
             (select class.relnamespace from pg_catalog.pg_class as class where class.oid = source)
           )
  );
end
$$;

-- The statement of a function up to its body, as of a function in SQL with a search_path.
create function knowledge_internal.header_of_call(
  proc pg_catalog.pg_proc, adoption public.knowledge_adoptions, definition text
) returns text
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
declare
  -- The body is the last part; pg_get_functiondef chooses its marks.
  header constant text := regexp_replace(
    substring(definition from '^(.*?\n LANGUAGE .*?)(?:AS \$|\nBEGIN ATOMIC|\nRETURN |\n RETURN )'),
    '\n LANGUAGE \w+', E'\n LANGUAGE sql'
  );
begin
  return rtrim(header, E'\n') || case
    when array_to_string(proc.proconfig, ',') ~ 'search_path=' then ''
    else E'\n SET search_path TO ' || knowledge_internal.path_of_call(proc, adoption.source)
  end || E'\n';
end
$$;

-- What a person should know of a drop-in.
create function knowledge_internal.notes_of_call(
  reading knowledge_internal.searching_query, given knowledge_internal.kept_conditions,
  roles jsonb, arguments text[], body text
) returns text[]
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return given.notes || array_remove(
    array[
      case when roles ?& '{question,threshold,embedding}' then format(
        '%s is the least similarity of hits by their embedding; hits by words can have less',
        arguments[(roles ->> 'threshold')::integer]
      ) end,
      case when reading.parts ->> 'order' ~ '[+*]' or reading.parts ->> 'select' ~* (
        '(<=>|<#>|ts_rank)[^,]*[+*]|[+*][^,]*(<=>|<#>|ts_rank)'
      ) then 'the old function computes a score; hits come in the order of this search' end
    ] || array(
      select format('its condition %s is checked on hits: no filter expresses it', condition)
        from unnest(given.unsearched) as listed (condition)
    ) || array(
      select format('its argument %s is not used', listed.name)
        from unnest(arguments) with ordinality as listed (name, place)
       where not knowledge_internal.names_word(body, listed.name)
         and not knowledge_internal.names_word(body, '$' || listed.place)
    ), null
  );
end
$$;

revoke all on all functions in schema knowledge_internal from public;

notify pgrst, 'reload schema';
