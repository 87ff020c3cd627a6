"""What a reader takes for one word is one word: signs, apostrophes, points, what nobody sees."""

import unicodedata

import pytest
from searching import numbers, search, store

from conftest import Connection


def found(knowledge: Connection, content: str, query: str, **more: str) -> bool:
    """Say whether the query finds the content, as words and as what is required."""
    store(knowledge, {"content": content, **more}, {"content": "another one", **more})
    answers = [
        numbers(search(knowledge, query_text=text, search_mode=mode))
        for text, mode in ((query, "websearch"), (query, "simple"), (f'"{query}"', "websearch"))
    ]
    knowledge.execute("truncate public.knowledge_chunks cascade")
    assert len({tuple(one) for one in answers}) == 1, answers
    return answers[0] == [1]


@pytest.mark.parametrize(
    ("content", "query"),
    [
        ("NVIDIA\u2122 cards", "nvidia"),
        ("the Kleenex\u2122, in boxes", "Kleenex"),
        ("Lego\u00ae bricks", "lego"),
        ("Fedora\u00a9 2020", "fedora"),
        ("the AcmeCare\u2120 plan", "acmecare"),
        ("Photoshop\U0001f16a filters", "photoshop"),
        ("Post-it\u24c7 notes", "Post-it"),
        ("as Smith says\u00b2 elsewhere", "says"),
        ("in 1987\u00b3 it fell", "1987"),
        ("$750\u00b9 a month", "750"),
        ("version 3.12\u00b2 is out", "3.12"),
        ("GitLab\u2074 runs it", "GitLab"),
        ("an area of 40 m\u00b2", "m2"),
        ("n\u00ba7 of the list", "7"),
        ("\u211612 of the list", "12"),
        ("la 3\u00aa vez", "3"),
        ("step\u2460 then\u2461", "step"),
        ("chapter\u2473 begins", "20"),
        ("about 4\u00bd miles", "4.5"),
        ("6\u00be inches", "6.75"),
        ("6\u00be inches", "6"),
        ("\u00bd a mile", "1/2"),
        ("H\u2082O flows", "H2O"),
    ],
)
def test_a_sign_at_a_word_is_no_part_of_it(knowledge: Connection, content: str, query: str) -> None:
    assert found(knowledge, content, query)


@pytest.mark.parametrize(
    ("content", "query"),
    [
        ("in 1987\u00b3 it fell", "19873"),
        ("about 4\u00bd miles", "41"),
        ("6\u00be inches", "63"),
        ("6\u00be inches", "34"),
        ("NVIDIA\u2122 cards", "nvidiatm"),
        ("\u00bd a mile", "12"),
    ],
)
def test_a_sign_makes_no_other_word(knowledge: Connection, content: str, query: str) -> None:
    assert not found(knowledge, content, query)


def test_a_phrase_passes_over_a_note(knowledge: Connection) -> None:
    store(knowledge, "Sales in 1987\u00b3 rose, and GitLab\u00b2 grew", "in rose 1987")
    for phrase in ('"in 1987 rose"', '"GitLab grew"'):
        assert numbers(search(knowledge, query_text=phrase)) == [1]


UNSEEN = [
    *(0x00AD, 0x034F, 0x061C, 0x115F, 0x180B, 0x180E, 0x200B, 0x200C, 0x200D, 0x200E, 0x200F),
    *(0x202A, 0x202B, 0x202C, 0x202D, 0x202E, 0x2060, 0x2062, 0x2066, 0x2069, 0x206F, 0x3164),
    *(0xFE00, 0xFE0E, 0xFE0F, 0xFEFF, 0xFFA0, 0xFFF9, 0x1D173, 0xE0041, 0xE007F, 0xE0100),
]


@pytest.mark.parametrize("sign", UNSEEN, ids=hex)
def test_what_nobody_sees_changes_no_word(knowledge: Connection, sign: int) -> None:
    unseen = chr(sign)
    for written in (f"{unseen}quarterly", f"quarterly{unseen}", f"quar{unseen}terly"):
        assert found(knowledge, f"the {written} report", "quarterly"), written
        assert found(knowledge, "the quarterly report", written), written


