"""What a database is for an install: one state of eight, from what is there, with one remedy.

`migrate`, `init --check`, `doctor`, `server uninstall` and `migrate --record` ask `examine`. The
history says what was applied; tables with our columns, function bodies and names say what is there.
It only reads. Objects of a project that have our names are `obstacles`.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any, Literal

import psycopg
from psycopg import sql

from second_brain.database import catalogue, naming, obstacles, pgvector
from second_brain.database.history import (
    CREATE_HISTORY,
    RECORD,
    RECORD_IT,
    Applied,
    handed_out_name,
    has_history,
    is_handed_out,
    rows_of_install,
)
from second_brain.database.packaged import Migration, find
from second_brain.database.rendering import render
from second_brain.errors import ConfigurationError
from second_brain.services.connections import connect

Connection = psycopg.Connection[Any]
State = Literal[
    "none", "whole", "damaged", "without history", "other version", "newer", "renamed", "reset"
]

REPAIR = "Create it again, the rows stay: `second-brain migrate --repair`."
_COPY = (
    "It has no upgrade. Install into another schema (`second-brain migrate --schema NEW`), copy "
    "the documents (`second-brain server copy --from {schema} --schema NEW`), adopt your tables "
    "there, then remove this install: `second-brain server uninstall --schema {schema} --apply`. "
    "If you have edited files that `init` wrote, update with `init` and `supabase db push`."
)
_INSTALL_ANEW = (
    "Remove what is left with `second-brain server uninstall --apply`, then run `second-brain "
    "migrate{modules}`."
)
_NEWER = "Install that version of the package: this one knows only its own objects."
# An index makes searches faster; what policies, triggers and constraints lack, `doctor` says.
_NEEDED = ("schema", "table", "column", "view", "type", "function")

_COLUMNS = """
select namespace.nspname::text, class.relname::text, array_agg(attribute.attname::text)
  from pg_catalog.pg_class as class
  join pg_catalog.pg_namespace as namespace on namespace.oid = class.relnamespace
  join pg_catalog.pg_attribute as attribute on attribute.attrelid = class.oid
 where class.relkind in ('r', 'p')
   and namespace.nspname not in ('pg_catalog', 'information_schema')
   and namespace.nspname = coalesce(%(schema)s, namespace.nspname)
   and attribute.attnum > 0
   and not attribute.attisdropped
 group by namespace.nspname, class.relname
"""
_BODIES = """
select namespace.nspname || '.' || function.proname, function.prosrc
  from pg_catalog.pg_proc as function
  join pg_catalog.pg_namespace as namespace on namespace.oid = function.pronamespace
 where namespace.nspname = any (%s)
"""
# For each schema with functions of an install: the internal schema that most of them name.
_NAMED = r"""
select distinct on (namespace.nspname) namespace.nspname::text, named.parts[1]
  from pg_catalog.pg_proc as function
  join pg_catalog.pg_namespace as namespace on namespace.oid = function.pronamespace
 cross join lateral regexp_matches(function.prosrc, '\m(\w+_internal)\.') as named (parts)
 where function.prosrc like '%%\_internal.%%'
   and (%(schemas)s::text[] is null or namespace.nspname = any (%(schemas)s))
 group by namespace.nspname, named.parts[1]
having count(*) > 9
 order by namespace.nspname, count(*) desc
"""
_FUNCTION = re.compile(
    r"create (?:or replace )?function (\w+\.\w+)\((?:(?!create (?:or replace )?function).)*?"
    r"\bas\s+(\$\w*\$)(.*?)\2",
    re.DOTALL,
)
_LARGE = ("knowledge_chunks", "knowledge_documents")
# A table of a project, too, can have a name and a time.
_FEW_COLUMNS = 7
_CHUNKS = "create table public.knowledge_chunks"
_COMMAND = re.compile(r"(second-brain (?:migrate|server uninstall)\b(?![^`]*--schema))")
_COMMENT = re.compile(r"--[^\n]*")
_IS_CHOSEN = re.compile(
    r"\bvector\(\d+\)"
    r"|insert into \w+\.knowledge_settings \(collection, fusion\) values \('', '\w+'\)"
)


@dataclass(frozen=True)
class Condition:
    """The state of an install, in words, and the one way to a healthy end.

    `there` are the files of this package whose objects are there; `found` the objects, which mostly
    belong to `owner`, if they were compared with the manifest.
    """

    state: State
    what: str = ""
    remedy: str = ""
    there: tuple[Migration, ...] = ()
    found: catalogue.Catalogue | None = None
    owner: str = ""

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules whose objects are there."""
        return tuple(dict.fromkeys(one.module for one in self.there if one.module))


