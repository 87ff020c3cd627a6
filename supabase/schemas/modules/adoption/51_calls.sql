-- 051_calls: the SQL of functions that search an adopted table, read.
-- Module: adoption.
-- Adds: functions that read the query of a function: its clauses, its conditions on rows, and the
-- filters that follow from them. Locks nothing that exists.

-- The tokens of an SQL text without comments, with the depth of parentheses and case expressions.
create function knowledge_internal.sql_tokens(source text)
returns table (place bigint, token text, depth bigint)
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
declare
  token_format constant text :=
    '[eE]''(?:[^''\\]|\\.|'''')*''|''(?:[^'']|'''')*''|"(?:[^"]|"")*"|--[^\n]*'
    '|/\*(?:[^*]|\*+[^*/])*\*+/|is\s+(?:not\s+)?distinct\s+from|[[:alpha:]_][[:alnum:]_]*'
    '|\$[[:digit:]]+|[[:digit:].]+|\s+|::|.';
begin
  return query
  with lexed as (
    select found.place, case when found.parts[1] ~ '^(--|/\*)' then ' ' else found.parts[1] end
             as token
      from regexp_matches(source, '(' || token_format || ')', 'gi')
           with ordinality as found (parts, place)
  ),
  steps as (
    select lexed.place, lexed.token,
           case
             when lower(lexed.token) in ('(', '[', 'case') then 1
             when lower(lexed.token) in (')', ']', 'end') then -1
             else 0
           end as step
      from lexed
  )
  -- A bracket has the depth of what is around it.
  select steps.place, steps.token,
         (sum(steps.step) over (order by steps.place))::bigint - greatest(steps.step, 0)
    from steps;
end
$$;

-- The parts of an SQL text between separators (a comma, or "and") that are in no parentheses. A
-- text with "or" outside of parentheses is one condition.
create function knowledge_internal.sql_parts(source text, separator text) returns text[]
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  lexed record;
  is_between boolean := false;
  part text := '';
  parts text[] := '{}';
begin
  if separator = 'and' and exists (
    select from knowledge_internal.sql_tokens(source) as listed
     where listed.depth = 0 and lower(listed.token) = 'or'
  ) then
    return array['(' || btrim(source, E' \n\t') || ')'];
  end if;
  for lexed in
    select listed.token, listed.depth = 0 and lower(listed.token) = separator as is_separator,
           listed.depth = 0 and lower(listed.token) = 'between' as starts_range
      from knowledge_internal.sql_tokens(source) as listed
     order by listed.place
  loop
    if lexed.is_separator and not is_between then
      parts := parts || btrim(part, E' \n\t');
      part := '';
    else
      is_between := lexed.starts_range or is_between and not lexed.is_separator;
      part := part || lexed.token;
    end if;
  end loop;
  return array_remove(parts || btrim(part, E' \n\t'), '');
end
$$;

-- What a function searches with. query: its one query, null if the body does more than to return
-- it. parts: the clauses of a plain select, by keyword; null for any other query, of which limit
-- and offset are known. conditions: what its where clauses require, at any depth. joined_by: what
-- its joins require.
create type knowledge_internal.searching_query as (
  query text, parts jsonb, limited text, skipped text, conditions text[], joined_by text[]
);

-- Reads the body of a function. A constant text that is executed is read as the query itself.
create function knowledge_internal.read_searching_query(body text)
returns knowledge_internal.searching_query
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
declare
  clauses constant text[] := array[
    'select', 'from', 'where', 'group', 'having', 'window', 'union', 'intersect', 'except',
    'order', 'limit', 'offset', 'fetch', 'for'
  ];
  joins constant text[] := array[
    'join', 'left', 'right', 'full', 'inner', 'cross', 'natural', 'on', ','
  ];
  code constant text := (
    select string_agg(listed.token, '' order by listed.place)
      from knowledge_internal.sql_tokens(body) as listed
  );
  reading knowledge_internal.searching_query;
  executed text[];
  lexed record;
  clause text;
  part text := '';
  ends_at bigint;
  opened_by text;
  condition text;
