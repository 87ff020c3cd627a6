"""What a write refuses, by field and value, and that a refused write leaves nothing."""

import json
import re
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.types.json import Json, Jsonb
from stored import Documents, Row, embedded
from stored import documents as documents

from support.emptied import dsn as dsn

WRONG_DOCUMENTS: list[Any] = [
    {"external_key": ""},
    {"external_key": "x" * 20_000},
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
]
WRONG_CHUNKS: list[Any] = [
    *(None, "text", [], {}, {"content": None}),
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
]
REFUSED: list[tuple[str, Any, Any]] = [
    *(("document", wrong, []) for wrong in (None, [], {})),
    *(("document", {"external_key": "doc", **wrong}, []) for wrong in WRONG_DOCUMENTS),
    *(("chunks", {"external_key": "doc"}, wrong) for wrong in (None, "text")),
    *(("chunks", {"external_key": "doc"}, [{"content": "fine"}, wrong]) for wrong in WRONG_CHUNKS),
]


@pytest.mark.parametrize(("named", "document", "chunks"), REFUSED)
def test_a_wrong_value_is_refused_by_name_and_leaves_nothing(
    documents: Documents, named: str, document: Any, chunks: Any
) -> None:
    given = [None if one is None else Jsonb(one) for one in (document, chunks)]
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=f"^{named}") as caught:
        documents.rows("select public.upsert_knowledge_document(%s, %s)", *given)
    assert len(caught.value.diag.message_primary or "") < 1000
    assert documents.everything() == []


NESTED_51 = json.loads('{"a":' * 51 + "1" + "}" * 51)


def of_m(vector: list[Any]) -> Row:
    return {"embedding_model": "m", "embedding": vector}


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
        ({}, {"embedding": [1], "embedding_model": ""}, "chunks[1].embedding_model must name"),
        ({}, {"collection": "x" * 201}, "chunks[1].collection must be a text of 1 to 200"),
        ({}, of_m([1, 2]), "chunks[1].embedding has 2 dimensions, the corpus has 3 "),
        ({}, of_m([1, "a", 2]), "chunks[1].embedding must be an array of finite"),
        ({}, of_m([0, 0, 0]), "chunks[1].embedding must have a direction"),
    ],
)
def test_a_refusal_names_field_value_and_what_is_allowed(
    documents: Documents, document: Row, chunk: Row, message: str
) -> None:
    documents.upsert([embedded("stored", 1)], key="corpus")
    chunks = [{"content": "fine"}, {"content": "x", **chunk}]
    with pytest.raises(psycopg.errors.InvalidParameterValue) as caught:
        documents.rows(
            "select public.upsert_knowledge_document(%s::jsonb, %s::jsonb)",
            as_json({"external_key": "doc", **document}),
            as_json(chunks),
        )
    primary = caught.value.diag.message_primary or ""
    assert primary.startswith(message)
    assert primary.endswith("(model: m)") is ("dimensions" in message)


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
    documents: Documents, statement: str, metadata: str
) -> None:
    documents.upsert(["text"])
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=r"^metadata has ") as caught:
        documents.rows(statement, metadata)
    assert "50 levels" in (caught.value.diag.message_hint or "")


def test_metadata_at_the_limits_is_stored(documents: Documents) -> None:
    nested = json.loads('{"a":' * 50 + "1" + "}" * 50)
    documents.upsert(["text"], metadata={**nested, "n": 1.6e308})
    (row,) = documents.chunks()
    assert float(row["metadata"]["n"]) == 1.6e308
