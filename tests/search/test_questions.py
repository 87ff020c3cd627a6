"""Questions as people write them: prose with quotation marks, identifiers in any spelling."""

import math
from typing import Any

import pytest
from searching import NORTH, answer, call, numbers, search, store

from conftest import Connection

PROSE = "Articles on text formatting systems, including {} systems"
SAYINGS: list[dict[str, Any]] = [
    {"content": "see what you get when you get what you formatting"},
    {"content": "formatting of text where what you see is what you get"},
    {"content": "text formatting systems, articles on systems"},
    {"content": "a lazy afternoon"},
]


def test_operators_bind_in_a_short_query_and_not_in_prose(knowledge: Connection) -> None:
    store(knowledge, *SAYINGS)
    for text, found in (
        (PROSE.format('"what you see is what you get"'), {1, 2, 3}),
        ('is it "what you see is what you get"?', {1, 2}),
        ("which text formatting systems have a lazy afternoon -articles", {1, 2, 3, 4}),
        ("text formatting systems that were written for a lazy or afternoon", {1, 2, 3, 4}),
        # A short query.
        ('formatting "text where what you see"', {2}),
        ("text formatting -articles", {1, 2}),
        ('"text formatting" or "lazy afternoon"', {3, 4}),
    ):
        assert set(numbers(search(knowledge, query_text=text))) == found, text


def test_a_phrase_in_prose_adds_to_the_score(knowledge: Connection) -> None:
    store(knowledge, "matches key leaked other", "leaked key other matches")
    plain = "how does one find out that there is a leaked key"
    quoted = 'how does one find out that there is a "leaked key"'
    first, second = search(knowledge, query_text=plain)
    assert first["text_score"] == pytest.approx(second["text_score"])
    first, second = search(knowledge, query_text=quoted)
    assert (first["id"].int, second["id"].int) == (2, 1)
    assert second["text_score"] == pytest.approx(
        search(knowledge, query_text=plain)[0]["text_score"]
    )


RELAXED = '"zebra crossing" afternoon -articles'


def test_required_parts_that_no_row_has_are_relaxed_and_named(knowledge: Connection) -> None:
    store(knowledge, *SAYINGS, "a zebra has an afternoon in articles")
    rows = search(knowledge, query_text=RELAXED)
    assert numbers(rows) == [4]  # an excluded word stays excluded
    assert rows[0]["notes"] == {"relaxed": ['"zebra crossing"'], "excluded": ["articles"]}
    alone = search(knowledge, query_text="afternoon -articles")
    assert alone[0]["notes"] == {"excluded": ["articles"]}
    # These modes never relax.
    for mode in ("simple", "phrase"):
        assert search(knowledge, query_text="crossing zebra afternoon", search_mode=mode) == []


def test_required_parts_are_relaxed_within_the_filters_of_the_call(knowledge: Connection) -> None:
    store(
        knowledge,
        {"content": "a lazy afternoon", "knowledge_type": "note"},
        {"content": "an afternoon", "knowledge_type": "task"},
    )
    for kind, found, notes in (
        ("note", [1], None),
        ("task", [2], {"relaxed": ['"lazy afternoon"']}),
    ):
        rows = search(knowledge, query_text='"lazy afternoon"', filter_type=kind)
        assert (numbers(rows), rows[0]["notes"]) == (found, notes)


def test_what_one_collection_has_stays_required_in_the_others(knowledge: Connection) -> None:
    store(
        knowledge,
        {"content": "a lazy afternoon", "collection": "one"},
        {"content": "an afternoon", "collection": "other"},
    )
    rows = search(knowledge, query_text='"lazy afternoon"', collections=["one", "other"])
    assert numbers(rows) == [1]
    rows = search(knowledge, query_text='"an evening" afternoon', collections=["one", "other"])
    assert set(numbers(rows)) == {1, 2}


@pytest.mark.module("insight")
def test_the_explanation_says_what_was_relaxed(knowledge: Connection) -> None:
    store(knowledge, *SAYINGS)
    reported = answer(knowledge, "explain_hybrid_search", **{"query_text": RELAXED})
    text = reported["lists"][0]["text"]
    assert text["strategy"] == "relaxed: no row has what is required"
    assert text["relaxed"] == ['"zebra crossing"']


def idf(count: int, having: int) -> float:
    return math.log(1 + (count - having + 0.5) / (having + 0.5))


