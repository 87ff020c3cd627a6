"""Keyboards write one letter with several codes, and docs/search.md has a table of them."""

import re
import unicodedata
from pathlib import Path

import pytest
from searching import insert, numbers, search, store

from conftest import Connection

PAGE = (Path(__file__).parents[2] / "docs/search.md").read_text()

SPELLINGS = (
    ("کتاب", "كتاب"),
    ("علی", "علي"),
    ("الدورى", "الدوري"),
    ("مکتبی", "مكتبي"),
    ("ہوا", "هوا"),
    ("پھول", "پهول"),
    ("مدینۃ", "مدينة"),
    ("لڑکے", "لڑكي"),
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


@pytest.mark.module("words")
@pytest.mark.parametrize(
    ("word", "beginning", "typo"),
    [("کتابخانه", "کتاب", "کتبخانه"), ("یونیورسٹی", "یون", "یونورسٹی"), ("مدیریت", "مدی", "مدیرت")],
)
def test_beginnings_typos_and_synonyms_are_read_alike(
    knowledge: Connection, word: str, beginning: str, typo: str
) -> None:
    store(knowledge, {"content": f"zzz {word}", "language": "simple"}, "other")
    assert numbers(search(knowledge, query_text=beginning, prefix_last=True)) == [1]
    assert numbers(search(knowledge, query_text=typo)) == [1]
    insert(knowledge, "knowledge_synonyms", {"term": "library", "synonym": word})
    assert numbers(search(knowledge, query_text="library")) == [1]


def test_the_page_lists_all_letters_that_are_read_as_others(knowledge: Connection) -> None:
    table = PAGE.partition("| letters | are read as |\n|---|---|\n")[2].partition("\n\n")[0]
    listed: dict[str, str] = {}
    for line in table.splitlines():
        letters, read_as = line.strip("| ").split(" | ")
        for group in letters.split():
            listed |= dict(zip(group, read_as, strict=True))
    read: dict[str, str] = dict(
        knowledge.execute(
            "select chr(code), knowledge_internal.normalised(chr(code))"
            "  from generate_series(128, 65535) as code where code not between 55296 and 57343"
        ).fetchall()
    )
    assert listed == {
        one: read_as
        for one, read_as in read.items()
        if len(read_as) == 1
        and read_as != one
        and unicodedata.category(one)[0] in "LNPS"
        and unicodedata.is_normalized("NFKC", one)
    }


def test_the_page_lists_the_scripts_of_words(knowledge: Connection) -> None:
    listed = re.search(r"work in scripts with spaces: ([^.]*)\.", PAGE)
    assert listed is not None
    letters = knowledge.execute(
        "select chr(code) from generate_series(97, 65535) as code"
        " where code not between 55296 and 57343"
        "   and chr(code) ~ ('[' || knowledge_internal.letters_of_words() || ']')"
    )
    scripts = {
        unicodedata.name(letter).split()[0].capitalize()
        for (letter,) in letters
        if unicodedata.category(letter) in ("Ll", "Lo")
    }
    assert {*re.split(r",\s+|\s+and\s+", listed[1])} == scripts
