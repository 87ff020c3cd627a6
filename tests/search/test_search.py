"""Searching, on a real Postgres: corpora small enough to see the right order.

Most tests share one database and roll back what they store.
"""

import contextlib
import math
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any
from uuid import UUID

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import sql
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from conftest import Connect, Connection, Server, copy_of

Row = dict[str, Any]

NORTH, NORTH_EAST, EAST, UP = [1, 0, 0], [0.8, 0.6, 0], [0, 1, 0], [0, 0, 1]
MODES = ("websearch", "simple", "phrase")
FUSIONS = ("rrf", "relative_score", "auto")


def chunk(number: int) -> UUID:
    return UUID(int=number)


def store(connection: Connection, *chunks: Mapping[str, Any]) -> None:
    """Store chunks under the ids 1, 2, 3, ... in their order."""
    for number, columns in enumerate(chunks, 1):
        values = {"id": chunk(number), "content": "text", **columns}
        if values.get("embedding") is not None:
            values["embedding"] = str(values["embedding"])
        if "metadata" in values:
            values["metadata"] = Jsonb(values["metadata"])
        connection.execute(
            sql.SQL("insert into public.knowledge_chunks ({}) values ({})").format(
                sql.SQL(", ").join(map(sql.Identifier, values)),
                sql.SQL(", ").join(map(sql.Placeholder, values)),
            ),
            values,
        )


def call(connection: Connection, function: str, **arguments: Any) -> list[Row]:
    """Call a function by argument names, in a savepoint of its own."""
    if isinstance(arguments.get("query_embedding"), list):
        arguments["query_embedding"] = str(arguments["query_embedding"])
    statement = sql.SQL("select * from public.{}({})").format(
        sql.Identifier(function),
        sql.SQL(", ").join(
            sql.SQL("{} => {}{}").format(
                sql.Identifier(name),
                sql.Placeholder(name),
                sql.SQL("::extensions.vector" if name == "query_embedding" else ""),
            )
            for name in arguments
        ),
    )
    with connection.transaction(), connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(statement, arguments).fetchall()


def search(connection: Connection, **arguments: Any) -> list[Row]:
    """Search with fusion rrf, whose scores can be computed by hand."""
    return call(connection, "hybrid_search_knowledge_chunks", **{"fusion": "rrf"} | arguments)


def numbers(rows: Sequence[Row]) -> list[int]:
    return [row["id"].int for row in rows]


def refused(connection: Connection, function: str, **arguments: Any) -> str:
    with pytest.raises(psycopg.Error) as caught:
        call(connection, function, **arguments)
    assert caught.value.sqlstate == "22023"
    return caught.value.diag.message_primary or ""


# What scoring should give, in Python.


def lexemes(connection: Connection, text: str, language: str = "english") -> Counter[str]:
    rows = connection.execute(
        "select word.lexeme, cardinality(word.positions)"
        " from unnest(to_tsvector(%s::regconfig, %s)) as word",
        [language, text],
    )
    return Counter(dict(rows.fetchall()))


def bm25(corpus: Mapping[Any, Counter[str]], query: Counter[str]) -> dict[Any, float]:
    """Score the documents that share a lexeme with the query: BM25, k1 1.2, b 0.75."""
    mean = max(1, sum(words.total() for words in corpus.values()) / len(corpus))
    scores: dict[Any, float] = {}
    for word, occurrences in query.items():
        having = [one for one, words in corpus.items() if word in words]
        idf = math.log(1 + (len(corpus) - len(having) + 0.5) / (len(having) + 0.5))
        for one in having:
            tf, length = corpus[one][word], corpus[one].total()
            share = tf * 2.2 / (tf + 1.2 * (0.25 + 0.75 * length / mean))
            scores[one] = scores.get(one, 0) + occurrences * idf * share
    return scores


ANIMALS: list[dict[str, Any]] = [
    {"content": "the cat sat on the mat", "embedding": NORTH},
    {"content": "a dog chased the cat", "embedding": NORTH_EAST},
    {"content": "dogs and wolves run", "embedding": EAST},
    {"content": "stock markets fell", "embedding": UP},
]


def test_a_chunk_that_both_legs_find_is_first(knowledge: Connection) -> None:
    store(knowledge, *ANIMALS)
    rows = search(knowledge, query_embedding=NORTH, query_text="dog")
    assert numbers(rows) == [2, 3, 1, 4]
    assert [row["vector_rank"] for row in rows] == [2, 3, 1, 4]
    # Both have three words, one of them dog: the tie goes to the lower id.
    assert [row["text_rank"] for row in rows] == [1, 2, None, None]
    assert [row["match_type"] for row in rows] == ["both", "both", "vector", "vector"]
    assert rows[0]["rrf_score"] == 1 / (60 + 2) + 1 / (60 + 1)
    assert rows[2]["rrf_score"] == 1 / (60 + 1)


def test_ties_go_to_the_better_single_rank_then_to_the_lower_id(knowledge: Connection) -> None:
    # With rrf_k 2: 1/3 + 1/6 = 1/4 + 1/4. Four words each, so more cats is a better text rank.
    store(
        knowledge,
        {"content": "cat cat cat dog", "embedding": [0.9, 0.1, 0]},  # vector 2, text 2
        {"content": "cat dog dog dog", "embedding": [1, 0, 0]},  # vector 1, text 4
        {"content": "cat cat cat cat", "embedding": [0.5, 0.5, 0]},  # vector 4, text 1
        {"content": "cat cat dog dog", "embedding": [0.8, 0.3, 0]},  # vector 3, text 3
    )
    rows = search(knowledge, query_embedding=NORTH, query_text="cat", rrf_k=2)
    assert [(row["vector_rank"], row["text_rank"]) for row in rows] == [
        (1, 4),
        (4, 1),
        (2, 2),
        (3, 3),
    ]
    assert [row["rrf_score"] for row in rows] == [0.5, 0.5, 0.5, 0.4]
    assert numbers(rows) == [2, 3, 1, 4]


def test_equal_chunks_are_ranked_by_id(knowledge: Connection) -> None:
    store(knowledge, *[{"content": "a kettle", "embedding": NORTH}] * 4)
    rows = search(knowledge, query_embedding=NORTH, query_text="kettle", match_count=3)
    assert numbers(rows) == [1, 2, 3]
    assert [(row["vector_rank"], row["text_rank"]) for row in rows] == [(1, 1), (2, 2), (3, 3)]


