"""embedding_from_text: a question in words alone is searched by meaning too, by its best text hits.

The corpus has two subjects. The words of the questions are in chunks about cats; a chunk about cats
without these words is found by its embedding.
"""

import math
from typing import Any

import pytest
from searching import EAST, NORTH, UP, answer, chunk, insert, numbers, search, store

from conftest import Connection

CORPUS: tuple[dict[str, Any], ...] = (
    {"content": "a cat sleeps", "embedding": [0.9, 0.1, 0.0]},
    {"content": "a cat eats", "embedding": [0.9, 0.0, 0.1]},
    {"content": "purring pets", "embedding": NORTH},
    {"content": "granite and marble", "embedding": EAST},
)


@pytest.fixture
def corpus(knowledge: Connection) -> Connection:
    store(knowledge, *CORPUS)
    return knowledge


def from_text(database: Connection, text: str = "cat", **further: Any) -> list[dict[str, Any]]:
    return search(database, query_text=text, embedding_from_text=True, **further)


def test_a_chunk_without_the_words_is_found_by_its_likeness_to_the_text_hits(
    corpus: Connection,
) -> None:
    assert numbers(search(corpus, query_text="cat")) == [1, 2]
    rows = from_text(corpus)
    assert numbers(rows) == [1, 2, 3, 4]
    assert [row["match_type"] for row in rows] == ["both", "both", "vector", "vector"]
    assert rows[2]["similarity"] > 0.99
    assert {row["notes"]["embedding"] for row in rows} == {"from the best text hits"}
    assert all(0 <= row["confidence"] <= 1 for row in rows)


def test_similarity_is_that_to_the_mean_of_the_hits_weighted_by_squared_scores(
    corpus: Connection,
) -> None:
    store(corpus, {"id": chunk(5), "content": "cat cat", "embedding": UP})
    hits = search(corpus, query_text="cat")
    weights = [(row["text_score"] / hits[0]["text_score"]) ** 2 for row in hits]
    assert len({*weights}) > 1
    embeddings = [*(one["embedding"] for one in CORPUS), UP]
    mean = [0.0, 0.0, 0.0]
    for row, weight in zip(hits, weights, strict=True):
        direction = embeddings[row["id"].int - 1]
        length = math.hypot(*direction)
        mean = [sum_ + weight * x / length for sum_, x in zip(mean, direction, strict=True)]
    expected = search(corpus, query_embedding=mean)
    found = {row["id"]: row["similarity"] for row in from_text(corpus)}
    assert found == {row["id"]: pytest.approx(row["similarity"], abs=1e-6) for row in expected}


@pytest.mark.parametrize(
    "further", [{"vector_weight": 0}, {"query_embedding": EAST}, {"text": "unheard"}]
)
def test_nothing_is_inferred_where_it_is_not_needed_or_nothing_is_found(
    corpus: Connection, further: dict[str, Any]
) -> None:
    inferred = from_text(corpus, **further)
    text = further.pop("text", "cat")
    assert inferred == search(corpus, query_text=text, **further)


def test_hits_without_an_embedding_leave_the_text_leg(corpus: Connection) -> None:
    corpus.execute(
        "update public.knowledge_chunks set embedding = null, embedding_model = null"
        " where content like 'a cat%%'"
    )
    rows = from_text(corpus)
    assert numbers(rows) == [1, 2]
    assert [row["vector_rank"] for row in rows] == [None, None]


def test_an_embedding_of_a_wrong_size_is_replaced_where_the_caller_wants_it(
    corpus: Connection,
) -> None:
    asked = {"query_embedding": [1, 0], "query_text": "cat", "on_bad_embedding": "from_text"}
    rows = search(corpus, **asked)
    assert numbers(rows) == [1, 2, 3, 4]
    note = rows[0]["notes"]["embedding"]
    assert note.startswith("ignored: query_embedding has 2 dimensions")
    assert note.endswith("; from the best text hits")


def test_each_formulation_has_its_own(corpus: Connection) -> None:
    ways = [{"query_text": "granite"}, {"query_embedding": NORTH}]
    both = from_text(corpus, formulations=ways)
    assert {row["id"].int: row["vector_rank"] for row in both} == {1: 1, 2: 2, 3: 1, 4: 1}


def test_a_stored_weight_of_0_leaves_out_no_text_that_is_all_there_is(corpus: Connection) -> None:
    settings = {"collection": "knowledge", "fusion": "rrf", "vector_weight": 1, "text_weight": 0}
    insert(corpus, "knowledge_settings", settings)
    assert numbers(search(corpus, query_text="cat", collections=["knowledge"])) == [1, 2]
    assert numbers(from_text(corpus, collections=["knowledge"])) == [1, 2, 3, 4]


@pytest.mark.module("insight")
def test_explain_tells_of_it(corpus: Connection) -> None:
    asked = {"query_text": "cat", "embedding_from_text": True}
    found = answer(corpus, "explain_hybrid_search", **asked)
    assert found["vector"]["strategy"] == "from the best text hits: compared: few rows"
    assert found["vector"]["rows"] == 4
    assert found["hits"][0]["notes"] == {"embedding": "from the best text hits"}
    assert found["hits"][2]["vector_share"] > 0
