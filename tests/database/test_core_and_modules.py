"""How the state in `supabase/schemas/` is written: plain, in functions that can be read, once each.

Core names no module, a module names core alone, and the files of core are in reading order.
`tests/search/test_hybrid_search.py` reads the orders under its limits.
"""

import re
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import sqlparse
from sqlparse import tokens

from tools import schema_files
from tools.schema_files import SCHEMAS, SchemaFile

STATE = schema_files.read()
FILES = [file.path for file in STATE]
POINTS = schema_files.extension_points(STATE)
SEARCH = "public.hybrid_search_knowledge_chunks"
LONGEST, LONGEST_SEARCH = 160, 300
NOT_OF_THE_PLANNER = ("set search_path", "set standard_conforming_strings")


@cache
def functions() -> dict[str, str]:
    """Each function's statement by its name; that of a module has the module before the name."""
    created = re.compile(
        r"^create (?:or replace )?function (\w+\.\w+)\(.*", re.MULTILINE | re.DOTALL
    )
    return {
        f"{file.module} {found[1]}" if file.module else found[1]: found[0]
        for file in STATE
        for one in sqlparse.split(file.text)
        if (found := created.search(one))
    }


def code(text: str) -> str:
    """Leave out comments, those inside of function bodies too."""
    return re.sub(r"--[^\n]*", "", text)


@cache
def top_level(file: Path) -> str:
    """Join the keywords and names of a file outside of literals and function bodies."""
    parsed: Any
    (parsed,) = sqlparse.parse(
        re.sub(r"(\$\$).*?\1", "''", code(file.read_text()), flags=re.DOTALL).replace(";", " ")
    )
    return " ".join(
        token.normalized.lower()
        for token in parsed.flatten()
        if not token.is_whitespace and token.ttype not in tokens.Literal
    )


def test_the_functions_are_found() -> None:
    assert SEARCH in functions()
    assert len(functions()) > 40


def test_functions_have_at_most_160_lines_and_the_search_300() -> None:
    lines = {name: text.count("\n") + 1 for name, text in functions().items()}
    assert lines.pop(SEARCH) <= LONGEST_SEARCH
    assert [name for name, count in lines.items() if count > LONGEST] == []


def test_the_state_is_created_plainly() -> None:
    for file in STATE:
        said = top_level(file.path)
        # The extension may be there before the first migration.
        allowed = 1 if file.path.name == "01_documents.sql" else 0
        assert said.count("if not exists") == allowed, file.path.name
        assert "if exists" not in said, file.path.name
        assert "to_regtype" not in file.text, file.path.name


def test_only_a_module_replaces_and_only_extension_points() -> None:
    for file in STATE:
        replaced = {one.created for one in file.statements if one.replaces}
        assert replaced <= (POINTS.keys() if file.module else set()), file.path.name
        assert top_level(file.path).count("or replace") == len(replaced), file.path.name


def test_a_line_has_at_most_100_characters() -> None:
    lines = [(file.name, line) for file in FILES for line in file.read_text("utf-8").splitlines()]
    assert [one for one in lines if len(one[1]) > 100] == []


# Module citus replaces what reads the catalogue of one table.
TEXT, CORPUS, CITUS = ("02_text_analysis.sql",), ("03_corpus.sql",), ("36_citus.sql",)
# The index and the plan read the dimension of the column in use, the queue that of embedding_next.
OF_THE_EMBEDDINGS = (
    "01_documents.sql",
    "03_corpus.sql",
    "23_embedding_queue.sql",
    "44_in_place.sql",
)


@pytest.mark.parametrize(
    ("pattern", "homes"),
    [
        pytest.param(r"'transcript'", ("01_documents.sql",), id="types"),
        pytest.param(r"'obsidian'", ("01_documents.sql",), id="origins"),
        pytest.param(r"\b1\.2::float8", TEXT, id="k1"),
        pytest.param(r"(?:return|:=) 0\.75\b", TEXT, id="b"),
        pytest.param(r"1 - b \+ b", TEXT, id="length factor"),
        pytest.param(r"\breltuples\b", (*CORPUS, "25_monitoring.sql", *CITUS), id="row estimate"),
        pytest.param(r"\bmost_common_elems\b", CORPUS + CITUS, id="column statistics"),
        pytest.param(r"\batttypmod\b", OF_THE_EMBEDDINGS, id="dimensions"),
    ],
)
def test_shared_constants_are_defined_once(pattern: str, homes: tuple[str, ...]) -> None:
    found = [file.name for file in FILES if re.search(pattern, code(file.read_text("utf-8")))]
    assert tuple(found) == homes


def test_no_list_of_python_repeats_the_knowledge_types() -> None:
    sources = (Path(__file__).parents[2] / "backend" / "src").rglob("*.py")
    assert [file.name for file in sources if "transcript" in file.read_text("utf-8")] == []


