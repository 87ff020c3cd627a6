"""SQL that removes an install, or one of its modules: all of its objects and nothing else.

The statements have no `cascade`, so that Postgres refuses to drop an object that something else
needs. Their order follows from the dependencies in the system catalogues: an object is dropped
after all objects that depend on it. Policies, triggers and constraints are dropped on their own,
because they can depend on functions that depend on the type of their table.

A module may have replaced functions of core: its extension points. These are created again as core
has them, before anything is dropped.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import psycopg
from psycopg import sql

from second_brain.database import catalogue, condition, migrations, naming
from second_brain.database.dependencies import Dependencies, Node, Object
from second_brain.database.rendering import here
from second_brain.errors import ConfigurationError, MigrationMissingError
from second_brain.services.connections import connect

Connection = psycopg.Connection[Any]

# The objects of the two schemas; those of extensions are not the install's.
_OBJECTS = """
with found as (
  select 'pg_class' as catalogue, class.oid, class.relnamespace as namespace, class.relname as name,
         case class.relkind
           when 'v' then 'view' when 'm' then 'materialized view' when 'S' then 'sequence'
           when 'f' then 'foreign table' else 'table'
         end as kind,
         class.oid::regclass::text as identity
    from pg_catalog.pg_class as class
   where class.relkind in ('r', 'p', 'v', 'm', 'S', 'f')
  union all
  select 'pg_proc', function.oid, function.pronamespace, function.proname,
         case function.prokind when 'p' then 'procedure' when 'a' then 'aggregate'
           else 'function' end,
         function.oid::regprocedure::text
    from pg_catalog.pg_proc as function
  union all
  select 'pg_type', type.oid, type.typnamespace, type.typname,
         case type.typtype when 'd' then 'domain' else 'type' end,
         type.oid::regtype::text
    from pg_catalog.pg_type as type
    left join pg_catalog.pg_class as class on class.oid = type.typrelid
   where type.typtype in ('c', 'd', 'e', 'r')
     and coalesce(class.relkind = 'c', true)
)
select found.catalogue, found.oid, namespace.nspname, found.kind, found.name, found.identity
  from found
  join pg_catalog.pg_namespace as namespace on namespace.oid = found.namespace
 where namespace.nspname = any (%s)
   and not exists (
         select
           from pg_catalog.pg_depend as dependency
          where dependency.classid = ('pg_catalog.' || found.catalogue)::regclass
            and dependency.objid = found.oid
            and dependency.deptype in ('e', 'a', 'i')
            and dependency.refclassid <> 'pg_catalog.pg_namespace'::regclass
       )
"""
# What is dropped on its own, although it belongs to a table.
_ON_TABLES = """
select 'pg_policy', policy.oid, 'policy', policy.polname,
       policy.polrelid::regclass::text
  from pg_catalog.pg_policy as policy
 where policy.polrelid = any (%(tables)s)
union all
select 'pg_trigger', trigger.oid, 'trigger', trigger.tgname,
       trigger.tgrelid::regclass::text
  from pg_catalog.pg_trigger as trigger
 where trigger.tgrelid = any (%(tables)s)
   and not trigger.tgisinternal
union all
select 'pg_constraint', contained.oid, 'constraint', contained.conname,
       contained.conrelid::regclass::text
  from pg_catalog.pg_constraint as contained
 where contained.conrelid = any (%(tables)s)
   and (
     contained.contype = 'f'
     or contained.contype = 'c'
        and exists (
              select
                from pg_catalog.pg_depend as dependency
               where dependency.classid = 'pg_catalog.pg_constraint'::regclass
                 and dependency.objid = contained.oid
                 and dependency.refclassid = 'pg_catalog.pg_proc'::regclass
            )
   )
"""
# Triggers on tables of core or of the project, such as an adopted table.
_ON_OTHER_TABLES = """
select 'pg_trigger', trigger.oid, 'trigger', trigger.tgname,
       trigger.tgrelid::regclass::text
  from pg_catalog.pg_trigger as trigger
 where trigger.tgfoid = any (%(functions)s)
   and trigger.tgrelid <> all (%(tables)s)
   and trigger.tgparentid = 0
   and not trigger.tgisinternal
"""
_INDEXES_ON_OTHER_TABLES = """
select 'pg_class', class.oid, class.oid::regclass::text
  from pg_catalog.pg_index as index
  join pg_catalog.pg_class as class on class.oid = index.indexrelid
 where class.oid in (select to_regclass(name) from unnest(%(names)s::text[]) as name)
   and index.indrelid <> all (%(tables)s)
