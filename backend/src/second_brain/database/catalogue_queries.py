"""The statements by which `catalogue` reads the objects of two schemas, one row an object."""

_SCHEMAS = """
select 'schema ' || namespace.nspname,
       jsonb_build_object(
         'owner', namespace.nspowner::regrole,
         'comment', obj_description(namespace.oid, 'pg_namespace'),
         'grants', coalesce(namespace.nspacl, acldefault('n', namespace.nspowner))::text
       )
  from pg_catalog.pg_namespace as namespace
 where namespace.nspname = %(internals)s
union all
-- Those of the project, by their names in a default install: who can use what is in them.
select 'schema ' || used.name,
       jsonb_build_object(
         'usage', (
           select jsonb_agg(role.rolname order by role.rolname)
             from pg_catalog.pg_roles as role
            where role.rolname in ('anon', 'authenticated', 'service_role')
              and has_schema_privilege(role.oid, used.oid, 'usage')
         )
       )
  from (
    select 'public', to_regnamespace(quote_ident(%(schema)s))
     union all
    select 'auth', to_regnamespace('auth')
     union all
    select 'extensions', extension.extnamespace
      from pg_catalog.pg_extension as extension
     where extension.extname = 'vector'
  ) as used (name, oid)
 where used.oid is not null
"""
_EXTENSIONS = """
select 'extension ' || extension.extname,
       jsonb_build_object('schema', namespace.nspname)
  from pg_catalog.pg_extension as extension
  join pg_catalog.pg_namespace as namespace on namespace.oid = extension.extnamespace
 where extension.extname = 'vector'
"""
_RELATIONS = """
select case class.relkind
         when 'v' then 'view ' when 'm' then 'materialized view ' when 'S' then 'sequence '
         when 'f' then 'foreign table ' else 'table '
       end || class.oid::regclass,
       jsonb_build_object(
         'owner', class.relowner::regrole,
         'row_security', class.relrowsecurity,
         'row_security_forced', class.relforcerowsecurity,
         'persistence', class.relpersistence,
         'replica_identity', case
           when class.relreplident = 'n' and class.relkind in ('r', 'p') then 'nothing'
         end,
         'partition_key', pg_get_partkeydef(class.oid),
         'options', (
           select jsonb_agg(option order by option)
             from unnest(class.reloptions) as option
         ),
         'toast_options', (
           select jsonb_agg(option order by option)
             from pg_catalog.pg_class as toast
            cross join unnest(toast.reloptions) as option
            where toast.oid = class.reltoastrelid
         ),
         'definition', case
           when class.relkind in ('v', 'm') then pg_get_viewdef(class.oid)
           when class.relkind = 'S' then (
             select format(
                      '%%s start %%s increment %%s from %%s to %%s cache %%s cycle %%s',
                      sequence.seqtypid::regtype, sequence.seqstart, sequence.seqincrement,
                      sequence.seqmin, sequence.seqmax, sequence.seqcache, sequence.seqcycle
                    )
               from pg_catalog.pg_sequence as sequence
              where sequence.seqrelid = class.oid
           )
         end,
         'comment', obj_description(class.oid, 'pg_class'),
         'grants', coalesce(
           class.relacl,
           acldefault(
             case when class.relkind = 'S' then 's'::"char" else 'r'::"char" end, class.relowner
           )
         )::text
       )
  from pg_catalog.pg_class as class
 where class.relnamespace::regnamespace::text = any (%(schemas)s)
   and class.relkind in ('r', 'p', 'v', 'm', 'S', 'f')
   and not exists (
         select from pg_catalog.pg_depend as dependency
          where dependency.classid = 'pg_catalog.pg_class'::regclass
            and dependency.objid = class.oid
            and dependency.deptype = 'e'
       )
"""
_COLUMNS = """
select 'column ' || class.oid::regclass || '.' || attribute.attname,
       jsonb_build_object(
         'type', format_type(attribute.atttypid, attribute.atttypmod),
         'not_null', attribute.attnotnull,
         'default', pg_get_expr(standard.adbin, standard.adrelid),
         'identity', attribute.attidentity,
         'generated', attribute.attgenerated,
         'collation', (
           select collation_used.collname
             from pg_catalog.pg_collation as collation_used
            where collation_used.oid = attribute.attcollation
              and collation_used.collname <> 'default'
         ),
         'storage', case when class.relkind in ('r', 'p', 'm') then attribute.attstorage end,
         'compression', attribute.attcompression,
         'statistics', nullif(attribute.attstattarget, -1),
         'options', to_jsonb(attribute.attoptions),
         'comment', col_description(attribute.attrelid, attribute.attnum),
         'grants', attribute.attacl::text
       )
  from pg_catalog.pg_attribute as attribute
  join pg_catalog.pg_class as class on class.oid = attribute.attrelid
  left join pg_catalog.pg_attrdef as standard
    on standard.adrelid = attribute.attrelid and standard.adnum = attribute.attnum
 where class.relnamespace::regnamespace::text = any (%(schemas)s)
   and class.relkind in ('r', 'p', 'v', 'm', 'f', 'c')
   and attribute.attnum > 0
   and not attribute.attisdropped
"""
# Not null is left out: only PostgreSQL 18 lists it here, and the column has it too.
_CONSTRAINTS = """
select 'constraint '
         || coalesce(
              nullif(contained.conrelid, 0)::regclass::text, contained.contypid::regtype::text
            )
         || '.' || contained.conname,
       jsonb_build_object(
         'definition', pg_get_constraintdef(contained.oid),
         'validated', contained.convalidated,
         'comment', obj_description(contained.oid, 'pg_constraint')
       )
  from pg_catalog.pg_constraint as contained
 where contained.connamespace::regnamespace::text = any (%(schemas)s)
   and contained.contype not in ('n', 't')
"""
_INDEXES = """
select 'index ' || class.oid::regclass,
       jsonb_build_object(
         'table', index.indrelid::regclass,
         'definition', pg_get_indexdef(index.indexrelid),
         'method', method.amname,
         'invalid', not index.indisvalid and not exists (
           select from pg_catalog.pg_stat_progress_create_index as building
            where building.index_relid = index.indexrelid
         ),
         'statistics', (
           select jsonb_agg(attribute.attstattarget order by attribute.attnum)
             from pg_catalog.pg_attribute as attribute
            where attribute.attrelid = index.indexrelid
              and attribute.attstattarget <> -1
         ),
         'comment', obj_description(class.oid, 'pg_class')
       )
  from pg_catalog.pg_index as index
  join pg_catalog.pg_class as class on class.oid = index.indexrelid
  join pg_catalog.pg_am as method on method.oid = class.relam
 where class.relnamespace::regnamespace::text = any (%(schemas)s)
"""
_TRIGGERS = """
select 'trigger ' || class.oid::regclass || '.' || trigger.tgname,
       jsonb_build_object(
         'definition', pg_get_triggerdef(trigger.oid),
         'enabled', trigger.tgenabled,
         'comment', obj_description(trigger.oid, 'pg_trigger')
       )
  from pg_catalog.pg_trigger as trigger
  join pg_catalog.pg_class as class on class.oid = trigger.tgrelid
 where class.relnamespace::regnamespace::text = any (%(schemas)s)
   and not trigger.tgisinternal
"""
_RULES = """
select 'rule ' || class.oid::regclass || '.' || rule.rulename,
       jsonb_build_object('definition', pg_get_ruledef(rule.oid))
  from pg_catalog.pg_rewrite as rule
  join pg_catalog.pg_class as class on class.oid = rule.ev_class
 where class.relnamespace::regnamespace::text = any (%(schemas)s)
   and rule.rulename <> '_RETURN'
"""
_POLICIES = """
select 'policy ' || class.oid::regclass || '.' || policy.polname,
       jsonb_build_object(
         'command', policy.polcmd,
         'permissive', policy.polpermissive,
         'roles', (
           select jsonb_agg(coalesce(role.rolname, 'public') order by role.rolname)
             from unnest(policy.polroles) as listed (oid)
             left join pg_catalog.pg_roles as role on role.oid = listed.oid
         ),
         'using', pg_get_expr(policy.polqual, policy.polrelid),
         'with_check', pg_get_expr(policy.polwithcheck, policy.polrelid),
         'comment', obj_description(policy.oid, 'pg_policy')
       )
  from pg_catalog.pg_policy as policy
  join pg_catalog.pg_class as class on class.oid = policy.polrelid
 where class.relnamespace::regnamespace::text = any (%(schemas)s)
"""
# The stored source, not pg_get_functiondef, whose format differs between major versions.
_FUNCTIONS = """
select 'function ' || function.pronamespace::regnamespace || '.' || function.proname
         || '(' || oidvectortypes(function.proargtypes) || ')',
       jsonb_build_object(
         'owner', function.proowner::regrole,
         'kind', function.prokind,
         'arguments', pg_get_function_arguments(function.oid),
         'returns', pg_get_function_result(function.oid),
         'language', language.lanname,
         'volatility', function.provolatile,
         'security_definer', function.prosecdef,
         'strict', function.proisstrict,
         'leakproof', function.proleakproof,
         'parallel', function.proparallel,
         'cost', function.procost,
         'rows', function.prorows,
         'support', nullif(function.prosupport::oid, 0)::regproc,
         'settings', to_jsonb(function.proconfig),
         'body', coalesce(pg_get_function_sqlbody(function.oid), function.prosrc),
         'comment', obj_description(function.oid, 'pg_proc'),
         'grants', coalesce(function.proacl, acldefault('f', function.proowner))::text
       )
  from pg_catalog.pg_proc as function
  join pg_catalog.pg_language as language on language.oid = function.prolang
 where function.pronamespace::regnamespace::text = any (%(schemas)s)
   and not exists (
         select from pg_catalog.pg_depend as dependency
          where dependency.classid = 'pg_catalog.pg_proc'::regclass
            and dependency.objid = function.oid
            and dependency.deptype = 'e'
       )
"""
_TYPES = """
select 'type ' || type.oid::regtype,
       jsonb_build_object(
         'owner', type.typowner::regrole,
         'kind', type.typtype,
         'base', case
           when type.typtype = 'd' then format_type(type.typbasetype, type.typtypmod)
         end,
         'not_null', type.typnotnull,
         'default', type.typdefault,
         'attributes', (
           select jsonb_agg(attribute.attname order by attribute.attnum)
             from pg_catalog.pg_attribute as attribute
            where attribute.attrelid = type.typrelid
              and attribute.attnum > 0
              and not attribute.attisdropped
         ),
         'labels', (
           select jsonb_agg(label.enumlabel order by label.enumsortorder)
             from pg_catalog.pg_enum as label
            where label.enumtypid = type.oid
         ),
         'comment', obj_description(type.oid, 'pg_type'),
         'grants', coalesce(type.typacl, acldefault('T', type.typowner))::text
       )
  from pg_catalog.pg_type as type
  left join pg_catalog.pg_class as class on class.oid = type.typrelid
 where type.typnamespace::regnamespace::text = any (%(schemas)s)
   and type.typtype in ('c', 'd', 'e', 'r')
   and coalesce(class.relkind = 'c', true)
   and not exists (
         select from pg_catalog.pg_depend as dependency
          where dependency.classid = 'pg_catalog.pg_type'::regclass
            and dependency.objid = type.oid
            and dependency.deptype = 'e'
       )
"""
_STATISTICS = """
select 'statistics ' || statistics.stxnamespace::regnamespace || '.' || statistics.stxname,
       jsonb_build_object(
         'definition', pg_get_statisticsobjdef(statistics.oid),
         'target', nullif(statistics.stxstattarget, -1),
         'comment', obj_description(statistics.oid, 'pg_statistic_ext')
       )
  from pg_catalog.pg_statistic_ext as statistics
 where statistics.stxnamespace::regnamespace::text = any (%(schemas)s)
"""
QUERIES = (
    _SCHEMAS,
    _EXTENSIONS,
    _RELATIONS,
    _COLUMNS,
    _CONSTRAINTS,
    _INDEXES,
    _TRIGGERS,
    _RULES,
    _POLICIES,
    _FUNCTIONS,
    _TYPES,
    _STATISTICS,
)
