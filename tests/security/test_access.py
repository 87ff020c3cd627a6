"""Who may do what: properties of the catalog, a golden list, and the roles themselves.

`UPDATE_GOLDEN=1 pytest tests/security/test_access.py` writes the golden file anew; review its diff.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

import psycopg
import pytest
from psycopg import sql

from conftest import Connect, Connection
from homes import in_its_module, module_of, present
from second_brain.database import migrations
from support.documents import upsert
from support.emptied import dsn as dsn

GOLDEN = Path(__file__).parent / "golden" / "signatures.txt"
ROLES = ("anon", "authenticated", "service_role")
ME, YOU = UUID(int=1), UUID(int=2)

SIGNATURES = """
select format(
         '%s(%s) returns %s, %s, security %s, callable by %s',
         function.proname,
         pg_get_function_arguments(function.oid),
         pg_get_function_result(function.oid),
         case function.provolatile
           when 'v' then 'volatile' when 's' then 'stable' else 'immutable'
         end,
         case when function.prosecdef then 'definer' else 'invoker' end,
         (
           select coalesce(string_agg(coalesce(grantee.rolname, 'public'), ', ' order by 1), 'none')
             from aclexplode(
                    coalesce(function.proacl, acldefault('f', function.proowner))
                  ) as granted
             left join pg_roles as grantee on grantee.oid = granted.grantee
            where granted.grantee <> function.proowner
         )
       )
  from pg_proc as function
 where function.pronamespace = 'public'::regnamespace
   and function.proowner = 'postgres'::regrole
 order by 1
"""

PRIVILEGES = """
select format(
         '%s: %s may %s',
         class.relname,
         coalesce(grantee.rolname, 'public'),
         string_agg(lower(granted.privilege_type), ', ' order by granted.privilege_type)
       )
  from pg_class as class
 cross join aclexplode(class.relacl) as granted
  left join pg_roles as grantee on grantee.oid = granted.grantee
 where class.relnamespace in ('public'::regnamespace, 'knowledge_internal'::regnamespace)
   and class.relkind in ('r', 'v')
   and class.relowner = 'postgres'::regrole
   and granted.grantee <> class.relowner
   and granted.privilege_type in ('SELECT', 'INSERT', 'UPDATE', 'DELETE')
 group by class.relname, grantee.rolname
 order by 1
"""


def column(connection: Connection, statement: str) -> list[Any]:
    return [row[0] for row in connection.execute(statement.encode()).fetchall()]


def test_signatures_and_grants_are_as_listed(
    database: Connection, modules: tuple[str, ...]
) -> None:
    # Without a path every type is written with its schema.
    database.execute("set search_path = ''")
    lines = [*column(database, SIGNATURES), "", *column(database, PRIVILEGES)]
    text = "\n".join(lines) + "\n"
    if os.environ.get("UPDATE_GOLDEN") and modules == migrations.modules():
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(text)
    expected = [
        line
        for line in GOLDEN.read_text().splitlines()
        if not line or module_of(re.split("[(:]", line)[0]) in {None, *modules}
    ]
    assert text.splitlines() == expected


def test_public_functions_have_a_comment_and_all_pin_a_search_path(database: Connection) -> None:
    rows = database.execute(
        "select function.oid::regprocedure::text,"
        "       function.pronamespace <> 'public'::regnamespace"
        "         or coalesce(obj_description(function.oid, 'pg_proc'), '') <> '',"
        "       'search_path=pg_catalog, pg_temp' = any (function.proconfig)"
        "  from pg_proc as function"
        " where function.proowner = 'postgres'::regrole"
        "   and function.pronamespace"
        "       in ('public'::regnamespace, 'knowledge_internal'::regnamespace)"
    ).fetchall()
    assert len(rows) > 10
    assert [row for row in rows if row[1:] != (True, True)] == []


def test_a_role_may_execute_only_the_internal_functions_of_its_policies_and_wrappers(
    database: Connection, modules: tuple[str, ...]
) -> None:
    rows = database.execute(
        "select function.proname, string_agg(granted.grantee::regrole::text, ', '"
        "         order by granted.grantee::regrole::text), function.prosecdef"
        "  from pg_proc as function"
        " cross join aclexplode("
        "         coalesce(function.proacl, acldefault('f', function.proowner))"
        "       ) as granted"
        " where function.pronamespace = 'knowledge_internal'::regnamespace"
        "   and granted.grantee <> function.proowner"
        " group by function.proname, function.prosecdef"
    ).fetchall()
    everybody = "anon, authenticated, service_role"
    wrapped = {inner: everybody if outer in NOBODYS else "authenticated" for outer, inner in INNER}
    policies = {"current_viewer": "authenticated", "current_viewer_groups": "authenticated"}
    expected = {
        name: roles
        for name, roles in {**wrapped, **policies}.items()
        if inner_present(name, modules)
    }
    assert {name: roles for name, roles, _ in rows} == expected
    assert {name for name, _, is_definer in rows if not is_definer} == {"current_viewer"}


def test_what_users_and_visitors_call_is_no_security_definer(database: Connection) -> None:
    """Supabase's linter asks for it (0028, 0029), of what a project grants to visitors, too."""
    definers = column(
        database,
        "select proname from pg_proc where prosecdef and pronamespace = 'public'::regnamespace"
        " and (has_function_privilege('anon', oid, 'execute')"
        "      or has_function_privilege('authenticated', oid, 'execute'))"
        " or prosecdef and proname = any (array["
        + ", ".join(f"'{name}'" for name in sorted(NOBODYS))
        + "])",
    )
    assert definers == []


