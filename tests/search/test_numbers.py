"""Numbers and versions: with thousands, decimals and letters around them."""

import re
from itertools import product

import pytest
from searching import numbers, search, searched, store

from conftest import Connection

SAME = [
    ("1234567.89", "1,234,567.89", "1.234.567,89", "1'234'567.89", "1\u2019234\u2019567,89"),
    ("1299.99", "1,299.99", "1.299,99", "1\u00a0299,99", "1'299.99"),
    ("1000000", "1,000,000", "1'000'000", "1\u202f000\u202f000", "10,00,000"),
    ("45000", "45,000", "45'000", "45\u2009000"),
    ("12345678.5", "12,345,678.5", "12.345.678,5", "1,23,45,678.5"),
]
"""Spellings of one number."""


@pytest.mark.parametrize("same", SAME, ids=lambda same: same[0])
def test_a_number_is_one_thing_however_it_is_written(
    knowledge: Connection, same: tuple[str, ...]
) -> None:
    for written, typed in product(same, same):
        parts = "".join(one if one.isdigit() else " " for one in typed).split()
        scattered = " and ".join(reversed([part for part in parts if len(part) < 4]))
        store(knowledge, scattered, f"costs ${written} in all", f"costs {written}5 in all")
        rows = search(knowledge, query_text=typed)
        assert rows[0]["id"].int == 2, (written, typed)
        assert rows[0]["matched_terms"] == [re.sub(r"(?<=\d)\s", "'", typed)]
        assert numbers(search(knowledge, query_text=f'"{typed}"')) == [2]
        assert numbers(search(knowledge, query_text=typed, search_mode="simple")) == [2]
        knowledge.execute("delete from public.knowledge_chunks")


def test_what_only_has_the_same_digits_is_another_number(knowledge: Connection) -> None:
    for content, query in (
        ("see 1,2345 there", "1234"),
        ("the 1234,567 there", "234567"),
        ("at 52.520,13.405 there", "5252013"),
        ("since 10.5 there", "105"),
        ("from 1/2 there", "12"),
        ("the host 10.0.0.1 there", "10001"),
        ("10\u2075 units", "105"),
        ("2^10 units", "210"),
    ):
        assert searched(knowledge, query, content) == [], content


def test_a_version_ranks_above_its_numbers(knowledge: Connection) -> None:
    for version, written in (
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
    ):
        parts = version.split(".")
        scattered = f"On {parts[-1]} May we sold {parts[-2]} of {parts[0]} kinds"
        release = f"Release {written} fixes the login of many users, and more"
        rows = searched(knowledge, version, scattered, release)
        assert numbers(rows)[0] == 2, written
        assert rows[0]["matched_terms"] == [version]
        for row in rows[1:]:
            assert sorted(row["matched_terms"]) == sorted(set(parts))
