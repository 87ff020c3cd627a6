"""What a search does where the caller leaves the choice to the corpus, and what it says of it."""

import hashlib
import os
from pathlib import Path
from typing import Any

import psycopg
import pytest
from searching import EAST, NORTH, NORTH_EAST, Row, call, chunk, numbers, store, store_document

from conftest import Connection
from second_brain.services.arguments import FUSIONS
from tools import schema_files

BOTH: dict[str, Any] = {"query_embedding": NORTH, "query_text": "alpha"}


def hybrid(connection: Connection, **arguments: Any) -> list[Row]:
    """Search with the function's own defaults."""
    return call(connection, "hybrid_search_knowledge_chunks", **arguments)


def keep(connection: Connection, **settings: Any) -> None:
    call(connection, "set_knowledge_settings", **settings)


@pytest.fixture
def corpus(knowledge: Connection) -> Connection:
    """Chunk 1 is nearest, chunk 2 has the word, chunk 3 is the second of both."""
    store(
        knowledge,
        {"content": "beta", "embedding": NORTH},
        {"content": "alpha", "embedding": EAST},
        {"content": "alpha gamma delta epsilon", "embedding": NORTH_EAST},
    )
    return knowledge


def scores(rows: list[Row]) -> list[tuple[int, float]]:
    return [(row["id"].int, row["rrf_score"]) for row in rows]


def test_without_a_stored_setting_fusion_is_rrf(corpus: Connection) -> None:
    assert scores(hybrid(corpus, **BOTH)) == scores(hybrid(corpus, **BOTH, fusion="rrf"))
    assert all(row["rrf_score"] <= 2 / 61 for row in hybrid(corpus, **BOTH))


def test_a_collection_that_stores_weights_alone_has_the_fusion_of_all(corpus: Connection) -> None:
    keep(corpus, fusion="relative_score", vector_weight=9)
    keep(corpus, collection="knowledge", text_weight=3)
    assert scores(hybrid(corpus, **BOTH, collections=["knowledge"])) == scores(
        hybrid(corpus, **BOTH, fusion="relative_score", text_weight=3)
    )


def test_the_stored_setting_is_that_of_a_caller_who_gives_none(corpus: Connection) -> None:
    keep(corpus, fusion="relative_score", vector_weight=3)
    given = hybrid(corpus, **BOTH, text_weight=0.5)
    assert scores(given) == scores(
        hybrid(corpus, **BOTH, fusion="relative_score", vector_weight=3, text_weight=0.5)
    )


def test_a_fusion_that_the_caller_names_keeps_the_callers_weights(corpus: Connection) -> None:
    before = scores(hybrid(corpus, **BOTH, fusion="rrf"))
    keep(corpus, fusion="relative_score", vector_weight=3)
    assert scores(hybrid(corpus, **BOTH, fusion="rrf")) == before


def test_a_collection_has_a_setting_of_its_own(corpus: Connection) -> None:
    plain = scores(hybrid(corpus, **BOTH, collections=["knowledge"]))
    keep(corpus, fusion="relative_score")
    keep(corpus, collection="knowledge", fusion="rrf")
    assert scores(hybrid(corpus, **BOTH, collections=["knowledge"])) == plain
    assert scores(hybrid(corpus, **BOTH, filter_type=None, collections=["knowledge"])) == plain
    relative = scores(hybrid(corpus, **BOTH, fusion="relative_score"))
    assert scores(hybrid(corpus, **BOTH)) == relative
    # Two collections have one list of scores, so one fusion.
    assert scores(hybrid(corpus, **BOTH, collections=["knowledge", "memory"])) == relative


def test_a_filter_on_one_collection_means_its_setting(corpus: Connection) -> None:
    plain = scores(hybrid(corpus, **BOTH))
    keep(corpus, fusion="relative_score")
    keep(corpus, collection="knowledge", fusion="rrf")
    only = '[{"field": "collection", "op": "eq", "value": "knowledge"}]'
    assert scores(hybrid(corpus, **BOTH, filters=only)) == plain


