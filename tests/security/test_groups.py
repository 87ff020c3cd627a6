"""Documents of groups: who reads them, and which function of the project says who is a member."""

import json
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest

from conftest import Connect, Connection, Server
from corpora import ask_groups_of_token, sign_in
from homes import in_its_module
from second_brain.database import doctor, migrations
from support import documents
from support.databases import admin_dsn
from support.emptied import dsn as dsn

pytestmark = pytest.mark.large

ANA, BEN = UUID(int=1), UUID(int=2)
DOCUMENTS: dict[str, dict[str, Any]] = {
    "ana's": {"owner_id": str(ANA)},
    "ana's for editors": {"owner_id": str(ANA), "allowed_groups": ["editors"]},
    "of staff": {"allowed_groups": ["staff", "board"]},
    "of nobody": {},
    "public": {"visibility": "public", "allowed_groups": ["board"]},
}


@pytest.fixture
def owner(connect: Connect, service: Connection) -> Iterator[Connection]:
    """The owner's connection; the groups of a signed-in user are those of the token."""
    connection = connect()
    ask_groups_of_token(connection)
    yield connection
    answer_with(connection, "'{}'::text[]")


def answer_with(owner: Connection, result: str) -> None:
    owner.execute(
        "create or replace function public.knowledge_viewer_groups() returns text[]"
        f" language sql stable set search_path = pg_catalog, pg_temp return {result}".encode()
    )


def upsert(connection: Connection, key: str, **fields: Any) -> None:
    documents.upsert(connection, key, documents.embedded(f"word of {key}"), title=key, **fields)


@pytest.fixture
def service(connect: Connect) -> Connection:
    """The service's connection, which has stored DOCUMENTS."""
    connection = connect("service_role")
    for key, fields in DOCUMENTS.items():
        upsert(connection, key, **fields)
    return connection


def titles(connection: Connection, function: str = "hybrid_search", **arguments: Any) -> list[str]:
    given = "".join(f", {name} => %({name})s" for name in arguments)
    statement = f"select title from public.{function}_knowledge_chunks(query_text => 'word'{given})"
    return sorted(title for (title,) in connection.execute(statement.encode(), arguments))


def signed_in(connect: Connect, user: UUID, *groups: str) -> Connection:
    connection = connect("authenticated", uid=user)
    sign_in(connection, user, groups)
    return connection


def test_members_of_a_group_find_its_documents(service: Connection) -> None:
    viewers: list[tuple[dict[str, Any], list[str]]] = [
        ({}, sorted(DOCUMENTS)),
        ({"viewer_id": ANA}, ["ana's", "ana's for editors", "public"]),
        ({"viewer_id": BEN}, ["public"]),
        ({"viewer_id": BEN, "viewer_groups": ["editors"]}, ["ana's for editors", "public"]),
        ({"viewer_groups": ["editors", "staff"]}, ["ana's for editors", "of staff", "public"]),
        ({"viewer_groups": ["Editors"]}, ["public"]),
        ({"viewer_groups": []}, ["public"]),
        ({"viewer_groups": ["board"], "public_only": True}, ["public"]),
    ]
    assert [(viewer, titles(service, **viewer)) for viewer, _ in viewers] == viewers


@pytest.mark.usefixtures("owner")
def test_a_user_cannot_name_groups(connect: Connect) -> None:
    ben = signed_in(connect, BEN)
    with pytest.raises(psycopg.errors.UndefinedFunction):
        titles(ben, "search_my", viewer_groups=["editors"])
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="knowledge_viewer_groups"):
        ben.execute("select public.knowledge_viewer_groups()")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        ben.execute("create function public.knowledge_viewer_groups() returns text[] return '{}'")


@pytest.mark.module("own_documents")
def test_members_read_and_list_but_only_owners_delete(connect: Connect, owner: Connection) -> None:
    rows = owner.execute("select external_key, id from public.knowledge_documents")
    ids: dict[str, UUID] = dict(rows.fetchall())
    ben, ana = (signed_in(connect, user, "editors") for user in (BEN, ANA))

    def listed(connection: Connection, *options: str) -> list[str]:
        given = ", ".join(f"include_{name} => true" for name in options)
        statement = f"select external_key from public.list_my_knowledge_documents({given})"
        return [key for (key,) in connection.execute(statement.encode())]

    def done(connection: Connection, verb: str, key: str = "ana's for editors") -> Any:
        statement = f"select public.{verb}_my_knowledge_document(%s)"
        ((answer,),) = connection.execute(statement.encode(), [ids[key]]).fetchall()
        return answer

    assert listed(ben) == []
    assert listed(ben, "groups") == ["ana's for editors"]
    assert listed(ben, "groups", "public") == ["ana's for editors", "public"]
    found = done(ben, "read")
    assert (found["is_own"], found["allowed_groups"], found["chunk_count"]) == (False, None, 1)
    assert done(ben, "read", "of staff") is None
    assert done(ben, "delete") is False
    assert listed(ana, "groups").count("ana's for editors") == 1
    assert done(ana, "read")["allowed_groups"] == ["editors"]
    assert done(ana, "delete") is True


