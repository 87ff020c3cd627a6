"""Numbers and versions: with thousands, decimals and letters around them."""

import re

import pytest
from searching import numbers, search, store

from conftest import Connection

SAME = [
    ("1234567.89", "1,234,567.89", "1.234.567,89", "1'234'567.89", "1\u2019234\u2019567,89"),
    ("1299.99", "1,299.99", "1.299,99", "1\u00a0299,99", "1'299.99"),
    ("1000000", "1,000,000", "1'000'000", "1\u202f000\u202f000", "10,00,000"),
    ("45000", "45,000", "45'000", "45\u2009000"),
    ("12345678.5", "12,345,678.5", "12.345.678,5", "1,23,45,678.5"),
]
"""Spellings of one number."""


@pytest.mark.parametrize(
    ("written", "typed"), [(one, other) for same in SAME for one in same for other in same]
)
def test_a_number_is_one_thing_however_it_is_written(
    knowledge: Connection, written: str, typed: str
) -> None:
    parts = "".join(one if one.isdigit() else " " for one in typed).split()
    scattered = " and ".join(reversed([part for part in parts if len(part) < 4]))
    store(knowledge, scattered, f"costs ${written} in all", f"costs {written}5 in all")
    rows = search(knowledge, query_text=typed)
    assert rows[0]["id"].int == 2
    assert rows[0]["matched_terms"] == [re.sub(r"(?<=\d)\s", "'", typed)]
    assert numbers(search(knowledge, query_text=f'"{typed}"')) == [2]
    assert numbers(search(knowledge, query_text=typed, search_mode="simple")) == [2]


@pytest.mark.parametrize(
    ("content", "query"),
    [
        ("see 1,2345 there", "1234"),
        ("the 1234,567 there", "234567"),
        ("at 52.520,13.405 there", "5252013"),
        ("since 10.5 there", "105"),
        ("from 1/2 there", "12"),
        ("the host 10.0.0.1 there", "10001"),
        ("10\u2075 units", "105"),
        ("2^10 units", "210"),
    ],
)
def test_what_only_has_the_same_digits_is_another_number(
    knowledge: Connection, content: str, query: str
) -> None:
    store(knowledge, content)
    assert search(knowledge, query_text=query) == []


@pytest.mark.parametrize(
    ("version", "written"),
    [
        ("2.10.3", "v2.10.3"),
        ("2.10.3", "2.10.3-beta.1"),
        ("2.10.3", "release-2.10.3"),
        ("2.10.3", "2.10.3rc1"),
        ("2.10.3", "app/2.10.3/x"),
        ("4.17", "v4.17"),
        ("4.17", "lodash@4.17"),
        ("3.11", "Python3.11"),
        ("3.11", "3.11.2"),
        ("3.11", "3.11\u00b2"),
        ("17.2.1", "iOS17.2.1"),
        ("2.5", "2.5kg"),
    ],
)
def test_a_version_ranks_above_its_numbers(
    knowledge: Connection, version: str, written: str
) -> None:
    parts = version.split(".")
    scattered = f"On {parts[-1]} May we sold {parts[-2]} of {parts[0]} kinds"
    store(knowledge, scattered, f"Release {written} fixes the login of many users, and more")
    rows = search(knowledge, query_text=version)
    assert numbers(rows)[0] == 2
    assert rows[0]["matched_terms"] == [version]
    for row in rows[1:]:
        assert sorted(row["matched_terms"]) == sorted(set(parts))


@pytest.mark.parametrize(
    ("query", "content", "expected"),
    [
        ("2.10.3", "On 3 May we sold 10 of 2 kinds", ["2", "10", "3"]),
        ("1,234.5", "5 of 234 in 1", ["1", "234", "5"]),
        ("user_name", "the name of a user", ["user", "name"]),
        ("long-term", "a term that is long", ["long", "term"]),
        ("src/main.py", "py and src", ["src", "py"]),
        ("joe@example.com", "example by joe", ["joe", "example"]),
        ("2.10.3", "at 2.10.3 now", ["2.10.3"]),
        ("user_name", "the user name", ["user_name"]),
        ("DS-7604", "a DS7604", ["DS-7604"]),
        ("DS7604", "a DS-7604", ["DS7604"]),
    ],
)
def test_a_compound_that_a_row_lacks_is_named_by_its_parts(
    knowledge: Connection, query: str, content: str, expected: list[str]
) -> None:
    store(knowledge, content)
    (row,) = search(knowledge, query_text=query)
    assert row["matched_terms"] == expected
