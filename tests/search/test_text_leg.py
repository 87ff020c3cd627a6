"""The text leg: what each search mode reads of a text, and BM25."""

import random
from collections import Counter
from typing import Any
from uuid import UUID

import pytest
from searching import NORTH, bm25, lexemes, numbers, search, store

from conftest import Connect, Connection

# What each search mode makes of a text.

FOX: list[dict[str, Any]] = [
    {"content": "the quick brown fox jumps over the lazy dog"},
    {"content": "the brown dog is quick"},
    {"content": "a lazy afternoon"},
    {"content": "foxes and hounds"},
]


def test_a_mode_reads_a_text(knowledge: Connection) -> None:
    store(knowledge, *FOX)
    read = [
        ("websearch", "quick fox", {1, 2, 4}),
        ("websearch", '"quick brown"', {1}),
        ("websearch", '"brown dog" afternoon', {2}),
        # No row has what is required, so it is relaxed.
        ("websearch", '"quick brown" "brown dog"', {1, 2}),
        ("websearch", '"dog\nbrown"', {1, 2}),
        ("websearch", '"dog brown" -lazy', {2}),
        ("websearch", '"a lazy wolf" afternoon', {1, 3}),
        ("websearch", "dog -lazy", {2}),
        ("websearch", 'dog -"quick brown"', {2}),
        ("websearch", '"quick brown" or afternoon', {1, 3}),
        ("websearch", '"quick brown" or "brown dog" -lazy', {2}),
        ("websearch", '"quick brown" or afternoon "lazy dog"', {1}),
        ("websearch", "or", set()),
        ("websearch", "or afternoon or", {3}),
        ("websearch", '"quick brown', {1, 2}),
        ("websearch", '"the" afternoon', {3}),
        ("simple", "quick dog", {1, 2}),
        ("simple", "quick afternoon", set()),
        ("simple", "Foxes", {1, 4}),
        ("simple", "dog -lazy", {1}),
        ("simple", '"brown dog"', {1, 2}),
        ("phrase", "brown dog", {2}),
        ("phrase", "dog brown", set()),
        ("phrase", "quick brown fox", {1}),
        ("phrase", "dog\nbrown", set()),
        ("phrase", '"brown" dog', {2}),
        ("phrase", "dog -lazy", set()),
    ]
    for mode, text, found in read:
        rows = search(knowledge, query_text=text, search_mode=mode)
        assert set(numbers(rows)) == found, (mode, text)


def test_a_long_question_finds_the_chunks_with_its_rare_words(knowledge: Connection) -> None:
    store(
        knowledge,
        "We can use the same for all the things that you have with us.",
        "Signing keys are rotated by running the vault script every quarter.",
        "The office kitchen has a new coffee machine.",
        "Keys of the building are kept at the front desk.",
    )
    rows = search(
        knowledge, query_text="what do I have to do so that our signing keys get rotated?"
    )
    assert numbers(rows)[:2] == [2, 4]
    assert 3 not in numbers(rows)


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


def word(number: int) -> str:
    return f"q{chr(97 + number // 26)}{chr(97 + number % 26)}x"


def fill(connection: Connection, count: int, seed: int) -> None:
    generator = random.Random(seed)
    names = [word(number) for number in range(40)]
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
    for text in ("qabx", "qbex qacx", "qafx qafx qarx unheard"):
        expected = bm25(corpus, lexemes(knowledge, text))
        assert scored(knowledge, text) == pytest.approx(expected)


def test_text_scores_follow_the_statistics(connect: Connect) -> None:
    connection = connect()
    fill(connection, 1500, seed=2)
    corpus = corpus_of(connection)
    query = lexemes(connection, "qadx qbjx qbmx")
    best = max(bm25(corpus, query).items(), key=lambda item: item[1])[0]

    # Never analysed: a guess at the size, and a sensible order.
    assert best in list(scored(connection, "qadx qbjx qbmx"))[:3]

    connection.execute("analyze public.knowledge_chunks")
    for refreshed in (True, False):
        ((answer,),) = connection.execute("select public.refresh_knowledge_statistics()").fetchall()
        assert answer is refreshed
        expected = bm25(corpus, query)
        found = scored(connection, "qadx qbjx qbmx")
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
    assert set(scored(connection, "qadx qafx")) == set(bm25(left, Counter(["qadx", "qafx"])))

    connection.execute("vacuum analyze public.knowledge_chunks")
    connection.execute("select public.refresh_knowledge_statistics()")
    assert scored(connection, "qadx qafx") == pytest.approx(bm25(left, Counter(["qadx", "qafx"])))


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


def test_hard_text_is_found_as_typed_and_typed_apart(knowledge: Connection) -> None:
    store(knowledge, *HARD_TEXT)
    for number, queries in enumerate(HARD_TEXT.values(), 1):
        for query in queries:
            assert numbers(search(knowledge, query_text=query))[:1] == [number], query
            (row,) = search(knowledge, query_text=query, search_mode="simple")
            assert row["id"].int == number
            assert row["matched_terms"]


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
    store(knowledge, f"about {neighbour} here", f"about {query} here")
    for text, mode in ((query, "simple"), (query, "phrase"), (f'"{query}"', "websearch")):
        assert numbers(search(knowledge, query_text=text, search_mode=mode)) == [2]
    # As optional words its parts are found in the neighbour too, after the part itself.
    assert numbers(search(knowledge, query_text=query))[0] == 2


def test_typographic_quotation_marks_make_a_phrase(knowledge: Connection) -> None:
    store(knowledge, "beta alpha", "alpha beta")
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
    [("the cat", {1}), ("die casting", {2}), ("die Katze", {3}), ("the klingon", {4})],
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


# A very long text.


def test_a_chunk_of_more_than_a_megabyte_is_found_by_its_beginning(knowledge: Connection) -> None:
    words = " ".join(f"{number:x}filler{number}" for number in range(100_000))
    store(knowledge, {"content": f"cornerstone {words}", "embedding": NORTH})
    (row,) = search(knowledge, query_text="cornerstone")
    assert len(row["content"]) > 1_000_000
