"""Checks of a database: whether it has all objects that search needs, and can be fast.

It only reads. The expected objects are in the manifest, which is generated from the SQL state.
Objects of other applications are not checked.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal

import psycopg
from psycopg import sql

from second_brain.database import catalogue, migrations, naming, pgvector, restored, stored
from second_brain.database.catalogue import Catalogue, Definition, Difference
from second_brain.database.obstacles import (
    API_ROLES,
    MINIMUM_SERVER,
    encoding_obstacles,
    missing_roles,
)
from second_brain.errors import SecondBrainError, safe_message
from second_brain.sql_modules import MODULES

Connection = psycopg.Connection[Any]
Status = Literal["ok", "info", "warning", "error"]
Findings = Iterator[tuple[Status, str, str | None]]

_APPLY = "Apply the migrations: `supabase db push` or `second-brain migrate`."
_RESTORE = (
    "Create it again: `second-brain init --declarative` writes the SQL of this version, which has"
    " the statement."
)
_CHUNK_TABLE = f"{naming.INTERNALS}.physical_table()"
_NOT_ON_CITUS = f"For a tenant on Citus it is that of docs/citus.sql. Elsewhere: {_RESTORE}"
_NATIVE_INSTALL = (
    "Run `create extension pg_textsearch`, then `second-brain migrate --with native_bm25`."
)
_NATIVE_RESTORE = (
    "Run: create index knowledge_native_texts_bm25 on knowledge_native_texts using bm25 (tokens)"
    " with (text_config = 'pg_catalog.simple')"
)
# These checks are in `findings` of the folder of the module, which may be left out.
_CHECKS_OF_MODULES = {"embedding_queue": "queue", "adoption": "adoptions"}
# The indexes of the two legs may be dropped for a bulk load; knowledge_search_health reports them.
_LEG_INDEXES = re.compile(
    r"index public\.knowledge_(chunks_(embedding|content_tsv|identifiers)|native_texts_bm25)$"
)
_ROW_SECURITY = {
    "row_security": (
        "it is off for {}: the API roles can read all rows that grants allow",
        "{} enable row level security",
    ),
    "row_security_forced": (
        "it is forced for {}: the functions, which run as its owner, see no row",
        "{} no force row level security",
    ),
}
_RELATIONS = ("table", "view", "type")
# The migrations grant these to nobody; a project can grant the search to visitors, and reads of the
# column to users and visitors.
_FOR_VISITORS = (
    "public.search_public_knowledge_chunks(",
    "public.search_visible_knowledge_chunks(",
)
_SHOWN_COLUMN = "public.knowledge_documents.source_row"
_OF_DROP_INS = f"{naming.INTERNALS}.adopted_hits_for_caller("
_VIEWS_OF_ADOPTIONS = f"{naming.INTERNALS}.adopted_"
_HARMLESS = {"comment"}
_SLOWER = {"comment", "storage", "statistics", "options", "toast_options", "compression", "cost"}

_SERVER = """
select current_setting('server_version_num')::int / 10000, database.datctype,
       lower('ÉŁ') = 'éł' and to_tsvector('pg_catalog.simple', 'ÉŁ') = '''éł'':1'
  from pg_catalog.pg_database as database
 where database.datname = current_database()
"""
_NATIVE_INDEX = """
select exists (select from pg_catalog.pg_available_extensions where name = 'pg_textsearch'),
       to_regclass(%s) is not null
"""
# The function that a project replaces is called with the rights of the owner of ours.
_VIEWER_GROUPS = """
select function.proowner in (caller.proowner, 10), function.proowner::regrole::text,
       function.prosqlbody is not null
         or exists (
              select from unnest(function.proconfig) as setting
               where setting like 'search_path=%%'
            )
  from pg_catalog.pg_proc as function
  join pg_catalog.pg_proc as caller on caller.oid = to_regprocedure(%s)
 where function.oid = to_regprocedure(%s)
"""
_HEALTH = "select {schema}.knowledge_search_health()"


@dataclass(frozen=True)
class Finding:
    """The result of one check; `remedy` is the action to take, None if there is none."""

    check: str
    status: Status
    message: str
    remedy: str | None = None


def examine(connection: Connection, schema: str = naming.SCHEMA) -> list[Finding]:
    """Run every check, preferably as the owner of the tables.

    Each check is a transaction, or a savepoint in the one that is open: nothing that it sets
    outlives it, also on a connection of a pooler. If migrations are missing, the checks of their
    objects do not run.
    """
    naming.check_schema(schema)
    # In another encoding, the other checks fail at the letters that they compare.
    for obstacle in encoding_obstacles(connection):
        return [Finding("server", "error", obstacle.what, obstacle.remedy)]
    findings = [
        *_run(connection, "server", lambda: _server(connection)),
        *_run(connection, "pgvector", lambda: _pgvector(connection, schema)),
        *_run(connection, "roles", lambda: _roles(connection)),
        *_run(connection, "migrations", lambda: _migrations(connection, schema)),
    ]
    # All functions would differ if they look for pgvector in another schema.
    if findings[-1].status == "error" or _moved_from(connection, schema) is not None:
        return findings
    installed = migrations.installed_modules(connection, schema)
    findings += [
        *_run(connection, "modules", lambda: _modules(connection, installed, schema)),
        *_guarded(connection, "functions", lambda: _definitions(connection, installed, schema)),
        *_run(connection, "functions", lambda: _viewer_groups(connection, schema)),
    ]
    if "insight" in installed:
        findings += _guarded(connection, "health", lambda: _health(connection, schema))
    for name, stored_check in (
        ("owners", stored.owners),
        ("rows", stored.seeds),
        ("embeddings", stored.unnamed),
        ("embeddings", stored.equal_embeddings),
        ("settings", stored.settings),
    ):
        findings += _run(connection, name, partial(stored_check, connection, schema))
    for module, check in _CHECKS_OF_MODULES.items():
        if module in installed and find_spec(f"second_brain.{module}"):
            found = import_module(f"second_brain.{module}.findings").findings
            findings += _run(connection, check, partial(found, connection, schema))
    return findings


def _run(connection: Connection, name: str, check: Callable[[], Findings]) -> Iterator[Finding]:
    return _guarded(connection, name, lambda: (Finding(name, *result) for result in check()))


def _guarded(
    connection: Connection, name: str, check: Callable[[], Iterator[Finding]]
) -> Iterator[Finding]:
    try:
        with connection.transaction():
            found = list(check())
        yield from found
    except psycopg.OperationalError:
        raise
    except SecondBrainError as exc:
        yield Finding(name, "error", str(exc), exc.remedy)
    except psycopg.Error as exc:
        if exc.sqlstate in ("42P01", "3F000", "42704", "42883"):
            message = f"an object that this check reads is missing: {safe_message(exc)}"
            yield Finding(name, "error", message, _APPLY)
        elif exc.sqlstate == "42501":
            yield Finding(name, "error", safe_message(exc), "Connect as the owner of the tables.")
        else:
            raise


def _server(connection: Connection) -> Findings:
    ((major, ctype, has_letters),) = connection.execute(_SERVER).fetchall()
    if major < MINIMUM_SERVER:
        yield "error", f"PostgreSQL {major} is too old", f"Upgrade to {MINIMUM_SERVER} or later."
    else:
        yield "ok", f"PostgreSQL {major}", None
    if not has_letters:
        yield (
            "warning",
            f"LC_CTYPE is {ctype}: lower() and the text search know the letters A to Z only, so a"
            " search for é does not find É",
            "Dump the database, create it again with locale C.UTF-8 or en_US.UTF-8 (create database"
            " ... template template0), and restore it.",
        )


def _pgvector(connection: Connection, schema: str) -> Findings:
    found = pgvector.installed(connection)
    if found is None:
        yield (
            "error",
            "pgvector is not installed in this database",
            "Run: create extension vector with schema extensions",
        )
    elif not found.is_new_enough:
        yield (
            "error",
            f"pgvector is {found.version}; search needs the iterative scans of 0.8",
            "Upgrade the server's pgvector, then run: alter extension vector update",
        )
    elif (named := _moved_from(connection, schema)) is not None:
        yield (
            "error",
            f"the functions name pgvector in schema {named}, but it is in {found.schema}",
            f"Move it back: alter extension vector set schema {named}",
        )
    else:
        yield "ok", f"pgvector {found.version} in schema {found.schema}", None
        for fault in found.faults:
            yield (
                "warning",
                f"pgvector is {found.version}: {fault}",
                f"Upgrade the server's pgvector to {pgvector.WITHOUT_FAULTS} or later, run: alter"
                " extension vector update; then reindex the vector index.",
            )


def _moved_from(connection: Connection, schema: str) -> str | None:
    """Return the schema in which the functions look for pgvector, if it is not there."""
    found = pgvector.installed(connection)
    named = pgvector.named(connection, naming.internals(schema))
    return named if found is not None and named != found.schema else None


def _roles(connection: Connection) -> Findings:
    if missing := missing_roles(connection):
        yield (
            "error",
            f"the roles {', '.join(missing)} are missing",
            "Run `second-brain migrate --prelude` as a superuser.",
        )
    else:
        yield "ok", ", ".join(API_ROLES), None


def _migrations(connection: Connection, schema: str) -> Findings:
    installed = migrations.installed_modules(connection, schema)
    expected = migrations.select(migrations.find(), (), installed)
    if found := migrations.earlier_obstacles(connection, expected, schema):
        yield from (("error", one.what, one.remedy) for one in found)
        return
    if restored.present(connection, schema):
        yield "error", restored.WHAT.format(schema=schema), restored.REMEDY
        return
    missing = migrations.pending(connection, expected, schema)
    if missing:
        names = ", ".join(one.file_name for one in missing)
        message = f"{len(missing)} of {len(expected)} are missing: {names}"
        yield "error", message, _APPLY
    else:
        yield "ok", f"all {len(expected)} are applied", None


def _modules(connection: Connection, installed: Collection[str], schema: str) -> Findings:
    absent = [f"{name} ({MODULES[name]})" for name in migrations.modules() if name not in installed]
    without = f"; not installed: {', '.join(absent)}" if absent else ""
    yield "ok", f"{', '.join(installed) or 'core only'}{without}", None
    index = f"{schema}.knowledge_native_texts_bm25"
    can_have, has_index = connection.execute(_NATIVE_INDEX, [index]).fetchone() or (False, False)
    if "native_bm25" in installed and not has_index:
        yield "warning", f"{index} is missing: the plain text leg runs", _NATIVE_RESTORE
    elif can_have and "native_bm25" not in installed:
        message = "the server has pg_textsearch, whose index makes the text leg faster"
        yield "info", message, _NATIVE_INSTALL


def _definitions(
    connection: Connection, installed: Collection[str], schema: str
) -> Iterator[Finding]:
    """Compare the database with the manifest; report missing, different and left over objects."""
    expected = catalogue.manifest().of(installed)
    found = catalogue.portable(catalogue.read(connection, schema))
    findings = [
        finding
        for difference in catalogue.compare(expected, found)
        if (finding := _finding(difference, expected, found)) is not None
    ]
    if schema != naming.SCHEMA:
        names = {name.partition(" public.")[2].partition("(")[0] for name in expected} - {""}
        findings = [_renamed(one, names, schema) for one in findings]
    functions = sum(name.startswith("function ") for name in expected)
    tables = sum(name.startswith("table ") for name in expected)
    in_order = {
        "functions": f"{functions} functions with the expected grants",
        "row level security": f"on for all {tables} tables",
        "tables": f"{tables} tables with their columns, constraints and triggers",
        "indexes": "",
    }
    for check, message in in_order.items():
        about = [one for one in findings if one.check == check]
        if message and not any(one.status == "error" for one in about):
            yield Finding(check, "ok", message)
        yield from about


def _viewer_groups(connection: Connection, schema: str) -> Findings:
    """Report a project's function of groups that others could make return other groups."""
    caller = f"{naming.internals(schema)}.current_viewer_groups()"
    name = f"{schema}.{naming.VIEWER_GROUPS}()"
    found = connection.execute(_VIEWER_GROUPS, [caller, name]).fetchone()
    if found is None:
        return
    is_owned, owner, is_pinned = found
    if not is_owned:
        yield (
            "error",
            f"{name} belongs to {owner}, and searches call it with the rights of the tables' owner",
            f"Read it, then run: alter function {name} owner to the owner of the tables",
        )
    if not is_pinned:
        yield (
            "warning",
            f"{name} does not pin its search_path, so a table of the same name can replace yours",
            f"Run: alter function {name} set search_path = pg_catalog, pg_temp; and write each"
            " table with its schema",
        )


def _finding(difference: Difference, expected: Catalogue, found: Catalogue) -> Finding | None:
    """Return the finding for a difference; None if it does not concern this package."""
    check, name = _check(difference), f"{difference.kind} {difference.name}"
    if difference.kind == "extension" or _LEG_INDEXES.fullmatch(difference.object):
        return None
    if difference.change == "missing":
        if difference.kind == "index" and _same_index(expected[difference.object], found):
            return None
        return Finding(check, "error", f"{name} is missing", _RESTORE)
    if difference.change == "left over":
        return _left_over(difference, expected, found)
    if difference.properties.keys() == {"grants"}:
        return None if _is_choice(difference, found) else _grants(difference)
    for wrong, (message, run) in _ROW_SECURITY.items():
        if wrong in difference.properties:
            message, remedy = message.format(difference.name), f"Run: alter table {run}"
            return Finding(check, "error", message, remedy.format(difference.name))
    properties = difference.properties.keys()
    if difference.name == _CHUNK_TABLE and properties == {"body"}:
        return Finding(check, "info", f"{name} is not that of core", _NOT_ON_CITUS)
    status: Status = "error"
    if properties <= _SLOWER:
        status = "info" if properties <= _HARMLESS else "warning"
    message = f"{name} differs from this version in: {', '.join(sorted(properties))}"
    return Finding(check, status, message, _RESTORE)


def _check(difference: Difference) -> str:
    if difference.kind in ("function", "index"):
        return {"function": "functions", "index": "indexes"}[difference.kind]
    if difference.kind == "policy" or difference.properties.keys() & _ROW_SECURITY.keys():
        return "row level security"
    return "tables"


def _left_over(difference: Difference, expected: Catalogue, found: Catalogue) -> Finding | None:
    """Return the finding for an object that is not in the manifest; None if it is a project's."""
    check, what = _check(difference), f"{difference.kind} {difference.name}"
    if difference.kind in ("view", "column") and difference.name.startswith(_VIEWS_OF_ADOPTIONS):
        return None
    if difference.kind == "function" and naming.OF_READERS.search(difference.name):
        return None
    internal = difference.name.startswith(f"{naming.INTERNALS}.")
    if difference.kind == "function":
        name = difference.name.partition("(")[0]
        named_alike = [one for one in expected if one.startswith(f"function {name}(")]
        if not named_alike and not internal:
            return None
        message = f"{what} is left over from another version"
        if any(one in found for one in named_alike):
            count = sum(one.startswith(f"function {name}(") for one in found)
            message = f"{name} exists {count} times: PostgREST cannot choose (PGRST203)"
        return Finding(check, "error", message, f"Run: drop function {difference.name}")
    definition = found[difference.object]
    if difference.kind == "index":
        owner = str(definition["table"])
        if _same_index(definition, expected):
            return None
    else:
        owner = ".".join(difference.name.split(".")[:2])
    of_ours = owner != difference.name and any(f"{one} {owner}" in expected for one in _RELATIONS)
    if not internal and not of_ours:
        return None
    # An extra policy can allow access to rows; an extra trigger can change writes.
    status: Status = "warning" if difference.kind in ("policy", "trigger") else "info"
    return Finding(
        check, status, f"{what} is not part of this version", "Drop it, unless it is your own."
    )


def _same_index(definition: Definition, among: Catalogue) -> bool:
    """Return whether an index with this definition exists under any name."""
    return any(
        name.startswith("index ") and _without_name(one) == _without_name(definition)
        for name, one in among.items()
    )


def _without_name(definition: Definition) -> tuple[str, str, str]:
    text = re.sub(r"INDEX \S+ ON", "INDEX ON", definition.get("definition", ""), count=1)
    return definition["table"], definition["method"], text


def _is_choice(difference: Difference, found: Catalogue) -> bool:
    """Return whether the grants are those that a project may give."""
    if difference.name == naming.INTERNALS:
        # The roles for which `adopt --calls` wrote drop-ins look up their keys there.
        keys = [one for name, one in found.items() if name.startswith(f"function {_OF_DROP_INS}")]
        lookers = {role for one in keys for role in one["grants"]}
        _, granted = difference.properties["grants"]
        return {(role, *one) for role, one in (granted or {}).items()} == {
            (role, "USAGE") for role in lookers
        }
    if difference.name == _SHOWN_COLUMN:
        _, granted = difference.properties["grants"]
        return all(privileges == ["SELECT"] for privileges in (granted or {}).values())
    return difference.name.startswith((*_FOR_VISITORS, _OF_DROP_INS))


def _beyond(some: Mapping[str, list[str]], others: Mapping[str, list[str]]) -> dict[str, set[str]]:
    """Return the privileges of each role that others do not have."""
    return {role: one for role in some if (one := set(some[role]) - set(others.get(role, [])))}


def _grants(difference: Difference) -> Finding:
    expected, found = (value or {} for value in difference.properties["grants"])
    extra, lacking = _beyond(found, expected), _beyond(expected, found)
    changed = extra or lacking
    roles = ", ".join(changed)
    named = {one.rstrip("*").lower() for one in set().union(*changed.values())}
    privileges = ", ".join(sorted(named))
    kind = "table" if difference.kind == "view" else difference.kind
    if difference.kind == "column":
        table, _, column = difference.name.rpartition(".")
        on, privileges = f"table {table}", f"{privileges} ({column})"
    else:
        on = f"{kind} {difference.name}"
    is_function = kind == "function"
    if extra:
        has = f"may call {difference.name}" if is_function else f"has {privileges} on {on}"
        message, run = f"{roles} {has} but should not", "revoke {} on {} from {}"
    else:
        has = f"may not call {difference.name}" if is_function else f"lacks {privileges} on {on}"
        message, run = f"{roles} {has}", "grant {} on {} to {}"
    remedy = f"Run: {run.format(privileges, on, roles)}"
    return Finding(_check(difference), "error", message, remedy)


def _renamed(finding: Finding, names: set[str], schema: str) -> Finding:
    message = naming.rename(finding.message, names, naming.SCHEMA, schema)
    remedy = finding.remedy and naming.rename(finding.remedy, names, naming.SCHEMA, schema)
    return replace(finding, message=message, remedy=remedy)


def _health(connection: Connection, schema: str) -> Iterator[Finding]:
    """Report the findings of knowledge_search_health, each after the summary of its check."""
    health: dict[str, Any]
    query = sql.SQL(_HEALTH).format(schema=sql.Identifier(schema))
    ((health,),) = connection.execute(query).fetchall()
    summary = _summary(health)
    found = [
        Finding(one["check"], one["severity"], one["what"], one["remedy"])
        for one in health["findings"]
    ]
    for check, message in summary.items():
        yield Finding(check, "ok", message)
        yield from (one for one in found if one.check == check)
    # `_pgvector` has already checked pgvector, because it must work without any migration.
    yield from (one for one in found if one.check not in {*summary, "pgvector"})


def _summary(health: dict[str, Any]) -> dict[str, str]:
    rows, indexes, counted = health["rows"], health["indexes"], health["statistics"]
    models = ", ".join(
        f"{one['model'] or 'unnamed'} ({one['chunks']})" for one in health["embedding_models"]
    )
    used = sum(1 for index in indexes if index["scans"])
    dead = sum(table["dead_rows"] for table in health["tables"])
    memory = {name: f"{size >> 20} MB" for name, size in health["memory"].items()}
    return {
        "indexes": f"{len(indexes)} exist, {used} used since the counters were reset",
        "embeddings": f"{health['dimensions']} dimensions; models: {models or 'none yet'}",
        "statistics": f"counted over {counted['rows']} rows at {counted['refreshed_at']}"
        if counted
        else "not counted yet",
        "dead rows": f"{dead} dead rows, {rows['total']} chunks",
        "memory": f"{memory['vector_index']} of vector index,"
        f" {memory['shared_buffers']} of shared_buffers",
    }
