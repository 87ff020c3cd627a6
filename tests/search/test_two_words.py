"""What a reader takes for two things is two: words inside a word, and words of two compounds."""

import pytest
from searching import MODES, numbers, search, store

from conftest import Connection

NAMES = [
    ("Java", "JavaScript"),
    ("Git", "GitHub"),
    ("SQL", "PostgreSQL"),
    ("book", "FaceBook"),
    ("user", "getUserName"),
]
"""A word, and a word that it is inside of."""

WHOLE_AND_INNER = pytest.mark.parametrize(("inner", "whole"), NAMES)


@WHOLE_AND_INNER
def test_a_word_inside_a_word_meets_no_condition(
    knowledge: Connection, inner: str, whole: str
) -> None:
    store(knowledge, f"{whole}, {whole} and {whole} frameworks", f"{inner} and frameworks")
    for query, mode in (
        (inner, "simple"),
        (inner, "phrase"),
        (f'"{inner}"', "websearch"),
        (f'"{inner}" or "nothing"', "websearch"),
        (f"frameworks {inner}", "simple"),
    ):
        assert numbers(search(knowledge, query_text=query, search_mode=mode)) == [2], query
    for query in (f"frameworks -{inner}", f"{whole} -{inner}", f'frameworks -"{inner}"'):
        assert numbers(search(knowledge, query_text=query)) == [1], query


@WHOLE_AND_INNER
def test_a_word_inside_a_word_counts_less_than_the_word(
    knowledge: Connection, inner: str, whole: str
) -> None:
    store(
        knowledge,
        f"{whole}, {whole} and {whole} frameworks",
        f"{inner} is known for its machine, with a collector of garbage and several threads.",
    )
    rows = search(knowledge, query_text=inner)
    assert numbers(rows) == [2, 1]
    assert rows[0]["text_score"] > 1.2 * rows[1]["text_score"]


def test_words_inside_one_word_are_neighbours(knowledge: Connection) -> None:
    for content, query in (
        ("the getUserName call", "user name"),
        ("in SharePoint now", "share point"),
        ("a WordPress blog", "word press"),
        ("with lruCacheSize set", "cache size"),
        ("the BM25F score", "BM 25"),
        ("uses 16GB of memory", "16 GB"),
        ("part AB12345 fits", "AB 12345"),
    ):
        first, second = query.split()
        with knowledge.transaction(force_rollback=True):
            store(knowledge, content, f"{second} then {first}")
            for mode in MODES:
                text = f'"{query}"' if mode == "websearch" else query
                found = numbers(search(knowledge, query_text=text, search_mode=mode))
                assert found == [1] if mode != "simple" else 1 in found, text


@pytest.mark.parametrize(
    ("content", "phrase"),
    [
        ("JavaScript runs here. A compiler reads TypeScript.", "script type"),
        ("Send an e-mail first. The shop was on-line.", "email online"),
        ("The DS-7604 stands beside the DS-7605.", "DS7604 DS7605"),
        ("getUserName calls setItemCount", "name set"),
        ("GitHub and later YouTube", "hub you"),
        ("AB12345 then CD67890", "12345 CD"),
        ("lruCache or the SharePoint", "cache share"),
        ("read_csv and later to_json", "readcsv tojson"),
        ("O'Brien met O'Connor", "OBrien OConnor"),
        ("1,000 of 2,000", "1000 2000"),
        ("pandas.read_csv in numpy.load_txt", "readcsv numpyload"),
        ("JavaScript of the TypeScript", "script of type"),
    ],
)
def test_a_phrase_spans_no_two_compounds(knowledge: Connection, content: str, phrase: str) -> None:
    store(knowledge, content, "nothing")
    for text, mode in ((phrase, "phrase"), (f'"{phrase}" nothing', "websearch")):
        rows = search(knowledge, query_text=text, search_mode=mode)
        assert all(row["notes"] == {"relaxed": [f'"{phrase}"']} for row in rows)
        assert rows or mode == "phrase"
    assert 1 in numbers(search(knowledge, query_text=f'{content.split()[-1]} -"{phrase}"'))
    for further in (2, 20):
        rows = search(knowledge, query_text=f'"{phrase}"~{further}')
        assert all("relaxed" in (row["notes"] or {}) for row in rows)


def test_a_required_phrase_of_stop_words_is_noted(knowledge: Connection) -> None:
    store(knowledge, "The Who played Tommy, to be or not to be")
    for phrase in ('"The Who"', '"to be"', '"not"', '"it is"', '"of the"'):
        (row,) = search(knowledge, query_text=f"{phrase} Tommy")
        assert row["notes"] == {"dropped": [phrase]}
    assert search(knowledge, query_text='"Tommy" played')[0]["notes"] is None
    knowledge.execute("update public.knowledge_chunks set language = 'simple'")
    (row,) = search(knowledge, query_text='"The Who" Tommy')
    assert row["notes"] is None


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ('24" or 27" monitor', {1, 2}),
        ('27" 24" monitor', {1, 2}),
        ("5'10\" monitor", {1, 2, 3}),
        ('monitor 27"', {1, 2}),
        ('a"b monitor"', {1, 2}),
        ('"27" monitor', {1}),
        ('\u05de\u05e0\u05db"\u05dc \u05e6\u05d4"\u05dc monitor', {1, 2}),
    ],
)
def test_a_mark_after_a_letter_or_digit_opens_no_phrase(
    knowledge: Connection, query: str, found: set[int]
) -> None:
    store(knowledge, '27" monitor', '24" monitor with stand', "she is 5'10\" tall")
    assert set(numbers(search(knowledge, query_text=query))) == found


def test_a_compound_counts_once_as_one_word(knowledge: Connection) -> None:
    store(knowledge, {"content": "functools/lru_cache 3.11.2", "language": "simple"})
    counted = knowledge.execute(
        "select word.lexeme, cardinality(word.positions)"
        " from public.knowledge_chunks as chunk cross join unnest(chunk.content_tsv) as word"
        " where word.lexeme in ('functoolslrucache', '3p11p2')"
    )
    assert dict(counted.fetchall()) == {"functoolslrucache": 1, "3p11p2": 1}