def test_relative_score_scales_each_leg_to_its_pool(knowledge: Connection) -> None:
    store(
        knowledge,
        {"content": "cat cat cat dog", "embedding": [1, 0, 0]},  # 1 by vector
        {"content": "cat dog dog dog", "embedding": [0, 1, 0]},  # 0 by vector, last by text
        {"content": "cat cat cat cat", "embedding": None},  # first by text
        {"content": "other", "embedding": [0.6, 0.8, 0]},  # 0.6 by vector
    )
    rows = search(
        knowledge,
        query_embedding=NORTH,
        query_text="cat",
        fusion="relative_score",
        vector_weight=0.5,
        text_weight=2,
    )
    least, middle, best = sorted(row["text_score"] for row in rows if row["text_score"])
    expected = {1: 0.5 + 2 * (middle - least) / (best - least), 2: 0, 3: 2, 4: 0.5 * 0.6}
    found = {row["id"].int: row["rrf_score"] for row in rows}
    assert found == pytest.approx(expected, abs=1e-6)
    assert numbers(rows) == sorted(expected, key=lambda one: -expected[one])


@pytest.mark.parametrize("fusion", FUSIONS)
def test_every_hit_of_the_text_leg_alone_has_a_score(knowledge: Connection, fusion: str) -> None:
    store(knowledge, {"content": "cat"}, {"content": "cat dog"}, {"content": "other"})
    rows = search(knowledge, query_text="cat dog", fusion=fusion)
    assert numbers(rows) == [2, 1]
    assert rows[0]["rrf_score"] > rows[1]["rrf_score"] > 0.01
    if fusion == "relative_score":
        share = rows[1]["text_score"] / rows[0]["text_score"]
        assert [row["rrf_score"] for row in rows] == pytest.approx([1, share])


@pytest.mark.parametrize("fusion", FUSIONS)
def test_a_fusion_orders_one_leg_as_the_leg_does(knowledge: Connection, fusion: str) -> None:
    store(knowledge, *ANIMALS)
    by_vector = search(knowledge, query_embedding=NORTH, fusion=fusion)
    assert [row["vector_rank"] for row in by_vector] == [1, 2, 3, 4]
    by_text = search(knowledge, query_text="dog cat mat", fusion=fusion)
    assert [row["text_rank"] for row in by_text] == [1, 2, 3]


@pytest.mark.parametrize("fusion", FUSIONS)
def test_a_fusion_orders_by_its_score(knowledge: Connection, fusion: str) -> None:
    store(knowledge, *ANIMALS)
    rows = search(knowledge, query_embedding=EAST, query_text="cat markets", fusion=fusion)
    assert set(numbers(rows)) == {1, 2, 3, 4}
    assert all(one["rrf_score"] >= other["rrf_score"] for one, other in pairwise(rows))


# Which legs run.


def test_without_an_embedding_only_the_text_leg_runs(knowledge: Connection) -> None:
    store(knowledge, *ANIMALS)
    rows = search(knowledge, query_text="mat")
    assert numbers(rows) == [1]
    assert rows[0]["match_type"] == "text"
    assert (rows[0]["vector_rank"], rows[0]["similarity"]) == (None, None)
    assert rows[0]["rrf_score"] == 1 / 61


@pytest.mark.parametrize("blank", [None, "", "  \n\t "])
def test_without_words_only_the_vector_leg_runs(knowledge: Connection, blank: str | None) -> None:
    store(knowledge, *ANIMALS)
    rows = search(knowledge, query_embedding=EAST, query_text=blank)
    assert numbers(rows) == [3, 2, 1, 4]
    assert {row["match_type"] for row in rows} == {"vector"}
    assert {row["text_rank"] for row in rows} == {row["text_score"] for row in rows} == {None}
    assert [row["matched_terms"] for row in rows] == [[]] * 4
    assert [row["similarity"] for row in rows] == pytest.approx([1, 0.6, 0, 0], abs=1e-6)


def test_a_leg_of_weight_0_is_not_run(knowledge: Connection) -> None:
    store(knowledge, *ANIMALS)
    rows = search(knowledge, query_embedding=NORTH, query_text="wolves", text_weight=0)
    assert [row["text_rank"] for row in rows] == [None] * 4
    rows = search(knowledge, query_embedding=NORTH, query_text="wolves", vector_weight=0)
    assert [(row["id"].int, row["vector_rank"]) for row in rows] == [(3, None)]


def test_weights_decide_between_the_legs(knowledge: Connection) -> None:
    store(knowledge, *ANIMALS)
    query: dict[str, Any] = {"query_embedding": NORTH, "query_text": "markets", "match_count": 1}
    # Chunk 1 is first by vector alone, chunk 4 last by vector and first by text.
    assert numbers(search(knowledge, **query)) == [4]
    assert numbers(search(knowledge, **query, vector_weight=100, text_weight=0.5)) == [1]


def test_a_chunk_without_embedding_is_found_by_its_words(knowledge: Connection) -> None:
    store(knowledge, {"content": "not embedded yet"}, {"content": "other", "embedding": NORTH})
    rows = search(knowledge, query_embedding=NORTH, query_text="embedded")
    assert [(row["id"].int, row["match_type"]) for row in rows] == [(1, "text"), (2, "vector")]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("text", ["the and of", "!!! ?? ...", "-", '""', "-mat", "unheard"])
def test_words_that_select_nothing_leave_the_vector_leg(
    knowledge: Connection, mode: str, text: str
) -> None:
    store(knowledge, {"content": "stock markets fell", "embedding": UP})
    assert search(knowledge, query_text=text, search_mode=mode) == []
    rows = search(knowledge, query_embedding=UP, query_text=text, search_mode=mode)
    assert [(row["id"].int, row["text_rank"]) for row in rows] == [(1, None)]


def test_an_empty_corpus_gives_no_rows(knowledge: Connection) -> None:
    assert search(knowledge, query_embedding=NORTH, query_text="cat") == []


# What each search mode makes of a text.

