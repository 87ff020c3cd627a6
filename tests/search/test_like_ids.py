"""like_ids: hits like known chunks or documents, with a question and without one."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest
from psycopg import errors
from searching import (
    EAST,
    FUSIONS,
    NORTH,
    UP,
    Row,
    answer,
    chunk,
    numbers,
    search,
    store,
    store_document,
)
from test_exact_total import COUNT

from conftest import Connection

pytestmark = pytest.mark.module("like")

CATS, STONES = UUID(int=1001), UUID(int=1002)
CORPUS: tuple[dict[str, Any], ...] = (
    {"content": "a cat sleeps on velvet", "embedding": [0.9, 0.1, 0], "document_id": CATS},
    {"content": "whiskers of a kitten", "embedding": [0.9, 0, 0.1], "document_id": CATS},
    {"content": "purring on velvet", "embedding": NORTH},
    {"content": "granite and marble", "embedding": EAST, "document_id": STONES},
    {"content": "marble on velvet", "embedding": [0.1, 0.9, 0]},
    {"content": "a cat of marble", "embedding": UP},
)


@pytest.fixture
def corpus(knowledge: Connection) -> Connection:
    for document in (CATS, STONES):
        store_document(knowledge, document, visibility="public")
    store(knowledge, *({"visibility": "public"} | one for one in CORPUS))
    return knowledge


def like(database: Connection, *ids: UUID, **further: Any) -> list[Row]:
    return search(database, like_ids=list(ids), **further)


def norm(vector: Sequence[float]) -> list[float]:
    length = sum(x * x for x in vector) ** 0.5
    return [x / length for x in vector]


def mean(*vectors: Sequence[float]) -> list[float]:
    return norm([sum(column) for column in zip(*map(norm, vectors), strict=True)])


def similarities(rows: Sequence[Row]) -> dict[int, Any]:
    return {row["id"].int: pytest.approx(row["similarity"], abs=1e-6) for row in rows}


@pytest.mark.parametrize("question", [None, UP, [0, 3, 4]])
def test_the_embedding_is_the_question_and_the_mean_of_the_known_rows(
    corpus: Connection, question: list[float] | None
) -> None:
    cats = mean(CORPUS[0]["embedding"], CORPUS[1]["embedding"])
    # Each id counts once, whatever the number of its chunks.
    known = mean(cats, CORPUS[3]["embedding"])
    moved = known if question is None else mean(question, known)
    expected = similarities(search(corpus, query_embedding=moved, match_threshold=-1))
    rows = like(corpus, CATS, chunk(4), query_embedding=question, match_threshold=-1, text_weight=0)
    assert {row["id"].int: row["similarity"] for row in rows} == {
        number: expected[number] for number in (3, 5, 6)
    }


@pytest.mark.parametrize("known", [CATS, chunk(1), chunk(2)])
def test_the_rows_and_the_documents_that_they_are_in_are_left_out(
    corpus: Connection, known: UUID
) -> None:
    arguments = {"query_embedding": str(NORTH), "query_text": "velvet cat", "match_threshold": -1}
    rows = like(corpus, known, **arguments)
    assert {*numbers(rows)} == {3, 4, 5, 6}
    assert answer(corpus, COUNT, like_ids=[known], **arguments) == 4
    assert numbers(like(corpus, known, pool_size=1, match_count=1, **arguments)) == [3]


@pytest.mark.parametrize("fusion", FUSIONS)
def test_words_of_the_known_rows_help_and_the_question_still_has_to_match(
    corpus: Connection, fusion: str
) -> None:
    # Both have the word of the question; one has a word of the known chunk, too.
    assert numbers(search(corpus, query_text="marble")) == [4, 5, 6]
    rows = like(corpus, chunk(3), query_text="marble", vector_weight=0, fusion=fusion)
    assert numbers(rows)[0] == 5
    assert {*numbers(rows)} == {4, 5, 6}
    assert {tuple(row["matched_terms"]) for row in rows} == {("marble",)}
    assert all(0 <= row["confidence"] <= 1 for row in rows)


def test_what_a_question_requires_and_excludes_holds(corpus: Connection) -> None:
    for query, kept in (('"cat of marble"', {6}), ("marble -velvet", {4, 6})):
        rows = like(corpus, chunk(3), query_text=query, vector_weight=0)
        assert {*numbers(rows)} == kept


def test_without_a_question_and_an_embedder_related_rows_are_found(corpus: Connection) -> None:
    rows = like(corpus, chunk(1))
    assert numbers(rows)[0] == 3
    assert rows[0]["match_type"] == "both"
    assert rows[0]["answer_confidence"] is None
    corpus.execute("update public.knowledge_chunks set embedding = null")
    rows = like(corpus, chunk(1))
    assert {*numbers(rows)} == {3, 5, 6}
    assert {row["match_type"] for row in rows} == {"text"}


def test_like_ids_belong_to_the_first_question(corpus: Connection) -> None:
    asked = {"query_embedding": UP, "formulations": [{"query_embedding": str(NORTH)}]}
    # Nothing lies at UP + EAST, and the formulation stays at NORTH.
    rows = like(corpus, chunk(4), **asked, match_threshold=0.99, text_weight=0)
    assert numbers(rows) == [3, 1, 2]


def test_an_ignored_embedding_leaves_that_of_the_known_rows(corpus: Connection) -> None:
    asked = {"query_text": "velvet", "query_embedding": [1, 0], "on_bad_embedding": "from_text"}
    rows = like(corpus, chunk(1), **asked)
    assert rows[0]["id"] == chunk(3)
    assert rows[0]["similarity"] > 0.9
    assert rows[0]["notes"]["embedding"].startswith("ignored: query_embedding has 2 dimensions")


@pytest.mark.module("insight")
@pytest.mark.parametrize("question", [{}, {"query_text": "cat"}, {"query_embedding": UP}], ids=str)
def test_confidences_are_those_of_the_question_as_asked(
    corpus: Connection, question: dict[str, Any]
) -> None:
    def said(function: str, **further: Any) -> Any:
        return answer(corpus, function, **question, match_count=50, **further)

    explain, given = "explain_hybrid_search", [str(chunk(3))]
    everything = like(corpus, chunk(3), **question, match_count=50)
    near = said(explain, like_ids=given)
    if question:
        plain = said(explain)
        ids = [hit["id"] for hit in plain["hits"]]
        alone = dict(zip(ids, plain["hit_confidences"], strict=True))
        for hit, confidence in zip(near["hits"], near["hit_confidences"], strict=True):
            assert confidence == pytest.approx(alone.get(hit["id"], confidence))
    else:  # nothing is compared
        assert near["hit_confidences"] == [None] * len(everything)
    kept = sum(one is None or one >= 0.9 for one in near["hit_confidences"])
    if not question:
        for function in (COUNT, explain):
            with pytest.raises(errors.InvalidParameterValue, match=r"^min_confidence must be null"):
                said(function, like_ids=given, min_confidence=0.9)
        return
    assert said(COUNT, like_ids=given, min_confidence=0.9) == kept
    assert len(like(corpus, chunk(3), **question, match_count=50, min_confidence=0.9)) == kept
    empty = said(explain, like_ids=given, min_confidence=1)["empty"]
    assert empty["best_confidence"] == max(near["hit_confidences"])


@pytest.mark.module("insight")
def test_explain_shows_the_words_of_the_known_rows(corpus: Connection) -> None:
    asked = {"like_ids": [str(chunk(3))], "query_text": "marble"}
    lexemes = answer(corpus, "explain_hybrid_search", **asked)["text"]["lexemes"]
    words = {one["lexeme"]: one["is_from_like_ids"] for one in lexemes}
    # No other chunk has "purring".
    assert words == {"marbl": False, "velvet": True}


@pytest.mark.module("insight")
def test_why_not_says_that_a_row_is_given(corpus: Connection) -> None:
    def missing(number: int, **further: Any) -> Any:
        asked = {"like_ids": [str(CATS)], "chunk_id": chunk(number), **further}
        return answer(corpus, "explain_missing_knowledge_chunk", **asked)

    (cause,) = missing(2)["causes"]
    assert (cause["cause"], cause["argument"]) == ("like", "like_ids")
    rows = like(corpus, CATS, query_embedding=UP, match_threshold=-1)
    place = numbers(rows).index(4)
    found = missing(4, query_embedding=str(UP), match_threshold=-1)
    assert found["is_found"]
    assert found["place"] == place + 1
    assert found["vector"]["similarity"] == pytest.approx(rows[place]["similarity"])
    assert found["vector"]["rank"] == rows[place]["vector_rank"]


@pytest.mark.module("insight")
def test_an_empty_answer_says_that_only_known_rows_are_left(corpus: Connection) -> None:
    others = "delete from public.knowledge_chunks where document_id is distinct from %s"
    corpus.execute(others, [CATS])
    assert like(corpus, CATS) == []
    why = answer(corpus, "explain_empty_knowledge_search", like_ids=[str(CATS)])
    assert why["reason"] == "only_like_ids"