begin
  reading.query := btrim(
    coalesce(
      substring(code from '(?i)^\s*(?:#variable_conflict\s+\w+\s+)?begin\s+return\s+query\s+(.*);'
                          '\s*end\s*;?\s*$'),
      substring(code from '(?i)^\s*begin\s+atomic\s+(.*)\s*end\s*$'),
      substring(code from '(?i)^\s*((?:select|with)\M.*)$')
    ),
    E' \n\t;'
  );
  executed := regexp_match(
    reading.query,
    '(?i)^execute\s+(?:format\s*\(\s*)?(''(?:[^'']|'''')*'')\s*\)?(?:\s+using\s+(.*))?$'
  );
  if executed is not null and executed[1] !~ '%' then
    reading.query := btrim(replace(substr(executed[1], 2, length(executed[1]) - 2), '''''', ''''));
    for part, ends_at in
      select listed.argument, listed.place
        from unnest(knowledge_internal.sql_parts(coalesce(executed[2], ''), ','))
             with ordinality as listed (argument, place)
    loop
      reading.query := regexp_replace(reading.query, '\$' || ends_at || '(?!\d)', part, 'g');
    end loop;
    part := '';
    ends_at := null;
  end if;
  if (reading.query ~* '^(select|with)\M') is not true
    or (select count(*) from knowledge_internal.sql_tokens(reading.query) as listed
         where listed.token = ';') > 0 then
    reading.query := null;
    return reading;
  end if;
  reading.parts := '{}';
  reading.conditions := '{}';
  reading.joined_by := '{}';
  for lexed in
    (
      select listed.token, listed.depth, lower(listed.token) as word
        from knowledge_internal.sql_tokens(reading.query) as listed
       order by listed.place
    )
    union all
    select ';', -1, ';'
  loop
    if lexed.depth < ends_at or lexed.depth = ends_at and (
      lexed.word = any (clauses) or opened_by = 'on' and lexed.word = any (joins)
    ) then
      if opened_by = 'on' then
        reading.joined_by := reading.joined_by || knowledge_internal.sql_parts(condition, 'and');
      else
        reading.conditions := reading.conditions || knowledge_internal.sql_parts(condition, 'and');
      end if;
      ends_at := null;
    end if;
    exit when lexed.depth = -1;
    if ends_at is not null then
      condition := condition || lexed.token;
    elsif lexed.word in ('where', 'on') then
      ends_at := lexed.depth;
      opened_by := lexed.word;
      condition := '';
    end if;
    if lexed.depth = 0 and lexed.word = any (clauses) then
      if clause is not null then
        reading.parts := reading.parts || jsonb_build_object(clause, btrim(part, E' \n\t'));
      end if;
      -- A second select, a group and the like: no plain select.
      clause := case when reading.parts ? lexed.word then 'union' else lexed.word end;
      part := '';
    else
      part := part || lexed.token;
    end if;
  end loop;
  reading.parts := reading.parts || jsonb_build_object(clause, btrim(part, E' \n\t'));
  reading.limited := reading.parts ->> 'limit';
  reading.skipped := reading.parts ->> 'offset';
  if reading.query ~* '^with\M' or not reading.parts ? 'from'
    or reading.parts ->> 'select' ~* '^(distinct|all)\M'
    or reading.parts ?| '{group,having,window,union,intersect,except,fetch,for}' then
    reading.parts := null;
  end if;
  return reading;
end
$$;

-- Whether an SQL text has this name as a word.
create function knowledge_internal.names_word(source text, word text) returns boolean
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
begin
  return ' ' || source || ' ' ~* ('[^[:alnum:]_$]' || regexp_replace(word, '(\W)', '\\\1', 'g')
                                 || '[^[:alnum:]_]');
end
$$;

-- SQL for the filters of a search that a condition of an old function implies, null for none.
-- columns: the names of the columns that metadata has, with their types. arguments: the names that
-- values can have. A value that is null is no filter: the condition itself decides then.
create function knowledge_internal.filter_of_condition(
  condition text, columns jsonb, arguments text[]
) returns text
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
declare
  operators constant jsonb := '{
    "=": "eq", "<>": "ne", "!=": "ne", ">": "gt", ">=": "gte", "<": "lt", "<=": "lte"
  }';
  term constant text := '("?\w+"?|\$\d+|''[^'']*''|\d+(?:\.\d+)?|now\(\))'
    '(?:::[\w. ]+(?:\(\d+\))?)?';
  bare text := btrim(condition, E' \n\t');
  parts text[];
  compared text[];
  value text;
  field text;
  value_type text;
