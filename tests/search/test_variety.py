"""Variety and a threshold: which rows of the list are shown, and in which order.

diversity, max_per_document, merge_duplicates and min_confidence.
"""

import math
import random
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg.types.json import Jsonb
from searching import Row, answer, chunk, numbers, search, store, store_document
from test_exact_total import COUNT

from conftest import Connection
from support.properties import tried

QUESTION = [0.6, 0.3, 0.2]
ANYTHING: dict[str, Any] = {"query_text": "alpha beta", "query_embedding": QUESTION}
WORDS = ("alpha", "beta", "gamma", "delta", "epsilon")
seeds = st.integers(0, 10**6)
few = tried(8)


def fill(connection: Connection, seed: int, count: int = 14) -> dict[UUID, Any]:
    """Store chunks of a few documents; return the embedding of each."""
    draw = random.Random(seed)
    documents = [UUID(int=1000 + number) for number in range(4)]
    for document in documents:
        store_document(connection, document)
    rows = [
        {
            "content": " ".join(draw.choices(WORDS, k=4)),
            "embedding": [draw.gauss(0, 1) for _ in range(3)] if draw.random() < 0.8 else None,
            "document_id": draw.choice([*documents, None]),
            "chunk_index": number,
        }
        for number in range(count)
    ]
    for row in rows:
        if row["document_id"] is None:
            row["chunk_index"] = None
    store(connection, *rows)
    return {chunk(number): row["embedding"] for number, row in enumerate(rows, 1)}


def cosine(one: Sequence[float] | None, other: Sequence[float] | None) -> float:
    if one is None or other is None:
        return 0
    return (
        sum(a * b for a, b in zip(one, other, strict=True)) / math.hypot(*one) / math.hypot(*other)
    )


def varied(hits: Sequence[Row], embeddings: dict[UUID, Any], diversity: float) -> list[UUID]:
    """Maximal marginal relevance as Carbonell and Goldstein (1998) write it."""
    scores = {hit["id"]: hit["rrf_score"] for hit in hits}
    least, span = min(scores.values()), max(scores.values()) - min(scores.values())
    left, taken = list(scores), list[UUID]()
    while left:
        best = max(
            left,
            key=lambda one: (
                (1 - diversity) * ((scores[one] - least) / span if span else 1)
                - diversity
                * max((cosine(embeddings[one], embeddings[t]) for t in taken), default=0)
            ),
        )
        taken.append(best)
        left.remove(best)
    return taken


@pytest.mark.module("arrange")
@given(seed=seeds, diversity=st.sampled_from([0.1, 0.5, 0.9, 1.0]))
@few
def test_diversity_is_maximal_marginal_relevance(
    knowledge: Connection, seed: int, diversity: float
) -> None:
    with knowledge.transaction(force_rollback=True):
        embeddings = fill(knowledge, seed)
        by_score = search(knowledge, **ANYTHING, match_count=50)
        hits = search(knowledge, **ANYTHING, match_count=50, diversity=diversity)
        assert [hit["id"] for hit in hits] == varied(by_score, embeddings, diversity)
        assert {hit["id"]: hit["rrf_score"] for hit in hits} == {
            hit["id"]: hit["rrf_score"] for hit in by_score
        }


ARRANGEMENTS: list[dict[str, Any]] = [
    {"diversity": 0.7},
    {"diversity": 0.7, "one_per_document": True},
    {"max_per_document": 2},
    {"merge_duplicates": True},
    {"min_confidence": 0.4},
    {"min_confidence": 0.2, "diversity": 0.4, "merge_duplicates": True, "max_per_document": 2},
]


@pytest.mark.module("arrange", "insight")
@pytest.mark.parametrize("arranged", ARRANGEMENTS, ids=str)
@given(seed=seeds)
@few
def test_pages_make_up_the_list_and_share_its_confidence(
    knowledge: Connection, arranged: dict[str, Any], seed: int
) -> None:
    with knowledge.transaction(force_rollback=True):
        fill(knowledge, seed)
        asked = {**ANYTHING, "pool_size": 50, **arranged}
        whole = search(knowledge, **asked, match_count=50)
        pages = [
            row
            for place in range(0, 15, 4)
            for row in search(knowledge, **asked, match_count=4, match_offset=place)
        ]
        assert pages == whole
        assert {row["total_count"] for row in whole} <= {len(whole)}
        by_score = max(whole, key=lambda row: row["rrf_score"], default=None)
        if by_score is not None:
            (alone,) = {row["answer_confidence"] for row in whole}
            assert alone == pytest.approx(fits(knowledge, **asked)[by_score["id"]])


