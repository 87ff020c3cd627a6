"""Each fusion has one rule, and a name without one is refused; collections without a vector leg."""

import math
from operator import mul
from random import Random
from statistics import stdev
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb
from searching import NORTH, NORTH_EAST, Row, call, chunk, numbers, refused, store

from conftest import Connection

RPC = "hybrid_search_knowledge_chunks"
ASKED: dict[str, Any] = {"query_embedding": NORTH, "query_text": "parking permit"}
# A name that the list of names has, and no rule.
LISTED = """
create or replace function knowledge_internal.fusions() returns text[]
language sql immutable set search_path = pg_catalog, pg_temp
as $$ select array['rrf', 'relative_score', 'auto', 'borda'] $$
"""


@pytest.mark.parametrize(
    "asked",
    [
        *({}, {"query_text": None}, {"query_embedding": None}, {"collections": ["a", "b"]}),
        *({"one_per_document": True}, {"formulations": Jsonb([{"query_text": "permit"}])}),
    ],
)
def test_a_name_without_a_rule_is_refused(knowledge: Connection, asked: dict[str, Any]) -> None:
    rows = [{"content": "parking permit", "embedding": NORTH, "collection": name} for name in "ab"]
    store(knowledge, *rows)
    knowledge.execute(LISTED)
    assert "fusion must be one of" in refused(knowledge, RPC, **ASKED | asked, fusion="borda")


def test_a_stored_name_without_a_rule_is_refused(knowledge: Connection) -> None:
    store(knowledge, {"content": "parking permit", "embedding": NORTH})
    with pytest.raises(psycopg.errors.CheckViolation), knowledge.transaction():
        knowledge.execute("insert into public.knowledge_settings (fusion) values ('borda')")
    knowledge.execute(
        "alter table public.knowledge_settings drop constraint knowledge_settings_fusion_check;"
        "insert into public.knowledge_settings (fusion) values ('borda')"
        " on conflict (collection) do update set fusion = 'borda'"
    )
    assert "fusion must be one of" in refused(knowledge, RPC, **ASKED)


# Around the question at one distance, each with a word of it in more and more others.
MOTIONS: list[dict[str, Any]] = [
    {
        "collection": "motions",
        "content": f"motion {n}: the parking of vehicles {'and a budget ' * 3 * n}",
        "embedding": [0.34, 0.94 * math.cos(n), 0.94 * math.sin(n)],
    }
    for n in range(60)
]
QUESTION = "how much does a resident parking permit cost"
TEXTS = ("{}?", "She asks {}, and nobody knows.", "{}: thirty euros.")
TRANSCRIPTS = [{"collection": "transcripts", "content": text.format(QUESTION)} for text in TEXTS]


def transcripts(rows: list[Row]) -> list[int]:
    return [place for place, row in enumerate(rows) if row["collection"] == "transcripts"]


def test_exact_hits_without_embeddings_are_not_behind_a_collection_with_them(
    knowledge: Connection,
) -> None:
    store(knowledge, *MOTIONS, *TRANSCRIPTS)
    asked = {"query_embedding": NORTH, "query_text": QUESTION, "fusion": "auto", "match_count": 8}
    together = call(knowledge, RPC, **asked)
    apart = call(knowledge, RPC, **asked, collections=["motions", "transcripts"])
    assert transcripts(together) == [0, 1, 2]
    assert len(transcripts(apart)) == 3


@pytest.mark.parametrize("formulations", [None, [{"query_text": "permit"}]])
def test_a_collection_without_a_vector_leg_has_the_least_vector_score_of_all(
    knowledge: Connection, formulations: list[Any] | None
) -> None:
    store(
        knowledge,
        {"content": "near", "embedding": NORTH, "collection": "a"},
        {"content": "far", "embedding": NORTH_EAST, "collection": "a"},
        {"content": "farther", "embedding": [math.cos(1.3), math.sin(1.3), 0], "collection": "b"},
        {"content": "parking for all", "collection": "c"},
        # Opposite to the question, so below the threshold.
        {"content": "permit", "embedding": [-1, 0.2, 0], "collection": "c"},
    )
    asked = ASKED | {"formulations": formulations, "fusion": "auto"}

    def scores(*collections: str) -> dict[str, float]:
        rows = call(knowledge, RPC, **asked, collections=[*collections])
        return {row["content"]: row["rrf_score"] for row in rows}

    together, alone = scores("a", "b", "c"), scores("c")
    assert alone.keys() == {"parking for all", "permit"}
    for content, score in alone.items():
        assert together[content] == pytest.approx(score + together["farther"])


