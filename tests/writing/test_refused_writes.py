"""What a write refuses, by field and value, and that a refused write leaves nothing."""

import json
import re
from collections.abc import Sequence
from typing import Any, cast
from uuid import UUID

import psycopg
import pytest
from psycopg.types.json import Json, Jsonb
from stored import Row, chunks_of, dsn, embedded, everything, upsert

from conftest import Connection

__all__ = ["dsn"]  # a fixture


REFUSED: list[tuple[Any, Any, str]] = [
    (None, [], "document"),
    ([], [], "document"),
    ({}, [], "external_key"),
    ({"external_key": ""}, [], "external_key"),
    ({"external_key": "x" * 20_000}, [], "external_key"),
    *[
        ({"external_key": "doc", **wrong}, [], next(iter(wrong)))
        for wrong in cast(
            Sequence[Row],
            (
                {"titel": "T"},
                {"title": 5},
                {"metadata": []},
                {"knowledge_type": "recipe"},
                {"source_origin": "fax"},
                {"visibility": "secret"},
                {"owner_id": "me"},
                {"source_id": "nowhere"},
                {"document_date": "2024-13-01"},
                {"document_date": "01.02.2026"},
                {"document_date": 20240101},
                {"language": ""},
                {"collection": ""},
            ),
        )
    ],
    ({"external_key": "doc"}, None, "chunks"),
    ({"external_key": "doc"}, "text", "chunks"),
    *[
        ({"external_key": "doc"}, [{"content": "fine"}, wrong], "chunks")
        for wrong in cast(
            Sequence[Any],
            (
                None,
                "text",
                [],
                {},
                {"content": None},
                {"content": "x", "text": "y"},
                {"content": "x", "heading": 5},
                {"content": "x", "metadata": []},
                {"content": "x", "embedding_model": "m", "embedding": []},
                {"content": "x", "embedding_model": "m", "embedding": [1, 2, 3, 4]},
                {"content": "x", "embedding_model": "m", "embedding": [1, 2, None]},
                {"content": "x", "embedding_model": "m", "embedding": [1e-30, 0, 0]},
                {"content": "x", "embedding_model": "m", "embedding": [1e39, 0, 0]},
                {"content": "x", "embedding_model": 5},
                {"content": "x", "collection": ["a"]},
                {"content": "x", "collection": ""},
            ),
        )
    ],
]


@pytest.mark.parametrize(("document", "chunks", "named"), REFUSED)
def test_a_wrong_value_is_refused_by_name_and_leaves_nothing(
    service_role: Connection, document: Any, chunks: Any, named: str
) -> None:
    with pytest.raises(psycopg.Error) as caught:
        service_role.execute(
            "select public.upsert_knowledge_document(%s, %s)",
            [
                None if document is None else Jsonb(document),
                None if chunks is None else Jsonb(chunks),
            ],
        )
    assert caught.value.sqlstate == "22023"
    message = caught.value.diag.message_primary or ""
    assert len(message) < 1000
    assert message.startswith("chunks" if named == "chunks" else "document")
    assert everything(service_role) == []


NESTED_51 = json.loads('{"a":' * 51 + "1" + "}" * 51)


@pytest.mark.parametrize(
    ("document", "chunk", "message"),
    [
        ({"owner_id": "me"}, {}, "document.owner_id must be a UUID, not me"),
        ({"source_id": str(UUID(int=9))}, {}, "document.source_id must be the id of a row of"),
        ({"language": "x" * 61}, {}, "document.language must be a text of 1 to 60 characters"),
        ({"metadata": NESTED_51}, {}, "document.metadata has more than 50 levels"),
        ({}, {"metadata": NESTED_51}, "chunks[1].metadata has more than 50 levels"),
        ({}, {"metadata": Json('{"n": 1e309}')}, "chunks[1].metadata has a number beyond"),
        ({}, {"embedding": [1, 2, 3]}, "chunks[1].embedding_model must name the model of the"),
        (
            {},
            {"embedding": [1, 2, 3], "embedding_model": ""},
            "chunks[1].embedding_model must name",
        ),
        ({}, {"collection": "x" * 201}, "chunks[1].collection must be a text of 1 to 200"),
        (
            {},
            {"embedding_model": "m", "embedding": [1, 2]},
            "chunks[1].embedding has 2 dimensions, the corpus has 3 ",
        ),
        (
            {},
            {"embedding_model": "m", "embedding": [1, "a", 2]},
            "chunks[1].embedding must be an array of finite",
        ),
        (
            {},
            {"embedding_model": "m", "embedding": [0, 0, 0]},
            "chunks[1].embedding must have a direction",
        ),
    ],
)
def test_a_refusal_names_field_value_and_what_is_allowed(
    service_role: Connection, document: Row, chunk: Row, message: str
) -> None:
    upsert(service_role, [embedded("stored", 1)], key="corpus")
    chunks = [{"content": "fine"}, {"content": "x", **chunk}]
    with pytest.raises(psycopg.errors.InvalidParameterValue) as caught:
        service_role.execute(
            "select public.upsert_knowledge_document(%s::jsonb, %s::jsonb)",
            [as_json({"external_key": "doc", **document}), as_json(chunks)],
        )
    primary = caught.value.diag.message_primary or ""
    assert primary.startswith(message)
    if "dimensions" in message:
        assert primary.endswith("(model: m)")


def as_json(value: object) -> str:
    """Write JSON in which a Json stands for its own text."""
    text = json.dumps(value, default=lambda one: f"raw:{one.obj}:raw")
    return re.sub(r'"raw:(.*?):raw"', lambda found: json.loads(f'"{found[1]}"'), text)


@pytest.mark.parametrize("metadata", ['{"n": 1e5000}', '{"n": [-1e400]}', json.dumps(NESTED_51)])
@pytest.mark.parametrize(
    "statement",
    [
        "insert into public.knowledge_chunks (content, metadata) values ('x', %s)",
        "insert into public.knowledge_documents (external_key, metadata) values ('x', %s)",
        "update public.knowledge_documents set metadata = %s",
        "update public.knowledge_chunks set metadata = %s",
    ],
)
def test_metadata_that_clients_cannot_read_is_refused_by_the_tables(
    service_role: Connection, statement: str, metadata: str
) -> None:
    upsert(service_role, ["text"])
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=r"^metadata has ") as caught:
        service_role.execute(statement.encode(), [metadata])
    assert "50 levels" in (caught.value.diag.message_hint or "")


def test_metadata_at_the_limits_is_stored(service_role: Connection) -> None:
    nested = json.loads('{"a":' * 50 + "1" + "}" * 50)
    upsert(service_role, ["text"], metadata={**nested, "n": 1.6e308})
    (row,) = chunks_of(service_role)
    assert float(row["metadata"]["n"]) == 1.6e308


def test_a_refused_change_leaves_the_document_as_it_was(service_role: Connection) -> None:
    upsert(service_role, [embedded("one", 1), "two"], title="T")
    before = everything(service_role)
    for chunks, document in (
        ([embedded("one", 1), {"content": "new", "embedding": [1]}], {"title": "New"}),
        (["one"], {"title": "New", "visibility": "secret"}),
    ):
        with pytest.raises(psycopg.errors.InvalidParameterValue):
            upsert(service_role, chunks, **document)
    assert everything(service_role) == before
