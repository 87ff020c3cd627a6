"""Searching, on a real Postgres: corpora small enough to see the right order.

Most tests share one database and roll back what they store.
"""

from typing import Any

import pytest
from psycopg.types.json import Jsonb
from searching import (
    ANIMALS,
    EAST,
    MODES,
    NORTH,
    UP,
    call,
    chunk,
    numbers,
    search,
    searched,
    store,
    store_document,
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


# Which legs run.


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("text", ["the and of", "!!! ?? ...", "-", '""', "-mat", "unheard"])
def test_words_that_select_nothing_leave_the_vector_leg(
    knowledge: Connection, mode: str, text: str
) -> None:
    store(knowledge, {"content": "stock markets fell", "embedding": UP})
    assert search(knowledge, query_text=text, search_mode=mode) == []
    rows = search(knowledge, query_embedding=UP, query_text=text, search_mode=mode)
    assert [(row["id"].int, row["text_rank"]) for row in rows] == [(1, None)]


# Filters.


@pytest.mark.parametrize(
    ("threshold", "found"), [(-1, [1, 2, 3]), (0, [1, 2]), (0.7, [1]), (1, [1])]
)
def test_match_threshold_includes_the_similarity_that_it_names(
    knowledge: Connection, threshold: float, found: list[int]
) -> None:
    store(knowledge, {"embedding": NORTH}, {"embedding": EAST}, {"embedding": [-1, 0, 0]})
    rows = search(knowledge, query_embedding=NORTH, match_threshold=threshold)
    assert numbers(rows) == found


def test_a_pool_is_raised_to_match_count(knowledge: Connection) -> None:
    store(knowledge, *[{"content": "a kettle", "embedding": NORTH}] * 5)
    rows = search(knowledge, query_embedding=NORTH, query_text="kettle", pool_size=1, match_count=4)
    ranks = [(row["vector_rank"], row["text_rank"]) for row in rows]
    assert ranks == [(1, 1), (2, 2), (3, 3), (4, 4)]


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


def test_a_hit_with_a_part_of_a_compound_has_that_part_as_matched_term(
    knowledge: Connection,
) -> None:
    for query, content, expected in (
        ("lru_cache", "a cache of rows", ["cache"]),
        ("lru_cache", "the lru_cache of rows", ["lru_cache"]),
        ("lru_cache", "the cache is an LRU", ["lru", "cache"]),
        ("lru_cache", "the LRU cache", ["lru_cache"]),
        ("lru_cache Cache", "a cache of rows", ["Cache"]),
        ("E-1042 LRU_CACHE lru_cache", "E-2001 at the LRU", ["E", "LRU"]),
        ("red,green", "green", ["green"]),
        (".NET", "dotNET", ["NET"]),
        ("\u5168\u6587\u68c0\u7d22", "\u5168\u6587", ["\u5168\u6587"]),
        ("2.10.3", "On 3 May we sold 10 of 2 kinds", ["2", "10", "3"]),
        ("1,234.5", "5 of 234 in 1", ["1", "234", "5"]),
        ("user_name", "the name of a user", ["user", "name"]),
        ("src/main.py", "py and src", ["src", "py"]),
        ("joe@example.com", "example by joe", ["joe", "example"]),
        ("2.10.3", "at 2.10.3 now", ["2.10.3"]),
        ("DS-7604", "a DS7604", ["DS-7604"]),
    ):
        (row,) = searched(knowledge, query, content)
        assert row["text_rank"] == 1
        assert row["matched_terms"] == expected, query


def test_a_word_of_one_question_is_no_part_of_another_ones_compound(knowledge: Connection) -> None:
    store(knowledge, "the lru_cache")
    (row,) = search(
        knowledge, query_text="lru_cache", formulations=Jsonb([{"query_text": "cache"}])
    )
    assert row["matched_terms"] == ["lru_cache", "cache"]


def test_a_hit_carries_its_columns_and_its_documents(knowledge: Connection) -> None:
    document = {"title": "A title", "source_url": "https://example.org"}
    document |= {"knowledge_type": "decision", "source_origin": "web"}
    store_document(knowledge, chunk(99), **document, metadata=Jsonb({"a": 1}))
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