def test_a_collection_without_a_text_leg_has_no_words(knowledge: Connection) -> None:
    both = {"content": "parking permit", "embedding": NORTH, "collection": "a"}
    store(knowledge, both, {"content": "unrelated", "embedding": NORTH, "collection": "b"})
    for fusion, least in (("auto", 1.0), ("relative_score", 1.0), ("rrf", 1 / 61)):
        rows = call(knowledge, RPC, **ASKED, collections=["a", "b"], fusion=fusion)
        assert rows[0]["rrf_score"] - rows[1]["rrf_score"] == pytest.approx(least)


def test_min_confidence_compares_words_where_a_collection_has_no_embeddings(
    knowledge: Connection,
) -> None:
    store(knowledge, *MOTIONS, *TRANSCRIPTS)
    asked: dict[str, Any] = {"query_embedding": [-1, 0, 0], "query_text": QUESTION}
    asked |= {"fusion": "auto", "match_threshold": -1, "min_confidence": 0.9}
    rows = call(knowledge, RPC, **asked, collections=["motions", "transcripts"])
    assert {*numbers(rows)} == {61, 62, 63}
    assert rows[0]["answer_confidence"] > 0.9


# Fusion auto: cosines over three standard deviations of the corpus, BM25 over the best one.


def test_an_identifier_comes_before_the_nearest_chunk_with_every_other_word(
    knowledge: Connection,
) -> None:
    store(
        knowledge,
        {"content": "clear the cache of the lru", "embedding": NORTH},
        {"content": f"functools.lru_cache {'filler ' * 50}", "embedding": [-1, 0.1, 0]},
        {"content": "clear", "embedding": NORTH_EAST},
    )
    asked = ASKED | {"query_text": "clear the cache of functools.lru_cache", "fusion": "auto"}
    asked["match_threshold"] = -1
    for weights in ({}, {"vector_weight": 9}, {"text_weight": 0.01}):
        rows = call(knowledge, RPC, **asked, **weights)
        assert numbers(rows)[0] == 2
        least, best = rows[1], rows[0]
        vector, text = weights.get("vector_weight", 1), weights.get("text_weight", 1)
        ((scale,),) = knowledge.execute(
            "select (knowledge_internal.read_settings('auto')).cosine_scale"
        )
        tier = 2 * vector / scale + text
        assert best["rrf_score"] == pytest.approx(vector * best["similarity"] / scale + text + tier)
        assert least["rrf_score"] < best["rrf_score"]
        assert 0 <= least["confidence"] <= best["confidence"] <= 1


def drawn(count: int) -> list[list[float]]:
    random = Random(15)
    return [[random.gauss(1, 1), random.gauss(0, 1), random.gauss(0, 1)] for _ in range(count)]


def sampled(connection: Connection, sample_size: int) -> float:
    select = "select knowledge_internal.sampled_spread(%s)"
    return float(connection.execute(select, [sample_size]).fetchall()[0][0])


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
    gone = {"content": "gone", "embedding": [-1, 0, 0], "status": "archived"}
    for number in range(21, 41):
        store(knowledge, gone | {"id": chunk(number)})
    assert sampled(knowledge, 100) == before


def test_a_tiny_or_uniform_corpus_has_a_usable_spread(knowledge: Connection) -> None:
    store(knowledge, *({"embedding": NORTH} for _ in range(4)))
    assert sampled(knowledge, 48) == 0.13
    rows = call(knowledge, RPC, **ASKED, fusion="auto")
    assert rows[0]["rrf_score"] == pytest.approx(1 / 0.39)
    for number in range(5, 15):
        store(knowledge, {"id": chunk(number), "embedding": NORTH})
    assert sampled(knowledge, 48) == 0.02
