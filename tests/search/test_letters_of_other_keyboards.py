"""Persian, Urdu and Arabic keyboards write one letter with several codes."""

import pytest
from searching import numbers, search, store

from conftest import Connection

SPELLINGS = (
    ("کتاب", "كتاب"),
    ("علی", "علي"),
    ("الدورى", "الدوري"),
    ("مکتبی", "مكتبي"),
    ("ہوا", "هوا"),
)


@pytest.mark.parametrize("language", ["simple", "arabic"])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_each_spelling_finds_the_other(
    knowledge: Connection, spelling: tuple[str, str], language: str
) -> None:
    store(knowledge, *({"content": one, "language": language} for one in spelling))
    for typed in spelling:
        rows = search(knowledge, query_text=typed)
        assert set(numbers(rows)) == {1, 2}
        assert all(row["matched_terms"] == [typed] for row in rows)
