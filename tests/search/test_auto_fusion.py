"""Fusion auto: cosines over three standard deviations of the corpus, and BM25 over the best one."""

import math
from operator import mul
from random import Random
from statistics import stdev
from typing import Any

import pytest
from searching import NORTH, NORTH_EAST, Row, call, numbers, store

from conftest import Connection


def search(connection: Connection, **arguments: Any) -> list[Row]:
    given = {"query_embedding": NORTH, "query_text": "alpha beta", "fusion": "auto", **arguments}
    return call(connection, "hybrid_search_knowledge_chunks", **given)


def spread(connection: Connection) -> float:
    ((value,),) = connection.execute("select knowledge_internal.cosine_spread()").fetchall()
    return float(value)


def test_an_identifier_comes_before_the_nearest_chunk_with_every_other_word(
    knowledge: Connection,
) -> None:
    store(
        knowledge,
        {"content": "clear the cache of the lru", "embedding": NORTH},
        {"content": f"functools.lru_cache {'filler ' * 50}", "embedding": [-1, 0.1, 0]},
        {"content": "clear", "embedding": NORTH_EAST},
    )
    for weights in ({}, {"vector_weight": 9}, {"text_weight": 0.01}):
        rows = search(
            knowledge,
            query_text="clear the cache of functools.lru_cache",
            match_threshold=-1,
            **weights,
        )
        assert numbers(rows)[0] == 2
        least, best = rows[1], rows[0]
        vector, text = weights.get("vector_weight", 1), weights.get("text_weight", 1)
        scale = 3 * spread(knowledge)
        tier = 2 * vector / scale + text
        assert best["rrf_score"] == pytest.approx(vector * best["similarity"] / scale + text + tier)
        assert least["rrf_score"] < best["rrf_score"]
        assert 0 <= least["confidence"] <= best["confidence"] <= 1


def drawn(count: int) -> list[list[float]]:
    random = Random(15)
    return [[random.gauss(1, 1), random.gauss(0, 1), random.gauss(0, 1)] for _ in range(count)]


def sampled(connection: Connection, sample_size: int) -> float:
    ((value,),) = connection.execute(
        "select knowledge_internal.sampled_spread(%s)", [sample_size]
    ).fetchall()
    return float(value)


def test_the_spread_is_the_standard_deviation_of_the_cosines_of_pairs(
    knowledge: Connection,
) -> None:
    points = drawn(40)
    store(knowledge, *({"embedding": point} for point in points))
    cosines = [
        sum(map(mul, one, other)) / math.hypot(*one) / math.hypot(*other)
        for place, one in enumerate(points)
        for other in points[:place]
    ]
    assert sampled(knowledge, 40) == pytest.approx(stdev(cosines), rel=1e-5)
    # A sample of the same chunks each time, near the whole.
    assert sampled(knowledge, 20) == sampled(knowledge, 20) != sampled(knowledge, 40)
    assert sampled(knowledge, 20) == pytest.approx(stdev(cosines), rel=0.3)


def test_only_active_chunks_count_for_the_spread(knowledge: Connection) -> None:
    store(knowledge, *({"embedding": point} for point in drawn(20)))
    before = sampled(knowledge, 100)
    knowledge.execute(
        "insert into public.knowledge_chunks (content, embedding, status)"
        " select 'gone', '[-1,0,0]', 'archived' from generate_series(1, 20)"
    )
    assert sampled(knowledge, 100) == before


def test_a_tiny_or_uniform_corpus_has_a_usable_spread(knowledge: Connection) -> None:
    store(knowledge, *({"embedding": NORTH} for _ in range(4)))
    assert sampled(knowledge, 48) == 0.13
    assert search(knowledge)[0]["rrf_score"] == pytest.approx(1 / 0.39)
    knowledge.execute(
        "insert into public.knowledge_chunks (content, embedding)"
        " select 'more', '[1,0,0]' from generate_series(1, 10)"
    )
    assert sampled(knowledge, 48) == 0.02
