"""SQL that removes an install: all of its objects and nothing else.

The statements have no `cascade`, so that Postgres refuses to drop an object that something else
needs. Their order follows from the dependencies in the system catalogues: an object is dropped
after all objects that depend on it. Policies, triggers and constraints are dropped on their own,
because they can depend on functions that depend on the type of their table.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import psycopg
from psycopg import sql

from second_brain.database import catalogue, migrations, naming
from second_brain.errors import ConfigurationError, MigrationMissingError
from second_brain.services.connections import connect

Connection = psycopg.Connection[Any]
_Object = tuple[str, int]
"""A system catalogue and the oid of an object in it."""

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
# Triggers that carry the rows of adopted tables over: the tables are the project's.
_ON_ADOPTED_TABLES = """
select 'pg_trigger', trigger.oid, 'trigger', trigger.tgname,
       trigger.tgrelid::regclass::text
  from pg_catalog.pg_trigger as trigger
  join pg_catalog.pg_proc as function on function.oid = trigger.tgfoid
  join pg_catalog.pg_namespace as namespace on namespace.oid = function.pronamespace
 where namespace.nspname = %(internals)s
   and trigger.tgrelid <> all (%(tables)s)
   and trigger.tgparentid = 0
"""
_SCHEMA = "select oid from pg_catalog.pg_namespace where nspname = %s"
_DEPENDENCIES = """
select classid::regclass::text, objid::bigint, refclassid::regclass::text, refobjid::bigint,
       deptype::text
  from pg_catalog.pg_depend
 where deptype in ('n', 'a', 'i')
   and refobjid >= 16384
"""
_DESCRIBE = "select pg_catalog.pg_describe_object(%s::regclass, %s, 0)"
_WITHOUT_PATH = "select set_config('search_path', 'pg_catalog', true)"
# The function of groups that the migrations create, before a project replaces it.
_IS_DEFAULT = """
select btrim(regexp_replace(function.prosrc, '\\s+', ' ', 'g')) = 'begin return ''{}''; end'
  from pg_catalog.pg_proc as function
 where function.oid = %s
