-- 004_filters: the rows that a search may return.
-- Adds: types filter_condition, chunk_filter and row_scope, functions that compile the filters of a
-- search, and row_scope, the one home of the conditions on rows. Locks nothing that exists.
-- Written from supabase/schemas/core/04_filters.sql by `make baseline`: edit that file.

-- One condition. field: a column, text, metadata or metadata.<key>. kind: text, uuid, integer,
-- date, timestamp, words (of field text) or json, which is metadata. path: the keys after metadata.
-- location: the same, with the bounds of a range. op: as in filters, but in or not_in for eq, ne
-- and those about null. has_null: null is among the values. They are in the array of their kind
-- (json's with null), has_any's in texts, words in query. level: the groups that it is in. A group
-- (op any, all or not) follows its parts: the last conditions of the level below it, as many as
-- parts says.
create type knowledge_internal.filter_condition as (
  field text, kind text, path text[], location jsonpath, op text, has_null boolean,
  texts text[], uuids uuid[], integers integer[], dates date[], timestamps timestamptz[],
  jsons jsonb[], query tsquery, level integer, parts integer
);

-- Compiled filters; a chunk must meet all parts, and a null part is no restriction. filter_type to
-- public_only: as given. access_sql, other_sql: the conditions as SQL about chunk, those on columns
-- that control access apart. collections: those that conditions allow. is_indexed: whether an index
-- supports a part. bounds_rows: whether it has a part beside excluded_collections.
create type knowledge_internal.chunk_filter as (
  filter_type text, date_from date, date_to date, public_only boolean,
  conditions knowledge_internal.filter_condition[], access_sql text, other_sql text,
  collections text[], excluded_collections text[], is_indexed boolean, bounds_rows boolean
);

-- Whether a text is a uuid or a date.
create function knowledge_internal.is_input(source text, kind text) returns boolean
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  -- Postgres 15 has no pg_input_is_valid.
  case kind
    when 'uuid' then perform source::uuid;
    when 'date' then perform source::date;
  end case;
  return true;
exception when data_exception then
  return false;
end
$$;

-- An ISO date or timestamp as days since 1970, without an offset UTC; null for another text.
create function knowledge_internal.iso_days(source text) returns double precision
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on
set timezone = 'UTC'
set datestyle = 'ISO' as $$
declare
  iso_format constant text :=
    '^\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?(Z|[+-]\d{2}(:?\d{2})?)?)?$';
begin
  return case
    when source ~ iso_format then extract(epoch from source::timestamptz)::float8 / 86400
  end;
exception when data_exception then
  return null;
end
$$;

-- The allowed values of a field; null for a field that allows any value.
create function knowledge_internal.known_values(field text) returns text[]
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return case field
    when 'knowledge_type' then array(
      select type.name from public.knowledge_types as type order by type.name collate "C"
    )
    when 'source_origin' then array(
      select origin.name from public.knowledge_source_origins as origin
       order by origin.name collate "C"
    )
    when 'visibility' then array['private', 'public']
  end;
end
$$;

-- The statement that adds a name of a type or an origin; empty for other fields.
create function knowledge_internal.how_to_add(field text, name text) returns text
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return case when field in ('knowledge_type', 'source_origin') then format(
    'To add it: insert into public.%s (name) values (%L)',
    case field when 'knowledge_type' then 'knowledge_types' else 'knowledge_source_origins' end,
    left(name, 60)
  ) else '' end;
end
$$;

-- The fields that a filter can name, each with the kind of its values: columns, and text, which is
-- what the text leg searches.
create function knowledge_internal.filter_columns() returns jsonb
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return '{
    "knowledge_type": "text", "source_origin": "text", "collection": "text", "language": "text",
    "visibility": "text", "sensitivity": "text", "embedding_model": "text", "id": "uuid",
    "document_id": "uuid", "external_key": "uuid", "source_id": "uuid", "owner_id": "uuid",
    "chunk_index": "integer",
    "document_date": "date", "created_at": "timestamp", "updated_at": "timestamp", "text": "words"
  }';
end
$$;

-- The fields that a filter can name as other systems do.
create function knowledge_internal.other_filter_names() returns jsonb
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return '{
    "artifact_type": "knowledge_type", "date_range": "document_date",
    "document_type": "metadata.document_type", "source_category": "metadata.source_category",
    "source_file": "metadata.source_file", "time_range": "document_date"
  }';
end
$$;

-- kinds: of the fields that the operator takes: as filter_columns has them, json for a key of
-- metadata, metadata for the whole; none for what only the compiler writes. takes: what its value
-- is. condition: the SQL, with %1$s for the field, %2$s for the array of its values and %3$s for
-- the condition; or_null: the same where null is among the values. path: for json the predicate of
-- jsonpath, with %1$s for the path and %2$s and %3$s for its values.
create type knowledge_internal.filter_operator as (
  op text, kinds text[], takes text, condition text, or_null text, path text
);

-- The operators of filters. To add one, add its row here and in docs/filters.md, and run
-- `make baseline`. A kind can have a row of its own; those without SQL become in or not_in.
create function knowledge_internal.filter_operators()
returns setof knowledge_internal.filter_operator
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  single constant text[] := '{text,uuid,integer,date,timestamp,json}';
  ordered constant text[] := '{integer,date,timestamp,json}';
