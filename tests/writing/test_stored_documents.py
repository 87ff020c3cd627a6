"""The list of stored documents and the description of one: states, sizes, filters, pages."""

from uuid import UUID, uuid4

import pytest
from stored import upsert

from conftest import Connect, Connection
from second_brain.database.stored_documents import describe_document, list_documents
from second_brain.errors import InvalidInputError
from second_brain.services.install import Database
from support.emptied import dsn as dsn

pytestmark = pytest.mark.module("insight")

ANNA = uuid4()


@pytest.fixture
def stored(connect: Connect, database: Connection) -> Database:
    """Documents of each state, read by the service role."""
    upsert(
        database,
        [{"content": "Zebra", "embedding_model": "m", "embedding": [1, 0, 0]}],
        "a/ready",
        title="Striped",
    )
    upsert(database, [], "b/empty", collection="files")
    upsert(
        database,
        [{"content": "Ünded", "embedding_model": "m", "embedding": [0, 1, 0]}, "Waiting"],
        "c/pending",
        owner_id=str(ANNA),
    )
    upsert(database, ["Also waiting"], "d/waiting", knowledge_type="note")
    return Database(connect("service_role"))


def keys(database: Database, **asked: object) -> list[str]:
    return [one.external_key for one in list_documents(database, **asked)]  # type: ignore[arg-type]


def test_each_document_has_its_state_and_its_counts(stored: Database) -> None:
    listed = list_documents(stored)
    assert [(one.external_key, one.state) for one in listed] == [
        ("a/ready", "ready"),
        ("b/empty", "empty"),
        ("c/pending", "pending"),
        ("d/waiting", "pending"),
    ]
    counts = [(one.chunks, one.pending, one.inactive, one.bytes) for one in listed]
    assert counts == [(1, 0, 0, 5), (0, 0, 0, 0), (2, 1, 0, 13), (1, 1, 0, 12)]
    assert listed[2].owner_id == ANNA


def test_documents_of_a_superseded_model_wait(stored: Database) -> None:
    stored.connection.execute("update public.knowledge_chunks set embedding_model = null")
    stored.connection.execute(
        "select public.set_knowledge_settings(collection => 'knowledge', embedding_model => 'new')"
    )
    assert keys(stored, state="pending") == ["a/ready", "c/pending", "d/waiting"]
    assert [one.pending for one in list_documents(stored)] == [1, 0, 2, 1]
    described = describe_document(stored, document_key="a/ready")
    assert described is not None
    assert described.chunks[0].reason == (
        "its embedding is of an unknown model, and the model of its collection is new"
    )


def test_filters_and_pages(stored: Database) -> None:
    assert keys(stored, collection="files") == ["b/empty"]
    assert keys(stored, knowledge_type="note") == ["d/waiting"]
    assert keys(stored, state="ready") == ["a/ready"]
    assert keys(stored, state="empty") == ["b/empty"]
    assert keys(stored, named="STRIPED") == ["a/ready"]
    assert keys(stored, named="%") == []
    assert keys(stored, named="/P") == ["c/pending"]
    assert keys(stored, page_size=2) == ["a/ready", "b/empty"]
    assert keys(stored, page_size=2, after_key="b/empty") == ["c/pending", "d/waiting"]


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
    pending = describe_document(stored, document_key="c/pending")
    assert pending is not None
    assert pending.document is not None
    assert [(one.state, one.bytes) for one in pending.chunks] == [("ready", 6), ("pending", 7)]
    assert pending.document.pending == 1
    assert [one.reason for one in pending.chunks] == [
        None,
        "it has no embedding, so only the text leg finds it",
    ]


def test_superseded_chunks_follow_the_active_ones(stored: Database, database: Connection) -> None:
    for newer in ("Newer", "Newest"):
        upsert(database, [newer], "c/pending")
    described = describe_document(stored, document_key="c/pending")
    assert described is not None
    assert described.document is not None
    assert [(one.state, one.content) for one in described.chunks] == [
        ("pending", "Newest"),
        ("inactive", "Newer"),
        ("inactive", "Ünded"),
        ("inactive", "Waiting"),
    ]
    assert described.document.inactive == 3
    second = describe_document(stored, document_key="c/pending", chunk_count=1, chunk_offset=1)
    assert second is not None
    assert second.chunks == described.chunks[1:2]


def test_ids_of_documents_and_chunks_lead_there(stored: Database, database: Connection) -> None:
    whole = describe_document(stored, document_key="c/pending")
    assert whole is not None
    assert whole.document is not None
    assert describe_document(stored, document_id=whole.document.id) == whole
    one = describe_document(stored, chunk_id=whole.chunks[1].id)
    assert one is not None
    assert (one.document, one.chunks) == (whole.document, whole.chunks[1:])
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
