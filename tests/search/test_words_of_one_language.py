"""A chunk must have what its own language reads, however many chunks other languages have."""

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


@pytest.mark.parametrize("chunks", [1, 2, 9])
@pytest.mark.parametrize(("phrase", "other", "language", "foreign"), PHRASES)
def test_words_are_required_as_without_other_languages(
    knowledge: Connection, phrase: str, other: str, language: str, foreign: str, chunks: int
) -> None:
    first, second = phrase.split()
    rows: list[dict[str, Any]] = [
        {"content": f"The {phrase} is on floor 2", "language": "english"},
        {"content": other, "language": "english"},
        *[{"content": foreign, "language": language}] * chunks,
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


@pytest.mark.parametrize("english", [0, 1, 3, 9])
@pytest.mark.parametrize(
    ("language", "text", "phrase"),
    [
        ("german", "Der Krieg war hart", "war hart"),
        ("german", "Die Katze war hier", "die Katze"),
        ("french", "La lettre est chez son père", "son père"),
        ("spanish", "El hombre sin nombre", "sin nombre"),
        ("danish", "Vi så men hørte intet", "men hørte"),
    ],
)
def test_a_stop_word_of_its_language_is_required_of_no_row(
    knowledge: Connection, language: str, text: str, phrase: str, english: int
) -> None:
    store(
        knowledge,
        {"content": text, "language": language},
        *(f"the war is over, a son without sin has many men {number}" for number in range(english)),
    )
    for mode in ("websearch", "simple", "phrase"):
        typed = f'"{phrase}"' if mode == "websearch" else phrase
        (row,) = search(knowledge, query_text=typed, search_mode=mode)
        assert (row["id"].int, row["notes"]) == (1, None)
    condition = [{"field": "text", "op": "has_all_words", "value": [phrase]}]
    assert numbers(search(knowledge, query_text=text, filters=condition)) == [1]
