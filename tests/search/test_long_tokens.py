"""Texts of one long token or one character, and long queries, take no longer than others."""

import random

import pytest
from searching import MODES, chunk, numbers, search, store

from conftest import Connection

# The slowest shape takes 0.1 s of CPU. The limit is for a machine under load; with time that is
# quadratic in the length, these shapes take minutes.
LIMIT = "set local statement_timeout = '5s'"

# Texts.


def drawn(letters: str, length: int) -> str:
    return "".join(random.Random(1).choices(letters, k=length))


@pytest.mark.module("words")
@pytest.mark.parametrize("unit", ["a_", "ab_ab_", "1_", "a_b-", "snake_case_name_", "漢字", "a.b_"])
def test_a_long_token_is_stored_and_searched_beside_a_misspelt_word(
    knowledge: Connection, unit: str
) -> None:
    knowledge.execute(LIMIT)
    content = (unit * 40_000)[:40_000] + " quixotronics quixotronic"
    store(knowledge, *[content] * 3)
    (row,) = search(knowledge, query_text="quixotronisc", match_count=1)
    assert row["content"] == content
    assert row["notes"]["replaced"] == {"quixotronisc": "quixotronic"}


@pytest.mark.module("words")
@pytest.mark.parametrize("content", ["my_flies", "flies.csv", "x/flies/y", "flies-eat", "Flies"])
def test_a_word_within_a_compound_is_kept_while_a_chunk_has_it(
    knowledge: Connection, content: str
) -> None:
    store(knowledge, "Time flies", content)
    known = "select count(*) from public.knowledge_words where word = 'flies'"
    delete = "delete from public.knowledge_chunks where id = %s"
    knowledge.execute(delete, [chunk(1)])
    assert knowledge.execute(known).fetchall() == [(1,)]
    assert search(knowledge, query_text="fliees")[0]["notes"]["replaced"] == {"fliees": "flies"}
    knowledge.execute(delete, [chunk(2)])
    assert knowledge.execute(known).fetchall() == [(0,)]


# Queries of 4,096 characters in a corpus of many languages.

MOST = 4096
WORDS = [drawn("abcdefghij", 512 * 7)[place : place + 7] for place in range(0, 512 * 7, 7)]
QUERIES = {
    "Han": "".join(map(chr, random.Random(1).choices(range(0x4E00, 0x9FA5), k=MOST))),
    "Thai": "".join(map(chr, random.Random(1).choices(range(0x0E01, 0x0E2E), k=MOST))),
    "words": " ".join(WORDS),
    "letters": " ".join(drawn("abcdefghijklmnopqrstuvwxyz", 2048)),
    "one compound": "-".join(WORDS),
    "phrases": " ".join(f'"{one} {one}"' for one in WORDS),
    "alternatives": " or ".join(WORDS),
    "one phrase": '"' + " ".join(WORDS)[: MOST - 2] + '"',
    "excluded": " ".join(f"-{one}" for one in WORDS),
}


@pytest.fixture
def many_languages(knowledge: Connection) -> Connection:
    knowledge.execute(
        "insert into public.knowledge_chunks (content, language)"
        " select 'a text whose language is ' || cfgname, cfgname from pg_catalog.pg_ts_config"
        " where cfgname <> 'simple'"
    )
    return knowledge


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", QUERIES)
def test_a_long_query_is_read_in_bounded_time(
    many_languages: Connection, kind: str, mode: str
) -> None:
    # About 50 ms on one core; before the words were bounded, Han text took over 12 s.
    many_languages.execute("set local statement_timeout = '10s'")
    many_languages.execute(
        "select from public.hybrid_search_knowledge_chunks(query_text => %s, search_mode => %s)",
        [QUERIES[kind][:MOST], mode],
    )


def test_a_word_at_the_end_of_sixty_words_counts_in_every_language(
    many_languages: Connection,
) -> None:
    asked = " ".join(f"filler{number}" for number in range(60)) + " armenian"
    first, *_ = search(many_languages, query_text=asked)
    assert first["content"] == "a text whose language is armenian"


def test_the_rarest_word_of_three_hundred_counts(knowledge: Connection) -> None:
    common = " ".join(f"filler{number}" for number in range(300))
    store(knowledge, common, f"{common} again", "zebra")
    assert 3 in numbers(search(knowledge, query_text=f"{common} zebra"))


def test_words_that_no_chunk_has_crowd_out_none_that_one_has(knowledge: Connection) -> None:
    store(knowledge, "a rope", "a clock")
    unknown = (
        f"x{number:03}x".translate(str.maketrans("0123456789", "abcdefghij"))
        for number in range(300)
    )
    assert numbers(search(knowledge, query_text=f"rope {' '.join(unknown)}")) == [1]
