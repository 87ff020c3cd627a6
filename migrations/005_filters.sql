-- 005_filters: the rows that a search may return.
-- Adds: types filter_condition, metadata_condition, chunk_filter and row_scope, functions that
-- parse the filters of a search, and row_scope, the one home of the conditions on rows.
-- Locks nothing that exists.
-- Written from supabase/schemas/core/05_filters.sql by `make baseline`: edit that file.

-- One condition of filters. field: a column, metadata or metadata.<key>. kind: text, uuid, integer,
-- date, timestamp or metadata. path: the keys after metadata.
create type knowledge_internal.filter_condition as (
  field text,
  kind text,
  path text[],
  op text,
  value jsonb
);

-- A condition on the value at a path of object keys. op and value: in and not_in with an array,
-- where null means no value; contains with a value; has_any with a text[] as a string; gte, gt, lte
-- and lt with {"bound"}; between with {"low", "high"}.
create type knowledge_internal.metadata_condition as (
  path text[],
  op text,
  value jsonb
);

-- A compiled filter; a chunk must meet all parts. A null part is no restriction; an empty array or
-- multirange matches no value. knowledge_types to updated: the allowed values of that column.
-- or_null: names of those columns where a row without a value also passes. excluded: column=value
-- pairs that a row must not have, or the column name alone to exclude rows without a value;
-- excluded_collections: the same for collection, without those that have no chunks. hidden: the
-- same for visibility, sensitivity and owner_id, which control access. required_metadata: metadata
-- must contain it. alternative_metadata: metadata must contain one of them. metadata_conditions:
-- conditions that these two cannot express. is_indexed: whether an index supports a part of the
-- filter. bounds_rows: whether it has a part beside excluded_collections.
create type knowledge_internal.chunk_filter as (
  knowledge_types text[],
  source_origins text[],
  collections text[],
  languages text[],
  visibilities text[],
  sensitivities text[],
  embedding_models text[],
  document_ids uuid[],
  source_ids uuid[],
  owner_ids uuid[],
  chunk_indexes int4multirange,
  document_dates datemultirange,
  created tstzmultirange,
  updated tstzmultirange,
  or_null text[],
  excluded text[],
  excluded_collections text[],
  hidden text[],
  required_metadata jsonb,
  alternative_metadata jsonb[],
  metadata_conditions knowledge_internal.metadata_condition[],
  is_indexed boolean,
  bounds_rows boolean
);

-- Whether a text is a uuid, date or timestamp.
create function knowledge_internal.is_input(source text, kind text) returns boolean
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  -- Postgres 15 has no pg_input_is_valid.
  case kind
    when 'uuid' then perform source::uuid;
    when 'date' then perform source::date;
    when 'timestamp' then perform source::timestamptz;
  end case;
  return true;
exception when data_exception then
  return false;
end
$$;

-- The allowed values of a field; null for a field that allows any value.
create function knowledge_internal.known_values(field text) returns text[]
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return case field
    when 'knowledge_type' then knowledge_internal.knowledge_type_names()
    when 'source_origin' then knowledge_internal.source_origin_names()
    when 'visibility' then array['private', 'public']
  end;
end
$$;

-- The statement that adds the first unknown one of these names of a type or an origin; empty for
-- other fields.
create function knowledge_internal.how_to_add(field text, elements jsonb) returns text
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  known constant text := case field
    when 'knowledge_type' then 'public.knowledge_types'
    when 'source_origin' then 'public.knowledge_source_origins'
  end;
begin
  return coalesce(
    (
      select format('To add it: insert into %s (name) values (%L)', known, left(listed.name, 60))
        from jsonb_array_elements_text(elements) as listed (name)
       where known is not null and listed.name <> all (knowledge_internal.known_values(field))
       limit 1
    ),
    ''
  );
end
$$;

-- The columns that a filter can name, each with the kind of its values.
create function knowledge_internal.filter_columns() returns jsonb
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return '{
    "knowledge_type": "text", "source_origin": "text", "collection": "text", "language": "text",
    "visibility": "text", "sensitivity": "text", "embedding_model": "text",
    "document_id": "uuid", "source_id": "uuid", "owner_id": "uuid",
    "chunk_index": "integer", "document_date": "date",
    "created_at": "timestamp", "updated_at": "timestamp"
  }';
end
$$;

