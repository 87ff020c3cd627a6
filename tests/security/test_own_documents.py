"""What a signed-in user does with documents, and a backend for a user whom it names."""

from functools import partial
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from conftest import Connect, Connection
from second_brain.errors import InvalidInputError
from second_brain.services.postgres import PostgresProvider
from support.documents import upsert
from support.emptied import dsn as dsn

pytestmark = pytest.mark.module("own_documents")

ME, YOU = UUID(int=1), UUID(int=2)
CALLS = {
    "list_my_knowledge_documents": "",
    "read_my_knowledge_document": "gen_random_uuid()",
    "delete_my_knowledge_document": "gen_random_uuid()",
    "search_my_knowledge_chunks": "query_text => 'a'",
}


def store(
    service: Connection, key: str, owner: UUID | None, chunks: int = 1, visibility: str = "private"
) -> UUID:
    contents = [f"{key} {number}" for number in range(chunks)]
    access = {"owner_id": owner, "visibility": visibility}
    return upsert(service, key, *contents, title=f"Title of {key}", **access)


@pytest.fixture
def documents(connect: Connect) -> dict[str, UUID]:
    """Five documents: two of mine, two of another user, one of nobody."""
    service = connect("service_role")
    return {
        "mine": store(service, "mine", ME, 3),
        "my public": store(service, "my public", ME, visibility="public"),
        "yours": store(service, "yours", YOU),
        "your public": store(service, "your public", YOU, visibility="public"),
        "nobody's": store(service, "nobody's", None),
    }


def listed(connection: Connection, arguments: str = "") -> list[Any]:
    statement = "select external_key, is_own, chunk_count from"
    statement += f" public.list_my_knowledge_documents({arguments})"
    return connection.execute(statement.encode()).fetchall()


def read(connection: Connection, document: UUID | None, **arguments: int) -> Any:
    named = "".join(f", {name} => {value}" for name, value in arguments.items())
    statement = f"select public.read_my_knowledge_document(%s{named})"
    ((found,),) = connection.execute(statement.encode(), [document]).fetchall()
    return found


def delete(connection: Connection, document: UUID | None) -> bool:
    statement = "select public.delete_my_knowledge_document(%s)"
    ((done,),) = connection.execute(statement, [document]).fetchall()
    return bool(done)


@pytest.mark.usefixtures("documents")
def test_a_user_lists_what_they_own_and_public_documents_on_request(connect: Connect) -> None:
    me, own = connect("authenticated", uid=ME), [("mine", True, 3), ("my public", True, 1)]
    assert listed(me) == own
    assert listed(me, "include_public => true") == [*own, ("your public", False, 1)]
    assert listed(connect("authenticated", uid=uuid4())) == []


@pytest.mark.module("words")
def test_a_setting_of_the_user_forgets_no_word_of_others(connect: Connect) -> None:
    service, me = connect("service_role"), connect("authenticated", uid=ME)
    mine, _ = (store(service, f"leaking {owner}", owner) for owner in (ME, YOU))
    with me.transaction():
        me.execute("set local knowledge_internal.readings = '[]'")
        assert delete(me, mine)
    words = connect().execute("select word from public.knowledge_words where word = 'leaking'")
    assert words.fetchall() == [("leaking",)]


def test_pages_of_the_list_fit_together_while_documents_are_deleted(connect: Connect) -> None:
    service, me = connect("service_role"), connect("authenticated", uid=ME)
    stored = {f"{number:02}": store(service, f"{number:02}", ME) for number in range(7)}
    seen: list[str] = []
    while page := listed(me, f"page_size => 3, after_key => '{seen[-1] if seen else ''}'"):
        seen += [row[0] for row in page]
        assert delete(me, stored[seen[-1]])
    assert seen == sorted(stored)


def test_a_document_is_read_in_order(connect: Connect, documents: dict[str, UUID]) -> None:
    me = connect("authenticated", uid=ME)
    found = read(me, documents["mine"])
    assert (found["title"], found["is_own"], found["chunk_count"]) == ("Title of mine", True, 3)
    assert [chunk["content"] for chunk in found["chunks"]] == ["mine 0", "mine 1", "mine 2"]
    page = read(me, documents["mine"], chunk_count=1, chunk_offset=2)
    assert [chunk["content"] for chunk in page["chunks"]] == ["mine 2"]
    assert page["chunk_count"] == 3
    assert read(me, documents["your public"])["is_own"] is False
    assert "owner_id" not in read(me, documents["your public"])


def test_a_document_of_somebody_else_reads_as_one_that_does_not_exist(
    connect: Connect, documents: dict[str, UUID]
) -> None:
    me = connect("authenticated", uid=ME)
    for document in (documents["yours"], documents["nobody's"], uuid4()):
        assert read(me, document) is None
        assert delete(me, document) is False


