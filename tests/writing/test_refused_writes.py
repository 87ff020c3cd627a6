"""What a write refuses, by field and value, and that a refused write leaves nothing."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.types.json import Json, Jsonb
from stored import Documents, Row, embedded
from stored import documents as documents

from conftest import Connection
from support.documents import upsert
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
    ("document", None, []),
    ("document", [], []),
    ("document", {}, []),
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


# A project adds its own knowledge types and source origins; an unknown one is refused by name.

TABLES = {
    "knowledge_type": "public.knowledge_types",
    "source_origin": "public.knowledge_source_origins",
}
per_column = pytest.mark.parametrize("column", TABLES)


@pytest.fixture
def service(knowledge: Connection) -> Connection:
    """The connection of a test that is rolled back, as service_role."""
    knowledge.execute("set local role service_role")
    return knowledge


def add(connection: Connection, column: str, name: str) -> None:
    connection.execute(f"insert into {TABLES[column]} (name) values (%s)".encode(), [name])


def store(connection: Connection, column: str, name: str) -> None:
    upsert(connection, "a", "text", **{column: name})


def contents(connection: Connection, **arguments: Any) -> list[tuple[Any, ...]]:
    named = ", ".join(f"{name} => %({name})s" for name in arguments)
    statement = f"select content from public.hybrid_search_knowledge_chunks({named})"
    return connection.execute(statement.encode(), arguments).fetchall()


def condition(column: str, value: str) -> str:
    return json.dumps([{"field": column, "op": "eq", "value": value}])


@pytest.mark.large
@per_column
def test_a_name_that_a_project_adds_is_stored_and_filtered_by(
    service: Connection, column: str
) -> None:
    add(service, column, "product")
    store(service, column, "product")
    found = contents(service, query_text="text", filters=condition(column, "product"))
    assert found == [("text",)]
    if column == "knowledge_type":
        assert contents(service, query_text="text", filter_type="product") == found


@per_column
def test_an_unknown_name_is_refused_with_the_known_ones(service: Connection, column: str) -> None:
    @contextmanager
    def refused(argument: str, name: str) -> Iterator[None]:
        message = rf"^{argument} must be one of aaa, .*, \w+, not {name}"
        with (
            pytest.raises(psycopg.errors.InvalidParameterValue, match=message),
            service.transaction(),
        ):
            yield

    add(service, column, "aaa")
    with refused(rf"document\.{column}", r"slack\b"):
        store(service, column, "slack")
    with refused(rf"filters\[0\]\.value for {column}", '"slack"'):
        contents(service, query_text="text", filters=condition(column, "slack"))
    if column == "knowledge_type":
        with refused("filter_type", r"slack\b"):
            contents(service, query_text="text", filter_type="slack")


@per_column
@pytest.mark.parametrize("table", ["knowledge_documents", "knowledge_chunks"])
def test_a_name_in_use_cannot_be_deleted(service: Connection, column: str, table: str) -> None:
    add(service, column, "product")
    values = {
        "knowledge_documents": f"(external_key, {column}) values ('a', 'product')",
        "knowledge_chunks": f"(content, {column}) values ('text', 'product')",
    }[table]
    service.execute(f"insert into public.{table} {values}".encode())
    delete = f"delete from {TABLES[column]} where name = 'product'".encode()
    with pytest.raises(psycopg.errors.ForeignKeyViolation) as refused, service.transaction():
        service.execute(delete)
    assert refused.value.diag.table_name == table
    assert "(name)=(product)" in str(refused.value.diag.message_detail)
    service.execute(f"delete from public.{table}".encode())
    assert service.execute(delete).rowcount == 1
