"""What a reader takes for one word is one word: signs, apostrophes, points, what nobody sees."""

import unicodedata

import pytest
from searching import numbers, search, searched, store

from conftest import Connection


def answered(knowledge: Connection, query: str) -> list[int]:
    """List the chunks that the query finds, as words and as what is required."""
    asked = ((query, "websearch"), (query, "simple"), (f'"{query}"', "websearch"))
    answers = [
        sorted(numbers(search(knowledge, query_text=text, search_mode=mode, match_count=200)))
        for text, mode in asked
    ]
    assert answers[0] == answers[1] == answers[2], answers
    return answers[0]


def found(knowledge: Connection, content: str, query: str, **more: str) -> bool:
    with knowledge.transaction(force_rollback=True):
        store(knowledge, {"content": content, **more}, {"content": "another one", **more})
        return answered(knowledge, query) == [1]


SIGNS = [
    ("NVIDIA™ cards", "nvidia"),
    ("Lego® bricks", "lego"),
    ("Fedora© 2020", "fedora"),
    ("the AcmeCare℠ plan", "acmecare"),
    ("Photoshop🅪 filters", "photoshop"),
    ("Post-itⓇ notes", "Post-it"),
    ("as Smith says² elsewhere", "says"),
    ("in 1987³ it fell", "1987"),
    ("$750¹ a month", "750"),
    ("version 3.12² is out", "3.12"),
    ("an area of 40 m²", "m2"),
    ("nº7 of the list", "7"),
    ("№12 of the list", "12"),
    ("la 3ª vez", "3"),
    ("step① then②", "step"),
    ("chapter⑳ begins", "20"),
    ("about 4½ miles", "4.5"),
    ("6¾ inches", "6.75"),
    ("6¾ inches", "6"),
    ("½ a mile", "1/2"),
    ("H₂O flows", "H2O"),
]
OTHER_WORDS = [
    ("in 1987³ it fell", "19873"),
    ("about 4½ miles", "41"),
    ("6¾ inches", "63"),
    ("6¾ inches", "34"),
    ("NVIDIA™ cards", "nvidiatm"),
    ("½ a mile", "12"),
]
# A name is found without its apostrophe; a contraction is no name.
NAMES = [
    ("Sinead O'Connor sang", "OConnor"),
    ("Sinead O\u2019Connor sang", "oconnor"),
    ("Sinead OConnor sang", "O'Connor"),
    ("a role of D'Angelo", "DAngelo"),
    ("by L'Oréal", "LOréal"),
    ("an o'reilly book", "OReilly"),
]
CONTRACTIONS = ("we'll see", "they're back", "it's on", "I'd go", "DON'T")
# An ampersand joins as a slash does.
AMPERSANDS = [
    ("AT&T raised prices", "AT&T"),
    ("the R&D budget", "R&D"),
    ("A&S paid", "A&S"),
    ("a gift of I&T", "I&T"),
    ("he asked D&O about it", "d&o"),
]
POINTED, PLAIN = (
    "\u0645\u064e\u0643\u0652\u062a\u064e\u0628\u064e\u0629",
    "\u0645\u0643\u062a\u0628\u0629",
)
# Points of vowels, digits and the form of the last letter make no other word.
POINTS = [
    ("\u05e9\u05b8\u05c1\u05dc\u05d5\u05b9\u05dd", "\u05e9\u05dc\u05d5\u05dd", "simple"),
    ("\u05e9\u05dc\u05d5\u05dd", "\u05e9\u05b8\u05c1\u05dc\u05d5\u05b9\u05dd", "english"),
    ("\ufb2a\u05dc\u05d5\u05dd", "\u05e9\u05dc\u05d5\u05dd", "he"),
    (POINTED, PLAIN, "simple"),
    (PLAIN, POINTED, "english"),
    (POINTED, PLAIN, "arabic"),
    ("\u0645\u0643\u0640\u0640\u062a\u0628\u0629", "\u0645\u0643\u062a\u0628\u0629", "simple"),
    ("\u0631\u062d\u0645\u0670\u0646", "\u0631\u062d\u0645\u0646", "simple"),
    ("\u0661\u0669\u0668\u0667", "1987", "arabic"),
    ("in 1403", "۱۴۰۳", "english"),
    ("१९८७ म\u0947\u0902", "1987", "hindi"),
    ("๑๒๓", "123", "th"),
    ("ΟΔΟΣ", "οδος", "simple"),
    ("οδος", "ΟΔΟΣ", "simple"),
    ("κόσμος", "κόσμοσ", "greek"),
    ("ΝΙΚΟΣ", "νικος", "greek"),
]
BOOKS = "\u06a9\u062a\u0627\u0628{}\u0647\u0627"


@pytest.mark.parametrize("rows", [SIGNS, NAMES, AMPERSANDS], ids=["signs", "names", "ampersands"])
def test_what_a_reader_takes_for_one_word_is_one(
    knowledge: Connection, rows: list[tuple[str, str]]
) -> None:
    assert [row for row in rows if not found(knowledge, *row)] == []