@pytest.mark.parametrize(
    "query",
    [
        "\u06a9\u062a\u0627\u0628",
        "\u06a9\u062a\u0627\u0628 \u0647\u0627",
        "\u06a9\u062a\u0627\u0628\u0647\u0627",
        "\u06a9\u062a\u0627\u0628\u200c\u0647\u0627",
    ],
)
@pytest.mark.parametrize("language", ["simple", "english", "arabic", "fa"])
def test_the_persian_non_joiner_stands_between_two_words(
    knowledge: Connection, query: str, language: str
) -> None:
    content = (
        "\u0627\u06cc\u0646 \u06a9\u062a\u0627\u0628\u200c\u0647\u0627"
        " \u062e\u0648\u0628 \u0627\u0633\u062a"
    )
    assert found(knowledge, content, query, language=language)


APOSTROPHES = "'\u2019\u02bc\u02bb\u02b9\u2018\u201b\u2032\u00b4\uff07\ua78c\u055a"


@pytest.mark.parametrize(
    ("written", "typed"),
    [pair for sign in APOSTROPHES for pair in ((sign, sign), (sign, "'"), ("'", sign))][2:],
)
def test_all_apostrophes_are_one(knowledge: Connection, written: str, typed: str) -> None:
    for before, after in (("\u043c", "\u044f\u0442\u0430"), ("O", "Connor"), ("Hawai", "i")):
        store(knowledge, f"the {before}{written}{after} here", "the here")
        (row,) = search(knowledge, query_text=f"{before}{typed}{after}", search_mode="simple")
        assert row["matched_terms"] == [f"{before}{typed}{after}"]
        knowledge.execute("truncate public.knowledge_chunks cascade")


@pytest.mark.parametrize(
    ("content", "query"),
    [
        ("Sinead O'Connor sang", "OConnor"),
        ("Sinead O\u2019Connor sang", "oconnor"),
        ("Sinead OConnor sang", "O'Connor"),
        ("Shaq O'Neal scored", "oneal"),
        ("a role of D'Angelo", "DAngelo"),
        ("by L'Or\u00e9al", "LOr\u00e9al"),
        ("le roman de d'Artagnan", "dartagnan"),
        ("an o'reilly book", "OReilly"),
    ],
)
def test_a_name_is_found_without_its_apostrophe(
    knowledge: Connection, content: str, query: str
) -> None:
    assert found(knowledge, content, query)


@pytest.mark.parametrize("content", ["we'll see", "they're back", "it's on", "I'd go", "DON'T"])
def test_a_contraction_is_no_name(knowledge: Connection, content: str) -> None:
    assert not found(knowledge, content, content.split()[0].replace("'", ""), language="simple")


@pytest.mark.parametrize(
    ("content", "query", "language"),
    [
        ("\u05e9\u05b8\u05c1\u05dc\u05d5\u05b9\u05dd", "\u05e9\u05dc\u05d5\u05dd", "simple"),
        ("\u05e9\u05dc\u05d5\u05dd", "\u05e9\u05b8\u05c1\u05dc\u05d5\u05b9\u05dd", "english"),
        ("\ufb2a\u05dc\u05d5\u05dd", "\u05e9\u05dc\u05d5\u05dd", "he"),
        (
            "\u0645\u064e\u0643\u0652\u062a\u064e\u0628\u064e\u0629",
            "\u0645\u0643\u062a\u0628\u0629",
            "simple",
        ),
        (
            "\u0645\u0643\u062a\u0628\u0629",
            "\u0645\u064e\u0643\u0652\u062a\u064e\u0628\u064e\u0629",
            "english",
        ),
        (
            "\u0645\u064e\u0643\u0652\u062a\u064e\u0628\u064e\u0629",
            "\u0645\u0643\u062a\u0628\u0629",
            "arabic",
        ),
        ("\u0645\u0643\u0640\u0640\u062a\u0628\u0629", "\u0645\u0643\u062a\u0628\u0629", "simple"),
        ("\u0631\u062d\u0645\u0670\u0646", "\u0631\u062d\u0645\u0646", "simple"),
        ("\u0661\u0669\u0668\u0667", "1987", "arabic"),
        ("in 1403", "\u06f1\u06f4\u06f0\u06f3", "english"),
        ("\u0967\u096f\u096e\u096d \u092e\u0947\u0902", "1987", "hindi"),
        ("\u0e51\u0e52\u0e53", "123", "th"),
        ("\u039f\u0394\u039f\u03a3", "\u03bf\u03b4\u03bf\u03c2", "simple"),
        ("\u03bf\u03b4\u03bf\u03c2", "\u039f\u0394\u039f\u03a3", "simple"),
        ("\u03ba\u03cc\u03c3\u03bc\u03bf\u03c2", "\u03ba\u03cc\u03c3\u03bc\u03bf\u03c3", "greek"),
        ("\u039d\u0399\u039a\u039f\u03a3", "\u03bd\u03b9\u03ba\u03bf\u03c2", "greek"),
    ],
)
def test_points_digits_and_the_last_letter_make_no_other_word(
    knowledge: Connection, content: str, query: str, language: str
) -> None:
    assert found(knowledge, content, query, language=language)


