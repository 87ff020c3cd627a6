"""What holds for every search: properties over random corpora, against a reference in Python.

Each property is tried on a few corpora by `make test`, on a thousand by `make test-slow`.
"""

import json
import math
from collections.abc import Callable
from itertools import chain
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reference import (
    DOCUMENTS,
    OWNERS,
    Arguments,
    Chunk,
    Corpus,
    Row,
    anything,
    corpora,
    dated,
    in_public,
    known,
    may_see,
    of_a_kind,
    pooled,
    ranking,
    reference,
    reworded,
    searches,
    separated,
    stored,
    together,
    viewed,
    visible,
)
from searching import call, numbers, store_document

from conftest import Connection


def search(connection: Connection, **arguments: Any) -> list[Row]:
    return call(connection, "hybrid_search_knowledge_chunks", **arguments)


def close(one: float, other: float) -> bool:
    # A chunk that the text leg missed is scored by its sparse vector: in float4.
    return math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-6)


CASES = [pytest.param(12, id="few"), pytest.param(1000, id="many", marks=pytest.mark.slow)]
MORE = 5  # times as many of the property that all arguments have
PAGES = "select pg_relation_size('public.knowledge_chunks') / 8192"
Check = Callable[..., None]


@pytest.fixture(scope="module", autouse=True)
def documents(shared: Connection) -> None:
    for number, (visibility, owner) in DOCUMENTS.items():
        access = {"visibility": visibility, "owner_id": owner}
        store_document(shared, UUID(int=number), title=f"Document {number}", **access)


def holds(times: int = 1, **strategies: st.SearchStrategy[Any]) -> Callable[[Check], Check]:
    """Try a property on a few corpora, and in the slow run on a thousand."""

    def prepare(check: Check) -> Check:
        def test(shared: Connection, cases: int) -> None:
            def rolled_back(chunks: list[Chunk], **drawn: Any) -> None:
                # By its pages a search guesses how many chunks a table has; what is rolled back
                # leaves some.
                if shared.execute(PAGES).fetchall() > [(100,)]:
                    shared.execute("truncate public.knowledge_chunks")
                with shared.transaction(force_rollback=True):
                    check(shared, stored(shared, chunks), **drawn)

            rolled_back.__name__ = check.__name__
            settings(
                max_examples=cases * times,
                deadline=None,
                suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
            )(given(chunks=corpora, **strategies)(rolled_back))()

        test.__name__, test.__doc__ = check.__name__, check.__doc__
        return pytest.mark.parametrize("cases", CASES)(test)

    return prepare


# The properties.


@holds(times=MORE, asked=together(pooled, anything | separated | reworded))
def test_a_search_finds_ranks_and_scores_like_the_reference(
    connection: Connection, corpus: Corpus, asked: Arguments
) -> None:
    rows, hits = search(connection, **asked), reference(corpus, **asked)
    assert len({row["answer_confidence"] for row in rows}) <= 1
    assert [row["total_count"] for row in rows] == [len(hits)] * min(
        len(hits), asked.get("match_count", 10)
    )
    match_types = {(True, True): "both", (True, False): "vector", (False, True): "text"}
    ways = [asked, *asked.get("formulations", ())]
    words = dict.fromkeys(
        word for way in ways if asked["text_weight"] for word in way.get("query_text", "").split()
    )
    best = sorted((hit.rrf_score for hit in hits.values()), reverse=True)
    for row, score in zip(rows, best, strict=False):
        hit, chunk = hits[row["id"].int], corpus.chunks[row["id"].int]
        assert (row["vector_rank"], row["text_rank"]) == (hit.vector_rank, hit.text_rank)
        assert row["similarity"] == pytest.approx(hit.similarity)
        assert row["text_score"] == pytest.approx(hit.text_score)
        assert close(row["rrf_score"], score)
        assert close(row["rrf_score"], hit.rrf_score)
        assert 0 <= row["confidence"] <= 1
        found_by = hit.vector_rank is not None, hit.text_rank is not None
        assert row["match_type"] == match_types[found_by]
        assert row["matched_terms"] == [word for word in words if word in chunk.words]
        assert row["title"] == (
            f"Document {chunk.document}"
            if chunk.document and may_see(*DOCUMENTS[chunk.document], asked)
            else None
        )
    places = [
        (-row["rrf_score"], min(known([row["vector_rank"], row["text_rank"]])), row["id"].int)
        for row in rows
    ]
    assert places == sorted(set(places))


@holds(asked=together(searches, separated))
def test_a_hit_scores_as_in_its_collection_alone(
    connection: Connection, corpus: Corpus, asked: Arguments
) -> None:
    named = {*asked["collections"]}
    others = [{"field": "collection", "op": "not_in", "value": [*named - {""}, "unknown"]}]
    apart = []
    for name in named:
        alone: Arguments = {"collections": [name]}
        if not name:
            alone = {"collections": None, "filters": others}
        apart += search(connection, **asked | {"match_count": 100} | alone)
    rows = search(connection, **asked, match_count=100)
    assert len(rows) == len(apart)
    by_id = {row["id"]: row for row in apart}
    for row in rows:
        # Scores have one unit in all collections, ranks count in each by itself.
        if asked.get("fusion") in (None, "rrf"):
            assert close(row["rrf_score"], by_id[row["id"]]["rrf_score"])
        for column in ("vector_rank", "text_rank", "match_type", "collection"):
            assert row[column] == by_id[row["id"]][column]


page_sizes = st.sampled_from([2, 3, 5, 8, 20])


def pages(connection: Connection, asked: Arguments) -> list[list[Row]]:
    """Return all pages until an empty one."""
    turned: list[list[Row]] = []
    while page := search(connection, **asked, match_offset=sum(map(len, turned))):
        turned.append(page)
    return turned


