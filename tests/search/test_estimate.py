"""estimate_hybrid_search: how a search would find its rows, and how many, without a search."""

from typing import Any

import pytest

from conftest import Connection
from second_brain.services.postgres import PostgresProvider

pytestmark = pytest.mark.module("insight")

CHUNKS, RARE = 1200, 24
"""More chunks than a small corpus has; one in 50 has the rare word and is a note."""
FILL = f"""
select setseed(0.3);
insert into public.knowledge_chunks (content, embedding, knowledge_type)
select case when is_rare then 'common rare' else 'common usual' end,
       array[random() - 0.5, random() - 0.5, random() - 0.5]::extensions.vector,
       case when is_rare then 'note' else 'document' end
  from generate_series(1, {CHUNKS}) as number, lateral (select number % 50 = 0) as row (is_rare)
"""


@pytest.fixture(scope="module")
def corpus(shared: Connection) -> Connection:
    shared.execute(FILL.encode())
    shared.execute("vacuum analyze public.knowledge_chunks")
    shared.execute("select public.refresh_knowledge_statistics()")
    return shared


def estimate(connection: Connection, *question: Any, **options: Any) -> dict[str, Any]:
    return PostgresProvider(connection).estimate_hybrid_search(*question, **options)


def test_the_rows_of_a_word_are_those_of_the_statistics(corpus: Connection) -> None:
    rare, common = (estimate(corpus, None, word)["text"] for word in ("rare", "common"))
    assert rare["rows"] == pytest.approx(RARE, rel=0.1)
    assert common["rows"] == pytest.approx(CHUNKS, rel=0.1)
    assert rare["milliseconds"] > 0


def test_it_names_the_strategies_that_the_search_has(corpus: Connection) -> None:
    given: Any = ([1, 0, 0], "rare common")
    ways: list[dict[str, Any]] = [{}, {"filter_type": "note"}]
    for options in ways:
        estimated = estimate(corpus, *given, **options)
        explained = PostgresProvider(corpus).explain_hybrid_search(*given, **options)
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
    # The rows of both collections, each of which is read as a whole.
    assert two["text"]["rows"] == pytest.approx(CHUNKS, rel=0.1)


def test_an_empty_corpus_costs_little(database: Connection) -> None:
    nothing = estimate(database, [1, 0, 0], "rare")
    assert nothing["text"]["rows"] == 0
    assert nothing["milliseconds"] < 1000
