"""The list of stored documents and the description of one: states, sizes, filters, pages."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID, uuid4

import pytest

from conftest import Connect, Connection
from second_brain.database.stored_documents import (
    DocumentDetail,
    StoredChunk,
    describe_document,
    list_documents,
)
from second_brain.errors import InvalidInputError
from second_brain.services.install import Database
from support.documents import embedded, upsert
from support.emptied import dsn as dsn

pytestmark = pytest.mark.module("insight")

ANNA = uuid4()


@pytest.fixture
def stored(connect: Connect, database: Connection) -> Database:
    upsert(database, "a/ready", embedded("Zebra"), title="Striped")
    upsert(database, "b/empty", collection="files")
    upsert(database, "c/pending", embedded("Ünded"), "Waiting", owner_id=ANNA)
    upsert(database, "d/waiting", "Also waiting", knowledge_type="note")
    return Database(connect("service_role"))


def keys(database: Database, **asked: object) -> list[str]:
    return [one.external_key for one in list_documents(database, **asked)]  # type: ignore[arg-type]


def described(database: Database, **asked: Any) -> tuple[DocumentDetail, Sequence[StoredChunk]]:
    found = describe_document(database, **asked)
    assert found is not None
    assert found.document is not None
    return found.document, found.chunks


def test_each_document_has_its_state_and_its_counts(stored: Database) -> None:
    listed = list_documents(stored)
    assert [
        (one.external_key, one.state, one.chunks, one.pending, one.inactive, one.bytes)
        for one in listed
    ] == [
        ("a/ready", "ready", 1, 0, 0, 5),
        ("b/empty", "empty", 0, 0, 0, 0),
        ("c/pending", "pending", 2, 1, 0, 13),
        ("d/waiting", "pending", 1, 1, 0, 12),
    ]
    assert listed[2].owner_id == ANNA


def test_documents_of_a_superseded_model_wait(stored: Database) -> None:
    stored.connection.execute("update public.knowledge_chunks set embedding_model = null")
    stored.connection.execute(
        "select public.set_knowledge_settings(collection => 'knowledge', embedding_model => 'new')"
    )
    assert keys(stored, state="pending") == ["a/ready", "c/pending", "d/waiting"]
    assert [one.pending for one in list_documents(stored)] == [1, 0, 2, 1]
    _, (chunk,) = described(stored, document_key="a/ready")
    assert chunk.reason == (
        "its embedding is of an unknown model, and the model of its collection is new"
    )


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({"collection": "files"}, "b/empty"),
        ({"knowledge_type": "note"}, "d/waiting"),
        ({"state": "ready"}, "a/ready"),
        ({"state": "empty"}, "b/empty"),
        ({"named": "STRIPED"}, "a/ready"),
        ({"named": "%"}, ""),
        ({"named": "/P"}, "c/pending"),
        ({"page_size": 2}, "a/ready b/empty"),
        ({"page_size": 2, "after_key": "b/empty"}, "c/pending d/waiting"),
    ],
)
def test_filters_and_pages(stored: Database, asked: dict[str, object], found: str) -> None:
    assert keys(stored, **asked) == found.split()


def test_wrong_arguments_are_named(stored: Database) -> None:
    with pytest.raises(InvalidInputError, match="in_state must be one of ready"):
        keys(stored, state="lost")
    with pytest.raises(InvalidInputError, match="page_size"):
        keys(stored, page_size=201)
    with pytest.raises(InvalidInputError, match="exactly one"):
        describe_document(stored, document_key="a/ready", chunk_id=uuid4())
    with pytest.raises(InvalidInputError, match="chunk_count"):
        describe_document(stored, document_key="a/ready", chunk_count=0)


def test_a_description_says_why_chunks_wait(stored: Database) -> None:
    document, chunks = described(stored, document_key="c/pending")
    assert document.pending == 1
    assert [(one.state, one.bytes, one.reason) for one in chunks] == [
        ("ready", 6, None),
        ("pending", 7, "it has no embedding, so only the text leg finds it"),
    ]


def test_superseded_chunks_follow_the_active_ones(stored: Database, database: Connection) -> None:
    for newer in ("Newer", "Newest"):
        upsert(database, "c/pending", newer)
    document, chunks = described(stored, document_key="c/pending")
    assert [(one.state, one.content) for one in chunks] == [
        ("pending", "Newest"),
        ("inactive", "Newer"),
        ("inactive", "Ünded"),
        ("inactive", "Waiting"),
    ]
    assert document.inactive == 3
    _, second = described(stored, document_key="c/pending", chunk_count=1, chunk_offset=1)
    assert second == chunks[1:2]


def test_ids_of_documents_and_chunks_lead_there(stored: Database, database: Connection) -> None:
    document, chunks = described(stored, document_key="c/pending")
    assert described(stored, document_id=document.id) == (document, chunks)
    assert described(stored, chunk_id=chunks[1].id) == (document, chunks[1:])
    alone = UUID(int=7)
    database.execute(
        "insert into public.knowledge_chunks (id, content) values (%s, 'Alone')", [alone]
    )
    loose = describe_document(stored, chunk_id=alone)
    assert loose is not None
    assert (loose.document, [one.content for one in loose.chunks]) == (None, ["Alone"])
    assert describe_document(stored, chunk_id=uuid4()) is None
    assert describe_document(stored, document_id=uuid4()) is None
    assert describe_document(stored, document_key="none") is None