begin
  return query values
    ('eq', single, 'value', null::text, null::text, null::text),
    ('ne', single, 'value', null, null, null),
    ('in', single, 'values', '%1$s = any (%2$s)', '(%1$s = any (%2$s) or %1$s is null)', null),
    ('not_in', single, 'values', '(%1$s <> all (%2$s)) is not false',
     '(%1$s <> all (%2$s) and %1$s is not null)', null),
    ('exists', single, 'boolean', null, null, null),
    ('is_null', single, 'nothing', null, null, null),
    ('is_not_null', single, 'nothing', null, null, null),
    ('gte', ordered, 'bound', '%1$s >= %2$s[1]', null, '%1$s >= %2$s'),
    ('gt', ordered, 'bound', '%1$s > %2$s[1]', null, '%1$s > %2$s'),
    ('lte', ordered, 'bound', '%1$s <= %2$s[1]', null, '%1$s <= %2$s'),
    ('lt', ordered, 'bound', '%1$s < %2$s[1]', null, '%1$s < %2$s'),
    ('between', ordered, 'bounds', '%1$s between %2$s[1] and %2$s[2]', null,
     '%1$s >= %2$s && %1$s <= %3$s'),
    ('starts_with', '{text,json}', 'text', 'starts_with(%1$s, %2$s[1])', null,
     '%1$s starts with %2$s'),
    ('contains_text', '{text,json,words}', 'text', 'strpos(%1$s, %2$s[1]) > 0', null,
     '%1$s like_regex %2$s flag "q"'),
    ('contains', '{json,metadata}', 'value', '%1$s @> %2$s[1]', null, null),
    ('contains_any', '{}', 'values', '%1$s @> any (%2$s)', null, null),
    ('has_any', '{json,metadata}', 'texts', '%1$s ?| %2$s', null, null),
    ('has_all_words', '{words}', 'texts', 'chunk.content_tsv @@ %3$squery', null, null),
    ('has_any_word', '{words}', 'texts', 'chunk.content_tsv @@ %3$squery', null, null),
    ('has_no_word', '{words}', 'texts', '(chunk.content_tsv @@ %3$squery) is not true', null, null);
end
$$;

-- The operator of a condition; null for one that its field does not take.
create function knowledge_internal.operator_of(condition knowledge_internal.filter_condition)
returns knowledge_internal.filter_operator
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return (
    select listed
      from knowledge_internal.filter_operators() as listed
     where listed.op = condition.op
       and (
         listed.kinds = '{}'
         or case when condition.path = '{}' then 'metadata' else condition.kind end
              = any (listed.kinds)
       )
  );
end
$$;

-- Raises 22023 for a condition of the wrong form. place: where it stands, such as filters[2].
create function knowledge_internal.check_condition(
  source jsonb, condition knowledge_internal.filter_condition, place text
) returns void
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  other_keys constant jsonb := case when jsonb_typeof(source) = 'object'
    then source - '{field,op,operator,value}'::text[] end;
  value constant jsonb := source -> 'value';
  takes constant text := (knowledge_internal.operator_of(condition)).takes;
  allowed_ops constant text[] := array(
    select listed.op
      from knowledge_internal.filter_operators() as listed
     where case when condition.path = '{}' then 'metadata' else condition.kind end
             = any (listed.kinds)
  );
  -- For format, with the arguments below.
  problem constant text := case
    when other_keys is null then ' must be an object, not %1$s'
    when other_keys <> '{}'
      then ' must have only the keys field, op (or operator) and value, not %2$s'
    when source ?& '{op,operator}' then ' has both op and operator, give only one of them'
    when not source ? 'field' then '.field is missing'
    when not source ?| '{op,operator}' then '.op is missing'
    when condition.kind is null then '.field must be one of %3$s or metadata.<key>, not %4$s'
    when cardinality(condition.path) > 20 or '' = any (condition.path)
      then '.field must have 1 to 20 keys after metadata, none of them empty, not %4$s'
    when (condition.op = any (allowed_ops)) is not true
      then '.op must be one of %5$s for %6$s, not %7$s'
    when takes = 'nothing' then case
      when value is not null then ' must have no value for %8$s' end
    when takes <> 'boolean' and value is null then '.value is missing'
    when takes = 'boolean' and jsonb_typeof(value) <> 'boolean'
      then '.value for %8$s must be true or false, not %9$s'
    when takes in ('values', 'texts')
      and not jsonb_path_match(value, 'strict $.type() == "array" && $.size() <= 1000')
      then '.value for %8$s must be an array of at most 1000 values, not %9$s'
    when takes = 'bounds' and not jsonb_path_match(
      value, 'strict $.type() == "array" && $.size() == 2 && $[0].type() == $[1].type()'
    )
      then '.value for %8$s must be [low, high], both of one type, not %9$s'
  end;
begin
  if problem is not null then
    raise exception '%', place || format(
                      problem, left(source::text, 100), left(other_keys::text, 100),
                      (
                        select string_agg(name, ', ' order by name)
                          from jsonb_object_keys(knowledge_internal.filter_columns()) as name
                      ),
                      left((source -> 'field')::text, 100), array_to_string(allowed_ops, ', '),
                      left(condition.field, 100),
                      left(coalesce(source -> 'op', source -> 'operator')::text, 100),
                      condition.op, left(value::text, 100)
                    )
      using errcode = '22023';
  end if;
end
$$;

-- Raises 22023 for the first element that a condition does not allow. takes: as in filter_operator.
create function knowledge_internal.check_values(
  condition knowledge_internal.filter_condition, elements jsonb, takes text, place text
) returns void
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  is_integer constant jsonpath :=
    'strict $ >= -2147483648 && $ <= 2147483647 && $.floor() == $';
  allowed constant text[] := case
    when takes not in ('text', 'texts') then knowledge_internal.known_values(condition.field) end;
  wrong record;