def test_a_hit_that_fits_as_well_as_demanded_is_kept(knowledge: Connection) -> None:
    with knowledge.transaction(force_rollback=True):
        fill(knowledge, 1)
        for key, confidence in fits(knowledge, **ANYTHING).items():
            kept = search(knowledge, **ANYTHING, match_count=50, min_confidence=confidence)
            assert key in {row["id"] for row in kept}


def fits(connection: Connection, **arguments: Any) -> dict[UUID, float]:
    """Return how well each hit fits the question, as explain says it."""
    asked = {**arguments, "match_count": 50}
    explained = answer(connection, "explain_hybrid_search", **asked)
    ids = [UUID(hit["id"]) for hit in explained["hits"]]
    return dict(zip(ids, explained["hit_confidences"], strict=True))


@given(seed=seeds, most=st.integers(1, 3))
@few
def test_a_document_has_its_best_rows(knowledge: Connection, seed: int, most: int) -> None:
    with knowledge.transaction(force_rollback=True):
        fill(knowledge, seed)
        listed: list[Row] = []
        for row in search(knowledge, **ANYTHING, match_count=50):
            same = [one for one in listed if one["document_id"] == row["document_id"]]
            if row["document_id"] is None or len(same) < most:
                listed.append(row)
        hits = search(knowledge, **ANYTHING, match_count=50, max_per_document=most)
        assert numbers(hits) == numbers(listed)
        once = search(
            knowledge, **ANYTHING, match_count=50, max_per_document=most, one_per_document=True
        )
        assert once == search(knowledge, **ANYTHING, match_count=50, one_per_document=True)
        counted = answer(knowledge, COUNT, **ANYTHING, max_per_document=most)
        assert counted == len(hits)


@pytest.mark.module("insight")
@given(seed=seeds, least=st.sampled_from([0.0, 0.05, 0.2, 0.5, 0.9]))
@few
def test_the_threshold_is_that_of_hits_and_counts(
    knowledge: Connection, seed: int, least: float
) -> None:
    with knowledge.transaction(force_rollback=True):
        fill(knowledge, seed)
        known = fits(knowledge, **ANYTHING, fusion="rrf")
        expected = [one for one, confidence in known.items() if confidence >= least]
        hits = search(knowledge, **ANYTHING, match_count=50, min_confidence=least)
        assert [hit["id"] for hit in hits] == expected
        for grouped in (False, True):
            asked = {**ANYTHING, "min_confidence": least, "one_per_document": grouped}
            counted = answer(knowledge, COUNT, **asked)
            assert counted == len(search(knowledge, **asked, match_count=50))


@pytest.mark.module("insight")
def test_nothing_above_the_threshold_is_an_empty_answer_that_says_so(knowledge: Connection) -> None:
    store(
        knowledge,
        {"content": "alpha beta", "visibility": "private", "owner_id": UUID(int=7)},
        {"content": "alpha gamma", "visibility": "public"},
    )
    asked = {"query_text": "alpha beta", "public_only": True}
    best = fits(knowledge, **asked)[chunk(2)]
    reason = answer(
        knowledge, "explain_empty_knowledge_search", **asked, min_confidence=best + 0.01
    )
    assert reason["reason"] == "min_confidence"
    assert reason["best_confidence"] == pytest.approx(best)
    assert f"is {math.floor(best * 10000) / 10000} and min_confidence" in reason["message"]
    assert not search(knowledge, **asked, min_confidence=best + 0.01)
    assert len(search(knowledge, **asked, min_confidence=best - 0.01)) == 1


@pytest.mark.module("arrange")
@pytest.mark.parametrize("missed", [{"min_confidence": 1}, {"query_text": "nothing"}], ids=str)
def test_an_empty_list_stays_empty(knowledge: Connection, missed: dict[str, Any]) -> None:
    store(knowledge, "alpha gamma", "alpha delta")
    asked = {"query_text": "alpha beta", "diversity": 0.5, **missed}
    for more in ({}, {"boosts": Jsonb([])}, {"merge_duplicates": True, "order_by": "chunk_index"}):
        assert search(knowledge, **asked, **more) == []


# Near duplicates: the same text; the same words and nearly the same embedding.

