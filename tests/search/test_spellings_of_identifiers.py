"""Versions with and without v, letters and digits joined, spaced and hyphened, are the same."""

import re
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


@pytest.mark.parametrize("typed", ["S3", "A4", "30s", "AS400", "A380", "10am", "I7", "9a"])
def test_a_number_beside_a_stop_word_does_not_stand_for_it(
    knowledge: Connection, typed: str
) -> None:
    other = re.sub("[A-Za-z]+", "XY", typed)
    store(knowledge, f"thing {typed}", f"thing {other}")
    for text, found in ((f'"{typed}"', {1}), (f"thing -{typed}", {2})):
        assert set(numbers(search(knowledge, query_text=text))) == found


@pytest.mark.parametrize(
    "name", ["release/{}", "pkg@{}", "pkg-{}.tgz", "image:{}", "x/{}/y", "{}-rc1", "[{}]", "=={}"]
)
def test_a_version_behind_a_name_is_met_with_a_v_and_without(
    knowledge: Connection, name: str
) -> None:
    versions = ("2.4.1", "v2.4.1")
    store(knowledge, *(f"tagged {name.format(one)}" for one in versions), "tagged v2.4.10")
    for typed in versions:
        assert set(numbers(search(knowledge, query_text=f'"{typed}"'))) == {1, 2}
        assert numbers(search(knowledge, query_text=f"tagged -{typed}")) == [3]


@pytest.mark.parametrize(
    ("joined", "apart"), [("iPhone15", "iPhone 15"), ("10kΩ", "10 kΩ"), ("2.5mm", "2.5 mm")]
)
def test_a_joined_name_finds_the_two_words(knowledge: Connection, joined: str, apart: str) -> None:
    store(knowledge, f"{apart} one", f"{joined} two")
    assert set(numbers(search(knowledge, query_text=joined))) == {1, 2}


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
