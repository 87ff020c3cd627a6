"""estimate_hybrid_search: how a search would find its rows, and how many, without a search."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from second_brain.services.postgres import PostgresProvider

pytestmark = pytest.mark.module("insight")

Connection = psycopg.Connection[Any]
CHUNKS = 1200
"""More than a small corpus has."""

RARE = 24
"""One chunk in 50 has the word and is a note."""

FILL = f"""
insert into public.knowledge_chunks (content, embedding, knowledge_type)
select 'common ' || case when row.number % 50 = 0 then 'rare' else 'usual' end,
       array[random() - 0.5, random() - 0.5, random() - 0.5]::extensions.vector,
       case when row.number % 50 = 0 then 'note' else 'document' end
  from generate_series(1, {CHUNKS}) as row (number)
"""


@pytest.fixture(scope="module")
def corpus(shared_dsn: str) -> Iterator[Connection]:
    """A connection to a corpus with statistics."""
    with psycopg.connect(shared_dsn, autocommit=True) as connection:
        connection.execute("select setseed(0.3)")
        connection.execute(FILL.encode())
        connection.execute("vacuum analyze public.knowledge_chunks")
        connection.execute("select public.refresh_knowledge_statistics()")
        yield connection


def estimate(connection: Connection, *question: Any, **options: Any) -> dict[str, Any]:
    return PostgresProvider(connection).estimate_hybrid_search(*question, **options)


def test_the_rows_of_a_word_are_those_of_the_statistics(corpus: Connection) -> None:
    rare, common = (estimate(corpus, None, word)["text"] for word in ("rare", "common"))
    assert rare["rows"] == pytest.approx(RARE, rel=0.1)
    assert common["rows"] == pytest.approx(CHUNKS, rel=0.1)
    assert rare["milliseconds"] > 0


def test_it_names_the_strategies_that_the_search_has(corpus: Connection) -> None:
    provider = PostgresProvider(corpus)
    given: Any = ([1, 0, 0], "rare common")
    ways: list[dict[str, Any]] = [{}, {"filter_type": "note"}]
    for options in ways:
        estimated = provider.estimate_hybrid_search(*given, **options)
        explained = provider.explain_hybrid_search(*given, **options)
        for leg in ("vector", "text"):
            assert estimated[leg]["strategy"] == explained[leg]["strategy"], (leg, options)


def test_a_filter_leaves_few_rows_to_compare(corpus: Connection) -> None:
    whole, narrow = (
        estimate(corpus, [1, 0, 0], None, **options) for options in ({}, {"filter_type": "note"})
    )
    assert whole["matching"] == pytest.approx(CHUNKS, rel=0.1)
    assert narrow["matching"] < CHUNKS / 10
    assert narrow["vector"]["rows"] == narrow["matching"]
    assert narrow["text"] == {"strategy": "not run", "rows": 0, "milliseconds": None}


def test_the_parts_and_each_collection_are_summed(corpus: Connection) -> None:
    one = estimate(corpus, [1, 0, 0], "rare", snippet=True)
    parts = [one[part]["milliseconds"] for part in ("reading", "vector", "text")]
    assert all(part > 0 for part in parts)
    assert one["milliseconds"] > sum(parts)
    two = estimate(corpus, None, "common", collections=["knowledge", "memory"])
    assert two["lists"] == 2
    assert two["text"]["rows"] == pytest.approx(2 * CHUNKS, rel=0.1)


def test_an_empty_corpus_costs_little(database: Connection) -> None:
    nothing = estimate(database, [1, 0, 0], "rare")
    assert nothing["text"]["rows"] == 0
    assert nothing["milliseconds"] < 1000