"""
# The view of an adopted table: its name begins so, and no migration creates it.
_ADOPTION, _ADOPTED = "adoption", "adopted_"
# A quoted name can contain anything.
_DROP_INS = """
select function.oid::regprocedure::text
  from pg_catalog.pg_proc as function
 where strpos(regexp_replace(function.prosrc, '"[^"]*"', '', 'g'), %s) > 0
   and function.pronamespace <> to_regnamespace(%s)
 order by 1
"""
_FUNCTION = re.compile(r"^create (?:or replace )?function ([\w.]+)", re.MULTILINE)
_SCHEMA = "select oid from pg_catalog.pg_namespace where nspname = %s"
_DESCRIBE = "select pg_catalog.pg_describe_object(%s::regclass, %s, 0)"
_WITHOUT_PATH = "select set_config('search_path', 'pg_catalog', true)"
# The function of groups that the migrations create, before a project replaces it.
_IS_DEFAULT = """
select btrim(regexp_replace(function.prosrc, '\\s+', ' ', 'g')) = 'begin return ''{}''; end'
  from pg_catalog.pg_proc as function
 where function.oid = %s
"""
# What the manifest calls a kind of object, where it has another word.
_LISTED_AS = {"domain": "type", "procedure": "function", "aggregate": "function"}
# The view chunk_rows is created by one of the functions.
_RESTORED = """
select 'pg_proc', function.oid
  from pg_catalog.pg_proc as function
 where function.pronamespace::regnamespace::text || '.' || function.proname = any (%(names)s)
union all
select 'pg_class', to_regclass(left(name, -length('write_chunk_rows')) || 'chunk_rows')::oid
  from unnest(%(names)s) as listed (name)
 where name like '%%.write\\_chunk\\_rows'
"""
# What modules have added to the chunks. Rows that are searched in place have no text without it.
_WITHOUT_PLACES = (
    """
delete from public.knowledge_documents as document
 where document.id in (
         select chunk.document_id from public.knowledge_chunks as chunk
          where chunk.place_id is not null
       )
""",
    "select knowledge_internal.write_chunk_rows()",
)
_COLUMNS = {
    "adoption": "drop column place_id, drop column place_key, drop column place_embedded,"
    " alter column content set not null",
    "substrings": "drop column place_identifiers",
}
_WITHOUT_COLUMNS = """
do $$
declare
  kind constant text := (
    select type.typname
      from pg_catalog.pg_attribute as attribute
      join pg_catalog.pg_type as type on type.oid = attribute.atttypid
     where attribute.attrelid = 'knowledge_internal.searchable_chunks'::regclass
       and attribute.attname = 'indexed_embedding'
  );
begin
  drop view knowledge_internal.searchable_chunks;
  alter table public.knowledge_chunks {columns};
  perform knowledge_internal.use_vector_index(kind);