@holds(asked=searches, size=page_sizes, other=page_sizes, grouped=st.booleans())
def test_pages_of_any_size_make_one_list(
    connection: Connection, corpus: Corpus, asked: Arguments, size: int, other: int, grouped: bool
) -> None:
    asked = asked | {"one_per_document": grouped, "pool_size": max(size, other)}
    turned = pages(connection, asked | {"match_count": size})
    rows = list(chain(*turned))
    assert rows == list(chain(*pages(connection, asked | {"match_count": other})))
    assert all(len(page) == size for page in turned[:-1])
    assert len({row["id"] for row in rows}) == len(rows)
    assert {row["total_count"] for row in rows} <= {len(rows)}
    for past in (len(rows), len(rows) + 1, 1000):
        assert search(connection, **asked, match_count=size, match_offset=past) == []


@holds(asked=searches, size=page_sizes)
def test_a_document_stands_where_its_best_hit_stands_and_shows_its_best_chunk(
    connection: Connection, corpus: Corpus, asked: Arguments, size: int
) -> None:
    asked = asked | {"match_count": size}
    units: dict[UUID, list[Row]] = {}
    for row in chain(*pages(connection, asked)):
        units.setdefault(row["document_id"] or row["id"], []).append(row)
    shown = list(chain(*pages(connection, asked | {"one_per_document": True})))
    merged_hits = sum(map(len, units.values())) - len(units)
    merged = {"deduplicated": merged_hits} if merged_hits else {}
    expected = [
        next((row for row in hits if row["chunk_index"] is not None), hits[0])
        | {name: hits[0][name] for name in ("rrf_score", "confidence")}
        | {"total_count": len(units), "collections": sorted({hit["collection"] for hit in hits})}
        | {"notes": (hits[0]["notes"] or {}) | merged or None}
        for hits in units.values()
    ]
    assert shown == expected


# A condition, the chunks that meet it, and whether it says who may see a chunk: then it cuts the
# context too.
conditions: list[tuple[str, str, object, Callable[[Chunk], bool], bool]] = [
    ("collection", "ne", "none", lambda one: True, False),
    ("collection", "eq", "knowledge", lambda one: one.collection == "knowledge", False),
    ("chunk_index", "gte", 2, lambda one: (one.chunk_index or 0) >= 2, False),
    ("sensitivity", "not_in", ["secret"], lambda one: one.sensitivity != "secret", True),
    ("sensitivity", "eq", None, lambda one: one.sensitivity is None, True),
    ("visibility", "ne", "private", lambda one: one.visibility == "public", True),
    ("owner_id", "in", [str(OWNERS[0]), None], lambda one: one.owner in (None, OWNERS[0]), True),
]


@holds(
    asked=together(ranking, anything | viewed | in_public | of_a_kind | dated),
    window=st.integers(1, 5),
    condition=st.sampled_from(range(len(conditions))),
)
def test_context_is_the_visible_chunks_around_a_hit(
    connection: Connection, corpus: Corpus, asked: Arguments, window: int, condition: int
) -> None:
    field, op, value, met, cuts = conditions[condition]
    around = {
        number: one
        for number, one in corpus.active().items()
        if visible(one, asked) and (met(one) or not cuts)
    }
    rows = search(
        connection,
        **asked,
        filters=[{"field": field, "op": op, "value": value}],
        neighbor_window=window,
        match_count=100,
    )
    assert set(numbers(rows)) <= set(around)
    for row in rows:
        hit = corpus.chunks[row["id"].int]
        assert met(hit)
        place = hit.chunk_index
        reach = () if place is None else range(place - window, place + window + 1)
        near = sorted(
            (one.chunk_index, number)
            for number, one in around.items()
            if one.document
            and (one.document, one.collection) == (hit.document, hit.collection)
            and one.chunk_index in reach
        )
        assert row["context"] == (
            "\n[CHUNK BOUNDARY]\n".join(around[number].content for _, number in near) or hit.content
        )


@holds(asked=searches)
def test_snippet_and_context_are_there_when_asked_for_and_change_nothing_else(
    connection: Connection, corpus: Corpus, asked: Arguments
) -> None:
    plain = search(connection, **asked)
    assert all(row["snippet"] is None and row["context"] is None for row in plain)
    rows = search(connection, **asked, snippet=True, neighbor_window=1)
    assert all(row["snippet"] is not None and row["context"] is not None for row in rows)
    assert [row | {"snippet": None, "context": None} for row in rows] == plain


@pytest.mark.module("batch")
@holds(asked=st.lists(searches, min_size=1, max_size=4))
def test_a_batch_gives_what_separate_calls_give(
    connection: Connection, corpus: Corpus, asked: list[Arguments]
) -> None:
    rows = call(connection, "hybrid_search_knowledge_chunks_batch", queries=asked)
    assert rows == [
        {"query_index": number} | row
        for number, one in enumerate(asked)
        for row in search(connection, **one)
    ]


@holds(asked=together(searches, viewed))
def test_a_users_own_search_is_the_search_with_that_viewer(
    connection: Connection, corpus: Corpus, asked: Arguments
) -> None:
    expected = search(connection, **asked)
    viewer = str(asked["viewer_id"])
    mine = {name: value for name, value in asked.items() if name != "viewer_id"}
    claims = json.dumps({"role": "authenticated", "sub": viewer})
    connection.execute("select set_config('request.jwt.claims', %s, true)", [claims])
    connection.execute("set local role authenticated")
    assert call(connection, "search_my_knowledge_chunks", **mine) == expected