FOX: list[dict[str, Any]] = [
    {"content": "the quick brown fox jumps over the lazy dog"},
    {"content": "the brown dog is quick"},
    {"content": "a lazy afternoon"},
    {"content": "foxes and hounds"},
]


@pytest.mark.parametrize(
    ("mode", "text", "found"),
    [
        ("websearch", "quick fox", {1, 2, 4}),
        ("websearch", "Quick, FOX!", {1, 2, 4}),
        ("websearch", '"quick brown"', {1}),
        ("websearch", '"brown dog" afternoon', {2}),
        ("websearch", 'afternoon "brown dog"', {2}),
        ("websearch", '"quick brown" "lazy dog"', {1}),
        # No row has what is required, so it is relaxed.
        ("websearch", '"quick brown" "brown dog"', {1, 2}),
        ("websearch", '"dog\nbrown"', {1, 2}),
        ("websearch", '"dog brown" -lazy', {2}),
        ("websearch", '"a lazy wolf" afternoon', {1, 3}),
        ("websearch", '"brown\n dog"', {2}),
        ("websearch", "dog -lazy", {2}),
        ("websearch", "-lazy dog", {2}),
        ("websearch", 'dog -"quick brown"', {2}),
        ("websearch", '"quick brown" or afternoon', {1, 3}),
        ("websearch", 'afternoon OR "quick brown"', {1, 3}),
        ("websearch", '"quick brown" or "brown dog" -lazy', {2}),
        ("websearch", '"quick brown" or afternoon "lazy dog"', {1}),
        ("websearch", "afternoon or hounds", {3, 4}),
        ("websearch", "or", set()),
        ("websearch", "or afternoon or", {3}),
        ("websearch", '"quick brown', {1, 2}),
        ("websearch", 'afternoon"', {3}),
        ("websearch", '"the"', set()),
        ("websearch", '"the" afternoon', {3}),
        ("simple", "quick dog", {1, 2}),
        ("simple", "dog the quick", {1, 2}),
        ("simple", "quick afternoon", set()),
        ("simple", "Foxes", {1, 4}),
        ("simple", "dog -lazy", {1}),
        ("simple", '"brown dog"', {1, 2}),
        ("phrase", "brown dog", {2}),
        ("phrase", "dog brown", set()),
        ("phrase", "quick brown fox", {1}),
        ("phrase", "brown\ndog", {2}),
        ("phrase", "dog\nbrown", set()),
        ("phrase", '"brown" dog', {2}),
        ("phrase", "dog -lazy", set()),
    ],
)
def test_a_mode_reads_a_text(knowledge: Connection, mode: str, text: str, found: set[int]) -> None:
    store(knowledge, *FOX)
    rows = search(knowledge, query_text=text, search_mode=mode)
    assert set(numbers(rows)) == found


def test_a_long_question_finds_the_chunks_with_its_rare_words(
    knowledge: Connection,
) -> None:
    store(
        knowledge,
        {"content": "We can use the same for all the things that you have with us."},
        {"content": "Signing keys are rotated by running the vault script every quarter."},
        {"content": "The office kitchen has a new coffee machine."},
        {"content": "Keys of the building are kept at the front desk."},
    )
    rows = search(
        knowledge,
        query_text="what do I have to do so that our signing keys get rotated?",
    )
    assert numbers(rows)[:2] == [2, 4]
    assert 3 not in numbers(rows)


def test_a_word_that_stands_twice_in_the_query_counts_twice(knowledge: Connection) -> None:
    store(knowledge, {"content": "apple"}, {"content": "banana"})
    twice, once = search(knowledge, query_text="apple banana banana")
    assert (twice["id"].int, once["id"].int) == (2, 1)
    assert twice["text_score"] == pytest.approx(2 * once["text_score"])


# Filters.


def test_match_threshold_is_a_bound_on_the_vector_leg_alone(knowledge: Connection) -> None:
    store(knowledge, *ANIMALS)
    rows = search(knowledge, query_embedding=NORTH, query_text="markets", match_threshold=0.5)
    assert [(row["id"].int, row["match_type"]) for row in rows] == [
        (1, "vector"),
        (4, "text"),
        (2, "vector"),
    ]


@pytest.mark.parametrize(
    ("threshold", "found"), [(-1, [1, 2, 3]), (0, [1, 2]), (0.7, [1]), (1, [1])]
)
def test_match_threshold_includes_the_similarity_that_it_names(
    knowledge: Connection, threshold: float, found: list[int]
) -> None:
    store(knowledge, {"embedding": NORTH}, {"embedding": EAST}, {"embedding": [-1, 0, 0]})
    rows = search(knowledge, query_embedding=NORTH, match_threshold=threshold)
    assert numbers(rows) == found


def test_filter_type_holds_in_both_legs(knowledge: Connection) -> None:
    kinds = ["note", "task", "note", "task"]
    store(
        knowledge,
        *(one | {"knowledge_type": kind} for one, kind in zip(ANIMALS, kinds, strict=True)),
    )
    rows = search(knowledge, query_embedding=NORTH, query_text="cat wolves", filter_type="note")
    assert set(numbers(rows)) == {1, 3}
    # Ranks are counted among the rows that pass.
    assert sorted(row["vector_rank"] for row in rows) == [1, 2]


@pytest.mark.parametrize("status", ["superseded", "archived", "deleted"])
def test_only_active_chunks_are_found(knowledge: Connection, status: str) -> None:
    store(knowledge, ANIMALS[0] | {"status": status}, ANIMALS[1])
    rows = search(knowledge, query_embedding=NORTH, query_text="cat")
    assert numbers(rows) == [2]


def test_a_pool_is_raised_to_match_count(knowledge: Connection) -> None:
    store(knowledge, *[{"content": "a kettle", "embedding": NORTH}] * 5)
    rows = search(knowledge, query_embedding=NORTH, query_text="kettle", pool_size=1, match_count=4)
    ranks = [(row["vector_rank"], row["text_rank"]) for row in rows]
    assert ranks == [(1, 1), (2, 2), (3, 3), (4, 4)]


def test_a_pool_bounds_each_leg(knowledge: Connection) -> None:
    store(knowledge, *ANIMALS)
    rows = search(knowledge, query_embedding=NORTH, query_text="wolves", pool_size=1, match_count=1)
    # Both are first in their leg; the tie goes to the lower id.
    assert numbers(rows) == [1]
    rows = search(knowledge, query_embedding=NORTH, query_text="wolves", pool_size=2, match_count=2)
    assert [(row["id"].int, row["vector_rank"]) for row in rows] == [(1, 1), (3, None)]


