"""Arguments and texts: what a search refuses, and that it leaves no setting behind."""

import contextlib
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from searching import ANIMALS, FUSIONS, MODES, NORTH, call, numbers, refused, search, store

from conftest import Connect, Connection

# What is refused.


@pytest.mark.parametrize("fusion", FUSIONS)
@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("match_count", 1),
        ("match_count", 1000),
        ("pool_size", 1),
        ("pool_size", 1000),
        ("match_threshold", -1),
        ("match_threshold", 1),
        ("vector_weight", 0),
        ("text_weight", 0),
        ("vector_weight", 1e30),
        ("rrf_k", 1e-9),
        ("filter_type", None),
        ("filter_type", "transcript"),
    ],
)
def test_an_argument_on_its_bound_is_taken(
    knowledge: Connection, argument: str, value: Any, fusion: str
) -> None:
    store(knowledge, {"content": "cat", "embedding": NORTH, "knowledge_type": "transcript"})
    arguments = {"query_embedding": NORTH, "query_text": "cat", "fusion": fusion, argument: value}
    rows = search(knowledge, **arguments)
    assert numbers(rows) == [1]


@pytest.mark.parametrize("embedding", [[0, 0, 0], [0, 1e-30, 0], [1e30, 0, 0]])
def test_an_embedding_without_direction_is_never_stored(
    knowledge: Connection, embedding: list[float]
) -> None:
    with pytest.raises(psycopg.errors.CheckViolation), knowledge.transaction():
        store(knowledge, {"embedding": embedding})


# What a search leaves behind.

HNSW_SETTINGS = ("hnsw.ef_search", "hnsw.iterative_scan", "hnsw.max_scan_tuples")


def hnsw_settings(connection: Connection) -> list[str]:
    return [
        connection.execute("select current_setting(%s)", [name]).fetchall()[0][0]
        for name in HNSW_SETTINGS
    ]


@pytest.mark.parametrize("local", [False, True])
def test_the_callers_settings_come_back(connect: Connect, local: bool) -> None:
    connection = connect()
    # pgvector, which knows these settings, is loaded when it is first used.
    connection.execute("select '[1]'::extensions.vector")
    mine = ["77", "strict_order", "12345"]
    with connection.transaction():
        for name, value in zip(HNSW_SETTINGS, mine, strict=True):
            connection.execute("select set_config(%s, %s, %s)", [name, value, local])
        search(connection, query_embedding=NORTH, query_text="cat")
        assert hnsw_settings(connection) == mine
        refused(connection, "hybrid_search_knowledge_chunks", query_embedding=[1, 2])
        assert hnsw_settings(connection) == mine
    expected = ["40", "off", "20000"] if local else mine
    assert hnsw_settings(connection) == expected
    search(connection, query_embedding=NORTH, query_text="cat")
    assert hnsw_settings(connection) == expected


def test_settings_come_back_after_an_error_in_the_middle(connect: Connect) -> None:
    connection = connect()
    with connection.transaction():
        store(connection, *ANIMALS)
    connection.execute("set hnsw.ef_search = 77")
    with connection.transaction():
        # A stored embedding of another size cannot exist; a text that to_tsvector cannot read can.
        connection.execute("set local statement_timeout = '1ms'")
        with pytest.raises(psycopg.errors.QueryCanceled), connection.transaction():
            connection.execute(
                "select hit.* from generate_series(1, 100000),"
                " public.hybrid_search_knowledge_chunks('[1,0,0]', 'cat') as hit"
            )
        connection.execute("set local statement_timeout = 0")
        assert hnsw_settings(connection)[0] == "77"


def test_the_first_search_of_a_session_needs_no_preparation(connect: Connect) -> None:
    assert search(connect("service_role"), query_text="cat") == []


def test_a_search_runs_in_a_read_only_transaction(knowledge: Connection) -> None:
    store(knowledge, *ANIMALS)
    with knowledge.transaction():
        knowledge.execute("set transaction read only")
        assert numbers(search(knowledge, query_embedding=NORTH, query_text="mat"))[0] == 1
        assert call(knowledge, "match_knowledge_chunks", query_embedding=NORTH)
        assert call(knowledge, "search_knowledge_chunks_fulltext", query_text="cat")


HOSTILE = {
    "quotes": "' '' \" \\ \\' ''\\",
    "tsquery": "cat & dog | !(mouse <-> x) :* <2> ((",
    "dollars": "$$ $a$ $1 $tag$ cat $tag$",
    "injection": "'); drop table public.knowledge_chunks; --",
    "comments": "/* -- */ cat --",
    "marks": "\u202ecat\u202c \u200f\u200b\ufeff",
    "letters": "\U0001d518\U0001d52b\ufdfd\u1e9e\u01c6\u0130 cat",
    "emoji": "🐈 👩‍👩‍👧 cat",
    "controls": "cat\x01\x1b\x7f\r\n\v",
    "percent": "%s %(query_text)s {0} cat%",
    "one word": "x" * 1_000_000,
    "words": " ".join(f"w{number}" for number in range(10_000)),
    "alternatives": " or ".join(f"w{number}" for number in range(10_000)),
    "exclusions": "cat " + " ".join(f"-w{number}" for number in range(5_000)),
    "phrases": " ".join(f'"a{number} b"' for number in range(3_000)),
    "open quotes": '"' * 20_001,
    "hyphens": "a-" * 20_000,
    "brackets": "(" * 20_000 + "cat" + ")" * 20_000,
    "megabytes": "cat dog " * 130_000,
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_is_answered_or_refused(knowledge: Connection, name: str, mode: str) -> None:
    store(knowledge, *ANIMALS)
    with contextlib.suppress(psycopg.errors.InvalidParameterValue):
        search(knowledge, query_text=HOSTILE[name], search_mode=mode)
    ((left,),) = knowledge.execute("select count(*) from public.knowledge_chunks").fetchall()
    assert left == len(ANIMALS)


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    text=st.text(
        st.characters(exclude_categories=["Cs"], exclude_characters="\0")
        | st.sampled_from(list("\"'\\-&|!()<>:*$ \n")),
        max_size=40,
    ),
    mode=st.sampled_from(MODES),
)
def test_any_text_is_answered(knowledge: Connection, text: str, mode: str) -> None:
    with knowledge.transaction(force_rollback=True):
        store(knowledge, {"content": text, "embedding": NORTH})
        rows = search(knowledge, query_embedding=NORTH, query_text=text, search_mode=mode)
        assert numbers(rows) == [1]
