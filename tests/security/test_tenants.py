"""Module tenants: a search limited to a tenant answers as in a database of the tenant's own."""

import random
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from conftest import Connection, Server, copy_of
from corpora import USERS, call

pytestmark = [pytest.mark.module("tenants"), pytest.mark.large]

Row = dict[str, Any]
ME, OTHER = (str(user) for user in USERS[:2])
SEARCH = "hybrid_search_knowledge_chunks"
# With mistakes of one another, and a compound.
WORDS = re.findall(
    r"\S+",
    "receive recieve general generals camera camara organic invoice contract walrus ledger"
    " zebra-crossing AB12345 parse_tree summary harbour velvet copper meadow lantern",
)
REFRESH = "select public.refresh_knowledge_tenants()"
STORED = """
select id, visibility, allowed_groups, owner_id::text, document_count
  from public.knowledge_tenants where collection <> '' order by id
"""
# The one figure of all chunks, beside those of the embeddings, that scores read.
FIXED_B = "insert into public.knowledge_settings (bm25_b) values (0.75)"
INSERT = """
insert into public.knowledge_chunks (
  id, collection, content, embedding, owner_id, visibility, allowed_groups, metadata
)
select lpad(to_hex(id), 32, '0')::uuid, collection, content, embedding, owner_id,
       coalesce(visibility, 'private'), allowed_groups, jsonb_build_object('tenant', collection)
  from jsonb_to_recordset(%s) as given (
         id integer, collection text, content text, embedding extensions.vector, owner_id uuid,
         visibility text, allowed_groups text[]
       )
"""
LIMITS: list[Row] = [
    {"collections": ["one"]},
    {"filters": {"collection": "one"}},
    {"required_filters": {"collection": "one"}},
    {"required_filters": {"tenant": "one"}},
    {"collections": ["one"], "viewer_groups": ["one"]},
    {"viewer_groups": ["one"]},
    {"viewer_id": ME},
]


def drawn(first: int, count: int, collection: str, **columns: Any) -> list[Row]:
    """Draw chunks; some words are common, and those of each collection are not the same."""
    draw = random.Random(f"{first} {collection}")
    words = WORDS + random.Random(collection).sample(WORDS, 6) * 6
    return [
        {
            "id": first + place,
            "collection": collection,
            "content": " ".join(draw.choices(words, k=draw.randint(3, 40))),
            "embedding": [draw.randint(-9, 9), draw.randint(-9, 9), 1],
            **columns,
        }
        for place in range(count)
    ]


def insert(connection: Connection, rows: list[Row]) -> None:
    connection.execute(INSERT, [Jsonb(rows)])


@pytest.fixture
def sides(server: Server) -> Iterator[tuple[Connection, Connection]]:
    """A database for all tenants, and one for a tenant."""
    with ExitStack() as stack:
        connections = []
        for _ in range(2):
            dsn = stack.enter_context(contextmanager(copy_of)(server, server.template(3)))
            one = stack.enter_context(psycopg.connect(dsn, autocommit=True))
            one.execute(FIXED_B)
            connections.append(one)
        yield connections[0], connections[1]


def answers(connection: Connection, limits: list[Row], calls: int = 12) -> list[object]:
    draw = random.Random("calls")
    return [call(connection, SEARCH, asked(draw) | limit) for limit in limits for _ in range(calls)]


def asked(draw: random.Random) -> Row:
    words = draw.choices([*WORDS, "recieved", "contarct"], k=draw.randint(1, 4))
    arguments = {
        "query_text": " ".join(words),
        "query_embedding": draw.choice([None, "[1, 2, 1]"]),
        "fusion": draw.choice(["rrf", "relative_score"]),
        "search_mode": draw.choice(["websearch", "websearch", "simple", "phrase"]),
        "match_count": draw.choice([3, 50]),
        # All rows of a tenant: the number of all chunks decides which candidates are scored.
        "pool_size": 250,
        "min_confidence": draw.choice([None, 0.2]),
    }
    return {name: value for name, value in arguments.items() if value is not None}