# What is refused.

BAD_ARGUMENTS: list[tuple[str, Any]] = [
    *[("match_count", value) for value in (0, -1, 1001, None)],
    *[("pool_size", value) for value in (0, -5, 1001, None)],
    *[("match_threshold", value) for value in (-1.01, 1.01, math.nan, math.inf, None)],
    *[("vector_weight", value) for value in (-0.1, math.nan, math.inf, None)],
    *[("text_weight", value) for value in (-0.1, math.nan, math.inf, None)],
    *[("rrf_k", value) for value in (0, -60, math.nan, math.inf, None)],
    *[("search_mode", value) for value in ("", "fuzzier", "WEBSEARCH", None)],
    *[("filter_type", value) for value in ("", "recipe", "Note")],
    *[("fusion", value) for value in ("", "average", "RRF")],
    *[("on_bad_embedding", value) for value in ("", "ignore", None)],
]


@pytest.mark.parametrize(("argument", "value"), BAD_ARGUMENTS)
def test_an_argument_out_of_bounds_is_refused_by_name(
    knowledge: Connection, argument: str, value: Any
) -> None:
    message = refused(
        knowledge,
        "hybrid_search_knowledge_chunks",
        query_embedding=NORTH,
        query_text="cat",
        **{argument: value},
    )
    assert message.startswith(argument)
    assert (
        "null" if value is None else str(value).replace("inf", "Infinity")
    ).lower().removesuffix(".0") in message.lower()


@pytest.mark.parametrize("fusion", FUSIONS)
@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("match_count", 1),
        ("match_count", 1000),
        ("pool_size", 1),
        ("pool_size", 1000),
        ("match_threshold", -1),
        ("match_threshold", 1),
        ("vector_weight", 0),
        ("text_weight", 0),
        ("vector_weight", 1e30),
        ("rrf_k", 1e-9),
        ("filter_type", None),
        ("filter_type", "case_study"),
    ],
)
def test_an_argument_on_its_bound_is_taken(
    knowledge: Connection, argument: str, value: Any, fusion: str
) -> None:
    store(knowledge, {"content": "cat", "embedding": NORTH, "knowledge_type": "case_study"})
    arguments = {"query_embedding": NORTH, "query_text": "cat", "fusion": fusion, argument: value}
    rows = search(knowledge, **arguments)
    assert numbers(rows) == [1]


@pytest.mark.parametrize(
    "arguments",
    [{}, {"query_text": " "}, {"query_embedding": None, "query_text": None}],
)
def test_a_search_for_nothing_is_refused(knowledge: Connection, arguments: dict[str, Any]) -> None:
    message = refused(knowledge, "hybrid_search_knowledge_chunks", **arguments)
    assert message.startswith("query_embedding and query_text")


def test_two_weights_of_0_are_refused(knowledge: Connection) -> None:
    message = refused(
        knowledge,
        "hybrid_search_knowledge_chunks",
        query_text="cat",
        vector_weight=0,
        text_weight=0,
    )
    assert message.startswith("vector_weight and text_weight")


@pytest.mark.parametrize("size", [1, 2, 4, 1024])
def test_an_embedding_of_another_size_is_refused_with_both_sizes(
    knowledge: Connection, size: int
) -> None:
    message = refused(
        knowledge, "hybrid_search_knowledge_chunks", query_embedding=[1] * size, vector_weight=0
    )
    assert message == f"query_embedding has {size} dimensions, the stored embeddings have 3"


# The length of the last two overflows or underflows where pgvector computes: in float4.
@pytest.mark.parametrize("embedding", [[0, 0, 0], [0, 1e-30, 0], [1e30, 0, 0]])
def test_an_embedding_without_direction_is_refused(
    knowledge: Connection, embedding: list[float]
) -> None:
    message = refused(knowledge, "hybrid_search_knowledge_chunks", query_embedding=embedding)
    assert message.startswith("query_embedding")


@pytest.mark.parametrize("embedding", [[0, 0, 0], [0, 1e-30, 0], [1e30, 0, 0]])
def test_an_embedding_without_direction_is_never_stored(
    knowledge: Connection, embedding: list[float]
) -> None:
    with pytest.raises(psycopg.errors.CheckViolation), knowledge.transaction():
        store(knowledge, {"embedding": embedding})


def test_a_refused_text_is_cut_in_the_message(knowledge: Connection) -> None:
    message = refused(
        knowledge, "hybrid_search_knowledge_chunks", query_text="cat", search_mode="x" * 10_000
    )
    assert len(message) < 300


# What a search leaves behind.

HNSW_SETTINGS = ("hnsw.ef_search", "hnsw.iterative_scan", "hnsw.max_scan_tuples")


def hnsw_settings(connection: Connection) -> list[str]:
    return [
        connection.execute("select current_setting(%s)", [name]).fetchall()[0][0]
        for name in HNSW_SETTINGS
    ]


@pytest.mark.parametrize("local", [False, True])
def test_the_callers_settings_come_back(connect: Connect, local: bool) -> None:
    connection = connect()
    # pgvector, which knows these settings, is loaded when it is first used.
    connection.execute("select '[1]'::extensions.vector")
    mine = ["77", "strict_order", "12345"]
    with connection.transaction():
        for name, value in zip(HNSW_SETTINGS, mine, strict=True):
            connection.execute("select set_config(%s, %s, %s)", [name, value, local])
        search(connection, query_embedding=NORTH, query_text="cat")
        assert hnsw_settings(connection) == mine
        refused(connection, "hybrid_search_knowledge_chunks", query_embedding=[1, 2])
        assert hnsw_settings(connection) == mine
    expected = ["40", "off", "20000"] if local else mine
    assert hnsw_settings(connection) == expected
    search(connection, query_embedding=NORTH, query_text="cat")
    assert hnsw_settings(connection) == expected