-- Raises 22023 with a problem that parsed_condition found. In its text, %1$s is the place of the
-- condition, %2$s the condition, %3$s its unknown keys, %4$s the columns, %5$s its field, %6$s the
-- allowed ops, %7$s the field as text, %8$s and %10$s its op, %9$s its value.
create function knowledge_internal.refuse_condition(
  problem text, source jsonb, place text, condition knowledge_internal.filter_condition,
  allowed_ops text[]
) returns void
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  keys constant text[] := '{field,op,operator,value}';
begin
  raise exception '%', format(
                    problem,
                    place,
                    left(source::text, 100),
                    case jsonb_typeof(source)
                      when 'object' then left((source - keys)::text, 100)
                    end,
                    (
                      select string_agg(listed.name, ', ' order by listed.name)
                        from jsonb_object_keys(knowledge_internal.filter_columns())
                             as listed (name)
                    ),
                    left((source -> 'field')::text, 100),
                    array_to_string(allowed_ops, ', '),
                    left(condition.field, 100),
                    left(coalesce(source -> 'op', source -> 'operator')::text, 100),
                    left(condition.value::text, 100),
                    condition.op
                  )
    using errcode = '22023';
end
$$;

-- Parses one condition and adds the kind of its field. Raises 22023 for an unknown field or op and
-- for a value of the wrong type; the message contains place.
create function knowledge_internal.parsed_condition(source jsonb, place text)
returns knowledge_internal.filter_condition
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  condition knowledge_internal.filter_condition;
  allowed_ops text[];
  problem text;
begin
  select named.field,
         case
           when named.is_metadata then 'metadata'
           else knowledge_internal.filter_columns() ->> named.field
         end,
         case when named.is_metadata then (string_to_array(named.field, '.'))[2:] end,
         coalesce(source ->> 'op', source ->> 'operator'),
         source -> 'value'
    into condition.field, condition.kind, condition.path, condition.op, condition.value
    from (
      select source ->> 'field' as field,
             source ->> 'field' = 'metadata' or starts_with(source ->> 'field', 'metadata.')
               as is_metadata
    ) as named;
  allowed_ops := case
    when condition.path = '{}' then '{contains,has_any}'
    when condition.kind in ('text', 'uuid') then '{eq,ne,in,not_in,exists}'
    when condition.kind = 'metadata'
      then '{eq,ne,in,not_in,exists,gte,gt,lte,lt,between,contains,has_any}'
    else '{eq,ne,in,not_in,exists,gte,gt,lte,lt,between}'
  end;
  problem := case
    when jsonb_typeof(source) <> 'object' then '%1$s must be an object, not %2$s'
    when source - '{field,op,operator,value}'::text[] <> '{}'
      then '%1$s must have only the keys field, op (or operator) and value, not %3$s'
    when source ?& '{op,operator}' then '%1$s has both op and operator, give only one of them'
    when not source ? 'field' then '%1$s.field is missing'
    when not source ?| '{op,operator}' then '%1$s.op is missing'
    when condition.kind is null
      then '%1$s.field must be one of %4$s or metadata.<key>, not %5$s'
    when cardinality(condition.path) > 20 or '' = any (condition.path)
      then '%1$s.field must have 1 to 20 keys after metadata, none of them empty, not %5$s'
    when (condition.op = any (allowed_ops)) is not true
      then '%1$s.op must be one of %6$s for %7$s, not %8$s'
    when condition.op <> 'exists' and condition.value is null then '%1$s.value is missing'
    when condition.op = 'exists' and jsonb_typeof(condition.value) <> 'boolean'
      then '%1$s.value for exists must be true or false, not %9$s'
    when condition.op in ('in', 'not_in', 'has_any')
      and not jsonb_path_match(
        condition.value, 'strict $.type() == "array" && $.size() <= 1000'
      )
      then '%1$s.value for %10$s must be an array of at most 1000 values, not %9$s'
    when condition.op = 'between'
      and not jsonb_path_match(
        condition.value,
        'strict $.type() == "array" && $.size() == 2 && $[0].type() == $[1].type()'
      )
      then '%1$s.value for between must be [low, high], both of one type, not %9$s'
  end;
  if problem is not null then
    perform knowledge_internal.refuse_condition(problem, source, place, condition, allowed_ops);
  end if;
  return condition;
end
$$;

-- The error message for the first element that the condition does not allow; null if all elements
-- are allowed.
create function knowledge_internal.wrong_value(
  condition knowledge_internal.filter_condition, elements jsonb, place text
) returns text
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
declare
  iso_date constant text := '^\d{4}-\d{2}-\d{2}$';
  iso_timestamp constant text :=
    '^\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?(Z|[+-]\d{2}(:?\d{2})?)?)?$';
  ops_for_null constant text[] := array['eq', 'ne', 'in', 'not_in', 'exists'];
  allowed constant text[] := knowledge_internal.known_values(condition.field);
  is_list constant boolean := elements = condition.value;
