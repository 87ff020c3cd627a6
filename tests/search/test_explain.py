"""explain_hybrid_search: its statements agree with the search."""

from typing import Any

import pytest
from psycopg.types.json import Jsonb

from conftest import Connection

ROWS = [
    ("alpha beta", "[1,0,0]"),
    ("alpha gamma", "[0,1,0]"),
    ("delta", "[0,0,1]"),
]


@pytest.fixture
def corpus(database: Connection) -> Connection:
    with database.cursor() as cursor:
        cursor.executemany(
            "insert into public.knowledge_chunks (content, embedding)"
            " values (%s, %s::extensions.vector)",
            ROWS,
        )
    return database


def explain(connection: Connection, **arguments: Any) -> dict[str, Any]:
    row = connection.execute(
        "select public.explain_hybrid_search(%s)", [Jsonb(arguments)]
    ).fetchone()
    assert row is not None
    explained: dict[str, Any] = row[0]
    return explained


def test_it_answers_as_the_search_does(corpus: Connection) -> None:
    explained = explain(corpus, query_embedding="[1,0.1,0]", query_text="alpha", fusion="rrf")
    rows = corpus.execute(
        "select id::text, rrf_score from public.hybrid_search_knowledge_chunks("
        "query_embedding => '[1,0.1,0]', query_text => 'alpha', fusion => 'rrf')"
    ).fetchall()
    assert [(hit["id"], hit["rrf_score"]) for hit in explained["hits"]] == rows
    assert "content" not in explained["hits"][0]


def test_it_counts_each_leg_and_gives_the_reason_for_missing_rows(corpus: Connection) -> None:
    explained = explain(corpus, query_embedding="[1,0,0]", query_text="alpha", match_threshold=0.5)
    assert explained["vector"]["rows"] == 1
    assert explained["text"]["rows"] == 2
    assert "match_threshold" in explained["vector"]["ran_dry"]
    assert "words of the query" in explained["text"]["ran_dry"]
    assert set(explained["milliseconds"]) == {"hybrid", "vector", "text"}
    assert all(value > 0 for value in explained["milliseconds"].values())


def test_a_leg_that_is_not_run_says_so(corpus: Connection) -> None:
    explained = explain(corpus, query_text="alpha")
    assert explained["vector"]["strategy"] == "not run"
    assert explained["milliseconds"]["vector"] is None
    assert explain(corpus, query_embedding="[1,0,0]")["text"]["strategy"] == "not run"


def test_lexemes_come_with_their_document_frequencies(corpus: Connection) -> None:
    lexemes = explain(corpus, query_text="alpha delta omega")["text"]["lexemes"]
    assert {one["lexeme"]: one["document_frequency"] for one in lexemes} == {
        "alpha": 2,
        "delta": 1,
        "omega": 0,
    }
    weights = {one["lexeme"]: one["weight"] for one in lexemes}
    assert weights["omega"] > weights["delta"] > weights["alpha"] > 0


def test_the_weights_are_those_used(corpus: Connection) -> None:
    asked = {"query_embedding": "[1,0,0]", "query_text": "alpha"}
    given = explain(corpus, **asked, vector_weight=2.0, text_weight=0.5, fusion="rrf")["fusion"]
    assert given == {"policy": "rrf", "is_stored": False, "weights": {"vector": 2, "text": 0.5}}
    weights = [
        explain(corpus, **asked, text_weight=factor, fusion="auto")["fusion"]["weights"]["text"]
        for factor in (1.0, 2.0)
    ]
    assert weights[1] == pytest.approx(2 * weights[0])
    assert weights[0] > 0


def test_tracing_ends_with_the_call(corpus: Connection) -> None:
    with corpus.transaction():
        explain(corpus, query_text="alpha")
        setting = corpus.execute(
            "select current_setting('knowledge_internal.tracing', true)"
        ).fetchone()
    assert setting == ("off",)


def test_it_refuses_what_the_search_refuses(corpus: Connection) -> None:
    with pytest.raises(Exception, match="match_count must be between 1 and 1000"):
        explain(corpus, query_text="alpha", match_count=0)
