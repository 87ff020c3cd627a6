"""Examining a database: is everything there that search needs, and in a state to be fast.

It reads and changes nothing. What ought to be there is read off the migrations, so that it is
written down once.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import psycopg

from second_brain.database import migrations
from second_brain.errors import SecondBrainError, safe_message

Connection = psycopg.Connection[Any]
Status = Literal["ok", "info", "warning", "error"]
_Findings = Iterator[tuple[Status, str, str | None]]

MINIMUM_SERVER = 15
MINIMUM_PGVECTOR = (0, 8)
_APPLY = "Apply the migrations: `supabase db push` or `second-brain migrate`."

_FUNCTION = re.compile(
    r"^(create|drop) (?:or replace )?function (?:if exists )?public\.(\w+)", re.MULTILINE
)
_GRANT = re.compile(
    r"^grant execute on function ([^;]*?)\s+to ([\w, ]+);", re.MULTILINE | re.DOTALL
)
_TABLE = re.compile(r"^create table (?:if not exists )?(\w+\.\w+)", re.MULTILINE)
_INDEX = re.compile(
    r"^create (?:unique )?index (?:if not exists )?(\w+)\s+on (\w+)\.([^;]*);", re.MULTILINE
)
# The indexes of the two legs may have other names; the database knows them by what they are.
_LEG = re.compile(r"using hnsw|\(content_tsv\)")
_API_ROLES = ("anon", "authenticated", "service_role")

_SERVER = "select current_setting('server_version_num')::int / 10000"
_PGVECTOR = """
select extension.extversion, namespace.nspname
  from pg_catalog.pg_extension as extension
  join pg_catalog.pg_namespace as namespace on namespace.oid = extension.extnamespace
 where extension.extname = 'vector'
"""
_ROLES = "select rolname from pg_catalog.pg_roles where rolname = any(%s)"
_FUNCTION_GRANTS = """
select function.proname,
       count(distinct function.oid),
       coalesce(
         array_agg(distinct role.name)
           filter (where has_function_privilege(role.name, function.oid, 'execute')),
         array[]::text[]
       )
  from pg_catalog.pg_proc as function
 cross join unnest(%(roles)s::text[]) as role (name)
 where function.pronamespace = 'public'::regnamespace
   and function.proname = any(%(functions)s)
 group by function.proname
"""
_TABLES = """
select wanted.name, class.relrowsecurity
  from unnest(%s::text[]) as wanted (name)
  left join pg_catalog.pg_class as class on class.oid = to_regclass(wanted.name)
