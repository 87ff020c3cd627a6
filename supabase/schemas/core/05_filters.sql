-- 005_filters: the rows that a search may return.
-- Adds: types filter_condition, chunk_filter and row_scope, functions that compile the filters of a
-- search, and row_scope, the one home of the conditions on rows. Locks nothing that exists.

-- One condition of filters. field: a column, metadata or metadata.<key>. kind: text, uuid, integer,
-- date, timestamp or json, which is metadata. path: the keys after metadata. op: an op of filters;
-- eq and exists are in or not_in. has_null: null is among the values. The other values are in the
-- array of their kind, those of has_any in texts; a bound of json is {"bound": value}.
create type knowledge_internal.filter_condition as (
  field text,
  kind text,
  path text[],
  op text,
  has_null boolean,
  texts text[],
  uuids uuid[],
  integers integer[],
  dates date[],
  timestamps timestamptz[],
  jsons jsonb[]
);

-- Compiled filters; a chunk must meet all parts, and a null part is no restriction. filter_type to
-- public_only: arguments of the search. required_metadata: metadata must contain it.
-- alternative_metadata: metadata must contain one of them. conditions: the other conditions; they
-- are the SQL in access_sql (those on visibility, sensitivity and owner_id, which control access)
-- and other_sql. collections: those that conditions allow. excluded_collections: those that no
-- chunk may be in. is_indexed: whether an index supports a part. bounds_rows: whether there is a
-- part beside excluded_collections.
create type knowledge_internal.chunk_filter as (
  filter_type text,
  date_from date,
  date_to date,
  public_only boolean,
  required_metadata jsonb,
  alternative_metadata jsonb[],
  conditions knowledge_internal.filter_condition[],
  access_sql text,
  other_sql text,
  collections text[],
  excluded_collections text[],
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

-- What is wrong with the form of a condition; null if nothing is. condition: its field, kind, path
-- and op. place: where it stands, such as filters[2].
create function knowledge_internal.condition_problem(
  source jsonb, condition knowledge_internal.filter_condition, place text
) returns text
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  keys constant text[] := '{field,op,operator,value}';
  value constant jsonb := source -> 'value';
  allowed_ops constant text[] := case
    when condition.path = '{}' then '{contains,has_any}'
    when condition.kind in ('text', 'uuid') then '{eq,ne,in,not_in,exists}'
    when condition.kind = 'json'
      then '{eq,ne,in,not_in,exists,gte,gt,lte,lt,between,contains,has_any}'
    else '{eq,ne,in,not_in,exists,gte,gt,lte,lt,between}'
  end;
begin
  return case
    when jsonb_typeof(source) <> 'object'
      then format('%s must be an object, not %s', place, left(source::text, 100))
    when source - keys <> '{}' then format(
      '%s must have only the keys field, op (or operator) and value, not %s',
      place, left((source - keys)::text, 100)
    )
    when source ?& '{op,operator}'
      then format('%s has both op and operator, give only one of them', place)
    when not source ? 'field' then format('%s.field is missing', place)
    when not source ?| '{op,operator}' then format('%s.op is missing', place)
    when condition.kind is null then format(
      '%s.field must be one of %s or metadata.<key>, not %s', place,
      (
        select string_agg(listed.name, ', ' order by listed.name)
          from jsonb_object_keys(knowledge_internal.filter_columns()) as listed (name)
      ),
      left((source -> 'field')::text, 100)
    )
    when cardinality(condition.path) > 20 or '' = any (condition.path) then format(
      '%s.field must have 1 to 20 keys after metadata, none of them empty, not %s',
      place, left((source -> 'field')::text, 100)
    )
    when (condition.op = any (allowed_ops)) is not true then format(
      '%s.op must be one of %s for %s, not %s', place, array_to_string(allowed_ops, ', '),
      left(condition.field, 100), left(coalesce(source -> 'op', source -> 'operator')::text, 100)
    )
    when condition.op <> 'exists' and value is null then format('%s.value is missing', place)
    when condition.op = 'exists' and jsonb_typeof(value) <> 'boolean' then format(
      '%s.value for exists must be true or false, not %s', place, left(value::text, 100)
    )
    when condition.op in ('in', 'not_in', 'has_any')
      and not jsonb_path_match(value, 'strict $.type() == "array" && $.size() <= 1000')
      then format(
        '%s.value for %s must be an array of at most 1000 values, not %s',
        place, condition.op, left(value::text, 100)
      )
    when condition.op = 'between'
      and not jsonb_path_match(
        value, 'strict $.type() == "array" && $.size() == 2 && $[0].type() == $[1].type()'
      )
      then format(
        '%s.value for between must be [low, high], both of one type, not %s',
        place, left(value::text, 100)
      )
  end;
end
$$;

-- The error message for the first element that a condition does not allow; null if it allows all
-- of them. is_list: the condition has them as a list.
create function knowledge_internal.wrong_value(
  condition knowledge_internal.filter_condition, elements jsonb, is_list boolean, place text
) returns text
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on as $$
declare
  iso_date constant text := '^\d{4}-\d{2}-\d{2}$';
  iso_timestamp constant text :=
    '^\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?(Z|[+-]\d{2}(:?\d{2})?)?)?$';
  allowed constant text[] := knowledge_internal.known_values(condition.field);
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
             when condition.op in ('in', 'not_in') and read.text is null then true
             when condition.kind = 'text' then
               read.type = 'string' and coalesce(read.text = any (allowed), true)
             when condition.op = 'has_any' then read.type = 'string'
             when condition.path = '{}' then read.type = 'object'
             when condition.op = 'contains' then read.type <> 'null'
             when condition.kind = 'json' then read.type in ('number', 'string')
             when condition.kind = 'integer' then
               case
                 when read.type = 'number' then
                   read.text::numeric between -2147483648 and 2147483647
                   and read.text::numeric % 1 = 0
                 else false
               end
             when read.type <> 'string' then false
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

-- The conditions of filters, checked: an array of conditions, or an object, which is a short form
-- for equality. A key of the object is a column if one has this name, else a key of metadata.
-- Raises 22023; the message contains the place, such as filters[2].op.
create function knowledge_internal.filter_conditions(filters jsonb)
returns setof knowledge_internal.filter_condition
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
-- A timestamp without an offset is UTC, and a date is in ISO format, whatever the session has set.
set timezone = 'UTC'
set datestyle = 'ISO' as $$
declare
  is_object constant boolean := jsonb_typeof(filters) = 'object';
  problem text := case
    when jsonb_typeof(filters) not in ('array', 'object') then format(
      'filters must be a JSON array of conditions or an object, not %s', left(filters::text, 100)
    )
    -- Postgres can parse thousands of levels, but comparing them exceeds the stack depth.
    when jsonb_path_exists(filters, 'strict $.**{50}')
      then 'filters must be nested less than 50 levels deep'
  end;
  most_conditions constant integer := 100;
  most_values constant integer := 2000;
  value_count integer := 0;
  source jsonb;
  place text;
  condition knowledge_internal.filter_condition;
  elements jsonb;
begin
  if is_object and problem is null then
    filters := (
      select coalesce(jsonb_agg(jsonb_build_object('field', key, 'op', 'eq', 'value', value)), '[]')
        from jsonb_each(filters)
    );
  end if;
  if problem is null and jsonb_array_length(filters) > most_conditions then
    problem := format(
      'filters must have at most %s %s, not %s', most_conditions,
      case when is_object then 'keys' else 'conditions' end, jsonb_array_length(filters)
    );
  end if;
  if problem is not null then
    raise exception '%', problem using errcode = '22023';
  end if;

  for number in 0 .. jsonb_array_length(filters) - 1 loop
    source := filters -> number;
    select named.field, named.kind,
           case
             when is_object then array[named.field]
             when named.kind = 'json' then (string_to_array(named.field, '.'))[2:]
           end,
           coalesce(source ->> 'op', source ->> 'operator')
      into condition.field, condition.kind, condition.path, condition.op
      from (
        select source ->> 'field' as field,
               coalesce(
                 knowledge_internal.filter_columns() ->> (source ->> 'field'),
                 case when is_object or source ->> 'field' ~ '^metadata($|\.)' then 'json' end
               ) as kind
      ) as named;
    place := case
      when is_object then 'filters.' || condition.field else format('filters[%s]', number)
    end;
    problem := case
      when not is_object then knowledge_internal.condition_problem(source, condition, place)
    end;
    if problem is not null then
      raise exception '%', problem using errcode = '22023';
    end if;

    -- Equality is a list with one element; existence is a comparison with null.
    elements := case
      when condition.op = 'exists' then '[null]'
      when condition.op in ('in', 'not_in', 'has_any', 'between') then source -> 'value'
      else jsonb_build_array(source -> 'value')
    end;
    if condition.field = 'source_id' then
      -- Names of sources become their ids. An unknown name is left out, so it matches no row, as an
      -- unknown id does: an error would tell a viewer which sources exist.
      elements := (
        select coalesce(jsonb_agg(coalesce(to_jsonb(stored.id), listed.element)), '[]')
          from jsonb_array_elements(elements) as listed (element)
         cross join lateral (
                 select jsonb_typeof(listed.element) = 'string'
                          and not knowledge_internal.is_input(listed.element #>> '{}', 'uuid')
                          as is_name
               ) as read
          left join public.knowledge_sources as stored
            on read.is_name and stored.name = listed.element #>> '{}'
         where not read.is_name or stored.id is not null
      );
    end if;
    condition.op := case
      when condition.op = 'eq' or condition.op = 'exists' and source -> 'value' = 'false' then 'in'
      when condition.op in ('ne', 'exists') then 'not_in'
      else condition.op
    end;
    value_count := value_count + jsonb_array_length(elements);
    problem := case
      when value_count > most_values
        then format('filters must have at most %s values in all', most_values)
      when condition.kind <> 'json' or condition.op not in ('in', 'not_in')
        then knowledge_internal.wrong_value(
          condition, elements, elements = source -> 'value', place
        )
    end;
    if problem is not null then
      raise exception '%', problem
        using errcode = '22023',
              hint = knowledge_internal.how_to_add(condition.field, elements);
    end if;

    select elements @> 'null',
           case when condition.kind = 'text' or condition.op = 'has_any' then listed.texts end,
           case condition.kind when 'uuid' then listed.texts::uuid[] end,
           case condition.kind when 'integer' then listed.texts::numeric[]::integer[] end,
           case condition.kind when 'date' then listed.texts::date[] end,
           case condition.kind when 'timestamp' then listed.texts::timestamptz[] end,
           case
             when condition.kind <> 'json' then null
             when condition.op in ('in', 'not_in', 'contains')
               then array(select jsonb_array_elements(elements))
             else array(
               select jsonb_build_object('bound', bound) from jsonb_array_elements(elements) as bound
             )
           end
      into condition.has_null, condition.texts, condition.uuids, condition.integers,
           condition.dates, condition.timestamps, condition.jsons
      from (
        select array_remove(array(select jsonb_array_elements_text(elements)), null) as texts
      ) as listed;
    return next condition;
  end loop;
end
$$;

-- The filter with one more condition, which becomes SQL about chunk. Only its number and the names
-- of columns and operators are part of this text; its values are read from $1, the row_scope.
create function knowledge_internal.with_condition(
  compiled knowledge_internal.chunk_filter, condition knowledge_internal.filter_condition
) returns knowledge_internal.chunk_filter
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  -- Without the index, each row is compared with every alternative: 100 take 30 microseconds.
  most_alternatives constant integer := 100;
  any_scalar constant jsonpath := 'strict $.** ? (@.type() != "array" && @.type() != "object")';
  indexed_columns constant text[] :=
    '{knowledge_type,source_origin,collection,language,visibility,document_id,source_id,owner_id}';
  nullable_columns constant text[] :=
    '{sensitivity,embedding_model,document_id,source_id,owner_id,chunk_index,document_date}';
  is_list constant boolean := condition.op in ('in', 'not_in');
  -- Where the values of the condition are.
  place constant text := format(
    '($1).wanted.conditions[%s]', coalesce(cardinality(compiled.conditions), 0) + 1
  );
  given constant text := format('%s.%ss', place, condition.kind);
  operators constant text[] := case condition.op
    when 'gte' then '{>=}'
    when 'gt' then '{>}'
    when 'lte' then '{<=}'
    when 'lt' then '{<}'
    when 'between' then '{>=,<=}'
  end;
  actual text := 'chunk.' || condition.field;
  single jsonb; -- the value that metadata must contain, or have at the path
  is_scalar boolean;
  object_at_path jsonb := 'null'; -- with null at the end of the path
  keys text := '';
  added text;
begin
  if condition.field = 'collection' and condition.op = 'not_in' then
    compiled.excluded_collections := compiled.excluded_collections || condition.texts;
    return compiled;
  end if;

  if condition.kind = 'json' then
    for level in reverse cardinality(condition.path) .. 1 loop
      object_at_path := jsonb_build_object(condition.path[level], object_at_path);
      -- The operator #> would use a key such as 0 as an array index; -> with a text does not.
      keys := format(' -> %s.path[%s]', place, level) || keys;
    end loop;
    actual := format(case when is_list then 'coalesce(%s, ''null'')' else '(%s)' end,
                     'chunk.metadata' || keys);
    single := case
      when condition.op = 'contains' or condition.op = 'in' and cardinality(condition.jsons) = 1
        then condition.jsons[1]
    end;
    is_scalar := jsonb_typeof(single) not in ('array', 'object');
    -- For a scalar, containment is equality. A stored array or object may have more elements than
    -- the contained one, so it is compared again. The GIN index finds rows only by scalars.
    if single <> 'null' and jsonb_path_exists(single, any_scalar)
      and not (condition.op = 'contains' and is_scalar) then
      if condition.path <> '{}' then
        single := jsonb_set(object_at_path, condition.path, single);
      end if;
      if (compiled.required_metadata ?| array(select jsonb_object_keys(single))) is not true then
        compiled.required_metadata := coalesce(compiled.required_metadata, '{}') || single;
        if condition.op = 'contains' or is_scalar then
          return compiled;
        end if;
      end if;
    elsif compiled.alternative_metadata is null and (
      condition.op = 'contains' and is_scalar
      or condition.op = 'in' and cardinality(condition.jsons) <= most_alternatives
        and not exists (
              select from unnest(condition.jsons) as listed (value)
               where jsonb_typeof(listed.value) in ('array', 'object', 'null')
            )
    ) then
      compiled.alternative_metadata := array(
        select jsonb_set(object_at_path, condition.path, listed.value)
          from unnest(
                 case condition.op
                   when 'in' then condition.jsons else array[single, jsonb_build_array(single)]
                 end
               ) as listed (value)
      );
      return compiled;
    end if;
  end if;

  added := case condition.op
    when 'in' then format('%s = any (%s)', actual, given)
    when 'not_in' then format('%s <> all (%s)', actual, given)
    when 'contains' then format('%s @> %s[1]', actual, given)
    when 'has_any' then format('%s ?| %s.texts', actual, place)
    else (
      select string_agg(
               format(
                 case condition.kind
                   -- With strict, the value is compared and not the elements of an array.
                   when 'json' then 'jsonb_path_match(%s, ''strict $ %s $bound'', %s[%s], true)'
                   else '%s %s %s[%s]'
                 end,
                 actual, operator, given, ordinality
               ),
               ' and '
             )
        from unnest(operators) with ordinality as operator
    )
  end;
  if is_list and condition.field = any (nullable_columns) then
    added := case
      when condition.has_null = (condition.op = 'in')
        then format('(%s or %s is null)', added, actual)
      when condition.has_null then format('%s is not null and %s', actual, added)
      else added
    end;
  end if;
  compiled.conditions := compiled.conditions || condition;
  if condition.field in ('visibility', 'sensitivity', 'owner_id') then
    compiled.access_sql := concat_ws(' and ', compiled.access_sql, added);
  else
    compiled.other_sql := concat_ws(' and ', compiled.other_sql, added);
  end if;
  if condition.field = 'collection' then
    compiled.collections := array(
      select listed.name
        from unnest(condition.texts) as listed (name)
       where listed.name = any (compiled.collections) is not false
    );
  end if;
  compiled.is_indexed := compiled.is_indexed is true
    or condition.op = 'in' and condition.field = any (indexed_columns)
    or condition.op <> 'not_in' and condition.field = 'document_date';
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

-- The filter arguments of a search as one chunk_filter; null if there is no restriction. Raises
-- 22023 as filter_conditions does, and for an unknown filter_type.
create function knowledge_internal.compile_filter(
  filters jsonb, filter_type text, date_from date, date_to date, public_only boolean
) returns knowledge_internal.chunk_filter
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  compiled knowledge_internal.chunk_filter;
  condition knowledge_internal.filter_condition;
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
  if filters <> 'null' then
    for condition in select * from knowledge_internal.filter_conditions(filters) loop
      compiled := knowledge_internal.with_condition(compiled, condition);
    end loop;
    -- Callers exclude collections by habit. Without such chunks the search needs no filter.
    if compiled.excluded_collections is not null then
      compiled.excluded_collections := nullif(
        knowledge_internal.stored_collections(compiled.excluded_collections), '{}'
      );
    end if;
  end if;
  compiled.filter_type := filter_type;
  compiled.date_from := date_from;
  compiled.date_to := date_to;
  compiled.public_only := nullif(public_only, false);
  compiled.is_indexed := compiled.is_indexed is true or num_nonnulls(
    filter_type, date_from, date_to, compiled.public_only, compiled.required_metadata,
    compiled.alternative_metadata
  ) > 0;
  compiled.bounds_rows := compiled.is_indexed or compiled.conditions is not null;
  if compiled.bounds_rows or compiled.excluded_collections is not null then
    return compiled;
  end if;
  return null;
end
$$;

-- Which rows a search may return, as the parameter $1 of each statement that reads rows. visible:
-- who may see a row; matching: this and the filters, both as SQL about chunk. is_restricted:
-- visible is more than status.
create type knowledge_internal.row_scope as (
  wanted knowledge_internal.chunk_filter,
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
  visible text := 'chunk.status = ''active''';
  matching text;
begin
  -- Only the conditions that apply: the planner reads, and the executor checks, no others.
  visible := concat_ws(
    ' and ', visible,
    case when has_viewer then knowledge_internal.viewer_condition('chunk') end,
    case when wanted.public_only then 'chunk.visibility = ''public''' end,
    wanted.access_sql
  );
  matching := concat_ws(
    ' and ', visible,
    case when wanted.excluded_collections is not null then
      'chunk.collection <> all (($1).wanted.excluded_collections)' end,
    case when wanted.filter_type is not null then
      'chunk.knowledge_type = ($1).wanted.filter_type' end,
    case when wanted.date_from is not null then
      'chunk.document_date >= ($1).wanted.date_from' end,
    case when wanted.date_to is not null then 'chunk.document_date <= ($1).wanted.date_to' end,
    case when wanted.required_metadata is not null then
      'chunk.metadata @> ($1).wanted.required_metadata' end,
    case when wanted.alternative_metadata is not null then
      'chunk.metadata @> any (($1).wanted.alternative_metadata)' end,
    wanted.other_sql
  );
  return row(
    wanted, viewer_id, viewer_groups, public_only, visible <> 'chunk.status = ''active''',
    visible, matching
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