def test_an_abbreviation_does_not_outweigh_the_question(knowledge: Connection) -> None:
    store(
        knowledge,
        "e.g. this",
        "replace a pump",
        *({"content": f"pump {number}"} for number in range(3)),
    )
    assert numbers(search(knowledge, query_text="replacing a pump, e.g. a big one"))[0] == 2


def test_a_word_read_in_several_languages_counts_once(knowledge: Connection) -> None:
    store(
        knowledge,
        {"content": "houses and housing", "language": "english"},
        {"content": "houses hous", "language": "klingon"},
        {"content": "other things here", "language": "klingon"},
    )
    knowledge.execute("insert into public.knowledge_settings (bm25_b) values (0.75)")
    rows = search(knowledge, query_text="houses")
    scores = {row["id"].int: row["text_score"] for row in rows}
    # The second chunk has both readings, houses and hous; the better one counts.
    ((mean,),) = knowledge.execute(
        "select avg(text_length) from public.knowledge_chunks"
    ).fetchall()
    factor = 1.2 * (0.25 + 0.75 * 2 / float(mean))
    weight = idf(3, 3)
    assert scores[2] == pytest.approx(weight * 2.2 / (1 + factor))
    assert scores[1] == pytest.approx(weight * 2 * 2.2 / (2 + factor))


IDENTIFIERS = {
    "the AB-12345/X relay": ["AB12345", "ab-12345", "AB 12345", "12345", "AB12345X", "ab12345-x"],
    "call functools.lru_cache here": ["lru_cache", "functools.lru_cache", "lruCache", "lru-cache"],
    "a ThreadPoolExecutor runs": ["thread_pool_executor", "ThreadPoolExecutor", "thread pool"],
    "self._read_next_line() reads": ["_read_next_line", "read_next_line", "readNextLine"],
    "since Python 3.11.2 only": ["3.11.2", "3.11", "python-3.11.2"],
    "look at /etc/nginx/conf.d/site.conf": [
        "/etc/nginx/conf.d/site.conf",
        "nginx/conf.d",
        "site.conf",
    ],
    "std::vector grows": ["std::vector", "vector"],
    "order BC547B now": ["BC547B", "bc547b", "BC-547B", "547"],
    "the parseHTTPResponse method": ["parse_http_response", "parseHTTPResponse", "HTTP"],
    "run apt-get twice": ["apt-get", "apt_get", "aptget"],
}


def test_an_identifier_is_found_by_the_whole_a_part_and_another_spelling(
    knowledge: Connection,
) -> None:
    store(knowledge, *IDENTIFIERS)
    for number, queries in enumerate(IDENTIFIERS.values(), 1):
        for query in queries:
            rows = search(knowledge, query_text=query)
            assert numbers(rows)[0] == number, query
            assert rows[0]["matched_terms"]


def test_a_number_with_a_point_is_no_other_number(knowledge: Connection) -> None:
    store(knowledge, "version 3.11 of 311", "other")
    for query in ("31.12", "3112", "3.1.1"):
        assert search(knowledge, query_text=query, search_mode="simple") == []


@pytest.mark.parametrize(
    ("fusion", "has_embeddings"), [("auto", True), ("auto", False), ("rrf", False)]
)
def test_a_chunk_with_the_identifier_asked_for_is_first(
    knowledge: Connection, fusion: str, has_embeddings: bool
) -> None:
    question = "clear the cache of functools.lru_cache"
    near, far = (NORTH, [-1, 0.1, 0]) if has_embeddings else (None, None)
    others = "clear the cache between tests of threads clear cache test thread lru functools"
    store(
        knowledge,
        *({"content": f"{others} {number}", "embedding": near} for number in range(12)),
        {"content": f"functools.lru_cache {' filler' * 80}", "embedding": far},
    )
    arguments: dict[str, Any] = {"query_text": question, "match_count": 5}
    if has_embeddings:
        arguments |= {"query_embedding": NORTH, "match_threshold": -1}
    rows = call(knowledge, "hybrid_search_knowledge_chunks", fusion=fusion, **arguments)
    assert numbers(rows)[0] == 13
    scores = [row["rrf_score"] for row in rows]
    assert scores == sorted(scores, reverse=True)
    assert all(0 <= row["confidence"] <= 1 for row in rows)


@pytest.mark.module("snippets")
def test_a_snippet_marks_an_identifier_in_another_spelling(knowledge: Connection) -> None:
    store(knowledge, "order AB-12345/X today")
    (row,) = search(knowledge, query_text="AB12345", snippet=True)
    assert row["snippet"] == "order <mark>AB</mark>-<mark>12345</mark>/X today"