@pytest.mark.parametrize("chunks", [60, 230], ids=["counted", "stored"])
def test_no_row_of_another_tenant_moves_a_bit_of_an_answer(
    sides: tuple[Connection, Connection], chunks: int
) -> None:
    whole, own = sides
    for side in sides:
        insert(side, drawn(1, chunks, "one", allowed_groups=["one"], owner_id=ME))
        side.execute(REFRESH)
    expected = answers(own, LIMITS)
    assert sum(bool(one) for one in expected) > len(expected) / 2

    for place, name in enumerate(("two", "three"), 1):
        insert(whole, drawn(1000 * place, 240, name, allowed_groups=[name], owner_id=OTHER))
    for step in (
        b"analyze public.knowledge_chunks",
        b"update public.knowledge_chunks set content = repeat('contract recieve ', 60)"
        b" where collection = 'two'",
        b"delete from public.knowledge_chunks where collection <> 'one'",
    ):
        assert answers(whole, LIMITS) == expected, step
        whole.execute(step)
        whole.execute("select public.refresh_knowledge_statistics()")
        whole.execute(REFRESH)
    assert answers(whole, LIMITS) == expected


@pytest.mark.parametrize("chunks", [60, 230], ids=["counted", "stored"])
def test_a_search_of_a_tenant_is_that_of_a_corpus_of_its_rows_alone(
    sides: tuple[Connection, Connection], chunks: int
) -> None:
    whole, own = sides
    for side in sides:
        insert(side, drawn(1, chunks, "one"))
    insert(whole, drawn(1000, 300, "two"))
    alone = answers(own, [{}])
    assert answers(whole, LIMITS[:1]) != alone
    whole.execute(REFRESH)
    assert answers(whole, LIMITS[:1]) == alone
    assert answers(whole, [{}]) != alone


def test_a_word_that_is_common_for_a_tenant_weighs_little_in_its_search_only(
    database: Connection,
) -> None:
    # Each text of law has the word contract, each of a zoo the word walrus.
    texts = {"law": ["contract of copper"] * 250, "zoo": ["walrus of copper"] * 40}
    for first, (name, contents) in enumerate(texts.items()):
        contents[7] = "walrus with a contract"
        rows = drawn(1000 * first, len(contents), name)
        insert(
            database,
            [row | {"content": text} for row, text in zip(rows, contents, strict=True)],
        )
    database.execute(REFRESH)
    for name, rare, common in (("law", "walrus", "contract"), ("zoo", "contract", "walrus")):
        scores = [
            call(database, SEARCH, {"query_text": word, "collections": [name]})[0]["text_score"]
            for word in (rare, common)
        ]
        assert scores[0] > 10 * scores[1] > 0


def test_a_refresh_stores_what_is_large_and_reads_what_has_changed(database: Connection) -> None:
    groups: list[Row] = [{"allowed_groups": ["staff"]}, {"owner_id": ME}, {"visibility": "public"}]
    for place, columns in enumerate(groups):
        insert(database, drawn(1 + 1000 * place, 210, "one", **columns))
    insert(database, drawn(9000, 20, "one", owner_id=OTHER) + drawn(9500, 200, "few"))
    database.execute(REFRESH)
    first = database.execute(STORED).fetchall()
    assert {str(row[1:]) for row in first if row[1] is not None} == {
        f"('private', None, '{ME}', 210.0)",
        "('private', ['staff'], None, 210.0)",
        "('public', None, None, 210.0)",
    }
    assert [row[1:] for row in first if row[1] is None] == [(None, None, None, 650)]
    database.execute(REFRESH)
    assert database.execute(STORED).fetchall() == first

    database.execute("delete from public.knowledge_chunks where allowed_groups = '{staff}'")
    database.execute("delete from public.knowledge_chunks where id = lpad('1', 32, '0')::uuid")
    assert database.execute(REFRESH).fetchall() == [(3,)]
    later = database.execute(STORED).fetchall()
    assert sorted(row[-1] for row in later) == [210, 210, 440]
    assert len({row[0] for row in first} & {row[0] for row in later}) == 2
    words = "select array_agg(distinct tenant order by tenant) from public.knowledge_tenant_words"
    assert database.execute(words).fetchall() == [([row[0] for row in later],)]


@pytest.mark.module("words")
def test_a_word_stored_since_the_refresh_is_found_and_is_no_mistake(database: Connection) -> None:
    insert(database, drawn(1, 230, "one"))
    database.execute(REFRESH)
    insert(database, [{"id": 999, "collection": "one", "content": "receiive"}])
    (hit,) = call(database, SEARCH, {"query_text": "receiive", "collections": ["one"]})
    assert (hit["content"], hit["notes"]) == ("receiive", None)