def test_every_table_has_row_level_security_and_a_policy(database: Connection) -> None:
    """Supabase's linter asks for a policy (0008); one for the service alone shows no row."""
    rows = database.execute(
        "select oid::regclass::text, relrowsecurity, relforcerowsecurity,"
        "       relnamespace <> 'public'::regnamespace"
        "         or exists (select from pg_policy where polrelid = pg_class.oid)"
        "  from pg_class where relkind = 'r' and relowner = 'postgres'::regrole"
        " and relnamespace in ('public'::regnamespace, 'knowledge_internal'::regnamespace)"
    ).fetchall()
    assert {*TABLES, *LISTS} <= {row[0] for row in rows}
    # Not forced: the owner would lose sight of pg_stats.
    assert [row for row in rows if row[1:] != (True, False, True)] == []


def calls(connection: Connection) -> dict[str, str]:
    """Write a call of each public function, with null for what it needs."""
    return dict(
        connection.execute(
            "select function.proname, format('select public.%I(%s)', function.proname,"
            "   (select string_agg(format('null::%s', function.proargtypes[place]::regtype), ', ')"
            "      from generate_series(0, function.pronargs - function.pronargdefaults - 1)"
            "           as place))"
            "  from pg_proc as function"
            " where function.pronamespace = 'public'::regnamespace"
            "   and function.proowner = 'postgres'::regrole"
        ).fetchall()
    )


def test_no_function_is_open_to_anon_or_users(connect: Connect, modules: tuple[str, ...]) -> None:
    statements = calls(connect())
    assert len(statements) >= 10
    assert statements.keys() >= {*present([*USERS_OWN, *NOBODYS], modules)}
    for role in ("anon", "authenticated"):
        connection = connect(role, uid=ME)
        for name, statement in statements.items():
            if role == "authenticated" and name in USERS_OWN:
                continue
            with pytest.raises(psycopg.errors.InsufficientPrivilege, match=f"function {name}"):
                connection.execute(statement.encode())


def test_the_service_may_call_every_function(connect: Connect) -> None:
    connection = connect("service_role")
    for name, statement in calls(connect()).items():
        if name in {*USERS_OWN, *NOBODYS, VIEWER_GROUPS}:
            continue
        try:
            connection.execute(statement.encode())
        except psycopg.Error as error:
            # What it is called with is wrong; that it is called is not.
            assert error.sqlstate == "22023", (name, error)  # noqa: PT017


@pytest.mark.parametrize("role", ROLES)
def test_the_internal_schema_is_closed(connect: Connect, role: Any) -> None:
    for read in ("apart('a-b')", "searchable_chunks"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="knowledge_internal"):
            connect(role).execute(f"select * from knowledge_internal.{read}".encode())


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(
    "table",
    [
        in_its_module(f"knowledge_{name}")
        for name in (
            *("adoption_problems", "adoptions", "corpus_statistics"),
            *("embedding_claims", "lexeme_statistics", "words"),
        )
    ],
)
def test_only_functions_read_what_is_kept_for_them(connect: Connect, role: Any, table: str) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match=table):
        connect(role).execute(f"select from public.{table}".encode())


# Of the project: only the owner's functions call it.
VIEWER_GROUPS = "knowledge_viewer_groups"
# A project grants it to visitors.
NOBODYS = {
    "search_public_knowledge_chunks",
    "explain_public_empty_knowledge_search",
    # let_search grants it to users and visitors.
    "search_visible_knowledge_chunks",
}
# What a function for users or visitors calls with the owner's rights.
INNER = (
    ("count_my_pending_knowledge_embeddings", "pending_for_user"),
    ("delete_my_knowledge_document", "delete_for_user"),
    ("explain_my_empty_knowledge_search", "empty_reason_for_user"),
    ("explain_public_empty_knowledge_search", "empty_reason_for_visitor"),
    ("facet_my_knowledge_chunks", "facets_for_user"),
    ("list_my_knowledge_documents", "documents_for_user"),
    ("read_my_knowledge_document", "document_for_user"),
    ("search_my_knowledge_chunks", "search_for_user"),
    ("search_public_knowledge_chunks", "search_for_visitor"),
    ("search_visible_knowledge_chunks", "search_visible"),
)
USERS_OWN = {outer for outer, _ in INNER} - NOBODYS


