"""A chunk in another language changes no phrase, exclusion or filter of the others."""

from typing import Any

import pytest
from searching import numbers, search, store

from conftest import Connection

# A phrase, a text without its first word, the language in which that is a stop word, and a text.
PHRASES = (
    ("war room", "The meeting room was empty", "german", "Das Dokument liegt im Archiv"),
    ("die hard", "It was hard", "german", "Das Dokument liegt im Archiv"),
    ("sin tax", "The tax on sugar", "spanish", "El documento no existe"),
    ("men work", "The work goes on", "danish", "Dokumentet er i arkivet"),
    ("pour water", "The water is cold", "french", "Le document est absent"),
)


@pytest.mark.parametrize(("phrase", "other", "language", "foreign"), PHRASES)
def test_words_are_required_as_without_it(
    knowledge: Connection, phrase: str, other: str, language: str, foreign: str
) -> None:
    first, second = phrase.split()
    rows: list[dict[str, Any]] = [
        {"content": f"The {phrase} is on floor 2", "language": "english"},
        {"content": other, "language": "english"},
        {"content": foreign, "language": language},
    ]
    store(knowledge, *rows)
    for mode in ("websearch", "simple", "phrase"):
        text = f'"{phrase}"' if mode == "websearch" else phrase
        found = search(knowledge, query_text=text, search_mode=mode)
        assert numbers(found) == [1], mode
        assert found[0]["notes"] is None
    assert numbers(search(knowledge, query_text=f'{second} -"{phrase}"')) == [2]
    assert numbers(search(knowledge, query_text=f"{second} -{first}")) == [2]
    for op, expected in (("has_all_words", [1]), ("has_no_word", [2])):
        condition = [{"field": "text", "op": op, "value": [phrase]}]
        assert numbers(search(knowledge, query_text=second, filters=condition)) == expected


def test_a_stop_word_of_most_chunks_is_not_required(knowledge: Connection) -> None:
    german = [
        {"content": f"Der Krieg war hart {number}", "language": "german"} for number in range(3)
    ]
    store(knowledge, *german, {"content": "the war was hard", "language": "english"})
    assert sorted(numbers(search(knowledge, query_text='"war hart"'))) == [1, 2, 3]


def test_a_language_of_few_chunks_is_read_where_no_row_has_all_words(knowledge: Connection) -> None:
    store(
        knowledge,
        *(f"the war is over {number}" for number in range(3)),
        {"content": "Die Katze war hier", "language": "german"},
    )
    for mode in ("simple", "phrase"):
        (row,) = search(knowledge, query_text="die Katze", search_mode=mode)
        assert row["id"].int == 4
        assert row["notes"]["relaxed"]