def test_a_stored_weight_of_0_ends_the_leg(corpus: Connection) -> None:
    keep(corpus, vector_weight=0)
    assert {row["match_type"] for row in hybrid(corpus, **BOTH)} == {"text"}
    with pytest.raises(psycopg.Error, match="after they are multiplied") as refused:
        hybrid(corpus, **BOTH, text_weight=0)
    assert refused.value.sqlstate == "22023"


def test_what_is_stored_again_replaces_what_was_stored(corpus: Connection) -> None:
    keep(corpus, fusion="auto", vector_weight=2, embedding_model="one")
    keep(corpus, text_weight=2)
    rows = corpus.execute(
        "select fusion, vector_weight, text_weight, embedding_model from public.knowledge_settings"
    ).fetchall()
    assert rows == [(None, 1, 2, None)]


def changes(connection: Connection) -> list[list[str]]:
    return [row["changes"] for row in call(connection, "list_knowledge_settings")]


@pytest.mark.module("insight")
def test_settings_that_were_measured_tell_what_has_changed_since(corpus: Connection) -> None:
    corpus.execute("update public.knowledge_chunks set embedding_model = 'one'")
    keep(corpus, fusion="auto", measured_on="20 judged questions")
    (row,) = call(corpus, "list_knowledge_settings")
    assert (row["measured"]["on"], row["changes"]) == ("20 judged questions", [])

    store(corpus, {"id": chunk(9), "embedding": EAST, "embedding_model": "one"})
    assert changes(corpus) == [["the corpus had 3 chunks and has 4"]]
    corpus.execute(
        "update public.knowledge_chunks set embedding_model = 'two' where id = %s", [chunk(1)]
    )
    corpus.execute(
        "create or replace function knowledge_internal.ranking_version() returns integer"
        " language sql immutable set search_path = pg_catalog, pg_temp as 'select 99'"
    )
    assert changes(corpus)[0][1:] == [
        "the embeddings were of one and are of one, two",
        "a newer version ranks by other formulas",
    ]
    keep(corpus, fusion="auto", measured_on="30 judged questions")
    assert changes(corpus) == [[]]


RANKS = {
    "bm25_k1",
    "document_side",
    "exact_scores",
    "fused_rows",
    "fusion_rules",
    "ranking_version",
    "read_settings",
    "sampled_spread",
    "search",
    "text_leg",
    "weighed_readings",
    "weight_of_word",
}
RANKING = Path(__file__).with_name("ranking.sha256")


def test_the_version_of_the_ranking_was_looked_at_when_a_formula_changed() -> None:
    """After a change that moves hits, raise ranking_version(): it calls measured settings stale.

    UPDATE_GOLDEN=1 then notes the functions as they are.
    """
    functions = [
        one.definition
        for file in schema_files.read()
        for one in file.functions
        if one.function and one.function.split(".")[-1] in RANKS
    ]
    assert len(functions) == len(RANKS)
    digest = hashlib.sha256("\n".join(functions).encode()).hexdigest()
    if os.environ.get("UPDATE_GOLDEN"):
        RANKING.write_text(f"{digest}\n", "utf-8")
    assert RANKING.read_text("utf-8") == f"{digest}\n"


def test_a_chunk_more_in_ten_and_settings_by_hand_are_no_change(corpus: Connection) -> None:
    keep(corpus, fusion="auto")
    keep(corpus, collection="knowledge", fusion="rrf", measured_on="7 questions")
    store(corpus, *({"id": chunk(n), "collection": "other"} for n in range(4, 8)))
    assert changes(corpus) == [[], []]


BAD = ([1, 0], [0, 0, 0])