@pytest.mark.module("visitors")
@pytest.mark.parametrize("groups", [[], ["board", "editors", "staff"]])
def test_a_visitor_finds_no_row_of_a_group(
    connect: Connect, owner: Connection, groups: list[str]
) -> None:
    owner.execute("grant execute on function public.search_public_knowledge_chunks to anon")
    visitor = connect("anon")
    claims = json.dumps({"role": "anon", "app_metadata": {"groups": groups}})
    visitor.execute("select set_config('request.jwt.claims', %s, false)", [claims])
    assert titles(visitor, "search_public") == ["public"]
    owner.execute("revoke execute on function public.search_public_knowledge_chunks from anon")


def test_a_change_of_the_groups_holds_for_the_chunks_at_once(service: Connection) -> None:
    upsert(service, "of staff", allowed_groups=["staff", "guests", "guests"])
    stored = service.execute(
        "select allowed_groups from public.knowledge_chunks where content = 'word of of staff'"
    ).fetchall()
    assert stored == [(["guests", "staff"],)]
    assert titles(service, viewer_groups=["board"]) == ["public"]
    assert titles(service, viewer_groups=["guests"]) == ["of staff", "public"]
    # A field that is not given stays; given as null or as an empty list, it is removed.
    upsert(service, "of staff")
    assert titles(service, viewer_groups=["guests"]) == ["of staff", "public"]
    for nothing in ("null", "[]"):
        upsert(service, "of staff", allowed_groups=["staff"])
        upsert(service, "of staff", allowed_groups=json.loads(nothing))
        assert titles(service, viewer_groups=["staff"]) == ["public"]


def test_a_restored_chunk_has_the_groups_of_its_document(service: Connection) -> None:
    service.execute("update public.knowledge_chunks set status = 'archived'")
    upsert(service, "of nobody", allowed_groups=["guests"])
    service.execute("update public.knowledge_documents set allowed_groups = '{guests}'")
    service.execute("update public.knowledge_chunks set status = 'active'")
    assert titles(service, viewer_groups=["guests"]) == sorted([*DOCUMENTS, "of nobody"])


def test_a_document_with_the_same_groups_is_not_written_again(service: Connection) -> None:
    updated = "select updated_at, xmin::text from public.knowledge_documents order by id"
    before = service.execute(updated).fetchall()
    upsert(service, "of staff", **DOCUMENTS["of staff"])
    upsert(service, "of staff", allowed_groups=["board", "staff", "board"])
    assert service.execute(updated).fetchall() == before


def test_wrong_groups_of_a_document_are_refused_by_name(service: Connection) -> None:
    no_texts, too_many = "must be an array of texts", "must be at most 100 groups"
    for groups, message in (
        (["staff", None], no_texts),
        ([1], no_texts),
        ("staff", no_texts),
        ([["staff"]], no_texts),
        ([""], too_many),
        (["x" * 201], too_many),
        ([f"g{number}" for number in range(101)], too_many),
    ):
        with pytest.raises(psycopg.Error, match=rf"document\.allowed_groups {message}") as refused:
            upsert(service, "wrong", allowed_groups=groups)
        assert refused.value.sqlstate == "22023"
    for table in ("knowledge_documents", "knowledge_chunks"):
        for wrong in ([None], [""], [["staff"]]):
            with pytest.raises(psycopg.Error, match="allowed_groups must be at most 100"):
                service.execute(f"update public.{table} set allowed_groups = %s".encode(), [wrong])


@pytest.mark.parametrize(
    "result", ["array[null]::text[]", "array_fill('g'::text, '{1001}')"], ids=["null", "too many"]
)
def test_wrong_groups_of_the_projects_function_are_refused(
    connect: Connect, owner: Connection, result: str
) -> None:
    answer_with(owner, result)
    with pytest.raises(psycopg.Error, match=r"the result of knowledge_viewer_groups\(\) must"):
        titles(signed_in(connect, BEN, "editors"), "search_my")


def test_null_of_the_projects_function_is_no_group(connect: Connect, owner: Connection) -> None:
    answer_with(owner, "null::text[]")
    assert titles(signed_in(connect, BEN, "editors"), "search_my") == ["public"]


@pytest.mark.parametrize(
    ("function", "argument"),
    [
        ("search_my_knowledge_chunks", "query_text => 'word'"),
        in_its_module("list_my_knowledge_documents", ""),
    ],
)
def test_a_failing_function_of_the_project_shows_nothing(
    connect: Connect, owner: Connection, function: str, argument: str
) -> None:
    ben = signed_in(connect, BEN, "editors")
    owner.execute("alter function public.knowledge_viewer_groups() rename to gone")
    try:
        # Not of the function that is called.
        with pytest.raises(psycopg.errors.UndefinedFunction, match="knowledge_viewer_groups"):
            ben.execute(f"select * from public.{function}({argument})".encode())
    finally:
        owner.execute("alter function public.gone() rename to knowledge_viewer_groups")


