"""`"two words"~5`: words near each other, in any order."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from searching import call, numbers, search, store

from conftest import Connection
from support.properties import tried

FAR = "one two three four five six"


@pytest.fixture
def outages(knowledge: Connection) -> Connection:
    """A text with both words next to each other, then with more and more between them."""
    store(
        knowledge,
        "the power cut of May",
        "they cut the power again",
        f"power was {FAR} hours later cut",
        "power alone",
    )
    return knowledge


def test_the_words_are_near_each_other_in_any_order(outages: Connection) -> None:
    for query, expected in (
        ('"power cut"', {1}),
        ('"power cut"~0', {1}),
        ('"power cut"~1', {1, 2}),
        ('"cut power"~1', {1, 2}),
        ('"power cut"~8', {1, 2}),
        ('"power cut"~9', {1, 2, 3}),
        ('"power cut"~99999999999999999999', {1, 2, 3}),
        ('"power cut"~9 -"cut power"~1', {3}),
        ('"power cut"~1 or "power alone"', {1, 2, 4}),
        ('"the power of cut"~1', {1, 2}),
        ('"power power cut"~0', set()),
        ('"power"~5', {1, 2, 3, 4}),
    ):
        hits = search(outages, query_text=query)
        strict = [hit for hit in hits if not (hit["notes"] or {}).get("relaxed")]
        assert set(numbers(strict)) == expected, query


def test_the_distance_is_no_word_of_the_query(outages: Connection) -> None:
    outages.execute("insert into public.knowledge_chunks (content) values ('5 power 5 cut 5')")
    hits = search(outages, query_text='"power cut"~5')
    assert {tuple(hit["matched_terms"]) for hit in hits} == {("power", "cut")}
    prose = search(outages, query_text='how did the "power cut"~5 end?', snippet=True)
    assert all("<mark>5</mark>" not in hit["snippet"] for hit in prose)


def test_in_prose_nearness_adds_to_the_score(knowledge: Connection) -> None:
    store(knowledge, f"power {FAR} {FAR} {FAR} {FAR} cut", f"power {FAR} cut {FAR} {FAR} {FAR}")
    plain = search(knowledge, query_text="what ended the power cut?")
    near = search(knowledge, query_text='what ended the "power cut"~10?')
    assert len({hit["text_score"] for hit in plain}) == 1
    assert numbers(near) == [2, 1]
    assert near[0]["text_score"] > near[1]["text_score"] == plain[0]["text_score"]


def test_what_no_row_has_is_relaxed_and_named(outages: Connection) -> None:
    hits = search(outages, query_text='"power alone cut"~3 -"no thing"~2')
    assert set(numbers(hits)) == {1, 2, 3, 4}
    assert hits[0]["notes"] == {"relaxed": ['"power alone cut"~3'], "excluded": ['"no thing"']}


@pytest.mark.parametrize(
    ("query", "expected"),
    [('"power cut"~1', 2), ('"power cut"~9', 3), ('"alone cut"~9', 4), ('power -"cut power"~1', 2)],
)
def test_a_count_means_the_same_rows(outages: Connection, query: str, expected: int) -> None:
    assert len(search(outages, query_text=query)) == expected
    (row,) = call(outages, "count_matching_knowledge_chunks", query_text=query)
    assert row["count_matching_knowledge_chunks"] == expected


def test_too_many_words_are_a_phrase_and_the_notes_show_it(outages: Connection) -> None:
    hits = search(outages, query_text='"of May they cut the power"~9')
    assert hits[0]["notes"] == {"relaxed": ['"of May they cut the power"']}


def test_a_query_of_many_of_them_is_answered(outages: Connection) -> None:
    query = " or ".join([f'"{FAR[:13]} {number}"~20' for number in range(200)])
    assert len(search(outages, query_text=query + ' or "power cut"~1')) < 5
    phrases = search(outages, query_text='"power cut"~20 ' * 200)
    assert numbers(phrases) == [1]


def test_no_match_crosses_the_end_of_a_heading(knowledge: Connection) -> None:
    store(knowledge, {"heading": "Power", "content": "cut DS-7604"})
    for query in ('"power cut"~20', '"power ds7604"~20', '"cut ds7604"~20'):
        assert search(knowledge, query_text=query)[0]["notes"] == {"relaxed": [query]}
    assert search(knowledge, query_text='"cut 7604"~1')[0]["notes"] is None


@pytest.mark.parametrize(
    ("language", "content", "query"),
    [
        ("german", "Die Rechnungen wurden gestern bezahlt", '"bezahlte Rechnung"~2'),
        ("english", "after the outage the DS-7604 restarted", '"DS-7604 outage"~1'),
        ("english", "call lru_cache with a smaller size", '"size lru_cache"~3'),
        ("simple", "数据库的全文检索", '"检索 全文"~1'),
        ("simple", "กรุงเทพมหานคร เมือง", '"เมือง กรุง"~20'),
        ("french", "le café était fermé", '"fermé cafe\u0301"~1'),
    ],
)
def test_words_are_read_as_those_of_phrases(
    knowledge: Connection, language: str, content: str, query: str
) -> None:
    # In a corpus of several languages.
    store(knowledge, {"content": content, "language": language}, "another text")
    hits = search(knowledge, query_text=query)
    assert numbers(hits) == [1]
    assert hits[0]["notes"] is None


def test_a_viewer_learns_nothing_of_hidden_rows(knowledge: Connection) -> None:
    store(
        knowledge,
        {"content": "the power cut", "visibility": "private"},
        {"content": f"power {FAR} cut", "visibility": "public"},
    )
    hits = search(knowledge, query_text='"power cut"~2', public_only=True)
    assert numbers(hits) == [2]
    assert hits[0]["notes"] == {"relaxed": ['"power cut"~2']}


@pytest.mark.module("insight")
def test_why_not_names_the_distance(outages: Connection) -> None:
    chunk = search(outages, query_text="power alone", match_count=1)[0]["id"]
    for query, shown in (('"power cut"~3', '"power cut"~3'), ('x -"alone power"~2', 'power"~2')):
        answer = call(
            outages, "explain_missing_knowledge_chunk", chunk_id=str(chunk), query_text=query
        )
        assert shown in str(answer)


WORDS = st.sampled_from(["aa", "bb", "cc", "dd", "ee", "zz"])


@tried(300)
@given(
    text=st.lists(WORDS, min_size=1, max_size=25),
    asked=st.lists(WORDS, min_size=1, max_size=5),
    further=st.integers(1, 20),
)
def test_a_text_matches_if_some_of_its_words_lie_so_near(
    shared: Connection, text: list[str], asked: list[str], further: int
) -> None:
    places = [[at for at, word in enumerate(text) if word == one] for one in dict.fromkeys(asked)]
    near = any(max(one) - min(one) <= len(asked) - 1 + further for one in product(*places))
    row = shared.execute(
        "select to_tsvector('simple', %s) @@ knowledge_internal.phrase_query('simple', %s, %s)",
        [" ".join(text), " ".join(asked), further],
    ).fetchone()
    assert row == (near,)