@pytest.mark.parametrize("embedding", BAD)
def test_a_bad_embedding_leaves_the_text_leg_where_the_caller_allows_it(
    corpus: Connection, embedding: list[float]
) -> None:
    rows = hybrid(corpus, query_embedding=embedding, query_text="alpha", on_bad_embedding="text")
    assert numbers(rows) == [2, 3]
    assert {row["match_type"] for row in rows} == {"text"}
    assert all(row["notes"]["embedding"].startswith("ignored: query_embedding") for row in rows)


@pytest.mark.parametrize("embedding", BAD)
def test_a_bad_embedding_without_words_is_refused_all_the_same(
    corpus: Connection, embedding: list[float]
) -> None:
    for further in ({}, {"query_text": "alpha", "text_weight": 0}):
        with pytest.raises(psycopg.Error, match=r"^query_embedding") as refused:
            hybrid(corpus, query_embedding=embedding, on_bad_embedding="text", **further)
        assert refused.value.sqlstate == "22023"


def test_the_bad_embedding_of_a_formulation_is_left_out_alone(corpus: Connection) -> None:
    ways = '[{"query_text": "gamma", "query_embedding": [1, 0]}, {"query_embedding": [0, 1, 0]}]'
    rows = hybrid(corpus, **BOTH, formulations=ways, on_bad_embedding="text")
    assert {row["notes"]["embedding"].split(" has ")[0] for row in rows} == {
        "ignored: formulations[0].query_embedding"
    }
    assert numbers(rows) == numbers(
        hybrid(
            corpus, **BOTH, formulations='[{"query_text": "gamma"}, {"query_embedding": [0, 1, 0]}]'
        )
    )


def test_nothing_is_noted_of_a_search_as_asked(corpus: Connection) -> None:
    assert {row["notes"] for row in hybrid(corpus, **BOTH, on_bad_embedding="text")} == {None}


@pytest.mark.parametrize("fusion", FUSIONS)
def test_confidence_is_1_for_the_best_of_every_list(corpus: Connection, fusion: str) -> None:
    store_best = {"id": chunk(9), "content": "alpha", "embedding": str(NORTH)}
    corpus.execute(
        "insert into public.knowledge_chunks (id, content, embedding)"
        " values (%(id)s, %(content)s, %(embedding)s)",
        store_best,
    )
    corpus.execute("delete from public.knowledge_chunks where id <> %s", [chunk(9)])
    for weights in ({}, {"vector_weight": 3.0, "text_weight": 0.25}):
        rows = hybrid(corpus, **BOTH, **weights, fusion=fusion)
        assert [row["confidence"] for row in rows] == [pytest.approx(1)]


def test_a_hit_tells_of_its_document(knowledge: Connection) -> None:
    viewer, other = chunk(70), chunk(71)
    for number, (key, owner) in enumerate((("mine", viewer), ("theirs", other)), 1):
        access = {"owner_id": owner, "sensitivity": "inner"}
        store_document(knowledge, chunk(number), external_key=key, **access)
    store(
        knowledge,
        {"document_id": chunk(1), "chunk_index": 0, "content": "alpha", "heading": "One"},
        {"document_id": chunk(1), "chunk_index": 1, "content": "beta"},
        {"document_id": chunk(1), "chunk_index": 2, "content": "alpha", "status": "superseded"},
        {"document_id": chunk(2), "chunk_index": 0, "content": "alpha"},
        "alpha of no document",
    )
    rows = {row["id"].int: row for row in hybrid(knowledge, query_text="alpha")}
    reported = [
        (number, row["external_key"], row["document_chunks"], row["heading"], row["sensitivity"])
        for number, row in sorted(rows.items())
    ]
    assert reported == [
        (1, "mine", 2, "One", "inner"),
        (4, "theirs", 1, None, "inner"),
        (5, None, 0, None, None),
    ]
    mine = hybrid(knowledge, query_text="alpha", viewer_id=viewer)
    assert [row["external_key"] for row in mine] == ["mine"]