def test_points_digits_and_the_last_letter_make_no_other_word(knowledge: Connection) -> None:
    lost = [row for row in POINTS if not found(knowledge, *row[:2], language=row[2])]
    # The Persian non-joiner stands between two words.
    content = f"\u0627\u06cc\u0646 {BOOKS.format(chr(0x200C))} \u062e\u0648\u0628"
    lost += [
        (content, query, language)
        for query in (BOOKS[:4], *map(BOOKS.format, (" ", "", chr(0x200C))))
        for language in ("simple", "english", "arabic", "fa")
        if not found(knowledge, content, query, language=language)
    ]
    assert lost == []


def test_a_sign_or_an_apostrophe_makes_no_other_word(knowledge: Connection) -> None:
    assert [row for row in OTHER_WORDS if found(knowledge, *row)] == []
    for content in CONTRACTIONS:
        word = content.split()[0].replace("'", "")
        assert not found(knowledge, content, word, language="simple"), content


def test_a_matched_term_is_as_typed(knowledge: Connection) -> None:
    for content, query in (
        ("½ a mile", "½"),
        ("NVIDIA™ cards", "NVIDIA™"),
        ("№7 is here", "№7"),
        ("by O'Brien", "O\u00b4Brien"),
        ("at 20 ℃ now", "20℃"),
        ("a ﬁle", "ﬁle"),
        ("x² grows", "x²"),
        ("-5 degrees", "\u22125"),
        ("DS-7604", "\uff24\uff33-7604"),
        ("café au lait", "cafe\u0301"),
    ):
        (row,) = searched(knowledge, query, content)
        assert row["matched_terms"] == [query]


def test_a_phrase_passes_over_a_note(knowledge: Connection) -> None:
    store(knowledge, "Sales in 1987\u00b3 rose, and GitLab\u00b2 grew", "in rose 1987")
    for phrase in ('"in 1987 rose"', '"GitLab grew"'):
        assert numbers(search(knowledge, query_text=phrase)) == [1]


UNSEEN = [
    *(0x00AD, 0x034F, 0x061C, 0x115F, 0x180B, 0x180E, 0x200B, 0x200C, 0x200D, 0x200E, 0x200F),
    *(0x202A, 0x202B, 0x202C, 0x202D, 0x202E, 0x2060, 0x2062, 0x2066, 0x2069, 0x206F, 0x3164),
    *(0xFE00, 0xFE0E, 0xFE0F, 0xFEFF, 0xFFA0, 0xFFF9, 0x1D173, 0xE0041, 0xE007F, 0xE0100),
]


def test_what_nobody_sees_changes_no_word(knowledge: Connection) -> None:
    written = [
        form
        for unseen in map(chr, UNSEEN)
        for form in (f"{unseen}quarterly", f"quarterly{unseen}", f"quar{unseen}terly")
    ]
    with knowledge.transaction(force_rollback=True):
        store(knowledge, *(f"the {one} report" for one in written), "another one")
        assert answered(knowledge, "quarterly") == list(range(1, len(written) + 1))
    store(knowledge, "the quarterly report", "another one")
    assert [one for one in written if answered(knowledge, one) != [1]] == []


APOSTROPHES = "'\u2019\u02bc\u02bb\u02b9\u2018\u201b\u2032\u00b4\uff07\ua78c\u055a"


@pytest.mark.parametrize(
    ("before", "after"), [("\u043c", "\u044f\u0442\u0430"), ("O", "Connor"), ("Hawai", "i")]
)
def test_all_apostrophes_are_one(knowledge: Connection, before: str, after: str) -> None:
    store(knowledge, *(f"the {before}{sign}{after} here" for sign in APOSTROPHES), "the here")
    for sign in APOSTROPHES:
        typed = f"{before}{sign}{after}"
        rows = search(knowledge, query_text=typed, search_mode="simple", match_count=50)
        assert sorted(numbers(rows)) == list(range(1, len(APOSTROPHES) + 1))
        assert {*map(tuple, (row["matched_terms"] for row in rows))} == {(typed,)}


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


def test_a_compound_of_stop_words_is_required_in_a_phrase(knowledge: Connection) -> None:
    store(knowledge, "AT&T raised prices", "they raised prices")
    for query in ('"AT&T raised"', '"AT&T" prices', '"AT&T raised prices"'):
        rows = search(knowledge, query_text=query)
        assert numbers(rows) == [1]
        assert rows[0]["notes"] is None
    assert numbers(search(knowledge, query_text="prices -AT&T")) == [2]


@pytest.mark.parametrize("sign", ["\u2122", "\u00ae", "\U0001f525", "\u2192", "\u20ac"])
def test_a_sign_alone_is_no_word(knowledge: Connection, sign: str) -> None:
    store(knowledge, f"a {sign} here")
    assert search(knowledge, query_text=sign) == []
