"""What the planner tells a signed-in user of rows that they may not see: nothing.

An estimate (explain, PostgREST's count=planned) is made before row level security filters rows, so
whoever may plan a query over a table learns counts, words and prefixes of everybody's rows.
"""

import json
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import quote
from uuid import UUID

import jwt
import psycopg
import pytest
from psycopg import sql

from conftest import Connect, Connection, Server
from homes import present
from postgrest_server import JWT_SECRET, PostgREST, served
from support.documents import upsert

ME, YOU = UUID(int=1), UUID(int=2)
RELATIONS = """
select class.relnamespace::regnamespace::text, class.relname, attribute.attname
  from pg_catalog.pg_class as class
  join pg_catalog.pg_attribute as attribute
    on attribute.attrelid = class.oid and attribute.attnum > 0 and not attribute.attisdropped
 where class.relnamespace in ('public'::regnamespace, 'knowledge_internal'::regnamespace)
   and class.relkind in ('r', 'v', 'm', 'p')
 order by 1, 2, 3
"""
FUNCTIONS = {
    "count_my_pending_knowledge_embeddings": "",
    "facet_my_knowledge_chunks": "",
    "search_my_knowledge_chunks": "query_text => 'secretword'",
    "explain_my_empty_knowledge_search": '\'{"query_text": "secretword"}\'',
    "list_my_knowledge_documents": "",
    "read_my_knowledge_document": f"document => '{UUID(int=9)}'",
    "delete_my_knowledge_document": f"document => '{UUID(int=9)}'",
}


def fill(owner: Connection, rows: int) -> None:
    """Store private documents of another user, and let the planner know of them."""
    given = {"title": "Merger", "collection": "board", "owner_id": YOU}
    for number in range(rows):
        upsert(owner, f"yours/{number}", f"secretword {number}", **given)
    owner.execute("analyze public.knowledge_documents, public.knowledge_chunks")


def test_no_estimate_over_any_column_is_told(connect: Connect) -> None:
    owner = connect()
    fill(owner, 20)
    columns = owner.execute(RELATIONS).fetchall()
    assert ("public", "knowledge_chunks", "content_tsv") in columns
    me = connect("authenticated", uid=ME)
    for schema, relation, name in columns:
        for condition in ("is not null", "::text like 'M%'"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                me.execute(
                    sql.SQL("explain select from {} where {} " + condition).format(
                        sql.Identifier(schema, relation), sql.Identifier(name)
                    )
                )


def test_the_statistics_of_the_columns_are_not_shown(connect: Connect) -> None:
    fill(connect(), 20)
    statistics = "select from pg_catalog.pg_stats where tablename like 'knowledge_%'"
    assert connect("authenticated", uid=ME).execute(statistics).fetchall() == []


def plans(connection: Connection, functions: list[str]) -> list[str]:
    return [
        "\n".join(
            line
            for (line,) in connection.execute(
                f"explain (costs on) select * from public.{name}({FUNCTIONS[name]})".encode()
            )
        )
        for name in functions
    ]


def test_the_plan_of_a_users_function_does_not_depend_on_what_others_store(
    connect: Connect, modules: tuple[str, ...]
) -> None:
    functions = present(FUNCTIONS, modules)
    owner, me = connect(), connect("authenticated", uid=ME)
    callable_by_me = owner.execute(
        "select proname from pg_catalog.pg_proc where pronamespace = 'public'::regnamespace"
        " and proowner = 'postgres'::regrole"
        " and has_function_privilege('authenticated', oid, 'execute') order by 1"
    ).fetchall()
    assert [name for (name,) in callable_by_me] == sorted(functions)
    before = plans(me, functions)
    fill(owner, 50)
    assert plans(me, functions) == before


@pytest.fixture
def postgrest(server: Server, dsn: str, tmp_path: Path) -> Iterator[PostgREST]:
    with served(server.admin_dsn(), dsn, tmp_path) as running:
        yield running


def planned(port: int, method: str, path: str, body: str | None = None) -> tuple[int, str | None]:
    """Ask for a planned count as a signed-in user; return the status and what it tells."""
    claims = {"role": "authenticated", "sub": str(ME), "exp": 4_000_000_000}
    headers = {
        "Authorization": f"Bearer {jwt.encode(claims, JWT_SECRET, algorithm='HS256')}",
        "Content-Type": "application/json",
        "Prefer": "count=planned",
    }
    with closing(HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        answer.read()
        return answer.status, answer.headers.get("Content-Range")


@pytest.mark.module("own_documents")
def test_planned_counts_over_rest_tell_nothing(postgrest: PostgREST, database: Connection) -> None:
    calls = [
        ("POST", f"/rpc/{name}", json.dumps(arguments))
        for name, arguments in {
            "search_my_knowledge_chunks": {"query_text": "secretword"},
            "list_my_knowledge_documents": {},
            "read_my_knowledge_document": {"document": str(UUID(int=9))},
        }.items()
    ]
    before = [planned(postgrest.port, *call) for call in calls]
    assert {status for status, _ in before} <= {200, 206}
    fill(database, 50)
    assert [planned(postgrest.port, *call) for call in calls] == before
    for _, relation, name in database.execute(RELATIONS).fetchall():
        for condition in ("not.is.null", f"like.{quote('M*')}", f"eq.{YOU}"):
            for method in ("GET", "HEAD"):
                path = f"/{relation}?select={name}&{name}={condition}"
                status, reported = planned(postgrest.port, method, path)
                # 400: the type of the column does not take the value.
                assert status in (400, 401, 403, 404), (method, path, status)
                assert reported in (None, "*/*"), (method, path, reported)
