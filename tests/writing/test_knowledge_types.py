"""Knowledge types and source origins: a project adds its own, an unknown one is refused by name."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from conftest import Connection
from support.documents import upsert

TABLES = {
    "knowledge_type": "public.knowledge_types",
    "source_origin": "public.knowledge_source_origins",
}
per_column = pytest.mark.parametrize("column", TABLES)


@pytest.fixture
def service_role(knowledge: Connection) -> Connection:
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
    service_role: Connection, column: str
) -> None:
    add(service_role, column, "product")
    store(service_role, column, "product")
    found = contents(service_role, query_text="text", filters=condition(column, "product"))
    assert found == [("text",)]
    if column == "knowledge_type":
        assert contents(service_role, query_text="text", filter_type="product") == found


@per_column
def test_an_unknown_name_is_refused_with_the_known_ones(
    service_role: Connection, column: str
) -> None:
    @contextmanager
    def refused(argument: str, name: str) -> Iterator[None]:
        message = rf"^{argument} must be one of aaa, .*, \w+, not {name}"
        with (
            pytest.raises(psycopg.errors.InvalidParameterValue, match=message),
            service_role.transaction(),
        ):
            yield

    add(service_role, column, "aaa")
    with refused(rf"document\.{column}", r"slack\b"):
        store(service_role, column, "slack")
    with refused(rf"filters\[0\]\.value for {column}", '"slack"'):
        contents(service_role, query_text="text", filters=condition(column, "slack"))
    if column == "knowledge_type":
        with refused("filter_type", r"slack\b"):
            contents(service_role, query_text="text", filter_type="slack")


@per_column
@pytest.mark.parametrize("table", ["knowledge_documents", "knowledge_chunks"])
def test_a_name_in_use_cannot_be_deleted(service_role: Connection, column: str, table: str) -> None:
    add(service_role, column, "product")
    values = {
        "knowledge_documents": f"(external_key, {column}) values ('a', 'product')",
        "knowledge_chunks": f"(content, {column}) values ('text', 'product')",
    }[table]
    service_role.execute(f"insert into public.{table} {values}".encode())
    delete = f"delete from {TABLES[column]} where name = 'product'".encode()
    with pytest.raises(psycopg.errors.ForeignKeyViolation) as refused, service_role.transaction():
        service_role.execute(delete)
    assert refused.value.diag.table_name == table
    assert "(name)=(product)" in str(refused.value.diag.message_detail)
    service_role.execute(f"delete from public.{table}".encode())
    assert service_role.execute(delete).rowcount == 1