def test_settings_come_back_after_an_error_in_the_middle(connect: Connect) -> None:
    connection = connect()
    with connection.transaction():
        store(connection, *ANIMALS)
    connection.execute("set hnsw.ef_search = 77")
    with connection.transaction():
        # A stored embedding of another size cannot exist; a text that to_tsvector cannot read can.
        connection.execute("set local statement_timeout = '1ms'")
        with pytest.raises(psycopg.errors.QueryCanceled), connection.transaction():
            connection.execute(
                "select hit.* from generate_series(1, 100000),"
                " public.hybrid_search_knowledge_chunks('[1,0,0]', 'cat') as hit"
            )
        connection.execute("set local statement_timeout = 0")
        assert hnsw_settings(connection)[0] == "77"


def test_the_first_search_of_a_session_needs_no_preparation(connect: Connect) -> None:
    assert search(connect("service_role"), query_text="cat") == []


def test_a_search_runs_in_a_read_only_transaction(knowledge: Connection) -> None:
    store(knowledge, *ANIMALS)
    with knowledge.transaction():
        knowledge.execute("set transaction read only")
        assert numbers(search(knowledge, query_embedding=NORTH, query_text="mat"))[0] == 1
        assert call(knowledge, "match_knowledge_chunks", query_embedding=NORTH)
        assert call(knowledge, "search_knowledge_chunks_fulltext", query_text="cat")


# What a hit tells of itself.


def test_matched_terms_are_the_words_as_typed_in_the_order_of_the_query(
    knowledge: Connection,
) -> None:
    store(
        knowledge,
        {"content": "running cats on the DS-7604", "embedding": NORTH},
        {"content": "a cat", "embedding": NORTH},
    )
    rows = search(knowledge, query_text='The DS-7604, (Cat) absent "RUN" cat')
    assert [(row["id"].int, row["matched_terms"]) for row in rows] == [
        (1, ["DS-7604", "Cat", "RUN"])
    ]
    rows = search(knowledge, query_text="The DS-7604, (Cat) absent run cat unheard-of")
    assert [(row["id"].int, row["matched_terms"]) for row in rows] == [
        (1, ["DS-7604", "Cat", "run"]),
        (2, ["Cat"]),
    ]


@pytest.mark.parametrize(
    ("query", "content", "expected"),
    [
        ("lru_cache", "a cache of rows", ["cache"]),
        ("lru_cache", "the lru_cache of rows", ["lru_cache"]),
        ("lru_cache", "the cache is an LRU", ["lru_cache"]),
        ("lru_cache Cache", "a cache of rows", ["Cache"]),
        ("E-1042 LRU_CACHE lru_cache", "E-2001 at the LRU", ["E", "LRU"]),
        ("red,green", "green", ["green"]),
        (".NET", "dotNET", ["NET"]),
        ("\u5168\u6587\u68c0\u7d22", "\u5168\u6587", ["\u5168\u6587"]),
    ],
)
def test_a_hit_with_a_part_of_a_compound_has_that_part_as_matched_term(
    knowledge: Connection, query: str, content: str, expected: list[str]
) -> None:
    store(knowledge, {"content": content})
    (row,) = search(knowledge, query_text=query)
    assert row["text_rank"] == 1
    assert row["matched_terms"] == expected


def test_a_word_of_one_question_is_no_part_of_another_ones_compound(knowledge: Connection) -> None:
    store(knowledge, {"content": "the lru_cache"})
    (row,) = search(
        knowledge, query_text="lru_cache", formulations=Jsonb([{"query_text": "cache"}])
    )
    assert row["matched_terms"] == ["lru_cache", "cache"]


def test_a_hit_of_the_vector_leg_also_has_matched_terms(knowledge: Connection) -> None:
    store(
        knowledge,
        {"content": "cat and dog", "embedding": NORTH},
        {"content": "dog", "embedding": NORTH},
    )
    rows = search(knowledge, query_embedding=NORTH, query_text="dog cat", search_mode="simple")
    assert [(row["match_type"], row["matched_terms"]) for row in rows] == [
        ("both", ["dog", "cat"]),
        ("vector", ["dog"]),
    ]


def test_a_hit_carries_its_columns_and_its_documents(knowledge: Connection) -> None:
    knowledge.execute(
        "insert into public.knowledge_documents"
        " (id, external_key, title, source_url, knowledge_type, source_origin, metadata)"
        " values (%s, 'key', 'A title', 'https://example.org', 'decision', 'web', '{\"a\": 1}')",
        [chunk(99)],
    )
    store(
        knowledge,
        {
            "document_id": chunk(99),
            "chunk_index": 3,
            "content": "alpha",
            "embedding": NORTH,
            "metadata": {"b": [2]},
        },
        {"content": "alpha beta beta beta", "embedding": EAST},
    )
    mine, orphan = search(knowledge, query_embedding=NORTH, query_text="alpha")
    expected = {
        "id": chunk(1),
        "content": "alpha",
        "knowledge_type": "decision",
        "document_id": chunk(99),
        "chunk_index": 3,
        "source_origin": "web",
        "metadata": {"a": 1, "b": [2]},
        "vector_rank": 1,
        "text_rank": 1,
        "match_type": "both",
        "matched_terms": ["alpha"],
        "title": "A title",
        "source_url": "https://example.org",
    }
    assert {name: mine[name] for name in expected} == expected
    assert list(mine)[:16] == [
        *list(expected)[:7],
        "rrf_score",
        "vector_rank",
        "text_rank",
        "similarity",
        "text_score",
        "match_type",
        "matched_terms",
        "title",
        "source_url",
    ]
    without = ("document_id", "chunk_index", "title", "source_url")
    assert [orphan[name] for name in without] == [None] * 4


def test_a_heading_is_searched_with_the_content(knowledge: Connection) -> None:
    store(knowledge, {"heading": "Deployment", "content": "Push the button."}, {})
    (row,) = search(knowledge, query_text="deployment")
    assert (row["id"].int, row["content"]) == (1, "Push the button.")


# Never short.

KINDS = {"note": 0.9, "task": 0.09, "decision": 0.009, "signal": 0.001}


