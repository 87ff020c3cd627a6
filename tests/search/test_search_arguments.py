"""Arguments and texts: what a search refuses, and that it leaves no setting behind."""

from typing import Any

import psycopg
import pytest
from searching import ANIMALS, FUSIONS, NORTH, call, numbers, refused, search, store

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
