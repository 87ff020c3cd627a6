"""A search of several databases gives what one database with the whole corpus gives."""

from collections.abc import Iterator
from typing import Any

import pytest
from shards import NAMES, OWNERS, Corpus, databases, fill

from conftest import Server
from second_brain.distributed.shared_statistics import refresh_shared_statistics
from second_brain.errors import InvalidInputError
from second_brain.services.postgres import PostgresProvider

pytestmark = pytest.mark.module("shards")

QUESTION = [0.2, -0.5, 0.8]
BOOSTS = [
    {"filters": {"collection": "memory"}, "factor": 1.5},
    {"field": "document_date", "decay": "gauss", "origin": "2026-06-01", "scale": 40},
]
SCORES = ("similarity", "text_score", "rrf_score", "answer_confidence")
SHOWN = (
    "vector_rank",
    "text_rank",
    "match_type",
    "matched_terms",
    "collections",
    "document_chunks",
    "title",
    "snippet",
    "context",
    "total_count",
    "pool_ended",
)


@pytest.fixture(scope="module")
def corpus(server: Server) -> Iterator[Corpus]:
    with databases(server, *NAMES) as made:
        fill(made, 120)
        refresh_shared_statistics(made.shards)
        made.one.execute("analyze public.knowledge_chunks")
        made.one.execute("select public.refresh_knowledge_statistics()")
        for database in (*made.shards.values(), made.one):
            # Each draws its own pairs of chunks.
            database.execute("update public.knowledge_corpus_statistics set cosine_spread = 0.6")
            # The texts were weighed by the mean length at the time.
            database.execute("update public.knowledge_chunks set content_tsv = null")
        yield made


def test_each_database_has_a_part(corpus: Corpus) -> None:
    counts = [
        shard.execute("select count(*) from public.knowledge_documents").fetchall()[0][0]
        for shard in corpus.shards.values()
    ]
    assert sum(counts) == 120
    assert min(counts) > 10


@pytest.mark.parametrize(
    ("fusion", "arguments"),
    [
        ("rrf", {}),
        ("relative_score", {}),
        ("auto", {}),
        ("auto", {"query_text": None}),
        ("auto", {"query_embedding": None}),
        ("rrf", {"query_text": "amber zephyr yarrow", "top_k": 20, "pool_size": 20}),
        ("auto", {"query_text": '"amber basil" cedar', "snippet": True}),
        ("auto", {"query_text": '"amber basil"~5 cedar', "snippet": True, "snippets": 3}),
        # No chunk has the phrase, so it is required no more.
        ("auto", {"query_text": '"umber zephyr yarrow willow" amber'}),
        ("auto", {"query_text": "otter -amber"}),
        ("auto", {"query_text": "amber basil", "search_mode": "simple"}),
        ("auto", {"query_text": "zefyrr quarz"}),
        pytest.param(
            "auto",
            {"query_text": "amber wil", "prefix_last": True},
            marks=pytest.mark.module("words"),
        ),
        ("relative_score", {"one_per_document": True, "neighbor_window": 1}),
        ("auto", {"recency_half_life": 30.0}),
        ("auto", {"boosts": BOOSTS, "one_per_document": True}),
        ("rrf", {"boosts": BOOSTS, "order_by": "document_date asc"}),
        ("auto", {"diversity": 0.5}),
        ("rrf", {"merge_duplicates": True, "max_per_document": 1}),
        ("auto", {"min_confidence": 0.3, "top_k": 20}),
        ("auto", {"collections": ["knowledge", "memory"]}),
        ("auto", {"formulations": [{"query_text": "river"}, {"query_embedding": [1, 0, 0]}]}),
        ("auto", {"viewer_id": OWNERS[0]}),
        ("auto", {"public_only": True, "threshold": 0.5}),
        ("rrf", {"match_offset": 10, "top_k": 10}),
        ("auto", {"filters": {"collection": "memory"}}),
        ("rrf", {"vector_weight": 0.0}),
    ],
    ids=str,
)
def test_the_hits_are_those_of_one_database(
    corpus: Corpus, fusion: str, arguments: dict[str, Any]
) -> None:
    given = {
        "query_embedding": QUESTION,
        "query_text": "amber river",
        "top_k": 10,
        "fusion": fusion,
        **arguments,
    }
    expected, of_one = PostgresProvider(corpus.one).find(**given)
    with corpus.provider() as provider:
        hits, details = provider.find(**given)
    assert [hit.id for hit in hits] == [hit.id for hit in expected]
    assert [hit.confidence for hit in hits] == pytest.approx([hit.confidence for hit in expected])
    for hit, other in zip(hits, expected, strict=True):
        shown, wanted = hit.metadata, other.metadata
        assert [shown.get(name) for name in SHOWN] == [wanted.get(name) for name in SHOWN]
        assert [shown.get(name) for name in SCORES] == pytest.approx(
            [wanted.get(name) for name in SCORES]
        )
    assert details.get("notes") == of_one.get("notes")
    assert expected


@pytest.mark.parametrize(
    ("given", "note"),
    [
        ({"query_embedding": None, "embedding_from_text": True}, None),
        ({"query_embedding": [1, 0], "on_bad_embedding": "from_text"}, "ignored: query_embedding"),
    ],
)
def test_text_hits_of_one_database_give_no_embedding(
    corpus: Corpus, given: dict[str, Any], note: str | None
) -> None:
    words: dict[str, Any] = {"query_text": "amber river", "top_k": 10, "fusion": "rrf"}
    expected, _ = PostgresProvider(corpus.one).find(query_embedding=None, **words)
    with corpus.provider() as provider:
        hits, details = provider.find(**words, **given)
    assert [hit.id for hit in hits] == [hit.id for hit in expected]
    noted = details.get("notes") or {}
    assert noted.get("embedding", "").startswith(note or "")
    assert "best text hits" not in str(noted)


@pytest.mark.module("facets")
def test_counts_refuse_a_threshold_that_each_database_would_read_otherwise(corpus: Corpus) -> None:
    asked: dict[str, Any] = {"query_text": "amber river", "min_confidence": 0.3}
    with corpus.provider() as provider:
        for counted in (
            lambda: provider.find(None, exact_total=True, **asked),
            lambda: provider.count_facets(None, facets=["collection"], **asked),
        ):
            with pytest.raises(InvalidInputError, match="min_confidence is given"):
                counted()