@pytest.fixture(scope="module")
def crowd(server: Server) -> Iterator[Connection]:
    """16,000 chunks: superseded ones, deleted ones, some without embedding, some types rare."""
    generator = random.Random(7)
    for dsn in copy_of(server, server.template(8)):
        with psycopg.connect(dsn, autocommit=True) as connection:
            # Their text does not matter, so nothing analyses it; the index is built once.
            connection.execute("alter table public.knowledge_chunks disable trigger user")
            ((index,),) = connection.execute(
                "select pg_get_indexdef('public.knowledge_chunks_embedding'::regclass)"
            ).fetchall()
            connection.execute("drop index public.knowledge_chunks_embedding")
            with (
                connection.cursor() as cursor,
                cursor.copy(
                    "copy public.knowledge_chunks (content, content_hash, content_tsv, text_length,"
                    " collection, embedding, knowledge_type, status) from stdin"
                ) as copy,
            ):
                for number in range(16_000):
                    vector = [round(generator.gauss(0, 1), 4) for _ in range(8)]
                    kind = generator.choices(list(KINDS), list(KINDS.values()))[0]
                    status = "superseded" if number % 6 == 0 else "active"
                    embedding = None if number % 10 == 3 else str(vector)
                    copy.write_row(("x", "x", "", 0, "knowledge", embedding, kind, status))
            connection.execute(index)
            connection.execute("alter table public.knowledge_chunks enable trigger user")
            connection.execute(
                "delete from public.knowledge_chunks where hashtext(id::text) % 20 = 0"
            )
            connection.execute("analyze public.knowledge_chunks")
            yield connection


@pytest.mark.parametrize("pool", [10, 50, 200, 1000])
@pytest.mark.parametrize("kind", [None, *KINDS])
def test_the_vector_leg_always_fills_its_pool(
    crowd: Connection, kind: str | None, pool: int
) -> None:
    query = [1, -1, 0.5, 0, 0, 0.25, -0.5, 1]
    with crowd.transaction(force_rollback=True):
        crowd.execute("set local enable_indexscan = off")
        nearest = [
            row[0]
            for row in crowd.execute(
                "select id from public.knowledge_chunks"
                " where status = 'active' and embedding is not null"
                " and knowledge_type = coalesce(%s, knowledge_type)"
                " order by embedding operator(extensions.<=>) %s::extensions.vector limit %s",
                [kind, str(query), pool],
            )
        ]
    rows = search(
        crowd,
        query_embedding=query,
        filter_type=kind,
        match_count=pool,
        match_threshold=-1,
        pool_size=1,
    )
    assert len(rows) == len(nearest)
    found = {row["id"] for row in rows}
    assert len(found) == len(rows)
    assert len(found & set(nearest)) >= 0.95 * len(nearest)
    assert all(one["similarity"] >= other["similarity"] for one, other in pairwise(rows))


@pytest.mark.parametrize("pool", [1, 7, 20])
def test_the_text_leg_always_fills_its_pool(knowledge: Connection, pool: int) -> None:
    kinds = ["note", "task", "task", "task"] * 10
    store(knowledge, *({"content": "a kettle", "knowledge_type": kind} for kind in kinds))
    rows = search(knowledge, query_text="kettle", filter_type="note", match_count=pool)
    assert numbers(rows) == list(range(1, 41, 4))[:pool]


# BM25, and the statistics that it weighs words by.


def scored(connection: Connection, text: str) -> dict[UUID, float]:
    rows = search(connection, query_text=text, match_count=1000)
    return {row["id"]: row["text_score"] for row in rows}


def corpus_of(connection: Connection) -> dict[Any, Counter[str]]:
    return {
        one: lexemes(connection, content)
        for one, content in connection.execute(
            "select id, content from public.knowledge_chunks where status = 'active'"
        ).fetchall()
    }


def fill(connection: Connection, count: int, seed: int) -> None:
    generator = random.Random(seed)
    names = [f"w{number}" for number in range(40)]
    frequencies = [1 / (number + 1) for number in range(40)]
    with (
        connection.cursor() as cursor,
        cursor.copy("copy public.knowledge_chunks (content) from stdin") as copy,
    ):
        for _ in range(count):
            words = generator.choices(names, frequencies, k=generator.randint(2, 30))
            copy.write_row((" ".join(words),))


def test_text_scores_are_bm25_on_a_table_that_was_never_analysed(knowledge: Connection) -> None:
    fill(knowledge, 60, seed=1)
    corpus = corpus_of(knowledge)
    for text in ("w1", "w30 w2", "w5 w5 w17 unheard"):
        expected = bm25(corpus, lexemes(knowledge, text))
        assert scored(knowledge, text) == pytest.approx(expected)


def test_text_scores_follow_the_statistics(connect: Connect) -> None:
    connection = connect()
    fill(connection, 1500, seed=2)
    corpus = corpus_of(connection)
    query = lexemes(connection, "w3 w35 w38")
    best = max(bm25(corpus, query).items(), key=lambda item: item[1])[0]

    # Never analysed: a guess at the size, and a sensible order.
    assert best in list(scored(connection, "w3 w35 w38"))[:3]

    connection.execute("analyze public.knowledge_chunks")
    for refreshed in (True, False):
        ((answer,),) = connection.execute("select public.refresh_knowledge_statistics()").fetchall()
        assert answer is refreshed
        expected = bm25(corpus, query)
        found = scored(connection, "w3 w35 w38")
        assert len(found) == min(len(expected), 1000)
        assert found == pytest.approx({one: expected[one] for one in found}, rel=1e-4)
        ordered = list(found.values())
        assert ordered == sorted(ordered, reverse=True)
        assert ordered[0] == pytest.approx(max(expected.values()), rel=1e-4)

    # After a bulk deletion the statistics are stale, and still no call fails.
    with connection.transaction():
        connection.execute(
            "delete from public.knowledge_chunks where id in"
            " (select id from public.knowledge_chunks order by id limit 1400)"
        )
    left = corpus_of(connection)
    assert set(scored(connection, "w3 w5")) == set(bm25(left, Counter(["w3", "w5"])))

    connection.execute("vacuum analyze public.knowledge_chunks")
    connection.execute("select public.refresh_knowledge_statistics()")
    assert scored(connection, "w3 w5") == pytest.approx(bm25(left, Counter(["w3", "w5"])))


