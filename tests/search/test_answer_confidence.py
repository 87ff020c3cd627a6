"""answer_confidence: one number for a whole answer, by the first hit's cosine and its words."""

import math
from typing import Any

import pytest
from searching import FUSIONS, Row, answer, call, numbers, search, store

from conftest import Connection

EAST, NORTH, NORTH_EAST = [1, 0, 0], [0, 1, 0], [0.6, 0.8, 0]
CORPUS: tuple[dict[str, Any], ...] = (
    {"content": "alpha beta", "embedding": EAST},
    {"content": "alpha gamma", "embedding": NORTH},
    {"content": "alpha delta", "embedding": NORTH_EAST},
    {"content": "epsilon alpha epsilon"},
)


@pytest.fixture
def corpus(knowledge: Connection) -> Connection:
    store(knowledge, *CORPUS)
    return knowledge


def of_answer(rows: list[Row]) -> float:
    (found,) = {row["answer_confidence"] for row in rows}
    assert isinstance(found, float)
    return found


def logistic(evidence: float) -> float:
    return 1 / (1 + math.exp(-evidence))


def coverage(text: str, words: str) -> float:
    """Return the idf of the words of a question that a text has over the idf of all."""

    def idf(word: str) -> float:
        frequency = sum(word in one["content"].split() for one in CORPUS)
        return math.log(1 + (len(CORPUS) - frequency + 0.5) / (frequency + 0.5))

    asked = words.split()
    return sum(idf(word) for word in asked if word in text.split()) / sum(map(idf, asked))


def test_it_is_the_formula_over_the_first_hit(corpus: Connection) -> None:
    for words in ("alpha beta", "gamma beta", "alpha unheard", "beta beta alpha"):
        for fusion in FUSIONS:
            rows = search(corpus, query_embedding=NORTH_EAST, query_text=words, fusion=fusion)
            first = CORPUS[rows[0]["id"].int - 1]
            cosine = sum(a * b for a, b in zip(NORTH_EAST, first["embedding"], strict=True))
            evidence = 15 * cosine + 8.7 * coverage(first["content"], words) - 9.2
            assert of_answer(rows) == pytest.approx(logistic(evidence))


def test_without_a_leg_it_is_the_formula_of_the_other(corpus: Connection) -> None:
    nearest = search(corpus, query_embedding=[0.3, 0.4, 0.75**0.5])
    assert numbers(nearest)[0] == 3
    assert of_answer(nearest) == pytest.approx(logistic(30 * 0.5 - 12.5))
    worded = search(corpus, query_text="gamma unheard")
    covered = coverage("alpha gamma", "gamma unheard")
    assert of_answer(worded) == pytest.approx(logistic(15 * covered - 6))
    # The likeness to the text hits says nothing of the question.
    inferred = search(corpus, query_text="gamma unheard", embedding_from_text=True)
    assert of_answer(inferred) == of_answer(worded)
    # A hit without an embedding, and a question without words.
    unembedded = search(corpus, query_embedding=EAST, query_text="epsilon", text_weight=9)
    assert numbers(unembedded)[0] == 4
    assert of_answer(unembedded) == pytest.approx(logistic(15 - 6))
    wordless = search(corpus, query_embedding=EAST, query_text="the")
    assert of_answer(wordless) == pytest.approx(logistic(30 - 12.5))


def test_a_first_hit_of_the_text_leg_alone_has_its_cosine(corpus: Connection) -> None:
    asked = {"query_embedding": EAST, "query_text": "delta", "match_threshold": 0.9}
    rows = search(corpus, **asked, text_weight=9)
    assert (numbers(rows)[0], rows[0]["similarity"]) == (3, None)
    assert of_answer(rows) == pytest.approx(logistic(15 * 0.6 + 8.7 - 9.2))


def test_of_several_formulations_the_one_that_fits_best_counts(corpus: Connection) -> None:
    ways = [{"query_text": "beta"}, {"query_embedding": NORTH}]
    rows = search(corpus, query_text="beta unheard", formulations=ways, text_weight=9)
    assert numbers(rows)[0] == 1
    assert of_answer(rows) == pytest.approx(logistic(15 - 6))


@pytest.mark.module("insight", "batch")
def test_explain_and_a_batch_say_the_same(corpus: Connection) -> None:
    asked = {"query_embedding": EAST, "query_text": "beta unheard"}
    expected = of_answer(search(corpus, **asked))
    explained = answer(corpus, "explain_hybrid_search", **asked)
    assert of_answer(explained["hits"]) == pytest.approx(expected)
    batch = call(corpus, "hybrid_search_knowledge_chunks_batch", queries=[asked])
    assert of_answer(batch) == expected
