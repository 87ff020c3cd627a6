"""What every function and every file of SQL has, and what none has; read by a parser."""

import re

import pytest
from pglast import ast
from pglast.enums import (
    ObjectType,
)
from pglast.stream import RawStream
from sql_trees import (
    PUBLIC_FUNCTIONS,
    Function,
    body,
    dotted,
    nodes,
    parsed,
    per_function,
    per_public_function,
    words,
)

from second_brain.database import migrations
from second_brain.database.migrations import Migration

ATTRIBUTES = re.compile(
    r"^language (?:sql|plpgsql)(?P<volatility> (?:immutable|stable|volatile))?"
    r"(?: parallel (?:safe|restricted))? security (?:invoker|definer)"
    r" set search_path = \w+(?:, \w+)*(?: as \$\$| as '|$)",
    re.MULTILINE,
)


@per_function
def test_a_function_states_its_properties_in_one_order(definition: Function) -> None:
    stated = [option.defname for option in definition.options]
    expected = ["language", "volatility", "parallel", "security", "set"]
    if definition.returnType and dotted(definition.returnType.names) == "trigger":
        expected.remove("volatility")
    if "parallel" not in stated:
        expected.remove("parallel")
    assert stated[: len(expected)] == expected
    assert set(stated) <= {*expected, "as"}


@pytest.mark.parametrize("one", migrations.find_state(), ids=lambda one: one.file_name)
def test_the_properties_of_a_function_stand_on_one_line(one: Migration) -> None:
    made = [
        text
        for _, text in migrations.statements(one.sql)
        if re.search(r"^create (?:or replace )?function ", text, re.MULTILINE)
    ]
    assert [text for text in made if len(ATTRIBUTES.findall(text)) != 1] == []


@pytest.mark.parametrize("file_name", sorted({file_name for file_name, _ in PUBLIC_FUNCTIONS}))
def test_a_file_with_public_functions_ends_by_telling_postgrest(file_name: str) -> None:
    last = parsed()[file_name][-1]
    assert RawStream()(last) == "NOTIFY pgrst, 'reload schema'"


COMMENTS = [one for statements in parsed().values() for one in nodes(statements, ast.CommentStmt)]


@per_public_function
def test_a_public_function_is_commented_in_its_own_file(file_name: str, name: str) -> None:
    commented = {
        dotted(one.object.objname)
        for one in nodes(parsed()[file_name], ast.CommentStmt)
        if one.objtype == ObjectType.OBJECT_FUNCTION and one.comment
    }
    assert name in commented


def test_no_comment_is_on_an_internal_object() -> None:
    on_schema = [one for one in COMMENTS if one.objtype == ObjectType.OBJECT_SCHEMA]
    assert [one.object.sval for one in on_schema] == ["knowledge_internal"]
    named = [RawStream()(one).partition(" IS ")[0] for one in COMMENTS if one not in on_schema]
    assert [one for one in named if "knowledge_internal." in one.partition("(")[0]] == []


def test_one_place_names_the_dimension() -> None:
    sized = [
        (file_name, one.typmods[0].val.ival)
        for file_name, statements in parsed().items()
        for one in nodes(statements, ast.TypeName)
        if dotted(one.names).split(".")[-1] in {"vector", "halfvec"} and one.typmods
    ]
    assert sized == [("002_documents.sql", 1024)]
    text = " ".join(word for one in migrations.find() for word in words(one.sql))
    assert re.findall(r"\b(?:vector|halfvec) \( (\d+) \)", text) == ["1024"]


@pytest.mark.parametrize("one", migrations.find(), ids=lambda one: one.file_name)
def test_a_file_starts_with_its_name_and_purpose(one: Migration) -> None:
    first, second, *_ = one.sql.splitlines()
    assert re.fullmatch(rf"-- {one.version}_{one.name}: \S.*\.", first)
    assert second.startswith("-- ")


NAMED_AT_RUN_TIME = {
    "public.knowledge_candidate_hits",
    *(
        f"knowledge_internal.{name}"
        for name in (
            "adopted_rows",
            "carry_over_changes",
            "carry_over_again",
            "adoption_keys",
            "adoption_left_over",
            "pending_next_chunks",
            "write_embeddings",
            "physical_table",
            # Conditions of row_scope.
            "with_sample",
            "has_matching_chunk",
            "nearest_rows",
            "compared_rows",
            "candidate_rows",
            "around",
            "matching_chunks",
            "pending_embeddings",
            "visible_words",
            "listed_documents",
            "visible_completions",
            "document_content",
            "failed_restrictions",
        )
    ),
}


@pytest.mark.parametrize(
    "definition",
    [
        statement
        for statements in parsed().values()
        for statement in statements
        if isinstance(statement, ast.CreateFunctionStmt | ast.DoStmt)
    ],
    ids=lambda one: dotted(one.funcname) if isinstance(one, ast.CreateFunctionStmt) else "do",
)
def test_no_sql_is_put_together_at_run_time(definition: Function) -> None:
    made_of = {"execute", "query_to_xml", "query_to_xml_and_xmlschema", "query_to_xmlschema"}
    name = dotted(definition.funcname) if isinstance(definition, ast.CreateFunctionStmt) else "do"
    if not made_of & set(words(body(definition))):
        return
    # The vector index's type needs its dimensions spelled out; no search comes by it.
    if "knowledge_internal.indexed_embedding" in body(definition):
        return
    # A project's table, and columns that exist only during a re-embedding, have no static SQL.
    # Their names are quoted by %I or come as a regclass; values are parameters of `using`. The
    # conditions of row_scope are text, because those of absent filters are left out.
    assert name in NAMED_AT_RUN_TIME
    assert "%L" not in body(definition)
    assert "using" in words(body(definition)) or name.endswith("carry_over_changes")


@per_function
def test_query_text_is_never_parsed_as_a_tsquery(definition: Function) -> None:
    assert "to_tsquery" not in set(words(body(definition)))


def test_who_may_see_a_row_is_said_in_few_places() -> None:
    # Two policies, the conditions of row_scope, and the list of a user's own documents.
    conditions = [
        one.file_name
        for one in migrations.find()
        for _ in re.finditer(r"\ballowed_groups\s*&&", one.sql)
    ]
    assert len(conditions) <= 4, conditions


def test_no_setting_carries_what_a_search_found() -> None:
    assert not [
        (one.file_name, word)
        for one in migrations.find()
        for word in words(one.sql)
        if "knowledge_internal.trac" in word
    ]
