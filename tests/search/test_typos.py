"""Misspelt words: what is replaced, by what, and that nothing is learnt from hidden chunks."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import pytest
from psycopg import sql
from searching import Row, call, chunk, numbers, search, store

from conftest import Connect, Connection

pytestmark = pytest.mark.module("words")


ME, OTHER = UUID(int=1), UUID(int=2)
CAMERAS = "The recorder shows no cameras."


def replaced(rows: list[Row]) -> Mapping[str, str] | None:
    return (rows[0]["notes"] or {}).get("replaced") if rows else None


def known_words(connection: Connection) -> list[str]:
    rows = connection.execute("select distinct word from public.knowledge_words order by 1")
    return [word for (word,) in rows]


def test_misspelt_words_are_replaced_named_and_marked(knowledge: Connection) -> None:
    store(knowledge, CAMERAS, "Something about invoices.")
    hits = search(knowledge, query_text="recorrder Camras", snippet=True)
    assert numbers(hits) == [1]
    assert replaced(hits) == {"recorrder": "recorder", "Camras": "cameras"}
    assert hits[0]["matched_terms"] == ["recorder", "cameras"]
    assert hits[0]["snippet"] == "The <mark>recorder</mark> shows no <mark>cameras</mark>."


@pytest.mark.parametrize(
    "typo", ["camera", "ameras", "camersa", "cameeras", "ccameras", "cmaeras", "xameras", "camerax"]
)
def test_one_edit_anywhere_in_a_word_is_found(knowledge: Connection, typo: str) -> None:
    store(knowledge, {"content": "Cameras", "language": "simple"})
    assert replaced(search(knowledge, query_text=typo)) == {typo: "cameras"}


@pytest.mark.parametrize(
    "query",
    [
        {"query_text": "recorder cameras"},
        {"query_text": 'recorder "camras"'},
        {"query_text": "recorder “camras”"},
        {"query_text": "recorder -camras"},
        {"query_text": "recorder cams"},
        {"query_text": "recorder camras-1"},
        {"query_text": "recorder camras", "search_mode": "simple"},
        {"query_text": "recorder camras", "search_mode": "phrase"},
    ],
)
def test_what_is_known_quoted_excluded_or_short_is_not_replaced(
    knowledge: Connection, query: dict[str, Any]
) -> None:
    store(knowledge, {"content": CAMERAS, "embedding": [1, 0, 0]})
    hits = search(knowledge, **query, query_embedding=[1, 0, 0])
    assert numbers(hits) == [1]
    assert replaced(hits) is None


def test_a_word_that_the_corpus_has_is_not_replaced(knowledge: Connection) -> None:
    store(knowledge, CAMERAS, "camras")
    hits = search(knowledge, query_text="camras")
    assert (numbers(hits), replaced(hits)) == ([2], None)


def test_of_several_near_words_the_most_frequent_is_taken(knowledge: Connection) -> None:
    store(knowledge, *[{"content": word} for word in ("reading", "leading", "leading")])
    assert replaced(search(knowledge, query_text="heading")) == {"heading": "leading"}


HIDDEN = {"content": "The secret cameras of Project Zanzibar", "owner_id": OTHER}


def as_user(connect: Connect, query_text: str) -> list[Row]:
    return call(
        connect("authenticated", uid=ME),
        "search_my_knowledge_chunks",
        query_text=query_text,
        query_embedding=[1, 0, 0],
    )


def test_hidden_near_words_do_not_crowd_out_a_visible_one(
    database: Connection, connect: Connect
) -> None:
    # The last one in the order of the alphabet.
    mine = {"content": "zzebra", "owner_id": ME, "embedding": [1, 0, 0]}
    greek = [chr(code) for code in range(0x3B1, 0x3CA)]
    near = [
        f"{'zebra'[:place]}{letter}{'zebra'[place + added :]}"
        for letter in [*"abcdefghijklmnopqrstuvwxy", *greek]
        for added in (0, 1)
        for place in range(6 - added)
    ]
    assert len(set(near)) > 500
    store(database, mine, HIDDEN | {"content": " ".join(near)})
    assert replaced(as_user(connect, "zebra")) == {"zebra": "zzebra"}


def test_a_deleted_owner_leaves_no_word_of_their_own(
    database: Connection, service_role: Connection
) -> None:
    store(
        database,
        {"content": "zanzibar recordings shared", "owner_id": OTHER},
        {"content": "shared record", "owner_id": ME},
    )
    assert known_words(database) == ["record", "recordings", "shared", "zanzibar"]
    service_role.execute("select public.delete_knowledge_owner(%s)", [OTHER])
    assert known_words(database) == ["record", "shared"]


@pytest.mark.parametrize(
    ("change", "left"),
    [
        (sql.SQL("delete from public.knowledge_chunks where id = %(first)s"), ["lion", "zebra"]),
        (
            sql.SQL(
                "update public.knowledge_chunks set content = 'lion horse' where id = %(first)s"
            ),
            ["horse", "lion", "zebra"],
        ),
        (
            sql.SQL("update public.knowledge_chunks set knowledge_type = 'note'"),
            ["giraffe", "lion", "zebra"],
        ),
        (sql.SQL("delete from public.knowledge_chunks"), []),
        (sql.SQL("truncate public.knowledge_chunks"), []),
    ],
    ids=["delete", "content", "no content", "delete all", "truncate"],
)
def test_the_known_words_are_those_of_the_stored_chunks(
    knowledge: Connection, change: sql.SQL, left: list[str]
) -> None:
    store(knowledge, "zebra giraffe lion", "Lion zebra")
    knowledge.execute(change, {"first": chunk(1)})
    assert known_words(knowledge) == left


def test_writers_of_the_same_new_words_neither_wait_nor_fail(
    database: Connection, connect: Connect
) -> None:
    one, other = connect(), connect()
    for connection in (one, other):
        connection.execute("set lock_timeout = '60s'")
        connection.execute("begin")
    insert = "insert into public.knowledge_chunks (content) values (%s)"
    for connection, content in ((one, "zebra"), (other, "lion"), (one, "lion"), (other, "zebra")):
        connection.execute(insert, [content])
    one.execute("commit")
    other.execute("commit")
    count = "select count(*) from public.knowledge_words"
    assert database.execute(count).fetchone() == (4,)
    database.execute("analyze public.knowledge_chunks")
    database.execute("select public.refresh_knowledge_statistics()")
    assert known_words(database) == ["lion", "zebra"]
    assert database.execute(count).fetchone() == (2,)
