"""`adopt --from` for n8n, vecs, and the tables of the systems that this package replaces."""

from typing import Any

import pytest
from adopted import backfill, compare, contents, documents

from command_line import Run
from conftest import Connection

pytestmark = pytest.mark.module("adoption")

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
        f"(default, '{FILE}', 0, 'Rotate the keys.', 'policy', 'zoom', 'active', null, '[1,0,0]'),"
        f" (default, '{FILE}', 1, 'Old keys.', 'policy', 'zoom', 'archived', null, '[1,0,0]')",
        {"metadata": {}, "document": FILE},
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
        "id int primary key, document_id int, chunk_index int, chunk_text text,"
        " context_header text, chunk_token_count int, category text, tags text[],"
        f" source_file text, document_date date, embedding {VECTOR}",
        "(1, 7, 0, 'Rotate the keys.', 'Handbook > Keys', 4, 'product_docs', '{a}', 'k.md',"
        " '2026-03-04', '[1,0,0]')",
        {"title": "Handbook > Keys", "document": "7"},
    ),
    "insights": (
        "id uuid primary key default gen_random_uuid(), document_id uuid, chunk_index int,"
        f" user_id uuid, is_public bool, title text, content text, embedding {VECTOR}",
        f"(default, '{FILE}', 0, '{USER}', true, 'Keys', 'Rotate the keys.', '[1,0,0]')",
        {"title": "Keys", "visibility": "public", "owner_id": USER, "document": FILE},
    ),
}


@pytest.mark.parametrize("layout", SYSTEMS)
def test_a_table_of_the_system_is_searched(
    database: Connection, run: Run, dsn: str, layout: str
) -> None:
    columns, rows, expected = SYSTEMS[layout]
    database.execute(f"create table public.kept ({columns})".encode())
    database.execute(f"insert into public.kept values {rows}".encode())
    chosen = ["--rows", "status = 'active'"] if layout == "hybrid-rpc" else []
    asked = ("adopt", "public.kept", "--from", layout, "--model", "m", "--dsn", dsn, "--apply")
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
