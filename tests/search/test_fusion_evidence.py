"""What fusion auto learns of the corpus and of a query's hits before it weighs the legs."""

import json
import math
from operator import mul
from random import Random
from typing import Any

import pytest
from searching import Row, call, chunk

from conftest import Connection


def store(connection: Connection, contents: list[str], embeddings: list[list[float]]) -> None:
    connection.execute(
        """
        insert into public.knowledge_chunks (id, content, embedding)
        select ('00000000-0000-0000-0000-' || lpad(to_hex(given.place), 12, '0'))::uuid,
               given.content, given.embedding::text::extensions.vector
          from jsonb_to_recordset(%s) as given (place integer, content text, embedding jsonb)
        """,
        [
            json.dumps(
                [
                    {"place": place, "content": content, "embedding": embedding}
                    for place, (content, embedding) in enumerate(
                        zip(contents, embeddings, strict=True), 1
                    )
                ]
            )
        ],
    )


def sphere(count: int) -> list[list[float]]:
    """Return points that are spread evenly over a sphere."""
    turns = [math.pi * (1 + math.sqrt(5)) * (place + 0.5) for place in range(count)]
    heights = [1 - 2 * (place + 0.5) / count for place in range(count)]
    return [
        [math.sqrt(1 - z * z) * math.cos(turn), math.sqrt(1 - z * z) * math.sin(turn), z]
        for turn, z in zip(turns, heights, strict=True)
    ]


def mutual(connection: Connection, sample_size: int) -> Any:
    ((share,),) = connection.execute(
        "select knowledge_internal.mutual_neighbours(%s)", [sample_size]
    ).fetchall()
    return share


def test_even_points_are_mutual_neighbours(knowledge: Connection) -> None:
    store(knowledge, ["text"] * 200, sphere(200))
    assert mutual(knowledge, 500) == 1


def test_the_share_is_that_of_its_definition(knowledge: Connection) -> None:
    random = Random(15)
    points = [[random.gauss(0, 1) for _ in range(3)] for _ in range(30)]
    # Few points far from many: their nearest has nearer ones.
    points += [[5 + random.gauss(0, 0.05), random.gauss(0, 0.05), 0] for _ in range(90)]
    unit = [[value / math.hypot(*point) for value in point] for point in points]
    store(knowledge, ["text"] * 120, unit)

    def nearest(place: int) -> list[int]:
        others = [other for other in range(120) if other != place]
        return sorted(others, key=lambda other: -sum(map(mul, unit[place], unit[other])))

    expected = sum(place in nearest(nearest(place)[0])[:10] for place in range(120)) / 120
    assert expected < 0.99
    assert mutual(knowledge, 240) == pytest.approx(expected, abs=0.009)


def test_too_few_embeddings_tell_nothing(knowledge: Connection) -> None:
    store(knowledge, ["text"] * 50, sphere(50))
    assert mutual(knowledge, 500) is None


def evidence(connection: Connection, **changed: object) -> Row:
    given: dict[str, object] = {
        "similarities": [0.9, 0.8, 0.7, 0.6, 0.5, *[0.1] * 50],
        "nearest_scores": [5.0] * 5,
        "text_scores": [10.0] * 5,
        "is_complete": False,
        "typical_rank": 50,
        "cosine_spread": 0.1,
        "mutual_neighbours": 0.9,
        "query_weights": [10.0],
    }
    values = given | changed
    # By their order: the arrays are float8.
    cursor = connection.execute(
        """
        select vector_evidence, text_evidence
          from knowledge_internal.leg_evidence(
                 %(similarities)s::float8[], %(nearest_scores)s::float8[],
                 %(text_scores)s::float8[], %(is_complete)s, %(typical_rank)s, %(cosine_spread)s,
                 %(mutual_neighbours)s, %(query_weights)s::float8[]
               )
        """,
        values,
    )
    ((vector, text),) = cursor.fetchall()
    return {"vector": vector, "text": text}


def test_the_vector_leg_counts_less_where_its_best_hits_lack_the_words(
    knowledge: Connection,
) -> None:
    usual = evidence(knowledge)
    strange = evidence(knowledge, nearest_scores=[0.0] * 5)
    assert strange["vector"] == pytest.approx(usual["vector"] * 0.1 / 0.5)
    assert strange["text"] == usual["text"]
    # Without a word that the corpus has, only the vector leg can answer.
    unknown = evidence(knowledge, nearest_scores=[None] * 5, text_scores=[])
    assert unknown["vector"] == pytest.approx(usual["vector"] * 2)
    assert unknown["text"] < 1e-3 * usual["text"]


def test_the_vector_leg_counts_more_where_the_model_fits_the_corpus(knowledge: Connection) -> None:
    by_share = [
        evidence(knowledge, mutual_neighbours=share)["vector"] for share in (0.5, 0.8, 0.9, 1.0)
    ]
    assert by_share == sorted(by_share)
    assert by_share[2] == pytest.approx(by_share[0] * 9)
    assert by_share[3] == pytest.approx(by_share[0] * 25)
    unknown = evidence(knowledge, mutual_neighbours=None)["vector"]
    assert unknown == pytest.approx(by_share[0] * 8)


def test_the_text_leg_counts_more_where_a_hit_has_every_word(knowledge: Connection) -> None:
    usual = evidence(knowledge)
    assert evidence(knowledge, is_complete=True)["text"] == pytest.approx(5 * usual["text"])


def test_a_hit_is_complete_with_every_word(knowledge: Connection) -> None:
    store(knowledge, ["alpha beta gamma delta"], [[1, 0, 0]])

    def complete(*words: str) -> Any:
        ones = [1] * len(words)
        ((found,),) = knowledge.execute(
            "select best.has_every_word"
            "  from knowledge_internal.exact_scores(%s::uuid[], 1, %s, %s, %s, 4, null) as best",
            [[chunk(1)], list(words), ones, list(range(len(words)))],
        ).fetchall()
        return found

    assert complete("alpha", "beta", "gamma")
    assert complete("alpha")
    assert not complete("alpha", "beta", "omega")


def test_equal_similarities_and_scores_are_no_error(knowledge: Connection) -> None:
    store(knowledge, ["alpha"] * 60, [[0.6, 0.8, 0]] * 60)
    rows = call(
        knowledge,
        "hybrid_search_knowledge_chunks",
        query_embedding=[0.6, 0.8, 0],
        query_text="alpha",
        fusion="auto",
        match_count=100,
    )
    assert len(rows) == 60
    assert {row["rrf_score"] for row in rows} == {1}


@pytest.mark.parametrize(("pool_size", "last"), [(40, 25), (60, 30)])
def test_the_lower_half_of_the_text_leg_counts_as_least_similar(
    knowledge: Connection, pool_size: int, last: int
) -> None:
    # The shortest chunks match best, and are the least similar ones.
    contents = ["alpha" + " beta" * place for place in range(40)]
    store(knowledge, contents, sphere(40)[::-1])
    rows = call(
        knowledge,
        "hybrid_search_knowledge_chunks",
        query_embedding=[0, 0, 1],
        query_text="alpha",
        fusion="auto",
        match_threshold=0.9,
        match_count=40,
        pool_size=pool_size,
    )
    shares = {row["text_rank"]: row["rrf_score"] / row["text_score"] for row in rows}
    least = pytest.approx(shares[1])
    without = [rank for rank in shares if shares[rank] == least]
    found_by_both = {row["text_rank"] for row in rows if row["vector_rank"]}
    assert found_by_both == {39, 40}
    assert sorted(without) == [1, *range(last + 1, 39)]
