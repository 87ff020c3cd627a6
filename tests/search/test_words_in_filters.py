"""Words that bind both legs: the conditions has_all_words, has_any_word and has_no_word on text."""

from typing import Any

import pytest
from filtering import check_filters, one
from psycopg.types.json import Jsonb
from searching import NORTH, answer, chunk, numbers, search, store

from conftest import Connection

CONTENTS = (
    "alpha draft of the invoice for DS-7604",
    "alpha invoices after a power cut",
    "alpha cut of power in the drafts, getUserName",
    "alpha, die Rechnung vom Stromausfall",
    "alpha",
)


@pytest.fixture
def corpus(knowledge: Connection) -> Connection:
    store(
        knowledge,
        *({"content": content, "embedding": NORTH} for content in CONTENTS[:3]),
        {"content": CONTENTS[3], "embedding": NORTH, "language": "german"},
        {"content": CONTENTS[4], "embedding": NORTH, "heading": "Invoice"},
    )
    return knowledge


def words(op: str, *value: str) -> dict[str, Any]:
    return one("text", f"has_{op}", list(value))[0]


def test_both_legs_keep_the_rows_that_have_the_words(corpus: Connection) -> None:
    check_filters(
        corpus,
        [
            (words("all_words", "invoice"), {1, 2, 5}),
            (words("all_words", "invoice", "power"), {2}),
            (words("all_words", "power cut"), {2}),
            (words("any_word", "power cut", "DS-7604"), {1, 2}),
            (words("no_word", "draft"), {2, 4, 5}),
            (words("no_word", "draft", "invoice"), {4}),
            (words("no_word", "power cut"), {1, 3, 4, 5}),
            (words("no_word", "user"), {1, 2, 3, 4, 5}),
            (words("all_words", "Rechnungen"), {4}),
            # A stop word of every language requires and excludes nothing.
            (words("all_words", "invoice", "of the"), {1, 2, 5}),
            (words("no_word", "of the"), {1, 2, 3, 4, 5}),
            (words("all_words", "nowhere"), set()),
            (words("all_words", "' & ! | <-> (invoice:*", "alpha"), {1, 2, 5}),
            ({"not": words("all_words", "invoice", "power")}, {1, 3, 4, 5}),
            ({"any": [words("all_words", "draft"), words("all_words", "Rechnung")]}, {1, 3, 4}),
            ({"text": "alpha"}, set()),
            (one("text", "contains_text", "S-76"), {1}),
            (one("text", "contains_text", "etUserN"), {3}),
            (one("text", "contains_text", "a%a"), set()),
            ({"not": one("text", "contains_text", "draft")[0]}, {2, 4, 5}),
        ],
    )


def test_the_query_box_excludes_in_its_own_leg_and_a_filter_in_both(corpus: Connection) -> None:
    def found(**arguments: Any) -> set[int]:
        asked = search(corpus, query_embedding=NORTH, match_count=10, **arguments)
        return set(numbers(asked))

    assert found(query_text="alpha -draft") == {1, 2, 3, 4, 5}
    no_draft = Jsonb([words("no_word", "draft")])
    assert found(query_text="alpha", filters=no_draft) == {2, 4, 5}
    assert found(filters=no_draft) == {2, 4, 5}
    assert found(query_text="alpha", required_filters=no_draft) == {2, 4, 5}


@pytest.mark.module("facets")
def test_counts_and_facets_have_the_words_too(corpus: Connection) -> None:
    asked = {"query_text": "alpha", "filters": [words("no_word", "draft")]}
    counted = answer(corpus, "count_matching_knowledge_chunks", **asked)
    facets = corpus.execute(
        "select value, count from public.facet_knowledge_chunks(%s, '{language}')", [Jsonb(asked)]
    ).fetchall()
    assert counted == 3
    assert facets == [("english", 2), ("german", 1)]


@pytest.mark.module("insight")
def test_the_reasons_name_the_words(corpus: Connection) -> None:
    asked = {"query_text": "alpha", "filters": [words("all_words", "nowhere")]}
    told = answer(corpus, "explain_empty_knowledge_search", **asked)
    assert (told["reason"], told["argument"], told["field"]) == ("filter", "filters[0]", "text")
    assert "nowhere" in told["message"]
    asked = {"query_text": "alpha", "filters": [words("no_word", "draft")]}
    told = answer(corpus, "explain_missing_knowledge_chunk", **asked, chunk_id=chunk(1))
    assert [cause["argument"] for cause in told["causes"]] == ["filters[0]"]


@pytest.mark.parametrize(
    ("op", "is_indexed"), [("all_words", True), ("any_word", True), ("no_word", False)]
)
def test_an_index_finds_the_rows_that_have_the_words(
    knowledge: Connection, op: str, is_indexed: bool
) -> None:
    def compiled() -> list[tuple[Any, ...]]:
        return knowledge.execute(
            "select (knowledge_internal.compile_filter(%s, null, null, null, false)).is_indexed",
            [Jsonb([words(op, "alpha")])],
        ).fetchall()

    assert compiled() == [(False,)]  # of an empty corpus, no language is known
    store(knowledge, "alpha")
    assert compiled() == [(is_indexed,)]