@pytest.mark.parametrize(
    "word",
    [
        "\u0e19\u0e49\u0e33",
        "\u0e17\u0e33",
        "\u0e04\u0e33",
        "\u0e14\u0e33",
        "\u0e08\u0e33",
        "\u0e19\u0e33",
        "\u0e99\u0ec9\u0eb3",
        "\u0e84\u0eb3",
    ],
)
@pytest.mark.module("snippets")
@pytest.mark.parametrize("language", ["english", "simple", "th"])
def test_the_vowel_am_is_found_and_marked(knowledge: Connection, word: str, language: str) -> None:
    apart = unicodedata.normalize("NFKD", word)
    ends = ("\u0e40\u0e02\u0e32", "\u0e17\u0e38\u0e01\u0e27\u0e31\u0e19")
    for written in (word, apart):
        content = f"{ends[0]}{written}{ends[1]}"
        store(knowledge, {"content": content, "language": language})
        for query in (word, apart):
            (row,) = search(knowledge, query_text=query, snippet=True)
            assert row["matched_terms"] == [query]
            assert row["snippet"] == f"{ends[0]}<mark>{written}</mark>{ends[1]}"
        knowledge.execute("truncate public.knowledge_chunks cascade")


@pytest.mark.parametrize(
    ("content", "query"),
    [
        ("AT&T raised prices", "AT&T"),
        ("the R&D budget", "R&D"),
        ("a shirt of H&M", "H&M"),
        ("S&P index", "S&P"),
        ("our Q&A page", "Q&A"),
        ("work for M&A lawyers", "M&A"),
        ("in the A&E department", "A&E"),
        ("the P&L account", "P&L"),
        ("A&S paid", "A&S"),
        ("a gift of I&T", "I&T"),
        ("he asked D&O about it", "d&o"),
    ],
)
def test_an_ampersand_joins_as_a_slash_does(
    knowledge: Connection, content: str, query: str
) -> None:
    assert found(knowledge, content, query)


def test_a_compound_of_stop_words_is_required_in_a_phrase(knowledge: Connection) -> None:
    store(knowledge, "AT&T raised prices", "they raised prices")
    for query in ('"AT&T raised"', '"AT&T" prices', '"AT&T raised prices"'):
        rows = search(knowledge, query_text=query)
        assert numbers(rows) == [1]
        assert rows[0]["notes"] is None
    assert numbers(search(knowledge, query_text="prices -AT&T")) == [2]


@pytest.mark.parametrize(
    ("content", "query"),
    [
        ("\u00bd a mile", "\u00bd"),
        ("NVIDIA\u2122 cards", "NVIDIA\u2122"),
        ("\u21167 is here", "\u21167"),
        ("by O'Brien", "O\u00b4Brien"),
        ("at 20 \u2103 now", "20\u2103"),
        ("a \ufb01le", "\ufb01le"),
        ("x\u00b2 grows", "x\u00b2"),
        ("-5 degrees", "\u22125"),
        ("DS-7604", "\uff24\uff33-7604"),
        ("caf\u00e9 au lait", "cafe\u0301"),
    ],
)
def test_a_matched_term_is_as_typed(knowledge: Connection, content: str, query: str) -> None:
    store(knowledge, content)
    (row,) = search(knowledge, query_text=query)
    assert row["matched_terms"] == [query]


@pytest.mark.parametrize("sign", ["\u2122", "\u00ae", "\U0001f525", "\u2192", "\u20ac"])
def test_a_sign_alone_is_no_word(knowledge: Connection, sign: str) -> None:
    store(knowledge, f"a {sign} here")
    assert search(knowledge, query_text=sign) == []