"""
_LOCK = "select pg_advisory_xact_lock(hashtext('second_brain migrations'))"
_COUNT = "select count(*) from {table}"


@dataclass(frozen=True)
class Uninstall:
    """What removes an install, and what is lost with it.

    `rows` has the number of rows of each table. `attached` are objects of the project on tables of
    the install, which are dropped with them.
    """

    schema: str
    statements: tuple[str, ...]
    rows: Mapping[str, int]
    attached: tuple[str, ...]

    @property
    def remarks(self) -> tuple[str, ...]:
        """What is left to do by hand."""
        if self.schema == naming.SCHEMA:
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
                f"-- Removes the install of second-brain in schema {self.schema}.",
                "-- Lost are:",
                *(lost or ["--   no rows"]),
                "-- pgvector and the roles stay. If a project has migrations with the names",
                f"-- *_{naming.handed_out_name(self.schema, '0')}*.sql, delete these files too.",
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
    connection: Connection, schema: str = naming.SCHEMA, *, cascade: bool = False
) -> Uninstall:
    """Return what removes the install in `schema`; it only reads.

    Raises ForeignDependentsError if other objects depend on the install, unless `cascade`: then the
    statements drop these too. Raises MigrationMissingError if there is no install in `schema`.
    """
    naming.check_schema(schema)
    with connection.transaction():
        connection.execute(_WITHOUT_PATH)
        return _plan(connection, schema, cascade)


def apply(dsn: str, schema: str = naming.SCHEMA, *, cascade: bool = False) -> Uninstall:
    """Remove the install in `schema`, in one transaction. Raises the errors of `plan`."""
    with connect(dsn) as connection:
        connection.execute(_LOCK)
        found = plan(connection, schema, cascade=cascade)
        for statement in found.statements:
            connection.execute(statement.encode())
    return found


@dataclass(frozen=True)
class _Node:
    kind: str
    drop: str
    """The object in a statement: its name, or what follows the kind."""
    table: str | None = None


def _plan(connection: Connection, schema: str, cascade: bool) -> Uninstall:
    recorded = migrations.recorded(connection, schema)
    internals = connection.execute(_SCHEMA, [naming.internals(schema)]).fetchone()
    if not recorded and internals is None:
        raise MigrationMissingError(
            f"there is no install in schema {schema}", remedy="Name its schema with --schema."
        )
    nodes, tables = _nodes(connection, schema, recorded)
    if internals is not None:
        nodes[("pg_namespace", internals[0])] = _Node("schema", naming.internals(schema))
    depends = _Dependencies(connection, nodes)
    if depends.foreign and not cascade:
        described = [_described(connection, one) for one in depends.foreign]
        raise ForeignDependentsError(sorted(described))
    statements = [*_drops(depends.in_order(), cascade=cascade)]
    statements += migrations.forget(connection, schema, recorded)
    statements.append("notify pgrst, 'reload schema'")
    return Uninstall(
        schema,
        tuple(statements),
        {table: _count(connection, table) for table in tables.values()},
        tuple(_attached(connection, schema, tables.values())),
    )


def _nodes(
    connection: Connection, schema: str, recorded: Sequence[migrations.Migration]
) -> tuple[dict[_Object, _Node], dict[int, str]]:
    """Return the install's objects, and the names of its tables."""
    packaged = migrations.find()
    ours = naming.created(one.sql for one in packaged) | naming.created(
        (one.sql for one in recorded), schema
    )
    # With all migrations, a function with other arguments is not the install's.
    signatures = None
    if not migrations.pending(connection, packaged, schema):
        names = naming.created_names(one.sql for one in packaged)
        signatures = {
            naming.rename(name.removeprefix("function "), names, naming.SCHEMA, schema)
            for name in catalogue.manifest()
            if name.startswith("function ")
        }
    found: dict[_Object, _Node] = {}
    tables: dict[int, str] = {}
    schemas = [schema, naming.internals(schema)]
    rows = connection.execute(_OBJECTS, [schemas]).fetchall()
    for catalogue_name, oid, namespace, kind, name, identity in rows:
        if namespace == schema:
            if (kind, name) not in ours:
                continue
            if kind == "function" and signatures is not None:
                signature = f"{namespace}.{name}({_argument_types(connection, oid)})"
                if signature not in signatures or _is_replaced(connection, schema, signature, oid):
                    continue
        found[(catalogue_name, oid)] = _Node(kind, identity)
        if kind == "table":
            tables[oid] = identity
    rows = connection.execute(_ON_TABLES, {"tables": list(tables)}).fetchall()
    rows += connection.execute(
        _ON_ADOPTED_TABLES, {"tables": list(tables), "internals": naming.internals(schema)}
    ).fetchall()
    for catalogue_name, oid, kind, name, table in rows:
        quoted = sql.Identifier(name).as_string(connection)
        found[(catalogue_name, oid)] = _Node(kind, quoted, table)
    return found, tables


def _is_replaced(connection: Connection, schema: str, signature: str, oid: int) -> bool:
    """Return whether this is the function that a project replaces, and it has done so."""
    own = catalogue.REPLACED_BY_PROJECT.removeprefix(f"function {naming.SCHEMA}")
    return signature == schema + own and (
        connection.execute(_IS_DEFAULT, [oid]).fetchone() != (True,)
    )


def _argument_types(connection: Connection, oid: int) -> str:
    (types,) = connection.execute(
        "select oidvectortypes(proargtypes) from pg_catalog.pg_proc where oid = %s", [oid]
    ).fetchone() or ("",)
    return str(types)


