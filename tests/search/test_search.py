"""Searching, on a real Postgres: corpora small enough to see the right order.

Most tests share one database and roll back what they store.
"""

from itertools import pairwise
from typing import Any

import pytest
from psycopg.types.json import Jsonb
from searching import (
    ANIMALS,
    EAST,
    FUSIONS,
    MODES,
    NORTH,
    UP,
    call,
    chunk,
    numbers,
    refused,
    search,
    store,
)

from conftest import Connection


def test_a_chunk_that_both_legs_find_is_first(knowledge: Connection) -> None:
    store(knowledge, *ANIMALS)
    rows = search(knowledge, query_embedding=NORTH, query_text="dog")
    assert numbers(rows) == [2, 3, 1, 4]
    assert [row["vector_rank"] for row in rows] == [2, 3, 1, 4]
    # Both have three words, one of them dog: the tie goes to the lower id.
    assert [row["text_rank"] for row in rows] == [1, 2, None, None]
    assert [row["match_type"] for row in rows] == ["both", "both", "vector", "vector"]
    assert rows[0]["rrf_score"] == 1 / (60 + 2) + 1 / (60 + 1)
    assert rows[2]["rrf_score"] == 1 / (60 + 1)


@pytest.mark.parametrize(
    "arranged",
    [
        {},
        {"max_per_document": 4},
        {"one_per_document": True},
        {"min_confidence": 0.001},
        *(
            pytest.param(one, marks=pytest.mark.module("arrange"))
            for one in (
                {"boosts": Jsonb([{"filters": {"status": "active"}, "factor": 1}])},
                {"order_by": "document_date"},
                {"order_by": "metadata.year asc", "max_per_document": 4},
            )
        ),
    ],
    ids=str,
)
def test_ties_go_to_the_better_single_rank_then_to_the_lower_id(
    knowledge: Connection, arranged: dict[str, Any]
) -> None:
    # With rrf_k 2: 1/3 + 1/6 = 1/4 + 1/4. Four words each, so more cats is a better text rank.
    store(
        knowledge,
        {"content": "cat cat cat dog", "embedding": [0.9, 0.1, 0]},  # vector 2, text 2
        {"content": "cat dog dog dog", "embedding": [1, 0, 0]},  # vector 1, text 4
        {"content": "cat cat cat cat", "embedding": [0.5, 0.5, 0]},  # vector 4, text 1
        {"content": "cat cat dog dog", "embedding": [0.8, 0.3, 0]},  # vector 3, text 3
    )
    rows = search(knowledge, query_embedding=NORTH, query_text="cat", rrf_k=2, **arranged)
    assert [(row["vector_rank"], row["text_rank"]) for row in rows] == [
        (1, 4),
        (4, 1),
        (2, 2),
        (3, 3),
    ]
    assert [row["rrf_score"] for row in rows] == [0.5, 0.5, 0.5, 0.4]
    assert numbers(rows) == [2, 3, 1, 4]


def test_equal_chunks_are_ranked_by_id(knowledge: Connection) -> None:
    store(knowledge, *[{"content": "a kettle", "embedding": NORTH}] * 4)
    rows = search(knowledge, query_embedding=NORTH, query_text="kettle", match_count=3)
    assert numbers(rows) == [1, 2, 3]
    assert [(row["vector_rank"], row["text_rank"]) for row in rows] == [(1, 1), (2, 2), (3, 3)]


def test_relative_score_scales_each_leg_to_its_pool(knowledge: Connection) -> None:
    store(
        knowledge,
        {"content": "cat cat cat dog", "embedding": [1, 0, 0]},  # 1 by vector
        {"content": "cat dog dog dog", "embedding": [0, 1, 0]},  # 0 by vector, last by text
        {"content": "cat cat cat cat", "embedding": None},  # first by text
        {"content": "other", "embedding": [0.6, 0.8, 0]},  # 0.6 by vector
    )
    rows = search(
        knowledge,
        query_embedding=NORTH,
        query_text="cat",
        fusion="relative_score",
        vector_weight=0.5,
        text_weight=2,
    )
    least, middle, best = sorted(row["text_score"] for row in rows if row["text_score"])
    expected = {1: 0.5 + 2 * (middle - least) / (best - least), 2: 0, 3: 2, 4: 0.5 * 0.6}
    found = {row["id"].int: row["rrf_score"] for row in rows}
    assert found == pytest.approx(expected, abs=1e-6)
    assert numbers(rows) == sorted(expected, key=lambda one: -expected[one])