begin
  return (
    select format(
             '%s.value%s for %s must be %s, not %s',
             place,
             case when is_list then format('[%s]', listed.ordinality - 1) end,
             left(condition.field, 100),
             case
               when allowed is not null then 'one of ' || array_to_string(allowed, ', ')
               when condition.kind = 'text' or condition.op = 'has_any' then 'a string'
               when condition.field = 'source_id' then 'a UUID or the name of a source'
               when condition.kind = 'uuid' then 'a UUID'
               when condition.kind = 'integer' then 'an integer'
               when condition.kind = 'date' then 'an ISO date such as 2026-01-31'
               when condition.kind = 'timestamp'
                 then 'an ISO timestamp such as 2026-01-31T12:00:00Z'
               when condition.path = '{}' then 'an object'
               when condition.op = 'contains' then 'a value'
               else 'a number or a string'
             end,
             left(listed.element::text, 100)
           )
      from jsonb_array_elements(elements) with ordinality as listed (element, ordinality)
     cross join lateral (
             select jsonb_typeof(listed.element) as type, listed.element #>> '{}' as text
           ) as read
     where not case
             when condition.op = any (ops_for_null)
               and (condition.kind = 'metadata' or read.text is null) then true
             when condition.op = 'has_any' then read.type = 'string'
             when condition.path = '{}' then read.type = 'object'
             when condition.op = 'contains' then read.type <> 'null'
             when condition.kind = 'metadata' then read.type in ('number', 'string')
             when condition.kind = 'integer' then
               case
                 when read.type = 'number' then
                   read.text::numeric between -2147483648 and 2147483647
                   and read.text::numeric % 1 = 0
                 else false
               end
             when read.type <> 'string' then false
             when condition.kind = 'text' then coalesce(read.text = any (allowed), true)
             when condition.kind = 'uuid' then knowledge_internal.is_input(read.text, 'uuid')
             when condition.kind = 'date' then
               read.text ~ iso_date and knowledge_internal.is_input(read.text, 'date')
             else
               read.text ~ iso_timestamp and knowledge_internal.is_input(read.text, 'timestamp')
           end
     order by listed.ordinality
     limit 1
  );
end
$$;

-- Whether each element is null or a text that the field allows.
create function knowledge_internal.are_known_texts(elements jsonb, field text) returns boolean
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  allowed constant text[] := knowledge_internal.known_values(field);
begin
  return case
    when allowed is not null then elements <@ (to_jsonb(allowed) || 'null'::jsonb)
    else not jsonb_path_exists(elements, 'strict $[*] ? (@.type() != "string" && @ != null)')
  end;
end
$$;

