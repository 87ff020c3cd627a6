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
Status = Literal["ok", "warning", "error"]
_Findings = Iterator[tuple[Status, str, str | None]]

MINIMUM_SERVER = 15
MINIMUM_PGVECTOR = (0, 8)
# Below this many rows the planner is right not to use an index.
_LARGE = 1000
_SEARCH_INDEXES = ("public.knowledge_chunks_embedding", "public.knowledge_chunks_content_tsv")
_APPLY = "Apply the migrations: `supabase db push` or `second-brain migrate`."
_ANALYSE = "Run: analyze public.knowledge_chunks; select public.refresh_knowledge_statistics()"

_FUNCTION = re.compile(
    r"^(create|drop) (?:or replace )?function (?:if exists )?public\.(\w+)", re.MULTILINE
)
_GRANT = re.compile(
    r"^grant execute on function ([^;]*?)\s+to ([\w, ]+);", re.MULTILINE | re.DOTALL
)
_TABLE = re.compile(r"^create table (?:if not exists )?(\w+\.\w+)", re.MULTILINE)
_INDEX = re.compile(
    r"^create (?:unique )?index (?:if not exists )?(\w+)\s+on (\w+)\.", re.MULTILINE
)
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
_INDEXES = """
select wanted.name, index.indisvalid, usage.idx_scan
  from unnest(%s::text[]) as wanted (name)
  left join pg_catalog.pg_index as index on index.indexrelid = to_regclass(wanted.name)
  left join pg_catalog.pg_stat_user_indexes as usage on usage.indexrelid = index.indexrelid
"""
_CHUNK_ESTIMATE = """
select reltuples::bigint from pg_catalog.pg_class where oid = 'public.knowledge_chunks'::regclass
"""
_CHUNKS = """
select embedding_model, count(*), count(embedding)
  from public.knowledge_chunks
 where status = 'active'
 group by embedding_model
 order by count(*) desc, embedding_model
"""
_ANALYSED = """
select greatest(last_analyze, last_autoanalyze)::timestamptz(0),
       n_live_tup,
       n_mod_since_analyze
  from pg_catalog.pg_stat_user_tables
 where relid = 'public.knowledge_chunks'::regclass
"""
_STATISTICS = """
select refreshed_at::timestamptz(0), document_count::bigint
  from knowledge_internal.corpus_statistics
"""


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
        *_run("embeddings", lambda: _embeddings(connection)),
        *_run("statistics", lambda: _statistics(connection)),
    ]


def _run(name: str, check: Callable[[], _Findings]) -> Iterator[Finding]:
    try:
        for status, message, remedy in check():
            yield Finding(name, status, message, remedy)
    except psycopg.OperationalError:
        raise
    except SecondBrainError as exc:
        yield Finding(name, "error", str(exc), exc.remedy)
    except psycopg.Error as exc:
        if exc.sqlstate in ("42P01", "3F000", "42704"):
            yield Finding(name, "error", "its tables are missing", _APPLY)
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
    names = sorted({f"{schema}.{name}" for name, schema in _INDEX.findall(text)})
    rows = connection.execute(_INDEXES, [names]).fetchall()
    missing = [name for name, valid, _ in rows if valid is None]
    if missing:
        yield (
            "error",
            f"missing: {', '.join(missing)}",
            "Create them again as the migrations do: searches read the whole table without them.",
        )
    broken = [name for name, valid, _ in rows if valid is False]
    for name in broken:
        yield "error", f"{name} is not valid", f"Run: reindex index concurrently {name}"
    if missing or broken:
        return
    unused = [name for name, _, scans in rows if not scans]
    used = f"{len(rows) - len(unused)} of {len(rows)} used since the counters were reset"
    yield "ok", f"{len(rows)} there and valid, {used}", None
    (chunks,) = connection.execute(_CHUNK_ESTIMATE).fetchone() or (0,)
    searched = [name for name in unused if name in _SEARCH_INDEXES]
    if searched and chunks >= _LARGE:
        yield (
            "warning",
            f"{', '.join(searched)} never used",
            "Nothing to do before the first search; after it, run: analyze public.knowledge_chunks",
        )


def _embeddings(connection: Connection) -> _Findings:
    dimensions = migrations.stored_dimensions(connection)
    rows = connection.execute(_CHUNKS).fetchall()
    chunks = sum(count for _, count, _ in rows)
    embedded = sum(count for _, _, count in rows)
    models = [(model or "unnamed", count) for model, _, count in rows if count]
    if not chunks:
        yield "ok", f"{dimensions} dimensions, no active chunk yet", None
        return
    named = ", ".join(f"{model} ({count})" for model, count in models) or "no model"
    yield "ok", f"{dimensions} dimensions; embedded by {named}", None
    if len(models) > 1:
        yield (
            "warning",
            f"{len(models)} models: similarities between their embeddings mean nothing",
            "Embed everything with one model.",
        )
    if embedded < chunks:
        share = 100 * (chunks - embedded) / chunks
        yield (
            "warning",
            f"{chunks - embedded} of {chunks} chunks ({share:.1f} %) have no embedding",
            "They are found by text only. Ingest them again with an embedder.",
        )


def _statistics(connection: Connection) -> _Findings:
    analysed, rows, changed = connection.execute(_ANALYSED).fetchone() or (None, 0, 0)
    if not rows:
        yield "ok", "nothing to analyse yet", None
        return
    if analysed is None:
        yield "warning", "knowledge_chunks was never analysed", _ANALYSE
    elif changed > rows / 2:
        yield "warning", f"{changed} of {rows} rows changed since {analysed}", _ANALYSE
    else:
        yield "ok", f"knowledge_chunks was analysed at {analysed}", None
    counted = connection.execute(_STATISTICS).fetchone()
    if counted is None:
        yield "warning", "words were never counted, so all weigh the same", _ANALYSE
        return
    refreshed, documents = counted
    if abs(documents - rows) > rows / 2:
        yield "warning", f"words were counted over {documents} of {rows} rows", _ANALYSE
    else:
        yield "ok", f"words were counted over {documents} rows at {refreshed}", None
