"""`adopt --from`: the tables of Supabase's guide, LangChain and LlamaIndex become documents."""

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from adopted import adopt, backfill, compare, contents, documents, reasons
from test_layouts_of_systems import SYSTEMS

from conftest import Connection
from second_brain.adoption.layouts import LAYOUTS
from second_brain.services.postgres import PostgresProvider

pytestmark = pytest.mark.module("adoption")

FIRST = UUID("10000000-0000-0000-0000-000000000001")
SECOND = UUID("10000000-0000-0000-0000-000000000002")
COLLECTION = UUID("20000000-0000-0000-0000-000000000001")
OTHER_COLLECTION = UUID("20000000-0000-0000-0000-000000000002")

NODE = """{
  "team": "security", "doc_id": "handbook", "document_id": "handbook", "ref_doc_id": "handbook",
  "_node_type": "TextNode", "_node_content": "{\\"id_\\": \\"n1\\", \\"text\\": \\"\\"}"
}"""
ROWS = {
    "guide": "insert into public.guide (content, embedding)"
    " values ('Rotate the keys.', '[1,0,0]'), ('Water the plants.', null)",
    "documents": f"insert into public.documents values"
    f" ('{FIRST}', 'Rotate the keys.', '{{\"team\": \"security\"}}', '[1,0,0]'),"
    f" ('{SECOND}', 'Water the plants.', null, null)",
    "documents_js": "insert into public.documents_js (content, metadata, embedding) values"
    " ('Rotate the keys.', '{\"team\": \"security\"}', '[1,0,0]'),"
    " ('Water the plants.', null, null)",
    "langchain_pg_embedding": f"insert into public.langchain_pg_collection values"
    f" ('{COLLECTION}', 'handbook', null), ('{OTHER_COLLECTION}', 'diary', null);"
    f" insert into public.langchain_pg_embedding values"
    f" ('a/1', '{COLLECTION}', '[1,0,0]', 'Rotate the keys.', '{{\"team\": \"security\"}}'),"
    f" ('a%2', '{OTHER_COLLECTION}', null, 'Water the plants.', null)",
    "passages": f"insert into public.passages values"
    f" ('{FIRST}', 'Rotate the keys.', '[1,0,0]', '{{\"team\": \"security\"}}'),"
    f" ('{SECOND}', 'Water the plants.', '[0,1,0]', null)",
    "passages_hybrid": "insert into public.passages_hybrid values"
    " ('t1', 'Rotate the keys.', '[1,0,0]', to_tsvector('Rotate the keys.'), 'security', '{}'),"
    " ('t2', 'Water the plants.', '[0,1,0]', to_tsvector('Water'), null, null)",
    "data_passages": "insert into public.data_passages (text, metadata_, node_id, embedding)"
    f" values ('Rotate the keys.', '{NODE}', 'n1', '[1,0,0]'),"
    " ('Water the plants.', null, null, null)",
    "data_passages_hybrid": "insert into public.data_passages_hybrid"
    " (text, metadata_, node_id, embedding)"
    f" values ('Rotate the keys.', '{NODE}', 'n1', '[1,0,0]'),"
    " ('Water the plants.', null, null, null)",
}
LAYOUT = {
    "guide": "supabase-guide",
    "documents": "langchain",
    "documents_js": "langchain",
    "langchain_pg_embedding": "pgvector",
    "passages": "pgvectorstore",
    "passages_hybrid": "pgvectorstore",
    "data_passages": "llamaindex",
    "data_passages_hybrid": "llamaindex",
}
# The key of the first row, with its type, and the metadata of both.
KEYS: dict[str, dict[str, Any]] = {
    "guide": {"id": 1},
    "documents": {"id": FIRST},
    "documents_js": {"id": 1},
    "langchain_pg_embedding": {"id": "a/1"},
    "passages": {"langchain_id": FIRST},
    "passages_hybrid": {"langchain_id": "t1"},
    "data_passages": {"id": 1},
    "data_passages_hybrid": {"id": 1},
}
TEAM = {"team": "security"}
OF_NODE = {**TEAM, "doc_id": "handbook", "document_id": "handbook", "ref_doc_id": "handbook"}
METADATA: dict[str, list[dict[str, Any]]] = {
    "guide": [{}, {}],
    "documents": [TEAM, {}],
    "documents_js": [TEAM, {}],
    "langchain_pg_embedding": [TEAM, {}],
    "passages": [TEAM, {}],
    "passages_hybrid": [TEAM, {}],
    "data_passages": [{**OF_NODE, "node_id": "n1"}, {}],
    "data_passages_hybrid": [{**OF_NODE, "node_id": "n1"}, {}],
}