begin
  while bare like '(%)' and (
    select count(*) = 2 from knowledge_internal.sql_tokens(bare) as listed
     where listed.depth = 0 and listed.token !~ '^\s'
  ) loop
    bare := btrim(substr(bare, 2, length(bare) - 2), E' \n\t');
  end loop;
  -- "argument is null or column = argument": without the value there is no filter.
  parts := string_to_array(
    regexp_replace(bare, '(?i)^("?\w+"?|\$\d+)\s+is\s+null\s+or\s+', '\1' || chr(1)), chr(1)
  );
  if cardinality(parts) = 2 and parts[1] = any (arguments) then
    return knowledge_internal.filter_of_condition(parts[2], columns, arguments);
  end if;
  bare := regexp_replace(bare, '(^|[(\s])\w+\.(?=["\w])', '\1', 'g');
  bare := regexp_replace(
    bare, '(?i)^("?\w+"?)\s*=\s*coalesce\s*\(\s*(\S+)\s*,\s*\1\s*\)$', '\1 = \2'
  );
  bare := regexp_replace(bare, '(?i)^("?\w+"?)\s+is\s+(not\s+)?true$', '\2\1');
  if bare ~* '^(not\s+)?"?\w+"?$' then
    bare := regexp_replace(bare, '(?i)^not\s+(.*)$', '\1 = false');
    bare := regexp_replace(bare, '^("?\w+"?)$', '\1 = true');
  end if;
  compared := regexp_match(bare, '(?i)^("?\w+"?)\s+is\s+(not\s+)?null$');
  if compared is not null and columns ? btrim(compared[1], '"') then
    return format(
      'jsonb_build_array(jsonb_build_object(''field'', %L, ''op'', %L))',
      'metadata.' || btrim(compared[1], '"'),
      case when compared[2] is null then 'is_null' else 'is_not_null' end
    );
  end if;
  compared := regexp_match(bare, '^("?\w+"?)\s*(=|<>|!=|<=|>=|<|>|@>)\s*' || term || '$');
  if compared is null then
    compared := regexp_match(bare, '(?i)^("?\w+"?)\s*(=\s*any)\s*\(\s*' || term || '\s*\)$');
  end if;
  field := btrim(compared[1], '"');
  value := coalesce('$' || array_position(arguments, compared[3]), compared[3]);
  value_type := columns ->> field;
  if value_type is null
    or value !~* '^(\$\d+|''.*''|[\d.]+|true|false|now\(\))$' then
    return null;
  end if;
  if compared[2] = '@>' then
    return format(
      'case when coalesce(%1$s, ''{}'') = ''{}'' then ''[]'' else jsonb_build_array('
      'jsonb_build_object(''field'', %2$L, ''op'', ''contains'', ''value'', %1$s)) end',
      value || '::jsonb',
      case value_type when 'metadata' then 'metadata' else 'metadata.' || field end
    );
  elsif value_type in ('json', 'jsonb', 'metadata') then
    return null;
  elsif compared[2] like '=_%' then
    return format(
      'case when %1$s is null then ''[]'' else jsonb_build_array(jsonb_build_object('
      '''field'', %2$L, ''op'', ''in'', ''value'', to_jsonb(%1$s))) end',
      value, 'metadata.' || field
    );
  end if;
  -- In metadata, a time is a text in UTC.
  value := case value_type
    when 'timestamptz' then format('(%s)::timestamptz at time zone ''UTC''', value)
    when 'timestamp' then format('(%s)::timestamp', value)
    else format(
      case when value_type in ('text', 'varchar', 'bpchar', 'citext', 'uuid', 'date')
        or value ~ '^''' and value_type not in ('bool', 'int2', 'int4', 'int8', 'numeric',
                                               'float4', 'float8')
        then '(%s)::text' else '(%s)::' || quote_ident(value_type) end, value
    )
  end;
  return format(
    'case when %1$s is null then ''[]'' else jsonb_build_array(jsonb_build_object('
    '''field'', %2$L, ''op'', %3$L, ''value'', to_jsonb(%1$s))) end',
    value, 'metadata.' || field, operators ->> compared[2]
  );
end
$$;

-- The columns that the metadata of adopted rows have, with their types; the column that is the
-- metadata has the type metadata.
create function knowledge_internal.carried_columns(adoption public.knowledge_adoptions)
returns jsonb
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
declare
  mapping constant text := pg_catalog.pg_get_viewdef(
    format('knowledge_internal.%I', 'adopted_' || adoption.name)::regclass
  );
begin
  return (
    select coalesce(jsonb_object_agg(
             attribute.attname,
             case when shown.is_key then type.typname::text else 'metadata' end
           ), '{}')
      from pg_catalog.pg_attribute as attribute
      join pg_catalog.pg_type as type on type.oid = attribute.atttypid
     cross join lateral (
             select mapping ~ format(
                      '%L(::text)?, (source\.)?%I\M', attribute.attname, attribute.attname
                    )
           ) as shown (is_key)
     where attribute.attrelid = adoption.source
       and attribute.attnum > 0
       and not attribute.attisdropped
       and (
         shown.is_key
         or type.typname in ('json', 'jsonb')
           and knowledge_internal.names_word(mapping, attribute.attname)
       )
  );
end
$$;

-- The names that a table has in a query: its aliases, else its own name.
create function knowledge_internal.names_in_query(query text, source regclass) returns text[]
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
begin
  return array(
    select coalesce(listed.parts[1], class.relname::text)
      from pg_catalog.pg_class as class
     cross join regexp_matches(
             query,
             '(?:\mfrom|\mjoin|,)\s*(?:only\s+)?(?:"?\w+"?\.)?"?'
               || regexp_replace(class.relname, '(\W)', '\\\1', 'g')
               || '"?(?![\w.(])(?:\s+(?:as\s+)?(?!(?:on|using|where|join|left|right|full|inner'
                  '|cross|natural|group|order|limit|offset|union|for|tablesample)\M)("?\w+"?))?',
             'gi'
           ) as listed (parts)
     where class.oid = source
  );
end
$$;

-- The tables that a query reads beside a source, by their names, without its own common table
-- expressions.
create function knowledge_internal.other_tables(query text, source regclass) returns text[]
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
begin
  return array(
    select distinct listed.parts[1]
      from regexp_matches(
             query, '(?:\mfrom|\mjoin)\s+(?:only\s+|lateral\s+)?("?\w+"?(?:\."?\w+"?)?)', 'gi'
           ) as listed (parts)
      join pg_catalog.pg_class as class on class.oid = source
     where lower(replace(regexp_replace(listed.parts[1], '^.*\.', ''), '"', ''))
             <> lower(class.relname)
       and query !~* (
             '(?:\mwith|\mrecursive|,)\s*' || listed.parts[1]
             || '\s*(?:\([^()]*\)\s*)?as\s+(?:not\s+)?(?:materialized\s*)?\('
           )
  );
end
$$;

-- What becomes of the conditions of an old function. kept: conditions about the source; filters:
-- the filters that follow from them; unsearched: the kept ones that no filter expresses; undecided:
-- why the drop-in may return rows that the old function does not.
create type knowledge_internal.kept_conditions as (
  kept text[], filters text[], unsearched text[], notes text[], undecided text[]
);

-- A condition of the retrieval is not kept: one on words, and one on distances if the search has a
-- question too. question, embedding: names of arguments.
create function knowledge_internal.keep_conditions(
  adoption public.knowledge_adoptions, reading knowledge_internal.searching_query,
  aliases text[], arguments text[], question text
) returns knowledge_internal.kept_conditions
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
declare
  result knowledge_internal.kept_conditions := row('{}', '{}', '{}', '{}', '{}');
  carried constant jsonb := knowledge_internal.carried_columns(adoption);
  is_plain constant boolean := reading.parts is not null;
  -- Columns whose conditions restrict rows.
  columns constant text[] := array(
    select attribute.attname::text
      from pg_catalog.pg_attribute as attribute
      join pg_catalog.pg_type as type on type.oid = attribute.atttypid
     where attribute.attrelid = adoption.source
       and attribute.attnum > 0
       and not attribute.attisdropped
       and type.typname not in ('vector', 'halfvec', 'sparsevec', 'tsvector')
  );
  is_about_rows constant text := '\m(select|exists|current_\w+|session_user)\M|\mauth\.';
  seen text[] := '{}';
  condition text;
  outside text;
  filter text;
begin
  foreach condition in array case
    when is_plain then knowledge_internal.sql_parts(coalesce(reading.parts ->> 'where', ''), 'and')
    else coalesce(reading.conditions, '{}')
  end
  loop
    if not is_plain then
      condition := regexp_replace(
        condition, '(?:"?\w+"?\.)?\m(' || array_to_string(aliases, '|') || ')\M"?\.',
        'source.', 'gi'
      );
    end if;
    continue when condition = any (seen) or condition ~* '^\(?true\)?$';
    seen := seen || condition;
    if condition ~* '@@|ts_rank|tsquery|%>|<%|\msimilarity\s*\(' or question is not null and (
      condition ~ '<=>|<->|<#>' or knowledge_internal.names_word(condition, question)
    ) then
      outside := regexp_replace(
        condition,
        'to_tsvector\s*\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)|\msimilarity\s*\([^()]*\)'
        '|(?:"?\w+"?\.)?"?\w+"?\s+i?like\M', '', 'gi'
      );
      if outside ~* is_about_rows or exists (
        select
          from unnest(columns) as listed (name)
         where knowledge_internal.names_word(outside, listed.name)
      ) then
        result.undecided := result.undecided || format('its condition %s is not kept', condition);
      end if;
    elsif not is_plain and condition ~* '(rank|score|similarity|distance|\mrn\M|row_num)'
      and condition !~* is_about_rows and not exists (
        select
          from unnest(columns) as listed (name)
         where knowledge_internal.names_word(condition, listed.name)
      ) then
      result.notes := result.notes || format('its condition %s on scores is not kept', condition);
    else
      result.kept := result.kept || condition;
      filter := knowledge_internal.filter_of_condition(condition, carried, arguments);
      if filter is not null then
        result.filters := result.filters || filter;
      elsif condition !~ '<=>|<->|<#>' then
        result.unsearched := result.unsearched || condition;
      end if;
    end if;
  end loop;
  if not is_plain then
    result.undecided := result.undecided || array(
      select format('its join on %s is not kept', joined.condition)
        from unnest(reading.joined_by) as joined (condition)
       where exists (
               select
                 from unnest(columns) as listed (name)
                where listed.name <> all (adoption.key_columns)
                  and knowledge_internal.names_word(joined.condition, listed.name)
             )
    ) || array(
      select format('it reads %s too', other.name)
        from unnest(knowledge_internal.other_tables(reading.query, adoption.source))
             as other (name)
    ) || array(
      select format('its %s is not kept', lower(word.parts[1]))
        from regexp_matches(reading.query, '\m(except|intersect|having)\M', 'gi') as word (parts)
    );
  end if;
  return result;
end
$$;

revoke all on all functions in schema knowledge_internal from public;

notify pgrst, 'reload schema';
