"""`adopt` on tables that LangChain's and LlamaIndex's packages create and write.

Run by `make test-layouts`, which installs the packages into an environment of their own.
SupabaseVectorStore needs a PostgREST too: its binary in POSTGREST_BIN.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import jwt
import pytest
from adopted import adopt, backfill, compare, documents, reasons

from conftest import Connection, Server
from postgrest_server import JWT_SECRET, served
from second_brain.services.postgres import PostgresProvider
from second_brain.services.results import source_key
from tools.stores import MISSING, Row, Stores

pytestmark = [
    pytest.mark.module("adoption"),
    pytest.mark.skipif(not Stores.installed(), reason=MISSING),
]

ROWS = 1_000


def uuid(number: int) -> str:
    return str(UUID(int=number + 1))


@dataclass(frozen=True)
class Layout:
    """A store's table, and how `adopt` is called on it.

    `name` gives a row's id in the package, `key` the key that a hit has, from that id.
    """

    store: str
    table: str
    name: Callable[[int], Any] = uuid
    key: Callable[[Any], dict[str, Any]] = lambda id_: {"langchain_id": UUID(id_)}
    settings: dict[str, Any] = field(default_factory=dict)


def of_store(table: str, **settings: Any) -> dict[str, Any]:
    return {"table": table, **settings}


LAYOUTS = {
    "supabase": Layout("supabase", "documents", key=lambda id_: {"id": UUID(id_)}),
    "pgvector": Layout(
        "pgvector",
        "langchain_pg_embedding",
        name=lambda number: f"file/{number}%",
        key=lambda id_: {"id": id_},
        settings={"collection": "handbook"},
    ),
    "pgvectorstore": Layout("pgvectorstore", "passages", settings=of_store("passages")),
    "pgvectorstore, hybrid": Layout(
        "pgvectorstore",
        "passages_hybrid",
        name=lambda number: f"t{number}",
        key=lambda id_: {"langchain_id": id_},
        settings=of_store("passages_hybrid", columns=["team"], id_type="TEXT", hybrid=True),
    ),
    "llamaindex": Layout(
        "llamaindex", "data_passages", settings=of_store("passages", dimensions=3)
    ),
    "llamaindex, hybrid": Layout(
        "llamaindex",
        "data_passages_hybrid",
        settings=of_store(
            "passages_hybrid", dimensions=3, hybrid=True, jsonb=True, halfvec=True, hnsw=True
        ),
    ),
}


class Package:
    """A package at work on the test's database."""

    def __init__(self, stores: Stores, dsn: str, layout: Layout) -> None:
        self.stores, self.dsn, self.layout = stores, dsn, layout
        self.settings = dict(layout.settings)

    def call(self, action: str, **arguments: Any) -> Any:
        return self.stores.call(
            self.layout.store, action, self.dsn, settings=self.settings, **arguments
        )

    def add(self, numbers: range, text: str = "How to rotate key {number}.") -> None:
        """Add rows with these numbers, or replace them."""
        self.call("add", rows=[self.row(number, text) for number in numbers])

    def row(self, number: int, text: str) -> Row:
        # No two embeddings have the same direction.
        return {
            "id": self.layout.name(number),
            "text": text.format(number=number),
            "metadata": {"team": f"t{number % 7}", "page": number},
            "embedding": [1.0, number / ROWS, 0.5],
        }


@pytest.fixture(scope="module")
def stores() -> Iterator[Stores]:
    with Stores() as running:
        yield running


@pytest.fixture(params=LAYOUTS)
def package(
    request: pytest.FixtureRequest, stores: Stores, server: Server, dsn: str, tmp_path: Path
) -> Iterator[Package]:
    """A package whose table has a thousand rows."""
    made = Package(stores, dsn, LAYOUTS[request.param])
    made.call("create", dimensions=3)
    if made.layout.store != "supabase":
        made.add(range(ROWS))
        yield made
        return
    with served(server.admin_dsn(), dsn, tmp_path) as rest:
        key = jwt.encode({"role": "service_role"}, JWT_SECRET, algorithm="HS256")
        made.settings = {"rest": f"http://127.0.0.1:{rest.port}", "key": key}
        made.add(range(ROWS))
        yield made


