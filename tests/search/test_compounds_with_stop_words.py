"""A compound that begins or ends with a stop word is not its other part."""

import pytest
from searching import numbers, search, store

from conftest import Connection

COMPOUNDS = {
    "check-in": ("Online check-in opens a day before departure", "Please check the bill"),
    "t-shirt": ("A t-shirt", "The blue shirt"),
    "follow-up": ("Plan a follow-up for May", "Please follow the path"),
    "out-of-office": ("An out-of-office message", "The office is closed"),
    "on-call": ("The on-call engineer", "Please call us"),
}


@pytest.mark.parametrize("compound", COMPOUNDS)
def test_it_is_found_excluded_and_filtered_as_one_word(
    knowledge: Connection, compound: str
) -> None:
    store(knowledge, *COMPOUNDS[compound])
    quoted = search(knowledge, query_text=f'"{compound}"')
    assert [(row["id"].int, row["matched_terms"]) for row in quoted] == [(1, [compound])]
    assert quoted[0]["notes"] is None
    for mode in ("simple", "phrase"):
        assert numbers(search(knowledge, query_text=compound, search_mode=mode)) == [1]
    other = COMPOUNDS[compound][1]
    assert numbers(search(knowledge, query_text=f"{other} -{compound}")) == [2]
    for op, found in (("has_all_words", [1]), ("has_no_word", [2])):
        condition = [{"field": "text", "op": op, "value": [compound]}]
        text = " ".join(COMPOUNDS[compound])
        assert numbers(search(knowledge, query_text=text, filters=condition)) == found
    # Unquoted, its other part is a hit, but not under its name.
    named = {row["id"].int: row["matched_terms"] for row in search(knowledge, query_text=compound)}
    assert named[1] == [compound]
    assert compound not in named.get(2, [])


@pytest.mark.parametrize(
    ("language", "compound", "part"),
    [
        ("french", "c'est-à-dire", "Il faut dire oui"),
        ("french", "l'au-delà", "Il va delà"),
        ("english", "don't-care", "We care"),
        ("english", "what's-new", "A new page"),
    ],
)
def test_an_apostrophe_changes_nothing(
    knowledge: Connection, language: str, compound: str, part: str
) -> None:
    texts = (f"thing {compound}", f"thing {part}")
    store(knowledge, *({"content": text, "language": language} for text in texts))
    assert numbers(search(knowledge, query_text=f'"{compound}"')) == [1]
    assert numbers(search(knowledge, query_text=f"thing -{compound}")) == [2]


def test_other_compounds_are_found_as_spaced(knowledge: Connection) -> None:
    store(knowledge, "a long lasting colour", "day to day work", "Iran", "the to-do list")
    for phrase, found in (
        ('"long-lasting"', [1]),
        ('"day-to-day"', [2]),
        ('"to-do"', [4]),
        ('"to-do list"', [4]),
    ):
        assert numbers(search(knowledge, query_text=phrase)) == found, phrase
