"""How the state in `supabase/schemas/` is written: plain, in functions that can be read, once each.

sqlparse reads the files; `tests/search/test_hybrid_search.py` reads the search more closely.
"""

import re
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import sqlparse
from sqlparse import tokens

SCHEMAS = Path(__file__).parents[2] / "supabase" / "schemas"
FILES = sorted(SCHEMAS.glob("*.sql"))
SEARCH = "public.hybrid_search_knowledge_chunks"
LONGEST, LONGEST_SEARCH = 160, 300
NOT_OF_THE_PLANNER = ("set search_path", "set standard_conforming_strings")


@cache
def functions() -> dict[str, str]:
    """Each function's statement by its name."""
    created = re.compile(r"^create function (\w+\.\w+)\(.*", re.MULTILINE | re.DOTALL)
    return {
        found[1]: found[0]
        for file in FILES
        for one in sqlparse.split(file.read_text("utf-8"))
        if (found := created.search(one))
    }


def code(text: str) -> str:
    """Leave out comments, those inside of function bodies too."""
    return re.sub(r"--[^\n]*", "", text)


def top_level(file: Path) -> list[str]:
    """List the keywords and names of a file outside of literals and function bodies."""
    parsed: Any
    (parsed,) = sqlparse.parse(
        re.sub(r"(\$\$).*?\1", "''", code(file.read_text()), flags=re.DOTALL).replace(";", " ")
    )
    return [
        token.normalized.lower()
        for token in parsed.flatten()
        if not token.is_whitespace and token.ttype not in tokens.Literal
    ]


def test_the_functions_are_found() -> None:
    assert SEARCH in functions()
    assert len(functions()) > 40


@pytest.mark.parametrize("name", functions())
def test_functions_have_at_most_160_lines_and_the_search_300(name: str) -> None:
    lines = functions()[name].count("\n") + 1
    assert lines <= (LONGEST_SEARCH if name == SEARCH else LONGEST)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_the_state_is_created_plainly(file: Path) -> None:
    said = " ".join(top_level(file))
    # The extension may be there before the first migration.
    allowed = 1 if file.name == "01_extensions.sql" else 0
    assert said.count("if not exists") == allowed
    assert "or replace" not in said
    assert "if exists" not in said
    assert "to_regtype" not in file.read_text()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_line_has_at_most_100_characters(file: Path) -> None:
    assert [line for line in file.read_text("utf-8").splitlines() if len(line) > 100] == []


@pytest.mark.parametrize(
    ("pattern", "home"),
    [
        (r"'case_study'", "02_documents.sql"),
        (r"'obsidian'", "02_documents.sql"),
        (r"return 1\.2\b", "04_text_analysis.sql"),
        (r"\bb constant float8 := 0\.75\b", "04_text_analysis.sql"),
        (r"1 - b \+ b", "04_text_analysis.sql"),
        (r"\breltuples\b", "03_chunks.sql"),
        (r"\bmost_common_elems\b", "03_chunks.sql"),
        (r"\batttypmod\b", "03_chunks.sql"),
    ],
    ids=[
        "types",
        "origins",
        "k1",
        "b",
        "length factor",
        "row estimate",
        "column statistics",
        "dimensions",
    ],
)
def test_shared_constants_are_defined_once(pattern: str, home: str) -> None:
    reported = re.compile(pattern, re.DOTALL)
    assert [file.name for file in FILES if reported.search(code(file.read_text("utf-8")))] == [home]


def test_no_list_of_python_repeats_the_knowledge_types() -> None:
    sources = (Path(__file__).parents[2] / "backend" / "src").rglob("*.py")
    assert [file.name for file in sources if "case_study" in file.read_text("utf-8")] == []


def test_the_reason_stands_beside_each_definer() -> None:
    for file in FILES:
        text = file.read_text("utf-8")
        if re.search(r"^security definer$", text, re.MULTILINE):
            assert re.search(r"^-- .*\bdefiners?\b", text, re.MULTILINE), file.name


def test_the_reason_stands_beside_each_setting_of_the_planner() -> None:
    for file in FILES:
        lines = file.read_text("utf-8").splitlines()
        for before, line in pairwise(lines):
            if line.startswith("set ") and not line.startswith(NOT_OF_THE_PLANNER):
                assert before.startswith(("-- ", "set ")), line
                assert "search_path" not in before, line
