"""Queries of 4,096 characters in a corpus of many languages: their analysis stays bounded."""

import random

import pytest

from conftest import Connection

LENGTH = 4096


def letters(alphabet: str, size: int, source: random.Random) -> str:
    return "".join(source.choice(alphabet) for _ in range(size))


def questions() -> dict[str, str]:
    source = random.Random(1)
    han = "".join(chr(source.randint(0x4E00, 0x9FA5)) for _ in range(LENGTH))
    thai = "".join(chr(source.randint(0x0E01, 0x0E2E)) for _ in range(LENGTH))
    words = [letters("abcdefghij", 7, source) for _ in range(512)]
    return {
        "Han": han,
        "Thai": thai,
        "words": " ".join(words),
        "letters": " ".join(letters("abcdefghijklmnopqrstuvwxyz", 2048, source)),
        "one compound": "-".join(words),
        "phrases": " ".join(f'"{one} {other}"' for one, other in zip(words, words, strict=True)),
        "alternatives": " or ".join(words),
        "one phrase": '"' + " ".join(words)[: LENGTH - 2] + '"',
        "excluded": " ".join(f"-{one}" for one in words),
    }


@pytest.fixture(scope="module")
def many_languages(shared: Connection) -> Connection:
    shared.execute("truncate public.knowledge_documents, public.knowledge_chunks")
    shared.execute(
        "insert into public.knowledge_chunks (content, language)"
        " select 'a text whose language is ' || cfgname, cfgname from pg_catalog.pg_ts_config"
        " where cfgname <> 'simple'"
    )
    return shared


@pytest.mark.parametrize("mode", ["websearch", "simple", "phrase"])
@pytest.mark.parametrize("kind", sorted(questions()))
def test_a_long_query_is_read_in_bounded_time(
    many_languages: Connection, kind: str, mode: str
) -> None:
    # About 50 ms on one core; before the words were bounded, Han text took over 12 s.
    with many_languages.transaction(force_rollback=True):
        many_languages.execute("set local statement_timeout = '10s'")
        many_languages.execute(
            "select knowledge_internal.analyse_query(%s, %s)", [questions()[kind][:LENGTH], mode]
        )


def test_a_word_at_the_end_of_sixty_words_counts_in_every_language(
    many_languages: Connection,
) -> None:
    asked = " ".join(f"filler{number}" for number in range(60)) + " armenian"
    first = many_languages.execute(
        "select content from public.hybrid_search_knowledge_chunks(query_text => %s)", [asked]
    ).fetchone()
    assert first == ("a text whose language is armenian",)


def test_the_rarest_word_of_three_hundred_counts(many_languages: Connection) -> None:
    common = " ".join(f"filler{number}" for number in range(300))
    with many_languages.transaction(force_rollback=True):
        many_languages.execute("delete from public.knowledge_chunks")
        many_languages.execute(
            "insert into public.knowledge_chunks (content) values (%s), (%s), ('zebra')",
            [common, f"{common} again"],
        )
        found = many_languages.execute(
            "select content from public.hybrid_search_knowledge_chunks(query_text => %s)",
            [f"{common} zebra"],
        )
        assert ("zebra",) in found.fetchall()
