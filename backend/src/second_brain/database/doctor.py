"""Checks of a database: whether it has all objects that search needs, and can be fast.

It only reads. The expected objects are in the manifest, which is generated from the SQL state.
Objects of other applications are not checked.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import psycopg
from psycopg import sql

from second_brain.database import (
    condition,
    migrations,
    naming,
    pgvector,
    stored,
)
from second_brain.database.condition import REPAIR, Condition
from second_brain.database.differences import Finding as Finding
from second_brain.database.differences import Status, differences
from second_brain.database.obstacles import (
    API_ROLES,
    MINIMUM_SERVER,
    encoding_obstacles,
    supabase_obstacles,
)
from second_brain.errors import SecondBrainError, safe_message
from second_brain.sql_modules import MODULES

Connection = psycopg.Connection[Any]
Findings = Iterator[tuple[Status, str, str | None]]

_APPLY = "Apply the migrations: `supabase db push` or `second-brain migrate`."
_AS_OWNER = "Connect as the owner of the tables."
_NATIVE_RESTORE = (
    "Run: create index knowledge_native_texts_bm25 on knowledge_native_texts using bm25 (tokens)"
    " with (text_config = 'pg_catalog.simple')"
)
_NATIVE_UPGRADE = (
    "Upgrade the server's pg_textsearch, then run: alter extension pg_textsearch update; reindex"
    " index knowledge_native_texts_bm25"
)
# These checks are in `findings` of the folder of the module, which may be left out.
_CHECKS_OF_MODULES = {"embedding_queue": "queue", "adoption": "adoptions"}
_SERVER = """
select current_setting('server_version_num')::int / 10000, database.datctype,
       lower('ÉŁ') = 'éł' and to_tsvector('pg_catalog.simple', 'ÉŁ') = '''éł'':1',
       database.datname, database.datcollversion,
       pg_database_collation_actual_version(database.oid)
  from pg_catalog.pg_database as database
 where database.datname = current_database()
"""
# What a database or a role sets for its sessions, and nobody remembers after a load.
_SETTINGS = """
select case
         when stored.setrole = 0 then format('database %I', current_database())
         when stored.setdatabase = 0 then format('role %s', stored.setrole::regrole)
         else format('role %s in database %I', stored.setrole::regrole, current_database())
       end,
       split_part(given, '=', 1), split_part(given, '=', 2)
  from pg_catalog.pg_db_role_setting as stored
 cross join unnest(stored.setconfig) as given
 where stored.setdatabase in (
         0, (select oid from pg_catalog.pg_database where datname = current_database())
       )
   and given in (
         'session_replication_role=replica', 'session_replication_role=local',
         'default_transaction_read_only=on', 'row_security=off'
       )
"""
_NATIVE_INDEX = "select to_regclass(%s) is not null"
_NATIVE_VERSION = """
select extversion,
       string_to_array(substring(extversion from '^\\d+\\.\\d+'), '.')::integer[] >= '{1,6}'
  from pg_catalog.pg_extension where extname = 'pg_textsearch'
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
_WITHOUT_BYPASS = """
select not (rolbypassrls or rolsuper) from pg_catalog.pg_roles where rolname = 'service_role'
"""
_OWNER = """
select class.relowner::regrole::text, class.relowner = current_user::regrole
  from pg_catalog.pg_class as class
 where class.oid = to_regclass(%s)
"""
_HEALTH = "select {schema}.knowledge_search_health()"


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
    there: list[Condition] = []
    findings = [
        *_run(connection, "server", lambda: _server(connection)),
        *_run(connection, "pgvector", lambda: _pgvector(connection)),
        *_run(connection, "roles", lambda: _roles(connection)),
        *_run(connection, "migrations", lambda: _migrations(connection, schema, there)),
    ]
    if not there:
        return _advised(findings, schema)
    installed = there[0].modules
    findings += [
        *_run(connection, "modules", lambda: _modules(connection, installed, schema)),
        *_guarded(connection, "functions", lambda: differences(there[0], schema)),
        *_run(connection, "functions", lambda: _viewer_groups(connection, schema)),
    ]
    if "insight" in installed:
        findings += _guarded(connection, "health", lambda: _health(connection, schema, findings))
    for name, stored_check in (
        ("rows", partial(stored.rows, modules=installed)),
        ("chunks", stored.chunks),
        ("embeddings", stored.unnamed),
        ("embeddings", stored.equal_embeddings),
        ("settings", stored.settings),
    ):
        findings += _run(connection, name, partial(stored_check, connection, schema))
    for module, check in _CHECKS_OF_MODULES.items():
        if module in installed and find_spec(f"second_brain.{module}"):
            of_module = import_module(f"second_brain.{module}.findings").findings
            findings += _run(connection, check, partial(of_module, connection, schema))
    owner = connection.execute(_OWNER, [f"{schema}.knowledge_chunks"]).fetchone()
    return _advised([_by_owner(one, owner, findings) for one in findings], schema)


def _advised(findings: list[Finding], schema: str) -> list[Finding]:
    return [
        replace(one, remedy=one.remedy and condition.in_schema(one.remedy, schema))
        for one in findings
    ]


def _by_owner(finding: Finding, owner: tuple[str, bool] | None, findings: list[Finding]) -> Finding:
    """Name the owner to connect as, or the cause why the owner may not read."""
    if finding.remedy != _AS_OWNER or owner is None:
        return finding
    name, is_connected = owner
    if not is_connected:
        return replace(finding, remedy=f"Connect as {name}, the owner of the tables.")
    is_named = any(one.status == "error" and one.remedy != _AS_OWNER for one in findings)
    return replace(
        finding,
        remedy="First heal the other errors." if is_named else "Look for what was revoked.",
    )


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
        if exc.sqlstate in ("42P01", "3F000", "42703", "42704", "42883"):
            message = f"an object that this check reads is missing: {safe_message(exc)}"
            yield Finding(name, "error", message, REPAIR)
        elif exc.sqlstate == "42501":
            yield Finding(name, "error", safe_message(exc), _AS_OWNER)
        else:
            raise


def _server(connection: Connection) -> Findings:
    ((major, ctype, has_letters, name, stored_version, version),) = connection.execute(
        _SERVER
    ).fetchall()
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
    for whom, setting, value in connection.execute(_SETTINGS):
        yield (
            "error",
            f"{setting} is {value} for {whom}: writes fail or no trigger fires, or policies raise",
            f"Run as a superuser: alter {whom} reset {setting}",
        )
    if stored_version and version and stored_version != version:
        yield (
            "warning",
            f"the collation of the database was of version {stored_version} and is of {version}:"
            " indexes of texts can miss rows",
            f'Run: reindex database "{name}"; alter database "{name}" refresh collation version',
        )


def _pgvector(connection: Connection) -> Findings:
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
    else:
        yield "ok", f"pgvector {found.version} in schema {found.schema}", None
        for fault in found.faults:
            yield (
                "warning",
                f"pgvector is {found.version}: {fault}",
                f"Upgrade the server's pgvector to {pgvector.WITHOUT_FAULTS} or later, run: alter"
                " extension vector update; then reindex the vector index.",
            )


def _roles(connection: Connection) -> Findings:
    if missing := list(supabase_obstacles(connection)):
        yield from (("error", one.what, one.remedy) for one in missing)
        return
    yield "ok", ", ".join(API_ROLES), None
    if connection.execute(_WITHOUT_BYPASS).fetchone() == (True,):
        yield (
            "info",
            "service_role has no bypassrls: a select of a table returns it no row and no error",
            "Read through the functions, or as the owner of the tables; or run as a superuser: "
            "alter role service_role bypassrls",
        )


def _migrations(connection: Connection, schema: str, there: list[Condition]) -> Findings:
    """Say what the database is; only an install of this version is examined further."""
    known = condition.examine(connection, schema)
    if known.state not in ("none", "whole") and known.found is None:
        yield "error", known.what, known.remedy
        return
    expected = migrations.select(migrations.find(), (), known.modules)
    if missing := [one.file_name for one in expected if one not in known.there]:
        message = f"{len(missing)} of {len(expected)} are missing: {', '.join(missing)}"
        yield "error", message, _APPLY
        return
    # What is missing is named by the checks that follow.
    yield "ok", f"all {len(expected)} are applied", None
    there.append(known)


def _modules(connection: Connection, installed: Collection[str], schema: str) -> Findings:
    absent = [f"{name} ({MODULES[name]})" for name in migrations.modules() if name not in installed]
    without = f"; not installed: {', '.join(absent)}" if absent else ""
    yield "ok", f"{', '.join(installed) or 'core only'}{without}", None
    if "native_bm25" in installed:
        yield from _native_index(connection, schema)


def _native_index(connection: Connection, schema: str) -> Findings:
    """Ask the BM25 index of pg_textsearch for stored chunks by their own words."""
    index = f"{schema}.knowledge_native_texts_bm25"
    if connection.execute(_NATIVE_INDEX, [index]).fetchone() == (False,):
        yield "warning", f"{index} is missing: the plain text leg runs", _NATIVE_RESTORE
        return
    for version, is_new_enough in connection.execute(_NATIVE_VERSION):
        if not is_new_enough:
            message = f"pg_textsearch is {version}; before 1.6 its indexes lose documents"
            yield "warning", message, _NATIVE_UPGRADE
    losses = sql.SQL("select count(*) from {}.lost_native_texts()").format(
        sql.Identifier(naming.internals(schema))
    )
    ((lost,),) = connection.execute(losses).fetchall()
    if lost:
        yield (
            "error",
            f"{index} does not find {lost} of up to 50 sampled chunks by their own words",
            f"Run: reindex index {index}; analyze {schema}.knowledge_chunks; select"
            f" {schema}.refresh_knowledge_statistics()",
        )


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


def _health(connection: Connection, schema: str, before: list[Finding]) -> Iterator[Finding]:
    """Report the findings of knowledge_search_health, each after the summary of its check."""
    health: dict[str, Any]
    query = sql.SQL(_HEALTH).format(schema=sql.Identifier(schema))
    ((health,),) = connection.execute(query).fetchall()
    summary = _summary(health)
    # The comparison with the manifest has named these already, and pgvector is checked without it.
    known = {"pgvector": "", "triggers": "it is disabled", "indexes": "index "}
    found = [
        Finding(one["check"], one["severity"], one["what"], one["remedy"])
        for one in health["findings"]
        if not any(
            kind == one["check"] and one["severity"] == "error" and (not text or text in said)
            for kind, text in known.items()
            for said in ["", *(other.message for other in before if other.status == "error")]
        )
    ]
    for check, message in summary.items():
        yield Finding(check, "ok", message)
        yield from (one for one in found if one.check == check)
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
