"""What an upsert does to the fields that it is not given: keep them, or reset them."""

from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.rows import dict_row
from stored import Row, chunks_of, counts, dsn, everything, upsert

from conftest import Connection
from second_brain.services.write import KnowledgeWriter

__all__ = ["dsn"]  # a fixture

SET: dict[str, Any] = {
    "title": "T",
    "knowledge_type": "note",
    "source_url": "https://example.org",
    "source_origin": "web",
    "author": "Ann",
    "document_date": "2024-01-31",
    "owner_id": str(UUID(int=1)),
    "visibility": "public",
    "sensitivity": "high",
    "language": "german",
    "collection": "memory",
    "metadata": {"a": 1},
}
DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(SET),
    "knowledge_type": "document",
    "source_origin": "manual",
    "visibility": "private",
    "language": "english",
    "collection": "knowledge",
    "metadata": {},
}


def document_of(connection: Connection) -> Row:
    with connection.cursor(row_factory=dict_row) as cursor:
        row = cursor.execute(
            "select to_jsonb(document) as fields from public.knowledge_documents as document"
        ).fetchone()
    assert row is not None
    return {name: value for name, value in row["fields"].items() if name in SET}


@pytest.mark.parametrize(("fields", "expected"), [("merge", SET), ("replace", DEFAULTS)])
def test_fields_that_are_not_given_are_kept_or_reset(
    service_role: Connection, fields: str, expected: Row
) -> None:
    upsert(service_role, [{"content": "text", "heading": "H"}], **SET)
    upsert(service_role, [{"content": "text", "heading": "H"}], fields=fields)
    assert document_of(service_role) == expected
    (chunk,) = chunks_of(service_role)
    for name in ("knowledge_type", "visibility", "language", "collection", "metadata"):
        assert chunk[name] == expected[name]


def test_an_upsert_without_the_argument_keeps_what_is_not_given(service_role: Connection) -> None:
    upsert(service_role, ["text"], **SET)
    before = everything(service_role)
    KnowledgeWriter(service_role).upsert_document({"external_key": "doc"}, [{"content": "text"}])
    assert everything(service_role) == before


@pytest.mark.parametrize("name", SET)
def test_a_field_given_as_null_gets_its_default(service_role: Connection, name: str) -> None:
    upsert(service_role, ["text"], **SET)
    cleared: dict[str, Any] = {name: None}
    upsert(service_role, ["text"], **cleared)
    assert document_of(service_role) == {**SET, name: DEFAULTS[name]}


@pytest.mark.parametrize("fields", ["merge", "replace"])
def test_a_new_document_has_defaults(service_role: Connection, fields: str) -> None:
    upsert(service_role, ["text"], fields=fields)
    assert document_of(service_role) == DEFAULTS


OWN = {"content": "own", "collection": "artifacts", "metadata": {"page": 3}}


@pytest.mark.parametrize(
    ("fields", "collection", "metadata"),
    [("merge", "artifacts", {"d": 1, "page": 3}), ("replace", "knowledge", {"d": 1})],
)
def test_an_unchanged_chunk_keeps_or_loses_its_own_fields(
    service_role: Connection, fields: str, collection: str, metadata: Row
) -> None:
    upsert(service_role, [OWN], metadata={"d": 1})
    row = upsert(service_role, ["own"], fields=fields, metadata={"d": 1})
    assert counts(row) == (0, 0, 1, 0)
    (chunk,) = chunks_of(service_role)
    assert (chunk["collection"], chunk["metadata"]) == (collection, metadata)


def test_a_chunk_field_given_as_null_is_the_documents(service_role: Connection) -> None:
    upsert(service_role, [OWN], metadata={"d": 1}, collection="memory")
    upsert(service_role, [{"content": "own", "collection": None, "metadata": None}])
    (chunk,) = chunks_of(service_role)
    assert (chunk["collection"], chunk["metadata"]) == ("memory", {"d": 1})


def test_a_chunks_own_fields_stay_when_those_of_its_document_change(
    service_role: Connection,
) -> None:
    upsert(service_role, [OWN, "plain"], metadata={"d": 1}, collection="memory")
    upsert(service_role, ["own", "plain"], metadata={"e": 2}, collection="history")
    assert [(row["collection"], row["metadata"]) for row in chunks_of(service_role)] == [
        ("artifacts", {"e": 2, "page": 3}),
        ("history", {"e": 2}),
    ]


def test_a_changed_chunk_does_not_take_the_fields_of_the_one_before(
    service_role: Connection,
) -> None:
    upsert(service_role, [OWN])
    upsert(service_role, ["new text"])
    (chunk,) = chunks_of(service_role)
    assert (chunk["collection"], chunk["metadata"]) == ("knowledge", {})


@pytest.mark.parametrize("fields", [None, "", "keep", "MERGE"])
def test_another_value_of_fields_is_refused(service_role: Connection, fields: Any) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=r"^fields must be merge or"):
        upsert(service_role, ["text"], fields=fields)
    assert everything(service_role) == []