def in_schema(remedy: str, schema: str) -> str:
    """Return a remedy whose commands work on the install in `schema`."""
    if schema == naming.SCHEMA:
        return remedy
    return _COMMAND.sub(rf"\1 --schema {schema}", remedy)


def examine(
    connection: Connection,
    schema: str = naming.SCHEMA,
    known: Sequence[Migration] | None = None,
) -> Condition:
    """Return the condition of the install in `schema`; `known` are the files of another checkout.

    Only with the files of this package the objects are compared with the manifest.
    """
    found = _examine(connection, schema, known)
    return replace(found, remedy=in_schema(found.remedy, schema))


def _examine(connection: Connection, schema: str, known: Sequence[Migration] | None) -> Condition:
    files = find() if known is None else known
    rendered = _rendered(connection, files, schema)
    if not any(_CHUNKS in one.sql for one in files):
        return Condition("none")  # files of another project
    own = naming.internals(schema)
    tables, named = _tables(connection, schema), _named(connection, [schema, own])
    ours = [name for (_, name), columns in tables.items() if _is_ours(name, columns)]
    is_in_place = {*_LARGE} <= {*ours} and named == {schema: own, own: own}
    # A database of many tenants has many tables and functions: they are read only if needed.
    if not is_in_place and (ours or named or rows_of_install(connection, schema)):
        tables, named = _tables(connection), _named(connection)
        if (renamed := _renamed(connection, schema, tables, named)) is not None:
            return renamed
        if moved := _moved(tables, schema, named):
            return Condition("damaged", *moved)
    # All functions would differ if they look for pgvector in another schema.
    vector = pgvector.installed(connection)
    expected = pgvector.named(connection, naming.internals(schema))
    if vector is not None and expected not in (None, vector.schema):
        return Condition(
            "damaged",
            f"the functions name pgvector in schema {expected}, but it is in {vector.schema}",
            f"Move it back, run: alter extension vector set schema {expected}",
        )
    if differing := _differing(connection, rendered, schema):
        what = f"the install in schema {schema} is of an earlier checkout: {_listed(differing)}"
        differ = "differs" if len(differing) == 1 else "differ"
        return Condition(
            "other version", f"{what} {differ} from this version", _COPY.format(schema=schema)
        )
    applied = Applied(connection, schema)
    recorded = [one for one in files if one in applied]
    sources = _sources(connection, schema)
    if not ours:
        left = [name for name in sources if name.startswith(f"{naming.internals(schema)}.")]
        if recorded or set(left) & _functions(tuple(rendered)).keys():
            modules = ",".join(dict.fromkeys(one.module for one in recorded if one.module))
            return Condition(
                "reset",
                f"the tables of the install in schema {schema} are gone, and its history or its "
                "internal schema is left, as after a reset by another tool",
                _INSTALL_ANEW.format(modules=f" --with {modules}" if modules else ""),
            )
        return Condition("none")
    if not recorded and _is_of_other_version(rendered, sources):
        what = f"the install in schema {schema} has no history, and functions of another version"
        return Condition("other version", what, _COPY.format(schema=schema))
    there = _there(connection, files, rendered, schema, recorded, sources)
    if not there:
        return Condition("none")
    if unrecorded := [one.file_name for one in there if one not in applied]:
        what = (
            f"the history of schema {schema} lacks {_listed(unrecorded)}, whose objects are there"
        )
        if not recorded:
            what = f"the install in schema {schema} has no history"
        what += ": it was restored, or its history was changed"
        return Condition("without history", what, RECORD_IT, tuple(there))
    if newer := _newer(connection, files, schema):
        what = f"the install in schema {schema} is of a newer version: {_listed(newer)}"
        return Condition("newer", what, _NEWER, tuple(there))
    if known is not None or _pending(files, there):
        return Condition("whole", there=tuple(there))
    exact = catalogue.read(connection, schema)
    found, owner = catalogue.portable(exact), catalogue.owner(exact)
    missing = list(_missing(found, tuple(dict.fromkeys(one.module for one in there))))
    if missing:
        names = naming.created_names(one.sql for one in files)
        lacking = [naming.rename(one, names, naming.SCHEMA, schema) for one in missing]
        what = f"the install in schema {schema} lacks {_listed(lacking)}"
        return Condition("damaged", what, REPAIR, tuple(there), found, owner)
    return Condition("whole", there=tuple(there), found=found, owner=owner)


def _rendered(connection: Connection, files: Sequence[Migration], schema: str) -> list[Migration]:
    vector = pgvector.named(connection, naming.internals(schema)) or naming.EXTENSIONS
    return render(files, None, schema, vector)