TEXTS = (
    {"content": "The meter is read on the first of May.", "embedding": [1, 0, 0]},
    {"content": "The meter is read on the first of May.", "embedding": [0, 1, 0]},
    {"content": "On the first of May the METER is read", "embedding": [1, 0.1, 0]},
    {"content": "On the first of May the meter is read.", "embedding": [1, 1, 0]},
    {"content": "The meter is read on the second of May.", "embedding": [1, 0, 0.01]},
    {"content": "The meter is read, read on the first of May!", "embedding": None},
)


@pytest.mark.module("arrange")
@pytest.mark.parametrize("fusion", ["rrf", "auto"])
def test_near_duplicates_are_shown_once_with_their_number(
    knowledge: Connection, fusion: str
) -> None:
    store(knowledge, *TEXTS)
    asked = {"query_text": "meter read first May", "query_embedding": [1, 0, 0], "fusion": fusion}
    hits = search(knowledge, **asked, merge_duplicates=True)
    assert {row["id"].int: row["duplicates"] for row in hits} == {1: 2, 4: 0, 5: 0, 6: 0}
    assert {row["total_count"] for row in hits} == {4}
    plain = search(knowledge, **asked)
    assert {row["duplicates"] for row in plain} == {None}
    assert numbers(hits) == [number for number in numbers(plain) if number not in (2, 3)]


@pytest.mark.module("arrange")
def test_a_heading_is_part_of_the_text_and_its_weight_is_not(knowledge: Connection) -> None:
    store(
        knowledge,
        {"content": "alpha beta", "embedding": [1, 0, 0], "heading": "gamma"},
        {"content": "alpha beta gamma " * 30, "embedding": [1, 0, 0]},
        {"content": "alpha beta", "embedding": [1, 0, 0]},
    )
    hits = search(knowledge, query_embedding=[1, 0, 0], merge_duplicates=True)
    assert {row["id"].int: row["duplicates"] for row in hits} == {1: 1, 3: 0}


@pytest.mark.module("arrange", "insight")
@pytest.mark.parametrize(
    ("arguments", "cause", "argument"),
    [
        ({"merge_duplicates": True}, "duplicate", "merge_duplicates"),
        ({"max_per_document": 1}, "grouped", "max_per_document"),
        ({"min_confidence": 0.5}, "confidence", "min_confidence"),
        ({"diversity": 0.6, "match_count": 2}, "diversity", "diversity"),
        ({"max_per_document": 1, "min_confidence": 0.5}, "confidence", "min_confidence"),
    ],
    ids=str,
)
def test_why_not_names_the_argument(
    knowledge: Connection, arguments: dict[str, Any], cause: str, argument: str
) -> None:
    document = store_document(knowledge, UUID(int=1000))
    there = {"document_id": document, "chunk_index": 1}
    other = {"cause": cause, "argument": argument}
    wanted = {"content": "alpha beta", "embedding": [0.99, 0.1, 0], **there}
    if cause == "confidence":
        wanted |= {"content": "gamma", "embedding": [0.2, 1, 0]}
    if cause == "grouped":
        wanted |= {"content": "alpha"}
    store(
        knowledge,
        wanted,
        {
            "content": "alpha beta",
            "embedding": [1, 0, 0],
            "document_id": document,
            "chunk_index": 0,
        },
        {"content": "alpha", "embedding": [0, 1, 0]},
    )
    asked = {"query_text": "alpha beta", "query_embedding": [1, 0, 0], "fusion": "auto"}
    assert 1 not in numbers(search(knowledge, **{**asked, **arguments}))
    found = answer(
        knowledge, "explain_missing_knowledge_chunk", **asked, **arguments, chunk_id=chunk(1)
    )
    assert found["is_found"] is False
    assert {name: found["causes"][0][name] for name in other} == other


@pytest.mark.module("arrange")
def test_beyond_a_hundred_rows_the_order_is_that_of_the_scores(knowledge: Connection) -> None:
    fill(knowledge, 5, count=160)
    asked = {"query_text": " ".join(WORDS), "match_count": 160}
    by_score = numbers(search(knowledge, **asked))
    hits = numbers(search(knowledge, **asked, diversity=0.9))
    assert hits[100:] == by_score[100:]
    assert hits[:100] != by_score[:100]
    assert sorted(hits) == sorted(by_score)
    assert hits == numbers(search(knowledge, **asked, diversity=0.9, max_per_document=1000))