class _Dependencies:
    """The dependencies between the nodes, and the other objects that depend on them."""

    def __init__(self, connection: Connection, nodes: Mapping[_Object, _Node]) -> None:
        self._nodes = nodes
        self._parents: dict[_Object, list[_Object]] = defaultdict(list)
        needs: list[tuple[_Object, _Object]] = []
        for one, oid, other, other_oid, kind in connection.execute(_DEPENDENCIES).fetchall():
            needing, needed = (one, oid), (other, other_oid)
            if kind == "n":
                needs.append((needing, needed))
            else:
                self._parents[needing].append(needed)
        # A policy and a trigger are nodes, and need their table.
        for node in nodes:
            needs += [(node, parent) for parent in self._parents.get(node, ())]
        self._needed_by: dict[_Object, set[_Object]] = defaultdict(set)
        foreign: set[_Object] = set()
        for needing, needed in needs:
            target = self._node_of(needed)
            if target is None:
                continue
            source = self._node_of(needing)
            if source is None:
                foreign.add(self._top(needing))
            elif source != target:
                self._needed_by[target].add(source)
        self.foreign = sorted(foreign)

    def _node_of(self, one: _Object) -> _Object | None:
        """Return the node that an object is, or belongs to; None if it is foreign."""
        seen: set[_Object] = set()
        queue = [one]
        while queue:
            current = queue.pop()
            if current in self._nodes:
                return current
            if current not in seen:
                seen.add(current)
                queue += self._parents.get(current, ())
        return None

    def _top(self, one: _Object) -> _Object:
        """Return the view of a rule, and the table of a default."""
        while one[0] in ("pg_rewrite", "pg_attrdef") and self._parents.get(one):
            one = self._parents[one][0]
        return one

    def in_order(self) -> Iterator[list[_Node]]:
        """Yield the nodes in groups to drop one after the other, dependent objects first."""
        left = dict.fromkeys(self._nodes)
        while left:
            free = [one for one in left if not any(other in left for other in self._needed_by[one])]
            if not free:
                # Objects of one kind can be dropped together although they need each other.
                free = self._circle(left)
            for one in free:
                del left[one]
            yield [self._nodes[one] for one in free]

    def _circle(self, left: Collection[_Object]) -> list[_Object]:
        reach: dict[_Object, set[_Object]] = {}
        for one in left:
            seen: set[_Object] = set()
            queue = [other for other in self._needed_by[one] if other in left]
            while queue:
                current = queue.pop()
                if current not in seen:
                    seen.add(current)
                    queue += [other for other in self._needed_by[current] if other in left]
            reach[one] = seen
        circle = min((seen for one, seen in reach.items() if one in seen), key=len)
        if len({self._nodes[one].kind for one in circle}) > 1:
            described = ", ".join(self._nodes[one].drop for one in circle)
            raise ConfigurationError(
                f"these objects depend on each other: {described}",
                remedy="Drop one of them by hand, then run it again.",
            )
        return list(circle)


def _drops(groups: Iterator[list[_Node]], *, cascade: bool) -> Iterator[str]:
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


def _described(connection: Connection, one: _Object) -> str:
    (described,) = connection.execute(_DESCRIBE, [f"pg_catalog.{one[0]}", one[1]]).fetchone() or (
        "",
    )
    return str(described)


def _attached(connection: Connection, schema: str, tables: Collection[str]) -> Iterator[str]:
    """List what a project has added to the tables: indexes, triggers, policies, columns."""
    names = naming.created_names(one.sql for one in migrations.find())
    found = catalogue.portable(catalogue.read(connection, schema))
    for difference in catalogue.compare(catalogue.manifest(), found):
        if difference.change != "left over":
            continue
        name = naming.rename(difference.name, names, naming.SCHEMA, schema)
        definition = found[difference.object]
        table = definition.get("table") or name.rpartition(".")[0]
        table = naming.rename(str(table), names, naming.SCHEMA, schema)
        if difference.kind in ("index", "trigger", "policy", "column") and table in tables:
            yield f"{difference.kind} {name}"


def _count(connection: Connection, table: str) -> int:
    # Postgres wrote this name, with its schema and with quotes where it needs them.
    counted = sql.SQL(_COUNT).format(table=sql.SQL(table))
    (count,) = connection.execute(counted).fetchone() or (0,)
    return int(count)