def record(dsn: str, schema: str = naming.SCHEMA) -> list[Migration]:
    """Record the migrations of an install without a history, and return them.

    Raises ConfigurationError where there is no such install.
    """
    naming.check_schema(schema)
    history = sql.Identifier(naming.history(schema))
    with connect(dsn) as connection:
        condition = examine(connection, schema)
        if condition.state != "without history":
            raise ConfigurationError(
                condition.what or f"schema {schema} has no install without a history",
                remedy=condition.remedy or "There is nothing to record.",
            )
        applied = Applied(connection, schema)
        unrecorded = [one for one in condition.there if one not in applied]
        if not has_history(connection, schema):
            for create in CREATE_HISTORY:
                connection.execute(sql.SQL(create).format(history=history))
        rendered = _rendered(connection, find(), schema)
        for one in [text for text in rendered if text.version in {f.version for f in unrecorded}]:
            statement = sql.SQL(RECORD).format(history=history)
            connection.execute(statement, (one.version, one.name, [one.sql]))
    return unrecorded


def _tables(
    connection: Connection, schema: str | None = None
) -> dict[tuple[str, str], frozenset[str]]:
    rows = connection.execute(_COLUMNS, {"schema": schema}).fetchall()
    return {(home, name): frozenset(columns) for home, name, columns in rows}


@cache
def _columns() -> dict[str, set[str]]:
    """Return the columns of each table of this version."""
    columns: dict[str, set[str]] = {}
    manifest = catalogue.manifest()
    for section in (manifest.core, *manifest.modules.values()):
        for one in section:
            table, _, column = one.removeprefix("column public.").partition(".")
            if one.startswith("column ") and f"table public.{table}" in section:
                columns.setdefault(table, set()).add(column)
    return columns


def _is_ours(name: str, found: Collection[str]) -> bool:
    """Say whether a table has most of the many columns that this version's of that name has."""
    expected = _columns().get(name, set())
    return 2 * len(expected.intersection(found)) > len(expected) > _FEW_COLUMNS


def _named(connection: Connection, schemas: list[str] | None = None) -> dict[str, str]:
    return dict(connection.execute(_NAMED, {"schemas": schemas}).fetchall())


def _renamed(
    connection: Connection,
    schema: str,
    tables: Mapping[tuple[str, str], frozenset[str]],
    named: Mapping[str, str],
) -> Condition | None:
    """Return the condition of an install whose functions name other schemas than they are in."""
    origin = naming.of_internals(named.get(schema, naming.internals(schema)))
    wanted = naming.internals(origin)
    members = [one for one, internals in named.items() if internals == wanted]
    homes = [
        one
        for one in members
        if any(home == one and _is_ours(name, tables[home, name]) for home, name in tables)
    ]
    if len(homes) != 1:
        return None
    (home,) = homes
    statements = []
    if home != origin:
        if connection.execute(obstacles.HAS_SCHEMA, [origin]).fetchone() == (True,):
            statements.append(f"alter schema {origin} rename to {origin}_other")
        statements.append(f"alter schema {_quoted(home)} rename to {origin}")
    statements += [
        f"alter schema {_quoted(one)} rename to {wanted}"
        for one in members
        if one not in (home, wanted)
    ]
    if not statements:
        return None
    return Condition(
        "renamed",
        f"the install in schema {home} was renamed: its functions name the schemas {origin} and "
        f"{wanted}",
        f"Rename it back, run: {'; '.join(statements)}",
    )


def _quoted(name: str) -> str:
    return name if naming.is_plain(name) else '"' + name.replace('"', '""') + '"'


def _moved(
    tables: Mapping[tuple[str, str], frozenset[str]], schema: str, named: Mapping[str, str]
) -> tuple[str, str] | None:
    """Return what to say of a large table that is in another schema, or has another name."""
    expected = _columns()
    for table in _LARGE:
        if _is_ours(table, tables.get((schema, table), frozenset())) or not (
            naming.internals(schema) in named or schema in named
        ):
            continue
        for (home, name), columns in tables.items():
            if expected[table] <= columns and (home == schema or home not in named):
                statements = []
                if home != schema:
                    statements.append(
                        f"alter table {_quoted(home)}.{_quoted(name)} set schema {schema}"
                    )
                if name != table:
                    statements.append(f"alter table {schema}.{_quoted(name)} rename to {table}")
                return (
                    f"table {schema}.{table} is missing, and {home}.{name} has its columns",
                    f"Move it back, run: {'; '.join(statements)}",
                )
    return None


