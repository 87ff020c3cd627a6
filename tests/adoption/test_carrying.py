"""An adopted table: its rows become documents, in the transaction that writes them."""

import pytest
from adopted import GUIDE, adopt, backfill, compare, contents, documents, reasons

from conftest import Connection


@pytest.fixture
def source(database: Connection) -> Connection:
    """A database with an adopted table of three rows, not carried over yet."""
    database.execute(GUIDE)
    database.execute(
        "insert into public.documents (title, content, metadata, embedding) values"
        " ('Keys', 'Rotate the keys.', '{\"team\": \"security\"}', '[1,0,0]'),"
        " (null, 'Water the plants.', null, null),"
        " ('Zero', 'Empty the bin.', '{}', '[0,0,0]')"
    )
    adopt(database)
    return database


def test_a_backfill_makes_a_document_of_each_row(source: Connection) -> None:
    done = backfill(source)
    assert (done.read, done.stored) == (3, 3)
    found = documents(source)
    keys = found["documents/1"]
    assert keys["title"] == "Keys"
    assert keys["metadata"] == {"team": "security"}
    assert keys["source_row"] == {
        "adoption": "documents",
        "table": "public.documents",
        "key": {"id": 1},
        "types": {"id": "bigint"},
    }
    assert keys["chunks"] == [
        {"content": "Rotate the keys.", "heading": "Keys", "embedding": "[1,0,0]", "model": "m"}
    ]
    assert found["documents/2"]["metadata"] == {}
    assert found["documents/2"]["chunks"][0]["embedding"] is None
    assert compare(source).differences == 0


def test_a_zero_embedding_is_left_out_and_noted(source: Connection) -> None:
    backfill(source)
    assert documents(source)["documents/3"]["chunks"][0]["embedding"] is None
    assert list(reasons(source)) == ["3"]
    assert "no direction" in reasons(source)["3"]
    source.execute("update public.documents set embedding = '[0,1,0]' where id = 3")
    assert documents(source)["documents/3"]["chunks"][0]["embedding"] == "[0,1,0]"
    assert reasons(source) == {}


def test_each_kind_of_write_is_carried_over(source: Connection) -> None:
    backfill(source)
    source.execute(
        "insert into public.documents (content, embedding) values ('Feed the cat.', '[0,0,1]')"
    )
    assert contents(source)["documents/4"] == ["Feed the cat."]
    source.execute("update public.documents set content = 'Water all plants.' where id = 2")
    assert contents(source)["documents/2"] == ["Water all plants."]
    source.execute("update public.documents set embedding = '[0,1,1]' where id = 1")
    assert documents(source)["documents/1"]["chunks"][0]["embedding"] == "[0,1,1]"
    source.execute("delete from public.documents where id in (1, 2)")
    assert sorted(contents(source)) == ["documents/3", "documents/4"]
    source.execute("truncate public.documents")
    assert contents(source) == {}
    assert compare(source).differences == 0


def test_a_backfill_renews_the_statistics(source: Connection) -> None:
    statement = "select document_count from knowledge_internal.corpus_statistics"
    backfill(source)
    assert source.execute(statement).fetchall() == [(3,)]
