"""explain_hybrid_search: what it tells of a search is what the search did."""

from typing import Any

import pytest
from psycopg.types.json import Jsonb
from searching import FUSIONS, answer, store

from conftest import Connection
from support.documents import embedded, upsert

pytestmark = pytest.mark.module("insight")

CORPUS = [
    {"content": "alpha beta", "embedding": [1, 0, 0]},
    {"content": "alpha gamma", "embedding": [0, 1, 0]},
    {"content": "delta", "embedding": [0, 0, 1]},
]


@pytest.fixture
def corpus(knowledge: Connection) -> Connection:
    store(knowledge, *CORPUS)
    return knowledge


def explain(connection: Connection, **arguments: Any) -> Any:
    return answer(connection, "explain_hybrid_search", **arguments)


def test_it_counts_each_leg_and_gives_the_reason_for_missing_rows(corpus: Connection) -> None:
    explained = explain(corpus, query_embedding="[1,0,0]", query_text="alpha", match_threshold=0.5)
    assert explained["vector"]["rows"] == 1
    assert explained["text"]["rows"] == 2
    assert "match_threshold" in explained["vector"]["ran_dry"]
    assert "words of the query" in explained["text"]["ran_dry"]
    assert set(explained["milliseconds"]) == {"hybrid", "reading", "vector", "text"}
    assert all(value > 0 for value in explained["milliseconds"].values())


def test_a_leg_that_is_not_run_says_so(corpus: Connection) -> None:
    explained = explain(corpus, query_text="alpha")
    assert explained["vector"]["strategy"] == "not run"
    assert explained["milliseconds"]["vector"] is None
    assert explain(corpus, query_embedding="[1,0,0]")["text"]["strategy"] == "not run"


def test_lexemes_come_with_their_document_frequencies(corpus: Connection) -> None:
    lexemes = explain(corpus, query_text="alpha delta omega")["text"]["lexemes"]
    frequencies = {one["lexeme"]: one["document_frequency"] for one in lexemes}
    assert frequencies == {"alpha": 2, "delta": 1, "omega": 0}
    weights = {one["lexeme"]: one["weight"] for one in lexemes}
    assert weights["omega"] > weights["delta"] > weights["alpha"] > 0


def test_the_weights_are_those_used(corpus: Connection) -> None:
    asked = {"query_embedding": "[1,0,0]", "query_text": "alpha"}
    given = {"vector_weight": 2.0, "text_weight": 0.5}
    explained = explain(corpus, **asked, **given, fusion="rrf")
    weights = {"vector": 2, "text": 0.5}
    fusion = {"policy": "rrf", "is_stored": False, "cosine_scale": None}
    assert explained["fusion"] == fusion | {"weights": weights}
    assert [one["weights"] for one in explained["lists"]] == [weights]


SEARCHES: dict[str, dict[str, Any]] = {
    "both legs": {},
    "no words": {"query_text": None},
    "no embedding": {"query_embedding": None},
    "collections": {"collections": ["knowledge", "memory"]},
    "formulations": {"formulations": [{"query_text": "delta"}, {"query_embedding": [0, 0, 1]}]},
    "documents": {"one_per_document": True},
    "documents of collections": {"one_per_document": True, "collections": ["knowledge", "memory"]},
    "age": {"recency_half_life": 7},
    "a page": {"match_offset": 1, "match_count": 1},
    "a filter": {"filters": [{"field": "collection", "op": "eq", "value": "memory"}]},
    "required words": {"query_text": '"beta omega" alpha'},
    "excerpts": {"snippet": True},
}
NAMES = [
    pytest.param(one, marks=pytest.mark.module("arrange")) if one == "age" else one
    for one in SEARCHES
]


@pytest.fixture
def varied(knowledge: Connection) -> Connection:
    """Two documents of two chunks each, of different dates and collections."""
    for key, date, collection in (
        ("old", "2001-01-01", "memory"),
        ("new", "2026-01-01", "knowledge"),
    ):
        first = embedded(f"alpha beta {key}", "m", (1, 0.1, 0))
        second = embedded(f"alpha delta delta {key}", "m", (1, 0.5, 0.2))
        upsert(knowledge, key, first, second, document_date=date, collection=collection)
    return knowledge


def asked_for(name: str) -> dict[str, Any]:
    return {"query_embedding": [1, 0, 0], "query_text": "alpha beta", **SEARCHES[name]}


@pytest.mark.parametrize("fusion", FUSIONS)
@pytest.mark.parametrize("name", NAMES)
def test_the_hits_are_those_of_the_search(varied: Connection, fusion: str, name: str) -> None:
    given = {"fusion": fusion, **asked_for(name)}
    ((hits,),) = varied.execute(
        "select coalesce(jsonb_agg(to_jsonb(hit) - '{metadata,context}'::text[]), '[]')"
        "  from knowledge_internal.search(knowledge_internal.given_arguments(%s)) as hit",
        [Jsonb(given)],
    ).fetchall()
    explained = explain(varied, **given)
    shares = [
        (hit.pop("vector_share"), hit.pop("text_share"), hit.pop("neighbour_share") or 0)
        for hit in explained["hits"]
    ]
    factors = [hit.pop("factors") for hit in explained["hits"]]
    assert [one and len(one) for one in factors] == [1 if name == "age" else None] * len(factors)
    assert explained["hits"] == hits != []
    # A document has the score of its best chunk, which need not be the one that it shows.
    if name not in ("age", "documents", "documents of collections"):
        scores = [hit["rrf_score"] for hit in explained["hits"]]
        assert [sum(all_three) for all_three in shares] == pytest.approx(scores)


@pytest.mark.parametrize("name", NAMES)
def test_the_lists_have_the_ranks_of_the_hits(varied: Connection, name: str) -> None:
    given = asked_for(name)
    all_hits = {"match_offset": 0, "match_count": 10, "one_per_document": False}
    whole = explain(varied, **given | all_hits)
    formulations = 1 + len(given.get("formulations") or ())
    assert [(one["formulation"], one["collection"]) for one in whole["lists"]] == [
        (formulation, collection)
        for formulation in range(formulations)
        for collection in given.get("collections") or [None]
    ]
    for leg in ("vector", "text"):
        last = max(one[leg]["rows"] for one in whole["lists"])
        ranks = [hit[f"{leg}_rank"] for hit in whole["hits"] if hit[f"{leg}_rank"]]
        assert max(ranks, default=0) <= last
        assert whole[leg]["rows"] == sum(one[leg]["rows"] for one in whole["lists"])
        if len(whole["lists"]) == 1:
            assert sorted(ranks) == list(range(1, last + 1))


def test_it_leaves_no_setting(corpus: Connection) -> None:
    settings = (
        "select name, setting from pg_settings where name ~ '^(hnsw|knowledge_internal)' or name"
        " in ('enable_seqscan', 'enable_sort', 'plan_cache_mode') order by 1"
    )
    with corpus.transaction():
        corpus.execute("select '[1]'::extensions.vector")
        before = corpus.execute(settings).fetchall()
        explain(corpus, query_embedding="[1,0,0]", query_text="alpha")
        assert corpus.execute(settings).fetchall() == before