@pytest.mark.parametrize("fusion", FUSIONS)
def test_every_hit_of_the_text_leg_alone_has_a_score(knowledge: Connection, fusion: str) -> None:
    store(knowledge, "cat", "cat dog", "other")
    rows = search(knowledge, query_text="cat dog", fusion=fusion)
    assert numbers(rows) == [2, 1]
    assert rows[0]["rrf_score"] > rows[1]["rrf_score"] > 0.01
    if fusion == "relative_score":
        share = rows[1]["text_score"] / rows[0]["text_score"]
        assert [row["rrf_score"] for row in rows] == pytest.approx([1, share])


@pytest.mark.parametrize("fusion", FUSIONS)
def test_a_fusion_orders_one_leg_as_the_leg_does(knowledge: Connection, fusion: str) -> None:
    store(knowledge, *ANIMALS)
    by_vector = search(knowledge, query_embedding=NORTH, fusion=fusion)
    assert [row["vector_rank"] for row in by_vector] == [1, 2, 3, 4]
    by_text = search(knowledge, query_text="dog cat mat", fusion=fusion)
    assert [row["text_rank"] for row in by_text] == [1, 2, 3]


@pytest.mark.parametrize("fusion", FUSIONS)
def test_a_fusion_orders_by_its_score(knowledge: Connection, fusion: str) -> None:
    store(knowledge, *ANIMALS)
    rows = search(knowledge, query_embedding=EAST, query_text="cat markets", fusion=fusion)
    assert set(numbers(rows)) == {1, 2, 3, 4}
    assert all(one["rrf_score"] >= other["rrf_score"] for one, other in pairwise(rows))


# Which legs run.


def test_without_an_embedding_only_the_text_leg_runs(knowledge: Connection) -> None:
    store(knowledge, *ANIMALS)
    rows = search(knowledge, query_text="mat")
    assert numbers(rows) == [1]
    assert rows[0]["match_type"] == "text"
    assert (rows[0]["vector_rank"], rows[0]["similarity"]) == (None, None)
    assert rows[0]["rrf_score"] == 1 / 61


@pytest.mark.parametrize("blank", [None, "", "  \n\t "])
def test_without_words_only_the_vector_leg_runs(knowledge: Connection, blank: str | None) -> None:
    store(knowledge, *ANIMALS)
    rows = search(knowledge, query_embedding=EAST, query_text=blank)
    assert numbers(rows) == [3, 2, 1, 4]
    assert {row["match_type"] for row in rows} == {"vector"}
    assert {row["text_rank"] for row in rows} == {row["text_score"] for row in rows} == {None}
    assert [row["matched_terms"] for row in rows] == [[]] * 4
    assert [row["similarity"] for row in rows] == pytest.approx([1, 0.6, 0, 0], abs=1e-6)


def test_a_leg_of_weight_0_is_not_run(knowledge: Connection) -> None:
    store(knowledge, *ANIMALS)
    rows = search(knowledge, query_embedding=NORTH, query_text="wolves", text_weight=0)
    assert [row["text_rank"] for row in rows] == [None] * 4
    rows = search(knowledge, query_embedding=NORTH, query_text="wolves", vector_weight=0)
    assert [(row["id"].int, row["vector_rank"]) for row in rows] == [(3, None)]


def test_weights_decide_between_the_legs(knowledge: Connection) -> None:
    store(knowledge, *ANIMALS)
    query: dict[str, Any] = {"query_embedding": NORTH, "query_text": "markets", "match_count": 1}
    # Chunk 1 is first by vector alone, chunk 4 last by vector and first by text.
    assert numbers(search(knowledge, **query)) == [4]
    assert numbers(search(knowledge, **query, vector_weight=100, text_weight=0.5)) == [1]