end
$$
"""
_RELOAD = "notify pgrst, 'reload schema'"
# A search locks the chunks first, then smaller tables: in another order, both would wait.
_LOCK_CHUNKS = "lock table {schema}.knowledge_chunks in access exclusive mode"
_ATTEMPTS = 5
_LOCK = "select pg_advisory_xact_lock(hashtext('second_brain migrations'))"
_COUNT = "select count(*) from {table}"


@dataclass(frozen=True)
class Uninstall:
    """What removes an install, and what is lost with it.

    `rows` has the number of rows of each table. `attached` are objects of the project on tables of
    the install, which are dropped with them. `files` are the names of its migrations in a project.
    """

    schema: str
    statements: tuple[str, ...]
    rows: Mapping[str, int]
    attached: tuple[str, ...]
    files: tuple[str, ...]
    module: str | None = None

    @property
    def subject(self) -> str:
        """What is removed, in words."""
        what = "install" if self.module is None else f"module {self.module}"
        return f"{what} in schema {self.schema}"

    @property
    def remarks(self) -> tuple[str, ...]:
        """What is left to do by hand."""
        if self.schema == naming.SCHEMA or self.module is not None:
            return ()
        return (
            f"Schema {self.schema} stays: the REST API answers no request while it exposes a",
            "schema that does not exist. Remove it from the exposed schemas, then run:",
            f"drop schema {self.schema};",
        )

    @property
    def script(self) -> str:
        """The statements as a file, with what is lost in its comments."""
        lost = [f"--   {count:,} rows of {table}" for table, count in self.rows.items()]
        lost += [f"--   {one}, which is not of second-brain" for one in self.attached]
        return "\n".join(
            [
                f"-- Removes the {self.subject}, of second-brain.",
                "-- Lost are:",
                *(lost or ["--   no rows"]),
                "-- pgvector and the roles stay. If a project has these files, delete them too:",
                *(f"--   {name}" for name in self.files),
                *(f"-- {line}" for line in self.remarks),
                "",
                "begin;",
                "",
                *(f"{statement};\n" for statement in self.statements),
                "commit;",
                "",
            ]
        )


class ForeignDependentsError(ConfigurationError):
    """Objects of the project need objects of the install; `dependents` lists them."""

    default_remedy = "Drop or change them first, or drop them too with --cascade."

    def __init__(self, dependents: Sequence[str]) -> None:
        self.dependents = tuple(dependents)
        listed = ", ".join(dependents)
        super().__init__(f"these objects depend on the install: {listed}")


def plan(
    connection: Connection,
    schema: str = naming.SCHEMA,
    *,
    module: str | None = None,
    cascade: bool = False,
) -> Uninstall:
    """Return what removes the install in `schema`, or a module of it; it only reads.

    Raises ForeignDependentsError if other objects depend on what is removed, unless `cascade`: then
    the statements drop these too. Raises MigrationMissingError if there is no install in `schema`,
    or not the module, and if the install with a module to remove lacks migrations.
    """
    naming.check_schema(schema)
    with connection.transaction():
        connection.execute(_WITHOUT_PATH)
        if module in (None, _ADOPTION):
            _refuse_drop_ins(connection, schema)
        if module is None:
            return _plan(connection, schema, cascade)
        return _plan_of_module(connection, schema, module, cascade)


def apply(
    dsn: str, schema: str = naming.SCHEMA, *, module: str | None = None, cascade: bool = False
) -> Uninstall:
    """Remove the install in `schema`, or a module of it, in one transaction.

    Raises the errors of `plan`.
    """
    for patience in reversed(range(_ATTEMPTS)):
        try:
            with connect(dsn) as connection:
                connection.execute(_LOCK)
                found = plan(connection, schema, module=module, cascade=cascade)
                for statement in found.statements:
                    connection.execute(statement.encode())
            break
        except psycopg.errors.DeadlockDetected:
            if not patience:
                raise
    return found


def _refuse_drop_ins(connection: Connection, schema: str) -> None:
    """Raise ConfigurationError while functions of the project call the search of an adoption."""
    internals = naming.internals(schema)
    called = f"{internals}.adopted_hits"
    drop_ins = [name for (name,) in connection.execute(_DROP_INS, [called, internals])]
    if drop_ins:
        option = "" if schema == naming.SCHEMA else f" --schema {schema}"
        raise ConfigurationError(
            f"functions are drop-ins of adopted tables: {', '.join(drop_ins)}",
            remedy=f"Bring the old ones back: second-brain adopt --calls --undo --apply{option}",
        )


def _plan(connection: Connection, schema: str, cascade: bool) -> Uninstall:
    there = _condition(connection, schema)
    recorded = migrations.recorded(connection, schema)
    internals = connection.execute(_SCHEMA, [naming.internals(schema)]).fetchone()
    installed = there.modules
    packaged = migrations.select(migrations.find(), (), installed)
    if there.state == "other version":
        packaged = migrations.find()
    expected = catalogue.manifest().of(installed)
    ours = naming.created(one.sql for one in packaged) | naming.created(
        (one.sql for one in recorded), schema
    )
    # With all migrations, a function with other arguments is not the install's.
    signatures = None
    if there.state == "whole" and there.found is not None:
        signatures = _in_schema((one for one in expected if one.startswith("function ")), schema)

    def is_ours(kind: str, namespace: str, name: str, oid: int) -> bool:
        if namespace != schema:
            return True
        if kind == "table" and there.state == "reset":
            return False  # it was made since
        if kind != "function" or signatures is None:
            return (kind, name) in ours
        signature = f"function {namespace}.{name}({_argument_types(connection, oid)})"
        return signature in signatures and not _is_replaced(connection, schema, signature, oid)

    nodes, tables = _nodes(connection, schema, is_ours)
    is_locked = f"{schema}.knowledge_chunks" in tables.values()
    if internals is not None:
        nodes[("pg_namespace", internals[0])] = Node("schema", naming.internals(schema))
    return Uninstall(
        schema,
        (
            *([_LOCK_CHUNKS.format(schema=schema)] if is_locked else []),
            *_drops(_ordered(connection, nodes, cascade=cascade), cascade=cascade),
            *migrations.forget(connection, schema, recorded, is_all=True),
            _RELOAD,
        ),
        {table: _count(connection, table) for table in tables.values()},
        tuple(_attached(connection, schema, tables.values(), expected)),
        (f"*_{naming.handed_out_name(schema, '0')}*.sql",),
    )


def _condition(connection: Connection, schema: str) -> condition.Condition:
    there = condition.examine(connection, schema)
    if there.state == "none":
        raise MigrationMissingError(
            f"there is no install in schema {schema}", remedy="Name its schema with --schema."
        )
    if there.state == "renamed":
        raise ConfigurationError(there.what, remedy=there.remedy)
    return there


def _plan_of_module(connection: Connection, schema: str, module: str, cascade: bool) -> Uninstall:
    there = _condition(connection, schema)
    installed = there.modules
    if module not in installed:
        raise MigrationMissingError(
            f"the module {module} is not installed in schema {schema}",
            remedy=f"Installed are: {', '.join(installed) or 'no modules'}.",
        )
    packaged = migrations.select(migrations.find(), (), installed)
    if there.state not in ("whole", "damaged") or there.found is None:
        raise MigrationMissingError(
            there.what or "a module can be removed from an install of this version only",
            remedy=there.remedy,
        )
    manifest = catalogue.manifest()
    added = manifest.modules[module].keys() - manifest.core.keys()
    names = _in_schema(added, schema)

    def is_ours(kind: str, namespace: str, name: str, oid: int) -> bool:
        if kind == "function":
            if module == _ADOPTION and naming.OF_READERS.search(name):
                return True
            name = f"{name}({_argument_types(connection, oid)})"
        is_view = module == _ADOPTION and kind == "view" and name.startswith(_ADOPTED)
        return is_view or f"{_LISTED_AS.get(kind, kind)} {namespace}.{name}" in names

    nodes, tables = _nodes(connection, schema, is_ours)
    indexes = [name.removeprefix("index ") for name in names if name.startswith("index ")]
    arguments = {"names": indexes, "tables": list(tables)}
    for catalogue_name, oid, identity in connection.execute(_INDEXES_ON_OTHER_TABLES, arguments):
        nodes[(catalogue_name, oid)] = Node("index", identity)
    replaced = _replaced(connection, schema, module)
    ordered = _ordered(connection, nodes, restored=replaced.keys(), cascade=cascade)
    files = [one for one in packaged if one.module == module]
    declared = [one for one in migrations.find_state() if one.module == module]
    is_adoption = module == _ADOPTION
    return Uninstall(
        schema,
        (
            _LOCK_CHUNKS.format(schema=schema),
            *replaced.values(),
            *(here(connection, schema, one) for one in _WITHOUT_PLACES if is_adoption),
            *_drops(ordered, cascade=cascade),
            *(
                here(connection, schema, _WITHOUT_COLUMNS.replace("{columns}", columns))
                for name, columns in _COLUMNS.items()
                if name == module
            ),
            *migrations.forget(connection, schema, migrations.recorded(connection, schema, module)),
            _RELOAD,
        ),
        {table: _count(connection, table) for table in tables.values()},
        tuple(_attached(connection, schema, tables.values(), manifest.of(installed))),
        tuple(
            before + naming.handed_out_name(schema, one.file_name)
            for before, listed in (("*_", files), ("", declared))
            for one in listed
        ),
        module,
    )


def _in_schema(objects: Iterable[str], schema: str) -> set[str]:
    """Return names of the manifest as they are in an install in this schema."""
    names = naming.created_names(one.sql for one in migrations.find())
    return {naming.rename(one, names, naming.SCHEMA, schema) for one in objects}


def _replaced(connection: Connection, schema: str, module: str) -> dict[str, str]:
    """Return the functions of core that the module replaces, with their statements in core."""
    packaged = migrations.find()
    names = {
        name for one in packaged if one.module == module for name in _FUNCTION.findall(one.sql)
    }
    found = {}
    for one in packaged:
        # Splitting a file is slow.
        if one.module is None and not names.isdisjoint(_FUNCTION.findall(one.sql)):
            for _, statement in migrations.statements(one.sql):
                created = _FUNCTION.search(statement)
                if created is not None and created[1] in names:
                    found[created[1]] = statement[created.start() :]
    return {
        here(connection, schema, name): here(
            connection, schema, re.sub("^create function", "create or replace function", text)
        )
        for name, text in found.items()
    }


def _nodes(
    connection: Connection, schema: str, is_ours: Callable[[str, str, str, int], bool]
) -> tuple[dict[Object, Node], dict[int, str]]:
    """Return the objects that are removed, and the names of their tables.

    `is_ours` is called with the kind, schema, name and oid of each object in the two schemas.
    """
    found: dict[Object, Node] = {}
    tables: dict[int, str] = {}
    schemas = [schema, naming.internals(schema)]
    for catalogue_name, oid, namespace, kind, name, identity in connection.execute(
        _OBJECTS, [schemas]
    ).fetchall():
        if is_ours(kind, namespace, name, oid):
            found[(catalogue_name, oid)] = Node(kind, identity)
            if kind == "table":
                tables[oid] = identity
    functions = [oid for catalogue_name, oid in found if catalogue_name == "pg_proc"]
    arguments = {"tables": list(tables), "functions": functions}
    rows = connection.execute(_ON_TABLES, arguments).fetchall()
    rows += connection.execute(_ON_OTHER_TABLES, arguments).fetchall()
    for catalogue_name, oid, kind, name, table in rows:
        quoted = sql.Identifier(name).as_string(connection)
        found[(catalogue_name, oid)] = Node(kind, quoted, table)
    return found, tables


def _ordered(
    connection: Connection,
    nodes: Mapping[Object, Node],
    *,
    restored: Collection[str] = (),
    cascade: bool,
) -> Iterator[list[Node]]:
    """Return the nodes in groups to drop one after the other, dependent objects first.

    `restored` are functions that no longer depend on the nodes when these are dropped. Raises
    ForeignDependentsError if other objects depend on the nodes, unless `cascade`.
    """
    rows = connection.execute(_RESTORED, {"names": list(restored)}).fetchall()
    depends = Dependencies(connection, nodes, set(rows))
    if depends.foreign and not cascade:
        described = [_described(connection, one) for one in depends.foreign]
        raise ForeignDependentsError(sorted(described))
    return depends.in_order()


def _is_replaced(connection: Connection, schema: str, signature: str, oid: int) -> bool:
    """Return whether this is the function that a project replaces, and it has done so."""
    return signature == f"function {schema}.{naming.VIEWER_GROUPS}()" and (
        connection.execute(_IS_DEFAULT, [oid]).fetchone() != (True,)
    )


def _argument_types(connection: Connection, oid: int) -> str:
    (types,) = connection.execute(
        "select oidvectortypes(proargtypes) from pg_catalog.pg_proc where oid = %s", [oid]
    ).fetchone() or ("",)
    return str(types)


def _drops(groups: Iterator[list[Node]], *, cascade: bool) -> Iterator[str]:
    end = " cascade" if cascade else ""
    for group in groups:
        in_order = sorted(group, key=lambda node: (node.kind, node.table or "", node.drop))
        for (kind, table), nodes in groupby(in_order, key=lambda node: (node.kind, node.table)):
            names = [node.drop for node in nodes]
            if table is None:
                yield f"drop {kind}\n  " + ",\n  ".join(names) + end
            elif kind == "constraint":
                drops = ",\n  ".join(f"drop constraint {name}{end}" for name in names)
                yield f"alter table {table}\n  {drops}"
            else:
                yield from (f"drop {kind} {name} on {table}{end}" for name in names)


def _described(connection: Connection, one: Object) -> str:
    (described,) = connection.execute(_DESCRIBE, [f"pg_catalog.{one[0]}", one[1]]).fetchone() or (
        "",
    )
    return str(described)


def _attached(
    connection: Connection, schema: str, tables: Collection[str], expected: catalogue.Catalogue
) -> Iterator[str]:
    """List what a project has added to the tables: indexes, triggers, policies, columns."""
    names = naming.created_names(one.sql for one in migrations.find())
    found = catalogue.portable(catalogue.read(connection, schema))
    for difference in catalogue.compare(expected, found):
        if difference.change != "left over":
            continue
        name = naming.rename(difference.name, names, naming.SCHEMA, schema)
        definition = found[difference.object]
        table = definition.get("table") or name.rpartition(".")[0]
        table = naming.rename(str(table), names, naming.SCHEMA, schema)
        of_table = difference.kind in ("index", "trigger", "policy", "column") and table in tables
        if of_table:
            yield f"{difference.kind} {name}"


def _count(connection: Connection, table: str) -> int:
    # Postgres wrote this name, with its schema and with quotes where it needs them.
    counted = sql.SQL(_COUNT).format(table=sql.SQL(table))
    (count,) = connection.execute(counted).fetchone() or (0,)
    return int(count)