"""
_MISSING = "select name from unnest(%s::text[]) as wanted (name) where to_regclass(name) is null"
_HEALTH = "select public.knowledge_search_health()"


@dataclass(frozen=True)
class Finding:
    """What one check found; `remedy` says what to do, where there is something to do."""

    check: str
    status: Status
    message: str
    remedy: str | None = None


def examine(connection: Connection) -> list[Finding]:
    """Run every check over an autocommit connection; best as the owner of the tables.

    Without all migrations it ends there: what they make is not examined.
    """
    expected = migrations.find()
    text = "\n".join(one.sql for one in expected)
    findings = [
        *_run("server", lambda: _server(connection)),
        *_run("pgvector", lambda: _pgvector(connection)),
        *_run("roles", lambda: _roles(connection)),
        *_run("migrations", lambda: _migrations(connection, expected)),
    ]
    if findings[-1].status == "error":
        return findings
    return [
        *findings,
        *_run("functions", lambda: _functions(connection, text)),
        *_run("row level security", lambda: _row_security(connection, text)),
        *_run("indexes", lambda: _indexes(connection, text)),
        *_guarded("health", lambda: _health(connection)),
    ]


def _run(name: str, check: Callable[[], _Findings]) -> Iterator[Finding]:
    return _guarded(name, lambda: (Finding(name, *told) for told in check()))


def _guarded(name: str, check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    try:
        yield from check()
    except psycopg.OperationalError:
        raise
    except SecondBrainError as exc:
        yield Finding(name, "error", str(exc), exc.remedy)
    except psycopg.Error as exc:
        if exc.sqlstate in ("42P01", "3F000", "42704", "42883"):
            yield Finding(name, "error", "what it reads is missing", _APPLY)
        elif exc.sqlstate == "42501":
            yield Finding(name, "error", safe_message(exc), "Connect as the owner of the tables.")
        else:
            raise


def _server(connection: Connection) -> _Findings:
    (major,) = connection.execute(_SERVER).fetchone() or (0,)
    if major < MINIMUM_SERVER:
        yield "error", f"PostgreSQL {major} is too old", f"Upgrade to {MINIMUM_SERVER} or later."
    else:
        yield "ok", f"PostgreSQL {major}", None


def _pgvector(connection: Connection) -> _Findings:
    found = connection.execute(_PGVECTOR).fetchone()
    if found is None:
        yield (
            "error",
            "pgvector is not installed in this database",
            "Run: create extension vector with schema extensions",
        )
        return
    version, schema = found
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if numbers < MINIMUM_PGVECTOR:
        yield (
            "error",
            f"pgvector is {version}, without the iterative scans of 0.8",
            "Upgrade the server's pgvector, then run: alter extension vector update",
        )
    elif schema != "extensions":
        yield (
            "error",
            f"pgvector is in schema {schema}, not in extensions",
            "Run: alter extension vector set schema extensions",
        )
    else:
        yield "ok", f"pgvector {version} in schema extensions", None


def _roles(connection: Connection) -> _Findings:
    found = {name for (name,) in connection.execute(_ROLES, [list(_API_ROLES)]).fetchall()}
    missing = [name for name in _API_ROLES if name not in found]
    if missing:
        yield (
            "error",
            f"the roles {', '.join(missing)} are missing",
            "Run `second-brain migrate --prelude` as a superuser.",
        )
    else:
        yield "ok", ", ".join(_API_ROLES), None


def _migrations(connection: Connection, expected: list[migrations.Migration]) -> _Findings:
    missing = migrations.pending(connection, expected)
    if missing:
        names = ", ".join(one.file_name for one in missing)
        yield "error", f"{len(missing)} of {len(expected)} are missing: {names}", _APPLY
    else:
        yield "ok", f"all {len(expected)} are applied", None


def _functions(connection: Connection, text: str) -> _Findings:
    """Compare who may call what with the grants that the migrations write."""
    last = {name: action for action, name in _FUNCTION.findall(text)}
    functions = sorted(name for name, action in last.items() if action == "create")
    granted: dict[str, set[str]] = {name: set() for name in functions}
    for targets, roles in _GRANT.findall(text):
        for name in re.findall(r"public\.(\w+)", targets):
            granted.setdefault(name, set()).update(re.findall(r"\w+", roles))
    rows = connection.execute(
        _FUNCTION_GRANTS, {"functions": functions, "roles": list(_API_ROLES)}
    ).fetchall()
    found = {name: (overloads, set(roles)) for name, overloads, roles in rows}
    wrong = False
    for name in functions:
        overloads, callers = found.get(name, (0, set()))
        remedy: str | None = None
        if overloads == 0:
            message, remedy = f"{name} is missing", _APPLY
        elif overloads > 1:
            message = f"{name} exists {overloads} times: PostgREST cannot choose (PGRST203)"
            remedy = f"Drop the older signature; \\df public.{name} lists them."
        elif callers - granted[name]:
            roles = ", ".join(sorted(callers - granted[name]))
            message = f"{roles} may call {name}, and should not"
            remedy = f"Run: revoke execute on function public.{name} from public, {roles}"
        elif granted[name] - callers:
            roles = ", ".join(sorted(granted[name] - callers))
            message = f"{roles} may not call {name}"
            remedy = f"Run: grant execute on function public.{name} to {roles}"
        if remedy:
            wrong = True
            yield "error", message, remedy
    if not wrong:
        yield "ok", f"{len(functions)} functions, callable by whom they should be", None


def _row_security(connection: Connection, text: str) -> _Findings:
    tables = sorted(set(_TABLE.findall(text)))
    rows = connection.execute(_TABLES, [tables]).fetchall()
    missing = [name for name, enabled in rows if enabled is None]
    off = [name for name, enabled in rows if enabled is False]
    if missing:
        yield "error", f"the tables {', '.join(missing)} are missing", _APPLY
    for name in off:
        yield (
            "error",
            f"it is off for {name}: the API roles read what the grants let them",
            f"Run: alter table {name} enable row level security",
        )
    if not missing and not off:
        yield "ok", f"on for all {len(tables)} tables", None


def _indexes(connection: Connection, text: str) -> _Findings:
    names = sorted(
        f"{schema}.{name}"
        for name, schema, definition in _INDEX.findall(text)
        if not _LEG.search(definition)
    )
    missing = [name for (name,) in connection.execute(_MISSING, [names]).fetchall()]
    if missing:
        yield (
            "error",
            f"missing: {', '.join(missing)}",
            "Create them again as the migrations do: filters read the whole table without them.",
        )


def _health(connection: Connection) -> Iterator[Finding]:
    """Show what the database finds in itself, each after how that part is."""
    health: dict[str, Any]
    ((health,),) = connection.execute(_HEALTH).fetchall()
    summary = _summary(health)
    found = [
        Finding(one["check"], one["severity"], one["what"], one["remedy"])
        for one in health["findings"]
    ]
    for check, message in summary.items():
        yield Finding(check, "ok", message)
        yield from (one for one in found if one.check == check)
    # pgvector was examined before, as it is where there is no migration yet.
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
        "indexes": f"{len(indexes)} there, {used} used since the counters were reset",
        "embeddings": f"{health['dimensions']} dimensions; embedded by {models or 'no model yet'}",
        "statistics": f"words were counted over {counted['rows']} rows at {counted['refreshed_at']}"
        if counted
        else "words were not counted yet",
        "dead rows": f"{dead}, beside {rows['total']} chunks",
        "memory": f"{memory['vector_index']} of vector index,"
        f" {memory['shared_buffers']} of shared_buffers",
    }