def inner_present(name: str, modules: tuple[str, ...]) -> bool:
    outer = [one for one, inner in INNER if inner == name]
    return present(outer, modules) == outer


@pytest.mark.parametrize("role", ["anon", "authenticated"])
def test_usage_of_the_internal_schema_opens_no_function_that_was_not_granted(
    connect: Connect, database: Connection, role: Literal["anon", "authenticated"]
) -> None:
    outer = {inner: outer for outer, inner in INNER}
    granted = database.execute(
        "select function.proname, function.oid::regproc::text || '(' || ("
        "         select coalesce(string_agg('null::' || type::regtype, ', '), '')"
        "           from unnest(function.proargtypes) as type) || ')'"
        "  from pg_proc as function"
        " where function.pronamespace = 'knowledge_internal'::regnamespace"
        "   and has_function_privilege(%s, function.oid, 'execute')",
        [role],
    ).fetchall()
    caller = connect(role)
    # As `adopt --calls` grants it.
    database.execute(f"grant usage on schema knowledge_internal to {role}".encode())
    try:
        # The others are for the policies of the corpus, and run as their caller.
        for name, call in ((one, call) for one, call in granted if one in outer):
            may = "select has_function_privilege(%s, %s::regproc, 'execute')"
            if database.execute(may, [role, f"public.{outer[name]}"]).fetchone() != (True,):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    caller.execute(f"select * from {call}".encode())
    finally:
        database.execute(f"revoke usage on schema knowledge_internal from {role}".encode())


TABLES = ("knowledge_sources", "knowledge_documents", "knowledge_chunks")
LISTS = ("knowledge_types", "knowledge_source_origins")


def fill(connection: Connection) -> None:
    for key, owner, visibility in (
        ("mine", ME, "private"),
        ("my public", ME, "public"),
        ("yours", YOU, "private"),
        ("your public", YOU, "public"),
        ("nobody's", None, "private"),
        ("everybody's", None, "public"),
    ):
        upsert(connection, key, key, owner_id=owner, visibility=visibility)
    connection.execute("insert into public.knowledge_sources (name) values ('wiki')")


def seen(connection: Connection) -> tuple[list[str], list[str]]:
    return (
        column(connection, "select external_key from public.knowledge_documents order by 1"),
        column(connection, "select content from public.knowledge_chunks order by 1"),
    )


@pytest.fixture
def granted_reads(database: Connection) -> Iterator[None]:
    """Reads of the tables, granted as docs/permissions.md says."""
    tables = "public.knowledge_documents, public.knowledge_chunks"
    database.execute(f"grant select on table {tables} to authenticated".encode())
    yield
    database.execute(f"revoke select on table {tables} from authenticated".encode())


@pytest.mark.usefixtures("granted_reads")
def test_where_reads_are_granted_a_user_reads_their_own_and_public_rows(connect: Connect) -> None:
    fill(connect("service_role"))
    public = ["everybody's", "my public", "your public"]
    mine = sorted([*public, "mine"])
    assert seen(connect("authenticated", uid=ME)) == (mine, mine)
    yours = sorted([*public, "yours"])
    assert seen(connect("authenticated", uid=YOU)) == (yours, yours)
    assert seen(connect("authenticated")) == (public, public)


@pytest.mark.usefixtures("granted_reads")
def test_a_row_that_turns_private_is_gone_for_others_at_once(connect: Connect) -> None:
    service_role, user = connect("service_role"), connect("authenticated", uid=ME)
    fill(service_role)
    service_role.execute("update public.knowledge_documents set visibility = 'private'")
    assert seen(user) == (["mine", "my public"], ["mine", "my public"])
    service_role.execute("update public.knowledge_documents set owner_id = null")
    assert seen(user) == ([], [])


@pytest.mark.parametrize("role", ["anon", "authenticated"])
@pytest.mark.parametrize("table", [*TABLES, *LISTS])
def test_only_the_service_reads_and_writes_tables(connect: Connect, role: Any, table: str) -> None:
    fill(connect("service_role"))
    connection = connect(role, uid=ME)
    forbidden = ["insert into {} default values", "update {} set created_at = now()"]
    forbidden.append("delete from {}")
    if role == "anon" or table in ("knowledge_sources", *LISTS):
        forbidden.append("select from {}")
    for statement in forbidden:
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match=table):
            connection.execute(sql.SQL(statement).format(sql.Identifier("public", table)))
