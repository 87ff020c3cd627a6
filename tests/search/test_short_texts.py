"""Ranking of short texts: b by the corpus, what neighbours add, and the weight of a model."""

from typing import Any
from uuid import uuid4

import pytest
from searching import EAST, NORTH, NORTH_EAST, numbers, search, store, store_document

from conftest import Connection

TURNS = (
    "Shall we meet tonight?",
    "The harbour, since the boat leaves there at seven with all the others aboard",
    "Harbour or station?",
    "No idea",
)
MANUAL = " ".join(["pump valve pressure pump hose valve pump seal pressure valve"] * 4)


def test_stored_constants_are_those_of_the_searched_collection(knowledge: Connection) -> None:
    long, short = {"content": f"boat {MANUAL}"}, {"content": "boat"}
    store(knowledge, *({"collection": "a"} | one for one in (long, short)))
    apart = [row["text_score"] for row in search(knowledge, query_text="boat")]
    knowledge.execute("select public.set_knowledge_settings('a', bm25_k1 => 0.5, bm25_b => 0)")
    scores = [row["text_score"] for row in search(knowledge, query_text="boat")]
    assert scores == apart
    rows = search(knowledge, query_text="boat", collections=["a"])
    # Without b, both lengths count alike: tf 1 gives (k1 + 1) / (1 + k1).
    assert rows[0]["text_score"] == pytest.approx(rows[1]["text_score"])


def document(knowledge: Connection, *contents: str) -> None:
    id_ = store_document(knowledge, uuid4())
    store(
        knowledge,
        *(
            {"content": one, "document_id": id_, "chunk_index": place}
            for place, one in enumerate(contents)
        ),
    )


def scores(knowledge: Connection, **asked: Any) -> dict[int, float]:
    rows = search(knowledge, query_text="harbour station tonight", **asked)
    return {row["id"].int: row["rrf_score"] for row in rows}


def test_a_short_chunk_gains_of_its_neighbour_under_auto(knowledge: Connection) -> None:
    document(knowledge, *TURNS)
    found = scores(knowledge, fusion="auto")
    shares = dict(scores(knowledge, fusion="rrf").items())
    assert found.keys() == shares.keys() == {1, 2, 3}
    knowledge.execute("update public.knowledge_chunks set chunk_index = 10 * chunk_index")
    alone = scores(knowledge, fusion="auto")
    least = min(alone.values())
    near = {1: alone[2], 2: max(alone[1], alone[3]), 3: alone[2]}
    # The bonus is the part of 0.3 of what the best neighbour has more than the last hit.
    assert found == {
        number: pytest.approx(score + 0.3 * (near[number] - least))
        for number, score in alone.items()
    }
    assert scores(knowledge, fusion="rrf") == pytest.approx(shares)


def test_a_chunk_gains_nothing_of_another_document_or_of_long_texts(knowledge: Connection) -> None:
    store(knowledge, *({"content": one, "chunk_index": place} for place, one in enumerate(TURNS)))
    alone = scores(knowledge, fusion="auto")
    knowledge.execute("update public.knowledge_chunks set chunk_index = null")
    assert scores(knowledge, fusion="auto") == alone
    knowledge.execute("truncate public.knowledge_chunks")
    manual = MANUAL + " " + MANUAL
    document(knowledge, f"{manual} harbour", f"{manual} station", f"{manual} tonight harbour")
    near = scores(knowledge, fusion="auto")
    knowledge.execute("update public.knowledge_chunks set chunk_index = 10 * chunk_index")
    assert scores(knowledge, fusion="auto") == near


WEAK = 0.5 ** (1 + 25 / 10)
"""A weight of 0.5 where texts are short: those of fewer than ten words count as ten."""


@pytest.mark.parametrize(
    ("fusion", "models", "share"),
    [
        ("auto", ["weak", "weak"], WEAK),
        ("relative_score", ["weak", "weak"], WEAK),
        ("rrf", ["weak", "weak"], 1),
        ("auto", ["weak", "other"], 1),
        ("auto", ["other", "other"], 1),
    ],
)
def test_a_model_has_a_weight(
    knowledge: Connection, fusion: str, models: list[str], share: float
) -> None:
    store(
        knowledge,
        {"content": "alpha", "embedding": NORTH, "embedding_model": models[0]},
        {"content": "beta", "embedding": EAST, "embedding_model": models[1]},
    )
    asked: dict[str, Any] = {"query_embedding": NORTH_EAST, "query_text": "none"}
    plain = search(knowledge, **asked, fusion=fusion)
    knowledge.execute("insert into public.knowledge_model_weights values ('weak', 0.5)")
    weighed = search(knowledge, **asked, fusion=fusion)
    assert numbers(weighed) == numbers(plain)
    assert [row["rrf_score"] for row in weighed] == pytest.approx(
        [share * row["rrf_score"] for row in plain]
    )
    knowledge.execute(
        "insert into public.knowledge_settings (embedding_model) values ('weak')"
        " on conflict (collection) do update set embedding_model = excluded.embedding_model"
    )
    named = search(knowledge, **asked, fusion=fusion)
    factor = 1 if fusion == "rrf" else WEAK
    assert [row["rrf_score"] for row in named] == pytest.approx(
        [factor * row["rrf_score"] for row in plain]
    )


@pytest.mark.parametrize(("weight", "share"), [(0.5, 0.5 ** (1 + 25 / 50)), (2, 2)])
def test_a_weak_model_is_weaker_in_short_texts_and_a_strong_one_is_not(
    knowledge: Connection, weight: float, share: float
) -> None:
    words = " ".join(f"w{number}" for number in range(50))
    store(knowledge, {"content": words, "embedding": NORTH, "embedding_model": "made"})
    asked: dict[str, Any] = {"query_embedding": NORTH, "query_text": "none", "fusion": "auto"}
    (plain,) = search(knowledge, **asked)
    knowledge.execute("insert into public.knowledge_model_weights values ('made', %s)", [weight])
    (weighed,) = search(knowledge, **asked)
    assert weighed["rrf_score"] == pytest.approx(share * plain["rrf_score"])
