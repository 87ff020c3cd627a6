"""The objects of an install, read from the system catalogues of a database and compared.

This module does not contain names of objects. The wheel has the catalogue of the current state as
`manifest.json`: a section for core, and one for each module with what it adds or changes. `doctor`
compares a database with it. It does not read rows of tables: settings
and contents belong to the project.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, Literal, TypeAlias

import psycopg

from second_brain.database import naming, pgvector

Connection: TypeAlias = psycopg.Connection[Any]
Definition: TypeAlias = dict[str, Any]
Catalogue: TypeAlias = dict[str, Definition]
"""Properties by object, such as `index public.knowledge_chunks_owner`, as if in schema public."""

Change = Literal["missing", "different", "left over"]

MANIFEST = "manifest.json"
CORE = "core"
"""The section of the manifest beside those of the modules."""

REPLACED_BY_PROJECT = f"function public.{naming.VIEWER_GROUPS}()"
_FIXED_IN_REPLACEMENT = ("kind", "arguments", "returns")

API_ROLES = ("public", "anon", "authenticated", "service_role")
_OWNER = "the owner"
_ROW_PRIVILEGES = ("DELETE", "INSERT", "SELECT", "UPDATE")

# With an empty search_path, Postgres prints all names with their schema.
_WITHOUT_PATH = "select set_config('search_path', '', true)"

_SCHEMAS = """
select 'schema ' || namespace.nspname,
       jsonb_build_object(
         'owner', namespace.nspowner::regrole,
         'comment', obj_description(namespace.oid, 'pg_namespace'),
         'grants', coalesce(namespace.nspacl, acldefault('n', namespace.nspowner))::text
       )
  from pg_catalog.pg_namespace as namespace
 where namespace.nspname = %(internals)s
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
       end || namespace.nspname || '.' || class.relname,
       jsonb_build_object(
         'owner', class.relowner::regrole,
         'row_security', class.relrowsecurity,
         'row_security_forced', class.relforcerowsecurity,
         'persistence', class.relpersistence,
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
  join pg_catalog.pg_namespace as namespace on namespace.oid = class.relnamespace
 where namespace.nspname = any (%(schemas)s)
   and class.relkind in ('r', 'p', 'v', 'm', 'S', 'f')
   and not exists (
         select
           from pg_catalog.pg_depend as dependency
          where dependency.classid = 'pg_catalog.pg_class'::regclass
            and dependency.objid = class.oid
            and dependency.deptype = 'e'
       )
"""
_COLUMNS = """
select 'column ' || namespace.nspname || '.' || class.relname || '.' || attribute.attname,
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
  join pg_catalog.pg_namespace as namespace on namespace.oid = class.relnamespace
  left join pg_catalog.pg_attrdef as standard
    on standard.adrelid = attribute.attrelid and standard.adnum = attribute.attnum
 where namespace.nspname = any (%(schemas)s)
   and class.relkind in ('r', 'p', 'v', 'm', 'f', 'c')
   and attribute.attnum > 0
   and not attribute.attisdropped
"""
# Not null is left out: only PostgreSQL 18 lists it here, and the column has it too.
_CONSTRAINTS = """
select 'constraint '
         || coalesce(class.relname_qualified, type_qualified.name)
         || '.' || contained.conname,
       jsonb_build_object(
         'definition', pg_get_constraintdef(contained.oid),
         'validated', contained.convalidated,
         'comment', obj_description(contained.oid, 'pg_constraint')
       )
  from pg_catalog.pg_constraint as contained
  join pg_catalog.pg_namespace as namespace on namespace.oid = contained.connamespace
  left join lateral (
         select namespace.nspname || '.' || found.relname as relname_qualified
           from pg_catalog.pg_class as found
          where found.oid = contained.conrelid
       ) as class on true
  left join lateral (
         select namespace.nspname || '.' || found.typname as name
           from pg_catalog.pg_type as found
          where found.oid = contained.contypid
       ) as type_qualified on true
 where namespace.nspname = any (%(schemas)s)
   and contained.contype not in ('n', 't')
"""
_INDEXES = """
select 'index ' || namespace.nspname || '.' || class.relname,
       jsonb_build_object(
         'table', owning_schema.nspname || '.' || owning.relname,
         'definition', pg_get_indexdef(index.indexrelid),
         'method', method.amname,
         'valid', index.indisvalid,
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
  join pg_catalog.pg_namespace as namespace on namespace.oid = class.relnamespace
  join pg_catalog.pg_class as owning on owning.oid = index.indrelid
  join pg_catalog.pg_namespace as owning_schema on owning_schema.oid = owning.relnamespace
 where namespace.nspname = any (%(schemas)s)
"""
_TRIGGERS = """
select 'trigger ' || namespace.nspname || '.' || class.relname || '.' || trigger.tgname,
       jsonb_build_object(
         'definition', pg_get_triggerdef(trigger.oid),
         'enabled', trigger.tgenabled,
         'comment', obj_description(trigger.oid, 'pg_trigger')
       )
  from pg_catalog.pg_trigger as trigger
  join pg_catalog.pg_class as class on class.oid = trigger.tgrelid
  join pg_catalog.pg_namespace as namespace on namespace.oid = class.relnamespace
 where namespace.nspname = any (%(schemas)s)
   and not trigger.tgisinternal
"""
_RULES = """
select 'rule ' || namespace.nspname || '.' || class.relname || '.' || rule.rulename,
       jsonb_build_object('definition', pg_get_ruledef(rule.oid))
  from pg_catalog.pg_rewrite as rule
  join pg_catalog.pg_class as class on class.oid = rule.ev_class
  join pg_catalog.pg_namespace as namespace on namespace.oid = class.relnamespace
 where namespace.nspname = any (%(schemas)s)
   and rule.rulename <> '_RETURN'
"""
_POLICIES = """
select 'policy ' || namespace.nspname || '.' || class.relname || '.' || policy.polname,
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
  join pg_catalog.pg_namespace as namespace on namespace.oid = class.relnamespace
 where namespace.nspname = any (%(schemas)s)
"""
# The stored source, not pg_get_functiondef, whose format differs between major versions.
_FUNCTIONS = """
select 'function ' || namespace.nspname || '.' || function.proname
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
  join pg_catalog.pg_namespace as namespace on namespace.oid = function.pronamespace
 where namespace.nspname = any (%(schemas)s)
   and not exists (
         select
           from pg_catalog.pg_depend as dependency
          where dependency.classid = 'pg_catalog.pg_proc'::regclass
            and dependency.objid = function.oid
            and dependency.deptype = 'e'
       )
"""
_TYPES = """
select 'type ' || namespace.nspname || '.' || type.typname,
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
  join pg_catalog.pg_namespace as namespace on namespace.oid = type.typnamespace
  left join pg_catalog.pg_class as class on class.oid = type.typrelid
 where namespace.nspname = any (%(schemas)s)
   and type.typtype in ('c', 'd', 'e', 'r')
   and coalesce(class.relkind = 'c', true)
   and not exists (
         select
           from pg_catalog.pg_depend as dependency
          where dependency.classid = 'pg_catalog.pg_type'::regclass
            and dependency.objid = type.oid
            and dependency.deptype = 'e'
       )
"""
_STATISTICS = """
select 'statistics ' || namespace.nspname || '.' || statistics.stxname,
       jsonb_build_object(
         'definition', pg_get_statisticsobjdef(statistics.oid),
         'target', nullif(statistics.stxstattarget, -1),
         'comment', obj_description(statistics.oid, 'pg_statistic_ext')
       )
  from pg_catalog.pg_statistic_ext as statistics
  join pg_catalog.pg_namespace as namespace on namespace.oid = statistics.stxnamespace
 where namespace.nspname = any (%(schemas)s)
"""
_QUERIES = (
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
# Postgres prints an access list as grantee=privileges/grantor; a star marks a grant option.
_GRANT = re.compile(r'(?:"?([\w$-]*)"?)=([a-zA-Z*]*)/"?[\w$-]+"?')
_PRIVILEGES = {
    "r": "SELECT",
    "a": "INSERT",
    "w": "UPDATE",
    "d": "DELETE",
    "D": "TRUNCATE",
    "x": "REFERENCES",
    "t": "TRIGGER",
    "m": "MAINTAIN",
    "X": "EXECUTE",
    "U": "USAGE",
    "C": "CREATE",
}
_SIZE = re.compile(r"\b(extensions\.(?:vector|halfvec))\(\d+\)")
_TEMPORARY = re.compile(
    r"(knowledge_chunks\.embedding(_bits|_model)?|knowledge_chunks_embedding(_not_zero)?)"
    r"_(next|old|lacking|building|replaced)|follow_reembedding\b"
)


@dataclass(frozen=True)
class Difference:
    """One object that is not as expected; `properties` has (expected, found) by name."""

    object: str
    change: Change
    properties: Mapping[str, tuple[Any, Any]]

    @property
    def kind(self) -> str:
        """The kind of the object: table, column, index, function, ..."""
        words = self.object.split(" ")
        return " ".join(words[: 2 if words[0] in ("materialized", "foreign") else 1])

    @property
    def name(self) -> str:
        """The object's name, with its schema and, for a function, its argument types."""
        return self.object.removeprefix(self.kind + " ")

    def __str__(self) -> str:
        details = "".join(
            f"\n  {name}: {_shown(expected)} expected, {_shown(found)} found"
            for name, (expected, found) in sorted(self.properties.items())
        )
        return f"{self.object}: {self.change}{details}"


def read(connection: Connection, schema: str = naming.SCHEMA) -> Catalogue:
    """Read the exact definition of the install in `schema`.

    Names of another schema are replaced by `public`, and of another schema of pgvector by
    `extensions`, so that two installs can be compared. Objects of extensions are left out. The body
    of a function is its digest.
    """
    arguments = {
        "schemas": [schema, naming.internals(schema)],
        "internals": naming.internals(schema),
    }
    rows: list[tuple[str, Definition]] = []
    with connection.transaction():
        connection.execute(_WITHOUT_PATH)
        for query in _QUERIES:
            rows += connection.execute(query, arguments).fetchall()
        vector = pgvector.installed(connection)
        members = pgvector.members(connection)
    if vector is not None and vector.schema != naming.EXTENSIONS:
        rows = _mapped(rows, lambda text: naming.without_vector(text, vector.schema, members))
    if schema != naming.SCHEMA:
        rows = _as_default(rows, schema)
    return dict(sorted((name, _normal(definition)) for name, definition in rows))


def portable(catalogue: Catalogue) -> Catalogue:
    """Return the part of a catalogue that is equal on every server and project with this version.

    Left out are: the dimension of embeddings, the kind and parameters of the vector index and its
    view, the columns and indexes of an unfinished re-embedding, owners, grants to roles other than
    the API roles, the text of views, which differs between major versions, and all but the
    signature of the function that a project replaces. Comments are digests.
    """
    return {
        name: _portable(name, definition)
        for name, definition in catalogue.items()
        if not _TEMPORARY.search(name)
    }


def compare(expected: Catalogue, found: Catalogue) -> list[Difference]:
    """List the objects that are missing, different or left over in `found`, by name."""
    differences = []
    for name in sorted(expected.keys() | found.keys()):
        before, after = expected.get(name), found.get(name)
        if before == after:
            continue
        if after is None:
            differences.append(Difference(name, "missing", {}))
        elif before is None:
            differences.append(Difference(name, "left over", {}))
        else:
            properties = {
                key: (before.get(key), after.get(key))
                for key in sorted(before.keys() | after.keys())
                if before.get(key) != after.get(key)
            }
            differences.append(Difference(name, "different", properties))
    return differences


@dataclass(frozen=True)
class Manifest:
    """The portable catalogue of core, and what each module adds to it or changes in it."""

    core: Catalogue
    modules: Mapping[str, Catalogue]

    def of(self, modules: Iterable[str]) -> Catalogue:
        """Return the catalogue of an install that has core and these modules."""
        merged = dict(self.core)
        for module in modules:
            merged |= self.modules[module]
        return merged

    def dump(self) -> str:
        """Return the manifest as JSON with one line for each object, for reviews of a diff."""
        sections = {CORE: self.core, **self.modules}
        return _object(f"{json.dumps(name)}: {_dump(one)}" for name, one in sections.items())


def manifest() -> Manifest:
    """Return the manifest of this version's state."""
    text = resources.files("second_brain.database").joinpath(MANIFEST).read_text("utf-8")
    sections: dict[str, Catalogue] = json.loads(text)
    return Manifest(sections.pop(CORE), sections)


def added(core: Catalogue, with_module: Catalogue) -> Catalogue:
    """Return what a module adds to core or changes in it."""
    return {name: one for name, one in with_module.items() if core.get(name) != one}


def _dump(catalogue: Catalogue) -> str:
    return _object(
        f"{json.dumps(name)}: {json.dumps(definition, sort_keys=True, ensure_ascii=False)}"
        for name, definition in sorted(catalogue.items())
    )


def _object(members: Iterable[str]) -> str:
    return "{\n" + ",\n".join(members) + "\n}"


def _as_default(rows: Iterable[tuple[str, Definition]], schema: str) -> list[tuple[str, Any]]:
    rows = list(rows)
    names = {
        match[1] for name, _ in rows if (match := re.search(rf" {schema}\.(\w+)", name)) is not None
    }

    return _mapped(rows, lambda text: naming.rename(text, names, schema, naming.SCHEMA))


def _mapped(
    rows: Iterable[tuple[str, Definition]], rewrite: Callable[[str], str]
) -> list[tuple[str, Any]]:
    """Apply a function to every text of the definitions."""

    def mapped(value: Any) -> Any:
        if isinstance(value, str):
            return rewrite(value)
        if isinstance(value, list):
            return [mapped(one) for one in value]
        if isinstance(value, dict):
            return {key: mapped(one) for key, one in value.items()}
        return value

    return [(mapped(name), mapped(definition)) for name, definition in rows]


def _normal(definition: Definition) -> Definition:
    """Leave out unset properties; replace the body by its digest; list the grants by role."""
    normal = {
        key: value for key, value in definition.items() if value not in (None, "", False, [], {})
    }
    if "body" in normal:
        normal["body"] = _digest(normal["body"])
    if "grants" in normal:
        normal["grants"] = _grants(normal["grants"], normal.get("owner"))
    return normal


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _grants(text: str, owner: str | None) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for entry in text.strip("{}").split(","):
        match = _GRANT.fullmatch(entry.replace('\\"', '"').strip('"'))
        if match is None:
            continue
        role = _OWNER if owner is not None and match[1] == owner else match[1] or "public"
        privileges = [
            _PRIVILEGES.get(letter, letter) + ("*" if star else "")
            for letter, star in re.findall(r"([a-zA-Z])(\*?)", match[2])
        ]
        found[role] = sorted({*found.get(role, []), *privileges})
    return dict(sorted(found.items()))


def _portable(name: str, definition: Definition) -> Definition:
    # knowledge_search_health reports invalid indexes and disabled triggers.
    left_out = ("owner", "support", "valid", "enabled")
    kept = {key: value for key, value in definition.items() if key not in left_out}
    if name == REPLACED_BY_PROJECT:
        return {key: value for key, value in kept.items() if key in _FIXED_IN_REPLACEMENT}
    if name.startswith(("view ", "materialized view ")):
        kept.pop("definition", None)
    if name.startswith(("trigger ", "constraint ")):
        # After a dump and restore, a chain of conditions has other parentheses.
        kept["definition"] = re.sub(r"[()]", "", kept["definition"])
    if kept.get("method") == "hnsw":
        kept.pop("definition")
    if name.endswith(".indexed_embedding"):
        kept.pop("type", None)
    if "comment" in kept:
        kept["comment"] = _digest(kept["comment"])
    if "type" in kept:
        kept["type"] = _SIZE.sub(r"\1", kept["type"])
    if "grants" in kept:
        kept["grants"] = {
            role: privileges
            for role in API_ROLES
            if (privileges := _portable_privileges(role, kept["grants"].get(role, [])))
        }
    return kept


def _portable_privileges(role: str, privileges: list[str]) -> list[str]:
    # Whether service_role may also truncate depends on the project's default privileges.
    if role == "service_role" and set(privileges) & set(_ROW_PRIVILEGES):
        return [one for one in privileges if one in _ROW_PRIVILEGES]
    return [one for one in privileges if one.rstrip("*") != "MAINTAIN"]


def _shown(value: Any) -> str:
    return "nothing" if value is None else json.dumps(value, ensure_ascii=False)
