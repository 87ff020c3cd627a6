"""Tables of Supabase's guide, LangChain, LlamaIndex and five systems are known by their columns."""

import os
import subprocess
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
from adopted import adopt, backfill, compare, contents, documents, reasons

from command_line import Run
from conftest import Connection
from second_brain.services.postgres import PostgresProvider

pytestmark = pytest.mark.module("adoption")

ROOT = Path(__file__).parents[2]
STORES = Path(os.environ.get("STORES_PYTHON") or ROOT / ".venv-stores" / "bin" / "python")
FIRST = UUID("10000000-0000-0000-0000-000000000001")
SECOND = UUID("10000000-0000-0000-0000-000000000002")

NODE = """{
  "team": "security", "doc_id": "handbook", "document_id": "handbook", "ref_doc_id": "handbook",
  "_node_type": "TextNode", "_node_content": "{\\"id_\\": \\"n1\\", \\"text\\": \\"\\"}"
}"""
PLANTS = "'Water the plants.'"
KEYS = "'Rotate the keys.'"
JSON = '\'{"team": "security"}\''
NODES = f"""(text, metadata_, node_id, embedding) values
 ({KEYS}, '{NODE}', 'n1', '[1,0,0]'), ({PLANTS}, null, null, null)"""
# The layout of a table, the key of its first row, and its rows.
TABLES: dict[str, tuple[str, dict[str, Any], str]] = {
    "guide": (
        "supabase-guide",
        {"id": 1},
        f"(content, embedding) values ({KEYS}, '[1,0,0]'), ({PLANTS}, null)",
    ),
    "documents": (
        "langchain",
        {"id": FIRST},
        f"values ('{FIRST}', {KEYS}, {JSON}, '[1,0,0]'), ('{SECOND}', {PLANTS}, null, null)",
    ),
    "documents_js": (
        "langchain",
        {"id": 1},
        f"(content, metadata, embedding) values ({KEYS}, {JSON}, '[1,0,0]'),"
        f" ({PLANTS}, null, null)",
    ),
    "langchain_pg_embedding": (
        "pgvector",
        {"id": "a/1"},
        f"values ('a/1', '{FIRST}', '[1,0,0]', {KEYS}, {JSON}),"
        f" ('a%2', '{SECOND}', null, {PLANTS}, null)",
    ),
    "passages": (
        "pgvectorstore",
        {"langchain_id": FIRST},
        f"values ('{FIRST}', {KEYS}, '[1,0,0]', {JSON}), ('{SECOND}', {PLANTS}, '[0,1,0]', null)",
    ),
    "passages_hybrid": (
        "pgvectorstore",
        {"langchain_id": "t1"},
        f"values ('t1', {KEYS}, '[1,0,0]', to_tsvector({KEYS}), 'security', '{{}}'),"
        f" ('t2', {PLANTS}, '[0,1,0]', to_tsvector('Water'), null, null)",
    ),
    "data_passages": ("llamaindex", {"id": 1}, NODES),
    "data_passages_hybrid": ("llamaindex", {"id": 1}, NODES),
}
COLLECTIONS = (
    "insert into public.langchain_pg_collection values"
    f" ('{FIRST}', 'handbook', null), ('{SECOND}', 'diary', null)"
)
# The key of the first row, with its type, and the metadata of both.
TEAM = {"team": "security"}
METADATA: dict[str, dict[str, Any]] = {
    "supabase-guide": {},
    **dict.fromkeys(("langchain", "pgvector", "pgvectorstore"), TEAM),
    "llamaindex": {
        **TEAM,
        **dict.fromkeys(("doc_id", "document_id", "ref_doc_id"), "handbook"),
        "node_id": "n1",
    },
}


@pytest.fixture
def tables(database: Connection) -> Connection:
    """A database with the tables of all layouts, without a row."""
    database.execute(Path(__file__).with_name("layouts.sql").read_bytes())
    database.execute(COLLECTIONS.encode())
    return database


# Columns and primary key of a table.
MADE = """
select attname, format_type(atttypid, atttypmod), attnotnull, attgenerated,
       exists (select from pg_index where indrelid = attrelid and indisprimary
                and attnum = any (indkey))
  from pg_attribute where attrelid = %s::regclass and attnum > 0 and not attisdropped
 order by attnum
"""


@pytest.mark.skipif(not STORES.is_file(), reason="run `make stores`, or set STORES_PYTHON")
def test_packages_make_the_recorded_tables(tables: Connection, plain_dsn: str) -> None:
    with psycopg.connect(plain_dsn, autocommit=True) as database:
        subprocess.run(
            [STORES, "-W", "ignore", ROOT / "tools" / "stores.py", plain_dsn], check=True
        )
        for table in list(TABLES)[3:]:
            made, recorded = (
                one.execute(MADE, [f"public.{table}"]).fetchall() for one in (database, tables)
            )
            assert made == recorded, table