def test_a_policy_has_no_sub_select_which_citus_refuses(owner: Connection) -> None:
    policies = owner.execute(
        "select polname, pg_get_expr(polqual, polrelid) from pg_policy"
        " where polrelid::regclass::text like '%knowledge%'"
    ).fetchall()
    assert len(policies) >= 2
    assert [name for name, condition in policies if "select" in condition.lower()] == []


def fill(owner: Connection, place: Callable[[int], int], groups: Callable[[int], Any]) -> None:
    """Store 3,000 chunks with embeddings at `place` and these groups, and count them."""
    with owner.transaction(), owner.cursor() as cursor:
        cursor.executemany(
            "insert into public.knowledge_chunks (content, embedding, allowed_groups)"
            " values (%s, %s, %s)",
            [
                (f"word {number}", str([place(number), number / 3000, 0]), groups(number))
                for number in range(3000)
            ],
        )
    owner.execute(
        "update public.knowledge_chunks set allowed_groups = '{one}' where content = 'word 1500'"
    )
    owner.execute("analyze public.knowledge_chunks")
    owner.execute("select public.refresh_knowledge_statistics()")


def test_a_narrow_viewer_finds_all_rows(connect: Connect) -> None:
    def groups(number: int) -> list[str] | None:
        return ["few"] if number % 500 == 0 else ["many"] if number % 3 else None

    # The rows of the small groups are the farthest ones.
    fill(connect(), lambda number: 1 if number % 500 else -1, groups)
    service = connect("service_role")

    def found(**arguments: Any) -> int:
        given = ", ".join(f"{name} => %({name})s" for name in arguments)
        statement = f"select public.hybrid_search_knowledge_chunks({given})"
        return len(service.execute(statement.encode(), arguments).fetchall())

    near, words = {"query_embedding": "[1,0,0]", "match_threshold": -1}, {"query_text": "word"}
    for leg in (near, words):
        assert found(**leg, viewer_groups=["one"]) == 1
        assert found(**leg, viewer_groups=["few"]) == 5
        assert found(**leg, viewer_groups=["few", "one"], viewer_id=ANA) == 6
        wanted = {"match_count": 300, "pool_size": 300}
        assert found(**leg, **wanted, viewer_groups=["many"]) == 300
        assert found(**leg, **wanted, viewer_groups=["none"]) == 0


@pytest.mark.slow
def test_a_viewer_of_most_rows_finds_no_hidden_one(connect: Connect) -> None:
    """So many rows pass that the vector index is searched and not all of them are compared."""
    # The hidden rows are the nearest ones.
    fill(connect(), lambda _: 1, lambda number: ["few" if number < 100 else "many"])
    found = connect().execute(
        "select content from public.hybrid_search_knowledge_chunks("
        " query_embedding => '[1,0,0]', match_count => 20, viewer_groups => '{many}')"
    )
    numbers = [int(content.removeprefix("word ")) for (content,) in found.fetchall()]
    assert len(numbers) == 20
    assert min(numbers) >= 100


FUNCTION = "public.knowledge_viewer_groups()"
OF_TEXTS = f"create function {FUNCTION} returns text[] language sql as"


def test_migrations_keep_a_function_that_is_there(plain_dsn: str) -> None:
    with psycopg.connect(plain_dsn, autocommit=True) as connection:
        connection.execute(
            f"{OF_TEXTS} $$ select '{{mine}}'::text[] $$ stable set search_path = ''".encode()
        )
        migrations.apply(plain_dsn, dimensions=3, modules=migrations.modules())
        found = connection.execute("select public.knowledge_viewer_groups()").fetchone()
        assert found == (["mine"],)
        assert {one.status for one in doctor.examine(connection)} == {"ok"}


@pytest.mark.parametrize(
    "returns",
    ["text language sql return 'a text'", "setof text[] language sql as $$ select '{}'::text[] $$"],
)
def test_migrations_refuse_a_function_that_is_another(plain_dsn: str, returns: str) -> None:
    with psycopg.connect(plain_dsn, autocommit=True) as connection:
        connection.execute(f"create function {FUNCTION} returns {returns}".encode())
    refused(plain_dsn)


def test_migrations_refuse_a_function_of_somebody_else(plain_dsn: str, server: Server) -> None:
    with psycopg.connect(admin_dsn(server, plain_dsn), autocommit=True) as admin:
        admin.execute("grant create on schema public to authenticated")
        admin.execute("set role authenticated")
        admin.execute(f"{OF_TEXTS} $$ select '{{board}}'::text[] $$".encode())
    refused(plain_dsn)


def refused(dsn: str) -> None:
    """Check that neither `second-brain migrate` nor another runner of the files goes on."""
    with pytest.raises(migrations.ObstacleError, match=r"public\.knowledge_viewer_groups\(\)"):
        migrations.apply(dsn, dimensions=3, modules=migrations.modules())
    (text,) = (one.sql for one in migrations.find() if one.name == "documents")
    is_refused = pytest.raises(psycopg.Error, match="is of another role, or does not return")
    with psycopg.connect(dsn, autocommit=True) as connection, is_refused:
        connection.execute(text.encode())
