"""A database whose revokes are lost: Supabase's default grants on a restored dump, and worse."""

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg import sql
from test_access import NOBODYS, USERS_OWN, VIEWER_GROUPS, calls, column, fill

from conftest import Connect, Connection
from homes import present

ME = UUID(int=1)
# They take part in no search: a text and its hash, or rows that row level security hides.
HARMLESS = {
    *("delete_knowledge_judgments", "knowledge_content_hash", "list_knowledge_judgments"),
    *("reset_knowledge_settings", "set_knowledge_fields"),
}
SEARCH = "select count(*) from public.hybrid_search_knowledge_chunks(query_text => 'mine')"


@pytest.fixture
def opened(connect: Connect) -> Connection:
    """A filled database in which the API roles may use and execute all there is."""
    fill(connect("service_role"))
    owner = connect()
    for schema in ("public", "knowledge_internal"):
        for grant in (
            "grant usage on schema {} to anon, authenticated",
            "grant all on all tables in schema {} to anon, authenticated",
            "grant execute on all functions in schema {} to public, anon, authenticated",
        ):
            owner.execute(sql.SQL(grant).format(sql.Identifier(schema)))
    return owner


def refused(connection: Connection, statement: str) -> str:
    with pytest.raises(psycopg.errors.InsufficientPrivilege) as error:
        connection.execute(statement.encode())
    return error.value.diag.message_primary or ""


@pytest.mark.usefixtures("opened")
@pytest.mark.parametrize("role", ["anon", "authenticated"])
def test_a_function_for_backends_refuses_users_and_visitors(
    connect: Connect, role: Any, modules: tuple[str, ...]
) -> None:
    connection = connect(role, uid=ME)
    names = calls(connect()).items()
    for name, statement in names:
        if name not in {*USERS_OWN, *NOBODYS, *HARMLESS, VIEWER_GROUPS}:
            assert refused(connection, statement).endswith("but everybody may execute it"), name
    for name in present(NOBODYS, modules):
        argument = "query_text => 'mine'" if "search_public" in name else "'{}'"
        refused(connection, f"select * from public.{name}({argument})")


@pytest.mark.usefixtures("opened")
def test_who_is_not_signed_in_reads_no_row(connect: Connect, modules: tuple[str, ...]) -> None:
    visitor = connect("anon")
    statements = calls(connect())
    for name in (*present(USERS_OWN, modules), "hybrid_search_knowledge_chunks"):
        refused(visitor, statements[name])
    for table in column(
        connect(),
        "select oid::regclass::text from pg_class where relkind in ('r', 'v')"
        " and relnamespace in ('public'::regnamespace, 'knowledge_internal'::regnamespace)"
        # Catalogues, which everybody may read.
        " and relname <> 'chunk_table'",
    ):
        assert visitor.execute(f"select * from {table}".encode()).fetchall() == [], table


@pytest.mark.usefixtures("opened")
def test_internal_functions_read_with_the_rights_of_the_caller(connect: Connect) -> None:
    visitor = connect("anon")
    ids = column(connect(), "select id from public.knowledge_chunks")
    rows = visitor.execute("select * from knowledge_internal.page_rows(%s)", [ids]).fetchall()
    assert rows == []
    refused(
        visitor,
        "select * from knowledge_internal.search_for_user("
        "jsonb_populate_record(null::knowledge_internal.search_arguments,"
        ' \'{"query_text": "mine", "viewer_id": "00000000-0000-0000-0000-000000000001"}\'))',
    )


@pytest.mark.usefixtures("opened")
def test_the_service_and_the_owner_go_on(connect: Connect) -> None:
    for connection in (connect(), connect("service_role")):
        assert column(connection, SEARCH) == [1]


@pytest.fixture
def backend(connect: Connect, dsn: str) -> Iterator[Connection]:
    """A project's own role, to which it granted the search."""
    owner = connect()
    owner.execute("create role knowledge_backend")
    owner.execute("grant knowledge_backend to postgres")
    owner.execute(
        "grant execute on function public.hybrid_search_knowledge_chunks to knowledge_backend"
    )
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("set role knowledge_backend")
        yield connection
    owner.execute("drop owned by knowledge_backend")
    owner.execute("drop role knowledge_backend")


def test_a_role_of_the_project_searches_if_granted(connect: Connect, backend: Connection) -> None:
    fill(connect("service_role"))
    assert column(backend, SEARCH) == [1]


def test_a_users_call_of_a_projects_own_function_reaches_the_search(connect: Connect) -> None:
    """Its definer is the owner, and the user's role may not execute the search itself."""
    fill(connect("service_role"))
    connect().execute(
        "create function public.my_search() returns bigint language sql security definer as $$"
        " select count(*) from public.hybrid_search_knowledge_chunks("
        " query_text => 'mine', viewer_id => auth.uid()) $$"
    )
    assert column(connect("authenticated", uid=ME), "select public.my_search()") == [1]
