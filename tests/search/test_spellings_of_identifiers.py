"""Versions with and without v, letters and digits joined, spaced and hyphened, are the same."""

from itertools import product
from typing import Any

import pytest
from filtering import one
from psycopg.types.json import Jsonb
from searching import numbers, search, store

from conftest import Connection

NAMES = (
    ("DS", "7604"),
    ("iphone", "15"),
    ("16", "GB"),
    ("KB", "5001330"),
    ("500", "ml"),
    ("3", "m"),
    ("1", "TB"),
    ("5", "kg"),
    ("M", "3"),
    ("H", "264"),
    ("7", "zip"),
)


@pytest.mark.parametrize("name", NAMES)
def test_letters_and_digits_are_found_in_each_spelling(
    knowledge: Connection, name: tuple[str, str]
) -> None:
    spellings = ["".join(name), " ".join(name), "-".join(name)]
    store(knowledge, *(f"{one} recorder" for one in spellings), "laptop with nothing")
    for typed in (*spellings, *map(str.lower, spellings)):
        assert sorted(numbers(search(knowledge, query_text=typed))) == [1, 2, 3], typed


CONDITIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    ('"{}"', {}),
    ("-{} thing", {}),
    ('-"{}" thing', {}),
    ("{}", {"search_mode": "simple"}),
    ("{}", {"search_mode": "phrase"}),
    ("thing", {"op": "has_any_word"}),
    ("thing", {"op": "has_all_words"}),
    ("thing", {"op": "has_no_word"}),
)


@pytest.mark.parametrize("name", [*NAMES, ("v", "2.4.1"), ("V", "3.11")])
def test_conditions_are_the_same_in_each_spelling(
    knowledge: Connection, name: tuple[str, str]
) -> None:
    is_version = name[0] in "vV"
    spellings = [name[1], "".join(name)]
    if not is_version:
        spellings = ["".join(name), " ".join(name), "-".join(name)]
    others = ["DS 7605", "16 MB", "v2.4.2", "3.12", "4 m", "m 4"]
    store(knowledge, *(f"a thing: {text} and more" for text in spellings + others))
    same, all_ = set(range(1, len(spellings) + 1)), set(range(1, len(spellings + others) + 1))
    for (question, asked), typed in product(CONDITIONS, spellings):
        if "-{}" in question and " " in typed:
            continue
        op = asked.get("op")
        rest = asked if op is None else {"filters": Jsonb(one("text", op, [typed]))}
        found = set(numbers(search(knowledge, query_text=question.format(typed), **rest)))
        is_excluded = question.startswith("-") or op == "has_no_word"
        assert found == (all_ - same if is_excluded else same), (question, asked, typed)


def test_what_is_stored_beside_hides_nothing(knowledge: Connection) -> None:
    for place, (stored, typed) in enumerate(product(("DS 7604", "DS7604", "DS-7604"), repeat=2)):
        knowledge.execute("truncate public.knowledge_chunks")
        store(knowledge, f"{stored} recorder", "DS7604 manual", "DS 14 charger", "DS-7604")
        found = numbers(search(knowledge, query_text=f"{typed} recorder"))
        assert found[0] == 1, (place, stored, typed)


@pytest.mark.parametrize("version", ["2.4.1", "3.11", "10.0.2", "1.2.3.4", "0.9.12"])
def test_a_version_is_the_same_with_a_v(knowledge: Connection, version: str) -> None:
    store(
        knowledge,
        f"Version {version} fixes the crash on start",
        "2 of 4 items and 1 box, 11 9",
        "v2.4 overview of 3",
        f"v{version} is old",
    )
    for typed in (version, f"v{version}", f"V{version}"):
        assert set(numbers(search(knowledge, query_text=typed))[:2]) == {1, 4}, typed
        for text in (f'"{typed}"', f"crash {typed}"):
            assert 1 in numbers(search(knowledge, query_text=text)), text


@pytest.mark.parametrize("typed", ["HEAD~29", "HEAD~29^", "main~29", "~29", "x~29~y"])
def test_a_tilde_divides_words(knowledge: Connection, typed: str) -> None:
    store(knowledge, "Room 29 is closed", "HEAD~3 is a commit")
    rows = {row["id"].int: row["matched_terms"] for row in search(knowledge, query_text=typed)}
    assert rows[1] in (["29"], ["~29"])


@pytest.mark.module("words")
@pytest.mark.parametrize("typed", ["setUserName", "getUserMane", "getUserGame", "gotUserName"])
def test_an_identifier_is_not_a_misspelt_word(knowledge: Connection, typed: str) -> None:
    store(knowledge, "we call getUserName here")
    for row in search(knowledge, query_text=typed):
        assert row["notes"] is None
        assert row["answer_confidence"] < 0.6
