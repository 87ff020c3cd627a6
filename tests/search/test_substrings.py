"""Identifiers by a part of them: what is found instead, and that hidden chunks tell nothing."""

import re
from uuid import UUID

import pytest
from searching import Row, numbers, search, store

from conftest import Connection
from second_brain.database import migrations

ME, OTHER = UUID(int=1), UUID(int=2)
AVAILABLE = "select from pg_catalog.pg_available_extensions where name = 'pg_trgm'"


@pytest.fixture
def indexed(knowledge: Connection) -> Connection:
    """The shared connection, with the module."""
    if knowledge.execute(AVAILABLE).fetchone() is None:
        pytest.skip("the server has no pg_trgm")
    knowledge.execute("create extension if not exists pg_trgm with schema extensions")
    (file,) = (one for one in migrations.find() if one.module == "substrings")
    knowledge.execute(file.sql.encode())
    return knowledge


def replaced(rows: list[Row]) -> object:
    return (rows[0]["notes"] or {}).get("replaced") if rows else None


@pytest.mark.parametrize(
    ("part", "whole", "number"),
    [
        ("DS-76", "DS-7604", 1),
        ("s-7604", "DS-7604", 1),
        ("ccount_i", "account_id", 2),
        ("rNam", "getUserName", 3),
        ("tools.lru", "functools.lru_cache", 4),
        ("50%_o", None, None),
    ],
)
def test_a_part_finds_the_identifier_and_the_notes_name_it(
    indexed: Connection, part: str, whole: str | None, number: int | None
) -> None:
    store(
        indexed,
        "The recorder DS-7604 restarts.",
        "Column account_id of the orders.",
        "Call getUserName() once.",
        {"content": "It keeps results.", "heading": "functools.lru_cache"},
        "Prose about well-known recorders.",
    )
    hits = search(indexed, query_text=f"why {part}")
    assert replaced(hits) == (whole and {part: whole})
    assert numbers(hits)[:1] == ([number] if number else [])


def test_several_identifiers_have_the_part(indexed: Connection) -> None:
    store(indexed, "DS-7604 here", "DS-7610 there", "DS-7604 again", "DS-8000 elsewhere")
    hits = search(indexed, query_text="DS-76")
    assert replaced(hits) == {"DS-76": "DS-7604 DS-7610"}
    assert set(numbers(hits)[:3]) == {1, 2, 3}


@pytest.mark.parametrize("query", ["DS-76", '"DS-76x"', "recorder -DS-76x", "ds-7"])
def test_what_a_chunk_has_is_excluded_or_quoted_stays(indexed: Connection, query: str) -> None:
    store(indexed, "The recorder DS-7604.", "The recorder DS-76 and DS-76xy.", "DS-7")
    assert replaced(search(indexed, query_text=query)) is None


def test_hidden_chunks_are_neither_found_nor_tell_that_a_whole_one_is_known(
    indexed: Connection,
) -> None:
    hidden = {"visibility": "private", "owner_id": OTHER}
    store(
        indexed,
        {"content": "Board DS-7604", "visibility": "public"},
        {"content": "Board DS-76", **hidden},
        {"content": "Board ZX-9901", **hidden},
    )
    for restriction in ({"public_only": True}, {"viewer_id": ME}):
        hits = search(indexed, query_text="DS-76", **restriction)
        assert (numbers(hits), replaced(hits)) == ([1], {"DS-76": "DS-7604"})
        assert replaced(search(indexed, query_text="board ZX-99", **restriction)) is None
    assert numbers(search(indexed, query_text="ZX-99", viewer_id=OTHER))[:1] == [3]


def test_a_large_corpus_gets_no_index_that_blocks_writes(indexed: Connection) -> None:
    indexed.execute("drop index public.knowledge_chunks_identifiers")
    store(indexed, "The recorder DS-7604.")
    if indexed.info.server_version < 180000:
        pytest.skip("the statistics of a table are set by hand in PostgreSQL 18")
    indexed.execute(
        "select pg_catalog.pg_restore_relation_stats("
        "'schemaname', 'public', 'relname', 'knowledge_chunks', 'reltuples', 1e6::real)"
    )
    said: list[str | None] = []
    indexed.add_notice_handler(lambda notice: said.append(notice.message_hint))
    (file,) = (one for one in migrations.find() if one.module == "substrings")
    again = re.sub("create (function|trigger)", r"create or replace \1", file.sql)
    indexed.execute(again.replace("add column", "add column if not exists").encode())
    assert replaced(search(indexed, query_text="DS-76")) is None
    (statement,) = (one.split(": ", 1)[1] for one in said if one)
    indexed.execute(statement.replace(" concurrently", "").encode())
    assert replaced(search(indexed, query_text="DS-76")) == {"DS-76": "DS-7604"}