def adopt_rows(tables: Connection, table: str, rows: str | None = None) -> None:
    _, _, of_table = TABLES[table]
    tables.execute(f"insert into public.{table} {rows or of_table}".encode())
    adopt(tables, f"public.{table}", name="adopted")
    assert backfill(tables, "adopted") == (1 if rows else 2)
    assert reasons(tables, "adopted") == {}
    assert compare(tables, "adopted").differences == 0


@pytest.mark.parametrize("table", TABLES)
def test_rows_become_documents_with_their_keys(tables: Connection, dsn: str, table: str) -> None:
    adopt_rows(tables, table)
    layout, key, _ = TABLES[table]
    first, second = sorted(documents(tables).values(), key=lambda one: str(one["chunks"]))
    texts = [one["chunks"][0]["content"] for one in (first, second)]
    assert texts == ["Rotate the keys.", "Water the plants."]
    assert first["chunks"][0]["embedding"] == "[1,0,0]"
    assert [first["metadata"], second["metadata"]] == [METADATA[layout], {}]
    hits, _ = PostgresProvider(dsn).find([1, 0, 0], "keys", top_k=1)
    assert hits[0].source_key == key


def test_collections_of_pgvector_stay_and_are_deleted(tables: Connection, dsn: str) -> None:
    adopt_rows(tables, "langchain_pg_embedding")
    hits, _ = PostgresProvider(dsn).find(None, "keys plants", collections=["diary"])
    assert [hit.content for hit in hits] == ["Water the plants."]
    tables.execute("delete from public.langchain_pg_collection where name = 'handbook'")
    assert list(contents(tables).values()) == [["Water the plants."]]
    assert compare(tables, "adopted").differences == 0


@pytest.mark.parametrize(
    ("table", "rows"),
    [
        ("data_passages", "(text, metadata_) values ('a', 'null')"),
        ("passages_hybrid", "values ('t1', 'a', '[1,0,0]', '', null, 'null')"),
    ],
)
def test_metadata_can_be_null_in_json(tables: Connection, table: str, rows: str) -> None:
    adopt_rows(tables, table, rows)
    assert [one["metadata"] for one in documents(tables).values()] == [{}]


def test_an_option_replaces_a_column_of_the_layout(tables: Connection) -> None:
    # The table of langchain-community's PGVector, before langchain-postgres.
    tables.execute("alter table public.langchain_pg_embedding rename id to uuid")
    tables.execute(
        "insert into public.langchain_pg_embedding (uuid, document) values ('a', 'Keys')"
    )
    table, options = "public.langchain_pg_embedding", {"key": "uuid"}
    adopt(tables, table, name="adopted", options={**options})
    backfill(tables, "adopted")
    assert contents(tables) == {"adopted/a": ["Keys"]}


FILE = "10000000-0000-0000-0000-000000000001"
USER = "20000000-0000-0000-0000-000000000001"
VECTOR = "extensions.vector(3)"
SYSTEMS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "n8n": (
        f"id uuid primary key, text text, metadata jsonb, embedding {VECTOR}",
        f"('{FILE}', 'Rotate the keys.', '{{\"source\": \"blob\"}}', '[1,0,0]')",
        {"metadata": {"source": "blob"}},
    ),
    "vecs": (
        f"id varchar primary key, vec {VECTOR} not null, metadata jsonb not null default '{{}}'",
        '(\'a\', \'[1,0,0]\', \'{"text": "Rotate the keys.", "title": "Keys"}\')',
        {"title": "Keys"},
    ),
    "hybrid-rpc": (
        "id uuid primary key default gen_random_uuid(), document_id uuid, chunk_index int,"
        " content text not null, knowledge_type text, source_origin text, status text not null,"
        f" metadata jsonb, embedding {VECTOR}",
        f"(default, '{FILE}', 0, 'Rotate the keys.', 'note', 'zoom', 'active', null, '[1,0,0]'),"
        f" (default, '{FILE}', 1, 'Old keys.', 'note', 'zoom', 'archived', null, '[1,0,0]')",
        {"knowledge_type": "note", "document": FILE},
    ),
    "pipeline": (
        "id bigserial primary key, source_id text, document_id uuid, document_type text,"
        f" url text, title text, chunk_index int, content text, metadata jsonb, embedding {VECTOR}",
        f"(default, 'handbook', '{FILE}', 'md', 'https://example.com/k', 'Keys', 0,"
        " 'Rotate the keys.', '{}', '[1,0,0]')",
        {"title": "Keys", "source_url": "https://example.com/k", "document": FILE},
    ),
    "collections": (
        "id uuid primary key default gen_random_uuid(), artifact_id uuid, chunk_index int,"
        " title text, source_url text, artifact_type text, sensitivity text, content text,"
        f" created_at timestamptz, embedding {VECTOR}",
        f"(default, '{FILE}', 0, 'Keys', null, 'doc', 'normal', 'Rotate the keys.', '2026-03-04',"
        " '[1,0,0]')",
        {"title": "Keys", "document": FILE},
    ),
    "search-api": (
        "id serial primary key, chunk_text text, chunk_hash varchar(64) unique,"
        f" embedding {VECTOR}, source_file varchar(512), source_category varchar, document_date"
        " date, chunk_index int, total_chunks int, context_header text, ts_vector tsvector,"
        " metadata jsonb",
        "(default, 'Rotate the keys.', 'x', '[1,0,0]', 'k.md', 'product_docs', '2026-03-04', 0, 1,"
        " 'Handbook > Keys', null, '{}')",
        {"title": "Handbook > Keys", "document": "k.md"},
    ),
    "insights": (
        "id uuid primary key default gen_random_uuid(), document_id uuid, chunk_index int,"
        f" user_id uuid, is_public bool, title text, content text, embedding {VECTOR}",
        f"(default, '{FILE}', 0, '{USER}', true, 'Keys', 'Rotate the keys.', '[1,0,0]')",
        {"title": "Keys", "visibility": "public", "owner_id": USER, "document": FILE},
    ),
}


