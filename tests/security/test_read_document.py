"""A backend lists and reads documents for a user whom it names."""

from functools import partial
from typing import Any
from uuid import UUID, uuid4

import pytest

from conftest import Connect, Connection
from second_brain.errors import InvalidInputError
from second_brain.services.postgres import PostgresProvider
from support.documents import upsert
from support.emptied import dsn as dsn

pytestmark = pytest.mark.module("own_documents")

ME, YOU = UUID(int=1), UUID(int=2)


@pytest.fixture
def service(connect: Connect) -> Connection:
    return connect("service_role")


@pytest.fixture
def documents(service: Connection) -> dict[str, UUID]:
    """A public document, mine and another user's, with two chunks each; mine is a memory."""
    return {
        key: store(service, key, owner, visibility, collection)
        for key, owner, visibility, collection in (
            ("public", None, "public", "knowledge"),
            ("mine", ME, "private", "memory"),
            ("yours", YOU, "private", "knowledge"),
        )
    }


def store(
    service: Connection, key: str, owner: UUID | None, visibility: str, collection: str
) -> UUID:
    document = {"owner_id": owner, "visibility": visibility, "collection": collection}
    return upsert(service, key, f"{key} 0", f"{key} 1", title=key, **document)


def seen(service: Connection, documents: dict[str, UUID], **scope: Any) -> set[str]:
    provider = PostgresProvider(service)
    return {
        key
        for key, document in documents.items()
        if provider.read_document(document, **scope) is not None
    }


def test_a_document_is_read_in_the_scope(service: Connection, documents: dict[str, UUID]) -> None:
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
        assert seen(service, documents, **scope) == keys
        assert {one.external_key for one in provider.list_documents(**scope)} == keys


def test_the_list_has_pages_and_counts(service: Connection, documents: dict[str, UUID]) -> None:
    for key, groups in (("shared", ["staff"]), ("unseen", ["board"])):
        documents[key] = store(service, key, YOU, "private", "knowledge")
        service.execute(
            "update public.knowledge_documents set allowed_groups = %s where id = %s",
            [groups, documents[key]],
        )
    service.execute(
        "update public.knowledge_chunks set visibility = 'private' where content = 'public 0'"
    )
    listed = partial(
        PostgresProvider(service).list_documents, viewer_id=ME, viewer_groups=["staff"], page_size=2
    )
    first = listed()
    second = listed(after_key=first[-1].external_key)
    assert listed(after_key=second[-1].external_key) == []
    assert [(one.id, one.is_own, one.chunk_count) for one in [*first, *second]] == [
        (documents["mine"], True, 2),
        (documents["public"], False, 1),
        (documents["shared"], False, 2),
    ]


def test_a_document_is_read_chunk_by_chunk(service: Connection, documents: dict[str, UUID]) -> None:
    provider = PostgresProvider(service)
    found = provider.read_document(documents["mine"], viewer_id=ME)
    assert found is not None
    assert (found.external_key, found.chunk_count, found.is_own) == ("mine", 2, True)
    assert [chunk.content for chunk in found.chunks] == ["mine 0", "mine 1"]
    page = provider.read_document(documents["mine"], chunk_count=1, chunk_offset=1)
    assert page is not None
    assert [chunk.content for chunk in page.chunks] == ["mine 1"]
    assert (page.chunk_count, page.is_own) == (2, False)


@pytest.mark.usefixtures("documents")
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