-- The same condition with uuids and integers in one spelling, and with gte and lte in place of
-- between.
create function knowledge_internal.typed_conditions(condition knowledge_internal.filter_condition)
returns setof knowledge_internal.filter_condition
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  elements jsonb;
begin
  if condition.kind in ('uuid', 'integer') then
    condition.value := coalesce(
      (
        select jsonb_agg(
                 case
                   when condition.kind = 'uuid' then to_jsonb((listed.element #>> '{}')::uuid)
                   else to_jsonb((listed.element #>> '{}')::numeric::integer)
                 end
                 order by listed.ordinality
               )
          from jsonb_array_elements(condition.value)
               with ordinality as listed (element, ordinality)
      ),
      '[]'
    );
  end if;
  if condition.op <> 'between' then
    return next condition;
    return;
  end if;
  elements := condition.value;
  condition.op := 'gte';
  condition.value := jsonb_build_array(elements -> 0);
  return next condition;
  condition.op := 'lte';
  condition.value := jsonb_build_array(elements -> 1);
  return next condition;
end
$$;

-- The values of a condition on source_id, with names of sources replaced by their ids. An unknown
-- name is left out, so it matches no row, as an unknown id does: an error would tell a viewer which
-- sources exist.
create function knowledge_internal.source_ids(elements jsonb) returns jsonb
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return (
    select coalesce(jsonb_agg(coalesce(to_jsonb(source.id), listed.element)), '[]')
      from jsonb_array_elements(elements) as listed (element)
     cross join lateral (
             select jsonb_typeof(listed.element) = 'string'
                      and not knowledge_internal.is_input(listed.element #>> '{}', 'uuid')
                      as is_name
           ) as read
      left join public.knowledge_sources as source
        on read.is_name and source.name = listed.element #>> '{}'
     where not read.is_name or source.id is not null
  );
end
$$;

-- The conditions of an object whose keys are not columns, but keys of metadata.
create function knowledge_internal.metadata_equalities(filters jsonb)
returns setof knowledge_internal.filter_condition
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return query
  select 'metadata', 'metadata', array[entry.key], 'in', jsonb_build_array(entry.value)
    from jsonb_each(filters) as entry
   where not knowledge_internal.filter_columns() ? entry.key;
end
$$;

-- The conditions of an object whose keys are columns, as a list. Raises 22023 for too many keys.
create function knowledge_internal.column_equalities(filters jsonb) returns jsonb
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  most_keys constant integer := 100;
  keys constant bigint := (select count(*) from jsonb_object_keys(filters));
begin
  if keys > most_keys then
    raise exception 'filters must have at most % keys, not %', most_keys, keys
      using errcode = '22023';
  end if;
  return (
    select coalesce(
             jsonb_agg(jsonb_build_object('field', entry.key, 'op', 'eq', 'value', entry.value)),
             '[]'
           )
      from jsonb_each(filters) as entry
     where knowledge_internal.filter_columns() ? entry.key
  );
end
$$;

-- Raises 22023 for filters that are neither a list nor an object, nested too deep, or too many.
create function knowledge_internal.check_filters(filters jsonb) returns void
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  problem constant text := case
    when jsonb_typeof(filters) not in ('array', 'object')
      then 'filters must be a JSON array of conditions or an object, not %1$s'
    -- Postgres can parse thousands of levels, but comparing them exceeds the stack depth.
    when jsonb_path_exists(filters, 'strict $.**{50}')
      then 'filters must be nested less than 50 levels deep'
    when jsonb_typeof(filters) = 'object' then null
    when jsonb_array_length(filters) > 100
      then 'filters must have at most 100 conditions, not %2$s'
  end;
begin
  if problem is not null then
    raise exception '%', format(
                      problem,
                      left(filters::text, 100),
                      case jsonb_typeof(filters) when 'array' then jsonb_array_length(filters) end
                    )
      using errcode = '22023';
  end if;
end
$$;

-- The conditions of a filter, checked and simplified. A key of an object is a column if one has
-- this name, else a key of metadata. Raises 22023; the message contains the place, such as
-- filters[2].op.
create function knowledge_internal.filter_conditions(filters jsonb)
returns setof knowledge_internal.filter_condition
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  is_object constant boolean := jsonb_typeof(filters) = 'object';
  value_count integer := 0;
  place text;
  condition knowledge_internal.filter_condition;
  elements jsonb;
  problem text;
begin
  perform knowledge_internal.check_filters(filters);
  if is_object then
    return query select * from knowledge_internal.metadata_equalities(filters);
    filters := knowledge_internal.column_equalities(filters);
  end if;

  for number in 0 .. jsonb_array_length(filters) - 1 loop
    place := case
      when is_object then format('filters.%s', filters -> number ->> 'field')
      else format('filters[%s]', number)
    end;
    condition := knowledge_internal.parsed_condition(filters -> number, place);
    -- Equality is a list with one element; existence is a comparison with null.
    elements := case
      when condition.op = 'exists' then '[null]'
      when condition.op in ('in', 'not_in', 'has_any', 'between') then condition.value
      else jsonb_build_array(condition.value)
    end;
    if condition.field = 'source_id' then
      elements := knowledge_internal.source_ids(elements);
    end if;
    value_count := value_count + jsonb_array_length(elements);
    problem := case
      when value_count > 2000 then 'filters must have at most 2000 values in all'
      when condition.kind = 'metadata' and condition.op in ('eq', 'ne', 'in', 'not_in', 'exists')
        then null
      when condition.kind = 'text'
        and knowledge_internal.are_known_texts(elements, condition.field) then null
      else knowledge_internal.wrong_value(condition, elements, place)
    end;
    if problem is not null then
      raise exception '%', problem
        using errcode = '22023',
              hint = knowledge_internal.how_to_add(condition.field, elements);
    end if;
    condition.op := case
      when condition.op = 'eq' or condition.op = 'exists' and condition.value = 'false' then 'in'
      when condition.op in ('ne', 'exists') then 'not_in'
      else condition.op
    end;
    condition.value := case
      when condition.kind <> 'metadata' or condition.op in ('in', 'not_in') then elements
      else condition.value
    end;
    if condition.kind in ('text', 'metadata') then
      return next condition;
    else
      return query select * from knowledge_internal.typed_conditions(condition);
    end if;
  end loop;
end
$$;

-- The part of a multirange that meets a condition on a number, a date or a timestamp.
create function knowledge_internal.narrowed_ranges(
  before text, condition knowledge_internal.filter_condition
) returns text
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  is_negated constant boolean := condition.op in ('not_in', 'gt', 'lt');
  -- A range type adds 1 to an inclusive upper bound. The highest integer would overflow, so this
  -- bound is left out.
  ranges constant text := (
    select format(
             '{%s}',
             string_agg(
               format(
                 '[%s,%s]',
                 case when condition.op not in ('lte', 'gt') then listed.value end,
                 case
                   when condition.op not in ('gte', 'lt') then nullif(listed.value, '2147483647')
                 end
               ),
               ','
             )
           )
      from jsonb_array_elements_text(condition.value) as listed (value)
     where listed.value is not null
  );
begin
  return case
    when condition.kind = 'integer' and is_negated then
      (before::int4multirange - ranges::int4multirange)::text
    when condition.kind = 'integer' then (before::int4multirange * ranges::int4multirange)::text
    when condition.kind = 'date' and is_negated then
      (before::datemultirange - ranges::datemultirange)::text
    when condition.kind = 'date' then (before::datemultirange * ranges::datemultirange)::text
    when is_negated then (before::tstzmultirange - ranges::tstzmultirange)::text
    else (before::tstzmultirange * ranges::tstzmultirange)::text
  end;
end
$$;

-- Adds a condition on metadata to a filter: to required_metadata or alternative_metadata if they
-- can express it, else to metadata_conditions.
create function knowledge_internal.with_metadata_condition(
  compiled knowledge_internal.chunk_filter, condition knowledge_internal.filter_condition
) returns knowledge_internal.chunk_filter
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  -- Without the index, each row is compared with every alternative: 100 take 30 microseconds.
  most_alternatives constant integer := 100;
  any_scalar constant jsonpath := 'strict $.** ? (@.type() != "array" && @.type() != "object")';
  any_other_value constant jsonpath :=
    'strict $[*] ? (@.type() == "array" || @.type() == "object" || @ == null)';
  object_at_path jsonb := 'null'; -- with null at the end of the condition's path
  contained jsonb;
  remaining knowledge_internal.metadata_condition;
begin
  for position in reverse cardinality(condition.path) .. 1 loop
    object_at_path := jsonb_build_object(condition.path[position], object_at_path);
  end loop;
  contained := case
    when condition.op = 'contains' then condition.value
    when condition.op = 'in' and jsonb_array_length(condition.value) = 1 then condition.value -> 0
  end;

  -- For a scalar, containment is equality. A stored array or object may have more elements than the
  -- contained one, so it is compared again. The GIN index finds rows only by scalars.
  if contained <> 'null'
    and jsonb_path_exists(contained, any_scalar)
    and not (condition.op = 'contains' and jsonb_typeof(contained) not in ('array', 'object')) then
    contained := case
      when condition.path = '{}' then contained
      else jsonb_set(object_at_path, condition.path, contained)
    end;
    if not coalesce(
      compiled.required_metadata ?| array(select jsonb_object_keys(contained)), false
    ) then
      compiled.required_metadata := coalesce(compiled.required_metadata, '{}') || contained;
      if condition.op = 'contains'
        or jsonb_typeof(condition.value -> 0) not in ('array', 'object') then
        return compiled;
      end if;
    end if;
  elsif compiled.alternative_metadata is null then
    if condition.op = 'contains' and jsonb_typeof(contained) not in ('array', 'object') then
      compiled.alternative_metadata := array[
        jsonb_set(object_at_path, condition.path, contained),
        jsonb_set(object_at_path, condition.path, jsonb_build_array(contained))
      ];
      return compiled;
    elsif condition.op = 'in'
      and jsonb_array_length(condition.value) <= most_alternatives
      and not jsonb_path_exists(condition.value, any_other_value) then
      compiled.alternative_metadata := array(
        select jsonb_set(object_at_path, condition.path, listed.value)
          from jsonb_array_elements(condition.value) as listed (value)
      );
      return compiled;
    end if;
  end if;

  remaining.path := condition.path;
  remaining.op := condition.op;
  remaining.value := case
    when condition.op = 'has_any' then
      to_jsonb(array(select jsonb_array_elements_text(condition.value))::text)
    when condition.op = 'between' then
      jsonb_build_object('low', condition.value -> 0, 'high', condition.value -> 1)
    when condition.op in ('gte', 'gt', 'lte', 'lt') then
      jsonb_build_object('bound', condition.value)
    else condition.value
  end;
  compiled.metadata_conditions := compiled.metadata_conditions || remaining;
  return compiled;
end
$$;

-- Those of the collections that have chunks, active or not.
create function knowledge_internal.stored_collections(names text[]) returns text[]
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
-- The search may set force_custom_plan; the statement here is the same for every query. Where all
-- chunks are in one collection, the planner would look for another one in the whole table.
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off as $$
begin
  return array(
    select asked.name
      from unnest(names) as asked (name)
     cross join lateral (
             select from public.knowledge_chunks as chunk
              where chunk.status = 'active' and chunk.collection = asked.name limit 1
           ) as stored
  );
end
$$;

-- The part of a chunk_filter with the allowed values of a column.
create function knowledge_internal.filter_part(field text) returns text
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return '{
    "knowledge_type": "knowledge_types", "source_origin": "source_origins",
    "collection": "collections", "language": "languages", "visibility": "visibilities",
    "sensitivity": "sensitivities", "embedding_model": "embedding_models",
    "document_id": "document_ids", "source_id": "source_ids", "owner_id": "owner_ids",
    "chunk_index": "chunk_indexes", "document_date": "document_dates",
    "created_at": "created", "updated_at": "updated"
  }'::jsonb ->> field;
end
$$;

-- The given values, without null, that are among the allowed ones; allowed is null for all.
create function knowledge_internal.values_in_both(allowed jsonb, given jsonb) returns jsonb
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  if allowed is null and not given @> 'null' then
    return given;
  end if;
  return (
    select coalesce(jsonb_agg(listed.value), '[]')
      from jsonb_array_elements(given) as listed (value)
     where listed.value <> 'null'
       and (allowed is null or listed.value in (select jsonb_array_elements(allowed)))
  );
end
$$;

-- Adds a condition not_in on a column to a filter: to hidden for the columns that control access,
-- else to excluded or excluded_collections.
create function knowledge_internal.with_excluded_values(
  compiled knowledge_internal.chunk_filter, condition knowledge_internal.filter_condition
) returns knowledge_internal.chunk_filter
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  negated text[];
begin
  if condition.field = 'collection' then
    compiled.excluded_collections := compiled.excluded_collections || array(
      select jsonb_array_elements_text(condition.value)
    );
    return compiled;
  end if;
  negated := array(
    select condition.field || coalesce('=' || listed.value, '')
      from jsonb_array_elements_text(condition.value) as listed (value)
  );
  if condition.field in ('visibility', 'sensitivity', 'owner_id') then
    compiled.hidden := compiled.hidden || negated;
  else
    compiled.excluded := compiled.excluded || negated;
  end if;
  return compiled;
end
$$;

-- The argument filters as a chunk_filter without is_indexed and bounds_rows. filters: a JSON array
-- of conditions that must all hold, or an object, which is a short form for equality of columns and
-- of top-level metadata keys. Raises 22023; the message contains the place, such as filters[2].op.
create function knowledge_internal.compiled_conditions(filters jsonb)
returns knowledge_internal.chunk_filter
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
-- A timestamp without an offset is UTC. Ranges are passed between the steps as text in ISO format.
set timezone = 'UTC'
set datestyle = 'ISO' as $$
declare
  compiled knowledge_internal.chunk_filter;
  condition knowledge_internal.filter_condition;
  passing jsonb := '{}'; -- values that pass, by part
  part text;
  or_null text[] := '{}';
begin
  for condition in select * from knowledge_internal.filter_conditions(filters) loop
    if condition.kind = 'metadata' then
      compiled := knowledge_internal.with_metadata_condition(compiled, condition);
      continue;
    end if;
    if condition.op = 'not_in' and condition.kind in ('text', 'uuid') then
      compiled := knowledge_internal.with_excluded_values(compiled, condition);
      continue;
    end if;

    part := knowledge_internal.filter_part(condition.field);
    or_null := case
      when condition.op not in ('in', 'not_in')
        or (condition.op = 'in') <> (condition.value @> 'null')
        then array_remove(or_null, condition.field)
      when not passing ? part then or_null || condition.field
      else or_null
    end;
    passing[part] := case
      when condition.kind in ('text', 'uuid')
        then knowledge_internal.values_in_both(passing -> part, condition.value)
      else to_jsonb(
        knowledge_internal.narrowed_ranges(coalesce(passing ->> part, '{(,)}'), condition)
      )
    end;
  end loop;

  compiled := jsonb_populate_record(compiled, passing);
  compiled.or_null := or_null;
  -- Callers exclude collections by habit. Without such chunks the search needs no filter.
  compiled.excluded_collections := case
    when compiled.excluded_collections is not null then
      nullif(knowledge_internal.stored_collections(compiled.excluded_collections), '{}')
  end;
  return compiled;
end
$$;

-- The allowed values (null: any) that are this single one; null does not narrow them.
create function knowledge_internal.narrowed(allowed text[], single text) returns text[]
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return case
    when single is null then allowed
    when single = any (allowed) is not false then array[single]
    else '{}'
  end;
end
$$;

-- The filter arguments of a search as one chunk_filter; null if there is no restriction. Raises
-- 22023 as compiled_conditions does, and for an unknown filter_type.
create function knowledge_internal.compile_filter(
  filters jsonb, filter_type text, date_from date, date_to date, public_only boolean
) returns knowledge_internal.chunk_filter
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  compiled knowledge_internal.chunk_filter;
begin
  if filter_type <> all (knowledge_internal.knowledge_type_names()) then
    raise exception 'filter_type must be one of %, not %',
                    array_to_string(knowledge_internal.knowledge_type_names(), ', '),
                    left(filter_type, 100)
      using errcode = '22023',
            hint = knowledge_internal.how_to_add(
              'knowledge_type', jsonb_build_array(filter_type)
            );
  end if;
  compiled := case
    when filters <> 'null' then knowledge_internal.compiled_conditions(filters)
  end;
  compiled.knowledge_types := knowledge_internal.narrowed(compiled.knowledge_types, filter_type);
  if public_only then
    compiled.visibilities := knowledge_internal.narrowed(compiled.visibilities, 'public');
  end if;
  if date_from is not null or date_to is not null then
    -- 5874897-12-31 is the latest date, so an inclusive bound there would overflow.
    compiled.document_dates := coalesce(compiled.document_dates, '{(,)}') * datemultirange(
      daterange(date_from, null) * daterange(null, nullif(date_to, date '5874897-12-31'), '[]')
    );
    compiled.or_null := array_remove(compiled.or_null, 'document_date');
  end if;
  compiled.is_indexed := num_nonnulls(
    compiled.knowledge_types, compiled.source_origins, compiled.collections, compiled.languages,
    compiled.visibilities, compiled.document_ids, compiled.source_ids, compiled.owner_ids,
    compiled.required_metadata, compiled.alternative_metadata
  ) > 0 or coalesce(
    not (lower_inf(compiled.document_dates) and upper_inf(compiled.document_dates)), false
  );
  compiled.bounds_rows := compiled.is_indexed or num_nonnulls(
    compiled.sensitivities, compiled.embedding_models, compiled.chunk_indexes,
    compiled.document_dates, compiled.created, compiled.updated, compiled.excluded, compiled.hidden,
    compiled.metadata_conditions
  ) > 0;
  if compiled.bounds_rows or compiled.excluded_collections is not null then
    return compiled;
  end if;
  return null;
end
$$;

-- Whether an array has an element equal to this one. For a scalar, the operator @> gives the same
-- result faster.
create function knowledge_internal.is_listed(element jsonb, list jsonb) returns boolean
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
as $$
begin
  return (
    select exists (
      select from jsonb_array_elements(list) as listed (value) where listed.value = element
    )
  );
end
$$;

-- Whether metadata meets every condition. A missing key and a null both count as no value. A range
-- compares numbers with numbers, and strings with strings by code point; a value of another type
-- does not match.
create function knowledge_internal.passes(
  metadata jsonb, conditions knowledge_internal.metadata_condition[]
) returns boolean
language plpgsql immutable parallel safe security invoker set search_path = pg_catalog, pg_temp
as $$
declare
  condition knowledge_internal.metadata_condition;
  actual jsonb;
begin
  foreach condition in array conditions loop
    actual := metadata;
    -- The operator #> would use a key such as 0 as an array index; -> with a text does not.
    for level in 1 .. cardinality(condition.path) loop
      actual := actual -> condition.path[level];
    end loop;
    -- An expression without a subquery, because PL/pgSQL evaluates it without the executor. With
    -- strict, a range condition compares the value and not the elements of an array.
    if (
      case condition.op
        when 'in' then
          case
            when jsonb_typeof(actual) in ('array', 'object') then
              knowledge_internal.is_listed(actual, condition.value)
            else condition.value @> coalesce(actual, 'null')
          end
        when 'not_in' then
          case
            when jsonb_typeof(actual) in ('array', 'object') then
              not knowledge_internal.is_listed(actual, condition.value)
            else not condition.value @> coalesce(actual, 'null')
          end
        when 'contains' then actual @> condition.value
        when 'has_any' then actual ?| (condition.value #>> '{}')::text[]
        when 'gte' then jsonb_path_match(actual, 'strict $ >= $bound', condition.value, true)
        when 'gt' then jsonb_path_match(actual, 'strict $ > $bound', condition.value, true)
        when 'lte' then jsonb_path_match(actual, 'strict $ <= $bound', condition.value, true)
        when 'lt' then jsonb_path_match(actual, 'strict $ < $bound', condition.value, true)
        when 'between' then
          jsonb_path_match(actual, 'strict $ >= $low && $ <= $high', condition.value, true)
      end
    ) is not true then
      return false;
    end if;
  end loop;
  return true;
end
$$;

-- Which rows a search may return, as the parameter $1 of each statement that reads rows. visible:
-- who may see a row; matching: this and the filters, both as SQL about chunk. is_restricted:
-- visible is more than status. first_date and end_date: the bounds of document_date, for its index.
create type knowledge_internal.row_scope as (
  wanted knowledge_internal.chunk_filter,
  first_date date,
  end_date date,
  viewer_id uuid,
  viewer_groups text[],
  public_only boolean,
  is_restricted boolean,
  visible text,
  matching text
);

-- The condition that the viewer of a row_scope, $1, may see a row of chunks or documents.
create function knowledge_internal.viewer_condition(row_name text) returns text
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return replace(
    '(row.visibility = ''public'' or row.owner_id = ($1).viewer_id'
    ' or row.allowed_groups && ($1).viewer_groups)', 'row.', row_name || '.'
  );
end
$$;

-- The rows that pass a filter and that a viewer may see: the one home of these conditions. No value
-- becomes part of the SQL.
create function knowledge_internal.row_scope(
  wanted knowledge_internal.chunk_filter, viewer_id uuid, viewer_groups text[], public_only boolean
) returns knowledge_internal.row_scope
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  has_viewer constant boolean := num_nonnulls(viewer_id, viewer_groups) > 0;
  -- The index on document_date serves these bounds, not the multirange.
  has_dates constant boolean := ('document_date' = any (wanted.or_null)) is not true;
  first_date constant date := case when has_dates then lower(wanted.document_dates) end;
  end_date constant date := case when has_dates then upper(wanted.document_dates) end;
  visible text := 'chunk.status = ''active''';
  matching text;
begin
  if wanted is null and not has_viewer then
    return row(wanted, null, null, null, null, false, false, visible, visible)
      ::knowledge_internal.row_scope;
  end if;
  -- Only the conditions that apply: the planner reads, and the executor checks, no others.
  visible := concat_ws(
    ' and ', visible,
    case when has_viewer then knowledge_internal.viewer_condition('chunk') end,
    case when wanted.visibilities is not null then
      'chunk.visibility = any ((($1).wanted).visibilities)' end,
    case when wanted.sensitivities is not null then
      '(chunk.sensitivity = any ((($1).wanted).sensitivities)'
      ' or chunk.sensitivity is null and ''sensitivity'' = any ((($1).wanted).or_null))' end,
    case when wanted.owner_ids is not null then
      '(chunk.owner_id = any ((($1).wanted).owner_ids)'
      ' or chunk.owner_id is null and ''owner_id'' = any ((($1).wanted).or_null))' end,
    case when wanted.hidden is not null then
      'not (($1).wanted).hidden && array['
      '''visibility='' || chunk.visibility,'
      ' ''owner_id'' || coalesce(''='' || chunk.owner_id, ''''),'
      ' ''sensitivity'' || coalesce(''='' || chunk.sensitivity, '''')]' end
  );
  matching := concat_ws(
    ' and ', visible,
    case when wanted.excluded_collections is not null then
      'chunk.collection <> all ((($1).wanted).excluded_collections)' end,
    case when wanted.knowledge_types is not null then
      'chunk.knowledge_type = any ((($1).wanted).knowledge_types)' end,
    case when wanted.source_origins is not null then
      'chunk.source_origin = any ((($1).wanted).source_origins)' end,
    case when wanted.collections is not null then
      'chunk.collection = any ((($1).wanted).collections)' end,
    case when wanted.languages is not null then
      'chunk.language = any ((($1).wanted).languages)' end,
    case when wanted.embedding_models is not null then
      '(chunk.embedding_model = any ((($1).wanted).embedding_models)'
      ' or chunk.embedding_model is null'
      ' and ''embedding_model'' = any ((($1).wanted).or_null))' end,
    case when wanted.document_ids is not null then
      '(chunk.document_id = any ((($1).wanted).document_ids)'
      ' or chunk.document_id is null and ''document_id'' = any ((($1).wanted).or_null))' end,
    case when wanted.source_ids is not null then
      '(chunk.source_id = any ((($1).wanted).source_ids)'
      ' or chunk.source_id is null and ''source_id'' = any ((($1).wanted).or_null))' end,
    case when wanted.chunk_indexes is not null then
      '(chunk.chunk_index <@ (($1).wanted).chunk_indexes'
      ' or chunk.chunk_index is null and ''chunk_index'' = any ((($1).wanted).or_null))' end,
    case when wanted.document_dates is not null then
      '(chunk.document_date <@ (($1).wanted).document_dates'
      ' or chunk.document_date is null and ''document_date'' = any ((($1).wanted).or_null))' end,
    case when first_date is not null then 'chunk.document_date >= ($1).first_date' end,
    case when end_date is not null then 'chunk.document_date < ($1).end_date' end,
    case when wanted.created is not null then 'chunk.created_at <@ (($1).wanted).created' end,
    case when wanted.updated is not null then 'chunk.updated_at <@ (($1).wanted).updated' end,
    case when wanted.excluded is not null then
      'not (($1).wanted).excluded && array['
      '''knowledge_type='' || chunk.knowledge_type, ''source_origin='' || chunk.source_origin,'
      ' ''language='' || chunk.language,'
      ' ''document_id'' || coalesce(''='' || chunk.document_id, ''''),'
      ' ''embedding_model'' || coalesce(''='' || chunk.embedding_model, ''''),'
      ' ''source_id'' || coalesce(''='' || chunk.source_id, '''')]' end,
    case when wanted.required_metadata is not null then
      'chunk.metadata @> (($1).wanted).required_metadata' end,
    case when wanted.alternative_metadata is not null then
      'chunk.metadata @> any ((($1).wanted).alternative_metadata)' end,
    case when wanted.metadata_conditions is not null then
      'knowledge_internal.passes(chunk.metadata, (($1).wanted).metadata_conditions)' end
  );
  return row(
    wanted, first_date, end_date, viewer_id, viewer_groups, public_only,
    visible <> 'chunk.status = ''active''', visible, matching
  )::knowledge_internal.row_scope;
end
$$;

-- Who may see a document, as SQL about document; $1 is the scope.
create function knowledge_internal.document_condition(scope knowledge_internal.row_scope)
returns text
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return case
    when scope.public_only then 'document.visibility = ''public'''
    when num_nonnulls(scope.viewer_id, scope.viewer_groups) > 0
      then knowledge_internal.viewer_condition('document')
    else 'true'
  end;
end
$$;
