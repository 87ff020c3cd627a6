"""Random calls of the search against the reference in Python, for a small and a large corpus.

The same chunks are both, by the limit up to which all rows are compared. A large corpus has
statistics, a vector index and candidates by words.
"""

import math
from collections.abc import Iterator
from random import Random
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reference import (
    COLLECTIONS,
    DOCUMENTS,
    KINDS,
    OWNERS,
    WORDS,
    Arguments,
    Chunk,
    Corpus,
    days_ago,
    pooled,
    reference,
    stored,
    together,
)
from searching import call, store_document

from conftest import Connection

CHUNKS = 500
LIMITS = {"large": 100, "small": 10_000}
LIMIT = """
create or replace function knowledge_internal.small_corpus_limit() returns integer
language sql immutable security invoker set search_path = pg_catalog, pg_temp as 'select {}'
"""
FILLING = [f"{one}a{other}a" for one in "bdfgkmt" for other in "dgklnrt"]


def drawn() -> list[Chunk]:
    """Draw chunks in which the words of questions are frequent and rare."""
    draw = Random(34)
    shares = dict(zip(WORDS, (0.5, 0.25, 0.12, 0.05, 0.01), strict=False))
    return [
        Chunk(
            words=tuple(
                [word for word, share in shares.items() if draw.random() < share]
                + draw.choices([*FILLING, *WORDS[:3]], k=draw.randint(1, 20))
            ),
            embedding=draw_embedding(draw) if draw.random() < 0.95 else None,
            document=draw.choice([None, *DOCUMENTS]),
            chunk_index=draw.choice([None, *range(6)]),
            owner=draw.choice([None, *OWNERS]),
            visibility=draw.choice(["public", "public", "private"]),
            sensitivity=None,
            collection=draw.choice(COLLECTIONS),
            knowledge_type=draw.choice(KINDS),
            document_date=days_ago(draw.randint(0, 500)) if draw.random() < 0.9 else None,
            status="active",
            language="english",
        )
        for _ in range(CHUNKS)
    ]


def draw_embedding(draw: Random) -> tuple[int, int, int]:
    while True:
        x, y, z = (draw.randint(-9, 9) for _ in range(3))
        if x or y or z:
            return x, y, z


@pytest.fixture(scope="module")
def whole(shared: Connection) -> tuple[Connection, Corpus]:
    for number, (visibility, owner) in DOCUMENTS.items():
        store_document(shared, UUID(int=number), visibility=visibility, owner_id=owner)
    chunks = stored(shared, drawn()).chunks
    shared.execute(LIMIT.format(LIMITS["large"]).encode())
    # With another b than that of the index, candidates of a large corpus are not quite the best.
    shared.execute("insert into public.knowledge_settings (bm25_b) values (0.75)")
    shared.execute("vacuum analyze public.knowledge_chunks")
    shared.execute("select public.refresh_knowledge_statistics()")
    # Chunks are indexed with the mean length of their time.
    shared.execute("update public.knowledge_chunks set content_tsv = null")
    shared.execute("vacuum public.knowledge_chunks")
    ((today, cosine_spread),) = shared.execute(
        "select (now() at time zone 'UTC')::date,"
        "       (knowledge_internal.read_settings('auto')).cosine_scale / 3"
    ).fetchall()
    return shared, Corpus(chunks, today, cosine_spread, 0.75)


@pytest.fixture(scope="module", params=LIMITS)
def searched(
    request: pytest.FixtureRequest, whole: tuple[Connection, Corpus], modules: tuple[str, ...]
) -> Iterator[tuple[Connection, Corpus]]:
    """The corpus on one side of the limit, which decides how rows are found."""
    connection, corpus = whole
    with connection.transaction(force_rollback=True):
        connection.execute(LIMIT.format(LIMITS[request.param]).encode())
        if "insight" in modules:
            ((strategy,),) = connection.execute(
                "select public.explain_hybrid_search('{\"query_embedding\": [1, 0, 0]}')"
                " #>> '{vector,strategy}'"
            ).fetchall()
            assert strategy == {"large": "index", "small": "compared: few rows"}[request.param]
        yield connection, corpus


def check(connection: Connection, corpus: Corpus, asked: Arguments) -> None:
    rows = call(connection, "hybrid_search_knowledge_chunks", **asked)
    hits = reference(corpus, **asked)

    def unit(number: int) -> object:
        """Name what takes one place in the list."""
        document = corpus.chunks[number].document
        return (asked.get("one_per_document") and document) or f"chunk {number}"

    scores: dict[object, float] = {}
    for number, hit in hits.items():
        scores[unit(number)] = max(hit.rrf_score, scores.get(unit(number), -math.inf))
    offset = asked.get("match_offset", 0)
    page = sorted(scores.values(), reverse=True)[offset : offset + asked.get("match_count", 10)]
    assert [row["rrf_score"] for row in rows] == [near(score) for score in page]
    assert len({unit(row["id"].int) for row in rows}) == len(rows)
    assert {row["total_count"] for row in rows} <= {len(scores)}
    for row in rows:
        hit = hits[row["id"].int]
        assert row["rrf_score"] == near(scores[unit(row["id"].int)])
        assert (row["vector_rank"], row["text_rank"]) == (hit.vector_rank, hit.text_rank)
        assert (row["similarity"], row["text_score"]) == (
            near(hit.similarity),
            near(hit.text_score),
        )
        assert 0 <= row["confidence"] <= 1


def near(value: float | None) -> Any:
    return value if value is None else pytest.approx(value, rel=1e-5, abs=1e-7)


paged = st.fixed_dictionaries(
    {}, optional={"match_offset": st.sampled_from([1, 15, 500]), "one_per_document": st.just(True)}
)


@pytest.mark.parametrize(
    "calls", [pytest.param(60, id="few"), pytest.param(1500, id="many", marks=pytest.mark.slow)]
)
def test_a_random_call_returns_what_the_reference_does(
    searched: tuple[Connection, Corpus], calls: int
) -> None:
    @settings(max_examples=calls, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(asked=together(pooled, paged))
    def compare(asked: Arguments) -> None:
        check(*searched, asked)

    compare()