@pytest.mark.parametrize("layout", SYSTEMS)
def test_each_systems_table_is_found(database: Connection, run: Run, dsn: str, layout: str) -> None:
    columns, rows, expected = SYSTEMS[layout]
    database.execute(f"create table public.kept ({columns})".encode())
    database.execute(f"insert into public.kept values {rows}".encode())
    chosen = ["--rows", "status = 'active'"] if layout == "hybrid-rpc" else []
    asked = ("adopt", "public.kept", "--model", "m", "--dsn", dsn, "--apply")
    assert chosen == [] or "status, which can hide rows" in run(*asked).err
    done = run(*asked, *chosen)
    assert done.code == 0, done.err
    backfill(database, "kept")
    assert compare(database, "kept").differences == 0
    assert list(contents(database).values()) == [["Rotate the keys."]]
    (document,) = documents(database).values()
    named = {key: str(document[key]) for key in expected if key not in ("metadata", "document")}
    assert named == {key: expected[key] for key in named}
    if "document" in expected:
        assert document["source_row"]["document"] == expected["document"]
    else:
        assert expected.get("metadata", {}).items() <= document["metadata"].items()
    keys = database.execute(
        "select jsonb_object_keys(metadata) from public.knowledge_chunks"
    ).fetchall()
    # Every column is a field or a key of the metadata.
    others = {"knowledge_type", "status", "document_type", "artifact_type", "source_file", "tags"}
    assert {(one,) for one in others if f" {one} " in f" {columns}"} <= {*keys}


@pytest.mark.parametrize("reference", [" references public.documents on delete cascade", ""])
def test_the_base_pipelines_chunks_have_what_their_documents_say(
    database: Connection, run: Run, dsn: str, reference: str
) -> None:
    database.execute(
        "create table public.documents (id uuid primary key, source_id text, document_type text,"
        " title text, metadata jsonb, created_at timestamptz default now());"
        f"create table public.chunks (id bigserial primary key, document_id uuid{reference},"
        f" chunk_index int, text text, embedding {VECTOR}, search_vector tsvector);"
        f"insert into public.documents values ('{FILE}', 'wiki', 'md', 'Keys', '{{\"team\": 1}}');"
        "insert into public.chunks (document_id, chunk_index, text, embedding)"
        f" values ('{FILE}', 0, 'Rotate the keys.', '[1,0,0]'),"
        f" ('{FILE}', 1, 'Yearly.', null)".encode()
    )
    done = run("adopt", "public.chunks", "--model", "m", "--apply", "--dsn", dsn)
    assert done.code == 0, done.err
    backfill(database, "chunks")
    assert contents(database) == {f"chunks/{FILE}": ["Rotate the keys.", "Yearly."]}
    if not reference:
        return
    filters = {"document_type": "md", "metadata.source_id": "wiki", "team": 1}
    hits, _ = PostgresProvider(dsn).find(None, "rotate", filters=filters)
    assert [(hit.content, hit.metadata["title"]) for hit in hits] == [("Rotate the keys.", "Keys")]
    database.execute("update public.documents set document_type = 'pdf'")
    assert PostgresProvider(dsn).find(None, "keys", filters=filters)[0] == []
    assert compare(database, "chunks").differences == 0