def test_a_chunk_without_embedding_is_found_by_its_words(knowledge: Connection) -> None:
    store(knowledge, "not embedded yet", {"content": "other", "embedding": NORTH})
    rows = search(knowledge, query_embedding=NORTH, query_text="embedded")
    assert [(row["id"].int, row["match_type"]) for row in rows] == [(1, "text"), (2, "vector")]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("text", ["the and of", "!!! ?? ...", "-", '""', "-mat", "unheard"])
def test_words_that_select_nothing_leave_the_vector_leg(
    knowledge: Connection, mode: str, text: str
) -> None:
    store(knowledge, {"content": "stock markets fell", "embedding": UP})
    assert search(knowledge, query_text=text, search_mode=mode) == []
    rows = search(knowledge, query_embedding=UP, query_text=text, search_mode=mode)
    assert [(row["id"].int, row["text_rank"]) for row in rows] == [(1, None)]


def test_an_empty_corpus_gives_no_rows(knowledge: Connection) -> None:
    assert search(knowledge, query_embedding=NORTH, query_text="cat") == []


# Filters.


def test_match_threshold_is_a_bound_on_the_vector_leg_alone(knowledge: Connection) -> None:
    store(knowledge, *ANIMALS)
    rows = search(knowledge, query_embedding=NORTH, query_text="markets", match_threshold=0.5)
    assert [(row["id"].int, row["match_type"]) for row in rows] == [
        (1, "vector"),
        (4, "text"),
        (2, "vector"),
    ]


@pytest.mark.parametrize(
    ("threshold", "found"), [(-1, [1, 2, 3]), (0, [1, 2]), (0.7, [1]), (1, [1])]
)
def test_match_threshold_includes_the_similarity_that_it_names(
    knowledge: Connection, threshold: float, found: list[int]
) -> None:
    store(knowledge, {"embedding": NORTH}, {"embedding": EAST}, {"embedding": [-1, 0, 0]})
    rows = search(knowledge, query_embedding=NORTH, match_threshold=threshold)
    assert numbers(rows) == found


def test_filter_type_holds_in_both_legs(knowledge: Connection) -> None:
    kinds = ["note", "task", "note", "task"]
    store(
        knowledge,
        *(one | {"knowledge_type": kind} for one, kind in zip(ANIMALS, kinds, strict=True)),
    )
    rows = search(knowledge, query_embedding=NORTH, query_text="cat wolves", filter_type="note")
    assert set(numbers(rows)) == {1, 3}
    # Ranks are counted among the rows that pass.
    assert sorted(row["vector_rank"] for row in rows) == [1, 2]


@pytest.mark.parametrize("status", ["superseded", "archived", "deleted"])
def test_only_active_chunks_are_found(knowledge: Connection, status: str) -> None:
    store(knowledge, ANIMALS[0] | {"status": status}, ANIMALS[1])
    rows = search(knowledge, query_embedding=NORTH, query_text="cat")
    assert numbers(rows) == [2]


def test_a_pool_is_raised_to_match_count(knowledge: Connection) -> None:
    store(knowledge, *[{"content": "a kettle", "embedding": NORTH}] * 5)
    rows = search(knowledge, query_embedding=NORTH, query_text="kettle", pool_size=1, match_count=4)
    ranks = [(row["vector_rank"], row["text_rank"]) for row in rows]
    assert ranks == [(1, 1), (2, 2), (3, 3), (4, 4)]


def test_a_pool_bounds_each_leg(knowledge: Connection) -> None:
    store(knowledge, *ANIMALS)
    rows = search(knowledge, query_embedding=NORTH, query_text="wolves", pool_size=1, match_count=1)
    # Both are first in their leg; the tie goes to the lower id.
    assert numbers(rows) == [1]
    rows = search(knowledge, query_embedding=NORTH, query_text="wolves", pool_size=2, match_count=2)
    assert [(row["id"].int, row["vector_rank"]) for row in rows] == [(1, 1), (3, None)]


