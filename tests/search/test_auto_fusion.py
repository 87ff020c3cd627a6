"""Fusion auto: cosines over three standard deviations of the corpus, and BM25 over the best one."""

import math
from operator import mul
from random import Random
from statistics import stdev
from typing import Any

import pytest
from psycopg.types.json import Jsonb
from searching import EAST, NORTH, NORTH_EAST, UP, Row, call, chunk, numbers, store

from conftest import Connection

MIXED: list[dict[str, Any]] = [
    {"content": "alpha beta", "embedding": NORTH_EAST},
    {"content": "alpha alpha and many other long words", "embedding": UP},
    {"content": "other", "embedding": NORTH},
    {"content": "other words", "embedding": EAST},
    {"content": "beta", "embedding": None},
]


def search(connection: Connection, **arguments: Any) -> list[Row]:
    given = {"query_embedding": NORTH, "query_text": "alpha beta", "fusion": "auto", **arguments}
    return call(connection, "hybrid_search_knowledge_chunks", **given)


def spread(connection: Connection) -> float:
    ((value,),) = connection.execute("select knowledge_internal.cosine_spread()").fetchall()
    return float(value)


def formula(
    rows: list[Row], scale: float, vector_weight: float, text_weight: float, missing: float
) -> list[float]:
    """Score rows; no cosine counts as the least of its leg, no BM25 as `missing`."""
    cosines = [row["similarity"] for row in rows if row["vector_rank"]]
    best = max(row["text_score"] for row in rows if row["text_rank"])
    return [
        vector_weight * (row["similarity"] if row["vector_rank"] else min(cosines)) / scale
        + text_weight * (row["text_score"] if row["text_rank"] else missing) / best
        for row in rows
    ]


@pytest.mark.parametrize(("vector_weight", "text_weight"), [(1, 1), (0.25, 1), (1, 3)])
@pytest.mark.parametrize("match_threshold", [-1, 0.5])
def test_a_score_is_the_weighted_sum_of_the_formula(
    knowledge: Connection, match_threshold: float, vector_weight: float, text_weight: float
) -> None:
    store(knowledge, *MIXED)
    weights = {"vector_weight": vector_weight, "text_weight": text_weight}
    rows = search(knowledge, match_threshold=match_threshold, **weights)
    assert {row["match_type"] for row in rows} == {"both", "vector", "text"}
    # The pool of the text leg is not full: who is not in it has no word.
    expected = formula(rows, 3 * spread(knowledge), vector_weight, text_weight, missing=0)
    assert [row["rrf_score"] for row in rows] == pytest.approx(expected)
    assert expected == sorted(expected, reverse=True)


def test_bm25_beyond_a_full_pool_is_the_least_of_the_pool(knowledge: Connection) -> None:
    far: list[dict[str, Any]] = [
        {"content": f"alpha {'long ' * n}", "embedding": UP} for n in range(3)
    ]
    near: list[dict[str, Any]] = [
        {"content": f"alpha {'long ' * 9}", "embedding": [1, 0.1 * n, 0]} for n in range(3)
    ]
    store(knowledge, *far, *near)
    rows = search(knowledge, query_text="alpha", pool_size=3, match_count=3)
    whole = search(knowledge, query_text="alpha", pool_size=3, match_count=3, match_offset=3)
    least = min(row["text_score"] for row in (*rows, *whole) if row["text_rank"])
    expected = formula([*rows, *whole], 3 * spread(knowledge), 1, 1, missing=least)
    assert [row["rrf_score"] for row in (*rows, *whole)] == pytest.approx(expected)
    assert {row["match_type"] for row in (*rows, *whole)} == {"vector", "text"}


def test_without_words_in_any_chunk_the_cosine_decides(knowledge: Connection) -> None:
    store(knowledge, *MIXED)
    rows = search(knowledge, query_text="zebra", match_threshold=-1)
    assert [row["rrf_score"] for row in rows] == pytest.approx(
        [row["similarity"] / (3 * spread(knowledge)) for row in rows]
    )


def test_without_embeddings_bm25_decides(knowledge: Connection) -> None:
    store(knowledge, *({**one, "embedding": None} for one in MIXED))
    rows = search(knowledge)
    best = rows[0]["text_score"]
    assert [row["rrf_score"] for row in rows] == pytest.approx(
        [row["text_score"] / best for row in rows]
    )


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


def test_lists_are_added(knowledge: Connection) -> None:
    store(knowledge, *MIXED)
    alone = [
        {row["id"]: row["rrf_score"] for row in search(knowledge, query_text=text)}
        for text in ("alpha", "beta")
    ]
    beta = [{"query_text": "beta", "query_embedding": NORTH}]
    both = search(knowledge, query_text="alpha", formulations=Jsonb(beta))
    assert {row["id"]: row["rrf_score"] for row in both} == {
        one: pytest.approx(sum(scores.get(one, 0) for scores in alone))
        for one in alone[0].keys() | alone[1].keys()
    }


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


def test_statistics_keep_the_spread(shared: Connection) -> None:
    store(shared, *({"embedding": point} for point in drawn(60)))
    try:
        shared.execute("analyze public.knowledge_chunks")
        shared.execute("select public.refresh_knowledge_statistics()")
        kept = spread(shared)
        assert kept == sampled(shared, 200)
        shared.execute("delete from public.knowledge_chunks where id > %s", [chunk(12)])
        assert spread(shared) == kept != sampled(shared, 200)
    finally:
        shared.execute("truncate public.knowledge_chunks")
        shared.execute("truncate public.knowledge_corpus_statistics")