def test_a_write_renews_the_statistics_after_an_analyze(database: Connection) -> None:
    fill(database, 1100, seed=3)
    database.execute("analyze public.knowledge_chunks")
    read = "select document_count, mean_length from public.knowledge_corpus_statistics"
    assert database.execute(read).fetchall() == []
    database.execute("insert into public.knowledge_chunks (content) values ('one more')")
    ((count, mean),) = database.execute(read).fetchall()
    assert count == 1100
    assert 2 <= mean <= 30

    # The mean is in what a chunk stores of its side of BM25.
    database.execute("insert into public.knowledge_chunks (content) values ('kettle kettle lid')")
    ((share,),) = database.execute(
        "select -(bm25 operator(extensions.<#>)"
        " knowledge_internal.lexeme_vector(array['kettl'], array[1.0]))"
        " from public.knowledge_chunks where content like 'kettle%'"
    ).fetchall()
    assert share == pytest.approx(2 * 2.2 / (2 + 1.2 * (0.25 + 0.75 * 3 / mean)), rel=1e-5)

    # A sample without a row says nothing about the mean.
    database.execute("analyze public.knowledge_chunks")
    database.execute("delete from public.knowledge_chunks")
    ((_, after),) = database.execute(read).fetchall()
    assert 2 <= after <= 30


def test_rare_words_outweigh_common_ones(knowledge: Connection) -> None:
    store(
        knowledge,
        {"content": "server server server restart"},
        {"content": "server kubelet restart guide"},
        {"content": "server restart"},
        {"content": "server manual"},
    )
    assert numbers(search(knowledge, query_text="server kubelet"))[0] == 2


def test_a_short_chunk_beats_a_long_one_with_the_same_word(knowledge: Connection) -> None:
    store(
        knowledge,
        {"content": "alpha " + " ".join(f"filler{number}" for number in range(50))},
        {"content": "alpha beta"},
    )
    assert numbers(search(knowledge, query_text="alpha")) == [2, 1]


# Text that Postgres' own parser takes apart in its own way.

HARD_TEXT = {
    "the DS-7604 recorder": ["DS-7604", "ds-7604", "DS 7604", "DS7604"],
    "a P-8A Poseidon": ["P-8A", "P 8A", "P8A"],
    "then parse_config_file is called": ["parse_config_file", "parse config file"],
    "an a/b test": ["a/b", "a/b test"],
    "affected by CVE-2024-3094": ["CVE-2024-3094", "CVE 2024 3094", "cve-2024-3094"],
    "since release 1.2.3": ["1.2.3", "release 1.2.3", "1 2 3"],
    "look into src/app/main.py first": ["src/app/main.py", "src app main py", "main.py"],
    "write to joe@example.com": ["joe@example.com", "joe example com", "example.com"],
    "it returns List<String> there": ["List<String>", "List String", "List< String >"],
    "node.js and the #general channel": ["node.js", "nodejs", "#general", "general"],
    "C:\\Windows\\System32 is full": ["C:\\Windows\\System32", "windows system32"],
    "it's O'Reilly's": ["O'Reilly", "O\u2019Reilly"],
}


@pytest.mark.parametrize(
    ("content", "query"), [(content, one) for content, all_ in HARD_TEXT.items() for one in all_]
)
def test_hard_text_is_found_as_typed_and_typed_apart(
    knowledge: Connection, content: str, query: str
) -> None:
    others = [one for one in HARD_TEXT if one != content]
    store(knowledge, {"content": content}, *({"content": one} for one in others))
    assert numbers(search(knowledge, query_text=query))[:1] == [1]
    rows = search(knowledge, query_text=query, search_mode="simple")
    assert numbers(rows) == [1]
    assert rows[0]["matched_terms"]


@pytest.mark.parametrize(
    ("query", "neighbour"),
    [
        ("DS-7604", "DS-7605"),
        ("CVE-2024-3094", "CVE-2024-3095"),
        ("src/app/main.py", "src/app/test.py"),
        ("parse_config_file", "parse_file"),
        ("1.2.3", "1.2.4"),
        ("joe@example.com", "ann@example.com"),
    ],
)
def test_a_neighbour_of_a_part_number_is_not_the_part(
    knowledge: Connection, query: str, neighbour: str
) -> None:
    store(knowledge, {"content": f"about {neighbour} here"}, {"content": f"about {query} here"})
    for text, mode in ((query, "simple"), (query, "phrase"), (f'"{query}"', "websearch")):
        assert numbers(search(knowledge, query_text=text, search_mode=mode)) == [2]
    # As optional words its parts are found in the neighbour too, after the part itself.
    assert numbers(search(knowledge, query_text=query))[0] == 2


def test_typographic_quotation_marks_make_a_phrase(knowledge: Connection) -> None:
    store(knowledge, {"content": "beta alpha"}, {"content": "alpha beta"})
    assert numbers(search(knowledge, query_text="\u201calpha beta\u201d")) == [2]


def test_no_phrase_reaches_from_one_part_of_a_chunk_into_the_next(knowledge: Connection) -> None:
    store(knowledge, {"heading": "alpha beta", "content": "gamma delta of DS-7604"})
    for across in ("beta gamma", "7604 alpha", "7604 DS7604"):
        assert search(knowledge, query_text=across, search_mode="phrase") == []
    for within in ("alpha beta", "gamma delta", "DS 7604"):
        assert numbers(search(knowledge, query_text=within, search_mode="phrase")) == [1]


# Languages.


def test_a_query_is_read_in_every_language_of_the_corpus(knowledge: Connection) -> None:
    store(
        knowledge,
        {"content": "Die Häuser der Stadt sind alt", "language": "german"},
        {"content": "the houses of the town are old", "language": "english"},
        {"content": "running Hol houses", "language": "klingon"},
        {"content": "Die Kirchen", "language": "de-AT"},
    )
    found = {
        text: set(numbers(search(knowledge, query_text=text)))
        for text in ("Haus", "house", "houses", "running", "run", "Kirche", "Stadt Town")
    }
    assert found == {
        "Haus": {1},
        "house": {2},
        "houses": {2, 3},
        "running": {3},
        "run": set(),
        "Kirche": {4},
        "Stadt Town": {1, 2},
    }


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("the cat", {1}),
        ("die casting", {2}),
        ("die Katze", {3}),
        ("the klingon", {4}),
    ],
)
def test_all_words_are_required_as_each_language_reads_them(
    knowledge: Connection, query: str, found: set[int]
) -> None:
    store(
        knowledge,
        {"content": "The cat sat, and was cast", "language": "english"},
        {"content": "die casting of metal", "language": "english"},
        {"content": "Die Katze schläft", "language": "german"},
        {"content": "the klingon", "language": "klingon"},
        {"content": "casting", "language": "english"},
    )
    assert set(numbers(search(knowledge, query_text=query, search_mode="simple"))) == found