def columns(connection: Connection, table: str) -> list[tuple[Any, ...]]:
    return connection.execute(
        "select attname, format_type(atttypid, atttypmod), attnotnull, attgenerated"
        "  from pg_attribute"
        " where attrelid = %s::regclass and attnum > 0 and not attisdropped order by attnum",
        [table],
    ).fetchall()


def primary_key(connection: Connection, table: str) -> list[tuple[Any, ...]]:
    return connection.execute(
        "select pg_get_constraintdef(oid) from pg_constraint"
        " where conrelid = %s::regclass and contype = 'p'",
        [table],
    ).fetchall()


def test_the_package_makes_the_recorded_table(
    package: Package, database: Connection, plain_dsn: str
) -> None:
    # The recorded tables have the same names; they are made in a schema of their own.
    recorded = Path(__file__).with_name("layouts.sql").read_text("utf-8")
    database.execute("create schema recorded")
    database.execute(recorded.replace("public.", "recorded.").encode())
    made, table = f"public.{package.layout.table}", f"recorded.{package.layout.table}"
    assert columns(database, made) == columns(database, table)
    assert primary_key(database, made) == primary_key(database, table)


def test_rows_and_changes_of_the_package_are_carried_over(
    package: Package, database: Connection, dsn: str
) -> None:
    adopt(database, f"public.{package.layout.table}", name="adopted")
    done = backfill(database, "adopted")
    assert done == ROWS
    assert reasons(database, "adopted") == {}
    assert compare(database, "adopted").differences == 0

    package.add(range(ROWS, ROWS + 50))
    if package.layout.store == "llamaindex":
        # Its add never replaces a row.
        package.call("delete", ids=[package.layout.name(number) for number in range(100)])
    package.add(range(100), "How to water plant {number}.")
    package.call("delete", ids=[package.layout.name(number) for number in range(200, 220)])
    assert compare(database, "adopted").differences == 0
    assert reasons(database, "adopted") == {}
    assert len(documents(database)) == ROWS + 50 - 20

    provider = PostgresProvider(dsn)
    hits, _ = provider.find([1, 0.007, 0.5], "plant 7", top_k=100, pool_size=200)
    assert hits[0].content == "How to water plant 7."
    assert hits[0].metadata["team"] == "t0"  # type: ignore[typeddict-item]
    key = source_key(hits[0].metadata["source_row"])
    if package.layout.store == "llamaindex":
        assert hits[0].metadata["node_id"] == uuid(7)  # type: ignore[typeddict-item]
        statement = f"select id from {package.layout.table} where node_id = %s"
        assert database.execute(statement.encode(), [uuid(7)]).fetchall() == [((key or {})["id"],)]
    else:
        assert key == package.layout.key(package.layout.name(7))
    deleted, _ = provider.find(None, '"key 210"', search_mode="phrase")
    assert deleted == []


def test_a_deleted_document_of_llamaindex_takes_its_nodes_along(
    stores: Stores, database: Connection, dsn: str
) -> None:
    package = Package(stores, dsn, LAYOUTS["llamaindex"])
    package.call("create", dimensions=3)
    rows = [package.row(number, "Node {number}.") for number in range(6)]
    for number, row in enumerate(rows):
        row["document"] = f"file-{number % 2}"
    package.call("add", rows=rows)
    adopt(database, "public.data_passages", name="adopted")
    backfill(database, "adopted")
    package.call("delete_document", document="file-1")
    found = [one["chunks"][0]["content"] for one in documents(database).values()]
    assert sorted(found) == ["Node 0.", "Node 2.", "Node 4."]
    assert compare(database, "adopted").differences == 0
