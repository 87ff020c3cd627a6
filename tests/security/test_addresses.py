"""Where a citation can lead: http, https and paths, however a document is written."""

import json
from pathlib import Path

import psycopg
import pytest
from psycopg.types.json import Jsonb

from conftest import Connection
from second_brain.ingest import find_files
from support.emptied import dsn as dsn

KEPT = [
    *("https://example.org/guide?a=b:c#d", "HTTP://example.org:8080", "https://[::1]/x", ""),
    *("guide/keys.md", "/docs/keys#top: it", "../keys.md", "./a: b.md", "#part", "?page=2"),
    *("Übersicht 2024.pdf", "C:\\docs\\keys.md"),
]
REFUSED = [
    *("javascript:alert(1)", " JavaScript:alert(1)", "java\tscript:alert(1)"),
    *("\u0001javascript:alert(1)", "\ufeffjavascript:alert(1)"),
    *("data:text/html,<script>alert(1)</script>", "vbscript:x", "file:///etc/passwd"),
    *("blob:https://example.org/x", "ms-settings:network", "view-source:https://example.org"),
    *("//other.example/x", "\\\\other.example\\x", "/\\other.example", "/\t/other.example"),
    *("https:///x", "https:other.example", "http://\\other.example"),
]


def _stored(connection: Connection) -> list[str | None]:
    rows = connection.execute("select source_url from public.knowledge_documents").fetchall()
    return [url for (url,) in rows]


def _insert(connection: Connection, address: str) -> None:
    statement = "insert into public.knowledge_documents (external_key, source_url) values ('d', %s)"
    connection.execute(statement, [address])


def _upsert(connection: Connection, address: str) -> None:
    document = Jsonb({"external_key": "d", "source_url": address})
    connection.execute("select public.upsert_knowledge_document(%s, '[]')", [document])


@pytest.mark.parametrize("address", KEPT)
def test_an_address_that_a_citation_can_use_is_kept(service_role: Connection, address: str) -> None:
    for store in (_insert, _upsert):
        store(service_role, address)
        assert _stored(service_role) == [address]
        service_role.execute("delete from public.knowledge_documents")


@pytest.mark.parametrize("address", REFUSED)
def test_another_address_is_refused_everywhere(service_role: Connection, address: str) -> None:
    for store in (_insert, _upsert):
        with pytest.raises(psycopg.Error, match="source_url must be an address of http") as caught:
            store(service_role, address)
        assert caught.value.sqlstate == "22023"
    _insert(service_role, "https://example.org")
    with pytest.raises(psycopg.Error, match="source_url must be an address of http"):
        service_role.execute("update public.knowledge_documents set source_url = %s", [address])
    assert _stored(service_role) == ["https://example.org"]


@pytest.mark.parametrize("address", [*REFUSED, *KEPT])
def test_files_lose_an_address_that_the_database_would_refuse(tmp_path: Path, address: str) -> None:
    quoted = json.dumps(address)
    (tmp_path / "a.md").write_text(f"---\nurl: {quoted}\ndate: 2026-01-02\n---\n# A\n\ntext\n")
    (tmp_path / "b.jsonl").write_text(json.dumps({"text": "t", "url": address}) + "\n")
    for found in find_files([tmp_path]).documents:
        document = found.load()
        # As one_line gives it.
        shown = " ".join(address.split())
        if document.source_url is None:
            assert not shown or any("address is left out" in one for one in document.notes)
            assert address in REFUSED or not shown or shown.startswith("C:")
        else:
            assert document.source_url == shown
            assert address in KEPT or shown != address