def _sources(connection: Connection, schema: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, body in connection.execute(_BODIES, [[schema, naming.internals(schema)]]):
        found.setdefault(name, []).append(body)
    return found


@lru_cache(maxsize=10)
def _functions(rendered: tuple[Migration, ...]) -> dict[str, list[tuple[int, str]]]:
    """Return for each function the places of the files that create it, each with the body."""
    found: dict[str, list[tuple[int, str]]] = {}
    for place, one in enumerate(rendered):
        for name, _, body in _FUNCTION.findall(one.sql):
            found.setdefault(name, []).append((place, body))
    return found


def _is_of_other_version(
    rendered: Sequence[Migration], sources: Mapping[str, Sequence[str]]
) -> bool:
    functions = _functions(tuple(rendered))
    known = [name for name in sources if name in functions]
    same = [name for name in known if {body for _, body in functions[name]} & {*sources[name]}]
    return len(known) > 2 * len(same)


def _there(
    connection: Connection,
    files: Sequence[Migration],
    rendered: Sequence[Migration],
    schema: str,
    recorded: Collection[Migration],
    sources: Mapping[str, Sequence[str]],
) -> list[Migration]:
    """List the files whose objects are there, up to the last one of core and of each module.

    A file is there if it is recorded, or if most of what it is the first to create is there, and
    most functions that it replaces have its body, or that of a later file.
    """
    names = obstacles.names_of_objects(connection, schema)
    internals = f"{naming.internals(schema)}."
    # Where the internal schema was dropped, its functions do not tell.
    is_left = any(name.startswith(internals) for name in sources)
    functions = _functions(tuple(rendered))
    created: set[str] = set()
    last: dict[str | None, int] = {}
    for place, (file, one) in enumerate(zip(files, rendered, strict=True)):
        relations = _relations(one.sql, schema) - created
        created |= relations
        evidence = [name in names for name in relations]
        for name, _, body in _FUNCTION.findall(one.sql):
            before = [text for at, text in functions[name] if at < place]
            since = {text for at, text in functions[name] if at >= place}
            is_evidence = is_left or not name.startswith(internals)
            if body not in before and is_evidence and naming.VIEWER_GROUPS not in name:
                evidence.append(bool(since.intersection(sources.get(name, ()))))
        is_whole_core = not is_left and file.module is None
        if file in recorded or 2 * sum(evidence) > len(evidence) or is_whole_core:
            last[one.module] = place
    return [one for place, one in enumerate(files) if place <= last.get(one.module, -1)]


@lru_cache(maxsize=500)
def _relations(text: str, schema: str) -> frozenset[str]:
    made = naming.created([text], schema)
    return frozenset(name for kind, name in made if kind not in ("schema", "function"))


def _pending(files: Sequence[Migration], there: Collection[Migration]) -> list[Migration]:
    modules = {None, *(one.module for one in there)}
    return [one for one in files if one.module in modules and one not in there]


def _missing(found: catalogue.Catalogue, modules: Sequence[str | None]) -> Iterator[str]:
    expected = catalogue.manifest().of(one for one in modules if one is not None)
    missing = {
        one.object
        for one in catalogue.compare(expected, found)
        if one.change == "missing" and one.kind in _NEEDED
    }
    for one in sorted(missing, key=lambda one: (_NEEDED.index(one.partition(" ")[0]), one)):
        relation = one.removeprefix("column ").rpartition(".")[0]
        if not one.startswith("column ") or not missing & {
            f"{kind} {relation}" for kind in ("table", "view", "type")
        }:
            yield one


def _differing(connection: Connection, rendered: Sequence[Migration], schema: str) -> list[str]:
    """Name the applied migrations whose text is another than in `rendered`.

    Released files never change: what differs was not released. Comments, spaces, dimensions and the
    stored fusion may differ.
    """
    known = {(one.version, one.name): one.sql for one in rendered}
    known |= {("", handed_out_name(one, schema)): one.sql for one in rendered}
    newest = max((one.version for one in rendered), default="")
    differing = []
    for version, name, text in rows_of_install(connection, schema):
        key = ("", name) if is_handed_out(name, schema) else (version, name)
        number = name.removeprefix(naming.handed_out_name(schema, "")) if not key[0] else version
        # Files of a newer version are not known here.
        is_later = key not in known and number[: len(newest)] > newest
        if text and not is_later and _essence(text) != _essence(known.get(key, "")):
            differing.append(f"{version}_{name}")
    return differing


def _newer(connection: Connection, files: Sequence[Migration], schema: str) -> list[str]:
    newest = max(one.version for one in files)
    prefix = naming.handed_out_name(schema, "")
    return [
        name
        for version, name, _ in rows_of_install(connection, schema)
        if is_handed_out(name, schema) and name.removeprefix(prefix)[: len(newest)] > newest
    ]


@lru_cache(maxsize=500)
def _essence(text: str) -> str:
    return re.sub(r"[\s;]+", "", _IS_CHOSEN.sub("", _COMMENT.sub("", text)))


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 2} more" if len(names) > 2 else ""
    return ", ".join(names[:2]) + more