begin
  -- The fast way for a long list of texts.
  if condition.kind = 'text' and allowed is null
    and not jsonb_path_exists(elements, 'strict $[*] ? (@.type() != "string" && @ != null)') then
    return;
  end if;
  select listed.ordinality - 1 as place, listed.element, read.text
    into wrong
    from jsonb_array_elements(elements) with ordinality as listed (element, ordinality)
   cross join lateral (
           select jsonb_typeof(listed.element) as type, listed.element #>> '{}' as text
         ) as read
   where not case
           when condition.op in ('in', 'not_in') and read.text is null then true
           when condition.kind = 'text' then
             read.type = 'string' and coalesce(read.text = any (allowed), true)
           when takes in ('text', 'texts') then read.type = 'string'
           when condition.path = '{}' then read.type = 'object'
           when condition.kind = 'json' and takes = 'value' then read.type <> 'null'
           when condition.kind = 'json' then read.type in ('number', 'string')
           when condition.kind = 'integer' then
             jsonb_path_match(listed.element, is_integer, '{}', true) is true
           when read.type <> 'string' then false
           when condition.kind = 'uuid' then knowledge_internal.is_input(read.text, 'uuid')
           else (condition.kind <> 'date' or length(read.text) = 10)
             and knowledge_internal.iso_days(read.text) is not null
         end
   order by listed.ordinality
   limit 1;
  if found then
    raise exception '%', format(
                      '%s.value%s for %s must be %s, not %s',
                      place,
                      case when takes in ('values', 'texts', 'bounds')
                        then format('[%s]', wrong.place) end,
                      left(condition.field, 100),
                      case
                        when allowed is not null then 'one of ' || array_to_string(allowed, ', ')
                        when condition.kind = 'text' or takes in ('text', 'texts') then 'a string'
                        when condition.field = 'external_key' then 'the key of a document'
                        when condition.field = 'source_id' then 'a UUID or the name of a source'
                        when condition.kind = 'uuid' then 'a UUID'
                        when condition.kind = 'integer' then 'an integer'
                        when condition.kind = 'date' then 'an ISO date such as 2026-01-31'
                        when condition.kind = 'timestamp'
                          then 'an ISO timestamp such as 2026-01-31T12:00:00Z'
                        when condition.path = '{}' then 'an object'
                        when takes = 'value' then 'a value'
                        else 'a number or a string'
                      end || case
                        when jsonb_typeof(wrong.element) = 'object'
                          and condition.kind in ('integer', 'date', 'timestamp')
                          then ', or in the short form a range with the keys from, start, gte, gt, '
                            'to, end, lte, lt'
                        else ''
                      end,
                      left(wrong.element::text, 100)
                    )
      using errcode = '22023', hint = knowledge_internal.how_to_add(condition.field, wrong.text);
  end if;
end
$$;

-- A condition on a field by a name of another system, with the field's own name; any other as it
-- is. A document_type gets all its names: ingest stores the ending of the file.
create function knowledge_internal.own_condition(condition jsonb) returns jsonb
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  same_types constant jsonb := '[["markdown", "md"], ["text", "txt"], ["html", "htm"]]';
  name constant text := condition ->> 'field';
  op_key constant text := case when condition ? 'op' then 'op' else 'operator' end;
  own_op constant text :=
    '{"eq": "in", "in": "in", "ne": "not_in", "not_in": "not_in"}'::jsonb
      ->> (condition ->> op_key);
  listed constant jsonb := case
    when own_op <> condition ->> op_key then jsonb_build_array(condition -> 'value')
    when own_op is not null and jsonb_typeof(condition -> 'value') = 'array'
      then condition -> 'value'
  end;
begin
  return condition
    || jsonb_build_object('field', knowledge_internal.other_filter_names() -> name)
    || case when name = 'document_type' and listed is not null then jsonb_build_object(
         op_key, own_op, 'value', listed || (
           select coalesce(jsonb_agg(same.name), '[]')
             from jsonb_array_elements(same_types) as type (names)
            cross join jsonb_array_elements(type.names) as same (name)
            where type.names ?| array(select jsonb_array_elements_text(listed))
         )
       ) else '{}' end;
end
$$;

-- The conditions of filters: an array of conditions, one condition, or an object, which is a short
-- form of values that columns and keys of metadata equal, of ranges, and of groups. An object in
-- the array without a key of a condition is a short form, too. place: such as filters[2]; part: the
-- same as a path in filters. path: of a key of metadata in a short form. level, parts: as in
-- filter_condition. argument: what has them.
create function knowledge_internal.listed_conditions(
  filters jsonb, argument text default 'filters', of_level integer default 0
) returns table (
  place text, part text[], path text[], condition jsonb, level integer, parts integer
)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  -- A short form names the metadata keys id, external_key and text, which many projects have.
  columns constant jsonb := knowledge_internal.filter_columns() - '{id,external_key,text}'::text[];
  other_names constant jsonb := knowledge_internal.other_filter_names();
  bounds constant jsonb := '{
    "from": "gte", "start": "gte", "gte": "gte", "gt": "gt", "to": "lte", "end": "lte",
    "lte": "lte", "lt": "lt"
  }';
  keys_of_condition constant text[] := '{field,op,operator,value}';