# The columns of a hit.


def test_matched_terms_are_the_words_as_typed_in_the_order_of_the_query(
    knowledge: Connection,
) -> None:
    store(
        knowledge,
        {"content": "running cats on the DS-7604", "embedding": NORTH},
        {"content": "a cat", "embedding": NORTH},
    )
    rows = search(knowledge, query_text='The DS-7604, (Cat) absent "RUN" cat')
    assert [(row["id"].int, row["matched_terms"]) for row in rows] == [
        (1, ["DS-7604", "Cat", "RUN"])
    ]
    rows = search(knowledge, query_text="The DS-7604, (Cat) absent run cat unheard-of")
    assert [(row["id"].int, row["matched_terms"]) for row in rows] == [
        (1, ["DS-7604", "Cat", "run"]),
        (2, ["Cat"]),
    ]


@pytest.mark.parametrize(
    ("query", "content", "expected"),
    [
        ("lru_cache", "a cache of rows", ["cache"]),
        ("lru_cache", "the lru_cache of rows", ["lru_cache"]),
        ("lru_cache", "the cache is an LRU", ["lru", "cache"]),
        ("lru_cache", "the LRU cache", ["lru_cache"]),
        ("lru_cache Cache", "a cache of rows", ["Cache"]),
        ("E-1042 LRU_CACHE lru_cache", "E-2001 at the LRU", ["E", "LRU"]),
        ("red,green", "green", ["green"]),
        (".NET", "dotNET", ["NET"]),
        ("\u5168\u6587\u68c0\u7d22", "\u5168\u6587", ["\u5168\u6587"]),
    ],
)
def test_a_hit_with_a_part_of_a_compound_has_that_part_as_matched_term(
    knowledge: Connection, query: str, content: str, expected: list[str]
) -> None:
    store(knowledge, content)
    (row,) = search(knowledge, query_text=query)
    assert row["text_rank"] == 1
    assert row["matched_terms"] == expected


def test_a_word_of_one_question_is_no_part_of_another_ones_compound(knowledge: Connection) -> None:
    store(knowledge, "the lru_cache")
    (row,) = search(
        knowledge, query_text="lru_cache", formulations=Jsonb([{"query_text": "cache"}])
    )
    assert row["matched_terms"] == ["lru_cache", "cache"]


def test_a_hit_of_the_vector_leg_also_has_matched_terms(knowledge: Connection) -> None:
    store(
        knowledge,
        {"content": "cat and dog", "embedding": NORTH},
        {"content": "dog", "embedding": NORTH},
    )
    rows = search(knowledge, query_embedding=NORTH, query_text="dog cat", search_mode="simple")
    assert [(row["match_type"], row["matched_terms"]) for row in rows] == [
        ("both", ["dog", "cat"]),
        ("vector", ["dog"]),
    ]


def test_a_hit_carries_its_columns_and_its_documents(knowledge: Connection) -> None:
    knowledge.execute(
        "insert into public.knowledge_documents"
        " (id, external_key, title, source_url, knowledge_type, source_origin, metadata)"
        " values (%s, 'key', 'A title', 'https://example.org', 'decision', 'web', '{\"a\": 1}')",
        [chunk(99)],
    )
    store(
        knowledge,
        {
            "document_id": chunk(99),
            "chunk_index": 3,
            "content": "alpha",
            "embedding": NORTH,
            "metadata": {"b": [2]},
        },
        {"content": "alpha beta beta beta", "embedding": EAST},
    )
    mine, orphan = search(knowledge, query_embedding=NORTH, query_text="alpha")
    expected = {
        "id": chunk(1),
        "content": "alpha",
        "knowledge_type": "decision",
        "document_id": chunk(99),
        "chunk_index": 3,
        "source_origin": "web",
        "metadata": {"a": 1, "b": [2]},
        "vector_rank": 1,
        "text_rank": 1,
        "match_type": "both",
        "matched_terms": ["alpha"],
        "title": "A title",
        "source_url": "https://example.org",
    }
    assert {name: mine[name] for name in expected} == expected
    assert list(mine)[:16] == [
        *list(expected)[:7],
        "rrf_score",
        "vector_rank",
        "text_rank",
        "similarity",
        "text_score",
        "match_type",
        "matched_terms",
        "title",
        "source_url",
    ]
    without = ("document_id", "chunk_index", "title", "source_url")
    assert [orphan[name] for name in without] == [None] * 4