def test_a_user_deletes_only_what_they_own(connect: Connect, documents: dict[str, UUID]) -> None:
    me, service = connect("authenticated", uid=ME), connect("service_role")
    assert delete(me, documents["your public"]) is False
    assert delete(me, documents["mine"]) is True
    assert delete(me, documents["mine"]) is False
    left = service.execute("select external_key from public.knowledge_documents order by 1")
    assert [key for (key,) in left] == ["my public", "nobody's", "your public", "yours"]
    chunks = service.execute("select count(*) from public.knowledge_chunks").fetchone()
    assert chunks == (4,)


@pytest.mark.parametrize(("name", "argument"), CALLS.items())
def test_who_is_no_user_is_refused_with_reason(connect: Connect, name: str, argument: str) -> None:
    for uid, said, hint in (
        (None, ", there is none", "Send the user's own access token."),
        ("auth0|5f7c8ec7c33c6c004bbafe82", " .* claim sub", "viewer_id"),
    ):
        with pytest.raises(psycopg.Error, match=f"{name} needs a signed-in user{said}") as no:
            connect("authenticated", uid=uid).execute(
                f"select * from public.{name}({argument})".encode()
            )
        assert no.value.sqlstate == "42501"
        assert hint in (no.value.diag.message_hint or "")


@pytest.fixture
def service(connect: Connect) -> Connection:
    return connect("service_role")


@pytest.fixture
def three(service: Connection) -> dict[str, UUID]:
    """A public document, mine and another user's, with two chunks each; mine is a memory."""
    access: dict[str, dict[str, Any]] = {
        "public": {"visibility": "public"},
        "mine": {"owner_id": ME, "collection": "memory"},
        "yours": {"owner_id": YOU},
    }
    return {key: upsert(service, key, f"{key} 0", f"{key} 1", **access[key]) for key in access}


def test_a_document_is_read_in_the_scope(service: Connection, three: dict[str, UUID]) -> None:
    scopes: list[tuple[dict[str, Any], set[str]]] = [
        ({}, {"public", "mine", "yours"}),
        ({"viewer_id": ME}, {"public", "mine"}),
        ({"viewer_id": str(YOU)}, {"public", "yours"}),
        ({"viewer_id": ME, "public_only": True}, {"public"}),
        ({"collections": ["memory"]}, {"mine"}),
        ({"collections": ["knowledge"], "viewer_id": ME}, {"public"}),
    ]
    provider = PostgresProvider(service)
    for scope, keys in scopes:
        assert {key for key in three if provider.read_document(three[key], **scope)} == keys
        assert {one.external_key for one in provider.list_documents(**scope)} == keys


def test_the_list_has_pages_and_counts(service: Connection, three: dict[str, UUID]) -> None:
    for key, groups in (("shared", ["staff"]), ("unseen", ["board"])):
        three[key] = upsert(service, key, "one", "two", owner_id=YOU, allowed_groups=groups)
    service.execute(
        "update public.knowledge_chunks set visibility = 'private' where content = 'public 0'"
    )
    scope: dict[str, Any] = {"viewer_id": ME, "viewer_groups": ["staff"], "page_size": 2}
    listed = partial(PostgresProvider(service).list_documents, **scope)
    first = listed()
    second = listed(after_key=first[-1].external_key)
    assert listed(after_key=second[-1].external_key) == []
    assert [(one.id, one.is_own, one.chunk_count) for one in [*first, *second]] == [
        (three["mine"], True, 2),
        (three["public"], False, 1),
        (three["shared"], False, 2),
    ]


def test_a_document_is_read_chunk_by_chunk(service: Connection, three: dict[str, UUID]) -> None:
    provider = PostgresProvider(service)
    found = provider.read_document(three["mine"], viewer_id=ME)
    assert found is not None
    assert (found.external_key, found.chunk_count, found.is_own) == ("mine", 2, True)
    assert [chunk.content for chunk in found.chunks] == ["mine 0", "mine 1"]
    page = provider.read_document(three["mine"], chunk_count=1, chunk_offset=1)
    assert page is not None
    assert [chunk.content for chunk in page.chunks] == ["mine 1"]
    assert (page.chunk_count, page.is_own) == (2, False)


@pytest.mark.usefixtures("three")
def test_a_multi_tenant_provider_needs_a_viewer(service: Connection) -> None:
    provider = PostgresProvider(service, multi_tenant=True)
    with pytest.raises(InvalidInputError, match="viewer_id is missing"):
        provider.read_document(uuid4())
    with pytest.raises(InvalidInputError, match="viewer_id is missing"):
        provider.list_documents()
    assert provider.read_document(uuid4(), public_only=True) is None


def test_a_wrong_argument_is_refused_by_name(service: Connection) -> None:
    provider = PostgresProvider(service)
    for named, value in (("chunk_count", 0), ("viewer_id", "ana"), ("collections", "memory")):
        with pytest.raises(InvalidInputError, match=f"^{named}"):
            provider.read_document(uuid4(), **{named: value})  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match=r"^document_id must be a UUID, not 'keys'"):
        provider.read_document("keys")
    assert provider.read_document(uuid4()) is None