begin
  return query
  select each.place, each.part, each.path, each.condition, each.level, each.parts
    from (
      select filters as given, null as index,
             case when of_level = 0
               then not (filters ? 'field' and filters ?| '{op,operator}')
               else not filters ?| keys_of_condition and filters <> '{}' end as is_short
       where jsonb_typeof(filters) = 'object'
       union all
      select listed.given, (listed.number - 1)::text,
             jsonb_typeof(listed.given) = 'object' and listed.given <> '{}'
               and not listed.given ?| keys_of_condition
        from jsonb_array_elements(
               case jsonb_typeof(filters) when 'array' then filters end
             ) with ordinality as listed (given, number)
    ) as element
   cross join lateral (
           select '{}'::text[] as keys, element.given as condition, null as op
            where not element.is_short
            union all
           select array_remove(array[entry.key, bound.key], null),
                  jsonb_build_object('field', entry.key, 'op', bound.op, 'value', bound.value),
                  case when entry.key in ('any', 'all', 'not') then entry.key end
             from jsonb_each(case when element.is_short then element.given end) as entry
            cross join lateral (
                    select columns ->> coalesce(other_names ->> entry.key, entry.key) as kind
                  ) as field
            cross join lateral (
                    select case
                             when field.kind in ('integer', 'date', 'timestamp')
                               and jsonb_typeof(entry.value) = 'object'
                               then entry.value - array(select jsonb_object_keys(bounds)) = '{}'
                             else false
                           end as is_range
                  ) as read
            cross join lateral (
                    select null as key, 'eq' as op, entry.value where not read.is_range
                     union all
                    -- The last day of a range of times is a whole one.
                    select range.key,
                           bounds ->> range.key,
                           case
                             when field.kind = 'timestamp' and range.key in ('to', 'end')
                               and range.value #>> '{}' ~ '^(?:[0-9]{4}-[0-9]{2}-[0-9]{2}|today)$'
                               then to_jsonb(
                                 replace(range.value #>> '{}', 'today', current_date::text)
                                   || 'T23:59:59.999999Z'
                               )
                             else range.value
                           end
                      from jsonb_each(case when read.is_range then entry.value end) as range
                     where range.value <> 'null'
                  ) as bound
         ) as written
   cross join lateral (
           select array_to_string(
                    (argument || coalesce('[' || element.index || ']', '')) || written.keys, '.'
                  ) as place,
                  array_remove(array[element.index], null) || written.keys as part
         ) as found
   cross join lateral (
           select found.place, found.part,
                  case when not (columns || other_names) ? written.keys[1]
                    and not starts_with(written.keys[1], 'metadata.')
                    then written.keys[:1] end as path,
                  case when other_names ? (written.condition ->> 'field')
                    then knowledge_internal.own_condition(written.condition)
                    else written.condition end as condition,
                  of_level as level, null::integer as parts
            where written.op is null
            union all
           select grouped.place, found.part, grouped.path, grouped.condition, grouped.level,
                  grouped.parts
             from knowledge_internal.listed_group(
                    written.op, written.condition -> 'value', found.place, of_level
                  ) as grouped
            where written.op is not null
         ) as each;
end
$$;

-- Lists the conditions in a group, then the group. Several keys of a short form are a group `all`.
-- Raises 22023.
create function knowledge_internal.listed_group(
  op text, value jsonb, at_place text, of_level integer
) returns table (place text, path text[], condition jsonb, level integer, parts integer)
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  -- People and frameworks write fewer; each level calls two functions.
  most_levels constant integer := 10;
  wanted_type constant text := case op when 'not' then 'object' else 'array' end;
  element_count integer := 0;
  listed record;
begin
  if jsonb_typeof(value) <> wanted_type or value in ('[]', '{}') then
    raise exception '% must be %, not %', at_place,
                    case op when 'not' then 'a condition or a group'
                      else 'an array of one or more conditions' end, left(value::text, 100)
      using errcode = '22023',
            hint = format('For a metadata key of this name, write metadata.%s.', op);
  elsif of_level >= most_levels then
    raise exception '% is in more than % groups', at_place, most_levels - 1
      using errcode = '22023';
  end if;
  for listed in
    select one.*,
           count(*) filter (where one.level = of_level + 1) over element as results,
           row_number() over element = count(*) over element as is_last
      from knowledge_internal.listed_conditions(value, at_place, of_level + 1)
           with ordinality as one
    window element as (
             partition by case wanted_type when 'array' then one.part[1]::integer end
             order by one.ordinality rows between unbounded preceding and unbounded following
           )
     order by one.ordinality
  loop
    return query select listed.place, listed.path, listed.condition, listed.level, listed.parts;
    if listed.is_last then
      element_count := element_count + 1;
      if listed.results > 1 then
        return query select at_place, null::text[], '{"op": "all"}'::jsonb, of_level + 1,
                            listed.results::integer;
      end if;
    end if;
  end loop;
  if element_count < (
    case wanted_type when 'array' then jsonb_array_length(value) else 1 end
  ) then
    raise exception '% has an element without a condition', at_place using errcode = '22023';
  end if;
  return query select at_place, null::text[], jsonb_build_object('op', op), of_level, element_count;
end
$$;

-- The elements with ids for the names of sources or the keys of documents. A name that is not
-- stored is left out, so it matches no row, as an unknown id does: an error would tell a viewer
-- which sources and documents exist.
create function knowledge_internal.known_ids(field text, elements jsonb) returns jsonb
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return (
    select coalesce(
             jsonb_agg(
               coalesce(to_jsonb(source.id), to_jsonb(document.id), listed.element)
               order by listed.ordinality
             ),
             '[]'
           )
      from jsonb_array_elements(elements) with ordinality as listed (element)
     cross join lateral (
             select case
                      when jsonb_typeof(listed.element) = 'string' and not (
                        field = 'source_id'
                        and knowledge_internal.is_input(listed.element #>> '{}', 'uuid')
                      ) then listed.element #>> '{}'
                    end as name
           ) as read
      left join public.knowledge_sources as source
        on field = 'source_id' and source.name = read.name
      left join public.knowledge_documents as document
        on field = 'external_key' and document.external_key = read.name
     where read.name is null or source.id is not null or document.id is not null
  );
end
$$;

-- An operator of another system, or a range, in the values of a key of metadata, which no row would
-- equal; null where there is none.
create function knowledge_internal.foreign_operator(
  key text, elements jsonb, has_values boolean
) returns text
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  operators constant jsonpath := 'strict $.** ? (@.type() == "object").keyvalue() ? '
    '(@.key like_regex "^([$][A-Za-z]+|[<>=!]{1,3}|eq|neq?|not_eq|n(ot_)?in|[gl](te?|e|teq)|exists'
    '|(greater|less)_than(_or_equal)?|is_(not_)?null|starts_with|contains_text|has_[a-z_]+'
    '|any_of|match_?any)$" flag "i" '
    '|| @.key like_regex "^(in|between)$" && @.value.type() == "array" '
    '|| @.key like_regex "^i?like$" && @.value.type() == "string").key';
  ranges constant jsonpath := 'strict $.** ? (@.type() == "object" && !exists(@.keyvalue() ? (!('
    '@.key like_regex "^((date_?)?(from|to|start|end|after|before|since|until|min|max)(_?date)?'
    '|minimum|maximum|lower|upper|inclusive|range|contains|any|all|not|or|and)$" flag "i"))))'
    '.keyvalue().key';
  -- Groups of other systems.
  groups constant text := '^(and|or|nor|must|must_not|should|filter)$';
begin
  return case
    when key ~ '^[$][A-Za-z]+$'
         or key ~* groups and elements @? '$[*] ? (@.type() == "object")'
      then key
    when has_values then coalesce(
      jsonb_path_query_first(elements, operators), jsonb_path_query_first(elements, ranges)
    ) #>> '{}'
  end;
end
$$;

-- The conditions of filters (see listed_conditions), checked. Raises 22023; the message contains
-- the place, such as filters[2].op. argument: what has them.
create function knowledge_internal.filter_conditions(
  filters jsonb, argument text default 'filters'
) returns knowledge_internal.filter_condition[]
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
-- A timestamp without an offset is UTC, and a date is in ISO format, whatever the session has set.
set timezone = 'UTC'
set datestyle = 'ISO' as $$
declare
  -- Each row is compared with all of it: 100 kB take 0.1 ms a row.
  longest constant integer := 100000; -- characters
  foreign_operator text;
  value_count integer := 0;
  written record;
  value jsonb;
  elements jsonb;
  takes text;
  condition knowledge_internal.filter_condition;
  conditions knowledge_internal.filter_condition[] := '{}';
begin
  if jsonb_typeof(filters) not in ('array', 'object') then
    raise exception '% must be a JSON array of conditions or an object, not %',
                    argument, left(filters::text, 100) using errcode = '22023';
  elsif length(filters::text) > longest then
    raise exception '% must be at most % characters of JSON, not %',
                    argument, longest, length(filters::text)
      using errcode = '22023', hint = 'Compare with fewer or shorter values.';
  elsif jsonb_path_exists(filters, 'strict $.**{50}') then
    -- Postgres can parse thousands of levels, but comparing them exceeds the stack depth.
    raise exception '% must be nested less than 50 levels deep', argument using errcode = '22023';
  end if;

  for written in
    select listed.place, listed.path, listed.condition as source, listed.level, listed.parts,
           count(*) over () as conditions
      from knowledge_internal.listed_conditions(filters, argument) with ordinality as listed
     order by listed.ordinality
  loop
    if written.conditions > 100 then
      raise exception '% must have at most 100 %, not %',
                      argument,
                      case jsonb_typeof(filters) when 'object' then 'keys' else 'conditions' end,
                      written.conditions using errcode = '22023';
    end if;
    value := written.source -> 'value';
    condition := null;
    condition.level := written.level;
    condition.parts := written.parts;
    if written.parts is not null then
      condition.op := written.source ->> 'op';
      conditions := conditions || condition;
      continue;
    end if;
    condition.field := written.source ->> 'field';
    condition.kind := coalesce(
      case when written.path is not null then 'json' end,
      knowledge_internal.filter_columns() ->> condition.field,
      case when condition.field ~ '^metadata($|[.])' then 'json' end
    );
    condition.path := coalesce(
      written.path,
      case when condition.kind = 'json' then (string_to_array(condition.field, '.'))[2:] end
    );
    condition.op := coalesce(written.source ->> 'op', written.source ->> 'operator');
    if written.path is null then
      perform knowledge_internal.check_condition(written.source, condition, written.place);
    end if;

    -- Equality is a list with one element; existence is a comparison with null.
    takes := (knowledge_internal.operator_of(condition)).takes;
    elements := case
      when takes in ('boolean', 'nothing') then '[null]'
      when takes in ('values', 'texts', 'bounds') then value
      else jsonb_build_array(value)
    end;
    condition.op := case
      when condition.op in ('eq', 'is_null') or condition.op = 'exists' and value = 'false'
        then 'in'
      when condition.op in ('ne', 'exists', 'is_not_null') then 'not_in'
      else condition.op
    end;
    if elements ?| '{now,today}' and (
      condition.kind in ('date', 'timestamp')
      or condition.kind = 'json' and takes in ('bound', 'bounds')
    ) then
      elements := (
        select jsonb_agg(
                 case
                   when element = '"today"' or element = '"now"' and condition.kind = 'date'
                     then to_jsonb(current_date)
                   when element = '"now"' and condition.kind = 'timestamp' then to_jsonb(now())
                   when element = '"now"'
                     then to_jsonb(to_char(now(), 'YYYY-MM-DD"T"HH24:MI:SS"Z"'))
                   else element
                 end
                 order by ordinality
               )
          from jsonb_array_elements(elements) with ordinality as listed (element)
      );
    end if;
    -- As a value, {"$in": [1]} or {"gte": 1} would equal no row. Metadata with such keys is found
    -- by contains.
    foreign_operator := knowledge_internal.foreign_operator(
      written.path[1],
      elements,
      condition.kind = 'json' and condition.op in ('in', 'not_in')
    );
    if foreign_operator is not null then
      raise exception '% has %, which is no operator here',
                      concat(written.place, case when written.path is null then '.value' end),
                      left(foreign_operator, 100)
        using errcode = '22023', hint = 'Give a list of conditions, such as '
          '[{"field": "metadata.page", "op": "in", "value": [1, 2]}].';
    end if;
    if condition.field in ('source_id', 'external_key') then
      elements := knowledge_internal.known_ids(condition.field, elements);
    end if;
    value_count := value_count + jsonb_array_length(elements);
    if value_count > 2000 then
      raise exception '% must have at most 2000 values in all', argument using errcode = '22023';
    elsif condition.kind <> 'json' or condition.op not in ('in', 'not_in') then
      perform knowledge_internal.check_values(condition, elements, takes, written.place);
    end if;
    if condition.field = 'external_key' then
      condition.field := 'document_id';
    end if;

    condition.has_null := elements @> 'null';
    if condition.kind = 'words' and takes = 'texts' then
      condition.query := knowledge_internal.words_query(
        array(select jsonb_array_elements_text(elements)), condition.op
      );
    elsif condition.kind = 'json' and takes <> 'texts' then
      condition.jsons := array(select jsonb_array_elements(elements));
    else
      condition := jsonb_populate_record(condition, jsonb_build_object(
        case when takes = 'texts' or condition.kind = 'words' then 'texts'
          else condition.kind || 's' end,
        case condition.kind
          -- 7.0 is an integer, too.
          when 'integer' then jsonb_path_query_array(elements, '$[*] ? (@ != null).floor()')
          else jsonb_path_query_array(elements, '$[*] ? (@ != null)')
        end
      ));
    end if;
    conditions := conditions || condition;
  end loop;
  return conditions;
end
$$;

-- A condition as SQL about chunk. Only its number and the names of
-- columns and operators are part of this text; its values are read from $1, the row_scope, which
-- has the condition at this number. is_access: its column controls access. is_indexed: an index
-- supports it.
create function knowledge_internal.condition_sql(
  inout condition knowledge_internal.filter_condition, number integer,
  out added text, out is_access boolean, out is_indexed boolean
)
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  operator constant knowledge_internal.filter_operator := knowledge_internal.operator_of(condition);
  here constant text := format('($1).wanted.conditions[%s].', number);
  -- Where a text can be kept elsewhere; another engine would look for content_of on each machine.
  text_sql constant text := case
    when condition.op <> 'contains_text' or condition.kind <> 'words' then null
    when (
           select attribute.attnotnull
             from pg_catalog.pg_attribute as attribute
            where attribute.attrelid = 'public.knowledge_chunks'::regclass
              and attribute.attname = 'content'
         ) then 'chunk.content'
    else 'coalesce(chunk.content, knowledge_internal.content_of(chunk.id))'
  end;
  keys text;
begin
  is_access := condition.field in ('visibility', 'sensitivity', 'owner_id');
  is_indexed := condition.op in ('has_all_words', 'has_any_word')
      and numnode(condition.query) > 0
    or condition.op = 'in' and condition.kind in ('text', 'uuid')
      and condition.field not in ('sensitivity', 'embedding_model')
    or condition.op <> 'not_in' and condition.field = 'document_date';
  if condition.kind = 'json' then
    keys := '$' || coalesce((
      select string_agg('.' || to_json(listed.key), '' order by listed.ordinality)
        from unnest(condition.path) with ordinality as listed (key)
    ), '');
    -- In strict mode, a path goes through objects alone, and a bound is compared with the value and
    -- not with the elements of an array.
    condition.location := 'strict ' || coalesce(
      format(operator.path, keys, condition.jsons[1], condition.jsons[2]), keys
    );
  end if;
  added := case
    when numnode(condition.query) = 0 then 'true'
    when condition.kind = 'json' and operator.path is not null
      then format('jsonb_path_match(chunk.metadata, %slocation, ''{}'', true)', here)
    else format(
      case when condition.has_null then coalesce(operator.or_null, operator.condition)
        else operator.condition end,
      case
        when condition.kind = 'words'
          then format('concat_ws(chr(10), chunk.heading, %s)', text_sql)
        when condition.path = '{}' then 'chunk.metadata'
        when condition.kind = 'json'
          then format('jsonb_path_query_first(chunk.metadata, %slocation, ''{}'', true)', here)
        else 'chunk.' || condition.field
      end,
      here || case when operator.takes = 'texts' or condition.kind = 'words' then 'texts'
        else condition.kind || 's' end,
      here
    )
  end;
  condition.path := null; -- The planner copies the conditions for each value that it reads.
end
$$;

-- The filter with one more condition that stands outside of groups. The index finds rows by what
-- their metadata contains, so a condition with a scalar becomes one that metadata contains one of
-- some documents.
create function knowledge_internal.with_condition(
  compiled knowledge_internal.chunk_filter, condition knowledge_internal.filter_condition
) returns knowledge_internal.chunk_filter
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  -- Without the index, each row is compared with every document: 100 take 30 microseconds.
  most_documents constant integer := 100;
  any_scalar constant jsonpath := 'strict $.** ? (@.type() != "array" && @.type() != "object")';
  any_composite constant jsonpath := 'strict $[*] ? (@.type() == "array" || @.type() == "object")';
  is_list constant boolean := condition.op = 'in' and not condition.has_null;
  -- The value that metadata must contain, or have at the path.
  single constant jsonb := case
    when condition.op = 'contains' or is_list and cardinality(condition.jsons) = 1
      then condition.jsons[1]
  end;
  is_scalar constant boolean := jsonb_typeof(single) not in ('array', 'object');
  object_at_path jsonb := 'null'; -- with null at the end of the path
  documents jsonb[];
  containment knowledge_internal.filter_condition := condition;
begin
  if condition.field = 'collection' and condition.op = 'not_in' then
    compiled.excluded_collections := compiled.excluded_collections || condition.texts;
    return compiled;
  elsif condition.field = 'collection' and condition.op = 'in' then
    compiled.collections := array(
      select name
        from unnest(condition.texts) as name
       where name = any (compiled.collections) is not false
    );
  elsif condition.kind = 'json' then
    for level in reverse cardinality(condition.path) .. 1 loop
      object_at_path := jsonb_build_object(condition.path[level], object_at_path);
    end loop;
    if condition.path = '{}' and jsonb_path_exists(single, any_scalar) then
      documents := array[single];
    elsif condition.op = 'contains' and is_scalar or jsonb_path_exists(single, any_scalar)
      or is_list and cardinality(condition.jsons) <= most_documents
        and not jsonb_path_exists(to_jsonb(condition.jsons), any_composite)
    then
      documents := array(
        select jsonb_set(object_at_path, condition.path, listed.value)
          from unnest(condition.jsons) as listed (value)
        union all
        select jsonb_set(object_at_path, condition.path, jsonb_build_array(single))
         where condition.op = 'contains' and is_scalar
      );
    end if;
    if documents is not null then
      containment.op := case when cardinality(documents) > 1 then 'contains_any'
        else 'contains' end;
      containment.path := '{}';
      containment.jsons := documents;
      compiled := knowledge_internal.with_group(compiled, array[containment]);
      compiled.is_indexed := true;
      -- Containment of a scalar is equality; a stored array or object may have more elements.
      if condition.op = 'contains' or is_scalar is not false then
        return compiled;
      end if;
    end if;
  end if;
  return knowledge_internal.with_group(compiled, array[condition]);
end
$$;

-- The filter with one more group, whose parts stand before it, or with one condition.
create function knowledge_internal.with_group(
  compiled knowledge_internal.chunk_filter, parts knowledge_internal.filter_condition[]
) returns knowledge_internal.chunk_filter
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  condition knowledge_internal.filter_condition;
  made record;
  -- Of the parts that no group has taken yet: the SQL, is_access and is_indexed.
  texts text[] := '{}';
  access boolean[] := '{}';
  indexed boolean[] := '{}';
  first integer;
begin
  foreach condition in array parts loop
    first := cardinality(texts) + 1 - coalesce(condition.parts, 0);
    if condition.parts is null then
      made := knowledge_internal.condition_sql(
        condition, coalesce(cardinality(compiled.conditions), 0) + 1
      );
      compiled.conditions := compiled.conditions || made.condition;
    else
      select case condition.op
               when 'not' then format('(%s) is not true', texts[first])
               else '(' || array_to_string(
                      texts[first:], case condition.op when 'any' then ' or ' else ' and ' end
                    ) || ')'
             end as added,
             true = all (access[first:]) as is_access,
             case condition.op
               when 'any' then true = all (indexed[first:])
               when 'all' then true = any (indexed[first:])
               else false
             end as is_indexed
        into made;
    end if;
    texts := texts[:first - 1] || made.added;
    access := access[:first - 1] || made.is_access;
    indexed := indexed[:first - 1] || made.is_indexed;
  end loop;
  if made.is_access then
    compiled.access_sql := concat_ws(' and ', compiled.access_sql, made.added);
  else
    compiled.other_sql := concat_ws(' and ', compiled.other_sql, made.added);
  end if;
  compiled.is_indexed := compiled.is_indexed is true or made.is_indexed;
  return compiled;
end
$$;

-- Those of the collections that have active chunks.
create function knowledge_internal.stored_collections(names text[]) returns text[]
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp
-- The search may set force_custom_plan; the statement here is the same for every query. Where all
-- chunks are in one collection, the planner would look for another one in the whole table.
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off as $$
declare
  stored text[] := '{}';
  name text;
begin
  foreach name in array names loop
    perform from public.knowledge_chunks as chunk
      where chunk.status = 'active' and chunk.collection = name limit 1;
    stored := stored || case when found then array[name] end;
  end loop;
  return stored;
end
$$;

-- The filter arguments of a search, compiled; null if there is no restriction. argument: what has
-- the filters. Raises 22023.
create function knowledge_internal.compile_filter(
  filters jsonb, filter_type text, date_from date, date_to date, public_only boolean,
  argument text default 'filters'
) returns knowledge_internal.chunk_filter
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  compiled knowledge_internal.chunk_filter;
  condition knowledge_internal.filter_condition;
  pending knowledge_internal.filter_condition[] := '{}';
begin
  if filter_type is not null
    and filter_type <> all (knowledge_internal.known_values('knowledge_type')) then
    raise exception 'filter_type must be one of %, not %',
                    array_to_string(knowledge_internal.known_values('knowledge_type'), ', '),
                    left(filter_type, 100)
      using errcode = '22023', hint = knowledge_internal.how_to_add('knowledge_type', filter_type);
  end if;
  if filters <> 'null' then
    foreach condition in array knowledge_internal.filter_conditions(filters, argument) loop
      pending := pending || condition;
      if condition.level = 0 then
        compiled := case when condition.parts is null
          then knowledge_internal.with_condition(compiled, condition)
          else knowledge_internal.with_group(compiled, pending) end;
        pending := '{}';
      end if;
    end loop;
    -- Callers exclude collections by habit. Without such chunks the search needs no filter. What is
    -- required stays: an answer must not depend on chunks that it leaves out.
    compiled.excluded_collections := case
      when argument = 'required_filters' then compiled.excluded_collections
      when compiled.excluded_collections is not null
        then nullif(knowledge_internal.stored_collections(compiled.excluded_collections), '{}')
    end;
  end if;
  compiled.filter_type := filter_type;
  compiled.date_from := date_from;
  compiled.date_to := date_to;
  compiled.public_only := nullif(public_only, false);
  compiled.is_indexed := compiled.is_indexed is true or num_nonnulls(
    filter_type, date_from, date_to, compiled.public_only
  ) > 0;
  compiled.bounds_rows := compiled.is_indexed or compiled.conditions is not null;
  return case
    when compiled.bounds_rows or compiled.excluded_collections is not null then compiled
  end;
end
$$;

-- Which rows a search may return, as the parameter $1 of each statement that reads rows. visible:
-- the rows that are there for this search, by viewer, required_filters and as_of; matching: of
-- these, the rows that pass the filters; both are SQL about chunk. is_restricted: visible is more
-- than status and as_of. required: the compiled required_filters. left_out: chunks and documents
-- that a search does not return. seen_by: the role for which the search shows rows, and seen, the
-- condition because of it. ended: what holding_condition returns, which visible has, too.
create type knowledge_internal.row_scope as (
  wanted knowledge_internal.chunk_filter, viewer_id uuid, viewer_groups text[],
  public_only boolean, is_restricted boolean, visible text, matching text, left_out uuid[],
  required knowledge_internal.chunk_filter, seen_by name, seen text, ended jsonpath
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

-- The conditions of a filter that do not control access, as SQL about chunk; null without any.
create function knowledge_internal.filter_sql(wanted knowledge_internal.chunk_filter) returns text
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return nullif(
    concat_ws(
      ' and ',
      case when wanted.excluded_collections is not null then
        'chunk.collection <> all (($1).wanted.excluded_collections)' end,
      case when wanted.filter_type is not null then
        'chunk.knowledge_type = ($1).wanted.filter_type' end,
      case when wanted.date_from is not null then
        'chunk.document_date >= ($1).wanted.date_from' end,
      case when wanted.date_to is not null then 'chunk.document_date <= ($1).wanted.date_to' end,
      wanted.other_sql
    ),
    ''
  );
end
$$;

-- All conditions of a filter that stands elsewhere than in ($1).wanted, as SQL about chunk; null
-- without any. No name and no value is in the SQL that is changed here.
create function knowledge_internal.conditions_sql(
  wanted knowledge_internal.chunk_filter, place text
) returns text
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return replace(
    nullif(concat_ws(' and ', wanted.access_sql, knowledge_internal.filter_sql(wanted)), ''),
    '($1).wanted.', place || '.'
  );
end
$$;

-- All conditions of required_filters, as SQL about chunk; null without any.
create function knowledge_internal.required_sql(required knowledge_internal.chunk_filter)
returns text
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return knowledge_internal.conditions_sql(required, '($1).required');
end
$$;

-- Extension point: what a row must meet so that a role of the API sees it, as SQL about chunk.
-- collections: those that the search reads; null: all.
create function knowledge_internal.caller_condition(seen_by name, collections text[]) returns text
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  return 'false';
end
$$;

-- Extension point: what the metadata of the rows that do not hold at a time match; null where all
-- active rows hold, and for null. Without the module, no row ends.
create function knowledge_internal.holding_condition(as_of timestamptz) returns jsonpath
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
begin
  if as_of <> now() then
    raise exception 'as_of needs the module versions, which is not installed'
      using errcode = '0A000',
            hint = 'Install the module versions: second-brain migrate --with versions';
  end if;
  return null;
end
$$;

-- The rows that pass a filter and that a search may see: the one home of these conditions. No value
-- becomes part of the SQL. seen_by: a role that sees the rows which caller_condition
-- allows; null: the arguments alone decide. as_of: the time at which the rows hold; null: any.
create function knowledge_internal.row_scope(
  wanted knowledge_internal.chunk_filter, viewer_id uuid, viewer_groups text[],
  public_only boolean, required knowledge_internal.chunk_filter, seen_by name default null,
  as_of timestamptz default null
) returns knowledge_internal.row_scope
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  has_viewer constant boolean := num_nonnulls(viewer_id, viewer_groups) > 0;
  ended constant jsonpath := knowledge_internal.holding_condition(as_of);
  visible text := 'chunk.status = ''active''';
  is_restricted boolean;
  seen constant text := case
    when seen_by is not null then knowledge_internal.caller_condition(
      seen_by, coalesce(wanted.collections, required.collections)
    ) end;
  matching text;
begin
  -- Only the conditions that apply: the planner reads, and the executor checks, no others.
  visible := concat_ws(
    ' and ', visible,
    case when has_viewer then knowledge_internal.viewer_condition('chunk') end,
    case when wanted.public_only then 'chunk.visibility = ''public''' end,
    wanted.access_sql,
    case when not (required is null) then knowledge_internal.required_sql(required) end, seen
  );
  is_restricted := visible <> 'chunk.status = ''active''';
  if ended is not null then
    visible := visible || ' and (chunk.metadata @? ($1).ended) is not true';
  end if;
  matching := concat_ws(
    ' and ', visible, case when not (wanted is null) then knowledge_internal.filter_sql(wanted) end
  );
  return row(
    wanted, viewer_id, viewer_groups, public_only, is_restricted, visible, matching, null,
    required, seen_by, seen, ended
  )::knowledge_internal.row_scope;
end
$$;

-- Whether a search may tell of a document beside its hits, as SQL about document; $1 is the scope.
-- With required_filters, a visible chunk of it must meet them with the document's own metadata,
-- which a chunk can replace. A role must see all of its chunks, each of which can have said what
-- the document tells.
create function knowledge_internal.document_condition(scope knowledge_internal.row_scope)
returns text
language plpgsql immutable security invoker set search_path = pg_catalog, pg_temp as $$
declare
  required text := replace(
    knowledge_internal.required_sql(scope.required),
    'chunk.metadata', '(chunk.metadata || document.metadata)'
  );
  access_column text;
begin
  foreach access_column in array array['visibility', 'sensitivity', 'owner_id'] loop
    required := replace(required, 'chunk.' || access_column, 'document.' || access_column);
  end loop;
  return concat_ws(
    ' and ',
    case
      when scope.public_only then 'document.visibility = ''public'''
      when num_nonnulls(scope.viewer_id, scope.viewer_groups) > 0
        then knowledge_internal.viewer_condition('document')
      else 'true'
    end,
    replace((scope.wanted).access_sql, 'chunk.', 'document.'),
    'exists (select from public.knowledge_chunks as chunk where chunk.document_id = document.id'
      ' and ' || scope.visible || ' and ' || required || ')',
    'not exists (select from public.knowledge_chunks as chunk'
      ' where chunk.document_id = document.id and chunk.status = ''active'''
      ' and (' || scope.seen || ') is not true)'
  );
end
$$;