def test_a_heading_is_searched_with_the_content(knowledge: Connection) -> None:
    store(knowledge, {"heading": "Deployment", "content": "Push the button."}, {})
    (row,) = search(knowledge, query_text="deployment")
    assert (row["id"].int, row["content"]) == (1, "Push the button.")


# One leg at a time.


def test_match_knowledge_chunks_is_the_vector_leg(knowledge: Connection) -> None:
    store(knowledge, *ANIMALS)
    rows = call(knowledge, "match_knowledge_chunks", query_embedding=NORTH, match_threshold=0)
    assert numbers(rows) == [1, 2, 3, 4]
    assert list(rows[0]) == [
        "id",
        "content",
        "knowledge_type",
        "document_id",
        "chunk_index",
        "source_origin",
        "metadata",
        "similarity",
    ]
    assert rows[1]["similarity"] == pytest.approx(0.8, abs=1e-6)
    # The default threshold is 0.6, the default count 5.
    assert numbers(call(knowledge, "match_knowledge_chunks", query_embedding=NORTH)) == [1, 2]
    knowledge.execute(
        "insert into public.knowledge_chunks (content, embedding)"
        " select 'more', '[1,0,0]' from generate_series(1, 9)"
    )
    assert len(call(knowledge, "match_knowledge_chunks", query_embedding=NORTH)) == 5


def test_search_knowledge_chunks_fulltext_is_the_text_leg(knowledge: Connection) -> None:
    store(knowledge, *ANIMALS)
    whole = search(knowledge, query_text="dog cat")
    rows = call(knowledge, "search_knowledge_chunks_fulltext", query_text="dog cat")
    assert [(row["id"], row["rank"]) for row in rows] == [
        (row["id"], row["text_score"]) for row in whole
    ]
    assert list(rows[0])[-1] == "rank"
    assert len(rows[0]) == 8
    assert numbers(
        call(
            knowledge,
            "search_knowledge_chunks_fulltext",
            query_text="dog cat",
            search_mode="simple",
            filter_type="document",
            match_count=1,
        )
    ) == [2]


@pytest.mark.parametrize(
    ("function", "arguments", "named"),
    [
        ("match_knowledge_chunks", {"query_embedding": None}, "query_embedding"),
        ("match_knowledge_chunks", {"query_embedding": [1, 2]}, "query_embedding"),
        ("match_knowledge_chunks", {"match_count": 0}, "match_count"),
        ("match_knowledge_chunks", {"match_count": None}, "match_count"),
        ("match_knowledge_chunks", {"match_threshold": 2}, "match_threshold"),
        ("match_knowledge_chunks", {"filter_type": "x"}, "filter_type"),
        ("search_knowledge_chunks_fulltext", {"query_text": None}, "query_text"),
        ("search_knowledge_chunks_fulltext", {"query_text": " \n"}, "query_text"),
        ("search_knowledge_chunks_fulltext", {"search_mode": "x"}, "search_mode"),
        ("search_knowledge_chunks_fulltext", {"match_count": 1001}, "match_count"),
        ("search_knowledge_chunks_fulltext", {"filter_type": "x"}, "filter_type"),
    ],
)
def test_a_single_leg_refuses_by_name(
    knowledge: Connection, function: str, arguments: dict[str, Any], named: str
) -> None:
    needed: dict[str, Any] = (
        {"query_embedding": NORTH} if function.startswith("match") else {"query_text": "cat"}
    )
    assert refused(knowledge, function, **needed | arguments).startswith(named)