# Very long and hostile text.


def test_a_chunk_of_more_than_a_megabyte_is_found_by_its_beginning(knowledge: Connection) -> None:
    words = " ".join(f"{number:x}filler{number}" for number in range(100_000))
    store(knowledge, {"content": f"cornerstone {words}", "embedding": NORTH})
    (row,) = search(knowledge, query_text="cornerstone")
    assert len(row["content"]) > 1_000_000


HOSTILE = {
    "quotes": "' '' \" \\ \\' ''\\",
    "tsquery": "cat & dog | !(mouse <-> x) :* <2> ((",
    "dollars": "$$ $a$ $1 $tag$ cat $tag$",
    "injection": "'); drop table public.knowledge_chunks; --",
    "comments": "/* -- */ cat --",
    "marks": "\u202ecat\u202c \u200f\u200b\ufeff",
    "letters": "\U0001d518\U0001d52b\ufdfd\u1e9e\u01c6\u0130 cat",
    "emoji": "🐈 👩‍👩‍👧 cat",
    "controls": "cat\x01\x1b\x7f\r\n\v",
    "percent": "%s %(query_text)s {0} cat%",
    "one word": "x" * 1_000_000,
    "words": " ".join(f"w{number}" for number in range(10_000)),
    "alternatives": " or ".join(f"w{number}" for number in range(10_000)),
    "exclusions": "cat " + " ".join(f"-w{number}" for number in range(5_000)),
    "phrases": " ".join(f'"a{number} b"' for number in range(3_000)),
    "open quotes": '"' * 20_001,
    "hyphens": "a-" * 20_000,
    "brackets": "(" * 20_000 + "cat" + ")" * 20_000,
    "megabytes": "cat dog " * 130_000,
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_is_answered_or_refused(knowledge: Connection, name: str, mode: str) -> None:
    store(knowledge, *ANIMALS)
    with contextlib.suppress(psycopg.errors.InvalidParameterValue):
        search(knowledge, query_text=HOSTILE[name], search_mode=mode)
    ((left,),) = knowledge.execute("select count(*) from public.knowledge_chunks").fetchall()
    assert left == len(ANIMALS)


@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    text=st.text(
        st.characters(exclude_categories=["Cs"], exclude_characters="\0")
        | st.sampled_from(list("\"'\\-&|!()<>:*$ \n")),
        max_size=40,
    ),
    mode=st.sampled_from(MODES),
)
def test_any_text_is_answered(knowledge: Connection, text: str, mode: str) -> None:
    with knowledge.transaction(force_rollback=True):
        store(knowledge, {"content": text, "embedding": NORTH})
        rows = search(knowledge, query_embedding=NORTH, query_text=text, search_mode=mode)
        assert numbers(rows) == [1]


# One leg at a time.


def test_match_knowledge_chunks_is_the_vector_leg(knowledge: Connection) -> None:
    store(knowledge, *ANIMALS)
    rows = call(knowledge, "match_knowledge_chunks", query_embedding=NORTH, match_threshold=0)
    assert numbers(rows) == [1, 2, 3, 4]
    assert list(rows[0]) == [
        "id",
        "content",
        "knowledge_type",
        "document_id",
        "chunk_index",
        "source_origin",
        "metadata",
        "similarity",
    ]
    assert rows[1]["similarity"] == pytest.approx(0.8, abs=1e-6)
    # The default threshold is 0.6, the default count 5.
    assert numbers(call(knowledge, "match_knowledge_chunks", query_embedding=NORTH)) == [1, 2]
    knowledge.execute(
        "insert into public.knowledge_chunks (content, embedding)"
        " select 'more', '[1,0,0]' from generate_series(1, 9)"
    )
    assert len(call(knowledge, "match_knowledge_chunks", query_embedding=NORTH)) == 5


def test_search_knowledge_chunks_fulltext_is_the_text_leg(knowledge: Connection) -> None:
    store(knowledge, *ANIMALS)
    whole = search(knowledge, query_text="dog cat")
    rows = call(knowledge, "search_knowledge_chunks_fulltext", query_text="dog cat")
    assert [(row["id"], row["rank"]) for row in rows] == [
        (row["id"], row["text_score"]) for row in whole
    ]
    assert list(rows[0])[-1] == "rank"
    assert len(rows[0]) == 8
    assert numbers(
        call(
            knowledge,
            "search_knowledge_chunks_fulltext",
            query_text="dog cat",
            search_mode="simple",
            filter_type="document",
            match_count=1,
        )
    ) == [2]


@pytest.mark.parametrize(
    ("function", "arguments", "named"),
    [
        ("match_knowledge_chunks", {"query_embedding": None}, "query_embedding"),
        ("match_knowledge_chunks", {"query_embedding": [1, 2]}, "query_embedding"),
        ("match_knowledge_chunks", {"match_count": 0}, "match_count"),
        ("match_knowledge_chunks", {"match_count": None}, "match_count"),
        ("match_knowledge_chunks", {"match_threshold": 2}, "match_threshold"),
        ("match_knowledge_chunks", {"filter_type": "x"}, "filter_type"),
        ("search_knowledge_chunks_fulltext", {"query_text": None}, "query_text"),
        ("search_knowledge_chunks_fulltext", {"query_text": " \n"}, "query_text"),
        ("search_knowledge_chunks_fulltext", {"search_mode": "x"}, "search_mode"),
        ("search_knowledge_chunks_fulltext", {"match_count": 1001}, "match_count"),
        ("search_knowledge_chunks_fulltext", {"filter_type": "x"}, "filter_type"),
    ],
)
def test_a_single_leg_refuses_by_name(
    knowledge: Connection, function: str, arguments: dict[str, Any], named: str
) -> None:
    needed: dict[str, Any] = (
        {"query_embedding": NORTH} if function.startswith("match") else {"query_text": "cat"}
    )
    assert refused(knowledge, function, **needed | arguments).startswith(named)