def test_the_reason_stands_beside_each_definer() -> None:
    for file in FILES:
        text = file.read_text("utf-8")
        if re.search(r"\bsecurity definer\b", code(text)):
            assert re.search(r"^-- .*\bdefiners?\b", text, re.MULTILINE), file.name


def test_the_reason_stands_beside_each_setting_of_the_planner() -> None:
    for file in FILES:
        lines = file.read_text("utf-8").splitlines()
        for before, line in pairwise(lines):
            if line.startswith("set ") and not line.startswith(NOT_OF_THE_PLANNER):
                assert before.startswith(("-- ", "set ")), line
                assert "search_path" not in before, line


CORE = schema_files.core(STATE)
OF_MODULES = [file for file in STATE if file.module]
OF_CORE = schema_files.objects(CORE)
FUNCTIONS_OF_CORE = {one.function for file in CORE for one in file.functions}
MOST_POINTS = 23
# What is kept of a chunk whose text is elsewhere.
COLUMNS = (
    "alter table public.knowledge_chunks\n  alter column content drop not null,\n",
    "alter table public.knowledge_chunks validate constraint knowledge_chunks_has_content",
    "alter table public.knowledge_chunks add column place_identifiers text",
)

per_core_file = pytest.mark.parametrize("file", CORE, ids=lambda file: file.path.name)
per_module_file = pytest.mark.parametrize("file", OF_MODULES, ids=lambda file: file.path.name)


def told(file: SchemaFile, objects: frozenset[str]) -> list[str]:
    return [f"{place} names {name}" for place, name in file.uses(objects)]


@per_core_file
def test_a_file_of_core_names_no_object_of_a_module(file: SchemaFile) -> None:
    assert told(file, schema_files.objects(OF_MODULES) - OF_CORE) == []


@per_core_file
def test_a_file_of_core_names_no_object_of_a_later_file(file: SchemaFile) -> None:
    so_far = CORE[: CORE.index(file) + 1]
    assert told(file, OF_CORE - schema_files.objects(so_far)) == []


@per_module_file
def test_a_module_names_objects_of_core_and_of_itself_only(file: SchemaFile) -> None:
    others = [one for one in OF_MODULES if one.module != file.module]
    own = [one for one in OF_MODULES if one.module == file.module]
    assert told(file, schema_files.objects(others) - schema_files.objects(own) - OF_CORE) == []


@per_module_file
def test_a_module_changes_nothing_of_core_but_extension_points(file: SchemaFile) -> None:
    for one in file.statements:
        assert one.changed not in OF_CORE or any(text in one.text for text in COLUMNS), one.text
        # A function may have the name of a type.
        if one.created in (FUNCTIONS_OF_CORE if one.function else OF_CORE - FUNCTIONS_OF_CORE):
            assert one.created is not None
            assert one.created in POINTS, f"{one.created} is no extension point"
            assert one.replaces, f"{one.created} of core needs `create or replace`"
            assert one.signature == POINTS[one.created].signature


def test_an_extension_point_is_replaced_once() -> None:
    replaced = [one.function for file in OF_MODULES for one in file.functions if one.replaces]
    assert len(set(replaced)) == len(replaced), replaced


def test_core_has_at_most_23_extension_points_and_its_readme_lists_each() -> None:
    readme = (SCHEMAS / "README.md").read_text("utf-8")
    assert 0 < len(POINTS) <= MOST_POINTS
    assert [name for name in POINTS if f"`{name}" not in readme] == []


def test_an_object_is_created_in_one_file_of_core() -> None:
    created = [(name, file.path.name) for file in CORE for name in file.created if "." in name]
    assert len(created) == len({name for name, _ in created})


@per_module_file
def test_a_file_of_a_module_says_which_module(file: SchemaFile) -> None:
    assert file.text.splitlines()[1] == f"-- Module: {file.module}."


@per_core_file
def test_a_file_of_core_says_no_module(file: SchemaFile) -> None:
    assert "-- Module:" not in file.text


# What a question is read into, and the arguments of the search as they are called.
LARGE_TYPES = {"search_arguments", "knowledge_search_hit", "question", "search_plan"}
# Each is the result of the function, and of no other.
OF_ONE_FUNCTION = {"row_scope", "field_weights"}


def types(files: list[SchemaFile]) -> dict[str, int]:
    """Return how many fields each composite type has."""
    found = re.findall(
        r"^create type \w+\.(\w+) as \(\n(.*?)\n\);",
        "\n".join(file.text for file in files),
        re.MULTILINE | re.DOTALL,
    )
    return {name: fields.count(",") + 1 for name, fields in found}


def test_a_type_has_at_most_fifteen_fields() -> None:
    large = {name for name, fields in types(STATE).items() if fields > 15}
    assert large <= LARGE_TYPES | {"knowledge_own_document", "knowledge_document_summary"}


def test_a_name_is_that_of_a_type_or_of_a_function() -> None:
    named = [one.function for file in STATE for one in file.functions]
    functions = {name.split(".")[-1] for name in named if name}
    assert types(STATE).keys() & functions <= OF_ONE_FUNCTION