@pytest.fixture
def tables(database: Connection) -> Connection:
    """A database with the tables of all layouts, without a row."""
    database.execute(Path(__file__).with_name("layouts.sql").read_bytes())
    return database


@pytest.mark.parametrize("table", LAYOUT)
def test_rows_become_documents_with_their_keys(tables: Connection, dsn: str, table: str) -> None:
    tables.execute(ROWS[table].encode())
    adopt(tables, f"public.{table}", layout=LAYOUT[table], name="adopted")
    assert backfill(tables, "adopted").stored == 2
    assert reasons(tables, "adopted") == {}
    assert compare(tables, "adopted").differences == 0
    found = sorted(documents(tables).values(), key=lambda one: str(one["chunks"][0]["content"]))
    assert [one["chunks"][0]["content"] for one in found] == [
        "Rotate the keys.",
        "Water the plants.",
    ]
    assert found[0]["chunks"][0]["embedding"] == "[1,0,0]"
    assert [one["metadata"] for one in found] == METADATA[table]
    hits, _ = PostgresProvider(dsn).find([1, 0, 0], "keys", top_k=1)
    assert hits[0].source_key == KEYS[table]


def test_each_layout_is_tested() -> None:
    assert {*LAYOUT.values(), *SYSTEMS} == LAYOUTS.keys()


def test_collections_of_pgvector_stay_collections(tables: Connection, dsn: str) -> None:
    tables.execute(ROWS["langchain_pg_embedding"].encode())
    adopt(tables, "public.langchain_pg_embedding", layout="pgvector", name="adopted")
    backfill(tables, "adopted")
    hits, _ = PostgresProvider(dsn).find(None, "keys plants", collections=["diary"])
    assert [hit.content for hit in hits] == ["Water the plants."]


def test_deleting_a_collection_deletes_its_documents(tables: Connection) -> None:
    tables.execute(ROWS["langchain_pg_embedding"].encode())
    adopt(tables, "public.langchain_pg_embedding", layout="pgvector", name="adopted")
    backfill(tables, "adopted")
    tables.execute("delete from public.langchain_pg_collection where name = 'handbook'")
    assert list(contents(tables).values()) == [["Water the plants."]]
    assert compare(tables, "adopted").differences == 0


@pytest.mark.parametrize(
    ("table", "statement"),
    [
        (
            "data_passages",
            "insert into public.data_passages (text, metadata_) values ('a', 'null')",
        ),
        (
            "passages_hybrid",
            "insert into public.passages_hybrid values ('t1', 'a', '[1,0,0]', '', null, 'null')",
        ),
    ],
)
def test_metadata_can_be_null_in_json(tables: Connection, table: str, statement: str) -> None:
    tables.execute(statement.encode())
    adopt(tables, f"public.{table}", layout=LAYOUT[table], name="adopted")
    backfill(tables, "adopted")
    assert reasons(tables, "adopted") == {}
    assert [one["metadata"] for one in documents(tables).values()] == [{}]


def test_an_option_replaces_a_column_of_the_layout(tables: Connection) -> None:
    # The table of langchain-community's PGVector, before langchain-postgres.
    tables.execute("alter table public.langchain_pg_embedding rename id to uuid")
    tables.execute(
        "insert into public.langchain_pg_embedding (uuid, document) values ('a', 'Keys')"
    )
    options: dict[str, str | None] = {"key": "uuid"}
    adopt(
        tables,
        "public.langchain_pg_embedding",
        layout="pgvector",
        name="adopted",
        options=options,
    )
    backfill(tables, "adopted")
    assert contents(tables) == {"adopted/a": ["Keys"]}
