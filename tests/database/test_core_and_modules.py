"""Core names no module, a module names core alone, and the files of core are in reading order."""

import re

import pytest

from tools import schema_files
from tools.schema_files import SCHEMAS, SchemaFile

FILES = schema_files.read()
CORE = schema_files.core(FILES)
OF_MODULES = [file for file in FILES if file.module]
OF_CORE = schema_files.objects(CORE)
FUNCTIONS_OF_CORE = {one.function for file in CORE for one in file.functions}
POINTS = schema_files.extension_points(FILES)
MOST_POINTS = 21
# What is kept of a chunk whose text is elsewhere.
COLUMNS = (
    "alter table public.knowledge_chunks\n  alter column content drop not null,\n",
    "alter table public.knowledge_chunks validate constraint knowledge_chunks_has_content",
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


def test_core_has_at_most_21_extension_points_and_its_readme_lists_each() -> None:
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
LARGE_TYPES = {"search_arguments", "knowledge_search_hit"}
# Each is the result of the function, and of no other.
OF_ONE_FUNCTION = {"chunk_table", "corpus_figures", "row_scope", "field_weights"}


def types(files: list[SchemaFile]) -> dict[str, int]:
    """Return how many fields each composite type has."""
    found = re.findall(
        r"^create type \w+\.(\w+) as \(\n(.*?)\n\);",
        "\n".join(file.text for file in files),
        re.MULTILINE | re.DOTALL,
    )
    return {name: fields.count(",") + 1 for name, fields in found}


def test_a_type_has_at_most_fifteen_fields() -> None:
    large = {name for name, fields in types(FILES).items() if fields > 15}
    assert large <= LARGE_TYPES | {"knowledge_own_document", "knowledge_document_summary"}


def test_a_name_is_that_of_a_type_or_of_a_function() -> None:
    named = [one.function for file in FILES for one in file.functions]
    functions = {name.split(".")[-1] for name in named if name}
    assert types(FILES).keys() & functions <= OF_ONE_FUNCTION
